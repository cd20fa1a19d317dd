//! One node: what each disturbance leads to, and properties over many of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::names::annotation;
use sei_api::node::SeiNodeSpec;
use sei_api::status::SeiNodePhase;
use sei_model::fixture;

use self::world::{Move, World, full_node, validator};

#[path = "one_node/world.rs"]
mod world;

fn running(spec: SeiNodeSpec) -> World {
    let mut world = World::new(spec);
    world.converge();
    world
}

fn image(world: &mut World, number: u8) {
    world.edit(|spec| spec.image = fixture::image(number));
}

fn label(world: &mut World, value: &str) {
    let labels = BTreeMap::from([("team".to_owned(), value.to_owned())]);
    world.edit(|spec| spec.pod_labels = Some(labels));
}

fn pause_updates(world: &mut World, paused: bool) {
    world.edit(|spec| {
        spec.update.get_or_insert_default().paused = Some(paused);
    });
}

fn halt(world: &mut World, halted: bool) {
    let faults = &mut world.cluster.faults;
    let chain = "demo-1".to_owned();
    if halted {
        faults.halted.insert(chain);
    } else {
        faults.halted.remove(&chain);
    }
}

fn wipe_status(world: &mut World) {
    let key = world.key.clone();
    world.cluster.change_node(&key, |node| node.status = None);
}

/// The StatefulSet is deleted, and its pod with it.
fn lose_set(world: &mut World) {
    let key = world.key.clone();
    world.cluster.sets.remove(&key);
    world.cluster.pods.clear();
}

fn lose_secret(world: &mut World) {
    world.cluster.secrets.retain(|key, _| key.name != "signing");
}

/// A Secret that is being deleted is still mounted.
fn set_secret_terminating(world: &mut World, terminating: bool) {
    let secrets = world.cluster.secrets.iter_mut().filter(|(key, _)| key.name == "signing");
    secrets.for_each(|(_, secret)| secret.terminating = terminating);
}

fn restore_secret(world: &mut World) {
    let mode = fixture::Mode::Validator { key: "a", secret: "signing" };
    let key = world.key.clone();
    fixture::provide(&mut world.cluster, &key, &mode);
}

/// Runs passes and the environment for some rounds without requiring convergence.
fn run(world: &mut World, rounds: usize) {
    for _ in 0..rounds {
        world.pass();
        world.step_all();
        world.wait(20);
    }
}

fn drift_reason(world: &World) -> String {
    let status = world.status();
    condition::find(&status.conditions, ConditionType::PodTemplateDrift)
        .map(|condition| condition.reason.clone())
        .unwrap_or_default()
}

#[test]
fn a_new_node_runs_with_one_plan_and_no_deletion() {
    for spec in [full_node(), validator()] {
        let world = running(spec);
        assert!(world.deleted() == 0);
        assert_eq!(world.status().last_update, None, "no update plan was needed");
    }
}

#[test]
fn an_image_bump_restarts_the_pod_once() {
    let mut world = running(full_node());
    image(&mut world, 2);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_label_alone_restarts_the_pod_once() {
    let mut world = running(full_node());
    label(&mut world, "core");
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_bump_and_its_revert_end_on_the_old_image_healthy_halted_unpullable_and_crashing() {
    type Trouble = fn(&mut World);
    let unpullable: Trouble = |world| {
        world.cluster.faults.unpullable.insert(fixture::image(2));
    };
    let troubles: [(Trouble, usize); 5] = [
        (|_| {}, 2),
        (|world| halt(world, true), 2),
        // The old pod runs on.
        (unpullable, 0),
        // The new image is tried on a node that is down.
        (
            |world| {
                world.cluster.faults.unpullable.insert(fixture::image(2));
                halt(world, true);
            },
            2,
        ),
        (
            |world| {
                world.cluster.faults.crashing.insert(fixture::image(2));
            },
            2,
        ),
    ];
    for (trouble, deleted) in troubles {
        let mut world = running(full_node());
        trouble(&mut world);
        image(&mut world, 2);
        // Longer than the new image is awaited on a node that is down.
        run(&mut world, 20);
        image(&mut world, 1);
        world.converge();
        assert_eq!(world.deleted(), deleted, "there and back");
    }
}

#[test]
fn an_image_that_cannot_be_pulled_leaves_the_pod_alone_until_it_is_corrected() {
    let mut world = running(validator());
    let first = world.pod().unwrap().view.uid.clone();
    world.cluster.faults.unpullable.insert(fixture::image(2));
    image(&mut world, 2);
    run(&mut world, 40);
    assert_eq!(world.pod().unwrap().view.uid, first);
    assert_eq!(world.set().unwrap().generation, 1, "an eviction restores what ran");
    let status = world.status();
    let stalled = condition::find(&status.conditions, ConditionType::Stalled).unwrap();
    assert_eq!((stalled.reason.as_str(), world.deleted()), ("ImageNotPullable", 0));
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod().unwrap().view.seid.image, fixture::image(1));
    assert_eq!(world.deleted(), 0);
    image(&mut world, 5);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_hold_ends_when_the_image_becomes_pullable() {
    let mut world = running(full_node());
    world.cluster.faults.unpullable.insert(fixture::image(2));
    image(&mut world, 2);
    run(&mut world, 10);
    world.cluster.faults.unpullable.clear();
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_halted_node_is_replaced_at_once() {
    let mut world = running(validator());
    halt(&mut world, true);
    image(&mut world, 2);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_bad_first_image_is_fixed_by_an_edit() {
    let mut world = World::new(full_node());
    world.cluster.faults.unpullable.insert(fixture::image(1));
    run(&mut world, 10);
    assert_eq!(world.status().current_image, None, "nothing ran, nothing is recorded");
    image(&mut world, 2);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_revert_before_the_pod_was_replaced_restarts_nothing_even_when_it_is_evicted() {
    let mut world = running(full_node());
    let first = world.pod().unwrap().view.uid.clone();
    image(&mut world, 2);
    // Until the template is applied, and no further.
    while world.set().unwrap().generation == 1 {
        world.pass_crashing_after(usize::MAX);
        world.step(Move::Kubelet);
    }
    image(&mut world, 1);
    run(&mut world, 4);
    assert_eq!(world.pod().unwrap().view.uid, first);
    assert!(world.deleted() == 0);
    world.evict();
    world.converge();
    assert!(world.deleted() == 0);
    assert_ne!(world.pod().unwrap().view.uid, first);
}

#[test]
fn an_evicted_node_returns_with_its_gate_open() {
    let mut world = running(full_node());
    world.evict();
    world.converge();
    assert!(world.deleted() == 0);
}

#[test]
fn a_closed_gate_is_opened_by_one_plan() {
    let mut world = running(full_node());
    world.change_pod(|pod| pod.gate_open = false);
    world.pass();
    assert!(world.status().plan.is_some());
    world.pass();
    assert!(world.pod().unwrap().gate_open);
    assert_eq!(world.status().plan, None, "the opened gate is recorded as open");
}

#[test]
fn a_wiped_status_restarts_nothing() {
    let mut world = running(full_node());
    wipe_status(&mut world);
    world.converge();
    assert!(world.deleted() == 0);
}

#[test]
fn a_forged_hash_does_not_prevent_the_replacement() {
    for passes in 0..8 {
        let mut world = running(full_node());
        image(&mut world, 2);
        run(&mut world, passes);
        let hash = world.rendered().desired.hash.clone();
        world.change_status(|status| status.pod_template_hash = Some(hash));
        world.converge();
        assert_eq!(world.deleted(), 1, "forged after {passes} passes");
    }
}

#[test]
fn a_forged_current_image_is_corrected_without_a_restart() {
    let mut world = running(full_node());
    world.change_status(|status| status.current_image = Some(fixture::image(9)));
    world.converge();
    assert!(world.deleted() == 0);
}

#[test]
fn a_sidecar_lost_at_any_task_never_blocks_the_update() {
    // The number of calls after which the sidecar is lost: every point of an update.
    for calls in 0..16 {
        let mut world = running(full_node());
        image(&mut world, 2);
        world.pass();
        world.pass_crashing_after(calls);
        world.change_pod(|pod| pod.sidecar_lost = true);
        run(&mut world, 8);
        // A sidecar lost on the new pod itself returns with the container.
        world.change_pod(|pod| pod.sidecar_lost = false);
        world.converge();
        assert_eq!(world.deleted(), 1, "after {calls} calls");
    }
}

#[test]
fn crashing_after_any_call_ends_in_the_same_world() {
    for calls in 0..40 {
        let mut world = running(validator());
        image(&mut world, 2);
        let mut left = calls;
        while left > 0 {
            let trace = world.pass_crashing_after(left);
            left = left.saturating_sub(trace.calls.max(1));
            world.step_all();
        }
        world.converge();
        assert_eq!(world.deleted(), 1, "after {calls} calls");
    }
}

#[test]
fn crashing_after_any_call_of_a_deletion_ends_in_the_same_world() {
    for calls in 0..8 {
        let mut world = running(validator());
        let key = world.key.clone();
        world.cluster.delete_node(&key);
        world.pass_crashing_after(calls);
        world.pass();
        assert_eq!(world.status().phase, Some(SeiNodePhase::Terminating));
        let held = world.node().metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
        assert!(held && world.has_claim(), "its pod may still sign");
        for step in [Move::Observe, Move::Scale, Move::Kubelet] {
            world.step(step);
        }
        assert!(world.pod().is_none(), "its pod was stopped");
        world.pass();
        assert!(world.has_claim(), "the volume of a signer is retained");
        assert!(!world.cluster.nodes.contains_key(&key), "its finalizer was removed");
        assert!(world.deleted() == 0, "its pod is left to the StatefulSet controller");
    }
}

#[test]
fn crashing_after_any_call_never_starts_a_signer_beside_another() {
    for calls in 0..40 {
        let mut world = World::new(validator());
        world.start_rival();
        world.pass_crashing_after(calls);
        run(&mut world, 8);
        assert!(world.set().is_none(), "after {calls} calls");
        // The rival is deleted, and its last pod has ended.
        world.remove_rival();
        world.converge();
    }
}

#[test]
fn an_eviction_while_an_update_waits_opens_the_gate_again() {
    let mut world = running(validator());
    set_secret_terminating(&mut world, true);
    image(&mut world, 2);
    run(&mut world, 3);
    world.evict();
    run(&mut world, 8);
    assert!(
        world.pod().unwrap().gate_open,
        "the gate of the old pod is open while the update waits"
    );
    assert!(world.deleted() == 0);
    set_secret_terminating(&mut world, false);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn a_bad_configuration_fails_only_on_the_new_pod_and_backs_off() {
    let mut world = running(full_node());
    world.cluster.faults.failing_tasks.insert("config-validate".to_owned());
    image(&mut world, 2);
    run(&mut world, 8);
    let status = world.status();
    assert_eq!(world.deleted(), 1, "a failure on the old pod does not block the new image");
    let pending = status.pending_update.expect("still pending");
    assert!(pending.attempts.unwrap_or(0) >= 1, "{pending:?}");
    world.cluster.faults.failing_tasks.clear();
    world.converge();
    assert_eq!(world.deleted(), 1, "a retry restarts nothing");
}

#[test]
fn paused_updates_hold_and_an_eviction_restores_the_running_template() {
    let mut world = running(full_node());
    pause_updates(&mut world, true);
    image(&mut world, 2);
    run(&mut world, 3);
    assert_eq!(drift_reason(&world), "Paused");
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod().unwrap().view.seid.image, fixture::image(1));
    assert!(world.pod().unwrap().gate_open);
    pause_updates(&mut world, false);
    world.converge();
    assert_eq!(world.deleted(), 1);
}

#[test]
fn pausing_after_the_apply_restores_the_running_template() {
    let mut world = running(full_node());
    image(&mut world, 2);
    world.pass();
    while world.set().unwrap().generation == 1 {
        world.pass();
        world.step(Move::Kubelet);
    }
    assert!(world.deleted() == 0, "the controller has not observed it yet");
    pause_updates(&mut world, true);
    run(&mut world, 4);
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod().unwrap().view.seid.image, fixture::image(1));
    assert!(world.deleted() == 0);
    pause_updates(&mut world, false);
    world.converge();
}

#[test]
fn a_stopped_node_starts_with_the_newest_template() {
    let mut world = running(full_node());
    world.edit(|spec| spec.paused = Some(true));
    run(&mut world, 3);
    assert!(world.pod().is_none(), "paused means no pod");
    image(&mut world, 2);
    run(&mut world, 3);
    world.edit(|spec| spec.paused = Some(false));
    world.converge();
    assert!(world.deleted() == 0, "the first pod is already the right one");
}

#[test]
fn a_deleted_statefulset_is_created_again() {
    let mut world = running(full_node());
    lose_set(&mut world);
    world.converge();
    assert!(world.deleted() == 0);
}

#[test]
fn manually_changed_replicas_and_strategy_are_repaired() {
    let mut world = running(full_node());
    let key = world.key.clone();
    world.cluster.change_set(&key, true, |set| {
        set.replicas = Some(2);
        set.on_delete = false;
    });
    world.cluster.excuse(&key);
    run(&mut world, 3);
    let set = world.set().unwrap();
    assert_eq!((set.replicas, set.on_delete), (Some(1), true));
    assert!(world.deleted() == 0);
}

#[test]
fn a_lost_volume_is_never_replaced_without_approval() {
    for spec in [full_node(), validator()] {
        let signs = spec.signs();
        let mut world = running(spec);
        let lost = world.lose_claim().unwrap();
        world.evict();
        run(&mut world, 6);
        assert!(!world.has_claim(), "nothing is recreated");
        let replicas = world.set().unwrap().replicas;
        assert_eq!(replicas, Some(i32::from(!signs)), "a node that signs is held at zero");
        world.annotate(annotation::RECREATE_VOLUME, &lost);
        world.converge();
    }
}

#[test]
fn a_volume_lost_during_any_plan_is_reported_at_once() {
    for passes in 1..12 {
        for from_scratch in [false, true] {
            let mut world =
                if from_scratch { World::new(validator()) } else { running(validator()) };
            if !from_scratch {
                image(&mut world, 2);
            }
            run(&mut world, passes);
            let Some(lost) = world.lose_claim() else { continue };
            world.evict();
            run(&mut world, 3);
            assert!(!world.has_claim(), "nothing is recreated");
            let conditions = world.status().conditions;
            let stalled = condition::find(&conditions, ConditionType::Stalled).unwrap();
            assert_eq!(stalled.reason, "DataVolumeLost", "after {passes} passes");
            world.annotate(annotation::RECREATE_VOLUME, &lost);
            world.converge();
        }
    }
}

#[test]
fn a_platform_change_rolls_and_its_revert_before_the_roll_does_nothing() {
    let mut world = running(full_node());
    world.cluster.platforms.in_force = 1;
    world.converge();
    assert_eq!(world.deleted(), 1);
    assert_eq!(
        world.status().last_update.unwrap().cause,
        sei_api::status::Cause::Operator,
        "the spec did not change"
    );
}

/// Events that can occur to a node and its environment.
#[derive(Clone, Debug)]
enum Event {
    Pass,
    CrashingPass(usize),
    Move(Move),
    Wait(i64),
    Image(u8),
    Label(u8),
    Platform(u8),
    Evict,
    LoseSidecar,
    Halt(bool),
    WipeStatus,
    PauseUpdates(bool),
    Pause(bool),
    LoseStatefulSet,
    FailConfig(bool),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => Just(Event::Pass),
        3 => (0..12usize).prop_map(Event::CrashingPass),
        3 => Just(Event::Move(Move::Observe)),
        3 => Just(Event::Move(Move::Scale)),
        3 => Just(Event::Move(Move::Kubelet)),
        2 => prop_oneof![Just(1), Just(20), Just(700)].prop_map(Event::Wait),
        3 => (1..5u8).prop_map(Event::Image),
        1 => (0..3u8).prop_map(Event::Label),
        1 => (0..2u8).prop_map(Event::Platform),
        1 => Just(Event::Evict),
        1 => Just(Event::LoseSidecar),
        1 => any::<bool>().prop_map(Event::Halt),
        1 => Just(Event::WipeStatus),
        1 => any::<bool>().prop_map(Event::PauseUpdates),
        1 => any::<bool>().prop_map(Event::Pause),
        1 => Just(Event::LoseStatefulSet),
        1 => any::<bool>().prop_map(Event::FailConfig),
    ]
}

fn apply_event(world: &mut World, event: &Event) {
    match event {
        Event::Pass => drop(world.pass()),
        Event::CrashingPass(calls) => drop(world.pass_crashing_after(*calls)),
        Event::Move(step) => world.step(*step),
        Event::Wait(seconds) => world.wait(*seconds),
        Event::Image(number) => image(world, *number),
        Event::Label(number) => label(world, &number.to_string()),
        Event::Platform(number) => world.cluster.platforms.in_force = usize::from(*number),
        Event::Evict => world.evict(),
        Event::LoseSidecar => {
            world.change_pod(|pod| pod.sidecar_lost = true);
        }
        Event::Halt(halted) => halt(world, *halted),
        Event::WipeStatus => wipe_status(world),
        Event::PauseUpdates(paused) => pause_updates(world, *paused),
        Event::Pause(paused) => world.edit(|spec| spec.paused = Some(*paused)),
        Event::LoseStatefulSet => {
            lose_set(world);
        }
        Event::FailConfig(fails) => {
            for task in ["config-patch", "config-validate"] {
                if *fails {
                    world.cluster.faults.failing_tasks.insert(task.to_owned());
                } else {
                    world.cluster.faults.failing_tasks.remove(task);
                }
            }
        }
    }
}

/// The faults end; the chain may stay halted, and the last edits stay.
fn heal(world: &mut World) {
    pause_updates(world, false);
    world.edit(|spec| spec.paused = Some(false));
    world.cluster.faults.failing_tasks.clear();
    restore_secret(world);
    if world.pod().is_some_and(|pod| pod.sidecar_lost) {
        world.change_pod(sei_model::pod::Pod::restart_sidecar);
    }
    if [3, 4].map(fixture::image).contains(&world.node().spec.image) {
        image(world, 1);
    }
    // A difference whose cause is no longer known waits for an approval.
    let hash = world.rendered().desired.hash.clone();
    world.annotate(annotation::APPROVE_UPDATE, &hash);
    // A node that failed while it was new needs a retry annotation.
    world.annotate(annotation::RETRY, "healed");
}

fn check_convergence(spec: SeiNodeSpec, from_scratch: bool, events: &[Event]) {
    let mut world = if from_scratch { World::new(spec) } else { running(spec) };
    for event in events {
        apply_event(&mut world, event);
    }
    heal(&mut world);
    world.converge();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_last_edit_is_applied_from_every_state(
        events in prop::collection::vec(event(), 0..40),
        signs in any::<bool>(),
        from_scratch in any::<bool>(),
    ) {
        let spec = if signs { validator() } else { full_node() };
        check_convergence(spec, from_scratch, &events);
    }

    #[test]
    fn no_reachable_plan_breaks_a_rule(
        events in prop::collection::vec(event(), 10..60),
        signs in any::<bool>(),
    ) {
        let mut world = World::new(if signs { validator() } else { full_node() });
        for event in &events {
            // Every stored status is checked, including its plan.
            apply_event(&mut world, event);
        }
    }

    #[test]
    fn deciding_again_changes_nothing(
        events in prop::collection::vec(event(), 0..40),
        signs in any::<bool>(),
    ) {
        let mut world = World::new(if signs { validator() } else { full_node() });
        for event in &events {
            apply_event(&mut world, event);
            let (once, twice) = world.decide_twice();
            prop_assert_eq!(once, twice);
        }
    }
}

// P35
#[test]
fn nothing_is_done_in_the_pass_that_builds_a_plan() {
    let mut world = World::new(full_node());
    let trace = world.pass();
    assert_eq!((trace.calls, trace.writes), (1, 1), "{trace:?}");
    assert!(world.status().plan.is_some());
    let mut world = running(full_node());
    image(&mut world, 2);
    let trace = world.pass();
    assert_eq!((trace.calls, trace.writes), (1, 1), "{trace:?}");
}

#[test]
fn a_sidecar_that_never_answers_is_skipped_and_reported() {
    let mut world = running(full_node());
    let first = world.pod().unwrap().view.uid.clone();
    image(&mut world, 2);
    world.pass();
    world.change_pod(|pod| pod.sidecar_lost = true);
    for _ in 0..8 {
        world.pass();
        world.step_all();
        world.wait(5);
    }
    assert_ne!(world.pod().unwrap().view.uid, first, "the update continues without it");
    world.converge();
}

#[test]
fn a_wait_is_counted_from_its_first_observation_and_written_once() {
    let mut world = running(validator());
    lose_secret(&mut world);
    image(&mut world, 2);
    world.pass();
    world.pass();
    let since = world.status().blocked.unwrap().since;
    for _ in 0..10 {
        world.wait(5);
        let trace = world.pass();
        assert_eq!(trace.writes, 0, "{}", trace.report);
    }
    assert_eq!(world.status().blocked.unwrap().since, since);
    world.wait(30);
    world.pass();
    let status = world.status();
    assert!(
        condition::is(&status.conditions, ConditionType::Stalled, ConditionStatus::True),
        "{status:?}"
    );
    for _ in 0..5 {
        world.wait(30);
        assert_eq!(world.pass().writes, 0, "an unchanged status is not written again");
    }
}
