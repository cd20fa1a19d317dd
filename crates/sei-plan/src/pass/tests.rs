use sei_api::plan::TaskStatus;
use serde_json::json;

use super::*;
use crate::planner::fixture::{full_node, observer, running, validator};

const CURRENT: Others = Others { service_is_current: true, proxy_config_is_current: true };

/// A running node whose image was bumped, with its plan stored.
fn updating() -> Observation {
    let mut observation = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let mut pass = Pass::begin(observation.clone(), CURRENT, 0);
    let Ask::Write(status) = pass.ask() else { panic!("a plan is stored first") };
    observation.node.status = Some(*status);
    observation
}

#[test]
fn a_refused_repair_stops_no_plan_and_is_told() {
    let others = Others { service_is_current: false, ..CURRENT };
    let mut pass = Pass::begin(updating(), others, 0);
    let Ask::Perform(repair) = pass.ask() else { panic!("the Service is repaired") };
    assert!(matches!(*repair, Request::ApplyService(_)));
    pass.tell(Outcome::Failed(Failure::Forbidden("cannot patch services".to_owned())));
    let Ask::Perform(step) = pass.ask() else { panic!("the plan goes on") };
    assert!(matches!(*step, Request::Sidecar(_)), "{step:?}");
    pass.tell(Outcome::Failed(Failure::Unreachable("no answer".to_owned())));
    let Ask::Write(status) = pass.ask() else { panic!("what blocks is told") };
    assert_eq!(status.blocked.map(|one| one.reason).as_deref(), Some("SidecarUnreachable"));
}

#[test]
fn a_pod_that_cannot_be_judged_is_let_in_all_the_same() {
    let observation = running(full_node()).with(|seen| {
        seen.status_mut().pod_template = None;
        seen.status_mut().pod_template_hash = None;
        seen.sidecar = Sidecar::NotReady;
    });
    let mut pass = Pass::begin(observation, CURRENT, 0);
    let Ask::Judge { pod_uid } = pass.ask() else { panic!("the server is asked") };
    pass.judgement_failed(pod_uid, &Failure::Indeterminate("no answer".to_owned()));
    let Ask::Write(status) = pass.ask() else { panic!("the gate is opened by a plan") };
    assert_eq!(status.plan.and_then(|plan| plan.kind), Some(PlanKind::MarkReady));
    let Ask::End(ending) = pass.ask() else { panic!("the pass ends") };
    assert!(ending.wake.is_some(), "the server is asked again");
}

#[test]
fn only_the_progress_of_a_plan_can_wait_to_be_written() {
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
fn how_far_a_bootstrap_has_come_is_written_at_once() {
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
fn what_follows_from_a_replacement_need_not_be_written_at_once() {
    let before = rolling("True", "False");
    assert!(is_deferrable(&before, &rolling("Unknown", "False")));
    assert!(!is_deferrable(&before, &rolling("Unknown", "True")));
    let at_rest = |sidecar| SeiNodeStatus { plan: None, ..rolling(sidecar, "False") };
    assert!(!is_deferrable(&at_rest("True"), &at_rest("Unknown")));
}

#[test]
fn a_failed_repair_is_tried_again_by_the_clock() {
    let others = Others { service_is_current: false, ..CURRENT };
    for (failure, at_most) in [
        (Failure::Indeterminate("timeout".to_owned()), 5),
        (Failure::SigningKey("pod other-0 has it".to_owned()), 5),
        (Failure::Forbidden("no".to_owned()), 30),
    ] {
        let mut pass = Pass::begin(running(full_node()), others, 0);
        let Ask::Perform(_) = pass.ask() else { panic!("the Service is repaired") };
        pass.tell(Outcome::Failed(failure.clone()));
        let ending = loop {
            match pass.ask() {
                Ask::End(ending) => break ending,
                Ask::Write(_) => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(ending.wake.unwrap() <= Duration::from_secs(at_most), "{failure:?}");
    }
}

/// A stopped validator that is let go on, with its next template still to be applied.
fn unpaused() -> Observation {
    let stopped = running(validator()).edit(|spec| spec.image = "seid:2".into()).with(|seen| {
        seen.pods.clear();
        seen.node.spec.paused = Some(true);
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
    });
    let mut pass = Pass::begin(stopped.clone(), CURRENT, 0);
    let Ask::Write(status) = pass.ask() else { panic!("its next start is prepared") };
    assert_eq!(status.plan.as_ref().unwrap().kind, Some(PlanKind::ApplyTemplate));
    stopped.with(|seen| {
        seen.node.spec.paused = None;
        seen.node.status = Some(*status);
    })
}

#[test]
fn no_apply_starts_a_signer_that_may_not_be_started() {
    let observation = unpaused();
    let statefulset = observation.statefulset.clone();
    let mut pass = Pass::begin(observation, CURRENT, 0);
    let Ask::Perform(start) = pass.ask() else { panic!("it is scaled up") };
    assert!(pass.must_be_alone(&start), "{start:?}");
    pass.tell(Outcome::Failed(Failure::SigningKey("pod other-0 has it".to_owned())));
    let Ask::Perform(look) = pass.ask() else { panic!("the plan goes on") };
    assert_eq!(*look, Request::Read(Read::StatefulSet));
    pass.tell(Outcome::StatefulSet(statefulset.map(Box::new)));
    let Ask::Perform(apply) = pass.ask() else { panic!("the template is applied") };
    let Request::ApplyStatefulSet(object) = *apply else { panic!("{apply:?}") };
    assert_eq!(object.spec.replicas, Some(0), "and nothing is started by it");
}

#[test]
fn whoever_takes_a_key_must_be_alone() {
    let taking = running(observer()).edit(|spec| spec.validator = validator().validator);
    let desired = taking.desired.clone().unwrap();
    let apply = Request::ApplyStatefulSet(Box::new(desired.statefulset.clone()));
    assert!(Pass::begin(taking, CURRENT, 0).must_be_alone(&apply));
    let has_it = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let apply = Request::ApplyStatefulSet(Box::new(has_it.desired.clone().unwrap().statefulset));
    assert!(!Pass::begin(has_it, CURRENT, 0).must_be_alone(&apply));
}

#[test]
fn a_statefulset_whose_labels_somebody_took_gets_them_back() {
    let hidden = running(full_node()).with(|seen| {
        let mut desired = seen.desired.clone().unwrap();
        desired.statefulset.metadata.labels =
            Some([("sei.io/node".to_owned(), "n".to_owned())].into());
        seen.desired = Ok(desired);
    });
    let there = hidden.statefulset.clone();
    let mut pass = Pass::begin(hidden.with(|seen| seen.statefulset = None), CURRENT, 0);
    let Ask::Perform(create) = pass.ask() else { panic!("it is missing") };
    assert!(matches!(*create, Request::CreateStatefulSet(_)), "{create:?}");
    pass.tell(Outcome::Failed(Failure::AlreadyExists));
    let Ask::Perform(look) = pass.ask() else { panic!("it is looked for by its name") };
    assert_eq!(*look, Request::Read(Read::StatefulSet));
    pass.tell(Outcome::StatefulSet(there.map(Box::new)));
    let Ask::Perform(patch) = pass.ask() else { panic!("it is mended") };
    let Request::PatchStatefulSet(patch) = *patch else { panic!("{patch:?}") };
    assert_eq!(patch["metadata"]["labels"], json!({ "sei.io/node": "n" }));
}

#[test]
fn a_task_that_another_operator_submitted_counts_from_its_first_sight() {
    let mut pass = Pass::begin(updating(), CURRENT, 0);
    let Ask::Perform(poll) = pass.ask() else { panic!("the sidecar is asked") };
    let Request::Sidecar(call) = &*poll else { panic!("{poll:?}") };
    assert!(matches!(call.call, SidecarCall::Poll { .. }));
    let record = crate::request::TaskRecord { state: crate::request::TaskState::Running };
    pass.tell(Outcome::Task(Some(record)));
    let Ask::Write(status) = pass.ask() else { panic!("it waits for the task") };
    assert!(status.plan.unwrap().tasks[0].submitted_at.is_some());
}
