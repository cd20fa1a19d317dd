//! What `kubectl get`, `kubectl wait`, `kubectl sei status`, metrics and alerts report of a node in
//! each state, and that they agree.

use anyhow::{Context as _, Result};
use cluster_tests::install::Shell;
use cluster_tests::scenario::{condition_text, rpc};
use cluster_tests::wait_for;
use kube::api::DeleteParams;
use kubectl_sei::Exit;
use sei_api::condition::ConditionType;
use sei_rig::Behaviour;
use serde_json::{Value, json};

use crate::alerts::Scraped;
use crate::plugin::sei_as;
use crate::readiness::shown;
use crate::recording::{ALERTS, Fires, Recording, file, of_node};

/// Longer than the `for` of any alert about a node.
const MINUTES: usize = 30;

/// A state as its user should see it everywhere.
#[derive(Clone, Copy)]
struct State {
    ready: bool,
    /// Of the condition `Ready`, in the column Reason and in the metric.
    reason: &'static str,
    /// The column Update.
    update: &'static str,
    /// Whether `kubectl sei status --check` exits with 1.
    needs_attention: bool,
    /// The alert that fires if the state lasts, and its labels beside namespace and name.
    alert: Option<(&'static str, &'static [(&'static str, &'static str)])>,
}

const HEALTHY: State =
    State { ready: true, reason: "Ready", update: "InSync", needs_attention: false, alert: None };
const STALLED: &str = "SeiNodeStalled";
const NOT_READY: Option<(&str, &[(&str, &str)])> =
    Some(("SeiNodeNotReady", &[("chain", "demo-1"), ("role", "node")]));

struct Seen {
    scraped: Scraped,
    shell: Shell,
}

impl Seen {
    /// A healthy node `rpc`.
    async fn open(name: &str) -> Result<Self> {
        let scraped = Scraped::open(name).await?;
        let shell = Shell::on(scraped.scenario.plane())?;
        scraped.scenario.run("rpc", rpc("seid:v1")).await?;
        let seen = Self { scraped, shell };
        seen.agree(HEALTHY).await?;
        Ok(seen)
    }

    async fn edit(&self, spec: Value) -> Result<()> {
        self.scraped.scenario.edit("rpc", json!({ "spec": spec })).await
    }

    /// Waits until every view shows the state, and checks the alerts.
    async fn agree(&self, state: State) -> Result<()> {
        let scenario = &self.scraped.scenario;
        let claim = format!("every view shows {}", state.reason);
        let differs = std::cell::RefCell::new(String::new());
        let agreed = wait_for(&claim, async || {
            let difference = Box::pin(self.difference(state)).await?;
            let agrees = difference.is_none();
            differs.replace(difference.unwrap_or_default());
            Ok(agrees.then_some(()))
        });
        agreed.await.with_context(|| differs.borrow().clone())?;
        let value = u8::from(state.ready);
        let series = format!(
            "seinode_ready{{NS,name=\"rpc\",chain=\"demo-1\",role=\"node\",reason=\"{}\"}} {value}",
            state.reason
        );
        let scrape = self.scraped.until(&[&series]).await?;
        let fires = state.alert.map(|(alert, labels)| {
            let value = if alert == STALLED || alert == "SeiNodeUpdateBlocked" { "1" } else { "0" };
            let mut fires = of_node(alert, scenario.namespace(), "rpc", value);
            fires.labels.extend(labels.iter().map(|(key, value)| (*key, (*value).to_owned())));
            fires
        });
        let fires: Vec<Fires> = fires.into_iter().collect();
        let mut recording = Recording::default();
        let minute = recording.hold(scrape, MINUTES);
        recording.check_alerts(&[file(ALERTS)], &[(minute, fires)])
    }

    /// The first view that shows something else.
    async fn difference(&self, state: State) -> Result<Option<String>> {
        let scenario = &self.scraped.scenario;
        let word = if state.ready { "True" } else { "False" };
        let status = scenario.status("rpc").await?;
        let condition = condition_text(&status, ConditionType::Ready);
        if !condition.starts_with(&format!("{word}/{}:", state.reason)) {
            return Ok(Some(format!("the condition is {condition}")));
        }
        let line = shown(&self.shell, scenario, "rpc")?;
        let columns: Vec<&str> = line.split(' ').collect();
        if columns[..2] != [word, state.reason] || columns[4] != state.update {
            return Ok(Some(format!("kubectl get shows {line}")));
        }
        let namespace = scenario.namespace();
        let wait = |ready: bool| {
            self.shell.run(&format!(
                "kubectl -n {namespace} wait seinode/rpc --for=condition=Ready={ready} --timeout=0s"
            ))
        };
        if let Err(error) = wait(state.ready) {
            return Ok(Some(format!("kubectl wait: {error:#}")));
        }
        if wait(!state.ready).is_ok() {
            return Ok(Some("kubectl wait takes it for the opposite".to_owned()));
        }
        let (text, exit) =
            sei_as(sei_rig::User::Admin, scenario, "status rpc --check --color never").await?;
        let row = text.lines().nth(1).context("kubectl sei status has no row")?;
        let shows = |word: &str| row.split_whitespace().any(|column| column == word);
        let expected = if state.needs_attention { Exit::NeedsAttention } else { Exit::Fine };
        if !shows(if state.ready { "yes" } else { "no" })
            || !shows(state.update)
            || exit != expected
        {
            return Ok(Some(format!("kubectl sei status --check is {exit:?}: {row}")));
        }
        Ok(None)
    }

    async fn close(self) -> Result<()> {
        self.scraped.scenario.close().await
    }
}

#[tokio::test]
async fn every_view_agrees_about_a_stopped_node() -> Result<()> {
    let seen = Seen::open("state-stopped").await?;
    seen.edit(json!({ "paused": true })).await?;
    // A user has stopped it: no alert.
    let state = State { ready: false, reason: "Stopped", needs_attention: true, ..HEALTHY };
    seen.agree(state).await?;
    seen.edit(json!({ "paused": false })).await?;
    seen.agree(HEALTHY).await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_a_lost_volume() -> Result<()> {
    let seen = Seen::open("state-lost").await?;
    let scenario = &seen.scraped.scenario;
    scenario.claims().delete("data-rpc", &DeleteParams::default()).await?;
    scenario.statefulsets().delete("rpc", &DeleteParams::default()).await?;
    seen.agree(State {
        ready: false,
        reason: "DataVolumeLost",
        needs_attention: true,
        alert: Some((STALLED, &[("reason", "DataVolumeLost")])),
        ..HEALTHY
    })
    .await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_a_refused_edit() -> Result<()> {
    let seen = Seen::open("state-refused").await?;
    seen.edit(json!({ "fullNode": { "snapshotGeneration": {} } })).await?;
    seen.agree(State {
        ready: false,
        reason: "InvalidSpec",
        needs_attention: true,
        alert: Some(("SeiNodeUpdateBlocked", &[("reason", "InvalidSpec")])),
        ..HEALTHY
    })
    .await?;
    seen.edit(json!({ "fullNode": { "snapshotGeneration": null } })).await?;
    seen.agree(HEALTHY).await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_a_halted_chain() -> Result<()> {
    let seen = Seen::open("state-halted").await?;
    let scenario = &seen.scraped.scenario;
    let halted = scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    let state = State {
        ready: false,
        reason: "PodNotReady",
        needs_attention: true,
        alert: NOT_READY,
        ..HEALTHY
    };
    seen.agree(state).await?;
    scenario.lift(halted);
    seen.agree(HEALTHY).await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_a_crashing_node() -> Result<()> {
    let seen = Seen::open("state-crash").await?;
    let scenario = &seen.scraped.scenario;
    scenario.set_image_behaviour("seid:v1", Behaviour::CrashesAtOnce);
    scenario.evict("rpc").await?;
    seen.agree(State {
        ready: false,
        reason: "CrashLooping",
        needs_attention: true,
        alert: Some((STALLED, &[("reason", "CrashLooping")])),
        ..HEALTHY
    })
    .await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_a_deleted_pod() -> Result<()> {
    let seen = Seen::open("state-deleted").await?;
    let scenario = &seen.scraped.scenario;
    let stuck = scenario.set_node_behaviour("rpc", Behaviour::StuckTerminating);
    scenario.pods().delete("rpc-0", &DeleteParams::default()).await?;
    seen.agree(State {
        ready: false,
        reason: "PodTerminating",
        needs_attention: true,
        alert: Some((STALLED, &[("reason", "PodTerminating")])),
        ..HEALTHY
    })
    .await?;
    scenario.lift(stuck);
    seen.agree(HEALTHY).await?;
    seen.close().await
}

#[tokio::test]
async fn every_view_agrees_about_held_updates() -> Result<()> {
    let seen = Seen::open("state-held").await?;
    seen.edit(json!({ "update": { "paused": true } })).await?;
    // It runs, and would not take the next image.
    seen.agree(State { update: "Paused", needs_attention: true, ..HEALTHY }).await?;
    seen.edit(json!({ "update": { "paused": false } })).await?;
    seen.agree(HEALTHY).await?;
    seen.close().await
}
