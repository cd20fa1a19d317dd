//! Performs requests against the API server, as they stand.

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    Preconditions, PropagationPolicy,
};
use kube::{Api, Client};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::{self, label};
use sei_plan::request::{
    ClaimView, Failure, MountView, Outcome, PodDelete, Read, Request, SecretView, VolumeView,
};
use sei_plan::shared::Shared;
use sei_plan::signers;
use sei_plan::view::{JobView, ObjectView, PodView, StatefulSetView};
use serde_json::Value;

use crate::call::{call, find};
use crate::sidecar::Sidecar;

/// The objects of one node in the cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    sidecar: Sidecar,
    namespace: String,
    node: String,
    /// Only the nodes of this namespace are the operator's; all without it.
    scope: Option<String>,
}

impl Cluster {
    pub fn new(client: Client, sidecar: Sidecar, key: &ObjectKey, scope: Option<&str>) -> Self {
        Self {
            client,
            sidecar,
            namespace: key.namespace.clone(),
            node: key.name.clone(),
            scope: scope.map(str::to_owned),
        }
    }

    /// The node's own kind, in its namespace.
    pub fn nodes(&self) -> Api<SeiNode> {
        self.api()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Performs one request.
    pub async fn perform(&self, request: &Request) -> Outcome {
        let outcome = match request {
            Request::Read(read) => self.read(read).await,
            Request::Sidecar(request) => self.sidecar.call(request).await,
            Request::DeletePod(_)
            | Request::DeleteJob { .. }
            | Request::DeleteService { .. }
            | Request::DeleteClaim { .. } => self.delete(request).await,
            _ => self.write(request).await,
        };
        outcome.unwrap_or_else(Outcome::Failed)
    }

    async fn read(&self, read: &Read) -> Result<Outcome, Failure> {
        Ok(match read {
            Read::StatefulSet => Outcome::StatefulSet(self.statefulset().await?.map(Shared::new)),
            Read::Pods => Outcome::Pods(self.pods().await?),
            Read::Pod(name) => {
                let found = find("get pod", self.api::<Pod>().get(name)).await?;
                Outcome::Pod(found.map(|pod| Shared::new(PodView::from(&pod))))
            }
            Read::Claim(name) => Outcome::Claim(self.claim(name).await?),
            Read::Volume(name) => {
                let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
                let found = find("get persistentvolume", volumes.get(name)).await?;
                Outcome::Volume(found.map(|volume| volume_view(&volume)))
            }
            Read::Secret(name) => {
                let found = find("get secret", self.api::<Secret>().get(name)).await?;
                Outcome::Secret(found.map(|secret| secret_view(&secret)))
            }
            Read::Job => {
                let name = names::bootstrap_job(&self.node);
                let found = find("get job", self.api::<Job>().get(&name)).await?;
                Outcome::Job(found.map(|job| JobView::from(&job)))
            }
            Read::Service => {
                let found = find("get service", self.api::<Service>().get(&self.node)).await?;
                Outcome::Service(found.map(|service| ObjectView::from(&service.metadata)))
            }
            Read::Revision(name) => {
                let revisions = self.api::<ControllerRevision>();
                let found = find("get controllerrevision", revisions.get(name)).await?;
                Outcome::Revision(found.map(|revision| revision.data.0))
            }
            Read::Node => {
                let found = find("get seinode", self.nodes().get(&self.node)).await?;
                Outcome::Node(found.map(Box::new))
            }
            Read::Nodes => Outcome::Nodes(self.all_nodes().await?),
            Read::HasStatefulSet(key) => {
                let sets: Api<StatefulSet> = Api::namespaced(self.client.clone(), &key.namespace);
                let found = find("get statefulset", sets.get(&key.name)).await?;
                Outcome::HasStatefulSet(found.is_some())
            }
            Read::Mounts => Outcome::Mounts(self.mounts().await?),
        })
    }

    async fn statefulset(&self) -> Result<Option<StatefulSetView>, Failure> {
        let found = find("get statefulset", self.api::<StatefulSet>().get(&self.node)).await?;
        Ok(found.map(|object| StatefulSetView::from(&object)))
    }

    /// Every node, also one that does not decode as a whole.
    async fn all_nodes(&self) -> Result<Vec<SeiNode>, Failure> {
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> = match &self.scope {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let nodes = call("list seinodes", nodes.list(&ListParams::default())).await?;
        let stored = nodes.items.iter().filter_map(|node| serde_json::to_value(node).ok());
        Ok(stored.filter_map(|node| signers::read(&node)).collect())
    }

    async fn mounts(&self) -> Result<Vec<MountView>, Failure> {
        let ours = ListParams::default().labels(label::NODE);
        let sets = call("list statefulsets", self.api::<StatefulSet>().list(&ours)).await?;
        let pods = call("list pods", self.api::<Pod>().list(&ours)).await?;
        let sets = sets.items.iter().map(signers::statefulset_mounts);
        Ok(sets.chain(pods.items.iter().map(signers::pod_mounts)).collect())
    }

    async fn pods(&self) -> Result<Vec<Shared<PodView>>, Failure> {
        let params = ListParams::default().labels(&format!("{}={}", label::NODE, self.node));
        let found = call("list pods", self.api::<Pod>().list(&params)).await?;
        Ok(found.items.iter().map(|pod| Shared::new(PodView::from(pod))).collect())
    }

    /// The claim of this name, as far as decisions need to know it.
    async fn claim(&self, name: &str) -> Result<Option<ClaimView>, Failure> {
        let claims = self.api::<PersistentVolumeClaim>();
        let found = find("get persistentvolumeclaim", claims.get(name)).await?;
        Ok(found.map(|claim| claim_view(&claim)))
    }

    async fn write(&self, request: &Request) -> Result<Outcome, Failure> {
        let create = PostParams {
            field_manager: Some(names::FIELD_MANAGER.to_owned()),
            ..PostParams::default()
        };
        let apply = PatchParams::apply(names::FIELD_MANAGER).force();
        match request {
            Request::CreateClaim(claim) => {
                let claims = self.api::<PersistentVolumeClaim>();
                let made =
                    call("create persistentvolumeclaim", claims.create(&create, claim)).await?;
                return Ok(Outcome::Created(ObjectView::from(&made.metadata)));
            }
            Request::ApplyConfigMap(object) => {
                let name = names::proxy_config(&self.node);
                let maps = self.api::<ConfigMap>();
                let patch = Patch::Apply(object.as_ref());
                call("apply configmap", maps.patch(&name, &apply, &patch)).await?;
            }
            Request::ApplyService(object) => {
                let services = self.api::<Service>();
                let patch = Patch::Apply(object.as_ref());
                call("apply service", services.patch(&self.node, &apply, &patch)).await?;
            }
            Request::CreateService(object) => {
                call("create service", self.api::<Service>().create(&create, object)).await?;
            }
            Request::CreateJob(object) => {
                call("create job", self.api::<Job>().create(&create, object)).await?;
            }
            Request::CreateStatefulSet(object) => {
                let sets = self.api::<StatefulSet>();
                let made = call("create statefulset", sets.create(&create, object)).await?;
                return Ok(Outcome::Applied(StatefulSetView::from(&made).into()));
            }
            Request::ApplyStatefulSet(object) => {
                let sets = self.api::<StatefulSet>();
                let patch = Patch::Apply(object.as_ref());
                let made = sets.patch(&self.node, &apply, &patch);
                let made = call("apply statefulset", made).await?;
                return Ok(Outcome::Applied(StatefulSetView::from(&made).into()));
            }
            Request::DryRunStatefulSet(object) => {
                let sets = self.api::<StatefulSet>();
                let patch = Patch::Apply(object.as_ref());
                let params = apply.dry_run();
                let tried = sets.patch(&self.node, &params, &patch);
                let tried = call("dry-run apply statefulset", tried).await?;
                let template = serde_json::to_value(&tried.spec.template).unwrap_or_default();
                return Ok(Outcome::DryRun(template));
            }
            Request::PatchFinalizers { resource_version, finalizers } => {
                // The metadata alone: a write of the whole object would drop fields that this
                // operator does not know.
                let patch = serde_json::json!({ "metadata": {
                    "resourceVersion": resource_version, "finalizers": finalizers,
                }});
                let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
                let nodes = self.nodes();
                let patched = nodes.patch(&self.node, &params, &patch);
                let patched = call("patch finalizers", patched).await?;
                return Ok(Outcome::Node(Some(Box::new(patched))));
            }
            Request::TryPod(pod) => {
                let dry_run = PostParams { dry_run: true, ..create };
                call("dry-run create pod", self.api::<Pod>().create(&dry_run, pod)).await?;
            }
            Request::PatchStatefulSet(patch) => {
                let sets = self.api::<StatefulSet>();
                let params = PatchParams {
                    field_manager: Some(names::FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(patch);
                call("patch statefulset", sets.patch(&self.node, &params, &patch)).await?;
            }
            Request::Read(_)
            | Request::Sidecar(_)
            | Request::TakeSlot
            | Request::DeletePod(_)
            | Request::DeleteJob { .. }
            | Request::DeleteService { .. }
            | Request::DeleteClaim { .. } => {}
        }
        Ok(Outcome::Accepted)
    }

    async fn delete(&self, request: &Request) -> Result<Outcome, Failure> {
        match request {
            Request::DeletePod(PodDelete { name, uid, resource_version }) => {
                let params = exactly(uid, resource_version.clone());
                call("delete pod", self.api::<Pod>().delete(name, &params)).await?;
            }
            Request::DeleteJob { uid } => {
                let params = DeleteParams {
                    propagation_policy: Some(PropagationPolicy::Foreground),
                    ..exactly(uid, None)
                };
                let name = names::bootstrap_job(&self.node);
                call("delete job", self.api::<Job>().delete(&name, &params)).await?;
            }
            Request::DeleteService { uid } => {
                let params = exactly(uid, None);
                call("delete service", self.api::<Service>().delete(&self.node, &params)).await?;
            }
            Request::DeleteClaim { name, uid } => {
                let claims = self.api::<PersistentVolumeClaim>();
                let params = exactly(uid, None);
                call("delete persistentvolumeclaim", claims.delete(name, &params)).await?;
            }
            _ => {}
        }
        Ok(Outcome::Accepted)
    }
}

/// Deletes this very object, with its own grace period.
fn exactly(uid: &str, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version }),
        ..DeleteParams::default()
    }
}

/// A claim, as far as its use depends on it.
pub fn claim_view(claim: &PersistentVolumeClaim) -> ClaimView {
    let view = ObjectView::from(&claim.metadata);
    let status = claim.status.as_ref();
    let capacity = status.and_then(|status| status.capacity.as_ref());
    ClaimView {
        uid: view.uid,
        controller: view.controller,
        terminating: view.terminating,
        phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
        access_modes: status.and_then(|status| status.access_modes.clone()).unwrap_or_default(),
        capacity: capacity.and_then(|all| all.get("storage")).map(|quantity| quantity.0.clone()),
        volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()),
    }
}

fn volume_view(volume: &PersistentVolume) -> VolumeView {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    VolumeView {
        phase: volume.status.as_ref().and_then(|one| one.phase.clone()).unwrap_or_default(),
        capacity: capacity.and_then(|all| all.get("storage")).map(|quantity| quantity.0.clone()),
    }
}

fn secret_view(secret: &Secret) -> SecretView {
    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    SecretView { terminating: secret.metadata.deletion_timestamp.is_some(), data: data.collect() }
}

/// The body of an answer as JSON; what cannot be read is no answer.
pub(crate) fn json(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}
