//! `kubectl sei preview`: what another platform configuration would roll.
//!
//! The node is observed as the operator observes it, with the candidate configuration in the place
//! of the present one, and the operator's own planner is asked. What it would start is shown, and
//! nothing is carried out.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::status::{Cause, FieldChange};
use sei_plan::budget::{Budget, Member};
use sei_plan::platform::Platform;
use sei_plan::snapshot::Snapshot;
use sei_plan::timing::Timing;
use serde::Serialize;

use crate::cluster::{Scope, Unreadable, split};
use crate::error::{Error, one_line};
use crate::flags::PreviewFlags;
use crate::{Exit, Out, Surroundings, show};

mod forecast;
mod manifests;
mod order;
mod sight;
mod text;

use forecast::{Outlook, forecast};
use sight::Sight;

/// What would happen to a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Forecast {
    namespace: String,
    node: String,
    chain: String,
    signs: bool,
    effect: Effect,
    /// Place among those of its chain that roll one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    turn: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_hash: Option<String>,
    /// Absent where they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    changes: Option<Vec<FieldChange>>,
    /// It would roll if the server, which could not be asked, said that its pod differs.
    #[serde(skip)]
    might_roll: bool,
}

impl Forecast {
    /// What the operator cannot read it does not touch.
    fn unreadable(one: &Unreadable) -> Self {
        Self {
            namespace: one.namespace.clone(),
            node: one.name.clone(),
            chain: "?".to_owned(),
            signs: false,
            effect: Effect::Stuck,
            turn: None,
            cause: None,
            why: Some(format!("its manifest cannot be read: {}", one.told)),
            target_hash: None,
            changes: None,
            might_roll: false,
        }
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.node)
    }
}

/// What becomes of a node's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Effect {
    /// Is replaced as soon as the operator looks.
    RollsAtOnce,
    /// Is replaced when its turn in its chain comes.
    RollsInTurn,
    /// Is being replaced already.
    Rolling,
    /// Is replaced once the pause after its last failure is over.
    RollsAgain,
    Held,
    /// Nothing can be done about it; why.
    Stuck,
    /// There is no pod to replace.
    NoPod,
    Nothing,
    /// The server has to judge, and could not be asked.
    Unknown,
}

impl Effect {
    fn rolls(self) -> bool {
        matches!(self, Self::RollsAtOnce | Self::RollsInTurn | Self::Rolling | Self::RollsAgain)
    }
}

/// What a preview found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    config: String,
    would_roll: usize,
    budget: Rules,
    /// In the order in which they roll, chain by chain, then the others.
    nodes: Vec<Forecast>,
    #[serde(skip)]
    looked_at: usize,
    #[serde(skip)]
    scope: Option<String>,
}

/// The rules under which nodes roll in turn.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rules {
    max_concurrent_per_chain: u32,
    ready_deadline_seconds: u32,
    halt_after_failures: u32,
    settle_seconds: u32,
}

pub(crate) async fn run(
    flags: &PreviewFlags,
    scope: &Scope,
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let platform = read_platform(&flags.config)?;
    let sight = if flags.manifests.is_empty() {
        Sight::of_cluster(surroundings.client()?, scope).await?
    } else {
        manifests::read(&flags.manifests)?
    };
    let candidate = Candidate {
        platform: &platform,
        version: &surroundings.version,
        budget: Budget::of(&platform.rollout, Timing::default()),
        now: surroundings.now(),
    };
    let mut nodes = Vec::new();
    for node in &sight.nodes {
        nodes.push(Box::pin(look_ahead(node, &sight, &candidate)).await);
    }
    let mut forecasts = order::put(nodes, &candidate.budget);
    forecasts.extend(sight.unreadable.iter().map(Forecast::unreadable));
    check_names(&flags.nodes, &forecasts)?;
    forecasts.retain(|one| is_named(one, &flags.nodes));
    let looked_at = forecasts.len();
    let unjudged = unjudged(&forecasts);
    let would_roll = forecasts.iter().filter(|one| one.effect.rolls()).count();
    forecasts.retain(|one| flags.all || !flags.nodes.is_empty() || one.effect != Effect::Nothing);
    let rollout = &platform.rollout;
    let report = Report {
        config: flags.config.display().to_string(),
        would_roll,
        budget: Rules {
            max_concurrent_per_chain: rollout.max_concurrent_per_chain,
            ready_deadline_seconds: rollout.ready_deadline_seconds,
            halt_after_failures: rollout.halt_after_failures,
            settle_seconds: rollout.settle_seconds,
        },
        nodes: forecasts,
        looked_at,
        scope: match scope {
            Scope::Namespace(name) if flags.manifests.is_empty() => Some(name.clone()),
            _ => None,
        },
    };
    match show(out, flags.shown.output, &report, || text::text(&report)) {
        // Whoever read the output has seen enough; a script may still ask what would roll.
        Err(Error::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe => {}
        shown => shown?,
    }
    match (would_roll, unjudged) {
        (0, Some(error)) => Err(error),
        (0, None) => Ok(Exit::Fine),
        _ => Ok(Exit::WouldRoll),
    }
}

fn read_platform(path: &Path) -> Result<Platform, Error> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Platform { told: format!("{shown}: {error}") })?;
    Platform::parse(&text, &shown).map_err(|error| Error::Platform { told: error.to_string() })
}

/// The operator that might come.
struct Candidate<'a> {
    platform: &'a Platform,
    version: &'a str,
    budget: Budget,
    now: Timestamp,
}

async fn look_ahead(node: &SeiNode, sight: &Sight, candidate: &Candidate<'_>) -> order::Contender {
    let mut snapshot = sight.observe(node, candidate);
    let outlook = match forecast(&snapshot) {
        Outlook::NeedsComparison { pod_uid } => match sight.judge(&snapshot, &pod_uid).await {
            Ok(comparison) => {
                snapshot.adoption = Some((pod_uid, comparison));
                forecast(&snapshot)
            }
            Err(why) => Outlook::unknown(one_line(&why)),
        },
        outlook @ Outlook::Known { .. } => outlook,
    };
    // Failed attempts at another target count no more.
    let mut then = node.clone();
    if let (Some(status), Outlook::Known { update, .. }) = (then.status.as_mut(), &outlook) {
        status.pending_update = update.as_deref().cloned();
    }
    let member = Member::of(&then, snapshot.pod(), &candidate.budget, candidate.now);
    order::Contender { forecast: forecast_of(&snapshot, outlook), member }
}

fn forecast_of(snapshot: &Snapshot, outlook: Outlook) -> Forecast {
    let node = &snapshot.node;
    let (effect, why, update) = match outlook {
        Outlook::Known { effect, why, update } => (effect, why, update),
        Outlook::NeedsComparison { .. } => {
            let why = "nobody knows what its pod was made from".to_owned();
            (Effect::Unknown, Some(why), None)
        }
    };
    let changes = update.as_ref().map(|update| update.changes.clone());
    Forecast {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        chain: node.spec.chain_id.clone(),
        signs: node.spec.signs(),
        effect,
        turn: None,
        cause: update.as_ref().map(|update| update.cause),
        why,
        target_hash: update.map(|update| update.target_hash),
        changes: sight::known_changes(snapshot, changes),
        might_roll: might_roll(snapshot),
    }
}

/// Whether a difference of a pod that another operator made would roll it.
fn might_roll(snapshot: &Snapshot) -> bool {
    let Ok(desired) = &snapshot.desired else { return false };
    let pending = snapshot.status().pending_update.as_ref();
    snapshot.rollout.adopt_automatically
        || snapshot.approved() == Some(desired.hash.as_str())
        || pending.is_some_and(|pending| pending.base_inputs_hash != desired.inputs_hash)
}

/// Whether one of the names means this node.
fn is_named(forecast: &Forecast, named: &[String]) -> bool {
    named.is_empty() || named.iter().any(|given| means(given, forecast))
}

fn means(given: &str, forecast: &Forecast) -> bool {
    split(given).is_ok_and(|(namespace, name)| {
        name == forecast.node && namespace.is_none_or(|one| one == forecast.namespace)
    })
}

fn check_names(named: &[String], forecasts: &[Forecast]) -> Result<(), Error> {
    for given in named {
        split(given)?;
        if !forecasts.iter().any(|one| means(given, one)) {
            return Err(Error::NotLookedAt { name: given.clone(), count: forecasts.len() });
        }
    }
    Ok(())
}

/// An error where nodes could not be judged that might roll; everywhere else the verdict makes no
/// difference to that.
fn unjudged(forecasts: &[Forecast]) -> Option<Error> {
    let mut unknown =
        forecasts.iter().filter(|one| one.effect == Effect::Unknown && one.might_roll);
    let first = unknown.next()?;
    Some(Error::Unjudged {
        count: unknown.count() + 1,
        node: first.name(),
        why: first.why.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
