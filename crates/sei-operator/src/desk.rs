//! What the operator keeps in memory about each node between two passes. All of it can be lost.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sei_api::SeiNode;
use sei_api::status::SeiNodeStatus;
use sei_exec::sidecar::Health;
use sei_plan::view::PodView;

use crate::caches::NodeKey;

/// Notes on every node.
#[derive(Debug, Default)]
pub struct Desks {
    desks: Mutex<BTreeMap<NodeKey, Desk>>,
}

/// Notes on one node.
#[derive(Debug, Default)]
pub struct Desk {
    /// A pass is under way.
    busy: bool,
    /// Somebody asked for a look while one was under way.
    dirty: bool,
    /// Counts the passes: a timer set by an earlier one has nothing to say any more.
    passes: u64,
    /// The node as our own last write returned it: a cache may lag behind.
    pub latest: Option<SeiNode>,
    pub carried: Option<Carried>,
    pub delete_conflicts: u32,
    /// Passes in a row that ended in an error.
    pub failures: u32,
    pub probe: Option<Probe>,
}

/// Progress that is not written yet.
#[derive(Clone, Debug)]
pub struct Carried {
    /// The stored status that it goes on from.
    pub stored: SeiNodeStatus,
    pub status: SeiNodeStatus,
    pub since: Instant,
}

/// The last health probe of the node's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub subject: Subject,
    pub health: Option<Health>,
}

/// What a probe speaks for: this pod, with its sidecar started this often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    pub uid: String,
    pub ip: String,
    pub restarts: i32,
}

impl Subject {
    /// The subject of a pod whose sidecar can be asked.
    pub fn of(pod: &PodView) -> Option<Self> {
        let ip = pod.ip.clone()?;
        let running = pod.sidecar.running && !pod.is_terminating();
        running.then(|| Self { uid: pod.uid.clone(), ip, restarts: pod.sidecar.restarts })
    }
}

impl Desks {
    fn desks(&self) -> MutexGuard<'_, BTreeMap<NodeKey, Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pass, unless one is under way; then another is due after it.
    pub fn enter(&self, key: &NodeKey) -> bool {
        let mut desks = self.desks();
        let desk = desks.entry(key.clone()).or_default();
        if desk.busy {
            desk.dirty = true;
            return false;
        }
        desk.busy = true;
        desk.dirty = false;
        desk.passes += 1;
        true
    }

    /// Ends a pass; true if another is due at once.
    pub fn leave(&self, key: &NodeKey) -> bool {
        let mut desks = self.desks();
        let Some(desk) = desks.get_mut(key) else { return false };
        desk.busy = false;
        std::mem::take(&mut desk.dirty)
    }

    /// The number of the node's last pass.
    pub fn passes(&self, key: &NodeKey) -> u64 {
        self.desks().get(key).map_or(0, |desk| desk.passes)
    }

    pub fn with<T>(&self, key: &NodeKey, change: impl FnOnce(&mut Desk) -> T) -> T {
        change(self.desks().entry(key.clone()).or_default())
    }

    pub fn forget(&self, key: &NodeKey) {
        self.desks().remove(key);
    }

    /// The pause after another failed pass: 1 s doubling to a minute.
    pub fn back_off(&self, key: &NodeKey) -> Duration {
        self.with(key, |desk| {
            desk.failures = desk.failures.saturating_add(1);
            Duration::from_secs(1 << (desk.failures - 1).min(6)).min(Duration::from_secs(60))
        })
    }
}

/// The newer of what a cache shows and what our own write returned.
pub fn newest<'a>(cached: &'a SeiNode, own: Option<&'a SeiNode>) -> &'a SeiNode {
    let version = |node: &SeiNode| -> u64 {
        node.metadata.resource_version.as_ref().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    own.filter(|own| own.metadata.uid == cached.metadata.uid && version(own) > version(cached))
        .unwrap_or(cached)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> NodeKey {
        ("ns".into(), "n".into())
    }

    fn node(uid: &str, version: &str) -> SeiNode {
        let mut node = SeiNode::new("n", sei_api::SeiNodeSpec::default());
        node.metadata.uid = Some(uid.into());
        node.metadata.resource_version = Some(version.into());
        node
    }

    #[test]
    fn a_second_pass_waits_for_the_first_and_then_follows() {
        let desks = Desks::default();
        assert!(desks.enter(&key()));
        assert!(!desks.enter(&key()));
        assert!(desks.leave(&key()), "another is due");
        assert!(desks.enter(&key()));
        assert!(!desks.leave(&key()));
    }

    #[test]
    fn our_own_write_counts_until_the_cache_has_it() {
        let own = node("a", "12");
        assert_eq!(newest(&node("a", "9"), Some(&own)), &own);
        assert_eq!(newest(&node("a", "100"), Some(&own)), &node("a", "100"));
        assert_eq!(newest(&node("b", "9"), Some(&own)), &node("b", "9"), "made anew meanwhile");
    }

    #[test]
    fn failures_back_off_to_a_minute() {
        let desks = Desks::default();
        let pauses: Vec<_> = (0..8).map(|_| desks.back_off(&key()).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
