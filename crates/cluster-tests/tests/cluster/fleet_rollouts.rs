//! Rollouts of fleets that something disturbs: another fleet, an edit by hand, a deletion, a take-over,
//! and the commands of the plugin.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Parser as _;
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kubectl_sei::flags::Flags;
use kubectl_sei::{CommandContext, Exit, run};
use sei_api::fleet::{FleetPhase, NodeState};
use sei_rig::{Behaviour, Lane, User};
use serde_json::{Value, json};

use crate::fleets::{
    condition, create, edit, edit_fleet, fleets, image, manifest, nodes, until, until_ready,
};

use crate::process::{allow_leader_election, holder, program, start_as};

/// The most nodes that were down at once: all, and those of fleet `edge`.
struct Watched {
    stop: tokio::sync::watch::Sender<bool>,
    task: tokio::task::JoinHandle<Result<(usize, usize)>>,
}

impl Watched {
    fn start(scenario: &Scenario, of: usize) -> Self {
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let (pods, nodes) = (scenario.pods(), scenario.nodes());
        let task = tokio::spawn(async move {
            let mut most = (0, 0);
            while !*stopped.borrow_and_update() {
                let listed = pods.list(&ListParams::default()).await?;
                let ready: BTreeSet<String> = listed
                    .iter()
                    .filter(|pod| pod.metadata.deletion_timestamp.is_none())
                    .filter(|pod| sei_plan::view::PodView::from(*pod).ready)
                    .map(ResourceExt::name_any)
                    .collect();
                let listed = nodes.list(&ListParams::default()).await?;
                // A node that got the template counts, even before its pod is deleted.
                let moving = listed.iter().filter(|node| {
                    let current = node.status.as_ref().and_then(|it| it.current_image.as_ref());
                    node.name_any().starts_with("edge-") && current != Some(&node.spec.image)
                });
                most = (most.0.max(of - ready.len().min(of)), most.1.max(moving.count()));
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            anyhow::Ok(most)
        });
        Self { stop, task }
    }

    async fn end(self) -> Result<(usize, usize)> {
        self.stop.send_replace(true);
        self.task.await?
    }
}

#[tokio::test]
async fn two_fleets_of_one_chain_share_its_budget_and_keep_their_own_limits() -> Result<()> {
    let scenario = Scenario::open("fleet-two").await?;
    create(&scenario, manifest(4, &json!({ "maxUnavailable": 1 }))).await?;
    let mut core = manifest(4, &json!({ "maxUnavailable": "100%" }));
    core["metadata"]["name"] = json!("core");
    create(&scenario, core).await?;
    until_ready(&scenario, 4).await?;
    for ordinal in 0..4 {
        scenario.settled(&format!("core-{ordinal}")).await?;
    }
    let watched = Watched::start(&scenario, 8);
    for fleet in ["edge", "core"] {
        edit_fleet(&scenario, fleet, image("seid:v2")).await?;
    }
    for (name, _) in nodes(&scenario).await? {
        let runs = scenario.until(&name, "runs the new image", |status| {
            status.current_image.as_deref() == Some("seid:v2")
        });
        runs.await?;
        scenario.settled(&name).await?;
    }
    until_ready(&scenario, 4).await?;
    let (down, of_edge) = watched.end().await?;
    // The platform allows a quarter of a chain's nodes.
    assert!(down <= 2, "{down} nodes of the chain were down at once");
    assert_eq!(of_edge, 1, "the limit of the fleet");
    for (name, _) in nodes(&scenario).await? {
        assert_eq!(scenario.pods_seen(&name).await?, 2, "{name} was replaced once");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_node_edited_deleted_or_stopped_during_a_rollout_ends_on_the_template() -> Result<()> {
    let scenario = Scenario::open("fleet-edited").await?;
    create(&scenario, manifest(4, &json!({ "maxUnavailable": 1 }))).await?;
    until_ready(&scenario, 4).await?;
    // The first node holds the rollout, so that the others are disturbed in the middle of it.
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": true } } })).await?;
    edit(&scenario, image("seid:v2")).await?;
    let held = until(&scenario, "the rollout waits for edge-0", |status| {
        status.nodes.iter().any(|node| {
            node.name == "edge-0"
                && node.state == Some(NodeState::Updating)
                && node.message.is_some()
        })
    })
    .await?;
    assert!(condition(&held, "RolloutInProgress").contains("in progress: edge-0"));
    let deleted = scenario.node("edge-1").await?.uid();
    scenario.nodes().delete("edge-1", &DeleteParams::default()).await?;
    scenario.set_image("edge-2", "seid:other").await?;
    scenario.edit("edge-3", json!({ "spec": { "paused": true } })).await?;
    let recreated = async || {
        let node = scenario.nodes().get_opt("edge-1").await?;
        Ok(node.filter(|node| node.uid() != deleted))
    };
    let recreated = wait_for("edge-1 is created again", recreated).await?;
    assert_eq!(recreated.spec.image, "seid:v2", "a new node gets the current template");
    let started = async || {
        let node = scenario.node("edge-3").await?;
        Ok((!node.spec.is_paused()).then_some(()))
    };
    wait_for("edge-3 is started again", started).await?;
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": null } } })).await?;
    until(&scenario, "the rollout is complete", |status| {
        status.rollout.is_none() && condition(status, "Ready").starts_with("True")
    })
    .await?;
    for (name, node) in nodes(&scenario).await? {
        assert_eq!(node.spec.image, "seid:v2", "{name}");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_fleet_scaled_during_a_rollout_ends_on_the_template() -> Result<()> {
    let scenario = Scenario::open("fleet-scaled").await?;
    create(&scenario, manifest(4, &json!({ "maxUnavailable": 1 }))).await?;
    until_ready(&scenario, 4).await?;
    let images = async || -> Result<Vec<String>> {
        Ok(nodes(&scenario).await?.into_values().map(|node| node.spec.image).collect())
    };
    // The first node holds the rollout, so that the fleet is scaled in the middle of it.
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": true } } })).await?;
    edit(&scenario, image("seid:v2")).await?;
    until(&scenario, "edge-0 has the template", |status| {
        status.nodes.iter().any(|node| node.state == Some(NodeState::Updating))
    })
    .await?;
    edit(&scenario, json!({ "replicas": 6 })).await?;
    for added in ["edge-4", "edge-5"] {
        let created = async || Ok(scenario.nodes().get_opt(added).await?);
        let created = wait_for(&format!("{added} is created"), created).await?;
        assert_eq!(created.spec.image, "seid:v2", "a new node gets the current template");
    }
    assert_eq!(images().await?[1..4], ["seid:v1"; 3], "the limit is taken by edge-0");
    edit(&scenario, json!({ "replicas": 2 })).await?;
    for removed in ["edge-5", "edge-4", "edge-3", "edge-2"] {
        scenario.until_deleted(removed).await?;
    }
    assert_eq!(images().await?, ["seid:v2", "seid:v1"], "scaling releases no node");
    scenario.edit("edge-0", json!({ "spec": { "update": { "paused": null } } })).await?;
    until_ready(&scenario, 2).await?;
    assert_eq!(images().await?, ["seid:v2"; 2]);
    scenario.close().await
}

/// The leader is killed while the limit of a rollout is taken; another process takes its lease.
#[tokio::test]
async fn a_leader_change_during_a_batch_keeps_the_limit() -> Result<()> {
    let lane = Arc::new(Lane::start(cluster_tests::boot().await?)?);
    allow_leader_election(lane.plane()).await?;
    let program = program()?;
    let context = cluster_tests::test_context_on(lane.clone(), "fleet-leader").await?;
    let scenario = Scenario::open_on(context);
    let leader = start_as(User::Operator, &program, lane.plane(), "first")?;
    let leads =
        async |name: &str| Ok((holder(lane.plane()).await?.as_deref() == Some(name)).then_some(()));
    wait_for("the first process leads", async || leads("first").await).await?;
    // The limit of the fleet alone: the budget of the chain would allow one node.
    let mut fleet = manifest(4, &json!({ "maxUnavailable": 2 }));
    fleet["spec"]["template"]["spec"]["update"] = json!({ "onImageChange": "AtOnce" });
    create(&scenario, fleet).await?;
    until_ready(&scenario, 4).await?;
    let _next = start_as(User::Operator, &program, lane.plane(), "second")?;
    let watched = Watched::start(&scenario, 4);
    for node in ["edge-0", "edge-1"] {
        scenario.sidecars().hold(scenario.namespace(), node, "mark-ready");
    }
    edit(&scenario, image("seid:v2")).await?;
    for node in ["edge-0", "edge-1"] {
        scenario.until_submitted(node, "mark-ready", 1).await?;
    }
    drop(leader);
    wait_for("the second process leads", async || leads("second").await).await?;
    // A template on which no node may end, and the last one.
    edit(&scenario, image("seid:v3")).await?;
    let observed = until(&scenario, "the new leader has seen the template", |status| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|rollout| rollout.batch.len() == 2)
            && condition(status, "RolloutInProgress").contains("0 of 4 nodes are updated")
    });
    observed.await?;
    for node in ["edge-0", "edge-1"] {
        scenario.sidecars().release(scenario.namespace(), node, "mark-ready");
    }
    until(&scenario, "the last template is on every node", |status| {
        status.rollout.is_none()
            && status.nodes.iter().all(|node| node.current_image.as_deref() == Some("seid:v3"))
    })
    .await?;
    let (_, moving) = watched.end().await?;
    assert_eq!(moving, 2, "the limit of the fleet");
    for node in ["edge-2", "edge-3"] {
        assert_eq!(scenario.pods_seen(node).await?, 2, "{node} was replaced once");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_fleet_deleted_during_a_rollout_retains_its_nodes_as_they_are() -> Result<()> {
    let scenario = Scenario::open("fleet-retain-mid").await?;
    create(&scenario, manifest(3, &json!({ "maxUnavailable": 1 }))).await?;
    until_ready(&scenario, 3).await?;
    let bad = scenario.set_image_behaviour("seid:v2", Behaviour::CrashesAtOnce);
    let mut change = image("seid:v2");
    change["deletionPolicy"] = json!("Retain");
    edit(&scenario, change).await?;
    until(&scenario, "edge-0 has the template", |status| {
        status.nodes.iter().any(|node| node.released_at.is_some())
    })
    .await?;
    fleets(&scenario).delete("edge", &DeleteParams::default()).await?;
    let deleted = async || Ok(fleets(&scenario).get_opt("edge").await?.is_none().then_some(()));
    wait_for("the fleet is deleted", deleted).await?;
    let images: Vec<String> =
        nodes(&scenario).await?.into_values().map(|node| node.spec.image).collect();
    assert_eq!(images, ["seid:v2", "seid:v1", "seid:v1"], "no node gets the template any more");
    for (name, node) in nodes(&scenario).await? {
        assert!(node.owner_references().is_empty(), "{name} has no owner");
        assert!(node.metadata.deletion_timestamp.is_none(), "{name} stays");
    }
    // The next fleet of this name takes them back and completes the rollout.
    scenario.lift(bad);
    let mut next = manifest(3, &json!({ "maxUnavailable": 1 }));
    next["spec"]["template"]["spec"]["image"] = json!("seid:v2");
    create(&scenario, next).await?;
    until_ready(&scenario, 3).await?;
    for node in ["edge-1", "edge-2"] {
        assert_eq!(scenario.pods_seen(node).await?, 2, "{node} was replaced once");
    }
    scenario.close().await
}

/// What the Go operator of June 2026 leaves behind: no annotations of ours, a revision of its own, its
/// own hash of the images, and a template whose settings it never passed on.
async fn as_the_go_operator_leaves_it(scenario: &Scenario) -> Result<()> {
    for (name, _) in nodes(scenario).await? {
        let annotations = json!({ "sei.io/fleet-template": null, "sei.io/fleet-metadata": null });
        let labels = json!({ "sei.io/revision": "7" });
        let metadata = json!({ "annotations": annotations, "labels": labels });
        scenario.edit(&name, json!({ "metadata": metadata })).await?;
    }
    edit(
        scenario,
        json!({ "template": { "spec": { "overrides": { "logging.level": "debug" } } } }),
    )
    .await?;
    let fleet = fleets(scenario).get("edge").await?;
    let status = fleet.status.clone().unwrap_or_default();
    let condition = |kind: &str, holds: &str, reason: &str| {
        json!({ "type": kind, "status": holds, "reason": reason, "message": "",
                "observedGeneration": fleet.metadata.generation,
                "lastTransitionTime": "2026-06-03T10:00:00Z" })
    };
    let nodes: Vec<Value> =
        status.nodes.iter().map(|node| json!({ "name": node.name, "phase": node.phase })).collect();
    let status = json!({
        "observedGeneration": fleet.metadata.generation,
        "templateHash": "0123456789abcdef",
        "phase": "Ready",
        "replicas": 2,
        "readyReplicas": 2,
        "nodes": nodes,
        "incumbentNodes": ["edge-1", "edge-0"],
        "updatedReplicas": null,
        "adoptedTemplate": null,
        "perPodServices": null,
        "endpoints": null,
        "conditions": [
            condition("NodesReady", "True", "AllNodesReady"),
            condition("NetworkingReady", "False", "NetworkingDisabled"),
            condition("GenesisCeremonyComplete", "False", "NotApplicable"),
            condition("PlanInProgress", "False", "PlanComplete"),
            condition("RolloutInProgress", "False", "RolloutComplete"),
            condition("Paused", "False", "NotPaused"),
        ],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    fleets(scenario).patch_status("edge", &PatchParams::default(), &patch).await?;
    Ok(())
}

#[tokio::test]
async fn a_fleet_of_the_go_operator_is_taken_over_without_a_restart() -> Result<()> {
    let mut scenario = Scenario::open("fleet-takeover").await?;
    create(&scenario, manifest(2, &Value::Null)).await?;
    until_ready(&scenario, 2).await?;
    scenario.kill_operator();
    as_the_go_operator_leaves_it(&scenario).await?;
    scenario.start_operator(10).await?;
    let status = until_ready(&scenario, 2).await?;
    assert!(status.adopted_template.is_some());
    assert_eq!(status.rollout, None);
    for (name, node) in nodes(&scenario).await? {
        assert_eq!(scenario.pods_seen(&name).await?, 1, "{name} never restarted");
        assert_eq!(node.spec.overrides, None, "{name} is left as it is");
        assert_eq!(node.metadata.generation, Some(1), "{name} is not changed");
    }
    edit(&scenario, image("seid:v2")).await?;
    until(&scenario, "the next template brings everything", |status| {
        status.rollout.is_none() && status.adopted_template.is_none()
    })
    .await?;
    for (name, node) in nodes(&scenario).await? {
        let overrides = node.spec.overrides.unwrap_or_default();
        assert_eq!(overrides.get("logging.level").map(String::as_str), Some("debug"), "{name}");
        assert_eq!(scenario.pods_seen(&name).await?, 2, "{name} was replaced once");
    }
    scenario.close().await
}

/// Runs the plugin in the scenario's namespace.
async fn sei(scenario: &Scenario, line: &str) -> Result<(String, Exit)> {
    let context = CommandContext {
        client: Some(scenario.admin()),
        namespace: scenario.namespace().to_owned(),
        ..CommandContext::default()
    };
    let flags = Flags::try_parse_from(std::iter::once("kubectl-sei").chain(line.split(' ')))?;
    let mut out = Vec::new();
    let exit = run(&flags, &context, &mut out).await?;
    Ok((String::from_utf8(out)?, exit))
}

#[tokio::test]
async fn the_plugin_previews_watches_holds_and_undoes_a_rollout() -> Result<()> {
    let scenario = Scenario::open("fleet-plugin").await?;
    let limits = json!({ "maxUnavailable": 1, "canary": { "replicas": 1 } });
    let mut old = manifest(3, &limits);
    old["spec"]["template"]["metadata"]["annotations"] = json!({ "contact": "edge" });
    create(&scenario, old.clone()).await?;
    let (text, exit) = sei(&scenario, "rollout status edge --watch --timeout 90s").await?;
    assert_eq!(exit, Exit::Fine, "{text}");
    assert!(text.ends_with("/edge: complete, 3 of 3 nodes run the template\n"), "{text}");
    until_ready(&scenario, 3).await?;
    let template = fleets(&scenario).get("edge").await?.spec.template;

    let mut new = old.clone();
    new["spec"]["template"]["spec"]["image"] = json!("seid:bad");
    new["spec"]["template"]["metadata"] = json!({ "labels": { "team": "other" } });
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(serde_json::to_string(&new)?.as_bytes())?;
    let before = fleets(&scenario).get("edge").await?.metadata.resource_version;
    let (text, exit) = sei(&scenario, &format!("preview -f {}", file.path().display())).await?;
    assert_eq!(exit, Exit::WouldRoll, "{text}");
    for line in ["image: seid:v1 -> seid:bad", "1. edge-0 (canary)", "2. edge-1\n", "3. edge-2\n"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(fleets(&scenario).get("edge").await?.metadata.resource_version, before);

    scenario.set_image_behaviour("seid:bad", Behaviour::ImageUnpullable);
    edit(&scenario, json!({ "template": new["spec"]["template"].clone() })).await?;
    let (text, exit) = sei(&scenario, "rollout status snd/edge -w --timeout 90s").await?;
    assert_eq!(exit, Exit::NeedsAttention, "{text}");
    assert!(text.contains("halted, 0 of 3 nodes updated") && text.contains("edge-0"), "{text}");
    let (text, _) = sei(&scenario, "status snd/edge").await?;
    assert!(text.starts_with("FLEET   REPLICAS") && text.contains("Halted"), "{text}");
    assert!(text.contains("3 nodes"), "{text}");

    let (text, _) = sei(&scenario, "rollout pause edge").await?;
    assert!(text.contains("/edge: rollouts are paused. Every node keeps running"), "{text}");
    let (text, exit) = sei(&scenario, "rollout undo edge").await?;
    assert!(text.contains("with image seid:v1"), "{text}");
    assert_eq!(exit, Exit::Fine);
    assert_eq!(fleets(&scenario).get("edge").await?.spec.template, template);
    until(&scenario, "the rollout back is held", |status| {
        condition(status, "RolloutInProgress").starts_with("True/RolloutPaused")
    })
    .await?;
    sei(&scenario, "rollout resume edge").await?;
    let (text, exit) = sei(&scenario, "rollout status edge -w --timeout 90s").await?;
    assert_eq!(exit, Exit::Fine, "{text}");
    until_ready(&scenario, 3).await?;
    for node in ["edge-1", "edge-2"] {
        assert_eq!(scenario.pods_seen(node).await?, 1, "{node} was never touched");
    }
    // Now the template before is stored nowhere.
    let refused = sei(&scenario, "rollout undo edge").await.expect_err("nothing to undo");
    assert!(refused.to_string().contains("kubectl apply"), "{refused}");
    let refused = sei(&scenario, "set image edge-0 seid:v9").await.expect_err("the fleet sets it");
    assert!(refused.to_string().contains("SeiNodeDeployment edge"), "{refused}");
    let status = fleets(&scenario).get("edge").await?.status.unwrap_or_default();
    assert_eq!(status.phase, Some(FleetPhase::Ready));
    scenario.close().await
}
