//! Minimal nodes and snapshots for tests.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use sei_api::SeiNode;
use sei_api::names::NODE_FINALIZER;
use sei_api::node::{
    ArchiveSpec, FullNodeSpec, KeySource, KeyringSecret, OperatorKeyring, PassphraseRef,
    PeerSource, ReplayerSpec, S3Snapshot, SecretKeySource, SeedSpec, SeiNodeSpec, SnapshotSource,
    StaticPeers, Switch, ValidatorSpec,
};
use sei_api::status::{ObservedTemplate, SeiNodePhase, SeiNodeStatus};
use serde_json::{Value, json};

use crate::chain::Blocks;
use crate::desired::{Bootstrap, Desired};
use crate::fingerprint::digest_of;
use crate::packed::Packed;
use crate::snapshot::{Claim, Current, RegisteredWitnesses, Rollout, Sidecar, Slot, Snapshot};
use crate::template::Identity;
use crate::timing::Timing;
use crate::view::{ContainerView, Controller, PodView, StatefulSetView};

pub(crate) const NODE_UID: &str = "node-uid";
pub(crate) const STS_UID: &str = "sts-uid";

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(crate) fn secret(name: &str) -> KeySource {
    KeySource { secret: Some(SecretKeySource { secret_name: name.to_owned() }) }
}

pub(crate) fn full_node() -> SeiNodeSpec {
    SeiNodeSpec { full_node: Some(FullNodeSpec::default()), ..spec() }
}

fn spec() -> SeiNodeSpec {
    SeiNodeSpec { chain_id: "demo-1".into(), image: "seid:1".into(), ..SeiNodeSpec::default() }
}

pub(crate) fn archive() -> SeiNodeSpec {
    SeiNodeSpec { archive: Some(ArchiveSpec::default()), ..spec() }
}

pub(crate) fn s3(height: i64) -> SnapshotSource {
    SnapshotSource { s3: Some(S3Snapshot { target_height: height }), ..SnapshotSource::default() }
}

pub(crate) fn state_sync() -> SnapshotSource {
    SnapshotSource { state_sync: Some(Switch {}), ..SnapshotSource::default() }
}

pub(crate) fn full_node_from(snapshot: SnapshotSource) -> SeiNodeSpec {
    let full = FullNodeSpec { snapshot: Some(snapshot), ..FullNodeSpec::default() };
    SeiNodeSpec { full_node: Some(full), ..spec() }
}

pub(crate) fn replayer() -> SeiNodeSpec {
    let addresses = vec!["id@host:26656".to_owned()];
    let peers = PeerSource { r#static: Some(StaticPeers { addresses }), ..PeerSource::default() };
    SeiNodeSpec {
        peers: Some(vec![peers]),
        replayer: Some(ReplayerSpec { snapshot: s3(5), result_export: None }),
        ..spec()
    }
}

pub(crate) fn observer() -> SeiNodeSpec {
    SeiNodeSpec { validator: Some(ValidatorSpec::default()), ..spec() }
}

pub(crate) fn validator() -> SeiNodeSpec {
    let keys = ValidatorSpec {
        signing_key: Some(secret("signing")),
        node_key: Some(secret("p2p")),
        ..ValidatorSpec::default()
    };
    SeiNodeSpec { validator: Some(keys), ..spec() }
}

pub(crate) fn governor() -> SeiNodeSpec {
    let mut spec = validator();
    let keyring = KeyringSecret {
        secret_name: "keyring".into(),
        key_name: "treasury".into(),
        passphrase_secret_ref: PassphraseRef {
            secret_name: "pass".into(),
            key: "passphrase".into(),
        },
        seid_mount: None,
    };
    let validator = spec.validator.as_mut().unwrap();
    validator.operator_keyring = Some(OperatorKeyring { secret: Some(keyring) });
    spec
}

pub(crate) fn seed() -> SeiNodeSpec {
    SeiNodeSpec { seed: Some(SeedSpec { node_key: secret("p2p") }), ..spec() }
}

/// A node as the API server would return it.
pub(crate) fn node(spec: SeiNodeSpec) -> SeiNode {
    let mut node = SeiNode::new("n", spec);
    node.metadata.namespace = Some("ns".into());
    node.metadata.uid = Some(NODE_UID.into());
    node.metadata.generation = Some(1);
    node.metadata.finalizers = Some(vec![NODE_FINALIZER.to_owned()]);
    node
}

/// The desired state of a spec, rendered only as far as tests compare it: images, labels, identity.
pub(crate) fn desired(spec: &SeiNodeSpec, platform: &str) -> Desired {
    let sidecar_image = spec.sidecar_image().unwrap_or("seictl:1").to_owned();
    let role = spec.mode().map_or("none", sei_api::Mode::role);
    let mut labels: BTreeMap<String, String> = spec.pod_labels.clone().unwrap_or_default();
    labels.insert("sei.io/chain".into(), spec.chain_id.clone());
    labels.insert("sei.io/role".into(), role.into());
    let mut volumes = vec![json!({
        "name": "data",
        "persistentVolumeClaim": { "claimName": spec.imported_claim().unwrap_or("data-n") },
    })];
    if let Some(name) = spec.signing_secret() {
        volumes.push(json!({ "name": "signing-key", "secret": { "secretName": name } }));
    }
    let template = json!({
        "metadata": { "labels": labels },
        "spec": {
            "initContainers": [{ "name": "sei-sidecar", "image": sidecar_image }],
            "containers": [{
                "name": "seid",
                "image": spec.image,
                "env": [{ "name": "PLATFORM", "value": platform }],
            }],
            "volumes": volumes,
        },
    });
    let mut statefulset = StatefulSet::default();
    statefulset.metadata.name = Some("n".into());
    statefulset.spec.replicas = Some(i32::from(!spec.is_paused()));
    statefulset.spec.template =
        serde_json::from_value::<PodTemplateSpec>(template.clone()).unwrap();
    let bootstrap = spec.needs_bootstrap().then(|| Bootstrap {
        image: spec
            .snapshot()
            .and_then(|source| source.bootstrap_image.clone())
            .unwrap_or_default(),
        ..Bootstrap::default()
    });
    let config = BTreeMap::from([
        ("externalAddress".to_owned(), digest_of(&spec.external_address)),
        ("overrides".to_owned(), digest_of(&spec.overrides)),
    ]);
    Desired {
        hash: digest_of(&template),
        inputs_hash: digest_of(&json!([spec.image, spec.pod_labels, spec.sidecar_image()])),
        image: spec.image.clone(),
        sidecar_image,
        config,
        identity: Identity::of(&statefulset.spec.template),
        statefulset: statefulset.into(),
        claim: spec.imported_claim().is_none().then(Packed::default),
        claim_size: "10Gi".into(),
        bootstrap,
        config_apply: json!({ "mode": "full", "overrides": {} }).into(),
        config_patch: json!({ "files": { "config.toml": { "p2p": { "external-address": "" } } } })
            .into(),
        configure_state_sync: json!({ "UseLocalSnapshot": false }).into(),
        ..Desired::default()
    }
}

/// A snapshot of a node that has no objects yet.
pub(crate) fn new_node(spec: SeiNodeSpec) -> Snapshot {
    let desired = desired(&spec, "a");
    Snapshot {
        node: node(spec).into(),
        status: SeiNodeStatus::default(),
        peers: None,
        now: at(0),
        plan_id: "11111111-1111-4111-8111-111111111111".into(),
        operator_version: "1.0.0".into(),
        timing: Timing::default(),
        rollout: Rollout::default(),
        desired: Ok(desired.into()),
        witnesses: RegisteredWitnesses::Known(vec!["a:1".into(), "b:1".into()]),
        statefulset: None,
        pods: Vec::new(),
        job: None,
        pre_pull: None,
        pulls: Vec::new(),
        claim: Claim::Unknown,
        sidecar: Sidecar::Unknown,
        blocks: Blocks::Unknown,
        slot: Some(Slot::Granted),
        adoption: None,
        asks_peers: false,
        signing_conflict: None,
        dropped_field: None,
        waiting: None,
        current: Current::default(),
        service: None,
        proxy_config: None,
    }
}

/// A snapshot of a node that runs the template of its first spec.
pub(crate) fn running(spec: SeiNodeSpec) -> Snapshot {
    let mut snapshot = new_node(spec);
    let desired = snapshot.desired.clone().unwrap();
    let set = statefulset(&desired.template(), &desired.hash, "rev-1");
    snapshot.statefulset = Some(set.into());
    snapshot.pods = vec![pod(&desired.image, &desired.sidecar_image, "rev-1").into()];
    snapshot.sidecar = Sidecar::Ready;
    let identity = snapshot.node.spec.signing_secret().map(|_| "v1:me".to_owned());
    snapshot.store(SeiNodeStatus {
        phase: Some(SeiNodePhase::Running),
        signing_identity: identity,
        observed_generation: Some(1),
        current_image: Some(desired.image.clone()),
        current_sidecar_image: Some(desired.sidecar_image.clone()),
        pod_template_hash: Some(desired.hash.clone()),
        pod_template: Some(ObservedTemplate {
            revision: "rev-1".into(),
            pod_uid: "pod-uid".into(),
            inputs_hash: desired.inputs_hash.clone(),
            operator_version: "1.0.0".into(),
            observed_at: None,
            config: desired.config.clone(),
            desired_image: Some(desired.image.clone()),
            desired_sidecar_image: Some(desired.sidecar_image.clone()),
        }),
        ..SeiNodeStatus::default()
    });
    snapshot
}

pub(crate) fn statefulset(template: &Value, hash: &str, revision: &str) -> StatefulSetView {
    StatefulSetView {
        name: "n".into(),
        uid: STS_UID.into(),
        resource_version: "7".into(),
        generation: 1,
        observed_generation: 1,
        controller: Some(NODE_UID.into()),
        replicas: Some(1),
        on_delete: true,
        selector: Some(BTreeMap::from([("sei.io/node".to_owned(), "n".to_owned())])),
        labels: BTreeMap::new(),
        template_hash: Some(hash.to_owned()),
        initialised: false,
        terminating: false,
        update_revision: Some(revision.to_owned()),
        template: template.clone().into(),
        created_fields: None,
    }
}

pub(crate) fn container(image: &str) -> ContainerView {
    ContainerView {
        image: image.to_owned(),
        image_id: format!("sha256:{image}"),
        has_run: true,
        running: true,
        running_since: None,
        started: true,
        restarts: 0,
    }
}

pub(crate) fn pod(image: &str, sidecar_image: &str, revision: &str) -> PodView {
    PodView {
        name: "n-0".into(),
        uid: "pod-uid".into(),
        resource_version: "3".into(),
        controller: Some(Controller::statefulset("n", STS_UID)),
        revision: Some(revision.to_owned()),
        ip: Some("10.0.0.1".into()),
        ready: true,
        seid: container(image),
        sidecar: container(sidecar_image),
        ..PodView::default()
    }
}

impl Snapshot {
    /// The same snapshot after the user changed the spec.
    pub(crate) fn edit(mut self, change: impl FnOnce(&mut SeiNodeSpec)) -> Self {
        change(&mut self.node.spec);
        *self.node.metadata.generation.get_or_insert(1) += 1;
        self.desired = Ok(desired(&self.node.spec, "a").into());
        self.current.template = self.compare_template();
        self
    }

    /// The same snapshot under another platform configuration.
    pub(crate) fn platform(mut self, name: &str) -> Self {
        self.desired = Ok(desired(&self.node.spec, name).into());
        self.current.template = self.compare_template();
        self
    }

    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.node.status = Some(self.status.clone());
        self.current.template = self.compare_template();
        self
    }

    /// Stores this status.
    pub(crate) fn store(&mut self, status: SeiNodeStatus) {
        self.node.status = Some(status.clone());
        self.status = status;
    }

    pub(crate) fn status_mut(&mut self) -> &mut SeiNodeStatus {
        &mut self.status
    }
}
