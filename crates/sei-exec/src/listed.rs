//! Lists of many objects of which little is read. Pages bound how much text is held at a time, and
//! each object is reduced to what is compared while its page is decoded.

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{Pod, PodSpec, PodStatus, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use sei_api::SeiNode;
use sei_plan::request::{Failure, MountView};
use sei_plan::signers::StoredNode;
use sei_plan::view::StatefulSetView;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::call::call;
use crate::lean::Lean;

/// Objects per page of a list.
const PAGE: u32 = 100;

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

/// Lists everything at a path of the API.
pub async fn list<T: DeserializeOwned>(
    client: &Client,
    action: &str,
    path: &str,
    params: ListParams,
) -> Result<Vec<T>, Failure> {
    let resource = Request::new(path);
    let mut params = params.limit(PAGE);
    let mut found = Vec::new();
    loop {
        let request = resource.list(&params).map_err(|error| {
            Failure::Indeterminate(format!("{action}: {}", crate::call::chain(&error)))
        })?;
        let page: Page<T> = call(action, client.request(request)).await?;
        found.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(found),
        }
    }
}

/// A node with its key and its volume; `None` if not even those can be read.
pub struct ListedNode(pub Option<SeiNode>);

impl<'de> Deserialize<'de> for ListedNode {
    /// Takes the object as text and decodes it from there, so that an error does not end the list.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let stored = serde_json::from_str::<Lean<StoredNode>>(text.get());
        Ok(Self(stored.ok().and_then(|stored| stored.0.node()).map(|mut node| {
            node.metadata.annotations = None;
            node.metadata.labels = None;
            node
        })))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Volumes {
    volumes: Vec<Volume>,
}

impl Volumes {
    fn pod(self) -> PodSpec {
        PodSpec { volumes: Some(self.volumes), ..PodSpec::default() }
    }
}

/// A StatefulSet with what its pods mount.
#[derive(Deserialize)]
#[serde(from = "SetFields")]
pub struct ListedStatefulSet(pub MountView);

#[derive(Deserialize)]
struct SetFields {
    metadata: ObjectMeta,
    spec: SetSpec,
}

#[derive(Deserialize)]
struct SetSpec {
    replicas: Option<i32>,
    template: TemplateFields,
}

#[derive(Deserialize)]
struct TemplateFields {
    metadata: Option<ObjectMeta>,
    #[serde(default)]
    spec: Volumes,
}

impl From<SetFields> for ListedStatefulSet {
    fn from(SetFields { metadata, spec }: SetFields) -> Self {
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let template = PodTemplateSpec {
            metadata: spec.template.metadata,
            spec: Some(spec.template.spec.pod()),
        };
        let spec = StatefulSetSpec { replicas: spec.replicas, template, ..Default::default() };
        let set = StatefulSet { metadata, spec, status: None };
        Self(MountView::of_statefulset(&namespace, &StatefulSetView::from(&set)))
    }
}

/// A pod with what it mounts.
#[derive(Deserialize)]
#[serde(from = "PodFields")]
pub struct ListedPod(pub MountView);

#[derive(Deserialize)]
struct PodFields {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Volumes,
    #[serde(default)]
    status: Phase,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Phase {
    phase: Option<String>,
}

impl From<PodFields> for ListedPod {
    fn from(PodFields { metadata, spec, status }: PodFields) -> Self {
        let status = PodStatus { phase: status.phase, ..PodStatus::default() };
        let pod = Pod { metadata, spec: Some(spec.pod()), status: Some(status) };
        Self(MountView::of_pod(&pod))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::Full;
    use hyper::body::Bytes;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_listed_object_mounts_what_the_whole_one_does() {
        let volumes = json!([
            { "name": "data", "persistentVolumeClaim": { "claimName": "data-n" } },
            { "name": "signing-key", "secret": { "secretName": "key" } },
            { "name": "rest", "projected": { "sources": [{ "secret": { "name": "s" } }] } },
        ]);
        let labels = json!({ "sei.io/node": "n", "sei.io/chain": "c" });
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "n",
            "uid": "u", "controller": true }]);
        let pod_spec = json!({ "volumes": volumes, "containers": [{ "name": "seid" }] });
        let set = json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": { "name": "n", "namespace": "ns", "managedFields": [{ "manager": "m" }] },
            "spec": { "replicas": 0, "serviceName": "n", "selector": {},
                "template": { "metadata": { "labels": labels }, "spec": pod_spec } },
            "status": { "replicas": 0 },
        });
        let whole: StatefulSet = serde_json::from_value(set.clone()).unwrap();
        let expected = MountView::of_statefulset("ns", &StatefulSetView::from(&whole));
        assert_eq!((expected.signs, expected.is_idle, expected.claims.len()), (true, true, 1));
        assert_eq!(serde_json::from_value::<ListedStatefulSet>(set).unwrap().0, expected);

        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "n-0", "namespace": "ns", "labels": labels,
                "ownerReferences": owner },
            "spec": pod_spec, "status": { "phase": "Failed", "podIP": "10.0.0.1" },
        });
        let whole: Pod = serde_json::from_value(pod.clone()).unwrap();
        let expected = MountView::of_pod(&whole);
        assert_eq!((expected.node.as_deref(), expected.is_idle), (Some("n"), true));
        assert_eq!(serde_json::from_value::<ListedPod>(pod).unwrap().0, expected);
    }

    #[tokio::test]
    async fn every_page_is_listed_and_one_bad_node_ends_no_list() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        let node = |name: &str, spec: Value| json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": spec });
        let spec = json!({ "chainId": "c", "image": "i",
            "validator": { "signingKey": { "secret": { "secretName": "key" } }, "new": [1] } });
        let first = json!({ "metadata": { "continue": "more" },
            "items": [node("a", spec.clone()), node("bad", json!(1))] });
        let second = json!({ "metadata": {}, "items": [node("b", spec)] });
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let uri = request.uri().to_string();
            let page = if uri.contains("continue=more") { &second } else { &first };
            let body = Full::new(Bytes::from(page.to_string()));
            log.lock().unwrap().push(uri);
            std::future::ready(Ok::<_, std::io::Error>(http::Response::new(body)))
        });
        let client = Client::new(service, "default");
        let path = "/apis/sei.io/v1alpha1/seinodes";
        let nodes: Vec<ListedNode> =
            list(&client, "list seinodes", path, ListParams::default()).await.unwrap();
        let nodes: Vec<_> = nodes.into_iter().map(|node| node.0).collect();
        let names = nodes.iter().map(|node| node.as_ref()?.metadata.name.as_deref());
        assert_eq!(names.collect::<Vec<_>>(), [Some("a"), None, Some("b")]);
        assert_eq!(nodes[2].as_ref().unwrap().spec.signing_secret(), Some("key"));
        let asked = asked.lock().unwrap();
        assert_eq!(asked.len(), 2);
        assert!(asked.iter().all(|uri| uri.contains("limit=100")), "{asked:?}");
    }
}
