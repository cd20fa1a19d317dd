//! Nodes with paused updates, stopped nodes and deleted nodes.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, PostParams};
use sei_api::condition::ConditionType;
use sei_rig::{Behaviour, ClaimRule};
use serde_json::{Value, json};

#[tokio::test]
async fn a_paused_update_waits_and_an_evicted_pod_keeps_the_old_image() -> Result<()> {
    let scenario = Scenario::open("update-paused").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    scenario
        .edit("rpc", json!({ "spec": { "image": "seid:v2", "update": { "paused": true } } }))
        .await?;
    let held = |status: &_| {
        condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/Paused")
    };
    scenario.until("rpc", "its update is held", held).await?;
    assert_eq!(scenario.uid("rpc").await?, before);
    scenario.evict("rpc").await?;
    let next =
        scenario.until_pod("rpc", "another pod runs", |pod| pod.uid != before && pod.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    let status = scenario.until("rpc", "its update is held", held).await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    scenario.edit("rpc", json!({ "spec": { "update": { "paused": false } } })).await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_stopped_node_starts_with_its_latest_spec() -> Result<()> {
    let scenario = Scenario::open("stopped").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.edit("rpc", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod is deleted", async || {
        Ok(scenario.pods().get_opt("rpc-0").await?.is_none().then_some(()))
    })
    .await?;
    scenario.set_image("rpc", "seid:v2").await?;
    wait_for("its StatefulSet has the new image", async || {
        let template = scenario.statefulsets().get("rpc").await?.spec.template;
        let containers = template.spec.context("the template has no spec")?.containers;
        let is_next =
            containers.iter().any(|container| container.image.as_deref() == Some("seid:v2"));
        Ok(is_next.then_some(()))
    })
    .await?;
    assert!(scenario.pods().get_opt("rpc-0").await?.is_none());
    scenario.edit("rpc", json!({ "spec": { "paused": false } })).await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

async fn until_claim_deleted(scenario: &Scenario, name: &str) -> Result<()> {
    wait_for(&format!("claim {name} is deleted"), async || {
        Ok(scenario.claims().get_opt(name).await?.is_none().then_some(()))
    })
    .await
}

#[tokio::test]
async fn deleting_a_node_deletes_its_volume() -> Result<()> {
    let scenario = Scenario::open("deleted").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    until_claim_deleted(&scenario, "data-rpc").await?;
    assert!(scenario.statefulsets().get_opt("rpc").await?.is_none());
    scenario.close().await
}

/// A terminating namespace takes no record of the signer, and must end without it.
#[tokio::test]
async fn the_namespace_of_a_signer_can_be_deleted() -> Result<()> {
    let scenario = Scenario::open("namespace-deleted").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    // The account of these tokens is deleted with the namespace.
    scenario.check_tokens().await?;
    let namespaces: Api<Namespace> = Api::all(scenario.admin());
    namespaces.delete(scenario.namespace(), &DeleteParams::default()).await?;
    wait_for("the namespace is deleted", async || {
        Ok(namespaces.get_opt(scenario.namespace()).await?.is_none().then_some(()))
    })
    .await
}

async fn create_claim(scenario: &Scenario, name: &str) -> Result<PersistentVolumeClaim> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } },
        },
    }))?;
    Ok(scenario.claims().create(&PostParams::default(), &claim).await?)
}

#[tokio::test]
async fn deleting_a_node_keeps_its_imported_volume() -> Result<()> {
    let scenario = Scenario::open("imported").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let created = create_claim(&scenario, "kept").await?;
    let mut spec: Value = rpc("seid:v1");
    spec["dataVolume"] = json!({ "import": { "pvcName": "kept" } });
    scenario.run("rpc", spec).await?;
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    wait_for("its pod is deleted", async || {
        Ok(scenario.pods().get_opt("rpc-0").await?.is_none().then_some(()))
    })
    .await?;
    let kept = scenario.claims().get("kept").await?;
    assert_eq!(kept.metadata.uid, created.metadata.uid);
    assert!(kept.metadata.deletion_timestamp.is_none());
    scenario.close().await
}

#[tokio::test]
async fn a_retained_volume_stays_and_can_be_imported() -> Result<()> {
    let scenario = Scenario::open("retained").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let uid = scenario.claims().get("data-val").await?.metadata.uid;
    scenario.nodes().delete("val", &DeleteParams::default()).await?;
    scenario.until_deleted("val").await?;
    let kept = scenario.claims().get("data-val").await?;
    assert_eq!(kept.metadata.uid, uid);
    assert_eq!(kept.metadata.owner_references.unwrap_or_default(), []);
    assert!(kept.metadata.deletion_timestamp.is_none());
    let mut spec = validator("seid:v1", "signing", "p2p");
    spec["dataVolume"] = json!({ "import": { "pvcName": "data-val" } });
    scenario.run("val", spec).await?;
    assert_eq!(scenario.status("val").await?.data_claim.map(|claim| claim.uid), uid);
    scenario.close().await
}

#[tokio::test]
async fn an_imported_volume_has_one_user_and_is_guarded() -> Result<()> {
    let scenario = Scenario::open("import-guard").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let uid = create_claim(&scenario, "disk").await?.metadata.uid.context("no uid")?;
    let importing = |claim: &str| {
        let mut spec: Value = rpc("seid:v1");
        spec["dataVolume"] = json!({ "import": { "pvcName": claim } });
        spec
    };
    scenario.run("rpc", importing("disk")).await?;
    let status = scenario.status("rpc").await?;
    assert_eq!(status.data_claim.map(|claim| claim.uid), Some(uid));
    scenario.create("second", importing("disk")).await?;
    scenario.until_stalled("second", "SigningKeyConflict").await?;
    scenario.run("owner", rpc("seid:v1")).await?;
    scenario.create("third", importing("data-owner")).await?;
    scenario.until_stalled("third", "SigningKeyConflict").await?;
    assert_eq!(scenario.pods_seen("second").await? + scenario.pods_seen("third").await?, 0);
    // A claim that goes with the next stop of its pod: no update may stop it.
    scenario.claims().delete("disk", &DeleteParams::default()).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.until_stalled("rpc", "DataVolumeLost").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1);
    scenario.close().await
}

#[tokio::test]
async fn a_foreign_volume_is_neither_used_nor_deleted() -> Result<()> {
    let scenario = Scenario::open("foreign").await?;
    let created = create_claim(&scenario, "data-rpc").await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    scenario
        .until("rpc", "its plan reports the foreign claim", |status| {
            let failed = status.plan.as_ref().and_then(|plan| plan.failed_task_detail.as_ref());
            failed.is_some_and(|detail| detail.error.contains("not owned by this node"))
        })
        .await?;
    assert!(scenario.statefulsets().get_opt("rpc").await?.is_none());
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    let kept = scenario.claims().get("data-rpc").await?;
    assert_eq!(kept.metadata.uid, created.metadata.uid);
    assert!(kept.metadata.deletion_timestamp.is_none());
    scenario.close().await
}

#[tokio::test]
async fn a_node_created_again_waits_until_the_old_claim_is_deleted() -> Result<()> {
    let scenario = Scenario::open("created-again").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let claim = scenario.claims().get("data-rpc").await?.metadata.uid;
    let rule = scenario.set_node_behaviour("rpc", Behaviour::StuckTerminating);
    scenario.nodes().delete("rpc", &DeleteParams::default()).await?;
    scenario.until_deleted("rpc").await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    scenario
        .until("rpc", "it waits for the old claim", |status| {
            let blocked = status.blocked.as_ref();
            blocked.is_some_and(|blocked| blocked.message.contains("is still being deleted"))
        })
        .await?;
    scenario.lift(rule);
    scenario.settled("rpc").await?;
    assert_ne!(scenario.claims().get("data-rpc").await?.metadata.uid, claim);
    scenario.close().await
}
