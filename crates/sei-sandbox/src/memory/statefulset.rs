//! The StatefulSet controller: one replica, `OnDelete`.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Value, json};

use super::fields::{Writer, record};
use super::store::{Key, Store, now};

/// Follows a change of a StatefulSet or of a pod: makes the revision and the pod that are missing,
/// and writes the status.
pub(super) fn sync(store: &mut Store, changed: &Key) {
    let name = match changed.plural.as_str() {
        "statefulsets" => changed.name.as_str(),
        "pods" => changed.name.strip_suffix("-0").unwrap_or_default(),
        _ => return,
    };
    let key = Key::new("statefulsets", &changed.namespace, name);
    let Some(set) = store.get(&key).cloned() else { return };
    let revision = format!("{name}-{}", hash_of(&set["spec"]["template"]));
    create_revision(store, &key, &set, &revision);
    let pod_key = Key::new("pods", &key.namespace, &format!("{name}-0"));
    let starts = set["spec"]["replicas"].as_i64().unwrap_or(1) > 0;
    if starts && store.get(&pod_key).is_none() {
        let pod = render_pod(&set, &pod_key.name, &revision);
        store.create(&pod_key, pod);
    }
    write_status(store, &key, &pod_key, &revision);
}

fn hash_of(template: &Value) -> String {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    format!("{:010x}", hasher.finish() & 0xff_ffff_ffff)
}

fn owner(set: &Value) -> Value {
    json!([{
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": set["metadata"]["name"],
        "uid": set["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }])
}

fn create_revision(store: &mut Store, key: &Key, set: &Value, name: &str) {
    let revision_key = Key::new("controllerrevisions", &key.namespace, name);
    if store.get(&revision_key).is_some() {
        return;
    }
    let mut template = set["spec"]["template"].clone();
    template["$patch"] = json!("replace");
    let revision = json!({
        "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
        "metadata": { "name": name, "labels": template["metadata"]["labels"],
            "ownerReferences": owner(set) },
        "data": { "spec": { "template": template } },
    });
    store.create(&revision_key, revision);
}

fn render_pod(set: &Value, name: &str, revision: &str) -> Value {
    let template = &set["spec"]["template"];
    let mut metadata = template["metadata"].clone();
    metadata["name"] = json!(name);
    metadata["generateName"] = json!(format!("{}-", name.trim_end_matches("-0")));
    metadata["ownerReferences"] = owner(set);
    metadata["labels"]["controller-revision-hash"] = json!(revision);
    metadata["labels"]["statefulset.kubernetes.io/pod-name"] = json!(name);
    metadata["labels"]["apps.kubernetes.io/pod-index"] = json!("0");
    let mut spec = template["spec"].clone();
    spec["hostname"] = json!(name);
    spec["subdomain"] = set["spec"]["serviceName"].clone();
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec,
        "status": { "phase": "Pending", "qosClass": "Burstable" },
    });
    let written = pod.clone();
    let manager = "kube-controller-manager";
    record(&mut pod, &written, &Writer { manager, is_apply: false, subresource: None });
    pod
}

fn write_status(store: &mut Store, key: &Key, pod_key: &Key, revision: &str) {
    let pod = store.get(pod_key);
    let conditions = pod.and_then(|pod| pod["status"]["conditions"].as_array());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let count = i32::from(pod.is_some());
    let updated =
        pod.is_some_and(|pod| pod["metadata"]["labels"]["controller-revision-hash"] == revision);
    let Some(mut set) = store.get(key).cloned() else { return };
    let mut status = json!({
        "observedGeneration": set["metadata"]["generation"], "replicas": count,
        "availableReplicas": i32::from(is_ready), "collisionCount": 0,
        "updateRevision": revision, "currentRevision": set["status"]["currentRevision"],
    });
    if is_ready {
        status["readyReplicas"] = json!(1);
    }
    if updated {
        status["updatedReplicas"] = json!(1);
    }
    if updated || status["currentRevision"].is_null() {
        status["currentRevision"] = json!(revision);
    }
    if set["status"] == status {
        return;
    }
    set["status"] = status.clone();
    let writer =
        Writer { manager: "kube-controller-manager", is_apply: false, subresource: Some("status") };
    record(&mut set, &json!({ "status": status }), &writer);
    store.update(key, set);
}

impl Store {
    /// Evicts a pod.
    pub fn evict(&mut self, pod: &Key) {
        begin_deletion(self, pod);
    }
}

/// Marks a pod as deleted; the kubelet removes it when its containers have stopped.
pub(super) fn begin_deletion(store: &mut Store, key: &Key) {
    let Some(mut pod) = store.get(key).cloned() else { return };
    if pod["metadata"]["deletionTimestamp"].is_null() {
        pod["metadata"]["deletionTimestamp"] = json!(now());
        pod["metadata"]["deletionGracePeriodSeconds"] = json!(30);
        store.update(key, pod);
    }
}
