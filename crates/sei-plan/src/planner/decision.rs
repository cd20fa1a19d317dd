//! The result of the planner, and how it changes a status.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{Blocked, ClaimRef, LastUpdate, PendingUpdate, SeiNodePhase, SeiNodeStatus};

use super::{Blocker, Note};
use crate::budget::Roll;
use crate::snapshot::Snapshot;
use crate::tasks::{Stamp, kind_of};

/// The next action for a node, and the changes to its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    pub plan: PlanMove,
    pub phase: Option<SeiNodePhase>,
    pub conditions: Vec<Verdict>,
    /// The pending update that the status records from now on.
    pub pending_update: Option<PendingUpdate>,
    pub stamp: Option<Stamp>,
    pub last_update: Option<LastUpdate>,
    pub blocker: Option<Blocker>,
    /// What the status records as blocking the node from now on.
    pub blocked: Option<Blocked>,
    /// The claim that counts as the node's from now on.
    pub claim: Option<ClaimRef>,
    pub witnesses: Option<Vec<String>>,
    /// The uid of a pod whose template the server must compare before a decision is possible.
    pub compare: Option<String>,
    /// A slot of the chain's budget must be requested before a decision is possible.
    pub asks_slot: Option<Roll>,
    /// What is done and why, or why nothing is done. Nothing is decided by it.
    pub report: Vec<Note>,
    /// When to reconcile again if no event arrives.
    pub requeue: Option<Duration>,
}

/// The change to the stored plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum PlanMove {
    #[default]
    Keep,
    Clear,
    /// Stored now, executed from the next pass on.
    Start(Box<TaskPlan>),
}

impl PlanMove {
    /// The kind of the plan that is started.
    pub fn started(&self) -> Option<PlanKind> {
        match self {
            Self::Start(plan) => Some(kind_of(plan)),
            Self::Keep | Self::Clear => None,
        }
    }
}

impl Decision {
    /// Changes nothing.
    pub(super) fn keep(snapshot: &Snapshot) -> Self {
        Self {
            pending_update: snapshot.status.pending_update.clone(),
            requeue: Some(snapshot.timing.resync()),
            ..Self::default()
        }
    }

    /// Changes nothing, because of this.
    pub(super) fn blocked(snapshot: &Snapshot, blocker: Blocker) -> Self {
        Self { blocker: Some(blocker.clone()), ..Self::keep(snapshot) }.note(Note::Blocked(blocker))
    }

    /// Both decisions; the second one wins where they differ. What blocked the first still blocks.
    pub(super) fn then(mut self, next: Self) -> Self {
        self.conditions.extend(next.conditions);
        self.report.extend(next.report);
        Self {
            plan: if next.plan == PlanMove::Keep { self.plan } else { next.plan },
            phase: next.phase.or(self.phase),
            conditions: self.conditions,
            pending_update: next.pending_update,
            stamp: next.stamp.or(self.stamp),
            last_update: next.last_update.or(self.last_update),
            blocker: self.blocker.or(next.blocker),
            blocked: next.blocked.or(self.blocked),
            claim: next.claim.or(self.claim),
            witnesses: next.witnesses.or(self.witnesses),
            compare: next.compare.or(self.compare),
            asks_slot: next.asks_slot.or(self.asks_slot),
            report: self.report,
            requeue: next.requeue,
        }
    }

    pub(super) fn note(mut self, note: Note) -> Self {
        self.report.push(note);
        self
    }

    pub(super) fn condition(mut self, verdict: Verdict) -> Self {
        self.conditions.push(verdict);
        self
    }

    pub(super) fn drift(self, reason: Reason, message: impl Into<String>) -> Self {
        self.condition(drift_is(ConditionStatus::True, reason, message))
    }

    pub(super) fn updating(self, message: impl Into<String>) -> Self {
        self.condition(update_is(ConditionStatus::True, Reason::UpdateStarted, message))
    }

    pub(super) fn not_updating(self, reason: Reason, message: impl Into<String>) -> Self {
        self.condition(update_is(ConditionStatus::False, reason, message))
    }

    pub(super) fn pending(self, update: PendingUpdate) -> Self {
        Self { pending_update: Some(update), ..self }
    }

    /// Starts a plan: stored now, executed from the next pass on.
    pub(super) fn start(self, plan: TaskPlan, why: &str) -> Self {
        let kind = kind_of(&plan);
        let plan = PlanMove::Start(Box::new(plan));
        Self { plan, requeue: Some(Duration::ZERO), ..self }
            .note(Note::Starts { kind, why: why.to_owned() })
    }

    /// Requeues the node after this time at the latest.
    pub(super) fn requeue_within(self, time: Duration) -> Self {
        let requeue = Some(self.requeue.map_or(time, |requeue| requeue.min(time)));
        Self { requeue, ..self }
    }

    /// The status as this decision leaves it.
    pub fn apply(&self, status: &mut SeiNodeStatus, generation: i64, now: Timestamp) {
        match &self.plan {
            PlanMove::Keep => {}
            PlanMove::Clear => status.plan = None,
            PlanMove::Start(plan) => status.plan = Some((**plan).clone()),
        }
        if let Some(phase) = self.phase {
            enter(status, phase, now);
        }
        for verdict in &self.conditions {
            condition::set(&mut status.conditions, verdict, generation, now);
        }
        status.pending_update.clone_from(&self.pending_update);
        if let Some(stamp) = &self.stamp {
            stamp.apply(status);
        }
        if self.last_update.is_some() {
            status.last_update.clone_from(&self.last_update);
        }
        status.blocked.clone_from(&self.blocked);
        if self.claim.is_some() {
            status.data_claim.clone_from(&self.claim);
        }
        status.resolved_state_syncers.clone_from(&self.witnesses);
        status.observed_generation = Some(status.observed_generation.unwrap_or(0).max(generation));
    }
}

pub(super) fn drift_is(
    status: ConditionStatus,
    reason: Reason,
    message: impl Into<String>,
) -> Verdict {
    Verdict::new(ConditionType::PodTemplateDrift, status, reason, message)
}

fn update_is(status: ConditionStatus, reason: Reason, message: impl Into<String>) -> Verdict {
    Verdict::new(ConditionType::NodeUpdateInProgress, status, reason, message)
}

impl Stamp {
    /// Records what was observed running. These fields change nowhere else.
    pub fn apply(&self, status: &mut SeiNodeStatus) {
        status.current_image = Some(self.image.clone());
        status.current_sidecar_image = Some(self.sidecar_image.clone());
        status.pod_template_hash = Some(self.hash.clone());
        status.pod_template = Some(self.template.clone());
    }
}

/// Moves a node to a phase; the time moves only if the phase does.
pub(crate) fn enter(status: &mut SeiNodeStatus, phase: SeiNodePhase, now: Timestamp) {
    if status.phase != Some(phase) {
        status.phase = Some(phase);
        status.phase_transition_time = Some(Time(now));
    }
}
