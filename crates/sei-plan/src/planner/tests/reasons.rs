//! Every reason of the conditions that the planner sets appears in a status. The conditions of keys
//! and imported claims are set by tasks; the tests of those tasks cover them.

use std::collections::BTreeSet;

use sei_api::condition::{REASONS, Reason};
use sei_api::node::{Ec2TagPeers, OnOperatorChange, PeerSource};
use sei_api::status::{AdoptedWorkflow, FieldChange};

use super::*;
use crate::adoption::Comparison;
use crate::planner::fixture::{full_node, new_node, replayer, running, validator};
use crate::request::ClaimView;
use crate::snapshot::{Claim, RegisteredWitnesses, Slot};
use crate::view::{Trouble, TroubleKind};

const BY_TASKS: [ConditionType; 4] = [
    ConditionType::ImportPvcReady,
    ConditionType::SigningKeyReady,
    ConditionType::NodeKeyReady,
    ConditionType::OperatorKeyringReady,
];

/// A condition as `Type=Status/Reason`.
type Row = (String, String, String);

fn rows_of(status: &SeiNodeStatus) -> impl Iterator<Item = Row> + '_ {
    status.conditions.iter().map(|condition| {
        (condition.type_.clone(), condition.status.clone(), condition.reason.clone())
    })
}

fn bumped() -> Snapshot {
    running(full_node()).edit(|spec| spec.image = "seid:2".into())
}

fn stored(snapshot: Snapshot) -> Snapshot {
    let status = after(&snapshot);
    snapshot.with(|seen| seen.store(status))
}

fn ended(phase: PlanPhase) -> Snapshot {
    stored(bumped()).with(|seen| seen.status_mut().plan.as_mut().unwrap().phase = phase)
}

fn phase(phase: SeiNodePhase) -> Snapshot {
    new_node(full_node()).with(|seen| seen.status_mut().phase = Some(phase))
}

fn updates() -> Vec<Snapshot> {
    let mut removed = stored(bumped()).edit(|spec| spec.image = "seid:1".into());
    removed.status_mut().plan = None;
    let before = ended(PlanPhase::Complete);
    let complete = running(before.node.spec.clone()).with(|seen| {
        seen.status_mut().plan = before.status.plan.clone();
        seen.status_mut().conditions = before.status.conditions.clone();
    });
    vec![
        bumped(),
        complete,
        ended(PlanPhase::Failed),
        removed,
        new_node(full_node()),
        running(full_node()),
        running(validator())
            .edit(|spec| {
                spec.pod_labels.get_or_insert_default().insert("team".into(), "core".into());
            })
            .with(|seen| seen.slot = Some(Slot::Taken { by: "ns/other rolls".into() })),
        running(full_node())
            .platform("b")
            .with(|seen| seen.rollout.on_operator_change = OnOperatorChange::Hold),
        bumped().edit(|spec| spec.update.get_or_insert_default().paused = Some(true)),
        running(full_node()).edit(|spec| spec.update.get_or_insert_default().paused = Some(true)),
        stored(bumped()).with(|seen| seen.pods[0].ready = false),
        running(full_node()).with(|seen| seen.pods[0].ready = false),
        phase(SeiNodePhase::Failed),
        phase(SeiNodePhase::Terminating),
        running(full_node()).with(|seen| {
            let status = seen.status_mut();
            (status.pod_template, status.pod_template_hash) = (None, None);
            seen.adoption = Some((
                "pod-uid".into(),
                Comparison::Different(vec![FieldChange {
                    path: "x".into(),
                    ..FieldChange::default()
                }]),
            ));
        }),
    ]
}

fn mirrors() -> Vec<Snapshot> {
    let sidecar = |sidecar| running(full_node()).with(|seen| seen.sidecar = sidecar);
    let witnesses = |witnesses| new_node(replayer()).with(|seen| seen.witnesses = witnesses);
    let workflow = AdoptedWorkflow {
        name: "resync".into(),
        uid: "w".into(),
        adopted_at: Time(Timestamp::UNIX_EPOCH),
    };
    let occupied = running(full_node())
        .with(|seen| seen.status_mut().adopted_workflow = Some(workflow.clone()));
    let peers = |source| running(full_node()).edit(|spec| spec.peers = Some(vec![source]));
    vec![
        running(full_node()).edit(|spec| spec.paused = Some(true)),
        witnesses(RegisteredWitnesses::Known(vec!["a:1".into(), "b:1".into()])),
        witnesses(RegisteredWitnesses::Known(Vec::new())),
        witnesses(RegisteredWitnesses::Unreadable("no file".into())),
        sidecar(Sidecar::NotReady),
        sidecar(Sidecar::Unreachable("refused".into())),
        occupied.clone(),
        stored(occupied).with(|seen| seen.status_mut().adopted_workflow = None),
        peers(PeerSource::default()),
        peers(PeerSource { ec2_tags: Some(Ec2TagPeers::default()), ..PeerSource::default() }),
    ]
}

fn stalls() -> Vec<Snapshot> {
    let trouble = |kind| {
        running(full_node()).with(|seen| {
            let message = "bad".to_owned();
            seen.pods[0].troubles = vec![Trouble { container: "seid".into(), kind, message }];
        })
    };
    let pod = |change: fn(&mut crate::view::PodView)| {
        running(full_node()).with(|seen| change(&mut seen.pods[0]))
    };
    let waits = |waiting| stored(bumped()).with(|seen| seen.waiting = Some(waiting));
    let mut all = vec![
        trouble(TroubleKind::ImagePull),
        trouble(TroubleKind::Crash),
        pod(|pod| pod.unschedulable = Some("0/3 nodes".into())),
        pod(|pod| pod.deleted_at = Some(Timestamp::UNIX_EPOCH)),
        pod(|pod| pod.host_lost = true),
        pod(|pod| pod.volumes_missing = Some("attached elsewhere".into())),
        running(full_node()).with(|seen| seen.pods.clear()),
        running(full_node()).with(|seen| seen.dropped_field = Some("status.plan.target".into())),
        running(full_node()).with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(2)),
        running(full_node()).with(|seen| seen.desired = Err("spec.image: bad".into())),
        running(validator()).with(|seen| {
            seen.signing_conflict = Some("ns/a".into());
            seen.statefulset.as_mut().unwrap().replicas = Some(0);
        }),
        running(full_node()).with(|seen| {
            let claim = ClaimView { terminating: true, ..ClaimView::default() };
            seen.claim = Claim::Present(claim);
        }),
    ];
    all.extend(crate::tasks::tests::reasons::waits().into_iter().map(waits));
    // A cause is reported once it has lasted for its deadline.
    let late = |snapshot: &Snapshot| {
        let waiting = snapshot.waiting.clone();
        stored(snapshot.clone()).with(|seen| {
            seen.waiting = waiting;
            seen.now = later(seen.now, Duration::from_secs(3600));
        })
    };
    let late: Vec<_> = all.iter().map(late).collect();
    all.extend(late);
    all
}

#[test]
fn every_reason_of_the_planner_appears_in_a_status() {
    let hands_off = [running(full_node()), new_node(full_node())].map(|mut seen| {
        let annotations = seen.node.metadata.annotations.get_or_insert_default();
        annotations.insert("sei.io/hands-off".to_owned(), "true".to_owned());
        seen
    });
    let snapshots =
        [updates(), mirrors(), stalls(), super::halt::halts(), hands_off.to_vec()].concat();
    let mut seen = BTreeSet::new();
    for snapshot in &snapshots {
        seen.extend(rows_of(&after(snapshot)));
    }
    let table: BTreeSet<Row> = REASONS
        .iter()
        .filter(|row| !BY_TASKS.contains(&row.condition))
        .map(|row| {
            let texts = [row.condition.as_str(), row.status.as_str(), row.reason.as_str()];
            texts.map(str::to_owned).into()
        })
        .collect();
    let missing: Vec<_> = table.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Every condition of a node is made here, so each test that reports one checks this.
#[test]
#[should_panic(expected = "Stalled=True/Ready is not in the table of reasons")]
fn no_reason_outside_of_the_table_is_reported() {
    let _ = Verdict::new(ConditionType::Stalled, ConditionStatus::True, Reason::Ready, "");
}

#[test]
fn a_node_that_a_workflow_occupies_gets_no_plan() {
    let workflow = AdoptedWorkflow {
        name: "resync".into(),
        uid: "w".into(),
        adopted_at: Time(Timestamp::UNIX_EPOCH),
    };
    let occupied = |snapshot: Snapshot| {
        snapshot.with(|seen| seen.status_mut().adopted_workflow = Some(workflow.clone()))
    };
    let closed = running(full_node()).with(|seen| seen.sidecar = Sidecar::NotReady);
    assert_eq!(started_tasks(&closed), "mark-ready");
    assert_eq!(started_tasks(&occupied(closed)), "none");
    assert_eq!(started_tasks(&occupied(bumped())), "none");
    let status = after(&occupied(bumped()));
    assert_eq!(
        condition_text(&status, ConditionType::WorkflowInProgress),
        "True/WorkflowRunning: workflow resync of the Go operator"
    );
}

#[test]
fn conditions_follow_the_world() {
    let mut removed = stored(bumped()).edit(|spec| spec.image = "seid:1".into());
    removed.status_mut().plan = None;
    let status = after(&removed);
    assert_eq!(
        condition_text(&status, ConditionType::NodeUpdateInProgress),
        "False/UpdateSuperseded: the plan was removed"
    );
    let stopped = stored(running(full_node())).edit(|spec| spec.paused = Some(true)).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.pods.clear();
        seen.sidecar = Sidecar::Unknown;
    });
    assert_eq!(
        condition_text(&after(&stopped), ConditionType::SidecarReady),
        "Unknown/Unreachable: the node is stopped"
    );
}
