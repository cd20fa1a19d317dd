//! The planner: decides the next action for a node from a snapshot of it.
//!
//! [`plan`] maps the phase of the node and its observed state to a [`Decision`]; each case is a
//! function that returns one.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNodeSpec;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::{PlanKind, PlanPhase, TaskPlan};
use sei_api::status::{
    Cause, LastUpdate, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateOutcome, UpdateState,
};

use crate::budget;
use crate::chain::{Blocks, Upgrade};
use crate::hands_off::is_hands_off;
use crate::snapshot::{Sidecar, Snapshot};
use crate::tasks::kind_of;
use crate::view::PodView;

mod active;
mod blocker;
pub mod build;
mod decision;
pub mod drift;
mod init;
pub mod kind;
mod note;
pub(crate) mod ready;
pub mod repair;
mod running;
pub mod stall;
pub mod state_sync;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use blocker::Blocker;
pub(crate) use decision::enter;
pub use decision::{Decision, PlanMove};
pub use note::{MOVED, Note};
pub use running::{halted, next_in_chain};

/// Decides what happens next to a node.
pub fn plan(snapshot: &Snapshot) -> Decision {
    let status = snapshot.status();
    let observed = mirror(snapshot);
    if snapshot.node.metadata.deletion_timestamp.is_some() {
        return observed.note(Note::Deleting);
    }
    if is_hands_off(&snapshot.node) {
        return Decision::keep(snapshot).note(Note::HandsOff);
    }
    if let Some(workflow) = &status.adopted_workflow {
        // Its steps stop the node and delete its data: a gate that opens meanwhile starts the chain
        // process on half of it.
        let name = workflow.name.clone();
        let blocked = Decision::blocked(snapshot, Blocker::Workflow { name });
        return stall::report(snapshot, observed.then(running::leave_queue(blocked)));
    }
    let decided = match status.plan.as_ref().map(|plan| (plan.phase, plan)) {
        Some((PlanPhase::Active, plan)) => active::decide(snapshot, plan),
        Some((PlanPhase::Failed, plan)) if status.phase == Some(SeiNodePhase::Failed) => {
            init::decide_failed(snapshot, Some(plan))
        }
        Some((_, plan)) => settle(snapshot, plan),
        None => decide_at_rest(snapshot),
    };
    let mut decision = release_slot(snapshot, observed.then(decided));
    decision.conditions.extend(sidecar_verdict(snapshot, decision.phase));
    decision.conditions.extend(halt_verdict(snapshot));
    let rolls = decision.plan.started() == Some(PlanKind::NodeUpdate);
    if is_updating(snapshot) && status.plan.is_none() && !rolls {
        decision = decision.not_updating(Reason::UpdateSuperseded, "the plan was removed");
    }
    stall::report(snapshot, decision)
}

/// Decides for a node without an active plan, by its phase.
fn decide_at_rest(snapshot: &Snapshot) -> Decision {
    let stored = snapshot.status().phase;
    let phase = match stored {
        None | Some(SeiNodePhase::Pending) => init::rebuilt_phase(snapshot),
        phase => phase,
    };
    let decision = match phase {
        Some(SeiNodePhase::Running) => running::decide(snapshot),
        Some(SeiNodePhase::Failed) => init::decide_failed(snapshot, None),
        Some(SeiNodePhase::Terminating) => Decision::keep(snapshot).note(Note::Deleting),
        None | Some(SeiNodePhase::Pending | SeiNodePhase::Initializing) => {
            init::decide(snapshot, None)
        }
    };
    let rebuilt = phase.filter(|_| phase != stored);
    Decision { phase: decision.phase.or(rebuilt), ..decision }
}

/// Clears a plan that has ended, and reports its outcome.
fn settle(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    let cleared = Decision { plan: PlanMove::Clear, ..Decision::keep(snapshot) };
    if plan.phase == PlanPhase::Complete {
        settle_complete(snapshot, plan, cleared)
    } else if active::continues_late(plan) && snapshot.desired.is_ok() {
        cleared.then(active::continue_late(snapshot, plan))
    } else {
        settle_failed(snapshot, plan, cleared)
    }
}

fn settle_complete(snapshot: &Snapshot, plan: &TaskPlan, mut decision: Decision) -> Decision {
    let kind = kind_of(plan);
    if is_updating(snapshot) {
        let image = plan.target.as_ref().map(|target| format!("runs {}", target.image));
        decision = decision.not_updating(Reason::UpdateComplete, image.unwrap_or_default());
    }
    if kind == PlanKind::NodeUpdate || changed_template(snapshot, plan) {
        decision.last_update = Some(ended(snapshot, plan, UpdateOutcome::Complete, None));
    }
    let mut after = without_plan(snapshot);
    if kind == PlanKind::NodeUpdate {
        after.status.pending_update = None;
    }
    decision.note(Note::PlanComplete { kind }).then(decide_at_rest(&after))
}

/// The next plan is built only after the failure was written, so that users can see it.
fn settle_failed(snapshot: &Snapshot, plan: &TaskPlan, mut decision: Decision) -> Decision {
    let kind = kind_of(plan);
    let detail = failure_text(plan);
    if is_updating(snapshot) {
        decision = decision.not_updating(Reason::UpdateFailed, detail.clone());
    }
    if matches!(kind, PlanKind::ApplyTemplate | PlanKind::NodeUpdate)
        && let Some(pending) = decision.pending_update.take()
    {
        let (pending, message) = back_off(snapshot, pending);
        decision = decision.pending(pending).drift(Reason::BackingOff, message);
    }
    if kind == PlanKind::NodeUpdate {
        let failed = ended(snapshot, plan, UpdateOutcome::Failed, Some(detail.clone()));
        decision.last_update = Some(failed);
    }
    let requeue = Some(snapshot.timing.poll());
    Decision { requeue, ..decision.note(Note::PlanFailed { kind, detail }) }
}

/// Counts a failed attempt and sets the time of the next.
fn back_off(snapshot: &Snapshot, pending: PendingUpdate) -> (PendingUpdate, String) {
    let attempts = pending.attempts.unwrap_or(0).saturating_add(1);
    let message = format!("{attempts} failed attempts");
    let pause = snapshot.timing.update_retry(attempts);
    let pending = PendingUpdate {
        attempts: Some(attempts),
        state: UpdateState::Retrying,
        next_attempt_at: Some(Time(later(snapshot.now, pause))),
        reason: Some(message.clone()),
        ..pending
    };
    (pending, message)
}

/// Whether a plan without a roll has changed the template of the next pod: a stopped node got its
/// template. There is no other record that such a pod is ours.
fn changed_template(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let applied = plan.target.as_ref().map(|target| &target.hash);
    kind_of(plan) == PlanKind::ApplyTemplate
        && applied.is_some()
        && applied != snapshot.status().pod_template_hash.as_ref()
}

fn is_updating(snapshot: &Snapshot) -> bool {
    let conditions = &snapshot.status().conditions;
    condition::is(conditions, ConditionType::NodeUpdateInProgress, ConditionStatus::True)
}

/// The same snapshot without the plan, to decide what follows it.
fn without_plan(snapshot: &Snapshot) -> Snapshot {
    let mut after = snapshot.clone();
    after.status.plan = None;
    after.waiting = None;
    after
}

/// `now` plus a pause; `now` itself if the sum is out of range.
pub(crate) fn later(now: Timestamp, pause: Duration) -> Timestamp {
    SignedDuration::try_from(pause)
        .ok()
        .and_then(|pause| now.checked_add(pause).ok())
        .unwrap_or(now)
}

/// A stored time, or now if it is in the future: it was written by a clock that was ahead.
pub(crate) fn not_after(time: Timestamp, now: Timestamp) -> Timestamp {
    time.min(now)
}

/// How long something waits that was stored to wait until a time, with a pause of at most `longest`.
/// A longer wait was stored by a clock that was ahead, and is over.
pub(crate) fn wait_until(until: Timestamp, now: Timestamp, longest: Duration) -> Option<Duration> {
    let left = until.duration_since(now);
    (left.is_positive() && left.unsigned_abs() <= longest).then(|| left.unsigned_abs())
}

/// The conditions that only repeat what was observed.
fn mirror(snapshot: &Snapshot) -> Decision {
    let spec = &snapshot.node.spec;
    let (status, reason, message) = if spec.is_paused() {
        (ConditionStatus::True, Reason::Paused, "spec.paused is true")
    } else {
        (ConditionStatus::False, Reason::NotPaused, "")
    };
    let state_sync = state_sync::check_state_sync(spec, &snapshot.witnesses);
    let conditions = &snapshot.status().conditions;
    let unobserved = condition::find(conditions, ConditionType::PodTemplateDrift).is_none();
    let drift = decision::drift_is(ConditionStatus::Unknown, Reason::NotObserved, "");
    let mut decision = Decision::keep(snapshot)
        .condition(Verdict::new(ConditionType::Paused, status, reason, message))
        .condition(state_sync.verdict);
    decision.witnesses = state_sync.witnesses;
    decision.conditions.extend(peers_verdict(spec));
    decision.conditions.extend(workflow_verdict(snapshot.status()));
    decision.conditions.extend(unobserved.then_some(drift));
    decision
}

/// Whether every source of peers can be resolved; `None` for a node without sources.
fn peers_verdict(spec: &SeiNodeSpec) -> Option<Verdict> {
    let sources = spec.peers.as_ref().filter(|sources| !sources.is_empty())?;
    let condition = ConditionType::PeersResolved;
    let by_tags = sources.iter().filter(|source| source.ec2_tags.is_some()).count();
    Some(if by_tags == 0 {
        Verdict::new(condition, ConditionStatus::True, Reason::Resolved, "")
    } else {
        let message = format!("{by_tags} of {} sources are EC2 tags", sources.len());
        Verdict::new(condition, ConditionStatus::False, Reason::Ec2TagsNotResolved, message)
    })
}

/// Whether a workflow of the Go operator occupies the node; `None` for a node that never had one.
fn workflow_verdict(status: &SeiNodeStatus) -> Option<Verdict> {
    let condition = ConditionType::WorkflowInProgress;
    match &status.adopted_workflow {
        Some(workflow) => {
            let message = format!("workflow {} of the Go operator", workflow.name);
            Some(Verdict::new(condition, ConditionStatus::True, Reason::WorkflowRunning, message))
        }
        None => condition::is(&status.conditions, condition, ConditionStatus::True)
            .then(|| Verdict::new(condition, ConditionStatus::False, Reason::NoWorkflow, "")),
    }
}

/// The last health probe of a node that runs.
fn sidecar_verdict(snapshot: &Snapshot, phase: Option<SeiNodePhase>) -> Option<Verdict> {
    if phase.or(snapshot.status().phase) != Some(SeiNodePhase::Running) {
        return None;
    }
    let (status, reason, message) = match &snapshot.sidecar {
        Sidecar::Unknown if snapshot.node.spec.is_paused() && snapshot.pods.is_empty() => {
            (ConditionStatus::Unknown, Reason::Unreachable, "the node is stopped")
        }
        Sidecar::Unknown => return None,
        Sidecar::Ready => (ConditionStatus::True, Reason::Ready, ""),
        Sidecar::NotReady => (ConditionStatus::False, Reason::NotReady, "the gate is closed"),
        Sidecar::Unreachable(text) => {
            (ConditionStatus::Unknown, Reason::Unreachable, text.as_str())
        }
    };
    Some(Verdict::new(ConditionType::SidecarReady, status, reason, message))
}

/// Whether the node waits for an upgrade or for a block. A node that was never halted has no such
/// condition. One that was stays so until it sees a new block: a pod without an answer proves none.
fn halt_verdict(snapshot: &Snapshot) -> Option<Verdict> {
    let halted = ConditionType::Halted;
    let before = condition::find(&snapshot.status().conditions, halted);
    let is_halted = before.is_some_and(|before| before.status == ConditionStatus::True.as_str());
    let pod = snapshot.pod();
    // Between two crashes its pod is Ready for a while, and the last probe is of an earlier run.
    let runs = |pod: &&PodView| {
        let since = pod.ready_since.unwrap_or(Timestamp::UNIX_EPOCH);
        pod.ready && later(since, snapshot.timing.halt()) <= snapshot.now
    };
    if let Some(upgrade) = pod.filter(|pod| !runs(pod)).and_then(|pod| pod.upgrade.as_deref()) {
        let Upgrade { name, height } = upgrade;
        let message = format!("upgrade {name} is needed at height {height}");
        return Some(Verdict::new(halted, ConditionStatus::True, Reason::UpgradeNeeded, message));
    }
    match snapshot.blocks {
        Blocks::Stopped { height, block_time } => {
            let time = block_time.strftime("%Y-%m-%dT%H:%M:%SZ");
            let message = format!("no new block since {time}, height {height}");
            Some(Verdict::new(halted, ConditionStatus::True, Reason::NoNewBlock, message))
        }
        Blocks::Advance => {
            before.map(|_| Verdict::new(halted, ConditionStatus::False, Reason::BlocksAdvance, ""))
        }
        Blocks::Unknown => {
            let ended = before.is_some_and(|found| found.reason == Reason::UpgradeNeeded.as_str());
            (is_halted && ended && pod.is_some())
                .then(|| Verdict::new(halted, ConditionStatus::Unknown, Reason::NotObserved, ""))
        }
    }
}

/// Why a plan failed: type and error of its task.
pub fn failure_text(plan: &TaskPlan) -> String {
    match &plan.failed_task_detail {
        Some(detail) => format!("{}: {}", detail.r#type, detail.error),
        None => "unknown".to_owned(),
    }
}

/// The record of an update that has ended.
pub(crate) fn ended(
    snapshot: &Snapshot,
    plan: &TaskPlan,
    outcome: UpdateOutcome,
    detail: Option<String>,
) -> LastUpdate {
    // After the plan has recorded its new template, only its target still has the previous one.
    let from = snapshot.status().pod_template_hash.clone();
    let is_superseded = outcome == UpdateOutcome::Superseded;
    LastUpdate {
        plan_id: plan.id.clone().unwrap_or_default(),
        cause: plan.target.as_ref().map_or(Cause::Spec, |target| target.cause),
        from: plan.target.as_ref().map_or(from, |target| target.from.clone()),
        to: plan.target.as_ref().map(|target| target.hash.clone()),
        started_at: plan.started_at().map(Time),
        finished_at: Time(snapshot.now),
        outcome,
        detail,
        // A roll that had no free slot, and has not replaced its pod, leaves none.
        slot: (budget::has_slot(plan) && !(is_superseded && budget::is_provisional(plan)))
            .then_some(true),
        ready_at: None,
    }
}

/// Releases the slot of the last roll once the node has been Ready for a while. Until then the node is
/// requeued for that time, or for the deadline by which it should be Ready.
fn release_slot(snapshot: &Snapshot, decision: Decision) -> Decision {
    let status = snapshot.status();
    let plan = match &decision.plan {
        PlanMove::Start(plan) => Some(&**plan),
        PlanMove::Keep => status.plan.as_ref().filter(|plan| plan.is_active()),
        PlanMove::Clear => None,
    };
    let roll = plan.filter(|plan| kind_of(plan) == PlanKind::NodeUpdate);
    let last = decision.last_update.clone().or_else(|| status.last_update.clone());
    let after = SeiNodeStatus {
        last_update: last.clone(),
        pod_template: status.pod_template.clone(),
        ..SeiNodeStatus::default()
    };
    let deadline = snapshot.rollout.ready_deadline;
    let since = match (roll, budget::open_roll(&after)) {
        (Some(roll), _) if budget::has_slot(roll) => roll.started_at().map(|at| (at, deadline)),
        (None, Some(open)) => {
            let failed = budget::failed_attempts(decision.pending_update.as_ref()) > 0;
            let back = snapshot.pod().and_then(|pod| budget::back_since(&after, pod));
            let min_ready = snapshot.rollout.min_ready;
            let lasts = back.is_some_and(|since| budget::lasts(since, min_ready, snapshot.now));
            // A node that its user stops keeps no slot.
            if snapshot.node.spec.is_paused() || (lasts && !failed) {
                let ready_at = Some(Time(snapshot.now));
                let last_update = last.map(|last| LastUpdate { ready_at, ..last });
                return Decision { last_update, ..decision };
            }
            match back.filter(|_| !failed) {
                Some(since) => Some((since, min_ready)),
                None => Some((open.finished_at.0, deadline)),
            }
        }
        _ => None,
    };
    let left =
        since.and_then(|(since, longest)| wait_until(later(since, longest), snapshot.now, longest));
    match left {
        Some(left) => decision.requeue_within(left),
        None => decision,
    }
}
