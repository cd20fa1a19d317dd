//! The lines of fleets above the table of nodes.

use jiff::Timestamp;
use kube::ResourceExt as _;
use sei_api::SeiNodeDeployment;

use super::Row;
use crate::cluster::Scope;
use crate::error::one_line;
use crate::format::{age, table};
use crate::printable;

/// A table with a line for each fleet; empty without fleets.
pub(super) fn text<'a>(
    fleets: impl Iterator<Item = &'a SeiNodeDeployment>,
    rows: &[Row],
    scope: &Scope,
    now: Timestamp,
) -> String {
    let namespace = (*scope == Scope::All).then_some("NAMESPACE");
    let columns = ["FLEET", "REPLICAS", "UPDATED", "RUNNING", "READY", "ROLLOUT", "SINCE", "WHY"];
    let header: Vec<String> = namespace.into_iter().chain(columns).map(str::to_owned).collect();
    let mut lines = vec![header];
    for fleet in fleets {
        let status = fleet.status.clone().unwrap_or_default();
        let (name, namespace) = (fleet.name_any(), fleet.namespace().unwrap_or_default());
        let is_own = |row: &&Row| row.namespace == namespace && row.fleet.as_ref() == Some(&name);
        let ready = rows.iter().filter(is_own).filter(|row| row.is_ready()).count();
        let number = |value: Option<i32>| value.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let rollout = fleet.rollout_state();
        let since = status.rollout.as_ref().map(|rollout| age(rollout.started_at.0, now));
        // The condition names what is missing, also the node that halted a rollout.
        let unready =
            status.conditions.iter().find(|it| it.type_ == "Ready" && it.status != "True");
        let why = unready.map(|ready| one_line(&format!("{}: {}", ready.reason, ready.message)));
        let cells = [
            name.clone(),
            fleet.spec.replicas.to_string(),
            number(status.updated_replicas),
            number(status.ready_replicas),
            ready.to_string(),
            rollout.map_or("-", sei_api::fleet::RolloutState::as_str).to_owned(),
            since.unwrap_or_else(|| "-".to_owned()),
            why.unwrap_or_default(),
        ];
        let namespace = (*scope == Scope::All).then_some(namespace);
        lines.push(namespace.into_iter().chain(cells).collect());
    }
    if lines.len() == 1 {
        return String::new();
    }
    format!("{}\n", printable(&table(&lines)))
}
