//! Performs requests against the API server, unchanged.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
    Preconditions, PropagationPolicy,
};
use kube::{Api, Client, Resource as _};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::{self, label};
use sei_plan::request::{
    ClaimView, Failure, MountView, Outcome, PodDelete, Read, Request, SecretView, VolumeView,
};
use sei_plan::shared::Shared;
use sei_plan::signers;
use sei_plan::signing_record::SigningRecord;
use sei_plan::view::{JobView, ObjectView, PodView, StatefulSetView};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::call::{call, find};
use crate::lean::Lean;
use crate::listed::{ListedNode, ListedPod, ListedStatefulSet, list};
use crate::sidecar::Sidecar;
use crate::watched_pod::WatchedPod;
use crate::watched_statefulset::WatchedStatefulSet;

/// The metadata of a created object.
#[derive(Deserialize)]
struct Named {
    metadata: ObjectMeta,
}

/// The objects of one node in the cluster.
#[derive(Clone)]
pub struct Cluster {
    client: Client,
    sidecar: Sidecar,
    namespace: String,
    node: String,
    /// Namespaces that the operator is limited to; without any it is not.
    scope: Arc<[String]>,
}

impl Cluster {
    pub fn new(client: Client, sidecar: Sidecar, key: &ObjectKey, scope: &Arc<[String]>) -> Self {
        Self {
            client,
            sidecar,
            namespace: key.namespace.clone(),
            node: key.name.clone(),
            scope: scope.clone(),
        }
    }

    /// The `SeiNode`s in the node's namespace.
    pub fn nodes(&self) -> Api<Lean<SeiNode>> {
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
            Request::Sidecar(request) => {
                let key = ObjectKey { namespace: self.namespace.clone(), name: self.node.clone() };
                self.sidecar.call(&key, request).await
            }
            Request::DeletePod(_)
            | Request::DeletePrePull { .. }
            | Request::DeleteJob { .. }
            | Request::DeleteService { .. }
            | Request::DeleteClaim { .. } => self.delete(request).await,
            Request::CreateStatefulSet(_)
            | Request::ApplyStatefulSet(_)
            | Request::DryRunStatefulSet(_)
            | Request::PatchStatefulSet(_) => self.write_statefulset(request).await,
            _ => self.write(request).await,
        };
        outcome.unwrap_or_else(Outcome::Failed)
    }

    async fn read(&self, read: &Read) -> Result<Outcome, Failure> {
        Ok(match read {
            Read::StatefulSet => Outcome::StatefulSet(self.statefulset().await?.map(Shared::new)),
            Read::Pods => Outcome::Pods(self.pods().await?),
            Read::Pod(name) => {
                let found = find("get pod", self.api::<WatchedPod>().get(name)).await?;
                Outcome::Pod(found.map(|pod| Shared::new(pod.view())))
            }
            Read::PrePull => {
                let name = names::pre_pull_pod(&self.node);
                let found = find("get pod", self.api::<WatchedPod>().get(&name)).await?;
                Outcome::PrePull(found.map(|pod| pod.pre_pull()))
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
            Read::SigningRecord(name) => {
                let found = find("get configmap", self.api::<ConfigMap>().get(name)).await?;
                Outcome::SigningRecord(found.as_ref().map(SigningRecord::from))
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
            Read::ConfigMap => {
                let name = names::proxy_config(&self.node);
                let found = find("get configmap", self.api::<ConfigMap>().get(&name)).await?;
                Outcome::ConfigMap(found.map(|map| ObjectView::from(&map.metadata)))
            }
            Read::Revision(name) => {
                let revisions = self.api::<ControllerRevision>();
                let found = find("get controllerrevision", revisions.get(name)).await?;
                Outcome::Revision(found.map(|revision| revision.data.0))
            }
            Read::Node => {
                let found = find("get seinode", self.nodes().get(&self.node)).await?;
                Outcome::Node(found.map(|node| Box::new(node.0)))
            }
            Read::Generation { .. } => {
                let found = find("get seinode", self.nodes().get_metadata(&self.node)).await?;
                Outcome::Generation(found.and_then(|node| node.metadata.generation))
            }
            Read::Nodes => Outcome::Nodes(self.all_nodes().await?),
            Read::Mounts { namespace, node } => {
                Outcome::Mounts(self.mounts(namespace, node.as_deref()).await?)
            }
        })
    }

    async fn statefulset(&self) -> Result<Option<StatefulSetView>, Failure> {
        let sets = self.api::<WatchedStatefulSet>();
        let found = find("get statefulset", sets.get(&self.node)).await?;
        Ok(found.map(|object| object.view()))
    }

    /// What can be read of a node that does not decode as a whole.
    pub async fn read_partly(&self) -> Option<SeiNode> {
        let resource = ApiResource::erase::<SeiNode>(&());
        let nodes: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource);
        let node = find("get seinode", nodes.get(&self.node)).await.ok()??;
        signers::read(&serde_json::to_value(node).ok()?)
    }

    /// Every node, including one that does not decode as a whole: it may use a key or a volume.
    async fn all_nodes(&self) -> Result<Vec<SeiNode>, Failure> {
        let path = |namespace| SeiNode::url_path(&(), namespace);
        let mut paths: Vec<String> = self.scope.iter().map(|at| path(Some(at.as_str()))).collect();
        if paths.is_empty() {
            paths.push(path(None));
        }
        let mut found = Vec::new();
        for path in paths {
            let params = ListParams::default();
            let nodes = list::<ListedNode>(&self.client, "list seinodes", &path, params).await?;
            found.extend(nodes.into_iter().filter_map(|node| node.0));
        }
        Ok(found)
    }

    async fn mounts(&self, namespace: &str, node: Option<&str>) -> Result<Vec<MountView>, Failure> {
        let label = node.map_or(label::NODE.to_owned(), |node| format!("{}={node}", label::NODE));
        let of_nodes = || ListParams::default().labels(&label);
        let path = StatefulSet::url_path(&(), Some(namespace));
        let sets: Vec<ListedStatefulSet> =
            list(&self.client, "list statefulsets", &path, of_nodes()).await?;
        let path = Pod::url_path(&(), Some(namespace));
        let pods: Vec<ListedPod> = list(&self.client, "list pods", &path, of_nodes()).await?;
        let sets = sets.into_iter().map(|set| set.0);
        Ok(sets.chain(pods.into_iter().map(|pod| pod.0)).collect())
    }

    async fn pods(&self) -> Result<Vec<Shared<PodView>>, Failure> {
        let params = ListParams::default().labels(&format!("{}={}", label::NODE, self.node));
        let found = call("list pods", self.api::<WatchedPod>().list(&params)).await?;
        Ok(found.items.iter().map(|pod| Shared::new(pod.view())).collect())
    }

    /// The claim of this name, with the fields that decisions need.
    async fn claim(&self, name: &str) -> Result<Option<ClaimView>, Failure> {
        let claims = self.api::<PersistentVolumeClaim>();
        let found = find("get persistentvolumeclaim", claims.get(name)).await?;
        Ok(found.map(|claim| claim_view(&claim)))
    }

    async fn write(&self, request: &Request) -> Result<Outcome, Failure> {
        let (create, apply) = (create_params(), apply_params());
        match request {
            Request::CreateClaim(claim) => {
                let created: Named =
                    self.create("create persistentvolumeclaim", &**claim, &create).await?;
                return Ok(Outcome::Created(ObjectView::from(&created.metadata)));
            }
            Request::ApplyConfigMap(object) => {
                let name = object.metadata.name.as_deref().unwrap_or_default();
                let maps = self.api::<Lean<ConfigMap>>();
                let patch = Patch::Apply(object.as_ref());
                call("apply configmap", maps.patch(name, &apply, &patch)).await?;
            }
            Request::ApplyService(object) => {
                let services = self.api::<Lean<Service>>();
                let patch = Patch::Apply(object.as_ref());
                call("apply service", services.patch(&self.node, &apply, &patch)).await?;
            }
            Request::CreateConfigMap(object) => {
                self.create::<_, IgnoredAny>("create configmap", &**object, &create).await?;
            }
            Request::CreateService(object) => {
                self.create::<_, IgnoredAny>("create service", &**object, &create).await?;
            }
            Request::CreateJob(object) => {
                self.create::<_, IgnoredAny>("create job", &**object, &create).await?;
            }
            Request::PatchFinalizers { resource_version, finalizers } => {
                // Metadata only: a write of the whole object would drop fields that this version
                // of the operator does not know.
                let patch = serde_json::json!({ "metadata": {
                    "resourceVersion": resource_version, "finalizers": finalizers,
                }});
                let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
                let nodes = self.nodes();
                let patched = nodes.patch(&self.node, &params, &patch);
                let patched = call("patch finalizers", patched).await?;
                return Ok(Outcome::Node(Some(Box::new(patched.0))));
            }
            Request::ReleaseClaim { name, uid, owner } => {
                let patch = serde_json::json!({ "metadata": {
                    "uid": uid, "ownerReferences": [{ "$patch": "delete", "uid": owner }],
                }});
                let (params, patch) = (PatchParams::default(), Patch::Strategic(&patch));
                let claims = self.api::<PersistentVolumeClaim>();
                call("release persistentvolumeclaim", claims.patch(name, &params, &patch)).await?;
            }
            Request::TryPod(pod) => {
                let dry_run = PostParams { dry_run: true, ..create };
                self.create::<_, IgnoredAny>("dry-run create pod", &**pod, &dry_run).await?;
            }
            Request::CreatePrePull(pod) => {
                let created: WatchedPod = self.create("create pod", &**pod, &create).await?;
                return Ok(Outcome::PrePull(Some(created.pre_pull())));
            }
            Request::Read(_)
            | Request::Sidecar(_)
            | Request::DeletePrePull { .. }
            | Request::TakeSlot(_)
            | Request::CreateStatefulSet(_)
            | Request::ApplyStatefulSet(_)
            | Request::DryRunStatefulSet(_)
            | Request::PatchStatefulSet(_)
            | Request::DeletePod(_)
            | Request::DeleteJob { .. }
            | Request::DeleteService { .. }
            | Request::DeleteClaim { .. } => {}
        }
        Ok(Outcome::Accepted)
    }

    async fn write_statefulset(&self, request: &Request) -> Result<Outcome, Failure> {
        let sets = self.api::<WatchedStatefulSet>();
        match request {
            Request::CreateStatefulSet(object) => {
                let created: WatchedStatefulSet =
                    self.create("create statefulset", &**object, &create_params()).await?;
                return Ok(Outcome::Applied(created.view().into()));
            }
            Request::ApplyStatefulSet(object) => {
                let patch = Patch::Apply(object.as_ref());
                let params = apply_params();
                let applied = sets.patch(&self.node, &params, &patch);
                let applied = call("apply statefulset", applied).await?;
                return Ok(Outcome::Applied(applied.view().into()));
            }
            Request::DryRunStatefulSet(object) => {
                let patch = Patch::Apply(object.as_ref());
                let params = apply_params().dry_run();
                let applied = sets.patch(&self.node, &params, &patch);
                let applied = call("dry-run apply statefulset", applied).await?;
                return Ok(Outcome::DryRun(applied.view().template.json()));
            }
            Request::PatchStatefulSet(patch) => {
                let params = PatchParams {
                    field_manager: Some(names::FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let patch = Patch::Merge(patch);
                let patched = sets.patch(&self.node, &params, &patch);
                let patched = call("patch statefulset", patched).await?;
                return Ok(Outcome::Patched(patched.view().into()));
            }
            _ => {}
        }
        Ok(Outcome::Accepted)
    }

    /// Creates an object and decodes as little of the response as is needed: `Api::create` would
    /// decode the whole object.
    async fn create<K, R>(
        &self,
        what: &'static str,
        object: &K,
        params: &PostParams,
    ) -> Result<R, Failure>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Serialize,
        R: DeserializeOwned,
    {
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError);
        let objects = kube::api::Request::new(self.api::<K>().resource_url());
        let created = async {
            let request = objects.create(params, body?).map_err(kube::Error::BuildRequest)?;
            self.client.request::<R>(request).await
        };
        call(what, created).await
    }

    /// `Api::delete` would decode the deleted pod, twice.
    async fn delete_pod(&self, name: &str, params: &DeleteParams) -> Result<(), Failure> {
        let pods = kube::api::Request::new(self.api::<Pod>().resource_url());
        let request = pods.delete(name, params).map_err(kube::Error::BuildRequest);
        let deleted = async { self.client.request::<IgnoredAny>(request?).await.map(drop) };
        call("delete pod", deleted).await
    }

    async fn delete(&self, request: &Request) -> Result<Outcome, Failure> {
        match request {
            Request::DeletePod(PodDelete { name, uid, resource_version }) => {
                self.delete_pod(name, &only_uid(uid, resource_version.clone())).await?;
            }
            Request::DeletePrePull { uid } => {
                self.delete_pod(&names::pre_pull_pod(&self.node), &only_uid(uid, None)).await?;
            }
            Request::DeleteJob { uid } => {
                let params = DeleteParams {
                    propagation_policy: Some(PropagationPolicy::Foreground),
                    ..only_uid(uid, None)
                };
                let name = names::bootstrap_job(&self.node);
                call("delete job", self.api::<Job>().delete(&name, &params)).await?;
            }
            Request::DeleteService { uid } => {
                let params = only_uid(uid, None);
                call("delete service", self.api::<Service>().delete(&self.node, &params)).await?;
            }
            Request::DeleteClaim { name, uid } => {
                let claims = self.api::<PersistentVolumeClaim>();
                let params = only_uid(uid, None);
                call("delete persistentvolumeclaim", claims.delete(name, &params)).await?;
            }
            _ => {}
        }
        Ok(Outcome::Accepted)
    }
}

fn create_params() -> PostParams {
    PostParams { field_manager: Some(names::FIELD_MANAGER.to_owned()), ..PostParams::default() }
}

fn apply_params() -> PatchParams {
    PatchParams::apply(names::FIELD_MANAGER).force()
}

/// Deletes only the object with this uid, with its own grace period.
fn only_uid(uid: &str, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version }),
        ..DeleteParams::default()
    }
}

/// The fields of a claim that decisions need.
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
        capacity: capacity
            .and_then(|capacity| capacity.get("storage"))
            .map(|quantity| quantity.0.clone()),
        volume: claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()),
    }
}

fn volume_view(volume: &PersistentVolume) -> VolumeView {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    VolumeView {
        phase: volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
        capacity: capacity
            .and_then(|capacity| capacity.get("storage"))
            .map(|quantity| quantity.0.clone()),
    }
}

fn secret_view(secret: &Secret) -> SecretView {
    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    SecretView { terminating: secret.metadata.deletion_timestamp.is_some(), data: data.collect() }
}

/// The body of a response as JSON, or `None` if it does not parse.
pub(crate) fn json(bytes: &[u8]) -> Option<Value> {
    serde_json::from_slice(bytes).ok()
}
