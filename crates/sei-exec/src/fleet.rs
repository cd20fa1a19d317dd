//! Performs requests for a fleet, unchanged.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use sei_api::key::ObjectKey;
use sei_api::names::FLEET_FIELD_MANAGER;
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_plan::fleet::{FleetOutcome, FleetRequest, ServiceView};
use sei_plan::request::Failure;
use serde_json::{Value, json};

use crate::call::call;
use crate::lean::Lean;
use crate::perform::Cluster;
use crate::sidecar::Sidecar;

/// The objects of one fleet in the cluster.
pub struct FleetCluster {
    client: Client,
    sidecar: Sidecar,
    key: ObjectKey,
}

impl FleetCluster {
    pub fn new(client: Client, sidecar: Sidecar, key: &ObjectKey) -> Self {
        Self { client, sidecar, key: key.clone() }
    }

    /// The fleets in the fleet's namespace.
    pub fn fleets(&self) -> Api<Lean<SeiNodeDeployment>> {
        self.api()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.key.namespace)
    }

    pub async fn perform(&self, request: &FleetRequest) -> FleetOutcome {
        self.try_perform(request).await.unwrap_or_else(FleetOutcome::Failed)
    }

    async fn try_perform(&self, request: &FleetRequest) -> Result<FleetOutcome, Failure> {
        let manager = Some(FLEET_FIELD_MANAGER.to_owned());
        let create = PostParams { field_manager: manager.clone(), ..PostParams::default() };
        let params = PatchParams { field_manager: manager, ..PatchParams::default() };
        let (nodes, services) = (self.api::<Lean<SeiNode>>(), self.api::<Service>());
        match request {
            FleetRequest::CreateNode(node) => {
                let created = self.api::<SeiNode>();
                match call("create seinode", created.create(&create, node)).await {
                    Ok(created) => Ok(FleetOutcome::Node(Box::new(created))),
                    // The cache has not shown it yet, or it is another owner's.
                    Err(Failure::AlreadyExists) => {
                        let name = node.metadata.name.clone().unwrap_or_default();
                        let found = call("get seinode", nodes.get(&name)).await?;
                        Ok(FleetOutcome::Node(Box::new(found.0)))
                    }
                    Err(failure) => Err(failure),
                }
            }
            FleetRequest::PatchNode { name, patch } => {
                let patch = Patch::Merge(patch);
                let patched = nodes.patch(name, &params, &patch);
                Ok(FleetOutcome::Node(Box::new(call("patch seinode", patched).await?.0)))
            }
            FleetRequest::DeleteNode { name, uid } => self.delete_node(name, uid).await,
            FleetRequest::CreateService(service) => {
                let found = match call("create service", services.create(&create, service)).await {
                    Err(Failure::AlreadyExists) => {
                        let name = service.metadata.name.clone().unwrap_or_default();
                        call("get service", services.get(&name)).await?
                    }
                    created => created?,
                };
                Ok(FleetOutcome::Service(ServiceView::from(&found)))
            }
            FleetRequest::PatchService { name, patch } => {
                let patch = Patch::Merge(patch);
                let patched = services.patch(name, &params, &patch);
                let patched = call("patch service", patched).await?;
                Ok(FleetOutcome::Service(ServiceView::from(&patched)))
            }
            FleetRequest::PatchFinalizers { resource_version, finalizers } => {
                let metadata =
                    json!({ "resourceVersion": resource_version, "finalizers": finalizers });
                self.patch_fleet(&json!({ "metadata": metadata })).await
            }
            FleetRequest::ReadFleet => {
                let fleets = self.fleets();
                let found = call("get seinodedeployment", fleets.get(&self.key.name)).await?;
                Ok(FleetOutcome::Fleet(Box::new(found.0)))
            }
            FleetRequest::OfNode { node, request } => {
                Ok(FleetOutcome::OfNode(self.node(node).perform(request).await))
            }
            FleetRequest::ReadAppHash { ip, chain_id, .. } => {
                Ok(FleetOutcome::AppHash(self.sidecar.app_hash(ip, chain_id).await))
            }
            FleetRequest::ReadHeader { ip, chain_id, height, .. } => {
                Ok(FleetOutcome::Header(self.sidecar.header(ip, chain_id, *height).await))
            }
        }
    }

    /// The objects of a node of this fleet.
    fn node(&self, name: &str) -> Cluster {
        let namespace = &self.key.namespace;
        let (client, sidecar) = (self.client.clone(), self.sidecar.clone());
        let (key, scope) = (ObjectKey::new(namespace, name), Arc::from([namespace.clone()]));
        Cluster::new(client, sidecar, &key, &scope)
    }

    async fn delete_node(&self, name: &str, uid: &str) -> Result<FleetOutcome, Failure> {
        let preconditions =
            Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
        let delete = DeleteParams { preconditions, ..DeleteParams::default() };
        match call("delete seinode", self.api::<Lean<SeiNode>>().delete(name, &delete)).await {
            Ok(_) | Err(Failure::NotFound(_)) => Ok(FleetOutcome::Deleted),
            Err(failure) => Err(failure),
        }
    }

    async fn patch_fleet(&self, patch: &Value) -> Result<FleetOutcome, Failure> {
        let fleets = self.fleets();
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        let patched = fleets.patch(&self.key.name, &params, &patch);
        match call("patch finalizers", patched).await {
            Ok(patched) => Ok(FleetOutcome::Fleet(Box::new(patched.0))),
            Err(Failure::NotFound(_)) => Ok(FleetOutcome::Deleted),
            Err(failure) => Err(failure),
        }
    }
}
