use sei_api::plan::PlanKind;
use sei_api::task::TaskType;
use serde_json::json;

use crate::check_plan::check_plan;
use crate::request::{Failure, Outcome};
use crate::seen::Reading;
use crate::tasks::fixture::{
    BOOTSTRAP, NODE_UID, OLD, World, assert_transcript, bootstrap, plan, pod, terminating,
};
use crate::view::{Controller, JobState, JobView, ObjectView, PodView};

use TaskType as T;

type Case = (&'static str, fn(&mut World), &'static str);

#[track_caller]
fn check(task: TaskType, cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = at(task);
        change(&mut world);
        world.check(case, expected);
    }
}

fn at(task: TaskType) -> World {
    let mut world = World::at(&BOOTSTRAP, task);
    world.plan.kind = Some(PlanKind::Init);
    world.seen.desired.bootstrap = Some(bootstrap());
    world
}

fn job(state: JobState) -> JobView {
    JobView {
        uid: "job-uid".to_owned(),
        controller: Some(NODE_UID.to_owned()),
        terminating: false,
        image: "seid:bootstrap".to_owned(),
        sidecar_image: "sidecar:new".to_owned(),
        state,
    }
}

fn service() -> ObjectView {
    ObjectView {
        uid: "svc-uid".to_owned(),
        controller: Some(NODE_UID.to_owned()),
        ..ObjectView::default()
    }
}

fn bootstrap_pod() -> PodView {
    PodView {
        is_bootstrap: true,
        controller: Some(Controller::job("n-bootstrap", "job-uid")),
        ..pod(OLD)
    }
}

fn see_job(world: &mut World, change: impl FnOnce(&mut JobView)) {
    let mut view = job(JobState::Active);
    change(&mut view);
    world.seen.job = Reading::Live(Some(view));
}

fn see_service(world: &mut World, change: impl FnOnce(&mut ObjectView)) {
    let mut view = service();
    change(&mut view);
    world.seen.service = Reading::Live(Some(view));
}

// B1
#[test]
fn the_service_is_created_once() {
    let mut world = at(T::DeployBootstrapService);
    let answers = [Outcome::Service(None), Outcome::Accepted, Outcome::Service(Some(service()))];
    let lines = world.transcript(answers);
    assert_transcript(&lines, &["read Service", "create Service n", "read Service", "done"]);
}

// B2, B3
#[test]
fn an_existing_service_counts_if_it_is_this_nodes() {
    check(
        T::DeployBootstrapService,
        &[
            ("its own", |world| see_service(world, |_| {}), "done"),
            (
                "another's",
                |world| see_service(world, |service| service.controller = Some("other".to_owned())),
                "wait FieldConflict: …",
            ),
            (
                "without a controller",
                |world| see_service(world, |service| service.controller = None),
                "wait FieldConflict: …",
            ),
            (
                "cached",
                |world| world.seen.service = Reading::Cached(Some(service())),
                "read Service",
            ),
        ],
    );
    let mut world = at(T::DeployBootstrapService);
    world.seen.service = Reading::Live(None);
    let answers = [Outcome::Failed(Failure::AlreadyExists), Outcome::Service(Some(service()))];
    let lines = world.transcript(answers);
    assert_transcript(&lines, &["create Service n", "read Service", "done"]);
}

// B4
#[test]
fn the_job_is_created_once() {
    let mut world = at(T::DeployBootstrapJob);
    let pods = Outcome::Pods(Vec::new());
    let lines = world.transcript([Outcome::Job(None), pods, Outcome::Accepted]);
    assert_transcript(&lines, &["read Job", "read Pods", "create Job n-bootstrap", "done"]);
    // Admission may have rewritten its images: it is not replaced by the next one.
    see_job(&mut world, |job| job.image = "mirror/seid:bootstrap".to_owned());
    world.check("created in this pass", "done");
}

// B4
#[test]
fn an_existing_job_counts_if_it_is_as_desired_or_complete() {
    check(
        T::DeployBootstrapJob,
        &[
            ("as desired", |world| see_job(world, |_| {}), "done"),
            (
                "another image",
                |world| see_job(world, |job| job.image = "seid:older".to_owned()),
                "delete Job uid=job-uid",
            ),
            (
                "another sidecar",
                |world| see_job(world, |job| job.sidecar_image = "sidecar:older".to_owned()),
                "delete Job uid=job-uid",
            ),
            (
                "another image, and complete",
                |world| {
                    see_job(world, |job| {
                        job.image = "seid:older".to_owned();
                        job.state = JobState::Complete;
                    });
                },
                "done",
            ),
            (
                "failed in an earlier plan",
                |world| see_job(world, |job| job.state = JobState::Failed("OOM".to_owned())),
                "delete Job uid=job-uid",
            ),
            (
                "terminating",
                |world| see_job(world, |job| job.terminating = true),
                "wait -: the previous bootstrap Job is being deleted",
            ),
            (
                "another's",
                |world| see_job(world, |job| job.controller = Some("other".to_owned())),
                "wait FieldConflict: …",
            ),
            (
                "another's with another image is not deleted",
                |world| {
                    see_job(world, |job| {
                        job.controller = None;
                        job.image = "seid:older".to_owned();
                    });
                },
                "wait FieldConflict: …",
            ),
            ("cached", |world| world.seen.job = Reading::Cached(None), "read Job"),
        ],
    );
    let mut world = at(T::DeployBootstrapJob);
    world.seen.job = Reading::Live(None);
    world.seen.pods = Reading::Live(None);
    let found = Outcome::Job(Some(job(JobState::Active)));
    let lines = world.transcript([Outcome::Failed(Failure::AlreadyExists), found]);
    assert_transcript(&lines, &["create Job n-bootstrap", "read Job", "done"]);
}

// B5
#[test]
fn without_a_bootstrap_in_the_spec_nothing_is_created() {
    for task in [T::DeployBootstrapService, T::DeployBootstrapJob] {
        let mut world = at(task);
        world.seen.desired.bootstrap = None;
        world.check("no snapshot", "fail: the spec no longer requests a bootstrap");
    }
}

// B6, B7, B8, B9
#[test]
fn the_job_is_awaited_to_its_end() {
    check(
        T::AwaitBootstrapComplete,
        &[
            ("unread", |_| {}, "read Job"),
            (
                "active",
                |world| see_job(world, |_| {}),
                "wait -: …is replaying to its target height",
            ),
            ("complete", |world| see_job(world, |job| job.state = JobState::Complete), "done"),
            (
                "failed",
                |world| see_job(world, |job| job.state = JobState::Failed("OOM".to_owned())),
                "fail: the bootstrap Job failed: OOM",
            ),
            (
                "deleted",
                |world| world.seen.job = Reading::Live(None),
                "fail: …deleted before it completed",
            ),
        ],
    );
}

// B7, B8
#[test]
fn the_state_of_a_job_is_read_from_its_conditions() {
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    for (conditions, state) in [
        (json!([]), JobState::Active),
        (json!([condition("Complete", "True")]), JobState::Complete),
        (json!([condition("Complete", "False"), condition("Suspended", "True")]), JobState::Active),
        (json!([condition("Failed", "True")]), JobState::Failed("the Job failed".to_owned())),
        (json!([condition("Failed", "False")]), JobState::Active),
        (
            json!([{ "type": "Failed", "status": "True", "message": "back-off" }]),
            JobState::Failed("back-off".to_owned()),
        ),
    ] {
        let object = crate::tasks::fixture::from(json!({
            "metadata": {}, "status": { "conditions": conditions },
        }));
        assert_eq!(JobView::from(&object).state, state, "{conditions}");
    }
}

// B10, B12
#[test]
fn teardown_deletes_job_and_service_and_waits_until_nothing_is_left() {
    let mut world = at(T::TeardownBootstrap);
    let going = JobView { terminating: true, ..job(JobState::Complete) };
    let lines = world.transcript([
        Outcome::Job(Some(job(JobState::Complete))),
        Outcome::Accepted,
        Outcome::Job(Some(going)),
    ]);
    let expected =
        ["read Job", "delete Job uid=job-uid", "read Job", "wait -: …Job is being deleted"];
    assert_transcript(&lines, &expected);

    world.seen.job = Reading::Unread;
    let going = ObjectView { terminating: true, ..service() };
    let lines = world.transcript([
        Outcome::Job(None),
        Outcome::Service(Some(service())),
        Outcome::Accepted,
        Outcome::Service(Some(going)),
    ]);
    let expected = [
        "read Job",
        "read Service",
        "delete Service uid=svc-uid",
        "read Service",
        "wait -: the bootstrap Service is being deleted",
    ];
    assert_transcript(&lines, &expected);

    world.seen.service = Reading::Unread;
    let lines =
        world.transcript([Outcome::Service(None), Outcome::Pods(vec![bootstrap_pod().into()])]);
    let waits = "wait PodTerminating again 5s: the bootstrap pod still exists";
    assert_transcript(&lines, &["read Service", "read Pods", waits]);

    world.live_pods([terminating(bootstrap_pod())]);
    world.check("a terminating pod still has the volume", waits);
    world.live_pods([pod(OLD)]);
    world.check("no pod", "done");
}

// B11
#[test]
fn the_job_is_kept_until_its_completion_is_recorded() {
    let mut world = at(T::TeardownBootstrap);
    see_job(&mut world, |job| job.state = JobState::Complete);
    world.seen.stored.replay = false;
    world.check("not stored", "wait -: waiting for the completed replay to be recorded in status");
    world.seen.stored.replay = true;
    world.check("stored", "delete Job uid=job-uid");
}

#[test]
fn teardown_of_nothing_is_done() {
    let mut world = at(T::TeardownBootstrap);
    let answers = [Outcome::Job(None), Outcome::Service(None), Outcome::Pods(Vec::new())];
    let lines = world.transcript(answers);
    assert_transcript(&lines, &["read Job", "read Service", "read Pods", "done"]);
}

// B10
#[test]
fn teardown_touches_only_the_nodes_own_objects_and_reads_again_after_a_failure() {
    check(
        T::TeardownBootstrap,
        &[
            (
                "another's Job",
                |world| see_job(world, |job| job.controller = Some("other".to_owned())),
                "wait FieldConflict: …",
            ),
            (
                "another's Service is left",
                |world| {
                    world.seen.job = Reading::Live(None);
                    see_service(world, |service| service.controller = None);
                    world.live_pods([]);
                },
                "done",
            ),
            ("a cached Job", |world| world.seen.job = Reading::Cached(None), "read Job"),
            (
                "a cached Service",
                |world| {
                    world.seen.job = Reading::Live(None);
                    world.seen.service = Reading::Cached(None);
                },
                "read Service",
            ),
            (
                "cached pods",
                |world| {
                    world.seen.job = Reading::Live(None);
                    world.seen.service = Reading::Live(None);
                    world.seen.pods = Reading::Cached(Some(Vec::new()));
                },
                "read Pods",
            ),
        ],
    );
    for failure in
        [Failure::NotFound(String::new()), Failure::Conflict("the uid differs".to_owned())]
    {
        let mut world = at(T::TeardownBootstrap);
        world.seen.job = Reading::Live(Some(job(JobState::Complete)));
        let lines = world.transcript([Outcome::Failed(failure)]);
        assert_transcript(&lines, &["delete Job uid=job-uid", "read Job"]);
    }
}

// B21
#[test]
fn a_plan_that_applies_before_the_teardown_is_reported() {
    let text = "apply-statefulset comes before teardown-bootstrap: two pods on one volume";
    for (swapped, found) in [(false, false), (true, true)] {
        let mut tasks = BOOTSTRAP;
        if swapped {
            tasks.swap(5, 6);
        }
        let notes = check_plan(&plan(&tasks));
        assert_eq!(notes.iter().any(|note| note.text.contains(text)), found, "{notes:?}");
    }
}

#[test]
fn a_plan_without_a_replay_tears_down_a_leftover_job_without_its_record() {
    let mut world = World::at(&[T::TeardownBootstrap, T::ApplyStatefulSet], T::TeardownBootstrap);
    world.seen.stored.replay = false;
    world.seen.job = Reading::Live(Some(job(JobState::Failed("exit code 1".to_owned()))));
    world.check("the Job of a failed bootstrap", "delete Job uid=…");
}

#[test]
fn the_gate_of_a_pod_that_replaces_an_evicted_one_is_opened_again() {
    let mut world = World::at(
        &[T::DeployBootstrapJob, T::MarkReady, T::AwaitBootstrapComplete, T::TeardownBootstrap],
        T::AwaitBootstrapComplete,
    );
    world.seen.job = Reading::Live(Some(job(JobState::Active)));
    let mut next = bootstrap_pod();
    next.seid.started = false;
    world.live_pods([next.clone()]);
    let lines = world.transcript([Outcome::Task(None), Outcome::Accepted, Outcome::Task(None)]);
    assert!(lines[0].contains(" poll ") && lines[1].contains(" mark-ready "), "{lines:?}");
    // By a cache the address may be that of another pod.
    world.seen.pods = Reading::Cached(Some(vec![next.clone().into()]));
    world.check("cached", &format!("read Pod({:?})", next.name));
    world.seen.pod = Reading::Live(Some(PodView { ip: None, ..next.clone() }.into()));
    world.check("another address", "wait SidecarUnreachable again 5s: …");
    next.seid.started = true;
    world.live_pods([next]);
    world.check("it runs", "wait -: the bootstrap Job is replaying to its target height");
}
