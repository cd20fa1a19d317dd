//! The fleet: a control plane, a kubelet, an operator, and eight nodes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_operator::runtime::client;
use sei_operator::runtime::controller::InFlight;
use sei_operator::runtime::metrics::Metrics;
use sei_operator::runtime::serve;
use sei_operator::{Operator, Options, TokenSource};
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use sei_plan::view::PodView;
use sei_rig::{AuditEntry, AuditLog, Behaviour, ControlPlane, Kubelet, Lane, Rule, User};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) const NAMESPACE: &str = "sandbox";
/// The number of nodes.
pub(crate) const SIZE: usize = 8;
pub(crate) const CHAIN: &str = "sandbox-1";
pub(crate) const OLD: &str = "registry.example.org/seid:v6.5.1";
pub(crate) const NEW: &str = "registry.example.org/seid:v6.6.0";

/// Parts of the names of images that misbehave in a sandbox that keeps running.
pub(crate) const MISSING: &str = "missing";
pub(crate) const CRASH: &str = "crash";
pub(crate) const HALT: &str = "halt";
/// An image to try that with.
pub(crate) const BAD: &str = "registry.example.org/seid:missing";

/// The name of the `SeiNodeDeployment`.
const DEPLOYMENT: &str = "edge";

const CRDS: [&str; 2] = [
    include_str!("../../../config/crd/bases/seinodes.sei.io.yaml"),
    include_str!("../../../config/crd/bases/seinodedeployments.sei.io.yaml"),
];
const ROLE: &str = include_str!("../../../config/rbac/cluster-role.yaml");
const PLATFORM: &str = include_str!("platform.yaml");

/// A control plane with a fleet on it.
pub(crate) struct Fleet {
    lane: Lane,
    admin: Client,
    _operator: Operator,
    audit: std::sync::Mutex<AuditLog>,
    pub(crate) version: String,
    /// Where the operator's metrics are served.
    pub(crate) metrics_address: SocketAddr,
}

/// A node with its pod.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) node: SeiNode,
    pub(crate) pod: Option<PodView>,
}

impl Fleet {
    /// Starts the control plane, the kubelet and the operator, without nodes.
    pub(crate) async fn boot(bin_dir: &Path) -> Result<Self> {
        let crds: Result<Vec<CustomResourceDefinition>, _> =
            CRDS.into_iter().map(serde_saphyr::from_str).collect();
        let options = sei_rig::Options { definitions: crds?, ..sei_rig::Options::default() };
        let plane = ControlPlane::boot(bin_dir, options).await?;
        let version = plane.version().await?;
        let admin = plane.client(User::Admin)?;
        let audit = std::sync::Mutex::new(plane.audit());
        grant(&admin).await?;
        let config = Kubeconfig::read_from(plane.kubeconfig(User::Operator))?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let lane = Lane::start(plane)?;
        let options = Options {
            platform: Arc::new(Platform::parse(PLATFORM, "platform.yaml")?),
            platform_path: None,
            namespaces: [].into(),
            sidecar_token: TokenSource::None,
            timing: Timing::default(),
            rpc_reads: sei_operator::RPC_READS,
            version: sei_operator::VERSION.to_owned(),
            in_flight: InFlight::default(),
            algorithm: Algorithm::CURRENT,
            metrics: Metrics::new(),
        };
        let metrics = options.metrics.clone();
        let metrics_address = serve_metrics(metrics.clone()).await?;
        let make_client = move || Ok(client::counted(config, &metrics)?);
        let mut operator = Operator::start(make_client, options)?;
        operator.ready().await?;
        Ok(Self { lane, admin, _operator: operator, audit, version, metrics_address })
    }

    pub(crate) fn kubelet(&self) -> &Kubelet {
        self.lane.kubelet()
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.lane.plane().kubeconfig(User::Admin)
    }

    /// A kubeconfig whose namespace is that of the nodes. It is removed with the control plane.
    pub(crate) fn write_user_kubeconfig(&self) -> Result<PathBuf> {
        let mut config = Kubeconfig::read_from(self.kubeconfig())?;
        for context in config.contexts.iter_mut().filter_map(|named| named.context.as_mut()) {
            context.namespace = Some(NAMESPACE.to_owned());
        }
        let path = self.kubeconfig().with_file_name("sandbox.kubeconfig");
        std::fs::write(&path, serde_saphyr::to_string(&config)?)
            .with_context(|| format!("failed to write {}", path.display()))?;
        Ok(path)
    }

    /// From now on images misbehave by their names only: the images of the scenario work again.
    pub(crate) fn let_images_misbehave(&self) {
        self.kubelet().lift_all(NAMESPACE);
        for (text, behaviour) in [
            (MISSING, Behaviour::ImageUnpullable),
            (CRASH, Behaviour::Crashes),
            (HALT, Behaviour::Halted),
        ] {
            self.kubelet().behave(NAMESPACE, Rule::new(behaviour).of_images_containing(text));
        }
    }

    fn nodes(&self) -> Api<SeiNode> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// Creates [`SIZE`] nodes: half of them validators, half of them RPC nodes.
    pub(crate) async fn create(&self) -> Result<()> {
        for index in 0..SIZE / 2 {
            let validator = format!("validator-{index}");
            self.create_keys(&validator).await?;
            let keys = json!({
                "signingKey": { "secret": { "secretName": format!("{validator}-signing") } },
                "nodeKey": { "secret": { "secretName": format!("{validator}-p2p") } },
            });
            self.create_node(&validator, "validator", keys).await?;
            self.create_node(&format!("rpc-{index}"), "fullNode", json!({})).await?;
        }
        Ok(())
    }

    async fn create_node(&self, name: &str, mode: &str, fields: Value) -> Result<()> {
        let node: SeiNode = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1",
            "kind": "SeiNode",
            "metadata": { "name": name },
            "spec": { "chainId": CHAIN, "image": OLD, mode: fields },
        }))?;
        let message = || format!("failed to create {name}");
        self.nodes().create(&PostParams::default(), &node).await.with_context(message)?;
        Ok(())
    }

    async fn create_keys(&self, node: &str) -> Result<()> {
        let key = json!({ "type": "tendermint/PrivKeyEd25519", "value": "c2FuZGJveA==" });
        let signing = sei_plan::signing_key::made_up(node);
        for (name, file, content) in [
            (format!("{node}-signing"), "priv_validator_key.json", signing),
            (format!("{node}-p2p"), "node_key.json", json!({ "priv_key": key })),
        ] {
            let secret: Secret = serde_json::from_value(json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
                "stringData": { file: content.to_string() },
            }))?;
            let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), NAMESPACE);
            secrets.create(&PostParams::default(), &secret).await?;
        }
        Ok(())
    }

    fn deployments(&self) -> Api<SeiNodeDeployment> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// Creates a `SeiNodeDeployment` of this many RPC nodes, whose canary has failed after five seconds.
    pub(crate) async fn create_deployment(&self, replicas: usize) -> Result<()> {
        let deployment: SeiNodeDeployment = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1",
            "kind": "SeiNodeDeployment",
            "metadata": { "name": DEPLOYMENT },
            "spec": {
                "replicas": replicas,
                "updateStrategy": { "type": "InPlace", "inPlace": {
                    "maxUnavailable": 4,
                    "canary": { "replicas": 1, "bakeSeconds": 1 },
                    "progressDeadlineSeconds": 5,
                } },
                "template": { "spec": { "chainId": CHAIN, "image": OLD, "fullNode": {} } },
            },
        }))?;
        self.deployments().create(&PostParams::default(), &deployment).await?;
        Ok(())
    }

    /// Sets the image of the template.
    pub(crate) async fn set_template_image(&self, image: &str) -> Result<()> {
        let patch = json!({ "spec": { "template": { "spec": { "image": image } } } });
        let patch = Patch::Merge(&patch);
        self.deployments().patch(DEPLOYMENT, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Why the rollout is halted, if it is.
    pub(crate) async fn halt_reason(&self) -> Result<Option<String>> {
        let status = self.deployments().get(DEPLOYMENT).await?.status.unwrap_or_default();
        Ok(status.rollout.and_then(|rollout| rollout.halt_reason))
    }

    /// Merges a patch into the spec of these nodes.
    pub(crate) async fn edit(&self, names: &[String], spec: Value) -> Result<()> {
        let patch = json!({ "spec": spec });
        for name in names {
            let patch = Patch::Merge(&patch);
            self.nodes().patch(name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Every node with its pod, sorted by name.
    pub(crate) async fn members(&self) -> Result<Vec<Member>> {
        let nodes = self.nodes().list(&ListParams::default()).await?;
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        let pods = pods.list(&ListParams::default()).await?;
        let views: Vec<PodView> = pods.items.iter().map(PodView::from).collect();
        let mut members: Vec<Member> = nodes
            .items
            .into_iter()
            .map(|node| {
                let name = format!("{}-0", node.name_any());
                Member { pod: views.iter().find(|pod| pod.name == name).cloned(), node }
            })
            .collect();
        members.sort_by_key(|member| member.node.name_any());
        Ok(members)
    }

    /// The requests of the operator to the API server since the last call, without watches.
    pub(crate) fn requests(&self) -> Result<Vec<AuditEntry>> {
        let mut audit = self.audit.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let entries = audit.read_new()?;
        Ok(entries.into_iter().filter(|entry| entry.verb != "watch").collect())
    }
}

/// Serves the metrics on a free port of this machine, until the process ends.
async fn serve_metrics(metrics: Metrics) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let router = serve::metrics_router(metrics, None);
    tokio::spawn(serve::serve_on(listener, router, None, std::future::pending()));
    Ok(address)
}

/// Grants the operator the permissions of the installed role only.
async fn grant(admin: &Client) -> Result<()> {
    let role: ClusterRole = serde_saphyr::from_str(ROLE)?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "sei-operator" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "sei-operator",
        },
        "subjects": [{
            "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
            "name": User::Operator.name(),
        }],
    }))?;
    let namespace: Namespace =
        serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } }))?;
    let params = PostParams::default();
    Api::all(admin.clone()).create(&params, &role).await?;
    Api::all(admin.clone()).create(&params, &binding).await?;
    Api::all(admin.clone()).create(&params, &namespace).await?;
    Ok(())
}
