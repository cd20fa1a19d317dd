//! The HTTP interface of a sidecar and of the proxy in front of it.

use std::sync::Arc;

use http::header::{ALLOW, AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sei_api::rbac::SIDECAR_CALLER_RULES;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use super::process::Inner;
use super::{Received, lock, usual};
use crate::digest::{hex, sha256_hex};

type Answer = Response<Full<Bytes>>;

/// The process of a connection has ended: the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar has ended")]
struct Ended;

/// Serves one connection to its end.
pub(super) async fn serve(inner: Arc<Inner>, stream: impl AsyncRead + AsyncWrite + Send + Unpin) {
    let service = service_fn(|request| {
        let inner = inner.clone();
        async move {
            if inner.has_ended() {
                return Err(Ended);
            }
            let answer = answer(&inner, request).await;
            // A process that ended meanwhile must not respond.
            if inner.has_ended() { Err(Ended) } else { Ok(answer) }
        }
    });
    // The caller may close the connection at any time, which is not an error.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(inner: &Arc<Inner>, request: Request<Incoming>) -> Answer {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path();
    let token = bearer(&parts.headers);
    inner.sidecars.receive(Received {
        namespace: inner.host.namespace.clone(),
        node: inner.host.node.clone(),
        pod_uid: inner.host.pod_uid.clone(),
        request: format!("{} {path}", parts.method),
        token: token.map(str::to_owned),
        audience: inner.host.audience.clone(),
    });
    // The proxy responds with plain text, the sidecar with JSON.
    if !is_authenticated(inner, path, token) {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized\n");
    }
    if !is_authorized(inner, &parts.method, path) {
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
            let status = if inner.is_ready() { "Ready" } else { "Initializing" };
            json_answer(StatusCode::OK, &json!({ "status": status }))
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

/// Whether the role of the calling account has the permission that the proxy checks at the API server.
fn is_authorized(inner: &Inner, method: &Method, path: &str) -> bool {
    let verb = match *method {
        Method::POST => "create",
        Method::DELETE => "delete",
        _ => "get",
    };
    let mut rules = SIDECAR_CALLER_RULES.iter();
    is_open(inner, path) || rules.any(|rule| rule.verbs.contains(&verb))
}

fn is_open(inner: &Inner, path: &str) -> bool {
    inner.host.open_paths.iter().any(|open| open == path)
}

fn is_authenticated(inner: &Inner, path: &str, token: Option<&str>) -> bool {
    let has_audience = || match (&inner.host.audience, token) {
        (Some(required), Some(token)) => audiences(token).contains(required),
        // Unlike the real proxy, unless a scenario demands a token: most are not about tokens, and some
        // have no account that could have one.
        _ => true,
    };
    is_open(inner, path)
        || (inner.sidecars.accepts_token(&inner.host.namespace, token) && has_audience())
}

/// The audiences in a token. Its signature is not verified.
fn audiences(token: &str) -> Vec<String> {
    let payload = token.split('.').nth(1).map(from_base64).unwrap_or_default();
    let claims: Value = serde_json::from_slice(&payload).unwrap_or_default();
    let audiences = claims["aud"].as_array().into_iter().flatten();
    audiences.filter_map(|audience| audience.as_str().map(str::to_owned)).collect()
}

/// Decodes base64 in the alphabet of URLs, without padding.
fn from_base64(text: &str) -> Vec<u8> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return Vec::new(),
        };
        bits = (bits << 6) | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from((bits >> count) & 0xff).unwrap_or_default());
        }
    }
    bytes
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
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
    let Some(SubmitBody { id, task_type, params }) = SubmitBody::read(body) else {
        return refuse("invalid request body");
    };
    if task_type.is_empty() {
        return refuse("type is required");
    }
    if !usual::is_known(&task_type) {
        return refuse(&format!("unknown task type: {task_type}"));
    }
    let id = if id.is_empty() { random_id() } else { id };
    if !is_uuid(&id) {
        return refuse(&format!("task ID must be a valid UUID: {id:?}"));
    }
    if let Some(text) = inner.refusal(&task_type) {
        return refuse(&text);
    }
    inner.submit(&id, &task_type, params);
    json_answer(StatusCode::CREATED, &json!({ "id": id }))
}

/// The body of a submission.
struct SubmitBody {
    id: String,
    task_type: String,
    params: Value,
}

impl SubmitBody {
    /// As lenient as the real sidecar: field names in any case, text after the first value ignored.
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

/// Converts numbers through 64-bit floats, which changes large ones, like the real sidecar.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the loss of precision is intended"
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
        unchanged => unchanged,
    }
}

/// As lenient as the real sidecar: digits without dashes, a prefix, and any character on either side.
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

/// A random id, for submissions without one.
fn random_id() -> String {
    let mut bytes = [0_u8; 16];
    // If this fails the id is all zeros, which is valid.
    let _ = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let digits = hex(&bytes);
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

/// The same for every pod of a node, because the key is on the volume.
fn node_id(namespace: &str, node: &str) -> String {
    sha256_hex(&format!("{namespace}/{node}"))[..40].to_owned()
}

fn json_answer(status: StatusCode, value: &Value) -> Answer {
    let body = value.to_string();
    // These characters can only be inside of strings.
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
