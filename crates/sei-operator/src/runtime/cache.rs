//! Caches: small views of the objects that belong to reconciled ones, filled by watches.
//!
//! Anybody who may create an object can label it. What does not belong to a known owner is dropped
//! before a view is made of it, so that objects of others do not cost memory. A cache is therefore no
//! proof that an object does not exist: before something is created, the server is asked.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use anyhow::Context as _;
use futures::{Stream, StreamExt, future};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::Store;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use sei_api::key::ObjectKey;
use sei_plan::shared::Shared;
use serde::de::DeserializeOwned;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use super::controller::{Kind, Queue, Source, reference};
use super::guarded::Guarded;
use super::metrics::Metrics;
use super::namespaces;

/// Objects per page of a list. An object has at most 1.5 MiB, and a page is in memory as a whole.
const PAGE: u32 = 25;

/// What a cache keeps of an object.
pub trait View: PartialEq + Send + Sync + 'static {
    /// Whether the owner has to be reconciled, given what the cache held before.
    fn is_news(&self, before: &Self) -> bool {
        self != before
    }

    /// The same for an object that the cache did not hold.
    fn is_news_at_first(&self) -> bool {
        true
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

/// Whether an object belongs to its owner, by the metadata of both.
pub type Belongs = fn(object: &ObjectMeta, owner: &ObjectMeta) -> bool;

/// Where to watch, and what to enqueue.
pub struct Scope<'a, R: Kind> {
    pub client: &'a Client,
    /// Only these namespaces; all without any.
    pub namespaces: &'a [String],
    /// Label whose value names the owner.
    pub owner_label: &'static str,
    /// The owners. Their first list must be in.
    pub owners: &'a Source<R>,
    pub metrics: &'a Metrics,
}

impl<R: Kind> Scope<'_, R> {
    /// Fills a cache from a watch of everything that carries the owner's label and belongs to the
    /// owner. The receiver turns true once the first list is in.
    pub fn follow<K, V>(
        &self,
        cache: &Arc<Cache<V>>,
        belongs: Belongs,
        view: fn(&K) -> V,
    ) -> watch::Receiver<bool>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + DeserializeOwned + Send + 'static,
        V: View,
    {
        let (client, namespaces) = (self.client.clone(), self.namespaces.to_vec());
        let config = watcher::Config::default().labels(self.owner_label).page_size(PAGE);
        let (ready, receiver) = watch::channel(false);
        let door = Door {
            label: self.owner_label,
            owners: self.owners.store(),
            belongs,
            dropped: Dropped::default(),
        };
        let metrics = self.metrics.clone();
        let (cache, queue) = (cache.clone(), self.owners.queue());
        let mut follower =
            Follower { cache, queue, door, appeared: self.owners.appeared(), view, ready };
        tokio::spawn(async move {
            loop {
                let events = namespaces::events::<K>(&client, &namespaces, &config);
                let events =
                    Box::pin(persistent(events, K::kind(&()), R::kind(&()), metrics.clone()));
                match follower.follow(events).await {
                    End::Relist => {}
                    End::Closed => return,
                }
            }
        });
        receiver
    }
}

/// Decides which objects a cache keeps.
struct Door<R: Kind> {
    label: &'static str,
    owners: Store<Guarded<R>>,
    belongs: Belongs,
    dropped: Dropped,
}

impl<R: Kind> Door<R> {
    /// The owner that the object's label names.
    fn owner(&self, object: &ObjectMeta) -> Option<ObjectKey> {
        let name = object.labels.as_ref()?.get(self.label)?;
        Some(ObjectKey::new(object.namespace.as_deref()?, name))
    }

    /// Whether the object is kept. One that is not may belong to an owner that the watch has not
    /// shown yet, so it is remembered.
    fn admits(&mut self, object: &ObjectMeta, key: &ObjectKey) -> bool {
        let owner = self.owners.get(&reference(key));
        let is_admitted = owner.is_some_and(|owner| (self.belongs)(object, owner.meta()));
        if is_admitted {
            self.dropped.remove(key, object);
        } else {
            self.dropped.insert(key, object);
        }
        is_admitted
    }
}

/// Which objects were dropped, by hashes of the owner's key and of their name: sixteen bytes for
/// each, however long the names are.
#[derive(Default)]
struct Dropped(BTreeSet<(u64, u64)>);

impl Dropped {
    fn insert(&mut self, owner: &ObjectKey, object: &ObjectMeta) {
        self.0.insert((hash(owner), hash(&object.name)));
    }

    fn remove(&mut self, owner: &ObjectKey, object: &ObjectMeta) {
        self.0.remove(&(hash(owner), hash(&object.name)));
    }

    fn has_of(&self, owner: u64) -> bool {
        self.0.range((owner, 0)..=(owner, u64::MAX)).next().is_some()
    }
}

fn hash(value: &impl std::hash::Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Why a watch is no longer followed.
#[derive(Debug, PartialEq)]
enum End {
    /// An owner has appeared of which objects were dropped.
    Relist,
    Closed,
}

/// Fills one cache.
struct Follower<K, V, R: Kind> {
    cache: Arc<Cache<V>>,
    queue: Queue<R>,
    door: Door<R>,
    appeared: broadcast::Receiver<ObjectKey>,
    view: fn(&K) -> V,
    ready: watch::Sender<bool>,
}

impl<K, V, R> Follower<K, V, R>
where
    K: Resource<DynamicType = ()>,
    V: View,
    R: Kind,
{
    async fn follow(&mut self, mut events: impl Stream<Item = watcher::Event<K>> + Unpin) -> End {
        let mut listed: Views<V> = BTreeMap::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                owner = self.appeared.recv() => match owner {
                    Ok(owner) if self.door.dropped.has_of(hash(&owner)) => return End::Relist,
                    Err(RecvError::Lagged(_)) if !self.door.dropped.0.is_empty() => {
                        return End::Relist;
                    }
                    Ok(_) | Err(RecvError::Lagged(_)) => continue,
                    Err(RecvError::Closed) => return End::Closed,
                },
            };
            match event {
                Some(event) => self.absorb(event, &mut listed),
                None => return End::Closed,
            }
        }
    }

    fn absorb(&mut self, event: watcher::Event<K>, listed: &mut Views<V>) {
        match event {
            watcher::Event::Apply(object) => {
                let Some(key) = self.door.owner(object.meta()) else { return };
                if !self.door.admits(object.meta(), &key) {
                    // It may have belonged to the owner until now.
                    if self.remove(&key, &object.name_any()) {
                        self.queue.enqueue(&key);
                    }
                    return;
                }
                let view = Shared::new((self.view)(&object));
                let mut objects = self.cache.write();
                let of_owner = objects.entry(key.clone()).or_default();
                let before = of_owner.insert(object.name_any(), view.clone());
                drop(objects);
                if before.map_or_else(|| view.is_news_at_first(), |before| view.is_news(&before)) {
                    self.queue.enqueue(&key);
                }
            }
            watcher::Event::Delete(object) => {
                let Some(key) = self.door.owner(object.meta()) else { return };
                self.door.dropped.remove(&key, object.meta());
                self.remove(&key, &object.name_any());
                // Also for an object of others: the owner may wait for its name.
                self.queue.enqueue(&key);
            }
            watcher::Event::Init => {
                listed.clear();
                self.door.dropped = Dropped::default();
            }
            watcher::Event::InitApply(object) => {
                let Some(key) = self.door.owner(object.meta()) else { return };
                if self.door.admits(object.meta(), &key) {
                    let view = Shared::new((self.view)(&object));
                    listed.entry(key).or_default().insert(object.name_any(), view);
                }
            }
            watcher::Event::InitDone => {
                replace(&self.cache, std::mem::take(listed), &self.queue);
                self.ready.send_replace(true);
            }
        }
    }

    /// Removes an object from the cache. Whether it was there.
    fn remove(&self, owner: &ObjectKey, name: &str) -> bool {
        let mut objects = self.cache.write();
        let Some(all) = objects.get_mut(owner) else { return false };
        let was_there = all.remove(name).is_some();
        if all.is_empty() {
            objects.remove(owner);
        }
        was_there
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

/// A watch of `kind`, for the controller of the kind `controller`, that recovers by itself. Failures are logged, counted, and tried again, later each time.
pub(crate) fn persistent<K>(
    watched: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    kind: Cow<'static, str>,
    controller: Cow<'static, str>,
    metrics: Metrics,
) -> impl Stream<Item = watcher::Event<K>> {
    watched.backoff(Patience::default()).filter_map(move |event| {
        let received = event.map_err(|error| report_failure(&kind, &controller, &error, &metrics));
        future::ready(received.ok())
    })
}

fn report_failure(kind: &str, controller: &str, error: &watcher::Error, metrics: &Metrics) {
    metrics.error(controller, "watch");
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

/// Ends when one of the tasks that hold the other ends of these channels has ended.
pub(crate) async fn any_closed(channels: Vec<watch::Receiver<bool>>) {
    let closed = |mut channel: watch::Receiver<bool>| {
        Box::pin(async move { while channel.changed().await.is_ok() {} })
    };
    futures::future::select_all(channels.into_iter().map(closed)).await;
}

/// Waits until these lists are in. Returns whether they are; otherwise `stop` has turned true.
pub(crate) async fn filled(
    lists: &mut [watch::Receiver<bool>],
    stop: &mut watch::Receiver<bool>,
) -> anyhow::Result<bool> {
    for list in lists {
        tokio::select! {
            filled = list.wait_for(|filled| *filled) => drop(filled.context("a watch ended")?),
            _ = stop.wait_for(|stop| *stop) => return Ok(false),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Pod};
    use kube::runtime::reflector;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::runtime::controller::Enqueued;

    impl View for String {}

    /// A cache of `ConfigMap`s of pods, and what its events are read from.
    struct Fixture {
        owners: reflector::store::Writer<Guarded<Pod>>,
        appeared: broadcast::Sender<ObjectKey>,
        follower: Follower<ConfigMap, String, Pod>,
        enqueued: Enqueued<Pod>,
    }

    fn fixture() -> Fixture {
        let (owners, writer) = reflector::store();
        let (queue, enqueued) = Queue::new();
        let (appeared, receiver) = broadcast::channel(4);
        let belongs: Belongs = |object, owner| {
            let owners = object.owner_references.as_deref().unwrap_or_default();
            owners.first().map(|found| &found.uid) == owner.uid.as_ref()
        };
        let door = Door { label: "owner", owners, belongs, dropped: Dropped::default() };
        let follower = Follower {
            cache: Arc::default(),
            queue,
            door,
            appeared: receiver,
            view: |map: &ConfigMap| map.name_any(),
            ready: watch::channel(false).0,
        };
        Fixture { owners: writer, appeared, follower, enqueued }
    }

    impl Fixture {
        fn owner_exists(&mut self, uid: &str) {
            let owner = json!({ "metadata": { "name": "a", "namespace": "ns", "uid": uid } });
            let owner = serde_json::from_value(owner).unwrap();
            self.owners.apply_watcher_event(&watcher::Event::Apply(owner));
        }

        /// The names of the cached objects after these events, and whether the owner was enqueued.
        async fn after(&mut self, events: Vec<watcher::Event<ConfigMap>>) -> (Vec<String>, bool) {
            self.follower.follow(futures::stream::iter(events)).await;
            let cached = self.follower.cache.of(&ObjectKey::new("ns", "a"));
            let mut is_enqueued = false;
            while self.enqueued.try_recv().is_ok() {
                is_enqueued = true;
            }
            (cached.iter().map(|name| (**name).clone()).collect(), is_enqueued)
        }
    }

    fn map(name: &str, owner_uid: &str) -> ConfigMap {
        let owner = json!({ "apiVersion": "v1", "kind": "Pod", "name": "a", "uid": owner_uid });
        let labels = json!({ "owner": "a" });
        serde_json::from_value(json!({ "metadata": { "name": name, "namespace": "ns",
            "labels": labels, "ownerReferences": [owner] } }))
        .unwrap()
    }

    #[tokio::test]
    async fn objects_that_do_not_belong_to_a_known_owner_are_dropped() {
        use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
        let mut fixture = fixture();
        fixture.owner_exists("1");
        let listed = vec![Init, InitApply(map("own", "1")), InitApply(map("alien", "2")), InitDone];
        assert_eq!(fixture.after(listed).await, (vec!["own".to_owned()], true));
        let alien = vec![Apply(map("alien", "2"))];
        assert_eq!(fixture.after(alien).await, (vec!["own".to_owned()], false), "no news");
        // The owner may wait for the name.
        let alien = vec![Delete(map("alien", "2"))];
        assert_eq!(fixture.after(alien).await, (vec!["own".to_owned()], true));
        let taken = vec![Apply(map("own", "2"))];
        assert_eq!(fixture.after(taken).await, (vec![], true), "it was the owner's until now");
    }

    #[tokio::test]
    async fn everything_is_listed_again_when_the_owner_of_a_dropped_object_appears() {
        let mut fixture = fixture();
        let early = vec![watcher::Event::Apply(map("own", "1"))];
        assert_eq!(fixture.after(early).await, (vec![], false));
        for (owner, relists) in [("b", false), ("a", true)] {
            fixture.appeared.send(ObjectKey::new("ns", owner)).unwrap();
            let follow = fixture.follower.follow(futures::stream::pending());
            let end = tokio::time::timeout(Duration::from_millis(50), follow).await.ok();
            assert_eq!(end, relists.then_some(End::Relist), "{owner}");
        }
        fixture.owner_exists("1");
        let again = vec![watcher::Event::Init, watcher::Event::InitApply(map("own", "1"))];
        let again = again.into_iter().chain([watcher::Event::InitDone]).collect();
        assert_eq!(fixture.after(again).await, (vec!["own".to_owned()], true));
        fixture.appeared.send(ObjectKey::new("ns", "a")).unwrap();
        let follow = fixture.follower.follow(futures::stream::pending());
        assert!(tokio::time::timeout(Duration::from_millis(50), follow).await.is_err());
    }

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
        let watched = persistent(attempts, Pod::kind(&()), Pod::kind(&()), metrics.clone());
        let begun = Instant::now();
        watched.take(20).for_each(|_| future::ready(())).await;
        assert!(begun.elapsed() > Duration::from_secs(300), "{:?}", begun.elapsed());
        let counted = metrics.encode();
        assert!(counted.contains("category=\"watch\"} 19"), "{counted}");
    }

    #[tokio::test]
    async fn the_end_of_one_watch_task_is_noticed() {
        let tasks = [true, false].map(|panics| {
            let (sender, receiver) = watch::channel(false);
            tokio::spawn(async move {
                sender.send_replace(true);
                assert!(!panics, "a defect");
                std::future::pending::<()>().await;
            });
            receiver
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), any_closed(tasks.into()));
        ended.await.expect("the end of the first task");
    }
}
