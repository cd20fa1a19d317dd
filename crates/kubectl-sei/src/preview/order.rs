//! In which order nodes would roll.

use std::cmp::Ordering;

use sei_plan::budget::{self, Budget, Member, Standing};
use sei_plan::planner::halted;
use sei_plan::snapshot::Slot;

use super::{Effect, Forecast};

/// A node that would roll or not, and how its chain's budget sees it.
pub(super) struct Contender {
    pub(super) forecast: Forecast,
    pub(super) member: Member,
}

/// Puts the nodes in the order in which they roll, chain by chain, those that do not roll last;
/// numbers those that take turns, and tells what keeps the first of them waiting.
pub(super) fn put(mut nodes: Vec<Contender>, budget: &Budget) -> Vec<Forecast> {
    for one in &mut nodes {
        let idle = one.member.standing == Standing::Idle;
        if one.forecast.effect == Effect::RollsInTurn && idle {
            one.member.standing = Standing::Waits;
        }
    }
    nodes.sort_by(compare);
    let waits: Vec<Option<String>> =
        nodes.iter().map(|one| waits_for(one, &nodes, budget)).collect();
    let mut turns: (String, usize) = Default::default();
    let mut forecasts = Vec::new();
    for (one, why) in nodes.into_iter().zip(waits) {
        let mut forecast = one.forecast;
        if forecast.effect == Effect::RollsInTurn {
            if turns.0 != forecast.chain {
                turns = (forecast.chain.clone(), 0);
            }
            turns.1 += 1;
            forecast.turn = Some(turns.1);
            forecast.why = why.or(forecast.why);
        }
        forecasts.push(forecast);
    }
    forecasts
}

fn compare(one: &Contender, other: &Contender) -> Ordering {
    let key = |one: &Contender| {
        let forecast = &one.forecast;
        (
            !forecast.effect.rolls(),
            forecast.chain.clone(),
            rank(forecast.effect),
            takes_its_turn(one),
        )
    };
    key(one).cmp(&key(other)).then_with(|| one.member.turn(&other.member))
}

/// Whether others go first. A node that has a slot keeps it, and one that has been down for a while
/// is given one at once.
fn takes_its_turn(one: &Contender) -> bool {
    !one.member.is_out && !one.member.rolls()
}

/// What besides the line itself keeps a node from rolling: a failed roll, or a signer that is down.
fn waits_for(one: &Contender, nodes: &[Contender], budget: &Budget) -> Option<String> {
    if one.forecast.effect != Effect::RollsInTurn {
        return None;
    }
    let others: Vec<Member> = nodes
        .iter()
        .filter(|other| {
            other.forecast.chain == one.forecast.chain && other.member.name != one.member.name
        })
        .map(|other| other.member.clone())
        .collect();
    match budget::grant(&one.member, &others, budget) {
        Slot::Halted { by } => Some(halted(&by)),
        Slot::Taken { by } => Some(format!("waits: {by}")),
        Slot::Granted | Slot::InLine { .. } => None,
    }
}

fn rank(effect: Effect) -> u8 {
    match effect {
        Effect::Rolling => 0,
        Effect::RollsAtOnce => 1,
        Effect::RollsAgain => 2,
        Effect::RollsInTurn => 3,
        Effect::Held => 4,
        Effect::Unknown => 5,
        Effect::Stuck => 6,
        Effect::NoPod => 7,
        Effect::Nothing => 8,
    }
}
