//! Updates, rollbacks and repeated edits of the image.

use anyhow::Result;
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use sei_api::condition::ConditionType;
use sei_api::status::{SeiNodeStatus, UpdateOutcome};
use sei_plan::view::PodView;
use sei_rig::Behaviour;

/// Waits until the pod of the new image shows its defect, and the update has come as far as it can:
/// the plan of an image that never runs keeps waiting, all other updates are complete.
async fn until_broken(scenario: &Scenario, node: &str, behaviour: &Behaviour) -> Result<()> {
    let has_defect = |pod: &PodView| match behaviour {
        Behaviour::Halted => pod.seid.started && !pod.ready,
        Behaviour::ImageVanishes => !pod.troubles.is_empty(),
        _ => pod.seid.restarts > 1,
    };
    scenario
        .until_pod(node, &format!("its pod shows {behaviour:?}"), |pod| {
            pod.seid.image == "seid:v2" && has_defect(pod)
        })
        .await?;
    if *behaviour == Behaviour::ImageVanishes {
        scenario.until(node, "its update has a plan", |status| status.plan.is_some()).await?;
        return Ok(());
    }
    scenario
        .until(node, "its update is complete", |status| {
            status.plan.is_none() && status.current_image.as_deref() == Some("seid:v2")
        })
        .await?;
    Ok(())
}

/// Updates nodes from `seid:v1` to `seid:v2`, and reverts them once that has failed. One of them is
/// a validator, which the operator never reads from a cache.
async fn update_and_revert(name: &str, behaviour: Behaviour) -> Result<()> {
    let scenario = Scenario::open(name).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    scenario.create("val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.set_image_behaviour("seid:v2", behaviour.clone());
    for node in ["rpc", "val"] {
        scenario.settled(node).await?;
        scenario.set_image(node, "seid:v2").await?;
    }
    for node in ["rpc", "val"] {
        until_broken(&scenario, node, &behaviour).await?;
        scenario.set_image(node, "seid:v1").await?;
    }
    for node in ["rpc", "val"] {
        scenario.until_pod_of(node, "seid:v1").await?;
        scenario.settled(node).await?;
        scenario.until_pod(node, "it is ready again", |pod| pod.ready).await?;
        assert_eq!(scenario.pods_seen(node).await?, 3, "{node}");
    }
    scenario.close().await
}

#[tokio::test]
async fn an_update_and_its_revert_end_at_the_first_image() -> Result<()> {
    let scenario = Scenario::open("update-revert").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    scenario.set_image("rpc", "seid:v1").await?;
    scenario.settled("rpc").await?;
    scenario.until_pod_of("rpc", "seid:v1").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_halted_node_is_rolled_back() -> Result<()> {
    update_and_revert("back-halted", Behaviour::Halted).await
}

#[tokio::test]
async fn an_unpullable_image_is_rolled_back() -> Result<()> {
    update_and_revert("back-unpullable", Behaviour::ImageVanishes).await
}

#[tokio::test]
async fn a_crash_looping_image_is_rolled_back() -> Result<()> {
    update_and_revert("back-crashing", Behaviour::CrashesAtOnce).await
}

#[tokio::test]
async fn an_update_that_crashes_behind_the_gate_is_rolled_back() -> Result<()> {
    let scenario = Scenario::open("back-crashes").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image_behaviour("seid:v2", Behaviour::Crashes);
    scenario.set_image("rpc", "seid:v2").await?;
    scenario
        .until_pod("rpc", "it crashes", |pod| pod.seid.image == "seid:v2" && pod.seid.restarts > 1)
        .await?;
    scenario.set_image("rpc", "seid:v1").await?;
    scenario.until_pod_of("rpc", "seid:v1").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_node_halted_on_the_old_image_is_updated() -> Result<()> {
    let scenario = Scenario::open("halted-old").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    scenario.until_pod("rpc", "it is not ready", |pod| !pod.ready).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    scenario.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn five_edits_in_a_row_end_on_the_last() -> Result<()> {
    let scenario = Scenario::open("five-edits").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    for image in ["seid:v2", "seid:v3", "seid:v2", "seid:v4", "seid:v5"] {
        scenario.set_image("rpc", image).await?;
    }
    scenario.settled("rpc").await?;
    scenario.until_pod_of("rpc", "seid:v5").await?;
    assert!(scenario.pods_seen("rpc").await? <= 6, "{} pods", scenario.pods_seen("rpc").await?);
    scenario.close().await
}

#[tokio::test]
async fn five_edits_while_pods_are_replaced_end_on_the_last() -> Result<()> {
    let scenario = Scenario::open("five-replaced").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    for image in ["seid:v2", "seid:v3", "seid:v2", "seid:v4"] {
        scenario.set_image("rpc", image).await?;
        scenario.until_pod_of("rpc", image).await?;
    }
    scenario.set_image("rpc", "seid:v1").await?;
    scenario.until_pod_of("rpc", "seid:v1").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 6);
    scenario.close().await
}

#[tokio::test]
async fn a_revert_before_the_template_was_applied_restarts_nothing() -> Result<()> {
    // At production speed: at a higher speed the operator would give up the held task too early.
    let scenario = Scenario::open_at_speed("revert", 1).await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    scenario.sidecars().hold(&namespace, "rpc", "config-validate");
    scenario.set_image("rpc", "seid:v2").await?;
    // By its target: a watch may begin with an older status, which still has the first plan.
    let has_started = |status: &SeiNodeStatus| {
        let target = status.plan.as_ref().and_then(|plan| plan.target.as_ref());
        target.is_some_and(|target| target.image == "seid:v2")
    };
    scenario.until("rpc", "an update has started", has_started).await?;
    scenario.set_image("rpc", "seid:v1").await?;
    let status = scenario.until("rpc", "the update is superseded", |status| {
        let outcome = status.last_update.as_ref().map(|update| update.outcome);
        status.plan.is_none() && outcome == Some(UpdateOutcome::Superseded)
    });
    let status = status.await?;
    assert_eq!(scenario.uid("rpc").await?, before, "{status:#?}");
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.uid("rpc").await?, before);
    scenario.evict("rpc").await?;
    let next =
        scenario.until_pod("rpc", "another pod runs", |pod| pod.uid != before && pod.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn an_unpullable_image_stalls_the_node_until_another_image_is_set() -> Result<()> {
    let scenario = Scenario::open_at_speed("unpullable", 50).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.set_image("rpc", "seid:typo").await?;
    let status = scenario.until_stalled("rpc", "ImageNotPullable").await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    let updating = condition_text(&status, ConditionType::NodeUpdateInProgress);
    assert!(updating.starts_with("True/UpdateStarted"), "{updating}");
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn an_image_that_becomes_pullable_is_used_without_another_pod() -> Result<()> {
    let scenario = Scenario::open_at_speed("pulled-late", 50).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    let rule = scenario.set_image_behaviour("seid:v2", Behaviour::ImageUnpullable);
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.until_stalled("rpc", "ImageNotPullable").await?;
    scenario.lift(rule);
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}
