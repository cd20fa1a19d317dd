//! `kubectl sei approve`: approve the pending update of a held node.

use kube::ResourceExt as _;
use sei_api::SeiNode;
use sei_api::names::annotation;
use sei_api::status::{PendingUpdate, UpdateState};
use sei_plan::summary::is_settings_only;
use serde_json::json;

use crate::change::{Change, Selected, follow};
use crate::cluster::Scope;
use crate::error::Error;
use crate::flags::{ApproveFlags, DryRun};
use crate::{CommandContext, Out, write};

pub(crate) async fn run(
    flags: &ApproveFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let nodes = Selected::read(&flags.verb.nodes, &flags.verb.change, scope, context).await?;
    let approved = nodes.change(|node| approval(node, flags.hash.as_deref()), context, out).await?;
    if approved.is_empty() || flags.verb.change.dry_run != DryRun::None {
        return Ok(());
    }
    let follow = follow(&approved, scope);
    let text = "An approval ends the hold of one template; the node still waits for its turn in \
                its chain.";
    write(out, &format!("{text}\n{follow}"))
}

/// The effect of an approval of this hash, or of the pending target where none is given.
fn approval(node: &SeiNode, hash: Option<&str>) -> Change {
    let pending = node.status.as_ref().and_then(|status| status.pending_update.as_ref());
    let Some(pending) = pending else {
        return Change::Refused("there is nothing to approve: no update is pending".to_owned());
    };
    let target = &pending.target_hash;
    if let Some(given) = hash.filter(|given| given != target) {
        return Change::Refused(format!(
            "{given} is not the target of the pending update; the target is {target}"
        ));
    }
    if node.status.as_ref().is_some_and(is_settings_only) {
        return Change::Refused(
            "there is nothing to approve: the pod is in sync, and the changed settings are applied \
             with the next roll"
                .to_owned(),
        );
    }
    if node.spec.updates_are_paused() {
        return Change::Refused(
            "spec.update.paused holds the update, and an approval does not override it; use \
             kubectl sei resume"
                .to_owned(),
        );
    }
    let approved = node.annotations().get(annotation::APPROVE_UPDATE);
    if approved == Some(target) {
        let next = next_step(pending);
        return Change::NotNeeded(format!("{target} is approved already; {next}"));
    }
    match pending.state {
        UpdateState::Held => {
            let annotations = json!({ annotation::APPROVE_UPDATE: target });
            let patch = json!({ "metadata": { "annotations": annotations } });
            Change::Patch(patch, format!("approved {target}"))
        }
        UpdateState::Queued | UpdateState::Rolling | UpdateState::Retrying => {
            Change::NotNeeded(format!("it needs no approval; {}", next_step(pending)))
        }
    }
}

/// What happens to a pending update without another action of the user.
fn next_step(pending: &PendingUpdate) -> String {
    let why = pending.reason.as_deref().unwrap_or_default();
    match pending.state {
        UpdateState::Held => "the operator has not reconciled it yet".to_owned(),
        UpdateState::Queued => format!("it rolls automatically: {why}"),
        UpdateState::Rolling => "it is rolling".to_owned(),
        UpdateState::Retrying => format!("it is retried automatically: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::fixtures::{HASH, node, pending, settings_pending};

    fn check(node: &SeiNode, hash: Option<&str>, expected: &Expect) {
        let text = match approval(node, hash) {
            Change::Patch(patch, text) => {
                let written = &patch["metadata"]["annotations"]["sei.io/approve-update"];
                format!("{text}, writes {written}")
            }
            Change::NotNeeded(why) => format!("not needed: {why}"),
            Change::Refused(why) => format!("refused: {why}"),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_held_update_is_approved_for_its_target_hash_only() {
        let held = pending(node("rpc-0"), UpdateState::Held, "Held", "wait for an approval");
        check(
            &held,
            None,
            &expect![[
                r#"approved v1:1111111111111111111111111111111111111111111111111111111111111111, writes "v1:1111111111111111111111111111111111111111111111111111111111111111""#
            ]],
        );
        check(
            &held,
            Some(HASH),
            &expect![[
                r#"approved v1:1111111111111111111111111111111111111111111111111111111111111111, writes "v1:1111111111111111111111111111111111111111111111111111111111111111""#
            ]],
        );
        check(
            &held,
            Some("v1:ab"),
            &expect![
                "refused: v1:ab is not the target of the pending update; the target is v1:1111111111111111111111111111111111111111111111111111111111111111"
            ],
        );
    }

    #[test]
    fn an_approval_without_effect_is_refused_with_the_reason() {
        check(
            &node("rpc-0"),
            None,
            &expect![[r#"refused: there is nothing to approve: no update is pending"#]],
        );
        let mut paused = pending(node("rpc-0"), UpdateState::Held, "Paused", "spec.update.paused");
        paused.spec.update.get_or_insert_default().paused = Some(true);
        check(
            &paused,
            None,
            &expect![
                "refused: spec.update.paused holds the update, and an approval does not override it; use kubectl sei resume"
            ],
        );
        check(
            &settings_pending(node("rpc-0")),
            None,
            &expect![
                "refused: there is nothing to approve: the pod is in sync, and the changed settings are applied with the next roll"
            ],
        );
    }

    #[test]
    fn an_update_that_needs_no_approval_is_left_alone() {
        let why = &sei_plan::planner::next_in_chain("demo/rpc-1 rolls");
        let queued = pending(node("rpc-0"), UpdateState::Queued, "WaitingForSlot", why);
        check(
            &queued,
            None,
            &expect![[
                r#"not needed: it needs no approval; it rolls automatically: is next in its chain: demo/rpc-1 rolls"#
            ]],
        );
        let rolling = pending(node("rpc-0"), UpdateState::Rolling, "Rolling", "");
        check(&rolling, None, &expect!["not needed: it needs no approval; it is rolling"]);
        let mut approved = pending(node("rpc-0"), UpdateState::Held, "Held", "wait");
        approved.annotations_mut().insert(annotation::APPROVE_UPDATE.to_owned(), HASH.to_owned());
        check(
            &approved,
            None,
            &expect![
                "not needed: v1:1111111111111111111111111111111111111111111111111111111111111111 is approved already; the operator has not reconciled it yet"
            ],
        );
    }
}
