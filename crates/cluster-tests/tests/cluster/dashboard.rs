//! The dashboard: every query of every panel returns data of a real run.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::rpc;
use sei_rig::Behaviour;
use serde_json::{Value, json};

use crate::alerts::Scraped;
use crate::fleets::{create, edit, image, manifest};
use crate::recording::{Recording, file};

const DASHBOARD: &str = "dashboards/sei-operator.json";

/// Every query, with Grafana's own variables filled in.
fn queries(dashboard: &Value) -> Result<Vec<String>> {
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let mut queries = Vec::new();
    for panel in panels {
        let targets = panel["targets"].as_array().context("a panel has no targets")?;
        ensure!(!targets.is_empty(), "{panel:#}");
        for target in targets {
            let query = target["expr"].as_str().context("a target has no query")?;
            queries.push(query.replace("$namespace", ".*").replace("$__rate_interval", "10m"));
        }
    }
    Ok(queries)
}

#[tokio::test]
async fn every_panel_shows_data_of_a_real_run() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file(DASHBOARD))?)?;
    let scraped = Scraped::open("dashboard").await?;
    let scenario = &scraped.scenario;
    for name in ["good", "bad", "held"] {
        scenario.run(name, rpc("seid:v1")).await?;
    }
    create(scenario, manifest(1, &json!({ "maxUnavailable": 1 }))).await?;
    let mut recording = Recording::default();
    let ready = "seinodedeployment_ready{NS,name=\"edge\",reason=\"AllNodesReady\"} 1";
    let before = scraped.until(&["plan_active{controller=\"seinode\",NS} 0", ready]).await?;
    recording.hold(before, 5);
    scenario.set_image("good", "seid:v2").await?;
    scenario.settled("good").await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.until_pod("bad", "is Ready", |pod| pod.ready).await?;
    scenario.set_image("bad", "seid:typo").await?;
    scenario
        .edit("held", json!({ "spec": { "image": "seid:v2", "update": { "paused": true } } }))
        .await?;
    let mut change = image("seid:v2");
    change["updateStrategy"] = json!({ "paused": true });
    edit(scenario, change).await?;
    let paused = "seinodedeployment_rollout{NS,name=\"edge\",state=\"Paused\"} 1";
    let stalled = "seinode_stalled{NS,name=\"bad\",reason=\"ImageNotPullable\"} 1";
    let held = "seinode_drifted{NS,name=\"held\",reason=\"Paused\"} 1";
    scraped.until(&[stalled, held, paused]).await?;
    let height = "sei_controller_seinode_height{";
    let during = scraped.until_text("a height", |text| text.contains(height)).await?;
    let minute = recording.hold(during, 5);
    recording.check_queries(minute, &queries(&dashboard)?)?;
    scraped.scenario.close().await
}

#[test]
fn the_dashboard_is_valid_for_grafana() -> Result<()> {
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file(DASHBOARD))?)?;
    for key in ["uid", "title", "schemaVersion", "templating", "time"] {
        assert!(!dashboard[key].is_null(), "{key}");
    }
    let panels = dashboard["panels"].as_array().context("the dashboard has no panels")?;
    let position = |panel: &Value| {
        let at = |key: &str| panel["gridPos"][key].as_i64().context("a panel has no position");
        anyhow::Ok((at("x")?, at("y")?, at("w")?, at("h")?))
    };
    for (index, panel) in panels.iter().enumerate() {
        let (x, y, w, h) = position(panel)?;
        assert!(x >= 0 && y >= 0 && w > 0 && h > 0 && x + w <= 24, "{panel:#}");
        assert!(!panel["title"].as_str().unwrap_or_default().is_empty(), "{panel:#}");
        for right in &panels[index + 1..] {
            assert_ne!(panel["id"], right["id"]);
            let (left, top, width, height) = position(right)?;
            let apart = x + w <= left || left + width <= x || y + h <= top || top + height <= y;
            assert!(apart, "{} overlaps {}", panel["title"], right["title"]);
        }
    }
    queries(&dashboard).map(drop)
}
