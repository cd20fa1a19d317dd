//! Edits of settings that are not part of the pod template.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, rpc, validator};
use sei_rig::Submission;
use serde_json::{Value, json};

/// The parameters of the last task of this type.
fn last_params(scenario: &Scenario, node: &str, task: &str) -> Result<Value> {
    let all = scenario.sidecars().submissions(scenario.namespace(), node);
    let found = all.into_iter().rfind(|submission: &Submission| submission.task_type == task);
    Ok(found.with_context(|| format!("no {task} was submitted"))?.params)
}

#[tokio::test]
async fn edited_overrides_reach_a_running_node_and_removed_ones_leave_it() -> Result<()> {
    let scenario = Scenario::open("overrides").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let first = scenario.uid("rpc").await?;
    let overrides = json!({ "spec": { "overrides": { "mempool.size": "0" } } });
    scenario.edit("rpc", overrides).await?;
    scenario.until_pod("rpc", "is another pod", |pod| pod.uid != first && pod.ready).await?;
    scenario.settled("rpc").await?;
    let params = last_params(&scenario, "rpc", "config-apply")?;
    assert_eq!(params["overrides"]["mempool.size"], "0");

    let second = scenario.uid("rpc").await?;
    scenario.edit("rpc", json!({ "spec": { "overrides": null } })).await?;
    scenario.until_pod("rpc", "is another pod", |pod| pod.uid != second && pod.ready).await?;
    scenario.settled("rpc").await?;
    let params = last_params(&scenario, "rpc", "config-apply")?;
    assert_eq!(params["overrides"]["mempool.size"], Value::Null, "whole files are written");
    assert_eq!(scenario.pods_seen("rpc").await?, 3, "each edit restarts the pod once");
    scenario.close().await
}

#[tokio::test]
async fn an_edited_address_reaches_a_running_validator() -> Result<()> {
    let scenario = Scenario::open("address").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.until_pod("val", "is Ready", |pod| pod.ready).await?;
    let first = scenario.uid("val").await?;
    scenario.edit("val", json!({ "spec": { "externalAddress": "p2p.example.org:26656" } })).await?;
    scenario.until_pod("val", "is another pod", |pod| pod.uid != first && pod.ready).await?;
    scenario.settled("val").await?;
    let params = last_params(&scenario, "val", "config-patch")?;
    let address = &params["files"]["config.toml"]["p2p"]["external-address"];
    assert_eq!(address, "p2p.example.org:26656");
    scenario.close().await
}

#[tokio::test]
async fn overrides_that_the_sidecar_refuses_leave_the_pod_running() -> Result<()> {
    let scenario = Scenario::open("bad-overrides").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    let pod = scenario.uid("rpc").await?;
    scenario.sidecars().fail(
        scenario.namespace(),
        "rpc",
        "config-apply",
        "unknown key no.such.key",
    );
    scenario.edit("rpc", json!({ "spec": { "overrides": { "no.such.key": "1" } } })).await?;
    scenario
        .until("rpc", "the failed attempt is counted", |status| {
            status.pending_update.as_ref().and_then(|update| update.attempts).unwrap_or(0) > 1
        })
        .await?;
    let found = scenario.pod("rpc").await?.context("the pod is missing")?;
    assert!(found.uid == pod && found.ready, "a bad setting takes no node down");
    scenario.sidecars().release(scenario.namespace(), "rpc", "config-apply");
    scenario.until_pod("rpc", "is another pod", |found| found.uid != pod && found.ready).await?;
    scenario.settled("rpc").await?;
    scenario.close().await
}
