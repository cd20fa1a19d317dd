//! Plans that another program stored, that are damaged, or that are forged.

use jiff::Timestamp;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use sei_api::SeiNode;
use sei_api::plan::{TaskPlan, task_id};
use sei_api::task::TaskType;
use serde_json::{Map, Value, json};

use crate::check_plan::{Severity, check_plan};
use crate::desired::{Desired, render_desired};
use crate::fixtures::{any_json, pointers, without};
use crate::request::{ClaimView, SecretView, VolumeView};
use crate::seen::{Reading, Seen};
use crate::tasks::{Next, step};
use crate::testing::{node, platform};
use crate::view::{Controller, JobView, ObjectView, PodView, StatefulSetView};

/// Longest finding or message about one plan.
const TEXT_MAX: usize = 4 * 1024;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

/// Stored plans of both operators.
fn real_plan(index: usize) -> Value {
    let task = |at: usize, name: &str, status: &str, params: Value| json!({ "type": name, "id": task_id("p", name, at), "status": status, "params": params });
    let ours = json!({
        "id": "p", "phase": "Active", "kind": "NodeUpdate", "targetPhase": "Running",
        "createdAt": "2026-08-05T10:00:00Z", "abandoned": ["x"],
        "target": { "hash": "v1:a", "image": "i", "sidecarImage": "s", "generation": 3,
                    "cause": "Spec", "inputsHash": "v1:b" },
        "applied": { "uid": "u", "generation": 4 },
        "tasks": [
            task(0, "validate-signing-key", "Complete", json!({ "secretName": "s" })),
            task(1, "config-patch", "Complete", json!({ "files": { "config.toml": {} } })),
            task(2, "apply-statefulset", "Pending", json!({})),
            task(3, "apply-service", "Pending", json!({})),
            task(4, "replace-pod", "Pending", json!({})),
            task(5, "observe-image", "Pending", json!({})),
            task(6, "mark-ready", "Pending", Value::Null),
        ],
    });
    let peers = json!({
        "id": "p", "phase": "Active", "targetPhase": "Running", "failedPhase": "Failed",
        "tasks": [
            task(0, "ensure-data-pvc", "Complete", json!({ "nodeName": "n" })),
            task(1, "snapshot-restore", "Pending", json!({ "TargetHeight": 12 })),
            task(2, "configure-genesis", "Failed", json!({ "ExpectedGenesisHash": "" })),
            task(3, "mark-ready", "Pending", Value::Null),
        ],
        "failedTaskIndex": 2,
    });
    [ours, peers][index % 2].clone()
}

/// A real plan with a few values set or removed anywhere.
fn damaged_plan() -> impl Strategy<Value = Value> {
    let odd = prop_oneof![
        any_json(),
        any::<i64>().prop_map(Value::from),
        select(vec!["Active", "Failed", "Complete", "Pending", "Running", "", "p", "Init"])
            .prop_map(Value::from),
        select(TaskType::ALL).prop_map(|task| Value::from(task.as_str())),
        Just(json!("9999-12-31T23:59:59Z")),
        Just(Value::from("é".repeat(5000))),
    ];
    let edits = prop::collection::vec((any::<Index>(), prop::option::of(odd)), 0..5);
    (any::<bool>(), edits).prop_map(|(ours, edits)| {
        let mut plan = real_plan(usize::from(ours));
        for (index, value) in edits {
            let pointers = pointers(&plan);
            if pointers.is_empty() {
                break;
            }
            let pointer = index.get(&pointers);
            match value {
                Some(value) => *plan.pointer_mut(pointer).unwrap() = value,
                None => plan = without(plan, pointer),
            }
        }
        plan
    })
}

/// One task of any type with any parameters, first in an otherwise valid plan.
fn plan_with_one_task() -> impl Strategy<Value = Value> {
    let params = prop_oneof![
        any_json(),
        prop::collection::vec(
            (
                select(vec![
                    "secretName",
                    "SecretName",
                    "keyName",
                    "passphraseKey",
                    "files",
                    "passphraseSecretName",
                    "mode",
                    "chainId",
                    "é",
                    ""
                ]),
                any_json(),
            ),
            0..6,
        )
        .prop_map(|fields| {
            Value::Object(fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>())
        }),
    ];
    let counts = prop::option::of(any::<i32>());
    (select(TaskType::ALL), params, counts).prop_map(|(task, params, retries)| {
        let name = task.as_str();
        json!({ "id": "p", "phase": "Active", "kind": "NodeUpdate", "tasks": [{
            "type": name, "id": task_id("p", name, 0), "status": "Pending", "params": params,
            "retryCount": retries, "maxRetries": retries,
        }] })
    })
}

/// Possible snapshots when a plan is resumed: nothing read, every object missing, and every
/// object present.
fn all_seen() -> Vec<Seen> {
    let object = node("val-governor");
    let desired = render_desired(&object, &platform("example"), &[], &[]).unwrap();
    let unread = Seen::new(SeiNode::default(), Desired::default(), now());
    let rendered = Seen::new(object.clone(), desired.clone(), now());
    let mut missing = rendered.clone();
    missing.statefulset = Reading::Live(None);
    missing.pods = Reading::Live(None);
    missing.claim = Reading::Live(None);
    missing.job = Reading::Live(None);
    missing.service = Reading::Live(None);
    missing.revision = Reading::Live(None);
    let mut there = rendered.clone();
    there.statefulset = Reading::Live(Some(
        StatefulSetView {
            uid: "u".to_owned(),
            on_delete: true,
            controller: object.metadata.uid.clone(),
            ..StatefulSetView::from(&desired.statefulset.unpack())
        }
        .into(),
    ));
    let set = desired.statefulset.unpack().metadata.name.unwrap_or_default();
    let owner = Some(Controller::statefulset(&set, "u"));
    let name = format!("{set}-0");
    let pod =
        PodView { name, controller: owner, ip: Some("10.0.0.1".to_owned()), ..PodView::default() };
    there.pods = Reading::Live(Some(vec![pod.clone().into()]));
    there.pod = Reading::Live(Some(pod.into()));
    there.claim = Reading::Live(Some(ClaimView::default()));
    there.volume = Reading::Live(Some(VolumeView::default()));
    there.job = Reading::Live(Some(JobView::default()));
    there.service = Reading::Live(Some(ObjectView::default()));
    there.revision = Reading::Live(Some(json!({ "spec": 1 })));
    for name in ["s", "é", ""] {
        there.secrets.insert(name.to_owned(), Reading::Live(Some(SecretView::default())));
    }
    vec![unread, rendered, missing, there]
}

/// The message of a step, as far as it repeats text of others.
fn message(next: &Next) -> &str {
    match next {
        Next::Request(_) | Next::Done(_) | Next::Cleared(_) => "",
        Next::Wait(waiting) => &waiting.message,
        Next::Retry(text) | Next::TimedOut(text) => text,
        Next::Fail(failed) => &failed.detail,
    }
}

fn verdict_text(next: &Next) -> &str {
    let verdict = match next {
        Next::Wait(waiting) => waiting.verdict.as_ref(),
        Next::Fail(failed) => failed.verdict.as_ref(),
        Next::Done(effects) => effects.verdict.as_ref(),
        Next::Request(_) | Next::Retry(_) | Next::TimedOut(_) | Next::Cleared(_) => None,
    };
    verdict.map_or("", |verdict| &verdict.message)
}

/// Resumes a plan as far as its JSON allows. Returns whether the JSON was a plan.
fn resume(json: Value, seen: &[Seen]) -> Result<bool, TestCaseError> {
    let Ok(plan) = serde_json::from_value::<TaskPlan>(json) else { return Ok(false) };
    let notes = check_plan(&plan);
    let length: usize = notes.iter().map(|note| note.text.len()).sum();
    prop_assert!(length < 16 * TEXT_MAX, "{} bytes in {} notes", length, notes.len());
    for seen in seen {
        let Some(next) = step(&plan, seen) else { continue };
        prop_assert!(message(&next).len() < TEXT_MAX, "{} bytes", message(&next).len());
        prop_assert!(verdict_text(&next).len() < TEXT_MAX, "{} bytes", verdict_text(&next).len());
    }
    Ok(true)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_json_is_a_plan_or_is_not(json in any_json(), tasks in prop::collection::vec(any_json(), 0..4)) {
        let seen = [Seen::new(SeiNode::default(), Desired::default(), now())];
        resume(json.clone(), &seen)?;
        resume(json!({ "phase": "Active", "id": "p", "tasks": tasks }), &seen)?;
    }

    #[test]
    fn a_damaged_plan_never_panics(json in damaged_plan()) {
        resume(json, &all_seen()[..2])?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn any_parameters_of_any_task_never_panic(json in plan_with_one_task()) {
        prop_assert!(resume(json, &all_seen())?);
    }
}

#[test]
fn parameters_of_any_length_give_short_messages() {
    let text = "é".repeat(100_000);
    let names = ["secretName", "keyName", "passphraseSecretName", "passphraseKey", "mode"];
    let params: Map<String, Value> =
        names.into_iter().map(|name| (name.to_owned(), text.clone().into())).collect();
    let mut seen = all_seen();
    for snapshot in &mut seen {
        // Read and missing: the message names it.
        snapshot.secrets.insert(text.clone(), Reading::Live(None));
    }
    let mut found = seen[3].clone();
    found.secrets.insert(text.clone(), Reading::Live(Some(SecretView::default())));
    seen.push(found);
    for task in TaskType::ALL {
        let name = task.as_str();
        let task = json!({ "type": name, "id": task_id("p", name, 0), "status": "Pending",
                           "params": params });
        assert!(resume(json!({ "id": "p", "phase": "Active", "tasks": [task] }), &seen).unwrap());
    }
}

#[test]
fn real_plans_are_resumed() {
    for index in 0..2 {
        assert!(resume(real_plan(index), &all_seen()).unwrap());
    }
}

/// A status may be as large as the server's store allows, a megabyte and more.
#[test]
fn a_status_of_a_megabyte_is_read_and_reported_shortly() {
    const SIZE: usize = 1 << 20;
    let many: Vec<Value> = (0..SIZE / 50)
        .map(|at| json!({ "type": "config-apply", "id": at.to_string(), "status": "Pending" }))
        .collect();
    let long: Vec<Value> = (0..32)
        .map(|at| {
            let text = "é".repeat(SIZE / 64);
            json!({ "type": text, "id": text, "status": "Failed", "error": text, "params": [at] })
        })
        .collect();
    for (tasks, fatal) in [(many, "the plan has 20971 tasks"), (long, "has the unknown type")] {
        let plan = json!({ "id": "p", "phase": "Active", "kind": "NodeUpdate", "tasks": tasks });
        let mut object = serde_json::to_value(node("rpc-genesis")).unwrap();
        object["status"] = json!({ "plan": plan });
        let text = object.to_string();
        assert!(text.len() >= SIZE);
        let object: SeiNode = serde_json::from_str(&text).unwrap();
        let plan = object.status.as_ref().and_then(|status| status.plan.as_ref()).unwrap();
        let notes = check_plan(plan);
        let found = notes.iter().find(|note| note.text.contains(fatal));
        assert_eq!(found.map(|note| note.severity), Some(Severity::Fatal), "{fatal}");
        let length: usize = notes.iter().map(|note| note.text.len()).sum();
        assert!(length < 16 * TEXT_MAX && notes.len() < 200, "{} notes", notes.len());
        let seen = Seen::new(object.clone(), Desired::default(), now());
        assert!(step(plan, &seen).is_none_or(|next| message(&next).len() < TEXT_MAX));
    }
}
