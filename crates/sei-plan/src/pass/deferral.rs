//! Which progress need not be written at once.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sei_api::condition::ConditionType;
use sei_api::plan::TaskPlan;
use sei_api::status::SeiNodeStatus;
use sei_api::task::TaskType;

use crate::tasks::pre_pull::SKIPPED;

/// Whether a status differs from the stored one only in how far its plan has come, and in what
/// follows from that: the sidecar of a pod that is being replaced does not answer.
///
/// Such progress need not be written at once: every task finds its work done when it is run again,
/// so a crash loses nothing, and an update costs two writes instead of ten. How far the bootstrap
/// has come is the exception: the Job that showed it is deleted, and while it counts as existing the
/// node gets no pod of its own.
pub fn is_deferrable(stored: &SeiNodeStatus, status: &SeiNodeStatus) -> bool {
    let (Some(old), Some(new)) = (&stored.plan, &status.plan) else { return false };
    if old.id != new.id || old.phase != new.phase || bootstrap_of(old) != bootstrap_of(new) {
        return false;
    }
    // Every field is listed, so that a new one is not forgotten; nothing is copied to compare.
    let SeiNodeStatus {
        plan: _,
        blocked: _,
        stateful_set: _,
        conditions,
        phase,
        phase_transition_time,
        observed_generation,
        chain_id,
        mode,
        current_image,
        current_sidecar_image,
        pod_template_hash,
        pod_template,
        pending_update,
        last_update,
        adopted_workflow,
        resolved_peers,
        resolved_rpc_witnesses,
        resolved_state_syncers,
        endpoint,
        signing_identity,
        data_claim,
    } = status;
    essentials(conditions).eq(essentials(&stored.conditions))
        && *phase == stored.phase
        && *phase_transition_time == stored.phase_transition_time
        && *observed_generation == stored.observed_generation
        && *chain_id == stored.chain_id
        && *mode == stored.mode
        && *current_image == stored.current_image
        && *current_sidecar_image == stored.current_sidecar_image
        && *pod_template_hash == stored.pod_template_hash
        && *pod_template == stored.pod_template
        && *pending_update == stored.pending_update
        && *last_update == stored.last_update
        && *adopted_workflow == stored.adopted_workflow
        && *resolved_peers == stored.resolved_peers
        && *resolved_rpc_witnesses == stored.resolved_rpc_witnesses
        && *resolved_state_syncers == stored.resolved_state_syncers
        && *endpoint == stored.endpoint
        && *signing_identity == stored.signing_identity
        && *data_claim == stored.data_claim
}

/// What users act on in conditions. A sidecar that is unreachable while its pod is replaced is not
/// part of it. Messages do not count, except for the risk that an update takes.
fn essentials(conditions: &[Condition]) -> impl Iterator<Item = (&str, &str, &str, bool)> {
    let sidecar = ConditionType::SidecarReady.as_str();
    let shown = conditions.iter().filter(move |condition| condition.type_ != sidecar);
    shown.map(|condition| {
        let skipped = condition.message.contains(SKIPPED);
        (condition.type_.as_str(), condition.status.as_str(), condition.reason.as_str(), skipped)
    })
}

pub(super) fn has_replayed(plan: &TaskPlan) -> bool {
    plan.has_completed(TaskType::AwaitBootstrapComplete)
}

/// Whether the Job is known to be complete, and to be deleted.
fn bootstrap_of(plan: &TaskPlan) -> (bool, bool) {
    (has_replayed(plan), plan.has_completed(TaskType::TeardownBootstrap))
}
