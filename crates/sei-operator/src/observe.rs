//! Gathers what a decision about a node is made from.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use sei_api::SeiNode;
use sei_api::names::{data_claim, proxy_config};
use sei_api::status::{ClaimRef, SeiNodePhase, SeiNodeStatus};
use sei_exec::Cluster;
use sei_exec::sidecar::Health;
use sei_plan::desired::{Desired, render_desired};
use sei_plan::observation::{Claim, Observation, Rollout, Sidecar};
use sei_plan::planner::repair::Others;
use sei_plan::planner::state_sync;
use sei_plan::platform::{Adoption, PodCheck};
use sei_plan::signers;
use sei_plan::view::{PodView, is_owned};
use serde_json::Value;

use crate::caches::{NodeKey, covers};
use crate::context::{Context, NodeId, decoded};
use crate::desk::{Probe, Subject};
use crate::peers;

/// An observation, with what only repairs need.
pub(crate) struct Observed {
    pub observation: Observation,
    pub others: Others,
}

/// Observes a node. `status` is the node's status as far as it is known, stored or not.
pub(crate) async fn observe(
    node: &SeiNode,
    mut status: SeiNodeStatus,
    key: &NodeKey,
    context: &Arc<Context>,
    cluster: &Cluster,
) -> Observed {
    let nodes = context.all_nodes();
    let all: Vec<&SeiNode> = decoded(&nodes).collect();
    let asks_peers = Cell::new(false);
    let resolved = peers::resolve(node, &all, |peer| match node_id(peer, key, context) {
        Some(NodeId::Known(id)) => Some(id),
        Some(NodeId::Asked(_)) => {
            asks_peers.set(true);
            None
        }
        Some(NodeId::Silent(_)) | None => None,
    });
    let asks_peers = asks_peers.get();
    status.resolved_peers = (!resolved.is_empty()).then(|| resolved.clone());
    status.mode = node.spec.mode().map(|mode| mode.to_string());
    let claim = claim(node, &mut status, key, context, cluster).await;
    let syncers = context.witnesses.of(&node.spec.chain_id);
    let witnesses =
        state_sync::check_state_sync(&node.spec, &syncers).witnesses.unwrap_or_default();
    let desired = render_desired(node, &context.platform, &resolved, &witnesses)
        .map(|desired| desired.hashed_by(context.algorithm));
    let statefulset = context.caches.statefulsets.get(key, &key.1);
    let pods = context.caches.pods.of(key);
    let own = statefulset.as_ref().and_then(|one| pods.iter().find(|pod| is_owned(pod, one)));
    let sidecar = health(own, key, context);
    let rollout = &context.platform.rollout;
    let known = SeiNode { status: Some(status), ..node.clone() };
    let observation = Observation {
        now: jiff::Timestamp::now(),
        plan_id: uuid::Uuid::new_v4().to_string(),
        operator_version: context.version.clone(),
        timing: context.timing,
        rollout: Rollout {
            on_operator_change: rollout.on_operator_change,
            adopt_automatically: rollout.adoption == Adoption::Auto,
            settles_in: context.settles_in(),
            checks_pods: rollout.pod_check == PodCheck::DryRun,
            ready_deadline: context.budget().ready_deadline,
        },
        syncers,
        sidecar,
        slot: None,
        asks_peers,
        signing_conflict: signers::older_holder(&known, all.iter().copied()),
        job: context.caches.jobs.of(key).pop(),
        claim,
        adoption: None,
        waiting: None,
        in_flight: false,
        node: known,
        statefulset,
        pods,
        desired: desired.map_err(|error| error.to_string()),
    };
    let others = match &observation.desired {
        Ok(desired) => others(desired, key, context),
        Err(_) => Others { service_is_current: true, proxy_config_is_current: true },
    };
    Observed { observation, others }
}

fn others(desired: &Desired, key: &NodeKey, context: &Context) -> Others {
    let current =
        |live: Option<Value>, desired: Value| live.is_some_and(|live| covers(&live, &desired));
    let service = context.caches.services.get(key, &key.1);
    let config = context.caches.config_maps.get(key, &proxy_config(&key.1));
    Others {
        service_is_current: current(service, without_namespace(&desired.service)),
        proxy_config_is_current: current(config, without_namespace(&desired.proxy_config)),
    }
}

fn without_namespace(object: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    value
}

/// The node's claim. A cache may wake us; that a volume is lost is only believed from a live read.
async fn claim(
    node: &SeiNode,
    status: &mut SeiNodeStatus,
    key: &NodeKey,
    context: &Context,
    cluster: &Cluster,
) -> Claim {
    if node.spec.imported_claim().is_some() {
        return Claim::Unknown;
    }
    let name = data_claim(&key.1);
    if let Some(claim) = context.caches.claims.get(key, &name) {
        let ours = claim.controller.as_deref() == node.metadata.uid.as_deref();
        if status.data_claim.is_none() && status.phase == Some(SeiNodePhase::Running) && ours {
            status.data_claim = Some(ClaimRef { name, uid: claim.uid.clone() });
        }
        return Claim::Present(claim);
    }
    if status.data_claim.is_none() {
        return Claim::Unknown;
    }
    match cluster.claim(&name).await {
        Ok(Some(claim)) => Claim::Present(claim),
        Ok(None) => Claim::Missing,
        Err(_) => Claim::Unknown,
    }
}

/// What the last probe of this very pod said. A pod that was never asked is asked now.
fn health(pod: Option<&PodView>, key: &NodeKey, context: &Arc<Context>) -> Sidecar {
    let subject = pod.and_then(Subject::of);
    if subject.is_none() {
        // Whoever probes the pod that was there before ends with this.
        context.desks.with(key, |desk| desk.probe = None);
    }
    let Some(pod) = pod.filter(|pod| !pod.is_terminating()) else { return Sidecar::Unknown };
    let Some(subject) = subject else {
        return Sidecar::Unreachable(format!("the sidecar of pod {} does not run", pod.name));
    };
    let known = context.desks.with(key, |desk| match &desk.probe {
        Some(probe) if probe.subject == subject => Some(probe.health.clone()),
        _ => {
            desk.probe = Some(Probe { subject: subject.clone(), health: None });
            None
        }
    });
    match known {
        None => {
            tokio::spawn(probe(subject, key.clone(), context.clone()));
            Sidecar::Unknown
        }
        Some(None) => Sidecar::Unknown,
        Some(Some(Health::Ready)) => Sidecar::Ready,
        Some(Some(Health::NotReady)) => Sidecar::NotReady,
        Some(Some(Health::Unreachable(text))) => Sidecar::Unreachable(text),
    }
}

/// Probes one pod's sidecar for as long as that pod is the node's, and wakes the node on news.
async fn probe(subject: Subject, key: NodeKey, context: Arc<Context>) {
    let mut heard = Instant::now();
    loop {
        let health = context.sidecar.probe(&subject.ip).await;
        let news = context.desks.find(&key, |desk| match desk.probe.as_mut() {
            Some(probe) if probe.subject == subject => {
                let news = probe.health.as_ref() != Some(&health);
                probe.health = Some(health.clone());
                Some(news)
            }
            _ => None,
        });
        let Some(news) = news.flatten() else { return };
        context.metrics.probe(&key.0, &health);
        if news {
            context.wake.node(&key);
        }
        // The pod's container state tells of restarts; this is the safety net.
        let pause = match health {
            Health::Ready => Duration::from_secs(60) + jitter(&subject.uid),
            Health::NotReady => Duration::from_secs(5),
            Health::Unreachable(_) => pause_in_silence(heard.elapsed()),
        };
        if !matches!(health, Health::Unreachable(_)) {
            heard = Instant::now();
        }
        tokio::time::sleep(pause).await;
    }
}

/// When a sidecar is asked again that was last heard this long ago. No watch tells of its first
/// word: the proxy in front of it may have to be pulled first. In the first minute it is asked so
/// often that its gate opens within a second of that word. A longer silence is a stall, and asking
/// a whole fleet that often for hours would be noise.
fn pause_in_silence(silent: Duration) -> Duration {
    if silent < Duration::from_secs(60) {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(10)
    }
}

/// Spreads what would otherwise happen to all nodes at once.
fn jitter(uid: &str) -> Duration {
    let sum: u64 = uid.bytes().map(u64::from).sum();
    Duration::from_millis(sum.wrapping_mul(7919) % 6000)
}

/// The operator has just opened the gate itself: the last probe is older than that.
pub(crate) fn gate_opened(context: &Context, key: &NodeKey) {
    context.desks.with(key, |desk| {
        if let Some(probe) = desk.probe.as_mut() {
            probe.health = Some(Health::Ready);
        }
    });
}

/// What is known of a peer's p2p id, by the pod that told it. A pod that was never asked is asked
/// now, and whoever wants to know is woken by the answer.
fn node_id(peer: &SeiNode, asker: &NodeKey, context: &Arc<Context>) -> Option<NodeId> {
    let key: NodeKey = (peer.metadata.namespace.clone()?, peer.metadata.name.clone()?);
    let pods = context.caches.pods.of(&key);
    let pod = pods.iter().find(|pod| !pod.is_bootstrap && Subject::of(pod).is_some())?;
    let (uid, ip) = (pod.uid.clone(), pod.ip.clone()?);
    let mut ids = context.node_ids.lock().unwrap_or_else(PoisonError::into_inner);
    match ids.get_mut(&uid) {
        Some(known) => {
            if let NodeId::Asked(askers) | NodeId::Silent(askers) = known {
                askers.insert(asker.clone());
            }
            return Some(known.clone());
        }
        None => ids.insert(uid.clone(), NodeId::Asked(BTreeSet::from([asker.clone()]))),
    };
    drop(ids);
    tokio::spawn(ask_for_id(uid, ip, context.clone()));
    Some(NodeId::Asked(BTreeSet::new()))
}

async fn ask_for_id(uid: String, ip: String, context: Arc<Context>) {
    let ids = || context.node_ids.lock().unwrap_or_else(PoisonError::into_inner);
    let askers = |known: Option<NodeId>| match known {
        Some(NodeId::Asked(askers) | NodeId::Silent(askers)) => askers,
        Some(NodeId::Known(_)) | None => BTreeSet::new(),
    };
    let wake = |askers: &BTreeSet<NodeKey>| askers.iter().for_each(|one| context.wake.node(one));
    if let Ok(id) = context.sidecar.node_id(&ip).await {
        let waited = askers(ids().insert(uid, NodeId::Known(id)));
        wake(&waited);
        return;
    }
    // Nobody waits for one that does not answer; it is asked again after a while.
    let waited = {
        let mut ids = ids();
        let waited = askers(ids.remove(&uid));
        ids.insert(uid.clone(), NodeId::Silent(waited.clone()));
        waited
    };
    wake(&waited);
    tokio::time::sleep(context.timing.poll()).await;
    let waited = askers(ids().remove(&uid));
    wake(&waited);
}
