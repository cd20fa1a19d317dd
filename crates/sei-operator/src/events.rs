//! Events that read well in `kubectl describe`.

use kube::Resource;
use kube::runtime::events::{Event, EventType};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionType};
use sei_api::status::{SeiNodeStatus, UpdateOutcome};

use crate::context::Context;

/// Tells what a status write changed. Events are a courtesy: a failed one fails nothing.
pub(crate) async fn status_changed(
    context: &Context,
    node: &SeiNode,
    before: &SeiNodeStatus,
    after: &SeiNodeStatus,
) {
    for event in changes(before, after) {
        let sent = context.recorder.publish(&event, &node.object_ref(&())).await;
        if let Err(error) = sent {
            tracing::debug!(error = %sei_exec::call::chain(&error), "an event was lost");
        }
    }
}

/// The events of a change of status.
fn changes(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Vec<Event> {
    let mut events = Vec::new();
    if before.phase != after.phase
        && let Some(to) = after.phase
    {
        let from = before.phase.map_or("nothing", |phase| phase.as_str());
        let note = format!("{from} -> {}", to.as_str());
        events.push(event(EventType::Normal, "PhaseTransition", to.as_str(), &note));
    }
    let changed = |kind: ConditionType| {
        let one = condition::find(&after.conditions, kind)?;
        let was = condition::find(&before.conditions, kind);
        let same = was.is_some_and(|was| was.reason == one.reason && was.status == one.status);
        (!same).then_some((one, was))
    };
    if let Some((one, _)) = changed(ConditionType::NodeUpdateInProgress)
        && one.status == "True"
    {
        events.push(event(EventType::Normal, "UpdateStarted", "Update", &one.message));
    }
    let ended = |status: &SeiNodeStatus| {
        status.last_update.as_ref().map(|last| (last.plan_id.clone(), last.outcome))
    };
    if ended(before) != ended(after)
        && let Some(last) = &after.last_update
    {
        let detail = last.detail.clone().unwrap_or_default();
        let (kind, reason, note) = match last.outcome {
            UpdateOutcome::Complete => {
                let image = after.current_image.clone().unwrap_or_default();
                (EventType::Normal, "UpdateComplete", format!("runs {image}"))
            }
            UpdateOutcome::Failed => (EventType::Warning, "UpdateFailed", detail),
            UpdateOutcome::Superseded => (EventType::Normal, "UpdateSuperseded", detail),
        };
        events.push(event(kind, reason, &last.plan_id, &note));
    }
    if let Some((one, _)) = changed(ConditionType::PodTemplateDrift)
        && ["AdoptedWithDrift", "Held"].contains(&one.reason.as_str())
    {
        events.push(event(EventType::Normal, &one.reason, "Drift", &one.message));
    }
    events.extend(refusal(before, after));
    if let Some((one, _)) = changed(ConditionType::Stalled)
        && one.status == "True"
    {
        events.push(event(EventType::Warning, &one.reason, "Stalled", &one.message));
    }
    if let Some((one, _)) = changed(ConditionType::StateSyncReady)
        && ["NoSyncersConfigured", "SyncerSourceError"].contains(&one.reason.as_str())
    {
        events.push(event(EventType::Warning, "StateSyncBlocked", &one.reason, &one.message));
    }
    if let Some((one, _)) = changed(ConditionType::PeersResolved)
        && one.status == "False"
    {
        events.push(event(EventType::Warning, &one.reason, "Peers", &one.message));
    }
    if let Some((one, Some(was))) = changed(ConditionType::SidecarReady) {
        match (was.status.as_str(), one.status.as_str()) {
            (_, "False") => events.push(event(
                EventType::Warning,
                "SidecarReadinessLost",
                "Lost",
                "the gate is closed",
            )),
            ("False", "True") => events.push(event(
                EventType::Normal,
                "SidecarReadinessRestored",
                "Restored",
                "the gate is open",
            )),
            _ => {}
        }
    }
    events
}

/// An approval that was given for something else than what waits.
fn refusal(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let refused = |status: &SeiNodeStatus| {
        status.pending_update.as_ref().and_then(|pending| pending.refused_approval.clone())
    };
    let given = refused(after).filter(|_| refused(before) != refused(after))?;
    let target = &after.pending_update.as_ref()?.target_hash;
    let note = format!("refuses the approval of {given}: the target is {target}");
    Some(event(EventType::Warning, "ApprovalRefused", &given, &note))
}

/// The recorder counts events of one reason and action as one; the action holds what differs.
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
