//! One program, so that all tests share one control plane.

mod admission;
mod adoption;
mod at_rest;
mod back_off;
mod broken;
mod by_hand;
mod controllers;
mod crashes;
mod creation;
mod deaths;
mod hands;
mod inventory;
mod kubelet;
mod modes;
mod moments;
mod pauses;
mod plane;
mod process;
mod rollback;
mod rollout;
mod signers;
mod updates;
mod world;
