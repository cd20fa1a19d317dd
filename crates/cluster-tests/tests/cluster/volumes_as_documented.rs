//! docs/validators.md, followed on a real server.

use anyhow::Result;
use cluster_tests::docs;
use cluster_tests::install::Shell;
use cluster_tests::scenario::{Scenario, rpc};
use sei_plan::signing_key;
use sei_rig::ClaimRule;
use serde_json::json;

fn follow(shell: &Shell, document: &str, heading: &str) -> Result<String> {
    shell.run(&docs::commands(document, heading)?)
}

#[tokio::test]
async fn a_validator_moves_in_as_documented() -> Result<()> {
    let scenario = Scenario::open("moved-in").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let keys = tempfile::tempdir()?;
    let key =
        json!({ "priv_key": { "type": "tendermint/PrivKeyEd25519", "value": "c2VpLXJpZw==" } });
    std::fs::write(keys.path().join("node_key.json"), key.to_string())?;
    let signing = signing_key::made_up("moved-in").to_string();
    std::fs::write(keys.path().join("priv_validator_key.json"), signing)?;
    let folder = keys.path().display().to_string();
    let shell = Shell::on(scenario.plane())?
        .with(&[("NAMESPACE", scenario.namespace()), ("KEYS", &folder)]);
    follow(&shell, "docs/validators.md", "The Secrets of a validator")?;
    follow(&shell, "docs/validators.md", "The commands of step 1, 4 and 5")?;
    scenario.settled("val-0").await?;
    let pod = serde_json::to_value(scenario.pods().get("val-0-0").await?)?;
    let volumes = pod["spec"]["volumes"].to_string();
    for used in ["val-0-home", "val-0-signing", "val-0-p2p"] {
        assert!(volumes.contains(used), "{used}: {volumes}");
    }
    let claims = scenario.claims().list(&kube::api::ListParams::default()).await?;
    assert_eq!(claims.items.len(), 1, "an empty volume was created beside the imported one");
    scenario.close().await
}

#[tokio::test]
async fn a_corrupt_volume_is_replaced_as_documented() -> Result<()> {
    let scenario = Scenario::open("new-volume").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.claims().get("data-rpc").await?.metadata.uid;
    let size = json!({ "spec": { "dataVolume": { "size": "90Gi" } } });
    scenario.edit("rpc", size).await?;
    let shell =
        Shell::on(scenario.plane())?.with(&[("NAMESPACE", scenario.namespace()), ("NODE", "rpc")]);
    follow(&shell, "docs/validators.md", "Replace a corrupt volume")?;
    let claim = scenario.claims().get("data-rpc").await?;
    assert_ne!(claim.metadata.uid, before);
    let claim = serde_json::to_value(claim.spec)?;
    assert_eq!(claim["resources"]["requests"]["storage"], "90Gi", "the size of the spec");
    scenario.close().await
}
