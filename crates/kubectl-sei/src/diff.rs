//! `kubectl sei diff`: the fields in which the running pod differs from the desired one, and what
//! happens next.
//!
//! All of it is read from `status.pendingUpdate`: the operator compares, this command only prints.

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::condition::{ConditionStatus, ConditionType, Reason, find};
use sei_api::status::{
    Cause, FieldChange, PendingUpdate, SeiNodePhase, SeiNodeStatus, UpdateState,
};
use sei_plan::diff::MAX_CHANGES;
use sei_plan::summary::{Hold, held_by, is_settings_only, summarize};
use serde::Serialize;

use crate::cluster::{Found, Scope, nodes};
use crate::error::{Error, one_line};
use crate::flags::DiffFlags;
use crate::format::{age, changes, count};
use crate::{CommandContext, Exit, Out, show};

/// The output for one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    namespace: String,
    node: String,
    chain: String,
    difference: Option<Difference>,
    /// Why the operator does not apply the spec. The pod still runs an earlier one.
    refused: Option<String>,
    /// Why the difference is unknown.
    unknown: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Difference {
    cause: Cause,
    state: UpdateState,
    since: Timestamp,
    target_hash: String,
    effect: String,
    why: Option<String>,
    /// An approval of another target.
    refused_approval: Option<String>,
    changes: Vec<FieldChange>,
    /// The command that releases the update.
    release: Option<String>,
    #[serde(skip)]
    is_paused: bool,
}

pub(crate) async fn run(
    flags: &DiffFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let found = nodes(context.client()?, scope, &flags.selection).await?;
    let now = context.now();
    let records: Vec<Record> = found.iter().map(|node| record(node, now)).collect();
    // Named nodes are all listed; without names, only those that differ.
    let terse = flags.selection.nodes.is_empty();
    show(out, flags.output.format, &records, || text(&records, terse, now))?;
    let differs = |record: &Record| record.difference.is_some() || record.refused.is_some();
    Ok(if records.iter().any(differs) { Exit::Differs } else { Exit::Fine })
}

fn record(found: &Found, now: Timestamp) -> Record {
    let node = match found {
        Ok(node) => node,
        Err(unreadable) => {
            return Record {
                namespace: unreadable.namespace.clone(),
                node: unreadable.name.clone(),
                chain: "?".to_owned(),
                difference: None,
                refused: None,
                unknown: Some(format!("its manifest cannot be decoded: {}", unreadable.message)),
            };
        }
    };
    let status = node.status.as_ref();
    let pending = status.and_then(|status| status.pending_update.as_ref());
    let observed = status.is_some_and(|status| status.pod_template_hash.is_some());
    let reconciled = status.and_then(|status| status.observed_generation);
    let is_outdated = observed && reconciled < node.metadata.generation;
    let unknown = match status.and_then(|status| status.phase) {
        _ if pending.is_some() => None,
        _ if is_outdated => Some("the operator has not reconciled the last edit yet"),
        _ if observed => None,
        Some(SeiNodePhase::Running) => Some("the operator has not compared its pod yet"),
        _ => Some("it is not running yet"),
    };
    Record {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        chain: node.spec.chain_id.clone(),
        difference: pending.map(|pending| difference(node, pending, now)),
        refused: status.and_then(refused),
        unknown: unknown.map(str::to_owned),
    }
}

/// Why the operator refuses the spec, if it does.
fn refused(status: &SeiNodeStatus) -> Option<String> {
    let stalled = find(&status.conditions, ConditionType::Stalled)?;
    let is_refused = stalled.status == ConditionStatus::True.as_str()
        && stalled.reason == Reason::InvalidSpec.as_str();
    is_refused.then(|| one_line(&stalled.message))
}

fn difference(node: &SeiNode, pending: &PendingUpdate, now: Timestamp) -> Difference {
    let (namespace, name) = (
        node.metadata.namespace.as_deref().unwrap_or_default(),
        node.metadata.name.as_deref().unwrap_or_default(),
    );
    let hold = node.status.as_ref().and_then(held_by);
    let release = hold.map(|hold| match hold {
        Hold::Pause => format!("kubectl sei resume -n {namespace} {name}"),
        Hold::Approval => {
            format!("kubectl sei approve -n {namespace} {name} --hash {}", pending.target_hash)
        }
    });
    Difference {
        cause: pending.cause,
        state: pending.state,
        since: pending.since.0,
        target_hash: pending.target_hash.clone(),
        effect: effect(node, pending, now),
        why: pending.reason.clone(),
        refused_approval: pending.refused_approval.clone(),
        changes: pending.changes.clone(),
        release,
        is_paused: hold == Some(Hold::Pause),
    }
}

/// What happens to the pod, and when.
fn effect(node: &SeiNode, pending: &PendingUpdate, now: Timestamp) -> String {
    match pending.state {
        UpdateState::Held if node.status.as_ref().is_some_and(is_settings_only) => {
            "no restart: applied with the next roll".to_owned()
        }
        UpdateState::Held => {
            "held: the pod is not replaced; an evicted pod is recreated from the same template"
                .to_owned()
        }
        UpdateState::Queued => "waits: the pod is replaced automatically at its turn".to_owned(),
        UpdateState::Rolling => match summarize(node, now).task {
            Some(task) => format!("rolls now: {task}"),
            None => "rolls now".to_owned(),
        },
        UpdateState::Retrying => {
            let attempts = pending.attempts.unwrap_or_default();
            let seconds = pending
                .next_attempt_at
                .as_ref()
                .map_or(0, |at| at.0.duration_since(now).as_secs().max(0));
            format!("retried in {seconds}s, after {attempts} failed attempts")
        }
    }
}

fn text(records: &[Record], terse: bool, now: Timestamp) -> String {
    let mut parts = Vec::new();
    let mut equal = 0;
    for record in records {
        if let Some(why) = &record.refused {
            parts.push(format!(
                "{}/{}: the spec is refused and not applied (InvalidSpec): {why}\n",
                record.namespace, record.node
            ));
            if record.difference.is_none() {
                continue;
            }
        }
        match (&record.difference, &record.unknown) {
            (Some(difference), _) => parts.push(section(record, difference, now)),
            (None, Some(why)) => {
                parts.push(format!("{}/{}: {why}\n", record.namespace, record.node));
            }
            (None, None) if terse => equal += 1,
            (None, None) => {
                parts.push(format!("{}/{}: nothing differs\n", record.namespace, record.node));
            }
        }
    }
    if equal > 0 || parts.is_empty() {
        let thing = if parts.is_empty() { "node" } else { "other node" };
        parts.push(format!("Nothing differs on {}.\n", count(equal, thing)));
    }
    parts.join("\n")
}

fn section(record: &Record, difference: &Difference, now: Timestamp) -> String {
    let Record { namespace, node, chain, .. } = record;
    let mut text = format!("{namespace}/{node} of chain {chain}\n");
    let mut add = |name: &str, value: &str| text.extend([format!("  {name:<9}{value}\n")]);
    add("cause", &format!("{:?}: {}", difference.cause, cause_text(difference.cause)));
    // The same word as in `status`.
    let state =
        if difference.is_paused { "Paused".to_owned() } else { format!("{:?}", difference.state) };
    add("state", &format!("{state} for {}", age(difference.since, now)));
    add("effect", &difference.effect);
    if let Some(why) = &difference.why {
        add("why", why);
    }
    if let Some(given) = &difference.refused_approval {
        add("refused", &format!("the approval of {given}: it is not the target of this update"));
    }
    if let Some(release) = &difference.release {
        add("release", release);
    }
    let cut = if difference.changes.len() >= MAX_CHANGES { " (there may be more)" } else { "" };
    add("differs", &format!("{}{cut}", count(difference.changes.len(), "field")));
    text.push_str(&changes(&difference.changes, "    "));
    text
}

/// The cause of a difference.
pub(crate) fn cause_text(cause: Cause) -> &'static str {
    match cause {
        Cause::Spec => "the spec was changed",
        Cause::Operator => "a new operator or platform configuration",
        Cause::Adoption => "another operator created the pod",
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use sei_api::status::UpdateState;

    use super::*;
    use crate::fixtures::{ago, condition, node, now, pending, plan, settings_pending, with};

    fn check(nodes: Vec<SeiNode>, terse: bool, expected: &Expect) {
        let records: Vec<Record> = nodes.into_iter().map(|node| record(&Ok(node), now())).collect();
        expected.assert_eq(&text(&records, terse, now()));
    }

    fn held() -> SeiNode {
        let why = "changes of the operator wait for an approval";
        pending(node("rpc-0"), UpdateState::Held, "Held", why)
    }

    fn observed(mut node: SeiNode) -> SeiNode {
        node.status.get_or_insert_default().pod_template_hash = Some(crate::fixtures::HASH.into());
        node
    }

    #[test]
    fn a_held_update_is_shown_with_the_command_that_releases_it() {
        check(
            vec![held(), observed(node("rpc-1")), observed(node("rpc-2"))],
            true,
            &expect![[r#"
                demo/rpc-0 of chain pacific-1
                  cause    Operator: a new operator or platform configuration
                  state    Held for 30m
                  effect   held: the pod is not replaced; an evicted pod is recreated from the same template
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
                  state    Paused for 30m
                  effect   held: the pod is not replaced; an evicted pod is recreated from the same template
                  why      spec.update.paused
                  release  kubectl sei resume -n demo rpc-0
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2
            "#]],
        );
    }

    #[test]
    fn each_state_shows_what_happens_next() {
        let why = &sei_plan::planner::next_in_chain("demo/rpc-9 rolls");
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
                  effect   waits: the pod is replaced automatically at its turn
                  why      is next in its chain: demo/rpc-9 rolls
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
                  effect   retried in 45s, after 2 failed attempts
                  why      2 failed attempts
                  differs  1 field
                    initContainers[sei-sidecar].image: registry.example.org/seictl:v1 -> registry.example.org/seictl:v2

                demo/rpc-4 of chain pacific-1
                  cause    Spec: the spec was changed
                  state    Held for 30m
                  effect   no restart: applied with the next roll
                  why      arrives with the next roll
                  differs  1 field
                    config.externalAddress
            "#]],
        );
    }

    #[test]
    fn an_edit_that_is_not_reconciled_yet_is_not_reported_as_equal() {
        let mut edited = observed(node("rpc-0"));
        edited.status.get_or_insert_default().observed_generation = Some(1);
        let mut reconciled = edited.clone();
        reconciled.metadata.name = Some("rpc-1".into());
        reconciled.metadata.generation = Some(1);
        edited.metadata.generation = Some(2);
        check(
            vec![edited, reconciled],
            true,
            &expect![[r#"
                demo/rpc-0: the operator has not reconciled the last edit yet

                Nothing differs on 1 other node.
            "#]],
        );
    }

    #[test]
    fn a_refused_spec_is_not_reported_as_equal() {
        let why = "spec.chainId: cannot change";
        let stalled = condition(ConditionType::Stalled, "True", "InvalidSpec", why);
        check(
            vec![with(observed(node("rpc-0")), stalled), observed(node("rpc-1"))],
            true,
            &expect![[r#"
                demo/rpc-0: the spec is refused and not applied (InvalidSpec): spec.chainId: cannot change

                Nothing differs on 1 other node.
            "#]],
        );
    }

    #[test]
    fn every_named_node_is_listed() {
        let mut new = node("rpc-1");
        new.status = None;
        check(
            vec![observed(node("rpc-0")), new],
            false,
            &expect![[r#"
                demo/rpc-0: nothing differs

                demo/rpc-1: it is not running yet
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
    fn an_approval_of_another_target_is_shown() {
        let mut wrong = held();
        let update = wrong.status.get_or_insert_default().pending_update.as_mut().unwrap();
        update.refused_approval = Some("v1:ab".into());
        let text = text(&[record(&Ok(wrong), now())], true, now());
        assert!(text.contains("  refused  the approval of v1:ab: it is not the target"), "{text}");
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
    fn the_json_output_has_all_fields() {
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
                "effect": "held: the pod is not replaced; an evicted pod is recreated from the same template",
                "why": "changes of the operator wait for an approval",
                "refusedApproval": null,
                "changes": [
                  {
                    "path": "initContainers[sei-sidecar].image",
                    "from": "registry.example.org/seictl:v1",
                    "to": "registry.example.org/seictl:v2"
                  }
                ],
                "release": "kubectl sei approve -n demo rpc-0 --hash v1:1111111111111111111111111111111111111111111111111111111111111111"
              },
              "refused": null,
              "unknown": null
            }"#]].assert_eq(&crate::json(&record(&Ok(held()), now())));
    }
}
