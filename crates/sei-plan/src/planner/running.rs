//! A running node without a plan.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::condition::{ConditionStatus, Reason};
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{Cause, FieldChange, PendingUpdate, UpdateState};

use super::drift::{self, Difference, Drift, Permit};
use super::{Decision, Note, PlanMove, build, init, set_drift, set_update, stall};
use crate::desired::Desired;
use crate::diff::cut_changes;
use crate::snapshot::{Sidecar, Slot, Snapshot};
use crate::view::is_owned;

/// Decides for a running node: update it, open its gate, restore its template, or do nothing.
pub(super) fn decide(snapshot: &Snapshot, decision: &mut Decision) {
    if let Some(note) = stall::volume_lost(snapshot) {
        decision.report.push(note);
        init::decide_lost_volume(snapshot, decision);
        dequeue(decision);
        return;
    }
    match &snapshot.desired {
        Err(why) => decision.report.push(Note::Refused { why: why.clone() }),
        Ok(desired) => match stall::changed_identity(snapshot, desired) {
            Some(why) => decision.report.push(Note::Refused { why }),
            None if stall::volume_terminating(snapshot) => {
                decision.report.push(Note::VolumeTerminating);
            }
            None if snapshot.has_foreign_statefulset() => {
                decision.report.push(Note::Refused { why: FOREIGN_STATEFULSET.to_owned() });
            }
            None if waits_for_a_key(snapshot) => {
                let with = snapshot.signing_conflict.clone().unwrap_or_default();
                decision.report.push(Note::SigningKeyConflict { with });
                // The end of the conflict triggers no event for this node.
                decision.requeue_within(snapshot.timing.poll() * 6);
            }
            None if snapshot.node.spec.is_paused() => {
                decide_stopped(snapshot, desired, decision);
            }
            None => decide_drift(snapshot, desired, decision),
        },
    }
    dequeue(decision);
    if stall::volume_unknown(snapshot) {
        decision.requeue_within(snapshot.timing.poll() * 6);
    }
    let idle = !matches!(decision.plan, PlanMove::Start(_));
    // Nothing above delays the gate: an evicted node must serve again.
    let stopped = snapshot.node.spec.is_paused();
    if idle && !stopped && snapshot.sidecar == Sidecar::NotReady && snapshot.pod().is_some() {
        let plan = build::mark_ready(snapshot);
        start(decision, plan, "the gate is closed");
    }
    let idle = !matches!(decision.plan, PlanMove::Start(_));
    if idle && let Ok(desired) = &snapshot.desired {
        restore_template(snapshot, desired, decision);
    }
}

/// Removes a node that cannot be updated from the queue of its chain: it must not block others.
fn dequeue(decision: &mut Decision) {
    let why = decision.report.iter().find_map(|note| match note {
        Note::Refused { .. }
        | Note::VolumeTerminating
        | Note::VolumeLost { .. }
        | Note::Comparing
        | Note::SigningKeyConflict { .. }
        | Note::NodePaused => Some(note.to_string()),
        _ => None,
    });
    if let (Some(why), Some(pending)) = (why, decision.pending_update.as_mut())
        && pending.state == UpdateState::Queued
    {
        pending.state = UpdateState::Held;
        pending.reason = Some(why.clone());
        set_drift(decision, ConditionStatus::True, Reason::Held, why);
    }
}

/// Why a node with a foreign StatefulSet is not reconciled.
pub(super) const FOREIGN_STATEFULSET: &str =
    "a StatefulSet of this name is controlled by another object, or by none";

/// Whether another node has the key, and this node does not sign with it yet: its template does not
/// mount the key, or it is scaled to zero.
fn waits_for_a_key(snapshot: &Snapshot) -> bool {
    let statefulset = snapshot.own_statefulset();
    let mounted = statefulset.and_then(|found| found.identity().signing_secret);
    let desired = snapshot.node.spec.signing_secret();
    let takes = desired.is_some() && mounted.as_deref() != desired;
    let stopped = statefulset.is_none_or(|found| found.replicas == Some(0));
    let paused = snapshot.node.spec.is_paused();
    snapshot.signing_conflict.is_some() && (takes || (stopped && !paused))
}

/// Compares the pod with the desired template and acts on the difference.
fn decide_drift(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) {
    match drift::classify(snapshot, desired) {
        Drift::NoPod | Drift::NotRunning => decision.report.push(Note::WaitsForPod),
        Drift::Unknown => {
            decision.compare = snapshot.pod().map(|pod| pod.uid.clone());
            decision.report.push(Note::Comparing);
        }
        Drift::Record(stamp) => {
            decision.report.push(Note::Adopted { hash: stamp.hash.clone() });
            decision.stamp = Some(*stamp);
            in_sync(snapshot, desired, decision);
        }
        Drift::InSync => match unfinished(snapshot, desired) {
            Some(difference) => differs(snapshot, desired, &difference, decision),
            None => in_sync(snapshot, desired, decision),
        },
        Drift::Reapply if waits_after_failure(snapshot, desired, decision) => {}
        Drift::Reapply => {
            // The apply comes first: until then an evicted pod gets an obsolete template.
            let late = build::Shape::Late;
            let plan = build::node_update(snapshot, desired, Cause::Spec, late, false);
            decision.pending_update = Some(pending(
                snapshot,
                desired,
                Cause::Spec,
                UpdateState::Rolling,
                "restores the template of the running pod; no pod is restarted",
                Vec::new(),
            ));
            set_drift(
                decision,
                ConditionStatus::True,
                Reason::Rolling,
                "restores the running template",
            );
            set_update(
                decision,
                ConditionStatus::True,
                Reason::UpdateStarted,
                "restores the template of the running pod; no pod is restarted".to_owned(),
            );
            start(decision, plan, "the running template is desired, but another one is applied");
        }
        Drift::Differs(difference) => differs(snapshot, desired, &difference, decision),
    }
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

fn in_sync(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) {
    let settings: Vec<_> = drift::config_changes(snapshot, desired)
        .into_iter()
        // Peers change often; the next roll for another reason applies them.
        .filter(|name| name != "config.peers")
        .collect();
    decision.pending_update = (!settings.is_empty()).then(|| {
        let changes = settings
            .iter()
            .map(|path| FieldChange { path: path.clone(), ..FieldChange::default() })
            .collect();
        pending(
            snapshot,
            desired,
            Cause::Spec,
            UpdateState::Held,
            "the next roll applies addresses; overrides apply when a node is initialised",
            changes,
        )
    });
    set_drift(decision, ConditionStatus::False, Reason::InSync, "");
    let moved = snapshot.pod().zip(snapshot.own_statefulset()).and_then(|(pod, statefulset)| {
        let (own, newest) = (pod.revision.clone()?, statefulset.observed_revision()?.to_owned());
        (own != newest).then_some(Note::RevisionMovedExternally { pod: own, statefulset: newest })
    });
    decision.report.push(moved.unwrap_or(Note::InSync));
    if !settings.is_empty() {
        decision.report.push(Note::ConfigWaitsForRoll { settings });
    }
}

/// The pod differs: rolls it, or reports why it waits.
fn differs(
    snapshot: &Snapshot,
    desired: &Desired,
    difference: &Difference,
    decision: &mut Decision,
) {
    refuse_other_approvals(snapshot, desired, decision);
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
    let mut halted_by = None;
    let (state, why) = match drift::permit(snapshot, desired, difference) {
        Permit::Go { takes_slot } => {
            set_drift(decision, ConditionStatus::True, Reason::Rolling, &summary);
            set_update(
                decision,
                ConditionStatus::True,
                Reason::UpdateStarted,
                started(snapshot, desired, &summary),
            );
            let shape = shape(snapshot);
            let plan = build::node_update(snapshot, desired, cause, shape, takes_slot);
            start(decision, plan, &summary);
            (UpdateState::Rolling, String::new())
        }
        Permit::AsksSlot => {
            decision.asks_slot = true;
            (UpdateState::Queued, "requests a slot of its chain".to_owned())
        }
        Permit::Paused => {
            set_drift(decision, ConditionStatus::True, Reason::Paused, &summary);
            decision.report.push(Note::UpdatesPaused);
            (UpdateState::Held, "spec.update.paused".to_owned())
        }
        Permit::Held(why) => {
            let adopted = cause == Cause::Adoption;
            let reason = if adopted { Reason::AdoptedWithDrift } else { Reason::Held };
            set_drift(decision, ConditionStatus::True, reason, format!("{why}: {summary}"));
            decision.report.push(Note::Held { cause, why: why.clone() });
            (UpdateState::Held, why)
        }
        Permit::Queued(slot) => {
            if !snapshot.is_ready() {
                // No event marks the time when it has been down long enough to roll at once.
                decision.requeue_within(snapshot.timing.poll() * 6);
            }
            halted_by = slot.halted_by().map(str::to_owned);
            (UpdateState::Queued, queued(&slot, decision))
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
            set_drift(decision, ConditionStatus::True, Reason::WaitingForSlot, &why);
            decision.requeue_within(left);
            decision
                .report
                .push(Note::WaitsForSlot { by: "the operator settles as leader".into() });
            (UpdateState::Queued, why)
        }
        Permit::BacksOff { attempts, seconds } => {
            (UpdateState::Retrying, backs_off(attempts, seconds, decision))
        }
    };
    let update = pending(snapshot, desired, cause, state, &why, changes);
    decision.pending_update = Some(PendingUpdate { halted_by, ..update });
}

/// Reports that an update waits after failures. The message has no remaining seconds: they would
/// change with every reconcile.
fn backs_off(attempts: i32, seconds: i64, decision: &mut Decision) -> String {
    let why = format!("{attempts} failed attempts");
    set_drift(decision, ConditionStatus::True, Reason::BackingOff, &why);
    decision.report.push(Note::BacksOff { attempts, seconds });
    decision.requeue = Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0) + 1));
    why
}

/// Whether restoring a template failed recently and must not be retried yet.
fn waits_after_failure(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) -> bool {
    let Some(Permit::BacksOff { attempts, seconds }) = drift::back_off(snapshot, desired) else {
        return false;
    };
    backs_off(attempts, seconds, decision);
    true
}

fn queued(slot: &Slot, decision: &mut Decision) -> String {
    // The message does not report the progress of other nodes in the queue: each step of a fleet
    // would be a write on each node.
    let (note, why) = match slot {
        Slot::Granted => return String::new(),
        Slot::Taken { by } => {
            (Note::WaitsForSlot { by: by.clone() }, format!("is next in its chain: {by}"))
        }
        Slot::InLine { limit } => {
            let why = format!(
                "waits for its turn in its chain: {limit} at a time, nodes that sign roll last"
            );
            (Note::WaitsForSlot { by: "other nodes roll first".to_owned() }, why)
        }
        Slot::Halted { by } => (Note::ChainHalted { by: by.clone() }, halted(by)),
    };
    set_drift(decision, ConditionStatus::True, Reason::WaitingForSlot, &why);
    decision.report.push(note);
    why
}

/// Why a node of a halted chain waits.
pub fn halted(by: &str) -> String {
    format!("the chain's rolls are halted: the roll of {by} failed")
}

fn refuse_other_approvals(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) {
    if let Some(approved) = snapshot.approved()
        && approved != desired.hash
        && !is_spent(snapshot, approved)
    {
        decision.report.push(Note::ApprovalRefused {
            given: approved.to_owned(),
            target: desired.hash.clone(),
        });
    }
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
    let seid = current != desired.image;
    let sidecar = !current_sidecar.is_empty() && current_sidecar != desired.sidecar_image;
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
        refused_approval: snapshot
            .approved()
            .filter(|approved| *approved != desired.hash && !is_spent(snapshot, approved))
            .map(crate::tasks::bounded),
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
fn decide_stopped(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) {
    decision.report.push(Note::NodePaused);
    let Some(statefulset) = snapshot.own_statefulset() else { return };
    let has_pod = snapshot.pods().any(|pod| is_owned(pod, statefulset));
    let stopped = statefulset.replicas == Some(0) && !has_pod && !statefulset.terminating;
    if stopped && statefulset.template_hash.as_ref() != Some(&desired.hash) {
        let plan = build::apply_template(snapshot, desired, &desired.hash);
        start(decision, plan, "the node is stopped; its next start is prepared");
    }
}

/// While a change waits, the StatefulSet keeps the template of the running pod, so that an evicted
/// pod comes back unchanged.
fn restore_template(snapshot: &Snapshot, desired: &Desired, decision: &mut Decision) {
    let waits = decision
        .pending_update
        .as_ref()
        .is_some_and(|update| matches!(update.state, UpdateState::Held | UpdateState::Queued));
    let Some(statefulset) = snapshot.own_statefulset() else { return };
    let observed = match snapshot.pod() {
        Some(pod) => drift::observed_hash(snapshot, desired, pod),
        None => snapshot.status().pod_template_hash.as_deref(),
    };
    let Some(observed) = observed else { return };
    let applied = statefulset.template_hash.as_deref();
    let differs =
        applied.is_some_and(|hash| hash != observed && drift::same_algorithm(hash, observed));
    let backs_off = decision
        .pending_update
        .as_ref()
        .and_then(|update| update.next_attempt_at.as_ref())
        .is_some_and(|until| until.0 > snapshot.now);
    if waits && !backs_off && observed != desired.hash && differs && !statefulset.terminating {
        let observed = observed.to_owned();
        let plan = build::apply_template(snapshot, desired, &observed);
        start(decision, plan, "the update waits; an evicted pod must come back unchanged");
    }
}

/// Starts a plan: stored now, executed from the next pass on.
pub(super) fn start(decision: &mut Decision, plan: TaskPlan, why: &str) {
    let kind = plan.kind.unwrap_or(PlanKind::NodeUpdate);
    decision.report.push(Note::Starts { kind, why: why.to_owned() });
    decision.plan = PlanMove::Start(Box::new(plan));
    decision.requeue = Some(Duration::ZERO);
}
