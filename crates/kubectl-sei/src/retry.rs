//! `kubectl sei retry`: start failed nodes again.

use kube::ResourceExt as _;
use sei_api::SeiNode;
use sei_api::names::annotation;
use sei_api::status::SeiNodePhase;
use serde_json::json;

use crate::change::{Change, Selected};
use crate::cluster::Scope;
use crate::error::Error;
use crate::flags::VerbFlags;
use crate::{CommandContext, Out};

pub(crate) async fn run(
    flags: &VerbFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let nodes = Selected::read(&flags.nodes, &flags.change, scope, context).await?;
    // Any value that the node does not have yet is a new request.
    let value = context.now().to_string();
    nodes.change(|node| retry(node, &value), context, out).await?;
    Ok(())
}

fn retry(node: &SeiNode, value: &str) -> Change {
    let status = node.status.as_ref();
    if status.and_then(|status| status.phase) == Some(SeiNodePhase::Failed) {
        let patch = json!({ "metadata": { "annotations": { annotation::RETRY: value } } });
        return Change::Patch(patch, "starts again, on its present volume".to_owned());
    }
    let next = status
        .and_then(|status| status.pending_update.as_ref())
        .and_then(|pending| pending.next_attempt_at.as_ref());
    let why = match next {
        Some(at) => format!("its update is retried automatically at {}", at.0),
        None => format!("it has not failed; see kubectl sei status {}", node.name_any()),
    };
    Change::NotNeeded(why)
}

#[cfg(test)]
mod tests {
    use sei_api::status::UpdateState;

    use super::*;
    use crate::fixtures::{ago, node, pending};

    #[test]
    fn only_a_failed_node_is_started_again() {
        let mut failed = node("rpc-0");
        failed.status.get_or_insert_default().phase = Some(SeiNodePhase::Failed);
        let Change::Patch(patch, _) = retry(&failed, "now") else { panic!("no patch") };
        assert_eq!(patch["metadata"]["annotations"]["sei.io/retry"], "now");
        let running = "it has not failed; see kubectl sei status rpc-0".to_owned();
        assert_eq!(retry(&node("rpc-0"), "now"), Change::NotNeeded(running));
        let mut retrying = pending(node("rpc-0"), UpdateState::Retrying, "BackingOff", "");
        let update = retrying.status.get_or_insert_default().pending_update.as_mut().unwrap();
        update.next_attempt_at = Some(ago(-45));
        let text = "its update is retried automatically at 2027-01-15T08:00:45Z".to_owned();
        assert_eq!(retry(&retrying, "now"), Change::NotNeeded(text));
    }
}
