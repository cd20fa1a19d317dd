//! The environment of the operator without IO: API server, controllers, kubelets, sidecars, users, and
//! the process of the operator itself, at the seam of requests and outcomes.
//!
//! What it is for: property tests of decisions, and a campaign of faults by seed.
//!
//! What it never does: IO of any kind, read a clock, iterate in random order. A seed gives the same run
//! on every machine.
//!
//! What it leaves out: fleets, peers, the RPC of nodes, managed fields, and the decision when a node is
//! enqueued; every node is reconciled at any time.
//!
//! Invariants:
//! - Every seed keeps the rules of [`safety`], and converges after it is healed. Guarded by
//!   `every_seed_keeps_the_rules_and_converges`.
//! - The seeds reach the states that the rules are about. Guarded by `the_seeds_reach_every_mark`.
//! - A seed gives the same run each time. Guarded by `a_seed_gives_the_same_run_each_time`.

pub mod caches;
pub mod campaign;
pub mod cluster;
pub mod controllers;
pub mod fixture;
mod ledger;
pub mod operator;
pub mod pod;
pub mod random;
pub mod render;
pub mod safety;
pub mod server;
mod sidecar;
