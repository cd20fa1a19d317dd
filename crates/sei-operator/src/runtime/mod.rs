//! What every controller of this process shares: the reconcile loop of one kind, caches, per-object
//! state, events, metrics, servers, the lease, and shutdown. Nothing here knows a kind.

pub mod access;
pub mod cache;
pub mod certificate;
pub mod client;
pub mod controller;
pub mod events;
pub mod guarded;
pub mod lease;
pub mod metrics;
mod namespaces;
pub mod serve;
pub mod state;
pub mod write_log;

#[cfg(test)]
mod tests;
