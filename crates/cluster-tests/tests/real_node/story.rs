//! What every story needs: a namespace with an operator, nodes with volumes, and what their pods did.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cluster_tests::boot_with;
use cluster_tests::conformance::{self, Tokens};
use cluster_tests::operator::{Setup, start_on};
use cluster_tests::scenario::condition_text;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, LimitRange, Namespace, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client, ResourceExt as _};
use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_api::names::{SIDECAR_CALLER, sidecar_audience};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_operator::Operator;
use sei_rig::{ControlPlane, Network, Options, RealNode, User};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::narration;

/// The chain's image before its upgrade, and after it.
pub(crate) const BEFORE: &str = "registry.example.org/seid:v6.4.0";
pub(crate) const AFTER: &str = "registry.example.org/seid:v9.9.9";
/// An image that exists nowhere.
pub(crate) const MISSING: &str = "registry.example.org/seid:missing";

/// The CPU limit of each container. A chain process that waits for its first peer uses a whole core, so
/// that the nodes of a few stories would starve all others and the control plane.
const CPU_LIMIT: &str = "400m";

/// The service account of node pods.
const ACCOUNT: &str = "chain-node";

/// The platform of these stories: everything is small, and all pools are the same machine.
const PLATFORM: &str = "
scheduling:
  nodepoolName: real
  nodepoolArchive: real
  nodepoolValidator: real
  nodepoolSeed: real
  tolerationKey: example.org/chain
  serviceAccount: chain-node
storage: { classPerf: local, classDefault: local, classArchive: local, sizeDefault: 1Gi, sizeArchive: 1Gi, sizeSeed: 1Gi }
resources:
  validator: { cpuRequest: 50m, memory: 768Mi }
  node: { cpuRequest: 50m, memory: 768Mi }
  replayer: { cpuRequest: 50m, memory: 768Mi }
  archive: { cpuRequest: 50m, memory: 768Mi }
  seed: { cpuRequest: 50m, memory: 768Mi }
stateSync: { syncers: { real-modes: [witness-a.example.org:26657, witness-b.example.org:26657] } }
snapshot: { bucket: snapshots, region: eu-west-1 }
genesis: { bucket: genesis, region: eu-west-1 }
images:
  sidecar: registry.example.org/seictl:1
  kubeRBACProxy: registry.example.org/kube-rbac-proxy:1
  cosmosExporter: registry.example.org/exporter:1
rollout: { settleSeconds: 0 }
";

/// How long a node may take to reach a state. Images are there, so minutes mean a fault, or a machine
/// that is busy.
pub(crate) const WITHIN: Duration = Duration::from_secs(300);

/// Polls until `check` returns a value.
pub(crate) async fn until<T>(
    claim: &str,
    within: Duration,
    mut check: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(value) = check().await? {
            return Ok(value);
        }
        if Instant::now() > deadline {
            bail!("timed out after {} s waiting until {claim}", within.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The control plane and the Kubernetes node that all stories share. They end with the process.
pub(crate) struct Stage {
    pub(crate) plane: ControlPlane,
    pub(crate) node: RealNode,
}

async fn start_stage() -> Result<Stage> {
    let started = Instant::now();
    let network = Network::lock()?;
    let service_range = Some(network.service_range());
    let plane = boot_with(Options { service_range, ..Options::default() }).await?;
    let node = RealNode::start(&plane, network, &sei_rig::real_node_programs()?).await?;
    let admin = plane.client(User::Admin)?;
    let caller = include_str!("../../../../config/samples/roles/sidecar-caller.yaml");
    let role: ClusterRole = serde_saphyr::from_str(caller)?;
    Api::all(admin).create(&PostParams::default(), &role).await?;
    eprintln!("  the Kubernetes node is ready after {:.1} s", started.elapsed().as_secs_f64());
    Ok(Stage { plane, node })
}

async fn stage() -> Result<&'static Stage> {
    static STAGE: OnceCell<Result<Stage, String>> = OnceCell::const_new();
    let start = || async { start_stage().await.map_err(|error| format!("{error:#}")) };
    let stage = STAGE.get_or_init(start);
    stage.await.as_ref().map_err(|message| anyhow!("failed to start a real node: {message}"))
}

/// How the chain process of a pod ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodEnd {
    pub(crate) node: String,
    /// Its phase and its condition `Ready` when it was last seen.
    pub(crate) last: String,
    /// When its container `seid` was first seen to run.
    pub(crate) seid_started: Option<Time>,
    /// From the request to delete the pod until it was deleted.
    pub(crate) took: Option<Duration>,
    pub(crate) seid: Option<ContainerStateTerminated>,
    /// As it was last seen.
    pub(crate) pod: Pod,
    deleting_since: Option<Instant>,
}

/// A namespace with an operator.
pub(crate) struct Story {
    pub(crate) stage: &'static Stage,
    pub(crate) admin: Client,
    pub(crate) namespace: String,
    operator: Option<Operator>,
    started: Instant,
    ends: Arc<Mutex<BTreeMap<String, PodEnd>>>,
    recorder: JoinHandle<()>,
    narrator: Option<JoinHandle<()>>,
}

impl Drop for Story {
    /// Ends its pods too: those of all stories together would starve each other.
    fn drop(&mut self) {
        self.recorder.abort();
        if let Some(narrator) = &self.narrator {
            narrator.abort();
        }
        self.kill_operator();
        let (plane, namespace) = (&self.stage.plane, &self.namespace);
        // A thread, because this runtime cannot wait here.
        let ended = std::thread::scope(|scope| {
            scope.spawn(|| end_pods(plane, namespace)).join().unwrap_or_else(|_| bail!("panicked"))
        });
        if let Err(error) = ended {
            eprintln!("  {namespace}: failed to end its pods: {error:#}");
        }
    }
}

/// Deletes whatever creates pods in a namespace, and the pods at once.
fn end_pods(plane: &ControlPlane, namespace: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let admin = plane.client(User::Admin)?;
        let (now, all) = (DeleteParams::background().grace_period(0), ListParams::default());
        let sets: Api<StatefulSet> = Api::namespaced(admin.clone(), namespace);
        sets.delete_collection(&now, &all).await?;
        let jobs: Api<Job> = Api::namespaced(admin.clone(), namespace);
        jobs.delete_collection(&now, &all).await?;
        let pods: Api<Pod> = Api::namespaced(admin, namespace);
        pods.delete_collection(&now, &all).await?;
        Ok(())
    })
}

impl Story {
    /// Opens a story and starts its operator, with the waits of production.
    pub(crate) async fn open(name: &str) -> Result<Self> {
        Self::open_on(stage().await?, name).await
    }

    /// The same on a control plane and a Kubernetes node of its own, which it may stop.
    pub(crate) async fn open_alone(name: &str) -> Result<Self> {
        Self::open_on(Box::leak(Box::new(start_stage().await?)), name).await
    }

    async fn open_on(stage: &'static Stage, name: &str) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let admin = stage.plane.client(User::Admin)?;
        let namespace = format!("{name}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let created: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": namespace } }))?;
        Api::all(admin.clone()).create(&PostParams::default(), &created).await?;
        let limits: LimitRange = serde_json::from_value(json!({
            "metadata": { "name": "cpu" },
            "spec": { "limits": [{ "type": "Container",
                "default": { "cpu": CPU_LIMIT }, "defaultRequest": { "cpu": "5m" } }] },
        }))?;
        Api::namespaced(admin.clone(), &namespace).create(&PostParams::default(), &limits).await?;
        for (account, role) in
            [(ACCOUNT, "system:auth-delegator"), (SIDECAR_CALLER, SIDECAR_CALLER)]
        {
            let object: ServiceAccount =
                serde_json::from_value(json!({ "metadata": { "name": account } }))?;
            Api::namespaced(admin.clone(), &namespace)
                .create(&PostParams::default(), &object)
                .await?;
            let binding: ClusterRoleBinding = serde_json::from_value(json!({
                "metadata": { "name": format!("{namespace}-{account}") },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
                "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": namespace }],
            }))?;
            Api::all(admin.clone()).create(&PostParams::default(), &binding).await?;
        }
        let ends = Arc::default();
        let pods = Api::namespaced(admin.clone(), &namespace);
        let recorder = tokio::spawn(record(pods, Arc::clone(&ends)));
        let started = Instant::now();
        let nodes = Api::namespaced(admin.clone(), &namespace);
        let narrator = narration::is_on().then(|| tokio::spawn(narration::narrate(nodes, started)));
        let mut story =
            Self { stage, admin, namespace, operator: None, started, ends, recorder, narrator };
        story.start_operator().await?;
        Ok(story)
    }

    /// Prints what was seen, and when.
    pub(crate) fn report(&self, text: impl std::fmt::Display) {
        let elapsed = self.started.elapsed().as_secs_f64();
        eprintln!("  {:10} {elapsed:6.1} s  {text}", self.namespace);
    }

    pub(crate) async fn start_operator(&mut self) -> Result<()> {
        let setup = Setup { platform: PLATFORM.to_owned(), speed: 1, ..Setup::default() };
        self.operator = Some(start_on(&self.stage.plane, &self.namespace, setup).await?);
        Ok(())
    }

    /// Kills the operator without a graceful shutdown.
    pub(crate) fn kill_operator(&mut self) {
        if let Some(operator) = self.operator.take() {
            operator.kill();
        }
    }

    pub(crate) fn nodes(&self) -> Api<SeiNode> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), &self.namespace)
    }

    /// Creates the volume of a node; returns its folder.
    pub(crate) async fn volume(&self, node: &str) -> Result<PathBuf> {
        let claim = format!("data-{node}");
        Ok(self.stage.node.create_volume(&self.namespace, &claim, "local", "1Gi").await?)
    }

    /// Creates a node that has its volume.
    pub(crate) async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let node: SeiNode = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name, "labels": { "sei.io/chain": spec["chainId"] } }, "spec": spec,
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        Ok(())
    }

    pub(crate) async fn create_secret(&self, name: &str, file: &str, content: &str) -> Result<()> {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": { "name": name }, "stringData": { file: content },
        }))?;
        let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), &self.namespace);
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    pub(crate) async fn edit(&self, name: &str, patch: Value) -> Result<()> {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    pub(crate) async fn set_image(&self, name: &str, image: &str) -> Result<()> {
        self.edit(name, json!({ "spec": { "image": image } })).await
    }

    pub(crate) async fn status(&self, name: &str) -> Result<SeiNodeStatus> {
        Ok(self.nodes().get(name).await?.status.unwrap_or_default())
    }

    pub(crate) async fn pod(&self, name: &str) -> Result<Pod> {
        Ok(self.pods().get(&format!("{name}-0")).await?)
    }

    pub(crate) async fn uid(&self, name: &str) -> Result<String> {
        self.pod(name).await?.uid().context("a pod has a uid")
    }

    pub(crate) async fn address(&self, name: &str) -> Result<String> {
        let status = self.pod(name).await?.status.unwrap_or_default();
        status.pod_ip.with_context(|| format!("the pod of {name} has no address"))
    }

    /// What a container of a node's pods has printed.
    pub(crate) fn log(&self, name: &str, container: &str) -> String {
        self.stage.node.log(&self.namespace, &format!("{name}-0"), container)
    }

    /// Whether the chain process runs in the present pod of a node: not its script, which waits.
    pub(crate) async fn seid_processes(&self, name: &str) -> Result<Vec<u32>> {
        Ok(self.stage.node.processes(&self.uid(name).await?, "seid"))
    }

    /// Waits until the node's status satisfies the predicate; a timeout shows the node and its pod.
    pub(crate) async fn until_status(
        &self,
        name: &str,
        claim: &str,
        holds: impl Fn(&SeiNodeStatus) -> bool,
    ) -> Result<SeiNodeStatus> {
        let claim = format!("{name}: {claim}");
        let found = until(&claim, WITHIN, async || {
            Ok(Some(self.status(name).await?).filter(|status| holds(status)))
        })
        .await;
        match found {
            Ok(status) => Ok(status),
            Err(error) => Err(error.context(self.describe(name).await)),
        }
    }

    /// Waits until a node runs the image of its spec, has no plan and is Ready, and its pod too: while
    /// no operator runs, a status reports what the last one saw.
    pub(crate) async fn until_ready(&self, name: &str) -> Result<SeiNodeStatus> {
        let claim = format!("the pod of {name} is Ready");
        until(&claim, WITHIN, async || Ok(self.is_pod_ready(name).await?.then_some(()))).await?;
        let node = self.nodes().get(name).await?;
        let (image, generation) = (node.spec.image, node.metadata.generation);
        self.until_status(name, &format!("is Ready with {image}"), |status| {
            status.phase == Some(SeiNodePhase::Running)
                && status.observed_generation >= generation
                && status.plan.is_none()
                && status.current_image.as_deref() == Some(image.as_str())
                && condition_text(status, ConditionType::Ready).starts_with("True")
        })
        .await
    }

    async fn describe(&self, name: &str) -> String {
        let status = self.status(name).await.map(|status| json!(status).to_string());
        let pod = self.pod(name).await.map(|pod| json!(pod.status).to_string());
        let containers = ["seid-init", "sei-sidecar", "kube-rbac-proxy", "seid", "cosmos-exporter"];
        let logs = containers.map(|container| {
            let log = self.log(name, container);
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(15)..].join("\n");
            format!("{container}:\n{last}\n")
        });
        format!("status {status:?}\npod {pod:?}\n{}", logs.concat())
    }

    /// How the pods of this namespace ended so far.
    pub(crate) fn ends(&self) -> BTreeMap<String, PodEnd> {
        self.ends.lock().expect("no test panics while it holds the lock").clone()
    }

    /// The chain process of a node never ran in two pods at once.
    pub(crate) fn check_single_processes(&self) -> Result<()> {
        let ends = self.ends();
        for end in ends.values() {
            let Some(started) = &end.seid_started else { continue };
            let of_node = |second: &&PodEnd| second.node == end.node;
            for earlier in ends.values().filter(of_node) {
                let begun = earlier.seid_started.as_ref();
                if begun.is_none_or(|begun| begun.0 >= started.0) {
                    continue;
                }
                let ended = earlier.seid.as_ref().and_then(|seid| seid.finished_at.as_ref());
                let is_before = ended.is_some_and(|ended| ended.0 <= started.0);
                ensure!(is_before, "two pods of {} ran at once: {earlier:?}, {end:?}", end.node);
            }
        }
        Ok(())
    }

    /// Kills the processes of a node's pod that have this name.
    pub(crate) async fn kill(&self, name: &str, program: &str) -> Result<()> {
        let processes = self.stage.node.processes(&self.uid(name).await?, program);
        ensure!(processes.len() == 1, "{name} has one process {program}: {processes:?}");
        let status = Command::new("kill").args(["-9", &processes[0].to_string()]).status()?;
        ensure!(status.success(), "the process was killed");
        Ok(())
    }

    pub(crate) async fn evict(&self, name: &str) -> Result<()> {
        self.pods().evict(&format!("{name}-0"), &EvictParams::default()).await?;
        Ok(())
    }

    /// Whether the pod of a node exists and is Ready.
    pub(crate) async fn is_pod_ready(&self, name: &str) -> Result<bool> {
        let pod = self.pods().get_opt(&format!("{name}-0")).await?;
        let status = pod.and_then(|pod| pod.status).unwrap_or_default();
        let mut conditions = status.conditions.iter().flatten();
        Ok(conditions.any(|held| held.type_ == "Ready" && held.status == "True"))
    }

    /// How often a container of a node's pod was started again.
    pub(crate) async fn restarts(&self, name: &str, container: &str) -> Result<i32> {
        let status = self.pod(name).await?.status.unwrap_or_default();
        let init = status.init_container_statuses.into_iter().flatten();
        let mut all = init.chain(status.container_statuses.into_iter().flatten());
        let found = all.find(|status| status.name == container);
        found.map(|status| status.restart_count).context("the kubelet reports the container")
    }

    /// A token as the operator requests it for a sidecar of this node.
    pub(crate) async fn token(&self, audience: Option<String>) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.admin.clone(), &self.namespace);
        let audiences: Vec<String> = audience.into_iter().collect();
        let request: TokenRequest =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "audiences": audiences } }))?;
        let created =
            accounts.create_token_request(SIDECAR_CALLER, &PostParams::default(), &request).await?;
        let token = created.status.and_then(|status| status.token);
        token.context("the server returns a token")
    }

    /// The tokens with which the proxy of a node can be called.
    pub(crate) async fn tokens(&self, node: &str, neighbour: &str) -> Result<Tokens> {
        Ok(Tokens {
            own: self.token(Some(self.audience(node))).await?,
            of_neighbour: self.token(Some(self.audience(neighbour))).await?,
            of_server: self.token(None).await?,
        })
    }

    pub(crate) fn audience(&self, node: &str) -> String {
        sidecar_audience(&self.namespace, node)
    }

    /// The response of a node's sidecar to a GET through its proxy: status and body.
    pub(crate) async fn ask_sidecar(
        &self,
        name: &str,
        path: &str,
        token: Option<&str>,
    ) -> Result<(u16, String)> {
        self.call_sidecar(name, "GET", path, String::new(), token).await
    }

    pub(crate) async fn call_sidecar(
        &self,
        name: &str,
        method: &str,
        path: &str,
        body: String,
        token: Option<&str>,
    ) -> Result<(u16, String)> {
        conformance::call_sidecar(&self.address(name).await?, method, path, body, token).await
    }
}

/// Records how pods end, until it is aborted.
async fn record(pods: Api<Pod>, ends: Arc<Mutex<BTreeMap<String, PodEnd>>>) {
    let mut events =
        std::pin::pin!(watch_objects(pods, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let (pod, is_deleted) = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => (pod, false),
            Ok(Event::Delete(pod)) => (pod, true),
            _ => continue,
        };
        // Pods that pull images run no chain process.
        let Some(node) = pod.labels().get("sei.io/node").cloned() else { continue };
        let mut ends = ends.lock().expect("no test panics while it holds the lock");
        let end = ends.entry(pod.uid().unwrap_or_default()).or_default();
        end.node = node;
        if pod.metadata.deletion_timestamp.is_some() {
            end.deleting_since.get_or_insert_with(Instant::now);
        }
        end.pod = pod.clone();
        let status = pod.status.unwrap_or_default();
        let ready = status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready");
        let ready = ready.map(|ready| (ready.status.clone(), ready.reason.clone()));
        end.last = format!("{:?} {ready:?}", status.phase);
        let statuses = status.container_statuses.unwrap_or_default();
        let seid = statuses.into_iter().find(|status| status.name == "seid");
        let state = seid.and_then(|status| status.state).unwrap_or_default();
        let started = state.running.and_then(|running| running.started_at);
        end.seid_started = end.seid_started.take().or(started);
        end.seid = state.terminated.or(end.seid.take());
        if is_deleted {
            end.took = end.deleting_since.map(|since| since.elapsed());
        }
    }
}
