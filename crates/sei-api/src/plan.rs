//! Plans as they are stored in a node's status.
//!
//! The format is that of the Go operator, so that each operator can resume the plans of the other.
//! Our own fields are additional and optional, and the Go operator ignores them.

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
/// The id can be derived before the side effect, so that a crash between a submission and the write
/// that records it cannot cause a second submission.
pub fn task_id(plan_id: &str, task_type: &str, index: usize) -> String {
    Uuid::new_v5(&TASK_ID_NAMESPACE, format!("{plan_id}/{task_type}/{index}").as_bytes())
        .to_string()
}

/// An ordered list of tasks with one goal. It is written to status before its first task runs.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TaskPlan {
    /// Random id of the plan; the ids of its tasks are derived from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub phase: PlanPhase,
    /// The tasks in order; the first task that is not Complete is the current one.
    #[serde(default)]
    pub tasks: Vec<PlannedTask>,
    /// Phase of the node once the plan is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_phase: Option<SeiNodePhase>,
    /// Phase of the node if the plan fails; without it the node keeps its phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_phase: Option<SeiNodePhase>,
    /// Index of the failed task, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_task_index: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_task_detail: Option<FailedTaskDetail>,
    /// Purpose of the plan. Absent on plans of the Go operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PlanKind>,
    /// The desired state when the plan was created; it never changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<PlanTarget>,
    /// The StatefulSet as returned by the plan's own apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Applied>,
    /// Sidecar tasks of superseded plans that were unfinished when last observed. The operator
    /// deletes those that still run before this plan submits a task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<String>,
    /// When the plan was created.
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

    /// Whether the plan has a complete task of this type.
    pub fn has_completed(&self, task_type: TaskType) -> bool {
        self.tasks.iter().any(|task| task.is(task_type) && task.status == TaskStatus::Complete)
    }

    pub fn has(&self, task_type: TaskType) -> bool {
        self.tasks.iter().any(|task| task.is(task_type))
    }

    /// When the plan started, if known.
    pub fn started_at(&self) -> Option<Timestamp> {
        let submitted = || self.tasks.first().and_then(|task| task.submitted_at.as_ref());
        self.created_at.as_ref().or_else(submitted).map(|time| time.0)
    }
}

/// Phase of a plan. The Go operator accepts no other values, so a superseded plan is `Failed`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanPhase {
    Active,
    Complete,
    Failed,
}

/// Purpose of a plan.
#[derive(
    Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum PlanKind {
    /// Starts a new node.
    Init,
    /// Moves a running node to another template.
    NodeUpdate,
    /// Opens the sidecar's readiness gate after a restart.
    MarkReady,
    /// Writes a template to the StatefulSet and changes no pod: restores the template of the running
    /// pod while an update is held, or prepares a stopped node for its next start.
    ApplyTemplate,
}

/// The desired state that a plan works towards.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PlanTarget {
    /// Fingerprint of the pod template.
    pub hash: String,
    /// Image of the chain process.
    pub image: String,
    /// Image of the sidecar.
    pub sidecar_image: String,
    /// Generation of the node for which the plan was created.
    pub generation: i64,
    pub cause: Cause,
    /// Value of the `sei.io/retry` annotation that caused the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<String>,
    /// Fingerprint of the pod's template when the plan was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Digests of the configuration outside the template, as the plan's tasks write it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub config: BTreeMap<String, String>,
    /// Digest of the inputs from which the template was rendered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inputs_hash: Option<String>,
    /// Whether the plan holds a slot of its chain's budget.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<bool>,
    /// Whether that slot was granted although none was free, because the node was down. The plan is
    /// superseded if the node is Ready before its pod is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot_while_down: Option<bool>,
    /// Chain of the node; an init plan is worthless for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_id: Option<String>,
    /// Role of the node, by its mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// Image of the bootstrap Job that the plan creates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootstrap_image: Option<String>,
    /// Uid of the pod to replace although it has the desired template: its configuration changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces_pod: Option<String>,
    /// Whether an earlier plan has replayed to the target height on the node's volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
}

/// The StatefulSet after the plan's own apply.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Its uid.
    pub uid: String,
    /// Its generation after the apply.
    pub generation: i64,
    /// Revision of the pod that the plan works with, once its pod was replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// The task whose failure ended a plan.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FailedTaskDetail {
    /// Type of the task.
    pub r#type: String,
    /// Id of the task, also in the sidecar.
    pub id: String,
    /// Why the task failed.
    pub error: String,
    /// Number of retries.
    pub retry_count: i32,
    /// Maximum number of retries.
    pub max_retries: i32,
}

/// One task of a plan.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PlannedTask {
    /// Type of the task. Text, not an enum: a plan of a newer operator may have types that this
    /// operator does not support.
    pub r#type: String,
    /// Derived from the plan's id, so that the task is never submitted twice.
    pub id: String,
    pub status: TaskStatus,
    /// Parameters, fixed when the plan is created and never recomputed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_params")]
    pub params: Option<Value>,
    /// When the task first ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submitted_at: Option<Time>,
    /// The last error of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Maximum number of retries after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<i32>,
    /// Number of retries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    /// The task does not run again before this time, even if the node is reconciled earlier.
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

/// Status of a task.
///
/// `Running` is read but never written for a node's plan: the Go operator does not execute a task
/// that is not `Pending`, and its plan would hang after a switch back.
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

    /// A plan as the Go operator stores it: title-case and null params, no fields of our own.
    const GO_OPERATOR_PLAN: &str = r#"{
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
    fn a_plan_of_the_go_operator_decodes() {
        let plan: TaskPlan = serde_json::from_str(GO_OPERATOR_PLAN).unwrap();
        assert_eq!(plan.current().unwrap().0, 1);
        assert_eq!(plan.kind, None);
        assert_eq!(plan.tasks[3].params, None, "the literal null reads as no parameters");
        assert_eq!(plan.started_at().unwrap().to_string(), "2026-08-05T10:00:00Z");
    }

    #[test]
    fn a_plan_of_the_go_operator_is_encoded_unchanged() {
        let plan: TaskPlan = serde_json::from_str(GO_OPERATOR_PLAN).unwrap();
        let mut expected: Value = serde_json::from_str(GO_OPERATOR_PLAN).unwrap();
        expected["tasks"][3].as_object_mut().unwrap().remove("params");
        assert_eq!(serde_json::to_value(&plan).unwrap(), expected);
    }

    #[test]
    fn an_empty_plan_has_an_empty_list_of_tasks() {
        let plan: TaskPlan = serde_json::from_str(r#"{"phase": "Active"}"#).unwrap();
        assert_eq!(serde_json::to_string(&plan).unwrap(), r#"{"phase":"Active","tasks":[]}"#);
    }
}
