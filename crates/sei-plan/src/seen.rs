//! What one pass has read and written so far, for the steps of a plan.

use std::collections::BTreeMap;

use jiff::Timestamp;
use sei_api::SeiNode;
use serde_json::Value;

use crate::desired::Desired;
use crate::pre_pull::PrePullView;
use crate::pre_pull::machine::NodePull;
use crate::request::{
    ClaimView, Failure, Outcome, Read, Request, SecretView, SidecarCall, TaskRecord, VolumeView,
};
use crate::shared::Shared;
use crate::timing::Timing;
use crate::view::{JobView, ObjectView, PodView, StatefulSetView};

/// The last read of an object in this pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Reading<T> {
    #[default]
    Unread,
    /// From a cache. It may be old, so it justifies a write only if the server refuses that write where
    /// the cache is wrong: a creation, or a deletion of this version of the object.
    Cached(Option<T>),
    Live(Option<T>),
}

impl<T> Reading<T> {
    /// The value, cached or live.
    pub fn any(&self) -> Option<&T> {
        match self {
            Self::Unread => None,
            Self::Cached(value) | Self::Live(value) => value.as_ref(),
        }
    }
}

/// Whether the server would admit the pod of a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodTry {
    /// Not checked.
    #[default]
    Off,
    /// To be checked before the template is written.
    Due,
    /// The server admitted the pod in this pass.
    Admitted,
}

/// The results of the reads and writes of a pass.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The node, with its status as changed by this pass so far.
    pub node: Shared<SeiNode>,
    pub now: Timestamp,
    pub timing: Timing,
    pub operator_version: String,
    pub desired: Shared<Desired>,
    /// Desired number of pods.
    pub replicas: i32,
    pub statefulset: Reading<Shared<StatefulSetView>>,
    pub pods: Reading<Vec<Shared<PodView>>>,
    /// The pod that a stamp depends on.
    pub pod: Reading<Shared<PodView>>,
    pub claim: Reading<ClaimView>,
    pub volume: Reading<VolumeView>,
    pub secrets: BTreeMap<String, Reading<SecretView>>,
    pub job: Reading<JobView>,
    pub service: Reading<ObjectView>,
    pub config_map: Reading<ObjectView>,
    pub revision: Reading<Value>,
    /// Uid of the pod whose gate is open by its last health probe.
    pub open_gate: Option<String>,
    /// Polled sidecar tasks by id.
    pub tasks: BTreeMap<String, Option<TaskRecord>>,
    /// Tasks whose submission was accepted in this pass.
    pub submitted: Vec<String>,
    /// Uid of the pod whose deletion was accepted in this pass.
    pub deleted_pod: Option<String>,
    pub pod_try: PodTry,
    /// Whether the platform lets the images of updates be pulled first.
    pub pre_pulls: bool,
    pub pre_pull: Reading<PrePullView>,
    /// Pulls on the machine of the node's pod, also for other nodes.
    pub pulls: Vec<NodePull>,
    /// Why the server refused to create that pod in this pass.
    pub pre_pull_refused: Option<String>,
    /// The generation of the node, read again before its pod is deleted.
    pub newest_generation: Option<i64>,
    pub stored: Stored,
    /// The result of the plan's own apply in this pass.
    pub applied: Option<Shared<StatefulSetView>>,
    /// The claim that was created in this pass.
    pub created: Option<ObjectView>,
    /// The cached Service and `ConfigMap` already match the desired state: no write is needed.
    pub service_is_current: bool,
    pub proxy_config_is_current: bool,
    /// Other writes that were accepted in this pass, by kind of object.
    pub accepted: Vec<&'static str>,
    /// The last request's failure; cleared by the next success.
    pub failure: Option<Failure>,
    /// Conflicts in a row on deleting the same pod. The shell keeps it from pass to pass.
    pub delete_conflicts: u32,
}

/// What was stored when the pass began, and so survives a crash of the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The identity that the node signs as, which other nodes check.
    pub identity: bool,
    /// The completion of the bootstrap Job.
    pub replay: bool,
}

impl Seen {
    pub fn new(
        node: impl Into<Shared<SeiNode>>,
        desired: impl Into<Shared<Desired>>,
        now: Timestamp,
    ) -> Self {
        Self {
            node: node.into(),
            now,
            timing: Timing::default(),
            operator_version: String::new(),
            desired: desired.into(),
            replicas: 1,
            statefulset: Reading::Unread,
            pods: Reading::Unread,
            pod: Reading::Unread,
            claim: Reading::Cached(None),
            volume: Reading::Unread,
            secrets: BTreeMap::new(),
            job: Reading::Unread,
            service: Reading::Unread,
            config_map: Reading::Unread,
            revision: Reading::Unread,
            open_gate: None,
            tasks: BTreeMap::new(),
            submitted: Vec::new(),
            deleted_pod: None,
            pod_try: PodTry::Off,
            pre_pulls: false,
            pre_pull: Reading::Cached(None),
            pulls: Vec::new(),
            pre_pull_refused: None,
            newest_generation: None,
            stored: Stored { identity: true, replay: true },
            applied: None,
            created: None,
            service_is_current: false,
            proxy_config_is_current: false,
            accepted: Vec::new(),
            failure: None,
            delete_conflicts: 0,
        }
    }

    /// Name of the node.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Records the outcome of a request. Objects that a write may have changed become unread.
    pub fn absorb(&mut self, request: &Request, outcome: Outcome) {
        self.failure = None;
        match outcome {
            Outcome::StatefulSet(found) => self.statefulset = Reading::Live(found),
            Outcome::Pods(found) => self.pods = Reading::Live(Some(found)),
            Outcome::Pod(found) => self.pod = Reading::Live(found),
            Outcome::Claim(found) => self.claim = Reading::Live(found),
            Outcome::Volume(found) => self.volume = Reading::Live(found),
            Outcome::Secret(found) => {
                if let Request::Read(Read::Secret(name)) = request {
                    self.secrets.insert(name.clone(), Reading::Live(found));
                }
            }
            Outcome::Job(found) => self.job = Reading::Live(found),
            Outcome::Service(found) => self.service = Reading::Live(found),
            Outcome::ConfigMap(found) => self.config_map = Reading::Live(found),
            Outcome::Revision(found) => self.revision = Reading::Live(found),
            Outcome::PrePull(found) => self.pre_pull = Reading::Live(found),
            Outcome::Applied(view) => {
                // Its status still refers to the previous template, so it is never compared with a
                // pod. It only shows that the controller has not observed it, which saves a read.
                let unobserved = view.observed_generation < view.generation;
                self.statefulset =
                    if unobserved { Reading::Cached(Some(view.clone())) } else { Reading::Unread };
                self.applied = Some(view);
            }
            Outcome::Patched(view) => self.statefulset = Reading::Live(Some(view)),
            Outcome::Created(view) => self.created = Some(view),
            Outcome::Generation(found) => self.newest_generation = Some(found.unwrap_or_default()),
            Outcome::Task(record) => {
                if let Request::Sidecar(call) = request
                    && let SidecarCall::Poll { id } = &call.call
                {
                    self.tasks.insert(id.clone(), record);
                }
            }
            Outcome::Accepted => self.absorb_write(request),
            // These outcomes are for the pass itself, not for a task.
            Outcome::Node(_)
            | Outcome::Nodes(_)
            | Outcome::Mounts(_)
            | Outcome::SigningRecord(_)
            | Outcome::DryRun(_)
            | Outcome::NodeId(_)
            | Outcome::Slot(_) => {}
            Outcome::Failed(failure) => self.absorb_failure(request, failure),
        }
    }

    fn absorb_write(&mut self, request: &Request) {
        match request {
            Request::DeletePod(delete) => {
                self.deleted_pod = Some(delete.uid.clone());
                self.delete_conflicts = 0;
                self.pods = Reading::Unread;
            }
            Request::TryPod(_) => self.pod_try = PodTry::Admitted,
            Request::DeletePrePull { .. } => self.pre_pull = Reading::Cached(None),
            Request::DeleteJob { .. } => self.job = Reading::Unread,
            Request::CreateJob(_) => {
                self.job = Reading::Unread;
                self.accepted.push(JOB);
            }
            Request::DeleteService { .. } => {
                self.service = Reading::Unread;
                self.accepted.retain(|kind| *kind != SERVICE);
            }
            Request::CreateService(_) => {
                self.service = Reading::Unread;
                self.accepted.push(SERVICE);
            }
            Request::ApplyService(_) => self.accepted.push(SERVICE),
            Request::ApplyConfigMap(_) | Request::CreateConfigMap(_) => {
                self.accepted.push(CONFIG_MAP);
            }
            Request::Sidecar(call) => match &call.call {
                SidecarCall::Submit { id, .. } => {
                    self.submitted.push(id.clone());
                    self.tasks.remove(id);
                }
                SidecarCall::Delete { id } => {
                    self.tasks.insert(id.clone(), None);
                }
                SidecarCall::Poll { .. } | SidecarCall::NodeId => {}
            },
            Request::Read(_)
            | Request::CreatePrePull(_)
            | Request::CreateClaim(_)
            | Request::CreateStatefulSet(_)
            | Request::ApplyStatefulSet(_)
            | Request::DryRunStatefulSet(_)
            | Request::PatchStatefulSet(_)
            | Request::DeleteClaim { .. }
            | Request::ReleaseClaim { .. }
            | Request::PatchFinalizers { .. }
            | Request::TakeSlot(_) => {}
        }
    }

    /// After a failed write the object may differ from what was read: it is read again.
    fn absorb_failure(&mut self, request: &Request, failure: Failure) {
        if matches!(request, Request::TryPod(_)) && means_admitted(&failure) {
            self.pod_try = PodTry::Admitted;
            return;
        }
        if matches!(request, Request::CreatePrePull(_)) && is_final(&failure) {
            // It is an aid of the update and must not block it.
            self.pre_pull_refused = Some(failure.to_string());
            return;
        }
        match request {
            Request::DeletePod(_) => {
                self.delete_conflicts = match failure {
                    Failure::Conflict(_) => self.delete_conflicts.saturating_add(1),
                    // The pod does not exist any more, and the next pod has had no conflict yet.
                    Failure::NotFound(_) => 0,
                    _ => self.delete_conflicts,
                };
                self.pods = Reading::Unread;
                self.newest_generation = None;
            }
            Request::ApplyStatefulSet(_)
            | Request::CreateStatefulSet(_)
            | Request::PatchStatefulSet(_) => self.statefulset = Reading::Unread,
            Request::CreatePrePull(_) | Request::DeletePrePull { .. } => {
                self.pre_pull = Reading::Unread;
            }
            Request::CreateClaim(_) => self.claim = Reading::Unread,
            Request::CreateJob(_) | Request::DeleteJob { .. } => self.job = Reading::Unread,
            Request::CreateService(_)
            | Request::ApplyService(_)
            | Request::DeleteService { .. } => self.service = Reading::Unread,
            Request::CreateConfigMap(_) | Request::ApplyConfigMap(_) => {
                self.config_map = Reading::Unread;
            }
            Request::Sidecar(call) => match &call.call {
                SidecarCall::Submit { id, .. } | SidecarCall::Delete { id } => {
                    self.tasks.remove(id);
                }
                SidecarCall::Poll { .. } | SidecarCall::NodeId => {}
            },
            Request::Read(_)
            | Request::TryPod(_)
            | Request::DryRunStatefulSet(_)
            | Request::DeleteClaim { .. }
            | Request::ReleaseClaim { .. }
            | Request::PatchFinalizers { .. }
            | Request::TakeSlot(_) => {}
        }
        self.failure = Some(failure);
    }
}

/// Whether a failed dry run still means that the pod would be admitted: the name is in use, which
/// is checked after admission; or a quota is exceeded, which still counts the running pod.
fn means_admitted(failure: &Failure) -> bool {
    match failure {
        Failure::AlreadyExists => true,
        Failure::Rejected(text) => text.contains("exceeded quota"),
        _ => false,
    }
}

/// Whether the server has answered that it does not create an object: a repetition would not help.
fn is_final(failure: &Failure) -> bool {
    !matches!(failure, Failure::AlreadyExists | Failure::Indeterminate(_))
}

/// Marks in [`Seen::accepted`].
pub const SERVICE: &str = "Service";
pub const CONFIG_MAP: &str = "ConfigMap";
pub const JOB: &str = "Job";
