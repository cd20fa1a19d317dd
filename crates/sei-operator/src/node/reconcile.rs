//! One reconcile of a node: take a snapshot, run the pass, perform what it asks for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kube::runtime::reflector::Store;
use kube::{Client, Resource as _};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_exec::Cluster;
use sei_exec::call::find;
use sei_exec::sidecar::Sidecar;
use sei_exec::status::{WriteError, write_status};
use sei_plan::deletion::Deletion;
use sei_plan::pass::{Ask, Ending, Pass};
use sei_plan::pre_pull::machine::Pulls;
use sei_plan::request::{Outcome, Purpose, Read, Request, Write};
use sei_plan::shared::Shared;

use super::Caches;
use super::events::{claim_retained, status_events};
use super::ledger::Ledger;
use super::peer_ids::PeerIds;
use super::platform_file::{Change, PlatformFile};
use super::state::NodeState;
use crate::Options;
use crate::runtime::controller::{Error, Permit, Queue, Reconcile, reference};
use crate::runtime::events::Events;
use crate::runtime::guarded::Guarded;
use crate::runtime::state::States;
use crate::runtime::write_log::LoggedWrite;

/// The controller of nodes, with everything its reconciles share.
pub(crate) struct NodeController {
    pub(crate) options: Options,
    pub(crate) client: Client,
    pub(crate) sidecar: Sidecar,
    pub(crate) caches: Caches,
    pub(crate) nodes: Store<Guarded<SeiNode>>,
    pub(crate) queue: Queue<SeiNode>,
    pub(crate) states: Arc<States<NodeState>>,
    pub(crate) ledger: Ledger,
    /// Held from the checks for other signers until a start is written: one start at a time.
    pub(crate) start_lock: tokio::sync::Mutex<()>,
    /// Pulls of images, which nodes on one machine share.
    pub(crate) pulls: Mutex<Pulls>,
    pub(crate) platform_file: PlatformFile,
    pub(crate) events: Events,
    pub(crate) peer_ids: PeerIds,
    /// Limits the reads of RPCs.
    pub(crate) rpc_reads: tokio::sync::Semaphore,
    pub(crate) leading_since: Instant,
}

impl Reconcile for NodeController {
    type Kind = SeiNode;

    async fn reconcile(
        self: &Arc<Self>,
        cached: &Shared<SeiNode>,
        permit: &mut Permit,
    ) -> Result<Option<Duration>, Error> {
        let key = ObjectKey::of(&cached.metadata);
        let node = self.states.with(&key, |state| state.newest(cached));
        let conversation = if node.metadata.deletion_timestamp.is_some() {
            self.end_probes(&key);
            let (now, timing) = (jiff::Timestamp::now(), self.options.timing);
            let default = self.platform_file.platform().storage.on_delete;
            let pre_pull = self.pre_pull(&node, &key).map(|found| found.uid);
            let deletion = Deletion::new(node, now, timing, default).with_pre_pull(pre_pull);
            Conversation::Deletion(Box::new(deletion))
        } else {
            self.options.metrics.observe(&node);
            let (status, carried) = self.states.with(&key, |state| state.resume(&node));
            let snapshot = self.snapshot(&node, status, &key);
            Conversation::Pass(Box::new(Pass::begin(snapshot, carried)))
        };
        self.drive(conversation, &key, permit).await
    }

    async fn read_partly(&self, key: &ObjectKey) -> Option<Shared<SeiNode>> {
        let mut node = self.cluster(key).read_partly().await?;
        // The status of such a node cannot be written.
        node.status.get_or_insert_default().phase = Some(SeiNodePhase::Terminating);
        Some(Shared::new(node))
    }

    fn finished(&self, key: &ObjectKey, succeeded: bool) {
        self.ledger.finished(key, self, succeeded);
        self.forget_if_deleted(key);
    }

    fn is_own_write(&self, node: &SeiNode) -> bool {
        let key = ObjectKey::of(&node.metadata);
        self.states.find(&key, |state| state.is_own_write(node)).unwrap_or(false)
    }

    fn sweep(&self) {
        for key in self.states.keys() {
            self.forget_if_deleted(&key);
        }
        self.peer_ids.retain(&self.caches.pods.each(|pod| pod.uid.clone()));
    }
}

/// The state machine that a reconcile drives.
enum Conversation {
    Pass(Box<Pass>),
    Deletion(Box<Deletion>),
}

impl Conversation {
    fn ask(&mut self) -> Ask {
        match self {
            Self::Pass(pass) => pass.ask(),
            Self::Deletion(deletion) => deletion.ask(),
        }
    }

    fn absorb(&mut self, outcome: Outcome) {
        match self {
            Self::Pass(pass) => pass.absorb(outcome),
            Self::Deletion(deletion) => deletion.absorb(outcome),
        }
    }

    fn node(&self) -> &Shared<SeiNode> {
        match self {
            Self::Pass(pass) => pass.node(),
            Self::Deletion(deletion) => deletion.node(),
        }
    }

    fn is_exclusive(&self) -> bool {
        matches!(self, Self::Pass(pass) if pass.is_exclusive())
    }

    fn purpose(&self) -> Purpose {
        match self {
            Self::Pass(pass) => pass.purpose(),
            Self::Deletion(deletion) => deletion.purpose(),
        }
    }
}

impl NodeController {
    fn cluster(&self, key: &ObjectKey) -> Cluster {
        let (client, sidecar) = (self.client.clone(), self.sidecar.clone());
        Cluster::new(client, sidecar, key, &self.options.namespaces)
    }

    /// Performs what a conversation asks for, up to its end.
    async fn drive(
        &self,
        mut conversation: Conversation,
        key: &ObjectKey,
        permit: &mut Permit,
    ) -> Result<Option<Duration>, Error> {
        let cluster = self.cluster(key);
        let mut starting = None;
        loop {
            match conversation.ask() {
                Ask::Perform(request) => {
                    if conversation.is_exclusive() && starting.is_none() {
                        // Others that do not start must not wait behind those that do.
                        starting = Some(permit.outside(self.start_lock.lock()).await);
                    }
                    let logged = request
                        .write(&key.name)
                        .map(|write| LoggedWrite::begin(write, conversation.purpose()));
                    let outcome = match *request {
                        Request::TakeSlot(roll) => {
                            Outcome::Slot(self.ledger.take(conversation.node(), key, roll, self))
                        }
                        Request::Read(Read::Generation { live: false }) => {
                            Outcome::Generation(self.watched_generation(key))
                        }
                        Request::Sidecar(_) => permit.outside(cluster.perform(&request)).await,
                        _ => cluster.perform(&request).await,
                    };
                    if let Some(logged) = logged {
                        logged.end(key, outcome.failure().map(ToString::to_string).as_deref());
                    }
                    self.performed(key, &request, &outcome);
                    conversation.absorb(outcome);
                    if !conversation.is_exclusive() {
                        starting = None;
                    }
                    self.states.with(key, |state| state.wrote(conversation.node()));
                }
                Ask::Write(status) => {
                    match self.write(&cluster, &conversation, &status, key).await {
                        Ok(Some(node)) => {
                            conversation.absorb(Outcome::Node(Some(Box::new(node))));
                            self.states.with(key, |state| {
                                state.wrote(conversation.node());
                                state.dropped_field = None;
                            });
                        }
                        Ok(None) => {}
                        Err(WriteError::Stale) => {
                            return Ok(Some(self.stale_read(key, &cluster).await));
                        }
                        Err(WriteError::Pruned(field)) => {
                            self.states.with(key, |state| {
                                state.dropped_field = Some(field.clone());
                            });
                            return Err(Error::SchemaTooOld(field));
                        }
                        Err(WriteError::Call(failure)) => return Err(Error::Call(failure)),
                    }
                }
                Ask::Done(ending) => {
                    return self.end(key, &conversation, *ending, &cluster).await;
                }
            }
        }
    }

    /// Keeps what a request of ours has changed: caches lag behind.
    fn performed(&self, key: &ObjectKey, request: &Request, outcome: &Outcome) {
        if let (Request::CreatePrePull(pod), None) = (request, outcome.failure()) {
            let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
            pulls.begin(pod, jiff::Timestamp::now());
        }
        self.states.with(key, |state| state.performed(request, outcome));
    }

    /// Writes a status, and reports the change to people and metrics.
    async fn write(
        &self,
        cluster: &Cluster,
        conversation: &Conversation,
        status: &SeiNodeStatus,
        key: &ObjectKey,
    ) -> Result<Option<SeiNode>, WriteError> {
        let node = conversation.node();
        let (name, uid) = (key.name.clone(), node.metadata.uid.clone());
        let write = Write { verb: "patch", kind: "SeiNode/status", name, uid };
        let logged = LoggedWrite::begin(write, conversation.purpose());
        let written = write_status(&cluster.nodes(), node, status).await;
        if !matches!(written, Ok(None)) {
            logged.end(key, written.as_ref().err().map(ToString::to_string).as_deref());
        }
        let written = written?;
        if written.is_some() {
            let empty = SeiNodeStatus::default();
            let before = node.status.as_ref().unwrap_or(&empty);
            let now = jiff::Timestamp::now();
            self.options.metrics.transition(node, before, status, now);
            self.events.publish(&node.object_ref(&()), status_events(before, status));
        }
        Ok(written)
    }

    async fn end(
        &self,
        key: &ObjectKey,
        conversation: &Conversation,
        ending: Ending,
        cluster: &Cluster,
    ) -> Result<Option<Duration>, Error> {
        if let Some(failure) = ending.failure {
            return Err(Error::Call(failure));
        }
        if ending.is_stale {
            return Ok(Some(self.stale_read(key, cluster).await));
        }
        let node = conversation.node();
        if let Some(claim) = &ending.retained_claim {
            tracing::info!(node = %key, %claim, "retained the claim of a deleted node");
            self.events.publish(&node.object_ref(&()), vec![claim_retained(claim)]);
        }
        if ending.is_released {
            // Other finalizers may keep it for a while; this operator is done with it.
            self.options.metrics.forget(key);
        } else if node.metadata.deletion_timestamp.is_some() {
            self.options.metrics.observe(node);
        }
        if ending.opened_gate {
            self.gate_opened(key);
        }
        self.states.with(key, |state| {
            state.fresh_read();
            state.delete_conflicts = ending.delete_conflicts;
            state.defer(node, ending.deferred);
        });
        if tracing::enabled!(tracing::Level::DEBUG) {
            let report: Vec<String> = ending.report.iter().map(ToString::to_string).collect();
            let waits = ending.waiting.map(|waiting| waiting.message).unwrap_or_default();
            tracing::debug!(node = %key, report = %report.join("; "), waits, "reconciled");
        }
        Ok(ending.requeue)
    }

    /// Another client wrote the node meanwhile. The watch delivers what was written. If it has not
    /// by the next reconcile, it may lag for minutes, and the server is read.
    async fn stale_read(&self, key: &ObjectKey, cluster: &Cluster) -> Duration {
        let (pause, ask) =
            self.states.with(key, |state| (state.stale_read(), state.needs_live_read()));
        if ask && let Ok(Some(live)) = find("get seinode", cluster.nodes().get(&key.name)).await {
            self.states.with(key, |state| state.latest = Some(Shared::new(live.0)));
        }
        pause
    }

    /// The generation of the node that the watch has delivered.
    fn watched_generation(&self, key: &ObjectKey) -> Option<i64> {
        let cached = self.nodes.get(&reference(key))?;
        cached.decoded().and_then(|node| node.metadata.generation)
    }

    /// Follows the platform's file. What it changes is drift like that of a new operator.
    pub(crate) async fn watch_platform(&self) {
        self.report_platform();
        let changed = |change| {
            self.report_platform();
            let (digest, _) = self.platform_file.in_force();
            match change {
                Change::Loaded => {
                    tracing::info!(digest, "loaded the changed platform configuration");
                    for node in self.all_nodes() {
                        self.queue.enqueue(&ObjectKey::of(node.meta()));
                    }
                }
                Change::Restored => tracing::info!(digest, "the platform configuration is valid"),
                Change::Refused(error) => {
                    tracing::error!(error, in_force = digest, "refused the platform configuration");
                }
            }
        };
        self.platform_file.watch(changed).await;
    }

    fn report_platform(&self) {
        let (digest, is_refused) = self.platform_file.in_force();
        self.options.metrics.platform_file(&digest, is_refused);
    }

    /// Drops what is kept of a node if it no longer exists.
    fn forget_if_deleted(&self, key: &ObjectKey) {
        if self.nodes.get(&reference(key)).is_some() {
            return;
        }
        self.states.remove(key);
        self.options.metrics.forget(key);
        self.ledger.forget(key, None, self);
    }
}
