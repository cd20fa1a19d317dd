//! One key, one signer: the look at the server before a node that signs gets its StatefulSet.
//!
//! Caches are not enough here: of two nodes made in one moment each may not have seen the other,
//! and the pod of a deleted node signs until it has ended, long after its node is gone.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use sei_api::SeiNode;
use sei_api::names::label;
use sei_exec::call::call;
use sei_plan::request::Failure;

use crate::context::Context;

/// Refuses a start beside whatever has the same key or volume.
pub(crate) async fn ensure_alone(node: &SeiNode, context: &Context) -> Result<(), Failure> {
    let (secret, claim) = (node.spec.signing_secret(), node.spec.imported_claim());
    if !node.spec.signs() || (secret.is_none() && claim.is_none()) {
        return Ok(());
    }
    let (client, namespace) = (&context.client, node.namespace().unwrap_or_default());
    let nodes: Api<SeiNode> = Api::namespaced(client.clone(), &namespace);
    let nodes = call("list seinodes", nodes.list(&ListParams::default())).await?;
    if let Some(with) = older_holder(node, nodes.items.iter()) {
        return Err(Failure::SigningKey(format!("{with} has the same signing key or volume")));
    }
    let ours = ListParams::default().labels(label::NODE);
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &namespace);
    let sets = call("list statefulsets", sets.list(&ours)).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pods = call("list pods", pods.list(&ours)).await?;
    let is_others = |one: Option<&String>| one != node.metadata.name.as_ref();
    let sets = sets.items.iter().filter_map(|one| {
        let used = uses(one.spec.template.spec.as_ref(), secret, claim);
        (used && is_others(one.labels().get(label::NODE)))
            .then(|| format!("StatefulSet {}", one.name_any()))
    });
    let pods = pods.items.iter().filter_map(|one| {
        let used = uses(one.spec.as_ref(), secret, claim) && !has_ended(one);
        (used && is_others(one.labels().get(label::NODE)))
            .then(|| format!("pod {}", one.name_any()))
    });
    match sets.chain(pods).next() {
        Some(by) => Err(Failure::SigningKey(format!("{by} still has the signing key or volume"))),
        None => Ok(()),
    }
}

/// An older node that has the same signing key or imports the same claim.
pub(crate) fn older_holder<'a>(
    node: &SeiNode,
    all: impl IntoIterator<Item = &'a SeiNode>,
) -> Option<String> {
    if !node.spec.signs() {
        return None;
    }
    let age = |one: &SeiNode| {
        (one.metadata.creation_timestamp.as_ref().map(|time| time.0), one.metadata.name.clone())
    };
    let same = |one: Option<&str>, other: Option<&str>| one.is_some() && one == other;
    let other = all.into_iter().find(|other| {
        other.metadata.uid != node.metadata.uid
            && other.metadata.namespace == node.metadata.namespace
            && (same(node.spec.signing_secret(), other.spec.signing_secret())
                || same(node.spec.imported_claim(), other.spec.imported_claim()))
            && age(other) < age(node)
    })?;
    let namespace = other.metadata.namespace.as_deref().unwrap_or_default();
    Some(format!("{namespace}/{}", other.metadata.name.as_deref().unwrap_or_default()))
}

fn uses(pod: Option<&PodSpec>, secret: Option<&str>, claim: Option<&str>) -> bool {
    let volumes = pod.and_then(|pod| pod.volumes.as_ref());
    volumes.into_iter().flatten().any(|volume| {
        let of_secret = volume.secret.as_ref().and_then(|one| one.secret_name.as_deref());
        let of_claim = volume.persistent_volume_claim.as_ref().map(|one| one.claim_name.as_str());
        (of_secret.is_some() && of_secret == secret) || (of_claim.is_some() && of_claim == claim)
    })
}

/// Ended for good: nothing in it runs or will run.
fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn validator(name: &str, second: u8, secret: &str) -> SeiNode {
        serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name, "namespace": "ns", "uid": name,
                          "creationTimestamp": format!("2026-01-01T00:00:0{second}Z") },
            "spec": { "chainId": "c", "image": "i", "validator": {
                "signingKey": { "secret": { "secretName": secret } },
                "nodeKey": { "secret": { "secretName": "p2p" } },
            }},
        }))
        .unwrap()
    }

    #[test]
    fn the_older_node_holds_the_key() {
        let (old, new) = (validator("z", 1, "key"), validator("a", 2, "key"));
        let other = validator("b", 0, "another");
        let all = [old.clone(), new.clone(), other];
        assert_eq!(older_holder(&new, &all).as_deref(), Some("ns/z"));
        assert_eq!(older_holder(&old, &all), None);
    }

    #[test]
    fn a_key_or_claim_is_used_by_whoever_mounts_it() {
        let pod = |volumes: Value| -> PodSpec {
            serde_json::from_value(json!({ "containers": [], "volumes": volumes })).unwrap()
        };
        let signs = pod(json!([{ "name": "k", "secret": { "secretName": "key" } }]));
        let stores = pod(json!([{ "name": "d", "persistentVolumeClaim": { "claimName": "c" } }]));
        let plain = pod(json!([{ "name": "e", "emptyDir": {} }]));
        assert!(uses(Some(&signs), Some("key"), None));
        assert!(!uses(Some(&signs), Some("other"), Some("key")));
        assert!(uses(Some(&stores), Some("key"), Some("c")));
        assert!(!uses(Some(&plain), None, None) && !uses(None, Some("key"), None));
    }
}
