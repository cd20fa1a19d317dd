//! How many nodes of a chain the operator may take down at once, and which node is next.
//!
//! A roll of a Ready node holds a slot of its chain, from the start of the plan until the node has been
//! Ready again for a while, unless the spec changed something else than the image of a node that does
//! not sign. Slots are derived from the status and the pods of the nodes, so that they survive a crash
//! and a change of leader. This module keeps no state.
//!
//! A changed image of a Ready node takes a slot too, within a limit of its own for nodes that do not
//! sign. A node that is not Ready needs none: a chain that has halted at an upgrade needs many nodes at
//! once.

use std::cmp::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::plan::TaskPlan;
use sei_api::status::{LastUpdate, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateState};

use crate::hands_off::is_hands_off;
use crate::planner::{later, wait_until};
use crate::platform::{BudgetScope, Rollout, Share};
use crate::signers;
use crate::snapshot::Slot;
use crate::tasks::before_replacement;
use crate::timing::Timing;
use crate::view::{self, PodView, StatefulSetView};

/// The limits that the platform configures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many nodes of a chain may roll at once.
    pub limit: usize,
    /// How many of those that do not sign may roll to another image at once.
    pub images: Share,
    /// How many failed rolls halt a chain.
    pub halt_after: usize,
    /// How long a node may take to be Ready again.
    pub ready_deadline: Duration,
    /// How long a node must be Ready before the next one rolls: many a broken binary is Ready before
    /// it crashes.
    pub min_ready: Duration,
    /// After how long without Ready a node counts as out: replacing it costs no availability.
    pub outage: Duration,
}

impl Budget {
    /// The limits of the platform.
    pub fn of(rollout: &Rollout, timing: Timing) -> Self {
        let whole = |number: u32| usize::try_from(number).unwrap_or(1);
        Self {
            limit: whole(rollout.max_concurrent_per_chain),
            images: rollout.max_unavailable,
            halt_after: whole(rollout.halt_after_failures),
            ready_deadline: timing.configured(rollout.ready_deadline_seconds),
            min_ready: timing.configured(rollout.min_ready_seconds),
            outage: timing.outage(),
        }
    }
}

/// The slot that a roll begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It needs none.
    Nothing,
    Slot,
    /// None was free, but the node is down.
    WhileDown,
}

/// What a slot is requested for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Roll {
    /// The spec names another image.
    Image,
    Template,
}

/// A node as a member of its chain's budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// `namespace/name`.
    pub name: String,
    pub signs: bool,
    /// It has not been Ready for longer than [`Budget::outage`].
    pub is_out: bool,
    /// Its roll was granted only because it was down, and has not replaced its pod yet.
    pub is_provisional: bool,
    pub standing: Standing,
}

/// The state of a node in its chain's budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// This process has not reconciled it yet.
    Unknown,
    Idle,
    /// It has a change that waits for a slot.
    Waits,
    /// It rolls, or has rolled and is not Ready yet.
    Rolls,
    /// It signs and is down for a reason that is not a roll of ours.
    Down,
    /// Its roll failed, or did not get it Ready in time. The slot stays with it.
    Failed,
}

impl Member {
    /// A node with its pod, as they are now.
    pub fn of(node: &SeiNode, pod: Option<&PodView>, budget: &Budget, now: Timestamp) -> Self {
        Self {
            name: signers::named(node),
            signs: node.spec.signs(),
            is_out: pod.is_some_and(|pod| is_out(pod, budget, now)),
            is_provisional: active_plan(node).is_some_and(is_provisional),
            standing: standing(node, pod, budget, now),
        }
    }

    /// The order in which nodes of a chain roll: nodes that sign last, after the others have shown
    /// that the change is good; then by name, so that the order is predictable.
    pub fn turn(&self, other: &Self) -> Ordering {
        (self.signs, &self.name).cmp(&(other.signs, &other.name))
    }

    /// It has a slot by a roll of its own.
    pub fn rolls(&self) -> bool {
        matches!(self.standing, Standing::Rolls | Standing::Failed)
    }

    fn has_slot(&self) -> bool {
        self.rolls() || self.standing == Standing::Down
    }

    fn describe(&self) -> String {
        let state = match self.standing {
            Standing::Rolls => "rolls",
            Standing::Down => "signs and is down",
            Standing::Failed => "failed to roll",
            Standing::Idle | Standing::Waits | Standing::Unknown => "rolls first",
        };
        format!("{} {state}", self.name)
    }
}

/// The chain whose budget a node shares: the one that it runs. An edited chainId of a running node is
/// refused, and must not move it to the budget of another chain.
pub fn chain_of(
    node: &SeiNode,
    statefulset: Option<&StatefulSetView>,
    scope: BudgetScope,
) -> String {
    let chain = view::chain_of(node, statefulset);
    match scope {
        BudgetScope::Cluster => chain.to_owned(),
        BudgetScope::Namespace => {
            format!("{}/{chain}", node.metadata.namespace.as_deref().unwrap_or_default())
        }
    }
}

/// Whether a node may start a roll now. `others` are the other nodes of its chain.
pub fn grant(node: &Member, roll: Roll, others: &[Member], budget: &Budget) -> Slot {
    let limit = match roll {
        Roll::Image if !node.signs => images_at_once(others, budget, 1),
        Roll::Image | Roll::Template => budget.limit,
    };
    // A node that rolls keeps its slot, so that the next target can repair a failed roll.
    if node.rolls() && !node.is_provisional {
        return Slot::Granted;
    }
    // Before all members were reconciled it is not known which of them wait, and so whose turn it is.
    if others.iter().any(|member| member.standing == Standing::Unknown) {
        return Slot::InLine { limit };
    }
    let failed: Vec<_> = in_turn(others, |member| member.standing == Standing::Failed);
    if failed.len() >= budget.halt_after {
        return Slot::Halted { by: names(&failed) };
    }
    match take_turn(node, others, limit) {
        // Replacing a node that is down costs the chain no availability.
        Slot::Taken { .. } | Slot::InLine { .. } if node.is_out => Slot::GrantedWhileDown,
        slot => slot,
    }
}

/// A free slot, if it is the turn of this node.
fn take_turn(node: &Member, others: &[Member], limit: usize) -> Slot {
    let is_first =
        |member: &Member| member.standing == Standing::Waits && member.turn(node).is_lt();
    let first = in_turn(others, is_first);
    let holders = in_turn(others, Member::has_slot);
    // Even if a slot is free: nodes that do not sign have to show that the change is good.
    let early = |member: &Member| {
        node.signs && !member.signs && matches!(member.standing, Standing::Waits | Standing::Rolls)
    };
    if others.iter().any(early) {
        return Slot::InLine { limit };
    }
    let free = limit.saturating_sub(holders.len());
    if first.len() < free {
        return Slot::Granted;
    }
    if first.is_empty() {
        return Slot::Taken { by: describe(&holders) };
    }
    Slot::InLine { limit }
}

/// How many nodes that do not sign may roll to another image at once: of these members, and of so
/// many more.
fn images_at_once(members: &[Member], budget: &Budget, more: usize) -> usize {
    let unsigned = members.iter().filter(|member| !member.signs).count();
    budget.limit.max(budget.images.of(unsigned.saturating_add(more)))
}

/// The next members of a chain to enqueue, in turn, because they may get a slot. After a chain was
/// halted or resumed the caller sets no limit, so that every waiting member reports the new state.
pub fn next(members: &[Member], budget: &Budget) -> Vec<String> {
    let waiting = in_turn(members, |member| member.standing == Standing::Waits);
    // One more than can be granted: that node then reports which nodes it waits for.
    let next = waiting.iter().take(images_at_once(members, budget, 0).saturating_add(1));
    next.map(|member| member.name.clone()).collect()
}

fn in_turn(members: &[Member], matches: impl Fn(&Member) -> bool) -> Vec<&Member> {
    let mut found: Vec<_> = members.iter().filter(|member| matches(member)).collect();
    found.sort_by(|left, right| left.turn(right));
    found
}

fn names(members: &[&Member]) -> String {
    members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn describe(members: &[&Member]) -> String {
    members.iter().map(|member| member.describe()).collect::<Vec<_>>().join(", ")
}

fn standing(node: &SeiNode, pod: Option<&PodView>, budget: &Budget, now: Timestamp) -> Standing {
    static NONE: std::sync::LazyLock<SeiNodeStatus> =
        std::sync::LazyLock::new(SeiNodeStatus::default);
    let status = node.status.as_ref().unwrap_or(&NONE);
    let pending = status.pending_update.as_ref();
    let stalled = condition::is(&status.conditions, ConditionType::Stalled, ConditionStatus::True);
    if node.spec.is_paused() {
        // Its user has stopped it on purpose.
        return Standing::Idle;
    }
    let attempts = failed_attempts(pending);
    if let Some(since) = rolls_since(status, pod) {
        let late = is_late(since, budget.ready_deadline, now);
        return if stalled || late || attempts > 0 { Standing::Failed } else { Standing::Rolls };
    }
    if let Some(last) = open_roll(status) {
        let back = pod.and_then(|pod| back_since(status, pod));
        let back = attempts == 0 && back.is_some_and(|since| lasts(since, budget.min_ready, now));
        let late = is_late(last.finished_at.0, budget.ready_deadline, now);
        if !back {
            let failed = stalled || late || attempts > 0;
            return if failed { Standing::Failed } else { Standing::Rolls };
        }
    }
    let ran = status.phase == Some(SeiNodePhase::Running);
    if !pod.is_some_and(|pod| pod.ready) {
        // A chain does not depend on a node that never ran. And a node that is not Ready is not in
        // the queue: it may roll without waiting.
        return if node.spec.signs() && ran { Standing::Down } else { Standing::Idle };
    }
    match pending.map(|update| update.state) {
        // No other node waits behind one that the operator leaves alone.
        Some(UpdateState::Queued) if ran && !is_hands_off(node) => Standing::Waits,
        _ => Standing::Idle,
    }
}

/// The failed attempts of a pending update. A held update counts none: it is not retried, and no
/// other node has to wait for it.
pub(crate) fn failed_attempts(pending: Option<&PendingUpdate>) -> i32 {
    let tried = pending.filter(|pending| pending.state != UpdateState::Held);
    tried.and_then(|pending| pending.attempts).unwrap_or(0)
}

fn is_out(pod: &PodView, budget: &Budget, now: Timestamp) -> bool {
    !pod.ready && pod.ready_since.is_some_and(|since| later(since, budget.outage) <= now)
}

/// Whether the deadline has passed. A start that is farther in the future than the deadline was
/// stored by a clock that was ahead: it must not delay the report by that much.
fn is_late(since: Timestamp, deadline: Duration, now: Timestamp) -> bool {
    later(since, deadline) <= now || later(now, deadline) < since
}

/// Since when a plan that holds a slot has been under way.
fn rolls_since(status: &SeiNodeStatus, pod: Option<&PodView>) -> Option<Timestamp> {
    let plan = status.plan.as_ref().filter(|plan| plan.is_active() && has_slot(plan))?;
    if is_provisional(plan) && pod.is_some_and(|pod| pod.ready) {
        // It is superseded, and requests a slot like every other node.
        return None;
    }
    Some(plan.started_at().unwrap_or(Timestamp::UNIX_EPOCH))
}

pub(crate) fn has_slot(plan: &TaskPlan) -> bool {
    plan.target.as_ref().is_some_and(|target| target.slot == Some(true))
}

/// Whether the plan got its slot only because the node was down, and its pod is not replaced yet.
pub(crate) fn is_provisional(plan: &TaskPlan) -> bool {
    let while_down =
        plan.target.as_ref().is_some_and(|target| target.slot_while_down == Some(true));
    while_down && before_replacement(plan)
}

fn active_plan(node: &SeiNode) -> Option<&TaskPlan> {
    node.status.as_ref()?.plan.as_ref().filter(|plan| plan.is_active())
}

/// The last update, if it still holds its slot: the node has not been Ready since.
pub(crate) fn open_roll(status: &SeiNodeStatus) -> Option<&LastUpdate> {
    status.last_update.as_ref().filter(|last| last.slot == Some(true) && last.ready_at.is_none())
}

/// Since when this pod is Ready, if it has the revision that the last roll recorded. A cache may still
/// have the previous pod. If a roll was abandoned before any pod of the node was observed, there is
/// no recorded revision and any Ready pod counts.
pub(crate) fn back_since(status: &SeiNodeStatus, pod: &PodView) -> Option<Timestamp> {
    let is_rolled = status
        .pod_template
        .as_ref()
        .is_none_or(|template| pod.revision.as_deref() == Some(template.revision.as_str()));
    let is_back = pod.ready && !pod.is_terminating() && is_rolled;
    is_back.then(|| pod.ready_since.unwrap_or(Timestamp::UNIX_EPOCH))
}

/// Whether this much time has passed since. The time comes from another clock: one that is farther in
/// the future counts as passed.
pub(crate) fn lasts(since: Timestamp, long: Duration, now: Timestamp) -> bool {
    wait_until(later(since, long), now, long).is_none()
}

#[cfg(test)]
mod tests;
