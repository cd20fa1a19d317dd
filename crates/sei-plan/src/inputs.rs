//! Which part of a `SeiNode` is rendered into a pod template, and whether its spec is valid.
//!
//! [`TemplateInputs`] separates the two halves of a spec: a field in it may roll a pod, a field
//! outside of it never does so through the template. Its digest distinguishes a change of the spec
//! from a change of the operator or of the platform configuration.

use std::collections::BTreeMap;

use sei_api::node::{DEFAULT_SIDECAR_PORT, QuantityText, Resources};
use sei_api::pod::{SchedulingSpec, Toleration, TopologySpread};
use sei_api::{Mode, SeiNode, names};
use serde::{Serialize, Serializer};

use crate::quantity::Quantity;

mod check;
pub(crate) mod pod;
#[cfg(test)]
mod tests;

pub use check::{SpecError, check_spec};

/// All fields of a node that are rendered into its pod template, and nothing else.
///
/// The digest of its JSON is kept in status for years. So fields are declared in the order of their
/// JSON names, and a field at its default is not written: a field that is added later then leaves
/// the digests of all nodes that do not use it unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateInputs {
    pub chain_id: String,
    /// The annotation of this name is exactly `"true"`.
    #[serde(skip_serializing_if = "is_false")]
    pub dedicated: bool,
    pub image: String,
    /// Names of Secrets, in addition to those of the platform.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub imported_claim: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyring: Option<KeyringInputs>,
    #[serde(serialize_with = "mode_name")]
    pub mode: Mode,
    pub name: String,
    /// Never changes, so it is no part of the digest.
    #[serde(skip)]
    pub namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_key_secret: Option<String>,
    /// None where the platform's pool for the mode is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_pool: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Without the annotations that the operator stamps itself.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_annotations: BTreeMap<String, String>,
    /// Without the labels that the operator stamps itself: those never reach the pod from here.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub pod_labels: BTreeMap<String, String>,
    /// None where the platform's is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Snapshots of this node are published by a job that finds its pod by a label.
    #[serde(skip_serializing_if = "is_false")]
    pub publish: bool,
    /// Of the chain process, in place of the platform's.
    #[serde(skip_serializing_if = "ResourceInputs::is_empty")]
    pub resources: ResourceInputs,
    /// The annotation of this name; a new value asks for a new pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarted_at: Option<String>,
    /// None where the platform's image is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sidecar_image: Option<String>,
    #[serde(skip_serializing_if = "is_default_port")]
    pub sidecar_port: i32,
    #[serde(skip_serializing_if = "SidecarResources::is_empty")]
    pub sidecar_resources: SidecarResources,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_secret: Option<String>,
    /// None where the default is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub termination_grace_seconds: Option<i32>,
    /// In addition to those of the platform.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topology_spread: Vec<TopologySpread>,
}

/// The data volume that the spec asks for. It is not rendered into a template: a volume that exists
/// keeps its class and its size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeInputs {
    pub storage_class: Option<String>,
    pub size: Option<Quantity>,
}

impl VolumeInputs {
    pub fn of(node: &SeiNode) -> Result<Self, SpecError> {
        let Some(volume) = &node.spec.data_volume else { return Ok(Self::default()) };
        let size = volume.size.as_ref();
        Ok(Self {
            storage_class: volume.storage_class_name.clone(),
            size: size.map(|size| parse_quantity(pod::SIZE, size)).transpose()?,
        })
    }
}

/// Requests and limits by the name of the resource, in the form that the API server stores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResourceInputs {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
}

impl ResourceInputs {
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.requests.is_empty()
    }
}

/// The part of the keyring that a pod uses. The name of the signing key is not here: each
/// governance task carries it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyringInputs {
    pub passphrase_key: String,
    pub passphrase_secret: String,
    pub secret: String,
    #[serde(skip_serializing_if = "is_false")]
    pub seid_mount: bool,
}

/// Requests and limits of the sidecar, quantities in the form the API server stores: `0.5` and
/// `500m` are the same request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SidecarResources {
    /// Name of the claim and of the request within it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<(String, Option<String>)>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub limits: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub requests: BTreeMap<String, String>,
}

impl TemplateInputs {
    /// Fails only where nothing could be rendered. An object that was stored before a rule existed
    /// may break [`check_spec`] and still run: a condition reports that to its owner.
    pub fn of(node: &SeiNode) -> Result<Self, SpecError> {
        let spec = &node.spec;
        let name = node.metadata.name.clone().filter(|name| !name.is_empty());
        let sidecar = spec.sidecar.as_ref().and_then(|sidecar| sidecar.resources.as_ref());
        let resources = spec.resources.as_ref();
        let limits = resources.and_then(|resources| resources.limits.as_ref());
        let requests = resources.and_then(|resources| resources.requests.as_ref());
        let SchedulingSpec {
            node_pool,
            node_selector,
            tolerations,
            priority_class_name,
            topology_spread_constraints,
        } = spec.scheduling.as_deref().cloned().unwrap_or_default();
        Ok(Self {
            chain_id: spec.chain_id.clone(),
            dedicated: is_dedicated(node),
            image: spec.image.clone(),
            image_pull_secrets: pod::pull_secrets(spec.image_pull_secrets.as_deref()),
            imported_claim: spec.imported_claim().map(str::to_owned),
            keyring: spec.keyring().map(|keyring| KeyringInputs {
                passphrase_key: keyring.passphrase_secret_ref.key.clone(),
                passphrase_secret: keyring.passphrase_secret_ref.secret_name.clone(),
                secret: keyring.secret_name.clone(),
                seid_mount: keyring.seid_mount == Some(true),
            }),
            mode: spec.mode().ok_or_else(|| SpecError::of_modes(&spec.modes()))?,
            name: name.ok_or(SpecError::Missing {
                field: "metadata.name".to_owned(),
                remedy: "give the node a name".to_owned(),
            })?,
            namespace: node.metadata.namespace.clone().unwrap_or_default(),
            node_key_secret: spec.node_key_secret().map(str::to_owned),
            node_pool,
            node_selector: node_selector.unwrap_or_default(),
            pod_annotations: pod::annotations(spec.pod_annotations.as_ref()),
            pod_labels: pod_labels(spec.pod_labels.as_ref()),
            priority_class: priority_class_name,
            publish: spec
                .snapshot_generation()
                .and_then(|generation| generation.tendermint.as_ref())
                .is_some_and(|snapshots| snapshots.publish.is_some()),
            resources: ResourceInputs {
                limits: canonical("spec.resources.limits", limits)?,
                requests: canonical("spec.resources.requests", requests)?,
            },
            restarted_at: annotation_of(node, names::annotation::RESTARTED_AT).cloned(),
            sidecar_image: spec.sidecar_image().map(str::to_owned),
            sidecar_port: spec.sidecar_port(),
            sidecar_resources: sidecar
                .map_or_else(|| Ok(SidecarResources::default()), SidecarResources::of)?,
            signing_secret: spec.signing_secret().map(str::to_owned),
            termination_grace_seconds: spec.termination_grace_period_seconds,
            tolerations: tolerations.unwrap_or_default(),
            topology_spread: topology_spread_constraints.unwrap_or_default(),
        })
    }
}

impl SidecarResources {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.limits.is_empty() && self.requests.is_empty()
    }

    fn of(resources: &Resources) -> Result<Self, SpecError> {
        let claims = resources.claims.iter().flatten();
        Ok(Self {
            claims: claims.map(|claim| (claim.name.clone(), claim.request.clone())).collect(),
            limits: canonical("spec.sidecar.resources.limits", resources.limits.as_ref())?,
            requests: canonical("spec.sidecar.resources.requests", resources.requests.as_ref())?,
        })
    }
}

fn canonical(
    list: &str,
    quantities: Option<&BTreeMap<String, QuantityText>>,
) -> Result<BTreeMap<String, String>, SpecError> {
    let quantities = quantities.into_iter().flatten();
    quantities
        .map(|(name, text)| {
            let quantity = parse_quantity(&resource_field(list, name), text)?;
            Ok((name.clone(), quantity.canonical()))
        })
        .collect()
}

/// The field of a resource; its name is the user's text, which may be long and odd.
fn resource_field(list: &str, name: &str) -> String {
    format!("{list}.{}", check::shown(name, 80))
}

fn parse_quantity(field: &str, text: &QuantityText) -> Result<Quantity, SpecError> {
    Quantity::parse(&text.to_string()).map_err(|e| SpecError::Quantity {
        field: field.to_owned(),
        reason: check::shown(&e.to_string(), 240),
    })
}

fn is_dedicated(node: &SeiNode) -> bool {
    annotation_of(node, names::annotation::DEDICATED_NODE).is_some_and(|value| value == "true")
}

fn annotation_of<'a>(node: &'a SeiNode, name: &str) -> Option<&'a String> {
    node.metadata.annotations.as_ref()?.get(name)
}

fn pod_labels(labels: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let labels = labels.into_iter().flatten();
    labels
        .filter(|(key, _)| !names::label::RESERVED.contains(&key.as_str()))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_default_port(port: &i32) -> bool {
    *port == DEFAULT_SIDECAR_PORT
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn mode_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode.as_str())
}
