//! What blocks a node, and since when.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::Mode;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::status::{Blocked, SeiNodePhase};

use super::{Blocker, Decision, later, not_after, wait_until};
use crate::desired::Desired;
use crate::snapshot::{Claim, Snapshot};
use crate::tasks::bounded;
use crate::view::{ContainerView, PodView, TroubleKind, is_bootstrap_pod, is_owned};

/// Records what blocks the node, and reports it as stalled once its deadline has passed. The start
/// is stored in status, so that a restart of the operator does not reset it.
pub(super) fn report(snapshot: &Snapshot, decision: Decision) -> Decision {
    let Some((reason, message)) = diagnose(snapshot, &decision) else {
        return Decision { blocked: None, ..decision }.condition(progressing());
    };
    let before = snapshot.status().blocked.as_ref();
    let same = before.filter(|blocked| blocked.reason == reason.as_str());
    let since = same.map_or(snapshot.now, |blocked| not_after(blocked.since.0, snapshot.now));
    let since = Time(since);
    let due = later(since.0, snapshot.timing.stall_deadline(reason));
    let message = bounded(&message);
    let blocked =
        Some(Blocked { reason: reason.as_str().to_owned(), since, message: message.clone() });
    let mut decision = Decision { blocked, ..decision };
    if reason == Reason::CrashLooping && snapshot.is_ready() {
        // No event marks the time when the pod has been Ready for long enough.
        decision = decision.requeue_within(snapshot.timing.halt());
    }
    if due > snapshot.now {
        let left = due.duration_since(snapshot.now).unsigned_abs();
        return decision.requeue_within(left).condition(progressing());
    }
    let stalled = ConditionType::Stalled;
    decision.condition(Verdict::new(stalled, ConditionStatus::True, reason, message))
}

fn progressing() -> Verdict {
    Verdict::new(ConditionType::Stalled, ConditionStatus::False, Reason::Progressing, "")
}

/// The cause to report: the one that a user has to fix first.
fn diagnose(snapshot: &Snapshot, decision: &Decision) -> Option<(Reason, String)> {
    let by_state =
        decision.blocker.as_ref().and_then(|found| Some((found.stalls()?, found.to_string())));
    let waiting = snapshot.waiting.as_ref();
    let waits = waiting.and_then(|wait| wait.reason.map(|reason| (reason, wait.message.clone())));
    let (by_sidecar, by_task) = match waits {
        Some((reason @ (Reason::SidecarUnreachable | Reason::SidecarAuth), message)) => {
            (Some((reason, message)), None)
        }
        waits => (None, waits),
    };
    // A pod that cannot run explains a sidecar that does not answer.
    schema_too_old(snapshot)
        .or(by_state)
        .or_else(|| replicas_not_one(snapshot))
        .or(by_task)
        .or_else(|| pod_trouble(snapshot))
        .or_else(|| pod_missing(snapshot))
        .or(by_sidecar)
}

/// The server drops fields of the status, so that no plan can be stored.
fn schema_too_old(snapshot: &Snapshot) -> Option<(Reason, String)> {
    let field = snapshot.dropped_field.as_ref()?;
    Some((Reason::SchemaTooOld, format!("the installed CRD drops {field}")))
}

/// The StatefulSet was scaled up by another client. The operator repairs it; this reports it.
fn replicas_not_one(snapshot: &Snapshot) -> Option<(Reason, String)> {
    let statefulset = snapshot.own_statefulset()?;
    let replicas = statefulset.replicas.filter(|replicas| *replicas > 1)?;
    let message = format!("StatefulSet {} was scaled to {replicas} replicas", statefulset.name);
    Some((Reason::ReplicasNotOne, message))
}

/// A running node whose pod is not created: a quota, Pod Security, a webhook or a missing service
/// account refuses it, and only the events of the StatefulSet report that.
fn pod_missing(snapshot: &Snapshot) -> Option<(Reason, String)> {
    let statefulset = snapshot.own_statefulset()?;
    let runs = snapshot.status().phase == Some(SeiNodePhase::Running);
    let due = statefulset.replicas == Some(1) && !statefulset.terminating;
    let has_pod = snapshot.pods().any(|pod| is_owned(pod, statefulset));
    (runs && due && !has_pod).then(|| {
        let message = format!("StatefulSet {} has made no pod yet", statefulset.name);
        (Reason::StatefulSetNotObserved, message)
    })
}

fn pod_trouble(snapshot: &Snapshot) -> Option<(Reason, String)> {
    let statefulset = snapshot.own_statefulset();
    let (name, job) = (snapshot.node.metadata.name.as_deref(), snapshot.job.as_ref());
    let ours = |pod: &&PodView| {
        job.is_some_and(|job| is_bootstrap_pod(pod, name.unwrap_or_default(), Some(job)))
            || statefulset.is_some_and(|statefulset| is_owned(pod, statefulset))
    };
    let pods: Vec<_> = snapshot.pods().filter(ours).collect();
    let named =
        |reason, pod: &PodView, text: &str| Some((reason, format!("pod {}: {text}", pod.name)));
    pods.iter().find_map(|pod| {
        let host = pod.host.as_deref().unwrap_or("no Kubernetes node");
        if pod.host_lost {
            return named(
                Reason::NodeLost,
                pod,
                &format!("was evicted from {host} and does not end"),
            );
        }
        if pod.is_terminating() {
            return named(Reason::PodTerminating, pod, &format!("is terminating on {host}"));
        }
        if let Some(text) = &pod.unschedulable {
            return named(Reason::Unschedulable, pod, text);
        }
        if let Some(text) = &pod.volumes_missing {
            return named(Reason::VolumeAttach, pod, text);
        }
        let Some(trouble) = pod.troubles.first() else { return crash_continues(pod, snapshot) };
        let reason = match trouble.kind {
            TroubleKind::ImagePull => Reason::ImagePullFailed,
            TroubleKind::Crash => Reason::CrashLooping,
        };
        named(reason, pod, &trouble.message)
    })
}

/// Between two crashes the process runs for a while, and its pod may be Ready. A crash loop ends only
/// once the pod has been Ready for a while, or the process has run for longer than the kubelet's longest
/// back-off.
fn crash_continues(pod: &PodView, snapshot: &Snapshot) -> Option<(Reason, String)> {
    let before = snapshot.status().blocked.as_ref();
    let seen = before.filter(|blocked| blocked.reason == Reason::CrashLooping.as_str())?;
    let crashed = |container: &ContainerView| {
        let young = container
            .running_since
            .is_some_and(|since| later(since, snapshot.timing.outage()) > snapshot.now);
        container.restarts > 0 && (!container.running || young)
    };
    let lasts = pod.ready && ready_lasts(pod, snapshot);
    let continues = !lasts && (crashed(&pod.seid) || crashed(&pod.sidecar));
    (continues && seen.message.contains(&pod.name))
        .then(|| (Reason::CrashLooping, seen.message.clone()))
}

/// Whether a pod that is Ready has been for longer than between two crashes.
fn ready_lasts(pod: &PodView, snapshot: &Snapshot) -> bool {
    let Some(since) = pod.ready_since else { return true };
    wait_until(later(since, snapshot.timing.halt()), snapshot.now, snapshot.timing.halt()).is_none()
}

/// The part of a running node's identity that the spec would change. Such a change is refused, and
/// no object is changed.
pub(super) fn changed_identity(snapshot: &Snapshot, desired: &Desired) -> Option<String> {
    let running = snapshot.status().phase == Some(SeiNodePhase::Running);
    let statefulset = snapshot.own_statefulset().filter(|_| running)?;
    let now = statefulset.identity();
    let desired = &desired.identity;
    let fields = [
        ("spec.chainId", now.chain.as_deref(), desired.chain.as_deref()),
        ("the mode", now.role.as_deref().map(mode_of), desired.role.as_deref().map(mode_of)),
        ("validator.signingKey", now.signing_secret.as_deref(), desired.signing_secret.as_deref()),
        ("dataVolume.import", now.claim.as_deref(), desired.claim.as_deref()),
    ];
    fields.into_iter().find_map(|(field, now, desired)| {
        let (now, desired) = now.zip(desired)?;
        (now != desired).then(|| {
            format!(
                "{field} of a running node cannot change from {now} to {desired}; \
                 set it back to {now}"
            )
        })
    })
}

/// The field of the spec that gives a node this role.
fn mode_of(role: &str) -> &str {
    Mode::of_role(role).map_or(role, |mode| mode.as_str())
}

/// Whether the node's claim is terminating. Kubernetes deletes it once its pod stops, so nothing
/// may stop that pod.
pub(super) fn volume_terminating(snapshot: &Snapshot) -> bool {
    matches!(&snapshot.claim, Claim::Present(claim) if claim.terminating)
}

/// Whether the node has a recorded claim that could not be observed.
pub(super) fn volume_unknown(snapshot: &Snapshot) -> bool {
    snapshot.claim == Claim::Unknown && snapshot.status().data_claim.is_some()
}

/// Whether the volume of a running node is lost: the claim is missing, in phase `Lost`, or replaced
/// by another claim of the same name. A node that ran has a claim, even if the status that recorded
/// it was lost too.
pub(crate) fn volume_lost(snapshot: &Snapshot) -> Option<Blocker> {
    let Some(recorded) = snapshot.status().data_claim.as_ref() else {
        let ran = snapshot.status().phase == Some(SeiNodePhase::Running);
        let (claim, node_uid) = (snapshot.claim_name(), snapshot.uid().to_owned());
        return (ran && snapshot.claim == Claim::Missing)
            .then_some(Blocker::UnrecordedVolumeLost { claim, node_uid });
    };
    let lost = match &snapshot.claim {
        Claim::Unknown => false,
        Claim::Missing => true,
        Claim::Present(claim) => claim.uid != recorded.uid || claim.phase == "Lost",
    };
    let claim = snapshot.claim_name();
    lost.then(|| Blocker::VolumeLost { claim, uid: recorded.uid.clone() })
}
