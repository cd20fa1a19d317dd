//! The Kubernetes node of these tests: it runs pods, and leaves nothing behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::boot_with;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use sei_rig::{ControlPlane, Network, Options, RealNode, User};
use serde_json::json;
use tempfile::TempDir;

use crate::story::until;

/// A folder with the programs of a Kubernetes node and the smallest image only: the import of all takes
/// longer than the rest.
fn programs() -> Result<TempDir> {
    let all = sei_rig::real_node_programs()?;
    let some = tempfile::tempdir()?;
    for name in ["kubelet", "kube-scheduler", "pause.tar"] {
        std::os::unix::fs::symlink(all.join(name), some.path().join(name))?;
    }
    Ok(some)
}

/// A control plane with a Kubernetes node of its own, on which a pod runs.
async fn start() -> Result<(ControlPlane, RealNode)> {
    let network = Network::lock()?;
    let service_range = Some(network.service_range());
    let plane = boot_with(Options { service_range, ..Options::default() }).await?;
    let node = RealNode::start(&plane, network, programs()?.path()).await?;
    let admin = plane.client(User::Admin)?;
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "default");
    let account = json!({ "metadata": { "name": "default" } });
    accounts.create(&PostParams::default(), &serde_json::from_value(account)?).await?;
    let pods: Api<Pod> = Api::namespaced(admin, "default");
    let pod = json!({ "metadata": { "name": "sleeper" }, "spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{ "name": "sleeper", "image": "registry.example.org/pause:1" }],
    }});
    pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
    until("the pod runs", Duration::from_secs(60), async || {
        let status = pods.get("sleeper").await?.status.unwrap_or_default();
        Ok((status.phase.as_deref() == Some("Running")).then_some(()))
    })
    .await?;
    Ok((plane, node))
}

/// What of a Kubernetes node is left on this machine.
fn traces(folder: &Path, name: &str) -> Result<Vec<String>> {
    let folder_text = folder.display().to_string();
    let mut traces = Vec::new();
    if folder.exists() {
        traces.push(folder_text.clone());
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    traces.extend(mounts.lines().filter(|line| line.contains(&folder_text)).map(str::to_owned));
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&folder_text) {
            traces.push(line);
        }
    }
    let elsewhere = [
        PathBuf::from("/sys/class/net").join(name),
        PathBuf::from("/sys/fs/cgroup/memory").join(name),
        PathBuf::from("/sys/fs/cgroup").join(name),
    ];
    traces.extend(
        elsewhere.iter().filter(|path| path.exists()).map(|path| path.display().to_string()),
    );
    for entry in fs::read_dir("/var/lib/cni/results").into_iter().flatten().flatten() {
        // Files that are removed while this reads them are no traces.
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        if text.contains(&folder_text) {
            traces.push(entry.path().display().to_string());
        }
    }
    for entry in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder)) {
            traces.push(entry.path().display().to_string());
        }
    }
    Ok(traces)
}

#[tokio::test]
async fn a_dropped_node_leaves_nothing() -> Result<()> {
    let (plane, node) = start().await?;
    let (folder, name) = (node.folder().to_owned(), node.name().to_owned());
    let found = traces(&folder, &name)?;
    ensure!(found.len() > 8, "the traces of a running node are found: {found:?}");
    drop(node);
    drop(plane);
    assert_eq!(traces(&folder, &name)?, Vec::<String>::new());
    Ok(())
}

/// Set for the process that the test below starts and kills: the file to which it writes its folder
/// and the name of its node.
const OWNER: &str = "SEI_REAL_NODE_TEST_OWNER";

async fn own_until_killed(report: &Path) -> Result<()> {
    let (plane, node) = start().await?;
    fs::write(
        report.with_extension("new"),
        format!("{} {}", node.name(), node.folder().display()),
    )?;
    fs::rename(report.with_extension("new"), report)?;
    tokio::time::sleep(Duration::from_secs(120)).await;
    drop((node, plane));
    Ok(())
}

#[tokio::test]
async fn a_killed_owner_leaves_nothing() -> Result<()> {
    if let Some(report) = std::env::var_os(OWNER) {
        return own_until_killed(Path::new(&report)).await;
    }
    let here = tempfile::tempdir()?;
    let report = here.path().join("report");
    let mut owner = Command::new(std::env::current_exe()?)
        .args(["--exact", "rig::a_killed_owner_leaves_nothing"])
        .env(OWNER, &report)
        .stdout(Stdio::null())
        .spawn()?;
    until("the owner reports", Duration::from_secs(120), async || {
        ensure!(owner.try_wait()?.is_none(), "the owner has ended");
        Ok(report.exists().then_some(()))
    })
    .await?;
    let text = fs::read_to_string(&report)?;
    let (name, folder) = text.split_once(' ').context("the report has two parts")?;
    owner.kill()?;
    owner.wait()?;
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let left = traces(Path::new(folder), name)?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "left: {left:#?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
