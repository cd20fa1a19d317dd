//! Tests of the planner's rules. Ids in comments name the behaviour in `tests/ids.toml`.

mod drift;
mod halt;
mod init;
mod lifecycle;
mod ready;
mod reasons;
mod repairs;
mod safety;

use sei_api::condition::{self, ConditionType};
use sei_api::plan::TaskPlan;
use sei_api::status::SeiNodeStatus;

use super::*;
use crate::check_plan::check_plan;

/// The status after a decision.
fn after(snapshot: &Snapshot) -> SeiNodeStatus {
    let mut after = snapshot.clone();
    plan(snapshot).apply(&mut after.status, snapshot.generation(), snapshot.now);
    super::ready::record(&mut after);
    after.status
}

/// The plan that a decision starts; every plan is linted.
fn started(snapshot: &Snapshot) -> Option<TaskPlan> {
    match plan(snapshot).plan {
        PlanMove::Start(plan) => {
            let notes = check_plan(&plan);
            assert!(notes.is_empty(), "{notes:?}");
            Some(*plan)
        }
        PlanMove::Keep | PlanMove::Clear => None,
    }
}

fn tasks(plan: &TaskPlan) -> Vec<&str> {
    plan.tasks.iter().map(|task| task.r#type.as_str()).collect()
}

/// The tasks of the plan that a decision starts, in one line.
fn started_tasks(snapshot: &Snapshot) -> String {
    started(snapshot).map_or_else(|| "none".to_owned(), |plan| tasks(&plan).join(" "))
}

/// A condition as `Status/Reason: message`.
fn condition_text(status: &SeiNodeStatus, kind: ConditionType) -> String {
    condition::find(&status.conditions, kind).map_or_else(
        || "absent".to_owned(),
        |found| format!("{}/{}: {}", found.status, found.reason, found.message),
    )
}

/// The report of a decision, in one line.
fn report(snapshot: &Snapshot) -> String {
    plan(snapshot).report.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The update plan of a node in its early shape.
const UPDATE: &str = "config-patch config-validate apply-statefulset apply-service replace-pod \
                      observe-image mark-ready";
