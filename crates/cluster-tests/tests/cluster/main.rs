//! One program, so that all tests share one control plane.

mod admission;
mod broken;
mod controllers;
mod crashes;
mod creation;
mod hands;
mod kubelet;
mod pauses;
mod plane;
mod rest;
mod rollback;
mod signers;
mod updates;
