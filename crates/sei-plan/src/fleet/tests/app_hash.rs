//! Rollouts whose canaries are compared with the chain.

use proptest::prelude::*;
use sei_api::fleet::{AppHashResult, Health, OnFailure};

use super::*;
use crate::chain::{AppHash, NoFacts, NoHeader};

/// The chain of the nodes, as their RPC reports it. It makes a block each second.
#[derive(Clone, Default)]
pub(super) struct Chain {
    /// Images that compute another app hash.
    diverging: Vec<String>,
    /// Nodes whose RPC does not respond.
    silent: Vec<String>,
    /// Nodes that are at this height and stay there.
    stopped: BTreeMap<String, i64>,
    /// The first block that nodes have.
    earliest: i64,
    /// What was read.
    reads: Vec<String>,
}

impl Model {
    fn height(&self, node: &str) -> i64 {
        let height = self.now.as_second() - at(0).as_second();
        self.chain.stopped.get(node).copied().unwrap_or(height)
    }

    /// The RPC of a node answers.
    pub(super) fn read(&mut self, request: &FleetRequest) -> FleetOutcome {
        let hash = |height: i64| format!("{height:064X}");
        match request {
            FleetRequest::ReadAppHash { node, chain_id, .. } => {
                self.chain.reads.push(format!("{node} app hash"));
                assert_eq!(chain_id, "demo-1");
                if self.chain.silent.contains(node) {
                    return FleetOutcome::AppHash(Err(NoFacts::Unreachable));
                }
                let runs = self.nodes[node].runs.clone().unwrap_or_default();
                let height = self.height(node);
                let diverges = self.chain.diverging.contains(&runs);
                let hash = if diverges { "F".repeat(64) } else { hash(height) };
                FleetOutcome::AppHash(Ok(AppHash { height, hash }))
            }
            FleetRequest::ReadHeader { node, height, .. } => {
                self.chain.reads.push(format!("{node} header"));
                let latest = self.height(node);
                FleetOutcome::Header(match () {
                    () if self.chain.silent.contains(node) => Err(NoFacts::Unreachable.into()),
                    () if *height > latest => Err(NoHeader::NotYet),
                    () if *height < self.chain.earliest => Err(NoHeader::Pruned),
                    () => Ok(AppHash { height: height - 1, hash: hash(height - 1) }),
                })
            }
            _ => panic!("{request:?}"),
        }
    }

    fn ticks(&mut self, count: usize) {
        for _ in 0..count {
            self.pass(1000);
            self.tick();
        }
    }

    /// The message of a node.
    fn message(&self, name: &str) -> String {
        let node = self.status().nodes.iter().find(|node| node.name == name).unwrap();
        node.message.clone().unwrap_or_default()
    }

    fn on(&self, image: &str) -> usize {
        self.images().iter().filter(|found| **found == image).count()
    }
}

fn compared(max: i32) -> InPlace {
    let health = Health { require_same_app_hash: Some(true), ..Health::default() };
    InPlace { health: Some(health), ..limited(max) }
}

#[test]
fn others_follow_a_canary_with_the_app_hash_of_the_chain() {
    let mut model = running(4, Some(compared(2)));
    assert!(model.chain.reads.is_empty(), "a fleet that is created is not compared");
    model.set_image("seid:2");
    let released = model.pass(1000);
    assert_eq!(released, ["edge-0"], "without canaries the first node is one");
    model.ticks(2);
    assert_eq!(model.on("seid:2"), 1, "it is Ready and not compared");
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 4]);
    assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    let condition = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
    assert_eq!(condition, "False/RolloutComplete 4 of 4 nodes");
    let reads = std::mem::take(&mut model.chain.reads);
    assert!(reads.iter().all(|read| read.starts_with("edge-0") == read.ends_with("app hash")));
    model.ticks(5);
    assert!(model.chain.reads.is_empty(), "nothing is read at rest: {:?}", model.chain.reads);
}

#[test]
fn a_hash_that_the_old_image_may_have_computed_is_not_enough() {
    let mut model = running(3, Some(compared(1)));
    model.set_image("seid:2");
    model.ticks(1);
    let height = model.height("edge-0");
    model.chain.stopped.insert("edge-0".into(), height);
    model.ticks(20);
    assert_eq!(model.on("seid:2"), 1);
    assert_eq!(model.message("edge-0"), format!("its height does not grow: {height}"));
    let record = &model.status().rollout.as_ref().unwrap().app_hashes[0];
    assert_eq!((record.first_height, record.height, record.result), (height, height, None));
    model.chain.stopped.clear();
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 3]);
}

#[test]
fn a_canary_that_diverges_halts_the_rollout_whatever_follows_a_failure() {
    for on_failure in [None, Some(OnFailure::Continue)] {
        let mut model = running(4, Some(InPlace { on_failure, ..compared(3) }));
        model.chain.diverging.push("seid:2".into());
        model.set_image("seid:2");
        model.settle();
        // It stops where it differs, and is no longer Ready.
        for (name, machine) in &mut model.nodes {
            machine.outage = ["edge-0", "edge-3"].contains(&name.as_str());
        }
        model.settle();
        assert_eq!(model.images(), ["seid:2", "seid:1", "seid:1", "seid:1"]);
        let condition = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
        assert!(condition.starts_with("True/RolloutHalted"), "{condition}");
        assert!(condition.contains("edge-0: it diverges from the chain"), "{condition}");
        assert!(condition.contains(&"F".repeat(64)), "{condition}");
        assert!(model.events.contains(&"RolloutHalted"));
        let record = model.status().rollout.as_ref().unwrap().app_hashes[0].clone();
        assert_eq!(record.result, Some(AppHashResult::Different));
        model.chain.reads.clear();
        model.ticks(5);
        assert!(model.chain.reads.is_empty(), "what is known is not read again");
        // Back, and forward.
        model.nodes.values_mut().for_each(|machine| machine.outage = false);
        for image in ["seid:1", "seid:3"] {
            model.set_image(image);
            model.settle();
            assert_eq!(model.images(), [image; 4]);
            assert_eq!(model.status().rollout, None);
        }
    }
}

#[test]
fn a_stopped_canary_is_compared_at_the_height_where_it_stopped() {
    let mut model = running(3, Some(compared(1)));
    model.chain.diverging.push("seid:2".into());
    model.set_image("seid:2");
    let height = model.height("edge-0") + 1;
    model.chain.stopped.insert("edge-0".into(), height);
    model.settle();
    assert_eq!(model.on("seid:2"), 1);
    let halted = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
    assert!(halted.contains(&format!("after height {height} is FFFF")), "{halted}");
}

#[test]
fn facts_that_cannot_be_had_are_waited_for_until_the_deadline() {
    let silence: fn(&mut Model) = |model| model.chain.silent.push("edge-0".into());
    let others_are_silent: fn(&mut Model) =
        |model| model.chain.silent.extend(["edge-1".into(), "edge-2".into()]);
    let pruned: fn(&mut Model) = |model| model.chain.earliest = i64::MAX;
    let behind: fn(&mut Model) = |model| {
        model.chain.stopped.extend([("edge-1".into(), 1), ("edge-2".into(), 1)]);
    };
    let without = "its app hash cannot be compared with a node without the template:";
    let cases = [
        (silence, "its app hash cannot be read: the RPC does not respond".to_owned()),
        (others_are_silent, format!("{without} the RPC does not respond")),
        (pruned, format!("{without} it has pruned the block")),
        (behind, format!("{without} it has not got the block yet")),
    ];
    for (fault, why) in cases {
        let rules = InPlace { progress_deadline_seconds: Some(30), ..compared(2) };
        let mut model = running(3, Some(rules));
        fault(&mut model);
        model.set_image("seid:2");
        model.ticks(15);
        assert_eq!((model.on("seid:2"), model.message("edge-0")), (1, why.clone()));
        assert_eq!(model.fleet.rollout_state(), Some(RolloutState::Progressing));
        model.ticks(30);
        assert_eq!(model.on("seid:2"), 1, "{why}");
        let halted = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
        assert!(halted.contains(&format!("edge-0: not healthy in time: {why}")), "{halted}");
        // The facts can be had, and the rollout resumes.
        model.chain = Chain::default();
        model.settle();
        assert_eq!(model.images(), ["seid:2"; 3], "{why}");
    }
}

#[test]
fn an_operator_that_reads_no_rpc_releases_only_the_canary() {
    let mut model = running(3, Some(compared(2)));
    model.set_image("seid:2");
    for _ in 0..20 {
        let mut pass = FleetPass::begin(FleetSnapshot { reads_rpc: false, ..model.snapshot() });
        loop {
            match pass.ask() {
                FleetAsk::Perform(request) => {
                    let outcome = model.perform(&request);
                    pass.absorb(outcome);
                }
                FleetAsk::Write(status) => model.fleet.status = Some(*status),
                FleetAsk::Done(_) => break,
            }
        }
        model.tick();
    }
    assert!(model.chain.reads.is_empty());
    assert_eq!(model.on("seid:2"), 1);
    let why = "its app hash cannot be read: the operator runs with --rpc-reads 0";
    assert_eq!(model.message("edge-0"), why);
}

#[test]
fn a_node_that_is_down_waits_for_the_comparison() {
    let mut model = running(4, Some(compared(1)));
    model.nodes.get_mut("edge-2").unwrap().outage = true;
    model.tick();
    model.chain.diverging.push("seid:2".into());
    model.set_image("seid:2");
    model.settle();
    assert_eq!(model.images(), ["seid:2", "seid:1", "seid:1", "seid:1"]);
}

#[test]
fn the_nodes_of_a_halted_chain_are_not_compared_and_that_is_reported() {
    for ready_at_the_height in [false, true] {
        let mut model = running(4, Some(compared(1)));
        for (name, machine) in &mut model.nodes {
            machine.outage = !ready_at_the_height;
            if ready_at_the_height {
                let status = machine.node.status.as_mut().unwrap();
                condition_put(&mut status.conditions, "Halted", true, at(0));
            }
            model.chain.stopped.insert(name.clone(), 5);
        }
        model.tick();
        model.set_image("seid:2");
        let released = model.pass(1000);
        assert_eq!(released.len(), 4, "all at once");
        // The new image continues the chain.
        for machine in model.nodes.values_mut() {
            machine.outage = false;
            let status = machine.node.status.as_mut().unwrap();
            condition_put(&mut status.conditions, "Halted", false, at(0));
        }
        model.chain.stopped.clear();
        model.settle();
        assert_eq!(model.images(), ["seid:2"; 4]);
        let condition = model.condition(condition_type::ROLLOUT_IN_PROGRESS);
        let not_compared = "app hashes were not compared, because every node was down";
        assert_eq!(condition, format!("False/RolloutComplete 4 of 4 nodes; {not_compared}"));
    }
}

#[test]
fn a_comparison_survives_a_crash_after_any_call_and_the_loss_of_the_last_old_node() {
    for calls in 1..40 {
        let mut model = running(3, Some(compared(1)));
        model.set_image("seid:2");
        for _ in 0..20 {
            model.pass(calls);
            model.tick();
        }
        model.settle();
        assert_eq!(model.images(), ["seid:2"; 3], "a crash after {calls} calls");
    }
    // Canary and last old node are read in different passes.
    let mut model = running(2, Some(compared(1)));
    model.set_image("seid:2");
    model.ticks(3);
    model.nodes.remove("edge-1");
    model.settle();
    let why = "its app hash cannot be compared: no running node is left without the template";
    assert_eq!(model.message("edge-0"), why, "no silent pass");
}

#[test]
fn another_pod_of_a_canary_is_compared_again() {
    let mut model = running(3, Some(compared(1)));
    model.chain.diverging.push("seid:2".into());
    model.set_image("seid:2");
    model.settle();
    assert_eq!(model.fleet.rollout_state(), Some(RolloutState::Halted));
    // Its data was restored: the node has another uid, and so has its pod.
    model.chain.diverging.clear();
    model.nodes.get_mut("edge-0").unwrap().node.metadata.uid = Some("restored".into());
    model.settle();
    assert_eq!(model.images(), ["seid:2"; 3]);
}

#[derive(Clone, Debug)]
enum Event {
    Pass(usize),
    Step(usize),
    Second,
    Silence(usize, bool),
    Outage(bool),
    Prune(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (1usize..12).prop_map(Event::Pass),
        8 => (0usize..7).prop_map(Event::Step),
        4 => Just(Event::Second),
        1 => (0usize..7, any::<bool>()).prop_map(|(index, on)| Event::Silence(index, on)),
        1 => any::<bool>().prop_map(Event::Outage),
        1 => any::<bool>().prop_map(Event::Prune),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: super::random::cases() / 4, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    /// While a canary diverges no other node gets the template, in any order of crashes, outages and
    /// silence; a template that does not diverge then arrives.
    #[test]
    fn a_diverging_canary_is_the_only_node_that_gets_the_template(
        replicas in 3i32..7,
        max in 1i32..4,
        continues in any::<bool>(),
        events in prop::collection::vec(event(), 0..60),
    ) {
        let on_failure = continues.then_some(OnFailure::Continue);
        let mut model = running(replicas, Some(InPlace { on_failure, ..compared(max) }));
        model.chain.diverging.push("seid:2".into());
        model.set_image("seid:2");
        for event in events {
            match event {
                Event::Pass(calls) => drop(model.pass(calls)),
                Event::Step(index) => model.step(&fleet_node("edge", index)),
                Event::Second => model.pass_time(1),
                Event::Silence(index, is_silent) => {
                    let name = fleet_node("edge", index);
                    model.chain.silent.retain(|silent| *silent != name);
                    model.chain.silent.extend(is_silent.then_some(name));
                }
                // One node: more would be a halted chain.
                Event::Outage(is_down) => model.nodes.get_mut("edge-1").unwrap().outage = is_down,
                Event::Prune(is_pruned) => {
                    model.chain.earliest = if is_pruned { i64::MAX } else { 0 };
                }
            }
            prop_assert!(model.on("seid:2") <= 1, "{:?}", model.images());
        }
        model.nodes.get_mut("edge-1").unwrap().outage = false;
        model.chain = Chain { diverging: model.chain.diverging, ..Chain::default() };
        model.settle();
        prop_assert_eq!(model.on("seid:2"), 1);
        prop_assert_eq!(model.fleet.rollout_state(), Some(RolloutState::Halted));
        model.set_image("seid:9");
        model.settle();
        prop_assert!(model.images().iter().all(|image| *image == "seid:9"), "{:?}", model.images());
        prop_assert_eq!(model.status().phase, Some(FleetPhase::Ready));
    }
}
