//! A small abstract cluster for tests: one node, its StatefulSet, pod, volume and sidecar, just
//! accurate enough to carry out decisions. Every step checks what must always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::names::annotation;
use sei_api::node::{OnDelete, SeiNodeSpec};
use sei_api::plan::TaskPlan;
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::budget::{self, Budget, Member, Roll, Standing};
use crate::check_plan::check_plan;
use crate::deletion::Deletion;
use crate::fingerprint::digest_of;
use crate::pass::{Ask, Carried, Pass};
use crate::planner::fixture::{self, NODE_UID};
use crate::planner::{self, PlanMove};
use crate::pre_pull::{PrePullView, Pull};
use crate::request::{
    ClaimView, Failure, MountView, Outcome, PodDelete, Read, Request, SecretView, SidecarCall,
    SidecarRequest, TaskRecord, TaskState,
};
use crate::shared::Shared;
use crate::signing_key;
use crate::snapshot::{Claim, Sidecar, Slot, Snapshot};
use crate::timing::Timing;
use crate::view::{
    ContainerView, Controller, ObjectView, PodView, StatefulSetView, Trouble, TroubleKind,
};

mod tests;

/// The world of one node.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own that a test sets")]
pub(crate) struct World {
    pub(crate) node: SeiNode,
    pub(crate) now: Timestamp,
    pub(crate) platform: String,
    pub(crate) statefulset: Option<StatefulSetView>,
    /// Templates by the name of their revision.
    revisions: BTreeMap<String, Value>,
    pub(crate) pod: Option<Pod>,
    /// The pod that pulls the images of an update, with those images.
    pub(crate) pre_pull: Option<(PrePullView, Vec<String>)>,
    pub(crate) claim: Option<String>,
    /// Task records on the volume: they survive pods.
    records: BTreeMap<String, TaskState>,
    pub(crate) unpullable: BTreeSet<String>,
    /// Images whose chain process crashes at once.
    pub(crate) crashing: BTreeSet<String>,
    /// The chain is halted: pods run and are not Ready.
    pub(crate) halted: bool,
    /// Sidecar tasks of these types fail.
    pub(crate) failing: BTreeSet<String>,
    pub(crate) signing_secret_missing: bool,
    /// Another node of the chain has the only slot.
    pub(crate) slot_taken: bool,
    /// A younger node with the same signing key, and whether it has started.
    pub(crate) rival: Option<SeiNode>,
    pub(crate) rival_started: bool,
    /// Uids of pods whose deletion by us was accepted.
    pub(crate) deleted: Vec<String>,
    /// Images that a pod ran, recorded for the checks.
    ran: BTreeSet<(String, String)>,
    serial: u64,
    delete_conflicts: u32,
}

/// The node's pod, with the state of its memory.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own that a test sets")]
pub(crate) struct Pod {
    pub(crate) uid: String,
    revision: String,
    template: Value,
    pub(crate) terminating: bool,
    pub(crate) started: bool,
    pub(crate) gate_open: bool,
    /// The sidecar no longer answers.
    pub(crate) sidecar_lost: bool,
    version: u64,
}

impl Pod {
    fn image(&self) -> &str {
        self.template["spec"]["containers"][0]["image"].as_str().unwrap_or_default()
    }

    fn sidecar_image(&self) -> &str {
        self.template["spec"]["initContainers"][0]["image"].as_str().unwrap_or_default()
    }

    fn answers(&self) -> bool {
        self.started && !self.terminating && !self.sidecar_lost
    }
}

/// What the environment can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// The StatefulSet controller observes the newest template.
    Observe,
    /// It creates the missing pod, or stops an excess one.
    Scale,
    /// The kubelet starts the pod, or finishes stopping it.
    Kubelet,
}

impl World {
    pub(crate) fn new(spec: SeiNodeSpec) -> Self {
        Self {
            node: fixture::node(spec),
            now: fixture::at(0),
            platform: "a".to_owned(),
            statefulset: None,
            revisions: BTreeMap::new(),
            pod: None,
            pre_pull: None,
            claim: None,
            records: BTreeMap::new(),
            unpullable: BTreeSet::new(),
            crashing: BTreeSet::new(),
            halted: false,
            failing: BTreeSet::new(),
            signing_secret_missing: false,
            slot_taken: false,
            rival: None,
            rival_started: false,
            deleted: Vec::new(),
            ran: BTreeSet::new(),
            serial: 0,
            delete_conflicts: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    pub(crate) fn status(&self) -> SeiNodeStatus {
        self.node.status.clone().unwrap_or_default()
    }

    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut SeiNodeSpec)) {
        let before = self.node.spec.clone();
        change(&mut self.node.spec);
        if before != self.node.spec {
            *self.node.metadata.generation.get_or_insert(1) += 1;
        }
    }

    pub(crate) fn wait(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
    }

    /// The pod is deleted by an eviction, not by the operator.
    pub(crate) fn evict(&mut self) {
        if let Some(pod) = self.pod.as_mut() {
            pod.terminating = true;
        }
    }

    pub(crate) fn step(&mut self, step: Move) {
        match step {
            Move::Observe => {
                if let Some(set) = self.statefulset.as_mut() {
                    set.observed_generation = set.generation;
                    set.update_revision = Some(revision_of(&set.template.json()));
                }
            }
            Move::Scale => self.scale(),
            Move::Kubelet => self.kubelet(),
        }
    }

    fn scale(&mut self) {
        let Some(set) = self.statefulset.clone() else { return };
        let Some(revision) = set.observed_revision().map(str::to_owned) else { return };
        match (&mut self.pod, set.replicas) {
            (Some(pod), Some(0)) => pod.terminating = true,
            (None, Some(1)) => {
                let serial = self.next();
                let template = self.revisions.get(&revision).cloned().unwrap_or_default();
                self.pod = Some(Pod {
                    uid: format!("pod-{serial}"),
                    revision,
                    template,
                    terminating: false,
                    started: false,
                    gate_open: false,
                    sidecar_lost: false,
                    version: serial,
                });
            }
            _ => {}
        }
    }

    fn kubelet(&mut self) {
        let serial = self.next();
        self.pull();
        let Some(pod) = self.pod.as_mut() else { return };
        if pod.terminating {
            self.pod = None;
            return;
        }
        let pulls = !self.unpullable.contains(pod.image())
            && !self.unpullable.contains(pod.sidecar_image());
        if !pod.started && pulls && self.claim.is_some() {
            pod.started = true;
            pod.version = serial;
            self.ran.insert((pod.image().to_owned(), pod.sidecar_image().to_owned()));
        }
    }

    fn pull(&mut self) {
        let Some((view, images)) = self.pre_pull.as_mut() else { return };
        let failed = images.iter().find(|image| self.unpullable.contains(*image));
        view.pull = failed.map_or(Pull::Pulled, |image| Pull::Failed(format!("seid: {image}")));
    }

    /// One pass of the operator; it crashes after `calls` calls.
    pub(crate) fn pass_crashing_after(&mut self, calls: usize) -> Trace {
        if self.node.metadata.deletion_timestamp.is_some() {
            return self.deletion_crashing_after(calls);
        }
        let carried = Carried { delete_conflicts: self.delete_conflicts, ..Carried::default() };
        let mut pass = Pass::begin(self.observe(), carried);
        let mut trace = Trace::default();
        loop {
            match pass.ask() {
                Ask::Done(ending) => {
                    self.delete_conflicts = ending.delete_conflicts;
                    trace.report = ending
                        .report
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("; ");
                    // Deferred progress is lost with the operator; this one always writes.
                    if let Some(status) = ending.deferred {
                        trace.calls += 1;
                        trace.writes += 1;
                        if trace.calls <= calls {
                            self.write(*status);
                        }
                    }
                    return trace;
                }
                Ask::Perform(request) if matches!(*request, Request::TakeSlot(_)) => {
                    pass.absorb(Outcome::Slot(self.slot()));
                }
                _ if trace.calls >= calls => return trace,
                Ask::Perform(request) => {
                    trace.calls += 1;
                    let outcome = self.perform(&request);
                    trace.requests.push(name(&request));
                    pass.absorb(outcome);
                }
                Ask::Write(status) => {
                    trace.calls += 1;
                    trace.writes += 1;
                    self.write(*status);
                    pass.absorb(Outcome::Node(Some(Box::new(self.node.clone()))));
                }
            }
        }
    }

    /// One pass over a deleted node; it crashes after `calls` calls.
    fn deletion_crashing_after(&mut self, calls: usize) -> Trace {
        let mut trace = Trace::default();
        let mut deletion =
            Deletion::new(self.node.clone().into(), self.now, Timing::default(), OnDelete::Delete);
        loop {
            match deletion.ask() {
                Ask::Done(_) => return trace,
                _ if trace.calls >= calls => return trace,
                Ask::Perform(request) => {
                    trace.calls += 1;
                    trace.requests.push(name(&request));
                    let outcome = self.perform(&request);
                    deletion.absorb(outcome);
                }
                Ask::Write(status) => {
                    trace.calls += 1;
                    trace.writes += 1;
                    self.write(*status);
                    deletion.absorb(Outcome::Node(Some(Box::new(self.node.clone()))));
                }
            }
        }
    }

    /// The status after one decision, and after deciding again on it.
    fn decide_twice(&mut self) -> (SeiNodeStatus, SeiNodeStatus) {
        let mut snapshot = self.observe();
        snapshot.slot = Some(self.slot());
        let mut decide = || {
            let decision = planner::plan(&snapshot);
            let mut status = snapshot.status().clone();
            decision.apply(&mut status, snapshot.generation(), snapshot.now);
            snapshot.store(status.clone());
            // A failure is reported before anything follows it; only then is it decided upon.
            let shown = matches!(decision.plan, PlanMove::Clear);
            (status, shown)
        };
        let (mut once, shown) = decide();
        if shown {
            once = decide().0;
        }
        let (twice, _) = decide();
        (once, twice)
    }

    pub(crate) fn pass(&mut self) -> Trace {
        self.pass_crashing_after(usize::MAX)
    }

    /// The slot that the chain's budget returns, with one other node in the chain.
    fn slot(&self) -> Slot {
        let (ready_deadline, outage) = (Duration::from_secs(1800), Duration::from_secs(300));
        let budget = Budget {
            limit: 1,
            images: crate::platform::Share::Nodes(1),
            halt_after: 1,
            ready_deadline,
            min_ready: Duration::from_secs(10),
            outage,
        };
        let pods = self.pods();
        let pod = pods.first().map(|pod| &**pod);
        let me = Member::of(&self.node, pod, &budget, self.now);
        let standing = if self.slot_taken { Standing::Rolls } else { Standing::Idle };
        let neighbour = Member { name: "ns/other".into(), signs: false, is_out: false, standing };
        budget::grant(&me, Roll::Template, &[neighbour], &budget)
    }

    fn rendered_template(&self) -> Value {
        fixture::desired(&self.node.spec, &self.platform).template()
    }

    fn observe(&mut self) -> Snapshot {
        let serial = self.next();
        let sidecar = match &self.pod {
            Some(pod) if pod.answers() && pod.gate_open => Sidecar::Ready,
            Some(pod) if pod.answers() => Sidecar::NotReady,
            Some(pod) if !pod.terminating => Sidecar::Unreachable("refused".to_owned()),
            _ => Sidecar::Unknown,
        };
        Snapshot {
            node: self.node.clone().into(),
            status: self.status(),
            now: self.now,
            plan_id: format!("00000000-0000-4000-8000-{serial:012}"),
            desired: Ok(fixture::desired(&self.node.spec, &self.platform).into()),
            statefulset: self.statefulset.clone().map(Shared::new),
            pods: self.pods(),
            pre_pull: self.pre_pull.as_ref().map(|(view, _)| view.clone()),
            claim: match &self.claim {
                Some(uid) => Claim::Present(ClaimView {
                    uid: uid.clone(),
                    phase: "Bound".to_owned(),
                    ..ClaimView::default()
                }),
                None => Claim::Missing,
            },
            sidecar,
            slot: None,
            ..fixture::new_node(self.node.spec.clone())
        }
    }

    fn pods(&self) -> Vec<Shared<PodView>> {
        let Some((pod, set)) = self.pod.as_ref().zip(self.statefulset.as_ref()) else {
            return Vec::new();
        };
        let crashes = self.crashing.contains(pod.image());
        let container = |image: &str, crashes: bool| ContainerView {
            image: image.to_owned(),
            image_id: if pod.started { format!("id-{image}") } else { String::new() },
            has_run: pod.started,
            running: pod.started && !crashes,
            running_since: None,
            started: pod.started && pod.gate_open && !crashes,
            restarts: 0,
        };
        let mut troubles = Vec::new();
        if !pod.started {
            troubles.push(Trouble {
                container: "seid".to_owned(),
                kind: TroubleKind::ImagePull,
                message: "seid: ErrImagePull".to_owned(),
            });
        }
        vec![Shared::new(PodView {
            name: "n-0".to_owned(),
            uid: pod.uid.clone(),
            resource_version: pod.version.to_string(),
            controller: Some(Controller::statefulset(&set.name, &set.uid)),
            revision: Some(pod.revision.clone()),
            deleted_at: pod.terminating.then_some(self.now),
            host: Some("host".to_owned()),
            ip: pod.started.then(|| "10.0.0.1".to_owned()),
            ready: pod.started && pod.gate_open && !self.halted && !crashes && !pod.terminating,
            seid: container(pod.image(), crashes),
            sidecar: container(pod.sidecar_image(), false),
            troubles,
            ..PodView::default()
        })]
    }

    fn stored_plan(&self) -> Option<TaskPlan> {
        self.status().plan.filter(TaskPlan::is_active)
    }

    /// Every change of a template, a pod or a sidecar is part of a stored, active plan.
    fn assert_planned(&self, tasks: &[TaskType]) {
        let plan = self.stored_plan().expect("nothing is done without a stored plan");
        let open = plan.tasks.iter().filter(|task| !task.is_complete());
        let planned = open.clone().any(|task| tasks.iter().any(|expected| task.is(*expected)));
        assert!(planned, "{tasks:?} is not an open task of the stored plan {plan:?}");
    }

    fn perform(&mut self, request: &Request) -> Outcome {
        match request {
            Request::Read(read) => self.read(read),
            Request::CreateClaim(_) => {
                let uid = format!("claim-{}", self.next());
                self.claim = Some(uid.clone());
                let view = ObjectView { uid, ..ObjectView::default() };
                Outcome::Created(view)
            }
            Request::ApplyConfigMap(_)
            | Request::ApplyService(_)
            | Request::CreateConfigMap(_)
            | Request::CreateService(_)
            | Request::ReleaseClaim { .. } => Outcome::Accepted,
            Request::CreateStatefulSet(object) => self.create(object),
            Request::ApplyStatefulSet(object) => self.apply(object),
            Request::PatchStatefulSet(patch) => self.patch(patch),
            Request::DeletePod(delete) => self.delete(delete),
            Request::CreatePrePull(pod) => self.create_pre_pull(pod),
            Request::DeletePrePull { uid } => self.delete_pre_pull(uid),
            Request::DryRunStatefulSet(object) => {
                Outcome::DryRun(serde_json::to_value(&object.spec.template).unwrap())
            }
            Request::DeleteClaim { uid, .. } => self.delete_claim(uid),
            Request::PatchFinalizers { finalizers, .. } => {
                self.node.metadata.finalizers = Some(finalizers.clone());
                Outcome::Node(Some(Box::new(self.node.clone())))
            }
            Request::Sidecar(call) => self.sidecar(call),
            unexpected => panic!("not in this world: {unexpected:?}"),
        }
    }

    fn read(&self, read: &Read) -> Outcome {
        match read {
            Read::StatefulSet => Outcome::StatefulSet(self.statefulset.clone().map(Shared::new)),
            Read::Pods => Outcome::Pods(self.pods()),
            Read::Pod(_) => Outcome::Pod(self.pods().pop()),
            Read::PrePull => Outcome::PrePull(self.pre_pull.as_ref().map(|(view, _)| view.clone())),
            Read::Claim(_) => Outcome::Claim(self.claim.clone().map(|uid| ClaimView {
                uid,
                controller: Some(NODE_UID.to_owned()),
                phase: "Bound".to_owned(),
                ..ClaimView::default()
            })),
            Read::Secret(name) => Outcome::Secret(self.secret(name)),
            Read::SigningRecord(_) => Outcome::SigningRecord(None),
            Read::Generation { .. } => Outcome::Generation(self.node.metadata.generation),
            Read::Node => Outcome::Node(Some(Box::new(self.node.clone()))),
            Read::Nodes => Outcome::Nodes(
                [Some(&self.node), self.rival.as_ref()].into_iter().flatten().cloned().collect(),
            ),
            Read::Mounts { .. } => Outcome::Mounts(self.mounts()),
            Read::Revision(name) => Outcome::Revision(
                self.revisions
                    .get(name)
                    .map(|template| json!({ "spec": { "template": template } })),
            ),
            unexpected => panic!("not in this world: {unexpected:?}"),
        }
    }

    fn mounts(&self) -> Vec<MountView> {
        let own = self.statefulset.iter().map(|set| MountView::of_statefulset("ns", set));
        let rival = self.rival.as_ref().filter(|_| self.rival_started).map(|rival| MountView {
            kind: "StatefulSet",
            namespace: "ns".to_owned(),
            name: "rival".to_owned(),
            node: rival.metadata.name.clone(),
            secrets: vec!["signing".to_owned()],
            signs: true,
            ..MountView::default()
        });
        let pod = self.pod.as_ref().map(|pod| MountView {
            kind: "pod",
            namespace: "ns".to_owned(),
            name: "n-0".to_owned(),
            node: Some("n".to_owned()),
            signs: pod.template.to_string().contains("signing-key"),
            ..MountView::default()
        });
        own.chain(rival).chain(pod).collect()
    }

    fn secret(&self, name: &str) -> Option<SecretView> {
        if name == "signing" && self.signing_secret_missing {
            return None;
        }
        let key = json!({ "type": "t", "value": "v" });
        let (file, content) = match name {
            "signing" => (signing_key::FILE, signing_key::made_up("a")),
            _ => ("node_key.json", json!({ "priv_key": key })),
        };
        let data = BTreeMap::from([(file.to_owned(), content.to_string().into_bytes())]);
        Some(SecretView { terminating: false, data })
    }

    fn create(&mut self, object: &k8s_openapi::api::apps::v1::StatefulSet) -> Outcome {
        if self.statefulset.is_some() {
            return Outcome::Failed(Failure::AlreadyExists);
        }
        let serial = self.next();
        let template = serde_json::to_value(&object.spec.template).unwrap();
        self.revisions.insert(revision_of(&template), template.clone());
        let view = StatefulSetView {
            uid: format!("sts-{serial}"),
            resource_version: serial.to_string(),
            observed_generation: 0,
            replicas: object.spec.replicas,
            template_hash: stamped(object),
            update_revision: None,
            ..fixture::statefulset(&template, "", "")
        };
        self.statefulset = Some(view.clone());
        Outcome::Applied(view.into())
    }

    fn apply(&mut self, object: &k8s_openapi::api::apps::v1::StatefulSet) -> Outcome {
        self.assert_planned(&[TaskType::ApplyStatefulSet]);
        let serial = self.next();
        let Some(set) = self.statefulset.as_mut() else {
            return Outcome::Failed(Failure::NotFound);
        };
        if object.metadata.uid.as_deref() != Some(set.uid.as_str())
            || object.metadata.resource_version.as_deref() != Some(set.resource_version.as_str())
        {
            return Outcome::Failed(Failure::Conflict("changed".to_owned()));
        }
        let template = serde_json::to_value(&object.spec.template).unwrap();
        if template != set.template.json() {
            set.generation += 1;
            self.revisions.insert(revision_of(&template), template.clone());
            set.template = template.into();
        }
        set.replicas = object.spec.replicas;
        set.template_hash = stamped(object);
        set.resource_version = serial.to_string();
        Outcome::Applied(set.clone().into())
    }

    fn patch(&mut self, patch: &Value) -> Outcome {
        let serial = self.next();
        let Some(set) = self.statefulset.as_mut() else {
            return Outcome::Failed(Failure::NotFound);
        };
        if patch["metadata"]["resourceVersion"] != json!(set.resource_version) {
            return Outcome::Failed(Failure::Conflict("changed".to_owned()));
        }
        if let Some(replicas) = patch["spec"]["replicas"].as_i64() {
            set.replicas = i32::try_from(replicas).ok();
            set.generation += 1;
        }
        if patch["spec"]["updateStrategy"]["type"] == "OnDelete" {
            set.on_delete = true;
        }
        let stamp = &patch["metadata"]["annotations"][annotation::TEMPLATE_HASH];
        if let Some(hash) = stamp.as_str() {
            set.template_hash = Some(hash.to_owned());
        }
        if !patch["metadata"]["annotations"][annotation::INITIALISED].is_null() {
            set.initialised = true;
        }
        set.resource_version = serial.to_string();
        Outcome::Patched(Shared::new(set.clone()))
    }

    fn create_pre_pull(&mut self, pod: &k8s_openapi::api::core::v1::Pod) -> Outcome {
        self.assert_planned(&[TaskType::ApplyStatefulSet]);
        if self.pre_pull.is_some() {
            return Outcome::Failed(Failure::AlreadyExists);
        }
        let view = PrePullView {
            uid: format!("pre-pull-{}", self.next()),
            controller: Some(NODE_UID.to_owned()),
            created_at: Some(self.now),
            ..PrePullView::from(pod)
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let images = containers.filter_map(|container| container.image.clone()).collect();
        self.pre_pull = Some((view.clone(), images));
        Outcome::PrePull(Some(view))
    }

    fn delete_pre_pull(&mut self, uid: &str) -> Outcome {
        match &self.pre_pull {
            Some((view, _)) if view.uid == uid => self.pre_pull = None,
            _ => return Outcome::Failed(Failure::NotFound),
        }
        Outcome::Accepted
    }

    fn delete_claim(&mut self, uid: &str) -> Outcome {
        let deleted = self.node.metadata.deletion_timestamp.is_some();
        assert!(deleted, "the claim of a node that is not deleted was deleted");
        if self.claim.as_deref() != Some(uid) {
            return Outcome::Failed(Failure::NotFound);
        }
        self.claim = None;
        Outcome::Accepted
    }

    fn delete(&mut self, delete: &PodDelete) -> Outcome {
        self.assert_planned(&[TaskType::ReplacePod, TaskType::ObserveImage]);
        let Some(pod) = self.pod.as_mut() else { return Outcome::Failed(Failure::NotFound) };
        if pod.uid != delete.uid
            || delete
                .resource_version
                .as_ref()
                .is_some_and(|version| *version != pod.version.to_string())
        {
            return Outcome::Failed(Failure::Conflict("changed".to_owned()));
        }
        let set = self.statefulset.as_ref().expect("a pod is deleted for its StatefulSet");
        let newest =
            set.observed_revision().expect("nothing is deleted before the template was observed");
        assert_ne!(newest, pod.revision, "a fresh pod was deleted");
        assert!(!self.deleted.contains(&pod.uid), "a pod was deleted twice");
        pod.terminating = true;
        self.deleted.push(pod.uid.clone());
        Outcome::Accepted
    }

    fn sidecar(&mut self, request: &SidecarRequest) -> Outcome {
        let answers =
            self.pod.as_ref().is_some_and(|pod| pod.uid == request.pod_uid && pod.answers());
        if !answers {
            return Outcome::Failed(Failure::Unreachable("no answer".to_owned()));
        }
        match &request.call {
            SidecarCall::Poll { id } => {
                Outcome::Task(self.records.get(id).map(|state| TaskRecord::from(state.clone())))
            }
            SidecarCall::NodeId => Outcome::NodeId("0".repeat(40)),
            SidecarCall::Delete { id } => {
                self.records.remove(id);
                Outcome::Accepted
            }
            SidecarCall::Submit { id, task_type, .. } => {
                self.assert_planned(&[TaskType::parse(task_type).unwrap()]);
                self.run(id, task_type);
                Outcome::Accepted
            }
        }
    }

    /// Runs a task. A completed id is never run again, regardless of the pod's memory.
    fn run(&mut self, id: &str, task_type: &str) {
        if self.records.get(id) == Some(&TaskState::Completed) {
            return;
        }
        if self.failing.contains(task_type) {
            self.records.insert(id.to_owned(), TaskState::Failed("bad".to_owned()));
            return;
        }
        self.records.insert(id.to_owned(), TaskState::Completed);
        if task_type == "mark-ready"
            && let Some(pod) = self.pod.as_mut()
        {
            pod.gate_open = true;
        }
    }

    /// Stores a status, and checks that it is true.
    fn write(&mut self, status: SeiNodeStatus) {
        let before = self.status();
        if status.current_image != before.current_image
            && let (Some(image), Some(sidecar)) =
                (&status.current_image, &status.current_sidecar_image)
        {
            let ran = self.ran.contains(&(image.clone(), sidecar.clone()));
            assert!(ran, "currentImage {image} with {sidecar} was never seen running");
        }
        if let Some(plan) = &status.plan {
            let notes = check_plan(plan);
            assert!(notes.is_empty(), "{notes:?} in {plan:?}");
        }
        for condition in &status.conditions {
            assert!(condition.observed_generation.is_some(), "{condition:?}");
        }
        let size = serde_json::to_string(&status).unwrap().len();
        assert!(size < 64 * 1024, "a status of {size} bytes");
        self.node.status = Some(status);
    }

    /// Whether the world matches the spec, with nothing left to do.
    pub(crate) fn matches(&self) -> bool {
        let desired = fixture::desired(&self.node.spec, &self.platform);
        let status = self.status();
        let (Some(pod), Some(set)) = (&self.pod, &self.statefulset) else { return false };
        let in_sync = condition::is(
            &status.conditions,
            ConditionType::PodTemplateDrift,
            ConditionStatus::False,
        );
        status.phase == Some(SeiNodePhase::Running)
            && status.plan.is_none()
            && status.current_image.as_deref() == Some(desired.image.as_str())
            && status.pod_template_hash.as_deref() == Some(desired.hash.as_str())
            && pod.template == self.rendered_template()
            && pod.gate_open
            && !pod.terminating
            && set.observed_revision() == Some(pod.revision.as_str())
            && in_sync
            && self.pre_pull.is_none()
    }

    /// Nothing fails from here on. Returns the number of passes it took.
    pub(crate) fn converge(&mut self) -> usize {
        for pass in 0..120 {
            if self.matches() && self.pass().writes == 0 && self.matches() {
                self.assert_quiet();
                return pass;
            }
            self.pass();
            for step in [Move::Observe, Move::Kubelet, Move::Scale, Move::Kubelet] {
                self.step(step);
            }
            self.wait(20);
        }
        let last = self.pass();
        let mut status = self.status();
        let plan = status.plan.take().map(|plan| (plan.kind, plan.target));
        panic!("not converged: {}\n{plan:?}\n{status:?}\n{:?}", last.report, self.pod);
    }

    /// At rest no pass makes a request or a write.
    fn assert_quiet(&mut self) {
        for _ in 0..3 {
            self.wait(3600);
            let trace = self.pass();
            assert_eq!((trace.calls, trace.requests.len()), (0, 0), "{trace:?}");
        }
    }
}

/// What a pass did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trace {
    pub(crate) calls: usize,
    pub(crate) writes: usize,
    pub(crate) requests: Vec<String>,
    pub(crate) report: String,
}

fn name(request: &Request) -> String {
    let text = format!("{request:?}");
    text.split(['(', ' ', '{']).next().unwrap_or_default().to_owned()
}

/// The same template has the same revision: a revert restores the old name.
fn revision_of(template: &Value) -> String {
    format!("n-{}", &digest_of(template)[3..13])
}

fn stamped(object: &k8s_openapi::api::apps::v1::StatefulSet) -> Option<String> {
    object.metadata.annotations.as_ref()?.get(annotation::TEMPLATE_HASH).cloned()
}
