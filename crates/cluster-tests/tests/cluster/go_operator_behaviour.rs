//! Behaviour that people know from before, shown on real servers: what a node is made of, and what
//! becomes of one that lacks something.

use anyhow::{Context as _, Result};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Play, rpc, says, validator};
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
use crate::status_history::History;

fn mode(name: &str) -> Value {
    let found = modes().into_iter().find(|(one, _)| *one == name);
    found.map(|(_, spec)| spec).expect("there is such a mode")
}

/// The addresses of a node that serves.
fn addresses(play: &Play, node: &str) -> Endpoint {
    let at = |scheme: &str, port: u16| {
        Some(format!("{scheme}://{node}.{}.svc:{port}", play.scene.namespace))
    };
    Endpoint {
        evm_json_rpc: at("http", 8545),
        evm_ws: at("ws", 8546),
        tendermint_rpc: at("http", 26657),
        tendermint_rest: at("http", 1317),
    }
}

/// Where a node serves, as it says with the very word that it runs.
async fn endpoint(play: &Play, node: &str) -> Result<Endpoint> {
    play.status(node).await?.endpoint.context("a node that runs says where it serves")
}

// N2, N4, N6
#[tokio::test]
async fn a_validator_is_one_replica_behind_a_headless_service() -> Result<()> {
    let play = Play::open("objects-val").await?;
    play.validator_keys("signing", "p2p").await?;
    play.run("val", validator("seid:v1", "signing", "p2p")).await?;
    let sets: Vec<StatefulSet> = play.statefulsets().list(&ListParams::default()).await?.items;
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].spec.replicas, Some(1));
    let template = sets[0].spec.template.spec.clone().context("has a spec")?;
    let init = template.init_containers.unwrap_or_default();
    let names: Vec<_> = init.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["seid-init", "sei-sidecar", "kube-rbac-proxy"]);
    let service = play.services().get("val").await?.spec.context("has a spec")?;
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(play.status("val").await?.endpoint, None);
    play.close().await
}

// N3, N5, N7, N9
#[tokio::test]
async fn a_full_node_has_a_volume_a_finalizer_and_an_endpoint() -> Result<()> {
    let play = Play::open("objects-rpc").await?;
    play.run("rpc", mode("restored")).await?;
    let finalizers = play.node("rpc").await?.metadata.finalizers.unwrap_or_default();
    assert!(finalizers.iter().any(|one| one == NODE_FINALIZER), "{finalizers:?}");
    let claim = play.claims().get("data-rpc").await?.spec.context("has a spec")?;
    assert_eq!(claim.access_modes, Some(vec!["ReadWriteOnce".to_owned()]));
    let endpoint = endpoint(&play, "rpc").await?;
    assert_eq!(endpoint, addresses(&play, "rpc"));
    let ports = play.services().get("rpc").await?.spec.context("has a spec")?.ports;
    let ports: Vec<i32> = ports.unwrap_or_default().iter().map(|one| one.port).collect();
    assert!(ports.contains(&8545), "{ports:?}");
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    assert_eq!(play.status("rpc").await?.endpoint, Some(endpoint));
    play.close().await
}

// N16, N17, N26
#[tokio::test]
async fn a_new_nodes_sidecar_gets_its_tasks_in_their_order() -> Result<()> {
    let play = Play::open("tasks").await?;
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
        play.run(name, mode(name)).await?;
        let all = play.sidecars().submissions(&play.scene.namespace, name);
        // What is asked once more because an answer was lost runs nothing.
        let all = all.iter().filter(|one| one.has_effect);
        let all: Vec<&str> = all.map(|one| one.task_type.as_str()).collect();
        assert_eq!(all, tasks, "{name}");
        if name == "replayer" {
            assert_eq!(play.status(name).await?.endpoint, None);
        } else {
            assert_eq!(endpoint(&play, name).await?, addresses(&play, name));
        }
    }
    play.close().await
}

// N12, N13
#[tokio::test]
async fn a_closed_gate_is_told_of_a_running_node_only() -> Result<()> {
    let play = Play::open("gate-told").await?;
    let namespace = play.scene.namespace.clone();
    play.sidecars().hold(&namespace, "rpc", "mark-ready");
    play.create("rpc", rpc("seid:v1")).await?;
    play.until_submitted("rpc", "mark-ready", 0).await?;
    let status = play.status("rpc").await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert_eq!(says(&status, ConditionType::SidecarReady), "absent");
    play.sidecars().release(&namespace, "rpc", "mark-ready");
    play.settled("rpc").await?;
    play.sidecars().hold(&namespace, "rpc", "mark-ready");
    play.scene.kubelet().restart_sidecar(&namespace, "rpc");
    play.until("rpc", "the gate is said to be closed", |status| {
        says(status, ConditionType::SidecarReady).starts_with("False/NotReady")
    })
    .await?;
    play.sidecars().release(&namespace, "rpc", "mark-ready");
    play.until("rpc", "the gate is said to be open", |status| {
        says(status, ConditionType::SidecarReady).starts_with("True")
    })
    .await?;
    play.close().await
}

// N18
#[tokio::test]
async fn a_restore_that_fails_fails_the_node_and_nothing_more_is_asked() -> Result<()> {
    let play = Play::open("restore-fails").await?;
    let namespace = play.scene.namespace.clone();
    play.sidecars().fail(&namespace, "rpc", "snapshot-restore", "no such bucket");
    play.create("rpc", mode("restored")).await?;
    let failed =
        |status: &sei_api::status::SeiNodeStatus| status.phase == Some(SeiNodePhase::Failed);
    let status = play.until("rpc", "it has failed", failed).await?;
    let kept = status.plan.context("the plan is kept")?;
    assert_eq!(kept.phase, PlanPhase::Failed);
    let detail = kept.failed_task_detail.context("it says why")?;
    assert_eq!(
        (detail.r#type.as_str(), detail.error.as_str()),
        ("snapshot-restore", "no such bucket")
    );
    let before = play.sidecars().submissions(&namespace, "rpc").len();
    play.sidecars().release(&namespace, "rpc", "snapshot-restore");
    // Somebody looks closely, and it is looked at again.
    play.evict("rpc").await?;
    play.run("other", rpc("seid:v1")).await?;
    assert_eq!(play.status("rpc").await?.phase, Some(SeiNodePhase::Failed));
    assert_eq!(play.sidecars().submissions(&namespace, "rpc").len(), before);
    play.edit("rpc", json!({ "metadata": { "annotations": { "sei.io/retry": "1" } } })).await?;
    play.settled("rpc").await?;
    play.close().await
}

async fn make_claim(play: &Play, mode: &str) -> Result<()> {
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": { "name": "kept" },
        "spec": { "accessModes": [mode], "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    play.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

fn importing() -> Value {
    let mut spec = rpc("seid:v1");
    spec["dataVolume"] = json!({ "import": { "pvcName": "kept" } });
    spec
}

// N20, N21
#[tokio::test]
async fn an_imported_volume_is_waited_for() -> Result<()> {
    let play = Play::open("import-late").await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    play.create("rpc", importing()).await?;
    let kind = ConditionType::ImportPvcReady;
    let waits = |status: &_| says(status, kind).starts_with("False/PVCNotReady");
    let status = play.until("rpc", "it is waited for", waits).await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    make_claim(&play, "ReadWriteOnce").await?;
    play.settled("rpc").await?;
    assert!(says(&play.status("rpc").await?, kind).starts_with("True/PVCValidated"));
    play.set_image("rpc", "seid:v2").await?;
    play.settled("rpc").await?;
    assert!(says(&play.status("rpc").await?, kind).starts_with("True/PVCValidated"));
    play.close().await
}

// N22
#[tokio::test]
async fn an_imported_volume_that_cannot_do_fails_the_node() -> Result<()> {
    let play = Play::open("import-bad").await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    make_claim(&play, "ReadOnlyMany").await?;
    play.create("rpc", importing()).await?;
    let status =
        play.until("rpc", "it has failed", |status| status.phase == Some(SeiNodePhase::Failed));
    let status = status.await?;
    assert!(says(&status, ConditionType::ImportPvcReady).starts_with("False/PVCInvalid"));
    let kept = status.plan.context("the plan is kept")?;
    assert_eq!(kept.phase, PlanPhase::Failed);
    let detail = kept.failed_task_detail.context("it says why")?;
    assert!(detail.error.contains("ReadWriteOnce"), "{}", detail.error);
    play.close().await
}

// N24, N25
#[tokio::test]
async fn a_signing_key_is_waited_for_and_outlives_its_node() -> Result<()> {
    let play = Play::open("key-late").await?;
    play.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let kind = ConditionType::SigningKeyReady;
    let waits = |status: &_| says(status, kind).starts_with("False/SigningKeyNotReady");
    let status = play.until("val", "it is waited for", waits).await?;
    assert_eq!(status.phase, Some(SeiNodePhase::Initializing));
    assert!(play.statefulsets().get_opt("val").await?.is_none());
    play.validator_keys("signing", "p2p").await?;
    play.settled("val").await?;
    assert!(says(&play.status("val").await?, kind).starts_with("True/SigningKeyValidated"));
    play.nodes().delete("val", &DeleteParams::default()).await?;
    play.until_gone("val").await?;
    let secrets: Api<Secret> = Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    for name in ["signing", "p2p"] {
        assert!(secrets.get(name).await?.metadata.deletion_timestamp.is_none());
    }
    play.close().await
}

// N24
#[tokio::test]
async fn a_signing_key_of_the_wrong_shape_fails_the_node() -> Result<()> {
    let play = Play::open("key-bad").await?;
    play.secret("signing", "priv_validator_key.json", &json!({ "address": "a" })).await?;
    play.create("val", validator("seid:v1", "signing", "p2p")).await?;
    let status =
        play.until("val", "it has failed", |status| status.phase == Some(SeiNodePhase::Failed));
    let told = says(&status.await?, ConditionType::SigningKeyReady);
    assert!(told.starts_with("False/SigningKeyInvalid"), "{told}");
    assert!(play.statefulsets().get_opt("val").await?.is_none());
    play.close().await
}

// N27, N28, N29, N30, N31, N32, N33
#[tokio::test]
async fn peers_are_found_by_their_labels() -> Result<()> {
    let mut play = Play::open("peers").await?;
    for name in ["b", "a"] {
        play.run(name, rpc("seid:v1")).await?;
        play.edit(name, json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    }
    let mut spec = rpc("seid:v1");
    let label = json!({ "label": { "selector": { "tier": "rpc" } } });
    spec["peers"] = json!([label, label]);
    play.run("c", spec).await?;
    play.edit("c", json!({ "metadata": { "labels": { "tier": "rpc" } } })).await?;
    let is_whole = |peers: &[String]| {
        let hosts: Vec<_> = peers.iter().filter_map(|one| one.split_once('@')).collect();
        let names = hosts.iter().filter_map(|(_, host)| host.split(['.', '-']).next());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        names == ["a", "b"] && hosts.iter().all(|(id, _)| id.len() == 40)
    };
    let found = play.until("c", "both peers are found", |status| {
        status.resolved_peers.as_deref().is_some_and(is_whole)
    });
    let peers = found.await?.resolved_peers.unwrap_or_default();
    assert!(peers.is_sorted(), "{peers:?}");

    // Found again, they are no news. What comes a look later than rest is told before.
    play.settled("c").await?;
    play.until_pod("c", "it is ready", |pod| pod.ready).await?;
    play.until("c", "all is told", |status| {
        status.endpoint.is_some() && says(status, ConditionType::SidecarReady).starts_with("True")
    })
    .await?;
    play.operator.take().context("an operator runs")?.stop().await?;
    let before = play.node("c").await?.metadata.resource_version;
    play.start_operator(Setup::default().speed).await?;
    let mut spec = rpc("seid:v1");
    spec["peers"] = json!([{ "static": { "addresses": ["id@host:26656"] } }]);
    play.run("d", spec).await?;
    assert_eq!(play.node("c").await?.metadata.resource_version, before);
    let told = play.until("d", "its peer is told", |status| status.resolved_peers.is_some());
    assert_eq!(told.await?.resolved_peers, Some(vec!["id@host:26656".to_owned()]));

    // A peer that says nothing keeps its entry, also with who never heard it.
    play.kill_operator();
    play.node_is("a", Behaviour::SidecarRefuses);
    play.start_operator(Setup::default().speed).await?;
    play.set_image("c", "seid:v2").await?;
    play.settled("c").await?;
    assert_eq!(play.status("c").await?.resolved_peers, Some(peers));

    // Where others see a peer from outside, that is where it is.
    let outside = "b.example.org:26656";
    play.edit("b", json!({ "spec": { "externalAddress": outside } })).await?;
    play.set_image("c", "seid:v3").await?;
    play.until("c", "it goes there", |status| {
        let peers = status.resolved_peers.iter().flatten();
        peers.filter_map(|one| one.split_once('@')).any(|(_, host)| host == outside)
    })
    .await?;
    play.close().await
}

/// A platform under which the environment of sidecars is another.
fn other_environment() -> String {
    PLATFORM.replace("bucket: genesis,", "bucket: genesis-two,")
}

/// A platform under which templates are rendered otherwise.
fn other_platform() -> String {
    PLATFORM.replace("tolerationKey: example.org/chain", "tolerationKey: example.org/other")
}

// A1: the same image, another template.
#[tokio::test]
async fn a_template_that_the_platform_changed_reaches_the_pod_once() -> Result<()> {
    let mut play = Play::open("platform").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    play.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    let before = play.status("rpc").await?.pod_template_hash;
    let history = History::of(&play, "rpc").await?;
    let setup = Setup { platform: other_environment(), ..Setup::default() };
    play.start_with(setup).await?;
    let changed = play.until("rpc", "another template runs", |status| {
        status.pod_template_hash != before && status.plan.is_none()
    });
    let status = changed.await?;
    assert!(says(&status, ConditionType::PodTemplateDrift).starts_with("False/InSync"));
    let progress = |status: &SeiNodeStatus| {
        let told = says(status, ConditionType::NodeUpdateInProgress);
        told.split(':').next().unwrap_or_default().to_owned()
    };
    history.first("its end is stored", |one| progress(one) == "False/UpdateComplete").await?;
    let mut told: Vec<String> = history.all().await?.iter().map(progress).collect();
    told.dedup();
    assert_eq!(told, ["absent", "True/UpdateStarted", "False/UpdateComplete"]);
    play.settled("rpc").await?;
    let set = play.statefulsets().get("rpc").await?;
    let applied = set.metadata.annotations.unwrap_or_default();
    assert_eq!(status.pod_template_hash.as_ref(), applied.get("sei.io/template-hash"));
    let pod = serde_json::to_value(play.pods().get("rpc-0").await?)?.to_string();
    assert!(pod.contains("genesis-two"), "{pod}");
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}

// A3: nodes that nothing is known of.
#[tokio::test]
async fn a_pod_behind_its_template_is_adopted_and_told_and_not_restarted() -> Result<()> {
    let mut play = Play::open("adopted").await?;
    play.run("rpc", rpc("seid:v1")).await?;
    let before = play.uid("rpc").await?;
    play.kill_operator();
    play.wipe_status("rpc").await?;
    let setup = Setup { platform: other_platform(), ..Setup::default() };
    play.start_with(setup).await?;
    let told = play.until("rpc", "the difference is told", |status| {
        says(status, ConditionType::PodTemplateDrift).starts_with("True/AdoptedWithDrift")
    });
    let told = says(&told.await?, ConditionType::PodTemplateDrift);
    assert!(told.contains("tolerations"), "{told}");
    assert_eq!(play.uid("rpc").await?, before);
    play.edit("rpc", json!({ "spec": { "podLabels": { "team": "core" } } })).await?;
    play.settled("rpc").await?;
    assert_eq!(play.pods_seen("rpc").await?, 2);
    play.close().await
}
