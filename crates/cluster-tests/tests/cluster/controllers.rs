//! What we rely on in the controllers of Kubernetes.

use anyhow::{Context as _, Result};
use cluster_tests::{scene, wait_for};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// The ground under every roll: with `OnDelete` a changed template waits until we delete the pod.
#[tokio::test]
async fn a_pod_is_replaced_only_when_it_is_deleted() -> Result<()> {
    let scene = scene("ondelete").await?;
    let sets: Api<StatefulSet> = Api::namespaced(scene.admin.clone(), &scene.namespace);
    let pods: Api<Pod> = Api::namespaced(scene.admin.clone(), &scene.namespace);
    let labels = json!({ "app": "a" });
    let set = serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "a" },
        "spec": {
            "replicas": 1, "serviceName": "a", "selector": { "matchLabels": labels },
            "updateStrategy": { "type": "OnDelete" },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }] },
            },
        },
    }))?;
    sets.create(&PostParams::default(), &set).await?;
    let first = wait_for("the pod is made", async || Ok(pods.get_opt("a-0").await?)).await?;
    assert_eq!(image(&first), Some("seid:v1"));

    let change = json!({ "spec": { "template": { "spec": {
        "containers": [{ "name": "seid", "image": "seid:v2" }] } } } });
    let changed = sets.patch("a", &PatchParams::default(), &Patch::Strategic(&change)).await?;
    wait_for("the controller has seen the change", async || {
        let status = sets.get("a").await?.status.context("it has a status")?;
        let is_seen = status.observed_generation >= changed.metadata.generation;
        Ok((is_seen && status.update_revision != status.current_revision).then_some(()))
    })
    .await?;
    assert_eq!(pods.get("a-0").await?.metadata.uid, first.metadata.uid);

    pods.delete("a-0", &DeleteParams::default()).await?;
    let second = wait_for("another pod is made", async || {
        let pod = pods.get_opt("a-0").await?;
        Ok(pod.filter(|pod| pod.metadata.uid != first.metadata.uid))
    })
    .await?;
    assert_eq!(image(&second), Some("seid:v2"));
    Ok(())
}
