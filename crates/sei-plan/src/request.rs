//! The calls that a step may ask for, and what can come back.
//!
//! A request leaves nothing to decide: the shell performs it as it stands and returns the outcome to
//! [`crate::pass::Pass::absorb`].

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use serde_json::Value;

use crate::shared::Shared;
use crate::snapshot::Slot;
use crate::view::{JobView, ObjectView, PodView, StatefulSetView};

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A live read: never from a cache.
    Read(Read),
    CreateClaim(Box<PersistentVolumeClaim>),
    ApplyConfigMap(Box<ConfigMap>),
    ApplyService(Box<Service>),
    CreateService(Box<Service>),
    CreateJob(Box<Job>),
    /// POST, because an apply would also re-create what somebody else is just deleting.
    CreateStatefulSet(Box<StatefulSet>),
    /// Full server-side apply. The object carries the uid and resourceVersion it was decided on.
    ApplyStatefulSet(Box<StatefulSet>),
    /// Dry-run apply: what would the server make of this object? Nothing is written.
    DryRunStatefulSet(Box<StatefulSet>),
    /// Dry-run create: would the server admit this pod? Nothing is made.
    TryPod(Box<Pod>),
    /// Merge patch of fields outside of the template; the patch carries the resourceVersion.
    PatchStatefulSet(Value),
    DeletePod(PodDelete),
    /// Foreground, with the uid as precondition.
    DeleteJob {
        uid: String,
    },
    DeleteService {
        uid: String,
    },
    DeleteClaim {
        name: String,
        uid: String,
    },
    /// Merge patch of the node's finalizers; carries the resourceVersion it was decided on.
    PatchFinalizers {
        resource_version: Option<String>,
        finalizers: Vec<String>,
    },
    /// Ask the chain's budget for a slot. The shell's ledger answers, without a call.
    TakeSlot,
    Sidecar(SidecarRequest),
}

impl Request {
    /// Whether it may start a pod where there was none.
    pub fn starts_a_pod(&self) -> bool {
        match self {
            Self::CreateStatefulSet(_) => true,
            Self::PatchStatefulSet(patch) => patch["spec"]["replicas"] == 1,
            _ => false,
        }
    }
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    StatefulSet,
    /// Every pod with the node's label.
    Pods,
    Pod(String),
    Claim(String),
    Volume(String),
    Secret(String),
    Job,
    Service,
    /// Body of a `ControllerRevision`: the template that a pod was made from.
    Revision(String),
    /// The node itself.
    Node,
    /// Every node that the operator manages.
    Nodes,
    /// Whether this node, which is another one, has a StatefulSet.
    HasStatefulSet(ObjectKey),
    /// Every StatefulSet and pod of nodes in the namespace, with the Secrets and claims it mounts.
    Mounts,
}

/// Deletion of one pod, and of no namesake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDelete {
    pub name: String,
    pub uid: String,
    /// Dropped after five conflicts in a row: a pod whose status churns must not starve an update.
    pub resource_version: Option<String>,
}

/// A call to the sidecar of one certain pod.
#[derive(Clone, Debug, PartialEq)]
pub struct SidecarRequest {
    pub pod_uid: String,
    pub ip: String,
    pub call: SidecarCall,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SidecarCall {
    Submit { id: String, task_type: String, params: Value },
    Poll { id: String },
    Delete { id: String },
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    StatefulSet(Option<Shared<StatefulSetView>>),
    Pods(Vec<Shared<PodView>>),
    Pod(Option<Shared<PodView>>),
    Claim(Option<ClaimView>),
    Volume(Option<VolumeView>),
    Secret(Option<SecretView>),
    Job(Option<JobView>),
    Service(Option<ObjectView>),
    Revision(Option<Value>),
    /// The node: read, or as a write returned it.
    Node(Option<Box<SeiNode>>),
    Nodes(Vec<SeiNode>),
    HasStatefulSet(bool),
    Mounts(Vec<MountView>),
    /// The pod template that a dry run returned.
    DryRun(Value),
    Slot(Slot),
    /// The write was accepted.
    Accepted,
    /// An apply or create of the StatefulSet was accepted and returned this.
    Applied(Shared<StatefulSetView>),
    /// A claim was created.
    Created(ObjectView),
    /// What a poll found; `None`: the sidecar knows no such task.
    Task(Option<TaskRecord>),
    Failed(Failure),
}

/// Why a call failed, as far as a decision depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// 404 on a write.
    NotFound,
    /// 409: what was decided on is no longer so.
    Conflict(String),
    /// 409 on a create.
    AlreadyExists,
    /// 409 on an apply: another field manager.
    FieldManagerConflict(String),
    Forbidden(String),
    /// The server refuses the object: 400, 413, 422, or an admission webhook's no.
    Rejected(String),
    /// Not asked for: something else still has the signing key or the volume.
    SigningKey(String),
    /// Anything else, the outcome unknown: look again.
    Indeterminate(String),
    /// The sidecar could not be reached or answered nonsense.
    Unreachable(String),
    /// The sidecar's proxy refuses us.
    Unauthorized(String),
}

/// A StatefulSet or pod of some node, with what it mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountView {
    /// `StatefulSet` or `pod`.
    pub kind: &'static str,
    pub name: String,
    /// Label of the node it belongs to.
    pub node: Option<String>,
    pub secrets: Vec<String>,
    pub claims: Vec<String>,
    /// A pod in which nothing runs or will run.
    pub ended: bool,
}

/// A claim, as far as its use depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClaimView {
    pub uid: String,
    pub controller: Option<String>,
    pub terminating: bool,
    pub phase: String,
    pub access_modes: Vec<String>,
    pub capacity: Option<String>,
    pub volume: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeView {
    pub phase: String,
    pub capacity: Option<String>,
}

/// A Secret. Its content is never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretView {
    pub terminating: bool,
    pub data: BTreeMap<String, Vec<u8>>,
}

impl std::fmt::Debug for SecretView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys: Vec<_> = self.data.keys().collect();
        f.debug_struct("SecretView")
            .field("terminating", &self.terminating)
            .field("keys", &keys)
            .finish_non_exhaustive()
    }
}

/// A task as the sidecar reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    pub state: TaskState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Also any state that this operator does not know.
    Running,
    Completed,
    Failed(String),
}
