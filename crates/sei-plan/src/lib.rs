//! What to do with a node, decided from what was seen of it.
//!
//! What it is for: plans, their steps and the objects they render, as plain functions.
//!
//! What it never does: IO of any kind, read a clock, draw a random number.
