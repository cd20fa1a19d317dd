//! What every pass works with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::Client;
use kube::runtime::reflector::{ObjectRef, Store};
use sei_api::SeiNode;
use sei_exec::sidecar::Sidecar;
use sei_plan::budget::Budget;
use sei_plan::fingerprint::Algorithm;
use sei_plan::observation::RegisteredWitnesses;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;

use crate::Guarded;
use crate::caches::{Caches, NodeKey, Wake};
use crate::desk::Desks;
use crate::events::Events;
use crate::ledger::Ledger;
use crate::metrics::Metrics;

/// Shared by all passes.
pub struct Context {
    pub client: Client,
    pub sidecar: Sidecar,
    pub caches: Caches,
    pub nodes: Store<Guarded>,
    pub wake: Wake,
    pub desks: Arc<Desks>,
    pub ledger: Ledger,
    /// Held from the look for other signers until a start is written: one start at a time.
    pub signing: tokio::sync::Mutex<()>,
    /// Only the nodes of this namespace; all without it.
    pub namespace: Option<String>,
    pub platform: Arc<Platform>,
    pub witnesses: Witnesses,
    pub events: Events,
    pub timing: Timing,
    pub version: String,
    pub algorithm: Algorithm,
    pub metrics: Metrics,
    /// Since when this process leads.
    pub leading_since: Instant,
    /// p2p ids of nodes by the uid of the pod that told it.
    pub node_ids: Mutex<BTreeMap<String, NodeId>>,
}

/// What is known of a pod's p2p id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeId {
    /// It is being asked, for these nodes.
    Asked(BTreeSet<NodeKey>),
    /// It did not answer these nodes, and is asked again after a while.
    Silent(BTreeSet<NodeKey>),
    Known(String),
}

impl Context {
    /// How much longer the lease must be held to trust one's own view of the fleet.
    pub fn settles_in(&self) -> Option<Duration> {
        let settle = self.timing.configured(self.platform.rollout.settle_seconds);
        settle.checked_sub(self.leading_since.elapsed()).filter(|left| !left.is_zero())
    }

    /// The platform's figures for rolls that nobody asked for on the node itself.
    pub fn budget(&self) -> Budget {
        Budget::of(&self.platform.rollout, self.timing)
    }

    /// Drops what is kept of nodes that are gone, however they went.
    pub(crate) fn sweep(&self) {
        for key in self.desks.at_rest() {
            self.forget_if_gone(&key);
        }
        let there = self.caches.pods.each(|pod| pod.uid.clone());
        let mut ids = self.node_ids.lock().unwrap_or_else(PoisonError::into_inner);
        ids.retain(|uid, id| !matches!(id, NodeId::Known(_)) || there.contains(uid));
    }

    /// Drops what is kept of a node if it is gone.
    pub(crate) fn forget_if_gone(&self, key: &NodeKey) {
        if self.nodes.get(&ObjectRef::new(&key.1).within(&key.0)).is_some() {
            return;
        }
        self.desks.forget(key);
        self.metrics.forget(&key.0, &key.1);
        self.ledger.forget(key, None, self);
    }

    /// Every node that could be decoded, in a fixed order.
    pub fn all_nodes(&self) -> Vec<Arc<Guarded>> {
        let mut nodes = self.nodes.state();
        nodes.sort_by(|one, other| key_of(one).cmp(&key_of(other)));
        nodes
    }
}

fn key_of(node: &Guarded) -> (Option<&String>, Option<&String>) {
    match &node.0 {
        Ok(node) => (node.metadata.namespace.as_ref(), node.metadata.name.as_ref()),
        Err(invalid) => (invalid.metadata.namespace.as_ref(), invalid.metadata.name.as_ref()),
    }
}

/// The decoded nodes among these.
pub fn decoded(nodes: &[Arc<Guarded>]) -> impl Iterator<Item = &SeiNode> {
    nodes.iter().filter_map(|node| node.0.as_ref().ok())
}

/// The platform's state-sync witnesses. They alone are read anew while the operator runs: the rest
/// of the file would roll whole fleets.
pub struct Witnesses {
    path: Option<std::path::PathBuf>,
    first: Arc<Platform>,
    read: Mutex<Option<Reading>>,
}

/// The file as it was read at some time, or why it could not be.
type Reading = (Instant, Result<Arc<Platform>, String>);

/// How long a reading of the file counts.
const WITNESSES_AGE: Duration = Duration::from_secs(5);

impl Witnesses {
    pub fn new(path: Option<std::path::PathBuf>, platform: Arc<Platform>) -> Self {
        Self { path, first: platform, read: Mutex::default() }
    }

    pub fn of(&self, chain: &str) -> RegisteredWitnesses {
        match self.current() {
            Ok(platform) => RegisteredWitnesses::Known(platform.witnesses(chain)),
            Err(text) => RegisteredWitnesses::Unreadable(text),
        }
    }

    fn current(&self) -> Result<Arc<Platform>, String> {
        let Some(path) = &self.path else { return Ok(self.first.clone()) };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, platform)) = read.as_ref()
            && at.elapsed() < WITNESSES_AGE
        {
            return platform.clone();
        }
        let fresh = read_platform(path).map(Arc::new);
        *read = Some((Instant::now(), fresh.clone()));
        fresh
    }
}

/// Reads the platform configuration; the error is one line that names file, key and reason.
pub fn read_platform(path: &std::path::Path) -> Result<Platform, String> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| format!("{shown}: {error}"))?;
    Platform::parse(&text, &shown).map_err(|error| error.to_string())
}
