//! What must never happen to a node in any combination of events: a second signer, a lost volume,
//! a node without a pod or without a report.

use sei_api::status::{Cause, ClaimRef, LastUpdate, UpdateOutcome};

use super::*;
use crate::adoption::Comparison;
use crate::planner::fixture::{self, full_node, new_node, observer, running, validator};
use crate::request::ClaimView;
use crate::snapshot::Claim;
use crate::tasks::Waiting;

/// Why the node is stalled, as `True/Reason: message`.
fn stalled(snapshot: &Snapshot) -> String {
    condition_text(&after(snapshot), ConditionType::Stalled)
}

/// The StatefulSet of a roll to another platform's template, whose pod is never created.
fn without_pod(spec: sei_api::SeiNodeSpec) -> Snapshot {
    let bad = fixture::desired(&spec, "bad");
    running(spec).with(|seen| {
        let template = bad.template();
        seen.statefulset = Some(fixture::statefulset(&template, &bad.hash, "rev-bad").into());
        seen.pods.clear();
        seen.sidecar = Sidecar::Unknown;
    })
}

fn last_update(snapshot: &Snapshot, cause: Cause, to: &str) -> LastUpdate {
    LastUpdate {
        plan_id: "p".into(),
        cause,
        from: None,
        to: Some(to.to_owned()),
        started_at: None,
        finished_at: Time(snapshot.now),
        outcome: UpdateOutcome::Superseded,
        detail: None,
        slot: None,
        ready_at: None,
    }
}

#[test]
fn a_revert_is_applied_where_the_server_refuses_the_pod() {
    let reverted = without_pod(full_node());
    let plan = started(&reverted).expect("the template is restored");
    assert_eq!(tasks(&plan)[0], "apply-statefulset");
    assert_eq!(plan.target.unwrap().hash, reverted.desired.as_ref().unwrap().hash);

    let repaired = without_pod(full_node()).edit(|spec| spec.image = "seid:2".into());
    assert_eq!(
        started(&repaired).expect("another spec is applied too").target.unwrap().cause,
        Cause::Spec
    );

    let platform = without_pod(validator()).platform("better");
    assert_eq!(started(&platform).unwrap().target.unwrap().cause, Cause::Operator);
}

#[test]
fn a_late_pod_is_waited_for() {
    let evicted = running(full_node()).with(|seen| seen.pods.clear());
    assert_eq!(started_tasks(&evicted), "none", "it is recreated from the same template");
    let leaving = without_pod(full_node()).with(|seen| {
        let mut pod = fixture::pod("seid:1", "seictl:1", "rev-1");
        pod.deleted_at = Some(seen.now);
        seen.pods = vec![pod.into()];
    });
    assert_eq!(started_tasks(&leaving), "none", "the old pod is still running");
    let stopped =
        without_pod(full_node()).with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(0));
    assert_eq!(started_tasks(&stopped), "none");
}

#[test]
fn while_a_change_is_held_the_next_pod_has_the_running_template() {
    let held = without_pod(full_node()).platform("better").with(|seen| {
        seen.rollout.on_operator_change = sei_api::node::OnOperatorChange::Hold;
    });
    let plan = started(&held).expect("the running template is restored");
    assert_eq!(plan.kind, Some(PlanKind::ApplyTemplate));
    assert_eq!(plan.target.unwrap().hash, held.status().pod_template_hash.clone().unwrap());
}

#[test]
fn the_author_of_a_roll_may_revert_it() {
    let labelled = |spec: &mut sei_api::SeiNodeSpec| {
        spec.pod_labels = Some([("tier".to_owned(), "a".to_owned())].into());
    };
    let edited = running(full_node()).edit(labelled);
    let bad = edited.desired.clone().unwrap();
    let reverted = without_pod(full_node()).with(|seen| {
        let template = bad.template();
        seen.statefulset = Some(fixture::statefulset(&template, &bad.hash, "rev-bad").into());
        let mut pod = fixture::pod("seid:1", "seictl:1", "rev-bad");
        (pod.ready, pod.seid.has_run, pod.sidecar.running) = (false, false, false);
        seen.pods = vec![pod.into()];
        seen.rollout.on_operator_change = sei_api::node::OnOperatorChange::Hold;
        seen.status_mut().last_update = Some(last_update(seen, Cause::Spec, &bad.hash));
    });
    assert_eq!(started(&reverted).expect("nothing holds it").target.unwrap().cause, Cause::Spec);
}

#[test]
fn a_template_applied_to_a_stopped_node_is_recorded_as_ours() {
    let stopped = running(full_node())
        .edit(|spec| {
            spec.paused = Some(true);
            spec.image = "seid:2".into();
        })
        .with(|seen| {
            seen.pods.clear();
            seen.statefulset.as_mut().unwrap().replicas = Some(0);
        });
    let mut status = after(&stopped);
    let plan = status.plan.as_mut().expect("its next start is prepared");
    assert_eq!(plan.kind, Some(PlanKind::ApplyTemplate));
    plan.phase = PlanPhase::Complete;
    let applied = stopped.with(|seen| {
        let hash = seen.desired.as_ref().unwrap().hash.clone();
        seen.statefulset.as_mut().unwrap().template_hash = Some(hash);
        seen.store(status);
    });
    let last = after(&applied).last_update.expect("it is recorded");
    assert_eq!((last.cause, last.to), (Cause::Spec, Some(applied.desired.unwrap().hash.clone())));
}

#[test]
fn a_signer_that_is_not_started_names_the_other_signer() {
    let stopped = running(validator()).with(|seen| {
        seen.signing_conflict = Some("ns/a".into());
        seen.pods.clear();
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
    });
    assert!(stalled(&stopped).starts_with("True/SigningKeyConflict: ns/a"));
    assert!(
        plan(&stopped).requeue.unwrap() <= Duration::from_secs(30),
        "no watch reports the end of the other signer"
    );
    let missing = stopped.clone().with(|seen| seen.statefulset = None);
    assert!(stalled(&missing).starts_with("True/SigningKeyConflict: ns/a"));
    let paused = stopped.edit(|spec| spec.paused = Some(true));
    assert!(stalled(&paused).starts_with("False"), "its owner has stopped it");
}

#[test]
fn a_signer_is_not_started_while_its_volume_is_unread() {
    let stopped = running(validator()).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.pods.clear();
        seen.claim = Claim::Unknown;
        seen.status_mut().data_claim = Some(ClaimRef { name: "data-n".into(), uid: "old".into() });
    });
    assert_eq!(repair::desired_replicas(&stopped, Some(0)), 0);
    assert!(plan(&stopped).requeue.unwrap() <= Duration::from_secs(30), "it is reconciled again");
    assert_eq!(repair::desired_replicas(&stopped, Some(1)), 1, "a running pod is left alone");
    let seen = stopped.with(|seen| {
        let (uid, phase) = ("old".to_owned(), "Bound".to_owned());
        seen.claim = Claim::Present(ClaimView { uid, phase, ..ClaimView::default() });
    });
    assert_eq!(repair::desired_replicas(&seen, Some(0)), 1);
}

#[test]
fn a_plan_is_abandoned_for_a_volume_that_lasts_only_as_long_as_the_pod() {
    let updating = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let status = after(&updating);
    let going = updating.with(|seen| {
        seen.store(status);
        seen.status_mut().data_claim = Some(ClaimRef { name: "data-n".into(), uid: "old".into() });
        let (uid, phase) = ("old".to_owned(), "Bound".to_owned());
        seen.claim =
            Claim::Present(ClaimView { uid, phase, terminating: true, ..ClaimView::default() });
    });
    assert!(after(&going).plan.is_none());
    assert!(stalled(&going).starts_with("True/DataVolumeLost"));
}

#[test]
fn a_statefulset_of_another_owner_is_reported() {
    let foreign = running(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.statefulset.as_mut().unwrap().controller = None);
    assert_eq!(started_tasks(&foreign), "none");
    assert!(stalled(&foreign).starts_with("True/InvalidSpec: a StatefulSet of this name"));
}

#[test]
fn an_adopted_node_is_compared_also_while_its_gate_waits() {
    let waiting = running(full_node())
        .edit(|spec| spec.pod_labels = Some([("tier".to_owned(), "a".to_owned())].into()))
        .with(|seen| {
            seen.status_mut().pod_template = None;
            seen.status_mut().pod_template_hash = None;
            seen.statefulset.as_mut().unwrap().template_hash = None;
            let plan = build::mark_ready(seen);
            seen.status_mut().plan = Some(plan);
            let reason = Some(Reason::SidecarUnreachable);
            seen.waiting =
                Some(Waiting { reason, message: "no answer".into(), ..Waiting::default() });
        });
    assert_eq!(plan(&waiting).compare.as_deref(), Some("pod-uid"));
}

#[test]
fn pods_with_renamed_images_are_not_drift() {
    let mirrored = running(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.status_mut().pod_template = None;
        seen.status_mut().pod_template_hash = None;
        seen.statefulset.as_mut().unwrap().template_hash = None;
    });
    assert_eq!(plan(&mirrored).compare.as_deref(), Some("pod-uid"), "the server compares it");
    assert_eq!(started_tasks(&mirrored), "none");
    let stale = mirrored
        .with(|seen| seen.statefulset.as_mut().unwrap().update_revision = Some("rev-2".into()));
    assert_eq!(started_tasks(&stale), "none", "names of images decide nothing");
    assert_eq!(plan(&stale).compare.as_deref(), Some("pod-uid"));
}

#[test]
fn a_record_that_contradicts_the_pods_images_is_compared_by_the_server() {
    let moved = running(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.status_mut().current_image = Some("mirror/seid:1".into());
        seen.statefulset.as_mut().unwrap().update_revision = Some("rev-2".into());
    });
    assert_eq!(plan(&moved).compare.as_deref(), Some("pod-uid"));
    assert_eq!(started_tasks(&moved), "none");
    let compared = |comparison| {
        moved.clone().with(|seen| seen.adoption = Some(("pod-uid".into(), comparison)))
    };
    assert_eq!(started_tasks(&compared(Comparison::Equal)), "none", "admission renamed it");
    let reported = after(&compared(Comparison::Equal));
    let again = compared(Comparison::Equal).with(|seen| {
        seen.store(reported.clone());
        seen.now = fixture::at(60);
    });
    assert_eq!(after(&again), reported, "and nothing more is written");
    let changed = |path: &str| {
        let change = sei_api::status::FieldChange { path: path.into(), ..Default::default() };
        compared(Comparison::Different(vec![change]))
    };
    assert!(started(&changed("containers[seid].image")).is_some(), "it was forged");
    assert_eq!(started_tasks(&changed("hostAliases")), "none", "an adopted pod has its image");
}

#[test]
fn the_first_plan_waits_until_peers_have_reported_their_ids() {
    let unresolved = new_node(full_node()).with(|seen| seen.asks_peers = true);
    assert_eq!(started_tasks(&unresolved), "none");
    assert!(report(&unresolved).contains("waits for the p2p ids of its peers"));
    assert!(started(&unresolved.with(|seen| seen.asks_peers = false)).is_some());
    let runs = running(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.asks_peers = true);
    assert!(started(&runs).is_some(), "a running node has them already");
}

#[test]
fn an_init_plan_is_superseded_when_its_template_is_no_longer_applied() {
    let status = after(&new_node(full_node()));
    let lost = running(full_node()).with(|seen| {
        let applied = status.plan.clone().map(|mut plan| {
            for task in &mut plan.tasks[..3] {
                task.status = sei_api::plan::TaskStatus::Complete;
            }
            plan.applied = Some(sei_api::plan::Applied {
                uid: "another".into(),
                generation: 1,
                revision: None,
            });
            plan
        });
        seen.plan_id = "33333333-3333-4333-8333-333333333333".into();
        seen.store(SeiNodeStatus { plan: applied, ..status.clone() });
        seen.statefulset.as_mut().unwrap().template_hash = Some("v1:other".into());
    });
    assert_ne!(after(&lost).plan.unwrap().id, status.plan.unwrap().id, "a new init plan starts");
}

#[test]
fn an_update_is_superseded_when_its_template_was_edited_after_its_apply() {
    let updating = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let mut status = after(&updating);
    let active = status.plan.as_mut().unwrap();
    let hash = active.target.as_ref().unwrap().hash.clone();
    let uid = fixture::STS_UID.to_owned();
    active.applied = Some(sei_api::plan::Applied { uid, generation: 2, revision: None });
    let applied = |generation: i64, image: &str| {
        updating.clone().with(|seen| {
            seen.store(status.clone());
            seen.plan_id = "55555555-5555-4555-8555-555555555555".into();
            let template = seen.desired.as_ref().unwrap().template();
            let set = seen.statefulset.as_mut().unwrap();
            set.template_hash = Some(hash.clone());
            set.generation = generation;
            set.template = template.into();
            set.template.edit(|json| json["spec"]["containers"][0]["image"] = image.into());
        })
    };
    assert_eq!(plan(&applied(3, "seid:2")).plan, PlanMove::Keep, "another field was edited");
    assert_eq!(plan(&applied(2, "seid:9")).plan, PlanMove::Keep, "admission rewrote the image");
    let edited = report(&applied(3, "seid:9"));
    assert!(edited.contains("superseded by another template on the StatefulSet"), "{edited}");
}

#[test]
fn an_identity_edited_during_an_update_is_reported_at_once() {
    let updating = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let status = after(&updating);
    let edited =
        updating.edit(|spec| spec.chain_id = "another".into()).with(|seen| seen.store(status));
    assert!(stalled(&edited).starts_with("True/InvalidSpec: spec.chainId"));
    assert!(after(&edited).plan.is_some(), "the plan continues");
}

#[test]
fn keys_can_be_added_to_an_observer() {
    let taking = running(observer()).edit(|spec| spec.validator = validator().validator);
    assert!(started(&taking).is_some());
}

#[test]
fn a_second_init_plan_restores_what_the_first_did_not() {
    for snapshot in [fixture::s3(5), fixture::state_sync()] {
        let new = new_node(fixture::full_node_from(snapshot));
        let first = started(&new).unwrap();
        let status = after(&new);
        let edited = new.edit(|spec| spec.image = "seid:2".into()).with(|seen| {
            seen.store(status);
            seen.plan_id = "44444444-4444-4444-8444-444444444444".into();
        });
        let second = started(&edited).expect("the image differs");
        assert_eq!(tasks(&second), tasks(&first));
    }
}
