//! One key, one signer: finds another node or pod that holds the key or volume of a node.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::SeiNode;
use sei_api::names::label;
use serde_json::{Value, json};

use crate::request::MountView;
use crate::view;

/// Decodes the key and the volume of a stored node. A node that a newer operator wrote may have
/// unknown fields; it must neither block other nodes nor be overlooked.
pub fn read(stored: &Value) -> Option<SeiNode> {
    if let Ok(node) = serde_json::from_value(stored.clone()) {
        return Some(node);
    }
    let (spec, status) = (&stored["spec"], &stored["status"]);
    let key = &spec["validator"]["signingKey"]["secret"]["secretName"];
    let claim = &spec["dataVolume"]["import"]["pvcName"];
    let mut known = json!({
        "apiVersion": stored["apiVersion"], "kind": stored["kind"],
        "metadata": stored["metadata"],
        "spec": { "chainId": spec["chainId"], "image": spec["image"] },
        "status": { "signingIdentity": status["signingIdentity"] },
    });
    if !key.is_null() {
        known["spec"]["validator"] = json!({ "signingKey": { "secret": { "secretName": key } } });
    }
    if !claim.is_null() {
        known["spec"]["dataVolume"] = json!({ "import": { "pvcName": claim } });
    }
    serde_json::from_value(known).ok()
}

/// An older node with the same key or volume. The older node keeps them and the newer one waits, so
/// that both reach the same result.
pub fn older_holder<'a>(
    node: &SeiNode,
    all: impl IntoIterator<Item = &'a SeiNode>,
) -> Option<String> {
    let is_holder = |candidate: &&SeiNode| shares(node, candidate) && age(candidate) < age(node);
    all.into_iter().find(is_holder).map(named)
}

/// Every other node that would sign as the same validator, or on the same volume.
pub fn rivals<'a>(node: &SeiNode, all: impl IntoIterator<Item = &'a SeiNode>) -> Vec<&'a SeiNode> {
    all.into_iter().filter(|candidate| shares(node, candidate)).collect()
}

/// The StatefulSet or pod in the node's namespace that still mounts its key or volume. A
/// StatefulSet can start a pod with it, and a pod signs until it has ended, possibly long after its
/// node was deleted.
pub fn still_used(node: &SeiNode, mounts: &[MountView]) -> Option<String> {
    let (secret, claim) = (node.spec.signing_secret(), node.spec.imported_claim());
    let mounted = |names: &[String], name: Option<&str>| {
        name.is_some_and(|name| names.iter().any(|mounted| mounted == name))
    };
    let user = mounts.iter().find(|mount| {
        mount.node != node.metadata.name
            && !mount.ended
            && (mounted(&mount.secrets, secret) || mounted(&mount.claims, claim))
    })?;
    Some(format!("{} {}", user.kind, user.name))
}

/// Whether a node has a key or a volume that only one node may have.
pub fn is_exclusive(node: &SeiNode) -> bool {
    let spec = &node.spec;
    spec.signs() && (spec.signing_secret().is_some() || spec.imported_claim().is_some())
}

fn shares(node: &SeiNode, candidate: &SeiNode) -> bool {
    if !node.spec.signs() || candidate.metadata.uid == node.metadata.uid {
        return false;
    }
    let same = |left: Option<&str>, right: Option<&str>| left.is_some() && left == right;
    let here = candidate.metadata.namespace == node.metadata.namespace;
    let identity = |node: &SeiNode| node.status.as_ref()?.signing_identity.clone();
    let as_validator = candidate.spec.chain_id == node.spec.chain_id
        && same(identity(node).as_deref(), identity(candidate).as_deref());
    as_validator
        || (here && same(node.spec.signing_secret(), candidate.spec.signing_secret()))
        || (here && same(node.spec.imported_claim(), candidate.spec.imported_claim()))
}

fn age(node: &SeiNode) -> (Option<jiff::Timestamp>, Option<&String>, Option<&String>) {
    let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
    (created, node.metadata.name.as_ref(), node.metadata.namespace.as_ref())
}

/// `namespace/name`.
pub fn named(node: &SeiNode) -> String {
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", node.metadata.name.as_deref().unwrap_or_default())
}

/// A StatefulSet with what its pods mount.
pub fn statefulset_mounts(set: &StatefulSet) -> MountView {
    mounts("StatefulSet", &set.metadata, set.spec.template.spec.as_ref())
}

/// A pod with what it mounts.
pub fn pod_mounts(pod: &Pod) -> MountView {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    MountView { ended, ..mounts("pod", &pod.metadata, pod.spec.as_ref()) }
}

/// Whether an object with the label of this node is the node's. Anything else with that label that
/// mounts a key may sign with it beside the node.
fn is_of(node: &str, kind: &str, metadata: &ObjectMeta) -> bool {
    match kind {
        "pod" => view::is_made_for(node, metadata),
        _ => metadata.name.as_deref() == Some(node),
    }
}

fn mounts(kind: &'static str, metadata: &ObjectMeta, spec: Option<&PodSpec>) -> MountView {
    let volumes = || spec.and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    let secret =
        |volume: &Volume| volume.secret.as_ref().and_then(|source| source.secret_name.clone());
    let claim = |volume: &Volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone());
    MountView {
        kind,
        name: metadata.name.clone().unwrap_or_default(),
        node: metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(label::NODE))
            .filter(|node| is_of(node, kind, metadata))
            .cloned(),
        secrets: volumes().filter_map(secret).collect(),
        claims: volumes().filter_map(claim).collect(),
        ended: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn validator(namespace: &str, name: &str, second: u8, secret: &str, identity: &str) -> SeiNode {
        serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name, "namespace": namespace, "uid": name,
                          "creationTimestamp": format!("2026-01-01T00:00:0{second}Z") },
            "spec": { "chainId": "c", "image": "i", "validator": {
                "signingKey": { "secret": { "secretName": secret } },
                "nodeKey": { "secret": { "secretName": "p2p" } },
            }},
            "status": { "signingIdentity": identity },
        }))
        .unwrap()
    }

    #[test]
    fn the_older_node_holds_the_key() {
        let old = validator("ns", "z", 1, "key", "one");
        let new = validator("ns", "a", 2, "key", "two");
        let unrelated = validator("ns", "b", 0, "another", "three");
        let all = [old.clone(), new.clone(), unrelated];
        assert_eq!(older_holder(&new, &all).as_deref(), Some("ns/z"));
        assert_eq!(older_holder(&old, &all), None);
        assert_eq!(rivals(&old, &all).len(), 1);
    }

    #[test]
    fn a_copy_of_a_key_in_another_namespace_is_the_same_validator() {
        let old = validator("here", "z", 1, "key", "same");
        let new = validator("there", "a", 2, "copy", "same");
        let all = [old.clone(), new.clone()];
        assert_eq!(older_holder(&new, &all).as_deref(), Some("here/z"));
        let mut elsewhere = new.clone();
        elsewhere.spec.chain_id = "another".into();
        assert_eq!(older_holder(&elsewhere, &all), None, "another chain has other blocks");
        let namesake = validator("there", "a", 2, "key", "other");
        assert_eq!(
            older_holder(&namesake, &all),
            None,
            "a Secret of the same name in another namespace"
        );
    }

    #[test]
    fn a_node_that_cannot_be_decoded_still_has_its_key() {
        let new = validator("ns", "n", 2, "key", "one");
        let mut stored = serde_json::to_value(validator("ns", "o", 1, "key", "one")).unwrap();
        stored["status"]["plan"] = json!({ "phase": "FromTheFuture" });
        stored["spec"]["validator"]["mood"] = json!({ "new": [1] });
        stored["spec"]["podLabels"] = json!(["not", "a", "map"]);
        stored["spec"]["dataVolume"] = json!({ "import": { "pvcName": "disk" }, "size": 7 });
        assert!(serde_json::from_value::<SeiNode>(stored.clone()).is_err());
        let old = read(&stored).unwrap();
        assert_eq!(older_holder(&new, [&old]).as_deref(), Some("ns/o"));
        assert_eq!(old.spec.imported_claim(), Some("disk"));
        assert_eq!(old.status.unwrap().signing_identity.as_deref(), Some("one"));
        assert_eq!(read(&json!({ "spec": 1 })), None);
    }

    #[test]
    fn a_key_is_in_use_until_every_pod_that_mounts_it_has_ended() {
        let node = validator("ns", "n", 1, "key", "one");
        let pod = |name: &str, volumes: Value, phase: &str| -> Pod {
            let node = &name[..1];
            serde_json::from_value(json!({
                "metadata": {
                    "name": name, "labels": { "sei.io/node": node },
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "StatefulSet", "controller": true,
                        "name": node, "uid": "u",
                    }],
                },
                "spec": { "containers": [], "volumes": volumes },
                "status": { "phase": phase },
            }))
            .unwrap()
        };
        let key = json!([{ "name": "k", "secret": { "secretName": "key" } }]);
        let plain = json!([{ "name": "e", "emptyDir": {} }]);
        let used = |pod: Pod| still_used(&node, &[pod_mounts(&pod)]);
        assert_eq!(used(pod("x-0", key.clone(), "Running")).as_deref(), Some("pod x-0"));
        assert_eq!(used(pod("x-0", key.clone(), "Failed")), None);
        assert_eq!(used(pod("n-0", key.clone(), "Running")), None, "its own");
        assert_eq!(used(pod("n-1", key.clone(), "Running")), None, "its StatefulSet was scaled");
        let mut labelled = pod("n-copy", key, "Running");
        labelled.metadata.owner_references = None;
        assert_eq!(used(labelled).as_deref(), Some("pod n-copy"), "only labelled like its own");
        assert_eq!(used(pod("x-0", plain, "Running")), None);
    }
}
