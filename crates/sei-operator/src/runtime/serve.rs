//! The two HTTP servers: metrics, and the probes of the kubelet.
//!
//! Anybody on the pod network can connect. So a connection is for one request and ends soon, a new one
//! ends the oldest where there are too many, and the page of metrics is rendered once a second at most.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::get;
use futures::FutureExt as _;
use hyper::body::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, timeout};

use crate::runtime::access::Access;
use crate::runtime::certificate::Certificate;
use crate::runtime::controller::InFlight;
use crate::runtime::metrics::Metrics;

/// The format of [`Metrics::encode`]; Prometheus reads it since version 2.5.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// How long a client may delay the end of the process.
const GRACE: Duration = Duration::from_secs(2);
/// How long a connection may last: handshake, request and response. A Prometheus gives up after ten
/// seconds too, by default.
const CONNECTION_MAX: Duration = Duration::from_secs(10);
/// How many connections a server has. One more ends the oldest: connections that send nothing must not
/// keep the kubelet out, whose requests take milliseconds.
const CONNECTIONS_MAX: usize = 64;
/// How many bytes of a request are read, its headers included.
const REQUEST_MAX: usize = 16 * 1024;
/// How long a rendered page is served again.
const PAGE_MAX_AGE: Duration = Duration::from_secs(1);

/// Why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to listen on {address}")]
    Listen { address: Address, source: io::Error },
}

/// Where to listen: `host:port`, or `:port` for every address of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    host: Option<String>,
    port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_deref() {
            None => write!(f, ":{}", self.port),
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Some(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

/// Whether and where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// `0`: no server at all.
    Off,
    On(Address),
}

/// Reads an address in the form of Go.
pub fn parse_bind_address(text: &str) -> Result<Bind, BindAddressError> {
    if text == "0" {
        return Ok(Bind::Off);
    }
    let (host, port) = text.rsplit_once(':').ok_or(BindAddressError::Form)?;
    let port = match port.parse() {
        // `parse` accepts a sign, too.
        Ok(number) if port.bytes().all(|byte| byte.is_ascii_digit()) => number,
        _ => return Err(BindAddressError::Port { port: port.to_owned() }),
    };
    let host = match host.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or(BindAddressError::Form)?,
        None if host.contains([':', ']']) => return Err(BindAddressError::Brackets),
        None => host,
    };
    if host.contains(char::is_whitespace) {
        return Err(BindAddressError::Form);
    }
    Ok(Bind::On(Address { host: (!host.is_empty()).then(|| host.to_owned()), port }))
}

/// Why a text is not an address. The parser of flags adds the flag and its value.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindAddressError {
    #[error("expected host:port, :port, or 0 for no server")]
    Form,
    #[error("{port:?} is not a port: expected a number from 0 to 65535")]
    Port { port: String },
    #[error("an IPv6 address needs brackets, as in [::1]:8080")]
    Brackets,
}

/// Whether the process is ready, and why not.
///
/// A candidate that does not lead is ready: a Deployment waits for the new pod to be ready before
/// it stops the old pod, which holds the lease. A leader is ready once its first lists are loaded.
#[derive(Clone, Debug)]
pub struct Ready(Arc<Mutex<Result<(), &'static str>>>);

impl Ready {
    /// Starts as not ready, for this reason.
    pub fn waiting(reason: &'static str) -> Self {
        Self(Arc::new(Mutex::new(Err(reason))))
    }

    pub fn set(&self) {
        self.put(Ok(()));
    }

    /// Makes the process not ready, for this reason.
    pub fn unset(&self, reason: &'static str) {
        self.put(Err(reason));
    }

    fn put(&self, state: Result<(), &'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn get(&self) -> Result<(), &'static str> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The page of metrics, rendered by one request for all that come within a second.
struct Page {
    metrics: Metrics,
    /// What was rendered last, and when.
    rendered: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Page {
    async fn get(&self) -> Bytes {
        let mut rendered = self.rendered.lock().await;
        if let Some((at, page)) = &*rendered
            && at.elapsed() < PAGE_MAX_AGE
        {
            return page.clone();
        }
        let page = Bytes::from(self.metrics.encode());
        *rendered = Some((Instant::now(), page.clone()));
        page
    }
}

/// `/metrics`, for everybody or for those with access.
pub fn metrics_router(metrics: Metrics, access: Option<Access>) -> Router {
    let page = Arc::new(Page { metrics, rendered: tokio::sync::Mutex::default() });
    let serve = move |headers: HeaderMap| async move {
        if let Some(access) = &access
            && let Err(refusal) = access.admit(&headers).await
        {
            return refusal.into_response();
        }
        ([(header::CONTENT_TYPE, OPEN_METRICS)], page.get().await).into_response()
    };
    Router::new().route("/metrics", get(serve))
}

/// `/healthz` and `/readyz`.
///
/// A process whose reconciles are stuck is not alive: a restart releases what they wait for.
pub fn health_router(ready: Ready, in_flight: InFlight) -> Router {
    let healthz = move || async move {
        match in_flight.stuck() {
            None => (StatusCode::OK, "ok".to_owned()),
            Some(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason),
        }
    };
    let readyz = move || async move {
        match ready.get() {
            Ok(()) => (StatusCode::OK, "ok"),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason),
        }
    };
    Router::new().route("/healthz", get(healthz)).route("/readyz", get(readyz))
}

/// Listens. The caller does so first: a port in use then ends the process before it does any work.
pub async fn listen(address: &Address) -> Result<TcpListener, Error> {
    let port = address.port;
    let listener = match &address.host {
        Some(host) => TcpListener::bind((host.as_str(), port)).await,
        // One socket for both families, as in Go; a machine without IPv6 has IPv4 only.
        None => match TcpListener::bind(("::", port)).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                TcpListener::bind(("0.0.0.0", port)).await
            }
            result => result,
        },
    };
    listener.map_err(|source| Error::Listen { address: address.clone(), source })
}

/// Serves until `stop`, and then gives requests in flight `GRACE` to end. With a certificate it serves
/// HTTPS.
pub async fn serve_on(
    listener: TcpListener,
    router: Router,
    certificate: Option<Certificate>,
    stop: impl Future<Output = ()> + Send,
) {
    let certificate = certificate.map(Arc::new);
    let mut connections: VecDeque<tokio::task::JoinHandle<()>> = VecDeque::new();
    let mut stop = pin!(stop);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stop => break,
        };
        let Ok((stream, _)) = stream else {
            // The connection has ended already, or there are too many open files.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() >= CONNECTIONS_MAX
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let connection = serve_connection(stream, router.clone(), certificate.clone());
        let connection = timeout(CONNECTION_MAX, connection).map(drop);
        connections.push_back(tokio::spawn(connection));
    }
    drop(listener);
    let ends = futures::future::join_all(&mut connections);
    if timeout(GRACE, ends).await.is_err() {
        connections.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    certificate: Option<Arc<Certificate>>,
) {
    let Some(certificate) = certificate else { return serve_stream(stream, router).await };
    // A client that does not accept the certificate reports that itself.
    if let Ok(stream) = certificate.acceptor().accept(stream).await {
        serve_stream(stream, router).await;
    }
}

async fn serve_stream(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
) {
    let mut server = http1::Builder::new();
    server.keep_alive(false).max_buf_size(REQUEST_MAX);
    let connection =
        server.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    // The client has disconnected, or sent no HTTP.
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;

    fn on(host: Option<&str>, port: u16) -> Bind {
        Bind::On(Address { host: host.map(str::to_owned), port })
    }

    #[test]
    fn bind_addresses_are_parsed_as_in_go() {
        let port = |port: &str| Err(BindAddressError::Port { port: port.to_owned() });
        for (text, expected) in [
            ("0", Ok(Bind::Off)),
            (":8080", Ok(on(None, 8080))),
            (":0", Ok(on(None, 0))),
            ("0.0.0.0:8080", Ok(on(Some("0.0.0.0"), 8080))),
            ("localhost:9", Ok(on(Some("localhost"), 9))),
            ("[::1]:8080", Ok(on(Some("::1"), 8080))),
            ("", Err(BindAddressError::Form)),
            ("8080", Err(BindAddressError::Form)),
            ("local host:1", Err(BindAddressError::Form)),
            ("[::1:8080", Err(BindAddressError::Form)),
            ("::1:8080", Err(BindAddressError::Brackets)),
            (":", port("")),
            (":http", port("http")),
            (":+80", port("+80")),
            (":65536", port("65536")),
        ] {
            assert_eq!(parse_bind_address(text), expected, "{text:?}");
            if let Ok(Bind::On(address)) = expected {
                assert_eq!(address.to_string(), text);
            }
        }
    }

    struct Server {
        port: u16,
        stop: oneshot::Sender<()>,
        task: tokio::task::JoinHandle<()>,
    }

    async fn start(router: Router) -> Server {
        let address = Address { host: Some("127.0.0.1".to_owned()), port: 0 };
        let listener = listen(&address).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel();
        let stopped = async { stopped.await.unwrap_or_default() };
        Server { port, stop, task: tokio::spawn(serve_on(listener, router, None, stopped)) }
    }

    async fn fetch(port: u16, path: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn readyz_reports_why_the_process_is_not_ready() {
        let ready = Ready::waiting("the caches are not loaded");
        let server = start(health_router(ready.clone(), InFlight::default())).await;
        assert!(fetch(server.port, "/healthz").await.starts_with("HTTP/1.1 200 "));
        let response = fetch(server.port, "/readyz").await;
        assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
        assert!(response.ends_with("\r\n\r\nthe caches are not loaded"), "{response}");
        ready.set();
        assert!(fetch(server.port, "/readyz").await.starts_with("HTTP/1.1 200 "));
        ready.unset("stopping");
        assert!(fetch(server.port, "/readyz").await.ends_with("stopping"));
        assert!(fetch(server.port, "/healthz").await.starts_with("HTTP/1.1 200 "));
        assert!(fetch(server.port, "/").await.starts_with("HTTP/1.1 404 "));
        server.stop.send(()).unwrap();
        server.task.await.unwrap();
    }

    #[tokio::test]
    async fn metrics_have_the_content_type_of_openmetrics() {
        let server = start(metrics_router(Metrics::new(), None)).await;
        let response = fetch(server.port, "/metrics").await;
        assert!(response.contains("\r\ncontent-type: application/openmetrics-text;"), "{response}");
        assert!(response.ends_with("# EOF\n"), "{response}");
    }

    #[tokio::test]
    async fn an_unfinished_request_does_not_block_the_shutdown() {
        let server = start(health_router(Ready::waiting("never"), InFlight::default())).await;
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stream.write_all(b"GET /healthz HTT").await.unwrap();
        assert!(fetch(server.port, "/healthz").await.starts_with("HTTP/1.1 200 "));
        let start = Instant::now();
        server.stop.send(()).unwrap();
        timeout(GRACE * 3, server.task).await.expect("an end").unwrap();
        assert!(start.elapsed() < GRACE * 2);
    }

    /// Connections that send nothing, as many as a server has.
    async fn silent(port: u16) -> Vec<TcpStream> {
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            streams.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        streams
    }

    #[tokio::test]
    async fn connections_that_send_nothing_do_not_block_others() {
        let server = start(health_router(Ready::waiting("never"), InFlight::default())).await;
        let mut streams = silent(server.port).await;
        for _ in 0..3 {
            let probe = timeout(Duration::from_secs(5), fetch(server.port, "/healthz"));
            assert!(probe.await.expect("a response").starts_with("HTTP/1.1 200 "));
        }
        // The oldest ended for them, and the newest is still there.
        let mut end = [0];
        let ended = timeout(Duration::from_secs(5), streams[0].read(&mut end)).await;
        assert_eq!(ended.expect("the end of the connection").unwrap_or(0), 0);
        let newest = streams.last_mut().unwrap();
        newest.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut response = String::new();
        newest.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }

    #[tokio::test]
    async fn a_connection_is_for_one_request_and_ends_soon() {
        let server = start(health_router(Ready::waiting("never"), InFlight::default())).await;
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
        // One that is slow is cut off.
        let mut slow = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        slow.write_all(b"GET /healthz HTT").await.unwrap();
        assert!(fetch(server.port, "/healthz").await.starts_with("HTTP/1.1 200 "));
        tokio::time::pause();
        tokio::time::advance(CONNECTION_MAX).await;
        tokio::time::resume();
        let mut end = String::new();
        let ended = timeout(Duration::from_secs(5), slow.read_to_string(&mut end)).await;
        assert!(ended.is_ok() && end.is_empty(), "{end}");
    }

    #[tokio::test]
    async fn a_request_that_is_too_large_is_refused() {
        let server = start(health_router(Ready::waiting("never"), InFlight::default())).await;
        let mut stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\nhost: {}", "a".repeat(2 * REQUEST_MAX));
        // The server may close before it has read all.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut response = Vec::new();
        let read = timeout(Duration::from_secs(5), stream.read_to_end(&mut response)).await;
        assert!(read.is_ok() && !response.starts_with(b"HTTP/1.1 200"), "{response:?}");
    }

    #[tokio::test]
    async fn metrics_are_rendered_once_a_second() {
        let metrics = Metrics::new();
        let page = Page { metrics: metrics.clone(), rendered: tokio::sync::Mutex::default() };
        tokio::time::pause();
        let leads =
            async || String::from_utf8(page.get().await.into()).unwrap().contains("leader 1\n");
        assert!(!leads().await);
        metrics.leading(true);
        assert!(!leads().await, "it was rendered within the last second");
        tokio::time::advance(PAGE_MAX_AGE).await;
        assert!(leads().await);
    }

    #[tokio::test]
    async fn the_error_of_a_port_in_use_names_the_address() {
        let address = Address { host: Some("127.0.0.1".to_owned()), port: 0 };
        let listener = listen(&address).await.unwrap();
        let address = Address { port: listener.local_addr().unwrap().port(), ..address };
        let error = listen(&address).await.unwrap_err();
        assert_eq!(error.to_string(), format!("failed to listen on {address}"));
    }

    #[tokio::test]
    async fn a_bind_address_without_a_host_accepts_ipv4() {
        let listener = listen(&Address { host: None, port: 0 }).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    }
}
