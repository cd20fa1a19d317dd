//! Operators and servers that end in the middle of something.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::operator::{self, Setup};
use cluster_tests::scenario::{Play, listed, rpc, validator};
use cluster_tests::{boot, scene_on, wait_for};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use sei_rig::Lane;

const SPEED: u32 = 10;

/// Moments between nothing and most of an update, other ones in each run.
struct Moments(u64);

impl Moments {
    fn new() -> Self {
        let now = jiff::Timestamp::now().as_nanosecond();
        Self(u64::try_from(now).unwrap_or_default())
    }

    fn next(&mut self) -> Duration {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_millis((self.0 >> 33) % 500)
    }
}

#[tokio::test]
async fn an_operator_killed_at_any_moment_ends_what_it_began() -> Result<()> {
    let mut play = Play::open("killed").await?;
    play.run("rpc", rpc("seid:v0")).await?;
    let mut moments = Moments::new();
    for round in 1..=10 {
        let (image, moment) = (format!("seid:v{round}"), moments.next());
        play.set_image("rpc", &image).await?;
        tokio::time::sleep(moment).await;
        play.start_operator(SPEED).await?;
        let settled = play.settled("rpc").await;
        settled.with_context(|| format!("killed after {moment:?}, round {round}"))?;
        assert_eq!(play.pods_seen("rpc").await?, round + 1, "killed after {moment:?}");
    }
    play.close().await
}

#[tokio::test]
async fn five_edits_at_random_moments_end_on_the_last() -> Result<()> {
    let play = Play::open("edits").await?;
    play.run("rpc", rpc("seid:v0")).await?;
    let (mut moments, mut told) = (Moments::new(), Vec::new());
    for edit in 1..=5 {
        let moment = moments.next();
        tokio::time::sleep(moment).await;
        play.set_image("rpc", &format!("seid:v{edit}")).await?;
        told.push(moment);
    }
    play.settled("rpc").await.with_context(|| format!("edited after {told:?}"))?;
    assert_eq!(play.until_pod_of("rpc", "seid:v5").await?.uid, play.uid("rpc").await?);
    assert!(
        play.pods_seen("rpc").await? <= 6,
        "{} pods, edited after {told:?}",
        play.pods_seen("rpc").await?
    );
    play.close().await
}

#[tokio::test]
async fn an_operator_killed_ten_times_during_a_creation_ends_it() -> Result<()> {
    let mut play = Play::open("killed-new").await?;
    play.validator_keys("signing", "p2p").await?;
    play.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let mut moments = Moments::new();
    for _ in 0..10 {
        play.start_operator(SPEED).await?;
        tokio::time::sleep(moments.next() / 5).await;
    }
    play.settled("val").await?;
    assert_eq!(play.pods_seen("val").await?, 1);
    play.close().await
}

/// How many events there are about the two nodes.
async fn told(play: &Play) -> Result<usize> {
    let events: Api<Event> = Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    let events = events.list(&ListParams::default()).await?;
    let is_theirs = |one: &&Event| {
        let name = one.regarding.as_ref().and_then(|about| about.name.as_deref());
        matches!(name, Some("val" | "rpc"))
    };
    Ok(events.items.iter().filter(is_theirs).count())
}

#[tokio::test]
async fn an_operator_started_over_nodes_at_rest_writes_nothing() -> Result<()> {
    let mut play = Play::open("restarted").await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    // Politely: what it tells people comes after what it stores.
    play.operator.take().context("there is an operator")?.stop().await?;
    let (before, told) = ([play.node("val").await?, play.node("rpc").await?], told(&play).await?);
    let mut requests = play.requests();
    play.start_operator(SPEED).await?;
    // What comes in after this was done by an operator that has seen both nodes.
    play.create("other", rpc("seid:v1")).await?;
    play.settled("other").await?;
    let mut writes = requests.new_ones()?;
    writes.retain(|one| {
        let is_others = one.uri.contains("other") || one.name.as_deref() == Some("other");
        let is_write = ["create", "update", "patch", "delete"].contains(&one.verb.as_str());
        // What is made has no name in the log. All objects are there; events are counted below.
        is_write && !is_others && one.verb != "create"
    });
    assert!(writes.is_empty(), "{}", listed(&writes));
    assert_eq!(self::told(&play).await?, told);
    for old in before {
        let name = old.metadata.name.context("has a name")?;
        assert_eq!(
            play.node(&name).await?.metadata.resource_version,
            old.metadata.resource_version
        );
        assert_eq!(play.status(&name).await?.phase, old.status.and_then(|one| one.phase));
    }
    play.close().await
}

#[tokio::test]
async fn two_operators_at_once_do_no_harm() -> Result<()> {
    let play = Play::open("two").await?;
    let second = operator::start(&play.scene, Setup::default()).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    assert_eq!(play.pods_seen("rpc").await?, 1);
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    second.stop().await?;
    play.set_image("rpc", "seid:v3").await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 3);
    play.close().await
}

#[tokio::test]
async fn a_status_wiped_in_the_middle_of_an_update_ends_right() -> Result<()> {
    let play = Play::open("wiped-mid").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.until("rpc", "an update runs", |status| status.plan.is_some()).await?;
    play.wipe_status("rpc").await?;
    play.settled("rpc").await?;
    wait_for("it runs the new image", async || {
        Ok(play.pod("rpc").await?.filter(|pod| pod.seid.image == "seid:v2"))
    })
    .await?;
    assert!(play.pods_seen("rpc").await? <= 3, "{} pods", play.pods_seen("rpc").await?);
    play.close().await
}

#[tokio::test]
async fn a_server_restarted_in_the_middle_of_a_roll_keeps_nothing_from_arriving() -> Result<()> {
    let lane = Arc::new(Lane::start(boot().await?)?);
    let mut play = Play::open_on(scene_on(lane, "server").await?);
    play.start_operator(SPEED).await?;
    let names: Vec<String> = (0..4).map(|one| format!("rpc-{one}")).collect();
    for name in &names {
        play.create(name, rpc("seid:v1")).await?;
    }
    for name in &names {
        play.settled(name).await?;
    }
    for name in &names {
        play.set_image(name, "seid:v2").await?;
    }
    play.until_pod_of(&names[0], "seid:v2").await?;
    play.scene.plane().restart_apiserver().await?;
    for name in &names {
        // A connection from before the restart may be handed out once more.
        wait_for(&format!("{name} runs the new image and is at rest"), async || {
            let Ok(status) = play.status(name).await else { return Ok(None) };
            let arrived = status.current_image.as_deref() == Some("seid:v2");
            Ok((arrived && status.plan.is_none()).then_some(()))
        })
        .await?;
        play.settled(name).await?;
    }
    let mut uids = BTreeSet::new();
    for name in &names {
        uids.insert(play.uid(name).await?);
    }
    play.set_image(&names[0], "seid:v3").await?;
    play.settled(&names[0]).await?;
    assert!(!uids.contains(&play.uid(&names[0]).await?));
    play.close().await
}
