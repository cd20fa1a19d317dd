//! The calls that a step may request, and their outcomes.
//!
//! A request is complete: the shell performs it unchanged and passes the outcome to
//! [`crate::pass::Pass::absorb`].

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::SeiNode;
use sei_api::condition::Reason;
use sei_api::names::{bootstrap_job, pre_pull_pod};
use serde_json::Value;

use crate::budget::Roll;
use crate::pre_pull::PrePullView;
use crate::shared::Shared;
use crate::signing_record::SigningRecord;
use crate::snapshot::Slot;
use crate::view::{JobView, ObjectView, PodView, Proxy, StatefulSetView};

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A live read: never from a cache.
    Read(Read),
    CreateClaim(Box<PersistentVolumeClaim>),
    /// Server-side applies. The objects have the uid and resourceVersion that were decided on.
    ApplyConfigMap(Box<ConfigMap>),
    ApplyService(Box<Service>),
    /// POST, because an apply would also take over an object of this name that is not the node's.
    CreateConfigMap(Box<ConfigMap>),
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
    /// The pod that pulls the images of an update.
    CreatePrePull(Box<Pod>),
    DeletePrePull {
        uid: String,
    },
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
    TakeSlot(Roll),
    Sidecar(SidecarRequest),
}

impl Request {
    /// What the request changes; `None` for reads, dry runs and questions.
    pub fn write(&self, node: &str) -> Option<Write> {
        let of = |verb, kind, name: &str, uid: Option<&str>| {
            let (name, uid) = (name.to_owned(), uid.map(str::to_owned));
            Some(Write { verb, kind, name, uid })
        };
        let object = |verb, kind, metadata: &ObjectMeta| {
            of(verb, kind, metadata.name.as_deref().unwrap_or(node), metadata.uid.as_deref())
        };
        match self {
            Self::Read(_) | Self::DryRunStatefulSet(_) | Self::TryPod(_) | Self::TakeSlot(_) => {
                None
            }
            Self::CreateClaim(claim) => object("create", "PersistentVolumeClaim", &claim.metadata),
            Self::CreateConfigMap(map) => object("create", "ConfigMap", &map.metadata),
            Self::ApplyConfigMap(map) => object("apply", "ConfigMap", &map.metadata),
            Self::ApplyService(service) => object("apply", "Service", &service.metadata),
            Self::CreateService(service) => object("create", "Service", &service.metadata),
            Self::CreateJob(job) => object("create", "Job", &job.metadata),
            Self::CreateStatefulSet(set) => object("create", "StatefulSet", &set.metadata),
            Self::ApplyStatefulSet(set) => object("apply", "StatefulSet", &set.metadata),
            Self::PatchStatefulSet(patch) => {
                of("patch", "StatefulSet", node, patch["metadata"]["uid"].as_str())
            }
            Self::DeletePod(pod) => of("delete", "Pod", &pod.name, Some(&pod.uid)),
            Self::CreatePrePull(pod) => object("create", "Pod", &pod.metadata),
            Self::DeletePrePull { uid } => of("delete", "Pod", &pre_pull_pod(node), Some(uid)),
            Self::DeleteJob { uid } => of("delete", "Job", &bootstrap_job(node), Some(uid)),
            Self::DeleteService { uid } => of("delete", "Service", node, Some(uid)),
            Self::DeleteClaim { name, uid } => {
                of("delete", "PersistentVolumeClaim", name, Some(uid))
            }
            Self::ReleaseClaim { name, uid, .. } => {
                of("patch", "PersistentVolumeClaim", name, Some(uid))
            }
            Self::PatchFinalizers { .. } => of("patch", "SeiNode", node, None),
            Self::Sidecar(SidecarRequest { pod_uid, call, .. }) => match call {
                SidecarCall::Poll { .. } | SidecarCall::NodeId => None,
                SidecarCall::Submit { id, .. } => of("submit", "SidecarTask", id, Some(pod_uid)),
                SidecarCall::Delete { id } => of("delete", "SidecarTask", id, Some(pod_uid)),
            },
        }
    }
}

/// What a request changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub verb: &'static str,
    pub kind: &'static str,
    pub name: String,
    /// Of the object; of the pod for a sidecar task. `None` if the request does not depend on it.
    pub uid: Option<String>,
}

/// Why a request is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purpose {
    /// Id of the plan that it belongs to.
    pub plan: Option<String>,
    /// Type of the plan's current task.
    pub task: Option<String>,
    pub why: String,
}

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    StatefulSet,
    /// Every pod with the node's label.
    Pods,
    Pod(String),
    /// The pod that pulls the images of an update.
    PrePull,
    Claim(String),
    Volume(String),
    Secret(String),
    /// The record of this name that a deleted signer has left.
    SigningRecord(String),
    Job,
    Service,
    /// The proxy's `ConfigMap`.
    ConfigMap,
    /// Body of a `ControllerRevision`: the template that a pod was created from.
    Revision(String),
    /// The node itself.
    Node,
    /// The newest generation of the node: live, or by the watch, without a call.
    Generation {
        live: bool,
    },
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
    pub proxy: Proxy,
    pub call: SidecarCall,
}

#[derive(Clone, Debug, PartialEq)]
pub enum SidecarCall {
    Submit {
        id: String,
        task_type: String,
        params: Value,
    },
    Poll {
        id: String,
    },
    Delete {
        id: String,
    },
    /// Reads the p2p id of the node.
    NodeId,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    StatefulSet(Option<Shared<StatefulSetView>>),
    Pods(Vec<Shared<PodView>>),
    Pod(Option<Shared<PodView>>),
    /// From a read, or as created.
    PrePull(Option<PrePullView>),
    Claim(Option<ClaimView>),
    Volume(Option<VolumeView>),
    Secret(Option<SecretView>),
    SigningRecord(Option<SigningRecord>),
    Job(Option<JobView>),
    Service(Option<ObjectView>),
    ConfigMap(Option<ObjectView>),
    Revision(Option<Value>),
    /// The node, from a read or a write.
    Node(Option<Box<SeiNode>>),
    /// `None`: the node no longer exists.
    Generation(Option<i64>),
    Nodes(Vec<SeiNode>),
    Mounts(Vec<MountView>),
    /// The pod template that a dry run returned.
    DryRun(Value),
    Slot(Slot),
    /// The write was accepted.
    Accepted,
    /// An apply or create of the StatefulSet was accepted and returned this object.
    Applied(Shared<StatefulSetView>),
    /// A patch of the StatefulSet was accepted and returned this object.
    Patched(Shared<StatefulSetView>),
    /// A claim was created.
    Created(ObjectView),
    /// The polled task; `None` if the sidecar has no such task.
    Task(Option<TaskRecord>),
    /// The p2p id of the node: 40 hex digits.
    NodeId(String),
    Failed(Failure),
}

impl Outcome {
    /// Why the call failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) => Some(failure),
            _ => None,
        }
    }
}

/// Why a call failed, by the categories that decisions need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// 404 on a write.
    NotFound(String),
    /// 409: the object has changed since the decision.
    Conflict(String),
    /// 409 on a create.
    AlreadyExists,
    /// 409 on an apply: another field manager owns a field.
    FieldManagerConflict(String),
    Forbidden(String),
    /// The server refuses the object: 400, 413, 422, or a denial by an admission webhook.
    Rejected(String),
    /// The namespace is being deleted and takes no new object.
    NamespaceTerminating(String),
    /// The request was not sent: the node may not start.
    NotStarted {
        reason: Reason,
        message: String,
    },
    /// Any other failure; the outcome is unknown, so the state is read again.
    Indeterminate(String),
    /// The sidecar could not be reached, or its answer was malformed.
    Unreachable(String),
    /// The sidecar refuses to run a task: 400. Its database may be at fault, so another attempt may
    /// succeed.
    TaskRefused(String),
    /// The sidecar's proxy rejects the operator's token.
    Unauthorized(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AlreadyExists => "already exists",
            Self::NotFound(text)
            | Self::NamespaceTerminating(text)
            | Self::Conflict(text)
            | Self::FieldManagerConflict(text)
            | Self::Forbidden(text)
            | Self::Rejected(text)
            | Self::NotStarted { message: text, .. }
            | Self::Indeterminate(text)
            | Self::Unreachable(text)
            | Self::TaskRefused(text)
            | Self::Unauthorized(text) => text,
        })
    }
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
    /// The hash of the genesis file that the task has assembled: 64 hex digits.
    pub genesis_hash: Option<String>,
}

impl From<TaskState> for TaskRecord {
    fn from(state: TaskState) -> Self {
        Self { state, genesis_hash: None }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Also any state that is unknown to this operator.
    Running,
    Completed,
    Failed(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_names_its_object_and_a_read_is_none() {
        let pod = PodDelete { name: "n-0".into(), uid: "u".into(), resource_version: None };
        let write = Request::DeletePod(pod).write("n").unwrap();
        assert_eq!(
            (write.verb, write.kind, write.name.as_str(), write.uid.as_deref()),
            ("delete", "Pod", "n-0", Some("u"))
        );
        let delete = Request::DeleteJob { uid: "u".into() };
        assert_eq!(delete.write("n").unwrap().name, "n-bootstrap");
        let sidecar = |call| {
            let (pod_uid, ip) = ("u".to_owned(), "10.0.0.1".to_owned());
            Request::Sidecar(SidecarRequest { pod_uid, ip, proxy: Proxy::default(), call })
                .write("n")
        };
        assert_eq!(sidecar(SidecarCall::Poll { id: "i".into() }), None);
        assert_eq!(sidecar(SidecarCall::Delete { id: "i".into() }).unwrap().name, "i");
        for question in [
            Request::Read(Read::Pods),
            Request::TakeSlot(Roll::Template),
            Request::TryPod(Box::default()),
            Request::DryRunStatefulSet(Box::default()),
        ] {
            assert_eq!(question.write("n"), None, "{question:?}");
        }
    }
}
