//! Is the running pod what is desired, and if not: why, and may it roll now?
//!
//! Three fingerprints are compared: of the template rendered now (R), of the one last applied to
//! the StatefulSet (A), and of the one that the pod was observed to be made from (O). The
//! revisions of the StatefulSet say which pod is stale; they never say that something has drifted,
//! because they also move when Kubernetes itself is upgraded.

use std::time::Duration;

use sei_api::node::OnOperatorChange;
use sei_api::status::{Cause, FieldChange};
use serde_json::Value;

use crate::adoption::Comparison;
use crate::desired::Desired;
use crate::diff;
use crate::fingerprint::TemplateHash;
use crate::snapshot::{Slot, Snapshot};
use crate::tasks::{MadeFrom, Stamp, observe};
use crate::view::{PodView, StatefulSetView, is_owned};

/// How the running pod stands to the desired template.
#[derive(Clone, Debug, PartialEq)]
pub enum Drift {
    /// There is no pod to judge.
    NoPod,
    /// The pod has not run yet, so nothing can be said of it.
    NotRunning,
    InSync,
    /// Nobody knows what the pod was made from; the server has to judge.
    Unknown,
    /// The pod is what is desired, and status does not say so yet.
    Record(Box<Stamp>),
    /// The pod is what is desired; the StatefulSet would make another one (O = R ≠ A).
    Reapply,
    Differs(Difference),
}

/// A difference between the running pod and the desired one.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    pub cause: Cause,
    pub image_changed: bool,
    pub changes: Vec<FieldChange>,
}

/// Compares the running pod with the desired template.
pub fn classify(snapshot: &Snapshot, desired: &Desired) -> Drift {
    let Some(statefulset) = snapshot.own_statefulset() else { return Drift::NoPod };
    let Some(pod) = snapshot.pod() else {
        return classify_without_pod(snapshot, desired, statefulset);
    };
    match observed_hash(snapshot, desired, pod) {
        None => classify_unrecorded(snapshot, desired, pod),
        Some(observed) if observed == desired.hash => {
            classify_same(snapshot, desired, pod, statefulset)
        }
        Some(_) => Drift::Differs(Difference {
            cause: cause(snapshot, desired),
            image_changed: images_differ(snapshot, pod, desired),
            changes: changes(statefulset, desired, pod),
        }),
    }
}

/// No pod at all, where there should be one: the server may refuse what the StatefulSet would make,
/// and then only another template helps.
fn classify_without_pod(
    snapshot: &Snapshot,
    desired: &Desired,
    statefulset: &StatefulSetView,
) -> Drift {
    let is_due = statefulset.replicas == Some(1) && !statefulset.terminating;
    let has_pod = snapshot.pods().any(|pod| is_owned(pod, statefulset));
    let applied = statefulset.template_hash.as_deref();
    let differs =
        applied.is_some_and(|hash| hash != desired.hash && same_algorithm(hash, &desired.hash));
    if !is_due || has_pod || !differs {
        return Drift::NoPod;
    }
    if snapshot.status().pod_template_hash.as_ref() == Some(&desired.hash) {
        return Drift::Reapply;
    }
    Drift::Differs(Difference {
        cause: cause(snapshot, desired),
        image_changed: false,
        changes: template_changes(statefulset, desired),
    })
}

/// O, where it speaks for this pod: same revision, same algorithm. That a pod was made from what is
/// desired is not believed of one that has other images, whoever wrote it down.
pub fn observed_hash<'a>(
    snapshot: &'a Snapshot,
    desired: &Desired,
    pod: &PodView,
) -> Option<&'a str> {
    let status = snapshot.status();
    let hash = status.pod_template_hash.as_deref()?;
    let template = status.pod_template.as_ref()?;
    let speaks = pod.revision.as_deref() == Some(template.revision.as_str());
    let lies = hash == desired.hash && images_differ(snapshot, pod, desired);
    (speaks && !lies && same_algorithm(hash, &desired.hash)).then_some(hash)
}

/// Whether two fingerprints can be compared at all.
pub fn same_algorithm(one: &str, other: &str) -> bool {
    match (TemplateHash::parse(one), TemplateHash::parse(other)) {
        (Ok(one), Ok(other)) => one.algorithm() == other.algorithm(),
        _ => false,
    }
}

/// O = R.
fn classify_same(
    snapshot: &Snapshot,
    desired: &Desired,
    pod: &PodView,
    statefulset: &StatefulSetView,
) -> Drift {
    if !is_recorded(snapshot, desired, pod)
        && let Some(stamp) = stamp(snapshot, desired, pod)
    {
        return Drift::Record(Box::new(stamp));
    }
    match &statefulset.template_hash {
        Some(applied) if *applied == desired.hash => Drift::InSync,
        // Not our stamp, and yet new pods are made like this one: only the stamp is missing.
        applied
            if applied.as_ref().is_none_or(|hash| !same_algorithm(hash, &desired.hash))
                && statefulset.observed_revision() == pod.revision.as_deref() =>
        {
            Drift::InSync
        }
        _ => Drift::Reapply,
    }
}

/// Whether status already says of this pod that it was made from the desired template.
fn is_recorded(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> bool {
    let status = snapshot.status();
    let revision = status.pod_template.as_ref().map(|one| one.revision.as_str());
    status.pod_template_hash.as_ref() == Some(&desired.hash)
        && pod.revision.is_some()
        && pod.revision.as_deref() == revision
        && status.current_image.as_deref() == Some(pod.seid.image.as_str())
        && status.current_sidecar_image.as_deref() == Some(pod.sidecar.image.as_str())
}

/// No usable O: adoption. The images speak for themselves; the rest the server has to judge.
fn classify_unrecorded(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> Drift {
    let judged = snapshot.adoption.as_ref().filter(|(uid, _)| *uid == pod.uid);
    let judged = judged.map(|(_, comparison)| comparison);
    if images_differ(snapshot, pod, desired) && judged != Some(&Comparison::Equal) {
        // Where status says that it is the desired one all the same, somebody wrote that by hand, or
        // the images got their names by admission: the server knows.
        if judged.is_none() && snapshot.status().pod_template_hash.as_ref() == Some(&desired.hash) {
            return Drift::Unknown;
        }
        let changes = image_changes(pod, desired);
        return Drift::Differs(Difference { cause: Cause::Spec, image_changed: true, changes });
    }
    if let Some(statefulset) = snapshot.own_statefulset()
        && is_from_last_roll(snapshot, statefulset, pod)
        && statefulset.template_hash.as_ref() != Some(&desired.hash)
    {
        // Whoever asked for that roll may take it back.
        let last = snapshot.status().last_update.as_ref().map(|last| last.cause);
        let asked = last.filter(|cause| *cause == Cause::Spec);
        return Drift::Differs(Difference {
            cause: asked.unwrap_or_else(|| cause(snapshot, desired)),
            image_changed: false,
            changes: changes(statefulset, desired, pod),
        });
    }
    match judged {
        None => Drift::Unknown,
        Some(Comparison::Equal) if is_recorded(snapshot, desired, pod) => Drift::InSync,
        Some(Comparison::Equal) => match stamp(snapshot, desired, pod) {
            Some(stamp) => Drift::Record(Box::new(stamp)),
            None => Drift::NotRunning,
        },
        Some(Comparison::Different(changes)) => Drift::Differs(Difference {
            cause: adoption_cause(snapshot, desired),
            image_changed: false,
            changes: changes.clone(),
        }),
    }
}

/// Whether a pod that was never seen running was made by the last roll of ours: it may never run,
/// so nobody else can tell what it was made from, and what replaces it is no adoption.
fn is_from_last_roll(snapshot: &Snapshot, statefulset: &StatefulSetView, pod: &PodView) -> bool {
    let status = snapshot.status();
    let rolled = status.last_update.as_ref().and_then(|last| last.to.as_ref());
    rolled.is_some()
        // One that was seen running is judged like any other.
        && rolled != status.pod_template_hash.as_ref()
        && rolled == statefulset.template_hash.as_ref()
        && pod.revision.is_some()
        && pod.revision.as_deref() == statefulset.observed_revision()
}

/// A difference that was there before us stays one until somebody changes the spec.
fn adoption_cause(snapshot: &Snapshot, desired: &Desired) -> Cause {
    match &snapshot.status().pending_update {
        Some(pending) if pending.base_inputs_hash != desired.inputs_hash => Cause::Spec,
        _ => Cause::Adoption,
    }
}

fn cause(snapshot: &Snapshot, desired: &Desired) -> Cause {
    let recorded = snapshot.status().pod_template.as_ref().map(|one| one.inputs_hash.as_str());
    if recorded == Some(desired.inputs_hash.as_str()) { Cause::Operator } else { Cause::Spec }
}

fn stamp(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> Option<Stamp> {
    // What configuration the pod started with is only known if it was recorded.
    let recorded = snapshot.status().pod_template.as_ref().map(|one| &one.config);
    observe(
        pod,
        &MadeFrom {
            hash: &desired.hash,
            inputs_hash: &desired.inputs_hash,
            config: recorded.filter(|config| !config.is_empty()).unwrap_or(&desired.config),
            operator_version: &snapshot.operator_version,
            now: snapshot.now,
        },
    )
}

/// Whether the spec itself names another image than the pod has. The platform's sidecar image is
/// nobody's wish for this node: it waits for its turn like every change of the platform.
fn images_differ(snapshot: &Snapshot, pod: &PodView, desired: &Desired) -> bool {
    let names_sidecar = snapshot.node.spec.sidecar_image().is_some();
    let newest = snapshot
        .own_statefulset()
        .filter(|one| pod.revision.is_some() && pod.revision.as_deref() == one.observed_revision());
    // Where admission points images at a mirror, the pod's have other names than the template's.
    let made_of = |list: &str, name: &str, image: &str| {
        newest.is_some_and(|one| image_in(&one.template, list, name) == Some(image))
    };
    let seid = pod.seid.image != desired.image && !made_of("containers", "seid", &desired.image);
    let sidecar = pod.sidecar.image != desired.sidecar_image
        && !made_of("initContainers", "sei-sidecar", &desired.sidecar_image);
    seid || (names_sidecar && sidecar)
}

fn image_in<'a>(template: &'a Value, list: &str, name: &str) -> Option<&'a str> {
    let containers = template["spec"][list].as_array()?;
    containers.iter().find(|one| one["name"] == name)?["image"].as_str()
}

fn image_changes(pod: &PodView, desired: &Desired) -> Vec<FieldChange> {
    let images = [
        ("containers[seid].image", &pod.seid.image, &desired.image),
        ("initContainers[sei-sidecar].image", &pod.sidecar.image, &desired.sidecar_image),
    ];
    let differing = images.into_iter().filter(|(_, from, to)| from != to);
    differing
        .map(|(path, from, to)| FieldChange {
            path: path.to_owned(),
            from: Some(from.clone()),
            to: Some(to.clone()),
        })
        .collect()
}

/// The differing fields: of the template on the StatefulSet against the rendered one. Where those
/// agree although the pod's was another, the images are all that is known.
fn changes(statefulset: &StatefulSetView, desired: &Desired, pod: &PodView) -> Vec<FieldChange> {
    let found = template_changes(statefulset, desired);
    if found.is_empty() { image_changes(pod, desired) } else { found }
}

fn template_changes(statefulset: &StatefulSetView, desired: &Desired) -> Vec<FieldChange> {
    diff::against_live(&statefulset.template, &desired.template)
}

/// Whether a difference may roll now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Go {
        takes_slot: bool,
    },
    /// `spec.update.paused`.
    Paused,
    /// Somebody has to agree; why.
    Held(String),
    /// Only the chain's budget can tell; it has to be asked.
    AsksSlot,
    Queued(Slot),
    /// The lease is too young to trust one's view of the fleet; for how much longer.
    Settling(Duration),
    BacksOff {
        attempts: i32,
        seconds: i64,
    },
}

/// Decides whether a difference may roll now.
pub fn permit(snapshot: &Snapshot, desired: &Desired, difference: &Difference) -> Permit {
    let spec = &snapshot.node.spec;
    if spec.updates_are_paused() {
        return Permit::Paused;
    }
    if let Some(pause) = back_off(snapshot, desired) {
        return pause;
    }
    let approved = snapshot.approved() == Some(desired.hash.as_str());
    match difference.cause {
        Cause::Spec => {
            // A chain upgrade needs many nodes in the same moment, and a node that is down loses
            // nothing by being replaced.
            let urgent = difference.image_changed || !snapshot.is_ready();
            if urgent || !spec.signs() {
                return Permit::Go { takes_slot: false };
            }
            in_turn(snapshot)
        }
        Cause::Operator => match hold(snapshot) {
            Some(why) if !approved => Permit::Held(why),
            _ => settled_turn(snapshot),
        },
        Cause::Adoption if approved || snapshot.rollout.adopt_automatically => {
            settled_turn(snapshot)
        }
        Cause::Adoption => Permit::Held(
            "the pod was made by another operator; it rolls with the next change of the spec or \
             when approved"
                .to_owned(),
        ),
    }
}

/// Whether the last attempt at this target failed too short a time ago.
pub(super) fn back_off(snapshot: &Snapshot, desired: &Desired) -> Option<Permit> {
    let pending = snapshot.status().pending_update.as_ref()?;
    let until = pending.next_attempt_at.as_ref().filter(|_| pending.target_hash == desired.hash)?;
    let seconds = until.0.duration_since(snapshot.now).as_secs();
    (until.0 > snapshot.now)
        .then_some(Permit::BacksOff { attempts: pending.attempts.unwrap_or(0), seconds })
}

/// Why a change that nobody made on this node waits for an approval.
fn hold(snapshot: &Snapshot) -> Option<String> {
    let own = snapshot.node.spec.update.as_ref().and_then(|update| update.on_operator_change);
    let policy = own.unwrap_or(snapshot.rollout.on_operator_change);
    if policy == OnOperatorChange::Hold {
        return Some("changes of the operator wait for an approval".to_owned());
    }
    let recorded = snapshot.status().pod_template.as_ref()?.operator_version.as_str();
    is_older(&snapshot.operator_version, recorded).then(|| {
        format!(
            "the pod was rolled by the newer operator {recorded}; this is {}",
            snapshot.operator_version
        )
    })
}

fn settled_turn(snapshot: &Snapshot) -> Permit {
    snapshot.rollout.settles_in.map_or_else(|| in_turn(snapshot), Permit::Settling)
}

fn in_turn(snapshot: &Snapshot) -> Permit {
    match &snapshot.slot {
        None => Permit::AsksSlot,
        Some(Slot::Granted) => Permit::Go { takes_slot: true },
        Some(busy) => Permit::Queued(busy.clone()),
    }
}

/// Whether version `one` is surely older than `other`; versions that are not numbers never are.
fn is_older(one: &str, other: &str) -> bool {
    let parts = |version: &str| -> Option<Vec<u64>> {
        let numbers = version.trim_start_matches('v').split(['-', '+']).next()?;
        numbers.split('.').map(|part| part.parse().ok()).collect()
    };
    matches!((parts(one), parts(other)), (Some(one), Some(other)) if one < other)
}

/// Names of settings outside of the template that have changed since the pod started.
pub fn config_changes(snapshot: &Snapshot, desired: &Desired) -> Vec<String> {
    let Some(template) = &snapshot.status().pod_template else { return Vec::new() };
    let changed = desired.config.iter().filter(|(name, digest)| {
        template.config.get(*name).is_some_and(|recorded| recorded != *digest)
    });
    changed.map(|(name, _)| format!("config.{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn versions_compare_by_number_and_unknown_ones_are_never_older() {
        for (one, other, older) in [
            ("0.9.0", "0.10.0", true),
            ("0.10.0", "0.9.0", false),
            ("1.2.3", "1.2.3", false),
            ("v1.2.2-rc1", "1.2.3", true),
            ("dev", "1.0.0", false),
            ("1.0.0", "dev", false),
            ("", "", false),
        ] {
            assert_eq!(is_older(one, other), older, "{one} {other}");
        }
    }
}
