//! What a node does, why, and what it waits for, in one typed value.
//!
//! The operator writes all of it to the node's status. This module reads that status and chooses
//! the most important fact, so that every program that shows nodes shows the same.

use std::fmt;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sei_api::SeiNode;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, find, is};
use sei_api::plan::{PlanKind, PlanPhase, TaskPlan};
use sei_api::status::{Cause, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateState};

use crate::hands_off;
use crate::planner::failure_text;
use crate::tasks::kind_of;

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    pub what: What,
    /// The current task of the active plan. Not part of `what`: a stalled node has one too.
    pub task: Option<TaskPosition>,
    /// The explanation, as the operator wrote it; empty if `what` needs none.
    pub why: String,
    /// The event that lets the node continue; `None` if it waits for nothing.
    pub waits_for: Option<String>,
    /// When this state began, as far as it is known.
    pub since: Option<Timestamp>,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The user keeps the operator from changing anything.
    HandsOff,
    Deleting,
    /// A blocker lasts longer than its deadline.
    Stalled {
        reason: String,
    },
    /// The node or its last plan has failed.
    Failed,
    Initializing,
    Updating {
        cause: Cause,
    },
    /// A plan of one task repairs the node without replacing its pod.
    Repairing,
    /// The pod differs and is not replaced before an action of the user.
    Held {
        by: Hold,
    },
    Waiting {
        on: Wait,
    },
    /// `spec.paused` keeps the node at zero replicas.
    Stopped,
    /// The node runs what it should and sees no new block, or needs the image of an upgrade.
    Halted {
        reason: String,
    },
    InSync,
}

/// What holds an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The update needs an approval.
    Approval,
    /// `spec.update.paused`.
    Pause,
}

/// The kind of event that a node waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wait {
    FirstReconcile,
    FirstPlan,
    StateSync,
    /// The operator has not compared the pod with the desired template.
    Comparison,
    /// A slot of its chain's budget.
    Turn,
    /// The next attempt at a failed update.
    Retry,
    /// A blocker whose deadline has not passed.
    Blocker {
        reason: String,
    },
}

/// A task and its position in the plan. Displays as `replace-pod 2/3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskPosition {
    pub name: String,
    /// Counted from 1.
    pub number: usize,
    pub count: usize,
}

impl fmt::Display for TaskPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.name, self.number, self.count)
    }
}

/// Summarizes the status of a node.
pub fn summarize(node: &SeiNode, now: Timestamp) -> Summary {
    let empty = SeiNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&empty);
    let what = what(node, status);
    let waits_for = waits_for(&what, node, status, now);
    let since = since(&what, node, status);
    Summary { what, task: current_task(status), why: why(status), waits_for, since }
}

/// Whether only settings outside of the template are pending: they cause no roll.
pub fn is_settings_only(status: &SeiNodeStatus) -> bool {
    let pending = status.pending_update.as_ref();
    let has_only_settings = pending.is_some_and(|pending| {
        !pending.changes.is_empty()
            && pending.changes.iter().all(|change| change.path.starts_with("config."))
    });
    has_only_settings
        && is(&status.conditions, ConditionType::PodTemplateDrift, ConditionStatus::False)
}

/// What holds the pending update, if it is held and would roll.
pub fn held_by(status: &SeiNodeStatus) -> Option<Hold> {
    let pending = status.pending_update.as_ref()?;
    if pending.state != UpdateState::Held || is_settings_only(status) {
        return None;
    }
    let is_paused = find(&status.conditions, ConditionType::PodTemplateDrift)
        .is_some_and(|condition| condition.reason == Reason::Paused.as_str());
    Some(if is_paused { Hold::Pause } else { Hold::Approval })
}

fn what(node: &SeiNode, status: &SeiNodeStatus) -> What {
    if hands_off::is_reported(status) {
        return What::HandsOff;
    }
    if node.metadata.deletion_timestamp.is_some() || status.phase == Some(SeiNodePhase::Terminating)
    {
        return What::Deleting;
    }
    if let Some(stalled) = condition(status, ConditionType::Stalled, ConditionStatus::True) {
        return What::Stalled { reason: stalled.reason.clone() };
    }
    if status.phase == Some(SeiNodePhase::Failed) {
        return What::Failed;
    }
    if let Some(plan) = active_plan(status) {
        return what_of_plan(plan, status);
    }
    if let Some(pending) = status.pending_update.as_ref().filter(|_| !is_settings_only(status)) {
        return what_of_update(pending, status);
    }
    if status.plan.as_ref().is_some_and(|plan| plan.phase == PlanPhase::Failed) {
        return What::Failed;
    }
    if is(&status.conditions, ConditionType::Paused, ConditionStatus::True) {
        return What::Stopped;
    }
    if let Some(blocked) = &status.blocked {
        return What::Waiting { on: Wait::Blocker { reason: blocked.reason.clone() } };
    }
    let lacks_witnesses = find(&status.conditions, ConditionType::StateSyncReady)
        .is_some_and(|condition| condition.reason == Reason::NoSyncersConfigured.as_str());
    let is_in_sync =
        is(&status.conditions, ConditionType::PodTemplateDrift, ConditionStatus::False);
    if let Some(halted) = halted(status).filter(|_| is_in_sync) {
        return What::Halted { reason: halted.reason.clone() };
    }
    match status.phase {
        None => What::Waiting { on: Wait::FirstReconcile },
        Some(SeiNodePhase::Pending) if lacks_witnesses => What::Waiting { on: Wait::StateSync },
        Some(SeiNodePhase::Pending) => What::Waiting { on: Wait::FirstPlan },
        Some(SeiNodePhase::Initializing) => What::Initializing,
        Some(SeiNodePhase::Running) if !is_in_sync => What::Waiting { on: Wait::Comparison },
        Some(SeiNodePhase::Running) => What::InSync,
        Some(SeiNodePhase::Failed) => What::Failed,
        Some(SeiNodePhase::Terminating) => What::Deleting,
    }
}

fn what_of_plan(plan: &TaskPlan, status: &SeiNodeStatus) -> What {
    match kind_of(plan) {
        PlanKind::Init => What::Initializing,
        PlanKind::NodeUpdate => {
            let pending = status.pending_update.as_ref().map(|pending| pending.cause);
            let target = plan.target.as_ref().map(|target| target.cause);
            // A plan of the Go operator has no target, and that operator rolls for the spec only.
            What::Updating { cause: target.or(pending).unwrap_or(Cause::Spec) }
        }
        PlanKind::MarkReady | PlanKind::ApplyTemplate => What::Repairing,
    }
}

fn what_of_update(pending: &PendingUpdate, status: &SeiNodeStatus) -> What {
    match pending.state {
        UpdateState::Held => What::Held { by: held_by(status).unwrap_or(Hold::Approval) },
        UpdateState::Queued => What::Waiting { on: Wait::Turn },
        UpdateState::Rolling => What::Updating { cause: pending.cause },
        UpdateState::Retrying => What::Waiting { on: Wait::Retry },
    }
}

/// The condition of a node that waits for an upgrade or a block.
fn halted(status: &SeiNodeStatus) -> Option<&Condition> {
    condition(status, ConditionType::Halted, ConditionStatus::True)
        .filter(|_| status.phase == Some(SeiNodePhase::Running))
}

/// The fact that explains most of the state of a node.
fn why(status: &SeiNodeStatus) -> String {
    let text = |condition: &Condition| format!("{}: {}", condition.reason, condition.message);
    if hands_off::is_reported(status) {
        let ready = find(&status.conditions, ConditionType::Ready);
        return ready.map(|ready| ready.message.clone()).unwrap_or_default();
    }
    // It explains why the pod crashes.
    let upgrade = Reason::UpgradeNeeded.as_str();
    if let Some(halted) = halted(status).filter(|halted| halted.reason == upgrade) {
        return text(halted);
    }
    if let Some(stalled) = condition(status, ConditionType::Stalled, ConditionStatus::True) {
        return text(stalled);
    }
    if let Some(blocked) = &status.blocked {
        return blocked.message.clone();
    }
    if let Some(pending) = &status.pending_update {
        let updating =
            condition(status, ConditionType::NodeUpdateInProgress, ConditionStatus::True);
        let message = || updating.map(|condition| condition.message.clone());
        return pending.reason.clone().or_else(message).unwrap_or_default();
    }
    if let Some(plan) = &status.plan {
        let is_failed = plan.phase == PlanPhase::Failed;
        return if is_failed { failure_text(plan) } else { String::new() };
    }
    if let Some(paused) = condition(status, ConditionType::Paused, ConditionStatus::True) {
        return paused.message.clone();
    }
    if let Some(halted) = halted(status) {
        return text(halted);
    }
    let state_sync = condition(status, ConditionType::StateSyncReady, ConditionStatus::False);
    match (status.phase, state_sync) {
        (Some(SeiNodePhase::Pending), Some(condition)) => condition.message.clone(),
        _ => String::new(),
    }
}

/// When the state began that `what` and `why` describe.
fn since(what: &What, node: &SeiNode, status: &SeiNodeStatus) -> Option<Timestamp> {
    let began = |kind, value| {
        condition(status, kind, value).map(|condition| condition.last_transition_time.0)
    };
    let phase = status.phase_transition_time.as_ref().map(|time| time.0);
    let pending = status.pending_update.as_ref().map(|pending| pending.since.0);
    let plan = status.plan.as_ref().and_then(TaskPlan::started_at);
    let update_ended = || began(ConditionType::NodeUpdateInProgress, ConditionStatus::False);
    match what {
        // Ready has the time of its status, not of its reason.
        What::HandsOff => None,
        What::Deleting => node.metadata.deletion_timestamp.as_ref().map(|time| time.0),
        What::Stalled { .. } => began(ConditionType::Stalled, ConditionStatus::True),
        What::Failed if status.phase == Some(SeiNodePhase::Failed) => phase,
        What::Failed => update_ended().or(plan),
        _ if status.blocked.is_some() => status.blocked.as_ref().map(|blocked| blocked.since.0),
        What::Initializing | What::Updating { .. } | What::Repairing => plan.or(pending).or(phase),
        What::Held { .. } | What::Waiting { on: Wait::Turn } => pending,
        What::Waiting { on: Wait::Retry } => update_ended().max(pending),
        What::Stopped => began(ConditionType::Paused, ConditionStatus::True),
        What::Halted { .. } => began(ConditionType::Halted, ConditionStatus::True),
        What::Waiting { on: Wait::StateSync } => {
            began(ConditionType::StateSyncReady, ConditionStatus::False)
        }
        What::Waiting { .. } => phase,
        What::InSync => {
            let last_update = status.last_update.as_ref().map(|last| last.finished_at.0);
            let compared = began(ConditionType::PodTemplateDrift, ConditionStatus::False);
            phase.max(last_update).max(compared)
        }
    }
}

fn waits_for(
    what: &What,
    node: &SeiNode,
    status: &SeiNodeStatus,
    now: Timestamp,
) -> Option<String> {
    if *what == What::HandsOff {
        return Some("the removal of annotation sei.io/hands-off".to_owned());
    }
    if let Some(blocked) = &status.blocked {
        return Some(format!("the end of {}", blocked.reason));
    }
    if let Some((_, task)) = active_plan(status).and_then(TaskPlan::current)
        && let Some(not_before) = task.not_before.as_ref().filter(|time| time.0 > now)
    {
        let seconds = seconds_until(not_before.0, now);
        return Some(format!("the retry of {} in {seconds}s", task.r#type));
    }
    let pending = status.pending_update.as_ref();
    match what {
        What::Held { by: Hold::Approval } => Some("an approval".to_owned()),
        What::Held { by: Hold::Pause } => Some("the removal of spec.update.paused".to_owned()),
        What::Stopped => Some("the removal of spec.paused".to_owned()),
        What::Stalled { reason } => Some(format!("the end of {reason}")),
        What::Halted { reason } if reason == Reason::UpgradeNeeded.as_str() => {
            Some("the image of the upgrade".to_owned())
        }
        What::Halted { .. } => Some("a new block".to_owned()),
        What::Waiting { on } => Some(match on {
            Wait::FirstReconcile => "the first reconcile".to_owned(),
            Wait::FirstPlan => "its first plan".to_owned(),
            Wait::StateSync => "state-sync witnesses".to_owned(),
            Wait::Comparison => "the comparison of its pod".to_owned(),
            Wait::Turn => match pending.and_then(|pending| pending.halted_by.as_ref()) {
                Some(failed) => format!("the failed rolls of {failed}"),
                None => format!("its turn in chain {}", node.spec.chain_id),
            },
            Wait::Retry => {
                let at = pending.and_then(|pending| pending.next_attempt_at.as_ref());
                let seconds = at.map_or(0, |at| seconds_until(at.0, now));
                format!("the next attempt in {seconds}s")
            }
            Wait::Blocker { reason } => format!("the end of {reason}"),
        }),
        What::HandsOff
        | What::Deleting
        | What::Failed
        | What::Initializing
        | What::Updating { .. }
        | What::Repairing
        | What::InSync => None,
    }
}

fn current_task(status: &SeiNodeStatus) -> Option<TaskPosition> {
    let plan = active_plan(status)?;
    let (index, task) = plan.current()?;
    Some(TaskPosition { name: task.r#type.clone(), number: index + 1, count: plan.tasks.len() })
}

fn active_plan(status: &SeiNodeStatus) -> Option<&TaskPlan> {
    status.plan.as_ref().filter(|plan| plan.is_active())
}

fn condition(
    status: &SeiNodeStatus,
    kind: ConditionType,
    value: ConditionStatus,
) -> Option<&Condition> {
    find(&status.conditions, kind).filter(|condition| condition.status == value.as_str())
}

fn seconds_until(at: Timestamp, now: Timestamp) -> i64 {
    at.duration_since(now).as_secs().max(0)
}

#[cfg(test)]
mod tests;
