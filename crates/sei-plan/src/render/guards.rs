//! Rules of every rendered pod, checked on the pod itself.
//!
//! The rendering code keeps these rules already. They are checked again at the end because breaking
//! any of them has cost a user a fleet or a key: a later edit of a container must not get around
//! them. They are functions over pods, so that tests can pass broken pods.

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::Mode;

use super::containers::volume;
use super::{RenderError, container, port};
use crate::inputs::{KeyringInputs, TemplateInputs};
use crate::platform::Platform;

/// Ports that the chain process opens only once it runs.
const CHAIN_PORTS: [i32; 2] = [port::RPC, port::GRPC];

/// Values without which the pod could not run. [`Platform::parse`] requires them too; a platform
/// that was built in code may lack them.
pub fn check_platform(mode: Mode, platform: &Platform) -> Result<(), RenderError> {
    let needed = [
        ("images.kubeRBACProxy", &platform.images.kube_rbac_proxy, true),
        ("images.cosmosExporter", &platform.images.cosmos_exporter, mode != Mode::Seed),
        ("scheduling.nodepoolSeed", &platform.scheduling.nodepool_seed, mode == Mode::Seed),
    ];
    match needed.into_iter().find(|(_, value, applies)| *applies && value.trim().is_empty()) {
        Some((key, ..)) => Err(RenderError::PlatformValue { key, mode }),
        None => Ok(()),
    }
}

/// The chain process waits for the sidecar before it opens a port. No liveness probe may kill it
/// during that time, and its startup probe must use a port that is already open.
pub fn check_gated_probes(pod: &PodSpec) -> Result<(), RenderError> {
    let seid = seid(pod)?;
    if seid.liveness_probe.is_some() {
        return Err(RenderError::GatedLiveness);
    }
    match chain_port(seid, seid.startup_probe.as_ref()) {
        Some(port) => Err(RenderError::GatedProbe { probe: "startup", port }),
        None => Ok(()),
    }
}

/// A seed never opens the chain's ports, so a probe on one of them never succeeds.
pub fn check_seed_probes(pod: &PodSpec) -> Result<(), RenderError> {
    let seid = seid(pod)?;
    let probes = [
        ("startup", &seid.startup_probe),
        ("readiness", &seid.readiness_probe),
        ("liveness", &seid.liveness_probe),
    ];
    for (probe, spec) in probes {
        if let Some(port) = chain_port(seid, spec.as_ref()) {
            return Err(RenderError::SeedProbe { probe, port });
        }
    }
    Ok(())
}

/// A container with the keyring and its passphrase can spend: only the sidecar may have them, and
/// the chain process where the spec allows it.
pub fn check_keyring_containment(
    pod: &PodSpec,
    keyring: &KeyringInputs,
) -> Result<(), RenderError> {
    let secrets = [keyring.secret.as_str(), keyring.passphrase_secret.as_str()];
    let guarded: Vec<&str> = volumes(pod)
        .filter(|volume| volume.name == volume::KEYRING || secrets.iter().any(|s| holds(volume, s)))
        .map(|volume| volume.name.as_str())
        .collect();
    for (_, found) in containers(pod) {
        let allowed = found.name == container::SIDECAR
            || (found.name == container::SEID && keyring.seid_mount);
        if allowed {
            continue;
        }
        let mounts = found.volume_mounts.iter().flatten();
        let mount = mounts.map(|mount| &mount.name).find(|name| guarded.contains(&name.as_str()));
        let place = mount.map(|name| format!("volumeMounts[{name}]"));
        let place = place.or_else(|| secrets.iter().find_map(|secret| environment(found, secret)));
        if let Some(place) = place {
            return Err(RenderError::KeyringLeak { container: found.name.clone(), place });
        }
    }
    Ok(())
}

/// The bootstrap pod runs another image, to a height in the past. With a signing key it could sign
/// a height twice; with the keyring it could spend. The node key is not checked: it only names a
/// p2p peer.
pub fn check_bootstrap_isolation(
    pod: &PodSpec,
    inputs: &TemplateInputs,
) -> Result<(), RenderError> {
    let keyring = inputs.keyring.as_ref();
    let secrets = [
        ("signing key", inputs.signing_secret.as_deref()),
        ("operator keyring", keyring.map(|keyring| keyring.secret.as_str())),
        ("keyring passphrase", keyring.map(|keyring| keyring.passphrase_secret.as_str())),
    ];
    for (kind, secret) in secrets {
        let Some(secret) = secret else { continue };
        if let Some(place) = reference(pod, secret) {
            return Err(RenderError::BootstrapSecret { kind, secret: secret.to_owned(), place });
        }
    }
    Ok(())
}

/// The place where a pod refers to a Secret, if it does.
fn reference(pod: &PodSpec, secret: &str) -> Option<String> {
    let volume = volumes(pod).find(|volume| holds(volume, secret));
    volume.map(|volume| format!("volumes[{}]", volume.name)).or_else(|| {
        containers(pod).find_map(|(list, container)| {
            Some(format!("{list}[{}].{}", container.name, environment(container, secret)?))
        })
    })
}

/// The place where a container's environment refers to a Secret, if it does.
fn environment(container: &Container, secret: &str) -> Option<String> {
    let single = container.env.iter().flatten().find(|env| {
        let source = env.value_from.as_ref().and_then(|from| from.secret_key_ref.as_ref());
        source.is_some_and(|reference| reference.name == secret)
    });
    let whole = container
        .env_from
        .iter()
        .flatten()
        .any(|from| from.secret_ref.as_ref().is_some_and(|reference| reference.name == secret));
    single.map(|env| format!("env[{}]", env.name)).or(whole.then(|| "envFrom".to_owned()))
}

fn holds(volume: &Volume, secret: &str) -> bool {
    let direct = volume.secret.as_ref().and_then(|source| source.secret_name.as_deref());
    let projected = volume.projected.iter().flat_map(|source| source.sources.iter().flatten());
    direct == Some(secret)
        || projected
            .filter_map(|source| source.secret.as_ref())
            .any(|projection| projection.name == secret)
}

fn volumes(pod: &PodSpec) -> impl Iterator<Item = &Volume> {
    pod.volumes.iter().flatten()
}

/// Every container with the name of its list.
fn containers(pod: &PodSpec) -> impl Iterator<Item = (&'static str, &Container)> {
    let init = pod.init_containers.iter().flatten().map(|container| ("initContainers", container));
    init.chain(pod.containers.iter().map(|container| ("containers", container)))
}

fn seid(pod: &PodSpec) -> Result<&Container, RenderError> {
    pod.containers.iter().find(|found| found.name == container::SEID).ok_or(RenderError::NoSeid)
}

/// The port of the chain that a probe uses, if it uses one; by number or by name.
fn chain_port(container: &Container, probe: Option<&Probe>) -> Option<i32> {
    let probe = probe?;
    let number = |port: &IntOrString| match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => container
            .ports
            .iter()
            .flatten()
            .find(|port| port.name.as_ref() == Some(name))
            .map(|port| port.container_port),
    };
    let ports = [
        probe.http_get.as_ref().and_then(|action| number(&action.port)),
        probe.tcp_socket.as_ref().and_then(|action| number(&action.port)),
        probe.grpc.as_ref().map(|action| action.port),
    ];
    ports.into_iter().flatten().find(|port| CHAIN_PORTS.contains(port))
}
