//! What the operator counts, under the names of the peer.
//!
//! The gauges of nodes are not kept but derived: [`Metrics::observe`] remembers a few text of each
//! node, and a scrape renders them. So there is no series of an older label value to remove, and no
//! up-down counter that could lose its way.
//!
//! Labels are bounded: names of nodes and namespaces, and text from tables in code.

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
use prometheus_client::registry::{self, Registry, Unit};
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason};
use sei_api::key::ObjectKey;
use sei_api::metric::{self, Metric};
use sei_api::plan::{PlanKind, PlanPhase};
use sei_api::status::{Cause, PendingUpdate, SeiNodePhase, UpdateOutcome, UpdateState};
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
#[derive(Clone, Debug)]
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
        let mut registry = Registry::with_prefix(metric::PREFIX);
        register(&mut registry, &metric::LEADER, self.leader.clone());
        register(&mut registry, &metric::SEINODE_PHASE_TRANSITIONS, self.transitions.clone());
        register(&mut registry, &metric::SEINODE_PHASE_DURATION, self.phase_durations.clone());
        register(&mut registry, &metric::PLAN_DURATION, self.plan_durations.clone());
        register(&mut registry, &metric::SEINODE_SIDECAR_HEALTH_PROBES, self.probes.clone());
        register(&mut registry, &metric::RECONCILE_ERRORS, self.errors.clone());
        registry.register_collector(Box::new(self.nodes.clone()));
        registry
    }

    /// Takes note of a node as it is stored. Its gauges say this from now on, and nothing else.
    pub fn observe(&self, node: &SeiNode) {
        let key = ObjectKey::of(&node.metadata);
        self.nodes.lock().insert(key, NodeText::of(node));
    }

    /// Drops the gauges of a node that is gone.
    pub fn forget(&self, key: &ObjectKey) {
        self.nodes.lock().remove(key);
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

    /// Counts a pass, or a watch, that ended in an error of this category.
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

/// Registers a metric as the table has it.
fn register(registry: &mut Registry, metric: &Metric, counted: impl registry::Metric) {
    match metric.kind {
        metric::Kind::Histogram => {
            registry.register_with_unit(metric.stem(), metric.help, Unit::Seconds, counted);
        }
        metric::Kind::Counter | metric::Kind::Gauge => {
            registry.register(metric.stem(), metric.help, counted);
        }
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

/// The peer's text for what a plan is for; its own plans do not say it themselves.
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
struct NodeText {
    chain_id: String,
    phase: SeiNodePhase,
    has_active_plan: bool,
    sidecar_ready: Option<bool>,
    sidecar_unreachable: Option<bool>,
    /// Status and reason of the condition.
    drifted: Option<(bool, &'static str)>,
    stalled: Option<(bool, &'static str)>,
    pending_update: Option<UpdateText>,
}

/// What the gauges say of an update that has not arrived.
#[derive(Debug)]
struct UpdateText {
    cause: &'static str,
    state: &'static str,
    since_seconds: i64,
    failed_attempts: i64,
    is_halted: bool,
}

impl NodeText {
    fn of(node: &SeiNode) -> Self {
        let empty = SeiNodeStatus::default();
        let status = node.status.as_ref().unwrap_or(&empty);
        let truth = |of: ConditionType| {
            let condition = condition::find(&status.conditions, of)?;
            let reason = Reason::parse(&condition.reason).map_or("Other", Reason::as_str);
            Some((condition.status == ConditionStatus::True.as_str(), reason))
        };
        let sidecar = truth(ConditionType::SidecarReady);
        Self {
            chain_id: escaped(&node.spec.chain_id),
            phase: phase_of(status),
            has_active_plan: status.plan.as_ref().is_some_and(TaskPlan::is_active),
            sidecar_ready: sidecar.map(|(is_ready, _)| is_ready),
            sidecar_unreachable: sidecar.map(|(_, why)| why == Reason::Unreachable.as_str()),
            drifted: truth(ConditionType::PodTemplateDrift),
            stalled: truth(ConditionType::Stalled),
            pending_update: status.pending_update.as_ref().map(UpdateText::of),
        }
    }
}

impl UpdateText {
    fn of(update: &PendingUpdate) -> Self {
        Self {
            cause: cause_word(update.cause),
            state: state_word(update.state),
            since_seconds: update.since.0.as_second(),
            failed_attempts: i64::from(update.attempts.unwrap_or(0)),
            is_halted: update.halted_by.is_some(),
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

type NodeMap = BTreeMap<ObjectKey, NodeText>;

impl Nodes {
    fn lock(&self) -> MutexGuard<'_, NodeMap> {
        // Nothing is half-done while the lock is held, so a panic elsewhere spoiled nothing.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Nodes {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let nodes = self.lock();
        let encoder = &mut encoder;
        encode_phases(&nodes, encoder)?;
        encode_active_plans(&nodes, encoder)?;
        encode_conditions(&nodes, encoder, &metric::SEINODE_DRIFTED, |text| text.drifted)?;
        encode_pending_updates(&nodes, encoder)?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_PENDING_UPDATE_SINCE, |text| {
            text.pending_update.as_ref().map(|update| update.since_seconds)
        })?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_UPDATE_FAILED_ATTEMPTS, |text| {
            text.pending_update.as_ref().map(|update| update.failed_attempts)
        })?;
        encode_halted_chains(&nodes, encoder)?;
        encode_conditions(&nodes, encoder, &metric::SEINODE_STALLED, |text| text.stalled)?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_SIDECAR_READY, |text| {
            text.sidecar_ready.map(i64::from)
        })?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_SIDECAR_UNREACHABLE, |text| {
            text.sidecar_unreachable.map(i64::from)
        })
    }
}

fn gauges<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    // A registry adds the full stop by itself, a collector does not.
    let help = format!("{}.", metric.help);
    encoder.encode_descriptor(metric.stem(), &help, None, MetricType::Gauge)
}

fn encode_phases(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut family = gauges(encoder, &metric::SEINODE_PHASE)?;
    for (ObjectKey { namespace, name }, text) in nodes {
        for phase in PHASES {
            let labels = [
                ("namespace", namespace.as_str()),
                ("name", name.as_str()),
                ("phase", phase.as_str()),
            ];
            family.encode_family(&labels)?.encode_gauge(&i64::from(phase == text.phase))?;
        }
    }
    Ok(())
}

fn encode_active_plans(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut active: BTreeMap<&str, i64> = BTreeMap::new();
    for (ObjectKey { namespace, .. }, text) in nodes {
        *active.entry(namespace).or_default() += i64::from(text.has_active_plan);
    }
    let mut family = gauges(encoder, &metric::PLAN_ACTIVE)?;
    for (namespace, count) in active {
        let labels = [("controller", CONTROLLER), ("namespace", namespace)];
        family.encode_family(&labels)?.encode_gauge(&count)?;
    }
    Ok(())
}

fn encode_halted_chains(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let mut halted: BTreeMap<&str, i64> = BTreeMap::new();
    for text in nodes.values() {
        let is_halted = text.pending_update.as_ref().is_some_and(|update| update.is_halted);
        *halted.entry(&text.chain_id).or_default() += i64::from(is_halted);
    }
    let mut family = gauges(encoder, &metric::CHAIN_HALTED_NODES)?;
    for (chain_id, count) in halted {
        family.encode_family(&[("chain_id", chain_id)])?.encode_gauge(&count)?;
    }
    Ok(())
}

/// One number for each node that has it.
fn encode_numbers(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    of: impl Fn(&NodeText) -> Option<i64>,
) -> Result<(), fmt::Error> {
    let mut family = gauges(encoder, metric)?;
    for (ObjectKey { namespace, name }, text) in nodes {
        if let Some(value) = of(text) {
            let labels = [("namespace", namespace.as_str()), ("name", name.as_str())];
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn encode_conditions(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    of: impl Fn(&NodeText) -> Option<(bool, &'static str)>,
) -> Result<(), fmt::Error> {
    let mut family = gauges(encoder, metric)?;
    for (ObjectKey { namespace, name }, text) in nodes {
        if let Some((is_true, reason)) = of(text) {
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
    let mut family = gauges(encoder, &metric::SEINODE_PENDING_UPDATE)?;
    for (ObjectKey { namespace, name }, text) in nodes {
        if let Some(UpdateText { cause, state, .. }) = text.pending_update {
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
