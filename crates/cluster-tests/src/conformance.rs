//! What a real kubelet reports of a node's pod and what the real sidecar and its proxy answer. The
//! stories on a real node run these checks, and `stand_ins.rs` runs them on the stand-ins of `sei-rig`.

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use kube::{Client, Config};
use serde_json::{Value, json};

/// The response of a pod's sidecar through its proxy: status and body.
pub async fn call_sidecar(
    address: &str,
    method: &str,
    path: &str,
    body: String,
    token: Option<&str>,
) -> Result<(u16, String)> {
    let mut config = Config::new(format!("https://{address}:8443").parse()?);
    config.accept_invalid_certs = true;
    // A closed gate is a 503, which the client would otherwise ask for again.
    config.default_retry = false;
    let mut request = http::Request::builder().method(method).uri(path);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let response = Client::try_from(config)?.send(request.body(body.into_bytes().into())?).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect_bytes().await?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// The tokens that a caller of a proxy can have.
pub struct Tokens {
    /// For the node of this proxy.
    pub own: String,
    /// For another node.
    pub of_neighbour: String,
    /// For the API server.
    pub of_server: String,
}

/// The proxy of a pod accepts a token for its own node, and no other.
pub async fn check_tokens(address: &str, tokens: &Tokens) -> Result<()> {
    let ask = async |token: Option<&str>| {
        call_sidecar(address, "GET", "/v0/status", String::new(), token).await
    };
    let (status, body) = ask(Some(&tokens.own)).await?;
    ensure!(status == 200, "its own token: {status} {body}");
    for (of, token) in [
        ("another node's token", Some(tokens.of_neighbour.as_str())),
        ("the API server's token", Some(tokens.of_server.as_str())),
        ("a forged token", Some("forged")),
        ("no token", None),
    ] {
        let (status, body) = ask(token).await?;
        ensure!((status, body.trim()) == (401, "Unauthorized"), "{of}: {status} {body}");
    }
    let (status, _) = call_sidecar(address, "GET", "/v0/livez", String::new(), None).await?;
    ensure!(status == 200, "a probe needs no token: {status}");
    Ok(())
}

/// The id of the task that [`check_closed_sidecar`] submits.
const ID: &str = "77777777-2222-4333-8444-555555555555";

/// The status of a pod whose containers run behind their closed gate.
pub fn check_held_pod(pod: &Pod) -> Result<()> {
    let status = pod.status.as_ref().context("the pod has a status")?;
    check_common(status)?;
    for (name, started) in [("seid", false), ("cosmos-exporter", true)] {
        let held = container(status, name)?;
        ensure!((held.started, held.ready) == (Some(started), false), "{name}: {held:?}");
    }
    let proxy = container(status, "kube-rbac-proxy")?;
    ensure!((proxy.started, proxy.ready) == (Some(true), false), "{proxy:?}");
    for kind in ["Ready", "ContainersReady"] {
        let found = condition(status, kind)?;
        ensure!(
            found == ("False".to_owned(), "ContainersNotReady".to_owned()),
            "{kind}: {found:?}"
        );
    }
    Ok(())
}

/// The status of a pod that is Ready.
pub fn check_ready_pod(pod: &Pod) -> Result<()> {
    let status = pod.status.as_ref().context("the pod has a status")?;
    check_common(status)?;
    for name in ["seid", "cosmos-exporter", "kube-rbac-proxy", "sei-sidecar"] {
        let found = container(status, name)?;
        ensure!((found.started, found.ready) == (Some(true), true), "{name}: {found:?}");
    }
    for kind in ["Ready", "ContainersReady"] {
        ensure!(condition(status, kind)?.0 == "True", "{kind}");
    }
    Ok(())
}

/// The last status of a pod before it is deleted: all containers have ended, and the phase is that of their exit codes.
pub fn check_ended_pod(pod: &Pod) -> Result<()> {
    let status = pod.status.as_ref().context("the pod has a status")?;
    let reason = match status.phase.as_deref() {
        Some("Succeeded") => "PodCompleted",
        Some("Failed") => "PodFailed",
        phase => bail!("a pod whose containers have ended has the phase {phase:?}"),
    };
    let mut codes = Vec::new();
    for name in ["seid-init", "sei-sidecar", "kube-rbac-proxy", "seid", "cosmos-exporter"] {
        let found = container(status, name)?;
        let ended = found.state.as_ref().and_then(|state| state.terminated.as_ref());
        codes.push(ended.with_context(|| format!("{name} has ended: {found:?}"))?.exit_code);
    }
    let has_failed = codes.iter().any(|code| *code != 0);
    ensure!(has_failed == (reason == "PodFailed"), "{:?}: {codes:?}", status.phase);
    for kind in ["Ready", "ContainersReady"] {
        let found = condition(status, kind)?;
        ensure!(found == ("False".to_owned(), reason.to_owned()), "{kind}: {found:?}");
    }
    ensure!(pod.metadata.deletion_timestamp.is_some(), "the pod is being deleted");
    Ok(())
}

fn check_common(status: &PodStatus) -> Result<()> {
    ensure!(status.phase.as_deref() == Some("Running"), "{:?}", status.phase);
    ensure!(status.pod_ip.is_some() && status.host_ip.is_some() && status.start_time.is_some());
    for kind in ["PodScheduled", "Initialized", "PodReadyToStartContainers"] {
        ensure!(condition(status, kind)?.0 == "True", "{kind}");
    }
    let init = container(status, "seid-init")?;
    let ended = init.state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = ended.map(|ended| (ended.exit_code, ended.reason.as_deref()));
    ensure!(ended == Some((0, Some("Completed"))) && init.ready, "{init:?}");
    ensure!(init.started == Some(false), "{init:?}");
    for name in ["sei-sidecar", "kube-rbac-proxy", "seid", "cosmos-exporter"] {
        let found = container(status, name)?;
        let runs = found.state.as_ref().is_some_and(|state| state.running.is_some());
        ensure!(runs && found.restart_count == 0, "{found:?}");
        ensure!(found.image_id.contains("sha256:"), "{found:?}");
        let id = found.container_id.as_deref().unwrap_or_default();
        ensure!(id.starts_with("containerd://"), "{found:?}");
    }
    Ok(())
}

fn container<'a>(status: &'a PodStatus, name: &str) -> Result<&'a ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    let mut all = init.chain(status.container_statuses.iter().flatten());
    all.find(|found| found.name == name).with_context(|| format!("{name} is not reported"))
}

/// Status and reason of a condition.
fn condition(status: &PodStatus, kind: &str) -> Result<(String, String)> {
    let found = status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    let found = found.with_context(|| format!("there is no condition {kind}"))?;
    Ok((found.status.clone(), found.reason.clone().unwrap_or_default()))
}

/// What a sidecar answers while its gate is closed; it stays closed. `ask` has a method, a path and a
/// body, and returns a status and a body.
pub async fn check_closed_sidecar(
    ask: impl AsyncFn(&str, &str, String) -> Result<(u16, String)>,
) -> Result<()> {
    let expect = async |method: &str, path: &str, body: String, status: u16, text: &str| {
        let found = ask(method, path, body.clone()).await?;
        ensure!(found == (status, text.to_owned()), "{method} {path} {body}: {found:?}");
        Ok(())
    };
    let get = async |path: &str, status, text: &str| {
        expect("GET", path, String::new(), status, text).await
    };
    get("/v0/healthz", 503, "").await?;
    get("/v0/status", 200, "{\"status\":\"Initializing\"}\n").await?;
    get("/v0/tasks/no-uuid", 404, "{\"error\":\"task not found\"}\n").await?;
    get("/v0/tasks/", 404, "404 page not found\n").await?;
    let (status, body) = ask("GET", "/v0/node-id", String::new()).await?;
    let body: Value = serde_json::from_str(&body)?;
    ensure!(status == 200 && body["nodeId"].as_str().is_some_and(|id| id.len() == 40), "{body}");
    for (body, error) in [
        ("", "invalid request body"),
        ("null", "type is required"),
        (r#"{"type":"dance","id":"no"}"#, "unknown task type: dance"),
        (r#"{"type":"mark-ready","id":"no"}"#, r#"task ID must be a valid UUID: "no""#),
    ] {
        let text = format!("{}\n", json!({ "error": error }));
        expect("POST", "/v0/tasks", body.to_owned(), 400, &text).await?;
    }

    let record = async |desired: &str| loop {
        let (_, body) = ask("GET", &format!("/v0/tasks/{ID}"), String::new()).await?;
        let record: Value = serde_json::from_str(&body)?;
        match record["status"].as_str() {
            Some("running") => continue,
            status => ensure!(status == Some(desired), "{record}"),
        }
        return anyhow::Ok(record);
    };
    let submit = async |kind: &str| {
        let body = json!({ "id": ID, "type": kind }).to_string();
        expect("POST", "/v0/tasks", body, 201, &format!("{}\n", json!({ "id": ID }))).await
    };
    submit("config-patch").await?;
    let failed = record("failed").await?;
    ensure!(failed["error"] == "config-patch: at least one file is required", "{failed}");
    ensure!(failed["run"] == 1 && failed.get("params").is_none(), "{failed}");
    // A failed id runs again, as what it is submitted as.
    submit("mark-not-ready").await?;
    let completed = record("completed").await?;
    ensure!(completed["run"] == 2 && completed["type"] == "mark-not-ready", "{completed}");
    ensure!(completed.get("error").is_none(), "{completed}");
    get("/v0/healthz", 503, "").await
}
