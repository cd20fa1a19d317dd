//! Views of objects as a server returns them: with defaults, with foreign fields, with gaps.

use serde::de::DeserializeOwned;
use serde_json::json;

use super::*;

fn at(newest: &str) -> Revisions<'_> {
    Revisions { newest, known: None, replaces: None }
}

fn fixture(name: &str) -> Value {
    let text = match name {
        "pod" => include_str!("../../testdata/view/pod.yaml"),
        "pod-status" => include_str!("../../testdata/view/pod-status.yaml"),
        "statefulset" => include_str!("../../testdata/view/statefulset.yaml"),
        "job" => include_str!("../../testdata/view/job.yaml"),
        unknown => panic!("no fixture {unknown}"),
    };
    serde_saphyr::from_str(text).unwrap()
}

/// A fixture after a change to its JSON, as the type that the API client reads.
fn object<T: DeserializeOwned>(name: &str, change: impl FnOnce(&mut Value)) -> T {
    let mut json = fixture(name);
    change(&mut json);
    serde_json::from_value(json).unwrap()
}

fn pod_with(status: &str, change: impl FnOnce(&mut Value)) -> PodView {
    let status = fixture("pod-status")[status].clone();
    assert!(status.is_object());
    PodView::from(&object::<Pod>("pod", |json| {
        json["status"] = status;
        change(json);
    }))
}

fn pod(status: &str) -> PodView {
    pod_with(status, |_| {})
}

fn statefulset(change: impl FnOnce(&mut Value)) -> StatefulSetView {
    StatefulSetView::from(&object::<StatefulSet>("statefulset", change))
}

fn job(status: Value) -> JobView {
    JobView::from(&object::<Job>("job", |json| json["status"] = status))
}

#[expect(clippy::unnecessary_wraps, reason = "reads better in a whole view")]
fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn time(text: &str) -> Option<jiff::Timestamp> {
    text.parse().ok()
}

#[test]
fn every_field_of_a_running_pod_is_read() {
    let expected = PodView {
        name: "val-byo-0".to_owned(),
        uid: "5b0c1f0e-3c1d-4a53-9d39-4d6a1f1f7a10".to_owned(),
        resource_version: "48211".to_owned(),
        controller: Some(Controller::statefulset(
            "val-byo",
            "0f4b6f0a-98a4-4d1c-9f52-0a7a0f6f2b11",
        )),
        revision: text("val-byo-6c9f7d5b84"),
        is_bootstrap: false,
        deleted_at: None,
        ip: text("10.1.4.9"),
        proxy: Proxy::default(),
        ready: true,
        ready_since: time("2026-08-05T10:04:00Z"),
        host: text("ip-10-0-3-7.example.org"),
        unschedulable: None,
        host_lost: false,
        volumes_missing: None,
        seid: ContainerView {
            image: "registry.example.org/seid:v6.5.1".to_owned(),
            image_id: "registry.example.org/seid@sha256:1111".to_owned(),
            has_run: true,
            running: true,
            running_since: time("2026-08-05T10:03:00Z"),
            started: true,
            restarts: 2,
        },
        // It is listed among the init containers and runs beside the others.
        sidecar: ContainerView {
            image: "registry.example.org/seictl:v0.0.70".to_owned(),
            image_id: "registry.example.org/seictl@sha256:2222".to_owned(),
            has_run: true,
            running: true,
            running_since: time("2026-08-05T10:00:35Z"),
            started: true,
            restarts: 1,
        },
        troubles: Vec::new(),
        upgrade: None,
    };
    assert_eq!(pod("running"), expected);
}

#[test]
fn a_pod_without_a_status_is_only_named() {
    let view = PodView::from(&object::<Pod>("pod", |_| {}));
    assert_eq!(view.name, "val-byo-0");
    assert_eq!(view.seid.image, "registry.example.org/seid:v6.5.1");
    assert_eq!(view.seid, ContainerView { image: view.seid.image.clone(), ..<_>::default() });
    assert!(!view.ready && view.ip.is_none() && view.troubles.is_empty());
    assert_eq!((view.unschedulable, view.volumes_missing, view.host_lost), (None, None, false));
    assert_eq!(PodView::from(&Pod::default()), PodView::default());
}

#[test]
fn a_chain_process_behind_the_gate_runs_and_has_not_started() {
    let view = pod("gated");
    assert!(!view.ready);
    assert!(view.seid.running && view.seid.has_run && !view.seid.started);
    assert!(view.sidecar.running && view.sidecar.started);
    assert!(view.troubles.is_empty());
}

#[test]
fn an_image_that_cannot_be_pulled_is_a_trouble_of_its_container() {
    let view = pod("pulling");
    let message = "seid-init: ImagePullBackOff Back-off pulling image \
                   \"registry.example.org/seid:v6.5.1\"";
    let trouble = Trouble {
        container: "seid-init".to_owned(),
        kind: TroubleKind::ImagePull,
        message: message.to_owned(),
    };
    assert_eq!(view.troubles, [trouble]);
    assert!(!view.seid.has_run && view.seid.image_id.is_empty());
    assert_eq!(view.volumes_missing, None, "the sandbox exists");
}

#[test]
fn a_crash_loop_is_a_trouble_and_the_container_has_run() {
    let view = pod("crashing");
    assert_eq!(view.troubles.len(), 1);
    assert_eq!((&*view.troubles[0].container, view.troubles[0].kind), ("seid", TroubleKind::Crash));
    assert!(view.troubles[0].message.starts_with("seid: CrashLoopBackOff back-off 5m0s"));
    assert!(
        view.troubles[0].message.ends_with("(exit code 2: it panics, as at an upgrade height)")
    );
    assert!(view.seid.has_run && !view.seid.running && view.seid.restarts == 7);
}

#[test]
fn an_upgrade_is_read_from_how_the_chain_process_ended() {
    let upgrade = |code: i32, message: &str, state: &str| {
        let view = pod_with("crashing", |json| {
            let end = json!({ "terminated": { "exitCode": code, "message": message } });
            json["status"]["containerStatuses"][0][state] = end;
        });
        view.upgrade.map(|upgrade| (upgrade.name, upgrade.height))
    };
    let message = "panic: UPGRADE \"v9.9.9\" NEEDED at height: 656: ";
    let needed = Some(("v9.9.9".to_owned(), 656));
    assert_eq!(upgrade(2, message, "lastState"), needed);
    assert_eq!(upgrade(2, message, "state"), needed);
    assert_eq!(upgrade(0, message, "lastState"), None, "it ended well");
    assert_eq!(upgrade(2, "panic: out of memory", "lastState"), None);
    assert_eq!(pod("crashing").upgrade, None, "the kubelet reports no message");
}

#[test]
fn each_reason_of_the_kubelet_has_its_kind() {
    let kind_of = |reason: &str| {
        let view = pod_with("gated", |json| {
            json["status"]["containerStatuses"][0]["state"] =
                json!({ "waiting": { "reason": reason } });
        });
        view.troubles.first().map(|trouble| {
            assert_eq!(trouble.message, format!("seid: {reason}"));
            trouble.kind
        })
    };
    for reason in [
        "ErrImagePull",
        "ImagePullBackOff",
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    ] {
        assert_eq!(kind_of(reason), Some(TroubleKind::ImagePull), "{reason}");
    }
    for reason in [
        "CrashLoopBackOff",
        "CreateContainerError",
        "CreateContainerConfigError",
        "RunContainerError",
        "PreCreateHookError",
        "PreStartHookError",
        "PostStartHookError",
    ] {
        assert_eq!(kind_of(reason), Some(TroubleKind::Crash), "{reason}");
    }
    for reason in ["ContainerCreating", "PodInitializing", ""] {
        assert_eq!(kind_of(reason), None, "{reason}");
    }
}

#[test]
fn an_unschedulable_pod_has_the_schedulers_message() {
    let view = pod_with("unschedulable", |json| json["spec"]["nodeName"] = Value::Null);
    let message = "0/12 nodes are available: 12 node(s) had volume node affinity conflict.";
    assert_eq!(view.unschedulable.as_deref(), Some(message));
    assert_eq!((view.host, view.volumes_missing), (None, None));
    let gated = pod_with("unschedulable", |json| {
        json["status"]["conditions"][0]["reason"] = json!("SchedulingGated");
    });
    assert_eq!(gated.unschedulable, None);
}

/// The kubelet gives this condition no reason of its own, and no message.
#[test]
fn a_bound_pod_without_a_sandbox_lacks_its_volumes() {
    let view = pod("attaching");
    let message = "no sandbox yet: the kubelet waits for volumes or for the network";
    assert_eq!(view.volumes_missing.as_deref(), Some(message));
    let reported = pod_with("attaching", |json| {
        json["status"]["conditions"][0]["message"] = json!("volume data is attached elsewhere");
    });
    assert_eq!(reported.volumes_missing.as_deref(), Some("volume data is attached elsewhere"));
    let unbound = pod_with("attaching", |json| json["spec"]["nodeName"] = Value::Null);
    assert_eq!(unbound.volumes_missing, None);
    // A pod that has ended has no sandbox any more, and lacks nothing.
    assert_eq!(pod("evicted").volumes_missing, None);
    assert!(!pod("evicted").ready);
}

#[test]
fn a_pod_on_a_lost_host_is_recognised() {
    assert!(pod("lost").host_lost);
    assert!(pod_with("running", |json| json["status"]["phase"] = json!("Unknown")).host_lost);
    assert!(!pod("evicted").host_lost);
    let by_taint = |deleted: bool| {
        pod_with("running", |json| {
            json["status"]["conditions"] = json!([{ "type": "DisruptionTarget",
                "status": "True", "reason": "DeletionByTaintManager",
                "message": "Taint manager: deleting due to NoExecute taint" }]);
            if deleted {
                json["metadata"]["deletionTimestamp"] = json!("2026-08-05T10:00:00Z");
            }
        })
    };
    assert!(by_taint(true).host_lost);
    assert!(!by_taint(false).host_lost);
}

#[test]
fn a_pod_is_the_nodes_own_by_name_owner_and_the_owners_owner() {
    let set = StatefulSetView {
        name: "n".to_owned(),
        uid: "set".to_owned(),
        controller: text("node"),
        ..StatefulSetView::default()
    };
    let own = PodView {
        name: "n-0".to_owned(),
        controller: Some(Controller::statefulset("n", "set")),
        ..PodView::default()
    };
    let with = |change: fn(&mut Controller)| {
        let mut pod = own.clone();
        change(pod.controller.as_mut().unwrap());
        pod
    };
    let is_own = |pod: &PodView, set: Option<&StatefulSetView>, uid: &str| {
        own_pod(&[pod.clone().into()], set, uid).is_some()
    };
    assert!(is_own(&own, Some(&set), "node"));
    assert!(!is_own(&own, None, "node"), "no StatefulSet");
    assert!(!is_own(&own, Some(&set), "other"), "the StatefulSet of another node");
    let unowned = StatefulSetView { controller: None, ..set.clone() };
    assert!(!is_own(&own, Some(&unowned), ""), "a StatefulSet without an owner");
    for (case, pod) in [
        ("another name", PodView { name: "n-1".to_owned(), ..own.clone() }),
        ("no controller", PodView { controller: None, ..own.clone() }),
        ("another version", with(|owner| owner.api_version = "nope.example/v1".to_owned())),
        ("another kind", with(|owner| owner.kind = "ReplicaSet".to_owned())),
        ("another owner's name", with(|owner| owner.name = "zzz".to_owned())),
        ("another owner's uid", with(|owner| owner.uid = "other".to_owned())),
    ] {
        assert!(!is_own(&pod, Some(&set), "node"), "{case}");
    }
}

#[test]
fn a_proxy_is_called_by_its_flags() {
    let proxy = |args: &[&str]| {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "name": "n-0", "namespace": "ns", "labels": { "sei.io/node": "n" } },
            "spec": {
                "containers": [],
                "initContainers": [{ "name": "kube-rbac-proxy", "args": args }],
            },
        }))
        .unwrap();
        let Proxy { tls, own_audience } = PodView::from(&pod).proxy;
        (tls, own_audience)
    };
    let secure = "--secure-listen-address=0.0.0.0:8443";
    let own = "--auth-token-audiences=sei-sidecar/ns/n";
    assert_eq!(proxy(&[]), (false, false));
    assert_eq!(proxy(&["--insecure-listen-address=0.0.0.0:8443"]), (false, false));
    assert_eq!(proxy(&[secure]), (true, false));
    assert_eq!(proxy(&[secure, own]), (true, true));
    let neighbours = "--auth-token-audiences=sei-sidecar/ns/m";
    assert_eq!(proxy(&[secure, neighbours]), (true, false), "another node's audience");
}

#[test]
fn a_bootstrap_pod_is_that_of_the_nodes_own_job() {
    let job = JobView { uid: "job".to_owned(), ..JobView::default() };
    let pod = |controller| PodView {
        is_bootstrap: true,
        controller: Some(controller),
        ..PodView::default()
    };
    let own = pod(Controller::job("n-bootstrap", "job"));
    assert!(is_bootstrap_pod(&own, "n", Some(&job)));
    assert!(is_bootstrap_pod(&own, "n", None), "its Job is deleted");
    assert!(!is_bootstrap_pod(&own, "m", None), "another node's");
    let unlabelled = PodView { is_bootstrap: false, ..own };
    assert!(!is_bootstrap_pod(&unlabelled, "n", Some(&job)));
    let older = pod(Controller::job("n-bootstrap", "older"));
    assert!(!is_bootstrap_pod(&older, "n", Some(&job)), "another Job of the name");
    let forged = pod(Controller::statefulset("n-bootstrap", "job"));
    assert!(!is_bootstrap_pod(&forged, "n", Some(&job)), "another kind");
}

#[test]
fn a_terminating_pod_carries_the_time_of_its_deletion() {
    let view = pod_with("running", |json| {
        json["metadata"]["deletionTimestamp"] = json!("2026-08-05T11:02:00Z");
        json["metadata"]["deletionGracePeriodSeconds"] = json!(120);
    });
    assert!(view.is_terminating() && view.ready);
    assert_eq!(view.deleted_at, Some("2026-08-05T11:02:00Z".parse().unwrap()));
}

#[test]
fn labels_owners_and_addresses_may_be_missing_or_empty() {
    let view = pod_with("running", |json| {
        json["metadata"]["labels"] = Value::Null;
        json["metadata"]["ownerReferences"] = Value::Null;
        json["status"]["podIP"] = json!("");
    });
    assert_eq!((&view.revision, &view.controller, &view.ip), (&None, &None, &None));
    let bootstrap = pod_with("running", |json| {
        json["metadata"]["labels"]["sei.io/component"] = json!("bootstrap");
        json["metadata"]["ownerReferences"][1]["kind"] = json!("Job");
    });
    assert!(bootstrap.is_bootstrap);
    let parent = StatefulSetView::from(&object::<StatefulSet>("statefulset", |_| {}));
    assert!(is_owned(&pod("running"), &parent) && !is_owned(&bootstrap, &parent));
    assert!(!is_owned(&view, &parent));
}

#[test]
fn every_field_of_a_statefulset_is_read() {
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let view = statefulset(|_| {});
    let mut template = fixture("statefulset")["spec"]["template"].clone();
    // The server writes it as null, which has no meaning.
    template["metadata"].as_object_mut().unwrap().remove("creationTimestamp");
    let expected = StatefulSetView {
        name: "val-byo".to_owned(),
        uid: "0f4b6f0a-98a4-4d1c-9f52-0a7a0f6f2b11".to_owned(),
        resource_version: "48190".to_owned(),
        generation: 5,
        observed_generation: 5,
        controller: text("7c0e5f7e-0a59-4c53-8a67-9a2a7d1f1c33"),
        replicas: Some(1),
        on_delete: true,
        selector: Some(labels(&[("sei.io/node", "val-byo")])),
        labels: labels(&[("sei.io/node", "val-byo"), ("sei.io/chain", "demo-1")]),
        template_hash: text("v1:aaaa"),
        initialised: false,
        terminating: false,
        update_revision: text("val-byo-6c9f7d5b84"),
        template: template.into(),
        created_fields: None,
    };
    assert_eq!(view, expected);
    assert_eq!(view.observed_revision(), Some("val-byo-6c9f7d5b84"));
    let identity = Identity {
        chain: text("demo-1"),
        role: text("validator"),
        signing_secret: text("val-byo-signing"),
        claim: text("data-val-byo"),
    };
    assert_eq!(view.identity(), &identity);
    assert_eq!(freshness(&pod("running"), &view, at("val-byo-6c9f7d5b84")), Freshness::Fresh);
    assert_eq!(freshness(&pod("running"), &view, at("val-byo-7d9c5b6f44")), Freshness::Stale);
}

#[test]
fn a_statefulset_that_was_never_observed_has_no_revision() {
    let fresh = statefulset(|json| json["status"] = Value::Null);
    assert_eq!((fresh.observed_generation, fresh.observed_revision()), (0, None));
    let behind = statefulset(|json| json["status"]["observedGeneration"] = json!(4));
    assert_eq!(behind.update_revision.as_deref(), Some("val-byo-6c9f7d5b84"));
    assert_eq!(behind.observed_revision(), None);
    let empty = statefulset(|json| json["status"]["updateRevision"] = json!(""));
    assert_eq!(empty.observed_revision(), None);
}

#[test]
fn a_statefulset_of_another_owner_is_read_as_it_is() {
    let view = statefulset(|json| {
        json["metadata"]["deletionTimestamp"] = json!("2026-08-05T11:00:00Z");
        json["metadata"]["annotations"] = Value::Null;
        json["metadata"]["ownerReferences"][0]["controller"] = json!(false);
        json["spec"]["updateStrategy"] =
            json!({ "type": "RollingUpdate", "rollingUpdate": { "partition": 0 } });
        json["spec"]["selector"] = json!({ "matchLabels": {} });
        json["spec"]["replicas"] = json!(2);
    });
    assert!(view.terminating && !view.on_delete);
    assert_eq!((view.template_hash, view.controller, view.selector), (None, None, None));
    assert_eq!(view.replicas, Some(2));
    let bare = StatefulSetView::from(&StatefulSet::default());
    assert_eq!(bare.identity(), &Identity::default());
    assert!(!bare.on_delete);
}

#[test]
fn a_job_is_active_until_a_final_condition_is_true() {
    let state = |status: Value| job(status).state;
    let condition = |kind: &str, status: &str| {
        json!({ "conditions": [{ "type": kind, "status": status, "reason": "BackoffLimitExceeded",
            "message": "Job has reached the specified backoff limit" }] })
    };
    assert_eq!(state(Value::Null), JobState::Active);
    assert_eq!(state(json!({ "active": 1, "ready": 1, "terminating": 0 })), JobState::Active);
    assert_eq!(state(condition("Complete", "True")), JobState::Complete);
    assert_eq!(state(condition("Complete", "False")), JobState::Active);
    let message = "Job has reached the specified backoff limit".to_owned();
    assert_eq!(state(condition("Failed", "True")), JobState::Failed(message));
    // Set before the pods have ended: the outcome is known, the Job still runs.
    assert_eq!(state(condition("SuccessCriteriaMet", "True")), JobState::Active);
    assert_eq!(state(condition("FailureTarget", "True")), JobState::Active);
    let bare = json!({ "conditions": [{ "type": "Failed", "status": "True" }] });
    assert_eq!(state(bare), JobState::Failed("the Job failed".to_owned()));
}

#[test]
fn every_field_of_a_job_is_read() {
    let expected = JobView {
        uid: "2a1c7d50-4b3e-4c55-b6a1-77f2b8f6f9aa".to_owned(),
        controller: text("9b8c5f7e-0a59-4c53-8a67-9a2a7d1f1c44"),
        terminating: false,
        image: "registry.example.org/seid:v6.5.1".to_owned(),
        sidecar_image: "registry.example.org/seictl:v0.0.70".to_owned(),
        state: JobState::Active,
    };
    assert_eq!(job(json!({ "active": 1 })), expected);
    let deleted: Job = object("job", |json| {
        json["metadata"]["deletionTimestamp"] = json!("2026-08-05T11:00:00Z");
    });
    assert!(JobView::from(&deleted).terminating);
    assert_eq!(JobView::from(&Job::default()), JobView::default());
    let metadata = ObjectView::from(&deleted.metadata);
    assert!(metadata.terminating && metadata.resource_version == "5120");
    assert_eq!((metadata.uid, metadata.controller), (expected.uid, expected.controller));
}

/// Field owners in short form: manager, operation and subresource, then the fields.
fn owners(entries: &[(&str, &str, &str, Value)]) -> StatefulSetView {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(manager, operation, part, fields)| {
            let mut entry = json!({
                "manager": manager, "operation": operation, "apiVersion": "apps/v1",
                "fieldsType": "FieldsV1", "fieldsV1": fields,
            });
            if !part.is_empty() {
                entry["subresource"] = json!(part);
            }
            entry
        })
        .collect();
    statefulset(|json| json["metadata"]["managedFields"] = json!(entries))
}

#[test]
fn fields_that_a_create_owns_are_transferred_to_our_applies() {
    let ours = "seinode-controller";
    let template = |field: &str| json!({ "f:spec": { "f:template": { field: {} } } });
    let replicas = json!({ "f:spec": { "f:replicas": {} } });
    assert_eq!(owners(&[(ours, "Apply", "", template("f:a"))]).transferred_fields(), None);
    assert_eq!(
        owners(&[(ours, "Update", "", replicas.clone())]).transferred_fields(),
        None,
        "a patch of ours"
    );
    assert_eq!(owners(&[("kubectl", "Update", "", template("f:a"))]).transferred_fields(), None);
    assert_eq!(owners(&[(ours, "Update", "status", template("f:a"))]).transferred_fields(), None);

    let mixed = owners(&[
        (ours, "Update", "", template("f:a")),
        (ours, "Apply", "", json!({ "f:spec": { "f:template": { "f:b": {} }, "f:c": {} } })),
        ("kubectl", "Update", "", template("f:d")),
        (ours, "Update", "status", json!({ "f:status": {} })),
    ]);
    let entries = mixed.transferred_fields().expect("the create's fields are transferred");
    let actual: Vec<_> = entries
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| format!("{} {} {}", entry["manager"], entry["operation"], entry["fieldsV1"]))
        .collect();
    let expected = [
        r#""kubectl" "Update" {"f:spec":{"f:template":{"f:d":{}}}}"#,
        r#""seinode-controller" "Update" {"f:status":{}}"#,
        r#""seinode-controller" "Apply" {"f:spec":{"f:c":{},"f:template":{"f:a":{},"f:b":{}}}}"#,
    ];
    assert_eq!(actual, expected);
}

#[test]
fn a_node_controls_an_object_by_every_field_of_the_reference() {
    let node = ObjectMeta {
        name: Some("n".to_owned()),
        uid: Some("node-uid".to_owned()),
        ..ObjectMeta::default()
    };
    let right = json!({ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "name": "n",
        "uid": "node-uid", "controller": true });
    let controls = |reference: &Value| {
        let object = json!({ "ownerReferences": [reference] });
        is_controlled_by(&serde_json::from_value(object).unwrap(), &node)
    };
    assert!(controls(&right));
    let others = ["apiVersion", "kind", "name", "uid"].map(|field| (field, json!("other")));
    for (field, value) in others.into_iter().chain([("controller", json!(false))]) {
        let mut wrong = right.clone();
        wrong[field] = value;
        assert!(!controls(&wrong), "{wrong}");
    }
    assert!(!is_controlled_by(&ObjectMeta::default(), &node));
}

#[test]
fn the_chain_of_a_node_is_the_one_that_it_runs() {
    use crate::planner::fixture::{NODE_UID, full_node, running};
    let snapshot = running(full_node());
    let mut node = (*snapshot.node).clone();
    let set = snapshot.statefulset.as_deref().unwrap();
    node.spec.chain_id = "edited".to_owned();
    assert_eq!(chain_of(&node, Some(set)), "demo-1");
    assert_eq!(chain_of(&node, None), "edited");
    let foreign = StatefulSetView { controller: Some(format!("not-{NODE_UID}")), ..set.clone() };
    assert_eq!(chain_of(&node, Some(&foreign)), "edited");
}
