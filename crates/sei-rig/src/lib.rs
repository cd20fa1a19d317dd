//! A real control plane for tests, benchmarks and the sandbox: etcd, kube-apiserver and
//! kube-controller-manager, booted in seconds and gone without a trace.
//!
//! What it is for: showing that what was thought out without a server holds on one. `bin_dir` finds
//! the programs (`cargo xtask control-plane` builds them), `ControlPlane::boot` starts them,
//! `AuditLog` tells what the operator asked for. A `Lane` adds what a bare plane lacks: the
//! `Kubelet` says of pods what a real one would say and serves their sidecars, and `StatusChecker` is a
//! witness of what nodes claim. A `World` is one scenario's namespace on a lane.
//!
//! What it never does: run containers or the operator, reach for a cluster that exists already, or leave processes
//! behind, however the process that booted it ends.
//!
//! Invariants:
//! - When a plane is dropped, its processes have ended and its folder is gone. Guarded by
//!   `a_dropped_plane_leaves_nothing`.
//! - The same holds when the process that booted it is killed: each component has a watcher that
//!   reads a pipe held by us, and a pipe closes however its holder ends. Guarded by
//!   `a_killed_owner_leaves_nothing`.
//! - A pod's chain process is held until this very pod's sidecar says that it may start. Guarded by
//!   `a_pod_is_not_ready_until_its_own_sidecar_runs_mark_ready`.
//! - Records of tasks live as long as the claim, the ready flag as long as the process. Guarded by
//!   `task_records_survive_the_pod_and_the_ready_flag_does_not` and
//!   `task_records_are_lost_with_their_volume`.
//! - A claimed image that no pod has run is found. Guarded by
//!   `a_current_image_that_no_pod_ran_is_a_violation`.
//! - A component that fails is told with the end of its log. Guarded by
//!   `a_component_that_fails_is_told_with_its_log`.

mod audit;
mod digest;
mod kubelet;
mod lane;
mod plane;
mod programs;
mod sidecar;
mod status_checker;
mod world;

pub use audit::{AuditEntry, AuditLog};
pub use kubelet::{Addresses, Behaviour, ClaimRule, Kubelet, Rule, RuleId, Timing};
pub use lane::{Lane, LaneError};
pub use plane::{ControlPlane, Error, Options, User};
pub use programs::{ProgramsError, bin_dir, cargo, tool};
pub use sidecar::{Doing, FirstAnswer, GateOpening, Sidecars, Submission};
pub use status_checker::{Stamp, StatusChecker};
pub use world::{Watched, World, WorldError, platform};
