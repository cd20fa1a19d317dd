//! `kubectl sei` next to a running operator.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Context as _, Result, ensure};
use clap::Parser as _;
use cluster_tests::docs::commands;
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{
    Requests, Scenario, condition_text, format_requests, rpc, validator,
};
use cluster_tests::{TestContext, shared_lane, wait_for};
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ObjectMeta, PostParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt as _};
use kubectl_sei::flags::Flags;
use kubectl_sei::{CommandContext, Exit, run};
use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_api::status::{FieldChange, SeiNodePhase, UpdateState};
use sei_rig::{AuditEntry, User};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

/// The next configuration: another sidecar, and another node pool for all but validators.
fn next_platform() -> String {
    PLATFORM
        .replace("seictl:v1", "seictl:v2")
        .replace("nodepoolName: chain-default", "nodepoolName: chain-next")
}

fn file(text: &str) -> Result<NamedTempFile> {
    let mut file = NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// Runs the plugin as this user, in the scenario's namespace.
pub(crate) async fn sei_as(user: User, scenario: &Scenario, line: &str) -> Result<(String, Exit)> {
    let context = CommandContext {
        client: Some(scenario.plane().client(user)?),
        namespace: scenario.namespace().to_owned(),
        version: Setup::default().version,
        ..CommandContext::default()
    };
    let flags = Flags::try_parse_from(std::iter::once("kubectl-sei").chain(line.split(' ')))?;
    let mut out = Vec::new();
    let exit = run(&flags, &context, &mut out).await?;
    Ok((String::from_utf8(out)?, exit))
}

async fn sei(scenario: &Scenario, line: &str) -> Result<String> {
    Ok(sei_as(User::Admin, scenario, line).await?.0)
}

/// Replaces the operator by one with this configuration.
async fn take_over(scenario: &mut Scenario, platform: &str) -> Result<()> {
    scenario.start_with(Setup { platform: platform.to_owned(), ..Setup::default() }).await
}

/// The spec of an RPC node that holds operator changes.
fn held_rpc() -> Value {
    let mut spec = rpc("seid:v1");
    spec["update"] = json!({ "onOperatorChange": "Hold" });
    spec
}

async fn until_held(scenario: &Scenario, name: &str) -> Result<String> {
    let status = scenario.until(name, "its update is held", |status| {
        condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/Held")
    });
    let pending = status.await?.pending_update.context("no update is pending")?;
    Ok(pending.target_hash)
}

#[tokio::test]
async fn a_held_update_is_shown_and_released_by_the_right_hash_only() -> Result<()> {
    let mut scenario = Scenario::open("plugin-held").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", held_rpc()).await?;
    let before = scenario.uid("rpc").await?;
    let text = sei(&scenario, "status").await?;
    // The API server proxies to no loopback address, which the pods of these tests have.
    assert!(text.contains("READY   HEIGHT   IMAGE"), "{text}");
    assert!(text.contains("fullNode   Running   yes     -        seid:v1   InSync"), "{text}");
    assert!(text.ends_with("\n1 node, 1 ready\n"), "{text}");
    let (text, exit) = sei_as(User::Admin, &scenario, "diff").await?;
    assert_eq!((text.as_str(), exit), ("Nothing differs on 1 node.\n", Exit::Fine));
    let refused = sei(&scenario, "approve rpc").await.unwrap_err().to_string();
    assert!(refused.ends_with("there is nothing to approve: no update is pending"), "{refused}");

    take_over(&mut scenario, &next_platform()).await?;
    let target = until_held(&scenario, "rpc").await?;
    let (text, exit) = sei_as(User::Admin, &scenario, "diff rpc").await?;
    assert_eq!(exit, Exit::Differs);
    let release = format!("kubectl sei approve -n {namespace} rpc --hash {target}");
    for part in [
        "cause    Operator: a new operator or platform configuration",
        "effect   held: the pod is not replaced; an evicted pod is recreated from the same",
        "why      changes of the operator wait for an approval",
        "seictl:v1 -> registry.example.org/seictl:v2",
        release.as_str(),
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = sei(&scenario, "handover").await?;
    assert!(text.contains("an update (Operator) is held"), "{text}");

    let wrong_hash = format!("v1:{}", "0".repeat(64));
    let refused = sei(&scenario, &format!("approve rpc --hash {wrong_hash}")).await.unwrap_err();
    let message = format!(
        "{namespace}/rpc: {wrong_hash} is not the target of the pending update; the target is {target}"
    );
    assert_eq!(refused.to_string(), message);
    assert_eq!(scenario.node("rpc").await?.annotations().get("sei.io/approve-update"), None);
    assert_eq!(scenario.uid("rpc").await?, before);

    let text = sei(&scenario, &format!("approve rpc --hash {target}")).await?;
    assert!(text.contains("approved v1:"), "{text}");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.status("rpc").await?.pod_template_hash, Some(target));
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn a_pause_holds_an_update_and_a_resume_releases_it() -> Result<()> {
    let scenario = Scenario::open("plugin-pause").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    let before = scenario.uid("rpc").await?;
    let text = sei(&scenario, "pause rpc").await?;
    assert!(text.contains("The node keeps running"), "{text}");
    assert!(sei(&scenario, "pause rpc").await?.contains("unchanged: updates are paused already"));
    // The pause is visible before it holds anything.
    let (text, exit) = sei_as(User::Admin, &scenario, "status --check").await?;
    assert!(text.contains("seid:v1   Paused"), "{text}");
    assert_eq!(exit, Exit::NeedsAttention);
    scenario.set_image("rpc", "seid:v2").await?;
    scenario
        .until("rpc", "its update is held", |status| {
            condition_text(status, ConditionType::PodTemplateDrift).starts_with("True/Paused")
        })
        .await?;
    let text = sei(&scenario, "diff").await?;
    assert!(text.contains(&format!("release  kubectl sei resume -n {namespace} rpc")), "{text}");
    let text = sei(&scenario, "status").await?;
    assert!(text.contains("seid:v1 -> seid:v2   Paused"), "{text}");
    let refused = sei(&scenario, "approve rpc").await.unwrap_err().to_string();
    assert!(refused.contains("use kubectl sei resume"), "{refused}");
    assert_eq!(scenario.uid("rpc").await?, before);
    let text = sei(&scenario, "resume rpc").await?;
    assert!(text.contains("updates are resumed. One is pending (cause Spec)"), "{text}");
    scenario.settled("rpc").await?;
    assert_eq!(scenario.node("rpc").await?.spec.update.and_then(|update| update.paused), None);
    assert_eq!(scenario.pods_seen("rpc").await?, 2);
    scenario.close().await
}

#[tokio::test]
async fn a_restart_replaces_the_pods_of_a_chain_in_turn() -> Result<()> {
    let scenario = Scenario::open("plugin-restart").await?;
    for node in ["a", "b"] {
        scenario.run(node, rpc("seid:v1")).await?;
        scenario.until_pod(node, "is Ready", |pod| pod.ready).await?;
    }
    let text = sei(&scenario, "restart --all").await?;
    assert!(text.contains("restarts when its chain has a free slot"), "{text}");
    for node in ["a", "b"] {
        scenario
            .until(node, "its restart has completed", |status| {
                status.last_update.is_some() && status.plan.is_none()
            })
            .await?;
        assert_eq!(scenario.pods_seen(node).await?, 2);
        let pod = scenario.pods().get(&format!("{node}-0")).await?;
        assert!(pod.annotations().contains_key("sei.io/restarted-at"));
    }
    scenario.close().await
}

#[tokio::test]
async fn a_mistyped_name_changes_nothing() -> Result<()> {
    let scenario = Scenario::open("plugin-typo").await?;
    let namespace = scenario.namespace().to_owned();
    scenario.run("rpc", rpc("seid:v1")).await?;
    let refused = sei(&scenario, "pause rpc rcp").await.unwrap_err().to_string();
    let message = format!("SeiNode rcp not found in namespace {namespace}; existing nodes: rpc");
    assert_eq!(refused, message);
    assert!(!scenario.node("rpc").await?.spec.updates_are_paused());
    let refused = sei(&scenario, "explain Stuck").await.unwrap_err().to_string();
    assert!(refused.starts_with("unknown reason Stuck"), "{refused}");
    assert!(sei(&scenario, "explain Held").await?.contains("sei.io/approve-update"));
    scenario.close().await
}

#[tokio::test]
async fn an_image_is_set_on_a_whole_chain_and_waited_for() -> Result<()> {
    let scenario = Scenario::open("plugin-image").await?;
    for name in ["rpc-0", "rpc-1"] {
        scenario.run(name, rpc("seid:v1")).await?;
    }
    let mut apart = rpc("seid:v1");
    apart["chainId"] = json!("other-1");
    scenario.run("other", apart).await?;
    let chain = scenario.node("rpc-0").await?.spec.chain_id;
    let refused = sei(&scenario, "set image seid:v2").await.unwrap_err().to_string();
    assert_eq!(refused, "name the nodes, or use -l, --chain or --all");
    let line = format!("set image --chain {chain} seid:v2");
    let text = sei(&scenario, &format!("{line} --dry-run=server")).await?;
    assert!(text.ends_with("2 nodes would change, 0 unchanged\n"), "{text}");
    assert_eq!(scenario.node("rpc-0").await?.spec.image, "seid:v1");

    let text = sei(&scenario, &line).await?;
    assert!(text.contains("rpc-1: image seid:v1 -> seid:v2\n2 nodes changed"), "{text}");
    // The status may still be that of the previous edit, which the wait must not mistake for the end.
    let text = sei(&scenario, &format!("wait --chain {chain} --timeout 2m")).await?;
    assert_eq!(text.matches("Ready and in sync").count(), 2, "{text}");
    for name in ["rpc-0", "rpc-1"] {
        assert_eq!(scenario.status(name).await?.current_image.as_deref(), Some("seid:v2"));
    }
    let missing = "wait --chain no-such-chain --timeout 1s";
    let refused = sei(&scenario, missing).await.unwrap_err().to_string();
    assert!(refused.starts_with("no SeiNode of chain no-such-chain in"), "{refused}");
    assert_eq!(scenario.node("other").await?.spec.image, "seid:v1");
    let text = sei(&scenario, "pause --all").await?;
    assert!(text.ends_with("3 nodes changed, 0 unchanged\n"), "{text}");
    let text = sei(&scenario, "set image rpc-0 seid:v3").await?;
    assert!(text.contains("updates are paused"), "{text}");
    let late = sei(&scenario, "wait rpc-0 --timeout 1s").await.unwrap_err().to_string();
    assert!(late.starts_with("timed out after 1 s waiting for"), "{late}");
    scenario.close().await
}

#[tokio::test]
async fn a_report_contains_the_objects_of_a_node_and_no_secret() -> Result<()> {
    let scenario = Scenario::open("plugin-report").await?;
    let mut spec = rpc("seid:v1");
    spec["overrides"] = json!({ "rpc.token": "hidden-value" });
    scenario.run("rpc", spec).await?;
    scenario.run("other", rpc("seid:v1")).await?;
    let folder = tempfile::tempdir()?;
    let folder = folder.path().join("report");
    let text = sei(&scenario, &format!("report rpc --folder {}", folder.display())).await?;
    assert!(!text.contains("not in the report"), "{text}");
    let mut all = String::new();
    for name in ["seinodes", "statefulsets", "pods", "persistentvolumeclaims", "events"] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.yaml")))?;
        assert!(text.contains("rpc"), "{name}: {text}");
        all += &text;
    }
    for name in ["version", "status"] {
        all += &std::fs::read_to_string(folder.join(format!("{name}.yaml")))?;
    }
    for hidden in ["hidden-value", "name: other", "managedFields"] {
        assert!(!all.contains(hidden), "{hidden}");
    }
    assert!(all.contains("rpc.token"), "names of settings stay");
    scenario.close().await
}

/// The write requests of the operator's user in this namespace while `act` runs.
async fn writes_during<T>(
    scenario: &Scenario,
    act: impl Future<Output = Result<T>>,
) -> Result<(T, String)> {
    let mut requests = scenario.requests();
    read_up_to(scenario, &mut requests, "start-of-log").await?;
    let output = act.await?;
    let mut seen = read_up_to(scenario, &mut requests, "end-of-log").await?;
    seen.retain(|entry| !["get", "list"].contains(&entry.verb.as_str()));
    Ok((output, format_requests(&seen)))
}

/// Reads the log up to a request made now. The server writes the log after its responses, so only
/// an entry of this request shows that all earlier entries are present.
async fn read_up_to(
    scenario: &Scenario,
    log: &mut Requests,
    name: &str,
) -> Result<Vec<AuditEntry>> {
    let client = scenario.plane().client(User::Operator)?;
    let nodes: Api<SeiNode> = Api::namespaced(client, scenario.namespace());
    nodes.get_opt(name).await?;
    let mut seen = Vec::new();
    wait_for("the request is in the log", async || {
        seen.extend(log.read_new()?);
        Ok(seen.iter().any(|entry| entry.name.as_deref() == Some(name)).then_some(()))
    })
    .await?;
    Ok(seen)
}

#[tokio::test]
async fn the_same_config_rolls_nothing_and_writes_nothing() -> Result<()> {
    let mut scenario = Scenario::open("plugin-same").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.run("val", validator("seid:v1", "signing", "p2p")).await?;
    // A graceful stop: afterwards the log contains requests of the plugin only.
    scenario.operator.take().context("no operator runs")?.stop().await?;
    let config = file(PLATFORM)?;
    let line = format!("preview --config {}", config.path().display());
    let previewed = Box::pin(sei_as(User::Operator, &scenario, &line));
    let ((text, exit), writes) = writes_during(&scenario, previewed).await?;
    assert!(text.contains("nothing would roll (2 nodes checked)"), "{text}");
    assert_eq!(exit, Exit::Fine);
    assert_eq!(writes, "");
    scenario.close().await
}

/// The pending updates that the operator has reported.
#[derive(Default)]
struct PendingUpdates {
    /// The changed fields, by node.
    changes: BTreeMap<String, Vec<FieldChange>>,
    /// The nodes that rolled, in the order of the server's writes: times in a status are whole
    /// seconds.
    rolled: Vec<String>,
    /// The watch has ended, so the record is incomplete.
    has_ended: bool,
}

/// Watches nodes and records their pending updates.
#[derive(Clone, Default)]
struct UpdateWatcher(Arc<Mutex<PendingUpdates>>);

impl UpdateWatcher {
    async fn start(scenario: &Scenario) -> Result<Self> {
        let watcher = Self::default();
        let mut stream = scenario.nodes().watch(&WatchParams::default(), "0").await?.boxed();
        let recorder = watcher.clone();
        tokio::spawn(async move {
            while let Ok(Some(event)) = stream.try_next().await {
                let (WatchEvent::Added(node) | WatchEvent::Modified(node)) = event else {
                    continue;
                };
                let status = node.status.clone().unwrap_or_default();
                let (Some(pending), name) = (status.pending_update, node.name_any()) else {
                    continue;
                };
                let mut updates = recorder.updates();
                if pending.state == UpdateState::Rolling && !updates.rolled.contains(&name) {
                    updates.rolled.push(name.clone());
                }
                updates.changes.insert(name, pending.changes);
            }
            recorder.0.lock().unwrap_or_else(PoisonError::into_inner).has_ended = true;
        });
        Ok(watcher)
    }

    fn updates(&self) -> std::sync::MutexGuard<'_, PendingUpdates> {
        let updates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(!updates.has_ended, "the watch of nodes has ended");
        updates
    }
}

/// The nodes of a preview with this effect, with their changes, in order.
fn previewed_nodes(report: &Value, effect: &str) -> Result<Vec<(String, Vec<FieldChange>)>> {
    let nodes = report["nodes"].as_array().context("the preview has no nodes")?;
    let of_effect = nodes.iter().filter(|node| node["effect"] == effect);
    of_effect
        .map(|node| {
            let name = node["node"].as_str().context("the node has no name")?.to_owned();
            Ok((name, serde_json::from_value(node["changes"].clone())?))
        })
        .collect()
}

#[tokio::test]
async fn a_preview_names_exactly_the_nodes_and_paths_that_then_roll() -> Result<()> {
    let mut scenario = Scenario::open("plugin-preview").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    // By its name alone it would roll first.
    scenario.create("a-val", validator("seid:v1", "signing", "p2p")).await?;
    scenario.create("held", held_rpc()).await?;
    scenario.create("rpc-0", rpc("seid:v1")).await?;
    scenario.create("rpc-1", rpc("seid:v1")).await?;
    let mut own = rpc("seid:v1");
    own["sidecar"] = json!({ "image": "registry.example.org/seictl:mine" });
    scenario.create("own", own).await?;
    for name in ["a-val", "held", "rpc-0", "rpc-1", "own"] {
        scenario.settled(name).await?;
        scenario.until_pod(name, "it is ready", |pod| pod.ready).await?;
    }
    scenario.kill_operator();
    // The spec of `own` names a sidecar image, so this change does not affect it.
    let sidecar_only = PLATFORM.replace("seictl:v1", "seictl:v2");
    let config = file(&sidecar_only)?;
    let line = format!("preview -o json --all --config {}", config.path().display());
    let (text, exit) = sei_as(User::Operator, &scenario, &line).await?;
    assert_eq!(exit, Exit::WouldRoll);
    let report: Value = serde_json::from_str(&text)?;
    let rolls = previewed_nodes(&report, "RollsInTurn")?;
    let names: Vec<&str> = rolls.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["rpc-0", "rpc-1", "a-val"], "{text}");
    let held = previewed_nodes(&report, "Held")?;
    assert_eq!(held.len(), 1, "{text}");

    let watcher = UpdateWatcher::start(&scenario).await?;
    take_over(&mut scenario, &sidecar_only).await?;
    until_held(&scenario, "held").await?;
    for (name, _) in &rolls {
        scenario
            .until(name, "its update is recorded", |status| status.last_update.is_some())
            .await?;
        scenario.settled(name).await?;
    }
    for (name, changes) in rolls.iter().chain(&held) {
        assert_eq!(watcher.updates().changes.get(name), Some(changes), "{name}");
    }
    for name in &names {
        assert_eq!(scenario.pods_seen(name).await?, 2, "{name}");
    }
    assert_eq!(watcher.updates().rolled, names);
    for name in ["held", "own"] {
        assert_eq!(scenario.pods_seen(name).await?, 1, "{name}");
    }
    assert!(!watcher.updates().changes.contains_key("own"));
    let (text, exit) = sei_as(User::Operator, &scenario, &line).await?;
    assert_eq!(exit, Exit::Fine, "{text}");
    scenario.close().await
}

#[tokio::test]
async fn the_server_compares_a_pod_without_a_recorded_template() -> Result<()> {
    let mut scenario = Scenario::open("plugin-unrecorded").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.kill_operator();
    scenario.edit_status("rpc", json!({ "podTemplateHash": null, "podTemplate": null })).await?;
    let before = scenario.until_statefulset_is_current("rpc").await?;
    let same = file(PLATFORM)?;
    let line = format!("preview --config {}", same.path().display());
    let (text, exit) = sei_as(User::Operator, &scenario, &line).await?;
    assert_eq!(exit, Exit::Fine, "{text}");
    assert!(text.contains("nothing would roll (1 node checked)"), "{text}");

    let held = file(&next_platform())?;
    let line = format!("preview --config {}", held.path().display());
    let (text, exit) = sei_as(User::Operator, &scenario, &line).await?;
    assert_eq!(exit, Exit::Fine, "{text}");
    assert!(text.contains("  the pod was made by another operator; it rolls"), "{text}");
    assert!(text.contains("chain-default -> chain-next"), "{text}");

    let auto = next_platform().replace("settleSeconds: 0", "settleSeconds: 0, adoption: Auto");
    let auto = file(&auto)?;
    let line = format!("preview --config {}", auto.path().display());
    let (text, exit) = sei_as(User::Operator, &scenario, &line).await?;
    assert_eq!(exit, Exit::WouldRoll, "{text}");
    assert!(text.contains("cause Adoption") && text.contains("rpc: turn 1"), "{text}");
    // The dry runs changed nothing.
    let after = scenario.statefulsets().get("rpc").await?;
    assert_eq!(after.metadata.resource_version, before.metadata.resource_version);
    scenario.close().await
}

/// A writer whose text can be read while it is written.
#[derive(Clone, Default)]
struct SharedWriter(Arc<Mutex<Vec<u8>>>);

impl SharedWriter {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for SharedWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_watch_prints_each_change() -> Result<()> {
    let scenario = Scenario::open("plugin-watch").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.run("other", rpc("seid:v1")).await?;
    let out = SharedWriter::default();
    let context = CommandContext {
        client: Some(scenario.admin()),
        namespace: scenario.namespace().to_owned(),
        ..CommandContext::default()
    };
    let flags = Flags::try_parse_from(["kubectl-sei", "status", "-w", "rpc"])?;
    let mut writer = out.clone();
    let watching = tokio::spawn(async move { run(&flags, &context, &mut writer).await.map(drop) });
    wait_for("the table is printed", async || Ok(out.text().contains("InSync").then_some(())))
        .await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.set_image("other", "seid:v2").await?;
    wait_for("the end of the update is printed", async || {
        let text = out.text();
        let is_final = |line: &&str| line.contains("yes     seid:v2") && line.contains("InSync");
        Ok(text.lines().rev().find(is_final).map(drop))
    })
    .await?;
    let text = out.text();
    assert!(text.contains("seid:v1 -> seid:v2"), "{text}");
    assert!(!text.contains("other"), "{text}");
    assert!(!watching.is_finished());
    watching.abort();
    scenario.close().await
}

/// The plugin's program, built by cargo into the folder of this test.
pub(crate) fn program() -> Result<PathBuf> {
    // Once: a second build replaces the file under the tests that run it.
    static BUILT: OnceLock<bool> = OnceLock::new();
    let build = || sei_rig::cargo().args(["build", "--quiet", "--package", "kubectl-sei"]).status();
    ensure!(
        *BUILT.get_or_init(|| build().is_ok_and(|status| status.success())),
        "failed to build kubectl-sei"
    );
    let test = std::env::current_exe()?;
    let folder =
        test.parent().and_then(Path::parent).context("the test program has no parent folder")?;
    Ok(folder.join("kubectl-sei"))
}

#[tokio::test]
async fn kubectl_finds_the_plugin_and_returns_its_exit_code() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("plugin-kubectl").await?;
    // The operator has the plugin's version: an older one would hold what a newer one rolled.
    let setup = Setup { version: kubectl_sei::VERSION.to_owned(), ..Setup::default() };
    scenario.start_with(setup).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let folder = program()?.parent().context("the program has no parent folder")?.to_owned();
    let plane = scenario.plane();
    let path = std::env::join_paths([folder.as_path(), plane.bin_dir()])?;
    let kubectl = |arguments: &[&str]| {
        let output = Command::new(plane.bin_dir().join("kubectl"))
            .args(arguments)
            .env("PATH", &path)
            .env("KUBECONFIG", plane.kubeconfig(User::Admin))
            .output()?;
        let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
        anyhow::Ok((text, output.status.code()))
    };
    let namespace = scenario.namespace();
    let (text, code) = kubectl(&["sei", "status", "-n", namespace])?;
    assert!(text.contains("rpc") && !text.contains('\u{1b}'), "{text}");
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "diff",
        "diff seinode/rpc -o json",
        "handover",
        "explain Held",
        "explain",
        "version -o yaml",
        "completion",
        "wait --timeout 1m",
        "status --check --as system:admin --as-group system:masters",
    ] {
        let arguments: Vec<&str> = line.split(' ').collect();
        let (text, code) = kubectl(&[&["sei", "-n", namespace], &arguments[..]].concat())?;
        assert_eq!(code, Some(0), "{line}: {text}");
    }
    assert_eq!(kubectl(&["sei", "help"])?.1, Some(0));
    let (same, next) = (file(PLATFORM)?, file(&next_platform())?);
    for (config, expected) in [(&same, 0), (&next, 2)] {
        let config = config.path().display().to_string();
        let (text, code) = kubectl(&["sei", "preview", "-n", namespace, "--config", &config])?;
        assert_eq!(code, Some(expected), "{text}");
    }
    // A preview of exported manifests equals a preview of the cluster.
    let (manifests, _) = kubectl(&["get", "seinodes,statefulsets", "-n", namespace, "-o", "yaml"])?;
    let (manifests, config) = (file(&manifests)?, next.path().display().to_string());
    let live = ["sei", "preview", "-o", "json", "-n", namespace, "--config", &config];
    let manifests = manifests.path().display().to_string();
    let offline = [&live[..], &["--manifests", &manifests]].concat();
    assert_eq!(kubectl(&live)?, kubectl(&offline)?);
    let (text, code) = kubectl(&["sei", "preview", "-n", namespace, "--config", "missing.yaml"])?;
    assert_eq!((text.lines().count(), code), (1, Some(1)), "{text}");
    for (line, expected) in [("status", 1), ("diff", 2)] {
        let (text, code) = kubectl(&["sei", line, "--no-such-flag"])?;
        assert_eq!(code, Some(expected), "{text}");
    }
    for line in [["approve", "-n", namespace, "r"], ["-n", namespace, "approve", "r"]] {
        let (text, code) = kubectl(&[&["sei", "__complete"], &line[..]].concat())?;
        assert_eq!((text.as_str(), code), ("rpc\n:4\n", Some(0)));
    }
    let (text, code) = kubectl(&["sei", "status", "--server", "https://127.0.0.1:1"])?;
    assert!(text.starts_with("error: API server https://127.0.0.1:1: list seinodes: "), "{text}");
    assert_eq!(code, Some(1), "{text}");
    scenario.close().await
}

/// Skipped: cargo has built the program already, in another profile, and an installation would take
/// minutes.
const INSTALL_COMMAND: &str = "cargo install --path crates/kubectl-sei";

/// Runs these commands of a document with the plugin on the PATH, and returns their number.
fn run_commands(scenario: &Scenario, lines: &str, exit_codes: &[(&str, &[i32])]) -> Result<usize> {
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("new.yaml"), next_platform())?;
    let programs = program()?.parent().context("the program has no parent folder")?.to_owned();
    let plane = scenario.plane();
    let path = std::env::join_paths([
        programs.as_path(),
        plane.bin_dir(),
        Path::new("/usr/bin"),
        Path::new("/bin"),
    ])?;
    let mut ran = 0;
    for line in lines.lines() {
        let command = line.split('#').next().unwrap_or_default().trim();
        if command == INSTALL_COMMAND {
            continue;
        }
        let output = Command::new("sh")
            .args(["-c", command])
            .current_dir(folder.path())
            .env("PATH", &path)
            .env("KUBECONFIG", plane.kubeconfig(User::Admin))
            .output()?;
        let known = exit_codes.iter().find(|(part, _)| command.contains(part));
        let expected = known.map_or(&[0][..], |(_, codes)| codes);
        let code = output.status.code().context("the command was killed")?;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(expected.contains(&code), "{command}: {code} {stderr}");
        ran += 1;
    }
    Ok(ran)
}

#[tokio::test]
async fn the_readme_commands_of_the_plugin_work() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("plugin-readme").await?;
    let setup = Setup { version: kubectl_sei::VERSION.to_owned(), ..Setup::default() };
    scenario.start_with(setup).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    let lines = commands("README.md", "From the command line")?;
    // These two report by their exit codes that something would roll, and that something differs.
    let ran = run_commands(&scenario, &lines, &[("preview", &[0, 2]), ("diff", &[0, 1])])?;
    assert_eq!(ran, 4);
    scenario.close().await
}

#[tokio::test]
async fn the_commands_of_an_upgrade_night_work_as_written() -> Result<()> {
    let scenario = Scenario::open("plugin-night").await?;
    let mut spec = rpc("seid:v1");
    spec["chainId"] = json!("plugin-night-1");
    scenario.run("rpc", spec).await?;
    scenario.until_pod("rpc", "it is ready", |pod| pod.ready).await?;
    let lines = commands("docs/plugin.md", "An upgrade night")?;
    let namespace = format!("-n {} --chain plugin-night-1", scenario.namespace());
    let lines = lines.replace("--chain CHAIN", &namespace).replace("IMAGE", "seid:v2");
    assert_eq!(run_commands(&scenario, &lines, &[])?, 5);
    assert_eq!(scenario.status("rpc").await?.current_image.as_deref(), Some("seid:v2"));
    scenario.close().await
}

/// The fixed time of the transcript, which shows ages.
static TRANSCRIPT_TIME: OnceLock<Timestamp> = OnceLock::new();

fn transcript_time() -> Timestamp {
    TRANSCRIPT_TIME.get().copied().unwrap_or_else(Timestamp::now)
}

/// A test context in the namespace that the docs show.
async fn demo_context() -> Result<TestContext> {
    let lane = shared_lane().await?;
    let admin: Client = lane.plane().client(User::Admin)?;
    let metadata = ObjectMeta { name: Some("demo".to_owned()), ..ObjectMeta::default() };
    let namespace = Namespace { metadata, ..Namespace::default() };
    Api::all(admin.clone()).create(&PostParams::default(), &namespace).await?;
    Ok(TestContext { lane, admin, namespace: "demo".to_owned() })
}

const DRIFT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/drift.md");

/// Compares a transcript with the one in the docs; `UPDATE_EXPECT=1` updates the docs.
fn check_transcript(name: &str, text: &str) -> Result<()> {
    let page = std::fs::read_to_string(DRIFT)?;
    let begin = format!("<!-- transcript: {name} -->\n```text\n");
    let (before, rest) =
        page.split_once(&begin).with_context(|| format!("no transcript {name} in the docs"))?;
    let (shown, after) = rest.split_once("```\n").context("the transcript has no end")?;
    if shown != text && std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(DRIFT, format!("{before}{begin}{text}```\n{after}"))?;
        return Ok(());
    }
    assert_eq!(shown, text, "UPDATE_EXPECT=1 updates the docs");
    Ok(())
}

#[tokio::test]
async fn the_transcripts_in_the_docs_are_what_the_commands_print() -> Result<()> {
    let mut scenario = Scenario::open_on(demo_context().await?);
    scenario.start_operator(10).await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.create("validator-0", validator("seid:v1", "signing", "p2p")).await?;
    scenario.create("rpc-0", held_rpc()).await?;
    scenario.create("rpc-1", rpc("seid:v1")).await?;
    for name in ["validator-0", "rpc-0", "rpc-1"] {
        scenario.settled(name).await?;
        scenario.until_pod(name, "it is ready", |pod| pod.ready).await?;
    }
    scenario.kill_operator();
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("next.yaml");
    std::fs::write(&config, next_platform().replace("rollout: { settleSeconds: 0 }", ""))?;
    let line = format!("preview --config {}", config.display());
    let (preview, _) = sei_as(User::Admin, &scenario, &line).await?;
    let preview = preview.replace(&format!("{}/", folder.path().display()), "");
    check_transcript(
        "preview",
        &format!("$ kubectl sei preview -n demo --config next.yaml\n{preview}"),
    )?;

    take_over(&mut scenario, &next_platform()).await?;
    until_held(&scenario, "rpc-0").await?;
    for name in ["rpc-1", "validator-0"] {
        scenario
            .until(name, "its update is recorded", |status| status.last_update.is_some())
            .await?;
        scenario.settled(name).await?;
    }
    let since =
        scenario.status("rpc-0").await?.pending_update.context("no update is held")?.since.0;
    let _ = TRANSCRIPT_TIME.set(since + SignedDuration::from_mins(42));
    let context = CommandContext {
        client: Some(scenario.admin()),
        now: transcript_time,
        ..CommandContext::default()
    };
    let flags = Flags::try_parse_from(["kubectl-sei", "diff", "-n", "demo"])?;
    let mut out = Vec::new();
    run(&flags, &context, &mut out).await?;
    check_transcript("diff", &format!("$ kubectl sei diff -n demo\n{}", String::from_utf8(out)?))?;
    assert_eq!(scenario.status("rpc-0").await?.phase, Some(SeiNodePhase::Running));
    scenario.close().await
}
