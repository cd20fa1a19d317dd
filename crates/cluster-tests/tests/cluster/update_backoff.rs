//! An update that fails again and again.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, condition_text, rpc};
use jiff::Timestamp;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodeStatus;

use crate::status_history::History;

/// Ten failures take half a minute.
const SPEED: u32 = 150;

/// Pauses in seconds at the speed of life, as people are told.
const PAUSES: [u64; 9] = [30, 60, 120, 240, 480, 600, 600, 600, 600];

/// When an update failed, and when it is tried again. Whole seconds, cut off.
struct Failure {
    started: Timestamp,
    at: Timestamp,
    again: Timestamp,
}

/// Waits until the update has failed that often, and returns what was told then: by the history,
/// because the first pauses are shorter than it may take to look.
async fn failed(history: &History, times: i32) -> Result<Failure> {
    let claim = format!("it has failed {times} times");
    let has_failed = |status: &SeiNodeStatus| {
        let attempts = status.pending_update.as_ref().and_then(|update| update.attempts);
        attempts == Some(times)
    };
    let status = history.first(&claim, has_failed).await?;
    let condition = condition_text(&status, ConditionType::NodeUpdateInProgress);
    assert!(condition.starts_with("False/UpdateFailed"), "{condition}");
    assert!(condition.contains("config validation failed: bad"), "{condition}");
    let pending = status.pending_update.context("it is pending")?;
    let last = status.last_update.context("it has ended")?;
    Ok(Failure {
        started: last.started_at.context("it began")?.0,
        at: last.finished_at.0,
        again: pending.next_attempt_at.context("it is tried again")?.0,
    })
}

#[tokio::test]
async fn an_update_that_fails_ten_times_waits_longer_each_time_until_it_succeeds() -> Result<()> {
    let scenario = Scenario::open_at_speed("back-off", SPEED).await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.sidecars().fail(&namespace, "rpc", "config-validate", "config validation failed: bad");
    let history = History::of(&scenario, "rpc").await?;
    scenario.set_image("rpc", "seid:v2").await?;
    let mut last = failed(&history, 1).await?;
    for (times, pause) in (2..=10).zip(PAUSES) {
        let pause = pause / u64::from(SPEED);
        let waits = (last.again - last.at).get_seconds().unsigned_abs();
        assert!(waits.abs_diff(pause) <= 1, "failure {times}: waits {waits} s, not {pause} s");
        let now = failed(&history, times).await?;
        assert!(now.started >= last.again, "failure {times} came early");
        last = now;
    }
    let visible = scenario.until("rpc", "the failure is seen", |status| {
        condition_text(status, ConditionType::NodeUpdateInProgress)
            .starts_with("False/UpdateFailed")
            && condition_text(status, ConditionType::PodTemplateDrift)
                .starts_with("True/BackingOff")
    });
    visible.await?;
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.status("rpc").await?.pending_update, None);
    assert_eq!(scenario.pods_seen("rpc").await?, 2, "a failed attempt replaces nothing");

    // The next one begins to count anew.
    scenario.sidecars().fail(&namespace, "rpc", "config-validate", "config validation failed: bad");
    let history = History::of(&scenario, "rpc").await?;
    scenario.set_image("rpc", "seid:v3").await?;
    failed(&history, 1).await?;
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    scenario.close().await
}
