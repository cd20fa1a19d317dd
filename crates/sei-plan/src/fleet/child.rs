//! What the nodes of a fleet should be, and how a node differs from that.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use sei_api::fleet::{DeletionPolicy, NodeTemplate, SeiNodeDeployment, TemplateMetadata};
use sei_api::names::{GROUP, VERSION, annotation, fleet_node, label};
use sei_api::node::{DataVolumeSpec, GenesisCeremony, OnDelete, SeiNodeSpec};
use sei_api::status::FieldChange;
use sei_api::{SeiNode, names};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::diff::diff;
use crate::fingerprint::{canonical_json, short_digest};
use crate::merge_patch::difference;

/// The template of a fleet, ready to be compared and written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Target {
    /// 16 hex digits: of everything in the template that a node gets.
    pub(super) hash: String,
    fleet: String,
    uid: String,
    generation: i64,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: SeiNodeSpec,
    owned: Owned,
    ceremony: Option<GenesisCeremony>,
    retains_volumes: bool,
}

/// The parts of a node's spec that others may own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owned {
    /// The ceremony sets the peers of a fleet that begins a chain.
    peers: bool,
    /// The addresses of nodes that are exposed outside of the cluster.
    external_address: bool,
    /// A user may hold the updates of one node.
    update: bool,
}

/// Keys of labels and annotations that come from a template.
#[derive(Debug, Default, Serialize, Deserialize)]
struct TemplateKeys {
    #[serde(default)]
    labels: BTreeSet<String>,
    #[serde(default)]
    annotations: BTreeSet<String>,
}

impl Target {
    pub(super) fn of(fleet: &SeiNodeDeployment) -> Self {
        let template = &fleet.spec.template;
        let metadata = template.metadata.clone().unwrap_or_default();
        let (labels, annotations) =
            (metadata.labels.unwrap_or_default(), metadata.annotations.unwrap_or_default());
        let genesis = fleet.spec.genesis.as_ref();
        let tcp = fleet.spec.networking.as_ref().is_some_and(|networking| networking.tcp.is_some());
        let owned = Owned {
            peers: genesis.is_none() || template.spec.peers.is_some(),
            external_address: !tcp,
            update: template.spec.update.is_some(),
        };
        let ceremony = genesis.map(|genesis| GenesisCeremony {
            chain_id: genesis.chain_id.clone(),
            staking_amount: genesis.staking_amount.clone(),
            account_balance: genesis.account_balance.clone(),
            ..GenesisCeremony::default()
        });
        let mut target = Self {
            hash: String::new(),
            fleet: fleet.metadata.name.clone().unwrap_or_default(),
            uid: fleet.metadata.uid.clone().unwrap_or_default(),
            generation: fleet.metadata.generation.unwrap_or(1),
            labels,
            annotations,
            spec: template.spec.clone(),
            owned,
            ceremony,
            retains_volumes: fleet.spec.deletion_policy == DeletionPolicy::Retain,
        };
        let of_hash = json!({
            "spec": target.comparable(&target.spec_of(0, &SeiNodeSpec::default())),
            "annotations": target.annotations,
        });
        target.hash = short_digest(&canonical_json(&of_hash));
        target
    }

    /// The spec of the node with this ordinal. `current` supplies what the template does not own.
    fn spec_of(&self, ordinal: usize, current: &SeiNodeSpec) -> SeiNodeSpec {
        let mut spec = self.spec.clone();
        let mut pod_labels = self.labels.clone();
        pod_labels.extend(spec.pod_labels.unwrap_or_default());
        pod_labels.insert(label::NODE_DEPLOYMENT.to_owned(), self.fleet.clone());
        spec.pod_labels = Some(pod_labels);
        spec.external_address =
            if self.owned.external_address { None } else { current.external_address.clone() };
        if !self.owned.peers {
            spec.peers.clone_from(&current.peers);
        }
        if !self.owned.update {
            spec.update.clone_from(&current.update);
        }
        spec.paused = current.paused;
        if let (Some(validator), Some(ceremony)) = (&mut spec.validator, &self.ceremony) {
            let index = i32::try_from(ordinal).unwrap_or(i32::MAX);
            validator.genesis_ceremony = Some(GenesisCeremony { index, ..ceremony.clone() });
        }
        spec
    }

    /// The part of a spec that the template owns and that is the same for all nodes.
    fn comparable(&self, spec: &SeiNodeSpec) -> SeiNodeSpec {
        let mut spec = spec.clone();
        spec.paused = None;
        if !self.owned.update {
            spec.update = None;
        }
        if !self.owned.peers || spec.peers.as_ref().is_some_and(Vec::is_empty) {
            spec.peers = None;
        }
        if !self.owned.external_address {
            spec.external_address = None;
        }
        // It changes with the node's template, and must not be a change of its own.
        if let Some(labels) = &mut spec.pod_labels {
            labels.remove(label::REVISION);
        }
        if let Some(ceremony) =
            spec.validator.as_mut().and_then(|validator| validator.genesis_ceremony.as_mut())
        {
            ceremony.index = 0;
        }
        // A node that scaling down removes may have got this on its way.
        if let Some(volume) = &mut spec.data_volume
            && self.spec.data_volume.is_none()
        {
            volume.on_delete = None;
            if *volume == DataVolumeSpec::default() {
                spec.data_volume = None;
            }
        }
        spec
    }

    /// The fields of a node's spec that the template changes.
    pub(super) fn changes(&self, ordinal: usize, node: &SeiNode) -> Vec<FieldChange> {
        let value =
            |spec: &SeiNodeSpec| serde_json::to_value(self.comparable(spec)).unwrap_or_default();
        diff(&value(&node.spec), &value(&self.spec_of(ordinal, &node.spec)))
    }

    /// Whether the node has everything that the template gives it.
    pub(super) fn matches(&self, ordinal: usize, node: &SeiNode) -> bool {
        let desired = self.spec_of(ordinal, &node.spec);
        self.comparable(&node.spec) == self.comparable(&desired)
            && self.metadata_patch(ordinal, node).is_none()
    }

    /// Whether the node differs only in what the Go operator never passed on to a running node.
    pub(super) fn matches_as_passed_on(&self, ordinal: usize, node: &SeiNode) -> bool {
        let desired = self.spec_of(ordinal, &node.spec);
        let passed_on = |spec: &SeiNodeSpec| {
            let spec = self.comparable(spec);
            let sidecar = spec.sidecar.map(|sidecar| (sidecar.image, sidecar.port));
            (spec.image, sidecar.unwrap_or_default(), spec.pod_labels, spec.peers)
        };
        passed_on(&node.spec) == passed_on(&desired)
    }

    fn labels_of(&self, ordinal: usize) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        labels.insert(label::NODE_DEPLOYMENT.to_owned(), self.fleet.clone());
        labels.insert(label::NODE_DEPLOYMENT_ORDINAL.to_owned(), ordinal.to_string());
        labels.insert(label::CHAIN.to_owned(), self.spec.chain_id.clone());
        labels
    }

    /// The keys of the template's labels and annotations, as they are recorded on a node.
    fn keys(&self) -> String {
        let keys = TemplateKeys {
            labels: self.labels.keys().cloned().collect(),
            annotations: self.annotations.keys().cloned().collect(),
        };
        serde_json::to_string(&keys).unwrap_or_default()
    }

    /// A new node.
    pub(super) fn create(&self, namespace: &str, ordinal: usize) -> SeiNode {
        let revision = (label::REVISION.to_owned(), self.generation.to_string());
        let mut spec = self.spec_of(ordinal, &SeiNodeSpec::default());
        spec.pod_labels.get_or_insert_default().extend([revision.clone()]);
        let mut node = SeiNode::new(&fleet_node(&self.fleet, ordinal), spec);
        let mut labels = self.labels_of(ordinal);
        labels.extend([revision]);
        let mut annotations = self.annotations.clone();
        annotations.insert(annotation::FLEET_TEMPLATE.to_owned(), self.hash.clone());
        annotations.insert(annotation::FLEET_METADATA.to_owned(), self.keys());
        node.metadata = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![self.owner()]),
            ..node.metadata
        };
        node
    }

    /// The reference that makes the fleet the controller of a node.
    pub(super) fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: format!("{GROUP}/{VERSION}"),
            kind: "SeiNodeDeployment".to_owned(),
            name: self.fleet.clone(),
            uid: self.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }

    /// The merge patch that gives the template to a node. Labels and annotations of others stay.
    ///
    /// `is_down` is stored with the template: the status of the fleet, which has it too, is written
    /// later and can be about an earlier release.
    pub(super) fn release(&self, ordinal: usize, node: &SeiNode, is_down: bool) -> Value {
        let mut desired = self.spec_of(ordinal, &node.spec);
        let is_new = self.comparable(&node.spec) != self.comparable(&desired);
        let present = node.spec.pod_labels.as_ref().and_then(|labels| labels.get(label::REVISION));
        // Another revision alone would restart the pod.
        let revision = if is_new { Some(self.generation.to_string()) } else { present.cloned() };
        let pod_labels = desired.pod_labels.get_or_insert_default();
        pod_labels.extend(revision.map(|revision| (label::REVISION.to_owned(), revision)));
        let to_value = |spec: &SeiNodeSpec| serde_json::to_value(spec).unwrap_or_default();
        let mut patch =
            json!({ "metadata": self.metadata_patch(ordinal, node).unwrap_or_default() });
        let annotations = &mut patch["metadata"]["annotations"];
        annotations[annotation::FLEET_TEMPLATE] = json!(self.hash);
        if is_down || was_released_down(node) {
            annotations[annotation::FLEET_RELEASED_DOWN] = json!(is_down.then_some("true"));
        }
        if let Some(spec) = difference(&to_value(&node.spec), &to_value(&desired)) {
            patch["spec"] = spec;
            patch["metadata"]["labels"][label::REVISION] = json!(self.generation.to_string());
        }
        guarded(patch, node)
    }

    /// The labels and annotations of a node that have to change.
    fn metadata_patch(&self, ordinal: usize, node: &SeiNode) -> Option<Value> {
        let has = |map: &Option<BTreeMap<String, String>>| map.clone().unwrap_or_default();
        let (labels, annotations) = (has(&node.metadata.labels), has(&node.metadata.annotations));
        let before = recorded_keys(&annotations);
        let keys = self.keys();
        let is_recorded = annotations.get(annotation::FLEET_METADATA) == Some(&keys);
        let changed_labels = changes(&labels, &self.labels_of(ordinal), &before.labels);
        let mut changed = changes(&annotations, &self.annotations, &before.annotations);
        if is_recorded && changed_labels.is_empty() && changed.is_empty() {
            return None;
        }
        changed.insert(annotation::FLEET_METADATA.to_owned(), json!(keys));
        Some(json!({ "labels": changed_labels, "annotations": changed }))
    }

    /// The patch after which the volume of a node outlives it, if the fleet retains volumes and the
    /// spec of the node does not decide it.
    pub(super) fn retain_volume(&self, node: &SeiNode) -> Option<Value> {
        let volume = node.spec.data_volume.as_ref();
        let decided = volume.is_some_and(|volume| volume.on_delete.is_some());
        if !self.retains_volumes || decided {
            return None;
        }
        let on_delete = json!({ "spec": { "dataVolume": { "onDelete": OnDelete::Retain } } });
        Some(guarded(on_delete, node))
    }
}

/// The template that the spec and the metadata of a node come from. What a template does not pass on is
/// that of the fleet's present template.
pub(super) fn template_of(fleet: &SeiNodeDeployment, node: &SeiNode) -> NodeTemplate {
    let present = &fleet.spec.template.spec;
    let annotations = node.metadata.annotations.clone().unwrap_or_default();
    let keys = recorded_keys(&annotations);
    let only = |map: BTreeMap<String, String>, keys: &BTreeSet<String>| {
        let kept: BTreeMap<_, _> = map.into_iter().filter(|(key, _)| keys.contains(key)).collect();
        (!kept.is_empty()).then_some(kept)
    };
    let labels = only(node.metadata.labels.clone().unwrap_or_default(), &keys.labels);
    let annotations = only(annotations, &keys.annotations);
    let mut spec = node.spec.clone();
    spec.paused = present.paused;
    spec.external_address.clone_from(&present.external_address);
    if let Some(validator) = &mut spec.validator
        && fleet.spec.genesis.is_some()
    {
        validator.genesis_ceremony = None;
    }
    // The ceremony has set them.
    if fleet.spec.genesis.is_some() && present.peers.is_none() {
        spec.peers = None;
    }
    // The pod has the labels of the template, and two of its fleet.
    let of_template = |key: &String, value: &String| {
        labels.as_ref().is_some_and(|labels| labels.get(key) == Some(value))
    };
    let of_fleet = [label::REVISION, label::NODE_DEPLOYMENT];
    let mut pod_labels = spec.pod_labels.take().unwrap_or_default();
    pod_labels.retain(|key, value| !of_fleet.contains(&key.as_str()) && !of_template(key, value));
    spec.pod_labels = (!pod_labels.is_empty()).then_some(pod_labels);
    let metadata = TemplateMetadata { labels, annotations };
    NodeTemplate { metadata: (metadata != TemplateMetadata::default()).then_some(metadata), spec }
}

/// The keys of labels and annotations that a node has from a template.
fn recorded_keys(annotations: &BTreeMap<String, String>) -> TemplateKeys {
    let recorded = annotations.get(annotation::FLEET_METADATA);
    recorded.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// The merge patch of a map: what it lacks or has otherwise, and null for what a template had added
/// and no longer has.
fn changes(
    present: &BTreeMap<String, String>,
    desired: &BTreeMap<String, String>,
    added: &BTreeSet<String>,
) -> Map<String, Value> {
    let set = desired.iter().filter(|(key, value)| present.get(*key) != Some(value));
    let removed = added
        .iter()
        .filter(|key| !desired.contains_key(*key) && present.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    set.map(|(key, value)| (key.clone(), json!(value))).chain(removed).collect()
}

/// A merge patch of a node with the version that it was decided on.
pub(super) fn guarded(mut patch: Value, node: &SeiNode) -> Value {
    patch["metadata"]["resourceVersion"] = json!(node.metadata.resource_version);
    patch["metadata"]["uid"] = json!(node.metadata.uid);
    patch
}

/// The hash of the template that the fleet gave to a node.
pub(super) fn stamp(node: &SeiNode) -> Option<&str> {
    let annotations = node.metadata.annotations.as_ref()?;
    annotations.get(annotation::FLEET_TEMPLATE).map(String::as_str)
}

/// Whether the node was down when the fleet gave it its template.
pub(super) fn was_released_down(node: &SeiNode) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.is_some_and(|all| all.contains_key(annotation::FLEET_RELEASED_DOWN))
}

/// The ordinal of a node, by its name. Labels can be edited.
pub(super) fn ordinal_in(fleet: &str, node: &SeiNode) -> Option<usize> {
    let name = node.metadata.name.as_deref()?;
    let ordinal: usize = name.strip_prefix(fleet)?.strip_prefix('-')?.parse().ok()?;
    (names::fleet_node(fleet, ordinal) == name).then_some(ordinal)
}
