//! `kubectl sei status`: what every node does, since when, and why.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt as _, watcher};
use sei_api::SeiNode;
use sei_api::condition::{ConditionType, find};
use sei_api::status::SeiNodeStatus;
use sei_exec::call::chain;
use sei_plan::summary::summarize;
use serde::Serialize;

use crate::cluster::{Found, Guarded, Scope, nodes, unguard};
use crate::error::{Error, one_line};
use crate::flags::{Output, StatusFlags};
use crate::format::{age, line, short_image, table, widths};
use crate::{CommandContext, Out, json, show, write};

/// The output for one node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    node: String,
    chain: String,
    phase: String,
    /// Image of the running pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// Image of the spec, if it differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    desired_image: Option<String>,
    /// Reason of the condition `PodTemplateDrift`.
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<String>,
    /// Current task of the active plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

pub(crate) async fn run(
    flags: &StatusFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    let found = nodes(client, scope, &flags.nodes).await?;
    let now = context.now();
    let rows: Vec<Row> = found.iter().map(|node| row(node, now)).collect();
    if !flags.watch {
        return show(out, flags.output.format, &rows, || text(&rows, scope, now));
    }
    match flags.output.format {
        Output::Text => write(out, &text(&rows, scope, now))?,
        Output::Json => rows.iter().try_for_each(|row| write(out, &json_line(row)))?,
    }
    watch(flags, scope, context, &rows, out).await
}

/// Prints each change of the nodes until the reader closes the output.
async fn watch(
    flags: &StatusFlags,
    scope: &Scope,
    context: &CommandContext,
    rows: &[Row],
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    let mut table = WatchTable::new(rows, scope, context.now());
    let is_named = !flags.nodes.is_empty();
    let only: Option<BTreeSet<Key>> = is_named.then(|| rows.iter().map(Row::key).collect());
    let watches = watched_scopes(scope, rows, is_named).into_iter().map(|scope| {
        let watched = watcher(scope.api::<Guarded>(client), watcher::Config::default());
        watched.default_backoff().map(move |event| (scope.clone(), event)).boxed()
    });
    let mut watches = futures::stream::select_all(watches);
    let mut is_broken = false;
    while let Some((scope, event)) = watches.next().await {
        let changed = match event {
            Ok(event) => table.rows_of_event(&scope, event, context.now()),
            Err(error) => {
                let message = one_line(&chain(&error));
                if is_forbidden(&error) {
                    let message = format!("{message}; request that permission");
                    return Err(Error::Call { message });
                }
                // The watcher reconnects by itself and lists again, so no change is lost.
                if !is_broken {
                    eprintln!(
                        "warning: the watch failed and is retried: {}",
                        crate::printable(&message)
                    );
                }
                is_broken = true;
                continue;
            }
        };
        is_broken &= changed.is_empty();
        let of_interest = |row: &&Row| only.as_ref().is_none_or(|only| only.contains(&row.key()));
        for row in changed.iter().filter(of_interest) {
            if let Some(text) = table.update(row, flags.output.format, context.now()) {
                write(out, &text)?;
                out.flush().map_err(|source| Error::Output { source })?;
            }
        }
    }
    Ok(())
}

/// The scopes to watch: named nodes may be in other namespaces than the rest of the scope.
fn watched_scopes(scope: &Scope, rows: &[Row], is_named: bool) -> Vec<Scope> {
    if !is_named {
        return vec![scope.clone()];
    }
    let namespaces: BTreeSet<&String> = rows.iter().map(|row| &row.namespace).collect();
    namespaces.into_iter().map(|name| Scope::Namespace(name.clone())).collect()
}

/// Retrying does not help against a missing permission.
fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        _ => false,
    }
}

/// A node, by namespace and name.
type Key = (String, String);

/// The rows that were printed, for a watch.
struct WatchTable {
    shown: BTreeMap<Key, Row>,
    /// Printed nodes that the list in progress has not contained yet.
    unlisted: BTreeSet<Key>,
    widths: Vec<usize>,
    with_namespace: bool,
}

impl WatchTable {
    fn new(rows: &[Row], scope: &Scope, now: Timestamp) -> Self {
        let with_namespace = *scope == Scope::All;
        let mut cells: Vec<_> = rows.iter().map(|row| row.cells(with_namespace, now)).collect();
        cells.push(header(with_namespace));
        let shown = rows.iter().map(|row| (row.key(), row.clone())).collect();
        Self { shown, unlisted: BTreeSet::new(), widths: widths(&cells), with_namespace }
    }

    /// The rows of the nodes in an event of the watch of this scope.
    fn rows_of_event(
        &mut self,
        scope: &Scope,
        event: watcher::Event<Guarded>,
        now: Timestamp,
    ) -> Vec<Row> {
        match event {
            watcher::Event::Init => {
                let shown = self.shown.keys().filter(|(namespace, _)| scope.contains(namespace));
                self.unlisted.extend(shown.cloned());
                Vec::new()
            }
            watcher::Event::Apply(node) | watcher::Event::InitApply(node) => {
                let row = row(&unguard(node), now);
                self.unlisted.remove(&row.key());
                vec![row]
            }
            watcher::Event::Delete(node) => vec![row(&unguard(node), now).deleted()],
            // A printed node that the new list does not contain was deleted meanwhile.
            watcher::Event::InitDone => {
                let unlisted = std::mem::take(&mut self.unlisted);
                let (deleted, others) =
                    unlisted.into_iter().partition(|(namespace, _)| scope.contains(namespace));
                self.unlisted = others;
                let deleted: BTreeSet<Key> = deleted;
                deleted
                    .iter()
                    .filter_map(|key| self.shown.get(key).cloned())
                    .map(Row::deleted)
                    .collect()
            }
        }
    }

    /// Stores the row; returns its line if it differs from the printed one.
    fn update(&mut self, row: &Row, output: Output, now: Timestamp) -> Option<String> {
        let before = self.shown.insert(row.key(), row.clone());
        if before.as_ref() == Some(row) {
            return None;
        }
        Some(match output {
            Output::Text => line(&row.cells(self.with_namespace, now), &self.widths),
            Output::Json => json_line(row),
        })
    }
}

fn json_line(row: &Row) -> String {
    let value: serde_json::Value = serde_json::from_str(&json(row)).unwrap_or_default();
    format!("{value}\n")
}

fn header(with_namespace: bool) -> Vec<String> {
    let columns = ["NODE", "CHAIN", "PHASE", "IMAGE", "UPDATE", "TASK", "SINCE", "WHY"];
    let namespace = with_namespace.then_some("NAMESPACE");
    namespace.into_iter().chain(columns).map(str::to_owned).collect()
}

fn text(rows: &[Row], scope: &Scope, now: Timestamp) -> String {
    if rows.is_empty() {
        return match scope {
            Scope::All => "No SeiNode found in any namespace.\n".to_owned(),
            Scope::Namespace(name) => {
                format!("No SeiNode found in namespace {name}; -A shows all namespaces.\n")
            }
        };
    }
    let with_namespace = *scope == Scope::All;
    let cells = rows.iter().map(|row| row.cells(with_namespace, now));
    table(&std::iter::once(header(with_namespace)).chain(cells).collect::<Vec<_>>())
}

impl Row {
    fn key(&self) -> Key {
        (self.namespace.clone(), self.node.clone())
    }

    fn deleted(self) -> Self {
        Self { phase: "Deleted".to_owned(), why: String::new(), ..self }
    }

    fn cells(&self, with_namespace: bool, now: Timestamp) -> Vec<String> {
        let or_dash = |text: Option<String>| {
            text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned())
        };
        let image = match (&self.image, &self.desired_image) {
            (Some(now), Some(desired)) => {
                Some(format!("{} -> {}", short_image(now), short_image(desired)))
            }
            (None, Some(desired)) => Some(format!("-> {}", short_image(desired))),
            (now, None) => now.as_deref().map(short_image),
        };
        let cells = [
            self.node.clone(),
            self.chain.clone(),
            or_dash(Some(self.phase.clone())),
            or_dash(image),
            or_dash(self.update.clone()),
            or_dash(self.task.clone()),
            or_dash(self.since.map(|since| age(since, now))),
            self.why.clone(),
        ];
        let namespace = with_namespace.then(|| self.namespace.clone());
        namespace.into_iter().chain(cells).collect()
    }
}

fn row(found: &Found, now: Timestamp) -> Row {
    match found {
        Ok(node) => row_of(node, now),
        Err(unreadable) => Row {
            namespace: unreadable.namespace.clone(),
            node: unreadable.name.clone(),
            chain: "?".to_owned(),
            phase: "?".to_owned(),
            image: None,
            desired_image: None,
            update: None,
            task: None,
            since: None,
            why: format!("cannot be decoded: {}", unreadable.message),
        },
    }
}

fn row_of(node: &SeiNode, now: Timestamp) -> Row {
    let empty = SeiNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&empty);
    let summary = summarize(node, now);
    let drift = find(&status.conditions, ConditionType::PodTemplateDrift);
    let desired =
        Some(&node.spec.image).filter(|image| Some(*image) != status.current_image.as_ref());
    Row {
        namespace: node.metadata.namespace.clone().unwrap_or_default(),
        node: node.metadata.name.clone().unwrap_or_default(),
        chain: node.spec.chain_id.clone(),
        phase: status.phase.map(|phase| phase.as_str().to_owned()).unwrap_or_default(),
        image: status.current_image.clone(),
        desired_image: desired.cloned(),
        update: drift.map(|condition| condition.reason.clone()),
        task: summary.task.map(|task| task.to_string()),
        since: summary.since,
        why: one_line(&summary.why),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use sei_api::status::{Blocked, UpdateState};

    use super::*;
    use crate::cluster::Unreadable;
    use crate::fixtures::{ago, condition, node, now, pending, plan, with};

    fn fleet() -> Vec<Found> {
        let stalled = condition(
            ConditionType::Stalled,
            "True",
            "ImagePullFailed",
            "pod rpc-1-0: seid: ErrImagePull:\n  not found",
        );
        let held = "changes of the operator wait for an approval";
        let updating = condition(
            ConditionType::NodeUpdateInProgress,
            "True",
            "UpdateStarted",
            "image drift detected: spec=v2 current=v1",
        );
        let mut rolling =
            with(pending(node("rpc-2"), UpdateState::Rolling, "Rolling", ""), updating);
        rolling.spec.image = "registry.example.org/seid:v6.6.0".into();
        rolling.status.get_or_insert_default().plan = Some(plan(&[
            ("apply-statefulset", true),
            ("replace-pod", false),
            ("mark-ready", false),
        ]));
        let mut new = node("rpc-3");
        new.status = None;
        let mut blocked = node("rpc-4");
        blocked.status.get_or_insert_default().blocked = Some(Blocked {
            reason: "SidecarUnreachable".into(),
            since: ago(12),
            message: "the sidecar of pod rpc-4-0 does not run".into(),
        });
        vec![
            Ok(node("archive-0")),
            Ok(pending(node("rpc-0"), UpdateState::Held, "Held", held)),
            Ok(with(node("rpc-1"), stalled)),
            Ok(rolling),
            Ok(new),
            Ok(blocked),
            Err(Unreadable {
                namespace: "demo".into(),
                name: "rpc-5".into(),
                message: "missing field `image`".into(),
            }),
        ]
    }

    fn rows() -> Vec<Row> {
        fleet().iter().map(|node| row(node, now())).collect()
    }

    #[test]
    fn a_fleet_is_printed_as_one_table() {
        let scope = Scope::Namespace("demo".into());
        expect![[r#"
            NODE        CHAIN       PHASE     IMAGE                        UPDATE    TASK              SINCE   WHY
            archive-0   pacific-1   Running   seid:v6.5.1                  InSync    -                 5m
            rpc-0       pacific-1   Running   seid:v6.5.1                  Held      -                 30m     changes of the operator wait for an approval
            rpc-1       pacific-1   Running   seid:v6.5.1                  InSync    -                 5m      ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found
            rpc-2       pacific-1   Running   seid:v6.5.1 -> seid:v6.6.0   Rolling   replace-pod 2/3   20s     image drift detected: spec=v2 current=v1
            rpc-3       pacific-1   -         -> seid:v6.5.1               -         -                 -
            rpc-4       pacific-1   Running   seid:v6.5.1                  InSync    -                 12s     the sidecar of pod rpc-4-0 does not run
            rpc-5       ?           ?         -                            -         -                 -       cannot be decoded: missing field `image`
        "#]].assert_eq(&text(&rows(), &scope, now()));
    }

    #[test]
    fn all_namespaces_add_a_namespace_column() {
        let text = text(&rows()[..1], &Scope::All, now());
        expect![[r#"
            NAMESPACE   NODE        CHAIN       PHASE     IMAGE         UPDATE   TASK   SINCE   WHY
            demo        archive-0   pacific-1   Running   seid:v6.5.1   InSync   -      5m
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn an_empty_fleet_is_reported_in_a_sentence() {
        let scope = Scope::Namespace("demo".into());
        expect![[r#"
            No SeiNode found in namespace demo; -A shows all namespaces.
        "#]]
        .assert_eq(&text(&[], &scope, now()));
    }

    #[test]
    fn only_changed_rows_are_printed_again() {
        let rows = rows();
        let mut table = WatchTable::new(&rows, &Scope::Namespace("demo".into()), now());
        assert_eq!(table.update(&rows[0], Output::Text, now()), None);
        let changed = Row { phase: "Failed".into(), ..rows[0].clone() };
        let line = table.update(&changed, Output::Text, now()).unwrap();
        assert!(line.starts_with("archive-0   pacific-1   Failed "), "{line}");
        assert_eq!(table.update(&changed, Output::Json, now()), None);
    }

    #[test]
    fn named_nodes_are_watched_in_their_own_namespaces() {
        let mut rows = rows();
        rows[0].namespace = "other".into();
        let demo = Scope::Namespace("demo".into());
        assert_eq!(watched_scopes(&demo, &rows[..1], true), [Scope::Namespace("other".into())]);
        assert_eq!(watched_scopes(&demo, &rows, true).len(), 2);
        assert_eq!(watched_scopes(&Scope::All, &rows, false), [Scope::All]);
    }

    #[test]
    fn a_node_missing_from_a_new_list_is_printed_as_deleted_once() {
        let mut rows = rows();
        rows[1].namespace = "other".into();
        let demo = Scope::Namespace("demo".into());
        let mut table = WatchTable::new(&rows[..3], &Scope::All, now());
        let mut relist = || {
            let mut rows = table.rows_of_event(&demo, watcher::Event::Init, now());
            let listed = kube::core::DeserializeGuard(Ok(node("archive-0")));
            rows.extend(table.rows_of_event(&demo, watcher::Event::InitApply(listed), now()));
            rows.extend(table.rows_of_event(&demo, watcher::Event::InitDone, now()));
            let printed =
                rows.iter().filter(|row| table.update(row, Output::Text, now()).is_some());
            printed.map(|row| format!("{} {}", row.node, row.phase)).collect::<Vec<_>>()
        };
        assert_eq!(relist(), ["rpc-1 Deleted"]);
        assert_eq!(relist(), Vec::<String>::new());
    }

    #[test]
    fn a_forbidden_watch_is_an_error() {
        let status = |code, reason: &str| {
            let status = kube::core::Status::failure("no", reason).with_code(code);
            watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
        };
        assert!(is_forbidden(&status(403, "Forbidden")));
        assert!(!is_forbidden(&status(500, "InternalError")));
    }

    #[test]
    fn the_json_output_has_all_fields() {
        expect![[r#"
            {
              "namespace": "demo",
              "node": "rpc-1",
              "chain": "pacific-1",
              "phase": "Running",
              "image": "registry.example.org/seid:v6.5.1",
              "update": "InSync",
              "since": "2027-01-15T07:55:00Z",
              "why": "ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found"
            }"#]]
        .assert_eq(&json(&rows()[2]));
    }
}
