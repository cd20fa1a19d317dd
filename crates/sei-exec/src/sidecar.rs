//! The client of the HTTP API of a pod's sidecar.
//!
//! The pod is addressed by its IP, because a name may still resolve to its predecessor. The scheme
//! is fixed, no redirect is followed, no proxy variable is read, and no response body is logged.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::{Method, Request as HttpRequest, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use sei_plan::request::{Failure, Outcome, SidecarCall, SidecarRequest, TaskRecord, TaskState};
use serde_json::{Value, json};

use crate::perform;

/// Port of the auth proxy in front of the sidecar. Plain HTTP, although the number suggests TLS.
pub const PORT: u16 = 8443;
/// The largest response body that is read, in bytes.
const BODY_MAX: usize = 256 * 1024;
/// How long a call may take, connecting included.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long a token is used before its file is read again: projected tokens rotate.
const TOKEN_AGE: Duration = Duration::from_secs(50);

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
    http: Client<HttpConnector, Full<Bytes>>,
    token: Token,
}

/// A bearer token that is re-read from its file.
#[derive(Clone)]
struct Token {
    path: Option<PathBuf>,
    /// The token that was read last, and when.
    cached: Arc<Mutex<Option<(Instant, String)>>>,
}

impl Sidecar {
    /// A client that sends the token in this file; without a file it sends none.
    pub fn new(token_path: Option<PathBuf>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(Duration::from_secs(2)));
        connector.set_nodelay(true);
        Self {
            http: Client::builder(TokioExecutor::new())
                .pool_idle_timeout(Duration::from_secs(10))
                .build(connector),
            token: Token { path: token_path, cached: Arc::default() },
        }
    }

    /// Performs the call of a task.
    pub async fn call(&self, request: &SidecarRequest) -> Result<Outcome, Failure> {
        let ip = &request.ip;
        match &request.call {
            SidecarCall::Poll { id } => {
                let (status, body) =
                    self.send(ip, Method::GET, &format!("/v0/tasks/{id}"), None).await?;
                polled(id, status, &body)
            }
            SidecarCall::Submit { id, task_type, params } => {
                let task = json!({ "id": id, "type": task_type, "params": params });
                let (status, body) = self.send(ip, Method::POST, "/v0/tasks", Some(&task)).await?;
                submitted(id, status, &body)
            }
            SidecarCall::Delete { id } => {
                let (status, _) =
                    self.send(ip, Method::DELETE, &format!("/v0/tasks/{id}"), None).await?;
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
    pub async fn probe(&self, ip: &str) -> Health {
        match self.send(ip, Method::GET, "/v0/healthz", None).await {
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
    pub async fn node_id(&self, ip: &str) -> Result<String, Failure> {
        let (status, body) = self.send(ip, Method::GET, "/v0/node-id", None).await?;
        if status != StatusCode::OK {
            return Err(unexpected("node-id", status));
        }
        let id = perform::json(&body).and_then(|body| body["nodeId"].as_str().map(str::to_owned));
        id.filter(|id| id.len() == 40 && id.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f')))
            .ok_or_else(|| Failure::Unreachable("node-id returned no valid id".to_owned()))
    }

    async fn send(
        &self,
        ip: &str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let action = format!("{method} {path} on {host}");
        let mut request =
            HttpRequest::builder().method(method).uri(format!("http://{host}:{PORT}{path}"));
        // A token sent to the health path would reach the sidecar's own process: it is not sent.
        if path != "/v0/healthz"
            && let Some(token) = self.token.read()?
        {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let body = body.map(ToString::to_string).unwrap_or_default();
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Failure::Unreachable(format!("{action}: {error}")))?;
        let response = tokio::time::timeout(DEADLINE, self.receive(request)).await;
        let (status, body) = response
            .map_err(|_| Failure::Unreachable(format!("{action}: no response in 5 s")))?
            .map_err(|error| Failure::Unreachable(format!("{action}: {error}")))?;
        if status == StatusCode::UNAUTHORIZED {
            self.token.invalidate();
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(Failure::Unauthorized(format!("{action}: returned {status}")));
        }
        Ok((status, body))
    }

    async fn receive(
        &self,
        request: HttpRequest<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), String> {
        let response =
            self.http.request(request).await.map_err(|error| crate::call::chain(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BODY_MAX).collect().await;
        let body = body.map_err(|error| format!("unreadable response: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}

impl Token {
    fn read(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.path else { return Ok(None) };
        let mut cached = self.cached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some((read_at, token)) = cached.as_ref()
            && read_at.elapsed() < TOKEN_AGE
        {
            return Ok(Some(token.clone()));
        }
        let token = std::fs::read_to_string(path).map(|text| text.trim().to_owned());
        match token {
            Ok(token) if !token.is_empty() => {
                *cached = Some((Instant::now(), token.clone()));
                Ok(Some(token))
            }
            // The previous token may still be valid for a while.
            _ => match cached.as_ref() {
                Some((_, token)) => Ok(Some(token.clone())),
                None => Err(Failure::Unauthorized("the token file cannot be read".to_owned())),
            },
        }
    }

    fn invalidate(&self) {
        *self.cached.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }
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
            Ok(Outcome::Task(Some(TaskRecord { state })))
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
