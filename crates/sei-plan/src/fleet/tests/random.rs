//! Random fleets, and random orders of edits, crashes and progress.

use proptest::prelude::*;
use sei_api::fleet::OnFailure;

use super::*;

/// Something that happens to a fleet.
#[derive(Clone, Debug)]
enum Event {
    Image(u8),
    Replicas(i32),
    Pause(bool),
    /// The user holds the rollout, or resumes it.
    Hold(bool),
    Step(usize),
    /// A pass that dies after this many calls.
    Pass(usize),
    Delete(usize),
    /// The node goes down for a reason of its own, or that reason ends.
    Outage(usize, bool),
    Second,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        1 => (1u8..5).prop_map(Event::Image),
        1 => (1i32..7).prop_map(Event::Replicas),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => any::<bool>().prop_map(Event::Hold),
        8 => (0usize..7).prop_map(Event::Step),
        6 => (1usize..12).prop_map(Event::Pass),
        1 => (0usize..7).prop_map(Event::Delete),
        1 => (0usize..7, any::<bool>()).prop_map(|(index, is_down)| Event::Outage(index, is_down)),
        2 => Just(Event::Second),
    ]
}

fn rules() -> impl Strategy<Value = Option<InPlace>> {
    let rules = (1i32..4, 0i32..3, any::<bool>(), any::<bool>()).prop_map(
        |(max, canaries, reverse, continues)| InPlace {
            canary: Some(Canary { replicas: canaries, bake_seconds: 1 }),
            order: reverse.then_some(Order::ReverseOrdinal),
            on_failure: continues.then_some(OnFailure::Continue),
            ..limited(max)
        },
    );
    prop_oneof![1 => Just(None), 4 => rules.prop_map(Some)]
}

/// How many random fleets: 2,000 take seconds in CI, and `PROPTEST_CASES` asks for more.
pub(super) fn cases() -> u32 {
    ProptestConfig::default().cases.max(2_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    /// In any order of edits, crashes and progress: no more nodes are down because of a rollout than
    /// its limit allows, nothing is released while the fleet is paused or halted, and the last template
    /// arrives.
    #[test]
    fn rollouts_keep_their_limit_and_the_last_template_arrives(
        replicas in 1i32..7,
        rules in rules(),
        events in prop::collection::vec(event(), 0..40),
    ) {
        let limit = rules.as_ref().and_then(|rules| match rules.max_unavailable {
            Some(IntOrString::Int(max)) => usize::try_from(max).ok(),
            _ => None,
        });
        let mut model = running(replicas, rules);
        model.bad.push("seid:4".into());
        for event in events {
            match event {
                Event::Image(number) => model.set_image(&format!("seid:{number}")),
                Event::Replicas(replicas) => model.edit(|spec| spec.replicas = replicas),
                Event::Pause(paused) => model.edit(|spec| spec.paused = Some(paused)),
                Event::Hold(paused) => {
                    model.edit(|spec| spec.update_strategy.paused = Some(paused));
                }
                Event::Step(index) => model.step(&fleet_node("edge", index)),
                Event::Delete(index) => drop(model.nodes.remove(&fleet_node("edge", index))),
                Event::Outage(index, is_down) => {
                    if let Some(machine) = model.nodes.get_mut(&fleet_node("edge", index)) {
                        machine.outage = is_down;
                    }
                }
                Event::Second => model.pass_time(1),
                Event::Pass(calls) => {
                    let before = model.clone();
                    let released = model.pass(calls);
                    let next = FleetPass::begin(before.snapshot()).survey().next;
                    let halted = matches!(next, Next::Halted(_));
                    let spec = &before.fleet.spec;
                    let may_release = spec.paused != Some(true) && !spec.rollouts_are_paused();
                    prop_assert!(released.is_empty() || may_release);
                    for name in released {
                        let machine = &before.nodes[&name];
                        let was_up = machine.is_up(&machine.node);
                        prop_assert!(!halted || !was_up, "{name} was fine and the rollout halted");
                        // A node that was up takes from the limit.
                        let down = before.down() - usize::from(machine.in_flight);
                        if let Some(limit) = limit && was_up && down >= limit {
                            prop_assert!(false, "{name} was released beside {down} of {limit}");
                        }
                    }
                }
            }
        }
        model.nodes.values_mut().for_each(|machine| machine.outage = false);
        model.edit(|spec| {
            spec.paused = None;
            spec.update_strategy.paused = None;
            spec.template.spec.image = "seid:9".into();
        });
        model.settle();
        prop_assert!(model.images().iter().all(|image| *image == "seid:9"), "{:?}", model.images());
        prop_assert_eq!(model.status().phase, Some(FleetPhase::Ready));
        prop_assert_eq!(&model.status().rollout, &None);
    }
}
