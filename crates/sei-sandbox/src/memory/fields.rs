//! Merging of patches, and the record of who owns which field.

use serde_json::{Map, Value, json};

use super::store::now;

/// Applies a JSON merge patch.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = without_nulls(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|fields| fields.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

/// Approximates a server-side apply: objects are merged, lists and pod templates are replaced.
pub(super) fn apply(target: &mut Value, body: &Value) {
    for (key, value) in body.as_object().into_iter().flatten() {
        if key == "template" || !value.is_object() || !target[key].is_object() {
            target[key] = without_nulls(value);
        } else {
            apply(&mut target[key], value);
        }
    }
}

fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().filter(|(_, value)| !value.is_null());
            fields.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        plain => plain.clone(),
    }
}

/// Who writes, and how.
pub(super) struct Writer<'a> {
    pub(super) manager: &'a str,
    pub(super) is_apply: bool,
    pub(super) subresource: Option<&'a str>,
}

/// Notes in `managedFields` who owns what was written. The size of these records is half of what
/// a watch event costs to decode, so a server without them would be too cheap.
pub(super) fn record(object: &mut Value, written: &Value, writer: &Writer<'_>) {
    let operation = if writer.is_apply { "Apply" } else { "Update" };
    let mut entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let is_same = |entry: &&mut Value| {
        entry["manager"] == writer.manager
            && entry["operation"] == operation
            && entry["subresource"].as_str() == writer.subresource
    };
    let owned = owned_fields(written, true);
    if let Some(entry) = entries.iter_mut().find(is_same) {
        if writer.is_apply {
            entry["fieldsV1"] = owned;
        } else {
            merge(&mut entry["fieldsV1"], &owned);
        }
        entry["time"] = json!(now());
    } else {
        let mut entry = json!({
            "apiVersion": object["apiVersion"], "fieldsType": "FieldsV1", "fieldsV1": owned,
            "manager": writer.manager, "operation": operation, "time": now(),
        });
        if let Some(subresource) = writer.subresource {
            entry["subresource"] = json!(subresource);
        }
        entries.push(entry);
    }
    object["metadata"]["managedFields"] = json!(entries);
}

/// Fields that identify an object and have no owner.
const UNOWNED: [&str; 4] = ["apiVersion", "kind", "name", "namespace"];

fn owned_fields(value: &Value, is_top: bool) -> Value {
    let mut owned = Map::new();
    match value {
        Value::Object(fields) => {
            let is_metadata = |key: &str| is_top && UNOWNED.contains(&key);
            for (key, value) in fields.iter().filter(|(key, _)| !is_metadata(key)) {
                owned.insert(format!("f:{key}"), owned_fields(value, is_top && key == "metadata"));
            }
        }
        Value::Array(items) => {
            for item in items {
                let key = ["name", "type", "uid", "containerPort", "ip", "mountPath"];
                let key = key.into_iter().find(|key| item.get(key).is_some());
                let Some(key) = key else { continue };
                let mut fields = owned_fields(item, false);
                fields["."] = json!({});
                owned.insert(format!("k:{}", json!({ key: item[key] })), fields);
            }
        }
        _ => {}
    }
    Value::Object(owned)
}
