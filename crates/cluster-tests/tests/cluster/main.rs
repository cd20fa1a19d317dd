//! One program, so that all tests share one control plane.

mod admission;
mod alerts;
mod broken;
mod by_hand;
mod controllers;
mod crashes;
mod creation;
mod dashboard;
mod documents;
mod documents;
mod hands;
mod install;
mod kubelet;
mod modes;
mod pauses;
mod plane;
mod process;
mod recording;
mod rest;
mod rollback;
mod signers;
mod statefulset_alert;
mod updates;
mod world;
