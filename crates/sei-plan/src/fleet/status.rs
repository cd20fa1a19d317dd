//! The status of a fleet.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sei_api::fleet::{
    FleetEndpoints, FleetNode, FleetPhase, InternalPorts, InternalService, NodeEndpoints,
    NodeState, PerPodPorts, PerPodService, RolloutStatus, SeiNodeDeploymentStatus, condition_type,
};
use sei_api::names::{annotation, fleet_service};
use sei_api::status::SeiNodePhase;
use sei_api::{SeiNode, condition};

use super::ceremony;
use super::child::stamp;
use super::rollout::{Comparison, Flight, Member, Next};
use super::survey::Survey;
use super::{FleetEvent, FleetSnapshot, name_of};

/// How many nodes a message names.
const NAMED_MAX: usize = 3;

const NOT_COMPARED: &str = "; app hashes were not compared, because every node was down";

const PAUSED: &str = "spec.updateStrategy.paused holds the rollout";

/// The status after a pass.
pub(super) fn report(
    snapshot: &FleetSnapshot,
    survey: &Survey,
    ceremony: ceremony::Report,
    refused: &BTreeMap<String, String>,
) -> SeiNodeDeploymentStatus {
    let before = snapshot.status().cloned().unwrap_or_default();
    if snapshot.is_deleted() {
        return terminating(snapshot, before);
    }
    let own = snapshot.own();
    let replicas = snapshot.replicas();
    let running =
        own.iter().filter(|(_, node)| phase_of(node) == Some(SeiNodePhase::Running)).count();
    let failed =
        own.iter().filter(|(_, node)| phase_of(node) == Some(SeiNodePhase::Failed)).count();
    let is_paused = snapshot.is_paused();
    let rollout = rollout(snapshot, survey);
    let hash = &survey.hash;
    let is_settled = rollout.is_none() && !is_paused;
    let mut status = SeiNodeDeploymentStatus {
        observed_generation: if rollout.is_none() && ceremony.plan.is_none() {
            snapshot.fleet.metadata.generation
        } else {
            before.observed_generation
        },
        template_hash: if is_settled { Some(hash.clone()) } else { before.template_hash.clone() },
        adopted_template: own
            .iter()
            .any(|(_, node)| stamp(node).is_none())
            .then(|| before.adopted_template.clone().unwrap_or_else(|| hash.clone())),
        replicas: Some(snapshot.fleet.spec.replicas),
        ready_replicas: Some(count(running)),
        updated_replicas: Some(count(updated(&survey.members))),
        nodes: own
            .iter()
            .map(|(_, node)| record(snapshot, survey, node, rollout.is_some()))
            .collect(),
        incumbent_nodes: own.iter().map(|(_, node)| name_of(node)).collect(),
        rollout,
        plan: ceremony.plan,
        ceremony: ceremony.ceremony,
        genesis_hash: ceremony.genesis_hash,
        internal_service: internal_service(snapshot),
        per_pod_services: own.iter().map(|(_, node)| per_pod_service(snapshot, node)).collect(),
        ..before
    };
    status.endpoints = endpoints(snapshot, &status);
    let is_upgrading = status.rollout.is_some();
    status.phase = Some(match () {
        () if is_paused => FleetPhase::Paused,
        () if is_upgrading => FleetPhase::Upgrading,
        () if status.plan.is_some() => FleetPhase::Initializing,
        () if own.is_empty() => FleetPhase::Pending,
        () if running == replicas => FleetPhase::Ready,
        () if failed == own.len() => FleetPhase::Failed,
        () if failed > 0 && running > 0 => FleetPhase::Degraded,
        () => FleetPhase::Initializing,
    });
    let verdicts = conditions(snapshot, survey, refused, &status, (running, failed));
    for verdict in verdicts.into_iter().chain(ceremony.verdicts) {
        put(snapshot, &mut status, verdict);
    }
    status
}

fn put(snapshot: &FleetSnapshot, status: &mut SeiNodeDeploymentStatus, verdict: Verdict) {
    condition::put(
        &mut status.conditions,
        Condition {
            type_: verdict.0.to_owned(),
            status: if verdict.1 { "True" } else { "False" }.to_owned(),
            reason: verdict.2.to_owned(),
            message: verdict.3,
            observed_generation: snapshot.fleet.metadata.generation,
            last_transition_time: Time(snapshot.now),
        },
    );
}

/// The status of a deleted fleet.
fn terminating(
    snapshot: &FleetSnapshot,
    before: SeiNodeDeploymentStatus,
) -> SeiNodeDeploymentStatus {
    let mut status = SeiNodeDeploymentStatus { phase: Some(FleetPhase::Terminating), ..before };
    let hands_off = hands_off(snapshot);
    if !hands_off.is_empty() {
        let why = format!("the deleted fleet waits{hands_off}");
        put(snapshot, &mut status, (condition_type::READY, false, "NodesNotReady", why));
    }
    status
}

/// Names the nodes that the fleet leaves as they are.
fn hands_off(snapshot: &FleetSnapshot) -> String {
    let names = snapshot.hands_off();
    if names.is_empty() {
        return String::new();
    }
    format!("; hands-off until annotation {} is removed: {}", annotation::HANDS_OFF, named(&names))
}

/// Type, whether it is True, reason, message.
pub(super) type Verdict = (&'static str, bool, &'static str, String);

fn conditions(
    snapshot: &FleetSnapshot,
    survey: &Survey,
    refused: &BTreeMap<String, String>,
    status: &SeiNodeDeploymentStatus,
    (running, failed): (usize, usize),
) -> Vec<Verdict> {
    let replicas = snapshot.replicas();
    let ready = format!("{running} of {replicas} nodes are in phase Running");
    let nodes = match () {
        () if running >= replicas => (true, "AllNodesReady"),
        () if failed > 0 => (false, "NodesFailed"),
        () => (false, "NodesInitializing"),
    };
    let spec = &snapshot.fleet.spec;
    let networking = match spec.networking {
        None => ("NetworkingDisabled", String::new()),
        Some(_) => (
            "NotSupported",
            "spec.networking is kept and not acted on: this operator creates no routes and no load \
             balancers; the internal Service exists"
                .to_owned(),
        ),
    };
    let mut all = vec![
        (condition_type::NODES_READY, nodes.0, nodes.1, ready),
        (condition_type::NETWORKING_READY, false, networking.0, networking.1),
    ];
    all.extend(rollout_condition(snapshot, survey, status));
    let is_paused = snapshot.is_paused();
    let paused = if is_paused { "Paused" } else { "NotPaused" };
    all.push((condition_type::PAUSED, is_paused, paused, String::new()));
    all.push(summary(snapshot, survey, refused, status));
    all
}

fn rollout_condition(
    snapshot: &FleetSnapshot,
    survey: &Survey,
    status: &SeiNodeDeploymentStatus,
) -> Option<Verdict> {
    let kind = condition_type::ROLLOUT_IN_PROGRESS;
    let before = snapshot.status();
    let known =
        before.and_then(|before| before.conditions.iter().find(|present| present.type_ == kind));
    let Some(rollout) = &status.rollout else {
        let was_rolling = before.is_some_and(|before| before.rollout.is_some());
        let replicas = snapshot.replicas();
        return match known {
            Some(_) if was_rolling => {
                let complete = format!("{replicas} of {replicas} nodes{}", not_compared(survey));
                Some((kind, false, "RolloutComplete", complete))
            }
            Some(known) if known.status == "False" => None,
            _ => Some((kind, false, "NotStarted", String::new())),
        };
    };
    let total = survey.members.len();
    let (updated, healthy) = (updated(&survey.members), healthy(&survey.members));
    let progress = format!("{updated} of {total} nodes are updated, {healthy} healthy");
    if let Next::Halted(why) = &survey.next {
        return Some((kind, true, "RolloutHalted", format!("{progress}; halted by {why}")));
    }
    if survey.next == Next::Paused {
        return Some((kind, true, "RolloutPaused", format!("{progress}; {PAUSED}")));
    }
    let batch = named(&rollout.batch);
    let waits = if batch.is_empty() { String::new() } else { format!("; in progress: {batch}") };
    let hands_off = hands_off(snapshot);
    Some((kind, true, "TemplateChanged", format!("{progress}{waits}{hands_off}")))
}

/// Reports that a canary passed without a comparison.
fn not_compared(survey: &Survey) -> &'static str {
    let is_compared = |member: &Member| {
        survey.app_hashes.iter().any(|record| record.node == member.name && record.result.is_some())
    };
    let mut passed = survey.members.iter().filter(|it| it.comparison == Comparison::Passed);
    if passed.all(is_compared) { "" } else { NOT_COMPARED }
}

/// The condition `Ready`: every node runs the template and is Ready.
fn summary(
    snapshot: &FleetSnapshot,
    survey: &Survey,
    refused: &BTreeMap<String, String>,
    status: &SeiNodeDeploymentStatus,
) -> Verdict {
    let (kind, hands_off) = (condition_type::READY, hands_off(snapshot));
    if snapshot.is_paused() {
        return (kind, false, "Paused", format!("spec.paused stops every node{hands_off}"));
    }
    let foreign = snapshot.foreign();
    if !foreign.is_empty() {
        let what = named(&foreign);
        return (kind, false, "NodeConflict", format!("{what}; delete or rename it, or the fleet"));
    }
    let uid = snapshot.fleet.metadata.uid.as_deref();
    if let Some(service) = &snapshot.service
        && !service.is_controlled_by(uid)
    {
        let note = format!("Service {} is not of this fleet; delete or rename it", service.name);
        return (kind, false, "ServiceConflict", note);
    }
    if !refused.is_empty() {
        let refusals: Vec<String> =
            refused.iter().map(|(name, why)| format!("{name}: {why}")).collect();
        return (kind, false, "Refused", named(&refusals));
    }
    if let Next::Halted(why) = &survey.next {
        return (kind, false, "RolloutHalted", why.clone());
    }
    if survey.next == Next::Paused {
        return (kind, false, "RolloutPaused", PAUSED.to_owned());
    }
    if status.rollout.is_some() {
        let (updated, total) = (updated(&survey.members), survey.members.len());
        let progress = format!("{updated} of {total} nodes updated{hands_off}");
        return (kind, false, "RolloutInProgress", progress);
    }
    let troubles: Vec<String> = survey
        .members
        .iter()
        .filter(|member| member.state != NodeState::Healthy)
        .map(|member| format!("{}: {}", member.name, member.message))
        .collect();
    if troubles.is_empty() && survey.members.len() == snapshot.replicas() {
        let all = format!("{} nodes{hands_off}", survey.members.len());
        return (kind, true, "AllNodesReady", all);
    }
    (kind, false, "NodesNotReady", format!("{}{hands_off}", named(&troubles)))
}

/// The rollout that is under way, or begins now.
fn rollout(snapshot: &FleetSnapshot, survey: &Survey) -> Option<RolloutStatus> {
    let before = snapshot.status();
    let known = before.and_then(|before| before.rollout.as_ref());
    let baseline = before.and_then(|before| before.template_hash.as_ref());
    let target = &survey.hash;
    let is_complete = survey.members.iter().all(|member| match member.state {
        NodeState::Outdated | NodeState::Updating | NodeState::Broken => false,
        NodeState::Updated => !survey.has_limits,
        NodeState::Healthy => true,
    });
    let is_change = baseline.is_some_and(|baseline| baseline != target) || known.is_some();
    if is_complete || !is_change {
        return None;
    }
    let same = known.filter(|known| known.target_hash == *target);
    let members = &survey.members;
    let (updated, healthy) = (count(updated(members)), count(healthy(members)));
    let batch: Vec<String> = members
        .iter()
        .filter(|member| !matches!(member.state, NodeState::Outdated | NodeState::Healthy))
        .map(|member| member.name.clone())
        .collect();
    let moved = same.is_none_or(|same| {
        same.healthy_replicas != Some(healthy)
            || same.updated_replicas != Some(updated)
            || same.batch != batch
    });
    let now = Time(snapshot.now);
    Some(RolloutStatus {
        target_hash: target.clone(),
        started_at: same.map_or_else(|| now.clone(), |same| same.started_at.clone()),
        updated_replicas: Some(updated),
        healthy_replicas: Some(healthy),
        batch,
        last_progress_at: if moved { Some(now) } else { same?.last_progress_at.clone() },
        halt_reason: match &survey.next {
            Next::Halted(why) => Some(why.clone()),
            _ => None,
        },
        app_hashes: survey.app_hashes.clone(),
    })
}

fn record(
    snapshot: &FleetSnapshot,
    survey: &Survey,
    node: &SeiNode,
    is_rolling: bool,
) -> FleetNode {
    let name = name_of(node);
    let status = node.status.as_ref();
    let plain = FleetNode {
        name: name.clone(),
        phase: phase_of(node),
        current_image: status.and_then(|status| status.current_image.clone()),
        template_hash: stamp(node).map(str::to_owned),
        ..FleetNode::default()
    };
    let Some(member) = survey.members.iter().find(|member| member.name == name) else {
        return plain;
    };
    let is_target = snapshot.target_hash() == Some(survey.hash.as_str());
    let known = snapshot.record(node);
    let before = known.and_then(|known| known.released_at.clone());
    // A node that had the template all along may be unhealthy for another reason: it is not released.
    let is_new = known.is_none_or(|known| {
        known.template_hash.is_none() || known.template_hash != plain.template_hash
    });
    let released_at = match member.state {
        NodeState::Healthy => None,
        // It got an earlier template, and is not healthy since.
        NodeState::Outdated => before
            .or_else(|| is_new.then_some(Time(snapshot.now)))
            .filter(|_| member.flight != Flight::No || member.was_down),
        _ if !is_rolling => None,
        _ if is_new => Some(before.filter(|_| is_target).unwrap_or(Time(snapshot.now))),
        _ => before,
    };
    FleetNode {
        state: Some(member.state),
        was_down: (released_at.is_some() && member.was_down).then_some(true),
        released_at,
        message: message(member),
        ..plain
    }
}

fn message(member: &Member) -> Option<String> {
    let parts = [if member.is_hands_off { "hands-off" } else { "" }, member.message.as_str()];
    let parts: Vec<_> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// What changed, as events.
pub(super) fn events(snapshot: &FleetSnapshot, after: &SeiNodeDeploymentStatus) -> Vec<FleetEvent> {
    let before = snapshot.status().cloned().unwrap_or_default();
    let mut events = Vec::new();
    let mut event = |is_warning, reason, note: String| {
        events.push(FleetEvent { is_warning, reason, note });
    };
    if before.plan.is_none() && after.plan.is_some() {
        event(false, "PlanStarted", "the genesis ceremony begins".to_owned());
    }
    let ceremony = |status: &SeiNodeDeploymentStatus| {
        let kind = condition_type::GENESIS_COMPLETE;
        status.conditions.iter().find(|present| present.type_ == kind).cloned()
    };
    if let Some(after) = ceremony(after)
        && ceremony(&before).is_none_or(|before| before.reason != after.reason)
    {
        match after.reason.as_str() {
            "Complete" => event(false, "PlanComplete", after.message),
            "CeremonyFailed" => event(true, "PlanFailed", after.message),
            _ => {}
        }
    }
    match (&before.rollout, &after.rollout) {
        (None, Some(new)) => {
            event(false, "RolloutStarted", format!("rolls out template {}", new.target_hash));
        }
        (Some(old), Some(new)) if old.target_hash != new.target_hash => {
            let note = format!("template {} replaces {}", new.target_hash, old.target_hash);
            event(false, "RolloutSuperseded", note);
        }
        (Some(old), None) => {
            event(
                false,
                "RolloutComplete",
                format!("template {} is on every node", old.target_hash),
            );
        }
        _ => {}
    }
    let halted = |status: &SeiNodeDeploymentStatus| {
        status.rollout.as_ref().and_then(|rollout| rollout.halt_reason.clone())
    };
    if let Some(why) = halted(after)
        && halted(&before).is_none()
    {
        event(true, "RolloutHalted", why);
    }
    let paused = |status: &SeiNodeDeploymentStatus| status.phase == Some(FleetPhase::Paused);
    match (paused(&before), paused(after)) {
        (false, true) if before.phase.is_some() => {
            event(false, "Paused", "every node is stopped".to_owned());
        }
        (true, false) => event(false, "Unpaused", "every node is started".to_owned()),
        _ => {}
    }
    let conflict = |status: &SeiNodeDeploymentStatus| {
        let ready = status.conditions.iter().find(|present| present.type_ == condition_type::READY);
        let refuses = ["NodeConflict", "ServiceConflict", "Refused"];
        ready.filter(|ready| refuses.contains(&ready.reason.as_str())).cloned()
    };
    if let Some(ready) = conflict(after)
        && conflict(&before).is_none_or(|known| known.message != ready.message)
    {
        let reason = match ready.reason.as_str() {
            "NodeConflict" => "NodeConflict",
            "ServiceConflict" => "ServiceConflict",
            _ => "Refused",
        };
        event(true, reason, ready.message);
    }
    events
}

fn internal_service(snapshot: &FleetSnapshot) -> Option<InternalService> {
    let service = snapshot.service.as_ref()?;
    service.is_controlled_by(snapshot.fleet.metadata.uid.as_deref()).then(|| InternalService {
        name: fleet_service(&snapshot.name()),
        namespace: snapshot.fleet.metadata.namespace.clone().unwrap_or_default(),
        ports: InternalPorts::default(),
    })
}

fn per_pod_service(snapshot: &FleetSnapshot, node: &SeiNode) -> PerPodService {
    PerPodService {
        name: name_of(node),
        namespace: snapshot.fleet.metadata.namespace.clone().unwrap_or_default(),
        ports: PerPodPorts::default(),
    }
}

fn endpoints(snapshot: &FleetSnapshot, status: &SeiNodeDeploymentStatus) -> Option<FleetEndpoints> {
    let namespace = snapshot.fleet.metadata.namespace.clone().unwrap_or_default();
    let of_fleet = |port: i32| {
        let service = status.internal_service.as_ref()?;
        Some(format!("http://{}.{namespace}.svc:{port}", service.name))
    };
    let ports = InternalPorts::default();
    let nodes: Vec<NodeEndpoints> = status
        .per_pod_services
        .iter()
        .map(|service| NodeEndpoints {
            name: service.name.clone(),
            evm_json_rpc: Some(format!(
                "http://{}.{namespace}.svc:{}",
                service.name, service.ports.evm_http
            )),
            evm_ws: Some(format!("ws://{}.{namespace}.svc:{}", service.name, service.ports.evm_ws)),
        })
        .collect();
    let endpoints = FleetEndpoints {
        tendermint_rpc: of_fleet(ports.rpc),
        tendermint_rest: of_fleet(ports.rest),
        nodes,
    };
    (endpoints != FleetEndpoints::default()).then_some(endpoints)
}

pub(super) fn phase_of(node: &SeiNode) -> Option<SeiNodePhase> {
    node.status.as_ref().and_then(|status| status.phase)
}

fn updated(members: &[Member]) -> usize {
    let states = [NodeState::Updated, NodeState::Healthy];
    members.iter().filter(|member| states.contains(&member.state)).count()
}

fn healthy(members: &[Member]) -> usize {
    members.iter().filter(|member| member.state == NodeState::Healthy).count()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// The first few of these texts.
pub(super) fn named(all: &[String]) -> String {
    let mut text = all.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join("; ");
    if all.len() > NAMED_MAX {
        write!(text, "; and {} more", all.len() - NAMED_MAX).expect("a String takes everything");
    }
    text
}
