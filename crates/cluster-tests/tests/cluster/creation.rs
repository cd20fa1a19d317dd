//! The objects of a new node whose pod cannot be scheduled.

use anyhow::Result;
use cluster_tests::operator::{self, Setup};
use cluster_tests::{test_context, wait_for};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use kube::api::{Api, PostParams};
use sei_api::SeiNode;
use sei_api::status::SeiNodePhase;
use sei_rig::{Behaviour, Rule};
use serde_json::json;

#[tokio::test]
async fn a_new_node_gets_its_objects_by_a_stored_plan() -> Result<()> {
    let context = test_context("creation").await?;
    context.kubelet().behave(&context.namespace, Rule::new(Behaviour::Unschedulable));
    let _operator = operator::start(&context, Setup::default()).await?;
    let nodes: Api<SeiNode> = Api::namespaced(context.admin.clone(), &context.namespace);
    let node: SeiNode = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "rpc" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let sets: Api<StatefulSet> = Api::namespaced(context.admin.clone(), &context.namespace);
    let set =
        wait_for("the StatefulSet is created", async || Ok(sets.get_opt("rpc").await?)).await?;
    let annotations = set.metadata.annotations.unwrap_or_default();
    assert!(annotations["sei.io/template-hash"].starts_with("v1:"));
    let services: Api<Service> = Api::namespaced(context.admin.clone(), &context.namespace);
    wait_for("the Service is created", async || Ok(services.get_opt("rpc").await?)).await?;
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(context.admin.clone(), &context.namespace);
    assert!(claims.get_opt("data-rpc").await?.is_some());
    let maps: Api<ConfigMap> = Api::namespaced(context.admin.clone(), &context.namespace);
    assert!(maps.get_opt("rpc-rbac-proxy-config").await?.is_some());
    let status = nodes.get("rpc").await?.status.unwrap_or_default();
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert!(status.plan.is_some_and(|plan| plan.is_active()));
    Ok(())
}
