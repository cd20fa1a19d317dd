//! Events that read well in `kubectl describe`.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::runtime::events::{Event, EventType, Recorder};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionType};
use sei_api::status::{SeiNodeStatus, UpdateOutcome};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// How long the server may take for one event, and for the rest of them when the operator ends.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many events may wait for a slow server. What comes on top of them is lost; client-go draws
/// the line at the same number.
const QUEUE_MAX: usize = 1000;

/// Tells events one after the other, outside of the passes: they are a courtesy, and a pass that
/// waited for one would hold up its node, and with it the chain.
pub struct Events(mpsc::Sender<Message>);

enum Message {
    Tell(Box<(Event, ObjectReference)>),
    /// Answered once all that was asked for before is told or lost.
    Flush(oneshot::Sender<()>),
}

impl Events {
    /// Starts to tell what will be asked for, until this is dropped.
    pub fn start(recorder: Recorder) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        tokio::spawn(tell(recorder, receiver));
        Self(sender)
    }

    /// Tells, in a while, what a status write changed.
    pub(crate) fn status_changed(
        &self,
        node: &SeiNode,
        before: &SeiNodeStatus,
        after: &SeiNodeStatus,
    ) {
        for event in changes(before, after) {
            let message = Message::Tell(Box::new((event, node.object_ref(&()))));
            if self.0.try_send(message).is_err() {
                tracing::debug!("an event was lost: too many wait");
            }
        }
    }

    /// Waits until all is told, but no longer than a server in trouble deserves.
    pub(crate) async fn told(&self) {
        let flushed = async {
            let (sender, receiver) = oneshot::channel();
            if self.0.send(Message::Flush(sender)).await.is_ok() {
                let _ = receiver.await;
            }
        };
        if timeout(PATIENCE, flushed).await.is_err() {
            tracing::debug!("the last events were lost: no answer");
        }
    }
}

async fn tell(recorder: Recorder, mut queue: mpsc::Receiver<Message>) {
    while let Some(message) = queue.recv().await {
        match message {
            Message::Tell(told) => {
                let (event, about) = *told;
                match timeout(PATIENCE, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        let error = sei_exec::call::chain(&error);
                        tracing::debug!(%error, "an event was lost");
                    }
                    Err(_) => tracing::debug!("an event was lost: no answer"),
                }
            }
            // Nobody may be waiting for it any more.
            Message::Flush(done) => drop(done.send(())),
        }
    }
}

/// The events of a change of status.
fn changes(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Vec<Event> {
    let told = [
        phase(before, after),
        update_started(before, after),
        update_ended(before, after),
        drift(before, after),
        refusal(before, after),
        stalled(before, after),
        witnesses(before, after),
        peers(before, after),
        sidecar(before, after),
    ];
    told.into_iter().flatten().collect()
}

/// A condition whose status or reason has changed, with what it was before.
fn changed<'a>(
    before: &'a SeiNodeStatus,
    after: &'a SeiNodeStatus,
    kind: ConditionType,
) -> Option<(&'a Condition, Option<&'a Condition>)> {
    let one = condition::find(&after.conditions, kind)?;
    let was = condition::find(&before.conditions, kind);
    let same = was.is_some_and(|was| was.reason == one.reason && was.status == one.status);
    (!same).then_some((one, was))
}

fn phase(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let to = after.phase.filter(|_| before.phase != after.phase)?;
    let from = before.phase.map_or("nothing", |phase| phase.as_str());
    let note = format!("{from} -> {}", to.as_str());
    Some(event(EventType::Normal, "PhaseTransition", to.as_str(), &note))
}

fn update_started(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, _) = changed(before, after, ConditionType::NodeUpdateInProgress)?;
    (one.status == "True")
        .then(|| event(EventType::Normal, "UpdateStarted", "Update", &one.message))
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

/// A difference that waits for somebody: nothing else would tell them.
fn drift(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, _) = changed(before, after, ConditionType::PodTemplateDrift)?;
    ["AdoptedWithDrift", "Held"]
        .contains(&one.reason.as_str())
        .then(|| event(EventType::Normal, &one.reason, "Drift", &one.message))
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

fn stalled(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, _) = changed(before, after, ConditionType::Stalled)?;
    (one.status == "True").then(|| event(EventType::Warning, &one.reason, "Stalled", &one.message))
}

fn witnesses(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, _) = changed(before, after, ConditionType::StateSyncReady)?;
    ["NoSyncersConfigured", "SyncerSourceError"]
        .contains(&one.reason.as_str())
        .then(|| event(EventType::Warning, "StateSyncBlocked", &one.reason, &one.message))
}

fn peers(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, _) = changed(before, after, ConditionType::PeersResolved)?;
    (one.status == "False").then(|| event(EventType::Warning, &one.reason, "Peers", &one.message))
}

fn sidecar(before: &SeiNodeStatus, after: &SeiNodeStatus) -> Option<Event> {
    let (one, was) = changed(before, after, ConditionType::SidecarReady)?;
    match (was?.status.as_str(), one.status.as_str()) {
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
    use sei_api::condition::{ConditionStatus, Reason, Verdict};

    use super::*;

    // SS18
    #[test]
    fn a_blocked_node_is_told_once() {
        let before = SeiNodeStatus::default();
        let mut after = before.clone();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let (kind, reason) = (ConditionType::StateSyncReady, Reason::NoSyncersConfigured);
        let verdict = Verdict::new(kind, ConditionStatus::False, reason, "one of two");
        condition::set(&mut after.conditions, &verdict, 1, now);
        let told: Vec<_> = changes(&before, &after).into_iter().map(|one| one.reason).collect();
        assert_eq!(told, ["StateSyncBlocked"]);
        assert_eq!(changes(&after, &after).len(), 0);
    }
}
