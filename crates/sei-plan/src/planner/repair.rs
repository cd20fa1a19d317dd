//! Repairs of what somebody changed or removed by hand: direct, without a plan, and never touching
//! a template that is not the running one.

use std::collections::BTreeMap;

use sei_api::names::annotation;
use sei_api::plan::PlanPhase;
use sei_api::status::SeiNodePhase;
use sei_api::task::TaskType;
use serde_json::{Value, json};

use super::{drift, stall};
use crate::desired::Desired;
use crate::diff;
use crate::observation::Observation;
use crate::request::Request;
use crate::tasks::in_bootstrap;
use crate::view::StatefulSetView;

/// What the caches say of the node's other objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    pub service_is_current: bool,
    pub proxy_config_is_current: bool,
}

/// The writes that set right what was changed by hand, in the order in which they are to be made.
/// Each is harmless on an older view: an apply of the same content, a patch that carries the
/// resourceVersion it was decided on, or a create that fails if the object is there.
pub fn repairs(observation: &Observation, others: Others) -> Vec<Request> {
    let Ok(desired) = &observation.desired else { return Vec::new() };
    let deleting = observation.node.metadata.deletion_timestamp.is_some();
    let plan = observation.status().plan.as_ref().filter(|plan| plan.is_active());
    let running = observation.status().phase == Some(SeiNodePhase::Running)
        || plan.is_some_and(|plan| plan.has_completed(TaskType::ApplyStatefulSet));
    if deleting || stall::changed_identity(observation, desired).is_some() {
        return Vec::new();
    }
    let mut writes = Vec::new();
    if running && !others.service_is_current {
        writes.push(Request::ApplyService(Box::new(desired.service.clone())));
    }
    if running && !others.proxy_config_is_current {
        writes.push(Request::ApplyConfigMap(Box::new(desired.proxy_config.clone())));
    }
    match &observation.statefulset {
        None if running => writes.extend(recreate(observation, desired)),
        None => {}
        Some(statefulset) if statefulset.terminating => {}
        Some(_) if observation.own_statefulset().is_none() => {}
        Some(statefulset) => writes.extend(mend(observation, desired, statefulset)),
    }
    writes
}

/// How many pods the node should have.
pub fn desired_replicas(observation: &Observation, present: Option<i32>) -> i32 {
    let spec = &observation.node.spec;
    // A bootstrap that failed may still have its Job on the volume.
    let plan = observation.status().plan.as_ref();
    let bootstrapping =
        plan.is_some_and(|plan| plan.phase != PlanPhase::Complete && in_bootstrap(plan));
    let without_volume = spec.signs() && stall::volume_lost(observation).is_some();
    if spec.is_paused() || bootstrapping || without_volume {
        return 0;
    }
    // A node that signs is never scaled up beside another one with its key, nor on a volume that
    // nobody could look at.
    let unsafe_to_start = observation.signing_conflict.is_some()
        || (spec.signs() && stall::volume_unknown(observation));
    if unsafe_to_start && present == Some(0) {
        return 0;
    }
    1
}

/// A StatefulSet that is gone is made again from what is desired now, unless the volume is gone too
/// or another node has its key.
fn recreate(observation: &Observation, desired: &Desired) -> Option<Request> {
    if stall::volume_lost(observation).is_some() || observation.signing_conflict.is_some() {
        return None;
    }
    let mut object = desired.statefulset.clone();
    object.spec.replicas = Some(desired_replicas(observation, None));
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::TEMPLATE_HASH.to_owned(), desired.hash.clone());
    Some(Request::CreateStatefulSet(Box::new(object)))
}

fn mend(
    observation: &Observation,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Option<Request> {
    if !statefulset.on_delete {
        // Alone and first: the server refuses it together with other changes.
        return Some(Request::PatchStatefulSet(crate::tasks::on_delete_patch(statefulset)));
    }
    if let Some(patch) = patch(observation, desired, statefulset) {
        return Some(Request::PatchStatefulSet(patch));
    }
    restore_template(observation, desired, statefulset)
}

/// The fields outside of the template that differ, as one merge patch.
fn patch(
    observation: &Observation,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Option<Value> {
    let mut metadata = serde_json::Map::new();
    let mut spec = serde_json::Map::new();
    let replicas = desired_replicas(observation, statefulset.replicas);
    if statefulset.replicas != Some(replicas) {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
    let labels: BTreeMap<_, _> = desired.statefulset.metadata.labels.iter().flatten().collect();
    let differing: BTreeMap<_, _> = labels
        .into_iter()
        .filter(|(key, value)| statefulset.labels.get(*key) != Some(value))
        .collect();
    // While an update waits, labels that come with it wait too: they may be what it is about.
    if !differing.is_empty() && observation.status().pending_update.is_none() {
        metadata.insert("labels".to_owned(), json!(differing));
    }
    if lacks_only_the_stamp(observation, desired, statefulset) {
        metadata
            .insert("annotations".to_owned(), json!({ annotation::TEMPLATE_HASH: desired.hash }));
    }
    if let Some(fields) = &statefulset.handover {
        metadata.insert("managedFields".to_owned(), fields.clone());
    }
    if metadata.is_empty() && spec.is_empty() {
        return None;
    }
    metadata.insert("resourceVersion".to_owned(), json!(statefulset.resource_version));
    Some(json!({ "metadata": metadata, "spec": spec }))
}

/// The pod and the StatefulSet are what is desired, and only our stamp is missing or of an older
/// algorithm: it is written without touching the template.
fn lacks_only_the_stamp(
    observation: &Observation,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> bool {
    let Some(pod) = observation.pod() else { return false };
    let observed = drift::observed_hash(observation, desired, pod) == Some(desired.hash.as_str());
    let foreign = statefulset
        .template_hash
        .as_ref()
        .is_none_or(|hash| !drift::same_algorithm(hash, &desired.hash));
    observed && foreign && statefulset.observed_revision() == pod.revision.as_deref()
}

/// A template edited by hand is put right only where the right one is beyond doubt: R = A = O.
fn restore_template(
    observation: &Observation,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Option<Request> {
    let pod = observation.pod()?;
    let same = statefulset.template_hash.as_ref() == Some(&desired.hash)
        && drift::observed_hash(observation, desired, pod) == Some(desired.hash.as_str());
    let idle = observation.status().plan.is_none();
    let rendered = serde_json::to_value(&desired.statefulset.spec.template).unwrap_or_default();
    if !same || !idle || diff::against_live(&statefulset.template, &rendered).is_empty() {
        return None;
    }
    let mut object = desired.statefulset.clone();
    object.spec.replicas = Some(desired_replicas(observation, statefulset.replicas));
    object.metadata.uid = Some(statefulset.uid.clone());
    object.metadata.resource_version = Some(statefulset.resource_version.clone());
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::TEMPLATE_HASH.to_owned(), desired.hash.clone());
    Some(Request::ApplyStatefulSet(Box::new(object)))
}
