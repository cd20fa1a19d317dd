use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::plan::{PlanKind, TaskStatus, task_id};
use sei_api::task::{Side, TaskType};
use serde_json::{Value, json};

use crate::request::{Failure, Outcome, TaskRecord, TaskState};
use crate::seen::Reading;
use crate::tasks::fixture::{
    BOOTSTRAP, NEW, NODE_UID, OLD, PLAN, World, assert_transcript, bootstrap, pod, statefulset,
    terminating,
};
use crate::tasks::sidecar::{attempt_id, wire_params};
use crate::view::{Controller, JobState, JobView, PodView};

use TaskType as T;

fn record(state: TaskState) -> Outcome {
    Outcome::Task(Some(TaskRecord::from(state)))
}

fn failed(text: &str) -> TaskState {
    TaskState::Failed(text.to_owned())
}

/// The gate of the fresh pod is to be opened.
fn gate() -> World {
    let mut world = World::updating(T::MarkReady);
    world.live_pods([pod(NEW)]);
    world
}

fn id(task: TaskType, index: usize) -> String {
    task_id(PLAN, task.as_str(), index)
}

// X13, O2
#[test]
fn a_task_is_polled_then_submitted_once_then_polled_to_its_end() {
    let mut world = gate();
    let id = id(T::MarkReady, 6);
    let lines =
        world.transcript([Outcome::Task(None), Outcome::Accepted, record(TaskState::Running)]);
    let expected = [
        &*format!("pod-new 10.0.0.2 poll {id}"),
        &*format!("pod-new 10.0.0.2 submit {id} mark-ready {{}}"),
        &*format!("pod-new 10.0.0.2 poll {id}"),
        "wait - again 5s: mark-ready runs on pod n-0",
    ];
    assert_transcript(&lines, &expected);
    assert_eq!(world.seen.submitted, std::slice::from_ref(&id));

    // The next pass.
    world.seen.tasks.clear();
    let lines = world.transcript([record(TaskState::Completed)]);
    assert_transcript(&lines, &[&format!("pod-new 10.0.0.2 poll {id}"), "done"]);
}

// X11, X13
#[test]
fn a_failure_between_two_polls_is_noticed() {
    let mut world = gate();
    let lines = world.transcript([record(failed("disk full"))]);
    assert_transcript(&lines, &["pod-new 10.0.0.2 poll …", "retry: disk full"]);
}

// O2
#[test]
fn every_sidecar_task_is_polled_to_its_end() {
    for task in TaskType::ALL.iter().filter(|task| task.side() == Side::Sidecar) {
        for (state, expected) in [
            (TaskState::Running, "wait - again 5s: …"),
            (TaskState::Completed, "done"),
            (failed("no"), "retry: no"),
        ] {
            let mut world = World::only(*task, good_params(*task));
            world.seen.statefulset = Reading::Live(Some(statefulset().into()));
            world.live_pods([pod(NEW)]);
            let lines = world.transcript([record(state)]);
            assert_transcript(&lines, &["pod-new 10.0.0.2 poll …", expected]);
        }
    }
}

/// A world whose current task was submitted so many seconds ago and still runs.
fn runs_for(task: TaskType, seconds: i64) -> World {
    let mut world = World::only(task, good_params(task));
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.live_pods([pod(NEW)]);
    let submitted = world.seen.now.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
    world.plan.tasks[0].submitted_at = Some(Time(submitted));
    let id = attempt_id(&world.plan, 0, &world.plan.tasks[0]);
    world.seen.tasks.insert(id, Some(TaskRecord::from(TaskState::Running)));
    world
}

#[test]
fn every_sidecar_task_but_a_restore_has_a_deadline() {
    for task in TaskType::ALL.iter().filter(|task| task.side() == Side::Sidecar) {
        let expected = if *task == T::SnapshotRestore {
            "wait - again 5s: …"
        } else {
            "timed out: no end…"
        };
        runs_for(*task, 3600).check(task.as_str(), expected);
        runs_for(*task, 30).check(task.as_str(), "wait - again 5s: …");
        runs_for(*task, -3600).check("by a clock that was ahead", expected);
    }
}

#[test]
fn a_run_that_began_again_with_its_pod_gets_its_time() {
    let mut world = runs_for(T::ConfigPatch, 3600);
    let mut restarted = pod(NEW);
    restarted.sidecar.running_since = Some(world.seen.now);
    world.live_pods([restarted]);
    world.check("the sidecar has just started", "wait - again 5s: …");
}

#[test]
fn an_open_gate_completes_mark_ready() {
    let mut world = runs_for(T::MarkReady, 3600);
    world.seen.open_gate = Some("pod-old".to_owned());
    world.check("the gate of another pod", "timed out: …");
    world.seen.open_gate = Some("pod-new".to_owned());
    world.check("a record that stays running", "done");
    world.seen.failure = Some(Failure::TaskRefused("no".to_owned()));
    world.check("a refused submission", "done");
}

#[test]
fn a_refused_submission_is_a_failed_attempt() {
    let mut world = gate();
    let refused = Outcome::Failed(Failure::TaskRefused("unknown task type".to_owned()));
    let lines = world.transcript([Outcome::Task(None), refused]);
    let expected =
        ["pod-new 10.0.0.2 poll …", "pod-new 10.0.0.2 submit …", "retry: unknown task type"];
    assert_transcript(&lines, &expected);
}

#[test]
fn a_retry_waits_unless_the_sidecar_has_started_since() {
    let mut world = gate();
    let pause = |seconds| jiff::SignedDuration::from_secs(seconds);
    let at = |seconds| Some(Time(world.seen.now.checked_add(pause(seconds)).unwrap()));
    let (soon, far) = (at(7), at(3600));
    let task = &mut world.plan.tasks[6];
    (task.retry_count, task.error) = (Some(1), Some("disk full".to_owned()));
    task.not_before = soon;
    let waits = "wait SidecarTaskFailed again 7s: mark-ready failed and is run again: disk full";
    world.check("the pause", waits);
    let mut restarted = pod(NEW);
    restarted.sidecar.running_since = Some(world.seen.now);
    world.live_pods([restarted]);
    world.check("another process", "pod-new 10.0.0.2 poll …");
    world.live_pods([pod(NEW)]);
    world.plan.tasks[6].not_before = far;
    world.check("longer than any pause", "pod-new 10.0.0.2 poll …");
}

fn good_params(task: TaskType) -> Value {
    match task {
        T::ConfigApply => json!({ "mode": "full" }),
        T::ConfigPatch => json!({ "files": { "config.toml": { "a": "b" } } }),
        T::GenerateIdentity => json!({ "ChainID": "demo-1", "Moniker": "n" }),
        T::GenerateGentx => {
            json!({ "ChainID": "demo-1", "StakingAmount": "1usei", "AccountBalance": "2usei" })
        }
        T::UploadGenesisArtifacts => json!({ "NodeName": "n" }),
        T::AssembleAndUploadGenesis => {
            json!({ "AccountBalance": "2usei", "Namespace": "d", "Nodes": [{ "name": "n" }] })
        }
        _ => json!({}),
    }
}

// X1
#[test]
fn a_retry_uses_a_derived_id_of_its_own() {
    let mut world = gate();
    let first = id(T::MarkReady, 6);
    for (count, expected) in [
        (None, first.clone()),
        (Some(0), first.clone()),
        (Some(-4), first.clone()),
        (Some(1), task_id("plan-1/retry-1", "mark-ready", 6)),
        (Some(2), task_id("plan-1/retry-2", "mark-ready", 6)),
    ] {
        world.plan.tasks[6].retry_count = count;
        assert_eq!(attempt_id(&world.plan, 6, &world.plan.tasks[6]), expected);
        world.check("polled by it", &format!("pod-new 10.0.0.2 poll {expected}"));
        assert_eq!(world.plan.tasks[6].id, first, "the stored id stays");
    }
    // The failed record of the first attempt does not affect the second.
    world.plan.tasks[6].retry_count = Some(1);
    world.seen.tasks.insert(first, Some(TaskRecord::from(failed("once"))));
    let lines = world.transcript([Outcome::Task(None)]);
    let second = task_id("plan-1/retry-1", "mark-ready", 6);
    let submits = format!("pod-new 10.0.0.2 submit {second} mark-ready {{}}");
    assert_transcript(&lines, &[&format!("pod-new 10.0.0.2 poll {second}"), &submits]);
}

#[test]
fn abandoned_tasks_are_cleared_before_anything_is_submitted() {
    let mut world = gate();
    world.plan.abandoned = ["a", "b", "c", "d"].map(str::to_owned).into();
    let lines = world.transcript([
        Outcome::Task(None),
        record(TaskState::Completed),
        record(TaskState::Running),
        Outcome::Accepted,
        record(failed("ended")),
        Outcome::Task(None),
        Outcome::Accepted,
        record(TaskState::Completed),
    ]);
    let polls = format!("pod-new 10.0.0.2 poll {}", id(T::MarkReady, 6));
    let expected = [
        "pod-new 10.0.0.2 poll a",
        "cleared a",
        "pod-new 10.0.0.2 poll b",
        "cleared b",
        "pod-new 10.0.0.2 poll c",
        "pod-new 10.0.0.2 delete c",
        "cleared c",
        "pod-new 10.0.0.2 poll d",
        "cleared d",
        &polls,
        "pod-new 10.0.0.2 submit …",
        &polls,
        "done",
    ];
    assert_transcript(&lines, &expected);
}

#[test]
fn after_a_refused_write_the_sidecar_is_polled_again() {
    let mut world = gate();
    world.plan.abandoned = vec!["a".to_owned()];
    let lines = world.transcript([
        record(TaskState::Running),
        Outcome::Failed(Failure::NotFound(String::new())),
        Outcome::Task(None),
        Outcome::Task(None),
        Outcome::Failed(Failure::Conflict("already there".to_owned())),
        record(TaskState::Running),
    ]);
    let expected = [
        "pod-new 10.0.0.2 poll a",
        "pod-new 10.0.0.2 delete a",
        "pod-new 10.0.0.2 poll a",
        "cleared a",
        "pod-new 10.0.0.2 poll …",
        "pod-new 10.0.0.2 submit …",
        "pod-new 10.0.0.2 poll …",
        "wait - again 5s: mark-ready runs on pod n-0",
    ];
    assert_transcript(&lines, &expected);
}

/// The stored parameters of a task that are sent.
#[track_caller]
fn check_wire(task: TaskType, stored: Value, expected: &Value) {
    let mut world = World::only(task, stored);
    let sent = wire_params(task, &world.plan.tasks[0]).unwrap();
    assert_eq!(&sent, expected, "{task}");
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.live_pods([pod(NEW)]);
    let lines = world.transcript([Outcome::Task(None)]);
    let submits = format!("pod-new 10.0.0.2 submit {} {task} {expected}", id(task, 0));
    assert_transcript(&lines, &["pod-new 10.0.0.2 poll …", &submits]);
}

// O1
#[test]
fn parameters_are_sent_under_their_wire_names_without_empty_options() {
    for (task, stored, sent) in [
        (T::SnapshotRestore, json!({ "TargetHeight": 12 }), json!({ "targetHeight": 12 })),
        (T::SnapshotRestore, json!({ "TargetHeight": 0 }), json!({})),
        (T::ConfigureGenesis, json!({ "ExpectedGenesisHash": "" }), json!({})),
        (T::ConfigureGenesis, json!({}), json!({})),
        (
            T::ConfigureGenesis,
            json!({ "ExpectedGenesisHash": "ab" }),
            json!({ "expectedGenesisHash": "ab" }),
        ),
        (
            T::ConfigApply,
            json!({ "mode": "full", "overrides": { "a.b": "" }, "targetVersion": 0,
                    "incremental": false }),
            json!({ "mode": "full", "overrides": { "a.b": "" } }),
        ),
        (
            T::ConfigApply,
            json!({ "mode": "seed", "targetVersion": 2, "incremental": true }),
            json!({ "mode": "seed", "targetVersion": 2, "incremental": true }),
        ),
        (
            T::ConfigPatch,
            json!({ "files": { "config.toml": { "p2p": { "external-address": "", "x": null } } } }),
            json!({ "files": { "config.toml": { "p2p": { "external-address": "", "x": null } } } }),
        ),
        (T::ConfigPatch, json!({ "Files": { "a": {} } }), json!({ "files": { "a": {} } })),
        (
            T::ConfigureStateSync,
            json!({ "UseLocalSnapshot": true, "TrustPeriod": "168h0m0s", "BackfillBlocks": 5,
                    "RpcServers": ["a:1", "b:2"] }),
            json!({ "useLocalSnapshot": true, "trustPeriod": "168h0m0s", "backfillBlocks": 5,
                    "rpcServers": ["a:1", "b:2"] }),
        ),
        (
            T::ConfigureStateSync,
            json!({ "UseLocalSnapshot": false, "TrustPeriod": "", "BackfillBlocks": 0,
                    "RpcServers": null }),
            json!({}),
        ),
        (T::ConfigValidate, json!({}), json!({})),
        (T::MarkReady, json!(null), json!({})),
        (T::SetGenesisPeers, json!({}), json!({})),
        (
            T::GenerateIdentity,
            json!({ "ChainID": "demo-1", "Moniker": "n" }),
            json!({ "chainId": "demo-1", "moniker": "n" }),
        ),
        (
            T::GenerateGentx,
            json!({ "ChainID": "demo-1", "StakingAmount": "1usei", "AccountBalance": "2usei" }),
            json!({ "chainId": "demo-1", "stakingAmount": "1usei", "accountBalance": "2usei" }),
        ),
        (T::UploadGenesisArtifacts, json!({ "NodeName": "n" }), json!({ "nodeName": "n" })),
        (T::UploadGenesisArtifacts, json!({ "nodeName": "n" }), json!({ "nodeName": "n" })),
        (T::UploadGenesisArtifacts, json!({ "NODENAME": "n" }), json!({ "nodeName": "n" })),
        (T::SnapshotRestore, json!({ "targetheight": 12 }), json!({ "targetHeight": 12 })),
        (T::ConfigApply, json!({ "incremental": true }), json!({ "incremental": true })),
        (T::MarkReady, json!({ "NewerThanUs": 1 }), json!({ "newerThanUs": 1 })),
    ] {
        check_wire(task, stored, &sent);
    }
}

// X15
#[test]
fn parameters_that_can_never_work_fail_the_plan_before_any_call() {
    for (task, stored, text) in [
        (
            T::ConfigApply,
            json!({}),
            "config-apply: parameter mode is missing, empty or of the wrong type",
        ),
        (T::ConfigApply, json!({ "mode": "" }), "config-apply: parameter mode is…"),
        (T::ConfigApply, json!(null), "config-apply: parameter mode is…"),
        (
            T::ConfigPatch,
            json!({}),
            "config-patch: parameter files is missing, empty or of the wrong type",
        ),
        (T::ConfigPatch, json!({ "files": {} }), "config-patch: parameter files is…"),
        (T::ConfigPatch, json!({ "files": [] }), "config-patch: parameter files is…"),
        (T::GenerateIdentity, json!({ "ChainID": "c" }), "…parameter moniker is…"),
        (T::GenerateIdentity, json!({ "Moniker": "n" }), "…parameter chainId is…"),
        (
            T::GenerateGentx,
            json!({ "ChainID": "c", "StakingAmount": "1usei" }),
            "…parameter accountBalance is…",
        ),
        (
            T::GenerateGentx,
            json!({ "ChainID": "c", "AccountBalance": "1usei" }),
            "…parameter stakingAmount is…",
        ),
        (T::UploadGenesisArtifacts, json!({ "NodeName": "" }), "…parameter nodeName is…"),
        (
            T::AssembleAndUploadGenesis,
            json!({ "AccountBalance": "2usei", "Namespace": "d", "Nodes": [] }),
            "…parameter nodes is…",
        ),
        (T::ConfigApply, json!({ "mode": 5 }), "…parameter mode is…"),
        (T::ConfigApply, json!({ "mode": { "a": 1 } }), "…parameter mode is…"),
        (T::ConfigApply, json!({ "incremental": "true" }), "…parameter mode is…"),
        (T::ConfigApply, json!({ "incremental": false }), "…parameter mode is…"),
        (T::ConfigPatch, json!({ "files": "config.toml" }), "…parameter files is…"),
        (T::ConfigPatch, json!({ "files": ["config.toml"] }), "…parameter files is…"),
        (T::MarkReady, json!([1]), "mark-ready: the parameters are not an object"),
        (T::MarkReady, json!("text"), "mark-ready: the parameters are not an object"),
        (T::ConfigureGenesis, json!(5), "…not an object"),
    ] {
        // Nothing was read: the result needs no snapshot.
        World::only(task, stored.clone()).check(&stored.to_string(), &format!("fail: {text}"));
    }
}

#[test]
fn after_the_replacement_only_the_fresh_pod_is_called() {
    const WAITS: &str = "wait SidecarUnreachable: no pod for mark-ready yet";
    for (case, pods, expected) in [
        ("the old one", vec![pod(OLD)], WAITS),
        ("both", vec![pod(OLD), pod(NEW)], "pod-new 10.0.0.2 poll …"),
        ("none", vec![], WAITS),
        ("terminating", vec![terminating(pod(NEW))], WAITS),
        ("not ours", vec![PodView { controller: None, ..pod(NEW) }], WAITS),
        (
            "no address",
            vec![PodView { ip: None, ..pod(NEW) }],
            "wait SidecarUnreachable: pod n-0 has no address yet",
        ),
    ] {
        let mut world = gate();
        world.live_pods(pods);
        world.check(case, expected);
    }
    let mut world = gate();
    world.statefulset().observed_generation = 1;
    world.check("it is unknown which pod is fresh", WAITS);
}

#[test]
fn every_task_after_the_replacement_needs_the_fresh_pod_and_none_before_it() {
    let late = [T::ApplyStatefulSet, T::ReplacePod, T::ConfigPatch, T::MarkReady];
    let mut world = World::at(&late, T::ConfigPatch);
    world.plan.tasks[2].params = Some(good_params(T::ConfigPatch));
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.live_pods([pod(OLD)]);
    world.check("late", "wait SidecarUnreachable: no pod for config-patch yet");

    let mut world = World::updating(T::ConfigPatch);
    world.plan.tasks[0].params = Some(good_params(T::ConfigPatch));
    world.check("early", "pod-old 10.0.0.1 poll …");

    let mut world = World::only(T::MarkReady, json!({}));
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.live_pods([pod(OLD)]);
    world.check("an update opens the gate of the fresh pod only", "wait SidecarUnreachable: …");
    for kind in [Some(PlanKind::MarkReady), None] {
        world.plan.kind = kind;
        world.check("a plan that only opens the gate", "pod-old 10.0.0.1 poll …");
    }
}

#[test]
fn a_cache_older_than_the_apply_does_not_decide_which_pod_is_fresh() {
    // By the old revision, which is all that the cache has, the old pod is the fresh one.
    let mut world = gate();
    world.statefulset().generation = 1;
    world.statefulset().update_revision = Some(OLD.to_owned());
    world.live_pods([pod(OLD)]);
    world.make_cached();
    let found = Outcome::StatefulSet(Some(statefulset().into()));
    let lines = world.transcript([found]);
    let waits = "wait SidecarUnreachable: no pod for mark-ready yet";
    assert_transcript(&lines, &["read StatefulSet", waits]);

    let mut world = gate();
    world.make_cached();
    world.plan.applied.as_mut().unwrap().uid = "other".to_owned();
    world.check("another object", "read StatefulSet");
    world.plan.applied = None;
    world.check("nothing applied by this plan", "pod-new 10.0.0.2 poll …");
}

#[test]
fn unread_objects_are_read_before_a_sidecar_is_called() {
    let mut world = gate();
    world.make_cached();
    world.check("caches are enough", "pod-new 10.0.0.2 poll …");
    world.seen.pods = Reading::Cached(None);
    world.check("no pods in the cache", "read Pods");
    world.seen.pods = Reading::Unread;
    world.check("no pods", "read Pods");
    world.seen.pods = Reading::Live(None);
    world.check("no pods at all", "wait SidecarUnreachable: …");
    world.seen.statefulset = Reading::Unread;
    world.check("no StatefulSet", "read StatefulSet");
    world.seen.statefulset = Reading::Live(None);
    world.check("no StatefulSet", "wait -: StatefulSet not found");
}

#[test]
fn the_sidecar_of_a_foreign_pod_is_never_called() {
    let mut world = gate();
    world.statefulset().controller = Some("other".to_owned());
    world.check("another owner's StatefulSet", "wait FieldConflict: …");
    let foreign = [None, Some(Controller::job("n-bootstrap", "other"))];
    for controller in foreign {
        let mut world = bootstrapping();
        world.live_pods([PodView { controller, ..bootstrap_pod() }]);
        world.check("not the Job's", "wait SidecarUnreachable: no pod for config-apply yet");
    }
}

#[test]
fn a_task_is_submitted_to_a_pod_that_was_seen_running() {
    let submits = "pod-new 10.0.0.2 submit …";
    let cached = |change: fn(&mut PodView)| {
        let mut world = gate();
        let mut pod = pod(NEW);
        change(&mut pod);
        world.seen.pods = Reading::Cached(Some(vec![pod.into()]));
        world
    };
    let live = |change: fn(&mut PodView)| {
        let mut pod = pod(NEW);
        change(&mut pod);
        Outcome::Pod(Some(pod.into()))
    };
    let polls = "pod-new 10.0.0.2 poll …";
    let reads = "read Pod(\"n-0\")";
    for (case, found, expected) in [
        ("as cached", live(|_| {}), submits),
        ("another pod", live(|pod| pod.uid = "later".to_owned()), "wait SidecarUnreachable…"),
        ("another address", live(|pod| pod.ip = None), "wait SidecarUnreachable…"),
        ("its sidecar ended", live(|pod| pod.sidecar.running = false), "wait SidecarUnreachable…"),
        ("no pod", Outcome::Pod(None), "wait SidecarUnreachable…"),
    ] {
        let mut world = cached(|_| {});
        let lines = world.transcript([Outcome::Task(None), found]);
        assert_transcript(&lines, &[polls, reads, expected]);
        assert_eq!(lines.len(), 3, "{case}");
    }
    // The proxy of another node would reject the token. It has accepted the poll, so its sidecar
    // runs, whatever the kubelet has reported so far.
    for (case, found, expected) in [
        ("not reported yet", live(|pod| pod.sidecar.running = false), submits),
        ("another pod", live(|pod| pod.uid = "later".to_owned()), "wait SidecarUnreachable…"),
    ] {
        let mut world = cached(|pod| pod.proxy.own_audience = true);
        let lines = world.transcript([Outcome::Task(None), found]);
        assert_transcript(&lines, &[polls, reads, expected]);
        assert_eq!(lines.len(), 3, "{case}");
    }
}

/// A task of the bootstrap pod, whose Job runs.
fn bootstrapping() -> World {
    let mut world = World::at(&BOOTSTRAP, T::ConfigApply);
    world.plan.tasks[3].params = Some(good_params(T::ConfigApply));
    world.seen.desired.bootstrap = Some(bootstrap());
    world.seen.job = Reading::Live(Some(JobView {
        uid: "job-uid".to_owned(),
        controller: Some(NODE_UID.to_owned()),
        ..JobView::default()
    }));
    world.live_pods([pod(OLD), bootstrap_pod()]);
    world
}

fn bootstrap_pod() -> PodView {
    PodView {
        uid: "pod-boot".to_owned(),
        ip: Some("10.0.0.9".to_owned()),
        is_bootstrap: true,
        controller: Some(Controller::job("n-bootstrap", "job-uid")),
        revision: None,
        ..pod(OLD)
    }
}

#[test]
fn before_the_teardown_the_jobs_pod_is_called() {
    let mut world = bootstrapping();
    world.check("the Job's", "pod-boot 10.0.0.9 poll …");
    world.live_pods([pod(OLD)]);
    world.check("not yet", "wait SidecarUnreachable: no pod for config-apply yet");
    world.live_pods([terminating(bootstrap_pod())]);
    world.check("terminating", "wait SidecarUnreachable: …");

    let mut world = World::at(&BOOTSTRAP, T::ConfigValidate);
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.live_pods([bootstrap_pod(), pod(NEW)]);
    world.check("after it", "pod-new 10.0.0.2 poll …");
}

#[test]
fn when_the_job_has_ended_the_tasks_of_its_pod_end() {
    for (state, expected) in [
        (Some(JobState::Complete), "done"),
        (Some(JobState::Failed("OOM".to_owned())), "fail: the bootstrap Job failed: OOM"),
        (Some(JobState::Active), "pod-boot 10.0.0.9 poll …"),
        (None, "fail: bootstrap Job not found"),
    ] {
        let mut world = bootstrapping();
        world.seen.job = Reading::Live(state.map(|state| JobView {
            uid: "job-uid".to_owned(),
            controller: Some(NODE_UID.to_owned()),
            state,
            ..JobView::default()
        }));
        world.check(expected, expected);
    }
    let mut world = bootstrapping();
    let state = JobState::Complete;
    world.seen.job = Reading::Live(Some(JobView { state, ..JobView::default() }));
    world.check("another's Job", "wait FieldConflict: Job n-bootstrap is controlled by another…");
    let mut world = bootstrapping();
    world.seen.job = Reading::Cached(None);
    world.check("a cache decides nothing", "read Job");
}

// X8, X12
#[test]
fn a_sidecar_that_does_not_answer_is_called_again_in_five_seconds() {
    for (failure, expected) in [
        (
            Failure::Unreachable("connection refused".to_owned()),
            "wait SidecarUnreachable again 5s: connection refused",
        ),
        (Failure::Unauthorized("401".to_owned()), "wait SidecarAuth again 30s: 401"),
        (Failure::Indeterminate("timeout".to_owned()), "wait - again 5s: timeout"),
    ] {
        let mut world = gate();
        let lines = world.transcript([Outcome::Task(None), Outcome::Failed(failure)]);
        let expected = ["pod-new 10.0.0.2 poll …", "pod-new 10.0.0.2 submit …", expected];
        assert_transcript(&lines, &expected);
        assert!(world.seen.submitted.is_empty());
    }
}

#[test]
fn a_task_that_the_go_operator_left_running_is_polled_like_any_other() {
    let mut world = gate();
    world.plan.tasks[6].status = TaskStatus::Running;
    world.check("running", &format!("pod-new 10.0.0.2 poll {}", id(T::MarkReady, 6)));
}

#[test]
fn a_plan_continues_with_the_pod_it_made_when_the_revision_moves() {
    let mut world = World::updating(T::ReplacePod);
    world.live_pods([pod(NEW)]);
    let crate::tasks::Next::Done(effects) = world.next() else { panic!("the pod is fresh") };
    assert_eq!(effects.applied.as_ref().unwrap().revision.as_deref(), Some(NEW));
    world.plan.applied.clone_from(&effects.applied);
    for task in world.plan.tasks.iter_mut().filter(|task| !task.is(T::MarkReady)) {
        task.status = TaskStatus::Complete;
    }
    // `kubectl rollout restart` makes another revision.
    world.statefulset().update_revision = Some("n-restarted".to_owned());
    world.check("the pod is still the plan's", "pod-new 10.0.0.2 poll …");
    world.plan.applied.as_mut().unwrap().revision = None;
    world.check("without the record it is stale", "wait SidecarUnreachable: no pod …");
}
