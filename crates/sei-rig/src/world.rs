//! What scenarios are written in: a namespace, its nodes, and waiting for what must happen.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod, Secret};
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::watch_object;
use kube::{Client, Resource, ResourceExt as _};
use sei_api::names::label;
use sei_api::{SeiNode, names};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::kubelet::{Kubelet, Rule, RuleId};
use crate::lane::Lane;
use crate::plane::{self, User};
use crate::sidecar::{GateOpening, Sidecars, Submission};
use crate::status_checker::{self, Stamp};

/// Bound for what must happen. Long, because the machine may be busy: only a failure waits for it.
const WITHIN: Duration = Duration::from_secs(60);

/// As many events as are told with a failure.
const EVENTS_TOLD: usize = 15;

#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("failed to {what}")]
    Ask { what: String, source: kube::Error },
    #[error("the witness of what nodes claim fails")]
    Witness(#[from] status_checker::Error),
    #[error("there is no client")]
    Client { source: plane::Error },
    #[error("the manifest of {node} is not understood: {told}")]
    Manifest { node: String, told: String },
    #[error("within {seconds} s it did not happen that {claim}\n{told}")]
    Timeout { claim: String, seconds: u64, told: String },
}

/// A namespace of one scenario alone. An operator for it is started by whoever has one.
pub struct World {
    lane: Arc<Lane>,
    admin: Client,
    namespace: String,
    within: Duration,
}

impl World {
    /// A fresh namespace on a lane that others share.
    pub async fn new(lane: Arc<Lane>, name: &str) -> Result<Self, WorldError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let client = lane.plane().client(User::Admin);
        let admin = client.map_err(|source| WorldError::Client { source })?;
        let namespace = format!("{name}-w{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        let made = Api::all(admin.clone()).create(&PostParams::default(), &object).await;
        asked(made, || format!("make namespace {namespace}"))?;
        Ok(Self::of(lane, admin, namespace))
    }

    /// The world of a namespace that is there already.
    pub fn of(lane: Arc<Lane>, admin: Client, namespace: String) -> Self {
        Self { lane, admin, namespace, within: WITHIN }
    }

    /// The same, waiting this long for what must happen.
    #[must_use]
    pub fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Of the user that may do everything.
    pub fn admin(&self) -> &Client {
        &self.admin
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub fn kubelet(&self) -> &Kubelet {
        self.lane.kubelet()
    }

    pub fn sidecars(&self) -> &Sidecars {
        self.kubelet().sidecars()
    }

    /// Pods of this namespace follow the rule from now on.
    pub fn behave(&self, rule: Rule) -> RuleId {
        self.kubelet().behave(&self.namespace, rule)
    }

    pub fn lift(&self, id: RuleId) {
        self.kubelet().lift(id);
    }

    pub fn restart_sidecar(&self, node: &str) {
        self.kubelet().restart_sidecar(&self.namespace, node);
    }

    /// Makes a node from a manifest or from a spec alone, in YAML or JSON.
    pub async fn create_node(&self, name: &str, text: &str) -> Result<SeiNode, WorldError> {
        let unreadable = |told: String| WorldError::Manifest { node: name.to_owned(), told };
        let read: Value =
            serde_saphyr::from_str(text).map_err(|error| unreadable(error.to_string()))?;
        let mut manifest = if read["spec"].is_null() { json!({ "spec": read }) } else { read };
        manifest["apiVersion"] = json!(format!("{}/{}", names::GROUP, names::VERSION));
        manifest["kind"] = json!("SeiNode");
        manifest["metadata"]["name"] = json!(name);
        manifest["metadata"]["namespace"] = json!(self.namespace);
        let node =
            serde_json::from_value(manifest).map_err(|error| unreadable(error.to_string()))?;
        let made = self.api().create(&PostParams::default(), &node).await;
        asked(made, || format!("make node {name}"))
    }

    /// Edits a node as people do: the patch is merged into what is stored.
    pub async fn edit_node(&self, name: &str, patch: &Value) -> Result<SeiNode, WorldError> {
        let parameters = PatchParams { field_manager: Some("people".into()), ..Default::default() };
        let edited = self.api().patch(name, &parameters, &Patch::Merge(patch)).await;
        asked(edited, || format!("edit node {name}"))
    }

    pub async fn set_image(&self, name: &str, image: &str) -> Result<SeiNode, WorldError> {
        self.edit_node(name, &json!({ "spec": { "image": image } })).await
    }

    pub async fn delete_node(&self, name: &str) -> Result<(), WorldError> {
        let deleted = self.api::<SeiNode>().delete(name, &DeleteParams::default()).await;
        asked(deleted, || format!("delete node {name}")).map(drop)
    }

    pub async fn node(&self, name: &str) -> Result<SeiNode, WorldError> {
        asked(self.api().get(name).await, || format!("read node {name}"))
    }

    /// The pods of a node that there are now.
    pub async fn pods(&self, node: &str) -> Result<Vec<Pod>, WorldError> {
        let parameters = ListParams::default().labels(&format!("{}={node}", label::NODE));
        let pods = self.api::<Pod>().list(&parameters).await;
        Ok(asked(pods, || format!("list the pods of {node}"))?.items)
    }

    /// Deletes a pod as somebody who drains a machine does.
    pub async fn evict(&self, pod: &str) -> Result<(), WorldError> {
        let deleted = self.api::<Pod>().delete(pod, &DeleteParams::default()).await;
        asked(deleted, || format!("evict pod {pod}")).map(drop)
    }

    /// Uids of every pod of this node that there was, oldest first.
    pub async fn pod_uids_seen(&self, node: &str) -> Result<Vec<String>, WorldError> {
        self.lane.checker().catch_up(&self.admin, &self.namespace).await?;
        Ok(self.lane.checker().pod_uids(&self.namespace, node))
    }

    /// What was submitted to sidecars of this node, oldest first.
    pub fn submissions(&self, node: &str) -> Vec<Submission> {
        self.sidecars().submissions(&self.namespace, node)
    }

    /// When the gate of this node's pods opened, oldest first.
    pub fn gate_openings(&self, node: &str) -> Vec<GateOpening> {
        self.sidecars().gate_openings(&self.namespace, node)
    }

    /// What nodes of this namespace claimed to run and did not.
    pub async fn violations(&self) -> Result<Vec<Stamp>, WorldError> {
        Ok(self.lane.checker().violations(&self.admin, &self.namespace).await?)
    }

    /// Ids of every plan that this node's status showed, oldest first.
    pub fn plan_ids_seen(&self, node: &str) -> Vec<String> {
        self.lane.checker().plan_ids(&self.namespace, node)
    }

    pub async fn secret(&self, name: &str, files: &[(&str, &str)]) -> Result<(), WorldError> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = files.iter().map(|(file, text)| ((*file).to_owned(), bytes(text)));
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let secret =
            Secret { metadata, data: Some(data.collect::<BTreeMap<_, _>>()), ..Secret::default() };
        let made = self.api().create(&PostParams::default(), &secret).await;
        asked(made, || format!("make secret {name}")).map(drop)
    }

    /// A Secret with a signing key of the right shape, another one for each name.
    pub async fn signing_key(&self, name: &str) -> Result<(), WorldError> {
        let key = json!({
            "address": crate::digest::sha256_hex(name)[..40].to_uppercase(),
            "pub_key": { "type": "tendermint/PubKeyEd25519", "value": "cHVibGlj" },
            "priv_key": { "type": "tendermint/PrivKeyEd25519", "value": "cHJpdmF0ZQ==" },
        });
        self.secret(name, &[("priv_validator_key.json", &key.to_string())]).await
    }

    /// A Secret with a node key of the right shape.
    pub async fn node_key(&self, name: &str) -> Result<(), WorldError> {
        let key = json!({ "type": "tendermint/PrivKeyEd25519", "value": "cHJpdmF0ZQ==" });
        self.secret(name, &[("node_key.json", &json!({ "priv_key": key }).to_string())]).await
    }

    /// A Secret with a keyring that holds this key, and one with its passphrase.
    pub async fn keyring(&self, name: &str, key: &str, pass: &str) -> Result<(), WorldError> {
        let info = format!("{key}.info");
        self.secret(name, &[(info.as_str(), "key"), ("0a0a.address", "address")]).await?;
        self.secret(pass, &[("passphrase", "passphrase")]).await
    }

    /// Waits until this holds of a node, and returns it.
    pub async fn wait_node(
        &self,
        name: &str,
        claim: &str,
        holds: impl Fn(&SeiNode) -> bool,
    ) -> Result<SeiNode, WorldError> {
        self.wait(name, name, claim, holds).await
    }

    /// Waits until this holds of the pod of a node.
    pub async fn wait_pod(
        &self,
        node: &str,
        claim: &str,
        holds: impl Fn(&Pod) -> bool,
    ) -> Result<Pod, WorldError> {
        self.wait(node, &names::pod(node), claim, holds).await
    }

    /// Waits until this holds of the StatefulSet of a node.
    pub async fn wait_set(
        &self,
        node: &str,
        claim: &str,
        holds: impl Fn(&StatefulSet) -> bool,
    ) -> Result<StatefulSet, WorldError> {
        self.wait(node, node, claim, holds).await
    }

    /// Waits until there is no object of this kind by this name.
    pub async fn wait_gone<K: Watched>(&self, name: &str) -> Result<(), WorldError> {
        let claim = format!("{} {name} is gone", K::kind(&()));
        self.watch(name, name, &claim, |object: Option<K>| object.is_none().then_some(())).await
    }

    /// Waits until this holds of an object of any kind; a failure is told with this node.
    pub async fn wait<K: Watched>(
        &self,
        node: &str,
        name: &str,
        claim: &str,
        holds: impl Fn(&K) -> bool,
    ) -> Result<K, WorldError> {
        self.watch(node, name, claim, |object: Option<K>| object.filter(&holds)).await
    }

    async fn watch<K: Watched, Found>(
        &self,
        node: &str,
        name: &str,
        claim: &str,
        find: impl Fn(Option<K>) -> Option<Found>,
    ) -> Result<Found, WorldError> {
        let mut sights = std::pin::pin!(watch_object(self.api::<K>(), name).default_backoff());
        let search = async {
            loop {
                // Errors are of the stream, which begins anew by itself.
                if let Some(Ok(object)) = sights.next().await
                    && let Some(found) = find(object)
                {
                    return found;
                }
            }
        };
        match tokio::time::timeout(self.within, search).await {
            Ok(found) => Ok(found),
            Err(_) => Err(WorldError::Timeout {
                claim: claim.to_owned(),
                seconds: self.within.as_secs(),
                told: self.describe(node).await,
            }),
        }
    }

    /// Everything about a node that helps to see why something did not happen.
    pub async fn describe(&self, node: &str) -> String {
        let mut told = String::new();
        match self.node(node).await {
            Ok(node) => {
                let _ =
                    writeln!(told, "spec:\n{}status:\n{}", yaml(&node.spec), yaml(&node.status));
            }
            Err(error) => {
                let _ = writeln!(told, "{error}");
            }
        }
        for pod in self.pods(node).await.unwrap_or_default() {
            let deleted = pod.metadata.deletion_timestamp.as_ref();
            let _ = writeln!(
                told,
                "pod {} {} revision {:?} deleted {deleted:?}\n{}",
                pod.name_any(),
                pod.uid().unwrap_or_default(),
                pod.labels().get(label::POD_REVISION),
                yaml(&pod.status),
            );
        }
        for Submission { id, task_type, pod_uid, .. } in self.submissions(node) {
            let _ = writeln!(told, "submitted {task_type} {id} to pod {pod_uid}");
        }
        told + &self.events().await
    }

    async fn events(&self) -> String {
        let listed = self.api::<Event>().list(&ListParams::default()).await;
        let mut events = listed.map(|list| list.items).unwrap_or_default();
        events.sort_by_key(|one| one.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let last = events.iter().rev().take(EVENTS_TOLD).rev();
        let tell = |one: &Event| {
            let object = one.involved_object.name.as_deref().unwrap_or_default();
            let reason = one.reason.as_deref().unwrap_or_default();
            format!("event {object} {reason}: {}\n", one.message.as_deref().unwrap_or_default())
        };
        last.map(tell).collect()
    }
}

/// Any kind in a namespace that can be watched.
pub trait Watched:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + DeserializeOwned
    + Debug
    + Send
    + 'static
{
}

impl<K> Watched for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + 'static
{
}

/// A configuration of the operator that has what it must have.
pub fn platform() -> &'static str {
    include_str!("../../sei-plan/testdata/platform/minimal.yaml")
}

fn yaml(value: &impl Serialize) -> String {
    let text = serde_saphyr::to_string(value).unwrap_or_else(|error| error.to_string());
    let lines = text.lines().map(|line| format!("  {line}\n"));
    lines.collect::<Vec<_>>().concat()
}

fn asked<T>(outcome: kube::Result<T>, what: impl Fn() -> String) -> Result<T, WorldError> {
    outcome.map_err(|source| WorldError::Ask { what: what(), source })
}
