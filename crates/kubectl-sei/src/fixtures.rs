//! Nodes with the status that the operator writes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_api::node::FullNodeSpec;
use sei_api::plan::{PlanKind, PlanPhase, PlannedTask, TaskPlan, TaskStatus};
use sei_api::status::{
    Cause, FieldChange, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateState,
};
use sei_api::{SeiNodeDeployment, SeiNodeSpec};

pub(crate) const HASH: &str = "v1:1111111111111111111111111111111111111111111111111111111111111111";

/// The current time of every fixture.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

pub(crate) fn ago(seconds: i64) -> Time {
    Time(Timestamp::from_second(1_800_000_000 - seconds).unwrap())
}

/// A node that runs and is in sync.
pub(crate) fn node(name: &str) -> SeiNode {
    let mut node = SeiNode::new(
        name,
        SeiNodeSpec {
            chain_id: "pacific-1".into(),
            image: "registry.example.org/seid:v6.5.1".into(),
            full_node: Some(FullNodeSpec::default()),
            ..SeiNodeSpec::default()
        },
    );
    node.metadata.namespace = Some("demo".into());
    node.metadata.uid = Some(format!("uid-{name}"));
    node.status = Some(SeiNodeStatus {
        phase: Some(SeiNodePhase::Running),
        phase_transition_time: Some(ago(864_000)),
        current_image: Some("registry.example.org/seid:v6.5.1".into()),
        conditions: vec![condition(ConditionType::PodTemplateDrift, "False", "InSync", "")],
        ..SeiNodeStatus::default()
    });
    node
}

pub(crate) fn condition(
    kind: ConditionType,
    status: &str,
    reason: &str,
    message: &str,
) -> Condition {
    Condition {
        type_: kind.as_str().into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: Some(1),
        last_transition_time: ago(300),
    }
}

/// Replaces the condition of the same type.
pub(crate) fn with(mut node: SeiNode, condition: Condition) -> SeiNode {
    let status = node.status.get_or_insert_default();
    status.conditions.retain(|present| present.type_ != condition.type_);
    status.conditions.push(condition);
    node
}

/// The node with the condition `Ready` of this status.
pub(crate) fn ready(mut node: SeiNode, status: &str, message: &str) -> SeiNode {
    let mut ready = condition(ConditionType::Stalled, status, "Reason", message);
    ready.type_ = "Ready".into();
    node.status.get_or_insert_default().conditions.push(ready);
    node
}

/// The node with a pending update of cause `Operator`.
pub(crate) fn pending(node: SeiNode, state: UpdateState, reason: &str, why: &str) -> SeiNode {
    let drift = condition(ConditionType::PodTemplateDrift, "True", reason, why);
    let mut node = with(node, drift);
    let change = FieldChange {
        path: "initContainers[sei-sidecar].image".into(),
        from: Some("registry.example.org/seictl:v1".into()),
        to: Some("registry.example.org/seictl:v2".into()),
    };
    node.status.get_or_insert_default().pending_update = Some(PendingUpdate {
        target_hash: HASH.into(),
        base_inputs_hash: HASH.into(),
        cause: Cause::Operator,
        state,
        reason: (!why.is_empty()).then(|| why.to_owned()),
        since: ago(1800),
        changes: vec![change],
        attempts: None,
        next_attempt_at: None,
        halted_by: None,
        refused_approval: None,
    });
    node
}

/// The node with settings that are applied with its next roll.
pub(crate) fn settings_pending(node: SeiNode) -> SeiNode {
    let mut node = pending(node, UpdateState::Held, "InSync", "arrives with the next roll");
    node = with(node, condition(ConditionType::PodTemplateDrift, "False", "InSync", ""));
    let pending = node.status.get_or_insert_default().pending_update.as_mut().unwrap();
    pending.cause = Cause::Spec;
    pending.changes =
        vec![FieldChange { path: "config.externalAddress".into(), ..FieldChange::default() }];
    node
}

/// An update plan of these tasks; true: complete.
pub(crate) fn plan(tasks: &[(&str, bool)]) -> TaskPlan {
    let task = |(name, complete): &(&str, bool)| PlannedTask {
        r#type: (*name).to_owned(),
        id: (*name).to_owned(),
        status: if *complete { TaskStatus::Complete } else { TaskStatus::Pending },
        params: None,
        submitted_at: None,
        error: None,
        max_retries: None,
        retry_count: None,
        not_before: None,
    };
    TaskPlan {
        id: Some("plan".into()),
        phase: PlanPhase::Active,
        tasks: tasks.iter().map(task).collect(),
        target_phase: Some(SeiNodePhase::Running),
        failed_phase: None,
        failed_task_index: None,
        failed_task_detail: None,
        kind: Some(PlanKind::NodeUpdate),
        target: None,
        applied: None,
        abandoned: Vec::new(),
        created_at: Some(ago(20)),
    }
}

/// A fleet of two nodes whose rollout is halted; its condition `Ready` has this status.
pub(crate) fn fleet(ready: &str) -> SeiNodeDeployment {
    let begun = ago(300);
    let mut fleet: SeiNodeDeployment = serde_json::from_value(serde_json::json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNodeDeployment",
        "metadata": { "name": "edge", "namespace": "demo", "generation": 2 },
        "spec": {
            "replicas": 2, "updateStrategy": { "type": "InPlace" },
            "template": { "spec": { "chainId": "pacific-1", "image": "seid:v2", "fullNode": {} } },
        },
        "status": {
            "replicas": 2, "readyReplicas": 2, "updatedReplicas": 0,
            "nodes": [
                { "name": "edge-0", "state": "Broken", "currentImage": "host/seid:v1",
                  "message": "ImagePullFailed: no such\n image" },
                { "name": "edge-1", "state": "Outdated", "currentImage": "host/seid:v1" },
            ],
            "rollout": { "targetHash": "b", "startedAt": begun, "updatedReplicas": 0,
                "healthyReplicas": 0, "batch": ["edge-0"],
                "haltReason": "edge-0: ImagePullFailed: no such image" },
        },
    }))
    .unwrap();
    let mut condition = condition(ConditionType::Stalled, ready, "RolloutHalted", "edge-0: no");
    condition.type_ = "Ready".into();
    condition.observed_generation = Some(2);
    fleet.status.get_or_insert_default().conditions.push(condition);
    fleet
}
