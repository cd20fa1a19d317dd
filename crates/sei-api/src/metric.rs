//! Every metric of the operator, with what it is for.
//!
//! One table, [`METRICS`]: what is registered takes its name, kind and help from here, the
//! reference in the docs is written from it, and alerts and dashboards are checked against it.

use std::fmt;

/// What a series of a metric does over time.
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
    /// As it is scraped; of a histogram without `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    /// What a series says; without a full stop, which the exposition adds.
    pub help: &'static str,
    /// What people look at it for.
    pub purpose: &'static str,
}

/// Before every name. The peer's, so that its dashboards go on.
pub const PREFIX: &str = "sei_controller";

/// A unit that stands at the end of a name.
pub const SECONDS: &str = "_seconds";

impl Metric {
    /// The name without what a registry adds: prefix, unit, and the `_total` of a counter.
    pub fn stem(&self) -> &'static str {
        let bare = self.name.strip_prefix(PREFIX).and_then(|name| name.strip_prefix('_'));
        let bare = bare.unwrap_or(self.name);
        match self.kind {
            Kind::Counter => bare.strip_suffix("_total").unwrap_or(bare),
            Kind::Histogram => bare.strip_suffix(SECONDS).unwrap_or(bare),
            Kind::Gauge => bare,
        }
    }

    /// Names under which its series are stored.
    pub fn series(&self) -> Vec<String> {
        match self.kind {
            Kind::Counter | Kind::Gauge => vec![self.name.to_owned()],
            Kind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", self.name)).to_vec()
            }
        }
    }
}

/// The constants and the table are one list, so that no metric can be outside of the table.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal [$($label:literal),*]
        $help:literal, $purpose:literal;)*) => {
        $(pub const $constant: Metric = Metric {
            name: concat!("sei_controller_", $name),
            kind: Kind::$kind,
            labels: &[$($label),*],
            help: $help,
            purpose: $purpose,
        };)*

        /// All of them, in the order of the docs.
        pub const METRICS: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    LEADER: Gauge "leader" []
        "Whether this process leads",
        "Exactly one process should say 1. None: nothing is reconciled.";
    SEINODE_PHASE: Gauge "seinode_phase" ["namespace", "name", "phase"]
        "1 for the phase that the node is in, 0 for each other one",
        "How many nodes are in which phase; a node in Failed waits for somebody.";
    SEINODE_PHASE_TRANSITIONS: Counter "seinode_phase_transitions_total"
        ["controller", "namespace", "from_phase", "to_phase"]
        "Changes of a node's phase",
        "Nodes that come and go between phases.";
    SEINODE_PHASE_DURATION: Histogram "seinode_phase_duration_seconds"
        ["namespace", "chain_id", "phase"]
        "How long nodes were in the phase that they left",
        "How long a first start takes, by chain.";
    PLAN_ACTIVE: Gauge "plan_active" ["controller", "namespace"]
        "Nodes whose plan is being carried out",
        "Whether something is under way at all.";
    PLAN_DURATION: Histogram "plan_duration_seconds"
        ["controller", "namespace", "plan_type", "outcome"]
        "How long plans took that ended",
        "How long updates take, and how many failed or were superseded.";
    SEINODE_DRIFTED: Gauge "seinode_drifted" ["namespace", "name", "reason"]
        "Whether the node's pod differs from the desired one; the reason is that of the condition PodTemplateDrift",
        "Which nodes do not run what is asked for, and why not.";
    SEINODE_PENDING_UPDATE: Gauge "seinode_pending_update" ["namespace", "name", "cause", "state"]
        "1 for each node with an update that has not arrived, by its cause and what happens with it",
        "What a rollout waits for: Queued, Held, Rolling or Retrying.";
    SEINODE_PENDING_UPDATE_SINCE: Gauge "seinode_pending_update_since_timestamp_seconds"
        ["namespace", "name"]
        "When the update that has not arrived was first desired, in seconds since 1970",
        "How long an update has been waiting, whoever led meanwhile.";
    SEINODE_UPDATE_FAILED_ATTEMPTS: Gauge "seinode_update_failed_attempts" ["namespace", "name"]
        "How often the update that has not arrived failed",
        "An update that fails again and again.";
    CHAIN_HALTED_NODES: Gauge "chain_halted_nodes" ["chain_id"]
        "Nodes of the chain whose update waits because the roll of another one failed",
        "More than 0: the rollout of this chain stands still until the failed node is Ready.";
    SEINODE_STALLED: Gauge "seinode_stalled" ["namespace", "name", "reason"]
        "Whether something keeps the node from getting on; the reason is that of the condition Stalled",
        "Which nodes need somebody, and what for.";
    SEINODE_SIDECAR_READY: Gauge "seinode_sidecar_ready" ["namespace", "name"]
        "Whether the node's sidecar was ready at its last probe",
        "Nodes whose gate is closed.";
    SEINODE_SIDECAR_UNREACHABLE: Gauge "seinode_sidecar_unreachable" ["namespace", "name"]
        "Whether the node's sidecar did not answer its last probe",
        "Nodes that can be updated only the long way, and that do not come back by themselves after an eviction.";
    SEINODE_SIDECAR_HEALTH_PROBES: Counter "seinode_sidecar_health_probes_total"
        ["controller", "namespace", "outcome"]
        "Health probes of sidecars by what they found",
        "A network or a proxy that fails now and then.";
    RECONCILE_ERRORS: Counter "reconcile_errors_total" ["controller", "category"]
        "Passes over a node, and watches, that ended in an error",
        "An API server that refuses or does not answer.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_named_as_prometheus_wants_it() {
        for metric in METRICS {
            let name = metric.name;
            assert!(name.starts_with(&format!("{PREFIX}_")), "{name}");
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(name.chars().all(is_plain), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.kind != Kind::Histogram || name.ends_with(SECONDS), "{name}");
            assert!(!metric.help.ends_with('.'), "{name}: the exposition adds the full stop");
            assert!(metric.purpose.ends_with('.'), "{name}");
            assert_eq!(METRICS.iter().filter(|other| other.name == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn a_stem_is_what_a_registry_makes_the_name_of() {
        assert_eq!(LEADER.stem(), "leader");
        assert_eq!(RECONCILE_ERRORS.stem(), "reconcile_errors");
        assert_eq!(PLAN_DURATION.stem(), "plan_duration");
        assert_eq!(
            SEINODE_PENDING_UPDATE_SINCE.stem(),
            "seinode_pending_update_since_timestamp_seconds"
        );
        assert_eq!(PLAN_DURATION.series()[1], "sei_controller_plan_duration_seconds_sum");
    }
}
