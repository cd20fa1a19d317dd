//! Merge patches of JSON objects.

use serde_json::{Map, Value};

/// The merge patch from `before` to `after`: changed fields, and null for removed ones.
pub fn difference(before: &Value, after: &Value) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return Some(after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in after {
        match before.get(key) {
            None => drop(patch.insert(key.clone(), value.clone())),
            Some(old) => patch.extend(difference(old, value).map(|value| (key.clone(), value))),
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(before: &Value, after: &Value, expected: &Value) {
        assert_eq!(difference(before, after).as_ref(), Some(expected));
    }

    #[test]
    fn a_patch_has_changed_fields_and_null_for_removed_ones() {
        check(
            &json!({ "a": 1, "b": { "c": 1, "d": 2 }, "e": [1] }),
            &json!({ "a": 1, "b": { "c": 3 }, "e": [1, 2], "f": {} }),
            &json!({ "b": { "c": 3, "d": null }, "e": [1, 2], "f": {} }),
        );
    }
}
