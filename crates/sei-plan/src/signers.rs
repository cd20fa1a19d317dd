//! One key, one signer: finds another node or pod that holds the key or volume of a node.

use k8s_openapi::api::core::v1::{Pod, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::SeiNode;
use sei_api::names::{data_claim, label};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::request::MountView;
use crate::view::{self, SIGNING_VOLUME, StatefulSetView};

/// What is read of a stored node that may not decode as a whole: its key and its volume. A node
/// that a newer operator wrote may have unknown fields; it must neither block candidate nodes nor be
/// overlooked.
#[derive(Debug, Deserialize)]
pub struct StoredNode {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: StoredSpec,
    #[serde(default)]
    status: StoredStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredSpec {
    chain_id: Value,
    image: Value,
    validator: Value,
    data_volume: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct StoredStatus {
    signing_identity: Value,
}

impl StoredNode {
    pub fn node(self) -> Option<SeiNode> {
        let Self { metadata, spec, status } = self;
        let key = &spec.validator["signingKey"]["secret"]["secretName"];
        let claim = &spec.data_volume["import"]["pvcName"];
        let mut known = json!({ "chainId": spec.chain_id, "image": spec.image });
        if !key.is_null() {
            known["validator"] = json!({ "signingKey": { "secret": { "secretName": key } } });
        }
        if !claim.is_null() {
            known["dataVolume"] = json!({ "import": { "pvcName": claim } });
        }
        let status = json!({ "signingIdentity": status.signing_identity });
        Some(SeiNode {
            metadata,
            spec: serde_json::from_value(known).ok()?,
            status: serde_json::from_value(status).ok()?,
        })
    }
}

/// The stored node, or what can be read of it.
pub fn read(stored: &Value) -> Option<SeiNode> {
    let whole = SeiNode::deserialize(stored).ok();
    whole.or_else(|| StoredNode::deserialize(stored).ok()?.node())
}

/// The nodes that may have the key or the volume of `node`, which signs as `identity`. Whether they
/// do is shown by what they mount.
pub fn candidates<'a>(
    node: &SeiNode,
    identity: Option<&str>,
    all: impl IntoIterator<Item = &'a SeiNode>,
) -> Vec<&'a SeiNode> {
    let all = all.into_iter();
    all.filter(|candidate| is_related(node, identity, candidate)).collect()
}

/// What prevents `node` from starting. `mounts` are the objects in its namespace and those of its
/// candidates.
///
/// A pod signs until it has ended, possibly long after its node was deleted, and a StatefulSet with
/// replicas can start one. Among nodes that could start, the one whose StatefulSet has the key keeps
/// it; otherwise the oldest node gets it, so that all of them reach the same result.
pub fn conflict(
    node: &SeiNode,
    identity: Option<&str>,
    candidates: &[&SeiNode],
    mounts: &[MountView],
) -> Option<String> {
    let mine = |mount: &&MountView| mount.is_of(node);
    let own = mounts.iter().find(|mount| mount.kind == STATEFUL_SET && mine(mount));
    // The chain of a node that runs is the one it runs: an edit of its spec is refused.
    let chain = own.and_then(|own| own.chain.as_deref()).unwrap_or(&node.spec.chain_id);
    let holds = own.is_some_and(|own| mounts_all(own, node));
    let owner =
        |mount: &MountView| candidates.iter().find(|candidate| mount.is_of(candidate)).copied();
    let uses = |mount: &MountView| {
        let by_key = owner(mount)
            .is_some_and(|candidate| signs_as(node, identity, candidate) != Some(false));
        let in_chain = mount.chain.as_deref().is_none_or(|candidate| candidate == chain);
        mounts_any(mount, node) || (by_key && mount.signs && in_chain)
    };
    for mount in mounts.iter().filter(|mount| !mine(mount) && uses(mount)) {
        let is_first = |candidate: &SeiNode| holds && age(node) < age(candidate);
        if mount.is_idle && (mount.is_pod() || owner(mount).is_some_and(is_first)) {
            continue;
        }
        let candidate =
            owner(mount).filter(|candidate| signs_as(node, identity, candidate).is_none());
        return Some(match candidate.filter(|_| !mounts_any(mount, node)) {
            Some(candidate) => {
                format!("{} signs with a key that is not known yet", named(candidate))
            }
            None => format!("{} still has the signing key or volume", mount.named(node)),
        });
    }
    let waits_for = |candidate: &&&SeiNode| {
        let by_key =
            signs_as(node, identity, candidate) == Some(true) && candidate.spec.chain_id == chain;
        let asks = (by_key || shares_name(node, candidate)) && age(candidate) < age(node);
        asks && candidate.metadata.deletion_timestamp.is_none()
    };
    let older = candidates.iter().find(waits_for).filter(|_| !holds)?;
    Some(format!("{} has the same signing key or volume", named(older)))
}

/// Whether a node has a key or a volume that only one node may have.
pub fn is_exclusive(node: &SeiNode) -> bool {
    node.spec.signing_secret().is_some() || node.spec.imported_claim().is_some()
}

fn is_related(node: &SeiNode, identity: Option<&str>, candidate: &SeiNode) -> bool {
    candidate.metadata.uid != node.metadata.uid
        && (shares_name(node, candidate) || signs_as(node, identity, candidate) != Some(false))
}

/// Whether both would sign as the same validator; `None` if it is not known whom the other signs as.
fn signs_as(node: &SeiNode, identity: Option<&str>, candidate: &SeiNode) -> Option<bool> {
    let theirs = candidate.status.as_ref().and_then(|status| status.signing_identity.as_deref());
    let both = node.spec.signing_secret().and(candidate.spec.signing_secret()).is_some();
    match theirs {
        Some(theirs) => Some(node.spec.signing_secret().is_some() && identity == Some(theirs)),
        None if both => None,
        None => Some(false),
    }
}

/// Whether both name the same Secret or the same claim.
fn shares_name(node: &SeiNode, candidate: &SeiNode) -> bool {
    let secret = node.spec.signing_secret();
    node.metadata.namespace == candidate.metadata.namespace
        && ((secret.is_some() && secret == candidate.spec.signing_secret())
            || claim_of(node) == claim_of(candidate))
}

/// Name of the claim that the node's pod mounts.
fn claim_of(node: &SeiNode) -> String {
    let own = || data_claim(node.metadata.name.as_deref().unwrap_or_default());
    node.spec.imported_claim().map_or_else(own, str::to_owned)
}

/// Whether the object mounts the Secret or the claim that the node names.
fn mounts_any(mount: &MountView, node: &SeiNode) -> bool {
    node.metadata.namespace.as_deref() == Some(&mount.namespace)
        && (node.spec.signing_secret().is_some_and(|name| mount.has_secret(name))
            || mount.claims.contains(&claim_of(node)))
}

fn mounts_all(own: &MountView, node: &SeiNode) -> bool {
    node.spec.signing_secret().is_none_or(|name| own.has_secret(name))
        && own.claims.contains(&claim_of(node))
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

const STATEFUL_SET: &str = "StatefulSet";
const POD: &str = "pod";

impl MountView {
    /// A StatefulSet in this namespace, with what its pods mount.
    pub fn of_statefulset(namespace: &str, set: &StatefulSetView) -> Self {
        Self {
            kind: STATEFUL_SET,
            namespace: namespace.to_owned(),
            name: set.name.clone(),
            // Not its label: a StatefulSet belongs to the node of its name, or to none.
            node: Some(set.name.clone()),
            chain: set.chain().map(str::to_owned),
            is_idle: set.replicas == Some(0),
            ..Self::of_volumes(&set.template.volumes())
        }
    }

    /// A pod with what it mounts.
    pub fn of_pod(pod: &Pod) -> Self {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let label = |name: &str| pod.metadata.labels.as_ref()?.get(name).cloned();
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
        Self {
            kind: POD,
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            // Anything else with the label that mounts a key may sign with it beside the node.
            node: label(label::NODE).filter(|node| view::is_made_for(node, &pod.metadata)),
            chain: label(label::CHAIN),
            is_idle: matches!(phase, Some("Succeeded" | "Failed")),
            ..Self::of_volumes(volumes.unwrap_or_default())
        }
    }

    fn of_volumes(volumes: &[Volume]) -> Self {
        let secret =
            |volume: &Volume| volume.secret.as_ref().and_then(|source| source.secret_name.clone());
        let claim =
            |volume: &Volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.clone());
        Self {
            secrets: volumes.iter().filter_map(secret).collect(),
            claims: volumes.iter().filter_map(claim).collect(),
            signs: volumes.iter().any(|volume| volume.name == SIGNING_VOLUME),
            ..Self::default()
        }
    }

    pub fn is_pod(&self) -> bool {
        self.kind == POD
    }

    fn has_secret(&self, name: &str) -> bool {
        self.secrets.iter().any(|mounted| mounted == name)
    }

    /// Whether it carries the label of this node.
    fn is_of(&self, node: &SeiNode) -> bool {
        self.node.is_some()
            && self.node == node.metadata.name
            && node.metadata.namespace.as_deref() == Some(&self.namespace)
    }

    /// Kind and name, with the namespace if it is not that of the node.
    fn named(&self, node: &SeiNode) -> String {
        if node.metadata.namespace.as_deref() == Some(&self.namespace) {
            format!("{} {}", self.kind, self.name)
        } else {
            format!("{} {}/{}", self.kind, self.namespace, self.name)
        }
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

    const SAME: &str = "ns/z has the same signing key or volume";

    fn conflict_of(node: &SeiNode, all: &[&SeiNode], mounts: &[MountView]) -> Option<String> {
        let identity = node.status.as_ref().unwrap().signing_identity.as_deref();
        let found = candidates(node, identity, all.iter().copied());
        conflict(node, identity, &found, mounts)
    }

    /// The StatefulSet of a node.
    fn set_of(node: &SeiNode, chain: &str, secret: &str, replicas: i32) -> MountView {
        let name = node.metadata.name.clone().unwrap();
        let claim = node.spec.imported_claim().map_or(format!("data-{name}"), str::to_owned);
        let view = StatefulSetView {
            name,
            replicas: Some(replicas),
            template: json!({
                "metadata": { "labels": { "sei.io/chain": chain } },
                "spec": { "volumes": [
                    { "name": if secret.is_empty() { "x" } else { "signing-key" },
                      "secret": { "secretName": secret } },
                    { "name": "data", "persistentVolumeClaim": { "claimName": claim } },
                ]},
            })
            .into(),
            ..StatefulSetView::default()
        };
        MountView::of_statefulset(node.metadata.namespace.as_deref().unwrap(), &view)
    }

    fn unknown(mut node: SeiNode) -> SeiNode {
        node.status.as_mut().unwrap().signing_identity = None;
        node
    }

    #[test]
    fn of_nodes_that_have_not_started_the_oldest_gets_the_key() {
        let old = validator("ns", "z", 1, "key", "one");
        let new = validator("ns", "a", 2, "key", "two");
        let unrelated = validator("ns", "b", 0, "another", "three");
        let all = [&old, &new, &unrelated];
        assert_eq!(conflict_of(&new, &all, &[]).as_deref(), Some(SAME));
        assert_eq!(conflict_of(&old, &all, &[]), None);
        let mut deleted = old.clone();
        deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
        assert_eq!(conflict_of(&new, &[&deleted, &new], &[]), None);
    }

    #[test]
    fn the_node_whose_statefulset_has_the_key_keeps_it() {
        let old = validator("ns", "z", 1, "key", "one");
        let new = validator("ns", "a", 2, "key", "one");
        let all = [&old, &new];
        // The older node has a StatefulSet without the key.
        let mounts = [set_of(&old, "c", "", 1), set_of(&new, "c", "key", 0)];
        assert_eq!(conflict_of(&new, &all, &mounts), None);
        let holder = conflict_of(&old, &all, &mounts).unwrap();
        assert_eq!(holder, "StatefulSet a still has the signing key or volume");
        // Both have it, and none runs: the older one starts.
        let mounts = [set_of(&old, "c", "key", 0), set_of(&new, "c", "key", 0)];
        assert_eq!(conflict_of(&old, &all, &mounts), None);
        assert!(conflict_of(&new, &all, &mounts).is_some());
        let runs = [set_of(&old, "c", "key", 0), set_of(&new, "c", "key", 1)];
        assert!(conflict_of(&old, &all, &runs).is_some());
    }

    #[test]
    fn a_copy_of_a_key_in_another_namespace_is_the_same_validator() {
        let old = validator("here", "z", 1, "key", "same");
        let new = validator("there", "a", 2, "copy", "same");
        let all = [&old, &new];
        assert!(conflict_of(&new, &all, &[]).unwrap().contains("here/z"));
        let runs = [set_of(&old, "c", "key", 1)];
        let holder = "StatefulSet here/z still has the signing key or volume";
        assert_eq!(conflict_of(&new, &all, &runs).as_deref(), Some(holder));
        let mut elsewhere = new.clone();
        elsewhere.spec.chain_id = "another".into();
        assert_eq!(conflict_of(&elsewhere, &all, &runs), None, "another chain has other blocks");
        let namesake = validator("there", "a", 2, "key", "other");
        assert_eq!(
            conflict_of(&namesake, &all, &runs),
            None,
            "a Secret of the same name in another namespace"
        );
    }

    #[test]
    fn an_edited_chain_id_does_not_hide_a_signer() {
        let mut old = validator("here", "z", 1, "key", "same");
        old.spec.chain_id = "edited".into();
        let new = validator("there", "a", 2, "copy", "same");
        let runs = [set_of(&old, "c", "key", 1)];
        assert!(conflict_of(&new, &[&old, &new], &runs).is_some());
        assert_eq!(conflict_of(&new, &[&old, &new], &[]), None);
        // Nor does an edit of the node that starts: its StatefulSet is of the chain before the edit.
        let mut stopped = new.clone();
        stopped.spec.chain_id = "another".into();
        let both = [set_of(&old, "c", "key", 1), set_of(&stopped, "c", "copy", 0)];
        assert!(conflict_of(&stopped, &[&old, &stopped], &both).is_some());
    }

    #[test]
    fn no_signer_starts_beside_one_of_unknown_identity() {
        let old = unknown(validator("here", "z", 1, "key", ""));
        let new = validator("there", "a", 2, "copy", "one");
        let runs = [set_of(&old, "c", "key", 1)];
        let why = "here/z signs with a key that is not known yet";
        assert_eq!(conflict_of(&new, &[&old, &new], &runs).as_deref(), Some(why));
        assert_eq!(conflict_of(&new, &[&old, &new], &[]), None, "it has not started");
        let another_chain = [set_of(&old, "d", "key", 1)];
        assert_eq!(conflict_of(&new, &[&old, &new], &another_chain), None);
    }

    #[test]
    fn a_claim_has_one_user() {
        let val = validator("ns", "val", 1, "key", "one");
        let mut rpc = validator("ns", "rpc", 2, "key", "one");
        rpc.spec.validator = None;
        rpc.spec.data_volume =
            serde_json::from_value(json!({ "import": { "pvcName": "data-val" } })).unwrap();
        assert!(is_exclusive(&rpc));
        let runs = [set_of(&val, "c", "key", 1)];
        let user = "StatefulSet val still has the signing key or volume";
        assert_eq!(conflict_of(&rpc, &[&val, &rpc], &runs).as_deref(), Some(user));
        let mut second = rpc.clone();
        second.metadata.name = Some("second".to_owned());
        second.metadata.uid = Some("second".to_owned());
        let runs = [set_of(&rpc, "c", "", 1)];
        assert!(conflict_of(&second, &[&rpc, &second], &runs).is_some());
    }

    #[test]
    fn a_node_that_cannot_be_decoded_still_has_its_key() {
        let new = validator("ns", "n", 2, "key", "one");
        let mut stored = serde_json::to_value(validator("ns", "z", 1, "key", "one")).unwrap();
        stored["status"]["plan"] = json!({ "phase": "FromTheFuture" });
        stored["spec"]["validator"]["mood"] = json!({ "new": [1] });
        stored["spec"]["podLabels"] = json!(["not", "a", "map"]);
        stored["spec"]["dataVolume"] = json!({ "import": { "pvcName": "disk" }, "size": 7 });
        assert!(serde_json::from_value::<SeiNode>(stored.clone()).is_err());
        let old = read(&stored).unwrap();
        assert_eq!(conflict_of(&new, &[&old], &[]).as_deref(), Some(SAME));
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
                    "name": name, "namespace": "ns", "labels": { "sei.io/node": node },
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
        let used = |pod: Pod| conflict_of(&node, &[&node], &[MountView::of_pod(&pod)]);
        let holder = "pod x-0 still has the signing key or volume";
        assert_eq!(used(pod("x-0", key.clone(), "Running")).as_deref(), Some(holder));
        assert_eq!(used(pod("x-0", key.clone(), "Failed")), None);
        assert_eq!(used(pod("n-0", key.clone(), "Running")), None, "its own");
        assert_eq!(used(pod("n-1", key.clone(), "Running")), None, "its StatefulSet was scaled");
        let mut labelled = pod("n-copy", key, "Running");
        labelled.metadata.owner_references = None;
        assert!(used(labelled).is_some(), "a label does not make it the node's own");
        assert_eq!(used(pod("x-0", plain, "Running")), None);
    }
}
