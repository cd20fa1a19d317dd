//! `SeiNodeDeployment`: a fleet of nodes from one template.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::node::{SeiNodeSpec, Switch};
use crate::plan::TaskPlan;
use crate::status::SeiNodePhase;

/// The most nodes of a fleet.
pub const REPLICAS_MAX: usize = 100;

/// A fleet of nodes from one template.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sei.io",
    version = "v1alpha1",
    kind = "SeiNodeDeployment",
    plural = "seinodedeployments",
    singular = "seinodedeployment",
    shortname = "snd",
    category = "sei",
    namespaced,
    status = "SeiNodeDeploymentStatus",
    derive = "PartialEq",
    derive = "Default",
    doc = "A fleet of Sei chain nodes from one template.",
    // An object stored before this rule must still get its status.
    validation = Rule::new("size(self.metadata.name) <= 49 || has(self.status)")
        .message("metadata.name must have at most 49 characters: a dash and an ordinal make it the name of a node"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Rollout",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"RolloutInProgress\")].reason"
    ),
    printcolumn(name = "Paused", type_ = "boolean", json_path = ".spec.paused"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Target",
        type_ = "string",
        json_path = ".status.rollout.targetHash",
        priority = 1
    )
)]
#[x_kube(validation = Rule::new("!has(self.genesis) || has(self.template.spec.validator)")
    .message("genesis needs template.spec.validator"))]
#[x_kube(validation = Rule::new(
    "has(oldSelf.genesis) ? has(self.genesis) && self.genesis == oldSelf.genesis : !has(self.genesis)"
).message("spec.genesis is immutable: a chain begins once"))]
#[x_kube(validation = Rule::new(
    "!has(self.template.spec.validator) || !has(self.template.spec.validator.signingKey) \
     || self.replicas == 1"
).message("a fleet whose template has a signingKey must have replicas: 1, because one key must not sign twice"))]
#[x_kube(validation = Rule::new(
    "!has(self.template.spec.seed) || self.replicas == 1"
).message("a fleet of seeds must have replicas: 1, because its nodes would share one nodeKey"))]
#[x_kube(validation = Rule::new(
    "!has(self.template.spec.dataVolume) || !has(self.template.spec.dataVolume.__import__) \
     || self.replicas == 1"
).message("a fleet that imports a claim must have replicas: 1, because a claim has one user"))]
#[x_kube(validation = Rule::new(
    "self.template.spec.chainId == oldSelf.template.spec.chainId"
).message("template.spec.chainId is immutable: nodes cannot move to another chain"))]
#[x_kube(validation = Rule::new(
    "has(self.template.spec.fullNode) == has(oldSelf.template.spec.fullNode) \
     && has(self.template.spec.archive) == has(oldSelf.template.spec.archive) \
     && has(self.template.spec.replayer) == has(oldSelf.template.spec.replayer) \
     && has(self.template.spec.validator) == has(oldSelf.template.spec.validator) \
     && has(self.template.spec.seed) == has(oldSelf.template.spec.seed)"
).message("the mode of template.spec is immutable: nodes cannot change their mode"))]
#[x_kube(validation = Rule::new(
    "!has(self.updateStrategy.inPlace) || !has(self.updateStrategy.inPlace.health) \
     || !has(self.updateStrategy.inPlace.health.requireSameAppHash) \
     || !self.updateStrategy.inPlace.health.requireSameAppHash \
     || self.replicas > (has(self.updateStrategy.inPlace.canary) \
        && self.updateStrategy.inPlace.canary.replicas > 1 \
        ? self.updateStrategy.inPlace.canary.replicas : 1)"
).message("requireSameAppHash needs more replicas than canaries, because a canary is compared with another node"))]
#[serde(rename_all = "camelCase")]
pub struct SeiNodeDeploymentSpec {
    /// Number of nodes.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 100))]
    pub replicas: i32,
    /// What every node is made from.
    pub template: NodeTemplate,
    /// What happens to the nodes when the fleet is deleted, and to their volumes when it shrinks.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
    /// The ceremony by which the nodes begin a new chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub genesis: Option<GenesisSpec>,
    /// Exposure outside of the cluster. Kept, and not acted on yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networking: Option<NetworkingSpec>,
    /// How a changed template reaches the nodes.
    pub update_strategy: UpdateStrategy,
    /// Stops every node of the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

fn one() -> i32 {
    1
}

/// What every node is made from.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NodeTemplate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    pub spec: SeiNodeSpec,
}

/// Labels and annotations of every node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateMetadata {
    /// Labels of every node and of its pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

/// What happens to the nodes of a deleted fleet.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeletionPolicy {
    /// The nodes are deleted.
    #[default]
    Delete,
    /// The nodes stay, without an owner; volumes of nodes removed by scaling down stay too.
    Retain,
}

/// How a changed template reaches the nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[x_kube(validation = Rule::new("!has(self.inPlace) || self.type == 'InPlace'")
    .message("inPlace needs type: InPlace"))]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    pub r#type: UpdateStrategyType,
    /// Limits of a rollout. Without them every node gets the template at once, and rolls under the
    /// budget of its chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_place: Option<InPlace>,
    /// Holds the rollout: no further node gets the template. Nodes keep running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UpdateStrategyType {
    /// Each node keeps its name and volume; its pod is replaced.
    #[default]
    InPlace,
}

/// Limits of a rollout.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InPlace {
    /// How many nodes the rollout may have down at once: a number or a percentage of the replicas, at
    /// least one. All of them without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new(
        "type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')"
    ).message("maxUnavailable must be a number of at least 1, or a percentage from 1% to 100%"))]
    pub max_unavailable: Option<IntOrString>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// The first nodes, which have to be healthy before others follow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// How long a node may take to be healthy before the rollout has failed on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub progress_deadline_seconds: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_failure: Option<OnFailure>,
}

/// The order in which nodes get a changed template.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    #[default]
    Ordinal,
    ReverseOrdinal,
}

/// The first nodes of a rollout.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Canary {
    #[serde(default)]
    #[schemars(range(min = 0, max = 100))]
    pub replicas: i32,
    /// How long they must be healthy before others follow.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub bake_seconds: i32,
}

/// When an updated node counts as healthy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Its pod must be Ready; so by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_pod_ready: Option<bool>,
    /// Its sidecar must report that it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_sidecar_ready: Option<bool>,
    /// The height of a canary must grow, and the app hash that it computes must be that of a node that
    /// has not got the template. The first node is then a canary if there is no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_same_app_hash: Option<bool>,
    /// How long it must be so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub bake_seconds: Option<i32>,
}

/// What happens to the rest of a rollout after a node failed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// No further node gets the template, until the node recovers or the template changes.
    #[default]
    Halt,
    Continue,
}

/// The ceremony by which a chain begins.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GenesisSpec {
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub chain_id: String,
    #[serde(default = "staking_amount")]
    pub staking_amount: String,
    #[serde(default = "account_balance")]
    pub account_balance: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accounts: Option<Vec<GenesisAccount>>,
    /// Dotted paths of the genesis file and their values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_object")]
    pub overrides: Option<BTreeMap<String, Value>>,
    /// Accepted and not used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ceremony_duration: Option<String>,
}

fn staking_amount() -> String {
    "10000000usei".to_owned()
}

fn account_balance() -> String {
    "1000000000000000000000usei,1000000000000000000000uusdc,1000000000000000000000uatom".to_owned()
}

fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// An account of the genesis file.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct GenesisAccount {
    #[schemars(length(min = 1))]
    pub address: String,
    #[schemars(length(min = 1))]
    pub balance: String,
}

/// Exposure outside of the cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkingSpec {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Switch>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<Switch>,
}

/// The observed state of a fleet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SeiNodeDeploymentStatus {
    /// Generation of the spec that the last reconcile used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Hash of the template that every node has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// Hash of the template at which nodes of another operator were taken over. A node that differs
    /// from it only in what that operator never passed on is left as it is until the template changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted_template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<FleetPhase>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// Nodes in phase `Running`; their pods may be down, see the condition `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Nodes that run the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// Every node, by ordinal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub nodes: Vec<FleetNode>,
    /// The active plan of the genesis ceremony.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<TaskPlan>,
    /// What outlasts a failed plan of the ceremony.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceremony: Option<CeremonyStatus>,
    /// SHA-256 of the genesis file, as the sidecar that assembled it reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub genesis_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "genesisS3URI")]
    pub genesis_s3_uri: Option<String>,
    /// Names of the nodes that the fleet controls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incumbent_nodes: Vec<String>,
    /// Present while a changed template is not on every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networking_status: Option<NetworkingStatus>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub internal_service: Option<InternalService>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub per_pod_services: Vec<PerPodService>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<FleetEndpoints>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// What outlasts a failed plan of the genesis ceremony.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CeremonyStatus {
    /// Failed plans in a row.
    pub failures: i32,
    /// The next plan begins at this time.
    pub retry_at: Time,
    /// The node whose failure ended the plan. The next plan begins when it is no longer failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_node: Option<String>,
    /// A failed plan has assembled the genesis; no later plan does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assembled: Option<bool>,
}

/// What a rollout does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RolloutState {
    Progressing,
    /// No further node gets the template because its user holds the rollout or stops the fleet.
    Paused,
    /// No further node gets the template because a node failed with it.
    Halted,
}

impl RolloutState {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Progressing => "Progressing",
            Self::Paused => "Paused",
            Self::Halted => "Halted",
        }
    }
}

impl SeiNodeDeploymentSpec {
    /// Whether the user holds rollouts; nodes keep running.
    pub fn rollouts_are_paused(&self) -> bool {
        self.update_strategy.paused == Some(true)
    }
}

impl SeiNodeDeployment {
    /// What the reported rollout does; `None` without a rollout.
    pub fn rollout_state(&self) -> Option<RolloutState> {
        let rollout = self.status.as_ref()?.rollout.as_ref()?;
        let is_paused = self.spec.paused == Some(true) || self.spec.rollouts_are_paused();
        Some(match rollout.halt_reason {
            _ if is_paused => RolloutState::Paused,
            Some(_) => RolloutState::Halted,
            None => RolloutState::Progressing,
        })
    }
}

/// Phase of a fleet.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum FleetPhase {
    Pending,
    Initializing,
    Ready,
    Upgrading,
    Paused,
    Degraded,
    Failed,
    Terminating,
}

impl FleetPhase {
    pub const ALL: [Self; 8] = [
        Self::Pending,
        Self::Initializing,
        Self::Ready,
        Self::Upgrading,
        Self::Paused,
        Self::Degraded,
        Self::Failed,
        Self::Terminating,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Initializing => "Initializing",
            Self::Ready => "Ready",
            Self::Upgrading => "Upgrading",
            Self::Paused => "Paused",
            Self::Degraded => "Degraded",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}

/// One node of a fleet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FleetNode {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SeiNodePhase>,
    /// Image that the node was observed running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_image: Option<String>,
    /// How far the template has reached it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<NodeState>,
    /// Hash of the template that the fleet gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_hash: Option<String>,
    /// When it got the current template; absent before, and once it is healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub released_at: Option<Time>,
    /// It was down when it got the template, so it uses none of the rollout's limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_down: Option<bool>,
    /// Why it is in that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// How far the template has reached a node.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum NodeState {
    /// It has an older template.
    Outdated,
    /// It has the template and does not run it yet.
    Updating,
    /// It runs the template and is not healthy yet.
    Updated,
    Healthy,
    /// It failed with the template, or took too long.
    Broken,
}

/// A rollout that is not complete.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Hash of the template that the rollout brings.
    pub target_hash: String,
    pub started_at: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healthy_replicas: Option<i32>,
    /// Nodes that have the template and are not healthy yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch: Vec<String>,
    /// When a node last became healthy or got the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,
    /// Why no further node gets the template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halt_reason: Option<String>,
    /// The app hashes of canaries, if `health.requireSameAppHash` is set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["node".into()]))]
    pub app_hashes: Vec<AppHashComparison>,
}

/// The app hash of a canary, and how it compares with that of another node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AppHashComparison {
    /// Name of the canary.
    pub node: String,
    /// Uid of its pod.
    pub pod: String,
    /// Height at which the pod was first read. Only a later one shows what its image computes.
    pub first_height: i64,
    /// Height after which its application had this hash.
    pub height: i64,
    pub app_hash: String,
    /// Absent until it is compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<AppHashResult>,
    /// The node that it was compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_with: Option<String>,
    /// The hash of that node, if it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
}

/// How the app hash of a canary compares.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppHashResult {
    Equal,
    Different,
}

/// Addresses outside of the cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkingStatus {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<RouteStatus>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub p2p_endpoints: Vec<P2pEndpoint>,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteStatus {
    pub hostname: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct P2pEndpoint {
    pub ordinal: i32,
    pub sei_node_name: String,
    pub hostname: String,
}

/// The Service in front of all nodes.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct InternalService {
    pub name: String,
    pub namespace: String,
    pub ports: InternalPorts,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct InternalPorts {
    pub rpc: i32,
    pub evm_http: i32,
    pub rest: i32,
}

impl Default for InternalPorts {
    fn default() -> Self {
        Self { rpc: 26657, evm_http: 8545, rest: 1317 }
    }
}

/// The Service of one node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct PerPodService {
    pub name: String,
    pub namespace: String,
    pub ports: PerPodPorts,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PerPodPorts {
    pub evm_http: i32,
    pub evm_ws: i32,
}

impl Default for PerPodPorts {
    fn default() -> Self {
        Self { evm_http: 8545, evm_ws: 8546 }
    }
}

/// URLs inside the cluster.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FleetEndpoints {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tendermint_rpc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tendermint_rest: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<NodeEndpoints>,
}

#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct NodeEndpoints {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evm_json_rpc: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evm_ws: Option<String>,
}

/// The reasons of the condition `Ready` of a fleet.
pub const READY_REASONS: [&str; 9] = [
    "AllNodesReady",
    "NodesNotReady",
    "RolloutInProgress",
    "RolloutHalted",
    "RolloutPaused",
    "Paused",
    "NodeConflict",
    "ServiceConflict",
    "Refused",
];

/// The types of conditions on a fleet.
pub mod condition_type {
    /// The kstatus summary: every node is Ready on the current template.
    pub const READY: &str = "Ready";
    pub const NODES_READY: &str = "NodesReady";
    pub const NETWORKING_READY: &str = "NetworkingReady";
    pub const GENESIS_COMPLETE: &str = "GenesisCeremonyComplete";
    pub const PLAN_IN_PROGRESS: &str = "PlanInProgress";
    pub const ROLLOUT_IN_PROGRESS: &str = "RolloutInProgress";
    pub const PAUSED: &str = "Paused";
}
