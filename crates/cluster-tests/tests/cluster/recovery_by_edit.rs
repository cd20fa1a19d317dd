//! Stuck nodes that recover when an edit removes the cause.

use anyhow::Result;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::wait_for;
use k8s_openapi::api::core::v1::LimitRange;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use sei_rig::Doing;
use serde_json::json;

#[tokio::test]
async fn a_revert_reaches_a_node_whose_pod_the_server_refuses() -> Result<()> {
    let scenario = Scenario::open("pod-reverted").await?;
    let limit: LimitRange = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "large" },
        "spec": { "limits": [{ "type": "Container", "max": { "memory": "1Ti" } }] },
    }))?;
    let limits: Api<LimitRange> = Api::namespaced(scenario.admin(), scenario.namespace());
    limits.create(&PostParams::default(), &limit).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let too_much = json!({ "limits": { "memory": "2Ti" }, "requests": { "memory": "1Gi" } });
    scenario.edit("rpc", json!({ "spec": { "sidecar": { "resources": too_much } } })).await?;
    scenario.until_stalled("rpc", "StatefulSetNotObserved").await?;
    scenario.edit("rpc", json!({ "spec": { "sidecar": null } })).await?;
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn another_image_is_applied_although_a_restore_never_ends() -> Result<()> {
    let scenario = Scenario::open("restore-hangs").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.sidecars().set(&namespace, None, "snapshot-restore", Doing::Hold);
    let mut spec = rpc("seid:v1");
    spec["fullNode"] = json!({ "snapshot": { "s3": { "targetHeight": 5 } } });
    scenario.create("rpc", spec).await?;
    scenario.until_submitted("rpc", "snapshot-restore", 0).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    // The operator cancels the task of the previous plan; otherwise the next one would never run.
    scenario.until_submitted("rpc", "snapshot-restore", 1).await?;
    scenario.sidecars().set(&namespace, None, "snapshot-restore", Doing::Usual);
    scenario.settled("rpc").await?;
    scenario.close().await
}

#[tokio::test]
async fn removed_labels_of_a_statefulset_are_restored() -> Result<()> {
    let scenario = Scenario::open("labels-removed").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "sei.io/node": null } } }));
    scenario.statefulsets().patch("rpc", &PatchParams::default(), &patch).await?;
    wait_for("the label is restored", async || {
        let found = scenario.statefulsets().get("rpc").await?;
        let labels = found.metadata.labels.unwrap_or_default();
        Ok(labels.contains_key("sei.io/node").then_some(()))
    })
    .await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn peers_are_in_the_first_configuration() -> Result<()> {
    let scenario = Scenario::open("first-peers").await?;
    for name in ["a", "b"] {
        scenario.run(name, rpc("seid:v1")).await?;
        scenario.edit(name, json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    }
    let mut spec = rpc("seid:v1");
    spec["peers"] = json!([{ "label": { "selector": { "tier": "rpc" } } }]);
    scenario.run("c", spec).await?;
    let submitted = scenario.sidecars().submissions(scenario.namespace(), "c");
    let written = submitted.iter().find(|submission| submission.task_type == "config-apply");
    let written = written.map(|submission| submission.params.to_string()).unwrap_or_default();
    for peer in ["@a-0.a.", "@b-0.b."] {
        assert!(written.contains(peer), "{peer} is not in {written}");
    }
    scenario.close().await
}

/// The labels of the node's pod that come from the spec.
async fn spec_labels(scenario: &Scenario) -> Result<Vec<String>> {
    let labels = scenario.pods().get("rpc-0").await?.metadata.labels.unwrap_or_default();
    let from_spec = labels.into_keys().filter(|key| key.starts_with("example.org/"));
    Ok(from_spec.collect())
}

#[tokio::test]
async fn labels_removed_from_the_spec_are_removed_from_the_pod() -> Result<()> {
    let scenario = Scenario::open("spec-labels").await?;
    let mut spec = rpc("seid:v1");
    spec["podLabels"] = json!({ "example.org/a": "1", "example.org/b": "1", "example.org/c": "1" });
    scenario.run("rpc", spec).await?;
    assert_eq!(spec_labels(&scenario).await?.len(), 3);
    scenario.edit("rpc", json!({ "spec": { "podLabels": { "example.org/b": null } } })).await?;
    scenario.settled("rpc").await?;
    assert_eq!(spec_labels(&scenario).await?, ["example.org/a", "example.org/c"]);
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    // The second removal follows an apply: the create owns no field any more.
    scenario.edit("rpc", json!({ "spec": { "podLabels": { "example.org/c": null } } })).await?;
    scenario.settled("rpc").await?;
    assert_eq!(spec_labels(&scenario).await?, ["example.org/a"]);
    assert_eq!(scenario.pods_seen("rpc").await?, 3);
    scenario.close().await
}
