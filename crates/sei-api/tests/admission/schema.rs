//! The part of a server's admission that CEL does not cover: the structural schema.
//!
//! It supports exactly the keywords that the generated CRD uses; a new keyword fails a test here
//! instead of being ignored.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use kube::CustomResourceExt as _;
use kube::core::cel;
use regex::Regex;
use sei_api::SeiNode;
use serde_json::{Map, Value};

/// Keywords that constrain values; the functions below check them.
pub(crate) const CHECKED: &[&str] = &[
    "additionalProperties",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "nullable",
    "pattern",
    "properties",
    "required",
    "type",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// Keywords that constrain nothing.
pub(crate) const DESCRIPTIVE: &[&str] = &["default", "description", "title"];

/// The schema of the only version.
pub(crate) static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let crd = serde_json::to_value(SeiNode::crd()).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone()
});

/// The object as the server stores it, or the reasons why it rejects it: `path: rule`, in order.
pub(crate) fn admit(new: &Value, old: Option<&Value>) -> Result<Value, Vec<String>> {
    let new = cel::apply_defaults(&SCHEMA, new);
    let mut faults = Vec::new();
    check_value(&SCHEMA, &new, "", &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    let rules = cel::Validator::new().validate(&SCHEMA, &new, old);
    let lines = |errors: cel::ValidationErrors| {
        let line =
            |error: &cel::ValidationError| format!("{}: {}", error.field_path, error.message);
        errors.as_slice().iter().map(line).collect()
    };
    rules.map(|()| new).map_err(lines)
}

fn check_value(schema: &Value, value: &Value, path: &str, faults: &mut Vec<String>) {
    let mut fault = |rule: &str| faults.push(format!("{path}: {rule}"));
    if value.is_null() && schema["nullable"] == true {
        return;
    }
    if !has_type(schema, value) {
        return fault("type");
    }
    if schema["enum"].as_array().is_some_and(|values| !values.contains(value)) {
        fault("enum");
    }
    match value {
        Value::String(text) => check_text(schema, text, &mut fault),
        Value::Number(_) => check_number(schema, value, &mut fault),
        Value::Array(items) => {
            check_list(schema, items, &mut fault);
            for (index, item) in items.iter().enumerate() {
                check_value(&schema["items"], item, &format!("{path}[{index}]"), faults);
            }
        }
        Value::Object(fields) => check_object(schema, fields, path, faults),
        Value::Null | Value::Bool(_) => {}
    }
}

fn has_type(schema: &Value, value: &Value) -> bool {
    if schema["x-kubernetes-int-or-string"] == true {
        return value.is_i64() || value.is_string();
    }
    match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("boolean") => value.is_boolean(),
        Some(unknown) => panic!("type {unknown} is not supported here"),
        None => schema["x-kubernetes-preserve-unknown-fields"] == true,
    }
}

fn check_text(schema: &Value, text: &str, fault: &mut impl FnMut(&str)) {
    let length = text.chars().count() as u64;
    if schema["minLength"].as_u64().is_some_and(|least| length < least) {
        fault("minLength");
    }
    if schema["maxLength"].as_u64().is_some_and(|most| length > most) {
        fault("maxLength");
    }
    if schema["pattern"]
        .as_str()
        .is_some_and(|pattern| !Regex::new(pattern).unwrap().is_match(text))
    {
        fault("pattern");
    }
    if schema["format"] == "date-time" && text.parse::<jiff::Timestamp>().is_err() {
        fault("format");
    }
}

fn check_number(schema: &Value, value: &Value, fault: &mut impl FnMut(&str)) {
    let number = value.as_f64().unwrap();
    if schema["minimum"].as_f64().is_some_and(|least| number < least) {
        fault("minimum");
    }
    if schema["maximum"].as_f64().is_some_and(|most| number > most) {
        fault("maximum");
    }
    let is_32_bits = || value.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
    if schema["format"] == "int32" && !is_32_bits() {
        fault("format");
    }
}

fn check_list(schema: &Value, items: &[Value], fault: &mut impl FnMut(&str)) {
    if schema["minItems"].as_u64().is_some_and(|least| (items.len() as u64) < least) {
        fault("minItems");
    }
    if schema["maxItems"].as_u64().is_some_and(|most| (items.len() as u64) > most) {
        fault("maxItems");
    }
    let identity = |item: &Value| match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => Some(item.to_string()),
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().unwrap();
            let key = |key: &Value| item[key.as_str().unwrap()].to_string();
            Some(keys.iter().map(key).collect::<Vec<_>>().join("/"))
        }
        _ => None,
    };
    let identities: Vec<String> = items.iter().filter_map(identity).collect();
    if identities.iter().collect::<BTreeSet<_>>().len() < identities.len() {
        fault("duplicate");
    }
}

fn check_object(schema: &Value, fields: &Map<String, Value>, path: &str, faults: &mut Vec<String>) {
    if schema["minProperties"].as_u64().is_some_and(|least| (fields.len() as u64) < least) {
        faults.push(format!("{path}: minProperties"));
    }
    if schema["maxProperties"].as_u64().is_some_and(|most| (fields.len() as u64) > most) {
        faults.push(format!("{path}: maxProperties"));
    }
    let inside = |name: &str| match path {
        "" => name.to_owned(),
        _ => format!("{path}.{name}"),
    };
    for name in schema["required"].as_array().into_iter().flatten() {
        let name = name.as_str().unwrap();
        if !fields.contains_key(name) {
            faults.push(format!("{}: required", inside(name)));
        }
    }
    for (name, value) in fields {
        let known = [&schema["properties"][name], &schema["additionalProperties"]];
        match known.into_iter().find(|schema| !schema.is_null()) {
            Some(field) => check_value(field, value, &inside(name), faults),
            None if schema["x-kubernetes-preserve-unknown-fields"] == true => {}
            None if path.is_empty() && is_of_every_object(name) => {}
            None => faults.push(format!("{}: unknown", inside(name))),
        }
    }
}

fn is_of_every_object(name: &str) -> bool {
    matches!(name, "apiVersion" | "kind" | "metadata")
}

/// Every keyword of a schema, at any depth.
pub(crate) fn keywords(schema: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (keyword, inner) in schema.as_object().into_iter().flatten() {
        found.insert(keyword.clone());
        match keyword.as_str() {
            "properties" => {
                found.extend(
                    inner.as_object().into_iter().flatten().flat_map(|(_, field)| keywords(field)),
                );
            }
            "items" | "additionalProperties" => found.extend(keywords(inner)),
            _ => {}
        }
    }
    found
}
