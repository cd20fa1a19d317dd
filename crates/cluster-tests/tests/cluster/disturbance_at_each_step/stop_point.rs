//! Where a plan can be made to wait.

use anyhow::Result;
use cluster_tests::scenario::{Scenario, condition_text};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, PostParams};
use sei_api::condition::ConditionType;
use sei_plan::view::PodView;
use sei_rig::{Behaviour, RuleId};
use serde_json::{Value, json};

/// What keeps a plan at one of its tasks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stop {
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
pub(super) struct Moment {
    pub(super) stop: Stop,
    pub(super) gate_opens: bool,
}

const fn moment(stop: Stop, gate_opens: bool) -> Moment {
    Moment { stop, gate_opens }
}

pub(super) const EARLY: [Moment; 8] = [
    moment(Stop::Secret("signing", ConditionType::SigningKeyReady), true),
    moment(Stop::Secret("p2p", ConditionType::NodeKeyReady), true),
    moment(Stop::Secret("ring", ConditionType::OperatorKeyringReady), true),
    moment(Stop::Sidecar("config-patch"), true),
    moment(Stop::Sidecar("config-validate"), true),
    moment(Stop::OldPodStays, false),
    moment(Stop::NewImageUnpullable, false),
    moment(Stop::Sidecar("mark-ready"), false),
];

pub(super) const LATE: [Moment; 5] = [
    moment(Stop::OldPodStays, false),
    moment(Stop::NewImageUnpullable, false),
    moment(Stop::Sidecar("config-patch"), false),
    moment(Stop::Sidecar("config-validate"), false),
    moment(Stop::Sidecar("mark-ready"), false),
];

impl Stop {
    /// Sets it up, for tasks that come from now on.
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
                return Ok(Some(scenario.set_image_behaviour(&image, Behaviour::ImageUnpullable)));
            }
        }
        Ok(None)
    }

    /// Waits until the plan stands there.
    pub(super) async fn reached(
        self,
        scenario: &Scenario,
        node: &str,
        before: usize,
    ) -> Result<()> {
        match self {
            Self::Sidecar(task) => scenario.until_submitted(node, task, before).await,
            Self::Secret(_, kind) => {
                let waits = |status: &_| condition_text(status, kind).starts_with("False");
                scenario.until(node, "its key is missed", waits).await.map(drop)
            }
            Self::OldPodStays => {
                let what = "its old pod is to go";
                scenario.until_pod(node, what, PodView::is_terminating).await.map(drop)
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
                scenario.sidecars().release(scenario.namespace(), node, task)
            }
            (Self::Secret(name, _), _) => make_secret(scenario, name, node).await?,
            (_, Some(rule)) => scenario.lift(rule),
            _ => {}
        }
        Ok(())
    }
}

fn secrets(scenario: &Scenario) -> Api<Secret> {
    Api::namespaced(scenario.admin(), scenario.namespace())
}

/// One of the Secrets of a validator that has all kinds of keys.
pub(super) async fn make_secret(scenario: &Scenario, name: &str, node: &str) -> Result<()> {
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
    secrets(scenario).create(&PostParams::default(), &secret).await?;
    Ok(())
}

/// A validator with all kinds of keys.
pub(super) fn keyed(node: &str) -> Value {
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
