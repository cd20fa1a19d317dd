//! The thin shell around the decisions: reads, writes and the sidecar client.
//!
//! What it is for: performing one request of [`sei_plan`] at a time against the API server or a
//! pod's sidecar, and writing a node's status.
//!
//! What it never does: decide. It branches on how a call ended, never on nodes, plans or pods. It
//! retries nothing, and every call has a deadline.
//!
//! Invariants:
//! - A status is written as the difference to the stored status, with its resourceVersion. Equal
//!   statuses cause no write. Guarded by `an_equal_status_is_no_difference`.
//! - Responses of a sidecar are read up to a size limit, and no redirect is followed. Guarded by
//!   `a_response_over_the_size_limit_is_refused` and `a_redirect_is_not_followed`.
//! - The RPC of a node is shown no token. Guarded by `the_rpc_is_shown_no_token`.
//! - A sidecar is shown a token that only its own proxy accepts. Guarded by
//!   `a_sidecar_is_shown_a_token_for_its_own_node_only`.

pub mod call;
pub mod compare;
pub mod fleet;
pub mod lean;
pub mod listed;
pub mod perform;
pub mod rpc;
pub mod sidecar;
pub mod status;
pub mod token;
pub mod watched_pod;
pub mod watched_statefulset;

pub use perform::Cluster;
