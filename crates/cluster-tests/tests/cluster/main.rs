//! One program, so that all tests share one control plane.

mod admission;
mod controllers;
mod creation;
mod kubelet;
mod plane;
mod updates;
