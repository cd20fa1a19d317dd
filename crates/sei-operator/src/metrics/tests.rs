use expect_test::{Expect, expect};
use serde_json::{Value, json};

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

fn condition(of: &str, status: &str, reason: &str) -> Value {
    json!({ "type": of, "status": status, "reason": reason, "message": "",
            "lastTransitionTime": "2026-08-05T10:00:00Z" })
}

/// The series whose names begin so, sorted: the order of label sets is not fixed.
fn check(metrics: &Metrics, names: &[&str], expected: &Expect) {
    let text = metrics.encode();
    let is_asked = |line: &&str| {
        names
            .iter()
            .any(|name| line.strip_prefix("sei_controller_").unwrap_or("").starts_with(name))
    };
    let mut lines: Vec<&str> = text.lines().filter(is_asked).collect();
    lines.sort_unstable();
    expected.assert_eq(&joined(&lines));
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
    "plan_active",
    "seinode_sidecar_ready",
    "seinode_drifted",
    "seinode_stalled",
    "seinode_pending_update",
];

#[test]
fn a_node_shows_in_every_gauge() {
    check(
        &observed(),
        GAUGES,
        &expect![[r#"
        sei_controller_plan_active{controller="seinode",namespace="sei"} 1
        sei_controller_seinode_drifted{namespace="sei",name="a",reason="Rolling"} 1
        sei_controller_seinode_pending_update{namespace="sei",name="a",cause="Spec",state="Rolling"} 1
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Failed"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Initializing"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Pending"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Running"} 1
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Terminating"} 0
        sei_controller_seinode_sidecar_ready{namespace="sei",name="a"} 1
        sei_controller_seinode_stalled{namespace="sei",name="a",reason="ImagePullFailed"} 1
    "#]],
    );
}

#[test]
fn observing_twice_changes_nothing() {
    let metrics = observed();
    let once = metrics.encode();
    metrics.observe(&node("b", &json!({ "plan": { "phase": "Active" } })));
    for _ in 0..3 {
        // L9: each pass over an active plan raised the peer's count.
        metrics.observe(&node("b", &json!({ "plan": { "phase": "Active" } })));
    }
    check(
        &metrics,
        &["plan_active"],
        &expect![[r#"
        sei_controller_plan_active{controller="seinode",namespace="sei"} 2
    "#]],
    );
    metrics.forget("sei", "b");
    metrics.forget("sei", "nobody");
    assert_eq!(metrics.encode(), once);
}

#[test]
fn older_label_values_go() {
    let metrics = observed();
    metrics.observe(&node(
        "a",
        &json!({
            "phase": "Failed",
            "plan": { "id": "p", "phase": "Failed", "tasks": [] },
            "conditions": [
                condition("PodTemplateDrift", "False", "InSync"),
                condition("Stalled", "Unknown", "TypedByHand"),
                condition("SidecarReady", "False", "NotReady"),
            ],
        }),
    ));
    check(
        &metrics,
        GAUGES,
        &expect![[r#"
        sei_controller_plan_active{controller="seinode",namespace="sei"} 0
        sei_controller_seinode_drifted{namespace="sei",name="a",reason="InSync"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Failed"} 1
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Initializing"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Pending"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Running"} 0
        sei_controller_seinode_phase{namespace="sei",name="a",phase="Terminating"} 0
        sei_controller_seinode_sidecar_ready{namespace="sei",name="a"} 0
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
    // L10: the peer measured from the time it had just written.
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
fn the_first_phase_is_measured_from_the_creation() {
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
fn a_clock_that_went_back_measures_nothing_below_zero() {
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
        ("goes on", &active, json!({ "plan": plan("p", "Active") }), None),
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
            "superseded, as the peer must read it",
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
        ("was over", &json!({ "plan": plan("p", "Complete") }), json!({}), None),
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
fn the_buckets_of_plans_are_the_peers() {
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
fn a_plan_of_the_peer_is_told_by_its_tasks() {
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
fn events_are_counted() {
    let metrics = Metrics::new();
    metrics.probe("sei", &Health::Ready);
    metrics.probe("sei", &Health::Ready);
    metrics.probe("sei", &Health::NotReady);
    metrics.probe("sei", &Health::Unreachable("connection refused".to_owned()));
    metrics.error("write-status");
    metrics.clone().leading(true);
    check(
        &metrics,
        &["seinode_sidecar_health", "reconcile", "leader"],
        &expect![[r#"
        sei_controller_leader 1
        sei_controller_reconcile_errors_total{controller="seinode",category="write-status"} 1
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

#[test]
fn every_metric_is_described() {
    let text = Metrics::new().encode();
    let about: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
    expect![[r#"
        # HELP sei_controller_leader Whether this process leads.
        # TYPE sei_controller_leader gauge
        # HELP sei_controller_seinode_phase 1 for the phase that the node is in.
        # TYPE sei_controller_seinode_phase gauge
        # HELP sei_controller_plan_active Nodes whose plan is being carried out.
        # TYPE sei_controller_plan_active gauge
        # HELP sei_controller_seinode_sidecar_ready Whether the node's sidecar was ready at its last probe.
        # TYPE sei_controller_seinode_sidecar_ready gauge
        # HELP sei_controller_seinode_drifted Whether the node's pod differs from the wanted one.
        # TYPE sei_controller_seinode_drifted gauge
        # HELP sei_controller_seinode_stalled Whether something keeps the node from getting on.
        # TYPE sei_controller_seinode_stalled gauge
        # HELP sei_controller_seinode_pending_update Nodes that wait for an update, by its cause and what happens with it.
        # TYPE sei_controller_seinode_pending_update gauge
        # EOF
    "#]].assert_eq(&joined(&about));
}
