//! `kubectl sei explain`: what a reason means, and what to do about it.

use sei_api::condition::{ConditionType, REASONS, Reason, ReasonRow};
use serde::Serialize;

use crate::cluster::nearest;
use crate::error::Error;
use crate::flags::ExplainFlags;
use crate::format::wrap;
use crate::terminal::Terminal;
use crate::{Out, show};

/// A row of the table of reasons, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    reason: &'static str,
    condition: &'static str,
    status: &'static str,
    meaning: &'static str,
    remedy: Option<&'static str>,
    /// The command of this plugin that helps.
    command: Option<&'static str>,
    deadline_seconds: Option<u32>,
}

impl From<&ReasonRow> for Row {
    fn from(row: &ReasonRow) -> Self {
        Self {
            reason: row.reason.as_str(),
            condition: row.condition.as_str(),
            status: row.status.as_str(),
            meaning: row.meaning,
            remedy: Some(row.remedy).filter(|remedy| !remedy.is_empty()),
            command: command(row.condition, row.reason),
            deadline_seconds: row.deadline_seconds,
        }
    }
}

/// The command of this plugin with which a user acts on a reason, or learns more.
fn command(condition: ConditionType, reason: Reason) -> Option<&'static str> {
    Some(match (condition, reason) {
        (ConditionType::PodTemplateDrift, Reason::Held | Reason::AdoptedWithDrift) => {
            "kubectl sei diff NODE, then kubectl sei approve NODE"
        }
        (ConditionType::PodTemplateDrift, Reason::Paused) => "kubectl sei resume NODE",
        (ConditionType::PodTemplateDrift, Reason::WaitingForSlot | Reason::BackingOff) => {
            "kubectl sei diff NODE"
        }
        (ConditionType::Stalled, Reason::ImagePullFailed) => "kubectl sei set image NODE IMAGE",
        (ConditionType::Stalled, Reason::CrashLooping) => "kubectl sei logs NODE --previous",
        (ConditionType::Stalled, Reason::SidecarTaskFailed | Reason::SidecarUnreachable) => {
            "kubectl sei logs NODE -c sei-sidecar"
        }
        _ => return None,
    })
}

pub(crate) fn run(
    flags: &ExplainFlags,
    terminal: Option<Terminal>,
    out: Out<'_>,
) -> Result<(), Error> {
    let width = terminal.map(|terminal| terminal.width);
    if flags.reasons.is_empty() {
        let rows: Vec<Row> = REASONS.iter().map(Row::from).collect();
        return show(out, flags.output.format, &rows, || list(&rows, width));
    }
    let mut rows: Vec<Row> = Vec::new();
    for given in &flags.reasons {
        let reason = known_reason(given)?;
        rows.extend(REASONS.iter().filter(|row| row.reason.as_str() == reason).map(Row::from));
    }
    show(out, flags.output.format, &rows, || {
        rows.iter().map(|row| explain(row, width)).collect::<Vec<_>>().join("\n")
    })
}

fn known_reason(given: &str) -> Result<&'static str, Error> {
    let known = Reason::ALL.iter().map(|reason| reason.as_str());
    if let Some(reason) = known.clone().find(|name| name.eq_ignore_ascii_case(given)) {
        return Ok(reason);
    }
    let near = nearest(given, known);
    let hint = if near.is_empty() {
        "kubectl sei explain lists all reasons".to_owned()
    } else {
        format!("did you mean {}?", near.join(" or "))
    };
    Err(Error::NoReason { given: given.to_owned(), hint })
}

/// The reasons of each condition, with the first sentence of what they mean.
fn list(rows: &[Row], width: Option<usize>) -> String {
    let longest = rows.iter().map(|row| row.reason.len()).max().unwrap_or_default();
    let mut text = String::new();
    let mut condition = "";
    for row in rows {
        if row.condition != condition {
            let gap = if condition.is_empty() { "" } else { "\n" };
            text.extend([gap, row.condition, "\n"]);
            condition = row.condition;
        }
        let meaning = row.meaning.split_once(". ").map_or(row.meaning, |(first, _)| first);
        let meaning = meaning.trim_end_matches('.');
        let start = format!("  {:<longest$}  {:<7}  ", row.reason, row.status);
        text.push_str(&lines(&start, meaning, width));
    }
    text.push_str("\nkubectl sei explain REASON... explains reasons in full, with what to do.\n");
    text
}

fn explain(row: &Row, width: Option<usize>) -> String {
    let mut text = format!("{} ({}={})\n", row.reason, row.condition, row.status);
    text.push_str(&lines("  ", row.meaning, width));
    if let Some(remedy) = row.remedy {
        text.push_str(&lines("  To do: ", remedy, width));
    }
    if let Some(command) = row.command {
        text.push_str(&lines("  Command: ", command, width));
    }
    match row.deadline_seconds {
        None => {}
        Some(0) => text.push_str("  Reported as soon as it is observed.\n"),
        Some(seconds) => text.extend([format!("  Reported once it has lasted {seconds} s.\n")]),
    }
    text
}

/// The text after a start of its first line; further lines are indented as far.
fn lines(start: &str, text: &str, width: Option<usize>) -> String {
    let indent = start.chars().count();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(20));
    let parts = wrap(text, room);
    let separator = format!("\n{:indent$}", "");
    format!("{start}{}\n", parts.join(&separator))
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::flags::{Output, OutputFlags};

    fn explained(reasons: &[&str], output: Output) -> Result<String, Error> {
        let mut out = Vec::new();
        let flags = ExplainFlags {
            reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
            output: OutputFlags { format: output },
        };
        run(&flags, None, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn check(reason: &str, expected: &Expect) {
        let text = match explained(&[reason], Output::Text) {
            Ok(text) => text,
            Err(error) => format!("{error}\n"),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn several_reasons_are_explained_at_once() {
        let text = explained(&["UpdateComplete", "ReplicasNotOne"], Output::Text).unwrap();
        assert!(
            text.contains("UpdateComplete (") && text.contains("\n\nReplicasNotOne ("),
            "{text}"
        );
        assert!(explained(&["Held", "Nonsense"], Output::Text).is_err());
    }

    #[test]
    fn long_texts_fit_the_terminal() {
        let text = list(&REASONS.iter().map(Row::from).collect::<Vec<_>>(), Some(100));
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn a_reason_is_explained_with_its_remedy_and_deadline() {
        check(
            "ImagePullFailed",
            &expect![[r#"
                ImagePullFailed (Stalled=True)
                  An image of the pod cannot be pulled.
                  To do: Check that the image named in the message exists and that its registry lets the Kubernetes node pull it. Correct spec.image or spec.sidecar.image: an edit takes effect immediately, and so does reverting to the old image.
                  Command: kubectl sei set image NODE IMAGE
                  Reported once it has lasted 120 s.
            "#]],
        );
        check(
            "heLD",
            &expect![[r#"
                Held (PodTemplateDrift=True)
                  The pod differs from the desired template because the operator or the platform configuration changed, and this node requires approval for such changes. The pod keeps running unchanged.
                  To do: Read status.pendingUpdate.changes. To approve the update, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash; the node then rolls when it gets a slot of its chain. A later change needs a new approval.
                  Command: kubectl sei diff NODE, then kubectl sei approve NODE
            "#]],
        );
    }

    #[test]
    fn a_reason_of_two_conditions_is_explained_for_both() {
        check(
            "Paused",
            &expect![[r#"
                Paused (PodTemplateDrift=False)
                  The pod was created from the desired template, and spec.update.paused holds the next update.
                  To do: Set spec.update.paused to false before the next update.
                  Command: kubectl sei resume NODE

                Paused (PodTemplateDrift=True)
                  spec.update.paused holds the update. The pod keeps running unchanged.
                  To do: Set spec.update.paused to false.
                  Command: kubectl sei resume NODE

                Paused (Paused=True)
                  spec.paused keeps the node at zero replicas.
                  To do: Set spec.paused to false.
            "#]],
        );
    }

    #[test]
    fn an_unknown_reason_is_answered_with_similar_ones() {
        check(
            "ImagePullFail",
            &expect![[r#"
                unknown reason ImagePullFail; did you mean ImagePullFailed?
            "#]],
        );
        check(
            "Nonsense",
            &expect![[r#"
                unknown reason Nonsense; kubectl sei explain lists all reasons
            "#]],
        );
    }

    #[test]
    fn every_reason_can_be_explained() {
        let all = explained(&[], Output::Text).unwrap();
        for condition in ConditionType::ALL {
            let heading = |line: &&str| *line == condition.as_str();
            assert_eq!(all.lines().filter(heading).count(), 1, "{condition} is one group");
        }
        for row in REASONS {
            let text = explained(&[row.reason.as_str()], Output::Text).unwrap();
            assert!(text.contains(row.meaning) && text.contains(row.remedy), "{}", row.reason);
            let listed = |line: &str| line.trim_start().starts_with(row.reason.as_str());
            assert!(all.lines().any(listed), "{}", row.reason);
        }
    }

    #[test]
    fn the_json_output_has_condition_and_deadline() {
        let text = explained(&["Held"], Output::Json).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read[0]["condition"], "PodTemplateDrift");
        assert_eq!(read[0]["deadlineSeconds"], serde_json::Value::Null);
    }
}
