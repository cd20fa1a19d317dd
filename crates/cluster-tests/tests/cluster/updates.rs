//! A node from its creation through updates, healthy and not.

use std::time::{Duration, Instant};

use anyhow::Result;
use cluster_tests::scenario::{Play, rpc, validator};
use sei_rig::Behaviour;
use serde_json::json;

#[tokio::test]
async fn a_new_node_runs_with_no_pod_deleted_and_no_second_plan() -> Result<()> {
    let play = Play::open("fresh").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    assert_eq!(play.pods_seen("rpc").await?, 1);
    let status = play.status("rpc").await?;
    assert_eq!(status.last_update, None, "an update plan would have left a record");
    play.close().await
}

#[tokio::test]
async fn an_image_update_replaces_the_pod_once() -> Result<()> {
    let play = Play::open("bump").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

/// Less than an update waits for a sidecar that does not answer, and more than a busy machine adds.
const NO_CLOCK: Duration = Duration::from_secs(10);

// M2.5
#[tokio::test]
async fn a_halted_node_is_replaced_without_waiting_for_a_clock() -> Result<()> {
    let play = Play::open_at("halted-now", 1).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.image_is("seid:v1", Behaviour::Halted);
    play.until_pod("rpc", "it is halted", |pod| !pod.ready).await?;
    let begin = Instant::now();
    play.set_image("rpc", "seid:v2").await?;
    play.until_pod_of("rpc", "seid:v2").await?;
    let waited = begin.elapsed();
    assert!(waited < NO_CLOCK, "the pod was made anew after {waited:?}");
    play.settled("rpc").await?;
    play.close().await
}

#[tokio::test]
async fn a_label_reaches_the_pod() -> Result<()> {
    let play = Play::open("label").await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    play.edit("val", json!({ "spec": { "podLabels": { "team": "core" } } })).await?;
    play.until("val", "the update is recorded", |status| status.last_update.is_some()).await?;
    play.settled("val").await?;
    let pod = play.pods().get("val-0").await?;
    assert_eq!(pod.metadata.labels.unwrap_or_default()["team"], "core");
    assert_eq!(play.pods_seen("val").await?, 2);
    play.close().await
}
