//! The API of sei-operator: the types that users write, the records in status, and all names.
//!
//! What it is for: the custom resource types of group `sei.io/v1alpha1`, the plan and task records
//! in their status, the conditions with every reason the operator may report, and the names,
//! labels and annotations that connect generated objects with their owner.
//!
//! What it never does: call a cluster, read a clock, draw a random number, make a decision.
//!
//! Invariants:
//! - Records of the Go operator decode here, and records written here decode in the Go operator:
//!   field names, enum values and task ids are the same. Guarded by `task_ids_match_the_published_vectors` and
//!   `a_plan_of_the_go_operator_decodes`.
//! - The CRDs in `config/crd` are generated from these types. Guarded by `crds_are_current`.
//! - Every reason that a condition can carry is in one table. Guarded by
//!   `every_reason_is_explained`.
//! - Every metric is in one table and is registered from it. Guarded by
//!   `what_is_scraped_is_what_the_table_has`.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct inside a private block")]

pub mod condition;
pub mod fleet;
pub mod key;
pub mod metric;
pub mod mode;
pub mod names;
pub mod node;
pub mod plan;
pub mod pod;
pub mod rbac;
pub mod status;
pub mod task;

pub use fleet::{SeiNodeDeployment, SeiNodeDeploymentSpec, SeiNodeDeploymentStatus};
pub use mode::Mode;
pub use node::{SeiNode, SeiNodeSpec};
pub use plan::{PlannedTask, TaskPlan};
pub use status::SeiNodeStatus;
