//! Records the result of a step in the plan and in the node's status.
//!
//! The executor only marks tasks and plans: it builds no plan, clears none, and sets no condition
//! of its own.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::condition;
use sei_api::plan::{FailedTaskDetail, PlanKind, PlanPhase, PlannedTask, TaskStatus};
use sei_api::status::SeiNodeStatus;

use crate::planner::{enter, later};
use crate::request::{Outcome, Request, SidecarCall, SidecarRequest};
use crate::tasks::sidecar::attempt_id;
use crate::tasks::{Effects, Failed, Next, Waiting};
use crate::timing::Timing;

#[cfg(test)]
mod tests;

/// What comes after a step was recorded.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// The next task can be stepped at once.
    Continue,
    Waiting(Waiting),
    /// The task is run again after a pause.
    Retrying(Duration),
    Complete,
    Failed,
}

/// Records the step of the current task of the active plan in `status`.
///
/// `next` must not be a request: the caller performs requests and computes the step again.
pub fn record(
    status: &mut SeiNodeStatus,
    next: Next,
    generation: i64,
    now: Timestamp,
    timing: Timing,
) -> Progress {
    match next {
        Next::Request(_) => Progress::Continue,
        Next::Wait(waiting) => {
            if let Some(verdict) = &waiting.verdict {
                condition::set(&mut status.conditions, verdict, generation, now);
            }
            Progress::Waiting(waiting)
        }
        Next::Done(effects) => complete(status, &effects, generation, now),
        Next::Retry(detail) if may_retry(status) => retry(status, detail, now, timing),
        Next::Retry(detail) => fail(status, &Failed { detail, verdict: None }, generation, now),
        Next::TimedOut(detail) => {
            if let Some(plan) = status.plan.as_mut()
                && let Some((index, task)) = plan.current()
            {
                let id = attempt_id(plan, index, task);
                plan.abandoned.push(id);
            }
            retry(status, detail, now, timing)
        }
        Next::Cleared(id) => {
            if let Some(plan) = status.plan.as_mut() {
                plan.abandoned.retain(|abandoned| *abandoned != id);
            }
            Progress::Continue
        }
        Next::Fail(failed) => fail(status, &failed, generation, now),
    }
}

/// Records the first time that the sidecar accepted the current task.
pub fn record_submission(status: &mut SeiNodeStatus, now: Timestamp) {
    if let Some(task) = current(status) {
        task.submitted_at.get_or_insert(Time(now));
    }
}

/// Records a submission that a call proves: one that was accepted, or a record of the task, where a
/// crash came before it was written.
pub fn record_call(
    status: &mut SeiNodeStatus,
    request: &Request,
    outcome: &Outcome,
    now: Timestamp,
) {
    let Request::Sidecar(SidecarRequest { call, .. }) = request else { return };
    let is_submitted = match (call, outcome) {
        (SidecarCall::Submit { .. }, Outcome::Accepted) => true,
        (SidecarCall::Poll { id }, Outcome::Task(Some(_))) => {
            current_attempt(status).as_ref() == Some(id)
        }
        _ => false,
    };
    if is_submitted {
        record_submission(status, now);
    }
}

/// The id of the current task's attempt.
fn current_attempt(status: &SeiNodeStatus) -> Option<String> {
    let plan = status.plan.as_ref().filter(|plan| plan.is_active())?;
    let (index, task) = plan.current()?;
    Some(attempt_id(plan, index, task))
}

/// Marks a plan complete that has no task left.
pub fn finish(status: &mut SeiNodeStatus, now: Timestamp) -> Progress {
    let Some(plan) = status.plan.as_mut().filter(|plan| plan.is_active()) else {
        return Progress::Continue;
    };
    if plan.current().is_some() {
        return Progress::Continue;
    }
    plan.phase = PlanPhase::Complete;
    if let Some(phase) = plan.target_phase {
        enter(status, phase, now);
    }
    Progress::Complete
}

fn current(status: &mut SeiNodeStatus) -> Option<&mut PlannedTask> {
    let plan = status.plan.as_mut().filter(|plan| plan.is_active())?;
    plan.tasks.iter_mut().find(|task| task.status != TaskStatus::Complete)
}

fn complete(
    status: &mut SeiNodeStatus,
    effects: &Effects,
    generation: i64,
    now: Timestamp,
) -> Progress {
    let Effects { stamp, verdict, applied, statefulset, claim, signing_identity, signing_stopped } =
        effects;
    let Some(task) = current(status) else { return Progress::Continue };
    task.status = TaskStatus::Complete;
    task.error = None;
    task.not_before = None;
    task.submitted_at.get_or_insert(Time(now));
    if let (Some(plan), Some(_)) = (status.plan.as_mut(), applied) {
        plan.applied.clone_from(applied);
    }
    if let Some(stamp) = stamp {
        stamp.apply(status);
    }
    if let Some(verdict) = verdict {
        condition::set(&mut status.conditions, verdict, generation, now);
    }
    if statefulset.is_some() {
        status.stateful_set.clone_from(statefulset);
    }
    if claim.is_some() {
        status.data_claim.clone_from(claim);
    }
    if signing_identity.is_some() {
        status.signing_identity.clone_from(signing_identity);
    }
    if *signing_stopped {
        status.signing_identity = None;
    }
    finish(status, now)
}

/// Whether the current task may be run again after a failure. A plan that only opens the gate is
/// repeated for as long as it is needed: the next plan would be the same, without the pause.
fn may_retry(status: &SeiNodeStatus) -> bool {
    let Some(plan) = status.plan.as_ref() else { return false };
    let allowed =
        |task: &PlannedTask| task.retry_count.unwrap_or(0) < task.max_retries.unwrap_or(0);
    plan.kind == Some(PlanKind::MarkReady) || plan.current().is_some_and(|(_, task)| allowed(task))
}

fn retry(status: &mut SeiNodeStatus, detail: String, now: Timestamp, timing: Timing) -> Progress {
    let Some(task) = current(status) else { return Progress::Continue };
    let retries = task.retry_count.unwrap_or(0);
    task.retry_count = Some(retries.saturating_add(1));
    task.status = TaskStatus::Pending;
    task.error = Some(detail);
    task.submitted_at = None;
    let pause = timing.task_retry(retries.saturating_add(1));
    task.not_before = Some(Time(later(now, pause)));
    Progress::Retrying(pause)
}

fn fail(status: &mut SeiNodeStatus, failed: &Failed, generation: i64, now: Timestamp) -> Progress {
    if let Some(verdict) = &failed.verdict {
        condition::set(&mut status.conditions, verdict, generation, now);
    }
    let Some(plan) = status.plan.as_mut().filter(|plan| plan.is_active()) else {
        return Progress::Continue;
    };
    let Some(index) = plan.current().map(|(index, _)| index) else { return Progress::Continue };
    let task = &mut plan.tasks[index];
    task.status = TaskStatus::Failed;
    task.error = Some(failed.detail.clone());
    let detail = FailedTaskDetail {
        r#type: task.r#type.clone(),
        id: task.id.clone(),
        error: failed.detail.clone(),
        retry_count: task.retry_count.unwrap_or(0),
        max_retries: task.max_retries.unwrap_or(0),
    };
    plan.phase = PlanPhase::Failed;
    plan.failed_task_index = i32::try_from(index).ok();
    plan.failed_task_detail = Some(detail);
    if let Some(phase) = plan.failed_phase {
        enter(status, phase, now);
    }
    Progress::Failed
}
