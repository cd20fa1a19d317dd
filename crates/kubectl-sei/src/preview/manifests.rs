//! A fleet snapshot from files, for a preview without a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use kube::ResourceExt as _;
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_plan::adoption::template_of_revision;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::fleet_snapshot::{FleetSnapshot, Key, key_of};
use crate::error::{Error, one_line};

/// Reads the files, and the manifests in the folders.
pub(super) fn read(paths: &[PathBuf]) -> Result<FleetSnapshot, Error> {
    let mut fleet = FleetSnapshot::default();
    let mut templates = BTreeMap::new();
    each_object(paths, |object| add(&mut fleet, &mut templates, object))?;
    if fleet.nodes.is_empty() {
        let shown: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let message = "contains no SeiNode; write them with kubectl get seinodes -A -o yaml";
        return Err(Error::Manifest { path: shown.join(", "), message: message.to_owned() });
    }
    fleet.nodes.sort_by_key(key_of);
    fleet.fill_templates(&templates);
    Ok(fleet)
}

/// The fleets in the files.
pub(super) fn fleets(paths: &[PathBuf]) -> Result<Vec<SeiNodeDeployment>, Error> {
    let mut fleets = Vec::new();
    each_object(paths, |object| {
        if object["kind"] == "SeiNodeDeployment" {
            fleets.push(decode("SeiNodeDeployment", object)?);
        }
        Ok(())
    })?;
    if fleets.is_empty() {
        let path = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let message = "contains no SeiNodeDeployment".to_owned();
        return Err(Error::Manifest { path: path.join(", "), message });
    }
    Ok(fleets)
}

/// Reads every document of the files, and of the manifests in the folders.
fn each_object(
    paths: &[PathBuf],
    mut add: impl FnMut(Value) -> Result<(), String>,
) -> Result<(), Error> {
    for path in paths {
        for file in files(path)? {
            let text = std::fs::read_to_string(&file).map_err(|error| problem(&file, &error))?;
            let documents: Vec<Value> =
                serde_saphyr::from_multiple(&text).map_err(|error| problem(&file, &error))?;
            for object in documents {
                add(object).map_err(|message| problem(&file, &message))?;
            }
        }
    }
    Ok(())
}

fn problem(path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::Manifest { path: path.display().to_string(), message: one_line(&error.to_string()) }
}

/// The file itself, or the manifests in the folder.
fn files(path: &Path) -> Result<Vec<PathBuf>, Error> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| problem(path, &error))? {
        let file = entry.map_err(|error| problem(path, &error))?.path();
        let is_manifest = file
            .extension()
            .and_then(|extension| extension.to_str())
            .is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension));
        if is_manifest && file.is_file() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Adds one object, or the items of a list. Other kinds are ignored.
fn add(
    fleet: &mut FleetSnapshot,
    templates: &mut BTreeMap<Key, Value>,
    object: Value,
) -> Result<(), String> {
    let kind = object["kind"].as_str().unwrap_or_default().to_owned();
    if kind.ends_with("List") {
        let items = object["items"].as_array().cloned().unwrap_or_default();
        return items.into_iter().try_for_each(|item| add(fleet, templates, item));
    }
    match kind.as_str() {
        "SeiNode" => {
            let node: SeiNode = decode(&kind, object)?;
            if node.metadata.uid.is_none() {
                return Err(format!(
                    "SeiNode {} has no uid and no status; export it from a cluster with \
                     kubectl get -o yaml",
                    node.name_any()
                ));
            }
            fleet.nodes.push(node);
        }
        "StatefulSet" => {
            let set: StatefulSet = decode(&kind, object)?;
            fleet.statefulsets.insert(key_of(&set), (&set).into());
        }
        "Pod" => fleet.add_pod(&decode(&kind, object)?),
        "ControllerRevision" => {
            let revision: ControllerRevision = decode(&kind, object)?;
            let template = template_of_revision(&revision.data.0)
                .map_err(|error| format!("ControllerRevision {}: {error}", revision.name_any()))?;
            templates.insert(key_of(&revision), template);
        }
        _ => {}
    }
    Ok(())
}

fn decode<T: DeserializeOwned>(kind: &str, object: Value) -> Result<T, String> {
    let name = object["metadata"]["name"].as_str().unwrap_or("without a name").to_owned();
    serde_json::from_value(object).map_err(|error| format!("{kind} {name}: {error}"))
}

impl FleetSnapshot {
    /// Takes the template from the revision of the running pod where no StatefulSet was given.
    fn fill_templates(&mut self, templates: &BTreeMap<Key, Value>) {
        for node in &self.nodes {
            let key = key_of(node);
            let observed = node.status.as_ref().and_then(|status| status.pod_template.as_ref());
            let Some(observed) = observed.filter(|_| !self.statefulsets.contains_key(&key)) else {
                continue;
            };
            let revision = (key.0.clone(), observed.revision.clone());
            if let Some(template) = templates.get(&revision)
                && let Some(mut set) = super::fleet_snapshot::statefulset_from_status(node)
            {
                set.template = template.clone().into();
                self.statefulsets.insert(key, set);
            }
        }
    }
}
