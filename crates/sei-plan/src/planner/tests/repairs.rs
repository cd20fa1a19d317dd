//! What is repaired without a plan, and what is left alone.

use sei_api::names::annotation;
use serde_json::json;

use super::*;
use crate::planner::fixture::{full_node, full_node_from, new_node, running, s3, validator};
use crate::planner::repair::{desired_replicas, foreign, repairs};
use crate::request::Request;
use crate::snapshot::Current;
use crate::view::ObjectView;

const ALL: Current = Current { service: true, proxy_config: true, template: true };
const NONE: Current = Current { service: false, proxy_config: false, template: true };

/// The repairs by name, with the patch where there is one.
fn check(snapshot: &Snapshot, current: Current) -> String {
    let mut snapshot = snapshot.clone();
    snapshot.current = Current { template: snapshot.compare_template(), ..current };
    let names = repairs(&snapshot).into_iter().map(|request| match request {
        Request::CreateService(_) => "service".to_owned(),
        Request::CreateConfigMap(_) => "config".to_owned(),
        Request::ApplyService(object) => {
            assert!(object.metadata.uid.is_some() && object.metadata.resource_version.is_some());
            "apply-service".to_owned()
        }
        Request::ApplyConfigMap(object) => {
            assert!(object.metadata.uid.is_some() && object.metadata.resource_version.is_some());
            "apply-config".to_owned()
        }
        Request::CreateStatefulSet(object) => {
            let hash = object.metadata.annotations.as_ref().unwrap();
            assert!(hash.contains_key(annotation::TEMPLATE_HASH));
            "create".to_owned()
        }
        Request::ApplyStatefulSet(object) => {
            assert!(object.metadata.uid.is_some() && object.metadata.resource_version.is_some());
            "apply".to_owned()
        }
        Request::PatchStatefulSet(patch) => patch.to_string(),
        unexpected => panic!("{unexpected:?}"),
    });
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn nothing_is_repaired_at_rest() {
    assert_eq!(check(&running(full_node()), ALL), "");
    assert_eq!(check(&new_node(full_node()), NONE), "", "a new node has its plan");
}

#[test]
fn objects_that_differ_are_applied_and_those_of_another_owner_are_reported() {
    let with = |controller: &str, terminating| {
        let view = ObjectView {
            uid: "u".into(),
            resource_version: "7".into(),
            controller: Some(controller.into()),
            terminating,
        };
        running(full_node()).with(|seen| {
            seen.service = Some(view.clone());
            seen.proxy_config = Some(view.clone());
        })
    };
    let own = with(crate::planner::fixture::NODE_UID, false);
    assert_eq!(check(&own, NONE), "apply-service apply-config");
    assert_eq!(foreign(&own), None);
    assert_eq!(check(&with(crate::planner::fixture::NODE_UID, true), NONE), "", "being deleted");
    let mut unowned = with("another", false);
    assert_eq!(check(&unowned, NONE), "");
    assert!(foreign(&unowned).unwrap().message.starts_with("Service n exists"));
    unowned.service = None;
    let message = foreign(&unowned).unwrap().message;
    assert!(message.starts_with("ConfigMap n-rbac-proxy-config exists"), "{message}");
}

// T1, T6
#[test]
fn a_missing_statefulset_of_a_running_node_is_created() {
    let snapshot = running(full_node()).with(|seen| seen.statefulset = None);
    assert_eq!(check(&snapshot, ALL), "create");
}

// T2, T3, T4
#[test]
fn a_statefulset_is_never_deleted_and_that_of_another_owner_is_never_touched() {
    let snapshot = running(full_node()).with(|seen| {
        let statefulset = seen.statefulset.as_mut().unwrap();
        statefulset.controller = Some("foreign".into());
        statefulset.replicas = Some(2);
    });
    assert_eq!(check(&snapshot, ALL), "");
    let recreated = running(full_node()).with(|seen| {
        seen.statefulset.as_mut().unwrap().uid = "another".into();
        seen.status_mut().stateful_set =
            Some(sei_api::status::StatefulSetRef { name: "n".into(), uid: "first".into() });
    });
    assert_eq!(check(&recreated, ALL), "", "the recorded uid is only a hint");
}

// T5
#[test]
fn a_terminating_statefulset_is_left_alone() {
    let snapshot = running(full_node()).with(|seen| {
        let statefulset = seen.statefulset.as_mut().unwrap();
        statefulset.terminating = true;
        statefulset.on_delete = false;
    });
    assert_eq!(check(&snapshot, ALL), "");
}

#[test]
fn service_and_proxy_configuration_are_restored() {
    assert_eq!(check(&running(full_node()), NONE), "service config");
}

#[test]
fn the_strategy_is_repaired_alone_and_first() {
    let snapshot = running(full_node()).with(|seen| {
        let statefulset = seen.statefulset.as_mut().unwrap();
        statefulset.on_delete = false;
        statefulset.replicas = Some(2);
    });
    let patch = json!({
        "metadata": { "resourceVersion": "7" },
        "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } },
    });
    assert_eq!(check(&snapshot, ALL), patch.to_string());
}

#[test]
fn replicas_are_one_or_zero_when_stopped() {
    let with = |replicas| {
        running(full_node())
            .with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(replicas))
    };
    assert!(check(&with(2), ALL).contains(r#""replicas":1"#));
    assert!(check(&with(0), ALL).contains(r#""replicas":1"#));
    let stopped = with(1).edit(|spec| spec.paused = Some(true));
    assert!(check(&stopped, ALL).contains(r#""replicas":0"#));
}

#[test]
fn a_node_that_signs_is_not_scaled_up_beside_another_with_its_key() {
    let conflict = running(validator()).with(|seen| seen.signing_conflict = Some("ns/b".into()));
    assert_eq!(desired_replicas(&conflict, Some(0)), 0);
    assert_eq!(desired_replicas(&conflict, Some(1)), 1, "a running pod is not stopped");
    let missing = conflict.with(|seen| seen.statefulset = None);
    assert_eq!(check(&missing, ALL), "");
}

#[test]
fn a_held_template_is_left_alone_while_replicas_are_repaired() {
    let snapshot = running(full_node())
        .edit(|spec| {
            spec.image = "seid:2".into();
            spec.update.get_or_insert_default().paused = Some(true);
        })
        .with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(2));
    let patch = check(&snapshot, ALL);
    assert!(patch.contains(r#""replicas":1"#) && !patch.contains("template"), "{patch}");
}

#[test]
fn a_manually_edited_template_is_restored_only_when_the_edit_is_certain() {
    let edited = running(full_node()).with(|seen| {
        let statefulset = seen.statefulset.as_mut().unwrap();
        statefulset.template.edit(|json| json["spec"]["containers"][0]["image"] = json!("evil:1"));
    });
    assert_eq!(check(&edited, ALL), "apply");
    let held = edited.edit(|spec| spec.image = "seid:2".into());
    assert_eq!(check(&held, ALL), "", "R differs from what runs: no full apply without a plan");
}

#[test]
fn only_the_missing_stamp_is_written_after_an_adoption() {
    let snapshot =
        running(full_node()).with(|seen| seen.statefulset.as_mut().unwrap().template_hash = None);
    let patch = check(&snapshot, ALL);
    assert!(
        patch.contains(annotation::TEMPLATE_HASH) && !patch.contains("template\":{"),
        "{patch}"
    );
}

#[test]
fn the_label_of_the_watch_is_restored_while_an_update_waits() {
    let held = running(full_node())
        .edit(|spec| {
            spec.pod_labels.get_or_insert_default().insert("team".into(), "core".into());
            spec.update.get_or_insert_default().paused = Some(true);
        })
        .with(|seen| {
            let status = after(seen);
            assert!(status.pending_update.is_some());
            seen.store(status);
            let mut desired = (*seen.desired.clone().unwrap()).clone();
            let labels = [("sei.io/node", "n"), ("team", "core")];
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            desired.labels = labels.into();
            seen.desired = Ok(desired.into());
        });
    let patch: serde_json::Value = serde_json::from_str(&check(&held, ALL)).unwrap();
    assert_eq!(patch["metadata"]["labels"], json!({ "sei.io/node": "n" }));
}

#[test]
fn the_end_of_a_first_start_is_stamped_where_a_wiped_status_does_not_reach() {
    let restored = running(full_node_from(s3(9)));
    assert!(check(&restored, ALL).contains(r#""annotations":{"sei.io/initialised":"true"}"#));
    let stamped =
        restored.clone().with(|seen| seen.statefulset.as_mut().unwrap().initialised = true);
    assert_eq!(check(&stamped, ALL), "");
    let first = restored.with(|seen| {
        seen.status.phase = Some(sei_api::status::SeiNodePhase::Initializing);
    });
    assert_eq!(check(&first, ALL), "", "its first start is not complete");
}
