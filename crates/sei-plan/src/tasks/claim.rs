//! `ensure-data-pvc`: creates the node's claim, or checks the imported one.

use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::names::{annotation, data_claim};
use sei_api::status::ClaimRef;

use super::{Effects, Failed, Next, Waiting, bounded, fail, read, request, wait, wait_and_poll};
use crate::quantity::Quantity;
use crate::request::{ClaimView, Read, Request};
use crate::seen::{Reading, Seen};

pub(super) fn step(seen: &Seen) -> Next {
    match seen.node.spec.imported_claim() {
        Some(name) => step_import(name, seen),
        None => step_own(seen),
    }
}

/// Creates the node's own claim. Only an init plan holds this task: a volume that is lost later is
/// never silently replaced by an empty one.
fn step_own(seen: &Seen) -> Next {
    let name = data_claim(seen.node.metadata.name.as_deref().unwrap_or_default());
    if let Some(created) = &seen.created {
        return claimed(&name, &created.uid);
    }
    let found = match &seen.claim {
        Reading::Live(found) => found,
        // No claim is recorded or cached, and the server refuses a second one of this name.
        Reading::Cached(None) if recorded(seen).is_none() && !has_started(seen) => &None,
        Reading::Cached(_) | Reading::Unread => return read(Read::Claim(name)),
    };
    match found {
        Some(claim) if claim.controller.as_deref() == seen.node.metadata.uid.as_deref() => {
            if claim.terminating {
                return wait(Reason::DataVolumeLost, format!("claim {name} is being deleted"));
            }
            claimed(&name, &claim.uid)
        }
        // The node was deleted and created again, and the claim of the former one still goes.
        Some(claim) if claim.terminating => wait_and_poll(
            seen,
            Reason::VolumeAttach,
            format!("claim {name} of another owner is still being deleted"),
        ),
        Some(_) => fail(format!(
            "claim {name} already exists and is not owned by this node: import it with \
             spec.dataVolume.import.pvcName, or delete it"
        )),
        None => create(&name, seen),
    }
}

fn create(name: &str, seen: &Seen) -> Next {
    if let Some(lost) = recorded(seen)
        && !approves_recreation(seen, &lost.uid)
    {
        return wait(Reason::DataVolumeLost, lost_text(name, &lost.uid, "not found"));
    }
    if recorded(seen).is_none()
        && has_started(seen)
        && let Some(uid) = seen.node.metadata.uid.as_deref()
        && !approves_recreation(seen, uid)
    {
        let approval = annotation::RECREATE_VOLUME;
        let message = format!(
            "claim {name} not found, although the node has a StatefulSet; to start on an empty \
             volume, set annotation {approval} to the uid of the node: {uid}"
        );
        return wait(Reason::DataVolumeLost, message);
    }
    match &seen.desired.claim {
        Some(claim) => request(Request::CreateClaim(Box::new(claim.unpack()))),
        None => fail("no claim is rendered for this node"),
    }
}

/// Whether the node has a StatefulSet, which is created after its claim: then its claim was lost, even
/// if the status that recorded it was lost too.
fn has_started(seen: &Seen) -> bool {
    let uid = seen.node.metadata.uid.as_deref().unwrap_or_default();
    seen.statefulset.any().is_some_and(|set| set.is_controlled_by(uid))
}

/// The claim that the node has used.
fn recorded(seen: &Seen) -> Option<&ClaimRef> {
    seen.node.status.as_ref()?.data_claim.as_ref()
}

fn lost_text(name: &str, uid: &str, what: &str) -> String {
    let approval = annotation::RECREATE_VOLUME;
    format!(
        "claim {name} ({uid}) {what}; to start on an empty volume, set annotation {approval} to that uid"
    )
}

/// Whether a user approved to start this node without the data of that claim, or of a claim that is not
/// known any more, by the uid of the node.
pub(crate) fn approves_recreation(seen: &Seen, lost_uid: &str) -> bool {
    let annotations = seen.node.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get(annotation::RECREATE_VOLUME))
        .is_some_and(|uid| uid == lost_uid)
}

fn claimed(name: &str, uid: &str) -> Next {
    Next::Done(Box::new(Effects {
        claim: Some(ClaimRef { name: name.to_owned(), uid: uid.to_owned() }),
        ..Effects::default()
    }))
}

/// Checks an imported claim, which is never changed. The first failed check wins.
fn step_import(name: &str, seen: &Seen) -> Next {
    let Reading::Live(found) = &seen.claim else { return read(Read::Claim(name.to_owned())) };
    let Some(claim) = found else { return not_ready(seen, &format!("claim {name} not found")) };
    if claim.terminating {
        return not_ready(seen, &format!("claim {name} is being deleted"));
    }
    if let Some(lost) = recorded(seen)
        && lost.uid != claim.uid
        && !approves_recreation(seen, &lost.uid)
    {
        return wait_and_poll(seen, Reason::DataVolumeLost, lost_text(name, &lost.uid, "replaced"));
    }
    match claim.phase.as_str() {
        "Bound" => {}
        "Lost" => return invalid(&format!("claim {name} is in phase Lost")),
        phase => return not_ready(seen, &format!("claim {name} is in phase {phase}, not Bound")),
    }
    if !claim.access_modes.iter().any(|mode| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod")
    {
        return invalid(&format!(
            "claim {name} has access modes {:?}; it needs ReadWriteOnce or ReadWriteOncePod",
            claim.access_modes
        ));
    }
    let Some(capacity) = &claim.capacity else {
        return not_ready(seen, &format!("claim {name} reports no capacity yet"));
    };
    if let Err(text) = large_enough(capacity, &seen.desired.claim_size) {
        return invalid(&format!("claim {name}: {text}"));
    }
    let Some(volume) = claim.volume.clone().filter(|volume| !volume.is_empty()) else {
        return not_ready(seen, &format!("claim {name} names no volume yet"));
    };
    step_volume(name, claim, &volume, capacity, seen)
}

fn step_volume(name: &str, claim: &ClaimView, volume: &str, capacity: &str, seen: &Seen) -> Next {
    let Reading::Live(found) = &seen.volume else { return read(Read::Volume(volume.to_owned())) };
    let Some(view) = found else {
        return not_ready(seen, &format!("volume {volume} not found"));
    };
    if view.phase == "Failed" {
        return invalid(&format!("volume {volume} is in phase Failed"));
    }
    let own = view.capacity.as_deref().unwrap_or_default();
    if Quantity::parse(own).ok() != Quantity::parse(capacity).ok() {
        return invalid(&format!(
            "capacity {own} of volume {volume} does not match capacity {capacity} of claim {name}"
        ));
    }
    Next::Done(Box::new(Effects {
        claim: Some(ClaimRef { name: name.to_owned(), uid: claim.uid.clone() }),
        verdict: Some(Verdict::new(
            ConditionType::ImportPvcReady,
            ConditionStatus::True,
            Reason::PvcValidated,
            format!("claim {name} is usable"),
        )),
        ..Effects::default()
    }))
}

fn large_enough(capacity: &str, required: &str) -> Result<(), String> {
    let need = Quantity::parse(required).map_err(|error| error.to_string())?;
    let have = Quantity::parse(capacity).map_err(|error| error.to_string())?;
    if have < need {
        return Err(format!("capacity {capacity} is less than the required {required}"));
    }
    Ok(())
}

fn not_ready(seen: &Seen, message: &str) -> Next {
    let message = bounded(message);
    Next::Wait(Waiting {
        reason: Some(Reason::PvcNotReady),
        again: Some(seen.timing.poll()),
        verdict: Some(Verdict::new(
            ConditionType::ImportPvcReady,
            ConditionStatus::False,
            Reason::PvcNotReady,
            message.clone(),
        )),
        message,
    })
}

fn invalid(detail: &str) -> Next {
    let detail = bounded(detail);
    Next::Fail(Failed {
        verdict: Some(Verdict::new(
            ConditionType::ImportPvcReady,
            ConditionStatus::False,
            Reason::PvcInvalid,
            detail.clone(),
        )),
        detail,
    })
}
