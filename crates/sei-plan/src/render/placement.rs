//! Where a pod runs and what it uses: the platform's settings, and the node's over them.
//!
//! What neither of them sets is left out, so that a node without such settings is rendered as before
//! they existed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ResourceRequirements, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use sei_api::pod::{TaintEffect, Toleration as TolerationSpec, TolerationOperator, TopologySpread};

use super::containers::texts;
use super::{footprint, node_pool};
use crate::inputs::TemplateInputs;
use crate::platform::{Platform, PoolAffinity};

/// Pins the pod to the machines of its pool.
pub(super) fn node_affinity(inputs: &TemplateInputs, platform: &Platform) -> Option<NodeAffinity> {
    if platform.scheduling.nodepool_affinity == PoolAffinity::Off {
        return None;
    }
    let pool = NodeSelectorRequirement {
        key: platform.scheduling.nodepool_label.clone(),
        operator: "In".to_owned(),
        values: Some(texts(&[node_pool(inputs, platform)])),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![pool]), match_fields: None };
    Some(NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(NodeSelector {
            node_selector_terms: vec![term],
        }),
        ..NodeAffinity::default()
    })
}

/// That of the pool, then the platform's, then the node's. Equal ones are written once: a list of a
/// StatefulSet that repeats an entry differs from one that does not.
pub(super) fn tolerations(inputs: &TemplateInputs, platform: &Platform) -> Vec<Toleration> {
    let mut all = vec![Toleration {
        key: Some(platform.scheduling.toleration_key.clone()),
        value: Some(node_pool(inputs, platform).to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    }];
    for spec in platform.scheduling.tolerations.iter().chain(&inputs.tolerations) {
        let toleration = toleration(spec);
        if !all.contains(&toleration) {
            all.push(toleration);
        }
    }
    all
}

fn toleration(spec: &TolerationSpec) -> Toleration {
    let TolerationSpec { effect, key, operator, toleration_seconds, value } = spec;
    Toleration {
        effect: effect.map(TaintEffect::as_str).map(str::to_owned),
        key: key.clone(),
        operator: operator.map(TolerationOperator::as_str).map(str::to_owned),
        toleration_seconds: *toleration_seconds,
        value: value.clone(),
    }
}

pub(super) fn topology_spread(inputs: &TemplateInputs) -> Option<Vec<TopologySpreadConstraint>> {
    let all = inputs.topology_spread.iter().map(|spread| {
        let TopologySpread { label_selector, max_skew, topology_key, when_unsatisfiable } = spread;
        TopologySpreadConstraint {
            label_selector: Some(LabelSelector {
                match_labels: Some(label_selector.match_labels.clone()),
                ..LabelSelector::default()
            }),
            max_skew: *max_skew,
            topology_key: topology_key.clone(),
            when_unsatisfiable: when_unsatisfiable.as_str().to_owned(),
            ..TopologySpreadConstraint::default()
        }
    });
    (!inputs.topology_spread.is_empty()).then(|| all.collect())
}

pub(super) fn node_selector(
    inputs: &TemplateInputs,
    platform: &Platform,
) -> Option<BTreeMap<String, String>> {
    let mut labels = platform.scheduling.node_selector.clone();
    labels.extend(inputs.node_selector.clone());
    (!labels.is_empty()).then_some(labels)
}

pub(super) fn priority_class(inputs: &TemplateInputs, platform: &Platform) -> Option<String> {
    inputs.priority_class.clone().or_else(|| platform.scheduling.priority_class.clone())
}

pub(super) fn pull_secrets(
    inputs: &TemplateInputs,
    platform: &Platform,
) -> Option<Vec<LocalObjectReference>> {
    let mut names: Vec<&String> = Vec::new();
    for name in platform.pods.image_pull_secrets.iter().chain(&inputs.image_pull_secrets) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let reference = |name: &&String| LocalObjectReference { name: (*name).clone() };
    (!names.is_empty()).then(|| names.iter().map(reference).collect())
}

/// The platform's annotations, the node's over them, and ours over both.
pub(super) fn annotations(
    inputs: &TemplateInputs,
    platform: &Platform,
    own: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut all = platform.pods.annotations.clone();
    all.extend(inputs.pod_annotations.clone());
    all.extend(own);
    all
}

/// Resources of the chain process. A resource that the node names replaces the platform's, request
/// and limit together: half of each could contradict the other half.
pub(super) fn resources(inputs: &TemplateInputs, platform: &Platform) -> ResourceRequirements {
    let footprint = footprint(inputs.mode, platform);
    let memory = || ("memory".to_owned(), footprint.memory.canonical());
    let own = &inputs.resources;
    let merged = |platforms: Vec<(String, String)>, nodes: &BTreeMap<String, String>| {
        let is_own =
            |name: &String| own.limits.contains_key(name) || own.requests.contains_key(name);
        let kept = platforms.into_iter().filter(|(name, _)| !is_own(name));
        let nodes = nodes.iter().map(|(name, value)| (name.clone(), value.clone()));
        let all: BTreeMap<_, _> =
            kept.chain(nodes).map(|(name, value)| (name, ApiQuantity(value))).collect();
        (!all.is_empty()).then_some(all)
    };
    ResourceRequirements {
        requests: merged(
            vec![("cpu".to_owned(), footprint.cpu_request.canonical()), memory()],
            &own.requests,
        ),
        limits: merged(vec![memory()], &own.limits),
        ..ResourceRequirements::default()
    }
}
