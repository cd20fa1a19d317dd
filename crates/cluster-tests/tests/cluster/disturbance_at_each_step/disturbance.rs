//! Disturbances of a node in the middle of a plan, and the checks of the final state.

use std::fmt::Debug;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::scenario::Scenario;
use cluster_tests::wait_for;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt as _};
use sei_api::names::{self, label};
use sei_plan::view::{PodView, StatefulSetView};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The image that `Disturbance::Edit` sets.
const THIRD_IMAGE: &str = "seid:v3";

/// A change by a person or another program in the middle of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// Deletes the node, which has a volume of its own.
    Delete,
    /// Deletes the node, whose volume is imported; an unrelated claim has the name that the node's
    /// own claim would have had.
    DeleteImported,
    /// Evicts the pod, if there is one.
    Evict,
    /// Sets a third image.
    Edit,
    /// Sets the first image again.
    Revert,
    /// Removes all fields from the status.
    Wipe,
    /// Marks all tasks of the plan in the status as complete.
    ForgeTasks,
    /// Changes the target image of the plan in the status to one that no spec has.
    ForgeTarget,
    /// Sets the template hash in the status to the hash of the plan's target.
    ForgeHash,
}

/// The state of a node before the disturbance.
pub(super) struct Before {
    pub(super) node: String,
    pub(super) uid: String,
    /// The first image of its spec.
    image: String,
    /// The uid of its pod, unless the pod was terminating.
    pod: Option<String>,
    /// Whether that pod has the first image.
    runs_first_image: bool,
    /// Whether it has never run.
    is_new: bool,
}

/// The effect of a disturbance.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Applied,
    /// There was no object to disturb.
    NoOp,
}

impl Before {
    /// `image` is the first image of the node's spec.
    pub(super) async fn of(scenario: &Scenario, node: &str, image: &str) -> Result<Self> {
        let object = scenario.node(node).await?;
        let uid = object.metadata.uid.context("the node has no uid")?;
        let is_new = object.status.is_none_or(|status| status.current_image.is_none());
        let pod = scenario.pod(node).await?.filter(|pod| !pod.is_terminating());
        let runs_first_image = pod.as_ref().is_some_and(|pod| pod.seid.image == image);
        Ok(Self {
            node: node.to_owned(),
            uid,
            image: image.to_owned(),
            pod: pod.map(|pod| pod.uid),
            runs_first_image,
            is_new,
        })
    }
}

/// Evicts the node's current pod. A pod that is terminating or was deleted meanwhile does not
/// count: its successor may have the same name by then.
async fn evict(scenario: &Scenario, node: &str) -> Result<Effect> {
    let current = scenario.pod(node).await?.filter(|pod| !pod.is_terminating());
    let Some(pod) = current else { return Ok(Effect::NoOp) };
    let uid = Preconditions { uid: Some(pod.uid), resource_version: None };
    let params = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
    match scenario.pods().delete(&names::pod(node), &params).await {
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(Effect::NoOp),
        deleted => deleted.map(|_| Effect::Applied).map_err(Into::into),
    }
}

impl Disturbance {
    /// Creates what the disturbance needs, and returns the spec to use.
    pub(super) async fn prepare(
        self,
        scenario: &Scenario,
        node: &str,
        mut spec: Value,
    ) -> Result<Value> {
        // Each node stops at a task of its own: they must not wait for each other's turns.
        spec["update"] = json!({ "onImageChange": "AtOnce" });
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                create_claim(scenario, &name).await?;
            }
            spec["dataVolume"] = json!({ "import": { "pvcName": format!("history-{node}") } });
        }
        Ok(spec)
    }

    pub(super) async fn apply(self, scenario: &Scenario, before: &Before) -> Result<Effect> {
        let (node, params) = (before.node.as_str(), DeleteParams::default());
        match self {
            Self::Evict => return evict(scenario, node).await,
            Self::Edit => scenario.set_image(node, THIRD_IMAGE).await?,
            Self::Revert => scenario.set_image(node, &before.image).await?,
            Self::Wipe => scenario.wipe_status(node).await?,
            Self::ForgeTasks | Self::ForgeTarget | Self::ForgeHash => {
                self.forge(scenario, node).await?;
            }
            Self::Delete | Self::DeleteImported => {
                drop(scenario.nodes().delete(node, &params).await?);
            }
        }
        Ok(Effect::Applied)
    }

    /// Forges the status. Without a stored plan there is no target to forge.
    async fn forge(self, scenario: &Scenario, node: &str) -> Result<()> {
        let status = scenario.status(node).await?;
        let target = status.plan.as_ref().and_then(|plan| plan.target.as_ref());
        let forged = match self {
            Self::ForgeHash => json!({ "podTemplateHash": target.map(|target| &target.hash) }),
            Self::ForgeTarget => json!({ "plan": { "target": { "image": "seid:forged" } } }),
            _ => {
                let mut tasks = serde_json::to_value(status.plan.as_ref().map(|plan| &plan.tasks))?;
                for task in tasks.as_array_mut().into_iter().flatten() {
                    task["status"] = json!("Complete");
                }
                json!({ "plan": { "tasks": tasks } })
            }
        };
        if target.is_some() {
            scenario.edit_status(node, forged).await?;
        }
        Ok(())
    }

    /// Checks the final state. Without the disturbance the node would have had this many pods.
    pub(super) async fn check(
        self,
        scenario: &Scenario,
        before: &Before,
        effect: Effect,
        pods: usize,
    ) -> Result<()> {
        let node = before.node.as_str();
        match self {
            Self::Delete | Self::DeleteImported => {
                return self.check_deleted(scenario, before).await;
            }
            Self::Revert => return check_reverted(scenario, before, pods).await,
            _ => scenario.settled(node).await?,
        }
        let expected = match self {
            // The pod of a new node is never replaced, so each eviction costs a pod.
            Self::Evict if before.is_new => {
                let evicted = usize::from(effect == Effect::Applied);
                pods + evicted..=pods + evicted
            }
            // The evicted pod may have been the one that the update replaces.
            Self::Evict => pods..=pods + usize::from(effect == Effect::Applied),
            // A pod of the second image is replaced too.
            Self::Edit => pods..=pods + 1,
            // A changed status is no reason to replace a pod.
            _ => pods..=pods,
        };
        let seen = scenario.pods_seen(node).await?;
        ensure!(expected.contains(&seen), "{node}: {seen} pods, not {expected:?}");
        if before.is_new {
            // The gate must not open on an empty configuration, however often the plan restarted.
            ensure!(scenario.submitted(node, "config-apply") > 0, "{node} was never configured");
        }
        Ok(())
    }

    async fn check_deleted(self, scenario: &Scenario, before: &Before) -> Result<()> {
        let node = before.node.as_str();
        scenario.until_deleted(node).await?;
        let mut remaining = Vec::new();
        let cleared = wait_for("all its objects are deleted", async || {
            remaining = remaining_objects(scenario, before).await?;
            Ok(remaining.is_empty().then_some(()))
        });
        cleared.await.with_context(|| format!("remaining: {remaining:?}"))?;
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                let claim = scenario.claims().get(&name).await?;
                ensure!(claim.metadata.deletion_timestamp.is_none(), "{name} is deleted");
            }
        }
        Ok(())
    }
}

/// A pod of the first image that still existed at the time of the revert is not replaced; in any
/// case, the pod that follows an eviction has the first image.
async fn check_reverted(scenario: &Scenario, before: &Before, pods: usize) -> Result<()> {
    let (node, image) = (before.node.as_str(), before.image.as_str());
    scenario.settled(node).await?;
    let pod = scenario.until_pod_of(node, image).await?;
    let seen = scenario.pods_seen(node).await?;
    if before.runs_first_image {
        ensure!(Some(&pod.uid) == before.pod.as_ref() && seen == 1, "{node}: {seen} pods");
    } else {
        ensure!((pods..=pods + 1).contains(&seen), "{node}: {seen} pods");
    }
    wait_for(&format!("{node}: the StatefulSet's revision is that of its pod"), async || {
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let revision = statefulset.observed_revision();
        Ok((revision.is_some() && revision == pod.revision.as_deref()).then_some(()))
    })
    .await?;
    scenario.evict(node).await?;
    let is_next = |next: &PodView| next.uid != pod.uid && !next.is_terminating();
    let next = scenario.until_pod(node, "it has a new pod", is_next).await?;
    ensure!(
        next.seid.image == image,
        "{node}: the pod after the eviction has image {}",
        next.seid.image
    );
    let opens = |next: &PodView| next.uid != pod.uid && next.seid.started;
    scenario.until_pod(node, "the gate of the new pod is open", opens).await?;
    scenario.settled(node).await?;
    ensure!(
        scenario.pods_seen(node).await? == seen + 1,
        "{node}: {} pods",
        scenario.pods_seen(node).await?
    );
    Ok(())
}

async fn create_claim(scenario: &Scenario, name: &str) -> Result<()> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    scenario.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

/// The objects that still exist and belong to the node.
async fn remaining_objects(scenario: &Scenario, before: &Before) -> Result<Vec<String>> {
    let uid = before.uid.as_str();
    let mut remaining = owned::<StatefulSet>(scenario, uid).await?;
    remaining.extend(owned::<Job>(scenario, uid).await?);
    remaining.extend(owned::<Service>(scenario, uid).await?);
    remaining.extend(owned::<ConfigMap>(scenario, uid).await?);
    remaining.extend(owned::<PersistentVolumeClaim>(scenario, uid).await?);
    let labelled = ListParams::default().labels(&format!("{}={}", label::NODE, before.node));
    let pods: Api<Pod> = scenario.pods();
    remaining
        .extend(pods.list(&labelled).await?.iter().map(|pod| format!("Pod {}", pod.name_any())));
    Ok(remaining)
}

async fn owned<K>(scenario: &Scenario, uid: &str) -> Result<Vec<String>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + DeserializeOwned + Debug,
{
    let all: Api<K> = Api::namespaced(scenario.admin(), scenario.namespace());
    let all = all.list(&ListParams::default()).await?;
    let is_owned = |object: &&K| object.owner_references().iter().any(|owner| owner.uid == uid);
    let name = |object: &K| format!("{} {}", K::kind(&()), object.name_any());
    Ok(all.iter().filter(is_owned).map(name).collect())
}
