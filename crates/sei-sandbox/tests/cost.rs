//! Guards of what the operator costs. The figures do not depend on the machine.

use anyhow::Result;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
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

/// Allocations of decoding one watch event. They are the same whatever the operator does then.
fn decode<K: DeserializeOwned>(fleet: &Fleet, plural: &str) -> u64 {
    let event = fleet.watch_event(plural);
    let decode = || drop(serde_json::from_str::<WatchEvent<K>>(&event).expect("an event"));
    allocation_counter::measure(decode).count_total
}

/// One test for both: the counter is of a thread, and the fleet takes seconds to come up.
#[test]
fn a_reconcile_and_an_image_update_stay_within_their_limits() -> Result<()> {
    let mut fleet = Fleet::start(NODES)?;
    eprintln!(
        "decoding a watch event: node {}, pod {}, StatefulSet {}",
        decode::<Guarded<SeiNode>>(&fleet, "seinodes"),
        decode::<Pod>(&fleet, "pods"),
        decode::<StatefulSet>(&fleet, "statefulsets")
    );
    let no_op = measure(&mut fleet, Phase::NoOp)?;
    let image_update = measure(&mut fleet, Phase::ImageUpdate)?;
    eprintln!("no-op reconcile: {no_op:?}\nimage update: {image_update:?}");
    assert!(no_op.is_within(&NO_OP_MAX), "no-op reconcile: {no_op:?}, limit {NO_OP_MAX:?}");
    assert!(
        image_update.is_within(&IMAGE_UPDATE_MAX),
        "image update: {image_update:?}, limit {IMAGE_UPDATE_MAX:?}"
    );
    Ok(())
}
