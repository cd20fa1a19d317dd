//! How a deleted node is finalized: a signer is stopped, its own volume is deleted, everything else
//! is garbage-collected by ownership. A node with `sei.io/hands-off` is kept until that is removed.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::names::{NODE_FINALIZER, ORPHAN_FINALIZER, annotation, data_claim};
use sei_api::node::OnDelete;
use sei_api::status::{Blocked, SeiNodePhase, SeiNodeStatus};
use serde_json::json;

use crate::hands_off::{self, is_hands_off};
use crate::pass::{Ask, Ending};
use crate::planner::later;
use crate::planner::ready::record_terminating;
use crate::request::{Failure, MountView, Outcome, Purpose, Read, Request};
use crate::shared::Shared;
use crate::signing_record;
use crate::timing::Timing;
use crate::view::StatefulSetView;

/// One pass over a node that has a deletion timestamp.
#[derive(Clone, Debug)]
pub struct Deletion {
    node: Shared<SeiNode>,
    now: Timestamp,
    timing: Timing,
    /// What the platform configures for nodes that do not sign.
    default: OnDelete,
    /// Uid of the pod that pulls the images of an update.
    pre_pull: Option<String>,
    stage: Stage,
    ending: Ending,
}

#[derive(Clone, Debug, PartialEq)]
enum Stage {
    /// The user keeps the node as it is.
    Keep,
    MarkTerminating,
    DeletePrePull {
        uid: String,
    },
    ReadStatefulSet,
    ScaleDown {
        resource_version: String,
    },
    ReadPods,
    /// Pods that may still sign.
    Wait(String),
    ReadClaim,
    /// A signer leaves a record before it loses its volume.
    Record {
        record: Box<ConfigMap>,
        then: Box<Stage>,
    },
    DeleteClaim {
        name: String,
        uid: String,
    },
    ReleaseClaim {
        name: String,
        uid: String,
    },
    RemoveFinalizer,
    End,
}

impl Deletion {
    pub fn new(node: Shared<SeiNode>, now: Timestamp, timing: Timing, default: OnDelete) -> Self {
        let held = has_finalizer(&node, NODE_FINALIZER);
        let ending = Ending { is_released: !held, ..Ending::default() };
        let stage = match () {
            () if !held => Stage::End,
            () if is_hands_off(&node) => Stage::Keep,
            () => Stage::MarkTerminating,
        };
        Self { node, now, timing, default, pre_pull: None, stage, ending }
    }

    /// Deletes this pod too. The garbage collector would leave it if the node is orphaned.
    #[must_use]
    pub fn with_pre_pull(self, pre_pull: Option<String>) -> Self {
        Self { pre_pull, ..self }
    }

    pub fn node(&self) -> &Shared<SeiNode> {
        &self.node
    }

    pub fn purpose(&self) -> Purpose {
        Purpose { why: "the node is deleted".to_owned(), ..Purpose::default() }
    }

    pub fn ask(&mut self) -> Ask {
        loop {
            match &self.stage {
                Stage::Keep => {
                    let status = hands_off::kept(&self.node, self.now);
                    self.stage = Stage::End;
                    if self.node.status.as_ref() != Some(&status) {
                        return Ask::Write(Box::new(status));
                    }
                }
                Stage::MarkTerminating => {
                    self.stage = match self.pre_pull.take() {
                        Some(uid) => Stage::DeletePrePull { uid },
                        None => self.first(),
                    };
                    if let Some(status) = self.terminating() {
                        return Ask::Write(Box::new(status));
                    }
                }
                Stage::DeletePrePull { uid } => {
                    return perform(Request::DeletePrePull { uid: uid.clone() });
                }
                Stage::ReadStatefulSet => return perform(Request::Read(Read::StatefulSet)),
                Stage::ScaleDown { resource_version } => {
                    return perform(Request::PatchStatefulSet(json!({
                        "metadata": { "resourceVersion": resource_version },
                        "spec": { "replicas": 0 },
                    })));
                }
                Stage::ReadPods => {
                    let namespace = self.node.metadata.namespace.clone().unwrap_or_default();
                    let node = self.node.metadata.name.clone();
                    return perform(Request::Read(Read::Mounts { namespace, node }));
                }
                Stage::Wait(pod) => {
                    let status = self.waiting_for(pod);
                    self.end(|_| {});
                    if self.node.status.as_ref() != Some(&status) {
                        return Ask::Write(Box::new(status));
                    }
                }
                // An imported claim is its owner's.
                Stage::ReadClaim if self.node.spec.imported_claim().is_some() => {
                    self.stage = self.recorded(Stage::RemoveFinalizer);
                }
                Stage::Record { record, .. } => {
                    return perform(Request::ApplyConfigMap(record.clone()));
                }
                Stage::ReadClaim => {
                    return perform(Request::Read(Read::Claim(data_claim(self.name()))));
                }
                Stage::DeleteClaim { name, uid } => {
                    let (name, uid) = (name.clone(), uid.clone());
                    return perform(Request::DeleteClaim { name, uid });
                }
                Stage::ReleaseClaim { name, uid } => {
                    return perform(Request::ReleaseClaim {
                        name: name.clone(),
                        uid: uid.clone(),
                        owner: self.node.metadata.uid.clone().unwrap_or_default(),
                    });
                }
                Stage::RemoveFinalizer => {
                    let all = self.node.metadata.finalizers.iter().flatten();
                    return perform(Request::PatchFinalizers {
                        resource_version: self.node.metadata.resource_version.clone(),
                        finalizers: all.filter(|name| *name != NODE_FINALIZER).cloned().collect(),
                    });
                }
                Stage::End => return Ask::Done(Box::new(std::mem::take(&mut self.ending))),
            }
        }
    }

    /// The status of a node whose deletion begins.
    fn terminating(&self) -> Option<SeiNodeStatus> {
        let mut status = self.node.status.clone().unwrap_or_default();
        let is_known = status.phase == Some(SeiNodePhase::Terminating);
        if is_known && !hands_off::is_reported(&status) {
            return None;
        }
        status.phase = Some(SeiNodePhase::Terminating);
        let generation = self.node.metadata.generation.unwrap_or_default();
        record_terminating(&mut status, generation, self.now);
        Some(status)
    }

    /// What follows the mark.
    ///
    /// While the node exists, no other node starts with its key. So the object of a signer stays
    /// until its pods have ended, which no garbage collector waits for.
    fn first(&self) -> Stage {
        if has_finalizer(&self.node, ORPHAN_FINALIZER) {
            // The user keeps all objects of the node. The garbage collector takes the owner
            // references off meanwhile. Its pod signs on, and no node shows that any more.
            return self.recorded(Stage::RemoveFinalizer);
        }
        let forced = self.node.metadata.annotations.as_ref().and_then(|all| {
            all.get(annotation::FORCE_FINALIZE)
                .filter(|uid| Some(*uid) == self.node.metadata.uid.as_ref())
        });
        if self.signs() && forced.is_none() { Stage::ReadStatefulSet } else { Stage::ReadClaim }
    }

    /// What happens to the claim. That of a signer has the record of what was signed: without it the
    /// same key could sign a block twice.
    fn on_delete(&self) -> OnDelete {
        let spec = self.node.spec.data_volume.as_ref().and_then(|spec| spec.on_delete);
        let default = if self.signs() { OnDelete::Retain } else { self.default };
        spec.unwrap_or(default)
    }

    fn signs(&self) -> bool {
        let status = self.node.status.as_ref();
        self.node.spec.signs() || status.is_some_and(|status| status.signing_identity.is_some())
    }

    fn after_statefulset(&self, found: Option<&StatefulSetView>) -> Stage {
        match found {
            // It was orphaned: its pods are not the node's.
            Some(set) if set.controller != self.node.metadata.uid => Stage::ReadClaim,
            Some(set) if set.replicas != Some(0) && !set.terminating => {
                Stage::ScaleDown { resource_version: set.resource_version.clone() }
            }
            _ => Stage::ReadPods,
        }
    }

    fn after_pods(&self, mounts: &[MountView]) -> Stage {
        let own = format!("{}-0", self.name());
        let signs = |mount: &&MountView| {
            mount.is_pod() && !mount.is_idle && (mount.signs || mount.name == own)
        };
        match mounts.iter().find(signs) {
            Some(pod) => Stage::Wait(pod.name.clone()),
            None => Stage::ReadClaim,
        }
    }

    /// This stage, after the record that a signer leaves.
    fn recorded(&self, then: Stage) -> Stage {
        match signing_record::record(&self.node, self.now) {
            Some(record) => Stage::Record { record: Box::new(record), then: Box::new(then) },
            None => then,
        }
    }

    /// The status while a pod may still sign.
    fn waiting_for(&self, pod: &str) -> SeiNodeStatus {
        let mut status = self.node.status.clone().unwrap_or_default();
        let uid = self.node.metadata.uid.as_deref().unwrap_or_default();
        let message = format!(
            "pod {pod} has not ended and may still sign; to delete the node without waiting for it, \
             set annotation {}: {uid}",
            annotation::FORCE_FINALIZE
        );
        let reason = Reason::PodTerminating;
        let same = status.blocked.as_ref().filter(|blocked| blocked.reason == reason.as_str());
        let since = same.map_or(Time(self.now), |blocked| blocked.since.clone());
        if later(since.0, self.timing.stall_deadline(reason)) <= self.now {
            let generation = self.node.metadata.generation.unwrap_or_default();
            let stalled = ConditionType::Stalled;
            let verdict = Verdict::new(stalled, ConditionStatus::True, reason, message.clone());
            condition::set(&mut status.conditions, &verdict, generation, self.now);
        }
        status.blocked = Some(Blocked { reason: reason.as_str().to_owned(), since, message });
        status
    }

    pub fn absorb(&mut self, outcome: Outcome) {
        match (&self.stage, outcome) {
            (
                Stage::DeletePrePull { .. },
                Outcome::Accepted | Outcome::Failed(Failure::NotFound(_) | Failure::Conflict(_)),
            ) => self.stage = self.first(),
            (Stage::ReadStatefulSet, Outcome::StatefulSet(found)) => {
                self.stage = self.after_statefulset(found.as_deref());
            }
            (
                Stage::ScaleDown { .. },
                Outcome::Patched(_) | Outcome::Failed(Failure::NotFound(_)),
            ) => {
                self.stage = Stage::ReadPods;
            }
            (Stage::ScaleDown { .. }, Outcome::Failed(Failure::Conflict(_))) => {
                self.stage = Stage::ReadStatefulSet;
            }
            (Stage::ReadPods, Outcome::Mounts(mounts)) => {
                self.stage = self.after_pods(&mounts);
                // Events of the pod enqueue the node, too.
                self.ending.requeue = Some(self.timing.poll());
            }
            (Stage::ReadClaim, Outcome::Claim(found)) => {
                // A claim of the same name that this node does not control is left alone.
                let own = found.filter(|claim| {
                    !claim.terminating && claim.controller == self.node.metadata.uid
                });
                let then = own.map_or(Stage::RemoveFinalizer, |claim| {
                    let (name, uid) = (data_claim(self.name()), claim.uid);
                    match self.on_delete() {
                        OnDelete::Delete => Stage::DeleteClaim { name, uid },
                        OnDelete::Retain => Stage::ReleaseClaim { name, uid },
                    }
                });
                self.stage = self.recorded(then);
            }
            (Stage::Record { then, .. }, outcome) if is_recorded(&outcome) => {
                let then = Stage::clone(then);
                self.stage = then;
            }
            (Stage::DeleteClaim { .. }, Outcome::Accepted)
            | (
                Stage::DeleteClaim { .. } | Stage::ReleaseClaim { .. },
                Outcome::Failed(Failure::NotFound(_)),
            ) => self.stage = Stage::RemoveFinalizer,
            (Stage::ReleaseClaim { name, .. }, Outcome::Accepted) => {
                self.ending.retained_claim = Some(name.clone());
                self.stage = Stage::RemoveFinalizer;
            }
            (Stage::RemoveFinalizer, Outcome::Node(found)) => {
                if let Some(node) = found {
                    self.node = Shared::new(*node);
                }
                self.end(|ending| ending.is_released = true);
            }
            (Stage::RemoveFinalizer, Outcome::Failed(Failure::NotFound(_))) => {
                self.end(|ending| ending.is_released = true);
            }
            (Stage::RemoveFinalizer, Outcome::Failed(Failure::Conflict(_))) => {
                self.end(|ending| ending.is_stale = true);
            }
            (_, Outcome::Failed(failure)) => self.end(|ending| ending.failure = Some(failure)),
            // The write of the status returned the node.
            (_, Outcome::Node(Some(node))) => self.node = Shared::new(*node),
            _ => {}
        }
    }

    fn end(&mut self, change: impl FnOnce(&mut Ending)) {
        change(&mut self.ending);
        self.stage = Stage::End;
    }

    fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }
}

fn has_finalizer(node: &SeiNode, finalizer: &str) -> bool {
    node.metadata.finalizers.iter().flatten().any(|name| name == finalizer)
}

/// Whether the record is written, or cannot be: a namespace that is being deleted takes no record, and
/// must end. Any other refusal, of a quota for example, keeps the node: without its record the same key
/// could sign a block twice.
fn is_recorded(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Accepted
            | Outcome::Failed(Failure::NotFound(_) | Failure::NamespaceTerminating(_))
    )
}

fn perform(request: Request) -> Ask {
    Ask::Perform(request.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::fixture::{NODE_UID, at, full_node, node, running, statefulset, validator};
    use crate::request::ClaimView;

    fn deleted() -> SeiNode {
        let mut node = node(full_node());
        node.metadata.deletion_timestamp =
            Some(serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap());
        node.metadata.finalizers = Some(vec!["keep".to_owned(), NODE_FINALIZER.to_owned()]);
        node
    }

    fn begin(node: SeiNode) -> Deletion {
        Deletion::new(node.into(), at(0), Timing::default(), OnDelete::Delete)
    }

    fn claim(controller: &str) -> Outcome {
        Outcome::Claim(Some(ClaimView {
            uid: "claim-uid".to_owned(),
            controller: Some(controller.to_owned()),
            ..ClaimView::default()
        }))
    }

    /// A deletion up to the read of its claim.
    fn at_claim() -> Deletion {
        let mut deletion = begin(deleted());
        let Ask::Write(status) = deletion.ask() else { panic!("the phase is written first") };
        assert_eq!(status.phase, Some(SeiNodePhase::Terminating));
        deletion
            .absorb(Outcome::Node(Some(Box::new(SeiNode { status: Some(*status), ..deleted() }))));
        assert_eq!(deletion.ask(), perform(Request::Read(Read::Claim("data-n".to_owned()))));
        deletion
    }

    fn removes_finalizer(deletion: &mut Deletion) -> bool {
        matches!(deletion.ask(), Ask::Perform(request)
            if matches!(&*request, Request::PatchFinalizers { finalizers, .. } if *finalizers == ["keep"]))
    }

    #[test]
    fn its_own_claim_is_deleted_before_the_finalizer_is_removed() {
        let mut deletion = at_claim();
        deletion.absorb(claim(NODE_UID));
        let (name, uid) = ("data-n".to_owned(), "claim-uid".to_owned());
        assert_eq!(deletion.ask(), perform(Request::DeleteClaim { name, uid }));
        deletion.absorb(Outcome::Accepted);
        assert!(removes_finalizer(&mut deletion));
        deletion.absorb(Outcome::Node(None));
        let Ask::Done(ending) = deletion.ask() else { panic!("it ends") };
        assert!(ending.is_released);
    }

    #[test]
    fn a_claim_of_another_owner_is_left_alone() {
        let mut deletion = at_claim();
        deletion.absorb(claim("another"));
        assert!(removes_finalizer(&mut deletion));
    }

    #[test]
    fn an_imported_claim_is_not_even_read() {
        let mut node = deleted();
        let volume = serde_json::json!({ "import": { "pvcName": "disk" } });
        node.spec.data_volume = serde_json::from_value(volume).unwrap();
        let mut deletion = begin(node);
        let Ask::Write(_) = deletion.ask() else { panic!("the phase is written first") };
        assert!(removes_finalizer(&mut deletion));
    }

    #[test]
    fn a_signer_leaves_a_record_before_it_loses_its_volume() {
        let recorded = |answer: Outcome| {
            let mut node = deleted();
            node.status.get_or_insert_default().signing_identity = Some("A1".to_owned());
            let mut deletion = begin(node);
            deletion.stage = Stage::ReadClaim;
            deletion.ask();
            deletion.absorb(claim(NODE_UID));
            let Ask::Perform(request) = deletion.ask() else { panic!("it writes the record") };
            let Request::ApplyConfigMap(record) = &*request else { panic!("{request:?}") };
            deletion.absorb(answer);
            ((**record).clone(), deletion.ask())
        };
        let (record, next) = recorded(Outcome::Accepted);
        assert_eq!(
            record.metadata.name,
            Some(signing_record::name(&deleted().spec.chain_id, "A1"))
        );
        let read = signing_record::SigningRecord::from(&record);
        assert_eq!(read.node, "n");
        assert_eq!(read.deleted_at, "2026-01-01T00:00:00Z");
        let released = |next: &Ask| matches!(next, Ask::Perform(request) if matches!(**request, Request::ReleaseClaim { .. }));
        assert!(released(&next), "{next:?}");
        // A namespace that is being deleted takes no new object.
        let ends = Failure::NamespaceTerminating("namespace ns ends".to_owned());
        let (_, next) = recorded(Outcome::Failed(ends));
        assert!(released(&next), "{next:?}");
        for failure in [
            Failure::Rejected("exceeded quota".to_owned()),
            Failure::Rejected("denied: the disk is being terminated".to_owned()),
            Failure::Forbidden("cannot patch resource".to_owned()),
            Failure::Indeterminate("timeout".to_owned()),
        ] {
            let (_, next) = recorded(Outcome::Failed(failure));
            assert!(matches!(next, Ask::Done(ending) if ending.failure.is_some()));
        }
    }

    #[test]
    fn a_failed_call_keeps_the_finalizer() {
        let mut deletion = at_claim();
        deletion.absorb(claim(NODE_UID));
        let failure = Failure::Forbidden("no".to_owned());
        deletion.ask();
        deletion.absorb(Outcome::Failed(failure.clone()));
        let Ask::Done(ending) = deletion.ask() else { panic!("it ends") };
        assert_eq!((ending.failure, ending.is_released), (Some(failure), false));
    }

    /// A deleted validator, up to the read of its StatefulSet.
    fn signer(change: impl FnOnce(&mut SeiNode)) -> Deletion {
        let mut node = SeiNode { spec: validator(), ..deleted() };
        node.status = running(validator()).node.status.clone();
        node.status.as_mut().unwrap().phase = Some(SeiNodePhase::Terminating);
        change(&mut node);
        begin(node)
    }

    fn own_set(replicas: i32) -> Outcome {
        let mut set = statefulset(&json!({}), "", "");
        set.replicas = Some(replicas);
        Outcome::StatefulSet(Some(set.into()))
    }

    fn pod(ended: bool) -> Outcome {
        let (namespace, name) = ("ns".to_owned(), "n-0".to_owned());
        Outcome::Mounts(vec![MountView {
            kind: "pod",
            namespace,
            name,
            signs: true,
            is_idle: ended,
            ..MountView::default()
        }])
    }

    #[test]
    fn a_signer_is_kept_until_its_pods_have_ended() {
        let mut deletion = signer(|_| {});
        assert_eq!(deletion.ask(), perform(Request::Read(Read::StatefulSet)));
        deletion.absorb(own_set(1));
        let Ask::Perform(patch) = deletion.ask() else { panic!("it is stopped") };
        let Request::PatchStatefulSet(patch) = &*patch else { panic!("{patch:?}") };
        assert_eq!(patch["spec"]["replicas"], 0);
        deletion.absorb(Outcome::Patched(StatefulSetView::default().into()));
        let read = Read::Mounts { namespace: "ns".to_owned(), node: Some("n".to_owned()) };
        assert_eq!(deletion.ask(), perform(Request::Read(read)));
        deletion.absorb(pod(false));
        let Ask::Write(status) = deletion.ask() else { panic!("it is reported") };
        let blocked = status.blocked.clone().unwrap();
        assert_eq!(blocked.reason, "PodTerminating");
        let Ask::Done(ending) = deletion.ask() else { panic!("it waits") };
        assert!(!ending.is_released && ending.requeue.is_some());
        // Later it counts as stalled.
        let mut deletion = signer(|node| node.status = Some(*status));
        deletion.now = at(300);
        deletion.ask();
        deletion.absorb(own_set(0));
        deletion.ask();
        deletion.absorb(pod(false));
        let Ask::Write(status) = deletion.ask() else { panic!("it is reported") };
        let stalled = condition::find(&status.conditions, ConditionType::Stalled).unwrap();
        assert_eq!(stalled.reason, "PodTerminating");
        assert!(stalled.message.contains("sei.io/force-finalize"), "{}", stalled.message);
    }

    #[test]
    fn a_signer_whose_pods_have_ended_is_released() {
        for ended in [pod(true), Outcome::Mounts(vec![])] {
            let mut deletion = signer(|_| {});
            deletion.ask();
            deletion.absorb(Outcome::StatefulSet(None));
            deletion.ask();
            deletion.absorb(ended);
            assert_eq!(deletion.ask(), perform(Request::Read(Read::Claim("data-n".to_owned()))));
        }
    }

    #[test]
    fn the_claim_of_a_signer_is_retained_by_default() {
        use sei_api::node::DataVolumeSpec;
        let request_of = |mut node: SeiNode, own: Option<OnDelete>, default: OnDelete| {
            let spec = |value| DataVolumeSpec { on_delete: Some(value), ..Default::default() };
            node.spec.data_volume = own.map(spec);
            let mut deletion = Deletion::new(node.into(), at(0), Timing::default(), default);
            deletion.stage = Stage::ReadClaim;
            deletion.absorb(claim(NODE_UID));
            match deletion.ask() {
                Ask::Perform(request) => (*request).clone(),
                ask => panic!("{ask:?}"),
            }
        };
        let (name, uid) = ("data-n".to_owned(), "claim-uid".to_owned());
        let owner = NODE_UID.to_owned();
        let released = Request::ReleaseClaim { name: name.clone(), uid: uid.clone(), owner };
        let deletes = Request::DeleteClaim { name, uid };
        let signer = || SeiNode { spec: validator(), ..deleted() };
        let (delete, retain) = (OnDelete::Delete, OnDelete::Retain);
        assert_eq!(request_of(deleted(), None, delete), deletes);
        assert_eq!(request_of(deleted(), None, retain), released);
        assert_eq!(request_of(deleted(), Some(delete), retain), deletes);
        assert_eq!(request_of(signer(), None, delete), released);
        assert_eq!(request_of(signer(), Some(delete), delete), deletes);
    }

    #[test]
    fn a_user_can_release_a_signer_by_its_uid() {
        let forced = |uid: &str| {
            let annotations = [(annotation::FORCE_FINALIZE.to_owned(), uid.to_owned())];
            signer(|node| node.metadata.annotations = Some(annotations.into()))
        };
        let claim = perform(Request::Read(Read::Claim("data-n".to_owned())));
        assert_eq!(forced(NODE_UID).ask(), claim);
        assert_eq!(forced("another").ask(), perform(Request::Read(Read::StatefulSet)));
    }

    #[test]
    fn a_deleted_node_that_is_hands_off_is_kept() {
        let annotations = [
            (annotation::HANDS_OFF.to_owned(), "true".to_owned()),
            (annotation::FORCE_FINALIZE.to_owned(), NODE_UID.to_owned()),
        ];
        for mut node in [deleted(), SeiNode { spec: validator(), ..deleted() }] {
            node.metadata.annotations = Some(annotations.clone().into());
            let mut deletion = begin(node.clone()).with_pre_pull(Some("pull".to_owned()));
            let Ask::Write(status) = deletion.ask() else { panic!("it is reported") };
            let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
            assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "HandsOff"));
            assert!(ready.message.contains("sei.io/hands-off"), "{}", ready.message);
            node.status = Some(*status);
            let Ask::Done(ending) = begin(node.clone()).ask() else { panic!("nothing is done") };
            assert!(!ending.is_released);
            // Also one that was Terminating when the annotation was set reports that it continues.
            node.status.as_mut().unwrap().phase = Some(SeiNodePhase::Terminating);
            node.metadata.annotations = None;
            let mut deletion = begin(node);
            let Ask::Write(status) = deletion.ask() else { panic!("the deletion continues") };
            let ready = condition::find(&status.conditions, ConditionType::Ready).unwrap();
            assert_eq!(ready.reason, "Terminating");
            assert!(matches!(deletion.ask(), Ask::Perform(_)));
        }
    }

    #[test]
    fn nothing_of_an_orphaned_node_is_touched() {
        for mut node in [deleted(), SeiNode { spec: validator(), ..deleted() }] {
            node.metadata.finalizers.get_or_insert_default().insert(0, "orphan".to_owned());
            let mut deletion = begin(node);
            let Ask::Write(_) = deletion.ask() else { panic!("the phase is written first") };
            let Ask::Perform(request) = deletion.ask() else { panic!("it is released") };
            let Request::PatchFinalizers { finalizers, .. } = &*request else {
                panic!("{request:?}")
            };
            assert_eq!(*finalizers, ["orphan", "keep"]);
        }
        // The pod of a signer signs on: a copy of its key must not start beside it.
        let mut deletion = signer(|node| {
            node.metadata.finalizers.get_or_insert_default().insert(0, "orphan".to_owned());
        });
        let Ask::Perform(request) = deletion.ask() else { panic!("it leaves a record") };
        assert!(matches!(&*request, Request::ApplyConfigMap(_)), "{request:?}");
        deletion.absorb(Outcome::Accepted);
        let Ask::Perform(request) = deletion.ask() else { panic!("it is released") };
        assert!(matches!(&*request, Request::PatchFinalizers { .. }), "{request:?}");
        // The garbage collector was faster: the StatefulSet has no owner any more.
        let mut deletion = signer(|_| {});
        deletion.ask();
        let mut set = statefulset(&json!({}), "", "");
        set.controller = None;
        deletion.absorb(Outcome::StatefulSet(Some(set.into())));
        assert_eq!(deletion.ask(), perform(Request::Read(Read::Claim("data-n".to_owned()))));
    }
}
