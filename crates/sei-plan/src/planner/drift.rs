//! Whether the running pod matches the desired template, the cause of a difference, and whether the
//! pod may roll now.
//!
//! Three fingerprints are compared: of the template rendered now (R), of the template last applied
//! to the StatefulSet (A), and of the template that the pod was observed to be created from (O).
//! The revisions of the StatefulSet determine which pod is stale. They are no evidence of drift,
//! because they also change when Kubernetes itself is upgraded.

use std::time::Duration;

use sei_api::node::{OnImageChange, OnOperatorChange};
use sei_api::status::{Cause, FieldChange};
use serde_json::Value;

use super::wait_until;
use crate::adoption::Comparison;
use crate::budget::{Roll, Taken};
use crate::desired::Desired;
use crate::diff;
use crate::fingerprint::TemplateHash;
use crate::snapshot::{Slot, Snapshot};
use crate::tasks::{MadeFrom, Stamp, has_run, observe};
use crate::view::{PodView, StatefulSetView, is_owned};

/// The running pod compared with the desired template.
#[derive(Clone, Debug, PartialEq)]
pub enum Drift {
    /// There is no pod to compare.
    NoPod,
    /// The pod has not run yet, so it cannot be compared.
    NotRunning,
    InSync,
    /// There is no record of the template of the pod; the server has to compare.
    Unknown,
    /// The pod matches the desired template, and status does not record that yet.
    Record(Box<Stamp>),
    /// The pod matches the desired template; the StatefulSet would create a different
    /// pod (O = R ≠ A).
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
        None => classify_unrecorded(snapshot, desired, pod, statefulset),
        Some(observed) if observed == desired.hash => {
            classify_same(snapshot, desired, pod, statefulset)
        }
        Some(_) => Drift::Differs(Difference {
            cause: cause(snapshot, desired),
            image_changed: image_changed(snapshot, desired, pod),
            changes: changes(statefulset, desired, pod),
        }),
    }
}

/// Whether the spec names another image than when the pod was recorded. The names in the pod prove
/// nothing about that where admission rewrites them; they count only for an older record.
fn image_changed(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> bool {
    let recorded = snapshot.status().pod_template.as_ref();
    let Some(image) = recorded.and_then(|template| template.desired_image.as_ref()) else {
        return images_differ(snapshot, pod, desired);
    };
    let sidecar = recorded.and_then(|template| template.desired_sidecar_image.as_ref());
    let sets_sidecar = snapshot.node.spec.sidecar_image().is_some();
    *image != desired.image || (sets_sidecar && sidecar != Some(&desired.sidecar_image))
}

/// There is no pod although there should be one. The server may refuse the pod of the applied
/// template, and then only another template helps.
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

/// O, if it applies to this pod: same revision, same algorithm. A record of the desired template is
/// not trusted for a pod with other images: a status can be edited.
pub fn observed_hash<'a>(
    snapshot: &'a Snapshot,
    desired: &Desired,
    pod: &PodView,
) -> Option<&'a str> {
    let status = snapshot.status();
    let hash = status.pod_template_hash.as_deref()?;
    let template = status.pod_template.as_ref()?;
    let matches_revision = pod.revision.as_deref() == Some(template.revision.as_str());
    let contradicts_images = hash == desired.hash && images_differ(snapshot, pod, desired);
    (matches_revision && !contradicts_images && same_algorithm(hash, &desired.hash)).then_some(hash)
}

/// Whether two fingerprints can be compared.
pub fn same_algorithm(left: &str, right: &str) -> bool {
    match (TemplateHash::parse(left), TemplateHash::parse(right)) {
        (Ok(left), Ok(right)) => left.algorithm() == right.algorithm(),
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
        // The annotation is not ours, but new pods have the revision of this pod: only the
        // annotation is missing.
        applied
            if applied.as_ref().is_none_or(|hash| !same_algorithm(hash, &desired.hash))
                && statefulset.observed_revision() == pod.revision.as_deref() =>
        {
            Drift::InSync
        }
        _ => Drift::Reapply,
    }
}

/// Whether status already records that this pod was created from the desired template.
fn is_recorded(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> bool {
    let status = snapshot.status();
    let revision = status.pod_template.as_ref().map(|template| template.revision.as_str());
    status.pod_template_hash.as_ref() == Some(&desired.hash)
        && pod.revision.is_some()
        && pod.revision.as_deref() == revision
        && status.current_image.as_deref() == Some(pod.seid.image.as_str())
        && status.current_sidecar_image.as_deref() == Some(pod.sidecar.image.as_str())
}

/// No usable O: adoption. The server compares; the names of images decide nothing, because admission
/// may rewrite them.
fn classify_unrecorded(
    snapshot: &Snapshot,
    desired: &Desired,
    pod: &PodView,
    statefulset: &StatefulSetView,
) -> Drift {
    if is_from_last_roll(snapshot, statefulset, pod)
        && statefulset.template_hash.as_ref() != Some(&desired.hash)
    {
        // A roll that the spec caused may be reverted by the spec.
        let last = snapshot.status().last_update.as_ref().map(|last| last.cause);
        let by_spec = last.filter(|cause| *cause == Cause::Spec);
        return Drift::Differs(Difference {
            cause: by_spec.unwrap_or_else(|| cause(snapshot, desired)),
            image_changed: images_differ(snapshot, pod, desired),
            changes: changes(statefulset, desired, pod),
        });
    }
    let adoption = snapshot.adoption.as_ref().filter(|(uid, _)| *uid == pod.uid);
    let compared = match adoption {
        // A pod without its label has no revision to compare.
        _ if !has_revision(pod) => Some(&Comparison::NoRevision),
        adoption => adoption.map(|(_, comparison)| comparison),
    };
    let by_image = |changes| Difference { cause: Cause::Spec, image_changed: true, changes };
    match compared {
        Some(Comparison::Equal) if has_run(pod) => {
            classify_same(snapshot, desired, pod, statefulset)
        }
        Some(Comparison::Equal) => Drift::NotRunning,
        Some(Comparison::NoRevision) if images_differ(snapshot, pod, desired) => {
            Drift::Differs(by_image(image_changes(pod, desired)))
        }
        None | Some(Comparison::NoRevision) => Drift::Unknown,
        Some(Comparison::Different(changes)) if images_changed(snapshot, pod, desired, changes) => {
            Drift::Differs(by_image(changes.clone()))
        }
        Some(Comparison::Different(changes)) => Drift::Differs(Difference {
            cause: adoption_cause(snapshot, desired),
            image_changed: false,
            changes: changes.clone(),
        }),
    }
}

/// Whether the pod has the label of the revision that it was created from.
pub(super) fn has_revision(pod: &PodView) -> bool {
    pod.revision.as_deref().is_some_and(|revision| !revision.is_empty())
}

/// Whether a pod that was never observed running was created by our last roll. It may never run, so
/// there is no other record of its template, and its replacement is no adoption.
fn is_from_last_roll(snapshot: &Snapshot, statefulset: &StatefulSetView, pod: &PodView) -> bool {
    let status = snapshot.status();
    let rolled = status.last_update.as_ref().and_then(|last| last.to.as_ref());
    rolled.is_some()
        // A pod that was observed running is compared like any other.
        && rolled != status.pod_template_hash.as_ref()
        && rolled == statefulset.template_hash.as_ref()
        && pod.revision.is_some()
        && pod.revision.as_deref() == statefulset.observed_revision()
}

/// A difference that existed before the adoption keeps this cause until the spec changes.
fn adoption_cause(snapshot: &Snapshot, desired: &Desired) -> Cause {
    match &snapshot.status().pending_update {
        Some(pending) if pending.base_inputs_hash != desired.inputs_hash => Cause::Spec,
        _ => Cause::Adoption,
    }
}

fn cause(snapshot: &Snapshot, desired: &Desired) -> Cause {
    let recorded = snapshot.status().pod_template.as_ref();
    let recorded = recorded.map(|template| template.inputs_hash.as_str());
    if recorded == Some(desired.inputs_hash.as_str()) { Cause::Operator } else { Cause::Spec }
}

fn stamp(snapshot: &Snapshot, desired: &Desired, pod: &PodView) -> Option<Stamp> {
    // The configuration that the pod started with is only known if it was recorded.
    let recorded = snapshot.status().pod_template.as_ref().map(|template| &template.config);
    observe(
        pod,
        &MadeFrom {
            hash: &desired.hash,
            inputs_hash: &desired.inputs_hash,
            image: &desired.image,
            sidecar_image: &desired.sidecar_image,
            config: recorded.filter(|config| !config.is_empty()).unwrap_or(&desired.config),
            operator_version: &snapshot.operator_version,
            now: snapshot.now,
        },
    )
}

/// Whether the spec itself sets another image than the pod has, by the names of the images.
fn images_differ(snapshot: &Snapshot, pod: &PodView, desired: &Desired) -> bool {
    differing_images(snapshot, pod, desired).next().is_some()
}

/// The images whose names in the spec differ from those in the pod. A sidecar image of the platform
/// is not a change of this spec: it waits for its turn like every change of the platform.
fn differing_images(
    snapshot: &Snapshot,
    pod: &PodView,
    desired: &Desired,
) -> impl Iterator<Item = &'static str> {
    let sets_sidecar = snapshot.node.spec.sidecar_image().is_some();
    let newest = snapshot.own_statefulset().filter(|statefulset| {
        pod.revision.is_some() && pod.revision.as_deref() == statefulset.observed_revision()
    });
    // If admission rewrites images to a mirror, the pod has other names than its template.
    let in_template = |list: &str, name: &str, image: &str| {
        newest.is_some_and(|statefulset| {
            image_in(&statefulset.template.json(), list, name) == Some(image)
        })
    };
    let seid =
        pod.seid.image != desired.image && !in_template("containers", "seid", &desired.image);
    let sidecar = pod.sidecar.image != desired.sidecar_image
        && !in_template("initContainers", "sei-sidecar", &desired.sidecar_image);
    let differs = [(SEID_IMAGE, seid), (SIDECAR_IMAGE, sets_sidecar && sidecar)];
    differs.into_iter().filter(|(_, differs)| *differs).map(|(path, _)| path)
}

/// Whether the spec sets another image, by the names and by what the server compared. Names differ by
/// themselves where admission rewrites those of templates; the server compares rewritten ones.
fn images_changed(
    snapshot: &Snapshot,
    pod: &PodView,
    desired: &Desired,
    changes: &[FieldChange],
) -> bool {
    let found = |path: &str| changes.iter().any(|change| change.path == path);
    differing_images(snapshot, pod, desired).any(found)
}

/// Whether the server found another image of the chain process or of the sidecar.
pub(super) fn change_image(changes: &[FieldChange]) -> bool {
    changes.iter().any(|change| [SEID_IMAGE, SIDECAR_IMAGE].contains(&change.path.as_str()))
}

const SEID_IMAGE: &str = "containers[seid].image";
const SIDECAR_IMAGE: &str = "initContainers[sei-sidecar].image";

fn image_in<'a>(template: &'a Value, list: &str, name: &str) -> Option<&'a str> {
    let containers = template["spec"][list].as_array()?;
    containers.iter().find(|container| container["name"] == name)?["image"].as_str()
}

fn image_changes(pod: &PodView, desired: &Desired) -> Vec<FieldChange> {
    let images = [
        (SEID_IMAGE, &pod.seid.image, &desired.image),
        (SIDECAR_IMAGE, &pod.sidecar.image, &desired.sidecar_image),
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

/// The differing fields between the template of the StatefulSet and the rendered template. If these
/// are equal although the pod has another template, only the images are known to differ.
fn changes(statefulset: &StatefulSetView, desired: &Desired, pod: &PodView) -> Vec<FieldChange> {
    let found = template_changes(statefulset, desired);
    if found.is_empty() { image_changes(pod, desired) } else { found }
}

fn template_changes(statefulset: &StatefulSetView, desired: &Desired) -> Vec<FieldChange> {
    diff::against_live(&statefulset.template.json(), &desired.template())
}

/// Whether a difference may roll now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Permit {
    Go {
        takes: Taken,
    },
    /// `spec.update.paused`.
    Paused,
    /// The update needs an approval; why.
    Held(String),
    /// The decision needs a slot of the chain's budget, which has to be requested.
    AsksSlot(Roll),
    Queued(Slot),
    /// The lease is too young to trust the operator's view of the fleet; for how much longer.
    Settling(Duration),
    BacksOff(Pause),
}

/// The pause after failed attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub attempts: i32,
    pub seconds: i64,
}

impl std::fmt::Display for Pause {
    /// Without the remaining seconds, which would change with every reconcile.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed attempts", self.attempts)
    }
}

/// Decides whether a difference may roll now.
pub fn permit(snapshot: &Snapshot, desired: &Desired, difference: &Difference) -> Permit {
    let spec = &snapshot.node.spec;
    if spec.updates_are_paused() {
        return Permit::Paused;
    }
    if let Some(pause) = back_off(snapshot, desired) {
        return Permit::BacksOff(pause);
    }
    let approved = snapshot.approved() == Some(desired.hash.as_str());
    match difference.cause {
        Cause::Spec => {
            // Replacing a node that is down costs no availability, and a chain that has halted at an
            // upgrade needs many nodes at once.
            let at_once = if difference.image_changed {
                on_image_change(snapshot) == OnImageChange::AtOnce
            } else {
                !spec.signs()
            };
            if at_once || !snapshot.is_ready() {
                return Permit::Go { takes: Taken::Nothing };
            }
            let roll = if difference.image_changed { Roll::Image } else { Roll::Template };
            in_turn(snapshot, roll)
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

fn on_image_change(snapshot: &Snapshot) -> OnImageChange {
    let own = snapshot.node.spec.update.as_ref().and_then(|update| update.on_image_change);
    own.unwrap_or(snapshot.rollout.on_image_change)
}

/// The remaining back-off if the last attempt at this target failed recently.
pub(super) fn back_off(snapshot: &Snapshot, desired: &Desired) -> Option<Pause> {
    let pending = snapshot.status().pending_update.as_ref()?;
    let until = pending.next_attempt_at.as_ref().filter(|_| pending.target_hash == desired.hash)?;
    let attempts = pending.attempts.unwrap_or(0);
    let left = wait_until(until.0, snapshot.now, snapshot.timing.update_retry(attempts))?;
    Some(Pause { attempts, seconds: i64::try_from(left.as_secs()).unwrap_or(0) })
}

/// Why a change that does not come from the spec of this node waits for an approval.
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
    snapshot.rollout.settles_in.map_or_else(|| in_turn(snapshot, Roll::Template), Permit::Settling)
}

fn in_turn(snapshot: &Snapshot, roll: Roll) -> Permit {
    match &snapshot.slot {
        None => Permit::AsksSlot(roll),
        Some(Slot::Granted) => Permit::Go { takes: Taken::Slot },
        Some(Slot::GrantedWhileDown) => Permit::Go { takes: Taken::WhileDown },
        Some(busy) => Permit::Queued(busy.clone()),
    }
}

/// Whether version `left` is older than `right`; `false` for versions that are not numbers.
fn is_older(left: &str, right: &str) -> bool {
    let parts = |version: &str| -> Option<Vec<u64>> {
        let numbers = version.trim_start_matches('v').split(['-', '+']).next()?;
        numbers.split('.').map(|part| part.parse().ok()).collect()
    };
    matches!((parts(left), parts(right)), (Some(left), Some(right)) if left < right)
}

/// What the spec changed outside of the template since the pod started. Peers are not part of it:
/// they change often, and the next roll for another reason applies them.
pub(super) fn config_difference(snapshot: &Snapshot, desired: &Desired) -> Option<Difference> {
    let changes: Vec<_> = config_changes(snapshot, desired)
        .into_iter()
        .filter(|name| name != "config.peers")
        .map(|path| FieldChange { path, ..FieldChange::default() })
        .collect();
    let difference = Difference { cause: Cause::Spec, image_changed: false, changes };
    (!difference.changes.is_empty()).then_some(difference)
}

/// Names of settings outside of the template that have changed since the pod started.
pub fn config_changes(snapshot: &Snapshot, desired: &Desired) -> Vec<String> {
    let changed = desired.config.keys().filter(|name| config_changed(snapshot, desired, name));
    changed.map(|name| format!("config.{name}")).collect()
}

/// Whether this setting has changed since the pod started, by its recorded digest.
pub(super) fn config_changed(snapshot: &Snapshot, desired: &Desired, name: &str) -> bool {
    let template = snapshot.status().pod_template.as_ref();
    let recorded = template.and_then(|template| template.config.get(name));
    recorded.is_some_and(|recorded| Some(recorded) != desired.config.get(name))
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn versions_compare_by_number_and_unknown_ones_are_never_older() {
        for (left, right, older) in [
            ("0.9.0", "0.10.0", true),
            ("0.10.0", "0.9.0", false),
            ("1.2.3", "1.2.3", false),
            ("v1.2.2-rc1", "1.2.3", true),
            ("dev", "1.0.0", false),
            ("1.0.0", "dev", false),
            ("", "", false),
        ] {
            assert_eq!(is_older(left, right), older, "{left} {right}");
        }
    }
}
