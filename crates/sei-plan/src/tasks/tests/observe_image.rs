use k8s_openapi::api::core::v1::Pod;
use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::request::Outcome;
use crate::seen::Reading;
use crate::tasks::fixture::{
    NEW, OLD, World, assert_transcript, from, now, pod, signing_node, statefulset, terminating,
};
use crate::tasks::{MadeFrom, Next, Stamp, observe};
use crate::view::{ContainerView, PodView, TroubleKind};

const STAMPS: &str = "done stamp seid:new sidecar:new v1:new";

/// The fresh pod runs, and everything was read live.
fn world() -> World {
    let mut world = World::updating(TaskType::ObserveImage);
    world.live_pods([pod(NEW)]);
    world.seen.pod = Reading::Live(Some(pod(NEW).into()));
    world
}

type Case = (&'static str, fn(&mut World), &'static str);

#[track_caller]
fn check(cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = world();
        change(&mut world);
        world.check(case, expected);
    }
}

/// The pod as the list and as the read of the pod itself return it.
#[track_caller]
fn check_pod(case: &str, change: impl Fn(&mut PodView), expected: &str) {
    let mut changed = pod(NEW);
    change(&mut changed);
    for (listed, live) in [(changed.clone(), pod(NEW)), (pod(NEW), changed.clone())] {
        let mut world = world();
        world.live_pods([listed]);
        world.seen.pod = Reading::Live(Some(live.into()));
        world.check(case, expected);
    }
}

fn stamp(world: &World) -> Stamp {
    match world.next() {
        Next::Done(effects) => effects.stamp.unwrap(),
        unexpected => panic!("{unexpected:?}"),
    }
}

// OI1, OI2, OI3
#[test]
fn what_the_pod_runs_is_stamped() {
    let mut world = world();
    world.seen.operator_version = "v9".to_owned();
    let Stamp { image, sidecar_image, hash, template } = stamp(&world);
    assert_eq!((&*image, &*sidecar_image, &*hash), ("seid:new", "sidecar:new", "v1:new"));
    assert_eq!((&*template.revision, &*template.pod_uid), (NEW, "pod-new"));
    assert_eq!((&*template.inputs_hash, &*template.operator_version), ("inputs:plan", "v9"));
    assert_eq!(template.observed_at.unwrap().0, now());
    assert_eq!(template.config, world.seen.desired.config);
}

// OI1, OI9
#[test]
fn a_later_edit_of_the_spec_is_not_stamped() {
    let mut world = world();
    world.seen.node.spec.image = "seid:newest".to_owned();
    world.seen.desired.image = "seid:newest".to_owned();
    world.seen.desired.sidecar_image = "sidecar:newest".to_owned();
    world.seen.desired.hash = "v1:newest".to_owned();
    world.seen.desired.inputs_hash = "inputs:newest".to_owned();
    world.check("the plan's own target", STAMPS);
    assert_eq!(stamp(&world).template.inputs_hash, "inputs:plan");
}

// OI4
#[test]
fn without_a_fresh_pod_nothing_is_stamped() {
    check(&[
        ("none", |world| world.live_pods([]), "wait StatefulSetNotObserved: …"),
        ("terminating", |world| world.live_pods([terminating(pod(NEW))]), "wait PodTerminating: …"),
        (
            "a stale pod that a lagging controller recreated",
            |world| world.live_pods([pod(OLD)]),
            "delete pod n-0 uid=pod-old version=11",
        ),
    ]);
}

// OI5, OI6, OI7
#[test]
fn the_statefulset_is_checked_as_for_the_replacement() {
    check(&[
        (
            "not observed",
            |world| world.statefulset().observed_generation = 1,
            "wait StatefulSetNotObserved: …",
        ),
        (
            "missing",
            |world| world.seen.statefulset = Reading::Live(None),
            "wait -: StatefulSet not found…",
        ),
        (
            "terminating",
            |world| world.statefulset().terminating = true,
            "wait StatefulSetTerminating: …",
        ),
        ("unread", |world| world.seen.statefulset = Reading::Unread, "read StatefulSet"),
        ("replicas left to the server", |world| world.statefulset().replicas = None, STAMPS),
        ("many replicas", |world| world.statefulset().replicas = Some(2), "fail: …"),
    ]);
}

// OI8
#[test]
fn the_stored_parameters_are_not_read() {
    for params in [Value::Null, json!({}), json!({ "nodeName": 7 }), json!([1])] {
        let mut world = world();
        world.plan.tasks[5].params = Some(params);
        world.check("any parameters", STAMPS);
    }
}

// OI10
#[test]
fn a_container_that_has_not_run_is_waited_for_by_name() {
    check_pod(
        "no image id",
        |pod| pod.seid.image_id = String::new(),
        "wait -: container seid of pod n-0 has not run yet",
    );
    check_pod(
        "never run",
        |pod| pod.seid.has_run = false,
        "wait -: container seid of pod n-0 has not run yet",
    );
    check_pod(
        "the sidecar has no image id",
        |pod| pod.sidecar.image_id = String::new(),
        "wait -: container sei-sidecar of pod n-0 has not run yet",
    );
    check_pod(
        "the sidecar never ran",
        |pod| pod.sidecar.has_run = false,
        "wait -: container sei-sidecar of pod n-0 has not run yet",
    );
}

// OI1
#[test]
fn images_that_admission_renamed_are_stamped_as_the_pod_has_them() {
    let mut renamed = pod(NEW);
    renamed.seid.image = "mirror/seid:new".to_owned();
    renamed.sidecar.image = "sidecar@sha256:abc".to_owned();
    let mut world = world();
    world.live_pods([renamed.clone()]);
    world.seen.pod = Reading::Live(Some(renamed.into()));
    let stamp = stamp(&world);
    assert_eq!(stamp.image, "mirror/seid:new");
    assert_eq!(stamp.sidecar_image, "sidecar@sha256:abc");
}

#[test]
fn a_key_is_released_when_the_first_pod_without_it_runs() {
    let signed = |world: &mut World| {
        let status = world.seen.node.status.get_or_insert_default();
        status.signing_identity = Some("v1:me".to_owned());
    };
    let mut released = world();
    signed(&mut released);
    released.check("it no longer signs", "done stamp … no longer signs");
    let mut keeps = world();
    keeps.seen.node = signing_node().into();
    signed(&mut keeps);
    keeps.check("it signs", STAMPS);
}

#[test]
fn neither_started_nor_ready_nor_running_is_required() {
    for change in [
        (|pod: &mut PodView| (pod.ready, pod.seid.started) = (false, false)) as fn(&mut PodView),
        |pod| (pod.seid.running, pod.sidecar.running) = (false, false),
        |pod| (pod.ready, pod.seid.started) = (true, true),
    ] {
        check_pod("the gate opens later", change, STAMPS);
    }
}

#[test]
fn a_stamp_needs_a_live_read_of_that_pod() {
    check(&[
        ("unread", |world| world.seen.pod = Reading::Unread, "read Pod(\"n-0\")"),
        (
            "cached",
            |world| world.seen.pod = Reading::Cached(Some(pod(NEW).into())),
            "read Pod(\"n-0\")",
        ),
        ("missing", |world| world.seen.pod = Reading::Live(None), "wait -: the pod was replaced…"),
        (
            "a namesake",
            |world| {
                world.seen.pod =
                    Reading::Live(Some(PodView { uid: "pod-newer".to_owned(), ..pod(NEW) }.into()));
            },
            "wait -: the pod was replaced…",
        ),
        (
            "no longer of the revision",
            |world| {
                let revision = Some(OLD.to_owned());
                world.seen.pod = Reading::Live(Some(PodView { revision, ..pod(NEW) }.into()));
            },
            "wait -: the pod was replaced…",
        ),
        (
            "no longer ours",
            |world| {
                world.seen.pod =
                    Reading::Live(Some(PodView { controller: None, ..pod(NEW) }.into()));
            },
            "wait -: the pod was replaced…",
        ),
        (
            "terminating",
            |world| world.seen.pod = Reading::Live(Some(terminating(pod(NEW)).into())),
            "wait -: the pod was replaced…",
        ),
    ]);
}

#[test]
fn proved_caches_are_enough_for_a_node_that_does_not_sign() {
    let mut world = world();
    world.seen.pod = Reading::Unread;
    world.make_cached();
    world.check("both caches", STAMPS);

    let mut starting = pod(NEW);
    starting.seid = ContainerView { image: "seid:new".to_owned(), ..ContainerView::default() };
    world.seen.pods = Reading::Cached(Some(vec![starting.into()]));
    world.check("no call while the cache shows that nothing runs", "wait -: container seid…");

    world.seen.node = signing_node().into();
    world.seen.pods = Reading::Cached(Some(vec![pod(NEW).into()]));
    let answers =
        [Outcome::StatefulSet(Some(statefulset().into())), Outcome::Pod(Some(pod(NEW).into()))];
    let expected = ["read StatefulSet", "read Pod(\"n-0\")", STAMPS];
    assert_transcript(&world.transcript(answers), &expected);
}

#[test]
fn a_plan_without_target_is_compared_with_the_desired_images() {
    check(&[
        ("the desired one runs", |world| world.plan.target = None, STAMPS),
        (
            "another runs",
            |world| {
                world.plan.target = None;
                world.seen.desired.image = "seid:newest".to_owned();
            },
            "wait -: pod n-0 has images seid:new and sidecar:new, expected seid:newest and …",
        ),
    ]);
    let mut world = world();
    world.plan.target = None;
    assert_eq!(stamp(&world).template.inputs_hash, "inputs:new");
}

#[test]
fn a_pod_that_does_not_run_gives_no_stamp() {
    let config = std::collections::BTreeMap::new();
    let made_from = MadeFrom {
        hash: "h",
        inputs_hash: "i",
        image: "seid:new",
        sidecar_image: "sidecar:new",
        config: &config,
        operator_version: "v",
        now: now(),
    };
    assert!(observe(&pod(NEW), &made_from).is_some());
    let mut starting = pod(NEW);
    starting.sidecar.has_run = false;
    assert_eq!(observe(&starting, &made_from), None);
}

// OI10
#[test]
fn a_failed_pull_is_reported_with_the_kubelets_message() {
    let object: Pod = from(json!({
        "metadata": { "name": "n-0" },
        "spec": { "containers": [{ "name": "seid", "image": "seid:new" }] },
        "status": { "containerStatuses": [{
            "name": "seid", "image": "seid:new", "imageID": "", "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": "no such tag" } },
        }] },
    }));
    let view = PodView::from(&object);
    assert_eq!(view.troubles[0].kind, TroubleKind::ImagePull);
    assert_eq!(view.troubles[0].message, "seid: ImagePullBackOff no such tag");
    assert!(!view.seid.has_run && view.seid.image_id.is_empty());
}

#[test]
fn a_container_between_two_runs_has_run() {
    for (state, last, has_run) in [
        (json!({ "running": {} }), json!({}), true),
        (json!({ "waiting": {} }), json!({ "terminated": { "exitCode": 1 } }), true),
        (json!({ "terminated": { "exitCode": 0 } }), json!({}), true),
        (json!({ "waiting": {} }), json!({}), false),
        (json!({}), json!({}), false),
    ] {
        let object: Pod = from(json!({
            "metadata": {},
            "status": { "containerStatuses": [{
                "name": "seid", "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
                "state": state, "lastState": last,
            }] },
        }));
        assert_eq!(PodView::from(&object).seid.has_run, has_run, "{state} {last}");
    }
}
