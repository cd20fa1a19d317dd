//! What people and machines do to a node in the middle of a plan, and how it must end.

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

/// What is desired in the end by who changes their mind.
const THIRD: &str = "seid:v3";

/// What somebody does in the middle of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hand {
    /// Deletes the node, which has a volume of its own.
    Delete,
    /// Deletes the node, whose volume was there before it; another one bears the name that its own
    /// would have had.
    DeleteImported,
    /// Evicts the pod, if there is one.
    Evict,
    /// Wants a third image.
    Edit,
    /// Wants the first image again.
    Revert,
    /// Takes all fields out of the status.
    Wipe,
    /// Says in the status that the plan has done all it had to.
    ForgeTasks,
    /// Says in the status that the plan leads to an image that nobody wants.
    ForgeTarget,
    /// Says in the status that the pod was made from what is desired.
    ForgeHash,
}

/// A node as it was when the hand came in.
pub(super) struct Before {
    pub(super) node: String,
    pub(super) uid: String,
    /// What it was told to run first.
    image: String,
    /// Its pod, unless that was on its way out.
    pod: Option<String>,
    /// Whether that pod is of the first image.
    runs_first_image: bool,
    /// Whether it has never run.
    is_new: bool,
}

/// What came of a hand.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Done,
    /// There was nothing to do it to.
    Vain,
}

impl Before {
    /// `image` is what the node was told to run first.
    pub(super) async fn of(scenario: &Scenario, node: &str, image: &str) -> Result<Self> {
        let found = scenario.node(node).await?;
        let uid = found.metadata.uid.context("it has a uid")?;
        let is_new = found.status.is_none_or(|status| status.current_image.is_none());
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

/// Evicts the pod that is there. One that goes already, or has gone meanwhile, is none: the next may
/// have its name by then.
async fn evict(scenario: &Scenario, node: &str) -> Result<Deed> {
    let found = scenario.pod(node).await?.filter(|pod| !pod.is_terminating());
    let Some(pod) = found else { return Ok(Deed::Vain) };
    let uid = Preconditions { uid: Some(pod.uid), resource_version: None };
    let params = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
    match scenario.pods().delete(&names::pod(node), &params).await {
        Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => Ok(Deed::Vain),
        deleted => deleted.map(|_| Deed::Done).map_err(Into::into),
    }
}

impl Hand {
    /// The spec that this is done to, with all that it needs.
    pub(super) async fn prepare(
        self,
        scenario: &Scenario,
        node: &str,
        mut spec: Value,
    ) -> Result<Value> {
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                make_claim(scenario, &name).await?;
            }
            spec["dataVolume"] = json!({ "import": { "pvcName": format!("history-{node}") } });
        }
        Ok(spec)
    }

    pub(super) async fn act(self, scenario: &Scenario, before: &Before) -> Result<Deed> {
        let (node, params) = (before.node.as_str(), DeleteParams::default());
        match self {
            Self::Evict => return evict(scenario, node).await,
            Self::Edit => scenario.set_image(node, THIRD).await?,
            Self::Revert => scenario.set_image(node, &before.image).await?,
            Self::Wipe => scenario.wipe_status(node).await?,
            Self::ForgeTasks | Self::ForgeTarget | Self::ForgeHash => {
                self.forge(scenario, node).await?;
            }
            Self::Delete | Self::DeleteImported => {
                drop(scenario.nodes().delete(node, &params).await?)
            }
        }
        Ok(Deed::Done)
    }

    /// Writes a lie. Where no plan is stored any more there is less to lie about.
    async fn forge(self, scenario: &Scenario, node: &str) -> Result<()> {
        let status = scenario.status(node).await?;
        let target = status.plan.as_ref().and_then(|plan| plan.target.as_ref());
        let lie = match self {
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
            scenario.edit_status(node, lie).await?;
        }
        Ok(())
    }

    /// Whether all is as it should be in the end. Without a hand it would have taken this many pods.
    pub(super) async fn check(
        self,
        scenario: &Scenario,
        before: &Before,
        deed: Deed,
        pods: usize,
    ) -> Result<()> {
        let node = before.node.as_str();
        match self {
            Self::Delete | Self::DeleteImported => return self.check_gone(scenario, before).await,
            Self::Revert => return check_reverted(scenario, before, pods).await,
            _ => scenario.settled(node).await?,
        }
        let expected = match self {
            // What is new is never replaced, so each eviction costs a pod.
            Self::Evict if before.is_new => {
                let evicted = usize::from(deed == Deed::Done);
                pods + evicted..=pods + evicted
            }
            // The pod may have been the one to be replaced.
            Self::Evict => pods..=pods + usize::from(deed == Deed::Done),
            // What came up of the image before is replaced too.
            Self::Edit => pods..=pods + 1,
            // Words in a status are no reason to replace anything.
            _ => pods..=pods,
        };
        let seen = scenario.pods_seen(node).await?;
        ensure!(expected.contains(&seen), "{node}: {seen} pods, not {expected:?}");
        if before.is_new {
            // However often it began anew: no gate was opened on a blank configuration.
            ensure!(scenario.submitted(node, "config-apply") > 0, "{node} was never configured");
        }
        Ok(())
    }

    async fn check_gone(self, scenario: &Scenario, before: &Before) -> Result<()> {
        let node = before.node.as_str();
        scenario.until_deleted(node).await?;
        let mut left = Vec::new();
        let cleared = wait_for("nothing is left of it", async || {
            left = left_behind(scenario, before).await?;
            Ok(left.is_empty().then_some(()))
        });
        cleared.await.with_context(|| format!("{left:?}"))?;
        if self == Self::DeleteImported {
            for name in [format!("history-{node}"), format!("data-{node}")] {
                let claim = scenario.claims().get(&name).await?;
                ensure!(claim.metadata.deletion_timestamp.is_none(), "{name} is deleted");
            }
        }
        Ok(())
    }
}

/// A pod of the first image that was still there when its owner desired it back has not been
/// replaced; and whatever there was, an eviction brings up the first image and nothing else.
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
    wait_for(&format!("{node}: new pods are made like its own"), async || {
        let statefulset = StatefulSetView::from(&scenario.statefulsets().get(node).await?);
        let revision = statefulset.observed_revision();
        Ok((revision.is_some() && revision == pod.revision.as_deref()).then_some(()))
    })
    .await?;
    scenario.evict(node).await?;
    let is_next = |next: &PodView| next.uid != pod.uid && !next.is_terminating();
    let next = scenario.until_pod(node, "it has another pod", is_next).await?;
    ensure!(next.seid.image == image, "{node}: the eviction brought up {}", next.seid.image);
    let opens = |next: &PodView| next.uid != pod.uid && next.seid.started;
    scenario.until_pod(node, "the gate of that opens", opens).await?;
    scenario.settled(node).await?;
    ensure!(
        scenario.pods_seen(node).await? == seen + 1,
        "{node}: {} pods",
        scenario.pods_seen(node).await?
    );
    Ok(())
}

async fn make_claim(scenario: &Scenario, name: &str) -> Result<()> {
    let claim = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "2Ti" } } },
    }))?;
    scenario.claims().create(&PostParams::default(), &claim).await?;
    Ok(())
}

/// What there still is that belongs to the node.
async fn left_behind(scenario: &Scenario, before: &Before) -> Result<Vec<String>> {
    let uid = before.uid.as_str();
    let mut left = owned::<StatefulSet>(scenario, uid).await?;
    left.extend(owned::<Job>(scenario, uid).await?);
    left.extend(owned::<Service>(scenario, uid).await?);
    left.extend(owned::<ConfigMap>(scenario, uid).await?);
    left.extend(owned::<PersistentVolumeClaim>(scenario, uid).await?);
    let labelled = ListParams::default().labels(&format!("{}={}", label::NODE, before.node));
    let pods: Api<Pod> = scenario.pods();
    left.extend(pods.list(&labelled).await?.iter().map(|pod| format!("Pod {}", pod.name_any())));
    Ok(left)
}

async fn owned<K>(scenario: &Scenario, uid: &str) -> Result<Vec<String>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    K: Clone + DeserializeOwned + Debug,
{
    let all: Api<K> = Api::namespaced(scenario.admin(), scenario.namespace());
    let all = all.list(&ListParams::default()).await?;
    let is_its = |object: &&K| object.owner_references().iter().any(|owner| owner.uid == uid);
    let name = |object: &K| format!("{} {}", K::kind(&()), object.name_any());
    Ok(all.iter().filter(is_its).map(name).collect())
}
