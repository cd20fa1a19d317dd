//! What `Halted` is: a node that waits for an upgrade or for a block.

use super::*;
use crate::chain::{Blocks, Upgrade};
use crate::planner::fixture::{at, full_node, new_node, running};

fn halted(snapshot: &Snapshot) -> String {
    condition_text(&after(snapshot), ConditionType::Halted)
}

fn stopped() -> Snapshot {
    let blocks = Blocks::Stopped { height: 655, block_time: at(-100) };
    running(full_node()).with(|seen| seen.blocks = blocks)
}

/// The next snapshot of the same node.
fn stored(snapshot: Snapshot) -> Snapshot {
    let status = after(&snapshot);
    snapshot.with(|seen| seen.store(status))
}

fn ended_for_an_upgrade() -> Snapshot {
    stopped().with(|seen| {
        seen.pods[0].ready = false;
        seen.pods[0].upgrade = Some(Upgrade { name: "v9.9.9".into(), height: 656 }.into());
    })
}

/// A snapshot for each reason of the condition.
pub(super) fn halts() -> Vec<Snapshot> {
    let replaced = stored(ended_for_an_upgrade()).with(|seen| {
        seen.pods[0].upgrade = None;
        seen.blocks = Blocks::Unknown;
    });
    let resumed = stored(stopped()).with(|seen| seen.blocks = Blocks::Advance);
    vec![stopped(), ended_for_an_upgrade(), replaced, resumed]
}

#[test]
fn a_node_that_was_never_halted_has_no_such_condition() {
    for blocks in [Blocks::Unknown, Blocks::Advance] {
        let node = running(full_node()).with(|seen| seen.blocks = blocks);
        assert_eq!(halted(&node), "absent");
        assert_eq!(after(&stored(node.clone())), after(&node), "no write for a height");
    }
}

#[test]
fn a_ready_node_without_new_blocks_stays_ready_and_is_halted() {
    let text = "True/NoNewBlock: no new block since 2027-01-15T07:58:20Z, height 655";
    assert_eq!(halted(&stopped()), text);
    let ready = condition_text(&after(&stopped()), ConditionType::Ready);
    assert_eq!(ready, "True/NoNewBlock: no new block since 2027-01-15T07:58:20Z, height 655");
    // A pod without an answer, or a new one, proves no block.
    let unknown = stored(stopped()).with(|seen| seen.blocks = Blocks::Unknown);
    assert_eq!(halted(&unknown), text);
    let resumed = stored(stopped()).with(|seen| seen.blocks = Blocks::Advance);
    assert_eq!(halted(&resumed), "False/BlocksAdvance: ");
}

#[test]
fn a_process_that_ended_for_an_upgrade_is_halted_until_its_pod_is_replaced() {
    let ended = ended_for_an_upgrade();
    assert_eq!(halted(&ended), "True/UpgradeNeeded: upgrade v9.9.9 is needed at height 656");
    let without_pod = stored(ended.clone()).with(|seen| {
        seen.pods.clear();
        seen.blocks = Blocks::Unknown;
    });
    assert!(halted(&without_pod).starts_with("True/UpgradeNeeded"));
    let replaced = stored(ended.clone()).with(|seen| {
        seen.pods[0].upgrade = None;
        seen.blocks = Blocks::Unknown;
    });
    assert_eq!(halted(&replaced), "Unknown/NotObserved: ");
    let passed = stored(replaced).with(|seen| seen.blocks = Blocks::Advance);
    assert_eq!(halted(&passed), "False/BlocksAdvance: ");
    for blocks in [Blocks::Unknown, Blocks::Advance] {
        let between_crashes = stored(ended.clone()).with(|seen| {
            seen.pods[0].ready = true;
            seen.pods[0].ready_since = Some(seen.now);
            seen.blocks = blocks;
        });
        assert!(halted(&between_crashes).starts_with("True/UpgradeNeeded"));
    }
    let ready = ended.with(|seen| {
        seen.pods[0].ready = true;
        seen.pods[0].ready_since = Some(at(-100));
    });
    assert!(halted(&ready).starts_with("True/NoNewBlock"), "the message is of an earlier run");
}

#[test]
fn a_node_that_has_not_run_yet_is_not_halted() {
    assert_eq!(halted(&new_node(full_node())), "absent");
}
