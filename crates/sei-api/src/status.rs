//! The status of a node, written by the operator.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::plan::TaskPlan;

/// The observed state of the node, and the operator's plan and last update.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SeiNodeStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SeiNodePhase>,
    /// When `phase` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_transition_time: Option<Time>,
    /// Generation of the spec that the last reconcile used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The chain that the node's StatefulSet runs; before there is one, the chain of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<String>,
    /// The mode that the node's StatefulSet runs; before there is one, the mode of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Image that the chain process was observed running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_image: Option<String>,
    /// Image that the sidecar was observed running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_sidecar_image: Option<String>,
    /// Fingerprint of the rendered pod template from which the observed pod was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template_hash: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_template: Option<ObservedTemplate>,
    /// Present while the desired pod differs from the running one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending_update: Option<PendingUpdate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_update: Option<LastUpdate>,
    /// What prevents the node from making progress, and since when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// The conditions of the node; the reference in the docs lists every reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// The active plan; absent when there is nothing to do.
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
    /// Digest of the consensus address of the private signing key: two nodes with the same digest
    /// would sign as the same validator, even if the names of their Secrets differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_identity: Option<String>,
    /// The claim of the data volume, once the operator has created or validated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_claim: Option<ClaimRef>,
}

/// Phase of a node.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum SeiNodePhase {
    /// No plan yet: the spec, or an object that the node needs, prevents the first plan.
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

/// The template from which the observed pod was created.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ObservedTemplate {
    /// Revision of the pod; `podTemplateHash` is valid for this revision only.
    pub revision: String,
    /// Uid of the observed pod.
    #[serde(rename = "podUID")]
    pub pod_uid: String,
    /// Digest of all parts of the spec that can affect a template.
    pub inputs_hash: String,
    /// Version of the operator that rolled the pod.
    pub operator_version: String,
    /// When the pod was observed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_at: Option<Time>,
    /// Digests of the configuration outside the template, by name of the setting.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    /// Image of the chain process that was desired. Admission may have rewritten that of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_image: Option<String>,
    /// Image of the sidecar that was desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub desired_sidecar_image: Option<String>,
}

/// An update that is not complete.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PendingUpdate {
    /// Fingerprint of the desired template; an approval must name it.
    pub target_hash: String,
    /// Digest of the inputs when the difference was first observed, to detect a later change of the
    /// spec.
    pub base_inputs_hash: String,
    pub cause: Cause,
    pub state: UpdateState,
    /// Why the update is in that state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When this target was first desired.
    pub since: Time,
    /// The fields that differ: at most 20, never the content of a Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<FieldChange>,
    /// Number of failed attempts at this target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<i32>,
    /// When the update is retried after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Time>,
    /// The nodes, with their namespaces, whose failed rolls halt the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_by: Option<String>,
    /// An approval that names another target and therefore has no effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused_approval: Option<String>,
}

/// Why the desired pod differs from the running one.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum Cause {
    /// The node's spec changed.
    #[default]
    Spec,
    /// The same spec renders differently: a new operator or platform configuration.
    Operator,
    /// Another operator created the pod from a different template.
    Adoption,
}

/// State of a pending update.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum UpdateState {
    /// The update waits for a slot of its chain.
    Queued,
    /// The update waits for an approval, the end of a pause, or the next change of the spec.
    Held,
    Rolling,
    /// The update failed and is retried at `nextAttemptAt`.
    Retrying,
}

/// One field that differs between two pod templates.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldChange {
    /// Path of the field, e.g. `containers[seid].env[HOME]`.
    pub path: String,
    /// Value in the running pod; absent if the field is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Desired value; absent if the field is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// The last update that ended.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct LastUpdate {
    /// Id of the update's plan.
    #[serde(rename = "planID")]
    pub plan_id: String,
    pub cause: Cause,
    /// Fingerprint before the update.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Desired fingerprint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// When its plan was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When its plan ended.
    pub finished_at: Time,
    pub outcome: UpdateOutcome,
    /// Why the update did not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Whether the update held a slot of its chain's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<bool>,
    /// When the node was first observed Ready after the update; the update keeps its slot until then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_at: Option<Time>,
}

/// Outcome of an update.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateOutcome {
    Complete,
    Failed,
    Superseded,
}

/// Something that prevents a node from making progress.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Blocked {
    /// A reason of the condition `Stalled`.
    pub reason: String,
    /// When the cause was first observed; `Stalled` becomes True once it has lasted for the reason's
    /// deadline.
    pub since: Time,
    /// Details, with the names of the affected objects.
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
    /// When the workflow occupied the node.
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

/// URLs of a running RPC or archive node. A hint for discovery, not a sign of health.
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
