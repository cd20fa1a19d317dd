//! Health probes of sidecars: one task per pod, which enqueues its node when the answer changes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sei_api::key::ObjectKey;
use sei_exec::sidecar::{Endpoint, Health};
use sei_plan::snapshot::Sidecar;
use sei_plan::view::{PodView, Proxy};

use super::reconcile::NodeController;

/// The last health probe of the node's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Probe {
    pub(crate) subject: Subject,
    pub(crate) health: Option<Health>,
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
            self.states.with(key, |state| state.probe = None);
            return Sidecar::Unknown;
        };
        if pod.ip.is_none() || !pod.sidecar.running {
            self.states.with(key, |state| state.probe = None);
            return Sidecar::Unreachable(format!("the sidecar of pod {} does not run", pod.name));
        }
        let known = self.states.with(key, |state| match &state.probe {
            Some(probe) if probe.subject.is_of(pod) => Ok(sidecar(probe.health.as_ref())),
            _ => {
                let subject = Subject::of(pod);
                state.probe = subject.clone().map(|subject| Probe { subject, health: None });
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

/// Probes one pod's sidecar for as long as that pod is the node's, and enqueues the node on news.
async fn probe(subject: Subject, key: ObjectKey, controller: Arc<NodeController>) {
    let mut answered = Instant::now();
    loop {
        let health = controller.sidecar.probe(subject.endpoint(&key)).await;
        let news = controller.states.find(&key, |state| match state.probe.as_mut() {
            Some(probe) if probe.subject == subject => {
                let news = probe.health.as_ref() != Some(&health);
                probe.health = Some(health.clone());
                Some(news)
            }
            _ => None,
        });
        let Some(news) = news.flatten() else { return };
        controller.options.metrics.probe(&key.namespace, &health);
        if news {
            controller.queue.enqueue(&key);
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
    let sum: u64 = uid.bytes().map(u64::from).sum();
    Duration::from_millis(sum.wrapping_mul(7919) % 6000)
}
