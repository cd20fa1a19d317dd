//! How many nodes of a chain may be down through us at once, and whose turn it is.
//!
//! A roll that nobody asked for on the node itself holds a slot of its chain, from the plan's start
//! until the node is Ready again. Everything is derived from what the nodes' own status records and
//! from their pods, so that it survives a crash and a change of leader; nothing here remembers.
//!
//! Image changes never come here: a chain upgrade needs many nodes in the same moment.

use std::cmp::Ordering;
use std::time::Duration;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::plan::TaskPlan;
use sei_api::status::{LastUpdate, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateState};

use crate::planner::later;
use crate::platform::Rollout;
use crate::signers;
use crate::snapshot::Slot;
use crate::timing::Timing;
use crate::view::PodView;

/// The platform's figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// How many nodes of a chain may roll at once.
    pub limit: usize,
    /// How many failed rolls halt a chain.
    pub halt_after: usize,
    /// How long a node may take to be Ready again.
    pub ready_deadline: Duration,
    /// How long a node must not have been Ready to lose nothing by being replaced.
    pub outage: Duration,
}

impl Budget {
    /// As the platform has them.
    pub fn of(rollout: &Rollout, timing: Timing) -> Self {
        let whole = |number: u32| usize::try_from(number).unwrap_or(1);
        Self {
            limit: whole(rollout.max_concurrent_per_chain),
            halt_after: whole(rollout.halt_after_failures),
            ready_deadline: timing.configured(rollout.ready_deadline_seconds),
            outage: timing.outage(),
        }
    }
}

/// A node as its chain's budget sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// `namespace/name`.
    pub name: String,
    pub signs: bool,
    /// It has not been Ready for so long that it loses nothing by being replaced.
    pub is_out: bool,
    pub standing: Standing,
}

/// How a node stands to its chain's budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
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
            standing: standing(node, pod, budget, now),
        }
    }

    /// The order in which nodes of a chain roll: those that sign last, when the others have shown
    /// that the change is good; then by name, so that everybody can tell who is next.
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

    fn in_words(&self) -> String {
        let what = match self.standing {
            Standing::Rolls => "rolls",
            Standing::Down => "signs and is down",
            Standing::Failed => "failed to roll",
            Standing::Idle | Standing::Waits => "goes first",
        };
        format!("{} {what}", self.name)
    }
}

/// Whether a node may start a roll now. `others` are the other nodes of its chain.
pub fn grant(me: &Member, others: &[Member], budget: &Budget) -> Slot {
    // Whoever rolls keeps its slot, so a failed roll can be mended by the next target.
    if me.rolls() {
        return Slot::Granted;
    }
    let failed: Vec<_> = in_turn(others, |one| one.standing == Standing::Failed);
    if failed.len() >= budget.halt_after {
        return Slot::Halted { by: names(&failed) };
    }
    // Who is down takes nothing from the chain by being replaced.
    if me.is_out {
        return Slot::Granted;
    }
    let first = in_turn(others, |one| one.standing == Standing::Waits && one.turn(me).is_lt());
    let holders = in_turn(others, Member::has_slot);
    // Also beside a free slot: the others have to show that the change is good.
    let early = |one: &Member| {
        me.signs && !one.signs && matches!(one.standing, Standing::Waits | Standing::Rolls)
    };
    if others.iter().any(early) {
        return Slot::InLine { limit: budget.limit };
    }
    let free = budget.limit.saturating_sub(holders.len());
    if first.len() < free {
        return Slot::Granted;
    }
    if first.is_empty() {
        return Slot::Taken { by: words(&holders) };
    }
    Slot::InLine { limit: budget.limit }
}

/// Who of a chain has something to gain from looking again: the next few in turn. All who wait,
/// where the chain has just been halted or resumed: each of them says so.
pub fn next(members: &[Member], budget: &Budget) -> Vec<String> {
    let waiting = in_turn(members, |one| one.standing == Standing::Waits);
    // One more than can be granted: it then says whom it waits for.
    waiting.iter().take(budget.limit.saturating_add(1)).map(|one| one.name.clone()).collect()
}

fn in_turn(members: &[Member], is: impl Fn(&Member) -> bool) -> Vec<&Member> {
    let mut found: Vec<_> = members.iter().filter(|one| is(one)).collect();
    found.sort_by(|one, other| one.turn(other));
    found
}

fn names(members: &[&Member]) -> String {
    members.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn words(members: &[&Member]) -> String {
    members.iter().map(|one| one.in_words()).collect::<Vec<_>>().join(", ")
}

fn standing(node: &SeiNode, pod: Option<&PodView>, budget: &Budget, now: Timestamp) -> Standing {
    static NONE: std::sync::LazyLock<SeiNodeStatus> =
        std::sync::LazyLock::new(SeiNodeStatus::default);
    let status = node.status.as_ref().unwrap_or(&NONE);
    let pending = status.pending_update.as_ref();
    let stalled = condition::is(&status.conditions, ConditionType::Stalled, ConditionStatus::True);
    if node.spec.is_paused() {
        // Its owner has stopped it, and knows.
        return Standing::Idle;
    }
    let attempts = failed_attempts(pending);
    if let Some(since) = rolls_since(status) {
        let late = later(since, budget.ready_deadline) <= now;
        return if stalled || late || attempts > 0 { Standing::Failed } else { Standing::Rolls };
    }
    if let Some(last) = open_roll(status) {
        let back = attempts == 0 && pod.is_some_and(|pod| is_back(status, pod));
        let late = later(last.finished_at.0, budget.ready_deadline) <= now;
        if !back {
            let failed = stalled || late || attempts > 0;
            return if failed { Standing::Failed } else { Standing::Rolls };
        }
    }
    let ran = status.phase == Some(SeiNodePhase::Running);
    if !pod.is_some_and(|pod| pod.ready) {
        // A node that never ran is not missed by its chain yet; and nobody stands in line behind
        // one that may go whenever it can.
        return if node.spec.signs() && ran { Standing::Down } else { Standing::Idle };
    }
    match pending.map(|one| one.state) {
        Some(UpdateState::Queued) if ran => Standing::Waits,
        _ => Standing::Idle,
    }
}

/// How often a pending update has failed, as far as it counts: one that is held back is not tried
/// any more, and nobody has to wait for it.
pub(crate) fn failed_attempts(pending: Option<&PendingUpdate>) -> i32 {
    let tried = pending.filter(|pending| pending.state != UpdateState::Held);
    tried.and_then(|pending| pending.attempts).unwrap_or(0)
}

fn is_out(pod: &PodView, budget: &Budget, now: Timestamp) -> bool {
    !pod.ready && pod.ready_since.is_some_and(|since| later(since, budget.outage) <= now)
}

/// Since when a plan that holds a slot has been under way.
fn rolls_since(status: &SeiNodeStatus) -> Option<Timestamp> {
    let plan = status.plan.as_ref().filter(|plan| plan.is_active() && has_slot(plan))?;
    Some(plan.started_at().unwrap_or(Timestamp::UNIX_EPOCH))
}

pub(crate) fn has_slot(plan: &TaskPlan) -> bool {
    plan.target.as_ref().is_some_and(|target| target.slot == Some(true))
}

/// The last update, if its slot is still held: the node was not seen Ready since.
pub(crate) fn open_roll(status: &SeiNodeStatus) -> Option<&LastUpdate> {
    status.last_update.as_ref().filter(|last| last.slot == Some(true) && last.ready_at.is_none())
}

/// Whether this pod is the one that the last roll left, or made from the same template, and serves.
/// A cache may still show the one before. A roll that was given up before any pod of this node was
/// observed has left whatever serves.
pub(crate) fn is_back(status: &SeiNodeStatus, pod: &PodView) -> bool {
    let is_left = status
        .pod_template
        .as_ref()
        .is_none_or(|one| pod.revision.as_deref() == Some(one.revision.as_str()));
    pod.ready && !pod.is_terminating() && is_left
}

#[cfg(test)]
mod tests;
