//! What an operator asks of the server, and when it asks for nothing.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::play::{Play, listed, rpc, validator};
use cluster_tests::wait_for;
use sei_rig::AuditEntry;
use tokio::time::Instant;

/// How long nothing may be asked.
const REST: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nodes_at_rest_cost_no_request() -> Result<()> {
    let play = Play::open_at("rest", 1).await?;
    let names: Vec<String> = (0..20).map(|one| format!("rpc-{one}")).collect();
    for name in &names {
        play.create(name, rpc("seid:v1")).await?;
    }
    for name in &names {
        play.settled(name).await?;
        play.until_pod(name, "it is ready", |pod| pod.ready).await?;
    }
    let mut requests = play.requests();
    // What was under way comes to its end first.
    let (mut quiet_since, mut seen) = (Instant::now(), Vec::new());
    let rested = wait_for("no request is made for 20 s", async || {
        let news = requests.new_ones()?;
        if !news.is_empty() {
            seen.extend(news);
            quiet_since = Instant::now();
        }
        Ok((quiet_since.elapsed() > REST).then_some(()))
    });
    rested.await.with_context(|| listed(&seen))?;
    play.close()
}

/// Updates a node's image and returns what that cost. Progress of a roll that takes long is stored
/// every 5 s; that is the machine's fault, and not counted.
async fn requests_of_update(play: &Play, name: &str) -> Result<Vec<AuditEntry>> {
    // At rest is also who looks at its pods: a late word of theirs would have to be read again.
    wait_for("its StatefulSet has seen it ready", async || {
        let status = play.statefulsets().get(name).await?.status;
        Ok(status.filter(|one| one.ready_replicas == Some(1) && one.available_replicas == Some(1)))
    })
    .await?;
    let (mut requests, begin) = (play.requests(), Instant::now());
    play.set_image(name, "seid:v2").await?;
    play.settled(name).await?;
    let mut all = Vec::new();
    wait_for("its end is told", async || {
        all.extend(requests.new_ones()?);
        let events = all.iter().filter(|one| one.resource == "events").count();
        Ok((events >= 2).then_some(()))
    })
    .await?;
    for _ in 0..begin.elapsed().as_secs() / 5 {
        let statuses = all.iter().filter(|one| one.subresource.is_some()).count();
        let is_one = |one: &AuditEntry| one.subresource.is_some();
        if let Some(at) = all.iter().rposition(is_one).filter(|_| statuses > 2) {
            all.remove(at);
        }
    }
    Ok(all)
}

#[tokio::test]
async fn an_image_update_costs_ten_requests_at_most() -> Result<()> {
    let play = Play::open_at("cost", 1).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let all = requests_of_update(&play, "rpc").await?;
    assert!(all.len() <= 10, "{} requests:\n{}", all.len(), listed(&all));
    play.close()
}

#[tokio::test]
async fn an_image_update_of_a_signer_costs_a_few_requests_more() -> Result<()> {
    let play = Play::open_at("cost-signer", 1).await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let all = requests_of_update(&play, "val").await?;
    // Its two keys are looked at, and its StatefulSet is read live each time.
    assert!(all.len() <= 14, "{} requests:\n{}", all.len(), listed(&all));
    play.close()
}
