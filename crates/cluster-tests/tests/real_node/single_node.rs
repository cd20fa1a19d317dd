//! One node without peers: its pod from the first start to the end.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::conformance::{
    check_closed_sidecar, check_ended_pod, check_held_pod, check_ready_pod, check_tokens,
};
use kube::api::DeleteParams;
use serde_json::json;

use crate::story::{AFTER, BEFORE, Story, WITHIN, until};

/// The chain of which the sidecar has the genesis built in, so that no bucket is needed.
const CHAIN: &str = "pacific-1";

/// The grace of a pod that sets none.
const GRACE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_node_starts_behind_its_gate_and_ends_in_time() -> Result<()> {
    let mut story = Story::open("single").await?;
    story.volume("rpc").await?;
    story.create("rpc", json!({ "chainId": CHAIN, "image": BEFORE, "fullNode": {} })).await?;
    story.until_ready("rpc").await?;
    story.report("the node is Ready on the real kubelet");
    assert_eq!(story.seid_processes("rpc").await?.len(), 1, "the script became the chain process");

    // The gate holds while no operator opens it.
    story.kill_operator();
    let first = story.uid("rpc").await?;
    story.pods().delete("rpc-0", &DeleteParams::default()).await?;
    let held = "the seid container of the next pod waits";
    until(held, WITHIN, async || {
        let is_next = story.uid("rpc").await.is_ok_and(|uid| uid != first);
        if !is_next {
            return Ok(None);
        }
        let pod = story.pod("rpc").await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let seid = statuses.into_iter().find(|status| status.name == "seid");
        let running = seid.and_then(|status| status.state).and_then(|state| state.running);
        Ok(running.map(drop))
    })
    .await?;
    story.report("an evicted pod was replaced while no operator runs");
    tokio::time::sleep(Duration::from_secs(12)).await;
    assert_eq!(story.seid_processes("rpc").await?, Vec::<u32>::new(), "the gate is closed");
    check_held_pod(&story.pod("rpc").await?)?;
    let token = story.token(Some(story.audience("rpc"))).await?;
    check_closed_sidecar(async |method, path, body| {
        story.call_sidecar("rpc", method, path, body, Some(&token)).await
    })
    .await?;
    story.report("pod and sidecar are like the stand-ins");
    story.start_operator().await?;
    story.until_ready("rpc").await?;
    check_ready_pod(&story.pod("rpc").await?)?;
    story.report("the next operator opened the gate");

    let second = story.uid("rpc").await?;
    story.set_image("rpc", AFTER).await?;
    story.until_ready("rpc").await?;
    story.report("an image change replaced the pod");
    assert_ne!(story.uid("rpc").await?, second);
    let ends = story.ends();
    for uid in [&first, &second] {
        let end = ends.get(uid).context("the end of the pod was seen")?;
        let took = end.took.context("the pod is deleted")?;
        let seid = end.seid.as_ref().context("the end of seid was seen")?;
        story.report(format!(
            "pod {uid} ended in {:.1} s, seid with {}",
            took.as_secs_f64(),
            seid.exit_code
        ));
        assert!(took < GRACE, "{took:?}");
        assert_eq!(seid.exit_code, 0, "{seid:?}");
        check_ended_pod(&end.pod)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_proxy_accepts_only_tokens_for_its_own_node() -> Result<()> {
    let story = Story::open("tokens").await?;
    for name in ["rpc-a", "rpc-b"] {
        story.volume(name).await?;
        story.create(name, json!({ "chainId": CHAIN, "image": BEFORE, "fullNode": {} })).await?;
    }
    for name in ["rpc-a", "rpc-b"] {
        story.until_ready(name).await?;
    }
    let tokens = story.tokens("rpc-a", "rpc-b").await?;
    check_tokens(&story.address("rpc-a").await?, &tokens).await?;
    story.report("the proxy refused every token but that for its own node");
    Ok(())
}
