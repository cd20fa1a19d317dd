//! Who of a chain may roll now.
//!
//! A slot is derived from the nodes' own plans, so it survives a crash; what is kept in memory is
//! only the grant that no stored plan shows yet.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sei_api::SeiNode;
use sei_api::condition::{self, ConditionType, Truth};
use sei_api::status::{Cause, UpdateState};
use sei_plan::observation::Slot;

use crate::caches::NodeKey;

/// Grants that no stored plan shows yet, by chain.
#[derive(Debug, Default)]
pub struct Slots {
    granted: Mutex<BTreeMap<(String, NodeKey), Instant>>,
}

/// A grant that was not used by then has lapsed.
const GRANT_LIFE: Duration = Duration::from_secs(10);

impl Slots {
    /// Asks for a slot of the node's chain. `others` are all nodes; `limit` is the chain's budget.
    pub fn ask(&self, node: &SeiNode, key: &NodeKey, others: &[&SeiNode], limit: usize) -> Slot {
        let chain = &node.spec.chain_id;
        let of_chain = others.iter().filter(|other| {
            other.spec.chain_id == *chain && other.metadata.uid != node.metadata.uid
        });
        let mut holders: Vec<String> = Vec::new();
        for other in of_chain {
            match holds(other) {
                Holds::Nothing => {}
                Holds::Slot => holders.push(name(other)),
                Holds::Failed => return Slot::Halted { by: name(other) },
            }
        }
        let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = granted
            .iter()
            .filter(|((of, who), at)| of == chain && who != key && at.elapsed() < GRANT_LIFE);
        holders.extend(fresh.map(|((_, (namespace, name)), _)| format!("{namespace}/{name}")));
        holders.sort();
        holders.dedup();
        if holders.len() < limit { Slot::Granted } else { Slot::Taken { by: holders.join(", ") } }
    }

    /// Notes that a node has started a plan on its slot.
    pub fn take(&self, node: &SeiNode, key: &NodeKey) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        granted.retain(|_, at| at.elapsed() < GRANT_LIFE);
        granted.insert((node.spec.chain_id.clone(), key.clone()), Instant::now());
    }
}

enum Holds {
    Nothing,
    Slot,
    Failed,
}

/// Whether a node uses its chain's budget: it rolls for a reason that nobody gave on it, or it did
/// and failed.
fn holds(node: &SeiNode) -> Holds {
    let Some(status) = &node.status else { return Holds::Nothing };
    let budgeted = |cause: Cause| cause != Cause::Spec || node.spec.signs();
    let pending = status.pending_update.as_ref().filter(|one| budgeted(one.cause));
    let stalled = condition::is(&status.conditions, ConditionType::Stalled, Truth::True);
    match pending.map(|pending| pending.state) {
        Some(UpdateState::Rolling) if stalled => Holds::Failed,
        Some(UpdateState::Retrying) => Holds::Failed,
        Some(UpdateState::Rolling) => Holds::Slot,
        _ => Holds::Nothing,
    }
}

fn name(node: &SeiNode) -> String {
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", node.metadata.name.as_deref().unwrap_or_default())
}
