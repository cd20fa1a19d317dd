//! The pull of an update's image before the running pod is replaced.

use anyhow::Result;
use cluster_tests::scenario::{Scenario, rpc, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::Pod;
use sei_api::names::pre_pull_pod;
use sei_rig::Behaviour;

async fn until_pulling(scenario: &Scenario, node: &str) -> Result<Pod> {
    wait_for("a pod pulls the image", async || {
        Ok(scenario.pods().get_opt(&pre_pull_pod(node)).await?)
    })
    .await
}

async fn until_no_pull(scenario: &Scenario, node: &str) -> Result<()> {
    wait_for("no pod pulls an image", async || {
        Ok(scenario.pods().get_opt(&pre_pull_pod(node)).await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_mistyped_image_leaves_the_pod_of_a_healthy_validator_alone() -> Result<()> {
    let scenario = Scenario::open_at_speed("pull-typo", 50).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let before = scenario.until_pod("val", "is Ready", |pod| pod.ready).await?;
    let generation = scenario.statefulsets().get("val").await?.metadata.generation;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.set_image("val", "seid:typo").await?;
    let status = scenario.until_stalled("val", "ImageNotPullable").await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    let pod = scenario.pod("val").await?.expect("the node has a pod");
    assert_eq!((pod.uid, pod.ready), (before.uid.clone(), true));
    let set = scenario.statefulsets().get("val").await?;
    assert_eq!(set.metadata.generation, generation, "an evicted pod must not get the typo");
    wait_for("an event reports it", async || {
        let events = scenario.events("val").await?;
        Ok(events.iter().any(|event| event.starts_with("ImageNotPullable:")).then_some(()))
    })
    .await?;
    // The hold delays no eviction.
    scenario.evict("val").await?;
    scenario.until_pod("val", "is Ready again", |pod| pod.uid != before.uid && pod.ready).await?;
    scenario.until_stalled("val", "ImageNotPullable").await?;

    scenario.set_image("val", "seid:v2").await?;
    scenario.settled("val").await?;
    scenario.until_not_stalled("val").await?;
    until_no_pull(&scenario, "val").await?;
    assert_eq!(scenario.pods_seen("val").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_reverted_image_ends_the_hold_without_a_restart() -> Result<()> {
    let scenario = Scenario::open_at_speed("pull-revert", 50).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.set_image("rpc", "seid:typo").await?;
    scenario.until_stalled("rpc", "ImageNotPullable").await?;
    scenario.set_image("rpc", "seid:v1").await?;
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    until_no_pull(&scenario, "rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1);
    scenario.close().await
}

#[tokio::test]
async fn a_halted_node_whose_pull_hangs_is_replaced_after_a_minute() -> Result<()> {
    let scenario = Scenario::open_at_speed("pull-hangs", 20).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    scenario.until_pod("rpc", "is not Ready", |pod| !pod.ready).await?;
    scenario.set_image_behaviour("seid:v2", Behaviour::PullHangs);
    scenario.set_image("rpc", "seid:v2").await?;
    until_pulling(&scenario, "rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1, "the pull is awaited for a while");
    scenario.settled("rpc").await?;
    until_no_pull(&scenario, "rpc").await?;
    wait_for("an event reports it", async || {
        let events = scenario.events("rpc").await?;
        Ok(events.iter().any(|event| event.starts_with("PrePullSkipped:")).then_some(()))
    })
    .await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn a_crash_of_the_operator_during_a_pull_leaves_no_pod_behind() -> Result<()> {
    let mut scenario = Scenario::open_at_speed("pull-crash", 1).await?;
    for node in ["on", "back"] {
        scenario.run(node, rpc("seid:v1")).await?;
        scenario.until_pod(node, "is Ready", |pod| pod.ready).await?;
    }
    let rule = scenario.set_image_behaviour("seid:v2", Behaviour::PullHangs);
    for node in ["on", "back"] {
        let at_once = serde_json::json!({ "spec": {
            "image": "seid:v2", "update": { "onImageChange": "AtOnce" } } });
        scenario.edit(node, at_once).await?;
        until_pulling(&scenario, node).await?;
    }
    scenario.kill_operator();
    scenario.set_image("back", "seid:v1").await?;
    scenario.lift(rule);
    scenario.start_operator(1).await?;
    for node in ["on", "back"] {
        scenario.settled(node).await?;
        until_no_pull(&scenario, node).await?;
    }
    assert_eq!(scenario.pods_seen("on").await?, 2);
    assert_eq!(scenario.pods_seen("back").await?, 1);
    scenario.close().await
}

#[tokio::test]
async fn a_node_deleted_during_a_pull_leaves_no_pod_behind() -> Result<()> {
    let scenario = Scenario::open_at_speed("pull-delete", 1).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    scenario.set_image_behaviour("seid:v2", Behaviour::PullHangs);
    scenario.set_image("rpc", "seid:v2").await?;
    until_pulling(&scenario, "rpc").await?;
    scenario.nodes().delete("rpc", &kube::api::DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    until_no_pull(&scenario, "rpc").await?;
    scenario.close().await
}
