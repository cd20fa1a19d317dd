//! One program, so that all tests share one control plane.

mod admission;
mod adoption;
mod broken;
mod by_hand;
mod controllers;
mod crashes;
mod creation;
mod documents;
mod hands;
mod install;
mod kubelet;
mod modes;
mod pauses;
mod plane;
mod process;
mod rest;
mod rollback;
mod rollout;
mod signers;
mod updates;
mod world;
