//! What a controller keeps in memory about each object between two reconciles. All of it can be
//! lost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sei_api::key::ObjectKey;

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
