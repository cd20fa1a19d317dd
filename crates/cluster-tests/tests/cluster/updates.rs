//! Updates of healthy and of halted nodes.

use std::time::{Duration, Instant};

use anyhow::Result;
use cluster_tests::scenario::{Scenario, rpc, validator};
use sei_rig::Behaviour;
use serde_json::json;

#[tokio::test]
async fn a_new_node_runs_with_no_pod_deleted_and_no_second_plan() -> Result<()> {
    let scenario = Scenario::open("fresh").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1);
    let status = scenario.status("rpc").await?;
    assert_eq!(status.last_update, None, "an update plan has run");
    scenario.close().await
}

#[tokio::test]
async fn an_image_update_replaces_the_pod_once() -> Result<()> {
    let scenario = Scenario::open("bump").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

/// Less than an update waits for a sidecar that does not answer, and more than a busy machine adds.
const WITHOUT_TIMEOUT: Duration = Duration::from_secs(10);

// M2.5
#[tokio::test]
async fn a_halted_pod_is_replaced_without_waiting_for_a_timeout() -> Result<()> {
    let scenario = Scenario::open_at_speed("halted-now", 1).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    scenario.until_pod("rpc", "it is halted", |pod| !pod.ready).await?;
    let start = Instant::now();
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.until_pod_of("rpc", "seid:v2").await?;
    let waited = start.elapsed();
    assert!(waited < WITHOUT_TIMEOUT, "the pod was replaced after {waited:?}");
    scenario.settled("rpc").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_label_reaches_the_pod() -> Result<()> {
    let scenario = Scenario::open("label").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.edit("val", json!({ "spec": { "podLabels": { "team": "core" } } })).await?;
    scenario.until("val", "the update is recorded", |status| status.last_update.is_some()).await?;
    scenario.settled("val").await?;
    let pod = scenario.pods().get("val-0").await?;
    assert_eq!(pod.metadata.labels.unwrap_or_default()["team"], "core");
    assert_eq!(scenario.pods_seen("val").await?, 2);
    scenario.close().await
}
