//! Objects of other people that resemble the objects of a node.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, condition_text, rpc};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, PostParams};
use sei_api::condition::ConditionType;
use sei_api::names::label::POD_REVISION;
use serde_json::{Value, json};

const CONFIG: &str = "rpc-rbac-proxy-config";

/// A pod with the label of `node`, made of the template of `like`, with this controller reference.
async fn create_forged_pod(
    scenario: &Scenario,
    name: &str,
    (node, like): (&str, &str),
    controller: Value,
) -> Result<String> {
    let set = scenario.statefulsets().get(like).await?;
    let mut pod = serde_json::to_value(&set.spec.template)?;
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["labels"]["sei.io/node"] = json!(node);
    pod["metadata"]["labels"][POD_REVISION] = json!("of-another");
    pod["metadata"]["ownerReferences"] = json!([controller]);
    let pod: Pod = serde_json::from_value(pod)?;
    let pod = scenario.pods().create(&PostParams::default(), &pod).await?;
    let uid = pod.metadata.uid.context("the pod has no uid")?;
    wait_for("the sidecar of the forged pod answers", async || {
        let answers = scenario.sidecars().first_answers(scenario.namespace(), node);
        Ok(answers.iter().any(|answer| answer.pod_uid == uid).then_some(()))
    })
    .await?;
    Ok(uid)
}

/// A controller reference that the garbage collector and the StatefulSet controller leave alone.
fn unknown_kind(uid: &str) -> Value {
    json!({
        "apiVersion": "nope.example/v1", "kind": "StatefulSet", "name": "zzz", "uid": uid,
        "controller": true,
    })
}

/// What the sidecar of this pod was asked.
fn received(scenario: &Scenario, node: &str, uid: &str) -> Vec<String> {
    let all = scenario.sidecars().received(scenario.namespace(), node);
    all.into_iter().filter(|call| call.pod_uid == uid).map(|call| call.request).collect()
}

#[tokio::test]
async fn a_pod_with_a_forged_owner_is_neither_called_nor_deleted() -> Result<()> {
    let scenario = Scenario::open("forged-pod").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let set = scenario.statefulsets().get("rpc").await?.metadata.uid.unwrap_or_default();
    // Its name sorts before that of the node's own pod.
    let forged =
        create_forged_pod(&scenario, "a-forged", ("rpc", "rpc"), unknown_kind(&set)).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    scenario.evict("rpc").await?;
    scenario.settled("rpc").await?;
    assert_eq!(received(&scenario, "rpc", &forged), Vec::<String>::new());
    let after = scenario.pods().get("a-forged").await?;
    assert_eq!(after.metadata.uid.as_deref(), Some(forged.as_str()));
    assert_eq!(after.metadata.deletion_timestamp, None);
    assert_eq!(scenario.status("rpc").await?.plan, None);
    scenario.close().await
}

#[tokio::test]
async fn only_the_own_pod_of_a_peer_is_asked_for_its_id() -> Result<()> {
    let scenario = Scenario::open("forged-peer").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let mut stopped = rpc("seid:v1");
    stopped["paused"] = json!(true);
    scenario.create("ghost", stopped).await?;
    let set = scenario.statefulsets().get("rpc").await?.metadata.uid.unwrap_or_default();
    let owner = || unknown_kind(&set);
    let beside = create_forged_pod(&scenario, "a-forged", ("rpc", "rpc"), owner()).await?;
    let instead = create_forged_pod(&scenario, "ghost-0", ("ghost", "rpc"), owner()).await?;
    for node in ["rpc", "ghost"] {
        scenario.edit(node, json!({ "metadata": { "labels": { "peers": "yes" } } })).await?;
    }
    let mut spec = rpc("seid:v1");
    spec["peers"] = json!([{ "label": { "selector": { "peers": "yes" } } }]);
    scenario.run("asker", spec).await?;
    let resolved = scenario.until("asker", "its peer is resolved", |status| {
        status.resolved_peers.as_deref().is_some_and(|peers| !peers.is_empty())
    });
    let peers = resolved.await?.resolved_peers.unwrap_or_default();
    assert_eq!(peers.len(), 1, "{peers:?}");
    assert!(peers[0].contains("@rpc-0.rpc."), "{peers:?}");
    assert_eq!(received(&scenario, "rpc", &beside), Vec::<String>::new());
    assert_eq!(received(&scenario, "ghost", &instead), Vec::<String>::new());
    scenario.close().await
}

/// A headless Service of the node's name of another owner.
async fn create_foreign_service(scenario: &Scenario) -> Result<Service> {
    let service = serde_json::from_value(json!({
        "metadata": { "name": "rpc", "labels": { "app": "database" } },
        "spec": {
            "clusterIP": "None", "selector": { "app": "database" },
            "ports": [{ "name": "sql", "port": 5432 }],
        },
    }))?;
    Ok(scenario.services().create(&PostParams::default(), &service).await?)
}

#[tokio::test]
async fn a_service_of_another_owner_is_reported_and_outlives_the_node() -> Result<()> {
    let scenario = Scenario::open("foreign-service").await?;
    let before = create_foreign_service(&scenario).await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    let status = scenario.until_stalled("rpc", "FieldConflict").await?;
    let text = condition_text(&status, ConditionType::Stalled);
    assert!(text.contains("Service rpc exists and is not controlled by this node"), "{text}");
    assert_eq!(scenario.services().get("rpc").await?, before);
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    wait_for("the StatefulSet is collected", async || {
        Ok(scenario.statefulsets().get_opt("rpc").await?.is_none().then_some(()))
    })
    .await?;
    assert_eq!(scenario.services().get("rpc").await?, before);
    scenario.close().await
}

#[tokio::test]
async fn a_running_node_leaves_objects_of_other_owners_unchanged() -> Result<()> {
    let mut scenario = Scenario::open("foreign-later").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.kill_operator();
    scenario.services().delete("rpc", &DeleteParams::default()).await?;
    let service = create_foreign_service(&scenario).await?;
    scenario.start_operator(10).await?;
    scenario.until_stalled("rpc", "FieldConflict").await?;
    assert_eq!(scenario.services().get("rpc").await?, service);

    // When it is deleted, the node gets its own again.
    scenario.services().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_not_stalled("rpc").await?;
    let own = scenario.services().get("rpc").await?;
    assert_eq!(own.metadata.owner_references.map(|owners| owners.len()), Some(1));

    // This one has the node's label, so the watch shows it.
    scenario.kill_operator();
    scenario.config_maps().delete(CONFIG, &DeleteParams::default()).await?;
    let map = serde_json::from_value(json!({
        "metadata": { "name": CONFIG, "labels": { "sei.io/node": "rpc" } },
        "data": { "config.yaml": "mine" },
    }))?;
    let map = scenario.config_maps().create(&PostParams::default(), &map).await?;
    scenario.start_operator(10).await?;
    let status = scenario.until_stalled("rpc", "FieldConflict").await?;
    let text = condition_text(&status, ConditionType::Stalled);
    assert!(text.contains(&format!("ConfigMap {CONFIG} exists")), "{text}");
    assert_eq!(scenario.config_maps().get(CONFIG).await?, map);
    scenario.close().await
}
