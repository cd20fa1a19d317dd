//! What differs between two pod templates, as field paths that a person can read.
//!
//! Every roll is explained by these paths: in a condition, in `pendingUpdate`, in an event and in
//! `kubectl sei diff`. Many people can read those places, so a value that comes from a Secret, or
//! that replaced one, never appears in them.

use std::collections::{BTreeMap, BTreeSet};

use sei_api::status::FieldChange;
use serde_json::{Map, Value};

use crate::place::{ElementKey, Place};

mod text;

#[cfg(test)]
mod tests;

/// The most changes that a status carries: enough to explain a roll, too few to bloat an object
/// that is written on every reconcile.
pub const MAX_CHANGES: usize = 20;

/// The differences between a template as the server stores it and one as we render it.
///
/// A value that only the stored one has is a default of the server, unless it is an element of a
/// keyed list or an entry of a map that the server never adds to: labels, annotations, resources.
/// Those are removals. A plain field that is no longer rendered cannot be distinguished from a
/// default here; the server's own comparison (see [`crate::adoption`]) can.
pub fn against_live(live: &Value, rendered: &Value) -> Vec<FieldChange> {
    diff(&without_defaults(live, rendered, ""), rendered)
}

/// Whether a stored template lacks a rendered value or has another one in its place. What others added
/// does not count: an apply of ours would not remove it.
pub fn lacks_rendered(live: &Value, rendered: &Value) -> bool {
    !covers(live, rendered) && against_live(live, rendered).iter().any(|change| change.to.is_some())
}

/// Whether `live` holds everything in `rendered`; what only `live` has is the server's.
pub fn covers(live: &Value, rendered: &Value) -> bool {
    match (live, rendered) {
        (Value::Object(live), Value::Object(rendered)) => rendered
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|found| covers(found, value))),
        (Value::Array(live), Value::Array(rendered)) => {
            live.len() == rendered.len()
                && live.iter().zip(rendered).all(|(found, value)| covers(found, value))
        }
        _ => live == rendered,
    }
}

/// Maps whose entries belong to the user or to us, never to the server.
const OPEN_MAPS: [&str; 4] = ["labels", "annotations", "limits", "requests"];

fn without_defaults(live: &Value, rendered: &Value, key: &str) -> Value {
    match (live, rendered) {
        (Value::Object(live), Value::Object(rendered)) => {
            let kept = live.iter().filter_map(|(name, value)| match rendered.get(name) {
                Some(ours) => Some((name.clone(), without_defaults(value, ours, name))),
                None => OPEN_MAPS.contains(&key).then(|| (name.clone(), value.clone())),
            });
            Value::Object(kept.collect())
        }
        (Value::Array(live), Value::Array(rendered)) => {
            let partner = |index: usize, value: &Value| {
                let keys = ["name", "mountPath", "key"];
                match keys.into_iter().find(|key| value.get(key).is_some()) {
                    Some(key) => rendered.iter().find(|element| element.get(key) == value.get(key)),
                    None => rendered.get(index),
                }
            };
            let kept = live.iter().enumerate().map(|(index, value)| {
                partner(index, value)
                    .map_or_else(|| value.clone(), |ours| without_defaults(value, ours, ""))
            });
            Value::Array(kept.collect())
        }
        _ => live.clone(),
    }
}

/// The differences between two pod templates, in a fixed order.
///
/// Null is absent, an env entry's `value: ""` is an absent value, and quantities compare by value.
/// The order of every list counts, as it does in a fingerprint and in the revisions of a
/// `StatefulSet`: a change of order alone is one change, of the names.
pub fn diff(from: &Value, to: &Value) -> Vec<FieldChange> {
    let from = clean(from, Place::default());
    let to = clean(to, Place::default());
    let mut secrets = BTreeSet::new();
    for template in [&from, &to].into_iter().flatten() {
        text::collect_secret_names(template, &mut secrets);
    }
    let mut walk = Walk { secrets, changes: Vec::new() };
    walk.visit(&Path::root(), from.as_ref(), to.as_ref());
    walk.changes
}

/// The changes that fit in a status, and how many were left out. Images come first, so that the
/// reason why a node rolls at once is never left out.
pub fn cut_changes(changes: Vec<FieldChange>) -> (Vec<FieldChange>, usize) {
    let left_out = changes.len().saturating_sub(MAX_CHANGES);
    let (mut kept, rest): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| is_image_path(&change.path));
    kept.extend(rest);
    kept.truncate(MAX_CHANGES);
    (kept, left_out)
}

/// Whether a path is an image that the spec chooses: that of `seid`, or of any init container.
pub fn is_image_path(path: &str) -> bool {
    if path == "containers[seid].image" {
        return true;
    }
    path.strip_prefix("initContainers[")
        .and_then(|rest| rest.strip_suffix("].image"))
        .is_some_and(|name| !name.is_empty() && !name.contains(['[', ']']))
}

/// The value without what has no meaning: nulls, and the empty literal of an env entry.
pub(crate) fn clean(value: &Value, place: Place<'_>) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() && place.is_env_value() => None,
        Value::Object(map) => {
            let entries = map
                .iter()
                .filter_map(|(key, value)| Some((key.clone(), clean(value, place.under(key))?)));
            Some(Value::Object(entries.collect()))
        }
        Value::Array(list) => {
            Some(list.iter().filter_map(|value| clean(value, place.element())).collect())
        }
        scalar => Some(scalar.clone()),
    }
}

/// Equality of cleaned values.
fn same(place: Place<'_>, left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| {
                    right.get(key).is_some_and(|right| same(place.under(key), value, right))
                })
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left.iter().zip(right).all(|(left, right)| same(place.element(), left, right))
        }
        _ => {
            left == right
                || place
                    .quantity(left)
                    .zip(place.quantity(right))
                    .is_some_and(|(left, right)| left == right)
        }
    }
}

/// A path as it is shown, and its place in the template.
struct Path<'a> {
    text: String,
    place: Place<'a>,
    depth: usize,
}

impl<'a> Path<'a> {
    fn root() -> Self {
        Self { text: String::new(), place: Place::default(), depth: 0 }
    }

    fn field(&self, key: &'a str) -> Self {
        let text = if self.depth == 0 && key == "spec" {
            String::new()
        } else if key.is_empty() || key.contains(['.', '/', '[', ']']) {
            format!("{}[{key}]", self.text)
        } else if self.text.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.text)
        };
        Self { text, place: self.place.under(key), depth: self.depth + 1 }
    }

    fn element(&self, key: impl std::fmt::Display) -> Self {
        Self {
            text: format!("{}[{key}]", self.text),
            place: self.place.element(),
            depth: self.depth + 1,
        }
    }

    /// The text of a path that is never empty.
    fn shown(&self) -> String {
        match (self.text.is_empty(), self.depth) {
            (true, 0) => "template".to_owned(),
            (true, _) => "spec".to_owned(),
            (false, _) => text::one_line(&self.text),
        }
    }

    /// Whether a map that only one side has is listed key by key. Other maps are one change as a
    /// whole: an added probe is one change and not six.
    fn is_listed_by_key(&self) -> bool {
        let key = self.place.key();
        self.depth == 0
            || self.depth == 1 && matches!(key, Some("spec" | "metadata"))
            || matches!(key, Some("labels" | "annotations" | "nodeSelector"))
    }
}

struct Walk {
    /// Names of env entries that come from a Secret in either template. By name and not by entry,
    /// so that a literal stays hidden when the entry moves to another container.
    secrets: BTreeSet<String>,
    changes: Vec<FieldChange>,
}

impl Walk {
    fn visit(&mut self, path: &Path<'_>, from: Option<&Value>, to: Option<&Value>) {
        let no_fields = Map::new();
        match (from, to) {
            (None, None) => {}
            (Some(from), Some(to)) if same(path.place, from, to) => {}
            _ if path.place.is_env_entry() => self.record(path, from, to),
            (Some(Value::Object(from)), Some(Value::Object(to))) => {
                self.visit_map(path, from, to);
            }
            (None, Some(Value::Object(to))) if path.is_listed_by_key() && !to.is_empty() => {
                self.visit_map(path, &no_fields, to);
            }
            (Some(Value::Object(from)), None) if path.is_listed_by_key() && !from.is_empty() => {
                self.visit_map(path, from, &no_fields);
            }
            (Some(Value::Array(from)), Some(Value::Array(to))) => self.visit_list(path, from, to),
            (None, Some(Value::Array(to))) if is_keyed(path.place, to) => {
                self.visit_list(path, &[], to);
            }
            (Some(Value::Array(from)), None) if is_keyed(path.place, from) => {
                self.visit_list(path, from, &[]);
            }
            _ => self.record(path, from, to),
        }
    }

    fn visit_map(&mut self, path: &Path<'_>, from: &Map<String, Value>, to: &Map<String, Value>) {
        let keys: BTreeSet<&String> = from.keys().chain(to.keys()).collect();
        for key in keys {
            self.visit(&path.field(key), from.get(key), to.get(key));
        }
    }

    fn visit_list(&mut self, path: &Path<'_>, from: &[Value], to: &[Value]) {
        match path.place.keys([from, to]) {
            Some([from_keys, to_keys]) => {
                let from = from_keys.iter().zip(from).collect();
                let to = to_keys.iter().zip(to).collect();
                self.visit_keyed(path, &from, &to, &from_keys, &to_keys);
            }
            None => self.visit_indexed(path, from, to),
        }
    }

    fn visit_keyed(
        &mut self,
        path: &Path<'_>,
        from: &BTreeMap<&ElementKey, &Value>,
        to: &BTreeMap<&ElementKey, &Value>,
        from_keys: &[ElementKey],
        to_keys: &[ElementKey],
    ) {
        for key in from_keys {
            self.visit(&path.element(key), from.get(key).copied(), to.get(key).copied());
        }
        for key in to_keys.iter().filter(|key| !from.contains_key(key)) {
            self.visit(&path.element(key), None, to.get(key).copied());
        }
        let from_order: Vec<_> = from_keys.iter().filter(|key| to.contains_key(key)).collect();
        let to_order: Vec<_> = to_keys.iter().filter(|key| from.contains_key(key)).collect();
        if from_order != to_order {
            self.push(path, Some(names(&from_order)), Some(names(&to_order)));
        }
    }

    /// Elements without keys are compared by position, without the equal elements at both ends: an
    /// argument inserted in front of ten others is one change.
    fn visit_indexed(&mut self, path: &Path<'_>, from: &[Value], to: &[Value]) {
        let place = path.place.element();
        let equal = |(left, right): &(&Value, &Value)| same(place, left, right);
        let head = from.iter().zip(to).take_while(equal).count();
        let (from, to) = (&from[head..], &to[head..]);
        let tail = from.iter().rev().zip(to.iter().rev()).take_while(equal).count();
        let (from, to) = (&from[..from.len() - tail], &to[..to.len() - tail]);
        for position in 0..from.len().max(to.len()) {
            self.visit(&path.element(head + position), from.get(position), to.get(position));
        }
    }

    fn record(&mut self, path: &Path<'_>, from: Option<&Value>, to: Option<&Value>) {
        let hide = [from, to].into_iter().flatten().any(|value| {
            path.place.is_env_entry() && text::is_secret_sourced(value, &self.secrets)
        });
        let shown = |value| text::shown(path.place, value, hide, &self.secrets);
        let (from, to) = (from.map(shown), to.map(shown));
        self.push(path, from, to);
    }

    fn push(&mut self, path: &Path<'_>, from: Option<String>, to: Option<String>) {
        let (from, to) = text::cut_pair(from, to);
        self.changes.push(FieldChange { path: path.shown(), from, to });
    }
}

fn is_keyed(place: Place<'_>, list: &[Value]) -> bool {
    !list.is_empty() && place.keys([list]).is_some()
}

fn names(keys: &[&ElementKey]) -> String {
    let names: Vec<_> = keys.iter().map(ToString::to_string).collect();
    text::one_line(&names.join(", "))
}
