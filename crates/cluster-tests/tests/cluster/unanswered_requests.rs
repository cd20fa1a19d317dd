//! Servers that take a request and never answer it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::interceptor::Wire;
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Play, rpc};
use kube::api::DeleteParams;
use sei_api::SeiNodeStatus;

#[tokio::test]
async fn events_that_nobody_takes_hold_up_no_pass_and_no_end() -> Result<()> {
    let mut play = Play::open_without_operator("no-events").await?;
    let wire = Wire::deaf_to(|request| request.uri().path().ends_with("/events"));
    play.start_with(Setup { wire: Some(wire), ..Setup::default() }).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    let told = play.events("rpc").await?;
    assert!(!told.iter().any(|text| text.starts_with("PhaseTransition")), "{told:?}");
    let operator = play.operator.take().context("it runs")?;
    // A kubelet that asked for the end kills after 30 s.
    tokio::time::timeout(Duration::from_secs(20), operator.stop()).await.context("it ends")??;
    play.close().await
}

#[tokio::test]
async fn an_edit_that_the_watch_is_silent_about_arrives_without_a_storm() -> Result<()> {
    let mut play = Play::open("no-watch").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let wire = Wire::deaf_to(|request| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        path.ends_with("/seinodes") && query.contains("watch=")
    });
    play.start_with(Setup { wire: Some(wire), ..Setup::default() }).await?;
    let mut requests = play.requests();
    play.set_image("rpc", "seid:v2").await?;
    // Something to write about, on the strength of a node that is not like this any more.
    play.pods().delete("rpc-0", &DeleteParams::default()).await?;
    let is_seen = |status: &SeiNodeStatus| status.observed_generation == Some(2);
    play.until("rpc", "the edit is seen", is_seen).await?;
    let mut all = requests.new_ones()?;
    all.retain(|one| one.resource == "seinodes" && one.verb == "patch");
    assert!(all.len() < 10, "{} writes", all.len());
    play.close().await
}
