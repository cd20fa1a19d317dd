//! A node with an active plan: resume the plan, or supersede it by a newer desired state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::condition::Reason;
use sei_api::plan::{PlanKind, PlanTarget, PlannedTask, TaskPlan};
use sei_api::status::{Cause, PendingUpdate, UpdateOutcome, UpdateState};
use sei_api::task::{Side, TaskType};

use super::drift::{change_image, has_revision};
use super::{
    Blocker, Decision, Note, PlanMove, build, decide_at_rest, ended, init, is_updating, kind,
    stall, without_plan,
};
use crate::adoption::Comparison;
use crate::budget::{self, Taken};
use crate::check_plan::{Severity, check_plan};
use crate::desired::Desired;
use crate::snapshot::{Sidecar, Snapshot};
use crate::tasks::replace_pod::is_edited;
use crate::tasks::{before_replacement, in_bootstrap, kind_of};
use crate::view::is_owned;

/// What becomes of an active plan.
pub(super) enum Fate {
    Resume,
    /// Nothing happens until the pod of the stopped node has ended.
    Freeze,
    /// The plan is ended, and what follows is decided without it.
    Supersede(String),
    /// An init plan is ended, and another one is built.
    InitAgain,
    /// The update is ended, the gate of the pod that it would replace is opened, and the update is
    /// built again after that.
    OpenGate,
    /// The update continues with the sidecar of the new pod.
    ContinueLate,
    /// Another plan takes its place.
    GiveWay(Box<Decision>),
    /// The plan is resumed unless the answer to the questions of this decision starts another.
    Ask(Box<Decision>),
}

/// Decides what becomes of an active plan.
pub(super) fn decide(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    if let Some(why) = broken(plan) {
        let abandoned = Decision::keep(snapshot).note(Note::PlanAbandoned { why: why.clone() });
        return abandoned.then(supersede(snapshot, plan, &why));
    }
    let kind = kind_of(plan);
    let decision = match fate(snapshot, plan) {
        Fate::Resume => resume(snapshot, plan),
        Fate::Freeze => Decision::blocked(snapshot, Blocker::NodePaused),
        Fate::Supersede(by) => supersede(snapshot, plan, &by),
        Fate::InitAgain => init_again(snapshot, plan),
        Fate::OpenGate => open_gate_first(snapshot, plan),
        Fate::ContinueLate => continue_late(snapshot, plan),
        Fate::GiveWay(instead) => {
            let by = format!("{:?}", instead.plan.started().unwrap_or(kind));
            let superseded = Decision::keep(snapshot).note(Note::Superseded { kind, by });
            superseded.then(with_abandoned_tasks(*instead, plan))
        }
        Fate::Ask(questions) => Decision {
            asks_slot: questions.asks_slot,
            compare: questions.compare,
            ..resume(snapshot, plan)
        },
    };
    if let Some(conflict) = waits_for_a_key(snapshot, plan) {
        // The end of it triggers no event for this node.
        let decision = decision.requeue_within(snapshot.timing.poll() * 6);
        return Decision { blocker: decision.blocker.clone().or(Some(conflict)), ..decision };
    }
    let blocker = decision.blocker.clone().or_else(|| refused_edit(snapshot, plan));
    Decision { blocker, ..decision }
}

/// Another node has the key of a node whose StatefulSet was deleted after the plan had applied it: it is
/// not created again meanwhile.
fn waits_for_a_key(snapshot: &Snapshot, plan: &TaskPlan) -> Option<Blocker> {
    let applied = plan.has_completed(TaskType::ApplyStatefulSet) && snapshot.statefulset.is_none();
    let why = snapshot.signing_conflict.clone().filter(|_| applied)?;
    Some(Blocker::SigningKeyConflict { why })
}

fn fate(snapshot: &Snapshot, plan: &TaskPlan) -> Fate {
    let kind = kind_of(plan);
    if plan.kind.is_none() && matches!(kind, PlanKind::NodeUpdate | PlanKind::MarkReady) {
        // Without a target the plan cannot be compared with the desired state.
        return Fate::Supersede("a plan with a target".to_owned());
    }
    if stall::volume_lost(snapshot).is_some() {
        return match kind {
            PlanKind::Init if plan.has_completed(TaskType::EnsureDataPvc) => Fate::InitAgain,
            // The task itself reports the loss and reads the approval.
            PlanKind::Init => Fate::Resume,
            _ => Fate::Supersede("the loss of its volume".to_owned()),
        };
    }
    (kind::rules(kind).fate)(snapshot, plan)
}

/// An edit during an update that a running node cannot follow.
fn refused_edit(snapshot: &Snapshot, plan: &TaskPlan) -> Option<Blocker> {
    let (Ok(desired), Some(target)) = (&snapshot.desired, &plan.target) else { return None };
    if kind_of(plan) != PlanKind::NodeUpdate || !has_other_target(target, desired) {
        return None;
    }
    stall::changed_identity(snapshot, desired).map(|why| Blocker::InvalidSpec { why })
}

/// Why a stored plan cannot be trusted: it was forged, damaged, or made by a newer operator.
fn broken(plan: &TaskPlan) -> Option<String> {
    let notes = check_plan(plan);
    notes.into_iter().find(|note| note.severity == Severity::Fatal).map(|note| note.text)
}

/// An init plan is superseded by another chain, mode or image, and by any change while its pod does
/// not run. A running pod may have spent hours on a restore, which a changed label must not discard.
pub(super) fn fate_of_init(snapshot: &Snapshot, plan: &TaskPlan) -> Fate {
    let Ok(desired) = &snapshot.desired else { return Fate::Resume };
    if snapshot.node.spec.is_paused() {
        return Fate::Resume;
    }
    let superseded = match &plan.target {
        _ if in_bootstrap(plan) => has_other_bootstrap(snapshot, plan, desired),
        None => return fate_by_pod(snapshot, desired),
        Some(target) => {
            let images =
                target.image != desired.image || target.sidecar_image != desired.sidecar_image;
            let runs = snapshot.pod().is_some_and(|pod| pod.seid.running && pod.sidecar.running);
            // Before the apply no progress can be lost, and the plan would apply the old template.
            let applied = plan.has_completed(TaskType::ApplyStatefulSet);
            let moved = target.hash != desired.hash && !(runs && applied);
            // A plan whose template was overwritten would wait for its own pod for ever.
            images || moved || is_overwritten(snapshot, plan) || is_of_another_node(plan, desired)
        }
    };
    if superseded { Fate::InitAgain } else { Fate::Resume }
}

/// Whether the plan was made for another chain or mode: what it has restored is of no use.
fn is_of_another_node(plan: &TaskPlan, desired: &Desired) -> bool {
    let Some(target) = &plan.target else { return false };
    let identity = &desired.identity;
    (target.chain_id.is_some() && target.chain_id != identity.chain)
        || (target.role.is_some() && target.role != identity.role)
}

/// Whether another Job is desired than the one that the plan creates. Only a plan without a record
/// of it is compared with the Job that exists.
fn has_other_bootstrap(snapshot: &Snapshot, plan: &TaskPlan, desired: &Desired) -> bool {
    let image = desired.bootstrap.as_ref().map(|bootstrap| &bootstrap.image);
    match &plan.target {
        Some(target) if target.bootstrap_image.is_some() => {
            target.bootstrap_image.as_ref() != image
                || target.sidecar_image != desired.sidecar_image
                || is_of_another_node(plan, desired)
        }
        // It tears the Job of an earlier plan down.
        _ if !plan.has(TaskType::DeployBootstrapJob) => false,
        _ => snapshot.job.as_ref().is_some_and(|job| {
            image.is_some_and(|image| *image != job.image)
                || job.sidecar_image != desired.sidecar_image
        }),
    }
}

/// A plan without a target is superseded if its pod cannot run, or was made from other images than
/// the desired ones. Where admission rewrites images, their names prove nothing: the server compares
/// the templates, and the plan continues meanwhile.
fn fate_by_pod(snapshot: &Snapshot, desired: &Desired) -> Fate {
    let Some(pod) = snapshot.pod() else { return Fate::Resume };
    if !pod.troubles.is_empty() {
        return Fate::InitAgain;
    }
    let names_differ =
        pod.seid.image != desired.image || pod.sidecar.image != desired.sidecar_image;
    if !names_differ {
        return Fate::Resume;
    }
    let compared = snapshot.adoption.as_ref().filter(|(uid, _)| *uid == pod.uid);
    match compared.map(|(_, comparison)| comparison) {
        Some(Comparison::Equal) => Fate::Resume,
        Some(Comparison::Different(changes)) if !change_image(changes) => Fate::Resume,
        None if has_revision(pod) => {
            let compare = Some(pod.uid.clone());
            Fate::Ask(Box::new(Decision { compare, ..Decision::keep(snapshot) }))
        }
        _ => Fate::InitAgain,
    }
}

pub(super) fn fate_of_update(snapshot: &Snapshot, plan: &TaskPlan) -> Fate {
    let spec = &snapshot.node.spec;
    let supersede = |by: &str| Fate::Supersede(by.to_owned());
    let Some(target) = &plan.target else { return Fate::Resume };
    if spec.is_paused() {
        // Frozen until the pod has ended.
        let statefulset = snapshot.own_statefulset();
        let ended =
            statefulset.is_some_and(|owner| !snapshot.pods().any(|pod| is_owned(pod, owner)));
        return if ended { supersede("spec.paused") } else { Fate::Freeze };
    }
    let replaceable = before_replacement(plan) && snapshot.pod().is_some();
    // A plan that restores the running template implements the pause; the pause does not hold it.
    let restores_running = snapshot.status().pod_template_hash.as_ref() == Some(&target.hash);
    if spec.updates_are_paused() && replaceable && !restores_running {
        return supersede("spec.update.paused");
    }
    if replaceable && budget::is_provisional(plan) && snapshot.is_ready() {
        // Its replacement would now cost the chain a node, and no slot was free for that.
        return supersede("the end of its outage");
    }
    if replaceable && stall::volume_terminating(snapshot) {
        // Kubernetes deletes the claim once this pod stops.
        return supersede("the deletion of its volume");
    }
    if let Ok(desired) = &snapshot.desired
        && has_other_target(target, desired)
        && stall::changed_identity(snapshot, desired).is_none()
    {
        return supersede(&desired.hash);
    }
    if is_overwritten(snapshot, plan) {
        return supersede("another template on the StatefulSet");
    }
    if replaceable && must_open_gate_first(snapshot, plan) {
        return Fate::OpenGate;
    }
    if config_is_unanswered(snapshot, plan) { Fate::ContinueLate } else { Fate::Resume }
}

/// Whether the target of a plan differs from the desired state. The fingerprint covers the images,
/// but a status can be edited, and a plan would wait for ever for an image that no pod will have.
fn has_other_target(target: &PlanTarget, desired: &Desired) -> bool {
    target.hash != desired.hash
        || target.image != desired.image
        || target.sidecar_image != desired.sidecar_image
        || has_other_config(target, desired)
}

/// Whether the configuration differs, without the peers. An older plan has no record of it.
fn has_other_config(target: &PlanTarget, desired: &Desired) -> bool {
    target.config.iter().any(|(name, digest)| {
        name != "peers" && desired.config.get(name).is_some_and(|desired| desired != digest)
    })
}

/// Whether the StatefulSet was recreated or got another template since the plan applied its own. A
/// cached StatefulSet that is older than our apply does not count.
fn is_overwritten(snapshot: &Snapshot, plan: &TaskPlan) -> bool {
    let (Some(target), Some(applied)) = (&plan.target, &plan.applied) else { return false };
    snapshot.own_statefulset().is_some_and(|statefulset| {
        let newer = statefulset.uid != applied.uid || statefulset.generation >= applied.generation;
        let other_hash = statefulset.template_hash.as_ref() != Some(&target.hash);
        let edited =
            snapshot.desired.as_ref().is_ok_and(|desired| is_edited(plan, statefulset, desired));
        newer && (other_hash || edited)
    })
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
pub(super) fn fate_of_single_task(snapshot: &Snapshot, plan: &TaskPlan) -> Fate {
    if is_obsolete(snapshot, plan) {
        return Fate::Supersede("a newer desired state".to_owned());
    }
    if snapshot.waiting.is_none() || snapshot.node.spec.is_paused() {
        return Fate::Resume;
    }
    let instead = Box::new(decide_at_rest(&without_plan(snapshot)));
    match instead.plan.started() {
        Some(kind) if kind != kind_of(plan) => Fate::GiveWay(instead),
        _ => Fate::Ask(instead),
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

fn resume(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    let kind = kind_of(plan);
    let task = plan.current().map_or("its end", |(_, task)| task.r#type.as_str()).to_owned();
    let mut decision = Decision::keep(snapshot).note(Note::Resumes { kind, task });
    if let Some(again) = snapshot.waiting.as_ref().and_then(|waiting| waiting.again) {
        decision.requeue = Some(again);
    }
    let Some(pending) = decision.pending_update.take().filter(|_| kind == PlanKind::NodeUpdate)
    else {
        return Decision { pending_update: snapshot.status().pending_update.clone(), ..decision };
    };
    let hash = snapshot.desired.as_ref().ok().map(|desired| &desired.hash);
    if hash == Some(&pending.target_hash) {
        decision = decision.drift(Reason::Rolling, drift_message(snapshot));
    }
    decision.pending(PendingUpdate { state: UpdateState::Rolling, ..pending })
}

fn drift_message(snapshot: &Snapshot) -> String {
    let conditions = &snapshot.status().conditions;
    let kind = sei_api::condition::ConditionType::PodTemplateDrift;
    sei_api::condition::find(conditions, kind)
        .map(|found| found.message.clone())
        .unwrap_or_default()
}

/// Ends an init plan in favour of another one.
fn init_again(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    let hash = snapshot.desired.as_ref().map_or_else(|_| String::new(), |d| d.hash.clone());
    let superseded = Note::Superseded { kind: PlanKind::Init, by: hash };
    let cleared = Decision { plan: PlanMove::Clear, ..Decision::keep(snapshot) }.note(superseded);
    // What a plan did to a volume is lost with it.
    let previous = Some(plan).filter(|_| stall::volume_lost(snapshot).is_none());
    let next = init::decide(&without_plan(snapshot), previous);
    cleared.then(with_abandoned_tasks(next, plan))
}

/// Ends a plan in favour of a newer state. This counts as no failure, and the same decision
/// determines what follows.
fn supersede(snapshot: &Snapshot, plan: &TaskPlan, by: &str) -> Decision {
    let kind = kind_of(plan);
    let superseded = Note::Superseded { kind, by: by.to_owned() };
    let mut decision =
        Decision { plan: PlanMove::Clear, ..Decision::keep(snapshot) }.note(superseded);
    let mut after = without_plan(snapshot);
    if kind == PlanKind::NodeUpdate {
        let detail = Some(format!("superseded by {by}"));
        decision.last_update = Some(ended(snapshot, plan, UpdateOutcome::Superseded, detail));
        after.status.last_update.clone_from(&decision.last_update);
    }
    decision = decision.then(with_abandoned_tasks(decide_at_rest(&after), plan));
    if is_updating(snapshot) && decision.plan.started() != Some(PlanKind::NodeUpdate) {
        return decision.not_updating(Reason::UpdateSuperseded, format!("superseded by {by}"));
    }
    decision
}

/// Ends an update that waits and opens the gate. The update is built again after that.
fn open_gate_first(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    let by = "the closed gate of the running pod";
    let superseded = Note::Superseded { kind: kind_of(plan), by: by.to_owned() };
    let detail = format!("superseded by {by}");
    let last = ended(snapshot, plan, UpdateOutcome::Superseded, Some(detail.clone()));
    let mut decision =
        Decision { last_update: Some(last), ..Decision::keep(snapshot) }.note(superseded);
    if is_updating(snapshot) {
        decision = decision.not_updating(Reason::UpdateSuperseded, detail);
    }
    let decision = decision.start(build::mark_ready(snapshot), "the gate is closed");
    with_abandoned_tasks(decision, plan)
}

/// Transfers the sidecar tasks of the old plan to the new plan, which has to delete them.
fn with_abandoned_tasks(mut decision: Decision, plan: &TaskPlan) -> Decision {
    if let PlanMove::Start(next) = &mut decision.plan {
        next.abandoned.extend(plan.abandoned.iter().cloned());
        // This includes a task without a recorded submission: the operator may have crashed between
        // the submission and the record.
        let unfinished = plan.current().filter(|(_, task)| is_of_sidecar(task));
        if let Some((index, task)) = unfinished {
            next.abandoned.push(crate::tasks::sidecar::attempt_id(plan, index, task));
        }
    }
    decision
}

fn is_of_sidecar(task: &PlannedTask) -> bool {
    task.task_type().is_some_and(|task_type| task_type.side() == Side::Sidecar)
}

/// Whether a failed plan is an early update whose configuration task failed. The update continues
/// with the sidecar of the new pod, and only a failure there counts. A plan that only changes settings
/// does not: a bad setting must not take the pod down.
pub(super) fn continues_late(plan: &TaskPlan) -> bool {
    let failed = plan.failed_task_index.and_then(|index| usize::try_from(index).ok());
    let Some(task) = failed.and_then(|index| plan.tasks.get(index)) else { return false };
    let Some(target) = &plan.target else { return false };
    let only_settings = target.replaces_pod.is_some() && target.from.as_ref() == Some(&target.hash);
    kind_of(plan) == PlanKind::NodeUpdate && is_early_config(plan, task) && !only_settings
}

fn is_early_config(plan: &TaskPlan, task: &PlannedTask) -> bool {
    const CONFIG: [TaskType; 4] = [
        TaskType::ConfigPatch,
        TaskType::ConfigApply,
        TaskType::SetGenesisPeers,
        TaskType::ConfigValidate,
    ];
    CONFIG.into_iter().any(|config| task.is(config)) && !plan.has_completed(TaskType::ReplacePod)
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
    // A start farther ahead than the timeout comes from a clock that was wrong.
    let latest = super::later(snapshot.now, timeout);
    let is_due = |since: &Time| since.0 > latest || super::later(since.0, timeout) <= snapshot.now;
    since.into_iter().flatten().any(is_due)
}

/// Replaces an early update by a late update to the same target.
pub(super) fn continue_late(snapshot: &Snapshot, plan: &TaskPlan) -> Decision {
    let Ok(desired) = &snapshot.desired else { return resume(snapshot, plan) };
    let cause = plan.target.as_ref().map_or(Cause::Spec, |target| target.cause);
    let why = match &plan.failed_task_detail {
        Some(_) => super::failure_text(plan),
        None => "the old sidecar does not answer".to_owned(),
    };
    let decision = Decision::keep(snapshot).note(Note::ContinuesLate { why: why.clone() });
    if plan.target.as_ref().is_some_and(|target| has_other_target(target, desired)) {
        return decision.then(supersede(snapshot, plan, &desired.hash));
    }
    let takes = match () {
        () if budget::is_provisional(plan) => Taken::WhileDown,
        () if budget::has_slot(plan) => Taken::Slot,
        () => Taken::Nothing,
    };
    let next = build::node_update(snapshot, desired, cause, build::Shape::Late, takes);
    let decision = decision
        .updating(format!("continues without the old pod's sidecar: {why}"))
        .start(next, &why);
    with_abandoned_tasks(decision, plan)
}
