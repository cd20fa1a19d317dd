//! What must not happen to a node, whatever comes together: a second signer, a volume that goes, a
//! node that is left without a pod or without a word.

use sei_api::status::{Cause, ClaimRef, LastUpdate, UpdateOutcome};

use super::*;
use crate::adoption::Comparison;
use crate::planner::fixture::{self, full_node, new_node, observer, running, validator};
use crate::request::ClaimView;
use crate::snapshot::Claim;
use crate::tasks::Waiting;

/// Why the node is stalled, as `True/Reason: message`.
fn stalled(snapshot: &Snapshot) -> String {
    says(&after(snapshot), ConditionType::Stalled)
}

/// The StatefulSet of a roll to another platform's template, whose pod nobody makes.
fn without_pod(spec: sei_api::SeiNodeSpec) -> Snapshot {
    let bad = fixture::desired(&spec, "bad");
    running(spec).with(|seen| {
        let template = serde_json::to_value(&bad.statefulset.spec.template).unwrap();
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
fn a_revert_arrives_where_the_server_refuses_the_pod() {
    let reverted = without_pod(full_node());
    let plan = started(&reverted).expect("the template is put back");
    assert_eq!(tasks(&plan)[0], "apply-statefulset");
    assert_eq!(plan.target.unwrap().hash, reverted.desired.as_ref().unwrap().hash);

    let mended = without_pod(full_node()).edit(|spec| spec.image = "seid:2".into());
    assert_eq!(started(&mended).expect("so is another spec").target.unwrap().cause, Cause::Spec);

    let platform = without_pod(validator()).platform("better");
    assert_eq!(started(&platform).unwrap().target.unwrap().cause, Cause::Operator);
}

#[test]
fn a_pod_that_is_only_late_is_waited_for() {
    let evicted = running(full_node()).with(|seen| seen.pods.clear());
    assert_eq!(started_tasks(&evicted), "none", "it comes back from the same template");
    let leaving = without_pod(full_node()).with(|seen| {
        let mut pod = fixture::pod("seid:1", "seictl:1", "rev-1");
        pod.deleted_at = Some(seen.now);
        seen.pods = vec![pod.into()];
    });
    assert_eq!(started_tasks(&leaving), "none", "the old one is still there");
    let stopped =
        without_pod(full_node()).with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(0));
    assert_eq!(started_tasks(&stopped), "none");
}

#[test]
fn while_a_change_waits_the_next_pod_is_made_like_the_last() {
    let held = without_pod(full_node()).platform("better").with(|seen| {
        seen.rollout.on_operator_change = sei_api::node::OnOperatorChange::Hold;
    });
    let plan = started(&held).expect("what ran before is put back");
    assert_eq!(plan.kind, Some(PlanKind::ApplyTemplate));
    assert_eq!(plan.target.unwrap().hash, held.status().pod_template_hash.clone().unwrap());
}

#[test]
fn whoever_asked_for_a_roll_may_take_it_back() {
    let labelled = |spec: &mut sei_api::SeiNodeSpec| {
        spec.pod_labels = Some([("tier".to_owned(), "a".to_owned())].into());
    };
    let asked = running(full_node()).edit(labelled);
    let bad = asked.desired.clone().unwrap();
    let reverted = without_pod(full_node()).with(|seen| {
        let template = serde_json::to_value(&bad.statefulset.spec.template).unwrap();
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
fn what_a_stopped_node_was_given_is_known_as_ours() {
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
    let given = stopped.with(|seen| {
        let hash = seen.desired.as_ref().unwrap().hash.clone();
        seen.statefulset.as_mut().unwrap().template_hash = Some(hash);
        seen.store(status);
    });
    let last = after(&given).last_update.expect("it is recorded");
    assert_eq!((last.cause, last.to), (Cause::Spec, Some(given.desired.unwrap().hash.clone())));
}

#[test]
fn a_signer_that_is_not_started_says_beside_whom() {
    let stopped = running(validator()).with(|seen| {
        seen.signing_conflict = Some("ns/a".into());
        seen.pods.clear();
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
    });
    assert!(stalled(&stopped).starts_with("True/SigningKeyConflict: ns/a"));
    assert!(plan(&stopped).requeue.unwrap() <= Duration::from_secs(30), "nobody tells of its end");
    let gone = stopped.clone().with(|seen| seen.statefulset = None);
    assert!(stalled(&gone).starts_with("True/SigningKeyConflict: ns/a"));
    let paused = stopped.edit(|spec| spec.paused = Some(true));
    assert!(stalled(&paused).starts_with("False"), "its owner has stopped it");
}

#[test]
fn a_signer_is_not_started_on_a_volume_that_nobody_could_look_at() {
    let stopped = running(validator()).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.pods.clear();
        seen.claim = Claim::Unknown;
        seen.status_mut().data_claim = Some(ClaimRef { name: "data-n".into(), uid: "old".into() });
    });
    assert_eq!(repair::desired_replicas(&stopped, Some(0)), 0);
    assert!(plan(&stopped).requeue.unwrap() <= Duration::from_secs(30), "it is looked at again");
    assert_eq!(repair::desired_replicas(&stopped, Some(1)), 1, "one that runs is left alone");
    let seen = stopped.with(|seen| {
        let (uid, phase) = ("old".to_owned(), "Bound".to_owned());
        seen.claim = Claim::Present(ClaimView { uid, phase, ..ClaimView::default() });
    });
    assert_eq!(repair::desired_replicas(&seen, Some(0)), 1);
}

#[test]
fn a_plan_is_given_up_for_a_volume_that_lives_only_as_long_as_the_pod() {
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
fn a_statefulset_that_is_not_its_own_is_told_of() {
    let foreign = running(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.statefulset.as_mut().unwrap().controller = None);
    assert_eq!(started_tasks(&foreign), "none");
    assert!(stalled(&foreign).starts_with("True/InvalidSpec: a StatefulSet of its name"));
}

#[test]
fn an_adopted_node_is_judged_also_while_its_gate_waits() {
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
fn pods_with_renamed_images_are_not_taken_for_drift() {
    let mirrored = running(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.status_mut().pod_template = None;
        seen.status_mut().pod_template_hash = None;
        seen.statefulset.as_mut().unwrap().template_hash = None;
    });
    assert_eq!(plan(&mirrored).compare.as_deref(), Some("pod-uid"), "the server judges it");
    assert_eq!(started_tasks(&mirrored), "none");
    let stale = mirrored
        .with(|seen| seen.statefulset.as_mut().unwrap().update_revision = Some("rev-2".into()));
    assert!(started(&stale).is_some(), "new pods would have another template");
}

#[test]
fn a_record_that_the_pods_images_deny_is_judged_by_the_server() {
    let moved = running(full_node()).with(|seen| {
        seen.pods[0].seid.image = "mirror/seid:1".into();
        seen.status_mut().current_image = Some("mirror/seid:1".into());
        seen.statefulset.as_mut().unwrap().update_revision = Some("rev-2".into());
    });
    assert_eq!(plan(&moved).compare.as_deref(), Some("pod-uid"));
    assert_eq!(started_tasks(&moved), "none");
    let judged = |comparison| {
        moved.clone().with(|seen| seen.adoption = Some(("pod-uid".into(), comparison)))
    };
    assert_eq!(started_tasks(&judged(Comparison::Equal)), "none", "admission renamed it");
    let told = after(&judged(Comparison::Equal));
    let again = judged(Comparison::Equal).with(|seen| {
        seen.store(told.clone());
        seen.now = fixture::at(60);
    });
    assert_eq!(after(&again), told, "and nothing more is written");
    assert!(started(&judged(Comparison::Different(Vec::new()))).is_some(), "it was forged");
}

#[test]
fn the_first_plan_waits_until_peers_have_told_who_they_are() {
    let asking = new_node(full_node()).with(|seen| seen.asks_peers = true);
    assert_eq!(started_tasks(&asking), "none");
    assert!(report(&asking).contains("waits until its peers have told"));
    assert!(started(&asking.with(|seen| seen.asks_peers = false)).is_some());
    let runs = running(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.asks_peers = true);
    assert!(started(&runs).is_some(), "one that runs knows them already");
}

#[test]
fn an_init_plan_gives_way_when_its_template_is_no_longer_applied() {
    let status = after(&new_node(full_node()));
    let lost = running(full_node()).with(|seen| {
        let applied = status.plan.clone().map(|mut plan| {
            for task in &mut plan.tasks[..3] {
                task.status = sei_api::plan::TaskStatus::Complete;
            }
            plan.applied = Some(sei_api::plan::Applied { uid: "another".into(), generation: 1 });
            plan
        });
        seen.plan_id = "33333333-3333-4333-8333-333333333333".into();
        seen.store(SeiNodeStatus { plan: applied, ..status.clone() });
        seen.statefulset.as_mut().unwrap().template_hash = Some("v1:other".into());
    });
    assert_ne!(after(&lost).plan.unwrap().id, status.plan.unwrap().id, "it begins anew");
}

#[test]
fn an_identity_edited_during_an_update_is_told_at_once() {
    let updating = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let status = after(&updating);
    let edited =
        updating.edit(|spec| spec.chain_id = "another".into()).with(|seen| seen.store(status));
    assert!(stalled(&edited).starts_with("True/InvalidSpec: spec.chainId"));
    assert!(after(&edited).plan.is_some(), "the plan goes on");
}

#[test]
fn keys_can_be_given_to_an_observer() {
    let taking = running(observer()).edit(|spec| spec.validator = validator().validator);
    assert!(started(&taking).is_some());
}

#[test]
fn a_second_first_plan_restores_what_the_first_did_not() {
    for snapshot in [fixture::s3(5), fixture::state_sync()] {
        let new = new_node(fixture::full_node_from(snapshot));
        let first = started(&new).unwrap();
        let status = after(&new);
        let edited = new.edit(|spec| spec.image = "seid:2".into()).with(|seen| {
            seen.store(status);
            seen.plan_id = "44444444-4444-4444-8444-444444444444".into();
        });
        let second = started(&edited).expect("the image is another");
        assert_eq!(tasks(&second), tasks(&first));
    }
}
