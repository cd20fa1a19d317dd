//! Nodes that are deleted, edited or lied about, and pods that are evicted, at every moment of a
//! plan: at each write of the operator, and wherever a plan can be made to wait.

mod disturbance;
mod stop_point;

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::interceptor::{LastResponse, Write};
use cluster_tests::scenario::{Scenario, condition_text, rpc};
use cluster_tests::wait_for;
use futures::{StreamExt as _, TryStreamExt as _};
use sei_api::condition::ConditionType;
use sei_api::plan::PlannedTask;
use sei_api::status::SeiNodePhase;
use sei_api::task::Side;
use sei_plan::view::{PodView, StatefulSetView};
use sei_rig::{Behaviour, ClaimRule};
use serde_json::{Value, json};

use self::disturbance::{Before, Hand};
use self::stop_point::{EARLY, LATE, Moment, Stop, keyed, make_secret};
use crate::crash_after_write::{IN_CREATION, IN_UPDATE, assert_kinds};
use crate::modes::modes;

/// As many nodes as are at it at once: each waits by looking, and the machine is small.
const AT_ONCE: usize = 6;

/// Rounds in which a node is new or gets another image, and a hand comes in when the operator has
/// written something that no hand came in after before. The operator learns of it afterwards; one
/// that is asked to undo what it is at does not, and its successor has to find out: by itself it
/// would go on with its look at the node.
async fn at_each_write(name: &str, hand: Hand, spec: Value, is_update: bool) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let mut moments: BTreeSet<Write> = BTreeSet::new();
    for round in 1.. {
        let node = format!("node-{round}");
        let spec = hand.prepare(&scenario, &node, spec.clone()).await?;
        if is_update {
            if scenario.operator.is_none() {
                scenario.start_intercepted_operator(LastResponse::Lost).await?;
            }
            scenario.run(&node, spec.clone()).await?;
        }
        // The one before is let finish its sentence: what it says belongs to no moment of these.
        if let Some(operator) = scenario.operator.take() {
            operator.stop().await?;
        }
        let interceptor = scenario.start_intercepted_operator(LastResponse::Lost).await?;
        interceptor.block_after_write_not_in(&moments);
        if is_update {
            scenario.set_image(&node, "seid:v2").await?;
        } else {
            scenario.create(&node, spec).await?;
        }
        let Some(moment) = scenario.until_blocked(&interceptor, &node).await? else { break };
        let before = Before::of(&scenario, &node, "seid:v1").await?;
        let deed = hand.act(&scenario, &before).await?;
        if hand == Hand::Revert || scenario.operator.is_none() {
            // Else it was at its last words.
            scenario.start_intercepted_operator(LastResponse::Lost).await?;
        }
        interceptor.unblock();
        let pods = if is_update { 2 } else { 1 };
        let checked = hand.check(&scenario, &before, deed, pods).await;
        checked.with_context(|| format!("round {round}, {hand:?} after {moment:?}"))?;
        moments.insert(moment);
    }
    assert_kinds(&moments, if is_update { &IN_UPDATE } else { &IN_CREATION });
    scenario.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_creation_leaves_nothing() -> Result<()> {
    at_each_write("del-new", Hand::Delete, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_bootstrap_leaves_nothing() -> Result<()> {
    at_each_write("del-boot", Hand::Delete, bootstrapped(), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_an_update_keeps_imported_volumes() -> Result<()> {
    at_each_write("del-upd", Hand::DeleteImported, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn the_last_image_set_at_any_write_of_an_update_runs_in_the_end() -> Result<()> {
    at_each_write("edit-upd", Hand::Edit, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_revert_at_any_write_of_an_update_restarts_only_replaced_pods() -> Result<()> {
    at_each_write("revert-upd", Hand::Revert, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_its_creation_costs_one_pod() -> Result<()> {
    at_each_write("evict-new", Hand::Evict, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_an_update_costs_one_pod_at_most() -> Result<()> {
    at_each_write("evict-upd", Hand::Evict, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_write_of_an_update_costs_no_pod() -> Result<()> {
    at_each_write("wipe-upd", Hand::Wipe, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_write_of_a_creation_costs_no_pod() -> Result<()> {
    at_each_write("wipe-new", Hand::Wipe, rpc("seid:v1"), false).await
}

fn bootstrapped() -> Value {
    let (_, spec) = modes().pop().expect("the last mode is a bootstrap");
    spec
}

/// One node, updated, with a hand coming in at one moment.
async fn in_update(
    scenario: &Scenario,
    node: &str,
    hand: Hand,
    moment: &Moment,
    late: bool,
) -> Result<()> {
    for name in ["signing", "p2p", "ring", "pass"] {
        make_secret(scenario, name, node).await?;
    }
    let spec = hand.prepare(scenario, node, keyed(node)).await?;
    scenario.run(node, spec).await?;
    let (old, first) = (scenario.uid(node).await?, format!("seid:v1-{node}"));
    let silent = late.then(|| scenario.set_image_behaviour(&first, Behaviour::SidecarRefuses));
    if late {
        scenario.until_pod(node, "its sidecar is silent", |pod| !pod.ready).await?;
    }
    let submitted =
        if let Stop::Sidecar(task) = moment.stop { scenario.submitted(node, task) } else { 0 };
    let rule = moment.stop.set(scenario, node).await?;
    scenario.set_image(node, &format!("seid:v2-{node}")).await?;
    moment.stop.reached(scenario, node, submitted).await?;
    let before = Before::of(scenario, node, &first).await?;
    if let Some(rule) = silent.filter(|_| hand == Hand::Revert) {
        // What is desired again has to be able to answer.
        scenario.lift(rule);
    }
    let deed = hand.act(scenario, &before).await?;
    if hand == Hand::Evict && moment.gate_opens {
        until_gate_opens_again(scenario, node, &old).await?;
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let applied = &statefulset.template["spec"]["containers"];
        // Else it was opened only after the task had been given up.
        ensure!(applied.to_string().contains(&first), "{node}: the update went on first");
    }
    moment.stop.lift(scenario, node, rule).await?;
    hand.check(scenario, &before, deed, 2).await
}

/// Waits until the gate of the pod that came after this one has opened.
async fn until_gate_opens_again(scenario: &Scenario, node: &str, old: &str) -> Result<()> {
    let is_next = |pod: &PodView| pod.uid != old && !pod.is_terminating();
    let next = scenario.until_pod(node, "there is another pod", is_next).await?.uid;
    wait_for(&format!("{node}: the gate of pod {next} opens"), async || {
        let openings = scenario.sidecars().gate_openings(scenario.namespace(), node);
        Ok(openings.iter().any(|opening| opening.pod_uid == next).then_some(()))
    })
    .await
}

/// A hand at each task of an update at which it can be made to wait.
async fn at_each_task_of_an_update(name: &str, hand: Hand, late: bool) -> Result<()> {
    // Where it counts what is not given up, waits are as long as in life.
    let counts = matches!(hand, Hand::Evict | Hand::Revert) && !late;
    let scenario =
        if counts { Scenario::open_at_speed(name, 1).await? } else { Scenario::open(name).await? };
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let moments: &[Moment] = if late { &LATE } else { &EARLY };
    let on = &scenario;
    let runs = moments.iter().enumerate().map(|(index, moment)| async move {
        let run = in_update(on, &format!("val-{index}"), hand, moment, late).await;
        run.with_context(|| format!("{hand:?} at {:?}, late {late}", moment.stop))
    });
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    scenario.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_an_update_leaves_nothing() -> Result<()> {
    at_each_task_of_an_update("del-early", Hand::Delete, false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_an_update_without_a_sidecar_keeps_imported_volumes()
-> Result<()> {
    at_each_task_of_an_update("del-late", Hand::DeleteImported, true).await
}

#[tokio::test]
async fn the_last_image_set_at_any_task_of_an_update_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("edit-early", Hand::Edit, false).await
}

#[tokio::test]
async fn the_last_image_set_at_any_task_of_an_update_without_a_sidecar_runs_in_the_end()
-> Result<()> {
    at_each_task_of_an_update("edit-late", Hand::Edit, true).await
}

#[tokio::test]
async fn a_revert_at_any_task_of_an_update_restarts_only_replaced_pods() -> Result<()> {
    at_each_task_of_an_update("revert-early", Hand::Revert, false).await
}

#[tokio::test]
async fn a_revert_at_any_task_of_an_update_without_a_sidecar_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("revert-late", Hand::Revert, true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_an_update_gets_its_gate_opened_again() -> Result<()> {
    at_each_task_of_an_update("evict-early", Hand::Evict, false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_an_update_without_a_sidecar_gets_its_gate_opened_again()
-> Result<()> {
    at_each_task_of_an_update("evict-late", Hand::Evict, true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_task_of_an_update_costs_no_pod() -> Result<()> {
    at_each_task_of_an_update("wipe-early", Hand::Wipe, false).await
}

#[tokio::test]
async fn tasks_forged_as_complete_at_any_task_of_an_update_do_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-tasks", Hand::ForgeTasks, false).await
}

#[tokio::test]
async fn a_target_forged_at_any_task_of_an_update_does_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-target", Hand::ForgeTarget, false).await
}

#[tokio::test]
async fn a_hash_forged_at_any_task_of_an_update_does_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-hash", Hand::ForgeHash, false).await
}

/// For each task type that a sidecar has to do when a node is new, a mode in which it does.
async fn sidecar_tasks(scenario: &Scenario) -> Result<Vec<(String, Value, &'static str)>> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for (mode, spec) in modes() {
        scenario.create(mode, spec.clone()).await?;
        let planned =
            scenario.until(mode, "there is a plan", |status| status.plan.is_some()).await?;
        let tasks = planned.plan.context("it was just seen")?.tasks;
        let types = tasks.iter().filter_map(PlannedTask::task_type);
        for task in types.filter(|task| task.side() == Side::Sidecar) {
            if known.insert(task.as_str()) {
                let node = format!("{mode}-{}", known.len());
                found.push((node, spec.clone(), task.as_str()));
            }
        }
    }
    assert!(found.len() >= 10, "{found:?}");
    Ok(found)
}

/// One new node, with a hand coming in while its sidecar is at a task of this type.
async fn in_creation(
    scenario: &Scenario,
    node: &str,
    spec: Value,
    task: &'static str,
    hand: Hand,
) -> Result<()> {
    let spec = hand.prepare(scenario, node, spec).await?;
    scenario.sidecars().hold(scenario.namespace(), node, task);
    // What replays first has a pod of its own for that.
    let pods = if spec == bootstrapped() { 2 } else { 1 };
    scenario.create(node, spec).await?;
    scenario.until_submitted(node, task, 0).await?;
    let status = scenario.status(node).await?;
    ensure!(status.phase == Some(SeiNodePhase::Initializing), "{:?}", status.phase);
    let before = Before::of(scenario, node, "seid:v1").await?;
    let deed = hand.act(scenario, &before).await?;
    scenario.sidecars().release(scenario.namespace(), node, task);
    hand.check(scenario, &before, deed, pods).await
}

async fn at_each_sidecar_task_of_a_creation(name: &str, hand: Hand) -> Result<()> {
    let scenario = Scenario::open(name).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let tasks = sidecar_tasks(&scenario).await?;
    let on = &scenario;
    let runs = tasks.into_iter().map(|(node, spec, task)| async move {
        let run = Box::pin(in_creation(on, &node, spec, task, hand)).await;
        run.with_context(|| format!("{hand:?} at {task}"))
    });
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    scenario.close().await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_sidecar_task_leaves_nothing() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init", Hand::Delete).await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_sidecar_task_keeps_imported_volumes() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init-imp", Hand::DeleteImported).await
}

#[tokio::test]
async fn a_new_nodes_pod_evicted_at_any_sidecar_task_costs_one_pod() -> Result<()> {
    at_each_sidecar_task_of_a_creation("evict-init", Hand::Evict).await
}

#[tokio::test]
async fn a_new_node_deleted_while_it_waits_leaves_nothing() -> Result<()> {
    let scenario = Scenario::open("del-waiting").await?;
    let mut imported = rpc("seid:v1");
    imported["dataVolume"] = json!({ "import": { "pvcName": "absent" } });
    scenario.set_node_behaviour("boot", Behaviour::Halted);
    scenario.create("boot", bootstrapped()).await?;
    scenario.create("keyless", keyed("keyless")).await?;
    scenario.create("imported", imported).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.create("mistyped", rpc("seid:typo")).await?;
    scenario.until_submitted("boot", "mark-ready", 0).await?;
    scenario.until_pod("mistyped", "its image is missed", |pod| !pod.troubles.is_empty()).await?;
    let status = scenario.status("mistyped").await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    for (node, kind) in
        [("keyless", ConditionType::SigningKeyReady), ("imported", ConditionType::ImportPvcReady)]
    {
        let waits = |status: &_| condition_text(status, kind).starts_with("False");
        scenario.until(node, &format!("{kind:?} is not so"), waits).await?;
    }
    for node in ["boot", "keyless", "imported", "mistyped"] {
        let before = Before::of(&scenario, node, "seid:v1").await?;
        let deed = Hand::Delete.act(&scenario, &before).await?;
        Hand::Delete.check(&scenario, &before, deed, 0).await?;
    }
    scenario.close().await
}
