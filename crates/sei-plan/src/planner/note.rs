//! The notes in which the planner reports its decision.

use std::fmt;

use sei_api::plan::PlanKind;
use sei_api::status::Cause;

use super::Blocker;

/// How the message about a moved revision begins.
pub const MOVED: &str = "keeps the pod at revision";

/// One decision of the planner, or the reason for doing nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    Deleting,
    /// Only the status is written.
    HandsOff,
    Blocked(Blocker),
    /// The node matches the desired state.
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
    Adopted {
        hash: String,
    },
    /// The pod has another revision than new pods would get, without an update by the operator.
    RevisionMovedExternally {
        pod: String,
        statefulset: String,
    },
    FailedForGood {
        why: String,
    },
    /// The stored plan cannot be trusted and was abandoned.
    PlanAbandoned {
        why: String,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deleting => f.write_str("is being deleted"),
            Self::HandsOff => f.write_str(crate::hands_off::WHY),
            Self::Blocked(blocker) => blocker.fmt(f),
            Self::InSync => f.write_str("in sync"),
            Self::Starts { kind, why } => write!(f, "starts {kind:?}: {why}"),
            Self::Resumes { kind, task } => write!(f, "resumes {kind:?} at {task}"),
            Self::PlanComplete { kind } => write!(f, "{kind:?} is complete"),
            Self::PlanFailed { kind, detail } => write!(f, "{kind:?} failed: {detail}"),
            Self::Superseded { kind, by } => write!(f, "ends {kind:?}: superseded by {by}"),
            Self::ContinuesLate { why } => {
                write!(f, "continues without the old pod's sidecar: {why}")
            }
            Self::WaitsForSlot { by } => write!(f, "waits for its turn: {by}"),
            Self::ChainHalted { by } => write!(f, "waits: the roll of {by} failed"),
            Self::Held { cause, why } => write!(f, "holds an update caused by {cause:?}: {why}"),
            Self::UpdatesPaused => f.write_str("holds the update: spec.update.paused"),
            Self::BacksOff { attempts, seconds } => {
                write!(f, "retries in {seconds} s, after {attempts} failed attempts")
            }
            Self::ApprovalRefused { given, target } => {
                write!(f, "refuses the approval of {given}: the target is {target}")
            }
            Self::Adopted { hash } => write!(f, "adopts the running pod as {hash}"),
            Self::RevisionMovedExternally { pod, statefulset } => write!(
                f,
                "{MOVED} {pod}; new pods would get {statefulset}: \
                 the revision changed without an update by the operator; \
                 to restart a node, use kubectl sei restart"
            ),
            Self::FailedForGood { why } => write!(
                f,
                "failed: {why}; change the spec, or set annotation sei.io/retry to a new value"
            ),
            Self::PlanAbandoned { why } => write!(f, "abandons the stored plan: {why}"),
        }
    }
}
