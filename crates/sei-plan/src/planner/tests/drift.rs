//! A running node: when an update is built, held, queued or left alone.

use std::collections::BTreeSet;

use sei_api::node::{OnImageChange, OnOperatorChange};
use sei_api::status::{Cause, FieldChange, UpdateState};

use std::time::Duration;

use super::*;
use crate::adoption::Comparison;
use crate::budget::Roll;
use crate::planner::fixture::{
    archive, full_node, governor, observer, replayer, running, seed, validator,
};
use crate::snapshot::Slot;

fn bumped(spec: sei_api::SeiNodeSpec) -> Snapshot {
    running(spec).edit(|spec| spec.image = "seid:2".into())
}

fn labelled(spec: sei_api::SeiNodeSpec) -> Snapshot {
    running(spec).edit(|spec| {
        spec.pod_labels.get_or_insert_default().insert("team".into(), "core".into());
    })
}

// P1, I23
#[test]
fn a_node_in_sync_gets_no_plan() {
    for spec in [full_node(), archive(), replayer(), validator(), seed()] {
        assert_eq!(started_tasks(&running(spec.clone())), "none");
        assert!(report(&running(spec)).contains("in sync"));
    }
}

// P2, P6, P7, P16
#[test]
fn another_image_builds_the_seven_tasks_in_order() {
    for spec in [full_node(), archive(), replayer(), observer()] {
        let plan = started(&bumped(spec)).unwrap();
        assert_eq!(tasks(&plan).join(" "), UPDATE);
        assert_eq!(plan.phase, PlanPhase::Active);
        assert_eq!(plan.target_phase, Some(SeiNodePhase::Running));
        assert_eq!(plan.failed_phase, None);
        assert_eq!(plan.target.unwrap().image, "seid:2");
    }
}

// P3, P23
#[test]
fn every_task_has_an_id_of_its_own_and_parameters() {
    let first = started(&bumped(full_node())).unwrap();
    let second = started(&bumped(full_node()).with(|seen| seen.plan_id = "second".into())).unwrap();
    let ids: BTreeSet<_> = first.tasks.iter().chain(&second.tasks).map(|task| &task.id).collect();
    assert_eq!(ids.len(), 14);
    assert_ne!(first.id, second.id);
    for task in &first.tasks {
        assert_eq!(task.status, sei_api::plan::TaskStatus::Pending);
        assert!(task.params.as_ref().is_some_and(serde_json::Value::is_object), "{task:?}");
    }
}

// P4, P5
#[test]
fn the_patch_carries_the_desired_settings_and_is_the_same_each_time() {
    let plan = started(&bumped(full_node())).unwrap();
    let desired = bumped(full_node()).desired.unwrap();
    assert_eq!(plan.tasks[0].params.as_ref(), Some(&desired.config_patch.json()));
    let again = started(&bumped(full_node())).unwrap();
    assert_eq!(plan.tasks[0].params, again.tasks[0].params);
}

// P8, P9
#[test]
fn a_changed_sidecar_image_rolls_from_the_platform_and_from_the_spec() {
    let by_spec = running(full_node())
        .edit(|spec| spec.sidecar.get_or_insert_default().image = Some("seictl:2".into()));
    assert_eq!(started_tasks(&by_spec), UPDATE);
    let by_platform = running(full_node()).with(|seen| {
        let desired = seen.desired.as_mut().unwrap();
        desired.sidecar_image = "seictl:2".into();
        desired.hash = crate::fingerprint::digest_of(&"platform");
    });
    let plan = started(&by_platform).unwrap();
    assert_eq!(plan.target.unwrap().cause, Cause::Operator, "the spec did not change");
}

// P10, P12, P24
#[test]
fn the_condition_names_the_image_that_drifted() {
    let message =
        |snapshot: &Snapshot| condition_text(&after(snapshot), ConditionType::NodeUpdateInProgress);
    let seid = message(&bumped(full_node()));
    assert!(seid.starts_with("True/UpdateStarted: image drift detected: spec=seid:2"), "{seid}");
    assert!(!seid.contains("sidecar"));
    let sidecar = running(full_node())
        .edit(|spec| spec.sidecar.get_or_insert_default().image = Some("seictl:2".into()));
    assert!(message(&sidecar).contains("sidecar image drift detected"));
    let both = bumped(full_node())
        .edit(|spec| spec.sidecar.get_or_insert_default().image = Some("seictl:2".into()));
    assert!(message(&both).contains("seid spec=") && message(&both).contains("sidecar spec="));
    assert_eq!(started_tasks(&both), UPDATE, "one plan for both");
}

// P11
#[test]
fn a_missing_record_of_the_sidecar_image_is_filled_from_the_pod() {
    let snapshot = running(full_node()).with(|seen| seen.status_mut().current_sidecar_image = None);
    assert_eq!(started_tasks(&snapshot), "none");
    assert_eq!(after(&snapshot).current_sidecar_image.as_deref(), Some("seictl:1"));
}

// P13
#[test]
fn an_update_patches_and_an_init_applies_whole_files() {
    let update = started_tasks(&bumped(full_node()));
    assert!(update.contains("config-patch") && !update.contains("config-apply"));
    let init = started_tasks(&crate::planner::fixture::new_node(full_node()));
    assert!(init.contains("config-apply") && !init.contains("config-patch"));
}

// P14, P15, I22
#[test]
fn an_update_checks_exactly_the_keys_that_are_declared() {
    let keys = |spec| {
        let tasks = started_tasks(&bumped(spec));
        tasks.strip_suffix(UPDATE).unwrap().trim().to_owned()
    };
    assert_eq!(keys(validator()), "validate-signing-key validate-node-key");
    let all = "validate-signing-key validate-node-key validate-operator-keyring";
    assert_eq!(keys(governor()), all);
    assert_eq!(keys(seed()), "validate-node-key");
    assert_eq!(keys(observer()), "");
}

// P17, P18, P19, P22
#[test]
fn only_a_closed_gate_is_opened_again() {
    let with = |sidecar: Sidecar| running(full_node()).with(|seen| seen.sidecar = sidecar);
    assert_eq!(started_tasks(&with(Sidecar::Ready)), "none");
    assert_eq!(started_tasks(&with(Sidecar::Unknown)), "none");
    assert_eq!(started_tasks(&with(Sidecar::Unreachable("refused".into()))), "none");
    let plan = started(&with(Sidecar::NotReady)).unwrap();
    assert_eq!(tasks(&plan), ["mark-ready"]);
    assert_eq!((plan.phase, plan.failed_phase), (PlanPhase::Active, None));
    assert_eq!(plan.target_phase, Some(SeiNodePhase::Running));
}

// P20
#[test]
fn an_update_that_can_start_wins_over_a_closed_gate() {
    let snapshot = bumped(full_node()).with(|seen| seen.sidecar = Sidecar::NotReady);
    assert_eq!(started_tasks(&snapshot), UPDATE);
}

// P21
#[test]
fn each_mark_ready_plan_has_fresh_ids() {
    let closed = |id: &str| {
        let snapshot = running(full_node()).with(|seen| {
            seen.sidecar = Sidecar::NotReady;
            seen.plan_id = id.into();
        });
        started(&snapshot).unwrap()
    };
    assert_ne!(closed("a").tasks[0].id, closed("b").tasks[0].id);
}

// S1, S2, S3
#[test]
fn the_probe_result_sets_its_condition() {
    for (sidecar, text) in [
        (Sidecar::Ready, "True/Ready: "),
        (Sidecar::NotReady, "False/NotReady: the gate is closed"),
        (Sidecar::Unreachable("refused".into()), "Unknown/Unreachable: refused"),
    ] {
        let snapshot = running(full_node()).with(|seen| seen.sidecar = sidecar);
        assert_eq!(condition_text(&after(&snapshot), ConditionType::SidecarReady), text);
    }
}

// S4, S5
#[test]
fn without_a_probe_the_condition_stays_unchanged() {
    let unknown = running(full_node()).with(|seen| seen.sidecar = Sidecar::Unknown);
    assert_eq!(condition_text(&after(&unknown), ConditionType::SidecarReady), "absent");
    let initializing = crate::planner::fixture::new_node(full_node()).with(|seen| {
        seen.status_mut().phase = Some(SeiNodePhase::Initializing);
        seen.sidecar = Sidecar::Ready;
    });
    assert_eq!(condition_text(&after(&initializing), ConditionType::SidecarReady), "absent");
}

#[test]
fn a_sidecar_that_cannot_answer_is_not_called_before_the_pod_is_replaced() {
    let late = "apply-statefulset apply-service replace-pod observe-image config-patch \
                config-validate mark-ready";
    let silent = bumped(full_node()).with(|seen| seen.sidecar = Sidecar::Unreachable("no".into()));
    assert_eq!(started_tasks(&silent), late);
    let pending = bumped(full_node()).with(|seen| seen.pods[0].sidecar.running = false);
    assert_eq!(started_tasks(&pending), late);
    let homeless = bumped(full_node()).with(|seen| seen.pods[0].ip = None);
    assert_eq!(started_tasks(&homeless), late);
}

#[test]
fn a_label_rolls_at_once_except_on_a_node_that_signs() {
    let taken = Slot::Taken { by: "ns/other rolls".into() };
    let busy = |spec| labelled(spec).with(|seen| seen.slot = Some(taken.clone()));
    assert_eq!(started_tasks(&busy(full_node())), UPDATE);
    assert_eq!(started_tasks(&busy(validator())), "none");
    let status = after(&busy(validator()));
    assert_eq!(
        condition_text(&status, ConditionType::PodTemplateDrift),
        "True/WaitingForSlot: is next in its chain: ns/other rolls"
    );
    assert_eq!(status.pending_update.unwrap().state, UpdateState::Queued);
    assert_eq!(started(&labelled(validator())).unwrap().target.unwrap().slot, Some(true));
    let unready = busy(validator()).with(|seen| seen.pods[0].ready = false);
    assert!(started(&unready).is_some(), "a node that is down never waits");
}

#[test]
fn an_image_waits_while_the_chain_is_halted_unless_the_node_is_down() {
    let halted = Slot::Halted { by: "ns/other".into() };
    let snapshot = bumped(validator()).with(|seen| seen.slot = Some(halted));
    assert_eq!(started_tasks(&snapshot), "none");
    let down = snapshot.with(|seen| seen.pods[0].ready = false);
    assert!(started(&down).is_some());
}

#[test]
fn a_change_of_the_operator_waits_for_a_slot() {
    let changed = running(full_node()).platform("b");
    assert_eq!(started(&changed).unwrap().target.unwrap().cause, Cause::Operator);
    assert_eq!(started(&changed).unwrap().target.unwrap().slot, Some(true));
    let halted =
        changed.clone().with(|seen| seen.slot = Some(Slot::Halted { by: "ns/bad".into() }));
    assert_eq!(started_tasks(&halted), "none");
    assert!(report(&halted).contains("the roll of ns/bad failed"));
    let pending = after(&halted).pending_update.unwrap();
    assert_eq!(pending.halted_by.as_deref(), Some("ns/bad"));
    let taken = changed.clone().with(|seen| seen.slot = Some(Slot::Taken { by: "ns/x".into() }));
    assert_eq!(after(&taken).pending_update.unwrap().halted_by, None);
    let unsettled =
        changed.clone().with(|seen| seen.rollout.settles_in = Some(Duration::from_secs(9)));
    assert_eq!(started_tasks(&unsettled), "none");
    let younger = changed.with(|seen| seen.operator_version = "0.9.0".into());
    assert_eq!(started_tasks(&younger), "none", "never towards an older operator");
    assert!(report(&younger).contains("newer operator 1.0.0"));
}

#[test]
fn a_hold_is_lifted_by_its_own_approval_only() {
    let held = running(full_node())
        .platform("b")
        .with(|seen| seen.rollout.on_operator_change = OnOperatorChange::Hold);
    let status = after(&held);
    assert!(condition_text(&status, ConditionType::PodTemplateDrift).starts_with("True/Held"));
    let pending = status.pending_update.unwrap();
    assert_eq!(pending.state, UpdateState::Held);
    assert_eq!(pending.changes[0].path, "containers[seid].env[PLATFORM]");
    let approve = |hash: &str| {
        held.clone().with(|seen| {
            let name = sei_api::names::annotation::APPROVE_UPDATE.to_owned();
            let annotations = seen.node.metadata.annotations.get_or_insert_default();
            annotations.insert(name, hash.to_owned());
        })
    };
    assert_eq!(started_tasks(&approve(&pending.target_hash)), UPDATE);
    assert_eq!(started_tasks(&approve("v1:other")), "none");
    assert!(report(&approve("v1:other")).contains("refuses the approval of v1:other"));
    let busy = approve(&pending.target_hash)
        .with(|seen| seen.slot = Some(Slot::Taken { by: "ns/other".into() }));
    assert_eq!(started_tasks(&busy), "none", "an approval never lifts the budget");
    let own = held.edit(|spec| {
        let update = spec.update.get_or_insert_default();
        update.on_operator_change = Some(OnOperatorChange::Auto);
    });
    assert_eq!(started_tasks(&own.platform("b")), UPDATE, "the node's own policy wins");
}

#[test]
fn a_closed_gate_is_opened_even_while_the_update_is_held() {
    let closed = |snapshot: Snapshot| snapshot.with(|seen| seen.sidecar = Sidecar::NotReady);
    let held = running(full_node())
        .platform("b")
        .with(|seen| seen.rollout.on_operator_change = OnOperatorChange::Hold);
    assert_eq!(started_tasks(&closed(held)), "mark-ready");
    let queued = running(full_node())
        .platform("b")
        .with(|seen| seen.slot = Some(Slot::Taken { by: "x".into() }));
    assert_eq!(started_tasks(&closed(queued)), "mark-ready");
    let paused =
        bumped(full_node()).edit(|spec| spec.update.get_or_insert_default().paused = Some(true));
    assert_eq!(started_tasks(&closed(paused)), "mark-ready");
    let invalid = running(full_node()).with(|seen| seen.desired = Err("spec.image is bad".into()));
    assert_eq!(started_tasks(&closed(invalid)), "mark-ready");
}

#[test]
fn the_running_template_is_restored_when_it_is_desired_again() {
    let bumped_render = bumped(full_node()).desired.unwrap();
    let snapshot = running(full_node()).with(|seen| {
        let statefulset = seen.statefulset.as_mut().unwrap();
        statefulset.template_hash = Some(bumped_render.hash.clone());
        statefulset.update_revision = Some("rev-2".into());
    });
    let plan = started(&snapshot).unwrap();
    let desired = snapshot.desired.clone().unwrap();
    assert_eq!(plan.target.as_ref().unwrap().hash, desired.hash);
    assert_eq!(tasks(&plan)[0], "apply-statefulset", "first of all");
    let failed = snapshot.with(|seen| {
        let mut pending = super::super::plan(seen).pending_update.unwrap();
        pending.attempts = Some(2);
        pending.next_attempt_at = Some(Time(later(seen.now, Duration::from_secs(60))));
        seen.status_mut().pending_update = Some(pending);
    });
    assert_eq!(started_tasks(&failed), "none", "not at once after a failure");
    let status = after(&failed);
    assert!(
        condition_text(&status, ConditionType::PodTemplateDrift).starts_with("True/BackingOff")
    );
}

#[test]
fn a_revision_that_changes_by_itself_is_reported_and_not_rolled() {
    let snapshot = running(full_node())
        .with(|seen| seen.statefulset.as_mut().unwrap().update_revision = Some("rev-9".into()));
    assert_eq!(started_tasks(&snapshot), "none");
    assert!(report(&snapshot).contains("the revision changed without an update by the operator"));
}

/// A running pod that this operator has never seen.
fn adopted(spec: sei_api::SeiNodeSpec) -> Snapshot {
    running(spec).with(|seen| {
        let status = seen.status_mut();
        status.pod_template_hash = None;
        status.pod_template = None;
        seen.statefulset.as_mut().unwrap().template_hash = None;
    })
}

fn compared(snapshot: Snapshot, comparison: Comparison) -> Snapshot {
    snapshot.with(|seen| seen.adoption = Some(("pod-uid".into(), comparison)))
}

fn grace() -> Comparison {
    Comparison::Different(vec![FieldChange {
        path: "terminationGracePeriodSeconds".into(),
        from: Some("30".into()),
        to: Some("120".into()),
    }])
}

#[test]
fn an_unknown_pod_is_compared_by_the_server_and_recorded_when_equal() {
    let decision = plan(&adopted(full_node()));
    assert_eq!(decision.compare.as_deref(), Some("pod-uid"));
    assert_eq!(decision.plan, PlanMove::Keep);
    let snapshot = compared(adopted(full_node()), Comparison::Equal);
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.pod_template_hash, Some(snapshot.desired.unwrap().hash.clone()));
    assert_eq!(condition_text(&status, ConditionType::PodTemplateDrift), "False/InSync: ");
}

#[test]
fn an_adopted_difference_waits_for_the_next_change_of_the_spec() {
    let snapshot = compared(adopted(full_node()), grace());
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    let drift = condition_text(&status, ConditionType::PodTemplateDrift);
    assert!(drift.starts_with("True/AdoptedWithDrift"), "{drift}");
    assert!(drift.contains("terminationGracePeriodSeconds 30 -> 120"), "{drift}");
    let pending = status.pending_update.clone().unwrap();
    assert_eq!((pending.cause, pending.state), (Cause::Adoption, UpdateState::Held));
    let edited = snapshot.with(|seen| seen.store(status)).edit(|spec| {
        spec.pod_labels.get_or_insert_default().insert("team".into(), "core".into());
    });
    assert_eq!(started(&edited).unwrap().target.unwrap().cause, Cause::Spec);
    let auto = compared(adopted(full_node()), grace())
        .with(|seen| seen.rollout.adopt_automatically = true);
    assert_eq!(started_tasks(&auto), UPDATE);
}

#[test]
fn an_adopted_pod_with_another_image_rolls() {
    let snapshot = adopted(full_node()).edit(|spec| spec.image = "seid:2".into());
    assert_eq!(plan(&snapshot).compare.as_deref(), Some("pod-uid"), "the server compares first");
    let change = FieldChange { path: "containers[seid].image".into(), ..FieldChange::default() };
    let snapshot = compared(snapshot, Comparison::Different(vec![change]));
    assert_eq!(started(&snapshot).unwrap().target.unwrap().cause, Cause::Spec);
}

#[test]
fn a_new_algorithm_is_compared_and_restamped_never_rolled() {
    let snapshot = running(full_node()).with(|seen| {
        let old = format!("v0:{}", "0".repeat(64));
        seen.status_mut().pod_template_hash = Some(old.clone());
        seen.statefulset.as_mut().unwrap().template_hash = Some(old);
    });
    assert_eq!(plan(&snapshot).compare.as_deref(), Some("pod-uid"));
    let snapshot = compared(snapshot, Comparison::Equal);
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.pod_template_hash, Some(snapshot.desired.unwrap().hash.clone()));
}

#[test]
fn a_changed_platform_sidecar_image_is_not_a_change_of_the_spec() {
    let snapshot = adopted(validator()).with(|seen| {
        let desired = seen.desired.as_mut().unwrap();
        desired.sidecar_image = "seictl:2".into();
        desired.hash = crate::fingerprint::digest_of(&"another platform");
    });
    assert_eq!(started_tasks(&snapshot), "none", "a takeover restarts nothing");
    assert_eq!(plan(&snapshot).compare.as_deref(), Some("pod-uid"));
    let queued = labelled(validator()).with(|seen| {
        let desired = seen.desired.as_mut().unwrap();
        desired.sidecar_image = "seictl:2".into();
        seen.slot = Some(Slot::Taken { by: "ns/other".into() });
    });
    assert_eq!(started_tasks(&queued), "none", "signers do not roll together for it");
}

/// An operator's change was rolled out, its pod never ran, and the platform was changed again.
#[test]
fn a_pod_of_our_own_that_never_ran_is_not_adopted() {
    let bad = fixture::desired(&full_node(), "bad");
    let stuck = running(full_node()).with(|seen| {
        seen.statefulset = Some(fixture::statefulset(&bad.template(), &bad.hash, "rev-bad").into());
        seen.pods[0].revision = Some("rev-bad".into());
        seen.pods[0].ready = false;
        seen.pods[0].sidecar.running = false;
        seen.status_mut().last_update = Some(sei_api::status::LastUpdate {
            plan_id: "p".into(),
            cause: Cause::Operator,
            from: None,
            to: Some(bad.hash.clone()),
            started_at: None,
            finished_at: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seen.now),
            outcome: sei_api::status::UpdateOutcome::Superseded,
            detail: None,
            slot: Some(true),
            ready_at: None,
        });
    });
    for platform in ["a", "better"] {
        let plan = started(&stuck.clone().platform(platform)).expect("it is replaced");
        assert_eq!(plan.target.unwrap().cause, Cause::Operator);
    }
    let anothers = stuck.with(|seen| seen.status_mut().last_update = None);
    assert_eq!(started_tasks(&anothers), "none", "its creator is unknown");
}

#[test]
fn a_new_leader_keeps_the_reported_state() {
    let halted = running(full_node())
        .platform("b")
        .with(|seen| seen.slot = Some(Slot::Halted { by: "ns/bad".into() }));
    let reported = after(&halted);
    let restarted = halted.with(|seen| {
        seen.store(reported.clone());
        seen.slot = None;
        seen.rollout.settles_in = Some(Duration::from_secs(90));
    });
    assert_eq!(after(&restarted), reported, "nothing is written");
    assert_eq!(plan(&restarted).requeue, Some(Duration::from_secs(90)));
}

#[test]
fn a_changed_image_of_a_ready_node_waits_for_its_turn() {
    for (spec, ready, expected) in [
        (full_node(), true, Some(Roll::Image)),
        (validator(), true, Some(Roll::Image)),
        // Replacing a node that is down costs nothing, and a halted chain needs many at once.
        (full_node(), false, None),
        (validator(), false, None),
    ] {
        let snapshot = bumped(spec).with(|seen| {
            seen.slot = None;
            seen.pods[0].ready = ready;
        });
        let decision = plan(&snapshot);
        assert_eq!(decision.asks_slot, expected);
        assert_eq!(decision.plan.started().is_none(), expected.is_some());
    }
    let granted = started(&bumped(validator())).unwrap();
    assert_eq!(granted.target.unwrap().slot, Some(true), "a failed roll halts the rest");
}

#[test]
fn images_roll_at_once_where_the_platform_or_the_node_asks_for_it() {
    let platform = bumped(validator()).with(|seen| {
        seen.slot = None;
        seen.rollout.on_image_change = OnImageChange::AtOnce;
    });
    assert_eq!(started(&platform).unwrap().target.unwrap().slot, None);
    let node = bumped(validator())
        .edit(|spec| {
            spec.update.get_or_insert_default().on_image_change = Some(OnImageChange::AtOnce);
        })
        .with(|seen| seen.slot = None);
    assert!(started(&node).is_some());
}

#[test]
fn an_image_name_that_admission_rewrote_is_no_changed_image() {
    let mirrored = |snapshot: Snapshot| {
        snapshot.with(|seen| {
            seen.pods[0].seid.image = "mirror/seid:1".into();
            seen.status_mut().current_image = Some("mirror/seid:1".into());
            // Not the newest revision, so the template does not show what was asked for.
            seen.statefulset.as_mut().unwrap().update_revision = Some("rev-2".into());
        })
    };
    // Any other edit of a signer takes a slot of its chain as without the mirror.
    let edited = mirrored(labelled(validator())).with(|seen| seen.slot = None);
    assert_eq!(plan(&edited).asks_slot, Some(Roll::Template));
    // Without a record the server compares before anything is decided.
    let unknown = mirrored(running(validator())).with(|seen| {
        seen.status_mut().pod_template = None;
        seen.status_mut().pod_template_hash = None;
    });
    let decision = plan(&unknown);
    assert_eq!((decision.plan.started(), decision.compare.is_some()), (None, true));
    // It cannot where the revision of the pod no longer exists; then only the names are left.
    let uid = unknown.pods[0].uid.clone();
    let lost = unknown.with(|seen| seen.adoption = Some((uid, Comparison::NoRevision)));
    assert_eq!(plan(&lost).plan.started(), Some(PlanKind::NodeUpdate));
}

#[test]
fn a_pod_that_is_taken_over_rolls_for_its_image_only_if_the_server_finds_another() {
    // Admission has rewritten the images of the template and of the pod.
    let taken_over = |path: &str| {
        running(validator()).with(|seen| {
            seen.pods[0].seid.image = "mirror/seid:1".into();
            seen.pods[0].sidecar.image = "mirror/seictl:1".into();
            let set = seen.statefulset.as_mut().unwrap();
            set.template_hash = None;
            set.template.edit(|json| {
                json["spec"]["containers"][0]["image"] = "mirror/seid:1".into();
                json["spec"]["initContainers"][0]["image"] = "mirror/seictl:1".into();
            });
            seen.status_mut().pod_template = None;
            seen.status_mut().pod_template_hash = None;
            let change = FieldChange { path: path.into(), ..FieldChange::default() };
            seen.adoption = Some(("pod-uid".into(), Comparison::Different(vec![change])));
            seen.slot = None;
        })
    };
    let other_field = taken_over("terminationGracePeriodSeconds");
    let pending = after(&other_field).pending_update.unwrap();
    assert_eq!((pending.cause, pending.state), (Cause::Adoption, UpdateState::Held));
    assert_eq!(plan(&other_field).asks_slot, None);
    let sidecar = after(&taken_over("initContainers[sei-sidecar].image"));
    assert_eq!(sidecar.pending_update.unwrap().cause, Cause::Adoption, "it is the platform's");
    assert_eq!(plan(&taken_over("containers[seid].image")).asks_slot, Some(Roll::Image));
}

#[test]
fn the_message_of_an_update_names_no_image_that_admission_rewrote() {
    let mirrored = labelled(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.pods[0].sidecar.image = "mirror/seictl:1".into();
        seen.status_mut().current_image = Some("mirror/seid:1".into());
        seen.status_mut().current_sidecar_image = Some("mirror/seictl:1".into());
    });
    let text = condition_text(&after(&mirrored), ConditionType::NodeUpdateInProgress);
    assert!(text.starts_with("True/UpdateStarted: pod template drift detected"), "{text}");
}

#[test]
fn a_revert_that_the_server_calls_equal_restores_the_applied_template() {
    let reverted = running(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.status_mut().current_image = Some("mirror/seid:1".into());
        let uid = seen.pods[0].uid.clone();
        seen.adoption = Some((uid, Comparison::Equal));
        let set = seen.statefulset.as_mut().unwrap();
        set.template_hash = Some(crate::fingerprint::digest_of(&"the reverted template"));
        set.update_revision = Some("rev-2".into());
    });
    let plan = started(&reverted).expect("the StatefulSet would make another pod");
    assert!(plan.has(sei_api::task::TaskType::ApplyStatefulSet));
}

#[test]
fn changed_settings_outside_of_the_template_replace_the_pod() {
    let address = running(full_node()).edit(|spec| spec.external_address = Some("a:1".into()));
    let plan = started(&address).expect("the address of a running node is applied");
    assert_eq!(tasks(&plan).join(" "), UPDATE);
    assert_eq!(plan.target.as_ref().unwrap().replaces_pod.as_deref(), Some("pod-uid"));
    let changes = after(&address).pending_update.unwrap().changes;
    assert_eq!(
        changes.iter().map(|change| &*change.path).collect::<Vec<_>>(),
        ["config.externalAddress"]
    );

    let overrides = running(validator()).edit(|spec| {
        spec.overrides.get_or_insert_default().insert("mempool.size".into(), "0".into());
    });
    let plan = started(&overrides).expect("overrides of a running node are applied");
    let expected = "validate-signing-key validate-node-key config-apply config-validate \
                    apply-statefulset apply-service replace-pod observe-image mark-ready";
    assert_eq!(tasks(&plan).join(" "), expected, "a removed key gets its default back");
    assert_eq!(plan.target.unwrap().slot, Some(true), "as any other edit of a signer");

    let template = overrides.edit(|spec| spec.image = "seid:2".into());
    assert!(started_tasks(&template).contains("config-apply"), "an image change applies them too");
}

#[test]
fn changed_peers_restart_nothing_and_are_reported() {
    let peers = running(full_node()).with(|seen| {
        let template = seen.status_mut().pod_template.as_mut().unwrap();
        template.config.insert("peers".into(), "of-other-peers".into());
        let desired = seen.desired.as_mut().unwrap();
        desired.config.insert("peers".into(), "of-present-peers".into());
    });
    assert_eq!(started(&peers), None);
    assert_eq!(
        condition_text(&after(&peers), ConditionType::PodTemplateDrift),
        "False/InSync: config.peers has changed; the next roll applies it"
    );
}

#[test]
fn settings_edited_during_an_update_supersede_it() {
    let snapshot = bumped(full_node());
    let active = started(&snapshot).unwrap();
    let snapshot = snapshot
        .with(|seen| seen.status_mut().plan = Some(active))
        .edit(|spec| spec.external_address = Some("a:1".into()));
    assert!(report(&snapshot).contains("superseded"), "{}", report(&snapshot));
}

#[test]
fn a_revision_moved_by_others_is_reported_and_costs_no_write() {
    let restarted = running(full_node()).with(|seen| {
        let set = seen.statefulset.as_mut().unwrap();
        set.update_revision = Some("rev-2".into());
        let annotations = serde_json::json!({ "kubectl.kubernetes.io/restartedAt": "now" });
        set.template.edit(|json| json["metadata"]["annotations"] = annotations);
        seen.current.template = seen.compare_template();
    });
    assert_eq!(started_tasks(&restarted), "none");
    assert_eq!(crate::planner::repair::repairs(&restarted), Vec::new(), "no apply would remove it");
    let reported = condition_text(&after(&restarted), ConditionType::PodTemplateDrift);
    assert!(reported.contains("False/InSync: keeps the pod at revision rev-1"), "{reported}");
}

#[test]
fn a_bad_setting_never_replaces_the_pod() {
    let edited = running(full_node()).edit(|spec| {
        spec.overrides.get_or_insert_default().insert("no.such.key".into(), "1".into());
    });
    let mut failed = started(&edited).unwrap();
    failed.phase = PlanPhase::Failed;
    failed.failed_task_index = Some(0);
    let snapshot = edited.with(|seen| {
        let pending = after(seen).pending_update;
        seen.status_mut().plan = Some(failed.clone());
        seen.status_mut().pending_update = pending;
    });
    assert_eq!(started_tasks(&snapshot), "none", "it is retried later, on the running pod");
    assert_eq!(after(&snapshot).pending_update.unwrap().state, UpdateState::Retrying);
    // An image that differs too may be the remedy.
    failed.target.as_mut().unwrap().from = Some("v1:other".into());
    let both = snapshot.with(|seen| seen.status_mut().plan = Some(failed));
    assert!(started_tasks(&both).starts_with("apply-statefulset"));
}
