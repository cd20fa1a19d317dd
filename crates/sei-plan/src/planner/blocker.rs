//! What keeps a node from the state that its spec asks for.

use std::fmt;

use sei_api::condition::Reason;
use sei_api::names::annotation::RECREATE_VOLUME;

/// Why nothing is changed on a node until a user or another controller acts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    InvalidSpec {
        why: String,
    },
    SigningKeyConflict {
        why: String,
    },
    /// The claim is deleted as soon as its pod stops.
    VolumeTerminating,
    VolumeLost {
        claim: String,
        uid: String,
    },
    /// The claim is lost, and the status has no record of its uid.
    UnrecordedVolumeLost {
        claim: String,
        node_uid: String,
    },
    /// A workflow of the Go operator works on the node's data.
    Workflow {
        name: String,
    },
    NodePaused,
    StateSync {
        why: String,
    },
    /// The p2p ids of peers are not known yet.
    Peers,
    Pod,
    /// The server has to compare the template of the running pod.
    Comparison,
}

impl Blocker {
    /// The reason to report the node as stalled with; `None` if the node only waits.
    pub fn stalls(&self) -> Option<Reason> {
        match self {
            Self::InvalidSpec { .. } => Some(Reason::InvalidSpec),
            Self::SigningKeyConflict { .. } => Some(Reason::SigningKeyConflict),
            Self::VolumeTerminating
            | Self::VolumeLost { .. }
            | Self::UnrecordedVolumeLost { .. } => Some(Reason::DataVolumeLost),
            Self::Workflow { .. }
            | Self::NodePaused
            | Self::StateSync { .. }
            | Self::Peers
            | Self::Pod
            | Self::Comparison => None,
        }
    }

    /// Whether the node keeps its place in the queue of its chain meanwhile. A node that cannot be
    /// updated must not block the others.
    pub fn keeps_queue(&self) -> bool {
        matches!(self, Self::StateSync { .. } | Self::Peers | Self::Pod)
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidSpec { why } | Self::SigningKeyConflict { why } => f.write_str(why),
            Self::VolumeTerminating => {
                f.write_str("the claim is deleted once its pod stops; the operator keeps the pod")
            }
            Self::VolumeLost { claim, uid } => write!(f, "claim {claim} ({uid}) is lost"),
            Self::UnrecordedVolumeLost { claim, node_uid } => write!(
                f,
                "claim {claim} not found, and its uid is not recorded; to start on an empty volume, \
                 set annotation {RECREATE_VOLUME} to the uid of the node: {node_uid}"
            ),
            Self::Workflow { name } => write!(f, "workflow {name} of the Go operator occupies it"),
            Self::NodePaused => f.write_str("is stopped: spec.paused"),
            Self::StateSync { why } => write!(f, "waits for state-sync witnesses: {why}"),
            Self::Peers => f.write_str("waits for the p2p ids of its peers"),
            Self::Pod => f.write_str("waits for the StatefulSet controller to create the pod"),
            Self::Comparison => f.write_str("compares the running pod with the desired template"),
        }
    }
}
