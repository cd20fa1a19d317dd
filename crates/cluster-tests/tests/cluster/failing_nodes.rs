//! Nodes that do not work, and how they recover.

use anyhow::Result;
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Scenario, condition_text, rpc};
use cluster_tests::wait_for;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodePhase;
use sei_operator::runtime::metrics::Metrics;
use sei_plan::view::PodView;
use sei_rig::Behaviour;
use serde_json::json;

use crate::manual_changes::{ATTEMPTS, LIMIT, answers, opened_after};

#[tokio::test]
async fn a_bad_image_at_creation_is_corrected_by_an_edit() -> Result<()> {
    let scenario = Scenario::open_at_speed("bad-first", 50).await?;
    scenario.set_image_behaviour("seid:typo", Behaviour::ImageUnpullable);
    scenario.create("rpc", rpc("seid:typo")).await?;
    let status = scenario.until_stalled("rpc", "ImagePullFailed").await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert_eq!(status.current_image, None);
    scenario.set_image("rpc", "seid:v1").await?;
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

/// Updates a node whose sidecar behaves like this.
async fn update_despite(name: &str, behaviour: Behaviour) -> Result<()> {
    let scenario = Scenario::open(name).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    // The rule applies to the old pod only.
    scenario.set_image_behaviour("seid:v1", behaviour);
    scenario.until_pod("rpc", "its sidecar does not answer", |pod| !pod.ready).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn a_hanging_sidecar_does_not_prevent_an_update() -> Result<()> {
    update_despite("hanging", Behaviour::SidecarHangs).await
}

#[tokio::test]
async fn a_refusing_sidecar_does_not_prevent_an_update() -> Result<()> {
    update_despite("refusing", Behaviour::SidecarRefuses).await
}

#[tokio::test]
async fn a_pod_stuck_terminating_is_reported_and_the_update_resumes_when_it_ends() -> Result<()> {
    let scenario = Scenario::open_at_speed("stuck-pod", 50).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    let rule = scenario.set_node_behaviour("rpc", Behaviour::StuckTerminating);
    scenario.set_image("rpc", "seid:v2").await?;
    let status = scenario.until_stalled("rpc", "PodTerminating").await?;
    assert_eq!(status.current_image.as_deref(), Some("seid:v1"));
    assert_eq!(scenario.uid("rpc").await?, before, "the pod was deleted by force");
    scenario.lift(rule);
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn an_unschedulable_pod_is_reported() -> Result<()> {
    let scenario = Scenario::open_at_speed("unschedulable", 50).await?;
    let rule = scenario.set_node_behaviour("rpc", Behaviour::Unschedulable);
    scenario.create("rpc", rpc("seid:v1")).await?;
    scenario.until_stalled("rpc", "Unschedulable").await?;
    scenario.lift(rule);
    scenario.settled("rpc").await?;
    scenario.until_not_stalled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1);
    scenario.close().await
}

#[tokio::test]
async fn a_refused_configuration_fails_the_update_until_it_is_valid() -> Result<()> {
    let scenario = Scenario::open_at_speed("refused-config", 50).await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.sidecars().fail(&namespace, "rpc", "config-validate", "config validation failed: bad");
    scenario.set_image("rpc", "seid:v2").await?;
    let status = scenario.until("rpc", "the failure is reported", |status| {
        condition_text(status, ConditionType::NodeUpdateInProgress)
            .starts_with("False/UpdateFailed")
    });
    let status = status.await?;
    let failed = condition_text(&status, ConditionType::NodeUpdateInProgress);
    assert!(failed.contains("config validation failed: bad"), "{failed}");
    let status = scenario.until("rpc", "it backs off", |status| {
        condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/BackingOff")
    });
    let pending = status.await?.pending_update.unwrap_or_else(|| panic!("no update is pending"));
    assert!(pending.attempts >= Some(1) && pending.next_attempt_at.is_some(), "{pending:?}");
    scenario.until_pod_of("rpc", "seid:v2").await?;
    scenario.sidecars().release(&namespace, "rpc", "config-validate");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn one_hanging_sidecar_does_not_block_the_roll_of_twenty_nodes() -> Result<()> {
    let scenario = Scenario::open("one-hangs").await?;
    let names: Vec<String> = (0..21).map(|index| format!("rpc-{index}")).collect();
    let mut spec = rpc("seid:v1");
    // The others must not wait for its turn either.
    spec["update"] = json!({ "onImageChange": "AtOnce" });
    for name in &names {
        scenario.create(name, spec.clone()).await?;
    }
    for name in &names {
        scenario.settled(name).await?;
    }
    let rule = scenario.set_node_behaviour("rpc-0", Behaviour::SidecarHangs);
    for name in &names {
        scenario.set_image(name, "seid:v2").await?;
    }
    for name in &names[1..] {
        scenario.settled(name).await?;
        assert_eq!(scenario.pods_seen(name).await?, 2);
    }
    let openings = scenario.sidecars().gate_openings(scenario.namespace(), "rpc-0");
    assert_eq!(openings.len(), 1, "its own update is complete already");
    scenario.lift(rule);
    scenario.settled("rpc-0").await?;
    assert_eq!(scenario.pods_seen("rpc-0").await?, 2);
    scenario.close().await
}

/// How many health probes have found a gate open.
fn probes_of_open_gates(metrics: &Metrics) -> usize {
    let text = metrics.encode();
    let probes = "sei_controller_seinode_sidecar_health_probes_total";
    let mut lines = text.lines().filter(|line| line.starts_with(probes));
    let line = lines.find(|line| line.contains("outcome=\"ready\""));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn a_sidecar_that_restarts_in_place_gets_its_gate_opened_again_within_a_second() -> Result<()>
{
    let mut scenario = Scenario::open_without_operator("sidecar-restart").await?;
    let metrics = Metrics::new();
    scenario.start_with(Setup { speed: 1, metrics: metrics.clone(), ..Setup::default() }).await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    let uid = scenario.uid("rpc").await?;
    let openings = scenario.sidecars().gate_openings(&namespace, "rpc").len();
    let mut waited = Vec::new();
    let mut restarts = 0;
    while waited.iter().all(|seconds| *seconds > LIMIT) {
        assert!(restarts < ATTEMPTS, "gates opened after {waited:?} s");
        restarts += 1;
        // After an open gate the next probe comes a minute later, so it is not what finds it
        // closed.
        wait_for("a probe has found the gate open", async || {
            let probes = probes_of_open_gates(&metrics);
            Ok((i32::try_from(probes)? >= restarts).then_some(()))
        })
        .await?;
        let before = answers(&scenario, "rpc");
        scenario.kubelet().restart_sidecar(&namespace, "rpc");
        waited.push(opened_after(&scenario, "rpc", before).await?);
        let is_back = |pod: &PodView| pod.sidecar.restarts == restarts && pod.ready;
        scenario.until_pod("rpc", "it is ready again", is_back).await?;
        scenario.settled("rpc").await?;
    }
    assert_eq!(scenario.sidecars().gate_openings(&namespace, "rpc").len(), openings + waited.len());
    assert_eq!(scenario.uid("rpc").await?, uid);
    scenario.close().await
}
