//! A preview of changed fleets: what would happen to which nodes, in order.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use sei_api::names::{annotation, label};
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_exec::call::{call, find};
use sei_plan::fleet::{FleetSnapshot, Forecast, NodeForecast, forecast};
use sei_plan::shared::Shared;
use sei_plan::timing::Timing;

use super::manifests;
use crate::cluster::Scope;
use crate::error::{Error, LIST_NODES, call_error};
use crate::format::{changes, count};
use crate::{CommandContext, Exit, Out, write};

pub(super) async fn run(
    files: &[PathBuf],
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let mut exit = Exit::Fine;
    for manifest in manifests::fleets(files)? {
        let forecast = forecast(Box::pin(snapshot(manifest.clone(), scope, context)).await?);
        write(out, &text(&manifest.name_any(), &forecast))?;
        let touches = [forecast.creates.len(), forecast.deletes.len(), forecast.updates.len()];
        if touches.iter().any(|number| *number > 0) {
            exit = Exit::WouldRoll;
        }
    }
    Ok(exit)
}

/// The fleet as the server would store it, with its present nodes. Nothing is stored: a dry run fills
/// defaults in and checks the rules.
async fn snapshot(
    manifest: SeiNodeDeployment,
    scope: &Scope,
    context: &CommandContext,
) -> Result<FleetSnapshot, Error> {
    let client = context.client()?;
    let namespace = match (manifest.namespace(), scope) {
        (Some(namespace), _) => namespace,
        (None, Scope::Namespace(namespace)) => namespace.clone(),
        (None, Scope::All) => context.namespace.clone(),
    };
    let name = manifest.name_any();
    let api: Api<SeiNodeDeployment> = Api::namespaced(client.clone(), &namespace);
    let what = format!("preview seinodedeployment {name}");
    let failed = |failure| call_error(&what, failure);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let present = find(&what, api.get(&name)).await.map_err(failed)?;
    let fleet = match present {
        Some(present) => {
            let candidate = SeiNodeDeployment { spec: manifest.spec, ..present };
            call(&what, api.replace(&name, &params, &candidate)).await.map_err(failed)?
        }
        None => call(&what, api.create(&params, &manifest)).await.map_err(failed)?,
    };
    let of = format!("{}={name}", label::NODE_DEPLOYMENT);
    let nodes: Vec<SeiNode> = Scope::Namespace(namespace).list(client, LIST_NODES, &of).await?;
    Ok(FleetSnapshot {
        fleet: Shared::new(fleet),
        nodes: nodes.into_iter().map(Shared::new).collect(),
        service: None,
        // No plan is built or performed, and no node is read.
        objects: BTreeMap::new(),
        reads_rpc: false,
        plan_id: String::new(),
        timing: Timing::default(),
        now: context.now(),
    })
}

fn text(fleet: &str, forecast: &Forecast) -> String {
    let Forecast { creates, deletes, updates, hands_off, max_unavailable, is_held, ceremony } =
        forecast;
    let mut text = format!("Fleet {fleet}\n");
    if let Some(nodes) = ceremony {
        let nodes = count(*nodes, "node");
        text.extend([format!("  stays at {nodes} until the genesis ceremony is complete\n")]);
    }
    if !hands_off.is_empty() {
        let names = hands_off.join(", ");
        text.extend([format!("  hands-off, by annotation {}: {names}\n", annotation::HANDS_OFF)]);
    }
    if creates.is_empty() && deletes.is_empty() && updates.is_empty() {
        text.push_str("  nothing would change\n");
        return text;
    }
    if !creates.is_empty() {
        text.extend([format!("  creates {}\n", creates.join(", "))]);
    }
    if !deletes.is_empty() {
        text.extend([format!("  deletes {}, in this order\n", deletes.join(", "))]);
    }
    if updates.is_empty() {
        return text;
    }
    let how = match max_unavailable {
        _ if *is_held => ", once it is not paused".to_owned(),
        Some(max) => format!(", at most {} down at once", count(*max, "node")),
        None => ", all of them at once; each rolls under the budget of its chain".to_owned(),
    };
    text.extend([format!("  the template goes to {}{how}\n", count(updates.len(), "node"))]);
    let mut shown: Option<&NodeForecast> = None;
    for (index, node) in updates.iter().enumerate() {
        let is_same = shown.is_some_and(|shown| shown.changes == node.changes);
        if !is_same && node.changes.is_empty() {
            text.push_str("      only labels or annotations of the node\n");
        } else if !is_same {
            text.push_str(&changes(&node.changes, "      "));
        }
        shown = Some(node);
        let note = match (node.is_down, node.is_canary) {
            (true, _) => " (is down: at once)",
            (false, true) => " (canary)",
            (false, false) => "",
        };
        text.extend([format!("    {}. {}{note}\n", index + 1, node.name)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use sei_api::names::fleet_node;
    use sei_api::status::FieldChange;

    use super::*;

    #[test]
    fn the_nodes_are_named_in_order() {
        let change = FieldChange {
            path: "image".into(),
            from: Some("seid:v1".into()),
            to: Some("seid:v2".into()),
        };
        let node = |ordinal, is_down, is_canary| NodeForecast {
            name: fleet_node("edge", ordinal),
            is_canary,
            is_down,
            changes: vec![change.clone()],
        };
        let all = Forecast {
            creates: vec!["edge-4".into()],
            deletes: vec![],
            updates: vec![node(2, true, false), node(0, false, true), node(1, false, false)],
            hands_off: vec!["edge-3".into()],
            max_unavailable: Some(1),
            is_held: false,
            ceremony: None,
        };
        expect![[r#"
            Fleet edge
              hands-off, by annotation sei.io/hands-off: edge-3
              creates edge-4
              the template goes to 3 nodes, at most 1 node down at once
                  image: seid:v1 -> seid:v2
                1. edge-2 (is down: at once)
                2. edge-0 (canary)
                3. edge-1
        "#]]
        .assert_eq(&text("edge", &all));
        expect![[r#"
            Fleet edge
              nothing would change
        "#]]
        .assert_eq(&text("edge", &Forecast::default()));
        expect![[r#"
            Fleet edge
              stays at 4 nodes until the genesis ceremony is complete
              nothing would change
        "#]]
        .assert_eq(&text("edge", &Forecast { ceremony: Some(4), ..Forecast::default() }));
    }
}
