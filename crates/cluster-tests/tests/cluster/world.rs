//! What scenarios lean on: waiting that explains itself, and a witness that cannot be fooled.

use std::time::Duration;

use anyhow::Result;
use cluster_tests::{shared_lane, wait_for};
use kube::api::{Api, Patch, PatchParams};
use sei_api::SeiNode;
use sei_rig::{Behaviour, World, WorldError};
use serde_json::json;

use crate::by_hand::{Node, runs, uid, unmade};

const SPEC: &str = "{ chainId: demo-1, image: 'seid:v1', fullNode: {} }";

/// Claims an image as an operator would.
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
    wait_for("the stamps are seen", async || {
        let stamps = checker.stamps(node.world.namespace(), "a");
        Ok((stamps.len() == count).then_some(stamps))
    })
    .await
}

#[tokio::test]
async fn a_stamp_that_no_pod_bears_out_is_a_violation() -> Result<()> {
    let node = unmade("lie").await?;
    node.world.create_node("a", SPEC).await?;
    let rule = node.behave(Behaviour::ImageUnpullable);
    node.make().await?;
    node.pod("its pull fails", |pod| pod.status.as_ref().is_some_and(|one| one.pod_ip.is_some()))
        .await?;
    stamp(&node, "seid:v1").await?;
    stamps(&node, 1).await?;
    assert_eq!(node.world.violations().await?.len(), 1);

    // Later it runs; that does not make the first claim true, but a second one.
    node.world.lift(rule);
    let pod = node.held().await?;
    stamp(&node, "seid:v1").await?;
    stamps(&node, 2).await?;
    let lies = node.world.violations().await?;
    assert_eq!(lies.len(), 1, "{lies:?}");
    let witness = stamps(&node, 2).await?.pop().and_then(|stamp| stamp.pod_uid);
    assert_eq!(witness.as_deref(), Some(uid(&pod)));
    Ok(())
}

#[tokio::test]
async fn every_pod_that_there_was_is_counted() -> Result<()> {
    let node = unmade("count").await?;
    node.make().await?;
    let first = node.held().await?;
    node.world.evict("a-0").await?;
    let second =
        node.pod("another runs", |pod| uid(pod) != uid(&first) && runs(pod, "seid")).await?;
    let uids = wait_for("both are seen", async || {
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
async fn a_wait_in_vain_tells_what_there_is_instead() -> Result<()> {
    let world = World::new(shared_lane().await?, "vain").await?.within(Duration::from_millis(300));
    world.create_node("a", SPEC).await?;
    let outcome = world.wait_node("a", "it runs", |node| node.status.is_some()).await;
    let Err(error @ WorldError::Timeout { .. }) = outcome else { panic!("{outcome:?}") };
    let told = error.to_string();
    assert!(told.starts_with("timed out after 0 s waiting until it runs\nspec:\n"), "{told}");
    assert!(told.contains("chainId: demo-1"), "{told}");
    Ok(())
}
