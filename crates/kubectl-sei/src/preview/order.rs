//! In which order nodes would roll.

use std::collections::BTreeMap;

use super::{Effect, Forecast};

/// Puts the forecasts in the order in which nodes roll, chain by chain, those that do not roll
/// last, and numbers those that take turns. Nodes that sign come last in their chain.
pub(super) fn put(forecasts: &mut [Forecast]) {
    forecasts.sort_by_key(|one| {
        (
            !one.effect.rolls(),
            one.chain.clone(),
            rank(one.effect),
            one.signs,
            one.namespace.clone(),
            one.node.clone(),
        )
    });
    let mut turns: BTreeMap<String, usize> = BTreeMap::new();
    for one in forecasts.iter_mut().filter(|one| one.effect == Effect::RollsInTurn) {
        let turn = turns.entry(one.chain.clone()).or_default();
        *turn += 1;
        one.turn = Some(*turn);
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
