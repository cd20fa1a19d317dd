//! `observe-image`: what the fresh pod was seen running.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::plan::{PlanKind, TaskPlan};
use sei_api::status::ObservedTemplate;

use super::{Effects, Next, Stamp, kind_of, read, replace_pod, wait};
use crate::request::Read;
use crate::seen::{Look, Seen};
use crate::view::{Freshness, PodView, freshness};

/// Done when the fresh pod's chain process and sidecar have an image id and have run, with the
/// plan's images.
///
/// The fields `started` and `ready` are not read: the chain process counts as started only once
/// the sidecar's gate is open, and `mark-ready` opens it after this task.
///
/// A stale pod here means that somebody's old view brought one back: it is replaced once more, by
/// the same rules.
pub(super) fn step(plan: &TaskPlan, seen: &Seen) -> Next {
    if let Some(missing) = missing_by_cache(plan, seen) {
        return wait(None, missing);
    }
    match replace_pod::step(plan, seen) {
        Next::Done(_) => {}
        other => return other,
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
    let (image, sidecar_image) = images(plan, seen);
    if let Some(missing) = not_running(known, &image, &sidecar_image) {
        return wait(None, missing);
    }
    // A stamp is a promise: it needs a live look at the pod itself.
    let Look::Live(live) = &seen.pod else { return read(Read::Pod(known.name.clone())) };
    let Some(pod) = live.as_ref().filter(|pod| pod.uid == known.uid) else {
        return wait(None, "the pod was replaced while it was looked at");
    };
    if freshness(pod, statefulset, revisions) != Freshness::Fresh || pod.is_terminating() {
        return wait(None, "the pod was replaced while it was looked at");
    }
    if let Some(missing) = not_running(pod, &image, &sidecar_image) {
        return wait(None, missing);
    }
    let (hash, inputs_hash) = match &plan.target {
        Some(target) => (&target.hash, target.inputs_hash.as_ref()),
        None => (&seen.wanted.hash, None),
    };
    let stamp = observe(
        pod,
        &MadeFrom {
            hash,
            inputs_hash: inputs_hash.unwrap_or(&seen.wanted.inputs_hash),
            config: &written(plan, seen),
            operator_version: &seen.operator_version,
            now: seen.now,
        },
    );
    Next::Done(Box::new(Effects { stamp, ..Effects::default() }))
}

/// What the fresh pod still lacks by the caches: no live call while it starts.
fn missing_by_cache(plan: &TaskPlan, seen: &Seen) -> Option<String> {
    let (Look::Cached(Some(statefulset)), Look::Cached(Some(pods))) =
        (&seen.statefulset, &seen.pods)
    else {
        return None;
    };
    let revisions = replace_pod::revisions(plan, statefulset, seen)?;
    if replace_pod::stale(pods, statefulset, revisions).is_some() {
        return None;
    }
    let fresh = replace_pod::fresh(pods, statefulset, revisions)?;
    let (image, sidecar_image) = images(plan, seen);
    not_running(fresh, &image, &sidecar_image)
}

/// The settings that this plan wrote, as they were when it was built; others stay as recorded. An
/// update patches addresses, it does not write whole files.
fn written(plan: &TaskPlan, seen: &Seen) -> BTreeMap<String, String> {
    let mut config = plan
        .target
        .as_ref()
        .map(|target| target.config.clone())
        .filter(|config| !config.is_empty())
        .unwrap_or_else(|| seen.wanted.config.clone());
    if kind_of(plan) == PlanKind::NodeUpdate
        && let Some(template) =
            seen.node.status.as_ref().and_then(|status| status.pod_template.as_ref())
        && let Some(recorded) = template.config.get("overrides")
    {
        config.insert("overrides".to_owned(), recorded.clone());
    }
    config
}

/// What a pod is known to have been made from, and when that was seen.
#[derive(Clone, Copy, Debug)]
pub struct MadeFrom<'a> {
    pub hash: &'a str,
    pub inputs_hash: &'a str,
    pub config: &'a BTreeMap<String, String>,
    pub operator_version: &'a str,
    pub now: Timestamp,
}

/// The one maker of stamps: what this pod runs, seen now; `None` while it does not run.
pub fn observe(pod: &PodView, made_from: &MadeFrom<'_>) -> Option<Stamp> {
    not_running(pod, &pod.seid.image, &pod.sidecar.image).is_none().then(|| Stamp {
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
        },
    })
}

fn images(plan: &TaskPlan, seen: &Seen) -> (String, String) {
    match &plan.target {
        Some(target) => (target.image.clone(), target.sidecar_image.clone()),
        None => (seen.wanted.image.clone(), seen.wanted.sidecar_image.clone()),
    }
}

/// What is still missing until the pod counts as running these images.
pub(super) fn not_running(pod: &PodView, image: &str, sidecar_image: &str) -> Option<String> {
    let containers = [("seid", &pod.seid, image), ("sei-sidecar", &pod.sidecar, sidecar_image)];
    containers.into_iter().find_map(|(name, container, wanted)| {
        if container.image != wanted {
            return Some(format!(
                "container {name} of pod {} has image {}, not {wanted}",
                pod.name, container.image
            ));
        }
        let runs = !container.image_id.is_empty() && container.has_run;
        (!runs).then(|| format!("container {name} of pod {} has not run yet", pod.name))
    })
}
