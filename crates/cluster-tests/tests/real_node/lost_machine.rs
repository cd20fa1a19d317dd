//! A machine that is lost under a validator: its kubelet reports nothing while its containers run on.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::chain::{Chain, height, until_height};
use crate::story::{BEFORE, Story, WITHIN, until};

/// How long the pods are observed for a second signer. The StatefulSet controller creates a pod within a second.
const OBSERVED: Duration = Duration::from_secs(15);

#[tokio::test]
async fn a_validator_on_a_lost_machine_is_not_started_twice() -> Result<()> {
    let story = Story::open_alone("lost").await?;
    let chain = Chain::create("real-lost", &["val"])?;
    chain.start_validator(&story, "val", BEFORE).await?;
    story.until_ready("val").await?;
    let uid = story.uid("val").await?;
    let running = story.seid_processes("val").await?;
    story.stage.node.stop_kubelet();
    story.edit("val", json!({ "spec": { "podLabels": { "team": "two" } } })).await?;
    until("the operator has deleted the pod", WITHIN, async || {
        Ok(story.pod("val").await?.metadata.deletion_timestamp)
    })
    .await?;
    story.report("the kubelet is stopped, and the operator has deleted the pod");
    let before = height(&story, "val").await.context("the process on the lost machine runs")?;
    tokio::time::sleep(OBSERVED).await;
    ensure!(story.uid("val").await? == uid, "no second pod is created");
    let now = story.seid_processes("val").await?;
    ensure!(now == running, "the process signs on: {running:?}, {now:?}");
    until_height(&story, "val", before + 1, WITHIN).await?;
    let status = story.status("val").await?;
    ensure!(status.plan.is_some(), "the operator waits for the end of the pod");
    story.stage.node.start_kubelet().await?;
    story.report("the kubelet runs again");
    until("the pod is replaced", WITHIN, async || {
        Ok(story.uid("val").await.is_ok_and(|now| now != uid).then_some(()))
    })
    .await?;
    story.until_ready("val").await?;
    story.report("the pod is replaced and Ready");
    story.check_single_processes()
}
