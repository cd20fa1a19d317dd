//! How far a template has reached the nodes of a fleet, and which node gets it next.
//!
//! Everything is derived from the nodes and the fleet's own status, so that a crash releases no node
//! beyond the limit.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::fleet::{InPlace, NodeState, OnFailure, Order, UpdateStrategy};
use sei_api::status::{SeiNodePhase, SeiNodeStatus, UpdateState};

use crate::hands_off::is_hands_off;
use crate::planner::later;
use crate::platform::Share;

/// The limits of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// How many nodes may be down because of the rollout.
    max_unavailable: usize,
    /// The user holds the rollout.
    is_paused: bool,
    order: Order,
    canaries: usize,
    canary_bake: Duration,
    needs_ready: bool,
    needs_sidecar: bool,
    bake: Duration,
    deadline: Option<Duration>,
    /// What happens after a failure; without limits nothing is held back.
    on_failure: OnFailure,
}

impl Limits {
    /// The limits of a fleet with this many nodes; without any, every node is released at once.
    pub(super) fn of(strategy: &UpdateStrategy, replicas: usize) -> Self {
        let seconds = |value: Option<i32>| {
            Duration::from_secs(u64::try_from(value.unwrap_or(0)).unwrap_or(0))
        };
        let none = InPlace::default();
        let is_limited = strategy.in_place.is_some();
        let rules = strategy.in_place.as_ref().unwrap_or(&none);
        let health = rules.health.clone().unwrap_or_default();
        let canary = rules.canary.clone().unwrap_or_default();
        // What is compared is a canary.
        let compared = i32::from(health.require_same_app_hash == Some(true));
        let canaries = canary.replicas.max(compared);
        Self {
            max_unavailable: rules
                .max_unavailable
                .as_ref()
                .map_or(usize::MAX, |share| at_once(share, replicas)),
            is_paused: strategy.paused == Some(true),
            order: rules.order.unwrap_or_default(),
            canaries: usize::try_from(canaries).unwrap_or(0).min(replicas),
            canary_bake: seconds(Some(canary.bake_seconds)),
            needs_ready: health.require_pod_ready.unwrap_or(true),
            needs_sidecar: health.require_sidecar_ready.unwrap_or(false),
            bake: seconds(health.bake_seconds),
            deadline: rules.progress_deadline_seconds.map(|value| seconds(Some(value))),
            on_failure: match rules.on_failure {
                Some(chosen) => chosen,
                None if is_limited => OnFailure::Halt,
                None => OnFailure::Continue,
            },
        }
    }

    /// How many nodes may be down because of the rollout; `None` without a limit.
    pub(super) fn max_unavailable(&self) -> Option<usize> {
        (self.max_unavailable < usize::MAX).then_some(self.max_unavailable)
    }

    /// How many nodes have to be healthy before others follow.
    pub(super) fn canaries(&self) -> usize {
        self.canaries
    }

    /// Whether others follow when the node at this place is healthy.
    pub(super) fn is_canary(&self, place: usize) -> bool {
        place < self.canaries
    }

    /// How long a node must be healthy before others follow.
    fn bake_of(&self, place: usize) -> Duration {
        if self.is_canary(place) { self.bake.max(self.canary_bake) } else { self.bake }
    }
}

/// How many nodes a number or a percentage of `replicas` is, at least one.
fn at_once(share: &IntOrString, replicas: usize) -> usize {
    let share = match share {
        IntOrString::Int(number) => Share::Nodes(u32::try_from(*number).unwrap_or(1)),
        IntOrString::String(text) => {
            Share::Percent(text.trim_end_matches('%').parse().unwrap_or(1))
        }
    };
    share.of(replicas)
}

/// A node as a part of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) ordinal: usize,
    pub(super) name: String,
    /// Its place in the order of the rollout.
    pub(super) place: usize,
    pub(super) state: NodeState,
    /// It is down or its chain is halted, whatever template it has.
    pub(super) is_down: bool,
    pub(super) comparison: Comparison,
    /// It was down when it got a template, and was not healthy since.
    pub(super) was_down: bool,
    /// Its user keeps everybody from changing it.
    pub(super) is_hands_off: bool,
    pub(super) flight: Flight,
    /// When its state may change although nothing happens.
    pub(super) due: Option<Timestamp>,
    pub(super) message: String,
}

/// Whether a node takes from the limit of the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flight {
    /// It does not: it is healthy, or it is down for another reason.
    No,
    /// It does: it is not healthy because it got a template, this one or an earlier one.
    Yes,
    /// It does, by an earlier template: this one costs nothing more.
    Taken,
}

/// How the app hash of a node compares with that of a node without the template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    /// It has none to show: it is no canary, or the fleet does not ask for it.
    NotNeeded,
    /// It does not run the template yet.
    Later,
    /// It is not known yet, for this reason.
    Waiting(String),
    Passed,
    /// It is different.
    Diverged(String),
}

/// What the status of the fleet has about a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Release {
    /// When it got a template that it was not healthy with since.
    pub(super) at: Timestamp,
    /// That template is the target.
    pub(super) is_of_target: bool,
    /// It was down before.
    pub(super) was_down: bool,
}

/// What is known about a node beside the node itself.
#[derive(Clone, Debug)]
pub(super) struct Context<'a> {
    pub(super) limits: &'a Limits,
    /// It has the target's template.
    pub(super) has_template: bool,
    /// The fleet gave it a template, this one or an earlier one.
    pub(super) is_stamped: bool,
    pub(super) release: Option<Release>,
    pub(super) comparison: Comparison,
    /// Its place in the order of the rollout.
    pub(super) place: usize,
    pub(super) now: Timestamp,
}

impl Member {
    pub(super) fn of(node: &SeiNode, ordinal: usize, context: &Context<'_>) -> Self {
        let empty = SeiNodeStatus::default();
        let status = node.status.as_ref().unwrap_or(&empty);
        let ready = ready_condition(status);
        // Validators stay Ready before the height of an upgrade that their chain has halted at.
        let is_halted =
            condition::is(&status.conditions, ConditionType::Halted, ConditionStatus::True);
        let is_down = is_halted || ready.is_some_and(|ready| ready.status == "False");
        let health = health(node, status, context.limits);
        let was_down = context.release.is_some_and(|release| release.was_down) && health.is_err();
        let runs_template = context.has_template && is_settled(node, status);
        let member = |state, due, message: String| Self {
            ordinal,
            name: node.metadata.name.clone().unwrap_or_default(),
            place: context.place,
            state,
            is_down,
            comparison: match &context.comparison {
                // The pod of before may still run.
                Comparison::Waiting(_) if !runs_template => Comparison::Later,
                comparison => comparison.clone(),
            },
            was_down,
            is_hands_off: is_hands_off(node),
            flight: match state {
                NodeState::Healthy => Flight::No,
                _ if was_down => Flight::No,
                _ => Flight::Yes,
            },
            due,
            message,
        };
        if !context.has_template {
            // An earlier template may still be on its way to the node.
            let is_held = is_held(status) || is_hands_off(node);
            let moves = context.is_stamped && !is_settled(node, status) && !is_held;
            let flight = match context.release {
                _ if health.is_ok() || was_down => Flight::No,
                Some(_) => Flight::Taken,
                None if moves => Flight::Yes,
                None => Flight::No,
            };
            return Self { flight, ..member(NodeState::Outdated, None, String::new()) };
        }
        let release = context.release.filter(|release| release.is_of_target);
        let deadline = context.limits.deadline.zip(release.map(|release| release.at));
        let deadline = deadline.map(|(deadline, since)| later(since, deadline));
        if let Some(why) = diverged(&context.comparison).or_else(|| failure(node, status)) {
            return member(NodeState::Broken, None, why);
        }
        let health = health.and_then(|since| match &context.comparison {
            Comparison::Waiting(why) => Err(why.clone()),
            _ => Ok(since),
        });
        let health = match health {
            Ok(since) => since,
            Err(why) if deadline.is_some_and(|deadline| deadline <= context.now) => {
                return member(NodeState::Broken, None, format!("not healthy in time: {why}"));
            }
            Err(why) => {
                let settled = is_settled(node, status);
                let state = if settled { NodeState::Updated } else { NodeState::Updating };
                return member(state, deadline, why);
            }
        };
        let bake = context.limits.bake_of(context.place);
        let baked = health.map(|since| later(since, bake));
        match baked.filter(|baked| *baked > context.now && !bake.is_zero()) {
            // A node that this rollout has not released has nothing to prove.
            Some(baked) if release.is_some() => {
                member(NodeState::Updated, Some(baked), "must stay healthy for a while".to_owned())
            }
            _ => member(NodeState::Healthy, None, String::new()),
        }
    }

    pub(super) fn has_template(&self) -> bool {
        self.state != NodeState::Outdated
    }

    /// Its app hash is compared now.
    pub(super) fn is_compared(&self) -> bool {
        // Another pod of a node that has diverged is compared again.
        matches!(self.comparison, Comparison::Waiting(_) | Comparison::Diverged(_))
    }

    /// It has the template, or can get it.
    fn is_able(&self) -> bool {
        self.has_template() || self.is_open()
    }

    /// It lacks the template and can get it.
    pub(super) fn is_open(&self) -> bool {
        !self.has_template() && !self.is_hands_off
    }
}

fn diverged(comparison: &Comparison) -> Option<String> {
    match comparison {
        Comparison::Diverged(why) => Some(why.clone()),
        _ => None,
    }
}

fn ready_condition(status: &SeiNodeStatus) -> Option<&Condition> {
    condition::find(&status.conditions, ConditionType::Ready)
}

/// Why the node has failed with what it was given.
fn failure(node: &SeiNode, status: &SeiNodeStatus) -> Option<String> {
    if node.metadata.generation > status.observed_generation {
        return None;
    }
    let stalled = condition::find(&status.conditions, ConditionType::Stalled)
        .filter(|stalled| stalled.status == ConditionStatus::True.as_str());
    if let Some(stalled) = stalled {
        return Some(format!("{}: {}", stalled.reason, stalled.message));
    }
    if status.phase == Some(SeiNodePhase::Failed) {
        return Some("its first start failed".to_owned());
    }
    let attempts = crate::budget::failed_attempts(status.pending_update.as_ref());
    (attempts > 0).then(|| format!("{attempts} failed attempts"))
}

/// Whether the node runs what its spec asks for.
fn is_settled(node: &SeiNode, status: &SeiNodeStatus) -> bool {
    let updating = condition::is(
        &status.conditions,
        ConditionType::NodeUpdateInProgress,
        ConditionStatus::True,
    );
    node.metadata.generation <= status.observed_generation
        && status.phase == Some(SeiNodePhase::Running)
        && status.pending_update.is_none()
        && status.plan.is_none()
        && !updating
}

/// Whether the node's update waits for a person.
fn is_held(status: &SeiNodeStatus) -> bool {
    status.pending_update.as_ref().is_some_and(|update| update.state == UpdateState::Held)
}

/// Why the first start of the node does not begin, or failed. The message of a start in progress
/// changes too often for the status of the fleet.
fn first_start(status: &SeiNodeStatus) -> Option<String> {
    let phase = status.phase?;
    if !matches!(phase, SeiNodePhase::Pending | SeiNodePhase::Failed) {
        return None;
    }
    let ready = ready_condition(status).filter(|ready| !ready.message.is_empty())?;
    Some(format!("{phase}: {}", ready.message, phase = phase.as_str()))
}

/// Since when the node runs its spec and is healthy, or why it is not.
fn health(
    node: &SeiNode,
    status: &SeiNodeStatus,
    limits: &Limits,
) -> Result<Option<Timestamp>, String> {
    if !is_settled(node, status) {
        let why = status.pending_update.as_ref().and_then(|update| update.reason.clone());
        let why = why.or_else(|| first_start(status));
        return Err(why.unwrap_or_else(|| "does not run the template yet".to_owned()));
    }
    let mut since = status.last_update.as_ref().map(|last| last.finished_at.0);
    if limits.needs_ready {
        match ready_condition(status) {
            Some(ready) if ready.status == "True" => {
                since = since.max(Some(ready.last_transition_time.0));
            }
            Some(ready) => return Err(ready.message.clone()),
            None => return Err("it is not known whether its pod is Ready".to_owned()),
        }
    }
    let sidecar = condition::find(&status.conditions, ConditionType::SidecarReady);
    if limits.needs_sidecar && sidecar.is_none_or(|sidecar| sidecar.status != "True") {
        return Err("its sidecar is not ready".to_owned());
    }
    Ok(since)
}

/// The order of a rollout.
pub(super) fn in_order(limits: &Limits, ordinals: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut ordinals: Vec<_> = ordinals.collect();
    ordinals.sort_unstable();
    if limits.order == Order::ReverseOrdinal {
        ordinals.reverse();
    }
    ordinals
}

/// What a rollout does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// This node gets the template.
    Release { ordinal: usize },
    /// No node gets the template: the user holds the rollout.
    Paused,
    /// No node gets the template: these failed.
    Halted(String),
    /// Nodes have to become healthy first.
    Wait,
    /// Every node has the template.
    Done,
}

/// Which node gets the template next. `members` are in the order of the rollout.
pub(super) fn next(members: &[Member], limits: &Limits) -> Next {
    let outdated = || members.iter().filter(|member| member.is_open());
    if outdated().next().is_none() {
        return Next::Done;
    }
    if limits.is_paused {
        return Next::Paused;
    }
    let broken = || members.iter().filter(|member| member.state == NodeState::Broken);
    let halted = || {
        let why = broken().map(|member| format!("{}: {}", member.name, member.message));
        Next::Halted(why.collect::<Vec<_>>().join("; "))
    };
    // It costs the data of each further node, whatever the user does after other failures.
    if members.iter().any(|member| diverged(&member.comparison).is_some()) {
        return halted();
    }
    let is_halted = limits.on_failure == OnFailure::Halt && broken().next().is_some();
    let chain_is_halted = chain_is_halted(members);
    let canaries =
        || members.iter().filter(|member| member.is_able() && limits.is_canary(member.place));
    // A template that has not been compared costs more than the time of a node that is down. In a chain
    // that is halted nothing can be compared.
    let is_open = |it: &Comparison| matches!(it, Comparison::Waiting(_) | Comparison::Later);
    let is_compared = canaries().all(|member| !is_open(&member.comparison));
    let is_free = |member: &&Member| {
        let costs_nothing = member.flight == Flight::Taken || member.is_down;
        let may_precede = is_compared
            || limits.is_canary(member.place)
            || (chain_is_halted && outdated().all(|member| member.is_down));
        costs_nothing && may_precede
    };
    if let Some(member) = outdated().find(is_free)
        && (!is_halted || chain_is_halted)
    {
        return Next::Release { ordinal: member.ordinal };
    }
    if is_halted {
        return halted();
    }
    let in_flight = members.iter().filter(|member| member.flight != Flight::No).count();
    if in_flight >= limits.max_unavailable {
        return Next::Wait;
    }
    let canaries_are_healthy = canaries().all(|member| member.state == NodeState::Healthy);
    match outdated().find(|member| limits.is_canary(member.place) || canaries_are_healthy) {
        Some(member) => Next::Release { ordinal: member.ordinal },
        None => Next::Wait,
    }
}

/// Taking a node that is down to the new template costs nothing, and a chain that has halted at an
/// upgrade needs many nodes at once. One node that is down proves no halt.
fn chain_is_halted(members: &[Member]) -> bool {
    let down = members.iter().filter(|member| member.is_down).count();
    down >= 2 && down.saturating_mul(3) >= members.len()
}
