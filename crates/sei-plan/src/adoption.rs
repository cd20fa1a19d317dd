//! Whether a running pod without a record runs what we would render.
//!
//! The server compares: a dry-run apply of our render returns the template that it would store,
//! with its defaults and with the fields of other managers. The pod's `ControllerRevision` holds
//! the template that the pod was created from, with the defaults of that time. No table of defaults
//! is kept here, because it would change with every server version.

use serde_json::{Map, Value};

use sei_api::status::FieldChange;

use crate::diff::{clean, diff};
use crate::place::Place;

#[cfg(test)]
mod tests;

/// The result of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The pod runs our render, so its fingerprint may be recorded.
    Equal,
    /// What applying our render would change; never empty.
    Different(Vec<FieldChange>),
    /// The revision that the pod was created from no longer exists, so the server cannot compare.
    NoRevision,
}

/// Why the body of a revision could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdoptionError {
    #[error("the data of the revision is {found}, not an object with `spec.template`")]
    NotAnObject { found: &'static str },
    #[error("the data of the revision has no `spec.template`")]
    NoTemplate,
    #[error("the data of the revision patches its template with `{directive}`, not with `replace`")]
    NotAReplacement { directive: String },
    #[error("the template of the revision has no list of containers in its `spec`")]
    NoContainers,
}

/// The pod template in a `ControllerRevision`'s data: `{"spec": {"template": {.., "$patch":
/// "replace"}}}`. A bare template is returned unchanged.
pub fn template_of_revision(body: &Value) -> Result<Value, AdoptionError> {
    if !body.is_object() {
        return Err(AdoptionError::NotAnObject { found: kind(body) });
    }
    let mut template = match body.pointer("/spec/template") {
        Some(template) => template.clone(),
        None if body.pointer("/spec/containers").is_some() => body.clone(),
        None => return Err(AdoptionError::NoTemplate),
    };
    let fields = template.as_object_mut().ok_or(AdoptionError::NoTemplate)?;
    match fields.remove("$patch") {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {}
        // With any other directive the data is a part of a template, not all of it.
        Some(directive) => {
            let directive = directive.as_str().map_or_else(|| directive.to_string(), str::to_owned);
            let directive = directive.chars().take(40).collect();
            return Err(AdoptionError::NotAReplacement { directive });
        }
    }
    match template.pointer("/spec/containers") {
        Some(Value::Array(containers)) if !containers.is_empty() => Ok(template),
        _ => Err(AdoptionError::NoContainers),
    }
}

/// Compares our render with the template that the pod was created from.
///
/// Drift is a path in the body that the dry run lacks (our apply would remove it), or a rendered
/// path whose value differs. A path that only the dry run has and that we do not render is a newer
/// default of the server. A path that we do not render and that both have belongs to another
/// manager: its value is not compared, because admission may rewrite it at any time.
///
/// The body may be a template or a `ControllerRevision`'s data. Call [`template_of_revision`] first
/// to recognise a malformed one: here it would be a template that differs in everything.
pub fn compare(rendered: &Value, dry_run: &Value, revision_body: &Value) -> Comparison {
    let body = template_of_revision(revision_body).unwrap_or_else(|_| revision_body.clone());
    let [rendered, dry_run, body] = [rendered, dry_run, &body].map(comparable);
    let expected = expected(Place::default(), Some(&rendered), &dry_run, Some(&body));
    match diff(&body, &expected) {
        changes if changes.is_empty() => Comparison::Equal,
        changes => Comparison::Different(changes),
    }
}

/// A template without the differences between writers that have no meaning.
fn comparable(template: &Value) -> Value {
    let mut template = clean(template, Place::default()).unwrap_or(Value::Null);
    drop_empty_resources(&mut template);
    template
}

/// Go writes `resources: {}` for a container without resources, newer servers and other clients
/// leave it out. Other empty maps have a meaning and stay: `namespaceSelector: {}`, `emptyDir: {}`.
fn drop_empty_resources(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, value| {
                key != "resources" || !value.as_object().is_some_and(Map::is_empty)
            });
            map.values_mut().for_each(drop_empty_resources);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_empty_resources),
        _ => {}
    }
}

/// The expected body if it held our render: the dry run, without the defaults that the body does
/// not have, and with the body's own values where we render none. Every difference from the body is
/// then drift, so the rule needs no second kind of diff.
fn expected(
    place: Place<'_>,
    rendered: Option<&Value>,
    dry_run: &Value,
    body: Option<&Value>,
) -> Value {
    match (dry_run, rendered, body) {
        (Value::Object(dry_run), None | Some(Value::Object(_)), _)
            if rendered.is_some() || body.is_some_and(Value::is_object) =>
        {
            Value::Object(expected_map(place, rendered, dry_run, body))
        }
        (Value::Array(dry_run), None | Some(Value::Array(_)), _)
            if rendered.is_some() || body.is_some_and(Value::is_array) =>
        {
            Value::Array(expected_list(place, rendered, dry_run, body))
        }
        (_, None, Some(body)) => body.clone(),
        _ => dry_run.clone(),
    }
}

fn expected_map(
    place: Place<'_>,
    rendered: Option<&Value>,
    dry_run: &Map<String, Value>,
    body: Option<&Value>,
) -> Map<String, Value> {
    let mut fields = Map::new();
    for (key, value) in dry_run {
        let rendered = rendered.and_then(|rendered| rendered.get(key));
        let body = body.and_then(|body| body.get(key));
        if rendered.is_some() || body.is_some() {
            fields.insert(key.clone(), expected(place.under(key), rendered, value, body));
        }
    }
    fields
}

fn expected_list(
    place: Place<'_>,
    rendered: Option<&Value>,
    dry_run: &[Value],
    body: Option<&Value>,
) -> Vec<Value> {
    let rendered_list = elements(rendered);
    let body_list = elements(body);
    let positions = positions(place, rendered_list, dry_run, body_list);
    let mut found: Vec<(Option<usize>, Value)> = Vec::new();
    for (value, (rendered_at, body_at)) in dry_run.iter().zip(positions) {
        if rendered_at.is_none() && body_at.is_none() {
            continue;
        }
        let rendered = rendered_at.and_then(|at| rendered_list.get(at));
        let body = body_at.and_then(|at| body_list.get(at));
        found.push((body_at, expected(place.element(), rendered, value, body)));
    }
    if rendered.is_none() {
        // A list of which we render nothing: its order is not ours to compare either.
        found.sort_by_key(|(body_at, _)| *body_at);
    }
    found.into_iter().map(|(_, value)| value).collect()
}

/// The position of each element of the dry run in the rendered list and in the body's list, by key
/// where the elements have one and by index where they do not.
fn positions(
    place: Place<'_>,
    rendered: &[Value],
    dry_run: &[Value],
    body: &[Value],
) -> Vec<(Option<usize>, Option<usize>)> {
    match place.keys([rendered, dry_run, body]) {
        Some([rendered, dry_run, body]) => dry_run
            .iter()
            .map(|key| {
                let within = |keys: &[_]| keys.iter().position(|candidate| candidate == key);
                (within(&rendered), within(&body))
            })
            .collect(),
        None => (0..dry_run.len())
            .map(|at| ((at < rendered.len()).then_some(at), (at < body.len()).then_some(at)))
            .collect(),
    }
}

fn elements(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
