//! The thin shell around the decisions: reads, writes and the sidecar client.
//!
//! What it is for: performing one request of [`sei_plan`] at a time against the API server or a
//! pod's sidecar, and writing a node's status.
//!
//! What it never does: decide. There is no `if` about nodes, plans or pods here, only about how a
//! call went. Nothing is repeated by itself, and nothing waits without a deadline.
//!
//! Invariants:
//! - A status is written as the difference to the stored one, with its resourceVersion, and not at
//!   all if there is none. Guarded by `an_equal_status_is_no_difference`.
//! - The sidecar's answers are read up to a cap, and no redirect is followed. Guarded by
//!   `an_endless_answer_is_cut` and `a_redirect_is_not_followed`.

pub mod call;
pub mod compare;
pub mod perform;
pub mod sidecar;
pub mod status;

pub use perform::Cluster;
