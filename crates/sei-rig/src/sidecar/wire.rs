//! The wire of a sidecar and of the proxy in front of it.

use std::sync::Arc;

use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sei_api::rbac::RULES;
use serde_json::{Map, Value, json};
use tokio::net::TcpStream;

use super::process::Inner;
use super::{lock, usual};
use crate::digest::{hex, sha256_hex};

type Answer = Response<Full<Bytes>>;

/// The process behind a connection has ended: the connection breaks.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar has ended")]
struct Gone;

/// Serves one connection to its end.
pub(super) async fn serve(inner: Arc<Inner>, stream: TcpStream) {
    let service = service_fn(|request| {
        let inner = inner.clone();
        async move {
            if inner.is_gone() {
                return Err(Gone);
            }
            let answer = answer(&inner, request).await;
            // A process that ended meanwhile says nothing any more.
            if inner.is_gone() { Err(Gone) } else { Ok(answer) }
        }
    });
    // Whoever calls may leave in the middle; there is nobody to tell.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(inner: &Arc<Inner>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    // The proxy's own words: the sidecar would say it in JSON.
    if !is_let_through(inner, path, &parts.headers) {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized\n");
    }
    if !is_granted(inner, &parts.method, path) {
        return text(StatusCode::FORBIDDEN, "Forbidden\n");
    }
    let reads = matches!(parts.method, Method::GET | Method::HEAD);
    match path {
        "/v0/tasks" if reads => json_answer(StatusCode::OK, &json!(lock(&inner.records).list())),
        "/v0/tasks" if parts.method == Method::POST => match body.collect().await {
            Ok(body) => submit(inner, &body.to_bytes()),
            Err(_) => failure(StatusCode::BAD_REQUEST, "invalid request body"),
        },
        "/v0/tasks" => not_allowed("GET, HEAD, POST"),
        _ if path.strip_prefix("/v0/tasks/").is_some_and(is_id) => {
            task(inner, &parts.method, &path["/v0/tasks/".len()..])
        }
        _ if !reads => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        "/v0/healthz" | "/v0/startupz" if inner.is_ready() => empty(StatusCode::OK),
        "/v0/healthz" | "/v0/startupz" => empty(StatusCode::SERVICE_UNAVAILABLE),
        "/v0/livez" => empty(StatusCode::OK),
        "/v0/status" => {
            let word = if inner.is_ready() { "Ready" } else { "Initializing" };
            json_answer(StatusCode::OK, &json!({ "status": word }))
        }
        "/v0/node-id" => {
            let id = node_id(&inner.host.namespace, &inner.host.node);
            json_answer(StatusCode::OK, &json!({ "nodeId": id }))
        }
        "/v0/metrics" => text(StatusCode::OK, ""),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn is_id(rest: &str) -> bool {
    !rest.is_empty() && !rest.contains('/')
}

/// Whether the operator's own role has what the proxy asks the API server for.
fn is_granted(inner: &Inner, method: &Method, path: &str) -> bool {
    let verb = match *method {
        Method::POST => "create",
        Method::DELETE => "delete",
        _ => "get",
    };
    let mut rules = RULES.iter().filter(|rule| rule.resource == "seinodetasks");
    is_open(inner, path) || rules.any(|rule| rule.verbs.contains(&verb))
}

fn is_open(inner: &Inner, path: &str) -> bool {
    inner.host.open_paths.iter().any(|open| open == path)
}

fn is_let_through(inner: &Inner, path: &str, headers: &HeaderMap) -> bool {
    if is_open(inner, path) {
        return true;
    }
    let value = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = value.and_then(|value| value.strip_prefix("Bearer "));
    inner.sidecars.lets_through(&inner.host.namespace, token)
}

fn task(inner: &Inner, method: &Method, id: &str) -> Answer {
    let unknown = || failure(StatusCode::NOT_FOUND, "task not found");
    match *method {
        Method::GET | Method::HEAD => match lock(&inner.records).get(id) {
            Some(record) => json_answer(StatusCode::OK, &record.to_json()),
            None => unknown(),
        },
        Method::DELETE if inner.delete(id) => empty(StatusCode::NO_CONTENT),
        Method::DELETE => unknown(),
        _ => not_allowed("DELETE, GET, HEAD"),
    }
}

fn submit(inner: &Arc<Inner>, body: &[u8]) -> Answer {
    let refuse = |text: &str| failure(StatusCode::BAD_REQUEST, text);
    let Some(Desired { id, task_type, params }) = Desired::read(body) else {
        return refuse("invalid request body");
    };
    if task_type.is_empty() {
        return refuse("type is required");
    }
    if !usual::is_known(&task_type) {
        return refuse(&format!("unknown task type: {task_type}"));
    }
    let id = if id.is_empty() { drawn_id() } else { id };
    if !is_uuid(&id) {
        return refuse(&format!("task ID must be a valid UUID: {id:?}"));
    }
    inner.submit(&id, &task_type, params);
    json_answer(StatusCode::CREATED, &json!({ "id": id }))
}

/// A submission as it was sent.
struct Desired {
    id: String,
    task_type: String,
    params: Value,
}

impl Desired {
    /// Lenient like the real one: names of fields in any case, text after the first value ignored.
    fn read(body: &[u8]) -> Option<Self> {
        let first = serde_json::Deserializer::from_slice(body).into_iter::<Value>().next();
        let fields = match first?.ok()? {
            Value::Null => Map::new(),
            Value::Object(fields) => fields,
            _ => return None,
        };
        let field = |name: &str| {
            let found = fields.iter().rev().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone()).filter(|value| !value.is_null())
        };
        let text = |name: &str| match field(name) {
            None => Some(String::new()),
            Some(Value::String(text)) => Some(text),
            Some(_) => None,
        };
        let params = field("params").unwrap_or_else(|| json!({}));
        params.is_object().then_some(())?;
        Some(Self { id: text("id")?, task_type: text("type")?, params: through_floats(params) })
    }
}

/// Numbers pass through a float of 64 bits, and large ones come out changed.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the loss is what is shown"
)]
fn through_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_i64() {
            Some(whole) => json!(whole as f64 as i64),
            None => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(through_floats).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(name, value)| (name, through_floats(value))).collect()
        }
        other => other,
    }
}

/// As lenient as the real one: bare digits, a prefix, and any letter on either side.
fn is_uuid(id: &str) -> bool {
    let is_dashed = |text: &str| {
        text.len() == 36
            && text.bytes().enumerate().all(|(at, byte)| match at {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => byte.is_ascii_hexdigit(),
            })
    };
    match id.len() {
        32 => id.bytes().all(|byte| byte.is_ascii_hexdigit()),
        36 => is_dashed(id),
        38 => id.get(1..37).is_some_and(is_dashed),
        45 => id.strip_prefix("urn:uuid:").is_some_and(is_dashed),
        _ => false,
    }
}

/// An id of the server's own choice.
fn drawn_id() -> String {
    let mut bytes = [0_u8; 16];
    // Without randomness the id is all zeros, which is still one.
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let digits = hex(&bytes);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// The same for every pod of a node, as its key is on the volume.
fn node_id(namespace: &str, node: &str) -> String {
    sha256_hex(&format!("{namespace}/{node}"))[..40].to_owned()
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    let body = value.to_string();
    // Only texts can hold these.
    let body = body.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026");
    with(status, "application/json", body + "\n")
}

fn failure(status: StatusCode, text: &str) -> Answer {
    json_answer(status, &json!({ "error": text }))
}

fn text(status: StatusCode, text: &str) -> Answer {
    with(status, "text/plain; charset=utf-8", text.to_owned())
}

fn not_allowed(methods: &'static str) -> Answer {
    let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n");
    answer.headers_mut().insert(ALLOW, http::HeaderValue::from_static(methods));
    answer
}

fn with(status: StatusCode, content: &'static str, body: String) -> Answer {
    let mut answer = empty(status);
    answer.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static(content));
    *answer.body_mut() = Full::new(Bytes::from(body));
    answer
}

fn empty(status: StatusCode) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}
