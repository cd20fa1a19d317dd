//! Repairs of objects that were changed or removed by hand. They need no plan, and never write a
//! template other than the running one.

use std::collections::BTreeMap;

use sei_api::names::{self, annotation, label};
use sei_api::plan::PlanPhase;
use sei_api::status::SeiNodePhase;
use sei_api::task::TaskType;
use serde_json::{Value, json};

use super::{drift, stall};
use crate::desired::Desired;
use crate::request::Request;
use crate::snapshot::Snapshot;
use crate::tasks::{Waiting, in_bootstrap, not_controlled, write_proxy_config, write_service};
use crate::view::{ObjectView, StatefulSetView};

/// The writes that repair changes by hand, in order. Each is harmless if the snapshot is stale: an
/// apply of the same content, a patch with the resourceVersion that it was decided on, or a create
/// that fails if the object exists.
pub fn repairs(snapshot: &Snapshot) -> Vec<Request> {
    let Ok(desired) = &snapshot.desired else { return Vec::new() };
    let deleting = snapshot.node.metadata.deletion_timestamp.is_some();
    let plan = snapshot.status().plan.as_ref().filter(|plan| plan.is_active());
    let running = snapshot.status().phase == Some(SeiNodePhase::Running)
        || plan.is_some_and(|plan| plan.has_completed(TaskType::ApplyStatefulSet));
    if deleting || stall::changed_identity(snapshot, desired).is_some() {
        return Vec::new();
    }
    let mut writes = Vec::new();
    if running && !snapshot.current.service {
        writes.extend(service(snapshot));
    }
    if running && !snapshot.current.proxy_config {
        writes.extend(proxy_config(snapshot));
    }
    match &snapshot.statefulset {
        None if running => writes.extend(recreate(snapshot, desired)),
        None => {}
        Some(statefulset) if statefulset.terminating => {}
        Some(_) if snapshot.own_statefulset().is_none() => {}
        Some(statefulset) => writes.extend(repair_statefulset(snapshot, desired, statefulset)),
    }
    writes
}

/// The write that repairs the Service. One that the node does not control is left unchanged.
pub fn service(snapshot: &Snapshot) -> Option<Request> {
    let (desired, found) = (snapshot.desired.as_ref().ok()?, snapshot.service.as_ref());
    is_writable(found, snapshot).then(|| write_service(desired, found))
}

/// The same for the proxy's `ConfigMap`.
pub fn proxy_config(snapshot: &Snapshot) -> Option<Request> {
    let (desired, found) = (snapshot.desired.as_ref().ok()?, snapshot.proxy_config.as_ref());
    is_writable(found, snapshot).then(|| write_proxy_config(desired, found))
}

fn is_writable(found: Option<&ObjectView>, snapshot: &Snapshot) -> bool {
    found.is_none_or(|found| !found.terminating && is_controlled(found, snapshot.uid()))
}

/// What is reported if a Service or `ConfigMap` with the name of the node's has another owner.
pub fn foreign(snapshot: &Snapshot) -> Option<Waiting> {
    let name = snapshot.node.metadata.name.as_deref().unwrap_or_default();
    let is_foreign = |found: &Option<ObjectView>| {
        found.as_ref().is_some_and(|found| !is_controlled(found, snapshot.uid()))
    };
    if is_foreign(&snapshot.service) {
        return Some(not_controlled("Service", name));
    }
    is_foreign(&snapshot.proxy_config)
        .then(|| not_controlled("ConfigMap", &names::proxy_config(name)))
}

fn is_controlled(object: &ObjectView, node_uid: &str) -> bool {
    object.controller.as_deref() == Some(node_uid)
}

/// How many pods the node should have.
pub fn desired_replicas(snapshot: &Snapshot, present: Option<i32>) -> i32 {
    let spec = &snapshot.node.spec;
    // The Job of a failed bootstrap may still mount the volume.
    let plan = snapshot.status().plan.as_ref();
    let bootstrapping =
        plan.is_some_and(|plan| plan.phase != PlanPhase::Complete && in_bootstrap(plan));
    let without_volume = spec.signs() && stall::volume_lost(snapshot).is_some();
    if spec.is_paused() || bootstrapping || without_volume {
        return 0;
    }
    // A node that signs is never scaled up while another node has its key, nor if its volume could
    // not be observed.
    let unsafe_to_start =
        snapshot.signing_conflict.is_some() || (spec.signs() && stall::volume_unknown(snapshot));
    if unsafe_to_start && present == Some(0) {
        return 0;
    }
    1
}

/// Recreates a missing StatefulSet from the desired state, unless the volume is lost too or another
/// node has the key.
fn recreate(snapshot: &Snapshot, desired: &Desired) -> Option<Request> {
    if stall::volume_lost(snapshot).is_some() || snapshot.signing_conflict.is_some() {
        return None;
    }
    let mut object = desired.statefulset.unpack();
    object.spec.replicas = Some(desired_replicas(snapshot, None));
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::TEMPLATE_HASH.to_owned(), desired.hash.clone());
    Some(Request::CreateStatefulSet(Box::new(object)))
}

fn repair_statefulset(
    snapshot: &Snapshot,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Option<Request> {
    if !statefulset.on_delete {
        // Alone and first: the server refuses it together with other changes.
        return Some(Request::PatchStatefulSet(crate::tasks::on_delete_patch(statefulset)));
    }
    if let Some(patch) = patch(snapshot, desired, statefulset) {
        return Some(Request::PatchStatefulSet(patch));
    }
    restore_template(snapshot, desired, statefulset)
}

/// The fields outside of the template that differ, as one merge patch.
fn patch(snapshot: &Snapshot, desired: &Desired, statefulset: &StatefulSetView) -> Option<Value> {
    let mut metadata = serde_json::Map::new();
    let mut spec = serde_json::Map::new();
    let replicas = desired_replicas(snapshot, statefulset.replicas);
    if statefulset.replicas != Some(replicas) {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
    // While an update waits, its labels wait too: they may be the reason for the update. Without the
    // label that the watch selects by, the StatefulSet and its pod would appear deleted.
    let waits = snapshot.status().pending_update.is_some();
    let differing: BTreeMap<_, _> = desired
        .labels
        .iter()
        .filter(|(key, value)| statefulset.labels.get(*key) != Some(value))
        .filter(|(key, _)| !waits || *key == label::NODE)
        .collect();
    if !differing.is_empty() {
        metadata.insert("labels".to_owned(), json!(differing));
    }
    let mut annotations = serde_json::Map::new();
    if lacks_only_the_stamp(snapshot, desired, statefulset) {
        annotations.insert(annotation::TEMPLATE_HASH.to_owned(), json!(desired.hash));
    }
    if must_stamp_initialised(snapshot, statefulset) {
        annotations.insert(annotation::INITIALISED.to_owned(), json!("true"));
    }
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
    if let Some(fields) = statefulset.transferred_fields() {
        metadata.insert("managedFields".to_owned(), fields);
    }
    if metadata.is_empty() && spec.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(statefulset.resource_version));
    Some(json!({ "metadata": metadata, "spec": spec }))
}

/// Whether the first start of this node is complete, would destroy data if it were repeated, and is
/// recorded in a status only, which can be wiped.
fn must_stamp_initialised(snapshot: &Snapshot, statefulset: &StatefulSetView) -> bool {
    let spec = &snapshot.node.spec;
    let ceremony = spec.validator.as_ref().is_some_and(|spec| spec.genesis_ceremony.is_some());
    let writes_data = spec.needs_bootstrap() || spec.snapshot().is_some() || ceremony;
    let complete = snapshot.status().phase == Some(SeiNodePhase::Running);
    complete && writes_data && !statefulset.initialised
}

/// Whether the pod and the StatefulSet match the desired template, and only our annotation is
/// missing or of an older algorithm. It is then written without a change of the template.
fn lacks_only_the_stamp(
    snapshot: &Snapshot,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> bool {
    let Some(pod) = snapshot.pod() else { return false };
    let observed = drift::observed_hash(snapshot, desired, pod) == Some(desired.hash.as_str());
    let foreign = statefulset
        .template_hash
        .as_ref()
        .is_none_or(|hash| !drift::same_algorithm(hash, &desired.hash));
    observed && foreign && statefulset.observed_revision() == pod.revision.as_deref()
}

/// Restores a template that was edited by hand, only where the right one is certain: R = A = O.
fn restore_template(
    snapshot: &Snapshot,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Option<Request> {
    let pod = snapshot.pod()?;
    let same = statefulset.template_hash.as_ref() == Some(&desired.hash)
        && drift::observed_hash(snapshot, desired, pod) == Some(desired.hash.as_str());
    let idle = snapshot.status().plan.is_none();
    if snapshot.current.template || !same || !idle {
        return None;
    }
    let mut object = desired.statefulset.unpack();
    object.spec.replicas = Some(desired_replicas(snapshot, statefulset.replicas));
    object.metadata.uid = Some(statefulset.uid.clone());
    object.metadata.resource_version = Some(statefulset.resource_version.clone());
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::TEMPLATE_HASH.to_owned(), desired.hash.clone());
    if statefulset.initialised {
        annotations.insert(annotation::INITIALISED.to_owned(), "true".to_owned());
    }
    Some(Request::ApplyStatefulSet(Box::new(object)))
}
