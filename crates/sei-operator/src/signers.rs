//! One key, one signer: the look at the server before a node that signs may start.
//!
//! Caches are not enough here: of two nodes made in one moment each may not have seen the other,
//! and the pod of a deleted node signs until it has ended, long after its node is gone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use sei_api::SeiNode;
use sei_api::names::label;
use sei_exec::call::{call, find};
use sei_plan::request::Failure;
use sei_plan::signers;

use crate::context::Context;

/// Refuses a start beside whatever has the same key or volume. The caller holds
/// [`Context::signing`] until the start is written, so that of two only one is let through.
pub(crate) async fn ensure_alone(node: &SeiNode, context: &Context) -> Result<(), Failure> {
    let (client, namespace) = (&context.client, node.namespace().unwrap_or_default());
    let resource = ApiResource::erase::<SeiNode>(&());
    let nodes: Api<DynamicObject> = match &context.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let nodes = call("list seinodes", nodes.list(&ListParams::default())).await?;
    let stored = nodes.items.iter().filter_map(|one| serde_json::to_value(one).ok());
    let nodes: Vec<SeiNode> = stored.filter_map(|one| signers::read(&one)).collect();
    if let Some(with) = signers::older_holder(node, &nodes) {
        return Err(Failure::SigningKey(format!("{with} has the same signing key or volume")));
    }
    for rival in signers::rivals(node, &nodes) {
        let of_rival = rival.namespace().unwrap_or_default();
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &of_rival);
        if find("get statefulset", sets.get(&rival.name_any())).await?.is_some() {
            let with = signers::named(rival);
            return Err(Failure::SigningKey(format!("{with} has started with the same key")));
        }
    }
    let ours = ListParams::default().labels(label::NODE);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let sets = call("list statefulsets", sets.list(&ours)).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = call("list pods", pods.list(&ours)).await?;
    match signers::still_used(node, &sets.items, &pods.items) {
        Some(by) => Err(Failure::SigningKey(format!("{by} still has the signing key or volume"))),
        None => Ok(()),
    }
}
