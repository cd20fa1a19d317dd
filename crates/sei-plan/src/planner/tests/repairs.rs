//! What is repaired without a plan, and what is left alone.

use sei_api::names::annotation;
use serde_json::json;

use super::*;
use crate::planner::fixture::{full_node, full_node_from, new_node, running, s3, validator};
use crate::planner::repair::{desired_replicas, repairs};
use crate::request::Request;
use crate::snapshot::Current;

const ALL: Current = Current { service: true, proxy_config: true, template: true };
const NONE: Current = Current { service: false, proxy_config: false, template: true };

/// The repairs by name, with the patch where there is one.
fn check(snapshot: &Snapshot, current: Current) -> String {
    let mut snapshot = snapshot.clone();
    snapshot.current = Current { template: snapshot.compare_template(), ..current };
    let names = repairs(&snapshot).into_iter().map(|request| match request {
        Request::ApplyService(_) => "service".to_owned(),
        Request::ApplyConfigMap(_) => "config".to_owned(),
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
        statefulset.template["spec"]["containers"][0]["image"] = json!("evil:1");
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
