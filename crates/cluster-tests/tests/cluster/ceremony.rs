//! The genesis ceremony of a fleet.

use std::collections::BTreeMap;

use anyhow::Result;
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use kube::api::{Patch, PatchParams};
use sei_api::SeiNodeDeploymentStatus;
use sei_api::fleet::FleetPhase;
use serde_json::{Value, json};

use super::fleets::{condition, create, fleets, manifest, nodes, until_ready};

const ASSEMBLE: &str = "assemble-and-upload-genesis";
const CONFIGURE: &str = "configure-genesis";
const NODES: [&str; 4] = ["edge-0", "edge-1", "edge-2", "edge-3"];

/// Validators that begin a chain.
fn validators() -> Value {
    let mut fleet = manifest(4, &Value::Null);
    let template = &mut fleet["spec"]["template"]["spec"];
    template.as_object_mut().expect("a spec").remove("fullNode");
    template["validator"] = json!({});
    fleet["spec"]["genesis"] = json!({
        "chainId": "fleet-1",
        "accounts": [{ "address": "sei1qpzry9x8gf2tvdw0s3jn54khce6mua7l", "balance": "5usei" }],
        "overrides": { "gov.voting_params.voting_period": "12s" },
    });
    fleet
}

async fn status(scenario: &Scenario) -> Result<SeiNodeDeploymentStatus> {
    Ok(fleets(scenario).get("edge").await?.status.unwrap_or_default())
}

/// How often each task was submitted to the sidecar of a node.
fn submissions(scenario: &Scenario, node: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for submission in scenario.sidecars().submissions(scenario.namespace(), node) {
        *counts.entry(submission.task_type).or_default() += 1;
    }
    counts
}

#[tokio::test]
async fn validators_begin_a_chain_and_every_task_runs_once() -> Result<()> {
    let mut scenario = Scenario::open_at_speed("ceremony", 10).await?;
    let namespace = scenario.namespace().to_owned();
    // Before the assembly no genesis is in the bucket.
    for node in NODES {
        scenario.sidecars().hold(&namespace, node, CONFIGURE);
    }
    scenario.sidecars().hold(&namespace, "edge-0", ASSEMBLE);
    create(&scenario, validators()).await?;
    scenario.until_submitted("edge-0", ASSEMBLE, 0).await?;
    let now = status(&scenario).await?;
    assert_eq!(now.phase, Some(FleetPhase::Initializing));
    assert!(condition(&now, "GenesisCeremonyComplete").starts_with("False/InProgress"));
    assert_eq!(condition(&now, "PlanInProgress"), format!("True/PlanStarted {ASSEMBLE}"));
    // A new operator finds the task that the first has submitted.
    scenario.start_operator(10).await?;
    scenario.sidecars().release(&namespace, "edge-0", ASSEMBLE);
    let has_peers = async || {
        let nodes = nodes(&scenario).await?;
        let all = nodes.values().all(|node| node.spec.peers.is_some());
        Ok(all.then_some(()))
    };
    wait_for("every node has its peers", has_peers).await?;
    for node in NODES {
        scenario.sidecars().release(&namespace, node, CONFIGURE);
    }
    let ready = until_ready(&scenario, 4).await?;
    assert_eq!(ready.phase, Some(FleetPhase::Ready));
    assert!(condition(&ready, "GenesisCeremonyComplete").starts_with("True/Complete genesis "));
    assert_eq!(ready.genesis_hash.map(|hash| hash.len()), Some(64));
    for (index, node) in NODES.into_iter().enumerate() {
        let mut tasks = vec![
            "generate-identity",
            "generate-gentx",
            "upload-genesis-artifacts",
            CONFIGURE,
            "config-apply",
            "set-genesis-peers",
            "config-validate",
            "mark-ready",
        ];
        tasks.extend((index == 0).then_some(ASSEMBLE));
        let once: BTreeMap<_, _> = tasks.into_iter().map(|task| (task.to_owned(), 1)).collect();
        assert_eq!(submissions(&scenario, node), once, "{node}");
        let spec = scenario.node(node).await?.spec;
        let ceremony = spec.genesis_ceremony().map(|ceremony| ceremony.index);
        assert_eq!(ceremony, i32::try_from(index).ok());
        let peers = spec.peers.unwrap_or_default();
        let addresses = peers[0].r#static.as_ref().map(|peers| peers.addresses.len());
        assert_eq!(addresses, Some(4));
    }
    let events = scenario.events("edge").await?;
    for reason in ["PlanStarted", "PlanComplete"] {
        assert!(events.iter().any(|event| event.starts_with(reason)), "{reason}: {events:?}");
    }
    // A chain begins once, also after its status was lost.
    let wiped = Patch::Merge(json!({ "status": null }));
    fleets(&scenario).patch_status("edge", &PatchParams::default(), &wiped).await?;
    let after = until_ready(&scenario, 4).await?;
    assert!(condition(&after, "GenesisCeremonyComplete").starts_with("True/Complete"));
    assert_eq!((submissions(&scenario, "edge-0")[ASSEMBLE], after.plan), (1, None));
    scenario.close().await
}

/// Waits until the condition of the ceremony shows this.
async fn until_shown(scenario: &Scenario, expected: &str) -> Result<()> {
    wait_for(expected, async || {
        let text = condition(&status(scenario).await?, "GenesisCeremonyComplete");
        Ok((text == expected).then_some(()))
    })
    .await
}

/// Lets the assembly work, and then the configuration of every node; waits for the end of the ceremony.
async fn recover(scenario: &Scenario) -> Result<()> {
    let namespace = scenario.namespace();
    scenario.sidecars().release(namespace, "edge-0", ASSEMBLE);
    let has_peers = async || {
        let all = nodes(scenario).await?.values().all(|node| node.spec.peers.is_some());
        Ok(all.then_some(()))
    };
    wait_for("every node has its peers", has_peers).await?;
    for node in NODES {
        scenario.sidecars().release(namespace, node, CONFIGURE);
    }
    let ready = until_ready(scenario, 4).await?;
    assert!(condition(&ready, "GenesisCeremonyComplete").starts_with("True/Complete genesis "));
    Ok(())
}

#[tokio::test]
async fn a_failing_assembly_is_shown_and_begins_one_chain_in_the_end() -> Result<()> {
    let scenario = Scenario::open_at_speed("ceremony-fails", 50).await?;
    let namespace = scenario.namespace().to_owned();
    for node in NODES {
        scenario.sidecars().hold(&namespace, node, CONFIGURE);
    }
    scenario.sidecars().fail(&namespace, "edge-0", ASSEMBLE, "the bucket is read-only");
    create(&scenario, validators()).await?;
    let failed = "False/InProgress assemble-and-upload-genesis failed and is run again: the bucket is \
                  read-only";
    until_shown(&scenario, failed).await?;
    scenario.until_submitted("edge-0", ASSEMBLE, 1).await?;
    assert_eq!(status(&scenario).await?.genesis_hash, None);
    recover(&scenario).await?;
    for node in NODES {
        assert_eq!(submissions(&scenario, node)["upload-genesis-artifacts"], 1, "{node}");
        assert_eq!(submissions(&scenario, node)[CONFIGURE], 1, "{node} has one genesis");
    }
    scenario.close().await
}

/// The record of the assembly stays `running`: its sidecar hangs.
#[tokio::test]
async fn a_hung_assembly_is_shown_and_tried_again_after_its_deadline() -> Result<()> {
    // The deadline of 900 s is 9 s.
    let scenario = Scenario::open_at_speed("ceremony-hangs", 100).await?;
    let namespace = scenario.namespace().to_owned();
    for node in NODES {
        scenario.sidecars().hold(&namespace, node, CONFIGURE);
    }
    scenario.sidecars().hold(&namespace, "edge-0", ASSEMBLE);
    create(&scenario, validators()).await?;
    let hangs =
        "False/InProgress assemble-and-upload-genesis failed and is run again: no end within 9 s";
    until_shown(&scenario, hangs).await?;
    let now = status(&scenario).await?;
    assert_eq!(now.phase, Some(FleetPhase::Initializing));
    assert_eq!(now.genesis_hash, None);
    let ready = condition(&now, "Ready");
    assert!(ready.starts_with("False/NodesNotReady"), "{ready}");
    recover(&scenario).await?;
    assert!(submissions(&scenario, "edge-0")[ASSEMBLE] > 1, "there was another attempt");
    scenario.close().await
}
