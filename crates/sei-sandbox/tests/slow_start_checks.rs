//! Signers that start must not hold up the nodes that run.

use anyhow::{Context as _, Result};
use sei_sandbox::cost::{Fleet, VALIDATOR_EVERY, create_node};
use sei_sandbox::memory::{Key, Store};
use serde_json::Value;

/// More than reconciles may work at once.
const STARTING: usize = 40;

fn pod_of(store: &Store, name: &str) -> Option<Value> {
    store.get(&Key::new("pods", "default", &format!("{name}-0"))).cloned()
}

#[test]
fn an_evicted_node_recovers_while_signers_wait_for_their_checks() -> Result<()> {
    let mut fleet = Fleet::start(2)?;
    fleet.write(
        |store| {
            // Who else signs is read before a signer starts.
            store.stop_answering("LIST seinodes");
            (1..=STARTING).for_each(|at| create_node(store, at * VALIDATOR_EVERY));
        },
        |run| run(),
    )?;
    let before = pod_of(&fleet.store(), "node-001").context("the node has no pod")?;
    fleet.write(
        |store| {
            let pod = Key::new("pods", "default", "node-001-0");
            store.evict(&pod);
        },
        |run| run(),
    )?;
    let store = fleet.store();
    let waiting = format!("node-{:03}", STARTING * VALIDATOR_EVERY);
    assert!(pod_of(&store, &waiting).is_none(), "a signer has started without its check");
    let pod = pod_of(&store, "node-001").context("the evicted pod was not created again")?;
    assert_ne!(pod["metadata"]["uid"], before["metadata"]["uid"]);
    let conditions = pod["status"]["conditions"].as_array().context("no conditions")?;
    let is_ready = |condition: &&Value| condition["type"] == "Ready";
    let ready = conditions.iter().find(is_ready).context("no Ready")?;
    assert_eq!(ready["status"], "True", "the gate of the evicted node is closed");
    Ok(())
}
