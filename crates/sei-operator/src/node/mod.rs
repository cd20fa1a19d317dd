//! The controller of `SeiNode`: which objects enqueue it, and how a snapshot becomes a pass.
//!
//! It decides nothing: `sei-plan` does. `snapshot` gathers the input of a decision, `reconcile`
//! performs what a pass requests, `ledger` grants the slots of a chain's budget.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Service};
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use sei_api::SeiNode;
use sei_api::names::{EVENT_COMPONENT, label};
use sei_exec::lean::Lean;
use sei_exec::perform::claim_view;
use sei_exec::sidecar::Sidecar;
use sei_exec::token::Tokens;
use sei_exec::watched_pod::WatchedPod;
use sei_plan::request::ClaimView;
use sei_plan::view::{JobView, ObjectView, PodView, StatefulSetView};
use serde_json::Value;
use tokio::sync::watch;

use crate::Options;
use crate::runtime::cache::{Cache, Scope, View};
use crate::runtime::controller::{self, Queue, Runtime, Source};
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
mod write_log;

use platform_file::PlatformFile;
pub use platform_file::read_platform;
use reconcile::NodeController;
use snapshot::object_json;
pub(crate) use write_log::LoggedWrite;

/// The objects of nodes, as far as decisions read them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caches {
    statefulsets: Arc<Cache<StatefulSetView>>,
    pods: Arc<Cache<PodView>>,
    services: Arc<Cache<ObjectJson>>,
    config_maps: Arc<Cache<ObjectJson>>,
    claims: Arc<Cache<ClaimView>>,
    jobs: Arc<Cache<JobView>>,
}

/// A Service or ConfigMap.
#[derive(Debug, PartialEq)]
pub(crate) struct ObjectJson {
    /// What of it a user can change.
    json: Value,
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

impl Caches {
    /// Starts the watches. The receivers turn true once the first lists are in.
    pub(crate) fn start(
        &self,
        client: &Client,
        namespace: Option<&str>,
        queue: &Queue<SeiNode>,
        metrics: &Metrics,
    ) -> Vec<watch::Receiver<bool>> {
        let scope = Scope { client, namespace, owner_label: label::NODE, queue, metrics };
        vec![
            scope.follow(&self.statefulsets, |set: &Lean<StatefulSet>| (&set.0).into()),
            scope.follow(&self.pods, WatchedPod::view),
            scope.follow(&self.services, |service: &Lean<Service>| object_json(&service.0)),
            scope.follow(&self.config_maps, |map: &Lean<ConfigMap>| object_json(&map.0)),
            scope.follow(&self.claims, |claim: &Lean<_>| claim_view(&claim.0)),
            scope.follow(&self.jobs, |job: &Lean<Job>| (&job.0).into()),
        ]
    }
}

/// Ends when one of the tasks that hold the other ends of these channels has ended.
async fn any_closed(channels: Vec<watch::Receiver<bool>>) {
    let closed = |mut channel: watch::Receiver<bool>| {
        Box::pin(async move { while channel.changed().await.is_ok() {} })
    };
    futures::future::select_all(channels.into_iter().map(closed)).await;
}

/// The watch of nodes.
pub(crate) fn source(client: &Client, options: &Options) -> Source<SeiNode> {
    Source::new(match &options.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    })
}

/// Runs the controller of nodes until `stop` turns true.
pub(crate) async fn run(
    runtime: &Arc<Runtime>,
    client: Client,
    options: Options,
    source: Source<SeiNode>,
    mut stop: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let (caches, namespace) = (Caches::default(), options.namespace.as_deref());
    let mut lists = caches.start(&client, namespace, &source.queue(), &options.metrics);
    // Nothing is decided before the first lists are in: what is missing from a half-filled cache
    // would appear deleted.
    for list in &mut lists {
        tokio::select! {
            filled = list.wait_for(|filled| *filled) => drop(filled.context("a watch ended")?),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
    let reporter = Reporter { controller: EVENT_COMPONENT.to_owned(), instance: None };
    let controller = Arc::new(NodeController {
        sidecar: Sidecar::new(Tokens::new(&options.sidecar_token, &client)),
        caches,
        nodes: source.store(),
        queue: source.queue(),
        states: Arc::default(),
        ledger: ledger::Ledger::default(),
        start_lock: tokio::sync::Mutex::default(),
        platform_file: PlatformFile::new(options.platform_path.clone(), options.platform.clone()),
        events: Events::start(Recorder::new(client.clone(), reporter)),
        peer_ids: peer_ids::PeerIds::default(),
        leading_since: Instant::now(),
        client,
        options,
    });
    tokio::select! {
        () = controller::run(runtime.clone(), controller.clone(), source, stop, ready) => {}
        // Its cache would stay as it is for ever, and decisions would be based on it.
        () = any_closed(lists) => anyhow::bail!("the task of a watch has ended"),
    }
    runtime.finish().await;
    controller.events.flush().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_end_of_one_watch_task_is_noticed() {
        let tasks = [true, false].map(|panics| {
            let (sender, receiver) = watch::channel(false);
            tokio::spawn(async move {
                sender.send_replace(true);
                assert!(!panics, "a defect");
                std::future::pending::<()>().await;
            });
            receiver
        });
        let ended = tokio::time::timeout(Duration::from_secs(10), any_closed(tasks.into()));
        ended.await.expect("the end of the first task");
    }
}
