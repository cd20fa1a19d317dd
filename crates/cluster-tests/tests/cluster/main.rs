//! One program, so that all tests share one control plane.

mod admission;
mod broken;
mod controllers;
mod creation;
mod hands;
mod kubelet;
mod plane;
mod rollback;
mod updates;
