//! One program, so that all tests share one control plane.

mod admission;
mod by_hand;
mod controllers;
mod creation;
mod kubelet;
mod modes;
mod plane;
mod process;
mod updates;
mod world;
