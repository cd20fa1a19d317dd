//! What must hold of a rendered pod, checked on the pod itself.
//!
//! The code that renders keeps these rules already. They are checked again at the end because each
//! of them, once broken, has cost somebody a fleet or a key: a later edit of a container must not be
//! able to slip past. They are functions over pods, so that tests can feed them broken ones.

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::Mode;

use super::containers::volume;
use super::{RenderError, container, port};
use crate::inputs::{KeyringInputs, TemplateInputs};
use crate::platform::Platform;

/// Ports that the chain process opens only once it runs.
const CHAIN_PORTS: [i32; 2] = [port::RPC, port::GRPC];

/// Values without which the pod could not run. [`Platform::parse`] demands them too; a platform
/// that was put together by hand may lack them.
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
/// meanwhile, and its startup probe must ask something that answers already.
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

/// Who has the keyring and its passphrase can spend: only the sidecar, and the chain process where
/// the spec says so.
pub fn check_keyring_containment(
    pod: &PodSpec,
    keyring: &KeyringInputs,
) -> Result<(), RenderError> {
    let secrets = [keyring.secret.as_str(), keyring.passphrase_secret.as_str()];
    let guarded: Vec<&str> = volumes(pod)
        .filter(|one| one.name == volume::KEYRING || secrets.iter().any(|s| holds(one, s)))
        .map(|one| one.name.as_str())
        .collect();
    for (_, one) in containers(pod) {
        let allowed =
            one.name == container::SIDECAR || (one.name == container::SEID && keyring.seid_mount);
        if allowed {
            continue;
        }
        let mounts = one.volume_mounts.iter().flatten();
        let mount = mounts.map(|mount| &mount.name).find(|name| guarded.contains(&name.as_str()));
        let place = mount.map(|name| format!("volumeMounts[{name}]"));
        let place = place.or_else(|| secrets.iter().find_map(|secret| environment(one, secret)));
        if let Some(place) = place {
            return Err(RenderError::KeyringLeak { container: one.name.clone(), place });
        }
    }
    Ok(())
}

/// The bootstrap pod runs another image, to a height in the past. With a signing key it could sign
/// what was signed before; with the keyring it could spend. The node key is not looked for: it only
/// names a p2p peer.
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

/// Where a pod refers to a Secret, if it does.
fn reference(pod: &PodSpec, secret: &str) -> Option<String> {
    let volume = volumes(pod).find(|one| holds(one, secret));
    volume.map(|one| format!("volumes[{}]", one.name)).or_else(|| {
        containers(pod).find_map(|(list, one)| {
            Some(format!("{list}[{}].{}", one.name, environment(one, secret)?))
        })
    })
}

/// Where a container's environment refers to a Secret, if it does.
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

/// Every container with the name of the list it stands in.
fn containers(pod: &PodSpec) -> impl Iterator<Item = (&'static str, &Container)> {
    let init = pod.init_containers.iter().flatten().map(|one| ("initContainers", one));
    init.chain(pod.containers.iter().map(|one| ("containers", one)))
}

fn seid(pod: &PodSpec) -> Result<&Container, RenderError> {
    pod.containers.iter().find(|one| one.name == container::SEID).ok_or(RenderError::NoSeid)
}

/// The port of the chain that a probe asks, if it asks one; by number or by name.
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
    let asked = [
        probe.http_get.as_ref().and_then(|action| number(&action.port)),
        probe.tcp_socket.as_ref().and_then(|action| number(&action.port)),
        probe.grpc.as_ref().map(|action| action.port),
    ];
    asked.into_iter().flatten().find(|port| CHAIN_PORTS.contains(port))
}
