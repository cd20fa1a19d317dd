//! Forwards, back, and to and fro: the way to every image is the same.

use anyhow::Result;
use cluster_tests::scenario::{Play, rpc, says, validator};
use sei_api::condition::ConditionType;
use sei_api::status::UpdateOutcome;
use sei_plan::view::PodView;
use sei_rig::Behaviour;

/// Waits until the pod of the new image shows what is wrong with it, and the update has come as far
/// as it can: what never runs keeps its plan waiting, all else has ended and is called complete.
async fn until_broken(play: &Play, node: &str, behaviour: &Behaviour) -> Result<()> {
    let is_shown = |pod: &PodView| match behaviour {
        Behaviour::Halted => pod.seid.started && !pod.ready,
        Behaviour::ImageUnpullable => !pod.troubles.is_empty(),
        _ => pod.seid.restarts > 1,
    };
    play.until_pod(node, &format!("{behaviour:?} is seen"), |pod| {
        pod.seid.image == "seid:v2" && is_shown(pod)
    })
    .await?;
    if *behaviour == Behaviour::ImageUnpullable {
        play.until(node, "its update goes on", |status| status.plan.is_some()).await?;
        return Ok(());
    }
    play.until(node, "its update has ended", |status| {
        status.plan.is_none() && status.current_image.as_deref() == Some("seid:v2")
    })
    .await?;
    Ok(())
}

/// Nodes that were at `seid:v1`, are told to be at `seid:v2`, and back once that has gone wrong. One
/// of them signs: what it is, the operator never takes from a cache.
async fn there_and_back(name: &str, behaviour: Behaviour) -> Result<()> {
    let play = Play::open(name).await?;
    play.validator_keys("signing", "p2p").await?;
    play.create("rpc", rpc("seid:v1")).await?;
    play.create("val", validator("seid:v1", "signing", "p2p")).await?;
    play.image_is("seid:v2", behaviour.clone());
    for node in ["rpc", "val"] {
        play.settled(node).await?;
        play.set_image(node, "seid:v2").await?;
    }
    for node in ["rpc", "val"] {
        until_broken(&play, node, &behaviour).await?;
        play.set_image(node, "seid:v1").await?;
    }
    for node in ["rpc", "val"] {
        play.until_pod_of(node, "seid:v1").await?;
        play.settled(node).await?;
        play.until_pod(node, "it is ready again", |pod| pod.ready).await?;
        assert_eq!(play.pods_seen(node).await?, 3, "{node}");
    }
    play.close().await
}

#[tokio::test]
async fn there_and_back_ends_where_it_began() -> Result<()> {
    let play = Play::open("there-back").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    play.set_image("rpc", "seid:v1").await?;
    play.settled("rpc").await?;
    play.until_pod_of("rpc", "seid:v1").await?;
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}

#[tokio::test]
async fn a_halted_node_goes_back() -> Result<()> {
    there_and_back("back-halted", Behaviour::Halted).await
}

#[tokio::test]
async fn an_unpullable_image_is_taken_back() -> Result<()> {
    there_and_back("back-unpullable", Behaviour::ImageUnpullable).await
}

#[tokio::test]
async fn a_crash_looping_image_is_taken_back() -> Result<()> {
    there_and_back("back-crashing", Behaviour::CrashesAtOnce).await
}

#[tokio::test]
async fn an_update_that_crashes_behind_the_gate_is_taken_back() -> Result<()> {
    let play = Play::open("back-crashes").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.image_is("seid:v2", Behaviour::Crashes);
    play.set_image("rpc", "seid:v2").await?;
    play.until_pod("rpc", "it crashes", |pod| pod.seid.image == "seid:v2" && pod.seid.restarts > 1)
        .await?;
    play.set_image("rpc", "seid:v1").await?;
    play.until_pod_of("rpc", "seid:v1").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}

#[tokio::test]
async fn a_node_halted_on_the_old_image_is_updated_all_the_same() -> Result<()> {
    let play = Play::open("halted-old").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.image_is("seid:v1", Behaviour::Halted);
    play.until_pod("rpc", "it is not ready", |pod| !pod.ready).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    play.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

#[tokio::test]
async fn five_edits_in_a_row_end_on_the_last() -> Result<()> {
    let play = Play::open("five-edits").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    for image in ["seid:v2", "seid:v3", "seid:v2", "seid:v4", "seid:v5"] {
        play.set_image("rpc", image).await?;
    }
    play.settled("rpc").await?;
    play.until_pod_of("rpc", "seid:v5").await?;
    assert!(play.pods_seen("rpc").await? <= 6, "{} pods", play.pods_seen("rpc").await?);
    play.close().await
}

#[tokio::test]
async fn five_edits_while_pods_are_replaced_end_on_the_last() -> Result<()> {
    let play = Play::open("five-replaced").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    for image in ["seid:v2", "seid:v3", "seid:v2", "seid:v4"] {
        play.set_image("rpc", image).await?;
        play.until_pod_of("rpc", image).await?;
    }
    play.set_image("rpc", "seid:v1").await?;
    play.until_pod_of("rpc", "seid:v1").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 6);
    play.close().await
}

#[tokio::test]
async fn a_revert_before_the_template_was_applied_restarts_nothing() -> Result<()> {
    // As slow as in life: a task that is left unanswered for too long is not waited for.
    let play = Play::open_at("revert", 1).await?;
    let namespace = play.scene.namespace.clone();
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    play.sidecars().hold(&namespace, "rpc", "config-validate");
    play.set_image("rpc", "seid:v2").await?;
    play.until("rpc", "an update runs", |status| status.plan.is_some()).await?;
    play.set_image("rpc", "seid:v1").await?;
    let status = play.until("rpc", "it is given up", |status| {
        let outcome = status.last_update.as_ref().map(|one| one.outcome);
        status.plan.is_none() && outcome == Some(UpdateOutcome::Superseded)
    });
    let status = status.await?;
    assert_eq!(play.uid("rpc").await?, before, "{status:#?}");
    play.sidecars().release(&namespace, "rpc", "config-validate");
    play.settled("rpc").await?;
    assert_eq!(play.uid("rpc").await?, before);
    play.evict("rpc").await?;
    let next =
        play.until_pod("rpc", "another pod runs", |pod| pod.uid != before && pod.seid.started);
    assert_eq!(next.await?.seid.image, "seid:v1");
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

#[tokio::test]
async fn an_unpullable_image_is_told_and_not_claimed_and_another_one_mends_it() -> Result<()> {
    let play = Play::open_at("unpullable", 50).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.image_is("seid:typo", Behaviour::ImageUnpullable);
    play.set_image("rpc", "seid:typo").await?;
    let status = play.until_stalled("rpc", "ImagePullFailed").await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    let updating = says(&status, ConditionType::NodeUpdateInProgress);
    assert!(updating.starts_with("True/UpdateStarted"), "{updating}");
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    play.until_not_stalled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}

#[tokio::test]
async fn an_image_that_can_be_pulled_at_last_is_taken_without_another_pod() -> Result<()> {
    let play = Play::open_at("pulled-late", 50).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let rule = play.image_is("seid:v2", Behaviour::ImageUnpullable);
    play.set_image("rpc", "seid:v2").await?;
    play.until_stalled("rpc", "ImagePullFailed").await?;
    play.lift(rule);
    play.settled("rpc").await?;
    play.until_not_stalled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}
