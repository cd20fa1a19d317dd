//! The objects of a node.

/// Ports of the pod. The chain's own are those of its configuration library.
pub mod port {
    pub const EVM_RPC: i32 = 8545;
    pub const EVM_WS: i32 = 8546;
    pub const GRPC: i32 = 9090;
    pub const REST: i32 = 1317;
    pub const P2P: i32 = 26656;
    pub const RPC: i32 = 26657;
    pub const METRICS: i32 = 26660;
    /// The auth proxy before the sidecar, in plain text.
    pub const API: i32 = 8443;
    pub const COSMOS_METRICS: i32 = 9300;

    /// What the sidecar cannot have.
    pub const TAKEN: [i32; 9] =
        [EVM_RPC, EVM_WS, GRPC, REST, P2P, RPC, METRICS, API, COSMOS_METRICS];
}
