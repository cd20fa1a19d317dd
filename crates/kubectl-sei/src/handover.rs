//! `kubectl sei handover`: what changes when another operator takes over again.
//!
//! How that one renders a pod cannot be known here. What can be known is which nodes would be
//! changed by any template but that of their running pod, and what stays behind.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use sei_api::SeiNode;
use sei_api::names::label;
use sei_api::status::UpdateState;
use sei_plan::view::StatefulSetView;
use serde::Serialize;

use crate::cluster::{Found, Scope, all_nodes};
use crate::consent::is_settings_only;
use crate::error::Error;
use crate::flags::HandoverFlags;
use crate::words::{count, table};
use crate::{Out, Surroundings, show};

/// What is told of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    namespace: String,
    node: String,
    chain: String,
    signs: bool,
    /// The StatefulSet replaces pods only when they are deleted.
    on_delete: bool,
    /// What is known to make its next pod another one.
    known: Vec<String>,
}

pub(crate) async fn run(
    flags: &HandoverFlags,
    scope: &Scope,
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = surroundings.client()?;
    let nodes = all_nodes(client, scope).await?;
    let listed: Vec<StatefulSet> = scope.list(client, "list statefulsets", label::NODE).await?;
    let sets: BTreeMap<(String, String), StatefulSetView> = listed
        .iter()
        .map(|one| {
            let key = (
                one.metadata.namespace.clone().unwrap_or_default(),
                one.metadata.name.clone().unwrap_or_default(),
            );
            (key, StatefulSetView::from(one))
        })
        .collect();
    let records: Vec<Record> = nodes.iter().map(|node| record(node, &sets)).collect();
    show(out, flags.shown.output, &records, || text(&records))
}

fn record(found: &Found, sets: &BTreeMap<(String, String), StatefulSetView>) -> Record {
    let node = match found {
        Ok(node) => node,
        Err(one) => {
            return Record {
                namespace: one.namespace.clone(),
                node: one.name.clone(),
                chain: "?".to_owned(),
                signs: false,
                on_delete: false,
                known: vec![format!("its manifest cannot be read: {}", one.told)],
            };
        }
    };
    let namespace = node.metadata.namespace.clone().unwrap_or_default();
    let name = node.metadata.name.clone().unwrap_or_default();
    let set = sets.get(&(namespace.clone(), name.clone()));
    Record {
        known: known(node, set),
        chain: node.spec.chain_id.clone(),
        signs: node.spec.signs(),
        on_delete: set.is_some_and(|set| set.on_delete),
        namespace,
        node: name,
    }
}

fn known(node: &SeiNode, set: Option<&StatefulSetView>) -> Vec<String> {
    let mut known = Vec::new();
    let status = node.status.as_ref();
    let pending = status.and_then(|status| status.pending_update.as_ref());
    if let Some(pending) = pending.filter(|_| !is_settings_only(node)) {
        let state = match pending.state {
            UpdateState::Held => "is held",
            UpdateState::Queued => "waits for its turn",
            UpdateState::Rolling => "is under way",
            UpdateState::Retrying => "has failed and is tried again",
        };
        known.push(format!("an update ({:?}) {state}", pending.cause));
    }
    let Some(set) = set else { return known };
    let observed = status.and_then(|status| status.pod_template_hash.as_ref());
    match (observed, &set.template_hash) {
        (None, _) => known.push("what its pod was made from was never seen".to_owned()),
        (Some(observed), Some(applied)) if observed != applied => {
            known.push("its StatefulSet holds another template than its pod".to_owned());
        }
        _ => {}
    }
    let revision = status.and_then(|status| status.pod_template.as_ref());
    let newest = set.observed_revision();
    if let (Some(pod), Some(newest)) = (revision, newest)
        && pod.revision != newest
        && known.is_empty()
    {
        known.push(format!("its pod is at {}, new ones are made at {newest}", pod.revision));
    }
    known
}

const NOT_KNOWN: &str = "\
When another operator takes over, it writes its own template to every StatefulSet at once, held or
not. Pods stay until something deletes them; an evicted pod then comes back from that template.
Not known here: what the other operator renders. Known: which nodes already wait for a change.
";

const REMEDY: &str = "\
They stay so, and an operator that does not delete pods itself then updates none of them. To give
one back to Kubernetes' own rolling update:

  kubectl patch statefulset -n NAMESPACE NAME --type merge -p '{\"spec\":{\"updateStrategy\":{\"type\":\"RollingUpdate\"}}}'

From then on Kubernetes replaces its pod as soon as the template differs. While this operator runs,
it sets OnDelete again.
";

fn text(records: &[Record]) -> String {
    let mut text = format!("{NOT_KNOWN}\n");
    let (known, others): (Vec<_>, Vec<_>) = records.iter().partition(|one| !one.known.is_empty());
    if known.is_empty() {
        text.push_str("No node is known to change by an eviction.\n");
    } else {
        let header = ["NODE", "CHAIN", "SIGNS", "WHY AN EVICTION WOULD CHANGE IT"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(known.iter().map(|one| {
            vec![
                format!("{}/{}", one.namespace, one.node),
                one.chain.clone(),
                if one.signs { "yes" } else { "no" }.to_owned(),
                one.known.join("; "),
            ]
        }));
        text.push_str(&table(&rows));
    }
    if !others.is_empty() {
        let names: Vec<_> =
            others.iter().map(|one| format!("{}/{}", one.namespace, one.node)).collect();
        text.extend([format!(
            "\nThey change only if the other operator renders them otherwise ({}): {}\n",
            count(others.len(), "node"),
            names.join(", ")
        )]);
    }
    let on_delete = records.iter().filter(|one| one.on_delete).count();
    if on_delete > 0 {
        let sets = count(on_delete, "StatefulSet");
        text.extend([format!("\n{sets} replace pods OnDelete only. {REMEDY}")]);
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use sei_api::status::ObservedTemplate;

    use super::*;
    use crate::fixture::{HASH, node, pending};

    fn observed(mut node: SeiNode) -> SeiNode {
        let status = node.status.get_or_insert_default();
        status.pod_template_hash = Some(HASH.into());
        status.pod_template =
            Some(ObservedTemplate { revision: "rev-1".into(), ..ObservedTemplate::default() });
        node
    }

    fn set(hash: Option<&str>, revision: &str) -> StatefulSetView {
        StatefulSetView {
            on_delete: true,
            template_hash: hash.map(str::to_owned),
            update_revision: Some(revision.into()),
            ..StatefulSetView::default()
        }
    }

    #[test]
    fn what_is_known_is_told_apart_from_what_is_not() {
        let held = pending(node("rpc-0"), UpdateState::Held, "Held", "wait");
        let nodes = vec![
            observed(held),
            observed(node("rpc-1")),
            node("rpc-2"),
            observed(node("rpc-3")),
            observed(node("rpc-4")),
            observed(node("rpc-5")),
        ];
        let other = format!("v1:{}", "2".repeat(64));
        let sets = [
            ("rpc-0", set(Some(HASH), "rev-1")),
            ("rpc-1", set(Some(HASH), "rev-1")),
            ("rpc-2", set(None, "rev-1")),
            ("rpc-3", set(Some(&other), "rev-2")),
            ("rpc-4", set(Some(HASH), "rev-2")),
        ];
        let sets = sets.map(|(name, set)| (("demo".to_owned(), name.to_owned()), set));
        let sets = BTreeMap::from(sets);
        let records: Vec<_> = nodes.into_iter().map(|one| record(&Ok(one), &sets)).collect();
        expect![[r#"
            When another operator takes over, it writes its own template to every StatefulSet at once, held or
            not. Pods stay until something deletes them; an evicted pod then comes back from that template.
            Not known here: what the other operator renders. Known: which nodes already wait for a change.

            NODE         CHAIN       SIGNS   WHY AN EVICTION WOULD CHANGE IT
            demo/rpc-0   pacific-1   no      an update (Operator) is held
            demo/rpc-2   pacific-1   no      what its pod was made from was never seen
            demo/rpc-3   pacific-1   no      its StatefulSet holds another template than its pod
            demo/rpc-4   pacific-1   no      its pod is at rev-1, new ones are made at rev-2

            They change only if the other operator renders them otherwise (2 nodes): demo/rpc-1, demo/rpc-5

            5 StatefulSets replace pods OnDelete only. They stay so, and an operator that does not delete pods itself then updates none of them. To give
            one back to Kubernetes' own rolling update:

              kubectl patch statefulset -n NAMESPACE NAME --type merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'

            From then on Kubernetes replaces its pod as soon as the template differs. While this operator runs,
            it sets OnDelete again.
        "#]].assert_eq(&text(&records));
    }

    #[test]
    fn nothing_to_hand_over_is_said() {
        expect![[r#"
            When another operator takes over, it writes its own template to every StatefulSet at once, held or
            not. Pods stay until something deletes them; an evicted pod then comes back from that template.
            Not known here: what the other operator renders. Known: which nodes already wait for a change.

            No node is known to change by an eviction.
        "#]].assert_eq(&text(&[]));
    }
}
