//! Probes of pods: one task per pod, which enqueues its node when the health of the sidecar changes
//! or when blocks stop or come again. A height alone enqueues nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sei_api::condition::{ConditionStatus, ConditionType, find};
use sei_api::key::ObjectKey;
use sei_exec::sidecar::{Endpoint, Health};
use sei_plan::chain::{Blocks, Progress};
use sei_plan::snapshot::Sidecar;
use sei_plan::view::{PodView, Proxy, chain_of, own_pod};

use super::reconcile::NodeController;
use super::state::NodeState;
use crate::runtime::controller::reference;

/// The last probes of the node's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) subject: Subject,
    pub(crate) health: Option<Health>,
    pub(crate) progress: Progress,
}

/// What a probe is about: this pod, with its sidecar started this often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    uid: String,
    ip: String,
    proxy: Proxy,
    restarts: i32,
}

impl Subject {
    /// The subject of a pod whose sidecar can be probed.
    pub(crate) fn of(pod: &PodView) -> Option<Self> {
        let ip = pod.ip.as_ref().filter(|_| pod.sidecar.running && !pod.is_terminating())?;
        let (uid, ip) = (pod.uid.clone(), ip.clone());
        Some(Self { uid, ip, proxy: pod.proxy, restarts: pod.sidecar.restarts })
    }

    pub(crate) fn endpoint<'a>(&'a self, node: &'a ObjectKey) -> Endpoint<'a> {
        Endpoint { node, ip: &self.ip, proxy: self.proxy }
    }

    fn is_of(&self, pod: &PodView) -> bool {
        self.uid == pod.uid
            && Some(&self.ip) == pod.ip.as_ref()
            && self.restarts == pod.sidecar.restarts
    }
}

impl NodeController {
    /// What the last probe of this very pod found. The first call for a pod starts its probes.
    pub(crate) fn health(self: &Arc<Self>, pod: Option<&PodView>, key: &ObjectKey) -> Sidecar {
        let Some(pod) = pod.filter(|pod| !pod.is_terminating()) else {
            self.end_probes(key);
            return Sidecar::Unknown;
        };
        if pod.ip.is_none() || !pod.sidecar.running {
            self.end_probes(key);
            return Sidecar::Unreachable(format!("the sidecar of pod {} does not run", pod.name));
        }
        let known = self.states.with(key, |state| match &state.probe {
            Some(probe) if probe.subject.is_of(pod) => Ok(sidecar(probe.health.as_ref())),
            _ => {
                let subject = Subject::of(pod);
                let probe =
                    |subject| Probe { subject, health: None, progress: Progress::default() };
                state.probe = subject.clone().map(probe);
                self.options.metrics.chain(key, None);
                Err(subject)
            }
        });
        known.unwrap_or_else(|subject| {
            if let Some(subject) = subject {
                tokio::spawn(probe(subject, key.clone(), self.clone()));
            }
            Sidecar::Unknown
        })
    }

    /// Whether this node sees new blocks, by the last probes of its pod.
    pub(crate) fn blocks(&self, key: &ObjectKey) -> Blocks {
        let blocks =
            |state: &mut NodeState| state.probe.as_ref().map(|probe| probe.progress.blocks);
        self.states.with(key, blocks).unwrap_or_default()
    }

    /// Ends the probes of the node's pod.
    pub(crate) fn end_probes(&self, key: &ObjectKey) {
        self.states.with(key, |state| {
            state.probe = None;
            self.options.metrics.chain(key, None);
        });
    }

    /// Whether the node is recorded as halted, so that new blocks are news.
    fn is_halted(&self, key: &ObjectKey) -> bool {
        let Some(node) = self.nodes.get(&reference(key)) else { return false };
        let status = node.decoded().and_then(|node| node.status.as_ref());
        let halted = status.and_then(|status| find(&status.conditions, ConditionType::Halted));
        halted.is_some_and(|halted| halted.status != ConditionStatus::False.as_str())
    }

    /// The chain of the node, if this pod is its own and its chain process runs.
    fn chain_of(&self, key: &ObjectKey, subject: &Subject) -> Option<String> {
        let node = self.nodes.get(&reference(key))?;
        let node = node.decoded()?;
        let set = self.caches.statefulsets.get(key, &key.name);
        let pods = self.caches.pods.of(key);
        let pod = own_pod(&pods, set.as_deref(), node.metadata.uid.as_deref()?)?;
        let runs = subject.is_of(pod) && pod.seid.running && !pod.is_terminating();
        runs.then(|| chain_of(node, set.as_deref()).to_owned())
    }

    /// The operator has just opened the gate itself: the last probe is older than that.
    pub(crate) fn gate_opened(&self, key: &ObjectKey) {
        self.states.with(key, |state| {
            if let Some(probe) = state.probe.as_mut() {
                probe.health = Some(Health::Ready);
            }
        });
    }
}

fn sidecar(health: Option<&Health>) -> Sidecar {
    match health {
        None => Sidecar::Unknown,
        Some(Health::Ready) => Sidecar::Ready,
        Some(Health::NotReady) => Sidecar::NotReady,
        Some(Health::Unreachable(text)) => Sidecar::Unreachable(text.clone()),
    }
}

/// Probes one pod for as long as it is the node's.
async fn probe(subject: Subject, key: ObjectKey, controller: Arc<NodeController>) {
    tokio::join!(
        probe_sidecar(&subject, &key, &controller),
        probe_chain(&subject, &key, &controller)
    );
}

/// Reads the pod's RPC, and enqueues the node when blocks stop or come again. What is read goes into
/// metrics: a height in a status would be a write for every node and every probe.
async fn probe_chain(subject: &Subject, key: &ObjectKey, controller: &Arc<NodeController>) {
    let timing = controller.options.timing;
    if controller.options.rpc_reads == 0 {
        return;
    }
    // Pods of one rollout start together: the first probes are spread over a whole pause.
    tokio::time::sleep(timing.chain_probe().mul_f64(share(&subject.uid))).await;
    loop {
        let read = match controller.chain_of(key, subject) {
            None => None,
            Some(chain_id) => {
                let Ok(_permit) = controller.rpc_reads.acquire().await else { return };
                // Boxed like the probe of the sidecar.
                Some(Box::pin(controller.sidecar.chain_facts(&subject.ip, &chain_id)).await)
            }
        };
        let now = jiff::Timestamp::now();
        let news = controller.states.find(key, |state| {
            let probe = state.probe.as_mut().filter(|probe| probe.subject == *subject)?;
            let before = probe.progress.blocks;
            if let Some(Ok(facts)) = &read {
                probe.progress.observe(facts, now, timing.halt());
            }
            // Under the lock: facts of a pod that has just ended must not appear after its end.
            controller.options.metrics.chain(key, read);
            Some((probe.progress.blocks != before).then_some(probe.progress.blocks))
        });
        let Some(news) = news.flatten() else { return };
        if news.is_some_and(|blocks| blocks != Blocks::Advance || controller.is_halted(key)) {
            controller.queue.enqueue(key);
        }
        let jitter = timing.chain_probe().mul_f64(0.2 * share(&subject.uid));
        tokio::time::sleep(timing.chain_probe() + jitter).await;
    }
}

/// Probes one pod's sidecar for as long as that pod is the node's, and enqueues the node on news.
async fn probe_sidecar(subject: &Subject, key: &ObjectKey, controller: &Arc<NodeController>) {
    let mut answered = Instant::now();
    loop {
        // Boxed: between two probes the task needs no room for a call.
        let health = Box::pin(controller.sidecar.probe(subject.endpoint(key))).await;
        let news = controller.states.find(key, |state| match state.probe.as_mut() {
            Some(probe) if probe.subject == *subject => {
                let news = probe.health.as_ref() != Some(&health);
                probe.health = Some(health.clone());
                Some(news)
            }
            _ => None,
        });
        let Some(news) = news.flatten() else { return };
        controller.options.metrics.probe(&key.namespace, &health);
        if news {
            controller.queue.enqueue(key);
        }
        // The pod's container state shows restarts; this is the safety net.
        let pause = match health {
            Health::Ready => Duration::from_secs(60) + jitter(&subject.uid),
            Health::NotReady => Duration::from_secs(5),
            Health::Unreachable(_) => pause_while_unreachable(answered.elapsed()),
        };
        if !matches!(health, Health::Unreachable(_)) {
            answered = Instant::now();
        }
        tokio::time::sleep(pause).await;
    }
}

/// When a sidecar is probed again that last answered this long ago. No watch reports its first
/// answer: the proxy in front of it may have to be pulled first. In the first minute it is probed so
/// often that its gate opens within a second of that answer. A longer silence is a stall, and
/// probing a whole fleet that often for hours would be noise.
fn pause_while_unreachable(silent: Duration) -> Duration {
    if silent < Duration::from_secs(60) {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(10)
    }
}

/// Spreads what would otherwise happen to all nodes at once.
fn jitter(uid: &str) -> Duration {
    Duration::from_secs(6).mul_f64(share(uid))
}

/// A part of 1 for each pod, always the same.
fn share(uid: &str) -> f64 {
    let sum = uid.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    f64::from(sum % 1000) / 1000.0
}
