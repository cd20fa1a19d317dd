//! A node that disappears because its finalizer was removed.

use anyhow::Result;
use cluster_tests::interceptor::Interceptor;
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::wait_for;
use http::Method;
use kube::api::{DeleteParams, Patch, PatchParams};
use sei_api::status::SeiNodePhase;
use sei_operator::runtime::metrics::Metrics;
use serde_json::json;

/// The series of this node.
fn series(metrics: &Metrics, node: &str) -> Vec<String> {
    let named = format!("name=\"{node}\"");
    metrics.encode().lines().filter(|line| line.contains(&named)).map(str::to_owned).collect()
}

#[tokio::test]
async fn a_node_whose_finalizer_was_removed_leaves_no_metrics() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("stripped").await?;
    // The finalizer's cleanup does not complete as long as the volume cannot be deleted.
    let interceptor = Interceptor::never_answering(|request| {
        request.method() == Method::DELETE && request.uri().path().contains("persistentvolume")
    });
    let metrics = Metrics::new();
    let setup =
        Setup { interceptor: Some(interceptor), metrics: metrics.clone(), ..Setup::default() };
    scenario.start_with(setup).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    assert_ne!(series(&metrics, "rpc"), Vec::<String>::new());
    scenario.nodes().delete("rpc", &DeleteParams::background()).await?;
    let terminating =
        |status: &sei_api::SeiNodeStatus| status.phase == Some(SeiNodePhase::Terminating);
    scenario.until("rpc", "its deletion has started", terminating).await?;
    let strip = json!({ "metadata": { "finalizers": null } });
    scenario.nodes().patch("rpc", &PatchParams::default(), &Patch::Merge(&strip)).await?;
    wait_for("it has no series any more", async || {
        Ok(series(&metrics, "rpc").is_empty().then_some(()))
    })
    .await?;
    scenario.close().await
}
