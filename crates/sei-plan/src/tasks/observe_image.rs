//! `observe-image`: records what the fresh pod runs.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::ObservedTemplate;
use sei_api::task::TaskType;

use super::{Effects, Next, Stamp, kind_of, read, replace_pod, wait};
use crate::request::Read;
use crate::seen::{Reading, Seen};
use crate::view::{Freshness, PodView, freshness};

/// Done when the fresh pod's chain process and sidecar have an image id and have run. Its revision
/// proves that it was created from the plan's template; its images may have other names, where
/// admission redirects them to a mirror.
///
/// The fields `started` and `ready` are not read: the chain process counts as started only once
/// the sidecar's gate is open, and `mark-ready` opens it after this task.
///
/// A stale pod here means that a lagging controller recreated one: it is replaced once more, by
/// the same rules.
pub(super) fn step(plan: &TaskPlan, seen: &Seen) -> Next {
    if let Some(missing) = missing_by_cache(plan, seen) {
        return wait(None, missing);
    }
    match replace_pod::step(plan, seen) {
        Next::Done(_) => {}
        next => return next,
    }
    let statefulset = match replace_pod::proven(plan, seen) {
        Ok(statefulset) => statefulset,
        Err(next) => return next,
    };
    let Some(revisions) = replace_pod::revisions(plan, statefulset, seen) else {
        return read(Read::StatefulSet);
    };
    let pods = seen.pods.any().map(Vec::as_slice).unwrap_or_default();
    let Some(known) = replace_pod::fresh(pods, statefulset, revisions) else {
        return read(Read::Pods);
    };
    if let Some(missing) = lacks(known, plan, seen) {
        return wait(None, missing);
    }
    let pod = match &seen.pod {
        Reading::Live(live) => live.as_ref().filter(|pod| pod.uid == known.uid).map(|pod| &**pod),
        // Both caches are newer than this plan's own apply. A node that signs is always read live.
        _ if matches!(seen.statefulset, Reading::Cached(_)) => Some(known),
        _ => return read(Read::Pod(known.name.clone())),
    };
    let Some(pod) = pod else {
        return wait(None, "the pod was replaced while it was observed");
    };
    if freshness(pod, statefulset, revisions) != Freshness::Fresh || pod.is_terminating() {
        return wait(None, "the pod was replaced while it was observed");
    }
    if let Some(missing) = lacks(pod, plan, seen) {
        return wait(None, missing);
    }
    let desired = &seen.desired;
    let (hash, inputs_hash, image, sidecar_image) = match &plan.target {
        Some(target) => {
            (&target.hash, target.inputs_hash.as_ref(), &target.image, &target.sidecar_image)
        }
        None => (&desired.hash, None, &desired.image, &desired.sidecar_image),
    };
    let stamp = observe(
        pod,
        &MadeFrom {
            hash,
            inputs_hash: inputs_hash.unwrap_or(&desired.inputs_hash),
            image,
            sidecar_image,
            config: &written(plan, seen),
            operator_version: &seen.operator_version,
            now: seen.now,
        },
    );
    // Its last pod with a key has ended: another node may use the key.
    let signed = seen.node.status.as_ref().is_some_and(|status| status.signing_identity.is_some());
    let signing_stopped = signed && !seen.node.spec.signs() && plan.target.is_some();
    Next::Done(Box::new(Effects { stamp, signing_stopped, ..Effects::default() }))
}

/// What the fresh pod still lacks according to the caches: no live call while it starts.
fn missing_by_cache(plan: &TaskPlan, seen: &Seen) -> Option<String> {
    let (Reading::Cached(Some(statefulset)), Reading::Cached(Some(pods))) =
        (&seen.statefulset, &seen.pods)
    else {
        return None;
    };
    let revisions = replace_pod::revisions(plan, statefulset, seen)?;
    if replace_pod::stale(pods, statefulset, revisions).is_some() {
        return None;
    }
    let fresh = replace_pod::fresh(pods, statefulset, revisions)?;
    lacks(fresh, plan, seen)
}

/// The settings that this plan wrote, as they were when it was built; others keep their recorded
/// value. An update patches addresses, it does not write whole files.
fn written(plan: &TaskPlan, seen: &Seen) -> BTreeMap<String, String> {
    let mut config = plan
        .target
        .as_ref()
        .map(|target| target.config.clone())
        .filter(|config| !config.is_empty())
        .unwrap_or_else(|| seen.desired.config.clone());
    if kind_of(plan) == PlanKind::NodeUpdate
        && !plan.has(TaskType::ConfigApply)
        && let Some(template) =
            seen.node.status.as_ref().and_then(|status| status.pod_template.as_ref())
        && let Some(recorded) = template.config.get("overrides")
    {
        config.insert("overrides".to_owned(), recorded.clone());
    }
    config
}

/// The origin of a pod, and when it was observed.
#[derive(Clone, Copy, Debug)]
pub struct MadeFrom<'a> {
    pub hash: &'a str,
    pub inputs_hash: &'a str,
    pub image: &'a str,
    pub sidecar_image: &'a str,
    pub config: &'a BTreeMap<String, String>,
    pub operator_version: &'a str,
    pub now: Timestamp,
}

/// The only constructor of stamps: what this pod runs now; `None` while it does not run.
pub fn observe(pod: &PodView, made_from: &MadeFrom<'_>) -> Option<Stamp> {
    not_running(pod).is_none().then(|| Stamp {
        image: pod.seid.image.clone(),
        sidecar_image: pod.sidecar.image.clone(),
        hash: made_from.hash.to_owned(),
        template: ObservedTemplate {
            revision: pod.revision.clone().unwrap_or_default(),
            pod_uid: pod.uid.clone(),
            inputs_hash: made_from.inputs_hash.to_owned(),
            operator_version: made_from.operator_version.to_owned(),
            observed_at: Some(Time(made_from.now)),
            config: made_from.config.clone(),
            desired_image: Some(made_from.image.to_owned()),
            desired_sidecar_image: Some(made_from.sidecar_image.to_owned()),
        },
    })
}

/// What the fresh pod of this plan still lacks. A plan of another operator names no template, so
/// only the images identify the pod that it means.
fn lacks(pod: &PodView, plan: &TaskPlan, seen: &Seen) -> Option<String> {
    let desired = &seen.desired;
    let means_another =
        pod.seid.image != desired.image || pod.sidecar.image != desired.sidecar_image;
    if plan.target.is_none() && means_another {
        return Some(format!(
            "pod {} has images {} and {}, expected {} and {}",
            pod.name, pod.seid.image, pod.sidecar.image, desired.image, desired.sidecar_image
        ));
    }
    not_running(pod)
}

/// Whether the chain process and the sidecar run, or have run.
pub fn has_run(pod: &PodView) -> bool {
    not_running(pod).is_none()
}

/// What is still missing until the pod counts as running.
pub(super) fn not_running(pod: &PodView) -> Option<String> {
    let containers = [("seid", &pod.seid), ("sei-sidecar", &pod.sidecar)];
    let idle = containers.into_iter().find(|(_, view)| view.image_id.is_empty() || !view.has_run);
    idle.map(|(name, _)| format!("container {name} of pod {} has not run yet", pod.name))
}
