//! The rig's kubelet and sidecars, without an operator: all other tests rely on them.

use std::time::Duration;

use anyhow::{Context as _, Result};
use cluster_tests::wait_for;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, DeleteParams, PostParams};
use sei_rig::{Behaviour, ClaimRule, Rule};
use serde_json::json;

use crate::unmanaged_node::*;

#[tokio::test]
async fn a_pod_is_not_ready_until_its_own_sidecar_runs_mark_ready() -> Result<()> {
    let node = node("held").await?;
    let pod = node.until_running().await?;
    assert_eq!(get(&pod, "/v0/healthz").await?, (503, String::new()));
    let seid = container(&pod, "seid").context("there is no seid container")?;
    assert_eq!((seid.started, seid.ready), (Some(false), false));
    assert!(seid.image_id.contains("@sha256:") && !is_ready(&pod));
    assert!(container(&pod, "seid-init").is_some_and(|container| {
        container.state.as_ref().is_some_and(|state| state.terminated.is_some())
    }));
    assert!(runs(&pod, "sei-sidecar") && runs(&pod, "kube-rbac-proxy"));

    assert_eq!(submit(&pod, FIRST, "mark-ready").await?, 201);
    let pod = node.pod("it is ready", is_ready).await?;
    assert_eq!(get(&pod, "/v0/healthz").await?, (200, String::new()));
    let seid = container(&pod, "seid").context("there is no seid container")?;
    assert_eq!((seid.started, seid.ready), (Some(true), true));
    for kind in ["PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"] {
        assert_eq!(condition(&pod, kind).as_deref(), Some("True"), "{kind}");
    }
    let openings = node.world.gate_openings("a");
    assert_eq!(openings.len(), 1);
    assert_eq!((openings[0].pod_uid.as_str(), openings[0].id.as_str()), (uid(&pod), FIRST));
    Ok(())
}

#[tokio::test]
async fn task_records_survive_the_pod_and_the_ready_flag_does_not() -> Result<()> {
    let node = node("replaced").await?;
    let first = node.ready().await?;
    node.world.evict("a-0").await?;
    let second =
        node.pod("another pod runs", |pod| uid(pod) != uid(&first) && runs(pod, "seid")).await?;
    assert_ne!(pod_ip(&first), pod_ip(&second));
    assert_eq!(task(&second, FIRST).await?["status"], "completed");
    // A completed task does not run again; the submission succeeds without an effect.
    assert_eq!(submit(&second, FIRST, "mark-ready").await?, 201);
    assert_eq!(get(&second, "/v0/healthz").await?.0, 503);
    assert_eq!(submit(&second, SECOND, "mark-ready").await?, 201);
    node.pod("it is ready", is_ready).await?;
    let submissions = node.world.submissions("a");
    let effects: Vec<bool> = submissions.iter().map(|submission| submission.has_effect).collect();
    assert_eq!(effects, [true, false, true]);
    Ok(())
}

#[tokio::test]
async fn task_records_are_lost_with_their_volume() -> Result<()> {
    let node = node("volume").await?;
    node.ready().await?;
    node.world.api::<StatefulSet>().delete("a", &DeleteParams::background()).await?;
    node.claims().delete("data-a", &DeleteParams::default()).await?;
    node.world.wait_deleted::<PersistentVolumeClaim>("data-a").await?;
    node.create().await?;
    let pod = node.until_running().await?;
    assert_eq!(
        get(&pod, &format!("/v0/tasks/{FIRST}")).await?,
        (404, "{\"error\":\"task not found\"}\n".to_owned())
    );
    Ok(())
}

#[tokio::test]
async fn a_sidecar_that_restarts_in_place_closes_the_gate_and_leaves_seid_running() -> Result<()> {
    let node = node("restart").await?;
    let before = node.ready().await?;
    node.world.restart_sidecar("a");
    let pod = node
        .pod("its restart is counted", |pod| {
            container(pod, "sei-sidecar").is_some_and(|sidecar| sidecar.restart_count == 1)
        })
        .await?;
    assert_eq!(uid(&pod), uid(&before));
    assert!(!is_ready(&pod));
    let seid = container(&pod, "seid").context("there is no seid container")?;
    assert_eq!((seid.started, seid.restart_count), (Some(true), 0));
    let health = async || Ok(get(&pod, "/v0/healthz").await.ok());
    assert_eq!(wait_for("it answers", health).await?.0, 503);
    assert_eq!(submit(&pod, SECOND, "mark-ready").await?, 201);
    node.pod("it is ready again", is_ready).await?;
    Ok(())
}

#[tokio::test]
async fn a_task_interrupted_with_its_pod_runs_again_in_the_next_pod() -> Result<()> {
    let node = node("resumed").await?;
    let (namespace, sidecars) = (node.world.namespace(), node.world.sidecars());
    sidecars.hold(namespace, "a", "configure-genesis");
    let first = node.until_running().await?;
    assert_eq!(submit(&first, FIRST, "configure-genesis").await?, 201);
    assert_eq!(task(&first, FIRST).await?["status"], "running");
    node.world.evict("a-0").await?;
    let second =
        node.pod("another pod runs", |pod| uid(pod) != uid(&first) && runs(pod, "seid")).await?;
    assert_eq!(task(&second, FIRST).await?["status"], "running");
    sidecars.release(namespace, "a", "configure-genesis");
    let record = wait_for("it ends", async || {
        let record = task(&second, FIRST).await?;
        Ok((record["status"] == "completed").then_some(record))
    })
    .await?;
    assert_eq!(record["run"], 1);
    Ok(())
}

#[tokio::test]
async fn a_failed_task_runs_again_under_its_id() -> Result<()> {
    let node = node("failed").await?;
    let (namespace, sidecars) = (node.world.namespace(), node.world.sidecars());
    sidecars.fail(namespace, "a", "config-validate", "config validation failed: {}");
    let pod = node.until_running().await?;
    let state = async |desired: &str| {
        wait_for("it ends", async || {
            let record = task(&pod, FIRST).await?;
            Ok((record["status"] == desired).then_some(record))
        })
        .await
    };
    submit(&pod, FIRST, "config-validate").await?;
    assert_eq!(state("failed").await?["error"], "config validation failed: {}");
    sidecars.release(namespace, "a", "config-validate");
    submit(&pod, FIRST, "config-validate").await?;
    assert_eq!(state("completed").await?["run"], 2);
    // Parameters are checked when the task runs.
    assert_eq!(submit(&pod, SECOND, "config-patch").await?, 201);
    wait_for("it fails", async || {
        Ok((task(&pod, SECOND).await?["status"] == "failed").then_some(()))
    })
    .await
}

#[tokio::test]
async fn an_image_that_cannot_be_pulled_starts_no_sidecar_until_it_can() -> Result<()> {
    let node = empty_node("pull").await?;
    let rule = Rule::new(Behaviour::ImageUnpullable).of_image("seid:v1");
    let rule = node.world.behave(rule);
    node.create().await?;
    let pod = node
        .pod("pulls are backed off", |pod| {
            waiting_reason(pod, "seid-init").as_deref() == Some("ImagePullBackOff")
        })
        .await?;
    assert_eq!(waiting_reason(&pod, "seid").as_deref(), Some("PodInitializing"));
    assert_eq!(container(&pod, "seid-init").map(|init| init.image_id.as_str()), Some(""));
    assert!(get(&pod, "/v0/healthz").await.is_err());
    node.world.lift(rule);
    node.ready().await?;
    Ok(())
}

#[tokio::test]
async fn a_crash_loop_is_reported_and_ends_with_its_cause() -> Result<()> {
    let node = empty_node("crash").await?;
    let rule = node.behave(Behaviour::Crashes);
    node.create().await?;
    let pod = node.until_running().await?;
    submit(&pod, FIRST, "mark-ready").await?;
    let pod = node
        .pod("it crashes again and again", |pod| {
            let restarts = container(pod, "seid").map_or(0, |seid| seid.restart_count);
            restarts > 1 && waiting_reason(pod, "seid").as_deref() == Some("CrashLoopBackOff")
        })
        .await?;
    let last =
        container(&pod, "seid").and_then(|seid| seid.last_state.as_ref()?.terminated.as_ref());
    assert_eq!(last.map(|state| state.exit_code), Some(1));
    assert!(!is_ready(&pod));
    node.world.lift(rule);
    // The ready flag belongs to the sidecar, which did not crash.
    node.pod("it is ready", is_ready).await?;
    Ok(())
}

#[tokio::test]
async fn a_halted_chain_runs_unready_and_resumes() -> Result<()> {
    let node = node("halted").await?;
    node.ready().await?;
    let rule = node.behave(Behaviour::Halted);
    let pod = node.pod("it is not ready", |pod| !is_ready(pod)).await?;
    assert!(runs(&pod, "seid") && container(&pod, "seid").is_some_and(|seid| !seid.ready));
    node.world.lift(rule);
    node.pod("it is ready", is_ready).await?;
    Ok(())
}

#[tokio::test]
async fn a_stuck_pod_stays_until_its_rule_is_lifted() -> Result<()> {
    let node = node("stuck").await?;
    let first = node.ready().await?;
    let rule = node.behave(Behaviour::StuckTerminating);
    node.world.evict("a-0").await?;
    // The sidecar of a stuck pod has ended long before.
    wait_for("its sidecar does not answer", async || {
        Ok(get(&first, "/v0/healthz").await.is_err().then_some(()))
    })
    .await?;
    let pod = node.world.api::<Pod>().get("a-0").await?;
    assert_eq!(uid(&pod), uid(&first));
    assert!(pod.metadata.deletion_timestamp.is_some());
    node.world.lift(rule);
    node.pod("another pod runs", |pod| uid(pod) != uid(&first) && runs(pod, "seid")).await?;
    Ok(())
}

#[tokio::test]
async fn a_pod_without_memory_or_volume_is_unschedulable() -> Result<()> {
    let node = empty_node("room").await?;
    let rule = node.behave(Behaviour::Unschedulable);
    node.create_statefulset().await?;
    let is_unschedulable = |pod: &Pod, text: &str| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|condition| {
            condition.reason.as_deref() == Some("Unschedulable")
                && condition.message.as_deref().is_some_and(|message| message.contains(text))
        })
    };
    node.pod("there is not enough memory", |pod| is_unschedulable(pod, "Insufficient memory"))
        .await?;
    node.world.lift(rule);
    node.pod("there is no claim", |pod| is_unschedulable(pod, "\"data-a\" not found")).await?;
    node.create_claim().await?;
    let pod = node.until_running().await?;
    assert_eq!(pod.spec.and_then(|spec| spec.node_name).as_deref(), Some("rig"));
    Ok(())
}

#[tokio::test]
async fn a_sidecar_can_hang_and_refuse() -> Result<()> {
    let node = node("mute").await?;
    let pod = node.ready().await?;
    let rule = node.behave(Behaviour::SidecarHangs);
    node.pod("it is not ready", |pod| !is_ready(pod)).await?;
    // The sidecar's server changes its behaviour shortly after the pod's condition.
    wait_for("it hangs", async || {
        let response = tokio::time::timeout(Duration::from_millis(200), get(&pod, "/v0/healthz"));
        Ok(response.await.is_err().then_some(()))
    })
    .await?;
    let refuses = node.behave(Behaviour::SidecarRefuses);
    wait_for("it refuses", async || {
        let response = tokio::time::timeout(Duration::from_millis(200), get(&pod, "/v0/healthz"));
        Ok(matches!(response.await, Ok(Err(_))).then_some(()))
    })
    .await?;
    node.world.lift(rule);
    node.world.lift(refuses);
    // The sidecar's process kept running, and so kept its ready flag.
    node.pod("it is ready", is_ready).await?;
    Ok(())
}

#[tokio::test]
async fn a_bootstrap_job_completes_once_its_gate_is_open() -> Result<()> {
    let node = empty_node("bootstrap").await?;
    node.create_claim().await?;
    let always = |name: &str| json!({ "name": name, "image": name, "restartPolicy": "Always" });
    let job = serde_json::from_value(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "a-bootstrap" },
        "spec": { "backoffLimit": 0, "template": {
            "metadata": { "labels": { "sei.io/node": "a", "sei.io/component": "bootstrap" } },
            "spec": {
                "restartPolicy": "Never",
                "initContainers": [always("sei-sidecar"), always("kube-rbac-proxy")],
                "containers": [{ "name": "seid", "image": "seid:v0" }],
                "volumes": [{ "name": "data",
                    "persistentVolumeClaim": { "claimName": "data-a" } }],
            },
        } },
    }))?;
    node.world.api::<Job>().create(&PostParams::default(), &job).await?;
    let pod = wait_for("its pod runs", async || {
        Ok(node.world.pods("a").await?.into_iter().find(|pod| runs(pod, "seid")))
    })
    .await?;
    // The pod of a Job has no probes.
    assert!(is_ready(&pod));
    assert_eq!(submit(&pod, FIRST, "mark-ready").await?, 201);
    let is_complete = |job: &Job| {
        let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Complete" && condition.status == "True")
    };
    node.world.wait("a", "a-bootstrap", "it is complete", is_complete).await?;
    Ok(())
}

#[tokio::test]
async fn claims_are_bound_to_a_volume_where_a_rule_requires_it() -> Result<()> {
    let node = empty_node("claims").await?;
    node.world.kubelet().treat_claims(node.world.namespace(), ClaimRule::BindToVolume);
    node.create_claim().await?;
    let is_bound = |claim: &PersistentVolumeClaim| {
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        phase == Some("Bound")
    };
    let claim = node.world.wait("a", "data-a", "it is bound", is_bound).await?;
    let capacity = claim.status.and_then(|status| status.capacity?.get("storage").cloned());
    assert_eq!(capacity.map(|storage| storage.0).as_deref(), Some("2Ti"));
    let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim has no volume")?;
    let volumes: Api<PersistentVolume> = Api::all(node.world.admin().clone());
    let capacity = volumes.get(&volume).await?.spec.and_then(|spec| spec.capacity);
    assert_eq!(
        capacity.and_then(|all| all.get("storage").cloned()).map(|storage| storage.0).as_deref(),
        Some("2Ti")
    );
    Ok(())
}

#[tokio::test]
async fn a_demanded_token_is_required_except_on_open_paths() -> Result<()> {
    let node = node("token").await?;
    let pod = node.until_running().await?;
    node.world.sidecars().demand_token(node.world.namespace(), Some("secret"));
    // This pod's proxy is configured without open paths.
    let (status, body) = get(&pod, "/v0/healthz").await?;
    assert_eq!((status, body.as_str()), (401, "Unauthorized\n"));
    Ok(())
}
