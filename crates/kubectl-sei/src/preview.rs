//! `kubectl sei preview`: what another platform configuration, or a changed fleet, would roll.
//!
//! Each node is observed as the operator observes it, but with the candidate configuration, and the
//! operator's planner decides. The plan that it would start is shown; nothing is performed.

use std::io;
use std::path::Path;

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::status::{Cause, FieldChange};
use sei_plan::budget::{Budget, Member};
use sei_plan::platform::{BudgetScope, Platform, Share};
use sei_plan::quantity::Quantity;
use sei_plan::snapshot::{Claim, Snapshot};
use sei_plan::timing::Timing;
use serde::Serialize;

use crate::cluster::{Scope, Unreadable, split};
use crate::error::{Error, one_line};
use crate::flags::PreviewFlags;
use crate::format::count;
use crate::{CommandContext, Exit, Out, show};

mod fleet_snapshot;
mod fleets;
mod manifests;
mod order;
mod prediction;
mod text;

use fleet_snapshot::FleetSnapshot;
use prediction::{Prediction, predict};

/// The output for one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodePreview {
    namespace: String,
    node: String,
    chain: String,
    signs: bool,
    effect: Effect,
    /// Position among the nodes of its chain that roll one after the other.
    turn: Option<usize>,
    cause: Option<Cause>,
    why: Option<String>,
    target_hash: Option<String>,
    /// `None` if they are unknown.
    changes: Option<Vec<FieldChange>>,
    /// Size of the data volume, if the configuration sets another one for new volumes.
    volume: Option<VolumeSetting>,
    /// Storage class of the data volume, likewise.
    storage_class: Option<VolumeSetting>,
    /// The nodes that share its budget: those of its chain, in all namespaces or in its own.
    #[serde(skip)]
    budget: String,
    /// The pod could not be compared by the server, and the node rolls if the pod differs.
    #[serde(skip)]
    might_roll: bool,
}

impl NodePreview {
    /// The operator does not change a node that does not decode.
    fn unreadable(unreadable: &Unreadable) -> Self {
        Self {
            namespace: unreadable.namespace.clone(),
            node: unreadable.name.clone(),
            chain: "?".to_owned(),
            signs: false,
            effect: Effect::Stuck,
            turn: None,
            cause: None,
            why: Some(format!("its manifest cannot be decoded: {}", unreadable.message)),
            target_hash: None,
            changes: None,
            volume: None,
            storage_class: None,
            budget: "?".to_owned(),
            might_roll: false,
        }
    }

    /// Whether the spec names another image, which has a limit of its own.
    fn rolls_image(&self) -> bool {
        let mut changes = self.changes.iter().flatten();
        self.cause == Some(Cause::Spec) && changes.any(|change| change.path == SEID_IMAGE)
    }

    /// Whether its volume differs from the one that it would get now.
    fn keeps_volume(&self) -> bool {
        self.volume.is_some() || self.storage_class.is_some()
    }

    fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.node)
    }
}

/// The field that `spec.image` sets.
const SEID_IMAGE: &str = "containers[seid].image";

/// Size or storage class of a volume, and the one that a new volume would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct VolumeSetting {
    current: String,
    new: String,
}

/// What happens to the pod of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
enum Effect {
    /// Is replaced in the next reconcile.
    RollsAtOnce,
    /// Is replaced at its turn in the chain.
    RollsInTurn,
    /// Is being replaced already.
    Rolling,
    /// Is replaced after the backoff of its last failure.
    RollsAgain,
    Held,
    /// Cannot be changed; `why` has the reason.
    Stuck,
    /// The node has no pod to replace.
    NoPod,
    Nothing,
    /// Only the server can compare the pod, and it was not available.
    Unknown,
}

impl Effect {
    fn rolls(self) -> bool {
        matches!(self, Self::RollsAtOnce | Self::RollsInTurn | Self::Rolling | Self::RollsAgain)
    }
}

/// The output of a preview.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    config: String,
    would_roll: usize,
    budget: Rules,
    /// In the order in which they roll, chain by chain, then the others.
    nodes: Vec<NodePreview>,
    #[serde(skip)]
    checked: usize,
    #[serde(skip)]
    lists_unchanged: bool,
    #[serde(skip)]
    scope: Option<String>,
}

/// The rules under which nodes roll in turn.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Rules {
    max_concurrent_per_chain: u32,
    max_unavailable: String,
    budget_scope: &'static str,
    ready_deadline_seconds: u32,
    halt_after_failures: u32,
    settle_seconds: u32,
}

pub(crate) async fn run(
    flags: &PreviewFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    match &flags.config {
        Some(config) => preview_config(config, flags, scope, context, out).await,
        None => Box::pin(fleets::run(&flags.filename, scope, context, out)).await,
    }
}

async fn preview_config(
    config: &Path,
    flags: &PreviewFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let platform = read_platform(config)?;
    let fleet = if flags.manifests.is_empty() {
        FleetSnapshot::read(context.client()?, scope).await?
    } else {
        manifests::read(&flags.manifests)?
    };
    let candidate = Candidate {
        platform: &platform,
        version: &context.version,
        budget: Budget::of(&platform.rollout, Timing::default()),
        now: context.now(),
    };
    let mut nodes = Vec::new();
    for node in &fleet.nodes {
        nodes.push(Box::pin(preview_node(node, &fleet, &candidate)).await);
    }
    let mut previews = order::sort_by_turn(nodes, &candidate.budget);
    previews.extend(fleet.unreadable.iter().map(NodePreview::unreadable));
    check_names(&flags.nodes, &previews)?;
    previews.retain(|preview| is_named(preview, &flags.nodes));
    let checked = previews.len();
    let comparison_error = comparison_error(&previews);
    let would_roll = previews.iter().filter(|preview| preview.effect.rolls()).count();
    let show_all = flags.all || !flags.nodes.is_empty();
    let stays =
        |preview: &NodePreview| preview.effect == Effect::Nothing && !preview.keeps_volume();
    previews.retain(|preview| show_all || !stays(preview));
    let rollout = &platform.rollout;
    let report = Report {
        config: config.display().to_string(),
        would_roll,
        budget: Rules {
            max_concurrent_per_chain: rollout.max_concurrent_per_chain,
            max_unavailable: match rollout.max_unavailable {
                Share::Nodes(number) => number.to_string(),
                Share::Percent(percent) => format!("{percent}%"),
            },
            budget_scope: match rollout.budget_scope {
                BudgetScope::Cluster => "Cluster",
                BudgetScope::Namespace => "Namespace",
            },
            ready_deadline_seconds: rollout.ready_deadline_seconds,
            halt_after_failures: rollout.halt_after_failures,
            settle_seconds: rollout.settle_seconds,
        },
        nodes: previews,
        checked,
        lists_unchanged: show_all,
        scope: match scope {
            Scope::Namespace(name)
                if flags.manifests.is_empty() && rollout.budget_scope == BudgetScope::Cluster =>
            {
                Some(name.clone())
            }
            _ => None,
        },
    };
    match show(out, flags.output.format, &report, || text::text(&report)) {
        // The reader has closed the output; a script may still use the exit code.
        Err(Error::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe => {}
        shown => shown?,
    }
    match (would_roll, comparison_error) {
        (0, Some(error)) => Err(error),
        (0, None) => Ok(Exit::Fine),
        _ => Ok(Exit::WouldRoll),
    }
}

fn read_platform(path: &Path) -> Result<Platform, Error> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::Platform { message: format!("{shown}: {error}") })?;
    Platform::parse(&text, &shown).map_err(|error| Error::Platform { message: error.to_string() })
}

/// The operator that is previewed.
struct Candidate<'a> {
    platform: &'a Platform,
    version: &'a str,
    budget: Budget,
    now: Timestamp,
}

async fn preview_node(
    node: &SeiNode,
    fleet: &FleetSnapshot,
    candidate: &Candidate<'_>,
) -> order::RankedNode {
    let mut snapshot = fleet.observe(node, candidate);
    let prediction = match predict(&snapshot) {
        Prediction::NeedsComparison { pod_uid } => {
            match fleet.compare_pod(&snapshot, &pod_uid).await {
                Ok(comparison) => {
                    snapshot.adoption = Some((pod_uid, comparison));
                    predict(&snapshot)
                }
                Err(why) => Prediction::unknown(one_line(&why)),
            }
        }
        prediction @ Prediction::Known { .. } => prediction,
    };
    // Failed attempts at another target do not count for this one.
    let mut updated = node.clone();
    if let (Some(status), Prediction::Known { update, .. }) = (updated.status.as_mut(), &prediction)
    {
        status.pending_update = update.as_deref().cloned();
    }
    let member = Member::of(&updated, snapshot.pod(), &candidate.budget, candidate.now);
    let mut preview = node_preview(&snapshot, prediction);
    preview.storage_class = storage_class(fleet.storage_class(node), &snapshot);
    if candidate.platform.rollout.budget_scope == BudgetScope::Namespace {
        preview.budget = format!("{} in namespace {}", preview.chain, preview.namespace);
    }
    order::RankedNode { preview, member }
}

fn node_preview(snapshot: &Snapshot, prediction: Prediction) -> NodePreview {
    let node = &snapshot.node;
    let (effect, why, update) = match prediction {
        Prediction::Known { effect, why, update } => (effect, why, update),
        Prediction::NeedsComparison { .. } => {
            let why = "the template of its pod is unknown".to_owned();
            (Effect::Unknown, Some(why), None)
        }
    };
    let changes = update.as_ref().map(|update| update.changes.clone());
    NodePreview {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        chain: node.spec.chain_id.clone(),
        signs: node.spec.signs(),
        effect,
        turn: None,
        cause: update.as_ref().map(|update| update.cause),
        why,
        target_hash: update.map(|update| update.target_hash),
        changes: fleet_snapshot::known_changes(snapshot, changes),
        volume: volume(snapshot),
        storage_class: None,
        budget: node.spec.chain_id.clone(),
        might_roll: might_roll(snapshot),
    }
}

/// The size of the volume and that of a new one, if they differ. The size of a volume never changes
/// by configuration.
fn volume(snapshot: &Snapshot) -> Option<VolumeSetting> {
    let (Claim::Present(claim), Ok(desired)) = (&snapshot.claim, &snapshot.desired) else {
        return None;
    };
    let (current, new) = (claim.capacity.clone()?, desired.claim_size.clone());
    let differ = Quantity::parse(&current).ok()? != Quantity::parse(&new).ok()?;
    differ.then_some(VolumeSetting { current, new })
}

/// The storage class of the volume and that of a new one, if they differ. A claim without one has
/// that of the cluster.
fn storage_class(current: Option<&String>, snapshot: &Snapshot) -> Option<VolumeSetting> {
    let desired = snapshot.desired.as_ref().ok()?.claim.as_ref()?.unpack();
    let (current, new) = (current?.clone(), desired.spec?.storage_class_name?);
    (current != new).then_some(VolumeSetting { current, new })
}

/// Whether a pod that another operator created would roll if it differs.
fn might_roll(snapshot: &Snapshot) -> bool {
    let Ok(desired) = &snapshot.desired else { return false };
    let pending = snapshot.status().pending_update.as_ref();
    snapshot.rollout.adopt_automatically
        || snapshot.approved() == Some(desired.hash.as_str())
        || pending.is_some_and(|pending| pending.base_inputs_hash != desired.inputs_hash)
}

/// Whether one of the names is that of this node.
fn is_named(preview: &NodePreview, named: &[String]) -> bool {
    named.is_empty() || named.iter().any(|given| matches_name(given, preview))
}

fn matches_name(given: &str, preview: &NodePreview) -> bool {
    split(given).is_ok_and(|(namespace, name)| {
        name == preview.node && namespace.is_none_or(|namespace| namespace == preview.namespace)
    })
}

fn check_names(named: &[String], previews: &[NodePreview]) -> Result<(), Error> {
    for given in named {
        split(given)?;
        if !previews.iter().any(|preview| matches_name(given, preview)) {
            return Err(Error::NotInPreview { name: given.clone(), count: previews.len() });
        }
    }
    Ok(())
}

/// An error if pods could not be compared whose difference decides whether they roll.
fn comparison_error(previews: &[NodePreview]) -> Option<Error> {
    let mut unknown =
        previews.iter().filter(|preview| preview.effect == Effect::Unknown && preview.might_roll);
    let first = unknown.next()?;
    Some(Error::NotCompared {
        nodes: count(unknown.count() + 1, "node"),
        node: first.name(),
        why: first.why.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests;
