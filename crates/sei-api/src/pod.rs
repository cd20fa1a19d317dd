//! Where the pod of a node runs and what it uses, where the platform configuration does not fit.
//!
//! The names are those of a pod in Kubernetes. Every field is optional; without it the platform
//! configuration decides.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::node::QuantityText;

/// Where the pod of a node may run.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SchedulingSpec {
    /// Node pool of the pod, in place of the platform's pool for the mode: the value of the pool's
    /// label and of its taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub node_pool: Option<String>,
    /// Labels that the Kubernetes node must have, in addition to the platform's; a label of the same
    /// key takes precedence over the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = serde_json::json!({
        "type": "string", "maxLength": 63,
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    })))]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Taints that the pod tolerates, in addition to the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub tolerations: Option<Vec<Toleration>>,
    /// Priority class of the pod, in place of the platform's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub priority_class_name: Option<String>,
    /// How pods are spread over machines or zones, as in a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["topologyKey".into(), "whenUnsatisfiable".into()]))]
    pub topology_spread_constraints: Option<Vec<TopologySpread>>,
}

/// How pods with some labels are spread over the values of a label of Kubernetes nodes.
// In the order of the JSON names: digests of it are stored.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    pub label_selector: SpreadSelector,
    /// How many more pods one place may have than another.
    #[schemars(range(min = 1, max = 1000))]
    pub max_skew: i32,
    /// Label of Kubernetes nodes whose values are the places, e.g. `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 317))]
    pub topology_key: String,
    /// Whether a pod that no place suits waits, or runs anyway.
    pub when_unsatisfiable: WhenUnsatisfiable,
}

/// The pods that are counted, in the namespace of the node.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SpreadSelector {
    /// Labels that a pod must all have; those of the node's own pod are `podLabels` and the
    /// operator's, e.g. `sei.io/chain`.
    #[schemars(extend("minProperties" = 1, "maxProperties" = 32, "additionalProperties" = serde_json::json!({
        "type": "string", "maxLength": 63,
        "pattern": "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
    })))]
    pub match_labels: BTreeMap<String, String>,
}

/// What happens to a pod that no place suits.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnsatisfiable {
    DoNotSchedule,
    ScheduleAnyway,
}

impl WhenUnsatisfiable {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DoNotSchedule => "DoNotSchedule",
            Self::ScheduleAnyway => "ScheduleAnyway",
        }
    }
}

/// A taint that a pod tolerates, as in a pod.
// In the order of the JSON names: digests of it are stored.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[x_kube(validation = Rule::new("has(self.key) || (has(self.operator) && self.operator == 'Exists')")
    .message("a toleration without a key needs operator Exists"))]
#[x_kube(validation = Rule::new("!has(self.value) || !has(self.operator) || self.operator != 'Exists'")
    .message("a toleration with operator Exists has no value"))]
#[x_kube(validation = Rule::new(
    "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')"
).message("tolerationSeconds needs effect NoExecute"))]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Effect of the taint; every effect if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// Key of the taint; every key if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 317))]
    pub key: Option<String>,
    /// Whether the value must be equal, or the taint only exist; `Equal` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<TolerationOperator>,
    /// How long a pod with effect `NoExecute` stays; for ever if it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
    /// Value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
}

/// Effect of a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// How a toleration is compared with a taint.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TolerationOperator {
    Equal,
    Exists,
}

impl TaintEffect {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

impl TolerationOperator {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "Equal",
            Self::Exists => "Exists",
        }
    }
}

/// A Secret with credentials of a registry, in the node's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct PullSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// Requests and limits of the chain process.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct ChainResources {
    /// Limits by the name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<BTreeMap<String, QuantityText>>,
    /// Requests by the name of the resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, QuantityText>>,
}
