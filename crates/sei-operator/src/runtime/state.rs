//! What a controller keeps in memory about each object between two reconciles. All of it can be
//! lost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// The newest version of an object that this process has seen: from the watch, or from its own write.
/// A watch may lag behind our own writes.
#[derive(Debug)]
pub struct Newest<K> {
    latest: Option<Shared<K>>,
    /// The version that our own last write returned.
    written: Option<String>,
    /// The watch has not shown it yet.
    is_ahead: bool,
}

impl<K> Default for Newest<K> {
    fn default() -> Self {
        Self { latest: None, written: None, is_ahead: false }
    }
}

impl<K: ResourceExt> Newest<K> {
    /// The newer of what the cache shows and what our own writes returned.
    pub fn newest(&mut self, cached: &Shared<K>) -> Shared<K> {
        if let Some(latest) = &self.latest
            && is_current(&**latest, &**cached)
        {
            self.is_ahead &= version(&**latest) > version(&**cached);
            return latest.clone();
        }
        self.latest = Some(cached.clone());
        self.is_ahead = false;
        cached.clone()
    }

    /// Keeps the object as our own write returned it.
    pub fn wrote(&mut self, object: &Shared<K>) {
        if !self.latest.as_ref().is_some_and(|latest| latest.is_same(object)) {
            self.written = object.resource_version();
            self.latest = Some(object.clone());
            self.is_ahead = true;
        }
    }

    /// Whether this version is the one that our own last write returned.
    pub fn is_own_write(&self, object: &K) -> bool {
        self.written.is_some() && self.written == object.resource_version()
    }

    pub fn is_ahead(&self) -> bool {
        self.is_ahead
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
}
