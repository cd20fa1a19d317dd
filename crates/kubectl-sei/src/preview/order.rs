//! The order in which nodes would roll.

use std::cmp::Ordering;

use sei_plan::budget::{self, Budget, Member, Roll, Standing};
use sei_plan::planner::halted;
use sei_plan::snapshot::Slot;

use super::{Effect, NodePreview};

/// A previewed node, and its state in the budget of its chain.
pub(super) struct RankedNode {
    pub(super) preview: NodePreview,
    pub(super) member: Member,
}

/// Sorts the nodes in the order in which they roll, chain by chain, those that do not roll last;
/// numbers those that take turns, and adds what they wait for.
pub(super) fn sort_by_turn(mut nodes: Vec<RankedNode>, budget: &Budget) -> Vec<NodePreview> {
    for node in &mut nodes {
        let idle = node.member.standing == Standing::Idle;
        if node.preview.effect == Effect::RollsInTurn && idle {
            node.member.standing = Standing::Waits;
        }
    }
    nodes.sort_by(compare);
    let waits: Vec<Option<String>> =
        nodes.iter().map(|node| waits_for(node, &nodes, budget)).collect();
    let mut turns: (String, usize) = Default::default();
    let mut previews = Vec::new();
    for (node, why) in nodes.into_iter().zip(waits) {
        let mut preview = node.preview;
        if preview.effect == Effect::RollsInTurn {
            if turns.0 != preview.budget {
                turns = (preview.budget.clone(), 0);
            }
            turns.1 += 1;
            preview.turn = Some(turns.1);
            preview.why = why.or(preview.why);
        }
        previews.push(preview);
    }
    previews
}

fn compare(left: &RankedNode, right: &RankedNode) -> Ordering {
    let key = |node: &RankedNode| {
        let preview = &node.preview;
        (
            !preview.effect.rolls(),
            preview.budget.clone(),
            rank(preview.effect),
            takes_its_turn(node),
        )
    };
    key(left).cmp(&key(right)).then_with(|| left.member.turn(&right.member))
}

/// Whether the node waits for its turn. A node that holds a slot keeps it, and a node that has been
/// down for a while gets one at once.
fn takes_its_turn(node: &RankedNode) -> bool {
    !node.member.is_out && !node.member.rolls()
}

/// What a node waits for besides its turn: a failed roll, or a signer that is down.
fn waits_for(node: &RankedNode, nodes: &[RankedNode], budget: &Budget) -> Option<String> {
    if node.preview.effect != Effect::RollsInTurn {
        return None;
    }
    let peers: Vec<Member> = nodes
        .iter()
        .filter(|peer| {
            peer.preview.budget == node.preview.budget && peer.member.name != node.member.name
        })
        .map(|peer| peer.member.clone())
        .collect();
    let roll = if node.preview.rolls_image() { Roll::Image } else { Roll::Template };
    match budget::grant(&node.member, roll, &peers, budget) {
        Slot::Halted { by } => Some(halted(&by)),
        Slot::Taken { by } => Some(format!("waits: {by}")),
        Slot::Granted | Slot::GrantedWhileDown | Slot::InLine { .. } => None,
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
