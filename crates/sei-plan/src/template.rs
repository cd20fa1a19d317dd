//! A pod template as it is kept.

use k8s_openapi::api::core::v1::{PodTemplateSpec, Volume};
use sei_api::names::label;
use serde::Deserialize;
use serde_json::Value;

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
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        let label = |key: &str| labels.and_then(|labels| labels.get(key)).cloned();
        let volume = |name: &str| {
            let volumes = template.spec.as_ref().and_then(|spec| spec.volumes.as_deref());
            volumes.unwrap_or_default().iter().find(|volume| volume.name == name)
        };
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

impl From<Value> for Template {
    fn from(json: Value) -> Self {
        let packed = Packed::like(&json);
        let identity = serde_json::from_value(json).map(|template| Identity::of(&template));
        Self { packed, identity: identity.unwrap_or_default() }
    }
}

impl From<&PodTemplateSpec> for Template {
    fn from(template: &PodTemplateSpec) -> Self {
        Self { packed: Packed::like(template), identity: Identity::of(template) }
    }
}
