//! Every metric of the operator, with its purpose.
//!
//! One table, [`all`]: registration takes name, kind and help from here, the reference in the
//! docs is generated from it, and alerts and dashboards are checked against it.

use std::fmt;

/// The Prometheus type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        })
    }
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name as scraped; for a histogram, without `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// What a series measures; without a full stop, which the exposition adds.
    pub help: &'static str,
    /// What the metric is used for.
    pub purpose: &'static str,
}

/// Prefix of every name. The Go operator uses the same one, so that its dashboards keep working.
pub const PREFIX: &str = "sei_controller";

/// The unit at the end of a name.
pub const SECONDS: &str = "_seconds";

impl Metric {
    /// The name without the parts that a registry adds: our prefix, the unit of a histogram, and the
    /// `_total` of a counter.
    pub fn stem(&self) -> &'static str {
        let bare = self.name.strip_prefix(PREFIX).and_then(|name| name.strip_prefix('_'));
        let bare = bare.unwrap_or(self.name);
        match self.kind {
            Kind::Counter => bare.strip_suffix("_total").unwrap_or(bare),
            Kind::Histogram => bare.strip_suffix(SECONDS).unwrap_or(bare),
            Kind::Gauge => bare,
        }
    }

    /// Names under which Prometheus stores its series.
    pub fn series(&self) -> Vec<String> {
        match self.kind {
            Kind::Counter | Kind::Gauge => vec![self.name.to_owned()],
            Kind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", self.name)).to_vec()
            }
        }
    }
}

/// Constants and table come from one list, so that no metric can be missing from the table.
macro_rules! metrics {
    ($table:ident $prefix:literal $about:literal
        $($constant:ident: $kind:ident $name:literal [$($label:literal),*]
        $help:literal, $purpose:literal;)*) => {
        $(pub const $constant: Metric = Metric {
            name: concat!($prefix, $name),
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
            purpose: $purpose,
        };)*

        #[doc = $about]
        pub const $table: &[Metric] = &[$($constant),*];
    };
}

metrics! { PROCESS_METRICS "process_" "Of the process, under the names of Prometheus' own clients."
    PROCESS_CPU: Counter "cpu_seconds_total" []
        "CPU time that the process has used, in seconds",
        "What the operator costs.";
    PROCESS_RESIDENT_MEMORY: Gauge "resident_memory_bytes" []
        "Memory of the process, in bytes",
        "Compare it with the memory limit of the container.";
    PROCESS_VIRTUAL_MEMORY: Gauge "virtual_memory_bytes" []
        "Address space of the process, in bytes",
        "Rarely of use; tools expect it.";
    PROCESS_OPEN_FDS: Gauge "open_fds" []
        "Open files and connections",
        "Connections that are not closed.";
    PROCESS_MAX_FDS: Gauge "max_fds" []
        "How many files and connections may be open",
        "Compare it with process_open_fds.";
    PROCESS_START_TIME: Gauge "start_time_seconds" []
        "When the process started, in seconds since 1970",
        "Restarts of the operator.";
}

metrics! { METRICS "sei_controller_" "The operator's own metrics, in the order of the docs."
    LEADER: Gauge "leader" []
        "Whether this process is the leader",
        "Exactly one process should report 1. If none does, nothing is reconciled.";
    BUILD_INFO: Gauge "build_info" ["version"]
        "1, with the version of this process",
        "Shows which build runs, and when it changed.";
    PLATFORM_FILE_IN_FORCE: Gauge "platform_file_in_force" ["hash"]
        "1, with the first 16 digits of the SHA-256 of the platform configuration in force; only of the leader",
        "Whether a changed file has taken effect.";
    PLATFORM_FILE_REFUSED: Gauge "platform_file_refused" []
        "Whether the present content of the platform configuration was refused, and an earlier one is in force",
        "1 needs a correction: the operator's log names the key and the value.";
    SEINODE_PHASE: Gauge "seinode_phase" ["namespace", "name", "phase"]
        "1 for the current phase of the node, 0 for every other phase",
        "How many nodes are in which phase; a node in Failed needs a person.";
    SEINODE_READY: Gauge "seinode_ready" ["namespace", "name", "chain", "role", "reason"]
        "Whether the node is Ready, with the reason of condition Ready; role is the label sei.io/role of its pod",
        "Which nodes serve, by chain and role, and why the others do not.";
    SEINODE_PHASE_TRANSITIONS: Counter "seinode_phase_transitions_total"
        ["controller", "namespace", "from_phase", "to_phase"]
        "Phase changes of nodes",
        "Nodes that switch back and forth between phases.";
    SEINODE_PHASE_DURATION: Histogram "seinode_phase_duration_seconds"
        ["namespace", "chain_id", "phase"]
        "Time that nodes spent in a phase before they left it",
        "How long the first start of a node takes, by chain.";
    PLAN_ACTIVE: Gauge "plan_active" ["controller", "namespace"]
        "Nodes with an active plan",
        "Whether any plan is active.";
    PLAN_DURATION: Histogram "plan_duration_seconds"
        ["controller", "namespace", "plan_type", "outcome"]
        "Duration of plans that ended",
        "How long updates take, and how many failed or were superseded.";
    SEINODE_DRIFTED: Gauge "seinode_drifted" ["namespace", "name", "reason"]
        "Whether the node's pod differs from the desired template, with the reason of condition PodTemplateDrift",
        "Which nodes do not run the desired template, and why.";
    SEINODE_PENDING_UPDATE: Gauge "seinode_pending_update" ["namespace", "name", "cause", "state"]
        "1 for each node with a pending update, by cause and state of the update",
        "What a rollout is waiting for: Queued, Held, Rolling or Retrying.";
    SEINODE_PENDING_UPDATE_SINCE: Gauge "seinode_pending_update_since_timestamp_seconds"
        ["namespace", "name"]
        "When the pending update was first desired, in seconds since 1970",
        "How long an update has been waiting, across changes of the leader.";
    SEINODE_UPDATE_FAILED_ATTEMPTS: Gauge "seinode_update_failed_attempts" ["namespace", "name"]
        "Failed attempts of the pending update",
        "Updates that fail repeatedly.";
    CHAIN_HALTED_NODES: Gauge "chain_halted_nodes" ["chain_id"]
        "Nodes of the chain whose update waits because the roll of another node failed",
        "Above 0, the rollout of this chain is halted until the failed node is Ready.";
    SEINODE_STALLED: Gauge "seinode_stalled" ["namespace", "name", "reason"]
        "Whether the node is stalled, with the reason of condition Stalled",
        "Which nodes need a person, and why.";
    SEINODE_SIDECAR_READY: Gauge "seinode_sidecar_ready" ["namespace", "name"]
        "Whether the node's sidecar was ready at its last probe",
        "Nodes whose readiness gate is closed.";
    SEINODE_SIDECAR_UNREACHABLE: Gauge "seinode_sidecar_unreachable" ["namespace", "name"]
        "Whether the node's sidecar failed to respond to its last probe",
        "Nodes that do not become Ready after an eviction, because the operator cannot open their readiness gate.";
    SEINODE_SIDECAR_HEALTH_PROBES: Counter "seinode_sidecar_health_probes_total"
        ["controller", "namespace", "outcome"]
        "Health probes of sidecars by outcome",
        "A network or a proxy that fails intermittently.";
    SEINODE_HEIGHT: Gauge "seinode_height" ["namespace", "name", "chain", "role"]
        "Height of the latest block of the node, by its own RPC",
        "How far each node is, and which nodes of a chain are behind.";
    SEINODE_LAST_BLOCK: Gauge "seinode_last_block_timestamp_seconds"
        ["namespace", "name", "chain", "role"]
        "Time of the latest block of the node, in seconds since 1970",
        "A chain that has halted: no node has a new block.";
    SEINODE_CATCHING_UP: Gauge "seinode_catching_up" ["namespace", "name", "chain", "role"]
        "Whether the node is catching up with its chain",
        "Nodes that do not serve the present state yet.";
    SEINODE_PEERS: Gauge "seinode_peers" ["namespace", "name", "chain", "role"]
        "Peers that the node is connected to",
        "Nodes that are cut off from their chain.";
    SEINODE_HALTED: Gauge "seinode_halted" ["namespace", "name", "chain", "role", "reason"]
        "Whether the node waits for an upgrade or a block, with the reason of condition Halted; absent for a node that never did",
        "Nodes that wait at an upgrade height, also those whose pod is Ready.";
    SEINODE_RPC_PROBE: Gauge "seinode_rpc_probe" ["namespace", "name", "chain", "role", "outcome"]
        "1, with the outcome of the last read of the node's RPC: answered, unreachable, unreadable or other_network",
        "Why a node has no height. other_network: its RPC belongs to another chain than spec.chainId, and nothing of it is shown.";
    SEINODEDEPLOYMENT_PHASE: Gauge "seinodedeployment_phase" ["namespace", "name", "phase"]
        "1 for the current phase of the fleet, 0 for every other phase",
        "How many fleets are in which phase.";
    SEINODEDEPLOYMENT_REPLICAS: Gauge "seinodedeployment_replicas"
        ["namespace", "name", "replica_state"]
        "Nodes of the fleet: desired, ready (in phase Running) and updated (they run the template)",
        "How far a fleet is from its spec.";
    SEINODEDEPLOYMENT_READY: Gauge "seinodedeployment_ready" ["namespace", "name", "reason"]
        "Whether every node of the fleet runs the template and is Ready, with the reason of condition Ready",
        "Which fleets are not complete, and why.";
    SEINODEDEPLOYMENT_ROLLOUT: Gauge "seinodedeployment_rollout" ["namespace", "name", "state"]
        "1 for each fleet with a rollout, by its state: Progressing, Paused or Halted",
        "Which templates are on their way, and which rollouts a failed node has halted.";
    SEINODEDEPLOYMENT_ROLLOUT_PROGRESS: Gauge
        "seinodedeployment_rollout_progress_timestamp_seconds" ["namespace", "name"]
        "When a node last got the template of the rollout or became healthy with it, in seconds since 1970",
        "A rollout that makes no progress.";
    SEINODEDEPLOYMENT_ROLLOUT_BAKE: Gauge "seinodedeployment_rollout_bake_seconds"
        ["namespace", "name"]
        "How long a rollout may make no progress because nodes have to stay healthy, in seconds",
        "The time that is added before a rollout counts as stuck.";
    RECONCILE_ERRORS: Counter "reconcile_errors_total" ["controller", "category"]
        "Reconciles and watches that ended in an error",
        "An API server that rejects requests or does not respond.";
    RECONCILE_DURATION: Histogram "reconcile_duration_seconds" ["controller", "result"]
        "Duration of reconciles from when they get a slot, with their waits for sidecars; result is success, requeue_after or error",
        "How many objects are reconciled and how long that takes. A node at rest is not reconciled.";
    RECONCILE_QUEUE_DEPTH: Gauge "reconcile_queue_depth" ["controller"]
        "Reconciles that wait for a slot",
        "Above 0 for minutes, the operator or the API server is too slow for its nodes.";
    RECONCILE_IN_FLIGHT: Gauge "reconcile_in_flight" ["controller"]
        "Reconciles that have begun, with those that wait for a slot",
        "How busy the operator is.";
    RECONCILE_OLDEST: Gauge "reconcile_oldest_seconds" ["controller"]
        "Age of the oldest reconcile in flight, in seconds; 0 without any",
        "A reconcile that hangs. After 17 minutes the liveness probe fails.";
    API_REQUESTS: Counter "api_requests_total" ["verb", "resource", "code"]
        "Requests to the API server by verb and resource of the permission they need, and status code; none without a response",
        "What the operator costs the API server, and which requests fail. A list is a new begin of a watch.";
    API_REQUEST_DURATION: Histogram "api_request_duration_seconds" ["verb"]
        "Time until the API server responded; for a watch, until it began",
        "An API server that is slow.";
    WATCH_AGE: Gauge "watch_age_seconds" ["resource"]
        "Time since a watch received an event or a bookmark, or was opened again; of several the longest",
        "A watch that is dead: the server sends a bookmark about every minute, and a watch is opened again within five.";
}

/// Every metric, in the order of the docs.
pub fn all() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().chain(PROCESS_METRICS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_name_follows_the_conventions_of_prometheus() {
        for metric in METRICS {
            assert!(metric.name.starts_with(&format!("{PREFIX}_")), "{}", metric.name);
        }
        for metric in all() {
            let name = metric.name;
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.kind != Kind::Histogram || name.ends_with(SECONDS), "{name}");
            assert!(!metric.help.ends_with('.'), "{name}: the exposition adds the full stop");
            assert!(metric.purpose.ends_with('.'), "{name}");
            assert_eq!(all().filter(|metric| metric.name == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn the_stem_is_the_name_that_is_registered() {
        assert_eq!(LEADER.stem(), "leader");
        assert_eq!(RECONCILE_ERRORS.stem(), "reconcile_errors");
        assert_eq!(PLAN_DURATION.stem(), "plan_duration");
        assert_eq!(PROCESS_CPU.stem(), "process_cpu_seconds");
        assert_eq!(
            SEINODE_PENDING_UPDATE_SINCE.stem(),
            "seinode_pending_update_since_timestamp_seconds"
        );
        assert_eq!(PLAN_DURATION.series()[1], "sei_controller_plan_duration_seconds_sum");
    }
}
