//! Plans as they are stored in a node's status.
//!
//! The shape is the peer's: an operator of either kind resumes what the other one left. What is
//! ours is additive and optional, and the peer ignores it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::status::{Cause, SeiNodePhase};
use crate::task::TaskType;

/// Namespace of the version 5 ids of tasks.
const TASK_ID_NAMESPACE: Uuid = Uuid::from_u128(0xb7e8_9c3a_4f12_4d8b_9a6e_1c2d_3e4f_5a6b);

/// Id of the task of `task_type` at `index` of a plan.
///
/// Derivable before the side effect, so that a crash between a submission and the write that would
/// have recorded it can never make a second submission.
pub fn task_id(plan_id: &str, task_type: &str, index: usize) -> String {
    Uuid::new_v5(&TASK_ID_NAMESPACE, format!("{plan_id}/{task_type}/{index}").as_bytes())
        .to_string()
}

/// An ordered list of tasks with one aim. It is written to status before its first task runs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TaskPlan {
    /// Drawn anew for every plan; the ids of its tasks derive from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub phase: PlanPhase,
    /// What is done, in order; the first that is not Complete is under way.
    #[serde(default)]
    pub tasks: Vec<PlannedTask>,
    /// Phase of the node once the plan is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_phase: Option<SeiNodePhase>,
    /// Phase of the node if the plan fails; without it the node keeps its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_phase: Option<SeiNodePhase>,
    /// Which task failed, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_task_index: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_task_detail: Option<FailedTaskDetail>,
    /// What the plan is for. Absent on plans of the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PlanKind>,
    /// What the plan leads to; it never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PlanTarget>,
    /// What the plan's own apply of the StatefulSet returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Sidecar tasks of superseded plans that were last seen unfinished. They are looked up, and
    /// deleted if they still run, before this plan submits anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<String>,
    /// When it was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

impl TaskPlan {
    /// The first task that is not complete: the only one that may run.
    pub fn current(&self) -> Option<(usize, &PlannedTask)> {
        self.tasks.iter().enumerate().find(|(_, task)| task.status != TaskStatus::Complete)
    }

    pub fn is_active(&self) -> bool {
        self.phase == PlanPhase::Active
    }

    /// Whether a task of this type stands in the plan and is complete.
    pub fn has_completed(&self, task_type: TaskType) -> bool {
        self.tasks.iter().any(|task| task.is(task_type) && task.status == TaskStatus::Complete)
    }

    pub fn has(&self, task_type: TaskType) -> bool {
        self.tasks.iter().any(|task| task.is(task_type))
    }

    /// When the plan began, as far as it is known.
    pub fn started_at(&self) -> Option<Timestamp> {
        let submitted = || self.tasks.first().and_then(|task| task.submitted_at.as_ref());
        self.created_at.as_ref().or_else(submitted).map(|time| time.0)
    }
}

/// Where a plan stands. The peer knows no other values, so a superseded plan is `Failed`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanPhase {
    Active,
    Complete,
    Failed,
}

/// What a plan is for.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum PlanKind {
    /// Brings a new node up.
    Init,
    /// Brings a running node to another template.
    NodeUpdate,
    /// Opens the sidecar's gate again after a restart.
    MarkReady,
    /// Writes a template to the StatefulSet and touches no pod: puts back the one of the running
    /// pod while an update is held, or readies a stopped node for its next start.
    ApplyTemplate,
}

/// What a plan leads to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanTarget {
    /// Fingerprint of the pod template.
    pub hash: String,
    /// Image of the chain process.
    pub image: String,
    /// Image of the sidecar.
    pub sidecar_image: String,
    /// Generation of the node that the plan was built for.
    pub generation: i64,
    pub cause: Cause,
    /// Value of the `sei.io/retry` annotation that the plan answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// Fingerprint that the pod was seen at when the plan was built.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Digests of the configuration outside of the template, as the plan's tasks write it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    /// Digest of the inputs that the template was rendered from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_hash: Option<String>,
    /// Whether the plan holds a slot of its chain's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<bool>,
}

/// The StatefulSet as the plan's own apply left it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its uid.
    pub uid: String,
    /// Its generation after the apply.
    pub generation: i64,
}

/// The task that failed a plan.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FailedTaskDetail {
    /// What kind of task.
    pub r#type: String,
    /// Its id, under which the sidecar knows it.
    pub id: String,
    /// Why it failed.
    pub error: String,
    /// How often it was repeated.
    pub retry_count: i32,
    /// How often it may be repeated.
    pub max_retries: i32,
}

/// One task of a plan.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlannedTask {
    /// Text, not an enum: a plan of a newer operator may hold types that this one does not know.
    pub r#type: String,
    /// Derived from the plan's id, so that it is never submitted twice.
    pub id: String,
    pub status: TaskStatus,
    /// Frozen when the plan is built, never derived again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_params")]
    pub params: Option<Value>,
    /// When it first ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_at: Option<Time>,
    /// What it met last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How often it may be repeated after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<i32>,
    /// How often it was repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// The next run waits until then, whatever wakes the operator before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<Time>,
}

impl PlannedTask {
    /// A pending task of the plan `plan_id`.
    pub fn pending(
        plan_id: &str,
        index: usize,
        task_type: TaskType,
        params: Value,
        max_retries: i32,
    ) -> Self {
        Self {
            r#type: task_type.as_str().to_owned(),
            id: task_id(plan_id, task_type.as_str(), index),
            status: TaskStatus::Pending,
            params: Some(params),
            submitted_at: None,
            error: None,
            max_retries: (max_retries > 0).then_some(max_retries),
            retry_count: None,
            not_before: None,
        }
    }

    pub fn task_type(&self) -> Option<TaskType> {
        TaskType::parse(&self.r#type)
    }

    pub fn is(&self, task_type: TaskType) -> bool {
        self.r#type == task_type.as_str()
    }

    pub fn is_complete(&self) -> bool {
        self.status == TaskStatus::Complete
    }
}

fn any_params(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// Where a task stands.
///
/// `Running` is read but never written for a node's plan: the peer does not execute a task that is
/// not `Pending`, and would hang on it after a switch back.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskStatus {
    Pending,
    Running,
    Complete,
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_ids_match_the_published_vectors() {
        let plan = "11111111-1111-4111-8111-111111111111";
        for (plan, task_type, index, id) in [
            (plan, "apply-statefulset", 0, "d80e9013-6bab-5855-b043-979aac740e5e"),
            (plan, "mark-ready", 6, "a078f99e-814d-5d7d-a494-90b49b7fedaa"),
            (plan, "configure-genesis", 180, "a0b537df-e09b-5a57-b4ef-117e3251ef05"),
            ("test-plan-retry", "configure-genesis", 0, "52870ba7-7f29-5143-8fa9-c17316f83728"),
            ("plan", "mark-not-ready", 0, "61973b63-999e-5864-87af-24bfaae82d5b"),
            (
                "11111111-2222-4333-8444-555555555555",
                "mark-ready",
                0,
                "27669cc2-ff5c-5954-a251-8491a7bd9284",
            ),
            (
                "11111111-2222-4333-8444-555555555555",
                "config-apply",
                5,
                "9ce1fa13-9abe-55cc-af21-2697559af5a6",
            ),
        ] {
            assert_eq!(task_id(plan, task_type, index), id, "{plan}/{task_type}/{index}");
        }
    }

    /// A plan as the peer stores it: title-case and null params, no fields of ours.
    const PEER_PLAN: &str = r#"{
        "id": "6f1c9c6e-6f64-4c1e-8d52-2f1a2f3b4c5d",
        "phase": "Active",
        "targetPhase": "Running",
        "failedPhase": "Failed",
        "tasks": [
            {"type": "ensure-data-pvc", "id": "a", "status": "Complete",
             "params": {"nodeName": "n", "namespace": "d"},
             "submittedAt": "2026-08-05T10:00:00Z"},
            {"type": "snapshot-restore", "id": "b", "status": "Pending",
             "params": {"TargetHeight": 1200000}},
            {"type": "configure-genesis", "id": "c", "status": "Failed", "error": "no",
             "params": {"ExpectedGenesisHash": ""}, "maxRetries": 180, "retryCount": 3},
            {"type": "mark-ready", "id": "d", "status": "Pending", "params": null}
        ],
        "failedTaskIndex": 2,
        "failedTaskDetail": {"type": "configure-genesis", "id": "c", "error": "no",
                             "retryCount": 3, "maxRetries": 180}
    }"#;

    #[test]
    fn a_peer_plan_decodes() {
        let plan: TaskPlan = serde_json::from_str(PEER_PLAN).unwrap();
        assert_eq!(plan.current().unwrap().0, 1);
        assert_eq!(plan.kind, None);
        assert_eq!(plan.tasks[3].params, None, "the literal null reads as no parameters");
        assert_eq!(plan.started_at().unwrap().to_string(), "2026-08-05T10:00:00Z");
    }

    #[test]
    fn what_the_peer_wrote_is_written_back_unchanged() {
        let plan: TaskPlan = serde_json::from_str(PEER_PLAN).unwrap();
        let mut expected: Value = serde_json::from_str(PEER_PLAN).unwrap();
        expected["tasks"][3].as_object_mut().unwrap().remove("params");
        assert_eq!(serde_json::to_value(&plan).unwrap(), expected);
    }

    #[test]
    fn an_empty_plan_still_has_its_list_of_tasks() {
        let plan: TaskPlan = serde_json::from_str(r#"{"phase": "Active"}"#).unwrap();
        assert_eq!(serde_json::to_string(&plan).unwrap(), r#"{"phase":"Active","tasks":[]}"#);
    }
}
