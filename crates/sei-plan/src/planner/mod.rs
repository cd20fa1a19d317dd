//! The planner: decides the next action for a node from a snapshot of it.
//!
//! [`plan`] maps the phase of the node and its observed state to an action; each case is a
//! function. The [`Decision`] holds the complete result, with a report that also explains why
//! nothing is done.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNodeSpec;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::{PlanKind, PlanPhase, TaskPlan};
use sei_api::status::{
    Blocked, Cause, ClaimRef, LastUpdate, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateOutcome,
};

use crate::budget;
use crate::snapshot::{Sidecar, Snapshot};
use crate::tasks::{Stamp, kind_of};

mod active;
pub mod build;
pub mod drift;
mod init;
mod note;
pub mod repair;
mod running;
pub mod stall;
pub mod state_sync;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use note::Note;
pub use running::halted;

/// The next action for a node, and the changes to its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub plan: PlanMove,
    pub phase: Option<SeiNodePhase>,
    pub conditions: Vec<Verdict>,
    /// The pending update that the status records from now on.
    pub pending_update: Option<PendingUpdate>,
    pub stamp: Option<Stamp>,
    pub last_update: Option<LastUpdate>,
    pub blocked: Option<Blocked>,
    /// The claim that counts as the node's from now on.
    pub claim: Option<ClaimRef>,
    pub witnesses: Option<Vec<String>>,
    /// The uid of a pod whose template the server must compare before a decision is possible.
    pub compare: Option<String>,
    /// A slot of the chain's budget must be requested before a decision is possible.
    pub asks_slot: bool,
    /// What is done and why, or why nothing is done.
    pub report: Vec<Note>,
    /// When to reconcile again if no event arrives.
    pub requeue: Option<Duration>,
}

/// The change to the stored plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PlanMove {
    #[default]
    Keep,
    Clear,
    /// Stored now, executed from the next pass on.
    Start(Box<TaskPlan>),
}

/// Decides what happens next to a node.
pub fn plan(snapshot: &Snapshot) -> Decision {
    let status = snapshot.status();
    let mut decision = Decision {
        pending_update: status.pending_update.clone(),
        requeue: Some(snapshot.timing.resync()),
        ..Decision::default()
    };
    mirror(snapshot, &mut decision);
    if snapshot.node.metadata.deletion_timestamp.is_some() {
        decision.report.push(Note::Deleting);
        return decision;
    }
    match status.plan.as_ref().map(|plan| (plan.phase, plan)) {
        Some((PlanPhase::Active, plan)) => active::decide(snapshot, plan, &mut decision),
        Some((PlanPhase::Failed, plan)) if status.phase == Some(SeiNodePhase::Failed) => {
            init::decide_failed(snapshot, Some(plan), &mut decision);
        }
        Some((_, plan)) => settle(snapshot, plan, &mut decision),
        None => decide_at_rest(snapshot, &mut decision),
    }
    release_slot(snapshot, &mut decision);
    mirror_sidecar(snapshot, &mut decision);
    stall::report(snapshot, &mut decision);
    decision
}

/// Decides for a node without an active plan, by its phase.
fn decide_at_rest(snapshot: &Snapshot, decision: &mut Decision) {
    let phase = match snapshot.status().phase {
        None | Some(SeiNodePhase::Pending) => init::rebuilt_phase(snapshot),
        phase => phase,
    };
    if phase != snapshot.status().phase {
        decision.phase = phase;
    }
    match phase {
        Some(SeiNodePhase::Running) => running::decide(snapshot, decision),
        Some(SeiNodePhase::Failed) => init::decide_failed(snapshot, None, decision),
        Some(SeiNodePhase::Terminating) => decision.report.push(Note::Deleting),
        None | Some(SeiNodePhase::Pending | SeiNodePhase::Initializing) => {
            init::decide(snapshot, None, decision);
        }
    }
}

/// Clears a plan that has ended, and reports its outcome. After a failure the next plan is built
/// only after the failure was written, so that users can see it.
fn settle(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    decision.plan = PlanMove::Clear;
    let kind = kind_of(plan);
    if plan.phase == PlanPhase::Complete {
        if is_updating(snapshot) {
            set_update(
                decision,
                ConditionStatus::False,
                Reason::UpdateComplete,
                completed_message(plan),
            );
        }
        if kind == PlanKind::NodeUpdate || changed_template(snapshot, plan) {
            decision.last_update = Some(ended(snapshot, plan, UpdateOutcome::Complete, None));
        }
        decision.report.push(Note::PlanComplete { kind });
        let mut after = without_plan(snapshot);
        if kind == PlanKind::NodeUpdate {
            decision.pending_update = None;
            after.status.pending_update = None;
        }
        decide_at_rest(&after, decision);
        return;
    }
    if active::continues_late(plan) && snapshot.desired.is_ok() {
        active::continue_late(snapshot, plan, decision);
        return;
    }
    let detail = failure_text(plan);
    if is_updating(snapshot) {
        set_update(decision, ConditionStatus::False, Reason::UpdateFailed, detail.clone());
    }
    if kind == PlanKind::ApplyTemplate {
        back_off(snapshot, decision);
    }
    if kind == PlanKind::NodeUpdate {
        back_off(snapshot, decision);
        decision.last_update =
            Some(ended(snapshot, plan, UpdateOutcome::Failed, Some(detail.clone())));
    }
    decision.report.push(Note::PlanFailed { kind, detail });
    decision.requeue = Some(snapshot.timing.poll());
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

/// Counts a failed attempt and sets the time of the next.
fn back_off(snapshot: &Snapshot, decision: &mut Decision) {
    if let Some(pending) = decision.pending_update.as_mut() {
        let attempts = pending.attempts.unwrap_or(0).saturating_add(1);
        pending.attempts = Some(attempts);
        pending.state = sei_api::status::UpdateState::Retrying;
        let pause = snapshot.timing.update_retry(attempts);
        pending.next_attempt_at = Some(Time(later(snapshot.now, pause)));
        let message = format!("{attempts} failed attempts");
        pending.reason = Some(message.clone());
        set_drift(decision, ConditionStatus::True, Reason::BackingOff, message);
    }
}

/// `now` plus a pause; `now` itself if the sum is out of range.
pub(crate) fn later(now: Timestamp, pause: Duration) -> Timestamp {
    SignedDuration::try_from(pause)
        .ok()
        .and_then(|pause| now.checked_add(pause).ok())
        .unwrap_or(now)
}

/// Sets the conditions that only repeat what was observed.
fn mirror(snapshot: &Snapshot, decision: &mut Decision) {
    let paused = snapshot.node.spec.is_paused();
    decision.conditions.push(if paused {
        Verdict::new(
            ConditionType::Paused,
            ConditionStatus::True,
            Reason::Paused,
            "spec.paused is true",
        )
    } else {
        Verdict::new(ConditionType::Paused, ConditionStatus::False, Reason::NotPaused, "")
    });
    let state_sync = state_sync::check_state_sync(&snapshot.node.spec, &snapshot.witnesses);
    decision.witnesses = state_sync.witnesses;
    decision.conditions.push(state_sync.verdict);
    decision.conditions.extend(peers_verdict(&snapshot.node.spec));
    let conditions = &snapshot.status().conditions;
    if condition::find(conditions, ConditionType::PodTemplateDrift).is_none() {
        set_drift(decision, ConditionStatus::Unknown, Reason::NotObserved, "");
    }
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

/// The last health probe of a node that runs.
fn mirror_sidecar(snapshot: &Snapshot, decision: &mut Decision) {
    if decision.phase.or(snapshot.status().phase) != Some(SeiNodePhase::Running) {
        return;
    }
    let (status, reason, message) = match &snapshot.sidecar {
        Sidecar::Unknown => return,
        Sidecar::Ready => (ConditionStatus::True, Reason::Ready, ""),
        Sidecar::NotReady => (ConditionStatus::False, Reason::NotReady, "the gate is closed"),
        Sidecar::Unreachable(text) => {
            (ConditionStatus::Unknown, Reason::Unreachable, text.as_str())
        }
    };
    let condition = ConditionType::SidecarReady;
    decision.conditions.push(Verdict::new(condition, status, reason, message));
}

pub(crate) fn set_update(
    decision: &mut Decision,
    status: ConditionStatus,
    reason: Reason,
    message: String,
) {
    let condition = ConditionType::NodeUpdateInProgress;
    decision.conditions.push(Verdict::new(condition, status, reason, message));
}

pub(crate) fn set_drift(
    decision: &mut Decision,
    status: ConditionStatus,
    reason: Reason,
    message: impl Into<String>,
) {
    let condition = ConditionType::PodTemplateDrift;
    decision.conditions.push(Verdict::new(condition, status, reason, message));
}

fn completed_message(plan: &TaskPlan) -> String {
    plan.target.as_ref().map_or_else(String::new, |target| format!("runs {}", target.image))
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
    LastUpdate {
        plan_id: plan.id.clone().unwrap_or_default(),
        cause: plan.target.as_ref().map_or(Cause::Spec, |target| target.cause),
        from: plan.target.as_ref().map_or(from, |target| target.from.clone()),
        to: plan.target.as_ref().map(|target| target.hash.clone()),
        started_at: plan.started_at().map(Time),
        finished_at: Time(snapshot.now),
        outcome,
        detail,
        slot: plan.target.as_ref().and_then(|target| target.slot),
        ready_at: None,
    }
}

/// Releases the slot of the last roll once the node is Ready. Until then the node is requeued for
/// the deadline by which it should be Ready.
fn release_slot(snapshot: &Snapshot, decision: &mut Decision) {
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
    let since = match (roll, budget::open_roll(&after)) {
        (Some(roll), _) if budget::has_slot(roll) => roll.started_at(),
        (None, Some(open)) => {
            let failed = budget::failed_attempts(decision.pending_update.as_ref()) > 0;
            let back = snapshot.pod().is_some_and(|pod| budget::is_back(&after, pod));
            // A node that its user stops keeps no slot.
            if snapshot.node.spec.is_paused() || (back && !failed) {
                let ready_at = Some(Time(snapshot.now));
                decision.last_update = last.map(|last| LastUpdate { ready_at, ..last });
                return;
            }
            Some(open.finished_at.0)
        }
        _ => None,
    };
    let due = since.map(|since| later(since, snapshot.rollout.ready_deadline));
    if let Some(due) = due.filter(|due| *due > snapshot.now) {
        let left = due.duration_since(snapshot.now).unsigned_abs();
        decision.requeue_within(left);
    }
}

impl Decision {
    /// Requeues the node after this time at the latest.
    fn requeue_within(&mut self, time: Duration) {
        self.requeue = Some(self.requeue.map_or(time, |requeue| requeue.min(time)));
    }

    /// The status as this decision leaves it.
    pub fn apply(&self, status: &mut SeiNodeStatus, generation: i64, now: Timestamp) {
        match &self.plan {
            PlanMove::Keep => {}
            PlanMove::Clear => status.plan = None,
            PlanMove::Start(plan) => status.plan = Some((**plan).clone()),
        }
        if let Some(phase) = self.phase {
            enter(status, phase, now);
        }
        for verdict in &self.conditions {
            condition::set(&mut status.conditions, verdict, generation, now);
        }
        status.pending_update.clone_from(&self.pending_update);
        if let Some(stamp) = &self.stamp {
            stamp.apply(status);
        }
        if self.last_update.is_some() {
            status.last_update.clone_from(&self.last_update);
        }
        status.blocked.clone_from(&self.blocked);
        if self.claim.is_some() {
            status.data_claim.clone_from(&self.claim);
        }
        status.resolved_state_syncers.clone_from(&self.witnesses);
        status.observed_generation = Some(status.observed_generation.unwrap_or(0).max(generation));
    }
}

impl Stamp {
    /// Records what was observed running. These fields change nowhere else.
    pub fn apply(&self, status: &mut SeiNodeStatus) {
        status.current_image = Some(self.image.clone());
        status.current_sidecar_image = Some(self.sidecar_image.clone());
        status.pod_template_hash = Some(self.hash.clone());
        status.pod_template = Some(self.template.clone());
    }
}

/// Moves a node to a phase; the time moves only if the phase does.
pub(crate) fn enter(status: &mut SeiNodeStatus, phase: SeiNodePhase, now: Timestamp) {
    if status.phase != Some(phase) {
        status.phase = Some(phase);
        status.phase_transition_time = Some(Time(now));
    }
}
