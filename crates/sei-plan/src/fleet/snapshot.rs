//! What a snapshot of a fleet shows: which nodes are its own, and what its status has about them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sei_api::SeiNode;
use sei_api::fleet::{FleetNode, SeiNodeDeploymentStatus};
use sei_api::names::label;

use super::child::{Target, ordinal_in, stamp};
use super::{FleetSnapshot, is_alive, name_of};
use crate::hands_off::is_hands_off;
use crate::shared::Shared;
use crate::view::controller_of;

impl FleetSnapshot {
    pub(super) fn name(&self) -> String {
        self.fleet.metadata.name.clone().unwrap_or_default()
    }

    pub(super) fn replicas(&self) -> usize {
        usize::try_from(self.fleet.spec.replicas).unwrap_or(0)
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.fleet.metadata.deletion_timestamp.is_some()
    }

    pub(super) fn is_paused(&self) -> bool {
        self.fleet.spec.paused == Some(true)
    }

    pub(super) fn has_limits(&self) -> bool {
        self.fleet.spec.update_strategy.in_place.is_some()
    }

    pub(super) fn status(&self) -> Option<&SeiNodeDeploymentStatus> {
        self.fleet.status.as_ref()
    }

    pub(super) fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status()?.conditions.iter().find(|present| present.type_ == kind)
    }

    /// The hash that the records of nodes in the status are about.
    pub(super) fn target_hash(&self) -> Option<&str> {
        let status = self.status()?;
        let rollout = status.rollout.as_ref().map(|rollout| rollout.target_hash.as_str());
        rollout.or(status.template_hash.as_deref())
    }

    pub(super) fn record(&self, node: &SeiNode) -> Option<&FleetNode> {
        let name = node.metadata.name.as_deref()?;
        self.status()?.nodes.iter().find(|record| record.name == name)
    }

    /// The nodes that the fleet controls, by ordinal.
    pub(super) fn own(&self) -> Vec<(usize, Shared<SeiNode>)> {
        let name = self.name();
        let mut own: Vec<_> = self
            .nodes
            .iter()
            .filter(|node| self.controls(node))
            .filter_map(|node| Some((ordinal_in(&name, node)?, node.clone())))
            .collect();
        own.sort_by_key(|(ordinal, _)| *ordinal);
        own
    }

    pub(super) fn controls(&self, node: &SeiNode) -> bool {
        let uid = self.fleet.metadata.uid.as_deref();
        uid.is_some() && controller_of(&node.metadata).map(|owner| owner.uid.as_str()) == uid
    }

    /// The fleet's nodes that only their user changes.
    pub(super) fn hands_off(&self) -> Vec<String> {
        let own = self.own().into_iter();
        own.filter(|(_, node)| is_hands_off(node)).map(|(_, node)| name_of(&node)).collect()
    }

    /// Nodes of this fleet without a controller: a fleet of this name retained them.
    pub(super) fn orphans(&self) -> impl Iterator<Item = &Shared<SeiNode>> {
        let name = self.name();
        self.nodes.iter().filter(move |node| {
            let labels = node.metadata.labels.as_ref();
            let of = labels.and_then(|labels| labels.get(label::NODE_DEPLOYMENT));
            let ordinal = ordinal_in(&name, node);
            controller_of(&node.metadata).is_none()
                && is_alive(node)
                && of == Some(&name)
                && ordinal.is_some_and(|ordinal| ordinal < self.replicas())
        })
    }

    /// Nodes with the names of this fleet's nodes that others control.
    pub(super) fn foreign(&self) -> Vec<String> {
        let name = self.name();
        let foreign = self.nodes.iter().filter(|node| {
            let ordinal = ordinal_in(&name, node);
            ordinal.is_some_and(|ordinal| ordinal < self.replicas()) && !self.controls(node)
        });
        let describe = |node: &Shared<SeiNode>| match controller_of(&node.metadata) {
            Some(owner) => {
                format!("{} is controlled by {} {}", name_of(node), owner.kind, owner.name)
            }
            None => format!("{} is not of this fleet", name_of(node)),
        };
        foreign.map(describe).collect()
    }

    /// An object of another owner has the name of one of the fleet's.
    pub(super) fn has_conflict(&self) -> bool {
        let uid = self.fleet.metadata.uid.as_deref();
        let service = self.service.as_ref();
        service.is_some_and(|service| !service.is_controlled_by(uid)) || !self.foreign().is_empty()
    }

    /// Whether the node was given the target, and still has it.
    pub(super) fn has_template(&self, target: &Target, ordinal: usize, node: &SeiNode) -> bool {
        if let Some(stamp) = stamp(node) {
            return stamp == target.hash && target.matches(ordinal, node);
        }
        // Another operator made it: what that one never passed on waits for the next template.
        let adopted = self.status().and_then(|status| status.adopted_template.as_deref());
        adopted.is_none_or(|adopted| adopted == target.hash)
            && target.matches_as_passed_on(ordinal, node)
    }

    /// Replaces a node, or adds it.
    pub(super) fn put(&mut self, node: SeiNode) {
        let name = node.metadata.name.clone();
        match self.nodes.iter_mut().find(|known| known.metadata.name == name) {
            Some(known) => *known = Shared::new(node),
            None => self.nodes.push(Shared::new(node)),
        }
    }
}
