//! Which node rolls next, and which nodes wait.

use std::fmt::Write as _;

use expect_test::{Expect, expect};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use sei_api::condition::{Reason, Verdict};
use sei_api::status::UpdateOutcome;

use super::*;
use crate::planner::fixture::{self, at, full_node, running, validator};
use crate::planner::{PlanMove, plan};

fn budget(limit: usize) -> Budget {
    let (ready_deadline, outage) = (Duration::from_secs(600), Duration::from_secs(300));
    let min_ready = Duration::from_secs(10);
    Budget { limit, images: Share::Nodes(1), halt_after: 1, ready_deadline, min_ready, outage }
}

/// One node per line: name, `signs` or `serves`, `up` or `out`, and its standing. Compares the slot
/// that the budget returns for each waiting node.
fn check(limit: usize, chain: &str, expected: &Expect) {
    let members: Vec<Member> = chain.lines().map(member).collect();
    let mut report = String::new();
    for (index, me) in members.iter().enumerate() {
        if me.standing != Standing::Waits {
            continue;
        }
        let mut rest = members.clone();
        rest.remove(index);
        let slot = grant(me, Roll::Template, &rest, &budget(limit));
        writeln!(report, "{}: {slot:?}", me.name).unwrap();
    }
    writeln!(report, "next: {}", next(&members, &budget(limit)).join(" ")).unwrap();
    expected.assert_eq(&report);
}

fn member(line: &str) -> Member {
    let fields: Vec<_> = line.split_whitespace().collect();
    let standing = match fields[3] {
        "unknown" => Standing::Unknown,
        "idle" => Standing::Idle,
        "waits" => Standing::Waits,
        "rolls" => Standing::Rolls,
        "down" => Standing::Down,
        "failed" => Standing::Failed,
        standing => panic!("no standing {standing}"),
    };
    let (signs, is_out) = (fields[1] == "signs", fields[2] == "out");
    Member { name: fields[0].to_owned(), signs, is_out, is_provisional: false, standing }
}

#[test]
fn no_slot_is_granted_before_every_node_of_the_chain_was_reconciled() {
    check(
        1,
        "a serves up waits
         b serves up unknown",
        &expect![[r"
            a: InLine { limit: 1 }
            next: a
        "]],
    );
}

#[test]
fn nodes_that_sign_roll_last() {
    check(
        1,
        "a signs up waits
         b serves up waits
         c serves up waits",
        &expect![[r"
            a: InLine { limit: 1 }
            b: Granted
            c: InLine { limit: 1 }
            next: b c
        "]],
    );
}

#[test]
fn a_slot_is_held_until_its_node_is_ready() {
    check(
        1,
        "a serves out rolls
         b serves up waits
         c signs up waits",
        &expect![[r#"
            b: Taken { by: "a rolls" }
            c: InLine { limit: 1 }
            next: b c
        "#]],
    );
}

#[test]
fn signers_wait_beside_a_free_slot_until_the_other_nodes_have_rolled() {
    check(
        2,
        "a serves out rolls
         b signs up waits
         c signs up waits",
        &expect![[r"
            b: InLine { limit: 2 }
            c: InLine { limit: 2 }
            next: b c
        "]],
    );
}

#[test]
fn a_signer_that_is_down_takes_a_slot() {
    check(
        2,
        "a signs out down
         b serves up waits
         c serves up waits",
        &expect![[r"
            b: Granted
            c: InLine { limit: 2 }
            next: b c
        "]],
    );
}

#[test]
fn a_failed_roll_halts_all_waiting_nodes() {
    check(
        3,
        "a serves out failed
         b serves up waits
         c signs up waits",
        &expect![[r#"
            b: Halted { by: "a" }
            c: Halted { by: "a" }
            next: b c
        "#]],
    );
}

#[test]
fn a_node_that_is_down_for_long_loses_nothing_and_waits_for_no_slot() {
    check(
        1,
        "a serves up rolls
         b serves out waits
         c signs out waits
         d serves up waits",
        &expect![[r#"
            b: GrantedWhileDown
            c: GrantedWhileDown
            d: InLine { limit: 1 }
            next: b d
        "#]],
    );
}

#[test]
fn a_change_that_has_just_failed_is_not_granted_again() {
    check(
        1,
        "a serves out failed
         b serves out waits
         c signs out waits",
        &expect![[r#"
            b: Halted { by: "a" }
            c: Halted { by: "a" }
            next: b c
        "#]],
    );
}

#[test]
fn a_node_with_a_slot_keeps_it() {
    let failed = member("a serves up failed");
    let rest = [member("b serves up failed"), member("c serves up waits")];
    assert_eq!(grant(&failed, Roll::Template, &rest, &budget(1)), Slot::Granted);
}

proptest! {
    /// In any order of requests: with each grant counted before the next request, no more nodes
    /// have slots than the limit allows, and no signer rolls while another node waits.
    #[test]
    fn grants_never_exceed_the_budget(
        signs in prop::collection::vec(any::<bool>(), 1..8),
        order in Just((0..8usize).collect::<Vec<_>>()).prop_shuffle(),
        limit in 1..4usize,
    ) {
        let mut members: Vec<Member> = signs
            .iter()
            .enumerate()
            .map(|(at, signs)| Member {
                name: format!("n{at}"),
                signs: *signs,
                is_out: false,
                is_provisional: false,
                standing: Standing::Waits,
            })
            .collect();
        let requests: Vec<_> = order.into_iter().filter(|at| *at < members.len()).collect();
        for at in requests.iter().chain(&requests) {
            let mut rest = members.clone();
            let me = rest.remove(*at);
            if me.standing == Standing::Waits
                && grant(&me, Roll::Template, &rest, &budget(limit)) == Slot::Granted
            {
                let serves = |member: &Member| !member.signs;
                prop_assert!(!me.signs || !rest.iter().any(serves));
                members[*at].standing = Standing::Rolls;
            }
        }
        let rolling = members.iter().filter(|member| member.standing == Standing::Rolls).count();
        prop_assert!(rolling <= limit);
        let serving = members.iter().filter(|member| !member.signs).count();
        let able = if serving == 0 { members.len() } else { serving };
        prop_assert!(rolling == limit.min(able), "no node waits while a slot is free");
    }
}

/// A running node whose last roll held a slot and ended at second 0.
fn rolled(spec: sei_api::SeiNodeSpec) -> crate::snapshot::Snapshot {
    running(spec).with(|seen| {
        let status = seen.status_mut();
        status.last_update = Some(LastUpdate {
            plan_id: "p".into(),
            cause: sei_api::status::Cause::Operator,
            from: None,
            to: None,
            started_at: None,
            finished_at: Time(at(0)),
            outcome: UpdateOutcome::Complete,
            detail: None,
            slot: Some(true),
            ready_at: None,
        });
        seen.now = at(0);
    })
}

fn standing(seen: &crate::snapshot::Snapshot) -> Standing {
    Member::of(&seen.node, seen.pod(), &budget(1), seen.now).standing
}

#[test]
fn no_node_waits_behind_one_that_is_hands_off() {
    let mut queued = running(full_node());
    let pending = serde_json::json!({
        "targetHash": "v1:new", "baseInputsHash": "v1:base", "cause": "Operator",
        "state": "Queued", "since": "2026-01-01T00:00:00Z", "changes": [],
    });
    queued.status_mut().pending_update = serde_json::from_value(pending).unwrap();
    queued.store(queued.status.clone());
    assert_eq!(standing(&queued), Standing::Waits);
    let annotations = queued.node.metadata.annotations.get_or_insert_default();
    annotations.insert("sei.io/hands-off".to_owned(), "true".to_owned());
    assert_eq!(standing(&queued), Standing::Idle);
}

#[test]
fn a_slot_ends_with_ready_and_fails_by_its_deadline() {
    let unready = |seen: crate::snapshot::Snapshot| seen.with(|seen| seen.pods[0].ready = false);
    assert_eq!(standing(&rolled(full_node())), Standing::Idle);
    assert_eq!(standing(&unready(rolled(full_node()))), Standing::Rolls);
    let late = unready(rolled(full_node())).with(|seen| seen.now = at(600));
    assert_eq!(standing(&late), Standing::Failed);
    assert_eq!(
        standing(&late.with(|seen| seen.pods[0].ready = true)),
        Standing::Idle,
        "late Ready"
    );
    let stalled = unready(rolled(full_node())).with(|seen| {
        let verdict = Verdict::new(
            ConditionType::Stalled,
            ConditionStatus::True,
            Reason::ImagePullFailed,
            "x",
        );
        condition::set(&mut seen.status_mut().conditions, &verdict, 1, at(0));
    });
    assert_eq!(standing(&stalled), Standing::Failed);
    let older = rolled(full_node()).with(|seen| seen.pods[0].revision = Some("rev-0".into()));
    assert_eq!(standing(&older), Standing::Rolls, "a pod older than the roll does not count");
    let released = unready(rolled(full_node()))
        .with(|seen| seen.status_mut().last_update.as_mut().unwrap().ready_at = Some(Time(at(0))));
    assert_eq!(standing(&released), Standing::Idle, "a later outage is not our roll");
}

#[test]
fn a_signer_that_ran_counts_as_down_without_its_pod_and_a_new_one_does_not() {
    let down = running(validator()).with(|seen| seen.pods[0].ready = false);
    assert_eq!(standing(&down), Standing::Down);
    let missing = running(validator()).with(|seen| seen.pods.clear());
    assert_eq!(standing(&missing), Standing::Down);
    assert_eq!(standing(&fixture::new_node(validator())), Standing::Idle);
    assert_eq!(standing(&running(validator())), Standing::Idle);
}

#[test]
fn a_plan_with_a_slot_holds_it_from_its_start_and_fails_with_its_attempts() {
    let changed = running(full_node()).platform("b");
    let PlanMove::Start(started) = plan(&changed).plan else { panic!("starts") };
    assert_eq!(started.target.as_ref().unwrap().slot, Some(true));
    let rolling = changed.with(|seen| {
        let status = seen.status_mut();
        status.plan = Some(*started.clone());
    });
    assert_eq!(standing(&rolling), Standing::Rolls);
    let again = rolling.clone().with(|seen| {
        let decided = plan(&running(full_node()).platform("b"));
        let mut pending = decided.pending_update.unwrap();
        pending.attempts = Some(1);
        seen.status_mut().pending_update = Some(pending);
    });
    assert_eq!(standing(&again), Standing::Failed);
}

#[test]
fn being_ready_again_is_recorded_once() {
    let decision = plan(&rolled(full_node()));
    let recorded = decision.last_update.unwrap();
    assert_eq!(recorded.ready_at, Some(Time(at(0))));
    let after = rolled(full_node()).with(|seen| seen.status_mut().last_update = Some(recorded));
    assert_eq!(plan(&after).last_update, None);
    let unready = rolled(full_node()).with(|seen| seen.pods[0].ready = false);
    let decision = plan(&unready);
    assert_eq!(decision.last_update, None);
    assert!(decision.requeue <= Some(Duration::from_secs(1800)), "reconciled at the deadline");
}

#[test]
fn a_slot_is_released_after_the_node_was_ready_for_a_while() {
    let young = rolled(full_node()).with(|seen| {
        seen.now = at(100);
        seen.pods[0].ready_since = Some(at(95));
    });
    assert_eq!(standing(&young), Standing::Rolls);
    let decision = plan(&young);
    assert_eq!(decision.last_update, None);
    assert_eq!(decision.requeue, Some(Duration::from_secs(5)), "reconciled when it counts");
    let crashed = young.clone().with(|seen| seen.pods[0].ready = false);
    assert_eq!(standing(&crashed), Standing::Rolls, "a short Ready releases nothing");
    let lasting = young.clone().with(|seen| seen.now = at(105));
    assert_eq!(standing(&lasting), Standing::Idle);
    assert!(plan(&lasting).last_update.unwrap().ready_at.is_some());
    // The clock of the machine is ahead.
    let ahead = young.with(|seen| seen.pods[0].ready_since = Some(at(3000)));
    assert_eq!(standing(&ahead), Standing::Idle);
    assert!(plan(&ahead).last_update.is_some());
}

#[test]
fn a_slot_that_was_not_released_continues_with_the_next_roll() {
    let broken = rolled(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.pods[0].ready = false);
    let PlanMove::Start(next) = plan(&broken).plan else { panic!("starts") };
    assert_eq!(next.target.unwrap().slot, Some(true));
    let healthy = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let PlanMove::Start(next) = plan(&healthy).plan else { panic!("starts") };
    assert_eq!(next.target.unwrap().slot, Some(true), "it was granted");
    let down = healthy.with(|seen| seen.pods[0].ready = false);
    let PlanMove::Start(next) = plan(&down).plan else { panic!("starts") };
    assert_eq!(next.target.unwrap().slot, None, "a node that is down takes no slot");
}

#[test]
fn a_node_that_cannot_be_updated_is_dequeued() {
    let queued =
        running(full_node()).platform("b").with(|seen| seen.slot = Some(Slot::InLine { limit: 1 }));
    let status = {
        let mut status = queued.status().clone();
        plan(&queued).apply(&mut status, 1, queued.now);
        status
    };
    let waits = queued.clone().with(|seen| seen.store(status.clone()));
    assert_eq!(standing(&waits), Standing::Waits);
    let refused = waits.with(|seen| seen.desired = Err("spec.image is bad".into()));
    let pending = plan(&refused).pending_update.unwrap();
    assert_eq!(pending.state, UpdateState::Held);
    assert!(pending.reason.unwrap().contains("spec.image is bad"));
}

#[test]
fn a_node_that_is_unready_for_a_short_time_is_not_down() {
    let since = |seconds: i64| {
        let seen = running(full_node()).with(|seen| {
            seen.pods[0].ready = false;
            seen.pods[0].ready_since = Some(at(0));
            seen.now = at(seconds);
        });
        Member::of(&seen.node, seen.pod(), &budget(1), seen.now).is_out
    };
    assert!(!since(299) && since(300));
    let never = running(full_node()).with(|seen| seen.pods[0].ready = false);
    assert!(
        !Member::of(&never.node, never.pod(), &budget(1), never.now).is_out,
        "its last Ready time is unknown"
    );
}

#[test]
fn a_refused_edit_of_the_chain_moves_no_node_to_another_budget() {
    let edited = running(full_node()).edit(|spec| spec.chain_id = "edited".into());
    let chain = |scope| chain_of(&edited.node, edited.statefulset.as_deref(), scope);
    assert_eq!(chain(BudgetScope::Cluster), "demo-1");
    assert_eq!(chain(BudgetScope::Namespace), "ns/demo-1");
    let foreign = edited.clone().with(|seen| seen.statefulset.as_mut().unwrap().controller = None);
    let chain = chain_of(&foreign.node, foreign.statefulset.as_deref(), BudgetScope::Cluster);
    assert_eq!(chain, "edited", "the StatefulSet of another owner is not what it runs");
    assert_eq!(chain_of(&edited.node, None, BudgetScope::Cluster), "edited");
}

#[test]
fn no_node_waits_for_a_stopped_or_held_node() {
    let unready = |seen: crate::snapshot::Snapshot| {
        seen.with(|seen| {
            seen.pods[0].ready = false;
            seen.now = at(601);
        })
    };
    let stopped = unready(rolled(full_node())).edit(|spec| spec.paused = Some(true));
    assert_eq!(standing(&stopped), Standing::Idle);
    assert!(plan(&stopped).last_update.unwrap().ready_at.is_some(), "its slot is released");
    let standby = running(validator()).edit(|spec| spec.paused = Some(true));
    assert_eq!(standing(&standby.with(|seen| seen.pods.clear())), Standing::Idle);
    let failed = rolled(full_node()).platform("b").with(|seen| {
        let mut pending = plan(&running(full_node()).platform("b")).pending_update.unwrap();
        pending.attempts = Some(1);
        pending.state = UpdateState::Retrying;
        seen.status_mut().pending_update = Some(pending);
    });
    assert_eq!(standing(&failed), Standing::Failed);
    let held = failed.with(|seen| {
        seen.status_mut().pending_update.as_mut().unwrap().state = UpdateState::Held;
    });
    assert_eq!(standing(&held), Standing::Idle);
}

/// A node that is down and rolls although no slot was free; its pod is not replaced yet.
fn rolling_while_down() -> crate::snapshot::Snapshot {
    let down = running(full_node()).platform("b").with(|seen| {
        seen.pods[0].ready = false;
        seen.slot = Some(Slot::GrantedWhileDown);
    });
    let PlanMove::Start(started) = plan(&down).plan else { panic!("starts") };
    let target = started.target.as_ref().unwrap();
    assert_eq!((target.slot, target.slot_while_down), (Some(true), Some(true)));
    down.with(|seen| seen.status_mut().plan = Some(*started.clone()))
}

#[test]
fn a_roll_without_a_free_slot_requests_one_if_its_node_is_ready_before_its_pod_is_deleted() {
    let down = rolling_while_down().with(|seen| seen.slot = None);
    assert_eq!(standing(&down), Standing::Rolls);
    assert!(matches!(plan(&down).plan, PlanMove::Keep), "it continues while it is down");
    let back = down.with(|seen| seen.pods[0].ready = true);
    assert_eq!(standing(&back), Standing::Idle, "it holds no slot, neither for itself");
    let me = Member::of(&back.node, back.pod(), &budget(1), back.now);
    let rest = [member("b serves up rolls")];
    let slot = grant(&me, Roll::Template, &rest, &budget(1));
    assert_eq!(slot, Slot::Taken { by: "b rolls".into() });
    assert_eq!(plan(&back).asks_slot, Some(Roll::Template));
    let refused = back.clone().with(|seen| seen.slot = Some(slot.clone()));
    let decision = plan(&refused);
    assert!(matches!(decision.plan, PlanMove::Clear), "{:?}", decision.plan);
    assert_eq!(decision.pending_update.unwrap().state, UpdateState::Queued);
    assert_eq!(decision.last_update.unwrap().slot, None, "no slot stays with it");
    let granted = back.with(|seen| seen.slot = Some(Slot::Granted));
    let PlanMove::Start(next) = plan(&granted).plan else { panic!("rolls in its turn") };
    let target = next.target.unwrap();
    assert_eq!((target.slot, target.slot_while_down), (Some(true), None));
}

#[test]
fn a_roll_without_a_free_slot_holds_one_once_its_pod_is_replaced() {
    let replaced = rolling_while_down().with(|seen| {
        let tasks = &mut seen.status_mut().plan.as_mut().unwrap().tasks;
        let replace = tasks.iter_mut().find(|task| task.r#type == "replace-pod").unwrap();
        replace.status = sei_api::plan::TaskStatus::Complete;
        seen.pods[0].ready = true;
    });
    assert_eq!(standing(&replaced), Standing::Rolls);
    let me = Member::of(&replaced.node, replaced.pod(), &budget(1), replaced.now);
    let rest = [member("b serves up rolls")];
    assert_eq!(grant(&me, Roll::Template, &rest, &budget(1)), Slot::Granted, "it keeps its slot");
}

#[test]
fn a_roll_without_a_free_slot_that_resumes_late_still_has_none() {
    let failed = rolling_while_down().with(|seen| {
        let early = seen.status_mut().plan.as_mut().unwrap();
        let index = early.tasks.iter().position(|task| task.r#type == "config-validate").unwrap();
        early.phase = sei_api::plan::PlanPhase::Failed;
        early.failed_task_index = i32::try_from(index).ok();
        seen.pods[0].ready = true;
    });
    let PlanMove::Start(late) = plan(&failed).plan else { panic!("resumes") };
    assert_eq!(late.target.unwrap().slot_while_down, Some(true));
}

#[test]
fn an_update_that_resumes_late_keeps_its_slot() {
    let changed = running(full_node()).platform("b");
    let PlanMove::Start(started) = plan(&changed).plan else { panic!("starts") };
    let failed = changed.with(|seen| {
        let mut early = *started.clone();
        let index = early.tasks.iter().position(|task| task.r#type == "config-validate").unwrap();
        early.phase = sei_api::plan::PlanPhase::Failed;
        early.failed_task_index = i32::try_from(index).ok();
        seen.status_mut().plan = Some(early);
    });
    let PlanMove::Start(late) = plan(&failed).plan else { panic!("resumes") };
    assert_eq!(late.target.unwrap().slot, Some(true));
}

#[test]
fn a_roll_that_is_superseded_before_its_pod_was_observed_releases_its_slot() {
    let mut paused = rolled(full_node());
    let last = paused.status_mut().last_update.as_mut().unwrap();
    last.outcome = sei_api::status::UpdateOutcome::Superseded;
    paused.status_mut().pod_template = None;
    paused.pods[0].ready = true;
    assert_eq!(standing(&paused), Standing::Idle);
    paused.pods[0].ready = false;
    assert_ne!(standing(&paused), Standing::Idle);
}

#[test]
fn images_roll_within_their_own_limit() {
    let chain = |count: usize| -> Vec<Member> {
        (0..count)
            .map(|index| member(&format!("rpc-{index:02} serves up waits")))
            .chain([member("val-0 signs up waits")])
            .collect()
    };
    let granted = |images: Share, count: usize| {
        let budget = Budget { images, ..budget(1) };
        let mut members = chain(count);
        let mut granted = 0;
        for index in 0..members.len() {
            let mut rest = members.clone();
            let me = rest.remove(index);
            if grant(&me, Roll::Image, &rest, &budget) == Slot::Granted {
                assert!(!me.signs, "a node that signs rolls after the others");
                members[index].standing = Standing::Rolls;
                granted += 1;
            }
        }
        granted
    };
    assert_eq!(granted(Share::Percent(25), 12), 3);
    assert_eq!(granted(Share::Percent(25), 2), 1, "at least one");
    assert_eq!(granted(Share::Nodes(5), 12), 5);
    // Nodes that sign roll one at a time, whatever the limit of the others.
    let wide = Budget { images: Share::Nodes(5), ..budget(1) };
    let signers = [member("val-1 signs up rolls"), member("val-2 signs up waits")];
    let slot = grant(&member("val-0 signs up waits"), Roll::Image, &signers, &wide);
    assert_eq!(slot, Slot::Taken { by: "val-1 rolls".to_owned() });
    // One that failed halts the rest.
    let failed = [member("rpc-1 serves up failed")];
    let slot = grant(&member("rpc-0 serves up waits"), Roll::Image, &failed, &wide);
    assert_eq!(slot, Slot::Halted { by: "rpc-1".to_owned() });
}
