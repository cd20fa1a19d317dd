use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;

use super::*;
use crate::planner::fixture::{full_node, validator};

fn running(spec: SeiNodeSpec) -> World {
    let mut world = World::new(spec);
    world.converge();
    world
}

fn image(world: &mut World, image: &str) {
    world.edit(|spec| spec.image = image.to_owned());
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

/// Runs passes and the environment for some rounds without requiring convergence.
fn run(world: &mut World, rounds: usize) {
    for _ in 0..rounds {
        world.pass();
        for step in [Move::Observe, Move::Kubelet, Move::Scale, Move::Kubelet] {
            world.step(step);
        }
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
        assert!(world.deleted.is_empty());
        assert_eq!(world.status().last_update, None, "no update plan was needed");
    }
}

#[test]
fn an_image_bump_restarts_the_pod_once() {
    let mut world = running(full_node());
    image(&mut world, "seid:2");
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_label_alone_restarts_the_pod_once() {
    let mut world = running(full_node());
    label(&mut world, "core");
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_bump_and_its_revert_end_on_the_old_image_healthy_halted_unpullable_and_crashing() {
    type Trouble = fn(&mut World);
    let unpullable: Trouble = |world| {
        world.unpullable.insert("seid:2".to_owned());
    };
    let troubles: [(Trouble, usize); 5] = [
        (|_| {}, 2),
        (|world| world.halted = true, 2),
        // The old pod runs on.
        (unpullable, 0),
        // The new image is tried on a node that is down.
        (
            |world| {
                world.unpullable.insert("seid:2".to_owned());
                world.halted = true;
            },
            2,
        ),
        (
            |world| {
                world.crashing.insert("seid:2".to_owned());
            },
            2,
        ),
    ];
    for (trouble, deleted) in troubles {
        let mut world = running(full_node());
        trouble(&mut world);
        image(&mut world, "seid:2");
        // Longer than the new image is awaited on a node that is down.
        run(&mut world, 20);
        image(&mut world, "seid:1");
        world.converge();
        assert_eq!(world.deleted.len(), deleted, "there and back");
    }
}

#[test]
fn an_image_that_cannot_be_pulled_leaves_the_pod_alone_until_it_is_corrected() {
    let mut world = running(validator());
    let first = world.pod.clone().unwrap().uid;
    world.unpullable.insert("seid:2".to_owned());
    image(&mut world, "seid:2");
    run(&mut world, 40);
    assert_eq!(world.pod.as_ref().unwrap().uid, first);
    assert_eq!(world.statefulset.as_ref().unwrap().generation, 1, "an eviction restores what ran");
    let status = world.status();
    let stalled = condition::find(&status.conditions, ConditionType::Stalled).unwrap();
    assert_eq!((stalled.reason.as_str(), world.deleted.len()), ("ImageNotPullable", 0));
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod.as_ref().unwrap().image(), "seid:1");
    assert_eq!(world.deleted.len(), 0);
    image(&mut world, "seid:4");
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_hold_ends_when_the_image_becomes_pullable() {
    let mut world = running(full_node());
    world.unpullable.insert("seid:2".to_owned());
    image(&mut world, "seid:2");
    run(&mut world, 10);
    world.unpullable.clear();
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_halted_node_is_replaced_at_once() {
    let mut world = running(validator());
    world.halted = true;
    image(&mut world, "seid:2");
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_bad_first_image_is_fixed_by_an_edit() {
    let mut world = World::new(full_node());
    world.unpullable.insert("seid:1".to_owned());
    run(&mut world, 10);
    assert_eq!(world.status().current_image, None, "nothing ran, nothing is recorded");
    image(&mut world, "seid:2");
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_revert_before_the_pod_was_replaced_restarts_nothing_even_when_it_is_evicted() {
    let mut world = running(full_node());
    let first = world.pod.clone().unwrap().uid;
    image(&mut world, "seid:2");
    // Until the template is applied, and no further.
    while world.statefulset.as_ref().unwrap().generation == 1 {
        world.pass_crashing_after(usize::MAX);
        world.step(Move::Kubelet);
    }
    image(&mut world, "seid:1");
    run(&mut world, 4);
    assert_eq!(world.pod.as_ref().unwrap().uid, first);
    assert!(world.deleted.is_empty());
    world.evict();
    world.converge();
    assert!(world.deleted.is_empty());
    assert_ne!(world.pod.as_ref().unwrap().uid, first);
}

#[test]
fn an_evicted_node_returns_with_its_gate_open() {
    let mut world = running(full_node());
    world.evict();
    world.converge();
    assert!(world.deleted.is_empty());
}

#[test]
fn a_closed_gate_is_opened_by_one_plan() {
    let mut world = running(full_node());
    world.pod.as_mut().unwrap().gate_open = false;
    world.pass();
    assert!(world.status().plan.is_some());
    world.pass();
    assert!(world.pod.as_ref().unwrap().gate_open);
    assert_eq!(world.status().plan, None, "the opened gate is recorded as open");
}

#[test]
fn a_wiped_status_restarts_nothing() {
    let mut world = running(full_node());
    world.node.status = None;
    world.converge();
    assert!(world.deleted.is_empty());
}

#[test]
fn a_forged_hash_does_not_prevent_the_replacement() {
    for passes in 0..8 {
        let mut world = running(full_node());
        image(&mut world, "seid:2");
        run(&mut world, passes);
        let desired = crate::planner::fixture::desired(&world.node.spec, &world.platform).hash;
        world.node.status.as_mut().unwrap().pod_template_hash = Some(desired);
        world.converge();
        assert_eq!(world.deleted.len(), 1, "forged after {passes} passes");
    }
}

#[test]
fn a_forged_current_image_is_corrected_without_a_restart() {
    let mut world = running(full_node());
    world.node.status.as_mut().unwrap().current_image = Some("seid:9".to_owned());
    world.converge();
    assert!(world.deleted.is_empty());
}

#[test]
fn a_sidecar_lost_at_any_task_never_blocks_the_update() {
    // The number of calls after which the sidecar is lost: every point of an update.
    for calls in 0..16 {
        let mut world = running(full_node());
        image(&mut world, "seid:2");
        world.pass();
        world.pass_crashing_after(calls);
        if let Some(pod) = world.pod.as_mut() {
            pod.sidecar_lost = true;
        }
        run(&mut world, 8);
        // A sidecar lost on the new pod itself returns with the container.
        if let Some(pod) = world.pod.as_mut() {
            pod.sidecar_lost = false;
        }
        world.converge();
        assert_eq!(world.deleted.len(), 1, "after {calls} calls");
    }
}

#[test]
fn crashing_after_any_call_ends_in_the_same_world() {
    for calls in 0..40 {
        let mut world = running(validator());
        image(&mut world, "seid:2");
        let mut left = calls;
        while left > 0 {
            let trace = world.pass_crashing_after(left);
            left = left.saturating_sub(trace.calls.max(1));
            for step in [Move::Observe, Move::Kubelet, Move::Scale, Move::Kubelet] {
                world.step(step);
            }
        }
        world.converge();
        assert_eq!(world.deleted.len(), 1, "after {calls} calls");
    }
}

#[test]
fn crashing_after_any_call_of_a_deletion_ends_in_the_same_world() {
    for calls in 0..8 {
        let mut world = running(validator());
        world.node.metadata.deletion_timestamp = Some(Time(world.now));
        world.pass_crashing_after(calls);
        world.pass();
        let held = world.node.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
        assert!(held && world.claim.is_some(), "its pod may still sign");
        for step in [Move::Observe, Move::Scale, Move::Kubelet] {
            world.step(step);
        }
        assert!(world.pod.is_none(), "its pod was stopped");
        world.pass();
        assert!(world.claim.is_some(), "the volume of a signer is retained");
        assert_eq!(world.node.metadata.finalizers.as_deref(), Some([].as_slice()));
        assert_eq!(world.status().phase, Some(SeiNodePhase::Terminating));
        assert!(world.deleted.is_empty(), "its pod is left to the StatefulSet controller");
    }
}

/// A younger node with the same signing key.
fn rival(world: &World) -> SeiNode {
    let mut rival = world.node.clone();
    let (name, uid) = ("rival".to_owned(), "rival-uid".to_owned());
    rival.metadata.name = Some(name);
    rival.metadata.uid = Some(uid);
    rival.metadata.creation_timestamp = Some(Time(world.now));
    rival
}

#[test]
fn crashing_after_any_call_never_starts_a_signer_beside_another() {
    for calls in 0..40 {
        let mut world = World::new(validator());
        world.node.metadata.creation_timestamp = Some(Time(fixture::at(-1)));
        world.rival = Some(rival(&world));
        world.rival_started = true;
        world.pass_crashing_after(calls);
        run(&mut world, 8);
        assert_eq!(world.statefulset, None, "after {calls} calls");
        // The rival is deleted, and its last pod has ended.
        (world.rival, world.rival_started) = (None, false);
        world.converge();
    }
}

#[test]
fn an_eviction_while_an_update_waits_opens_the_gate_again() {
    let mut world = running(validator());
    world.signing_secret_missing = true;
    image(&mut world, "seid:2");
    run(&mut world, 3);
    world.evict();
    run(&mut world, 8);
    assert!(
        world.pod.as_ref().unwrap().gate_open,
        "the gate of the old pod is open while the update waits"
    );
    assert!(world.deleted.is_empty());
    world.signing_secret_missing = false;
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn a_bad_configuration_fails_only_on_the_new_pod_and_backs_off() {
    let mut world = running(full_node());
    world.failing.insert("config-validate".to_owned());
    image(&mut world, "seid:2");
    run(&mut world, 8);
    let status = world.status();
    assert_eq!(world.deleted.len(), 1, "a failure on the old pod does not block the new image");
    let pending = status.pending_update.expect("still pending");
    assert!(pending.attempts.unwrap_or(0) >= 1, "{pending:?}");
    world.failing.clear();
    world.converge();
    assert_eq!(world.deleted.len(), 1, "a retry restarts nothing");
}

#[test]
fn paused_updates_hold_and_an_eviction_restores_the_running_template() {
    let mut world = running(full_node());
    pause_updates(&mut world, true);
    image(&mut world, "seid:2");
    run(&mut world, 3);
    assert_eq!(drift_reason(&world), "Paused");
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod.as_ref().unwrap().image(), "seid:1");
    assert!(world.pod.as_ref().unwrap().gate_open);
    pause_updates(&mut world, false);
    world.converge();
    assert_eq!(world.deleted.len(), 1);
}

#[test]
fn pausing_after_the_apply_restores_the_running_template() {
    let mut world = running(full_node());
    image(&mut world, "seid:2");
    world.pass();
    while world.statefulset.as_ref().unwrap().generation == 1 {
        world.pass();
        world.step(Move::Kubelet);
    }
    assert!(world.deleted.is_empty(), "the controller has not observed it yet");
    pause_updates(&mut world, true);
    run(&mut world, 4);
    world.evict();
    run(&mut world, 5);
    assert_eq!(world.pod.as_ref().unwrap().image(), "seid:1");
    assert!(world.deleted.is_empty());
    pause_updates(&mut world, false);
    world.converge();
}

#[test]
fn a_stopped_node_starts_with_the_newest_template() {
    let mut world = running(full_node());
    world.edit(|spec| spec.paused = Some(true));
    run(&mut world, 3);
    assert!(world.pod.is_none(), "paused means no pod");
    image(&mut world, "seid:2");
    run(&mut world, 3);
    world.edit(|spec| spec.paused = Some(false));
    world.converge();
    assert!(world.deleted.is_empty(), "the first pod is already the right one");
}

#[test]
fn a_deleted_statefulset_is_created_again() {
    let mut world = running(full_node());
    world.statefulset = None;
    world.pod = None;
    world.converge();
    assert!(world.deleted.is_empty());
}

#[test]
fn manually_changed_replicas_and_strategy_are_repaired() {
    let mut world = running(full_node());
    let set = world.statefulset.as_mut().unwrap();
    set.replicas = Some(2);
    set.on_delete = false;
    run(&mut world, 3);
    let set = world.statefulset.as_ref().unwrap();
    assert_eq!((set.replicas, set.on_delete), (Some(1), true));
    assert!(world.deleted.is_empty());
}

#[test]
fn a_lost_volume_is_never_replaced_without_approval() {
    for spec in [full_node(), validator()] {
        let signs = spec.signs();
        let mut world = running(spec);
        let lost = world.claim.take().unwrap();
        world.evict();
        run(&mut world, 6);
        assert_eq!(world.claim, None, "nothing is recreated");
        let replicas = world.statefulset.as_ref().unwrap().replicas;
        assert_eq!(replicas, Some(i32::from(!signs)), "a node that signs is held at zero");
        let approval = BTreeMap::from([(annotation::RECREATE_VOLUME.to_owned(), lost)]);
        world.node.metadata.annotations = Some(approval);
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
                image(&mut world, "seid:2");
            }
            run(&mut world, passes);
            let Some(lost) = world.claim.take() else { continue };
            world.evict();
            run(&mut world, 3);
            assert_eq!(world.claim, None, "nothing is recreated");
            let conditions = world.status().conditions;
            let stalled = condition::find(&conditions, ConditionType::Stalled).unwrap();
            assert_eq!(stalled.reason, "DataVolumeLost", "after {passes} passes");
            let approval = BTreeMap::from([(annotation::RECREATE_VOLUME.to_owned(), lost)]);
            world.node.metadata.annotations = Some(approval);
            world.converge();
        }
    }
}

#[test]
fn a_platform_change_rolls_and_its_revert_before_the_roll_does_nothing() {
    let mut world = running(full_node());
    world.platform = "b".to_owned();
    world.converge();
    assert_eq!(world.deleted.len(), 1);
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
    TakeSlot(bool),
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
        1 => any::<bool>().prop_map(Event::TakeSlot),
    ]
}

/// Image 3 cannot be pulled and image 4 crashes.
fn broken_images(world: &mut World) {
    world.unpullable.insert("seid:3".to_owned());
    world.crashing.insert("seid:4".to_owned());
}

fn apply_event(world: &mut World, event: &Event) {
    match event {
        Event::Pass => drop(world.pass()),
        Event::CrashingPass(calls) => drop(world.pass_crashing_after(*calls)),
        Event::Move(step) => world.step(*step),
        Event::Wait(seconds) => world.wait(*seconds),
        Event::Image(number) => image(world, &format!("seid:{number}")),
        Event::Label(number) => label(world, &number.to_string()),
        Event::Platform(number) => world.platform = number.to_string(),
        Event::Evict => world.evict(),
        Event::LoseSidecar => {
            if let Some(pod) = world.pod.as_mut() {
                pod.sidecar_lost = true;
            }
        }
        Event::Halt(halted) => world.halted = *halted,
        Event::TakeSlot(taken) => world.slot_taken = *taken,
        Event::WipeStatus => world.node.status = None,
        Event::PauseUpdates(paused) => pause_updates(world, *paused),
        Event::Pause(paused) => world.edit(|spec| spec.paused = Some(*paused)),
        Event::LoseStatefulSet => {
            // The garbage collector deletes its pod too.
            world.statefulset = None;
            world.pod = None;
        }
        Event::FailConfig(fails) => {
            for task in ["config-patch", "config-validate"] {
                if *fails {
                    world.failing.insert(task.to_owned());
                } else {
                    world.failing.remove(task);
                }
            }
        }
    }
}

/// The faults end; the chain may stay halted, and the last edits stay.
fn heal(world: &mut World) {
    pause_updates(world, false);
    world.edit(|spec| spec.paused = Some(false));
    world.failing.clear();
    world.signing_secret_missing = false;
    world.slot_taken = false;
    if let Some(pod) = world.pod.as_mut() {
        // The kubelet restarts the container; its memory is empty.
        pod.gate_open &= !pod.sidecar_lost;
        pod.sidecar_lost = false;
    }
    if ["seid:3", "seid:4"].contains(&world.node.spec.image.as_str()) {
        image(world, "seid:1");
    }
    // A difference whose cause is no longer known waits for an approval.
    let desired = fixture::desired(&world.node.spec, &world.platform);
    // A node that failed while it was new needs a retry annotation.
    let annotations = BTreeMap::from([
        (annotation::APPROVE_UPDATE.to_owned(), desired.hash),
        (annotation::RETRY.to_owned(), "healed".to_owned()),
    ]);
    world.node.metadata.annotations = Some(annotations);
}

fn check_convergence(spec: SeiNodeSpec, from_scratch: bool, events: &[Event]) {
    let mut world = if from_scratch { World::new(spec) } else { running(spec) };
    broken_images(&mut world);
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
        broken_images(&mut world);
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
        broken_images(&mut world);
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
    assert_eq!((trace.requests.len(), trace.writes), (0, 1), "{trace:?}");
    assert!(world.status().plan.is_some());
    let mut world = running(full_node());
    image(&mut world, "seid:2");
    let trace = world.pass();
    assert_eq!((trace.requests.len(), trace.writes), (0, 1), "{trace:?}");
}

#[test]
fn a_sidecar_that_never_answers_is_skipped_and_reported() {
    let mut world = running(full_node());
    let first = world.pod.clone().unwrap().uid;
    image(&mut world, "seid:2");
    world.pass();
    world.pod.as_mut().unwrap().sidecar_lost = true;
    for _ in 0..8 {
        world.pass();
        for step in [Move::Observe, Move::Kubelet, Move::Scale, Move::Kubelet] {
            world.step(step);
        }
        world.wait(5);
    }
    assert_ne!(world.pod.as_ref().unwrap().uid, first, "the update continues without it");
    world.converge();
}

#[test]
fn a_wait_is_counted_from_its_first_observation_and_written_once() {
    let mut world = running(validator());
    world.signing_secret_missing = true;
    image(&mut world, "seid:2");
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
