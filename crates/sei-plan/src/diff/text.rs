//! How a value is shown in a change: on one line, short, and never a secret.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fingerprint::canonical_json;
use crate::place::Place;

/// Twenty changes of this length keep a status well below what an event or a terminal can show.
const MAX_CHARS: usize = 120;

/// How much of the equal text before the first difference of two long texts is shown.
const LEAD_CHARS: usize = 40;

const HIDDEN: &str = "(hidden)";

/// Adds the names of the env entries that come from a Secret, at any depth.
pub(super) fn collect_secret_names(value: &Value, names: &mut BTreeSet<String>) {
    if secret_reference(value).is_some()
        && let Some(name) = value.get("name").and_then(Value::as_str)
    {
        names.insert(name.to_owned());
    }
    match value {
        Value::Object(map) => map.values().for_each(|value| collect_secret_names(value, names)),
        Value::Array(list) => list.iter().for_each(|value| collect_secret_names(value, names)),
        _ => {}
    }
}

pub(super) fn is_secret_sourced(entry: &Value, names: &BTreeSet<String>) -> bool {
    secret_reference(entry).is_some()
        || entry.get("name").and_then(Value::as_str).is_some_and(|name| names.contains(name))
}

/// The text of a value, not yet cut.
pub(super) fn shown(
    place: Place<'_>,
    value: &Value,
    hide: bool,
    secrets: &BTreeSet<String>,
) -> String {
    if place.is_env_entry() && value.is_object() {
        return shown_env_entry(value, hide);
    }
    if hide {
        return HIDDEN.to_owned();
    }
    if let Some(quantity) = place.quantity(value) {
        return quantity.canonical();
    }
    match value {
        Value::String(text) => one_line(text),
        value => canonical_json(&redacted(value, secrets)),
    }
}

fn shown_env_entry(entry: &Value, hide: bool) -> String {
    if let Some(reference) = secret_reference(entry) {
        let part = |key| one_line(reference.get(key).and_then(Value::as_str).unwrap_or("?"));
        let optional = match reference.get("optional") {
            Some(Value::Bool(true)) => ", optional",
            _ => "",
        };
        return format!("(from Secret {}/{}{optional})", part("name"), part("key"));
    }
    match (entry.get("valueFrom"), entry.get("value")) {
        (Some(source), _) => canonical_json(source),
        (None, _) if hide => HIDDEN.to_owned(),
        (None, Some(Value::String(text))) => one_line(text),
        (None, Some(value)) => canonical_json(value),
        (None, None) => String::new(),
    }
}

fn secret_reference(entry: &Value) -> Option<&Value> {
    entry.get("valueFrom")?.get("secretKeyRef")
}

/// The value with the literals of secret-sourced env entries hidden, for a map or list that is
/// shown as a whole.
fn redacted(value: &Value, secrets: &BTreeSet<String>) -> Value {
    match value {
        Value::Object(map) => {
            let hide = is_secret_sourced(value, secrets);
            let entries = map.iter().map(|(key, value)| {
                let hidden = hide && key == "value";
                let value = if hidden { Value::from(HIDDEN) } else { redacted(value, secrets) };
                (key.clone(), value)
            });
            Value::Object(entries.collect())
        }
        Value::Array(list) => list.iter().map(|value| redacted(value, secrets)).collect(),
        scalar => scalar.clone(),
    }
}

/// The text on one line and without control characters: it is printed in terminals and messages.
pub(super) fn one_line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Both sides of a change cut to size. Of two texts the part around the first difference is kept:
/// long scripts begin alike, and their first hundred characters explain nothing.
pub(super) fn cut_pair(
    from: Option<String>,
    to: Option<String>,
) -> (Option<String>, Option<String>) {
    let start = match (&from, &to) {
        (Some(from), Some(to)) => {
            let equal = from.chars().zip(to.chars()).take_while(|(a, b)| a == b).count();
            equal.saturating_sub(LEAD_CHARS)
        }
        _ => 0,
    };
    (from.map(|text| cut(text, start)), to.map(|text| cut(text, start)))
}

/// At most [`MAX_CHARS`] characters of the text from `start` on, with `…` where some are missing.
fn cut(text: String, start: usize) -> String {
    let length = text.chars().count();
    if length <= MAX_CHARS {
        return text;
    }
    let mut room = MAX_CHARS;
    let mut out = String::new();
    if start > 0 {
        out.push('…');
        room -= 1;
    }
    if length - start.min(length) <= room {
        out.extend(text.chars().skip(start));
    } else {
        out.extend(text.chars().skip(start).take(room - 1));
        out.push('…');
    }
    out
}
