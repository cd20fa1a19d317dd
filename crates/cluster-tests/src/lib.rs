//! Claims that only real servers can prove.
//!
//! What it is for: running against a real control plane what was thought out without one. The tests
//! are one program, so that they share one plane; each has a namespace of its own and they run side
//! by side. The plane ends with the process, see `sei_rig`.
//!
//! What it never does: run with `cargo test` alone. `cargo xtask test` runs it once for each minor
//! of Kubernetes; by hand it is `SEI_KUBERNETES=1.34 cargo test -p cluster-tests`.
//!
//! Invariants:
//! - What is tested is the minor that was asked for. Guarded by `the_plane_is_of_its_minor`.

pub mod docs;
pub mod install;
pub mod operator;
pub mod play;
pub mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use sei_rig::{ControlPlane, Kubelet, Lane, Options, User};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// What people install.
pub const SEINODE_CRD: &str = include_str!("../../../config/crd/bases/seinodes.sei.io.yaml");

/// What the operator may do.
pub const CLUSTER_ROLE: &str = include_str!("../../../config/rbac/cluster-role.yaml");

/// Bound for what a server does by itself. Long, because the machine may be busy: only a failure
/// waits for it.
const WITHIN: Duration = Duration::from_secs(60);

/// The minor under test.
pub fn minor() -> String {
    std::env::var("SEI_KUBERNETES").unwrap_or_else(|_| "1.34".to_owned())
}

/// Boots a plane of the minor under test for one test alone: one that disturbs it.
pub async fn boot() -> Result<ControlPlane> {
    let folder = sei_rig::bin_dir(&minor())?;
    let crd: CustomResourceDefinition = serde_saphyr::from_str(SEINODE_CRD)?;
    let options = Options { definitions: vec![crd], ..Options::default() };
    let plane = ControlPlane::boot(&folder, options).await?;
    let admin = plane.client(User::Admin)?;
    let role: ClusterRole = serde_saphyr::from_str(CLUSTER_ROLE)?;
    Api::all(admin.clone()).create(&PostParams::default(), &role).await?;
    Api::all(admin).create(&PostParams::default(), &binding()).await?;
    Ok(plane)
}

/// Gives the operator's user what people install, and nothing else.
fn binding() -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta { name: Some("sei-operator".to_owned()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: "sei-operator".to_owned(),
        },
        subjects: Some(vec![Subject {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "User".to_owned(),
            name: User::Operator.name().to_owned(),
            namespace: None,
        }]),
    }
}

/// The lane that all tests share.
pub async fn shared_lane() -> Result<Arc<Lane>> {
    // A failure is kept too: the second test would fail as slowly as the first.
    static LANE: OnceCell<Result<Arc<Lane>, String>> = OnceCell::const_new();
    let start = || async { anyhow::Ok(Arc::new(Lane::start(boot().await?)?)) };
    let lane = LANE.get_or_init(|| async { start().await.map_err(|error| format!("{error:#}")) });
    let lane = lane.await.as_ref();
    lane.cloned().map_err(|told| anyhow!("there is no control plane: {told}"))
}

/// What a test works in.
pub struct Scene {
    pub lane: Arc<Lane>,
    pub admin: Client,
    /// Of this test alone.
    pub namespace: String,
}

impl Scene {
    pub fn plane(&self) -> &ControlPlane {
        self.lane.plane()
    }

    pub fn kubelet(&self) -> &Kubelet {
        self.lane.kubelet()
    }
}

/// A namespace of its own on the shared plane.
pub async fn scene(name: &str) -> Result<Scene> {
    scene_on(shared_lane().await?, name).await
}

/// A namespace of its own on this plane.
pub async fn scene_on(lane: Arc<Lane>, name: &str) -> Result<Scene> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let admin = lane.plane().client(User::Admin)?;
    let namespace = format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
    let object = Namespace { metadata, ..Namespace::default() };
    Api::all(admin.clone())
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("failed to make namespace {namespace}"))?;
    Ok(Scene { lane, admin, namespace })
}

/// Looks until there is something to see, and returns it.
pub async fn wait_for<T>(
    claim: &str,
    mut look: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + WITHIN;
    loop {
        if let Some(seen) = look().await? {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            bail!("within {} s it did not happen that {claim}", WITHIN.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
