//! The client of the HTTP API of a pod's sidecar.
//!
//! The pod is addressed by its IP, because a name may still resolve to its predecessor. The flags of
//! its proxy decide about TLS and about the audience of the token. No redirect is followed, no proxy
//! variable is read, and no response body is logged.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request as HttpRequest, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use sei_api::key::ObjectKey;
use sei_plan::request::{Failure, Outcome, SidecarCall, SidecarRequest, TaskRecord, TaskState};
use sei_plan::view::Proxy;
use serde_json::{Value, json};

use crate::perform;
use crate::token::Tokens;

mod tls;

pub use tls::any_certificate;

/// Port of the auth proxy in front of the sidecar.
pub const PORT: u16 = 8443;
/// The largest response body that is read, in bytes.
pub(crate) const BODY_MAX: usize = 256 * 1024;
/// How long a call may take, connecting included.
const DEADLINE: Duration = Duration::from_secs(5);

/// How long an idle connection stays open: calls of one task follow each other within seconds, and an
/// open connection takes more memory than all else that is kept of a node.
const IDLE: Duration = Duration::from_secs(3);

/// The result of a health probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    Ready,
    NotReady,
    Unreachable(String),
}

/// A client for the sidecars of pods.
#[derive(Clone)]
pub struct Sidecar {
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    tokens: Arc<Tokens>,
}

/// The proxy of one node's pod.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint<'a> {
    pub node: &'a ObjectKey,
    pub ip: &'a str,
    pub proxy: Proxy,
}

impl Sidecar {
    /// A client that sends the tokens of this source.
    pub fn new(tokens: Tokens) -> Self {
        Self::with_idle(tokens, IDLE)
    }

    fn with_idle(tokens: Tokens, idle: Duration) -> Self {
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(any_certificate())
            .https_or_http()
            .enable_http1()
            .wrap_connector(connector);
        Self {
            http: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(idle)
                // Without a timer, an idle connection is closed only by the next call to its address.
                .pool_timer(TokioTimer::new())
                .build(connector),
            tokens: Arc::new(tokens),
        }
    }

    /// Performs the call of a task.
    pub async fn call(
        &self,
        node: &ObjectKey,
        request: &SidecarRequest,
    ) -> Result<Outcome, Failure> {
        let pod = Endpoint { node, ip: &request.ip, proxy: request.proxy };
        match &request.call {
            SidecarCall::Poll { id } => {
                let (status, body) =
                    self.send(pod, Method::GET, &format!("/v0/tasks/{id}"), None).await?;
                polled(id, status, &body)
            }
            SidecarCall::Submit { id, task_type, params } => {
                let task = json!({ "id": id, "type": task_type, "params": params });
                let (status, body) = self.send(pod, Method::POST, "/v0/tasks", Some(&task)).await?;
                submitted(id, status, &body)
            }
            SidecarCall::NodeId => self.node_id(pod).await.map(Outcome::NodeId),
            SidecarCall::Delete { id } => {
                let (status, _) =
                    self.send(pod, Method::DELETE, &format!("/v0/tasks/{id}"), None).await?;
                match status {
                    StatusCode::NO_CONTENT | StatusCode::OK | StatusCode::NOT_FOUND => {
                        Ok(Outcome::Accepted)
                    }
                    status => Err(unexpected("delete task", status)),
                }
            }
        }
    }

    /// Probes whether the readiness gate is open.
    pub async fn probe(&self, pod: Endpoint<'_>) -> Health {
        match self.send(pod, Method::GET, "/v0/healthz", None).await {
            Ok((StatusCode::OK, _)) => Health::Ready,
            Ok((StatusCode::SERVICE_UNAVAILABLE, _)) => Health::NotReady,
            Ok((status, _)) => Health::Unreachable(format!("healthz returned {status}")),
            Err(Failure::Unreachable(text) | Failure::Unauthorized(text)) => {
                Health::Unreachable(text)
            }
            Err(failure) => Health::Unreachable(format!("{failure:?}")),
        }
    }

    /// The node's p2p id: 40 hex digits.
    pub async fn node_id(&self, pod: Endpoint<'_>) -> Result<String, Failure> {
        let (status, body) = self.send(pod, Method::GET, "/v0/node-id", None).await?;
        if status != StatusCode::OK {
            return Err(unexpected("node-id", status));
        }
        let id = perform::json(&body).and_then(|body| body["nodeId"].as_str().map(str::to_owned));
        id.filter(|id| is_hex(id, 40))
            .ok_or_else(|| Failure::Unreachable("node-id returned no valid id".to_owned()))
    }

    async fn send(
        &self,
        pod: Endpoint<'_>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let host = host(pod.ip);
        let action = format!("{method} {path} on {host}");
        // A token sent to the health path would reach the sidecar's own process: it is not sent.
        let token = match path {
            "/v0/healthz" => None,
            _ => self.tokens.get(pod.node, pod.proxy).await?,
        };
        let has_token = token.is_some();
        let content = body.map(|body| Bytes::from(body.to_string()));
        let request = |scheme: &str| {
            let mut request = HttpRequest::builder()
                .method(method.clone())
                .uri(format!("{scheme}://{host}:{PORT}{path}"));
            if let Some(token) = &token {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            if content.is_some() {
                request = request.header(header::CONTENT_TYPE, "application/json");
            }
            request.body(Full::new(content.clone().unwrap_or_default()))
        };
        let exchange = async {
            let scheme = if pod.proxy.tls { "https" } else { "http" };
            match self.receive(request(scheme)?).await {
                // Its flags were rewritten, or TLS ends before it. A false proxy in its place could
                // have answered with any certificate too.
                Err(error) if pod.proxy.tls && tls::is_plain(&*error) => {
                    self.receive(request("http")?).await
                }
                received => received,
            }
        };
        let response = tokio::time::timeout(DEADLINE, exchange).await;
        let (status, body) = response
            .map_err(|_| Failure::Unreachable(format!("{action}: no response in 5 s")))?
            .map_err(|error| {
                Failure::Unreachable(format!("{action}: {}", crate::call::chain(&*error)))
            })?;
        if status == StatusCode::UNAUTHORIZED {
            self.tokens.invalidate(pod.node, pod.proxy);
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let missing = self.tokens.missing().filter(|_| !has_token);
            let why = missing.map(|why| format!(" without a token: {why}")).unwrap_or_default();
            return Err(Failure::Unauthorized(format!("{action}: returned {status}{why}")));
        }
        Ok((status, body))
    }

    pub(crate) async fn receive(
        &self,
        request: HttpRequest<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Box<dyn std::error::Error + Send + Sync>> {
        let response = self.http.request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let body = body.map_err(|error| format!("unreadable response: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}

/// The address of a pod in a URL.
pub(crate) fn host(ip: &str) -> String {
    if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() }
}

/// Whether a text has this many lower-case hex digits and nothing else.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}

fn unexpected(action: &str, status: StatusCode) -> Failure {
    Failure::Unreachable(format!("{action} returned {status}"))
}

/// The outcome of a poll. Only a 404 of the sidecar itself, with a JSON body, means that it has no
/// such task: a plain 404 comes from something in between. The record of another task is a failure,
/// because it proves nothing about the polled task.
fn polled(id: &str, status: StatusCode, body: &[u8]) -> Result<Outcome, Failure> {
    let Some(record) = perform::json(body).filter(Value::is_object) else {
        return Err(unexpected("poll", status));
    };
    match status {
        StatusCode::OK if record["id"].as_str().is_some_and(|returned| returned != id) => {
            Err(Failure::Unreachable("poll returned another id".to_owned()))
        }
        StatusCode::OK => {
            let text = |key: &str| record[key].as_str().unwrap_or_default().to_owned();
            let state = match record["status"].as_str() {
                Some("completed") => TaskState::Completed,
                Some("failed") => {
                    let error = text("error");
                    TaskState::Failed(if error.is_empty() { "unknown error".into() } else { error })
                }
                _ => TaskState::Running,
            };
            let hash = record["result"]["genesisHash"].as_str();
            let genesis_hash = hash.filter(|hash| is_hex(hash, 64)).map(str::to_owned);
            Ok(Outcome::Task(Some(TaskRecord { state, genesis_hash })))
        }
        StatusCode::NOT_FOUND => Ok(Outcome::Task(None)),
        status => Err(unexpected("poll", status)),
    }
}

/// The outcome of a submission. An accepted one returns the id that was sent; anything else is a
/// failure.
fn submitted(id: &str, status: StatusCode, body: &[u8]) -> Result<Outcome, Failure> {
    if status == StatusCode::BAD_REQUEST {
        let error = perform::json(body).and_then(|body| body["error"].as_str().map(str::to_owned));
        let error = error.unwrap_or_else(|| "400 without an error".to_owned());
        return Err(Failure::TaskRefused(format!("the sidecar refuses it: {error}")));
    }
    if !matches!(status, StatusCode::CREATED | StatusCode::ACCEPTED) {
        return Err(unexpected("submit", status));
    }
    match perform::json(body) {
        Some(record) if record["id"] == id => Ok(Outcome::Accepted),
        _ => Err(Failure::Unreachable("submit returned another id".to_owned())),
    }
}

#[cfg(test)]
mod tests;
