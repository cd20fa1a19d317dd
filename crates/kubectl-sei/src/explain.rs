//! `kubectl sei explain`: what a reason means, and what to do about it.

use sei_api::condition::{REASONS, Reason, ReasonRow};
use serde::Serialize;

use crate::cluster::nearest;
use crate::error::Error;
use crate::flags::ExplainFlags;
use crate::format::table;
use crate::{Out, show};

/// A row of the table of reasons, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    reason: &'static str,
    condition: &'static str,
    status: &'static str,
    meaning: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    remedy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_seconds: Option<u32>,
}

impl From<&ReasonRow> for Row {
    fn from(row: &ReasonRow) -> Self {
        Self {
            reason: row.reason.as_str(),
            condition: row.condition.as_str(),
            status: row.status.as_str(),
            meaning: row.meaning,
            remedy: row.remedy,
            deadline_seconds: row.deadline_seconds,
        }
    }
}

pub(crate) fn run(flags: &ExplainFlags, out: Out<'_>) -> Result<(), Error> {
    let Some(given) = &flags.reason else {
        let rows: Vec<Row> = REASONS.iter().map(Row::from).collect();
        return show(out, flags.output.format, &rows, || list(&rows));
    };
    let known = Reason::ALL.iter().map(|reason| reason.as_str());
    let Some(reason) = known.clone().find(|name| name.eq_ignore_ascii_case(given)) else {
        let near = nearest(given, known);
        let hint = if near.is_empty() {
            "kubectl sei explain lists all reasons".to_owned()
        } else {
            format!("did you mean {}?", near.join(" or "))
        };
        return Err(Error::NoReason { given: given.clone(), hint });
    };
    let rows: Vec<Row> =
        REASONS.iter().filter(|row| row.reason.as_str() == reason).map(Row::from).collect();
    show(out, flags.output.format, &rows, || {
        rows.iter().map(explain).collect::<Vec<_>>().join("\n")
    })
}

fn list(rows: &[Row]) -> String {
    let header = ["REASON", "CONDITION", "STATUS", "MEANING"].map(str::to_owned).to_vec();
    let cells = |row: &Row| {
        [row.reason, row.condition, row.status, row.meaning].map(str::to_owned).to_vec()
    };
    table(&std::iter::once(header).chain(rows.iter().map(cells)).collect::<Vec<_>>())
}

fn explain(row: &Row) -> String {
    let mut text =
        format!("{} ({}={})\n  {}\n", row.reason, row.condition, row.status, row.meaning);
    if !row.remedy.is_empty() {
        text.extend([format!("  To do: {}\n", row.remedy)]);
    }
    match row.deadline_seconds {
        None => {}
        Some(0) => text.push_str("  Reported as soon as it is observed.\n"),
        Some(seconds) => text.extend([format!("  Reported once it has lasted {seconds} s.\n")]),
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::flags::{Output, OutputFlags};

    fn explained(reason: Option<&str>, output: Output) -> Result<String, Error> {
        let mut out = Vec::new();
        let flags = ExplainFlags {
            reason: reason.map(str::to_owned),
            output: OutputFlags { format: output },
        };
        run(&flags, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn check(reason: &str, expected: &Expect) {
        let text = match explained(Some(reason), Output::Text) {
            Ok(text) => text,
            Err(error) => format!("{error}\n"),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_reason_is_explained_with_its_remedy_and_deadline() {
        check(
            "ImagePullFailed",
            &expect![[r#"
                ImagePullFailed (Stalled=True)
                  An image of the pod cannot be pulled.
                  To do: Check that the image named in the message exists and that its registry lets the Kubernetes node pull it. Correct spec.image or spec.sidecar.image: an edit takes effect immediately, and so does reverting to the old image.
                  Reported once it has lasted 120 s.
            "#]],
        );
        check(
            "heLD",
            &expect![[r#"
                Held (PodTemplateDrift=True)
                  The pod differs from the desired template because the operator or the platform configuration changed, and this node requires approval for such changes. The pod keeps running unchanged.
                  To do: Read status.pendingUpdate.changes. To approve the update, set annotation sei.io/approve-update to the value of status.pendingUpdate.targetHash; the node then rolls when it gets a slot of its chain. A later change needs a new approval.
            "#]],
        );
    }

    #[test]
    fn a_reason_of_two_conditions_is_explained_for_both() {
        check(
            "Paused",
            &expect![[r#"
                Paused (PodTemplateDrift=True)
                  spec.update.paused holds the update. The pod keeps running unchanged.
                  To do: Set spec.update.paused to false.

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
        let all = explained(None, Output::Text).unwrap();
        for row in REASONS {
            let text = explained(Some(row.reason.as_str()), Output::Text).unwrap();
            assert!(text.contains(row.meaning) && text.contains(row.remedy), "{}", row.reason);
            let listed =
                |line: &str| line.starts_with(row.reason.as_str()) && line.ends_with(row.meaning);
            assert!(all.lines().any(listed), "{}", row.reason);
        }
    }

    #[test]
    fn the_json_output_has_condition_and_deadline() {
        let text = explained(Some("Held"), Output::Json).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read[0]["condition"], "PodTemplateDrift");
        assert_eq!(read[0]["deadlineSeconds"], serde_json::Value::Null);
    }
}
