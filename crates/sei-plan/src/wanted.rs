//! What the spec and the platform ask for now, rendered once per pass.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use serde_json::Value;

/// Everything that a node should be made of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Fingerprint of the rendered pod template: R.
    pub hash: String,
    /// Digest of what of the spec may land in a template.
    pub inputs_hash: String,
    pub image: String,
    pub sidecar_image: String,
    /// Digests of the configuration that is not in the template.
    pub config: BTreeMap<String, String>,
    pub statefulset: StatefulSet,
    pub service: Service,
    pub proxy_config: ConfigMap,
    /// The claim that an init plan creates; `None` when one is imported.
    pub claim: Option<PersistentVolumeClaim>,
    /// Smallest capacity that an imported claim may have.
    pub claim_size: String,
    pub bootstrap: Option<Bootstrap>,
    /// Parameters of the configuration tasks, as they are stored in a plan.
    pub config_apply: Value,
    pub config_patch: Value,
    pub configure_state_sync: Value,
}

/// The Job that replays to a height before the node starts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bootstrap {
    pub job: Job,
    pub service: Service,
    pub image: String,
}
