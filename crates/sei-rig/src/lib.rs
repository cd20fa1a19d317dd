//! A real control plane for tests, benchmarks and the sandbox: etcd, kube-apiserver and
//! kube-controller-manager, started in seconds and removed completely.
//!
//! What it is for: verifying on a real server what other tests show without one. `bin_dir` finds
//! the programs (`cargo xtask control-plane` builds them), `ControlPlane::boot` starts them,
//! `AuditLog` reads the operator's requests. A `Lane` adds what a bare plane lacks: the `Kubelet`
//! reports the status of pods as a real one would and serves their sidecars, and `StatusChecker`
//! checks the claims in nodes' statuses. A `World` is the namespace of one scenario on a lane.
//!
//! A `RealNode` runs containers: a real kubelet, as root on Debian.
//!
//! What it never does: run the operator, use an existing cluster, or leave processes behind when the
//! process that booted it ends in any way.
//!
//! Invariants:
//! - When a plane is dropped, its processes have ended and its folder is removed. Guarded by
//!   `a_dropped_plane_leaves_nothing`.
//! - The same holds when the process that booted it is killed: each component has a watcher that
//!   reads a pipe held by that process, and the kernel closes the pipe when it ends. Guarded by
//!   `a_killed_owner_leaves_nothing`.
//! - The same holds for a real node, its containers, mounts, cgroups and network. Guarded by
//!   `a_dropped_node_leaves_nothing`.
//! - A pod's chain process starts only after the sidecar of the same pod was marked ready. Guarded by
//!   `a_pod_is_not_ready_until_its_own_sidecar_runs_mark_ready`.
//! - Task records last as long as the claim, the ready flag as long as the process. Guarded by
//!   `task_records_survive_the_pod_and_the_ready_flag_does_not` and
//!   `task_records_are_lost_with_their_volume`.
//! - A claimed image that no pod has run is found. Guarded by
//!   `a_current_image_that_no_pod_ran_is_a_violation`.
//! - The error of a failed component contains the end of its log. Guarded by
//!   `the_error_of_a_failed_component_contains_its_log`.

mod audit;
mod component;
mod digest;
mod kubelet;
mod lane;
mod plane;
mod ports;
mod programs;
mod real_node;
mod rpc;
mod sidecar;
mod status_checker;
mod world;

pub use audit::{AuditEntry, AuditLog};
pub use kubelet::{Addresses, Behaviour, ClaimRule, Kubelet, Rule, RuleId, Timing};
pub use lane::{Lane, LaneError};
pub use plane::{ControlPlane, Error, Options, User};
pub use ports::{TakenPort, taken_ports};
pub use programs::{ProgramsError, bin_dir, cargo, real_node_programs, tool};
pub use real_node::{Network, RealNode, RealNodeError, use_memory_beside};
pub use rpc::RpcFault;
pub use sidecar::{Doing, FirstAnswer, GateOpening, Received, Sidecars, Submission};
pub use status_checker::{Stamp, StatusChecker};
pub use world::{Watched, World, WorldError, platform};
