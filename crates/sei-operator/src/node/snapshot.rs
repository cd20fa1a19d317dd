//! Gathers what a decision about a node is made from. Nothing is rendered or compared that has not
//! changed since the last time.

use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use kube::Resource as _;
use sei_api::SeiNode;
use sei_api::SeiNodeStatus;
use sei_api::key::ObjectKey;
use sei_api::names::{annotation, bootstrap_job, data_claim, pre_pull_pod, proxy_config};
use sei_plan::budget::Budget;
use sei_plan::desired::{Desired, render_desired};
use sei_plan::diff::{covers, lacks_rendered};
use sei_plan::peers;
use sei_plan::planner::state_sync::check_state_sync;
use sei_plan::platform::{Adoption, Platform, PodCheck, PrePull};
use sei_plan::pre_pull::PrePullView;
use sei_plan::pre_pull::machine::NodePull;
use sei_plan::request::MountView;
use sei_plan::shared::Shared;
use sei_plan::signers;
use sei_plan::snapshot::{Claim, Current, RegisteredWitnesses, Rollout, Snapshot};
use sei_plan::view::{JobView, StatefulSetView, own_pod};
use serde_json::Value;

use super::ObjectJson;
use super::peer_ids::PeerId;
use super::reconcile::NodeController;
use crate::runtime::guarded::Guarded;

/// A rendered node with the inputs it was rendered from. The algorithm does not change while a process
/// leads.
#[derive(Debug)]
pub(crate) struct Rendered {
    platform: Arc<Platform>,
    uid: Option<String>,
    generation: Option<i64>,
    /// The annotations that a template depends on.
    annotations: [Option<String>; 2],
    peers: Vec<String>,
    witnesses: Vec<String>,
    pub(crate) desired: Result<Shared<Desired>, String>,
}

impl Rendered {
    pub(crate) fn has_inputs_of(&self, right: &Self) -> bool {
        Arc::ptr_eq(&self.platform, &right.platform)
            && self.uid == right.uid
            && self.generation == right.generation
            && self.annotations == right.annotations
            && self.peers == right.peers
            && self.witnesses == right.witnesses
    }
}

/// What was last compared with the rendered node, and the result.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    desired: Option<Shared<Desired>>,
    service: Memo<ObjectJson>,
    proxy_config: Memo<ObjectJson>,
    template: Memo<StatefulSetView>,
}

/// The result of comparing one live object with the rendered one.
#[derive(Debug)]
struct Memo<V>(Option<(Shared<V>, bool)>);

impl<V> Default for Memo<V> {
    fn default() -> Self {
        Self(None)
    }
}

impl<V> Memo<V> {
    fn get(&mut self, live: &Shared<V>, compare: impl FnOnce(&V) -> bool) -> bool {
        if let Some((known, result)) = &self.0
            && known.is_same(live)
        {
            return *result;
        }
        let result = compare(live);
        self.0 = Some((live.clone(), result));
        result
    }
}

impl Compared {
    /// Which live objects already are as rendered. An object that does not exist is not.
    fn current(
        &mut self,
        desired: &Shared<Desired>,
        service: Option<&Shared<ObjectJson>>,
        proxy_config: Option<&Shared<ObjectJson>>,
        statefulset: Option<&Shared<StatefulSetView>>,
    ) -> Current {
        if !self.desired.as_ref().is_some_and(|known| known.is_same(desired)) {
            *self = Self { desired: Some(desired.clone()), ..Self::default() };
        }
        let covers_json =
            |rendered: Value| move |live: &ObjectJson| covers(&live.json.json(), &rendered);
        Current {
            service: service.is_some_and(|live| {
                self.service
                    .get(live, |live| covers_json(rendered_json(desired.service.json()))(live))
            }),
            proxy_config: proxy_config.is_some_and(|live| {
                let compare = |live: &ObjectJson| {
                    covers_json(rendered_json(desired.proxy_config.json()))(live)
                };
                self.proxy_config.get(live, compare)
            }),
            template: statefulset.is_none_or(|live| {
                self.template
                    .get(live, |live| !lacks_rendered(&live.template.json(), &desired.template()))
            }),
        }
    }
}

impl NodeController {
    /// A snapshot of a node and everything around it, from caches.
    pub(crate) fn snapshot(
        self: &Arc<Self>,
        node: &Shared<SeiNode>,
        status: SeiNodeStatus,
        key: &ObjectKey,
    ) -> Snapshot {
        let (peers, asks_peers) = self.peers(node, key);
        let witnesses = if node.spec.snapshot().is_some() {
            self.platform_file.witnesses(&node.spec.chain_id)
        } else {
            RegisteredWitnesses::Known(Vec::new())
        };
        let desired = self.desired(node, key, &peers, &witnesses);
        let statefulset = self.caches.statefulsets.get(key, &key.name);
        let statefulset = self.states.with(key, |state| state.newest_statefulset(statefulset));
        let pods = self.caches.pods.of(key);
        let uid = node.metadata.uid.as_deref().unwrap_or_default();
        let own = own_pod(&pods, statefulset.as_deref(), uid);
        let sidecar = self.health(own.map(|pod| &**pod), key);
        let service = self.caches.services.get(key, &key.name);
        let config = self.caches.config_maps.get(key, &proxy_config(&key.name));
        // A template is restored only on an idle node.
        let template = statefulset.as_ref().filter(|_| status.plan.is_none());
        let current = match &desired {
            Ok(desired) => self.current(key, desired, service.as_ref(), config.as_ref(), template),
            Err(_) => Current::default(),
        };
        let signing_conflict = self.signing_conflict(node, &status);
        let pre_pull = self.pre_pull(node, key);
        Snapshot {
            node: node.clone(),
            status,
            peers: Some(peers),
            now: jiff::Timestamp::now(),
            plan_id: uuid::Uuid::new_v4().to_string(),
            operator_version: self.options.version.clone(),
            timing: self.options.timing,
            rollout: self.rollout(),
            witnesses,
            sidecar,
            blocks: self.blocks(key),
            slot: None,
            asks_peers,
            signing_conflict,
            dropped_field: self.states.with(key, |state| state.dropped_field.clone()),
            job: self.bootstrap_job(node, key),
            pulls: self.pulls(own.and_then(|pod| pod.host.as_deref()), key, pre_pull.as_ref()),
            pre_pull,
            claim: self.claim(node, key),
            adoption: None,
            waiting: None,
            statefulset,
            pods,
            desired,
            current,
            service: service.map(|found| found.view.clone()),
            proxy_config: config.map(|found| found.view.clone()),
        }
    }

    fn rollout(&self) -> Rollout {
        let platform = self.platform_file.platform();
        let rollout = &platform.rollout;
        let budget = self.budget();
        Rollout {
            on_operator_change: rollout.on_operator_change,
            on_image_change: rollout.on_image_change,
            adopt_automatically: rollout.adoption == Adoption::Auto,
            settles_in: self.settles_in(),
            checks_pods: rollout.pod_check == PodCheck::DryRun,
            pre_pulls: rollout.pre_pull == PrePull::Auto,
            ready_deadline: budget.ready_deadline,
            min_ready: budget.min_ready,
        }
    }

    /// How much longer the lease must be held before the operator trusts its view of the fleet.
    fn settles_in(&self) -> Option<Duration> {
        let settle =
            self.options.timing.configured(self.platform_file.platform().rollout.settle_seconds);
        settle.checked_sub(self.leading_since.elapsed()).filter(|left| !left.is_zero())
    }

    /// The platform's figures for rolls that were not requested on the node itself.
    pub(crate) fn budget(&self) -> Budget {
        Budget::of(&self.platform_file.platform().rollout, self.options.timing)
    }

    /// Every node, in a fixed order.
    pub(crate) fn all_nodes(&self) -> Vec<Arc<Guarded<SeiNode>>> {
        let key = |node: &Guarded<SeiNode>| {
            let metadata = node.meta();
            (metadata.namespace.clone(), metadata.name.clone())
        };
        let mut nodes = self.nodes.state();
        nodes.sort_by_cached_key(|node| key(node));
        nodes
    }

    /// The node's peers, and whether some of them still have to report their ids.
    fn peers(self: &Arc<Self>, node: &SeiNode, key: &ObjectKey) -> (Vec<String>, bool) {
        let sources = node.spec.peers.as_deref().unwrap_or_default();
        if sources.is_empty() {
            return (Vec::new(), false);
        }
        let by_label = sources.iter().any(|source| source.label.is_some());
        let nodes = if by_label { self.all_nodes() } else { Vec::new() };
        let nodes: Vec<&SeiNode> = decoded(&nodes).collect();
        let asks = Cell::new(false);
        let resolved = peers::resolve(node, &nodes, |peer| match self.peer_id(peer, key)? {
            PeerId::Known(id) => Some(id),
            PeerId::Asked(_) => {
                asks.set(true);
                None
            }
            PeerId::Silent(_) => None,
        });
        (resolved, asks.get())
    }

    fn desired(
        &self,
        node: &SeiNode,
        key: &ObjectKey,
        peers: &[String],
        witnesses: &RegisteredWitnesses,
    ) -> Result<Shared<Desired>, String> {
        let check = check_state_sync(&node.spec, witnesses);
        let annotations = node.metadata.annotations.as_ref();
        let mut rendered = Rendered {
            platform: self.platform_file.platform(),
            uid: node.metadata.uid.clone(),
            generation: node.metadata.generation,
            annotations: [annotation::DEDICATED_NODE, annotation::RESTARTED_AT]
                .map(|name| annotations.and_then(|all| all.get(name).cloned())),
            peers: peers.to_vec(),
            witnesses: check.witnesses.unwrap_or_default(),
            desired: Err(String::new()),
        };
        if let Some(known) = self.states.with(key, |state| state.desired(&rendered)) {
            return known;
        }
        rendered.desired = render_desired(node, &rendered.platform, peers, &rendered.witnesses)
            .map(|desired| Shared::new(desired.hashed_by(self.options.algorithm)))
            .map_err(|error| error.to_string());
        let desired = rendered.desired.clone();
        self.states.with(key, |state| state.rendered = Some(rendered));
        desired
    }

    fn current(
        &self,
        key: &ObjectKey,
        desired: &Shared<Desired>,
        service: Option<&Shared<ObjectJson>>,
        config: Option<&Shared<ObjectJson>>,
        statefulset: Option<&Shared<StatefulSetView>>,
    ) -> Current {
        // It must also be stamped with the hash of the desired template.
        let stamped =
            |set: &&Shared<StatefulSetView>| set.template_hash.as_ref() == Some(&desired.hash);
        let statefulset = statefulset.filter(stamped);
        self.states.with(key, |state| state.compared.current(desired, service, config, statefulset))
    }

    /// The node's own bootstrap Job, if the cache shows it.
    fn bootstrap_job(&self, node: &SeiNode, key: &ObjectKey) -> Option<JobView> {
        let found = self.caches.jobs.get(key, &bootstrap_job(&key.name))?;
        (found.controller == node.metadata.uid).then(|| (*found).clone())
    }

    /// The node's own pod that pulls the images of an update, if the cache shows it.
    pub(crate) fn pre_pull(&self, node: &SeiNode, key: &ObjectKey) -> Option<PrePullView> {
        let found = self.caches.pre_pulls.get(key, &pre_pull_pod(&key.name))?;
        let is_deleted = found.deleted_at.is_none()
            && self.states.with(key, |state| state.has_deleted(&found.uid));
        (found.controller == node.metadata.uid && !is_deleted).then(|| (*found).clone())
    }

    /// The pulls on the machine of the node's pod, after its own pull has been recorded.
    fn pulls(
        &self,
        host: Option<&str>,
        key: &ObjectKey,
        own: Option<&PrePullView>,
    ) -> Vec<NodePull> {
        let now = jiff::Timestamp::now();
        let mut pulls = self.pulls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = own {
            pulls.observe(&key.namespace, own, now);
        }
        host.map(|host| pulls.on(&key.namespace, host, now)).unwrap_or_default()
    }

    /// The node's own claim, if the cache shows it.
    fn claim(&self, node: &SeiNode, key: &ObjectKey) -> Claim {
        if node.spec.imported_claim().is_some() {
            return Claim::Unknown;
        }
        let found = self.caches.claims.get(key, &data_claim(&key.name));
        found.map_or(Claim::Unknown, |claim| Claim::Present((*claim).clone()))
    }

    /// Why the node may not start, by the caches. Before it starts everything is read live.
    fn signing_conflict(&self, node: &SeiNode, status: &SeiNodeStatus) -> Option<String> {
        if !signers::is_exclusive(node) {
            return None;
        }
        let nodes = self.nodes.state();
        let identity = status.signing_identity.as_deref();
        let mut candidates = signers::candidates(node, identity, decoded(&nodes));
        candidates.sort_by_key(|candidate| ObjectKey::of(&candidate.metadata));
        let mounts = candidates.iter().copied().chain([node]).filter_map(|node| {
            let key = ObjectKey::of(&node.metadata);
            let set = self.caches.statefulsets.get(&key, &key.name)?;
            Some(MountView::of_statefulset(&key.namespace, &set))
        });
        let mounts: Vec<_> = mounts.collect();
        signers::conflict(node, identity, &candidates, &mounts)
    }
}

/// The decoded nodes among these.
pub(crate) fn decoded(nodes: &[Arc<Guarded<SeiNode>>]) -> impl Iterator<Item = &SeiNode> {
    nodes.iter().filter_map(|node| node.decoded().map(|node| &**node))
}

/// Everything but what the server itself maintains.
pub(super) fn object_json<K>(object: &K) -> ObjectJson
where
    K: serde::Serialize + kube::Resource,
{
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(map) = value.as_object_mut() {
        map.remove("status");
    }
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata
            .retain(|key, _| ["name", "labels", "ownerReferences", "uid"].contains(&key.as_str()));
    }
    ObjectJson { json: value.into(), view: object.meta().into() }
}

fn rendered_json(mut value: Value) -> Value {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("namespace");
    }
    value
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_live_object_is_compared_once_per_version() {
        let mut memo = Memo::default();
        let first = Shared::new(json!(1));
        assert!(memo.get(&first, |_| true));
        assert!(memo.get(&first, |_| false), "the result is kept");
        assert!(!memo.get(&Shared::new(json!(1)), |_| false), "another version");
    }
}
