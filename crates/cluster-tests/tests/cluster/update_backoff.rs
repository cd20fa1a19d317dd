//! The backoff of an update that fails repeatedly.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, condition_text, rpc};
use jiff::Timestamp;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodeStatus;

use crate::status_history::StatusHistory;

/// Ten failures take half a minute.
const SPEED: u32 = 150;

/// The documented pauses in seconds, at the speed of production.
const PAUSES: [u64; 9] = [30, 60, 120, 240, 480, 600, 600, 600, 600];

/// The times of a failed update and of its next attempt, in whole seconds, rounded down.
struct Failure {
    started: Timestamp,
    at: Timestamp,
    next_attempt: Timestamp,
}

/// Waits until the update has failed that often, and returns the recorded times. It uses the status
/// history, because the first pauses may be shorter than the polling interval.
async fn until_failed(history: &StatusHistory, times: i32) -> Result<Failure> {
    let claim = format!("it has failed {times} times");
    let has_failed = |status: &SeiNodeStatus| {
        let attempts = status.pending_update.as_ref().and_then(|update| update.attempts);
        attempts == Some(times)
    };
    let status = history.first(&claim, has_failed).await?;
    let condition = condition_text(&status, ConditionType::NodeUpdateInProgress);
    assert!(condition.starts_with("False/UpdateFailed"), "{condition}");
    assert!(condition.contains("config validation failed: bad"), "{condition}");
    let pending = status.pending_update.context("no update is pending")?;
    let last = status.last_update.context("no update was recorded")?;
    Ok(Failure {
        started: last.started_at.context("the update has no start time")?.0,
        at: last.finished_at.0,
        next_attempt: pending.next_attempt_at.context("there is no next attempt")?.0,
    })
}

#[tokio::test]
async fn an_update_that_fails_ten_times_waits_longer_each_time_until_it_succeeds() -> Result<()> {
    let scenario = Scenario::open_at_speed("back-off", SPEED).await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.sidecars().fail(&namespace, "rpc", "config-validate", "config validation failed: bad");
    let history = StatusHistory::of(&scenario, "rpc").await?;
    scenario.set_image("rpc", "seid:v2").await?;
    let mut last = until_failed(&history, 1).await?;
    for (times, pause) in (2..=10).zip(PAUSES) {
        let pause = pause / u64::from(SPEED);
        let waits = (last.next_attempt - last.at).get_seconds().unsigned_abs();
        assert!(waits.abs_diff(pause) <= 1, "failure {times}: waits {waits} s, not {pause} s");
        let now = until_failed(&history, times).await?;
        assert!(now.started >= last.next_attempt, "failure {times} came early");
        last = now;
    }
    let visible = scenario.until("rpc", "the failure is reported", |status| {
        condition_text(status, ConditionType::NodeUpdateInProgress)
            .starts_with("False/UpdateFailed")
            && condition_text(status, ConditionType::PodTemplateDrift)
                .starts_with("True/BackingOff")
    });
    visible.await?;
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.status("rpc").await?.pending_update, None);
    assert_eq!(scenario.pods_seen("rpc").await?, 2, "a failed attempt replaced a pod");

    // The next update starts to count at one.
    scenario.sidecars().fail(&namespace, "rpc", "config-validate", "config validation failed: bad");
    let history = StatusHistory::of(&scenario, "rpc").await?;
    scenario.set_image("rpc", "seid:v3").await?;
    until_failed(&history, 1).await?;
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    scenario.close().await
}
