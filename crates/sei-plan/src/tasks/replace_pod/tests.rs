//! When exactly a pod is deleted, and when not.

use k8s_openapi::api::apps::v1::StatefulSet;
use sei_api::task::TaskType;
use serde_json::json;

use crate::request::{Failure, Outcome};
use crate::seen::Reading;
use crate::shared::Shared;
use crate::tasks::fixture::{
    NEW, OLD, STATEFULSET_UID, World, assert_transcript, from, pod, signing_node, terminating,
};
use crate::view::{Controller, PodView, StatefulSetView};

const DELETES: &str = "delete pod n-0 uid=pod-old version=11";

/// One case: its name, a change, and the expected step.
type Case = (&'static str, fn(&mut World), &'static str);

/// The stale pod and its StatefulSet were both read live.
#[track_caller]
fn check(cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = World::updating(TaskType::ReplacePod);
        change(&mut world);
        world.check(case, expected);
    }
}

/// The same world, read only from a cache that is proved to be fresh.
#[track_caller]
fn check_cached(cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = World::updating(TaskType::ReplacePod);
        world.make_cached();
        change(&mut world);
        world.check(case, expected);
    }
}

fn set_pods(world: &mut World, pods: Vec<PodView>) {
    match &mut world.seen.pods {
        Reading::Cached(found) | Reading::Live(found) => {
            *found = Some(pods.into_iter().map(Shared::new).collect());
        }
        Reading::Unread => panic!("no pods were seen"),
    }
}

// RP8
#[test]
fn a_stale_pod_is_deleted_with_its_uid_and_version() {
    check(&[("a stale pod", |_| {}, DELETES)]);
}

// RP1, RP12
#[test]
fn a_missing_statefulset_waits() {
    check(&[
        (
            "missing",
            |world| world.seen.statefulset = Reading::Live(None),
            "wait -: StatefulSet not found…",
        ),
        ("unread", |world| world.seen.statefulset = Reading::Unread, "read StatefulSet"),
        (
            "missing by cache",
            |world| world.seen.statefulset = Reading::Cached(None),
            "read StatefulSet",
        ),
    ]);
}

// RP2, RP3
#[test]
fn a_statefulset_without_selector_fails_the_plan() {
    check(&[(
        "no selector",
        |world| world.statefulset().selector = None,
        "fail: replace-pod: the StatefulSet has no selector",
    )]);
    for selector in [json!({}), json!({ "matchLabels": {} })] {
        let object: StatefulSet = from(json!({
            "metadata": {},
            "spec": { "serviceName": "n", "selector": selector, "template": {} },
        }));
        assert_eq!(StatefulSetView::from(&object).selector, None, "{selector}");
    }
}

// RP4, RP5, RP16
#[test]
fn more_than_one_replica_fails_the_plan() {
    check(&[
        (
            "three",
            |world| world.statefulset().replicas = Some(3),
            "fail: replace-pod: multi-replica StatefulSet (3 replicas)…",
        ),
        (
            "two",
            |world| world.statefulset().replicas = Some(2),
            "fail: replace-pod: multi-replica…",
        ),
        ("one", |world| world.statefulset().replicas = Some(1), DELETES),
        ("the server's default", |world| world.statefulset().replicas = None, DELETES),
        ("a stopped node's pod", |world| world.statefulset().replicas = Some(0), DELETES),
    ]);
}

// RP6, RP15
#[test]
fn a_similar_pod_is_never_touched() {
    check(&[
        (
            "no controller",
            |world| set_pods(world, vec![PodView { controller: None, ..pod(OLD) }]),
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "another StatefulSet's",
            |world| {
                let controller = Some(Controller::statefulset("n", "other"));
                set_pods(world, vec![PodView { controller, ..pod(OLD) }]);
            },
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "another kind's",
            |world| {
                let controller = Some(Controller::job("n", STATEFULSET_UID));
                set_pods(world, vec![PodView { controller, ..pod(OLD) }]);
            },
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "a forged reference that is right in kind and uid only",
            |world| {
                let controller = Some(Controller {
                    api_version: "nope.example/v1".to_owned(),
                    ..Controller::statefulset("zzz", STATEFULSET_UID)
                });
                set_pods(world, vec![PodView { controller, ..pod(OLD) }]);
            },
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "a pod of another name",
            |world| set_pods(world, vec![PodView { name: "n-1".to_owned(), ..pod(OLD) }]),
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "a similar pod of the new revision is not fresh either",
            |world| set_pods(world, vec![PodView { controller: None, ..pod(NEW) }]),
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "a similar terminating pod is not the old pod",
            |world| {
                set_pods(world, vec![PodView { controller: None, ..terminating(pod(OLD)) }]);
            },
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "beside the real one",
            |world| {
                let alike = PodView { controller: None, uid: "alike".to_owned(), ..pod(OLD) };
                set_pods(world, vec![alike, pod(OLD)]);
            },
            DELETES,
        ),
    ]);
}

// RP9, RP17
#[test]
fn only_the_pods_own_revision_decides_that_it_is_stale() {
    // Both revisions of the status are equal: after a rollback they always are.
    let object: StatefulSet = from(json!({
        "metadata": {
            "name": "n", "uid": STATEFULSET_UID, "generation": 4,
            "ownerReferences": [{ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "name": "n",
                                  "uid": "node-uid", "controller": true }],
        },
        "spec": {
            "serviceName": "n",
            "selector": { "matchLabels": { "sei.io/node": "n" } },
            "template": crate::tasks::fixture::template("seid:new"),
        },
        "status": {
            "replicas": 1, "observedGeneration": 4, "currentRevision": NEW, "updateRevision": NEW,
        },
    }));
    for (revision, expected) in [(OLD, DELETES), (NEW, "done")] {
        let mut world = World::updating(TaskType::ReplacePod);
        let target = world.plan.target.as_ref().map(|target| target.hash.clone());
        let view = StatefulSetView { template_hash: target, ..StatefulSetView::from(&object) };
        world.seen.statefulset = Reading::Live(Some(view.into()));
        world.live_pods([pod(revision)]);
        world.check(revision, expected);
    }
}

#[test]
fn nothing_is_deleted_for_a_template_that_is_not_the_plans() {
    let mut world = World::updating(TaskType::ReplacePod);
    world.live_pods([pod(OLD)]);
    let Some(view) = world.seen.statefulset.any().cloned() else { panic!("no StatefulSet") };
    for template_hash in [None, Some("v1:other".to_owned())] {
        let foreign = StatefulSetView { template_hash, ..(*view).clone() };
        world.seen.statefulset = Reading::Live(Some(foreign.into()));
        let text = "wait -: another template was applied; the plan will be superseded";
        world.check("another template", text);
    }
}

#[test]
fn a_pod_recorded_as_created_from_the_target_is_kept_under_any_revision_name() {
    let mut world = World::updating(TaskType::ReplacePod);
    let mut renamed = pod(OLD);
    renamed.seid.image = "seid:new".to_owned();
    world.live_pods([renamed]);
    let target = world.plan.target.as_ref().map(|target| target.hash.clone());
    let status = world.seen.node.status.get_or_insert_default();
    status.pod_template_hash = target;
    status.pod_template = Some(sei_api::status::ObservedTemplate {
        revision: OLD.to_owned(),
        ..sei_api::status::ObservedTemplate::default()
    });
    world.check("renamed by an upgrade of the control plane", "done");
    world.live_pods([pod(OLD)]);
    world.check("recorded as created from the target, with another image", DELETES);
    world.seen.node.status.get_or_insert_default().pod_template_hash = Some("v1:else".to_owned());
    world.check("created from another template", DELETES);
}

#[test]
fn a_pod_whose_image_admission_rewrote_is_kept_under_any_revision_name() {
    let mut world = World::updating(TaskType::ReplacePod);
    let mut mirrored = pod(OLD);
    mirrored.seid.image = "mirror/seid:new".to_owned();
    world.live_pods([mirrored]);
    let target = world.plan.target.as_ref().map(|target| target.hash.clone());
    let status = world.seen.node.status.get_or_insert_default();
    status.pod_template_hash = target;
    status.current_image = Some("mirror/seid:new".to_owned());
    status.pod_template = Some(sei_api::status::ObservedTemplate {
        revision: OLD.to_owned(),
        desired_image: Some("seid:new".to_owned()),
        ..sei_api::status::ObservedTemplate::default()
    });
    world.check("recorded when the same image was desired", "done");
    let status = world.seen.node.status.get_or_insert_default();
    status.pod_template.as_mut().unwrap().desired_image = Some("seid:old".to_owned());
    world.check("recorded when another image was desired", DELETES);
    // The plan has seen the pod that its own apply led to.
    world.plan.applied.as_mut().unwrap().revision = Some(OLD.to_owned());
    world.check("made by this plan", "done");
}

// RP10
#[test]
fn a_terminating_pod_is_not_deleted_again() {
    check(&[
        (
            "stale and terminating",
            |world| set_pods(world, vec![terminating(pod(OLD))]),
            "wait PodTerminating: pod n-0 on host-a is terminating",
        ),
        (
            "on no Kubernetes node",
            |world| set_pods(world, vec![PodView { host: None, ..terminating(pod(OLD)) }]),
            "wait PodTerminating: pod n-0 on no Kubernetes node is terminating",
        ),
        (
            "a terminating fresh pod does not count",
            |world| set_pods(world, vec![terminating(pod(NEW))]),
            "wait PodTerminating: …",
        ),
        (
            "beside its successor",
            |world| set_pods(world, vec![terminating(pod(OLD)), pod(NEW)]),
            "done",
        ),
    ]);
}

// RP11, RP13
#[test]
fn no_pod_is_touched_before_the_newest_template_was_observed() {
    check(&[
        (
            "no update revision",
            |world| world.statefulset().update_revision = None,
            "wait StatefulSetNotObserved: …generation 2 of 2",
        ),
        (
            "an empty update revision",
            |world| world.statefulset().update_revision = Some(String::new()),
            "wait StatefulSetNotObserved: …",
        ),
        (
            "generation not observed",
            |world| world.statefulset().observed_generation = 1,
            "wait StatefulSetNotObserved: …generation 1 of 2",
        ),
        (
            "checked before the selector and replicas",
            |world| {
                let statefulset = world.statefulset();
                statefulset.observed_generation = 1;
                (statefulset.selector, statefulset.replicas) = (None, Some(3));
            },
            "wait StatefulSetNotObserved: …generation 1 of 2",
        ),
        ("observed beyond it", |world| world.statefulset().observed_generation = 3, DELETES),
    ]);
}

// RP14
#[test]
fn a_pod_without_revision_label_is_not_replaced() {
    check(&[
        (
            "no label",
            |world| set_pods(world, vec![PodView { revision: None, ..pod(OLD) }]),
            "wait StatefulSetNotObserved: pod n-0 has no revision label and is not replaced",
        ),
        (
            "an empty label",
            |world| set_pods(world, vec![PodView { revision: Some(String::new()), ..pod(OLD) }]),
            "wait StatefulSetNotObserved: pod n-0 has no revision label and is not replaced",
        ),
    ]);
}

// RP19
#[test]
fn without_any_pod_a_fresh_one_is_waited_for() {
    check(&[
        (
            "none",
            |world| set_pods(world, Vec::new()),
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "none and no replicas",
            |world| {
                world.statefulset().replicas = Some(0);
                set_pods(world, Vec::new());
            },
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
    ]);
}

// RP9
#[test]
fn a_fresh_pod_completes_the_task_from_any_origin() {
    check(&[
        ("fresh", |world| set_pods(world, vec![pod(NEW)]), "done"),
        ("fresh beside a stale one", |world| set_pods(world, vec![pod(NEW), pod(OLD)]), DELETES),
    ]);
}

#[test]
fn readiness_plays_no_part() {
    check(&[
        ("ready", |world| set_pods(world, vec![PodView { ready: true, ..pod(OLD) }]), DELETES),
        (
            "halted",
            |world| {
                let mut halted = pod(OLD);
                (halted.ready, halted.seid.running, halted.seid.started) = (false, false, false);
                set_pods(world, vec![halted]);
            },
            DELETES,
        ),
        (
            "a fresh pod that cannot run",
            |world| {
                let mut broken = pod(NEW);
                broken.seid = crate::view::ContainerView::default();
                set_pods(world, vec![broken]);
            },
            "done",
        ),
    ]);
}

#[test]
fn a_pod_that_is_ready_again_is_not_deleted_by_a_roll_without_a_free_slot() {
    const WAITS: &str =
        "wait - again 5s: the node is Ready again; it requests a slot of its chain first";
    fn while_down(world: &mut World, ready: bool) {
        world.plan.target.as_mut().unwrap().slot_while_down = Some(true);
        set_pods(world, vec![PodView { ready, ..pod(OLD) }]);
    }
    let cases: &[Case] = &[
        ("Ready again", |world| while_down(world, true), WAITS),
        ("still down", |world| while_down(world, false), DELETES),
    ];
    check(cases);
    check_cached(cases);
}

#[test]
fn the_pod_of_a_terminating_statefulset_is_not_replaced() {
    check(&[(
        "terminating",
        |world| world.statefulset().terminating = true,
        "wait StatefulSetTerminating: …its pod is not replaced",
    )]);
}

#[test]
fn the_pod_of_another_owners_statefulset_is_not_replaced() {
    check(&[
        (
            "another owner's",
            |world| world.statefulset().controller = Some("other".to_owned()),
            "wait FieldConflict: StatefulSet n is controlled by another object",
        ),
        (
            "without a controller",
            |world| world.statefulset().controller = None,
            "wait FieldConflict: …",
        ),
    ]);
}

#[test]
fn beside_a_live_statefulset_pods_are_listed_live_too() {
    check(&[
        ("unread", |world| world.seen.pods = Reading::Unread, "read Pods"),
        (
            "cached",
            |world| world.seen.pods = Reading::Cached(Some(vec![pod(OLD).into()])),
            "read Pods",
        ),
        ("cached and nothing", |world| world.seen.pods = Reading::Cached(None), "read Pods"),
    ]);
}

// RP8
#[test]
fn after_the_delete_the_task_waits_for_the_successor() {
    let mut world = World::updating(TaskType::ReplacePod);
    let lines = world.transcript([Outcome::Accepted]);
    assert_transcript(&lines, &[DELETES, "wait PodTerminating: the old pod is terminating"]);
    assert_eq!(world.seen.deleted_pod.as_deref(), Some("pod-old"));

    // The next pass.
    world.seen.deleted_pod = None;
    let lines = world.transcript([Outcome::Pods(vec![terminating(pod(OLD)).into()])]);
    assert_transcript(&lines, &["read Pods", "wait PodTerminating: …"]);
    world.seen.pods = Reading::Unread;
    let lines = world.transcript([Outcome::Pods(Vec::new())]);
    assert_transcript(&lines, &["read Pods", "wait StatefulSetNotObserved: …"]);
    world.seen.pods = Reading::Unread;
    let lines = world.transcript([Outcome::Pods(vec![pod(NEW).into()])]);
    assert_transcript(&lines, &["read Pods", "done"]);
}

// RP7
#[test]
fn a_pod_that_is_missing_at_the_delete_is_listed_again() {
    let mut world = World::updating(TaskType::ReplacePod);
    let lines = world
        .transcript([Outcome::Failed(Failure::NotFound(String::new())), Outcome::Pods(Vec::new())]);
    assert_transcript(&lines, &[DELETES, "read Pods", "wait StatefulSetNotObserved: …"]);
}

// RP18
#[test]
fn a_recreated_pod_survives_the_delete_of_its_predecessor() {
    let mut world = World::updating(TaskType::ReplacePod);
    let conflict = Outcome::Failed(Failure::Conflict("the uid differs".to_owned()));
    let lines = world.transcript([conflict, Outcome::Pods(vec![pod(NEW).into()])]);
    assert_transcript(&lines, &[DELETES, "read Pods", "done"]);
}

// RP18
#[test]
fn the_version_is_dropped_after_five_conflicts_and_the_uid_never() {
    let mut world = World::updating(TaskType::ReplacePod);
    for _ in 0..5 {
        let conflict = Outcome::Failed(Failure::Conflict("modified".to_owned()));
        let lines = world.transcript([conflict, Outcome::Pods(vec![pod(OLD).into()])]);
        assert_eq!(lines[..2], [DELETES, "read Pods"]);
        assert_eq!(lines[2], "read Generation { live: false }", "the spec may have changed too");
        world.seen.newest_generation = Some(3);
    }
    world.check("the sixth time", "delete pod n-0 uid=pod-old version=-");
    world.transcript([Outcome::Accepted]);
    assert_eq!(world.seen.delete_conflicts, 0, "the next delete carries the version again");
}

#[test]
fn conflicts_are_counted_in_a_row_and_other_failures_are_not_counted() {
    for (conflicts, expected) in [(4, DELETES), (5, "delete pod n-0 uid=pod-old version=-")] {
        let mut world = World::updating(TaskType::ReplacePod);
        world.seen.delete_conflicts = conflicts;
        world.check("kept between passes", expected);
    }
    let mut world = World::updating(TaskType::ReplacePod);
    world.seen.delete_conflicts = 3;
    world.transcript([Outcome::Failed(Failure::Indeterminate("timeout".to_owned()))]);
    assert_eq!(world.seen.delete_conflicts, 3);
    let mut world = World::updating(TaskType::ReplacePod);
    world.seen.delete_conflicts = 3;
    world.transcript([Outcome::Failed(Failure::NotFound(String::new()))]);
    assert_eq!(world.seen.delete_conflicts, 0, "the next pod is a new one");
}

#[test]
fn a_cached_statefulset_counts_only_if_it_is_what_the_plan_applied() {
    check_cached(&[
        ("proved; the server refuses the delete if the pod has changed", |_| {}, DELETES),
        (
            "newer than the apply",
            |world| world.plan.applied.as_mut().unwrap().generation = 1,
            DELETES,
        ),
        ("proved; the pod has changed since", |world| world.seen.delete_conflicts = 1, "read Pods"),
        (
            "older than the apply",
            |world| world.plan.applied.as_mut().unwrap().generation = 3,
            "wait StatefulSetNotObserved: …observed generation 2 of 3",
        ),
        (
            "another object than the applied one",
            |world| world.plan.applied.as_mut().unwrap().uid = "other".to_owned(),
            "read StatefulSet",
        ),
        (
            "another template",
            |world| world.statefulset().template_hash = Some("v1:old".to_owned()),
            "read StatefulSet",
        ),
        ("no stamp", |world| world.statefulset().template_hash = None, "read StatefulSet"),
        ("terminating", |world| world.statefulset().terminating = true, "read StatefulSet"),
        (
            "not observed",
            |world| world.statefulset().observed_generation = 1,
            "wait StatefulSetNotObserved: …",
        ),
        (
            "no revision",
            |world| world.statefulset().update_revision = None,
            "wait StatefulSetNotObserved: …",
        ),
        ("nothing applied yet", |world| world.plan.applied = None, "read StatefulSet"),
        ("a plan of the Go operator", |world| world.plan.target = None, "read StatefulSet"),
        ("a node that signs", |world| world.seen.node = signing_node().into(), "read StatefulSet"),
    ]);
}

#[test]
fn a_proved_cache_can_complete_the_task() {
    let mut world = World::updating(TaskType::ReplacePod);
    world.live_pods([pod(NEW)]);
    world.make_cached();
    world.check("another node", "done");
    world.seen.node = signing_node().into();
    world.check("a node that signs: the stamp needs its own live read", "done");
    world.plan.applied = None;
    world.check("a cache that nothing proves", "read StatefulSet");
}

#[test]
fn a_cache_is_enough_to_do_nothing() {
    check_cached(&[
        (
            "terminating",
            |world| set_pods(world, vec![terminating(pod(OLD))]),
            "wait PodTerminating: …",
        ),
        (
            "none yet",
            |world| set_pods(world, Vec::new()),
            "wait StatefulSetNotObserved: …has not created the pod yet",
        ),
        (
            "no pod of ours, on a node that signs",
            |world| {
                world.seen.node = signing_node().into();
                set_pods(world, vec![PodView { controller: None, ..pod(OLD) }]);
            },
            "wait StatefulSetNotObserved: …",
        ),
        ("already replaced", |world| set_pods(world, vec![pod(NEW)]), "done"),
        (
            "the new pod beside the old one",
            |world| set_pods(world, vec![terminating(pod(OLD)), pod(NEW)]),
            "done",
        ),
        (
            "a stale pod beside a fresh one is deleted at the version that the cache has",
            |world| set_pods(world, vec![pod(OLD), pod(NEW)]),
            DELETES,
        ),
        (
            "a pod without label is listed live",
            |world| set_pods(world, vec![PodView { revision: None, ..pod(OLD) }]),
            "read Pods",
        ),
    ]);
}

#[test]
fn a_live_statefulset_is_checked_before_the_pods() {
    check(&[
        (
            "many replicas and no pod",
            |world| {
                world.statefulset().replicas = Some(2);
                set_pods(world, Vec::new());
            },
            "fail: replace-pod: multi-replica…",
        ),
        (
            "terminating and no pod",
            |world| {
                world.statefulset().terminating = true;
                set_pods(world, Vec::new());
            },
            "wait StatefulSetTerminating: …",
        ),
        (
            "pods that only a cache does not show",
            |world| world.seen.pods = Reading::Cached(Some(Vec::new())),
            "read Pods",
        ),
    ]);
}

#[test]
fn a_cached_statefulset_with_many_replicas_fails_too() {
    check_cached(&[(
        "two",
        |world| world.statefulset().replicas = Some(2),
        "fail: replace-pod: multi-replica…",
    )]);
}

#[test]
fn a_pod_is_deleted_by_two_tasks_and_by_no_other() {
    for task in TaskType::ALL {
        let mut world = World::updating(TaskType::ReplacePod);
        world.plan.tasks[4].r#type = task.as_str().to_owned();
        let deletes = crate::tasks::fixture::shown(&world.next()).starts_with("delete pod");
        let may = matches!(task, TaskType::ReplacePod | TaskType::ObserveImage);
        assert_eq!(deletes, may, "{task}");
    }
}

#[test]
fn no_pod_is_deleted_for_a_spec_that_has_changed() {
    let mut world = World::updating(TaskType::ReplacePod);
    world.seen.newest_generation = None;
    let lines = world.transcript([Outcome::Generation(Some(4))]);
    let waits = "wait - again 5s: the spec has changed; the plan is compared with it first";
    assert_transcript(&lines, &["read Generation { live: false }", waits]);
    world.seen.newest_generation = None;
    let lines = world.transcript([Outcome::Generation(Some(3))]);
    assert_transcript(&lines, &["read Generation { live: false }", DELETES]);
    world.seen.newest_generation = Some(2);
    world.check("a watch that lags", DELETES);
    // A watch may lag; a second signer for one key must not be risked.
    world.seen.node = signing_node().into();
    world.seen.newest_generation = None;
    world.check("a node that signs", "read Generation { live: true }");
    world.seen.newest_generation = Some(0);
    world.check("a deleted node", waits);
}

#[test]
fn a_pod_with_the_desired_template_is_replaced_if_its_settings_changed() {
    let mut world = World::updating(TaskType::ReplacePod);
    world.live_pods([pod(NEW)]);
    world.check("nothing else changed", "done");
    let uid = pod(NEW).uid;
    world.plan.target.as_mut().unwrap().replaces_pod = Some(uid);
    world.check("it started before the change", "delete pod n-0 uid=pod-new …");
    let mut next = pod(NEW);
    next.uid = "pod-next".to_owned();
    world.live_pods([next]);
    world.check("its successor", "done");
}

#[test]
fn a_template_edited_after_the_apply_is_neither_rolled_out_nor_recorded() {
    let mut world = World::updating(TaskType::ReplacePod);
    world.statefulset().template = crate::tasks::fixture::template("seid:edited").into();
    world.statefulset().generation = 3;
    world.statefulset().observed_generation = 3;
    world.check("edited", "wait -: the applied template was edited; the plan will be superseded");
    world.statefulset().template = crate::tasks::fixture::template("seid:new").into();
    let annotations = json!({ "added": "by others" });
    world.statefulset().template.edit(|json| json["metadata"]["annotations"] = annotations);
    world.check("only added to", DELETES);
}
