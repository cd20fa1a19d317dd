use serde_json::{Value, json};

use super::*;
use crate::desired::render_desired;
use crate::testing::{NODES, node, platform};

fn pull_of(status: &Value) -> Pull {
    let pod: Pod = serde_json::from_value(json!({
        "metadata": { "name": "n-pre-pull" },
        "spec": { "containers": [{ "name": "seid" }, { "name": "sei-sidecar" }] },
        "status": status,
    }))
    .unwrap();
    PrePullView::from(&pod).pull
}

fn containers(seid: Value, sidecar: Value) -> Pull {
    let status = |name: &str, state: Value| {
        let id = if state["pulled"] == true { "sha256:1" } else { "" };
        json!({ "name": name, "image": "i", "imageID": id, "ready": false, "restartCount": 0,
            "state": state["state"] })
    };
    pull_of(&json!({ "phase": "Pending", "containerStatuses": [
        status("seid", seid), status("sei-sidecar", sidecar) ] }))
}

fn waiting(reason: &str) -> Value {
    json!({ "state": { "waiting": { "reason": reason, "message": "m" } } })
}

#[test]
fn a_container_that_cannot_start_proves_the_pull() {
    let ended = json!({ "state": { "terminated": { "exitCode": 0, "reason": "Completed" } } });
    let pulled =
        json!({ "pulled": true, "state": { "waiting": { "reason": "ContainerCreating" } } });
    for proof in [
        ended.clone(),
        pulled,
        json!({ "state": { "running": {} } }),
        json!({ "state": { "terminated": { "exitCode": 128, "reason": "StartError" } } }),
        waiting("RunContainerError"),
        waiting("CreateContainerError"),
        waiting("CrashLoopBackOff"),
    ] {
        assert_eq!(containers(proof.clone(), ended.clone()), Pull::Pulled, "{proof}");
        assert_eq!(containers(proof, waiting("ContainerCreating")), Pull::Pending);
    }
    for error in ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"] {
        let failed = Pull::Failed(format!("sei-sidecar: {error} m"));
        assert_eq!(containers(ended.clone(), waiting(error)), failed);
    }
}

#[test]
fn a_pod_that_its_machine_does_not_run_proves_nothing() {
    let refused = json!({ "phase": "Failed", "reason": "OutOfpods", "message": "full" });
    assert_eq!(pull_of(&refused), Pull::Refused("OutOfpods: full".to_owned()));
    let lost = json!({ "state": { "terminated": { "exitCode": 137, "reason": "ContainerStatusUnknown" } } });
    assert_eq!(containers(lost.clone(), lost), Pull::Pending);
    assert_eq!(pull_of(&json!({ "phase": "Pending" })), Pull::Unclaimed);
    let taken = json!({ "phase": "Pending", "startTime": "2026-01-01T00:00:00Z" });
    assert_eq!(pull_of(&taken), Pull::Pending);
    let unscheduled = json!({ "phase": "Pending", "conditions": [{ "type": "PodScheduled",
        "status": "False", "reason": "Unschedulable", "message": "0/1" }] });
    assert_eq!(pull_of(&unscheduled), Pull::Unschedulable("0/1".to_owned()));
}

#[test]
fn the_pod_has_no_right_and_no_label_of_the_node() {
    let (node, platform) = (node(NODES[0]), platform("example"));
    let desired = render_desired(&node, &platform, &[], &[]).unwrap();
    let images = [("seid".to_owned(), "seid:2".to_owned())];
    let pod = pod("n", &desired, &images, "plan/host", "host");
    let value = serde_json::to_value(&pod).unwrap();
    assert_eq!(value["metadata"]["labels"], json!({ "sei.io/pre-pull": "n" }));
    assert_eq!(value["metadata"]["ownerReferences"][0]["kind"], "SeiNode");
    assert_eq!(value["metadata"]["ownerReferences"][0]["controller"], true);
    let spec = &value["spec"];
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert!(spec["volumes"].is_null() && spec["initContainers"].is_null());
    assert_eq!(spec["restartPolicy"], "Never");
    assert!(!spec["tolerations"].as_array().unwrap().is_empty());
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    let container = &spec["containers"][0];
    assert!(container["env"].is_null() && container["volumeMounts"].is_null());
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    let terms = &spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let field = &terms["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!((&field["key"], &field["values"][0]), (&json!("metadata.name"), &json!("host")));
}
