//! What the watches have told so far: small views of the objects that belong to nodes.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use sei_api::names::label;
use sei_exec::perform::claim_view;
use sei_plan::request::ClaimView;
use sei_plan::view::{JobView, PodView, StatefulSetView};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::Guarded;
use crate::metrics::Metrics;

/// A node, by namespace and name.
pub type NodeKey = (String, String);

/// Wakes a node: it is looked at soon.
#[derive(Clone, Debug)]
pub struct Wake(pub mpsc::UnboundedSender<ObjectRef<Guarded>>);

impl Wake {
    pub fn node(&self, key: &NodeKey) {
        let reference = ObjectRef::new(&key.1).within(&key.0);
        // The receiver goes only when the process does.
        let _ = self.0.send(reference);
    }
}

/// Views of one kind of object, by the node they belong to and by their name.
#[derive(Debug)]
pub struct Cache<V> {
    objects: RwLock<BTreeMap<NodeKey, BTreeMap<String, V>>>,
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self { objects: RwLock::default() }
    }
}

impl<V: Clone> Cache<V> {
    pub fn of(&self, node: &NodeKey) -> Vec<V> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(node).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    /// Something of every object.
    pub fn each<T: Ord>(&self, of: impl Fn(&V) -> T) -> BTreeSet<T> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.values().flat_map(BTreeMap::values).map(of).collect()
    }

    pub fn get(&self, node: &NodeKey, name: &str) -> Option<V> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.get(node)?.get(name).cloned()
    }
}

/// Every cache of the operator.
#[derive(Clone, Debug, Default)]
pub struct Caches {
    pub statefulsets: Arc<Cache<StatefulSetView>>,
    pub pods: Arc<Cache<PodView>>,
    pub services: Arc<Cache<Value>>,
    pub config_maps: Arc<Cache<Value>>,
    pub claims: Arc<Cache<ClaimView>>,
    pub jobs: Arc<Cache<JobView>>,
}

impl Caches {
    /// Starts the watches. The returned receivers turn true once the first list is in.
    pub fn start(
        &self,
        client: &Client,
        namespace: Option<&str>,
        wake: &Wake,
        metrics: &Metrics,
    ) -> Vec<watch::Receiver<bool>> {
        let scope = Scope { client, namespace, wake, metrics };
        vec![
            scope.follow(&self.statefulsets, |one: &StatefulSet| one.into(), seen_as),
            scope.follow(&self.pods, |one: &Pod| one.into(), pod_without_version),
            scope.follow(&self.services, service_view, seen_as),
            scope.follow(&self.config_maps, config_map_view, seen_as),
            scope.follow(&self.claims, claim_view, seen_as),
            scope.follow(&self.jobs, |one: &Job| one.into(), seen_as),
        ]
    }
}

/// A view as it counts for waking a node.
fn seen_as<V: Clone>(view: &V) -> V {
    view.clone()
}

/// A pod's status churns; its version alone is no news.
fn pod_without_version(view: &PodView) -> PodView {
    PodView { resource_version: String::new(), ..view.clone() }
}

/// What of a Service can be changed by hand.
fn service_view(service: &Service) -> Value {
    object_view(service)
}

fn config_map_view(map: &ConfigMap) -> Value {
    object_view(map)
}

/// Everything but what the server keeps books on.
fn object_view(object: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata
            .retain(|key, _| ["name", "labels", "ownerReferences", "uid"].contains(&key.as_str()));
    }
    value
}

/// Where to watch, and whom to tell.
struct Scope<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
    wake: &'a Wake,
    metrics: &'a Metrics,
}

impl Scope<'_> {
    /// Fills a cache from a watch of everything that carries a node's label.
    fn follow<K, V>(
        &self,
        cache: &Arc<Cache<V>>,
        project: fn(&K) -> V,
        counts_as: fn(&V) -> V,
    ) -> watch::Receiver<bool>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
        V: Clone + PartialEq + Send + Sync + 'static,
    {
        let api: Api<K> = match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let config = watcher::Config::default().labels(label::NODE);
        let stream = Box::pin(persistent(watcher(api, config), K::kind(&()), self.metrics.clone()));
        let (ready, receiver) = watch::channel(false);
        tokio::spawn(follow(cache.clone(), stream, self.wake.clone(), project, counts_as, ready));
        receiver
    }
}

async fn follow<K, V>(
    cache: Arc<Cache<V>>,
    mut stream: impl Stream<Item = watcher::Event<K>> + Unpin,
    wake: Wake,
    project: fn(&K) -> V,
    counts_as: fn(&V) -> V,
    ready: watch::Sender<bool>,
) where
    K: Resource<DynamicType = ()>,
    V: Clone + PartialEq,
{
    let mut listed: BTreeMap<NodeKey, BTreeMap<String, V>> = BTreeMap::new();
    while let Some(event) = stream.next().await {
        match event {
            watcher::Event::Apply(object) => {
                let Some(key) = node_of(&object) else { continue };
                let view = project(&object);
                let mut objects = cache.objects.write().unwrap_or_else(PoisonError::into_inner);
                let before =
                    objects.entry(key.clone()).or_default().insert(object.name_any(), view.clone());
                drop(objects);
                if before.as_ref().map(counts_as) != Some(counts_as(&view)) {
                    wake.node(&key);
                }
            }
            watcher::Event::Delete(object) => {
                let Some(key) = node_of(&object) else { continue };
                let mut objects = cache.objects.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(all) = objects.get_mut(&key) {
                    all.remove(&object.name_any());
                    if all.is_empty() {
                        objects.remove(&key);
                    }
                }
                drop(objects);
                wake.node(&key);
            }
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                if let Some(key) = node_of(&object) {
                    listed.entry(key).or_default().insert(object.name_any(), project(&object));
                }
            }
            watcher::Event::InitDone => {
                let fresh = std::mem::take(&mut listed);
                let mut objects = cache.objects.write().unwrap_or_else(PoisonError::into_inner);
                let before = std::mem::replace(&mut *objects, fresh);
                let changed: Vec<NodeKey> = before
                    .keys()
                    .chain(objects.keys())
                    .filter(|key| before.get(*key) != objects.get(*key))
                    .cloned()
                    .collect();
                drop(objects);
                for key in &changed {
                    wake.node(key);
                }
                ready.send_replace(true);
            }
        }
    }
}

/// A watch that recovers by itself. What fails is told, counted, and tried again, later each time.
pub(crate) fn persistent<K>(
    watched: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    kind: Cow<'static, str>,
    metrics: Metrics,
) -> impl Stream<Item = watcher::Event<K>> {
    watched.backoff(Patience::default()).filter_map(move |event| {
        let heard = event.map_err(|error| watch_broke(&kind, &error, &metrics));
        future::ready(heard.ok())
    })
}

fn watch_broke(kind: &str, error: &watcher::Error, metrics: &Metrics) {
    metrics.error("watch");
    let is_unserved = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    };
    let error = sei_exec::call::chain(error);
    if is_unserved {
        tracing::warn!(kind, error, "nothing can be watched: the server does not know this kind");
    } else {
        tracing::warn!(kind, error, "a watch broke");
    }
}

/// The pauses of `kube`, 1 s growing to 30 s, without its reset by every event: a list that begins
/// is one, so that one which always fails would be asked for every second. Two minutes without an
/// error start anew.
#[derive(Default)]
struct Patience(DefaultBackoff);

impl Iterator for Patience {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Patience {
    fn reset(&mut self) {}
}

fn node_of<K: Resource<DynamicType = ()>>(object: &K) -> Option<NodeKey> {
    let node = object.labels().get(label::NODE)?.clone();
    Some((object.namespace()?, node))
}

/// Whether everything in `desired` stands in `live`; what only `live` has is the server's.
pub fn covers(live: &Value, desired: &Value) -> bool {
    match (live, desired) {
        (Value::Object(live), Value::Object(desired)) => desired
            .iter()
            .all(|(key, value)| live.get(key).is_some_and(|other| covers(other, value))),
        (Value::Array(live), Value::Array(desired)) => {
            live.len() == desired.len()
                && live.iter().zip(desired).all(|(one, other)| covers(one, other))
        }
        _ => live == desired,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_always_fails_is_tried_less_and_less() {
        let attempts = futures::stream::iter(0..).map(|at: u32| {
            if at.is_multiple_of(2) {
                Ok(watcher::Event::<Pod>::Init)
            } else {
                Err(watcher::Error::NoResourceVersion)
            }
        });
        let metrics = Metrics::new();
        let watched = persistent(attempts, Pod::kind(&()), metrics.clone());
        let begun = Instant::now();
        watched.take(20).for_each(|_| future::ready(())).await;
        assert!(begun.elapsed() > Duration::from_secs(300), "{:?}", begun.elapsed());
        let counted = metrics.encode();
        assert!(counted.contains("category=\"watch\"} 19"), "{counted}");
    }

    #[test]
    fn an_object_covers_another_that_it_holds() {
        let live = json!({ "a": 1, "b": { "c": [ { "d": 1, "default": true } ] } });
        assert!(covers(&live, &json!({ "b": { "c": [ { "d": 1 } ] } })));
        assert!(!covers(&live, &json!({ "b": { "c": [ { "d": 2 } ] } })));
        assert!(!covers(&live, &json!({ "b": { "c": [] } })));
        assert!(!covers(&live, &json!({ "x": 1 })));
    }
}
