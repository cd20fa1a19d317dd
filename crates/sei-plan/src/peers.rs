//! Resolves the peers of a node.

use std::collections::{BTreeMap, BTreeSet};

use sei_api::SeiNode;
use sei_api::names::pod_dns;

/// Port of the chain's p2p protocol.
const P2P_PORT: u16 = 26656;

/// The peers of a node as `id@host:port`, sorted and unique.
///
/// `id_of` returns the p2p id of a peer, if it is known. A temporary failure never shrinks the
/// list: a peer with an unknown id keeps its previous entry, and if a source cannot be resolved,
/// every entry is kept.
pub fn resolve(
    node: &SeiNode,
    all: &[&SeiNode],
    id_of: impl Fn(&SeiNode) -> Option<String>,
) -> Vec<String> {
    let before: Vec<&String> =
        node.status.iter().flat_map(|status| status.resolved_peers.iter().flatten()).collect();
    let known: BTreeMap<&str, &String> =
        before.iter().filter_map(|&entry| Some((entry.split_once('@')?.1, entry))).collect();
    let mut entries = BTreeSet::new();
    if node.spec.peers.iter().flatten().any(|source| source.ec2_tags.is_some()) {
        // This operator does not query EC2 yet. Entries that another operator resolved are kept, so
        // that the node does not lose its peers.
        entries.extend(before.iter().map(|&entry| entry.clone()));
    }
    for source in node.spec.peers.iter().flatten() {
        entries.extend(source.r#static.iter().flat_map(|peers| peers.addresses.iter().cloned()));
        if let Some(label) = &source.label {
            for peer in all.iter().filter(|peer| is_selected(node, peer, label)) {
                let address = address_of(peer);
                let entry = id_of(peer).map(|id| format!("{id}@{address}"));
                entries.extend(
                    entry.or_else(|| known.get(address.as_str()).map(|&known| known.clone())),
                );
            }
        }
    }
    entries.into_iter().collect()
}

fn is_selected(node: &SeiNode, peer: &SeiNode, label: &sei_api::node::LabelPeers) -> bool {
    let own = node.metadata.namespace.as_deref().unwrap_or_default();
    let namespace = label.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(own);
    let is_self = peer.metadata.name == node.metadata.name
        && peer.metadata.namespace == node.metadata.namespace;
    let labels = peer.metadata.labels.as_ref();
    let matches = label.selector.iter().all(|(key, value)| {
        labels.and_then(|all| all.get(key)).is_some_and(|found| found == value)
    });
    peer.metadata.namespace.as_deref() == Some(namespace) && !is_self && matches
}

fn address_of(peer: &SeiNode) -> String {
    match peer.spec.external_address.as_deref().filter(|address| !address.is_empty()) {
        Some(address) => address.to_owned(),
        None => address_in_cluster(peer),
    }
}

/// The p2p address of a node for others in the cluster.
pub(crate) fn address_in_cluster(node: &SeiNode) -> String {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    format!("{}:{P2P_PORT}", pod_dns(name, namespace))
}

#[cfg(test)]
mod tests {
    use sei_api::node::{
        Ec2TagPeers, FullNodeSpec, LabelPeers, PeerSource, SeiNodeSpec, StaticPeers,
    };
    use sei_api::status::SeiNodeStatus;

    use super::*;

    fn node(name: &str, namespace: &str) -> SeiNode {
        let spec =
            SeiNodeSpec { full_node: Some(FullNodeSpec::default()), ..SeiNodeSpec::default() };
        let mut node = SeiNode::new(name, spec);
        node.metadata.namespace = Some(namespace.into());
        node.metadata.labels = Some([("tier".to_owned(), "rpc".to_owned())].into());
        node
    }

    fn label(namespace: Option<&str>) -> PeerSource {
        PeerSource {
            label: Some(LabelPeers {
                selector: [("tier".to_owned(), "rpc".to_owned())].into(),
                namespace: namespace.map(str::to_owned),
            }),
            ..PeerSource::default()
        }
    }

    fn id(node: &SeiNode) -> Option<String> {
        node.metadata.name.as_ref().map(|name| format!("id-{name}"))
    }

    // N27, N29, N32
    #[test]
    fn label_peers_are_sorted_and_unique_without_the_node_itself() {
        let mut own = node("a", "ns");
        own.spec.peers = Some(vec![label(None), label(Some("ns")), label(Some("edge"))]);
        let (c, b, namesake) = (node("c", "ns"), node("b", "ns"), node("a", "edge"));
        let entries = resolve(&own, &[&own, &c, &b, &namesake], id);
        assert_eq!(
            entries,
            [
                "id-a@a-0.a.edge.svc.cluster.local:26656",
                "id-b@b-0.b.ns.svc.cluster.local:26656",
                "id-c@c-0.c.ns.svc.cluster.local:26656",
            ]
        );
    }

    // N28, N33
    #[test]
    fn external_addresses_and_static_entries_are_taken_as_they_are() {
        let mut own = node("a", "ns");
        let addresses = vec!["x@host:1".to_owned()];
        let fixed =
            PeerSource { r#static: Some(StaticPeers { addresses }), ..PeerSource::default() };
        own.spec.peers = Some(vec![label(None), fixed]);
        let mut peer = node("b", "ns");
        peer.spec.external_address = Some("b.example.org:26656".into());
        assert_eq!(resolve(&own, &[&own, &peer], id), ["id-b@b.example.org:26656", "x@host:1"]);
    }

    // N31
    #[test]
    fn a_peer_whose_id_is_not_known_keeps_its_entry_and_a_new_one_is_skipped() {
        let mut own = node("a", "ns");
        own.spec.peers = Some(vec![label(None)]);
        let peer = node("b", "ns");
        assert!(resolve(&own, &[&peer], |_| None).is_empty());
        let entry = "old@b-0.b.ns.svc.cluster.local:26656".to_owned();
        own.status = Some(SeiNodeStatus {
            resolved_peers: Some(vec![entry.clone()]),
            ..SeiNodeStatus::default()
        });
        assert_eq!(resolve(&own, &[&peer], |_| None), [entry]);
    }

    #[test]
    fn peers_from_ec2_tags_are_kept() {
        let mut own = node("a", "ns");
        let by_tags = PeerSource { ec2_tags: Some(Ec2TagPeers::default()), ..Default::default() };
        own.spec.peers = Some(vec![by_tags, label(None)]);
        let entry = "id@ec2.example.org:26656".to_owned();
        own.status = Some(SeiNodeStatus {
            resolved_peers: Some(vec![entry.clone()]),
            ..SeiNodeStatus::default()
        });
        let peer = node("b", "ns");
        let found = "id-b@b-0.b.ns.svc.cluster.local:26656";
        assert_eq!(resolve(&own, &[&own, &peer], id), [found, entry.as_str()]);
    }
}
