//! A real control plane for tests, benchmarks and the sandbox: etcd, kube-apiserver and
//! kube-controller-manager, booted in seconds and gone without a trace.
//!
//! What it is for: showing that what was thought out without a server holds on one. `bin_dir` finds
//! the programs (`cargo xtask control-plane` builds them), `ControlPlane::boot` starts them,
//! `AuditLog` tells what the operator asked for.
//!
//! What it never does: run containers, reach for a cluster that exists already, or leave processes
//! behind, however the process that booted it ends.
//!
//! Invariants:
//! - When a plane is dropped, its processes have ended and its folder is gone. Guarded by
//!   `a_dropped_plane_leaves_nothing`.
//! - The same holds when the process that booted it is killed: each component has a watcher that
//!   reads a pipe held by us, and a pipe closes however its holder ends. Guarded by
//!   `a_killed_owner_leaves_nothing`.
//! - A component that fails is told with the end of its log. Guarded by
//!   `a_component_that_fails_is_told_with_its_log`.

mod audit;
mod digest;
mod kubelet;
mod lane;
mod plane;
mod programs;
mod sidecar;

pub use audit::{AuditEntry, AuditLog};
pub use kubelet::{Addresses, Behaviour, ClaimRule, Kubelet, Rule, RuleId, Timing};
pub use lane::{Lane, LaneError};
pub use plane::{ControlPlane, Error, Options, User};
pub use programs::{ProgramsError, bin_dir};
pub use sidecar::{Doing, GateOpening, Sidecars, Submission};
