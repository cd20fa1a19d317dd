//! Sidecars whose tasks do not end, are refused, or report the wrong state.

use std::collections::BTreeSet;

use anyhow::Result;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::wait_for;
use sei_rig::Submission;

const TASK: &str = "mark-ready";

/// A running node, at a speed at which the deadline of `mark-ready` is two seconds.
async fn open(name: &str) -> Result<Scenario> {
    let scenario = Scenario::open_at_speed(name, 30).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    Ok(scenario)
}

/// The ids under which the node's present pod received the task.
async fn ids(scenario: &Scenario) -> Result<BTreeSet<String>> {
    let pod = scenario.uid("rpc").await?;
    let of_pod = |entry: &Submission| entry.pod_uid == pod && entry.task_type == TASK;
    let all = scenario.sidecars().submissions(scenario.namespace(), "rpc");
    Ok(all.into_iter().filter(of_pod).map(|entry| entry.id).collect())
}

#[tokio::test]
async fn a_task_without_an_end_is_reported_and_run_again_under_a_new_id() -> Result<()> {
    let scenario = open("task-hangs").await?;
    scenario.sidecars().hold(scenario.namespace(), "rpc", TASK);
    scenario.evict("rpc").await?;
    let status = scenario.until_stalled("rpc", "SidecarTaskFailed").await?;
    let message = status.blocked.map(|blocked| blocked.message).unwrap_or_default();
    assert_eq!(message, "mark-ready failed and is run again: no end within 2 s");
    assert!(ids(&scenario).await?.len() > 1);
    scenario.sidecars().release(scenario.namespace(), "rpc", TASK);
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    scenario.close().await
}

#[tokio::test]
async fn an_open_gate_completes_a_task_whose_record_stays_running() -> Result<()> {
    let scenario = open("task-sticks").await?;
    scenario.sidecars().stick(scenario.namespace(), "rpc", TASK);
    scenario.evict("rpc").await?;
    scenario.until("rpc", "its plan ends", |status| status.plan.is_some()).await?;
    scenario.settled("rpc").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_refused_task_is_a_failed_attempt() -> Result<()> {
    let scenario = open("task-refused").await?;
    let text = "persist task: disk full";
    scenario.sidecars().refuse(scenario.namespace(), "rpc", TASK, text);
    scenario.evict("rpc").await?;
    let is_shown = |error: &String| error.ends_with(text);
    wait_for("the refusal is in the plan", async || {
        let plan = scenario.status("rpc").await?.plan;
        let tasks = plan.into_iter().flat_map(|plan| plan.tasks);
        Ok(tasks.filter_map(|task| task.error).find(is_shown))
    })
    .await?;
    scenario.sidecars().release(scenario.namespace(), "rpc", TASK);
    scenario.settled("rpc").await?;
    scenario.close().await
}
