//! Changes of nodes and platforms: one table of what is rendered into a pod template and what is
//! not, for the tests of every module.

use sei_api::node::{
    DataVolumeSpec, FullNodeSpec, ImportVolume, PeerSource, S3Snapshot, SidecarSpec,
    SnapshotSource, StaticPeers, Switch, UpdateSpec,
};
use sei_api::pod::{PullSecret, Toleration};
use sei_api::{Mode, SeiNode, names};
use serde_json::json;

use crate::platform::{Platform, PoolAffinity};
use crate::quantity::Quantity;

pub(crate) type Change = (&'static str, fn(&mut SeiNode, &str));

/// Changes of a node that must change its template. A change that cannot apply to a mode leaves
/// the node unchanged, and is skipped.
pub(crate) const TEMPLATE_CHANGED: &[Change] = &[
    ("name", |node, text| node.metadata.name = Some(format!("n{text}"))),
    ("chain", |node, text| node.spec.chain_id = format!("c{text}")),
    ("image", |node, text| node.spec.image = format!("seid:{text}")),
    ("dedicated", |node, _| {
        let annotations = node.metadata.annotations.get_or_insert_default();
        let was = annotations.remove("sei.io/dedicated-node");
        if was.as_deref() != Some("true") {
            annotations.insert("sei.io/dedicated-node".to_owned(), "true".to_owned());
        }
    }),
    ("pod label", |node, text| {
        node.spec.pod_labels.get_or_insert_default().insert("p".to_owned(), text.to_owned());
    }),
    ("sidecar image", |node, text| {
        node.spec.sidecar.get_or_insert_default().image = Some(format!("seictl:{text}"));
    }),
    ("sidecar port", |node, text| {
        let port = 10_000 + i32::try_from(text.len()).unwrap();
        node.spec.sidecar.get_or_insert_default().port = port;
    }),
    ("sidecar resources", |node, text| {
        let cpu = json!({ "requests": { "cpu": format!("{}m", 1000 + text.len()) } });
        let sidecar: &mut SidecarSpec = node.spec.sidecar.get_or_insert_default();
        sidecar.resources = Some(serde_json::from_value(cpu).unwrap());
    }),
    ("import", |node, text| {
        let import = Some(ImportVolume { pvc_name: format!("claim-{text}") });
        node.spec.data_volume = Some(DataVolumeSpec { import, ..DataVolumeSpec::default() });
    }),
    ("mode", |node, _| {
        if node.spec.mode() != Some(Mode::FullNode) {
            node.spec.archive = None;
            node.spec.replayer = None;
            node.spec.validator = None;
            node.spec.seed = None;
            node.spec.full_node = Some(FullNodeSpec::default());
        }
    }),
    ("publish", |node, _| {
        let full = node.spec.full_node.as_mut().and_then(|mode| mode.snapshot_generation.as_mut());
        let archive = node.spec.archive.as_mut().and_then(|mode| mode.snapshot_generation.as_mut());
        if let Some(tendermint) =
            full.or(archive).and_then(|generation| generation.tendermint.as_mut())
        {
            tendermint.publish = if tendermint.publish.is_some() { None } else { Some(Switch {}) };
        }
    }),
    ("signing key", |node, text| {
        let key = node.spec.validator.as_mut().and_then(|validator| validator.signing_key.as_mut());
        if let Some(secret) = key.and_then(|key| key.secret.as_mut()) {
            secret.secret_name = format!("s-{text}");
        }
    }),
    ("node key", |node, text| {
        let validator =
            node.spec.validator.as_mut().and_then(|validator| validator.node_key.as_mut());
        let key = validator.or(node.spec.seed.as_mut().map(|seed| &mut seed.node_key));
        if let Some(secret) = key.and_then(|key| key.secret.as_mut()) {
            secret.secret_name = format!("k-{text}");
        }
    }),
    ("keyring", |node, text| {
        with_keyring(node, |keyring| keyring.secret_name = format!("r-{text}"));
    }),
    ("passphrase Secret", |node, text| {
        with_keyring(node, |keyring| {
            keyring.passphrase_secret_ref.secret_name = format!("w-{text}");
        });
    }),
    ("passphrase key", |node, text| {
        with_keyring(node, |keyring| keyring.passphrase_secret_ref.key = format!("x-{text}"));
    }),
    ("pod annotation", |node, text| {
        let annotations = node.spec.pod_annotations.get_or_insert_default();
        annotations.insert("p".to_owned(), text.to_owned());
    }),
    ("node pool", |node, text| {
        node.spec.scheduling.get_or_insert_default().node_pool = Some(format!("p-{text}"));
    }),
    ("node selector", |node, text| {
        let scheduling = node.spec.scheduling.get_or_insert_default();
        let labels = scheduling.node_selector.get_or_insert_default();
        labels.insert("p".to_owned(), text.to_owned());
    }),
    ("toleration", |node, text| {
        let toleration = Toleration { key: Some(format!("t-{text}")), ..Toleration::default() };
        let scheduling = node.spec.scheduling.get_or_insert_default();
        scheduling.tolerations.get_or_insert_default().push(toleration);
    }),
    ("priority class", |node, text| {
        let class = Some(format!("p-{text}"));
        node.spec.scheduling.get_or_insert_default().priority_class_name = class;
    }),
    ("topology spread", |node, text| {
        let spread = json!([{
            "maxSkew": 1, "topologyKey": format!("t-{text}"), "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { "a": "b" } },
        }]);
        node.spec.scheduling.get_or_insert_default().topology_spread_constraints =
            Some(serde_json::from_value(spread).unwrap());
    }),
    ("grace period", |node, text| {
        let seconds = 200 + i32::try_from(text.len()).unwrap();
        node.spec.termination_grace_period_seconds = Some(seconds);
    }),
    ("resources", |node, text| {
        let cpu = json!({ "requests": { "cpu": format!("{}m", 1000 + text.len()) } });
        node.spec.resources = Some(serde_json::from_value(cpu).unwrap());
    }),
    ("pull secret", |node, text| {
        let secrets = node.spec.image_pull_secrets.get_or_insert_default();
        secrets.push(PullSecret { name: format!("p-{text}") });
    }),
    ("restart", |node, text| {
        let annotations = node.metadata.annotations.get_or_insert_default();
        annotations.insert(names::annotation::RESTARTED_AT.to_owned(), text.to_owned());
    }),
    ("seidMount", |node, _| {
        with_keyring(node, |keyring| keyring.seid_mount = Some(keyring.seid_mount != Some(true)));
    }),
];

/// Changes of a node that must not change its template.
pub(crate) const TEMPLATE_UNCHANGED: &[Change] = &[
    ("labels of the node", |node, text| {
        node.metadata.labels.get_or_insert_default().insert("l".to_owned(), text.to_owned());
    }),
    ("peers", |node, text| {
        let addresses = vec![text.to_owned()];
        let peer =
            PeerSource { r#static: Some(StaticPeers { addresses }), ..PeerSource::default() };
        node.spec.peers.get_or_insert_default().push(peer);
    }),
    ("overrides", |node, text| {
        node.spec.overrides.get_or_insert_default().insert("o".to_owned(), text.to_owned());
    }),
    ("external address", |node, text| node.spec.external_address = Some(text.to_owned())),
    ("paused", |node, _| node.spec.paused = Some(!node.spec.is_paused())),
    ("update", |node, _| {
        node.spec.update = Some(UpdateSpec { paused: Some(true), ..UpdateSpec::default() });
    }),
    ("key name", |node, text| with_keyring(node, |keyring| keyring.key_name = text.to_owned())),
    ("snapshot", |node, text| {
        let source = SnapshotSource {
            s3: Some(S3Snapshot { target_height: 7 }),
            bootstrap_image: Some(format!("old:{text}")),
            trust_period: Some(text.to_owned()),
            backfill_blocks: Some(3),
            rpc_servers: Some(vec![text.to_owned()]),
            state_sync: None,
        };
        if let Some(full) = &mut node.spec.full_node {
            full.snapshot = Some(source);
        } else if let Some(replayer) = &mut node.spec.replayer {
            replayer.snapshot = source;
        } else if let Some(validator) = &mut node.spec.validator {
            validator.snapshot = Some(source);
        }
    }),
    ("keepRecent", |node, text| {
        let full = node.spec.full_node.as_mut().and_then(|mode| mode.snapshot_generation.as_mut());
        let archive = node.spec.archive.as_mut().and_then(|mode| mode.snapshot_generation.as_mut());
        if let Some(tendermint) =
            full.or(archive).and_then(|generation| generation.tendermint.as_mut())
        {
            tendermint.keep_recent += i32::try_from(text.len()).unwrap();
        }
    }),
    ("result export", |node, _| {
        if let Some(replayer) = &mut node.spec.replayer {
            replayer.result_export = None;
        }
    }),
    ("ceremony", |node, text| {
        let ceremony =
            node.spec.validator.as_mut().and_then(|validator| validator.genesis_ceremony.as_mut());
        if let Some(ceremony) = ceremony {
            ceremony.staking_amount = text.to_owned();
            ceremony.account_balance = text.to_owned();
            ceremony.index += 1;
        }
    }),
    ("class and size of the volume", |node, text| {
        let volume = node.spec.data_volume.get_or_insert_default();
        volume.storage_class_name = Some(text.to_owned());
        volume.size = Some(serde_json::from_value(json!("7Gi")).unwrap());
    }),
    ("borrowed annotations", |node, text| {
        let annotations = node.spec.pod_annotations.get_or_insert_default();
        for key in [names::annotation::RESTARTED_AT, names::annotation::DO_NOT_DISRUPT] {
            annotations.insert(key.to_owned(), text.to_owned());
        }
    }),
    ("borrowed labels", |node, text| {
        let labels = node.spec.pod_labels.get_or_insert_default();
        for key in sei_api::names::label::RESERVED {
            labels.insert(key.to_owned(), text.to_owned());
        }
    }),
    ("status", |node, text| {
        let status = json!({ "currentImage": text, "resolvedPeers": [text] });
        node.status = Some(serde_json::from_value(status).unwrap());
    }),
];

fn with_keyring(node: &mut SeiNode, change: impl FnOnce(&mut sei_api::node::KeyringSecret)) {
    let keyring =
        node.spec.validator.as_mut().and_then(|validator| validator.operator_keyring.as_mut());
    if let Some(secret) = keyring.and_then(|keyring| keyring.secret.as_mut()) {
        change(secret);
    }
}

/// Name of a change, the change, and the manifests of [`ONE_PER_MODE`] whose templates it changes.
pub(crate) type PlatformChange = (&'static str, fn(&mut Platform), &'static [&'static str]);
/// One manifest of each mode.
pub(crate) const ONE_PER_MODE: &[&str] =
    &["rpc-genesis", "arch-sync", "replay-basic", "val-byo", "seed-a"];
/// Changes of the platform, each with the manifests that it reaches.
pub(crate) const PLATFORM: &[PlatformChange] = &[
    ("serviceAccount", |p| p.scheduling.service_account = "x".to_owned(), ONE_PER_MODE),
    ("tolerationKey", |p| p.scheduling.toleration_key = "x".to_owned(), ONE_PER_MODE),
    (
        "nodepoolName",
        |p| p.scheduling.nodepool_name = "x".to_owned(),
        &["rpc-genesis", "replay-basic"],
    ),
    ("nodepoolArchive", |p| p.scheduling.nodepool_archive = "x".to_owned(), &["arch-sync"]),
    ("nodepoolValidator", |p| p.scheduling.nodepool_validator = "x".to_owned(), &["val-byo"]),
    ("nodepoolSeed", |p| p.scheduling.nodepool_seed = "x".to_owned(), &["seed-a"]),
    ("nodepoolLabel", |p| p.scheduling.nodepool_label = "x".to_owned(), ONE_PER_MODE),
    ("nodepoolAffinity", |p| p.scheduling.nodepool_affinity = PoolAffinity::Off, ONE_PER_MODE),
    (
        "nodeSelector",
        |p| drop(p.scheduling.node_selector.insert("x".to_owned(), "y".to_owned())),
        ONE_PER_MODE,
    ),
    ("tolerations", |p| p.scheduling.tolerations.push(Toleration::default()), ONE_PER_MODE),
    ("priorityClassName", |p| p.scheduling.priority_class = Some("x".to_owned()), ONE_PER_MODE),
    (
        "pods.annotations",
        |p| drop(p.pods.annotations.insert("x".to_owned(), "y".to_owned())),
        ONE_PER_MODE,
    ),
    ("pods.imagePullSecrets", |p| p.pods.image_pull_secrets.push("x".to_owned()), ONE_PER_MODE),
    ("images.sidecar", |p| p.images.sidecar = "x".to_owned(), ONE_PER_MODE),
    ("images.kubeRBACProxy", |p| p.images.kube_rbac_proxy = "x".to_owned(), ONE_PER_MODE),
    (
        "images.cosmosExporter",
        |p| p.images.cosmos_exporter = "x".to_owned(),
        &["rpc-genesis", "arch-sync", "replay-basic", "val-byo"],
    ),
    ("genesis", |p| p.genesis.region = "x".to_owned(), ONE_PER_MODE),
    ("snapshot", |p| p.snapshot.bucket = "x".to_owned(), ONE_PER_MODE),
    (
        "resources.replayer",
        |p| p.resources.replayer.memory = Some(Quantity::parse("3Gi").unwrap()),
        &["replay-basic"],
    ),
    (
        "resources.seed",
        |p| p.resources.seed.memory = Some(Quantity::parse("3Gi").unwrap()),
        &["seed-a"],
    ),
    ("storage", |p| p.storage.size_default = Quantity::parse("3Gi").unwrap(), &[]),
    ("storage class", |p| p.storage.class_perf = "x".to_owned(), &[]),
    ("stateSync", |p| p.state_sync.witnesses.clear(), &[]),
    ("rollout", |p| p.rollout.settle_seconds += 1, &[]),
];
