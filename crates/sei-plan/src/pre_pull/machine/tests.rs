use serde_json::{Value, json};

use super::*;

const NODE: &str = "node-uid";

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

fn after(seconds: u64) -> Timestamp {
    later(now(), Duration::from_secs(seconds))
}

fn pod(containers: &Value) -> Pod {
    let owner = json!({ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode", "name": "n",
        "uid": NODE, "controller": true });
    serde_json::from_value(json!({
        "metadata": { "namespace": "ns", "annotations": { annotation::PRE_PULL: "plan/host" },
            "ownerReferences": [owner] },
        "spec": { "serviceAccountName": "sei", "containers": containers },
    }))
    .unwrap()
}

fn view(pull: Pull) -> PrePullView {
    let (controller, purpose) = (Some(NODE.to_owned()), Some("plan/host".to_owned()));
    PrePullView { controller, purpose, pull, ..PrePullView::default() }
}

fn begun() -> Pulls {
    let mut pulls = Pulls::default();
    pulls.begin(&pod(&json!([{ "name": "seid", "image": "seid:2" }])), now());
    pulls
}

/// Which pulls others find on the machine after this time: `None`, or whether it is complete.
fn found(pulls: &Pulls, seconds: u64) -> Option<bool> {
    pulls.on("ns", "host", after(seconds)).first().map(|pull| pull.is_complete)
}

#[test]
fn a_pull_is_awaited_for_a_minute_and_counts_for_five() {
    let mut pulls = begun();
    assert_eq!((found(&pulls, 59), found(&pulls, 60)), (Some(false), None));
    pulls.observe("ns", &view(Pull::Pending), after(10));
    assert_eq!(found(&pulls, 59), Some(false));
    pulls.observe("ns", &view(Pull::Pulled), after(20));
    pulls.observe("ns", &view(Pull::Pulled), after(30));
    assert_eq!((found(&pulls, 319), found(&pulls, 320)), (Some(true), None), "from its end");
}

#[test]
fn a_pull_that_fails_is_not_shared() {
    let text = || "why".to_owned();
    for pull in [Pull::Failed(text()), Pull::Refused(text()), Pull::Unschedulable(text())] {
        let mut pulls = begun();
        pulls.observe("ns", &view(pull.clone()), after(1));
        assert_eq!(found(&pulls, 1), None, "{pull:?}");
    }
    let mut pulls = begun();
    let of_another = PrePullView { controller: None, ..view(Pull::Failed(text())) };
    pulls.observe("ns", &of_another, after(1));
    assert_eq!(found(&pulls, 1), Some(false));
}

#[test]
fn an_earlier_pod_of_the_node_shows_nothing_about_its_pull() {
    let mut pulls = begun();
    let purpose = Some("earlier/host".to_owned());
    pulls.observe("ns", &PrePullView { purpose, ..view(Pull::Pulled) }, after(1));
    assert_eq!(found(&pulls, 1), Some(false));
}

#[test]
fn pulls_are_shared_in_one_namespace_on_one_machine() {
    let pulls = begun();
    assert_eq!(pulls.on("ns", "host", now()).len(), 1);
    assert_eq!(pulls.on("other", "host", now()), []);
    assert_eq!(pulls.on("ns", "other", now()), []);
}

#[test]
fn images_that_are_pulled_for_every_container_are_not_shared() {
    let container = |image: &str, policy: Option<&str>| json!({ "name": "c", "image": image, "imagePullPolicy": policy });
    let containers = json!([
        container("seid:2", None),
        container("host:5000/seid", None),
        container("seid:latest", None),
        container("seid:latest", Some("IfNotPresent")),
        container("seid:3", Some("Always")),
        container("seid@sha256:00", None),
    ]);
    let mut pulls = Pulls::default();
    pulls.begin(&pod(&containers), now());
    let [pull] = pulls.on("ns", "host", now()).try_into().unwrap();
    let expected = ["seid:2", "seid:latest", "seid@sha256:00"].map(str::to_owned);
    assert_eq!(pull.images, BTreeSet::from(expected));
}

#[test]
fn a_node_has_one_pull_on_a_machine() {
    let mut pulls = begun();
    pulls.begin(&pod(&json!([{ "name": "seid", "image": "seid:3" }])), after(1));
    let [pull] = pulls.on("ns", "host", after(1)).try_into().unwrap();
    assert_eq!(pull.images, BTreeSet::from(["seid:3".to_owned()]));
    pulls.begin(&pod(&json!([])), after(100));
    assert_eq!(pulls.0.values().flatten().count(), 1, "old ones are dropped");
}
