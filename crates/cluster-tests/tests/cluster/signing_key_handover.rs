//! A signing key that moves from one node to another, and is never used by both.

use anyhow::{Result, ensure};
use cluster_tests::scenario::{Play, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use sei_plan::view::PodView;
use sei_rig::Behaviour;
use serde_json::{Value, json};

/// An observer that is older than a signer, both running.
async fn observer_and_signer(name: &str) -> Result<Play> {
    let play = Play::open(name).await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("a", json!({ "chainId": "demo-1", "image": "seid:v1", "validator": {} })).await?;
    play.run("b", validator("seid:v1", "signing", "p2p")).await?;
    Ok(play)
}

fn with_keys() -> Value {
    json!({ "spec": { "validator": validator("seid:v1", "signing", "p2p")["validator"] } })
}

fn without_keys() -> Value {
    json!({ "spec": { "validator": { "signingKey": null, "nodeKey": null } } })
}

/// Names of pods that mount the key.
async fn holders(play: &Play) -> Result<Vec<String>> {
    let mounts = |pod: &Pod| {
        let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let mut secrets = volumes.filter_map(|one| one.secret.as_ref()?.secret_name.as_deref());
        secrets.any(|name| name == "signing")
    };
    let pods = play.pods().list(&kube::api::ListParams::default()).await?.items;
    Ok(pods.iter().filter(|pod| mounts(pod)).filter_map(|pod| pod.metadata.name.clone()).collect())
}

#[tokio::test]
async fn a_key_in_use_is_not_taken_by_an_older_node() -> Result<()> {
    let play = observer_and_signer("key-older").await?;
    play.edit("a", with_keys()).await?;
    play.until_stalled("a", "SigningKeyConflict").await?;
    assert_eq!(play.pods_seen("a").await?, 1, "it goes on as it was");
    assert_eq!(holders(&play).await?, ["b-0"]);
    play.nodes().delete("b", &DeleteParams::default()).await?;
    play.settled("a").await?;
    play.until_not_stalled("a").await?;
    assert_eq!(holders(&play).await?, ["a-0"]);
    play.close().await
}

#[tokio::test]
async fn a_key_handed_over_is_taken_when_its_last_pod_has_ended() -> Result<()> {
    let play = observer_and_signer("key-moves").await?;
    let rule = play.node_is("b", Behaviour::StuckTerminating);
    play.edit("b", without_keys()).await?;
    play.edit("a", with_keys()).await?;
    play.until_pod("b", "it is being stopped", PodView::is_terminating).await?;
    play.until_stalled("a", "SigningKeyConflict").await?;
    assert_eq!(holders(&play).await?, ["b-0"]);
    assert_eq!(play.pods_seen("a").await?, 1, "it goes on as it was");
    play.lift(rule);
    play.settled("b").await?;
    play.settled("a").await?;
    assert_eq!(holders(&play).await?, ["a-0"]);
    let gave = play.status("b").await?;
    ensure!(gave.signing_identity.is_none(), "b still counts as {:?}", gave.signing_identity);

    // The one that has the key now starts again beside the older one that had it.
    play.edit("a", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod has ended", async || {
        Ok(play.pods().get_opt("a-0").await?.is_none().then_some(()))
    })
    .await?;
    play.edit("a", json!({ "spec": { "paused": false } })).await?;
    play.settled("a").await?;
    play.close().await
}
