//! The controller of `SeiNode`: which objects enqueue it, and how a snapshot becomes a pass.
//!
//! It decides nothing: `sei-plan` does. `snapshot` gathers the input of a decision, `reconcile`
//! performs what a pass requests, `ledger` grants the slots of a chain's budget.

use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::{
    EVENT_COMPONENT, bootstrap_job, data_claim, label, pre_pull_pod, proxy_config,
};
use sei_exec::lean::Lean;
use sei_exec::perform::claim_view;
use sei_exec::sidecar::Sidecar;
use sei_exec::token::Tokens;
use sei_exec::watched_pod::WatchedPod;
use sei_exec::watched_statefulset::WatchedStatefulSet;
use sei_plan::fleet::NodeObjects;
use sei_plan::packed::Packed;
use sei_plan::pre_pull::{PrePullView, Pull};
use sei_plan::request::ClaimView;
use sei_plan::view::{
    JobView, ObjectView, PodView, StatefulSetView, is_controlled_by, is_made_for,
};
use serde_json::Value;
use tokio::sync::watch;

use crate::Options;
use crate::runtime::cache::{Cache, Scope, View, any_closed, filled};
use crate::runtime::controller::{self, Runtime, Source};
use crate::runtime::events::Events;
use crate::runtime::metrics::Metrics;

mod events;
mod health;
mod ledger;
mod peer_ids;
mod platform_file;
mod reconcile;
mod snapshot;
mod state;

use platform_file::PlatformFile;
pub use platform_file::read_platform;
use reconcile::NodeController;
use snapshot::object_json;

/// The objects of nodes, as far as decisions read them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches {
    statefulsets: Arc<Cache<StatefulSetView>>,
    pods: Arc<Cache<PodView>>,
    /// Pods that pull the images of updates. They have another label, so that nothing takes them for
    /// pods of nodes.
    pre_pulls: Arc<Cache<PrePullView>>,
    services: Arc<Cache<ObjectJson>>,
    config_maps: Arc<Cache<ObjectJson>>,
    claims: Arc<Cache<ClaimView>>,
    jobs: Arc<Cache<JobView>>,
}

/// How the sidecars of nodes are found and called.
#[derive(Clone)]
pub(crate) struct Reach {
    caches: Caches,
    pub(crate) sidecar: Sidecar,
}

impl Reach {
    pub(crate) fn new(client: &Client, options: &Options) -> Self {
        let sidecar = Sidecar::new(Tokens::new(&options.sidecar_token, client));
        Self { caches: Caches::default(), sidecar }
    }

    /// The objects that the sidecar of this node is found by, as far as the caches have them.
    pub(crate) fn objects(&self, node: &ObjectKey) -> NodeObjects {
        NodeObjects {
            statefulset: self.caches.statefulsets.get(node, &node.name),
            pods: self.caches.pods.of(node),
        }
    }
}

/// A Service or ConfigMap.
#[derive(Debug, PartialEq)]
pub(crate) struct ObjectJson {
    /// What of it a user can change.
    json: Packed<Value>,
    view: ObjectView,
}

impl View for StatefulSetView {
    /// Its controller updates replica counts all the time; a new version alone is no news.
    fn is_news(&self, before: &Self) -> bool {
        !self.equals_but_version(before)
    }
}

impl View for PodView {
    fn is_news(&self, before: &Self) -> bool {
        !self.equals_but_version(before)
    }
}

impl View for ObjectJson {
    fn is_news(&self, before: &Self) -> bool {
        self.json != before.json || self.view.terminating != before.view.terminating
    }
}

impl View for ClaimView {}
impl View for JobView {}
impl View for PrePullView {
    /// The operator has just created it, and waits.
    fn is_news_at_first(&self) -> bool {
        self.pull != Pull::Unclaimed
    }

    fn is_news(&self, before: &Self) -> bool {
        // A kubelet that begins to pull has nothing to report yet.
        let begins = before.pull == Pull::Unclaimed && self.pull == Pull::Pending;
        !begins && self != before
    }
}

impl Caches {
    /// Starts the watches. The receivers turn true once the first lists are in.
    pub(crate) fn start(
        &self,
        client: &Client,
        namespaces: &[String],
        nodes: &Source<SeiNode>,
        metrics: &Metrics,
    ) -> Vec<watch::Receiver<bool>> {
        let owner_label = label::NODE;
        let scope = Scope { client, namespaces, owner_label, owners: nodes, metrics };
        let service = |service: &Lean<Service>| object_json(&service.0);
        let config_map = |map: &Lean<ConfigMap>| object_json(&map.0);
        let job = |job: &Lean<Job>| (&job.0).into();
        let pulling = Scope { owner_label: label::PRE_PULL, ..scope };
        vec![
            scope.follow(
                &self.statefulsets,
                |set, node| is_own(set, node, node_name),
                WatchedStatefulSet::view,
            ),
            scope.follow(&self.pods, is_own_pod, WatchedPod::view),
            scope.follow(&self.services, |found, node| is_own(found, node, node_name), service),
            scope.follow(
                &self.config_maps,
                |map, node| is_own(map, node, proxy_config),
                config_map,
            ),
            scope.follow(&self.claims, is_own_claim, |claim: &Lean<_>| claim_view(&claim.0)),
            scope.follow(&self.jobs, |job, node| is_own(job, node, bootstrap_job), job),
            pulling.follow(
                &self.pre_pulls,
                |pod, node| is_own(pod, node, pre_pull_pod),
                WatchedPod::pre_pull,
            ),
        ]
    }
}

/// Whether the object has the name that the node gives to its object of this kind, and is controlled
/// by the node.
fn is_own(object: &ObjectMeta, node: &ObjectMeta, name: fn(&str) -> String) -> bool {
    object.name == node.name.as_deref().map(name) && is_controlled_by(object, node)
}

fn node_name(node: &str) -> String {
    node.to_owned()
}

/// A claim is the node's by its name alone: one that was kept from an earlier node has no owner.
fn is_own_claim(claim: &ObjectMeta, node: &ObjectMeta) -> bool {
    claim.name == node.name.as_deref().map(data_claim)
}

/// Whether the pod was made for this node, by the owner that it claims. Whether it is the node's own
/// is decided with the StatefulSet.
fn is_own_pod(pod: &ObjectMeta, node: &ObjectMeta) -> bool {
    let mut owners = pod.owner_references.iter().flatten();
    owners.all(|owner| owner.uid.len() <= UID_MAX)
        && node.name.as_deref().is_some_and(|node| is_made_for(node, pod))
}

/// Length of a uid. The server accepts longer ones in a reference.
const UID_MAX: usize = 36;

/// Runs the controller of nodes until `stop` turns true.
pub(crate) async fn run(
    runtime: &Arc<Runtime>,
    client: Client,
    options: Options,
    source: Source<SeiNode>,
    Reach { caches, sidecar }: Reach,
    mut stop: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    // Nodes come first: of other objects only those of a known node are kept. Nothing is decided
    // before the first lists are in: what is missing from a half-filled cache would appear deleted.
    let mut lists = vec![source.listed()];
    if !filled(&mut lists, &mut stop).await? {
        return Ok(());
    }
    lists.extend(caches.start(&client, &options.namespaces, &source, &options.metrics));
    if !filled(&mut lists, &mut stop).await? {
        return Ok(());
    }
    ready.send_replace(true);
    let reporter = Reporter { controller: EVENT_COMPONENT.to_owned(), instance: None };
    let controller = Arc::new(NodeController {
        sidecar,
        caches,
        nodes: source.store(),
        queue: source.queue(),
        states: Arc::default(),
        ledger: ledger::Ledger::default(),
        start_lock: tokio::sync::Mutex::default(),
        pulls: std::sync::Mutex::default(),
        platform_file: PlatformFile::new(options.platform_path.clone(), options.platform.clone()),
        events: Events::start(Recorder::new(client.clone(), reporter)),
        peer_ids: peer_ids::PeerIds::default(),
        rpc_reads: tokio::sync::Semaphore::new(options.rpc_reads),
        leading_since: Instant::now(),
        client,
        options,
    });
    tokio::select! {
        () = controller::run(runtime.clone(), controller.clone(), source, stop) => {}
        // Its cache would stay as it is for ever, and decisions would be based on it.
        () = controller.watch_platform() => {}
        () = any_closed(lists) => anyhow::bail!("the task of a watch has ended"),
    }
    runtime.finish().await;
    controller.events.flush().await;
    Ok(())
}
