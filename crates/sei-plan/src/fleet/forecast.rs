//! What a fleet would do with its spec, and which template it had before, for tools.

use sei_api::SeiNode;
use sei_api::fleet::{NodeTemplate, SeiNodeDeployment};
use sei_api::names::fleet_node;
use sei_api::status::FieldChange;

use super::child::{Target, template_of};
use super::{FleetPass, FleetSnapshot};

/// What a fleet would do to its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    pub creates: Vec<String>,
    /// In this order.
    pub deletes: Vec<String>,
    /// In the order in which they get the template.
    pub updates: Vec<NodeForecast>,
    /// Nodes that stay as they are, by `sei.io/hands-off`.
    pub hands_off: Vec<String>,
    /// How many nodes may be down at once; `None` without a limit.
    pub max_unavailable: Option<usize>,
    /// No node gets the template: the fleet or its rollout is paused.
    pub is_held: bool,
    /// The number of nodes of a ceremony, which holds `replicas` until it is complete.
    pub ceremony: Option<usize>,
}

/// What a node would get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeForecast {
    pub name: String,
    /// Others follow when it is healthy.
    pub is_canary: bool,
    /// It is down, and gets the template without regard to the limit.
    pub is_down: bool,
    /// The fields of its spec that change; none if only labels or annotations of the node do.
    pub changes: Vec<FieldChange>,
}

/// What the fleet of this snapshot would do to its nodes.
pub fn forecast(snapshot: FleetSnapshot) -> Forecast {
    let pass = FleetPass::begin(snapshot);
    let (snapshot, survey) = (&pass.snapshot, pass.survey());
    let (own, replicas) = (snapshot.own(), snapshot.nodes_now());
    let names = (0..replicas).map(|ordinal| fleet_node(&snapshot.name(), ordinal));
    let surplus = own.iter().rev().filter(|(at, node)| *at >= replicas && pass.may_write(node));
    let changes = |ordinal: usize| {
        let node = own.iter().find(|(at, _)| *at == ordinal);
        node.map(|(_, node)| pass.target.changes(ordinal, node)).unwrap_or_default()
    };
    let outdated = survey.members.iter().filter(|member| member.is_open());
    let outdated = outdated.map(|member| NodeForecast {
        name: member.name.clone(),
        is_canary: survey.limits.is_canary(member.place),
        is_down: member.is_down,
        changes: changes(member.ordinal),
    });
    let mut updates: Vec<NodeForecast> = outdated.collect();
    updates.sort_by_key(|node| !node.is_down);
    Forecast {
        creates: names.filter(|name| pass.node(name).is_none()).collect(),
        deletes: surplus.map(|(_, node)| super::name_of(node)).collect(),
        updates,
        hands_off: snapshot.hands_off(),
        max_unavailable: survey.limits.max_unavailable(),
        is_held: snapshot.is_paused() || snapshot.fleet.spec.rollouts_are_paused(),
        ceremony: Some(replicas).filter(|replicas| *replicas != snapshot.replicas()),
    }
}

/// The template that every node had before the rollout, as a node that has it still shows. A node that
/// was edited by hand shows none: the hash in the status proves the template.
pub fn previous_template(fleet: &SeiNodeDeployment, nodes: &[SeiNode]) -> Option<NodeTemplate> {
    let before = fleet.status.as_ref()?.template_hash.as_deref()?;
    let hash_of = |template: &NodeTemplate| {
        let mut fleet = fleet.clone();
        fleet.spec.template = template.clone();
        Target::of(&fleet).hash
    };
    if hash_of(&fleet.spec.template) == before {
        return None;
    }
    let candidates = nodes.iter().flat_map(|node| {
        let template = template_of(fleet, node);
        // A user may have set it on the node.
        let mut without = template.clone();
        without.spec.update = None;
        [template, without]
    });
    candidates.into_iter().find(|template| hash_of(template) == before)
}
