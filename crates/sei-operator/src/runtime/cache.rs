//! Caches: small views of the objects that belong to reconciled ones, filled by watches.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use futures::{Stream, StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use sei_api::key::ObjectKey;
use sei_plan::shared::Shared;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::controller::{Kind, Queue};
use super::metrics::Metrics;

/// What a cache keeps of an object.
pub trait View: PartialEq + Send + Sync + 'static {
    /// Whether the owner has to be reconciled, given what the cache held before.
    fn is_news(&self, before: &Self) -> bool {
        self != before
    }
}

/// Views of one kind, by the object they belong to and by their own name.
#[derive(Debug)]
pub struct Cache<V> {
    objects: RwLock<Views<V>>,
}

type Views<V> = BTreeMap<ObjectKey, BTreeMap<String, Shared<V>>>;

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Self { objects: RwLock::default() }
    }
}

impl<V> Cache<V> {
    fn read(&self) -> RwLockReadGuard<'_, Views<V>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Views<V>> {
        self.objects.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every object of this owner.
    pub fn of(&self, owner: &ObjectKey) -> Vec<Shared<V>> {
        self.read().get(owner).map(|all| all.values().cloned().collect()).unwrap_or_default()
    }

    /// Something of every object.
    pub fn each<T: Ord>(&self, of: impl Fn(&V) -> T) -> BTreeSet<T> {
        self.read().values().flat_map(BTreeMap::values).map(|view| of(view)).collect()
    }

    pub fn get(&self, owner: &ObjectKey, name: &str) -> Option<Shared<V>> {
        self.read().get(owner)?.get(name).cloned()
    }
}

/// Where to watch, and what to enqueue.
pub struct Scope<'a, R: Kind> {
    pub client: &'a Client,
    /// Only this namespace; all without it.
    pub namespace: Option<&'a str>,
    /// Label whose value names the owner.
    pub owner_label: &'static str,
    pub queue: &'a Queue<R>,
    pub metrics: &'a Metrics,
}

impl<R: Kind> Scope<'_, R> {
    /// Fills a cache from a watch of everything that carries the owner's label. The receiver turns
    /// true once the first list is in.
    pub fn follow<K, V>(&self, cache: &Arc<Cache<V>>, view: fn(&K) -> V) -> watch::Receiver<bool>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
        V: View,
    {
        let api: Api<K> = match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let config = watcher::Config::default().labels(self.owner_label);
        let events = Box::pin(persistent(watcher(api, config), K::kind(&()), self.metrics.clone()));
        let (ready, receiver) = watch::channel(false);
        let (cache, queue, label) = (cache.clone(), self.queue.clone(), self.owner_label);
        tokio::spawn(async move {
            follow(&cache, events, &queue, label, view, ready).await;
        });
        receiver
    }
}

async fn follow<K, V, R>(
    cache: &Cache<V>,
    mut events: impl Stream<Item = watcher::Event<K>> + Unpin,
    queue: &Queue<R>,
    owner_label: &str,
    view: fn(&K) -> V,
    ready: watch::Sender<bool>,
) where
    K: Resource<DynamicType = ()>,
    V: View,
    R: Kind,
{
    let owner = |object: &K| {
        let name = object.labels().get(owner_label)?;
        Some(ObjectKey::new(object.namespace()?, name))
    };
    let mut listed: Views<V> = BTreeMap::new();
    while let Some(event) = events.next().await {
        match event {
            watcher::Event::Apply(object) => {
                let Some(key) = owner(&object) else { continue };
                let view = Shared::new(view(&object));
                let mut objects = cache.write();
                let of_owner = objects.entry(key.clone()).or_default();
                let before = of_owner.insert(object.name_any(), view.clone());
                drop(objects);
                if before.is_none_or(|before| view.is_news(&before)) {
                    queue.enqueue(&key);
                }
            }
            watcher::Event::Delete(object) => {
                let Some(key) = owner(&object) else { continue };
                let mut objects = cache.write();
                if let Some(all) = objects.get_mut(&key) {
                    all.remove(&object.name_any());
                    if all.is_empty() {
                        objects.remove(&key);
                    }
                }
                drop(objects);
                queue.enqueue(&key);
            }
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(object) => {
                if let Some(key) = owner(&object) {
                    let view = Shared::new(view(&object));
                    listed.entry(key).or_default().insert(object.name_any(), view);
                }
            }
            watcher::Event::InitDone => {
                replace(cache, std::mem::take(&mut listed), queue);
                ready.send_replace(true);
            }
        }
    }
}

/// Puts a new list in place of the old one, and enqueues every owner for whom it differs.
fn replace<V: View, R: Kind>(cache: &Cache<V>, listed: Views<V>, queue: &Queue<R>) {
    let mut objects = cache.write();
    let before = std::mem::replace(&mut *objects, listed);
    let differs = |key: &&ObjectKey| before.get(*key) != objects.get(*key);
    let keys: BTreeSet<&ObjectKey> = before.keys().chain(objects.keys()).filter(differs).collect();
    for key in keys {
        queue.enqueue(key);
    }
}

/// A watch that recovers by itself. Failures are logged, counted, and tried again, later each time.
pub(crate) fn persistent<K>(
    watched: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    kind: Cow<'static, str>,
    metrics: Metrics,
) -> impl Stream<Item = watcher::Event<K>> {
    watched.backoff(Patience::default()).filter_map(move |event| {
        let received = event.map_err(|error| report_failure(&kind, &error, &metrics));
        future::ready(received.ok())
    })
}

fn report_failure(kind: &str, error: &watcher::Error, metrics: &Metrics) {
    metrics.error("watch");
    let is_unserved = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code == 404,
        _ => false,
    };
    let error = sei_exec::call::chain(error);
    if is_unserved {
        tracing::warn!(kind, error, "a watch failed: the server does not know this kind");
    } else {
        tracing::warn!(kind, error, "a watch failed");
    }
}

/// The pauses of `kube`, 1 s growing to 30 s, without its reset by every event: the begin of
/// a list is an event, so a list that always fails would be requested every second. Two minutes
/// without an error reset the pause.
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

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
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
}
