//! A node with an active plan: resume the plan, or supersede it by a newer desired state.

use sei_api::condition::{ConditionStatus, Reason};
use sei_api::plan::{PlanKind, PlanTarget, PlannedTask, TaskPlan};
use sei_api::status::{Cause, UpdateOutcome, UpdateState};
use sei_api::task::{Side, TaskType};

use super::{
    Decision, Note, PlanMove, build, decide_at_rest, ended, is_updating, running, set_drift,
    set_update, stall, without_plan,
};
use crate::budget;
use crate::check_plan::{Severity, check_plan};
use crate::desired::Desired;
use crate::snapshot::{Sidecar, Snapshot};
use crate::tasks::{before_replacement, in_bootstrap, kind_of};
use crate::view::is_owned;

/// Decides what becomes of an active plan.
pub(super) fn decide(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    if let Some(why) = broken(plan) {
        decision.report.push(Note::PlanAbandoned { why: why.clone() });
        supersede(snapshot, plan, &why, decision);
        return;
    }
    let kind = kind_of(plan);
    if plan.kind.is_none() && matches!(kind, PlanKind::NodeUpdate | PlanKind::MarkReady) {
        // Without a target the plan cannot be compared with the desired state.
        supersede(snapshot, plan, "a plan with a target", decision);
        return;
    }
    match kind {
        PlanKind::Init => decide_init(snapshot, plan, decision),
        PlanKind::NodeUpdate => decide_update(snapshot, plan, decision),
        PlanKind::MarkReady | PlanKind::ApplyTemplate => {
            decide_single_task(snapshot, plan, decision);
        }
    }
}

/// Why a stored plan cannot be trusted: it was forged, damaged, or made by a newer operator.
fn broken(plan: &TaskPlan) -> Option<String> {
    let notes = check_plan(plan);
    notes.into_iter().find(|note| note.severity == Severity::Fatal).map(|note| note.text)
}

/// An init plan is superseded by other images, and by any change while its pod does not run. A
/// running pod may have spent hours on a restore, which a changed label must not discard.
fn decide_init(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let (Ok(desired), Some(target)) = (&snapshot.desired, &plan.target) else {
        resume(snapshot, plan, decision);
        return;
    };
    let superseded = if snapshot.node.spec.is_paused() {
        false
    } else if in_bootstrap(plan) {
        // The pod belongs to the Job, so only the images of the Job count.
        let bootstrap_image = desired.bootstrap.as_ref().map(|bootstrap| bootstrap.image.as_str());
        snapshot.job.as_ref().is_some_and(|job| {
            bootstrap_image.is_some_and(|image| image != job.image)
                || job.sidecar_image != desired.sidecar_image
        })
    } else {
        let images = target.image != desired.image || target.sidecar_image != desired.sidecar_image;
        let runs = snapshot.pod().is_some_and(|pod| pod.seid.running && pod.sidecar.running);
        // Before the apply no progress can be lost, and the plan would apply the old template.
        let applied = plan.has_completed(TaskType::ApplyStatefulSet);
        let moved = target.hash != desired.hash && !(runs && applied);
        // A plan whose template was overwritten would wait for its own pod for ever.
        images || moved || is_overwritten(snapshot, plan)
    };
    if !superseded {
        resume(snapshot, plan, decision);
        return;
    }
    decision.report.push(Note::Superseded { kind: PlanKind::Init, by: desired.hash.clone() });
    decision.plan = PlanMove::Clear;
    super::init::decide(&without_plan(snapshot), Some(plan), decision);
    transfer_abandoned_tasks(plan, decision);
}

fn decide_update(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let spec = &snapshot.node.spec;
    let Some(target) = &plan.target else { return resume(snapshot, plan, decision) };
    if spec.is_paused() {
        decide_stopped(snapshot, plan, decision);
        return;
    }
    let replaceable = before_replacement(plan) && snapshot.pod().is_some();
    // A plan that restores the running template implements the pause; the pause does not hold it.
    let restores_running = snapshot.status().pod_template_hash.as_ref() == Some(&target.hash);
    if spec.updates_are_paused() && replaceable && !restores_running {
        supersede(snapshot, plan, "spec.update.paused", decision);
        return;
    }
    if replaceable && stall::volume_terminating(snapshot) {
        // Kubernetes deletes the claim once this pod stops.
        supersede(snapshot, plan, "the deletion of its volume", decision);
        return;
    }
    if let Ok(desired) = &snapshot.desired
        && has_other_target(target, desired)
    {
        match stall::changed_identity(snapshot, desired) {
            None => {
                supersede(snapshot, plan, &desired.hash, decision);
                return;
            }
            Some(why) => decision.report.push(Note::Refused { why }),
        }
    }
    if is_overwritten(snapshot, plan) {
        supersede(snapshot, plan, "another template on the StatefulSet", decision);
        return;
    }
    if replaceable && must_open_gate_first(snapshot, plan) {
        open_gate_first(snapshot, plan, decision);
        return;
    }
    if config_is_unanswered(snapshot, plan) {
        continue_late(snapshot, plan, decision);
        return;
    }
    resume(snapshot, plan, decision);
}

/// Whether the target of a plan differs from the desired state. The fingerprint covers the images,
/// but a status can be edited, and a plan would wait for ever for an image that no pod will have.
fn has_other_target(target: &PlanTarget, desired: &Desired) -> bool {
    target.hash != desired.hash
        || target.image != desired.image
        || target.sidecar_image != desired.sidecar_image
}

/// Whether the StatefulSet was recreated or got another template since the plan applied its own. A
/// cached StatefulSet that is older than our apply does not count.
fn is_overwritten(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let (Some(target), Some(applied)) = (&plan.target, &plan.applied) else { return false };
    snapshot.own_statefulset().is_some_and(|statefulset| {
        let newer = statefulset.uid != applied.uid || statefulset.generation >= applied.generation;
        newer && statefulset.template_hash.as_ref() != Some(&target.hash)
    })
}

/// Freezes the update of a stopped node until its pod has ended, and then ends the plan.
fn decide_stopped(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let statefulset = snapshot.own_statefulset();
    let has_pod = statefulset.is_none_or(|owner| snapshot.pods().any(|pod| is_owned(pod, owner)));
    if has_pod {
        decision.report.push(Note::NodePaused);
    } else {
        supersede(snapshot, plan, "spec.paused", decision);
    }
}

/// Whether the plan waits while the gate of the pod that it would replace is closed. The gate is
/// opened first, so that the pod serves during the wait.
fn must_open_gate_first(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let Some(waiting) = &snapshot.waiting else { return false };
    // A sidecar that refuses the tasks of this plan also refuses the task that opens the gate.
    let unusable = [Reason::PodTerminating, Reason::SidecarAuth, Reason::SidecarUnreachable];
    let waits = match waiting.reason {
        Some(reason) => !unusable.contains(&reason),
        None => is_older_than_pod(snapshot, plan),
    };
    snapshot.sidecar == Sidecar::NotReady && waits
}

/// Whether the sidecar task was submitted before the current pod started. The pod that received it
/// was evicted, and the duration of the task on the new pod is unknown. A task that was submitted
/// to the current pod may finish, although the gate is closed. Both times are precise to a second.
fn is_older_than_pod(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let task = plan.current().map(|(_, task)| task).filter(|task| is_of_sidecar(task));
    let submitted = task.and_then(|task| task.submitted_at.as_ref());
    let started = snapshot.pod().and_then(|pod| pod.sidecar.running_since);
    submitted
        .zip(started)
        .is_some_and(|(submitted, started)| submitted.0.as_second() <= started.as_second())
}

/// A plan of a single task is superseded as soon as it waits and another kind of plan could start.
fn decide_single_task(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    if is_obsolete(snapshot, plan) {
        supersede(snapshot, plan, "a newer desired state", decision);
        return;
    }
    if snapshot.waiting.is_none() || snapshot.node.spec.is_paused() {
        resume(snapshot, plan, decision);
        return;
    }
    let mut instead = decision.clone();
    decide_at_rest(&without_plan(snapshot), &mut instead);
    let kind = kind_of(plan);
    match &instead.plan {
        PlanMove::Start(next) if kind_of(next) != kind => {
            let by = format!("{:?}", kind_of(next));
            instead.report.insert(0, Note::Superseded { kind, by });
            *decision = instead;
            transfer_abandoned_tasks(plan, decision);
        }
        _ => {
            decision.asks_slot = instead.asks_slot;
            decision.compare = instead.compare;
            resume(snapshot, plan, decision);
        }
    }
}

/// Whether the plan opens the gate of a stopped node, or applies a template that is neither desired
/// nor running.
fn is_obsolete(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    if kind_of(plan) == PlanKind::MarkReady {
        return snapshot.node.spec.is_paused();
    }
    let target = plan.target.as_ref().map(|target| &target.hash);
    let desired = snapshot.desired.as_ref().ok().map(|desired| &desired.hash);
    target != desired && target != snapshot.status().pod_template_hash.as_ref()
}

fn resume(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let task = plan.current().map_or("its end", |(_, task)| task.r#type.as_str());
    decision.report.push(Note::Resumes { kind: kind_of(plan), task: task.to_owned() });
    if kind_of(plan) == PlanKind::NodeUpdate
        && let Some(pending) = decision.pending_update.as_mut()
    {
        pending.state = UpdateState::Rolling;
        if let Ok(desired) = &snapshot.desired
            && desired.hash == pending.target_hash
        {
            set_drift(decision, ConditionStatus::True, Reason::Rolling, drift_message(snapshot));
        }
    }
    if let Some(again) = snapshot.waiting.as_ref().and_then(|waiting| waiting.again) {
        decision.requeue = Some(again);
    }
}

fn drift_message(snapshot: &Snapshot) -> String {
    let conditions = &snapshot.status().conditions;
    let kind = sei_api::condition::ConditionType::PodTemplateDrift;
    sei_api::condition::find(conditions, kind)
        .map(|found| found.message.clone())
        .unwrap_or_default()
}

/// Ends a plan in favour of a newer state. This counts as no failure, and the same decision
/// determines what follows.
fn supersede(snapshot: &Snapshot, plan: &TaskPlan, by: &str, decision: &mut Decision) {
    let kind = kind_of(plan);
    decision.report.push(Note::Superseded { kind, by: by.to_owned() });
    decision.plan = PlanMove::Clear;
    if kind == PlanKind::NodeUpdate {
        let detail = Some(format!("superseded by {by}"));
        decision.last_update = Some(ended(snapshot, plan, UpdateOutcome::Superseded, detail));
    }
    let mut after = without_plan(snapshot);
    if let Some(last) = &decision.last_update {
        after.status.last_update = Some(last.clone());
    }
    decide_at_rest(&after, decision);
    transfer_abandoned_tasks(plan, decision);
    let updates =
        matches!(&decision.plan, PlanMove::Start(next) if kind_of(next) == PlanKind::NodeUpdate);
    if is_updating(snapshot) && !updates {
        let message = format!("superseded by {by}");
        set_update(decision, ConditionStatus::False, Reason::UpdateSuperseded, message);
    }
}

/// Ends an update that waits and opens the gate. The update is built again after that.
fn open_gate_first(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let by = "the closed gate of the running pod";
    decision.report.push(Note::Superseded { kind: kind_of(plan), by: by.to_owned() });
    let detail = format!("superseded by {by}");
    let record = ended(snapshot, plan, UpdateOutcome::Superseded, Some(detail.clone()));
    decision.last_update = Some(record);
    if is_updating(snapshot) {
        set_update(decision, ConditionStatus::False, Reason::UpdateSuperseded, detail);
    }
    running::start(decision, build::mark_ready(snapshot), "the gate is closed");
    transfer_abandoned_tasks(plan, decision);
}

/// Transfers the sidecar tasks of the old plan to the new plan, which has to delete them.
fn transfer_abandoned_tasks(plan: &TaskPlan, decision: &mut Decision) {
    let PlanMove::Start(next) = &mut decision.plan else { return };
    next.abandoned.extend(plan.abandoned.iter().cloned());
    // This includes a task without a recorded submission: the operator may have crashed between the
    // submission and the record.
    let unfinished = plan.current().filter(|(_, task)| is_of_sidecar(task));
    if let Some((index, task)) = unfinished {
        next.abandoned.push(crate::tasks::sidecar::attempt_id(plan, index, task));
    }
}

fn is_of_sidecar(task: &PlannedTask) -> bool {
    task.task_type().is_some_and(|task_type| task_type.side() == Side::Sidecar)
}

/// Whether a failed plan is an early update whose configuration task failed. The update continues
/// with the sidecar of the new pod, and only a failure there counts.
pub(super) fn continues_late(plan: &TaskPlan) -> bool {
    let failed = plan.failed_task_index.and_then(|index| usize::try_from(index).ok());
    let Some(task) = failed.and_then(|index| plan.tasks.get(index)) else { return false };
    plan.target.is_some() && kind_of(plan) == PlanKind::NodeUpdate && is_early_config(plan, task)
}

fn is_early_config(plan: &TaskPlan, task: &PlannedTask) -> bool {
    let is_config = task.is(TaskType::ConfigPatch) || task.is(TaskType::ConfigValidate);
    is_config && !plan.has_completed(TaskType::ReplacePod)
}

/// Whether the sidecar of the old pod has not answered, or not finished, a configuration task in
/// time.
fn config_is_unanswered(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let Some((_, task)) = plan.current().filter(|(_, task)| is_early_config(plan, task)) else {
        return false;
    };
    let timeout = snapshot.timing.config_answer();
    let Some(waiting) = &snapshot.waiting else { return false };
    let unanswered =
        matches!(waiting.reason, Some(Reason::SidecarUnreachable | Reason::SidecarAuth));
    // The sidecar has not answered since at least the start of the block, whatever its reason.
    let blocked = snapshot.status().blocked.as_ref().filter(|_| unanswered);
    let since = [blocked.map(|blocked| &blocked.since), task.submitted_at.as_ref()];
    since.into_iter().flatten().any(|since| super::later(since.0, timeout) <= snapshot.now)
}

/// Replaces an early update by a late update to the same target.
pub(super) fn continue_late(snapshot: &Snapshot, plan: &TaskPlan, decision: &mut Decision) {
    let Ok(desired) = &snapshot.desired else { return resume(snapshot, plan, decision) };
    let cause = plan.target.as_ref().map_or(Cause::Spec, |target| target.cause);
    let why = match &plan.failed_task_detail {
        Some(_) => super::failure_text(plan),
        None => "the old sidecar does not answer".to_owned(),
    };
    decision.report.push(Note::ContinuesLate { why: why.clone() });
    let moved = plan.target.as_ref().is_some_and(|target| has_other_target(target, desired));
    if moved {
        supersede(snapshot, plan, &desired.hash, decision);
        return;
    }
    let (late, slot) = (build::Shape::Late, budget::has_slot(plan));
    let next = build::node_update(snapshot, desired, cause, late, slot);
    running::start(decision, next, &why);
    set_update(
        decision,
        ConditionStatus::True,
        Reason::UpdateStarted,
        format!("continues without the old pod's sidecar: {why}"),
    );
    transfer_abandoned_tasks(plan, decision);
}
