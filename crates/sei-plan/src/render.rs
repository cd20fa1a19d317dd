//! The objects of a node, as functions of its inputs and the platform configuration.
//!
//! Nothing here reads a cluster, a clock or a status: the same inputs give the same bytes, on every
//! machine and in every version of the operator that does not mean to change them. Each changed
//! byte of the pod template restarts pods, so a constant here is changed like an API.
//!
//! An object holds only fields with a purpose. A field at its API default is left out: the server
//! sets it, and its ownership would be less clear if we wrote it too.
//!
//! The [`guards`] check every rendered pod: they catch mistakes in our code too, not only in the
//! input.

use sei_api::{Mode, SeiNode};

use crate::inputs::{TemplateInputs, VolumeInputs};
use crate::platform::{FootprintOverride, Platform};
use crate::quantity::Quantity;

mod bootstrap;
mod config;
mod containers;
pub mod guards;
mod objects;
mod placement;
mod pod;
mod scripts;
#[cfg(test)]
mod tests;

pub use bootstrap::{Bootstrap, render_bootstrap_job, render_bootstrap_service};
pub use config::{
    config_apply_params, config_digests, config_patch_params, configure_state_sync_params,
};
pub use objects::{render_data_claim, render_proxy_config, render_service, render_statefulset};
pub use pod::render_template;

/// Ports of the pod. The ports of the chain are those of its configuration library.
pub mod port {
    pub const EVM_RPC: i32 = 8545;
    pub const EVM_WS: i32 = 8546;
    pub const GRPC: i32 = 9090;
    pub const REST: i32 = 1317;
    pub const P2P: i32 = 26656;
    pub const RPC: i32 = 26657;
    pub const METRICS: i32 = 26660;
    /// The auth proxy in front of the sidecar, in plain text.
    pub const API: i32 = 8443;
    pub const COSMOS_METRICS: i32 = 9300;

    /// Ports that the sidecar cannot have.
    pub const TAKEN: [i32; 9] =
        [EVM_RPC, EVM_WS, GRPC, REST, P2P, RPC, METRICS, API, COSMOS_METRICS];
}

/// Names of the containers, shared by both kinds of pod and by all readers of pods.
pub mod container {
    pub const SEID: &str = "seid";
    pub const SEID_INIT: &str = "seid-init";
    pub const SIDECAR: &str = "sei-sidecar";
    pub const PROXY: &str = "kube-rbac-proxy";
    pub const EXPORTER: &str = "cosmos-exporter";
}

/// Home of the chain process: the root of the data volume.
pub const DATA_DIR: &str = "/home/nonroot/.sei";
/// Home of the user. Never the data volume: files that tools leave there must not outlive the pod.
pub const HOME_DIR: &str = "/home/nonroot";
/// How long a database may take to close. The default of 30 s was too short for large states.
pub const TERMINATION_GRACE_SECONDS: i64 = 120;

/// The `SeiNode` that controls a rendered object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    pub name: String,
    pub uid: String,
    pub namespace: String,
}

impl Owner {
    /// Fails on an object that was never stored: an owner reference without uid owns nothing.
    pub fn of(node: &SeiNode) -> Result<Self, RenderError> {
        let field = |value: &Option<String>, field: &'static str| {
            value.clone().filter(|v| !v.is_empty()).ok_or(RenderError::NotStored { field })
        };
        Ok(Self {
            name: field(&node.metadata.name, "metadata.name")?,
            uid: field(&node.metadata.uid, "metadata.uid")?,
            namespace: field(&node.metadata.namespace, "metadata.namespace")?,
        })
    }
}

/// Why an object cannot be rendered. Nothing is written then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    #[error("platform configuration: {key} is required to render a {mode}")]
    PlatformValue { key: &'static str, mode: Mode },
    #[error("container seid is missing from the pod")]
    NoSeid,
    #[error(
        "container seid has a liveness probe, which would kill it for ever while the sidecar keeps \
         its gate closed"
    )]
    GatedLiveness,
    #[error(
        "the {probe} probe of container seid uses port {port}, which opens only after the probe \
         succeeded"
    )]
    GatedProbe { probe: &'static str, port: i32 },
    #[error(
        "the {probe} probe of a seed's container seid uses port {port}, which a seed never opens"
    )]
    SeedProbe { probe: &'static str, port: i32 },
    #[error("container {container} must not have the operator keyring, but {place} refers to it")]
    KeyringLeak { container: String, place: String },
    #[error("the bootstrap pod must not hold the {kind} Secret {secret}, but {place} refers to it")]
    BootstrapSecret { kind: &'static str, secret: String, place: String },
    #[error("{field}: {remedy}; a bootstrap Job needs it")]
    NoBootstrap { field: &'static str, remedy: &'static str },
    #[error("{field} is empty: the node was not read from an API server")]
    NotStored { field: &'static str },
}

/// The sidecar image that the pod runs.
pub fn effective_sidecar_image<'a>(inputs: &'a TemplateInputs, platform: &'a Platform) -> &'a str {
    inputs.sidecar_image.as_deref().unwrap_or(&platform.images.sidecar)
}

/// The pool of Kubernetes nodes that a node runs on.
pub fn node_pool<'a>(inputs: &'a TemplateInputs, platform: &'a Platform) -> &'a str {
    if let Some(pool) = &inputs.node_pool {
        return pool;
    }
    match inputs.mode {
        Mode::Archive => &platform.scheduling.nodepool_archive,
        Mode::Validator => &platform.scheduling.nodepool_validator,
        Mode::Seed => &platform.scheduling.nodepool_seed,
        Mode::FullNode | Mode::Replayer => &platform.scheduling.nodepool_name,
    }
}

/// Resources of the chain process. Memory is request and limit at once; CPU has no limit, because
/// a throttled node falls behind the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    pub cpu_request: Quantity,
    pub memory: Quantity,
}

pub fn footprint(mode: Mode, platform: &Platform) -> Footprint {
    let resources = &platform.resources;
    let (cpu, memory, change): (_, _, &FootprintOverride) = match mode {
        Mode::Validator => ("16", "128Gi", &resources.validator),
        Mode::FullNode => ("32", "256Gi", &resources.node),
        Mode::Replayer => ("32", "256Gi", &resources.replayer),
        Mode::Archive => ("64", "512Gi", &resources.archive),
        Mode::Seed => ("1", "2Gi", &resources.seed),
    };
    Footprint {
        cpu_request: change.cpu_request.unwrap_or_else(|| constant(cpu)),
        memory: change.memory.unwrap_or_else(|| constant(memory)),
    }
}

/// Class and size of the data claim; the size is also the minimum for an imported claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataStorage {
    pub class: String,
    pub size: Quantity,
}

pub fn data_storage(mode: Mode, volume: &VolumeInputs, platform: &Platform) -> DataStorage {
    let storage = &platform.storage;
    let (class, size) = match mode {
        Mode::Archive => (&storage.class_archive, storage.size_archive),
        Mode::FullNode | Mode::Replayer | Mode::Validator => {
            (&storage.class_perf, storage.size_default)
        }
        Mode::Seed => (&storage.class_default, storage.size_seed),
    };
    DataStorage {
        class: volume.storage_class.as_ref().unwrap_or(class).clone(),
        size: volume.size.unwrap_or(size),
    }
}

/// The claim that holds the node's data, for every use of its name: in the pod, in the bootstrap
/// Job, at creation and at deletion. Two of these once differed, and a Job filled the wrong claim.
pub fn data_claim_name(inputs: &TemplateInputs) -> String {
    inputs.imported_claim.clone().unwrap_or_else(|| sei_api::names::data_claim(&inputs.name))
}

fn constant(quantity: &str) -> Quantity {
    Quantity::parse(quantity).expect("a constant quantity parses")
}
