//! p2p ids of nodes, as their sidecars report them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_plan::view::own_pod;

use super::health::Subject;
use super::reconcile::NodeController;

/// Ids by the uid of the pod that reported them.
#[derive(Debug, Default)]
pub(crate) struct PeerIds(Mutex<BTreeMap<String, PeerId>>);

/// What is known of a pod's p2p id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PeerId {
    /// Its sidecar is being asked, for these nodes.
    Asked(BTreeSet<ObjectKey>),
    /// It did not answer these nodes, and is asked again after a while.
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
    /// The p2p id of a peer, from its own pod; no id without such a pod. A pod that was never asked is asked now, and `asker` is enqueued with
    /// the answer.
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
        tokio::spawn(ask(uid, subject, key, self.clone()));
        Some(PeerId::Asked(BTreeSet::new()))
    }
}

async fn ask(uid: String, pod: Subject, peer: ObjectKey, controller: Arc<NodeController>) {
    let enqueue = |askers: &BTreeSet<ObjectKey>| {
        for key in askers {
            controller.queue.enqueue(key);
        }
    };
    let ids = &controller.peer_ids;
    if let Ok(id) = controller.sidecar.node_id(pod.endpoint(&peer)).await {
        enqueue(&ids.replace(&uid, Some(PeerId::Known(id))));
        return;
    }
    // No node waits for a sidecar that does not answer; it is asked again after a while.
    let askers = ids.replace(&uid, None);
    ids.replace(&uid, Some(PeerId::Silent(askers.clone())));
    enqueue(&askers);
    tokio::time::sleep(controller.options.timing.poll()).await;
    enqueue(&ids.replace(&uid, None));
}
