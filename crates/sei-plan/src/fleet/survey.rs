//! How far a template has reached the nodes of a fleet, from everything that a pass knows.

use std::collections::BTreeMap;

use sei_api::SeiNode;
use sei_api::fleet::AppHashComparison;

use super::child::{stamp, was_released_down};
use super::rollout::{self, Comparison, Context, Limits, Member, Next, Release};
use super::{FleetPass, name_of};
use crate::hands_off::is_hands_off;
use crate::shared::Shared;

/// How far the template has reached the nodes, and what comes next.
#[derive(Clone, Debug)]
pub(super) struct Survey {
    /// Hash of the target.
    pub(super) hash: String,
    /// The nodes below `spec.replicas`, in the order of the rollout.
    pub(super) members: Vec<Member>,
    pub(super) next: Next,
    pub(super) limits: Limits,
    pub(super) has_limits: bool,
    /// The app hashes of canaries.
    pub(super) app_hashes: Vec<AppHashComparison>,
}

/// The nodes below `spec.replicas`, by ordinal.
type Nodes = BTreeMap<usize, Shared<SeiNode>>;

impl FleetPass {
    /// How far the template has reached the nodes.
    pub(super) fn survey(&self) -> Survey {
        let snapshot = &self.snapshot;
        let replicas = snapshot.replicas();
        let limits = Limits::of(&snapshot.fleet.spec.update_strategy, replicas);
        let own = snapshot.own().into_iter();
        let members = self.members(&limits, &own.filter(|(at, _)| *at < replicas).collect());
        // A node whose write the server refuses would be released again and again.
        let open = members.iter().filter(|member| !self.refused.contains_key(&member.name));
        Survey {
            hash: self.target.hash.clone(),
            next: rollout::next(&open.cloned().collect::<Vec<_>>(), &limits),
            app_hashes: self.comparisons.records(&members),
            has_limits: snapshot.has_limits(),
            members,
            limits,
        }
    }

    /// The nodes in the order of the rollout.
    fn members(&self, limits: &Limits, nodes: &Nodes) -> Vec<Member> {
        let is_unopposed = self.is_unopposed(limits, nodes);
        let mut places = 0;
        let member = |ordinal: usize| {
            let node = nodes.get(&ordinal)?;
            let (place, has_template) = (places, self.current.contains(&name_of(node)));
            let refusal = self.refused.get(&name_of(node));
            // The next node takes the place of one that cannot get the template.
            places += usize::from((has_template || !is_hands_off(node)) && refusal.is_none());
            let comparison = match self.comparisons.of(&name_of(node)) {
                _ if !self.comparisons.is_needed() || !limits.is_canary(place) => {
                    Comparison::NotNeeded
                }
                // Another operator gave it this template.
                _ if has_template && stamp(node).is_none() => Comparison::NotNeeded,
                Comparison::Waiting(_) if is_unopposed => Comparison::Passed,
                comparison => comparison,
            };
            let context = Context {
                limits,
                has_template,
                is_stamped: stamp(node).is_some(),
                release: self.release(node),
                comparison,
                place,
                now: self.snapshot.now,
            };
            let mut member = Member::of(node, ordinal, &context);
            if let Some(why) = refusal {
                member.message.clone_from(why);
            }
            Some(member)
        };
        rollout::in_order(limits, nodes.keys().copied()).into_iter().filter_map(member).collect()
    }

    /// Every node has the template, and got it while it was down or is a canary: in a halted chain
    /// nothing can be compared, and afterwards no node is left to compare with.
    fn is_unopposed(&self, limits: &Limits, nodes: &Nodes) -> bool {
        let up = nodes.values().filter(|node| !was_released_down(node)).count();
        nodes.values().all(|node| self.current.contains(&name_of(node))) && up <= limits.canaries()
    }

    /// When the node got a template that it was not healthy with since, in this pass or before.
    fn release(&self, node: &SeiNode) -> Option<Release> {
        let snapshot = &self.snapshot;
        if self.released_down.contains(&name_of(node)) {
            return Some(Release { at: snapshot.now, is_of_target: true, was_down: true });
        }
        let record = snapshot.record(node)?;
        let (known, given) = (record.template_hash.as_deref(), stamp(node));
        if known.is_some() && known != given {
            // The operator ended before it wrote the status.
            let is_of_target = given == Some(self.target.hash.as_str());
            return Some(Release {
                at: snapshot.now,
                is_of_target,
                was_down: was_released_down(node),
            });
        }
        Some(Release {
            at: record.released_at.as_ref()?.0,
            is_of_target: snapshot.target_hash() == Some(self.target.hash.as_str()),
            was_down: record.was_down == Some(true) && was_released_down(node),
        })
    }
}
