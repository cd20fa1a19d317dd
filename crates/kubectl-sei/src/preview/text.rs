//! A preview, for people.

use sei_api::status::FieldChange;

use super::{Effect, Forecast, Report, Rules};
use crate::difference::cause_words;
use crate::words::{changes, count};

pub(super) fn text(report: &Report) -> String {
    let mut text = summary(report);
    let mut told: Vec<(String, &[FieldChange])> = Vec::new();
    let mut chain = None;
    let (rolling, others): (Vec<_>, Vec<_>) =
        report.nodes.iter().partition(|one| one.effect.rolls());
    for one in rolling {
        if chain != Some(&one.chain) {
            text.extend([format!("\nChain {}\n", one.chain)]);
            chain = Some(&one.chain);
        }
        text.push_str(&entry(one, &rolls(one), &mut told));
    }
    let mut effect = None;
    for one in others {
        if effect != Some(one.effect) {
            text.extend([format!("\n{}\n", heading(one.effect))]);
            effect = Some(one.effect);
        }
        let why = one.why.clone().unwrap_or_default();
        text.push_str(&entry(one, &why, &mut told));
    }
    text
}

fn summary(report: &Report) -> String {
    let of = count(report.looked_at, "node");
    let mut text = match report.would_roll {
        0 => format!("With {} nothing would roll ({of} looked at).\n", report.config),
        some => format!("With {} {some} of {of} would roll.\n", report.config),
    };
    if report.nodes.iter().any(|one| one.effect == Effect::RollsInTurn) {
        text.push_str(&budget(&report.budget));
    }
    if let Some(namespace) = &report.scope {
        text.extend([format!(
            "Only namespace {namespace} was looked at. A chain's budget is shared by all of them; \
             -A looks at all.\n"
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
    format!(
        "Turns: at most {max_concurrent_per_chain} of a chain at a time, each until it is Ready \
         again.\n       One that is not Ready within {ready_deadline_seconds} s has failed; after \
         {halt_after_failures} failed no further one of the chain starts.\n       The first starts \
         when the operator has led for {settle_seconds} s.\n"
    )
}

fn rolls(one: &Forecast) -> String {
    let how = match (one.effect, one.turn) {
        (Effect::RollsInTurn, Some(turn)) => format!("turn {turn}"),
        (Effect::RollsInTurn, None) => "in turn".to_owned(),
        (Effect::Rolling, _) => "rolls already".to_owned(),
        (Effect::RollsAgain, _) => "again, after a pause".to_owned(),
        _ => "at once".to_owned(),
    };
    let signs = if one.signs { ", signs" } else { "" };
    let cause = one.cause.map(|cause| format!(", cause {cause:?}: {}", cause_words(cause)));
    let why = one.why.as_ref().map(|why| format!(" ({why})"));
    format!("{how}{signs}{}{}", cause.unwrap_or_default(), why.unwrap_or_default())
}

fn heading(effect: Effect) -> &'static str {
    match effect {
        Effect::Held => "Held: they differ, and do not roll by themselves",
        Effect::Unknown => "Not known: the server has to judge what their pods were made from",
        Effect::Stuck => "Cannot be changed",
        Effect::NoPod => "Without a pod to roll",
        _ => "Stay as they are",
    }
}

/// A node with its differing fields. Nodes of a fleet mostly differ in the same ones: those are
/// told once.
fn entry<'a>(one: &'a Forecast, what: &str, told: &mut Vec<(String, &'a [FieldChange])>) -> String {
    let name = one.name();
    let separator = if what.is_empty() { "" } else { ": " };
    let mut text = format!("  {name}{separator}{what}\n");
    let has_fields = one.cause.is_some();
    match &one.changes {
        None if has_fields => text.push_str(
            "      which fields is not known: give the StatefulSet or the ControllerRevision too\n",
        ),
        None => {}
        Some(fields) => match told.iter().find(|(_, before)| before == fields) {
            Some((before, _)) if fields.len() > 1 => {
                text.extend([format!("      the same {} fields as {before}\n", fields.len())]);
            }
            _ => {
                text.push_str(&changes(fields, "      "));
                told.push((name, fields));
            }
        },
    }
    text
}
