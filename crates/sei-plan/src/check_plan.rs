//! A linter for plans: the rules of every plan, of any author and from any store.
//!
//! It runs after every plan in every test, on every stored plan before it is resumed, and in the
//! command line tool.

use std::collections::BTreeSet;

use sei_api::plan::{PlanKind, PlanPhase, TaskPlan, TaskStatus, task_id};
use sei_api::status::SeiNodePhase;
use sei_api::task::TaskType;

use crate::planner::kind::rules;

use TaskType as T;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Our planner never builds such a plan; the Go operator may.
    Wrong,
    /// The plan cannot be resumed safely: it is abandoned and a new one is built.
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

/// Checks a plan. An empty list means that the plan keeps every rule.
pub fn check_plan(plan: &TaskPlan) -> Vec<PlanNote> {
    let mut notes = Vec::new();
    if plan.tasks.len() > TASKS_MAX {
        // This is the only finding: one per task, each after a scan of all tasks before it, would
        // take long and add nothing.
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

/// Ids, types and parameters: what is wrong in a forged or damaged plan.
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
            fatal(
                notes,
                format!("the id of task {index} ({}) does not match the plan", task.r#type),
            );
        }
        if !seen.insert(&task.id) {
            fatal(notes, format!("task {index} has the id of another task"));
        }
        if task.params.as_ref().is_some_and(|params| !params.is_object() && !params.is_null()) {
            fatal(notes, format!("the parameters of task {index} are not an object"));
        }
        if task.retry_count.unwrap_or(0) < 0 || task.max_retries.unwrap_or(0) < 0 {
            fatal(notes, format!("task {index} has a negative retry count"));
        }
    }
}

/// Tasks run strictly in order, and an active plan has no failed task.
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

/// The contents of each kind of plan that we build.
fn check_shape(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let Some(kind) = plan.kind else { return };
    let count = |task: TaskType| plan.tasks.iter().filter(|planned| planned.is(task)).count();
    let rules = rules(kind);
    if plan.target.is_some() != rules.has_target {
        wrong(
            notes,
            "every plan except MarkReady must have a target, and MarkReady must have none",
        );
    }
    if plan.failed_phase.is_some() != rules.fails_node {
        wrong(notes, "only an init plan may set a phase on failure");
    }
    if plan.target_phase != Some(SeiNodePhase::Running) {
        wrong(notes, "the target phase of every plan must be Running");
    }
    for task in rules.once {
        if count(*task) != 1 {
            wrong(notes, format!("{kind:?} has {task} {} times", count(*task)));
        }
    }
    let last = plan.tasks.last().and_then(sei_api::PlannedTask::task_type);
    if last != Some(rules.last) {
        wrong(notes, format!("{kind:?} does not end with {}", rules.last));
    }
    if rules.single && plan.tasks.len() != 1 {
        wrong(notes, format!("{kind:?} may hold only {}", rules.last));
    }
    for task in [T::EnsureDataPvc, T::ApplyRbacProxyConfig] {
        if count(task) > 0 && !rules.once.contains(&task) {
            wrong(notes, format!("{task} may occur only in init plans, and only once"));
        }
    }
    if count(T::ConfigApply) > 0 && count(T::ConfigPatch) > 0 {
        wrong(notes, "a plan must not hold both config-apply and config-patch");
    }
}

/// Required order of tasks that occur in the same plan.
const ORDER: &[(TaskType, TaskType, &str)] = &[
    (
        T::EnsureDataPvc,
        T::ApplyStatefulSet,
        "a pod must not wait for a claim that is never created",
    ),
    (T::ApplyRbacProxyConfig, T::ApplyStatefulSet, "the pod mounts it"),
    (T::ValidateSigningKey, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ValidateNodeKey, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ValidateOperatorKeyring, T::ApplyStatefulSet, "keys are checked before anything changes"),
    (T::ApplyStatefulSet, T::ReplacePod, "the new pod is created from the applied template"),
    (T::ApplyService, T::ReplacePod, "the new pod is reached through it"),
    (T::ReplacePod, T::ObserveImage, "the fresh pod is observed"),
    (T::ConfigPatch, T::ConfigValidate, "written files are checked"),
    (T::TeardownBootstrap, T::ApplyStatefulSet, "two pods on one volume corrupt it"),
    (T::DeployBootstrapJob, T::AwaitBootstrapComplete, "it is awaited after its creation"),
    (T::AwaitBootstrapComplete, T::TeardownBootstrap, "it is torn down once it is complete"),
    (T::GenerateIdentity, T::GenerateGentx, "the identity signs"),
    (T::GenerateGentx, T::UploadGenesisArtifacts, "generated files are uploaded"),
];

fn check_order(plan: &TaskPlan, notes: &mut Vec<PlanNote>) {
    let first = |task: TaskType| plan.tasks.iter().position(|planned| planned.is(task));
    let last = |task: TaskType| plan.tasks.iter().rposition(|planned| planned.is(task));
    for (before, after, why) in ORDER {
        if let (Some(required), Some(dependent)) = (first(*before), last(*after))
            && required > dependent
        {
            wrong(notes, format!("{after} comes before {before}: {why}"));
        }
    }
    // Key patchers follow every whole-file writer of their pod.
    for (index, task) in plan.tasks.iter().enumerate() {
        let before = |earlier: TaskType| plan.tasks[..index].iter().any(|task| task.is(earlier));
        if task.is(T::ConfigureStateSync) && !before(T::ConfigApply) {
            wrong(notes, "configure-state-sync comes before config-apply, which rewrites its file");
        }
        let is_init = plan.kind == Some(PlanKind::Init);
        if task.is(T::ConfigApply) && is_init && !before(T::ConfigureGenesis) {
            wrong(notes, "config-apply comes before configure-genesis");
        }
    }
    let observed = first(T::ObserveImage);
    let opened = last(T::MarkReady);
    if let (Some(observed), Some(opened)) = (observed, opened)
        && observed > opened
    {
        wrong(notes, "mark-ready opens the gate before observe-image");
    }
}

#[cfg(test)]
mod tests {
    use sei_api::plan::{PlanTarget, PlannedTask};
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
                ..PlanTarget::default()
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
    fn forged_and_damaged_plans_are_reported() {
        let cases: [(&str, Damage); 11] = [
            ("the plan has no id", |plan| plan.id = None),
            ("the plan has no tasks", |plan| plan.tasks.clear()),
            ("unknown type \"reset-data\"", |plan| plan.tasks[0].r#type = "reset-data".into()),
            ("does not match the plan", |plan| plan.tasks[0].id = "x".into()),
            ("has the id of another task", |plan| plan.tasks[1].id = plan.tasks[0].id.clone()),
            ("are not an object", |plan| plan.tasks[2].params = Some(json!([1]))),
            ("has a negative retry count", |plan| plan.tasks[2].retry_count = Some(-1)),
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
    fn plans_in_a_harmful_order_are_reported() {
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
                "mark-ready opens the gate before observe-image",
            ),
            (vec![T::MarkReady], "NodeUpdate has apply-statefulset 0 times"),
        ] {
            let found = check(&plan(&tasks));
            assert!(found.contains(text), "{text}: {found}");
        }
        let mut init = update();
        init.failed_phase = Some(SeiNodePhase::Failed);
        assert!(check(&init).contains("only an init plan may set a phase on failure"));
    }

    #[test]
    fn text_of_any_size_makes_a_short_finding() {
        let mut plan = update();
        plan.tasks[0].r#type = "é".repeat(1 << 20);
        plan.tasks[0].params = Some(Value::String("x".repeat(1 << 20)));
        assert!(check(&plan).len() < 1024);
    }
}
