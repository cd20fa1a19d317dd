//! Pulls that serve several nodes: an image that is on a machine is there for every pod.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use sei_api::names::annotation;

use super::{PrePullView, Pull, host_of};
use crate::planner::later;
use crate::view::controller_of;

#[cfg(test)]
mod tests;

/// How long an image counts as present after its pull. A kubelet deletes unused images when its disk
/// fills up.
const PRESENT_FOR: Duration = Duration::from_secs(300);

/// How long others wait for a pull before they begin their own.
const AWAITED_FOR: Duration = Duration::from_secs(60);

/// The pulls that this process has begun, by machine. All of it can be lost: a node then pulls for
/// itself.
#[derive(Clone, Debug, Default)]
pub struct Pulls(BTreeMap<Machine, Vec<NodePull>>);

/// Nodes of another namespace may not be allowed to use an image, so they do not share pulls.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Machine {
    namespace: String,
    host: String,
}

/// The pull for one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePull {
    /// Uid of the node.
    pub node: String,
    /// Of its pod: a view of an earlier pod of the node shows nothing about this pull.
    pub purpose: String,
    /// Without those that a kubelet pulls for every container.
    pub images: BTreeSet<String>,
    pub credentials: Credentials,
    pub is_complete: bool,
    /// When it began; when it ended, once it is complete.
    pub since: Timestamp,
}

/// What a pod pulls its images with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    service_account: Option<String>,
    secrets: Vec<String>,
}

impl Credentials {
    pub fn of(spec: &PodSpec) -> Self {
        let secrets = spec.image_pull_secrets.iter().flatten();
        Self {
            service_account: spec.service_account_name.clone(),
            secrets: secrets.map(|secret| secret.name.clone()).collect(),
        }
    }
}

impl NodePull {
    fn is_valid(&self, now: Timestamp) -> bool {
        let limit = if self.is_complete { PRESENT_FOR } else { AWAITED_FOR };
        now < later(self.since, limit)
    }
}

impl Pulls {
    /// A node has created its pod.
    pub fn begin(&mut self, pod: &Pod, now: Timestamp) {
        self.0.retain(|_, pulls| {
            pulls.retain(|pull| pull.is_valid(now));
            !pulls.is_empty()
        });
        let metadata = &pod.metadata;
        let (Some(spec), Some(owner)) = (&pod.spec, controller_of(metadata)) else { return };
        let annotations = metadata.annotations.as_ref();
        let purpose = annotations.and_then(|all| all.get(annotation::PRE_PULL));
        let Some((purpose, host)) = purpose.and_then(|text| Some((text, host_of(text)?))) else {
            return;
        };
        let kept = spec.containers.iter().filter(|container| is_pulled_once(container));
        let pull = NodePull {
            node: owner.uid.clone(),
            purpose: purpose.clone(),
            images: kept.filter_map(|container| container.image.clone()).collect(),
            credentials: Credentials::of(spec),
            is_complete: false,
            since: now,
        };
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let pulls = self.0.entry(Machine { namespace, host: host.to_owned() }).or_default();
        pulls.retain(|known| known.node != pull.node);
        pulls.push(pull);
    }

    /// The pod of a node shows how far it has come.
    pub fn observe(&mut self, namespace: &str, view: &PrePullView, now: Timestamp) {
        let Some(host) = view.purpose.as_deref().and_then(host_of) else { return };
        let machine = Machine { namespace: namespace.to_owned(), host: host.to_owned() };
        let Some(pulls) = self.0.get_mut(&machine) else { return };
        let is_of = |pull: &NodePull| {
            view.controller.as_ref() == Some(&pull.node)
                && view.purpose.as_ref() == Some(&pull.purpose)
        };
        match view.pull {
            Pull::Unclaimed | Pull::Pending => {}
            Pull::Pulled => {
                for pull in pulls.iter_mut().filter(|pull| is_of(pull) && !pull.is_complete) {
                    (pull.is_complete, pull.since) = (true, now);
                }
            }
            // Each node finds out by itself, and reports it.
            Pull::Unschedulable(_) | Pull::Failed(_) | Pull::Refused(_) => {
                pulls.retain(|pull| !is_of(pull));
            }
        }
    }

    /// The pulls on a machine whose images are there, or soon will be.
    pub fn on(&self, namespace: &str, host: &str, now: Timestamp) -> Vec<NodePull> {
        let machine = Machine { namespace: namespace.to_owned(), host: host.to_owned() };
        let pulls = self.0.get(&machine).into_iter().flatten();
        pulls.filter(|pull| pull.is_valid(now)).cloned().collect()
    }
}

/// Whether a kubelet starts the container without asking the registry if the image is present, by
/// the rule for containers without a policy.
fn is_pulled_once(container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    match container.image_pull_policy.as_deref() {
        Some(policy) => policy != "Always",
        None if image.contains('@') => true,
        None => {
            let name = image.rsplit('/').next().unwrap_or_default();
            name.split_once(':').is_some_and(|(_, tag)| tag != "latest")
        }
    }
}
