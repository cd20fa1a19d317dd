//! Nodes that are deleted, and pods that are evicted, at every moment of a plan: at each write of
//! the operator, and wherever a plan can be made to wait.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::play::{Play, rpc, says};
use cluster_tests::wait_for;
use cluster_tests::wire::{Answer, Write};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt as _};
use sei_api::condition::ConditionType;
use sei_api::names::{self, label};
use sei_api::plan::PlannedTask;
use sei_api::status::SeiNodePhase;
use sei_api::task::Side;
use sei_plan::view::PodView;
use sei_rig::{Behaviour, ClaimRule, RuleId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::modes::modes;

/// As many nodes as are at it at once: each waits by looking, and the machine is small.
const AT_ONCE: usize = 6;

/// What is wanted in the end by who changes their mind.
const THIRD: &str = "seid:v3";

/// What somebody does in the middle of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hand {
    /// Deletes the node, which has a volume of its own.
    Delete,
    /// Deletes the node, whose volume was there before it; another one bears the name that its own
    /// would have had.
    DeleteImported,
    /// Evicts the pod, if there is one.
    Evict,
    /// Wants a third image.
    Edit,
}

impl Hand {
    /// The spec that this is done to, with all that it needs.
    async fn prepare(self, play: &Play, node: &str, mut spec: Value) -> Result<Value> {
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                make_claim(play, &name).await?;
            }
            spec["dataVolume"] = json!({ "import": { "pvcName": format!("history-{node}") } });
        }
        Ok(spec)
    }

    async fn act(self, play: &Play, node: &str) -> Result<()> {
        let params = DeleteParams::default();
        match self {
            Self::Evict => match play.pods().delete(&names::pod(node), &params).await {
                // There may be none just then.
                Err(kube::Error::Api(answer)) if answer.code == 404 => {}
                deleted => drop(deleted?),
            },
            Self::Edit => play.set_image(node, THIRD).await?,
            Self::Delete | Self::DeleteImported => drop(play.nodes().delete(node, &params).await?),
        }
        Ok(())
    }

    /// Whether all is as it should be in the end.
    async fn check(self, play: &Play, node: &str, uid: &str, pods: usize) -> Result<()> {
        if matches!(self, Self::Evict | Self::Edit) {
            play.settled(node).await?;
            let seen = play.pods_seen(node);
            ensure!(
                (pods..=pods + 1).contains(&seen),
                "{node}: {seen} pods, not {pods} or one more"
            );
            return Ok(());
        }
        play.until_gone(node).await?;
        let mut left = Vec::new();
        let cleared = wait_for("nothing is left of it", async || {
            left = left_behind(play, node, uid).await?;
            Ok(left.is_empty().then_some(()))
        });
        cleared.await.with_context(|| format!("{left:?}"))?;
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                let claim = play.claims().get(&name).await?;
                ensure!(claim.metadata.deletion_timestamp.is_none(), "{name} is deleted");
            }
        }
        Ok(())
    }
}

async fn make_claim(play: &Play, name: &str) -> Result<()> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    play.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

/// What there still is that belongs to the node of this uid.
async fn left_behind(play: &Play, node: &str, uid: &str) -> Result<Vec<String>> {
    let mut left = owned::<StatefulSet>(play, uid).await?;
    left.extend(owned::<Job>(play, uid).await?);
    left.extend(owned::<Service>(play, uid).await?);
    left.extend(owned::<ConfigMap>(play, uid).await?);
    left.extend(owned::<PersistentVolumeClaim>(play, uid).await?);
    let labelled = ListParams::default().labels(&format!("{}={node}", label::NODE));
    let pods: Api<Pod> = play.pods();
    left.extend(pods.list(&labelled).await?.iter().map(|pod| format!("Pod {}", pod.name_any())));
    Ok(left)
}

async fn owned<K>(play: &Play, uid: &str) -> Result<Vec<String>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + DeserializeOwned + Debug,
{
    let all: Api<K> = Api::namespaced(play.scene.admin.clone(), &play.scene.namespace);
    let all = all.list(&ListParams::default()).await?;
    let is_its = |one: &&K| one.owner_references().iter().any(|owner| owner.uid == uid);
    let name = |one: &K| format!("{} {}", K::kind(&()), one.name_any());
    Ok(all.iter().filter(is_its).map(name).collect())
}

async fn uid_of(play: &Play, node: &str) -> Result<String> {
    play.node(node).await?.metadata.uid.context("it has a uid")
}

/// Rounds in which a node is new or gets another image, and a hand comes in when the operator has
/// written something that no hand came in after before. The operator learns of it afterwards.
async fn at_each_write(name: &str, hand: Hand, spec: Value, is_update: bool) -> Result<()> {
    let mut play = Play::open_without_operator(name).await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    let mut moments: BTreeSet<Write> = BTreeSet::new();
    let mut wire = play.start_operator_on_wire(Answer::Lost).await?;
    for round in 1.. {
        let node = format!("node-{round}");
        let spec = hand.prepare(&play, &node, spec.clone()).await?;
        if is_update {
            play.run(&node, spec).await?;
            wire.stop_after_others_than(&moments);
            play.set_image(&node, "seid:v2").await?;
        } else {
            wire.stop_after_others_than(&moments);
            play.create(&node, spec).await?;
        }
        let uid = uid_of(&play, &node).await?;
        let Some(moment) = play.until_stopped(&wire, &node).await? else { break };
        hand.act(&play, &node).await?;
        wire.free();
        if play.operator.is_none() {
            // It was at its last words.
            wire = play.start_operator_on_wire(Answer::Lost).await?;
        }
        let pods = if is_update { 2 } else { 1 };
        let checked = hand.check(&play, &node, &uid, pods).await;
        checked.with_context(|| format!("round {round}, {hand:?} after {moment:?}"))?;
        moments.insert(moment);
    }
    let kind = if is_update { "DELETE pods" } else { "POST statefulsets" };
    assert!(moments.contains(&(kind.to_owned(), 1)), "{moments:?}");
    play.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_creation_leaves_nothing() -> Result<()> {
    at_each_write("del-new", Hand::Delete, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_its_bootstrap_leaves_nothing() -> Result<()> {
    at_each_write("del-boot", Hand::Delete, bootstrapped(), false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_write_of_an_update_leaves_what_was_not_its_own() -> Result<()> {
    at_each_write("del-upd", Hand::DeleteImported, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn another_image_at_any_write_of_an_update_is_what_runs_in_the_end() -> Result<()> {
    at_each_write("edit-upd", Hand::Edit, rpc("seid:v1"), true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_its_creation_costs_one_pod_at_most() -> Result<()> {
    at_each_write("evict-new", Hand::Evict, rpc("seid:v1"), false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_write_of_an_update_costs_one_pod_at_most() -> Result<()> {
    at_each_write("evict-upd", Hand::Evict, rpc("seid:v1"), true).await
}

fn bootstrapped() -> Value {
    let (_, spec) = modes().pop().expect("the last mode is a bootstrap");
    spec
}

/// What keeps a plan at one of its tasks.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// Tasks of this type do not end.
    Sidecar(&'static str),
    /// A Secret that a key task checks is not there.
    Secret(&'static str, ConditionType),
    /// The old pod does not go, so it is never replaced.
    OldPodStays,
    /// The new pod's image cannot be pulled, so it is never observed.
    NewImageUnpullable,
}

/// A moment of an update, and whether the gate of an evicted pod opens while it lasts: later than
/// the delete, the plan itself is on its way to the gate.
struct Moment {
    stop: Stop,
    gate_opens: bool,
}

const fn moment(stop: Stop, gate_opens: bool) -> Moment {
    Moment { stop, gate_opens }
}

const EARLY: [Moment; 8] = [
    moment(Stop::Secret("signing", ConditionType::SigningKeyReady), true),
    moment(Stop::Secret("p2p", ConditionType::NodeKeyReady), true),
    moment(Stop::Secret("ring", ConditionType::OperatorKeyringReady), true),
    moment(Stop::Sidecar("config-patch"), true),
    moment(Stop::Sidecar("config-validate"), true),
    moment(Stop::OldPodStays, false),
    moment(Stop::NewImageUnpullable, false),
    moment(Stop::Sidecar("mark-ready"), false),
];

const LATE: [Moment; 5] = [
    moment(Stop::OldPodStays, false),
    moment(Stop::NewImageUnpullable, false),
    moment(Stop::Sidecar("config-patch"), false),
    moment(Stop::Sidecar("config-validate"), false),
    moment(Stop::Sidecar("mark-ready"), false),
];

impl Stop {
    /// Sets it up, for tasks that come from now on.
    async fn set(self, play: &Play, node: &str) -> Result<Option<RuleId>> {
        match self {
            Self::Sidecar(task) => play.sidecars().hold(&play.scene.namespace, node, task),
            Self::Secret(name, _) => {
                secrets(play).delete(&format!("{name}-{node}"), &DeleteParams::default()).await?;
            }
            Self::OldPodStays => {
                return Ok(Some(play.node_is(node, Behaviour::StuckTerminating)));
            }
            Self::NewImageUnpullable => {
                let image = format!("seid:v2-{node}");
                return Ok(Some(play.image_is(&image, Behaviour::ImageUnpullable)));
            }
        }
        Ok(None)
    }

    /// Waits until the plan stands there.
    async fn reached(self, play: &Play, node: &str, before: usize) -> Result<()> {
        match self {
            Self::Sidecar(task) => play.until_submitted(node, task, before).await,
            Self::Secret(_, kind) => {
                let waits = |status: &_| says(status, kind).starts_with("False");
                play.until(node, "its key is missed", waits).await.map(drop)
            }
            Self::OldPodStays => {
                let what = "its old pod is to go";
                play.until_pod(node, what, PodView::is_terminating).await.map(drop)
            }
            Self::NewImageUnpullable => {
                play.until_pod_of(node, &format!("seid:v2-{node}")).await.map(drop)
            }
        }
    }

    async fn lift(self, play: &Play, node: &str, rule: Option<RuleId>) -> Result<()> {
        match (self, rule) {
            (Self::Sidecar(task), _) => play.sidecars().release(&play.scene.namespace, node, task),
            (Self::Secret(name, _), _) => make_secret(play, name, node).await?,
            (_, Some(rule)) => play.lift(rule),
            _ => {}
        }
        Ok(())
    }
}

fn secrets(play: &Play) -> Api<Secret> {
    Api::namespaced(play.scene.admin.clone(), &play.scene.namespace)
}

/// One of the Secrets of a validator that has all kinds of keys.
async fn make_secret(play: &Play, name: &str, node: &str) -> Result<()> {
    let key = json!({ "type": "t", "value": "v" });
    let signing = json!({ "address": node, "pub_key": key, "priv_key": key }).to_string();
    let files = match name {
        "signing" => json!({ "priv_validator_key.json": signing }),
        "p2p" => json!({ "node_key.json": json!({ "priv_key": key }).to_string() }),
        "ring" => json!({ "treasury.info": "key", "0a0a.address": "address" }),
        _ => json!({ "passphrase": "passphrase" }),
    };
    let name = format!("{name}-{node}");
    let secret = json!({ "metadata": { "name": name }, "stringData": files });
    let secret: Secret = serde_json::from_value(secret)?;
    secrets(play).create(&PostParams::default(), &secret).await?;
    Ok(())
}

/// A validator with all kinds of keys.
fn keyed(node: &str) -> Value {
    let secret = |name: &str| json!({ "secretName": format!("{name}-{node}") });
    let mut ring = secret("ring");
    ring["keyName"] = json!("treasury");
    ring["passphraseSecretRef"] = secret("pass");
    ring["passphraseSecretRef"]["key"] = json!("passphrase");
    json!({ "chainId": "demo-1", "image": format!("seid:v1-{node}"), "validator": {
        "signingKey": { "secret": secret("signing") },
        "nodeKey": { "secret": secret("p2p") },
        "operatorKeyring": { "secret": ring },
    }})
}

/// One node, updated, with a hand coming in at one moment.
async fn in_update(play: &Play, node: &str, hand: Hand, moment: &Moment, late: bool) -> Result<()> {
    for name in ["signing", "p2p", "ring", "pass"] {
        make_secret(play, name, node).await?;
    }
    let spec = hand.prepare(play, node, keyed(node)).await?;
    play.run(node, spec).await?;
    let (uid, old) = (uid_of(play, node).await?, play.uid(node).await?);
    if late {
        play.image_is(&format!("seid:v1-{node}"), Behaviour::SidecarRefuses);
        play.until_pod(node, "its sidecar is silent", |pod| !pod.ready).await?;
    }
    let before = if let Stop::Sidecar(task) = moment.stop { play.submitted(node, task) } else { 0 };
    let rule = moment.stop.set(play, node).await?;
    play.set_image(node, &format!("seid:v2-{node}")).await?;
    moment.stop.reached(play, node, before).await?;
    hand.act(play, node).await?;
    if hand == Hand::Evict && moment.gate_opens {
        // On a slow machine the old pod's sidecar is given up before; then the pod is the new one.
        let new = format!("seid:v2-{node}");
        play.until_pod(node, "the gate of another pod opens", |pod| {
            pod.uid != old && (pod.seid.started || pod.seid.image == new)
        })
        .await?;
    }
    moment.stop.lift(play, node, rule).await?;
    hand.check(play, node, &uid, 2).await
}

/// A hand at each task of an update at which it can be made to wait.
async fn at_each_task_of_an_update(name: &str, hand: Hand, late: bool) -> Result<()> {
    let play = Play::open(name).await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    let moments: &[Moment] = if late { &LATE } else { &EARLY };
    let on = &play;
    let runs = moments.iter().enumerate().map(|(index, moment)| async move {
        let run = in_update(on, &format!("val-{index}"), hand, moment, late).await;
        run.with_context(|| format!("{hand:?} at {:?}, late {late}", moment.stop))
    });
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    play.close().await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_an_update_leaves_nothing() -> Result<()> {
    at_each_task_of_an_update("del-early", Hand::Delete, false).await
}

#[tokio::test]
async fn a_node_deleted_at_any_task_of_a_late_update_leaves_what_was_not_its_own() -> Result<()> {
    at_each_task_of_an_update("del-late", Hand::DeleteImported, true).await
}

#[tokio::test]
async fn another_image_at_any_task_of_an_update_is_what_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("edit-early", Hand::Edit, false).await
}

#[tokio::test]
async fn another_image_at_any_task_of_a_late_update_is_what_runs_in_the_end() -> Result<()> {
    at_each_task_of_an_update("edit-late", Hand::Edit, true).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_an_update_gets_its_gate_opened_again() -> Result<()> {
    at_each_task_of_an_update("evict-early", Hand::Evict, false).await
}

#[tokio::test]
async fn a_pod_evicted_at_any_task_of_a_late_update_gets_its_gate_opened_again() -> Result<()> {
    at_each_task_of_an_update("evict-late", Hand::Evict, true).await
}

/// For each task type that a sidecar has to do when a node is new, a mode in which it does.
async fn sidecar_tasks(play: &Play) -> Result<Vec<(String, Value, &'static str)>> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for (mode, spec) in modes() {
        play.create(mode, spec.clone()).await?;
        let planned = play.until(mode, "there is a plan", |status| status.plan.is_some()).await?;
        let tasks = planned.plan.context("it was just seen")?.tasks;
        let types = tasks.iter().filter_map(PlannedTask::task_type);
        for task in types.filter(|task| task.side() == Side::Sidecar) {
            if known.insert(task.as_str()) {
                let node = format!("{mode}-{}", known.len());
                found.push((node, spec.clone(), task.as_str()));
            }
        }
    }
    assert!(found.len() >= 10, "{found:?}");
    Ok(found)
}

/// One new node, with a hand coming in while its sidecar is at a task of this type.
async fn in_creation(
    play: &Play,
    node: &str,
    spec: Value,
    task: &'static str,
    hand: Hand,
) -> Result<()> {
    let spec = hand.prepare(play, node, spec).await?;
    play.sidecars().hold(&play.scene.namespace, node, task);
    play.create(node, spec).await?;
    let uid = uid_of(play, node).await?;
    play.until_submitted(node, task, 0).await?;
    let status = play.status(node).await?;
    ensure!(status.phase == Some(SeiNodePhase::Initializing), "{:?}", status.phase);
    hand.act(play, node).await?;
    play.sidecars().release(&play.scene.namespace, node, task);
    hand.check(play, node, &uid, 2).await
}

async fn at_each_sidecar_task_of_a_creation(name: &str, hand: Hand) -> Result<()> {
    let play = Play::open(name).await?;
    play.validator_keys("signing", "p2p").await?;
    play.scene.kubelet().treat_claims(&play.scene.namespace, ClaimRule::BindToVolume);
    let tasks = sidecar_tasks(&play).await?;
    let on = &play;
    let runs = tasks.into_iter().map(|(node, spec, task)| async move {
        let run = in_creation(on, &node, spec, task, hand).await;
        run.with_context(|| format!("{hand:?} at {task}"))
    });
    futures::stream::iter(runs).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    play.close().await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_task_of_its_sidecar_leaves_nothing() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init", Hand::Delete).await
}

#[tokio::test]
async fn a_new_node_deleted_at_any_task_of_its_sidecar_leaves_what_was_not_its_own() -> Result<()> {
    at_each_sidecar_task_of_a_creation("del-init-imp", Hand::DeleteImported).await
}

#[tokio::test]
async fn a_new_nodes_pod_evicted_at_any_task_of_its_sidecar_costs_one_pod() -> Result<()> {
    at_each_sidecar_task_of_a_creation("evict-init", Hand::Evict).await
}

#[tokio::test]
async fn a_new_node_deleted_while_it_waits_leaves_nothing() -> Result<()> {
    let play = Play::open("del-waiting").await?;
    let mut imported = rpc("seid:v1");
    imported["dataVolume"] = json!({ "import": { "pvcName": "absent" } });
    play.node_is("boot", Behaviour::Halted);
    play.create("boot", bootstrapped()).await?;
    play.create("keyless", keyed("keyless")).await?;
    play.create("imported", imported).await?;
    play.until_submitted("boot", "mark-ready", 0).await?;
    for (node, kind) in
        [("keyless", ConditionType::SigningKeyReady), ("imported", ConditionType::ImportPvcReady)]
    {
        let waits = |status: &_| says(status, kind).starts_with("False");
        play.until(node, &format!("{kind:?} is not so"), waits).await?;
    }
    for node in ["boot", "keyless", "imported"] {
        let uid = uid_of(&play, node).await?;
        Hand::Delete.act(&play, node).await?;
        Hand::Delete.check(&play, node, &uid, 0).await?;
    }
    play.close().await
}
