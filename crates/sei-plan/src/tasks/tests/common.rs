//! What holds for every task.

use proptest::prelude::*;
use sei_api::plan::{PlanKind, TaskPlan, TaskStatus};
use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::check_plan::check_plan;
use crate::executor;
use crate::fixtures::{any_json, pointers};
use crate::request::{ClaimView, Failure, Outcome, TaskRecord, TaskState};
use crate::seen::{Reading, Seen};
use crate::tasks::fixture::{
    BOOTSTRAP, NEW, OLD, UPDATE, World, bootstrap, desired, node, now, plan, pod, shown,
    statefulset,
};
use crate::tasks::{before_replacement, bounded, in_bootstrap, kind_of, step};
use crate::timing::Timing;
use crate::view::{JobView, ObjectView};

use TaskType as T;

#[test]
fn an_unknown_type_fails_the_plan_by_name() {
    let mut world = World::updating(T::ReplacePod);
    for (name, text) in [("reset-data", "fail: unknown task type \"reset-data\""), ("", "fail: …")]
    {
        world.plan.tasks[4].r#type = name.to_owned();
        world.check(name, text);
    }
}

#[test]
fn a_plan_without_an_open_task_has_no_next_step() {
    let mut world = World::updating(T::ReplacePod);
    world.plan.tasks.iter_mut().for_each(|task| task.status = TaskStatus::Complete);
    assert_eq!(step(&world.plan, &world.seen), None);
    world.plan.tasks.clear();
    assert_eq!(step(&world.plan, &world.seen), None);
}

#[test]
fn the_first_task_that_is_not_complete_is_the_current_one() {
    for status in [TaskStatus::Pending, TaskStatus::Running, TaskStatus::Failed] {
        let mut world = World::updating(T::ReplacePod);
        world.plan.tasks[4].status = status;
        world.plan.tasks[5].status = TaskStatus::Complete;
        world.check("replace-pod", "delete pod…");
    }
}

#[test]
fn nothing_is_written_while_the_spec_cannot_be_rendered() {
    let writes = [
        T::EnsureDataPvc,
        T::ApplyRbacProxyConfig,
        T::ApplyStatefulSet,
        T::ApplyService,
        T::DeployBootstrapService,
        T::DeployBootstrapJob,
    ];
    for task in TaskType::ALL {
        let mut world = World::only(*task, json!({}));
        world.seen.desired.hash = String::new();
        world.seen.desired.bootstrap = Some(bootstrap());
        let blocked = shown(&world.next()).starts_with("wait InvalidSpec: ");
        assert_eq!(blocked, writes.contains(task), "{task}");
    }
    let mut world = World::updating(T::ReplacePod);
    world.seen.desired.hash = String::new();
    world.check("a plan that has applied continues", "delete pod…");
}

#[test]
fn a_refused_call_is_waited_out_with_the_servers_message() {
    let text = || "message".to_owned();
    for (failure, expected) in [
        (Failure::FieldManagerConflict(text()), "wait FieldConflict again 30s: message"),
        (Failure::Forbidden(text()), "wait Forbidden again 30s: message"),
        (Failure::Rejected(text()), "wait ApplyRejected again 30s: message"),
        (Failure::Indeterminate(text()), "wait - again 5s: message"),
        (Failure::Unreachable(text()), "wait SidecarUnreachable again 5s: message"),
        (Failure::Unauthorized(text()), "wait SidecarAuth again 30s: message"),
        (Failure::NotFound(String::new()), "apply StatefulSet…"),
        (Failure::Conflict(text()), "apply StatefulSet…"),
        (Failure::AlreadyExists, "apply StatefulSet…"),
    ] {
        let mut world = World::updating(T::ApplyStatefulSet);
        world.seen.failure = Some(failure);
        world.check(expected, expected);
    }
    let mut world = World::updating(T::ReplacePod);
    let refused = Outcome::Failed(Failure::Forbidden(text()));
    let lines = world.transcript([refused]);
    assert_eq!(lines[1], "wait Forbidden again 30s: message");
    assert_eq!(world.seen.deleted_pod, None);
}

#[test]
fn a_faster_lane_waits_less() {
    let mut world = World::updating(T::ApplyStatefulSet);
    world.seen.timing = Timing::faster(50);
    world.seen.failure = Some(Failure::Forbidden("no".to_owned()));
    world.check("slow", "wait Forbidden again 600ms: no");
}

#[test]
fn a_success_clears_the_failure_before_it() {
    let mut world = World::updating(T::ReplacePod);
    world.seen.pods = Reading::Unread;
    world.seen.failure = Some(Failure::NotFound(String::new()));
    world.transcript([Outcome::Pods(vec![pod(NEW).into()])]);
    assert_eq!(world.seen.failure, None);
}

#[test]
fn foreign_texts_are_cut_to_a_kibibyte() {
    let long = "é".repeat(4096);
    let cut = bounded(&long);
    assert!(cut.len() <= 1024 + '…'.len_utf8() && cut.ends_with("é…"), "{}", cut.len());
    assert_eq!(bounded(&format!("a{long}")).len(), 1023 + '…'.len_utf8());
    assert_eq!(bounded(&"x".repeat(1024)), "x".repeat(1024));

    let mut refused = World::updating(T::ReplacePod);
    refused.seen.failure = Some(Failure::Rejected(long.clone()));
    let mut failed = World::updating(T::MarkReady);
    failed.live_pods([pod(NEW)]);
    failed.transcript([Outcome::Task(Some(TaskRecord::from(TaskState::Failed(long.clone()))))]);
    let mut job = World::at(&BOOTSTRAP, T::AwaitBootstrapComplete);
    let state = crate::view::JobState::Failed(long.clone());
    job.seen.job = Reading::Live(Some(JobView { state, ..JobView::default() }));
    let mut unknown = World::updating(T::ReplacePod);
    unknown.plan.tasks[4].r#type = long.clone();
    let mut missing = World::only(T::ValidateSigningKey, json!({ "secretName": "n".repeat(4096) }));
    missing.transcript([Outcome::Secret(None)]);
    let mut invalid = World::only(T::ValidateNodeKey, json!({ "secretName": "n".repeat(4096) }));
    invalid.transcript([Outcome::Secret(Some(crate::request::SecretView::default()))]);
    let mut import = World::only(T::EnsureDataPvc, json!({}));
    let volume = json!({ "import": { "pvcName": "theirs" } });
    import.seen.node = node(json!({ "fullNode": {}, "dataVolume": volume })).into();
    import.transcript([Outcome::Claim(Some(ClaimView { phase: long, ..Default::default() }))]);
    let mut unfit = World::only(T::EnsureDataPvc, json!({}));
    unfit.seen.node = import.seen.node.clone();
    unfit.seen.claim = Reading::Live(Some(ClaimView {
        phase: "Bound".to_owned(),
        access_modes: vec!["x".repeat(4096)],
        ..Default::default()
    }));
    for world in [&refused, &failed, &job, &unknown, &missing, &invalid, &import, &unfit] {
        assert!(shown(&world.next()).len() < 1200, "{}", shown(&world.next()));
    }
}

#[test]
fn the_kind_of_a_go_operator_plan_is_derived_from_its_tasks() {
    for (tasks, kind) in [
        (&BOOTSTRAP[..], PlanKind::Init),
        (&UPDATE[..], PlanKind::NodeUpdate),
        (&[T::MarkReady][..], PlanKind::MarkReady),
    ] {
        let mut plan = plan(tasks);
        plan.kind = None;
        assert_eq!(kind_of(&plan), kind);
        plan.kind = Some(PlanKind::ApplyTemplate);
        assert_eq!(kind_of(&plan), PlanKind::ApplyTemplate);
    }
}

#[test]
fn a_plan_reports_whether_its_bootstrap_and_replacement_are_ahead() {
    let before = |tasks, current| before_replacement(&World::at(tasks, current).plan);
    assert!(before(&UPDATE, T::ReplacePod));
    assert!(!before(&UPDATE, T::ObserveImage));
    assert!(!before(&[T::MarkReady], T::MarkReady));
    let inside = |current| in_bootstrap(&World::at(&BOOTSTRAP, current).plan);
    assert!(inside(T::EnsureDataPvc) && inside(T::TeardownBootstrap));
    assert!(!inside(T::ApplyStatefulSet));
    assert!(!in_bootstrap(&plan(&UPDATE)));
}

/// Observations in which tasks get as far as they can: nothing read, and everything read.
fn worlds() -> Vec<Seen> {
    let bare = Seen::new(node(json!({ "fullNode": {} })), desired(), now());
    let mut full = bare.clone();
    full.desired.bootstrap = Some(bootstrap());
    full.statefulset = Reading::Live(Some(statefulset().into()));
    full.pods = Reading::Live(Some(vec![pod(OLD).into(), pod(NEW).into()]));
    full.pod = Reading::Live(Some(pod(NEW).into()));
    full.claim = Reading::Live(Some(ClaimView::default()));
    full.job = Reading::Live(Some(JobView::default()));
    full.service = Reading::Live(Some(ObjectView::default()));
    full.revision = Reading::Live(Some(json!({})));
    full.secrets.insert("a".to_owned(), Reading::Live(Some(crate::request::SecretView::default())));
    let mut fresh = full.clone();
    fresh.pods = Reading::Live(Some(vec![pod(NEW).into()]));
    vec![bare, full, fresh]
}

/// Steps through a plan as far as it goes, and records the results.
fn drive(plan: &TaskPlan) {
    check_plan(plan);
    for mut seen in worlds() {
        let mut status = sei_api::SeiNodeStatus { plan: Some(plan.clone()), ..Default::default() };
        for _ in 0..plan.tasks.len().min(8) {
            seen.node.status = Some(status.clone());
            let Some(next) = status.plan.as_ref().and_then(|plan| step(plan, &seen)) else { break };
            executor::record_submission(&mut status, now());
            executor::record(&mut status, next, 1, now(), Timing::default());
        }
        executor::finish(&mut status, now());
    }
}

/// A plan of every type, with values set or removed anywhere in its JSON.
fn any_plan() -> impl Strategy<Value = Value> {
    // Also values that decode: most plans with anything else never reach a step.
    let fitting = [
        json!("Complete"),
        json!("Failed"),
        json!("Running"),
        json!("Init"),
        json!("mark-ready"),
        json!(""),
        json!(i32::MIN),
        json!(i32::MAX),
        json!([]),
        json!(["abandoned"]),
    ];
    let value = prop_oneof![prop::sample::select(fitting.to_vec()), any_json()];
    let edit = (any::<prop::sample::Index>(), prop::option::of(value));
    let base = prop::sample::select(vec![&UPDATE[..], &BOOTSTRAP[..], TaskType::ALL]);
    (base, prop::collection::vec(edit, 0..6)).prop_map(|(tasks, edits)| {
        let mut json = serde_json::to_value(plan(tasks)).unwrap();
        for (index, value) in edits {
            let pointers = pointers(&json);
            let pointer = index.get(&pointers);
            match value {
                Some(value) => *json.pointer_mut(pointer).unwrap() = value,
                None => json = crate::fixtures::without(json, pointer),
            }
            if pointers.len() < 2 {
                break;
            }
        }
        json
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..Default::default() })]

    // X15
    #[test]
    fn no_parameters_make_a_step_panic(
        task in prop::sample::select(TaskType::ALL),
        params in prop_oneof![Just(Value::Null), any_json()],
        name in any::<String>(),
        retries in any::<Option<i32>>(),
    ) {
        let mut candidate = plan(&[task]);
        candidate.tasks[0].params = Some(params.clone());
        candidate.tasks[0].retry_count = retries;
        candidate.tasks[0].max_retries = retries;
        drive(&candidate);
        candidate.kind = None;
        candidate.target = None;
        candidate.tasks[0].params = Some(json!({ "secretName": "a", "files": params, "Mode": name }));
        drive(&candidate);
    }

    #[test]
    fn no_stored_plan_makes_a_step_or_the_linter_panic(json in any_plan()) {
        if let Ok(plan) = serde_json::from_value::<TaskPlan>(json) {
            drive(&plan);
        }
    }
}
