//! The decisions of sei-operator: plain functions from what was observed to what is to be done.
//!
//! What it is for: rendering a node's objects, deciding whether a running pod is the desired one,
//! choosing and building plans, and stepping through their tasks.
//!
//! What it never does: IO of any kind, read a clock, draw an id, iterate in random order. Time,
//! ids and everything seen come in as values; what is to be done goes out as values.
//!
//! Where it is decided:
//! - "when exactly is a pod deleted?": [`tasks::replace_pod`];
//! - "why does this node roll, or not?": [`planner`];
//! - "what is in the pod?": [`render`].
//!
//! Invariants:
//! - The same inputs give the same bytes, in any order of maps. Guarded by
//!   `map_order_never_changes_the_bytes`.
//! - A template that renders differently than before is a choice, never an accident. Guarded by
//!   `rendered_templates_are_as_pinned`.
//! - A decision that was carried out is not made again. Guarded by
//!   `deciding_again_changes_nothing`.
//! - No plan that the planner builds breaks the rules of plans. Guarded by
//!   `no_reachable_plan_breaks_a_rule`.
//! - Nothing but the status of a node with `sei.io/hands-off` is written. Guarded by
//!   `only_the_status_of_a_hands_off_node_is_written`, `a_deleted_node_that_is_hands_off_is_kept` and
//!   `a_fleet_leaves_a_hands_off_node_as_it_is`.
//! - From every reachable state the last edit arrives. Guarded by
//!   `the_last_edit_is_applied_from_every_state`.

pub mod adoption;
pub mod budget;
pub mod chain;
pub mod check_plan;
pub mod deletion;
pub mod desired;
pub mod diff;
pub mod endpoint;
pub mod executor;
pub mod fingerprint;
pub mod fleet;
pub mod hands_off;
pub mod inputs;
pub mod merge_patch;
pub mod packed;
pub mod pass;
pub mod peers;
pub mod planner;
pub mod platform;
pub mod pre_pull;
pub mod quantity;
pub mod render;
pub mod request;
pub mod seen;
pub mod shared;
pub mod signers;
pub mod signing_key;
pub mod signing_record;
pub mod snapshot;
pub mod start_check;
pub mod summary;
pub mod tasks;
pub mod template;
pub mod timing;
pub mod view;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod hostile;
mod place;
#[cfg(test)]
mod testing;
