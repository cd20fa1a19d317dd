use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use sei_api::condition::Reason;
use sei_api::plan::PlanKind;
use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::request::{Failure, Outcome};
use crate::seen::{CONFIG_MAP, PodTry, Reading, SERVICE};
use crate::tasks::fixture::{NODE_UID, OLD, World, assert_transcript, from, statefulset, template};
use crate::view::{ObjectView, StatefulSetView};

const APPLIES: &str = "apply StatefulSet n uid=sts-uid version=70 hash=v1:new image=seid:new";
const CREATES: &str = "create StatefulSet n uid=- version=- hash=v1:new image=seid:new";

type Case = (&'static str, fn(&mut World), &'static str);

#[track_caller]
fn check(world: fn() -> World, cases: &[Case]) {
    for (case, change, expected) in cases {
        let mut world = world();
        change(&mut world);
        world.check(case, expected);
    }
}

fn update() -> World {
    World::updating(TaskType::ApplyStatefulSet)
}

/// The template of the running pod is to be restored.
fn hold() -> World {
    let mut world = World::at(&[TaskType::ApplyStatefulSet], TaskType::ApplyStatefulSet);
    world.plan.kind = Some(PlanKind::ApplyTemplate);
    world.plan.target.as_mut().unwrap().hash = "v1:old".to_owned();
    world.seen.node.status = Some(from(json!({
        "podTemplateHash": "v1:old",
        "podTemplate": { "revision": OLD, "podUID": "pod-old", "inputsHash": "i",
                         "operatorVersion": "v" },
    })));
    world.seen.statefulset = Reading::Live(Some(statefulset().into()));
    world.seen.revision = Reading::Live(Some(revision("seid:old")));
    world
}

fn revision(image: &str) -> Value {
    let mut template = template(image);
    template["$patch"] = json!("replace");
    json!({ "spec": { "template": template } })
}

#[test]
fn an_apply_carries_the_observed_version_and_the_targets_hash() {
    check(
        update,
        &[
            ("live", |_| {}, APPLIES),
            ("cached", World::make_cached, APPLIES),
            ("a plan without target", |world| world.plan.target = None, APPLIES),
        ],
    );
}

#[test]
fn what_the_apply_returned_is_recorded() {
    let mut world = update();
    let mut returned = statefulset();
    returned.generation = 5;
    let lines = world.transcript([Outcome::Applied(returned.into())]);
    assert_transcript(&lines, &[APPLIES, "done applied sts-uid@5 statefulset n/sts-uid"]);
    // It still shows the revision before: no pod may be compared with it, only waited for.
    let view = world.seen.statefulset.any().unwrap();
    assert_eq!((view.generation, view.observed_revision()), (5, None));
}

#[test]
fn a_statefulset_that_no_cache_shows_is_created() {
    check(
        update,
        &[
            ("unread", |world| world.seen.statefulset = Reading::Unread, "read StatefulSet"),
            ("missing by cache", |world| world.seen.statefulset = Reading::Cached(None), CREATES),
            ("missing", |world| world.seen.statefulset = Reading::Live(None), CREATES),
        ],
    );
}

#[test]
fn a_node_does_not_start_to_sign_before_its_identity_is_recorded() {
    let mut world = update();
    world.seen.statefulset = Reading::Live(None);
    world.seen.stored.identity = false;
    world.check(
        "not stored yet",
        "wait -: waiting for the signing identity to be recorded in status",
    );
}

#[test]
fn a_pod_that_would_not_be_admitted_is_found_before_the_old_pod_is_deleted() {
    let with = |found| {
        let mut world = update();
        world.seen.pod_try = PodTry::Due;
        world.seen.statefulset = Reading::Live(found);
        world
    };
    for (found, writes) in [(Some(statefulset().into()), APPLIES), (None, CREATES)] {
        let admitted = with(found.clone()).transcript([Outcome::Accepted]);
        assert_transcript(&admitted, &["try pod n-0", writes]);
        let existing = with(found.clone()).transcript([Outcome::Failed(Failure::AlreadyExists)]);
        assert_transcript(&existing, &["try pod n-0", writes]);
        // The running pod still counts against the quota.
        let quota = Failure::Rejected("dry-run create pod: exceeded quota: pods".to_owned());
        let quota = with(found.clone()).transcript([Outcome::Failed(quota)]);
        assert_transcript(&quota, &["try pod n-0", writes]);
        let refused = Failure::Rejected("violates PodSecurity".to_owned());
        let refused = with(found).transcript([Outcome::Failed(refused)]);
        let waits = "wait ApplyRejected again 30s: violates PodSecurity";
        assert_transcript(&refused, &["try pod n-0", waits]);
    }
}

#[test]
fn a_signer_beside_another_signer_is_not_created_and_reports_why() {
    let mut world = update();
    world.seen.statefulset = Reading::Live(None);
    let refused = Outcome::Failed(not_started("pod other-0 still has it"));
    let waits = "wait SigningKeyConflict again 30s: pod other-0 still has it";
    assert_transcript(&world.transcript([refused]), &[CREATES, waits]);
}

#[test]
fn a_statefulset_that_was_created_concurrently_is_read_again() {
    let mut world = update();
    world.seen.statefulset = Reading::Live(None);
    let found = Outcome::StatefulSet(Some(statefulset().into()));
    let lines = world.transcript([Outcome::Failed(Failure::AlreadyExists), found]);
    assert_transcript(&lines, &[CREATES, "read StatefulSet", APPLIES]);
}

#[test]
fn after_a_conflict_or_a_missing_object_the_statefulset_is_read_again() {
    let mut world = update();
    let mut newer = statefulset();
    newer.resource_version = "71".to_owned();
    let lines = world.transcript([
        Outcome::Failed(Failure::Conflict("modified".to_owned())),
        Outcome::StatefulSet(Some(newer.into())),
        Outcome::Failed(Failure::NotFound(String::new())),
        Outcome::StatefulSet(None),
    ]);
    let again = "apply StatefulSet n uid=sts-uid version=71 …";
    assert_transcript(&lines, &[APPLIES, "read StatefulSet", again, "read StatefulSet", CREATES]);
}

#[test]
fn a_terminating_or_foreign_statefulset_is_not_written() {
    check(
        update,
        &[
            (
                "terminating",
                |world| world.statefulset().terminating = true,
                "wait StatefulSetTerminating: …",
            ),
            (
                "terminating by cache",
                |world| {
                    world.statefulset().terminating = true;
                    world.make_cached();
                },
                "wait StatefulSetTerminating: …",
            ),
            (
                "terminating with another strategy",
                |world| {
                    world.statefulset().terminating = true;
                    world.statefulset().on_delete = false;
                },
                "wait StatefulSetTerminating: …",
            ),
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
        ],
    );
}

#[test]
fn the_strategy_is_repaired_first_and_alone() {
    let mut world = update();
    world.statefulset().on_delete = false;
    let lines = world.transcript([Outcome::Patched(statefulset().into())]);
    let patch = json!({
        "metadata": { "resourceVersion": "70" },
        "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } },
    });
    let patches = format!("patch StatefulSet {patch}");
    assert_transcript(&lines, &[&patches, APPLIES]);
}

#[test]
fn a_plan_whose_target_is_no_longer_desired_writes_nothing() {
    check(
        update,
        &[(
            "another hash",
            |world| world.seen.desired.hash = "v1:newest".to_owned(),
            "wait -: the desired template has changed; the plan will be superseded",
        )],
    );
}

#[test]
fn the_running_pods_template_is_restored_with_its_own_hash() {
    check(
        hold,
        &[
            (
                "there",
                |_| {},
                "apply StatefulSet n uid=sts-uid version=70 hash=v1:old image=seid:old",
            ),
            (
                "created",
                |world| world.seen.statefulset = Reading::Live(None),
                "create StatefulSet n uid=- version=- hash=v1:old image=seid:old",
            ),
            (
                "not read yet",
                |world| world.seen.revision = Reading::Unread,
                "read Revision(\"n-old\")",
            ),
            (
                "cached",
                |world| world.seen.revision = Reading::Cached(Some(revision("seid:old"))),
                "read Revision(\"n-old\")",
            ),
            (
                "the desired template",
                |world| world.plan.target.as_mut().unwrap().hash = "v1:new".to_owned(),
                APPLIES,
            ),
        ],
    );
}

#[test]
fn a_template_that_cannot_be_restored_fails_the_plan() {
    check(
        hold,
        &[
            (
                "missing",
                |world| world.seen.revision = Reading::Live(None),
                "fail: revision n-old not found",
            ),
            (
                "nonsense",
                |world| world.seen.revision = Reading::Live(Some(json!([1]))),
                "fail: revision n-old cannot be read: …",
            ),
            (
                "a part",
                |world| {
                    let mut part = revision("seid:old");
                    part["spec"]["template"]["$patch"] = json!("merge");
                    world.seen.revision = Reading::Live(Some(part));
                },
                "fail: revision n-old cannot be read: …",
            ),
            (
                "no template of a pod",
                |world| {
                    let mut odd = revision("seid:old");
                    odd["spec"]["template"]["spec"]["containers"] = json!([5]);
                    world.seen.revision = Reading::Live(Some(odd));
                },
                "fail: the observed template cannot be read: …",
            ),
            (
                "nothing observed",
                |world| world.seen.node.status = None,
                "fail: no observed template to restore",
            ),
            (
                "a status that names no revision",
                |world| {
                    let status = world.seen.node.status.as_mut().unwrap();
                    status.pod_template.as_mut().unwrap().revision = String::new();
                    world.seen.revision = Reading::Unread;
                },
                "fail: no observed template to restore",
            ),
        ],
    );
}

#[test]
fn the_service_is_applied_unless_it_is_as_desired() {
    check(
        || missing(TaskType::ApplyService),
        &[
            ("not read", |world| world.seen.service = Reading::Unread, "read Service"),
            ("missing", |_| {}, "create Service n"),
            ("as desired", |world| world.seen.service_is_current = true, "done"),
            ("written in this pass", |world| world.seen.accepted.push(SERVICE), "done"),
            ("another write", |world| world.seen.accepted.push(CONFIG_MAP), "create Service n"),
            (
                "another content",
                |world| world.seen.service = Reading::Cached(Some(object(Some(NODE_UID)))),
                "apply Service n uid=u version=7",
            ),
            (
                "another owner's",
                |world| world.seen.service = Reading::Cached(Some(object(Some("other")))),
                "wait FieldConflict again 30s: Service n exists and is not controlled by this…",
            ),
            (
                "without an owner",
                |world| world.seen.service = Reading::Live(Some(object(None))),
                "wait FieldConflict again 30s: …",
            ),
            (
                "being deleted",
                |world| {
                    let terminating = true;
                    let view = ObjectView { terminating, ..object(Some(NODE_UID)) };
                    world.seen.service = Reading::Cached(Some(view));
                },
                "wait - again 5s: Service n is being deleted",
            ),
        ],
    );
    let mut world = missing(TaskType::ApplyService);
    assert_transcript(&world.transcript([Outcome::Accepted]), &["create Service n", "done"]);
    let mut world = missing(TaskType::ApplyService);
    let found = Outcome::Service(Some(object(Some(NODE_UID))));
    let outcomes = [Outcome::Failed(Failure::AlreadyExists), found, Outcome::Accepted];
    assert_transcript(
        &world.transcript(outcomes),
        &["create Service n", "read Service", "apply Service n uid=u version=7", "done"],
    );
}

fn missing(task: TaskType) -> World {
    let mut world = World::updating(task);
    world.seen.service = Reading::Cached(None);
    world
}

fn object(controller: Option<&str>) -> ObjectView {
    ObjectView {
        uid: "u".to_owned(),
        resource_version: "7".to_owned(),
        controller: controller.map(str::to_owned),
        terminating: false,
    }
}

#[test]
fn the_proxys_configuration_is_applied_unless_it_is_as_desired() {
    const CREATES: &str = "create ConfigMap n-rbac-proxy-config";
    let missing = || {
        let mut world = World::only(TaskType::ApplyRbacProxyConfig, json!({}));
        world.seen.config_map = Reading::Cached(None);
        world
    };
    check(
        missing,
        &[
            ("not read", |world| world.seen.config_map = Reading::Unread, "read ConfigMap"),
            ("missing", |_| {}, CREATES),
            ("as desired", |world| world.seen.proxy_config_is_current = true, "done"),
            ("another write", |world| world.seen.accepted.push(SERVICE), CREATES),
            (
                "another content",
                |world| world.seen.config_map = Reading::Cached(Some(object(Some(NODE_UID)))),
                "apply ConfigMap n-rbac-proxy-config uid=u version=7",
            ),
            (
                "another owner's",
                |world| world.seen.config_map = Reading::Cached(Some(object(Some("other")))),
                "wait FieldConflict again 30s: ConfigMap n-rbac-proxy-config exists and is not…",
            ),
        ],
    );
    let mut world = missing();
    assert_transcript(&world.transcript([Outcome::Accepted]), &[CREATES, "done"]);
}

#[test]
fn fields_that_a_create_owns_are_transferred_before_an_apply() {
    let mut world = update();
    let entry = |operation: &str| ManagedFieldsEntry {
        manager: Some("seinode-controller".to_owned()),
        operation: Some(operation.to_owned()),
        fields_v1: Some(FieldsV1(json!({ "f:spec": { "f:template": {} } }))),
        ..ManagedFieldsEntry::default()
    };
    let fields = Some(vec![entry("Update")].into());
    let created = StatefulSetView { created_fields: fields, ..statefulset() };
    world.seen.statefulset = Reading::Live(Some(created.into()));
    let lines = world.transcript([Outcome::Patched(statefulset().into())]);
    let patch =
        json!({ "metadata": { "managedFields": [entry("Apply")], "resourceVersion": "70" } });
    assert_eq!(lines[0], format!("patch StatefulSet {patch}"));
    assert_transcript(&lines[1..], &[APPLIES]);
}

#[test]
fn a_template_that_kept_another_key_fails_the_plan() {
    let mut world = update();
    let volumes = json!([{ "name": "signing-key", "secret": { "secretName": "old" } }]);
    let template = json!({ "spec": { "volumes": volumes } });
    world.seen.applied =
        Some(StatefulSetView { template: template.into(), ..statefulset() }.into());
    world.check("it was not removed", "fail: the applied template has a different signing key…");
}

fn not_started(message: &str) -> Failure {
    Failure::NotStarted { reason: Reason::SigningKeyConflict, message: message.to_owned() }
}
