//! What must hold after every step, and the record of what was seen.

use std::collections::{BTreeMap, BTreeSet};

use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_api::key::ObjectKey;
use sei_api::names::annotation;
use sei_api::node::OnDelete;
use sei_api::plan::{TaskPlan, TaskStatus};
use sei_api::status::SeiNodeStatus;
use sei_api::task::TaskType;
use sei_plan::budget::{Budget, Member, Standing};
use sei_plan::check_plan::check_plan;
use sei_plan::hands_off::is_hands_off;
use sei_plan::request::{Request, SidecarCall};
use sei_plan::timing::Timing;

use crate::cluster::{Cluster, pod_key};
use crate::server::Caller;

/// What was seen, and what should not have been.
#[derive(Clone, Debug, Default)]
pub struct Safety {
    pub violations: Vec<String>,
    /// Rare states that this run has reached.
    pub marks: BTreeSet<String>,
    /// Ids of plans that were stored.
    plans: BTreeSet<String>,
    /// Uids of pods whose deletion by the operator was accepted, in order.
    pub deleted: Vec<String>,
    /// Images of the chain process and the sidecar that pods of a node ran.
    ran: BTreeSet<(ObjectKey, String, String)>,
    /// The uid of the claim that the chain process of a node, by its uid, has written to.
    volumes: BTreeMap<String, String>,
    /// The owner of each StatefulSet, by uid.
    set_owners: BTreeMap<String, Option<String>>,
    /// The newest revisions of each StatefulSet, by uid, with the version since which they are.
    newest: BTreeMap<String, Vec<(u64, String)>>,
    /// Nodes that users have scaled to more pods than one: these count as one.
    excused: BTreeSet<ObjectKey>,
    /// Plans that a former leader stored after another one had taken over.
    late_plans: BTreeSet<String>,
    /// Nodes whose Ready pod was deleted by the last roll that held a slot.
    taken_down: BTreeSet<ObjectKey>,
    /// Writes of the operator, without status writes.
    pub writes: usize,
    pub status_writes: usize,
}

impl Safety {
    pub fn mark(&mut self, name: impl Into<String>) {
        self.marks.insert(name.into());
    }
}

impl Cluster {
    fn violate(&mut self, text: String) {
        self.safety.violations.push(text);
    }

    fn require(&mut self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.violate(text());
        }
    }

    /// Checks a request before it is performed.
    pub(crate) fn check_request(&mut self, caller: &Caller, request: &Request) {
        let Some(write) = request.write(&caller.key.name) else { return };
        self.safety.writes += 1;
        self.safety.mark(format!("{} {}", write.verb, write.kind));
        let key = caller.key.clone();
        self.require(!is_hands_off(&caller.node), || {
            format!("{key}: {write:?} although the node is hands-off")
        });
        match request {
            Request::ApplyStatefulSet(_) => self.check_apply(caller),
            Request::PatchStatefulSet(_) => self.check_own_set(caller, "patch"),
            Request::CreatePrePull(_) => self.check_planned(caller, &[TaskType::ApplyStatefulSet]),
            Request::CreateClaim(_) => self.check_new_claim(caller),
            Request::DeleteClaim { name, uid } => self.check_claim_deletion(caller, name, uid),
            Request::CreateJob(_) => self.check_planned(caller, &[TaskType::DeployBootstrapJob]),
            Request::Sidecar(call) => {
                if let SidecarCall::Submit { task_type, .. } = &call.call
                    && let Some(task_type) = TaskType::parse(task_type)
                {
                    self.check_submission(caller, task_type);
                }
            }
            _ => {}
        }
    }

    /// A template is written by a stored plan, or restored to what runs.
    fn check_apply(&mut self, caller: &Caller) {
        self.check_own_set(caller, "apply");
        let status = caller.node.status.as_ref();
        if status.and_then(|status| status.plan.as_ref()).is_some() {
            self.check_planned(caller, &[TaskType::ApplyStatefulSet]);
        }
    }

    fn check_own_set(&mut self, caller: &Caller, verb: &str) {
        let set = self.sets.get(&caller.key);
        let is_foreign = set.is_some_and(|set| set.controller != caller.node.metadata.uid);
        // The server refuses the write if the StatefulSet was replaced since it was read.
        let was_replaced = !self.is_alive(caller);
        self.require(!is_foreign || was_replaced, || {
            format!("{}: {verb} of a StatefulSet of another owner", caller.key)
        });
    }

    /// The change is part of a plan that was stored.
    fn check_planned(&mut self, caller: &Caller, tasks: &[TaskType]) {
        let status = caller.node.status.as_ref();
        let plan = status.and_then(|status| status.plan.as_ref()).filter(|plan| plan.is_active());
        let Some(plan) = plan else {
            return self.violate(format!("{}: {tasks:?} without a stored plan", caller.key));
        };
        let is_stored = plan.id.as_ref().is_some_and(|id| self.safety.plans.contains(id));
        let has_task =
            plan.tasks.iter().any(|task| tasks.iter().any(|expected| task.is(*expected)));
        let plan = plan.clone();
        self.require(is_stored && has_task, || {
            format!("{}: {tasks:?} is no task of a stored plan: {plan:?}", caller.key)
        });
    }

    fn check_submission(&mut self, caller: &Caller, task_type: TaskType) {
        self.check_planned(caller, &[task_type]);
    }

    /// No claim is created in place of one that the node has used, without approval.
    fn check_new_claim(&mut self, caller: &Caller) {
        self.check_planned(caller, &[TaskType::EnsureDataPvc]);
        let uid = caller.node.metadata.uid.clone().unwrap_or_default();
        let Some(used) = self.safety.volumes.get(&uid).cloned() else { return };
        let claim =
            ObjectKey::new(&caller.key.namespace, sei_api::names::data_claim(&caller.key.name));
        if self.claims.contains_key(&claim) {
            return;
        }
        let recorded = caller.node.status.as_ref().and_then(|status| status.data_claim.as_ref());
        let recorded = recorded.map(|claim| claim.uid.clone());
        let annotations = caller.node.metadata.annotations.as_ref();
        let approved = annotations.and_then(|all| all.get(annotation::RECREATE_VOLUME)).cloned();
        let is_known = recorded.is_some() || self.sets.contains_key(&caller.key);
        let lost = recorded.clone().or_else(|| Some(uid.clone()));
        self.require(!is_known || approved == lost, || {
            format!("{}: a new claim in place of {used} ({recorded:?})", caller.key)
        });
    }

    fn check_claim_deletion(&mut self, caller: &Caller, name: &str, uid: &str) {
        let node = &caller.node;
        let is_deleted = node.metadata.deletion_timestamp.is_some();
        let policy = node.spec.data_volume.as_ref().and_then(|spec| spec.on_delete);
        let retains = policy == Some(OnDelete::Retain)
            || (policy.is_none() && node.spec.signs())
            || node.spec.imported_claim() == Some(name);
        let claim = self.claims.get(&ObjectKey::new(&caller.key.namespace, name));
        let is_foreign = claim
            .filter(|claim| claim.uid == uid)
            .is_some_and(|claim| claim.controller != node.metadata.uid);
        self.require(is_deleted && !retains && !is_foreign, || {
            format!("{}: claim {name} is deleted", caller.key)
        });
    }

    /// Checks a deletion that the server accepts.
    pub(crate) fn check_pod_deletion(&mut self, caller: &Caller, at: &ObjectKey) {
        self.check_planned(caller, &[TaskType::ReplacePod, TaskType::ObserveImage]);
        let pod = self.pods[at].clone();
        let key = &caller.key;
        // A user may have deleted the StatefulSet since it was read; the garbage collector follows.
        let set = pod.view.controller.as_ref().map(|set| set.uid.clone()).unwrap_or_default();
        let is_own = self.safety.set_owners.get(&set) == Some(&caller.node.metadata.uid);
        self.require(is_own, || format!("{key}: pod {at} of another owner was deleted"));
        let repeated = self.safety.deleted.contains(&pod.view.uid);
        self.require(!repeated, || format!("{key}: pod {} was deleted twice", pod.view.uid));
        self.safety.deleted.push(pod.view.uid.clone());
        let status = caller.node.status.clone().unwrap_or_default();
        let target = status.plan.as_ref().and_then(|plan| plan.target.clone());
        let replaces = target.as_ref().and_then(|target| target.replaces_pod.clone());
        let was_stale = self.was_stale(&set, pod.view.revision.as_deref(), caller.began);
        self.require(was_stale || replaces.as_ref() == Some(&pod.view.uid), || {
            format!("{key}: the fresh pod {} was deleted", pod.view.uid)
        });
        let plan = status.plan.and_then(|plan| plan.id).unwrap_or_default();
        let is_late = self.safety.late_plans.contains(&plan);
        let has_slot = target.is_some_and(|target| target.slot == Some(true)) && !is_late;
        if pod.view.ready && has_slot {
            self.check_budget(caller);
        } else if has_slot {
            self.safety.taken_down.remove(&caller.key);
        }
    }

    /// Whether the revision was not the newest at some point since the reconcile began.
    fn was_stale(&self, set: &str, revision: Option<&str>, began: u64) -> bool {
        let log = self.safety.newest.get(set).map(Vec::as_slice).unwrap_or_default();
        let last_before = log.iter().rposition(|(since, _)| *since <= began).unwrap_or(0);
        log[last_before.min(log.len())..]
            .iter()
            .any(|(_, newest)| Some(newest.as_str()) != revision)
    }

    /// A StatefulSet was created.
    pub(crate) fn note_set(&mut self, key: &ObjectKey) {
        let set = &self.sets[key];
        let (uid, owner) = (set.uid.clone(), set.controller.clone());
        self.safety.set_owners.insert(uid, owner);
    }

    pub(crate) fn note_revision(&mut self, key: &ObjectKey) {
        let Some(set) = self.sets.get(key).cloned() else { return };
        let version = self.version();
        let log = self.safety.newest.entry(set.uid.clone()).or_default();
        log.push((version, set.update_revision.clone().unwrap_or_default()));
    }

    /// The limits of the platform.
    pub fn budget(&self) -> Budget {
        Budget::of(&self.platforms.platform().rollout, Timing::default())
    }

    /// Rolls that hold a slot and have taken their node down, beside the node's own, are fewer than the
    /// limit of its chain. A roll of a node that was down before costs the chain nothing.
    fn check_budget(&mut self, caller: &Caller) {
        let budget = self.budget();
        let chain = self.chain_of(&caller.key);
        let others = self.nodes.iter().filter(|(key, node)| {
            **key != caller.key
                && self.chain_of(key) == chain
                && node.metadata.deletion_timestamp.is_none()
        });
        let rolling: Vec<String> = others
            .filter(|(key, node)| {
                let pod = self.own_pod(key).map(|pod| &pod.view);
                let pod = pod.filter(|pod| !pod.is_terminating());
                let member = Member::of(node, pod, &budget, self.now);
                let plan = node.status.as_ref().and_then(|status| status.plan.as_ref());
                let id = plan.and_then(|plan| plan.id.clone()).unwrap_or_default();
                member.standing == Standing::Rolls
                    && self.safety.taken_down.contains(*key)
                    && !self.safety.late_plans.contains(&id)
            })
            .map(|(key, _)| key.to_string())
            .collect();
        self.safety.taken_down.insert(caller.key.clone());
        let of_chain = self.nodes.keys().filter(|key| self.chain_of(key) == chain).count();
        let limit = budget.limit.max(budget.images.of(of_chain));
        self.require(rolling.len() < limit, || {
            format!("{}: rolls beside {rolling:?}, and the limit is {limit}", caller.key)
        });
    }

    /// The chain that a node runs, or would run.
    pub fn chain_of(&self, key: &ObjectKey) -> String {
        let spec = self.nodes.get(key).map(|node| node.spec.chain_id.clone());
        let runs = self.sets.get(key).and_then(|set| set.chain().map(str::to_owned));
        runs.or(spec).unwrap_or_default()
    }

    /// A pod has started.
    pub(crate) fn note_start(&mut self, at: &ObjectKey) {
        let pod = self.pods[at].clone();
        let node = ObjectKey::new(&at.namespace, &pod.label);
        let (image, sidecar) = (pod.view.seid.image.clone(), pod.view.sidecar.image.clone());
        // Also a pod whose StatefulSet was deleted meanwhile: the next one adopts it.
        if *at == pod_key(&node) {
            self.safety.ran.insert((node, image, sidecar));
        }
        self.check_signers();
    }

    /// The chain process of a pod has passed the gate: it writes to its volume.
    pub(crate) fn note_gate_passed(&mut self, at: &ObjectKey) {
        let pod = self.pods[at].clone();
        let node = ObjectKey::new(&at.namespace, &pod.label);
        let is_own = self.own_pod(&node).is_some_and(|own| own.view.uid == pod.view.uid);
        let claim = pod.mount.claims.first().map(|name| ObjectKey::new(&at.namespace, name));
        let claim = claim.and_then(|key| self.claims.get(&key)).map(|claim| claim.uid.clone());
        let uid = self.nodes.get(&node).and_then(|node| node.metadata.uid.clone());
        if let (Some(claim), Some(uid), true) = (claim, uid, is_own) {
            self.safety.volumes.insert(uid, claim);
        }
    }

    /// Never two processes with one key on one chain, nor with one volume.
    pub fn check_signers(&mut self) {
        let mut excused = std::mem::take(&mut self.safety.excused);
        excused.retain(|node| self.has_many(node));
        let mut users: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (at, pod) in self.pods.iter().filter(|(_, pod)| pod.runs()) {
            let node = ObjectKey::new(&at.namespace, &pod.label);
            let user = if excused.contains(&node) { node.to_string() } else { at.to_string() };
            if let Some((chain, identity)) = &pod.signs_as {
                users.entry(format!("{chain}/{identity}")).or_default().insert(user.clone());
            }
            for claim in &pod.mount.claims {
                let claim = format!("{}/{claim}", at.namespace);
                users.entry(claim).or_default().insert(user.clone());
            }
        }
        self.safety.excused = excused;
        for (thing, pods) in users {
            self.require(pods.len() < 2, || format!("{pods:?} use {thing}"));
        }
    }

    /// A user scales a node: until it has one pod again, a second one is not the operator's doing.
    pub fn excuse(&mut self, node: &ObjectKey) {
        self.safety.excused.insert(node.clone());
    }

    /// Whether a StatefulSet of the node has more pods than one, or may get them.
    fn has_many(&self, node: &ObjectKey) -> bool {
        let second = ObjectKey::new(&node.namespace, format!("{}-1", node.name));
        let set = self.sets.get(node).and_then(|set| set.replicas);
        self.pods.contains_key(&second) || set.is_some_and(|replicas| replicas > 1)
    }

    /// Checks a status that the server stores.
    pub(crate) fn check_status(
        &mut self,
        caller: &Caller,
        before: &SeiNode,
        status: &SeiNodeStatus,
    ) {
        self.safety.status_writes += 1;
        let key = &caller.key;
        let none = SeiNodeStatus::default();
        let stored = before.status.as_ref().unwrap_or(&none);
        if status.current_image != stored.current_image
            && let (Some(image), Some(sidecar)) =
                (&status.current_image, &status.current_sidecar_image)
        {
            let ran = (key.clone(), image.clone(), sidecar.clone());
            let is_true = self.safety.ran.contains(&ran);
            self.require(is_true, || format!("{key}: {image} with {sidecar} never ran"));
        }
        if let Some(plan) = &status.plan {
            let notes = check_plan(plan);
            self.require(notes.is_empty(), || format!("{key}: {notes:?} in {plan:?}"));
            self.check_plan_continues(key, stored.plan.as_ref(), plan);
            let id = plan.id.clone().unwrap_or_default();
            if caller.is_former_leader {
                self.safety.late_plans.insert(id.clone());
            }
            self.safety.plans.insert(id);
            self.safety.mark(format!("plan {:?}", plan.kind));
        }
        for condition in &status.conditions {
            let has_generation = condition.observed_generation.is_some();
            self.require(has_generation, || format!("{key}: {condition:?}"));
            if condition.type_ != ConditionType::Ready.as_str() {
                self.safety.mark(format!("{} {}", condition.type_, condition.reason));
            }
        }
        let size = serde_json::to_string(status).map_or(0, |text| text.len());
        self.require(size < 64 * 1024, || format!("{key}: a status of {size} bytes"));
    }

    /// The target and the tasks of a plan never change, and no task becomes open again.
    fn check_plan_continues(
        &mut self,
        key: &ObjectKey,
        before: Option<&TaskPlan>,
        plan: &TaskPlan,
    ) {
        let Some(before) = before.filter(|before| before.id == plan.id) else { return };
        let is_same = before.target == plan.target
            && before.tasks.len() == plan.tasks.len()
            && before.tasks.iter().zip(&plan.tasks).all(|(before, after)| {
                let reopened =
                    before.status == TaskStatus::Complete && after.status != TaskStatus::Complete;
                before.id == after.id && before.r#type == after.r#type && !reopened
            });
        self.require(is_same, || format!("{key}: plan changed from {before:?} to {plan:?}"));
    }
}
