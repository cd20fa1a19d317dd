use std::time::Duration;

use sei_api::condition::{ConditionStatus, set};
use sei_api::plan::PlanKind;

use super::*;
use crate::pre_pull::machine::NodePull;
use crate::request::{Failure, Outcome};
use crate::shared::Shared;
use crate::tasks::fixture::{
    NEW, NODE_UID, OLD, PLAN, UPDATE, desired, node, now, plan, pod, statefulset, template,
};

/// An update of a node whose pod has the old images; its template is not applied yet.
fn before(ready: bool) -> Seen {
    let mut seen = Seen::new(node(serde_json::json!({})), desired(), now());
    seen.pre_pulls = true;
    seen.statefulset = Reading::Cached(Some(Shared::new(old_statefulset())));
    let running = PodView { ready, ready_since: Some(past(3600)), ..pod(OLD) };
    seen.pods = Reading::Cached(Some(vec![running.into()]));
    seen
}

fn old_statefulset() -> StatefulSetView {
    StatefulSetView {
        update_revision: Some(OLD.to_owned()),
        template: template("seid:old").into(),
        ..statefulset()
    }
}

fn past(seconds: u64) -> Timestamp {
    now().checked_sub(Duration::from_secs(seconds)).unwrap()
}

fn pulling(pull: Pull, age: u64) -> PrePullView {
    PrePullView {
        uid: "pull".to_owned(),
        controller: Some(NODE_UID.to_owned()),
        purpose: Some(purpose(PLAN, "host-a")),
        created_at: Some(past(age)),
        deleted_at: None,
        pull,
    }
}

fn stepped(seen: &Seen) -> Option<Next> {
    step(&plan(&UPDATE), &old_statefulset(), seen)
}

/// What the step does with a pod in this state: `wait REASON SECONDS`, `continue`, or a request.
fn with(ready: bool, pull: Pull, age: u64) -> String {
    let mut seen = before(ready);
    seen.pre_pull = Reading::Cached(Some(pulling(pull, age)));
    shown(stepped(&seen))
}

fn shown(next: Option<Next>) -> String {
    match next {
        None => "continue".to_owned(),
        Some(Next::Wait(waiting)) => {
            let reason = waiting.reason.map_or("-", Reason::as_str);
            let again = waiting.again.map_or("-".to_owned(), |again| again.as_secs().to_string());
            format!("wait {reason} {again}")
        }
        Some(Next::Request(request)) => match *request {
            Request::CreatePrePull(_) => "create".to_owned(),
            Request::DeletePrePull { uid } => format!("delete {uid}"),
            Request::Read(read) => format!("read {read:?}"),
            unexpected => format!("{unexpected:?}"),
        },
        Some(unexpected) => format!("{unexpected:?}"),
    }
}

/// An update whose image cannot be pulled.
pub(in crate::tasks) fn not_pullable() -> Next {
    let mut seen = before(true);
    seen.pre_pull = Reading::Cached(Some(pulling(failed(), 30)));
    stepped(&seen).unwrap()
}

fn failed() -> Pull {
    Pull::Failed("seid: ErrImagePull not found".to_owned())
}

#[test]
fn only_an_update_with_another_image_needs_a_pull() {
    let seen = before(true);
    assert_eq!(shown(stepped(&seen)), "create");
    let mut init = plan(&UPDATE);
    init.kind = Some(PlanKind::Init);
    assert_eq!(step(&init, &old_statefulset(), &seen), None);
    let mut off = before(true);
    off.pre_pulls = false;
    assert_eq!(stepped(&off), None);
    let mut stopped = before(true);
    stopped.pods = Reading::Cached(Some(Vec::new()));
    assert_eq!(stepped(&stopped), None, "no pod runs");
    let mut same = before(true);
    let running = PodView { host: Some("host-a".to_owned()), ..pod(NEW) };
    same.pods = Reading::Cached(Some(vec![running.into()]));
    assert_eq!(stepped(&same), None, "the pod has the images");
    // Admission has rewritten the image of the pod; its template is the applied one.
    let mut rewritten = before(true);
    let running = PodView { revision: Some(OLD.to_owned()), ..pod(NEW) };
    rewritten.pods = Reading::Cached(Some(vec![running.into()]));
    let mut applied = old_statefulset();
    applied.template = template("seid:new").into();
    assert_eq!(step(&plan(&UPDATE), &applied, &rewritten), None);
}

#[test]
fn nodes_on_one_machine_share_a_pull() {
    let images = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let shared = |names: &[&str], is_complete: bool| NodePull {
        node: "another".to_owned(),
        purpose: purpose("another", "host-a"),
        images: images(names),
        credentials: Credentials::default(),
        is_complete,
        since: now(),
    };
    let with = |pulls: Vec<NodePull>| shown(stepped(&Seen { pulls, ..before(true) }));
    let all = ["seid:new", "another:1"];
    assert_eq!(with(vec![shared(&all, true)]), "continue");
    assert_eq!(with(vec![shared(&all, false)]), "wait - 0");
    assert_eq!(with(vec![shared(&all, false), shared(&all, true)]), "continue");
    assert_eq!(with(vec![shared(&all[1..], true)]), "create", "its image is missing");
    assert_eq!(with(vec![shared(&all[1..], false)]), "create", "no node pulls its image");
    let own = NodePull { node: NODE_UID.to_owned(), ..shared(&all, false) };
    assert_eq!(with(vec![own]), "create", "it was begun and no longer exists");
    let spec = serde_json::from_value(serde_json::json!({
        "serviceAccountName": "another", "containers": [] }));
    let credentials = Credentials::of(&spec.unwrap());
    assert_eq!(with(vec![NodePull { credentials, ..shared(&all, true) }]), "create");
    let mut seen = before(true);
    seen.pulls = vec![shared(&all, false)];
    seen.pre_pull = Reading::Cached(Some(pulling(failed(), 1)));
    assert_eq!(shown(stepped(&seen)), "wait ImageNotPullable -", "its own pull comes first");
}

#[test]
fn a_ready_node_is_held_by_an_error_and_waits_ten_minutes_for_a_pull() {
    assert_eq!(with(true, Pull::Pulled, 1), "continue");
    assert_eq!(with(true, failed(), 1), "wait ImageNotPullable -");
    assert_eq!(with(true, failed(), 86_400), "wait ImageNotPullable -");
    assert_eq!(with(true, Pull::Unclaimed, 2), "wait - 3");
    assert_eq!(with(true, Pull::Unclaimed, 5), "continue");
    assert_eq!(with(true, Pull::Pending, 100), "wait - 500");
    assert_eq!(with(true, Pull::Pending, 600), "continue");
    assert_eq!(with(true, Pull::Unschedulable("full".to_owned()), 10), "wait - 50");
    assert_eq!(with(true, Pull::Unschedulable("full".to_owned()), 60), "continue");
    assert_eq!(with(true, Pull::Refused("OutOfpods".to_owned()), 1), "continue");
}

#[test]
fn a_node_that_is_down_waits_a_minute() {
    assert_eq!(with(false, Pull::Pulled, 1), "continue");
    assert_eq!(with(false, Pull::Pending, 59), "wait - 1");
    assert_eq!(with(false, Pull::Pending, 60), "continue");
    assert_eq!(with(false, failed(), 59), "wait ImageNotPullable 1");
    assert_eq!(with(false, failed(), 60), "continue");
}

#[test]
fn a_held_node_that_restarts_is_not_down() {
    let mut seen = before(false);
    seen.pre_pull = Reading::Cached(Some(pulling(failed(), 86_400)));
    let restarted =
        |ago| PodView { ready_since: Some(past(ago)), host: Some("host-a".into()), ..pod(OLD) };
    seen.pods = Reading::Cached(Some(vec![restarted(100).into()]));
    assert_eq!(shown(stepped(&seen)), "wait ImageNotPullable 200");
    seen.pods = Reading::Cached(Some(vec![restarted(300).into()]));
    assert_eq!(shown(stepped(&seen)), "continue");
}

#[test]
fn an_eviction_does_not_end_the_hold() {
    let evicted: [Vec<PodView>; 3] = [
        Vec::new(),
        vec![crate::tasks::fixture::terminating(pod(OLD))],
        vec![PodView { host: None, ..pod(OLD) }],
    ];
    for pods in evicted {
        let mut seen = before(false);
        seen.pods = Reading::Cached(Some(pods.into_iter().map(Shared::new).collect()));
        seen.pre_pull = Reading::Cached(Some(pulling(failed(), 86_400)));
        assert_eq!(shown(stepped(&seen)), "wait ImageNotPullable -");
        seen.pre_pull = Reading::Cached(Some(pulling(Pull::Pending, 20)));
        assert_eq!(shown(stepped(&seen)), "wait - 40");
        let found =
            PrePullView { purpose: Some("plan-0/host-a".to_owned()), ..pulling(failed(), 1) };
        seen.pre_pull = Reading::Cached(Some(found));
        assert_eq!(stepped(&seen), None, "of an earlier plan");
        seen.pre_pull = Reading::Cached(None);
        assert_eq!(stepped(&seen), None, "no pod runs, and nothing is known");
    }
}

#[test]
fn a_pull_that_starts_in_the_future_by_another_clock_is_not_awaited_for_ever() {
    let mut seen = before(false);
    let created_at = Some(later(now(), Duration::from_secs(86_400)));
    let found = PrePullView { created_at, ..pulling(Pull::Pending, 0) };
    seen.pre_pull = Reading::Cached(Some(found));
    assert_eq!(stepped(&seen), None);
    // The pod is younger than the pass.
    let mut seen = before(true);
    let created_at = Some(later(now(), Duration::from_secs(1)));
    let found = PrePullView { created_at, ..pulling(Pull::Pending, 0) };
    seen.pre_pull = Reading::Cached(Some(found));
    assert_eq!(shown(stepped(&seen)), "wait - 601");
}

#[test]
fn a_pod_of_another_plan_or_machine_is_replaced() {
    for earlier in ["plan-0/host-a", "plan-1/host-b"] {
        let mut seen = before(true);
        let found = PrePullView { purpose: Some(earlier.to_owned()), ..pulling(failed(), 9999) };
        seen.pre_pull = Reading::Cached(Some(found.clone()));
        let Some(Next::Request(delete)) = stepped(&seen) else { panic!("{:?}", stepped(&seen)) };
        assert_eq!(*delete, Request::DeletePrePull { uid: "pull".to_owned() });
        seen.absorb(&delete, Outcome::Accepted);
        assert_eq!(shown(stepped(&seen)), "create");
        // A finalizer of another controller keeps it.
        let kept = PrePullView { deleted_at: Some(past(50)), ..found };
        seen.pre_pull = Reading::Live(Some(kept.clone()));
        assert_eq!(shown(stepped(&seen)), "wait - 10");
        seen.pre_pull = Reading::Live(Some(PrePullView { deleted_at: Some(past(60)), ..kept }));
        assert_eq!(stepped(&seen), None);
    }
}

#[test]
fn a_pod_that_cannot_be_created_does_not_block_the_update() {
    let mut seen = before(true);
    let Some(Next::Request(create)) = stepped(&seen) else { panic!("a create") };
    seen.absorb(&create, Outcome::Failed(Failure::AlreadyExists));
    assert_eq!(shown(stepped(&seen)), "read PrePull");
    let read = Request::Read(Read::PrePull);
    let foreign = PrePullView { controller: Some("else".to_owned()), ..pulling(failed(), 1) };
    seen.absorb(&read, Outcome::PrePull(Some(foreign)));
    assert_eq!(stepped(&seen), None, "and it is never deleted");

    let mut seen = before(true);
    seen.absorb(&create, Outcome::Failed(Failure::Rejected("exceeded quota".to_owned())));
    assert_eq!((stepped(&seen), seen.failure.as_ref()), (None, None));

    let mut seen = before(true);
    seen.absorb(&create, Outcome::Failed(Failure::Indeterminate("timeout".to_owned())));
    assert!(seen.failure.is_some(), "it is tried again");
}

#[test]
fn an_update_without_a_proof_reports_it() {
    let text = |change: fn(&mut Seen)| {
        let mut seen = before(true);
        let started = Verdict::new(
            ConditionType::NodeUpdateInProgress,
            ConditionStatus::True,
            Reason::UpdateStarted,
            "image",
        );
        let mut status = sei_api::SeiNodeStatus::default();
        set(&mut status.conditions, &started, 3, now());
        seen.node.status = Some(status);
        change(&mut seen);
        skipped(&plan(&UPDATE), &seen).map(|verdict| verdict.message)
    };
    assert_eq!(text(|_| {}), None, "no image has changed");
    assert_eq!(text(|seen| seen.pre_pull = Reading::Cached(Some(pulling(Pull::Pulled, 1)))), None);
    let refused = |seen: &mut Seen| seen.pre_pull_refused = Some("exceeded quota".to_owned());
    assert_eq!(text(refused).as_deref(), Some("image; without a pre-pull: exceeded quota"));
    let late = |seen: &mut Seen| seen.pre_pull = Reading::Cached(Some(pulling(Pull::Pending, 600)));
    let expected = "image; without a pre-pull: the pull did not end in time";
    assert_eq!(text(late).as_deref(), Some(expected));
}

#[test]
fn a_pod_that_no_plan_needs_is_deleted() {
    use crate::planner::fixture::{full_node, running};
    let mut snapshot = running(full_node());
    assert_eq!(unneeded(&snapshot), None);
    snapshot.pods[0].host = Some("host-a".to_owned());
    snapshot.pre_pull = Some(pulling(Pull::Pulled, 1));
    let delete = Some(Request::DeletePrePull { uid: "pull".to_owned() });
    assert_eq!(unneeded(&snapshot), delete, "no plan");
    let mut applies = plan(&UPDATE);
    for task in &mut applies.tasks[..2] {
        task.status = sei_api::plan::TaskStatus::Complete;
    }
    snapshot.status.plan = Some(applies.clone());
    assert_eq!(unneeded(&snapshot), None, "its plan is about to apply the template");
    let evicted = snapshot.pods.pop().unwrap();
    assert_eq!(unneeded(&snapshot), None, "the evicted pod may return to this machine");
    snapshot.pods.push(evicted);
    applies.tasks[2].status = sei_api::plan::TaskStatus::Complete;
    snapshot.status.plan = Some(applies.clone());
    assert_eq!(unneeded(&snapshot), None, "the old pod is about to be deleted");
    let old = snapshot.pods.pop().unwrap();
    assert_eq!(unneeded(&snapshot), delete, "the old pod was deleted");
    snapshot.pods.push(old);
    applies.tasks[2].status = sei_api::plan::TaskStatus::Pending;
    applies.id = Some("another".to_owned());
    snapshot.status.plan = Some(applies);
    assert_eq!(unneeded(&snapshot), delete, "its plan was superseded");
    snapshot.pre_pull.as_mut().unwrap().deleted_at = Some(now());
    assert_eq!(unneeded(&snapshot), None);
}
