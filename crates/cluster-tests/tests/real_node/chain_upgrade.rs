//! A chain of four validators that halts at an upgrade height and resumes with the next image, and one
//! whose validators are rolled and disturbed while it makes blocks.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::condition_text;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodeStatus;
use serde_json::json;

use crate::chain::{Chain, height, query, rpc, rpc_client, until_height};
use crate::story::{AFTER, BEFORE, MISSING, Story, WITHIN, until};

const VALIDATORS: [&str; 4] = ["val-a", "val-b", "val-c", "val-d"];
const RPC_NODES: [&str; 2] = ["rpc-a", "rpc-b"];

/// How many blocks after the proposal the upgrade is due: its vote lasts 12 s, at 2 to 4 blocks a
/// second.
const BLOCKS_UNTIL_UPGRADE: u64 = 80;

/// The same if an image is changed too early and reverted before the height.
const BLOCKS_WITH_REVERT: u64 = 250;

/// Starts four validators and these RPC nodes through the plans of the operator, and waits for blocks.
async fn start(story: &Story, id: &str, rpc_nodes: &[&str]) -> Result<Chain> {
    let chain = Chain::create(id, &VALIDATORS)?;
    for name in VALIDATORS {
        chain.start_validator(story, name, BEFORE).await?;
    }
    for name in rpc_nodes {
        chain.start_node(story, name, BEFORE, json!({ "fullNode": {} })).await?;
    }
    for name in VALIDATORS.iter().chain(rpc_nodes) {
        story.until_ready(name).await?;
    }
    story.report(format!("four validators and {} RPC nodes are Ready", rpc_nodes.len()));
    // A node without a block refuses every transaction.
    for name in VALIDATORS {
        let height = until_height(story, name, 5, WITHIN).await?;
        story.report(format!("the chain makes blocks: {name} is at {height}"));
    }
    Ok(chain)
}

/// Proposes an upgrade in so many blocks and votes for it; returns its height.
async fn schedule_upgrade(story: &Story, chain: &Chain, blocks: u64) -> Result<u64> {
    let now = height(story, "val-a").await.context("the chain runs")?;
    let upgrade = now + blocks;
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

/// No validator signed two blocks of a height: each would be evidence in a later block. And no two
/// pods of a node ran at once.
async fn check_signatures(story: &Story, last: u64) -> Result<()> {
    let client = rpc_client(story, "val-a").await?;
    for number in 2..=last {
        let block = query(&client, &format!("/block?height={number}")).await?;
        let evidence = &block["block"]["evidence"]["evidence"];
        ensure!(
            evidence.as_array().is_none_or(Vec::is_empty),
            "block {number} has evidence of two signatures: {evidence}"
        );
    }
    story.check_single_processes()?;
    story
        .report(format!("no validator signed a height twice: blocks 2 to {last} have no evidence"));
    Ok(())
}

/// Every pod that was deleted ended within its grace. Returns the exit codes of `seid`, by node.
fn check_ends(story: &Story) -> Result<BTreeMap<String, Vec<i32>>> {
    let mut codes: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    for end in story.ends().into_values() {
        if let (Some(took), Some(seid)) = (end.took, &end.seid) {
            let took = took.as_secs_f64();
            story.report(format!(
                "{}: a pod ended in {took:.1} s, seid with {}; {}",
                end.node, seid.exit_code, end.last
            ));
            ensure!(took < 30.0, "a pod ends within its grace");
            codes.entry(end.node).or_default().push(seid.exit_code);
        }
    }
    Ok(codes)
}

async fn uids(story: &Story, names: &[&'static str]) -> Result<BTreeMap<&'static str, String>> {
    let mut uids = BTreeMap::new();
    for name in names {
        uids.insert(*name, story.uid(name).await?);
    }
    Ok(uids)
}

/// These nodes have another pod than before, which is Ready and runs the version after the upgrade.
async fn check_upgraded(story: &Story, before: &BTreeMap<&'static str, String>) -> Result<()> {
    for (name, uid) in before {
        story.until_ready(name).await?;
        ensure!(&story.uid(name).await? != uid, "{name} has its old pod");
        let version = rpc(story, name, "/abci_info").await?["response"]["version"].clone();
        ensure!(version == json!("v9.9.9"), "{name} runs {version}");
    }
    story.report("every pod was replaced and is Ready");
    Ok(())
}

/// Kills the operator as soon as the first of these pods is replaced, and starts the next one.
async fn restart_operator_among_replacements(
    story: &mut Story,
    before: &BTreeMap<&'static str, String>,
) -> Result<()> {
    until("the first pod is replaced", WITHIN, async || {
        for (name, uid) in before {
            let pod = story.pods().get_opt(&format!("{name}-0")).await?;
            if pod.and_then(|pod| pod.metadata.uid).as_ref() != Some(uid) {
                return Ok(Some(()));
            }
        }
        Ok(None)
    })
    .await?;
    story.kill_operator();
    story.report("the operator is killed while pods are replaced, and started again");
    story.start_operator().await
}

/// The operator is killed once, while it replaces pods.
#[tokio::test]
async fn a_chain_crosses_its_upgrade_height() -> Result<()> {
    let mut story = Story::open("upgrade").await?;
    let chain = start(&story, "real-1", &RPC_NODES).await?;
    let upgrade = schedule_upgrade(&story, &chain, BLOCKS_UNTIL_UPGRADE).await?;
    let halts = until_halted(&story, upgrade).await?;
    story.report(format!("the chain has halted: {halts:?}"));
    let all = [&VALIDATORS[..], &RPC_NODES].concat();
    let before = uids(&story, &all).await?;
    for name in &all {
        story.set_image(name, AFTER).await?;
    }
    story.report("the image is changed on all");
    restart_operator_among_replacements(&mut story, &before).await?;
    let resumed = until_height(&story, "val-a", upgrade + 5, WITHIN).await?;
    story.report(format!("the chain has resumed: height {resumed}"));
    check_upgraded(&story, &before).await?;
    check_signatures(&story, resumed).await?;
    check_ends(&story).map(drop)
}

/// An image that is changed before the height, one that does not exist, and an operator that is killed
/// while pods are replaced.
#[tokio::test]
async fn mistakes_and_a_killed_operator_do_not_stop_an_upgrade() -> Result<()> {
    let mut story = Story::open("mistakes").await?;
    let chain = start(&story, "real-2", &[]).await?;
    let upgrade = schedule_upgrade(&story, &chain, BLOCKS_WITH_REVERT).await?;
    until("the upgrade is scheduled", WITHIN, async || {
        let node = format!("tcp://{}:26657", story.address("val-a").await?);
        let plan = ["query", "upgrade", "plan", "--node", &node, "--output", "json"];
        Ok(chain.seid("val-a", &plan).ok().filter(|plan| plan.contains("v9.9.9")))
    })
    .await?;
    story.set_image("val-d", AFTER).await?;
    until("val-d refuses to run before the height", WITHIN, async || {
        let refuses = story.log("val-d", "seid").contains("BINARY UPDATED BEFORE TRIGGER");
        Ok(refuses.then_some(()))
    })
    .await?;
    story.set_image("val-d", BEFORE).await?;
    story.report("val-d refused the image before the height, and it is reverted");
    story
        .until_status("val-d", "runs its old image again", |status| {
            status.current_image.as_deref() == Some(BEFORE) && status.plan.is_none()
        })
        .await?;
    let halts = until_halted(&story, upgrade).await?;
    story.report(format!("the chain has halted: {halts:?}"));

    let before = uids(&story, &VALIDATORS).await?;
    story.set_image("val-d", MISSING).await?;
    for name in ["val-a", "val-b", "val-c"] {
        story.set_image(name, AFTER).await?;
    }
    restart_operator_among_replacements(&mut story, &before).await?;
    let resumed = until_height(&story, "val-a", upgrade + 5, WITHIN).await?;
    story.report(format!("the chain has resumed without val-d: height {resumed}"));
    let stalled = |status: &SeiNodeStatus| condition_text(status, ConditionType::Stalled);
    story
        .until_status("val-d", "its image is reported as missing", |status| {
            let text = stalled(status);
            text.contains("ImageNotPullable") || text.contains("ImagePullFailed")
        })
        .await?;
    story.set_image("val-d", AFTER).await?;
    story.report("the image of val-d is reported as missing, and corrected");
    check_upgraded(&story, &before).await?;
    let last = height(&story, "val-d").await.context("val-d runs")?;
    check_signatures(&story, last).await?;
    check_ends(&story).map(drop)
}

/// A changed label rolls validators in turn, each ends by SIGTERM, and blocks continue.
#[tokio::test]
async fn a_changed_label_rolls_one_validator_at_a_time_while_blocks_continue() -> Result<()> {
    const ROLLED: [&str; 2] = ["val-b", "val-c"];
    let story = Story::open("label").await?;
    start(&story, "real-3", &[]).await?;
    let before = uids(&story, &ROLLED).await?;
    let first = height(&story, "val-a").await.context("val-a runs")?;
    for name in ROLLED {
        story.edit(name, json!({ "spec": { "podLabels": { "team": "two" } } })).await?;
    }
    let mut order: Vec<&str> = Vec::new();
    until("both are rolled", WITHIN, async || {
        let mut down = Vec::new();
        let mut is_done = true;
        for name in VALIDATORS {
            if !story.is_pod_ready(name).await? {
                down.push(name);
            }
        }
        ensure!(down.len() <= 1, "more than one validator is down: {down:?}");
        order.extend(down.first().filter(|name| order.last() != Some(name)));
        for (name, uid) in &before {
            is_done &= down.is_empty() && &story.uid(name).await? != uid;
        }
        Ok(is_done.then_some(()))
    })
    .await?;
    let last = height(&story, "val-a").await.context("val-a runs")?;
    story.report(format!("rolled in turn: {order:?}; heights {first} to {last}"));
    order.sort_unstable();
    ensure!(order == ROLLED, "each was down once: {order:?}");
    ensure!(last > first + 50, "blocks continued: {first} to {last}");
    check_signatures(&story, last).await?;
    let codes = check_ends(&story)?;
    for name in ROLLED {
        ensure!(codes.get(name) == Some(&vec![0]), "{name} ended by SIGTERM with 0: {codes:?}");
    }
    Ok(())
}
