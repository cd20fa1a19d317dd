//! The desired state: the spec and the platform configuration, rendered once per pass.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use sei_api::SeiNode;
use serde_json::Value;

use crate::fingerprint::{Algorithm, digest_of, fingerprint, fingerprint_with};
use crate::inputs::{SpecError, TemplateInputs, VolumeInputs, check_spec};
use crate::packed::Packed;
use crate::platform::Platform;
use crate::render::{self, Owner, RenderError};
use crate::template::{Containers, Identity, Spec, WithTemplate};

impl Desired {
    /// The rendered pod template, to compare it with live ones.
    pub fn template(&self) -> Value {
        self.statefulset.json()["spec"]["template"].take()
    }

    pub(crate) fn containers(&self) -> Containers {
        self.statefulset.part::<Spec<WithTemplate<Spec<Containers>>>>().spec.template.spec
    }

    /// The same state with a fingerprint of another algorithm.
    #[must_use]
    pub fn hashed_by(self, algorithm: Algorithm) -> Self {
        if algorithm.name() == Algorithm::CURRENT.name() {
            return self;
        }
        let hash =
            fingerprint_with(algorithm, &self.statefulset.unpack().spec.template).to_string();
        Self { hash, ..self }
    }
}

#[cfg(test)]
mod tests;

/// The desired state of every object of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Desired {
    /// Fingerprint of the rendered pod template: R.
    pub hash: String,
    /// Digest of the parts of the spec that can affect a template.
    pub inputs_hash: String,
    pub image: String,
    pub sidecar_image: String,
    /// Digests of the configuration that is not in the template.
    pub config: BTreeMap<String, String>,
    pub statefulset: Packed<StatefulSet>,
    /// Labels of the StatefulSet.
    pub labels: BTreeMap<String, String>,
    /// Of the node, in its pod template.
    pub identity: Identity,
    pub service: Packed<Service>,
    pub proxy_config: Packed<ConfigMap>,
    /// The claim that an init plan creates; `None` if the claim is imported.
    pub claim: Option<Packed<PersistentVolumeClaim>>,
    /// Smallest capacity that an imported claim may have.
    pub claim_size: String,
    pub bootstrap: Option<Bootstrap>,
    /// Parameters of the configuration tasks, as they are stored in a plan.
    pub config_apply: Packed<Value>,
    pub config_patch: Packed<Value>,
    pub configure_state_sync: Packed<Value>,
}

/// The Job that replays to a height before the node starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bootstrap {
    pub job: Packed<Job>,
    pub service: Packed<Service>,
    pub image: String,
}

/// Why a node cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum DesiredError {
    #[error("{}", all_of(.0))]
    Spec(Vec<SpecError>),
    #[error(transparent)]
    Render(#[from] RenderError),
}

/// Maximum number of mistakes in a message; the rest is reported after these are fixed. The text is
/// part of a condition, and thousands of bad labels must not exceed the size limit of the object.
const LISTED_MAX: usize = 8;

fn all_of(errors: &[SpecError]) -> String {
    let mut listed: Vec<String> = errors.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    if errors.len() > LISTED_MAX {
        listed.push(format!("and {} more", errors.len() - LISTED_MAX));
    }
    listed.join("; ")
}

/// Renders the desired state of a node. `peers` are its resolved peers, `witnesses` the witnesses
/// that passed the state-sync check.
pub fn render_desired(
    node: &SeiNode,
    platform: &Platform,
    peers: &[String],
    witnesses: &[String],
) -> Result<Desired, DesiredError> {
    let errors = check_spec(node);
    if !errors.is_empty() {
        return Err(DesiredError::Spec(errors));
    }
    let inputs = TemplateInputs::of(node).map_err(|error| DesiredError::Spec(vec![error]))?;
    let volume = VolumeInputs::of(node).map_err(|error| DesiredError::Spec(vec![error]))?;
    let owner = Owner::of(node)?;
    let replicas = i32::from(!node.spec.is_paused());
    let statefulset = render::render_statefulset(&inputs, platform, &owner, replicas)?;
    let bootstrap = if node.spec.needs_bootstrap() {
        let bootstrap = render::Bootstrap::of(node)?;
        Some(Bootstrap {
            job: render::render_bootstrap_job(&inputs, &bootstrap, platform, &owner)?.into(),
            service: render::render_bootstrap_service(&inputs, &owner).into(),
            image: bootstrap.image.clone(),
        })
    } else {
        None
    };
    Ok(Desired {
        hash: fingerprint(&statefulset.spec.template).to_string(),
        inputs_hash: digest_of(&inputs),
        image: inputs.image.clone(),
        sidecar_image: render::effective_sidecar_image(&inputs, platform).to_owned(),
        config: render::config_digests(node, peers),
        labels: statefulset.metadata.labels.clone().unwrap_or_default(),
        identity: Identity::of(&statefulset.spec.template),
        statefulset: statefulset.into(),
        service: render::render_service(&inputs, &owner).into(),
        proxy_config: render::render_proxy_config(&inputs, &owner).into(),
        claim: render::render_data_claim(&inputs, &volume, platform, &owner).map(Packed::from),
        claim_size: render::data_storage(inputs.mode, &volume, platform).size.canonical(),
        bootstrap,
        config_apply: render::config_apply_params(node, peers).into(),
        config_patch: render::config_patch_params(node, peers).into(),
        configure_state_sync: render::configure_state_sync_params(node, witnesses)
            .unwrap_or_default()
            .into(),
    })
}
