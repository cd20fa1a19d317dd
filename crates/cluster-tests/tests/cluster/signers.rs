//! One key, one signer; one volume, and no other without consent.

use anyhow::{Context as _, Result, bail};
use cluster_tests::scenario::{Play, rpc, says, validator};
use cluster_tests::wait_for;
use jiff::Timestamp;
use kube::api::DeleteParams;
use sei_api::condition::ConditionType;
use sei_rig::Behaviour;
use serde_json::json;

/// Two validators with one key: the first runs, the second is told why it does not.
async fn conflict(name: &str) -> Result<Play> {
    let play = Play::open(name).await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("a", validator("seid:v1", "signing", "p2p")).await?;
    play.create("b", validator("seid:v1", "signing", "p2p")).await?;
    play.until_stalled("b", "SigningKeyConflict").await?;
    assert!(play.statefulsets().get_opt("b").await?.is_none());
    assert_eq!(play.pods_seen("b").await?, 0);
    Ok(play)
}

#[tokio::test]
async fn a_second_signer_starts_when_the_first_is_deleted() -> Result<()> {
    let play = conflict("key-freed").await?;
    play.nodes().delete("a", &DeleteParams::default()).await?;
    play.settled("b").await?;
    assert!(play.pods().get_opt("a-0").await?.is_none());
    play.close().await
}

#[tokio::test]
async fn a_second_signer_waits_until_the_first_ones_pod_has_ended() -> Result<()> {
    let play = conflict("key-held").await?;
    let rule = play.node_is("a", Behaviour::StuckTerminating);
    play.nodes().delete("a", &DeleteParams::default()).await?;
    play.until_gone("a").await?;
    play.until("b", "it is told that the pod has the key", |status| {
        says(status, ConditionType::Stalled).contains("pod a-0 still has the signing key")
    })
    .await?;
    assert_eq!(play.pods_seen("b").await?, 0);
    play.lift(rule);
    play.settled("b").await?;
    play.until_not_stalled("b").await?;
    play.close().await
}

/// How many seconds are tried: a busy machine may need longer than one for the first node.
const SECONDS: usize = 10;

#[tokio::test]
async fn of_two_signers_made_in_one_second_only_one_starts() -> Result<()> {
    let play = Play::open("key-race").await?;
    for round in 0..SECONDS {
        let [z, a] = ["z", "a"].map(|name| format!("{name}-{round}"));
        let (signing, p2p) = (format!("signing-{round}"), format!("p2p-{round}"));
        play.validator_keys(&signing, &p2p).await?;
        // Times of creation are whole seconds: both should fall into one.
        wait_for("a second begins", async || {
            Ok((Timestamp::now().subsec_nanosecond() < 150_000_000).then_some(()))
        })
        .await?;
        play.create(&z, validator("seid:v1", &signing, &p2p)).await?;
        wait_for("it is made", async || Ok(play.statefulsets().get_opt(&z).await?)).await?;
        play.create(&a, validator("seid:v1", &signing, &p2p)).await?;
        play.until_stalled(&a, "SigningKeyConflict").await?;
        play.settled(&z).await?;
        assert_eq!(play.pods_seen(&a).await?, 0);
        let [z, a] = [play.node(&z).await?, play.node(&a).await?];
        if z.metadata.creation_timestamp == a.metadata.creation_timestamp {
            return play.close().await;
        }
    }
    bail!("no two nodes were made in one second")
}

#[tokio::test]
async fn of_signers_made_all_at_once_only_one_starts() -> Result<()> {
    let play = Play::open("key-crowd").await?;
    play.validator_keys("signing", "p2p").await?;
    let names = ["d", "c", "b", "a"];
    for name in names {
        play.create(name, validator("seid:v1", "signing", "p2p")).await?;
    }
    let stalled = async |name: &str| -> Result<bool> {
        let status = play.status(name).await?;
        Ok(says(&status, ConditionType::Stalled).starts_with("True/SigningKeyConflict"))
    };
    wait_for("all but one wait", async || {
        let mut waiting = 0;
        for name in names {
            waiting += usize::from(stalled(name).await?);
        }
        let mut started = 0;
        for name in names {
            started += usize::from(play.pods_seen(name).await? > 0);
        }
        Ok((waiting == 3 && started == 1).then_some(()))
    })
    .await?;
    play.close().await
}

#[tokio::test]
async fn a_signer_without_its_volume_is_held_until_somebody_consents() -> Result<()> {
    let play = Play::open("volume-lost").await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let lost = play.claims().get("data-val").await?.metadata.uid.context("has a uid")?;
    play.claims().delete("data-val", &DeleteParams::default()).await?;
    play.until_stalled("val", "DataVolumeLost").await?;
    play.evict("val").await?;
    wait_for("it is held at no replicas", async || {
        let set = play.statefulsets().get("val").await?;
        Ok((set.spec.replicas == Some(0)).then_some(()))
    })
    .await?;
    wait_for("its pod is gone", async || {
        Ok(play.pods().get_opt("val-0").await?.is_none().then_some(()))
    })
    .await?;
    assert!(play.claims().get_opt("data-val").await?.is_none(), "nothing is recreated");
    play.until_stalled("val", "DataVolumeLost").await?;
    // An annotation is no new generation; a field that changes nothing here makes it one.
    let before = play.node("val").await?.metadata.generation;
    play.edit(
        "val",
        json!({
            "metadata": { "annotations": { "sei.io/recreate-volume": "x" } },
            "spec": { "update": { "onOperatorChange": "Hold" } },
        }),
    )
    .await?;
    play.until("val", "that was looked at", |status| status.observed_generation > before).await?;
    // Whatever was begun then is done by the time that a whole node has been made.
    play.run("later", rpc("seid:v1")).await?;
    assert!(play.claims().get_opt("data-val").await?.is_none(), "that was another uid");
    play.edit("val", json!({ "metadata": { "annotations": { "sei.io/recreate-volume": lost } } }))
        .await?;
    play.settled("val").await?;
    play.until_not_stalled("val").await?;
    let claim = play.claims().get("data-val").await?;
    assert_ne!(claim.metadata.uid.as_deref(), Some(lost.as_str()));
    play.close().await
}

/// A copy of a key under another name.
async fn copy_key(play: &Play, address: &str, signing: &str, p2p: &str) -> Result<()> {
    let key = json!({ "type": "t", "value": "v" });
    let signs = json!({ "address": address, "pub_key": key, "priv_key": key });
    play.secret(signing, "priv_validator_key.json", &signs).await?;
    play.secret(p2p, "node_key.json", &json!({ "priv_key": key })).await
}

#[tokio::test]
async fn copies_of_a_key_made_all_at_once_start_one_validator() -> Result<()> {
    let play = Play::open("key-copies").await?;
    let names = ["d", "c", "b", "a"];
    for name in names {
        let (signing, p2p) = (format!("signing-{name}"), format!("p2p-{name}"));
        copy_key(&play, "00AA", &signing, &p2p).await?;
    }
    for name in names {
        let (signing, p2p) = (format!("signing-{name}"), format!("p2p-{name}"));
        play.create(name, validator("seid:v1", &signing, &p2p)).await?;
    }
    wait_for("all but one wait", async || {
        let mut waiting = 0;
        for name in names {
            let status = play.status(name).await?;
            let told = says(&status, ConditionType::Stalled);
            waiting += usize::from(told.starts_with("True/SigningKeyConflict"));
        }
        let mut started = 0;
        for name in names {
            started += usize::from(play.pods_seen(name).await? > 0);
        }
        Ok((waiting == 3 && started == 1).then_some(()))
    })
    .await?;
    play.close().await
}

#[tokio::test]
async fn a_stopped_signer_does_not_start_again_beside_another() -> Result<()> {
    let play = Play::open("key-unpaused").await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("a", validator("seid:v1", "signing", "p2p")).await?;
    play.edit("a", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod is gone", async || {
        Ok(play.pods().get_opt("a-0").await?.is_none().then_some(()))
    })
    .await?;
    // Somebody runs the same key by hand meanwhile.
    let pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "by-hand", "labels": { "sei.io/node": "by-hand" } },
        "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }],
                  "volumes": [{ "name": "k", "secret": { "secretName": "signing" } }] },
    }))?;
    play.pods().create(&kube::api::PostParams::default(), &pod).await?;
    play.edit("a", json!({ "spec": { "paused": false } })).await?;
    play.until("a", "it is told that the pod has the key", |status| {
        says(status, ConditionType::Stalled).contains("pod by-hand still has the signing key")
    })
    .await?;
    assert_eq!(play.pods_seen("a").await?, 1);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    play.pods().delete("by-hand", &now).await?;
    play.settled("a").await?;
    play.close().await
}
