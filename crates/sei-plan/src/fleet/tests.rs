//! Fleets, driven by the real pass against a small model of nodes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sei_api::fleet::{
    Canary, FleetPhase, InPlace, NodeTemplate, Order, READY_REASONS, RolloutState,
    SeiNodeDeploymentSpec, TemplateMetadata, UpdateStrategy, condition_type,
};
use sei_api::names::{annotation, label};
use sei_api::node::{FullNodeSpec, SeiNodeSpec};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};

use super::*;

mod app_hash;
mod ceremony;
mod hands_off;
mod random;
mod scale_down;

/// A fleet with its nodes, which a few rules bring from one state to the next.
#[derive(Clone)]
struct Model {
    fleet: SeiNodeDeployment,
    nodes: BTreeMap<String, Machine>,
    service: Option<ServiceView>,
    now: Timestamp,
    version: u64,
    events: Vec<&'static str>,
    /// Images that never become Ready.
    bad: Vec<String>,
    /// The most nodes that were down because of a rollout.
    most_down: usize,
    sidecars: ceremony::Sidecars,
    chain: app_hash::Chain,
}

#[derive(Clone)]
struct Machine {
    node: SeiNode,
    /// The image that its pod runs.
    runs: Option<String>,
    ready: bool,
    /// A rollout took it while it was up, and it is not up again.
    in_flight: bool,
    /// It is down for a reason that is not the fleet's.
    outage: bool,
}

impl Machine {
    /// It serves, with this spec.
    fn is_up(&self, node: &SeiNode) -> bool {
        self.ready && self.runs.as_deref() == Some(node.spec.image.as_str())
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn spec(image: &str) -> SeiNodeSpec {
    SeiNodeSpec {
        chain_id: "demo-1".into(),
        image: image.into(),
        full_node: Some(FullNodeSpec::default()),
        ..SeiNodeSpec::default()
    }
}

fn limited(max: i32) -> InPlace {
    InPlace { max_unavailable: Some(IntOrString::Int(max)), ..InPlace::default() }
}

impl Model {
    fn new(replicas: i32, rules: Option<InPlace>) -> Self {
        let mut fleet = SeiNodeDeployment::new(
            "edge",
            SeiNodeDeploymentSpec {
                replicas,
                template: NodeTemplate { metadata: None, spec: spec("seid:1") },
                update_strategy: UpdateStrategy { in_place: rules, ..UpdateStrategy::default() },
                ..SeiNodeDeploymentSpec::default()
            },
        );
        fleet.metadata.namespace = Some("ns".into());
        fleet.metadata.uid = Some("fleet-uid".into());
        fleet.metadata.generation = Some(1);
        Self {
            fleet,
            nodes: BTreeMap::new(),
            service: None,
            now: at(0),
            version: 0,
            events: Vec::new(),
            bad: Vec::new(),
            most_down: 0,
            sidecars: ceremony::Sidecars::default(),
            chain: app_hash::Chain::default(),
        }
    }

    fn edit(&mut self, change: impl FnOnce(&mut SeiNodeDeploymentSpec)) {
        change(&mut self.fleet.spec);
        self.fleet.metadata.generation = self.fleet.metadata.generation.map(|number| number + 1);
    }

    fn set_image(&mut self, image: &str) {
        self.edit(|spec| spec.template.spec.image = image.into());
    }

    fn snapshot(&self) -> FleetSnapshot {
        FleetSnapshot {
            fleet: Shared::new(self.fleet.clone()),
            nodes: self.nodes.values().map(|machine| Shared::new(machine.node.clone())).collect(),
            service: self.service.clone(),
            objects: self.objects(),
            reads_rpc: true,
            plan_id: format!("plan-{}", self.version),
            timing: Timing::default(),
            now: self.now,
        }
    }

    /// One reconcile that dies after this many calls. Returns the names of released nodes.
    fn pass(&mut self, calls: usize) -> Vec<String> {
        let mut pass = FleetPass::begin(self.snapshot());
        let mut released = Vec::new();
        for _ in 0..calls {
            match pass.ask() {
                FleetAsk::Perform(request) => {
                    if let FleetRequest::PatchNode { name, patch } = &request
                        && patch["metadata"]["annotations"][annotation::FLEET_TEMPLATE].is_string()
                    {
                        released.push(name.clone());
                    }
                    let outcome = self.perform(&request);
                    pass.absorb(outcome);
                }
                FleetAsk::Write(status) => {
                    let ready = status.conditions.iter().find(|it| it.type_ == "Ready");
                    let is_listed = |it: &Condition| READY_REASONS.contains(&it.reason.as_str());
                    assert!(ready.is_none_or(is_listed), "{ready:?}");
                    self.fleet.status = Some(*status);
                }
                FleetAsk::Done(ending) => {
                    self.events.extend(ending.events.iter().map(|event| event.reason));
                    assert_eq!(ending.failure, None);
                    return released;
                }
            }
        }
        assert!(calls < 1000, "a pass that never ends");
        released
    }

    /// Passes and steps until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..60 {
            let before = (self.version, self.fleet.status.clone(), self.is_settled());
            self.pass(1000);
            self.tick();
            // Two seconds more: a canary may have to stay healthy for one.
            if before == (self.version, self.fleet.status.clone(), true) {
                self.pass_time(2);
                self.pass(1000);
                if before.0 == self.version {
                    return;
                }
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.nodes.values().all(|machine| {
            let status = machine.node.status.as_ref();
            let observed = status.and_then(|status| status.observed_generation);
            observed == machine.node.metadata.generation
                && machine.runs.as_deref() == Some(machine.node.spec.image.as_str())
                && status.is_some_and(|status| status.plan.is_none())
        })
    }

    fn perform(&mut self, request: &FleetRequest) -> FleetOutcome {
        self.version += 1;
        let version = Some(self.version.to_string());
        match request {
            FleetRequest::CreateNode(node) => {
                let mut node = (**node).clone();
                let name = name_of(&node);
                node.metadata.uid = Some(format!("uid-{name}-{}", self.version));
                node.metadata.generation = Some(1);
                node.metadata.resource_version = version;
                let machine = Machine {
                    node: node.clone(),
                    runs: None,
                    ready: false,
                    in_flight: false,
                    outage: false,
                };
                assert!(self.nodes.insert(name, machine).is_none(), "created twice");
                FleetOutcome::Node(Box::new(node))
            }
            FleetRequest::PatchNode { name, patch } => {
                let machine = self.nodes.get_mut(name).expect("patches a node that exists");
                let expected = json!(machine.node.metadata.resource_version);
                assert_eq!(patch["metadata"]["resourceVersion"], expected, "decided on the newest");
                let before = machine.node.clone();
                let mut value = serde_json::to_value(&machine.node).unwrap();
                merge(&mut value, patch);
                machine.node = serde_json::from_value(value).unwrap();
                machine.node.metadata.resource_version = version;
                machine.in_flight |=
                    machine.is_up(&before) && machine.node.spec.image != before.spec.image;
                if machine.node.spec != before.spec {
                    let generation = machine.node.metadata.generation.unwrap() + 1;
                    machine.node.metadata.generation = Some(generation);
                }
                FleetOutcome::Node(Box::new(machine.node.clone()))
            }
            FleetRequest::DeleteNode { name, .. } => {
                self.nodes.remove(name).expect("deletes a node that exists");
                FleetOutcome::Deleted
            }
            FleetRequest::CreateService(service) => {
                let mut view = ServiceView::from(&**service);
                view.uid = Some("service-uid".into());
                self.service = Some(view.clone());
                FleetOutcome::Service(view)
            }
            FleetRequest::PatchService { patch, .. } => {
                let service = self.service.as_mut().unwrap();
                if patch["metadata"]["ownerReferences"].is_array() {
                    let owners = patch["metadata"]["ownerReferences"].clone();
                    service.owners = serde_json::from_value(owners).unwrap();
                }
                FleetOutcome::Service(service.clone())
            }
            FleetRequest::ReadFleet => FleetOutcome::Fleet(Box::new(self.fleet.clone())),
            FleetRequest::OfNode { node, request } => {
                FleetOutcome::OfNode(self.call(node, request))
            }
            FleetRequest::ReadAppHash { .. } | FleetRequest::ReadHeader { .. } => {
                self.read(request)
            }
            FleetRequest::PatchFinalizers { finalizers, .. } => {
                self.fleet.metadata.finalizers = Some(finalizers.clone());
                FleetOutcome::Fleet(Box::new(self.fleet.clone()))
            }
        }
    }

    /// The node's controller and kubelet do one step: a pod with another image goes down first.
    fn step(&mut self, name: &str) {
        let (now, bad) = (self.now, self.bad.clone());
        let Some(machine) = self.nodes.get_mut(name) else { return };
        let desired = machine.node.spec.image.clone();
        let status = machine.node.status.get_or_insert_with(SeiNodeStatus::default);
        status.observed_generation = machine.node.metadata.generation;
        if machine.runs.as_deref() == Some(desired.as_str()) {
            machine.ready = !bad.contains(&desired) && !machine.outage;
            status.phase = Some(SeiNodePhase::Running);
            status.current_image = Some(desired.clone());
            status.pending_update = None;
            status.plan = None;
            machine.in_flight &= !machine.ready;
        } else {
            machine.ready = false;
            machine.runs = Some(desired.clone());
            let plan = json!({ "phase": "Active", "tasks": [] });
            status.plan = serde_json::from_value(plan).unwrap();
        }
        let stalled = bad.contains(&desired) && status.plan.is_none();
        let conditions = &mut status.conditions;
        for (kind, holds) in [("Ready", machine.ready), ("Stalled", stalled)] {
            condition_put(conditions, kind, holds, now);
        }
    }

    /// Every node does one step, and a second passes.
    fn tick(&mut self) {
        for name in self.nodes.keys().cloned().collect::<Vec<_>>() {
            self.step(&name);
        }
        self.pass_time(1);
    }

    fn pass_time(&mut self, seconds: i64) {
        self.now = self.now.checked_add(SignedDuration::from_secs(seconds)).unwrap();
        self.most_down = self.most_down.max(self.down());
    }

    /// Nodes that a rollout has down, or may take down next.
    fn down(&self) -> usize {
        let replicas = usize::try_from(self.fleet.spec.replicas).unwrap();
        let is_member =
            |machine: &Machine| ordinal_in("edge", &machine.node).is_some_and(|at| at < replicas);
        self.nodes.values().filter(|machine| machine.in_flight && is_member(machine)).count()
    }

    fn status(&self) -> &SeiNodeDeploymentStatus {
        self.fleet.status.as_ref().unwrap()
    }

    fn condition(&self, kind: &str) -> String {
        let found = self.status().conditions.iter().find(|present| present.type_ == kind).unwrap();
        format!("{}/{} {}", found.status, found.reason, found.message)
    }

    fn images(&self) -> Vec<&str> {
        self.nodes.values().map(|machine| machine.node.spec.image.as_str()).collect()
    }
}

fn condition_put(conditions: &mut Vec<Condition>, kind: &str, holds: bool, now: Timestamp) {
    sei_api::condition::put(
        conditions,
        Condition {
            type_: kind.into(),
            status: if holds { "True" } else { "False" }.into(),
            reason: "Model".into(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(now),
        },
    );
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn running(replicas: i32, rules: Option<InPlace>) -> Model {
    let mut model = Model::new(replicas, rules);
    model.settle();
    model.most_down = 0;
    model.events.clear();
    model
}

#[test]
fn a_new_fleet_gets_its_nodes_and_its_service() {
    let mut model = Model::new(3, None);
    model.pass(1000);
    assert_eq!(model.nodes.keys().collect::<Vec<_>>(), ["edge-0", "edge-1", "edge-2"]);
    let node = &model.nodes["edge-1"].node;
    let labels = node.metadata.labels.as_ref().unwrap();
    assert_eq!(labels[label::NODE_DEPLOYMENT], "edge");
    assert_eq!(labels[label::NODE_DEPLOYMENT_ORDINAL], "1");
    assert_eq!(labels[label::CHAIN], "demo-1");
    let pod_labels = node.spec.pod_labels.as_ref().unwrap();
    assert_eq!(pod_labels[label::NODE_DEPLOYMENT], "edge");
    assert_eq!(pod_labels[label::REVISION], "1");
    assert!(model.snapshot().controls(node));
    let service = model.service.as_ref().unwrap();
    assert_eq!(service.name, "edge-internal");
    assert_eq!(model.status().phase, Some(FleetPhase::Initializing));
    model.settle();
    assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    assert_eq!(model.condition(condition_type::READY), "True/AllNodesReady 3 nodes");
    assert_eq!(model.status().rollout, None);
    let urls = model.status().endpoints.clone().unwrap();
    assert_eq!(urls.tendermint_rpc.unwrap(), "http://edge-internal.ns.svc:26657");
    assert_eq!(urls.nodes[2].evm_ws.as_deref(), Some("ws://edge-2.ns.svc:8546"));
}

#[test]
fn a_fleet_at_rest_asks_for_nothing() {
    let mut model = running(3, Some(limited(1)));
    let before = (model.version, model.fleet.clone());
    model.pass(1000);
    assert_eq!((model.version, model.fleet), before);
}

#[test]
fn without_limits_every_node_gets_the_template_at_once() {
    let mut model = running(4, None);
    model.set_image("seid:2");
    model.pass(1000);
    assert_eq!(model.images(), ["seid:2"; 4]);
    assert!(
        model.condition(condition_type::ROLLOUT_IN_PROGRESS).starts_with("True/TemplateChanged")
    );
    assert_eq!(model.status().phase, Some(FleetPhase::Upgrading));
    model.settle();
    assert_eq!(
        model.condition(condition_type::ROLLOUT_IN_PROGRESS),
        "False/RolloutComplete 4 of 4 nodes"
    );
    assert_eq!(model.events, ["RolloutStarted", "RolloutComplete"]);
}

#[test]
fn a_change_of_replicas_rolls_nothing() {
    let mut model = running(2, None);
    let before = model.nodes["edge-0"].node.clone();
    model.edit(|spec| spec.replicas = 4);
    model.settle();
    assert_eq!(model.nodes.len(), 4);
    assert_eq!(model.nodes["edge-0"].node.spec, before.spec, "the revision label stays");
    assert_eq!(model.events, ["SeiNodeCreated", "SeiNodeCreated"]);
    model.edit(|spec| spec.replicas = 1);
    model.pass(1000);
    assert_eq!(model.nodes.keys().collect::<Vec<_>>(), ["edge-0"]);
    model.pass(1000);
    assert_eq!(model.status().incumbent_nodes, ["edge-0"]);
}

#[test]
fn a_limit_is_held_and_an_order_kept() {
    for (reverse, first) in [(false, "edge-0"), (true, "edge-4")] {
        let mut rules = limited(2);
        rules.order = reverse.then_some(Order::ReverseOrdinal);
        let mut model = running(5, Some(rules));
        model.set_image("seid:2");
        let released = model.pass(1000);
        assert_eq!((released.len(), released[0].as_str()), (2, first));
        assert_eq!(model.status().rollout.as_ref().unwrap().batch.len(), 2);
        model.settle();
        assert_eq!(model.images(), ["seid:2"; 5]);
        assert!(model.most_down <= 2, "{}", model.most_down);
    }
}

#[test]
fn a_failing_canary_halts_the_rollout_and_a_new_template_resumes_it() {
    let canary = Some(Canary { replicas: 1, bake_seconds: 5 });
    let mut model = running(4, Some(InPlace { canary, ..limited(2) }));
    model.bad.push("seid:bad".into());
    model.set_image("seid:bad");
    model.settle();
    assert_eq!(model.images(), ["seid:bad", "seid:1", "seid:1", "seid:1"]);
    let condition = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
    assert!(condition.starts_with("True/RolloutHalted"), "{condition}");
    assert!(condition.contains("edge-0"), "{condition}");
    assert!(model.events.contains(&"RolloutHalted"));
    assert_eq!(model.most_down, 1);
    // Forward, and back.
    for image in ["seid:2", "seid:1"] {
        model.set_image(image);
        model.settle();
        assert_eq!(model.images(), [image; 4]);
        assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    }
    assert!(model.most_down <= 2);
}

#[test]
fn a_canary_must_stay_healthy_before_others_follow() {
    let canary = Some(Canary { replicas: 1, bake_seconds: 30 });
    let mut model = running(3, Some(InPlace { canary, ..InPlace::default() }));
    model.set_image("seid:2");
    for _ in 0..10 {
        model.pass(1000);
        model.tick();
    }
    assert_eq!(model.images(), ["seid:2", "seid:1", "seid:1"]);
    let mut pass = FleetPass::begin(model.snapshot());
    let due = loop {
        match pass.ask() {
            FleetAsk::Done(ending) => break ending.due,
            FleetAsk::Write(_) => {}
            FleetAsk::Perform(request) => panic!("{request:?}"),
        }
    };
    assert!(due.is_some_and(|due| due > model.now), "reconciled when it is over");
    model.pass_time(30);
    model.pass(1000);
    assert_eq!(model.images(), ["seid:2"; 3]);
}

#[test]
fn a_revert_during_a_rollout_returns_every_node() {
    let mut model = running(4, Some(limited(1)));
    model.set_image("seid:2");
    for _ in 0..4 {
        model.pass(1000);
        model.tick();
    }
    assert!(model.images().contains(&"seid:2"));
    model.set_image("seid:1");
    model.settle();
    assert_eq!(model.images(), ["seid:1"; 4]);
    assert!(model.events.contains(&"RolloutSuperseded"));
    assert_eq!(model.status().rollout, None);
}

#[test]
fn the_nodes_of_a_halted_chain_need_no_limit() {
    let mut model = running(4, Some(limited(1)));
    for machine in model.nodes.values_mut().take(2) {
        machine.outage = true;
    }
    model.tick();
    model.set_image("seid:2");
    model.pass(1000);
    // Two are down and free, and one of the others takes the limit.
    assert_eq!(model.images().iter().filter(|image| **image == "seid:2").count(), 3);
}

#[test]
fn a_paused_fleet_stops_its_nodes_and_releases_nothing() {
    let mut model = running(2, None);
    model.edit(|spec| {
        spec.paused = Some(true);
        spec.template.spec.image = "seid:2".into();
        spec.replicas = 3;
    });
    model.settle();
    assert!(model.nodes.values().all(|machine| machine.node.spec.is_paused()));
    assert_eq!(model.images(), ["seid:1"; 2]);
    assert_eq!(model.status().phase, Some(FleetPhase::Paused));
    model.edit(|spec| spec.paused = None);
    model.settle();
    assert!(model.nodes.values().all(|machine| !machine.node.spec.is_paused()));
    assert_eq!(model.images(), ["seid:2"; 3]);
}

#[test]
fn a_held_rollout_releases_no_further_node_and_stops_none() {
    let mut model = running(3, Some(limited(1)));
    model.set_image("seid:2");
    model.pass(1000);
    model.edit(|spec| spec.update_strategy.paused = Some(true));
    model.settle();
    assert_eq!(model.images(), ["seid:2", "seid:1", "seid:1"]);
    assert!(model.nodes.values().all(|machine| machine.ready));
    assert_eq!(model.fleet.rollout_state(), Some(RolloutState::Paused));
    let progress = "1 of 3 nodes are updated, 1 healthy";
    let held = "spec.updateStrategy.paused holds the rollout";
    assert_eq!(
        model.condition(condition_type::ROLLOUT_IN_PROGRESS),
        format!("True/RolloutPaused {progress}; {held}")
    );
    assert_eq!(model.condition(condition_type::READY), format!("False/RolloutPaused {held}"));
    model.edit(|spec| spec.update_strategy.paused = None);
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 3]);
    assert_eq!(model.fleet.rollout_state(), None);
}

#[test]
fn an_edited_or_deleted_node_is_restored() {
    let mut model = running(2, None);
    let machine = model.nodes.get_mut("edge-1").unwrap();
    machine.node.spec.image = "seid:other".into();
    machine.node.metadata.labels.as_mut().unwrap().insert("team".into(), "mine".into());
    model.nodes.remove("edge-0");
    model.settle();
    assert_eq!(model.images(), ["seid:1"; 2]);
    let labels = model.nodes["edge-1"].node.metadata.labels.as_ref().unwrap();
    assert_eq!(labels["team"], "mine", "labels of others stay");
    assert_eq!(model.status().rollout, None, "the template did not change");
}

#[test]
fn a_forecast_names_the_nodes_in_the_order_in_which_they_get_the_template() {
    let rules = InPlace {
        canary: Some(Canary { replicas: 1, bake_seconds: 0 }),
        order: Some(Order::ReverseOrdinal),
        ..limited(1)
    };
    let mut model = running(4, Some(rules));
    model.nodes.get_mut("edge-1").unwrap().outage = true;
    model.tick();
    assert_eq!(forecast(model.snapshot()).updates, [], "nothing changes");
    model.edit(|spec| {
        spec.replicas = 3;
        spec.template.spec.image = "seid:2".into();
    });
    let all = forecast(model.snapshot());
    let names: Vec<_> =
        all.updates.iter().map(|node| (node.name.as_str(), node.is_down, node.is_canary)).collect();
    let expected = [("edge-1", true, false), ("edge-2", false, true), ("edge-0", false, false)];
    assert_eq!(names, expected);
    assert_eq!((all.max_unavailable, all.deletes), (Some(1), vec!["edge-3".to_owned()]));
    let change = all.updates[0].changes.first().unwrap();
    assert_eq!((change.path.as_str(), change.to.as_deref()), ("image", Some("seid:2")));
    let mut released = Vec::new();
    for _ in 0..20 {
        released.extend(model.pass(1000));
        model.tick();
    }
    assert_eq!(released, expected.map(|(name, ..)| name));
}

#[test]
fn a_release_that_the_status_does_not_have_yet_takes_from_the_limit() {
    let mut model = running(3, Some(limited(1)));
    model.nodes.get_mut("edge-0").unwrap().outage = true;
    model.tick();
    model.set_image("seid:2");
    assert_eq!(model.pass(1000), ["edge-0", "edge-1"], "a node that is down costs nothing");
    model.nodes.get_mut("edge-0").unwrap().outage = false;
    for _ in 0..2 {
        model.step("edge-0");
        model.step("edge-1");
    }
    model.set_image("seid:3");
    assert_eq!(model.pass(1), ["edge-0"], "the operator crashes before it reports the release");
    assert_eq!(model.pass(1000), Vec::<String>::new());
    model.settle();
    assert_eq!((model.images(), model.most_down), (vec!["seid:3"; 3], 1));
}

#[test]
fn the_template_before_a_rollout_is_read_from_a_node_that_has_it() {
    let mut model = running(3, Some(limited(1)));
    let map = |key: &str, value: &str| Some(BTreeMap::from([(key.to_owned(), value.to_owned())]));
    model.edit(|spec| {
        let (labels, annotations) = (map("team", "edge"), map("contact", "edge"));
        spec.template.metadata = Some(TemplateMetadata { labels, annotations });
        spec.template.spec.pod_labels = map("tier", "rpc");
        spec.template.spec.overrides = map("logging.level", "debug");
    });
    model.settle();
    let before = model.fleet.spec.template.clone();
    let nodes = |model: &Model| -> Vec<SeiNode> {
        model.nodes.values().map(|machine| machine.node.clone()).collect()
    };
    assert_eq!(previous_template(&model.fleet, &nodes(&model)), None, "there is no rollout");
    // What users set on a node is no part of the template.
    let node = &mut model.nodes.get_mut("edge-2").unwrap().node;
    node.spec.update.get_or_insert_default().paused = Some(true);
    node.metadata.labels.get_or_insert_default().insert("mine".into(), "x".into());
    model.nodes.get_mut("edge-1").unwrap().node.spec.image = "seid:other".into();
    let new = spec("seid:2");
    model.edit(|spec| spec.template = NodeTemplate { metadata: None, spec: new });
    model.pass(1000);
    assert_eq!(model.images(), ["seid:2", "seid:other", "seid:1"]);
    assert_eq!(previous_template(&model.fleet, &nodes(&model)), Some(before));
    model.nodes.get_mut("edge-2").unwrap().node.spec.image = "seid:other".into();
    assert_eq!(previous_template(&model.fleet, &nodes(&model)), None, "no node proves it");
}

#[test]
fn what_is_taken_out_of_the_template_is_taken_off_the_nodes() {
    let mut model = running(1, None);
    let labels = |labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Some(TemplateMetadata { labels: Some(labels.collect()), annotations: None })
    };
    model.edit(|spec| spec.template.metadata = labels(&[("a", "1"), ("b", "1")]));
    model.settle();
    model.edit(|spec| spec.template.metadata = labels(&[("a", "2")]));
    model.settle();
    let node = &model.nodes["edge-0"].node;
    let has = |key: &str| node.metadata.labels.as_ref().unwrap().get(key).cloned();
    assert_eq!((has("a").as_deref(), has("b")), (Some("2"), None));
    let on_pod = node.spec.pod_labels.as_ref().unwrap();
    assert_eq!((on_pod.get("a").map(String::as_str), on_pod.get("b")), (Some("2"), None));
}

#[test]
fn a_node_of_another_owner_is_left_alone_and_reported() {
    let mut model = Model::new(2, None);
    let mut foreign = SeiNode::new("edge-1", spec("seid:theirs"));
    foreign.metadata.uid = Some("theirs".into());
    let machine =
        Machine { node: foreign.clone(), runs: None, ready: true, in_flight: false, outage: false };
    model.nodes.insert("edge-1".into(), machine);
    model.pass(1000);
    assert_eq!(model.nodes["edge-1"].node, foreign);
    let ready = model.condition(condition_type::READY);
    assert!(ready.starts_with("False/NodeConflict edge-1 is not of this fleet"), "{ready}");
}

#[test]
fn retained_nodes_outlive_the_fleet_and_are_taken_back_by_the_next() {
    let mut model = running(2, None);
    model.edit(|spec| spec.deletion_policy = DeletionPolicy::Retain);
    model.pass(1000);
    model.fleet.metadata.deletion_timestamp = Some(Time(model.now));
    model.pass(1000);
    assert_eq!(model.fleet.metadata.finalizers.as_deref(), Some(&[][..]));
    for machine in model.nodes.values() {
        assert_eq!(machine.node.metadata.owner_references.as_deref(), Some(&[][..]));
    }
    assert!(model.service.as_ref().unwrap().owners.is_empty());
    let specs: Vec<_> = model.nodes.values().map(|machine| machine.node.spec.clone()).collect();
    let mut next = Model::new(2, None);
    next.fleet.metadata.uid = Some("second-uid".into());
    next.nodes = model.nodes;
    next.service = model.service;
    next.settle();
    let after: Vec<_> = next.nodes.values().map(|machine| machine.node.spec.clone()).collect();
    assert_eq!(after, specs, "taken back without a restart");
    assert!(next.nodes.values().all(|machine| next.snapshot().controls(&machine.node)));
    assert_eq!(next.condition(condition_type::READY), "True/AllNodesReady 2 nodes");
}

#[test]
fn a_node_that_cannot_be_released_keeps_the_deleted_fleet() {
    let mut model = running(2, None);
    model.edit(|spec| spec.deletion_policy = DeletionPolicy::Retain);
    model.fleet.metadata.deletion_timestamp = Some(Time(model.now));
    let mut pass = FleetPass::begin(model.snapshot());
    let FleetAsk::Perform(FleetRequest::PatchNode { .. }) = pass.ask() else { panic!("releases") };
    pass.absorb(FleetOutcome::Failed(Failure::Rejected("no".into())));
    let FleetAsk::Write(status) = pass.ask() else { panic!("it does not stop at that node") };
    assert_eq!(status.phase, Some(FleetPhase::Terminating));
    let FleetAsk::Done(ending) = pass.ask() else { panic!("its finalizer stays") };
    assert_eq!(ending.due, Some(later(model.now, REFUSED_RETRY)));
}

#[test]
fn a_fleet_of_the_go_operator_is_taken_over_without_a_change() {
    let mut model = running(3, None);
    for machine in model.nodes.values_mut() {
        let annotations = machine.node.metadata.annotations.as_mut().unwrap();
        annotations.clear();
        // It never passes these on.
        machine.node.spec.overrides = Some(BTreeMap::from([("a.b".into(), "1".into())]));
        let labels = machine.node.spec.pod_labels.as_mut().unwrap();
        labels.insert(label::REVISION.into(), "7".into());
    }
    let status = model.fleet.status.as_mut().unwrap();
    status.template_hash = Some("0123456789abcdef".into());
    let before: Vec<_> = model.nodes.values().map(|machine| machine.node.spec.clone()).collect();
    model.edit(|spec| spec.replicas = 3);
    model.settle();
    let after: Vec<_> = model.nodes.values().map(|machine| machine.node.spec.clone()).collect();
    assert_eq!(after, before);
    assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    // The next template brings everything.
    model.set_image("seid:2");
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 3]);
    assert!(model.nodes.values().all(|machine| machine.node.spec.overrides.is_none()));
    assert_eq!(model.status().adopted_template, None);
}

#[test]
fn scaling_down_keeps_volumes_if_the_fleet_retains_them() {
    let mut model = running(2, None);
    model.edit(|spec| {
        spec.deletion_policy = DeletionPolicy::Retain;
        spec.replicas = 1;
    });
    let mut pass = FleetPass::begin(model.snapshot());
    let FleetAsk::Perform(FleetRequest::PatchNode { name, patch }) = pass.ask() else {
        panic!("the volume first")
    };
    assert_eq!(name, "edge-1");
    assert_eq!(patch["spec"]["dataVolume"]["onDelete"], "Retain");
    model.pass(1000);
    assert_eq!(model.nodes.len(), 1);
}

#[test]
fn what_the_server_refuses_is_reported_and_blocks_no_other_node() {
    let mut model = running(3, None);
    model.set_image("seid:2");
    let mut pass = FleetPass::begin(model.snapshot());
    loop {
        match pass.ask() {
            FleetAsk::Perform(FleetRequest::PatchNode { name, .. }) if name == "edge-1" => {
                pass.absorb(FleetOutcome::Failed(Failure::Rejected("no such registry".into())));
            }
            FleetAsk::Perform(request) => {
                let outcome = model.perform(&request);
                pass.absorb(outcome);
            }
            FleetAsk::Write(status) => model.fleet.status = Some(*status),
            FleetAsk::Done(ending) => {
                assert_eq!(ending.due, Some(later(model.now, REFUSED_RETRY)), "tried again");
                break;
            }
        }
    }
    assert_eq!(model.images(), ["seid:2", "seid:1", "seid:2"]);
    let ready = model.condition(condition_type::READY);
    assert_eq!(ready, "False/Refused edge-1: no such registry");
}
