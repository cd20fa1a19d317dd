//! `sei.io/hands-off: "true"` on a node: of everything that belongs to the node, only its status is
//! written.
//!
//! A pass over such a node has one stage, a deletion waits, and a fleet leaves the node as it is.

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::names::annotation;
use sei_api::status::SeiNodeStatus;

/// Why nothing is done, and how that ends.
pub const WHY: &str = "annotation sei.io/hands-off is set: the operator changes no object of the \
                       node until the annotation is removed";

/// Whether nothing but the status of the node may be written.
pub fn is_hands_off(node: &SeiNode) -> bool {
    let annotations = node.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(annotation::HANDS_OFF)).is_some_and(|value| value == "true")
}

/// Whether the status reports it.
pub(crate) fn is_reported(status: &SeiNodeStatus) -> bool {
    condition::find(&status.conditions, ConditionType::Ready)
        .is_some_and(|ready| ready.reason == Reason::HandsOff.as_str())
}

/// The condition `Ready`: it follows the pod, also of a node that is stalled or stopped otherwise.
pub(crate) fn ready(name: &str, is_ready: bool) -> Verdict {
    let (status, message) = if is_ready {
        (ConditionStatus::True, WHY.to_owned())
    } else {
        (ConditionStatus::False, format!("pod {name}-0 is not Ready; {WHY}"))
    };
    Verdict::new(ConditionType::Ready, status, Reason::HandsOff, message)
}

/// The status of a deleted node that is kept.
pub(crate) fn kept(node: &SeiNode, now: Timestamp) -> SeiNodeStatus {
    let mut status = node.status.clone().unwrap_or_default();
    let (kind, message) = (ConditionType::Ready, format!("the node is deleted and kept; {WHY}"));
    let verdict = Verdict::new(kind, ConditionStatus::False, Reason::HandsOff, message);
    let generation = node.metadata.generation.unwrap_or_default();
    condition::set(&mut status.conditions, &verdict, generation, now);
    status
}
