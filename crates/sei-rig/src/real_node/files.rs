//! Configuration and flags of the programs of a real node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Network;

/// The image of the container that holds the namespaces of a pod.
pub(super) const PAUSE_IMAGE: &str = "registry.example.org/pause:1";

/// The label by which node pods select a pool of Kubernetes nodes.
const POOL_LABEL: &str = "karpenter.sh/nodepool";

/// The pool of this Kubernetes node.
pub(super) const POOL: &str = "real";

pub(super) fn socket(folder: &Path) -> PathBuf {
    folder.join("containerd.sock")
}

pub(super) fn logs(folder: &Path) -> PathBuf {
    folder.join("logs")
}

/// Writes every file that must exist before the first program starts.
pub(super) fn write(folder: &Path, network: &Network, cgroup: &str, port: u16) -> io::Result<()> {
    for name in ["cni", "volumes", "logs", "plugins"] {
        fs::create_dir(folder.join(name))?;
    }
    fs::write(folder.join("containerd.toml"), containerd(folder))?;
    fs::write(folder.join("cni/10-bridge.conflist"), cni(folder, network).to_string())?;
    fs::write(folder.join("kubelet.json"), kubelet(folder, network, cgroup, port).to_string())?;
    // Pods resolve names with our server only. This file is for pods that use none of the cluster.
    fs::write(folder.join("resolv.conf"), "")
}

fn containerd(folder: &Path) -> String {
    let folder = folder.display();
    format!(
        r#"version = 2
root = "{folder}/content"
state = "{folder}/state"
[grpc]
address = "{folder}/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
stream_server_port = "0"
disable_apparmor = true
# Only a process with CAP_SYS_RESOURCE may lower the score below its own.
restrict_oom_score_adj = true
# Otherwise they would outlive the folder.
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
Root = "{folder}/runc"
"#
    )
}

/// The bridge exists before, so the plugin has no need to make this machine a router.
fn cni(folder: &Path, network: &Network) -> Value {
    let range = json!([{ "subnet": network.pod_range(), "gateway": network.gateway() }]);
    let ipam = json!({ "type": "host-local", "ranges": [range],
        "routes": [{ "dst": "0.0.0.0/0" }], "dataDir": folder.join("addresses") });
    json!({ "cniVersion": "0.4.0", "name": network.bridge(), "plugins": [
        { "type": "bridge", "bridge": network.bridge(), "hairpinMode": true, "ipam": ipam },
        { "type": "loopback" },
    ]})
}

fn kubelet(folder: &Path, network: &Network, cgroup: &str, port: u16) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": port,
        "healthzPort": 0,
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "containerRuntimeEndpoint": format!("unix://{}", socket(folder).display()),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": false,
        // The disk is that of the machine, and images cannot be pulled again.
        "evictionHard": { "memory.available": "100Mi" },
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": logs(folder),
        "volumePluginDir": folder.join("plugins"),
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.gateway()],
        "resolvConf": folder.join("resolv.conf"),
    })
}

pub(super) fn kubelet_arguments(
    folder: &Path,
    name: &str,
    network: &Network,
    kubeconfig: &Path,
) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    vec![
        format!("--config={}", file("kubelet.json")),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", file("kubelet")),
        format!("--cert-dir={}", file("certificates")),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", network.gateway()),
        format!("--node-labels={POOL_LABEL}={POOL}"),
        "--v=2".to_owned(),
    ]
}

/// The scheduler serves nothing, so that it needs no port.
pub(super) fn scheduler_arguments(kubeconfig: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ]
}
