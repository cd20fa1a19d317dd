//! The RPC of a chain process, as far as the operator reads it: `/status`, `/net_info`, `/abci_info` and
//! `/commit`.
//!
//! All nodes report the same height and app hash at the same time, unless a rule lets them stand still or
//! diverge.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::digest::{hex, sha256};
use crate::sidecar::{Received, Sidecars};

/// Port of the RPC.
pub(crate) const PORT: u16 = 26657;

/// The time between two blocks.
const BLOCK: Duration = Duration::from_millis(400);

/// How far a node that catches up is behind, in blocks.
const BEHIND: i64 = 1_000_000;

/// A way in which an RPC misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RpcFault {
    /// There is no block after the present one.
    NoBlocks,
    /// The node is far behind its chain.
    CatchesUp,
    NoPeers,
    /// It is the RPC of another chain.
    OtherNetwork,
    /// The body is no JSON.
    Garbage,
    /// The fields have other types than expected, and numbers that fit nowhere.
    WrongTypes,
    /// The body has 64 MiB.
    Huge,
    /// It accepts connections and never responds.
    Hangs,
    /// The application computes another hash than the others, and continues.
    Diverges,
    /// It has none of its blocks any more.
    Pruned,
}

impl RpcFault {
    pub(crate) const ALL: [Self; 10] = [
        Self::NoBlocks,
        Self::CatchesUp,
        Self::NoPeers,
        Self::OtherNetwork,
        Self::Garbage,
        Self::WrongTypes,
        Self::Huge,
        Self::Hangs,
        Self::Diverges,
        Self::Pruned,
    ];
}

/// The pod that an RPC runs in.
#[derive(Clone, Debug)]
pub(crate) struct RpcHost {
    pub(crate) namespace: String,
    pub(crate) node: String,
    pub(crate) pod_uid: String,
    pub(crate) chain: String,
    pub(crate) ip: Ipv4Addr,
}

/// A running RPC. It ends with all its connections when it is dropped.
#[derive(Debug)]
pub(crate) struct Rpc {
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    faults: Vec<RpcFault>,
    /// The time at which the chain stands still.
    stopped_at: Option<Timestamp>,
}

impl Rpc {
    pub(crate) fn start(host: RpcHost, sidecars: Arc<Sidecars>) -> Self {
        let state: Arc<Mutex<State>> = Arc::default();
        let server = tokio::spawn(serve(host, sidecars, state.clone()));
        Self { state, server }
    }

    /// Sets how it misbehaves from now on. `stopped_at` is the time of the last block.
    pub(crate) fn set(&self, faults: Vec<RpcFault>, stopped_at: Option<Timestamp>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = State { faults, stopped_at };
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(host: RpcHost, sidecars: Arc<Sidecars>, state: Arc<Mutex<State>>) {
    let listener = loop {
        match TcpListener::bind((host.ip, PORT)).await {
            Ok(listener) => break listener,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    // Dropping it aborts all connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        let (host, sidecars, state) = (host.clone(), sidecars.clone(), state.clone());
        connections.spawn(async move {
            let service = service_fn(|request| {
                sidecars.receive(received(&host, &request));
                let body = {
                    let state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    body(&host.chain, request.uri(), &state)
                };
                async {
                    match body {
                        Some(body) => Ok(Response::new(Full::new(Bytes::from(body)))),
                        None => std::future::pending::<Result<_, std::convert::Infallible>>().await,
                    }
                }
            });
            // The caller may close the connection at any time.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

/// The request as scenarios see it, with the port, which that of a sidecar has not.
fn received(host: &RpcHost, request: &Request<Incoming>) -> Received {
    let token = request.headers().get(http::header::AUTHORIZATION);
    Received {
        namespace: host.namespace.clone(),
        node: host.node.clone(),
        pod_uid: host.pod_uid.clone(),
        request: format!("{} :{PORT}{}", request.method(), request.uri().path()),
        token: token.map(|token| String::from_utf8_lossy(token.as_bytes()).into_owned()),
        audience: None,
    }
}

/// The answer; `None` if there is none.
fn body(chain: &str, uri: &Uri, state: &State) -> Option<String> {
    let has = |fault| state.faults.contains(&fault);
    if has(RpcFault::Hangs) {
        return None;
    }
    if has(RpcFault::Huge) {
        return Some("[".repeat(64 * 1024 * 1024));
    }
    if has(RpcFault::Garbage) {
        return Some("\u{0}{\"sync_info\":".to_owned());
    }
    let wrong = has(RpcFault::WrongTypes);
    let time = state.stopped_at.unwrap_or_else(Timestamp::now);
    let latest = height_at(time) - if has(RpcFault::CatchesUp) { BEHIND } else { 0 };
    let network = if has(RpcFault::OtherNetwork) { "other-1" } else { chain };
    let answer = match uri.path() {
        "/status" => {
            let earliest = if has(RpcFault::Pruned) { latest + 1 } else { 1 };
            status(network, (earliest, latest), time, has(RpcFault::CatchesUp), wrong)
        }
        "/net_info" if wrong => json!({ "n_peers": { "many": true } }),
        "/net_info" => {
            let peers = if has(RpcFault::NoPeers) { "0" } else { "3" };
            json!({ "listening": true, "listeners": [], "n_peers": peers, "peers": [] })
        }
        "/abci_info" => {
            let seed = if has(RpcFault::Diverges) { "another application" } else { chain };
            let hash = ByteString(app_hash(seed, latest));
            json!({ "response": { "last_block_height": latest.to_string(),
                "last_block_app_hash": hash } })
        }
        "/commit" => {
            let asked = uri.query().and_then(|query| query.strip_prefix("height=")?.parse().ok());
            commit(network, chain, asked.filter(|height| *height <= latest))
        }
        _ => json!({ "error": "unknown path" }),
    };
    Some(answer.to_string())
}

fn status(
    network: &str,
    (earliest, latest): (i64, i64),
    time: Timestamp,
    catches_up: bool,
    wrong: bool,
) -> Value {
    let node_info = json!({ "network": network, "moniker": "rig" });
    if wrong {
        let sync = json!({ "latest_block_height": "9".repeat(400), "latest_block_time": [1e300],
            "catching_up": "maybe" });
        return json!({ "node_info": node_info, "sync_info": sync });
    }
    json!({ "node_info": node_info, "sync_info": {
        "earliest_block_height": earliest.to_string(),
        "latest_block_height": latest.to_string(),
        "latest_block_time": time.to_string(),
        "catching_up": catches_up,
    }})
}

/// The header of a block. Its app hash is that after the block before, as the chain agreed on it.
fn commit(network: &str, chain: &str, height: Option<i64>) -> Value {
    let Some(height) = height else { return json!({ "error": "no such block" }) };
    let hash = hex(&app_hash(chain, height - 1)).to_uppercase();
    let header = json!({ "chain_id": network, "height": height.to_string(), "app_hash": hash });
    json!({ "signed_header": { "header": header, "commit": {} }, "canonical": true })
}

/// The app hash after a height.
fn app_hash(seed: &str, height: i64) -> Vec<u8> {
    sha256(&format!("{seed} {height}"))
}

/// The height at a time.
fn height_at(time: Timestamp) -> i64 {
    time.as_millisecond() / i64::try_from(BLOCK.as_millis()).unwrap_or(1)
}
