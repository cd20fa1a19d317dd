//! `kubectl sei pause` and `kubectl sei resume`: hold all updates of nodes, and end that.

use kube::ResourceExt as _;
use sei_api::SeiNode;
use sei_api::plan::PlanKind;
use sei_api::task::TaskType;
use sei_plan::summary::is_settings_only;
use serde_json::{Value, json};

use crate::change::{Change, Selected};
use crate::cluster::Scope;
use crate::error::Error;
use crate::flags::VerbFlags;
use crate::{CommandContext, Out};

pub(crate) async fn run(
    flags: &VerbFlags,
    paused: bool,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let nodes = Selected::read(&flags.nodes, &flags.change, scope, context).await?;
    nodes.change(|node| pause(node, paused), context, out).await?;
    Ok(())
}

fn pause(node: &SeiNode, paused: bool) -> Change {
    if node.spec.updates_are_paused() == paused {
        let state = if paused { "paused already" } else { "not paused" };
        return Change::NotNeeded(format!("updates are {state}"));
    }
    let value = if paused { json!(true) } else { Value::Null };
    let text = if paused { paused_text(node) } else { resumed_text(node) };
    Change::Patch(json!({ "spec": { "update": { "paused": value } } }), text)
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
