//! Behaviour kept from the Go operator, on real servers: the objects of a node, and the state of a
//! node whose prerequisites are missing.

use anyhow::{Context as _, Result};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use sei_api::condition::ConditionType;
use sei_api::names::NODE_FINALIZER;
use sei_api::plan::PlanPhase;
use sei_api::status::{Endpoint, SeiNodePhase, SeiNodeStatus};
use sei_rig::{Behaviour, ClaimRule};
use serde_json::{Value, json};

use crate::modes::modes;
use crate::status_history::StatusHistory;

fn mode(name: &str) -> Value {
    let found = modes().into_iter().find(|(mode, _)| *mode == name);
    found.map(|(_, spec)| spec).expect("the mode exists")
}

/// The expected endpoint of a serving node.
fn expected_endpoint(scenario: &Scenario, node: &str) -> Endpoint {
    let at = |scheme: &str, port: u16| {
        Some(format!("{scheme}://{node}.{}.svc:{port}", scenario.namespace()))
    };
    Endpoint {
        evm_json_rpc: at("http", 8545),
        evm_ws: at("ws", 8546),
        tendermint_rpc: at("http", 26657),
        tendermint_rest: at("http", 1317),
    }
}

/// The endpoint of a running node, which its status has from the phase Running on.
async fn endpoint(scenario: &Scenario, node: &str) -> Result<Endpoint> {
    scenario.status(node).await?.endpoint.context("a running node has no endpoint")
}

// N2, N4, N6
#[tokio::test]
async fn a_validator_is_one_replica_behind_a_headless_service() -> Result<()> {
    let scenario = Scenario::open("objects-val").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let sets: Vec<StatefulSet> = scenario.statefulsets().list(&ListParams::default()).await?.items;
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].spec.replicas, Some(1));
    let template = sets[0].spec.template.spec.clone().context("the object has no spec")?;
    let init = template.init_containers.unwrap_or_default();
    let names: Vec<_> = init.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["seid-init", "sei-sidecar", "kube-rbac-proxy"]);
    let service = scenario.services().get("val").await?.spec.context("the object has no spec")?;
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(scenario.status("val").await?.endpoint, None);
    scenario.close().await
}

// N3, N5, N7, N9
#[tokio::test]
async fn a_full_node_has_a_volume_a_finalizer_and_an_endpoint() -> Result<()> {
    let scenario = Scenario::open("objects-rpc").await?;
    scenario.run("rpc", mode("restored")).await?;
    let finalizers = scenario.node("rpc").await?.metadata.finalizers.unwrap_or_default();
    assert!(finalizers.iter().any(|finalizer| finalizer == NODE_FINALIZER), "{finalizers:?}");
    let claim = scenario.claims().get("data-rpc").await?.spec.context("the object has no spec")?;
    assert_eq!(claim.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
    let endpoint = endpoint(&scenario, "rpc").await?;
    assert_eq!(endpoint, expected_endpoint(&scenario, "rpc"));
    let ports = scenario.services().get("rpc").await?.spec.context("the object has no spec")?.ports;
    let ports: Vec<i32> = ports.unwrap_or_default().iter().map(|port| port.port).collect();
    assert!(ports.contains(&8545), "{ports:?}");
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.status("rpc").await?.endpoint, Some(endpoint));
    scenario.close().await
}

// N16, N17, N26
#[tokio::test]
async fn a_new_nodes_sidecar_gets_its_tasks_in_order() -> Result<()> {
    let scenario = Scenario::open("tasks").await?;
    for (name, tasks) in [
        (
            "restored",
            &[
                "snapshot-restore",
                "configure-genesis",
                "config-apply",
                "configure-state-sync",
                "config-validate",
                "mark-ready",
            ][..],
        ),
        ("archive", &["configure-genesis", "config-apply", "config-validate", "mark-ready"]),
        (
            "replayer",
            &[
                "snapshot-restore",
                "configure-genesis",
                "config-apply",
                "configure-state-sync",
                "config-validate",
                "mark-ready",
            ],
        ),
    ] {
        scenario.run(name, mode(name)).await?;
        let all = scenario.sidecars().submissions(scenario.namespace(), name);
        // A submission that is repeated because its response was lost has no effect.
        let all = all.iter().filter(|submission| submission.has_effect);
        let all: Vec<&str> = all.map(|submission| submission.task_type.as_str()).collect();
        assert_eq!(all, tasks, "{name}");
        if name == "replayer" {
            assert_eq!(scenario.status(name).await?.endpoint, None);
        } else {
            assert_eq!(endpoint(&scenario, name).await?, expected_endpoint(&scenario, name));
        }
    }
    scenario.close().await
}

// N12, N13
#[tokio::test]
async fn a_closed_gate_is_reported_for_a_running_node_only() -> Result<()> {
    let scenario = Scenario::open("gate-condition").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.sidecars().hold(&namespace, "rpc", "mark-ready");
    scenario.create("rpc", rpc("seid:v1")).await?;
    scenario.until_submitted("rpc", "mark-ready", 0).await?;
    let status = scenario.status("rpc").await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert_eq!(condition_text(&status, ConditionType::SidecarReady), "absent");
    scenario.sidecars().release(&namespace, "rpc", "mark-ready");
    scenario.settled("rpc").await?;
    scenario.sidecars().hold(&namespace, "rpc", "mark-ready");
    scenario.kubelet().restart_sidecar(&namespace, "rpc");
    scenario
        .until("rpc", "SidecarReady is False", |status| {
            condition_text(status, ConditionType::SidecarReady).starts_with("False/NotReady")
        })
        .await?;
    scenario.sidecars().release(&namespace, "rpc", "mark-ready");
    scenario
        .until("rpc", "SidecarReady is True", |status| {
            condition_text(status, ConditionType::SidecarReady).starts_with("True")
        })
        .await?;
    scenario.close().await
}

// N18
#[tokio::test]
async fn a_failed_restore_fails_the_node_and_stops_sidecar_requests() -> Result<()> {
    let scenario = Scenario::open("restore-fails").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.sidecars().fail(&namespace, "rpc", "snapshot-restore", "no such bucket");
    scenario.create("rpc", mode("restored")).await?;
    let failed =
        |status: &sei_api::status::SeiNodeStatus| status.phase == Some(SeiNodePhase::Failed);
    let status = scenario.until("rpc", "it has failed", failed).await?;
    let plan = status.plan.context("the failed plan is missing")?;
    assert_eq!(plan.phase, PlanPhase::Failed);
    let detail = plan.failed_task_detail.context("the failure has no detail")?;
    assert_eq!(
        (detail.r#type.as_str(), detail.error.as_str()),
        ("snapshot-restore", "no such bucket")
    );
    let before = scenario.sidecars().submissions(&namespace, "rpc").len();
    scenario.sidecars().release(&namespace, "rpc", "snapshot-restore");
    // The eviction causes another reconcile of the failed node.
    scenario.evict("rpc").await?;
    scenario.run("other", rpc("seid:v1")).await?;
    assert_eq!(scenario.status("rpc").await?.phase, Some(SeiNodePhase::Failed));
    assert_eq!(scenario.sidecars().submissions(&namespace, "rpc").len(), before);
    scenario.edit("rpc", json!({ "metadata": { "annotations": { "sei.io/retry": "1" } } })).await?;
    scenario.settled("rpc").await?;
    scenario.close().await
}

async fn create_claim(scenario: &Scenario, mode: &str) -> Result<()> {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "kept" },
        "spec": { "accessModes": [mode], "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    scenario.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

fn spec_with_import() -> Value {
    let mut spec = rpc("seid:v1");
    spec["dataVolume"] = json!({ "import": { "pvcName": "kept" } });
    spec
}

// N20, N21
#[tokio::test]
async fn an_init_plan_waits_for_its_imported_volume() -> Result<()> {
    let scenario = Scenario::open("import-late").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    scenario.create("rpc", spec_with_import()).await?;
    let kind = ConditionType::ImportPvcReady;
    let waits = |status: &_| condition_text(status, kind).starts_with("False/PVCNotReady");
    let status = scenario.until("rpc", "it is reported as not ready", waits).await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    create_claim(&scenario, "ReadWriteOnce").await?;
    scenario.settled("rpc").await?;
    assert!(condition_text(&scenario.status("rpc").await?, kind).starts_with("True/PVCValidated"));
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    assert!(condition_text(&scenario.status("rpc").await?, kind).starts_with("True/PVCValidated"));
    scenario.close().await
}

// N22
#[tokio::test]
async fn an_unsuitable_imported_volume_fails_the_node() -> Result<()> {
    let scenario = Scenario::open("import-bad").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    create_claim(&scenario, "ReadOnlyMany").await?;
    scenario.create("rpc", spec_with_import()).await?;
    let status =
        scenario.until("rpc", "it has failed", |status| status.phase == Some(SeiNodePhase::Failed));
    let status = status.await?;
    assert!(condition_text(&status, ConditionType::ImportPvcReady).starts_with("False/PVCInvalid"));
    let plan = status.plan.context("the failed plan is missing")?;
    assert_eq!(plan.phase, PlanPhase::Failed);
    let detail = plan.failed_task_detail.context("the failure has no detail")?;
    assert!(detail.error.contains("ReadWriteOnce"), "{}", detail.error);
    scenario.close().await
}

// N24, N25
#[tokio::test]
async fn an_init_plan_waits_for_its_signing_key_and_a_deletion_keeps_it() -> Result<()> {
    let scenario = Scenario::open("key-late").await?;
    scenario.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let kind = ConditionType::SigningKeyReady;
    let waits = |status: &_| condition_text(status, kind).starts_with("False/SigningKeyNotReady");
    let status = scenario.until("val", "it is reported as not ready", waits).await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert!(scenario.statefulsets().get_opt("val").await?.is_none());
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.settled("val").await?;
    assert!(
        condition_text(&scenario.status("val").await?, kind)
            .starts_with("True/SigningKeyValidated")
    );
    scenario.nodes().delete("val", &DeleteParams::default()).await?;
    scenario.until_deleted("val").await?;
    let secrets: Api<Secret> = Api::namespaced(scenario.admin(), scenario.namespace());
    for name in ["signing", "p2p"] {
        assert!(secrets.get(name).await?.metadata.deletion_timestamp.is_none());
    }
    scenario.close().await
}

// N24
#[tokio::test]
async fn a_malformed_signing_key_is_reported_and_starts_nothing() -> Result<()> {
    let scenario = Scenario::open("key-bad").await?;
    scenario
        .create_secret("signing", "priv_validator_key.json", &json!({ "address": "a" }))
        .await?;
    scenario.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let status = scenario
        .until("val", "its key is reported as invalid", |status| {
            condition_text(status, ConditionType::SigningKeyReady)
                .starts_with("False/SigningKeyInvalid")
        })
        .await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing), "it waits for a correction");
    assert!(scenario.statefulsets().get_opt("val").await?.is_none());
    scenario.close().await
}

// N27, N28, N29, N30, N31, N32, N33
#[tokio::test]
async fn peers_are_found_by_their_labels() -> Result<()> {
    let mut scenario = Scenario::open("peers").await?;
    for name in ["b", "a"] {
        scenario.run(name, rpc("seid:v1")).await?;
        scenario.edit(name, json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    }
    let mut spec = rpc("seid:v1");
    let label = json!({ "label": { "selector": { "tier": "rpc" } } });
    spec["peers"] = json!([label, label]);
    scenario.run("c", spec).await?;
    scenario.edit("c", json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    let is_complete = |peers: &[String]| {
        let hosts: Vec<_> = peers.iter().filter_map(|peer| peer.split_once('@')).collect();
        let names = hosts.iter().filter_map(|(_, host)| host.split(['.', '-']).next());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names == ["a", "b"] && hosts.iter().all(|(id, _)| id.len() == 40)
    };
    let found = scenario.until("c", "both peers are resolved", |status| {
        status.resolved_peers.as_deref().is_some_and(is_complete)
    });
    let peers = found.await?.resolved_peers.unwrap_or_default();
    assert!(peers.is_sorted(), "{peers:?}");

    // Resolving the same peers again writes nothing. The last status fields of a running node are
    // written one reconcile after its plan has ended, so wait for them first.
    scenario.settled("c").await?;
    scenario.until_pod("c", "it is ready", |pod| pod.ready).await?;
    scenario
        .until("c", "its status is complete", |status| {
            status.endpoint.is_some()
                && condition_text(status, ConditionType::SidecarReady).starts_with("True")
        })
        .await?;
    scenario.operator.take().context("no operator runs")?.stop().await?;
    let before = scenario.node("c").await?.metadata.resource_version;
    scenario.start_operator(Setup::default().speed).await?;
    let mut spec = rpc("seid:v1");
    spec["peers"] = json!([{ "static": { "addresses": ["id@host:26656"] } }]);
    scenario.run("d", spec).await?;
    assert_eq!(scenario.node("c").await?.metadata.resource_version, before);
    let resolved =
        scenario.until("d", "its peer is resolved", |status| status.resolved_peers.is_some());
    assert_eq!(resolved.await?.resolved_peers, Some(vec!["id@host:26656".to_owned()]));

    // A peer that does not answer keeps its entry, also with an operator that never reached it.
    scenario.kill_operator();
    scenario.set_node_behaviour("a", Behaviour::SidecarRefuses);
    scenario.start_operator(Setup::default().speed).await?;
    scenario.set_image("c", "seid:v2").await?;
    scenario.settled("c").await?;
    assert_eq!(scenario.status("c").await?.resolved_peers, Some(peers));

    // A peer's external address replaces its internal one.
    let external = "b.example.org:26656";
    scenario.edit("b", json!({ "spec": { "externalAddress": external } })).await?;
    scenario.set_image("c", "seid:v3").await?;
    scenario
        .until("c", "it uses the external address", |status| {
            let peers = status.resolved_peers.iter().flatten();
            peers.filter_map(|peer| peer.split_once('@')).any(|(_, host)| host == external)
        })
        .await?;
    scenario.close().await
}

/// A platform with another environment for sidecars.
fn other_environment() -> String {
    PLATFORM.replace("bucket: genesis,", "bucket: genesis-two,")
}

/// A platform that renders other templates.
fn other_platform() -> String {
    PLATFORM.replace("tolerationKey: example.org/chain", "tolerationKey: example.org/other")
}

// A1: the same image, another template.
#[tokio::test]
async fn a_template_changed_by_the_platform_reaches_the_pod_once() -> Result<()> {
    let mut scenario = Scenario::open("platform").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    let before = scenario.status("rpc").await?.pod_template_hash;
    let history = StatusHistory::of(&scenario, "rpc").await?;
    let setup = Setup { platform: other_environment(), ..Setup::default() };
    scenario.start_with(setup).await?;
    let changed = scenario.until("rpc", "another template hash is recorded", |status| {
        status.pod_template_hash != before && status.plan.is_none()
    });
    let status = changed.await?;
    assert!(condition_text(&status, ConditionType::PodTemplateDrift).starts_with("False/InSync"));
    let progress = |status: &SeiNodeStatus| {
        let condition = condition_text(status, ConditionType::NodeUpdateInProgress);
        condition.split(':').next().unwrap_or_default().to_owned()
    };
    history
        .first("the end of the update is recorded", |status| {
            progress(status) == "False/UpdateComplete"
        })
        .await?;
    let mut conditions: Vec<String> = history.all().await?.iter().map(progress).collect();
    conditions.dedup();
    assert_eq!(conditions, ["absent", "True/UpdateStarted", "False/UpdateComplete"]);
    scenario.settled("rpc").await?;
    let set = scenario.statefulsets().get("rpc").await?;
    let applied = set.metadata.annotations.unwrap_or_default();
    assert_eq!(status.pod_template_hash.as_ref(), applied.get("sei.io/template-hash"));
    let pod = serde_json::to_value(scenario.pods().get("rpc-0").await?)?.to_string();
    assert!(pod.contains("genesis-two"), "{pod}");
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

// A3: nodes without a recorded template.
#[tokio::test]
async fn a_pod_behind_its_template_is_adopted_and_reported_without_a_restart() -> Result<()> {
    let mut scenario = Scenario::open("adopted").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    scenario.kill_operator();
    scenario.wipe_status("rpc").await?;
    let setup = Setup { platform: other_platform(), ..Setup::default() };
    scenario.start_with(setup).await?;
    let status = scenario.until("rpc", "the difference is reported", |status| {
        condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/AdoptedWithDrift")
    });
    let drift = condition_text(&status.await?, ConditionType::PodTemplateDrift);
    assert!(drift.contains("tolerations"), "{drift}");
    assert_eq!(scenario.uid("rpc").await?, before);
    scenario.edit("rpc", json!({ "spec": { "podLabels": { "team": "core" } } })).await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}
