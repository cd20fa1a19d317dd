//! What the operator counts, under the names of the peer.
//!
//! The gauges of nodes are not kept but derived: [`Metrics::observe`] remembers a few words of each
//! node, and a scrape renders them. So there is no series of an older label value to remove, and no
//! up-down counter that could lose its way.
//!
//! Labels are bounded: names of nodes and namespaces, and words from tables in code.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use sei_api::condition::{self, ConditionType, Reason, Truth};
use sei_api::plan::{PlanKind, PlanPhase};
use sei_api::status::{Cause, SeiNodePhase, UpdateOutcome, UpdateState};
use sei_api::task::TaskType;
use sei_api::{SeiNode, SeiNodeStatus, TaskPlan};
use sei_exec::sidecar::Health;

/// Value of the label `controller`: the peer has several, and tells them apart by it.
const CONTROLLER: &str = "seinode";

const PHASES: [SeiNodePhase; 5] = [
    SeiNodePhase::Pending,
    SeiNodePhase::Initializing,
    SeiNodePhase::Running,
    SeiNodePhase::Failed,
    SeiNodePhase::Terminating,
];

/// The peer's buckets: dashboards are drawn with them.
const PHASE_BUCKETS: [f64; 10] =
    [10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0];
const PLAN_BUCKETS: [f64; 9] = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// All metrics of the operator. A clone counts into the same ones.
#[derive(Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    nodes: Arc<Nodes>,
    transitions: Family<TransitionLabels, Counter>,
    phase_durations: Family<PhaseLabels, Histogram, Buckets>,
    plan_durations: Family<PlanLabels, Histogram, Buckets>,
    probes: Family<ProbeLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    leader: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let metrics = Self {
            registry: Arc::default(),
            nodes: Arc::default(),
            transitions: Family::default(),
            phase_durations: Family::new_with_constructor(Buckets(&PHASE_BUCKETS)),
            plan_durations: Family::new_with_constructor(Buckets(&PLAN_BUCKETS)),
            probes: Family::default(),
            errors: Family::default(),
            leader: Gauge::default(),
        };
        Self { registry: Arc::new(metrics.registered()), ..metrics }
    }

    fn registered(&self) -> Registry {
        let mut registry = Registry::with_prefix("sei_controller");
        registry.register("leader", "Whether this process leads", self.leader.clone());
        registry.register(
            "seinode_phase_transitions",
            "Changes of a node's phase",
            self.transitions.clone(),
        );
        registry.register_with_unit(
            "seinode_phase_duration",
            "How long nodes were in the phase that they left",
            Unit::Seconds,
            self.phase_durations.clone(),
        );
        registry.register_with_unit(
            "plan_duration",
            "How long plans took that ended",
            Unit::Seconds,
            self.plan_durations.clone(),
        );
        registry.register(
            "seinode_sidecar_health_probes",
            "Health probes of sidecars by what they found",
            self.probes.clone(),
        );
        registry.register(
            "reconcile_errors",
            "Passes over a node that ended in an error",
            self.errors.clone(),
        );
        registry.register_collector(Box::new(self.nodes.clone()));
        registry
    }

    /// Takes note of a node as it is stored. Its gauges say this from now on, and nothing else.
    pub fn observe(&self, node: &SeiNode) {
        let key = (node.namespace().unwrap_or_default(), node.name_any());
        self.nodes.lock().insert(key, NodeWords::of(node));
    }

    /// Drops the gauges of a node that is gone.
    pub fn forget(&self, namespace: &str, name: &str) {
        self.nodes.lock().remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Counts what happened between two stored statuses of a node. To be called once for each write
    /// that succeeded: what was not stored did not happen.
    pub fn transition(
        &self,
        node: &SeiNode,
        before: &SeiNodeStatus,
        after: &SeiNodeStatus,
        now: Timestamp,
    ) {
        self.count_phase(node, before, after, now);
        self.count_plan(node, before, after, now);
    }

    /// Counts a health probe of a sidecar.
    pub fn probe(&self, namespace: &str, found: &Health) {
        let outcome = match found {
            Health::Ready => "ready",
            Health::NotReady => "not_ready",
            Health::Unreachable(_) => "unreachable",
        };
        let namespace = namespace.to_owned();
        self.probes
            .get_or_create(&ProbeLabels { controller: CONTROLLER, namespace, outcome })
            .inc();
    }

    /// Counts a pass that ended in an error of this category.
    pub fn error(&self, category: &'static str) {
        self.errors.get_or_create(&ErrorLabels { controller: CONTROLLER, category }).inc();
    }

    /// Whether this process leads.
    pub fn leading(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Everything as `OpenMetrics` text.
    pub fn encode(&self) -> String {
        let mut out = String::new();
        let written = text::encode(&mut out, &self.registry);
        debug_assert!(written.is_ok(), "writing to a string does not fail");
        out
    }

    fn count_phase(
        &self,
        node: &SeiNode,
        before: &SeiNodeStatus,
        after: &SeiNodeStatus,
        now: Timestamp,
    ) {
        let (from, to) = (phase_of(before), phase_of(after));
        if from == to {
            return;
        }
        let namespace = node.namespace().unwrap_or_default();
        let labels = TransitionLabels {
            controller: CONTROLLER,
            namespace: namespace.clone(),
            from_phase: from.as_str(),
            to_phase: to.as_str(),
        };
        self.transitions.get_or_create(&labels).inc();
        // The old time: the new status holds the moment of this very change. A node that never had
        // a phase waits for one since it was made.
        let since = match (&before.phase_transition_time, before.phase) {
            (None, None) => node.creation_timestamp().map(|time| time.0),
            (time, _) => time.as_ref().map(|time| time.0),
        };
        if let Some(since) = since {
            let chain_id = escaped(&node.spec.chain_id);
            let labels = PhaseLabels { namespace, chain_id, phase: from.as_str() };
            self.phase_durations.get_or_create(&labels).observe(seconds_between(since, now));
        }
    }

    fn count_plan(
        &self,
        node: &SeiNode,
        before: &SeiNodeStatus,
        after: &SeiNodeStatus,
        now: Timestamp,
    ) {
        let Some((plan, outcome)) = ended_plan(before, after) else { return };
        let Some(started) = plan.started_at() else { return };
        let labels = PlanLabels {
            controller: CONTROLLER,
            namespace: node.namespace().unwrap_or_default(),
            plan_type: plan_type(plan),
            outcome,
        };
        self.plan_durations.get_or_create(&labels).observe(seconds_between(started, now));
    }
}

/// A node that nobody has looked at yet is pending.
fn phase_of(status: &SeiNodeStatus) -> SeiNodePhase {
    status.phase.unwrap_or(SeiNodePhase::Pending)
}

/// Never negative: the wall clock may have gone back.
fn seconds_between(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// The plan that ran before and does not any more, and how it ended.
fn ended_plan<'a>(
    before: &'a SeiNodeStatus,
    after: &'a SeiNodeStatus,
) -> Option<(&'a TaskPlan, &'static str)> {
    let plan = before.plan.as_ref().filter(|plan| plan.is_active())?;
    let same = after.plan.as_ref().filter(|now| now.id == plan.id);
    let recorded =
        after.last_update.as_ref().filter(|last| Some(&last.plan_id) == plan.id.as_ref());
    let outcome = match (same.map(|now| now.phase), recorded.map(|last| last.outcome)) {
        (Some(PlanPhase::Active), _) => return None,
        // Stored as a failure, because the peer knows no other end.
        (_, Some(UpdateOutcome::Superseded)) => "superseded",
        (Some(PlanPhase::Complete), _) | (None, Some(UpdateOutcome::Complete)) => "complete",
        (Some(PlanPhase::Failed), _) | (None, Some(UpdateOutcome::Failed)) => "failed",
        (None, None) => outcome_without_record(after),
    };
    Some((same.unwrap_or(plan), outcome))
}

/// How a plan ended that is gone without a word: finished and cleared in one write, or replaced.
fn outcome_without_record(after: &SeiNodeStatus) -> &'static str {
    match after.phase {
        Some(SeiNodePhase::Failed) => "failed",
        Some(SeiNodePhase::Terminating) => "superseded",
        _ if after.plan.is_some() => "superseded",
        _ => "complete",
    }
}

/// The peer's words for what a plan is for; its own plans do not say it themselves.
fn plan_type(plan: &TaskPlan) -> &'static str {
    match plan.kind {
        Some(PlanKind::Init) => "init",
        Some(PlanKind::NodeUpdate) => "node-update",
        Some(PlanKind::MarkReady) => "mark-ready-reapply",
        Some(PlanKind::ApplyTemplate) => "unknown",
        None => plan_type_by_tasks(plan),
    }
}

fn plan_type_by_tasks(plan: &TaskPlan) -> &'static str {
    let telling = plan.tasks.iter().find_map(|task| match task.task_type() {
        Some(TaskType::ObserveImage) => Some("node-update"),
        Some(TaskType::EnsureDataPvc) => Some("init"),
        _ => None,
    });
    match (telling, plan.tasks.as_slice()) {
        (Some(telling), _) => telling,
        (None, [task]) if task.is(TaskType::MarkReady) => "mark-ready-reapply",
        (None, _) => "unknown",
    }
}

/// A label value that cannot end its own quotes. The encoder writes values as they are, and a chain
/// id is what a user typed: one bad node must not cost everybody's scrape.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[derive(Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransitionLabels {
    controller: &'static str,
    namespace: String,
    from_phase: &'static str,
    to_phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    namespace: String,
    chain_id: String,
    phase: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlanLabels {
    controller: &'static str,
    namespace: String,
    plan_type: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProbeLabels {
    controller: &'static str,
    namespace: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    controller: &'static str,
    category: &'static str,
}

/// What the gauges say of one node.
#[derive(Debug)]
struct NodeWords {
    phase: SeiNodePhase,
    has_active_plan: bool,
    sidecar_ready: Option<bool>,
    /// Status and reason of the condition.
    drifted: Option<(bool, &'static str)>,
    stalled: Option<(bool, &'static str)>,
    /// Cause and state.
    pending_update: Option<(&'static str, &'static str)>,
}

impl NodeWords {
    fn of(node: &SeiNode) -> Self {
        let empty = SeiNodeStatus::default();
        let status = node.status.as_ref().unwrap_or(&empty);
        let truth = |of: ConditionType| {
            let condition = condition::find(&status.conditions, of)?;
            let reason = Reason::parse(&condition.reason).map_or("Other", Reason::as_str);
            Some((condition.status == Truth::True.as_str(), reason))
        };
        Self {
            phase: phase_of(status),
            has_active_plan: status.plan.as_ref().is_some_and(TaskPlan::is_active),
            sidecar_ready: truth(ConditionType::SidecarReady).map(|(is_ready, _)| is_ready),
            drifted: truth(ConditionType::PodTemplateDrift),
            stalled: truth(ConditionType::Stalled),
            pending_update: status
                .pending_update
                .as_ref()
                .map(|update| (cause_word(update.cause), state_word(update.state))),
        }
    }
}

fn cause_word(cause: Cause) -> &'static str {
    match cause {
        Cause::Spec => "Spec",
        Cause::Operator => "Operator",
        Cause::Adoption => "Adoption",
    }
}

fn state_word(state: UpdateState) -> &'static str {
    match state {
        UpdateState::Queued => "Queued",
        UpdateState::Held => "Held",
        UpdateState::Rolling => "Rolling",
        UpdateState::Retrying => "Retrying",
    }
}

/// The nodes that were observed, by namespace and name.
#[derive(Debug, Default)]
struct Nodes(Mutex<NodeMap>);

type NodeMap = BTreeMap<(String, String), NodeWords>;

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, NodeMap> {
        // Nothing is half-done while the lock is held, so a panic elsewhere spoiled nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Nodes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let nodes = self.lock();
        encode_phases(&nodes, &mut encoder)?;
        encode_active_plans(&nodes, &mut encoder)?;
        let help = "Whether the node's sidecar was ready at its last probe.";
        let mut family = gauges(&mut encoder, "seinode_sidecar_ready", help)?;
        for ((namespace, name), words) in nodes.iter() {
            if let Some(is_ready) = words.sidecar_ready {
                let labels = [("namespace", namespace.as_str()), ("name", name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&i64::from(is_ready))?;
            }
        }
        let help = "Whether the node's pod differs from the wanted one.";
        let family = gauges(&mut encoder, "seinode_drifted", help)?;
        encode_conditions(&nodes, family, |words| words.drifted)?;
        let help = "Whether something keeps the node from getting on.";
        let family = gauges(&mut encoder, "seinode_stalled", help)?;
        encode_conditions(&nodes, family, |words| words.stalled)?;
        encode_pending_updates(&nodes, &mut encoder)
    }
}

fn gauges<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)
}

fn encode_phases(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut family = gauges(encoder, "seinode_phase", "1 for the phase that the node is in.")?;
    for ((namespace, name), words) in nodes {
        for phase in PHASES {
            let labels = [
                ("namespace", namespace.as_str()),
                ("name", name.as_str()),
                ("phase", phase.as_str()),
            ];
            family.encode_family(&labels)?.encode_gauge(&i64::from(phase == words.phase))?;
        }
    }
    Ok(())
}

fn encode_active_plans(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut active: BTreeMap<&str, i64> = BTreeMap::new();
    for ((namespace, _), words) in nodes {
        *active.entry(namespace).or_default() += i64::from(words.has_active_plan);
    }
    let mut family = gauges(encoder, "plan_active", "Nodes whose plan is being carried out.")?;
    for (namespace, count) in active {
        let labels = [("controller", CONTROLLER), ("namespace", namespace)];
        family.encode_family(&labels)?.encode_gauge(&count)?;
    }
    Ok(())
}

fn encode_conditions(
    nodes: &NodeMap,
    mut family: MetricEncoder<'_>,
    of: impl Fn(&NodeWords) -> Option<(bool, &'static str)>,
) -> Result<(), fmt::Error> {
    for ((namespace, name), words) in nodes {
        if let Some((is_true, reason)) = of(words) {
            let labels =
                [("namespace", namespace.as_str()), ("name", name.as_str()), ("reason", reason)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(is_true))?;
        }
    }
    Ok(())
}

fn encode_pending_updates(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let help = "Nodes that wait for an update, by its cause and what happens with it.";
    let mut family = gauges(encoder, "seinode_pending_update", help)?;
    for ((namespace, name), words) in nodes {
        if let Some((cause, state)) = words.pending_update {
            let labels = [
                ("namespace", namespace.as_str()),
                ("name", name.as_str()),
                ("cause", cause),
                ("state", state),
            ];
            family.encode_family(&labels)?.encode_gauge(&1_i64)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
