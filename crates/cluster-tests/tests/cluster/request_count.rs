//! The number of an operator's requests to the server, for updates and for settled nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::{
    Requests, Scenario, condition_text, format_requests, rpc, validator,
};
use cluster_tests::wait_for;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_rig::{AuditEntry, User};
use tokio::time::Instant;

/// How long the operator must send no request.
const NO_REQUEST: Duration = Duration::from_secs(60);

/// How long the operator must not write after a start, once it has set up a node created later.
const NO_WRITE: Duration = Duration::from_secs(5);

/// The additional time for work that is in progress.
const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// Waits until there was no request of this kind for that long; returns the requests before that.
async fn until_quiet(
    requests: &mut Requests,
    time: Duration,
    counts: fn(&AuditEntry) -> bool,
) -> Result<Vec<AuditEntry>> {
    let deadline = Instant::now() + SETTLES_WITHIN + time;
    let (mut quiet_since, mut seen) = (Instant::now(), Vec::new());
    while quiet_since.elapsed() < time {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut entries = requests.read_new()?;
        entries.retain(counts);
        if !entries.is_empty() {
            quiet_since = Instant::now();
        }
        seen.extend(entries);
        ensure!(
            Instant::now() < deadline,
            "requests never paused for {time:?}:\n{}",
            format_requests(&seen)
        );
    }
    Ok(seen)
}

/// Whether the server would store something for the request.
fn is_write(entry: &AuditEntry) -> bool {
    ["create", "update", "patch", "delete"].contains(&entry.verb.as_str())
        && !entry.uri.contains("dryRun=")
}

/// The versions of all objects by kind and name.
async fn versions(scenario: &Scenario) -> Result<BTreeMap<String, Option<String>>> {
    let mut all = BTreeMap::new();
    let params = ListParams::default();
    for node in scenario.nodes().list(&params).await? {
        all.insert(format!("node {}", node.name_any()), node.metadata.resource_version);
    }
    for set in scenario.statefulsets().list(&params).await? {
        // The StatefulSet controller writes its status.
        let generation = set.metadata.generation.map(|number| number.to_string());
        all.insert(format!("StatefulSet {}", set.name_any()), generation);
    }
    for service in scenario.services().list(&params).await? {
        all.insert(format!("Service {}", service.name_any()), service.metadata.resource_version);
    }
    for config_map in scenario.config_maps().list(&params).await? {
        all.insert(
            format!("ConfigMap {}", config_map.name_any()),
            config_map.metadata.resource_version,
        );
    }
    for claim in scenario.claims().list(&params).await? {
        all.insert(format!("claim {}", claim.name_any()), claim.metadata.uid);
    }
    let events: Api<Event> = Api::namespaced(scenario.admin(), scenario.namespace());
    for event in events.list(&params).await? {
        all.insert(format!("event {}", event.name_any()), event.metadata.resource_version);
    }
    Ok(all)
}

#[tokio::test]
async fn fifty_nodes_at_rest_cost_no_request_and_a_restart_no_write() -> Result<()> {
    let mut scenario = Scenario::open_at_speed("rest", 1).await?;
    let names: Vec<String> = (0..50).map(|index| format!("rpc-{index}")).collect();
    for name in &names {
        scenario.create(name, rpc("seid:v1")).await?;
    }
    for name in &names {
        scenario.settled(name).await?;
        scenario.until_pod(name, "it is ready", |pod| pod.ready).await?;
    }
    let mut requests = scenario.requests();
    until_quiet(&mut requests, NO_REQUEST, |_| true).await?;

    scenario.kill_operator();
    let before = versions(&scenario).await?;
    requests.read_new()?;
    scenario.start_operator(1).await?;
    // When this node is settled, the operator has reconciled all nodes.
    scenario.create("later", rpc("seid:v1")).await?;
    scenario.settled("later").await?;
    let mut writes = until_quiet(&mut requests, NO_WRITE, is_write).await?;
    // A create has no name in the log; new objects are found by the comparison below.
    writes.retain(|entry| entry.verb != "create" && !entry.uri.contains("later"));
    assert!(writes.is_empty(), "{}", format_requests(&writes));
    let mut after = versions(&scenario).await?;
    after.retain(|name, _| !name.contains("later"));
    assert_eq!(after, before);
    scenario.close().await
}

/// Reads the log up to a request made now. The server writes the log after its responses, so only
/// an entry of this request shows that all earlier entries are present.
async fn read_to_the_end(scenario: &Scenario, log: &mut Requests) -> Result<Vec<AuditEntry>> {
    let client = scenario.plane().client(User::Operator)?;
    let nodes: Api<SeiNode> = Api::namespaced(client, scenario.namespace());
    nodes.get_opt("end-of-log").await?;
    let is_last = |entry: &AuditEntry| entry.name.as_deref() == Some("end-of-log");
    let mut seen = Vec::new();
    wait_for("the request is in the log", async || {
        seen.extend(log.read_new()?);
        Ok(seen.iter().any(is_last).then_some(()))
    })
    .await?;
    seen.retain(|entry| !is_last(entry));
    Ok(seen)
}

async fn until_ready(scenario: &Scenario, name: &str) -> Result<()> {
    let is_ready = |status: &_| condition_text(status, ConditionType::Ready).starts_with("True");
    scenario.until(name, "it is Ready", is_ready).await.map(drop)
}

/// Updates a node's image and returns the operator's requests. Two kinds are caused by a slow
/// machine and are removed: the progress of a long roll, stored every 5 s, and the read after a
/// conflict with a write that the cache had not seen yet.
async fn requests_of_update(scenario: &mut Scenario, name: &str) -> Result<Vec<AuditEntry>> {
    // Late writes of the StatefulSet controller would cause more reads, and events of the creation
    // more writes: wait for both first.
    scenario.until_statefulset_is_current(name).await?;
    until_ready(scenario, name).await?;
    wait_for("the event about the phase Running is published", async || {
        let events = scenario.events(name).await?;
        Ok(events.iter().any(|event| event.ends_with("-> Running")).then_some(()))
    })
    .await?;
    let (mut requests, begin) = (scenario.requests(), Instant::now());
    scenario.set_image(name, "seid:v2").await?;
    scenario.settled(name).await?;
    // The pod going down and coming back are a write each.
    until_ready(scenario, name).await?;
    // After a graceful stop the operator has sent all its requests.
    scenario.operator.take().context("no operator runs")?.stop().await?;
    let mut all = read_to_the_end(scenario, &mut requests).await?;
    for _ in 0..begin.elapsed().as_secs() / 5 {
        let statuses = all.iter().filter(|entry| entry.subresource.is_some()).count();
        let is_status = |entry: &AuditEntry| entry.subresource.is_some();
        if let Some(at) = all.iter().rposition(is_status).filter(|_| statuses > 4) {
            all.remove(at);
        }
    }
    while let Some(at) = all.iter().position(|entry| entry.code == 409) {
        let refused = all.remove(at);
        let is_reread =
            |entry: &AuditEntry| entry.verb == "get" && entry.resource == refused.resource;
        if let Some(reread) = all.iter().skip(at).position(is_reread) {
            all.remove(at + reread);
        }
    }
    Ok(all)
}

/// Twelve for the roll, and two for the pod that pulls the image: its creation and its deletion.
#[tokio::test]
async fn an_image_update_costs_fourteen_requests_at_most() -> Result<()> {
    let mut scenario = Scenario::open_at_speed("cost", 1).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let all = requests_of_update(&mut scenario, "rpc").await?;
    // Four writes of the status: the plan, the pod's going down, the end of the plan, Ready again.
    let statuses = all.iter().filter(|entry| entry.subresource.is_some()).count();
    assert!(statuses <= 4, "{statuses} writes of the status:\n{}", format_requests(&all));
    assert!(all.len() <= 14, "{} requests:\n{}", all.len(), format_requests(&all));
    scenario.close().await
}

#[tokio::test]
async fn an_image_update_of_a_signer_costs_two_more_requests_for_its_keys() -> Result<()> {
    let mut scenario = Scenario::open_at_speed("cost-signer", 1).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let all = requests_of_update(&mut scenario, "val").await?;
    let (keys, others): (Vec<_>, Vec<_>) =
        all.iter().partition(|entry| entry.resource == "secrets");
    assert_eq!(keys.len(), 2, "{}", format_requests(&all));
    // One more is a live read of the node before its pod is deleted.
    assert!(others.len() <= 15, "{} requests:\n{}", all.len(), format_requests(&all));
    scenario.close().await
}
