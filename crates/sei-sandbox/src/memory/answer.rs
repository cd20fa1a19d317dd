//! One request to the server, and its answer.

use std::fmt::Write as _;

use http::{Method, StatusCode, Uri};
use hyper::body::Bytes;
use serde_json::{Value, json};

use super::fields::{Writer, apply, merge, record};
use super::statefulset::{begin_deletion, sync};
use super::store::{Key, Selection, Store};
use super::{Origin, Reply, ReplyBody};

/// A request as far as the server reads it.
pub(super) struct Request {
    origin: Origin,
    method: Method,
    plural: String,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    query: Vec<(String, String)>,
    is_apply: bool,
    body: Value,
}

impl Request {
    pub(super) fn read(
        origin: Origin,
        method: &Method,
        uri: &Uri,
        is_apply: bool,
        body: &[u8],
    ) -> Self {
        let mut path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        // `/api/v1/...` and `/apis/group/version/...`
        path.drain(..if path.first() == Some(&"api") { 2 } else { 3 }.min(path.len()));
        let namespace = if path.first() == Some(&"namespaces") && path.len() > 2 {
            let namespace = path[1].to_owned();
            path.drain(..2);
            Some(namespace)
        } else {
            None
        };
        let part = |at: usize| path.get(at).map(|part| (*part).to_owned());
        let query = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        let query = query.map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        });
        Self {
            origin,
            method: method.clone(),
            plural: part(0).unwrap_or_default(),
            namespace,
            name: part(1),
            subresource: part(2),
            query: query.collect(),
            is_apply,
            body: serde_json::from_slice(body).unwrap_or_default(),
        }
    }

    fn query(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    fn is_watch(&self) -> bool {
        self.query("watch").is_some_and(|value| value == "true" || value == "1")
    }

    fn key(&self) -> Key {
        let from_body = || self.body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        Key {
            plural: self.plural.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone().unwrap_or_else(from_body),
        }
    }

    fn selection(&self) -> Selection {
        let labels = self.query("labelSelector").unwrap_or_default().split(',');
        let labels =
            labels.filter(|label| !label.is_empty()).map(|label| match label.split_once('=') {
                Some((name, value)) => {
                    (name.to_owned(), Some(value.trim_start_matches('=').to_owned()))
                }
                None => (label.to_owned(), None),
            });
        let labels = labels.collect();
        Selection { plural: self.plural.clone(), namespace: self.namespace.clone(), labels }
    }

    /// Method and resource: `PATCH seinodes/status`.
    fn summary(&self) -> String {
        let verb = match (&self.method, &self.name) {
            (&Method::GET, None) => "LIST",
            (method, _) => method.as_str(),
        };
        let mut text = format!("{verb} {}", self.plural);
        if let Some(subresource) = &self.subresource {
            let _ = write!(text, "/{subresource}");
        }
        if self.is_dry_run() {
            text.push_str(" (dry run)");
        }
        text
    }

    fn is_dry_run(&self) -> bool {
        self.query("dryRun").is_some()
    }

    fn writer(&self) -> Writer<'_> {
        let manager = match self.origin {
            Origin::Operator => "sei-operator",
            Origin::Kubelet => "kubelet",
        };
        Writer {
            manager: self.query("fieldManager").unwrap_or(manager),
            is_apply: self.is_apply,
            subresource: self.subresource.as_deref(),
        }
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let decoded = match byte {
            b'%' => {
                let digits = [rest.next().unwrap_or_default(), rest.next().unwrap_or_default()];
                let digits = std::str::from_utf8(&digits).unwrap_or_default();
                u8::from_str_radix(digits, 16).unwrap_or_default()
            }
            b'+' => b' ',
            plain => plain,
        };
        bytes.push(decoded);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Why a request is refused.
struct Refusal(StatusCode, &'static str);

const NOT_FOUND: Refusal = Refusal(StatusCode::NOT_FOUND, "NotFound");
const ALREADY_EXISTS: Refusal = Refusal(StatusCode::CONFLICT, "AlreadyExists");
const CONFLICT: Refusal = Refusal(StatusCode::CONFLICT, "Conflict");
const UNKNOWN_METHOD: Refusal = Refusal(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed");

impl Store {
    pub(super) fn leaves_unanswered(&self, request: &Request) -> bool {
        request.origin == Origin::Operator
            && !request.is_watch()
            && self.unanswered.contains(&request.summary())
    }

    pub(super) fn answer(&mut self, request: &Request) -> Reply {
        if request.is_watch() {
            let after = request.query("resourceVersion").and_then(|text| text.parse().ok());
            let lines = self.watch(request.selection(), after.unwrap_or_default());
            return Reply { status: StatusCode::OK, body: ReplyBody::Watch(lines) };
        }
        if request.origin == Origin::Operator {
            self.count_request(request.summary());
        }
        let answer = match request.method {
            Method::GET if request.name.is_none() => Ok(self.list(&request.selection())),
            Method::GET => self.get(&request.key()).cloned().ok_or(NOT_FOUND),
            Method::POST => self.post(request),
            Method::PATCH => self.patch(request),
            Method::PUT => self.replace(request),
            Method::DELETE => self.remove(request),
            _ => Err(UNKNOWN_METHOD),
        };
        let (status, body) = match answer {
            Ok(object) => (StatusCode::OK, object),
            Err(Refusal(status, reason)) => {
                let message = format!("{reason}: {} {}", request.plural, request.key().name);
                let body = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure",
                    "code": status.as_u16(), "reason": reason, "message": message,
                    "metadata": {} });
                (status, body)
            }
        };
        Reply { status, body: ReplyBody::Whole(Bytes::from(body.to_string())) }
    }

    fn post(&mut self, request: &Request) -> Result<Value, Refusal> {
        let key = request.key();
        if request.subresource.as_deref() == Some("binding") {
            let mut pod = self.get(&key).cloned().ok_or(NOT_FOUND)?;
            pod["spec"]["nodeName"] = request.body["target"]["name"].clone();
            self.update(&key, pod);
            return Ok(json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }));
        }
        if request.is_dry_run() {
            return Ok(request.body.clone());
        }
        if self.get(&key).is_some() {
            return Err(ALREADY_EXISTS);
        }
        let mut object = request.body.clone();
        // Events are not watched, and no decision reads their fields.
        if key.plural != "events" {
            record(&mut object, &request.body, &request.writer());
        }
        let created = self.create(&key, object);
        sync(self, &key);
        Ok(created)
    }

    fn patch(&mut self, request: &Request) -> Result<Value, Refusal> {
        let key = request.key();
        let Some(before) = self.get(&key) else {
            return if request.is_apply { self.post(request) } else { Err(NOT_FOUND) };
        };
        let metadata = &request.body["metadata"];
        for field in ["resourceVersion", "uid"] {
            if !metadata[field].is_null() && metadata[field] != before["metadata"][field] {
                return Err(CONFLICT);
            }
        }
        let mut object = before.clone();
        match request.subresource.as_deref() {
            Some(part) => merge(&mut object[part], &request.body[part]),
            None if request.is_apply => apply(&mut object, &request.body),
            None => merge(&mut object, &request.body),
        }
        if request.is_dry_run() {
            return Ok(object);
        }
        if object == *before {
            return Ok(object);
        }
        if metadata["managedFields"].is_null() {
            record(&mut object, &request.body, &request.writer());
        }
        let stored = self.update(&key, object);
        sync(self, &key);
        Ok(stored)
    }

    fn replace(&mut self, request: &Request) -> Result<Value, Refusal> {
        let key = request.key();
        let before = self.get(&key).ok_or(NOT_FOUND)?;
        let version = &request.body["metadata"]["resourceVersion"];
        if !version.is_null() && *version != before["metadata"]["resourceVersion"] {
            return Err(CONFLICT);
        }
        Ok(self.update(&key, request.body.clone()))
    }

    fn remove(&mut self, request: &Request) -> Result<Value, Refusal> {
        let key = request.key();
        let object = self.get(&key).cloned().ok_or(NOT_FOUND)?;
        let preconditions = &request.body["preconditions"];
        for field in ["resourceVersion", "uid"] {
            let required = &preconditions[field];
            if !required.is_null() && *required != object["metadata"][field] {
                return Err(CONFLICT);
            }
        }
        let has_grace = request.body["gracePeriodSeconds"] != 0
            && object["spec"]["terminationGracePeriodSeconds"] != 0;
        if key.plural == "pods" && has_grace {
            begin_deletion(self, &key);
        } else {
            self.delete(&key);
            sync(self, &key);
        }
        Ok(object)
    }
}
