//! What the planner says about its decision.

use std::fmt;

use sei_api::plan::PlanKind;
use sei_api::status::Cause;

/// One thing that was decided, or why nothing was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Deleting,
    /// Nothing differs from what is desired.
    InSync,
    Starts {
        kind: PlanKind,
        why: String,
    },
    Resumes {
        kind: PlanKind,
        task: String,
    },
    PlanComplete {
        kind: PlanKind,
    },
    PlanFailed {
        kind: PlanKind,
        detail: String,
    },
    Superseded {
        kind: PlanKind,
        by: String,
    },
    ContinuesLate {
        why: String,
    },
    WaitsForSlot {
        by: String,
    },
    ChainHalted {
        by: String,
    },
    Held {
        cause: Cause,
        why: String,
    },
    UpdatesPaused,
    BacksOff {
        attempts: i32,
        seconds: i64,
    },
    ApprovalRefused {
        given: String,
        target: String,
    },
    /// The server is asked what the running pod was made from.
    Comparing,
    Adopted {
        hash: String,
    },
    /// The pod is at another revision than new pods would be, and nobody asked for that.
    RevisionMovedExternally {
        pod: String,
        statefulset: String,
    },
    NodePaused,
    StateSyncBlocked {
        why: String,
    },
    Refused {
        why: String,
    },
    WaitsForPod,
    WaitsForPeers,
    FailedForGood {
        why: String,
    },
    ConfigWaitsForRoll {
        settings: Vec<String>,
    },
    VolumeLost {
        claim: String,
    },
    VolumeTerminating,
    SigningKeyConflict {
        with: String,
    },
    /// The stored plan cannot be trusted and was given up.
    PlanAbandoned {
        why: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleting => f.write_str("is being deleted"),
            Self::InSync => f.write_str("in sync"),
            Self::Starts { kind, why } => write!(f, "starts {kind:?}: {why}"),
            Self::Resumes { kind, task } => write!(f, "goes on with {kind:?} at {task}"),
            Self::PlanComplete { kind } => write!(f, "{kind:?} is complete"),
            Self::PlanFailed { kind, detail } => write!(f, "{kind:?} failed: {detail}"),
            Self::Superseded { kind, by } => write!(f, "gives up {kind:?}: superseded by {by}"),
            Self::ContinuesLate { why } => {
                write!(f, "goes on without the old pod's sidecar: {why}")
            }
            Self::WaitsForSlot { by } => write!(f, "waits for its turn: {by} rolls"),
            Self::ChainHalted { by } => write!(f, "waits: the roll of {by} failed"),
            Self::Held { cause, why } => write!(f, "holds a change caused by {cause:?}: {why}"),
            Self::UpdatesPaused => f.write_str("holds the update: spec.update.paused"),
            Self::BacksOff { attempts, seconds } => {
                write!(f, "tries again in {seconds} s, after {attempts} failed attempts")
            }
            Self::ApprovalRefused { given, target } => {
                write!(f, "refuses the approval of {given}: the target is {target}")
            }
            Self::Comparing => f.write_str("asks what the running pod was made from"),
            Self::Adopted { hash } => write!(f, "adopts the running pod as {hash}"),
            Self::RevisionMovedExternally { pod, statefulset } => write!(
                f,
                "leaves the pod at {pod} although new pods would be at {statefulset}: \
                 the revision moved without a change of ours"
            ),
            Self::NodePaused => f.write_str("is stopped: spec.paused"),
            Self::StateSyncBlocked { why } => write!(f, "waits for state-sync witnesses: {why}"),
            Self::Refused { why } => write!(f, "cannot be carried out: {why}"),
            Self::WaitsForPod => {
                f.write_str("waits for the StatefulSet controller to make the pod")
            }
            Self::WaitsForPeers => f.write_str("waits until its peers have told who they are"),
            Self::FailedForGood { why } => write!(
                f,
                "failed: {why}; change the spec, or set a new value of annotation sei.io/retry"
            ),
            Self::ConfigWaitsForRoll { settings } => {
                write!(f, "{} changed; it arrives with the next roll", settings.join(", "))
            }
            Self::VolumeTerminating => {
                f.write_str("leaves the pod alone: its volume would go with it")
            }
            Self::VolumeLost { claim } => write!(f, "its volume {claim} is gone"),
            Self::SigningKeyConflict { with } => {
                write!(f, "is not started: {with} has the same signing key or volume")
            }
            Self::PlanAbandoned { why } => write!(f, "gives up the stored plan: {why}"),
        }
    }
}
