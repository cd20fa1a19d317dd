//! Whether what a node's status claims was so.
//!
//! A witness beside the operator: it watches the same objects and remembers in which order they
//! changed, by their resource versions, which are of one sequence for all kinds.

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

/// A claim may be overtaken by an eviction or an edit while it is being written. What was true so
/// short a time before counts as true.
const OVERTAKEN_WITHIN: Duration = Duration::from_secs(2);

/// How long the witness waits for what it may not have been told yet. Long, because its watches may
/// have to begin anew: only a failure waits for it.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// Why the witness cannot testify.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to list {kind} of namespace {namespace}")]
    List { kind: &'static str, namespace: String, source: kube::Error },
    #[error("within {seconds} s the witness was not told of {what}", seconds = TOLD_WITHIN.as_secs())]
    Blind { what: String },
}

/// A change of `status.currentImage`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub node: String,
    pub image: String,
    /// The pod that ran the image before the stamp was written, from the newest revision; none if
    /// there was no such pod, and then the stamp is a lie.
    pub witness: Option<String>,
}

/// Watches the nodes of a plane, their pods and what makes the pods.
pub struct StatusChecker {
    seen: Arc<Seen>,
    /// Aborted with it.
    _tasks: JoinSet<()>,
}

#[derive(Default)]
struct Seen {
    /// By namespace and node.
    nodes: Mutex<BTreeMap<(String, String), Node>>,
    /// Uid and version of each object that there is, by kind, namespace and name.
    versions: Mutex<BTreeMap<Key, (String, u64)>>,
    /// The newest version of each kind that was told of, also by a deletion.
    newest: Mutex<BTreeMap<&'static str, u64>>,
    changes: watch::Sender<u64>,
}

type Key = (&'static str, String, String);

#[derive(Default)]
struct Node {
    uid: String,
    current_image: Option<String>,
    stamps: Vec<(String, Moment)>,
    /// Ids of the plans that its status showed.
    plans: Vec<String>,
    pods: Vec<PodSeen>,
    /// Revisions that pods were to be made from, since when.
    revisions: Vec<(String, Moment)>,
}

#[derive(Clone, Copy)]
struct Moment {
    version: u64,
    at: Instant,
}

struct PodSeen {
    uid: String,
    revision: String,
    image: String,
    /// When its chain process was first seen to run or to have run.
    ran: Option<Moment>,
    deleted: Option<Moment>,
    gone: Option<Moment>,
}

impl StatusChecker {
    /// Starts it in the runtime of the caller.
    pub fn start(client: &Client) -> Self {
        let seen = Arc::new(Seen::default());
        let mut tasks = JoinSet::new();
        let labelled = watcher::Config::default().labels(label::NODE);
        let pods: Api<Pod> = Api::all(client.clone());
        tasks.spawn(follow(POD, seen.clone(), pods, labelled.clone(), see_pod));
        let sets: Api<StatefulSet> = Api::all(client.clone());
        tasks.spawn(follow(SET, seen.clone(), sets, labelled, see_set));
        // Untyped: an object that is not understood must not blind the witness.
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        tasks.spawn(follow(NODE, seen.clone(), nodes, watcher::Config::default(), see_node));
        Self { seen, _tasks: tasks }
    }

    /// Every stamp of this node, oldest first.
    pub fn stamps(&self, namespace: &str, node: &str) -> Vec<Stamp> {
        let nodes = self.seen.lock();
        let node = nodes.get_key_value(&(namespace.to_owned(), node.to_owned()));
        node.map(|((_, name), node)| node.stamps(name)).unwrap_or_default()
    }

    /// Ids of every plan that this node's status showed, oldest first.
    pub fn plan_ids(&self, namespace: &str, node: &str) -> Vec<String> {
        let nodes = self.seen.lock();
        let node = nodes.get(&(namespace.to_owned(), node.to_owned()));
        node.map(|node| node.plans.clone()).unwrap_or_default()
    }

    /// Stamps of this namespace that no pod bears out, once all that there is now was seen. The
    /// client is the caller's own: a connection ends with the runtime that opened it.
    pub async fn violations(&self, client: &Client, namespace: &str) -> Result<Vec<Stamp>, Error> {
        self.catch_up(client, namespace).await?;
        Ok(self.lies(namespace))
    }

    /// Waits until everything of this namespace that the server has now was seen. Watches are told
    /// one by one, and may have broken.
    pub async fn catch_up(&self, client: &Client, namespace: &str) -> Result<(), Error> {
        let labelled = ListParams::default().labels(label::NODE);
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
        let mut due = versions(NODE, namespace, &nodes, &ListParams::default()).await?;
        due.extend(versions(POD, namespace, &pods, &labelled).await?);
        due.extend(versions(SET, namespace, &sets, &labelled).await?);
        let mut changes = self.seen.changes.subscribe();
        let deadline = Instant::now() + TOLD_WITHIN;
        loop {
            changes.borrow_and_update();
            let Some(what) = self.seen.lacks(&due) else { return Ok(()) };
            let told = tokio::time::timeout_at(deadline, changes.changed()).await;
            if !matches!(told, Ok(Ok(()))) {
                return Err(Error::Blind { what });
            }
        }
    }

    fn lies(&self, namespace: &str) -> Vec<Stamp> {
        let nodes = self.seen.lock();
        let here = nodes.iter().filter(|((one, _), _)| one == namespace);
        let stamps = here.flat_map(|((_, name), node)| node.stamps(name));
        stamps.filter(|stamp| stamp.witness.is_none()).collect()
    }

    /// Uids of every pod of this node that there was, oldest first.
    pub fn pod_uids(&self, namespace: &str, node: &str) -> Vec<String> {
        self.pods(namespace, node, |_| true)
    }

    /// Uids of those that somebody deleted.
    pub fn deleted_pod_uids(&self, namespace: &str, node: &str) -> Vec<String> {
        self.pods(namespace, node, |pod| pod.deleted.is_some() || pod.gone.is_some())
    }

    fn pods(&self, namespace: &str, node: &str, is_desired: fn(&PodSeen) -> bool) -> Vec<String> {
        let nodes = self.seen.lock();
        let node = nodes.get(&(namespace.to_owned(), node.to_owned()));
        let pods = node.into_iter().flat_map(|node| &node.pods);
        pods.filter(|pod| is_desired(pod)).map(|pod| pod.uid.clone()).collect()
    }
}

const NODE: &str = "SeiNode";
const POD: &str = "Pod";
const SET: &str = "StatefulSet";

/// The versions of what the server has now.
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

impl Seen {
    /// A panic of one test must not blind the others.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), Node>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn versions(&self) -> MutexGuard<'_, BTreeMap<Key, (String, u64)>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of these that was not seen yet. What is gone again was seen.
    fn lacks(&self, due: &[(Key, u64)]) -> Option<String> {
        let versions = self.versions();
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let missing = due.iter().find(|(key, version)| {
            let seen = versions.get(key).map(|(_, version)| version).or(newest.get(key.0));
            seen.is_none_or(|seen| seen < version)
        });
        missing.map(|((kind, _, name), version)| format!("{kind} {name} at version {version}"))
    }

    fn tell_newest(&self, kind: &'static str, version: u64) {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let known = newest.entry(kind).or_default();
        *known = version.max(*known);
    }

    /// A list has come to its end: what was not in it is gone.
    fn keep(&self, kind: &str, listed: &BTreeSet<String>, now: Moment) {
        let mut gone = Vec::new();
        self.versions().retain(|key, (uid, _)| {
            let stays = key.0 != kind || listed.contains(uid);
            if !stays {
                gone.push(uid.clone());
            }
            stays
        });
        let mut nodes = self.lock();
        let pods = nodes.values_mut().flat_map(|node| &mut node.pods);
        for pod in pods.filter(|pod| gone.contains(&pod.uid)) {
            pod.gone.get_or_insert(now);
        }
    }
}

impl Node {
    fn stamps(&self, name: &str) -> Vec<Stamp> {
        let stamp = |(image, moment): &(String, Moment)| {
            let witness = self.pods.iter().find(|pod| self.bears_out(pod, image, *moment));
            Stamp {
                node: name.to_owned(),
                image: image.clone(),
                witness: witness.map(|pod| pod.uid.clone()),
            }
        };
        self.stamps.iter().map(stamp).collect()
    }

    fn bears_out(&self, pod: &PodSeen, image: &str, stamp: Moment) -> bool {
        let is_there = pod.gone.is_none_or(|gone| !is_over(gone, stamp));
        let has_run = pod.ran.is_some_and(|ran| ran.version < stamp.version);
        pod.image == image && has_run && is_there && self.is_fresh(&pod.revision, stamp)
    }

    /// Whether pods were to be made from this revision when the stamp was written, or just before.
    fn is_fresh(&self, revision: &str, stamp: Moment) -> bool {
        let ends = self.revisions.iter().skip(1).map(|(_, end)| Some(*end)).chain([None]);
        self.revisions.iter().zip(ends).any(|((one, begin), end)| {
            let is_ended = end.is_some_and(|end| is_over(end, stamp));
            one == revision && begin.version < stamp.version && !is_ended
        })
    }
}

/// Whether something was over for good when the stamp was written.
fn is_over(end: Moment, stamp: Moment) -> bool {
    end.version < stamp.version && end.at + OVERTAKEN_WITHIN < stamp.at
}

/// What happened to an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    Now,
    /// Some time before now: it is part of a list. The real moment is unknown, so it is believed to
    /// have been early enough.
    Before,
    Gone,
}

async fn follow<K>(
    kind: &'static str,
    seen: Arc<Seen>,
    api: Api<K>,
    config: watcher::Config,
    see: fn(&Seen, &K, Change, Moment),
) where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let mut events = std::pin::pin!(watch_objects(api, config).default_backoff());
    let mut listed = BTreeSet::new();
    while let Some(event) = events.next().await {
        let (object, change) = match event {
            Ok(Event::Apply(object)) => (object, Change::Now),
            Ok(Event::InitApply(object)) => (object, Change::Before),
            Ok(Event::Delete(object)) => (object, Change::Gone),
            Ok(Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(Event::InitDone) => {
                seen.keep(kind, &listed, Moment { version: 0, at: Instant::now() });
                seen.changes.send_modify(|count| *count += 1);
                continue;
            }
            // The stream begins anew by itself.
            Err(_) => continue,
        };
        let version = version(&object);
        see(&seen, &object, change, Moment { version, at: Instant::now() });
        let (uid, namespace) =
            (object.uid().unwrap_or_default(), object.namespace().unwrap_or_default());
        listed.insert(uid.clone());
        let key = (kind, namespace, object.name_any());
        seen.tell_newest(kind, version);
        if change == Change::Gone {
            seen.versions().remove(&key);
        } else {
            seen.versions().insert(key, (uid, version));
        }
        seen.changes.send_modify(|count| *count += 1);
    }
}

/// The node that a labelled object belongs to.
fn key(object: &impl Resource) -> Option<(String, String)> {
    let node = object.meta().labels.as_ref()?.get(label::NODE)?;
    Some((object.meta().namespace.clone()?, node.clone()))
}

fn see_pod(seen: &Seen, pod: &Pod, change: Change, now: Moment) {
    let (Some(key), Some(uid)) = (key(pod), pod.uid()) else { return };
    let mut nodes = seen.lock();
    let pods = &mut nodes.entry(key).or_default().pods;
    let index = pods.iter().position(|one| one.uid == uid).unwrap_or_else(|| {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let image = containers.filter(|one| one.name == "seid").find_map(|one| one.image.clone());
        let revision = pod.labels().get(label::POD_REVISION).cloned().unwrap_or_default();
        let image = image.unwrap_or_default();
        pods.push(PodSeen { uid, revision, image, ran: None, deleted: None, gone: None });
        pods.len() - 1
    });
    let one = &mut pods[index];
    if one.ran.is_none() && has_run(pod) {
        let version = if change == Change::Before { 0 } else { now.version };
        one.ran = Some(Moment { version, ..now });
    }
    if pod.metadata.deletion_timestamp.is_some() {
        one.deleted.get_or_insert(now);
    }
    if change == Change::Gone {
        one.gone.get_or_insert(now);
    }
}

fn has_run(pod: &Pod) -> bool {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let runs = |one: &ContainerStatus| {
        let states = [one.state.as_ref(), one.last_state.as_ref()];
        let mut states = states.into_iter().flatten();
        states.any(|state| state.running.is_some() || state.terminated.is_some())
    };
    statuses
        .into_iter()
        .flatten()
        .any(|one| one.name == "seid" && !one.image_id.is_empty() && runs(one))
}

fn see_set(seen: &Seen, set: &StatefulSet, change: Change, now: Moment) {
    let Some(key) = key(set) else { return };
    let revision = set.status.as_ref().and_then(|status| status.update_revision.clone());
    let Some(revision) = revision.filter(|_| change != Change::Gone) else { return };
    let mut nodes = seen.lock();
    let revisions = &mut nodes.entry(key).or_default().revisions;
    if revisions.last().is_none_or(|(last, _)| *last != revision) {
        let version = if change == Change::Before { 0 } else { now.version };
        revisions.push((revision, Moment { version, ..now }));
    }
}

fn see_node(seen: &Seen, node: &DynamicObject, change: Change, now: Moment) {
    let (Some(namespace), Some(uid)) = (node.namespace(), node.uid()) else { return };
    if change == Change::Gone {
        return;
    }
    let image = node.data["status"]["currentImage"].as_str().map(str::to_owned);
    let mut nodes = seen.lock();
    let one = nodes.entry((namespace, node.name_any())).or_default();
    if one.uid != uid {
        // Another one by the same name.
        (one.uid, one.current_image) = (uid, None);
    }
    let plan = node.data["status"]["plan"]["id"].as_str();
    if let Some(plan) = plan.filter(|plan| !one.plans.iter().any(|known| known == plan)) {
        one.plans.push(plan.to_owned());
    }
    if one.current_image != image {
        one.stamps.extend(image.clone().map(|image| (image, now)));
        one.current_image = image;
    }
}
