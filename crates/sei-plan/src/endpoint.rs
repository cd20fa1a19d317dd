//! The addresses at which a node serves.

use sei_api::status::Endpoint;
use sei_api::{Mode, SeiNode};

/// The addresses at which a node serves, for the modes that serve.
pub fn endpoint(node: &SeiNode) -> Option<Endpoint> {
    if !matches!(node.spec.mode()?, Mode::FullNode | Mode::Archive) {
        return None;
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    let at = |scheme: &str, port: u16| Some(format!("{scheme}://{name}.{namespace}.svc:{port}"));
    Some(Endpoint {
        evm_json_rpc: at("http", 8545),
        evm_ws: at("ws", 8546),
        tendermint_rpc: at("http", 26657),
        tendermint_rest: at("http", 1317),
    })
}

#[cfg(test)]
mod tests {
    use sei_api::node::{FullNodeSpec, SeiNodeSpec, ValidatorSpec};

    use super::*;

    // N7, N8, N26
    #[test]
    fn only_nodes_that_serve_have_an_endpoint() {
        let spec =
            SeiNodeSpec { full_node: Some(FullNodeSpec::default()), ..SeiNodeSpec::default() };
        let mut node = SeiNode::new("a", spec);
        node.metadata.namespace = Some("ns".into());
        let addresses = endpoint(&node).unwrap();
        assert_eq!(addresses.evm_json_rpc.as_deref(), Some("http://a.ns.svc:8545"));
        assert_eq!(addresses.evm_ws.as_deref(), Some("ws://a.ns.svc:8546"));
        node.spec.full_node = None;
        node.spec.validator = Some(ValidatorSpec::default());
        assert_eq!(endpoint(&node), None);
    }
}
