use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

/// Starts a server that sends this response to every connection to this loopback address.
async fn serve(address: &'static str, response: Vec<u8>) {
    let listener = TcpListener::bind((address, PORT)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let response = response.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                let _ = stream.read(&mut request).await;
                let _ = stream.write_all(&response).await;
                let _ = stream.shutdown().await;
            });
        }
    });
}

fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into_bytes()
}

fn client() -> Sidecar {
    Sidecar::new(Tokens::none())
}

fn node() -> ObjectKey {
    ObjectKey { namespace: "ns".into(), name: "n".into() }
}

fn pod<'a>(node: &'a ObjectKey, ip: &'a str) -> Endpoint<'a> {
    Endpoint { node, ip, proxy: Proxy::default() }
}

fn poll(ip: &str) -> SidecarRequest {
    SidecarRequest {
        pod_uid: "uid".into(),
        ip: ip.into(),
        proxy: Proxy::default(),
        call: SidecarCall::Poll { id: "x".into() },
    }
}

#[tokio::test]
async fn a_poll_follows_the_status_field_and_an_unknown_status_counts_as_running() {
    for (address, response, expected) in [
        ("127.77.0.1", http("200 OK", r#"{"status":"completed"}"#), Some(TaskState::Completed)),
        ("127.77.0.2", http("200 OK", r#"{"status":"odd"}"#), Some(TaskState::Running)),
        (
            "127.77.0.3",
            http("200 OK", r#"{"status":"failed","error":"no"}"#),
            Some(TaskState::Failed("no".into())),
        ),
        ("127.77.0.4", http("404 Not Found", r#"{"error":"task not found"}"#), None),
    ] {
        serve(address, response).await;
        let outcome = client().call(&node(), &poll(address)).await;
        assert_eq!(outcome, Ok(Outcome::Task(expected.map(TaskRecord::from))));
    }
}

#[tokio::test]
async fn a_poll_that_returns_another_task_fails() {
    let completed = |id| http("200 OK", &format!(r#"{{"id":"{id}","status":"completed"}}"#));
    serve("127.77.0.17", completed("y")).await;
    let outcome = client().call(&node(), &poll("127.77.0.17")).await;
    assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{outcome:?}");
    serve("127.77.0.18", completed("x")).await;
    let outcome = client().call(&node(), &poll("127.77.0.18")).await;
    assert_eq!(outcome, Ok(Outcome::Task(Some(TaskRecord::from(TaskState::Completed)))));
}

#[tokio::test]
async fn the_hash_of_a_genesis_is_taken_only_in_its_form() {
    let hash = "0123456789abcdef".repeat(4);
    for (address, sent, expected) in [
        ("127.77.0.21", hash.clone(), Some(hash.clone())),
        ("127.77.0.22", hash.to_uppercase(), None),
        ("127.77.0.23", hash[1..].to_owned(), None),
    ] {
        let body = format!(r#"{{"status":"completed","result":{{"genesisHash":"{sent}"}}}}"#);
        serve(address, http("200 OK", &body)).await;
        let outcome = client().call(&node(), &poll(address)).await;
        let record = TaskRecord { state: TaskState::Completed, genesis_hash: expected };
        assert_eq!(outcome, Ok(Outcome::Task(Some(record))));
    }
}

#[tokio::test]
async fn a_404_without_a_json_body_is_not_an_unknown_task() {
    serve("127.77.0.5", http("404 Not Found", "404 page not found")).await;
    let outcome = client().call(&node(), &poll("127.77.0.5")).await;
    assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_response_over_the_size_limit_is_refused() {
    let body = format!(r#"{{"status":"{}"}}"#, "x".repeat(BODY_MAX));
    serve("127.77.0.6", http("200 OK", &body)).await;
    let outcome = client().call(&node(), &poll("127.77.0.6")).await;
    assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let redirect = b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.77.0.1:8443/\r\n\
                     Content-Length: 0\r\nConnection: close\r\n\r\n";
    serve("127.77.0.7", redirect.to_vec()).await;
    let outcome = client().call(&node(), &poll("127.77.0.7")).await;
    assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_submission_that_returns_another_id_fails() {
    serve("127.77.0.8", http("201 Created", r#"{"id":"y"}"#)).await;
    let request = SidecarRequest {
        call: SidecarCall::Submit {
            id: "x".into(),
            task_type: "mark-ready".into(),
            params: json!({}),
        },
        ..poll("127.77.0.8")
    };
    let outcome = client().call(&node(), &request).await;
    assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{outcome:?}");
}

#[tokio::test]
async fn a_refused_submission_is_no_unreachable_sidecar() {
    let body = r#"{"error":"unknown task type: mark-ready"}"#;
    serve("127.77.0.40", http("400 Bad Request", body)).await;
    let (id, task_type) = ("x".into(), "mark-ready".into());
    let call = SidecarCall::Submit { id, task_type, params: json!({}) };
    let request = SidecarRequest { call, ..poll("127.77.0.40") };
    let text = "the sidecar refuses it: unknown task type: mark-ready".to_owned();
    assert_eq!(client().call(&node(), &request).await, Err(Failure::TaskRefused(text)));
}

#[tokio::test]
async fn a_probe_follows_the_status_code_and_a_refused_token_is_unauthorized() {
    serve("127.77.0.9", http("200 OK", "")).await;
    serve("127.77.0.10", http("503 Service Unavailable", "")).await;
    serve("127.77.0.11", http("401 Unauthorized", "Unauthorized")).await;
    let sidecar = client();
    assert_eq!(sidecar.probe(pod(&node(), "127.77.0.9")).await, Health::Ready);
    assert_eq!(sidecar.probe(pod(&node(), "127.77.0.10")).await, Health::NotReady);
    assert!(matches!(sidecar.probe(pod(&node(), "127.77.0.12")).await, Health::Unreachable(_)));
    let refused = sidecar.call(&node(), &poll("127.77.0.11")).await;
    assert!(matches!(refused, Err(Failure::Unauthorized(_))), "{refused:?}");
}

#[tokio::test]
async fn a_malformed_response_counts_as_an_unreachable_sidecar() {
    for (address, body) in [
        ("127.77.0.13", "null"),
        ("127.77.0.14", "[1,2]"),
        ("127.77.0.15", "{\"status\":"),
        ("127.77.0.16", "\u{0}\u{1}"),
    ] {
        serve(address, http("200 OK", body)).await;
        let outcome = client().call(&node(), &poll(address)).await;
        assert!(matches!(outcome, Err(Failure::Unreachable(_))), "{body}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_proxy_that_does_not_speak_tls_is_called_in_plain_http() {
    serve("127.77.0.41", http("200 OK", "")).await;
    let (node, proxy) = (node(), Proxy { tls: true, ..Proxy::default() });
    let pod = Endpoint { node: &node, ip: "127.77.0.41", proxy };
    assert_eq!(client().probe(pod).await, Health::Ready);
    // One that does not answer at all is not tried in plain text.
    let silent = Endpoint { node: &node, ip: "127.77.0.42", proxy };
    assert!(matches!(client().probe(silent).await, Health::Unreachable(_)));
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let listener = TcpListener::bind(("127.77.0.24", PORT)).await.unwrap();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = vec![0; 4096];
        assert_ne!(stream.read(&mut request).await.unwrap(), 0);
        // It would stay open for the server's part.
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        stream.read(&mut request).await
    });
    let client = Sidecar::with_idle(Tokens::none(), Duration::from_millis(100));
    assert_eq!(client.probe(pod(&node(), "127.77.0.24")).await, Health::Ready);
    let read = tokio::time::timeout(Duration::from_secs(20), server).await;
    assert_eq!(read.expect("it is closed in time").unwrap().unwrap(), 0, "the end of the stream");
}
