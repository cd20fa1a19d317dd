//! An operator for one test, restricted to the test's namespace.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use kube::client::ClientBuilder;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use sei_operator::runtime::client;
use sei_operator::runtime::controller::InFlight;
use sei_operator::runtime::metrics::Metrics;
use sei_operator::{Operator, Options, TokenSource};
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use sei_rig::{ControlPlane, User};
use tower::layer::layer_fn;

use crate::TestContext;
use crate::interceptor::Interceptor;

/// The platform that tests run on.
pub const PLATFORM: &str = "
scheduling:
  nodepoolName: chain-default
  nodepoolArchive: chain-archive
  nodepoolValidator: chain-validator
  nodepoolSeed: chain-seed
  tolerationKey: example.org/chain
  serviceAccount: chain-node
storage: { classPerf: fast, classDefault: standard, classArchive: bulk, sizeDefault: 1Gi, sizeArchive: 2Gi }
stateSync: { syncers: { demo-1: [\"witness-a.sync.svc:26657\", \"witness-b.sync.svc:26657\"] } }
snapshot: { bucket: snapshots, region: eu-west-1 }
resultExport: { bucket: results, region: eu-west-1, prefix: shadow/ }
genesis: { bucket: genesis, region: eu-west-1 }
images:
  sidecar: registry.example.org/seictl:v1
  kubeRBACProxy: registry.example.org/kube-rbac-proxy:v1
  cosmosExporter: registry.example.org/exporter:v1
rollout: { settleSeconds: 0 }
";

/// The setup of an operator under test.
pub struct Setup {
    pub user: User,
    pub platform: String,
    /// The file that the platform is read from again.
    pub platform_path: Option<PathBuf>,
    pub speed: u32,
    pub version: String,
    /// The registry that the operator's metrics go to.
    pub metrics: Metrics,
    pub algorithm: Algorithm,
    /// Where its tokens for sidecars come from: by default the account in the test's namespace.
    pub tokens: Option<TokenSource>,
    /// It works in all namespaces, so the test needs a plane of its own.
    pub all_namespaces: bool,
    /// More namespaces than the test's.
    pub namespaces: Vec<String>,
    /// Its token, instead of that of the user.
    pub token: Option<String>,
    /// The interceptor that its requests pass through, if any.
    pub interceptor: Option<Interceptor>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            user: User::Operator,
            platform: PLATFORM.to_owned(),
            platform_path: None,
            speed: 10,
            version: "1.0.0".to_owned(),
            metrics: Metrics::new(),
            algorithm: Algorithm::CURRENT,
            tokens: None,
            all_namespaces: false,
            namespaces: Vec::new(),
            token: None,
            interceptor: None,
        }
    }
}

/// Starts an operator for the nodes of the test's namespace, or of all.
pub async fn start(context: &TestContext, setup: Setup) -> Result<Operator> {
    start_on(context.plane(), &context.namespace, setup).await
}

/// The same on a plane without the rig's kubelet.
pub async fn start_on(plane: &ControlPlane, namespace: &str, setup: Setup) -> Result<Operator> {
    let platform = Platform::parse(&setup.platform, "platform.yaml")?;
    // There is no leader election here: the operator leads as soon as it runs.
    setup.metrics.leading(true);
    let options = Options {
        platform: Arc::new(platform),
        platform_path: setup.platform_path,
        namespaces: if setup.all_namespaces {
            [].into()
        } else {
            std::iter::once(namespace.to_owned()).chain(setup.namespaces).collect()
        },
        sidecar_token: setup
            .tokens
            .unwrap_or_else(|| TokenSource::Account { namespace: namespace.to_owned() }),
        timing: Timing::faster(setup.speed),
        rpc_reads: sei_operator::RPC_READS,
        version: setup.version,
        algorithm: setup.algorithm,
        metrics: setup.metrics,
        in_flight: InFlight::default(),
    };
    let path = plane.kubeconfig(setup.user);
    let kubeconfig = Kubeconfig::read_from(&path).context("failed to read a kubeconfig")?;
    let mut config =
        Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    if let Some(token) = setup.token {
        config.auth_info = AuthInfo { token: Some(token.into()), ..AuthInfo::default() };
    }
    let metrics = options.metrics.clone();
    let make = move || make_client(config, &metrics, setup.interceptor);
    let mut operator = Operator::start(make, options)?;
    operator.ready().await?;
    Ok(operator)
}

/// A client configured like the one of the operator's process.
fn make_client(
    config: Config,
    metrics: &Metrics,
    interceptor: Option<Interceptor>,
) -> Result<Client> {
    let builder = ClientBuilder::try_from(client::hardened(config))?;
    let count = metrics.count_requests();
    Ok(match interceptor {
        Some(interceptor) => {
            let intercept = layer_fn(|inner| interceptor.clone().wrap(inner));
            builder.with_layer(&intercept).with_layer(&count).build()
        }
        None => builder.with_layer(&count).build(),
    })
}
