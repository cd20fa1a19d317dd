//! The one place where slots of a chain's budget are granted.
//!
//! Who has a slot is derived from the nodes' own records and pods at every request
//! (`sei_plan::budget` decides), so a new leader knows it from its first list. Only what is not
//! recorded there yet is kept in memory: grants of reconciles that have not written their plan, and
//! which nodes were reconciled at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_plan::budget::{self, Budget, Member, Roll, Standing};
use sei_plan::snapshot::Slot;
use sei_plan::view::own_pod;

use super::reconcile::NodeController;
use super::snapshot::decoded;
use crate::runtime::controller::reference;
use crate::runtime::state::is_current;

/// Grants and standings of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Nodes that this process has reconciled. Before all of a chain were, it is not known which of
    /// them wait, and so whose turn it is.
    reconciled: BTreeSet<ObjectKey>,
    /// Grants of reconciles that have not ended.
    granted: BTreeSet<ObjectKey>,
    /// The standing of each after its last reconcile, and its chain.
    standings: BTreeMap<ObjectKey, (String, Standing)>,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a slot of the node's chain. A granted one counts as taken at once, until the
    /// reconcile has ended and the node's own record shows it.
    pub(crate) fn take(
        &self,
        node: &SeiNode,
        key: &ObjectKey,
        roll: Roll,
        controller: &NodeController,
    ) -> Slot {
        let budget = controller.budget();
        let mut books = self.books();
        let me = member(node, key, controller, &budget);
        let mut others = Vec::new();
        for (member_key, mut member) in chain(&chain_of(node, controller), controller, &budget) {
            if member_key == *key {
                continue;
            }
            if books.granted.contains(&member_key) {
                member.standing = Standing::Rolls;
            }
            if !books.reconciled.contains(&member_key) {
                member.standing = Standing::Unknown;
            }
            others.push(member);
        }
        let slot = budget::grant(&me, roll, &others, &budget);
        if slot.is_granted() {
            books.granted.insert(key.clone());
        }
        slot
    }

    /// Records a node's standing after a reconcile, and enqueues those of its chain for whom it
    /// makes a difference. After a failed reconcile the grant stays: the plan may have been written
    /// although no answer arrived.
    pub(crate) fn finished(&self, key: &ObjectKey, controller: &NodeController, succeeded: bool) {
        let cached = controller.nodes.get(&reference(key));
        let cached = cached.as_ref().and_then(|node| node.decoded());
        let there = cached.filter(|node| node.metadata.deletion_timestamp.is_none());
        let Some(cached) = there else {
            return self.forget(key, cached.map(|node| chain_of(node, controller)), controller);
        };
        let (chain_id, budget) = (&chain_of(cached, controller), controller.budget());
        let stands = member(cached, key, controller, &budget).standing;
        let mut books = self.books();
        let is_first = books.reconciled.insert(key.clone());
        let was_granted = succeeded && books.granted.remove(key);
        let stood = books.standings.insert(key.clone(), (chain_id.clone(), stands.clone()));
        let moved = stood.as_ref().is_some_and(|(_, stood)| *stood != stands);
        let chain_is_known = is_first && books.knows(chain_id, controller);
        drop(books);
        let halts =
            stands == Standing::Failed || stood.is_some_and(|(_, stood)| stood == Standing::Failed);
        if moved && halts {
            enqueue_all(chain_id, controller);
        } else if (moved && stands != Standing::Waits) || chain_is_known || was_granted {
            enqueue_next(chain_id, controller);
        }
    }

    /// A node was deleted; its slot is free.
    pub(crate) fn forget(
        &self,
        key: &ObjectKey,
        chain_id: Option<String>,
        controller: &NodeController,
    ) {
        let mut books = self.books();
        books.reconciled.remove(key);
        books.granted.remove(key);
        let stood = books.standings.remove(key);
        drop(books);
        let had_failed = stood.as_ref().is_some_and(|(_, stood)| *stood == Standing::Failed);
        match stood.map(|(chain_id, _)| chain_id).or(chain_id) {
            Some(chain_id) if had_failed => enqueue_all(&chain_id, controller),
            // Also one without a slot: it may have been the last that was not reconciled yet.
            Some(chain_id) => enqueue_next(&chain_id, controller),
            None => {}
        }
    }
}

impl Books {
    fn knows(&self, chain_id: &str, controller: &NodeController) -> bool {
        let nodes = controller.nodes.state();
        let mut of_chain = decoded(&nodes).filter(|node| counts(node, chain_id, controller));
        of_chain.all(|node| self.reconciled.contains(&ObjectKey::of(&node.metadata)))
    }
}

fn enqueue_next(chain_id: &str, controller: &NodeController) {
    enqueue(chain_id, controller.budget(), controller);
}

fn enqueue_all(chain_id: &str, controller: &NodeController) {
    let budget = controller.budget();
    enqueue(chain_id, Budget { limit: usize::MAX, ..budget }, controller);
}

fn enqueue(chain_id: &str, budget: Budget, controller: &NodeController) {
    let (keys, members): (Vec<_>, Vec<_>) = chain(chain_id, controller, &budget).unzip();
    let next = budget::next(&members, &budget);
    for (key, member) in keys.iter().zip(&members) {
        if next.contains(&member.name) {
            controller.queue.enqueue(key);
        }
    }
}

/// The nodes of a chain as its budget sees them.
fn chain<'a>(
    chain_id: &'a str,
    controller: &'a NodeController,
    budget: &'a Budget,
) -> impl Iterator<Item = (ObjectKey, Member)> + 'a {
    controller.all_nodes().into_iter().filter_map(move |node| {
        let node = node.decoded().filter(|node| counts(node, chain_id, controller))?;
        let key = ObjectKey::of(&node.metadata);
        let member = member(node, &key, controller, budget);
        Some((key, member))
    })
}

fn counts(node: &SeiNode, chain_id: &str, controller: &NodeController) -> bool {
    node.metadata.deletion_timestamp.is_none() && chain_of(node, controller) == chain_id
}

fn chain_of(node: &SeiNode, controller: &NodeController) -> String {
    let key = ObjectKey::of(&node.metadata);
    let set = controller.caches.statefulsets.get(&key, &key.name);
    let scope = controller.platform_file.platform().rollout.budget_scope;
    budget::chain_of(node, set.as_deref(), scope)
}

/// A node by our own last write or as the watch shows it, whichever is newer.
fn member(
    cached: &SeiNode,
    key: &ObjectKey,
    controller: &NodeController,
    budget: &Budget,
) -> Member {
    let pods = controller.caches.pods.of(key);
    let statefulset = controller.caches.statefulsets.get(key, &key.name);
    let uid = cached.metadata.uid.as_deref().unwrap_or_default();
    let pod = own_pod(&pods, statefulset.as_deref(), uid).map(|pod| &**pod);
    let pod = pod.filter(|pod| !pod.is_terminating());
    let latest = controller.states.find(key, |state| state.latest.clone()).flatten();
    let newest = latest.as_deref().filter(|latest| is_current(*latest, cached)).unwrap_or(cached);
    Member::of(newest, pod, budget, jiff::Timestamp::now())
}
