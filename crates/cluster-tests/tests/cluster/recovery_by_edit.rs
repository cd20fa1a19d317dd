//! What an edit can mend: nodes that are stuck through something which somebody takes back.

use anyhow::Result;
use cluster_tests::scenario::{Play, rpc};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::LimitRange;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use sei_rig::Doing;
use serde_json::json;

#[tokio::test]
async fn a_revert_reaches_a_node_whose_pod_the_server_refuses() -> Result<()> {
    let play = Play::open("pod-reverted").await?;
    let limit: LimitRange = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "large" },
        "spec": { "limits": [{ "type": "Container", "max": { "memory": "1Ti" } }] },
    }))?;
    let limits: Api<LimitRange> = Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    limits.create(&PostParams::default(), &limit).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let too_much = json!({ "limits": { "memory": "2Ti" }, "requests": { "memory": "1Gi" } });
    play.edit("rpc", json!({ "spec": { "sidecar": { "resources": too_much } } })).await?;
    play.until_stalled("rpc", "StatefulSetNotObserved").await?;
    play.edit("rpc", json!({ "spec": { "sidecar": null } })).await?;
    play.settled("rpc").await?;
    play.until_not_stalled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

#[tokio::test]
async fn another_image_arrives_although_a_restore_never_ends() -> Result<()> {
    let play = Play::open("restore-hangs").await?;
    let namespace = play.scene.namespace.clone();
    play.sidecars().set(&namespace, None, "snapshot-restore", Doing::Hold);
    let mut spec = rpc("seid:v1");
    spec["fullNode"] = json!({ "snapshot": { "s3": { "targetHeight": 5 } } });
    play.create("rpc", spec).await?;
    play.until_submitted("rpc", "snapshot-restore", 0).await?;
    play.set_image("rpc", "seid:v2").await?;
    // The task of the plan before is taken back, or the next one would never be run.
    play.until_submitted("rpc", "snapshot-restore", 1).await?;
    play.sidecars().set(&namespace, None, "snapshot-restore", Doing::Usual);
    play.settled("rpc").await?;
    play.close().await
}

#[tokio::test]
async fn a_statefulset_gets_its_labels_back() -> Result<()> {
    let play = Play::open("labels-taken").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "sei.io/node": null } } }));
    play.statefulsets().patch("rpc", &PatchParams::default(), &patch).await?;
    wait_for("the label is back", async || {
        let found = play.statefulsets().get("rpc").await?;
        let labels = found.metadata.labels.unwrap_or_default();
        Ok(labels.contains_key("sei.io/node").then_some(()))
    })
    .await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

#[tokio::test]
async fn peers_are_in_the_first_configuration() -> Result<()> {
    let play = Play::open("first-peers").await?;
    for name in ["a", "b"] {
        play.run(name, rpc("seid:v1")).await?;
        play.edit(name, json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    }
    let mut spec = rpc("seid:v1");
    spec["peers"] = json!([{ "label": { "selector": { "tier": "rpc" } } }]);
    play.run("c", spec).await?;
    let submitted = play.sidecars().submissions(&play.scene.namespace, "c");
    let written = submitted.iter().find(|one| one.task_type == "config-apply");
    let written = written.map(|one| one.params.to_string()).unwrap_or_default();
    for peer in ["@a-0.a.", "@b-0.b."] {
        assert!(written.contains(peer), "{peer} is not in {written}");
    }
    play.close().await
}

/// Labels of the node's pod that the spec asked for.
async fn asked_labels(play: &Play) -> Result<Vec<String>> {
    let labels = play.pods().get("rpc-0").await?.metadata.labels.unwrap_or_default();
    let asked = labels.into_keys().filter(|key| key.starts_with("example.org/"));
    Ok(asked.collect())
}

#[tokio::test]
async fn what_is_taken_out_of_the_spec_is_taken_out_of_the_pod() -> Result<()> {
    let play = Play::open("taken-out").await?;
    let mut spec = rpc("seid:v1");
    spec["podLabels"] = json!({ "example.org/a": "1", "example.org/b": "1", "example.org/c": "1" });
    play.run("rpc", spec).await?;
    assert_eq!(asked_labels(&play).await?.len(), 3);
    play.edit("rpc", json!({ "spec": { "podLabels": { "example.org/b": null } } })).await?;
    play.settled("rpc").await?;
    assert_eq!(asked_labels(&play).await?, ["example.org/a", "example.org/c"]);
    assert_eq!(play.pods_seen("rpc").await?, 2);
    // Now after an apply: the create's part in it is over.
    play.edit("rpc", json!({ "spec": { "podLabels": { "example.org/c": null } } })).await?;
    play.settled("rpc").await?;
    assert_eq!(asked_labels(&play).await?, ["example.org/a"]);
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}
