//! The input of a decision about one node.

use std::time::Duration;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::names::{annotation, data_claim};
use sei_api::node::{OnImageChange, OnOperatorChange};
use sei_api::status::SeiNodeStatus;

use crate::adoption::Comparison;
use crate::chain::Blocks;
use crate::desired::Desired;
use crate::pre_pull::PrePullView;
use crate::pre_pull::machine::NodePull;
use crate::request::ClaimView;
use crate::shared::Shared;
use crate::tasks::Waiting;
use crate::timing::Timing;
use crate::view::{JobView, ObjectView, PodView, StatefulSetView, own_pod};

/// The observed state of a node, its objects and its chain.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Metadata and spec. Its status is the stored one; decisions read `status`.
    pub node: Shared<SeiNode>,
    /// The latest known status: the stored one, or a newer one that is not written yet.
    pub status: SeiNodeStatus,
    /// The resolved peers; `None` if they were not resolved.
    pub peers: Option<Vec<String>>,
    pub now: Timestamp,
    /// Id for a new plan.
    pub plan_id: String,
    pub operator_version: String,
    pub timing: Timing,
    pub rollout: Rollout,
    /// The rendered node, or why the spec cannot be rendered.
    pub desired: Result<Shared<Desired>, String>,
    /// The state-sync witnesses that the platform registers for the node's chain.
    pub witnesses: RegisteredWitnesses,
    pub statefulset: Option<Shared<StatefulSetView>>,
    /// Pods with the node's label, of any owner.
    pub pods: Vec<Shared<PodView>>,
    pub job: Option<JobView>,
    /// The node's own pod that pulls the images of an update.
    pub pre_pull: Option<PrePullView>,
    /// Pulls on the machine of the node's pod, also for other nodes.
    pub pulls: Vec<NodePull>,
    pub claim: Claim,
    pub sidecar: Sidecar,
    /// Whether the node sees new blocks, by the last probes of its RPC.
    pub blocks: Blocks,
    /// The answer of the chain's budget; `None` before a slot was requested.
    pub slot: Option<Slot>,
    /// The server's comparison of a pod without a record, with the uid of that pod.
    pub adoption: Option<(String, Comparison)>,
    /// The p2p ids of some peers are being requested: their addresses are not complete yet.
    pub asks_peers: bool,
    /// Why the node may not start: another node has its signing key or claim, by the caches.
    pub signing_conflict: Option<String>,
    /// The field that the installed CRD dropped from the last status write.
    pub dropped_field: Option<String>,
    /// What the current task of the active plan waits for, by its last step.
    pub waiting: Option<Waiting>,
    pub current: Current,
    /// The Service of the node's name, if the cache shows one.
    pub service: Option<ObjectView>,
    /// The `ConfigMap` of its proxy, likewise.
    pub proxy_config: Option<ObjectView>,
}

/// Which of the node's live objects already match the rendered ones. Comparing whole objects is the
/// expensive part of a snapshot, so the shell does it once per version of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    pub service: bool,
    pub proxy_config: bool,
    /// The StatefulSet's template has no difference from the rendered one, or is not to be restored:
    /// a plan is active, or it is stamped with another hash.
    pub template: bool,
}

impl Default for Current {
    fn default() -> Self {
        Self { service: true, proxy_config: true, template: true }
    }
}

/// The platform's rules for rolls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout {
    pub on_operator_change: OnOperatorChange,
    pub on_image_change: OnImageChange,
    pub adopt_automatically: bool,
    /// How much longer the lease must be held before the operator's view of the fleet is trusted.
    pub settles_in: Option<Duration>,
    /// A dry run checks that the server would admit the pod before a template is written.
    pub checks_pods: bool,
    /// The images of an update are pulled before the running pod is replaced.
    pub pre_pulls: bool,
    /// How long a node may take to be Ready again after its roll.
    pub ready_deadline: Duration,
    /// How long it must be Ready before its slot is released.
    pub min_ready: Duration,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            on_operator_change: OnOperatorChange::Auto,
            on_image_change: OnImageChange::InTurn,
            adopt_automatically: false,
            settles_in: None,
            checks_pods: false,
            pre_pulls: true,
            ready_deadline: Duration::from_secs(1800),
            min_ready: Duration::from_secs(10),
        }
    }
}

/// State-sync witnesses of the platform for one chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegisteredWitnesses {
    Known(Vec<String>),
    /// The configuration cannot be read; why.
    Unreadable(String),
}

/// The data claim that the node's template mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Claim {
    /// Not observed.
    #[default]
    Unknown,
    Missing,
    Present(ClaimView),
}

/// The result of the last health probe of the running pod's sidecar.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sidecar {
    /// Not probed: there is no sidecar to probe, or no answer has arrived yet.
    #[default]
    Unknown,
    Ready,
    /// The gate is closed.
    NotReady,
    Unreachable(String),
}

/// The answer of the chain's budget to a node that has to roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    Granted,
    /// None is free, but the node is down: its replacement costs the chain nothing as long as it is.
    GrantedWhileDown,
    /// The node is next, and every slot is in use; `by` lists the holders and their state.
    Taken {
        by: String,
    },
    /// Other nodes of the chain roll first.
    InLine {
        limit: usize,
    },
    /// The rolls of these nodes failed, and the chain waits until they are repaired.
    Halted {
        by: String,
    },
}

impl Slot {
    /// The nodes whose failed rolls halt the chain.
    pub fn halted_by(&self) -> Option<&str> {
        match self {
            Self::Halted { by } => Some(by),
            Self::Granted | Self::GrantedWhileDown | Self::Taken { .. } | Self::InLine { .. } => {
                None
            }
        }
    }

    pub fn is_granted(&self) -> bool {
        matches!(self, Self::Granted | Self::GrantedWhileDown)
    }
}

impl Snapshot {
    pub fn status(&self) -> &SeiNodeStatus {
        &self.status
    }

    pub fn generation(&self) -> i64 {
        self.node.metadata.generation.unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.node.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn annotation(&self, name: &str) -> Option<&str> {
        self.node.metadata.annotations.as_ref()?.get(name).map(String::as_str)
    }

    /// Name of the claim that the node's pod mounts.
    pub fn claim_name(&self) -> String {
        let own = || data_claim(self.node.metadata.name.as_deref().unwrap_or_default());
        self.node.spec.imported_claim().map_or_else(own, str::to_owned)
    }

    /// The approved target, if there is an approval.
    pub fn approved(&self) -> Option<&str> {
        self.annotation(annotation::APPROVE_UPDATE).filter(|hash| !hash.is_empty())
    }

    /// The StatefulSet that the node controls.
    pub fn own_statefulset(&self) -> Option<&StatefulSetView> {
        let statefulset = self.statefulset.as_deref();
        statefulset.filter(|set| set.is_controlled_by(self.uid()))
    }

    /// Whether a StatefulSet of the node's name exists that the node does not control.
    pub fn has_foreign_statefulset(&self) -> bool {
        self.statefulset.is_some() && self.own_statefulset().is_none()
    }

    /// Pods with the node's label, of any owner.
    pub fn pods(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().map(|pod| &**pod)
    }

    /// The node's pod: controlled by its StatefulSet and not terminating.
    pub fn pod(&self) -> Option<&PodView> {
        let own = own_pod(&self.pods, self.statefulset.as_deref(), self.uid());
        own.map(|pod| &**pod).filter(|pod| !pod.is_terminating())
    }

    /// Whether the node serves: its pod is Ready.
    pub fn is_ready(&self) -> bool {
        self.pod().is_some_and(|pod| pod.ready)
    }
}
