//! One program, so that all tests share one control plane.

mod admission;
mod adoption;
mod broken;
mod by_hand;
mod controllers;
mod crashes;
mod creation;
mod hands;
mod kubelet;
mod modes;
mod pauses;
mod plane;
mod plugin;
mod process;
mod rest;
mod rollback;
mod rollout;
mod signers;
mod updates;
mod world;
