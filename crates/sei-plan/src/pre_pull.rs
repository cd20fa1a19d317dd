//! The pod that pulls the images of an update on the machine of the running pod, and what its status
//! shows about the pull.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, Container, ContainerStatus, NodeAffinity, NodeSelector,
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSecurityContext, PodSpec,
    ResourceRequirements, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::names::{self, annotation, label};

use crate::desired::Desired;
use crate::view::{TroubleKind, controller_of, statuses, troubles};

pub mod machine;
#[cfg(test)]
mod tests;

/// The user of every container of ours.
const NONROOT: i64 = 65532;

/// What decisions read of such a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrePullView {
    pub uid: String,
    /// Uid of the object that controls it.
    pub controller: Option<String>,
    /// The plan and the machine that it pulls for, by its annotation.
    pub purpose: Option<String>,
    pub created_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    pub pull: Pull,
}

/// The state of the pull of all images.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pull {
    /// No kubelet has taken the pod yet.
    #[default]
    Unclaimed,
    /// An image is being pulled.
    Pending,
    /// The message of the scheduler.
    Unschedulable(String),
    /// The kubelet's message about the image that cannot be pulled.
    Failed(String),
    /// The machine did not run the pod, for a reason that has nothing to do with its images.
    Refused(String),
    Pulled,
}

/// The purpose of a pod: another plan, or a pod on another machine, needs another pull.
pub fn purpose(plan: &str, host: &str) -> String {
    format!("{plan}/{host}")
}

/// The machine in a purpose.
fn host_of(purpose: &str) -> Option<&str> {
    purpose.split_once('/').map(|(_, host)| host)
}

impl PrePullView {
    /// Whether it pulls for this plan, on whatever machine.
    pub fn is_of(&self, plan: &str) -> bool {
        let purpose = self.purpose.as_ref().and_then(|purpose| purpose.split_once('/'));
        purpose.is_some_and(|(of, _)| of == plan)
    }
}

impl From<&Pod> for PrePullView {
    fn from(object: &Pod) -> Self {
        let metadata = &object.metadata;
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            controller: controller_of(metadata).map(|owner| owner.uid.clone()),
            purpose: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotation::PRE_PULL).cloned()),
            created_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleted_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            pull: pull(object),
        }
    }
}

fn pull(pod: &Pod) -> Pull {
    let troubles = troubles(pod);
    let of_image = |kind| kind == TroubleKind::ImagePull;
    if let Some(trouble) = troubles.iter().find(|trouble| of_image(trouble.kind)) {
        return Pull::Failed(trouble.message.clone());
    }
    let pulled = |status: &ContainerStatus| {
        // A kubelet creates and starts a container only after it has pulled the image.
        is_past_pull(status) || troubles.iter().any(|trouble| trouble.container == status.name)
    };
    let containers = pod.spec.as_ref().map_or(0, |spec| spec.containers.len());
    if containers > 0 && statuses(pod).filter(|status| pulled(status)).count() == containers {
        return Pull::Pulled;
    }
    let status = pod.status.as_ref();
    let message = |text: Option<&String>| text.cloned().unwrap_or_default();
    if let Some(status) = status.filter(|status| status.phase.as_deref() == Some("Failed")) {
        let reason = message(status.reason.as_ref());
        return Pull::Refused(format!("{reason}: {}", message(status.message.as_ref())));
    }
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let unscheduled = conditions.find(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    });
    if let Some(found) = unscheduled {
        return Pull::Unschedulable(message(found.message.as_ref()));
    }
    let is_claimed = status.is_some_and(|status| status.start_time.is_some());
    if is_claimed || statuses(pod).next().is_some() { Pull::Pending } else { Pull::Unclaimed }
}

fn is_past_pull(status: &ContainerStatus) -> bool {
    let state = status.state.as_ref();
    let ended = state.and_then(|state| state.terminated.as_ref());
    // Containers of a pod that its machine gives up get a made-up end.
    let ended = ended.is_some_and(|end| end.reason.as_deref() != Some("ContainerStatusUnknown"));
    !status.image_id.is_empty() || ended || state.is_some_and(|state| state.running.is_some())
}

/// The pod that pulls these images, each with the name of a container that has it.
///
/// The scheduler places it, by the name of the machine: quotas of the machine, taints and admission
/// apply as to any pod. It is deleted without a grace period, so that a machine that does not
/// respond cannot keep it. It has the service account of the node's pod, whose pull secrets
/// admission adds, and no token of it.
pub fn pod(
    node: &str,
    desired: &Desired,
    images: &[(String, String)],
    purpose: &str,
    host: &str,
) -> Pod {
    let statefulset = desired.statefulset.unpack();
    let (own, template) =
        (statefulset.metadata, statefulset.spec.template.spec.unwrap_or_default());
    let container = |(name, image): &(String, String)| container(name, image, &template);
    Pod {
        metadata: ObjectMeta {
            name: Some(names::pre_pull_pod(node)),
            namespace: own.namespace,
            labels: Some(BTreeMap::from([(label::PRE_PULL.to_owned(), node.to_owned())])),
            annotations: Some(BTreeMap::from([(
                annotation::PRE_PULL.to_owned(),
                purpose.to_owned(),
            )])),
            owner_references: own.owner_references,
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: images.iter().map(container).collect(),
            affinity: Some(on_machine(host)),
            tolerations: template.tolerations.clone(),
            image_pull_secrets: template.image_pull_secrets.clone(),
            service_account_name: template.service_account_name.clone(),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(0),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(NONROOT),
                run_as_group: Some(NONROOT),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// By its name, as the controller of `DaemonSet`s does: the label of the host name may differ.
fn on_machine(host: &str) -> Affinity {
    let name = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![host.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![name]), match_expressions: None };
    let required = NodeSelector { node_selector_terms: vec![term] };
    let node_affinity = NodeAffinity {
        required_during_scheduling_ignored_during_execution: Some(required),
        ..NodeAffinity::default()
    };
    Affinity { node_affinity: Some(node_affinity), ..Affinity::default() }
}

/// It ends at once, or cannot start where the image has no such program.
fn container(name: &str, image: &str, template: &PodSpec) -> Container {
    let amounts = |cpu: &str, memory: &str| {
        let amount = |key: &str, value: &str| (key.to_owned(), Quantity(value.to_owned()));
        Some(BTreeMap::from([amount("cpu", cpu), amount("memory", memory)]))
    };
    let all = template.init_containers.iter().flatten().chain(&template.containers);
    let policy = all.rev().find(|container| container.name == name);
    Container {
        name: name.to_owned(),
        image: Some(image.to_owned()),
        image_pull_policy: policy.and_then(|container| container.image_pull_policy.clone()),
        command: Some(vec!["true".to_owned()]),
        resources: Some(ResourceRequirements {
            requests: amounts("1m", "8Mi"),
            limits: amounts("100m", "64Mi"),
            ..ResourceRequirements::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), add: None }),
            ..SecurityContext::default()
        }),
        ..Container::default()
    }
}
