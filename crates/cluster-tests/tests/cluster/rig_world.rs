//! The rig's `World`: waits that report the actual state, and the status checker.

use std::time::Duration;

use anyhow::Result;
use cluster_tests::{shared_lane, wait_for};
use kube::api::{Api, Patch, PatchParams};
use sei_api::SeiNode;
use sei_rig::{Behaviour, World, WorldError};
use serde_json::json;

use crate::unmanaged_node::{Node, empty_node, runs, uid};

const SPEC: &str = "{ chainId: demo-1, image: 'seid:v1', fullNode: {} }";

/// Writes `currentImage` as an operator would.
async fn stamp(node: &Node, image: &str) -> Result<()> {
    let nodes: Api<SeiNode> = node.world.api();
    for image in [json!(null), json!(image)] {
        let patch = Patch::Merge(json!({ "status": { "currentImage": image } }));
        nodes.patch_status("a", &PatchParams::default(), &patch).await?;
    }
    Ok(())
}

async fn stamps(node: &Node, count: usize) -> Result<Vec<sei_rig::Stamp>> {
    let checker = node.world.lane().checker();
    wait_for("the stamps are recorded", async || {
        let stamps = checker.stamps(node.world.namespace(), "a");
        Ok((stamps.len() == count).then_some(stamps))
    })
    .await
}

#[tokio::test]
async fn a_current_image_that_no_pod_ran_is_a_violation() -> Result<()> {
    let node = empty_node("false-stamp").await?;
    node.world.create_node("a", SPEC).await?;
    let rule = node.behave(Behaviour::ImageUnpullable);
    node.create().await?;
    node.pod("its pull fails", |pod| {
        pod.status.as_ref().is_some_and(|status| status.pod_ip.is_some())
    })
    .await?;
    stamp(&node, "seid:v1").await?;
    stamps(&node, 1).await?;
    assert_eq!(node.world.violations().await?.len(), 1);

    // Later the pod runs the image. The first stamp stays a violation, a second stamp is correct.
    node.world.lift(rule);
    let pod = node.until_running().await?;
    stamp(&node, "seid:v1").await?;
    stamps(&node, 2).await?;
    let violations = node.world.violations().await?;
    assert_eq!(violations.len(), 1, "{violations:?}");
    let witness = stamps(&node, 2).await?.pop().and_then(|stamp| stamp.pod_uid);
    assert_eq!(witness.as_deref(), Some(uid(&pod)));
    Ok(())
}

#[tokio::test]
async fn every_pod_of_a_node_is_counted() -> Result<()> {
    let node = empty_node("count").await?;
    node.create().await?;
    let first = node.until_running().await?;
    node.world.evict("a-0").await?;
    let second =
        node.pod("another pod runs", |pod| uid(pod) != uid(&first) && runs(pod, "seid")).await?;
    let uids = wait_for("both are recorded", async || {
        let uids = node.world.pod_uids_seen("a").await?;
        Ok((uids.len() == 2).then_some(uids))
    })
    .await?;
    assert_eq!(uids, [uid(&first), uid(&second)]);
    let deleted = node.world.lane().checker().deleted_pod_uids(node.world.namespace(), "a");
    assert_eq!(deleted, [uid(&first)]);
    Ok(())
}

#[tokio::test]
async fn a_wait_that_times_out_reports_the_actual_state() -> Result<()> {
    let world =
        World::new(shared_lane().await?, "timeout").await?.within(Duration::from_millis(300));
    world.create_node("a", SPEC).await?;
    let outcome = world.wait_node("a", "it runs", |node| node.status.is_some()).await;
    let Err(error @ WorldError::Timeout { .. }) = outcome else { panic!("{outcome:?}") };
    let message = error.to_string();
    assert!(message.starts_with("timed out after 0 s waiting until it runs\nspec:\n"), "{message}");
    assert!(message.contains("chainId: demo-1"), "{message}");
    Ok(())
}
