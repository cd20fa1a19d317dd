//! Tests of the steps, one file per task. Those of `replace-pod` are beside it.

mod apply;
mod bootstrap;
mod claim;
mod common;
mod keys;
mod observe_image;
pub(crate) mod reasons;
mod sidecar;
