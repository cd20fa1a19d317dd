//! Every reason of the conditions that tasks set appears in what a task reports, and every reason of
//! `Stalled` that only tasks report.

use std::collections::BTreeSet;

use sei_api::condition::{ConditionType, REASONS};
use sei_api::status::SeiNodeStatus;
use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::executor;
use crate::request::{ClaimView, Failure, Outcome, SecretView, TaskRecord, TaskState, VolumeView};
use crate::seen::Reading;
use crate::signing_key;
use crate::start_check::tests::after_record;
use crate::tasks::fixture::{NEW, World, node, pod};
use crate::tasks::pre_pull::tests::not_pullable;
use crate::tasks::{Next, Waiting};

const BY_TASKS: [ConditionType; 4] = [
    ConditionType::ImportPvcReady,
    ConditionType::SigningKeyReady,
    ConditionType::NodeKeyReady,
    ConditionType::OperatorKeyringReady,
];

fn secret(files: &[(&str, &Value)]) -> SecretView {
    let data = files.iter().map(|(name, text)| ((*name).to_owned(), text.to_string().into()));
    SecretView { terminating: false, data: data.collect() }
}

/// The task with a usable Secret, with an empty one, and without one.
fn key_worlds(task: TaskType, usable: SecretView) -> impl Iterator<Item = World> {
    [Some(usable), Some(secret(&[])), None].into_iter().map(move |found| {
        let params = json!({
            "secretName": "key", "keyName": "admin",
            "passphraseSecretName": "passphrase", "passphraseSecretKey": "text",
        });
        let mut world = World::only(task, params);
        world.seen.secrets.insert("key".to_owned(), Reading::Live(found));
        let passphrase = secret(&[("text", &json!("open"))]);
        world.seen.secrets.insert("passphrase".to_owned(), Reading::Live(Some(passphrase)));
        world
    })
}

/// The task with an imported claim in this phase, or without one.
fn claim_world(phase: Option<&str>) -> World {
    let mut world = World::only(TaskType::EnsureDataPvc, json!({}));
    let import = json!({ "fullNode": {}, "dataVolume": { "import": { "pvcName": "theirs" } } });
    world.seen.node = node(import).into();
    world.seen.claim = Reading::Live(phase.map(|phase| ClaimView {
        phase: phase.to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        capacity: Some("100Gi".to_owned()),
        volume: Some("pv-1".to_owned()),
        ..ClaimView::default()
    }));
    let (phase, capacity) = ("Bound".to_owned(), Some("100Gi".to_owned()));
    world.seen.volume = Reading::Live(Some(VolumeView { phase, capacity }));
    world
}

/// An update whose last call failed.
fn after(failure: Failure) -> World {
    let mut world = World::updating(TaskType::ApplyStatefulSet);
    world.seen.failure = Some(failure);
    world
}

/// The gate of the fresh pod is to be opened, the sidecar's record of the task has failed, and it may
/// be run again.
fn failed_task() -> World {
    let mut world = World::updating(TaskType::MarkReady);
    world.plan.tasks.last_mut().unwrap().max_retries = Some(1);
    world.live_pods([pod(NEW)]);
    let failed = TaskRecord::from(TaskState::Failed("disk full".to_owned()));
    world.transcript([Outcome::Task(Some(failed))]);
    let (now, timing) = (world.seen.now, world.seen.timing);
    let mut status = SeiNodeStatus { plan: Some(world.plan.clone()), ..SeiNodeStatus::default() };
    executor::record(&mut status, world.next(), 1, now, timing);
    world.plan = status.plan.unwrap();
    world
}

/// What tasks wait for, each by the observation or the failed call that causes it.
pub(crate) fn waits() -> Vec<Waiting> {
    let text = || "no".to_owned();
    let mut terminating = World::updating(TaskType::ReplacePod);
    terminating.statefulset().terminating = true;
    let without_key = key_worlds(TaskType::ValidateSigningKey, secret(&[])).last().unwrap();
    let blank_state = after_record(|_| {}).expect_err("its volume is new");
    let worlds = vec![
        terminating,
        without_key,
        failed_task(),
        claim_world(None),
        after(Failure::Unreachable(text())),
        after(Failure::Unauthorized(text())),
        after(Failure::Rejected(text())),
        after(Failure::FieldManagerConflict(text())),
        after(Failure::Forbidden(text())),
        after(blank_state),
    ];
    let steps = worlds.iter().map(World::next).chain([not_pullable()]);
    let waits = steps.map(|next| match next {
        Next::Wait(waiting) => waiting,
        next => panic!("{next:?}"),
    });
    waits.collect()
}

#[test]
fn every_reason_of_a_task_appears() {
    let node_key = json!({ "priv_key": { "type": "t", "value": "v" } });
    let signing = secret(&[(signing_key::FILE, &signing_key::made_up("a"))]);
    let keyring = secret(&[("admin.info", &json!("x")), ("1a.address", &json!("x"))]);
    let worlds = key_worlds(TaskType::ValidateSigningKey, signing)
        .chain(key_worlds(TaskType::ValidateNodeKey, secret(&[("node_key.json", &node_key)])))
        .chain(key_worlds(TaskType::ValidateOperatorKeyring, keyring))
        .chain([Some("Bound"), Some("Lost"), None].map(claim_world));
    let mut seen = BTreeSet::new();
    for world in worlds {
        let verdict = match world.next() {
            Next::Wait(waiting) => waiting.verdict,
            Next::Done(effects) => effects.verdict,
            Next::Fail(failed) => failed.verdict,
            next => panic!("{next:?}"),
        };
        let verdict = verdict.expect("the task reports a condition");
        let texts = [verdict.condition.as_str(), verdict.status.as_str(), verdict.reason.as_str()];
        seen.insert(texts);
    }
    let table: BTreeSet<_> = REASONS
        .iter()
        .filter(|row| BY_TASKS.contains(&row.condition))
        .map(|row| [row.condition.as_str(), row.status.as_str(), row.reason.as_str()])
        .collect();
    assert_eq!(seen, table);
}
