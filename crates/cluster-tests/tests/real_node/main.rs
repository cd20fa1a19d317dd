//! Stories on a real kubelet. `cargo xtask real-node` builds its programs and runs this program.

mod rig;
mod story;
