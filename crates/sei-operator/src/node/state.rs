//! What the operator keeps in memory about each node between two reconciles.

use std::time::{Duration, Instant};

use sei_api::SeiNode;
use sei_api::status::SeiNodeStatus;
use sei_plan::desired::Desired;
use sei_plan::pass::Carried;
use sei_plan::request::{Outcome, Request};
use sei_plan::shared::Shared;
use sei_plan::view::StatefulSetView;

use super::health::Probe;
use super::snapshot::{Compared, Rendered};
use crate::runtime::state::is_current;

/// The state of one node. All of it can be lost.
#[derive(Debug, Default)]
pub(crate) struct NodeState {
    /// The newest version of the node that this process has seen: from the watch, from our own
    /// write, or from a live read.
    pub(crate) latest: Option<Shared<SeiNode>>,
    /// The version that our own last write of the node returned.
    written: Option<String>,
    pub(crate) deferred: Option<Deferred>,
    pub(crate) delete_conflicts: u32,
    /// Reconciles in a row that ended because another client had written the node.
    stale_reads: u32,
    /// The field that the installed CRD dropped from our last status write.
    pub(crate) dropped_field: Option<String>,
    own: OwnWrites,
    pub(crate) probe: Option<Probe>,
    pub(crate) rendered: Option<Rendered>,
    pub(crate) compared: Compared,
}

/// What our last writes returned: a cache may lag behind them, and a write would be repeated.
#[derive(Debug, Default)]
struct OwnWrites {
    statefulset: Option<Shared<StatefulSetView>>,
    /// Uid of the pod for pulls that we deleted.
    pre_pull: Option<String>,
}

/// Progress that is not written yet.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    /// The node whose stored status it continues.
    node: Shared<SeiNode>,
    /// `None` while a reconcile continues it.
    status: Option<SeiNodeStatus>,
    since: Instant,
}

impl NodeState {
    /// The newer of what the cache shows and what this process has seen otherwise. A cache may lag
    /// behind our own writes.
    pub(crate) fn newest(&mut self, cached: &Shared<SeiNode>) -> Shared<SeiNode> {
        if let Some(latest) = &self.latest
            && is_current(&**latest, &**cached)
        {
            return latest.clone();
        }
        self.latest = Some(cached.clone());
        cached.clone()
    }

    /// The status that a reconcile begins with, and what else the last one leaves to it.
    pub(crate) fn resume(&mut self, node: &Shared<SeiNode>) -> (SeiNodeStatus, Carried) {
        let deferred = self.deferred.as_mut();
        let deferred =
            deferred.filter(|kept| kept.node.is_same(node) || kept.node.status == node.status);
        let deferred = deferred.and_then(|kept| Some((kept.status.take()?, kept.since.elapsed())));
        let delete_conflicts = self.delete_conflicts;
        if let Some((status, deferred_for)) = deferred {
            return (status, Carried { deferred_for, delete_conflicts });
        }
        self.deferred = None;
        let status = node.status.clone().unwrap_or_default();
        (status, Carried { delete_conflicts, ..Carried::default() })
    }

    /// Keeps progress for the next reconcile, or drops what is written.
    pub(crate) fn defer(&mut self, node: &Shared<SeiNode>, status: Option<Box<SeiNodeStatus>>) {
        let since = self.deferred.take().map_or_else(Instant::now, |before| before.since);
        self.deferred =
            status.map(|status| Deferred { node: node.clone(), status: Some(*status), since });
    }

    /// Counts another reconcile that met a newer version of the node. Returns the pause before the
    /// next, 100 ms doubling to a minute: the first is an everyday race, which the watch resolves.
    pub(crate) fn stale_read(&mut self) -> Duration {
        self.stale_reads = self.stale_reads.saturating_add(1);
        let pause = Duration::from_millis(100) * (1 << (self.stale_reads - 1).min(10));
        pause.min(Duration::from_secs(60))
    }

    /// Keeps the node as our own write returned it.
    pub(crate) fn wrote(&mut self, node: &Shared<SeiNode>) {
        if !self.latest.as_ref().is_some_and(|latest| latest.is_same(node)) {
            self.written.clone_from(&node.metadata.resource_version);
            self.latest = Some(node.clone());
        }
    }

    /// Whether this version of the node is the one that our own last write returned. A version from
    /// a live read is not: the reconcile that made the read has ended, and none has acted on it yet.
    pub(crate) fn is_own_write(&mut self, node: &SeiNode) -> bool {
        let version = &node.metadata.resource_version;
        let is_own = self.written.is_some() && self.written == *version;
        // The cache has this version now; a second copy would stay for as long as the node rests.
        self.latest.take_if(|latest| is_own && latest.metadata.resource_version == *version);
        is_own
    }

    /// Keeps what a write of ours returned.
    pub(crate) fn performed(&mut self, request: &Request, outcome: &Outcome) {
        match (request, outcome) {
            (_, Outcome::Applied(view) | Outcome::Patched(view)) => {
                self.own.statefulset = Some(view.clone());
            }
            (Request::DeletePrePull { uid }, Outcome::Accepted) => {
                self.own.pre_pull = Some(uid.clone());
            }
            _ => {}
        }
    }

    /// The newer of the StatefulSet that the cache shows and the one that our last write returned.
    /// Without one in the cache there is none: it may be deleted, and no other event would come.
    pub(crate) fn newest_statefulset(
        &mut self,
        cached: Option<Shared<StatefulSetView>>,
    ) -> Option<Shared<StatefulSetView>> {
        let version = |view: &StatefulSetView| view.resource_version.parse::<u64>().unwrap_or(0);
        self.own.statefulset.take_if(|own| {
            cached
                .as_ref()
                .is_none_or(|cached| own.uid != cached.uid || version(own) <= version(cached))
        });
        self.own.statefulset.clone().or(cached)
    }

    /// Whether we deleted the pod for pulls with this uid.
    pub(crate) fn has_deleted(&self, pre_pull: &str) -> bool {
        self.own.pre_pull.as_deref() == Some(pre_pull)
    }

    /// Whether the watch has not shown the newer version in time, so that the server is read.
    pub(crate) fn needs_live_read(&self) -> bool {
        self.stale_reads > 1
    }

    pub(crate) fn fresh_read(&mut self) {
        self.stale_reads = 0;
    }

    /// The rendered node, if it was rendered from the same inputs before.
    pub(crate) fn desired(&self, like: &Rendered) -> Option<Result<Shared<Desired>, String>> {
        let rendered = self.rendered.as_ref().filter(|rendered| rendered.has_inputs_of(like))?;
        Some(rendered.desired.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(uid: &str, version: &str) -> SeiNode {
        let mut node = SeiNode::new("n", sei_api::SeiNodeSpec::default());
        node.metadata.uid = Some(uid.into());
        node.metadata.resource_version = Some(version.into());
        node
    }

    #[test]
    fn our_own_write_counts_until_the_cache_has_it() {
        let newest = |cached: SeiNode| {
            let latest = Some(Shared::new(node("a", "12")));
            let mut state = NodeState { latest, ..NodeState::default() };
            state.newest(&cached.into()).metadata.resource_version.clone().unwrap()
        };
        assert_eq!(newest(node("a", "9")), "12");
        assert_eq!(newest(node("a", "100")), "100");
        assert_eq!(newest(node("b", "9")), "9", "created again under its name");
    }

    #[test]
    fn only_the_version_of_our_own_write_is_dropped() {
        let mut state = NodeState::default();
        state.newest(&node("a", "7").into());
        assert!(!state.is_own_write(&node("a", "7")), "read from the watch");
        state.latest = Some(node("a", "8").into());
        assert!(!state.is_own_write(&node("a", "8")), "read from the server");
        state.wrote(&node("a", "9").into());
        assert!(state.is_own_write(&node("a", "9")));
        assert!(state.latest.is_none(), "the cache has it");
        assert!(!state.is_own_write(&node("a", "10")), "another client's write");
    }

    #[test]
    fn our_own_statefulset_counts_until_the_cache_has_it() {
        let view = |uid: &str, version: &str| {
            let (uid, resource_version) = (uid.to_owned(), version.to_owned());
            Shared::new(StatefulSetView { uid, resource_version, ..StatefulSetView::default() })
        };
        let newest = |cached: Option<Shared<StatefulSetView>>| {
            let mut state = NodeState::default();
            let patch = Request::PatchStatefulSet(serde_json::Value::Null);
            state.performed(&patch, &Outcome::Patched(view("a", "12")));
            let newest = state.newest_statefulset(cached);
            let newest = newest.map(|view| view.resource_version.clone());
            (newest, state.own.statefulset.is_some())
        };
        let found = |version: &str| Some(version.to_owned());
        assert_eq!(newest(Some(view("a", "9"))), (found("12"), true));
        assert_eq!(newest(Some(view("a", "12"))), (found("12"), false));
        assert_eq!(newest(Some(view("b", "9"))), (found("9"), false), "created again");
        assert_eq!(newest(None), (None, false), "deleted");
    }

    #[test]
    fn stale_reads_wait_longer_each_time() {
        let mut state = NodeState::default();
        let pauses: Vec<_> = (0..12).map(|_| state.stale_read().as_millis()).collect();
        assert_eq!(pauses[..4], [100, 200, 400, 800]);
        assert_eq!(pauses[9..], [51_200, 60_000, 60_000]);
    }
}
