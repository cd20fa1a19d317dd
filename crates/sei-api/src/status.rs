//! What the operator reports of a node.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::TaskPlan;

/// What the operator saw and did.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SeiNodeStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SeiNodePhase>,
    /// When `phase` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_time: Option<Time>,
    /// Generation that the last pass acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Which of the modes the spec sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Image that the chain process was seen running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_image: Option<String>,
    /// Image that the sidecar was seen running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_sidecar_image: Option<String>,
    /// Fingerprint of the rendered pod template that the running pod was observed to be made from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<ObservedTemplate>,
    /// Present while the desired pod differs from the running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_update: Option<PendingUpdate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
    /// What keeps the node from getting on, since it was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// What holds of the node now; every reason stands in the reference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The plan that runs now; absent at rest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<TaskPlan>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adopted_workflow: Option<AdoptedWorkflow>,
    /// Peers as `nodeId@host:port`, sorted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_peers: Option<Vec<String>>,
    /// Never written; kept for objects that carry it.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "resolvedRPCWitnesses")]
    pub resolved_rpc_witnesses: Option<Vec<String>>,
    /// State-sync witnesses; empty unless `StateSyncReady` is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved_state_syncers: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stateful_set: Option<StatefulSetRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<Endpoint>,
    /// Digest of the consensus address in the signing key: two nodes with the same one would sign
    /// as the same validator, whatever their Secrets are called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_identity: Option<String>,
    /// The data volume's claim, once the operator has made or checked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_claim: Option<ClaimRef>,
}

/// Where a node stands in its life.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SeiNodePhase {
    /// No plan yet: something in the spec or around the node holds its first one.
    Pending,
    Initializing,
    Running,
    Failed,
    Terminating,
}

impl SeiNodePhase {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Initializing => "Initializing",
            Self::Running => "Running",
            Self::Failed => "Failed",
            Self::Terminating => "Terminating",
        }
    }
}

/// What the running pod was made from, as it was seen.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ObservedTemplate {
    /// Revision of the pod; `podTemplateHash` speaks for this one only.
    pub revision: String,
    /// The pod that was looked at.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Digest of everything in the spec that may land in a template.
    pub inputs_hash: String,
    /// Version of the operator that rolled it.
    pub operator_version: String,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
    /// Digests of the configuration that is not in the template, by the name of the setting.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
}

/// An update that has not arrived yet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PendingUpdate {
    /// Fingerprint of the desired template; an approval names it.
    pub target_hash: String,
    /// Inputs at the time the difference was first seen; a later change of the spec shows by it.
    pub base_inputs_hash: String,
    pub cause: Cause,
    pub state: UpdateState,
    /// Why it is in that state, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When this target was first desired.
    pub since: Time,
    /// The fields that differ: at most 20, never the content of a Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FieldChange>,
    /// Failed attempts at this target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// When it is tried again after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Time>,
    /// The nodes, with their namespaces, whose failed rolls keep the chain waiting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
    /// An approval that was given for another target and counts for nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_approval: Option<String>,
}

/// Why the desired pod differs from the running one.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Cause {
    /// Somebody changed the node's spec.
    Spec,
    /// The same spec renders differently: a new operator or platform configuration.
    Operator,
    /// The pod was there before this operator and was made from another template.
    Adoption,
}

/// What happens with a pending update.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum UpdateState {
    /// Waits for a slot of its chain.
    Queued,
    /// Waits for somebody: an approval, the end of a pause, the next change of the spec.
    Held,
    Rolling,
    /// Failed, and tried again at `nextAttemptAt`.
    Retrying,
}

/// One field that differs between two pod templates.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldChange {
    /// e.g. `containers[seid].env[HOME]`.
    pub path: String,
    /// Value in the running pod; absent if the field is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Desired value; absent if the field goes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// The last update that ended.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// The plan that carried it out.
    #[serde(rename = "planID")]
    pub plan_id: String,
    pub cause: Cause,
    /// Fingerprint before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Fingerprint that was desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// When its plan was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When its plan ended.
    pub finished_at: Time,
    pub outcome: UpdateOutcome,
    /// Why it did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Whether the update held a slot of its chain's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<bool>,
    /// When the node was first seen Ready after it; until then the slot is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
}

/// How an update ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    Complete,
    Failed,
    Superseded,
}

/// Something that keeps a node from getting on.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Blocked {
    /// A reason of the condition `Stalled`.
    pub reason: String,
    /// First sight; `Stalled` turns True once the reason's deadline has passed since then.
    pub since: Time,
    /// What exactly, with the names of the things concerned.
    pub message: String,
}

/// The workflow that occupies the node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AdoptedWorkflow {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Since when.
    pub adopted_at: Time,
}

/// The node's StatefulSet.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct StatefulSetRef {
    /// Its name, the same as the node's.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The node's claim.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimRef {
    /// Its name.
    pub name: String,
    /// Its uid; a claim of the same name with another uid is another volume.
    pub uid: String,
}

/// Where a running RPC or archive node serves. A hint for discovery, not a sign of health.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// URL of the EVM JSON-RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evm_json_rpc: Option<String>,
    /// URL of the EVM websocket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evm_ws: Option<String>,
    /// URL of the Tendermint RPC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tendermint_rpc: Option<String>,
    /// URL of the REST API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tendermint_rest: Option<String>,
}
