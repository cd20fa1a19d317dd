//! The interface of scenarios: a namespace, its nodes, and waiting for conditions.

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

/// Timeout of waits. Long, because the machine may be busy; only a failing test waits this long.
const WITHIN: Duration = Duration::from_secs(60);

/// Number of events in the description of a failure.
const EVENTS_SHOWN: usize = 15;

#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("failed to {what}")]
    Request { what: String, source: kube::Error },
    #[error("the status checker failed")]
    StatusChecker(#[from] status_checker::Error),
    #[error("failed to create a client")]
    Client { source: plane::Error },
    #[error("the manifest of {node} is invalid: {error}")]
    Manifest { node: String, error: String },
    #[error("timed out after {seconds} s waiting until {claim}\n{description}")]
    Timeout { claim: String, seconds: u64, description: String },
}

/// The namespace of one scenario. The scenario starts its own operator.
pub struct World {
    lane: Arc<Lane>,
    admin: Client,
    namespace: String,
    within: Duration,
}

impl World {
    /// Creates a namespace on a lane that is shared with other scenarios.
    pub async fn new(lane: Arc<Lane>, name: &str) -> Result<Self, WorldError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let client = lane.plane().client(User::Admin);
        let admin = client.map_err(|source| WorldError::Client { source })?;
        let namespace = format!("{name}-w{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        let created = Api::all(admin.clone()).create(&PostParams::default(), &object).await;
        checked(created, || format!("create namespace {namespace}"))?;
        Ok(Self::of(lane, admin, namespace))
    }

    /// The world of an existing namespace.
    pub fn of(lane: Arc<Lane>, admin: Client, namespace: String) -> Self {
        Self { lane, admin, namespace, within: WITHIN }
    }

    /// The same with another timeout of waits.
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

    /// A client of the user with every permission.
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

    /// Applies a rule to the pods of this namespace.
    pub fn behave(&self, rule: Rule) -> RuleId {
        self.kubelet().behave(&self.namespace, rule)
    }

    pub fn lift(&self, id: RuleId) {
        self.kubelet().lift(id);
    }

    pub fn restart_sidecar(&self, node: &str) {
        self.kubelet().restart_sidecar(&self.namespace, node);
    }

    /// Creates a node from a manifest or from a spec alone, in YAML or JSON.
    pub async fn create_node(&self, name: &str, text: &str) -> Result<SeiNode, WorldError> {
        let invalid = |error: String| WorldError::Manifest { node: name.to_owned(), error };
        let read: Value =
            serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
        let mut manifest = if read["spec"].is_null() { json!({ "spec": read }) } else { read };
        manifest["apiVersion"] = json!(format!("{}/{}", names::GROUP, names::VERSION));
        manifest["kind"] = json!("SeiNode");
        manifest["metadata"]["name"] = json!(name);
        manifest["metadata"]["namespace"] = json!(self.namespace);
        let node = serde_json::from_value(manifest).map_err(|error| invalid(error.to_string()))?;
        let created = self.api().create(&PostParams::default(), &node).await;
        checked(created, || format!("create node {name}"))
    }

    /// Edits a node as a user does, by a merge patch.
    pub async fn edit_node(&self, name: &str, patch: &Value) -> Result<SeiNode, WorldError> {
        let parameters = PatchParams { field_manager: Some("people".into()), ..Default::default() };
        let edited = self.api().patch(name, &parameters, &Patch::Merge(patch)).await;
        checked(edited, || format!("edit node {name}"))
    }

    pub async fn set_image(&self, name: &str, image: &str) -> Result<SeiNode, WorldError> {
        self.edit_node(name, &json!({ "spec": { "image": image } })).await
    }

    pub async fn delete_node(&self, name: &str) -> Result<(), WorldError> {
        let deleted = self.api::<SeiNode>().delete(name, &DeleteParams::default()).await;
        checked(deleted, || format!("delete node {name}")).map(drop)
    }

    pub async fn node(&self, name: &str) -> Result<SeiNode, WorldError> {
        checked(self.api().get(name).await, || format!("read node {name}"))
    }

    /// The present pods of a node.
    pub async fn pods(&self, node: &str) -> Result<Vec<Pod>, WorldError> {
        let parameters = ListParams::default().labels(&format!("{}={node}", label::NODE));
        let pods = self.api::<Pod>().list(&parameters).await;
        Ok(checked(pods, || format!("list the pods of {node}"))?.items)
    }

    /// Deletes a pod, as draining its Kubernetes node does.
    pub async fn evict(&self, pod: &str) -> Result<(), WorldError> {
        let deleted = self.api::<Pod>().delete(pod, &DeleteParams::default()).await;
        checked(deleted, || format!("evict pod {pod}")).map(drop)
    }

    /// Uids of every pod that this node has had, oldest first.
    pub async fn pod_uids_seen(&self, node: &str) -> Result<Vec<String>, WorldError> {
        self.lane.checker().catch_up(&self.admin, &self.namespace).await?;
        Ok(self.lane.checker().pod_uids(&self.namespace, node))
    }

    /// The submissions to sidecars of this node, oldest first.
    pub fn submissions(&self, node: &str) -> Vec<Submission> {
        self.sidecars().submissions(&self.namespace, node)
    }

    /// The openings of the readiness gate of this node's pods, oldest first.
    pub fn gate_openings(&self, node: &str) -> Vec<GateOpening> {
        self.sidecars().gate_openings(&self.namespace, node)
    }

    /// The images that nodes of this namespace claimed to run and did not.
    pub async fn violations(&self) -> Result<Vec<Stamp>, WorldError> {
        Ok(self.lane.checker().violations(&self.admin, &self.namespace).await?)
    }

    /// Ids of every plan in this node's status, oldest first.
    pub fn plan_ids_seen(&self, node: &str) -> Vec<String> {
        self.lane.checker().plan_ids(&self.namespace, node)
    }

    pub async fn secret(&self, name: &str, files: &[(&str, &str)]) -> Result<(), WorldError> {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let data = files.iter().map(|(file, text)| ((*file).to_owned(), bytes(text)));
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
        let secret =
            Secret { metadata, data: Some(data.collect::<BTreeMap<_, _>>()), ..Secret::default() };
        let created = self.api().create(&PostParams::default(), &secret).await;
        checked(created, || format!("create secret {name}")).map(drop)
    }

    /// Waits until the predicate holds for a node, and returns the node.
    pub async fn wait_node(
        &self,
        name: &str,
        claim: &str,
        holds: impl Fn(&SeiNode) -> bool,
    ) -> Result<SeiNode, WorldError> {
        self.wait(name, name, claim, holds).await
    }

    /// Waits until the predicate holds for the pod of a node.
    pub async fn wait_pod(
        &self,
        node: &str,
        claim: &str,
        holds: impl Fn(&Pod) -> bool,
    ) -> Result<Pod, WorldError> {
        self.wait(node, &names::pod(node), claim, holds).await
    }

    /// Waits until the predicate holds for the StatefulSet of a node.
    pub async fn wait_set(
        &self,
        node: &str,
        claim: &str,
        holds: impl Fn(&StatefulSet) -> bool,
    ) -> Result<StatefulSet, WorldError> {
        self.wait(node, node, claim, holds).await
    }

    /// Waits until the object of this kind and name does not exist.
    pub async fn wait_deleted<K: Watched>(&self, name: &str) -> Result<(), WorldError> {
        let claim = format!("{} {name} does not exist", K::kind(&()));
        self.watch(name, name, &claim, |object: Option<K>| object.is_none().then_some(())).await
    }

    /// Waits until the predicate holds for an object of any kind; a failure describes this node.
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
        let mut objects = std::pin::pin!(watch_object(self.api::<K>(), name).default_backoff());
        let search = async {
            loop {
                // After an error the stream restarts by itself.
                if let Some(Ok(object)) = objects.next().await
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
                description: self.describe(node).await,
            }),
        }
    }

    /// The state of a node with its pods, submissions and events, for the message of a failure.
    pub async fn describe(&self, node: &str) -> String {
        let mut text = String::new();
        match self.node(node).await {
            Ok(node) => {
                let _ =
                    writeln!(text, "spec:\n{}status:\n{}", yaml(&node.spec), yaml(&node.status));
            }
            Err(error) => {
                let _ = writeln!(text, "{error}");
            }
        }
        for pod in self.pods(node).await.unwrap_or_default() {
            let deleted = pod.metadata.deletion_timestamp.as_ref();
            let _ = writeln!(
                text,
                "pod {} {} revision {:?} deleted {deleted:?}\n{}",
                pod.name_any(),
                pod.uid().unwrap_or_default(),
                pod.labels().get(label::POD_REVISION),
                yaml(&pod.status),
            );
        }
        for Submission { id, task_type, pod_uid, .. } in self.submissions(node) {
            let _ = writeln!(text, "submitted {task_type} {id} to pod {pod_uid}");
        }
        text + &self.events().await
    }

    async fn events(&self) -> String {
        let listed = self.api::<Event>().list(&ListParams::default()).await;
        let mut events = listed.map(|list| list.items).unwrap_or_default();
        events.sort_by_key(|event| event.metadata.creation_timestamp.as_ref().map(|time| time.0));
        let last = events.iter().rev().take(EVENTS_SHOWN).rev();
        let line = |event: &Event| {
            let object = event.involved_object.name.as_deref().unwrap_or_default();
            let reason = event.reason.as_deref().unwrap_or_default();
            format!("event {object} {reason}: {}\n", event.message.as_deref().unwrap_or_default())
        };
        last.map(line).collect()
    }
}

/// Any namespaced kind that can be watched.
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

/// A platform configuration with the required keys only.
pub fn platform() -> &'static str {
    include_str!("../../sei-plan/testdata/platform/minimal.yaml")
}

fn yaml(value: &impl Serialize) -> String {
    let text = serde_saphyr::to_string(value).unwrap_or_else(|error| error.to_string());
    let lines = text.lines().map(|line| format!("  {line}\n"));
    lines.collect::<Vec<_>>().concat()
}

fn checked<T>(outcome: kube::Result<T>, what: impl Fn() -> String) -> Result<T, WorldError> {
    outcome.map_err(|source| WorldError::Request { what: what(), source })
}
