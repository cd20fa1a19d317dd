use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNodeStatus;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict, find};
use sei_api::plan::{Applied, FailedTaskDetail, PlanKind, PlanPhase, TaskPlan, TaskStatus};
use sei_api::status::{ClaimRef, ObservedTemplate, SeiNodePhase, StatefulSetRef};
use sei_api::task::TaskType;
use serde_json::json;

use super::*;
use crate::request::{ClaimView, Failure, Outcome, Request, TaskRecord, TaskState};
use crate::tasks::Stamp;
use crate::tasks::fixture::{NEW, World, now, plan, pod};
use crate::view::ObjectView;

use TaskType as T;

fn later(seconds: i64) -> Timestamp {
    Timestamp::from_second(now().as_second() + seconds).unwrap()
}

fn status(plan: TaskPlan) -> SeiNodeStatus {
    SeiNodeStatus {
        plan: Some(plan),
        phase: Some(SeiNodePhase::Initializing),
        ..Default::default()
    }
}

/// A node whose plan consists of these tasks.
fn node_with(tasks: &[TaskType]) -> SeiNodeStatus {
    status(plan(tasks))
}

fn plan_of(status: &SeiNodeStatus) -> &TaskPlan {
    status.plan.as_ref().unwrap()
}

fn done() -> Next {
    Next::Done(Box::default())
}

fn failed(detail: &str) -> Next {
    Next::Fail(Failed { detail: detail.to_owned(), verdict: None })
}

fn note(status: &mut SeiNodeStatus, next: Next) -> Progress {
    record(status, next, 3, now(), Timing::default())
}

fn verdict() -> Verdict {
    let message = "Secret key not found";
    Verdict::new(
        ConditionType::SigningKeyReady,
        ConditionStatus::False,
        Reason::SigningKeyNotReady,
        message,
    )
}

// X1
#[test]
fn a_retry_keeps_the_stored_id_and_starts_the_task_again() {
    let mut status = node_with(&[T::ConfigureGenesis]);
    let before = plan_of(&status).clone();
    record_submission(&mut status, now());
    let progress = note(&mut status, Next::Retry("not yet".to_owned()));
    assert_eq!(progress, Progress::Retrying(Duration::from_secs(10)));
    let mut expected = before;
    expected.tasks[0].retry_count = Some(1);
    expected.tasks[0].error = Some("not yet".to_owned());
    let until = now().checked_add(jiff::SignedDuration::from_secs(10)).unwrap();
    expected.tasks[0].not_before = Some(Time(until));
    assert_eq!(
        plan_of(&status),
        &expected,
        "nothing but the count, the error and the pause has changed"
    );
}

// X1, X2, X3
#[test]
fn the_budget_is_spent_retry_by_retry_and_then_the_plan_fails() {
    let mut status = node_with(&[T::ConfigureGenesis]);
    status.plan.as_mut().unwrap().tasks[0].max_retries = Some(3);
    let mut waits = Vec::new();
    for _ in 0..3 {
        match note(&mut status, Next::Retry("no".to_owned())) {
            Progress::Retrying(wait) => waits.push(wait.as_secs()),
            unexpected => panic!("{unexpected:?}"),
        }
    }
    assert_eq!(waits, [10, 20, 30]);
    assert_eq!(note(&mut status, Next::Retry("no".to_owned())), Progress::Failed);
    assert_eq!(plan_of(&status).phase, PlanPhase::Failed);
}

// X2
#[test]
fn a_failed_plan_names_the_failed_task_and_its_error() {
    let mut status = node_with(&[T::ApplyService, T::ConfigureGenesis]);
    let tasks = &mut status.plan.as_mut().unwrap().tasks;
    tasks[0].status = TaskStatus::Complete;
    (tasks[1].max_retries, tasks[1].retry_count) = (Some(2), Some(2));
    let id = tasks[1].id.clone();
    assert_eq!(note(&mut status, Next::Retry("no genesis".to_owned())), Progress::Failed);
    let plan = plan_of(&status);
    assert_eq!((plan.phase, plan.failed_task_index), (PlanPhase::Failed, Some(1)));
    assert_eq!(plan.tasks[1].status, TaskStatus::Failed);
    assert_eq!(plan.tasks[1].error.as_deref(), Some("no genesis"));
    let detail = FailedTaskDetail {
        r#type: "configure-genesis".to_owned(),
        id,
        error: "no genesis".to_owned(),
        retry_count: 2,
        max_retries: 2,
    };
    assert_eq!(plan.failed_task_detail, Some(detail));
}

// X2
#[test]
fn without_a_budget_the_first_failure_is_final() {
    for budget in [None, Some(0), Some(-1)] {
        let mut status = node_with(&[T::ConfigApply]);
        status.plan.as_mut().unwrap().tasks[0].max_retries = budget;
        assert_eq!(note(&mut status, Next::Retry("bad".to_owned())), Progress::Failed);
    }
}

// X14
#[test]
fn a_final_failure_spends_no_budget() {
    let mut status = node_with(&[T::ConfigureGenesis]);
    assert_eq!(note(&mut status, failed("never")), Progress::Failed);
    let task = &plan_of(&status).tasks[0];
    assert_eq!(
        (task.status, task.retry_count, task.max_retries),
        (TaskStatus::Failed, None, Some(180))
    );
}

// X14
#[test]
fn a_failure_changes_the_phase_only_if_the_plan_names_one() {
    for (failed_phase, expected) in
        [(None, SeiNodePhase::Initializing), (Some(SeiNodePhase::Failed), SeiNodePhase::Failed)]
    {
        let mut status = node_with(&[T::ConfigApply, T::MarkReady]);
        status.plan.as_mut().unwrap().failed_phase = failed_phase;
        note(&mut status, failed("bad"));
        assert_eq!(status.phase, Some(expected));
        assert_eq!(status.phase_transition_time, failed_phase.map(|_| Time(now())));
        assert_eq!(plan_of(&status).tasks[1].status, TaskStatus::Pending);
    }
}

// X4, X5, X6
#[test]
fn the_last_task_completes_the_plan_which_stays_and_sets_the_phase() {
    let mut status = node_with(&[T::ApplyService, T::MarkReady]);
    assert_eq!(note(&mut status, done()), Progress::Continue);
    assert_eq!(plan_of(&status).tasks[0].status, TaskStatus::Complete);
    assert_eq!(plan_of(&status).tasks[1].status, TaskStatus::Pending);
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert_eq!(note(&mut status, done()), Progress::Complete);
    assert_eq!(plan_of(&status).phase, PlanPhase::Complete);
    assert_eq!(status.phase, Some(SeiNodePhase::Running));
    assert_eq!(status.phase_transition_time, Some(Time(now())));
}

// X4, X5
#[test]
fn a_plan_whose_tasks_are_all_complete_is_finished() {
    for (target_phase, expected) in
        [(Some(SeiNodePhase::Running), SeiNodePhase::Running), (None, SeiNodePhase::Initializing)]
    {
        let mut status = node_with(&[T::MarkReady]);
        let plan = status.plan.as_mut().unwrap();
        plan.tasks[0].status = TaskStatus::Complete;
        plan.target_phase = target_phase;
        assert_eq!(finish(&mut status, now()), Progress::Complete);
        assert_eq!((plan_of(&status).phase, status.phase), (PlanPhase::Complete, Some(expected)));
    }
    let mut status = node_with(&[T::MarkReady]);
    assert_eq!(finish(&mut status, now()), Progress::Continue);
    assert_eq!(plan_of(&status).phase, PlanPhase::Active, "a task is left");
}

// X6
#[test]
fn a_node_that_was_running_keeps_its_running_since_time() {
    let mut status = node_with(&[T::MarkReady]);
    status.phase = Some(SeiNodePhase::Running);
    status.phase_transition_time = Some(Time(later(-500)));
    note(&mut status, done());
    assert_eq!(status.phase_transition_time, Some(Time(later(-500))));
}

// X7, X9
#[test]
fn an_ended_plan_and_no_plan_are_left_unchanged() {
    let mut ended = node_with(&[T::ConfigureGenesis]);
    ended.plan.as_mut().unwrap().phase = PlanPhase::Failed;
    let mut complete = ended.clone();
    complete.plan.as_mut().unwrap().phase = PlanPhase::Complete;
    for before in [ended, complete, SeiNodeStatus::default()] {
        for next in
            [done(), Next::Done(Box::new(everything())), Next::Retry("no".to_owned()), failed("no")]
        {
            let mut status = before.clone();
            assert_eq!(note(&mut status, next), Progress::Continue);
            record_submission(&mut status, now());
            assert_eq!(finish(&mut status, now()), Progress::Continue);
            assert_eq!(status, before);
        }
    }
}

// X8, X12
#[test]
fn a_wait_changes_nothing_in_the_plan() {
    let mut world = World::updating(T::MarkReady);
    world.live_pods([pod(NEW)]);
    let unreachable = Failure::Unreachable("connection refused".to_owned());
    world.transcript([Outcome::Task(None), Outcome::Failed(unreachable)]);
    let mut status = status(world.plan.clone());
    let before = status.clone();
    match note(&mut status, world.next()) {
        Progress::Waiting(waiting) => assert_eq!(waiting.again, Some(Duration::from_secs(5))),
        unexpected => panic!("{unexpected:?}"),
    }
    assert_eq!(status, before);
}

#[test]
fn a_wait_may_set_its_condition() {
    let mut status = node_with(&[T::ValidateSigningKey]);
    let before = plan_of(&status).clone();
    let waiting = Waiting { verdict: Some(verdict()), ..Waiting::default() };
    assert_eq!(note(&mut status, Next::Wait(waiting.clone())), Progress::Waiting(waiting));
    let condition = find(&status.conditions, ConditionType::SigningKeyReady).unwrap();
    assert_eq!((&*condition.reason, &*condition.status), ("SigningKeyNotReady", "False"));
    assert_eq!(condition.observed_generation, Some(3));
    assert_eq!(plan_of(&status), &before);
}

#[test]
fn a_failure_sets_its_condition() {
    let mut status = node_with(&[T::ValidateSigningKey]);
    note(&mut status, Next::Fail(Failed { detail: "no".to_owned(), verdict: Some(verdict()) }));
    assert!(find(&status.conditions, ConditionType::SigningKeyReady).is_some());
}

// X10
#[test]
fn a_claim_is_created_and_recorded_in_the_first_pass() {
    let mut world = World::at(&[T::EnsureDataPvc, T::MarkReady], T::EnsureDataPvc);
    let created = ObjectView { uid: "claim-uid".to_owned(), ..ObjectView::default() };
    world.transcript([Outcome::Claim(None::<ClaimView>), Outcome::Created(created)]);
    let mut status = status(world.plan.clone());
    assert_eq!(note(&mut status, world.next()), Progress::Continue);
    assert_eq!(plan_of(&status).tasks[0].status, TaskStatus::Complete);
    let claim = ClaimRef { name: "data-n".to_owned(), uid: "claim-uid".to_owned() };
    assert_eq!(status.data_claim, Some(claim));
}

// X11
#[test]
fn the_sidecars_error_ends_up_in_the_failed_plan() {
    let mut world = World::updating(T::MarkReady);
    world.live_pods([pod(NEW)]);
    let mut status = status(world.plan.clone());
    let poll = |state| Outcome::Task(Some(TaskRecord::from(state)));
    world.transcript([poll(TaskState::Running)]);
    assert!(matches!(note(&mut status, world.next()), Progress::Waiting(_)));
    world.seen.tasks.clear();
    world.transcript([poll(TaskState::Failed("exit status 1".to_owned()))]);
    assert_eq!(note(&mut status, world.next()), Progress::Failed);
    let plan = plan_of(&status);
    assert_eq!(plan.failed_task_detail.as_ref().unwrap().error, "exit status 1");
    assert_eq!(plan.failed_task_index, Some(6));
}

// X13
#[test]
fn each_attempt_is_submitted_once_and_under_its_own_id() {
    let mut world = World::updating(T::MarkReady);
    world.live_pods([pod(NEW)]);
    world.plan.tasks[6].max_retries = Some(1);
    let mut submitted = Vec::new();
    let mut status = status(world.plan.clone());
    for state in [TaskState::Failed("once".to_owned()), TaskState::Completed] {
        world.plan = plan_of(&status).clone();
        let ended = Outcome::Task(Some(TaskRecord::from(state)));
        world.transcript([Outcome::Task(None), Outcome::Accepted, ended]);
        submitted.append(&mut world.seen.submitted);
        record_submission(&mut status, now());
        note(&mut status, world.next());
        world.seen.now = now().checked_add(jiff::SignedDuration::from_secs(10)).unwrap();
    }
    assert_eq!(submitted.len(), 2);
    assert_ne!(submitted[0], submitted[1]);
    assert_eq!(submitted[0], world.plan.tasks[6].id, "the first attempt uses the stored id");
    assert_eq!(plan_of(&status).phase, PlanPhase::Complete);
}

// X15
#[test]
fn parameters_that_can_never_work_fail_the_plan() {
    let world = World::only(T::ConfigPatch, json!({ "files": {} }));
    let mut status = status(world.plan.clone());
    assert_eq!(note(&mut status, world.next()), Progress::Failed);
    let detail = plan_of(&status).failed_task_detail.clone().unwrap();
    assert_eq!(
        detail.error,
        "config-patch: parameter files is missing, empty or of the wrong type"
    );
}

// X13
#[test]
fn a_submission_is_recorded_once() {
    let mut status = node_with(&[T::ConfigApply]);
    record_submission(&mut status, now());
    record_submission(&mut status, later(60));
    assert_eq!(plan_of(&status).tasks[0].submitted_at, Some(Time(now())));
    record(&mut status, done(), 3, later(90), Timing::default());
    assert_eq!(plan_of(&status).tasks[0].submitted_at, Some(Time(now())));
}

#[test]
fn a_task_that_completes_at_once_has_its_start_time_set() {
    let mut status = node_with(&[T::ApplyService]);
    status.plan.as_mut().unwrap().tasks[0].error = Some("an old error".to_owned());
    note(&mut status, done());
    let task = &plan_of(&status).tasks[0];
    assert_eq!((task.submitted_at.clone(), task.error.clone()), (Some(Time(now())), None));
}

#[test]
fn a_request_is_not_recorded() {
    let mut status = node_with(&[T::ApplyService]);
    let before = status.clone();
    let request = Next::Request(Box::new(Request::Read(crate::request::Read::Pods)));
    assert_eq!(note(&mut status, request), Progress::Continue);
    assert_eq!(status, before);
}

fn everything() -> Effects {
    Effects {
        stamp: Some(Stamp {
            image: "seid:new".to_owned(),
            sidecar_image: "sidecar:new".to_owned(),
            hash: "v1:new".to_owned(),
            template: ObservedTemplate { revision: NEW.to_owned(), ..Default::default() },
        }),
        verdict: Some(verdict()),
        applied: Some(Applied { uid: "sts-uid".to_owned(), generation: 7, revision: None }),
        statefulset: Some(StatefulSetRef { name: "n".to_owned(), uid: "sts-uid".to_owned() }),
        claim: Some(ClaimRef { name: "data-n".to_owned(), uid: "claim-uid".to_owned() }),
        signing_identity: Some("v1:me".to_owned()),
        signing_stopped: false,
    }
}

#[test]
fn effects_land_in_status() {
    let mut status = node_with(&[T::ObserveImage, T::MarkReady]);
    note(&mut status, Next::Done(Box::new(everything())));
    let Effects { stamp, applied, statefulset, claim, .. } = everything();
    let stamp = stamp.unwrap();
    assert_eq!(status.current_image, Some(stamp.image));
    assert_eq!(status.current_sidecar_image, Some(stamp.sidecar_image));
    assert_eq!(status.pod_template_hash, Some(stamp.hash));
    assert_eq!(status.pod_template, Some(stamp.template));
    assert_eq!((&status.stateful_set, &status.data_claim), (&statefulset, &claim));
    assert_eq!(status.signing_identity.as_deref(), Some("v1:me"));
    assert!(find(&status.conditions, ConditionType::SigningKeyReady).is_some());
    assert_eq!(plan_of(&status).applied, applied);
}

#[test]
fn a_run_without_an_end_is_abandoned_and_repeated_without_a_limit() {
    let mut status = node_with(&[T::ConfigApply]);
    let first = plan_of(&status).tasks[0].id.clone();
    for _ in 0..3 {
        let progress = note(&mut status, Next::TimedOut("no end".to_owned()));
        assert!(matches!(progress, Progress::Retrying(_)), "{progress:?}");
    }
    let plan = plan_of(&status);
    assert_eq!((plan.abandoned.len(), &plan.abandoned[0]), (3, &first));
    assert_eq!(plan.tasks[0].error.as_deref(), Some("no end"));
    note(&mut status, Next::Cleared(first.clone()));
    assert_eq!(plan_of(&status).abandoned.len(), 2);
    assert!(!plan_of(&status).abandoned.contains(&first));
}

#[test]
fn a_plan_that_opens_the_gate_is_retried_with_a_pause() {
    let mut status = node_with(&[T::MarkReady]);
    status.plan.as_mut().unwrap().kind = Some(PlanKind::MarkReady);
    let waits: Vec<_> =
        (0..4).map(|_| note(&mut status, Next::Retry("disk full".to_owned()))).collect();
    let seconds = |seconds| Progress::Retrying(Duration::from_secs(seconds));
    assert_eq!(waits, [seconds(10), seconds(20), seconds(30), seconds(30)]);
}

#[test]
fn a_task_without_effects_leaves_the_earlier_ones() {
    let mut status = node_with(&[T::ObserveImage, T::ApplyService, T::MarkReady]);
    note(&mut status, Next::Done(Box::new(everything())));
    status.plan.as_mut().unwrap().abandoned = vec!["old".to_owned()];
    let before = status.clone();
    note(&mut status, done());
    let mut expected = before;
    let task = &mut expected.plan.as_mut().unwrap().tasks[1];
    (task.status, task.submitted_at) = (TaskStatus::Complete, Some(Time(now())));
    assert_eq!(status, expected);
}

// X3
#[test]
fn a_retry_waits_longer_each_time_and_at_most_thirty_seconds() {
    let timing = Timing::default();
    for attempt in 0..=5 {
        let wait = timing.task_retry(attempt);
        assert!(wait > Duration::ZERO && wait <= Duration::from_secs(30), "{attempt}: {wait:?}");
    }
    assert_eq!(timing.task_retry(i32::MAX), Duration::from_secs(30));
}
