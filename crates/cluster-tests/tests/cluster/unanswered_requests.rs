//! Requests that the server never answers.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::interceptor::Interceptor;
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Scenario, rpc};
use kube::api::DeleteParams;
use sei_api::SeiNodeStatus;

#[tokio::test]
async fn unanswered_event_requests_delay_neither_reconciles_nor_shutdown() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("no-events").await?;
    let interceptor =
        Interceptor::never_answering(|request| request.uri().path().ends_with("/events"));
    scenario.start_with(Setup { interceptor: Some(interceptor), ..Setup::default() }).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    let events = scenario.events("rpc").await?;
    assert!(!events.iter().any(|text| text.starts_with("PhaseTransition")), "{events:?}");
    let operator = scenario.operator.take().context("no operator runs")?;
    // A kubelet kills the process 30 s after the termination signal.
    tokio::time::timeout(Duration::from_secs(20), operator.stop())
        .await
        .context("the operator did not stop")??;
    scenario.close().await
}

#[tokio::test]
async fn an_edit_missed_by_the_watch_is_applied_without_a_request_storm() -> Result<()> {
    let mut scenario = Scenario::open("no-watch").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let interceptor = Interceptor::never_answering(|request| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        path.ends_with("/seinodes") && query.contains("watch=")
    });
    scenario.start_with(Setup { interceptor: Some(interceptor), ..Setup::default() }).await?;
    let mut requests = scenario.requests();
    scenario.set_image("rpc", "seid:v2").await?;
    // The deletion causes a status write that is based on an outdated node.
    scenario.pods().delete("rpc-0", &DeleteParams::default()).await?;
    let is_observed = |status: &SeiNodeStatus| status.observed_generation == Some(2);
    scenario.until("rpc", "the edit is observed", is_observed).await?;
    let mut all = requests.read_new()?;
    all.retain(|entry| entry.resource == "seinodes" && entry.verb == "patch");
    assert!(all.len() < 10, "{} writes", all.len());
    scenario.close().await
}
