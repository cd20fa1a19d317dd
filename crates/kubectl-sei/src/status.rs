//! `kubectl sei status`: what every node does, since when, and why.

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::condition::{ConditionType, Reason, find};
use sei_api::mode::Mode;
use sei_api::status::SeiNodeStatus;
use sei_plan::summary::{Summary, Wait, What, summarize};
use serde::Serialize;

use crate::cluster::{Found, Key, Scope, no_match};
use crate::error::{Error, one_line};
use crate::flags::{StatusFlags, StatusOutput};
use crate::fleet::{Fleet, Readiness, fleet_of};
use crate::{CommandContext, Exit, Out, json, write, write_printable, yaml};

mod fleets;
mod heights;
mod table;
mod watch;

/// The output for one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Row {
    namespace: String,
    node: String,
    /// The fleet that controls it.
    fleet: Option<String>,
    chain: Option<String>,
    mode: Option<String>,
    phase: Option<String>,
    state: State,
    needs_attention: bool,
    /// `None` if it is unknown.
    ready: Option<bool>,
    /// From the node's RPC, through the API server; `None` if it cannot be read.
    height: Option<i64>,
    /// Time of the latest block.
    block_time: Option<Timestamp>,
    catching_up: Option<bool>,
    peers: Option<i64>,
    /// Image of the running pod.
    image: Option<String>,
    /// Image of the spec, if it differs.
    desired_image: Option<String>,
    /// Reason of the condition `PodTemplateDrift`.
    update: Option<String>,
    /// Current task of the active plan.
    task: Option<String>,
    /// Revision of the pod.
    revision: Option<String>,
    /// When the state began.
    since: Option<Timestamp>,
    waits_for: Option<String>,
    why: Option<String>,
    /// Whether the last edit was reconciled and nothing is pending.
    #[serde(skip)]
    is_in_sync: bool,
}

/// What a node does, most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
enum State {
    Unreadable,
    Stalled,
    Failed,
    /// In sync, but its pod is not Ready.
    NotReady,
    Retrying,
    /// In sync, but it waits for a new block or for the image of an upgrade.
    NoBlocks,
    /// Waits for the failed rolls of other nodes of its chain.
    Halted,
    Held,
    /// Annotation `sei.io/hands-off`.
    HandsOff,
    /// `spec.update.paused` holds the next update.
    Paused,
    /// `spec.paused`.
    Stopped,
    Deleting,
    Initializing,
    Updating,
    Repairing,
    Waiting,
    InSync,
}

impl State {
    fn of(summary: &Summary, node: &SeiNode, is_ready: Option<bool>) -> Self {
        let pending = node.status.as_ref().and_then(|status| status.pending_update.as_ref());
        let is_halted = pending.is_some_and(|pending| pending.halted_by.is_some());
        match &summary.what {
            What::HandsOff => Self::HandsOff,
            What::Deleting => Self::Deleting,
            What::Stalled { .. } => Self::Stalled,
            What::Failed => Self::Failed,
            What::Initializing => Self::Initializing,
            What::Updating { .. } => Self::Updating,
            What::Repairing => Self::Repairing,
            What::Held { .. } if node.spec.updates_are_paused() => Self::Paused,
            What::Held { .. } => Self::Held,
            What::Waiting { on: Wait::Retry } => Self::Retrying,
            What::Waiting { on: Wait::Turn } if is_halted => Self::Halted,
            What::Waiting { .. } => Self::Waiting,
            What::Stopped => Self::Stopped,
            What::Halted { .. } => Self::NoBlocks,
            What::InSync if is_ready == Some(false) => Self::NotReady,
            What::InSync if node.spec.updates_are_paused() => Self::Paused,
            What::InSync => Self::InSync,
        }
    }

    fn needs_attention(self) -> bool {
        self <= Self::Stopped
    }

    /// For the summary line.
    fn text(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Stalled => "stalled",
            Self::Failed => "failed",
            Self::NotReady => "not ready",
            Self::Retrying => "retrying",
            Self::NoBlocks => "without new blocks",
            Self::Halted => "halted",
            Self::Held => "held",
            Self::HandsOff => "hands-off",
            Self::Paused => "paused",
            Self::Stopped => "stopped",
            Self::Deleting => "deleting",
            Self::Initializing => "initializing",
            Self::Updating => "updating",
            Self::Repairing => "repairing",
            Self::Waiting => "waiting",
            Self::InSync => "in sync",
        }
    }
}

pub(crate) async fn run(
    flags: &StatusFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    if flags.watch || flags.until_ready {
        return watch::run(flags, scope, context, out).await;
    }
    let fleet = Fleet::read(context.client()?, scope, &flags.selection).await?;
    let now = context.now();
    let mut rows = rows(&fleet, now);
    if flags.output != StatusOutput::Name {
        heights::read(&mut rows, context.client()?, flags.output != StatusOutput::Table).await;
    }
    // A check of nothing is a mistake in the selection, not a good result.
    if flags.check && rows.is_empty() {
        return Err(no_match(scope, &flags.selection));
    }
    match flags.output {
        StatusOutput::Json => write(out, &format!("{}\n", json(&rows)))?,
        StatusOutput::Yaml => write(out, &yaml(&rows))?,
        StatusOutput::Name => write(out, &rows.iter().map(Row::name_line).collect::<String>())?,
        StatusOutput::Table | StatusOutput::Wide => {
            let view = table::View::of(flags, scope, context, context.terminal).with_heights();
            write_printable(out, &view.text(&fleet, &rows, now))?;
        }
    }
    let needs_attention = rows.iter().any(|row| row.needs_attention);
    Ok(if flags.check && needs_attention { Exit::NeedsAttention } else { Exit::Fine })
}

pub(crate) fn rows(fleet: &Fleet, now: Timestamp) -> Vec<Row> {
    fleet.nodes.values().map(|found| row(found, fleet, now)).collect()
}

fn row(found: &Found, fleet: &Fleet, now: Timestamp) -> Row {
    match found {
        Ok(node) => row_of(node, fleet.readiness(node), now),
        Err(unreadable) => Row {
            namespace: unreadable.namespace.clone(),
            node: unreadable.name.clone(),
            fleet: None,
            chain: None,
            mode: None,
            phase: None,
            state: State::Unreadable,
            needs_attention: true,
            ready: None,
            height: None,
            block_time: None,
            catching_up: None,
            peers: None,
            image: None,
            desired_image: None,
            update: None,
            task: None,
            revision: None,
            since: None,
            waits_for: None,
            why: Some(format!("cannot be decoded: {}", unreadable.message)),
            is_in_sync: false,
        },
    }
}

fn row_of(node: &SeiNode, readiness: Readiness, now: Timestamp) -> Row {
    let empty = SeiNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&empty);
    let summary = summarize(node, now);
    let state = State::of(&summary, node, readiness.is_ready);
    let drift = find(&status.conditions, ConditionType::PodTemplateDrift);
    let update = drift.map(|condition| condition.reason.clone());
    // The pause is shown before it holds something: it would hold the next image back.
    let in_sync = update.as_deref() == Some(Reason::InSync.as_str());
    let is_paused = in_sync && node.spec.updates_are_paused();
    // Admission may have rewritten the image of the pod, so what was desired then counts too.
    let template = status.pod_template.as_ref();
    let known =
        [&status.current_image, &template.and_then(|template| template.desired_image.clone())];
    let desired = Some(&node.spec.image).filter(|image| !known.contains(&&Some((*image).clone())));
    let is_reconciled = status.observed_generation >= node.metadata.generation;
    let not_ready = Some(readiness.why).filter(|_| state == State::NotReady);
    let paused = is_paused.then(|| "spec.update.paused holds the next update".to_owned());
    let why = Some(one_line(&summary.why)).filter(|why| !why.is_empty());
    Row {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        fleet: fleet_of(node).map(str::to_owned),
        chain: Some(node.spec.chain_id.clone()),
        mode: node.spec.mode().map(Mode::as_str).map(str::to_owned).or_else(|| status.mode.clone()),
        phase: status.phase.map(|phase| phase.as_str().to_owned()),
        state,
        needs_attention: state.needs_attention(),
        ready: readiness.is_ready,
        height: None,
        block_time: None,
        catching_up: None,
        peers: None,
        image: status.current_image.clone(),
        desired_image: desired.cloned(),
        update: if is_paused { Some(Reason::Paused.as_str().to_owned()) } else { update },
        task: summary.task.map(|task| task.to_string()),
        revision: template.map(|template| template.revision.clone()),
        since: match state {
            State::NotReady => readiness.since.or(summary.since),
            // The node records when it came in sync, and not when it was paused.
            State::Paused if is_paused => None,
            _ => summary.since,
        },
        waits_for: summary.waits_for,
        why: why.or(not_ready).or(paused).map(|why| one_line(&why)),
        is_in_sync: matches!(summary.what, What::InSync | What::Halted { .. })
            && is_reconciled
            && desired.is_none(),
    }
}

impl Row {
    pub(crate) fn key(&self) -> Key {
        (self.namespace.clone(), self.node.clone())
    }

    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.node)
    }

    fn name_line(&self) -> String {
        format!("seinode.sei.io/{}\n", self.node)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// Whether the last edit runs and nothing is pending.
    pub(crate) fn is_in_sync(&self) -> bool {
        self.is_in_sync
    }

    /// What the node does, and why, in one line.
    pub(crate) fn describe(&self) -> String {
        let why = self.why.as_ref().or(self.waits_for.as_ref());
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        format!("{} is {}{why}", self.name(), self.state.text())
    }
}

#[cfg(test)]
mod tests;
