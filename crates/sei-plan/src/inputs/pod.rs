//! The parts of a spec, and of the platform configuration, that place a pod: what is valid, and what
//! reaches the pod.

use std::collections::BTreeMap;

use sei_api::names;
use sei_api::node::SeiNodeSpec;
use sei_api::pod::{
    PullSecret, SchedulingSpec, TaintEffect, Toleration, TolerationOperator, TopologySpread,
};

use super::check::{SpecError, check_resources, is_dns_label, is_label_key, is_label_value};
use super::parse_quantity;

pub(super) const SIZE: &str = "spec.dataVolume.size";
/// Longest name of an object of Kubernetes.
const NAME_MAX: usize = 253;
/// Annotations of an object together have at most this many bytes.
const ANNOTATIONS_MAX: usize = 256 * 1024;

const NOT_A_KEY: &str = "is not a label key; write name or prefix/name, with a DNS name as prefix";
const NOT_A_VALUE: &str = "is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, \
                           starting and ending with a letter or digit";
const NOT_A_NAME: &str = "must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9";

/// Annotations that only the operator sets: one asks for a new pod, the other keeps a machine.
const RESERVED_ANNOTATIONS: [&str; 2] =
    [names::annotation::RESTARTED_AT, names::annotation::DO_NOT_DISRUPT];

pub(super) fn annotations(all: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let all = all.into_iter().flatten();
    all.filter(|(key, _)| !RESERVED_ANNOTATIONS.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

pub(super) fn pull_secrets(secrets: Option<&[PullSecret]>) -> Vec<String> {
    secrets.into_iter().flatten().map(|secret| secret.name.clone()).collect()
}

/// All mistakes in the fields that place the pod and its volume.
pub(super) fn check(spec: &SeiNodeSpec, errors: &mut Vec<SpecError>) {
    if let Some(annotations) = &spec.pod_annotations {
        push(annotation_error(annotations), "spec.podAnnotations", errors);
    }
    if let Some(resources) = &spec.resources {
        let (limits, requests) = (resources.limits.as_ref(), resources.requests.as_ref());
        check_resources("spec.resources", limits, requests, errors);
    }
    for (at, secret) in spec.image_pull_secrets.iter().flatten().enumerate() {
        let field = format!("spec.imagePullSecrets[{at}].name");
        push(name_error(&secret.name), &field, errors);
    }
    if let Some(seconds) = spec.termination_grace_period_seconds.filter(|seconds| *seconds < 1) {
        let rule = "must be at least 1: a pod that is killed at once may lose its database";
        let field = "spec.terminationGracePeriodSeconds";
        errors.push(SpecError::invalid(field, &seconds.to_string(), rule));
    }
    if let Some(scheduling) = &spec.scheduling {
        check_scheduling(scheduling, errors);
    }
    let Some(volume) = &spec.data_volume else { return };
    if let Some(class) = &volume.storage_class_name {
        push(name_error(class), "spec.dataVolume.storageClassName", errors);
    }
    if let Some(size) = &volume.size {
        match parse_quantity(SIZE, size) {
            Ok(quantity) if quantity.is_negative() || quantity.is_zero() => {
                let rule = "must be more than zero";
                errors.push(SpecError::invalid(SIZE, &size.to_string(), rule));
            }
            Ok(_) => {}
            Err(error) => errors.push(error),
        }
    }
}

fn check_scheduling(scheduling: &SchedulingSpec, errors: &mut Vec<SpecError>) {
    let SchedulingSpec {
        node_pool,
        node_selector,
        tolerations,
        priority_class_name,
        topology_spread_constraints,
    } = scheduling;
    if let Some(pool) = node_pool.as_deref().filter(|pool| pool.is_empty() || !is_label_value(pool))
    {
        errors.push(SpecError::invalid("spec.scheduling.nodePool", pool, NOT_A_VALUE));
    }
    for (key, value) in node_selector.iter().flatten() {
        push(selector_error(key, value), "spec.scheduling.nodeSelector", errors);
    }
    for (at, toleration) in tolerations.iter().flatten().enumerate() {
        let field = format!("spec.scheduling.tolerations[{at}]");
        push(toleration_error(toleration), &field, errors);
    }
    if let Some(class) = priority_class_name {
        push(name_error(class), "spec.scheduling.priorityClassName", errors);
    }
    for (at, spread) in topology_spread_constraints.iter().flatten().enumerate() {
        let field = format!("spec.scheduling.topologySpreadConstraints[{at}]");
        push(spread_error(spread), &field, errors);
    }
}

/// A value that no server would accept, and the rule that it breaks.
pub(crate) type Mistake = (String, &'static str);

fn push(mistake: Option<Mistake>, field: &str, errors: &mut Vec<SpecError>) {
    errors.extend(mistake.map(|(value, rule)| SpecError::invalid(field, &value, rule)));
}

pub(crate) fn annotation_error(annotations: &BTreeMap<String, String>) -> Option<Mistake> {
    if let Some(key) = annotations.keys().find(|key| !is_label_key(&key.to_lowercase())) {
        return Some((key.clone(), "is not the key of an annotation; write name or prefix/name"));
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    (bytes > ANNOTATIONS_MAX)
        .then(|| (format!("{bytes} bytes"), "is more than the 256 KiB of an object's annotations"))
}

pub(crate) fn selector_error(key: &str, value: &str) -> Option<Mistake> {
    let value_is_bad = || (!is_label_value(value)).then(|| (value.to_owned(), NOT_A_VALUE));
    if is_label_key(key) { value_is_bad() } else { Some((key.to_owned(), NOT_A_KEY)) }
}

pub(crate) fn key_error(key: &str) -> Option<Mistake> {
    (!is_label_key(key)).then(|| (key.to_owned(), NOT_A_KEY))
}

pub(crate) fn name_error(name: &str) -> Option<Mistake> {
    let is_name = name.len() <= NAME_MAX && name.split('.').all(is_dns_label);
    (!is_name).then(|| (name.to_owned(), NOT_A_NAME))
}

fn spread_error(spread: &TopologySpread) -> Option<Mistake> {
    let TopologySpread { label_selector, max_skew, topology_key, when_unsatisfiable: _ } = spread;
    if *max_skew < 1 {
        return Some((max_skew.to_string(), "must be at least 1 as maxSkew"));
    }
    if label_selector.match_labels.is_empty() {
        return Some((topology_key.clone(), "needs labels in labelSelector.matchLabels"));
    }
    let mut labels = label_selector.match_labels.iter();
    key_error(topology_key).or_else(|| labels.find_map(|(key, value)| selector_error(key, value)))
}

pub(crate) fn toleration_error(toleration: &Toleration) -> Option<Mistake> {
    let Toleration { effect, key, operator, toleration_seconds, value } = toleration;
    let exists = *operator == Some(TolerationOperator::Exists);
    if let Some(key) = key.as_deref().filter(|key| !is_label_key(key)) {
        return Some((key.to_owned(), NOT_A_KEY));
    }
    if let Some(value) = value.as_deref().filter(|value| !is_label_value(value)) {
        return Some((value.to_owned(), NOT_A_VALUE));
    }
    let rule = if key.is_none() && !exists {
        "needs operator Exists"
    } else if exists && value.as_ref().is_some_and(|value| !value.is_empty()) {
        "must have no value with operator Exists"
    } else if toleration_seconds.is_some() && *effect != Some(TaintEffect::NoExecute) {
        "needs effect NoExecute for tolerationSeconds"
    } else {
        return None;
    };
    Some((key.as_deref().unwrap_or("no key").to_owned(), rule))
}
