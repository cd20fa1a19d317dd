//! The behaviour of Kubernetes controllers that the operator relies on.

use anyhow::{Context as _, Result};
use cluster_tests::{test_context, wait_for};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod};
use kube::Resource as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use serde_json::json;

fn image(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.containers.first()?.image.as_deref()
}

/// Every roll relies on this: with `OnDelete` a changed template waits until the operator deletes
/// the pod.

#[tokio::test]
async fn a_pod_is_replaced_only_when_it_is_deleted() -> Result<()> {
    let context = test_context("ondelete").await?;
    let sets: Api<StatefulSet> = Api::namespaced(context.admin.clone(), &context.namespace);
    let pods: Api<Pod> = Api::namespaced(context.admin.clone(), &context.namespace);
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
    let first = wait_for("the pod is created", async || Ok(pods.get_opt("a-0").await?)).await?;
    assert_eq!(image(&first), Some("seid:v1"));
    // A change before the controller's first status would be the first revision it records.
    wait_for("the controller has written its first status", async || {
        let status = sets.get("a").await?.status.unwrap_or_default();
        let is_reported = status.observed_generation.is_some() && status.current_revision.is_some();
        Ok((is_reported && status.replicas == 1).then_some(()))
    })
    .await?;

    let change = json!({ "spec": { "template": { "spec": {
        "containers": [{ "name": "seid", "image": "seid:v2" }] } } } });
    let changed = sets.patch("a", &PatchParams::default(), &Patch::Strategic(&change)).await?;
    wait_for("the controller has observed the change", async || {
        let status = sets.get("a").await?.status.context("the StatefulSet has no status")?;
        let is_observed = status.observed_generation >= changed.metadata.generation;
        Ok((is_observed && status.update_revision != status.current_revision).then_some(()))
    })
    .await?;
    assert_eq!(pods.get("a-0").await?.metadata.uid, first.metadata.uid);

    pods.delete("a-0", &DeleteParams::default()).await?;
    let second = wait_for("another pod is created", async || {
        let pod = pods.get_opt("a-0").await?;
        Ok(pod.filter(|pod| pod.metadata.uid != first.metadata.uid))
    })
    .await?;
    assert_eq!(image(&second), Some("seid:v2"));
    Ok(())
}

#[tokio::test]
async fn objects_owned_by_a_node_are_deleted_with_it() -> Result<()> {
    let context = test_context("owner").await?;
    let nodes: Api<SeiNode> = Api::namespaced(context.admin.clone(), &context.namespace);
    let configs: Api<ConfigMap> = Api::namespaced(context.admin.clone(), &context.namespace);
    let node = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "a" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    let node = nodes.create(&PostParams::default(), &node).await?;
    let mut owned = ConfigMap::default();
    owned.metadata.name = Some("owned".to_owned());
    owned.metadata.owner_references = Some(node.controller_owner_ref(&()).into_iter().collect());
    configs.create(&PostParams::default(), &owned).await?;

    nodes.delete("a", &DeleteParams::background()).await?;
    wait_for("the owned ConfigMap is deleted", async || {
        Ok(configs.get_opt("owned").await?.is_none().then_some(()))
    })
    .await
}

/// A claim is kept by a finalizer until no pod uses it, and a namespace by its objects.
#[tokio::test]
async fn a_namespace_with_a_claim_can_be_deleted() -> Result<()> {
    let context = test_context("empty").await?;
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(context.admin.clone(), &context.namespace);
    let claim = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data-a" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    }))?;
    let claim = claims.create(&PostParams::default(), &claim).await?;
    let finalizers: Vec<&str> =
        claim.metadata.finalizers.iter().flatten().map(String::as_str).collect();
    assert_eq!(finalizers, ["kubernetes.io/pvc-protection"]);

    let namespaces: Api<Namespace> = Api::all(context.admin.clone());
    namespaces.delete(&context.namespace, &DeleteParams::default()).await?;
    wait_for("the namespace is deleted", async || {
        Ok(namespaces.get_opt(&context.namespace).await?.is_none().then_some(()))
    })
    .await
}
