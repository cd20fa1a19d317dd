//! Views of Kubernetes objects: only the fields that decisions read.
//!
//! A view is small, comparable and converted from the object in one place, so that a cache can hold
//! thousands of views and a test can write them as literals.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{Job, JobCondition};
use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStatus, Pod, PodCondition, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    FieldsV1, ManagedFieldsEntry, ObjectMeta, OwnerReference,
};
use sei_api::SeiNode;
use sei_api::names::{self, FIELD_MANAGER, annotation, label};
use serde_json::Value;

use crate::chain::Upgrade;
use crate::packed::Packed;
use crate::shared::Shared;
use crate::template::{Identity, Template};

#[cfg(test)]
mod tests;

/// Name of the container that runs the chain process.
pub const SEID: &str = "seid";
/// Name of the container that authenticates callers of the sidecar.
pub const PROXY: &str = "kube-rbac-proxy";
/// Flag of the proxy: it serves TLS at this address.
pub const SECURE_FLAG: &str = "--secure-listen-address=";
/// Flag of the proxy: it accepts only tokens with these audiences.
pub const AUDIENCE_FLAG: &str = "--auth-token-audiences=";
/// Name of the container that serves the sidecar's API.
pub const SIDECAR: &str = "sei-sidecar";

/// Name of the volume with the signing key.
pub const SIGNING_VOLUME: &str = "signing-key";

/// A node's StatefulSet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StatefulSetView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub generation: i64,
    pub observed_generation: i64,
    /// Uid of the object that controls it.
    pub controller: Option<String>,
    pub replicas: Option<i32>,
    pub on_delete: bool,
    /// `matchLabels` of the selector; `None` when it has none.
    pub selector: Option<BTreeMap<String, String>>,
    pub labels: BTreeMap<String, String>,
    /// Fingerprint that the last full apply wrote as an annotation.
    pub template_hash: Option<String>,
    /// The node has completed its first start, by an annotation.
    pub initialised: bool,
    pub terminating: bool,
    pub update_revision: Option<String>,
    /// `spec.template` as stored: with the server's defaults.
    pub template: Template,
    /// `managedFields`, if fields that our create owns are not transferred to our applies yet.
    pub created_fields: Option<Packed<Vec<ManagedFieldsEntry>>>,
}

impl StatefulSetView {
    /// Whether both are equal in everything but their version: most updates of a status change
    /// nothing that decisions read.
    pub fn equals_but_version(&self, before: &Self) -> bool {
        let Self {
            name,
            uid,
            resource_version: _,
            generation,
            observed_generation,
            controller,
            replicas,
            on_delete,
            selector,
            labels,
            template_hash,
            initialised,
            terminating,
            update_revision,
            template,
            created_fields,
        } = self;
        *name == before.name
            && *uid == before.uid
            && *generation == before.generation
            && *observed_generation == before.observed_generation
            && *controller == before.controller
            && *replicas == before.replicas
            && *on_delete == before.on_delete
            && *selector == before.selector
            && *labels == before.labels
            && *template_hash == before.template_hash
            && *initialised == before.initialised
            && *terminating == before.terminating
            && *update_revision == before.update_revision
            && *template == before.template
            && *created_fields == before.created_fields
    }

    /// The `managedFields` with the fields of our create transferred to our applies, if they are
    /// not yet.
    pub fn transferred_fields(&self) -> Option<Value> {
        transfer_to_apply(self.created_fields.as_ref()?.unpack())
    }

    /// The revision of new pods, once the StatefulSet controller has observed the newest template.
    pub fn observed_revision(&self) -> Option<&str> {
        let observed = self.observed_generation >= self.generation;
        self.update_revision.as_deref().filter(|revision| observed && !revision.is_empty())
    }

    /// Whether the node with this uid controls it.
    pub fn is_controlled_by(&self, node_uid: &str) -> bool {
        !node_uid.is_empty() && self.controller.as_deref() == Some(node_uid)
    }

    /// The chain that its pods run.
    pub fn chain(&self) -> Option<&str> {
        self.identity().chain.as_deref()
    }

    /// The role that its pods have.
    pub fn role(&self) -> Option<&str> {
        self.identity().role.as_deref()
    }

    /// The identity of the node in the template.
    pub fn identity(&self) -> &Identity {
        self.template.identity()
    }
}

/// A pod that carries the node's label.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub controller: Option<Controller>,
    /// Label `controller-revision-hash`.
    pub revision: Option<String>,
    pub is_bootstrap: bool,
    pub deleted_at: Option<Timestamp>,
    pub ip: Option<String>,
    pub proxy: Proxy,
    pub ready: bool,
    /// The last transition time of its Ready condition.
    pub ready_since: Option<Timestamp>,
    /// Kubernetes node it is bound to.
    pub host: Option<String>,
    /// The scheduler's message if the pod cannot be scheduled.
    pub unschedulable: Option<String>,
    /// `Unknown` phase or a lost-node reason.
    pub host_lost: bool,
    /// Why a bound pod has no sandbox: its volumes may be missing.
    pub volumes_missing: Option<String>,
    pub seid: ContainerView,
    pub sidecar: ContainerView,
    /// Containers that wait for an image or crash, with the kubelet's reason: `seid: ErrImagePull`.
    pub troubles: Vec<Trouble>,
    /// The upgrade for which the chain process last ended, by its termination message.
    pub upgrade: Option<Box<Upgrade>>,
}

impl PodView {
    /// Whether both are equal in everything but their version.
    pub fn equals_but_version(&self, before: &Self) -> bool {
        let Self {
            name,
            uid,
            resource_version: _,
            controller,
            revision,
            is_bootstrap,
            deleted_at,
            ip,
            proxy,
            ready,
            ready_since,
            host,
            unschedulable,
            host_lost,
            volumes_missing,
            seid,
            sidecar,
            troubles,
            upgrade,
        } = self;
        *name == before.name
            && *uid == before.uid
            && *controller == before.controller
            && *revision == before.revision
            && *is_bootstrap == before.is_bootstrap
            && *deleted_at == before.deleted_at
            && *ip == before.ip
            && *proxy == before.proxy
            && *ready == before.ready
            && *ready_since == before.ready_since
            && *host == before.host
            && *unschedulable == before.unschedulable
            && *host_lost == before.host_lost
            && *volumes_missing == before.volumes_missing
            && *seid == before.seid
            && *sidecar == before.sidecar
            && *troubles == before.troubles
            && *upgrade == before.upgrade
    }

    pub fn is_terminating(&self) -> bool {
        self.deleted_at.is_some()
    }
}

/// The object that a pod's controller reference names. All four fields count: the garbage collector
/// and the controllers of Kubernetes leave a pod alone whose reference is right in its uid only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Controller {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl Controller {
    pub fn statefulset(name: &str, uid: &str) -> Self {
        Self::new("apps/v1", "StatefulSet", name, uid)
    }

    pub fn job(name: &str, uid: &str) -> Self {
        Self::new("batch/v1", "Job", name, uid)
    }

    fn new(api_version: &str, kind: &str, name: &str, uid: &str) -> Self {
        let [api_version, kind, name, uid] = [api_version, kind, name, uid].map(str::to_owned);
        Self { api_version, kind, name, uid }
    }

    fn is_statefulset(&self, name: &str) -> bool {
        self.api_version == "apps/v1" && self.kind == "StatefulSet" && self.name == name
    }

    fn is_job(&self, name: &str) -> bool {
        self.api_version == "batch/v1" && self.kind == "Job" && self.name == name
    }
}

impl From<&OwnerReference> for Controller {
    fn from(owner: &OwnerReference) -> Self {
        Self::new(&owner.api_version, &owner.kind, &owner.name, &owner.uid)
    }
}

/// How the proxy in front of a pod's sidecar is called, by its flags: pods of an earlier template or
/// of another operator have others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    pub tls: bool,
    /// It accepts only tokens with the audience of its node.
    pub own_audience: bool,
}

impl Proxy {
    fn of(pod: &Pod) -> Self {
        let init = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref());
        let Some(proxy) = init.into_iter().flatten().find(|container| container.name == PROXY)
        else {
            return Self::default();
        };
        let metadata = &pod.metadata;
        let node = metadata.labels.as_ref().and_then(|labels| labels.get(label::NODE));
        let own = metadata.namespace.as_ref().zip(node);
        let own = own.map(|(namespace, node)| names::sidecar_audience(namespace, node));
        let value = |flag| proxy.args.iter().flatten().find_map(|arg| arg.strip_prefix(flag));
        Self {
            tls: value(SECURE_FLAG).is_some(),
            own_audience: own.is_some() && value(AUDIENCE_FLAG) == own.as_deref(),
        }
    }
}

/// One container of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerView {
    /// Image in the pod's spec.
    pub image: String,
    /// The image that the runtime resolved; empty until it was pulled.
    pub image_id: String,
    /// Runs now, or has run before in this pod.
    pub has_run: bool,
    pub running: bool,
    pub running_since: Option<Timestamp>,
    /// Its startup probe has passed. Only a hint that the gate was open: see `observe-image`.
    pub started: bool,
    pub restarts: i32,
}

/// A container that cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub container: String,
    pub kind: TroubleKind,
    /// The kubelet's reason and message.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TroubleKind {
    ImagePull,
    Crash,
}

/// The bootstrap Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobView {
    pub uid: String,
    pub controller: Option<String>,
    pub terminating: bool,
    /// Images of the chain process and of the sidecar.
    pub image: String,
    pub sidecar_image: String,
    pub state: JobState,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobState {
    #[default]
    Active,
    Complete,
    Failed(String),
}

/// Any other object, of which decisions only read the existence and the owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectView {
    pub uid: String,
    pub resource_version: String,
    pub controller: Option<String>,
    pub terminating: bool,
}

/// The revision of a pod compared with the newest observed revision of its StatefulSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    Fresh,
    Stale,
    /// Controlled by another object, or by none.
    NotOwned,
    /// Owned, without a revision label: its template is unknown.
    Unlabelled,
}

/// The revisions of a pod that matches the target of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revisions<'a> {
    /// The revision of new pods.
    pub newest: &'a str,
    /// The revision of a pod that is known to have the same template. An upgrade of the control
    /// plane renames the revision, which must not restart a pod.
    pub known: Option<Known<'a>>,
    /// Uid of a pod that is replaced in any case.
    pub replaces: Option<&'a str>,
}

/// A revision that is known to have the template of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known<'a> {
    pub revision: &'a str,
    /// What the image of the chain process may be called, if the revision comes from a record of a
    /// running pod: a status can be edited.
    pub images: Option<[&'a str; 2]>,
}

impl Known<'_> {
    fn is_of(&self, pod: &PodView) -> bool {
        pod.revision.as_deref() == Some(self.revision)
            && self.images.is_none_or(|images| images.contains(&pod.seid.image.as_str()))
    }
}

/// Compares a pod with the newest observed revision of its StatefulSet.
pub fn freshness(
    pod: &PodView,
    statefulset: &StatefulSetView,
    revisions: Revisions<'_>,
) -> Freshness {
    if !is_owned(pod, statefulset) {
        return Freshness::NotOwned;
    }
    match pod.revision.as_deref() {
        None | Some("") => Freshness::Unlabelled,
        Some(_) if revisions.replaces == Some(pod.uid.as_str()) => Freshness::Stale,
        Some(own) if own == revisions.newest => Freshness::Fresh,
        Some(_) if revisions.known.is_some_and(|known| known.is_of(pod)) => Freshness::Fresh,
        Some(_) => Freshness::Stale,
    }
}

/// The node's own pod: the pod of the StatefulSet that this node controls. A label alone proves
/// nothing, because anybody who may create pods can set it.
pub fn own_pod<'a>(
    pods: &'a [Shared<PodView>],
    statefulset: Option<&StatefulSetView>,
    node_uid: &str,
) -> Option<&'a Shared<PodView>> {
    let statefulset = statefulset.filter(|set| set.is_controlled_by(node_uid))?;
    pods.iter().find(|pod| is_owned(pod, statefulset))
}

/// Whether this is the one pod of the StatefulSet, by its name and by every field of its controller
/// reference. The caller has checked that the node controls the StatefulSet.
pub fn is_owned(pod: &PodView, statefulset: &StatefulSetView) -> bool {
    let set = &statefulset.name;
    is_named(pod, set)
        && pod.controller.as_ref().is_some_and(|controller| {
            controller.is_statefulset(set) && controller.uid == statefulset.uid
        })
}

/// Whether the pod has the name of this node's own pod, of any controller.
pub fn is_named(pod: &PodView, node: &str) -> bool {
    pod.name.strip_suffix("-0") == Some(node)
}

/// Whether the pod belongs to the bootstrap Job of this node; without a Job, to one that existed.
pub fn is_bootstrap_pod(pod: &PodView, node: &str, job: Option<&JobView>) -> bool {
    pod.is_bootstrap
        && pod.controller.as_ref().is_some_and(|controller| {
            controller.is_job(&names::bootstrap_job(node))
                && job.is_none_or(|job| job.uid == controller.uid)
        })
}

/// Whether a pod was made for this node: by its StatefulSet, which may have been scaled to more pods
/// than one, or by its bootstrap Job. The uid of the controller is not compared.
pub fn is_made_for(node: &str, metadata: &ObjectMeta) -> bool {
    controller_of(metadata).map(Controller::from).is_some_and(|controller| {
        controller.is_statefulset(node) || controller.is_job(&names::bootstrap_job(node))
    })
}

/// The chain that a node runs, by the template of its own StatefulSet: an edit of a running node's
/// spec is refused. A node without a StatefulSet will run the chain of its spec.
pub fn chain_of<'a>(node: &'a SeiNode, statefulset: Option<&'a StatefulSetView>) -> &'a str {
    let uid = node.metadata.uid.as_deref().unwrap_or_default();
    let own = statefulset.filter(|set| set.is_controlled_by(uid));
    own.and_then(StatefulSetView::chain).unwrap_or(&node.spec.chain_id)
}

/// Whether the node controls the object, by every field of its controller reference.
pub fn is_controlled_by(object: &ObjectMeta, node: &ObjectMeta) -> bool {
    let api_version = format!("{}/{}", names::GROUP, names::VERSION);
    controller_of(object).is_some_and(|owner| {
        owner.api_version == api_version
            && owner.kind == "SeiNode"
            && Some(&owner.name) == node.name.as_ref()
            && Some(&owner.uid) == node.uid.as_ref()
    })
}

pub(crate) fn controller_of(metadata: &ObjectMeta) -> Option<&OwnerReference> {
    metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))
}

impl From<&StatefulSet> for StatefulSetView {
    fn from(object: &StatefulSet) -> Self {
        let metadata = &object.metadata;
        let status = object.status.as_ref();
        let strategy =
            object.spec.update_strategy.as_ref().and_then(|strategy| strategy.type_.as_deref());
        let selector =
            object.spec.selector.match_labels.clone().filter(|labels| !labels.is_empty());
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            observed_generation: status
                .and_then(|status| status.observed_generation)
                .unwrap_or_default(),
            controller: controller_of(metadata).map(|owner| owner.uid.clone()),
            replicas: object.spec.replicas,
            on_delete: strategy == Some("OnDelete"),
            selector,
            labels: metadata.labels.clone().unwrap_or_default(),
            template_hash: metadata
                .annotations
                .as_ref()
                .and_then(|all| all.get(annotation::TEMPLATE_HASH).cloned()),
            initialised: metadata
                .annotations
                .as_ref()
                .is_some_and(|all| all.contains_key(annotation::INITIALISED)),
            terminating: metadata.deletion_timestamp.is_some(),
            update_revision: status.and_then(|status| status.update_revision.clone()),
            template: Template::from(&object.spec.template),
            created_fields: metadata
                .managed_fields
                .as_ref()
                .filter(|entries| entries.iter().any(is_created))
                .map(|entries| entries.clone().into()),
        }
    }
}

fn is_ours(entry: &ManagedFieldsEntry) -> bool {
    entry.manager.as_deref() == Some(FIELD_MANAGER) && entry.subresource.is_none()
}

/// Whether the entry is of our create: an update of ours that owns fields of the template.
fn is_created(entry: &ManagedFieldsEntry) -> bool {
    is_ours(entry)
        && entry.operation.as_deref() == Some("Update")
        && entry.fields_v1.as_ref().is_some_and(|all| !all.0["f:spec"]["f:template"].is_null())
}

/// The `managedFields` with the fields of our create transferred to our applies; `None` if no field
/// has to be transferred.
///
/// An apply removes only fields that an earlier apply of the same manager owned. Fields of a create
/// would stay in the template for ever, and the next pod would have them too.
fn transfer_to_apply(entries: Vec<ManagedFieldsEntry>) -> Option<Value> {
    let is_owned = |entry: &ManagedFieldsEntry| {
        is_created(entry) || (is_ours(entry) && entry.operation.as_deref() == Some("Apply"))
    };
    let created = entries.iter().find(|entry| is_created(entry))?.clone();
    let (owned, mut rest): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_owned);
    let mut fields = Value::Null;
    for entry in owned {
        unite(&mut fields, entry.fields_v1.unwrap_or_default().0);
    }
    rest.push(ManagedFieldsEntry {
        operation: Some("Apply".to_owned()),
        fields_v1: Some(FieldsV1(fields)),
        ..created
    });
    serde_json::to_value(rest).ok()
}

/// Adds the fields of `more` to `all`.
fn unite(all: &mut Value, more: Value) {
    match (all, more) {
        (Value::Object(all), Value::Object(more)) => {
            for (key, value) in more {
                unite(all.entry(key).or_insert(Value::Null), value);
            }
        }
        (all @ Value::Null, more) => *all = more,
        _ => {}
    }
}

impl From<&Job> for JobView {
    fn from(object: &Job) -> Self {
        let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
        let met = |kind: &str| {
            let is_met = |found: &&JobCondition| found.type_ == kind && found.status == "True";
            conditions?.iter().find(is_met).cloned()
        };
        let state = if met("Complete").is_some() {
            JobState::Complete
        } else if let Some(failed) = met("Failed") {
            JobState::Failed(failed.message.unwrap_or_else(|| "the Job failed".to_owned()))
        } else {
            JobState::Active
        };
        let pod = object.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        Self {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            controller: controller_of(&object.metadata).map(|owner| owner.uid.clone()),
            terminating: object.metadata.deletion_timestamp.is_some(),
            image: pod.map(|pod| image_of(pod, SEID)).unwrap_or_default(),
            sidecar_image: pod.map(|pod| image_of(pod, SIDECAR)).unwrap_or_default(),
            state,
        }
    }
}

impl From<&ObjectMeta> for ObjectView {
    fn from(metadata: &ObjectMeta) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            controller: controller_of(metadata).map(|owner| owner.uid.clone()),
            terminating: metadata.deletion_timestamp.is_some(),
        }
    }
}

impl From<&Pod> for PodView {
    fn from(object: &Pod) -> Self {
        let metadata = &object.metadata;
        let labels = metadata.labels.as_ref();
        let status = object.status.as_ref();
        let spec = object.spec.as_ref();
        let condition = |kind: &str| {
            status?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
        };
        let scheduled = condition("PodScheduled");
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
            controller: controller_of(metadata).map(Controller::from),
            revision: labels.and_then(|all| all.get(label::POD_REVISION).cloned()),
            is_bootstrap: labels.and_then(|all| all.get(label::COMPONENT))
                == Some(&label::COMPONENT_BOOTSTRAP.to_owned()),
            deleted_at: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            ip: status.and_then(|status| status.pod_ip.clone()).filter(|ip| !ip.is_empty()),
            proxy: Proxy::of(object),
            ready: condition("Ready").is_some_and(|ready| ready.status == "True"),
            ready_since: condition("Ready")
                .and_then(|ready| ready.last_transition_time.as_ref())
                .map(|time| time.0),
            host: spec.and_then(|spec| spec.node_name.clone()),
            unschedulable: scheduled
                .filter(|scheduled| scheduled.reason.as_deref() == Some("Unschedulable"))
                .map(|scheduled| scheduled.message.clone().unwrap_or_default()),
            host_lost: status.is_some_and(|status| {
                status.phase.as_deref() == Some("Unknown")
                    || status.reason.as_deref() == Some("NodeLost")
                    || metadata.deletion_timestamp.is_some() && evicted_by_taint(status)
            }),
            volumes_missing: volumes_missing(object, condition("PodReadyToStartContainers")),
            seid: container(spec, object, SEID),
            sidecar: container(spec, object, SIDECAR),
            troubles: troubles(object),
            upgrade: upgrade(object),
        }
    }
}

/// Whether the taint of a machine has evicted the pod. The controller of nodes taints a machine that
/// does not respond, and deletes its pods after five minutes; only a kubelet ends them.
fn evicted_by_taint(status: &PodStatus) -> bool {
    status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "DisruptionTarget"
            && condition.status == "True"
            && condition.reason.as_deref() == Some("DeletionByTaintManager")
    })
}

/// A bound pod that has no sandbox yet. The kubelet creates the sandbox after it has mounted the
/// volumes and before it pulls an image. Its condition does not distinguish volumes from the
/// network.
fn volumes_missing(pod: &Pod, sandbox: Option<&PodCondition>) -> Option<String> {
    let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let missing = sandbox.filter(|condition| condition.status == "False")?;
    // A pod that has ended has no sandbox either, and waits for nothing.
    (is_bound && phase == Some("Pending")).then(|| {
        let message = missing.message.clone().filter(|message| !message.is_empty());
        message.unwrap_or_else(|| {
            "no sandbox yet: the kubelet waits for volumes or for the network".to_owned()
        })
    })
}

pub(crate) fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref());
    let main = status.and_then(|status| status.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

fn image_of(spec: &PodSpec, name: &str) -> String {
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .find(|container| container.name == name)
        .and_then(|container| container.image.clone())
        .unwrap_or_default()
}

fn container(spec: Option<&PodSpec>, pod: &Pod, name: &str) -> ContainerView {
    let image = spec.map(|spec| image_of(spec, name)).unwrap_or_default();
    let Some(status) = statuses(pod).find(|status| status.name == name) else {
        return ContainerView { image, ..ContainerView::default() };
    };
    let state = status.state.as_ref();
    let running = state.is_some_and(|state| state.running.is_some());
    let ended = state.is_some_and(|state| state.terminated.is_some())
        || status.last_state.as_ref().is_some_and(|state| state.terminated.is_some());
    ContainerView {
        image,
        image_id: status.image_id.clone(),
        has_run: running || ended,
        running,
        running_since: state
            .and_then(|state| state.running.as_ref()?.started_at.as_ref())
            .map(|time| time.0),
        started: status.started == Some(true),
        restarts: status.restart_count,
    }
}

/// How a container last ended.
fn last_end(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let both = [&status.state, &status.last_state];
    both.into_iter().find_map(|state| state.as_ref()?.terminated.as_ref())
}

/// The kubelet reports a termination message only if the image writes `/dev/termination-log`, or if the
/// container has the policy `FallbackToLogsOnError`.
fn upgrade(pod: &Pod) -> Option<Box<Upgrade>> {
    let seid = statuses(pod).find(|status| status.name == SEID)?;
    let end = last_end(seid).filter(|end| end.exit_code != 0)?;
    Upgrade::in_text(end.message.as_deref()?).map(Box::new)
}

/// Exit code of a program in Go that panics, as the chain process does at an upgrade height.
const PANIC: i32 = 2;

pub(crate) fn troubles(pod: &Pod) -> Vec<Trouble> {
    let waiting = |status: &ContainerStatus| {
        let waiting = status.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref()?;
        let kind = match reason {
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => TroubleKind::ImagePull,
            "CrashLoopBackOff"
            | "CreateContainerError"
            | "CreateContainerConfigError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PreStartHookError"
            | "PostStartHookError" => TroubleKind::Crash,
            _ => return None,
        };
        let message = waiting.message.as_deref().unwrap_or_default();
        let mut message = format!("{}: {reason} {message}", status.name).trim_end().to_owned();
        if status.name == SEID && last_end(status).is_some_and(|end| end.exit_code == PANIC) {
            message.push_str(" (exit code 2: it panics, as at an upgrade height)");
        }
        Some(Trouble { container: status.name.clone(), kind, message })
    };
    statuses(pod).filter_map(waiting).collect()
}
