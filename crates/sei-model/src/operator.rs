//! One process of the operator: caches that lag, memory that can be lost, and reconciles that
//! proceed one call at a time. The rules are those of the shell in `sei-operator`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::{data_claim, proxy_config};
use sei_api::node::OnDelete;
use sei_api::status::SeiNodeStatus;
use sei_plan::chain::Blocks;
use sei_plan::deletion::Deletion;
use sei_plan::diff::lacks_rendered;
use sei_plan::pass::{Ask, Carried, Ending, Pass};
use sei_plan::platform::{Adoption, PodCheck, PrePull};
use sei_plan::pre_pull::PrePullView;
use sei_plan::pre_pull::machine::Pulls;
use sei_plan::request::{Failure, MountView, Outcome, Read, Request};
use sei_plan::shared::Shared;
use sei_plan::signers;
use sei_plan::snapshot::{Claim, Current, RegisteredWitnesses, Rollout, Sidecar, Snapshot};
use sei_plan::timing::Timing;
use sei_plan::view::{PodView, StatefulSetView, own_pod};

use crate::caches::Caches;
use crate::cluster::Cluster;
use crate::render::Rendered;
use crate::server::{Caller, Written};

/// The state-sync witnesses of every chain.
const WITNESSES: [&str; 2] = ["witness-a:26657", "witness-b:26657"];

/// A process of the operator that leads.
#[derive(Clone, Debug)]
pub struct Operator {
    pub caches: Caches,
    /// How far its clock is ahead of the cluster's, in seconds.
    pub clock_ahead: i64,
    pub(crate) memory: BTreeMap<ObjectKey, Memory>,
    /// Nodes that it has reconciled.
    pub(crate) reconciled: BTreeSet<ObjectKey>,
    /// Slots granted to reconciles that have not ended.
    pub(crate) granted: BTreeSet<ObjectKey>,
    running: BTreeMap<ObjectKey, Reconcile>,
    /// The node whose checks for other signers are under way.
    start_lock: Option<ObjectKey>,
    /// Pulls of images, which nodes on one machine share.
    pulls: Pulls,
    leads_since: Timestamp,
}

/// What is kept about a node between two reconciles.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) latest: Option<Shared<SeiNode>>,
    /// Progress that is not written yet, with the node that it continues. The progress is absent while
    /// a reconcile continues it.
    deferred: Option<(Shared<SeiNode>, Option<Box<SeiNodeStatus>>, Timestamp)>,
    delete_conflicts: u32,
    stale_reads: u32,
    set: Option<Shared<StatefulSetView>>,
    deleted_pre_pull: Option<String>,
    probe: Option<Probe>,
}

#[derive(Clone, Debug)]
struct Probe {
    uid: String,
    restarts: i32,
    sidecar: Sidecar,
}

#[derive(Clone, Debug)]
struct Reconcile {
    conversation: Conversation,
    began: u64,
}

#[derive(Clone, Debug)]
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
}

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CallFault {
    #[default]
    None,
    /// 429, 500, or no connection: nothing was done.
    Refused,
    /// 409, although nothing changed that the caller reads.
    Conflict,
    /// The call was performed, and no answer arrives.
    AnswerLost,
}

/// How far a reconcile has come.
#[derive(Clone, Debug)]
pub enum Step {
    /// None is under way.
    Idle,
    /// It waits for the checks of another node.
    Locked,
    /// It made a call.
    Called(Shared<Request>),
    /// It wrote the status.
    Wrote,
    /// It has ended.
    Ended(Box<Ending>),
    /// It has ended by an error, or because it had read an old version.
    Aborted,
}

/// The last call of a process that no longer leads.
#[derive(Clone, Debug)]
pub struct LateCall {
    caller: Caller,
    ask: Ask,
}

impl Operator {
    /// A process that has just got the lease and listed everything.
    pub fn new(cluster: &Cluster) -> Self {
        let mut caches = Caches::default();
        caches.sync_all(cluster);
        Self {
            caches,
            clock_ahead: 0,
            memory: BTreeMap::new(),
            reconciled: BTreeSet::new(),
            granted: BTreeSet::new(),
            running: BTreeMap::new(),
            start_lock: None,
            pulls: Pulls::default(),
            leads_since: cluster.now,
        }
    }

    /// The time on its clock.
    ///
    /// # Panics
    ///
    /// Never: the time is far from the limits of the type.
    pub fn now(&self, cluster: &Cluster) -> Timestamp {
        let ahead = SignedDuration::from_secs(self.clock_ahead);
        cluster.now.checked_add(ahead).expect("a test does not run for centuries")
    }

    /// The nodes whose reconciles are under way.
    pub fn running(&self) -> Vec<ObjectKey> {
        self.running.keys().cloned().collect()
    }

    /// Begins to reconcile a node, unless that is under way.
    pub fn begin(&mut self, cluster: &mut Cluster, key: &ObjectKey) -> bool {
        if self.running.contains_key(key) {
            return false;
        }
        let Some(cached) = self.caches.nodes.get(key).cloned() else {
            self.forget(key);
            return false;
        };
        let node = self.newest(key, &cached);
        let began = cluster.next_version();
        let conversation = if node.metadata.deletion_timestamp.is_some() {
            let pre_pull = self.pre_pull(key, &node).map(|found| found.uid);
            let now = self.now(cluster);
            let deletion = Deletion::new(node, now, Timing::default(), OnDelete::Delete);
            Conversation::Deletion(Box::new(deletion.with_pre_pull(pre_pull)))
        } else {
            let (status, carried) = self.resume(cluster, key, &node);
            let snapshot = self.snapshot(cluster, key, &node, status, began);
            Conversation::Pass(Box::new(Pass::begin(snapshot, carried)))
        };
        self.running.insert(key.clone(), Reconcile { conversation, began });
        true
    }

    /// Makes the next call of a reconcile.
    pub fn step(&mut self, cluster: &mut Cluster, key: &ObjectKey, fault: CallFault) -> Step {
        let Some(mut reconcile) = self.running.remove(key) else { return Step::Idle };
        let locked = self.start_lock.as_ref().is_some_and(|holder| holder != key);
        let conversation = &mut reconcile.conversation;
        let step = match conversation.ask() {
            Ask::Perform(_) if locked && conversation.is_exclusive() => Step::Locked,
            Ask::Perform(request) => {
                if conversation.is_exclusive() {
                    self.start_lock = Some(key.clone());
                }
                let caller = caller(key, &reconcile);
                let outcome = self.perform(cluster, &caller, &request, fault);
                if let (Request::CreatePrePull(pod), None) = (&*request, outcome.failure()) {
                    self.pulls.begin(pod, self.now(cluster));
                }
                self.remember(key, &request, &outcome);
                let conversation = &mut reconcile.conversation;
                conversation.absorb(outcome);
                if !conversation.is_exclusive() {
                    self.unlock(key);
                }
                self.memory(key).wrote(conversation.node());
                Step::Called(request)
            }
            Ask::Write(status) => {
                let caller = caller(key, &reconcile);
                match write(cluster, &caller, &status, fault) {
                    Ok(Written::Node(node)) => {
                        let conversation = &mut reconcile.conversation;
                        conversation.absorb(Outcome::Node(Some(Box::new((*node).clone()))));
                        self.memory(key).wrote(conversation.node());
                        Step::Wrote
                    }
                    Ok(Written::Stale) => {
                        self.stale_read(cluster, key);
                        self.end(key, true);
                        return Step::Aborted;
                    }
                    Err(()) => {
                        self.end(key, false);
                        return Step::Aborted;
                    }
                }
            }
            Ask::Done(ending) => return self.finish(cluster, key, &reconcile, ending),
        };
        self.running.insert(key.clone(), reconcile);
        step
    }

    fn finish(
        &mut self,
        cluster: &Cluster,
        key: &ObjectKey,
        reconcile: &Reconcile,
        ending: Box<Ending>,
    ) -> Step {
        if ending.failure.is_some() {
            self.end(key, false);
            return Step::Aborted;
        }
        if ending.is_stale {
            self.stale_read(cluster, key);
            self.end(key, true);
            return Step::Aborted;
        }
        let now = self.now(cluster);
        let node = reconcile.conversation.node().clone();
        let memory = self.memory(key);
        if ending.opened_gate
            && let Some(probe) = memory.probe.as_mut()
        {
            probe.sidecar = Sidecar::Ready;
        }
        memory.stale_reads = 0;
        memory.delete_conflicts = ending.delete_conflicts;
        let since = memory.deferred.take().map_or(now, |(_, _, since)| since);
        memory.deferred = ending.deferred.clone().map(|status| (node, Some(status), since));
        self.end(key, true);
        Step::Ended(ending)
    }

    fn end(&mut self, key: &ObjectKey, succeeded: bool) {
        self.unlock(key);
        self.reconciled.insert(key.clone());
        // After a failed reconcile the plan may have been written although no answer arrived.
        if succeeded {
            self.granted.remove(key);
        }
    }

    fn unlock(&mut self, key: &ObjectKey) {
        self.start_lock.take_if(|holder| holder == key);
    }

    fn forget(&mut self, key: &ObjectKey) {
        self.memory.remove(key);
        self.reconciled.remove(key);
        self.granted.remove(key);
    }

    /// Another client has written the node. If the watch does not show it by the next reconcile, the
    /// server is read.
    fn stale_read(&mut self, cluster: &Cluster, key: &ObjectKey) {
        let memory = self.memory(key);
        memory.stale_reads += 1;
        if memory.stale_reads > 1
            && let Some(live) = cluster.nodes.get(key)
        {
            memory.latest = Some(live.clone());
        }
    }

    /// The process loses the lease. Returns the call that a reconcile of this node is about to make,
    /// which may still arrive.
    pub fn last_call(&mut self, key: &ObjectKey) -> Option<LateCall> {
        let mut reconcile = self.running.remove(key)?;
        let ask = reconcile.conversation.ask();
        let locked = self.start_lock.as_ref().is_some_and(|holder| holder != key);
        if matches!(ask, Ask::Done(_)) || (locked && reconcile.conversation.is_exclusive()) {
            return None;
        }
        Some(LateCall { caller: Caller { is_former_leader: true, ..caller(key, &reconcile) }, ask })
    }

    fn perform(
        &mut self,
        cluster: &mut Cluster,
        caller: &Caller,
        request: &Request,
        fault: CallFault,
    ) -> Outcome {
        match request {
            Request::TakeSlot(roll) => {
                return Outcome::Slot(self.take_slot(cluster, &caller.key, &caller.node, *roll));
            }
            Request::Read(Read::Generation { live: false }) => {
                let cached = self.caches.nodes.get(&caller.key);
                return Outcome::Generation(cached.and_then(|node| node.metadata.generation));
            }
            _ => {}
        }
        let text = "injected".to_owned();
        let is_sidecar = matches!(request, Request::Sidecar(_));
        let no_answer =
            if is_sidecar { Failure::Unreachable(text) } else { Failure::Indeterminate(text) };
        match fault {
            CallFault::None => cluster.perform(caller, request),
            CallFault::Conflict if has_version(request) => {
                Outcome::Failed(Failure::Conflict("injected".to_owned()))
            }
            CallFault::Refused | CallFault::Conflict => Outcome::Failed(no_answer),
            CallFault::AnswerLost => {
                cluster.perform(caller, request);
                Outcome::Failed(no_answer)
            }
        }
    }

    fn memory(&mut self, key: &ObjectKey) -> &mut Memory {
        self.memory.entry(key.clone()).or_default()
    }

    fn remember(&mut self, key: &ObjectKey, request: &Request, outcome: &Outcome) {
        let memory = self.memory(key);
        match (request, outcome) {
            (_, Outcome::Applied(view) | Outcome::Patched(view)) => {
                memory.set = Some(view.clone());
            }
            (Request::DeletePrePull { uid }, Outcome::Accepted) => {
                memory.deleted_pre_pull = Some(uid.clone());
            }
            _ => {}
        }
    }

    /// The newer of the cached node and the one that this process has seen otherwise.
    fn newest(&mut self, key: &ObjectKey, cached: &Shared<SeiNode>) -> Shared<SeiNode> {
        let memory = self.memory(key);
        match &memory.latest {
            Some(latest) if is_current(latest, cached) => latest.clone(),
            _ => {
                memory.latest = Some(cached.clone());
                cached.clone()
            }
        }
    }

    fn resume(
        &mut self,
        cluster: &Cluster,
        key: &ObjectKey,
        node: &Shared<SeiNode>,
    ) -> (SeiNodeStatus, Carried) {
        let now = self.now(cluster);
        let memory = self.memory(key);
        let delete_conflicts = memory.delete_conflicts;
        let kept = memory.deferred.take().filter(|(kept, ..)| kept.status == node.status);
        if let Some((kept, Some(status), since)) = kept {
            let deferred_for = now.duration_since(since).unsigned_abs();
            memory.deferred = Some((kept, None, since));
            return (*status, Carried { deferred_for, delete_conflicts });
        }
        let status = node.status.clone().unwrap_or_default();
        (status, Carried { delete_conflicts, ..Carried::default() })
    }

    /// Probes the sidecar of the node's pod, as the cache shows the pod.
    pub fn probe(&mut self, cluster: &Cluster, key: &ObjectKey) {
        let Some(pod) = self.cached_pod(key) else {
            self.memory(key).probe = None;
            return;
        };
        let live = cluster.pods_of(key).map(|(_, pod)| pod).find(|live| live.view.uid == pod.uid);
        let sidecar = match live.filter(|live| live.answers()) {
            Some(live) if live.gate_open => Sidecar::Ready,
            Some(_) => Sidecar::NotReady,
            None => Sidecar::Unreachable("no answer".to_owned()),
        };
        let probe = Probe { uid: pod.uid.clone(), restarts: pod.sidecar.restarts, sidecar };
        self.memory(key).probe = Some(probe);
    }

    fn cached_pod(&self, key: &ObjectKey) -> Option<Shared<PodView>> {
        let node = self.caches.nodes.get(key)?;
        let set = self.caches.sets.get(key);
        let uid = node.metadata.uid.as_deref().unwrap_or_default();
        own_pod(&self.caches.pods_of(key), set.map(|set| &**set), uid).cloned()
    }

    fn pre_pull(&self, key: &ObjectKey, node: &SeiNode) -> Option<PrePullView> {
        let found = self.caches.pre_pulls.get(key)?;
        let memory = self.memory.get(key);
        let deleted = memory.and_then(|memory| memory.deleted_pre_pull.as_ref());
        (found.view.controller == node.metadata.uid && deleted != Some(&found.view.uid))
            .then(|| found.view.clone())
    }

    fn newest_set(&mut self, key: &ObjectKey) -> Option<Shared<StatefulSetView>> {
        let cached = self.caches.sets.get(key).cloned();
        let version = |view: &StatefulSetView| view.resource_version.parse::<u64>().unwrap_or(0);
        let memory = self.memory(key);
        memory.set.take_if(|own| {
            cached
                .as_ref()
                .is_none_or(|cached| own.uid != cached.uid || version(own) <= version(cached))
        });
        memory.set.clone().or(cached)
    }

    fn health(&self, key: &ObjectKey, pod: Option<&PodView>) -> Sidecar {
        let Some(pod) = pod.filter(|pod| !pod.is_terminating()) else { return Sidecar::Unknown };
        if pod.ip.is_none() || !pod.sidecar.running {
            return Sidecar::Unreachable(format!("the sidecar of pod {} does not run", pod.name));
        }
        let probe = self.memory.get(key).and_then(|memory| memory.probe.as_ref());
        let probe =
            probe.filter(|probe| probe.uid == pod.uid && probe.restarts == pod.sidecar.restarts);
        probe.map_or(Sidecar::Unknown, |probe| probe.sidecar.clone())
    }

    /// What a reconcile of the node would decide on now.
    ///
    /// # Panics
    ///
    /// If the caches do not have the node.
    pub fn take_snapshot(&mut self, cluster: &mut Cluster, key: &ObjectKey) -> Snapshot {
        let cached = self.caches.nodes.get(key).cloned().expect("the node is cached");
        let node = self.newest(key, &cached);
        let status = node.status.clone().unwrap_or_default();
        let serial = cluster.next_version();
        self.snapshot(cluster, key, &node, status, serial)
    }

    /// What a decision about the node is made from.
    fn snapshot(
        &mut self,
        cluster: &Cluster,
        key: &ObjectKey,
        node: &Shared<SeiNode>,
        status: SeiNodeStatus,
        serial: u64,
    ) -> Snapshot {
        let rendered = cluster.platforms.render(node);
        let statefulset = self.newest_set(key);
        let pods = self.caches.pods_of(key);
        let uid = node.metadata.uid.as_deref().unwrap_or_default();
        let own = own_pod(&pods, statefulset.as_deref(), uid).cloned();
        let current = match &rendered {
            Ok(rendered) => {
                let template = statefulset.as_deref().filter(|_| status.plan.is_none());
                self.current(key, rendered, template)
            }
            Err(_) => Current::default(),
        };
        let config = ObjectKey::new(&key.namespace, proxy_config(&key.name));
        let pre_pull = self.pre_pull(key, node);
        let now = self.now(cluster);
        if let Some(pull) = &pre_pull {
            self.pulls.observe(&key.namespace, pull, now);
        }
        let host = own.as_ref().and_then(|pod| pod.host.as_deref());
        let pulls = host.map(|host| self.pulls.on(&key.namespace, host, now)).unwrap_or_default();
        Snapshot {
            node: node.clone(),
            peers: Some(Vec::new()),
            now,
            plan_id: format!("00000000-0000-4000-8000-{serial:012}"),
            operator_version: "1.0.0".to_owned(),
            timing: Timing::default(),
            rollout: self.rollout(cluster),
            desired: rendered.map(|rendered| rendered.desired),
            witnesses: RegisteredWitnesses::Known(WITNESSES.map(str::to_owned).to_vec()),
            sidecar: self.health(key, own.as_deref()),
            blocks: Blocks::Unknown,
            slot: None,
            adoption: None,
            asks_peers: false,
            signing_conflict: self.signing_conflict(node, &status),
            dropped_field: None,
            waiting: None,
            job: self
                .caches
                .jobs
                .get(key)
                .filter(|job| job.controller == node.metadata.uid)
                .cloned(),
            pulls,
            pre_pull,
            claim: self.claim(key, node),
            service: self.caches.services.get(key).map(|found| found.view.clone()),
            proxy_config: self.caches.config_maps.get(&config).map(|found| found.view.clone()),
            status,
            statefulset,
            pods,
            current,
        }
    }

    fn current(
        &self,
        key: &ObjectKey,
        rendered: &Rendered,
        set: Option<&StatefulSetView>,
    ) -> Current {
        let config = ObjectKey::new(&key.namespace, proxy_config(&key.name));
        let service = self.caches.services.get(key);
        let proxy_config = self.caches.config_maps.get(&config);
        let set = set.filter(|set| set.template_hash.as_ref() == Some(&rendered.desired.hash));
        Current {
            service: service.is_some_and(|found| found.content == rendered.service),
            proxy_config: proxy_config.is_some_and(|map| map.content == rendered.proxy_config),
            template: set.is_none_or(|set| {
                set.template == *rendered.template
                    || !lacks_rendered(&set.template.json(), &rendered.template.json())
            }),
        }
    }

    fn rollout(&self, cluster: &Cluster) -> Rollout {
        let rollout = &cluster.platforms.platform().rollout;
        let budget = cluster.budget();
        let led = cluster.now.duration_since(self.leads_since).unsigned_abs();
        let settle = Duration::from_secs(u64::from(rollout.settle_seconds));
        Rollout {
            on_operator_change: rollout.on_operator_change,
            on_image_change: rollout.on_image_change,
            adopt_automatically: rollout.adoption == Adoption::Auto,
            settles_in: settle.checked_sub(led).filter(|left| !left.is_zero()),
            checks_pods: rollout.pod_check == PodCheck::DryRun,
            pre_pulls: rollout.pre_pull == PrePull::Auto,
            ready_deadline: budget.ready_deadline,
            min_ready: budget.min_ready,
        }
    }

    fn claim(&self, key: &ObjectKey, node: &SeiNode) -> Claim {
        if node.spec.imported_claim().is_some() {
            return Claim::Unknown;
        }
        let at = ObjectKey::new(&key.namespace, data_claim(&key.name));
        let found = self.caches.claims.get(&at).cloned();
        found.map_or(Claim::Unknown, Claim::Present)
    }

    /// Why the node may not start, by the caches.
    fn signing_conflict(&self, node: &SeiNode, status: &SeiNodeStatus) -> Option<String> {
        if !signers::is_exclusive(node) {
            return None;
        }
        let identity = status.signing_identity.as_deref();
        let all = self.caches.nodes.values().map(|node| &**node);
        let candidates = signers::candidates(node, identity, all);
        let mounts = candidates.iter().copied().chain([node]).filter_map(|node| {
            let key = ObjectKey::of(&node.metadata);
            let set = self.caches.sets.get(&key)?;
            Some(MountView::of_statefulset(&key.namespace, set))
        });
        let mounts: Vec<_> = mounts.collect();
        signers::conflict(node, identity, &candidates, &mounts)
    }
}

impl Memory {
    /// Keeps the node as our own write returned it.
    fn wrote(&mut self, node: &Shared<SeiNode>) {
        if !self.latest.as_ref().is_some_and(|latest| latest.is_same(node)) {
            self.latest = Some(node.clone());
        }
    }
}

impl LateCall {
    /// The call arrives.
    pub fn arrive(self, cluster: &mut Cluster) {
        let Self { caller, ask } = self;
        match ask {
            Ask::Perform(request) => drop(cluster.perform(&caller, &request)),
            Ask::Write(status) => drop(cluster.write_status(&caller, &status)),
            Ask::Done(_) => {}
        }
    }

    /// Whether it changes anything.
    pub fn is_write(&self) -> bool {
        match &self.ask {
            Ask::Perform(request) => request.write(&self.caller.key.name).is_some(),
            Ask::Write(_) => true,
            Ask::Done(_) => false,
        }
    }
}

fn caller(key: &ObjectKey, reconcile: &Reconcile) -> Caller {
    Caller {
        key: key.clone(),
        node: reconcile.conversation.node().clone(),
        began: reconcile.began,
        is_former_leader: false,
    }
}

fn write(
    cluster: &mut Cluster,
    caller: &Caller,
    status: &SeiNodeStatus,
    fault: CallFault,
) -> Result<Written, ()> {
    match fault {
        CallFault::None => Ok(cluster.write_status(caller, status)),
        CallFault::Conflict => Ok(Written::Stale),
        CallFault::Refused => Err(()),
        CallFault::AnswerLost => {
            cluster.write_status(caller, status);
            Err(())
        }
    }
}

/// Whether the server may refuse the request because the object has changed.
fn has_version(request: &Request) -> bool {
    matches!(
        request,
        Request::ApplyStatefulSet(_)
            | Request::PatchStatefulSet(_)
            | Request::DeletePod(_)
            | Request::ApplyService(_)
            | Request::ApplyConfigMap(_)
            | Request::PatchFinalizers { .. }
    )
}

/// Whether `latest` is the same object as `cached`, and not older.
pub(crate) fn is_current(latest: &SeiNode, cached: &SeiNode) -> bool {
    let version = |node: &SeiNode| {
        let version = node.metadata.resource_version.as_deref();
        version.and_then(|version| version.parse::<u64>().ok()).unwrap_or(0)
    };
    latest.metadata.uid == cached.metadata.uid && version(latest) >= version(cached)
}
