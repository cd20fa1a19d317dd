//! The node's pod template, and what it shares with the bootstrap Job's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, KeyToPath,
    PersistentVolumeClaimVolumeSource, PodAffinityTerm, PodAntiAffinity, PodSecurityContext,
    PodSpec, PodTemplateSpec, SecretVolumeSource, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    LabelSelector, LabelSelectorRequirement, ObjectMeta,
};
use sei_api::{Mode, names};

use super::containers::{self, NODE_KEY_FILE, NONROOT, SIGNING_KEY_FILE, texts, volume};
use super::{RenderError, TERMINATION_GRACE_SECONDS, data_claim_name, guards, placement, scripts};
use crate::inputs::TemplateInputs;
use crate::platform::Platform;

/// Only the owner reads a key: other users of the pod's group do not need it.
const KEY_FILE_MODE: i32 = 0o400;

/// The pod template of a node: the input of its fingerprint.
pub fn render_template(
    inputs: &TemplateInputs,
    platform: &Platform,
) -> Result<PodTemplateSpec, RenderError> {
    guards::check_platform(inputs.mode, platform)?;
    let pod = pod(inputs, platform);
    guards::check_gated_probes(&pod)?;
    if inputs.mode == Mode::Seed {
        guards::check_seed_probes(&pod)?;
    }
    if let Some(keyring) = &inputs.keyring {
        guards::check_keyring_containment(&pod, keyring)?;
    }
    Ok(PodTemplateSpec { metadata: Some(metadata(inputs, platform)), spec: Some(pod) })
}

fn pod(inputs: &TemplateInputs, platform: &Platform) -> PodSpec {
    let mut main = vec![containers::seid(inputs, platform)];
    if inputs.mode != Mode::Seed {
        // A seed has no gRPC port for the exporter to read.
        main.push(containers::exporter(platform));
    }
    let init = scripts::init(&inputs.chain_id, containers::keyring_backend(inputs));
    PodSpec {
        affinity: Some(affinity(inputs, platform, inputs.dedicated)),
        init_containers: Some(vec![
            containers::seid_init(&inputs.image, &init),
            sidecar(inputs, platform),
            containers::with_proxy_probes(containers::proxy(inputs, platform)),
        ]),
        containers: main,
        volumes: Some(volumes(inputs)),
        ..base_pod(inputs, platform)
    }
}

/// The sidecar of the node's own pod: it may hold the keyring, and Prometheus may find it.
fn sidecar(inputs: &TemplateInputs, platform: &Platform) -> Container {
    let mut sidecar = containers::sidecar(inputs, platform);
    sidecar.ports = Some(vec![containers::tcp_port("sidecar", inputs.sidecar_port)]);
    sidecar.env.get_or_insert_default().extend(containers::keyring_env(inputs));
    if inputs.keyring.is_some() {
        sidecar.volume_mounts.get_or_insert_default().push(containers::keyring_mount());
    }
    sidecar
}

/// The fields that every pod of ours has.
pub(super) fn base_pod(inputs: &TemplateInputs, platform: &Platform) -> PodSpec {
    PodSpec {
        // The proxy verifies its callers at the API server with this token.
        automount_service_account_token: Some(true),
        service_account_name: Some(platform.scheduling.service_account.clone()),
        // The sidecar stops and restarts the chain process by signal.
        share_process_namespace: Some(true),
        security_context: Some(PodSecurityContext {
            fs_group: Some(NONROOT),
            // A full walk over terabytes of small files would delay each start by hours.
            fs_group_change_policy: Some("OnRootMismatch".to_owned()),
            ..PodSecurityContext::default()
        }),
        termination_grace_period_seconds: Some(
            inputs.termination_grace_seconds.map_or(TERMINATION_GRACE_SECONDS, i64::from),
        ),
        topology_spread_constraints: placement::topology_spread(inputs),
        tolerations: Some(placement::tolerations(inputs, platform)),
        node_selector: placement::node_selector(inputs, platform),
        priority_class_name: placement::priority_class(inputs, platform),
        image_pull_secrets: placement::pull_secrets(inputs, platform),
        ..PodSpec::default()
    }
}

fn metadata(inputs: &TemplateInputs, platform: &Platform) -> ObjectMeta {
    let mut metadata =
        ObjectMeta { labels: Some(resource_labels(inputs)), ..pod_metadata(inputs, platform) };
    if let Some(time) = &inputs.restarted_at {
        let annotations = metadata.annotations.get_or_insert_default();
        annotations.insert(names::annotation::RESTARTED_AT.to_owned(), time.clone());
    }
    metadata
}

/// Metadata that both kinds of pod share.
pub(super) fn pod_metadata(inputs: &TemplateInputs, platform: &Platform) -> ObjectMeta {
    let own = (names::annotation::DO_NOT_DISRUPT.to_owned(), "true".to_owned());
    let annotations = placement::annotations(inputs, platform, BTreeMap::from([own]));
    ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
}

/// The only key of any selector.
pub(super) fn selector_labels(node: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(names::label::NODE.to_owned(), node.to_owned())])
}

/// Labels of every object of a node: the user's first, then ours over them. The user cannot set
/// our two optional ones either: they control scheduling and publishing.
pub(super) fn resource_labels(inputs: &TemplateInputs) -> BTreeMap<String, String> {
    use names::label;
    let mut labels = inputs.pod_labels.clone();
    labels.retain(|key, _| !label::RESERVED.contains(&key.as_str()));
    let mut stamp = |key: &str, value: &str| labels.insert(key.to_owned(), value.to_owned());
    stamp(label::NODE, &inputs.name);
    stamp(label::ROLE, inputs.mode.role());
    if !inputs.chain_id.is_empty() {
        stamp(label::CHAIN, &inputs.chain_id);
    }
    if inputs.dedicated {
        stamp(label::DEDICATED_NODE, "true");
    }
    if inputs.publish {
        stamp(label::SNAPSHOT_PUBLISH, "true");
    }
    labels
}

/// Pins the pod to its pool, and keeps pods off machines that are dedicated to another pod.
/// `requests_machine` adds the reverse: no other node's pod beside this one.
pub(super) fn affinity(
    inputs: &TemplateInputs,
    platform: &Platform,
    requests_machine: bool,
) -> Affinity {
    let mut apart =
        vec![keep_away_from(names::label::DEDICATED_NODE, "In", Some(texts(&["true"])))];
    if requests_machine {
        apart.push(keep_away_from(names::label::NODE, "Exists", None));
    }
    Affinity {
        node_affinity: placement::node_affinity(inputs, platform),
        pod_anti_affinity: Some(PodAntiAffinity {
            required_during_scheduling_ignored_during_execution: Some(apart),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn keep_away_from(label: &str, operator: &str, values: Option<Vec<String>>) -> PodAffinityTerm {
    PodAffinityTerm {
        topology_key: "kubernetes.io/hostname".to_owned(),
        // Empty, not absent: absent would mean this namespace only.
        namespace_selector: Some(LabelSelector::default()),
        label_selector: Some(LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: label.to_owned(),
                operator: operator.to_owned(),
                values,
            }]),
            match_labels: None,
        }),
        ..PodAffinityTerm::default()
    }
}

/// Volumes that both kinds of pod have.
pub(super) fn base_volumes(inputs: &TemplateInputs) -> Vec<Volume> {
    let empty = |name: &str| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource::default()),
        ..Volume::default()
    };
    vec![
        Volume {
            name: volume::DATA.to_owned(),
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: data_claim_name(inputs),
                read_only: None,
            }),
            ..Volume::default()
        },
        empty(volume::SIDECAR_TMP),
        empty(volume::HOME),
        Volume {
            name: volume::PROXY_CONFIG.to_owned(),
            config_map: Some(ConfigMapVolumeSource {
                name: names::proxy_config(&inputs.name),
                ..ConfigMapVolumeSource::default()
            }),
            ..Volume::default()
        },
    ]
}

fn volumes(inputs: &TemplateInputs) -> Vec<Volume> {
    let mut volumes = base_volumes(inputs);
    if let Some(secret) = &inputs.signing_secret {
        volumes.push(secret_volume(volume::SIGNING_KEY, secret, Some(SIGNING_KEY_FILE)));
    }
    if let Some(secret) = &inputs.node_key_secret {
        volumes.push(secret_volume(volume::NODE_KEY, secret, Some(NODE_KEY_FILE)));
    }
    if let Some(keyring) = &inputs.keyring {
        volumes.push(secret_volume(volume::KEYRING, &keyring.secret, None));
    }
    volumes
}

/// A Secret as a volume: one file of it, or all.
fn secret_volume(name: &str, secret: &str, file: Option<&str>) -> Volume {
    let items = file.map(|file| {
        vec![KeyToPath { key: file.to_owned(), path: file.to_owned(), ..KeyToPath::default() }]
    });
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(KEY_FILE_MODE),
            items,
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}
