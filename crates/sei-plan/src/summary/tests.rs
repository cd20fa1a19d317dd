use expect_test::expect;
use serde_json::{Value, json};

use super::*;

const NOW: &str = "2026-11-01T12:00:00Z";
/// Ten minutes before.
const EARLIER: &str = "2026-11-01T11:50:00Z";
/// Forty-five seconds after.
const LATER: &str = "2026-11-01T12:00:45Z";

fn node(status: &Value) -> SeiNode {
    serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
        "metadata": { "name": "rpc-0", "namespace": "demo" },
        "spec": { "chainId": "pacific-1", "image": "seid:v1", "fullNode": {} },
        "status": status,
    }))
    .unwrap()
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": reason, "message": message,
        "lastTransitionTime": EARLIER,
    })
}

/// The status of a running node with these further fields; they replace those of the same name.
fn running(fields: Value) -> Value {
    let mut status = json!({
        "phase": "Running", "phaseTransitionTime": "2026-10-01T00:00:00Z",
        "conditions": [condition("PodTemplateDrift", "False", "InSync", "")],
    });
    let Value::Object(fields) = fields else { panic!("fields are an object") };
    status.as_object_mut().unwrap().extend(fields);
    status
}

fn pending(state: &str, reason: Option<&str>) -> Value {
    json!({
        "targetHash": "v1:new", "baseInputsHash": "v1:base", "cause": "Operator", "state": state,
        "reason": reason, "since": EARLIER,
        "changes": [{ "path": "containers[seid].image" }],
    })
}

/// A running node whose drift condition has this reason, with this pending update.
fn drifting(reason: &str, pending: &Value) -> Value {
    running(json!({
        "conditions": [condition("PodTemplateDrift", "True", reason, "")],
        "pendingUpdate": pending,
    }))
}

fn plan(kind: &str, phase: &str) -> Value {
    json!({
        "id": "plan", "kind": kind, "phase": phase, "createdAt": EARLIER,
        "tasks": [
            { "id": "1", "type": "apply-statefulset", "status": "Complete" },
            { "id": "2", "type": "replace-pod", "status": "Pending" },
        ],
    })
}

fn blocked() -> Value {
    json!({ "reason": "SidecarUnreachable", "since": EARLIER, "message": "the sidecar is down" })
}

fn line(name: &str, node: &SeiNode) -> String {
    let Summary { what, task, why, waits_for, since } = summarize(node, NOW.parse().unwrap());
    let task = task.map(|task| task.to_string()).unwrap_or_default();
    let waits_for = waits_for.unwrap_or_default();
    let since = since.map(|since| since.to_string()).unwrap_or_default();
    let text = format!("{name}: {what:?} | {task} | {why} | {waits_for} | {since}");
    format!("{}\n", text.trim_end())
}

fn lines(cases: &[(&str, Value)]) -> String {
    cases.iter().map(|(name, status)| line(name, &node(status))).collect()
}

#[test]
fn a_node_at_rest_is_summarized_by_phase_and_conditions() {
    let paused = condition("Paused", "True", "Paused", "spec.paused");
    let witnesses = condition("StateSyncReady", "False", "NoSyncersConfigured", "1 witness of 2");
    expect![[r#"
        new: Waiting { on: FirstReconcile } |  |  | the first reconcile |
        pending: Waiting { on: FirstPlan } |  |  | its first plan |
        no witnesses: Waiting { on: StateSync } |  | 1 witness of 2 | state-sync witnesses | 2026-11-01T11:50:00Z
        in sync: InSync |  |  |  | 2026-11-01T11:50:00Z
        not compared: Waiting { on: Comparison } |  |  | the comparison of its pod | 2026-10-01T00:00:00Z
        blocked: Waiting { on: Blocker { reason: "SidecarUnreachable" } } |  | the sidecar is down | the end of SidecarUnreachable | 2026-11-01T11:50:00Z
        stopped: Stopped |  | spec.paused | the removal of spec.paused | 2026-11-01T11:50:00Z
        failed: Failed |  |  |  | 2026-11-01T11:50:00Z
        terminating: Deleting |  |  |  |
    "#]].assert_eq(&lines(&[
        ("new", json!({})),
        ("pending", json!({ "phase": "Pending" })),
        ("no witnesses", json!({ "phase": "Pending", "conditions": [witnesses] })),
        ("in sync", running(json!({}))),
        ("not compared", running(json!({ "conditions": [] }))),
        ("blocked", running(json!({ "blocked": blocked() }))),
        ("stopped", running(json!({ "conditions": [paused] }))),
        ("failed", json!({ "phase": "Failed", "phaseTransitionTime": EARLIER })),
        ("terminating", json!({ "phase": "Terminating" })),
    ]));
}

#[test]
fn a_hands_off_node_is_summarized_by_what_ends_it() {
    let ready = || condition("Ready", "True", "HandsOff", "annotation sei.io/hands-off is set");
    let stalled = condition("Stalled", "True", "CrashLooping", "seid: CrashLoopBackOff");
    expect![[r#"
        stalled: HandsOff | replace-pod 2/2 | annotation sei.io/hands-off is set | the removal of annotation sei.io/hands-off |
        deleted: HandsOff |  | annotation sei.io/hands-off is set | the removal of annotation sei.io/hands-off |
    "#]].assert_eq(&lines(&[
        ("stalled", running(json!({
            "conditions": [ready(), stalled], "blocked": blocked(),
            "plan": plan("NodeUpdate", "Active"),
        }))),
        ("deleted", json!({ "phase": "Terminating", "conditions": [ready()] })),
    ]));
}

#[test]
fn a_halted_node_is_summarized_by_what_it_waits_for() {
    let in_sync = || condition("PodTemplateDrift", "False", "InSync", "");
    let stopped = || condition("Halted", "True", "NoNewBlock", "no new block since T, height 655");
    let upgrade = || condition("Halted", "True", "UpgradeNeeded", "v9 at 656");
    let crashing = condition("Stalled", "True", "CrashLooping", "seid: CrashLoopBackOff");
    let resumed = condition("Halted", "False", "BlocksAdvance", "");
    let rolling = json!({ "conditions": [stopped()], "plan": plan("NodeUpdate", "Active") });
    expect![[r#"
        no blocks: Halted { reason: "NoNewBlock" } |  | NoNewBlock: no new block since T, height 655 | a new block | 2026-11-01T11:50:00Z
        upgrade: Halted { reason: "UpgradeNeeded" } |  | UpgradeNeeded: v9 at 656 | the image of the upgrade | 2026-11-01T11:50:00Z
        crashes: Stalled { reason: "CrashLooping" } |  | UpgradeNeeded: v9 at 656 | the end of CrashLooping | 2026-11-01T11:50:00Z
        rolls: Updating { cause: Spec } | replace-pod 2/2 |  |  | 2026-11-01T11:50:00Z
        resumed: InSync |  |  |  | 2026-11-01T11:50:00Z
    "#]].assert_eq(&lines(&[
        ("no blocks", running(json!({ "conditions": [in_sync(), stopped()] }))),
        ("upgrade", running(json!({ "conditions": [in_sync(), upgrade()] }))),
        ("crashes", running(json!({ "conditions": [in_sync(), upgrade(), crashing] }))),
        ("rolls", running(rolling)),
        ("resumed", running(json!({ "conditions": [in_sync(), resumed] }))),
    ]));
}

#[test]
fn a_pending_update_is_summarized_by_its_state() {
    let updating = condition("NodeUpdateInProgress", "True", "UpdateStarted", "v1 -> v2");
    let drift = condition("PodTemplateDrift", "True", "Rolling", "");
    let mut halted = pending("Queued", Some("the chain is halted"));
    halted["haltedBy"] = json!("demo/rpc-9");
    let mut retrying = pending("Retrying", Some("2 failed attempts"));
    retrying["nextAttemptAt"] = json!(LATER);
    let mut settings = pending("Held", Some("with the next roll"));
    settings["changes"] = json!([{ "path": "config.externalAddress" }]);
    let rolling =
        json!({ "conditions": [updating, drift], "pendingUpdate": pending("Rolling", None) });
    expect![[r#"
        held: Held { by: Approval } |  | waits for an approval | an approval | 2026-11-01T11:50:00Z
        update paused: Held { by: Pause } |  | spec.update.paused | the removal of spec.update.paused | 2026-11-01T11:50:00Z
        settings: InSync |  | with the next roll |  | 2026-11-01T11:50:00Z
        queued: Waiting { on: Turn } |  | rpc-1 rolls | its turn in chain pacific-1 | 2026-11-01T11:50:00Z
        halted: Waiting { on: Turn } |  | the chain is halted | the failed rolls of demo/rpc-9 | 2026-11-01T11:50:00Z
        rolling: Updating { cause: Operator } |  | v1 -> v2 |  | 2026-11-01T11:50:00Z
        retrying: Waiting { on: Retry } |  | 2 failed attempts | the next attempt in 45s | 2026-11-01T11:50:00Z
    "#]].assert_eq(&lines(&[
        ("held", drifting("Held", &pending("Held", Some("waits for an approval")))),
        ("update paused", drifting("Paused", &pending("Held", Some("spec.update.paused")))),
        ("settings", running(json!({ "pendingUpdate": settings }))),
        ("queued", drifting("WaitingForSlot", &pending("Queued", Some("rpc-1 rolls")))),
        ("halted", drifting("WaitingForSlot", &halted)),
        ("rolling", running(rolling)),
        ("retrying", drifting("BackingOff", &retrying)),
    ]));
}

#[test]
fn an_active_plan_is_summarized_by_its_kind() {
    let update = pending("Rolling", Some("v1 -> v2"));
    let mut delayed = plan("NodeUpdate", "Active");
    delayed["tasks"][1]["notBefore"] = json!(LATER);
    let mut failed = plan("NodeUpdate", "Failed");
    failed["failedTaskDetail"] = json!({
        "id": "2", "type": "replace-pod", "error": "timed out", "retryCount": 0, "maxRetries": 0,
    });
    let init = json!({ "phase": "Initializing", "plan": plan("Init", "Active") });
    let blocked = json!({ "plan": plan("NodeUpdate", "Active"), "blocked": blocked() });
    let update = json!({ "plan": plan("NodeUpdate", "Active"), "pendingUpdate": update });
    expect![[r#"
        init: Initializing | replace-pod 2/2 |  |  | 2026-11-01T11:50:00Z
        update: Updating { cause: Operator } | replace-pod 2/2 | v1 -> v2 |  | 2026-11-01T11:50:00Z
        blocked: Updating { cause: Spec } | replace-pod 2/2 | the sidecar is down | the end of SidecarUnreachable | 2026-11-01T11:50:00Z
        delayed: Updating { cause: Spec } | replace-pod 2/2 |  | the retry of replace-pod in 45s | 2026-11-01T11:50:00Z
        repair: Repairing | replace-pod 2/2 |  |  | 2026-11-01T11:50:00Z
        failed plan: Failed |  | replace-pod: timed out |  | 2026-11-01T11:50:00Z
    "#]].assert_eq(&lines(&[
        ("init", init),
        ("update", running(update)),
        ("blocked", running(blocked)),
        ("delayed", running(json!({ "plan": delayed }))),
        ("repair", running(json!({ "plan": plan("MarkReady", "Active") }))),
        ("failed plan", running(json!({ "plan": failed }))),
    ]));
}

#[test]
fn deletion_and_a_stall_take_precedence() {
    let stalled = condition("Stalled", "True", "ImagePullFailed", "seid: ErrImagePull");
    let stalled = node(&running(json!({
        "conditions": [stalled], "plan": plan("NodeUpdate", "Active"),
    })));
    let mut deleting = stalled.clone();
    deleting.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
    let text = line("stalled", &stalled) + &line("deleting", &deleting);
    expect![[r#"
        stalled: Stalled { reason: "ImagePullFailed" } | replace-pod 2/2 | ImagePullFailed: seid: ErrImagePull | the end of ImagePullFailed | 2026-11-01T11:50:00Z
        deleting: Deleting | replace-pod 2/2 | ImagePullFailed: seid: ErrImagePull |  | 2026-11-01T12:00:00Z
    "#]].assert_eq(&text);
}

#[test]
fn a_state_is_dated_from_its_own_begin() {
    let earlier = "2026-11-01T10:00:00Z";
    let mut last = json!({
        "planID": "1", "cause": "Spec", "outcome": "Complete", "finishedAt": EARLIER,
    });
    let mut in_sync = running(json!({ "lastUpdate": last }));
    in_sync["conditions"][0]["lastTransitionTime"] = json!(earlier);
    last["outcome"] = json!("Failed");
    let mut failed = running(json!({ "plan": plan("NodeUpdate", "Failed"), "lastUpdate": last }));
    failed["plan"]["createdAt"] = json!(earlier);
    let ended = condition("NodeUpdateInProgress", "False", "UpdateFailed", "");
    failed["conditions"].as_array_mut().unwrap().push(ended);
    let mut update = pending("Rolling", None);
    update["since"] = json!(earlier);
    let rolling = running(json!({ "plan": plan("NodeUpdate", "Active"), "pendingUpdate": update }));
    for (name, status) in [("in sync", in_sync), ("failed", failed), ("rolling", rolling)] {
        let since = summarize(&node(&status), NOW.parse().unwrap()).since;
        assert_eq!(since, Some(EARLIER.parse().unwrap()), "{name}");
    }
}

#[test]
fn an_update_is_held_by_an_approval_a_pause_or_not_at_all() {
    for (reason, state, expected) in [
        ("Held", "Held", Some(Hold::Approval)),
        ("AdoptedWithDrift", "Held", Some(Hold::Approval)),
        ("Paused", "Held", Some(Hold::Pause)),
        ("WaitingForSlot", "Queued", None),
    ] {
        let node = node(&drifting(reason, &pending(state, None)));
        assert_eq!(held_by(&node.status.unwrap()), expected, "{reason}");
    }
}
