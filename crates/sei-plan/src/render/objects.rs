//! The objects around the pod: StatefulSet, Service, claim, proxy configuration.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec, StatefulSetUpdateStrategy};
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolumeClaim, PersistentVolumeClaimSpec, Service, ServicePort, ServiceSpec,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::names;

use super::containers::{seid_ports, texts};
use super::pod::{render_template, resource_labels, selector_labels};
use super::{Owner, RenderError, data_claim_name, data_storage, port};
use crate::inputs::{TemplateInputs, VolumeInputs};
use crate::platform::Platform;

/// The node's StatefulSet. Its annotations stay empty: the caller stamps the fingerprint of the
/// template there before it applies the object.
pub fn render_statefulset(
    inputs: &TemplateInputs,
    platform: &Platform,
    owner: &Owner,
    replicas: i32,
) -> Result<StatefulSet, RenderError> {
    Ok(StatefulSet {
        metadata: metadata(&inputs.name, owner, resource_labels(inputs)),
        spec: StatefulSetSpec {
            replicas: Some(replicas),
            service_name: Some(inputs.name.clone()),
            selector: LabelSelector {
                match_labels: Some(selector_labels(&inputs.name)),
                match_expressions: None,
            },
            // The operator decides when a pod is replaced; a rolling update would not wait for it.
            update_strategy: Some(StatefulSetUpdateStrategy {
                type_: Some("OnDelete".to_owned()),
                rolling_update: None,
            }),
            template: render_template(inputs, platform)?,
            ..StatefulSetSpec::default()
        },
        status: None,
    })
}

/// The headless Service that gives the pod its DNS name. It publishes addresses that are not ready,
/// because the operator has to reach the sidecar before the node is.
pub fn render_service(inputs: &TemplateInputs, owner: &Owner) -> Service {
    let mut ports: Vec<ServicePort> =
        seid_ports(inputs.mode).iter().map(|(name, port)| service_port(name, *port)).collect();
    ports.push(service_port("api", port::API));
    let metadata = metadata(&inputs.name, owner, resource_labels(inputs));
    headless_service(metadata, selector_labels(&inputs.name), ports)
}

/// The claim to create, or none where one is imported: an imported claim is never written.
pub fn render_data_claim(
    inputs: &TemplateInputs,
    volume: &VolumeInputs,
    platform: &Platform,
    owner: &Owner,
) -> Option<PersistentVolumeClaim> {
    if inputs.imported_claim.is_some() {
        return None;
    }
    let storage = data_storage(inputs.mode, volume, platform);
    let size = ("storage".to_owned(), ApiQuantity(storage.size.canonical()));
    Some(PersistentVolumeClaim {
        metadata: metadata(&data_claim_name(inputs), owner, resource_labels(inputs)),
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(texts(&["ReadWriteOnce"])),
            storage_class_name: Some(storage.class),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([size])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// Configures the permission that the auth proxy requires of a caller. Names are quoted: `123` and
/// `true` are valid names of namespaces, and have another type in YAML.
pub fn render_proxy_config(inputs: &TemplateInputs, owner: &Owner) -> ConfigMap {
    let content = format!(
        "authorization:
  resourceAttributes:
    apiGroup: {group}
    resource: seinodetasks
    namespace: \"{namespace}\"
    name: \"{name}\"
",
        group = names::GROUP,
        namespace = owner.namespace,
        name = inputs.name,
    );
    ConfigMap {
        metadata: metadata(&names::proxy_config(&inputs.name), owner, resource_labels(inputs)),
        data: Some(BTreeMap::from([("config.yaml".to_owned(), content)])),
        ..ConfigMap::default()
    }
}

pub(super) fn headless_service(
    metadata: ObjectMeta,
    selector: BTreeMap<String, String>,
    ports: Vec<ServicePort>,
) -> Service {
    Service {
        metadata,
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(selector),
            ports: Some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

pub(super) fn service_port(name: &str, number: i32) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: number,
        target_port: Some(IntOrString::Int(number)),
        protocol: Some("TCP".to_owned()),
        // Without it a proxy in between would use HTTP/1 for a gRPC server.
        app_protocol: (number == port::GRPC).then(|| "kubernetes.io/h2c".to_owned()),
        node_port: None,
    }
}

pub(super) fn metadata(name: &str, owner: &Owner, labels: BTreeMap<String, String>) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(owner.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![OwnerReference {
            api_version: format!("{}/{}", names::GROUP, names::VERSION),
            kind: "SeiNode".to_owned(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..ObjectMeta::default()
    }
}
