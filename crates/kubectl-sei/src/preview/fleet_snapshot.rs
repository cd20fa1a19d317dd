//! The objects of a fleet that a preview reads, and the snapshots made of them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::{Client, ResourceExt};
use sei_api::SeiNode;
use sei_api::names::{data_claim, label};
use sei_api::status::FieldChange;
use sei_exec::compare::compare_template;
use sei_exec::perform::claim_view;
use sei_plan::adoption::Comparison;
use sei_plan::chain::Blocks;
use sei_plan::desired::render_desired;
use sei_plan::planner::state_sync;
use sei_plan::platform::Adoption;
use sei_plan::request::{ClaimView, MountView};
use sei_plan::shared::Shared;
use sei_plan::signers;
use sei_plan::snapshot::{Claim, Current, RegisteredWitnesses, Rollout, Sidecar, Slot, Snapshot};
use sei_plan::template::Template;
use sei_plan::timing::Timing;
use sei_plan::view::{Controller, PodView, StatefulSetView};

use super::Candidate;
use crate::cluster::{Scope, Unreadable, all_nodes};
use crate::error::{Error, call_error};

/// A node, by namespace and name.
pub(super) type Key = (String, String);

/// The nodes of a fleet with their `StatefulSets`, pods and claims.
#[derive(Default)]
pub(super) struct FleetSnapshot {
    /// Compares pods on the server; `None` for a preview of manifests.
    pub(super) client: Option<Client>,
    pub(super) nodes: Vec<SeiNode>,
    pub(super) unreadable: Vec<Unreadable>,
    pub(super) statefulsets: BTreeMap<Key, StatefulSetView>,
    pub(super) pods: BTreeMap<Key, Vec<PodView>>,
    /// By namespace and name of the claim; `None` if claims were not read.
    pub(super) claims: Option<BTreeMap<Key, ClaimView>>,
    /// Storage classes by namespace and name of the claim.
    pub(super) classes: BTreeMap<Key, String>,
}

impl FleetSnapshot {
    /// Lists the objects in a cluster.
    pub(super) async fn read(client: &Client, scope: &Scope) -> Result<Self, Error> {
        let (mut nodes, mut unreadable) = (Vec::new(), Vec::new());
        for found in all_nodes(client, scope).await? {
            match found {
                Ok(node) => nodes.push(node),
                Err(node) => unreadable.push(node),
            }
        }
        let sets: Vec<StatefulSet> = scope.list(client, "list statefulsets", label::NODE).await?;
        let pods: Vec<Pod> = scope.list(client, "list pods", label::NODE).await?;
        let claims: Vec<PersistentVolumeClaim> =
            scope.list(client, "list persistentvolumeclaims", label::NODE).await?;
        let mut fleet = Self { client: Some(client.clone()), nodes, unreadable, ..Self::default() };
        for set in &sets {
            fleet.statefulsets.insert(key_of(set), set.into());
        }
        for pod in &pods {
            fleet.add_pod(pod);
        }
        fleet.claims =
            Some(claims.iter().map(|claim| (key_of(claim), claim_view(claim))).collect());
        let class = |claim: &PersistentVolumeClaim| {
            Some((key_of(claim), claim.spec.as_ref()?.storage_class_name.clone()?))
        };
        fleet.classes = claims.iter().filter_map(class).collect();
        Ok(fleet)
    }

    pub(super) fn add_pod(&mut self, pod: &Pod) {
        if let Some(node) = pod.labels().get(label::NODE) {
            let key = (pod.namespace().unwrap_or_default(), node.clone());
            self.pods.entry(key).or_default().push(pod.into());
        }
    }

    /// The node as an operator with the candidate configuration would observe it after its settle
    /// time, with a slot for every node and with every sidecar ready. The planner then starts what
    /// it would start in the end; `order` computes the turns.
    pub(super) fn observe(&self, node: &SeiNode, candidate: &Candidate<'_>) -> Snapshot {
        let key = key_of(node);
        let platform = candidate.platform;
        let status = node.status.as_ref();
        let peers = status.and_then(|status| status.resolved_peers.clone()).unwrap_or_default();
        let witnesses = RegisteredWitnesses::Known(platform.witnesses(&node.spec.chain_id));
        let used = state_sync::check_state_sync(&node.spec, &witnesses).witnesses;
        let desired = render_desired(node, platform, &peers, &used.unwrap_or_default());
        let (statefulset, pods) = self.objects(node, &key);
        Snapshot {
            node: node.clone().into(),
            status: status.cloned().unwrap_or_default(),
            peers: None,
            now: candidate.now,
            plan_id: "preview".to_owned(),
            operator_version: candidate.version.to_owned(),
            timing: Timing::default(),
            rollout: Rollout {
                on_operator_change: platform.rollout.on_operator_change,
                on_image_change: platform.rollout.on_image_change,
                adopt_automatically: platform.rollout.adoption == Adoption::Auto,
                ready_deadline: candidate.budget.ready_deadline,
                min_ready: candidate.budget.min_ready,
                ..Rollout::default()
            },
            desired: desired.map(Shared::new).map_err(|error| error.to_string()),
            witnesses,
            statefulset: statefulset.map(Shared::new),
            pods: pods.into_iter().map(Shared::new).collect(),
            job: None,
            pre_pull: None,
            pulls: Vec::new(),
            claim: self.claim(node, &key),
            sidecar: Sidecar::Ready,
            blocks: Blocks::Unknown,
            slot: Some(Slot::Granted),
            adoption: None,
            asks_peers: false,
            signing_conflict: self.signing_conflict(node),
            dropped_field: None,
            waiting: None,
            current: Current::default(),
            service: None,
            proxy_config: None,
        }
    }

    fn signing_conflict(&self, node: &SeiNode) -> Option<String> {
        let identity = node.status.as_ref().and_then(|status| status.signing_identity.as_deref());
        let candidates = signers::candidates(node, identity, &self.nodes);
        let mounts = candidates.iter().copied().chain([node]).filter_map(|node| {
            let key = key_of(node);
            let set = self.statefulsets.get(&key)?;
            Some(MountView::of_statefulset(&key.0, set))
        });
        let mounts: Vec<_> = mounts.collect();
        signers::is_exclusive(node)
            .then(|| signers::conflict(node, identity, &candidates, &mounts))
            .flatten()
    }

    fn claim(&self, node: &SeiNode, key: &Key) -> Claim {
        let recorded = node.status.as_ref().and_then(|status| status.data_claim.as_ref());
        let Some(claims) = self.claims.as_ref().filter(|_| node.spec.imported_claim().is_none())
        else {
            return Claim::Unknown;
        };
        match claims.get(&(key.0.clone(), data_claim(&key.1))) {
            Some(claim) => Claim::Present(claim.clone()),
            None if recorded.is_some() => Claim::Missing,
            None => Claim::Unknown,
        }
    }

    /// The storage class of the claim that the operator created for the node.
    pub(super) fn storage_class(&self, node: &SeiNode) -> Option<&String> {
        let (namespace, name) = key_of(node);
        self.classes.get(&(namespace, data_claim(&name)))
    }

    /// StatefulSet and pods of a node. Without a cluster, missing ones are built from its status.
    fn objects(&self, node: &SeiNode, key: &Key) -> (Option<StatefulSetView>, Vec<PodView>) {
        let set = self.statefulsets.get(key).cloned();
        let pods = self.pods.get(key).cloned();
        if self.client.is_some() {
            return (set, pods.unwrap_or_default());
        }
        let set = set.or_else(|| statefulset_from_status(node));
        let pods = pods.or_else(|| Some(vec![pod_from_status(node, set.as_ref()?)?]));
        (set, pods.unwrap_or_default())
    }

    /// Compares a pod with the desired template on the server, by a dry run.
    pub(super) async fn compare_pod(
        &self,
        snapshot: &Snapshot,
        pod_uid: &str,
    ) -> Result<Comparison, String> {
        let Some(client) = &self.client else {
            return Err(
                "only an API server can compare its pod with the desired template".to_owned()
            );
        };
        let namespace = snapshot.node.namespace().unwrap_or_default();
        let pod = snapshot.pods.iter().find(|pod| pod.uid == pod_uid);
        let (Some(pod), Ok(desired)) = (pod, &snapshot.desired) else {
            return Err("its pod was not found".to_owned());
        };
        compare_template(client, &namespace, &desired.statefulset.unpack(), pod)
            .await
            .map_err(|failure| call_error("compare the pod", failure).to_string())
    }
}

/// The known changes. Without a template to compare with, only images are known, from the status.
pub(super) fn known_changes(
    snapshot: &Snapshot,
    changes: Option<Vec<FieldChange>>,
) -> Option<Vec<FieldChange>> {
    let changes = changes?;
    let template = snapshot.statefulset.as_ref().map(|set| &set.template);
    if template != Some(&Template::default()) {
        return Some(changes);
    }
    let (pod, desired) = (snapshot.pod()?, snapshot.desired.as_ref().ok()?);
    let images = [
        ("containers[seid].image", &pod.seid.image, &desired.image),
        ("initContainers[sei-sidecar].image", &pod.sidecar.image, &desired.sidecar_image),
    ];
    let differing = images.into_iter().filter(|(_, from, to)| from != to && !from.is_empty());
    let images: Vec<FieldChange> = differing
        .map(|(path, from, to)| FieldChange {
            path: path.to_owned(),
            from: Some(from.clone()),
            to: Some(to.clone()),
        })
        .collect();
    (!images.is_empty()).then_some(images)
}

pub(super) fn key_of(object: &impl ResourceExt) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// The StatefulSet as far as the status records it; its template is unknown.
pub(super) fn statefulset_from_status(node: &SeiNode) -> Option<StatefulSetView> {
    let status = node.status.as_ref()?;
    let observed = status.pod_template.as_ref()?;
    let uid = status.stateful_set.as_ref().map(|set| set.uid.clone());
    Some(StatefulSetView {
        name: node.name_any(),
        uid: uid.unwrap_or_else(|| "from-status".to_owned()),
        controller: node.metadata.uid.clone(),
        replicas: Some(1),
        on_delete: true,
        template_hash: status.pod_template_hash.clone(),
        update_revision: Some(observed.revision.clone()),
        ..StatefulSetView::default()
    })
}

/// The pod as far as the status records it, assumed to be Ready.
fn pod_from_status(node: &SeiNode, set: &StatefulSetView) -> Option<PodView> {
    let status = node.status.as_ref()?;
    let observed = status.pod_template.as_ref()?;
    let mut pod = PodView {
        name: sei_api::names::pod(&node.name_any()),
        uid: observed.pod_uid.clone(),
        controller: Some(Controller::statefulset(&set.name, &set.uid)),
        revision: Some(observed.revision.clone()),
        ready: true,
        ..PodView::default()
    };
    for (container, image) in
        [(&mut pod.seid, &status.current_image), (&mut pod.sidecar, &status.current_sidecar_image)]
    {
        container.image = image.clone().unwrap_or_default();
        container.image_id.clone_from(&container.image);
        container.has_run = true;
        container.running = true;
        container.started = true;
    }
    Some(pod)
}
