//! Nodes that are told to wait, to stop, and to go.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Play, rpc, says};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams};
use sei_api::condition::ConditionType;
use sei_rig::ClaimRule;
use serde_json::{Value, json};

#[tokio::test]
async fn a_paused_update_waits_and_an_eviction_brings_back_the_old_image() -> Result<()> {
    let play = Play::open("update-paused").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    play.edit("rpc", json!({ "spec": { "image": "seid:v2", "update": { "paused": true } } }))
        .await?;
    let held =
        |status: &_| says(status, ConditionType::PodTemplateDrift).starts_with("True/Paused");
    play.until("rpc", "its update is held", held).await?;
    assert_eq!(play.uid("rpc").await?, before);
    play.evict("rpc").await?;
    let next =
        play.until_pod("rpc", "another pod runs", |pod| pod.uid != before && pod.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    let status = play.until("rpc", "its update is held", held).await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    play.edit("rpc", json!({ "spec": { "update": { "paused": false } } })).await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}

#[tokio::test]
async fn a_stopped_node_starts_with_what_is_desired_by_then() -> Result<()> {
    let play = Play::open("stopped").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.edit("rpc", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod is gone", async || {
        Ok(play.pods().get_opt("rpc-0").await?.is_none().then_some(()))
    })
    .await?;
    play.set_image("rpc", "seid:v2").await?;
    wait_for("its next start is prepared", async || {
        let template = play.statefulsets().get("rpc").await?.spec.template;
        let containers = template.spec.context("has a spec")?.containers;
        let is_next = containers.iter().any(|one| one.image.as_deref() == Some("seid:v2"));
        Ok(is_next.then_some(()))
    })
    .await?;
    assert!(play.pods().get_opt("rpc-0").await?.is_none());
    play.edit("rpc", json!({ "spec": { "paused": false } })).await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

async fn until_claim_gone(play: &Play, name: &str) -> Result<()> {
    wait_for(&format!("claim {name} is gone"), async || {
        Ok(play.claims().get_opt(name).await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_deleted_node_goes_with_its_volume() -> Result<()> {
    let play = Play::open("deleted").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.nodes().delete("rpc", &DeleteParams::default()).await?;
    play.until_gone("rpc").await?;
    until_claim_gone(&play, "data-rpc").await?;
    assert!(play.statefulsets().get_opt("rpc").await?.is_none());
    play.close().await
}

async fn make_claim(play: &Play, name: &str) -> Result<PersistentVolumeClaim> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } },
        },
    }))?;
    Ok(play.claims().create(&PostParams::default(), &claim).await?)
}

#[tokio::test]
async fn an_imported_volume_stays() -> Result<()> {
    let play = Play::open("imported").await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    let made = make_claim(&play, "kept").await?;
    let mut spec: Value = rpc("seid:v1");
    spec["dataVolume"] = json!({ "import": { "pvcName": "kept" } });
    play.run("rpc", spec).await?;
    play.nodes().delete("rpc", &DeleteParams::default()).await?;
    play.until_gone("rpc").await?;
    wait_for("its pod is gone", async || {
        Ok(play.pods().get_opt("rpc-0").await?.is_none().then_some(()))
    })
    .await?;
    let kept = play.claims().get("kept").await?;
    assert_eq!(kept.metadata.uid, made.metadata.uid);
    assert!(kept.metadata.deletion_timestamp.is_none());
    play.close().await
}

#[tokio::test]
async fn a_volume_of_somebody_else_is_neither_used_nor_deleted() -> Result<()> {
    let play = Play::open("foreign").await?;
    let made = make_claim(&play, "data-rpc").await?;
    play.create("rpc", rpc("seid:v1")).await?;
    play.until("rpc", "it says so", |status| {
        let failed = status.plan.as_ref().and_then(|plan| plan.failed_task_detail.as_ref());
        failed.is_some_and(|one| one.error.contains("not owned by this node"))
    })
    .await?;
    assert!(play.statefulsets().get_opt("rpc").await?.is_none());
    play.nodes().delete("rpc", &DeleteParams::default()).await?;
    play.until_gone("rpc").await?;
    let kept = play.claims().get("data-rpc").await?;
    assert_eq!(kept.metadata.uid, made.metadata.uid);
    assert!(kept.metadata.deletion_timestamp.is_none());
    play.close().await
}
