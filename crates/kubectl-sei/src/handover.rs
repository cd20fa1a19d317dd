//! `kubectl sei handover`: what changes when another operator takes over.
//!
//! The templates of the other operator are unknown here. Known are the nodes whose next pod differs
//! from the running one already, and the settings that remain in the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::StatefulSet;
use sei_api::SeiNode;
use sei_api::names::label;
use sei_api::status::UpdateState;
use sei_plan::summary::is_settings_only;
use sei_plan::view::StatefulSetView;
use serde::Serialize;

use crate::cluster::{Found, Scope, all_nodes};
use crate::error::Error;
use crate::flags::HandoverFlags;
use crate::format::{count, table};
use crate::{CommandContext, Out, show};

/// The output for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    namespace: String,
    node: String,
    chain: String,
    signs: bool,
    /// The StatefulSet replaces pods only when they are deleted.
    on_delete: bool,
    /// Known reasons why its next pod differs from the running one.
    known: Vec<String>,
}

pub(crate) async fn run(
    flags: &HandoverFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    let nodes = all_nodes(client, scope).await?;
    let listed: Vec<StatefulSet> = scope.list(client, "list statefulsets", label::NODE).await?;
    let sets: BTreeMap<(String, String), StatefulSetView> = listed
        .iter()
        .map(|set| {
            let key = (
                set.metadata.namespace.clone().unwrap_or_default(),
                set.metadata.name.clone().unwrap_or_default(),
            );
            (key, StatefulSetView::from(set))
        })
        .collect();
    let records: Vec<Record> = nodes.iter().map(|node| record(node, &sets)).collect();
    show(out, flags.output.format, &records, || text(&records))
}

fn record(found: &Found, sets: &BTreeMap<(String, String), StatefulSetView>) -> Record {
    let node = match found {
        Ok(node) => node,
        Err(unreadable) => {
            return Record {
                namespace: unreadable.namespace.clone(),
                node: unreadable.name.clone(),
                chain: "?".to_owned(),
                signs: false,
                on_delete: false,
                known: vec![format!("its manifest cannot be decoded: {}", unreadable.message)],
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
    let rolls = status.filter(|status| !is_settings_only(status));
    if let Some(pending) = rolls.and_then(|status| status.pending_update.as_ref()) {
        let state = match pending.state {
            UpdateState::Held => "is held",
            UpdateState::Queued => "waits for its turn",
            UpdateState::Rolling => "is in progress",
            UpdateState::Retrying => "has failed and is retried",
        };
        known.push(format!("an update ({:?}) {state}", pending.cause));
    }
    let Some(set) = set else { return known };
    let observed = status.and_then(|status| status.pod_template_hash.as_ref());
    match (observed, &set.template_hash) {
        (None, _) => known.push("the template of its pod was never observed".to_owned()),
        (Some(observed), Some(applied)) if observed != applied => {
            known.push("its StatefulSet has another template than its pod".to_owned());
        }
        _ => {}
    }
    let revision = status.and_then(|status| status.pod_template.as_ref());
    let newest = set.observed_revision();
    if let (Some(pod), Some(newest)) = (revision, newest)
        && pod.revision != newest
        && known.is_empty()
    {
        known.push(format!("its pod has revision {}, a new pod gets {newest}", pod.revision));
    }
    known
}

const INTRODUCTION: &str = "\
When another operator takes over, it writes its own template to every StatefulSet at once, also to
held ones. Pods keep running until they are deleted; an evicted pod is then recreated from that
template. Not known here: the templates of the other operator. Known: the nodes whose next pod
differs from the running one already.
";

const REMEDY: &str = "\
They keep that strategy, and an operator that does not delete pods itself updates none of them. To
return a StatefulSet to the rolling update of Kubernetes:

  kubectl patch statefulset -n NAMESPACE NAME --type merge -p '{\"spec\":{\"updateStrategy\":{\"type\":\"RollingUpdate\"}}}'

Kubernetes then replaces its pod as soon as the template differs. While this operator runs, it sets
OnDelete again.
";

fn text(records: &[Record]) -> String {
    let mut text = format!("{INTRODUCTION}\n");
    let (known, others): (Vec<_>, Vec<_>) =
        records.iter().partition(|record| !record.known.is_empty());
    if known.is_empty() {
        text.push_str("No node is known to change after an eviction.\n");
    } else {
        let header = ["NODE", "CHAIN", "SIGNS", "WHY AN EVICTION WOULD CHANGE IT"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        rows.extend(known.iter().map(|record| {
            vec![
                format!("{}/{}", record.namespace, record.node),
                record.chain.clone(),
                if record.signs { "yes" } else { "no" }.to_owned(),
                record.known.join("; "),
            ]
        }));
        text.push_str(&table(&rows));
    }
    if !others.is_empty() {
        // Their names are in the JSON output.
        let others = count(others.len(), "other node");
        text.extend([format!(
            "\n{others} can change only by a different template of the other operator.\n"
        )]);
    }
    let on_delete = records.iter().filter(|record| record.on_delete).count();
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
    use crate::fixtures::{HASH, node, pending};

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
    fn nodes_with_a_known_change_are_listed_apart_from_the_others() {
        let held = pending(node("rpc-0"), UpdateState::Held, "Held", "wait");
        let nodes = vec![
            observed(held),
            observed(node("rpc-1")),
            node("rpc-2"),
            observed(node("rpc-3")),
            observed(node("rpc-4")),
            observed(node("rpc-5")),
        ];
        let rendered_later = format!("v1:{}", "2".repeat(64));
        let sets = [
            ("rpc-0", set(Some(HASH), "rev-1")),
            ("rpc-1", set(Some(HASH), "rev-1")),
            ("rpc-2", set(None, "rev-1")),
            ("rpc-3", set(Some(&rendered_later), "rev-2")),
            ("rpc-4", set(Some(HASH), "rev-2")),
        ];
        let sets = sets.map(|(name, set)| (("demo".to_owned(), name.to_owned()), set));
        let sets = BTreeMap::from(sets);
        let records: Vec<_> = nodes.into_iter().map(|node| record(&Ok(node), &sets)).collect();
        expect![[r#"
            When another operator takes over, it writes its own template to every StatefulSet at once, also to
            held ones. Pods keep running until they are deleted; an evicted pod is then recreated from that
            template. Not known here: the templates of the other operator. Known: the nodes whose next pod
            differs from the running one already.

            NODE         CHAIN       SIGNS   WHY AN EVICTION WOULD CHANGE IT
            demo/rpc-0   pacific-1   no      an update (Operator) is held
            demo/rpc-2   pacific-1   no      the template of its pod was never observed
            demo/rpc-3   pacific-1   no      its StatefulSet has another template than its pod
            demo/rpc-4   pacific-1   no      its pod has revision rev-1, a new pod gets rev-2

            2 other nodes can change only by a different template of the other operator.

            5 StatefulSets replace pods OnDelete only. They keep that strategy, and an operator that does not delete pods itself updates none of them. To
            return a StatefulSet to the rolling update of Kubernetes:

              kubectl patch statefulset -n NAMESPACE NAME --type merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'

            Kubernetes then replaces its pod as soon as the template differs. While this operator runs, it sets
            OnDelete again.
        "#]].assert_eq(&text(&records));
    }

    #[test]
    fn an_empty_fleet_has_no_known_change() {
        expect![[r#"
            When another operator takes over, it writes its own template to every StatefulSet at once, also to
            held ones. Pods keep running until they are deleted; an evicted pod is then recreated from that
            template. Not known here: the templates of the other operator. Known: the nodes whose next pod
            differs from the running one already.

            No node is known to change after an eviction.
        "#]].assert_eq(&text(&[]));
    }
}
