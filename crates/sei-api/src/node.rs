//! `SeiNode`: the spec of one chain node.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pod::{ChainResources, PullSecret, SchedulingSpec};
use crate::status::SeiNodeStatus;

/// One Sei chain node: a StatefulSet with one pod that runs the chain process and its sidecar.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sei.io",
    version = "v1alpha1",
    kind = "SeiNode",
    plural = "seinodes",
    singular = "seinode",
    shortname = "snode",
    category = "sei",
    namespaced,
    status = "SeiNodeStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "One Sei chain node.",
    // The server evaluates a rule at the root on every write. An object stored before the rule must
    // still get its status; a new object has none, because the server drops status on create.
    validation = Rule::new("size(self.metadata.name) <= 52 || has(self.status)")
        .message("metadata.name must have at most 52 characters: names and labels are derived from it"),
    validation = Rule::new(
        "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') || has(self.status)"
    ).message("metadata.name must start with a-z, end with a-z or 0-9 and contain only a-z, 0-9 and -: a Service has it"),
    // The status names what runs, so that a change that was stored before the rule can be reverted.
    validation = Rule::new(
        "self.spec.chainId == oldSelf.spec.chainId || !has(oldSelf.status) \
         || !has(oldSelf.status.chainId) || self.spec.chainId == oldSelf.status.chainId"
    ).message("chainId cannot change: create another node instead")
        .field_path(".spec.chainId"),
    validation = Rule::new(
        "(has(self.spec.fullNode) == has(oldSelf.spec.fullNode) \
          && has(self.spec.archive) == has(oldSelf.spec.archive) \
          && has(self.spec.replayer) == has(oldSelf.spec.replayer) \
          && has(self.spec.validator) == has(oldSelf.spec.validator) \
          && has(self.spec.seed) == has(oldSelf.spec.seed)) \
         || !has(oldSelf.status) || !has(oldSelf.status.mode) \
         || (has(self.spec.fullNode) && oldSelf.status.mode == 'fullNode') \
         || (has(self.spec.archive) && oldSelf.status.mode == 'archive') \
         || (has(self.spec.replayer) && oldSelf.status.mode == 'replayer') \
         || (has(self.spec.validator) && oldSelf.status.mode == 'validator') \
         || (has(self.spec.seed) && oldSelf.status.mode == 'seed')"
    ).message("the mode cannot change: create another node instead")
        .field_path(".spec"),
    // A node that is stopped, lost, refused or down is never Ready; the reason distinguishes them.
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Image", type_ = "string", json_path = ".status.currentImage"),
    printcolumn(
        name = "Update",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"PodTemplateDrift\")].reason"
    ),
    printcolumn(name = "Chain", type_ = "string", json_path = ".status.chainId"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Mode",
        type_ = "string",
        json_path = ".status.mode",
        priority = 1
    ),
    printcolumn(
        name = "Paused",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Paused\")].status",
        priority = 1
    ),
    printcolumn(
        name = "StatefulSet",
        type_ = "string",
        json_path = ".status.statefulSet.name",
        priority = 1
    ),
    printcolumn(
        name = "Revision",
        type_ = "string",
        json_path = ".status.podTemplate.revision",
        priority = 1
    )
)]
#[x_kube(validation = Rule::new(
    "(has(self.fullNode) ? 1 : 0) + (has(self.archive) ? 1 : 0) + (has(self.replayer) ? 1 : 0) \
     + (has(self.validator) ? 1 : 0) + (has(self.seed) ? 1 : 0) == 1"
).message("exactly one of fullNode, archive, replayer, validator or seed must be set"))]
#[x_kube(validation = Rule::new(
    "!has(self.replayer) || (has(self.peers) && size(self.peers) > 0)"
).message("a replayer needs at least one entry in peers"))]
#[serde(rename_all = "camelCase")]
pub struct SeiNodeSpec {
    /// Chain that the node follows, e.g. `pacific-1`. It cannot change.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub chain_id: String,
    /// Image of the chain process.
    #[schemars(length(min = 1, max = 512), regex(pattern = r"^[^\s[:cntrl:]]*$"))]
    pub image: String,
    /// Sources of the node's peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<Vec<PeerSource>>,
    /// Dotted configuration keys and their values, e.g. `logging.level: info`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overrides: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<SidecarSpec>,
    /// Extra labels of the pod and of the generated objects. The operator's own labels take precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("additionalProperties" = serde_json::json!({
        "type": "string", "maxLength": 63,
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    })))]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Extra annotations of the pod. The operator's own annotations take precedence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_annotations: Option<BTreeMap<String, String>>,
    /// Where the pod may run, in addition to or in place of the platform configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    // Few nodes have these two, and every node is held in memory.
    pub scheduling: Option<Box<SchedulingSpec>>,
    /// Requests and limits of the chain process. A resource that is named here, in either list, is used
    /// as it is written; for all others the platform configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<ChainResources>>,
    /// How long the pod may take to stop, in place of 120 s: a database that is not closed properly
    /// is repaired, or restored, at the next start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 3600))]
    pub termination_grace_period_seconds: Option<i32>,
    /// Secrets with credentials of registries, in addition to the platform's and those of the
    /// service account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub image_pull_secrets: Option<Vec<PullSecret>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_volume: Option<DataVolumeSpec>,
    /// Address at which other nodes reach the node's p2p port, `host:port`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^((\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+):[0-9]{1,5})?$"))]
    pub external_address: Option<String>,
    /// Stops the node: its StatefulSet is scaled to zero replicas. To hold updates of a node that
    /// keeps running, use `update.paused`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// When updates of this node are held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateSpec>,
    /// An RPC node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_node: Option<FullNodeSpec>,
    /// A node that keeps all history; it always syncs block by block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<ArchiveSpec>,
    /// A node that replays blocks from a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayer: Option<ReplayerSpec>,
    /// A validator. Without keys it runs as an observer and does not sign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validator: Option<ValidatorSpec>,
    /// A seed node: it only provides addresses of peers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<SeedSpec>,
}

/// An empty object; its presence turns the setting on.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {}

/// When updates of a node are held.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateSpec {
    /// Holds every update. The node keeps running, and an evicted pod is recreated unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
    /// What to do when a new operator or platform configuration renders a different pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_operator_change: Option<OnOperatorChange>,
    /// How a changed image rolls while the node is Ready. A node that is not Ready rolls at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_image_change: Option<OnImageChange>,
}

/// How a changed image rolls while the node is Ready: `InTurn` by default, nodes that do not sign
/// first, or `AtOnce`, together with all other nodes whose image changed. A node that is not Ready
/// rolls at once.
// The schema of an enum has this text in place of that of the field.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnImageChange {
    /// In turn: nodes that do not sign first, within the chain's limit; nodes that sign last, one at
    /// a time. A failed roll halts the rest.
    InTurn,
    /// Together with all other nodes whose image changed.
    AtOnce,
}

/// What to do when a new operator or platform configuration renders a different pod: with `Auto`
/// the node rolls by itself within the budget of its chain, with `Hold` the update waits for an
/// approval or for the next change of the spec. By default the platform configuration decides.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOperatorChange {
    /// The node rolls by itself, within the chain's budget.
    Auto,
    /// The update waits for an approval or for the next change of the spec.
    Hold,
}

/// One source of peers.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new(
    "(has(self.label) ? 1 : 0) + (has(self.static) ? 1 : 0) + (has(self.ec2Tags) ? 1 : 0) == 1"
).message("exactly one of label, static or ec2Tags must be set in a peer source"))]
#[serde(rename_all = "camelCase")]
pub struct PeerSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<LabelPeers>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#static: Option<StaticPeers>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ec2_tags: Option<Ec2TagPeers>,
}

/// Other `SeiNode`s by their labels.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct LabelPeers {
    /// Labels that the peer's `SeiNode` must all have.
    #[schemars(extend("minProperties" = 1))]
    pub selector: BTreeMap<String, String>,
    /// Namespace of the peers; the node's own when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

/// Peers by address.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct StaticPeers {
    /// Entries of the form `nodeId@host:port`.
    #[schemars(length(min = 1), inner(regex(pattern = r"^[^\s:/@,]+@[^\s/@,]+:[0-9]{1,5}$")))]
    pub addresses: Vec<String>,
}

/// EC2 instances by their tags.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Ec2TagPeers {
    /// AWS region of the instances.
    #[schemars(length(min = 1))]
    pub region: String,
    /// Tags that an instance must all have.
    #[schemars(extend("minProperties" = 1))]
    pub tags: BTreeMap<String, String>,
}

/// Source of a node's initial state.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("has(self.s3) != has(self.stateSync)")
    .message("exactly one of s3 or stateSync must be set in snapshot"))]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Snapshot>,
    /// Fetch the state from peers (state sync).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_sync: Option<Switch>,
    /// How long a trusted header stays trusted, e.g. `168h0m0s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))*$"))]
    pub trust_period: Option<String>,
    /// Number of blocks to fetch below the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backfill_blocks: Option<i64>,
    /// State-sync witnesses, `host:port`; at least two. Replaces the platform's list for the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2), inner(regex(pattern = r"^[^\s:/,]+:[0-9]{1,5}$")))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub rpc_servers: Option<Vec<String>>,
    /// Image of the bootstrap Job, which replays from the snapshot to its target height before the
    /// node starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = r"^[^\s[:cntrl:]]*$"))]
    pub bootstrap_image: Option<String>,
}

/// A snapshot in the platform's bucket.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct S3Snapshot {
    /// Highest height to restore.
    #[schemars(range(min = 1))]
    pub target_height: i64,
}

/// Whether the node creates snapshots for other nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotGeneration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tendermint: Option<TendermintSnapshots>,
}

/// State-sync snapshots created by the chain process.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TendermintSnapshots {
    /// Number of snapshots to keep; at least two when they are published.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub keep_recent: i32,
    /// Marks the pod for the job that uploads snapshots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub publish: Option<Switch>,
}

/// Export of replay results.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ResultExport {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shadow_result: Option<ShadowResult>,
}

/// Comparison of results with those of another node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ShadowResult {
    /// RPC of the node to compare with.
    #[schemars(length(min = 1))]
    pub canonical_rpc: String,
}

/// An RPC node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FullNodeSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_generation: Option<SnapshotGeneration>,
}

/// A node that keeps all history.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ArchiveSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_generation: Option<SnapshotGeneration>,
}

/// A node that replays blocks.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ReplayerSpec {
    pub snapshot: SnapshotSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_export: Option<ResultExport>,
}

/// A validator.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("has(self.signingKey) == has(self.nodeKey)")
    .message("signingKey and nodeKey must be set together or not at all"))]
#[x_kube(validation = Rule::new(
    "!has(self.signingKey) || !has(self.nodeKey) || !has(self.signingKey.secret) \
     || !has(self.nodeKey.secret) \
     || self.signingKey.secret.secretName != self.nodeKey.secret.secretName"
).message("signingKey and nodeKey must name different Secrets"))]
#[x_kube(validation = Rule::new(
    "!has(self.operatorKeyring) || !has(self.operatorKeyring.secret) || ( \
     (!has(self.signingKey) || !has(self.signingKey.secret) \
      || self.operatorKeyring.secret.secretName != self.signingKey.secret.secretName) \
     && (!has(self.nodeKey) || !has(self.nodeKey.secret) \
      || self.operatorKeyring.secret.secretName != self.nodeKey.secret.secretName) \
     && self.operatorKeyring.secret.secretName \
      != self.operatorKeyring.secret.passphraseSecretRef.secretName)"
).message("operatorKeyring must name a Secret of its own, apart from signingKey, nodeKey and its passphrase"))]
#[x_kube(validation = Rule::new(
    "!has(self.operatorKeyring) || !has(self.operatorKeyring.secret) || ( \
     (!has(self.signingKey) || !has(self.signingKey.secret) \
      || self.operatorKeyring.secret.passphraseSecretRef.secretName \
       != self.signingKey.secret.secretName) \
     && (!has(self.nodeKey) || !has(self.nodeKey.secret) \
      || self.operatorKeyring.secret.passphraseSecretRef.secretName \
       != self.nodeKey.secret.secretName))"
).message("the operatorKeyring passphrase must be in a Secret apart from signingKey and nodeKey"))]
#[serde(rename_all = "camelCase")]
pub struct ValidatorSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotSource>,
    /// Set by the fleet that runs the genesis ceremony.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub genesis_ceremony: Option<GenesisCeremony>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<KeySource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_key: Option<KeySource>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator_keyring: Option<OperatorKeyring>,
}

/// A seed node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SeedSpec {
    pub node_key: KeySource,
}

/// Source of a key file.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(validation = Rule::new("has(self.secret)")
    .message("exactly one key source must be set: secret"))]
#[serde(rename_all = "camelCase")]
pub struct KeySource {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretKeySource>,
}

/// A Secret in the node's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeySource {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("secretName is immutable"))]
    pub secret_name: String,
}

/// The keyring that signs governance transactions.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OperatorKeyring {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<KeyringSecret>,
}

/// A keyring kept in a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyringSecret {
    /// Name of the Secret with the files of the keyring.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("secretName is immutable"))]
    pub secret_name: String,
    /// Key of the keyring that signs.
    #[serde(default = "default_key_name")]
    #[schemars(length(max = 64), regex(pattern = r"^[a-zA-Z0-9_-]+$"))]
    pub key_name: String,
    /// The Secret with the passphrase of the keyring.
    pub passphrase_secret_ref: PassphraseRef,
    /// Also mounts the keyring into the container of the chain process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seid_mount: Option<bool>,
}

/// Default name of the key that signs governance transactions.
pub const DEFAULT_KEY_NAME: &str = "node_admin";

fn default_key_name() -> String {
    DEFAULT_KEY_NAME.to_owned()
}

/// One key of a Secret.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PassphraseRef {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("secretName is immutable"))]
    pub secret_name: String,
    /// Key of the Secret that has the passphrase.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Parameters of this validator in the genesis of a new chain.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GenesisCeremony {
    /// Chain id of the new chain.
    #[schemars(length(min = 1))]
    pub chain_id: String,
    /// Amount that the validator stakes, with its denomination.
    #[schemars(length(min = 1))]
    pub staking_amount: String,
    /// Balance of the validator's account, with its denomination.
    #[schemars(length(min = 1))]
    pub account_balance: String,
    /// Number of the validator among those of the ceremony.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub index: i32,
}

/// Default port of the sidecar.
pub const DEFAULT_SIDECAR_PORT: i32 = 7777;

fn default_sidecar_port() -> i32 {
    DEFAULT_SIDECAR_PORT
}

/// The sidecar container.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SidecarSpec {
    /// Image; the platform's when empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), regex(pattern = r"^[^\s[:cntrl:]]*$"))]
    pub image: Option<String>,
    /// Port on the pod's loopback address.
    #[serde(default = "default_sidecar_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,
}

impl Default for SidecarSpec {
    fn default() -> Self {
        Self { image: None, port: DEFAULT_SIDECAR_PORT, resources: None }
    }
}

/// Requests and limits of a container, as in a pod.
///
/// The generated type of Kubernetes cannot decode a quantity written as a number, which is valid in
/// a custom resource and stored as it was written.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct Resources {
    /// Resource claims of the pod that the container uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub claims: Option<Vec<ResourceClaim>>,
    /// Limits by the name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, QuantityText>>,
    /// Requests by the name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, QuantityText>>,
}

/// A resource claim of the pod that the container uses.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceClaim {
    /// Name of the claim in the pod.
    pub name: String,
    /// Request within the claim; all of them if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
}

/// A quantity as it was written: text or a whole number.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(untagged)]
pub enum QuantityText {
    Number(i64),
    Text(String),
}

impl std::fmt::Display for QuantityText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl JsonSchema for QuantityText {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Quantity".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$",
        })
    }
}

/// The node's data volume.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
// `import` is a reserved word of CEL; a rule must use the escaped name of the field.
#[x_kube(validation = Rule::new("!has(oldSelf.__import__) || has(self.__import__)")
    .message("import cannot be removed once it is set"))]
#[x_kube(validation = Rule::new("!has(self.__import__) || !has(self.storageClassName)")
    .message("storageClassName is for a volume that the operator creates: remove it, or import"))]
#[serde(rename_all = "camelCase")]
pub struct DataVolumeSpec {
    /// Use an existing claim. The operator never deletes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import: Option<ImportVolume>,
    /// What happens to the claim that the operator created when the node is deleted. By default the
    /// claim of a node that signs is retained, because it has the record of what was signed, and that
    /// of other nodes is treated as the platform configuration defines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,
    /// Storage class of the volume, in place of the platform's. Only a new volume gets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub storage_class_name: Option<String>,
    /// Size of the volume, in place of the platform's. Only a new volume gets it; for an imported
    /// claim it is the smallest capacity that is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<QuantityText>,
}

/// What happens to the claim that the operator created when the node is deleted: `Delete` deletes
/// it, `Retain` keeps it without an owner. By default the claim of a node that signs is retained,
/// because it has the record of what was signed; for others the platform configuration decides.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// The claim is deleted.
    Delete,
    /// The claim stays, without an owner.
    Retain,
}

/// An existing claim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ImportVolume {
    /// Name of the claim, in the namespace of the node.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("pvcName is immutable"))]
    pub pvc_name: String,
}
