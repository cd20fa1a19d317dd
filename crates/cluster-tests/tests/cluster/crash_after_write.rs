//! An operator that crashes after each of its writes in turn, and its successor.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::interceptor::{LastResponse, Write};
use cluster_tests::scenario::{Scenario, format_requests, rpc, validator};
use cluster_tests::wait_for;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use sei_api::names;
use sei_plan::view::{PodView, StatefulSetView};
use serde_json::{Value, json};

use crate::modes::modes;

/// The change of a node in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// It gets another image.
    Update,
    /// Its pod gets another label; a validator takes a slot for that.
    Relabel,
    /// Its pod is evicted.
    Eviction,
    /// Its Service and its proxy's ConfigMap are deleted, and the update strategy is changed.
    Repair,
    /// It is created.
    Creation,
    /// It is deleted.
    Deletion,
}

impl Change {
    /// The node of a round: the same for all rounds, unless it is created or deleted in each.
    fn node(self, round: usize) -> String {
        match self {
            Self::Creation | Self::Deletion => format!("node-{round}"),
            _ => "node".to_owned(),
        }
    }

    /// Creates the node that the round needs.
    async fn prepare(self, scenario: &mut Scenario, round: usize, spec: &Value) -> Result<()> {
        if self == Self::Creation || (self != Self::Deletion && round > 1) {
            return Ok(());
        }
        let node = self.node(round);
        scenario.start_intercepted_operator(LastResponse::Delivered).await?;
        scenario.run(&node, spec.clone()).await?;
        stop_operator(scenario).await
    }

    async fn apply(self, scenario: &Scenario, round: usize, spec: &Value) -> Result<()> {
        let (node, params) = (self.node(round), DeleteParams::default());
        match self {
            Self::Update => scenario.set_image(&node, &format!("seid:v{round}")).await?,
            Self::Relabel => {
                let labels = json!({ "round": round.to_string() });
                scenario.edit(&node, json!({ "spec": { "podLabels": labels } })).await?;
            }
            Self::Eviction => scenario.evict(&node).await?,
            Self::Repair => {
                scenario.services().delete(&node, &params).await?;
                scenario.config_maps().delete(&names::proxy_config(&node), &params).await?;
                let strategy = json!({ "spec": { "updateStrategy": { "type": "RollingUpdate" } } });
                let (params, patch) = (PatchParams::default(), Patch::Merge(strategy));
                scenario.statefulsets().patch(&node, &params, &patch).await?;
            }
            Self::Creation => scenario.create(&node, spec.clone()).await?,
            Self::Deletion => drop(scenario.nodes().delete(&node, &params).await?),
        }
        Ok(())
    }

    /// Waits until the operator has handled the change. `old` is the uid of the pod before it.
    async fn until_handled(
        self,
        scenario: &Scenario,
        round: usize,
        old: Option<&str>,
    ) -> Result<()> {
        let node = &self.node(round);
        match self {
            Self::Update | Self::Creation => {}
            Self::Relabel => {
                let desired = Some(round.to_string());
                wait_for("a pod has the label", async || {
                    let pod = scenario.pods().get_opt(&names::pod(node)).await?;
                    let label = pod.and_then(|pod| pod.labels().get("round").cloned());
                    Ok((label == desired).then_some(()))
                })
                .await?;
                scenario
                    .until(node, "its slot is released", |status| {
                        let last = status.last_update.as_ref();
                        status.plan.is_none() && last.is_some_and(|last| last.ready_at.is_some())
                    })
                    .await?;
            }
            Self::Eviction => {
                let opens = |pod: &PodView| Some(pod.uid.as_str()) != old && pod.seid.started;
                scenario.until_pod(node, "the gate of another pod opens", opens).await?;
            }
            Self::Repair => until_repaired(scenario, node).await?,
            Self::Deletion => {
                scenario.until_deleted(node).await?;
                return wait_for("its claim is deleted", async || {
                    let claim = scenario.claims().get_opt(&names::data_claim(node)).await?;
                    Ok(claim.is_none().then_some(()))
                })
                .await;
            }
        }
        scenario.settled(node).await
    }

    /// How many pods the node of a round has had at the end of the round.
    fn pods(self, round: usize, spec: &Value) -> usize {
        let replays = !spec["fullNode"]["snapshot"]["bootstrapImage"].is_null();
        match self {
            Self::Update | Self::Relabel | Self::Eviction => round + 1,
            Self::Repair | Self::Creation | Self::Deletion => 1 + usize::from(replays),
        }
    }
}

async fn until_repaired(scenario: &Scenario, node: &str) -> Result<()> {
    wait_for("the Service, the ConfigMap and the update strategy are restored", async || {
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let service = scenario.services().get_opt(node).await?;
        let config = scenario.config_maps().get_opt(&names::proxy_config(node)).await?;
        let is_repaired = statefulset.on_delete && service.is_some() && config.is_some();
        Ok(is_repaired.then_some(()))
    })
    .await
}

/// Stops the operator gracefully: its remaining writes belong to this round.
async fn stop_operator(scenario: &mut Scenario) -> Result<()> {
    let mut requests = scenario.requests();
    let stopped = scenario.operator.take().context("no operator runs")?.stop();
    let stopped = tokio::time::timeout(Duration::from_secs(60), stopped).await;
    let requests = requests.read_new()?;
    let message = || {
        format!(
            "the operator did not stop; its requests since then:\n{}",
            format_requests(&requests)
        )
    };
    stopped.with_context(message)?.with_context(message)
}

/// Rounds in which the operator crashes after a write that no operator before it crashed after, and
/// the next one takes over, until one completes the change. Returns the writes before the crashes.
async fn crash_after_each_write(
    scenario: &mut Scenario,
    change: Change,
    spec: fn(usize) -> Value,
    last_response: LastResponse,
) -> Result<BTreeSet<Write>> {
    let mut crashes = BTreeSet::new();
    for round in 1.. {
        let (node, spec) = (change.node(round), spec(round));
        scenario
            .create_validator_keys(&format!("signing-{round}"), &format!("p2p-{round}"))
            .await?;
        change.prepare(scenario, round, &spec).await?;
        let old = scenario.pod(&node).await?.map(|pod| pod.uid);
        let interceptor = scenario.start_intercepted_operator(last_response).await?;
        interceptor.block_after_write_not_in(&crashes);
        change.apply(scenario, round, &spec).await?;
        let mut crash = tokio::select! {
            biased;
            write = interceptor.blocked() => Some(write),
            handled = change.until_handled(scenario, round, old.as_deref()) => {
                handled.map(|()| None)?
            }
        };
        if crash.is_none() {
            // The operator publishes its events last.
            crash = tokio::select! {
                biased;
                write = interceptor.blocked() => Some(write),
                stopped = stop_operator(scenario) => {
                    stopped.with_context(|| format!("{change:?}, round {round}"))?;
                    None
                }
            };
        }
        let description =
            format!("{change:?}, round {round}, crash after {crash:?}, response {last_response:?}");
        if crash.is_some() {
            scenario.start_intercepted_operator(last_response).await?;
            let handled = change.until_handled(scenario, round, old.as_deref()).await;
            handled.with_context(|| description.clone())?;
            stop_operator(scenario).await.with_context(|| description.clone())?;
        }
        let (seen, pods) = (scenario.pods_seen(&node).await?, change.pods(round, &spec));
        ensure!(seen == pods, "{seen} pods, not {pods}: {description}");
        let Some(write) = crash else { break };
        crashes.insert(write);
    }
    Ok(crashes)
}

/// Asserts that there was a write of each of these kinds.
pub(crate) fn assert_kinds(writes: &BTreeSet<Write>, expected: &[&str]) {
    let kinds: BTreeSet<&str> = writes.iter().map(|(kind, _)| kind.as_str()).collect();
    let missing: Vec<_> = expected.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missing.is_empty(), "no write of {missing:?} in {writes:?}");
}

/// The kinds of writes that every update of a node contains.
pub(crate) const IN_UPDATE: [&str; 5] =
    ["DELETE pods", "PATCH seinodes/status", "PATCH statefulsets", "POST events", "POST pods"];

/// The kinds of writes that every creation of a node contains.
pub(crate) const IN_CREATION: [&str; 7] = [
    "PATCH seinodes",
    "PATCH seinodes/status",
    "POST configmaps",
    "POST events",
    "POST persistentvolumeclaims",
    "POST services",
    "POST statefulsets",
];

async fn crash_in(
    name: &str,
    change: Change,
    spec: fn(usize) -> Value,
    last_response: LastResponse,
    expected: &[&str],
) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    let crashes =
        Box::pin(crash_after_each_write(&mut scenario, change, spec, last_response)).await?;
    assert_kinds(&crashes, expected);
    scenario.close().await
}

fn rpc_node(_round: usize) -> Value {
    rpc("seid:v0")
}

fn validator_node(round: usize) -> Value {
    validator("seid:v0", &format!("signing-{round}"), &format!("p2p-{round}"))
}

fn bootstrapped(_round: usize) -> Value {
    let (_, spec) = modes().pop().expect("the last mode is a bootstrap");
    spec
}

#[tokio::test]
async fn an_update_survives_a_crash_after_each_unanswered_write() -> Result<()> {
    crash_in("crash-upd", Change::Update, rpc_node, LastResponse::Lost, &IN_UPDATE).await
}

#[tokio::test]
async fn an_update_survives_a_crash_after_each_write() -> Result<()> {
    crash_in("crash-upd-answered", Change::Update, rpc_node, LastResponse::Delivered, &IN_UPDATE)
        .await
}

#[tokio::test]
async fn a_validators_update_survives_a_crash_after_each_unanswered_write() -> Result<()> {
    crash_in("crash-val", Change::Update, validator_node, LastResponse::Lost, &IN_UPDATE).await
}

#[tokio::test]
async fn a_validators_update_survives_a_crash_after_each_write() -> Result<()> {
    crash_in(
        "crash-val-answered",
        Change::Update,
        validator_node,
        LastResponse::Delivered,
        &IN_UPDATE,
    )
    .await
}

#[tokio::test]
async fn a_roll_in_a_slot_survives_a_crash_after_each_write() -> Result<()> {
    crash_in("crash-slot", Change::Relabel, validator_node, LastResponse::Lost, &IN_UPDATE[..4])
        .await
}

#[tokio::test]
async fn a_gate_is_opened_despite_a_crash_after_each_write() -> Result<()> {
    let expected = ["PATCH seinodes/status"];
    crash_in("crash-gate", Change::Eviction, validator_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn repairs_survive_a_crash_after_each_write() -> Result<()> {
    let expected = ["POST configmaps", "POST services", "PATCH statefulsets"];
    crash_in("crash-repair", Change::Repair, rpc_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_creation_survives_a_crash_after_each_unanswered_write() -> Result<()> {
    crash_in("crash-new", Change::Creation, validator_node, LastResponse::Lost, &IN_CREATION).await
}

#[tokio::test]
async fn a_creation_survives_a_crash_after_each_write() -> Result<()> {
    crash_in(
        "crash-new-answered",
        Change::Creation,
        validator_node,
        LastResponse::Delivered,
        &IN_CREATION,
    )
    .await
}

#[tokio::test]
async fn a_bootstrap_survives_a_crash_after_each_write() -> Result<()> {
    let own = ["POST jobs", "POST services", "DELETE jobs", "DELETE services"];
    let expected = [&IN_CREATION[..], &own].concat();
    crash_in("crash-boot", Change::Creation, bootstrapped, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_deletion_survives_a_crash_after_each_write() -> Result<()> {
    let expected = ["DELETE persistentvolumeclaims", "PATCH seinodes", "PATCH seinodes/status"];
    crash_in("crash-del", Change::Deletion, rpc_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_deletion_survives_a_crash_after_each_answered_write() -> Result<()> {
    let expected = ["DELETE persistentvolumeclaims", "PATCH seinodes", "PATCH seinodes/status"];
    crash_in("crash-del-answered", Change::Deletion, rpc_node, LastResponse::Delivered, &expected)
        .await
}
