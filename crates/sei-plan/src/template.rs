//! A pod template as it is kept.

use std::borrow::Cow;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodTemplateSpec, Volume};
use sei_api::names::label;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::packed::Packed;
use crate::view::SIGNING_VOLUME;

/// A pod template as it is stored or rendered.
#[derive(Clone, Debug, Default)]
pub struct Template {
    packed: Packed<Value>,
    /// Read in every pass.
    identity: Identity,
}

/// The part `spec` of an object.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Spec<T> {
    pub(crate) spec: T,
}

/// The part `template` of the `spec` of a StatefulSet.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct WithTemplate<T> {
    pub(crate) template: T,
}

/// The containers in the `spec` of a pod.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Containers {
    pub(crate) containers: Vec<NamedImage>,
    pub(crate) init_containers: Vec<NamedImage>,
}

#[derive(Deserialize)]
pub(crate) struct NamedImage {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) image: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Volumes {
    volumes: Vec<Volume>,
}

/// The identity of a running node. A change of it would make another node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    pub chain: Option<String>,
    pub role: Option<String>,
    pub signing_secret: Option<String>,
    pub claim: Option<String>,
}

impl Identity {
    pub(crate) fn of(template: &PodTemplateSpec) -> Self {
        Template::from(template).identity
    }
}

/// The parts of a template that its identity consists of.
#[derive(Default, Deserialize)]
#[serde(default)]
struct IdentityParts<'a> {
    #[serde(borrow)]
    metadata: Labels<'a>,
    #[serde(borrow)]
    spec: NamedVolumes<'a>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Labels<'a> {
    #[serde(borrow)]
    labels: Option<BTreeMap<Text<'a>, Text<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedVolumes<'a> {
    #[serde(borrow)]
    volumes: Option<Vec<NamedVolume<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedVolume<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    secret: Option<SecretSource>,
    persistent_volume_claim: Option<ClaimSource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SecretSource {
    secret_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

/// Text that is copied only if it contains an escape.
#[derive(Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl From<IdentityParts<'_>> for Identity {
    fn from(IdentityParts { metadata, spec }: IdentityParts<'_>) -> Self {
        let label = |key: &str| {
            let found = metadata.labels.as_ref()?.get(&Text(key.into()))?;
            Some(found.0.clone().into_owned())
        };
        let volume =
            |name: &str| spec.volumes.iter().flatten().find(|volume| volume.name.0 == name);
        let secret = volume(SIGNING_VOLUME).and_then(|volume| volume.secret.as_ref());
        let claim = volume("data").and_then(|volume| volume.persistent_volume_claim.as_ref());
        Self {
            chain: label(label::CHAIN),
            role: label(label::ROLE),
            signing_secret: secret.and_then(|secret| secret.secret_name.clone()),
            claim: claim.map(|claim| claim.claim_name.clone()),
        }
    }
}

impl Template {
    /// The template as JSON; null if none is known.
    pub fn json(&self) -> Value {
        self.packed.json()
    }

    /// The volumes of its pods.
    pub fn volumes(&self) -> Vec<Volume> {
        self.packed.part::<Spec<Volumes>>().spec.volumes
    }

    pub(crate) fn containers(&self) -> Containers {
        self.packed.part::<Spec<Containers>>().spec
    }

    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    #[cfg(test)]
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut Value)) {
        let mut json = self.json();
        change(&mut json);
        *self = json.into();
    }
}

impl PartialEq for Template {
    fn eq(&self, second: &Self) -> bool {
        // Keys may come in another order.
        self.packed == second.packed || self.json() == second.json()
    }
}

impl From<Packed<Value>> for Template {
    fn from(packed: Packed<Value>) -> Self {
        let identity = packed.part::<IdentityParts<'_>>().into();
        Self { packed, identity }
    }
}

impl From<Value> for Template {
    fn from(json: Value) -> Self {
        Packed::from(json).into()
    }
}

impl From<&PodTemplateSpec> for Template {
    fn from(template: &PodTemplateSpec) -> Self {
        Packed::like(template).into()
    }
}

impl From<Box<RawValue>> for Template {
    fn from(text: Box<RawValue>) -> Self {
        Packed::from(text).into()
    }
}
