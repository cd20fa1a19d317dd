use sei_api::plan::TaskStatus;
use serde_json::json;

use super::*;
use crate::planner::fixture::{full_node, new_node, observer, running, validator};
use crate::request::{ClaimView, MountView, SecretView, SidecarCall, TaskState};
use crate::signing_key::{self, SigningKey};
use crate::view::ObjectView;

fn begin(snapshot: Snapshot) -> Pass {
    Pass::begin(snapshot, Carried::default())
}

/// The progress that a pass ends with and does not write yet.
fn deferred(pass: &mut Pass) -> SeiNodeStatus {
    let Ask::Done(ending) = pass.ask() else { panic!("the pass ends") };
    *ending.deferred.expect("progress")
}

/// A running node whose image was bumped, with its plan stored.
fn updating() -> Snapshot {
    let mut snapshot = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let mut pass = begin(snapshot.clone());
    let Ask::Write(status) = pass.ask() else { panic!("a plan is stored first") };
    snapshot.store(*status);
    snapshot
}

#[test]
fn a_refused_repair_does_not_stop_the_plan() {
    let mut pass = begin(updating().with(|seen| seen.current.service = false));
    let Ask::Perform(repair) = pass.ask() else { panic!("the Service is repaired") };
    assert!(matches!(*repair, Request::CreateService(_)));
    pass.absorb(Outcome::Failed(Failure::Forbidden("cannot patch services".to_owned())));
    let Ask::Perform(step) = pass.ask() else { panic!("the plan continues") };
    assert!(matches!(*step, Request::Sidecar(_)), "{step:?}");
    pass.absorb(Outcome::Failed(Failure::Unreachable("no answer".to_owned())));
    let status = deferred(&mut pass);
    assert_eq!(status.blocked.map(|blocked| blocked.reason).as_deref(), Some("SidecarUnreachable"));
}

#[test]
fn the_chain_in_the_status_is_the_one_that_runs() {
    let edited = running(full_node()).edit(|spec| spec.chain_id = "edited".into());
    let Ask::Write(status) = begin(edited).ask() else { panic!("the edit is refused") };
    assert_eq!(status.chain_id.as_deref(), Some("demo-1"));
}

#[test]
fn no_task_runs_while_a_workflow_occupies_the_node() {
    let occupied = updating().with(|seen| {
        seen.status_mut().adopted_workflow = Some(sei_api::status::AdoptedWorkflow {
            name: "resync".into(),
            uid: "w".into(),
            adopted_at: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(seen.now),
        });
    });
    let mut pass = begin(occupied);
    let Ask::Write(status) = pass.ask() else { panic!("the workflow is reported") };
    assert!(status.plan.is_some_and(|plan| plan.is_active()), "the plan resumes after it");
    assert!(matches!(pass.ask(), Ask::Done(_)), "nothing is submitted, applied or deleted");
}

#[test]
fn repaired_replicas_are_reported_as_they_were_found() {
    let scaled = running(validator()).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(2);
    });
    let mut pass = begin(scaled);
    let Ask::Perform(repair) = pass.ask() else { panic!("the replicas are repaired") };
    let Request::PatchStatefulSet(patch) = &*repair else { panic!("{repair:?}") };
    assert_eq!(patch["spec"]["replicas"], 1);
    let repaired = running(validator()).statefulset.unwrap();
    pass.absorb(Outcome::Patched(repaired));
    let Ask::Write(status) = pass.ask() else { panic!("the repair is reported") };
    let stalled = find(&status.conditions, ConditionType::Stalled).unwrap();
    assert_eq!((stalled.status.as_str(), stalled.reason.as_str()), ("True", "ReplicasNotOne"));
    assert!(stalled.message.contains("was scaled to 2 replicas"), "{}", stalled.message);
}

#[test]
fn a_service_that_the_watch_does_not_show_is_read_and_left_to_its_owner() {
    let mut pass = begin(running(full_node()).with(|seen| seen.current.service = false));
    let Ask::Perform(repair) = pass.ask() else { panic!("the Service is created") };
    assert!(matches!(*repair, Request::CreateService(_)), "{repair:?}");
    pass.absorb(Outcome::Failed(Failure::AlreadyExists));
    let Ask::Perform(read) = pass.ask() else { panic!("the Service is read") };
    assert_eq!(*read, Request::Read(Read::Service));
    pass.absorb(Outcome::Service(Some(ObjectView::default())));
    let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
    assert_eq!(status.blocked.map(|blocked| blocked.reason).as_deref(), Some("FieldConflict"));
}

#[test]
fn a_cached_object_of_another_owner_is_reported_without_a_request() {
    let view = ObjectView { controller: Some("other".into()), ..ObjectView::default() };
    let mut pass = begin(running(full_node()).with(|seen| {
        seen.proxy_config = Some(view);
        seen.current.proxy_config = false;
    }));
    let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
    assert_eq!(status.blocked.map(|blocked| blocked.reason).as_deref(), Some("FieldConflict"));
}

/// A node whose user keeps the operator from changing anything.
fn hands_off(mut snapshot: Snapshot) -> Snapshot {
    let annotations = snapshot.node.metadata.annotations.get_or_insert_default();
    annotations.insert("sei.io/hands-off".to_owned(), "true".to_owned());
    snapshot
}

/// The message of the condition `Ready`, with its status and reason.
fn ready_text(status: &SeiNodeStatus) -> String {
    let ready = find(&status.conditions, ConditionType::Ready).unwrap();
    format!("{}/{} {}", ready.status, ready.reason, ready.message)
}

/// Checks that a pass over the node, once it is hands-off, writes nothing but the condition `Ready`.
fn only_status(snapshot: Snapshot, is_ready: bool) {
    let plan = snapshot.status.plan.clone();
    let mut pass = begin(hands_off(snapshot));
    let Ask::Write(status) = pass.ask() else { panic!("only the status is written") };
    assert_eq!(status.plan, plan);
    let text = ready_text(&status);
    let expected = if is_ready { "True/HandsOff annotation" } else { "False/HandsOff pod n-0" };
    assert!(text.starts_with(expected) && text.contains("sei.io/hands-off"), "{text}");
    assert!(pass.purpose().why.contains("sei.io/hands-off"));
    pass.absorb(Outcome::Failed(Failure::Conflict(String::new())));
    let Ask::Done(ending) = pass.ask() else { panic!("the pass ends") };
    assert_eq!(ending.failure, None);
}

#[test]
fn only_the_status_of_a_hands_off_node_is_written() {
    let broken = |seen: &mut Snapshot| {
        seen.current = Current { service: false, proxy_config: false, template: false };
        seen.sidecar = Sidecar::NotReady;
    };
    let new = || {
        let mut snapshot = new_node(full_node());
        snapshot.node.metadata.finalizers = None;
        snapshot
    };
    let stalled = |mut snapshot: Snapshot| {
        let kind = ConditionType::Stalled;
        let (state, reason) = (sei_api::condition::ConditionStatus::True, Reason::CrashLooping);
        let verdict = sei_api::condition::Verdict::new(kind, state, reason, "crashes");
        let now = snapshot.now;
        sei_api::condition::set(&mut snapshot.status_mut().conditions, &verdict, 1, now);
        snapshot
    };
    only_status(running(full_node()).with(broken), true);
    only_status(running(validator()).with(|seen| seen.statefulset = None), false);
    only_status(running(full_node()).with(|seen| seen.claim = Claim::Missing), true);
    only_status(updating().with(broken), true);
    only_status(stalled(running(full_node())), true);
    only_status(running(full_node()).with(|seen| seen.pods.clear()), false);
    only_status(new(), false);
}

#[test]
fn a_hands_off_node_is_repaired_once_the_annotation_is_removed_or_false() {
    let mut snapshot = hands_off(running(full_node()).with(|seen| seen.current.service = false));
    let Ask::Write(status) = begin(snapshot.clone()).ask() else { panic!("it is reported") };
    snapshot.store(*status);
    let Ask::Done(_) = begin(snapshot.clone()).ask() else { panic!("nothing is written twice") };
    for value in [None, Some("false")] {
        let annotations = snapshot.node.metadata.annotations.as_mut().unwrap();
        annotations.remove("sei.io/hands-off");
        annotations.extend(value.map(|value| ("sei.io/hands-off".to_owned(), value.to_owned())));
        let mut pass = begin(snapshot.clone());
        let Ask::Perform(repair) = pass.ask() else { panic!("the Service is repaired") };
        assert!(matches!(*repair, Request::CreateService(_)), "{repair:?}");
        pass.absorb(Outcome::Accepted);
        let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
        assert_eq!(ready_text(&status), "True/Ready ");
    }
}

#[test]
fn a_write_has_the_plan_and_the_cause_as_its_purpose() {
    let mut pass = begin(updating().with(|seen| seen.current.service = false));
    pass.ask();
    assert_eq!(pass.purpose().why, "repairs a difference from the spec");
    pass.absorb(Outcome::Accepted);
    pass.ask();
    let purpose = pass.purpose();
    assert_eq!(purpose.task.as_deref(), Some("config-patch"));
    assert!(purpose.plan.is_some());
    assert_eq!(purpose.why, "image drift detected: spec=seid:2 current=seid:1");
}

#[test]
fn the_gate_of_a_pod_that_cannot_be_compared_is_opened() {
    let snapshot = running(full_node()).with(|seen| {
        seen.status_mut().pod_template = None;
        seen.status_mut().pod_template_hash = None;
        seen.sidecar = Sidecar::NotReady;
    });
    let mut pass = begin(snapshot);
    let Ask::Perform(read) = pass.ask() else { panic!("the revision is read") };
    assert_eq!(*read, Request::Read(Read::Revision("rev-1".to_owned())));
    pass.absorb(Outcome::Failed(Failure::Indeterminate("no answer".to_owned())));
    let Ask::Write(status) = pass.ask() else { panic!("the gate is opened by a plan") };
    assert_eq!(status.plan.and_then(|plan| plan.kind), Some(PlanKind::MarkReady));
    let Ask::Done(ending) = pass.ask() else { panic!("the pass ends") };
    assert!(ending.requeue.is_some(), "the revision is read again");
}

#[test]
fn only_the_progress_of_a_plan_is_deferred() {
    let stored = updating().status().clone();
    let mut ahead = stored.clone();
    ahead.plan.as_mut().unwrap().tasks[0].status = TaskStatus::Complete;
    assert!(is_deferrable(&stored, &ahead));
    let mut stamped = ahead.clone();
    stamped.current_image = Some("seid:2".to_owned());
    assert!(!is_deferrable(&stored, &stamped));
    let mut ended = ahead;
    ended.plan.as_mut().unwrap().phase = sei_api::plan::PlanPhase::Failed;
    assert!(!is_deferrable(&stored, &ended));
    let mut without = stored.clone();
    without.plan = None;
    assert!(!is_deferrable(&stored, &without));
}

#[test]
fn the_progress_of_a_bootstrap_is_written_at_once() {
    let task = |name: &str, done: bool| {
        let status = if done { "Complete" } else { "Pending" };
        json!({ "type": name, "id": name, "status": status })
    };
    let at = |done: usize| -> SeiNodeStatus {
        let names = [
            "deploy-bootstrap-job",
            "await-bootstrap-complete",
            "teardown-bootstrap",
            "apply-statefulset",
        ];
        let tasks = names.iter().enumerate().map(|(index, name)| task(name, index < done));
        let tasks: Vec<_> = tasks.collect();
        serde_json::from_value(json!({ "plan": { "id": "p", "phase": "Active", "tasks": tasks } }))
            .unwrap()
    };
    assert!(is_deferrable(&at(0), &at(1)));
    assert!(!is_deferrable(&at(1), &at(2)));
    assert!(!is_deferrable(&at(2), &at(3)));
    assert!(is_deferrable(&at(3), &at(4)));
}

fn rolling(sidecar: &str, stalled: &str) -> SeiNodeStatus {
    let condition = |kind: &str, status: &str, generation: i64| {
        json!({ "type": kind, "status": status, "reason": "R", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation })
    };
    serde_json::from_value(json!({
        "plan": { "id": "p", "phase": "Active", "tasks": [] },
        "conditions": [
            condition("SidecarReady", sidecar, 1),
            condition("Stalled", stalled, i64::from(sidecar == "True")),
        ],
    }))
    .unwrap()
}

#[test]
fn the_sidecar_condition_during_a_replacement_is_deferred() {
    let before = rolling("True", "False");
    assert!(is_deferrable(&before, &rolling("Unknown", "False")));
    assert!(!is_deferrable(&before, &rolling("Unknown", "True")));
    let at_rest = |sidecar| SeiNodeStatus { plan: None, ..rolling(sidecar, "False") };
    assert!(!is_deferrable(&at_rest("True"), &at_rest("Unknown")));
}

#[test]
fn a_failed_repair_is_retried_after_a_delay() {
    for (failure, at_most) in [
        (Failure::Indeterminate("timeout".to_owned()), 5),
        (not_started("pod other-0 has it"), 5),
        (Failure::Forbidden("no".to_owned()), 30),
    ] {
        let mut pass = begin(running(full_node()).with(|seen| seen.current.service = false));
        let Ask::Perform(_) = pass.ask() else { panic!("the Service is repaired") };
        pass.absorb(Outcome::Failed(failure.clone()));
        let ending = loop {
            match pass.ask() {
                Ask::Done(ending) => break ending,
                Ask::Write(_) => {}
                Ask::Perform(request) => panic!("{request:?}"),
            }
        };
        assert!(ending.requeue.unwrap() <= Duration::from_secs(at_most), "{failure:?}");
    }
}

/// The claim of the node, as the cache shows it.
fn own_claim(seen: &Snapshot) -> Claim {
    let controller = seen.node.metadata.uid.clone();
    Claim::Present(ClaimView { controller, ..ClaimView::default() })
}

/// A validator that is no longer paused, with its next template still to be applied.
fn unpaused() -> Snapshot {
    let stopped = running(validator()).edit(|spec| spec.image = "seid:2".into()).with(|seen| {
        seen.pods.clear();
        seen.node.spec.paused = Some(true);
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.claim = own_claim(seen);
    });
    let mut pass = begin(stopped.clone());
    let Ask::Write(status) = pass.ask() else { panic!("its next start is prepared") };
    assert_eq!(status.plan.as_ref().unwrap().kind, Some(PlanKind::ApplyTemplate));
    stopped.with(|seen| {
        seen.node.spec.paused = None;
        seen.store(*status);
    })
}

#[test]
fn no_apply_starts_a_signer_that_may_not_be_started() {
    let snapshot = unpaused();
    let statefulset = snapshot.statefulset.clone();
    let mut pass = begin(snapshot);
    let Ask::Perform(check) = pass.ask() else { panic!("it is scaled up") };
    assert_eq!(*check, Request::Read(Read::Node));
    assert!(pass.is_exclusive());
    pass.absorb(Outcome::Failed(not_started("pod other-0 has it")));
    let Ask::Perform(read) = pass.ask() else { panic!("the plan continues") };
    assert_eq!(*read, Request::Read(Read::StatefulSet));
    assert!(!pass.is_exclusive());
    pass.absorb(Outcome::StatefulSet(statefulset));
    let Ask::Perform(apply) = pass.ask() else { panic!("the template is applied") };
    let Request::ApplyStatefulSet(object) = &*apply else { panic!("{apply:?}") };
    assert_eq!(object.spec.replicas, Some(0), "and nothing is started by it");
}

#[test]
fn a_node_that_takes_a_key_must_be_its_only_holder() {
    let taking = running(observer()).edit(|spec| spec.validator = validator().validator);
    let desired = taking.desired.clone().unwrap();
    let apply = Request::ApplyStatefulSet(Box::new(desired.statefulset.unpack()));
    assert!(begin(taking).starts(&apply));
    let holder = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let apply =
        Request::ApplyStatefulSet(Box::new(holder.desired.clone().unwrap().statefulset.unpack()));
    assert!(!begin(holder).starts(&apply));
}

#[test]
fn only_more_replicas_than_none_are_a_start() {
    let patch = Request::PatchStatefulSet(json!({ "spec": { "replicas": 1 } }));
    for (present, starts) in [(0, true), (2, false)] {
        let scaled = running(validator())
            .with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(present));
        assert_eq!(begin(scaled).starts(&patch), starts, "from {present}");
    }
}

#[test]
fn a_conflict_that_the_caches_show_costs_no_read() {
    let mut pass = begin(running(validator()).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.pods.clear();
    }));
    pass.snapshot.signing_conflict = Some("ns/other has it".to_owned());
    pass.stage =
        Stage::Repair(vec![Request::PatchStatefulSet(json!({ "spec": { "replicas": 1 } }))]);
    let ask = pass.ask();
    assert!(!matches!(ask, Ask::Perform(_)), "{ask:?}");
}

/// A validator that was taken over, or whose status was wiped.
fn without_identity() -> Snapshot {
    running(validator()).with(|seen| seen.status.signing_identity = None)
}

#[test]
fn the_identity_of_a_running_signer_is_recorded_at_once() {
    let mut pass = begin(without_identity());
    let Ask::Perform(read) = pass.ask() else { panic!("its key is read") };
    assert_eq!(*read, Request::Read(Read::Secret("signing".to_owned())));
    let file = (signing_key::FILE.to_owned(), signing_key::made_up("a").to_string().into());
    let secret = SecretView { terminating: false, data: [file].into() };
    let identity = SigningKey::read(&secret).unwrap().identity;
    pass.absorb(Outcome::Secret(Some(secret)));
    let Ask::Write(status) = pass.ask() else { panic!("it is recorded") };
    assert_eq!(status.signing_identity, Some(identity));
}

#[test]
fn an_unreadable_key_of_a_running_signer_is_reported() {
    let mut pass = begin(without_identity());
    let Ask::Perform(_) = pass.ask() else { panic!("its key is read") };
    pass.absorb(Outcome::Secret(None));
    let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
    let ready =
        sei_api::condition::find(&status.conditions, ConditionType::SigningKeyReady).unwrap();
    assert_eq!(
        (ready.status.as_str(), ready.message.as_str()),
        ("False", "Secret signing: not found")
    );
    assert_eq!(status.signing_identity, None);
}

#[test]
fn the_identity_of_a_stopped_node_without_its_key_is_released() {
    let stopped = running(observer()).with(|seen| {
        seen.status.signing_identity = Some("v1:me".to_owned());
        seen.pods.clear();
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
        seen.node.spec.paused = Some(true);
        seen.claim = own_claim(seen);
    });
    let pod = MountView { kind: "pod", signs: true, ..MountView::default() };
    let ended = MountView { is_idle: true, ..pod.clone() };
    for (mounts, free) in [(vec![], true), (vec![ended], true), (vec![pod], false)] {
        let mut pass = begin(stopped.clone());
        let Ask::Perform(read) = pass.ask() else { panic!("its pods are read") };
        assert!(matches!(*read, Request::Read(Read::Mounts { .. })), "{read:?}");
        pass.absorb(Outcome::Mounts(mounts));
        pass.ask();
        assert_eq!(pass.snapshot.status.signing_identity.is_none(), free);
    }
    // The template still has the key.
    let mut pass = begin(running(validator()).edit(|spec| spec.validator = observer().validator));
    let ask = pass.ask();
    assert!(
        !matches!(&ask, Ask::Perform(read)
        if matches!(**read, Request::Read(Read::Mounts { .. }))),
        "{ask:?}"
    );
}

#[test]
fn an_imported_claim_is_guarded_like_an_own_one() {
    let imports = |spec: &mut sei_api::SeiNodeSpec| {
        spec.data_volume =
            serde_json::from_value(json!({ "import": { "pvcName": "disk" } })).unwrap();
    };
    let mut spec = validator();
    imports(&mut spec);
    let claim = |uid: &str, terminating: bool| {
        let (uid, phase) = (uid.to_owned(), "Bound".to_owned());
        Outcome::Claim(Some(ClaimView { uid, terminating, phase, ..ClaimView::default() }))
    };
    let absorbed = |snapshot: Snapshot, outcome: Outcome| {
        let mut pass = begin(snapshot);
        let Ask::Perform(read) = pass.ask() else { panic!("the claim is read") };
        assert_eq!(*read, Request::Read(Read::Claim("disk".to_owned())));
        pass.absorb(outcome);
        match pass.ask() {
            Ask::Write(status) => *status,
            ask => panic!("{ask:?}"),
        }
    };
    let recorded = absorbed(running(spec.clone()), claim("a", false));
    assert_eq!(recorded.data_claim.as_ref().unwrap().uid, "a");
    let known = running(spec).with(|seen| {
        seen.status.data_claim = recorded.data_claim.clone();
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
    });
    for outcome in [claim("b", false), Outcome::Claim(None)] {
        let status = absorbed(known.clone(), outcome);
        assert_eq!(status.blocked.unwrap().reason, "DataVolumeLost");
        assert_eq!(status.data_claim, recorded.data_claim);
    }
    let known = known.with(|seen| seen.statefulset.as_mut().unwrap().replicas = Some(1));
    let status = absorbed(known, claim("a", true));
    assert_eq!(status.blocked.unwrap().reason, "DataVolumeLost");
}

#[test]
fn a_claim_without_a_record_is_read_while_the_pod_is_not_ready() {
    let wiped = running(full_node()).with(|seen| seen.pods[0].ready = false);
    let mut pass = begin(wiped.clone());
    let Ask::Perform(read) = pass.ask() else { panic!("the claim is read") };
    assert_eq!(*read, Request::Read(Read::Claim("data-n".to_owned())));
    pass.absorb(Outcome::Claim(None));
    let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
    assert_eq!(status.blocked.unwrap().reason, "DataVolumeLost");
    let mut pass = begin(wiped.with(|seen| seen.pods[0].ready = true));
    assert!(!matches!(pass.ask(), Ask::Perform(_)), "a pod that is Ready has its volume");
}

/// A validator whose StatefulSet was deleted during its first plan, after it was applied.
fn without_its_statefulset() -> Snapshot {
    let mut snapshot = new_node(validator());
    let Ask::Write(status) = begin(snapshot.clone()).ask() else { panic!("a plan is stored") };
    snapshot.store(*status);
    snapshot.with(|seen| {
        let plan = seen.status_mut().plan.as_mut().unwrap();
        let replace = plan.tasks.iter().position(|task| task.is(TaskType::ReplacePod)).unwrap();
        plan.tasks[..replace].iter_mut().for_each(|task| task.status = TaskStatus::Complete);
        let status = seen.status.clone();
        seen.store(status);
    })
}

/// The reason with which a pass reports the node as stalled, after these answers.
fn stalled_after(snapshot: Snapshot, answers: Vec<Outcome>) -> String {
    let mut pass = begin(snapshot);
    let mut answers = answers.into_iter();
    loop {
        match pass.ask() {
            Ask::Perform(request) => {
                pass.absorb(answers.next().unwrap_or_else(|| panic!("{request:?}")));
            }
            Ask::Write(status) => {
                let stalled = find(&status.conditions, ConditionType::Stalled).unwrap();
                return format!("{}/{}", stalled.status, stalled.reason);
            }
            Ask::Done(ending) => panic!("{ending:?}"),
        }
    }
}

#[test]
fn a_plan_reports_why_its_statefulset_is_not_created_again() {
    let missing = || Outcome::StatefulSet(None);
    let rival = without_its_statefulset()
        .with(|seen| seen.signing_conflict = Some("ns/a signs with this key".into()));
    assert_eq!(stalled_after(rival.clone(), vec![missing()]), "True/SigningKeyConflict");
    let mut pass = begin(rival);
    pass.ask();
    pass.absorb(missing());
    pass.ask();
    pass.absorb(Outcome::Failed(Failure::Conflict(String::new())));
    let Ask::Done(ending) = pass.ask() else { panic!("the pass ends") };
    assert!(ending.requeue.is_some(), "no event reports the end of the conflict");
    // The caches do not show the other node yet, or the server refuses the StatefulSet.
    for (failure, reason) in [
        (not_started("ns/a signs with this key"), "True/SigningKeyConflict"),
        (Failure::Forbidden("cannot create".to_owned()), "True/Forbidden"),
    ] {
        let mut pass = begin(without_its_statefulset());
        let Ask::Perform(_) = pass.ask() else { panic!("a start is checked") };
        pass.question = None;
        let create = Request::CreateStatefulSet(Box::default());
        pass.refuse_start(create, failure);
        let Ask::Perform(read) = pass.ask() else { panic!("the StatefulSet is read") };
        assert_eq!(*read, Request::Read(Read::StatefulSet));
        pass.absorb(missing());
        let Ask::Write(status) = pass.ask() else { panic!("it is reported") };
        let stalled = find(&status.conditions, ConditionType::Stalled).unwrap();
        assert_eq!(format!("{}/{}", stalled.status, stalled.reason), reason);
    }
}

#[test]
fn labels_removed_from_a_statefulset_are_restored() {
    let hidden = running(full_node()).with(|seen| {
        let mut desired = seen.desired.clone().unwrap();
        desired.labels = [("sei.io/node".to_owned(), "n".to_owned())].into();
        seen.desired = Ok(desired);
    });
    let existing = hidden.statefulset.clone();
    let mut pass = begin(hidden.with(|seen| {
        seen.statefulset = None;
        seen.claim = own_claim(seen);
    }));
    let Ask::Perform(check) = pass.ask() else { panic!("the StatefulSet is missing") };
    assert_eq!(*check, Request::Read(Read::Node));
    pass.absorb(Outcome::Node(Some(Box::new((**pass.node()).clone()))));
    let Ask::Perform(create) = pass.ask() else { panic!("the StatefulSet is missing") };
    assert!(matches!(*create, Request::CreateStatefulSet(_)), "{create:?}");
    pass.absorb(Outcome::Failed(Failure::AlreadyExists));
    let Ask::Perform(read) = pass.ask() else { panic!("it is read by its name") };
    assert_eq!(*read, Request::Read(Read::StatefulSet));
    pass.absorb(Outcome::StatefulSet(existing));
    let Ask::Perform(patch) = pass.ask() else { panic!("it is repaired") };
    let Request::PatchStatefulSet(patch) = &*patch else { panic!("{patch:?}") };
    assert_eq!(patch["metadata"]["labels"], json!({ "sei.io/node": "n" }));
}

#[test]
fn a_task_submitted_by_another_operator_is_timed_from_its_first_poll() {
    let mut pass = begin(updating());
    let Ask::Perform(poll) = pass.ask() else { panic!("the sidecar is polled") };
    let Request::Sidecar(call) = &*poll else { panic!("{poll:?}") };
    assert!(matches!(call.call, SidecarCall::Poll { .. }));
    let record = crate::request::TaskRecord::from(TaskState::Running);
    pass.absorb(Outcome::Task(Some(record)));
    let status = deferred(&mut pass);
    assert!(status.plan.unwrap().tasks[0].submitted_at.is_some());
}

#[test]
fn more_abandoned_tasks_than_a_pass_can_clear_are_cleared_by_the_next() {
    let mut snapshot = updating();
    let many = |at: usize| format!("abandoned-{at}");
    let mut status = snapshot.status.clone();
    status.plan.as_mut().unwrap().abandoned = (0..150).map(many).collect();
    snapshot.store(status);
    let mut left = Vec::new();
    for _ in 0..3 {
        let mut pass = begin(snapshot.clone());
        let mut requests = 0;
        let after = loop {
            match pass.ask() {
                Ask::Perform(request) => {
                    requests += 1;
                    let Request::Sidecar(call) = &*request else { panic!("{request:?}") };
                    let SidecarCall::Poll { id } = &call.call else { panic!("{request:?}") };
                    let is_abandoned = id.starts_with("abandoned-");
                    let state = if is_abandoned {
                        TaskState::Failed("ended".to_owned())
                    } else {
                        TaskState::Running
                    };
                    pass.absorb(Outcome::Task(Some(state.into())));
                }
                Ask::Write(status) => break *status,
                Ask::Done(ending) => break *ending.deferred.expect("progress"),
            }
        };
        assert!(requests <= REQUESTS_MAX, "{requests}");
        left.push(after.plan.as_ref().map_or(0, |plan| plan.abandoned.len()));
        snapshot.store(after);
    }
    assert_eq!(left, [150 - REQUESTS_MAX, 150 - 2 * REQUESTS_MAX, 0]);
}

#[test]
fn a_plan_is_not_superseded_while_a_request_is_in_flight() {
    let edited = updating().edit(|spec| spec.image = "seid:3".into());
    let plan = edited.status().plan.clone();
    let mut pass = begin(updating());
    let Ask::Perform(poll) = pass.ask() else { panic!("the sidecar is polled") };
    pass.snapshot.node = edited.node;
    pass.snapshot.desired = edited.desired;
    assert_eq!(pass.ask(), Ask::Perform(poll));
    assert_eq!(pass.snapshot.status.plan, plan);
}

fn not_started(message: &str) -> Failure {
    Failure::NotStarted { reason: Reason::SigningKeyConflict, message: message.to_owned() }
}
