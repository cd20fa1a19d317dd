//! The pull of an update's images before anything in the cluster changes.
//!
//! It is the first step of `apply-statefulset` in an update, not a task of its own: plans stay
//! readable for the Go operator and for older versions, and until it ends an evicted pod is
//! recreated from the old template. The pod itself is the record of the pull, so a crash of the
//! operator loses nothing.

use std::collections::BTreeSet;

use jiff::Timestamp;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict, find};
use sei_api::names::pre_pull_pod;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::task::TaskType;

use super::{Next, Waiting, kind_of, read, request};
use crate::planner::{later, wait_until};
use crate::pre_pull::machine::Credentials;
use crate::pre_pull::{PrePullView, Pull, pod, purpose};
use crate::request::{Read, Request};
use crate::seen::{Reading, Seen};
use crate::snapshot::Snapshot;
use crate::view::{PodView, SEID, SIDECAR, StatefulSetView, is_owned};

#[cfg(test)]
pub(super) mod tests;

/// In the message of a condition: the update continued without the proof that its images can be
/// pulled.
pub const SKIPPED: &str = "without a pre-pull: ";

/// What has to happen before the template of an update is applied; `None`: nothing, or no more.
pub(super) fn step(plan: &TaskPlan, statefulset: &StatefulSetView, seen: &Seen) -> Option<Next> {
    if !is_due(plan, seen) || seen.pre_pull_refused.is_some() {
        return None;
    }
    let Some(running) = running(seen) else {
        // The pod was evicted meanwhile. What the pull has shown so far still holds, and the next
        // pod is recreated from the old template.
        let found = seen.pre_pull.any().filter(|found| is_own(found, seen))?;
        return plan.id.as_deref().filter(|id| found.is_of(id)).and(wait_for(found, None, seen));
    };
    let mut images = changed_images(running, statefulset, seen);
    let shared = shared_pulls(seen);
    images.retain(|(_, image)| !shared.complete.contains(image));
    if images.is_empty() {
        return None;
    }
    let (host, purpose) = (running.host.as_deref()?, purpose_of(plan, running)?);
    let found = match &seen.pre_pull {
        Reading::Unread => return Some(read(Read::PrePull)),
        Reading::Cached(found) | Reading::Live(found) => found.as_ref(),
    };
    let Some(found) = found else {
        if images.iter().all(|(_, image)| shared.begun.contains(image)) {
            let message = format!("another node's pull of the same images on {host} is under way");
            let again = Some(seen.timing.pre_pull_shared());
            return Some(Next::Wait(Waiting { message, again, ..Waiting::default() }));
        }
        let pod = pod(seen.name(), &seen.desired, &images, &purpose, host);
        return Some(request(Request::CreatePrePull(Box::new(pod))));
    };
    if !is_own(found, seen) {
        return None;
    }
    if found.purpose.as_ref() == Some(&purpose) {
        return wait_for(found, Some(running), seen);
    }
    match found.deleted_at {
        None => Some(request(Request::DeletePrePull { uid: found.uid.clone() })),
        Some(deleted) => {
            let deadline = later(deleted, seen.timing.pre_pull_short());
            wait(None, "is being deleted", Some(deadline), seen)
        }
    }
}

/// Waits for the end of a pull, as long as that is worth it. `running` is the pod that the update
/// replaces.
fn wait_for(found: &PrePullView, running: Option<&PodView>, seen: &Seen) -> Option<Next> {
    let timing = seen.timing;
    let is_ready = running.is_some_and(|pod| pod.ready);
    let created = found.created_at.unwrap_or(seen.now);
    let unready = running.and_then(|pod| pod.ready_since).unwrap_or(created);
    let short = |since| Some(later(since, timing.pre_pull_short()));
    match &found.pull {
        Pull::Pulled | Pull::Refused(_) => None,
        Pull::Failed(message) => {
            let deadline = match running {
                // A node that is down loses nothing, and its own pod may be able to pull what this
                // one cannot. One that has just restarted is not down.
                Some(pod) if !pod.ready => {
                    short(created).max(Some(later(unready, timing.outage())))
                }
                _ => None,
            };
            wait(Some(Reason::ImageNotPullable), message, deadline, seen)
        }
        Pull::Unclaimed => {
            let deadline = later(created, timing.pre_pull_claim());
            wait(None, "is not taken by its machine yet", Some(deadline), seen)
        }
        Pull::Unschedulable(message) => wait(None, message, short(created), seen),
        Pull::Pending => {
            let deadline = Some(later(created, timing.pre_pull())).filter(|_| is_ready);
            wait(None, "pulls the images", deadline.or(short(created.max(unready))), seen)
        }
    }
}

/// Waits until the deadline, or without one until an event of either pod; `None` if it has passed,
/// or starts far in the future by another clock.
fn wait(
    reason: Option<Reason>,
    text: &str,
    deadline: Option<Timestamp>,
    seen: &Seen,
) -> Option<Next> {
    let again = match deadline {
        None => None,
        // The pod may be younger than this pass, so its start may be a little in the future.
        Some(deadline) => Some(wait_until(deadline, seen.now, seen.timing.pre_pull() * 2)?),
    };
    let message = format!("pod {}: {text}", pre_pull_pod(seen.name()));
    Some(Next::Wait(Waiting { reason, message, again, verdict: None }))
}

fn is_due(plan: &TaskPlan, seen: &Seen) -> bool {
    seen.pre_pulls && kind_of(plan) == PlanKind::NodeUpdate
}

fn is_own(found: &PrePullView, seen: &Seen) -> bool {
    found.controller == seen.node.metadata.uid
}

/// The pod that an update replaces, once it has a machine.
fn running(seen: &Seen) -> Option<&PodView> {
    let statefulset = seen.statefulset.any()?;
    let mut pods = seen.pods.any()?.iter().map(|pod| &**pod);
    pods.find(|pod| is_owned(pod, statefulset) && !pod.is_terminating() && pod.host.is_some())
}

fn purpose_of(plan: &TaskPlan, running: &PodView) -> Option<String> {
    Some(purpose(plan.id.as_deref()?, running.host.as_deref()?))
}

/// The images of the new template that the running pod does not have, each with the name of its
/// first container. Admission may rewrite the images of a pod, so those of its template count too.
fn changed_images(
    running: &PodView,
    statefulset: &StatefulSetView,
    seen: &Seen,
) -> Vec<(String, String)> {
    let made_from_it = running.revision.as_deref() == statefulset.observed_revision();
    let own = [running.seid.image.as_str(), running.sidecar.image.as_str()];
    let live = statefulset.template.containers();
    let of_template = live.init_containers.iter().chain(&live.containers).filter(|container| {
        // The template of a newer revision still has the other images of the pod.
        let is_own = container.name == SEID || container.name == SIDECAR;
        made_from_it || !is_own
    });
    let of_template = of_template.map(|container| container.image.as_str());
    let mut known: BTreeSet<String> =
        own.into_iter().chain(of_template).map(str::to_owned).collect();
    let desired = seen.desired.containers();
    let containers = desired.containers.into_iter().chain(desired.init_containers);
    let named = containers.filter(|container| !container.image.is_empty());
    named
        .filter(|container| known.insert(container.image.clone()))
        .map(|container| (container.name, container.image))
        .collect()
}

/// Images that nodes of the same namespace pull with the same credentials on the same machine.
#[derive(Default)]
struct SharedPulls<'a> {
    complete: BTreeSet<&'a String>,
    /// By other nodes.
    begun: BTreeSet<&'a String>,
}

fn shared_pulls(seen: &Seen) -> SharedPulls<'_> {
    let mut shared = SharedPulls::default();
    if seen.pulls.is_empty() {
        return shared;
    }
    let template = seen.desired.statefulset.unpack().spec.template.spec;
    let credentials = template.as_ref().map(Credentials::of).unwrap_or_default();
    for pull in seen.pulls.iter().filter(|pull| pull.credentials == credentials) {
        if pull.is_complete {
            shared.complete.extend(&pull.images);
        } else if seen.node.metadata.uid.as_ref() != Some(&pull.node) {
            shared.begun.extend(&pull.images);
        }
    }
    shared
}

/// Reports that an update has continued without the proof that its images can be pulled.
pub(super) fn skipped(plan: &TaskPlan, seen: &Seen) -> Option<Verdict> {
    if !is_due(plan, seen) {
        return None;
    }
    let why = match (&seen.pre_pull_refused, seen.pre_pull.any()) {
        (Some(refused), _) => refused.clone(),
        (None, None) => return None,
        (None, Some(found)) if !is_own(found, seen) => {
            format!("pod {} is not controlled by this node", pre_pull_pod(seen.name()))
        }
        (None, Some(found)) => match &found.pull {
            Pull::Pulled => return None,
            Pull::Unclaimed => "the machine did not take the pod in time".to_owned(),
            Pull::Pending => "the pull did not end in time".to_owned(),
            Pull::Failed(message) | Pull::Refused(message) | Pull::Unschedulable(message) => {
                message.clone()
            }
        },
    };
    let condition = ConditionType::NodeUpdateInProgress;
    let status = seen.node.status.as_ref()?;
    let message = &find(&status.conditions, condition)?.message;
    let message = format!("{message}; {SKIPPED}{why}");
    Some(Verdict::new(condition, ConditionStatus::True, Reason::UpdateStarted, message))
}

/// The deletion of a pod that no plan needs any more, at whatever point its plan was left. It waits
/// until the old pod terminates: an event in the middle of the replacement would cost more reads.
pub fn unneeded(snapshot: &Snapshot) -> Option<Request> {
    let found = snapshot.pre_pull.as_ref().filter(|found| found.deleted_at.is_none())?;
    let plan = snapshot.status().plan.as_ref().filter(|plan| plan.is_active());
    let needs = |plan: &TaskPlan| {
        let at = |tasks: &[TaskType]| {
            let current = plan.current().map(|(_, task)| task);
            current.is_some_and(|task| tasks.iter().any(|expected| task.is(*expected)))
        };
        let applies = at(&[TaskType::ApplyStatefulSet]);
        let replaces = at(&[TaskType::ApplyService, TaskType::ReplacePod]);
        let is_current = match snapshot.pod().and_then(|running| purpose_of(plan, running)) {
            Some(purpose) => (applies || replaces) && found.purpose.as_ref() == Some(&purpose),
            None => applies && plan.id.as_deref().is_some_and(|id| found.is_of(id)),
        };
        snapshot.rollout.pre_pulls && is_current
    };
    (!plan.is_some_and(needs)).then(|| Request::DeletePrePull { uid: found.uid.clone() })
}
