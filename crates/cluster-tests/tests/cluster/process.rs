//! The operator as a process: flags, lease, probes and metrics.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use crate::alerts::check;
use crate::recording::{Fires, Scrape, scrape};
use anyhow::{Context as _, Result, ensure};
use cluster_tests::docs::commands;
use cluster_tests::install::free_port;
use cluster_tests::operator::PLATFORM;
use cluster_tests::{boot, minor, wait_for};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use sei_api::names::LEASE_NAME;
use sei_api::status::SeiNodePhase;
use sei_rig::{ControlPlane, Lane, Options, User};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LEADER_ROLE: &str = include_str!("../../../../config/rbac/leader-election-role.yaml");

/// A running operator process; killed on drop.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) metrics: u16,
    pub(crate) health: u16,
    /// The path of its log.
    pub(crate) log: PathBuf,
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // Shown for a failed test only. Without it, a crashed operator shows as a timeout.
        eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
    }
}

/// The operator's program, built by cargo into the folder of this test.
pub(crate) fn program() -> Result<PathBuf> {
    // Once: a second build replaces the file under the tests that run it.
    static BUILT: OnceLock<bool> = OnceLock::new();
    let build =
        || sei_rig::cargo().args(["build", "--quiet", "--package", "sei-operator"]).status();
    ensure!(
        *BUILT.get_or_init(|| build().is_ok_and(|status| status.success())),
        "failed to build sei-operator"
    );
    let test = std::env::current_exe()?;
    let folder = test
        .parent()
        .and_then(|deps| deps.parent())
        .context("the test program has no parent folder")?;
    Ok(folder.join("sei-operator"))
}

fn start(program: &Path, plane: &ControlPlane, identity: &str) -> Result<Process> {
    start_as(User::Operator, program, plane, identity)
}

pub(crate) fn start_as(
    user: User,
    program: &Path,
    plane: &ControlPlane,
    identity: &str,
) -> Result<Process> {
    start_with(user, program, plane, identity, &[])
}

/// The same with more flags.
pub(crate) fn start_with(
    user: User,
    program: &Path,
    plane: &ControlPlane,
    identity: &str,
    flags: &[&str],
) -> Result<Process> {
    let config = plane.folder().join("platform.yaml");
    std::fs::write(&config, PLATFORM)?;
    let log = plane.folder().join(format!("{identity}.log"));
    let (metrics, health) = (free_port()?, free_port()?);
    let child = Command::new(program)
        .arg("run")
        .arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"))
        .arg(format!("--health-probe-bind-address=127.0.0.1:{health}"))
        .args(["--leader-election-namespace", "default", "--identity", identity])
        .args(flags)
        .env("KUBECONFIG", plane.kubeconfig(user))
        .env("SEI_CONTROLLER_CONFIG", config)
        .stderr(File::create(&log)?)
        .spawn()?;
    Ok(Process { child, metrics, health, log })
}

/// The response of an HTTP server on loopback, head and body.
pub(crate) async fn get(port: u16, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

pub(crate) async fn allow_leader_election(plane: &ControlPlane) -> Result<()> {
    let admin = plane.client(User::Admin)?;
    let role: Role = serde_saphyr::from_str(LEADER_ROLE)?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "sei-operator" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
            "name": "sei-operator-leader-election" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User",
            "name": User::Operator.name() }],
    }))?;
    Api::namespaced(admin.clone(), "default").create(&PostParams::default(), &role).await?;
    Api::namespaced(admin, "default").create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// The process that holds the lease.
pub(crate) async fn holder(plane: &ControlPlane) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(plane.client(User::Admin)?, "default");
    let lease = leases.get_opt(LEASE_NAME).await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity).filter(|name| !name.is_empty()))
}

#[tokio::test]
async fn of_two_processes_one_leads_and_the_other_takes_over() -> Result<()> {
    let plane = boot().await?;
    allow_leader_election(&plane).await?;
    // Built first: a free port may be taken during the build.
    let program = program()?;
    // Both start at once: the election decides which of them leads.
    let (alpha, beta) = (start(&program, &plane, "alpha")?, start(&program, &plane, "beta")?);
    let leader = wait_for("one of them leads", async || holder(&plane).await).await?;
    let (mut first, second, follower) =
        if leader == "alpha" { (alpha, beta, "beta") } else { (beta, alpha, "alpha") };
    wait_for("the second waits, healthy and ready to take over", async || {
        let ready = get(second.health, "/readyz").await.unwrap_or_default();
        Ok(ready.starts_with("HTTP/1.1 200").then_some(()))
    })
    .await?;
    assert_eq!(holder(&plane).await?, Some(leader));

    let nodes: Api<SeiNode> = Api::namespaced(plane.client(User::Admin)?, "default");
    let node: SeiNode = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "rpc" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    wait_for("the leader publishes the phase of the node", async || {
        let metrics = get(first.metrics, "/metrics").await.unwrap_or_default();
        let is_published = metrics.lines().any(|line| {
            line.starts_with("sei_controller_seinode_phase{")
                && line.contains("phase=\"Initializing\"")
                && line.ends_with(" 1")
        });
        Ok(is_published.then_some(()))
    })
    .await?;

    let both = [scraped(&first).await?, scraped(&second).await?].concat();
    let waiting = scraped(&second).await?;
    assert_eq!(both.iter().filter(|(_, line)| line.ends_with(" 1")).count(), 1, "{both:?}");
    let scraped_metrics = get(second.metrics, "/metrics").await?;
    assert!(
        !scraped_metrics.contains("sei_controller_seinode_phase{"),
        "the second process publishes no node"
    );

    // A graceful stop releases the lease at once.
    let id = first.child.id().to_string();
    ensure!(
        Command::new("kill").args(["-TERM", &id]).status()?.success(),
        "failed to send SIGTERM"
    );
    let ended = wait_for("the first process ends", async || Ok(first.child.try_wait()?)).await?;
    assert!(ended.success(), "{ended}");
    wait_for("the second leads", async || {
        Ok(holder(&plane).await?.filter(|name| name == follower).map(drop))
    })
    .await?;
    let leading = wait_for("the second publishes that it leads", async || {
        let lines = scraped(&second).await?;
        Ok(lines.iter().any(|(_, line)| line == "sei_controller_leader 1").then_some(lines))
    })
    .await?;

    let fires = |alert| Fires { alert, labels: vec![], value: "1".to_owned() };
    let (absent, leaderless) = (fires("SeiOperatorAbsent"), fires("SeiOperatorWithoutLeader"));
    check(joined(&both)?, Scrape::new(), joined(&leading)?, vec![absent])?;
    check(joined(&both)?, joined(&waiting)?, joined(&leading)?, vec![leaderless])
}

#[tokio::test]
async fn the_log_has_who_deleted_a_pod_and_why() -> Result<()> {
    let lane = Lane::start(boot().await?)?;
    allow_leader_election(lane.plane()).await?;
    let operator = start(&program()?, lane.plane(), "alpha")?;
    let nodes: Api<SeiNode> = Api::namespaced(lane.plane().client(User::Admin)?, "default");
    let node: SeiNode = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "val-0" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    nodes.create(&PostParams::default(), &node).await?;
    let runs = async |image: &str| {
        wait_for(&format!("it runs {image}"), async || {
            let status = nodes.get("val-0").await?.status.unwrap_or_default();
            let done = status.plan.is_none() && status.current_image.as_deref() == Some(image);
            Ok(done.then_some(()))
        })
        .await
    };
    runs("seid:v1").await?;
    let pods: Api<Pod> = Api::namespaced(lane.plane().client(User::Admin)?, "default");
    let uid = pods.get("val-0-0").await?.metadata.uid.context("a pod has a uid")?;
    let patch = Patch::Merge(json!({ "spec": { "image": "seid:v2" } }));
    nodes.patch("val-0", &PatchParams::default(), &patch).await?;
    runs("seid:v2").await?;

    let log = std::fs::read_to_string(&operator.log)?;
    // The pod that pulled the image is deleted too.
    let delete = "verb=\"delete\" kind=\"Pod\" name=\"val-0-0\"";
    let deletes: Vec<&str> = log.lines().filter(|line| line.contains(delete)).collect();
    let [delete] = deletes[..] else { anyhow::bail!("{deletes:?}") };
    for part in [
        "node=default/val-0 plan=\"",
        "task=\"replace-pod\"",
        "name=\"val-0-0\"",
        &format!("uid=\"{uid}\""),
        "outcome=\"accepted\"",
        "milliseconds=",
        "why=\"image drift detected: spec=seid:v2 current=seid:v1\"",
    ] {
        assert!(delete.contains(part), "{part} is not in {delete}");
    }
    Ok(())
}

/// The leader metrics of a process, each line with the process's port.
async fn scraped(process: &Process) -> Result<Vec<(u16, String)>> {
    let response = get(process.metrics, "/metrics").await?;
    let (_, body) = response.split_once("\r\n\r\n").context("the response has no body")?;
    // Metrics of nodes are not compared here.
    let leader = body.lines().filter(|line| line.starts_with("sei_controller_leader"));
    Ok(leader.map(|line| (process.metrics, line.to_owned())).collect())
}

fn joined(lines: &[(u16, String)]) -> Result<Scrape> {
    let mut all = Scrape::new();
    for (port, line) in lines {
        all.extend(scrape(line, "sei-operator", &format!("127.0.0.1:{port}"))?);
    }
    Ok(all)
}

const README: &str = include_str!("../../../../README.md");

/// A folder like a clone of the repository, with the platform configuration of the README.
fn clone() -> Result<tempfile::TempDir> {
    let (folder, repository) =
        (tempfile::tempdir()?, concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let repository = PathBuf::from(repository).canonicalize()?;
    std::os::unix::fs::symlink(repository.join("config"), folder.path().join("config"))?;
    let example = "config/samples/install/platform.yaml";
    ensure!(README.contains(example), "the README does not name {example}");
    std::fs::copy(repository.join(example), folder.path().join("platform.yaml"))?;
    Ok(folder)
}

#[tokio::test]
async fn the_readme_commands_start_a_node() -> Result<()> {
    let plane = ControlPlane::boot(&sei_rig::bin_dir(&minor())?, Options::default()).await?;
    let (kubeconfig, programs) = (plane.kubeconfig(User::Admin), plane.bin_dir().to_owned());
    let lane = Lane::start(plane)?;
    let folder = clone()?;
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        let path = std::env::var("PATH").unwrap_or_default();
        command.args(["-c", line]).current_dir(folder.path());
        command.env("PATH", format!("{}:{path}", programs.display()));
        command.env("KUBECONFIG", &kubeconfig);
        command
    };
    let lines = commands("README.md", "On your own cluster")?;
    let at =
        lines.find("SEI_CONTROLLER_CONFIG=").context("the README does not run the operator")?;
    let (install, run) = lines.split_at(at);
    let installed = shell(&format!("set -e\n{install}")).output()?;
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    // Sidecars accept no other token.
    let token = std::fs::read_to_string(folder.path().join("sidecar-token"))?;
    lane.kubelet().sidecars().demand_token("default", Some(token.trim()));

    // The program is built already, in another profile; the default ports may be in use.
    let program = format!("exec '{}'", program()?.display());
    let run = run.replace("cargo run --release -p sei-operator --", &program);
    let (metrics, health) = (free_port()?, free_port()?);
    ensure!(run.contains("exec "), "the README does not run it by cargo: {run}");
    let run = format!(
        "{} --metrics-bind-address=127.0.0.1:{metrics} \
         --health-probe-bind-address=127.0.0.1:{health}",
        run.trim_end()
    );
    let log = folder.path().join("operator.log");
    let child = shell(&run).stderr(File::create(&log)?).spawn()?;
    let _operator = Process { child, metrics, health, log };

    let nodes: Api<SeiNode> = Api::namespaced(lane.plane().client(User::Admin)?, "default");
    let node: SeiNode = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "metadata": { "name": "rpc" },
        "spec": { "chainId": "demo-1", "image": "seid:v1", "fullNode": {} },
    }))?;
    wait_for("the server accepts the node", async || {
        // The kind may not be served yet.
        Ok(nodes.create(&PostParams::default(), &node).await.ok())
    })
    .await?;
    wait_for("it runs", async || {
        let status = nodes.get("rpc").await?.status.unwrap_or_default();
        Ok((status.phase == Some(SeiNodePhase::Running)).then_some(()))
    })
    .await
}

#[test]
fn a_bad_configuration_ends_the_process_with_one_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("platform.yaml");
    std::fs::write(&config, PLATFORM.replace("tolerationKey", "tolerationKeys"))?;
    let output = Command::new(program()?)
        .args(["run", "--leader-elect=false"])
        .env("SEI_CONTROLLER_CONFIG", &config)
        .output()?;
    assert!(!output.status.success());
    let stderr = String::from_utf8(output.stderr)?;
    let line = stderr.trim_end();
    assert!(!line.contains('\n'), "{stderr}");
    assert!(line.contains("platform.yaml") && line.contains("tolerationKey"), "{stderr}");
    Ok(())
}
