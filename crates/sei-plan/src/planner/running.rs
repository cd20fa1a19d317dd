//! A running node without a plan.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::condition::{ConditionStatus, Reason};
use sei_api::status::{Cause, FieldChange, PendingUpdate, UpdateState};

use super::decision::drift_is;
use super::drift::{self, Difference, Drift, Permit};
use super::{Blocker, Decision, Note, build, init, stall, wait_until};
use crate::budget::Taken;
use crate::desired::Desired;
use crate::diff::cut_changes;
use crate::snapshot::{Sidecar, Slot, Snapshot};
use crate::view::is_owned;

/// Decides for a running node: update it, open its gate, restore its template, or do nothing.
pub(super) fn decide(snapshot: &Snapshot) -> Decision {
    if let Some(lost) = stall::volume_lost(snapshot) {
        let blocked = Decision::blocked(snapshot, lost);
        return leave_queue(blocked.then(init::decide_lost_volume(snapshot)));
    }
    let paused = snapshot.node.spec.is_paused();
    let mut decision = leave_queue(match may_change(snapshot) {
        Err(blocker) => Decision::blocked(snapshot, blocker),
        Ok(desired) if paused => decide_stopped(snapshot, desired),
        Ok(desired) => decide_drift(snapshot, desired),
    });
    let conflict = matches!(decision.blocker, Some(Blocker::SigningKeyConflict { .. }));
    if conflict || stall::volume_unknown(snapshot) {
        // The end of it triggers no event for this node.
        decision = decision.requeue_within(snapshot.timing.poll() * 6);
    }
    // Nothing above delays the gate: an evicted node must serve again.
    let gate_closed = snapshot.sidecar == Sidecar::NotReady && snapshot.pod().is_some();
    if decision.plan.started().is_none() && !paused && gate_closed {
        decision = decision.start(build::mark_ready(snapshot), "the gate is closed");
    }
    if decision.plan.started().is_none()
        && let Ok(desired) = &snapshot.desired
    {
        decision = restore_template(snapshot, desired, decision);
    }
    decision
}

/// The desired state, if the running node may be changed to it at all.
fn may_change(snapshot: &Snapshot) -> Result<&Desired, Blocker> {
    let refused = |why: String| Err(Blocker::InvalidSpec { why });
    let desired = match &snapshot.desired {
        Err(why) => return refused(why.clone()),
        Ok(desired) => desired,
    };
    if let Some(why) = stall::changed_identity(snapshot, desired) {
        return refused(why);
    }
    if stall::volume_terminating(snapshot) {
        return Err(Blocker::VolumeTerminating);
    }
    if snapshot.has_foreign_statefulset() {
        return refused(FOREIGN_STATEFULSET.to_owned());
    }
    if waits_for_a_key(snapshot) {
        let why = snapshot.signing_conflict.clone().unwrap_or_default();
        return Err(Blocker::SigningKeyConflict { why });
    }
    Ok(desired)
}

/// Removes a node that cannot be updated from the queue of its chain.
pub(super) fn leave_queue(decision: Decision) -> Decision {
    let why = decision.blocker.as_ref().filter(|blocker| !blocker.keeps_queue());
    let why = why.map(ToString::to_string);
    match (why, &decision.pending_update) {
        (Some(why), Some(pending)) if pending.state == UpdateState::Queued => {
            let reason = Some(why.clone());
            let held = PendingUpdate { state: UpdateState::Held, reason, ..pending.clone() };
            decision.pending(held).drift(Reason::Held, why)
        }
        _ => decision,
    }
}

/// Why a node with a foreign StatefulSet is not reconciled.
pub(super) const FOREIGN_STATEFULSET: &str =
    "a StatefulSet of this name is controlled by another object, or by none";

/// Whether another node has the key, and this node does not sign with it yet: its template does not
/// mount the key, or it is scaled to zero.
fn waits_for_a_key(snapshot: &Snapshot) -> bool {
    let statefulset = snapshot.own_statefulset();
    let mounted = statefulset.and_then(|found| found.identity().signing_secret.clone());
    let desired = snapshot.node.spec.signing_secret();
    let takes = desired.is_some() && mounted.as_deref() != desired;
    let stopped = statefulset.is_none_or(|found| found.replicas == Some(0));
    let paused = snapshot.node.spec.is_paused();
    snapshot.signing_conflict.is_some() && (takes || (stopped && !paused))
}

/// Compares the pod with the desired template and acts on the difference.
fn decide_drift(snapshot: &Snapshot, desired: &Desired) -> Decision {
    match drift::classify(snapshot, desired) {
        Drift::NoPod | Drift::NotRunning => Decision::blocked(snapshot, Blocker::Pod),
        Drift::Unknown => Decision {
            compare: snapshot
                .pod()
                .filter(|pod| drift::has_revision(pod))
                .map(|pod| pod.uid.clone()),
            ..Decision::blocked(snapshot, Blocker::Comparison)
        },
        Drift::Record(stamp) => {
            let adopted = Note::Adopted { hash: stamp.hash.clone() };
            let recorded = Decision { stamp: Some(*stamp), ..Decision::keep(snapshot) };
            recorded.note(adopted).then(in_sync(snapshot, desired))
        }
        Drift::InSync => match unfinished(snapshot, desired)
            .or_else(|| drift::config_difference(snapshot, desired))
        {
            Some(difference) => differs(snapshot, desired, &difference),
            None => in_sync(snapshot, desired),
        },
        Drift::Reapply => match drift::back_off(snapshot, desired) {
            Some(pause) => backs_off(snapshot, pause),
            None => reapply(snapshot, desired),
        },
        Drift::Differs(difference) => differs(snapshot, desired, &difference),
    }
}

/// Applies the template that the pod was made from. The apply comes first: until then an evicted pod
/// gets an obsolete template.
fn reapply(snapshot: &Snapshot, desired: &Desired) -> Decision {
    let why = "restores the template of the running pod; no pod is restarted";
    let (cause, late) = (Cause::Spec, build::Shape::Late);
    let update = pending(snapshot, desired, cause, UpdateState::Rolling, why, Vec::new());
    let plan = build::node_update(snapshot, desired, cause, late, Taken::Nothing);
    Decision::keep(snapshot)
        .pending(update)
        .drift(Reason::Rolling, "restores the running template")
        .updating(why)
        .start(plan, "the running template is desired, but another one is applied")
}

/// An update that failed after its pod was replaced: the pod has the desired template, but its
/// configuration is not up to date.
fn unfinished(snapshot: &Snapshot, desired: &Desired) -> Option<Difference> {
    let pending = snapshot.status().pending_update.as_ref()?;
    let failed = pending.attempts.unwrap_or(0) > 0 && pending.target_hash == desired.hash;
    failed.then(|| Difference {
        cause: pending.cause,
        image_changed: true,
        changes: pending.changes.clone(),
    })
}

fn in_sync(snapshot: &Snapshot, desired: &Desired) -> Decision {
    let moved = snapshot.pod().zip(snapshot.own_statefulset()).and_then(|(pod, statefulset)| {
        let (own, newest) = (pod.revision.clone()?, statefulset.observed_revision()?.to_owned());
        (own != newest).then_some(Note::RevisionMovedExternally { pod: own, statefulset: newest })
    });
    // A pause that holds nothing yet is reported too, or the next update is held by surprise.
    let (reason, message) = if snapshot.node.spec.updates_are_paused() {
        (Reason::Paused, "in sync; spec.update.paused holds the next update".to_owned())
    } else if let Some(moved) = &moved {
        (Reason::InSync, moved.to_string())
    } else if drift::config_changed(snapshot, desired, "peers") {
        (Reason::InSync, "config.peers has changed; the next roll applies it".to_owned())
    } else {
        (Reason::InSync, String::new())
    };
    Decision { pending_update: None, ..Decision::keep(snapshot) }
        .condition(drift_is(ConditionStatus::False, reason, message))
        .note(moved.unwrap_or(Note::InSync))
}

/// The pod differs: rolls it, or reports why it waits.
fn differs(snapshot: &Snapshot, desired: &Desired, difference: &Difference) -> Decision {
    let mut changes = difference.changes.clone();
    if changes.is_empty() {
        // The fingerprints differ in form only, or the differing fields are unknown.
        changes.push(FieldChange {
            path: "podTemplate".to_owned(),
            from: snapshot.status().pod_template_hash.clone(),
            to: Some(desired.hash.clone()),
        });
    }
    let summary = explain(&changes);
    let cause = difference.cause;
    let decision = refuse_other_approvals(snapshot, desired);
    let mut halted_by = None;
    let (decision, state, why) = match drift::permit(snapshot, desired, difference) {
        Permit::Go { takes } => {
            let plan = build::node_update(snapshot, desired, cause, shape(snapshot), takes);
            let decision = decision
                .drift(Reason::Rolling, &summary)
                .updating(started(snapshot, desired, &summary))
                .start(plan, &summary);
            (decision, UpdateState::Rolling, String::new())
        }
        Permit::AsksSlot(roll) => {
            let decision = Decision { asks_slot: Some(roll), ..decision };
            (decision, UpdateState::Queued, "requests a slot of its chain".to_owned())
        }
        Permit::Paused => {
            let decision = decision.drift(Reason::Paused, &summary).note(Note::UpdatesPaused);
            (decision, UpdateState::Held, "spec.update.paused".to_owned())
        }
        Permit::Held(why) => {
            let adopted = cause == Cause::Adoption;
            let reason = if adopted { Reason::AdoptedWithDrift } else { Reason::Held };
            let decision = decision
                .drift(reason, format!("{why}: {summary}"))
                .note(Note::Held { cause, why: why.clone() });
            (decision, UpdateState::Held, why)
        }
        Permit::Queued(slot) => {
            halted_by = slot.halted_by().map(str::to_owned);
            let (decision, why) = queued(snapshot, &slot, decision);
            (decision, UpdateState::Queued, why)
        }
        Permit::Settling(left) => {
            // The previous reason is kept: a new leader has no newer one yet.
            let before = snapshot.status().pending_update.as_ref().filter(|pending| {
                pending.state == UpdateState::Queued && pending.target_hash == desired.hash
            });
            halted_by = before.and_then(|pending| pending.halted_by.clone());
            let why = before
                .and_then(|pending| pending.reason.clone())
                .unwrap_or_else(|| "waits until the operator has settled as leader".to_owned());
            let decision = decision
                .drift(Reason::WaitingForSlot, &why)
                .requeue_within(left)
                .note(Note::WaitsForSlot { by: "the operator settles as leader".into() });
            (decision, UpdateState::Queued, why)
        }
        Permit::BacksOff(pause) => {
            (decision.then(backs_off(snapshot, pause)), UpdateState::Retrying, pause.to_string())
        }
    };
    let update = pending(snapshot, desired, cause, state, &why, changes);
    decision.pending(PendingUpdate { halted_by, ..update })
}

/// Reports that an update waits after failures.
fn backs_off(snapshot: &Snapshot, pause: drift::Pause) -> Decision {
    let drift::Pause { attempts, seconds } = pause;
    let requeue = Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1));
    let decision = Decision::keep(snapshot)
        .drift(Reason::BackingOff, pause.to_string())
        .note(Note::BacksOff { attempts, seconds });
    Decision { requeue, ..decision }
}

fn queued(snapshot: &Snapshot, slot: &Slot, decision: Decision) -> (Decision, String) {
    // The message does not report the progress of other nodes in the queue: each step of a fleet
    // would be a write on each node.
    let (note, why) = match slot {
        Slot::Granted | Slot::GrantedWhileDown => return (decision, String::new()),
        Slot::Taken { by } => (Note::WaitsForSlot { by: by.clone() }, next_in_chain(by)),
        Slot::InLine { limit } => {
            let why = format!(
                "waits for its turn in its chain: {limit} at a time, nodes that sign roll last"
            );
            (Note::WaitsForSlot { by: "other nodes roll first".to_owned() }, why)
        }
        Slot::Halted { by } => (Note::ChainHalted { by: by.clone() }, halted(by)),
    };
    let decision = decision.drift(Reason::WaitingForSlot, &why).note(note);
    if snapshot.is_ready() {
        return (decision, why);
    }
    // No event marks the time when it has been down long enough to roll at once.
    (decision.requeue_within(snapshot.timing.poll() * 6), why)
}

/// Why the next node of its chain waits.
pub fn next_in_chain(by: &str) -> String {
    format!("is next in its chain: {by}")
}

/// Why a node of a halted chain waits.
pub fn halted(by: &str) -> String {
    format!("the chain's rolls are halted: the roll of {by} failed")
}

fn refuse_other_approvals(snapshot: &Snapshot, desired: &Desired) -> Decision {
    let decision = Decision::keep(snapshot);
    match refused_approval(snapshot, desired) {
        None => decision,
        Some(given) => decision
            .note(Note::ApprovalRefused { given: given.to_owned(), target: desired.hash.clone() }),
    }
}

/// An approval of another target than the desired one.
fn refused_approval<'a>(snapshot: &'a Snapshot, desired: &Desired) -> Option<&'a str> {
    let approved = snapshot.approved().filter(|approved| *approved != desired.hash);
    approved.filter(|approved| !is_spent(snapshot, approved))
}

/// The differing fields as text: the first few, and the number of the rest.
fn explain(changes: &[FieldChange]) -> String {
    const SHOWN: usize = 3;
    let text = |change: &FieldChange| {
        let value = |side: &Option<String>| side.clone().unwrap_or_else(|| "(none)".to_owned());
        format!("{} {} -> {}", change.path, value(&change.from), value(&change.to))
    };
    let mut summary = changes.iter().take(SHOWN).map(text).collect::<Vec<_>>().join("; ");
    if changes.len() > SHOWN {
        let more = changes.len() - SHOWN;
        summary = format!("{summary}; and {more} more");
    }
    summary
}

/// The message of an update that starts. Image drift has the text of the Go operator, because users
/// search for it.
fn started(snapshot: &Snapshot, desired: &Desired, summary: &str) -> String {
    let status = snapshot.status();
    let current = status.current_image.as_deref().unwrap_or_default();
    let current_sidecar = status.current_sidecar_image.as_deref().unwrap_or_default();
    // Admission may have rewritten the current names; then those that were desired are compared.
    let template = status.pod_template.as_ref();
    let was_desired = template.and_then(|template| template.desired_image.as_deref());
    let sidecar_was = template.and_then(|template| template.desired_sidecar_image.as_deref());
    let seid = current != desired.image && was_desired != Some(desired.image.as_str());
    let sidecar = !current_sidecar.is_empty()
        && current_sidecar != desired.sidecar_image
        && sidecar_was != Some(desired.sidecar_image.as_str());
    match (seid, sidecar) {
        (true, true) => format!(
            "image drift detected: seid spec={} current={current}, sidecar spec={} \
             current={current_sidecar}",
            desired.image, desired.sidecar_image
        ),
        (true, false) => format!("image drift detected: spec={} current={current}", desired.image),
        (false, true) => format!(
            "sidecar image drift detected: spec={} current={current_sidecar}",
            desired.sidecar_image
        ),
        (false, false) => format!("pod template drift detected: {summary}"),
    }
}

/// Early, unless the sidecar of the old pod cannot answer.
pub(super) fn shape(snapshot: &Snapshot) -> build::Shape {
    let answers = snapshot.pod().is_some_and(|pod| pod.ip.is_some() && pod.sidecar.running)
        && !matches!(snapshot.sidecar, Sidecar::Unreachable(_));
    if answers { build::Shape::Early } else { build::Shape::Late }
}

/// A pending update; it keeps its start and its failed attempts while the target is the same.
pub(super) fn pending(
    snapshot: &Snapshot,
    desired: &Desired,
    cause: Cause,
    state: UpdateState,
    why: &str,
    changes: Vec<FieldChange>,
) -> PendingUpdate {
    let before = snapshot.status().pending_update.as_ref();
    let same = before.filter(|pending| pending.target_hash == desired.hash);
    PendingUpdate {
        target_hash: desired.hash.clone(),
        base_inputs_hash: before.map_or_else(
            || desired.inputs_hash.clone(),
            |pending| pending.base_inputs_hash.clone(),
        ),
        cause,
        state,
        reason: (!why.is_empty()).then(|| why.to_owned()),
        since: same.map_or(Time(snapshot.now), |pending| pending.since.clone()),
        changes: cut_changes(changes).0,
        attempts: same.and_then(|pending| pending.attempts),
        next_attempt_at: same.and_then(|pending| pending.next_attempt_at.clone()),
        halted_by: None,
        refused_approval: refused_approval(snapshot, desired).map(crate::tasks::bounded),
    }
}

/// Whether an approval was for a roll that has ended: it stays on the node without effect.
fn is_spent(snapshot: &Snapshot, approved: &str) -> bool {
    let status = snapshot.status();
    let rolled = status.last_update.as_ref().and_then(|last| last.to.as_deref());
    [status.pod_template_hash.as_deref(), rolled].contains(&Some(approved))
}

/// A stopped node: once its pod has ended, the StatefulSet gets the desired template, so that the
/// next start uses it.
fn decide_stopped(snapshot: &Snapshot, desired: &Desired) -> Decision {
    let decision = Decision::blocked(snapshot, Blocker::NodePaused);
    let Some(statefulset) = snapshot.own_statefulset() else { return decision };
    let has_pod = snapshot.pods().any(|pod| is_owned(pod, statefulset));
    let stopped = statefulset.replicas == Some(0) && !has_pod && !statefulset.terminating;
    if !stopped || statefulset.template_hash.as_ref() == Some(&desired.hash) {
        return decision;
    }
    let plan = build::apply_template(snapshot, desired, &desired.hash);
    decision.start(plan, "the node is stopped; its next start is prepared")
}

/// While a change waits, the StatefulSet keeps the template of the running pod, so that an evicted
/// pod comes back unchanged.
fn restore_template(snapshot: &Snapshot, desired: &Desired, decision: Decision) -> Decision {
    let observed = match snapshot.pod() {
        Some(pod) => drift::observed_hash(snapshot, desired, pod),
        None => snapshot.status().pod_template_hash.as_deref(),
    };
    let (Some(statefulset), Some(observed), Some(update)) =
        (snapshot.own_statefulset(), observed, &decision.pending_update)
    else {
        return decision;
    };
    let waits = matches!(update.state, UpdateState::Held | UpdateState::Queued);
    let longest = snapshot.timing.update_retry(update.attempts.unwrap_or(0));
    let backs_off = update
        .next_attempt_at
        .as_ref()
        .is_some_and(|until| wait_until(until.0, snapshot.now, longest).is_some());
    let applied = statefulset.template_hash.as_deref();
    let differs =
        applied.is_some_and(|hash| hash != observed && drift::same_algorithm(hash, observed));
    if waits && !backs_off && observed != desired.hash && differs && !statefulset.terminating {
        let plan = build::apply_template(snapshot, desired, observed);
        return decision.start(plan, "the update waits; an evicted pod must come back unchanged");
    }
    decision
}
