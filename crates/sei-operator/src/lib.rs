//! The operator's process, in parts: what surrounds the decisions and the calls.
//!
//! What it is for: the flags, the leader's lease, the metrics, the two small HTTP servers.
//!
//! What it never does: decide about a node. That is the part of [`sei_plan`]; carrying it out is
//! the part of [`sei_exec`].
//!
//! Invariants:
//! - Whether another holder's lease has run out is measured on the own monotonic clock since its
//!   record last changed; its timestamps are never compared with ours. Guarded by
//!   `next_move_follows_the_table` and `a_holder_that_keeps_renewing_is_never_replaced`.
//! - A leader that could not renew stops leading before anybody else may start. Guarded by
//!   `a_leader_gives_up_before_its_lease_runs_out`.
//! - The gauges of a node come from its last observed status alone, so that nothing can drift away
//!   from it by counting. Guarded by `observing_twice_changes_nothing`.

pub mod flags;
pub mod lease;
pub mod metrics;
pub mod serve;
