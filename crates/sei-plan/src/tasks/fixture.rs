//! Worlds for the tests of steps: a node in the middle of an update, and its steps as text.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use sei_api::SeiNode;
use sei_api::condition::Verdict;
use sei_api::names::annotation;
use sei_api::plan::{Applied, PlanKind, PlanPhase, PlanTarget, PlannedTask, TaskPlan, TaskStatus};
use sei_api::status::{Cause, SeiNodePhase};
use sei_api::task::TaskType;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Effects, Next, step};
use crate::desired::{Bootstrap, Desired};
use crate::packed::Packed;
use crate::request::{Outcome, Request, SidecarCall};
use crate::seen::{Reading, Seen};
use crate::shared::Shared;
use crate::view::{ContainerView, Controller, PodView, StatefulSetView};

use TaskType as T;

pub(crate) const PLAN: &str = "plan-1";
pub(crate) const NODE_UID: &str = "node-uid";
pub(crate) const STATEFULSET_UID: &str = "sts-uid";
pub(crate) const OLD: &str = "n-old";
pub(crate) const NEW: &str = "n-new";
pub(crate) const HASH: &str = "v1:new";

/// An update in the order of the early shape.
pub(crate) const UPDATE: [TaskType; 7] = [
    T::ConfigPatch,
    T::ConfigValidate,
    T::ApplyStatefulSet,
    T::ApplyService,
    T::ReplacePod,
    T::ObserveImage,
    T::MarkReady,
];

/// The first plan of a node that replays to a height before it starts.
pub(crate) const BOOTSTRAP: [TaskType; 11] = [
    T::EnsureDataPvc,
    T::DeployBootstrapService,
    T::DeployBootstrapJob,
    T::ConfigApply,
    T::AwaitBootstrapComplete,
    T::TeardownBootstrap,
    T::ApplyStatefulSet,
    T::ApplyService,
    T::ReplacePod,
    T::ConfigValidate,
    T::MarkReady,
];

pub(crate) fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

/// From JSON, without the fields that do not matter.
pub(crate) fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// The node `d/n`; `spec` is added to what every node has.
pub(crate) fn node(spec: Value) -> SeiNode {
    let mut all = json!({ "chainId": "demo-1", "image": "seid:new" });
    let Value::Object(spec) = spec else { panic!("a spec is an object") };
    all.as_object_mut().unwrap().extend(spec);
    from(json!({
        "apiVersion": "sei.io/v1alpha1",
        "kind": "SeiNode",
        "metadata": { "name": "n", "namespace": "d", "uid": NODE_UID, "generation": 3 },
        "spec": all,
    }))
}

pub(crate) fn signing_node() -> SeiNode {
    let key = |name: &str| json!({ "secret": { "secretName": name } });
    node(json!({ "validator": { "signingKey": key("signing"), "nodeKey": key("p2p") } }))
}

/// An object with these fields.
fn packed<T: DeserializeOwned + Serialize>(json: Value) -> Packed<T> {
    from::<T>(json).into()
}

pub(crate) fn desired() -> Desired {
    Desired {
        hash: HASH.to_owned(),
        inputs_hash: "inputs:new".to_owned(),
        image: "seid:new".to_owned(),
        sidecar_image: "sidecar:new".to_owned(),
        config: [("overrides".to_owned(), "digest".to_owned())].into(),
        statefulset: statefulset_object("seid:new").into(),
        service: packed(json!({ "metadata": { "name": "n" } })),
        proxy_config: packed(json!({ "metadata": { "name": "n-rbac-proxy-config" } })),
        claim: Some(packed(json!({
            "metadata": { "name": "data-n" },
            "spec": { "accessModes": ["ReadWriteOnce"] },
        }))),
        claim_size: "100Gi".to_owned(),
        ..Desired::default()
    }
}

pub(crate) fn bootstrap() -> Bootstrap {
    Bootstrap {
        job: packed(json!({ "metadata": { "name": "n-bootstrap" } })),
        service: packed(json!({ "metadata": { "name": "n" } })),
        image: "seid:bootstrap".to_owned(),
    }
}

fn statefulset_object(image: &str) -> StatefulSet {
    from(json!({
        "metadata": { "name": "n" },
        "spec": {
            "replicas": 1,
            "serviceName": "n",
            "selector": { "matchLabels": { "sei.io/node": "n" } },
            "template": template(image),
        },
    }))
}

pub(crate) fn template(image: &str) -> Value {
    json!({ "spec": { "containers": [{ "name": "seid", "image": image }] } })
}

/// The node's own StatefulSet, as the plan applied it and as its controller observed it.
pub(crate) fn statefulset() -> StatefulSetView {
    StatefulSetView {
        name: "n".to_owned(),
        uid: STATEFULSET_UID.to_owned(),
        resource_version: "70".to_owned(),
        generation: 2,
        observed_generation: 2,
        controller: Some(NODE_UID.to_owned()),
        replicas: Some(1),
        on_delete: true,
        selector: Some([("sei.io/node".to_owned(), "n".to_owned())].into()),
        template_hash: Some(HASH.to_owned()),
        update_revision: Some(NEW.to_owned()),
        ..StatefulSetView::default()
    }
}

fn container(image: &str) -> ContainerView {
    ContainerView {
        image: image.to_owned(),
        image_id: format!("{image}@sha256:1"),
        has_run: true,
        running: true,
        ..ContainerView::default()
    }
}

/// A running pod of the node's StatefulSet; its age follows from its revision.
pub(crate) fn pod(revision: &str) -> PodView {
    let age = if revision == NEW { "new" } else { "old" };
    PodView {
        name: "n-0".to_owned(),
        uid: format!("pod-{age}"),
        resource_version: "11".to_owned(),
        controller: Some(Controller::statefulset("n", STATEFULSET_UID)),
        revision: Some(revision.to_owned()),
        ip: Some(if age == "new" { "10.0.0.2" } else { "10.0.0.1" }.to_owned()),
        host: Some("host-a".to_owned()),
        seid: container(&format!("seid:{age}")),
        sidecar: container(&format!("sidecar:{age}")),
        ..PodView::default()
    }
}

pub(crate) fn terminating(mut pod: PodView) -> PodView {
    pod.deleted_at = Some(now());
    pod
}

/// A plan of these tasks, none of them started.
pub(crate) fn plan(tasks: &[TaskType]) -> TaskPlan {
    let pending = |(index, task): (usize, &TaskType)| {
        PlannedTask::pending(PLAN, index, *task, json!({}), task.max_retries())
    };
    TaskPlan {
        id: Some(PLAN.to_owned()),
        phase: PlanPhase::Active,
        tasks: tasks.iter().enumerate().map(pending).collect(),
        target_phase: Some(SeiNodePhase::Running),
        failed_phase: None,
        failed_task_index: None,
        failed_task_detail: None,
        kind: Some(PlanKind::NodeUpdate),
        target: Some(PlanTarget {
            hash: HASH.to_owned(),
            image: "seid:new".to_owned(),
            sidecar_image: "sidecar:new".to_owned(),
            generation: 3,
            cause: Cause::Spec,
            inputs_hash: Some("inputs:plan".to_owned()),
            ..PlanTarget::default()
        }),
        applied: None,
        abandoned: Vec::new(),
        created_at: None,
    }
}

/// A plan and an observation.
pub(crate) struct World {
    pub(crate) plan: TaskPlan,
    pub(crate) seen: Seen,
}

impl World {
    /// The first task of this type is the current one; those before it are complete.
    pub(crate) fn at(tasks: &[TaskType], current: TaskType) -> Self {
        let mut plan = plan(tasks);
        let index = tasks.iter().position(|task| *task == current).unwrap();
        plan.tasks[..index].iter_mut().for_each(|task| task.status = TaskStatus::Complete);
        if tasks[..index].contains(&T::ApplyStatefulSet) {
            plan.applied =
                Some(Applied { uid: STATEFULSET_UID.to_owned(), generation: 2, revision: None });
        }
        let mut seen = Seen::new(node(json!({ "fullNode": {} })), desired(), now());
        seen.newest_generation = Some(3);
        Self { plan, seen }
    }

    /// A plan of one task with these parameters.
    pub(crate) fn only(task: TaskType, params: Value) -> Self {
        let mut world = Self::at(&[task], task);
        world.plan.tasks[0].params = Some(params);
        world
    }

    /// An update at this task: everything was read live, and the pod is still the old one.
    pub(crate) fn updating(current: TaskType) -> Self {
        let mut world = Self::at(&UPDATE, current);
        world.seen.statefulset = Reading::Live(Some(statefulset().into()));
        world.seen.pods = Reading::Live(Some(vec![pod(OLD).into()]));
        world
    }

    pub(crate) fn next(&self) -> Next {
        step(&self.plan, &self.seen).unwrap()
    }

    /// Changes the StatefulSet, cached or live.
    pub(crate) fn statefulset(&mut self) -> &mut StatefulSetView {
        match &mut self.seen.statefulset {
            Reading::Cached(Some(view)) | Reading::Live(Some(view)) => view,
            _ => panic!("no StatefulSet was seen"),
        }
    }

    pub(crate) fn live_pods(&mut self, pods: impl Into<Vec<PodView>>) {
        self.seen.pods = Reading::Live(Some(pods.into().into_iter().map(Shared::new).collect()));
    }

    /// Makes live reads cached.
    pub(crate) fn make_cached(&mut self) {
        fn cached<T: Clone>(reading: &mut Reading<T>) {
            if let Reading::Live(found) = reading {
                *reading = Reading::Cached(found.clone());
            }
        }
        cached(&mut self.seen.statefulset);
        cached(&mut self.seen.pods);
    }

    /// The steps that these outcomes lead to, and the step after them.
    #[track_caller]
    pub(crate) fn transcript(
        &mut self,
        outcomes: impl IntoIterator<Item = Outcome>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for outcome in outcomes {
            let mut next = self.next();
            lines.push(shown(&next));
            while let Next::Cleared(id) = next {
                self.plan.abandoned.retain(|abandoned| *abandoned != id);
                next = self.next();
                lines.push(shown(&next));
            }
            let Next::Request(request) = next else { panic!("no request: {lines:?}") };
            self.seen.absorb(&request, outcome);
        }
        lines.push(shown(&self.next()));
        lines
    }

    #[track_caller]
    pub(crate) fn check(&self, case: &str, expected: &str) {
        assert_shows(case, &self.next(), expected);
    }
}

/// Compares with a text in which `…` matches anything.
#[track_caller]
pub(crate) fn assert_shows(case: &str, next: &Next, expected: &str) {
    let text = shown(next);
    assert!(matches(&text, expected), "{case}\n  expected {expected}\n  but got  {text}");
}

/// Compares a transcript line by line, each as [`assert_shows`] does.
#[track_caller]
pub(crate) fn assert_transcript(actual: &[String], expected: &[&str]) {
    let same = actual.len() == expected.len()
        && actual.iter().zip(expected).all(|(line, expected)| matches(line, expected));
    assert!(same, "expected {expected:#?}\nbut got {actual:#?}");
}

fn matches(text: &str, expected: &str) -> bool {
    let mut pieces = expected.split('…');
    let Some(mut rest) = text.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        last = Some(piece);
    }
    rest.is_empty() || last == Some("")
}

/// A step as one line.
pub(crate) fn shown(next: &Next) -> String {
    match next {
        Next::Request(request) => shown_request(request),
        Next::Wait(waiting) => {
            let reason = waiting.reason.map_or("-", sei_api::condition::Reason::as_str);
            let again = waiting.again.map_or(String::new(), |again| format!(" again {again:?}"));
            let verdict = shown_verdict(waiting.verdict.as_ref());
            format!("wait {reason}{again}{verdict}: {}", waiting.message)
        }
        Next::Done(effects) => shown_effects(effects),
        Next::Retry(detail) => format!("retry: {detail}"),
        Next::TimedOut(detail) => format!("timed out: {detail}"),
        Next::Cleared(id) => format!("cleared {id}"),
        Next::Fail(failed) => {
            format!("fail{}: {}", shown_verdict(failed.verdict.as_ref()), failed.detail)
        }
    }
}

fn shown_effects(effects: &Effects) -> String {
    let Effects {
        stamp,
        verdict,
        applied,
        statefulset,
        claim,
        signing_identity: _,
        signing_stopped,
    } = effects;
    let parts = [
        Some("done".to_owned()),
        stamp
            .as_ref()
            .map(|stamp| format!("stamp {} {} {}", stamp.image, stamp.sidecar_image, stamp.hash)),
        applied
            .as_ref()
            // A replaced pod adds its revision to what was applied before.
            .filter(|applied| applied.revision.is_none())
            .map(|applied| format!("applied {}@{}", applied.uid, applied.generation)),
        statefulset.as_ref().map(|set| format!("statefulset {}/{}", set.name, set.uid)),
        claim.as_ref().map(|claim| format!("claim {}/{}", claim.name, claim.uid)),
        signing_stopped.then(|| "no longer signs".to_owned()),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    parts.join(" ") + &shown_verdict(verdict.as_ref())
}

fn shown_verdict(verdict: Option<&Verdict>) -> String {
    verdict.map_or(String::new(), |verdict| {
        format!(" [{}={}/{}]", verdict.condition, verdict.status.as_str(), verdict.reason)
    })
}

fn shown_request(request: &Request) -> String {
    let name = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        metadata.name.clone().unwrap_or_default()
    };
    let bound = |metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta| {
        let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "-".to_owned());
        let (uid, version) = (text(&metadata.uid), text(&metadata.resource_version));
        format!("{} uid={uid} version={version}", name(metadata))
    };
    match request {
        Request::Read(read) => format!("read {read:?}"),
        Request::CreateClaim(claim) => format!("create claim {}", name(&claim.metadata)),
        Request::ApplyConfigMap(map) => format!("apply ConfigMap {}", bound(&map.metadata)),
        Request::ApplyService(service) => format!("apply Service {}", bound(&service.metadata)),
        Request::CreateConfigMap(map) => format!("create ConfigMap {}", name(&map.metadata)),
        Request::CreateService(service) => format!("create Service {}", name(&service.metadata)),
        Request::CreateJob(job) => format!("create Job {}", name(&job.metadata)),
        Request::CreateStatefulSet(object) => format!("create {}", shown_statefulset(object)),
        Request::ApplyStatefulSet(object) => format!("apply {}", shown_statefulset(object)),
        Request::TryPod(pod) => format!("try pod {}", name(&pod.metadata)),
        Request::PatchStatefulSet(patch) => format!("patch StatefulSet {patch}"),
        Request::DeletePod(delete) => format!(
            "delete pod {} uid={} version={}",
            delete.name,
            delete.uid,
            delete.resource_version.as_deref().unwrap_or("-")
        ),
        Request::CreatePrePull(pod) => {
            let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
            let images: Vec<_> =
                containers.filter_map(|container| container.image.as_deref()).collect();
            format!("create pod {} for {}", name(&pod.metadata), images.join(", "))
        }
        Request::DeletePrePull { uid } => format!("delete pre-pull pod uid={uid}"),
        Request::DeleteJob { uid } => format!("delete Job uid={uid}"),
        Request::DeleteService { uid } => format!("delete Service uid={uid}"),
        Request::DeleteClaim { name, uid } => format!("delete claim {name} uid={uid}"),
        Request::ReleaseClaim { name, uid, .. } => format!("release claim {name} uid={uid}"),
        Request::DryRunStatefulSet(object) => format!("dry-run {}", shown_statefulset(object)),
        Request::PatchFinalizers { finalizers, .. } => format!("patch finalizers {finalizers:?}"),
        Request::TakeSlot(roll) => format!("take slot for {roll:?}"),
        Request::Sidecar(request) => {
            let call = match &request.call {
                SidecarCall::Submit { id, task_type, params } => {
                    format!("submit {id} {task_type} {params}")
                }
                SidecarCall::Poll { id } => format!("poll {id}"),
                SidecarCall::Delete { id } => format!("delete {id}"),
                SidecarCall::NodeId => "node-id".to_owned(),
            };
            format!("{} {} {call}", request.pod_uid, request.ip)
        }
    }
}

fn shown_statefulset(object: &StatefulSet) -> String {
    let metadata = &object.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_else(|| "-".to_owned());
    let hash = metadata.annotations.as_ref().and_then(|all| all.get(annotation::TEMPLATE_HASH));
    let pod = object.spec.template.spec.as_ref();
    let image =
        pod.and_then(|pod| pod.containers.first()).and_then(|container| container.image.clone());
    format!(
        "StatefulSet {} uid={} version={} hash={} image={}",
        text(&metadata.name),
        text(&metadata.uid),
        text(&metadata.resource_version),
        hash.map_or("-", String::as_str),
        text(&image)
    )
}
