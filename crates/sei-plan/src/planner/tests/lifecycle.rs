//! Plans from their start to their end: resumed, ended, superseded, backed off, stalled.

use sei_api::plan::{FailedTaskDetail, PlanTarget, TaskStatus};
use sei_api::status::Blocked;
use sei_api::status::{Cause, PendingUpdate, UpdateState};

use super::*;
use crate::planner::fixture::{NODE_UID, at, full_node, new_node, running, validator};
use crate::request::ClaimView;
use crate::snapshot::Claim;
use crate::tasks::Waiting;
use crate::view::{Trouble, TroubleKind};

/// A running node with a bumped image and a stored plan of which `done` tasks are complete.
fn updating(spec: sei_api::SeiNodeSpec, done: usize) -> Snapshot {
    let snapshot = running(spec).edit(|spec| spec.image = "seid:2".into());
    let status = after(&snapshot);
    snapshot.with(|seen| {
        seen.store(status);
        seen.plan_id = "22222222-2222-4222-8222-222222222222".into();
        let plan = seen.status_mut().plan.as_mut().unwrap();
        for task in &mut plan.tasks[..done] {
            task.status = TaskStatus::Complete;
        }
    })
}

fn ended_update(phase: PlanPhase) -> Snapshot {
    updating(full_node(), 0).with(|seen| {
        let plan = seen.status_mut().plan.as_mut().unwrap();
        plan.phase = phase;
        if phase == PlanPhase::Failed {
            plan.failed_task_index = Some(2);
            plan.failed_task_detail = Some(FailedTaskDetail {
                r#type: "apply-statefulset".into(),
                id: "x".into(),
                error: "refused".into(),
                retry_count: 0,
                max_retries: 0,
            });
        }
    })
}

/// The pod is what the plan desired.
fn arrived(snapshot: Snapshot) -> Snapshot {
    let fresh = running(snapshot.node.spec.clone());
    snapshot.with(|seen| {
        let seen_status = fresh.status.clone();
        let status = seen.status_mut();
        status.current_image = seen_status.current_image;
        status.pod_template_hash = seen_status.pod_template_hash;
        status.pod_template = seen_status.pod_template;
        seen.pods = fresh.pods;
        seen.statefulset = fresh.statefulset;
    })
}

fn waits(reason: Reason) -> Waiting {
    Waiting { reason: Some(reason), message: "waits".into(), ..Waiting::default() }
}

// P25, P29
#[test]
fn a_complete_update_is_cleared_and_reported_as_complete() {
    let snapshot = arrived(ended_update(PlanPhase::Complete));
    let status = after(&snapshot);
    assert_eq!(status.plan, None);
    assert_eq!(
        condition_text(&status, ConditionType::NodeUpdateInProgress),
        "False/UpdateComplete: runs seid:2"
    );
    let last = status.last_update.unwrap();
    assert_eq!(last.outcome, UpdateOutcome::Complete);
    assert_eq!((last.cause, last.to), (Cause::Spec, Some(snapshot.desired.unwrap().hash.clone())));
    assert_eq!(status.pending_update, None);
}

// P26, P30, P36, P37
#[test]
fn a_failed_update_is_seen_before_the_next_is_built() {
    let snapshot = ended_update(PlanPhase::Failed);
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.plan, None);
    assert_eq!(
        condition_text(&status, ConditionType::NodeUpdateInProgress),
        "False/UpdateFailed: apply-statefulset: refused"
    );
    assert_eq!(status.phase, Some(SeiNodePhase::Running));
    let pending = status.pending_update.clone().unwrap();
    assert_eq!((pending.attempts, pending.state), (Some(1), UpdateState::Retrying));
    let waiting = snapshot.clone().with(|seen| seen.store(status.clone()));
    assert_eq!(started_tasks(&waiting), "none", "it backs off");
    assert!(
        condition_text(&after(&waiting), ConditionType::PodTemplateDrift)
            .starts_with("True/BackingOff")
    );
    assert!(
        condition_text(&after(&waiting), ConditionType::NodeUpdateInProgress)
            .starts_with("False/UpdateFailed"),
        "the failure stays visible"
    );
    let later = waiting.with(|seen| seen.now = at(31));
    assert_eq!(started_tasks(&later), UPDATE);
}

#[test]
fn the_pause_grows_with_each_failure_and_a_new_target_resets_it() {
    let mut snapshot = ended_update(PlanPhase::Failed);
    let failed = snapshot.status().plan.clone();
    let mut pauses = Vec::new();
    for _ in 0..6 {
        let status = after(&snapshot);
        let next = status.pending_update.as_ref().unwrap().next_attempt_at.clone().unwrap();
        pauses.push(next.0.duration_since(snapshot.now).as_secs());
        snapshot.store(status);
        snapshot.status_mut().plan.clone_from(&failed);
    }
    assert_eq!(pauses, [30, 60, 120, 240, 480, 600]);
    snapshot.status_mut().plan = None;
    let edited = snapshot.edit(|spec| spec.image = "seid:3".into());
    assert!(started(&edited).is_some(), "a change of the spec is rolled at once");
    assert_eq!(after(&edited).pending_update.unwrap().attempts, None);
}

// P27
#[test]
fn an_active_plan_to_the_desired_target_is_resumed() {
    let snapshot = updating(full_node(), 2);
    let status = after(&snapshot);
    assert_eq!(status.plan, snapshot.status().plan);
    assert!(report(&snapshot).contains("resumes NodeUpdate at apply-statefulset"));
}

// P27
#[test]
fn an_active_plan_to_another_target_is_superseded() {
    for done in 0..7 {
        let snapshot = updating(full_node(), done).edit(|spec| spec.image = "seid:3".into());
        let plan = started(&snapshot).expect("the newer target starts at once");
        assert_eq!(plan.target.unwrap().image, "seid:3");
        let status = after(&snapshot);
        let last = status.last_update.clone().unwrap();
        assert_eq!(last.outcome, UpdateOutcome::Superseded);
        assert!(last.detail.unwrap().starts_with("superseded by v1:"));
        assert_eq!(status.pending_update.clone().unwrap().attempts, None, "no failure is counted");
        assert!(
            condition_text(&status, ConditionType::NodeUpdateInProgress)
                .starts_with("True/UpdateStarted")
        );
    }
}

#[test]
fn a_revert_before_anything_was_applied_ends_the_update() {
    let snapshot = updating(full_node(), 0).edit(|spec| spec.image = "seid:1".into());
    assert_eq!(started_tasks(&snapshot), "none");
    let status = after(&snapshot);
    assert_eq!(status.plan, None);
    let text = condition_text(&status, ConditionType::NodeUpdateInProgress);
    assert!(text.starts_with("False/UpdateSuperseded"), "{text}");
}

#[test]
fn running_tasks_of_an_old_plan_are_passed_to_the_new_plan() {
    let snapshot = updating(full_node(), 0)
        .with(|seen| {
            let plan = seen.status_mut().plan.as_mut().unwrap();
            plan.tasks[0].submitted_at = Some(Time(at(0)));
            plan.abandoned = vec!["older".into()];
        })
        .edit(|spec| spec.image = "seid:3".into());
    let old = snapshot.status().plan.clone().unwrap();
    let plan = started(&snapshot).unwrap();
    assert_eq!(plan.abandoned, ["older".to_owned(), old.tasks[0].id.clone()]);
}

// P28
#[test]
fn the_end_of_another_plan_leaves_the_condition_unchanged() {
    let snapshot = arrived(updating(full_node(), 7)).with(|seen| {
        let generation = seen.generation();
        let verdict = Verdict::new(
            ConditionType::NodeUpdateInProgress,
            ConditionStatus::False,
            Reason::UpdateComplete,
            "earlier",
        );
        let now = seen.now;
        condition::set(&mut seen.status_mut().conditions, &verdict, generation, now);
        let mut plan = build::mark_ready(seen);
        plan.phase = PlanPhase::Complete;
        seen.status_mut().plan = Some(plan);
    });
    let status = after(&snapshot);
    assert_eq!(
        condition_text(&status, ConditionType::NodeUpdateInProgress),
        "False/UpdateComplete: earlier"
    );
    assert_eq!(status.plan, None);
}

#[test]
fn an_init_plan_does_not_change_the_update_condition() {
    let snapshot = running(full_node()).with(|seen| {
        let desired = seen.desired.clone().unwrap();
        let mut plan = build::init(seen, &desired, false);
        plan.phase = PlanPhase::Complete;
        seen.status_mut().plan = Some(plan);
    });
    let status = after(&snapshot);
    assert_eq!(condition_text(&status, ConditionType::NodeUpdateInProgress), "absent");
    assert_eq!((status.plan, status.last_update), (None, None));
}

// P31, P32
#[test]
fn no_plan_and_active_plans_are_not_settled() {
    assert_eq!(after(&running(full_node())).plan, None);
    let snapshot = updating(full_node(), 1);
    assert_eq!(after(&snapshot).plan, snapshot.status().plan);
}

// P33
#[test]
fn a_failure_text_names_task_and_error() {
    let mut plan = updating(full_node(), 0).status().plan.clone().unwrap();
    assert_eq!(failure_text(&plan), "unknown");
    plan.failed_task_detail = Some(FailedTaskDetail {
        r#type: "replace-pod".into(),
        id: "x".into(),
        error: "no selector".into(),
        retry_count: 0,
        max_retries: 0,
    });
    assert_eq!(failure_text(&plan), "replace-pod: no selector");
}

#[test]
fn a_plan_of_the_go_operator_is_superseded_unless_it_is_an_init() {
    let peers = |plan: TaskPlan| TaskPlan { kind: None, target: None, ..plan };
    let snapshot = updating(full_node(), 3).with(|seen| {
        let plan = seen.status_mut().plan.take().unwrap();
        seen.status_mut().plan = Some(peers(plan));
    });
    assert!(started(&snapshot).unwrap().target.is_some());
    let init = new_node(full_node()).with(|seen| {
        let desired = seen.desired.clone().unwrap();
        let plan = peers(build::init(seen, &desired, false));
        seen.status_mut().phase = Some(SeiNodePhase::Initializing);
        seen.status_mut().plan = Some(plan);
    });
    assert_eq!(after(&init).plan, init.status().plan, "resumed by its ids");
}

#[test]
fn a_forged_plan_is_abandoned_without_harm() {
    let forged = updating(full_node(), 0).with(|seen| {
        seen.status_mut().plan.as_mut().unwrap().tasks[3].r#type = "reset-data".into();
    });
    assert!(report(&forged).contains("unknown type \"reset-data\""));
    let plan = started(&forged).unwrap();
    assert_eq!(tasks(&plan).join(" "), UPDATE);
}

#[test]
fn a_forged_target_is_replaced_by_the_desired_target() {
    type Forge = fn(&mut PlanTarget);
    let forgeries: [Forge; 3] = [
        |target| target.hash = "v1:0".into(),
        |target| target.image = "seid:forged".into(),
        |target| target.sidecar_image = "seictl:forged".into(),
    ];
    for forge in forgeries {
        let forged = updating(full_node(), 0).with(|seen| {
            forge(seen.status_mut().plan.as_mut().unwrap().target.as_mut().unwrap());
        });
        let target = started(&forged).unwrap().target.unwrap();
        assert_eq!(target.image, "seid:2");
        assert_eq!(target.hash, forged.desired.unwrap().hash.clone());
    }
}

#[test]
fn an_unanswered_or_failed_configuration_task_moves_behind_the_replacement() {
    let late = "apply-statefulset apply-service replace-pod observe-image config-patch \
                config-validate mark-ready";
    let silent = updating(full_node(), 0).with(|seen| {
        seen.waiting = Some(waits(Reason::SidecarUnreachable));
        seen.status_mut().blocked = Some(Blocked {
            reason: "SidecarUnreachable".into(),
            since: Time(at(0)),
            message: String::new(),
        });
    });
    assert_eq!(started_tasks(&silent), "none", "the sidecar has 15 s to answer");
    let patient = silent.clone().with(|seen| seen.now = at(15));
    assert_eq!(started_tasks(&patient), late);
    assert_eq!(after(&patient).pending_update.unwrap().attempts, None, "no failure is counted");
    let endless = updating(full_node(), 0).with(|seen| {
        seen.waiting = Some(Waiting::default());
        seen.now = at(16);
        seen.status_mut().plan.as_mut().unwrap().tasks[0].submitted_at = Some(Time(at(0)));
    });
    assert_eq!(started_tasks(&endless), late);
    let failed = ended_update(PlanPhase::Failed).with(|seen| {
        seen.status_mut().plan.as_mut().unwrap().failed_task_index = Some(1);
    });
    assert_eq!(started_tasks(&failed), late);
}

#[test]
fn a_waiting_update_opens_the_gate_of_an_unready_pod_first() {
    let waiting = updating(validator(), 0).with(|seen| {
        seen.sidecar = Sidecar::NotReady;
        seen.waiting = Some(waits(Reason::SecretMissing));
    });
    assert_eq!(started_tasks(&waiting), "mark-ready");
    let status = after(&waiting);
    assert_eq!(status.pending_update.unwrap().attempts, None);
    let working = updating(validator(), 0).with(|seen| seen.sidecar = Sidecar::NotReady);
    assert_eq!(started_tasks(&working), "none", "a plan that progresses is not interrupted");
    let replaced = updating(validator(), 7).with(|seen| {
        seen.sidecar = Sidecar::NotReady;
        seen.waiting = Some(waits(Reason::SecretMissing));
    });
    assert_eq!(started_tasks(&replaced), "none", "its own mark-ready opens the new pod's gate");
}

#[test]
fn after_an_eviction_the_gate_of_the_next_pod_is_opened_before_a_running_sidecar_task() {
    let evicted = |submitted: i64, started: i64| {
        updating(full_node(), 0).with(|seen| {
            seen.now = at(12);
            seen.sidecar = Sidecar::NotReady;
            seen.waiting = Some(Waiting::default());
            seen.pods[0].sidecar.running_since = Some(at(started));
            let plan = seen.status_mut().plan.as_mut().unwrap();
            plan.tasks[0].submitted_at = Some(Time(at(submitted)));
        })
    };
    assert_eq!(started_tasks(&evicted(5, 10)), "mark-ready");
    assert_eq!(after(&evicted(5, 10)).pending_update.unwrap().attempts, None);
    assert_eq!(started_tasks(&evicted(10, 10)), "mark-ready", "times are whole seconds");
    assert_eq!(started_tasks(&evicted(11, 10)), "none", "it was submitted to this pod");
    let ready = evicted(5, 10).with(|seen| seen.sidecar = Sidecar::Ready);
    assert_eq!(started_tasks(&ready), "none", "the gate is open");
}

#[test]
fn a_gate_that_cannot_be_opened_never_blocks_an_update() {
    let opening = running(full_node()).with(|seen| {
        seen.sidecar = Sidecar::NotReady;
        let plan = build::mark_ready(seen);
        seen.status_mut().plan = Some(plan);
    });
    let bumped = opening.edit(|spec| spec.image = "seid:2".into());
    assert_eq!(started_tasks(&bumped), "none", "mark-ready has time to succeed");
    let stuck = bumped.with(|seen| {
        seen.sidecar = Sidecar::Unreachable("refused".into());
        seen.waiting = Some(waits(Reason::SidecarUnreachable));
    });
    assert!(started_tasks(&stuck).contains("replace-pod"));
}

#[test]
fn pausing_updates_ends_a_plan_that_has_not_replaced_the_pod() {
    let pause = |spec: &mut sei_api::SeiNodeSpec| {
        spec.update.get_or_insert_default().paused = Some(true);
    };
    let before = updating(full_node(), 3).edit(pause);
    assert_eq!(started_tasks(&before), "none");
    let status = after(&before);
    assert_eq!(status.plan, None);
    assert!(condition_text(&status, ConditionType::PodTemplateDrift).starts_with("True/Paused"));
    let applied = updating(full_node(), 3)
        .with(|seen| {
            let hash = seen.desired.as_ref().unwrap().hash.clone();
            seen.statefulset.as_mut().unwrap().template_hash = Some(hash);
        })
        .edit(pause);
    let plan = started(&applied).unwrap();
    assert_eq!(plan.kind, Some(PlanKind::ApplyTemplate), "the running template is restored");
    assert_eq!(plan.target.unwrap().hash, applied.status().pod_template_hash.clone().unwrap());
    let replaced = updating(full_node(), 5).edit(pause);
    assert_eq!(after(&replaced).plan, replaced.status().plan, "after the deletion it is finished");
}

#[test]
fn a_stopped_node_keeps_its_plan_unchanged() {
    let snapshot = updating(full_node(), 3).edit(|spec| spec.paused = Some(true));
    assert_eq!(after(&snapshot).plan, snapshot.status().plan);
    assert!(report(&snapshot).contains("is stopped"));
}

#[test]
fn a_changed_identity_of_a_running_node_is_refused() {
    let snapshot = running(full_node()).edit(|spec| spec.chain_id = "other-1".into());
    assert_eq!(started_tasks(&snapshot), "none");
    let stalled = condition_text(&after(&snapshot), ConditionType::Stalled);
    assert_eq!(
        stalled,
        "True/InvalidSpec: spec.chainId of a running node cannot change from demo-1 to other-1; \
         set it back to demo-1"
    );
    let mode = running(full_node()).edit(|spec| {
        spec.full_node = None;
        spec.archive = Some(sei_api::node::ArchiveSpec::default());
    });
    assert_eq!(started_tasks(&mode), "none");
    let key = running(validator()).edit(|spec| {
        let validator = spec.validator.as_mut().unwrap();
        validator.signing_key = Some(crate::planner::fixture::secret("another"));
    });
    assert_eq!(started_tasks(&key), "none");
}

// OI10
#[test]
fn a_trouble_is_reported_as_stalled_after_its_deadline_and_its_start_survives_a_restart() {
    let trouble = updating(full_node(), 5).with(|seen| {
        seen.pods[0].troubles = vec![Trouble {
            container: "seid".into(),
            kind: TroubleKind::ImagePull,
            message: "seid: ErrImagePull not found".into(),
        }];
    });
    let status = after(&trouble);
    assert_eq!(condition_text(&status, ConditionType::Stalled), "False/Progressing: ");
    assert_eq!(status.blocked.as_ref().unwrap().since, Time(at(0)));
    assert_eq!(plan(&trouble).requeue, Some(Duration::from_secs(120)));
    let later = trouble.with(|seen| {
        seen.store(status);
        seen.now = at(121);
    });
    let status = after(&later);
    assert_eq!(
        condition_text(&status, ConditionType::Stalled),
        "True/ImagePullFailed: pod n-0: seid: ErrImagePull not found"
    );
    assert_eq!(status.blocked.unwrap().since, Time(at(0)), "counted from its first snapshot");
    assert!(status.plan.is_some(), "the plan keeps waiting");
}

#[test]
fn a_lost_volume_is_reported_and_nothing_is_done() {
    for claim in [
        Claim::Missing,
        Claim::Present(ClaimView { uid: "new".into(), ..ClaimView::default() }),
        Claim::Present(ClaimView {
            uid: "old".into(),
            phase: "Lost".into(),
            ..ClaimView::default()
        }),
    ] {
        let snapshot = running(validator()).edit(|spec| spec.image = "seid:2".into());
        let snapshot = snapshot.with(|seen| {
            seen.claim = claim;
            seen.status_mut().data_claim =
                Some(sei_api::status::ClaimRef { name: "data-n".into(), uid: "old".into() });
        });
        assert_eq!(started_tasks(&snapshot), "none");
        let stalled = condition_text(&after(&snapshot), ConditionType::Stalled);
        assert_eq!(stalled, "True/DataVolumeLost: claim data-n (old) is lost");
    }
}

#[test]
fn a_volume_lost_with_its_record_is_reported_and_replaced_with_approval_by_the_uid_of_the_node() {
    for spec in [validator(), full_node()] {
        let lost = running(spec).with(|seen| {
            seen.claim = Claim::Missing;
            seen.pods[0].ready = false;
            seen.pods[0].unschedulable = Some("persistentvolumeclaim not found".into());
        });
        assert_eq!(started_tasks(&lost), "none");
        let stalled = condition_text(&after(&lost), ConditionType::Stalled);
        assert!(stalled.starts_with("True/DataVolumeLost: claim data-n not found"), "{stalled}");
        assert!(stalled.ends_with(&format!("to the uid of the node: {NODE_UID}")), "{stalled}");
        let approve = |uid: &str| {
            let mut seen = lost.clone();
            let annotations = seen.node.metadata.annotations.get_or_insert_default();
            annotations.insert("sei.io/recreate-volume".to_owned(), uid.to_owned());
            seen
        };
        assert_eq!(started_tasks(&approve("another")), "none");
        let tasks = started_tasks(&approve(NODE_UID));
        assert!(tasks.starts_with("ensure-data-pvc"), "{tasks}");
        let unknown = lost.clone().with(|seen| seen.claim = Claim::Unknown);
        let stalled = condition_text(&after(&unknown), ConditionType::Stalled);
        assert!(!stalled.contains("DataVolumeLost"), "only a read proves it: {stalled}");
    }
}

#[test]
fn a_deleted_node_gets_no_plan() {
    let snapshot = updating(full_node(), 0).with(|seen| {
        seen.node.metadata.deletion_timestamp = Some(Time(at(0)));
    });
    assert_eq!(after(&snapshot).plan, snapshot.status().plan);
    assert_eq!(report(&snapshot), "is being deleted");
}

#[test]
fn an_image_edit_during_init_supersedes_and_a_label_does_not() {
    let initializing = || {
        let new = running(full_node());
        let desired = new.desired.clone().unwrap();
        let mut plan = build::init(&new, &desired, false);
        for task in &mut plan.tasks[..5] {
            task.status = TaskStatus::Complete;
        }
        new.with(|seen| {
            seen.store(SeiNodeStatus::default());
            seen.status_mut().phase = Some(SeiNodePhase::Initializing);
            seen.status_mut().plan = Some(plan);
            seen.plan_id = "next".into();
        })
    };
    let label = |spec: &mut sei_api::SeiNodeSpec| {
        spec.pod_labels.get_or_insert_default().insert("team".into(), "core".into());
    };
    let image = initializing().edit(|spec| spec.image = "seid:2".into());
    assert_eq!(started(&image).unwrap().kind, Some(PlanKind::Init));
    assert_eq!(started_tasks(&initializing().edit(label)), "none", "a running restore is kept");
    let idle = initializing().edit(label).with(|seen| seen.pods[0].seid.running = false);
    assert!(started(&idle).is_some(), "a pod that does not run has nothing to lose");
}

#[test]
fn a_pending_update_keeps_the_time_of_its_first_snapshot() {
    let snapshot = running(full_node()).platform("b").with(|seen| {
        seen.slot = Some(crate::snapshot::Slot::Taken { by: "x".into() });
    });
    let first = after(&snapshot);
    let again = snapshot.with(|seen| {
        seen.store(first.clone());
        seen.now = at(500);
    });
    let since = |pending: Option<PendingUpdate>| pending.unwrap().since;
    assert_eq!(since(after(&again).pending_update), since(first.pending_update));
}

#[test]
fn a_target_names_its_template_and_images() {
    let snapshot = updating(full_node(), 0);
    let target = snapshot.status().plan.clone().unwrap().target.unwrap();
    let desired = snapshot.desired.unwrap();
    assert_eq!(
        target,
        PlanTarget {
            hash: desired.hash.clone(),
            image: "seid:2".into(),
            sidecar_image: "seictl:1".into(),
            generation: 2,
            cause: Cause::Spec,
            retry: None,
            from: running(full_node()).status().pod_template_hash.clone(),
            config: desired.config.clone(),
            inputs_hash: Some(desired.inputs_hash.clone()),
            slot: Some(true),
            chain_id: Some("demo-1".into()),
            role: Some("node".into()),
            ..PlanTarget::default()
        }
    );
}

#[test]
fn a_gate_that_the_sidecar_keeps_closed_does_not_replace_the_update() {
    for reason in [Reason::SidecarAuth, Reason::SidecarUnreachable] {
        let snapshot = updating(full_node(), 0).with(|seen| {
            seen.sidecar = Sidecar::NotReady;
            seen.waiting = Some(waits(reason));
        });
        assert_eq!(started_tasks(&snapshot), "none", "{reason}");
    }
}

#[test]
fn a_pause_does_not_undo_the_restoring_of_the_running_template() {
    let snapshot = updating(full_node(), 3)
        .with(|seen| {
            let plan = seen.status_mut().plan.as_mut().unwrap();
            let target = plan.target.as_mut().unwrap();
            target.hash = running(full_node()).status().pod_template_hash.clone().unwrap();
            target.image = "seid:1".into();
        })
        .edit(|spec| {
            spec.image = "seid:1".into();
            spec.update.get_or_insert_default().paused = Some(true);
        });
    assert_eq!(after(&snapshot).plan, snapshot.status().plan);
}

#[test]
fn no_update_takes_the_key_of_another_node() {
    let observer = running(crate::planner::fixture::observer()).edit(|spec| {
        let keys = validator().validator.unwrap();
        spec.validator = Some(keys);
    });
    assert!(started(&observer).is_some(), "keys can be added");
    let conflict = observer.with(|seen| seen.signing_conflict = Some("ns/a".into()));
    assert_eq!(started_tasks(&conflict), "none");
    let stalled = condition_text(&after(&conflict), ConditionType::Stalled);
    assert!(stalled.starts_with("True/SigningKeyConflict"), "{stalled}");
    let already = running(validator())
        .edit(|spec| spec.image = "seid:2".into())
        .with(|seen| seen.signing_conflict = Some("ns/a".into()));
    assert!(started(&already).is_some(), "the node that has the key continues");
}

#[test]
fn a_gate_is_not_opened_on_a_node_that_is_stopped() {
    let stopped = running(full_node())
        .edit(|spec| spec.paused = Some(true))
        .with(|seen| seen.sidecar = Sidecar::NotReady);
    assert_eq!(started_tasks(&stopped), "none");
    let opening = stopped.with(|seen| {
        let plan = build::mark_ready(seen);
        seen.status_mut().plan = Some(plan);
    });
    assert_eq!(after(&opening).plan, None);
}

#[test]
fn a_terminating_volume_keeps_its_pod_running() {
    let snapshot = running(validator()).edit(|spec| spec.image = "seid:2".into());
    let snapshot = snapshot.with(|seen| {
        seen.claim = Claim::Present(ClaimView {
            uid: "old".into(),
            phase: "Bound".into(),
            terminating: true,
            ..ClaimView::default()
        });
        seen.status_mut().data_claim =
            Some(sei_api::status::ClaimRef { name: "data-n".into(), uid: "old".into() });
    });
    assert_eq!(started_tasks(&snapshot), "none");
    assert!(
        condition_text(&after(&snapshot), ConditionType::Stalled)
            .starts_with("True/DataVolumeLost")
    );
    assert_eq!(
        repair::desired_replicas(&snapshot, Some(1)),
        1,
        "stopping the pod would delete the volume"
    );
}

#[test]
fn a_restored_volume_is_accepted_with_approval_and_without_a_new_init() {
    let restored = running(validator()).with(|seen| {
        seen.claim = Claim::Present(ClaimView {
            uid: "new".into(),
            phase: "Bound".into(),
            ..ClaimView::default()
        });
        seen.status_mut().data_claim =
            Some(sei_api::status::ClaimRef { name: "data-n".into(), uid: "old".into() });
    });
    assert_eq!(after(&restored).data_claim.unwrap().uid, "old");
    let agreed = restored.with(|seen| {
        let annotations = seen.node.metadata.annotations.get_or_insert_default();
        let name = sei_api::names::annotation::RECREATE_VOLUME;
        annotations.insert(name.to_owned(), "old".to_owned());
    });
    assert_eq!(started_tasks(&agreed), "none");
    assert_eq!(after(&agreed).data_claim.unwrap().uid, "new");
}

#[test]
fn peers_by_ec2_tags_are_reported_as_not_resolved() {
    use sei_api::node::{Ec2TagPeers, PeerSource};
    let none = after(&running(full_node()));
    assert_eq!(condition_text(&none, ConditionType::PeersResolved), "absent");
    let by_tags = running(full_node()).edit(|spec| {
        let ec2_tags = Some(Ec2TagPeers::default());
        spec.peers = Some(vec![PeerSource { ec2_tags, ..PeerSource::default() }]);
    });
    assert_eq!(
        condition_text(&after(&by_tags), ConditionType::PeersResolved),
        "False/Ec2TagsNotResolved: 1 of 1 sources are EC2 tags"
    );
}

#[test]
fn a_running_node_whose_pod_is_never_created_is_stalled() {
    let missing = running(full_node()).with(|seen| seen.pods.clear());
    let status = after(&missing);
    assert_eq!(status.blocked.as_ref().unwrap().reason, "StatefulSetNotObserved");
    assert!(condition_text(&status, ConditionType::Stalled).starts_with("False"), "not at once");
    let late = missing.clone().with(|seen| {
        seen.store(status);
        seen.now = later(seen.now, Duration::from_secs(60));
    });
    let stalled = condition_text(&after(&late), ConditionType::Stalled);
    assert_eq!(stalled, "True/StatefulSetNotObserved: StatefulSet n has made no pod yet");
    let stopped = missing.edit(|spec| spec.paused = Some(true)).with(|seen| {
        seen.statefulset.as_mut().unwrap().replicas = Some(0);
    });
    assert_eq!(after(&stopped).blocked, None, "a stopped node has none");
}

#[test]
fn a_crash_loop_continues_between_two_crashes() {
    let crashed = running(full_node()).with(|seen| {
        seen.pods[0].ready = false;
        seen.pods[0].seid.restarts = 3;
        seen.pods[0].troubles = vec![Trouble {
            container: "seid".into(),
            kind: TroubleKind::Crash,
            message: "seid: CrashLoopBackOff".into(),
        }];
    });
    let blocked = after(&crashed);
    let again = |second: i64, ready: bool| {
        crashed.clone().with(|seen| {
            seen.store(blocked.clone());
            seen.pods[0].troubles.clear();
            seen.pods[0].ready = ready;
            seen.pods[0].ready_since = Some(at(5));
            seen.pods[0].seid.running_since = Some(at(0));
            seen.now = at(second);
        })
    };
    let runs_since = |second: i64, ready: bool| {
        after(&again(second, ready)).blocked.map(|blocked| (blocked.reason, blocked.since))
    };
    let since = blocked.blocked.as_ref().unwrap().since.clone();
    let continues = Some(("CrashLooping".to_owned(), since));
    assert_eq!(runs_since(10, false), continues);
    assert_eq!(runs_since(300, false), None, "it has outlived the longest back-off");
    assert_eq!(runs_since(10, true), continues, "it is Ready for a while before it crashes");
    let requeue = plan(&again(10, true)).requeue.expect("no event shows that it lasts");
    assert!(requeue <= Duration::from_secs(60), "{requeue:?}");
    assert_eq!(runs_since(65, true), None);
}

#[test]
fn a_time_that_a_clock_ahead_has_stored_parks_nothing() {
    let day = Duration::from_secs(86_400);
    let failed = ended_update(PlanPhase::Failed);
    let backs_off = failed.clone().with(|seen| {
        let status = after(seen);
        seen.store(status);
    });
    assert_eq!(started_tasks(&backs_off), "none", "the usual pause");
    let ahead = backs_off.with(|seen| {
        let until = later(seen.now, day);
        let pending = seen.status_mut().pending_update.as_mut().unwrap();
        pending.next_attempt_at = Some(Time(until));
    });
    assert_ne!(started_tasks(&ahead), "none", "due now");

    let missing = running(full_node()).with(|seen| seen.pods.clear());
    let ahead = missing.with(|seen| {
        let mut status = after(seen);
        status.blocked.as_mut().unwrap().since = Time(later(seen.now, day));
        seen.store(status);
    });
    assert_eq!(after(&ahead).blocked.unwrap().since, Time(ahead.now));

    let unanswered = updating(full_node(), 0).with(|seen| {
        seen.waiting = Some(Waiting {
            reason: Some(sei_api::condition::Reason::SidecarUnreachable),
            ..Waiting::default()
        });
        let since = Time(later(seen.now, day));
        let plan = seen.status_mut().plan.as_mut().unwrap();
        plan.tasks[0].submitted_at = Some(since);
    });
    assert!(report(&unanswered).contains("continues without the old pod's sidecar"));
}
