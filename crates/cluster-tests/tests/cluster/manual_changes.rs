//! What people do to objects by hand, and what becomes of it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Play, rpc, says, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use sei_api::condition::ConditionType;
use sei_api::names::label::POD_REVISION;
use sei_api::plan::TaskStatus;
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_plan::view::PodView;
use sei_rig::{AuditEntry, Behaviour, Rule};
use serde_json::{Value, json};

use crate::status_history::History;

const CONFIG: &str = "rpc-rbac-proxy-config";

#[tokio::test]
async fn a_deleted_service_comes_back() -> Result<()> {
    let play = Play::open("service-gone").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let (before, pod) = (play.services().get("rpc").await?, play.uid("rpc").await?);
    play.services().delete("rpc", &DeleteParams::default()).await?;
    let after = wait_for("it is there again", async || {
        let found = play.services().get_opt("rpc").await?;
        Ok(found.filter(|one| one.metadata.uid != before.metadata.uid))
    })
    .await?;
    assert_eq!(after.spec.context("has a spec")?.selector, before.spec.context("has")?.selector);
    assert_eq!(play.uid("rpc").await?, pod);
    play.close().await
}

#[tokio::test]
async fn an_edited_service_comes_back() -> Result<()> {
    let play = Play::open("service-edited").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.services().get("rpc").await?.spec.context("has a spec")?;
    let patch = json!({ "spec": { "selector": { "sei.io/node": "other" } } });
    play.services().patch("rpc", &PatchParams::default(), &Patch::Merge(patch)).await?;
    wait_for("it is as before", async || {
        let now = play.services().get("rpc").await?.spec.context("has a spec")?;
        Ok((now.selector == before.selector).then_some(()))
    })
    .await?;
    play.close().await
}

#[tokio::test]
async fn a_deleted_config_map_comes_back() -> Result<()> {
    let play = Play::open("map-gone").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.config_maps().get(CONFIG).await?;
    play.config_maps().delete(CONFIG, &DeleteParams::default()).await?;
    let after = wait_for("it is there again", async || {
        let found = play.config_maps().get_opt(CONFIG).await?;
        Ok(found.filter(|one| one.metadata.uid != before.metadata.uid))
    })
    .await?;
    assert_eq!(after.data, before.data);
    play.close().await
}

#[tokio::test]
async fn an_edited_config_map_comes_back() -> Result<()> {
    let play = Play::open("map-edited").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.config_maps().get(CONFIG).await?.data.context("has data")?;
    let keys: Value = before.keys().map(|key| (key.clone(), json!("by hand"))).collect();
    let patch = Patch::Merge(json!({ "data": keys }));
    play.config_maps().patch(CONFIG, &PatchParams::default(), &patch).await?;
    wait_for("it is as before", async || {
        let now = play.config_maps().get(CONFIG).await?.data.context("has data")?;
        Ok((now == before).then_some(()))
    })
    .await?;
    play.close().await
}

#[tokio::test]
async fn a_deleted_statefulset_comes_back_with_the_same_image() -> Result<()> {
    let play = Play::open("set-gone").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.statefulsets().get("rpc").await?;
    let pod = play.uid("rpc").await?;
    play.statefulsets().delete("rpc", &DeleteParams::background()).await?;
    wait_for("it is there again", async || {
        let found = play.statefulsets().get_opt("rpc").await?;
        Ok(found.filter(|one| one.metadata.uid != before.metadata.uid))
    })
    .await?;
    let next = play.until_pod("rpc", "a pod runs", |one| one.uid != pod && one.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    play.settled("rpc").await?;
    assert!(play.pods_seen("rpc").await? <= 2, "{} pods", play.pods_seen("rpc").await?);
    play.close().await
}

#[tokio::test]
async fn a_statefulset_deleted_without_its_pod_takes_the_pod_over() -> Result<()> {
    let play = Play::open("set-orphans").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.statefulsets().get("rpc").await?;
    let pod = play.uid("rpc").await?;
    play.statefulsets().delete("rpc", &DeleteParams::orphan()).await?;
    let after = wait_for("it is there again", async || {
        let found = play.statefulsets().get_opt("rpc").await?;
        Ok(found.filter(|one| one.metadata.uid != before.metadata.uid))
    })
    .await?;
    let owner = ("StatefulSet".to_owned(), after.metadata.uid.context("has one")?);
    play.until_pod("rpc", "it is its pod", |one| one.controller.as_ref() == Some(&owner)).await?;
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, pod);
    play.close().await
}

async fn patch_set(play: &Play, patch: Value) -> Result<StatefulSet> {
    patch_set_of(play, "rpc", patch).await
}

async fn patch_set_of(play: &Play, node: &str, patch: Value) -> Result<StatefulSet> {
    let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
    Ok(play.statefulsets().patch(node, &params, &patch).await?)
}

// M2.2
#[tokio::test]
async fn a_strangers_pod_under_the_same_labels_is_not_touched_by_an_update() -> Result<()> {
    let play = Play::open("stranger").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let mut labels = play.pods().get("rpc-0").await?.metadata.labels.context("has labels")?;
    labels.insert(POD_REVISION.to_owned(), "of-another".to_owned());
    let pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stranger", "labels": labels },
        "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }] },
    }))?;
    let stranger = play.pods().create(&PostParams::default(), &pod).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    let after = play.pods().get("stranger").await?;
    assert_eq!(after.metadata.uid, stranger.metadata.uid);
    assert_eq!(after.metadata.deletion_timestamp, None);
    assert_eq!(play.pods_seen("rpc").await?, 3, "two of the node, and the stranger");
    play.close().await
}

// M2.2
#[tokio::test]
async fn a_pod_without_its_revision_is_not_touched_by_an_update_that_waits_for_it() -> Result<()> {
    let play = Play::open("unlabelled").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { POD_REVISION: null } } }));
    play.pods().patch("rpc-0", &PatchParams::default(), &patch).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.until("rpc", "its pod is to be replaced", |status| {
        let tasks = status.plan.iter().flat_map(|plan| &plan.tasks);
        let mut applied = tasks.filter(|task| task.r#type == "apply-service");
        applied.any(|task| task.status == TaskStatus::Complete)
    })
    .await?;
    // Whatever was begun then is done by the time that a whole node has been made.
    play.run("later", rpc("seid:v1")).await?;
    let pod = play.pod("rpc").await?.context("it is there")?;
    assert!(pod.uid == before && !pod.is_terminating());
    play.evict("rpc").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

// M2.2
#[tokio::test]
async fn two_replicas_of_a_validator_in_the_middle_of_an_update_are_one_again() -> Result<()> {
    let play = Play::open_at("replicas-mid", 1).await?;
    let namespace = play.scene.namespace.clone();
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    play.sidecars().hold(&namespace, "val", "config-validate");
    let before = play.submitted("val", "config-validate");
    play.set_image("val", "seid:v2").await?;
    play.until_submitted("val", "config-validate", before).await?;
    let before = patch_set_of(&play, "val", json!({ "spec": { "replicas": 2 } })).await?;
    let after = wait_for("there is one again", async || {
        let set = play.statefulsets().get("val").await?;
        Ok((set.spec.replicas == Some(1)).then_some(set))
    })
    .await?;
    assert_eq!(after.spec.template, before.spec.template, "the update has not come so far yet");
    play.sidecars().release(&namespace, "val", "config-validate");
    play.settled("val").await?;
    wait_for("the second pod is gone", async || {
        Ok(play.pods().get_opt("val-1").await?.is_none().then_some(()))
    })
    .await?;
    assert_eq!(play.until_pod_of("val", "seid:v2").await?.name, "val-0");
    play.close().await
}

#[tokio::test]
async fn two_replicas_by_hand_are_set_to_one_again() -> Result<()> {
    let play = Play::open("replicas").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    patch_set(&play, json!({ "spec": { "replicas": 2 } })).await?;
    wait_for("there is one again", async || {
        let set = play.statefulsets().get("rpc").await?;
        Ok((set.spec.replicas == Some(1)).then_some(()))
    })
    .await?;
    wait_for("the second pod is gone", async || {
        Ok(play.pods().get_opt("rpc-1").await?.is_none().then_some(()))
    })
    .await?;
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, before);
    play.close().await
}

#[tokio::test]
async fn a_rolling_update_by_hand_is_set_right_and_restarts_nothing() -> Result<()> {
    let play = Play::open("strategy").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    patch_set(&play, json!({ "spec": { "updateStrategy": { "type": "RollingUpdate" } } })).await?;
    wait_for("it is OnDelete again", async || {
        let strategy = play.statefulsets().get("rpc").await?.spec.update_strategy;
        Ok(strategy.filter(|one| one.type_.as_deref() == Some("OnDelete")))
    })
    .await?;
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, before);
    play.close().await
}

#[tokio::test]
async fn a_template_edited_by_hand_is_put_back_and_restarts_nothing() -> Result<()> {
    let play = Play::open("template").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let pod = play.uid("rpc").await?;
    let revision = |set: &StatefulSet| set.status.as_ref()?.update_revision.clone();
    let before = revision(&play.statefulsets().get("rpc").await?);
    let containers = json!([{ "name": "seid", "image": "seid:hand" }]);
    let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
    let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
    let edited = play.statefulsets().patch("rpc", &params, &patch).await?;
    wait_for("the revision is the pod's again", async || {
        let set = play.statefulsets().get("rpc").await?;
        let seen = set.status.as_ref().and_then(|one| one.observed_generation);
        Ok((seen > edited.metadata.generation && revision(&set) == before).then_some(()))
    })
    .await?;
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, pod);
    play.evict("rpc").await?;
    let next = play.until_pod("rpc", "another one runs", |one| one.uid != pod && one.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    play.close().await
}

#[tokio::test]
async fn a_wiped_status_comes_back_and_restarts_nothing() -> Result<()> {
    let play = Play::open("wiped").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let (before, pod) = (play.status("rpc").await?, play.uid("rpc").await?);
    play.wipe_status("rpc").await?;
    let after = play
        .until("rpc", "the status is back", |status| {
            status.phase == Some(SeiNodePhase::Running)
                && status.current_image == before.current_image
                && status.pod_template_hash == before.pod_template_hash
                && status.data_claim == before.data_claim
        })
        .await?;
    assert_eq!(after.last_update, None);
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, pod);
    play.close().await
}

#[tokio::test]
async fn a_forged_image_in_the_status_is_corrected_without_a_restart() -> Result<()> {
    let play = Play::open("forged").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let pod = play.uid("rpc").await?;
    play.edit_status("rpc", json!({ "currentImage": "seid:forged" })).await?;
    play.until("rpc", "the truth is back", |status| {
        status.current_image.as_deref() == Some("seid:v1")
    })
    .await?;
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, pod);
    // Not closed: the lie is ours.
    Ok(())
}

/// What people are promised, in seconds: at the speed of life none of the operator's clocks ticks
/// that fast, so whoever keeps it was woken by an event. A busy machine adds to what it takes and
/// never takes from it: one of some tries shows it.
pub(crate) const PROMISED: f64 = 1.0;

/// As many tries as a busy machine gets.
pub(crate) const TRIES: i32 = 10;

/// Longer than a sidecar that answers late is left alone between two questions, and shorter than
/// pauses that double would be by then.
const ASKED_OFTEN: f64 = 4.0;

/// Waits until the gate is open behind the sidecar that answered after so many others, and returns
/// how many seconds that took, counted from when the sidecar itself began to answer.
pub(crate) async fn opened_after(play: &Play, node: &str, others: usize) -> Result<f64> {
    let (namespace, sidecars) = (&play.scene.namespace, play.sidecars());
    let opened = wait_for("the gate is open", async || {
        let answers = sidecars.first_answers(namespace, node).into_iter().nth(others);
        let Some(answer) = answers else { return Ok(None) };
        let openings = sidecars.gate_openings(namespace, node);
        let mut its = openings.iter().filter(|one| one.pod_uid == answer.pod_uid);
        Ok(its.find(|one| one.at >= answer.at).map(|one| one.at.duration_since(answer.at)))
    });
    Ok(opened.await?.as_secs_f64())
}

/// How many times a sidecar of the node began to answer.
pub(crate) fn answers(play: &Play, node: &str) -> usize {
    play.sidecars().first_answers(&play.scene.namespace, node).len()
}

#[tokio::test]
async fn an_evicted_pods_gate_is_open_within_a_second_of_its_sidecars_answer() -> Result<()> {
    let play = Play::open_at("evicted", 1).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let mut waited = Vec::new();
    while waited.iter().all(|one| *one > PROMISED) {
        assert!(waited.len() < TRIES.try_into()?, "gates opened after {waited:?} s");
        let before = answers(&play, "rpc");
        play.evict("rpc").await?;
        waited.push(opened_after(&play, "rpc", before).await?);
        play.settled("rpc").await?;
    }
    let status = play.status("rpc").await?;
    assert_eq!(status.last_update, None);
    assert_eq!(says(&status, ConditionType::NodeUpdateInProgress), "absent");
    assert_eq!(play.pods_seen("rpc").await?, 1 + waited.len());
    play.close().await
}

// N19
#[tokio::test]
async fn an_approval_is_stored_before_it_is_given() -> Result<()> {
    let play = Play::open("approval").await?;
    let namespace = play.scene.namespace.clone();
    play.run("rpc", rpc("seid:v1")).await?;
    assert_eq!(play.status("rpc").await?.plan, None);
    play.sidecars().hold(&namespace, "rpc", "mark-ready");
    let before = play.submitted("rpc", "mark-ready");
    let mut requests = play.requests();
    let history = History::of(&play, "rpc").await?;
    play.evict("rpc").await?;
    play.until_submitted("rpc", "mark-ready", before).await?;
    let given = play.sidecars().submissions(&namespace, "rpc");
    let given = given.into_iter().filter(|one| one.task_type == "mark-ready").nth(before);
    let given = given.context("it was just seen")?;
    let is_of_it = |status: &SeiNodeStatus| {
        let mut tasks = status.plan.iter().flat_map(|plan| &plan.tasks);
        tasks.any(|task| task.id == given.id)
    };
    history.first("the approval is stored", is_of_it).await?;
    // The history begins with what was there; each change after it is a request in the log.
    let nth = history.all().await?.iter().skip(1).position(is_of_it).context("it was just seen")?;
    let mut statuses = Vec::new();
    let stored = wait_for("what was stored is in the log", async || {
        statuses.extend(requests.new_ones()?);
        let is_status = |one: &AuditEntry| one.subresource.is_some() && one.code == 200;
        statuses.retain(is_status);
        Ok(statuses.get(nth).map(|one| one.at))
    })
    .await?;
    assert!(stored < given.at, "stored at {stored}, given at {}", given.at);
    play.sidecars().release(&namespace, "rpc", "mark-ready");
    play.settled("rpc").await?;
    assert_eq!(play.status("rpc").await?.plan, None);
    play.close().await
}

/// The proxy in front of a sidecar may start long after it: its image has to be had first.
#[tokio::test]
async fn a_sidecar_that_answers_late_gets_its_gate_opened_as_soon() -> Result<()> {
    let play = Play::open_at("evicted-late", 1).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let mut waited = Vec::new();
    for image in ["seid:v1", "seid:v2"] {
        let (before, uid) = (answers(&play, "rpc"), play.uid("rpc").await?);
        let late = Rule::new(Behaviour::SidecarRefuses).of_node("rpc").of_image(image);
        let rule = play.scene.kubelet().behave(&play.scene.namespace, late);
        match image {
            "seid:v1" => play.evict("rpc").await?,
            _ => play.set_image("rpc", image).await?,
        }
        let is_silent = |pod: &PodView| pod.uid != uid && pod.sidecar.running;
        play.until_pod("rpc", "its sidecar runs", is_silent).await?;
        // Not a wait for something: this is how long the proxy takes.
        tokio::time::sleep(Duration::from_secs(7)).await;
        play.lift(rule);
        waited.push(opened_after(&play, "rpc", before).await?);
        play.settled("rpc").await?;
    }
    assert!(waited.iter().any(|one| *one < ASKED_OFTEN), "gates opened after {waited:?} s");
    play.close().await
}
