//! Every alert on series of real runs: it fires during its condition, and neither before nor after.

use anyhow::{Context as _, Result};
use cluster_tests::operator::{self, PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, rpc, validator};
use cluster_tests::wait_for;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, PostParams};
use sei_api::SeiNodeDeployment;
use sei_api::condition::{ConditionStatus, ConditionType, REASONS, Reason};
use sei_api::fleet::READY_REASONS;
use sei_operator::runtime::metrics::Metrics;
use sei_rig::Behaviour;
use serde_json::{Value, json};

use crate::fleets::{self, image, manifest};
use crate::recording::{ALERTS, Fires, OVERRIDE, Recording, Scrape, file, of_node, scrape};

/// Deadlines of stalls are minutes in production.
const SPEED: u32 = 50;
/// Longer than the `for` of any alert.
const MINUTES: usize = 30;

/// A scenario whose operator is scraped.
pub(crate) struct Scraped {
    pub(crate) scenario: Scenario,
    metrics: Metrics,
}

impl Scraped {
    pub(crate) async fn open(name: &str) -> Result<Self> {
        let scenario = Scenario::open_without_operator(name).await?;
        let mut scraped = Self { scenario, metrics: Metrics::new() };
        scraped.start_operator(PLATFORM).await?;
        Ok(scraped)
    }

    /// Starts an operator with this platform. A running operator is killed first.
    pub(crate) async fn start_operator(&mut self, platform: &str) -> Result<()> {
        self.scenario.kill_operator();
        self.metrics = Metrics::new();
        let setup = Setup {
            speed: SPEED,
            platform: platform.to_owned(),
            metrics: self.metrics.clone(),
            ..Setup::default()
        };
        self.scenario.operator = Some(operator::start(&self.scenario.context, setup).await?);
        Ok(())
    }

    pub(crate) fn namespace(&self) -> &str {
        self.scenario.namespace()
    }

    /// Waits until each of these is a line of the scrape. The prefix of all metric names is
    /// omitted, and `NS` stands for the label of the scenario's namespace.
    pub(crate) async fn until(&self, series: &[&str]) -> Result<Scrape> {
        let namespace = format!("namespace=\"{}\"", self.namespace());
        let desired: Vec<String> = series
            .iter()
            .map(|line| format!("sei_controller_{}", line.replace("NS", &namespace)))
            .collect();
        let is_present =
            |text: &str, desired_line: &String| text.lines().any(|line| line == desired_line);
        let claim = format!("{series:?} are scraped");
        let mut scrape = self
            .until_text(&claim, |text| desired.iter().all(|line| is_present(text, line)))
            .await?;
        // The scrape will be held for hours, in which a chain would make blocks.
        scrape.retain(|series, _| !series.contains("seinode_last_block_timestamp_seconds"));
        Ok(scrape)
    }

    pub(crate) async fn until_text(
        &self,
        claim: &str,
        holds: impl Fn(&str) -> bool,
    ) -> Result<Scrape> {
        let scraped = wait_for(claim, async || {
            let text = self.metrics.encode();
            Ok(holds(&text).then_some(text))
        });
        let text = scraped.await.with_context(|| self.metrics.encode())?;
        scrape(&text, "sei-operator", "10.0.0.1:8080")
    }

    /// Approves the node's pending update.
    async fn approve(&self, name: &str) -> Result<()> {
        let pending = self.scenario.status(name).await?.pending_update;
        let hash = pending.context("no update is pending")?.target_hash;
        let annotations = json!({ "sei.io/approve-update": hash });
        self.scenario.edit(name, json!({ "metadata": { "annotations": annotations } })).await
    }
}

/// The series of a settled node.
const HEALTHY: &[&str] = &[
    "leader 1",
    "seinode_phase{NS,name=\"rpc\",phase=\"Running\"} 1",
    "seinode_ready{NS,name=\"rpc\",chain=\"demo-1\",role=\"node\",reason=\"Ready\"} 1",
    "seinode_drifted{NS,name=\"rpc\",reason=\"InSync\"} 0",
    "seinode_stalled{NS,name=\"rpc\",reason=\"Progressing\"} 0",
    "seinode_sidecar_unreachable{NS,name=\"rpc\"} 0",
    "plan_active{controller=\"seinode\",NS} 0",
];

/// Checks that exactly these alerts fire in the middle of three parts, and none in the others.
pub(crate) fn check(
    before: Scrape,
    during: Scrape,
    after: Scrape,
    fires: Vec<Fires>,
) -> Result<()> {
    let mut recording = Recording::default();
    let at = vec![
        (recording.hold(before, MINUTES), Vec::new()),
        (recording.hold(during, MINUTES), fires),
        (recording.hold(after, MINUTES), Vec::new()),
    ];
    recording.check_alerts(&[file(ALERTS)], &at)
}

#[tokio::test]
async fn an_unpullable_image_fires_the_stalled_alert() -> Result<()> {
    let scraped = Scraped::open("alert-stalled").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "is Ready", |pod| pod.ready).await?;
    let before = scraped.until(HEALTHY).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.set_image("rpc", "seid:typo").await?;
    let stalled = "seinode_stalled{NS,name=\"rpc\",reason=\"ImageNotPullable\"} 1";
    let during = scraped.until(&[stalled]).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    let after = scraped.until(HEALTHY).await?;
    let mut fires = of_node("SeiNodeStalled", scraped.namespace(), "rpc", "1");
    fires.labels.push(("reason", "ImageNotPullable".to_owned()));
    // After a change of the leader the series continue from another process: `for` is not
    // restarted.
    let mut recording = Recording::default();
    let healthy = recording.hold(before.clone(), MINUTES);
    recording.hold(during.clone(), 3);
    let pending = recording.hold(moved(&during), 2);
    let firing = recording.hold(moved(&during), 2);
    let at = [(healthy, vec![]), (pending, vec![]), (firing, vec![fires.clone()])];
    recording.check_alerts(&[file(ALERTS)], &at)?;
    check(before, during, after, vec![fires])?;
    scraped.scenario.close().await
}

/// The same from another process.
fn moved(scrape: &Scrape) -> Scrape {
    let from_other_process = |series: &String| series.replace("10.0.0.1", "10.0.0.2");
    scrape.iter().map(|(series, value)| (from_other_process(series), *value)).collect()
}

/// Reasons that leave the running pod alone have an alert that does not page; all others page.
fn alert_about(reason: Reason) -> &'static str {
    match reason {
        Reason::SidecarUnreachable => "SeiNodeSidecarUnreachable",
        Reason::InvalidSpec
        | Reason::ApplyRejected
        | Reason::FieldConflict
        | Reason::Forbidden
        | Reason::SchemaTooOld => "SeiNodeUpdateBlocked",
        _ => "SeiNodeStalled",
    }
}

#[tokio::test]
async fn an_invalid_spec_fires_a_warning_and_no_page() -> Result<()> {
    let scraped = Scraped::open("alert-blocked").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scraped.until(HEALTHY).await?;
    scenario.edit("rpc", json!({ "spec": { "podLabels": { "no key": "x" } } })).await?;
    let blocked = "seinode_stalled{NS,name=\"rpc\",reason=\"InvalidSpec\"} 1";
    let during = scraped.until(&[blocked]).await?;
    scenario.edit("rpc", json!({ "spec": { "podLabels": null } })).await?;
    let after = scraped.until(HEALTHY).await?;
    // Every other reason of `Stalled` has exactly one alert too.
    let stalls = REASONS.iter().filter(|row| {
        row.condition == ConditionType::Stalled && row.status == ConditionStatus::True
    });
    for reason in stalls.map(|row| row.reason) {
        let label = format!("reason=\"{reason}\"");
        let renamed = |series: &String| series.replace("reason=\"InvalidSpec\"", &label);
        let during = during.iter().map(|(series, value)| (renamed(series), *value)).collect();
        let alert = alert_about(reason);
        let mut fires = of_node(alert, scraped.namespace(), "rpc", "1");
        if alert != "SeiNodeSidecarUnreachable" {
            fires.labels.push(("reason", reason.to_string()));
        }
        check(before.clone(), during, after.clone(), vec![fires])
            .with_context(|| reason.to_string())?;
    }
    scraped.scenario.close().await
}

#[test]
fn only_reasons_that_leave_the_pod_running_do_not_page() -> Result<()> {
    let rules = crate::recording::alerts(&[file(ALERTS)])?;
    let severity = |alert: &str| {
        let rule = rules.iter().find(|rule| rule.alert == alert);
        rule.map(|rule| rule.labels["severity"].as_str())
    };
    assert_eq!(severity(alert_about(Reason::CrashLooping)), Some("critical"));
    assert_eq!(severity(alert_about(Reason::InvalidSpec)), Some("warning"));
    Ok(())
}

#[tokio::test]
async fn a_failed_initialization_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-failed").await?;
    let scenario = &scraped.scenario;
    let before = scraped.until(&["leader 1"]).await?;
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "data-rpc" },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    scenario.claims().create(&PostParams::default(), &claim).await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    let failed = "seinode_phase{NS,name=\"rpc\",phase=\"Failed\"} 1";
    let during = scraped.until(&[failed]).await?;
    scenario.claims().delete("data-rpc", &DeleteParams::default()).await?;
    wait_for("the claim is deleted", async || {
        Ok(scenario.claims().get_opt("data-rpc").await?.is_none().then_some(()))
    })
    .await?;
    scenario.edit("rpc", json!({ "metadata": { "annotations": { "sei.io/retry": "1" } } })).await?;
    let after = scraped.until(HEALTHY).await?;
    let fires = of_node("SeiNodeFailed", scraped.namespace(), "rpc", "1");
    check(before, during, after, vec![fires])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_failing_update_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-failing").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scraped.until(HEALTHY).await?;
    scenario.sidecars().fail(scraped.namespace(), "rpc", "config-validate", "no such key");
    scenario.set_image("rpc", "seid:v2").await?;
    let attempts = "sei_controller_seinode_update_failed_attempts{";
    let failed = |line: &str| line.starts_with(attempts) && !line.ends_with(" 0");
    // The sidecar of a new pod does not answer yet.
    let answers = |line: &str| {
        line.starts_with("sei_controller_seinode_sidecar_unreachable{") && line.ends_with(" 0")
    };
    let is_failing = |text: &str| text.lines().any(failed) && text.lines().any(answers);
    let during = scraped.until_text("an update failed", is_failing).await?;
    let attempts = during.iter().find(|(series, _)| series.starts_with(attempts));
    let attempts = attempts.context("the series is missing")?.1.to_string();
    scenario.sidecars().release(scraped.namespace(), "rpc", "config-validate");
    scenario.set_image("rpc", "seid:v3").await?;
    let after = scraped.until(HEALTHY).await?;
    let fires = of_node("SeiNodeUpdateFailing", scraped.namespace(), "rpc", &attempts);
    // The gate of its new pod stays closed until the update succeeds.
    let down = not_ready("SeiNodeNotReady", &scraped, "rpc", Some("node"));
    check(before, during, after, vec![fires, down])?;
    scraped.scenario.close().await
}

/// The platform with another sidecar image: every node drifts without an edit of its spec.
fn next_platform(image: &str) -> String {
    PLATFORM.replace("registry.example.org/seictl:v1", image)
}

#[tokio::test]
async fn an_update_held_for_more_than_a_day_fires_an_alert() -> Result<()> {
    let mut scraped = Scraped::open("alert-held").await?;
    let mut spec = rpc("seid:v1");
    spec["update"] = json!({ "onOperatorChange": "Hold" });
    scraped.scenario.run("rpc", spec).await?;
    let before = scraped.until(HEALTHY).await?;
    scraped.start_operator(&next_platform("registry.example.org/seictl:v2")).await?;
    let held = "seinode_drifted{NS,name=\"rpc\",reason=\"Held\"} 1";
    let during = scraped.until(&[held, "plan_active{controller=\"seinode\",NS} 0"]).await?;
    let scenario = &scraped.scenario;
    let pending = scenario.status("rpc").await?.pending_update.context("no update is pending")?;
    scraped.approve("rpc").await?;
    let after = scraped.until(HEALTHY).await?;
    // The update is held from the second half hour of the recording on, for a day and a half hour.
    let mut recording = Recording::default();
    let since = pending.since.0;
    recording.begin(since - SignedDuration::from_mins(i64::try_from(MINUTES)?));
    let day = 24 * 60;
    let soon = recording.hold(before, MINUTES) + 10;
    let almost = MINUTES + day;
    let over = recording.hold(during, day + MINUTES);
    let later = recording.hold(after, MINUTES);
    let fires = of_node("SeiNodeUpdateHeld", scraped.namespace(), "rpc", "1d 0h 29m 0s");
    let at = [(soon, vec![]), (almost, vec![]), (over, vec![fires]), (later, vec![])];
    recording.check_alerts(&[file(ALERTS)], &at)?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_failed_roll_that_halts_its_chain_fires_an_alert() -> Result<()> {
    let mut scraped = Scraped::open("alert-halted").await?;
    let mut spec = rpc("seid:v1");
    spec["update"] = json!({ "onOperatorChange": "Hold" });
    for name in ["first", "second", "rpc"] {
        scraped.scenario.run(name, spec.clone()).await?;
    }
    let before = scraped.until(HEALTHY).await?;
    scraped.scenario.until_pod("first", "is Ready", |pod| pod.ready).await?;
    let broken = "registry.example.org/seictl:typo";
    let rule = scraped.scenario.set_image_behaviour(broken, Behaviour::ImageUnpullable);
    scraped.start_operator(&next_platform(broken)).await?;
    let held = ["first", "second", "rpc"]
        .map(|name| format!("seinode_drifted{{NS,name=\"{name}\",reason=\"Held\"}} 1"));
    scraped.until(&held.each_ref().map(String::as_str)).await?;
    scraped.approve("first").await?;
    scraped.scenario.until_stalled("first", "ImageNotPullable").await?;
    for name in ["second", "rpc"] {
        scraped.approve(name).await?;
    }
    let during = scraped.until(&["chain_halted_nodes{chain_id=\"demo-1\"} 2"]).await?;
    scraped.scenario.lift(rule);
    for name in ["first", "second", "rpc"] {
        scraped.scenario.settled(name).await?;
    }
    let ended = &["chain_halted_nodes{chain_id=\"demo-1\"} 0"];
    let after = scraped.until(&[HEALTHY, ended].concat()).await?;
    let mut of_stalled = of_node("SeiNodeStalled", scraped.namespace(), "first", "1");
    of_stalled.labels.push(("reason", "ImageNotPullable".to_owned()));
    let of_chain = Fires {
        alert: "SeiChainRolloutHalted",
        labels: vec![("chain_id", "demo-1".to_owned())],
        value: "2".to_owned(),
    };
    check(before, during, after, vec![of_stalled, of_chain])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn an_unreachable_sidecar_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-sidecar").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scraped.until(HEALTHY).await?;
    let hangs =
        ["rpc", "new"].map(|name| scenario.set_node_behaviour(name, Behaviour::SidecarHangs));
    scenario.evict("rpc").await?;
    scenario.create("new", rpc("seid:v1")).await?;
    let unreachable = "seinode_sidecar_unreachable{NS,name=\"rpc\"} 1";
    let stalled = "seinode_stalled{NS,name=\"new\",reason=\"SidecarUnreachable\"} 1";
    let during = scraped.until(&[unreachable, stalled]).await?;
    for rule in hangs {
        scenario.lift(rule);
    }
    let new = [
        "seinode_stalled{NS,name=\"new\",reason=\"Progressing\"} 0",
        "seinode_ready{NS,name=\"new\",chain=\"demo-1\",role=\"node\",reason=\"Ready\"} 1",
    ];
    let after = scraped.until(&[HEALTHY, &new].concat()).await?;
    let of = |name| of_node("SeiNodeSidecarUnreachable", scraped.namespace(), name, "1");
    check(before, during, after, vec![of("rpc"), of("new")])?;
    scraped.scenario.close().await
}

/// The expected alert about a node that is not Ready.
fn not_ready(alert: &'static str, scraped: &Scraped, name: &str, role: Option<&str>) -> Fires {
    let mut fires = of_node(alert, scraped.namespace(), name, "0");
    fires.labels.push(("chain", "demo-1".to_owned()));
    fires.labels.extend(role.map(|role| ("role", role.to_owned())));
    fires
}

#[tokio::test]
async fn a_halted_validator_pages_and_another_halted_node_warns() -> Result<()> {
    let scraped = Scraped::open("alert-ready").await?;
    let scenario = &scraped.scenario;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let ready = |role: &str, name: &str, reason: &str, value: u8| {
        format!(
            "seinode_ready{{NS,name=\"{name}\",chain=\"demo-1\",role=\"{role}\",reason=\"{reason}\"}} {value}"
        )
    };
    let healthy = [ready("validator", "val", "Ready", 1)];
    let healthy = [HEALTHY, &[healthy[0].as_str()]].concat();
    let before = scraped.until(&healthy).await?;
    let halted = scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    let down = [("node", "rpc"), ("validator", "val")]
        .map(|(role, name)| ready(role, name, "PodNotReady", 0));
    let during = scraped.until(&down.each_ref().map(String::as_str)).await?;
    scenario.lift(halted);
    let after = scraped.until(&healthy).await?;
    let fires = vec![
        not_ready("SeiValidatorNotReady", &scraped, "val", None),
        not_ready("SeiNodeNotReady", &scraped, "rpc", Some("node")),
    ];
    check(before, during, after, fires)?;
    // A node that its user stops is not Ready either, and no alert fires.
    for name in ["rpc", "val"] {
        scenario.edit(name, json!({ "spec": { "paused": true } })).await?;
    }
    let stopped =
        [("node", "rpc"), ("validator", "val")].map(|(role, name)| ready(role, name, "Stopped", 0));
    let stopped = scraped.until(&stopped.each_ref().map(String::as_str)).await?;
    let mut recording = Recording::default();
    let minute = recording.hold(stopped, MINUTES);
    recording.check_alerts(&[file(ALERTS)], &[(minute, Vec::new())])?;
    scraped.scenario.close().await
}

/// The series of fleet `edge` with two nodes at rest.
const FLEET_READY: &[&str] = &[
    "seinodedeployment_ready{NS,name=\"edge\",reason=\"AllNodesReady\"} 1",
    "seinodedeployment_replicas{NS,name=\"edge\",replica_state=\"updated\"} 2",
    "seinode_ready{NS,name=\"edge-0\",chain=\"fleet-1\",role=\"node\",reason=\"Ready\"} 1",
    "seinode_ready{NS,name=\"edge-1\",chain=\"fleet-1\",role=\"node\",reason=\"Ready\"} 1",
];

#[tokio::test]
async fn a_halted_rollout_of_a_fleet_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-fleet-halted").await?;
    let scenario = &scraped.scenario;
    let limits = json!({ "maxUnavailable": 1, "canary": { "replicas": 1 } });
    fleets::create(scenario, manifest(2, &limits)).await?;
    let before = scraped.until(FLEET_READY).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    fleets::edit(scenario, image("seid:typo")).await?;
    let halted = "seinodedeployment_rollout{NS,name=\"edge\",state=\"Halted\"} 1";
    // A slow control plane stalls the node for another reason first.
    let stalled = "seinode_stalled{NS,name=\"edge-0\",reason=\"ImageNotPullable\"} 1";
    let during = scraped.until(&[halted, stalled]).await?;
    fleets::edit(scenario, image("seid:v2")).await?;
    let after = scraped.until(FLEET_READY).await?;
    let fires = of_node("SeiFleetRolloutHalted", scraped.namespace(), "edge", "1");
    let mut of_stalled = of_node("SeiNodeStalled", scraped.namespace(), "edge-0", "1");
    of_stalled.labels.push(("reason", "ImageNotPullable".to_owned()));
    check(before, during, after, vec![fires, of_stalled])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_rollout_without_progress_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-fleet-stuck").await?;
    let scenario = &scraped.scenario;
    let limits = json!({ "maxUnavailable": 1, "health": { "bakeSeconds": 2 } });
    fleets::create(scenario, manifest(2, &limits)).await?;
    let before = scraped.until(FLEET_READY).await?;
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": true } } })).await?;
    fleets::edit(scenario, image("seid:v2")).await?;
    let progressing = "seinodedeployment_rollout{NS,name=\"edge\",state=\"Progressing\"} 1";
    let held = "seinode_drifted{NS,name=\"edge-0\",reason=\"Paused\"} 1";
    let during = scraped.until(&[progressing, held]).await?;
    let progress = during.iter().find(|(series, _)| series.contains("rollout_progress"));
    let since = *progress.context("the series is missing")?.1;
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": null } } })).await?;
    let after = scraped.until(FLEET_READY).await?;
    // The rollout stands still from the second half hour of the recording on, for 90 minutes.
    let mut recording = Recording::default();
    let since = jiff::Timestamp::from_duration(SignedDuration::from_secs_f64(since))?;
    recording.begin(since - SignedDuration::from_mins(i64::try_from(MINUTES)?));
    recording.hold(before, MINUTES);
    let over = recording.hold(during, 90);
    let later = recording.hold(after, MINUTES);
    let fires = of_node("SeiFleetRolloutStuck", scraped.namespace(), "edge", "1h 28m 58s");
    let at = [(MINUTES + 64, vec![]), (over, vec![fires]), (later, vec![])];
    recording.check_alerts(&[file(ALERTS)], &at)?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_fleet_that_is_not_ready_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-fleet-ready").await?;
    let scenario = &scraped.scenario;
    scenario.run("edge-1", rpc("seid:v1")).await?;
    let theirs =
        "seinode_ready{NS,name=\"edge-1\",chain=\"demo-1\",role=\"node\",reason=\"Ready\"} 1";
    let before = scraped.until(&[theirs]).await?;
    fleets::create(scenario, manifest(2, &Value::Null)).await?;
    let conflict = "seinodedeployment_ready{NS,name=\"edge\",reason=\"NodeConflict\"} 0";
    let during = scraped.until(&[conflict, FLEET_READY[2], theirs]).await?;
    scenario.nodes().delete("edge-1", &DeleteParams::default()).await?;
    let after = scraped.until(FLEET_READY).await?;
    let quiet = ["RolloutInProgress", "RolloutHalted", "RolloutPaused", "Paused"];
    for reason in READY_REASONS.into_iter().filter(|reason| *reason != "AllNodesReady") {
        let label = format!("reason=\"{reason}\"");
        let renamed = |series: &String| series.replace("reason=\"NodeConflict\"", &label);
        let during = during.iter().map(|(series, value)| (renamed(series), *value)).collect();
        let mut fires = of_node("SeiFleetNotReady", scraped.namespace(), "edge", "0");
        fires.labels.push(("reason", reason.to_owned()));
        let fires = if quiet.contains(&reason) { Vec::new() } else { vec![fires] };
        check(before.clone(), during, after.clone(), fires).with_context(|| reason.to_owned())?;
    }
    // A fleet that was deleted has no series.
    let fleet = kube::Api::<SeiNodeDeployment>::namespaced(scenario.admin(), scenario.namespace());
    fleet.delete("edge", &DeleteParams::default()).await?;
    let is_removed = |text: &str| !text.contains("name=\"edge\"");
    scraped.until_text("the series of the fleet are removed", is_removed).await?;
    scraped.scenario.close().await
}

/// The scrape with this value of one series. Series of the operator itself have no namespace.
fn with(scrape: &Scrape, series: &str, value: f64) -> Result<Scrape> {
    let (name, labels) = series.split_once('{').context("a series has labels")?;
    let is_it = |key: &&String| {
        key.starts_with(&format!("sei_controller_{name}{{")) && key.ends_with(labels)
    };
    let series = scrape.keys().find(is_it).with_context(|| format!("{series} is not scraped"))?;
    let mut scrape = scrape.clone();
    scrape.insert(series.clone(), value);
    Ok(scrape)
}

#[tokio::test]
async fn a_silent_watch_and_a_long_queue_fire_alerts() -> Result<()> {
    let scraped = Scraped::open("alert-operator").await?;
    scraped.scenario.run("rpc", rpc("seid:v1")).await?;
    let healthy = scraped.until(HEALTHY).await?;
    let fires = |alert, label, name: &str, value: &str| {
        vec![Fires { alert, labels: vec![(label, name.to_owned())], value: value.to_owned() }]
    };
    let watch = "watch_age_seconds{resource=\"pods\"}";
    let silent = with(&healthy, watch, 660.0)?;
    let fires_watch = fires("SeiOperatorWatchSilent", "resource", "pods", "11m 0s");
    check(healthy.clone(), silent, healthy.clone(), fires_watch)?;
    let queue = "reconcile_queue_depth{controller=\"seinode\"}";
    let long = with(&healthy, queue, 7.0)?;
    let fires_queue = fires("SeiOperatorQueueLong", "controller", "seinode", "7");
    check(healthy.clone(), long.clone(), healthy.clone(), fires_queue)?;
    // A watch is opened again within five minutes, and a queue after an upgrade empties.
    let quiet = with(&healthy, watch, 300.0)?;
    check(healthy.clone(), quiet, healthy.clone(), vec![])?;
    let mut recording = Recording::default();
    recording.hold(healthy.clone(), MINUTES);
    let busy = recording.hold(long, 9);
    let after = recording.hold(healthy, MINUTES);
    recording.check_alerts(&[file(ALERTS)], &[(busy, vec![]), (after, vec![])])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_node_that_is_never_started_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-pending").await?;
    let scenario = &scraped.scenario;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scraped.until(HEALTHY).await?;
    // The platform has no witnesses for this chain.
    let mut spec = rpc("seid:v1");
    spec["chainId"] = json!("unknown-1");
    spec["fullNode"] = json!({ "snapshot": { "stateSync": {} } });
    scenario.create("new", spec).await?;
    let pending =
        "seinode_ready{NS,name=\"new\",chain=\"unknown-1\",role=\"node\",reason=\"Pending\"} 0";
    let during = scraped.until(&[pending]).await?;
    let witnesses = json!({ "rpcServers": ["a.example.org:26657", "b.example.org:26657"] });
    scenario.edit("new", json!({ "spec": { "fullNode": { "snapshot": witnesses } } })).await?;
    let started =
        "seinode_ready{NS,name=\"new\",chain=\"unknown-1\",role=\"node\",reason=\"Ready\"} 1";
    let after = scraped.until(&[HEALTHY, &[started]].concat()).await?;
    let mut fires = of_node("SeiNodePending", scraped.namespace(), "new", "0");
    fires.labels.push(("chain", "unknown-1".to_owned()));
    check(before, during, after, vec![fires])?;
    scraped.scenario.close().await
}

#[tokio::test]
async fn a_full_volume_fires_an_alert() -> Result<()> {
    let scraped = Scraped::open("alert-volume").await?;
    scraped.scenario.run("rpc", rpc("seid:v1")).await?;
    let scrape = scraped.until(HEALTHY).await?;
    // The kubelet of the tests has no metrics: these are named as those of a real one.
    let used = |claims: &[(&str, f64)]| {
        let mut scrape = scrape.clone();
        for (claim, used) in claims {
            let namespace = scraped.namespace();
            let labels = format!("{{namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\"}}");
            scrape.insert(format!("kubelet_volume_stats_used_bytes{labels}"), *used);
            scrape.insert(format!("kubelet_volume_stats_capacity_bytes{labels}"), 100.0);
        }
        scrape
    };
    // A volume that is no node's may be full.
    let others = [("data-web", 99.0), ("rpc", 99.0)];
    let before = used(&[&others[..], &[("data-rpc", 84.0)]].concat());
    let during = used(&[&others[..], &[("data-rpc", 90.0)]].concat());
    let fires = of_node("SeiNodeVolumeFull", scraped.namespace(), "rpc", "90%");
    check(before.clone(), during, before, vec![fires])?;
    scraped.scenario.close().await
}

/// An alert without a test here would never have been shown to fire.
#[test]
fn every_alert_has_a_test() -> Result<()> {
    let own = [include_str!("alerts.rs"), include_str!("chain.rs"), include_str!("process.rs")];
    let tests = own.concat() + include_str!("statefulset_alert.rs");
    for rule in crate::recording::alerts(&[file(ALERTS), file(OVERRIDE)])? {
        assert!(tests.contains(&format!("\"{}\"", rule.alert)), "{}", rule.alert);
    }
    Ok(())
}
