//! Stories on a real kubelet, with the real sidecar, proxy and chain in the pods. `cargo xtask
//! real-node` builds them and runs this program; its tests share one control plane and one Kubernetes
//! node.

mod chain;
mod chain_upgrade;
mod lost_machine;
mod modes;
mod narration;
mod rig;
mod single_node;
mod story;
