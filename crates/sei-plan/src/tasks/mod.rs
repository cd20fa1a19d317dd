//! Steps of tasks: what to do next for the current task of a plan, given what has been seen.
//!
//! A step is a pure function. It returns one request at a time; the outcome is added to [`Seen`]
//! and the step is called again, until it returns wait, done, retry or fail.

use std::time::Duration;

use sei_api::condition::{Reason, Verdict};
use sei_api::plan::{Applied, PlanKind, PlannedTask, TaskPlan};
use sei_api::status::{ClaimRef, ObservedTemplate, StatefulSetRef};
use sei_api::task::{Side, TaskType};

use crate::planner::wait_until;
use crate::request::{Failure, Request};
use crate::seen::Seen;
use crate::view::StatefulSetView;

mod apply;
mod bootstrap;
mod claim;
mod keys;
mod observe_image;
pub mod pre_pull;
pub mod replace_pod;
pub mod sidecar;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use apply::{
    not_controlled, on_delete_patch, takes_a_key, write_proxy_config, write_service,
};
pub(crate) use keys::signing_key_not_ready;
pub use observe_image::{MadeFrom, has_run, observe};

/// What to do next for a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    Request(Box<Request>),
    Wait(Waiting),
    Done(Box<Effects>),
    /// The run failed; run it again if the retry budget allows.
    Retry(String),
    /// The run did not end in time: run it again, under another id. The sidecar is at fault, not the
    /// task, so this does not count against the retry budget.
    TimedOut(String),
    /// This abandoned sidecar task does not run any more.
    Cleared(String),
    /// No further run can help.
    Fail(Failed),
}

/// Why a task does not progress.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Waiting {
    /// The reason that is reported once the wait lasts too long; `None` where waiting is no fault.
    pub reason: Option<Reason>,
    pub message: String,
    /// When to reconcile again although no watch has fired.
    pub again: Option<Duration>,
    pub verdict: Option<Verdict>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    pub detail: String,
    pub verdict: Option<Verdict>,
}

/// What a finished task leaves in the node's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Effects {
    pub stamp: Option<Stamp>,
    pub verdict: Option<Verdict>,
    pub applied: Option<Applied>,
    pub statefulset: Option<StatefulSetRef>,
    pub claim: Option<ClaimRef>,
    /// The identity that the node signs as.
    pub signing_identity: Option<String>,
    /// No pod of the node has a signing key any longer.
    pub signing_stopped: bool,
}

/// What was observed running. Built by [`observe`] alone, from the pod and never from the spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Stamp {
    pub image: String,
    pub sidecar_image: String,
    pub hash: String,
    pub template: ObservedTemplate,
}

/// The next thing to do for the current task of an active plan; `None` when every task is complete.
pub fn step(plan: &TaskPlan, seen: &Seen) -> Option<Next> {
    let (index, task) = plan.current()?;
    let Some(task_type) = task.task_type() else {
        return Some(fail(format!("unknown task type {:?}", task.r#type)));
    };
    if let Some(again) = retry_pause(task, seen) {
        let message = sidecar::after_failure(task);
        let (reason, again) = (Some(Reason::SidecarTaskFailed), Some(again));
        return Some(cut(Next::Wait(Waiting { reason, message, again, verdict: None })));
    }
    if let Some(next) = refused(seen) {
        return Some(next);
    }
    if seen.desired.hash.is_empty() && writes_what_is_desired(task_type) {
        return Some(wait(Reason::InvalidSpec, "the spec cannot be rendered; nothing is applied"));
    }
    Some(cut(match task_type {
        TaskType::EnsureDataPvc => claim::step(seen),
        TaskType::ValidateSigningKey
        | TaskType::ValidateNodeKey
        | TaskType::ValidateOperatorKeyring => keys::step(task_type, task, seen),
        TaskType::ApplyRbacProxyConfig => apply::step_proxy_config(seen),
        TaskType::ApplyStatefulSet => apply::step_statefulset(plan, seen),
        TaskType::ApplyService => apply::step_service(seen),
        TaskType::ReplacePod => replace_pod::step(plan, seen),
        TaskType::ObserveImage => observe_image::step(plan, seen),
        TaskType::DeployBootstrapService => bootstrap::step_service(seen),
        TaskType::DeployBootstrapJob => bootstrap::step_job(seen),
        TaskType::AwaitBootstrapComplete => bootstrap::step_await(plan, seen),
        TaskType::TeardownBootstrap => bootstrap::step_teardown(plan, seen),
        TaskType::CollectAndSetPeers | TaskType::AwaitNodesRunning => {
            fail(format!("{task_type} is a task of fleets"))
        }
        sidecar if sidecar.side() == Side::Sidecar => sidecar::step(plan, index, task, seen),
        _ => unreachable!("every controller task has its own step"),
    }))
}

/// How much longer the retry of a failed task waits. The pause is over when the sidecar has started
/// again since the failure, so that an evicted pod does not wait.
fn retry_pause(task: &PlannedTask, seen: &Seen) -> Option<Duration> {
    let until = task.not_before.as_ref()?.0;
    let pause = seen.timing.task_retry(task.retry_count.unwrap_or(0));
    let left = wait_until(until, seen.now, pause)?;
    let failed_at = until.checked_sub(pause).unwrap_or(seen.now);
    let pods = seen.pods.any().into_iter().flatten();
    let restarted = pods.filter(|pod| !pod.is_terminating()).any(|pod| {
        let since = pod.sidecar.running_since;
        since.is_some_and(|since| since.as_second() > failed_at.as_second())
    });
    (!restarted).then_some(left)
}

/// Messages repeat names from stored parameters and text from servers, which may be long.
fn cut(mut next: Next) -> Next {
    let cut_text = |text: &mut String| *text = bounded(text);
    let cut_verdict = |verdict: &mut Option<Verdict>| {
        if let Some(verdict) = verdict {
            cut_text(&mut verdict.message);
        }
    };
    match &mut next {
        Next::Request(_) | Next::Cleared(_) => {}
        Next::Wait(waiting) => {
            cut_text(&mut waiting.message);
            cut_verdict(&mut waiting.verdict);
        }
        Next::Done(effects) => cut_verdict(&mut effects.verdict),
        Next::Retry(text) | Next::TimedOut(text) => cut_text(text),
        Next::Fail(failed) => {
            cut_text(&mut failed.detail);
            cut_verdict(&mut failed.verdict);
        }
    }
    next
}

/// Tasks that write the current render.
fn writes_what_is_desired(task_type: TaskType) -> bool {
    matches!(
        task_type,
        TaskType::EnsureDataPvc
            | TaskType::ApplyRbacProxyConfig
            | TaskType::ApplyStatefulSet
            | TaskType::ApplyService
            | TaskType::DeployBootstrapService
            | TaskType::DeployBootstrapJob
    )
}

/// The meaning of a failed call for any task. After a conflict, a missing or an existing object
/// the task itself reads again.
fn refused(seen: &Seen) -> Option<Next> {
    let slow = Some(seen.timing.poll() * 6);
    let soon = Some(seen.timing.poll());
    let (reason, message, again) = match seen.failure.as_ref()? {
        Failure::NotFound(_)
        | Failure::Conflict(_)
        | Failure::AlreadyExists
        | Failure::TaskRefused(_) => return None,
        Failure::FieldManagerConflict(text) => (Some(Reason::FieldConflict), text, slow),
        Failure::Forbidden(text) => (Some(Reason::Forbidden), text, slow),
        Failure::Rejected(text) | Failure::NamespaceTerminating(text) => {
            (Some(Reason::ApplyRejected), text, slow)
        }
        Failure::NotStarted { reason, message } => (Some(*reason), message, slow),
        Failure::Indeterminate(text) => (None, text, soon),
        Failure::Unreachable(text) => (Some(Reason::SidecarUnreachable), text, soon),
        Failure::Unauthorized(text) => (Some(Reason::SidecarAuth), text, slow),
    };
    Some(Next::Wait(Waiting { reason, message: bounded(message), again, verdict: None }))
}

/// Longest foreign text that is kept in status.
const TEXT_MAX: usize = 1024;

/// Foreign text, cut to what status may hold.
pub fn bounded(text: &str) -> String {
    if text.len() <= TEXT_MAX {
        return text.to_owned();
    }
    let end = (0..=TEXT_MAX).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

fn request(request: Request) -> Next {
    Next::Request(Box::new(request))
}

fn done() -> Next {
    Next::Done(Box::default())
}

fn fail(detail: impl Into<String>) -> Next {
    Next::Fail(Failed { detail: bounded(&detail.into()), verdict: None })
}

fn wait(reason: impl Into<Option<Reason>>, message: impl Into<String>) -> Next {
    Next::Wait(Waiting {
        reason: reason.into(),
        message: message.into(),
        again: None,
        verdict: None,
    })
}

/// Waits for something that no watch reports.
fn wait_and_poll(
    seen: &Seen,
    reason: impl Into<Option<Reason>>,
    message: impl Into<String>,
) -> Next {
    Next::Wait(Waiting {
        reason: reason.into(),
        message: message.into(),
        again: Some(seen.timing.poll()),
        verdict: None,
    })
}

/// Waits if the StatefulSet of this node's name has another controller; `None` if it is the node's
/// own. The pods of such a StatefulSet belong to that controller too.
fn not_ours(statefulset: &StatefulSetView, seen: &Seen) -> Option<Next> {
    let ours = statefulset.controller.as_deref() == seen.node.metadata.uid.as_deref();
    let message = || format!("StatefulSet {} is controlled by another object", statefulset.name);
    (!ours).then(|| wait(Reason::FieldConflict, message()))
}

fn read(read: crate::request::Read) -> Next {
    request(Request::Read(read))
}

/// Whether the current task belongs to the bootstrap pod rather than to the node's own.
pub fn in_bootstrap(plan: &TaskPlan) -> bool {
    plan.has(TaskType::TeardownBootstrap) && !plan.has_completed(TaskType::TeardownBootstrap)
}

/// Whether the plan may still delete the pod that runs now.
pub fn before_replacement(plan: &TaskPlan) -> bool {
    plan.has(TaskType::ReplacePod) && !plan.has_completed(TaskType::ReplacePod)
}

/// The purpose of the plan, also for plans of the Go operator, which do not record it.
pub fn kind_of(plan: &TaskPlan) -> PlanKind {
    plan.kind.unwrap_or_else(|| {
        if plan.has(TaskType::EnsureDataPvc) {
            PlanKind::Init
        } else if plan.has(TaskType::ObserveImage) {
            PlanKind::NodeUpdate
        } else {
            PlanKind::MarkReady
        }
    })
}

/// Parameter of a task by name. The Go operator stores some in title case and reads any case.
pub(crate) fn param<'a>(task: &'a PlannedTask, name: &str) -> Option<&'a serde_json::Value> {
    let params = task.params.as_ref()?.as_object()?;
    params.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

fn text_param<'a>(task: &'a PlannedTask, name: &str) -> &'a str {
    param(task, name).and_then(serde_json::Value::as_str).unwrap_or_default()
}
