//! Tests that need a real control plane.
//!
//! What it is for: testing the operator against a real control plane. The tests are one program, so
//! that they share one plane; each has a namespace of its own and they run in parallel. The plane
//! ends with the process, see `sei_rig`.
//!
//! What it never does: run with `cargo test` alone. `cargo xtask test` runs it once for each minor
//! of Kubernetes; the direct command is `SEI_KUBERNETES=1.34 cargo test -p cluster-tests`.
//!
//! Invariants:
//! - The tests run on the requested minor. Guarded by `the_plane_runs_the_requested_minor`.

pub mod conformance;
pub mod docs;
pub mod install;
pub mod interceptor;
pub mod operator;
pub mod scenario;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleRef, Subject};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use sei_rig::{ControlPlane, Kubelet, Lane, Options, User};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// The installed CRD.
pub const SEINODE_CRD: &str = include_str!("../../../config/crd/bases/seinodes.sei.io.yaml");
/// The CRD of fleets.
pub const FLEET_CRD: &str =
    include_str!("../../../config/crd/bases/seinodedeployments.sei.io.yaml");

/// The operator's installed permissions.
pub const CLUSTER_ROLE: &str = include_str!("../../../config/rbac/cluster-role.yaml");

/// The permission to request tokens for sidecars.
pub const TOKEN_ROLE: &str = include_str!("../../../config/rbac/sidecar-token-role.yaml");

/// How long to wait for an expected state. Long, because the machine may be busy; only a failing
/// test waits that long.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The minor under test.
pub fn minor() -> String {
    std::env::var("SEI_KUBERNETES").unwrap_or_else(|_| "1.34".to_owned())
}

/// Boots a plane of the minor under test for a single test that disturbs it.
pub async fn boot() -> Result<ControlPlane> {
    boot_with(Options::default()).await
}

/// The same with other options; the CRDs are added.
pub async fn boot_with(options: Options) -> Result<ControlPlane> {
    let folder = sei_rig::bin_dir(&minor())?;
    let crds: Result<Vec<CustomResourceDefinition>, _> =
        [SEINODE_CRD, FLEET_CRD].into_iter().map(serde_saphyr::from_str).collect();
    let options = Options { definitions: crds?, ..options };
    let plane = ControlPlane::boot(&folder, options).await?;
    let admin = plane.client(User::Admin)?;
    let role: ClusterRole = serde_saphyr::from_str(CLUSTER_ROLE)?;
    Api::all(admin.clone()).create(&PostParams::default(), &role).await?;
    Api::all(admin.clone()).create(&PostParams::default(), &binding("sei-operator")).await?;
    // Each test has an operator in a namespace of its own, so this role holds in all of them.
    let token: Role = serde_saphyr::from_str(TOKEN_ROLE)?;
    let token =
        ClusterRole { metadata: token.metadata, rules: token.rules, ..ClusterRole::default() };
    let name = token.metadata.name.clone().unwrap_or_default();
    Api::all(admin.clone()).create(&PostParams::default(), &token).await?;
    Api::all(admin).create(&PostParams::default(), &binding(&name)).await?;
    Ok(plane)
}

/// Grants the operator's user an installed role.
fn binding(role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: ObjectMeta { name: Some(role.to_owned()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: role.to_owned(),
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
    // A failure is cached too: otherwise every test would fail as slowly as the first.
    static LANE: OnceCell<Result<Arc<Lane>, String>> = OnceCell::const_new();
    let start = || async { anyhow::Ok(Arc::new(Lane::start(boot().await?)?)) };
    let lane = LANE.get_or_init(|| async { start().await.map_err(|error| format!("{error:#}")) });
    let lane = lane.await.as_ref();
    lane.cloned().map_err(|message| anyhow!("failed to start the control plane: {message}"))
}

/// The namespace of a test, and the lane it is on.
pub struct TestContext {
    pub lane: Arc<Lane>,
    pub admin: Client,
    /// Used by this test only.
    pub namespace: String,
}

impl TestContext {
    pub fn plane(&self) -> &ControlPlane {
        self.lane.plane()
    }

    pub fn kubelet(&self) -> &Kubelet {
        self.lane.kubelet()
    }
}

/// Creates a namespace for a test on the shared plane.
pub async fn test_context(name: &str) -> Result<TestContext> {
    test_context_on(shared_lane().await?, name).await
}

/// Creates a namespace for a test on this plane.
pub async fn test_context_on(lane: Arc<Lane>, name: &str) -> Result<TestContext> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let admin = lane.plane().client(User::Admin)?;
    let namespace = format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
    let object = Namespace { metadata, ..Namespace::default() };
    Api::all(admin.clone())
        .create(&PostParams::default(), &object)
        .await
        .with_context(|| format!("failed to create namespace {namespace}"))?;
    let name = Some(sei_api::names::SIDECAR_CALLER.to_owned());
    let account = ServiceAccount {
        metadata: ObjectMeta { name, ..ObjectMeta::default() },
        ..ServiceAccount::default()
    };
    let accounts = Api::namespaced(admin.clone(), &namespace);
    accounts.create(&PostParams::default(), &account).await?;
    Ok(TestContext { lane, admin, namespace })
}

/// Polls until `check` returns a value, and returns that value.
pub async fn wait_for<T>(
    claim: &str,
    mut check: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = check().await? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("timed out after {} s waiting until {claim}", TIMEOUT.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
