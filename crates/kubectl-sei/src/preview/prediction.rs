//! Asks the planner what it would do about a node.

use sei_api::plan::PlanKind;
use sei_api::status::PendingUpdate;
use sei_plan::observation::Observation;
use sei_plan::planner::drift::{self, Drift};
use sei_plan::planner::{self, Decision, Note, PlanMove};
use sei_plan::tasks::kind_of;

use super::Effect;

/// What the planner would do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outlook {
    Known {
        effect: Effect,
        why: Option<String>,
        /// What the status would say of it.
        update: Option<Box<PendingUpdate>>,
    },
    /// The server has to judge what this pod was made from.
    NeedsJudgement { pod_uid: String },
}

impl Outlook {
    pub(super) fn unknown(why: String) -> Self {
        Self::Known { effect: Effect::Unknown, why: Some(why), update: None }
    }
}

/// Decisions in a row before a node comes to rest: a failed plan is cleared in one, and what comes
/// after it is decided in the next.
const DECISIONS_MAX: usize = 3;

/// What would happen to the node of this observation.
pub(super) fn forecast(observation: &Observation) -> Outlook {
    let mut observation = without_small_plan(observation);
    for _ in 0..DECISIONS_MAX {
        let decision = planner::plan(&observation);
        if let Some(pod_uid) = decision.judge.clone() {
            return Outlook::NeedsJudgement { pod_uid };
        }
        let cleared = matches!(decision.plan, PlanMove::Clear);
        let failed = decision.report.iter().any(|note| matches!(note, Note::PlanFailed { .. }));
        if !(cleared && failed) {
            return interpret(&observation, &decision);
        }
        let (generation, now) = (observation.generation(), observation.now);
        let status = observation.node.status.get_or_insert_default();
        decision.apply(status, generation, now);
    }
    Outlook::unknown("its plans fail again and again".to_owned())
}

/// A plan of one step, which replaces no pod, is done before anything else is decided.
fn without_small_plan(observation: &Observation) -> Observation {
    let mut observation = observation.clone();
    if let Some(status) = observation.node.status.as_mut() {
        let small = |kind| matches!(kind, PlanKind::MarkReady | PlanKind::ApplyTemplate);
        if status.plan.as_ref().is_some_and(|plan| small(kind_of(plan))) {
            status.plan = None;
        }
    }
    observation
}

fn interpret(observation: &Observation, decision: &Decision) -> Outlook {
    let plan = match &decision.plan {
        PlanMove::Start(plan) => Some(plan),
        PlanMove::Keep | PlanMove::Clear => None,
    };
    let started = plan.map(|plan| kind_of(plan));
    let target = plan.and_then(|plan| plan.target.as_ref());
    let takes_slot = target.is_some_and(|target| target.slot == Some(true));
    let update = decision.pending_update.clone().map(Box::new);
    let known = |effect, why: Option<String>, update| Outlook::Known { effect, why, update };
    if started == Some(PlanKind::NodeUpdate) {
        let desired = observation.desired.as_ref().ok();
        let drift = desired.map(|desired| drift::judge(observation, desired));
        if drift == Some(Drift::Reapply) {
            let why = "its template is put back; no pod is restarted".to_owned();
            return known(Effect::Nothing, Some(why), None);
        }
        let effect = if takes_slot { Effect::RollsInTurn } else { Effect::RollsAtOnce };
        return known(effect, None, whole(update, drift));
    }
    if started == Some(PlanKind::Init) {
        let anew = decision.report.iter().any(|note| matches!(note, Note::Superseded { .. }));
        let has_pod = observation.pod().is_some();
        let effect = if anew && has_pod { Effect::RollsAtOnce } else { Effect::NoPod };
        let why = "its first start begins anew".to_owned();
        return known(effect, anew.then_some(why), None);
    }
    let (effect, why) = decision
        .report
        .iter()
        .find_map(|note| at_rest(note).map(|effect| (effect, note.to_string())))
        .unwrap_or((Effect::Nothing, String::new()));
    let why = Some(why).filter(|why| !why.is_empty() && effect != Effect::Nothing);
    let desired = observation.desired.as_ref().ok();
    match effect {
        Effect::Held | Effect::Rolling | Effect::RollsAgain | Effect::RollsInTurn => {
            let drift = desired.map(|desired| drift::judge(observation, desired));
            let why = match (effect, &update) {
                (Effect::Held, Some(update)) => update.reason.clone().or(why),
                _ => why,
            };
            known(effect, why, whole(update, drift))
        }
        _ => known(effect, why, None),
    }
}

/// The pending update with all its changes, of which a status keeps twenty.
fn whole(update: Option<Box<PendingUpdate>>, drift: Option<Drift>) -> Option<Box<PendingUpdate>> {
    let mut update = update?;
    if let Some(Drift::Differs(difference)) = drift
        && difference.changes.len() > update.changes.len()
    {
        update.changes = difference.changes;
    }
    Some(update)
}

/// What a note means for a pod where no plan is started.
fn at_rest(note: &Note) -> Option<Effect> {
    Some(match note {
        Note::Held { .. } | Note::UpdatesPaused => Effect::Held,
        Note::BacksOff { .. } => Effect::RollsAgain,
        Note::WaitsForSlot { .. } | Note::ChainHalted { .. } => Effect::RollsInTurn,
        Note::Resumes { kind: PlanKind::NodeUpdate, .. } => Effect::Rolling,
        Note::Resumes { kind: PlanKind::Init, .. }
        | Note::WaitsForPod
        | Note::WaitsForPeers
        | Note::NodePaused
        | Note::StateSyncBlocked { .. }
        | Note::Deleting => Effect::NoPod,
        Note::Refused { .. }
        | Note::FailedForGood { .. }
        | Note::VolumeLost { .. }
        | Note::VolumeGoing
        | Note::SigningKeyConflict { .. } => Effect::Stuck,
        Note::InSync | Note::Adopted { .. } | Note::RevisionMovedExternally { .. } => {
            Effect::Nothing
        }
        Note::Starts { .. }
        | Note::Resumes { .. }
        | Note::PlanComplete { .. }
        | Note::PlanFailed { .. }
        | Note::Superseded { .. }
        | Note::GoesOnLate { .. }
        | Note::ApprovalRefused { .. }
        | Note::Judging
        | Note::ConfigRidesNextRoll { .. }
        | Note::PlanAbandoned { .. } => return None,
    })
}
