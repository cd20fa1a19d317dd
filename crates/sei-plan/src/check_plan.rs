//! A linter for plans: what must hold of every plan, whoever built or stored it.
//!
//! It runs after every plan in every test, on every stored plan before it is resumed, and in the
//! command line tool.

use std::collections::BTreeSet;

use sei_api::plan::{PlanKind, PlanPhase, TaskPlan, TaskStatus, task_id};
use sei_api::status::SeiNodePhase;
use sei_api::task::TaskType;

use TaskType as T;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// A plan of ours is never like this; one of the peer's may be.
    Wrong,
    /// The plan cannot be resumed safely: it is given up and built anew.
    Fatal,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanNote {
    pub severity: Severity,
    pub text: String,
}

/// The most tasks that a plan may have; the longest of ours has 21.
const TASKS_MAX: usize = 64;

/// Checks a plan. An empty list means that it keeps every rule.
pub fn check_plan(plan: &TaskPlan) -> Vec<PlanNote> {
    let mut notes = Vec::new();
    if plan.tasks.len() > TASKS_MAX {
        // Nothing more is said of such a plan: a finding per task, each after a look at all tasks
        // before it, would take long and say nothing.
        fatal(&mut notes, format!("the plan has {} tasks", plan.tasks.len()));
        return notes;
    }
    check_records(plan, &mut notes);
    check_progress(plan, &mut notes);
    if plan.kind.is_some() {
        check_shape(plan, &mut notes);
        check_order(plan, &mut notes);
    }
    notes
}

fn fatal(notes: &mut Vec<PlanNote>, text: impl Into<String>) {
    notes.push(PlanNote { severity: Severity::Fatal, text: text.into() });
}

fn wrong(notes: &mut Vec<PlanNote>, text: impl Into<String>) {
    notes.push(PlanNote { severity: Severity::Wrong, text: text.into() });
}

/// Ids, types and parameters: what a forged or damaged plan gets wrong.
fn check_records(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let Some(id) = plan.id.as_deref().filter(|id| !id.is_empty()) else {
        return fatal(notes, "the plan has no id");
    };
    if plan.tasks.is_empty() {
        return fatal(notes, "the plan has no tasks");
    }
    let mut seen = BTreeSet::new();
    for (index, task) in plan.tasks.iter().enumerate() {
        if task.task_type().is_none() {
            let shown: String = task.r#type.chars().take(64).collect();
            fatal(notes, format!("task {index} has the unknown type {shown:?}"));
        } else if task.id != task_id(id, &task.r#type, index) {
            fatal(notes, format!("the id of task {index} ({}) is not its own", task.r#type));
        }
        if !seen.insert(&task.id) {
            fatal(notes, format!("task {index} has the id of another one"));
        }
        if task.params.as_ref().is_some_and(|params| !params.is_object() && !params.is_null()) {
            fatal(notes, format!("the parameters of task {index} are not an object"));
        }
        if task.retry_count.unwrap_or(0) < 0 || task.max_retries.unwrap_or(0) < 0 {
            fatal(notes, format!("task {index} counts retries below zero"));
        }
    }
}

/// Tasks run strictly in order, and an active plan has no failed one.
fn check_progress(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let first_open = plan.tasks.iter().position(|task| task.status != TaskStatus::Complete);
    let last_done = plan.tasks.iter().rposition(|task| task.status == TaskStatus::Complete);
    if let (Some(open), Some(done)) = (first_open, last_done)
        && done > open
    {
        fatal(notes, format!("task {done} is complete before task {open}"));
    }
    let failed = plan.tasks.iter().any(|task| task.status == TaskStatus::Failed);
    match plan.phase {
        PlanPhase::Active if failed => fatal(notes, "an active plan has a failed task"),
        PlanPhase::Complete if first_open.is_some() => {
            fatal(notes, "a complete plan has an open task");
        }
        _ => {}
    }
}

/// What each kind of plan of ours carries.
fn check_shape(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let Some(kind) = plan.kind else { return };
    let count = |task: TaskType| plan.tasks.iter().filter(|one| one.is(task)).count();
    if plan.target.is_none() != (kind == PlanKind::MarkReady) {
        wrong(notes, "every plan but MarkReady has a target, and MarkReady has none");
    }
    if plan.failed_phase.is_some() != (kind == PlanKind::Init) {
        wrong(notes, "a failure changes the phase of a new node only");
    }
    if plan.target_phase != Some(SeiNodePhase::Running) {
        wrong(notes, "every plan leads to Running");
    }
    let last = plan.tasks.last().and_then(sei_api::PlannedTask::task_type);
    match kind {
        PlanKind::Init | PlanKind::NodeUpdate => {
            for task in [T::ApplyStatefulSet, T::ApplyService, T::ReplacePod, T::ObserveImage] {
                if count(task) != 1 {
                    wrong(notes, format!("{kind:?} has {task} {} times", count(task)));
                }
            }
            if last != Some(T::MarkReady) {
                wrong(notes, format!("{kind:?} does not end with mark-ready"));
            }
        }
        PlanKind::MarkReady | PlanKind::ApplyTemplate => {
            let only = if kind == PlanKind::MarkReady { T::MarkReady } else { T::ApplyStatefulSet };
            if plan.tasks.len() != 1 || last != Some(only) {
                wrong(notes, format!("{kind:?} holds only {only}"));
            }
        }
    }
    let is_init = kind == PlanKind::Init;
    for task in [T::EnsureDataPvc, T::ApplyRbacProxyConfig] {
        if (count(task) == 1) != is_init {
            wrong(notes, format!("{task} stands in init plans only, once"));
        }
    }
    if count(T::ConfigApply) > 0 && count(T::ConfigPatch) > 0 {
        wrong(notes, "config-apply and config-patch stand in one plan");
    }
}

/// What must come before what, wherever both stand in a plan.
const ORDER: &[(TaskType, TaskType, &str)] = &[
    (T::EnsureDataPvc, T::ApplyStatefulSet, "a pod must not wait for a claim nobody makes"),
    (T::ApplyRbacProxyConfig, T::ApplyStatefulSet, "the pod mounts it"),
    (T::ValidateSigningKey, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ValidateNodeKey, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ValidateOperatorKeyring, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ApplyStatefulSet, T::ReplacePod, "a pod is replaced by what was applied"),
    (T::ApplyService, T::ReplacePod, "the new pod is reached through it"),
    (T::ReplacePod, T::ObserveImage, "the fresh pod is observed"),
    (T::ConfigPatch, T::ConfigValidate, "what was written is checked"),
    (T::TeardownBootstrap, T::ApplyStatefulSet, "two pods on one volume corrupt it"),
    (T::DeployBootstrapJob, T::AwaitBootstrapComplete, "it is awaited once it is there"),
    (T::AwaitBootstrapComplete, T::TeardownBootstrap, "it is torn down once it is complete"),
    (T::GenerateIdentity, T::GenerateGentx, "the identity signs"),
    (T::GenerateGentx, T::UploadGenesisArtifacts, "what was made is uploaded"),
];

fn check_order(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let first = |task: TaskType| plan.tasks.iter().position(|one| one.is(task));
    let last = |task: TaskType| plan.tasks.iter().rposition(|one| one.is(task));
    for (before, after, why) in ORDER {
        if let (Some(one), Some(other)) = (first(*before), last(*after))
            && one > other
        {
            wrong(notes, format!("{after} comes before {before}: {why}"));
        }
    }
    // Key patchers follow every whole-file writer of their pod.
    for (index, task) in plan.tasks.iter().enumerate() {
        let before = |one: TaskType| plan.tasks[..index].iter().any(|task| task.is(one));
        if task.is(T::ConfigureStateSync) && !before(T::ConfigApply) {
            wrong(notes, "configure-state-sync comes before config-apply, which rewrites its file");
        }
        if task.is(T::ConfigApply) && !before(T::ConfigureGenesis) {
            wrong(notes, "config-apply comes before configure-genesis");
        }
    }
    let observed = first(T::ObserveImage);
    let gate = last(T::MarkReady);
    if let (Some(observed), Some(gate)) = (observed, gate)
        && observed > gate
    {
        wrong(notes, "the gate opens before the pod was observed");
    }
}

#[cfg(test)]
mod tests {
    use sei_api::plan::{PlanTarget, PlannedTask};
    use sei_api::status::Cause;
    use serde_json::{Value, json};

    use super::*;

    fn plan(tasks: &[TaskType]) -> TaskPlan {
        let tasks = tasks.iter().enumerate();
        let tasks = tasks
            .map(|(index, task)| PlannedTask::pending("p", index, *task, json!({}), 0))
            .collect();
        TaskPlan {
            id: Some("p".into()),
            phase: PlanPhase::Active,
            tasks,
            target_phase: Some(SeiNodePhase::Running),
            failed_phase: None,
            failed_task_index: None,
            failed_task_detail: None,
            kind: Some(PlanKind::NodeUpdate),
            target: Some(PlanTarget {
                hash: "v1:a".into(),
                image: "i".into(),
                sidecar_image: "s".into(),
                generation: 1,
                cause: Cause::Spec,
                retry: None,
                from: None,
                config: std::collections::BTreeMap::new(),
                inputs_hash: None,
                slot: None,
            }),
            applied: None,
            abandoned: Vec::new(),
            created_at: None,
        }
    }

    fn update() -> TaskPlan {
        plan(&[
            T::ConfigPatch,
            T::ConfigValidate,
            T::ApplyStatefulSet,
            T::ApplyService,
            T::ReplacePod,
            T::ObserveImage,
            T::MarkReady,
        ])
    }

    fn check(plan: &TaskPlan) -> String {
        check_plan(plan).into_iter().map(|note| note.text).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_good_plan_has_no_findings() {
        assert_eq!(check(&update()), "");
    }

    type Damage = fn(&mut TaskPlan);

    #[test]
    fn forged_and_damaged_plans_are_found() {
        let cases: [(&str, Damage); 11] = [
            ("the plan has no id", |plan| plan.id = None),
            ("the plan has no tasks", |plan| plan.tasks.clear()),
            ("unknown type \"reset-data\"", |plan| plan.tasks[0].r#type = "reset-data".into()),
            ("is not its own", |plan| plan.tasks[0].id = "x".into()),
            ("has the id of another one", |plan| plan.tasks[1].id = plan.tasks[0].id.clone()),
            ("are not an object", |plan| plan.tasks[2].params = Some(json!([1]))),
            ("counts retries below zero", |plan| plan.tasks[2].retry_count = Some(-1)),
            ("is complete before task 0", |plan| plan.tasks[5].status = TaskStatus::Complete),
            ("an active plan has a failed task", |plan| plan.tasks[0].status = TaskStatus::Failed),
            ("a complete plan has an open task", |plan| plan.phase = PlanPhase::Complete),
            ("the plan has 70 tasks", |plan| {
                let task = plan.tasks[0].clone();
                plan.tasks = vec![task; 70];
            }),
        ];
        for (text, damage) in cases {
            let mut plan = update();
            damage(&mut plan);
            let notes = check_plan(&plan);
            let found = notes.iter().find(|note| note.text.contains(text));
            assert_eq!(found.map(|note| note.severity), Some(Severity::Fatal), "{text}: {notes:?}");
        }
    }

    #[test]
    fn plans_in_a_harmful_order_are_found() {
        for (tasks, text) in [
            (
                vec![
                    T::ReplacePod,
                    T::ApplyStatefulSet,
                    T::ApplyService,
                    T::ObserveImage,
                    T::MarkReady,
                ],
                "replace-pod comes before apply-statefulset",
            ),
            (
                vec![
                    T::ApplyStatefulSet,
                    T::ApplyService,
                    T::ObserveImage,
                    T::ReplacePod,
                    T::MarkReady,
                ],
                "observe-image comes before replace-pod",
            ),
            (
                vec![
                    T::ApplyStatefulSet,
                    T::ApplyService,
                    T::ReplacePod,
                    T::MarkReady,
                    T::ObserveImage,
                ],
                "the gate opens before the pod was observed",
            ),
            (vec![T::MarkReady], "NodeUpdate has apply-statefulset 0 times"),
        ] {
            let found = check(&plan(&tasks));
            assert!(found.contains(text), "{text}: {found}");
        }
        let mut init = update();
        init.failed_phase = Some(SeiNodePhase::Failed);
        assert!(check(&init).contains("a failure changes the phase of a new node only"));
    }

    #[test]
    fn text_of_any_size_makes_a_short_finding() {
        let mut plan = update();
        plan.tasks[0].r#type = "é".repeat(1 << 20);
        plan.tasks[0].params = Some(Value::String("x".repeat(1 << 20)));
        assert!(check(&plan).len() < 1024);
    }
}
