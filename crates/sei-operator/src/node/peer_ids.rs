//! p2p ids of nodes, as their sidecars report them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_plan::view::own_pod;

use super::health::Subject;
use super::reconcile::NodeController;
use crate::runtime::controller::reference;

/// Ids by the uid of the pod that reported them.
#[derive(Debug, Default)]
pub(crate) struct PeerIds(Mutex<BTreeMap<String, PeerId>>);

/// What is known of a pod's p2p id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerId {
    /// Its sidecar is being asked, for these nodes.
    Asked(BTreeSet<ObjectKey>),
    /// It did not answer, and is asked again after a while. These nodes are enqueued by its answer.
    Silent(BTreeSet<ObjectKey>),
    Known(String),
}

impl PeerIds {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, PeerId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the ids of pods that no longer exist.
    pub(crate) fn retain(&self, pods: &BTreeSet<String>) {
        self.lock().retain(|uid, id| !matches!(id, PeerId::Known(_)) || pods.contains(uid));
    }

    /// Records that a pod did not answer. Returns the nodes that do not know this yet.
    fn silent(&self, uid: &str) -> BTreeSet<ObjectKey> {
        let mut ids = self.lock();
        let Some(id) = ids.get_mut(uid) else { return BTreeSet::new() };
        let PeerId::Asked(askers) = id else { return BTreeSet::new() };
        let askers = std::mem::take(askers);
        *id = PeerId::Silent(askers.clone());
        askers
    }

    fn replace(&self, uid: &str, id: Option<PeerId>) -> BTreeSet<ObjectKey> {
        let before = match id {
            Some(id) => self.lock().insert(uid.to_owned(), id),
            None => self.lock().remove(uid),
        };
        match before {
            Some(PeerId::Asked(askers) | PeerId::Silent(askers)) => askers,
            Some(PeerId::Known(_)) | None => BTreeSet::new(),
        }
    }
}

impl NodeController {
    /// The p2p id of a peer, from its own pod; no id without such a pod. A pod that was never asked is
    /// asked now, and `asker` is enqueued with the answer.
    pub(crate) fn peer_id(self: &Arc<Self>, peer: &SeiNode, asker: &ObjectKey) -> Option<PeerId> {
        let key = ObjectKey::of(&peer.metadata);
        let (pods, set) =
            (self.caches.pods.of(&key), self.caches.statefulsets.get(&key, &key.name));
        let pod = own_pod(&pods, set.as_deref(), peer.metadata.uid.as_deref()?)?;
        let (subject, uid) = (Subject::of(pod)?, pod.uid.clone());
        let mut ids = self.peer_ids.lock();
        if let Some(known) = ids.get_mut(&uid) {
            if let PeerId::Asked(askers) | PeerId::Silent(askers) = known {
                askers.insert(asker.clone());
            }
            return Some(known.clone());
        }
        ids.insert(uid.clone(), PeerId::Asked(BTreeSet::from([asker.clone()])));
        drop(ids);
        tokio::spawn(ask(key, uid, subject, self.clone()));
        Some(PeerId::Asked(BTreeSet::new()))
    }

    /// Whether this is still the pod to ask for the peer's id. `None`: the peer has no pod to ask now.
    fn is_asked(&self, peer: &ObjectKey, uid: &str) -> Option<bool> {
        let set = self.caches.statefulsets.get(peer, &peer.name)?;
        let pods = self.caches.pods.of(peer);
        let pod = own_pod(&pods, Some(&set), set.controller.as_deref()?)?;
        Subject::of(pod).map(|_| pod.uid == uid)
    }
}

/// Asks a pod until it answers, less and less often. A node is enqueued by the first silence, which
/// it need not wait for, and by the answer: a silent peer must not cause reconciles for ever.
async fn ask(peer: ObjectKey, uid: String, pod: Subject, controller: Arc<NodeController>) {
    let enqueue = |askers: &BTreeSet<ObjectKey>| {
        for key in askers {
            controller.queue.enqueue(key);
        }
    };
    let ids = &controller.peer_ids;
    let mut pauses = pauses(controller.options.timing.poll());
    loop {
        if let Ok(id) = controller.sidecar.node_id(pod.endpoint(&peer)).await {
            return enqueue(&ids.replace(&uid, Some(PeerId::Known(id))));
        }
        enqueue(&ids.silent(&uid));
        tokio::time::sleep(pauses.next().unwrap_or_default()).await;
        let exists = controller.nodes.get(&reference(&peer)).is_some();
        if !exists || controller.is_asked(&peer, &uid) == Some(false) {
            // Another pod is asked, by the nodes that need it.
            return enqueue(&ids.replace(&uid, None));
        }
    }
}

/// The pauses between two questions: doubling, up to twelve times the first.
fn pauses(first: Duration) -> impl Iterator<Item = Duration> {
    let longest = first * 12;
    std::iter::successors(Some(first), move |pause| Some((*pause * 2).min(longest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_enqueues_each_node_once() {
        let ids = PeerIds::default();
        let node = |name: &str| ObjectKey::new("ns", name);
        ids.lock().insert("uid".into(), PeerId::Asked(BTreeSet::from([node("a")])));
        assert_eq!(ids.silent("uid"), BTreeSet::from([node("a")]));
        assert_eq!(ids.silent("uid"), BTreeSet::new(), "it stays silent");
        if let Some(PeerId::Silent(askers)) = ids.lock().get_mut("uid") {
            askers.insert(node("b"));
        }
        let answered = ids.replace("uid", Some(PeerId::Known("id".into())));
        assert_eq!(answered, BTreeSet::from([node("a"), node("b")]));
        let seconds: Vec<_> =
            pauses(Duration::from_secs(5)).map(|pause| pause.as_secs()).take(6).collect();
        assert_eq!(seconds, [5, 10, 20, 40, 60, 60]);
    }
}
