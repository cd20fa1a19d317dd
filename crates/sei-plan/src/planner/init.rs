//! A node that has never run, or whose first plan failed.

use std::time::Duration;

use sei_api::names::annotation;
use sei_api::plan::TaskPlan;
use sei_api::status::{ClaimRef, SeiNodePhase};
use sei_api::task::TaskType;

use super::{Blocker, Decision, Note, build, failure_text, running, state_sync};
use crate::desired::Desired;
use crate::snapshot::{Claim, Sidecar, Snapshot};

/// The phase of a node whose status is empty. A node with a StatefulSet of ours is not new.
///
/// The node has run if its StatefulSet is stamped as initialised, the chain process has passed its
/// startup probe, or the gate is open. Otherwise its first plan may not have ended, and opening the
/// gate could start it on a blank configuration.
pub(super) fn rebuilt_phase(snapshot: &Snapshot) -> Option<SeiNodePhase> {
    let statefulset = snapshot.own_statefulset()?;
    let ran = statefulset.initialised
        || snapshot.sidecar == Sidecar::Ready
        || snapshot.pod().is_some_and(|pod| pod.seid.started);
    if ran { Some(SeiNodePhase::Running) } else { snapshot.status().phase }
}

/// Decides for a node without a plan that is not running yet.
pub(super) fn decide(snapshot: &Snapshot, previous: Option<&TaskPlan>) -> Decision {
    let desired = match may_begin(snapshot) {
        Ok(desired) => desired,
        Err(blocker) => {
            let is_new = snapshot.status().phase.is_none();
            return Decision {
                phase: is_new.then_some(SeiNodePhase::Pending),
                requeue: Some(snapshot.timing.poll() * 6),
                ..Decision::blocked(snapshot, blocker)
            };
        }
    };
    let replayed = |plan: &TaskPlan| {
        let before = plan.target.as_ref().and_then(|target| target.replayed);
        plan.has_completed(TaskType::AwaitBootstrapComplete) || before == Some(true)
    };
    let bootstrapped = snapshot.node.spec.needs_bootstrap() && previous.is_some_and(replayed);
    let plan = build::init(snapshot, desired, bootstrapped);
    Decision { phase: Some(SeiNodePhase::Initializing), ..Decision::keep(snapshot) }
        .start(plan, "the node is new")
}

/// The desired state, if the first plan can be built.
fn may_begin(snapshot: &Snapshot) -> Result<&Desired, Blocker> {
    let desired = match &snapshot.desired {
        Ok(desired) => desired,
        Err(why) => return Err(Blocker::InvalidSpec { why: why.clone() }),
    };
    if snapshot.node.spec.is_paused() {
        return Err(Blocker::NodePaused);
    }
    let state_sync = state_sync::check_state_sync(&snapshot.node.spec, &snapshot.witnesses);
    if state_sync.blocked {
        return Err(Blocker::StateSync { why: state_sync.verdict.message });
    }
    if snapshot.asks_peers {
        // The first plan stores the addresses of peers that are known when it is built.
        return Err(Blocker::Peers);
    }
    if let Some(why) = &snapshot.signing_conflict {
        return Err(Blocker::SigningKeyConflict { why: why.clone() });
    }
    if snapshot.has_foreign_statefulset() {
        return Err(Blocker::InvalidSpec { why: running::FOREIGN_STATEFULSET.to_owned() });
    }
    // Objects of ours and an empty status: the sidecar is probed before the phase is rebuilt.
    let unknown = matches!(snapshot.status().phase, None | Some(SeiNodePhase::Pending));
    let wiped = unknown && snapshot.own_statefulset().is_some();
    let probing = snapshot.sidecar == Sidecar::Unknown
        && snapshot.pod().is_none_or(|pod| pod.sidecar.running);
    if wiped && probing { Err(Blocker::Pod) } else { Ok(desired) }
}

/// A failed node is initialised again when its spec or its retry annotation changes. Its volume is
/// kept.
pub(super) fn decide_failed(snapshot: &Snapshot, plan: Option<&TaskPlan>) -> Decision {
    let target = plan.and_then(|plan| plan.target.as_ref());
    let tried = target
        .map(|target| target.generation)
        .or(snapshot.status().observed_generation)
        .unwrap_or_else(|| snapshot.generation());
    let retry = snapshot.annotation(annotation::RETRY);
    let is_new_retry =
        retry.is_some() && retry != target.and_then(|target| target.retry.as_deref());
    if snapshot.generation() != tried || is_new_retry {
        return decide(snapshot, plan);
    }
    let why = plan.map_or_else(|| "unknown".to_owned(), failure_text);
    Decision::keep(snapshot).note(Note::FailedForGood { why })
}

/// A running node whose volume is lost is initialised again only with an approval: by the uid of the
/// claim, or of the node if that is not recorded.
pub(super) fn decide_lost_volume(snapshot: &Snapshot) -> Decision {
    let recorded = snapshot.status().data_claim.clone();
    let unrecorded = || ClaimRef { name: snapshot.claim_name(), uid: snapshot.uid().to_owned() };
    let approved = snapshot.annotation(annotation::RECREATE_VOLUME);
    let lost = recorded.unwrap_or_else(unrecorded);
    let lost = Some(lost).filter(|lost| approved == Some(lost.uid.as_str()));
    let decision = Decision::keep(snapshot);
    match (lost, &snapshot.claim) {
        (Some(lost), Claim::Present(claim)) if claim.phase == "Bound" && !claim.terminating => {
            let claim = Some(ClaimRef { name: lost.name, uid: claim.uid.clone() });
            Decision { claim, requeue: Some(Duration::ZERO), ..decision }
        }
        (Some(_), _) if snapshot.node.spec.imported_claim().is_none() => decide(snapshot, None),
        _ => decision.requeue_within(Duration::from_secs(30)),
    }
}
