//! Everything that a decision about one node is made from.

use std::time::Duration;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::names::annotation;
use sei_api::node::OnOperatorChange;
use sei_api::status::SeiNodeStatus;

use crate::adoption::Comparison;
use crate::desired::Desired;
use crate::request::ClaimView;
use crate::shared::Shared;
use crate::tasks::Waiting;
use crate::timing::Timing;
use crate::view::{JobView, PodView, StatefulSetView, is_owned};

/// What was observed of a node and everything around it.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Metadata and spec. Its status is the stored one; decisions read `status`.
    pub node: Shared<SeiNode>,
    /// The node's status as far as it is known: stored, or ahead of that.
    pub status: SeiNodeStatus,
    /// The resolved peers; `None` where nobody resolved them.
    pub peers: Option<Vec<String>>,
    pub now: Timestamp,
    /// Id for a plan, should one be built.
    pub plan_id: String,
    pub operator_version: String,
    pub timing: Timing,
    pub rollout: Rollout,
    /// The rendered node, or why the spec cannot be rendered.
    pub desired: Result<Shared<Desired>, String>,
    /// What the platform's registry of state-sync witnesses says of the node's chain.
    pub witnesses: RegisteredWitnesses,
    pub statefulset: Option<Shared<StatefulSetView>>,
    /// Pods with the node's label, of any owner.
    pub pods: Vec<Shared<PodView>>,
    pub job: Option<JobView>,
    pub claim: Claim,
    pub sidecar: Sidecar,
    /// What the chain's budget answered; nothing before it was asked.
    pub slot: Option<Slot>,
    /// The server's judgement of a pod that was never observed, for the pod of this uid.
    pub adoption: Option<(String, Comparison)>,
    /// Peers that are being asked who they are: their addresses are not complete yet.
    pub asks_peers: bool,
    /// Another node with the same signing key or claim.
    pub signing_conflict: Option<String>,
    /// What the current task of the active plan waits for, as its last step said.
    pub waiting: Option<Waiting>,
    pub current: Current,
}

/// Which of the node's live objects already are as rendered. Comparing whole objects is the costly
/// part of an snapshot, so the shell does it once per version of each.
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

/// The platform's rules for rolls that nobody asked for on the node itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rollout {
    pub on_operator_change: OnOperatorChange,
    pub adopt_automatically: bool,
    /// How much longer the lease must be held to trust one's own view of the fleet.
    pub settles_in: Option<Duration>,
    /// The server is asked whether it would admit the pod before a template is written.
    pub checks_pods: bool,
    /// How long a node may take to be Ready again after its roll.
    pub ready_deadline: Duration,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            on_operator_change: OnOperatorChange::Auto,
            adopt_automatically: false,
            settles_in: None,
            checks_pods: false,
            ready_deadline: Duration::from_secs(1800),
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
    /// Not looked at.
    #[default]
    Unknown,
    Missing,
    Present(ClaimView),
}

/// What the sidecar of the running pod last answered to a health probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Sidecar {
    /// Not probed: there is nothing to probe, or no answer has come in yet.
    #[default]
    Unknown,
    Ready,
    /// The gate is closed.
    NotReady,
    Unreachable(String),
}

/// Whether the chain's budget lets this node roll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    Granted,
    /// It is next, and every slot is used: by whom, and how.
    Taken {
        by: String,
    },
    /// Others of its chain come first.
    InLine {
        limit: usize,
    },
    /// Rolls of these nodes failed, and the chain waits for them.
    Halted {
        by: String,
    },
}

impl Slot {
    /// Whose failed roll keeps the chain waiting.
    pub fn halted_by(&self) -> Option<&str> {
        match self {
            Self::Halted { by } => Some(by),
            Self::Granted | Self::Taken { .. } | Self::InLine { .. } => None,
        }
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

    /// The approved target, if somebody approved one.
    pub fn approved(&self) -> Option<&str> {
        self.annotation(annotation::APPROVE_UPDATE).filter(|hash| !hash.is_empty())
    }

    /// The node's own StatefulSet: one that another object controls is not it.
    pub fn own_statefulset(&self) -> Option<&StatefulSetView> {
        let statefulset = self.statefulset.as_deref();
        statefulset.filter(|set| set.controller.as_deref() == Some(self.uid()))
    }

    /// Whether there is a StatefulSet of the node's name that the node does not control.
    pub fn has_foreign_statefulset(&self) -> bool {
        self.statefulset.is_some() && self.own_statefulset().is_none()
    }

    /// Pods with the node's label, of any owner.
    pub fn pods(&self) -> impl Iterator<Item = &PodView> {
        self.pods.iter().map(|pod| &**pod)
    }

    /// The node's pod: controlled by its StatefulSet and there to stay.
    pub fn pod(&self) -> Option<&PodView> {
        let statefulset = self.own_statefulset()?;
        self.pods().find(|pod| is_owned(pod, statefulset) && !pod.is_terminating())
    }

    /// Whether the node serves: its pod is Ready.
    pub fn is_ready(&self) -> bool {
        self.pod().is_some_and(|pod| pod.ready)
    }
}
