//! Guards of what the operator costs. The figures do not depend on the machine.

use anyhow::Result;
use kube::core::WatchEvent;
use sei_api::SeiNode;
use sei_operator::runtime::guarded::Guarded;
use sei_sandbox::cost::{Cost, Fleet, IMAGE_UPDATE_MAX, NO_OP_MAX, Phase};
use serde::de::DeserializeOwned;

/// Enough that a scan over all nodes in each reconcile shows.
const NODES: usize = 40;
/// Enough for a mean. An update of more nodes takes so long without optimisation that progress which
/// is held back for five seconds gets written, and the writes are no longer the same in each run.
const CHANGED: usize = 20;

fn measure(fleet: &mut Fleet, phase: Phase) -> Result<Cost> {
    // The first change of a node is not like the others: caches are filled by it.
    fleet.run(phase, CHANGED, |run| run())?;
    let (counted, requests) = fleet.run(phase, CHANGED, |run| allocation_counter::measure(run))?;
    Ok(Cost::new(CHANGED, counted.count_total, counted.bytes_total, &requests))
}

/// Allocations of decoding one watch event, and the bytes.
fn decode<K: DeserializeOwned>(fleet: &Fleet, plural: &str) -> (u64, u64) {
    let event = fleet.watch_event(plural);
    let decode = || drop(serde_json::from_str::<WatchEvent<K>>(&event).expect("an event"));
    let counted = allocation_counter::measure(decode);
    (counted.count_total, counted.bytes_total)
}

/// One test for both: the counter is of a thread, and the fleet takes seconds to come up.
#[test]
fn a_reconcile_and_an_image_update_stay_within_their_limits() -> Result<()> {
    let mut fleet = Fleet::start(NODES)?;
    let mut no_op = measure(&mut fleet, Phase::NoOp)?;
    let (allocations, bytes) = decode::<Guarded<SeiNode>>(&fleet, "seinodes");
    no_op.allocations = no_op.allocations.saturating_sub(allocations);
    no_op.bytes = no_op.bytes.saturating_sub(bytes);
    let image_update = measure(&mut fleet, Phase::ImageUpdate)?;
    eprintln!(
        "no-op reconcile: {no_op:?}, without its event ({allocations})\nimage update: {image_update:?}"
    );
    assert!(no_op.is_within(&NO_OP_MAX), "no-op reconcile: {no_op:?}, limit {NO_OP_MAX:?}");
    assert!(
        image_update.is_within(&IMAGE_UPDATE_MAX),
        "image update: {image_update:?}, limit {IMAGE_UPDATE_MAX:?}"
    );
    Ok(())
}
