//! The only writes of this plugin: merge patches of the selected `SeiNodes`, and of a fleet.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use sei_api::SeiNode;
use sei_exec::call::call;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::{Found, Scope, key_of, readable, some_nodes};
use crate::error::{Error, call_error};
use crate::flags::{ChangeFlags, DryRun, SelectionFlags};
use crate::format::{count, full_name};
use crate::{CommandContext, Out, flush, write};

/// Field manager of the fields that users set with this plugin.
const FIELD_MANAGER: &str = "kubectl-sei";

/// What a command does with a node.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    /// It is patched; the text reports what was changed.
    Patch(Value, String),
    /// It needs no change; the text is the reason.
    NotNeeded(String),
    /// It cannot be changed; the text is the reason.
    Refused(String),
}

/// The nodes of a command that changes them.
pub(crate) struct Selected {
    nodes: Vec<Found>,
    is_named: bool,
    dry_run: DryRun,
}

impl Selected {
    /// Reads the nodes. All are found before the first is changed: a typing error then changes
    /// nothing.
    pub(crate) async fn read(
        named: &[String],
        flags: &ChangeFlags,
        scope: &Scope,
        context: &CommandContext,
    ) -> Result<Self, Error> {
        let filter = &flags.filter;
        let is_filtered = flags.all || filter.selector.is_some() || filter.chain.is_some();
        // A change of all nodes is never a forgotten name.
        if named.is_empty() && !is_filtered {
            return Err(Error::NoSelection);
        }
        let selection = SelectionFlags { nodes: named.to_vec(), filter: filter.clone() };
        let nodes = some_nodes(context.client()?, scope, &selection).await?;
        Ok(Self { nodes, is_named: !named.is_empty(), dry_run: flags.dry_run })
    }

    /// Changes the nodes, and prints what was done to each. If a node that the user named cannot be
    /// changed, none is; nodes that a filter found are skipped. Returns the changed nodes.
    pub(crate) async fn change(
        self,
        decide: impl Fn(&SeiNode) -> Change,
        context: &CommandContext,
        out: Out<'_>,
    ) -> Result<Vec<SeiNode>, Error> {
        let client = context.client()?;
        let mut decided = Vec::new();
        for found in self.nodes {
            if self.is_named {
                let node = readable(found)?;
                let change = decide(&node);
                if let Change::Refused(why) = change {
                    return Err(Error::Refused { node: full_name(&node), why });
                }
                decided.push(Ok((node, change)));
            } else {
                decided.push(found.map(|node| {
                    let change = decide(&node);
                    (node, change)
                }));
            }
        }
        let total = decided.len();
        let (mut changed, mut failed): (Vec<SeiNode>, Vec<String>) = Default::default();
        for decision in decided {
            let (name, text) = match decision {
                Err(unreadable) => {
                    let (namespace, name) = key_of(&Err(unreadable.clone()));
                    let name = format!("{namespace}/{name}");
                    let text =
                        format!("failed: its manifest cannot be decoded: {}", unreadable.message);
                    failed.push(format!("{name}: {text}"));
                    (name, text)
                }
                Ok((node, Change::Patch(patch, text))) => {
                    let name = full_name(&node);
                    let text = match patch_node(client, &node, &patch, self.dry_run).await {
                        Ok(()) if self.dry_run == DryRun::None => text,
                        Ok(()) => format!("{text} (dry run)"),
                        Err(error) => {
                            failed.push(format!("{name}: {error}"));
                            format!("failed: {error}")
                        }
                    };
                    changed.push(node);
                    (name, text)
                }
                Ok((node, Change::NotNeeded(why) | Change::Refused(why))) => {
                    (full_name(&node), format!("unchanged: {why}"))
                }
            };
            write(out, &format!("{name}: {text}\n"))?;
            flush(out)?;
        }
        if let Some(first) = failed.first() {
            let (failed, of) = (failed.len(), count(total, "node"));
            return Err(Error::NotChanged { failed, of, first: first.clone() });
        }
        if total > 1 {
            let done = if self.dry_run == DryRun::None { "changed" } else { "would change" };
            let unchanged = total - changed.len();
            let text = format!("{} {done}, {unchanged} unchanged\n", count(changed.len(), "node"));
            write(out, &text)?;
        }
        Ok(changed)
    }
}

/// The command with which a user follows changed nodes.
pub(crate) fn follow(nodes: &[SeiNode], scope: &Scope) -> String {
    let selected = match (nodes, scope) {
        ([node], _) => format!("-n {} {}", node.namespace().unwrap_or_default(), node.name_any()),
        (_, Scope::All) => "-A".to_owned(),
        (_, Scope::Namespace(namespace)) => format!("-n {namespace}"),
    };
    format!("Follow it with: kubectl sei status {selected} -w\n")
}

async fn patch_node(
    client: &Client,
    node: &SeiNode,
    change: &Value,
    dry_run: DryRun,
) -> Result<(), Error> {
    let namespace = node.namespace().unwrap_or_default();
    let nodes: Api<SeiNode> = Api::namespaced(client.clone(), &namespace);
    patch(&nodes, "seinode", &node.name_any(), change, dry_run).await
}

/// Merges the change into the object of this name.
pub(crate) async fn patch<K: Clone + Debug + DeserializeOwned>(
    api: &Api<K>,
    kind: &str,
    name: &str,
    change: &Value,
    dry_run: DryRun,
) -> Result<(), Error> {
    if dry_run == DryRun::Client {
        return Ok(());
    }
    let params = PatchParams {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        dry_run: dry_run == DryRun::Server,
        ..PatchParams::default()
    };
    let what = format!("patch {kind} {name}");
    call(&what, api.patch(name, &params, &Patch::Merge(change)))
        .await
        .map_err(|failure| call_error(&what, failure))?;
    Ok(())
}
