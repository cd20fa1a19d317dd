//! A real Kubernetes node for a control plane: containerd, kubelet and kube-scheduler, which run real
//! containers.
//!
//! It needs root, cgroups and some Debian packages; `cargo xtask real-node` checks and installs them
//! and builds the rest. There is no kube-proxy: the rig itself serves the API server at the address of
//! the Service `kubernetes`, and the names of pods.

mod files;
mod network;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::Api;
use kube::Client;
use kube::api::PostParams;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, sleep};

pub use self::network::Network;
use crate::component::{Component, Folder};
use crate::plane::{self, ControlPlane, User};

/// Ends all processes and removes all traces.
const REMOVER: &str = include_str!("real_node/remove.sh");

/// How long the programs may take to become ready.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Interval of readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The folder of Debian's containerd.
const DEBIAN: &str = "/usr/bin";

/// Where cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// The weight of all pods together, in both versions of cgroups: that of four processes outside of
/// cgroups. By default it is that of one, and a build beside the tests would take the CPU from all pods.
const CPU_WEIGHTS: [(&str, &str); 2] = [("cpu.shares", "4096"), ("cpu.weight", "400")];

#[derive(Debug, thiserror::Error)]
pub enum RealNodeError {
    #[error("failed to create the files of a real node")]
    Files { source: io::Error },
    #[error("failed to create the cgroup {group}")]
    Cgroup { group: String, source: io::Error },
    #[error("failed to create the network of a real node")]
    Network { source: io::Error },
    #[error("failed to start {program}")]
    Start { program: &'static str, source: io::Error },
    #[error("{program} was not ready within {} s; its log ends with:\n{log}", READY_WITHIN.as_secs())]
    NotReady { program: &'static str, log: String },
    #[error("failed to import the image {}: {error}", path.display())]
    Image { path: PathBuf, error: String },
    #[error("failed to create a client")]
    Client { source: plane::Error },
    #[error("failed to create the volume {name}")]
    Volume { name: String, source: kube::Error },
}

/// A running Kubernetes node. Dropping it ends its containers and programs and removes its traces, as
/// does the end of the process that started it.
pub struct RealNode {
    name: String,
    /// Folder of kubelet and kube-scheduler.
    programs: PathBuf,
    kubeconfig: PathBuf,
    network: Network,
    client: Client,
    /// Serves the API server and names to pods.
    runtime: Option<Runtime>,
    // Dropped in this order: the kubelet before its container runtime, and the folder last.
    scheduler: Mutex<Option<Component>>,
    kubelet: Mutex<Option<Component>>,
    containerd: Mutex<Option<Component>>,
    folder: Folder,
}

impl RealNode {
    /// Starts a Kubernetes node and waits until it is ready. The plane has the Service range of this
    /// network. All images (`*.tar`) of the folder of programs are imported.
    pub async fn start(
        plane: &ControlPlane,
        network: Network,
        programs: &Path,
    ) -> Result<Self, RealNodeError> {
        let name = network.bridge();
        // No other process has this network, and one process can have several Kubernetes nodes.
        let group = name.clone();
        let folder = Folder::create_with(REMOVER, &[&name, &group])
            .map_err(|source| RealNodeError::Files { source })?;
        // Containers run as other users, and their volumes are below.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .map_err(|source| RealNodeError::Files { source })?;
        create_cgroup(&group)
            .map_err(|source| RealNodeError::Cgroup { group: group.clone(), source })?;
        network.create_bridge().map_err(|source| RealNodeError::Network { source })?;
        let port = free_port().map_err(|source| RealNodeError::Network { source })?;
        files::write(folder.path(), &network, &group, port)
            .map_err(|source| RealNodeError::Files { source })?;
        // Its own runtime, because that of a test ends with the test.
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("real-node")
            .enable_all()
            .build()
            .map_err(|source| RealNodeError::Network { source })?;
        let client = {
            let _entered = runtime.enter();
            plane.client(User::Kubelet).map_err(|source| RealNodeError::Client { source })?
        };
        serve(&runtime, plane.apiserver_port(), &network, client.clone())
            .map_err(|source| RealNodeError::Network { source })?;
        let node = Self {
            name,
            programs: programs.to_owned(),
            kubeconfig: plane.kubeconfig(User::Kubelet),
            network,
            client,
            runtime: Some(runtime),
            scheduler: Mutex::default(),
            kubelet: Mutex::default(),
            containerd: Mutex::default(),
            folder,
        };
        node.start_containerd().await?;
        node.import_images()?;
        node.start_scheduler()?;
        node.start_kubelet().await?;
        Ok(node)
    }

    /// Name of the Kubernetes node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The pool that node pods must select.
    pub fn pool() -> &'static str {
        files::POOL
    }

    /// Folder of its logs, volumes and containers.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn start_containerd(&self) -> Result<(), RealNodeError> {
        const PROGRAM: &str = "containerd";
        let folder = self.folder.path();
        let arguments = [format!("--config={}", folder.join("containerd.toml").display())];
        let started = Component::start(Path::new(DEBIAN), PROGRAM, &arguments, folder);
        let started =
            started.map_err(|source| RealNodeError::Start { program: PROGRAM, source })?;
        *lock(&self.containerd) = Some(started);
        let socket = files::socket(folder);
        let is_ready = || async { self.ctr(&["version"]).is_ok() && socket.exists() };
        wait_for(PROGRAM, &self.containerd, is_ready).await
    }

    /// Imports the images of all pods; nothing is pulled.
    fn import_images(&self) -> Result<(), RealNodeError> {
        let listed = fs::read_dir(&self.programs);
        let entries = listed.map_err(|source| RealNodeError::Files { source })?;
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.extension().is_some_and(|extension| extension == "tar") {
                let text = path.display().to_string();
                let imported = self.ctr(&["images", "import", "--snapshotter=overlayfs", &text]);
                imported.map_err(|error| RealNodeError::Image { path, error })?;
            }
        }
        Ok(())
    }

    fn ctr(&self, arguments: &[&str]) -> Result<(), String> {
        let mut ctr = Command::new(Path::new(DEBIAN).join("ctr"));
        ctr.arg("--address").arg(files::socket(self.folder.path())).args(["-n", "k8s.io"]);
        let output = ctr.args(arguments).output().map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn start_scheduler(&self) -> Result<(), RealNodeError> {
        const PROGRAM: &str = "kube-scheduler";
        let arguments = files::scheduler_arguments(&self.kubeconfig);
        let started = Component::start(&self.programs, PROGRAM, &arguments, self.folder.path());
        let started =
            started.map_err(|source| RealNodeError::Start { program: PROGRAM, source })?;
        *lock(&self.scheduler) = Some(started);
        Ok(())
    }

    /// Starts the kubelet and waits until the Kubernetes node is ready.
    pub async fn start_kubelet(&self) -> Result<(), RealNodeError> {
        const PROGRAM: &str = "kubelet";
        let folder = self.folder.path();
        let arguments =
            files::kubelet_arguments(folder, &self.name, &self.network, &self.kubeconfig);
        let started = Component::start(&self.programs, PROGRAM, &arguments, folder);
        let started =
            started.map_err(|source| RealNodeError::Start { program: PROGRAM, source })?;
        *lock(&self.kubelet) = Some(started);
        wait_for(PROGRAM, &self.kubelet, || self.is_schedulable()).await
    }

    /// Stops the kubelet and leaves its containers running, as a machine that lost its network.
    pub fn stop_kubelet(&self) {
        lock(&self.kubelet).take();
    }

    /// Whether the kubelet reports the node as ready, and pods may be scheduled.
    async fn is_schedulable(&self) -> bool {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Ok(Some(node)) = nodes.get_opt(&self.name).await else { return false };
        let taints = node.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
        let is_ready = |kind: &str, status: &str| kind == "Ready" && status == "True";
        taints.is_empty()
            && conditions.iter().any(|condition| is_ready(&condition.type_, &condition.status))
    }

    /// Creates the volume that this claim is bound to; returns its folder.
    pub async fn create_volume(
        &self,
        namespace: &str,
        claim: &str,
        class: &str,
        size: &str,
    ) -> Result<PathBuf, RealNodeError> {
        let name = format!("{namespace}-{claim}");
        let folder = self.folder.path().join("volumes").join(&name);
        fs::create_dir_all(&folder).map_err(|source| RealNodeError::Files { source })?;
        let terms = json!([{ "matchExpressions": [{
            "key": "kubernetes.io/hostname", "operator": "In", "values": [self.name],
        }]}]);
        // Unlike `hostPath`, the kubelet sets the group of such a volume.
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": size },
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class,
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": { "namespace": namespace, "name": claim },
                "local": { "path": folder },
                "nodeAffinity": { "required": { "nodeSelectorTerms": terms } },
            },
        });
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let created = async {
            let volume = serde_json::from_value(volume).map_err(kube::Error::SerdeError)?;
            volumes.create(&PostParams::default(), &volume).await
        };
        match created.await {
            Ok(_) => Ok(folder),
            Err(source) => Err(RealNodeError::Volume { name, source }),
        }
    }

    /// What a container of a pod has printed, in all its runs.
    pub fn log(&self, namespace: &str, pod: &str, container: &str) -> String {
        let prefix = format!("{namespace}_{pod}_");
        let mut texts = BTreeMap::new();
        let pods = fs::read_dir(files::logs(self.folder.path())).into_iter().flatten().flatten();
        for entry in pods.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)) {
            let runs = fs::read_dir(entry.path().join(container)).into_iter().flatten().flatten();
            for run in runs {
                let written = run.metadata().and_then(|metadata| metadata.modified()).ok();
                texts.insert((written, run.path()), fs::read_to_string(run.path()));
            }
        }
        texts.into_values().flatten().collect()
    }

    /// Ids of the processes of a pod whose program has this name.
    pub fn processes(&self, pod_uid: &str, program: &str) -> Vec<u32> {
        let has_name = |id: &u32| {
            let name = fs::read_to_string(format!("/proc/{id}/comm"));
            name.is_ok_and(|name| name.trim_end() == program)
        };
        let mut ids: Vec<u32> = processes_below(Path::new(CGROUPS), pod_uid);
        ids.sort_unstable();
        ids.dedup();
        ids.retain(has_name);
        ids
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for a runtime inside of another one panics.
            runtime.shutdown_background();
        }
    }
}

/// Starts what pods reach on this machine.
fn serve(runtime: &Runtime, port: u16, network: &Network, client: Client) -> io::Result<()> {
    let _entered = runtime.enter();
    let listener = TcpListener::bind((network.apiserver(), 443))?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    runtime.spawn(network::serve_apiserver(listener, port));
    let socket = UdpSocket::bind((network.gateway(), 53))?;
    socket.set_nonblocking(true)?;
    let socket = tokio::net::UdpSocket::from_std(socket)?;
    runtime.spawn(network::serve_names(socket, client));
    Ok(())
}

/// Creates a cgroup in every hierarchy: there is one for each controller in version 1, and one in
/// version 2.
fn create_cgroup(name: &str) -> io::Result<()> {
    let top = Path::new(CGROUPS);
    let mut groups = vec![top.join(name)];
    if !top.join("cgroup.procs").exists() {
        let hierarchies = fs::read_dir(top)?.flatten().map(|entry| entry.path());
        groups = hierarchies
            .filter(|path| path.join("cgroup.procs").exists())
            .map(|path| path.join(name))
            .collect();
    }
    for group in groups {
        fs::create_dir(&group)?;
        for (file, weight) in CPU_WEIGHTS {
            if group.join(file).exists() {
                fs::write(group.join(file), weight)?;
            }
        }
    }
    Ok(())
}

/// Allocates so many bytes in the cgroup that limits the memory of this process, and waits for the end:
/// if the limit is too small, the kernel kills a process of the cgroup. It is one of the container: those
/// have a higher score than this one.
pub fn use_memory_beside(process: u32, bytes: u64) -> io::Result<()> {
    let text = fs::read_to_string(format!("/proc/{process}/cgroup"))?;
    let group = memory_cgroup(&text).ok_or_else(|| io::Error::other("it has no cgroup"))?;
    let script =
        r#"echo $$ >"$1/cgroup.procs" && exec dd if=/dev/zero of=/dev/null count=1 bs="$2""#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(group).arg(bytes.to_string());
    command.output().map(drop)
}

/// The folder of the cgroup that limits memory, from `/proc/<id>/cgroup`.
fn memory_cgroup(text: &str) -> Option<PathBuf> {
    let find = |controllers: &str, top: PathBuf| {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let is_found = fields.next()?.split(',').any(|name| name == controllers);
            let path = fields.next()?.trim_start_matches('/');
            is_found.then(|| top.join(path))
        })
    };
    let top = Path::new(CGROUPS);
    // The second is version 2, which has one line without controllers.
    find("memory", top.join("memory")).or_else(|| find("", top.to_owned()))
}

/// The processes of cgroups below a folder whose path contains the uid of a pod.
fn processes_below(folder: &Path, pod_uid: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        if path.to_string_lossy().contains(pod_uid) {
            let ids = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
            found.extend(ids.lines().filter_map(|id| id.parse::<u32>().ok()));
        }
        found.extend(processes_below(&path, pod_uid));
    }
    found
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

async fn wait_for<Ready>(
    program: &'static str,
    component: &Mutex<Option<Component>>,
    is_ready: impl Fn() -> Ready,
) -> Result<(), RealNodeError>
where
    Ready: Future<Output = bool>,
{
    let deadline = Instant::now() + READY_WITHIN;
    while !is_ready().await {
        let has_ended = {
            let mut component = lock(component);
            component.as_mut().is_none_or(|running| !matches!(running.ended(), Ok(None)))
        };
        if has_ended || Instant::now() > deadline {
            let log = lock(component).as_ref().map(Component::log_tail).unwrap_or_default();
            return Err(RealNodeError::NotReady { program, log });
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Ignores poisoning: a panic of one test must not fail the others.
fn lock(component: &Mutex<Option<Component>>) -> MutexGuard<'_, Option<Component>> {
    component.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_of_memory_is_found_in_both_versions() {
        let first = "5:cpu,cpuacct:/a/b\n4:memory:/pods/c\n0::/elsewhere\n";
        assert_eq!(memory_cgroup(first), Some("/sys/fs/cgroup/memory/pods/c".into()));
        assert_eq!(memory_cgroup("0::/pods/c\n"), Some("/sys/fs/cgroup/pods/c".into()));
        assert_eq!(memory_cgroup("5:cpu:/a\n"), None);
    }
}
