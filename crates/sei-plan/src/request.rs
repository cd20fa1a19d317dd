//! The calls that a step may request, and their outcomes.
//!
//! A request is complete: the shell performs it unchanged and passes the outcome to
//! [`crate::pass::Pass::absorb`].

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use sei_api::SeiNode;
use sei_api::condition::Reason;
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
    /// POST, because an apply would also recreate an object that a user deletes at the same time.
    CreateStatefulSet(Box<StatefulSet>),
    /// Full server-side apply. The object has the uid and resourceVersion that it was decided on.
    ApplyStatefulSet(Box<StatefulSet>),
    /// Dry-run apply: returns the object that the server would store. Nothing is written.
    DryRunStatefulSet(Box<StatefulSet>),
    /// Dry-run create: checks that the server would admit this pod. Nothing is created.
    TryPod(Box<Pod>),
    /// Merge patch of fields outside of the template; the patch has the resourceVersion.
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
    /// Takes the node with this uid off the owners of a claim, which then stays.
    ReleaseClaim {
        name: String,
        uid: String,
        owner: String,
    },
    /// Merge patch of the node's finalizers, with the resourceVersion that it was decided on.
    PatchFinalizers {
        resource_version: Option<String>,
        finalizers: Vec<String>,
    },
    /// Requests a slot of the chain's budget. The shell's ledger answers, without a call.
    TakeSlot,
    Sidecar(SidecarRequest),
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
    /// Body of a `ControllerRevision`: the template that a pod was created from.
    Revision(String),
    /// The node itself.
    Node,
    /// Every node that the operator manages.
    Nodes,
    /// Every StatefulSet and pod of nodes in this namespace, with the Secrets and claims that it
    /// mounts; only those of one node if its name is given.
    Mounts {
        namespace: String,
        node: Option<String>,
    },
}

/// Deletion of one pod by uid, so that a new pod of the same name is not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodDelete {
    pub name: String,
    pub uid: String,
    /// Dropped after five conflicts in a row: a pod whose status churns must not starve an update.
    pub resource_version: Option<String>,
}

/// A call to the sidecar of one pod.
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

/// The outcome of a request.
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
    /// The node, from a read or a write.
    Node(Option<Box<SeiNode>>),
    Nodes(Vec<SeiNode>),
    Mounts(Vec<MountView>),
    /// The pod template that a dry run returned.
    DryRun(Value),
    Slot(Slot),
    /// The write was accepted.
    Accepted,
    /// An apply or create of the StatefulSet was accepted and returned this object.
    Applied(Shared<StatefulSetView>),
    /// A claim was created.
    Created(ObjectView),
    /// The polled task; `None` if the sidecar has no such task.
    Task(Option<TaskRecord>),
    Failed(Failure),
}

/// Why a call failed, by the categories that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// 404 on a write.
    NotFound,
    /// 409: the object has changed since the decision.
    Conflict(String),
    /// 409 on a create.
    AlreadyExists,
    /// 409 on an apply: another field manager owns a field.
    FieldManagerConflict(String),
    Forbidden(String),
    /// The server refuses the object: 400, 413, 422, or a denial by an admission webhook.
    Rejected(String),
    /// The request was not sent: the node may not start.
    NotStarted {
        reason: Reason,
        message: String,
    },
    /// Any other failure; the outcome is unknown, so the state is read again.
    Indeterminate(String),
    /// The sidecar could not be reached, or its answer was malformed.
    Unreachable(String),
    /// The sidecar's proxy rejects the operator's token.
    Unauthorized(String),
}

/// A StatefulSet or pod of a node, with the Secrets and claims that it mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountView {
    /// `StatefulSet` or `pod`.
    pub kind: &'static str,
    pub namespace: String,
    pub name: String,
    /// Label of the node it belongs to.
    pub node: Option<String>,
    /// Label of the chain that it runs.
    pub chain: Option<String>,
    pub secrets: Vec<String>,
    pub claims: Vec<String>,
    /// Mounts a signing key.
    pub signs: bool,
    /// A pod in which no container runs or will run, or a StatefulSet with zero replicas.
    pub is_idle: bool,
}

/// The fields of a claim that decisions read.
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
    /// Also any state that is unknown to this operator.
    Running,
    Completed,
    Failed(String),
}
