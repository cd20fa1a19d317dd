//! What `Ready` and `Reconciling` are in each state of a node.

use sei_api::condition::Reason;
use sei_api::status::{Blocked, SeiNodePhase};

use super::*;
use crate::planner::fixture::{full_node, new_node, replayer, running};
use crate::snapshot::{Claim, RegisteredWitnesses, Slot};
use crate::view::{PodView, Trouble, TroubleKind};

fn ready(snapshot: &Snapshot) -> String {
    condition_text(&after(snapshot), ConditionType::Ready)
}

fn reconciling(snapshot: &Snapshot) -> String {
    condition_text(&after(snapshot), ConditionType::Reconciling)
}

fn bumped() -> Snapshot {
    let snapshot = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let status = after(&snapshot);
    snapshot.with(|seen| seen.store(status))
}

fn pod(snapshot: Snapshot, change: impl FnOnce(&mut PodView)) -> Snapshot {
    snapshot.with(|seen| {
        seen.pods[0].ready = false;
        change(&mut seen.pods[0]);
    })
}

#[test]
fn a_running_node_with_a_ready_pod_is_ready() {
    let node = running(full_node());
    assert_eq!(ready(&node), "True/Ready: ");
    assert_eq!(reconciling(&node), "False/Settled: ");
}

#[test]
fn a_node_that_has_not_run_yet_is_not_ready() {
    let blocked =
        new_node(replayer()).with(|seen| seen.witnesses = RegisteredWitnesses::Known(Vec::new()));
    let why = "False/Pending: 0 state-sync witnesses known for chain demo-1, 2 needed: set \
               snapshot.rpcServers, or stateSync.syncers.demo-1 of the platform configuration";
    assert_eq!(ready(&blocked), why);
    let starts = new_node(full_node());
    assert_eq!(ready(&starts), "False/Initializing: the first start is not complete");
    assert_eq!(reconciling(&starts), "True/Progressing: ");
    let failed = starts.with(|seen| seen.status_mut().phase = Some(SeiNodePhase::Failed));
    assert!(ready(&failed).starts_with("False/Failed"), "{}", ready(&failed));
}

#[test]
fn a_pod_that_is_not_ready_makes_the_node_not_ready() {
    let node = || running(full_node());
    assert_eq!(ready(&pod(node(), |_| {})), "False/PodNotReady: pod n-0 is not Ready");
    let crash = Trouble {
        container: "seid".into(),
        kind: TroubleKind::Crash,
        message: "seid: CrashLoopBackOff".into(),
    };
    let crashing = pod(node(), |pod| pod.troubles.push(crash));
    assert_eq!(ready(&crashing), "False/PodNotReady: pod n-0: seid: CrashLoopBackOff");
    let missing = node().with(|seen| seen.pods.clear());
    assert_eq!(ready(&missing), "False/PodNotReady: StatefulSet n has made no pod yet");
    // A pod that is being deleted may still have the condition Ready.
    let deleted = node().with(|seen| seen.pods[0].deleted_at = Some(seen.now));
    let why = "False/PodNotReady: pod n-0: is terminating on no Kubernetes node";
    assert_eq!(ready(&deleted), why);
}

#[test]
fn a_pod_of_another_owner_makes_no_node_ready() {
    let forged = running(full_node()).with(|seen| seen.pods[0].controller = None);
    assert!(ready(&forged).starts_with("False/PodNotReady"), "{}", ready(&forged));
}

#[test]
fn a_node_is_ready_during_an_update_until_its_pod_is_replaced() {
    assert_eq!(ready(&bumped()), "True/Ready: ");
    assert_eq!(reconciling(&bumped()), "True/Progressing: ");
    let replaced = pod(bumped(), |_| {});
    assert_eq!(ready(&replaced), "False/Updating: the pod is being replaced");
    let crash = Trouble {
        container: "seid".into(),
        kind: TroubleKind::Crash,
        message: "seid: CrashLoopBackOff".into(),
    };
    let crashing = pod(bumped(), |pod| pod.troubles.push(crash));
    assert_eq!(ready(&crashing), "False/Updating: pod n-0: seid: CrashLoopBackOff");
}

#[test]
fn an_update_that_waits_is_in_progress_unless_it_waits_for_a_person() {
    let edited = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let taken = Slot::Taken { by: "ns/other rolls".into() };
    let queued = edited.clone().with(|seen| seen.slot = Some(taken));
    assert_eq!(reconciling(&queued), "True/Progressing: ");
    assert_eq!(ready(&queued), "True/Ready: ");
    let paused = edited.edit(|spec| spec.update.get_or_insert_default().paused = Some(true));
    assert_eq!(reconciling(&paused), "False/Settled: ");
    assert_eq!(ready(&paused), "True/Ready: ");
}

#[test]
fn a_stopped_node_is_not_ready() {
    let stopped = running(full_node()).edit(|spec| spec.paused = Some(true));
    assert_eq!(ready(&stopped), "False/Stopped: spec.paused is true");
}

#[test]
fn a_stalled_node_is_not_ready_for_the_same_reason_and_not_in_progress() {
    let refused = running(full_node()).with(|seen| seen.desired = Err("bad".into()));
    let lost = running(full_node()).with(|seen| {
        let uid = "claim".to_owned();
        seen.status_mut().data_claim =
            Some(sei_api::status::ClaimRef { name: "data-n".into(), uid });
        seen.claim = Claim::Missing;
    });
    for (node, reason) in [(refused, Reason::InvalidSpec), (lost, Reason::DataVolumeLost)] {
        assert!(ready(&node).starts_with(&format!("False/{reason}: ")), "{}", ready(&node));
        assert_eq!(reconciling(&node), "False/Settled: ");
    }
    let refused_and_down = running(full_node()).with(|seen| {
        seen.desired = Err("bad".into());
        seen.pods[0].ready = false;
    });
    let both = "False/PodNotReady: pod n-0 is not Ready; InvalidSpec: bad";
    assert_eq!(ready(&refused_and_down), both);
    let during_a_plan = bumped().with(|seen| seen.desired = Err("bad".into()));
    assert_eq!(ready(&during_a_plan), "False/InvalidSpec: bad");
}

#[test]
fn a_block_that_has_lasted_is_the_reason() {
    let since = |node: &Snapshot| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(node.now);
    let crash = Trouble {
        container: "seid".into(),
        kind: TroubleKind::Crash,
        message: "seid: CrashLoopBackOff".into(),
    };
    let node = pod(running(full_node()), |pod| pod.troubles.push(crash)).with(|seen| {
        let blocked =
            Blocked { reason: "CrashLooping".into(), since: since(seen), message: String::new() };
        seen.status_mut().blocked = Some(blocked);
        seen.now = later(seen.now, Duration::from_secs(300));
    });
    assert_eq!(ready(&node), "False/CrashLooping: pod n-0: seid: CrashLoopBackOff");
}

#[test]
fn ready_is_of_the_generation_that_was_read() {
    let status = after(&running(full_node()).edit(|_| {}));
    let found = condition::find(&status.conditions, ConditionType::Ready).unwrap();
    assert_eq!(found.observed_generation, Some(2));
    assert_eq!(status.observed_generation, Some(2));
}

#[test]
fn a_pause_of_updates_is_visible_before_it_holds_one() {
    let paused =
        running(full_node()).edit(|spec| spec.update.get_or_insert_default().paused = Some(true));
    assert_eq!(
        condition_text(&after(&paused), ConditionType::PodTemplateDrift),
        "False/Paused: in sync; spec.update.paused holds the next update"
    );
    assert_eq!(ready(&paused), "True/Ready: ");
}
