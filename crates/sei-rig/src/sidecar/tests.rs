//! The HTTP interface, request by request, as observed on the real sidecar.

use std::sync::LazyLock;

use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::json;

use super::*;
use crate::kubelet::Addresses;

const FIRST: &str = "11111111-2222-4333-8444-555555555555";
const SECOND: &str = "22222222-2222-4333-8444-555555555555";
const THIRD: &str = "33333333-2222-4333-8444-555555555555";

/// A sidecar that can be restarted; its volume stays.
struct Pod {
    sidecars: Arc<Sidecars>,
    host: Host,
    process: Option<Process>,
}

impl Pod {
    fn start() -> Self {
        static ADDRESSES: LazyLock<Addresses> = LazyLock::new(|| Addresses::lock().unwrap());
        let namespace = "demo".to_owned();
        let volume =
            VolumeKey { namespace: namespace.clone(), claim: "data-a".into(), uid: "1".into() };
        let host = Host {
            namespace,
            node: "a".into(),
            pod_uid: "pod-1".into(),
            ip: ADDRESSES.take().unwrap(),
            volume,
            open_paths: vec!["/v0/healthz".into()],
            is_secure: false,
            audience: None,
        };
        let mut pod = Self { sidecars: Arc::default(), host, process: None };
        pod.restart();
        pod
    }

    fn restart(&mut self) {
        self.process = None;
        self.process =
            Some(Process::start(&self.sidecars, self.host.clone(), Answering::default()));
    }

    /// Repeats the request until the sidecar listens.
    async fn request(&self, method: &str, path: &str, body: &str) -> (u16, String, String) {
        let client: Client<_, String> = Client::builder(TokioExecutor::new()).build_http();
        loop {
            let uri = format!("http://{}:8443{path}", self.host.ip);
            let request = Request::builder().method(method).uri(uri).body(body.to_owned()).unwrap();
            let Ok(answer) = client.request(request).await else { continue };
            let header = answer.headers().get("content-type").cloned();
            let content =
                header.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            return (status, content, String::from_utf8(body.to_vec()).unwrap());
        }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let (status, _, body) = self.request("GET", path, "").await;
        (status, serde_json::from_str(&body).unwrap_or_default())
    }

    async fn submit(&self, body: Value) -> (u16, Value) {
        let (status, content, answer) = self.request("POST", "/v0/tasks", &body.to_string()).await;
        assert_eq!(content, "application/json");
        (status, serde_json::from_str(&answer).unwrap())
    }

    async fn health(&self) -> u16 {
        let (status, content, body) = self.request("GET", "/v0/healthz", "").await;
        assert_eq!((content.as_str(), body.as_str()), ("", ""));
        status
    }

    /// Waits until the record is in this state.
    async fn record(&self, id: &str, state: &str) -> Value {
        loop {
            let (_, record) = self.get(&format!("/v0/tasks/{id}")).await;
            if record["status"] == state {
                return record;
            }
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn mark_ready_opens_the_gate_and_its_id_runs_once() {
    let mut pod = Pod::start();
    assert_eq!(pod.health().await, 503);
    assert_eq!(pod.get("/v0/status").await, (200, json!({ "status": "Initializing" })));
    let mark_ready = json!({ "id": FIRST, "type": "mark-ready" });
    assert_eq!(pod.submit(mark_ready.clone()).await, (201, json!({ "id": FIRST })));
    pod.record(FIRST, "completed").await;
    assert_eq!(pod.health().await, 200);
    assert_eq!(pod.get("/v0/status").await, (200, json!({ "status": "Ready" })));

    assert_eq!(pod.submit(mark_ready.clone()).await.0, 201);
    assert_eq!(pod.record(FIRST, "completed").await["run"], 1);
    pod.restart();
    assert_eq!(pod.submit(mark_ready).await.0, 201);
    assert_eq!(pod.health().await, 503);
    pod.submit(json!({ "id": SECOND, "type": "mark-ready" })).await;
    pod.record(SECOND, "completed").await;
    assert_eq!(pod.health().await, 200);
    assert_eq!(pod.sidecars.gate_openings("demo", "a").len(), 2);
}

#[tokio::test]
async fn each_first_answer_is_recorded() {
    let mut pod = Pod::start();
    let answers = |pod: &Pod| pod.sidecars.first_answers("demo", "a").len();
    pod.health().await;
    assert_eq!(answers(&pod), 1);
    pod.process = None;
    let hanging = Process::start(&pod.sidecars, pod.host.clone(), Answering::Hangs);
    // All other tasks have run when this returns.
    tokio::task::yield_now().await;
    assert_eq!(answers(&pod), 1, "a hanging sidecar does not respond");
    hanging.set_answering(Answering::Yes);
    pod.health().await;
    assert_eq!(answers(&pod), 2);
}

#[tokio::test]
async fn an_invalid_submission_is_rejected() {
    let pod = Pod::start();
    let cases = [
        ("", "invalid request body"),
        ("[]", "invalid request body"),
        (r#"{"type":"mark-ready","params":[]}"#, "invalid request body"),
        ("null", "type is required"),
        ("{}", "type is required"),
        (r#"{"type":"dance","id":"no"}"#, "unknown task type: dance"),
        (r#"{"type":"mark-ready","id":"no"}"#, r#"task ID must be a valid UUID: "no""#),
    ];
    for (body, text) in cases {
        let (status, _, answer) = pod.request("POST", "/v0/tasks", body).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, answer), (400, json!({ "error": text })), "{body}");
    }
    let (status, _, answer) =
        pod.request("POST", "/v0/tasks", r#"{"TYPE":"stop-seid"} more"#).await;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, answer["id"].as_str().map(str::len)), (201, Some(36)));
}

#[tokio::test]
async fn a_failed_id_runs_again_with_new_content() {
    let pod = Pod::start();
    pod.submit(json!({ "id": FIRST, "type": "config-patch" })).await;
    let record = pod.record(FIRST, "failed").await;
    assert_eq!(record["error"], "config-patch: at least one file is required");
    assert_eq!(record.get("params"), None);
    pod.submit(json!({ "id": FIRST, "type": "reset-data" })).await;
    let record = pod.record(FIRST, "completed").await;
    assert_eq!((&record["run"], &record["type"]), (&json!(2), &json!("reset-data")));
    assert_eq!(record["result"], json!({ "wipedBytes": 0 }));
    assert_eq!(record.get("error"), None);
}

#[tokio::test]
async fn numbers_lose_what_a_float_cannot_hold() {
    let pod = Pod::start();
    let params = json!({ "condition": "height", "targetHeight": 9_007_199_254_740_993_i64 });
    pod.submit(json!({ "id": FIRST, "type": "await-condition", "params": params })).await;
    let record = pod.record(FIRST, "completed").await;
    assert_eq!(record["params"]["targetHeight"], 9_007_199_254_740_992_i64);
}

#[tokio::test]
async fn an_unknown_task_and_an_unknown_path_have_different_responses() {
    let pod = Pod::start();
    for id in [FIRST, "no-uuid"] {
        let answer = pod.get(&format!("/v0/tasks/{id}")).await;
        assert_eq!(answer, (404, json!({ "error": "task not found" })));
    }
    for path in ["/v0/tasks/", "/v0/tasks/a/b", "/v1"] {
        let (status, content, body) = pod.request("GET", path, "").await;
        assert_eq!((status, body.as_str()), (404, "404 page not found\n"), "{path}");
        assert!(content.starts_with("text/plain"), "{content}");
    }
    assert_eq!(pod.request("PUT", "/v0/tasks", "").await.0, 405);
}

#[tokio::test]
async fn a_running_task_can_be_deleted() {
    let pod = Pod::start();
    pod.sidecars.hold("demo", "a", "snapshot-restore");
    pod.submit(json!({ "id": FIRST, "type": "snapshot-restore" })).await;
    pod.record(FIRST, "running").await;
    let path = format!("/v0/tasks/{FIRST}");
    assert_eq!(pod.request("DELETE", &path, "").await.0, 204);
    assert_eq!(pod.get(&path).await.0, 404);
    assert_eq!(pod.request("DELETE", &path, "").await.0, 404);
}

#[tokio::test]
async fn a_list_ends_at_a_hundred() {
    let pod = Pod::start();
    for _ in 0..101 {
        pod.submit(json!({ "type": "stop-seid" })).await;
    }
    let (status, list) = pod.get("/v0/tasks").await;
    assert_eq!((status, list.as_array().map(Vec::len)), (200, Some(100)));
}

#[tokio::test]
async fn mark_not_ready_removes_every_mark_ready() {
    let pod = Pod::start();
    pod.submit(json!({ "id": FIRST, "type": "mark-ready" })).await;
    pod.record(FIRST, "completed").await;
    pod.submit(json!({ "id": SECOND, "type": "mark-not-ready" })).await;
    pod.record(SECOND, "completed").await;
    assert_eq!(pod.health().await, 503);
    assert_eq!(pod.get(&format!("/v0/tasks/{FIRST}")).await.0, 404);
}

#[tokio::test]
async fn a_restart_resumes_tasks_and_mark_not_ready_takes_precedence() {
    let mut pod = Pod::start();
    pod.sidecars.hold("demo", "a", "mark-ready");
    pod.submit(json!({ "id": FIRST, "type": "mark-ready" })).await;
    pod.restart();
    pod.sidecars.release("demo", "a", "mark-ready");
    assert_eq!(pod.record(FIRST, "completed").await["run"], 1);
    assert_eq!(pod.health().await, 200);

    pod.sidecars.hold("demo", "a", "mark-ready");
    pod.sidecars.hold("demo", "a", "mark-not-ready");
    pod.submit(json!({ "id": SECOND, "type": "mark-ready" })).await;
    pod.submit(json!({ "id": THIRD, "type": "mark-not-ready" })).await;
    pod.restart();
    pod.record(THIRD, "completed").await;
    assert_eq!(pod.get(&format!("/v0/tasks/{SECOND}")).await.0, 404);
    assert_eq!(pod.health().await, 503);
}

#[tokio::test]
async fn a_node_has_one_id_and_its_proxy_may_require_a_token() {
    let pod = Pod::start();
    let (_, answer) = pod.get("/v0/node-id").await;
    let id = answer["nodeId"].as_str().unwrap();
    assert!(
        id.len() == 40 && id.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')),
        "{id}"
    );
    pod.sidecars.demand_token("demo", None);
    let (status, content, body) = pod.request("GET", "/v0/node-id", "").await;
    assert_eq!((status, body.as_str()), (StatusCode::UNAUTHORIZED.as_u16(), "Unauthorized\n"));
    assert!(content.starts_with("text/plain"), "{content}");
    assert_eq!(pod.health().await, 503);
}
