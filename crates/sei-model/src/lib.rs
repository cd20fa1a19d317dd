//! A model.
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
