//! One program, so that all tests share one control plane.

mod admission;
mod controllers;
mod kubelet;
mod plane;
