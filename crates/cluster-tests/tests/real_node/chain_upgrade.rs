//! A chain of four validators that halts at an upgrade height and resumes with the next image.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use kube::ResourceExt as _;
use serde_json::json;

use crate::chain::{Chain, height, rpc, until_height};
use crate::story::{AFTER, BEFORE, Story, WITHIN, until};

const VALIDATORS: [&str; 4] = ["val-a", "val-b", "val-c", "val-d"];

/// How many blocks after the proposal the upgrade is due: its vote lasts 12 s, at 2 to 4 blocks a
/// second.
const BLOCKS_UNTIL_UPGRADE: u64 = 120;

/// Starts four validators through the plans of the operator, and waits for blocks.
async fn start(story: &Story, id: &str) -> Result<Chain> {
    let chain = Chain::create(id, &VALIDATORS)?;
    for name in VALIDATORS {
        chain.start_validator(story, name, BEFORE).await?;
    }
    for name in VALIDATORS {
        story.until_ready(name).await?;
    }
    story.report("four validators are Ready");
    let height = until_height(story, "val-a", 5, WITHIN).await?;
    story.report(format!("the chain makes blocks: height {height}"));
    Ok(chain)
}

/// Proposes an upgrade and votes for it; returns its height.
async fn schedule_upgrade(story: &Story, chain: &Chain) -> Result<u64> {
    let now = height(story, "val-a").await.context("the chain runs")?;
    let upgrade = now + BLOCKS_UNTIL_UPGRADE;
    let upgrade_text = upgrade.to_string();
    let proposal = [
        "gov",
        "submit-proposal",
        "software-upgrade",
        "v9.9.9",
        "--title",
        "next",
        "--description",
        "next",
        "--upgrade-height",
        &upgrade_text,
        "--deposit",
        "20000000usei",
    ];
    chain.send(story, "val-a", &proposal).await?;
    until("the proposal is on the chain", WITHIN, async || {
        let node = format!("tcp://{}:26657", story.address("val-a").await?);
        let query = ["query", "gov", "proposal", "1", "--node", &node, "--output", "json"];
        Ok(chain.seid("val-a", &query).ok())
    })
    .await?;
    for name in VALIDATORS {
        chain.send(story, name, &["gov", "vote", "1", "yes"]).await?;
    }
    story.report(format!("all voted for an upgrade at height {upgrade}"));
    Ok(upgrade)
}

/// State of a validator after the halt.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Halt {
    /// Its process ended at the upgrade height and is started again and again.
    Crashes,
    /// Its process runs one block below the upgrade height.
    Waits,
}

/// Waits until every validator has halted.
async fn until_halted(story: &Story, upgrade: u64) -> Result<BTreeMap<&'static str, Halt>> {
    let mut halts = BTreeMap::new();
    for name in VALIDATORS {
        let claim = format!("{name} halts");
        let halt = until(&claim, WITHIN, async || {
            let printed = story.log(name, "seid");
            if printed.contains(&format!("UPGRADE \"v9.9.9\" NEEDED at height: {upgrade}")) {
                return Ok(Some(Halt::Crashes));
            }
            let crashed =
                VALIDATORS.iter().any(|peer| story.log(peer, "seid").contains("NEEDED at height"));
            let waits = crashed && height(story, name).await == Some(upgrade - 1);
            Ok(waits.then_some(Halt::Waits))
        });
        halts.insert(name, halt.await?);
    }
    Ok(halts)
}

/// No validator signed two blocks of a height: each would be evidence in a later block.
async fn check_signatures(story: &Story, last: u64) -> Result<()> {
    for number in 2..=last {
        let block = rpc(story, "val-a", &format!("/block?height={number}")).await?;
        let evidence = &block["block"]["evidence"]["evidence"];
        ensure!(
            evidence.as_array().is_none_or(Vec::is_empty),
            "block {number} has evidence of two signatures: {evidence}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_chain_crosses_its_upgrade_height() -> Result<()> {
    let story = Story::open("upgrade").await?;
    let chain = start(&story, "real-1").await?;
    let upgrade = schedule_upgrade(&story, &chain).await?;
    let halts = until_halted(&story, upgrade).await?;
    story.report(format!("the chain has halted: {halts:?}"));
    let mut before = BTreeMap::new();
    for name in VALIDATORS {
        before.insert(name, story.uid(name).await?);
        story.set_image(name, AFTER).await?;
    }
    story.report("the image is changed on all");
    let resumed = until_height(&story, "val-a", upgrade + 5, WITHIN).await?;
    story.report(format!("the chain has resumed: height {resumed}"));
    for name in VALIDATORS {
        story.until_ready(name).await?;
        ensure!(
            story.pod(name).await?.uid().as_ref() != before.get(name),
            "{name} has its old pod"
        );
        let version = rpc(&story, name, "/abci_info").await?["response"]["version"].clone();
        ensure!(version == json!("v9.9.9"), "{name} runs {version}");
    }
    story.report("every pod was replaced and is Ready");
    check_signatures(&story, resumed).await?;
    for (uid, end) in story.ends() {
        if let (Some(took), Some(seid)) = (end.took, &end.seid) {
            let took = took.as_secs_f64();
            story.report(format!(
                "{} {uid} ended in {took:.1} s, seid with {}",
                end.node, seid.exit_code
            ));
            ensure!(took < 30.0, "a pod ends within its grace");
        }
    }
    Ok(())
}
