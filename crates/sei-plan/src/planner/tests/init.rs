//! New nodes, failed nodes, and the state-sync check before their first plan.

use sei_api::names::annotation;
use sei_api::node::{GenesisCeremony, PeerSource, SnapshotSource, StaticPeers};
use sei_api::plan::{FailedTaskDetail, TaskStatus};
use sei_api::status::FieldChange;
use sei_api::task::TaskType;
use serde_json::json;

use super::*;
use crate::adoption::Comparison;
use crate::planner::fixture::{
    archive, full_node, full_node_from, governor, new_node, observer, pod, replayer, running, s3,
    seed, state_sync, statefulset, validator,
};
use crate::snapshot::RegisteredWitnesses;

fn init(spec: sei_api::SeiNodeSpec) -> String {
    started_tasks(&new_node(spec))
}

fn with_peers(mut spec: sei_api::SeiNodeSpec) -> sei_api::SeiNodeSpec {
    let addresses = vec!["id@host:26656".to_owned()];
    spec.peers = Some(vec![PeerSource {
        r#static: Some(StaticPeers { addresses }),
        ..PeerSource::default()
    }]);
    spec
}

fn bootstrap() -> sei_api::SeiNodeSpec {
    let mut source = s3(900);
    source.bootstrap_image = Some("seid:0".into());
    full_node_from(source)
}

fn ceremony() -> sei_api::SeiNodeSpec {
    let mut spec = observer();
    spec.validator.as_mut().unwrap().genesis_ceremony = Some(GenesisCeremony {
        chain_id: "demo-1".into(),
        staking_amount: "5usei".into(),
        account_balance: "9usei".into(),
        index: 0,
    });
    spec
}

const HEAD: &str =
    "ensure-data-pvc apply-rbac-proxy-config apply-statefulset apply-service replace-pod";
const PLAIN: &str = "configure-genesis config-apply config-validate observe-image mark-ready";
const SYNCED: &str = "configure-genesis config-apply configure-state-sync config-validate \
                      observe-image mark-ready";

// I1, I2, I3, I4, I5, I6, I7, I8, I17
#[test]
fn each_mode_has_its_own_list_of_tasks() {
    let plain = format!("{HEAD} {PLAIN}");
    let synced = format!("{HEAD} {SYNCED}");
    let restored = format!("{HEAD} snapshot-restore {SYNCED}");
    for (spec, expected) in [
        (full_node(), &plain),
        (full_node_from(s3(5)), &restored),
        (full_node_from(state_sync()), &synced),
        (observer(), &plain),
        (replayer(), &restored),
        (archive(), &plain),
    ] {
        assert_eq!(init(spec.clone()), *expected);
        assert_eq!(init(with_peers(spec)), *expected, "peers never add a task");
    }
}

// I19, I24, I38
#[test]
fn a_seed_checks_its_node_key_and_nothing_else() {
    let expected = "ensure-data-pvc validate-node-key apply-rbac-proxy-config apply-statefulset \
                    apply-service replace-pod configure-genesis config-apply config-validate \
                    observe-image mark-ready";
    assert_eq!(init(seed()), expected);
    for (spec, needed) in [
        (bootstrap(), true),
        (full_node_from(s3(5)), false),
        (replayer(), false),
        (ceremony(), false),
        (seed(), false),
    ] {
        assert_eq!(spec.needs_bootstrap(), needed);
    }
}

// I9, I10, I11, I39
#[test]
fn the_tasks_of_an_init_plan_are_pending_with_their_retry_budgets() {
    let plan = started(&new_node(full_node_from(s3(1_200_000)))).unwrap();
    assert_eq!(plan.phase, PlanPhase::Active);
    assert_eq!(plan.failed_phase, Some(SeiNodePhase::Failed));
    assert_eq!(tasks(&plan)[0], "ensure-data-pvc");
    let task = |name: &str| plan.tasks.iter().find(|task| task.r#type == name).unwrap();
    assert_eq!(task("snapshot-restore").params, Some(json!({ "TargetHeight": 1_200_000 })));
    assert_eq!(task("configure-genesis").max_retries, Some(180));
    assert_eq!(task("replace-pod").max_retries, None);
    let second = started(&new_node(full_node_from(s3(1))).with(|seen| seen.plan_id = "b".into()));
    let second = second.unwrap();
    assert!(
        plan.tasks
            .iter()
            .all(|task| second.tasks.iter().all(|task_of_second| task_of_second.id != task.id))
    );
}

// I27, I28, I29, I30, I31, I32
#[test]
fn keys_are_checked_before_anything_that_uses_them() {
    let before = |list: &str, first: &str, second: &str| {
        let at = |name: &str| list.split(' ').position(|task| task == name).unwrap();
        assert!(at(first) < at(second), "{first} before {second} in {list}");
    };
    let base = init(governor());
    before(&base, "ensure-data-pvc", "validate-signing-key");
    before(&base, "validate-signing-key", "validate-node-key");
    before(&base, "validate-node-key", "validate-operator-keyring");
    before(&base, "validate-operator-keyring", "apply-statefulset");
    before(&base, "apply-rbac-proxy-config", "apply-statefulset");
    let mut spec = governor();
    spec.validator.as_mut().unwrap().snapshot = bootstrap().full_node.unwrap().snapshot;
    let list = init(spec);
    before(&list, "validate-operator-keyring", "deploy-bootstrap-job");
    before(&init(ceremony()), "apply-rbac-proxy-config", "apply-statefulset");
    assert!(!init(validator()).contains("keyring"));
    assert!(!init(observer()).contains("validate-"));
    let plan = started(&new_node(governor())).unwrap();
    let keyring = plan.tasks.iter().find(|task| task.r#type == "validate-operator-keyring");
    assert_eq!(
        keyring.unwrap().params,
        Some(json!({
            "secretName": "keyring",
            "keyName": "treasury",
            "passphraseSecretName": "pass",
            "passphraseSecretKey": "passphrase",
            "namespace": "ns",
        }))
    );
}

// B21
#[test]
fn a_bootstrap_is_torn_down_before_the_node_is_applied() {
    assert_eq!(
        init(bootstrap()),
        "ensure-data-pvc apply-rbac-proxy-config deploy-bootstrap-service deploy-bootstrap-job \
         snapshot-restore configure-genesis config-apply configure-state-sync config-validate \
         mark-ready await-bootstrap-complete teardown-bootstrap apply-statefulset apply-service \
         replace-pod configure-genesis config-apply config-validate observe-image mark-ready"
    );
}

#[test]
fn a_ceremony_generates_its_identity_first() {
    assert_eq!(
        init(ceremony()),
        format!(
            "{HEAD} generate-identity generate-gentx upload-genesis-artifacts configure-genesis \
             config-apply set-genesis-peers config-validate observe-image mark-ready"
        )
    );
}

// I40
#[test]
fn a_spec_that_cannot_be_rendered_gets_a_condition_instead_of_a_plan() {
    let snapshot = new_node(full_node())
        .with(|seen| seen.desired = Err("spec: exactly one of the modes must be set".into()));
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.phase, Some(SeiNodePhase::Pending));
    assert_eq!(
        condition_text(&status, ConditionType::Stalled),
        "True/InvalidSpec: spec: exactly one of the modes must be set"
    );
    for spec in [full_node(), archive(), validator(), replayer(), seed()] {
        assert_ne!(init(spec), "none");
    }
}

// I41
#[test]
fn an_active_init_plan_is_kept() {
    let plan = started(&new_node(full_node())).unwrap();
    let snapshot = new_node(full_node()).with(|seen| {
        seen.status_mut().phase = Some(SeiNodePhase::Initializing);
        seen.status_mut().plan = Some(plan.clone());
        seen.plan_id = "another".into();
    });
    assert_eq!(after(&snapshot).plan, Some(plan));
}

#[test]
fn a_new_node_is_seeded_and_initializing() {
    let status = after(&new_node(full_node()));
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert_eq!(condition_text(&status, ConditionType::PodTemplateDrift), "Unknown/NotObserved: ");
    assert_eq!(condition_text(&status, ConditionType::Stalled), "False/Progressing: ");
    assert_eq!(condition_text(&status, ConditionType::NodeUpdateInProgress), "absent");
    assert_eq!(status.observed_generation, Some(1));
}

fn blocked() -> Snapshot {
    new_node(full_node_from(state_sync()))
        .with(|seen| seen.witnesses = RegisteredWitnesses::Known(Vec::new()))
}

// SS10, SS11, SS12, SS15
#[test]
fn without_witnesses_no_first_plan_is_built() {
    let snapshot =
        blocked().with(|seen| seen.status_mut().resolved_state_syncers = Some(vec!["old".into()]));
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.phase, Some(SeiNodePhase::Pending));
    assert_eq!(status.resolved_state_syncers, None);
    assert!(
        condition_text(&status, ConditionType::StateSyncReady)
            .starts_with("False/NoSyncersConfigured")
    );
    assert_eq!(plan(&snapshot).requeue, Some(Duration::from_secs(30)));
    let unreadable = blocked()
        .with(|seen| seen.witnesses = RegisteredWitnesses::Unreadable("line 3: tab".into()));
    assert_eq!(started_tasks(&unreadable), "none");
    let opened = snapshot.with(|seen| {
        seen.store(status);
        seen.witnesses = RegisteredWitnesses::Known(vec!["a:1".into(), "b:1".into()]);
    });
    assert!(started_tasks(&opened).contains("configure-state-sync"));
}

// SS13
#[test]
fn a_stopped_new_node_still_reports_missing_witnesses() {
    let snapshot = blocked().edit(|spec| spec.paused = Some(true));
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert!(
        condition_text(&status, ConditionType::StateSyncReady)
            .starts_with("False/NoSyncersConfigured")
    );
    assert!(condition_text(&status, ConditionType::Paused).starts_with("True/Paused"));
    let ready = new_node(full_node_from(state_sync())).edit(|spec| spec.paused = Some(true));
    assert_eq!(started_tasks(&ready), "none");
    assert!(
        condition_text(&after(&ready), ConditionType::StateSyncReady).starts_with("True/Ready")
    );
}

// SS14
#[test]
fn a_blocked_node_loses_its_ended_plan_and_gets_no_new_one() {
    let mut ended = started(&new_node(full_node_from(state_sync()))).unwrap();
    for phase in [PlanPhase::Complete, PlanPhase::Failed] {
        ended.phase = phase;
        let snapshot = blocked().with(|seen| {
            seen.status_mut().phase = Some(SeiNodePhase::Initializing);
            seen.status_mut().plan = Some(ended.clone());
        });
        assert_eq!(started_tasks(&snapshot), "none");
        assert_eq!(after(&snapshot).plan, None);
    }
}

// SS17, SS19
#[test]
fn witnesses_reach_the_status_with_the_first_plan() {
    let status = after(&new_node(full_node_from(state_sync())));
    assert_eq!(status.resolved_state_syncers, Some(vec!["a:1".to_owned(), "b:1".to_owned()]));
    assert!(status.plan.is_some());
}

// SS16
#[test]
fn a_running_node_is_updated_with_or_without_witnesses() {
    let snapshot = running(full_node_from(state_sync()))
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.witnesses = RegisteredWitnesses::Unreadable("bad".into()));
    assert_eq!(started_tasks(&snapshot), UPDATE);
}

fn failed() -> Snapshot {
    let mut plan = started(&new_node(full_node())).unwrap();
    plan.phase = PlanPhase::Failed;
    plan.failed_task_detail = Some(FailedTaskDetail {
        r#type: "configure-genesis".into(),
        id: "x".into(),
        error: "no genesis".into(),
        retry_count: 180,
        max_retries: 180,
    });
    new_node(full_node()).with(|seen| {
        seen.status_mut().phase = Some(SeiNodePhase::Failed);
        seen.status_mut().plan = Some(plan);
        seen.plan_id = "again".into();
    })
}

#[test]
fn a_failed_node_tries_again_on_an_edit_or_on_request() {
    assert_eq!(started_tasks(&failed()), "none");
    assert!(report(&failed()).contains("configure-genesis: no genesis"));
    assert!(after(&failed()).plan.is_some(), "the failed plan stays for inspection");
    assert!(started(&failed().edit(|spec| spec.image = "seid:2".into())).is_some());
    let retried = failed().with(|seen| {
        let annotations = seen.node.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::RETRY.into(), "1".into());
    });
    let plan = started(&retried).unwrap();
    assert_eq!(plan.target.as_ref().unwrap().retry.as_deref(), Some("1"));
    assert_eq!(after(&retried).phase, Some(SeiNodePhase::Initializing));
    let mut answered = plan;
    answered.phase = PlanPhase::Failed;
    let again = retried.with(|seen| seen.status_mut().plan = Some(answered));
    assert_eq!(started_tasks(&again), "none", "each value is answered once");
}

#[test]
fn a_second_try_does_not_bootstrap_again() {
    let mut first = started(&new_node(bootstrap())).unwrap();
    for task in &mut first.tasks {
        task.status = sei_api::plan::TaskStatus::Complete;
        if task.r#type == "teardown-bootstrap" {
            break;
        }
    }
    first.phase = PlanPhase::Failed;
    let snapshot = new_node(bootstrap())
        .with(|seen| {
            seen.status_mut().phase = Some(SeiNodePhase::Failed);
            seen.status_mut().plan = Some(first);
        })
        .edit(|spec| spec.image = "seid:2".into());
    assert_eq!(started_tasks(&snapshot), format!("{HEAD} {PLAIN}"));
}

#[test]
fn a_node_with_the_signing_key_of_another_node_is_never_started() {
    let snapshot =
        new_node(validator()).with(|seen| seen.signing_conflict = Some("ns/other".into()));
    assert_eq!(started_tasks(&snapshot), "none");
    let stalled = condition_text(&after(&snapshot), ConditionType::Stalled);
    assert!(stalled.starts_with("True/SigningKeyConflict: ns/other"), "{stalled}");
}

/// Our objects beside an empty status.
fn wiped() -> Snapshot {
    running(full_node()).with(|seen| seen.store(SeiNodeStatus::default()))
}

#[test]
fn an_empty_status_beside_a_running_pod_is_rebuilt() {
    assert_eq!(after(&wiped()).phase, Some(SeiNodePhase::Running));
    assert_eq!(started_tasks(&wiped()), "none");
}

#[test]
fn an_empty_status_beside_a_pod_that_never_started_gets_a_first_plan() {
    let snapshot = wiped().with(|seen| {
        seen.sidecar = Sidecar::NotReady;
        seen.pods[0].seid.started = false;
    });
    assert!(started_tasks(&snapshot).starts_with("ensure-data-pvc"));
    let unprobed = wiped().with(|seen| {
        seen.sidecar = Sidecar::Unknown;
        seen.pods[0].seid.started = false;
    });
    assert_eq!(started_tasks(&unprobed), "none", "the sidecar is probed first");
}

#[test]
fn an_initialised_node_never_runs_its_bootstrap_image_again() {
    let snapshot = SnapshotSource { bootstrap_image: Some("seid:0".into()), ..s3(9) };
    let wiped = running(full_node_from(snapshot)).with(|seen| {
        seen.store(SeiNodeStatus::default());
        seen.sidecar = Sidecar::Unknown;
        seen.pods.clear();
    });
    let stamped = wiped.with(|seen| seen.statefulset.as_mut().unwrap().initialised = true);
    assert_eq!(started_tasks(&stamped), "none");
    assert_eq!(after(&stamped).phase, Some(SeiNodePhase::Running));
}

#[test]
fn a_statefulset_of_another_owner_is_left_alone() {
    let snapshot = new_node(full_node()).with(|seen| {
        let mut foreign = statefulset(&json!({}), "", "rev-1");
        foreign.controller = Some("foreign".into());
        seen.statefulset = Some(foreign.into());
        seen.pods = vec![pod("x", "y", "rev-1").into()];
    });
    assert_eq!(started_tasks(&snapshot), "none");
    assert!(report(&snapshot).contains("controlled by another object"));
}

// I37
#[test]
fn the_rendered_configuration_is_in_the_stored_plan() {
    use crate::testing;
    for (level, expected) in [(None, "error"), (Some("debug"), "debug")] {
        let mut node = testing::node("rpc-genesis");
        node.spec.overrides =
            level.map(|level| [("logging.level".to_owned(), level.to_owned())].into());
        let platform = testing::platform("example");
        let desired = crate::desired::render_desired(&node, &platform, &[], &[]).unwrap();
        let snapshot = new_node(full_node()).with(|seen| seen.desired = Ok(desired.into()));
        let plan = started(&snapshot).unwrap();
        let apply = plan.tasks.iter().find(|task| task.r#type == "config-apply").unwrap();
        let params = apply.params.as_ref().unwrap();
        assert_eq!(params["overrides"]["logging.level"], expected);
        assert_eq!(params["mode"], "full");
    }
}

// I42
#[test]
fn the_sidecar_is_addressed_by_the_pods_name() {
    assert_eq!(sei_api::names::sidecar_url("n", "ns"), "https://n-0.n.ns.svc.cluster.local:8443");
}

#[test]
fn an_edit_after_an_edit_does_not_bootstrap_again() {
    let plain = |snapshot: &Snapshot| {
        let desired = snapshot.desired.clone().unwrap();
        build::init(snapshot, &desired, true)
    };
    let snapshot = new_node(bootstrap()).with(|seen| {
        let mut second = plain(seen);
        second.phase = PlanPhase::Failed;
        seen.status_mut().phase = Some(SeiNodePhase::Failed);
        seen.status_mut().plan = Some(second);
    });
    let edited = snapshot.edit(|spec| spec.image = "seid:2".into());
    assert_eq!(started_tasks(&edited), format!("{HEAD} {PLAIN}"));
}

#[test]
fn a_leftover_job_is_torn_down_before_the_node_is_applied() {
    let snapshot =
        new_node(full_node()).with(|seen| seen.job = Some(crate::view::JobView::default()));
    let tasks = started_tasks(&snapshot);
    assert!(tasks.contains("teardown-bootstrap apply-statefulset"), "{tasks}");
}

/// The first plan of a node, with every task before `current` complete.
fn init_at(spec: sei_api::SeiNodeSpec, current: &str) -> (Snapshot, TaskPlan) {
    let snapshot = new_node(spec);
    let mut plan = started(&snapshot).unwrap();
    let index = plan.tasks.iter().position(|task| task.r#type == current).unwrap();
    for task in &mut plan.tasks[..index] {
        task.status = TaskStatus::Complete;
    }
    let stored = plan.clone();
    let snapshot = snapshot.with(|seen| {
        seen.status_mut().phase = Some(SeiNodePhase::Initializing);
        seen.status_mut().plan = Some(stored);
    });
    (snapshot, plan)
}

fn job_of(image: &str) -> crate::view::JobView {
    crate::view::JobView {
        uid: "job".into(),
        controller: Some(crate::planner::fixture::NODE_UID.into()),
        image: image.into(),
        sidecar_image: "seictl:1".into(),
        ..crate::view::JobView::default()
    }
}

#[test]
fn another_bootstrap_image_supersedes_the_plan_once() {
    let (snapshot, _) = init_at(bootstrap(), "snapshot-restore");
    let mut snapshot = snapshot.with(|seen| seen.job = Some(job_of("seid:0")));
    snapshot = snapshot.edit(|spec| {
        let source = spec.full_node.as_mut().unwrap().snapshot.as_mut().unwrap();
        source.bootstrap_image = Some("seid:1".into());
    });
    let next = started(&snapshot).expect("another image makes another plan");
    assert_eq!(next.target.as_ref().unwrap().bootstrap_image.as_deref(), Some("seid:1"));
    // The Job of the old image still exists when the new plan is stepped for the first time.
    snapshot.status_mut().plan = Some(next);
    assert_eq!(plan(&snapshot).plan, PlanMove::Keep);
    let moved = snapshot.edit(|spec| spec.chain_id = "atlantic-2".into());
    let next = started(&moved).expect("what the Job replays is of another chain");
    assert_eq!(next.target.unwrap().chain_id.as_deref(), Some("atlantic-2"));
}

#[test]
fn another_chain_or_mode_supersedes_an_init_plan_although_its_pod_runs() {
    let (snapshot, _) = init_at(full_node(), "configure-genesis");
    let runs = running(full_node());
    let snapshot = snapshot.with(|seen| {
        seen.statefulset = runs.statefulset.clone();
        seen.pods = runs.pods.clone();
    });
    assert_eq!(plan(&snapshot).plan, PlanMove::Keep, "nothing was edited");
    let moved = snapshot.clone().edit(|spec| spec.chain_id = "atlantic-2".into());
    let next = started(&moved).expect("another chain makes another plan");
    assert_eq!(next.target.unwrap().chain_id.as_deref(), Some("atlantic-2"));
    let archive = snapshot.edit(|spec| *spec = archive());
    assert!(started(&archive).is_some(), "another mode makes another plan");
}

#[test]
fn a_failed_plain_init_is_no_replay() {
    let (snapshot, mut failed) = init_at(full_node(), "configure-genesis");
    failed.phase = PlanPhase::Failed;
    let snapshot = snapshot
        .with(|seen| {
            seen.status_mut().phase = Some(SeiNodePhase::Failed);
            seen.status_mut().plan = Some(failed);
        })
        .edit(|spec| *spec = bootstrap());
    let next = started(&snapshot).expect("an edit tries again");
    assert!(next.has(TaskType::DeployBootstrapJob), "the node was never replayed");
    assert!(next.has(TaskType::SnapshotRestore));
}

#[test]
fn an_init_plan_of_the_go_operator_is_superseded_by_another_image_and_resumed_otherwise() {
    let (snapshot, mut theirs) = init_at(full_node(), "configure-genesis");
    theirs.kind = None;
    theirs.target = None;
    let runs = running(full_node());
    let snapshot = snapshot.with(|seen| {
        seen.status_mut().plan = Some(theirs);
        seen.statefulset = runs.statefulset.clone();
        seen.pods = runs.pods.clone();
    });
    assert_eq!(plan(&snapshot).plan, PlanMove::Keep);
    let edited = snapshot.clone().edit(|spec| spec.image = "seid:9".into());
    let decision = plan(&edited);
    assert_eq!(decision.compare.as_deref(), Some("pod-uid"), "names of images decide nothing");
    assert_eq!(decision.plan, PlanMove::Keep, "it continues until the server has compared");
    let compared = |comparison| {
        edited.clone().with(|seen| seen.adoption = Some(("pod-uid".into(), comparison)))
    };
    let change = |path: &str| FieldChange { path: path.into(), ..FieldChange::default() };
    let image = Comparison::Different(vec![change("containers[seid].image")]);
    assert!(started(&compared(image)).is_some(), "a bad first image is corrected by an edit");
    for same in [Comparison::Equal, Comparison::Different(vec![change("hostAliases")])] {
        let continued = plan(&compared(same)).plan;
        assert_eq!(continued, PlanMove::Keep, "admission has rewritten the image");
    }
    assert!(started(&compared(Comparison::NoRevision)).is_some(), "only the names are left");
    let stuck = snapshot.with(|seen| {
        let mut pod = (*seen.pods[0]).clone();
        pod.troubles.push(crate::view::Trouble {
            container: "seid".into(),
            kind: crate::view::TroubleKind::Crash,
            message: "exit code 1".into(),
        });
        seen.pods = vec![pod.into()];
    });
    assert!(started(&stuck).is_some(), "a plan with a target can be corrected by any edit");
}
