//! One key, one signer; one volume, and no other without consent.

use anyhow::{Context as _, Result, bail};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::wait_for;
use jiff::Timestamp;
use kube::api::DeleteParams;
use sei_api::condition::ConditionType;
use sei_rig::Behaviour;
use serde_json::json;

/// Two validators with one key: the first runs, the second is told why it does not.
async fn conflict(name: &str) -> Result<Scenario> {
    let scenario = Scenario::open(name).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("a", validator("seid:v1", "signing", "p2p")).await?;
    scenario.create("b", validator("seid:v1", "signing", "p2p")).await?;
    scenario.until_stalled("b", "SigningKeyConflict").await?;
    assert!(scenario.statefulsets().get_opt("b").await?.is_none());
    assert_eq!(scenario.pods_seen("b").await?, 0);
    Ok(scenario)
}

#[tokio::test]
async fn a_second_signer_starts_when_the_first_is_deleted() -> Result<()> {
    let scenario = conflict("key-freed").await?;
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.settled("b").await?;
    assert!(scenario.pods().get_opt("a-0").await?.is_none());
    scenario.close().await
}

#[tokio::test]
async fn a_second_signer_waits_until_the_first_ones_pod_has_ended() -> Result<()> {
    let scenario = conflict("key-held").await?;
    let rule = scenario.set_node_behaviour("a", Behaviour::StuckTerminating);
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.until_deleted("a").await?;
    scenario
        .until("b", "it is told that the pod has the key", |status| {
            condition_text(status, ConditionType::Stalled)
                .contains("pod a-0 still has the signing key")
        })
        .await?;
    assert_eq!(scenario.pods_seen("b").await?, 0);
    scenario.lift(rule);
    scenario.settled("b").await?;
    scenario.until_not_stalled("b").await?;
    scenario.close().await
}

/// How many seconds are tried: a busy machine may need longer than one for the first node.
const SECONDS: usize = 10;

#[tokio::test]
async fn of_two_signers_created_in_one_second_only_one_starts() -> Result<()> {
    let scenario = Scenario::open("key-race").await?;
    for round in 0..SECONDS {
        let [z, a] = ["z", "a"].map(|name| format!("{name}-{round}"));
        let (signing, p2p) = (format!("signing-{round}"), format!("p2p-{round}"));
        scenario.create_validator_keys(&signing, &p2p).await?;
        // Times of creation are whole seconds: both should fall into one.
        wait_for("a second begins", async || {
            Ok((Timestamp::now().subsec_nanosecond() < 150_000_000).then_some(()))
        })
        .await?;
        scenario.create(&z, validator("seid:v1", &signing, &p2p)).await?;
        wait_for("it is made", async || Ok(scenario.statefulsets().get_opt(&z).await?)).await?;
        scenario.create(&a, validator("seid:v1", &signing, &p2p)).await?;
        scenario.until_stalled(&a, "SigningKeyConflict").await?;
        scenario.settled(&z).await?;
        assert_eq!(scenario.pods_seen(&a).await?, 0);
        let [z, a] = [scenario.node(&z).await?, scenario.node(&a).await?];
        if z.metadata.creation_timestamp == a.metadata.creation_timestamp {
            return scenario.close().await;
        }
    }
    bail!("no two nodes were made in one second")
}

#[tokio::test]
async fn of_signers_created_at_once_only_one_starts() -> Result<()> {
    let scenario = Scenario::open("key-crowd").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    let names = ["d", "c", "b", "a"];
    for name in names {
        scenario.create(name, validator("seid:v1", "signing", "p2p")).await?;
    }
    let stalled = async |name: &str| -> Result<bool> {
        let status = scenario.status(name).await?;
        Ok(condition_text(&status, ConditionType::Stalled).starts_with("True/SigningKeyConflict"))
    };
    wait_for("all but one wait", async || {
        let mut waiting = 0;
        for name in names {
            waiting += usize::from(stalled(name).await?);
        }
        let mut started = 0;
        for name in names {
            started += usize::from(scenario.pods_seen(name).await? > 0);
        }
        Ok((waiting == 3 && started == 1).then_some(()))
    })
    .await?;
    scenario.close().await
}

#[tokio::test]
async fn a_signer_without_its_volume_is_held_until_recreation_is_approved() -> Result<()> {
    let scenario = Scenario::open("volume-lost").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let lost = scenario.claims().get("data-val").await?.metadata.uid.context("has a uid")?;
    scenario.claims().delete("data-val", &DeleteParams::default()).await?;
    scenario.until_stalled("val", "DataVolumeLost").await?;
    scenario.evict("val").await?;
    wait_for("it is held at no replicas", async || {
        let set = scenario.statefulsets().get("val").await?;
        Ok((set.spec.replicas == Some(0)).then_some(()))
    })
    .await?;
    wait_for("its pod is gone", async || {
        Ok(scenario.pods().get_opt("val-0").await?.is_none().then_some(()))
    })
    .await?;
    assert!(scenario.claims().get_opt("data-val").await?.is_none(), "nothing is recreated");
    scenario.until_stalled("val", "DataVolumeLost").await?;
    // An annotation is no new generation; a field that changes nothing here makes it one.
    let before = scenario.node("val").await?.metadata.generation;
    scenario
        .edit(
            "val",
            json!({
                "metadata": { "annotations": { "sei.io/recreate-volume": "x" } },
                "spec": { "update": { "onOperatorChange": "Hold" } },
            }),
        )
        .await?;
    scenario
        .until("val", "that was looked at", |status| status.observed_generation > before)
        .await?;
    // Whatever was begun then is done by the time that a whole node has been made.
    scenario.run("later", rpc("seid:v1")).await?;
    assert!(scenario.claims().get_opt("data-val").await?.is_none(), "that was another uid");
    scenario
        .edit("val", json!({ "metadata": { "annotations": { "sei.io/recreate-volume": lost } } }))
        .await?;
    scenario.settled("val").await?;
    scenario.until_not_stalled("val").await?;
    let claim = scenario.claims().get("data-val").await?;
    assert_ne!(claim.metadata.uid.as_deref(), Some(lost.as_str()));
    scenario.close().await
}

/// A copy of a key under another name.
async fn copy_key(scenario: &Scenario, address: &str, signing: &str, p2p: &str) -> Result<()> {
    let key = json!({ "type": "t", "value": "v" });
    let signs = json!({ "address": address, "pub_key": key, "priv_key": key });
    scenario.create_secret(signing, "priv_validator_key.json", &signs).await?;
    scenario.create_secret(p2p, "node_key.json", &json!({ "priv_key": key })).await
}

#[tokio::test]
async fn copies_of_a_key_created_at_once_start_one_validator() -> Result<()> {
    let scenario = Scenario::open("key-copies").await?;
    let names = ["d", "c", "b", "a"];
    for name in names {
        let (signing, p2p) = (format!("signing-{name}"), format!("p2p-{name}"));
        copy_key(&scenario, "00AA", &signing, &p2p).await?;
    }
    for name in names {
        let (signing, p2p) = (format!("signing-{name}"), format!("p2p-{name}"));
        scenario.create(name, validator("seid:v1", &signing, &p2p)).await?;
    }
    wait_for("all but one wait", async || {
        let mut waiting = 0;
        for name in names {
            let status = scenario.status(name).await?;
            let stalled = condition_text(&status, ConditionType::Stalled);
            waiting += usize::from(stalled.starts_with("True/SigningKeyConflict"));
        }
        let mut started = 0;
        for name in names {
            started += usize::from(scenario.pods_seen(name).await? > 0);
        }
        Ok((waiting == 3 && started == 1).then_some(()))
    })
    .await?;
    scenario.close().await
}

#[tokio::test]
async fn a_stopped_signer_does_not_start_again_beside_another() -> Result<()> {
    let scenario = Scenario::open("key-unpaused").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("a", validator("seid:v1", "signing", "p2p")).await?;
    scenario.edit("a", json!({ "spec": { "paused": true } })).await?;
    wait_for("its pod is gone", async || {
        Ok(scenario.pods().get_opt("a-0").await?.is_none().then_some(()))
    })
    .await?;
    // Somebody runs the same key by hand meanwhile.
    let pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "by-hand", "labels": { "sei.io/node": "by-hand" } },
        "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }],
                  "volumes": [{ "name": "k", "secret": { "secretName": "signing" } }] },
    }))?;
    scenario.pods().create(&kube::api::PostParams::default(), &pod).await?;
    scenario.edit("a", json!({ "spec": { "paused": false } })).await?;
    scenario
        .until("a", "it is told that the pod has the key", |status| {
            condition_text(status, ConditionType::Stalled)
                .contains("pod by-hand still has the signing key")
        })
        .await?;
    assert_eq!(scenario.pods_seen("a").await?, 1);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    scenario.pods().delete("by-hand", &now).await?;
    scenario.settled("a").await?;
    scenario.close().await
}
