//! Heights of nodes, from their own RPC.
//!
//! A user's machine reaches no pod, and a status holds no height, because each one would be a write.
//! So the API server is asked to proxy to the pod. A node that cannot be read that way has no height:
//! the permission is missing, the RPC is not up, or the API server does not reach the pod.

use std::time::Duration;

use futures::StreamExt as _;
use kube::Client;
use sei_api::key::ObjectKey;
use sei_api::names;
use sei_exec::rpc::chain_facts_by_proxy;

use super::Row;

/// How many nodes are read at once.
const AT_ONCE: usize = 16;
/// How long all reads together may delay the output.
const DEADLINE: Duration = Duration::from_secs(5);

/// Fills in what can be read within a few seconds.
pub(super) async fn read(rows: &mut [Row], client: &Client, with_peers: bool) {
    let reads = rows.iter_mut().filter(|row| row.phase.as_deref() == Some("Running"));
    let reads = futures::stream::iter(reads).for_each_concurrent(AT_ONCE, |row| async move {
        let pod = ObjectKey::new(&row.namespace, names::pod(&row.node));
        let chain = row.chain.clone().unwrap_or_default();
        if let Ok(facts) = chain_facts_by_proxy(client, &pod, &chain, with_peers).await {
            row.height = facts.height;
            row.block_time = facts.block_time;
            row.catching_up = facts.is_catching_up;
            row.peers = facts.peers;
        }
    });
    // What is missing by then is shown as unknown.
    let _ = tokio::time::timeout(DEADLINE, reads).await;
}
