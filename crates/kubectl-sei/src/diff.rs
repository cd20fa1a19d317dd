//! `kubectl sei diff`: what differs between the running pod and the desired one, and what becomes
//! of it.
//!
//! All of it is read from `status.pendingUpdate`: the operator has compared, and its word counts.

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::status::{Cause, FieldChange, PendingUpdate, SeiNodePhase, UpdateState};
use sei_plan::diff::MAX_CHANGES;
use serde::Serialize;

use crate::cluster::{Found, Scope, nodes};
use crate::consent::{is_paused_update, is_settings_only};
use crate::error::Error;
use crate::flags::DiffFlags;
use crate::status::task;
use crate::words::{age, changes, count};
use crate::{Out, Surroundings, show};

/// What is told of a node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    namespace: String,
    node: String,
    chain: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Told>,
    /// Why nothing can be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told {
    cause: Cause,
    state: UpdateState,
    since: Timestamp,
    target_hash: String,
    effect: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// An approval that was given for another target.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_approval: Option<String>,
    changes: Vec<FieldChange>,
    /// The command that lets it go on.
    #[serde(skip_serializing_if = "Option::is_none")]
    release: Option<String>,
}

pub(crate) async fn run(
    flags: &DiffFlags,
    scope: &Scope,
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<(), Error> {
    let found = nodes(surroundings.client()?, scope, &flags.nodes).await?;
    let now = surroundings.now();
    let records: Vec<Record> = found.iter().map(|one| record(one, now)).collect();
    // Who names nodes wants to hear of each; who does not, of those that differ.
    let terse = flags.nodes.is_empty();
    show(out, flags.shown.output, &records, || text(&records, terse, now))
}

fn record(found: &Found, now: Timestamp) -> Record {
    let node = match found {
        Ok(node) => node,
        Err(one) => {
            return Record {
                namespace: one.namespace.clone(),
                node: one.name.clone(),
                chain: "?".to_owned(),
                difference: None,
                unknown: Some(format!("its manifest cannot be read: {}", one.told)),
            };
        }
    };
    let status = node.status.as_ref();
    let pending = status.and_then(|status| status.pending_update.as_ref());
    let observed = status.is_some_and(|status| status.pod_template_hash.is_some());
    let looked_at = status.and_then(|status| status.observed_generation);
    let is_outdated = observed && looked_at < node.metadata.generation;
    let unknown = match status.and_then(|status| status.phase) {
        _ if pending.is_some() => None,
        _ if is_outdated => Some("the operator has not looked since the last edit"),
        _ if observed => None,
        Some(SeiNodePhase::Running) => Some("its pod was not compared yet"),
        _ => Some("it does not run yet"),
    };
    Record {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        chain: node.spec.chain_id.clone(),
        difference: pending.map(|pending| told(node, pending, now)),
        unknown: unknown.map(str::to_owned),
    }
}

fn told(node: &SeiNode, pending: &PendingUpdate, now: Timestamp) -> Told {
    let held = pending.state == UpdateState::Held && !is_settings_only(node);
    let (namespace, name) = (
        node.metadata.namespace.as_deref().unwrap_or_default(),
        node.metadata.name.as_deref().unwrap_or_default(),
    );
    let release = held.then(|| {
        if is_paused_update(node) {
            format!("kubectl sei resume -n {namespace} {name}")
        } else {
            format!("kubectl sei approve -n {namespace} {name} --hash {}", pending.target_hash)
        }
    });
    Told {
        cause: pending.cause,
        state: pending.state,
        since: pending.since.0,
        target_hash: pending.target_hash.clone(),
        effect: effect(node, pending, now),
        why: pending.reason.clone(),
        refused_approval: pending.refused_approval.clone(),
        changes: pending.changes.clone(),
        release,
    }
}

/// What happens to the pod, and when.
fn effect(node: &SeiNode, pending: &PendingUpdate, now: Timestamp) -> String {
    match pending.state {
        UpdateState::Held if is_settings_only(node) => {
            "nothing restarts; it arrives with the next roll".to_owned()
        }
        UpdateState::Held => {
            "held: the pod stays, and an evicted one comes back as it was".to_owned()
        }
        UpdateState::Queued => {
            "waits: the pod is replaced when its turn comes, by itself".to_owned()
        }
        UpdateState::Rolling => match node.status.as_ref().and_then(task) {
            Some(task) => format!("rolls now: {task}"),
            None => "rolls now".to_owned(),
        },
        UpdateState::Retrying => {
            let attempts = pending.attempts.unwrap_or_default();
            let seconds = pending
                .next_attempt_at
                .as_ref()
                .map_or(0, |at| at.0.duration_since(now).as_secs().max(0));
            format!("tried again in {seconds}s, after {attempts} failed attempts")
        }
    }
}

fn text(records: &[Record], terse: bool, now: Timestamp) -> String {
    let mut parts = Vec::new();
    let mut quiet = 0;
    for record in records {
        match (&record.difference, &record.unknown) {
            (Some(told), _) => parts.push(section(record, told, now)),
            (None, Some(why)) => {
                parts.push(format!("{}/{}: {why}\n", record.namespace, record.node));
            }
            (None, None) if terse => quiet += 1,
            (None, None) => {
                parts.push(format!("{}/{}: nothing differs\n", record.namespace, record.node));
            }
        }
    }
    if quiet > 0 || parts.is_empty() {
        let thing = if parts.is_empty() { "node" } else { "other node" };
        parts.push(format!("Nothing differs on {}.\n", count(quiet, thing)));
    }
    parts.join("\n")
}

fn section(record: &Record, told: &Told, now: Timestamp) -> String {
    let Record { namespace, node, chain, .. } = record;
    let mut text = format!("{namespace}/{node} of chain {chain}\n");
    let mut add = |name: &str, value: &str| text.extend([format!("  {name:<9}{value}\n")]);
    add("cause", &format!("{:?}: {}", told.cause, cause_words(told.cause)));
    add("state", &format!("{:?} for {}", told.state, age(told.since, now)));
    add("effect", &told.effect);
    if let Some(why) = &told.why {
        add("why", why);
    }
    if let Some(given) = &told.refused_approval {
        add("refused", &format!("the approval of {given}: that is not what this leads to"));
    }
    if let Some(release) = &told.release {
        add("release", release);
    }
    let cut = if told.changes.len() >= MAX_CHANGES { " (there may be more)" } else { "" };
    add("differs", &format!("{}{cut}", count(told.changes.len(), "field")));
    text.push_str(&changes(&told.changes, "    "));
    text
}

/// Where a difference comes from.
pub(crate) fn cause_words(cause: Cause) -> &'static str {
    match cause {
        Cause::Spec => "somebody changed the spec",
        Cause::Operator => "a new operator or platform configuration",
        Cause::Adoption => "the pod was made by another operator",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use sei_api::status::UpdateState;

    use super::*;
    use crate::fixture::{ago, node, now, pending, plan, settings_pending};

    fn check(nodes: Vec<SeiNode>, terse: bool, expected: &Expect) {
        let records: Vec<Record> = nodes.into_iter().map(|node| record(&Ok(node), now())).collect();
        expected.assert_eq(&text(&records, terse, now()));
    }

    fn held() -> SeiNode {
        let why = "changes of the operator wait for an approval";
        pending(node("rpc-0"), UpdateState::Held, "Held", why)
    }

    fn observed(mut node: SeiNode) -> SeiNode {
        node.status.get_or_insert_default().pod_template_hash = Some(crate::fixture::HASH.into());
        node
    }

    #[test]
    fn a_held_update_is_told_with_the_command_that_releases_it() {
        check(
            vec![held(), observed(node("rpc-1")), observed(node("rpc-2"))],
            true,
            &expect![[r#"
                demo/rpc-0 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Held for 30m
                  effect   held: the pod stays, and an evicted one comes back as it was
                  why      changes of the operator wait for an approval
                  release  kubectl sei approve -n demo rpc-0 --hash v1:1111111111111111111111111111111111111111111111111111111111111111
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2

                Nothing differs on 2 other nodes.
            "#]],
        );
    }

    #[test]
    fn a_paused_update_is_released_by_resuming() {
        let paused = pending(node("rpc-0"), UpdateState::Held, "Paused", "spec.update.paused");
        check(
            vec![paused],
            true,
            &expect![[r#"
                demo/rpc-0 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Held for 30m
                  effect   held: the pod stays, and an evicted one comes back as it was
                  why      spec.update.paused
                  release  kubectl sei resume -n demo rpc-0
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2
            "#]],
        );
    }

    #[test]
    fn each_state_says_what_happens_next() {
        let why = "waits for its turn: demo/rpc-9 rolls";
        let queued = pending(node("rpc-1"), UpdateState::Queued, "WaitingForSlot", why);
        let mut rolling = pending(node("rpc-2"), UpdateState::Rolling, "Rolling", "");
        rolling.status.get_or_insert_default().plan =
            Some(plan(&[("replace-pod", true), ("observe-image", false)]));
        let mut failed =
            pending(node("rpc-3"), UpdateState::Retrying, "BackingOff", "2 failed attempts");
        let update = failed.status.get_or_insert_default().pending_update.as_mut().unwrap();
        update.attempts = Some(2);
        update.next_attempt_at = Some(ago(-45));
        let settings = settings_pending(node("rpc-4"));
        check(
            vec![queued, rolling, failed, settings],
            true,
            &expect![[r#"
                demo/rpc-1 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Queued for 30m
                  effect   waits: the pod is replaced when its turn comes, by itself
                  why      waits for its turn: demo/rpc-9 rolls
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2

                demo/rpc-2 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Rolling for 30m
                  effect   rolls now: observe-image 2/2
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2

                demo/rpc-3 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Retrying for 30m
                  effect   tried again in 45s, after 2 failed attempts
                  why      2 failed attempts
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2

                demo/rpc-4 of chain pacific-1
                  cause    Spec: somebody changed the spec
                  state    Held for 30m
                  effect   nothing restarts; it arrives with the next roll
                  why      arrives with the next roll
                  differs  1 field
                    config.externalAddress
            "#]],
        );
    }

    #[test]
    fn an_edit_that_nobody_has_looked_at_is_not_called_equal() {
        let mut edited = observed(node("rpc-0"));
        edited.status.get_or_insert_default().observed_generation = Some(1);
        let mut seen = edited.clone();
        seen.metadata.name = Some("rpc-1".into());
        seen.metadata.generation = Some(1);
        edited.metadata.generation = Some(2);
        check(
            vec![edited, seen],
            true,
            &expect![[r#"
                demo/rpc-0: the operator has not looked since the last edit

                Nothing differs on 1 other node.
            "#]],
        );
    }

    #[test]
    fn named_nodes_are_each_answered_for() {
        let mut new = node("rpc-1");
        new.status = None;
        check(
            vec![observed(node("rpc-0")), new],
            false,
            &expect![[r#"
            demo/rpc-0: nothing differs

            demo/rpc-1: it does not run yet
        "#]],
        );
        check(
            vec![observed(node("rpc-0"))],
            true,
            &expect![[r#"
            Nothing differs on 1 node.
        "#]],
        );
        check(
            vec![],
            true,
            &expect![[r#"
            Nothing differs on 0 nodes.
        "#]],
        );
    }

    #[test]
    fn an_approval_of_something_else_is_told() {
        let mut wrong = held();
        let update = wrong.status.get_or_insert_default().pending_update.as_mut().unwrap();
        update.refused_approval = Some("v1:ab".into());
        let text = text(&[record(&Ok(wrong), now())], true, now());
        assert!(text.contains("  refused  the approval of v1:ab: that is not what"), "{text}");
    }

    #[test]
    fn a_long_list_may_be_cut() {
        let mut long = held();
        let update = long.status.get_or_insert_default().pending_update.as_mut().unwrap();
        update.changes = vec![update.changes[0].clone(); MAX_CHANGES];
        let records = [record(&Ok(long), now())];
        assert!(text(&records, true, now()).contains("20 fields (there may be more)"));
    }

    #[test]
    fn the_record_behind_it_is_json() {
        expect![[r#"
            {
              "namespace": "demo",
              "node": "rpc-0",
              "chain": "pacific-1",
              "difference": {
                "cause": "Operator",
                "state": "Held",
                "since": "2027-01-15T07:30:00Z",
                "targetHash": "v1:1111111111111111111111111111111111111111111111111111111111111111",
                "effect": "held: the pod stays, and an evicted one comes back as it was",
                "why": "changes of the operator wait for an approval",
                "changes": [
                  {
                    "path": "initContainers[sei-sidecar].image",
                    "from": "registry.example.org/seictl:v1",
                    "to": "registry.example.org/seictl:v2"
                  }
                ],
                "release": "kubectl sei approve -n demo rpc-0 --hash v1:1111111111111111111111111111111111111111111111111111111111111111"
              }
            }"#]].assert_eq(&crate::json(&record(&Ok(held()), now())));
    }
}
