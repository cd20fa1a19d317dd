//! A node that has never run, or whose first plan failed.

use std::time::Duration;

use sei_api::names::annotation;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{ClaimRef, SeiNodePhase};
use sei_api::task::TaskType;

use super::{Decision, Note, build, failure_text, running, stall, state_sync};
use crate::snapshot::{Claim, Sidecar, Snapshot};
use crate::tasks::kind_of;

/// The phase of a node whose status is empty. A node with a StatefulSet of ours is not new.
///
/// The node has run if the chain process has passed its startup probe or the gate is open.
/// Otherwise its first plan may not have ended, and opening the gate could start it on a blank
/// configuration.
pub(super) fn rebuilt_phase(snapshot: &Snapshot) -> Option<SeiNodePhase> {
    snapshot.own_statefulset()?;
    let ran =
        snapshot.sidecar == Sidecar::Ready || snapshot.pod().is_some_and(|pod| pod.seid.started);
    if ran { Some(SeiNodePhase::Running) } else { snapshot.status().phase }
}

/// Decides for a node without a plan that is not running yet.
pub(super) fn decide(snapshot: &Snapshot, previous: Option<&TaskPlan>, decision: &mut Decision) {
    if let Some(note) = blocking_note(snapshot) {
        decision.report.push(note);
        if snapshot.status().phase.is_none() && decision.phase.is_none() {
            decision.phase = Some(SeiNodePhase::Pending);
        }
        decision.requeue = Some(snapshot.timing.poll() * 6);
        return;
    }
    let Ok(desired) = &snapshot.desired else { return };
    // An init plan without a Job, for a node that needs one, follows a plan whose Job completed.
    let bootstrapped = snapshot.node.spec.needs_bootstrap()
        && previous.is_some_and(|plan| {
            plan.has_completed(TaskType::TeardownBootstrap)
                || (kind_of(plan) == PlanKind::Init && !plan.has(TaskType::DeployBootstrapJob))
        });
    let plan = build::init(snapshot, desired, bootstrapped);
    decision.phase = Some(SeiNodePhase::Initializing);
    running::start(decision, plan, "the node is new");
}

/// The reason why the first plan cannot be built yet.
fn blocking_note(snapshot: &Snapshot) -> Option<Note> {
    if let Err(why) = &snapshot.desired {
        return Some(Note::Refused { why: why.clone() });
    }
    if snapshot.node.spec.is_paused() {
        return Some(Note::NodePaused);
    }
    let state_sync = state_sync::check_state_sync(&snapshot.node.spec, &snapshot.witnesses);
    if state_sync.blocked {
        return Some(Note::StateSyncBlocked { why: state_sync.verdict.message });
    }
    if snapshot.asks_peers {
        // The first plan stores the addresses of peers that are known when it is built.
        return Some(Note::WaitsForPeers);
    }
    if let Some(with) = &snapshot.signing_conflict {
        return Some(Note::SigningKeyConflict { with: with.clone() });
    }
    if snapshot.has_foreign_statefulset() {
        return Some(Note::Refused { why: running::FOREIGN_STATEFULSET.to_owned() });
    }
    // Objects of ours and an empty status: the sidecar is probed before the phase is rebuilt.
    let unknown = matches!(snapshot.status().phase, None | Some(SeiNodePhase::Pending));
    let wiped = unknown && snapshot.own_statefulset().is_some();
    let probing = snapshot.sidecar == Sidecar::Unknown
        && snapshot.pod().is_none_or(|pod| pod.sidecar.running);
    (wiped && probing).then_some(Note::WaitsForPod)
}

/// A failed node is initialised again when its spec or its retry annotation changes. Its volume is
/// kept.
pub(super) fn decide_failed(snapshot: &Snapshot, plan: Option<&TaskPlan>, decision: &mut Decision) {
    let target = plan.and_then(|plan| plan.target.as_ref());
    let tried = target
        .map(|target| target.generation)
        .or(snapshot.status().observed_generation)
        .unwrap_or_else(|| snapshot.generation());
    let retry = snapshot.annotation(annotation::RETRY);
    let is_new_retry =
        retry.is_some() && retry != target.and_then(|target| target.retry.as_deref());
    if snapshot.generation() != tried || is_new_retry {
        decide(snapshot, plan, decision);
        return;
    }
    let why = plan.map_or_else(|| "unknown".to_owned(), failure_text);
    decision.report.push(Note::FailedForGood { why });
}

/// A running node whose volume is lost is initialised again only with an approval.
pub(super) fn decide_lost_volume(snapshot: &Snapshot, decision: &mut Decision) {
    let is_approved = stall::lost_claim_uid(snapshot)
        .is_some_and(|uid| snapshot.annotation(annotation::RECREATE_VOLUME) == Some(uid.as_str()));
    let restored = match &snapshot.claim {
        Claim::Present(claim) if claim.phase == "Bound" && !claim.terminating => Some(claim),
        _ => None,
    };
    if let Some(claim) = restored.filter(|_| is_approved) {
        let name = snapshot.status().data_claim.as_ref().map(|lost| lost.name.clone());
        let uid = claim.uid.clone();
        decision.claim = Some(ClaimRef { name: name.unwrap_or_default(), uid });
        decision.requeue = Some(Duration::ZERO);
    } else if is_approved && snapshot.node.spec.imported_claim().is_none() {
        decide(snapshot, None, decision);
    } else {
        decision.requeue = Some(Duration::from_secs(30).min(snapshot.timing.resync()));
    }
}
