//! `kubectl sei approve`, `pause` and `resume`: the only things that this plugin changes.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use sei_api::SeiNode;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, is};
use sei_api::names::annotation;
use sei_api::plan::PlanKind;
use sei_api::status::{PendingUpdate, UpdateState};
use sei_api::task::TaskType;
use sei_exec::call::call;
use serde_json::{Value, json};

use crate::cluster::{Scope, node};
use crate::error::{Error, told};
use crate::flags::{ApproveFlags, Named};
use crate::words::full_name;
use crate::{Out, Surroundings, write};

/// Field manager of what people set by this plugin.
const FIELD_MANAGER: &str = "kubectl-sei";

/// What an approval does now.
#[derive(Debug, PartialEq, Eq)]
enum Approval {
    /// It is written, for this hash.
    Give(String),
    /// Nothing is to be written; why.
    NotNeeded(String),
}

pub(crate) async fn approve(
    flags: &ApproveFlags,
    scope: &Scope,
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = surroundings.client()?;
    let node = node(client, scope, &flags.node).await?;
    let name = full_name(&node);
    let text = match approval(&node, flags.hash.as_deref()) {
        Err(why) => return Err(Error::Refused { node: name, why }),
        Ok(Approval::NotNeeded(why)) => format!("{name}: {why}\n"),
        Ok(Approval::Give(hash)) => {
            let patch =
                json!({ "metadata": { "annotations": { annotation::APPROVE_UPDATE: hash } } });
            patch_node(client, &node, &patch).await?;
            format!(
                "{name}: approved {hash}\n\
                 It rolls when its turn in chain {} comes: an approval lifts the hold, not the \
                 budget. An approval of another template would not count.\n\
                 Follow it with: kubectl sei status -n {} {} -w\n",
                node.spec.chain_id,
                node.namespace().unwrap_or_default(),
                node.name_any(),
            )
        }
    };
    write(out, &text)
}

/// What an approval of this hash, or of whatever is pending, would do to a node; or why it is
/// refused.
fn approval(node: &SeiNode, hash: Option<&str>) -> Result<Approval, String> {
    let pending = node.status.as_ref().and_then(|status| status.pending_update.as_ref());
    let Some(pending) = pending else {
        return Err("there is nothing to approve: no update is pending".to_owned());
    };
    let target = &pending.target_hash;
    if let Some(given) = hash.filter(|given| given != target) {
        return Err(format!("{given} is not what the pending update leads to; that is {target}"));
    }
    if is_settings_only(node) {
        return Err(
            "there is nothing to approve: the pod is as desired, and what differs arrives \
                    with the next roll"
                .to_owned(),
        );
    }
    if node.spec.updates_are_paused() {
        return Err(
            "spec.update.paused holds the update, and no approval lifts that; use kubectl \
                    sei resume"
                .to_owned(),
        );
    }
    let given = node.annotations().get(annotation::APPROVE_UPDATE);
    if given == Some(target) {
        return Ok(Approval::NotNeeded(format!("{target} is approved already; {}", next(pending))));
    }
    match pending.state {
        UpdateState::Held => Ok(Approval::Give(target.clone())),
        UpdateState::Queued | UpdateState::Rolling | UpdateState::Retrying => {
            Ok(Approval::NotNeeded(format!("it needs no approval; {}", next(pending))))
        }
    }
}

/// What becomes of a pending update by itself.
fn next(pending: &PendingUpdate) -> String {
    let why = pending.reason.as_deref().unwrap_or_default();
    match pending.state {
        UpdateState::Held => "the operator has not taken it up yet".to_owned(),
        UpdateState::Queued => format!("it rolls by itself: {why}"),
        UpdateState::Rolling => "it rolls".to_owned(),
        UpdateState::Retrying => format!("it is tried again by itself: {why}"),
    }
}

/// Whether only settings outside of the template wait: nothing rolls for them.
pub(crate) fn is_settings_only(node: &SeiNode) -> bool {
    let Some(status) = &node.status else { return false };
    let pending = status.pending_update.as_ref();
    let of_settings = pending.is_some_and(|one| {
        !one.changes.is_empty() && one.changes.iter().all(|one| one.path.starts_with("config."))
    });
    of_settings && is(&status.conditions, ConditionType::PodTemplateDrift, ConditionStatus::False)
}

pub(crate) async fn pause(
    named: &Named,
    paused: bool,
    scope: &Scope,
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = surroundings.client()?;
    // All of them are found before one of them is changed.
    let mut nodes = Vec::new();
    for given in &named.nodes {
        nodes.push(node(client, scope, given).await?);
    }
    for node in &nodes {
        let name = full_name(node);
        if node.spec.updates_are_paused() == paused {
            let so = if paused { "paused already" } else { "not paused" };
            write(out, &format!("{name}: updates are {so}; nothing was changed\n"))?;
            continue;
        }
        let value = if paused { json!(true) } else { Value::Null };
        patch_node(client, node, &json!({ "spec": { "update": { "paused": value } } })).await?;
        let text = if paused { paused_words(node) } else { resumed_words(node) };
        write(out, &format!("{name}: {text}\n"))?;
    }
    Ok(())
}

fn paused_words(node: &SeiNode) -> String {
    let text = "updates are held from now on. The node keeps running, and an evicted pod comes \
                back as it was";
    if is_past_replacement(node) {
        format!("{text}. The roll under way has replaced its pod already and is finished first")
    } else {
        text.to_owned()
    }
}

/// Whether a roll is under way that is past the point where it can be put back.
fn is_past_replacement(node: &SeiNode) -> bool {
    let plan = node.status.as_ref().and_then(|status| status.plan.as_ref());
    plan.is_some_and(|plan| {
        plan.kind == Some(PlanKind::NodeUpdate)
            && plan.is_active()
            && plan.has_completed(TaskType::ReplacePod)
    })
}

fn resumed_words(node: &SeiNode) -> String {
    let status = node.status.as_ref();
    let pending = status.and_then(|status| status.pending_update.as_ref());
    match pending.filter(|_| !is_settings_only(node)) {
        None => "updates go on. Nothing is pending".to_owned(),
        Some(pending) => format!(
            "updates go on. One is pending (cause {:?}); see kubectl sei diff -n {} {}",
            pending.cause,
            node.namespace().unwrap_or_default(),
            node.name_any(),
        ),
    }
}

/// Why nothing of a node rolls although it differs, in the words of the condition.
pub(crate) fn is_paused_update(node: &SeiNode) -> bool {
    let conditions = node.status.as_ref().map(|status| status.conditions.as_slice());
    conditions.unwrap_or_default().iter().any(|one| {
        one.type_ == ConditionType::PodTemplateDrift.as_str()
            && one.reason == Reason::Paused.as_str()
    })
}

async fn patch_node(client: &Client, node: &SeiNode, patch: &Value) -> Result<(), Error> {
    let namespace = node.namespace().unwrap_or_default();
    let nodes: Api<SeiNode> = Api::namespaced(client.clone(), &namespace);
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = node.name_any();
    call("patch seinode", nodes.patch(&name, &params, &Patch::Merge(patch)))
        .await
        .map_err(|failure| told(&format!("patch seinode {name}"), failure))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::fixture::{HASH, node, pending, settings_pending};

    fn check(node: &SeiNode, hash: Option<&str>, expected: &Expect) {
        let text = match approval(node, hash) {
            Ok(Approval::Give(hash)) => format!("approves {hash}"),
            Ok(Approval::NotNeeded(why)) => format!("not needed: {why}"),
            Err(why) => format!("refused: {why}"),
        };
        expected.assert_eq(&text);
    }

    #[test]
    fn a_held_update_is_approved_by_its_hash_alone() {
        let held = pending(node("rpc-0"), UpdateState::Held, "Held", "wait for an approval");
        check(
            &held,
            None,
            &expect![[
                r#"approves v1:1111111111111111111111111111111111111111111111111111111111111111"#
            ]],
        );
        check(
            &held,
            Some(HASH),
            &expect![[
                r#"approves v1:1111111111111111111111111111111111111111111111111111111111111111"#
            ]],
        );
        check(
            &held,
            Some("v1:ab"),
            &expect![[
                r#"refused: v1:ab is not what the pending update leads to; that is v1:1111111111111111111111111111111111111111111111111111111111111111"#
            ]],
        );
    }

    #[test]
    fn what_no_approval_helps_is_refused_with_its_reason() {
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
            &expect![[
                r#"refused: spec.update.paused holds the update, and no approval lifts that; use kubectl sei resume"#
            ]],
        );
        check(
            &settings_pending(node("rpc-0")),
            None,
            &expect![[
                r#"refused: there is nothing to approve: the pod is as desired, and what differs arrives with the next roll"#
            ]],
        );
    }

    #[test]
    fn what_needs_no_approval_says_what_it_waits_for() {
        let why = "waits for its turn: demo/rpc-1 rolls";
        let queued = pending(node("rpc-0"), UpdateState::Queued, "WaitingForSlot", why);
        check(
            &queued,
            None,
            &expect![
                "not needed: it needs no approval; it rolls by itself: waits for its turn: demo/rpc-1 rolls"
            ],
        );
        let rolling = pending(node("rpc-0"), UpdateState::Rolling, "Rolling", "");
        check(&rolling, None, &expect![[r#"not needed: it needs no approval; it rolls"#]]);
        let mut approved = pending(node("rpc-0"), UpdateState::Held, "Held", "wait");
        approved.annotations_mut().insert(annotation::APPROVE_UPDATE.to_owned(), HASH.to_owned());
        check(
            &approved,
            None,
            &expect![[
                r#"not needed: v1:1111111111111111111111111111111111111111111111111111111111111111 is approved already; the operator has not taken it up yet"#
            ]],
        );
    }

    #[test]
    fn a_pause_says_what_it_means_for_a_roll_under_way() {
        let mut rolling = pending(node("rpc-0"), UpdateState::Rolling, "Rolling", "");
        expect![[r#"updates are held from now on. The node keeps running, and an evicted pod comes back as it was"#]].assert_eq(&paused_words(&rolling));
        let plan = crate::fixture::plan(&[("replace-pod", true), ("observe-image", false)]);
        rolling.status.get_or_insert_default().plan = Some(plan);
        expect![[r#"updates are held from now on. The node keeps running, and an evicted pod comes back as it was. The roll under way has replaced its pod already and is finished first"#]].assert_eq(&paused_words(&rolling));
        expect![[
            r#"updates go on. One is pending (cause Operator); see kubectl sei diff -n demo rpc-0"#
        ]]
        .assert_eq(&resumed_words(&rolling));
        expect![[r#"updates go on. Nothing is pending"#]].assert_eq(&resumed_words(&node("rpc-0")));
    }
}
