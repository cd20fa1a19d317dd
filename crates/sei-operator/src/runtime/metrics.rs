//! The operator's metrics, under the names of the Go operator.
//!
//! The gauges of nodes and fleets are derived at each scrape: [`Metrics::observe`] keeps a few values of each
//! node, and a scrape renders them. So there is no series of an older label value to remove, and no
//! up-down counter that could drift.
//!
//! Labels are bounded: names of nodes and namespaces, and texts from tables in code.

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
use sei_api::plan::PlanPhase;
use sei_api::status::{Cause, PendingUpdate, SeiNodePhase, UpdateOutcome, UpdateState};
use sei_api::task::TaskType;
use sei_api::{Mode, SeiNode, SeiNodeDeployment, SeiNodeStatus, TaskPlan};
use sei_exec::sidecar::Health;
use sei_plan::chain::{ChainFacts, NoFacts};
use sei_plan::planner::kind::rules;

use super::controller::InFlight;

/// Value of the label `controller`: the Go operator distinguishes its controllers by it.
const CONTROLLER: &str = "seinode";

const PHASES: [SeiNodePhase; 5] = [
    SeiNodePhase::Pending,
    SeiNodePhase::Initializing,
    SeiNodePhase::Running,
    SeiNodePhase::Failed,
    SeiNodePhase::Terminating,
];

/// The Go operator's buckets: existing dashboards depend on them.
const PHASE_BUCKETS: [f64; 10] =
    [10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1200.0, 1800.0, 3600.0];
const PLAN_BUCKETS: [f64; 9] = [1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0];

/// All metrics of the operator. Clones share the same counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Arc<Registry>,
    nodes: Arc<Observed<NodeGauges>>,
    fleets: Arc<Observed<FleetGauges>>,
    transitions: Family<TransitionLabels, Counter>,
    phase_durations: Family<PhaseLabels, Histogram, Buckets>,
    plan_durations: Family<PlanLabels, Histogram, Buckets>,
    probes: Family<ProbeLabels, Counter>,
    errors: Family<ErrorLabels, Counter>,
    leader: Gauge,
    platform: Family<PlatformLabels, Gauge>,
    platform_refused: Gauge,
    build: Family<BuildLabels, Gauge>,
    reconciles: ReconcileMetrics,
    api: ApiMetrics,
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
            fleets: Arc::default(),
            transitions: Family::default(),
            phase_durations: Family::new_with_constructor(Buckets(&PHASE_BUCKETS)),
            plan_durations: Family::new_with_constructor(Buckets(&PLAN_BUCKETS)),
            probes: Family::default(),
            errors: Family::default(),
            leader: Gauge::default(),
            platform: Family::default(),
            platform_refused: Gauge::default(),
            build: Family::default(),
            reconciles: ReconcileMetrics::default(),
            api: ApiMetrics::default(),
        };
        metrics.build.get_or_create(&BuildLabels { version: crate::VERSION }).set(1);
        Self { registry: Arc::new(metrics.registered()), ..metrics }
    }

    fn registered(&self) -> Registry {
        let mut root = Registry::default();
        root.register_collector(Box::new(Process));
        let registry = root.sub_registry_with_prefix(metric::PREFIX);
        register(registry, &metric::LEADER, self.leader.clone());
        register(registry, &metric::BUILD_INFO, self.build.clone());
        register(registry, &metric::PLATFORM_FILE_IN_FORCE, self.platform.clone());
        register(registry, &metric::PLATFORM_FILE_REFUSED, self.platform_refused.clone());
        register(registry, &metric::SEINODE_PHASE_TRANSITIONS, self.transitions.clone());
        register(registry, &metric::SEINODE_PHASE_DURATION, self.phase_durations.clone());
        register(registry, &metric::PLAN_DURATION, self.plan_durations.clone());
        register(registry, &metric::SEINODE_SIDECAR_HEALTH_PROBES, self.probes.clone());
        register(registry, &metric::RECONCILE_ERRORS, self.errors.clone());
        registry.register_collector(Box::new(self.nodes.clone()));
        registry.register_collector(Box::new(self.fleets.clone()));
        register(registry, &metric::RECONCILE_DURATION, self.reconciles.durations.clone());
        register(registry, &metric::RECONCILE_QUEUE_DEPTH, self.reconciles.waiting.clone());
        registry.register_collector(Box::new(self.reconciles.in_flight.clone()));
        register(registry, &metric::API_REQUESTS, self.api.requests.clone());
        register(registry, &metric::API_REQUEST_DURATION, self.api.durations.clone());
        registry.register_collector(Box::new(self.api.watches.clone()));
        root
    }

    /// Records a node as it is stored. From then on its gauges show this status only.
    pub fn observe(&self, node: &SeiNode) {
        let key = ObjectKey::of(&node.metadata);
        let mut nodes = self.nodes.lock();
        let chain = nodes.get_mut(&key).and_then(|before| before.chain.take());
        nodes.insert(key, NodeGauges { chain, ..NodeGauges::of(node) });
    }

    /// Records what the node's RPC reported; `None` if it is not read any more.
    pub fn chain(&self, key: &ObjectKey, read: Option<Result<ChainFacts, NoFacts>>) {
        if let Some(gauges) = self.nodes.lock().get_mut(key) {
            gauges.chain = read;
        }
    }

    /// Drops the gauges of a deleted node.
    pub fn forget(&self, key: &ObjectKey) {
        self.nodes.lock().remove(key);
    }

    /// Records a fleet as it is stored.
    pub fn observe_fleet(&self, fleet: &SeiNodeDeployment) {
        self.fleets.lock().insert(ObjectKey::of(&fleet.metadata), FleetGauges::of(fleet));
    }

    /// Drops the gauges of a deleted fleet.
    pub fn forget_fleet(&self, key: &ObjectKey) {
        self.fleets.lock().remove(key);
    }

    /// Counts the changes between two stored statuses of a node. Call it once for each write that
    /// succeeded: a change that is not stored does not count.
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
    pub fn probe(&self, namespace: &str, health: &Health) {
        let outcome = match health {
            Health::Ready => "ready",
            Health::NotReady => "not_ready",
            Health::Unreachable(_) => "unreachable",
        };
        let namespace = namespace.to_owned();
        self.probes
            .get_or_create(&ProbeLabels { controller: CONTROLLER, namespace, outcome })
            .inc();
    }

    /// Counts a reconcile or a watch that ended in an error of this category, for the controller of
    /// this kind.
    pub fn error(&self, kind: &str, category: &'static str) {
        let controller = kind.to_lowercase();
        self.errors.get_or_create(&ErrorLabels { controller, category }).inc();
    }

    /// The series of the controller of this kind.
    pub fn controller(&self, kind: &str) -> ControllerMetrics {
        self.reconciles.of(kind)
    }

    /// Shows what is being reconciled.
    pub fn follow(&self, in_flight: &InFlight) {
        self.reconciles.in_flight.lock().in_flight = in_flight.clone();
    }

    /// Counts the requests of a client that is built with this layer.
    pub fn count_requests(&self) -> CountRequests {
        CountRequests(self.api.clone())
    }

    /// Records whether this process leads.
    pub fn leading(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Records the platform's file: the digest of what is in force, and whether its present content was
    /// refused.
    pub fn platform_file(&self, digest: &str, is_refused: bool) {
        self.platform.clear();
        self.platform.get_or_create(&PlatformLabels { hash: digest.to_owned() }).set(1);
        self.platform_refused.set(i64::from(is_refused));
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
        // The old status: the new one holds the time of this change. A node without a phase has
        // been pending since its creation.
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

/// Registers a metric under its name and help text in the table.
fn register(registry: &mut Registry, metric: &Metric, collector: impl registry::Metric) {
    match metric.kind {
        metric::Kind::Histogram => {
            registry.register_with_unit(metric.stem(), metric.help, Unit::Seconds, collector);
        }
        metric::Kind::Counter | metric::Kind::Gauge => {
            registry.register(metric.stem(), metric.help, collector);
        }
    }
}

/// A node that was never reconciled is pending.
fn phase_of(status: &SeiNodeStatus) -> SeiNodePhase {
    status.phase.unwrap_or(SeiNodePhase::Pending)
}

/// Never negative: the wall clock may have been set back.
fn seconds_between(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// The plan that was active before and is not any more, and its outcome.
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
        // Stored as a failure, because the Go operator has no phase for it.
        (_, Some(UpdateOutcome::Superseded)) => "superseded",
        (Some(PlanPhase::Complete), _) | (None, Some(UpdateOutcome::Complete)) => "complete",
        (Some(PlanPhase::Failed), _) | (None, Some(UpdateOutcome::Failed)) => "failed",
        (None, None) => outcome_without_record(after),
    };
    Some((same.unwrap_or(plan), outcome))
}

/// The outcome of a plan that left no record: finished and cleared in one write, or replaced.
fn outcome_without_record(after: &SeiNodeStatus) -> &'static str {
    match after.phase {
        Some(SeiNodePhase::Failed) => "failed",
        Some(SeiNodePhase::Terminating) => "superseded",
        _ if after.plan.is_some() => "superseded",
        _ => "complete",
    }
}

/// The Go operator's name for the kind of a plan. Its own plans do not record a kind.
fn plan_type(plan: &TaskPlan) -> &'static str {
    plan.kind.map_or_else(|| plan_type_by_tasks(plan), |kind| rules(kind).metric)
}

fn plan_type_by_tasks(plan: &TaskPlan) -> &'static str {
    let derived = plan.tasks.iter().find_map(|task| match task.task_type() {
        Some(TaskType::ObserveImage) => Some("node-update"),
        Some(TaskType::EnsureDataPvc) => Some("init"),
        _ => None,
    });
    match (derived, plan.tasks.as_slice()) {
        (Some(plan_type), _) => plan_type,
        (None, [task]) if task.is(TaskType::MarkReady) => "mark-ready-reapply",
        (None, _) => "unknown",
    }
}

/// A label value that cannot end its own quotes. The encoder does not escape values, and a chain id
/// is user input: a bad node must not break the whole scrape.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[derive(Clone, Copy, Debug)]
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
struct BuildLabels {
    version: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlatformLabels {
    hash: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabels {
    controller: String,
    category: &'static str,
}

/// The values of a node's gauges.
#[derive(Debug)]
struct NodeGauges {
    chain_id: String,
    role: &'static str,
    phase: SeiNodePhase,
    ready: Option<(bool, &'static str)>,
    halted: Option<(bool, &'static str)>,
    has_active_plan: bool,
    sidecar_ready: Option<bool>,
    sidecar_unreachable: Option<bool>,
    /// Status and reason of the condition.
    drifted: Option<(bool, &'static str)>,
    stalled: Option<(bool, &'static str)>,
    pending_update: Option<UpdateGauges>,
    /// The last read of the node's RPC. It is not in the status.
    chain: Option<Result<ChainFacts, NoFacts>>,
}

/// The values of the gauges of a pending update.
#[derive(Debug)]
struct UpdateGauges {
    cause: &'static str,
    state: &'static str,
    since_seconds: i64,
    failed_attempts: i64,
    is_halted: bool,
}

impl NodeGauges {
    fn of(node: &SeiNode) -> Self {
        let empty = SeiNodeStatus::default();
        let status = node.status.as_ref().unwrap_or(&empty);
        let condition_value = |kind: ConditionType| {
            let condition = condition::find(&status.conditions, kind)?;
            let reason = Reason::parse(&condition.reason).map_or("Other", Reason::as_str);
            Some((condition.status == ConditionStatus::True.as_str(), reason))
        };
        let sidecar = condition_value(ConditionType::SidecarReady);
        Self {
            chain_id: escaped(&node.spec.chain_id),
            role: node.spec.mode().map_or("none", Mode::role),
            phase: phase_of(status),
            ready: condition_value(ConditionType::Ready),
            halted: condition_value(ConditionType::Halted),
            has_active_plan: status.plan.as_ref().is_some_and(TaskPlan::is_active),
            sidecar_ready: sidecar.map(|(is_ready, _)| is_ready),
            sidecar_unreachable: sidecar.map(|(_, reason)| reason == Reason::Unreachable.as_str()),
            drifted: condition_value(ConditionType::PodTemplateDrift),
            stalled: condition_value(ConditionType::Stalled),
            pending_update: status.pending_update.as_ref().map(UpdateGauges::of),
            chain: None,
        }
    }
}

impl UpdateGauges {
    fn of(update: &PendingUpdate) -> Self {
        Self {
            cause: cause_label(update.cause),
            state: state_label(update.state),
            since_seconds: update.since.0.as_second(),
            failed_attempts: i64::from(update.attempts.unwrap_or(0)),
            is_halted: update.halted_by.is_some(),
        }
    }
}

fn cause_label(cause: Cause) -> &'static str {
    match cause {
        Cause::Spec => "Spec",
        Cause::Operator => "Operator",
        Cause::Adoption => "Adoption",
    }
}

fn state_label(state: UpdateState) -> &'static str {
    match state {
        UpdateState::Queued => "Queued",
        UpdateState::Held => "Held",
        UpdateState::Rolling => "Rolling",
        UpdateState::Retrying => "Retrying",
    }
}

/// The values of the objects that were observed, by namespace and name.
#[derive(Debug)]
struct Observed<T>(Mutex<BTreeMap<ObjectKey, T>>);

type NodeMap = BTreeMap<ObjectKey, NodeGauges>;

impl<T> Default for Observed<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Observed<T> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, T>> {
        // Each change under the lock is a single operation, so a panic leaves nothing half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Observed<NodeGauges> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let nodes = self.lock();
        let encoder = &mut encoder;
        encode_choices(&nodes, encoder, (&metric::SEINODE_PHASE, "phase"), |gauges| {
            PHASES.map(|phase| (phase.as_str(), i64::from(phase == gauges.phase)))
        })?;
        encode_by_chain(&nodes, encoder, &metric::SEINODE_READY, |gauges| gauges.ready)?;
        encode_active_plans(&nodes, encoder)?;
        encode_conditions(&nodes, encoder, &metric::SEINODE_DRIFTED, |gauges| gauges.drifted)?;
        encode_pending_updates(&nodes, encoder)?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_PENDING_UPDATE_SINCE, |gauges| {
            gauges.pending_update.as_ref().map(|update| update.since_seconds)
        })?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_UPDATE_FAILED_ATTEMPTS, |gauges| {
            gauges.pending_update.as_ref().map(|update| update.failed_attempts)
        })?;
        encode_halted_chains(&nodes, encoder)?;
        encode_conditions(&nodes, encoder, &metric::SEINODE_STALLED, |gauges| gauges.stalled)?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_SIDECAR_READY, |gauges| {
            gauges.sidecar_ready.map(i64::from)
        })?;
        encode_numbers(&nodes, encoder, &metric::SEINODE_SIDECAR_UNREACHABLE, |gauges| {
            gauges.sidecar_unreachable.map(i64::from)
        })?;
        encode_facts(&nodes, encoder, &metric::SEINODE_HEIGHT, |facts| facts.height)?;
        encode_facts(&nodes, encoder, &metric::SEINODE_LAST_BLOCK, |facts| {
            facts.block_time.map(Timestamp::as_second)
        })?;
        encode_facts(&nodes, encoder, &metric::SEINODE_CATCHING_UP, |facts| {
            facts.is_catching_up.map(i64::from)
        })?;
        encode_facts(&nodes, encoder, &metric::SEINODE_PEERS, |facts| facts.peers)?;
        encode_by_chain(&nodes, encoder, &metric::SEINODE_HALTED, |gauges| gauges.halted)?;
        encode_rpc_probes(&nodes, encoder)
    }
}

fn gauge_family<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    metric: &'a Metric,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(metric.stem(), &help(metric), None, MetricType::Gauge)
}

/// A registry adds the full stop to the help text, a collector does not.
fn help(metric: &Metric) -> String {
    format!("{}.", metric.help)
}

/// A number for each of these values of one label.
fn encode_choices<T, C: IntoIterator<Item = (&'static str, i64)>>(
    observed: &BTreeMap<ObjectKey, T>,
    encoder: &mut DescriptorEncoder,
    (metric, label): (&Metric, &str),
    choices_of: impl Fn(&T) -> C,
) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, metric)?;
    for (ObjectKey { namespace, name }, gauges) in observed {
        for (choice, value) in choices_of(gauges) {
            let labels =
                [("namespace", namespace.as_str()), ("name", name.as_str()), (label, choice)];
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

/// A condition, with the labels by which nodes are grouped into chains.
fn encode_by_chain(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    value_of: impl Fn(&NodeGauges) -> Option<(bool, &'static str)>,
) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, metric)?;
    for (key, gauges) in nodes {
        if let Some((is_true, reason)) = value_of(gauges) {
            let [namespace, name, chain, role] = chain_labels(key, gauges);
            let labels = [namespace, name, chain, role, ("reason", reason)];
            family.encode_family(&labels)?.encode_gauge(&i64::from(is_true))?;
        }
    }
    Ok(())
}

/// The labels by which nodes are grouped into chains.
fn chain_labels<'a>(key: &'a ObjectKey, gauges: &'a NodeGauges) -> [(&'static str, &'a str); 4] {
    [
        ("namespace", key.namespace.as_str()),
        ("name", key.name.as_str()),
        ("chain", gauges.chain_id.as_str()),
        ("role", gauges.role),
    ]
}

/// A number for each node whose RPC reported it.
fn encode_facts(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    value_of: impl Fn(&ChainFacts) -> Option<i64>,
) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, metric)?;
    for (key, gauges) in nodes {
        let facts = gauges.chain.as_ref().and_then(|read| read.as_ref().ok());
        if let Some(value) = facts.and_then(&value_of) {
            family.encode_family(&chain_labels(key, gauges))?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn encode_rpc_probes(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, &metric::SEINODE_RPC_PROBE)?;
    for (key, gauges) in nodes {
        let outcome = match &gauges.chain {
            None => continue,
            Some(Ok(_)) => "answered",
            Some(Err(NoFacts::Unreachable)) => "unreachable",
            Some(Err(NoFacts::Unreadable)) => "unreadable",
            Some(Err(NoFacts::OtherNetwork(_))) => "other_network",
        };
        let [namespace, name, chain, role] = chain_labels(key, gauges);
        let labels = [namespace, name, chain, role, ("outcome", outcome)];
        family.encode_family(&labels)?.encode_gauge(&1_i64)?;
    }
    Ok(())
}

fn encode_active_plans(nodes: &NodeMap, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
    let mut active: BTreeMap<&str, i64> = BTreeMap::new();
    for (ObjectKey { namespace, .. }, gauges) in nodes {
        *active.entry(namespace).or_default() += i64::from(gauges.has_active_plan);
    }
    let mut family = gauge_family(encoder, &metric::PLAN_ACTIVE)?;
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
    for gauges in nodes.values() {
        let is_halted = gauges.pending_update.as_ref().is_some_and(|update| update.is_halted);
        *halted.entry(&gauges.chain_id).or_default() += i64::from(is_halted);
    }
    let mut family = gauge_family(encoder, &metric::CHAIN_HALTED_NODES)?;
    for (chain_id, count) in halted {
        family.encode_family(&[("chain_id", chain_id)])?.encode_gauge(&count)?;
    }
    Ok(())
}

/// A number for each object that has it.
fn encode_numbers<T>(
    observed: &BTreeMap<ObjectKey, T>,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    value_of: impl Fn(&T) -> Option<i64>,
) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, metric)?;
    for (ObjectKey { namespace, name }, gauges) in observed {
        if let Some(value) = value_of(gauges) {
            let labels = [("namespace", namespace.as_str()), ("name", name.as_str())];
            family.encode_family(&labels)?.encode_gauge(&value)?;
        }
    }
    Ok(())
}

fn encode_conditions<T>(
    observed: &BTreeMap<ObjectKey, T>,
    encoder: &mut DescriptorEncoder,
    metric: &Metric,
    value_of: impl Fn(&T) -> Option<(bool, &'static str)>,
) -> Result<(), fmt::Error> {
    encode_choices(observed, encoder, (metric, "reason"), |gauges| {
        value_of(gauges).map(|(is_true, reason)| (reason, i64::from(is_true)))
    })
}

fn encode_pending_updates(
    nodes: &NodeMap,
    encoder: &mut DescriptorEncoder,
) -> Result<(), fmt::Error> {
    let mut family = gauge_family(encoder, &metric::SEINODE_PENDING_UPDATE)?;
    for (ObjectKey { namespace, name }, gauges) in nodes {
        if let Some(UpdateGauges { cause, state, .. }) = gauges.pending_update {
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

mod api;
mod fleets;
mod process;
mod reconciles;

use api::ApiMetrics;
pub use api::CountRequests;
use fleets::FleetGauges;
use process::Process;
pub use reconciles::ControllerMetrics;
use reconciles::ReconcileMetrics;

#[cfg(test)]
mod tests;
