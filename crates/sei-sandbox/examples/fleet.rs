//! What an image update of a whole fleet costs the operator on a real control plane, for
//! `cargo xtask bench fleet`.
//!
//! The operator is the program that people run, as a child process without leader election. Its CPU
//! time and memory come from `/proc`, its requests from the audit log of the API server.

#![allow(clippy::print_stdout, reason = "its output is for the person who typed the command")]

use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use sei_api::SeiNode;
use sei_api::status::SeiNodePhase;
use sei_rig::{AuditEntry, AuditLog, ControlPlane, Lane, User};
use serde_json::json;

const CRDS: [&str; 2] = [
    include_str!("../../../config/crd/bases/seinodes.sei.io.yaml"),
    include_str!("../../../config/crd/bases/seinodedeployments.sei.io.yaml"),
];
const ROLE: &str = include_str!("../../../config/rbac/cluster-role.yaml");
const PLATFORM: &str = include_str!("../src/platform.yaml");
const NAMESPACE: &str = "default";
const OLD: &str = "registry.example.org/seid:v1";
const NEW: &str = "registry.example.org/seid:v2";

/// The unit of `/proc/<pid>/stat` on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;
/// Bound for creation and for the update.
const WITHIN: Duration = Duration::from_secs(600);
/// Without a request for this long, the operator is at rest.
const REST: Duration = Duration::from_secs(3);
/// How long the fleet at rest is observed.
const IDLE: Duration = Duration::from_secs(20);
/// One node in this many is a validator.
const VALIDATOR_EVERY: usize = 10;

#[derive(Parser, Debug)]
struct Flags {
    /// How many nodes.
    #[arg(long, default_value_t = 100)]
    nodes: usize,
    /// Folder with etcd, kube-apiserver and kube-controller-manager.
    #[arg(long)]
    bin_dir: PathBuf,
    /// The operator's program.
    #[arg(long)]
    operator: PathBuf,
}

/// The operator, killed when it is dropped.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    lane: Lane,
    admin: Client,
    operator: Operator,
    audit: AuditLog,
    nodes: usize,
}

/// What one part of the benchmark cost.
struct Figures {
    name: &'static str,
    wall: Duration,
    cpu: Cpu,
    requests: Vec<AuditEntry>,
}

/// CPU time in milliseconds.
#[derive(Clone, Copy)]
struct Cpu {
    user: u64,
    system: u64,
}

impl Cpu {
    fn since(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    let mut bench = Bench::boot(&flags).await?;
    let created = bench.part("create", async |bench| bench.create().await).await?;
    let updated = bench.part("image update", async |bench| bench.update().await).await?;
    let idle = bench.idle().await?;
    let memory = bench.memory()?;
    print_table(&bench, &[created, updated, idle], &memory);
    Ok(())
}

impl Bench {
    async fn boot(flags: &Flags) -> Result<Self> {
        let definitions: Result<Vec<CustomResourceDefinition>, _> =
            CRDS.into_iter().map(serde_saphyr::from_str).collect();
        let definitions = definitions?;
        let options = sei_rig::Options { definitions, ..sei_rig::Options::default() };
        let plane = ControlPlane::boot(&flags.bin_dir, options).await?;
        println!("Kubernetes {}, {} nodes", plane.version().await?, flags.nodes);
        let admin = plane.client(User::Admin)?;
        grant(&admin).await?;
        let audit = plane.audit();
        let operator = start(&flags.operator, &plane)?;
        let lane = Lane::start(plane)?;
        Ok(Self { lane, admin, operator, audit, nodes: flags.nodes })
    }

    /// Runs a part and waits until the operator rests after it. The wall time is that of the part.
    async fn part(
        &mut self,
        name: &'static str,
        run: impl AsyncFn(&Self) -> Result<()>,
    ) -> Result<Figures> {
        // A profiler begins here.
        println!("begins: {name}");
        let (begun, cpu) = (Instant::now(), self.cpu()?);
        run(self).await?;
        let wall = begun.elapsed();
        let mut requests = self.requests()?;
        let mut last = Instant::now();
        while last.elapsed() < REST {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let more = self.requests()?;
            if !more.is_empty() {
                last = Instant::now();
            }
            requests.extend(more);
        }
        Ok(Figures { name, wall, cpu: self.cpu()?.since(cpu), requests })
    }

    async fn idle(&mut self) -> Result<Figures> {
        println!("begins: idle");
        let (begun, cpu) = (Instant::now(), self.cpu()?);
        tokio::time::sleep(IDLE).await;
        let requests = self.requests()?;
        let cpu = self.cpu()?.since(cpu);
        Ok(Figures { name: "idle", wall: begun.elapsed(), cpu, requests })
    }

    async fn create(&self) -> Result<()> {
        let params = PostParams::default();
        for index in 0..self.nodes {
            let name = name(index);
            let mut spec = json!({ "chainId": "bench-1", "image": OLD });
            if index.is_multiple_of(VALIDATOR_EVERY) {
                let secret = self.create_key(&name, "signing", "priv_validator_key.json").await?;
                spec["validator"]["signingKey"]["secret"]["secretName"] = json!(secret);
                let secret = self.create_key(&name, "p2p", "node_key.json").await?;
                spec["validator"]["nodeKey"]["secret"]["secretName"] = json!(secret);
            } else {
                spec["fullNode"] = json!({});
            }
            let node: SeiNode = serde_json::from_value(json!({
                "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
                "metadata": { "name": name }, "spec": spec,
            }))?;
            self.seinodes().create(&params, &node).await?;
        }
        self.wait_for_image(OLD).await
    }

    async fn create_key(&self, node: &str, suffix: &str, file: &str) -> Result<String> {
        let key = json!({ "type": "tendermint/PrivKeyEd25519", "value": "YmVuY2g=" });
        let content = json!({ "address": node, "pub_key": key, "priv_key": key });
        let name = format!("{node}-{suffix}");
        let secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { file: content.to_string() },
        }))?;
        let secrets: Api<Secret> = Api::namespaced(self.admin.clone(), NAMESPACE);
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(name)
    }

    async fn update(&self) -> Result<()> {
        let patch = json!({ "spec": { "image": NEW } });
        let nodes = self.seinodes();
        let params = PatchParams::default();
        for index in 0..self.nodes {
            nodes.patch(&name(index), &params, &Patch::Merge(&patch)).await?;
        }
        self.wait_for_image(NEW).await
    }

    /// Waits until every node runs an image and its pod is Ready.
    async fn wait_for_image(&self, image: &str) -> Result<()> {
        let deadline = Instant::now() + WITHIN;
        let pods: Api<Pod> = Api::namespaced(self.admin.clone(), NAMESPACE);
        loop {
            let nodes = self.seinodes().list(&ListParams::default()).await?;
            let late = nodes.iter().filter(|node| !runs(node, image)).map(ResourceExt::name_any);
            let mut late: Vec<String> = late.collect();
            if late.is_empty() {
                let pods = pods.list(&ListParams::default()).await?;
                late.extend(pods.iter().filter(|pod| !is_ready(pod)).map(ResourceExt::name_any));
            }
            if late.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{} does not run {image} after {} s", late[0], WITHIN.as_secs());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn seinodes(&self) -> Api<SeiNode> {
        Api::namespaced(self.admin.clone(), NAMESPACE)
    }

    /// What the operator has requested since the last call, watches aside.
    fn requests(&mut self) -> Result<Vec<AuditEntry>> {
        let mut entries = self.audit.read_new()?;
        entries.retain(|entry| entry.user == User::Operator.name() && entry.verb != "watch");
        Ok(entries)
    }

    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.operator.0.id());
        std::fs::read_to_string(&path).with_context(|| format!("the operator has ended: {path}"))
    }

    /// CPU time of the operator so far.
    fn cpu(&self) -> Result<Cpu> {
        let stat = self.proc("stat")?;
        // The name of the program may hold blanks; what follows it does not.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/<pid>/stat has a name")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        ensure!(fields.len() > 12, "/proc/<pid>/stat has {} fields", fields.len());
        let ms = |ticks: &str| anyhow::Ok(ticks.parse::<u64>()? * 1000 / TICKS_PER_SECOND);
        Ok(Cpu { user: ms(fields[11])?, system: ms(fields[12])? })
    }

    fn memory(&self) -> Result<String> {
        let status = self.proc("status")?;
        let line = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.map(str::trim).unwrap_or_default().to_owned()
        };
        Ok(format!("VmHWM {}, VmRSS {}", line("VmHWM:"), line("VmRSS:")))
    }
}

fn name(index: usize) -> String {
    format!("node-{index:03}")
}

fn runs(node: &SeiNode, image: &str) -> bool {
    node.status.as_ref().is_some_and(|status| {
        status.phase == Some(SeiNodePhase::Running)
            && status.current_image.as_deref() == Some(image)
    })
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Gives the operator what people install, and nothing else.
async fn grant(admin: &Client) -> Result<()> {
    let role: ClusterRole = serde_saphyr::from_str(ROLE)?;
    let group = "rbac.authorization.k8s.io";
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "sei-operator" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "sei-operator" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": User::Operator.name() }],
    }))?;
    let params = PostParams::default();
    Api::all(admin.clone()).create(&params, &role).await?;
    Api::all(admin.clone()).create(&params, &binding).await?;
    Ok(())
}

fn start(program: &std::path::Path, plane: &ControlPlane) -> Result<Operator> {
    let config = plane.folder().join("platform.yaml");
    std::fs::write(&config, sei_sandbox::cost::at_once(PLATFORM))?;
    let port = || Ok::<u16, std::io::Error>(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
    let (metrics, health) = (port()?, port()?);
    let child = Command::new(program)
        .args(["run", "--leader-elect=false"])
        .arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"))
        .arg(format!("--health-probe-bind-address=127.0.0.1:{health}"))
        .env("KUBECONFIG", plane.kubeconfig(User::Operator))
        .env("SEI_CONTROLLER_CONFIG", config)
        .stderr(File::create(plane.folder().join("operator.log"))?)
        .spawn()
        .with_context(|| format!("failed to start {}", program.display()))?;
    Ok(Operator(child))
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn print_table(bench: &Bench, parts: &[Figures], memory: &str) {
    let nodes = bench.nodes.max(1) as f64;
    println!("CPU in ms per node");
    println!(
        "{:<14} {:>8} {:>9} {:>8} {:>8} {:>10} {:>14} {:>14}",
        "part",
        "wall s",
        "CPU/node",
        "user",
        "system",
        "requests",
        "requests/node",
        "status writes"
    );
    for part in parts {
        let is_status = |entry: &&AuditEntry| {
            entry.resource == "seinodes" && entry.subresource.as_deref() == Some("status")
        };
        println!(
            "{:<14} {:>8.1} {:>9.1} {:>8.1} {:>8.1} {:>10} {:>14.1} {:>14}",
            part.name,
            part.wall.as_secs_f64(),
            (part.cpu.user + part.cpu.system) as f64 / nodes,
            part.cpu.user as f64 / nodes,
            part.cpu.system as f64 / nodes,
            part.requests.len(),
            part.requests.len() as f64 / nodes,
            part.requests.iter().filter(is_status).count(),
        );
    }
    println!("memory of the operator at the end: {memory}");
    for part in parts {
        let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
        for entry in &part.requests {
            let subresource = entry.subresource.as_ref().map(|name| format!("/{name}"));
            let kind =
                format!("{} {}{}", entry.verb, entry.resource, subresource.unwrap_or_default());
            *kinds.entry(kind).or_default() += 1;
        }
        let kinds: Vec<String> =
            kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        println!("{}: {}", part.name, kinds.join(", "));
    }
    // Kept alive until the figures are read.
    let _ = bench.lane.plane();
}
