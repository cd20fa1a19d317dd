//! What a real kubelet reports of a node's pod and what the real sidecar answers. The stories on a real
//! node run these checks; the stand-ins of `sei-rig` are written to pass them too.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use serde_json::{Value, json};

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
    ensure!(failed["error"] == "config-patch: params: files is required", "{failed}");
    ensure!(failed["run"] == 1 && failed.get("params").is_none(), "{failed}");
    // A failed id runs again, as what it is submitted as.
    submit("mark-not-ready").await?;
    let completed = record("completed").await?;
    ensure!(completed["run"] == 2 && completed["type"] == "mark-not-ready", "{completed}");
    ensure!(completed.get("error").is_none(), "{completed}");
    get("/v0/healthz", 503, "").await
}
