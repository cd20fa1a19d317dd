use std::future::{Future, pending};
use std::time::Duration;

use expect_test::{Expect, expect};
use futures::{FutureExt as _, StreamExt as _};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use serde_json::{Value, json};
use tower::{Layer as _, Service as _};

use super::*;

fn node(name: &str, status: &Value) -> SeiNode {
    serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1",
        "kind": "SeiNode",
        "metadata": {
            "name": name, "namespace": "sei", "creationTimestamp": "2026-08-05T10:00:00Z",
        },
        "spec": { "chainId": "pacific-1", "image": "seid:v1", "fullNode": {} },
        "status": status,
    }))
    .unwrap()
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({ "type": kind, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-08-05T10:00:00Z" })
}

/// Compares the series with these name prefixes. They are sorted: the order of label sets is not
/// fixed.
fn check(metrics: &Metrics, names: &[&str], expected: &Expect) {
    let text = metrics.encode();
    let is_selected = |line: &&str| {
        names
            .iter()
            .any(|name| line.strip_prefix("sei_controller_").unwrap_or("").starts_with(name))
    };
    let mut lines: Vec<&str> = text.lines().filter(is_selected).collect();
    lines.sort_unstable();
    expected.assert_eq(&joined(&lines));
}

/// Everything but what the process uses, which changes with time.
fn encoded(metrics: &Metrics) -> String {
    let text = metrics.encode();
    text.lines()
        .filter(|line| !line.starts_with("process_"))
        .flat_map(|line| [line, "\n"])
        .collect()
}

fn joined(lines: &[&str]) -> String {
    lines.iter().flat_map(|line| [*line, "\n"]).collect()
}

fn observed() -> Metrics {
    let metrics = Metrics::new();
    metrics.observe(&node(
        "a",
        &json!({
            "phase": "Running",
            "plan": { "id": "p", "phase": "Active", "tasks": [] },
            "pendingUpdate": {
                "targetHash": "v1:b", "baseInputsHash": "x", "cause": "Spec", "state": "Rolling",
                "since": "2026-08-05T10:00:00Z",
            },
            "conditions": [
                condition("Ready", "False", "ImagePullFailed"),
                condition("PodTemplateDrift", "True", "Rolling"),
                condition("Stalled", "True", "ImagePullFailed"),
                condition("SidecarReady", "True", "Ready"),
            ],
        }),
    ));
    metrics
}

const GAUGES: &[&str] = &[
    "seinode_phase{",
    "seinode_ready{",
    "plan_active",
    "seinode_sidecar_ready",
    "seinode_drifted",
    "seinode_sidecar_unreachable",
    "seinode_stalled",
    "seinode_pending_update",
    "seinode_update_failed_attempts",
    "chain_halted_nodes",
];

#[test]
fn a_node_shows_in_every_gauge() {
    check(
        &observed(),
        GAUGES,
        &expect![[r#"
            sei_controller_chain_halted_nodes{chain_id="pacific-1"} 0
            sei_controller_plan_active{controller="seinode",namespace="sei"} 1
            sei_controller_seinode_drifted{namespace="sei",name="a",reason="Rolling"} 1
            sei_controller_seinode_pending_update_since_timestamp_seconds{namespace="sei",name="a"} 1785924000
            sei_controller_seinode_pending_update{namespace="sei",name="a",cause="Spec",state="Rolling"} 1
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Failed"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Initializing"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Pending"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Running"} 1
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Terminating"} 0
            sei_controller_seinode_ready{namespace="sei",name="a",chain="pacific-1",role="node",reason="ImagePullFailed"} 0
            sei_controller_seinode_sidecar_ready{namespace="sei",name="a"} 1
            sei_controller_seinode_sidecar_unreachable{namespace="sei",name="a"} 0
            sei_controller_seinode_stalled{namespace="sei",name="a",reason="ImagePullFailed"} 1
            sei_controller_seinode_update_failed_attempts{namespace="sei",name="a"} 0
        "#]],
    );
}

#[test]
fn observing_twice_changes_nothing() {
    let metrics = observed();
    let once = encoded(&metrics);
    metrics.observe(&node("b", &json!({ "plan": { "phase": "Active" } })));
    for _ in 0..3 {
        // The Go operator raised its count in each pass over an active plan.
        metrics.observe(&node("b", &json!({ "plan": { "phase": "Active" } })));
    }
    check(
        &metrics,
        &["plan_active"],
        &expect![[r#"
        sei_controller_plan_active{controller="seinode",namespace="sei"} 2
    "#]],
    );
    metrics.forget(&ObjectKey::new("sei", "b"));
    metrics.forget(&ObjectKey::new("sei", "missing"));
    assert_eq!(encoded(&metrics), once);
}

#[test]
fn series_of_older_label_values_disappear() {
    let metrics = observed();
    metrics.observe(&node(
        "a",
        &json!({
            "phase": "Failed",
            "plan": { "id": "p", "phase": "Failed", "tasks": [] },
            "conditions": [
                condition("Ready", "True", "Ready"),
                condition("PodTemplateDrift", "False", "InSync"),
                condition("Stalled", "Unknown", "UnknownReason"),
                condition("SidecarReady", "False", "NotReady"),
            ],
        }),
    ));
    check(
        &metrics,
        GAUGES,
        &expect![[r#"
            sei_controller_chain_halted_nodes{chain_id="pacific-1"} 0
            sei_controller_plan_active{controller="seinode",namespace="sei"} 0
            sei_controller_seinode_drifted{namespace="sei",name="a",reason="InSync"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Failed"} 1
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Initializing"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Pending"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Running"} 0
            sei_controller_seinode_phase{namespace="sei",name="a",phase="Terminating"} 0
            sei_controller_seinode_ready{namespace="sei",name="a",chain="pacific-1",role="node",reason="Ready"} 1
            sei_controller_seinode_sidecar_ready{namespace="sei",name="a"} 0
            sei_controller_seinode_sidecar_unreachable{namespace="sei",name="a"} 0
            sei_controller_seinode_stalled{namespace="sei",name="a",reason="Other"} 0
        "#]],
    );
}

#[test]
fn a_node_without_a_status_is_pending() {
    let metrics = Metrics::new();
    metrics.observe(&node("new", &Value::Null));
    check(
        &metrics,
        GAUGES,
        &expect![[r#"
            sei_controller_chain_halted_nodes{chain_id="pacific-1"} 0
            sei_controller_plan_active{controller="seinode",namespace="sei"} 0
            sei_controller_seinode_phase{namespace="sei",name="new",phase="Failed"} 0
            sei_controller_seinode_phase{namespace="sei",name="new",phase="Initializing"} 0
            sei_controller_seinode_phase{namespace="sei",name="new",phase="Pending"} 1
            sei_controller_seinode_phase{namespace="sei",name="new",phase="Running"} 0
            sei_controller_seinode_phase{namespace="sei",name="new",phase="Terminating"} 0
        "#]],
    );
}

fn status(value: Value) -> SeiNodeStatus {
    serde_json::from_value(value).unwrap()
}

fn transition(before: Value, after: Value, now: &str) -> Metrics {
    let metrics = Metrics::new();
    let node = node("a", &Value::Null);
    metrics.transition(&node, &status(before), &status(after), now.parse().unwrap());
    metrics
}

#[test]
fn a_phase_is_measured_from_the_time_it_began() {
    // The Go operator measured from the time that it had just written.
    let metrics = transition(
        json!({ "phase": "Initializing", "phaseTransitionTime": "2026-08-05T10:00:00Z" }),
        json!({ "phase": "Running", "phaseTransitionTime": "2026-08-05T10:03:20Z" }),
        "2026-08-05T10:03:20Z",
    );
    check(
        &metrics,
        &["seinode_phase_"],
        &expect![[r#"
        sei_controller_seinode_phase_duration_seconds_bucket{le="+Inf",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="10.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 0
        sei_controller_seinode_phase_duration_seconds_bucket{le="120.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 0
        sei_controller_seinode_phase_duration_seconds_bucket{le="1200.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="1800.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="30.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 0
        sei_controller_seinode_phase_duration_seconds_bucket{le="300.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="3600.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="60.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 0
        sei_controller_seinode_phase_duration_seconds_bucket{le="600.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_bucket{le="900.0",namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_count{namespace="sei",chain_id="pacific-1",phase="Initializing"} 1
        sei_controller_seinode_phase_duration_seconds_sum{namespace="sei",chain_id="pacific-1",phase="Initializing"} 200.0
        sei_controller_seinode_phase_transitions_total{controller="seinode",namespace="sei",from_phase="Initializing",to_phase="Running"} 1
    "#]],
    );
}

#[test]
fn the_first_phase_is_measured_from_the_creation_of_the_node() {
    let metrics = transition(json!({}), json!({ "phase": "Initializing" }), "2026-08-05T10:00:07Z");
    check(
        &metrics,
        &["seinode_phase_transitions", "seinode_phase_duration_seconds_sum"],
        &expect![[r#"
            sei_controller_seinode_phase_duration_seconds_sum{namespace="sei",chain_id="pacific-1",phase="Pending"} 7.0
            sei_controller_seinode_phase_transitions_total{controller="seinode",namespace="sei",from_phase="Pending",to_phase="Initializing"} 1
        "#]],
    );
}

#[test]
fn a_clock_that_was_set_back_gives_no_negative_duration() {
    let metrics = transition(
        json!({ "phase": "Running", "phaseTransitionTime": "2026-08-05T10:00:00Z" }),
        json!({ "phase": "Terminating" }),
        "2026-08-05T09:00:00Z",
    );
    check(
        &metrics,
        &["seinode_phase_duration_seconds_sum"],
        &expect![[r#"
        sei_controller_seinode_phase_duration_seconds_sum{namespace="sei",chain_id="pacific-1",phase="Running"} 0.0
    "#]],
    );
}

#[test]
fn an_unchanged_phase_counts_nothing() {
    let metrics = transition(json!({}), json!({ "phase": "Pending" }), "2026-08-05T10:00:07Z");
    check(&metrics, &["seinode_phase_"], &expect![""]);
}

fn plan(id: &str, phase: &str) -> Value {
    json!({ "id": id, "phase": phase, "kind": "NodeUpdate", "tasks": [],
            "createdAt": "2026-08-05T10:00:00Z" })
}

fn last_update(outcome: &str) -> Value {
    json!({ "planID": "p", "cause": "Spec", "finishedAt": "2026-08-05T10:00:09Z",
            "outcome": outcome })
}

#[test]
fn a_plan_is_counted_when_it_ends() {
    let active = json!({ "plan": plan("p", "Active") });
    for (name, before, after, expected) in [
        ("continues", &active, json!({ "plan": plan("p", "Active") }), None),
        ("complete", &active, json!({ "plan": plan("p", "Complete") }), Some("complete")),
        ("failed", &active, json!({ "plan": plan("p", "Failed") }), Some("failed")),
        ("cleared at once", &active, json!({}), Some("complete")),
        (
            "cleared, failed",
            &active,
            json!({ "lastUpdate": last_update("Failed") }),
            Some("failed"),
        ),
        ("cleared, node failed", &active, json!({ "phase": "Failed" }), Some("failed")),
        ("node deleted", &active, json!({ "phase": "Terminating" }), Some("superseded")),
        ("replaced", &active, json!({ "plan": plan("q", "Active") }), Some("superseded")),
        (
            "superseded, stored as the Go operator reads it",
            &active,
            json!({ "plan": plan("p", "Failed"), "lastUpdate": last_update("Superseded") }),
            Some("superseded"),
        ),
        (
            "replaced after it was complete",
            &active,
            json!({ "plan": plan("q", "Active"), "lastUpdate": last_update("Complete") }),
            Some("complete"),
        ),
        ("begins", &json!({}), json!({ "plan": plan("p", "Active") }), None),
        ("ended before", &json!({ "plan": plan("p", "Complete") }), json!({}), None),
    ] {
        let metrics = transition(before.clone(), after, "2026-08-05T10:00:09Z");
        let sum = |outcome| {
            format!(
                "sei_controller_plan_duration_seconds_sum{{controller=\"seinode\",\
                 namespace=\"sei\",plan_type=\"node-update\",outcome=\"{outcome}\"}} 9.0"
            )
        };
        let text = metrics.encode();
        let found: Vec<&str> =
            text.lines().filter(|line| line.contains("plan_duration_seconds_sum")).collect();
        assert_eq!(found, expected.map(sum).as_slice(), "{name}");
    }
}

#[test]
fn plan_durations_have_the_buckets_of_the_go_operator() {
    let active = json!({ "plan": plan("p", "Active") });
    check(
        &transition(active, json!({}), "2026-08-05T10:00:09Z"),
        &["plan_duration"],
        &expect![[r#"
        sei_controller_plan_duration_seconds_bucket{le="+Inf",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="1.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 0
        sei_controller_plan_duration_seconds_bucket{le="10.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="120.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="1800.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="30.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="300.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="5.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 0
        sei_controller_plan_duration_seconds_bucket{le="60.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_bucket{le="600.0",controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_count{controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 1
        sei_controller_plan_duration_seconds_sum{controller="seinode",namespace="sei",plan_type="node-update",outcome="complete"} 9.0
    "#]],
    );
}

#[test]
fn the_type_of_a_go_operator_plan_is_derived_from_its_tasks() {
    for (tasks, expected) in [
        (&["ensure-data-pvc", "apply-statefulset", "mark-ready"][..], "init"),
        (&["apply-statefulset", "replace-pod", "observe-image", "mark-ready"], "node-update"),
        (&["mark-ready"], "mark-ready-reapply"),
        (&["mark-ready", "mark-ready"], "unknown"),
        (&["stop-seid", "mark-ready"], "unknown"),
        (&[], "unknown"),
    ] {
        let task = |name: &&str| json!({ "type": name, "id": "", "status": "Pending" });
        let tasks: Vec<Value> = tasks.iter().map(task).collect();
        let plan = serde_json::from_value(json!({ "phase": "Active", "tasks": tasks })).unwrap();
        assert_eq!(plan_type(&plan), expected, "{tasks:?}");
    }
}

#[test]
fn the_version_of_the_build_is_published() {
    let line = format!("sei_controller_build_info{{version=\"{}\"}} 1", crate::VERSION);
    assert!(Metrics::new().encode().contains(&line));
    let numbers = crate::VERSION.split('-').next().unwrap_or_default();
    assert!(numbers.split('.').all(|part| part.parse::<u64>().is_ok()), "{}", crate::VERSION);
}

/// Two builds of different commits must have different versions.
#[test]
fn the_version_of_a_build_names_its_commit() {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        output.status.success().then_some(text)
    };
    // There is no commit in an archive of the sources.
    let Some(commit) = git(&["rev-parse", "--short=7", "HEAD"]) else { return };
    let tag = git(&["describe", "--tags", "--exact-match", "--match", "v[0-9]*"]);
    let is_tag = tag.is_some_and(|tag| tag.trim_start_matches('v') == crate::VERSION);
    let has_commit = crate::VERSION.contains(&format!("-g{commit}"));
    assert!(is_tag || has_commit, "{} is not of commit {commit}", crate::VERSION);
}

#[test]
fn probes_errors_and_leadership_are_counted() {
    let metrics = Metrics::new();
    metrics.probe("sei", &Health::Ready);
    metrics.probe("sei", &Health::Ready);
    metrics.probe("sei", &Health::NotReady);
    metrics.probe("sei", &Health::Unreachable("connection refused".to_owned()));
    metrics.error("SeiNode", "write-status");
    metrics.error("SeiNodeDeployment", "api");
    metrics.platform_file("0123456789abcdef", false);
    metrics.clone().leading(true);
    check(
        &metrics,
        &["seinode_sidecar_health", "reconcile", "leader"],
        &expect![[r#"
        sei_controller_leader 1
        sei_controller_reconcile_errors_total{controller="seinode",category="write-status"} 1
        sei_controller_reconcile_errors_total{controller="seinodedeployment",category="api"} 1
        sei_controller_seinode_sidecar_health_probes_total{controller="seinode",namespace="sei",outcome="not_ready"} 1
        sei_controller_seinode_sidecar_health_probes_total{controller="seinode",namespace="sei",outcome="ready"} 2
        sei_controller_seinode_sidecar_health_probes_total{controller="seinode",namespace="sei",outcome="unreachable"} 1
    "#]],
    );
    metrics.leading(false);
    check(
        &metrics,
        &["leader"],
        &expect![[r#"
        sei_controller_leader 0
    "#]],
    );
}

#[test]
fn a_hostile_chain_id_stays_in_its_quotes() {
    let metrics = Metrics::new();
    let mut node = node("a", &Value::Null);
    node.spec.chain_id = "x\"} 1\nup{a=\"\\".to_owned();
    let after = status(json!({ "phase": "Initializing" }));
    let now = "2026-08-05T10:00:07Z".parse().unwrap();
    metrics.transition(&node, &SeiNodeStatus::default(), &after, now);
    check(
        &metrics,
        &["seinode_phase_duration_seconds_sum"],
        &expect![[r#"
        sei_controller_seinode_phase_duration_seconds_sum{namespace="sei",chain_id="x\"} 1\nup{a=\"\\",phase="Pending"} 7.0
    "#]],
    );
    assert!(!metrics.encode().contains("\nup"));
}

/// A node that waits because the roll of another node of its chain failed.
fn halted(name: &str) -> SeiNode {
    node(
        name,
        &json!({
            "phase": "Running",
            "pendingUpdate": {
                "targetHash": "v1:b", "baseInputsHash": "x", "cause": "Operator",
                "state": "Queued", "since": "2026-08-05T10:00:00Z", "attempts": 2,
                "haltedBy": "sei/a",
            },
        }),
    )
}

#[test]
fn nodes_that_wait_for_a_failed_roll_are_counted_by_chain() {
    let metrics = observed();
    let mut elsewhere = halted("d");
    elsewhere.spec.chain_id = "arctic-1".to_owned();
    for node in [halted("b"), halted("c"), elsewhere] {
        metrics.observe(&node);
    }
    let names =
        &["chain_halted_nodes", "seinode_update_failed_attempts{namespace=\"sei\",name=\"b"];
    check(
        &metrics,
        names,
        &expect![[r#"
        sei_controller_chain_halted_nodes{chain_id="arctic-1"} 1
        sei_controller_chain_halted_nodes{chain_id="pacific-1"} 2
        sei_controller_seinode_update_failed_attempts{namespace="sei",name="b"} 2
    "#]],
    );
    metrics.observe(&node("d", &json!({ "phase": "Running" })));
    metrics.forget(&ObjectKey::new("sei", "b"));
    metrics.forget(&ObjectKey::new("sei", "c"));
    check(
        &metrics,
        &["chain_halted_nodes"],
        &expect![[r#"
        sei_controller_chain_halted_nodes{chain_id="pacific-1"} 0
    "#]],
    );
}

#[test]
fn an_unreachable_sidecar_differs_from_one_whose_gate_is_closed() {
    for (status, reason, expected) in
        [("Unknown", "Unreachable", 1), ("False", "NotReady", 0), ("True", "Ready", 0)]
    {
        let metrics = Metrics::new();
        let conditions = [condition("SidecarReady", status, reason)];
        metrics.observe(&node("a", &json!({ "conditions": conditions })));
        let line = format!(
            "sei_controller_seinode_sidecar_unreachable{{namespace=\"sei\",name=\"a\"}} {expected}\n"
        );
        assert!(metrics.encode().contains(&line), "{reason}");
    }
}

/// Names of the gauges that come from the RPC of a node.
const CHAIN: &[&str] = &[
    "seinode_height",
    "seinode_last_block",
    "seinode_catching_up",
    "seinode_peers",
    "seinode_rpc_probe",
];

fn facts() -> ChainFacts {
    ChainFacts {
        height: Some(656),
        block_time: Some("2026-08-05T10:00:00Z".parse().unwrap()),
        is_catching_up: Some(false),
        peers: Some(3),
    }
}

#[test]
fn the_facts_of_a_chain_show_until_they_are_not_read_any_more() {
    let (metrics, key) = (observed(), ObjectKey::new("sei", "a"));
    metrics.chain(&key, Some(Ok(facts())));
    metrics.chain(&ObjectKey::new("sei", "deleted"), Some(Ok(facts())));
    let expected = expect![[r#"
        sei_controller_seinode_catching_up{namespace="sei",name="a",chain="pacific-1",role="node"} 0
        sei_controller_seinode_height{namespace="sei",name="a",chain="pacific-1",role="node"} 656
        sei_controller_seinode_last_block_timestamp_seconds{namespace="sei",name="a",chain="pacific-1",role="node"} 1785924000
        sei_controller_seinode_peers{namespace="sei",name="a",chain="pacific-1",role="node"} 3
        sei_controller_seinode_rpc_probe{namespace="sei",name="a",chain="pacific-1",role="node",outcome="answered"} 1
    "#]];
    check(&metrics, CHAIN, &expected);
    metrics.observe(&node("a", &json!({ "phase": "Running" })));
    check(&metrics, CHAIN, &expected);
    metrics.chain(&key, Some(Err(NoFacts::OtherNetwork("x-1".into()))));
    check(
        &metrics,
        CHAIN,
        &expect![[r#"
            sei_controller_seinode_rpc_probe{namespace="sei",name="a",chain="pacific-1",role="node",outcome="other_network"} 1
        "#]],
    );
    metrics.chain(&key, None);
    check(&metrics, CHAIN, &expect![[""]]);
    metrics.chain(&key, Some(Ok(facts())));
    metrics.forget(&key);
    check(&metrics, CHAIN, &expect![[""]]);
}

fn fleet(spec: &Value, status: &Value) -> SeiNodeDeployment {
    let mut fleet = json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNodeDeployment",
        "metadata": { "name": "edge", "namespace": "sei" },
        "spec": {
            "replicas": 3, "updateStrategy": { "type": "InPlace" },
            "template": { "spec": { "chainId": "pacific-1", "image": "seid:v1", "fullNode": {} } },
        },
        "status": status,
    });
    for (key, value) in spec.as_object().unwrap() {
        fleet["spec"][key] = value.clone();
    }
    serde_json::from_value(fleet).unwrap()
}

/// A fleet whose rollout is halted.
fn halted_fleet() -> SeiNodeDeployment {
    fleet(
        &json!({ "updateStrategy": { "type": "InPlace", "inPlace": {
            "canary": { "replicas": 1, "bakeSeconds": 60 }, "health": { "bakeSeconds": 90 },
        } } }),
        &json!({
            "phase": "Upgrading", "replicas": 3, "readyReplicas": 3, "updatedReplicas": 1,
            "rollout": { "targetHash": "b", "startedAt": "2026-08-05T09:00:00Z",
                "lastProgressAt": "2026-08-05T10:00:00Z", "haltReason": "edge-0: no" },
            "conditions": [condition("Ready", "False", "RolloutHalted")],
        }),
    )
}

#[test]
fn a_fleet_shows_its_nodes_and_its_rollout_until_it_is_deleted() {
    let metrics = Metrics::new();
    let empty = encoded(&metrics);
    let names = &[
        "seinodedeployment_r",
        "seinodedeployment_phase{namespace=\"sei\",name=\"edge\",phase=\"Up",
    ];
    metrics.observe_fleet(&halted_fleet());
    check(
        &metrics,
        names,
        &expect![[r#"
        sei_controller_seinodedeployment_phase{namespace="sei",name="edge",phase="Upgrading"} 1
        sei_controller_seinodedeployment_ready{namespace="sei",name="edge",reason="RolloutHalted"} 0
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="desired"} 3
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="ready"} 3
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="updated"} 1
        sei_controller_seinodedeployment_rollout_bake_seconds{namespace="sei",name="edge"} 90
        sei_controller_seinodedeployment_rollout_progress_timestamp_seconds{namespace="sei",name="edge"} 1785924000
        sei_controller_seinodedeployment_rollout{namespace="sei",name="edge",state="Halted"} 1
    "#]],
    );
    let held = json!({ "paused": true });
    let rollout = json!({ "targetHash": "b", "startedAt": "2026-08-05T09:00:00Z" });
    metrics.observe_fleet(&fleet(&held, &json!({ "rollout": rollout })));
    check(
        &metrics,
        &["seinodedeployment_rollout"],
        &expect![[r#"
        sei_controller_seinodedeployment_rollout_bake_seconds{namespace="sei",name="edge"} 0
        sei_controller_seinodedeployment_rollout{namespace="sei",name="edge",state="Paused"} 1
    "#]],
    );
    let conditions = [condition("Ready", "True", "a \" quote")];
    metrics.observe_fleet(&fleet(&json!({}), &json!({ "conditions": conditions })));
    check(
        &metrics,
        &["seinodedeployment_r"],
        &expect![[r#"
        sei_controller_seinodedeployment_ready{namespace="sei",name="edge",reason="Other"} 1
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="desired"} 3
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="ready"} 0
        sei_controller_seinodedeployment_replicas{namespace="sei",name="edge",replica_state="updated"} 0
        sei_controller_seinodedeployment_rollout_bake_seconds{namespace="sei",name="edge"} 0
    "#]],
    );
    metrics.forget_fleet(&ObjectKey::new("sei", "edge"));
    assert_eq!(encoded(&metrics), empty);
}

/// Metrics with at least one series of every kind.
fn with_every_metric() -> Metrics {
    let metrics = observed();
    metrics.chain(&ObjectKey::new("sei", "a"), Some(Ok(facts())));
    metrics.observe_fleet(&halted_fleet());
    metrics.error("SeiNode", "write-status");
    metrics.platform_file("0123456789abcdef", false);
    metrics.probe("sei", &Health::Ready);
    let before = status(json!({ "phase": "Initializing", "plan": plan("p", "Active"),
        "phaseTransitionTime": "2026-08-05T10:00:00Z" }));
    let after = status(json!({ "phase": "Running" }));
    let now = "2026-08-05T10:03:20Z".parse().unwrap();
    metrics.transition(&node("a", &Value::Null), &before, &after, now);
    let halted = condition("Halted", "True", "NoNewBlock");
    metrics.observe(&node("b", &json!({ "conditions": [halted] })));
    metrics.controller("SeiNode").reconciled(&Err(()), Duration::from_secs(1));
    let watch = "/apis/sei.io/v1alpha1/seinodes?watch=true";
    requested(&metrics, watch, |_| async { Ok::<_, ()>(Response::new(Full::default())) });
    metrics
}

/// Sends one request through the layer that counts. Whether it got a response.
fn requested<F>(metrics: &Metrics, uri: &str, answer: impl Fn(Request<()>) -> F) -> bool
where
    F: Future<Output = Result<Response<Full<Bytes>>, ()>> + Send + 'static,
{
    let service = tower::service_fn(|request| answer(request).boxed());
    let mut service = metrics.count_requests().layer(service);
    let request = Request::get(uri).body(()).unwrap();
    service.call(request).now_or_never().is_some_and(|result| result.is_ok())
}

/// Names and labels of a scrape, without the label that makes a bucket.
fn scraped(text: &str) -> BTreeMap<String, Vec<String>> {
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let parsed = series.map(|line| {
        let (name, rest) = line.split_once(['{', ' ']).unwrap();
        let labels = rest.split_once('}').map_or("", |(labels, _)| labels);
        let names = labels.split(',').filter_map(|label| Some(label.split_once('=')?.0.to_owned()));
        (name.to_owned(), names.filter(|label| label != "le").collect())
    });
    parsed.collect()
}

#[test]
fn what_is_scraped_is_what_the_table_has() {
    let text = with_every_metric().encode();
    let table = metric::all().flat_map(|metric| {
        let labels: Vec<String> = metric.labels.iter().map(|&label| label.to_owned()).collect();
        metric.series().into_iter().map(move |name| (name, labels.clone()))
    });
    assert_eq!(scraped(&text), table.collect());
    for metric in metric::all() {
        let family = metric.name.strip_suffix("_total").unwrap_or(metric.name);
        assert!(text.contains(&format!("# HELP {family} {}.\n", metric.help)), "{family}");
        assert!(text.contains(&format!("# TYPE {family} {}\n", metric.kind)), "{family}");
    }
}

#[test]
fn requests_are_counted_by_verb_resource_and_code() {
    let metrics = Metrics::new();
    let answered = |uri, code: u16| {
        let is_answered = requested(&metrics, uri, |_| async move {
            let mut response = Response::new(Full::default());
            *response.status_mut() = StatusCode::from_u16(code).unwrap();
            Ok(response)
        });
        assert!(is_answered);
    };
    answered("/api/v1/namespaces/ns/pods/a-0", 200);
    answered("/api/v1/namespaces/other/pods/b-0", 200);
    answered("/api/v1/namespaces/ns/pods/a-0", 404);
    answered("/api/v1/namespaces/ns/nodes.of.others/a", 200);
    let pod = "/api/v1/namespaces/ns/pods/a-0";
    assert!(!requested(&metrics, pod, |_| async { Err(()) }));
    assert!(!requested(&metrics, pod, |_| pending()), "the caller gave up");
    check(
        &metrics,
        &["api_requests", "api_request_duration_seconds_count"],
        &expect![[r#"
            sei_controller_api_request_duration_seconds_count{verb="get"} 6
            sei_controller_api_requests_total{verb="get",resource="other",code="200"} 1
            sei_controller_api_requests_total{verb="get",resource="pods",code="200"} 2
            sei_controller_api_requests_total{verb="get",resource="pods",code="404"} 1
            sei_controller_api_requests_total{verb="get",resource="pods",code="none"} 2
        "#]],
    );
}

/// Opens a watch through the layer that counts. Its events are sent by the returned end.
async fn watched(
    metrics: &Metrics,
    uri: &str,
    code: u16,
) -> (
    tokio::sync::mpsc::UnboundedSender<Bytes>,
    impl hyper::body::Body<Error: std::fmt::Debug> + Unpin + use<>,
) {
    let (events, mut received) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let frames = futures::stream::poll_fn(move |context| received.poll_recv(context))
        .map(|event| Ok::<_, std::convert::Infallible>(Frame::data(event)));
    let response = Response::builder().status(code).body(StreamBody::new(frames)).unwrap();
    let response = std::sync::Mutex::new(Some(response));
    let service = tower::service_fn(|_: Request<()>| {
        std::future::ready(Ok::<_, ()>(response.lock().unwrap().take().unwrap()))
    });
    let mut service = metrics.count_requests().layer(service);
    let response = service.call(Request::get(uri).body(()).unwrap()).await.unwrap();
    (events, response.into_body())
}

#[tokio::test(start_paused = true)]
async fn a_watch_ages_until_it_receives_something_or_is_opened_again() {
    let metrics = Metrics::new();
    let ages = |expected: &Expect| check(&metrics, &["watch_age"], expected);
    let seconds = |seconds| tokio::time::advance(Duration::from_secs(seconds));
    let pods = "/api/v1/namespaces/a/pods?&watch=true";
    let (events, mut body) = watched(&metrics, pods, 200).await;
    seconds(50).await;
    events.send(Bytes::from_static(b"{}")).unwrap();
    body.frame().await.unwrap().unwrap();
    seconds(7).await;
    ages(&expect![[r#"
        sei_controller_watch_age_seconds{resource="pods"} 7.0
    "#]]);
    // Another watch of the resource does not hide that the first is silent: of another namespace, or of
    // other labels.
    let others = watched(&metrics, "/api/v1/namespaces/b/pods?watch=true", 200).await;
    let labelled = watched(&metrics, &format!("{pods}&labelSelector=b"), 200).await;
    ages(&expect![[r#"
        sei_controller_watch_age_seconds{resource="pods"} 7.0
    "#]]);
    // Refused: the age of the old watch counts on.
    drop((events, body));
    let _refused = watched(&metrics, pods, 500).await;
    seconds(5).await;
    ages(&expect![[r#"
        sei_controller_watch_age_seconds{resource="pods"} 12.0
    "#]]);
    let _again = watched(&metrics, &format!("{pods}&resourceVersion=7"), 200).await;
    seconds(1).await;
    ages(&expect![[r#"
        sei_controller_watch_age_seconds{resource="pods"} 6.0
    "#]]);
    drop((others, labelled));
}
