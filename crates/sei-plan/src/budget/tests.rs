//! Who rolls next, and who waits for whom.

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
    Budget { limit, halt_after: 1, ready_deadline, outage }
}

/// One node a line: name, `signs` or `serves`, `up` or `out`, and its standing. What the
/// budget tells each that waits.
fn check(limit: usize, chain: &str, answers: &Expect) {
    let members: Vec<Member> = chain.lines().map(member).collect();
    let mut told = String::new();
    for (index, me) in members.iter().enumerate() {
        if me.standing != Standing::Waits {
            continue;
        }
        let mut others = members.clone();
        others.remove(index);
        let slot = grant(me, &others, &budget(limit));
        writeln!(told, "{}: {slot:?}", me.name).unwrap();
    }
    writeln!(told, "woken: {}", next(&members, &budget(limit)).join(" ")).unwrap();
    answers.assert_eq(&told);
}

fn member(line: &str) -> Member {
    let words: Vec<_> = line.split_whitespace().collect();
    let standing = match words[3] {
        "idle" => Standing::Idle,
        "waits" => Standing::Waits,
        "rolls" => Standing::Rolls,
        "down" => Standing::Down,
        "failed" => Standing::Failed,
        other => panic!("unknown standing {other}"),
    };
    let (signs, is_out) = (words[1] == "signs", words[2] == "out");
    Member { name: words[0].to_owned(), signs, is_out, standing }
}

#[test]
fn nodes_that_sign_go_last() {
    check(
        1,
        "a signs up waits
         b serves up waits
         c serves up waits",
        &expect![[r"
            a: InLine { limit: 1 }
            b: Granted
            c: InLine { limit: 1 }
            woken: b c
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
            woken: b c
        "#]],
    );
}

#[test]
fn signers_wait_beside_a_free_slot_until_the_others_have_rolled() {
    check(
        2,
        "a serves out rolls
         b signs up waits
         c signs up waits",
        &expect![[r"
            b: InLine { limit: 2 }
            c: InLine { limit: 2 }
            woken: b c
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
            woken: b c
        "]],
    );
}

#[test]
fn a_failed_roll_halts_all_who_wait() {
    check(
        3,
        "a serves out failed
         b serves up waits
         c signs up waits",
        &expect![[r#"
            b: Halted { by: "a" }
            c: Halted { by: "a" }
            woken: b c
        "#]],
    );
}

#[test]
fn who_is_down_for_long_loses_nothing_and_waits_for_no_slot() {
    check(
        1,
        "a serves up rolls
         b serves out waits
         c signs out waits
         d serves up waits",
        &expect![[r#"
            b: Granted
            c: Granted
            d: InLine { limit: 1 }
            woken: b d
        "#]],
    );
}

#[test]
fn nobody_gets_what_has_just_failed() {
    check(
        1,
        "a serves out failed
         b serves out waits
         c signs out waits",
        &expect![[r#"
            b: Halted { by: "a" }
            c: Halted { by: "a" }
            woken: b c
        "#]],
    );
}

#[test]
fn whoever_has_a_slot_keeps_it() {
    let failed = member("a serves up failed");
    let others = [member("b serves up failed"), member("c serves up waits")];
    assert_eq!(grant(&failed, &others, &budget(1)), Slot::Granted);
}

proptest! {
    /// However the questions are ordered: with each grant counted before the next question, no more
    /// nodes have slots than there are, and no signer goes while another node waits.
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
                name: format!("n{at}"), signs: *signs, is_out: false, standing: Standing::Waits,
            })
            .collect();
        let asked: Vec<_> = order.into_iter().filter(|at| *at < members.len()).collect();
        for at in asked.iter().chain(&asked) {
            let mut others = members.clone();
            let me = others.remove(*at);
            if me.standing == Standing::Waits
                && grant(&me, &others, &budget(limit)) == Slot::Granted
            {
                let serves = |one: &Member| !one.signs;
                prop_assert!(!me.signs || !others.iter().any(serves));
                members[*at].standing = Standing::Rolls;
            }
        }
        let rolling = members.iter().filter(|one| one.standing == Standing::Rolls).count();
        prop_assert!(rolling <= limit);
        let serving = members.iter().filter(|one| !one.signs).count();
        let able = if serving == 0 { members.len() } else { serving };
        prop_assert!(rolling == limit.min(able), "nobody waits without need");
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

fn stands(seen: &crate::snapshot::Snapshot) -> Standing {
    Member::of(&seen.node, seen.pod(), &budget(1), seen.now).standing
}

#[test]
fn a_slot_ends_with_ready_and_fails_by_its_deadline() {
    let unready = |seen: crate::snapshot::Snapshot| seen.with(|seen| seen.pods[0].ready = false);
    assert_eq!(stands(&rolled(full_node())), Standing::Idle);
    assert_eq!(stands(&unready(rolled(full_node()))), Standing::Rolls);
    let late = unready(rolled(full_node())).with(|seen| seen.now = at(600));
    assert_eq!(stands(&late), Standing::Failed);
    assert_eq!(stands(&late.with(|seen| seen.pods[0].ready = true)), Standing::Idle, "late Ready");
    let stalled = unready(rolled(full_node())).with(|seen| {
        let verdict = Verdict::new(
            ConditionType::Stalled,
            ConditionStatus::True,
            Reason::ImagePullFailed,
            "x",
        );
        condition::set(&mut seen.status_mut().conditions, &verdict, 1, at(0));
    });
    assert_eq!(stands(&stalled), Standing::Failed);
    let older = rolled(full_node()).with(|seen| seen.pods[0].revision = Some("rev-0".into()));
    assert_eq!(stands(&older), Standing::Rolls, "a pod of before the roll says nothing");
    let given_back = unready(rolled(full_node()))
        .with(|seen| seen.status_mut().last_update.as_mut().unwrap().ready_at = Some(Time(at(0))));
    assert_eq!(stands(&given_back), Standing::Idle, "what comes later is no roll of ours");
}

#[test]
fn a_signer_that_ran_is_missed_and_a_new_one_is_not() {
    let down = running(validator()).with(|seen| seen.pods[0].ready = false);
    assert_eq!(stands(&down), Standing::Down);
    let gone = running(validator()).with(|seen| seen.pods.clear());
    assert_eq!(stands(&gone), Standing::Down);
    assert_eq!(stands(&fixture::new_node(validator())), Standing::Idle);
    assert_eq!(stands(&running(validator())), Standing::Idle);
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
    assert_eq!(stands(&rolling), Standing::Rolls);
    let again = rolling.clone().with(|seen| {
        let decided = plan(&running(full_node()).platform("b"));
        let mut pending = decided.pending_update.unwrap();
        pending.attempts = Some(1);
        seen.status_mut().pending_update = Some(pending);
    });
    assert_eq!(stands(&again), Standing::Failed);
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
    assert!(decision.requeue <= Some(Duration::from_secs(1800)), "looked at when it is due");
}

#[test]
fn a_slot_that_was_not_given_back_goes_on_with_the_next_roll() {
    let broken = rolled(full_node())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.pods[0].ready = false);
    let PlanMove::Start(next) = plan(&broken).plan else { panic!("starts") };
    assert_eq!(next.target.unwrap().slot, Some(true));
    let healthy = running(full_node()).edit(|spec| spec.image = "seid:2".into());
    let PlanMove::Start(next) = plan(&healthy).plan else { panic!("starts") };
    assert_eq!(next.target.unwrap().slot, None, "an image change takes no slot");
}

#[test]
fn a_node_that_cannot_be_updated_leaves_the_line() {
    let queued =
        running(full_node()).platform("b").with(|seen| seen.slot = Some(Slot::InLine { limit: 1 }));
    let status = {
        let mut status = queued.status().clone();
        plan(&queued).apply(&mut status, 1, queued.now);
        status
    };
    let waits = queued.clone().with(|seen| seen.store(status.clone()));
    assert_eq!(stands(&waits), Standing::Waits);
    let refused = waits.with(|seen| seen.desired = Err("spec.image is bad".into()));
    let pending = plan(&refused).pending_update.unwrap();
    assert_eq!(pending.state, UpdateState::Held);
    assert!(pending.reason.unwrap().contains("spec.image is bad"));
}

#[test]
fn who_was_cut_off_for_a_moment_is_not_down() {
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
    assert!(!Member::of(&never.node, never.pod(), &budget(1), never.now).is_out, "nobody knows");
}

#[test]
fn nobody_waits_for_a_node_that_its_owner_stopped_or_holds() {
    let unready = |seen: crate::snapshot::Snapshot| {
        seen.with(|seen| {
            seen.pods[0].ready = false;
            seen.now = at(601);
        })
    };
    let stopped = unready(rolled(full_node())).edit(|spec| spec.paused = Some(true));
    assert_eq!(stands(&stopped), Standing::Idle);
    assert!(plan(&stopped).last_update.unwrap().ready_at.is_some(), "its slot is given back");
    let standby = running(validator()).edit(|spec| spec.paused = Some(true));
    assert_eq!(stands(&standby.with(|seen| seen.pods.clear())), Standing::Idle);
    let failed = rolled(full_node()).platform("b").with(|seen| {
        let mut pending = plan(&running(full_node()).platform("b")).pending_update.unwrap();
        pending.attempts = Some(1);
        pending.state = UpdateState::Retrying;
        seen.status_mut().pending_update = Some(pending);
    });
    assert_eq!(stands(&failed), Standing::Failed);
    let held = failed.with(|seen| {
        seen.status_mut().pending_update.as_mut().unwrap().state = UpdateState::Held;
    });
    assert_eq!(stands(&held), Standing::Idle);
}

#[test]
fn an_update_that_goes_on_late_keeps_its_slot() {
    let changed = running(full_node()).platform("b");
    let PlanMove::Start(started) = plan(&changed).plan else { panic!("starts") };
    let failed = changed.with(|seen| {
        let mut early = *started.clone();
        let index = early.tasks.iter().position(|task| task.r#type == "config-validate").unwrap();
        early.phase = sei_api::plan::PlanPhase::Failed;
        early.failed_task_index = i32::try_from(index).ok();
        seen.status_mut().plan = Some(early);
    });
    let PlanMove::Start(late) = plan(&failed).plan else { panic!("goes on") };
    assert_eq!(late.target.unwrap().slot, Some(true));
}

#[test]
fn a_roll_given_up_before_any_pod_was_observed_gives_its_slot_back() {
    let mut paused = rolled(full_node());
    let last = paused.status_mut().last_update.as_mut().unwrap();
    last.outcome = sei_api::status::UpdateOutcome::Superseded;
    paused.status_mut().pod_template = None;
    paused.pods[0].ready = true;
    assert_eq!(stands(&paused), Standing::Idle);
    paused.pods[0].ready = false;
    assert_ne!(stands(&paused), Standing::Idle);
}
