//! Reads of the RPC of a node's chain process.
//!
//! It is plain HTTP without authentication on the pod's own IP, and gets no token. As with the
//! sidecar, bodies are bounded, no redirect is followed, and nothing of an answer is logged.

use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use jiff::Timestamp;
use sei_api::key::ObjectKey;
use sei_plan::chain::{
    AppHash, ChainFacts, NoFacts, NoHeader, RPC_PORT, check_block, decode_app_hash, decode_header,
    decode_peers, decode_status,
};

use crate::sidecar::{BODY_MAX, Sidecar, host};

/// How long one read may take, connecting included. The RPC of a healthy node responds in
/// milliseconds.
const DEADLINE: Duration = Duration::from_secs(2);

impl Sidecar {
    /// What the node at this address reports of its chain. The number of peers is left out if only
    /// that cannot be read.
    pub async fn chain_facts(&self, ip: &str, chain_id: &str) -> Result<ChainFacts, NoFacts> {
        let status = self.read_rpc(ip, "/status").await?;
        let facts = decode_status(&status, chain_id, Timestamp::now())?;
        let peers = self.read_rpc(ip, "/net_info").await;
        Ok(ChainFacts { peers: peers.ok().and_then(|body| decode_peers(&body)), ..facts })
    }

    /// The app hash that the node at this address computed last.
    pub async fn app_hash(&self, ip: &str, chain_id: &str) -> Result<AppHash, NoFacts> {
        let status = self.read_rpc(ip, "/status").await?;
        decode_status(&status, chain_id, Timestamp::now())?;
        decode_app_hash(&self.read_rpc(ip, "/abci_info").await?)
    }

    /// The app hash in the header of a block that the node at this address has.
    pub async fn header(&self, ip: &str, chain_id: &str, height: i64) -> Result<AppHash, NoHeader> {
        let status = self.read_rpc(ip, "/status").await?;
        check_block(&status, chain_id, height)?;
        let commit = self.read_rpc(ip, &format!("/commit?height={height}")).await?;
        decode_header(&commit, chain_id, height)
    }

    async fn read_rpc(&self, ip: &str, path: &str) -> Result<Bytes, NoFacts> {
        let address = format!("http://{}:{RPC_PORT}{path}", host(ip));
        let request = Request::get(address).body(Full::default());
        let request = request.map_err(|_| NoFacts::Unreachable)?;
        let received = tokio::time::timeout(DEADLINE, self.receive(request)).await;
        match received {
            Ok(Ok((StatusCode::OK, body))) => Ok(body),
            Ok(Ok(_)) => Err(NoFacts::Unreadable),
            Ok(Err(_)) | Err(_) => Err(NoFacts::Unreachable),
        }
    }
}

/// Reads the same through the API server, for programs that reach no pod. Their user needs `get` on
/// `pods/proxy`; the API server passes no credentials on. Peers are a second request.
pub async fn chain_facts_by_proxy(
    client: &kube::Client,
    pod: &ObjectKey,
    chain_id: &str,
    with_peers: bool,
) -> Result<ChainFacts, NoFacts> {
    let status = read_by_proxy(client, pod, "status").await?;
    let mut facts = decode_status(&status, chain_id, Timestamp::now())?;
    if with_peers {
        let peers = read_by_proxy(client, pod, "net_info").await;
        facts.peers = peers.ok().and_then(|body| decode_peers(&body));
    }
    Ok(facts)
}

async fn read_by_proxy(
    client: &kube::Client,
    pod: &ObjectKey,
    path: &str,
) -> Result<Bytes, NoFacts> {
    let ObjectKey { namespace, name } = pod;
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{RPC_PORT}/proxy/{path}");
    let request = Request::get(path).body(kube::client::Body::empty());
    let request = request.map_err(|_| NoFacts::Unreachable)?;
    let exchange = async {
        let response = client.send(request).await.map_err(|_| NoFacts::Unreachable)?;
        if response.status() != StatusCode::OK {
            return Err(NoFacts::Unreachable);
        }
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        Ok(body.map_err(|_| NoFacts::Unreadable)?.to_bytes())
    };
    tokio::time::timeout(DEADLINE, exchange).await.unwrap_or(Err(NoFacts::Unreachable))
}

#[cfg(test)]
mod tests;
