//! A platform configuration that changes while the operator runs.

use anyhow::{Context as _, Result};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::wait_for;
use sei_api::status::Cause;
use sei_operator::runtime::metrics::Metrics;

const OLD: &str = "registry.example.org/seictl:v1";
const NEW: &str = "registry.example.org/seictl:v2";

async fn until_metric(metrics: &Metrics, line: &str) -> Result<()> {
    wait_for(line, async || {
        Ok(metrics.encode().lines().any(|found| found.starts_with(line)).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_changed_platform_file_rolls_nodes_and_an_invalid_one_changes_nothing() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("platform-file").await?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("config.yaml");
    std::fs::write(&path, PLATFORM)?;
    let metrics = Metrics::new();
    let platform_path = Some(path.clone());
    let setup = Setup { platform_path, metrics: metrics.clone(), ..Setup::default() };
    scenario.start_with(setup).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    until_metric(&metrics, "sei_controller_platform_file_refused 0").await?;

    // A mistyped key: the valid change beside it does not take effect either.
    std::fs::write(&path, PLATFORM.replace(OLD, NEW).replace("rollout:", "rollouts:"))?;
    until_metric(&metrics, "sei_controller_platform_file_refused 1").await?;
    scenario.run("later", rpc("seid:v1")).await?;
    assert_eq!(scenario.pod("later").await?.context("no pod")?.sidecar.image, OLD);
    assert_eq!(scenario.uid("rpc").await?, before);

    std::fs::write(&path, PLATFORM.replace(OLD, NEW))?;
    until_metric(&metrics, "sei_controller_platform_file_refused 0").await?;
    let rolled = |pod: &sei_plan::view::PodView| pod.sidecar.image == NEW && pod.ready;
    scenario.until_pod("rpc", "it has the new sidecar", rolled).await?;
    scenario.until_pod("later", "it has the new sidecar", rolled).await?;
    scenario.settled("rpc").await?;
    let last = scenario.status("rpc").await?.last_update.context("no update")?;
    assert_eq!((last.cause, last.slot), (Cause::Operator, Some(true)), "in turn, as drift");
    scenario.close().await
}
