//! Every mode on one chain, and what happens to its pods when something kills or evicts them.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use sei_rig::use_memory_beside;
use serde_json::json;

use crate::chain::{Chain, height, until_height};
use crate::story::{AFTER, BEFORE, Story, WITHIN, until};

/// The height to which the bootstrap Job runs. The chain is above it when the Job starts, so that it
/// is reached within seconds.
const BOOTSTRAP_HEIGHT: u64 = 15;

/// The pods of bootstrap Jobs.
const BOOTSTRAP_PODS: &str = "sei.io/component=bootstrap";

/// Most of the memory that the platform of the stories gives to `seid`.
const MEMORY_BYTES: u64 = 740 << 20;

/// Creates a validator that makes blocks alone, and a node of each other mode.
async fn start(story: &Story) -> Result<Chain> {
    let chain = Chain::create("real-modes", &["val"])?;
    chain.start_validator(story, "val", BEFORE).await?;
    chain.seid("seed", &["init", "seed", "--chain-id", &chain.id])?;
    let key = fs::read_to_string(chain.home("seed").join("config/node_key.json"))?;
    story.create_secret("seed-p2p", "node_key.json", &key).await?;
    let key = json!({ "secret": { "secretName": "seed-p2p" } });
    let snapshot = json!({ "s3": { "targetHeight": BOOTSTRAP_HEIGHT } });
    let mut bootstrap = snapshot.clone();
    bootstrap["bootstrapImage"] = json!(BEFORE);
    for (name, mode) in [
        ("archive", json!({ "archive": {} })),
        // This version of the sidecar lets a seed listen on the loopback address, so that it
        // has no peers and its probe fails.
        (
            "seed",
            json!({ "seed": { "nodeKey": key },
                "overrides": { "network.p2p.listen_address": "tcp://0.0.0.0:26656" } }),
        ),
        ("replayer", json!({ "replayer": { "snapshot": snapshot } })),
    ] {
        chain.start_node(story, name, BEFORE, mode).await?;
    }
    until_height(story, "val", BOOTSTRAP_HEIGHT + 5, WITHIN).await?;
    let mode = json!({ "fullNode": { "snapshot": bootstrap } });
    chain.start_node(story, "full", AFTER, mode).await?;
    Ok(chain)
}

/// Waits until the bootstrap Job has ended, and returns what it printed last.
async fn until_bootstrapped(story: &Story) -> Result<String> {
    let jobs: Api<Job> = Api::namespaced(story.admin.clone(), &story.namespace);
    let mut printed = String::new();
    until("the bootstrap Job of full has ended", WITHIN, async || {
        let pods = story.pods().list(&ListParams::default().labels(BOOTSTRAP_PODS)).await?;
        for pod in pods {
            let now = story.stage.node.log(&story.namespace, &pod.name_any(), "seid");
            if now.len() > printed.len() {
                printed = now;
            }
        }
        let is_removed = jobs.get_opt("full-bootstrap").await?.is_none();
        Ok((is_removed && !printed.is_empty()).then_some(()))
    })
    .await?;
    Ok(printed.lines().last().unwrap_or_default().to_owned())
}

/// Waits until every mode is Ready and follows the chain.
async fn until_all_ready(story: &Story) -> Result<()> {
    for name in ["val", "archive", "seed", "replayer", "full"] {
        story.until_ready(name).await?;
        story.report(format!("{name} is Ready"));
    }
    for name in ["archive", "replayer", "full"] {
        let found = height(story, name).await.context("its RPC answers")?;
        ensure!(found > BOOTSTRAP_HEIGHT, "{name} follows the chain: {found}");
    }
    Ok(())
}

/// Kills `seid` of one node and the sidecar of another, and evicts a third. Each comes back, and
/// nothing else restarts.
async fn disturb(story: &Story) -> Result<()> {
    let (val, archive) = (story.uid("val").await?, story.uid("archive").await?);
    let full = story.uid("full").await?;
    let running = story.seid_processes("archive").await?;
    story.kill("val", "seid").await?;
    story.kill("archive", "seictl").await?;
    story.evict("full").await?;
    story.report("seid of val and the sidecar of archive are killed, and full is evicted");
    until("each container runs again", WITHIN, async || {
        let seid = story.restarts("val", "seid").await?;
        let sidecar = story.restarts("archive", "sei-sidecar").await?;
        let evicted = story.uid("full").await.is_ok_and(|uid| uid != full);
        Ok((seid == 1 && sidecar == 1 && evicted).then_some(()))
    })
    .await?;
    let healthy = "the gates are open again";
    until(healthy, WITHIN, async || {
        for name in ["archive", "full"] {
            let answer = story.ask_sidecar(name, "/v0/healthz", None).await;
            if answer.map_or(true, |(status, _)| status != 200) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await?;
    story.report(healthy);
    for name in ["val", "archive", "full"] {
        story.until_ready(name).await?;
    }
    ensure!(story.uid("val").await? == val, "a killed process is started again in its pod");
    ensure!(story.uid("archive").await? == archive, "a killed sidecar costs no pod");
    let now = story.seid_processes("archive").await?;
    ensure!(now == running, "a killed sidecar costs no restart of seid: {running:?}, {now:?}");
    let reached = height(story, "val").await.context("val runs")?;
    until_height(story, "full", reached, WITHIN).await?;
    story.report("the chain makes blocks, and the evicted node follows it");
    Ok(())
}

/// The kernel kills `seid` of a node that exceeds its memory; it is started again in its pod.
async fn exhaust_memory(story: &Story, name: &str) -> Result<()> {
    let uid = story.uid(name).await?;
    let [process] = story.seid_processes(name).await?[..] else { bail!("{name} has one seid") };
    // Together with what seid has, this is more than the limit.
    use_memory_beside(process, MEMORY_BYTES)?;
    let claim = format!("seid of {name} is reported as OOMKilled");
    until(&claim, WITHIN, async || {
        let pod = story.pod(name).await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let seid = statuses.into_iter().find(|status| status.name == "seid");
        let ended = seid.and_then(|seid| seid.last_state).and_then(|state| state.terminated);
        let ended = ended.map(|ended| (ended.exit_code, ended.reason.unwrap_or_default()));
        Ok((ended == Some((137, "OOMKilled".to_owned()))).then_some(()))
    })
    .await?;
    story.report(claim);
    let reached = height(story, "val").await.context("val runs")?;
    until_height(story, name, reached, WITHIN).await?;
    story.until_ready(name).await?;
    ensure!(story.uid(name).await? == uid, "it is started again in its pod");
    story.report(format!("{name} is Ready again in the same pod"));
    Ok(())
}

#[tokio::test]
async fn every_mode_starts_and_recovers_when_it_is_killed_or_evicted() -> Result<()> {
    let story = Story::open("modes").await?;
    start(&story).await?;
    let last = until_bootstrapped(&story).await?;
    story.report(format!("the bootstrap Job has ended: {last}"));
    until_all_ready(&story).await?;
    disturb(&story).await?;
    exhaust_memory(&story, "replayer").await?;
    story.check_single_processes()
}
