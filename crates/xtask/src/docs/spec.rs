//! docs/spec.md: every field that a user writes, from the schema of the CRD.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{NOTICE, kind};

/// A field with what the server checks of it.
pub(super) struct SpecField {
    pub(super) path: String,
    kind: String,
    pub(super) about: String,
    rules: Vec<String>,
}

/// The modes, which have a section each; every other field is in the section about all nodes.
const MODES: [&str; 5] = ["fullNode", "archive", "replayer", "validator", "seed"];

/// docs/spec.md.
pub(crate) fn spec(crd: &Value) -> Result<String> {
    let schema = crd
        .pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec")
        .context("the CRD has no spec")?;
    let all = fields(schema);
    let mode_of = |field: &SpecField| {
        MODES.into_iter().find(|mode| field.path.split(['.', '[']).nth(1) == Some(mode))
    };
    let mut text = format!("{NOTICE}{}", include_str!("spec.md"));
    write_table(&mut text, all.iter().filter(|field| mode_of(field).is_none()));
    for mode in MODES {
        let _ = write!(text, "\n## {mode}\n\n");
        let own = all.iter().filter(|field| mode_of(field) == Some(mode));
        write_table(&mut text, own);
    }
    text.push_str("\n## Rules about several fields\n\n");
    let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    for message in messages(root).into_iter().chain(messages(schema)) {
        let _ = writeln!(text, "- {message}");
    }
    Ok(text)
}

fn write_table<'a>(text: &mut String, fields: impl Iterator<Item = &'a SpecField>) {
    text.push_str("| Field | Type | Meaning | Rules |\n| --- | --- | --- | --- |\n");
    for SpecField { path, kind, about, rules } in fields {
        let _ = writeln!(text, "| `{path}` | {kind} | {about} | {} |", rules.join("; "));
    }
}

/// Every field below a schema, depth first.
pub(super) fn fields(schema: &Value) -> Vec<SpecField> {
    let mut found = Vec::new();
    collect(schema, "spec", &mut found);
    found
}

fn collect(schema: &Value, path: &str, found: &mut Vec<SpecField>) {
    let required = |name: &str| {
        let mut required = schema["required"].as_array().into_iter().flatten();
        required.any(|field| field == name)
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let about = field["description"].as_str().unwrap_or_default();
        let first = about.split("\n\n").next().unwrap_or_default();
        let mut rules = rules(field);
        if required(name) {
            rules.insert(0, "required".to_owned());
        }
        found.push(SpecField {
            path: path.clone(),
            kind: spec_kind(field),
            about: cell(first),
            rules,
        });
        collect(field, &path, found);
        collect(&field["items"], &format!("{path}[]"), found);
    }
}

fn spec_kind(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "quantity".to_owned();
    }
    match &field["additionalProperties"] {
        Value::Object(values) => format!("map of {}", spec_kind(&Value::Object(values.clone()))),
        _ if field["type"] == "array" => format!("list of {}", spec_kind(&field["items"])),
        _ => kind(field),
    }
}

fn rules(field: &Value) -> Vec<String> {
    let bounds = [
        ("minimum", "at least"),
        ("maximum", "at most"),
        ("minItems", "entries: at least"),
        ("maxItems", "entries: at most"),
        ("minProperties", "keys: at least"),
        ("maxProperties", "keys: at most"),
        ("maxLength", "characters: at most"),
    ];
    let mut rules: Vec<String> = bounds
        .into_iter()
        .filter(|(keyword, _)| !field[*keyword].is_null())
        // A limit of the number's type is no rule of ours.
        .filter(|(_, text)| !(*text == "at most" && field["maximum"] == i32::MAX))
        .map(|(keyword, text)| {
            format!("{text} {}", field[keyword].to_string().trim_end_matches(".0"))
        })
        .collect();
    for pattern in [&field["pattern"], &field["items"]["pattern"]] {
        // The pattern of a quantity is what its type means.
        if let (Some(pattern), false) = (pattern.as_str(), spec_kind(field) == "quantity") {
            rules.push(format!("matches `{}`", pattern.replace('|', "\\|")));
        }
    }
    if !field["default"].is_null() {
        rules.push(format!("default `{}`", field["default"].to_string().trim_matches('"')));
    }
    rules.extend(messages(field));
    rules.extend(messages(&field["items"]));
    rules
}

/// The messages of the CEL rules of a field.
fn messages(schema: &Value) -> Vec<String> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    rules.filter_map(|rule| rule["message"].as_str()).map(cell).collect()
}

fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|")
}
