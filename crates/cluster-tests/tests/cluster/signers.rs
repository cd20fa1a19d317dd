//! One signer for each key, and no new volume without an approval.

use anyhow::{Context as _, Result, bail};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::wait_for;
use jiff::Timestamp;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use sei_api::condition::ConditionType;
use sei_rig::Behaviour;
use serde_json::json;

/// Two validators with one key: the first runs, the second reports a conflict.
async fn two_validators_with_one_key(name: &str) -> Result<Scenario> {
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
    let scenario = two_validators_with_one_key("key-freed").await?;
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.settled("b").await?;
    assert!(scenario.pods().get_opt("a-0").await?.is_none());
    scenario.close().await
}

#[tokio::test]
async fn a_second_signer_waits_until_the_first_ones_pod_has_ended() -> Result<()> {
    let scenario = two_validators_with_one_key("key-held").await?;
    let rule = scenario.set_node_behaviour("a", Behaviour::StuckTerminating);
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.until_stalled("a", "PodTerminating").await?;
    scenario.until_stalled("b", "SigningKeyConflict").await?;
    assert!(scenario.claims().get("data-a").await?.metadata.deletion_timestamp.is_none());
    assert_eq!(scenario.pods_seen("b").await?, 0);
    scenario.lift(rule);
    scenario.until_deleted("a").await?;
    scenario.settled("b").await?;
    scenario.until_not_stalled("b").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_copy_of_a_key_waits_until_the_pod_of_the_deleted_node_has_ended() -> Result<()> {
    let scenario = Scenario::open("key-copy-held").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.copy_validator_keys("signing", "copy", "p2p-copy").await?;
    scenario.run("a", validator("seid:v1", "signing", "p2p")).await?;
    let rule = scenario.set_node_behaviour("a", Behaviour::StuckTerminating);
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.create("b", validator("seid:v1", "copy", "p2p-copy")).await?;
    scenario.until_stalled("b", "SigningKeyConflict").await?;
    assert_eq!(scenario.pods_seen("b").await?, 0);
    // The user knows that the process has ended.
    let uid = scenario.node("a").await?.metadata.uid;
    let force = json!({ "metadata": { "annotations": { "sei.io/force-finalize": uid } } });
    scenario.edit("a", force).await?;
    scenario.until_deleted("a").await?;
    scenario.settled("b").await?;
    scenario.lift(rule);
    scenario.close().await
}

#[tokio::test]
async fn nothing_of_an_orphaned_node_is_deleted() -> Result<()> {
    let scenario = Scenario::open("orphaned").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    for name in ["val", "rpc"] {
        scenario.nodes().delete(name, &orphan).await?;
        scenario.until_deleted(name).await?;
    }
    for name in ["val", "rpc"] {
        let claim = scenario.claims().get(&format!("data-{name}")).await?;
        assert!(claim.metadata.deletion_timestamp.is_none(), "{name}");
        let set = scenario.statefulsets().get(name).await?;
        assert_eq!(set.spec.replicas, Some(1));
        let pod = scenario.pods().get(&format!("{name}-0")).await?;
        assert!(pod.metadata.deletion_timestamp.is_none(), "{name}");
    }
    // The pod of the signer signs on: a copy of its key does not start beside it.
    until_next_second().await?;
    scenario.copy_validator_keys("signing", "copy", "p2p-copy").await?;
    scenario.create("copy", validator("seid:v1", "copy", "p2p-copy")).await?;
    scenario.until_stalled("copy", "SigningStateLost").await?;
    assert_eq!(scenario.pods_seen("copy").await?, 0);
    scenario.close().await
}

/// Waits until what is created from now on is younger: times of the server have no fractions.
async fn until_next_second() -> Result<()> {
    let second = Timestamp::now().as_second();
    wait_for("the next second begins", async || {
        Ok((Timestamp::now().as_second() > second).then_some(()))
    })
    .await
}

/// How many attempts there are: a busy machine may need more than a second for the first node.
const ATTEMPTS: usize = 10;

#[tokio::test]
async fn of_two_signers_created_in_one_second_only_one_starts() -> Result<()> {
    let scenario = Scenario::open("key-race").await?;
    for round in 0..ATTEMPTS {
        let [z, a] = ["z", "a"].map(|name| format!("{name}-{round}"));
        let (signing, p2p) = (format!("signing-{round}"), format!("p2p-{round}"));
        scenario.create_validator_keys(&signing, &p2p).await?;
        // Creation timestamps are whole seconds: both must be in the same second.
        wait_for("a second starts", async || {
            Ok((Timestamp::now().subsec_nanosecond() < 150_000_000).then_some(()))
        })
        .await?;
        scenario.create(&z, validator("seid:v1", &signing, &p2p)).await?;
        wait_for("its StatefulSet is created", async || {
            Ok(scenario.statefulsets().get_opt(&z).await?)
        })
        .await?;
        scenario.create(&a, validator("seid:v1", &signing, &p2p)).await?;
        scenario.until_stalled(&a, "SigningKeyConflict").await?;
        scenario.settled(&z).await?;
        assert_eq!(scenario.pods_seen(&a).await?, 0);
        let [z, a] = [scenario.node(&z).await?, scenario.node(&a).await?];
        if z.metadata.creation_timestamp == a.metadata.creation_timestamp {
            return scenario.close().await;
        }
    }
    bail!("no two nodes were created in one second")
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
    let lost =
        scenario.claims().get("data-val").await?.metadata.uid.context("the claim has no uid")?;
    scenario.claims().delete("data-val", &DeleteParams::default()).await?;
    scenario.until_stalled("val", "DataVolumeLost").await?;
    scenario.evict("val").await?;
    wait_for("it is scaled to zero replicas", async || {
        let set = scenario.statefulsets().get("val").await?;
        Ok((set.spec.replicas == Some(0)).then_some(()))
    })
    .await?;
    wait_for("its pod is deleted", async || {
        Ok(scenario.pods().get_opt("val-0").await?.is_none().then_some(()))
    })
    .await?;
    assert!(scenario.claims().get_opt("data-val").await?.is_none(), "the volume was recreated");
    scenario.until_stalled("val", "DataVolumeLost").await?;
    // An annotation does not change the generation; a spec field without an effect here does.
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
        .until("val", "the edit is observed", |status| status.observed_generation > before)
        .await?;
    // Any action started by then is complete once another node has been created.
    scenario.run("later", rpc("seid:v1")).await?;
    assert!(
        scenario.claims().get_opt("data-val").await?.is_none(),
        "the volume was recreated by the approval of another uid"
    );
    scenario
        .edit("val", json!({ "metadata": { "annotations": { "sei.io/recreate-volume": lost } } }))
        .await?;
    scenario.settled("val").await?;
    scenario.until_not_stalled("val").await?;
    let claim = scenario.claims().get("data-val").await?;
    assert_ne!(claim.metadata.uid.as_deref(), Some(lost.as_str()));
    scenario.close().await
}

#[tokio::test]
async fn copies_of_a_key_created_at_once_start_one_validator() -> Result<()> {
    let scenario = Scenario::open("key-copies").await?;
    let names = ["d", "c", "b", "a"];
    for name in names {
        let (signing, p2p) = (format!("signing-{name}"), format!("p2p-{name}"));
        scenario.copy_validator_keys("key", &signing, &p2p).await?;
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
    wait_for("its pod is deleted", async || {
        Ok(scenario.pods().get_opt("a-0").await?.is_none().then_some(()))
    })
    .await?;
    // A manually created pod uses the same key meanwhile.
    let pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "manual", "labels": { "sei.io/node": "manual" } },
        "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }],
                  "volumes": [{ "name": "k", "secret": { "secretName": "signing" } }] },
    }))?;
    scenario.pods().create(&kube::api::PostParams::default(), &pod).await?;
    scenario.edit("a", json!({ "spec": { "paused": false } })).await?;
    scenario
        .until("a", "its condition names the pod that has the key", |status| {
            condition_text(status, ConditionType::Stalled)
                .contains("pod manual still has the signing key")
        })
        .await?;
    assert_eq!(scenario.pods_seen("a").await?, 1);
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    scenario.pods().delete("manual", &now).await?;
    scenario.settled("a").await?;
    scenario.close().await
}

#[tokio::test]
async fn no_copy_of_a_key_starts_beside_a_signer_without_a_record() -> Result<()> {
    let scenario = Scenario::open("key-unknown").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("a", validator("seid:v1", "signing", "p2p")).await?;
    let identity = scenario.status("a").await?.signing_identity;
    scenario.delete_secret("signing").await?;
    scenario.wipe_status("a").await?;
    scenario.copy_validator_keys("signing", "copy", "p2p-copy").await?;
    scenario.create("b", validator("seid:v1", "copy", "p2p-copy")).await?;
    let stalled = async |text: &str| {
        let expected = format!("its condition contains {text:?}");
        scenario
            .until("b", &expected, |status| {
                let condition = condition_text(status, ConditionType::Stalled);
                condition.starts_with("True/SigningKeyConflict") && condition.contains(text)
            })
            .await
    };
    stalled("a signs with a key that is not known yet").await?;
    scenario.copy_secret_of_key("signing", "signing").await?;
    scenario
        .until("a", "its identity is recorded", |status| status.signing_identity == identity)
        .await?;
    stalled("StatefulSet a still has the signing key").await?;
    assert_eq!(scenario.pods_seen("b").await?, 0);
    assert_eq!(scenario.pods_seen("a").await?, 1, "the running signer is left alone");
    scenario.close().await
}

#[tokio::test]
async fn a_signer_recreated_without_its_volume_is_held_until_that_is_accepted() -> Result<()> {
    let scenario = Scenario::open("state-lost").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("a", validator("seid:v1", "signing", "p2p")).await?;
    let policy = json!({ "spec": { "dataVolume": { "onDelete": "Delete" } } });
    scenario.edit("a", policy).await?;
    scenario.nodes().delete("a", &DeleteParams::default()).await?;
    scenario.until_deleted("a").await?;
    until_next_second().await?;
    scenario.create("a", validator("seid:v1", "signing", "p2p")).await?;
    let status = scenario.until_stalled("a", "SigningStateLost").await?;
    assert_eq!(scenario.pods_seen("a").await?, 1, "only the pod of the deleted node");
    let stalled = condition_text(&status, ConditionType::Stalled);
    let identity = status.signing_identity.context("no identity is recorded")?;
    assert!(stalled.contains(&identity), "{stalled}");
    let accept = |identity: &str| {
        json!({ "metadata": { "annotations": {
        "sei.io/accept-blank-signing-state": identity } } })
    };
    // A later edit of the record by a person is not its time.
    until_next_second().await?;
    for record in scenario.config_maps().list(&ListParams::default()).await? {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "team": "a" } } }));
        let person = PatchParams { field_manager: Some("person".into()), ..PatchParams::default() };
        scenario.config_maps().patch(&record.name_any(), &person, &patch).await?;
    }
    scenario.edit("a", accept("another")).await?;
    // Any start is complete once another node has been created.
    scenario.run("later", rpc("seid:v1")).await?;
    scenario.until_stalled("a", "SigningStateLost").await?;
    assert_eq!(scenario.pods_seen("a").await?, 1, "the edit of the record let it start");
    scenario.edit("a", accept(&identity)).await?;
    scenario.settled("a").await?;
    scenario.until_not_stalled("a").await?;
    scenario.close().await
}
