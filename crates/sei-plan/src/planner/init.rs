//! A node that has never run, or whose first plan failed.

use std::time::Duration;

use sei_api::names::annotation;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{ClaimRef, SeiNodePhase};
use sei_api::task::TaskType;

use super::{Decision, Note, build, failure_text, running, stall, state_sync};
use crate::snapshot::{Claim, Sidecar, Snapshot};
use crate::tasks::kind_of;

/// The phase of a node whose status is empty: never a new node beside objects of ours.
///
/// The chain process has passed its startup probe, or the gate is open: it ran. Otherwise its
/// first plan may never have ended, and opening the gate could start it on a blank configuration.
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
    // A plan that did without a Job that the node needs followed one that was done with it.
    let bootstrapped = snapshot.node.spec.needs_bootstrap()
        && previous.is_some_and(|plan| {
            plan.has_completed(TaskType::TeardownBootstrap)
                || (kind_of(plan) == PlanKind::Init && !plan.has(TaskType::DeployBootstrapJob))
        });
    let plan = build::init(snapshot, desired, bootstrapped);
    decision.phase = Some(SeiNodePhase::Initializing);
    running::start(decision, plan, "the node is new");
}

/// What keeps the first plan from being built.
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
        // The first plan holds the addresses of peers as they are known when it is built.
        return Some(Note::WaitsForPeers);
    }
    if let Some(with) = &snapshot.signing_conflict {
        return Some(Note::SigningKeyConflict { with: with.clone() });
    }
    if snapshot.has_foreign_statefulset() {
        return Some(Note::Refused { why: running::FOREIGN_STATEFULSET.to_owned() });
    }
    // Objects of ours beside an empty status: look at the pod before deciding what the node was.
    let unknown = matches!(snapshot.status().phase, None | Some(SeiNodePhase::Pending));
    let wiped = unknown && snapshot.own_statefulset().is_some();
    let probing = snapshot.sidecar == Sidecar::Unknown
        && snapshot.pod().is_none_or(|pod| pod.sidecar.running);
    (wiped && probing).then_some(Note::WaitsForPod)
}

/// A failed node tries again when its spec changes or somebody says so; its volume is kept.
pub(super) fn decide_failed(snapshot: &Snapshot, plan: Option<&TaskPlan>, decision: &mut Decision) {
    let target = plan.and_then(|plan| plan.target.as_ref());
    let tried = target
        .map(|target| target.generation)
        .or(snapshot.status().observed_generation)
        .unwrap_or_else(|| snapshot.generation());
    let asked = snapshot.annotation(annotation::RETRY);
    let asked_anew = asked.is_some() && asked != target.and_then(|target| target.retry.as_deref());
    if snapshot.generation() != tried || asked_anew {
        decide(snapshot, plan, decision);
        return;
    }
    let why = plan.map_or_else(|| "unknown".to_owned(), failure_text);
    decision.report.push(Note::FailedForGood { why });
}

/// A running node whose volume is gone: only with consent is it initialised anew.
pub(super) fn decide_lost_volume(snapshot: &Snapshot, decision: &mut Decision) {
    let consent = stall::lost_claim_uid(snapshot)
        .is_some_and(|uid| snapshot.annotation(annotation::RECREATE_VOLUME) == Some(uid.as_str()));
    let restored = match &snapshot.claim {
        Claim::Present(claim) if claim.phase == "Bound" && !claim.terminating => Some(claim),
        _ => None,
    };
    if let Some(claim) = restored.filter(|_| consent) {
        let name = snapshot.status().data_claim.as_ref().map(|lost| lost.name.clone());
        let uid = claim.uid.clone();
        decision.claim = Some(ClaimRef { name: name.unwrap_or_default(), uid });
        decision.requeue = Some(Duration::ZERO);
    } else if consent && snapshot.node.spec.imported_claim().is_none() {
        decide(snapshot, None, decision);
    } else {
        decision.requeue = Some(Duration::from_secs(30).min(snapshot.timing.resync()));
    }
}
