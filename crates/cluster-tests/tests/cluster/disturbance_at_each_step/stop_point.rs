//! Points at which a plan can be made to wait.

use anyhow::Result;
use cluster_tests::scenario::{Scenario, condition_text};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, PostParams};
use sei_api::condition::ConditionType;
use sei_plan::view::PodView;
use sei_rig::{Behaviour, RuleId};
use serde_json::{Value, json};

/// A condition that keeps a plan at one of its tasks.
#[derive(Clone, Copy, Debug)]
pub(super) enum StopPoint {
    /// Sidecar tasks of this type do not complete.
    Sidecar(&'static str),
    /// A Secret that a key task checks does not exist.
    Secret(&'static str, ConditionType),
    /// The old pod stays terminating, so it is never replaced.
    OldPodStays,
    /// The image of the new pod can no longer be pulled, so it is never observed.
    NewImageUnpullable,
}

/// A step of an update, and whether the gate of an evicted pod opens during it: after the delete,
/// opening the gate is a later task of the plan itself.
pub(super) struct Step {
    pub(super) stop_point: StopPoint,
    pub(super) gate_opens: bool,
}

const fn step(stop_point: StopPoint, gate_opens: bool) -> Step {
    Step { stop_point, gate_opens }
}

/// The steps of an update while the sidecar of the old pod answers.
pub(super) const STEPS_WITH_SIDECAR: [Step; 8] = [
    step(StopPoint::Secret("signing", ConditionType::SigningKeyReady), true),
    step(StopPoint::Secret("p2p", ConditionType::NodeKeyReady), true),
    step(StopPoint::Secret("ring", ConditionType::OperatorKeyringReady), true),
    step(StopPoint::Sidecar("config-patch"), true),
    step(StopPoint::Sidecar("config-validate"), true),
    step(StopPoint::OldPodStays, false),
    step(StopPoint::NewImageUnpullable, false),
    step(StopPoint::Sidecar("mark-ready"), false),
];

/// The steps of an update while the sidecar of the old pod does not answer: its configuration is
/// written after the replacement.
pub(super) const STEPS_WITHOUT_SIDECAR: [Step; 5] = [
    step(StopPoint::OldPodStays, false),
    step(StopPoint::NewImageUnpullable, false),
    step(StopPoint::Sidecar("config-patch"), false),
    step(StopPoint::Sidecar("config-validate"), false),
    step(StopPoint::Sidecar("mark-ready"), false),
];

impl StopPoint {
    /// Sets it up for the tasks that start from now on.
    pub(super) async fn set(self, scenario: &Scenario, node: &str) -> Result<Option<RuleId>> {
        match self {
            Self::Sidecar(task) => scenario.sidecars().hold(scenario.namespace(), node, task),
            Self::Secret(name, _) => {
                secrets(scenario)
                    .delete(&format!("{name}-{node}"), &DeleteParams::default())
                    .await?;
            }
            Self::OldPodStays => {
                return Ok(Some(scenario.set_node_behaviour(node, Behaviour::StuckTerminating)));
            }
            Self::NewImageUnpullable => {
                let image = format!("seid:v2-{node}");
                return Ok(Some(scenario.set_image_behaviour(&image, Behaviour::ImageVanishes)));
            }
        }
        Ok(None)
    }

    /// Waits until the plan has reached it.
    pub(super) async fn until_reached(
        self,
        scenario: &Scenario,
        node: &str,
        before: usize,
    ) -> Result<()> {
        match self {
            Self::Sidecar(task) => scenario.until_submitted(node, task, before).await,
            Self::Secret(_, kind) => {
                let waits = |status: &_| condition_text(status, kind).starts_with("False");
                scenario.until(node, "its key is reported as missing", waits).await.map(drop)
            }
            Self::OldPodStays => {
                let claim = "its old pod is terminating";
                scenario.until_pod(node, claim, PodView::is_terminating).await.map(drop)
            }
            Self::NewImageUnpullable => {
                scenario.until_pod_of(node, &format!("seid:v2-{node}")).await.map(drop)
            }
        }
    }

    pub(super) async fn lift(
        self,
        scenario: &Scenario,
        node: &str,
        rule: Option<RuleId>,
    ) -> Result<()> {
        match (self, rule) {
            (Self::Sidecar(task), _) => {
                scenario.sidecars().release(scenario.namespace(), node, task);
            }
            (Self::Secret(name, _), _) => create_key_secret(scenario, name, node).await?,
            (_, Some(rule)) => scenario.lift(rule),
            _ => {}
        }
        Ok(())
    }
}

fn secrets(scenario: &Scenario) -> Api<Secret> {
    Api::namespaced(scenario.admin(), scenario.namespace())
}

/// Creates one of the Secrets of a validator that has all kinds of keys.
pub(super) async fn create_key_secret(scenario: &Scenario, name: &str, node: &str) -> Result<()> {
    let key = json!({ "type": "t", "value": "v" });
    let signing = sei_plan::signing_key::made_up(node).to_string();
    let files = match name {
        "signing" => json!({ "priv_validator_key.json": signing }),
        "p2p" => json!({ "node_key.json": json!({ "priv_key": key }).to_string() }),
        "ring" => json!({ "treasury.info": "key", "0a0a.address": "address" }),
        _ => json!({ "passphrase": "passphrase" }),
    };
    let name = format!("{name}-{node}");
    let secret = json!({ "metadata": { "name": name }, "stringData": files });
    let secret: Secret = serde_json::from_value(secret)?;
    secrets(scenario).create(&PostParams::default(), &secret).await?;
    Ok(())
}

/// The spec of a validator with all kinds of keys.
pub(super) fn validator_with_all_keys(node: &str) -> Value {
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
