//! The genesis ceremony: how the nodes of a fleet begin a chain.
//!
//! Each node makes its identity and its first transaction by its own plan, and then waits for a genesis.
//! The plan of the fleet assembles the genesis on the first node, gives every node its peers, and waits
//! until the nodes run. Its steps and its records are those of the plans of nodes.
//!
//! A genesis is assembled once. Nodes keep the one that they have, so a second one would split the
//! chain: where a node has a genesis, none is assembled, whatever the status of the fleet has recorded.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNode;
use sei_api::fleet::{CeremonyStatus, GenesisAccount, GenesisSpec, condition_type};
use sei_api::names::fleet_node;
use sei_api::node::{PeerSource, StaticPeers};
use sei_api::plan::{PlanPhase, PlannedTask, TaskPlan, TaskStatus};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_api::task::TaskType;
use serde_json::{Value, json};

use super::status::{Verdict, named, phase_of};
use super::{FleetRequest, FleetSnapshot, name_of, patch};
use crate::desired::Desired;
use crate::executor::{self, Progress};
use crate::pass::REQUESTS_MAX;
use crate::peers::address_in_cluster;
use crate::planner::{later, wait_until};
use crate::request::{Outcome, Request, SidecarCall, SidecarRequest};
use crate::seen::{Reading, Seen};
use crate::shared::Shared;
use crate::tasks::sidecar::attempt_id;
use crate::tasks::{Failed, Next, Waiting, bounded, param, step};
use crate::view::{PodView, StatefulSetView, own_pod};

const PAUSED: &str = "spec.paused holds the ceremony";

/// The objects of a node that its sidecar is found by.
#[derive(Clone, Debug, Default)]
pub struct NodeObjects {
    pub statefulset: Option<Shared<StatefulSetView>>,
    pub pods: Vec<Shared<PodView>>,
}

/// The ceremony in one pass.
#[derive(Clone, Debug)]
pub(super) struct Ceremony {
    /// The plan that was stored when the pass began, with the progress of this pass. The executor
    /// records in the status of a node; nothing else in it is used.
    record: SeiNodeStatus,
    /// What was read of the node that assembles.
    seen: Option<Box<Seen>>,
    /// Requests for that node.
    requests: usize,
    /// The p2p ids that nodes reported in this pass.
    ids: BTreeMap<String, String>,
    waiting: Option<Waiting>,
    genesis_hash: Option<String>,
}

/// What the status reports of the ceremony.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    pub(super) plan: Option<TaskPlan>,
    pub(super) ceremony: Option<CeremonyStatus>,
    pub(super) genesis_hash: Option<String>,
    /// The conditions that change.
    pub(super) verdicts: Vec<Verdict>,
    /// When to reconcile again although nothing changes.
    pub(super) due: Option<Timestamp>,
}

/// What the current task needs.
enum Step {
    Ask(FleetRequest),
    Record(Next),
}

impl Ceremony {
    pub(super) fn begin(snapshot: &FleetSnapshot) -> Self {
        let stored = snapshot.status().and_then(|status| status.plan.clone());
        Self {
            record: SeiNodeStatus { plan: stored.filter(is_ceremony), ..SeiNodeStatus::default() },
            seen: None,
            requests: 0,
            ids: BTreeMap::new(),
            waiting: None,
            genesis_hash: None,
        }
    }

    /// The plan, while it is performed.
    pub(super) fn active(&self) -> Option<&TaskPlan> {
        self.record.plan.as_ref().filter(|plan| plan.is_active())
    }

    /// Steps the stored plan as far as it goes; returns the request that it needs next. `refused` are
    /// the nodes whose writes the server has refused.
    pub(super) fn step(
        &mut self,
        snapshot: &FleetSnapshot,
        refused: &BTreeMap<String, String>,
    ) -> Option<FleetRequest> {
        if snapshot.is_held() || snapshot.has_chain() {
            return None;
        }
        while self.waiting.is_none() {
            let plan = self.active()?;
            let Some((_, task)) = plan.current() else {
                executor::finish(&mut self.record, snapshot.now);
                return None;
            };
            let step = match task.task_type() {
                Some(TaskType::AssembleAndUploadGenesis) => self.assemble(snapshot),
                Some(TaskType::CollectAndSetPeers) => self.set_peers(snapshot, refused),
                Some(TaskType::AwaitNodesRunning) => {
                    Step::Record(await_nodes(plan, task, snapshot))
                }
                _ => Step::Record(fail(&format!("unknown task type {:?}", task.r#type))),
            };
            let next = match step {
                Step::Ask(request) => return Some(request),
                Step::Record(next) => next,
            };
            let (now, timing) = (snapshot.now, snapshot.timing);
            if let Progress::Waiting(waiting) =
                executor::record(&mut self.record, next, 0, now, timing)
            {
                self.waiting = Some(waiting);
            }
            if let Some(seen) = &mut self.seen {
                seen.failure = None;
            }
        }
        None
    }

    /// Takes in the outcome of a request for a node.
    pub(super) fn absorb(
        &mut self,
        node: &str,
        request: &Request,
        outcome: Outcome,
        now: Timestamp,
    ) {
        let asks_id = matches!(request, Request::Sidecar(call) if call.call == SidecarCall::NodeId);
        match outcome {
            Outcome::NodeId(id) => {
                self.ids.insert(node.to_owned(), id);
            }
            Outcome::Failed(failure) if asks_id => {
                self.waiting = Some(waiting(&format!("{node}: {failure}")));
            }
            outcome => {
                executor::record_call(&mut self.record, request, &outcome, now);
                if let Some(seen) = &mut self.seen {
                    seen.absorb(request, outcome);
                }
            }
        }
    }

    /// The genesis is assembled on the first node, once every node has uploaded its part: of a node that
    /// was created again, the part of its predecessor may still be there.
    fn assemble(&mut self, snapshot: &FleetSnapshot) -> Step {
        let Some(plan) = self.record.plan.as_ref() else { return Step::Record(done()) };
        let Some((index, task)) = plan.current() else { return Step::Record(done()) };
        let has_genesis = snapshot.has_genesis();
        let missing = if has_genesis { None } else { missing_artifacts(plan, snapshot) };
        if let Some(next) = missing.clone().filter(|_| task.submitted_at.is_none()) {
            return Step::Record(next);
        }
        let name = fleet_node(&snapshot.name(), 0);
        let Some(node) = snapshot.child(&name) else {
            return wait(&format!("{name} does not exist"));
        };
        let seen = self.seen.get_or_insert_with(|| Box::new(seen_of(node, snapshot)));
        match step(plan, seen) {
            Some(Next::Request(request)) if has_genesis && is_submission(&request) => {
                Step::Record(done())
            }
            // The sidecar has no record of what was submitted: its node was created again.
            Some(Next::Request(request)) if missing.is_some() && is_submission(&request) => {
                Step::Record(missing.unwrap_or_else(done))
            }
            Some(Next::Request(_)) if self.requests >= REQUESTS_MAX => {
                wait("the answers of the sidecar change faster than they can be used")
            }
            Some(Next::Request(request)) => {
                self.requests += 1;
                Step::Ask(FleetRequest::OfNode { node: name, request })
            }
            Some(next) => {
                if matches!(next, Next::Done(_)) {
                    let record = seen.tasks.get(&attempt_id(plan, index, task));
                    self.genesis_hash =
                        record.and_then(|record| record.as_ref()?.genesis_hash.clone());
                }
                Step::Record(next)
            }
            None => Step::Record(done()),
        }
    }

    /// Every node gets the addresses of all nodes: its next configuration is written from its spec.
    fn set_peers(&self, snapshot: &FleetSnapshot, refused: &BTreeMap<String, String>) -> Step {
        if snapshot.fleet.spec.template.spec.peers.is_some() {
            return Step::Record(done());
        }
        let Some(plan) = self.active() else { return Step::Record(done()) };
        let names = node_names(plan);
        let mut addresses = Vec::new();
        for name in &names {
            let Some(node) = snapshot.child(name) else {
                return wait(&format!("{name} does not exist"));
            };
            match self.ids.get(name) {
                Some(id) => addresses.push(format!("{id}@{}", address_in_cluster(node))),
                None => return ask_id(name, node, snapshot),
            }
        }
        let peers = Some(vec![PeerSource {
            r#static: Some(StaticPeers { addresses }),
            ..PeerSource::default()
        }]);
        let children = names.iter().filter_map(|name| snapshot.child(name));
        let Some(node) = children.into_iter().find(|node| node.spec.peers != peers) else {
            return Step::Record(done());
        };
        match refused.get(&name_of(node)) {
            Some(why) => wait(&format!("{}: {why}", name_of(node))),
            None => Step::Ask(patch(node, json!({ "spec": { "peers": peers } }))),
        }
    }

    /// What the status reports after this pass.
    pub(super) fn report(&self, snapshot: &FleetSnapshot) -> Report {
        let before = snapshot.status();
        let report = Report {
            ceremony: before.and_then(|before| before.ceremony.clone()),
            genesis_hash: before.and_then(|before| before.genesis_hash.clone()),
            ..Report::default()
        };
        let report = match (&snapshot.fleet.spec.genesis, &self.record.plan) {
            _ if snapshot.has_chain() => Report { ceremony: None, ..report },
            (None, _) => {
                Report { ceremony: None, ..report }.with_reason("NotApplicable", String::new())
            }
            (Some(genesis), None) => begin(snapshot, genesis, report),
            (Some(_), Some(plan)) => self.outcome(snapshot, plan, report),
        };
        report.with_progress(snapshot)
    }

    /// What became of the stored plan.
    fn outcome(&self, snapshot: &FleetSnapshot, plan: &TaskPlan, mut report: Report) -> Report {
        report.genesis_hash = self.genesis_hash.clone().or(report.genesis_hash);
        match plan.phase {
            PlanPhase::Active => {
                let waiting = self.waiting.clone().unwrap_or_default();
                let is_polled = plan
                    .current()
                    .is_some_and(|(_, task)| task.task_type() != Some(TaskType::AwaitNodesRunning));
                // No watch of the fleet reports pods and sidecars.
                let again = waiting.again.or(is_polled.then(|| snapshot.timing.poll()));
                report.due = again.map(|again| later(snapshot.now, again));
                let message =
                    if snapshot.is_paused() { PAUSED.to_owned() } else { waiting.message };
                Report { plan: Some(plan.clone()), ..report }.with_reason("InProgress", message)
            }
            PlanPhase::Complete => report.complete(),
            PlanPhase::Failed => {
                let failures = report.ceremony.as_ref().map_or(0, |before| before.failures);
                let failures = failures.saturating_add(1);
                let pause = snapshot.timing.update_retry(failures);
                let retry_at = later(snapshot.now, pause);
                report.due = Some(retry_at);
                let failed = snapshot.own().into_iter().find(|(_, node)| has_failed(node));
                report.ceremony = Some(CeremonyStatus {
                    failures,
                    retry_at: Time(retry_at),
                    failed_node: failed.map(|(_, node)| name_of(&node)),
                    assembled: plan
                        .has_completed(TaskType::AssembleAndUploadGenesis)
                        .then_some(true),
                });
                let failed = plan.failed_task_detail.as_ref();
                let why =
                    failed.map(|failed| format!("{} failed: {}", failed.r#type, failed.error));
                let why = why.unwrap_or_else(|| "the plan failed".to_owned());
                let again = format!("{why}; tried again after {} s", pause.as_secs());
                report.with_reason("CeremonyFailed", again)
            }
        }
    }
}

impl Report {
    fn with_reason(mut self, reason: &'static str, message: String) -> Self {
        self.verdicts.push((condition_type::GENESIS_COMPLETE, false, reason, message));
        self
    }

    /// The chain has begun; this is never decided again.
    fn complete(mut self) -> Self {
        let message = match &self.genesis_hash {
            Some(hash) => format!("genesis {hash}"),
            None => "the nodes have a genesis that this plan did not assemble".to_owned(),
        };
        self.verdicts.push((condition_type::GENESIS_COMPLETE, true, "Complete", message));
        Self { plan: None, ceremony: None, ..self }
    }

    /// Adds the condition of the plan.
    fn with_progress(mut self, snapshot: &FleetSnapshot) -> Self {
        let kind = condition_type::PLAN_IN_PROGRESS;
        let had_plan = snapshot.status().is_some_and(|before| before.plan.is_some());
        let verdict = self.verdicts.first().cloned();
        let verdict = match (&self.plan, verdict) {
            (Some(plan), _) => {
                let task = plan.current().map(|(_, task)| task.r#type.clone());
                Some((kind, true, "PlanStarted", task.unwrap_or_default()))
            }
            (None, Some((_, false, "CeremonyFailed", message))) if had_plan => {
                Some((kind, false, "PlanFailed", message))
            }
            (None, _) if had_plan => Some((kind, false, "PlanComplete", String::new())),
            (None, _) => {
                let known = snapshot.condition(kind).is_some_and(|known| known.status == "False");
                (!known).then(|| (kind, false, "NotStarted", String::new()))
            }
        };
        self.verdicts.extend(verdict);
        self
    }
}

/// Decides for a fleet without a plan.
fn begin(snapshot: &FleetSnapshot, genesis: &GenesisSpec, report: Report) -> Report {
    if let Some(account) = genesis.accounts.iter().flatten().find(|account| !is_address(account)) {
        let message = format!(
            "spec.genesis.accounts: {:?} is not an address of the form sei1...",
            bounded(&account.address)
        );
        return report.with_reason("CeremonyFailed", message);
    }
    let names: Vec<String> =
        (0..snapshot.replicas()).map(|ordinal| fleet_node(&snapshot.name(), ordinal)).collect();
    let missing: Vec<String> =
        names.iter().filter(|name| snapshot.child(name).is_none()).cloned().collect();
    if snapshot.is_held() || !missing.is_empty() {
        let waits = if snapshot.is_paused() {
            PAUSED.to_owned()
        } else {
            format!("waits for {}", named(&missing))
        };
        return report.with_reason("NotStarted", waits);
    }
    let has_peers = |node: &SeiNode| node.spec.peers.as_ref().is_some_and(|all| !all.is_empty());
    let has_begun =
        |name: &String| snapshot.child(name).is_some_and(|node| runs(node) && has_peers(node));
    if names.iter().all(has_begun) {
        return report.complete();
    }
    if let Some(left) = retry_pause(snapshot, report.ceremony.as_ref()) {
        // The condition has the reason, and stays.
        return Report { due: Some(later(snapshot.now, left)), ..report };
    }
    let is_assembled = snapshot.has_genesis()
        || report.ceremony.as_ref().is_some_and(|known| known.assembled == Some(true));
    let plan = plan(snapshot, genesis, &names, is_assembled);
    // The event of our own write reconciles nothing.
    Report { plan: Some(plan), due: Some(snapshot.now), ..report }
        .with_reason("InProgress", "the plan is stored".to_owned())
}

/// How much longer the next plan waits; not longer than for the node whose failure ended the last.
fn retry_pause(snapshot: &FleetSnapshot, known: Option<&CeremonyStatus>) -> Option<Duration> {
    let known = known?;
    let pause = snapshot.timing.update_retry(known.failures);
    let left = wait_until(known.retry_at.0, snapshot.now, pause)?;
    let is_repaired = |name: &String| !snapshot.child(name).is_some_and(|node| has_failed(node));
    (!known.failed_node.as_ref().is_some_and(is_repaired)).then_some(left)
}

/// The plan, with parameters as the Go operator stores them.
fn plan(
    snapshot: &FleetSnapshot,
    genesis: &GenesisSpec,
    names: &[String],
    is_assembled: bool,
) -> TaskPlan {
    let (fleet, namespace) = (snapshot.name(), snapshot.fleet.metadata.namespace.clone());
    let nodes: Vec<Value> = names.iter().map(|name| json!({ "name": name })).collect();
    let mut assemble = json!({
        "AccountBalance": genesis.account_balance,
        "Namespace": namespace,
        "Nodes": nodes,
    });
    if let Some(accounts) = &genesis.accounts {
        assemble["Accounts"] = json!(accounts);
    }
    if let Some(overrides) = &genesis.overrides {
        assemble["Overrides"] = json!(overrides);
    }
    let set_peers = json!({ "groupName": fleet, "namespace": namespace, "nodeNames": names });
    let mut await_nodes = set_peers.clone();
    await_nodes["expected"] = json!(names.len());
    let tasks = [
        (TaskType::AssembleAndUploadGenesis, assemble),
        (TaskType::CollectAndSetPeers, set_peers),
        (TaskType::AwaitNodesRunning, await_nodes),
    ];
    let id = &snapshot.plan_id;
    let tasks = tasks.into_iter().enumerate().map(|(index, (task_type, params))| {
        PlannedTask::pending(id, index, task_type, params, task_type.max_retries())
    });
    let mut tasks: Vec<PlannedTask> = tasks.collect();
    if is_assembled {
        tasks[0].status = TaskStatus::Complete;
    }
    TaskPlan {
        id: Some(id.clone()),
        phase: PlanPhase::Active,
        tasks,
        target_phase: None,
        failed_phase: None,
        failed_task_index: None,
        failed_task_detail: None,
        kind: None,
        target: None,
        applied: None,
        abandoned: Vec::new(),
        created_at: Some(Time(snapshot.now)),
    }
}

/// What the assembly waits for, or fails by; `None` if every node has uploaded its part.
fn missing_artifacts(plan: &TaskPlan, snapshot: &FleetSnapshot) -> Option<Next> {
    let is_missing = |name: &String| {
        let node = snapshot.child(name);
        !node.is_some_and(|node| has_completed(node, TaskType::UploadGenesisArtifacts))
    };
    let missing: Vec<String> = node_names(plan).into_iter().filter(is_missing).collect();
    if let Some(why) = missing.iter().find_map(|name| failure_of(snapshot.child(name)?)) {
        return Some(fail(&why));
    }
    let message = || format!("waits for the genesis artifacts of {}", named(&missing));
    (!missing.is_empty()).then(|| Next::Wait(waiting(&message())))
}

/// Waits until the nodes run; a failed node fails the plan.
fn await_nodes(plan: &TaskPlan, task: &PlannedTask, snapshot: &FleetSnapshot) -> Next {
    let names = node_names(plan);
    let children: Vec<&Shared<SeiNode>> =
        names.iter().filter_map(|name| snapshot.child(name)).collect();
    if let Some(why) = children.iter().find_map(|node| failure_of(node)) {
        return fail(&why);
    }
    let running = children.iter().filter(|node| runs(node)).count();
    let expected = param(task, "expected").and_then(Value::as_u64);
    let expected = expected.and_then(|count| usize::try_from(count).ok()).unwrap_or(names.len());
    if running >= expected {
        return done();
    }
    let message = format!("{running} of {expected} nodes are in phase Running");
    Next::Wait(Waiting { message, ..Waiting::default() })
}

fn ask_id(name: &str, node: &SeiNode, snapshot: &FleetSnapshot) -> Step {
    let objects = snapshot.objects.get(name).cloned().unwrap_or_default();
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let pod = own_pod(&objects.pods, objects.statefulset.as_deref(), uid);
    let pod = pod.filter(|pod| pod.sidecar.running && !pod.is_terminating());
    let Some((pod, ip)) = pod.and_then(|pod| Some((pod, pod.ip.clone()?))) else {
        return wait(&format!("the sidecar of {name} does not run"));
    };
    let (pod_uid, proxy, call) = (pod.uid.clone(), pod.proxy, SidecarCall::NodeId);
    let request = Request::Sidecar(SidecarRequest { pod_uid, ip, proxy, call });
    Step::Ask(FleetRequest::OfNode { node: name.to_owned(), request: Box::new(request) })
}

fn seen_of(node: &Shared<SeiNode>, snapshot: &FleetSnapshot) -> Seen {
    let mut seen = Seen::new(node.clone(), Desired::default(), snapshot.now);
    seen.timing = snapshot.timing;
    let objects = node.metadata.name.as_ref().and_then(|name| snapshot.objects.get(name));
    let objects = objects.cloned().unwrap_or_default();
    seen.statefulset = Reading::Cached(objects.statefulset);
    seen.pods = Reading::Cached(Some(objects.pods));
    seen
}

impl FleetSnapshot {
    /// Whether the chain has begun: the ceremony is complete.
    fn has_chain(&self) -> bool {
        let complete = self.condition(condition_type::GENESIS_COMPLETE);
        complete.is_some_and(|complete| complete.status == "True")
    }

    /// Whether a node has got a genesis. The status of the fleet may be lost, or its plan; then only the
    /// nodes show that a genesis exists.
    fn has_genesis(&self) -> bool {
        let has = |node: &SeiNode| runs(node) || has_completed(node, TaskType::ConfigureGenesis);
        self.own().iter().any(|(_, node)| has(node))
    }

    /// No plan is begun or performed.
    fn is_held(&self) -> bool {
        self.is_paused() || self.is_deleted()
    }

    /// The node of this name, if the fleet controls it and it is not being deleted.
    fn child(&self, name: &str) -> Option<&Shared<SeiNode>> {
        let named = |node: &&Shared<SeiNode>| node.metadata.name.as_deref() == Some(name);
        self.nodes.iter().find(named).filter(|node| self.controls(node) && super::is_alive(node))
    }

    /// How many nodes the fleet has to have now: `spec.replicas`, or as many as the ceremony has begun
    /// with. A node more or less would not fit its genesis.
    pub(super) fn nodes_now(&self) -> usize {
        self.nodes_of_ceremony().unwrap_or_else(|| self.replicas())
    }

    fn nodes_of_ceremony(&self) -> Option<usize> {
        let plan = self.status()?.plan.as_ref()?;
        (plan.is_active() && is_ceremony(plan) && !self.has_chain())
            .then(|| node_names(plan).len())
            .filter(|count| *count > 0)
    }
}

/// The Go operator stores plans of rollouts too, which this operator does not need.
fn is_ceremony(plan: &TaskPlan) -> bool {
    plan.has(TaskType::AssembleAndUploadGenesis)
}

/// The nodes of a ceremony, as its plan has them.
fn node_names(plan: &TaskPlan) -> Vec<String> {
    let assemble = plan.tasks.iter().find(|task| task.is(TaskType::AssembleAndUploadGenesis));
    let nodes = assemble.and_then(|task| param(task, "nodes")).and_then(Value::as_array);
    let name = |node: &Value| {
        let fields = node.as_object()?;
        let (_, name) = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case("name"))?;
        name.as_str().map(str::to_owned)
    };
    nodes.into_iter().flatten().filter_map(name).collect()
}

fn runs(node: &SeiNode) -> bool {
    phase_of(node) == Some(SeiNodePhase::Running)
}

fn has_failed(node: &SeiNode) -> bool {
    phase_of(node) == Some(SeiNodePhase::Failed)
}

/// Why a node has failed, if it has.
fn failure_of(node: &Shared<SeiNode>) -> Option<String> {
    let plan = node.status.as_ref().filter(|_| has_failed(node))?.plan.as_ref();
    let why = plan.and_then(|plan| plan.failed_task_detail.as_ref());
    let why = why.map(|why| format!(": {}: {}", why.r#type, why.error)).unwrap_or_default();
    Some(format!("{} has failed{why}", name_of(node)))
}

fn has_completed(node: &SeiNode, task_type: TaskType) -> bool {
    let plan = node.status.as_ref().and_then(|status| status.plan.as_ref());
    plan.is_some_and(|plan| plan.has_completed(task_type))
}

fn is_submission(request: &Request) -> bool {
    matches!(request, Request::Sidecar(call) if matches!(call.call, SidecarCall::Submit { .. }))
}

/// Whether an account has the form of an address of this chain. The sidecar checks the rest.
fn is_address(account: &GenesisAccount) -> bool {
    let data = account.address.strip_prefix("sei1");
    data.is_some_and(|data| !data.is_empty() && data.bytes().all(|c| BECH32.contains(&c)))
}

const BECH32: &[u8] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

fn waiting(message: &str) -> Waiting {
    Waiting { message: bounded(message), ..Waiting::default() }
}

fn wait(message: &str) -> Step {
    Step::Record(Next::Wait(waiting(message)))
}

fn done() -> Next {
    Next::Done(Box::default())
}

fn fail(detail: &str) -> Next {
    Next::Fail(Failed { detail: bounded(detail), verdict: None })
}
