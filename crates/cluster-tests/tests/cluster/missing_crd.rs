//! An operator that was installed before its CRD.

use anyhow::Result;
use clap::Parser as _;
use cluster_tests::{SEINODE_CRD, minor, wait_for};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kubectl_sei::CommandContext;
use kubectl_sei::flags::Flags;
use sei_rig::{ControlPlane, Options, User};

use crate::process::{get, program, start_as};

#[tokio::test]
async fn a_leader_without_the_crd_reports_it_until_the_crd_exists() -> Result<()> {
    let program = program()?;
    let plane = ControlPlane::boot(&sei_rig::bin_dir(&minor())?, Options::default()).await?;
    let operator = start_as(User::Admin, &program, &plane, "early")?;
    let (metrics, health, log) = (operator.metrics, operator.health, operator.log.clone());
    let lines = async |of: &str| -> Result<Vec<String>> {
        let text = std::fs::read_to_string(&log)?;
        Ok(text.lines().filter(|line| line.contains(of)).map(str::to_owned).collect())
    };
    let unknown = "the server does not know this kind";
    // The watch of fleets, whose kind is missing too, may fail first.
    let warning = wait_for("it logs the missing kind", async || {
        let mut warnings = lines(unknown).await?.into_iter();
        Ok(warnings.find(|warning| warning.contains("kind=\"SeiNode\"")))
    })
    .await?;
    assert!(warning.contains("WARN"), "{warning}");
    let scraped = get(metrics, "/metrics").await?;
    let has = |line: &str| scraped.lines().any(|metric| metric.starts_with(line));
    assert!(has("sei_controller_leader 1"), "{scraped}");
    let errors = "sei_controller_reconcile_errors_total{controller=\"seinode\",category=\"watch\"}";
    assert!(has(errors), "{scraped}");
    let ready = get(health, "/readyz").await?;
    assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("first lists"), "{ready}");
    assert!(get(health, "/healthz").await?.starts_with("HTTP/1.1 200"));
    let client = Some(plane.client(User::Admin)?);
    let context = CommandContext { client, ..CommandContext::default() };
    let status = Flags::try_parse_from(["kubectl-sei", "status"])?;
    let refused = kubectl_sei::run(&status, &context, &mut Vec::new()).await.unwrap_err();
    assert!(refused.to_string().starts_with("the SeiNode CRD is not installed"), "{refused}");

    let crd: CustomResourceDefinition = serde_saphyr::from_str(SEINODE_CRD)?;
    Api::all(plane.client(User::Admin)?).create(&PostParams::default(), &crd).await?;
    wait_for("it is ready once the CRD exists", async || {
        let ready = get(health, "/readyz").await?;
        Ok(ready.starts_with("HTTP/1.1 200").then_some(()))
    })
    .await?;
    let count = lines(unknown).await?.len();
    assert!(count < 20, "{count} lines");
    Ok(())
}
