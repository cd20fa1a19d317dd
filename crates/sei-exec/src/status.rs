//! Status writes: a merge patch of the difference, with the resourceVersion that it is based on.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use sei_plan::merge_patch::difference;
use sei_plan::request::Failure;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::call::call;
use crate::lean::Lean;

/// Why a status write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another client has written or deleted the object: read it again.
    #[error("the object has changed since it was read")]
    Stale,
    /// The installed CRD dropped fields of the status, so what is stored is not what was decided:
    /// nothing may be done based on it.
    #[error("the installed CRD drops status fields: {0}")]
    Pruned(String),
    #[error("failed to write the status: {0:?}")]
    Call(Failure),
}

/// Writes the status of an object if it differs from the stored one. Returns the stored object, or
/// `None` if there was nothing to write.
pub async fn write_status<K>(
    api: &Api<Lean<K>>,
    stored: &K,
    status: &K::Status,
) -> Result<Option<K>, WriteError>
where
    K: Resource<DynamicType = ()> + HasStatus + Clone + Debug + DeserializeOwned,
    K::Status: Serialize + Default + PartialEq,
{
    let before = stored.status().map_or_else(|| json!({}), to_value);
    let after = to_value(status);
    let Some(difference) = difference(&before, &after) else { return Ok(None) };
    let patch = json!({
        "metadata": { "resourceVersion": stored.resource_version() },
        "status": difference,
    });
    let params = PatchParams::default();
    let patch = Patch::Merge(&patch);
    let name = stored.name_any();
    match call("patch status", api.patch_status(&name, &params, &patch)).await {
        Ok(Lean(written)) if written.status() == Some(status) => Ok(Some(written)),
        Ok(Lean(written)) => {
            let returned = written.status().map_or_else(|| json!({}), to_value);
            match first_missing(&after, &returned) {
                None => Ok(Some(written)),
                Some(field) => Err(WriteError::Pruned(format!("status{field}"))),
            }
        }
        Err(Failure::Conflict(_) | Failure::NotFound(_)) => Err(WriteError::Stale),
        Err(failure) => Err(WriteError::Call(failure)),
    }
}

fn to_value(status: &impl Serialize) -> Value {
    serde_json::to_value(status).unwrap_or_default()
}

/// The path of the first field that was sent and not returned.
fn first_missing(sent: &Value, returned: &Value) -> Option<String> {
    match (sent, returned) {
        (Value::Object(sent), Value::Object(returned)) => {
            sent.iter().find_map(|(key, value)| match returned.get(key) {
                Some(returned) => Some(format!(".{key}{}", first_missing(value, returned)?)),
                None => Some(format!(".{key}")),
            })
        }
        (Value::Array(sent), Value::Array(returned)) if sent.len() == returned.len() => {
            let pairs = sent.iter().zip(returned).enumerate();
            pairs.into_iter().find_map(|(index, (sent, returned))| {
                Some(format!("[{index}]{}", first_missing(sent, returned)?))
            })
        }
        (Value::Array(_), _) => Some(String::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equal_status_is_no_difference() {
        let value = json!({ "phase": "Running", "plan": { "tasks": [1, 2] } });
        assert_eq!(difference(&value, &value), None);
        let empty = to_value(&sei_api::SeiNodeStatus::default());
        assert_eq!(difference(&empty, &empty), None);
    }

    #[test]
    fn fields_that_an_older_schema_drops_are_found() {
        let sent =
            json!({ "plan": { "id": "x", "target": { "hash": "h" }, "tasks": [{ "a": 1 }] } });
        let kept = sent.clone();
        assert_eq!(first_missing(&sent, &kept), None);
        let pruned = json!({ "plan": { "id": "x", "tasks": [{ "a": 1 }] } });
        assert_eq!(first_missing(&sent, &pruned).unwrap(), ".plan.target");
        let pruned = json!({ "plan": { "id": "x", "target": { "hash": "h" }, "tasks": [{}] } });
        assert_eq!(first_missing(&sent, &pruned).unwrap(), ".plan.tasks[0].a");
    }
}
