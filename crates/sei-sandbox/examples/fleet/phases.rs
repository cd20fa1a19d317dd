//! What is done to a fleet while an operator is measured.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use sei_api::names::SIDECAR_CALLER;
use sei_api::status::SeiNodePhase;
use sei_rig::{AuditEntry, AuditLog, ControlPlane, Lane, Timing, User, World};
use serde_json::{Value, json};

use crate::observer::{Observer, Seen};
use crate::operator::{Candidate, Cpu, Operator};

const CLUSTER_ROLE: &str = include_str!("../../../../config/rbac/cluster-role.yaml");
const ROLES: [&str; 2] = [
    include_str!("../../../../config/rbac/leader-election-role.yaml"),
    include_str!("../../../../config/rbac/sidecar-token-role.yaml"),
];
const PLATFORM: &str = include_str!("../../src/platform.yaml");
pub(crate) const NAMESPACE: &str = "default";

/// Bound for each phase.
pub(crate) const WITHIN: Duration = Duration::from_secs(300);
/// Without a request for this long, the operator is at rest.
const REST: Duration = Duration::from_secs(3);
/// One node in this many is a validator.
const VALIDATOR_EVERY: usize = 10;
/// One sidecar in this many hangs in the phase about that.
const HUNG_EVERY: usize = 5;
/// How many pods are evicted at once.
const EVICTED: usize = 50;
/// How many nodes get another configuration: they roll one after the other.
const CONFIGURED: usize = 5;
/// Requests of the bench at once.
const AT_ONCE: usize = 16;

/// What one phase cost.
pub(crate) struct Figures {
    pub(crate) phase: &'static str,
    /// How many nodes the phase changed.
    pub(crate) nodes: usize,
    pub(crate) wall: Duration,
    /// How long each node took, sorted.
    pub(crate) times: Vec<Duration>,
    pub(crate) cpu: Cpu,
    /// Peak memory of the operator in kilobytes.
    pub(crate) memory: u64,
    pub(crate) requests: Vec<AuditEntry>,
    pub(crate) deleted_pods: usize,
}

/// A fleet on a control plane of its own.
pub(crate) struct Bench {
    world: World,
    admin: Client,
    audit: AuditLog,
    observer: Observer,
    nodes: usize,
    config: PathBuf,
}

impl Bench {
    pub(crate) async fn boot(
        bin_dir: &Path,
        definitions: Vec<CustomResourceDefinition>,
        nodes: usize,
        is_ours: bool,
    ) -> Result<Self> {
        let options = sei_rig::Options { definitions, ..sei_rig::Options::default() };
        let plane = ControlPlane::boot(bin_dir, options).await?;
        let admin = plane.client(User::Admin)?;
        grant(&admin, is_ours).await?;
        let config = plane.folder().join("platform.yaml");
        std::fs::write(&config, sei_sandbox::cost::at_once(PLATFORM))?;
        let audit = plane.audit();
        let timing = Timing {
            start: Duration::from_millis(300),
            stop: Duration::from_millis(200),
            ..Timing::default()
        };
        let lane = Arc::new(Lane::start_with(plane, timing)?);
        let world = World::of(lane, admin.clone(), NAMESPACE.to_owned());
        let observer = Observer::start(&admin, NAMESPACE);
        Ok(Self { world, admin, audit, observer, nodes, config })
    }

    pub(crate) fn admin(&self) -> &Client {
        &self.admin
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.observer
    }

    pub(crate) fn nodes(&self) -> usize {
        self.nodes
    }

    pub(crate) fn plane(&self) -> &ControlPlane {
        self.world.lane().plane()
    }

    pub(crate) fn start(&self, candidate: &Candidate, holder: Option<&str>) -> Result<Operator> {
        candidate.start(self.plane(), &self.config, holder)
    }

    /// Runs a phase and waits until the operator rests after it. The wall time is that of the phase.
    pub(crate) async fn phase(
        &mut self,
        name: &'static str,
        operator: &Operator,
        run: impl AsyncFn(&Self) -> Result<Vec<Duration>>,
    ) -> Result<Figures> {
        // A profiler begins here.
        println!("  {name} ...");
        self.requests()?;
        operator.reset_peak_memory()?;
        let (begun, cpu, deleted) = (Instant::now(), operator.cpu()?, self.observer.deleted_pods());
        let mut times = run(self).await.with_context(|| format!("phase `{name}`"))?;
        let wall = begun.elapsed();
        let mut requests = self.requests()?;
        requests.extend(self.rest().await?);
        times.sort_unstable();
        Ok(Figures {
            phase: name,
            nodes: times.len(),
            wall,
            times,
            cpu: operator.cpu()?.since(cpu),
            memory: operator.peak_memory()?,
            requests,
            deleted_pods: self.observer.deleted_pods() - deleted,
        })
    }

    /// What the operator requests until it rests.
    async fn rest(&mut self) -> Result<Vec<AuditEntry>> {
        let (mut requests, mut last) = (Vec::new(), Instant::now());
        let deadline = Instant::now() + WITHIN;
        // An operator that polls never rests.
        while last.elapsed() < REST && Instant::now() < deadline.min(last + REST) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let more = self.requests()?;
            if more.iter().any(|entry| entry.verb != "get" && entry.verb != "list") {
                last = Instant::now();
            }
            requests.extend(more);
        }
        Ok(requests)
    }

    /// What the operator has requested since the last call, watches and the lease aside.
    fn requests(&mut self) -> Result<Vec<AuditEntry>> {
        let mut entries = self.audit.read_new()?;
        entries.retain(|entry| {
            entry.user == User::Operator.name()
                && entry.verb != "watch"
                && entry.resource != "leases"
        });
        Ok(entries)
    }

    pub(crate) async fn create(&self, image: &str) -> Result<Vec<Duration>> {
        let indices = (0..self.nodes).map(|index| self.create_node(index, image));
        let begun = stream::iter(indices).buffer_unordered(AT_ONCE).try_collect().await?;
        self.wait_for_image(&begun, image).await
    }

    async fn create_node(&self, index: usize, image: &str) -> Result<(String, Instant)> {
        let name = node_name(index);
        let mut spec = json!({ "chainId": "bench-1", "image": image });
        if index.is_multiple_of(VALIDATOR_EVERY) {
            let (signing, p2p) = (format!("{name}-signing"), format!("{name}-p2p"));
            let key = sei_plan::signing_key::made_up(&name);
            let node_key = json!({ "priv_key": key["priv_key"] }).to_string();
            let key = key.to_string();
            self.world.secret(&signing, &[("priv_validator_key.json", &key)]).await?;
            self.world.secret(&p2p, &[("node_key.json", &node_key)]).await?;
            spec["validator"] = json!({
                "signingKey": { "secret": { "secretName": signing } },
                "nodeKey": { "secret": { "secretName": p2p } },
            });
        } else {
            spec["fullNode"] = json!({});
        }
        let node: SeiNode = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name }, "spec": spec,
        }))?;
        let begun = Instant::now();
        self.seinodes().create(&PostParams::default(), &node).await?;
        Ok((name, begun))
    }

    /// Patches nodes, and returns when each was patched.
    async fn patch(&self, indices: Vec<usize>, patch: &Value) -> Result<BTreeMap<String, Instant>> {
        let (nodes, params) = (self.seinodes(), PatchParams::default());
        let (nodes, params) = (&nodes, &params);
        let patches = indices.into_iter().map(|index| async move {
            let (name, begun) = (node_name(index), Instant::now());
            nodes.patch(&name, params, &Patch::Merge(patch)).await?;
            anyhow::Ok((name, begun))
        });
        stream::iter(patches).buffer_unordered(AT_ONCE).try_collect().await
    }

    pub(crate) async fn set_image(&self, image: &str) -> Result<Vec<Duration>> {
        let patch = json!({ "spec": { "image": image } });
        let begun = self.patch((0..self.nodes).collect(), &patch).await?;
        self.wait_for_image(&begun, image).await
    }

    async fn wait_for_image(
        &self,
        begun: &BTreeMap<String, Instant>,
        image: &str,
    ) -> Result<Vec<Duration>> {
        let is_done = |_: &str, seen: &Seen| {
            seen.phase == Some(SeiNodePhase::Running)
                && seen.current_image.as_deref() == Some(image)
                && seen.pod.as_ref().is_some_and(|pod| {
                    pod.is_ready && pod.images.iter().any(|present| present == image)
                })
        };
        self.observer.wait(begun, WITHIN, is_done).await
    }

    /// Changes a label of every pod, which nodes that are Ready do in turn.
    pub(crate) async fn set_label(&self, count: usize, value: &str) -> Result<Vec<Duration>> {
        let patch = json!({ "spec": { "podLabels": { "bench": value } } });
        let begun = self.patch((0..self.nodes.min(count)).collect(), &patch).await?;
        let is_done = |_: &str, seen: &Seen| {
            seen.pod.as_ref().is_some_and(|pod| {
                pod.is_ready && pod.labels.get("bench").map(String::as_str) == Some(value)
            })
        };
        self.observer.wait(&begun, WITHIN, is_done).await
    }

    /// Changes the configuration of some nodes, one after the other.
    pub(crate) async fn configure(&self, value: &str) -> Result<Vec<Duration>> {
        let patch = json!({ "spec": { "overrides": { "logging.level": value } } });
        // The first node is a validator.
        let begun = self.patch((1..=self.nodes.min(CONFIGURED)).collect(), &patch).await?;
        let is_done = |_: &str, seen: &Seen| {
            seen.is_settled && seen.pod.as_ref().is_some_and(|pod| pod.is_ready)
        };
        self.observer.wait(&begun, WITHIN, is_done).await
    }

    /// Evicts pods at once.
    pub(crate) async fn evict(&self) -> Result<Vec<Duration>> {
        let pods: Api<Pod> = namespaced(&self.admin);
        let mut begun = BTreeMap::new();
        let mut uids = BTreeMap::new();
        for index in 0..self.nodes.min(EVICTED) {
            let name = node_name(index);
            let uid = self.observer.seen(&name).pod.map(|pod| pod.uid);
            begun.insert(name.clone(), Instant::now());
            pods.evict(&format!("{name}-0"), &EvictParams::default()).await?;
            uids.insert(name, uid);
        }
        let is_done = |name: &str, seen: &Seen| {
            seen.pod
                .as_ref()
                .is_some_and(|pod| pod.is_ready && Some(&pod.uid) != uids[name].as_ref())
        };
        self.observer.wait(&begun, WITHIN, is_done).await
    }

    /// Changes the image while one sidecar in five hangs, and waits for the others.
    pub(crate) async fn set_image_beside_hung(&self, image: &str) -> Result<Vec<Duration>> {
        let is_hung = |index: &usize| index.is_multiple_of(HUNG_EVERY);
        let sidecars = self.world.sidecars();
        for index in (0..self.nodes).filter(is_hung) {
            for task in ["mark-ready", "config-apply", "config-validate"] {
                sidecars.hold(NAMESPACE, &node_name(index), task);
            }
        }
        let patch = json!({ "spec": { "image": image } });
        let mut begun = self.patch((0..self.nodes).collect(), &patch).await?;
        let healthy = (0..self.nodes).filter(|index| !is_hung(index)).map(node_name);
        let healthy: BTreeSet<String> = healthy.collect();
        begun.retain(|name, _| healthy.contains(name));
        let times = self.wait_for_image(&begun, image).await;
        for index in (0..self.nodes).filter(is_hung) {
            for task in ["mark-ready", "config-apply", "config-validate"] {
                sidecars.release(NAMESPACE, &node_name(index), task);
            }
        }
        times
    }

    /// The least that an image update can cost: one write of the StatefulSet and one deletion of the
    /// pod for each node, by a client that decides nothing. It ends when the pods run.
    pub(crate) async fn floor(&self, image: &str) -> Result<Figures> {
        println!("  floor ...");
        let begun = Instant::now();
        let updates = (0..self.nodes).map(|index| self.replace(index, image));
        let started: BTreeMap<String, Instant> =
            stream::iter(updates).buffer_unordered(AT_ONCE).try_collect().await?;
        let is_done = |_: &str, seen: &Seen| {
            seen.pod.as_ref().is_some_and(|pod| {
                pod.is_running && pod.images.iter().any(|present| present == image)
            })
        };
        let mut times = self.observer.wait(&started, WITHIN, is_done).await?;
        times.sort_unstable();
        Ok(Figures {
            phase: "floor",
            nodes: self.nodes,
            wall: begun.elapsed(),
            times,
            cpu: Cpu::default(),
            memory: 0,
            requests: Vec::new(),
            deleted_pods: self.nodes,
        })
    }

    async fn replace(&self, index: usize, image: &str) -> Result<(String, Instant)> {
        let (name, begun) = (node_name(index), Instant::now());
        let sets: Api<StatefulSet> = namespaced(&self.admin);
        let containers = json!([{ "name": "seid", "image": image }]);
        let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
        sets.patch(&name, &PatchParams::default(), &Patch::Strategic(&patch)).await?;
        let pods: Api<Pod> = namespaced(&self.admin);
        pods.delete(&format!("{name}-0"), &DeleteParams::default()).await?;
        Ok((name, begun))
    }

    fn seinodes(&self) -> Api<SeiNode> {
        namespaced(&self.admin)
    }

    /// The lease holder, once it is another than `before`.
    pub(crate) async fn holder_other_than(&self, before: Option<&str>) -> Result<String> {
        let leases: Api<Lease> = namespaced(&self.admin);
        let deadline = Instant::now() + WITHIN;
        while Instant::now() < deadline {
            let all = leases.list(&ListParams::default()).await?;
            let holders = all.items.into_iter().filter_map(|lease| lease.spec?.holder_identity);
            if let Some(holder) = holders
                .into_iter()
                .find(|holder| !holder.is_empty() && Some(holder.as_str()) != before)
            {
                return Ok(holder);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        anyhow::bail!("the lease has no new holder after {} s", WITHIN.as_secs())
    }
}

fn node_name(index: usize) -> String {
    format!("node-{index:04}")
}

/// Gives an operator what people install, or, if it brings its own roles, everything.
async fn grant(admin: &Client, is_ours: bool) -> Result<()> {
    let params = PostParams::default();
    let account: ServiceAccount =
        serde_json::from_value(json!({ "metadata": { "name": SIDECAR_CALLER } }))?;
    namespaced(admin).create(&params, &account).await?;
    let group = "rbac.authorization.k8s.io";
    let subjects = json!([{ "apiGroup": group, "kind": "User", "name": User::Operator.name() }]);
    let cluster_role = if is_ours { "sei-operator" } else { "cluster-admin" };
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "bench" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": cluster_role },
        "subjects": subjects,
    }))?;
    Api::all(admin.clone()).create(&params, &binding).await?;
    if !is_ours {
        return Ok(());
    }
    let role: ClusterRole = serde_saphyr::from_str(CLUSTER_ROLE)?;
    Api::all(admin.clone()).create(&params, &role).await?;
    for text in ROLES {
        let role: Role = serde_saphyr::from_str(text)?;
        let name = role.metadata.name.clone();
        let binding: RoleBinding = serde_json::from_value(json!({
            "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "Role", "name": name },
            "subjects": subjects,
        }))?;
        namespaced(admin).create(&params, &role).await?;
        namespaced(admin).create(&params, &binding).await?;
    }
    Ok(())
}

fn namespaced<K>(admin: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(admin.clone(), NAMESPACE)
}
