//! Checks the images that nodes' statuses claim against what pods ran.
//!
//! It watches the same objects as the operator and records the order of their changes by resource
//! version, which is one sequence for all kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Client, Resource, ResourceExt as _};
use sei_api::SeiNode;
use sei_api::names::label;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An eviction or an edit may change a pod while the operator writes its status. A claim that was
/// correct this short a time before the write counts as correct.
const GRACE: Duration = Duration::from_secs(2);

/// How long to wait for watch events of existing objects. Long, because a watch may have to
/// restart; only a failing test waits this long.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(60);

/// Why the checker cannot check.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to list {kind} of namespace {namespace}")]
    List { kind: &'static str, namespace: String, source: kube::Error },
    #[error("the status checker did not observe {object} within {seconds} s", seconds = CATCH_UP_WITHIN.as_secs())]
    WatchLag { object: String },
}

/// A change of `status.currentImage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub node: String,
    pub image: String,
    /// Uid of the pod that ran the image before the stamp was written, from the newest revision.
    /// Without such a pod the stamp is wrong.
    pub pod_uid: Option<String>,
}

/// Watches the nodes of a plane, their pods and the `StatefulSet` of each.
pub struct StatusChecker {
    observed: Arc<Observed>,
    /// Aborted when the checker is dropped.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Observed {
    /// By namespace and node.
    nodes: Mutex<BTreeMap<(String, String), Node>>,
    /// Uid and version of each existing object, by kind, namespace and name.
    versions: Mutex<BTreeMap<Key, (String, u64)>>,
    /// The newest observed version of each kind, deletions included.
    newest: Mutex<BTreeMap<&'static str, u64>>,
    changes: watch::Sender<u64>,
}

type Key = (&'static str, String, String);

#[derive(Default)]
struct Node {
    uid: String,
    current_image: Option<String>,
    stamps: Vec<(String, ObservedAt)>,
    /// Ids of the plans in its status, oldest first.
    plans: Vec<String>,
    pods: Vec<ObservedPod>,
    /// Update revisions of its StatefulSet, and since when each was the newest.
    revisions: Vec<(String, ObservedAt)>,
}

/// When a change was observed: its resource version, and the local time.
#[derive(Clone, Copy)]
struct ObservedAt {
    version: u64,
    at: Instant,
}

struct ObservedPod {
    uid: String,
    revision: String,
    image: String,
    /// When its chain process was first observed running or terminated.
    ran: Option<ObservedAt>,
    /// When its deletion was requested.
    deleting: Option<ObservedAt>,
    /// When the object no longer existed.
    deleted: Option<ObservedAt>,
}

impl StatusChecker {
    /// Starts the checker in the runtime of the caller.
    pub fn start(client: &Client) -> Self {
        let observed = Arc::new(Observed::default());
        let mut tasks = JoinSet::new();
        let labelled = watcher::Config::default().labels(label::NODE);
        let pods: Api<Pod> = Api::all(client.clone());
        tasks.spawn(follow(POD, observed.clone(), pods, labelled.clone(), observe_pod));
        let sets: Api<StatefulSet> = Api::all(client.clone());
        tasks.spawn(follow(SET, observed.clone(), sets, labelled, observe_set));
        // Untyped: one undecodable object would break the watch of all nodes.
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        tasks.spawn(follow(
            NODE,
            observed.clone(),
            nodes,
            watcher::Config::default(),
            observe_node,
        ));
        Self { observed, _tasks: tasks }
    }

    /// Every stamp of this node, oldest first.
    pub fn stamps(&self, namespace: &str, node: &str) -> Vec<Stamp> {
        let nodes = self.observed.nodes();
        let node = nodes.get_key_value(&(namespace.to_owned(), node.to_owned()));
        node.map(|((_, name), node)| node.stamps(name)).unwrap_or_default()
    }

    /// Ids of every plan in this node's status, oldest first.
    pub fn plan_ids(&self, namespace: &str, node: &str) -> Vec<String> {
        let nodes = self.observed.nodes();
        let node = nodes.get(&(namespace.to_owned(), node.to_owned()));
        node.map(|node| node.plans.clone()).unwrap_or_default()
    }

    /// The stamps of this namespace that contradict its pods, once every present object was observed.
    /// The client is the caller's own: a connection ends with the runtime that opened it.
    pub async fn violations(&self, client: &Client, namespace: &str) -> Result<Vec<Stamp>, Error> {
        self.catch_up(client, namespace).await?;
        Ok(self.wrong_stamps(namespace))
    }

    /// Waits until every present object of this namespace was observed. Watches lag behind the server,
    /// each by its own time, and may have to restart.
    pub async fn catch_up(&self, client: &Client, namespace: &str) -> Result<(), Error> {
        let labelled = ListParams::default().labels(label::NODE);
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        let mut expected = versions(NODE, namespace, &nodes, &ListParams::default()).await?;
        expected.extend(versions(POD, namespace, &pods, &labelled).await?);
        expected.extend(versions(SET, namespace, &sets, &labelled).await?);
        let mut changes = self.observed.changes.subscribe();
        let deadline = Instant::now() + CATCH_UP_WITHIN;
        loop {
            changes.borrow_and_update();
            let Some(object) = self.observed.missing(&expected) else { return Ok(()) };
            let waited = tokio::time::timeout_at(deadline, changes.changed()).await;
            if !matches!(waited, Ok(Ok(()))) {
                return Err(Error::WatchLag { object });
            }
        }
    }

    fn wrong_stamps(&self, namespace: &str) -> Vec<Stamp> {
        let nodes = self.observed.nodes();
        let nodes = nodes.iter().filter(|((node_namespace, _), _)| node_namespace == namespace);
        let stamps = nodes.flat_map(|((_, name), node)| node.stamps(name));
        stamps.filter(|stamp| stamp.pod_uid.is_none()).collect()
    }

    /// Uids of every pod that this node has had, oldest first.
    pub fn pod_uids(&self, namespace: &str, node: &str) -> Vec<String> {
        self.pods(namespace, node, |_| true)
    }

    /// Uids of the pods whose deletion was requested, oldest first.
    pub fn deleted_pod_uids(&self, namespace: &str, node: &str) -> Vec<String> {
        self.pods(namespace, node, |pod| pod.deleting.is_some() || pod.deleted.is_some())
    }

    fn pods(
        &self,
        namespace: &str,
        node: &str,
        is_included: fn(&ObservedPod) -> bool,
    ) -> Vec<String> {
        let nodes = self.observed.nodes();
        let node = nodes.get(&(namespace.to_owned(), node.to_owned()));
        let pods = node.into_iter().flat_map(|node| &node.pods);
        pods.filter(|pod| is_included(pod)).map(|pod| pod.uid.clone()).collect()
    }
}

const NODE: &str = "SeiNode";
const POD: &str = "Pod";
const SET: &str = "StatefulSet";

/// The versions of the objects that the server has now.
async fn versions<K>(
    kind: &'static str,
    namespace: &str,
    api: &Api<K>,
    parameters: &ListParams,
) -> Result<Vec<(Key, u64)>, Error>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let listed = api.list(parameters).await;
    let listed =
        listed.map_err(|source| Error::List { kind, namespace: namespace.to_owned(), source })?;
    let of = |object: &K| ((kind, namespace.to_owned(), object.name_any()), version(object));
    Ok(listed.items.iter().map(of).collect())
}

fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0)
}

impl Observed {
    /// Ignores poisoning: a panic of one test must not fail the others.
    fn nodes(&self) -> MutexGuard<'_, BTreeMap<(String, String), Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<Key, (String, u64)>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object that was not observed at this version yet. An object that was deleted since counts as
    /// observed.
    fn missing(&self, expected: &[(Key, u64)]) -> Option<String> {
        let versions = self.versions();
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = expected.iter().find(|(key, version)| {
            let observed = versions.get(key).map(|(_, version)| version).or(newest.get(key.0));
            observed.is_none_or(|observed| observed < version)
        });
        missing.map(|((kind, _, name), version)| format!("{kind} {name} at version {version}"))
    }

    fn record_newest(&self, kind: &'static str, version: u64) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let known = newest.entry(kind).or_default();
        *known = version.max(*known);
    }

    /// Records the end of a list: objects that it did not contain were deleted.
    fn finish_list(&self, kind: &str, listed: &BTreeSet<String>, now: ObservedAt) {
        let mut deleted = Vec::new();
        self.versions().retain(|key, (uid, _)| {
            let stays = key.0 != kind || listed.contains(uid);
            if !stays {
                deleted.push(uid.clone());
            }
            stays
        });
        let mut nodes = self.nodes();
        let pods = nodes.values_mut().flat_map(|node| &mut node.pods);
        for pod in pods.filter(|pod| deleted.contains(&pod.uid)) {
            pod.deleted.get_or_insert(now);
        }
    }
}

impl Node {
    fn stamps(&self, name: &str) -> Vec<Stamp> {
        let stamp = |(image, written): &(String, ObservedAt)| {
            let pod = self.pods.iter().find(|pod| self.matches(pod, image, *written));
            Stamp {
                node: name.to_owned(),
                image: image.clone(),
                pod_uid: pod.map(|pod| pod.uid.clone()),
            }
        };
        self.stamps.iter().map(stamp).collect()
    }

    /// Whether the pod ran the image, existed and was fresh when the stamp was written.
    fn matches(&self, pod: &ObservedPod, image: &str, stamp: ObservedAt) -> bool {
        let existed = pod.deleted.is_none_or(|deleted| !ended_before(deleted, stamp));
        let has_run = pod.ran.is_some_and(|ran| ran.version < stamp.version);
        pod.image == image && has_run && existed && self.is_fresh(&pod.revision, stamp)
    }

    /// Whether this was the newest revision when the stamp was written, or shortly before.
    fn is_fresh(&self, revision: &str, stamp: ObservedAt) -> bool {
        let ends = self.revisions.iter().skip(1).map(|(_, end)| Some(*end)).chain([None]);
        self.revisions.iter().zip(ends).any(|((observed, begin), end)| {
            let has_ended = end.is_some_and(|end| ended_before(end, stamp));
            observed == revision && begin.version < stamp.version && !has_ended
        })
    }
}

/// Whether a state ended before the stamp was written, by more than the grace.
fn ended_before(end: ObservedAt, stamp: ObservedAt) -> bool {
    end.version < stamp.version && end.at + GRACE < stamp.at
}

/// How an object was observed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// By a watch event.
    Changed,
    /// In a list. The time of its last change is unknown, so it counts as early enough.
    Listed,
    Deleted,
}

async fn follow<K>(
    kind: &'static str,
    observed: Arc<Observed>,
    api: Api<K>,
    config: watcher::Config,
    observe: fn(&Observed, &K, Change, ObservedAt),
) where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = std::pin::pin!(watch_objects(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let (object, change) = match event {
            Ok(Event::Apply(object)) => (object, Change::Changed),
            Ok(Event::InitApply(object)) => (object, Change::Listed),
            Ok(Event::Delete(object)) => (object, Change::Deleted),
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitDone) => {
                let now = ObservedAt { version: 0, at: Instant::now() };
                observed.finish_list(kind, &listed, now);
                observed.changes.send_modify(|count| *count += 1);
                continue;
            }
            // The stream restarts by itself.
            Err(_) => continue,
        };
        let version = version(&object);
        observe(&observed, &object, change, ObservedAt { version, at: Instant::now() });
        let (uid, namespace) =
            (object.uid().unwrap_or_default(), object.namespace().unwrap_or_default());
        listed.insert(uid.clone());
        let key = (kind, namespace, object.name_any());
        observed.record_newest(kind, version);
        if change == Change::Deleted {
            observed.versions().remove(&key);
        } else {
            observed.versions().insert(key, (uid, version));
        }
        observed.changes.send_modify(|count| *count += 1);
    }
}

/// The node that a labelled object belongs to.
fn key(object: &impl Resource) -> Option<(String, String)> {
    let node = object.meta().labels.as_ref()?.get(label::NODE)?;
    Some((object.meta().namespace.clone()?, node.clone()))
}

fn observe_pod(observed: &Observed, pod: &Pod, change: Change, now: ObservedAt) {
    let (Some(key), Some(uid)) = (key(pod), pod.uid()) else { return };
    let mut nodes = observed.nodes();
    let pods = &mut nodes.entry(key).or_default().pods;
    let index = pods.iter().position(|known| known.uid == uid).unwrap_or_else(|| {
        let mut containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let seid = containers.find(|container| container.name == "seid");
        let image = seid.and_then(|container| container.image.clone()).unwrap_or_default();
        let revision = pod.labels().get(label::POD_REVISION).cloned().unwrap_or_default();
        pods.push(ObservedPod { uid, revision, image, ran: None, deleting: None, deleted: None });
        pods.len() - 1
    });
    let known = &mut pods[index];
    if known.ran.is_none() && has_run(pod) {
        let version = if change == Change::Listed { 0 } else { now.version };
        known.ran = Some(ObservedAt { version, ..now });
    }
    if pod.metadata.deletion_timestamp.is_some() {
        known.deleting.get_or_insert(now);
    }
    if change == Change::Deleted {
        known.deleted.get_or_insert(now);
    }
}

fn has_run(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let has_started = |status: &ContainerStatus| {
        let states = [status.state.as_ref(), status.last_state.as_ref()];
        let mut states = states.into_iter().flatten();
        states.any(|state| state.running.is_some() || state.terminated.is_some())
    };
    let mut statuses = statuses.into_iter().flatten();
    statuses
        .any(|status| status.name == "seid" && !status.image_id.is_empty() && has_started(status))
}

fn observe_set(observed: &Observed, set: &StatefulSet, change: Change, now: ObservedAt) {
    let Some(key) = key(set) else { return };
    let revision = set.status.as_ref().and_then(|status| status.update_revision.clone());
    let Some(revision) = revision.filter(|_| change != Change::Deleted) else { return };
    let mut nodes = observed.nodes();
    let revisions = &mut nodes.entry(key).or_default().revisions;
    if revisions.last().is_none_or(|(last, _)| *last != revision) {
        let version = if change == Change::Listed { 0 } else { now.version };
        revisions.push((revision, ObservedAt { version, ..now }));
    }
}

fn observe_node(observed: &Observed, node: &DynamicObject, change: Change, now: ObservedAt) {
    let (Some(namespace), Some(uid)) = (node.namespace(), node.uid()) else { return };
    if change == Change::Deleted {
        return;
    }
    let image = node.data["status"]["currentImage"].as_str().map(str::to_owned);
    let mut nodes = observed.nodes();
    let known = nodes.entry((namespace, node.name_any())).or_default();
    if known.uid != uid {
        // A new node with the same name.
        (known.uid, known.current_image) = (uid, None);
    }
    let plan = node.data["status"]["plan"]["id"].as_str();
    if let Some(plan) = plan.filter(|plan| !known.plans.iter().any(|id| id == plan)) {
        known.plans.push(plan.to_owned());
    }
    if known.current_image != image {
        known.stamps.extend(image.clone().map(|image| (image, now)));
        known.current_image = image;
    }
}
