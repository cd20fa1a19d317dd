//! Taking over a fleet from another operator: no pod restarts, and every difference is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::{boot, test_context_on, wait_for};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::StatefulSet;
use kube::api::{Patch, PatchParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt as _};
use sei_api::condition::ConditionType;
use sei_api::key::ObjectKey;
use sei_api::names::FIELD_MANAGER;
use sei_api::status::{Cause, SeiNodeStatus, UpdateState};
use sei_exec::sidecar::Sidecar;
use sei_exec::token::Tokens;
use sei_plan::desired::render_desired;
use sei_plan::platform::Platform;
use sei_plan::request::{SidecarCall, SidecarRequest};
use sei_plan::view::PodView;
use sei_rig::Lane;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The fields that only the other operator renders.
const DIFFERS: [&str; 5] = [
    "containers[seid].env[PEER_ONLY]",
    "containers[seid].workingDir",
    "hostAliases",
    "metadata.annotations[peer.example.org/revision]",
    "terminationGracePeriodSeconds",
];

fn fleet() -> Vec<String> {
    (0..10).map(|at| format!("rpc{at:02}")).chain(["val0".into(), "val1".into()]).collect()
}

/// Creates running nodes, and leaves them without an operator.
async fn create_running(scenario: &mut Scenario, names: &[String]) -> Result<()> {
    scenario.start_with(Setup { speed: 50, ..Setup::default() }).await?;
    for name in names {
        let spec = if name.starts_with("val") {
            let (signing, p2p) = (format!("{name}-signing"), format!("{name}-p2p"));
            scenario.create_validator_keys(&signing, &p2p).await?;
            validator("seid:v1", &signing, &p2p)
        } else {
            rpc("seid:v1")
        };
        scenario.create(name, spec).await?;
    }
    for name in names {
        scenario.settled(name).await?;
    }
    scenario.kill_operator();
    Ok(())
}

/// The StatefulSet as the other operator renders it.
async fn statefulset_of_other_operator(scenario: &Scenario, name: &str) -> Result<StatefulSet> {
    let platform = Platform::parse(PLATFORM, "platform.yaml")?;
    let node = scenario.node(name).await?;
    let mut set = render_desired(&node, &platform, &[], &[])?.statefulset.unpack();
    let metadata = set.spec.template.metadata.get_or_insert_default();
    let annotations = metadata.annotations.get_or_insert_default();
    annotations.insert("peer.example.org/revision".to_owned(), "7".to_owned());
    let mut pod =
        serde_json::to_value(set.spec.template.spec.take().context("the template has no spec")?)?;
    pod["terminationGracePeriodSeconds"] = json!(60);
    pod["hostAliases"] = json!([{ "ip": "10.0.0.9", "hostnames": ["peer"] }]);
    let containers = pod["containers"].as_array_mut().context("the pod has no containers")?;
    let seid = containers
        .iter_mut()
        .find(|container| container["name"] == "seid")
        .context("there is no seid container")?;
    seid["workingDir"] = json!("/peer");
    let env = seid["env"].as_array_mut().context("seid has no variables")?;
    env.push(json!({ "name": "PEER_ONLY", "value": "1" }));
    set.spec.template.spec = Some(serde_json::from_value(pod)?);
    Ok(set)
}

/// Gives a running node the state that the other operator leaves: its template, applied under the
/// shared field manager, a pod created from it, and its status.
async fn convert_to_other_operator(scenario: &Scenario, name: &str, foreign: bool) -> Result<()> {
    let apply = PatchParams::apply(FIELD_MANAGER).force();
    let set = statefulset_of_other_operator(scenario, name).await?;
    let mut changed = scenario.statefulsets().patch(name, &apply, &Patch::Apply(&set)).await?;
    if foreign {
        // A third party has changed the template too.
        let patch = json!({ "spec": { "template": {
            "metadata": { "annotations": { "mesh.example.org/inject": "yes" } },
            "spec": { "priority": null, "schedulerName": "custom-scheduler" },
        }}});
        let person = PatchParams { field_manager: Some("person".into()), ..PatchParams::default() };
        changed = scenario.statefulsets().patch(name, &person, &Patch::Strategic(&patch)).await?;
    }
    // Before that the controller would create the pod from the old template.
    wait_for("the controller has observed the template", async || {
        let status = scenario.statefulsets().get(name).await?.status.unwrap_or_default();
        Ok((status.observed_generation >= changed.metadata.generation).then_some(()))
    })
    .await?;
    let before = scenario.uid(name).await?;
    scenario.evict(name).await?;
    let pod = scenario
        .until_pod(name, "another pod runs", |pod| {
            pod.uid != before && pod.ip.is_some() && pod.sidecar.running
        })
        .await?;
    open_gate(&pod).await?;
    scenario.until_pod(name, "is Ready", |pod| pod.ready).await?;
    scenario.wipe_status(name).await?;
    let mut status = json!({
        "phase": "Running",
        "currentImage": "seid:v1",
        "currentSidecarImage": "registry.example.org/seictl:v1",
    });
    if name == "rpc01" {
        status["plan"] = active_plan();
    }
    scenario.edit_status(name, status).await
}

/// An update that the other operator was about to start: it has no target.
fn active_plan() -> Value {
    let tasks =
        ["apply-statefulset", "apply-service", "replace-pod", "observe-image", "mark-ready"];
    let tasks: Vec<Value> = tasks
        .into_iter()
        .enumerate()
        .map(|(at, kind)| {
            let id = format!("00000000-0000-4000-8000-00000000000{at}");
            json!({ "type": kind, "id": id, "status": "Pending", "params": {} })
        })
        .collect();
    json!({ "id": "7e5b0c1a-0000-4000-8000-000000000000", "phase": "Active",
            "targetPhase": "Running", "tasks": tasks })
}

async fn open_gate(pod: &PodView) -> Result<()> {
    let call = SidecarCall::Submit {
        id: "5f0c0000-0000-4000-8000-000000000000".to_owned(),
        task_type: "mark-ready".to_owned(),
        params: json!({}),
    };
    let (pod_uid, ip) = (pod.uid.clone(), pod.ip.clone().unwrap_or_default());
    let request = SidecarRequest { pod_uid, ip, proxy: pod.proxy, call };
    let node = ObjectKey { namespace: String::new(), name: String::new() };
    let result = Sidecar::new(Tokens::none()).call(&node, &request).await;
    result.map(drop).map_err(|failure| anyhow::anyhow!("{failure:?}"))
}

fn adopted(status: &SeiNodeStatus) -> bool {
    condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/AdoptedWithDrift")
}

/// The uids of a fleet's pods, and the generations of their owners.
async fn pods_and_generations(
    scenario: &Scenario,
    names: &[String],
) -> Result<BTreeSet<(String, String, Option<i64>)>> {
    let mut all = BTreeSet::new();
    for name in names {
        let generation = scenario.statefulsets().get(name).await?.metadata.generation;
        all.insert((name.clone(), scenario.uid(name).await?, generation));
    }
    Ok(all)
}

/// The resource version at which each object first was as requested, which orders the writes to a
/// server.
type FirstSeen = Arc<Mutex<BTreeMap<String, u64>>>;

/// Records objects of the namespace from now on.
fn record<K>(api: Api<K>, is_it: fn(&K) -> bool) -> FirstSeen
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let seen = FirstSeen::default();
    let record = seen.clone();
    tokio::spawn(async move {
        let mut events = pin!(api.watch(&WatchParams::default(), "0").await?);
        while let Some(event) = events.next().await {
            let (WatchEvent::Added(object) | WatchEvent::Modified(object)) = event? else {
                continue;
            };
            if is_it(&object) {
                let version = object.resource_version().unwrap_or_default().parse()?;
                let mut seen = record.lock().unwrap_or_else(PoisonError::into_inner);
                seen.entry(object.name_any()).or_insert(version);
            }
        }
        anyhow::Ok(())
    });
    seen
}

/// Needs its own plane, because the operator works in two namespaces.
#[tokio::test]
async fn signers_that_are_taken_over_are_known_before_another_signer_starts() -> Result<()> {
    let lane = Arc::new(Lane::start(boot().await?)?);
    let mut scenario = Scenario::open_on(test_context_on(lane.clone(), "adopt-signers").await?);
    let elsewhere = Scenario::open_on(test_context_on(lane, "copy").await?);
    let signers: Vec<String> = (0..4).map(|at| format!("val{at}")).collect();
    let all: Vec<String> = (0..8).map(|at| format!("rpc{at:02}")).chain(signers.clone()).collect();
    create_running(&mut scenario, &all).await?;
    let converted = all.iter().map(|node| convert_to_other_operator(&scenario, node, false));
    futures::future::try_join_all(converted).await?;
    let before = pods_and_generations(&scenario, &all).await?;
    for signer in &signers {
        ensure!(scenario.status(signer).await?.signing_identity.is_none(), "{signer} has a record");
    }
    // At the same time a copy of a key and a signer with a key of its own.
    elsewhere.copy_validator_keys("val2-signing", "signing", "p2p").await?;
    elsewhere.create("copy", validator("seid:v1", "signing", "p2p")).await?;
    scenario.create_validator_keys("new-signing", "new-p2p").await?;
    scenario.create("new", validator("seid:v1", "new-signing", "new-p2p")).await?;
    let known = record(scenario.nodes(), |node| {
        node.status.as_ref().is_some_and(|status| status.signing_identity.is_some())
    });
    let started =
        record(scenario.statefulsets(), |set| set.metadata.name.as_deref() == Some("new"));
    let setup = Setup { speed: 50, all_namespaces: true, ..Setup::default() };
    scenario.start_with(setup).await?;
    scenario.settled("new").await?;
    elsewhere.until_stalled("copy", "SigningKeyConflict").await?;
    for node in &all {
        scenario.until(node, "is adopted with its differences", adopted).await?;
    }
    let lock = |seen: &FirstSeen| seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let start = lock(&started).get("new").copied().context("new has no StatefulSet")?;
    let known = lock(&known);
    for signer in &signers {
        let at = known.get(signer).with_context(|| format!("{signer} has no identity"))?;
        assert!(*at < start, "{signer} was recorded at {at}, and new started at {start}");
    }
    assert_eq!(pods_and_generations(&scenario, &all).await?, before, "a pod was restarted");
    assert_eq!(elsewhere.pods_seen("copy").await?, 0, "a copy of a key has started");
    // Nothing but the deletion of its owner releases the key.
    elsewhere.until_stalled("copy", "SigningKeyConflict").await?;
    elsewhere.close().await?;
    scenario.close().await
}

async fn take_over(name: &str, foreign: bool) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    let all = fleet();
    create_running(&mut scenario, &all).await?;
    let converted = all.iter().map(|node| convert_to_other_operator(&scenario, node, foreign));
    futures::future::try_join_all(converted).await?;
    let before = pods_and_generations(&scenario, &all).await?;
    scenario.start_with(Setup { speed: 50, ..Setup::default() }).await?;
    for node in &all {
        let status = scenario.until(node, "is adopted with its differences", adopted).await?;
        let pending = status.pending_update.context("no update is pending")?;
        let paths: Vec<_> = pending.changes.iter().map(|change| change.path.as_str()).collect();
        let mut expected: Vec<_> = DIFFERS.to_vec();
        expected.sort_unstable();
        let mut sorted = paths.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, expected, "{node}");
        assert_eq!((pending.cause, pending.state), (Cause::Adoption, UpdateState::Held));
        ensure!(status.plan.is_none(), "{node} has a plan");
    }
    // The same after another start of the operator.
    scenario.start_with(Setup { speed: 50, ..Setup::default() }).await?;
    for node in &all {
        scenario.until(node, "is still adopted", adopted).await?;
    }
    assert_eq!(
        pods_and_generations(&scenario, &all).await?,
        before,
        "a pod was restarted or a StatefulSet written"
    );
    scenario.set_image("rpc00", "seid:v2").await?;
    scenario.settled("rpc00").await?;
    let others: Vec<String> = all.iter().filter(|node| *node != "rpc00").cloned().collect();
    let untouched = before.into_iter().filter(|(node, _, _)| node != "rpc00").collect();
    assert_eq!(
        pods_and_generations(&scenario, &others).await?,
        untouched,
        "another node was changed"
    );
    let pod = scenario.pods().get("rpc00-0").await?.spec.context("has a spec")?;
    assert_eq!(
        pod.termination_grace_period_seconds,
        Some(120),
        "the pod has the template of the other operator"
    );
    scenario.close().await
}

#[tokio::test]
async fn taking_over_a_fleet_restarts_nothing_and_reports_every_difference() -> Result<()> {
    take_over("adopt", false).await
}

#[tokio::test]
async fn fields_added_to_a_template_by_others_are_no_difference() -> Result<()> {
    take_over("adopt-foreign", true).await
}
