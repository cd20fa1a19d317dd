//! Changes of the platform configuration, and how they roll through chains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::{boot, test_context_on, wait_for};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use sei_api::condition::ConditionType;
use sei_api::status::{Cause, UpdateState};
use sei_operator::runtime::metrics::Metrics;
use sei_plan::view::PodView;
use sei_rig::{Behaviour, Lane};
use serde_json::{Value, json};

/// A platform that renders this service account.
fn platform(account: &str) -> String {
    PLATFORM.replace("chain-node", account)
}

fn setup(platform: &str) -> Setup {
    Setup { platform: platform.to_owned(), speed: 50, ..Setup::default() }
}

/// Watches pods and records how many nodes of a chain are not Ready at the same time, and in which
/// order pods are replaced. The chain is the part of a node's name before the dash.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Whether the node's newest pod is Ready.
    ready: BTreeMap<String, bool>,
    /// The uids of the first pods.
    first: BTreeMap<String, String>,
    /// Nodes in the order in which their first pods were replaced.
    replaced: Vec<String>,
    most_down: BTreeMap<String, usize>,
    /// The watch has ended, so the record is incomplete.
    has_ended: bool,
}

impl Watcher {
    async fn on(scenario: &Scenario) -> Result<Self> {
        let watcher = Self::default();
        let mut stream = scenario.pods().watch(&WatchParams::default(), "0").await?.boxed();
        let seen = watcher.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(event)) = stream.try_next().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => seen.record(&pod, true),
                    WatchEvent::Deleted(pod) => seen.record(&pod, false),
                    _ => {}
                }
            }
            seen.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        });
        Ok(watcher)
    }

    fn read<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!seen.has_ended, "the watch of pods has ended");
        read(&seen)
    }

    /// Watches from the time when so many pods are Ready.
    async fn of_ready(scenario: &Scenario, pods: usize) -> Result<Self> {
        let watcher = Self::on(scenario).await?;
        wait_for("the watcher has recorded all pods as Ready", async || {
            let ready = watcher.read(|seen| seen.ready.values().filter(|ready| **ready).count());
            Ok((ready == pods).then_some(()))
        })
        .await?;
        watcher.reset();
        Ok(watcher)
    }

    /// Starts the counts anew.
    fn reset(&self) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.most_down.clear();
        seen.replaced.clear();
    }

    fn replaced(&self) -> usize {
        self.read(|seen| seen.replaced.len())
    }
}

impl Seen {
    fn record(&mut self, pod: &Pod, exists: bool) {
        let Some(node) = pod.labels().get("sei.io/node").cloned() else { return };
        let view = PodView::from(pod);
        let first = self.first.entry(node.clone()).or_insert_with(|| view.uid.clone());
        if *first != view.uid && !self.replaced.contains(&node) {
            self.replaced.push(node.clone());
        }
        let is_ready = exists && view.ready && !view.is_terminating();
        self.ready.insert(node.clone(), is_ready);
        let chain = chain_of(&node).to_owned();
        let down = self.ready.iter().filter(|(name, ready)| chain_of(name) == chain && !**ready);
        let down = down.count();
        let most = self.most_down.entry(chain).or_default();
        *most = down.max(*most);
    }
}

fn chain_of(node: &str) -> &str {
    node.split('-').next().unwrap_or_default()
}

/// The spec of a node in the chain of its name; names of validators contain `-v`.
async fn spec_of(scenario: &Scenario, node: &str) -> Result<Value> {
    let mut spec = if node.contains("-v") {
        let (signing, p2p) = (format!("{node}-signing"), format!("{node}-p2p"));
        scenario.create_validator_keys(&signing, &p2p).await?;
        validator("seid:v1", &signing, &p2p)
    } else {
        rpc("seid:v1")
    };
    spec["chainId"] = json!(chain_of(node));
    Ok(spec)
}

async fn create_fleet(scenario: &Scenario, names: &[String]) -> Result<()> {
    for name in names {
        scenario.create(name, spec_of(scenario, name).await?).await?;
    }
    for name in names {
        scenario.settled(name).await?;
    }
    until_all_ready(scenario, names).await
}

async fn until_all_ready(scenario: &Scenario, names: &[String]) -> Result<()> {
    for name in names {
        scenario.until_pod(name, "is Ready", |pod| pod.ready).await?;
    }
    Ok(())
}

fn names(chain: &str, serving: usize, signing: usize) -> Vec<String> {
    // Validators come first in the alphabet, so that only the operator's order can make them last.
    let signing = (0..signing).map(|at| format!("{chain}-a-v{at}"));
    signing.chain((0..serving).map(|at| format!("{chain}-rpc{at}"))).collect()
}

/// Waits until every node's pod has this service account and is Ready. The nodes are in the order
/// of their turns, because each wait has a timeout and a whole chain may take longer.
async fn until_all_run_as(scenario: &Scenario, names: &[String], account: &str) -> Result<()> {
    let mut names = names.to_vec();
    names.sort_by_key(|name| (name.contains("-v"), name.clone()));
    for name in &names {
        wait_for(&format!("{name} runs as {account}, Ready"), async || {
            let Some(pod) = scenario.pods().get_opt(&format!("{name}-0")).await? else {
                return Ok(None);
            };
            let runs_as = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
            let ready = PodView::from(&pod).ready;
            Ok((ready && runs_as.as_deref() == Some(account)).then_some(()))
        })
        .await?;
        scenario.settled(name).await?;
    }
    Ok(())
}

fn assert_signers_last(watcher: &Watcher, chain: &str) {
    let order: Vec<String> = watcher.read(|seen| {
        seen.replaced.iter().filter(|node| chain_of(node) == chain).cloned().collect()
    });
    let signs: Vec<bool> = order.iter().map(|node| node.contains("-v")).collect();
    assert!(signs.is_sorted(), "validators roll last: {order:?}");
}

async fn roll_two_chains(name: &str, kills: usize) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    let slowly = Behaviour::ReadySlowly(Duration::from_millis(150));
    scenario.kubelet().behave(scenario.namespace(), sei_rig::Rule::new(slowly));
    scenario.start_with(setup(PLATFORM)).await?;
    let all: Vec<String> = names("one", 8, 2).into_iter().chain(names("two", 8, 2)).collect();
    create_fleet(&scenario, &all).await?;
    let watcher = Watcher::of_ready(&scenario, all.len()).await?;
    scenario.start_with(setup(&platform("chain-other"))).await?;
    for kill in 0..kills {
        wait_for("another pod is replaced", async || Ok((watcher.replaced() > kill).then_some(())))
            .await?;
        scenario.start_with(setup(&platform("chain-other"))).await?;
    }
    until_all_run_as(&scenario, &all, "chain-other").await?;
    let down = watcher.read(|seen| seen.most_down.clone());
    assert!(
        down.values().all(|most| *most <= 1),
        "more than one node of a chain was down: {down:?}"
    );
    assert_signers_last(&watcher, "one");
    assert_signers_last(&watcher, "two");
    for node in &all {
        assert_eq!(scenario.pods_seen(node).await?, 2, "{node} was not replaced exactly once");
    }
    scenario.close().await
}

#[tokio::test]
async fn a_platform_change_rolls_one_node_of_each_chain_at_a_time() -> Result<()> {
    roll_two_chains("two-chains", 0).await
}

#[tokio::test]
async fn slots_survive_ten_operator_crashes() -> Result<()> {
    roll_two_chains("two-chains-crash", 10).await
}

#[tokio::test]
async fn a_node_that_cannot_start_halts_its_chain_until_the_platform_is_repaired() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("halt").await?;
    let bad = PLATFORM.replace("seictl:v1", "seictl:v2");
    let good = PLATFORM.replace("seictl:v1", "seictl:v3");
    scenario.set_image_behaviour("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    scenario.start_with(setup(PLATFORM)).await?;
    let (halting, unaffected) = (names("one", 3, 1), names("two", 1, 0));
    let all: Vec<String> = halting.iter().chain(&unaffected).cloned().collect();
    create_fleet(&scenario, &all).await?;
    until_all_ready(&scenario, &all).await?;
    scenario.start_with(setup(&bad)).await?;
    let halted = |status: &sei_api::SeiNodeStatus| {
        condition_text(status, ConditionType::PodTemplateDrift)
            .contains("halted: the roll of halt-") // the namespace
    };
    // The order is by name, with validators last: rpc0 rolls first and fails.
    for node in ["one-rpc1", "one-rpc2", "one-a-v0"] {
        let status = scenario.until(node, "its condition reports a halted chain", halted).await?;
        let pending = status.pending_update.expect("an update is pending");
        assert_eq!((pending.state, pending.cause), (UpdateState::Queued, Cause::Operator));
        assert!(pending.reason.unwrap_or_default().contains("/one-rpc0"));
        assert_eq!(scenario.pods_seen(node).await?, 1, "{node} was restarted");
    }
    scenario.until_stalled("one-rpc0", "ImageNotPullable").await?;
    // A waiting node is evicted: its new pod has the old template, not the failed one.
    let before = scenario.uid("one-rpc2").await?;
    scenario.evict("one-rpc2").await?;
    let back = scenario
        .until_pod("one-rpc2", "its new pod is Ready", |pod| pod.uid != before && pod.ready)
        .await?;
    assert!(back.sidecar.image.ends_with("seictl:v1"), "{}", back.sidecar.image);
    scenario.until("one-rpc2", "its chain is still halted", halted).await?;
    // The platform is reverted: the failed node rolls back, and no other node rolls.
    scenario.start_with(setup(PLATFORM)).await?;
    for node in &all {
        scenario.settled(node).await?;
    }
    until_all_ready(&scenario, &all).await?;
    for (node, pods) in [("one-rpc1", 1), ("one-rpc2", 2), ("one-a-v0", 1)] {
        assert_eq!(scenario.pods_seen(node).await?, pods, "{node} was restarted");
    }
    // The next platform is good, and all nodes get it.
    scenario.start_with(setup(&good)).await?;
    for node in &all {
        scenario
            .until_pod(node, "has the new sidecar", |pod| {
                pod.sidecar.image.ends_with("seictl:v3") && pod.ready
            })
            .await?;
    }
    scenario.close().await
}

#[tokio::test]
async fn a_good_platform_repairs_nodes_after_a_bad_one_without_manual_steps() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("bad-platform").await?;
    scenario.set_image_behaviour("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    scenario.start_with(setup(PLATFORM)).await?;
    let all = names("one", 3, 1);
    create_fleet(&scenario, &all).await?;
    until_all_ready(&scenario, &all).await?;
    scenario.start_with(setup(&PLATFORM.replace("seictl:v1", "seictl:v2"))).await?;
    scenario.until_stalled("one-rpc0", "ImageNotPullable").await?;
    scenario.start_with(setup(&PLATFORM.replace("seictl:v1", "seictl:v3"))).await?;
    for node in &all {
        scenario
            .until_pod(node, "has the good sidecar", |pod| {
                pod.sidecar.image.ends_with("seictl:v3") && pod.ready
            })
            .await?;
    }
    scenario.close().await
}

#[tokio::test]
async fn an_image_change_rolls_twenty_halted_nodes_at_once() -> Result<()> {
    let scenario = Scenario::open("upgrade-20").await?;
    let all = names("one", 16, 4);
    create_fleet(&scenario, &all).await?;
    scenario.set_image_behaviour("seid:v1", Behaviour::Halted);
    // No new pod starts before all exist: a roll of one node at a time would not finish here.
    let held = scenario.set_image_behaviour("seid:v2", Behaviour::Unschedulable);
    for node in &all {
        scenario.set_image(node, "seid:v2").await?;
    }
    for node in &all {
        scenario.until_pod_of(node, "seid:v2").await?;
    }
    scenario.lift(held);
    for node in &all {
        scenario.settled(node).await?;
    }
    scenario.close().await
}

#[tokio::test]
async fn a_label_rolls_signers_one_at_a_time_and_other_nodes_at_once() -> Result<()> {
    let scenario = Scenario::open("labels").await?;
    let (signing, serving) = (names("one", 0, 6), names("two", 6, 0));
    let all: Vec<String> = signing.iter().chain(&serving).cloned().collect();
    create_fleet(&scenario, &all).await?;
    let watcher = Watcher::of_ready(&scenario, all.len()).await?;
    let label = json!({ "spec": { "podLabels": { "team": "blue" } } });
    let stuck: Vec<_> = serving
        .iter()
        .map(|node| scenario.set_node_behaviour(node, Behaviour::Unschedulable))
        .collect();
    for node in &all {
        scenario.edit(node, label.clone()).await?;
    }
    // All RPC nodes are down at the same time.
    wait_for("all of chain two are down", async || {
        Ok(watcher.read(|seen| seen.most_down.get("two") == Some(&6)).then_some(()))
    })
    .await?;
    for rule in stuck {
        scenario.lift(rule);
    }
    for node in &all {
        scenario.until_pod(node, "has the label, Ready", |pod| pod.ready).await?;
        scenario.settled(node).await?;
        let pod = scenario.pods().get(&format!("{node}-0")).await?;
        assert_eq!(pod.labels().get("team").map(String::as_str), Some("blue"));
        assert_eq!(scenario.pods_seen(node).await?, 2);
    }
    let most = watcher.read(|seen| seen.most_down.get("one").copied());
    assert_eq!(most, Some(1), "validators roll one at a time");
    scenario.close().await
}

#[tokio::test]
async fn a_held_change_survives_an_eviction_and_is_released_only_by_its_hash() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("held").await?;
    scenario.start_with(setup(PLATFORM)).await?;
    scenario.run("one-rpc0", spec_of(&scenario, "one-rpc0").await?).await?;
    let holding = platform("chain-other").replace(
        "rollout: { settleSeconds: 0 }",
        "rollout: { settleSeconds: 0, onOperatorChange: Hold }",
    );
    scenario.start_with(setup(&holding)).await?;
    let held = |status: &sei_api::SeiNodeStatus| {
        condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/Held")
    };
    let status = scenario.until("one-rpc0", "its change is held", held).await?;
    let target = status.pending_update.expect("an update is pending").target_hash;
    let before = scenario.uid("one-rpc0").await?;
    scenario.evict("one-rpc0").await?;
    scenario
        .until_pod("one-rpc0", "its new pod is Ready", |pod| pod.uid != before && pod.ready)
        .await?;
    let account = async || -> Result<Option<String>> {
        let pod = scenario.pods().get("one-rpc0-0").await?;
        Ok(pod.spec.and_then(|spec| spec.service_account_name))
    };
    assert_eq!(account().await?.as_deref(), Some("chain-node"), "the new pod has the old template");
    let approve =
        |hash: &str| json!({ "metadata": { "annotations": { "sei.io/approve-update": hash } } });
    let wrong_hash = format!("v1:{}", "0".repeat(64));
    scenario.edit("one-rpc0", approve(&wrong_hash)).await?;
    let refused = format!("refuses the approval of {wrong_hash}");
    wait_for("the approval is refused in an event", async || {
        let events = scenario.events("one-rpc0").await?;
        Ok(events.iter().any(|text| text.contains(&refused)).then_some(()))
    })
    .await?;
    scenario.until("one-rpc0", "its change is still held", held).await?;
    assert_eq!(scenario.pods_seen("one-rpc0").await?, 2);
    scenario.edit("one-rpc0", approve(&target)).await?;
    scenario
        .until("one-rpc0", "is in sync", |status| {
            condition_text(status, ConditionType::PodTemplateDrift).starts_with("False/InSync")
        })
        .await?;
    assert_eq!(account().await?.as_deref(), Some("chain-other"));
    scenario.close().await
}

#[tokio::test]
async fn a_new_hash_algorithm_restamps_and_restarts_nothing() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("algorithm").await?;
    scenario.start_with(setup(PLATFORM)).await?;
    let all: Vec<String> = names("one", 28, 2);
    create_fleet(&scenario, &all).await?;
    // Some nodes have been updated before, others have not.
    let rolled = ["one-rpc1", "one-rpc2", "one-a-v0"];
    for node in rolled {
        scenario.set_image(node, "seid:v2").await?;
    }
    for node in rolled {
        scenario.settled(node).await?;
    }
    let generations = generations(&scenario, &all).await?;
    let second = sei_plan::fingerprint::Algorithm::new("v2", |value| format!("two {value}"));
    scenario.start_with(Setup { algorithm: second, ..setup(PLATFORM) }).await?;
    for node in &all {
        scenario
            .until(node, "has a hash of the new algorithm", |status| {
                status.pod_template_hash.as_deref().is_some_and(|hash| hash.starts_with("v2:"))
                    && condition_text(status, ConditionType::PodTemplateDrift)
                        .starts_with("False/InSync")
            })
            .await?;
        let pods = if rolled.contains(&node.as_str()) { 2 } else { 1 };
        assert_eq!(scenario.pods_seen(node).await?, pods, "{node} was restarted");
    }
    ensure!(generations == self::generations(&scenario, &all).await?, "a template was written");
    scenario.close().await
}

async fn generations(
    scenario: &Scenario,
    nodes: &[String],
) -> Result<BTreeSet<(String, Option<i64>)>> {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.insert((node.clone(), scenario.statefulsets().get(node).await?.metadata.generation));
    }
    Ok(found)
}

/// From now on admission refuses pods as large as a node's pod in this namespace.
async fn create_limit(scenario: &Scenario) -> Result<()> {
    let limit: LimitRange = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Container", "max": { "memory": "1Mi" } }] },
    }))?;
    limits(scenario).create(&PostParams::default(), &limit).await?;
    // Admission uses a cache of its own.
    let large: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "large" },
        "spec": { "containers": [
            { "name": "c", "image": "i", "resources": { "limits": { "memory": "2Mi" } } },
        ]},
    }))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait_for("the limit is enforced", async || {
        Ok(scenario.pods().create(&dry_run, &large).await.is_err().then_some(()))
    })
    .await
}

fn limits(scenario: &Scenario) -> Api<LimitRange> {
    Api::namespaced(scenario.admin(), scenario.namespace())
}

#[tokio::test]
async fn a_template_that_fails_pod_admission_never_replaces_a_pod() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("pod-check").await?;
    let checked = PLATFORM.replace("settleSeconds: 0", "settleSeconds: 0, podCheck: DryRun");
    scenario.start_with(setup(&checked)).await?;
    scenario.run("one-rpc0", spec_of(&scenario, "one-rpc0").await?).await?;
    let before = pod_and_generation(&scenario, "one-rpc0").await?;
    create_limit(&scenario).await?;
    scenario.set_image("one-rpc0", "seid:v2").await?;
    let status = scenario.until_stalled("one-rpc0", "ApplyRejected").await?;
    let stalled = condition_text(&status, ConditionType::Stalled);
    assert!(stalled.contains("maximum memory usage per Container is 1Mi"), "{stalled}");
    assert_eq!(
        pod_and_generation(&scenario, "one-rpc0").await?,
        before,
        "the pod or the template was changed"
    );
    limits(&scenario).delete("small", &DeleteParams::default()).await?;
    scenario.settled("one-rpc0").await?;
    scenario.close().await
}

#[tokio::test]
async fn an_evicted_pod_refused_by_admission_is_reported_and_recreated() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("pod-refused").await?;
    scenario.start_with(setup(PLATFORM)).await?;
    scenario.run("one-rpc0", spec_of(&scenario, "one-rpc0").await?).await?;
    create_limit(&scenario).await?;
    scenario.evict("one-rpc0").await?;
    let status = scenario.until_stalled("one-rpc0", "StatefulSetNotObserved").await?;
    let stalled = condition_text(&status, ConditionType::Stalled);
    assert!(stalled.contains("StatefulSet one-rpc0 has made no pod yet"), "{stalled}");
    limits(&scenario).delete("small", &DeleteParams::default()).await?;
    scenario.until_not_stalled("one-rpc0").await?;
    scenario.settled("one-rpc0").await?;
    scenario.close().await
}

#[tokio::test]
async fn a_full_quota_does_not_prevent_a_replacement() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("pod-quota").await?;
    let checked = PLATFORM.replace("settleSeconds: 0", "settleSeconds: 0, podCheck: DryRun");
    scenario.start_with(setup(&checked)).await?;
    scenario.run("one-rpc0", spec_of(&scenario, "one-rpc0").await?).await?;
    let quota: ResourceQuota = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "pods" },
        "spec": { "hard": { "pods": "1" } },
        "status": { "hard": { "pods": "1" }, "used": { "pods": "1" } },
    }))?;
    let quotas: Api<ResourceQuota> = Api::namespaced(scenario.admin(), scenario.namespace());
    quotas.create(&PostParams::default(), &quota).await?;
    // This control plane runs no quota controller: the test writes the counts itself, and resets
    // them before the successor is created.
    let used =
        |pods: &str| json!({ "status": { "hard": { "pods": "1" }, "used": { "pods": pods } } });
    let params = PatchParams::default();
    quotas.patch_status("pods", &params, &Patch::Merge(used("1"))).await?;
    scenario.set_image("one-rpc0", "seid:v2").await?;
    wait_for("the old pod is deleted or terminating", async || {
        let pod = scenario.pods().get_opt("one-rpc0-0").await?;
        let is_leaving = pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(is_leaving.then_some(()))
    })
    .await?;
    quotas.patch_status("pods", &params, &Patch::Merge(used("0"))).await?;
    scenario.settled("one-rpc0").await?;
    scenario.close().await
}

async fn pod_and_generation(scenario: &Scenario, node: &str) -> Result<(String, Option<i64>)> {
    let generation = scenario.statefulsets().get(node).await?.metadata.generation;
    Ok((scenario.uid(node).await?, generation))
}

/// The series of a metric whose labels hold all of these, with their values.
fn series(scraped: &str, metric: &str, labels: &[(&str, &str)]) -> Vec<(String, u32)> {
    let lines = scraped.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, rest) = series.split_once('{')?;
        let has = |(label, value): &(&str, &str)| rest.contains(&format!("{label}=\"{value}\""));
        let is_match = name == metric && labels.iter().all(has);
        is_match.then(|| Some((rest.to_owned(), value.parse().ok()?)))?
    });
    lines.collect()
}

/// The possible reasons of `PodTemplateDrift` for a state.
fn reasons(state: UpdateState) -> &'static [&'static str] {
    match state {
        UpdateState::Queued => &["WaitingForSlot"],
        UpdateState::Held => &["Held", "AdoptedWithDrift", "Paused"],
        UpdateState::Rolling => &["Rolling"],
        UpdateState::Retrying => &["BackingOff"],
    }
}

/// Whether status, condition and gauges of a node agree.
async fn agree(scenario: &Scenario, metrics: &Metrics, node: &str) -> Result<bool> {
    let status = scenario.status(node).await?;
    let scraped = metrics.encode();
    let name = [("namespace", scenario.namespace()), ("name", node)];
    let drift = condition_text(&status, ConditionType::PodTemplateDrift);
    let gauge = |metric: &str| series(&scraped, metric, &name);
    let drifted = gauge("sei_controller_seinode_drifted");
    let pending = gauge("sei_controller_seinode_pending_update");
    let Some(update) = &status.pending_update else {
        let is_in_sync = drift.starts_with("False/InSync") || drift.starts_with("False/Paused");
        return Ok(is_in_sync && pending.is_empty());
    };
    let reason =
        reasons(update.state).iter().find(|reason| drift.starts_with(&format!("True/{reason}")));
    let (cause, state) = (format!("{:?}", update.cause), format!("{:?}", update.state));
    let is_published = |labels: &str| {
        labels.contains(&format!("cause=\"{cause}\""))
            && labels.contains(&format!("state=\"{state}\""))
    };
    let by_reason = |reason: &&str| {
        let label = format!("\"{reason}\"");
        matches!(&drifted[..], [(labels, 1)] if labels.contains(&label))
    };
    Ok(reason.is_some_and(by_reason)
        && matches!(&pending[..], [(labels, 1)] if is_published(labels))
        && update.reason.iter().all(|text| !text.is_empty()))
}

#[tokio::test]
async fn status_conditions_gauges_and_events_agree() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("agree").await?;
    scenario.set_image_behaviour("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    scenario.start_with(setup(PLATFORM)).await?;
    let all = names("one", 4, 1);
    create_fleet(&scenario, &all).await?;
    until_all_ready(&scenario, &all).await?;
    scenario.run("two-rpc0", spec_of(&scenario, "two-rpc0").await?).await?;
    let hold = json!({ "spec": { "update": { "onOperatorChange": "Hold" } } });
    scenario.edit("one-rpc3", hold).await?;
    scenario.edit("one-rpc2", json!({ "spec": { "update": { "paused": true } } })).await?;
    let metrics = Metrics::new();
    let bad = PLATFORM.replace("seictl:v1", "seictl:v2");
    scenario.start_with(Setup { metrics: metrics.clone(), ..setup(&bad) }).await?;
    scenario.until_stalled("one-rpc0", "ImageNotPullable").await?;
    let expected = [
        ("one-rpc0", "True/Rolling", "UpdateStarted"),
        ("one-rpc1", "True/WaitingForSlot", ""),
        ("one-rpc2", "True/Paused", ""),
        ("one-rpc3", "True/Held", "Held"),
        ("one-a-v0", "True/WaitingForSlot", ""),
        ("two-rpc0", "True/Rolling", "UpdateStarted"),
    ];
    for (node, drift, event) in expected {
        scenario
            .until(node, &format!("PodTemplateDrift is {drift}"), |status| {
                condition_text(status, ConditionType::PodTemplateDrift).starts_with(drift)
            })
            .await?;
        wait_for(&format!("status, condition and gauges of {node} agree"), async || {
            Ok(agree(&scenario, &metrics, node).await?.then_some(()))
        })
        .await?;
        wait_for(&format!("{node} has its event"), async || {
            let events = scenario.events(node).await?;
            let is_published =
                events.iter().any(|event_text| event_text.starts_with(&format!("{event}:")));
            Ok((event.is_empty() || is_published).then_some(()))
        })
        .await?;
    }
    let halted = || series(&metrics.encode(), "sei_controller_chain_halted_nodes", &[]);
    wait_for("the gauge counts the nodes that wait for the failed one", async || {
        let of = |chain: &str, nodes: u32| {
            halted().iter().any(|(labels, value)| labels.contains(chain) && *value == nodes)
        };
        Ok((of("\"one\"", 2) && of("\"two\"", 0)).then_some(()))
    })
    .await?;
    scenario.start_with(Setup { metrics: metrics.clone(), ..setup(PLATFORM) }).await?;
    for node in all.iter().chain([&"two-rpc0".to_owned()]) {
        wait_for(
            &format!("{node} is in sync, and its status, condition and gauges agree"),
            async || {
                let in_sync = scenario.status(node).await?.pending_update.is_none();
                Ok((in_sync && agree(&scenario, &metrics, node).await?).then_some(()))
            },
        )
        .await?;
    }
    scenario.close().await
}

#[tokio::test]
async fn a_wrong_image_takes_one_validator_of_a_healthy_chain_down() -> Result<()> {
    let scenario = Scenario::open("wrong-image").await?;
    let all = names("one", 0, 4);
    create_fleet(&scenario, &all).await?;
    until_all_ready(&scenario, &all).await?;
    scenario.set_image_behaviour("seid:bad", Behaviour::ImageVanishes);
    for node in &all {
        scenario.set_image(node, "seid:bad").await?;
    }
    scenario.until_stalled(&all[0], "ImagePullFailed").await?;
    for node in &all[1..] {
        let status = scenario
            .until(node, "waits because the chain is halted", |status| {
                status.pending_update.as_ref().is_some_and(|update| update.halted_by.is_some())
            })
            .await?;
        assert_eq!(status.pending_update.map(|update| update.state), Some(UpdateState::Queued));
        scenario
            .until_pod(node, "is Ready", |pod| pod.ready && pod.seid.image == "seid:v1")
            .await?;
        assert_eq!(scenario.pods_seen(node).await?, 1, "{node} was never touched");
    }
    // The correction rolls the broken node at once, and then the others in turn.
    let watcher = Watcher::on(&scenario).await?;
    for node in &all {
        scenario.set_image(node, "seid:v2").await?;
    }
    for node in &all {
        scenario.settled(node).await?;
        scenario.until_pod(node, "is Ready", |pod| pod.ready).await?;
    }
    let most = watcher.read(|seen| seen.most_down.get("one").copied());
    assert_eq!(most, Some(1), "one at a time");
    scenario.close().await
}

#[tokio::test]
async fn an_image_that_crashes_after_it_was_ready_takes_one_node_down() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("short-ready").await?;
    // Divided by the speed, and still longer than a kubelet on a busy machine needs to report a crash.
    let rollout = "rollout: { settleSeconds: 0, minReadySeconds: 1000 }";
    let patient = PLATFORM.replace("rollout: { settleSeconds: 0 }", rollout);
    scenario.start_with(setup(&patient)).await?;
    let all = names("one", 2, 2);
    create_fleet(&scenario, &all).await?;
    scenario.set_image_behaviour("seid:crashes", Behaviour::Crashes);
    for node in all.iter().rev() {
        scenario.set_image(node, "seid:crashes").await?;
    }
    scenario.until_stalled("one-rpc1", "CrashLooping").await?;
    for node in all.iter().filter(|node| *node != "one-rpc1") {
        scenario
            .until(node, "waits because the chain is halted", |status| {
                status.pending_update.as_ref().is_some_and(|update| update.halted_by.is_some())
            })
            .await?;
        assert_eq!(scenario.pods_seen(node).await?, 1, "{node} was never touched");
    }
    scenario.close().await
}

#[tokio::test]
async fn an_image_rolls_a_quarter_of_the_serving_nodes_at_a_time_and_signers_last() -> Result<()> {
    let scenario = Scenario::open("image-in-turn").await?;
    let all = names("one", 8, 2);
    create_fleet(&scenario, &all).await?;
    let watcher = Watcher::of_ready(&scenario, all.len()).await?;
    // A node that is edited first rolls first.
    for node in all.iter().rev() {
        scenario.set_image(node, "seid:v2").await?;
    }
    for node in &all {
        scenario.settled(node).await?;
    }
    until_all_ready(&scenario, &all).await?;
    assert_signers_last(&watcher, "one");
    let most = watcher.read(|seen| seen.most_down.get("one").copied());
    assert!(most.is_some_and(|most| (1..=2).contains(&most)), "{most:?} of 8 at a time");
    scenario.close().await
}

/// Needs its own plane, because the operator works in two namespaces.
#[tokio::test]
async fn a_roll_in_another_namespace_takes_no_slot_if_budgets_are_by_namespace() -> Result<()> {
    let lane = Arc::new(Lane::start(boot().await?)?);
    let mut scenario = Scenario::open_on(test_context_on(lane.clone(), "budget").await?);
    let neighbour = Scenario::open_on(test_context_on(lane, "neighbour").await?);
    let platform = PLATFORM.replace("rollout: {", "rollout: { budgetScope: Namespace,");
    let setup = Setup { platform, all_namespaces: true, ..Setup::default() };
    scenario.start_with(setup).await?;
    for name in ["a", "b"] {
        scenario.run(name, rpc("seid:v1")).await?;
        neighbour.run(name, rpc("seid:v1")).await?;
    }
    // Of two nodes one may be down at a time, and this one stays down.
    scenario.set_image_behaviour("seid:bad", Behaviour::ImageVanishes);
    scenario.set_image("a", "seid:bad").await?;
    scenario.until_pod_of("a", "seid:bad").await?;
    scenario.set_image("b", "seid:v2").await?;
    scenario
        .until("b", "waits for its turn", |status| {
            status.pending_update.as_ref().is_some_and(|update| update.state == UpdateState::Queued)
        })
        .await?;
    neighbour.set_image("a", "seid:v2").await?;
    neighbour.settled("a").await?;
    assert_eq!(scenario.pods_seen("b").await?, 1, "the chain in the other namespace waits");
    neighbour.close().await?;
    scenario.close().await
}
