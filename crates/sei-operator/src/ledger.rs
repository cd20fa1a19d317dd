//! The one place where slots of a chain's budget are granted.
//!
//! Who has a slot is read off the nodes' own records and pods at every question (`sei_plan::budget`
//! says how), so a new leader knows it from its first list. Kept in memory is only what nobody can
//! read there yet: grants of passes that have not written their plan, and who was looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;
use sei_api::SeiNode;
use sei_plan::budget::{self, Budget, Member, Standing};
use sei_plan::observation::Slot;
use sei_plan::view::{PodView, is_owned};

use crate::caches::NodeKey;
use crate::context::{Context, decoded};
use crate::desk::newest;

/// Grants and standings of all nodes.
#[derive(Debug, Default)]
pub struct Ledger {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// Nodes that this process has looked at. Before all of a chain were, nobody knows who waits,
    /// and so whose turn it is.
    looked: BTreeSet<NodeKey>,
    /// Grants of passes that are under way.
    granted: BTreeSet<NodeKey>,
    /// How each stood after its last pass, and in which chain.
    standings: BTreeMap<NodeKey, (String, Standing)>,
}

impl Ledger {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a slot of the node's chain. One that is granted counts as taken at once, until the
    /// pass has ended and the node's own record tells.
    pub(crate) fn ask(&self, node: &SeiNode, key: &NodeKey, context: &Context) -> Slot {
        let budget = context.budget();
        let mut books = self.books();
        let me = member(node, key, context, &budget);
        let mut others = Vec::new();
        for (other, mut member) in chain(&node.spec.chain_id, context, &budget) {
            if other == *key {
                continue;
            }
            if !books.looked.contains(&other) && !me.rolls() {
                return Slot::InLine { limit: budget.limit };
            }
            if books.granted.contains(&other) {
                member.standing = Standing::Rolls;
            }
            others.push(member);
        }
        let slot = budget::grant(&me, &others, &budget);
        if slot == Slot::Granted {
            books.granted.insert(key.clone());
        }
        slot
    }

    /// Takes note of a node after a pass over it, and wakes those of its chain for whom that makes
    /// a difference. After a pass that ended in an error its grant stays: its plan may have been
    /// written although nobody told us so.
    pub(crate) fn looked_at(&self, key: &NodeKey, context: &Context, went_well: bool) {
        let cached = context.nodes.get(&ObjectRef::new(&key.1).within(&key.0));
        let cached = cached.as_ref().and_then(|node| node.0.as_ref().ok());
        let there = cached.filter(|node| node.metadata.deletion_timestamp.is_none());
        let Some(cached) = there else {
            return self.forget(key, cached.map(|node| node.spec.chain_id.clone()), context);
        };
        let (chain_id, budget) = (&cached.spec.chain_id, context.budget());
        let stands = member(cached, key, context, &budget).standing;
        let mut books = self.books();
        let is_first = books.looked.insert(key.clone());
        let was_granted = went_well && books.granted.remove(key);
        let stood = books.standings.insert(key.clone(), (chain_id.clone(), stands.clone()));
        let moved = stood.as_ref().is_some_and(|(_, stood)| *stood != stands);
        let chain_is_known = is_first && books.knows(chain_id, context);
        drop(books);
        let halts =
            stands == Standing::Failed || stood.is_some_and(|(_, stood)| stood == Standing::Failed);
        if moved && halts {
            wake_all(chain_id, context);
        } else if (moved && stands != Standing::Waits) || chain_is_known || was_granted {
            wake_next(chain_id, context);
        }
    }

    /// A node is gone; what it held is free.
    pub(crate) fn forget(&self, key: &NodeKey, chain_id: Option<String>, context: &Context) {
        let mut books = self.books();
        books.looked.remove(key);
        books.granted.remove(key);
        let stood = books.standings.remove(key);
        drop(books);
        let had_failed = stood.as_ref().is_some_and(|(_, stood)| *stood == Standing::Failed);
        match stood.map(|(chain_id, _)| chain_id).or(chain_id) {
            Some(chain_id) if had_failed => wake_all(&chain_id, context),
            // Also one that held nothing: it may have been the last that nobody had looked at.
            Some(chain_id) => wake_next(&chain_id, context),
            None => {}
        }
    }
}

impl Books {
    fn knows(&self, chain_id: &str, context: &Context) -> bool {
        let nodes = context.nodes.state();
        let mut of_chain = decoded(&nodes).filter(|node| counts(node, chain_id));
        of_chain.all(|node| key_of(node).is_some_and(|key| self.looked.contains(&key)))
    }
}

fn wake_next(chain_id: &str, context: &Context) {
    wake(chain_id, context.budget(), context);
}

fn wake_all(chain_id: &str, context: &Context) {
    let budget = context.budget();
    wake(chain_id, Budget { limit: usize::MAX, ..budget }, context);
}

fn wake(chain_id: &str, budget: Budget, context: &Context) {
    let members: Vec<_> = chain(chain_id, context, &budget).map(|(_, member)| member).collect();
    for name in budget::next(&members, &budget) {
        if let Some((namespace, name)) = name.split_once('/') {
            context.wake.node(&(namespace.to_owned(), name.to_owned()));
        }
    }
}

/// The nodes of a chain as its budget sees them.
fn chain<'a>(
    chain_id: &'a str,
    context: &'a Context,
    budget: &'a Budget,
) -> impl Iterator<Item = (NodeKey, Member)> + 'a {
    context.all_nodes().into_iter().filter_map(move |node| {
        let node = node.0.as_ref().ok().filter(|node| counts(node, chain_id))?;
        let key = key_of(node)?;
        let member = member(node, &key, context, budget);
        Some((key, member))
    })
}

fn counts(node: &SeiNode, chain_id: &str) -> bool {
    node.spec.chain_id == chain_id && node.metadata.deletion_timestamp.is_none()
}

fn key_of(node: &SeiNode) -> Option<NodeKey> {
    Some((node.namespace()?, node.name_any()))
}

/// A node by our own last write or as the watch has it, whichever is newer.
fn member(cached: &SeiNode, key: &NodeKey, context: &Context, budget: &Budget) -> Member {
    let pods = context.caches.pods.of(key);
    let statefulset = context.caches.statefulsets.get(key, &key.1);
    let own = |pod: &&PodView| {
        statefulset.as_ref().is_some_and(|one| is_owned(pod, one)) && !pod.is_terminating()
    };
    let pod = pods.iter().find(own);
    let judge = |own: Option<&SeiNode>| {
        Member::of(newest(cached, own), pod, budget, jiff::Timestamp::now())
    };
    let known = context.desks.find(key, |desk| judge(desk.latest.as_ref()));
    known.unwrap_or_else(|| judge(None))
}
