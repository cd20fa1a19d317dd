//! The Service in front of all nodes of a fleet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::fleet::InternalPorts;
use sei_api::names::{annotation, fleet_service, label};
use serde_json::{Value, json};

use super::child::Target;
use super::{FleetRequest, FleetSnapshot};

/// What of a Service decisions read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServiceView {
    pub name: String,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub is_terminating: bool,
    pub owners: Vec<OwnerReference>,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    pub selector: BTreeMap<String, String>,
    /// Name and number of each port.
    pub ports: Vec<(String, i32)>,
}

impl From<&Service> for ServiceView {
    fn from(service: &Service) -> Self {
        let metadata = service.metadata.clone();
        let spec = service.spec.clone().unwrap_or_default();
        let ports = spec.ports.unwrap_or_default();
        Self {
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            is_terminating: metadata.deletion_timestamp.is_some(),
            owners: metadata.owner_references.unwrap_or_default(),
            labels: metadata.labels.unwrap_or_default(),
            annotations: metadata.annotations.unwrap_or_default(),
            selector: spec.selector.unwrap_or_default(),
            ports: ports
                .into_iter()
                .map(|port| (port.name.unwrap_or_default(), port.port))
                .collect(),
        }
    }
}

impl ServiceView {
    pub(super) fn is_controlled_by(&self, uid: Option<&str>) -> bool {
        let controller = self.owners.iter().find(|owner| owner.controller == Some(true));
        uid.is_some() && controller.map(|owner| owner.uid.as_str()) == uid
    }

    /// A fleet of this name retained it: it has our label and annotation, and no owner.
    fn is_retained_by(&self, fleet: &str) -> bool {
        self.owners.is_empty()
            && !self.is_terminating
            && self.labels.get(label::NODE_DEPLOYMENT).map(String::as_str) == Some(fleet)
            && self.annotations.contains_key(annotation::MANAGED_BY)
    }

    fn guarded(&self, mut patch: Value) -> FleetRequest {
        patch["metadata"]["uid"] = json!(self.uid);
        patch["metadata"]["resourceVersion"] = json!(self.resource_version);
        FleetRequest::PatchService { name: self.name.clone(), patch }
    }
}

fn ports() -> Vec<(String, i32)> {
    let ports = InternalPorts::default();
    [("rpc", ports.rpc), ("evm-http", ports.evm_http), ("rest", ports.rest)]
        .map(|(name, port)| (name.to_owned(), port))
        .to_vec()
}

/// Creates the Service, or repairs it. One that the fleet does not control is left alone.
pub(super) fn next(snapshot: &FleetSnapshot, target: &Target) -> Option<FleetRequest> {
    let fleet = snapshot.name();
    let selector = BTreeMap::from([(label::NODE_DEPLOYMENT.to_owned(), fleet.clone())]);
    let port = |(name, port): (String, i32)| ServicePort {
        name: Some(name),
        port,
        target_port: Some(IntOrString::Int(port)),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    let managed_by =
        BTreeMap::from([(annotation::MANAGED_BY.to_owned(), "seinodedeployment".to_owned())]);
    let Some(present) = &snapshot.service else {
        return Some(FleetRequest::CreateService(Box::new(Service {
            metadata: ObjectMeta {
                name: Some(fleet_service(&fleet)),
                namespace: snapshot.fleet.metadata.namespace.clone(),
                labels: Some(selector.clone()),
                annotations: Some(managed_by),
                owner_references: Some(vec![target.owner()]),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                type_: Some("ClusterIP".to_owned()),
                selector: Some(selector),
                publish_not_ready_addresses: Some(false),
                ports: Some(ports().into_iter().map(port).collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        })));
    };
    let uid = snapshot.fleet.metadata.uid.as_deref();
    if present.is_retained_by(&fleet) {
        return Some(
            present.guarded(json!({ "metadata": { "ownerReferences": [target.owner()] } })),
        );
    }
    let is_right = present.selector == selector && present.ports == ports();
    if !present.is_controlled_by(uid) || present.is_terminating || is_right {
        return None;
    }
    // Keys that others added to the selector would leave out pods of the fleet.
    let others = present.selector.keys().filter(|key| !selector.contains_key(*key));
    let mut desired = json!(selector);
    for key in others {
        desired[key] = Value::Null;
    }
    let ports: Vec<ServicePort> = ports().into_iter().map(port).collect();
    Some(present.guarded(json!({ "spec": { "selector": desired, "ports": ports } })))
}

/// Takes the fleet off the owners of its Service, which then stays.
pub(super) fn release(snapshot: &FleetSnapshot) -> Option<FleetRequest> {
    let uid = snapshot.fleet.metadata.uid.as_deref();
    let service = snapshot.service.as_ref().filter(|service| service.is_controlled_by(uid))?;
    let others: Vec<_> =
        service.owners.iter().filter(|owner| Some(owner.uid.as_str()) != uid).collect();
    Some(service.guarded(json!({ "metadata": { "ownerReferences": others } })))
}
