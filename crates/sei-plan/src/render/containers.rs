//! The containers of both kinds of pod, and the parts of containers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction, Probe,
    ResourceClaim, ResourceRequirements, SeccompProfile, SecretKeySelector, SecurityContext,
    TCPSocketAction, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::{Mode, names};

use super::{DATA_DIR, HOME_DIR, container, port, scripts};
use super::{effective_sidecar_image, placement};
use crate::inputs::{KeyringInputs, SidecarResources, TemplateInputs};
use crate::platform::Platform;
use crate::quantity::Quantity;
use crate::view::{AUDIENCE_FLAG, SECURE_FLAG};

/// User and group of every container, and group of the volumes: the images define this user.
pub(super) const NONROOT: i64 = 65532;

/// Names of the volumes.
pub(super) mod volume {
    pub(crate) const DATA: &str = "data";
    pub(crate) const SIDECAR_TMP: &str = "sidecar-tmp";
    pub(crate) const HOME: &str = "home";
    pub(crate) const PROXY_CONFIG: &str = "rbac-proxy-config";
    pub(crate) const SIGNING_KEY: &str = "signing-key";
    pub(crate) const NODE_KEY: &str = "node-key";
    pub(crate) const KEYRING: &str = "operator-keyring";
}

pub(super) const SIGNING_KEY_FILE: &str = "priv_validator_key.json";
pub(super) const NODE_KEY_FILE: &str = "node_key.json";
/// Paths that probes and Prometheus request without a token.
const OPEN_PATHS: &str = "/v0/healthz,/v0/startupz,/v0/livez,/v0/metrics";

/// Ports that the chain process opens. A seed opens two of them; naming the others on it would
/// invite clients to ports that nothing serves.
pub(super) fn seid_ports(mode: Mode) -> &'static [(&'static str, i32)] {
    const ALL: [(&str, i32); 7] = [
        ("evm-rpc", port::EVM_RPC),
        ("evm-ws", port::EVM_WS),
        ("grpc", port::GRPC),
        ("rest", port::REST),
        ("p2p", port::P2P),
        ("rpc", port::RPC),
        ("metrics", port::METRICS),
    ];
    const SEED: [(&str, i32); 2] = [("p2p", port::P2P), ("metrics", port::METRICS)];
    if mode == Mode::Seed { &SEED } else { &ALL }
}

/// `seid-init` with the image of the chain process.
pub(super) fn seid_init(image: &str, script: &str) -> Container {
    Container {
        name: container::SEID_INIT.to_owned(),
        image: Some(image.to_owned()),
        command: Some(texts(&["/bin/sh", "-c", script])),
        env: Some(vec![env("HOME", HOME_DIR)]),
        volume_mounts: Some(vec![mount(volume::DATA, DATA_DIR), mount(volume::HOME, HOME_DIR)]),
        security_context: Some(nonroot()),
        ..Container::default()
    }
}

/// The sidecar without any Secret; the node's pod adds those.
pub(super) fn sidecar(inputs: &TemplateInputs, platform: &Platform) -> Container {
    Container {
        name: container::SIDECAR.to_owned(),
        image: Some(effective_sidecar_image(inputs, platform).to_owned()),
        command: Some(texts(&["seictl", "serve"])),
        restart_policy: Some("Always".to_owned()),
        env: Some(vec![
            env("SEI_CHAIN_ID", &inputs.chain_id),
            env("SEI_SIDECAR_PORT", &inputs.sidecar_port.to_string()),
            env("SEI_HOME", DATA_DIR),
            env("HOME", HOME_DIR),
            env("SEI_GENESIS_BUCKET", &platform.genesis.bucket),
            env("SEI_GENESIS_REGION", &platform.genesis.region),
            env("SEI_SNAPSHOT_BUCKET", &platform.snapshot.bucket),
            env("SEI_SNAPSHOT_REGION", &platform.snapshot.region),
            // The proxy authenticates the caller and passes its name in a header.
            env("SEI_SIDECAR_AUTHN_MODE", "trusted-header"),
        ]),
        resources: sidecar_resources(&inputs.sidecar_resources),
        volume_mounts: Some(vec![
            mount(volume::HOME, HOME_DIR),
            mount(volume::DATA, DATA_DIR),
            mount(volume::SIDECAR_TMP, "/tmp"),
        ]),
        security_context: Some(read_only_root()),
        ..Container::default()
    }
}

/// The auth proxy in front of the sidecar, without probes.
pub(super) fn proxy(inputs: &TemplateInputs, platform: &Platform) -> Container {
    let audience = names::sidecar_audience(&inputs.namespace, &inputs.name);
    let audience = platform.sidecar_audience.then(|| format!("{AUDIENCE_FLAG}{audience}"));
    let args = [
        // Without a file it serves a certificate of its own.
        format!("{SECURE_FLAG}0.0.0.0:{}", port::API),
        format!("--upstream=http://127.0.0.1:{}/", inputs.sidecar_port),
        "--config-file=/etc/kube-rbac-proxy/config.yaml".to_owned(),
        format!("--ignore-paths={OPEN_PATHS}"),
        "--auth-header-fields-enabled=true".to_owned(),
        "--v=0".to_owned(),
    ];
    Container {
        name: container::PROXY.to_owned(),
        image: Some(platform.images.kube_rbac_proxy.clone()),
        args: Some(args.into_iter().chain(audience).collect()),
        restart_policy: Some("Always".to_owned()),
        ports: Some(vec![tcp_port("api", port::API)]),
        volume_mounts: Some(vec![read_only(volume::PROXY_CONFIG, "/etc/kube-rbac-proxy")]),
        security_context: Some(read_only_root()),
        ..Container::default()
    }
}

/// The probes that the node's pod sets on the proxy. Readiness queries the sidecar through the
/// proxy, so mark-ready is part of the pod's readiness.
pub(super) fn with_proxy_probes(proxy: Container) -> Container {
    Container {
        startup_probe: Some(timed(tcp_probe(port::API), Some(5), 5, 60)),
        liveness_probe: Some(timed(proxy_probe("/v0/livez"), Some(5), 10, 3)),
        readiness_probe: Some(timed(proxy_probe("/v0/healthz"), Some(2), 5, 6)),
        ..proxy
    }
}

/// The chain process. No liveness probe, ever: behind its closed gate it answers nothing.
pub(super) fn seid(inputs: &TemplateInputs, platform: &Platform) -> Container {
    let ports = seid_ports(inputs.mode).iter().map(|(name, port)| tcp_port(name, *port));
    let resources = placement::resources(inputs, platform);
    Container {
        name: container::SEID.to_owned(),
        image: Some(inputs.image.clone()),
        command: Some(texts(&["/bin/bash", "-c"])),
        args: Some(vec![scripts::start(inputs.sidecar_port)]),
        env: Some(seid_env(inputs, &resources)),
        ports: Some(ports.collect()),
        resources: Some(resources),
        // Through the proxy, so that it succeeds exactly when the gate is open. The threshold is
        // five days: a restore may take that long, and nothing is gained by a restart.
        startup_probe: Some(timed(proxy_probe("/v0/healthz"), Some(5), 5, 86400)),
        readiness_probe: Some(seid_readiness(inputs.mode)),
        volume_mounts: Some(seid_mounts(inputs)),
        security_context: Some(nonroot()),
        ..Container::default()
    }
}

fn seid_env(inputs: &TemplateInputs, resources: &ResourceRequirements) -> Vec<EnvVar> {
    let mut all = vec![env("HOME", HOME_DIR), env("TMPDIR", &format!("{DATA_DIR}/tmp"))];
    if inputs.keyring.as_ref().is_some_and(|keyring| keyring.seid_mount) {
        all.extend(keyring_env(inputs));
    }
    let limit = resources.limits.as_ref().and_then(|limits| limits.get("memory"));
    let limit = limit.and_then(|limit| Quantity::parse(&limit.0).ok());
    if let Some(limit) = limit.filter(|_| inputs.mode == Mode::Seed) {
        // A seed's memory is small enough for its garbage collector to exceed the limit. 87 of
        // 100 leaves room for what the collector does not count.
        let limit = limit.value() * 87 / 100;
        all.push(env("GOMEMLIMIT", &format!("{limit}B")));
    }
    all
}

fn seid_mounts(inputs: &TemplateInputs) -> Vec<VolumeMount> {
    let mut mounts = vec![mount(volume::DATA, DATA_DIR), mount(volume::HOME, HOME_DIR)];
    if inputs.signing_secret.is_some() {
        mounts.push(key_file(volume::SIGNING_KEY, SIGNING_KEY_FILE));
    }
    if inputs.node_key_secret.is_some() {
        mounts.push(key_file(volume::NODE_KEY, NODE_KEY_FILE));
    }
    if inputs.keyring.as_ref().is_some_and(|keyring| keyring.seid_mount) {
        mounts.push(keyring_mount());
    }
    mounts
}

/// A seed serves no RPC; it can only show that it listens.
fn seid_readiness(mode: Mode) -> Probe {
    let probe = match mode {
        Mode::Seed => tcp_probe(port::P2P),
        _ => http_probe("/lag_status", port::RPC),
    };
    Probe { timeout_seconds: Some(5), ..timed(probe, Some(30), 10, 3) }
}

pub(super) fn exporter(platform: &Platform) -> Container {
    let quantities = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), ApiQuantity((*v).to_owned()))).collect()
    };
    Container {
        name: container::EXPORTER.to_owned(),
        image: Some(platform.images.cosmos_exporter.clone()),
        command: Some(texts(&["/bin/bash", "-c"])),
        args: Some(vec![scripts::exporter()]),
        ports: Some(vec![tcp_port("cosmos-metrics", port::COSMOS_METRICS)]),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(&[("cpu", "50m"), ("memory", "64Mi")])),
            limits: Some(quantities(&[("memory", "384Mi")])),
            ..ResourceRequirements::default()
        }),
        readiness_probe: Some(timed(tcp_probe(port::COSMOS_METRICS), None, 10, 6)),
        liveness_probe: Some(timed(tcp_probe(port::COSMOS_METRICS), Some(600), 10, 3)),
        volume_mounts: Some(vec![mount(volume::SIDECAR_TMP, "/tmp")]),
        security_context: Some(read_only_root()),
        ..Container::default()
    }
}

/// Access to a validator's keyring. Empty for other modes, which have none.
pub(super) fn keyring_env(inputs: &TemplateInputs) -> Vec<EnvVar> {
    let Some(backend) = keyring_backend(inputs) else { return Vec::new() };
    let mut all = vec![env("SEI_KEYRING_BACKEND", backend), env("SEI_KEYRING_DIR", DATA_DIR)];
    all.extend(inputs.keyring.as_ref().map(passphrase_env));
    all
}

/// `file` where a keyring is given; else the backend in which a ceremony stores its own key.
pub(super) fn keyring_backend(inputs: &TemplateInputs) -> Option<&'static str> {
    let backend = if inputs.keyring.is_some() { "file" } else { "test" };
    (inputs.mode == Mode::Validator).then_some(backend)
}

fn passphrase_env(keyring: &KeyringInputs) -> EnvVar {
    let reference = SecretKeySelector {
        name: keyring.passphrase_secret.clone(),
        key: keyring.passphrase_key.clone(),
        optional: None,
    };
    EnvVar {
        name: "SEI_KEYRING_PASSPHRASE".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(reference),
            ..EnvVarSource::default()
        }),
    }
}

pub(super) fn keyring_mount() -> VolumeMount {
    read_only(volume::KEYRING, &format!("{DATA_DIR}/keyring-file"))
}

fn sidecar_resources(resources: &SidecarResources) -> Option<ResourceRequirements> {
    let quantities = |all: &BTreeMap<String, String>| {
        let all: BTreeMap<_, _> =
            all.iter().map(|(k, v)| (k.clone(), ApiQuantity(v.clone()))).collect();
        (!all.is_empty()).then_some(all)
    };
    let claims = resources
        .claims
        .iter()
        .map(|(name, request)| ResourceClaim { name: name.clone(), request: request.clone() });
    let claims: Vec<_> = claims.collect();
    (!resources.is_empty()).then(|| ResourceRequirements {
        claims: (!claims.is_empty()).then_some(claims),
        limits: quantities(&resources.limits),
        requests: quantities(&resources.requests),
    })
}

pub(super) fn nonroot() -> SecurityContext {
    SecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(NONROOT),
        run_as_group: Some(NONROOT),
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(texts(&["ALL"])), add: None }),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            localhost_profile: None,
        }),
        ..SecurityContext::default()
    }
}

fn read_only_root() -> SecurityContext {
    SecurityContext { read_only_root_filesystem: Some(true), ..nonroot() }
}

pub(super) fn env(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.to_owned()), value_from: None }
}

pub(super) fn tcp_port(name: &str, number: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

pub(super) fn mount(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { name: volume.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn read_only(volume: &str, path: &str) -> VolumeMount {
    VolumeMount { read_only: Some(true), ..mount(volume, path) }
}

/// One file of a Secret in the config directory, which otherwise belongs to the chain process.
fn key_file(volume: &str, file: &str) -> VolumeMount {
    let path = format!("{DATA_DIR}/config/{file}");
    VolumeMount { sub_path: Some(file.to_owned()), ..read_only(volume, &path) }
}

fn http_probe(path: &str, port: i32) -> Probe {
    let action = HTTPGetAction {
        path: Some(path.to_owned()),
        port: IntOrString::Int(port),
        ..HTTPGetAction::default()
    };
    Probe { http_get: Some(action), ..Probe::default() }
}

/// A probe of an open path of the proxy. A kubelet does not verify certificates.
fn proxy_probe(path: &str) -> Probe {
    let mut probe = http_probe(path, port::API);
    if let Some(action) = &mut probe.http_get {
        action.scheme = Some("HTTPS".to_owned());
    }
    probe
}

fn tcp_probe(port: i32) -> Probe {
    let action = TCPSocketAction { port: IntOrString::Int(port), host: None };
    Probe { tcp_socket: Some(action), ..Probe::default() }
}

fn timed(probe: Probe, initial_delay: Option<i32>, period: i32, failures: i32) -> Probe {
    Probe {
        initial_delay_seconds: initial_delay,
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        ..probe
    }
}

pub(super) fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}
