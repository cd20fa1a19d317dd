//! The text output of a preview.

use std::collections::BTreeMap;

use sei_api::status::FieldChange;

use super::{Effect, NodePreview, Report, Rules, VolumeSetting};
use crate::diff::cause_text;
use crate::format::{changes, count};

pub(super) fn text(report: &Report) -> String {
    let mut text = summary(report);
    let mut printed = Vec::new();
    let (rolling, others): (Vec<_>, Vec<_>) =
        report.nodes.iter().partition(|node| node.effect.rolls());
    for nodes in rolling.chunk_by(|left, right| left.budget == right.budget) {
        text.extend(["\nChain ", &nodes[0].budget, "\n"]);
        let same = |left: &&NodePreview, right: &&NodePreview| {
            left.cause == right.cause && left.changes == right.changes
        };
        for nodes in nodes.chunk_by(same) {
            let cause = nodes[0].cause;
            let cause = cause.map(|cause| format!("cause {cause:?}: {}", cause_text(cause)));
            text.push_str(&group(nodes, cause.as_deref(), &mut printed, roll_text));
        }
    }
    let stays = |node: &&&NodePreview| node.effect == Effect::Nothing && node.keeps_volume();
    let hidden = !report.lists_unchanged;
    let others: Vec<&NodePreview> =
        others.iter().filter(|node| !(hidden && stays(node))).copied().collect();
    for nodes in others.chunk_by(|left, right| left.effect == right.effect) {
        text.extend(["\n", heading(nodes[0].effect), "\n"]);
        let same = |left: &&NodePreview, right: &&NodePreview| {
            left.why == right.why && left.changes == right.changes
        };
        for nodes in nodes.chunk_by(same) {
            text.push_str(&group(nodes, nodes[0].why.as_deref(), &mut printed, NodePreview::name));
        }
    }
    text.push_str(&volumes(&report.nodes));
    text
}

/// Nodes with equal changes: the common lines, and a line for each node. A list of fields that was
/// printed for another group is not repeated.
fn group<'a>(
    nodes: &[&'a NodePreview],
    common: Option<&str>,
    printed: &mut Vec<(String, &'a [FieldChange])>,
    line: impl Fn(&NodePreview) -> String,
) -> String {
    let Some(first) = nodes.first() else { return String::new() };
    let mut text = String::new();
    text.extend(common.map(|common| format!("  {common}\n")));
    match &first.changes {
        None if first.cause.is_some() => text.push_str(
            "      fields unknown: add the StatefulSet or the ControllerRevision to the manifests\n",
        ),
        None => {}
        Some(fields) => match printed.iter().find(|(_, before)| before == fields) {
            Some((before, _)) if fields.len() > 1 => {
                text.extend([format!("      the same {} fields as {before}\n", fields.len())]);
            }
            _ => {
                text.push_str(&changes(fields, "      "));
                printed.push((first.name(), fields));
            }
        },
    }
    let indent = if text.is_empty() { "  " } else { "    " };
    text.extend(nodes.iter().map(|node| format!("{indent}{}\n", line(node))));
    text
}

/// The volumes whose size or storage class is not that of the configuration.
pub(super) fn volumes(nodes: &[NodePreview]) -> String {
    volumes_by("size", nodes, |node| node.volume.as_ref())
        + &volumes_by("storage class", nodes, |node| node.storage_class.as_ref())
}

fn volumes_by(
    what: &str,
    nodes: &[NodePreview],
    setting: impl Fn(&NodePreview) -> Option<&VolumeSetting>,
) -> String {
    let mut values: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    for node in nodes {
        if let Some(VolumeSetting { current, new }) = setting(node) {
            values.entry((current, new)).or_default().push(node.name());
        }
    }
    if values.is_empty() {
        return String::new();
    }
    let mut text = format!("\nOnly new volumes get the configured {what}; these keep theirs\n");
    text.extend(values.into_iter().map(|((current, new), nodes)| {
        format!("  {current}, new ones {new}: {}\n", nodes.join(", "))
    }));
    text
}

fn summary(report: &Report) -> String {
    let of = count(report.checked, "node");
    let mut text = match report.would_roll {
        0 => format!("With {} nothing would roll ({of} checked).\n", report.config),
        some => format!("With {} {some} of {of} would roll.\n", report.config),
    };
    if report.nodes.iter().any(|node| node.effect == Effect::RollsInTurn) {
        let rolls_image = |node: &NodePreview| node.rolls_image() && !node.signs;
        text.push_str(&budget(&report.budget, report.nodes.iter().any(rolls_image)));
    }
    if let Some(namespace) = &report.scope {
        text.extend([format!(
            "Only namespace {namespace} was checked. The nodes of a chain share one budget in all \
             namespaces; -A checks all of them.\n"
        )]);
    }
    text
}

fn budget(budget: &Rules, rolls_image: bool) -> String {
    let Rules {
        max_concurrent_per_chain,
        max_unavailable,
        budget_scope,
        ready_deadline_seconds,
        halt_after_failures,
        settle_seconds,
    } = budget;
    let at_once = count(usize::try_from(*max_concurrent_per_chain).unwrap_or(usize::MAX), "node");
    let failed = count(usize::try_from(*halt_after_failures).unwrap_or(usize::MAX), "failed node");
    let of = if *budget_scope == "Namespace" { "a chain in a namespace" } else { "a chain" };
    let image = if rolls_image {
        format!(
            "       To another image: {max_unavailable} of the nodes that do not sign at a time, \
             then the signers.\n"
        )
    } else {
        String::new()
    };
    format!(
        "Turns: at most {at_once} of {of} at a time, each until it is Ready again.\n{image}       A \
         node that is not Ready within {ready_deadline_seconds} s has failed; after {failed} no \
         further node of the chain starts.\n       The first roll starts when the operator has \
         been the leader for {settle_seconds} s.\n"
    )
}

fn roll_text(node: &NodePreview) -> String {
    let how = match (node.effect, node.turn) {
        (Effect::RollsInTurn, Some(turn)) => format!("turn {turn}"),
        (Effect::RollsInTurn, None) => "in turn".to_owned(),
        (Effect::Rolling, _) => "is rolling".to_owned(),
        (Effect::RollsAgain, _) => "again, after a backoff".to_owned(),
        _ => "at once".to_owned(),
    };
    let signs = if node.signs { ", signs" } else { "" };
    let why = node.why.as_ref().map(|why| format!(" ({why})"));
    format!("{}: {how}{signs}{}", node.name(), why.unwrap_or_default())
}

fn heading(effect: Effect) -> &'static str {
    match effect {
        Effect::Held => "Held: they differ, and do not roll automatically",
        Effect::Unknown => {
            "Unknown: only the API server can compare their pods with the desired template"
        }
        Effect::Stuck => "Cannot be changed",
        Effect::NoPod => "No pod",
        _ => "Unchanged",
    }
}
