//! One pass over a node, as a conversation: the pass asks, the shell performs and tells.
//!
//! The order is always the same: decide, repair, step the current task, decide again on what that
//! brought, write the status once. Nothing is executed of a plan that was not stored when the pass
//! began, so whatever happens to the operator, somebody can read what it was about to do.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sei_api::condition::{ConditionType, Reason};
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_api::task::TaskType;

use crate::adoption::Comparison;
use crate::endpoint::endpoint;
use crate::executor::{self, Progress};
use crate::observation::{Observation, Sidecar, Slot};
use crate::planner::repair::{self, Others};
use crate::planner::{self, Decision, Note};
use crate::request::{Failure, Outcome, Read, Request, SidecarCall};
use crate::seen::{PodTry, Reading, Seen};
use crate::tasks::sidecar::attempt_id;
use crate::tasks::{Next, Waiting, in_bootstrap, step, takes_a_key};

/// More requests than any pass needs; past it something answers in circles.
const REQUESTS_MAX: usize = 64;

/// What the pass asks of the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Perform this and tell the outcome.
    Perform(Box<Request>),
    /// Let the server judge what this pod was made from, and tell the comparison.
    Judge {
        pod_uid: String,
    },
    /// Ask the chain's budget for a slot, and tell its answer.
    Slot,
    /// Write this status, with the resourceVersion that the pass began with.
    Write(Box<SeiNodeStatus>),
    End(Box<Ending>),
}

/// How a pass ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ending {
    pub report: Vec<Note>,
    pub wake: Option<Duration>,
    pub waiting: Option<Waiting>,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    Decide,
    Repair(Vec<Request>),
    Step,
    DecideAgain,
    Write,
    End,
}

/// A pass over one node.
#[derive(Clone, Debug)]
pub struct Pass {
    observation: Observation,
    seen: Seen,
    others: Others,
    /// The status as it is stored.
    before: SeiNodeStatus,
    status: SeiNodeStatus,
    /// Id of the plan that was stored when the pass began: the only one that may be executed.
    stored_plan: Option<String>,
    stage: Stage,
    pending: Option<Request>,
    requests: usize,
    waiting: Option<Waiting>,
    /// What a failed repair waits for; it stops no plan.
    repair_waits: Option<Waiting>,
    /// The pod that the server could not judge this time.
    unjudged: Option<String>,
    retry: Option<Duration>,
    opened_gate: bool,
    ending: Ending,
}

impl Pass {
    /// Begins a pass on what was observed. `others` says what caches know of the node's Service and
    /// proxy configuration, `delete_conflicts` how often in a row its pod's deletion met a conflict.
    pub fn begin(observation: Observation, others: Others, delete_conflicts: u32) -> Self {
        let before = observation.status().clone();
        Self::resume(observation, before, others, delete_conflicts)
    }

    /// As [`Pass::begin`], where the status in the observation is ahead of the stored one: an
    /// earlier pass kept its progress to itself (see [`is_deferrable`]).
    pub fn resume(
        observation: Observation,
        before: SeiNodeStatus,
        others: Others,
        delete_conflicts: u32,
    ) -> Self {
        let status = observation.status().clone();
        let active = before.plan.as_ref().filter(|plan| plan.is_active());
        let desired = observation.desired.clone().unwrap_or_default();
        let mut seen = Seen::new(observation.node.clone(), desired, observation.now);
        seen.timing = observation.timing;
        if observation.rollout.checks_pods {
            seen.pod_try = PodTry::Due;
        }
        seen.operator_version.clone_from(&observation.operator_version);
        seen.statefulset = Reading::Cached(observation.statefulset.clone());
        seen.pods = Reading::Cached(Some(observation.pods.clone()));
        let present = observation.statefulset.as_ref().and_then(|one| one.replicas);
        seen.replicas = repair::desired_replicas(&observation, present);
        seen.service_is_current = others.service_is_current;
        seen.proxy_config_is_current = others.proxy_config_is_current;
        seen.delete_conflicts = delete_conflicts;
        Self {
            stored_plan: active.and_then(|plan| plan.id.clone()),
            status,
            before,
            observation,
            seen,
            others,
            stage: Stage::Decide,
            pending: None,
            requests: 0,
            waiting: None,
            repair_waits: None,
            unjudged: None,
            retry: None,
            opened_gate: false,
            ending: Ending::default(),
        }
    }

    /// What is to be done next.
    pub fn ask(&mut self) -> Ask {
        loop {
            match self.stage.clone() {
                Stage::Decide => {
                    let before = self.status.clone();
                    if let Some(ask) = self.decide() {
                        return ask;
                    }
                    self.keep_what_blocks(&before);
                    self.stage = Stage::Repair(repair::repairs(&self.observation, self.others));
                }
                Stage::Repair(mut writes) => {
                    if writes.is_empty() {
                        self.stage = Stage::Step;
                    } else {
                        let write = writes.remove(0);
                        self.stage = Stage::Repair(writes);
                        return self.perform(write);
                    }
                }
                Stage::Step => match self.step() {
                    Some(request) => return self.perform(request),
                    None => self.stage = Stage::DecideAgain,
                },
                Stage::DecideAgain => {
                    self.stage = Stage::Write;
                    if let Some(ask) = self.decide() {
                        self.stage = Stage::DecideAgain;
                        return ask;
                    }
                }
                Stage::Write => {
                    self.stage = Stage::End;
                    self.tell_endpoint();
                    if self.status != self.before {
                        return Ask::Write(Box::new(self.status.clone()));
                    }
                }
                Stage::End => {
                    self.ending.waiting = self.waiting.clone().or(self.repair_waits.clone());
                    return Ask::End(Box::new(self.ending.clone()));
                }
            }
        }
    }

    /// A node that runs says where, in the same write as that it does.
    fn tell_endpoint(&mut self) {
        if self.status.phase == Some(SeiNodePhase::Running)
            && let Some(endpoint) = endpoint(&self.observation.node)
        {
            self.status.endpoint = Some(endpoint);
        }
    }

    /// Takes in the outcome of the request that was asked for.
    pub fn tell(&mut self, outcome: Outcome) {
        let Some(request) = self.pending.take() else { return };
        if let Outcome::Failed(failure) = &outcome
            && matches!(self.stage, Stage::Repair(_))
        {
            self.repair_failed(failure);
        }
        let submitted = matches!(&request, Request::Sidecar(call)
            if matches!(call.call, SidecarCall::Submit { .. }));
        // A record of it proves the same, where whoever submitted it did not live to write so.
        let is_found = matches!(outcome, Outcome::Task(Some(_))) && self.asks_for_current(&request);
        if (submitted && outcome == Outcome::Accepted) || is_found {
            executor::record_submission(&mut self.status, self.observation.now);
        }
        if let (Outcome::StatefulSet(found), Stage::Repair(_)) = (&outcome, &self.stage) {
            self.observation.statefulset = found.as_deref().cloned();
            if found.is_some() {
                // All else was repaired before it was asked for.
                let others = Others { service_is_current: true, proxy_config_is_current: true };
                self.stage = Stage::Repair(repair::repairs(&self.observation, others));
            }
            return;
        }
        if let (Outcome::Applied(view), Stage::Repair(_)) = (&outcome, &self.stage) {
            // A repair's own write is no task's apply.
            self.observation.statefulset = Some((**view).clone());
            self.seen.statefulset = Reading::Unread;
            return;
        }
        self.seen.absorb(&request, outcome);
        if matches!(self.stage, Stage::Repair(_)) {
            self.seen.failure = None;
            self.seen.accepted.clear();
        }
    }

    /// Whether this asks the sidecar for the task that the plan is at.
    fn asks_for_current(&self, request: &Request) -> bool {
        let Request::Sidecar(call) = request else { return false };
        let SidecarCall::Poll { id } = &call.call else { return false };
        let plan = self.status.plan.as_ref().filter(|plan| plan.is_active());
        plan.and_then(|plan| plan.current().map(|(index, task)| attempt_id(plan, index, task)))
            .is_some_and(|current| current == *id)
    }

    /// Nothing else may come to tell of what a repair was about: it is tried again by the clock.
    fn repair_failed(&mut self, failure: &Failure) {
        self.repair_waits = self.repair_waits.take().or(refused(failure));
        if let (Failure::AlreadyExists, Stage::Repair(writes)) = (failure, &mut self.stage) {
            // Nobody sees it by its labels: somebody took them, or it is another's.
            writes.insert(0, Request::Read(Read::StatefulSet));
        }
        let poll = self.observation.timing.poll();
        let pause = match failure {
            Failure::FieldManagerConflict(_) | Failure::Forbidden(_) | Failure::Rejected(_) => {
                poll * 6
            }
            _ => poll,
        };
        self.retry = Some(self.retry.map_or(pause, |retry| retry.min(pause)));
    }

    /// Takes in the server's judgement of a pod.
    pub fn tell_judgement(&mut self, pod_uid: String, comparison: Comparison) {
        self.observation.adoption = Some((pod_uid, comparison));
    }

    /// Takes in what the chain's budget says. It counts for the rest of this pass.
    pub fn tell_slot(&mut self, slot: Slot) {
        self.observation.slot = Some(slot);
    }

    /// The server could not be asked; the pod stays unjudged for now.
    pub fn judgement_failed(&mut self, pod_uid: String, failure: &Failure) {
        self.unjudged = Some(pod_uid);
        self.repair_waits = self.repair_waits.take().or(refused(failure));
        self.retry = Some(self.observation.timing.poll() * 6);
    }

    /// Whether this request lets a pod start, or lets one sign that did not: of nodes with one key
    /// or volume only one may do so.
    pub fn must_be_alone(&self, request: &Request) -> bool {
        match request {
            Request::ApplyStatefulSet(object) => {
                takes_a_key(object, self.observation.own_statefulset())
            }
            other => other.starts_a_pod(),
        }
    }

    /// Whether this pass has opened the gate of the node's pod.
    pub fn opened_gate(&self) -> bool {
        self.opened_gate
    }

    pub fn delete_conflicts(&self) -> u32 {
        self.seen.delete_conflicts
    }

    fn perform(&mut self, request: Request) -> Ask {
        self.requests += 1;
        self.pending = Some(request.clone());
        Ask::Perform(Box::new(request))
    }

    /// Decides, and applies the decision to the status. Returns what must be known first.
    fn decide(&mut self) -> Option<Ask> {
        self.observation.node.status = Some(self.status.clone());
        self.observation.waiting = self.waiting.clone().or_else(|| self.repair_waits.clone());
        let decision = planner::plan(&self.observation);
        if let Some(uid) = &decision.judge {
            let known = self.observation.adoption.as_ref().is_some_and(|(known, _)| known == uid);
            if !known && self.unjudged.as_ref() != Some(uid) {
                return Some(Ask::Judge { pod_uid: uid.clone() });
            }
        }
        if decision.asks_slot && self.observation.slot.is_none() {
            return Some(Ask::Slot);
        }
        self.take(&decision);
        None
    }

    /// Before the current task was stepped nobody knows whether it still waits. What it was known to
    /// wait for, and since when, stays until then.
    fn keep_what_blocks(&mut self, before: &SeiNodeStatus) {
        let same = |status: &SeiNodeStatus| {
            status.plan.as_ref().filter(|plan| plan.is_active()).and_then(|plan| plan.id.clone())
        };
        if same(before).is_none() || same(before) != same(&self.status) {
            return;
        }
        self.status.blocked.clone_from(&before.blocked);
        let stalled = |one: &Condition| one.type_ == ConditionType::Stalled.as_str();
        let known = before.conditions.iter().find(|one| stalled(one)).cloned();
        if let (Some(known), Some(now)) =
            (known, self.status.conditions.iter_mut().find(|one| stalled(one)))
        {
            *now = known;
        }
        self.observation.node.status = Some(self.status.clone());
    }

    fn take(&mut self, decision: &Decision) {
        let generation = self.observation.generation();
        decision.apply(&mut self.status, generation, self.observation.now);
        self.observation.node.status = Some(self.status.clone());
        self.ending.report.clone_from(&decision.report);
        self.ending.wake = match (decision.wake, self.retry) {
            (Some(wake), Some(retry)) => Some(wake.min(retry)),
            (wake, retry) => wake.or(retry),
        };
    }

    /// Steps the stored plan as far as it goes; returns the request it needs next.
    fn step(&mut self) -> Option<Request> {
        loop {
            let plan = self.status.plan.as_ref().filter(|plan| plan.is_active())?;
            let stored = plan.id.is_some() && plan.id == self.stored_plan;
            let frozen = self.observation.node.spec.is_paused() && !is_allowed_while_stopped(plan);
            if !stored || frozen || self.observation.in_flight || self.waiting.is_some() {
                return None;
            }
            self.seen.node.status = Some(self.status.clone());
            self.seen.stored.identity =
                self.before.signing_identity == self.status.signing_identity;
            self.seen.stored.replay = self.before.plan.as_ref().is_some_and(has_replayed);
            let Some(next) = step(plan, &self.seen) else {
                executor::finish(&mut self.status, self.observation.now);
                return None;
            };
            if let Next::Request(request) = next {
                if self.requests >= REQUESTS_MAX {
                    let message = "the cluster's answers change faster than they can be used";
                    self.waiting =
                        Some(Waiting { message: message.to_owned(), ..Waiting::default() });
                    return None;
                }
                return Some(*request);
            }
            let opens_gate = matches!(next, Next::Done(_)) && opens_gate(plan);
            let generation = self.observation.generation();
            let (now, timing) = (self.observation.now, self.observation.timing);
            let progress = executor::record(&mut self.status, next, generation, now, timing);
            if opens_gate {
                // The sidecar has said so itself; the last probe is older than that.
                self.observation.sidecar = Sidecar::Ready;
                self.opened_gate = true;
            }
            match progress {
                Progress::Continue => {
                    self.seen.failure = None;
                    self.seen.applied = None;
                }
                Progress::Waiting(waiting) => self.waiting = Some(waiting),
                Progress::Retrying(pause) => {
                    self.retry = Some(pause);
                    return None;
                }
                Progress::Complete | Progress::Failed => return None,
            }
        }
    }
}

/// Whether the current task opens the gate of the node's own pod.
fn opens_gate(plan: &TaskPlan) -> bool {
    !in_bootstrap(plan) && plan.current().is_some_and(|(_, task)| task.is(TaskType::MarkReady))
}

/// Whether a status differs from the stored one only in how far its plan has come, and in what
/// follows from that: the sidecar of a pod that is being replaced does not answer.
///
/// Such progress need not be written at once: every task finds its work done when it is run again,
/// so a crash loses nothing, and an update costs two writes instead of ten. How far the bootstrap
/// has come is the exception: the Job that could tell is deleted, and while it counts as being there
/// the node gets no pod of its own.
pub fn is_deferrable(stored: &SeiNodeStatus, status: &SeiNodeStatus) -> bool {
    let (Some(old), Some(new)) = (&stored.plan, &status.plan) else { return false };
    if old.id != new.id || old.phase != new.phase || bootstrap_of(old) != bootstrap_of(new) {
        return false;
    }
    let mut masked = status.clone();
    masked.plan.clone_from(&stored.plan);
    masked.blocked.clone_from(&stored.blocked);
    masked.stateful_set.clone_from(&stored.stateful_set);
    if said(&masked.conditions) == said(&stored.conditions) {
        masked.conditions.clone_from(&stored.conditions);
    }
    masked == *stored
}

/// What conditions say to somebody who acts on them. That a sidecar is away while its pod is being
/// replaced is no news.
fn said(conditions: &[Condition]) -> Vec<(&str, &str, &str)> {
    let told = conditions.iter().filter(|one| one.type_ != ConditionType::SidecarReady.as_str());
    told.map(|one| (one.type_.as_str(), one.status.as_str(), one.reason.as_str())).collect()
}

fn has_replayed(plan: &TaskPlan) -> bool {
    plan.has_completed(TaskType::AwaitBootstrapComplete)
}

/// Whether the Job is known to be complete, and to be gone.
fn bootstrap_of(plan: &TaskPlan) -> (bool, bool) {
    (has_replayed(plan), plan.has_completed(TaskType::TeardownBootstrap))
}

/// A stopped node still takes the template for its next start.
fn is_allowed_while_stopped(plan: &TaskPlan) -> bool {
    plan.kind == Some(PlanKind::ApplyTemplate)
}

/// What a refused call outside of a plan is reported as.
fn refused(failure: &Failure) -> Option<Waiting> {
    let (reason, text) = match failure {
        Failure::NotFound | Failure::Conflict(_) | Failure::AlreadyExists => return None,
        Failure::FieldManagerConflict(text) => (Some(Reason::FieldConflict), text),
        Failure::Forbidden(text) => (Some(Reason::Forbidden), text),
        Failure::Rejected(text) => (Some(Reason::ApplyRejected), text),
        Failure::SigningKey(text) => (Some(Reason::SigningKeyConflict), text),
        Failure::Indeterminate(text) | Failure::Unreachable(text) | Failure::Unauthorized(text) => {
            (None, text)
        }
    };
    Some(Waiting { reason, message: crate::tasks::bounded(text), ..Waiting::default() })
}

#[cfg(test)]
mod tests;
