//! The Kubernetes events that `kubectl describe` shows for changes of a node's status.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};
use sei_api::condition::{self, ConditionType, Reason};
use sei_api::status::{SeiNodeStatus, UpdateOutcome};
use sei_plan::planner::MOVED;
use sei_plan::tasks::pre_pull::SKIPPED;

/// The events of a change of status.
pub(crate) fn status_events(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Vec<Event> {
    let events = [
        phase(before, after),
        update_started(before, after),
        pre_pull_skipped(before, after),
        update_ended(before, after),
        drift(before, after),
        revision_moved(before, after),
        refusal(before, after),
        stalled(before, after),
        witnesses(before, after),
        peers(before, after),
        sidecar(before, after),
    ];
    events.into_iter().flatten().collect()
}

/// The claim of a deleted node stays.
pub(crate) fn claim_retained(claim: &str) -> Event {
    let note =
        format!("claim {claim} has no owner any more and stays; delete it if it is not needed");
    event(EventType::Normal, "VolumeRetained", "Delete", &note)
}

/// A condition whose status or reason has changed, with the previous condition.
fn changed<'a>(
    before: &'a SeiNodeStatus,
    after: &'a SeiNodeStatus,
    kind: ConditionType,
) -> Option<(&'a Condition, Option<&'a Condition>)> {
    let current = condition::find(&after.conditions, kind)?;
    let previous = condition::find(&before.conditions, kind);
    let is_same = previous.is_some_and(|previous| {
        previous.reason == current.reason && previous.status == current.status
    });
    (!is_same).then_some((current, previous))
}

fn phase(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let to = after.phase.filter(|_| before.phase != after.phase)?;
    let to_text = to.as_str();
    let note = before.phase.map_or_else(
        || format!("created, {to_text}"),
        |from| format!("{} -> {to_text}", from.as_str()),
    );
    Some(event(EventType::Normal, "PhaseTransition", to.as_str(), &note))
}

fn update_started(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, _) = changed(before, after, ConditionType::NodeUpdateInProgress)?;
    (condition.status == "True")
        .then(|| event(EventType::Normal, "UpdateStarted", "Update", &condition.message))
}

/// The update continued although its images may not be pullable.
fn pre_pull_skipped(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let why = |status: &SeiNodeStatus| {
        let found = condition::find(&status.conditions, ConditionType::NodeUpdateInProgress)?;
        let (_, why) = found.message.split_once(SKIPPED)?;
        Some(why.to_owned())
    };
    let note = why(after).filter(|_| why(before) != why(after))?;
    Some(event(EventType::Warning, "PrePullSkipped", "Update", &format!("{SKIPPED}{note}")))
}

fn update_ended(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let ended = |status: &SeiNodeStatus| {
        status.last_update.as_ref().map(|last| (last.plan_id.clone(), last.outcome))
    };
    let last = after.last_update.as_ref().filter(|_| ended(before) != ended(after))?;
    let detail = last.detail.clone().unwrap_or_default();
    let (kind, reason, note) = match last.outcome {
        UpdateOutcome::Complete => {
            let image = after.current_image.clone().unwrap_or_default();
            (EventType::Normal, "UpdateComplete", format!("runs {image}"))
        }
        UpdateOutcome::Failed => (EventType::Warning, "UpdateFailed", detail),
        UpdateOutcome::Superseded => (EventType::Normal, "UpdateSuperseded", detail),
    };
    Some(event(kind, reason, &last.plan_id, &note))
}

/// A difference that waits for an approval: no other event reports it.
fn drift(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, _) = changed(before, after, ConditionType::PodTemplateDrift)?;
    ["AdoptedWithDrift", "Held"]
        .contains(&condition.reason.as_str())
        .then(|| event(EventType::Normal, &condition.reason, "Drift", &condition.message))
}

/// The revision of new pods changed without an update by the operator.
fn revision_moved(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let message = |status: &SeiNodeStatus| {
        let found = condition::find(&status.conditions, ConditionType::PodTemplateDrift)?;
        // Changed peers are reported by this condition too, and are no event.
        let moved = found.reason == Reason::InSync.as_str() && found.message.starts_with(MOVED);
        moved.then(|| found.message.clone())
    };
    let note = message(after).filter(|_| message(before) != message(after))?;
    Some(event(EventType::Warning, "RevisionMoved", "Drift", &note))
}

/// An approval of another hash than the target.
fn refusal(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let refused = |status: &SeiNodeStatus| {
        status.pending_update.as_ref().and_then(|pending| pending.refused_approval.clone())
    };
    let approved = refused(after).filter(|_| refused(before) != refused(after))?;
    let target = &after.pending_update.as_ref()?.target_hash;
    let note = format!("refuses the approval of {approved}: the target is {target}");
    Some(event(EventType::Warning, "ApprovalRefused", &approved, &note))
}

fn stalled(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, _) = changed(before, after, ConditionType::Stalled)?;
    (condition.status == "True")
        .then(|| event(EventType::Warning, &condition.reason, "Stalled", &condition.message))
}

fn witnesses(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, _) = changed(before, after, ConditionType::StateSyncReady)?;
    ["NoSyncersConfigured", "SyncerSourceError"].contains(&condition.reason.as_str()).then(|| {
        event(EventType::Warning, "StateSyncBlocked", &condition.reason, &condition.message)
    })
}

fn peers(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, _) = changed(before, after, ConditionType::PeersResolved)?;
    (condition.status == "False")
        .then(|| event(EventType::Warning, &condition.reason, "Peers", &condition.message))
}

fn sidecar(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (condition, previous) = changed(before, after, ConditionType::SidecarReady)?;
    match (previous?.status.as_str(), condition.status.as_str()) {
        (_, "False") => {
            let (reason, note) = ("SidecarReadinessLost", "the gate is closed");
            Some(event(EventType::Warning, reason, "Lost", note))
        }
        ("False", "True") => {
            let (reason, note) = ("SidecarReadinessRestored", "the gate is open");
            Some(event(EventType::Normal, reason, "Restored", note))
        }
        _ => None,
    }
}

/// The recorder merges events with equal reason and action, so the action holds what differs.
fn event(type_: EventType, reason: &str, action: &str, note: &str) -> Event {
    let note: String = note.chars().take(900).collect();
    Event {
        type_,
        reason: reason.to_owned(),
        note: (!note.is_empty()).then_some(note),
        action: action.chars().take(120).collect(),
        secondary: None,
    }
}

#[cfg(test)]
mod tests {
    use sei_api::condition::{ConditionStatus, Verdict};
    use sei_api::status::SeiNodePhase;

    use super::*;

    // SS18
    #[test]
    fn a_blocked_node_gets_one_event() {
        let before = SeiNodeStatus::default();
        let mut after = before.clone();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let (kind, reason) = (ConditionType::StateSyncReady, Reason::NoSyncersConfigured);
        let verdict = Verdict::new(kind, ConditionStatus::False, reason, "one of two");
        condition::set(&mut after.conditions, &verdict, 1, now);
        let events = status_events(&before, &after).into_iter();
        assert_eq!(events.map(|event| event.reason).collect::<Vec<_>>(), ["StateSyncBlocked"]);
        assert_eq!(status_events(&after, &after).len(), 0);
    }

    #[test]
    fn a_moved_revision_gets_one_event() {
        let before = SeiNodeStatus::default();
        let mut after = before.clone();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let in_sync = |message| {
            let (kind, status) = (ConditionType::PodTemplateDrift, ConditionStatus::False);
            Verdict::new(kind, status, Reason::InSync, message)
        };
        condition::set(&mut after.conditions, &in_sync("keeps the pod at revision a"), 1, now);
        let events = status_events(&before, &after).into_iter();
        assert_eq!(events.map(|event| event.reason).collect::<Vec<_>>(), ["RevisionMoved"]);
        assert_eq!(status_events(&after, &after).len(), 0);
        for message in ["", "config.peers has changed; the next roll applies it"] {
            condition::set(&mut after.conditions, &in_sync(message), 1, now);
            assert_eq!(status_events(&before, &after).len(), 0, "{message}");
        }
    }

    #[test]
    fn the_first_phase_of_a_node_is_reported_as_its_creation() {
        let with_phase = |phase| SeiNodeStatus { phase: Some(phase), ..SeiNodeStatus::default() };
        let (first, next) =
            (with_phase(SeiNodePhase::Initializing), with_phase(SeiNodePhase::Running));
        let note = |before, after| phase(before, after).and_then(|event| event.note);
        let new = SeiNodeStatus::default();
        let created = note(&new, &first);
        assert_eq!(created.as_deref(), Some("created, Initializing"));
        assert_eq!(note(&first, &next).as_deref(), Some("Initializing -> Running"));
    }
}
