//! Slots of a chain's budget, by the caches and the memory of one operator.

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_plan::budget::{self, Budget, Member, Roll, Standing};
use sei_plan::platform::BudgetScope;
use sei_plan::snapshot::Slot;
use sei_plan::view::own_pod;

use crate::cluster::Cluster;
use crate::operator::{Operator, is_current};

impl Operator {
    pub(crate) fn take_slot(
        &mut self,
        cluster: &Cluster,
        key: &ObjectKey,
        node: &SeiNode,
        roll: Roll,
    ) -> Slot {
        let budget = cluster.budget();
        let chain = self.chain_of(key, node);
        let me = self.member(cluster, key, node, &budget);
        let mut others = Vec::new();
        for (member_key, cached) in &self.caches.nodes {
            let is_deleted = cached.metadata.deletion_timestamp.is_some();
            if member_key == key || is_deleted || self.chain_of(member_key, cached) != chain {
                continue;
            }
            let mut member = self.member(cluster, member_key, cached, &budget);
            if self.granted.contains(member_key) {
                member.standing = Standing::Rolls;
            }
            if !self.reconciled.contains(member_key) {
                member.standing = Standing::Unknown;
            }
            others.push(member);
        }
        let slot = budget::grant(&me, roll, &others, &budget);
        if slot.is_granted() {
            self.granted.insert(key.clone());
        }
        slot
    }

    fn chain_of(&self, key: &ObjectKey, node: &SeiNode) -> String {
        let set = self.caches.sets.get(key).map(|set| &**set);
        budget::chain_of(node, set, BudgetScope::Cluster)
    }

    fn member(
        &self,
        cluster: &Cluster,
        key: &ObjectKey,
        cached: &SeiNode,
        budget: &Budget,
    ) -> Member {
        let pods = self.caches.pods_of(key);
        let set = self.caches.sets.get(key).map(|set| &**set);
        let uid = cached.metadata.uid.as_deref().unwrap_or_default();
        let pod = own_pod(&pods, set, uid).map(|pod| &**pod).filter(|pod| !pod.is_terminating());
        let latest = self.memory.get(key).and_then(|memory| memory.latest.as_deref());
        let newest = latest.filter(|latest| is_current(latest, cached)).unwrap_or(cached);
        Member::of(newest, pod, budget, self.now(cluster))
    }
}
