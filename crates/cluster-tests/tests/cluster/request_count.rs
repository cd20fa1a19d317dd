//! What an operator asks of the server, and when it asks for nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::{Play, Requests, listed, rpc, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use sei_api::SeiNode;
use sei_rig::{AuditEntry, User};
use tokio::time::Instant;

/// How long nothing may be asked.
const REST: Duration = Duration::from_secs(60);

/// How long nothing may be written after a start, once a node that came later has been served.
const QUIET: Duration = Duration::from_secs(5);

/// What was under way comes to its end first.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// Waits until nothing of this kind was asked for that long; returns what was before.
async fn until_quiet(
    requests: &mut Requests,
    time: Duration,
    counts: fn(&AuditEntry) -> bool,
) -> Result<Vec<AuditEntry>> {
    let deadline = Instant::now() + ENDS_WITHIN + time;
    let (mut quiet_since, mut seen) = (Instant::now(), Vec::new());
    while quiet_since.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut news = requests.new_ones()?;
        news.retain(counts);
        if !news.is_empty() {
            quiet_since = Instant::now();
        }
        seen.extend(news);
        ensure!(Instant::now() < deadline, "never quiet for {time:?}:\n{}", listed(&seen));
    }
    Ok(seen)
}

/// What the server would have to store something for.
fn is_write(one: &AuditEntry) -> bool {
    ["create", "update", "patch", "delete"].contains(&one.verb.as_str())
        && !one.uri.contains("dryRun=")
}

/// Versions of all objects by kind and name.
async fn versions(play: &Play) -> Result<BTreeMap<String, Option<String>>> {
    let mut all = BTreeMap::new();
    let params = ListParams::default();
    for one in play.nodes().list(&params).await? {
        all.insert(format!("node {}", one.name_any()), one.metadata.resource_version);
    }
    for one in play.statefulsets().list(&params).await? {
        // Its status is others' to write.
        let generation = one.metadata.generation.map(|number| number.to_string());
        all.insert(format!("StatefulSet {}", one.name_any()), generation);
    }
    for one in play.services().list(&params).await? {
        all.insert(format!("Service {}", one.name_any()), one.metadata.resource_version);
    }
    for one in play.config_maps().list(&params).await? {
        all.insert(format!("ConfigMap {}", one.name_any()), one.metadata.resource_version);
    }
    for one in play.claims().list(&params).await? {
        all.insert(format!("claim {}", one.name_any()), one.metadata.uid);
    }
    let events: Api<Event> = Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    for one in events.list(&params).await? {
        all.insert(format!("event {}", one.name_any()), one.metadata.resource_version);
    }
    Ok(all)
}

#[tokio::test]
async fn fifty_nodes_at_rest_cost_no_request_and_a_restart_no_write() -> Result<()> {
    let mut play = Play::open_at("rest", 1).await?;
    let names: Vec<String> = (0..50).map(|one| format!("rpc-{one}")).collect();
    for name in &names {
        play.create(name, rpc("seid:v1")).await?;
    }
    for name in &names {
        play.settled(name).await?;
        play.until_pod(name, "it is ready", |pod| pod.ready).await?;
    }
    let mut requests = play.requests();
    until_quiet(&mut requests, REST, |_| true).await?;

    play.kill_operator();
    let before = versions(&play).await?;
    requests.new_ones()?;
    play.start_operator(1).await?;
    // What comes in after this was done by an operator that has seen all nodes.
    play.create("later", rpc("seid:v1")).await?;
    play.settled("later").await?;
    let mut writes = until_quiet(&mut requests, QUIET, is_write).await?;
    // What is made has no name in the log, and is seen below.
    writes.retain(|one| one.verb != "create" && !one.uri.contains("later"));
    assert!(writes.is_empty(), "{}", listed(&writes));
    let mut after = versions(&play).await?;
    after.retain(|name, _| !name.contains("later"));
    assert_eq!(after, before);
    play.close().await
}

/// The log up to a request made now. The server writes it after its answers, so that only an entry
/// of ours tells that those before it are there.
async fn read_to_the_end(play: &Play, log: &mut Requests) -> Result<Vec<AuditEntry>> {
    let client = play.scene.plane().client(User::Operator)?;
    let nodes: Api<SeiNode> = Api::namespaced(client, &play.scene.namespace);
    nodes.get_opt("the-last-one").await?;
    let is_last = |one: &AuditEntry| one.name.as_deref() == Some("the-last-one");
    let mut seen = Vec::new();
    wait_for("the request is in the log", async || {
        seen.extend(log.new_ones()?);
        Ok(seen.iter().any(is_last).then_some(()))
    })
    .await?;
    seen.retain(|one| !is_last(one));
    Ok(seen)
}

/// Updates a node's image and returns what that cost. Progress of a roll that takes long is stored
/// every 5 s, and where a cache lags behind a write of others, the conflict costs a look: those are
/// the machine's fault, and not counted.
async fn requests_of_update(play: &mut Play, name: &str) -> Result<Vec<AuditEntry>> {
    // At rest is also who looks at its pods: a late word of theirs would have to be read again. And
    // people have been told what came before.
    play.until_set_is_told(name).await?;
    wait_for("it was told that it runs", async || {
        let told = play.events(name).await?;
        Ok(told.iter().any(|one| one.ends_with("-> Running")).then_some(()))
    })
    .await?;
    let (mut requests, begin) = (play.requests(), Instant::now());
    play.set_image(name, "seid:v2").await?;
    play.settled(name).await?;
    // Ended politely, it has asked for all there was to ask for.
    play.operator.take().context("an operator runs")?.stop().await?;
    let mut all = read_to_the_end(play, &mut requests).await?;
    for _ in 0..begin.elapsed().as_secs() / 5 {
        let statuses = all.iter().filter(|one| one.subresource.is_some()).count();
        let is_one = |one: &AuditEntry| one.subresource.is_some();
        if let Some(at) = all.iter().rposition(is_one).filter(|_| statuses > 2) {
            all.remove(at);
        }
    }
    while let Some(at) = all.iter().position(|one| one.code == 409) {
        let refused = all.remove(at);
        let is_look = |one: &AuditEntry| one.verb == "get" && one.resource == refused.resource;
        if let Some(look) = all.iter().skip(at).position(is_look) {
            all.remove(at + look);
        }
    }
    Ok(all)
}

#[tokio::test]
async fn an_image_update_costs_ten_requests_at_most() -> Result<()> {
    let mut play = Play::open_at("cost", 1).await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let all = requests_of_update(&mut play, "rpc").await?;
    assert!(all.len() <= 10, "{} requests:\n{}", all.len(), listed(&all));
    play.close().await
}

#[tokio::test]
async fn an_image_update_of_a_signer_costs_a_look_at_its_two_keys_more() -> Result<()> {
    let mut play = Play::open_at("cost-signer", 1).await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let all = requests_of_update(&mut play, "val").await?;
    let (keys, others): (Vec<_>, Vec<_>) = all.iter().partition(|one| one.resource == "secrets");
    assert_eq!(keys.len(), 2, "{}", listed(&all));
    assert!(others.len() <= 10, "{} requests:\n{}", all.len(), listed(&all));
    play.close().await
}
