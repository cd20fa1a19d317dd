//! `sei.io/hands-off`: nothing of the node is written but its status.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::{Requests, Scenario, condition_text, format_requests, rpc};
use cluster_tests::wait_for;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use sei_api::condition::ConditionType;
use sei_rig::AuditEntry;
use serde_json::{Value, json};

use crate::fleets;

const CONFIG: &str = "rpc-rbac-proxy-config";

async fn annotate(scenario: &Scenario, node: &str, value: Value) -> Result<()> {
    let annotations = json!({ "sei.io/hands-off": value });
    scenario.edit(node, json!({ "metadata": { "annotations": annotations } })).await
}

async fn until_ready_is(scenario: &Scenario, node: &str, text: &str) -> Result<()> {
    let claim = format!("Ready is {text}");
    let is = |status: &_| condition_text(status, ConditionType::Ready).starts_with(text);
    scenario.until(node, &claim, is).await?;
    Ok(())
}

/// Fails if the operator has written an object of the node other than its status. An object that was
/// created has no name in the log, so the tests check that objects are missing.
fn check_requests(requests: &mut Requests, node: &str) -> Result<()> {
    let is_of_node = |entry: &AuditEntry| {
        let name = entry.name.as_deref().unwrap_or_default();
        name == node || name.starts_with(&format!("{node}-")) || name == format!("data-{node}")
    };
    let is_status = |entry: &AuditEntry| {
        entry.resource == "seinodes" && entry.subresource.as_deref() == Some("status")
    };
    let mut writes = requests.read_new()?;
    writes.retain(|entry| !["get", "list"].contains(&entry.verb.as_str()));
    writes.retain(|entry| is_of_node(entry) && !is_status(entry));
    ensure!(writes.is_empty(), "{}", format_requests(&writes));
    Ok(())
}

/// What other people do to the objects of a node.
async fn edit_objects(scenario: &Scenario) -> Result<()> {
    let params = PatchParams::default();
    let label = json!({ "metadata": { "labels": { "sei.io/chain": "edited" } } });
    scenario.pods().patch("rpc-0", &params, &Patch::Merge(label)).await?;
    let containers = json!([{ "name": "seid", "image": "seid:manual" }]);
    let template = json!({ "spec": { "containers": containers } });
    let set = json!({ "spec": { "replicas": 2, "template": template } });
    scenario.statefulsets().patch("rpc", &params, &Patch::Strategic(set)).await?;
    let service = json!({ "spec": { "selector": { "sei.io/node": "other" } } });
    scenario.services().patch("rpc", &params, &Patch::Merge(service)).await?;
    scenario.config_maps().delete(CONFIG, &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_hands_off_node_is_left_to_its_user_and_repaired_afterwards() -> Result<()> {
    let scenario = Scenario::open("hands-off").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    annotate(&scenario, "rpc", json!("true")).await?;
    until_ready_is(&scenario, "rpc", "True/HandsOff").await?;
    let (before, mut requests) = (scenario.uid("rpc").await?, scenario.requests());
    requests.read_new()?;
    let gates = scenario.submitted("rpc", "mark-ready");
    edit_objects(&scenario).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    // The gate of the next pod stays closed, because opening it is a task of the sidecar.
    scenario.pods().delete("rpc-0", &DeleteParams::default()).await?;
    let next = |pod: &sei_plan::view::PodView| pod.uid != before && pod.sidecar.running;
    scenario.until_pod("rpc", "the next pod runs", next).await?;
    until_ready_is(&scenario, "rpc", "False/HandsOff").await?;
    // What the operator has begun by now is complete once another node was created.
    scenario.run("later", rpc("seid:v1")).await?;
    check_requests(&mut requests, "rpc")?;
    assert_eq!(scenario.submitted("rpc", "mark-ready"), gates);
    let set = scenario.statefulsets().get("rpc").await?;
    assert_eq!(set.spec.replicas, Some(2));
    assert!(scenario.config_maps().get_opt(CONFIG).await?.is_none());
    let selector = async || -> Result<Option<String>> {
        let service = scenario.services().get("rpc").await?.spec.context("no spec")?;
        Ok(service.selector.and_then(|selector| selector.get("sei.io/node").cloned()))
    };
    assert_eq!(selector().await?.as_deref(), Some("other"));

    annotate(&scenario, "rpc", Value::Null).await?;
    scenario.settled("rpc").await?;
    until_ready_is(&scenario, "rpc", "True/Ready").await?;
    scenario.until_pod_of("rpc", "seid:v2").await?;
    wait_for("everything is repaired", async || {
        let set = scenario.statefulsets().get("rpc").await?;
        let config = scenario.config_maps().get_opt(CONFIG).await?;
        let is_repaired = set.spec.replicas == Some(1)
            && config.is_some()
            && selector().await?.as_deref() == Some("rpc");
        Ok(is_repaired.then_some(()))
    })
    .await?;
    scenario.close().await
}

#[tokio::test]
async fn a_deleted_node_that_is_hands_off_runs_until_the_annotation_is_removed() -> Result<()> {
    let scenario = Scenario::open("hands-off-deleted").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    annotate(&scenario, "rpc", json!("true")).await?;
    until_ready_is(&scenario, "rpc", "True/HandsOff").await?;
    let (before, mut requests) = (scenario.uid("rpc").await?, scenario.requests());
    requests.read_new()?;
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    until_ready_is(&scenario, "rpc", "False/HandsOff: the node is deleted and kept").await?;
    scenario.run("later", rpc("seid:v1")).await?;
    check_requests(&mut requests, "rpc")?;
    assert_eq!(scenario.uid("rpc").await?, before);
    let claim = scenario.claims().get("data-rpc").await?;
    assert_eq!(claim.metadata.deletion_timestamp, None);
    annotate(&scenario, "rpc", Value::Null).await?;
    scenario.until_deleted("rpc").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_rollout_continues_around_a_hands_off_node() -> Result<()> {
    let scenario = Scenario::open("hands-off-fleet").await?;
    fleets::create(&scenario, fleets::manifest(2, &json!({ "maxUnavailable": 1 }))).await?;
    fleets::until_ready(&scenario, 2).await?;
    annotate(&scenario, "edge-0", json!("true")).await?;
    let mut requests = scenario.requests();
    requests.read_new()?;
    fleets::edit(&scenario, fleets::image("seid:v2")).await?;
    scenario.until_pod_of("edge-1", "seid:v2").await?;
    scenario.settled("edge-1").await?;
    let named = "hands-off until annotation sei.io/hands-off is removed: edge-0";
    fleets::until(&scenario, "the fleet names the node", |status| {
        fleets::condition(status, "RolloutInProgress")
            == format!("True/TemplateChanged 1 of 2 nodes are updated, 1 healthy; {named}")
    })
    .await?;
    check_requests(&mut requests, "edge-0")?;
    let node = scenario.node("edge-0").await?;
    assert_eq!(node.spec.image, "seid:v1", "{:?}", node.annotations());
    annotate(&scenario, "edge-0", Value::Null).await?;
    fleets::until_ready(&scenario, 2).await?;
    scenario.until_pod_of("edge-0", "seid:v2").await?;
    scenario.close().await
}
