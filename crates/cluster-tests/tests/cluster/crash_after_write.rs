//! An operator that dies after each of its writes in turn, and the one that comes after it.

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

/// What happens to a node in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happening {
    /// It gets another image.
    Update,
    /// Its pod gets another label, for which a node that signs takes a slot.
    Relabel,
    /// Its pod is evicted.
    Eviction,
    /// Hands take its Service and its proxy's configuration away, and change how pods are replaced.
    Repair,
    /// It is new.
    Creation,
    /// It is deleted.
    Deletion,
}

impl Happening {
    /// The node of a round: one for all, unless it begins or ends.
    fn node(self, round: usize) -> String {
        match self {
            Self::Creation | Self::Deletion => format!("node-{round}"),
            _ => "node".to_owned(),
        }
    }

    /// Brings up what the round is about.
    async fn prepare(self, scenario: &mut Scenario, round: usize, spec: &Value) -> Result<()> {
        if self == Self::Creation || (self != Self::Deletion && round > 1) {
            return Ok(());
        }
        let node = self.node(round);
        scenario.start_intercepted_operator(LastResponse::Delivered).await?;
        scenario.run(&node, spec.clone()).await?;
        end_politely(scenario).await
    }

    async fn begin(self, scenario: &Scenario, round: usize, spec: &Value) -> Result<()> {
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

    /// Waits until all has been done about it. `old` is the pod from before.
    async fn over(self, scenario: &Scenario, round: usize, old: Option<&str>) -> Result<()> {
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
                    .until(node, "its slot is given back", |status| {
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
                return wait_for("its claim is gone", async || {
                    let claim = scenario.claims().get_opt(&names::data_claim(node)).await?;
                    Ok(claim.is_none().then_some(()))
                })
                .await;
            }
        }
        scenario.settled(node).await
    }

    /// How many pods there have been of the node of a round when that is over.
    fn pods(self, round: usize, spec: &Value) -> usize {
        let replays = !spec["fullNode"]["snapshot"]["bootstrapImage"].is_null();
        match self {
            Self::Update | Self::Relabel | Self::Eviction => round + 1,
            Self::Repair | Self::Creation | Self::Deletion => 1 + usize::from(replays),
        }
    }
}

async fn until_repaired(scenario: &Scenario, node: &str) -> Result<()> {
    wait_for("all is as it should be", async || {
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let service = scenario.services().get_opt(node).await?;
        let config = scenario.config_maps().get_opt(&names::proxy_config(node)).await?;
        let is_all = statefulset.on_delete && service.is_some() && config.is_some();
        Ok(is_all.then_some(()))
    })
    .await
}

/// Ends the operator, letting it finish: what it has still to write belongs to no other round.
async fn end_politely(scenario: &mut Scenario) -> Result<()> {
    let mut requests = scenario.requests();
    let ended = scenario.operator.take().context("there is an operator")?.stop();
    let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
    let asked = requests.read_new()?;
    let requests_after_stop = || {
        format!(
            "it does not end; once it was requests_after_stop to, it asked for\n{}",
            format_requests(&asked)
        )
    };
    ended.with_context(requests_after_stop)?.with_context(requests_after_stop)
}

/// Rounds in which the operator dies after a write that no operator before it died after, and the
/// next one takes over, until one comes to its end alive. Returns what they died after.
async fn die_after_each_write(
    scenario: &mut Scenario,
    happening: Happening,
    spec: fn(usize) -> Value,
    answer: LastResponse,
) -> Result<BTreeSet<Write>> {
    let mut deaths = BTreeSet::new();
    for round in 1.. {
        let (node, spec) = (happening.node(round), spec(round));
        scenario
            .create_validator_keys(&format!("signing-{round}"), &format!("p2p-{round}"))
            .await?;
        happening.prepare(scenario, round, &spec).await?;
        let old = scenario.pod(&node).await?.map(|pod| pod.uid);
        let interceptor = scenario.start_intercepted_operator(answer).await?;
        interceptor.block_after_write_not_in(&deaths);
        happening.begin(scenario, round, &spec).await?;
        let mut death = tokio::select! {
            biased;
            write = interceptor.blocked() => Some(write),
            over = happening.over(scenario, round, old.as_deref()) => over.map(|()| None)?,
        };
        if death.is_none() {
            // What it tells people comes last.
            death = tokio::select! {
                biased;
                write = interceptor.blocked() => Some(write),
                ended = end_politely(scenario) => {
                    ended.with_context(|| format!("{happening:?}, round {round}"))?;
                    None
                }
            };
        }
        let description =
            format!("{happening:?}, round {round}, died after {death:?}, answer {answer:?}");
        if death.is_some() {
            scenario.start_intercepted_operator(answer).await?;
            let over = happening.over(scenario, round, old.as_deref()).await;
            over.with_context(|| description.clone())?;
            end_politely(scenario).await.with_context(|| description.clone())?;
        }
        let (seen, pods) = (scenario.pods_seen(&node).await?, happening.pods(round, &spec));
        ensure!(seen == pods, "{seen} pods, not {pods}: {description}");
        let Some(write) = death else { break };
        deaths.insert(write);
    }
    Ok(deaths)
}

/// Whether there was a write of each of these kinds.
pub(crate) fn assert_kinds(writes: &BTreeSet<Write>, expected: &[&str]) {
    let kinds: BTreeSet<&str> = writes.iter().map(|(kind, _)| kind.as_str()).collect();
    let missed: Vec<_> = expected.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missed.is_empty(), "there was no {missed:?}: {writes:?}");
}

/// What the operator writes about a node at least while it gets another pod.
pub(crate) const IN_UPDATE: [&str; 4] =
    ["DELETE pods", "PATCH seinodes/status", "PATCH statefulsets", "POST events"];

/// And while it is new.
pub(crate) const IN_CREATION: [&str; 7] = [
    "PATCH configmaps",
    "PATCH seinodes",
    "PATCH seinodes/status",
    "PATCH services",
    "POST events",
    "POST persistentvolumeclaims",
    "POST statefulsets",
];

async fn die_in(
    name: &str,
    happening: Happening,
    spec: fn(usize) -> Value,
    answer: LastResponse,
    expected: &[&str],
) -> Result<()> {
    let mut scenario = Scenario::open_without_operator(name).await?;
    let deaths = Box::pin(die_after_each_write(&mut scenario, happening, spec, answer)).await?;
    assert_kinds(&deaths, expected);
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
    die_in("die-upd", Happening::Update, rpc_node, LastResponse::Lost, &IN_UPDATE).await
}

#[tokio::test]
async fn an_update_survives_a_crash_after_each_write() -> Result<()> {
    die_in("die-upd-told", Happening::Update, rpc_node, LastResponse::Delivered, &IN_UPDATE).await
}

#[tokio::test]
async fn a_validators_update_survives_a_crash_after_each_unanswered_write() -> Result<()> {
    die_in("die-val", Happening::Update, validator_node, LastResponse::Lost, &IN_UPDATE).await
}

#[tokio::test]
async fn a_validators_update_survives_a_crash_after_each_write() -> Result<()> {
    die_in("die-val-told", Happening::Update, validator_node, LastResponse::Delivered, &IN_UPDATE)
        .await
}

#[tokio::test]
async fn a_roll_in_a_slot_survives_a_crash_after_each_write() -> Result<()> {
    die_in("die-slot", Happening::Relabel, validator_node, LastResponse::Lost, &IN_UPDATE).await
}

#[tokio::test]
async fn a_gate_is_opened_despite_a_crash_after_each_write() -> Result<()> {
    let expected = ["PATCH seinodes/status"];
    die_in("die-gate", Happening::Eviction, validator_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn repairs_survive_a_crash_after_each_write() -> Result<()> {
    let expected = ["PATCH configmaps", "PATCH services", "PATCH statefulsets"];
    die_in("die-repair", Happening::Repair, rpc_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_creation_survives_a_crash_after_each_unanswered_write() -> Result<()> {
    die_in("die-new", Happening::Creation, validator_node, LastResponse::Lost, &IN_CREATION).await
}

#[tokio::test]
async fn a_creation_survives_a_crash_after_each_write() -> Result<()> {
    die_in(
        "die-new-told",
        Happening::Creation,
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
    die_in("die-boot", Happening::Creation, bootstrapped, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_deletion_survives_a_crash_after_each_write() -> Result<()> {
    let expected = ["DELETE persistentvolumeclaims", "PATCH seinodes", "PATCH seinodes/status"];
    die_in("die-gone", Happening::Deletion, rpc_node, LastResponse::Lost, &expected).await
}

#[tokio::test]
async fn a_deletion_survives_a_crash_after_each_answered_write() -> Result<()> {
    let expected = ["DELETE persistentvolumeclaims", "PATCH seinodes", "PATCH seinodes/status"];
    die_in("die-gone-told", Happening::Deletion, rpc_node, LastResponse::Delivered, &expected).await
}
