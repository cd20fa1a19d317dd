//! A node without an operator: the test creates its objects and calls its sidecar.

use anyhow::{Context as _, Result};
use cluster_tests::shared_lane;
use http_body_util::BodyExt as _;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ContainerStatus, PersistentVolumeClaim, Pod};
use kube::api::{Api, PostParams};
use sei_rig::{Behaviour, Rule, RuleId, World};
use serde_json::{Value, json};

pub(crate) const FIRST: &str = "11111111-2222-4333-8444-555555555555";
pub(crate) const SECOND: &str = "22222222-2222-4333-8444-555555555555";

/// A node without an operator: a claim and a StatefulSet like those of the operator.
pub(crate) struct Node {
    pub(crate) world: World,
}

pub(crate) async fn node(name: &str) -> Result<Node> {
    let node = empty_node(name).await?;
    node.create().await?;
    Ok(node)
}

/// The namespace of a node without its objects, for rules that must precede the pod.
pub(crate) async fn empty_node(name: &str) -> Result<Node> {
    Ok(Node { world: World::new(shared_lane().await?, name).await? })
}

impl Node {
    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        self.world.api()
    }

    pub(crate) async fn create_claim(&self) -> Result<()> {
        let claim = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data-a" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": { "requests": { "storage": "2Ti" } } },
        }))?;
        self.claims().create(&PostParams::default(), &claim).await?;
        Ok(())
    }

    pub(crate) async fn create_statefulset(&self) -> Result<()> {
        let labels = json!({ "sei.io/node": "a" });
        let always = |name: &str| json!({ "name": name, "image": name, "restartPolicy": "Always" });
        let set = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "a", "labels": labels },
            "spec": {
                "replicas": 1, "serviceName": "a", "selector": { "matchLabels": labels },
                "updateStrategy": { "type": "OnDelete" },
                "template": { "metadata": { "labels": labels }, "spec": {
                    "initContainers": [{ "name": "seid-init", "image": "seid:v1" },
                        always("sei-sidecar"), always("kube-rbac-proxy")],
                    "containers": [{ "name": "seid", "image": "seid:v1" },
                        { "name": "cosmos-exporter", "image": "exporter:v1" }],
                    "volumes": [{ "name": "data",
                        "persistentVolumeClaim": { "claimName": "data-a" } }],
                } },
            },
        }))?;
        self.world.api::<StatefulSet>().create(&PostParams::default(), &set).await?;
        Ok(())
    }

    pub(crate) async fn create(&self) -> Result<()> {
        self.create_claim().await?;
        self.create_statefulset().await
    }

    pub(crate) fn behave(&self, behaviour: Behaviour) -> RuleId {
        self.world.behave(Rule::new(behaviour))
    }

    pub(crate) async fn pod(&self, claim: &str, holds: impl Fn(&Pod) -> bool) -> Result<Pod> {
        Ok(self.world.wait_pod("a", claim, holds).await?)
    }

    /// Waits until all containers of the pod run; its gate is still closed.
    pub(crate) async fn until_running(&self) -> Result<Pod> {
        self.pod("its containers run", |pod| runs(pod, "seid") && pod_ip(pod).is_some()).await
    }

    /// Opens the gate and waits until the pod is Ready.
    pub(crate) async fn ready(&self) -> Result<Pod> {
        let pod = self.until_running().await?;
        assert_eq!(submit(&pod, FIRST, "mark-ready").await?, 201);
        self.pod("it is ready", is_ready).await
    }
}

pub(crate) fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().unwrap_or_default()
}

pub(crate) fn pod_ip(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.pod_ip.as_deref()
}

pub(crate) fn container<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten()).find(|container| container.name == name)
}

pub(crate) fn runs(pod: &Pod, name: &str) -> bool {
    let state = container(pod, name).and_then(|container| container.state.as_ref());
    state.is_some_and(|state| state.running.is_some())
}

pub(crate) fn waiting_reason(pod: &Pod, name: &str) -> Option<String> {
    container(pod, name)?.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

pub(crate) fn condition(pod: &Pod, kind: &str) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == kind)
        .map(|condition| condition.status.clone())
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").as_deref() == Some("True")
}

pub(crate) async fn call_sidecar(
    pod: &Pod,
    method: &str,
    path: &str,
    body: Value,
) -> Result<(u16, String)> {
    let client: Client<_, String> = Client::builder(TokioExecutor::new()).build_http();
    let ip = pod_ip(pod).context("the pod has no address")?;
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("http://{ip}:8443{path}"))
        .body(body)?;
    let response = client.request(request).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok((status, String::from_utf8(body.to_vec())?))
}

pub(crate) async fn get(pod: &Pod, path: &str) -> Result<(u16, String)> {
    call_sidecar(pod, "GET", path, Value::Null).await
}

pub(crate) async fn submit(pod: &Pod, id: &str, task_type: &str) -> Result<u16> {
    let body = json!({ "id": id, "type": task_type });
    Ok(call_sidecar(pod, "POST", "/v0/tasks", body).await?.0)
}

pub(crate) async fn task(pod: &Pod, id: &str) -> Result<Value> {
    let (_, body) = get(pod, &format!("/v0/tasks/{id}")).await?;
    Ok(serde_json::from_str(&body)?)
}
