//! `kubectl sei restart`: replace the pods of nodes, by the rules of any other update.

use sei_api::SeiNode;
use sei_api::names::annotation;
use sei_api::status::SeiNodePhase;
use serde_json::json;

use crate::change::{Change, Selected, follow};
use crate::cluster::Scope;
use crate::error::Error;
use crate::flags::VerbFlags;
use crate::{CommandContext, Out, write};

pub(crate) async fn run(
    flags: &VerbFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let nodes = Selected::read(&flags.nodes, &flags.change, scope, context).await?;
    let value = context.now().to_string();
    let changed = nodes.change(|node| restart(node, &value), context, out).await?;
    if !changed.is_empty() {
        write(out, &follow(&changed, scope))?;
    }
    Ok(())
}

fn restart(node: &SeiNode, value: &str) -> Change {
    let phase = node.status.as_ref().and_then(|status| status.phase);
    if node.spec.is_paused() {
        return Change::Refused("it is stopped by spec.paused; set that to false".to_owned());
    }
    match phase {
        Some(SeiNodePhase::Running) => {}
        Some(SeiNodePhase::Failed) => {
            return Change::Refused("it has failed; use kubectl sei retry".to_owned());
        }
        _ => return Change::Refused("it does not run yet".to_owned()),
    }
    let patch = json!({ "metadata": { "annotations": { annotation::RESTARTED_AT: value } } });
    let text = if node.spec.updates_are_paused() {
        "restarts after its updates are resumed"
    } else {
        "restarts when its chain has a free slot; at once if it is not Ready"
    };
    Change::Patch(patch, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::node;

    #[test]
    fn only_a_running_node_is_restarted() {
        let Change::Patch(patch, _) = restart(&node("rpc-0"), "now") else { panic!("no patch") };
        assert_eq!(patch["metadata"]["annotations"]["sei.io/restarted-at"], "now");
        let mut failed = node("rpc-0");
        failed.status.get_or_insert_default().phase = Some(SeiNodePhase::Failed);
        let why = "it has failed; use kubectl sei retry".to_owned();
        assert_eq!(restart(&failed, "now"), Change::Refused(why));
        let mut stopped = node("rpc-0");
        stopped.spec.paused = Some(true);
        assert!(matches!(restart(&stopped, "now"), Change::Refused(_)));
        let mut held = node("rpc-0");
        held.spec.update.get_or_insert_default().paused = Some(true);
        let Change::Patch(_, text) = restart(&held, "now") else { panic!("no patch") };
        assert_eq!(text, "restarts after its updates are resumed");
    }
}
