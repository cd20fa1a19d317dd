//! The text output of a preview.

use sei_api::status::FieldChange;

use super::{Effect, NodePreview, Report, Rules};
use crate::diff::cause_text;
use crate::format::{changes, count};

pub(super) fn text(report: &Report) -> String {
    let mut text = summary(report);
    let mut printed: Vec<(String, &[FieldChange])> = Vec::new();
    let mut chain = None;
    let (rolling, others): (Vec<_>, Vec<_>) =
        report.nodes.iter().partition(|node| node.effect.rolls());
    for node in rolling {
        if chain != Some(&node.chain) {
            text.extend([format!("\nChain {}\n", node.chain)]);
            chain = Some(&node.chain);
        }
        text.push_str(&entry(node, &roll_text(node), &mut printed));
    }
    let mut effect = None;
    for node in others {
        if effect != Some(node.effect) {
            text.extend([format!("\n{}\n", heading(node.effect))]);
            effect = Some(node.effect);
        }
        let why = node.why.clone().unwrap_or_default();
        text.push_str(&entry(node, &why, &mut printed));
    }
    text
}

fn summary(report: &Report) -> String {
    let of = count(report.checked, "node");
    let mut text = match report.would_roll {
        0 => format!("With {} nothing would roll ({of} checked).\n", report.config),
        some => format!("With {} {some} of {of} would roll.\n", report.config),
    };
    if report.nodes.iter().any(|node| node.effect == Effect::RollsInTurn) {
        text.push_str(&budget(&report.budget));
    }
    if let Some(namespace) = &report.scope {
        text.extend([format!(
            "Only namespace {namespace} was checked. The nodes of a chain share one budget in all \
             namespaces; -A checks all of them.\n"
        )]);
    }
    text
}

fn budget(budget: &Rules) -> String {
    let Rules {
        max_concurrent_per_chain,
        ready_deadline_seconds,
        halt_after_failures,
        settle_seconds,
    } = budget;
    let at_once = count(usize::try_from(*max_concurrent_per_chain).unwrap_or(usize::MAX), "node");
    let failed = count(usize::try_from(*halt_after_failures).unwrap_or(usize::MAX), "failed node");
    format!(
        "Turns: at most {at_once} of a chain at a time, each until it is Ready again.\n       A node \
         that is not Ready within {ready_deadline_seconds} s has failed; after {failed} no further \
         node of the chain starts.\n       The first roll starts when the operator has been the \
         leader for {settle_seconds} s.\n"
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
    let cause = node.cause.map(|cause| format!(", cause {cause:?}: {}", cause_text(cause)));
    let why = node.why.as_ref().map(|why| format!(" ({why})"));
    format!("{how}{signs}{}{}", cause.unwrap_or_default(), why.unwrap_or_default())
}

fn heading(effect: Effect) -> &'static str {
    match effect {
        Effect::Held => "Held: they differ, and do not roll automatically",
        Effect::Unknown => {
            "Unknown: only the API server can compare their pods with the desired template"
        }
        Effect::Stuck => "Cannot be changed",
        Effect::NoPod => "Without a pod to roll",
        _ => "Unchanged",
    }
}

/// A node with its differing fields. The nodes of a fleet mostly differ in the same fields, so
/// equal lists are printed once.
fn entry<'a>(
    node: &'a NodePreview,
    what: &str,
    printed: &mut Vec<(String, &'a [FieldChange])>,
) -> String {
    let name = node.name();
    let separator = if what.is_empty() { "" } else { ": " };
    let mut text = format!("  {name}{separator}{what}\n");
    let has_fields = node.cause.is_some();
    match &node.changes {
        None if has_fields => text.push_str(
            "      fields unknown: add the StatefulSet or the ControllerRevision to the manifests\n",
        ),
        None => {}
        Some(fields) => match printed.iter().find(|(_, before)| before == fields) {
            Some((before, _)) if fields.len() > 1 => {
                text.extend([format!("      the same {} fields as {before}\n", fields.len())]);
            }
            _ => {
                text.push_str(&changes(fields, "      "));
                printed.push((name, fields));
            }
        },
    }
    text
}
