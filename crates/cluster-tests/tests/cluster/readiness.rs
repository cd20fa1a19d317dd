//! What `kubectl get` and `kubectl wait` show of a node in each state.

use anyhow::{Context as _, Result};
use cluster_tests::install::Shell;
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use sei_api::condition::ConditionType;
use sei_rig::{Behaviour, ClaimRule};
use serde_json::json;

/// A line of `kubectl get seinodes`, by the names of its columns; without name and age.
pub(crate) fn shown(shell: &Shell, scenario: &Scenario, name: &str) -> Result<String> {
    let namespace = scenario.namespace();
    let text = shell.run(&format!("kubectl -n {namespace} get seinodes {name}"))?;
    let mut lines = text.lines();
    let heads = lines.next().context("no head line")?;
    let line = lines.next().context("no line")?;
    // A column begins where its head begins.
    let column = |head: &str| {
        let at = heads.find(head).with_context(|| format!("no column {head}: {heads}"))?;
        anyhow::Ok(line[at..].split_whitespace().next().unwrap_or_default().to_owned())
    };
    let columns = ["READY", "REASON", "PHASE", "IMAGE", "UPDATE", "CHAIN"];
    Ok(columns.into_iter().map(column).collect::<Result<Vec<_>>>()?.join(" "))
}

/// Waits until the condition `Ready` is this.
async fn until_ready(scenario: &Scenario, name: &str, desired: &str) -> Result<()> {
    let claim = format!("Ready is {desired}");
    let is = |status: &_| condition_text(status, ConditionType::Ready).starts_with(desired);
    scenario.until(name, &claim, is).await.map(drop)
}

#[tokio::test]
async fn a_healthy_node_is_shown_as_healthy_and_a_pause_of_updates_is_visible() -> Result<()> {
    let scenario = Scenario::open("shown-good").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    assert_eq!(shown(&shell, &scenario, "rpc")?, "True Ready Running seid:v1 InSync demo-1");
    scenario.edit("rpc", json!({ "spec": { "update": { "paused": true } } })).await?;
    scenario
        .until("rpc", "the pause is reported", |status| {
            condition_text(status, ConditionType::PodTemplateDrift).starts_with("False/Paused")
        })
        .await?;
    assert_eq!(shown(&shell, &scenario, "rpc")?, "True Ready Running seid:v1 Paused demo-1");
    let namespace = scenario.namespace();
    let all = shell.run(&format!("kubectl -n {namespace} get sei -o name"))?;
    assert_eq!(all.trim(), "seinode.sei.io/rpc", "the category lists the node");
    scenario.close().await
}

#[tokio::test]
async fn a_stopped_node_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open("shown-stopped").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.edit("rpc", json!({ "spec": { "paused": true } })).await?;
    until_ready(&scenario, "rpc", "False/Stopped: spec.paused is true").await?;
    assert!(shown(&shell, &scenario, "rpc")?.starts_with("False Stopped Running"));
    scenario.edit("rpc", json!({ "spec": { "paused": false } })).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_node_without_its_volume_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open("shown-lost").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.claims().delete("data-rpc", &DeleteParams::default()).await?;
    scenario.statefulsets().delete("rpc", &DeleteParams::default()).await?;
    until_ready(&scenario, "rpc", "False/DataVolumeLost").await?;
    assert!(shown(&shell, &scenario, "rpc")?.starts_with("False DataVolumeLost Running"));
    scenario.close().await
}

#[tokio::test]
async fn a_refused_edit_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open("shown-refused").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.edit("rpc", json!({ "spec": { "fullNode": { "snapshotGeneration": {} } } })).await?;
    until_ready(&scenario, "rpc", "False/InvalidSpec").await?;
    let line = shown(&shell, &scenario, "rpc")?;
    assert_eq!(line, "False InvalidSpec Running seid:v1 InSync demo-1");
    scenario.edit("rpc", json!({ "spec": { "fullNode": { "snapshotGeneration": null } } })).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_change_of_chain_or_mode_is_refused_at_once() -> Result<()> {
    let scenario = Scenario::open("shown-moved").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    for (spec, message) in [
        (r#"{"chainId":"demo-2"}"#, "chainId cannot change"),
        (r#"{"fullNode":null,"archive":{}}"#, "the mode cannot change"),
        (r#"{"image":"foo bar"}"#, "spec.image in body should match"),
    ] {
        let namespace = scenario.namespace();
        let patch = format!(
            "kubectl -n {namespace} patch seinode rpc --type=merge -p '{{\"spec\":{spec}}}'"
        );
        let refused = shell.run(&patch).err().with_context(|| format!("{spec} was accepted"))?;
        assert!(format!("{refused:#}").contains(message), "{refused:#}");
    }
    assert_eq!(shown(&shell, &scenario, "rpc")?, "True Ready Running seid:v1 InSync demo-1");
    scenario.close().await
}

#[tokio::test]
async fn a_missing_imported_claim_is_reported_and_used_once_it_exists() -> Result<()> {
    let scenario = Scenario::open_at_speed("shown-import", 50).await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let mut spec = rpc("seid:v1");
    spec["dataVolume"] = json!({ "import": { "pvcName": "nope" } });
    scenario.create("rpc", spec).await?;
    until_ready(&scenario, "rpc", "False/PVCNotReady: claim nope not found").await?;
    assert!(shown(&shell, &scenario, "rpc")?.starts_with("False PVCNotReady Initializing"));
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "nope" },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    scenario.claims().create(&PostParams::default(), &claim).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_secret_with_a_wrong_data_key_is_reported_and_used_once_it_is_corrected() -> Result<()> {
    let scenario = Scenario::open_at_speed("shown-secret", 50).await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.create_validator_keys("signing", "p2p").await?;
    let secrets: Api<Secret> = Api::namespaced(scenario.admin(), scenario.namespace());
    let right = secrets.get("signing").await?.data.context("the Secret is empty")?;
    let content = right.values().next().context("the Secret is empty")?;
    let patch = |data| Patch::Merge(json!({ "data": data }));
    let parameters = PatchParams::default();
    let wrong = json!({ "wrong.json": content, "priv_validator_key.json": null });
    secrets.patch("signing", &parameters, &patch(wrong)).await?;
    scenario.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let why = "False/SecretMissing: Secret signing: data key priv_validator_key.json is missing";
    until_ready(&scenario, "val", why).await?;
    assert!(shown(&shell, &scenario, "val")?.starts_with("False SecretMissing Initializing"));
    let corrected = json!({ "wrong.json": null, "priv_validator_key.json": content });
    secrets.patch("signing", &parameters, &patch(corrected)).await?;
    until_ready(&scenario, "val", "True/Ready").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_node_of_a_halted_chain_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open("shown-halted").await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    until_ready(&scenario, "rpc", "False/PodNotReady: pod rpc-0 is not Ready").await?;
    let line = shown(&shell, &scenario, "rpc")?;
    assert_eq!(line, "False PodNotReady Running seid:v1 InSync demo-1");
    scenario.set_image("rpc", "seid:v2").await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    let line = shown(&shell, &scenario, "rpc")?;
    assert!(line.starts_with("True Ready Running seid:v2"), "{line}");
    scenario.close().await
}

#[tokio::test]
async fn a_crashing_node_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open_at_speed("shown-crash", 50).await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::CrashesAtOnce);
    scenario.evict("rpc").await?;
    until_ready(&scenario, "rpc", "False/CrashLooping: pod rpc-0: seid").await?;
    // At this speed the process may run for longer than a crash loop lasts, before it ends again.
    let line = shown(&shell, &scenario, "rpc")?;
    let is_down = ["CrashLooping", "PodNotReady"]
        .iter()
        .any(|reason| line.starts_with(&format!("False {reason} Running seid:v1")));
    assert!(is_down, "{line}");
    scenario.close().await
}

#[tokio::test]
async fn a_node_whose_pod_was_deleted_is_not_shown_as_healthy() -> Result<()> {
    let scenario = Scenario::open_at_speed("shown-deleted", 1).await?;
    let shell = Shell::on(scenario.plane())?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    until_ready(&scenario, "rpc", "True/Ready").await?;
    let stuck = scenario.set_node_behaviour("rpc", Behaviour::StuckTerminating);
    scenario.pods().delete("rpc-0", &DeleteParams::default()).await?;
    until_ready(&scenario, "rpc", "False/PodNotReady: pod rpc-0: is terminating").await?;
    assert!(shown(&shell, &scenario, "rpc")?.starts_with("False PodNotReady Running seid:v1"));
    scenario.lift(stuck);
    until_ready(&scenario, "rpc", "True/Ready").await?;
    scenario.close().await
}

#[tokio::test]
async fn kubectl_waits_until_a_node_is_ready_and_until_it_is_not() -> Result<()> {
    let mut scenario = Scenario::open("kubectl-wait").await?;
    let shell = Shell::on(scenario.plane())?;
    let namespace = scenario.namespace().to_owned();
    let wait = |condition: &str, timeout: &str| {
        shell.run(&format!(
            "kubectl -n {namespace} wait --for=condition={condition} --timeout={timeout} seinode/rpc"
        ))
    };
    let halted = scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    scenario.run("rpc", rpc("seid:v1")).await?;
    let refused = wait("Ready", "2s").err().context("kubectl took a halted node for Ready")?;
    assert!(format!("{refused:#}").contains("timed out"), "{refused:#}");
    wait("Ready=false", "30s")?;
    scenario.lift(halted);
    wait("Ready", "60s")?;
    // An edit is not Ready before the operator has seen it.
    scenario.kill_operator();
    scenario.set_image("rpc", "seid:v2").await?;
    let stale = wait("Ready", "2s").err().context("kubectl took an older generation for Ready")?;
    assert!(format!("{stale:#}").contains("timed out"), "{stale:#}");
    scenario.close().await
}
