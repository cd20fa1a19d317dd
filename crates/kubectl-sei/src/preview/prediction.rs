//! What the planner would do with a node.

use sei_api::plan::PlanKind;
use sei_api::status::PendingUpdate;
use sei_plan::planner::drift::{self, Drift};
use sei_plan::planner::kind::rules;
use sei_plan::planner::{self, Blocker, Decision, Note, PlanMove};
use sei_plan::snapshot::Snapshot;
use sei_plan::tasks::kind_of;

use super::Effect;

/// What the planner would do with a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Prediction {
    Known {
        effect: Effect,
        why: Option<String>,
        /// The pending update that it would write to the status.
        update: Option<Box<PendingUpdate>>,
    },
    /// The server has to compare this pod with the desired template.
    NeedsComparison { pod_uid: String },
}

impl Prediction {
    pub(super) fn unknown(why: String) -> Self {
        Self::Known { effect: Effect::Unknown, why: Some(why), update: None }
    }
}

/// Decisions in a row until a node is stable: one clears a failed plan, the next decides what
/// follows it.
const DECISIONS_MAX: usize = 3;

/// What the planner would do with the node of this snapshot.
pub(super) fn predict(snapshot: &Snapshot) -> Prediction {
    let mut snapshot = without_small_plan(snapshot);
    for _ in 0..DECISIONS_MAX {
        let decision = planner::plan(&snapshot);
        if let Some(pod_uid) = decision.compare.clone() {
            return Prediction::NeedsComparison { pod_uid };
        }
        let cleared = matches!(decision.plan, PlanMove::Clear);
        let failed = decision.report.iter().any(|note| matches!(note, Note::PlanFailed { .. }));
        if !(cleared && failed) {
            return interpret(&snapshot, &decision);
        }
        let (generation, now) = (snapshot.generation(), snapshot.now);
        decision.apply(&mut snapshot.status, generation, now);
    }
    Prediction::unknown("its plans fail repeatedly".to_owned())
}

/// The snapshot without a plan of one task, which replaces no pod: it ends before the planner
/// decides anything else.
fn without_small_plan(snapshot: &Snapshot) -> Snapshot {
    let mut snapshot = snapshot.clone();
    if snapshot.status.plan.as_ref().is_some_and(|plan| rules(kind_of(plan)).single) {
        snapshot.status.plan = None;
    }
    snapshot
}

fn interpret(snapshot: &Snapshot, decision: &Decision) -> Prediction {
    let plan = match &decision.plan {
        PlanMove::Start(plan) => Some(plan),
        PlanMove::Keep | PlanMove::Clear => None,
    };
    let started = plan.map(|plan| kind_of(plan));
    let target = plan.and_then(|plan| plan.target.as_ref());
    let takes_slot = target.is_some_and(|target| target.slot == Some(true));
    let update = decision.pending_update.clone().map(Box::new);
    let known = |effect, why: Option<String>, update| Prediction::Known { effect, why, update };
    if started == Some(PlanKind::NodeUpdate) {
        let desired = snapshot.desired.as_ref().ok();
        let drift = desired.map(|desired| drift::classify(snapshot, desired));
        if drift == Some(Drift::Reapply) {
            let why = "its template is restored; no pod is restarted".to_owned();
            return known(Effect::Nothing, Some(why), None);
        }
        let effect = if takes_slot { Effect::RollsInTurn } else { Effect::RollsAtOnce };
        return known(effect, None, with_all_changes(update, drift));
    }
    if started == Some(PlanKind::Init) {
        let restarts = decision.report.iter().any(|note| matches!(note, Note::Superseded { .. }));
        let has_pod = snapshot.pod().is_some();
        let effect = if restarts && has_pod { Effect::RollsAtOnce } else { Effect::NoPod };
        let why = "its initialization starts again".to_owned();
        return known(effect, restarts.then_some(why), None);
    }
    let (effect, why) = decision
        .report
        .iter()
        .find_map(|note| effect_of(note).map(|effect| (effect, note.to_string())))
        .unwrap_or((Effect::Nothing, String::new()));
    let why = Some(why).filter(|why| !why.is_empty() && effect != Effect::Nothing);
    let desired = snapshot.desired.as_ref().ok();
    match effect {
        Effect::Held | Effect::Rolling | Effect::RollsAgain | Effect::RollsInTurn => {
            let drift = desired.map(|desired| drift::classify(snapshot, desired));
            let why = match (effect, &update) {
                (Effect::Held, Some(update)) => update.reason.clone().or(why),
                _ => why,
            };
            known(effect, why, with_all_changes(update, drift))
        }
        _ => known(effect, why, None),
    }
}

/// The pending update with all its changes; a status holds only the first twenty.
fn with_all_changes(
    update: Option<Box<PendingUpdate>>,
    drift: Option<Drift>,
) -> Option<Box<PendingUpdate>> {
    let mut update = update?;
    if let Some(Drift::Differs(difference)) = drift
        && difference.changes.len() > update.changes.len()
    {
        update.changes = difference.changes;
    }
    Some(update)
}

/// The effect of a note on the pod where no plan is started.
fn effect_of(note: &Note) -> Option<Effect> {
    Some(match note {
        Note::HandsOff | Note::Held { .. } | Note::UpdatesPaused => Effect::Held,
        Note::BacksOff { .. } => Effect::RollsAgain,
        Note::WaitsForSlot { .. } | Note::ChainHalted { .. } => Effect::RollsInTurn,
        Note::Resumes { kind: PlanKind::NodeUpdate, .. } => Effect::Rolling,
        Note::Blocked(Blocker::Comparison) => return None,
        Note::Blocked(blocker) if blocker.stalls().is_some() => Effect::Stuck,
        Note::Resumes { kind: PlanKind::Init, .. } | Note::Blocked(_) | Note::Deleting => {
            Effect::NoPod
        }
        Note::FailedForGood { .. } => Effect::Stuck,
        Note::InSync | Note::Adopted { .. } | Note::RevisionMovedExternally { .. } => {
            Effect::Nothing
        }
        Note::Starts { .. }
        | Note::Resumes { .. }
        | Note::PlanComplete { .. }
        | Note::PlanFailed { .. }
        | Note::Superseded { .. }
        | Note::ContinuesLate { .. }
        | Note::ApprovalRefused { .. }
        | Note::PlanAbandoned { .. } => return None,
    })
}
