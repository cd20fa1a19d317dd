//! Changes that nobody made on a node: how they travel through chains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::play::{Play, rpc, says, validator};
use cluster_tests::wait_for;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{LimitRange, Pod, ResourceQuota};
use k8s_openapi::api::rbac::v1::{ClusterRole, RoleBinding};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use sei_api::condition::ConditionType;
use sei_api::status::{Cause, UpdateState};
use sei_operator::metrics::Metrics;
use sei_plan::view::PodView;
use sei_rig::{Behaviour, User};
use serde_json::{Value, json};

/// What people install on top, to have pods checked.
const POD_CHECK_ROLE: &str = include_str!("../../../../config/components/pod-check/role.yaml");

/// A platform that renders another service account.
fn platform(account: &str) -> String {
    PLATFORM.replace("chain-node", account)
}

fn with(platform: &str) -> Setup {
    Setup { platform: platform.to_owned(), speed: 50, ..Setup::default() }
}

/// Watches pods: how many nodes of a chain are not Ready at each instant, and who was replaced in
/// which order. The chain is the part of a node's name before the dash.
#[derive(Clone, Default)]
struct Watcher(Arc<Mutex<Seen>>);

#[derive(Default)]
struct Seen {
    /// Whether the node's newest pod is Ready.
    ready: BTreeMap<String, bool>,
    /// Uids of first pods.
    first: BTreeMap<String, String>,
    /// Nodes in the order in which their first pod gave way.
    replaced: Vec<String>,
    most_down: BTreeMap<String, usize>,
    /// Nobody watches any more, so nothing can be said.
    is_over: bool,
}

impl Watcher {
    async fn on(play: &Play) -> Result<Self> {
        let watcher = Self::default();
        let mut stream = play.pods().watch(&WatchParams::default(), "0").await?.boxed();
        let seen = watcher.0.clone();
        tokio::spawn(async move {
            while let Ok(Some(event)) = stream.try_next().await {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                match event {
                    WatchEvent::Added(pod) | WatchEvent::Modified(pod) => seen.note(&pod, true),
                    WatchEvent::Deleted(pod) => seen.note(&pod, false),
                    _ => {}
                }
            }
            seen.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        });
        Ok(watcher)
    }

    fn look<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!seen.is_over, "the watch of pods has ended");
        look(&seen)
    }

    /// From here on counts what is down.
    fn forget(&self) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.most_down.clear();
        seen.replaced.clear();
    }

    fn replaced(&self) -> usize {
        self.look(|seen| seen.replaced.len())
    }
}

impl Seen {
    fn note(&mut self, pod: &Pod, there: bool) {
        let Some(node) = pod.labels().get("sei.io/node").cloned() else { return };
        let view = PodView::from(pod);
        let first = self.first.entry(node.clone()).or_insert_with(|| view.uid.clone());
        if *first != view.uid && !self.replaced.contains(&node) {
            self.replaced.push(node.clone());
        }
        let is_ready = there && view.ready && !view.is_terminating();
        self.ready.insert(node.clone(), is_ready);
        let chain = chain_of(&node).to_owned();
        let down = self.ready.iter().filter(|(one, ready)| chain_of(one) == chain && !**ready);
        let down = down.count();
        let most = self.most_down.entry(chain).or_default();
        *most = down.max(*most);
    }
}

fn chain_of(node: &str) -> &str {
    node.split('-').next().unwrap_or_default()
}

/// The spec of a node in the chain of its name; validators have a `v` in theirs.
async fn spec_of(play: &Play, node: &str) -> Result<Value> {
    let mut spec = if node.contains("-v") {
        let (signing, p2p) = (format!("{node}-signing"), format!("{node}-p2p"));
        play.validator_keys(&signing, &p2p).await?;
        validator("seid:v1", &signing, &p2p)
    } else {
        rpc("seid:v1")
    };
    spec["chainId"] = json!(chain_of(node));
    Ok(spec)
}

async fn fleet(play: &Play, names: &[String]) -> Result<()> {
    for name in names {
        play.create(name, spec_of(play, name).await?).await?;
    }
    for name in names {
        play.settled(name).await?;
    }
    all_ready(play, names).await
}

async fn all_ready(play: &Play, names: &[String]) -> Result<()> {
    for name in names {
        play.until_pod(name, "is Ready", |pod| pod.ready).await?;
    }
    Ok(())
}

fn names(chain: &str, serving: usize, signing: usize) -> Vec<String> {
    // Validators come first in the alphabet, so that only their kind can make them last.
    let signing = (0..signing).map(|at| format!("{chain}-a-v{at}"));
    signing.chain((0..serving).map(|at| format!("{chain}-rpc{at}"))).collect()
}

/// Every node's pod has this service account and is Ready. Waited for in the order of their turns:
/// each wait has its bound, and a chain takes as long as it takes.
async fn until_all_run_as(play: &Play, names: &[String], account: &str) -> Result<()> {
    let mut names = names.to_vec();
    names.sort_by_key(|name| (name.contains("-v"), name.clone()));
    for name in &names {
        wait_for(&format!("{name} runs as {account}, Ready"), async || {
            let Some(pod) = play.pods().get_opt(&format!("{name}-0")).await? else {
                return Ok(None);
            };
            let runs_as = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
            let ready = PodView::from(&pod).ready;
            Ok((ready && runs_as.as_deref() == Some(account)).then_some(()))
        })
        .await?;
        play.settled(name).await?;
    }
    Ok(())
}

fn assert_signers_last(watcher: &Watcher, chain: &str) {
    let order: Vec<String> = watcher.look(|seen| {
        seen.replaced.iter().filter(|node| chain_of(node) == chain).cloned().collect()
    });
    let signs: Vec<bool> = order.iter().map(|node| node.contains("-v")).collect();
    assert!(signs.is_sorted(), "those that sign go last: {order:?}");
}

async fn roll_two_chains(name: &str, kills: usize) -> Result<()> {
    let mut play = Play::open_without_operator(name).await?;
    let slowly = Behaviour::ReadySlowly(Duration::from_millis(150));
    play.scene.kubelet().behave(&play.scene.namespace, sei_rig::Rule::new(slowly));
    play.start_with(with(PLATFORM)).await?;
    let all: Vec<String> = names("one", 8, 2).into_iter().chain(names("two", 8, 2)).collect();
    fleet(&play, &all).await?;
    let watcher = Watcher::on(&play).await?;
    wait_for("the watcher has seen all pods Ready", async || {
        Ok(watcher
            .look(|seen| seen.ready.values().filter(|one| **one).count() == all.len())
            .then_some(()))
    })
    .await?;
    watcher.forget();
    play.start_with(with(&platform("chain-other"))).await?;
    for kill in 0..kills {
        wait_for("another pod gives way", async || Ok((watcher.replaced() > kill).then_some(())))
            .await?;
        play.start_with(with(&platform("chain-other"))).await?;
    }
    until_all_run_as(&play, &all, "chain-other").await?;
    let down = watcher.look(|seen| seen.most_down.clone());
    assert!(down.values().all(|most| *most <= 1), "never two of a chain: {down:?}");
    assert_signers_last(&watcher, "one");
    assert_signers_last(&watcher, "two");
    for node in &all {
        assert_eq!(play.pods_seen(node).await?, 2, "{node} was replaced once");
    }
    play.close().await
}

#[tokio::test]
async fn a_change_of_the_platform_takes_one_node_of_each_chain_at_a_time() -> Result<()> {
    roll_two_chains("two-chains", 0).await
}

#[tokio::test]
async fn slots_survive_an_operator_that_dies_ten_times() -> Result<()> {
    roll_two_chains("two-chains-crash", 10).await
}

#[tokio::test]
async fn a_node_that_cannot_start_halts_its_chain_until_the_platform_is_mended() -> Result<()> {
    let mut play = Play::open_without_operator("halt").await?;
    let bad = PLATFORM.replace("seictl:v1", "seictl:v2");
    let good = PLATFORM.replace("seictl:v1", "seictl:v3");
    play.image_is("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    play.start_with(with(PLATFORM)).await?;
    let (one, two) = (names("one", 3, 1), names("two", 1, 0));
    let all: Vec<String> = one.iter().chain(&two).cloned().collect();
    fleet(&play, &all).await?;
    play.start_with(with(&bad)).await?;
    let halted = |status: &sei_api::SeiNodeStatus| {
        says(status, ConditionType::PodTemplateDrift).contains("halted: the roll of halt-") // the namespace
    };
    // In the order of names, those that sign last: rpc0 goes first and fails.
    for node in ["one-rpc1", "one-rpc2", "one-a-v0"] {
        let status = play.until(node, "says that its chain is halted", halted).await?;
        let pending = status.pending_update.expect("waits");
        assert_eq!((pending.state, pending.cause), (UpdateState::Queued, Cause::Operator));
        assert!(pending.reason.unwrap_or_default().contains("/one-rpc0"));
        assert_eq!(play.pods_seen(node).await?, 1, "{node} keeps running");
    }
    play.until_stalled("one-rpc0", "ImagePullFailed").await?;
    // One that waits is evicted: it comes back as it was, and not with what has just failed.
    let before = play.uid("one-rpc2").await?;
    play.evict("one-rpc2").await?;
    let back = play.until_pod("one-rpc2", "is back", |pod| pod.uid != before && pod.ready).await?;
    assert!(back.sidecar.image.ends_with("seictl:v1"), "{}", back.sidecar.image);
    play.until("one-rpc2", "still waits", halted).await?;
    // The platform is set back: what failed rolls back, and nothing else moves.
    play.start_with(with(PLATFORM)).await?;
    for node in &all {
        play.settled(node).await?;
    }
    all_ready(&play, &all).await?;
    for (node, pods) in [("one-rpc1", 1), ("one-rpc2", 2), ("one-a-v0", 1)] {
        assert_eq!(play.pods_seen(node).await?, pods, "{node} was left alone");
    }
    // The next one is good, and everybody gets it.
    play.start_with(with(&good)).await?;
    for node in &all {
        play.until_pod(node, "has the new sidecar", |pod| {
            pod.sidecar.image.ends_with("seictl:v3") && pod.ready
        })
        .await?;
    }
    play.close().await
}

#[tokio::test]
async fn a_bad_platform_is_mended_by_a_better_one_without_a_hand_on_any_node() -> Result<()> {
    let mut play = Play::open_without_operator("mend").await?;
    play.image_is("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    play.start_with(with(PLATFORM)).await?;
    let all = names("one", 3, 1);
    fleet(&play, &all).await?;
    play.start_with(with(&PLATFORM.replace("seictl:v1", "seictl:v2"))).await?;
    play.until_stalled("one-rpc0", "ImagePullFailed").await?;
    play.start_with(with(&PLATFORM.replace("seictl:v1", "seictl:v3"))).await?;
    for node in &all {
        play.until_pod(node, "has the better sidecar", |pod| {
            pod.sidecar.image.ends_with("seictl:v3") && pod.ready
        })
        .await?;
    }
    play.close().await
}

#[tokio::test]
async fn an_image_change_rolls_twenty_halted_nodes_at_once() -> Result<()> {
    let play = Play::open("upgrade-20").await?;
    let all = names("one", 16, 4);
    fleet(&play, &all).await?;
    play.image_is("seid:v1", Behaviour::Halted);
    // None of the new pods starts before all are there: a roll in turn would stand still here.
    let held = play.image_is("seid:v2", Behaviour::Unschedulable);
    for node in &all {
        play.set_image(node, "seid:v2").await?;
    }
    for node in &all {
        play.until_pod_of(node, "seid:v2").await?;
    }
    play.lift(held);
    for node in &all {
        play.settled(node).await?;
    }
    play.close().await
}

#[tokio::test]
async fn a_label_goes_through_signers_one_at_a_time_and_through_others_at_once() -> Result<()> {
    let play = Play::open("labels").await?;
    let (signing, serving) = (names("one", 0, 6), names("two", 6, 0));
    let all: Vec<String> = signing.iter().chain(&serving).cloned().collect();
    fleet(&play, &all).await?;
    let watcher = Watcher::on(&play).await?;
    wait_for("the watcher has seen all pods Ready", async || {
        Ok(watcher
            .look(|seen| seen.ready.values().filter(|one| **one).count() == all.len())
            .then_some(()))
    })
    .await?;
    watcher.forget();
    let label = json!({ "spec": { "podLabels": { "team": "blue" } } });
    let stuck: Vec<_> =
        serving.iter().map(|node| play.node_is(node, Behaviour::Unschedulable)).collect();
    for node in &all {
        play.edit(node, label.clone()).await?;
    }
    // All of those that serve are down in the same moment.
    wait_for("all of chain two are down", async || {
        Ok(watcher.look(|seen| seen.most_down.get("two") == Some(&6)).then_some(()))
    })
    .await?;
    for rule in stuck {
        play.lift(rule);
    }
    for node in &all {
        play.until_pod(node, "has the label, Ready", |pod| pod.ready).await?;
        play.settled(node).await?;
        let pod = play.pods().get(&format!("{node}-0")).await?;
        assert_eq!(pod.labels().get("team").map(String::as_str), Some("blue"));
        assert_eq!(play.pods_seen(node).await?, 2);
    }
    let most = watcher.look(|seen| seen.most_down.get("one").copied());
    assert_eq!(most, Some(1), "signers one at a time");
    play.close().await
}

#[tokio::test]
async fn a_held_change_survives_an_eviction_and_goes_only_by_its_own_hash() -> Result<()> {
    let mut play = Play::open_without_operator("held").await?;
    play.start_with(with(PLATFORM)).await?;
    play.run("one-rpc0", spec_of(&play, "one-rpc0").await?).await?;
    let holding = platform("chain-other").replace(
        "rollout: { settleSeconds: 0 }",
        "rollout: { settleSeconds: 0, onOperatorChange: Hold }",
    );
    play.start_with(with(&holding)).await?;
    let held = |status: &sei_api::SeiNodeStatus| {
        says(status, ConditionType::PodTemplateDrift).starts_with("True/Held")
    };
    let status = play.until("one-rpc0", "its change is held", held).await?;
    let target = status.pending_update.expect("is pending").target_hash;
    let before = play.uid("one-rpc0").await?;
    play.evict("one-rpc0").await?;
    play.until_pod("one-rpc0", "is back", |pod| pod.uid != before && pod.ready).await?;
    let account = async || -> Result<Option<String>> {
        let pod = play.pods().get("one-rpc0-0").await?;
        Ok(pod.spec.and_then(|spec| spec.service_account_name))
    };
    assert_eq!(account().await?.as_deref(), Some("chain-node"), "comes back as it was");
    let approve =
        |hash: &str| json!({ "metadata": { "annotations": { "sei.io/approve-update": hash } } });
    let other = format!("v1:{}", "0".repeat(64));
    play.edit("one-rpc0", approve(&other)).await?;
    let refused = format!("refuses the approval of {other}");
    wait_for("the approval is refused in an event", async || {
        let events = play.events("one-rpc0").await?;
        Ok(events.iter().any(|text| text.contains(&refused)).then_some(()))
    })
    .await?;
    play.until("one-rpc0", "its change is still held", held).await?;
    assert_eq!(play.pods_seen("one-rpc0").await?, 2);
    play.edit("one-rpc0", approve(&target)).await?;
    play.until("one-rpc0", "is in sync", |status| {
        says(status, ConditionType::PodTemplateDrift).starts_with("False/InSync")
    })
    .await?;
    assert_eq!(account().await?.as_deref(), Some("chain-other"));
    play.close().await
}

#[tokio::test]
async fn a_new_hash_algorithm_restamps_and_restarts_nothing() -> Result<()> {
    let mut play = Play::open_without_operator("algorithm").await?;
    play.start_with(with(PLATFORM)).await?;
    let all: Vec<String> = names("one", 28, 2);
    fleet(&play, &all).await?;
    // Some were rolled before, others are as they were made.
    let rolled = ["one-rpc1", "one-rpc2", "one-a-v0"];
    for node in rolled {
        play.set_image(node, "seid:v2").await?;
    }
    for node in rolled {
        play.settled(node).await?;
    }
    let generations = generations(&play, &all).await?;
    let second = sei_plan::fingerprint::Algorithm::new("v2", |value| format!("two {value}"));
    play.start_with(Setup { algorithm: second, ..with(PLATFORM) }).await?;
    for node in &all {
        play.until(node, "is stamped anew", |status| {
            status.pod_template_hash.as_deref().is_some_and(|hash| hash.starts_with("v2:"))
                && says(status, ConditionType::PodTemplateDrift).starts_with("False/InSync")
        })
        .await?;
        let pods = if rolled.contains(&node.as_str()) { 2 } else { 1 };
        assert_eq!(play.pods_seen(node).await?, pods, "{node} was left alone");
    }
    ensure!(generations == self::generations(&play, &all).await?, "no template was written");
    play.close().await
}

async fn generations(play: &Play, nodes: &[String]) -> Result<BTreeSet<(String, Option<i64>)>> {
    let mut found = BTreeSet::new();
    for node in nodes {
        found.insert((node.clone(), play.statefulsets().get(node).await?.metadata.generation));
    }
    Ok(found)
}

/// Lets the operator of this namespace ask whether pods would be admitted.
async fn allow_pod_checks(play: &Play) -> Result<()> {
    let role: ClusterRole = serde_saphyr::from_str(POD_CHECK_ROLE)?;
    let roles: Api<ClusterRole> = Api::all(play.scene.admin.clone());
    let params = PatchParams::apply("test").force();
    roles.patch("sei-operator-pod-check", &params, &Patch::Apply(&role)).await?;
    let binding: RoleBinding = serde_json::from_value(json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "name": "pod-check" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                     "name": "sei-operator-pod-check" },
        "subjects": [{ "kind": "User", "name": User::Operator.name(),
                       "apiGroup": "rbac.authorization.k8s.io" }],
    }))?;
    let bindings: Api<RoleBinding> =
        Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    bindings.create(&PostParams::default(), &binding).await?;
    Ok(())
}

/// From now on nothing as large as a node's pod is admitted here.
async fn limit(play: &Play) -> Result<()> {
    let limit: LimitRange = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": { "name": "small" },
        "spec": { "limits": [{ "type": "Container", "max": { "memory": "1Mi" } }] },
    }))?;
    limits(play).create(&PostParams::default(), &limit).await?;
    // Admission goes by a cache of its own.
    let large: Pod = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "large" },
        "spec": { "containers": [
            { "name": "c", "image": "i", "resources": { "limits": { "memory": "2Mi" } } },
        ]},
    }))?;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    wait_for("the limit counts", async || {
        Ok(play.pods().create(&dry_run, &large).await.is_err().then_some(()))
    })
    .await
}

fn limits(play: &Play) -> Api<LimitRange> {
    Api::namespaced(play.scene.admin.clone(), &play.scene.namespace)
}

#[tokio::test]
async fn a_template_that_cannot_become_a_pod_never_costs_one() -> Result<()> {
    let mut play = Play::open_without_operator("pod-check").await?;
    allow_pod_checks(&play).await?;
    let checked = PLATFORM.replace("settleSeconds: 0", "settleSeconds: 0, podCheck: DryRun");
    play.start_with(with(&checked)).await?;
    play.run("one-rpc0", spec_of(&play, "one-rpc0").await?).await?;
    let before = look(&play, "one-rpc0").await?;
    limit(&play).await?;
    play.set_image("one-rpc0", "seid:v2").await?;
    let status = play.until_stalled("one-rpc0", "ApplyRejected").await?;
    let told = says(&status, ConditionType::Stalled);
    assert!(told.contains("maximum memory usage per Container is 1Mi"), "{told}");
    assert_eq!(look(&play, "one-rpc0").await?, before, "neither pod nor template were touched");
    limits(&play).delete("small", &DeleteParams::default()).await?;
    play.settled("one-rpc0").await?;
    play.close().await
}

#[tokio::test]
async fn an_evicted_pod_that_nobody_admits_is_told_and_comes_back() -> Result<()> {
    let mut play = Play::open_without_operator("pod-refused").await?;
    play.start_with(with(PLATFORM)).await?;
    play.run("one-rpc0", spec_of(&play, "one-rpc0").await?).await?;
    limit(&play).await?;
    play.evict("one-rpc0").await?;
    let status = play.until_stalled("one-rpc0", "StatefulSetNotObserved").await?;
    let told = says(&status, ConditionType::Stalled);
    assert!(told.contains("StatefulSet one-rpc0 has made no pod yet"), "{told}");
    limits(&play).delete("small", &DeleteParams::default()).await?;
    play.until_not_stalled("one-rpc0").await?;
    play.settled("one-rpc0").await?;
    play.close().await
}

#[tokio::test]
async fn a_full_quota_stops_no_replacement() -> Result<()> {
    let mut play = Play::open_without_operator("pod-quota").await?;
    allow_pod_checks(&play).await?;
    let checked = PLATFORM.replace("settleSeconds: 0", "settleSeconds: 0, podCheck: DryRun");
    play.start_with(with(&checked)).await?;
    play.run("one-rpc0", spec_of(&play, "one-rpc0").await?).await?;
    let quota: ResourceQuota = serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": { "name": "pods" },
        "spec": { "hard": { "pods": "1" } },
        "status": { "hard": { "pods": "1" }, "used": { "pods": "1" } },
    }))?;
    let quotas: Api<ResourceQuota> =
        Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    quotas.create(&PostParams::default(), &quota).await?;
    // Nobody counts in this control plane: the figures are written by hand, and taken back before
    // the successor is made.
    let used =
        |pods: &str| json!({ "status": { "hard": { "pods": "1" }, "used": { "pods": pods } } });
    let params = PatchParams::default();
    quotas.patch_status("pods", &params, &Patch::Merge(used("1"))).await?;
    play.set_image("one-rpc0", "seid:v2").await?;
    wait_for("the old pod is gone or going", async || {
        let pod = play.pods().get_opt("one-rpc0-0").await?;
        let gone = pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(gone.then_some(()))
    })
    .await?;
    quotas.patch_status("pods", &params, &Patch::Merge(used("0"))).await?;
    play.settled("one-rpc0").await?;
    play.close().await
}

async fn look(play: &Play, node: &str) -> Result<(String, Option<i64>)> {
    let generation = play.statefulsets().get(node).await?.metadata.generation;
    Ok((play.uid(node).await?, generation))
}

/// The series of a metric whose labels hold all of these, with their values.
fn series(scraped: &str, metric: &str, labels: &[(&str, &str)]) -> Vec<(String, u32)> {
    let lines = scraped.lines().filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, rest) = series.split_once('{')?;
        let has = |(label, value): &(&str, &str)| rest.contains(&format!("{label}=\"{value}\""));
        let is_it = name == metric && labels.iter().all(has);
        is_it.then(|| Some((rest.to_owned(), value.parse().ok()?)))?
    });
    lines.collect()
}

/// What the reason of `PodTemplateDrift` must be for a state.
fn reasons(state: UpdateState) -> &'static [&'static str] {
    match state {
        UpdateState::Queued => &["WaitingForSlot"],
        UpdateState::Held => &["Held", "AdoptedWithDrift", "Paused"],
        UpdateState::Rolling => &["Rolling"],
        UpdateState::Retrying => &["BackingOff"],
    }
}

/// Status, condition and gauges of a node tell the same.
async fn agree(play: &Play, metrics: &Metrics, node: &str) -> Result<bool> {
    let status = play.status(node).await?;
    let scraped = metrics.encode();
    let name = [("namespace", play.scene.namespace.as_str()), ("name", node)];
    let drift = says(&status, ConditionType::PodTemplateDrift);
    let gauge = |metric: &str| series(&scraped, metric, &name);
    let drifted = gauge("sei_controller_seinode_drifted");
    let pending = gauge("sei_controller_seinode_pending_update");
    let Some(update) = &status.pending_update else {
        return Ok(drift.starts_with("False/InSync") && pending.is_empty());
    };
    let said =
        reasons(update.state).iter().find(|reason| drift.starts_with(&format!("True/{reason}")));
    let (cause, state) = (format!("{:?}", update.cause), format!("{:?}", update.state));
    let is_told = |labels: &str| {
        labels.contains(&format!("cause=\"{cause}\""))
            && labels.contains(&format!("state=\"{state}\""))
    };
    let by_reason = |reason: &&str| matches!(&drifted[..], [(labels, 1)] if labels.contains(&format!("\"{reason}\"")));
    Ok(said.is_some_and(by_reason)
        && matches!(&pending[..], [(labels, 1)] if is_told(labels))
        && update.reason.iter().all(|why| !why.is_empty()))
}

#[tokio::test]
async fn status_conditions_gauges_and_events_tell_the_same() -> Result<()> {
    let mut play = Play::open_without_operator("agree").await?;
    play.image_is("registry.example.org/seictl:v2", Behaviour::ImageUnpullable);
    play.start_with(with(PLATFORM)).await?;
    let all = names("one", 4, 1);
    fleet(&play, &all).await?;
    play.run("two-rpc0", spec_of(&play, "two-rpc0").await?).await?;
    let hold = json!({ "spec": { "update": { "onOperatorChange": "Hold" } } });
    play.edit("one-rpc3", hold).await?;
    play.edit("one-rpc2", json!({ "spec": { "update": { "paused": true } } })).await?;
    let metrics = Metrics::new();
    let bad = PLATFORM.replace("seictl:v1", "seictl:v2");
    play.start_with(Setup { metrics: metrics.clone(), ..with(&bad) }).await?;
    play.until_stalled("one-rpc0", "ImagePullFailed").await?;
    let expected = [
        ("one-rpc0", "True/Rolling", "UpdateStarted"),
        ("one-rpc1", "True/WaitingForSlot", ""),
        ("one-rpc2", "True/Paused", ""),
        ("one-rpc3", "True/Held", "Held"),
        ("one-a-v0", "True/WaitingForSlot", ""),
        ("two-rpc0", "True/Rolling", "UpdateStarted"),
    ];
    for (node, drift, event) in expected {
        play.until(node, &format!("says {drift}"), |status| {
            says(status, ConditionType::PodTemplateDrift).starts_with(drift)
        })
        .await?;
        wait_for(&format!("{node} is told of in one voice"), async || {
            Ok(agree(&play, &metrics, node).await?.then_some(()))
        })
        .await?;
        wait_for(&format!("{node} has its event"), async || {
            let told = play.events(node).await?;
            let is_there = told.iter().any(|one| one.starts_with(&format!("{event}:")));
            Ok((event.is_empty() || is_there).then_some(()))
        })
        .await?;
    }
    let halted = || series(&metrics.encode(), "sei_controller_chain_halted_nodes", &[]);
    wait_for("the gauge counts who waits for the failed one", async || {
        let of = |chain: &str, nodes: u32| {
            halted().iter().any(|(labels, value)| labels.contains(chain) && *value == nodes)
        };
        Ok((of("\"one\"", 2) && of("\"two\"", 0)).then_some(()))
    })
    .await?;
    play.start_with(Setup { metrics: metrics.clone(), ..with(PLATFORM) }).await?;
    for node in all.iter().chain([&"two-rpc0".to_owned()]) {
        wait_for(&format!("{node} is in sync, in one voice"), async || {
            let in_sync = play.status(node).await?.pending_update.is_none();
            Ok((in_sync && agree(&play, &metrics, node).await?).then_some(()))
        })
        .await?;
    }
    play.close().await
}
