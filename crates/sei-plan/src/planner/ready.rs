//! Whether a node is Ready, and whether the operator still works on it: the conditions that
//! `kubectl wait`, Flux and Argo CD read.

use jiff::Timestamp;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::TaskPlan;
use sei_api::status::{SeiNodePhase, SeiNodeStatus, UpdateState};

use super::failure_text;
use crate::hands_off::{self, is_hands_off};
use crate::snapshot::Snapshot;
use crate::tasks::bounded;

/// Records both conditions, from the status that a pass is about to write and the pod that it
/// observed.
pub(crate) fn record(snapshot: &mut Snapshot) {
    let verdicts = if is_hands_off(&snapshot.node) {
        let name = snapshot.node.metadata.name.as_deref().unwrap_or_default();
        [hands_off::ready(name, snapshot.is_ready()), settled()]
    } else {
        [ready(snapshot), reconciling(&snapshot.status)]
    };
    let (generation, now) = (snapshot.generation(), snapshot.now);
    for verdict in &verdicts {
        condition::set(&mut snapshot.status.conditions, verdict, generation, now);
    }
}

/// Records that a node is not Ready because it is being deleted.
pub(crate) fn record_terminating(status: &mut SeiNodeStatus, generation: i64, now: Timestamp) {
    let verdict = not_ready(Reason::Terminating, "the node is being deleted");
    condition::set(&mut status.conditions, &verdict, generation, now);
}

fn ready(snapshot: &Snapshot) -> Verdict {
    let status = &snapshot.status;
    let name = snapshot.node.metadata.name.as_deref().unwrap_or_default();
    let stalled = condition::find(&status.conditions, ConditionType::Stalled)
        .filter(|stalled| stalled.status == ConditionStatus::True.as_str());
    let stalled = stalled.and_then(|stalled| Some((Reason::parse(&stalled.reason)?, stalled)));
    if let Some((reason, stalled)) = stalled {
        let runs = status.phase == Some(SeiNodePhase::Running) && !snapshot.node.spec.is_paused();
        if runs && leaves_pod_running(reason) && !snapshot.is_ready() {
            let message = format!("pod {name}-0 is not Ready; {reason}: {}", stalled.message);
            return not_ready(Reason::PodNotReady, &bounded(&message));
        }
        return not_ready(reason, &stalled.message);
    }
    // An active plan does not end with a spec that is refused meanwhile, so nothing is stalled yet.
    if let Err(why) = &snapshot.desired {
        return not_ready(Reason::InvalidSpec, &bounded(why));
    }
    if snapshot.node.spec.is_paused() {
        return not_ready(Reason::Stopped, "spec.paused is true");
    }
    let why = |otherwise: &str| {
        let blocked = status.blocked.as_ref().map(|blocked| blocked.message.as_str());
        blocked.unwrap_or(otherwise).to_owned()
    };
    match status.phase {
        None | Some(SeiNodePhase::Pending) => not_ready(Reason::Pending, &why(witnesses(status))),
        Some(SeiNodePhase::Initializing) => {
            not_ready(Reason::Initializing, &why("the first start is not complete"))
        }
        Some(SeiNodePhase::Failed) => {
            let text = status.plan.as_ref().map(failure_text);
            not_ready(Reason::Failed, &bounded(&text.unwrap_or_default()))
        }
        Some(SeiNodePhase::Terminating) => {
            not_ready(Reason::Terminating, "the node is being deleted")
        }
        Some(SeiNodePhase::Running) if snapshot.is_ready() => {
            // It serves what it has, so it stays Ready; the column Reason shows that it waits.
            let halted = condition::find(&status.conditions, ConditionType::Halted)
                .filter(|halted| halted.status == ConditionStatus::True.as_str());
            let (reason, why) = match halted {
                Some(halted) => (Reason::NoNewBlock, halted.message.as_str()),
                None => (Reason::Ready, ""),
            };
            Verdict::new(ConditionType::Ready, ConditionStatus::True, reason, why)
        }
        // One reason and one message for all steps of a roll: each other one would cost a write.
        Some(SeiNodePhase::Running) if is_updating(status) => {
            not_ready(Reason::Updating, &why("the pod is being replaced"))
        }
        Some(SeiNodePhase::Running) => {
            not_ready(Reason::PodNotReady, &why(&format!("pod {name}-0 is not Ready")))
        }
    }
}

/// Whether the pod of a node that is stalled by this can still be Ready. If it is down as well, that
/// comes first: an alert pages for a pod that is down and not for a refused edit.
fn leaves_pod_running(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::SidecarUnreachable
            | Reason::InvalidSpec
            | Reason::ApplyRejected
            | Reason::FieldConflict
            | Reason::Forbidden
            | Reason::SchemaTooOld
    )
}

/// Why a node has no first plan.
fn witnesses(status: &SeiNodeStatus) -> &str {
    let blocks = [Reason::NoSyncersConfigured, Reason::SyncerSourceError].map(Reason::as_str);
    condition::find(&status.conditions, ConditionType::StateSyncReady)
        .filter(|found| blocks.contains(&found.reason.as_str()))
        .map_or("the first plan has not started", |found| found.message.as_str())
}

fn not_ready(reason: Reason, message: &str) -> Verdict {
    Verdict::new(ConditionType::Ready, ConditionStatus::False, reason, message)
}

/// Whether the operator is on its way to what the spec asks for. Never together with `Stalled`:
/// readers take the first of both for the state of the node.
fn reconciling(status: &SeiNodeStatus) -> Verdict {
    let is_pending =
        status.pending_update.as_ref().is_some_and(|pending| pending.state != UpdateState::Held);
    let is_active = status.plan.as_ref().is_some_and(TaskPlan::is_active);
    let stalled = ConditionType::Stalled;
    let is_stalled = condition::is(&status.conditions, stalled, ConditionStatus::True);
    if (is_pending || is_active) && !is_stalled {
        let (state, reason) = (ConditionStatus::True, Reason::Progressing);
        Verdict::new(ConditionType::Reconciling, state, reason, "")
    } else {
        settled()
    }
}

fn settled() -> Verdict {
    Verdict::new(ConditionType::Reconciling, ConditionStatus::False, Reason::Settled, "")
}

fn is_updating(status: &SeiNodeStatus) -> bool {
    condition::is(&status.conditions, ConditionType::NodeUpdateInProgress, ConditionStatus::True)
}
