//! What is decided about a fleet: which nodes it has, which of them get a changed template, and what
//! its status reports.
//!
//! A pass has no stages. Its next request follows from the snapshot alone, and the outcome goes into
//! the snapshot; so a crash after any request resumes where it stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNode;
use sei_api::fleet::{DeletionPolicy, SeiNodeDeployment, SeiNodeDeploymentStatus};
use sei_api::names::{FLEET_FINALIZER, ORPHAN_FINALIZER, fleet_node};
use serde_json::{Value, json};

use crate::chain::{AppHash, NoFacts, NoHeader};
use crate::hands_off::is_hands_off;
use crate::planner::later;
use crate::request::{Failure, Outcome, Purpose, Request, Write};
use crate::shared::Shared;
use crate::timing::Timing;

mod app_hash;
mod ceremony;
mod child;
mod forecast;
mod rollout;
mod service;
mod snapshot;
mod status;
mod survey;

use app_hash::Comparisons;
use ceremony::Ceremony;
pub use ceremony::NodeObjects;
use child::{Target, guarded, ordinal_in};
pub use forecast::{Forecast, NodeForecast, forecast, previous_template};
use rollout::{Flight, Next};
pub use service::ServiceView;

#[cfg(test)]
mod tests;

/// After what time a refused write is tried again.
const REFUSED_RETRY: Duration = Duration::from_secs(60);

/// What a decision about a fleet is made from.
#[derive(Clone, Debug)]
pub struct FleetSnapshot {
    pub fleet: Shared<SeiNodeDeployment>,
    /// Nodes in the fleet's namespace that it controls, or that have the name or label of one of its
    /// nodes.
    pub nodes: Vec<Shared<SeiNode>>,
    /// The Service of the fleet's name.
    pub service: Option<ServiceView>,
    /// The objects of nodes, if `needs_objects`.
    pub objects: BTreeMap<String, NodeObjects>,
    /// The operator reads the RPC of nodes.
    pub reads_rpc: bool,
    /// The id of a plan that this pass builds.
    pub plan_id: String,
    pub timing: Timing,
    pub now: Timestamp,
}

/// One call for a fleet.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetRequest {
    CreateNode(Box<SeiNode>),
    /// Merge patch with the uid and resourceVersion that it was decided on.
    PatchNode {
        name: String,
        patch: Value,
    },
    DeleteNode {
        name: String,
        uid: String,
    },
    CreateService(Box<Service>),
    /// Merge patch with the uid and resourceVersion that it was decided on.
    PatchService {
        name: String,
        patch: Value,
    },
    PatchFinalizers {
        resource_version: Option<String>,
        finalizers: Vec<String>,
    },
    /// A live read of the fleet.
    ReadFleet,
    /// A read or a call of the sidecar, as for the node itself.
    OfNode {
        node: String,
        request: Box<Request>,
    },
    /// Reads the app hash that the node at this address computed last.
    ReadAppHash {
        node: String,
        ip: String,
        chain_id: String,
    },
    /// Reads the header of a block from the node at this address, to compare a canary with.
    ReadHeader {
        canary: String,
        node: String,
        ip: String,
        chain_id: String,
        height: i64,
    },
}

impl FleetRequest {
    /// What the request changes; `None` for reads.
    pub fn write(&self, fleet: &str) -> Option<Write> {
        let of = |verb, kind, name: &str, uid: Option<&str>| {
            let (name, uid) = (name.to_owned(), uid.map(str::to_owned));
            Some(Write { verb, kind, name, uid })
        };
        let name = request_name(self);
        match self {
            Self::CreateNode(_) => of("create", "SeiNode", name, None),
            Self::PatchNode { patch, .. } => {
                of("patch", "SeiNode", name, patch["metadata"]["uid"].as_str())
            }
            Self::DeleteNode { uid, .. } => of("delete", "SeiNode", name, Some(uid)),
            Self::CreateService(_) => of("create", "Service", name, None),
            Self::PatchService { patch, .. } => {
                of("patch", "Service", name, patch["metadata"]["uid"].as_str())
            }
            Self::PatchFinalizers { .. } => of("patch", "SeiNodeDeployment", fleet, None),
            Self::ReadFleet | Self::ReadAppHash { .. } | Self::ReadHeader { .. } => None,
            Self::OfNode { node, request } => request.write(node),
        }
    }

    /// Whether it goes to a pod, which can hang.
    pub fn is_of_pod(&self) -> bool {
        matches!(self, Self::OfNode { .. } | Self::ReadAppHash { .. } | Self::ReadHeader { .. })
    }
}

/// The outcome of a call.
#[derive(Clone, Debug)]
pub enum FleetOutcome {
    Node(Box<SeiNode>),
    Service(ServiceView),
    Fleet(Box<SeiNodeDeployment>),
    Deleted,
    OfNode(Outcome),
    AppHash(Result<AppHash, NoFacts>),
    Header(Result<AppHash, NoHeader>),
    Failed(Failure),
}

impl FleetOutcome {
    /// Why the call failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::OfNode(outcome) => outcome.failure(),
            _ => None,
        }
    }
}

/// What a pass asks the shell for.
#[derive(Clone, Debug)]
pub enum FleetAsk {
    Perform(FleetRequest),
    Write(Box<SeiNodeDeploymentStatus>),
    Done(FleetEnding),
}

/// How a pass ended.
#[derive(Clone, Debug, Default)]
pub struct FleetEnding {
    /// When to reconcile again although nothing changes.
    pub due: Option<Timestamp>,
    /// A call failed; the fleet is reconciled again later.
    pub failure: Option<Failure>,
    /// The fleet's finalizer was removed.
    pub is_released: bool,
    pub events: Vec<FleetEvent>,
}

/// Something that people should see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetEvent {
    pub is_warning: bool,
    pub reason: &'static str,
    pub note: String,
}

/// One reconcile of a fleet.
#[derive(Clone, Debug)]
pub struct FleetPass {
    snapshot: FleetSnapshot,
    target: Target,
    /// Nodes that have the target. Comparing a node is expensive, and a request changes only one.
    current: BTreeSet<String>,
    /// What the server refused in this pass, by the name of the object.
    refused: BTreeMap<String, String>,
    /// Nodes that this pass released while they were down.
    released_down: Vec<String>,
    ceremony: Ceremony,
    comparisons: Comparisons,
    /// A live read has shown the fleet as this pass knows it, since the last deletion.
    is_newest: bool,
    asked: Option<FleetRequest>,
    is_reported: bool,
    ending: FleetEnding,
}

impl FleetPass {
    pub fn begin(snapshot: FleetSnapshot) -> Self {
        let target = Target::of(&snapshot.fleet);
        let own = snapshot.own().into_iter();
        let current = own
            .filter(|(ordinal, node)| snapshot.has_template(&target, *ordinal, node))
            .map(|(_, node)| name_of(&node))
            .collect();
        Self {
            comparisons: Comparisons::begin(&snapshot, &target.hash),
            target,
            ceremony: Ceremony::begin(&snapshot),
            snapshot,
            current,
            refused: BTreeMap::new(),
            released_down: Vec::new(),
            is_newest: false,
            asked: None,
            is_reported: false,
            ending: FleetEnding::default(),
        }
    }

    pub fn fleet(&self) -> &Shared<SeiNodeDeployment> {
        &self.snapshot.fleet
    }

    /// The nodes, as this pass knows them.
    pub fn nodes(&self) -> &[Shared<SeiNode>] {
        &self.snapshot.nodes
    }

    /// The node of this name, as this pass knows it.
    fn node(&self, name: &str) -> Option<&Shared<SeiNode>> {
        self.snapshot.nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name))
    }

    /// Why the next request is made.
    pub fn purpose(&self) -> Purpose {
        let why = if self.snapshot.is_deleted() {
            "the fleet is deleted".to_owned()
        } else {
            format!("template {} of the fleet", self.target.hash)
        };
        let plan = self.ceremony.active();
        match (&self.asked, plan) {
            (Some(FleetRequest::OfNode { .. }), Some(plan)) => Purpose {
                plan: plan.id.clone(),
                task: plan.current().map(|(_, task)| task.r#type.clone()),
                why: "begins the chain".to_owned(),
            },
            _ => Purpose { why, ..Purpose::default() },
        }
    }

    pub fn ask(&mut self) -> FleetAsk {
        if self.ending.failure.is_none() {
            let request = self.next_request();
            let request = request.or_else(|| self.ceremony.step(&self.snapshot, &self.refused));
            let request = request.or_else(|| self.next_read());
            if let Some(request) = request {
                self.asked = Some(request.clone());
                return FleetAsk::Perform(request);
            }
            if !self.is_reported && !self.ending.is_released {
                self.is_reported = true;
                let plan = self.survey();
                // No event reports that an object of another owner was deleted, or a quota raised.
                let is_refused = !self.refused.is_empty() || self.snapshot.has_conflict();
                let again = is_refused.then(|| later(self.snapshot.now, REFUSED_RETRY));
                let ceremony = self.ceremony.report(&self.snapshot);
                let dues = plan.members.iter().filter_map(|member| member.due);
                let read = app_hash::due(&self.snapshot, &plan.members);
                self.ending.due = dues.chain(again).chain(ceremony.due).chain(read).min();
                let status = status::report(&self.snapshot, &plan, ceremony, &self.refused);
                self.ending.events.extend(status::events(&self.snapshot, &status));
                return FleetAsk::Write(Box::new(status));
            }
        }
        FleetAsk::Done(std::mem::take(&mut self.ending))
    }

    pub fn absorb(&mut self, outcome: FleetOutcome) {
        let asked = self.asked.take();
        match outcome {
            FleetOutcome::Node(node) => {
                self.report_write(asked.as_ref(), &node);
                self.compare(&node);
                self.snapshot.put(*node);
            }
            FleetOutcome::Service(service) => self.snapshot.service = Some(service),
            FleetOutcome::Fleet(fleet) if matches!(asked, Some(FleetRequest::ReadFleet)) => {
                self.confirm(&fleet);
            }
            FleetOutcome::Fleet(fleet) => {
                let finalizers = fleet.metadata.finalizers.as_ref();
                let held = finalizers.is_some_and(|all| all.iter().any(is_ours));
                self.ending.is_released = self.snapshot.is_deleted() && !held;
                self.snapshot.fleet = Shared::new(*fleet);
            }
            FleetOutcome::Deleted => {
                self.is_newest = false;
                if let Some(FleetRequest::DeleteNode { name, .. }) = asked {
                    self.event(false, "SeiNodeDeleted", format!("deleted SeiNode {name}"));
                    let deleted_at = Some(Time(self.snapshot.now));
                    for node in &mut self.snapshot.nodes {
                        if node.metadata.name.as_deref() == Some(name.as_str()) {
                            node.metadata.deletion_timestamp.clone_from(&deleted_at);
                        }
                    }
                } else if matches!(asked, Some(FleetRequest::PatchFinalizers { .. })) {
                    self.ending.is_released = true;
                }
            }
            FleetOutcome::OfNode(outcome) => {
                if let Some(FleetRequest::OfNode { node, request }) = asked {
                    self.ceremony.absorb(&node, &request, outcome, self.snapshot.now);
                }
            }
            FleetOutcome::AppHash(read) => {
                if let Some(FleetRequest::ReadAppHash { node, .. }) = asked {
                    self.comparisons.absorb_app_hash(&self.snapshot, &node, read);
                }
            }
            FleetOutcome::Header(read) => {
                if let Some(FleetRequest::ReadHeader { canary, node, .. }) = asked {
                    self.comparisons.absorb_header(&canary, &node, read);
                }
            }
            FleetOutcome::Failed(failure) => self.failed(asked.as_ref(), failure),
        }
    }

    /// Takes in a live read of the fleet: a pass ends if its spec has changed meanwhile.
    fn confirm(&mut self, live: &SeiNodeDeployment) {
        let (known, live) = (&self.snapshot.fleet.metadata, &live.metadata);
        self.is_newest = live.uid == known.uid
            && live.generation == known.generation
            && live.deletion_timestamp == known.deletion_timestamp;
        if !self.is_newest {
            let message = "the fleet was edited meanwhile".to_owned();
            self.ending.failure = Some(Failure::Conflict(message));
        }
    }

    /// What has to be read of the nodes' chain.
    fn next_read(&mut self) -> Option<FleetRequest> {
        let is_off = self.snapshot.is_deleted() || self.snapshot.is_paused();
        if is_off || !self.comparisons.is_needed() {
            return None;
        }
        let members = self.survey().members;
        self.comparisons.step(&self.snapshot, &members)
    }

    /// Compares a node with the target again.
    fn compare(&mut self, node: &SeiNode) {
        let (snapshot, name) = (&self.snapshot, name_of(node));
        let ordinal = ordinal_in(&snapshot.name(), node).filter(|_| snapshot.controls(node));
        if ordinal.is_some_and(|ordinal| snapshot.has_template(&self.target, ordinal, node)) {
            self.current.insert(name);
        } else {
            self.current.remove(&name);
        }
    }

    fn event(&mut self, is_warning: bool, reason: &'static str, note: String) {
        self.ending.events.push(FleetEvent { is_warning, reason, note });
    }

    fn report_write(&mut self, asked: Option<&FleetRequest>, node: &SeiNode) {
        let name = node.metadata.name.clone().unwrap_or_default();
        match asked {
            // One that existed before may be another owner's.
            Some(FleetRequest::CreateNode(_)) if self.snapshot.controls(node) => {
                self.event(false, "SeiNodeCreated", format!("created SeiNode {name}"));
            }
            Some(FleetRequest::PatchNode { patch, .. }) => match &patch["spec"]["paused"] {
                Value::Bool(true) => {
                    self.event(false, "ChildPaused", format!("stopped SeiNode {name}"));
                }
                Value::Bool(false) => {
                    self.event(false, "ChildResumed", format!("started SeiNode {name}"));
                }
                _ => {}
            },
            _ => {}
        }
    }

    /// What the server refuses is reported and not tried again in this pass; everything else is
    /// tried again later.
    fn failed(&mut self, asked: Option<&FleetRequest>, failure: Failure) {
        let object = asked.map(request_name).filter(|name| !name.is_empty());
        match (object, failure) {
            (
                Some(name),
                Failure::Rejected(text)
                | Failure::Forbidden(text)
                | Failure::NamespaceTerminating(text),
            ) => {
                self.refused.insert(name.to_owned(), text);
            }
            (_, failure) => self.ending.failure = Some(failure),
        }
    }

    fn next_request(&mut self) -> Option<FleetRequest> {
        if self.snapshot.is_deleted() {
            return self.next_of_deletion();
        }
        let fleet = &self.snapshot.fleet;
        let finalizers = fleet.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(is_ours) {
            let finalizers = finalizers.into_iter().chain([FLEET_FINALIZER.to_owned()]).collect();
            let resource_version = fleet.metadata.resource_version.clone();
            return Some(FleetRequest::PatchFinalizers { resource_version, finalizers });
        }
        let target = &self.target;
        let adopted = self.snapshot.orphans().find(|node| self.may_write(node));
        if let Some(orphan) = adopted {
            let owner = serde_json::to_value(target.owner()).unwrap_or_default();
            return Some(patch(orphan, json!({ "metadata": { "ownerReferences": [owner] } })));
        }
        // First, and also during a rollout: a fleet that cannot be started again would be stuck.
        let paused = self.snapshot.is_paused();
        let wrong = |node: &SeiNode| node.spec.is_paused() != paused;
        let nodes = self.snapshot.own();
        if let Some((_, node)) = nodes.iter().find(|(_, node)| wrong(node) && self.may_write(node))
        {
            return Some(patch(node, json!({ "spec": { "paused": paused } })));
        }
        if let Some(request) = service::next(&self.snapshot, target)
            && !self.refused.contains_key(request_name(&request))
        {
            return Some(request);
        }
        if paused {
            return None;
        }
        self.next_node(&nodes)
    }

    /// Creates what is missing, deletes what is too much, and passes the template on.
    fn next_node(&mut self, nodes: &[(usize, Shared<SeiNode>)]) -> Option<FleetRequest> {
        let target = &self.target;
        let namespace = self.snapshot.fleet.metadata.namespace.clone().unwrap_or_default();
        let replicas = self.snapshot.nodes_now();
        for ordinal in 0..replicas {
            let name = fleet_node(&self.snapshot.name(), ordinal);
            if self.node(&name).is_none() && !self.refused.contains_key(&name) {
                let node = target.create(&namespace, ordinal);
                return Some(FleetRequest::CreateNode(Box::new(node)));
            }
        }
        let surplus = nodes
            .iter()
            .rev()
            .find(|(ordinal, node)| *ordinal >= replicas && self.may_write(node) && is_alive(node));
        if let Some((_, node)) = surplus {
            if let Some(retained) = target.retain_volume(node) {
                let name = node.metadata.name.clone().unwrap_or_default();
                return Some(FleetRequest::PatchNode { name, patch: retained });
            }
            if !self.is_newest {
                // A deletion cannot be undone, and the fleet may be scaled up again by now.
                return Some(FleetRequest::ReadFleet);
            }
            let (name, uid) = (node.metadata.name.clone(), node.metadata.uid.clone());
            let (name, uid) = (name.unwrap_or_default(), uid.unwrap_or_default());
            return Some(FleetRequest::DeleteNode { name, uid });
        }
        let plan = self.survey();
        let Next::Release { ordinal } = plan.next else { return None };
        let (_, node) = nodes.iter().find(|(at, _)| *at == ordinal)?;
        let name = node.metadata.name.clone().unwrap_or_default();
        let member = plan.members.iter().find(|member| member.ordinal == ordinal)?;
        let is_free = member.is_down && member.flight == Flight::No;
        let patch = target.release(ordinal, node, is_free);
        if is_free {
            self.released_down.push(name.clone());
        }
        Some(FleetRequest::PatchNode { name, patch })
    }

    /// The user lets the node be changed, and the server has not refused it in this pass.
    fn may_write(&self, node: &SeiNode) -> bool {
        !is_hands_off(node)
            && !node.metadata.name.as_ref().is_some_and(|name| self.refused.contains_key(name))
    }

    fn next_of_deletion(&self) -> Option<FleetRequest> {
        let fleet = &self.snapshot.fleet;
        let finalizers = fleet.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(is_ours) {
            return None;
        }
        let orphans = finalizers.iter().any(|name| name == ORPHAN_FINALIZER);
        // Its nodes would be released, or deleted by the garbage collector.
        if !orphans && !self.snapshot.hands_off().is_empty() {
            return None;
        }
        if fleet.spec.deletion_policy == DeletionPolicy::Retain && !orphans {
            // Without the finalizer, what could not be released would be deleted.
            if !self.refused.is_empty() {
                return None;
            }
            let uid = fleet.metadata.uid.as_deref();
            if let Some((_, node)) =
                self.snapshot.own().into_iter().find(|(_, node)| is_alive(node))
            {
                let owners = node.metadata.owner_references.clone().unwrap_or_default();
                let others: Vec<_> =
                    owners.iter().filter(|owner| Some(owner.uid.as_str()) != uid).collect();
                let metadata = json!({ "metadata": { "ownerReferences": others } });
                return Some(patch(&node, metadata));
            }
            if let Some(request) = service::release(&self.snapshot) {
                return Some(request);
            }
        }
        let finalizers = finalizers.into_iter().filter(|name| !is_ours(name)).collect();
        let resource_version = fleet.metadata.resource_version.clone();
        Some(FleetRequest::PatchFinalizers { resource_version, finalizers })
    }
}

fn name_of(node: &SeiNode) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

fn is_ours(finalizer: &String) -> bool {
    finalizer == FLEET_FINALIZER
}

fn is_alive(node: &SeiNode) -> bool {
    node.metadata.deletion_timestamp.is_none()
}

fn patch(node: &SeiNode, patch: Value) -> FleetRequest {
    FleetRequest::PatchNode { name: name_of(node), patch: guarded(patch, node) }
}

fn request_name(request: &FleetRequest) -> &str {
    match request {
        FleetRequest::CreateNode(node) => node.metadata.name.as_deref().unwrap_or_default(),
        FleetRequest::CreateService(service) => {
            service.metadata.name.as_deref().unwrap_or_default()
        }
        FleetRequest::OfNode { node: name, .. }
        | FleetRequest::ReadAppHash { node: name, .. }
        | FleetRequest::ReadHeader { node: name, .. }
        | FleetRequest::PatchNode { name, .. }
        | FleetRequest::DeleteNode { name, .. }
        | FleetRequest::PatchService { name, .. } => name,
        FleetRequest::PatchFinalizers { .. } | FleetRequest::ReadFleet => "",
    }
}
