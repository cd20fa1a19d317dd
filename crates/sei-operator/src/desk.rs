//! What the operator keeps in memory about each node between two passes. All of it can be lost.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sei_api::SeiNode;
use sei_api::status::SeiNodeStatus;
use sei_exec::sidecar::Health;
use sei_plan::view::PodView;
use tokio::sync::Notify;

use crate::caches::NodeKey;

/// Notes on every node.
#[derive(Debug, Default)]
pub struct Desks {
    by_node: Mutex<BTreeMap<NodeKey, Desk>>,
    /// Nobody begins a pass any more. Changed and read under the lock of the desks.
    closed: AtomicBool,
    /// Told of every pass that ends.
    left: Notify,
}

/// A pass under way. The node is busy until this is dropped: a pass that was cut off, or that
/// panicked, must not keep its node from being looked at.
#[derive(Debug)]
pub struct Seat {
    desks: Arc<Desks>,
    key: NodeKey,
    is_left: bool,
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
    /// The node as our own last write, or a live look, returned it: a cache may lag behind.
    pub latest: Option<SeiNode>,
    pub carried: Option<Carried>,
    pub delete_conflicts: u32,
    /// Passes in a row that ended in an error.
    pub failures: u32,
    /// Passes in a row that ended because somebody else had written the node.
    pub overtaken: u32,
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
        self.by_node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a pass, unless one is under way; then another is due after it.
    pub fn enter(self: &Arc<Self>, key: &NodeKey) -> Option<Seat> {
        let mut desks = self.desks();
        if self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let desk = desks.entry(key.clone()).or_default();
        if desk.busy {
            desk.dirty = true;
            return None;
        }
        desk.busy = true;
        desk.dirty = false;
        desk.passes += 1;
        Some(Seat { desks: self.clone(), key: key.clone(), is_left: false })
    }

    /// The nodes that a pass is under way for.
    pub fn busy(&self) -> Vec<NodeKey> {
        self.desks().iter().filter(|(_, desk)| desk.busy).map(|(key, _)| key.clone()).collect()
    }

    /// Lets no pass begin any more, and waits until none is under way.
    pub async fn close(&self) {
        {
            let _desks = self.desks();
            self.closed.store(true, Ordering::Relaxed);
        }
        loop {
            let mut left = std::pin::pin!(self.left.notified());
            // Counted in before the look: a pass that ends in between is heard.
            left.as_mut().enable();
            if !self.desks().values().any(|desk| desk.busy) {
                return;
            }
            left.await;
        }
    }

    /// The number of the node's last pass.
    pub fn passes(&self, key: &NodeKey) -> u64 {
        self.desks().get(key).map_or(0, |desk| desk.passes)
    }

    /// For passes: a node that nothing was noted of gets a desk.
    pub fn with<T>(&self, key: &NodeKey, change: impl FnOnce(&mut Desk) -> T) -> T {
        change(self.desks().entry(key.clone()).or_default())
    }

    /// For everybody else, who may come after the node has gone.
    pub fn find<T>(&self, key: &NodeKey, change: impl FnOnce(&mut Desk) -> T) -> Option<T> {
        self.desks().get_mut(key).map(change)
    }

    /// The nodes that something is noted of and that no pass is under way for.
    pub fn at_rest(&self) -> Vec<NodeKey> {
        let desks = self.desks();
        desks.iter().filter(|(_, desk)| !desk.busy).map(|(key, _)| key.clone()).collect()
    }

    /// Forgets a node, unless a pass is under way: its end has to be heard.
    pub fn forget(&self, key: &NodeKey) {
        let mut desks = self.desks();
        if desks.get(key).is_some_and(|desk| !desk.busy) {
            desks.remove(key);
        }
    }

    /// The pause after another failed pass: 1 s doubling to a minute.
    pub fn back_off(&self, key: &NodeKey) -> Duration {
        self.with(key, |desk| {
            desk.failures = desk.failures.saturating_add(1);
            Duration::from_secs(1 << (desk.failures - 1).min(6)).min(Duration::from_secs(60))
        })
    }
}

impl Seat {
    pub fn key(&self) -> &NodeKey {
        &self.key
    }

    /// Ends the pass; true if another is due at once.
    pub fn leave(mut self) -> bool {
        self.free()
    }

    fn free(&mut self) -> bool {
        if std::mem::replace(&mut self.is_left, true) {
            return false;
        }
        let is_due = self.desks.find(&self.key, |desk| {
            desk.busy = false;
            std::mem::take(&mut desk.dirty)
        });
        self.desks.left.notify_waiters();
        is_due.unwrap_or(false)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.free();
    }
}

impl Desk {
    /// Counts another pass that was overtaken, and says how long to wait before the next: 100 ms
    /// doubling to a minute. The first is an everyday race, which the watch ends at once.
    pub fn overtake(&mut self) -> Duration {
        self.overtaken = self.overtaken.saturating_add(1);
        let pause = Duration::from_millis(100) * (1 << (self.overtaken - 1).min(10));
        pause.min(Duration::from_secs(60))
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
    use futures::FutureExt as _;

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
        let desks = Arc::new(Desks::default());
        let first = desks.enter(&key()).unwrap();
        assert!(desks.enter(&key()).is_none());
        assert!(first.leave(), "another is due");
        let second = desks.enter(&key()).unwrap();
        assert!(!second.leave());
    }

    #[test]
    fn a_pass_that_is_cut_off_leaves_its_node_free() {
        let desks = Arc::new(Desks::default());
        let cut_off = desks.enter(&key()).unwrap();
        assert_eq!(desks.busy(), [key()]);
        drop(cut_off);
        assert_eq!(desks.busy(), Vec::<NodeKey>::new());
        assert!(desks.enter(&key()).is_some());
    }

    #[tokio::test]
    async fn what_ends_waits_for_the_passes_under_way_and_lets_none_begin() {
        let desks = Arc::new(Desks::default());
        let seat = desks.enter(&key()).unwrap();
        let mut closed = std::pin::pin!(desks.close());
        assert_eq!(closed.as_mut().now_or_never(), None);
        assert!(desks.enter(&("ns".into(), "other".into())).is_none());
        seat.leave();
        assert_eq!(closed.as_mut().now_or_never(), Some(()));
        assert!(desks.enter(&key()).is_none());
    }

    #[test]
    fn a_node_is_forgotten_once_its_pass_has_ended_and_not_noted_again() {
        let desks = Arc::new(Desks::default());
        let seat = desks.enter(&key()).unwrap();
        desks.forget(&key());
        assert_eq!(desks.at_rest(), Vec::<NodeKey>::new());
        assert_eq!(desks.find(&key(), |desk| desk.busy), Some(true));
        seat.leave();
        assert_eq!(desks.at_rest(), [key()]);
        desks.forget(&key());
        assert_eq!(desks.find(&key(), |desk| desk.busy), None);
        assert_eq!(desks.at_rest(), Vec::<NodeKey>::new());
    }

    #[test]
    fn our_own_write_counts_until_the_cache_has_it() {
        let own = node("a", "12");
        assert_eq!(newest(&node("a", "9"), Some(&own)), &own);
        assert_eq!(newest(&node("a", "100"), Some(&own)), &node("a", "100"));
        assert_eq!(newest(&node("b", "9"), Some(&own)), &node("b", "9"), "made anew meanwhile");
    }

    #[test]
    fn overtaken_passes_wait_longer_each_time() {
        let mut desk = Desk::default();
        let pauses: Vec<_> = (0..12).map(|_| desk.overtake().as_millis()).collect();
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[9..], [51_200, 60_000, 60_000]);
    }

    #[test]
    fn failures_back_off_to_a_minute() {
        let desks = Desks::default();
        let pauses: Vec<_> = (0..8).map(|_| desks.back_off(&key()).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
    }
}
