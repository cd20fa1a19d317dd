//! `kubectl sei report`: a folder for a support request.
//!
//! It reads no Secret. Values that may be secret are removed from what it writes: those of the
//! environment of containers, of `spec.overrides`, and copies of both in annotations.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Event, PersistentVolumeClaim, Pod};
use kube::api::{ApiResource, ListParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use sei_api::SeiNode;
use sei_api::names::{data_claim, label, pod};
use sei_exec::call::call;
use serde_json::{Value, json};

use crate::cluster::{Key, Scope, key_of, some_nodes};
use crate::error::{Error, call_error};
use crate::flags::ReportFlags;
use crate::fleet::Fleet;
use crate::format::count;
use crate::{CommandContext, Out, status, version, write, yaml};

/// Replaces a value that may be secret.
const REMOVED: &str = "(removed)";

pub(crate) async fn run(
    flags: &ReportFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    let found = some_nodes(client, scope, &flags.selection).await?;
    let keys: BTreeSet<Key> = found.iter().map(key_of).collect();
    let folder = flags.folder.clone().unwrap_or_else(|| default_folder(context));
    std::fs::create_dir(&folder).map_err(|source| file_error(&folder, source))?;
    for (name, kind) in [
        ("seinodes", ApiResource::erase::<SeiNode>(&())),
        ("statefulsets", ApiResource::erase::<StatefulSet>(&())),
        ("pods", ApiResource::erase::<Pod>(&())),
        ("persistentvolumeclaims", ApiResource::erase::<PersistentVolumeClaim>(&())),
        ("events", ApiResource::erase::<Event>(&())),
    ] {
        match list(client, &kind, &keys).await {
            Ok(mut objects) => {
                objects.retain(|object| is_of_nodes(object, &keys));
                objects.iter_mut().for_each(remove_secrets);
                let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
                save(&folder.join(format!("{name}.yaml")), &yaml(&list))?;
            }
            // A report of the rest is better than none.
            Err(error) => write(out, &format!("not in the report: {name}: {error}\n"))?,
        }
    }
    save(&folder.join("version.yaml"), &yaml(&version::read(context).await?))?;
    let fleet = Fleet::read(client, scope, &flags.selection).await?;
    save(&folder.join("status.yaml"), &yaml(&status::rows(&fleet, context.now())))?;
    let (nodes, folder) = (count(keys.len(), "node"), folder.display());
    let text = format!(
        "{folder}: {nodes}, without Secrets and values of environment variables. Read it before \
         you send it.\nPack it with: tar czf {folder}.tar.gz {folder}\n"
    );
    write(out, &text)
}

fn default_folder(context: &CommandContext) -> PathBuf {
    let time = context.now().to_string();
    let time: String = time.chars().take_while(|c| *c != '.').filter(|c| *c != ':').collect();
    PathBuf::from(format!("sei-report-{}", time.trim_end_matches('Z')))
}

/// The objects of a kind in the namespaces of these nodes. They are read untyped: an object that
/// does not decode may be the reason of the report.
async fn list(
    client: &Client,
    kind: &ApiResource,
    keys: &BTreeSet<Key>,
) -> Result<Vec<Value>, Error> {
    let namespaces: BTreeSet<&String> = keys.iter().map(|(namespace, _)| namespace).collect();
    let action = format!("list {}", kind.plural);
    let mut objects = Vec::new();
    for namespace in namespaces {
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
        let listed = call(&action, api.list(&ListParams::default()))
            .await
            .map_err(|failure| call_error(&action, failure))?;
        for object in listed.items {
            let mut object = serde_json::to_value(object).unwrap_or_default();
            object["apiVersion"] = json!(kind.api_version);
            object["kind"] = json!(kind.kind);
            objects.push(object);
        }
    }
    Ok(objects)
}

/// Whether an object is one of the nodes, belongs to one by its label, or is an event of such an
/// object.
fn is_of_nodes(object: &Value, keys: &BTreeSet<Key>) -> bool {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let namespace = text(&object["metadata"]["namespace"]);
    let has = |name: String| keys.contains(&(namespace.clone(), name));
    match object["kind"].as_str() {
        Some("SeiNode") => has(text(&object["metadata"]["name"])),
        Some("Event") => {
            let involved = text(&object["involvedObject"]["name"]);
            let mut names = keys.iter().filter(|key| key.0 == namespace).map(|key| &key.1);
            names.any(|node| [node.clone(), pod(node), data_claim(node)].contains(&involved))
        }
        _ => has(text(&object["metadata"]["labels"][label::NODE])),
    }
}

/// Removes values that may be secret, and fields that no reader needs.
fn remove_secrets(object: &mut Value) {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
    }
    if let Some(overrides) = object.pointer_mut("/spec/overrides").and_then(Value::as_object_mut) {
        overrides.values_mut().for_each(|value| *value = json!(REMOVED));
    }
    remove_environment(object);
}

/// Removes the values of every list `env`, wherever it is. References to Secrets stay: they are
/// names.
fn remove_environment(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_environment),
        Value::Object(fields) => {
            for (name, field) in fields {
                let variables = field.as_array_mut().filter(|_| name == "env");
                for variable in variables.into_iter().flatten() {
                    if variable["value"].is_string() {
                        variable["value"] = json!(REMOVED);
                    }
                }
                remove_environment(field);
            }
        }
        _ => {}
    }
}

fn save(path: &Path, text: &str) -> Result<(), Error> {
    std::fs::write(path, text).map_err(|source| file_error(path, source))
}

fn file_error(path: &Path, source: io::Error) -> Error {
    Error::File { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_may_be_secret_are_removed_everywhere() {
        let container = json!({ "name": "seid", "env": [
            { "name": "KEY", "value": "hidden" },
            { "name": "REF", "valueFrom": { "secretKeyRef": { "name": "keys", "key": "a" } } },
        ]});
        let mut object = json!({
            "kind": "StatefulSet",
            "metadata": {
                "name": "rpc-0", "managedFields": [{}],
                "annotations": {
                    "kubectl.kubernetes.io/last-applied-configuration": "hidden", "a": "kept",
                },
            },
            "spec": {
                "overrides": { "rpc.token": "hidden" },
                "template": { "spec": { "containers": [container], "initContainers": [container] } },
            },
        });
        remove_secrets(&mut object);
        let text = object.to_string();
        assert!(!text.contains("hidden") && !text.contains("managedFields"), "{text}");
        for kept in ["KEY", "secretKeyRef", "rpc.token", "\"a\":\"kept\""] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn only_objects_of_the_selected_nodes_are_reported() {
        let keys = BTreeSet::from([("demo".to_owned(), "rpc-0".to_owned())]);
        let of = |kind: &str, name: &str, label: &str| {
            json!({
                "kind": kind, "involvedObject": { "name": name },
                "metadata": { "namespace": "demo", "name": name, "labels": { "sei.io/node": label } },
            })
        };
        assert!(is_of_nodes(&of("SeiNode", "rpc-0", ""), &keys));
        assert!(!is_of_nodes(&of("SeiNode", "rpc-1", ""), &keys));
        assert!(is_of_nodes(&of("Pod", "rpc-0-0", "rpc-0"), &keys));
        assert!(!is_of_nodes(&of("Pod", "rpc-1-0", "rpc-1"), &keys));
        assert!(is_of_nodes(&of("Event", "rpc-0-0", ""), &keys));
        assert!(!is_of_nodes(&of("Event", "rpc-0-1", ""), &keys));
    }
}
