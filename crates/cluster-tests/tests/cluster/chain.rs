//! What is shown of the chains of nodes: heights in metrics, halts in status, and nothing of a
//! hostile RPC.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::{Scenario, condition_text, format_requests, rpc};
use cluster_tests::wait_for;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodeStatus;
use sei_plan::summary::{What, summarize};
use sei_rig::{Behaviour, RpcFault};

use crate::alerts::Scraped;
use crate::recording::{ALERTS, Fires, Recording, Scrape, file, of_node};

/// Longer than the `for` of any alert about chains.
const MINUTES: usize = 90;

/// The labels of a node of the scenario's chain.
fn labels(scraped: &Scraped, name: &str) -> String {
    let namespace = scraped.namespace();
    format!("namespace=\"{namespace}\",name=\"{name}\",chain=\"demo-1\",role=\"node\"")
}

/// The value of a gauge of this node, if it is scraped.
fn value(scraped: &Scraped, text: &str, gauge: &str, name: &str) -> Option<f64> {
    let series = format!("sei_controller_seinode_{gauge}{{{}}} ", labels(scraped, name));
    text.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

/// Waits until the gauges of a node are as desired.
async fn until_gauges(
    scraped: &Scraped,
    name: &str,
    claim: &str,
    holds: impl Fn(&dyn Fn(&str) -> Option<f64>) -> bool,
) -> Result<Scrape> {
    scraped.until_text(claim, |text| holds(&|gauge| value(scraped, text, gauge, name))).await
}

/// Waits until the RPC of a node had this outcome.
async fn until_outcome(scraped: &Scraped, name: &str, outcome: &str) -> Result<Scrape> {
    let series = format!("{},outcome=\"{outcome}\"", labels(scraped, name));
    let series = format!("sei_controller_seinode_rpc_probe{{{series}}} 1");
    scraped.until_text(&series, |text| text.lines().any(|line| line == series)).await
}

/// Waits until a condition begins like this.
async fn until_condition(
    scenario: &Scenario,
    name: &str,
    kind: ConditionType,
    desired: &str,
) -> Result<SeiNodeStatus> {
    let claim = format!("{kind} is {desired}");
    scenario.until(name, &claim, |status| condition_text(status, kind).starts_with(desired)).await
}

#[tokio::test]
async fn the_facts_of_a_chain_are_gauges_and_disappear_with_the_node() -> Result<()> {
    let scraped = Scraped::open("chain-facts").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let first = until_gauges(&scraped, "rpc", "a height", |gauge| {
        gauge("height").is_some_and(|height| height > 1_000_000.0)
            && gauge("peers") == Some(3.0)
            && gauge("catching_up") == Some(0.0)
            && gauge("last_block_timestamp_seconds").is_some()
    })
    .await?;
    let height = |scrape: &Scrape| {
        scrape
            .iter()
            .find(|(series, _)| series.starts_with("sei_controller_seinode_height"))
            .map(|(_, value)| *value)
    };
    let first = height(&first).context("no height")?;
    until_gauges(&scraped, "rpc", "the height grows", |gauge| {
        gauge("height").is_some_and(|height| height > first)
    })
    .await?;
    let rule = scenario.set_node_behaviour("rpc", Behaviour::Rpc(RpcFault::CatchesUp));
    until_gauges(&scraped, "rpc", "it catches up", |gauge| gauge("catching_up") == Some(1.0))
        .await?;
    scenario.lift(rule);
    scenario.set_node_behaviour("rpc", Behaviour::Rpc(RpcFault::NoPeers));
    until_gauges(&scraped, "rpc", "it has no peers", |gauge| gauge("peers") == Some(0.0)).await?;
    scenario.edit("rpc", serde_json::json!({ "spec": { "paused": true } })).await?;
    until_gauges(&scraped, "rpc", "a stopped node has no height", |gauge| {
        gauge("height").is_none() && gauge("peers").is_none()
    })
    .await?;
    scenario.nodes().delete("rpc", &kube::api::DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    let name = labels(&scraped, "rpc");
    scraped.until_text("no series of a deleted node", |text| !text.contains(&name)).await?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn heights_that_move_cost_no_request() -> Result<()> {
    let scraped = Scraped::open("chain-quiet").await?;
    let scenario = &scraped.scenario;
    for name in ["a", "b"] {
        scenario.run(name, rpc("seid:v1")).await?;
        until_gauges(&scraped, name, "a height", |gauge| gauge("height").is_some()).await?;
    }
    let mut requests = scenario.requests();
    wait_for("no request for a second", async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        Ok(requests.read_new()?.is_empty().then_some(()))
    })
    .await?;
    let rpc_reads = || {
        let received = scenario.sidecars().received(scenario.namespace(), "a");
        received.iter().filter(|call| call.request.ends_with(":26657/status")).count()
    };
    let before = rpc_reads();
    wait_for("ten more probes", async || {
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok((rpc_reads() >= before + 10).then_some(()))
    })
    .await?;
    let made = requests.read_new()?;
    ensure!(made.is_empty(), "{}", format_requests(&made));
    scraped.scenario.close().await
}

/// Form one: validators that keep running before the height. They stay Ready.
#[tokio::test]
async fn a_chain_without_new_blocks_is_shown_and_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("chain-halted").await?;
    let scenario = &scraped.scenario;
    for name in ["a", "b"] {
        scenario.run(name, rpc("seid:v1")).await?;
        until_gauges(&scraped, name, "a height", |gauge| gauge("height").is_some()).await?;
    }
    let halted = scenario.set_image_behaviour("seid:v1", Behaviour::Rpc(RpcFault::NoBlocks));
    for name in ["a", "b"] {
        let no_block = "True/NoNewBlock: no new block since 20";
        let status = until_condition(scenario, name, ConditionType::Halted, no_block).await?;
        let ready = condition_text(&status, ConditionType::Ready);
        assert!(ready.starts_with("True/NoNewBlock"), "{ready}");
        let node = scenario.node(name).await?;
        let summary = summarize(&node, jiff::Timestamp::now());
        assert!(matches!(summary.what, What::Halted { .. }), "{summary:?}");
        assert!(summary.why.starts_with("NoNewBlock: no new block since"), "{summary:?}");
    }
    let version = scenario.node("a").await?.metadata.resource_version;
    let series = format!("{},reason=\"NoNewBlock\"", labels(&scraped, "a"));
    let series = format!("sei_controller_seinode_halted{{{series}}} 1");
    let is_scraped = |text: &str| text.lines().any(|line| line == series);
    let during = scraped.until_text(&series, is_scraped).await?;
    let gauge = |scrape: &Scrape, gauge: &str| {
        let mut all = scrape.iter().filter(|(series, _)| series.contains(gauge));
        all.next().map(|(_, value)| *value)
    };
    let block = gauge(&during, "last_block_timestamp_seconds").context("no block time")?;
    assert_eq!(
        scenario.node("a").await?.metadata.resource_version,
        version,
        "one write for a halt"
    );
    scenario.lift(halted);
    for name in ["a", "b"] {
        let status =
            until_condition(scenario, name, ConditionType::Halted, "False/BlocksAdvance").await?;
        assert_eq!(condition_text(&status, ConditionType::Ready), "True/Ready: ");
    }
    #[allow(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    let block = jiff::Timestamp::from_second(block as i64)?;
    let mut recording = Recording::default();
    recording.begin(block);
    // The same minute of the same block, then four without another.
    let fresh = recording.hold(during.clone(), 2);
    let old = recording.hold(during, 4);
    let fires = Fires {
        alert: "SeiChainHalted",
        labels: vec![("chain", "demo-1".to_owned())],
        value: String::new(),
    };
    let at = [(fresh, Vec::new()), (old, vec![fires])];
    recording.check_alerts(&[file(ALERTS)], &at)?;
    scraped.scenario.close().await
}

/// Form two: the process ends at the height, again and again.
#[tokio::test]
async fn a_process_that_ends_at_an_upgrade_height_is_shown_and_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("chain-upgrade").await?;
    let scenario = &scraped.scenario;
    for name in ["verbose", "silent"] {
        scenario.run(name, rpc("seid:v1")).await?;
    }
    let message = "panic: UPGRADE \"v9.9.9\" NEEDED at height: 656: \n\ngoroutine 1 [running]:\n";
    scenario.set_node_behaviour("verbose", Behaviour::Panics(message.to_owned()));
    scenario.set_node_behaviour("silent", Behaviour::Panics(String::new()));
    let needed = "True/UpgradeNeeded: upgrade v9.9.9 is needed at height 656";
    until_condition(scenario, "verbose", ConditionType::Halted, needed).await?;
    let summary = summarize(&scenario.node("verbose").await?, jiff::Timestamp::now());
    assert!(summary.why.starts_with("UpgradeNeeded: upgrade v9.9.9"), "{summary:?}");
    // Without that message the exit code is all that is known.
    let status = scenario.until_stalled("silent", "CrashLooping").await?;
    let stalled = condition_text(&status, ConditionType::Stalled);
    assert!(stalled.contains("exit code 2"), "{stalled}");
    assert_eq!(condition_text(&status, ConditionType::Halted), "absent");
    scenario.until_stalled("verbose", "CrashLooping").await?;
    let series = "seinode_halted{NS,name=\"verbose\",chain=\"demo-1\",role=\"node\",reason=\"UpgradeNeeded\"} 1";
    let stalled = ["verbose", "silent"]
        .map(|name| format!("seinode_stalled{{NS,name=\"{name}\",reason=\"CrashLooping\"}} 1"));
    let during = scraped.until(&[series, &stalled[0], &stalled[1]]).await?;
    let mut recording = Recording::default();
    let minute = recording.hold(during, 20);
    let of_chain = Fires {
        alert: "SeiChainHalted",
        labels: vec![("chain", "demo-1".to_owned())],
        value: String::new(),
    };
    let stalled = |name| {
        let mut fires = of_node("SeiNodeStalled", scraped.namespace(), name, "1");
        fires.labels.push(("reason", "CrashLooping".to_owned()));
        fires
    };
    let fires = vec![of_chain, stalled("verbose"), stalled("silent")];
    recording.check_alerts(&[file(ALERTS)], &[(minute, fires)])?;
    // The image of the upgrade ends the halt.
    scenario.kubelet().lift_all(scenario.namespace());
    scenario.set_image("verbose", "seid:v2").await?;
    scenario.settled("verbose").await?;
    until_condition(scenario, "verbose", ConditionType::Halted, "False/BlocksAdvance").await?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_node_without_peers_and_a_node_behind_fire_alerts() -> Result<()> {
    let scraped = Scraped::open("chain-behind").await?;
    let scenario = &scraped.scenario;
    for name in ["good", "alone", "behind"] {
        scenario.run(name, rpc("seid:v1")).await?;
        until_gauges(&scraped, name, "a height", |gauge| gauge("height").is_some()).await?;
    }
    let alone = [RpcFault::NoPeers, RpcFault::NoBlocks];
    for fault in alone {
        scenario.set_node_behaviour("alone", Behaviour::Rpc(fault));
    }
    scenario.set_node_behaviour("behind", Behaviour::Rpc(RpcFault::CatchesUp));
    until_gauges(&scraped, "alone", "it has no peers", |gauge| gauge("peers") == Some(0.0)).await?;
    let mut during = until_gauges(&scraped, "behind", "it catches up", |gauge| {
        gauge("catching_up") == Some(1.0)
    })
    .await?;
    // Ten minutes later by the clock of the chain: the good node has new blocks, and alone has none.
    for (series, value) in &mut during {
        if series.contains("last_block") && !series.contains("name=\"alone\"") {
            *value += 1e9;
        }
    }
    let block = during
        .iter()
        .find(|(series, _)| series.contains("last_block") && series.contains("name=\"alone\""));
    let block = *block.context("no block time")?.1;
    #[allow(clippy::cast_possible_truncation, reason = "seconds since 1970")]
    let block = jiff::Timestamp::from_second(block as i64)?;
    let mut recording = Recording::default();
    recording.begin(block);
    let minute = recording.hold(during, MINUTES);
    let of = |alert, name| {
        let mut fires = of_node(alert, scraped.namespace(), name, "1");
        fires.labels.push(("chain", "demo-1".to_owned()));
        fires
    };
    let fires = vec![
        of("SeiNodeWithoutPeers", "alone"),
        of("SeiNodeBehind", "alone"),
        of("SeiNodeBehind", "behind"),
    ];
    recording.check_alerts(&[file(ALERTS)], &[(5, Vec::new()), (minute, fires)])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_hostile_rpc_does_no_harm() -> Result<()> {
    let scraped = Scraped::open("chain-hostile").await?;
    let scenario = &scraped.scenario;
    scenario.run("good", rpc("seid:v1")).await?;
    scenario.run("bad", rpc("seid:v1")).await?;
    let namespace = scraped.namespace().to_owned();
    for (fault, outcome) in [
        (RpcFault::OtherNetwork, "other_network"),
        (RpcFault::Garbage, "unreadable"),
        (RpcFault::Huge, "unreachable"),
        (RpcFault::Hangs, "unreachable"),
    ] {
        let rule = scenario.set_node_behaviour("bad", Behaviour::Rpc(fault));
        until_outcome(&scraped, "bad", outcome).await?;
        let text = format!("{fault:?}: the good node is read");
        until_gauges(&scraped, "good", &text, |gauge| gauge("height").is_some()).await?;
        until_gauges(&scraped, "bad", "it has no facts", |gauge| {
            gauge("height").is_none() && gauge("peers").is_none()
        })
        .await?;
        scenario.lift(rule);
        until_outcome(&scraped, "bad", "answered").await?;
    }
    let rule = scenario.set_node_behaviour("bad", Behaviour::Rpc(RpcFault::WrongTypes));
    until_gauges(&scraped, "bad", "wrong types are no facts", |gauge| {
        gauge("height").is_none() && gauge("catching_up").is_none()
    })
    .await?;
    until_outcome(&scraped, "bad", "answered").await?;
    // The operator works as before, also for this node.
    scenario.set_image("bad", "seid:v2").await?;
    scenario.settled("bad").await?;
    scenario.lift(rule);
    let status = scenario.status("bad").await?;
    assert_eq!(condition_text(&status, ConditionType::Halted), "absent");
    let shown = scenario.sidecars().received_in(&namespace);
    let mut reads = shown.iter().filter(|call| call.request.contains(":26657")).peekable();
    ensure!(reads.peek().is_some(), "no RPC was read");
    ensure!(reads.all(|call| call.token.is_none()), "an RPC was shown a token");
    scraped.scenario.close().await
}
