//! Fleets: nodes from a template, scaling, rollouts, deletion, and what admission refuses.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, bail};
use cluster_tests::install::Shell;
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sei_api::fleet::FleetPhase;
use sei_api::{SeiNode, SeiNodeDeployment, SeiNodeDeploymentStatus};
use sei_rig::Behaviour;
use serde_json::{Value, json};

pub(crate) fn fleets(scenario: &Scenario) -> Api<SeiNodeDeployment> {
    Api::namespaced(scenario.admin(), scenario.namespace())
}

pub(crate) fn manifest(replicas: i32, strategy: &Value) -> Value {
    json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNodeDeployment",
        "metadata": { "name": "edge" },
        "spec": {
            "replicas": replicas,
            "updateStrategy": { "type": "InPlace", "inPlace": strategy },
            "template": {
                "metadata": { "labels": { "team": "edge" } },
                "spec": { "chainId": "fleet-1", "image": "seid:v1", "fullNode": {} },
            },
        },
    })
}

pub(crate) async fn create(scenario: &Scenario, manifest: Value) -> Result<()> {
    let fleet: SeiNodeDeployment = serde_json::from_value(manifest)?;
    fleets(scenario).create(&PostParams::default(), &fleet).await?;
    Ok(())
}

pub(crate) async fn edit(scenario: &Scenario, spec: Value) -> Result<()> {
    edit_fleet(scenario, "edge", spec).await
}

pub(crate) async fn edit_fleet(scenario: &Scenario, name: &str, spec: Value) -> Result<()> {
    let patch = Patch::Merge(json!({ "spec": spec }));
    fleets(scenario).patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

pub(crate) fn image(image: &str) -> Value {
    json!({ "template": { "spec": { "image": image } } })
}

pub(crate) fn condition(status: &SeiNodeDeploymentStatus, kind: &str) -> String {
    let found = status.conditions.iter().find(|condition| condition.type_ == kind);
    found.map_or_else(String::new, |found| {
        format!("{}/{} {}", found.status, found.reason, found.message)
    })
}

/// Waits until the fleet's status satisfies the predicate.
pub(crate) async fn until(
    scenario: &Scenario,
    claim: &str,
    holds: impl Fn(&SeiNodeDeploymentStatus) -> bool,
) -> Result<SeiNodeDeploymentStatus> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(90);
    loop {
        let fleet = fleets(scenario).get("edge").await?;
        let current = fleet.status.clone().unwrap_or_default();
        let observed =
            current.observed_generation == fleet.metadata.generation || current.rollout.is_some();
        if observed && holds(&current) {
            return Ok(current);
        }
        if tokio::time::Instant::now() > deadline {
            bail!("timed out waiting until {claim}:\n{}", serde_json::to_string_pretty(&fleet)?);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub(crate) async fn until_ready(
    scenario: &Scenario,
    nodes: usize,
) -> Result<SeiNodeDeploymentStatus> {
    until(scenario, &format!("{nodes} nodes are Ready"), |status| {
        condition(status, "Ready") == format!("True/AllNodesReady {nodes} nodes")
    })
    .await
}

pub(crate) async fn nodes(scenario: &Scenario) -> Result<BTreeMap<String, SeiNode>> {
    let nodes = scenario.nodes().list(&ListParams::default()).await?;
    Ok(nodes.items.into_iter().map(|node| (node.name_any(), node)).collect())
}

#[tokio::test]
async fn a_fleet_creates_scales_and_deletes_its_nodes() -> Result<()> {
    let scenario = Scenario::open("fleet-scale").await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    let status = until_ready(&scenario, 2).await?;
    assert_eq!(status.phase, Some(FleetPhase::Ready));
    let pod = scenario.pods().get("edge-0-0").await?;
    assert_eq!(pod.labels().get("team").map(String::as_str), Some("edge"));
    assert_eq!(pod.labels().get("sei.io/nodedeployment").map(String::as_str), Some("edge"));
    let service = scenario.services().get("edge-internal").await?;
    let selector = service.spec.and_then(|spec| spec.selector).unwrap_or_default();
    assert_eq!(selector, BTreeMap::from([("sei.io/nodedeployment".into(), "edge".into())]));

    edit(&scenario, json!({ "replicas": 3 })).await?;
    until_ready(&scenario, 3).await?;
    for node in ["edge-0", "edge-1"] {
        assert_eq!(scenario.pods_seen(node).await?, 1, "a change of replicas restarts no node");
    }
    edit(&scenario, json!({ "replicas": 1 })).await?;
    scenario.until_deleted("edge-2").await?;
    scenario.until_deleted("edge-1").await?;
    until_ready(&scenario, 1).await?;

    // A node that is deleted by hand comes back; a Service too.
    let before = scenario.node("edge-0").await?.uid();
    scenario.nodes().delete("edge-0", &DeleteParams::default()).await?;
    scenario.services().delete("edge-internal", &DeleteParams::default()).await?;
    let is_new = async || {
        let node = scenario.nodes().get_opt("edge-0").await?;
        Ok(node.filter(|node| node.uid() != before).map(drop))
    };
    wait_for("edge-0 is another node", is_new).await?;
    until_ready(&scenario, 1).await?;
    scenario.services().get("edge-internal").await?;

    fleets(&scenario).delete("edge", &DeleteParams::default()).await?;
    scenario.until_deleted("edge-0").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_template_reaches_every_node_and_a_revert_returns_them() -> Result<()> {
    let scenario = Scenario::open("fleet-image").await?;
    create(&scenario, manifest(3, &Value::Null)).await?;
    until_ready(&scenario, 3).await?;
    edit(&scenario, image("seid:v2")).await?;
    let rolling =
        until(&scenario, "the rollout is reported", |status| status.rollout.is_some()).await?;
    assert_eq!(rolling.phase, Some(FleetPhase::Upgrading));
    edit(&scenario, image("seid:v1")).await?;
    until_ready(&scenario, 3).await?;
    edit(&scenario, image("seid:v3")).await?;
    let status = until(&scenario, "the rollout is complete", |status| {
        status.rollout.is_none()
            && status.nodes.iter().all(|node| node.current_image.as_deref() == Some("seid:v3"))
    })
    .await?;
    assert!(condition(&status, "RolloutInProgress").starts_with("False/RolloutComplete"));
    // Settings of the template arrive too.
    edit(
        &scenario,
        json!({ "template": { "spec": { "overrides": { "logging.level": "debug" } } } }),
    )
    .await?;
    until(&scenario, "the setting is on every node", |status| {
        status.rollout.is_none() && status.updated_replicas == Some(3)
    })
    .await?;
    for (name, node) in nodes(&scenario).await? {
        let overrides = node.spec.overrides.unwrap_or_default();
        assert_eq!(overrides.get("logging.level").map(String::as_str), Some("debug"), "{name}");
    }
    let events = scenario.events("edge").await?;
    for reason in ["RolloutStarted", "RolloutComplete", "SeiNodeCreated"] {
        assert!(events.iter().any(|event| event.starts_with(reason)), "{reason}: {events:?}");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_bad_canary_halts_the_rollout_until_the_template_is_corrected() -> Result<()> {
    let mut scenario = Scenario::open("fleet-canary").await?;
    let limits = json!({
        "maxUnavailable": 2, "progressDeadlineSeconds": 15,
        "canary": { "replicas": 1, "bakeSeconds": 5 },
    });
    create(&scenario, manifest(4, &limits)).await?;
    until_ready(&scenario, 4).await?;
    scenario.set_image_behaviour("seid:bad", Behaviour::CrashesAtOnce);
    edit(&scenario, image("seid:bad")).await?;
    let halted = until(&scenario, "the rollout is halted", |status| {
        condition(status, "RolloutInProgress").starts_with("True/RolloutHalted")
    })
    .await?;
    assert!(condition(&halted, "RolloutInProgress").contains("edge-0"), "it names the node");
    for node in ["edge-1", "edge-2", "edge-3"] {
        assert_eq!(scenario.node(node).await?.spec.image, "seid:v1", "{node} is not touched");
    }
    // A new operator continues from what is stored.
    scenario.start_operator(10).await?;
    edit(&scenario, image("seid:v2")).await?;
    let status = until(&scenario, "the correction is on every node", |status| {
        status.rollout.is_none() && condition(status, "Ready").starts_with("True")
    })
    .await?;
    assert!(status.nodes.iter().all(|node| node.current_image.as_deref() == Some("seid:v2")));
    for node in ["edge-1", "edge-2", "edge-3"] {
        assert_eq!(scenario.pods_seen(node).await?, 2, "{node} was replaced once");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_paused_fleet_stops_and_starts_its_nodes() -> Result<()> {
    let scenario = Scenario::open("fleet-pause").await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    until_ready(&scenario, 2).await?;
    edit(&scenario, json!({ "paused": true })).await?;
    until(&scenario, "the fleet is paused", |status| status.phase == Some(FleetPhase::Paused))
        .await?;
    for node in ["edge-0-0", "edge-1-0"] {
        let pods = scenario.pods();
        let deleted = async || Ok(pods.get_opt(node).await?.is_none().then_some(()));
        wait_for(&format!("{node} is deleted"), deleted).await?;
    }
    edit(&scenario, json!({ "paused": false })).await?;
    until_ready(&scenario, 2).await?;
    scenario.close().await
}

#[tokio::test]
async fn a_retained_fleet_leaves_its_nodes_running_and_the_next_takes_them_back() -> Result<()> {
    let scenario = Scenario::open("fleet-retain").await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    until_ready(&scenario, 2).await?;
    edit(&scenario, json!({ "deletionPolicy": "Retain" })).await?;
    fleets(&scenario).delete("edge", &DeleteParams::default()).await?;
    let deleted = async || Ok(fleets(&scenario).get_opt("edge").await?.is_none().then_some(()));
    wait_for("the fleet is deleted", deleted).await?;
    for (name, node) in nodes(&scenario).await? {
        assert!(node.owner_references().is_empty(), "{name} has no owner");
        assert!(node.metadata.deletion_timestamp.is_none(), "{name} stays");
    }
    create(&scenario, manifest(2, &Value::Null)).await?;
    until_ready(&scenario, 2).await?;
    for node in ["edge-0", "edge-1"] {
        assert_eq!(scenario.pods_seen(node).await?, 1, "{node} never restarted");
        assert_eq!(scenario.node(node).await?.owner_references().len(), 1);
    }
    scenario.close().await
}

#[tokio::test]
async fn objects_of_others_are_left_alone_and_named() -> Result<()> {
    let scenario = Scenario::open("fleet-others").await?;
    let theirs = json!({ "chainId": "fleet-1", "image": "seid:theirs", "fullNode": {} });
    scenario.run("edge-1", theirs).await?;
    let service = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "edge-internal" },
        "spec": { "ports": [{ "port": 80 }] },
    }))?;
    scenario.services().create(&PostParams::default(), &service).await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    let status = until(&scenario, "the conflict is reported", |status| {
        condition(status, "Ready").starts_with("False/NodeConflict")
    })
    .await?;
    assert!(condition(&status, "Ready").contains("edge-1"));
    assert_eq!(scenario.node("edge-1").await?.spec.image, "seid:theirs");
    scenario.nodes().delete("edge-1", &DeleteParams::default()).await?;
    until(&scenario, "the other conflict is reported", |status| {
        condition(status, "Ready").starts_with("False/ServiceConflict Service edge-internal")
    })
    .await?;
    let service = scenario.services().get("edge-internal").await?;
    assert!(service.owner_references().is_empty(), "the Service is not taken over");
    scenario.close().await
}

/// Names of nodes have one fleet each, so two fleets meet at a node only if one was made its owner.
#[tokio::test]
async fn a_node_of_another_fleet_is_changed_by_neither() -> Result<()> {
    let scenario = Scenario::open("fleet-same-node").await?;
    let mut core = manifest(1, &Value::Null);
    core["metadata"]["name"] = json!("core");
    create(&scenario, core).await?;
    let created = async || Ok(scenario.nodes().get_opt("core-0").await?);
    let owner = wait_for("core-0 is created", created).await?.owner_references().to_vec();
    let node = serde_json::from_value(json!({
        "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
        "metadata": { "name": "edge-1", "ownerReferences": owner },
        "spec": { "chainId": "fleet-1", "image": "seid:theirs", "fullNode": {} },
    }))?;
    let made = scenario.nodes().create(&PostParams::default(), &node).await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    let status = until(&scenario, "the conflict is reported", |status| {
        condition(status, "Ready").starts_with("False/NodeConflict")
    })
    .await?;
    let conflict =
        "edge-1 is controlled by SeiNodeDeployment core; delete or rename it, or the fleet";
    assert!(condition(&status, "Ready").contains(conflict), "{status:?}");
    edit(&scenario, image("seid:v2")).await?;
    edit_fleet(&scenario, "core", image("seid:v2")).await?;
    for name in ["edge-0", "core-0"] {
        let runs = scenario.until(name, "runs the new image", |status| {
            status.current_image.as_deref() == Some("seid:v2")
        });
        runs.await?;
    }
    let node = scenario.node("edge-1").await?;
    assert_eq!((node.spec, node.metadata.generation), (made.spec, made.metadata.generation));
    assert_eq!(node.metadata.owner_references, made.metadata.owner_references);
    scenario.close().await
}

#[tokio::test]
async fn an_operator_killed_during_a_rollout_keeps_its_limit() -> Result<()> {
    let mut scenario = Scenario::open("fleet-crash").await?;
    create(&scenario, manifest(5, &json!({ "maxUnavailable": 1 }))).await?;
    until_ready(&scenario, 5).await?;
    edit(&scenario, image("seid:v2")).await?;
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let watched = {
        let api = scenario.nodes();
        tokio::spawn(async move {
            let mut most = 0;
            while !*stopped.borrow_and_update() {
                let nodes = api.list(&ListParams::default()).await?;
                let moving = nodes.items.iter().filter(|node| {
                    let current = node.status.as_ref().and_then(|it| it.current_image.clone());
                    current.as_deref() != Some(node.spec.image.as_str())
                });
                most = most.max(moving.count());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(most)
        })
    };
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(700)).await;
        scenario.start_operator(10).await?;
    }
    until(&scenario, "the rollout is complete", |status| {
        status.rollout.is_none() && status.updated_replicas == Some(5)
    })
    .await?;
    stop.send_replace(true);
    assert_eq!(watched.await??, 1, "one node at a time");
    for node in 0..5 {
        assert_eq!(scenario.pods_seen(&format!("edge-{node}")).await?, 2);
    }
    scenario.close().await
}

/// A change of a manifest.
type Change = fn(&mut Value);

#[tokio::test]
async fn the_server_refuses_fleets_that_cannot_work() -> Result<()> {
    let scenario = Scenario::open_without_operator("fleet-refused").await?;
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let with = |change: Change| {
        let mut fleet = manifest(2, &Value::Null);
        change(&mut fleet);
        fleet
    };
    let refused: [(&str, Change); 12] = [
        ("spec.replicas", |fleet| fleet["spec"]["replicas"] = json!(-1)),
        ("spec.replicas", |fleet| fleet["spec"]["replicas"] = json!(10_000)),
        ("maxUnavailable must be", |fleet| {
            fleet["spec"]["updateStrategy"]["inPlace"] = json!({ "maxUnavailable": 0 });
        }),
        ("maxUnavailable must be", |fleet| {
            fleet["spec"]["updateStrategy"]["inPlace"] = json!({ "maxUnavailable": "150%" });
        }),
        ("maxUnavailable must be", |fleet| {
            fleet["spec"]["updateStrategy"]["inPlace"] = json!({ "maxUnavailable": "some" });
        }),
        ("spec.replicas", |fleet| fleet["spec"]["replicas"] = json!(0)),
        ("more replicas than canaries", |fleet| {
            fleet["spec"]["updateStrategy"]["inPlace"] = json!({
                "health": { "requireSameAppHash": true }, "canary": { "replicas": 2 },
            });
        }),
        ("more replicas than canaries", |fleet| {
            fleet["spec"]["replicas"] = json!(1);
            fleet["spec"]["updateStrategy"]["inPlace"] =
                json!({ "health": { "requireSameAppHash": true } });
        }),
        ("at most 49 characters", |fleet| fleet["metadata"]["name"] = json!("n".repeat(50))),
        ("replicas: 1", |fleet| {
            fleet["spec"]["template"]["spec"] = json!({
                "chainId": "c", "image": "i",
                "validator": { "signingKey": { "secret": { "secretName": "a" } },
                               "nodeKey": { "secret": { "secretName": "b" } } },
            });
        }),
        ("a claim has one user", |fleet| {
            fleet["spec"]["template"]["spec"]["dataVolume"] =
                json!({ "import": { "pvcName": "claim" } });
        }),
        ("genesis needs", |fleet| fleet["spec"]["genesis"] = json!({ "chainId": "c" })),
    ];
    for (message, change) in refused {
        let fleet = serde_json::from_value(with(change))?;
        let error = fleets(&scenario).create(&params, &fleet).await.expect_err(message);
        assert!(error.to_string().contains(message), "{message}: {error}");
    }
    create(&scenario, manifest(2, &Value::Null)).await?;
    let changes = [
        ("chainId is immutable", json!({ "template": { "spec": { "chainId": "other" } } })),
        ("mode", json!({ "template": { "spec": { "fullNode": null, "archive": {} } } })),
        ("genesis", json!({ "genesis": { "chainId": "c" } })),
    ];
    for (message, spec) in changes {
        let error = edit(&scenario, spec).await.expect_err(message);
        assert!(format!("{error:#}").contains(message), "{message}: {error:#}");
    }
    Ok(())
}

/// Manifests as users of the Go operator wrote them in June 2026.
const JUNE: &str = "
apiVersion: sei.io/v1alpha1
kind: SeiNodeDeployment
metadata:
  name: edge-rpc
  namespace: chain-demo
spec:
  replicas: 3
  updateStrategy:
    type: InPlace
  deletionPolicy: Delete
  networking:
    http: {}
    tcp: {}
  template:
    metadata:
      labels:
        team: edge
    spec:
      chainId: demo-7
      image: registry.example.net/seid:v6.5.0
      sidecar:
        image: registry.example.net/sidecar:v0.0.50
      peers:
        - label:
            namespace: chain-demo
            selector:
              sei.io/chain: demo-7
      overrides:
        evm.http_port: \"8545\"
      fullNode:
        snapshot:
          stateSync: {}
          trustPeriod: 168h0m0s
---
apiVersion: sei.io/v1alpha1
kind: SeiNodeDeployment
metadata:
  name: lab-validators
  namespace: chain-demo
spec:
  replicas: 4
  updateStrategy:
    type: InPlace
  genesis:
    chainId: lab-1
    stakingAmount: 25000000usei
    accounts:
      - address: sei1d3skyttyv4kk7ttpvd3k7atwwsknqvp3ch9vlr
        balance: 5000000usei
    overrides:
      gov.voting_params.voting_period: \"45s\"
  template:
    spec:
      chainId: lab-1
      image: registry.example.net/seid:v6.5.0
      validator: {}
";

#[tokio::test]
async fn manifests_of_the_go_operator_apply_unchanged_and_reach_ready() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("fleet-june").await?;
    let platform = PLATFORM.replace("demo-1", "demo-7");
    scenario.start_with(Setup { platform, ..Setup::default() }).await?;
    let namespace = scenario.namespace();
    let shell = Shell::on(scenario.plane())?;
    shell.run_with("kubectl apply -f -", &JUNE.replace("chain-demo", namespace))?;
    // Phase and condition, as scripts for the Go operator and for this one wait.
    for wait in ["jsonpath='{.status.phase}'=Ready", "condition=Ready"] {
        shell.run(&format!(
            "kubectl -n {namespace} wait snd/edge-rpc snd/lab-validators --for={wait} --timeout=90s"
        ))?;
    }
    let status = fleets(&scenario).get("edge-rpc").await?.status.unwrap_or_default();
    assert_eq!((status.replicas, status.ready_replicas), (Some(3), Some(3)));
    assert!(condition(&status, "NetworkingReady").starts_with("False/NotSupported"));
    let urls = status.endpoints.unwrap_or_default();
    let rpc = format!("http://edge-rpc-internal.{namespace}.svc:26657");
    assert_eq!(urls.tendermint_rpc.as_deref(), Some(rpc.as_str()));
    let lab = fleets(&scenario).get("lab-validators").await?;
    let status = lab.status.unwrap_or_default();
    assert!(condition(&status, "GenesisCeremonyComplete").starts_with("True/Complete"));
    let genesis = serde_json::to_value(lab.spec.genesis)?;
    assert_eq!(genesis["overrides"]["gov.voting_params.voting_period"], "45s", "kept");
    scenario.close().await
}
