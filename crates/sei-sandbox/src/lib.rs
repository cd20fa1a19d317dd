//! What the sandbox program and the benchmarks share.
//!
//! What it is for: measuring what a reconcile costs the operator, independent of the machine.
//! [`memory`] is an API server in memory, on a thread of its own; [`cost`] runs an operator against
//! it on the calling thread, so that a counter of that thread counts the operator alone.
//!
//! What it never does: replace a real API server in tests of behaviour. There is no validation, no
//! defaulting and no field ownership beyond what the operator reads back.
//!
//! Invariants:
//! - A reconcile and an image update cost no more than their limits. Guarded by
//!   `a_reconcile_and_an_image_update_stay_within_their_limits`.

pub mod cost;
pub mod memory;
