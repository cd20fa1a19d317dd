//! The API of sei-operator: what users write, what is stored, and what things are called.
//!
//! What it is for: the custom resource types of group `sei.io/v1alpha1`, the plan and task records
//! kept in their status, the conditions with every reason the operator may give, and the names,
//! labels and annotations that tie generated objects to their owner.
//!
//! What it never does: talk to a cluster, read a clock, draw a random number, decide anything.
//!
//! Invariants:
//! - Records written by the peer decode, and records written here decode in the peer: field names,
//!   enum values and task ids are its own. Guarded by `task_ids_match_the_published_vectors` and
//!   `a_peer_plan_decodes`.
//! - The CRDs in `config/crd` are generated from these types. Guarded by `crds_are_current`.
//! - Every reason a condition can carry stands in one table. Guarded by
//!   `every_reason_is_explained`.
//! - Every metric stands in one table, from which it is registered. Guarded by
//!   `what_is_scraped_is_what_the_table_has`.

#![allow(unreachable_pub, reason = "KubeSchema repeats each struct inside a private block")]

pub mod condition;
pub mod metric;
pub mod mode;
pub mod names;
pub mod node;
pub mod plan;
pub mod rbac;
pub mod status;
pub mod task;

pub use mode::Mode;
pub use node::{SeiNode, SeiNodeSpec};
pub use plan::{PlannedTask, TaskPlan};
pub use status::SeiNodeStatus;
