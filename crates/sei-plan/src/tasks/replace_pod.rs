//! `replace-pod`: when exactly a pod is deleted.

use sei_api::condition::Reason;
use sei_api::plan::{Applied, PlanTarget, TaskPlan};
use sei_api::status::SeiNodeStatus;

use super::{Effects, Next, fail, not_ours, read, request, wait, wait_and_poll};
use crate::budget;
use crate::desired::Desired;
use crate::diff::lacks_rendered;
use crate::request::{PodDelete, Read, Request};
use crate::seen::{Reading, Seen};
use crate::shared::Shared;
use crate::view::{Freshness, Known, PodView, Revisions, StatefulSetView, freshness, is_owned};

#[cfg(test)]
mod tests;

/// Conflicts in a row after which a delete no longer carries the pod's resourceVersion.
const CONFLICTS_TOLERATED: u32 = 5;

/// A pod is deleted when, and only when, all of this holds:
///
/// 1. the current task of a stored, active plan is `replace-pod` or `observe-image`;
/// 2. the StatefulSet exists and is this node's own, is not being deleted, is for one replica, and
///    its controller has observed its newest template (`observedGeneration`, `updateRevision`):
///    read live, or proved to be what this plan applied;
/// 3. a pod exists that this StatefulSet controls, that carries a revision label other than
///    `updateRevision`, and that is not already terminating: by a live list; for a node that does not
///    sign by the cache, as the server refuses to delete it if the cache has an old version of it.
///
/// Readiness plays no part: a node halted at an upgrade height is unready on purpose. The deletion
/// carries the pod's uid and resourceVersion and no grace period of its own. The task is done once
/// no stale pod is left and a fresh one exists, regardless of who replaced it.
pub(super) fn step(plan: &TaskPlan, seen: &Seen) -> Next {
    // A cache is enough to do nothing: no live call while the old pod is still terminating, or
    // while no pod exists yet.
    if let Some(next) = nothing_to_do_by_cache(plan, seen) {
        return next;
    }
    if let Some(pod) = fresh_by_cache(plan, seen) {
        return replaced(plan, pod);
    }
    let statefulset = match proven(plan, seen) {
        Ok(statefulset) => statefulset,
        Err(next) => return next,
    };
    if statefulset.selector.is_none() {
        return fail("replace-pod: the StatefulSet has no selector");
    }
    if statefulset.replicas.is_some_and(|replicas| replicas > 1) {
        return fail(format!(
            "replace-pod: multi-replica StatefulSet ({} replicas); a node has one pod",
            statefulset.replicas.unwrap_or_default()
        ));
    }
    let Some(revisions) = revisions(plan, statefulset, seen) else {
        return not_observed(statefulset, 0);
    };
    if let Reading::Cached(Some(pods)) = &seen.pods
        && stale(pods, statefulset, revisions).is_none()
        && let Some(pod) = fresh(pods, statefulset, revisions)
    {
        return replaced(plan, pod);
    }
    let pods = match &seen.pods {
        Reading::Live(pods) => pods.as_deref().unwrap_or_default(),
        Reading::Cached(Some(pods)) if is_cache_enough(pods, statefulset, revisions, seen) => pods,
        Reading::Cached(_) | Reading::Unread => return read(Read::Pods),
    };
    if let Some(pod) = stale(pods, statefulset, revisions) {
        match seen.newest_generation {
            None => return read(Read::Generation { live: seen.node.spec.signs() }),
            // A watch may also lag behind what was read; a node that no longer exists has none.
            Some(newest) if newest == 0 || seen.node.metadata.generation < Some(newest) => {
                let message = "the spec has changed; the plan is compared with it first";
                return wait_and_poll(seen, None, message);
            }
            Some(_) => {}
        }
        if pod.ready && budget::is_provisional(plan) {
            let message = "the node is Ready again; it requests a slot of its chain first";
            return wait_and_poll(seen, None, message);
        }
        let insists = seen.delete_conflicts < CONFLICTS_TOLERATED;
        return request(Request::DeletePod(PodDelete {
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            resource_version: insists.then(|| pod.resource_version.clone()),
        }));
    }
    match fresh(pods, statefulset, revisions) {
        Some(pod) => replaced(plan, pod),
        None => no_fresh_pod(pods, statefulset),
    }
}

/// The revisions at which a pod is what this plan leads to, once the newest template was observed.
pub(super) fn revisions<'a>(
    plan: &'a TaskPlan,
    statefulset: &'a StatefulSetView,
    seen: &'a Seen,
) -> Option<Revisions<'a>> {
    let of_plan = plan.applied.as_ref().and_then(|applied| applied.revision.as_deref());
    let of_plan = of_plan.map(|revision| Known { revision, images: None });
    let recorded = seen.node.status.as_ref().zip(plan.target.as_ref());
    let recorded = recorded.and_then(|(status, target)| recorded_revision(status, target));
    let replaces = plan.target.as_ref().and_then(|target| target.replaces_pod.as_deref());
    Some(Revisions {
        newest: statefulset.observed_revision()?,
        known: of_plan.or(recorded),
        replaces,
    })
}

/// The revision of a pod that was observed to be made from the target. Where admission rewrites
/// images, its image has the name that was recorded when the same image was desired.
fn recorded_revision<'a>(status: &'a SeiNodeStatus, target: &'a PlanTarget) -> Option<Known<'a>> {
    let template = status.pod_template.as_ref()?;
    let is_target = status.pod_template_hash.as_ref() == Some(&target.hash);
    let desired = target.image.as_str();
    let was_desired = template.desired_image.as_deref() == Some(desired);
    let renamed = status.current_image.as_deref().filter(|_| was_desired).unwrap_or(desired);
    is_target.then(|| Known { revision: &template.revision, images: Some([desired, renamed]) })
}

/// The pod to delete: owned, labelled with another revision, not terminating.
pub fn stale<'a>(
    pods: &'a [Shared<PodView>],
    statefulset: &StatefulSetView,
    revisions: Revisions<'_>,
) -> Option<&'a PodView> {
    pods.iter().map(|pod| &**pod).find(|pod| {
        freshness(pod, statefulset, revisions) == Freshness::Stale && !pod.is_terminating()
    })
}

/// The pod that runs the newest revision and is not terminating.
pub fn fresh<'a>(
    pods: &'a [Shared<PodView>],
    statefulset: &StatefulSetView,
    revisions: Revisions<'_>,
) -> Option<&'a PodView> {
    pods.iter().map(|pod| &**pod).find(|pod| {
        freshness(pod, statefulset, revisions) == Freshness::Fresh && !pod.is_terminating()
    })
}

/// Whether a pod may be deleted as the cache shows it, without a list.
fn is_cache_enough(
    pods: &[Shared<PodView>],
    statefulset: &StatefulSetView,
    revisions: Revisions<'_>,
    seen: &Seen,
) -> bool {
    !seen.node.spec.signs()
        && matches!(seen.statefulset, Reading::Cached(_))
        && seen.delete_conflicts == 0
        && stale(pods, statefulset, revisions).is_some()
}

fn nothing_to_do_by_cache(plan: &TaskPlan, seen: &Seen) -> Option<Next> {
    if seen.deleted_pod.is_some() {
        return Some(wait(Reason::PodTerminating, "the old pod is terminating"));
    }
    let (Reading::Cached(Some(statefulset)), Reading::Cached(Some(pods))) =
        (&seen.statefulset, &seen.pods)
    else {
        return None;
    };
    if let Some(applied) = plan.applied.as_ref().filter(|applied| applied.uid == statefulset.uid) {
        // Our own apply, or the controller's status update, enqueues the node once it is cached.
        let caught_up = statefulset.generation >= applied.generation;
        if !caught_up || statefulset.observed_revision().is_none() {
            return Some(not_observed(statefulset, applied.generation));
        }
    }
    let owned: Vec<_> = pods.iter().filter(|pod| is_owned(pod, statefulset)).collect();
    let idle = owned.iter().all(|pod| pod.is_terminating());
    idle.then(|| no_fresh_pod(pods, statefulset))
}

/// The fresh pod by a cache that has caught up with this plan's own apply, which shows only the
/// successor. Completing the task changes nothing by itself: the next task reads live before it
/// stamps.
fn fresh_by_cache<'a>(plan: &TaskPlan, seen: &'a Seen) -> Option<&'a PodView> {
    let (Reading::Cached(Some(statefulset)), Reading::Cached(Some(pods))) =
        (&seen.statefulset, &seen.pods)
    else {
        return None;
    };
    let revisions = revisions(plan, statefulset, seen)?;
    if !is_what_we_applied(plan, statefulset) || stale(pods, statefulset, revisions).is_some() {
        return None;
    }
    fresh(pods, statefulset, revisions)
}

/// Done. The plan continues with this pod, also if the revision of the StatefulSet moves meanwhile.
fn replaced(plan: &TaskPlan, pod: &PodView) -> Next {
    let applied = plan.applied.clone();
    let applied = applied.map(|applied| Applied { revision: pod.revision.clone(), ..applied });
    Next::Done(Box::new(Effects { applied, ..Effects::default() }))
}

/// The StatefulSet, read live or proved to be the one that this plan applied and that its
/// controller has observed since. A node that signs is always read live.
pub(super) fn proven<'a>(plan: &TaskPlan, seen: &'a Seen) -> Result<&'a StatefulSetView, Next> {
    match &seen.statefulset {
        Reading::Live(Some(statefulset)) => check(plan, statefulset, seen),
        Reading::Live(None) => Err(wait(None, "StatefulSet not found; it will be created again")),
        Reading::Cached(Some(statefulset))
            if !seen.node.spec.signs() && is_what_we_applied(plan, statefulset) =>
        {
            Ok(statefulset)
        }
        // The controller's status update enqueues the node: until then nothing can be done.
        Reading::Cached(Some(statefulset))
            if statefulset.observed_generation < statefulset.generation =>
        {
            Err(not_observed(statefulset, 0))
        }
        Reading::Cached(_) | Reading::Unread => Err(read(Read::StatefulSet)),
    }
}

fn check<'a>(
    plan: &TaskPlan,
    statefulset: &'a StatefulSetView,
    seen: &Seen,
) -> Result<&'a StatefulSetView, Next> {
    if let Some(next) = not_ours(statefulset, seen) {
        return Err(next);
    }
    if statefulset.terminating {
        let message = "the StatefulSet is being deleted; its pod is not replaced";
        return Err(wait(Reason::StatefulSetTerminating, message));
    }
    let target = plan.target.as_ref().map(|target| &target.hash);
    if target.is_some_and(|hash| statefulset.template_hash.as_ref() != Some(hash)) {
        // Nothing is deleted for, and nothing stamped by, a template that is not this plan's.
        return Err(wait(None, "another template was applied; the plan will be superseded"));
    }
    if is_edited(plan, statefulset, &seen.desired) {
        return Err(wait(None, "the applied template was edited; the plan will be superseded"));
    }
    if statefulset.observed_revision().is_none() {
        return Err(not_observed(statefulset, 0));
    }
    Ok(statefulset)
}

/// Whether the template was edited after this plan's own apply: a rendered field is missing or has
/// another value. Fields that others added stay theirs.
pub fn is_edited(plan: &TaskPlan, statefulset: &StatefulSetView, desired: &Desired) -> bool {
    let Some(applied) = &plan.applied else { return false };
    let is_rendered = plan.target.as_ref().is_some_and(|target| target.hash == desired.hash);
    statefulset.uid == applied.uid
        && statefulset.generation > applied.generation
        && is_rendered
        && lacks_rendered(&statefulset.template.json(), &desired.template())
}

/// The proof that a cached StatefulSet is no older than this plan's own apply.
fn is_what_we_applied(plan: &TaskPlan, statefulset: &StatefulSetView) -> bool {
    let (Some(applied), Some(target)) = (&plan.applied, &plan.target) else { return false };
    statefulset.uid == applied.uid
        && statefulset.generation >= applied.generation
        && statefulset.template_hash.as_ref() == Some(&target.hash)
        && !statefulset.terminating
        && statefulset.observed_revision().is_some()
}

fn not_observed(statefulset: &StatefulSetView, applied: i64) -> Next {
    wait(
        Reason::StatefulSetNotObserved,
        format!(
            "the StatefulSet controller has observed generation {} of {}",
            statefulset.observed_generation,
            statefulset.generation.max(applied)
        ),
    )
}

fn no_fresh_pod(pods: &[Shared<PodView>], statefulset: &StatefulSetView) -> Next {
    let owned = || pods.iter().filter(|pod| is_owned(pod, statefulset));
    if let Some(pod) = owned().find(|pod| pod.is_terminating()) {
        let host = pod.host.as_deref().unwrap_or("no Kubernetes node");
        let message = format!("pod {} on {host} is terminating", pod.name);
        return wait(Reason::PodTerminating, message);
    }
    if let Some(pod) = owned().find(|pod| pod.revision.as_deref().is_none_or(str::is_empty)) {
        let message = format!("pod {} has no revision label and is not replaced", pod.name);
        return wait(Reason::StatefulSetNotObserved, message);
    }
    wait(Reason::StatefulSetNotObserved, "the StatefulSet controller has not created the pod yet")
}
