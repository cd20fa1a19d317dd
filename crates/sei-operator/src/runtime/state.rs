//! What a controller keeps in memory about each object between two reconciles. All of it can be
//! lost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use sei_api::key::ObjectKey;
use sei_plan::shared::Shared;

/// State of type `S` by object.
#[derive(Debug)]
pub struct States<S> {
    by_key: Mutex<BTreeMap<ObjectKey, S>>,
}

impl<S> Default for States<S> {
    fn default() -> Self {
        Self { by_key: Mutex::default() }
    }
}

impl<S: Default> States<S> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, S>> {
        // No change under the lock leaves the map inconsistent, so a panic elsewhere is harmless.
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For reconciles of an object: it gets a state if it has none.
    pub fn with<T>(&self, key: &ObjectKey, change: impl FnOnce(&mut S) -> T) -> T {
        let mut states = self.lock();
        if let Some(state) = states.get_mut(key) {
            return change(state);
        }
        change(states.entry(key.clone()).or_default())
    }

    /// For everything else, which may come after the object was deleted.
    pub fn find<T>(&self, key: &ObjectKey, change: impl FnOnce(&mut S) -> T) -> Option<T> {
        self.lock().get_mut(key).map(change)
    }

    pub fn keys(&self) -> Vec<ObjectKey> {
        self.lock().keys().cloned().collect()
    }

    pub fn remove(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }
}

/// How long an object that we created may take to be shown by the watch.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);

/// The newest version of an object that this process has seen: from the watch, or from its own write.
/// A watch may lag behind our own writes.
#[derive(Debug)]
pub struct Newest<K> {
    latest: Option<Shared<K>>,
    /// The version that our own last write returned.
    written: Option<String>,
    /// Since when the watch has not shown an object that we created.
    unseen_since: Option<Instant>,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self { latest: None, written: None, unseen_since: None }
    }
}

impl<K: ResourceExt> Newest<K> {
    /// The newer of what the cache shows and what our own writes returned.
    pub fn newest(&mut self, cached: &Shared<K>) -> Shared<K> {
        self.unseen_since = None;
        if let Some(latest) = &self.latest
            && is_current(&**latest, &**cached)
        {
            return latest.clone();
        }
        self.latest = Some(cached.clone());
        cached.clone()
    }

    /// Keeps the object as our own write returned it.
    pub fn wrote(&mut self, object: &Shared<K>) {
        let latest = self.latest.as_ref();
        if latest.is_some_and(|latest| latest.is_same(object)) {
            return;
        }
        if latest.is_none_or(|latest| latest.uid() != object.uid()) {
            self.unseen_since = Some(Instant::now());
        }
        self.written = object.resource_version();
        self.latest = Some(object.clone());
    }

    /// Whether this version is the one that our own last write returned.
    pub fn is_own_write(&self, object: &K) -> bool {
        self.written.is_some() && self.written == object.resource_version()
    }

    /// Whether we created it and the watch will show it soon.
    pub fn is_unseen(&self) -> bool {
        self.unseen_since.is_some_and(|since| since.elapsed() < SHOWN_WITHIN)
    }

    pub fn get(&self) -> Option<Shared<K>> {
        self.latest.clone()
    }
}

fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whether `ours` is the same object as `cached`, and no older.
pub fn is_current<K: ResourceExt>(ours: &K, cached: &K) -> bool {
    ours.uid() == cached.uid() && version(ours) >= version(cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_reconcile_creates_state() {
        let states: States<u32> = States::default();
        let key = ObjectKey::new("ns", "n");
        assert_eq!(states.find(&key, |count| *count), None);
        states.with(&key, |count| *count += 1);
        assert_eq!(states.find(&key, |count| *count), Some(1));
        states.remove(&key);
        assert_eq!(states.keys(), []);
    }

    #[test]
    fn an_object_that_we_created_counts_until_the_watch_has_shown_it() {
        let pod = |uid: &str, version: &str| {
            let mut pod = k8s_openapi::api::core::v1::Pod::default();
            pod.metadata.uid = Some(uid.to_owned());
            pod.metadata.resource_version = Some(version.to_owned());
            Shared::new(pod)
        };
        let mut newest = Newest::default();
        newest.wrote(&pod("a", "5"));
        assert!(newest.is_unseen(), "created");
        assert!(newest.is_own_write(&pod("a", "5")));
        newest.newest(&pod("a", "5"));
        newest.wrote(&pod("a", "9"));
        assert!(!newest.is_unseen(), "changed after the watch had shown it");
        let version = |pod: &Shared<k8s_openapi::api::core::v1::Pod>| pod.resource_version();
        assert_eq!(version(&newest.newest(&pod("a", "5"))).as_deref(), Some("9"));
        assert_eq!(version(&newest.newest(&pod("b", "3"))).as_deref(), Some("3"), "created again");
    }
}
