//! The rules of each kind of plan.

use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::task::TaskType;

use super::active::{self, Fate};
use crate::snapshot::Snapshot;

use TaskType as T;

/// The rules of one kind of plan. `build` assembles its tasks; `check_plan` checks them by this.
pub struct Rules {
    /// Its label in metrics, by the Go operator's names.
    pub metric: &'static str,
    /// Tasks that it holds exactly once.
    pub once: &'static [TaskType],
    pub last: TaskType,
    /// Whether it holds nothing but the last task.
    pub single: bool,
    /// Whether it has a target to compare the desired state with.
    pub has_target: bool,
    /// Whether its failure fails the node.
    pub fails_node: bool,
    /// What becomes of an active plan.
    pub(super) fate: fn(&Snapshot, &TaskPlan) -> Fate,
}

const ROLL: &[TaskType] = &[T::ApplyStatefulSet, T::ApplyService, T::ReplacePod, T::ObserveImage];

const INIT: Rules = Rules {
    metric: "init",
    once: &[
        T::EnsureDataPvc,
        T::ApplyRbacProxyConfig,
        T::ApplyStatefulSet,
        T::ApplyService,
        T::ReplacePod,
        T::ObserveImage,
    ],
    last: T::MarkReady,
    single: false,
    has_target: true,
    fails_node: true,
    fate: active::fate_of_init,
};

const NODE_UPDATE: Rules = Rules {
    metric: "node-update",
    once: ROLL,
    last: T::MarkReady,
    single: false,
    has_target: true,
    fails_node: false,
    fate: active::fate_of_update,
};

const MARK_READY: Rules = Rules {
    metric: "mark-ready-reapply",
    once: &[],
    last: T::MarkReady,
    single: true,
    has_target: false,
    fails_node: false,
    fate: active::fate_of_single_task,
};

const APPLY_TEMPLATE: Rules = Rules {
    metric: "unknown",
    once: &[],
    last: T::ApplyStatefulSet,
    single: true,
    has_target: true,
    fails_node: false,
    fate: active::fate_of_single_task,
};

/// The rules of this kind of plan.
pub const fn rules(kind: PlanKind) -> &'static Rules {
    match kind {
        PlanKind::Init => &INIT,
        PlanKind::NodeUpdate => &NODE_UPDATE,
        PlanKind::MarkReady => &MARK_READY,
        PlanKind::ApplyTemplate => &APPLY_TEMPLATE,
    }
}
