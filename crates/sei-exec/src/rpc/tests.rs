use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;
use crate::token::{TokenSource, Tokens};

const STATUS: &str = r#"{"node_info":{"network":"demo-1"},"sync_info":{
    "latest_block_height":"7","latest_block_time":"2026-01-01T00:00:00Z","catching_up":true}}"#;

/// Starts an RPC on this loopback address. Returns the requests that it received.
async fn serve(
    address: &'static str,
    answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
) -> Arc<Mutex<Vec<String>>> {
    let listener = TcpListener::bind((address, RPC_PORT)).await.unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = received.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let answer = answer(&request);
            log.lock().unwrap().push(request);
            match answer {
                Some(answer) => drop(stream.write_all(answer.as_bytes()).await),
                None => std::future::pending().await,
            }
        }
    });
    received
}

fn ok(body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

async fn read(address: &str) -> Result<ChainFacts, NoFacts> {
    Sidecar::new(Tokens::none()).chain_facts(address, "demo-1").await
}

#[tokio::test]
async fn status_and_peers_are_read() {
    let answer = |request: &str| {
        Some(ok(if request.contains("/status") { STATUS } else { r#"{"n_peers":"3"}"# }))
    };
    serve("127.78.0.1", answer).await;
    let facts = read("127.78.0.1").await.unwrap();
    assert_eq!((facts.height, facts.is_catching_up, facts.peers), (Some(7), Some(true), Some(3)));
}

#[tokio::test]
async fn facts_without_peers_are_facts() {
    let answer = |request: &str| Some(ok(if request.contains("/status") { STATUS } else { "no" }));
    serve("127.78.0.2", answer).await;
    let facts = read("127.78.0.2").await.unwrap();
    assert_eq!((facts.height, facts.peers), (Some(7), None));
}

#[tokio::test]
async fn the_rpc_is_shown_no_token() {
    let file = std::env::temp_dir().join(format!("rpc-token-{}", std::process::id()));
    std::fs::write(&file, "secret-token").unwrap();
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    let client = kube::Client::try_from(config).unwrap();
    let tokens = Tokens::new(&TokenSource::File(file.clone()), &client);
    let received = serve("127.78.0.3", |_| Some(ok(STATUS))).await;
    Sidecar::new(tokens).chain_facts("127.78.0.3", "demo-1").await.unwrap();
    std::fs::remove_file(file).unwrap();
    let received = received.lock().unwrap();
    assert_eq!(received.len(), 2);
    for request in received.iter() {
        let lower = request.to_lowercase();
        assert!(!lower.contains("authorization") && !lower.contains("token"), "{request}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_redirects_not_followed_and_silence_ends() {
    let huge = format!("{{\"x\":\"{}\"}}", "y".repeat(10 * 1024 * 1024));
    serve("127.78.0.4", move |_| Some(ok(&huge))).await;
    assert_eq!(read("127.78.0.4").await, Err(NoFacts::Unreachable));
    let elsewhere = serve("127.78.0.5", |_| Some(ok(STATUS))).await;
    let redirect = "HTTP/1.1 302 Found\r\nLocation: http://127.78.0.5:26657/status\r\n\
                    Content-Length: 0\r\nConnection: close\r\n\r\n";
    serve("127.78.0.6", |_| Some(redirect.to_owned())).await;
    assert_eq!(read("127.78.0.6").await, Err(NoFacts::Unreadable));
    assert!(elsewhere.lock().unwrap().is_empty());
    serve("127.78.0.7", |_| None).await;
    let read = tokio::time::timeout(DEADLINE * 2, read("127.78.0.7")).await;
    assert_eq!(read, Ok(Err(NoFacts::Unreachable)));
}

#[tokio::test]
async fn app_hashes_are_read_with_the_network_of_the_node() {
    let answer = |request: &str| {
        let path = request.split(' ').nth(1).unwrap_or_default();
        Some(ok(match path {
            "/status" => STATUS,
            "/abci_info" => {
                r#"{"response":{"last_block_height":"7",
                    "last_block_app_hash":"q6urq6urq6urq6urq6urq6urq6s="}}"#
            }
            "/commit?height=7" => {
                r#"{"signed_header":{"header":{"chain_id":"demo-1","height":"7",
                    "app_hash":"ABABABABABABABABABABABABABABABABABABABAB"}}}"#
            }
            _ => "{}",
        }))
    };
    let received = serve("127.78.0.8", answer).await;
    let sidecar = Sidecar::new(Tokens::none());
    let hash = "AB".repeat(20);
    let own = sidecar.app_hash("127.78.0.8", "demo-1").await;
    assert_eq!(own, Ok(AppHash { height: 7, hash: hash.clone() }));
    let header = sidecar.header("127.78.0.8", "demo-1", 7).await;
    assert_eq!(header, Ok(AppHash { height: 6, hash }));
    let before = received.lock().unwrap().len();
    assert_eq!(sidecar.header("127.78.0.8", "demo-1", 8).await, Err(NoHeader::NotYet));
    let refused = Err(NoFacts::OtherNetwork("demo-1".into()));
    assert_eq!(sidecar.app_hash("127.78.0.8", "demo-2").await, refused);
    assert_eq!(received.lock().unwrap().len(), before + 2, "the status alone decides both");
}
