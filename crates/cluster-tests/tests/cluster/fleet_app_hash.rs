//! Rollouts of fleets whose canaries are compared with the chain.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use sei_api::SeiNodeDeploymentStatus;
use sei_api::fleet::AppHashResult;
use sei_rig::{Behaviour, RpcFault};
use serde_json::{Value, json};

use super::fleets::{condition, create, edit, image, manifest, until, until_ready};

fn compared(deadline: u32) -> Value {
    json!({
        "maxUnavailable": 2, "progressDeadlineSeconds": deadline,
        "health": { "requireSameAppHash": true },
    })
}

fn message(status: &SeiNodeDeploymentStatus, node: &str) -> String {
    let node = status.nodes.iter().find(|found| found.name == node);
    node.and_then(|node| node.message.clone()).unwrap_or_default()
}

fn is_halted(status: &SeiNodeDeploymentStatus) -> bool {
    condition(status, "RolloutInProgress").starts_with("True/RolloutHalted")
}

/// The paths that the operator read from the RPC of a node, beside its own probe.
fn reads(scenario: &Scenario, node: &str) -> Vec<String> {
    let received = scenario.sidecars().received(scenario.namespace(), node);
    let paths = received.iter().filter_map(|call| {
        assert!(!call.request.contains(":26657") || call.token.is_none(), "{call:?}");
        call.request.strip_prefix("GET :26657").map(str::to_owned)
    });
    paths.filter(|path| path != "/status" && path != "/net_info").collect()
}

#[tokio::test]
async fn a_canary_that_diverges_halts_the_rollout_before_a_second_node() -> Result<()> {
    let mut scenario = Scenario::open("fleet-diverges").await?;
    create(&scenario, manifest(4, &compared(600))).await?;
    until_ready(&scenario, 4).await?;
    scenario.set_image_behaviour("seid:bad", Behaviour::Rpc(RpcFault::Diverges));
    edit(&scenario, image("seid:bad")).await?;
    let halted = until(&scenario, "the rollout is halted", is_halted).await?;
    let why = condition(&halted, "RolloutInProgress");
    assert!(why.contains("halted by edge-0: it diverges from the chain: its app hash"), "{why}");
    let reported = async || {
        let events = scenario.events("edge").await?;
        Ok(events.iter().any(|event| event.starts_with("RolloutHalted")).then_some(()))
    };
    wait_for("an event reports it", reported).await?;
    // A new operator finds what the first has compared.
    scenario.start_operator(10).await?;
    for node in ["edge-1", "edge-2", "edge-3"] {
        assert_eq!(scenario.node(node).await?.spec.image, "seid:v1", "{node} is not touched");
        assert!(!reads(&scenario, node).contains(&"/abci_info".to_owned()));
    }
    edit(&scenario, image("seid:v2")).await?;
    until_ready(&scenario, 4).await?;
    for node in ["edge-1", "edge-2", "edge-3"] {
        assert_eq!(scenario.node(node).await?.spec.image, "seid:v2");
        assert_eq!(scenario.pods_seen(node).await?, 2, "{node} was replaced once");
    }
    scenario.close().await
}

#[tokio::test]
async fn others_follow_a_canary_that_computes_the_app_hash_of_the_chain() -> Result<()> {
    let scenario = Scenario::open("fleet-same-hash").await?;
    create(&scenario, manifest(3, &compared(600))).await?;
    until_ready(&scenario, 3).await?;
    for node in ["edge-0", "edge-1", "edge-2"] {
        assert_eq!(reads(&scenario, node), [""; 0], "nothing is read without a rollout");
    }
    // The nodes that it is compared with are silent at first, then have pruned the block.
    let mut rules: Vec<_> = ["edge-1", "edge-2"]
        .map(|node| scenario.set_node_behaviour(node, Behaviour::Rpc(RpcFault::Hangs)))
        .into();
    edit(&scenario, image("seid:v2")).await?;
    let without = "its app hash cannot be compared with a node without the template:";
    for (why, fault) in
        [("the RPC does not respond", Some(RpcFault::Pruned)), ("it has pruned the block", None)]
    {
        let waits = |status: &SeiNodeDeploymentStatus| {
            message(status, "edge-0") == format!("{without} {why}")
        };
        let status = until(&scenario, why, waits).await?;
        assert_eq!(status.updated_replicas, Some(1));
        let nodes = ["edge-1", "edge-2"].into_iter().zip(fault.into_iter().cycle());
        let set = |(node, fault)| scenario.set_node_behaviour(node, Behaviour::Rpc(fault));
        // Set before the others are lifted: a short time without a fault is enough to compare.
        for rule in std::mem::replace(&mut rules, nodes.map(set).collect()) {
            scenario.lift(rule);
        }
    }
    let compared = until(&scenario, "the canary is compared", |status| {
        status.rollout.as_ref().is_some_and(|rollout| {
            rollout.app_hashes.iter().any(|it| it.result == Some(AppHashResult::Equal))
        })
    })
    .await?;
    let rollout = compared.rollout.context("a rollout")?;
    let record = &rollout.app_hashes[0];
    assert_eq!(record.node, "edge-0");
    assert!(record.height > record.first_height, "{record:?}");
    until_ready(&scenario, 3).await?;
    assert_eq!(reads(&scenario, "edge-0").iter().filter(|path| *path == "/commit").count(), 0);
    scenario.close().await
}

#[tokio::test]
async fn a_canary_that_cannot_be_read_fails_at_the_deadline() -> Result<()> {
    let scenario = Scenario::open("fleet-unread").await?;
    create(&scenario, manifest(3, &compared(8))).await?;
    until_ready(&scenario, 3).await?;
    let rule = scenario.set_image_behaviour("seid:v2", Behaviour::Rpc(RpcFault::OtherNetwork));
    edit(&scenario, image("seid:v2")).await?;
    let halted = until(&scenario, "the rollout is halted", is_halted).await?;
    let why = condition(&halted, "RolloutInProgress");
    let expected =
        "edge-0: not healthy in time: its app hash cannot be read: the RPC belongs to network";
    assert!(why.contains(expected), "{why}");
    assert_eq!(scenario.node("edge-1").await?.spec.image, "seid:v1");
    scenario.lift(rule);
    until_ready(&scenario, 3).await?;
    scenario.close().await
}

/// Form one and form two of a halt: nodes that are not Ready, and nodes that stay Ready before the
/// height. Nothing can be compared, and the chain needs them all.
#[tokio::test]
async fn a_halted_chain_gets_its_upgrade_past_the_comparison() -> Result<()> {
    let scenario = Scenario::open_at_speed("fleet-halted", 50).await?;
    create(&scenario, manifest(4, &compared(600))).await?;
    until_ready(&scenario, 4).await?;
    for node in ["edge-0", "edge-1"] {
        let panic = "panic: UPGRADE \"v2\" NEEDED at height: 656: ".to_owned();
        scenario.kubelet().behave(
            scenario.namespace(),
            sei_rig::Rule::new(Behaviour::Panics(panic)).of_node(node).of_image("seid:v1"),
        );
    }
    scenario.set_image_behaviour("seid:v1", Behaviour::Rpc(RpcFault::NoBlocks));
    for node in ["edge-0", "edge-1", "edge-2", "edge-3"] {
        let halted = scenario.until(node, "it is halted", |status| {
            let halted = sei_api::condition::ConditionType::Halted;
            cluster_tests::scenario::condition_text(status, halted).starts_with("True")
        });
        halted.await?;
    }
    edit(&scenario, image("seid:v2")).await?;
    let complete = until(&scenario, "the upgrade is on every node", |status| {
        condition(status, "RolloutInProgress").starts_with("False/RolloutComplete")
    })
    .await?;
    let message = condition(&complete, "RolloutInProgress");
    assert!(message.contains("app hashes were not compared"), "{message}");
    until_ready(&scenario, 4).await?;
    scenario.close().await
}
