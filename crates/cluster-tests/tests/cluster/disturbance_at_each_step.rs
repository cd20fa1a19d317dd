//! Disturbances at every step of a plan: nodes are deleted, edited or get a forged status, and pods
//! are evicted, at each write of the operator and at each task where a plan can be made to wait.

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

use self::disturbance::{Before, Disturbance};
use self::stop_point::{
    STEPS_WITH_SIDECAR, STEPS_WITHOUT_SIDECAR, Step, StopPoint, create_key_secret,
    validator_with_all_keys,
};
use crate::crash_after_write::{IN_CREATION, IN_UPDATE, assert_kinds};
use crate::modes::modes;

/// How many nodes are tested in parallel: each polls the server, and the machine is small.
const CONCURRENCY: usize = 6;

/// Rounds in which a node is created or gets another image. In each round the disturbance comes
/// after a write of the operator that no earlier round was disturbed after. The operator continues
/// afterwards; for a revert it is replaced by another operator, which has to observe the change:
/// the blocked one would continue its current reconcile with the spec that it has read.
async fn at_each_write(
    name: &str,
    disturbance: Disturbance,
    spec: Value,
    is_update: bool,
) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let mut disturbed_writes: BTreeSet<Write> = BTreeSet::new();
    for round in 1.. {
        let node = format!("node-{round}");
        let spec = disturbance.prepare(&scenario, &node, spec.clone()).await?;
        if is_update {
            if scenario.operator.is_none() {
                scenario.start_intercepted_operator(LastResponse::Lost).await?;
            }
            scenario.run(&node, spec.clone()).await?;
        }
        // The previous operator stops gracefully: its last writes belong to no round.
        if let Some(operator) = scenario.operator.take() {
            operator.stop().await?;
        }
        let interceptor = scenario.start_intercepted_operator(LastResponse::Lost).await?;
        interceptor.block_after_write_not_in(&disturbed_writes);
        if is_update {
            scenario.set_image(&node, "seid:v2").await?;
        } else {
            scenario.create(&node, spec).await?;
        }
        let Some(write) = scenario.until_blocked(&interceptor, &node).await? else { break };
        let before = Before::of(&scenario, &node, "seid:v1").await?;
        let effect = disturbance.apply(&scenario, &before).await?;
        if disturbance == Disturbance::Revert || scenario.operator.is_none() {
            // `until_blocked` may have stopped the operator already, during its last writes.
            scenario.start_intercepted_operator(LastResponse::Lost).await?;
        }
        interceptor.unblock();
        let pods = if is_update { 2 } else { 1 };
        let checked = Box::pin(disturbance.check(&scenario, &before, effect, pods)).await;
        checked.with_context(|| format!("round {round}, {disturbance:?} after {write:?}"))?;
        disturbed_writes.insert(write);
    }
    assert_kinds(&disturbed_writes, if is_update { &IN_UPDATE } else { &IN_CREATION });
    scenario.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_creation_leaves_nothing() -> Result<()> {
    at_each_write("del-new", Disturbance::Delete, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_bootstrap_leaves_nothing() -> Result<()> {
    at_each_write("del-boot", Disturbance::Delete, bootstrapped(), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_an_update_keeps_imported_volumes() -> Result<()> {
    at_each_write("del-upd", Disturbance::DeleteImported, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn the_last_image_set_at_any_write_of_an_update_runs_in_the_end() -> Result<()> {
    at_each_write("edit-upd", Disturbance::Edit, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_revert_at_any_write_of_an_update_restarts_only_replaced_pods() -> Result<()> {
    at_each_write("revert-upd", Disturbance::Revert, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_its_creation_costs_one_pod() -> Result<()> {
    at_each_write("evict-new", Disturbance::Evict, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_an_update_costs_one_pod_at_most() -> Result<()> {
    at_each_write("evict-upd", Disturbance::Evict, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_write_of_an_update_costs_no_pod() -> Result<()> {
    at_each_write("wipe-upd", Disturbance::Wipe, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_write_of_a_creation_costs_no_pod() -> Result<()> {
    at_each_write("wipe-new", Disturbance::Wipe, rpc("seid:v1"), false).await
}

fn bootstrapped() -> Value {
    let (_, spec) = modes().pop().expect("the last mode is a bootstrap");
    spec
}

/// Updates one node and disturbs it at one step. With `is_unreachable` the sidecar of the old pod
/// does not answer.
async fn in_update(
    scenario: &Scenario,
    node: &str,
    disturbance: Disturbance,
    step: &Step,
    is_unreachable: bool,
) -> Result<()> {
    for name in ["signing", "p2p", "ring", "pass"] {
        create_key_secret(scenario, name, node).await?;
    }
    let spec = disturbance.prepare(scenario, node, validator_with_all_keys(node)).await?;
    scenario.run(node, spec).await?;
    let (old, first_image) = (scenario.uid(node).await?, format!("seid:v1-{node}"));
    let refuses = is_unreachable
        .then(|| scenario.set_image_behaviour(&first_image, Behaviour::SidecarRefuses));
    if is_unreachable {
        scenario.until_pod(node, "its sidecar does not answer", |pod| !pod.ready).await?;
    }
    let submitted = if let StopPoint::Sidecar(task) = step.stop_point {
        scenario.submitted(node, task)
    } else {
        0
    };
    let rule = step.stop_point.set(scenario, node).await?;
    scenario.set_image(node, &format!("seid:v2-{node}")).await?;
    step.stop_point.until_reached(scenario, node, submitted).await?;
    let before = Before::of(scenario, node, &first_image).await?;
    if let Some(rule) = refuses.filter(|_| disturbance == Disturbance::Revert) {
        // The sidecar of the image that is desired again has to answer.
        scenario.lift(rule);
    }
    let effect = disturbance.apply(scenario, &before).await?;
    if disturbance == Disturbance::Evict && step.gate_opens {
        until_gate_opens_again(scenario, node, &old).await?;
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let applied = &statefulset.template.json()["spec"]["containers"];
        // Otherwise the gate was opened only after the task had been given up.
        ensure!(
            applied.to_string().contains(&first_image),
            "{node}: the update continued before the gate was opened"
        );
    }
    step.stop_point.lift(scenario, node, rule).await?;
    disturbance.check(scenario, &before, effect, 2).await
}

/// Waits until the gate of the pod's successor has opened.
async fn until_gate_opens_again(scenario: &Scenario, node: &str, old: &str) -> Result<()> {
    let is_next = |pod: &PodView| pod.uid != old && !pod.is_terminating();
    let next = scenario.until_pod(node, "there is another pod", is_next).await?.uid;
    wait_for(&format!("{node}: the gate of pod {next} opens"), async || {
        let openings = scenario.sidecars().gate_openings(scenario.namespace(), node);
        Ok(openings.iter().any(|opening| opening.pod_uid == next).then_some(()))
    })
    .await
}

/// Disturbs an update at each task at which it can be made to wait.
async fn at_each_task_of_an_update(
    name: &str,
    disturbance: Disturbance,
    is_unreachable: bool,
) -> Result<()> {
    // These checks fail if a waiting task is given up, so the waits are as long as in production.
    let is_slow =
        matches!(disturbance, Disturbance::Evict | Disturbance::Revert) && !is_unreachable;
    let scenario = if is_slow {
        Scenario::open_at_speed(name, 1).await?
    } else {
        Scenario::open(name).await?
    };
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let steps: &[Step] = if is_unreachable { &STEPS_WITHOUT_SIDECAR } else { &STEPS_WITH_SIDECAR };
    let shared = &scenario;
    let runs = steps.iter().enumerate().map(|(index, step)| async move {
        let run =
            in_update(shared, &format!("val-{index}"), disturbance, step, is_unreachable).await;
        run.with_context(|| {
            format!(
                "{disturbance:?} at {:?}, sidecar unreachable: {is_unreachable}",
                step.stop_point
            )
        })
    });
    futures::stream::iter(runs).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    scenario.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_an_update_leaves_nothing() -> Result<()> {
    at_each_task_of_an_update("del-upd-task", Disturbance::Delete, false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_an_update_without_a_sidecar_keeps_imported_volumes()
-> Result<()> {
    at_each_task_of_an_update("del-no-sidecar", Disturbance::DeleteImported, true).await
}

#[tokio::test]
async fn the_last_image_set_at_any_task_of_an_update_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("edit-upd-task", Disturbance::Edit, false).await
}

#[tokio::test]
async fn the_last_image_set_at_any_task_of_an_update_without_a_sidecar_runs_in_the_end()
-> Result<()> {
    at_each_task_of_an_update("edit-no-sidecar", Disturbance::Edit, true).await
}

#[tokio::test]
async fn a_revert_at_any_task_of_an_update_restarts_only_replaced_pods() -> Result<()> {
    at_each_task_of_an_update("revert-upd-task", Disturbance::Revert, false).await
}

#[tokio::test]
async fn a_revert_at_any_task_of_an_update_without_a_sidecar_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("revert-no-sidecar", Disturbance::Revert, true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_an_update_gets_its_gate_opened_again() -> Result<()> {
    at_each_task_of_an_update("evict-upd-task", Disturbance::Evict, false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_an_update_without_a_sidecar_gets_its_gate_opened_again()
-> Result<()> {
    at_each_task_of_an_update("evict-no-sidecar", Disturbance::Evict, true).await
}

#[tokio::test]
async fn a_status_wiped_at_any_task_of_an_update_costs_no_pod() -> Result<()> {
    at_each_task_of_an_update("wipe-upd-task", Disturbance::Wipe, false).await
}

#[tokio::test]
async fn tasks_forged_as_complete_at_any_task_of_an_update_do_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-tasks", Disturbance::ForgeTasks, false).await
}

#[tokio::test]
async fn a_target_forged_at_any_task_of_an_update_does_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-target", Disturbance::ForgeTarget, false).await
}

#[tokio::test]
async fn a_hash_forged_at_any_task_of_an_update_does_not_prevent_it() -> Result<()> {
    at_each_task_of_an_update("forge-hash", Disturbance::ForgeHash, false).await
}

/// For each sidecar task type of a new node, a mode whose plan contains it.
async fn sidecar_tasks(scenario: &Scenario) -> Result<Vec<(String, Value, &'static str)>> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for (mode, spec) in modes() {
        scenario.create(mode, spec.clone()).await?;
        let planned =
            scenario.until(mode, "there is a plan", |status| status.plan.is_some()).await?;
        let tasks = planned.plan.context("the plan is missing")?.tasks;
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

/// Creates one node and disturbs it while its sidecar runs a task of this type.
async fn in_creation(
    scenario: &Scenario,
    node: &str,
    spec: Value,
    task: &'static str,
    disturbance: Disturbance,
) -> Result<()> {
    let spec = disturbance.prepare(scenario, node, spec).await?;
    scenario.sidecars().hold(scenario.namespace(), node, task);
    // A bootstrapped node has a pod of its own for the replay.
    let pods = if spec == bootstrapped() { 2 } else { 1 };
    scenario.create(node, spec).await?;
    scenario.until_submitted(node, task, 0).await?;
    let status = scenario.status(node).await?;
    ensure!(status.phase == Some(SeiNodePhase::Initializing), "{:?}", status.phase);
    let before = Before::of(scenario, node, "seid:v1").await?;
    let effect = disturbance.apply(scenario, &before).await?;
    scenario.sidecars().release(scenario.namespace(), node, task);
    disturbance.check(scenario, &before, effect, pods).await
}

async fn at_each_sidecar_task_of_a_creation(name: &str, disturbance: Disturbance) -> Result<()> {
    let scenario = Scenario::open(name).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let tasks = sidecar_tasks(&scenario).await?;
    let shared = &scenario;
    let runs = tasks.into_iter().map(|(node, spec, task)| async move {
        let run = Box::pin(in_creation(shared, &node, spec, task, disturbance)).await;
        run.with_context(|| format!("{disturbance:?} at {task}"))
    });
    futures::stream::iter(runs).buffer_unordered(CONCURRENCY).try_collect::<()>().await?;
    scenario.close().await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_sidecar_task_leaves_nothing() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init", Disturbance::Delete).await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_sidecar_task_keeps_imported_volumes() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init-imp", Disturbance::DeleteImported).await
}

#[tokio::test]
async fn a_new_nodes_pod_evicted_at_any_sidecar_task_costs_one_pod() -> Result<()> {
    at_each_sidecar_task_of_a_creation("evict-init", Disturbance::Evict).await
}

#[tokio::test]
async fn a_new_node_deleted_while_it_waits_leaves_nothing() -> Result<()> {
    let scenario = Scenario::open("del-waiting").await?;
    let mut imported = rpc("seid:v1");
    imported["dataVolume"] = json!({ "import": { "pvcName": "absent" } });
    scenario.set_node_behaviour("boot", Behaviour::Halted);
    scenario.create("boot", bootstrapped()).await?;
    scenario.create("keyless", validator_with_all_keys("keyless")).await?;
    scenario.create("imported", imported).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.create("mistyped", rpc("seid:typo")).await?;
    scenario.until_submitted("boot", "mark-ready", 0).await?;
    scenario.until_pod("mistyped", "its image is missing", |pod| !pod.troubles.is_empty()).await?;
    let status = scenario.status("mistyped").await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    for (node, kind) in
        [("keyless", ConditionType::SigningKeyReady), ("imported", ConditionType::ImportPvcReady)]
    {
        let waits = |status: &_| condition_text(status, kind).starts_with("False");
        scenario.until(node, &format!("{kind:?} is False"), waits).await?;
    }
    for node in ["boot", "keyless", "imported", "mistyped"] {
        let before = Before::of(&scenario, node, "seid:v1").await?;
        let effect = Disturbance::Delete.apply(&scenario, &before).await?;
        Disturbance::Delete.check(&scenario, &before, effect, 0).await?;
    }
    scenario.close().await
}
