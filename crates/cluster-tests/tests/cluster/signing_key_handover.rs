//! A signing key that moves from one node to another and is never used by both.

use anyhow::{Result, ensure};
use cluster_tests::scenario::{Scenario, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use sei_plan::view::PodView;
use sei_rig::Behaviour;
use serde_json::{Value, json};

/// An observer that is older than a signer, both running.
async fn observer_and_signer(name: &str) -> Result<Scenario> {
    let scenario = Scenario::open(name).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("a", json!({ "chainId": "demo-1", "image": "seid:v1", "validator": {} })).await?;
    scenario.run("b", validator("seid:v1", "signing", "p2p")).await?;
    Ok(scenario)
}

fn with_keys() -> Value {
    json!({ "spec": { "validator": validator("seid:v1", "signing", "p2p")["validator"] } })
}

fn without_keys() -> Value {
    json!({ "spec": { "validator": { "signingKey": null, "nodeKey": null } } })
}

/// Names of pods that mount the key.
async fn holders(scenario: &Scenario) -> Result<Vec<String>> {
    let mounts = |pod: &Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut secrets =
            volumes.filter_map(|volume| volume.secret.as_ref()?.secret_name.as_deref());
        secrets.any(|name| name == "signing")
    };
    let pods = scenario.pods().list(&kube::api::ListParams::default()).await?.items;
    Ok(pods.iter().filter(|pod| mounts(pod)).filter_map(|pod| pod.metadata.name.clone()).collect())
}

#[tokio::test]
async fn a_key_in_use_is_not_taken_by_an_older_node() -> Result<()> {
    let scenario = observer_and_signer("key-older").await?;
    scenario.edit("a", with_keys()).await?;
    scenario.until_stalled("a", "SigningKeyConflict").await?;
    assert_eq!(scenario.pods_seen("a").await?, 1, "its pod was replaced");
    assert_eq!(holders(&scenario).await?, ["b-0"]);
    scenario.nodes().delete("b", &DeleteParams::default()).await?;
    scenario.until_not_stalled("a").await?;
    scenario.settled("a").await?;
    assert_eq!(holders(&scenario).await?, ["a-0"]);
    scenario.close().await
}

#[tokio::test]
async fn a_moved_key_is_taken_when_its_last_pod_has_ended() -> Result<()> {
    let scenario = observer_and_signer("key-moves").await?;
    let rule = scenario.set_node_behaviour("b", Behaviour::StuckTerminating);
    scenario.edit("b", without_keys()).await?;
    scenario.edit("a", with_keys()).await?;
    scenario.until_pod("b", "its pod is terminating", PodView::is_terminating).await?;
    scenario.until_stalled("a", "SigningKeyConflict").await?;
    assert_eq!(holders(&scenario).await?, ["b-0"]);
    assert_eq!(scenario.pods_seen("a").await?, 1, "its pod was replaced");
    scenario.lift(rule);
    scenario.settled("b").await?;
    scenario.settled("a").await?;
    assert_eq!(holders(&scenario).await?, ["a-0"]);
    let status = scenario.status("b").await?;
    ensure!(
        status.signing_identity.is_none(),
        "b still has the signing identity {:?}",
        status.signing_identity
    );

    // The new holder of the key stops and starts again beside the older node that had the key.
    scenario.edit("a", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod is deleted", async || {
        Ok(scenario.pods().get_opt("a-0").await?.is_none().then_some(()))
    })
    .await?;
    scenario.edit("a", json!({ "spec": { "paused": false } })).await?;
    scenario.settled("a").await?;
    scenario.close().await
}
