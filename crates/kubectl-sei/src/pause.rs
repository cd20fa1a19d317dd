//! `kubectl sei pause` and `kubectl sei resume`: hold all updates of nodes, and end that.

use kube::ResourceExt as _;
use sei_api::SeiNode;
use sei_api::plan::PlanKind;
use sei_api::task::TaskType;
use sei_plan::summary::is_settings_only;
use serde_json::{Value, json};

use crate::cluster::{Scope, node};
use crate::error::Error;
use crate::flags::PauseFlags;
use crate::format::full_name;
use crate::patch::patch_node;
use crate::{CommandContext, Out, write};

pub(crate) async fn run(
    flags: &PauseFlags,
    paused: bool,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    // All nodes are found before the first is changed: a typing error then changes nothing.
    let mut nodes = Vec::new();
    for given in &flags.nodes {
        nodes.push(node(client, scope, given).await?);
    }
    for node in &nodes {
        let name = full_name(node);
        if node.spec.updates_are_paused() == paused {
            let state = if paused { "paused already" } else { "not paused" };
            write(out, &format!("{name}: updates are {state}; nothing was changed\n"))?;
            continue;
        }
        let value = if paused { json!(true) } else { Value::Null };
        patch_node(client, node, &json!({ "spec": { "update": { "paused": value } } })).await?;
        let text = if paused { paused_text(node) } else { resumed_text(node) };
        write(out, &format!("{name}: {text}\n"))?;
    }
    Ok(())
}

fn paused_text(node: &SeiNode) -> String {
    let text = "updates are paused. The node keeps running, and an evicted pod is recreated from \
                its present template";
    if is_past_replacement(node) {
        format!("{text}. The roll in progress has replaced the pod already and completes first")
    } else {
        text.to_owned()
    }
}

/// Whether a roll is in progress that has replaced its pod and cannot be reverted any more.
fn is_past_replacement(node: &SeiNode) -> bool {
    let plan = node.status.as_ref().and_then(|status| status.plan.as_ref());
    plan.is_some_and(|plan| {
        plan.kind == Some(PlanKind::NodeUpdate)
            && plan.is_active()
            && plan.has_completed(TaskType::ReplacePod)
    })
}

fn resumed_text(node: &SeiNode) -> String {
    let status = node.status.as_ref();
    let status = status.filter(|status| !is_settings_only(status));
    match status.and_then(|status| status.pending_update.as_ref()) {
        None => "updates are resumed. Nothing is pending".to_owned(),
        Some(pending) => format!(
            "updates are resumed. One is pending (cause {:?}); see kubectl sei diff -n {} {}",
            pending.cause,
            node.namespace().unwrap_or_default(),
            node.name_any(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use sei_api::status::UpdateState;

    use super::*;
    use crate::fixtures::{node, pending, plan};

    #[test]
    fn pause_and_resume_report_a_roll_in_progress_and_a_pending_update() {
        let mut rolling = pending(node("rpc-0"), UpdateState::Rolling, "Rolling", "");
        expect!["updates are paused. The node keeps running, and an evicted pod is recreated from its present template"].assert_eq(&paused_text(&rolling));
        let plan = plan(&[("replace-pod", true), ("observe-image", false)]);
        rolling.status.get_or_insert_default().plan = Some(plan);
        expect!["updates are paused. The node keeps running, and an evicted pod is recreated from its present template. The roll in progress has replaced the pod already and completes first"].assert_eq(&paused_text(&rolling));
        expect!["updates are resumed. One is pending (cause Operator); see kubectl sei diff -n demo rpc-0"].assert_eq(&resumed_text(&rolling));
        expect!["updates are resumed. Nothing is pending"].assert_eq(&resumed_text(&node("rpc-0")));
    }
}
