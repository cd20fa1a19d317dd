//! The genesis ceremony, against sidecars with one bucket.

use sei_api::fleet::{GenesisAccount, GenesisSpec};
use sei_api::node::{PeerSource, ValidatorSpec};
use sei_api::plan::{FailedTaskDetail, PlanPhase, PlannedTask, TaskPlan, TaskStatus};
use sei_api::task::TaskType;

use super::*;
use crate::request::{SidecarCall, TaskRecord, TaskState};
use crate::view::{ContainerView, Controller, PodView, StatefulSetView};

/// The sidecars of the nodes, and the bucket that they share.
#[derive(Clone, Default)]
pub(super) struct Sidecars {
    /// Records by the uid of the node, whose volume has them, and the id of the task.
    records: BTreeMap<(String, String), TaskRecord>,
    /// The uid of the node that uploaded its part, by name.
    parts: BTreeMap<String, String>,
    /// The parts of every genesis that was assembled.
    genesis: Vec<BTreeMap<String, String>>,
    /// What the assembly fails with.
    fault: Option<String>,
    submitted: Vec<(String, Value)>,
    silent: bool,
}

/// What tasks a node has completed, in a plan that has not ended.
fn plan_of(node: &SeiNode, completed: &[TaskType]) -> TaskPlan {
    let types = [TaskType::UploadGenesisArtifacts, TaskType::ConfigureGenesis];
    let tasks = types.into_iter().enumerate().map(|(index, task_type)| {
        let mut task = PlannedTask::pending(&name_of(node), index, task_type, json!({}), 0);
        if completed.contains(&task_type) {
            task.status = TaskStatus::Complete;
        }
        task
    });
    let mut plan: TaskPlan = serde_json::from_value(json!({ "phase": "Active" })).unwrap();
    plan.tasks = tasks.collect();
    plan
}

impl Model {
    pub(super) fn objects(&self) -> BTreeMap<String, NodeObjects> {
        let objects = self.nodes.values().map(|machine| {
            let (name, uid) = (name_of(&machine.node), machine.node.metadata.uid.clone());
            let set = format!("set-{}", uid.clone().unwrap_or_default());
            let statefulset = StatefulSetView {
                name: name.clone(),
                uid: set.clone(),
                controller: uid.clone(),
                ..StatefulSetView::default()
            };
            let mut pod = PodView {
                name: format!("{name}-0"),
                uid: format!("pod-{}", uid.unwrap_or_default()),
                controller: Some(Controller::statefulset(&name, &set)),
                ip: Some("10.0.0.1".into()),
                sidecar: ContainerView { running: true, ..ContainerView::default() },
                seid: ContainerView { running: !machine.outage, ..ContainerView::default() },
                ..PodView::default()
            };
            pod.proxy.own_audience = true;
            let objects = NodeObjects {
                statefulset: Some(Shared::new(statefulset)),
                pods: vec![Shared::new(pod)],
            };
            (name, objects)
        });
        objects.collect()
    }

    /// The sidecar of a node answers.
    pub(super) fn call(&mut self, node: &str, request: &Request) -> Outcome {
        let Request::Sidecar(request) = request else { panic!("{request:?}") };
        let uid = self.nodes[node].node.metadata.uid.clone().unwrap();
        assert_eq!(request.pod_uid, format!("pod-{uid}"), "the pod of this node");
        if self.sidecars.silent {
            return Outcome::Failed(Failure::Unreachable("no answer".into()));
        }
        match &request.call {
            SidecarCall::Poll { id } => {
                Outcome::Task(self.sidecars.records.get(&(uid, id.clone())).cloned())
            }
            SidecarCall::Submit { id, params, .. } => {
                assert_eq!(node, "edge-0", "one node assembles");
                self.sidecars.submitted.push((id.clone(), params.clone()));
                self.sidecars.records.insert((uid, id.clone()), TaskState::Running.into());
                Outcome::Accepted
            }
            SidecarCall::NodeId => Outcome::NodeId(format!("id-of-{node}")),
            SidecarCall::Delete { .. } => panic!("nothing to delete"),
        }
    }

    /// Sidecars run their tasks, and nodes go one step on.
    fn advance(&mut self) {
        let Sidecars { records, parts, genesis, fault, .. } = &mut self.sidecars;
        for record in records.values_mut().filter(|record| record.state == TaskState::Running) {
            *record = if let Some(fault) = fault {
                TaskState::Failed(fault.clone()).into()
            } else {
                assert_eq!(parts.len(), self.nodes.len(), "every node has uploaded its part");
                genesis.push(parts.clone());
                TaskRecord { state: TaskState::Completed, genesis_hash: Some("ab".into()) }
            };
        }
        for machine in self.nodes.values_mut() {
            let node = &mut machine.node;
            let (name, uid) = (name_of(node), node.metadata.uid.clone().unwrap());
            let plan = node.status.as_ref().and_then(|status| status.plan.clone());
            let has = |task| plan.as_ref().is_some_and(|plan| plan.has_completed(task));
            let mut next = node.status.clone().unwrap_or_default();
            match next.phase {
                Some(SeiNodePhase::Running | SeiNodePhase::Failed) => continue,
                _ if has(TaskType::ConfigureGenesis) => {
                    next.phase = Some(SeiNodePhase::Running);
                    next.plan = None;
                }
                _ if has(TaskType::UploadGenesisArtifacts) && !genesis.is_empty() => {
                    next.plan = Some(plan_of(node, TaskType::ALL));
                }
                _ if plan.is_some() => {
                    parts.insert(name, uid);
                    next.plan = Some(plan_of(node, &[TaskType::UploadGenesisArtifacts]));
                }
                _ => {
                    next.phase = Some(SeiNodePhase::Initializing);
                    next.plan = Some(plan_of(node, &[]));
                }
            }
            node.status = Some(next);
        }
        self.pass_time(5);
    }

    /// Passes until the ceremony is complete.
    fn complete(&mut self) {
        for _ in 0..40 {
            self.pass(1000);
            if self.genesis().starts_with("True") {
                return;
            }
            self.advance();
        }
        panic!("{}", self.genesis());
    }

    fn genesis(&self) -> String {
        self.condition(condition_type::GENESIS_COMPLETE)
    }

    /// Passes until the ceremony is at this task.
    fn until(&mut self, task_type: TaskType) {
        for _ in 0..40 {
            self.pass(1000);
            let plan = self.status().plan.as_ref();
            if plan.and_then(|plan| plan.current()).is_some_and(|(_, task)| task.is(task_type)) {
                return;
            }
            self.advance();
        }
        panic!("{:?}", self.status().plan);
    }

    /// A node of this name takes the place of another; its volume is new.
    fn recreate(&mut self, name: &str) {
        let uid = self.nodes.remove(name).unwrap().node.metadata.uid.unwrap();
        self.sidecars.records.retain(|(of, _), _| *of != uid);
        self.pass(1000);
        assert!(self.nodes.contains_key(name), "created again");
    }

    fn has_peers(&self) -> bool {
        let peers: Vec<_> =
            self.nodes.values().map(|machine| machine.node.spec.peers.clone()).collect();
        let addresses = peers[0].as_ref().map(|all| all[0].r#static.clone().unwrap().addresses);
        let first = "id-of-edge-0@edge-0-0.edge-0.ns.svc.cluster.local:26656";
        addresses.is_some_and(|all| all.len() == self.nodes.len() && all[0] == first)
            && peers.iter().all(|found| *found == peers[0])
    }
}

fn begins(replicas: i32) -> Model {
    let mut model = Model::new(replicas, None);
    let template = &mut model.fleet.spec.template.spec;
    template.full_node = None;
    template.validator = Some(ValidatorSpec::default());
    model.fleet.spec.genesis = Some(GenesisSpec {
        chain_id: "demo-1".into(),
        staking_amount: "1usei".into(),
        account_balance: "2usei".into(),
        ..GenesisSpec::default()
    });
    model
}

/// A fleet whose assembly was submitted and runs.
fn submitted() -> Model {
    let mut model = begins(3);
    model.until(TaskType::AssembleAndUploadGenesis);
    while model.sidecars.submitted.is_empty() {
        model.advance();
        model.pass(1000);
    }
    model
}

#[test]
fn a_ceremony_assembles_one_genesis_and_begins_the_chain() {
    let mut model = begins(4);
    let account = GenesisAccount { address: "sei1qpzry".into(), balance: "3usei".into() };
    let genesis = model.fleet.spec.genesis.as_mut().unwrap();
    genesis.accounts = Some(vec![account]);
    genesis.overrides = Some(BTreeMap::from([("gov.period".into(), json!({ "a": 1 }))]));
    model.pass(1000);
    for (ordinal, machine) in model.nodes.values().enumerate() {
        let validator = machine.node.spec.validator.as_ref().unwrap();
        let index = validator.genesis_ceremony.as_ref().map(|ceremony| ceremony.index);
        assert_eq!(index, i32::try_from(ordinal).ok());
    }
    assert!(model.status().plan.is_some(), "stored before its first task runs");
    assert!(model.sidecars.submitted.is_empty());
    assert_eq!(model.condition("PlanInProgress"), "True/PlanStarted assemble-and-upload-genesis");
    model.pass(1000);
    let waits =
        "False/InProgress waits for the genesis artifacts of edge-0; edge-1; edge-2; and 1 more";
    assert_eq!(model.genesis(), waits);
    assert_eq!(model.status().phase, Some(FleetPhase::Initializing));
    assert_eq!(model.status().observed_generation, None);
    model.complete();
    let (_, params) = &model.sidecars.submitted[0];
    let names: Vec<_> = (0..4).map(|at| json!({ "name": format!("edge-{at}") })).collect();
    assert_eq!(
        *params,
        json!({
            "accountBalance": "2usei", "namespace": "ns", "nodes": names,
            "accounts": [{ "address": "sei1qpzry", "balance": "3usei" }],
            "overrides": { "gov.period": { "a": 1 } },
        })
    );
    assert_eq!((model.sidecars.submitted.len(), model.sidecars.genesis.len()), (1, 1));
    assert!(model.has_peers());
    assert_eq!(model.genesis(), "True/Complete genesis ab");
    assert_eq!(model.status().genesis_hash.as_deref(), Some("ab"));
    assert_eq!(model.condition("PlanInProgress"), "False/PlanComplete ");
    assert_eq!((model.status().plan.as_ref(), model.status().observed_generation), (None, Some(1)));
    for event in ["PlanStarted", "PlanComplete"] {
        assert_eq!(model.events.iter().filter(|seen| **seen == event).count(), 1, "{event}");
    }
    // It rests, and a further node begins nothing.
    let before = (model.version, model.fleet.clone());
    model.pass(1000);
    assert_eq!((model.version, model.fleet.clone()), before);
    model.edit(|spec| spec.replicas = 5);
    model.pass(1000);
    assert_eq!((model.nodes.len(), model.status().plan.as_ref()), (5, None));
    assert_eq!(model.genesis(), "True/Complete genesis ab");
}

#[test]
fn a_ceremony_survives_a_crash_after_any_call() {
    for calls in 1..40 {
        let mut model = begins(3);
        for _ in 0..60 {
            model.pass(calls);
            model.pass(1000);
            if model.genesis().starts_with("True") {
                break;
            }
            model.advance();
        }
        assert!(model.genesis().starts_with("True"), "{calls}: {}", model.genesis());
        assert_eq!(model.sidecars.submitted.len(), 1, "{calls}");
        assert!(model.has_peers(), "{calls}");
    }
}

#[test]
fn a_failed_assembly_is_shown_and_tried_again_under_another_id() {
    let mut model = begins(2);
    model.sidecars.fault = Some("no gentx".into());
    model.until(TaskType::AssembleAndUploadGenesis);
    for _ in 0..6 {
        model.pass(1000);
        model.advance();
    }
    model.pass(1000);
    let failed = "False/InProgress assemble-and-upload-genesis failed and is run again: no gentx";
    assert_eq!(model.genesis(), failed);
    let ids: BTreeSet<_> = model.sidecars.submitted.iter().map(|(id, _)| id.clone()).collect();
    assert_eq!(ids.len(), model.sidecars.submitted.len());
    assert!(ids.len() < 4, "it pauses: {ids:?}");
    model.sidecars.fault = None;
    model.complete();
    assert_eq!(model.sidecars.genesis.len(), 1);
}

#[test]
fn a_failed_ceremony_is_reported_and_begun_again_later_each_time() {
    let mut model = begins(2);
    model.sidecars.fault = Some("bad override".into());
    model.until(TaskType::AssembleAndUploadGenesis);
    let mut pauses = Vec::new();
    for attempt in 1..=3 {
        let plan = model.fleet.status.as_mut().unwrap().plan.as_mut().unwrap();
        let id = plan.id.clone();
        plan.tasks[0].max_retries = None;
        while model.status().plan.is_some() {
            model.pass(1000);
            model.advance();
        }
        let failed = model.genesis();
        let text = "False/CeremonyFailed assemble-and-upload-genesis failed: bad override";
        assert!(failed.starts_with(text), "{failed}");
        assert!(model.condition("PlanInProgress").starts_with("False/PlanFailed assemble"));
        let ceremony = model.status().ceremony.clone().unwrap();
        assert_eq!((ceremony.failures, ceremony.assembled), (attempt, None));
        let begun = model.now;
        while model.status().plan.is_none() {
            assert_eq!(model.genesis(), failed, "the reason stays");
            model.pass_time(1);
            model.pass(1000);
        }
        pauses.push(model.now.duration_since(begun).as_secs());
        assert_ne!(model.status().plan.as_ref().unwrap().id, id, "other ids");
    }
    assert!(pauses.is_sorted() && pauses[2] > 100, "{pauses:?}");
    assert_eq!(model.events.iter().filter(|event| **event == "PlanFailed").count(), 3);
    model.sidecars.fault = None;
    model.complete();
    assert_eq!(model.status().ceremony, None);
}

#[test]
fn a_lost_record_is_submitted_again_only_while_no_node_has_a_genesis() {
    let mut model = submitted();
    let mut early = model.clone();
    // The sidecar has assembled, and lost its record before the operator saw it.
    model.advance();
    model.sidecars.records.clear();
    model.complete();
    assert_eq!(model.sidecars.genesis.len(), 1, "a node has it: it is not assembled again");
    assert_eq!(
        model.genesis(),
        "True/Complete the nodes have a genesis that this plan did not assemble"
    );

    early.sidecars.records.clear();
    early.complete();
    let [(first, _), (second, _)] = early.sidecars.submitted.as_slice() else { panic!() };
    assert_eq!(first, second, "the same task");
}

#[test]
fn a_recreated_assembler_waits_for_its_new_part_and_replaces_no_genesis() {
    let mut model = begins(3);
    model.until(TaskType::AssembleAndUploadGenesis);
    for _ in 0..2 {
        model.advance();
    }
    let old = model.sidecars.parts["edge-0"].clone();
    model.recreate("edge-0");
    model.pass(1000);
    assert!(model.sidecars.submitted.is_empty(), "the bucket has the part of its predecessor");
    model.complete();
    assert_ne!(model.sidecars.genesis[0]["edge-0"], old);

    // The same after the submission.
    let mut model = submitted();
    let (old, mut assembled) = (model.sidecars.parts["edge-0"].clone(), model.clone());
    model.recreate("edge-0");
    model.complete();
    assert_eq!(model.sidecars.submitted.len(), 2);
    assert_ne!(model.sidecars.genesis[0]["edge-0"], old);

    // Other nodes have the genesis that it assembled before.
    assembled.advance();
    assembled.recreate("edge-0");
    assembled.complete();
    assert_eq!((assembled.sidecars.submitted.len(), assembled.sidecars.genesis.len()), (1, 1));
}

#[test]
fn a_lost_status_begins_no_second_ceremony() {
    let mut model = begins(3);
    model.complete();
    model.fleet.status = None;
    model.sidecars.records.clear();
    model.sidecars.silent = true;
    let calls = model.version;
    model.pass(1000);
    assert_eq!(model.version, calls, "nothing is asked for");
    assert!(model.genesis().starts_with("True/Complete"), "{}", model.genesis());

    // The status of one node was lost too, or it was created again.
    model.sidecars.silent = false;
    model.fleet.status = None;
    let last = &mut model.nodes.get_mut("edge-2").unwrap().node;
    last.status = None;
    last.spec.peers = None;
    model.complete();
    assert_eq!(model.sidecars.submitted.len(), 1, "never assembled again");
    assert!(model.has_peers());
}

#[test]
fn a_failed_node_fails_the_ceremony_and_its_repair_resumes_it() {
    for at in [TaskType::AssembleAndUploadGenesis, TaskType::AwaitNodesRunning] {
        let mut model = begins(2);
        model.until(at);
        let node = &mut model.nodes.get_mut("edge-1").unwrap().node;
        let mut plan = plan_of(node, &[]);
        plan.phase = PlanPhase::Failed;
        plan.failed_task_detail = Some(FailedTaskDetail {
            r#type: "generate-gentx".into(),
            id: String::new(),
            error: "no key".into(),
            retry_count: 0,
            max_retries: 0,
        });
        let status = node.status.get_or_insert_default();
        (status.phase, status.plan) = (Some(SeiNodePhase::Failed), Some(plan));
        model.pass(1000);
        let text =
            format!("False/CeremonyFailed {at} failed: edge-1 has failed: generate-gentx: no key");
        assert!(model.genesis().starts_with(&text), "{}", model.genesis());
        model.pass(1000);
        assert!(model.genesis().starts_with(&text), "{}", model.genesis());
        // It is repaired long before the next attempt is due.
        model.nodes.get_mut("edge-1").unwrap().node.status = None;
        model.pass(1000);
        assert!(model.status().plan.is_some());
        model.complete();
        assert_eq!(model.sidecars.submitted.len(), 1);
    }
}

#[test]
fn plans_of_the_go_operator_are_resumed_or_dropped() {
    let mut model = begins(2);
    model.pass(1000);
    let id = "0d9c2f3e-0000-4000-8000-000000000001";
    let names = json!(["edge-0", "edge-1"]);
    let nodes = json!([{ "name": "edge-0" }, { "name": "edge-1" }]);
    let group = json!({ "groupName": "edge", "namespace": "ns", "nodeNames": names });
    let plan = json!({ "id": id, "phase": "Active", "tasks": [
        { "type": "assemble-and-upload-genesis", "id": "a", "status": "Pending", "maxRetries": 180,
          "params": { "AccountBalance": "2usei", "Namespace": "ns", "Nodes": nodes,
                      "Accounts": null, "Overrides": null } },
        { "type": "collect-and-set-peers", "id": "b", "status": "Pending", "params": group },
        { "type": "await-nodes-running", "id": "c", "status": "Pending",
          "params": { "groupName": "edge", "namespace": "ns", "expected": 2, "nodeNames": names } },
    ] });
    model.fleet.status.as_mut().unwrap().plan = serde_json::from_value(plan).unwrap();
    model.complete();
    let params = json!({ "accountBalance": "2usei", "namespace": "ns", "nodes": nodes });
    assert_eq!(model.sidecars.submitted, [("a".to_owned(), params)]);
    let rollout = json!({ "id": id, "phase": "Active", "tasks": [
        { "type": "update-node-specs", "id": "a", "status": "Pending", "params": group },
    ] });
    let rollout: Option<TaskPlan> = serde_json::from_value(rollout).unwrap();
    let mut model = running(2, None);
    model.fleet.status.as_mut().unwrap().plan.clone_from(&rollout);
    model.pass(1000);
    assert_eq!(model.status().plan, None);
    assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    let mut model = begins(2);
    model.pass(1000);
    model.fleet.status.as_mut().unwrap().plan = rollout;
    model.complete();
    assert!(!model.events.contains(&"PlanFailed"), "it is no plan of a ceremony");
}

#[test]
fn peers_of_the_template_are_not_replaced() {
    let mut model = begins(2);
    let peers = Some(vec![PeerSource::default()]);
    model.fleet.spec.template.spec.peers.clone_from(&peers);
    model.complete();
    assert!(model.nodes.values().all(|machine| machine.node.spec.peers == peers));
}

#[test]
fn the_nodes_of_a_ceremony_stay_as_many_as_they_are() {
    for replicas in [2, 4] {
        let mut model = begins(3);
        model.until(TaskType::AssembleAndUploadGenesis);
        model.edit(|spec| spec.replicas = replicas);
        let preview = forecast(model.snapshot());
        assert_eq!((preview.creates, preview.deletes, preview.ceremony), (vec![], vec![], Some(3)));
        model.complete();
        assert_eq!(model.sidecars.genesis[0].len(), 3);
        model.pass(1000);
        assert_eq!(i32::try_from(model.nodes.len()).unwrap(), replicas, "afterwards it scales");
    }
}

#[test]
fn a_ceremony_waits_while_the_fleet_is_paused_or_a_sidecar_is_silent() {
    let mut model = begins(2);
    model.until(TaskType::AssembleAndUploadGenesis);
    model.edit(|spec| spec.paused = Some(true));
    for _ in 0..4 {
        model.pass(1000);
        model.advance();
    }
    model.pass(1000);
    assert_eq!(model.genesis(), "False/InProgress spec.paused holds the ceremony");
    assert!(model.sidecars.submitted.is_empty());
    model.edit(|spec| spec.paused = None);
    model.sidecars.silent = true;
    for _ in 0..4 {
        model.pass(1000);
        model.advance();
    }
    model.pass(1000);
    assert_eq!(model.genesis(), "False/InProgress no answer");
    model.sidecars.silent = false;
    model.complete();
}

#[test]
fn an_account_that_is_no_address_is_reported_and_begins_nothing() {
    let mut model = begins(2);
    let account = GenesisAccount { address: "cosmos1qpzry".into(), balance: "3usei".into() };
    model.fleet.spec.genesis.as_mut().unwrap().accounts = Some(vec![account]);
    model.pass(1000);
    let text = "False/CeremonyFailed spec.genesis.accounts: \"cosmos1qpzry\" is not an address";
    assert!(model.genesis().starts_with(text), "{}", model.genesis());
    assert_eq!(model.status().plan, None);
}

#[test]
fn the_template_before_a_rollout_has_no_peers_of_the_ceremony() {
    let mut model = begins(2);
    model.complete();
    model.pass(1000);
    let before = model.fleet.spec.template.clone();
    model.set_image("seid:2");
    let nodes: Vec<SeiNode> = model.nodes.values().map(|machine| machine.node.clone()).collect();
    assert_eq!(previous_template(&model.fleet, &nodes), Some(before));
}
