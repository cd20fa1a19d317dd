//! The controller of `SeiNodeDeployment`: which objects enqueue it, and how a snapshot becomes a pass.
//!
//! It decides nothing: `sei_plan::fleet` does. The nodes come from the watch of the controller of
//! `SeiNode`, so that they are kept once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::runtime::reflector::Store;
use kube::{Client, Resource as _, ResourceExt as _};
use sei_api::fleet::{REPLICAS_MAX, SeiNodeDeploymentStatus};
use sei_api::key::ObjectKey;
use sei_api::names::{FLEET_FIELD_MANAGER, fleet_node, fleet_service, label};
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_exec::fleet::FleetCluster;
use sei_exec::lean::Lean;
use sei_exec::status::{WriteError, write_status};
use sei_plan::fleet::{FleetAsk, FleetEnding, FleetEvent, FleetPass, FleetSnapshot, ServiceView};
use sei_plan::request::{Failure, Purpose, Write};
use sei_plan::shared::Shared;
use sei_plan::timing::Timing;
use tokio::sync::watch;

use crate::Options;
use crate::node::Reach;
use crate::runtime::cache::{Cache, Scope, View, any_closed, filled};
use crate::runtime::controller::{self, Error, Permit, Reconcile, Runtime, Source, reference};
use crate::runtime::events::Events;
use crate::runtime::guarded::Guarded;
use crate::runtime::metrics::Metrics;
use crate::runtime::state::{Newest, States};
use crate::runtime::write_log::LoggedWrite;

/// How long to wait after another client wrote an object first: the watch shows what was written.
const STALE: Duration = Duration::from_millis(500);

impl View for ServiceView {}

/// The fleet whose node has this name; it may have another owner.
fn fleet_of(node: &Guarded<SeiNode>) -> Option<ObjectKey> {
    let metadata = node.meta();
    let (fleet, ordinal) = metadata.name.as_deref()?.rsplit_once('-')?;
    ordinal.parse::<u32>().ok()?;
    Some(ObjectKey::new(metadata.namespace.clone()?, fleet))
}

/// The controller of fleets, with everything its reconciles share.
struct FleetController {
    client: Client,
    reach: Reach,
    timing: Timing,
    reads_rpc: bool,
    nodes: Store<Guarded<SeiNode>>,
    services: Arc<Cache<ServiceView>>,
    fleets: Store<Guarded<SeiNodeDeployment>>,
    states: States<FleetState>,
    events: Events,
    metrics: Metrics,
}

/// What is kept in memory about a fleet. All of it can be lost.
#[derive(Debug, Default)]
struct FleetState {
    fleet: Newest<SeiNodeDeployment>,
    /// Nodes as our own writes returned them: the watch may lag behind.
    nodes: BTreeMap<String, Newest<SeiNode>>,
}

impl Reconcile for FleetController {
    type Kind = SeiNodeDeployment;

    async fn reconcile(
        self: &Arc<Self>,
        cached: &Shared<SeiNodeDeployment>,
        permit: &mut Permit,
    ) -> Result<Option<Duration>, Error> {
        let key = ObjectKey::of(&cached.metadata);
        let snapshot = self.snapshot(cached, &key);
        self.metrics.observe_fleet(&snapshot.fleet);
        let cluster = FleetCluster::new(self.client.clone(), self.reach.sidecar.clone(), &key);
        let mut pass = FleetPass::begin(snapshot);
        loop {
            match pass.ask() {
                FleetAsk::Perform(request) => {
                    let logged = request
                        .write(&key.name)
                        .map(|write| LoggedWrite::begin(write, pass.purpose()));
                    let performed = Box::pin(cluster.perform(&request));
                    // A pod that hangs must not hold a permit.
                    let outcome = if request.is_of_pod() {
                        permit.outside(performed).await
                    } else {
                        performed.await
                    };
                    if let Some(logged) = logged {
                        logged.end(&key, outcome.failure().map(ToString::to_string).as_deref());
                    }
                    pass.absorb(outcome);
                    self.states.with(&key, |state| state.wrote(&pass));
                }
                FleetAsk::Write(status) => match self.write(&cluster, &pass, &status, &key).await {
                    Ok(Some(fleet)) => {
                        let fleet = Shared::new(fleet);
                        self.metrics.observe_fleet(&fleet);
                        self.states.with(&key, |state| state.fleet.wrote(&fleet));
                    }
                    Ok(None) => {}
                    Err(WriteError::Stale) => return Ok(Some(STALE)),
                    Err(WriteError::Pruned(field)) => return Err(Error::SchemaTooOld(field)),
                    Err(WriteError::Call(failure)) => return Err(Error::Call(failure)),
                },
                FleetAsk::Done(ending) => return self.end(&pass, ending),
            }
        }
    }

    async fn read_partly(&self, _: &ObjectKey) -> Option<Shared<SeiNodeDeployment>> {
        None
    }

    fn finished(&self, key: &ObjectKey, _: bool) {
        self.forget_if_deleted(key);
    }

    fn is_own_write(&self, fleet: &SeiNodeDeployment) -> bool {
        let key = ObjectKey::of(&fleet.metadata);
        self.states.find(&key, |state| state.fleet.is_own_write(fleet)).unwrap_or(false)
    }

    fn sweep(&self) {
        for key in self.states.keys() {
            self.forget_if_deleted(&key);
        }
    }
}

impl FleetState {
    /// Keeps what a pass has written.
    fn wrote(&mut self, pass: &FleetPass) {
        self.fleet.wrote(pass.fleet());
        for node in pass.nodes() {
            self.nodes.entry(node.name_any()).or_default().wrote(node);
        }
    }

    /// The newer of what the cache has and what our own writes returned.
    fn newest_nodes(&mut self, cached: &[Shared<SeiNode>]) -> Vec<Shared<SeiNode>> {
        let names: BTreeSet<String> = cached.iter().map(|node| node.name_any()).collect();
        self.nodes.retain(|name, newest| names.contains(name) || newest.is_unseen());
        for node in cached {
            self.nodes.entry(node.name_any()).or_default().newest(node);
        }
        self.nodes.values().filter_map(Newest::get).collect()
    }
}

impl FleetController {
    fn snapshot(&self, cached: &Shared<SeiNodeDeployment>, key: &ObjectKey) -> FleetSnapshot {
        // Every node of a fleet has a name of this form, so the store is not searched.
        let names = (0..REPLICAS_MAX).map(|ordinal| fleet_node(&key.name, ordinal));
        let nodes: Vec<Shared<SeiNode>> = names
            .filter_map(|name| {
                let node = self.nodes.get(&reference(&ObjectKey::new(&key.namespace, name)))?;
                node.0.as_ref().ok().cloned()
            })
            .collect();
        self.states.with(key, |state| {
            let nodes = state.newest_nodes(&nodes);
            let fleet = state.fleet.newest(cached);
            let needs_objects = FleetSnapshot::needs_objects(&fleet);
            let objects = nodes.iter().filter(|_| needs_objects).map(|node| {
                let name = node.name_any();
                let objects = self.reach.objects(&ObjectKey::new(&key.namespace, &name));
                (name, objects)
            });
            FleetSnapshot {
                objects: objects.collect(),
                reads_rpc: self.reads_rpc,
                plan_id: uuid::Uuid::new_v4().to_string(),
                timing: self.timing,
                fleet,
                nodes,
                service: self
                    .services
                    .get(key, &fleet_service(&key.name))
                    .map(|service| (*service).clone()),
                now: jiff::Timestamp::now(),
            }
        })
    }

    async fn write(
        &self,
        cluster: &FleetCluster,
        pass: &FleetPass,
        status: &SeiNodeDeploymentStatus,
        key: &ObjectKey,
    ) -> Result<Option<SeiNodeDeployment>, WriteError> {
        let (name, uid) = (key.name.clone(), pass.fleet().metadata.uid.clone());
        let write = Write { verb: "patch", kind: "SeiNodeDeployment/status", name, uid };
        let purpose = Purpose { why: "the reported status".to_owned(), ..Purpose::default() };
        let logged = LoggedWrite::begin(write, purpose);
        let written = write_status(&cluster.fleets(), pass.fleet(), status).await;
        if !matches!(written, Ok(None)) {
            logged.end(key, written.as_ref().err().map(ToString::to_string).as_deref());
        }
        written
    }

    fn end(&self, pass: &FleetPass, ending: FleetEnding) -> Result<Option<Duration>, Error> {
        let events = ending.events.iter().map(event).collect();
        self.events.publish(&pass.fleet().object_ref(&()), events);
        match ending.failure {
            // Another client was first, or the cache is behind.
            Some(Failure::Conflict(_) | Failure::NotFound(_)) => Ok(Some(STALE)),
            Some(failure) => Err(Error::Call(failure)),
            None => Ok(ending.due.map(|due| {
                let left = due.duration_since(jiff::Timestamp::now());
                Duration::try_from(left).unwrap_or_default()
            })),
        }
    }

    fn forget_if_deleted(&self, key: &ObjectKey) {
        if self.fleets.get(&reference(key)).is_none() {
            self.states.remove(key);
            self.metrics.forget_fleet(key);
        }
    }
}

fn event(event: &FleetEvent) -> Event {
    Event {
        type_: if event.is_warning { EventType::Warning } else { EventType::Normal },
        reason: event.reason.to_owned(),
        note: Some(event.note.clone()),
        action: "Reconcile".to_owned(),
        secondary: None,
    }
}

/// Runs the controller of fleets until `stop` turns true.
pub(crate) async fn run(
    runtime: &Arc<Runtime>,
    client: Client,
    options: &Options,
    source: Source<SeiNodeDeployment>,
    nodes: (Store<Guarded<SeiNode>>, watch::Receiver<bool>),
    reach: Reach,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let (nodes, nodes_listed) = nodes;
    // A fleet without its nodes would create them again. A cluster without the CRD of fleets runs nodes
    // all the same, so its readiness does not depend on this list.
    let mut lists = vec![source.listed(), nodes_listed];
    if !filled(&mut lists, &mut stop).await? {
        return Ok(());
    }
    let services: Arc<Cache<ServiceView>> = Arc::default();
    let scope = Scope {
        client: &client,
        namespaces: &options.namespaces,
        owner_label: label::NODE_DEPLOYMENT,
        owners: &source,
        metrics: &options.metrics,
    };
    let view = |service: &Lean<Service>| ServiceView::from(&service.0);
    let mut lists = vec![scope.follow(&services, is_service_of, view)];
    if !filled(&mut lists, &mut stop).await? {
        return Ok(());
    }
    let reporter = Reporter { controller: FLEET_FIELD_MANAGER.to_owned(), instance: None };
    let controller = Arc::new(FleetController {
        reach,
        timing: options.timing,
        reads_rpc: options.rpc_reads > 0,
        nodes,
        services,
        fleets: source.store(),
        states: States::default(),
        events: Events::start(Recorder::new(client.clone(), reporter)),
        metrics: options.metrics.clone(),
        client,
    });
    tokio::select! {
        () = controller::run(runtime.clone(), controller.clone(), source, stop) => {}
        () = any_closed(lists) => anyhow::bail!("the task of a watch has ended"),
    }
    runtime.finish().await;
    controller.events.flush().await;
    Ok(())
}

/// A Service is the fleet's by its name; whether the fleet controls it is for the decision.
fn is_service_of(service: &ObjectMeta, fleet: &ObjectMeta) -> bool {
    service.name == fleet.name.as_deref().map(fleet_service)
}

/// The watch of fleets.
pub(crate) fn source(client: &Client, options: &Options) -> Source<SeiNodeDeployment> {
    Source::start(client, &options.namespaces, &options.metrics)
}

/// The watch of nodes. An event of a node enqueues the fleet that its name belongs to.
pub(crate) fn nodes_of(
    fleets: &Source<SeiNodeDeployment>,
    client: &Client,
    options: &Options,
) -> Source<SeiNode> {
    let (store, queue) = (fleets.store(), fleets.queue());
    Source::start_observed(client, &options.namespaces, &options.metrics, move |node| {
        if let Some(fleet) = fleet_of(node).filter(|key| store.get(&reference(key)).is_some()) {
            queue.enqueue(&fleet);
        }
    })
}
