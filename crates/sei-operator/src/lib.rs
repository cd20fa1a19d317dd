//! The operator as a process: watches, leadership, metrics, health.
//!
//! What it is for: reconciling the right object at the right time. `runtime` is what every
//! controller shares and knows no kind; `node` is the controller of `SeiNode`.
//!
//! What it never does: decide what happens to a node (`sei-plan` does), or call the API server for
//! a node in any other way than through `sei-exec`.
//!
//! Invariants:
//! - Only one reconcile of an object runs at a time, and a request that arrives meanwhile is kept.
//!   Guarded by `an_object_is_never_reconciled_twice_at_once`.
//! - A reconcile that waits for a sidecar holds no permit. Guarded by
//!   `a_reconcile_that_waits_without_its_permit_blocks_no_other`.
//! - Controllers of several kinds run side by side. Guarded by
//!   `two_kinds_are_reconciled_side_by_side`.
//! - What is kept in memory can be lost: a reconcile uses the stored status, or progress that it
//!   can observe again. Guarded by `our_own_write_counts_until_the_cache_has_it`.
//! - Whether another holder's lease has expired is measured on the own monotonic clock since its
//!   record last changed; its timestamps are never compared with ours. Guarded by
//!   `next_move_follows_the_table` and `a_holder_that_keeps_renewing_is_never_replaced`.
//! - A leader that could not renew stops leading before another process may start. Guarded by
//!   `a_leader_stops_before_its_lease_expires`.
//! - Every call has a deadline, and no reconcile waits for an event. Guarded by
//!   `a_list_without_a_response_is_requested_again` and
//!   `unanswered_event_requests_delay_neither_reconciles_nor_shutdown`.
//! - A panic fails the reconcile of its object, and affects no other object. Guarded by
//!   `a_panic_fails_only_its_own_reconcile`.
//! - A reconcile runs to its end although its controller was dropped, and the operator stops in
//!   time or reports what it waits for. Guarded by
//!   `a_reconcile_that_the_controller_drops_runs_to_its_end` and
//!   `a_late_stop_names_what_is_in_flight`.
//! - A leader is ready once it has listed its nodes, and reports what prevents that. Guarded by
//!   `a_leader_without_the_crd_reports_it_until_the_crd_exists`.
//! - The operator keeps and publishes nothing about a deleted node. Guarded by
//!   `a_node_whose_finalizer_was_removed_leaves_no_metrics`.
//! - The gauges of a node come from its last observed status alone. Guarded by
//!   `observing_twice_changes_nothing`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::Client;
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use tokio::runtime::{Builder, Runtime as TokioRuntime};
use tokio::sync::{oneshot, watch};

pub use sei_exec::token::TokenSource;

pub mod flags;
mod fleet;
pub mod node;
pub mod runtime;

use runtime::controller::{InFlight, Runtime};
use runtime::metrics::Metrics;

/// The version of this build.
pub const VERSION: &str = env!("SEI_OPERATOR_VERSION");

/// How long reconciles may take to end once the operator is asked to stop. A kubelet kills it after
/// 30 s; before that it has to release its lease, or to report what is unfinished.
const STOP_MAX: Duration = Duration::from_secs(20);

/// How many RPCs are read at once. Nodes that do not respond must not delay the others for long: each
/// takes two seconds.
pub const RPC_READS: usize = 16;

/// How to run.
#[derive(Clone)]
pub struct Options {
    pub platform: Arc<Platform>,
    /// File that the platform was read from; it is read again when it changes.
    pub platform_path: Option<PathBuf>,
    /// Only the nodes of these namespaces; all without any.
    pub namespaces: Arc<[String]>,
    pub sidecar_token: TokenSource,
    pub timing: Timing,
    /// How many RPCs of nodes are read at once; none with 0.
    pub rpc_reads: usize,
    pub version: String,
    /// How templates are hashed. A newer one restamps what is stored and rolls nothing.
    pub algorithm: Algorithm,
    pub metrics: Metrics,
    /// What is being reconciled; the liveness probe reads it.
    pub in_flight: InFlight,
}

/// Runs every controller until `stop` turns true. The caller holds the lease.
pub async fn run(
    client: Client,
    options: Options,
    stop: watch::Receiver<bool>,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let runtime = Runtime::new(options.metrics.clone(), options.in_flight.clone());
    let fleets = fleet::source(&client, &options);
    let nodes = fleet::nodes_of(&fleets, &client, &options);
    let known = (nodes.store(), nodes.listed());
    let reach = node::Reach::new(&client, &options);
    let controllers = async {
        let (client, stop) = (client.clone(), stop.clone());
        let fleets = fleet::run(
            &runtime,
            client.clone(),
            &options,
            fleets,
            known,
            reach.clone(),
            stop.clone(),
        );
        let nodes = node::run(&runtime, client, options.clone(), nodes, reach, stop, ready);
        // The operator ends when one of them fails.
        tokio::try_join!(Box::pin(fleets), nodes).map(drop)
    };
    tokio::select! {
        ended = controllers => ended,
        () = out_of_time(stop.clone()) => bail!(unfinished(&runtime.in_flight())),
    }
}

/// Ends when the controllers have had [`STOP_MAX`] to stop.
async fn out_of_time(mut stop: watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
    tokio::time::sleep(STOP_MAX).await;
}

/// The error of a stop that takes too long, with what is being reconciled.
fn unfinished(in_flight: &[String]) -> String {
    let what = match in_flight {
        [] => "the controllers".to_owned(),
        names => format!("the reconciles of {}", names.join(", ")),
    };
    format!("{what} did not end in {} s", STOP_MAX.as_secs())
}

/// An operator that runs inside this process, for tests and the sandbox. It has a runtime of its
/// own, so that it can be dropped where it stands, with everything it has under way.
pub struct Operator {
    stop: watch::Sender<bool>,
    ready: watch::Receiver<bool>,
    ended: oneshot::Receiver<anyhow::Result<()>>,
    runtime: Option<TokioRuntime>,
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
            // The receiver may have been dropped.
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

    /// Stops it; reconciles in flight end first.
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
    fn a_late_stop_names_what_is_in_flight() {
        let in_flight = ["SeiNode a/b", "SeiNode c/d"].map(str::to_owned);
        let message = "the reconciles of SeiNode a/b, SeiNode c/d did not end in 20 s";
        assert_eq!(unfinished(&in_flight), message);
        assert_eq!(unfinished(&[]), "the controllers did not end in 20 s");
    }
}
