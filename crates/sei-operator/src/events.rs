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
    if before.last_update != after.last_update
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

#[cfg(test)]
mod tests {
    use sei_api::condition::{Reason, Truth, Verdict};

    use super::*;

    // SS18
    #[test]
    fn a_blocked_node_is_told_once() {
        let before = SeiNodeStatus::default();
        let mut after = before.clone();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let (kind, reason) = (ConditionType::StateSyncReady, Reason::NoSyncersConfigured);
        let verdict = Verdict::new(kind, Truth::False, reason, "one of two");
        condition::set(&mut after.conditions, &verdict, 1, now);
        let told: Vec<_> = changes(&before, &after).into_iter().map(|one| one.reason).collect();
        assert_eq!(told, ["StateSyncBlocked"]);
        assert_eq!(changes(&after, &after).len(), 0);
    }
}
