//! One pass over a node, as a conversation: the pass asks, the shell performs and returns outcomes.
//!
//! The order is always the same: add the finalizer, decide, repair, step the current task, decide
//! again on what that brought, write the status once. Of a node with `sei.io/hands-off` only the last
//! is done. A pass executes only the plan that was stored
//! when it began, so after a crash at any point the stored plan shows what was about to happen.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sei_api::SeiNode;
use sei_api::condition::{ConditionType, Reason, find};
use sei_api::names::NODE_FINALIZER;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::{Blocked, SeiNodePhase, SeiNodeStatus};
use sei_api::task::TaskType;
use serde_json::Value;

use deferral::has_replayed;
pub use deferral::is_deferrable;

use crate::adoption::{Comparison, compare, template_of_revision};
use crate::budget::Roll;
use crate::endpoint::endpoint;
use crate::executor::{self, Progress};
use crate::hands_off::is_hands_off;
use crate::planner::{self, Decision, Note, repair};
use crate::request::{Failure, Outcome, Purpose, Read, Request};
use crate::seen::{PodTry, Reading, Seen};
use crate::shared::Shared;
use crate::snapshot::{Claim, Current, Sidecar, Snapshot};
use crate::start_check::{StartCheck, Verdict};
use crate::tasks::{Next, Waiting, in_bootstrap, kind_of, pre_pull, step, takes_a_key};

/// More requests than any pass needs; past it the answers of the cluster change in circles.
pub(crate) const REQUESTS_MAX: usize = 64;

/// How long progress may stay unwritten.
pub const DEFER_MAX: Duration = Duration::from_secs(5);

/// What the pass asks of the shell.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Perform this and return its outcome.
    Perform(Shared<Request>),
    /// Write this status with the resourceVersion of the node, and return the written node.
    Write(Box<SeiNodeStatus>),
    Done(Box<Ending>),
}

/// How a pass ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ending {
    pub report: Vec<Note>,
    pub requeue: Option<Duration>,
    pub waiting: Option<Waiting>,
    /// Progress that is not written yet: the next pass begins with it.
    pub deferred: Option<Box<SeiNodeStatus>>,
    /// Another client wrote the node since it was read; everything has to be read again.
    pub is_stale: bool,
    /// The node no longer has our finalizer: nothing of it is kept.
    pub is_released: bool,
    /// The claim that the deletion of the node has left behind.
    pub retained_claim: Option<String>,
    /// This pass has opened the readiness gate of the node's pod.
    pub opened_gate: bool,
    /// Conflicts in a row on deleting the node's pod.
    pub delete_conflicts: u32,
    /// A call failed that nothing can be decided without.
    pub failure: Option<Failure>,
}

/// What earlier passes leave to the next one, in memory. All of it can be lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// How long the progress in the snapshot's status has been unwritten.
    pub deferred_for: Duration,
    /// Conflicts in a row on deleting the node's pod.
    pub delete_conflicts: u32,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    AddFinalizer,
    ReadClaim,
    ReadKey,
    Decide,
    Repair(Vec<Request>),
    Step,
    DecideAgain,
    Write,
    End,
}

/// A question that the pass needs answered before its stage can continue.
#[derive(Clone, Debug)]
enum Question {
    /// What the running pod was made from; the body of its revision once that is read.
    Compare {
        pod_uid: String,
        revision: Option<Value>,
    },
    Slot(Roll),
    /// Whether a start is allowed.
    Start(Box<StartCheck>),
}

/// A pass over one node.
#[derive(Clone, Debug)]
pub struct Pass {
    snapshot: Snapshot,
    seen: Seen,
    /// Id of the plan that was stored when the pass began: the only one that may be executed.
    stored_plan: Option<String>,
    /// How long the progress that the pass began with has been unwritten.
    deferred_for: Duration,
    stage: Stage,
    question: Option<Question>,
    pending: Option<Shared<Request>>,
    requests: usize,
    waiting: Option<Waiting>,
    /// What a failed repair waits for; it stops no plan.
    repair_waits: Option<Waiting>,
    /// The pod whose template the server could not compare this time.
    uncompared: Option<String>,
    retry: Option<Duration>,
    ending: Ending,
}

impl Pass {
    /// Begins a pass on a snapshot. Its status is the stored one, or ahead of that by progress that an
    /// earlier pass did not write.
    pub fn begin(mut snapshot: Snapshot, carried: Carried) -> Self {
        let stored = snapshot.node.status.as_ref();
        let active = stored.and_then(|status| status.plan.as_ref()).filter(|plan| plan.is_active());
        let stored_plan = active.and_then(|plan| plan.id.clone());
        snapshot.record_facts();
        let stage = match () {
            () if is_hands_off(&snapshot.node) => Stage::Write,
            () if has_finalizer(&snapshot.node) => Stage::ReadClaim,
            () => Stage::AddFinalizer,
        };
        let report = if stage == Stage::Write { vec![Note::HandsOff] } else { Vec::new() };
        let mut seen = seen_in(&snapshot);
        seen.delete_conflicts = carried.delete_conflicts;
        Self {
            snapshot,
            seen,
            stored_plan,
            deferred_for: carried.deferred_for,
            stage,
            question: None,
            pending: None,
            requests: 0,
            waiting: None,
            repair_waits: None,
            uncompared: None,
            retry: None,
            ending: Ending { report, ..Ending::default() },
        }
    }

    /// The node as it was last read or written.
    pub fn node(&self) -> &Shared<SeiNode> {
        &self.snapshot.node
    }

    /// Why the request or write that the pass asks for is made.
    pub fn purpose(&self) -> Purpose {
        let status = &self.snapshot.status;
        let plan = status.plan.as_ref().filter(|plan| plan.is_active());
        let task = plan.and_then(|plan| plan.current()).map(|(_, task)| task.r#type.clone());
        let of_plan =
            Purpose { plan: plan.and_then(|plan| plan.id.clone()), task, why: String::new() };
        match (&self.stage, plan) {
            (Stage::Repair(_), _) => Purpose {
                why: "repairs a difference from the spec".to_owned(),
                ..Purpose::default()
            },
            (Stage::Step | Stage::DecideAgain, Some(plan)) => {
                Purpose { why: plan_purpose(plan, status), ..of_plan }
            }
            (Stage::Write | Stage::End, _) => {
                let report: Vec<_> = self.ending.report.iter().map(ToString::to_string).collect();
                Purpose { why: report.join("; "), ..of_plan }
            }
            _ => Purpose { why: "begins to manage the node".to_owned(), ..Purpose::default() },
        }
    }

    /// Whether the shell must hold the start lock for the next request: between the checks for
    /// other signers and the write that starts this one no other signer may start.
    pub fn is_exclusive(&self) -> bool {
        matches!(&self.question, Some(Question::Start(check)) if check.is_exclusive())
    }

    /// What is to be done next.
    pub fn ask(&mut self) -> Ask {
        if let Some(request) = &self.pending {
            // Nothing is decided while a request is in flight.
            return Ask::Perform(request.clone());
        }
        if let Some(request) = self.answer_question() {
            return self.perform(request);
        }
        loop {
            match &mut self.stage {
                Stage::AddFinalizer => {
                    let mut finalizers =
                        self.snapshot.node.metadata.finalizers.clone().unwrap_or_default();
                    finalizers.push(NODE_FINALIZER.to_owned());
                    let resource_version = self.snapshot.node.metadata.resource_version.clone();
                    return self.perform(Request::PatchFinalizers { resource_version, finalizers });
                }
                Stage::ReadClaim => {
                    self.stage = Stage::ReadKey;
                    if let Some(name) = self.unproved_claim() {
                        return self.perform(Request::Read(Read::Claim(name)));
                    }
                }
                Stage::ReadKey => {
                    self.stage = Stage::Decide;
                    if let Some(read) = self.unknown_key().or_else(|| self.released_key()) {
                        return self.perform(Request::Read(read));
                    }
                }
                Stage::Decide => {
                    let blocked = BlockedBefore::of(&self.snapshot.status);
                    let foreign = repair::foreign(&self.snapshot);
                    if blocked.plan.is_none() {
                        // Without a plan and without a repair it is not decided again.
                        self.repair_waits.clone_from(&foreign);
                    }
                    if let Some(request) = self.decide() {
                        return self.perform(request);
                    }
                    blocked.keep(&mut self.snapshot.status);
                    let unneeded = pre_pull::unneeded(&self.snapshot);
                    let repairs = repair::repairs(&self.snapshot);
                    self.stage = Stage::Repair(unneeded.into_iter().chain(repairs).collect());
                    self.repair_waits = foreign;
                }
                Stage::Repair(writes) if writes.is_empty() => self.stage = Stage::Step,
                Stage::Repair(writes) => {
                    let write = writes.remove(0);
                    return self.perform_checked(write);
                }
                Stage::Step => match self.step() {
                    Some(request) => return self.perform_checked(request),
                    None => self.stage = Stage::DecideAgain,
                },
                Stage::DecideAgain => {
                    self.stage = Stage::Write;
                    if self.has_news()
                        && let Some(request) = self.decide()
                    {
                        self.stage = Stage::DecideAgain;
                        return self.perform(request);
                    }
                }
                Stage::Write => {
                    self.stage = Stage::End;
                    if let Some(status) = self.status_to_write() {
                        return Ask::Write(Box::new(status));
                    }
                }
                Stage::End => return self.done(),
            }
        }
    }

    fn done(&mut self) -> Ask {
        self.ending.waiting = self.waiting.take().or(self.repair_waits.take());
        self.ending.delete_conflicts = self.seen.delete_conflicts;
        Ask::Done(Box::new(std::mem::take(&mut self.ending)))
    }

    /// The status, if it has to be written now.
    fn status_to_write(&mut self) -> Option<SeiNodeStatus> {
        // A node that runs has its endpoint in the same write as the phase.
        if self.snapshot.status.phase == Some(SeiNodePhase::Running)
            && let Some(endpoint) = endpoint(&self.snapshot.node)
        {
            self.snapshot.status.endpoint = Some(endpoint);
        }
        planner::ready::record(&mut self.snapshot);
        let none = SeiNodeStatus::default();
        let stored = self.snapshot.node.status.as_ref().unwrap_or(&none);
        if self.snapshot.status == *stored {
            return None;
        }
        if is_deferrable(stored, &self.snapshot.status) && self.deferred_for < DEFER_MAX {
            self.ending.deferred = Some(Box::new(self.snapshot.status.clone()));
            requeue_within(&mut self.ending, DEFER_MAX.saturating_sub(self.deferred_for));
            return None;
        }
        // What is stored now may be what the next step waits for: a plan, a signing identity, the end
        // of a replay. The watch event of our own write enqueues nothing.
        self.ending.requeue = Some(Duration::ZERO);
        Some(self.snapshot.status.clone())
    }

    /// Whether anything happened since the last decision that could change it.
    fn has_news(&self) -> bool {
        self.requests > 0 || self.snapshot.status.plan.as_ref().is_some_and(TaskPlan::is_active)
    }

    /// Takes in the outcome of what was asked for.
    pub fn absorb(&mut self, outcome: Outcome) {
        let Some(request) = self.pending.take() else { return self.absorb_write(outcome) };
        if self.question.is_some() {
            return self.absorb_answer(request, outcome);
        }
        match (&self.stage, outcome) {
            (Stage::AddFinalizer, outcome) => self.absorb_finalizer(outcome),
            (Stage::ReadKey, Outcome::Claim(found)) => {
                self.snapshot.claim = found.map_or(Claim::Missing, Claim::Present);
                self.snapshot.record_claim();
                let present = self.snapshot.statefulset.as_ref().and_then(|set| set.replicas);
                self.seen.replicas = repair::desired_replicas(&self.snapshot, present);
            }
            // The claim could not be read; the decision takes it for unknown.
            (Stage::ReadKey, _) => self.snapshot.claim = Claim::Unknown,
            (Stage::Decide, outcome) => {
                self.absorb_key(&request, outcome);
            }
            (Stage::Repair(_), outcome) => self.absorb_repair(&request, outcome),
            (_, outcome) => self.absorb_step(&request, outcome),
        }
    }

    /// The status was written: the node has another version, and the rest of the pass none to write.
    fn absorb_write(&mut self, outcome: Outcome) {
        if let Outcome::Node(Some(node)) = outcome {
            self.snapshot.node = Shared::new(*node);
        }
    }

    fn absorb_finalizer(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Node(Some(node)) => {
                self.snapshot.node = Shared::new(*node);
                self.stage = Stage::ReadClaim;
            }
            Outcome::Failed(Failure::Conflict(_) | Failure::NotFound(_)) => {
                self.ending.is_stale = true;
                self.stage = Stage::End;
            }
            Outcome::Failed(failure) => {
                self.ending.failure = Some(failure);
                self.stage = Stage::End;
            }
            _ => self.stage = Stage::End,
        }
    }

    fn absorb_repair(&mut self, request: &Request, outcome: Outcome) {
        match outcome {
            Outcome::StatefulSet(found) => {
                self.snapshot.statefulset = found;
                if self.snapshot.statefulset.is_some() {
                    // All else was repaired before it was read.
                    self.snapshot.current = Current {
                        template: self.snapshot.compare_template(),
                        ..Current::default()
                    };
                    self.stage = Stage::Repair(repair::repairs(&self.snapshot));
                }
            }
            Outcome::Service(found) => {
                self.snapshot.service = found;
                self.repair_found(repair::service(&self.snapshot));
            }
            Outcome::ConfigMap(found) => {
                self.snapshot.proxy_config = found;
                self.repair_found(repair::proxy_config(&self.snapshot));
            }
            // A repair's own write is no task's apply.
            Outcome::Applied(view) => {
                self.snapshot.statefulset = Some(view);
                self.seen.statefulset = Reading::Unread;
            }
            // The snapshot keeps what was repaired: the next decision still has to report it.
            Outcome::Patched(view) => self.seen.statefulset = Reading::Live(Some(view)),
            outcome => {
                if matches!(request, Request::DeletePrePull { .. }) {
                    self.snapshot.pre_pull = None;
                }
                if let Outcome::Failed(failure) = &outcome {
                    self.repair_failed(request, failure);
                }
                self.seen.absorb(request, outcome);
                self.seen.failure = None;
                self.seen.accepted.clear();
            }
        }
    }

    fn absorb_step(&mut self, request: &Request, outcome: Outcome) {
        executor::record_call(&mut self.snapshot.status, request, &outcome, self.snapshot.now);
        self.seen.absorb(request, outcome);
    }

    /// Repairs an object that the cache does not show, unless it is not the node's.
    fn repair_found(&mut self, write: Option<Request>) {
        self.repair_waits = self.repair_waits.take().or(repair::foreign(&self.snapshot));
        if let (Some(write), Stage::Repair(writes)) = (write, &mut self.stage) {
            writes.insert(0, write);
        }
    }

    /// No watch reports what a repair was about, so it is tried again by the clock.
    fn repair_failed(&mut self, request: &Request, failure: &Failure) {
        self.repair_waits = self.repair_waits.take().or(refused(failure));
        if let (Failure::AlreadyExists, Stage::Repair(writes)) = (failure, &mut self.stage) {
            // The watch selects by label, so it does not show an object without our labels.
            writes.insert(
                0,
                Request::Read(match request {
                    Request::CreateService(_) => Read::Service,
                    Request::CreateConfigMap(_) => Read::ConfigMap,
                    _ => Read::StatefulSet,
                }),
            );
        }
        let poll = self.snapshot.timing.poll();
        self.retry_within(match failure {
            Failure::AlreadyExists
            | Failure::FieldManagerConflict(_)
            | Failure::Forbidden(_)
            | Failure::Rejected(_)
            | Failure::NamespaceTerminating(_) => poll * 6,
            _ => poll,
        });
    }

    fn retry_within(&mut self, pause: Duration) {
        self.retry = Some(self.retry.map_or(pause, |retry| retry.min(pause)));
    }

    /// The next request of an open question. `None`: there is none, or it was answered.
    fn answer_question(&mut self) -> Option<Request> {
        match self.question.as_ref()? {
            Question::Slot(roll) => Some(Request::TakeSlot(*roll)),
            Question::Start(check) => match check.next() {
                Verdict::Read(read) => Some(Request::Read(read)),
                Verdict::Allowed(request) => Some(request),
            },
            Question::Compare { pod_uid, revision: None } => {
                let pod = self.snapshot.pods().find(|pod| pod.uid == *pod_uid);
                let name = pod.and_then(|pod| pod.revision.clone());
                Some(Request::Read(Read::Revision(name.unwrap_or_default())))
            }
            Question::Compare { revision: Some(_), .. } => {
                let desired = self.snapshot.desired.as_ref().ok()?;
                Some(Request::DryRunStatefulSet(Box::new(desired.statefulset.unpack())))
            }
        }
    }

    fn absorb_answer(&mut self, request: Shared<Request>, outcome: Outcome) {
        match self.question.take() {
            Some(Question::Slot(_)) => {
                if let Outcome::Slot(slot) = outcome {
                    self.snapshot.slot = Some(slot);
                }
            }
            Some(Question::Compare { pod_uid, revision }) => {
                if let Err(failure) = self.absorb_comparison(&pod_uid, revision, outcome) {
                    self.uncompared = Some(pod_uid);
                    self.repair_waits = self.repair_waits.take().or(refused(&failure));
                    self.retry_within(self.snapshot.timing.poll() * 6);
                }
            }
            Some(Question::Start(check)) if *check.request() == *request => {
                self.pending = Some(request);
                self.absorb(outcome);
            }
            Some(Question::Start(mut check)) => match check.absorb(&self.snapshot.node, outcome) {
                Ok(()) => self.question = Some(Question::Start(check)),
                Err(failure) => {
                    if let Some(identity) = check.identity() {
                        self.snapshot.status.signing_identity = Some(identity.clone());
                    }
                    self.refuse_start(check.request().clone(), failure);
                }
            },
            None => {}
        }
    }

    fn absorb_comparison(
        &mut self,
        pod_uid: &str,
        revision: Option<Value>,
        outcome: Outcome,
    ) -> Result<(), Failure> {
        let missing = |what: &str| Failure::Indeterminate(format!("{what} was not found"));
        match (revision, outcome) {
            (_, Outcome::Failed(failure)) => Err(failure),
            (None, Outcome::Revision(None)) => {
                self.snapshot.adoption = Some((pod_uid.to_owned(), Comparison::NoRevision));
                Ok(())
            }
            (None, Outcome::Revision(Some(body))) => {
                let body = template_of_revision(&body)
                    .map_err(|error| Failure::Indeterminate(error.to_string()))?;
                let pod_uid = pod_uid.to_owned();
                self.question = Some(Question::Compare { pod_uid, revision: Some(body) });
                Ok(())
            }
            (Some(body), Outcome::DryRun(tried)) => {
                let Ok(desired) = &self.snapshot.desired else { return Ok(()) };
                let comparison = compare(&desired.template(), &tried, &body);
                self.snapshot.adoption = Some((pod_uid.to_owned(), comparison));
                Ok(())
            }
            _ => Err(missing("an answer to the comparison")),
        }
    }

    fn refuse_start(&mut self, request: Request, failure: Failure) {
        self.pending = Some(request.into());
        self.absorb(Outcome::Failed(failure));
    }

    /// Whether this request lets a pod start, or lets one sign that did not: of nodes with one key
    /// or volume only one may do so.
    fn starts(&self, request: &Request) -> bool {
        match request {
            Request::ApplyStatefulSet(object) => {
                takes_a_key(object, self.snapshot.own_statefulset())
            }
            // Two pods on one volume corrupt it; the Job has no key.
            Request::CreateJob(_) => self.snapshot.node.spec.imported_claim().is_some(),
            Request::CreateStatefulSet(_) => true,
            Request::PatchStatefulSet(patch) => {
                let present = self.snapshot.own_statefulset().and_then(|set| set.replicas);
                patch["spec"]["replicas"] == 1 && present.is_none_or(|present| present < 1)
            }
            _ => false,
        }
    }

    fn perform(&mut self, request: Request) -> Ask {
        self.requests += 1;
        let request = Shared::new(request);
        self.pending = Some(request.clone());
        Ask::Perform(request)
    }

    /// Performs a write, after the checks that a start needs.
    fn perform_checked(&mut self, request: Request) -> Ask {
        if !self.starts(&request) {
            return self.perform(request);
        }
        if let Some(message) = self.snapshot.signing_conflict.clone() {
            // The caches already show it: nothing is read.
            self.retry_within(self.snapshot.timing.poll());
            let reason = Reason::SigningKeyConflict;
            self.refuse_start(request, Failure::NotStarted { reason, message });
            return self.ask();
        }
        let check = StartCheck::new(&self.snapshot.node, request);
        self.question = Some(Question::Start(Box::new(check)));
        let first = self.answer_question().expect("a start check begins with a read");
        self.perform(first)
    }

    /// Decides, and applies the decision to the status. Returns what must be asked first.
    fn decide(&mut self) -> Option<Request> {
        self.snapshot.waiting = self.reported_wait().cloned();
        let decision = planner::plan(&self.snapshot);
        if let Some(uid) = &decision.compare {
            let known = self.snapshot.adoption.as_ref().is_some_and(|(known, _)| known == uid);
            if !known && self.uncompared.as_ref() != Some(uid) {
                self.question = Some(Question::Compare { pod_uid: uid.clone(), revision: None });
                return self.answer_question();
            }
        }
        if let Some(roll) = decision.asks_slot
            && self.snapshot.slot.is_none()
        {
            self.question = Some(Question::Slot(roll));
            return self.answer_question();
        }
        self.take(decision);
        None
    }

    fn take(&mut self, decision: Decision) {
        let generation = self.snapshot.generation();
        decision.apply(&mut self.snapshot.status, generation, self.snapshot.now);
        self.ending.requeue = [decision.requeue, self.retry].into_iter().flatten().min();
        self.ending.report = decision.report;
    }

    /// Steps the stored plan as far as it goes; returns the request it needs next.
    fn step(&mut self) -> Option<Request> {
        loop {
            let status = &self.snapshot.status;
            let plan = status.plan.as_ref().filter(|plan| plan.is_active())?;
            let stored = plan.id.is_some() && plan.id == self.stored_plan;
            let stopped = self.snapshot.node.spec.is_paused() && !is_allowed_while_stopped(plan);
            let frozen = stopped || status.adopted_workflow.is_some();
            if !stored || frozen || self.waiting.is_some() {
                return None;
            }
            let before = self.snapshot.node.status.as_ref();
            self.seen.stored.identity = before.and_then(|stored| stored.signing_identity.as_ref())
                == status.signing_identity.as_ref();
            self.seen.stored.replay =
                before.and_then(|stored| stored.plan.as_ref()).is_some_and(has_replayed);
            // The step reads the working status; it is moved there and back, not copied, and the
            // stored status is not copied to make room for it.
            if self.seen.node.is_same(&self.snapshot.node) {
                let SeiNode { metadata, spec, status: _ } = &*self.snapshot.node;
                let (metadata, spec) = (metadata.clone(), spec.clone());
                self.seen.node = Shared::new(SeiNode { metadata, spec, status: None });
            }
            self.seen.node.status = Some(std::mem::take(&mut self.snapshot.status));
            let status = self.seen.node.status.as_ref();
            let plan = status.and_then(|status| status.plan.as_ref());
            let next = plan.and_then(|plan| step(plan, &self.seen));
            self.snapshot.status = self.seen.node.status.take().unwrap_or_default();
            let Some(next) = next else {
                executor::finish(&mut self.snapshot.status, self.snapshot.now);
                return None;
            };
            if let Next::Request(request) = next {
                if self.requests >= REQUESTS_MAX {
                    let message = "the cluster's answers change faster than they can be used";
                    let again = Some(self.snapshot.timing.poll());
                    let message = message.to_owned();
                    self.waiting = Some(Waiting { message, again, ..Waiting::default() });
                    return None;
                }
                return Some(*request);
            }
            if !self.record(next) {
                return None;
            }
        }
    }

    /// Records a step in the status. False: the plan does not continue in this pass.
    fn record(&mut self, next: Next) -> bool {
        let plan = self.snapshot.status.plan.as_ref();
        let opens_gate = matches!(next, Next::Done(_)) && plan.is_some_and(opens_gate);
        let generation = self.snapshot.generation();
        let (now, timing) = (self.snapshot.now, self.snapshot.timing);
        let progress = executor::record(&mut self.snapshot.status, next, generation, now, timing);
        if opens_gate {
            // The sidecar has confirmed it; the last probe is older than that.
            self.snapshot.sidecar = Sidecar::Ready;
            self.ending.opened_gate = true;
        }
        match progress {
            // A task that is retried is stepped again: it waits, and reports why.
            Progress::Continue | Progress::Retrying(_) => {
                self.seen.failure = None;
                self.seen.applied = None;
                true
            }
            Progress::Waiting(waiting) => {
                self.waiting = Some(waiting);
                false
            }
            Progress::Complete | Progress::Failed => false,
        }
    }
}

/// What a plan is for. The condition of an update has the difference that caused it.
fn plan_purpose(plan: &TaskPlan, status: &SeiNodeStatus) -> String {
    let purpose = match kind_of(plan) {
        PlanKind::Init => "starts the node",
        PlanKind::MarkReady => "opens the gate of the running pod",
        PlanKind::ApplyTemplate => "sets the template of the next pod",
        PlanKind::NodeUpdate => {
            let update = find(&status.conditions, ConditionType::NodeUpdateInProgress);
            update.map_or("updates the node", |update| update.message.as_str())
        }
    };
    purpose.to_owned()
}

fn requeue_within(ending: &mut Ending, pause: Duration) {
    ending.requeue = Some(ending.requeue.map_or(pause, |requeue| requeue.min(pause)));
}

fn has_finalizer(node: &SeiNode) -> bool {
    node.metadata.finalizers.iter().flatten().any(|name| name == NODE_FINALIZER)
}

/// What the steps of tasks see when a pass begins.
fn seen_in(snapshot: &Snapshot) -> Seen {
    let desired = snapshot.desired.clone().unwrap_or_default();
    let mut seen = Seen::new(snapshot.node.clone(), desired, snapshot.now);
    seen.timing = snapshot.timing;
    if snapshot.rollout.checks_pods {
        seen.pod_try = PodTry::Due;
    }
    seen.pre_pulls = snapshot.rollout.pre_pulls;
    seen.pre_pull = Reading::Cached(snapshot.pre_pull.clone());
    seen.pulls.clone_from(&snapshot.pulls);
    seen.operator_version.clone_from(&snapshot.operator_version);
    seen.statefulset = Reading::Cached(snapshot.statefulset.clone());
    seen.pods = Reading::Cached(Some(snapshot.pods.clone()));
    let present = snapshot.statefulset.as_ref().and_then(|set| set.replicas);
    seen.replicas = repair::desired_replicas(snapshot, present);
    seen.service = Reading::Cached(snapshot.service.clone());
    seen.config_map = Reading::Cached(snapshot.proxy_config.clone());
    if snapshot.sidecar == Sidecar::Ready {
        seen.open_gate = snapshot.pod().map(|pod| pod.uid.clone());
    }
    seen.service_is_current = snapshot.current.service;
    seen.proxy_config_is_current = snapshot.current.proxy_config;
    seen
}

/// What blocked an active plan before its current task was stepped. Until then it is not known
/// whether the task still waits, so the record and its start stay.
struct BlockedBefore {
    plan: Option<String>,
    blocked: Option<Blocked>,
    stalled: Option<Condition>,
}

impl BlockedBefore {
    fn of(status: &SeiNodeStatus) -> Self {
        let plan = active_id(status).map(str::to_owned);
        if plan.is_none() {
            return Self { plan, blocked: None, stalled: None };
        }
        let stalled = status.conditions.iter().find(|condition| is_stalled(condition)).cloned();
        Self { plan, blocked: status.blocked.clone(), stalled }
    }

    fn keep(self, status: &mut SeiNodeStatus) {
        if self.plan.is_none() || self.plan.as_deref() != active_id(status) {
            return;
        }
        status.blocked = self.blocked;
        let now = status.conditions.iter_mut().find(|condition| is_stalled(condition));
        if let (Some(before), Some(now)) = (self.stalled, now) {
            *now = before;
        }
    }
}

fn active_id(status: &SeiNodeStatus) -> Option<&str> {
    status.plan.as_ref().filter(|plan| plan.is_active())?.id.as_deref()
}

fn is_stalled(condition: &Condition) -> bool {
    condition.type_ == ConditionType::Stalled.as_str()
}

/// Whether the current task opens the gate of the node's own pod.
fn opens_gate(plan: &TaskPlan) -> bool {
    !in_bootstrap(plan) && plan.current().is_some_and(|(_, task)| task.is(TaskType::MarkReady))
}

/// A stopped node still takes the template for its next start.
fn is_allowed_while_stopped(plan: &TaskPlan) -> bool {
    plan.kind == Some(PlanKind::ApplyTemplate)
}

/// What a refused call outside of a plan is reported as.
fn refused(failure: &Failure) -> Option<Waiting> {
    let (reason, text) = match failure {
        Failure::NotFound(_) | Failure::Conflict(_) | Failure::AlreadyExists => return None,
        Failure::FieldManagerConflict(text) => (Some(Reason::FieldConflict), text),
        Failure::Forbidden(text) => (Some(Reason::Forbidden), text),
        Failure::Rejected(text) | Failure::NamespaceTerminating(text) => {
            (Some(Reason::ApplyRejected), text)
        }
        Failure::NotStarted { reason, message } => (Some(*reason), message),
        Failure::Indeterminate(text)
        | Failure::Unreachable(text)
        | Failure::Unauthorized(text)
        | Failure::TaskRefused(text) => (None, text),
    };
    Some(Waiting { reason, message: crate::tasks::bounded(text), ..Waiting::default() })
}

mod deferral;
mod facts;
#[cfg(test)]
mod tests;
