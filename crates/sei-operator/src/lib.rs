//! The operator as a process: watches, leadership, metrics, health.
//!
//! What it is for: waking the right node at the right time and running its passes, thirty-two at
//! once, with whatever a sidecar takes its time for outside of that.
//!
//! What it never does: decide what happens to a node (that is `sei-plan`), or talk to the API
//! server on a node's behalf in any other way than by `sei-exec`.
//!
//! Invariants:
//! - Of one node only one pass is under way at any time. Guarded by
//!   `a_second_pass_waits_for_the_first_and_then_follows`.
//! - What is kept in memory can be lost: a pass goes by the stored status, or by progress that is
//!   found again. Guarded by `our_own_write_counts_until_the_cache_has_it`.
//! - Whether another holder's lease has run out is measured on the own monotonic clock since its
//!   record last changed; its timestamps are never compared with ours. Guarded by
//!   `next_move_follows_the_table` and `a_holder_that_keeps_renewing_is_never_replaced`.
//! - A leader that could not renew stops leading before anybody else may start. Guarded by
//!   `a_leader_gives_up_before_its_lease_runs_out`.
//! - No answer is waited for without end, and no pass waits for an event to be told. Guarded by
//!   `a_list_that_is_never_answered_is_asked_for_again` and
//!   `unanswered_event_requests_delay_neither_reconciles_nor_shutdown`.
//! - A panic over one node is a failed look at that node, and harms no other. Guarded by
//!   `a_panic_over_one_node_is_a_failed_look_at_it`.
//! - Once told to stop, it ends in time or says what it was about. Guarded by
//!   `an_end_that_does_not_come_names_what_is_under_way`.
//! - A leader is ready once it has listed its nodes, and tells what keeps it from that. Guarded by
//!   `a_leader_without_the_crd_reports_it_until_the_crd_exists`.
//! - Of a node that is gone nothing is kept and nothing is told, however it went. Guarded by
//!   `a_node_whose_finalizer_was_removed_leaves_no_metrics`.
//! - The gauges of a node come from its last observed status alone, so that nothing can drift away
//!   from it by counting. Guarded by `observing_twice_changes_nothing`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::StreamExt;
use kube::core::DeserializeGuard;
use kube::runtime::controller::{Config, Controller};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource as _};
use sei_api::SeiNode;
use sei_api::names::EVENT_COMPONENT;
use sei_exec::sidecar::Sidecar;
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc, oneshot, watch};

pub mod caches;
pub mod client;
pub mod context;
pub mod desk;
pub mod events;
mod finalize;
pub mod flags;
pub mod lease;
pub mod ledger;
pub mod metrics;
mod observe;
pub mod peers;
pub mod reconcile;
pub mod serve;
mod signers;

use caches::{Caches, NodeKey, Wake};
use context::{Context, Witnesses};
use events::Events;
use metrics::Metrics;

/// A node that may not decode: one bad object harms only itself.
pub type Guarded = DeserializeGuard<SeiNode>;

/// How many nodes are looked at at once.
const CONCURRENCY: u16 = 32;

/// How long passes may take to come to their end once the operator is told to stop. A kubelet kills
/// it after 30 s; before that it has to give its lease back, or to say what is unfinished.
const ENDING_MAX: Duration = Duration::from_secs(20);

/// How to run.
#[derive(Clone)]
pub struct Options {
    pub platform: Arc<Platform>,
    /// File that the platform was read from; its witnesses are read again.
    pub platform_path: Option<PathBuf>,
    /// Only the nodes of this namespace; all without it.
    pub namespace: Option<String>,
    pub sidecar_token: Option<PathBuf>,
    pub timing: Timing,
    pub version: String,
    /// How templates are hashed. A newer one restamps what is stored and rolls nothing.
    pub algorithm: Algorithm,
    pub metrics: Metrics,
}

/// Runs the controller until `stop` turns true. The caller holds the lease.
pub async fn run(
    client: Client,
    options: Options,
    mut stop: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let (sender, receiver) = mpsc::unbounded_channel::<ObjectRef<Guarded>>();
    let wake = Wake(sender);
    let caches = Caches::default();
    let listed = caches.start(&client, options.namespace.as_deref(), &wake, &options.metrics);
    let nodes: Api<Guarded> = match &options.namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let (store, writer) = reflector::store();
    // Errors are met here: a controller that is handed one holds up all that wakes nodes.
    let seen = watcher(nodes, watcher::Config::default());
    let seen = caches::persistent(seen, SeiNode::kind(&()), options.metrics.clone());
    let gone = Arc::new(Notify::new());
    let seen = seen.map(Ok).reflect(writer);
    let nodes_listed = ready.subscribe();
    let seen = seen.inspect(tell_of_lists(ready, gone.clone())).applied_objects();
    let woken = futures::stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|node| (node, receiver))
    });
    let stopped = {
        let mut stop = stop.clone();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    };
    let controller = Controller::for_stream(seen, store)
        .with_config(Config::default().concurrency(CONCURRENCY))
        .reconcile_on(woken)
        .graceful_shutdown_on(stopped);
    // Nothing is decided before the first lists are in: what is missing from a half-filled cache
    // would look deleted.
    for mut list in listed {
        tokio::select! {
            filled = list.wait_for(|filled| *filled) => drop(filled.context("a watch ended")?),
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
    }
    let context = Arc::new(Context {
        sidecar: Sidecar::new(options.sidecar_token.clone()),
        caches,
        nodes: controller.store(),
        wake,
        desks: Arc::default(),
        ledger: ledger::Ledger::default(),
        signing: tokio::sync::Mutex::default(),
        namespace: options.namespace,
        witnesses: Witnesses::new(options.platform_path.clone(), options.platform.clone()),
        platform: options.platform,
        events: Events::start(Recorder::new(
            client.clone(),
            Reporter { controller: EVENT_COMPONENT.to_owned(), instance: None },
        )),
        timing: options.timing,
        version: options.version,
        algorithm: options.algorithm,
        metrics: options.metrics,
        leading_since: Instant::now(),
        node_ids: Mutex::default(),
        client,
    });
    tokio::select! {
        () = work(controller, &context, &gone, stop.clone(), &nodes_listed) => Ok(()),
        () = out_of_time(stop) => bail!(unfinished(&context.desks.busy())),
    }
}

/// Works until the operator is told to stop, and what is under way then has come to its end.
async fn work(
    controller: Controller<Guarded>,
    context: &Arc<Context>,
    gone: &Notify,
    stop: watch::Receiver<bool>,
    nodes_listed: &watch::Receiver<bool>,
) {
    tokio::select! {
        () = serve_nodes(controller, context, gone) => {}
        () = stopped_before_listing(stop, nodes_listed) => {}
    }
    // Passes go on outside of the controller. Whoever is told that we have ended may let somebody
    // else lead.
    context.desks.close().await;
    context.events.told().await;
}

/// Looks at nodes, and forgets those that are gone, until the controller is told to stop.
async fn serve_nodes(controller: Controller<Guarded>, context: &Arc<Context>, gone: &Notify) {
    let looking = controller
        .run(reconcile::reconcile, reconcile::on_error, context.clone())
        .for_each(|looked| async move {
            if let Err(error) = looked {
                tracing::debug!(error = %sei_exec::call::chain(&error), "controller");
            }
        });
    let sweeping = async {
        loop {
            gone.notified().await;
            context.sweep();
        }
    };
    tokio::select! {
        () = looking => {}
        () = sweeping => {}
    }
}

/// Ends when those who were told to stop have had time enough for it.
async fn out_of_time(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(ENDING_MAX).await;
}

/// What to tell of an end that did not come, with the nodes whose passes are under way.
fn unfinished(busy: &[NodeKey]) -> String {
    let names: Vec<String> = busy.iter().map(|(one, name)| format!("{one}/{name}")).collect();
    let what = match names.as_slice() {
        [] => "the controller".to_owned(),
        names => format!("what is being done for {}", names.join(", ")),
    };
    format!("{what} did not come to its end in {} s", ENDING_MAX.as_secs())
}

/// Ends if `stop` turns true before the first list of nodes is in. The controller would wait for that
/// list, which it no longer reads, for ever; and no look has begun that should come to its end.
async fn stopped_before_listing(mut stop: watch::Receiver<bool>, listed: &watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    if *listed.borrow() {
        std::future::pending::<()>().await;
    }
}

/// Tells that the nodes are listed (a store can be waited for only once, and the controller does),
/// and of every event after which nodes may be missing: the controller looks at what is there.
fn tell_of_lists(
    ready: watch::Sender<bool>,
    gone: Arc<Notify>,
) -> impl FnMut(&watcher::Result<watcher::Event<Guarded>>) + Send + 'static {
    move |event| match event {
        Ok(watcher::Event::InitDone) => {
            ready.send_replace(true);
            gone.notify_one();
        }
        Ok(watcher::Event::Delete(_)) => gone.notify_one(),
        _ => {}
    }
}

/// An operator that runs inside this process, for tests and the sandbox. It has a runtime of its
/// own, so that it can be dropped where it stands, with everything it has under way.
pub struct Operator {
    stop: watch::Sender<bool>,
    ready: watch::Receiver<bool>,
    ended: oneshot::Receiver<anyhow::Result<()>>,
    runtime: Option<Runtime>,
}

impl Operator {
    /// Starts an operator, without an election. The client is made inside its runtime.
    pub fn start(
        make_client: impl FnOnce() -> anyhow::Result<Client> + Send + 'static,
        options: Options,
    ) -> anyhow::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let (ready_sender, ready) = watch::channel(false);
        let (ended_sender, ended) = oneshot::channel();
        runtime.spawn(async move {
            let result = match make_client() {
                Ok(client) => run(client, options, stopped, ready_sender).await,
                Err(error) => Err(error),
            };
            // Nobody may be waiting for it any more.
            let _ = ended_sender.send(result);
        });
        Ok(Self { stop, ready, ended, runtime: Some(runtime) })
    }

    /// Waits until its first lists are in.
    pub async fn ready(&mut self) -> anyhow::Result<()> {
        let filled = self.ready.wait_for(|ready| *ready);
        let filled = tokio::time::timeout(Duration::from_secs(30), filled).await;
        filled.context("the operator was not ready in 30 s")?.context("the operator has ended")?;
        Ok(())
    }

    /// Stops it, letting the passes under way come to their end.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop.send_replace(true);
        (&mut self.ended).await.context("the operator was dropped")?
    }

    /// Drops it where it stands.
    pub fn kill(self) {}
}

impl Drop for Operator {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_does_not_come_names_what_is_under_way() {
        let busy = [("a", "b"), ("c", "d")].map(|(one, name)| (one.to_owned(), name.to_owned()));
        let told = unfinished(&busy);
        assert_eq!(told, "what is being done for a/b, c/d did not come to its end in 20 s");
        assert_eq!(unfinished(&[]), "the controller did not come to its end in 20 s");
    }
}
