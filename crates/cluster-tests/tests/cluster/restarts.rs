//! Operators and API servers that are restarted in the middle of an update.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::operator::{self, Setup};
use cluster_tests::scenario::{Scenario, condition_text, format_requests, rpc, validator};
use cluster_tests::{boot, test_context_on, wait_for};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use sei_api::condition::ConditionType;
use sei_rig::Lane;

const SPEED: u32 = 10;

/// Random delays between zero and most of an update, different in each run.
struct RandomDelays(u64);

impl RandomDelays {
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
async fn an_operator_killed_at_a_random_time_completes_the_update_after_a_restart() -> Result<()> {
    let mut scenario = Scenario::open("killed").await?;
    scenario.run("rpc", rpc("seid:v0")).await?;
    let mut random_delays = RandomDelays::new();
    for round in 1..=10 {
        let (image, delay) = (format!("seid:v{round}"), random_delays.next());
        scenario.set_image("rpc", &image).await?;
        tokio::time::sleep(delay).await;
        scenario.start_operator(SPEED).await?;
        let settled = scenario.settled("rpc").await;
        settled.with_context(|| format!("killed after {delay:?}, round {round}"))?;
        assert_eq!(scenario.pods_seen("rpc").await?, round + 1, "killed after {delay:?}");
    }
    scenario.close().await
}

#[tokio::test]
async fn five_edits_at_random_times_end_on_the_last() -> Result<()> {
    let scenario = Scenario::open("edits").await?;
    scenario.run("rpc", rpc("seid:v0")).await?;
    let (mut random_delays, mut delays) = (RandomDelays::new(), Vec::new());
    for edit in 1..=5 {
        let delay = random_delays.next();
        tokio::time::sleep(delay).await;
        scenario.set_image("rpc", &format!("seid:v{edit}")).await?;
        delays.push(delay);
    }
    scenario.settled("rpc").await.with_context(|| format!("edited after {delays:?}"))?;
    assert_eq!(scenario.until_pod_of("rpc", "seid:v5").await?.uid, scenario.uid("rpc").await?);
    assert!(
        scenario.pods_seen("rpc").await? <= 6,
        "{} pods, edited after {delays:?}",
        scenario.pods_seen("rpc").await?
    );
    scenario.close().await
}

#[tokio::test]
async fn an_operator_killed_ten_times_during_a_creation_completes_it() -> Result<()> {
    let mut scenario = Scenario::open("killed-new").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let mut random_delays = RandomDelays::new();
    for _ in 0..10 {
        scenario.start_operator(SPEED).await?;
        tokio::time::sleep(random_delays.next() / 5).await;
    }
    scenario.settled("val").await?;
    assert_eq!(scenario.pods_seen("val").await?, 1);
    scenario.close().await
}

/// The number of events about the two nodes.
async fn event_count(scenario: &Scenario) -> Result<usize> {
    let events: Api<Event> = Api::namespaced(scenario.admin(), scenario.namespace());
    let events = events.list(&ListParams::default()).await?;
    let is_about_them = |event: &&Event| {
        let name = event.regarding.as_ref().and_then(|object| object.name.as_deref());
        matches!(name, Some("val" | "rpc"))
    };
    Ok(events.items.iter().filter(is_about_them).count())
}

#[tokio::test]
async fn a_restarted_operator_writes_nothing_for_settled_nodes() -> Result<()> {
    let mut scenario = Scenario::open("restarted").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    for name in ["val", "rpc"] {
        // The last writes: the pod is Ready, and then the update releases its slot.
        scenario
            .until(name, "is Ready and holds no slot", |status| {
                let last = status.last_update.as_ref();
                condition_text(status, ConditionType::Ready).starts_with("True")
                    && last.is_none_or(|last| last.slot.is_none() || last.ready_at.is_some())
            })
            .await?;
    }
    // A graceful stop: the operator publishes events after its status writes.
    scenario.operator.take().context("no operator runs")?.stop().await?;
    let (before, events) =
        ([scenario.node("val").await?, scenario.node("rpc").await?], event_count(&scenario).await?);
    let mut requests = scenario.requests();
    scenario.start_operator(SPEED).await?;
    // When this node is settled, the operator has reconciled both nodes.
    scenario.create("later", rpc("seid:v1")).await?;
    scenario.settled("later").await?;
    let mut writes = requests.read_new()?;
    writes.retain(|entry| {
        let is_later = entry.uri.contains("later") || entry.name.as_deref() == Some("later");
        let is_write = ["create", "update", "patch", "delete"].contains(&entry.verb.as_str());
        // A create has no name in the log. All objects exist already; events are counted below.
        is_write && !is_later && entry.verb != "create"
    });
    assert!(writes.is_empty(), "{}", format_requests(&writes));
    assert_eq!(event_count(&scenario).await?, events);
    for old in before {
        let name = old.metadata.name.context("the node has no name")?;
        assert_eq!(
            scenario.node(&name).await?.metadata.resource_version,
            old.metadata.resource_version
        );
        assert_eq!(scenario.status(&name).await?.phase, old.status.and_then(|status| status.phase));
    }
    scenario.close().await
}

#[tokio::test]
async fn two_operators_at_once_do_no_harm() -> Result<()> {
    let scenario = Scenario::open("two").await?;
    let second = operator::start(&scenario.context, Setup::default()).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1);
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    second.stop().await?;
    scenario.set_image("rpc", "seid:v3").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_status_wiped_during_an_update_does_not_prevent_it() -> Result<()> {
    let scenario = Scenario::open("wiped-mid").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.until("rpc", "an update has started", |status| status.plan.is_some()).await?;
    scenario.wipe_status("rpc").await?;
    scenario.settled("rpc").await?;
    wait_for("it runs the new image", async || {
        Ok(scenario.pod("rpc").await?.filter(|pod| pod.seid.image == "seid:v2"))
    })
    .await?;
    assert!(scenario.pods_seen("rpc").await? <= 3, "{} pods", scenario.pods_seen("rpc").await?);
    scenario.close().await
}

#[tokio::test]
async fn an_api_server_restarted_during_a_roll_does_not_prevent_it() -> Result<()> {
    let lane = Arc::new(Lane::start(boot().await?)?);
    let mut scenario = Scenario::open_on(test_context_on(lane, "server").await?);
    scenario.start_operator(SPEED).await?;
    let names: Vec<String> = (0..4).map(|index| format!("rpc-{index}")).collect();
    for name in &names {
        scenario.create(name, rpc("seid:v1")).await?;
    }
    for name in &names {
        scenario.settled(name).await?;
    }
    for name in &names {
        scenario.set_image(name, "seid:v2").await?;
    }
    scenario.until_pod_of(&names[0], "seid:v2").await?;
    scenario.plane().restart_apiserver().await?;
    for name in &names {
        // The client may reuse a connection from before the restart once more.
        wait_for(&format!("{name} runs the new image and has no plan"), async || {
            let Ok(status) = scenario.status(name).await else { return Ok(None) };
            let is_updated = status.current_image.as_deref() == Some("seid:v2");
            Ok((is_updated && status.plan.is_none()).then_some(()))
        })
        .await?;
        scenario.settled(name).await?;
    }
    let mut uids = BTreeSet::new();
    for name in &names {
        uids.insert(scenario.uid(name).await?);
    }
    scenario.set_image(&names[0], "seid:v3").await?;
    scenario.settled(&names[0]).await?;
    assert!(!uids.contains(&scenario.uid(&names[0]).await?));
    scenario.close().await
}
