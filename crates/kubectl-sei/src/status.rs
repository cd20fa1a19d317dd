//! `kubectl sei status`: what every node does, since when, and why.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::{WatchStreamExt as _, watcher};
use sei_api::SeiNode;
use sei_api::condition::{ConditionType, find};
use sei_api::plan::PlanPhase;
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_exec::call::chain;
use sei_plan::planner::failure_text;
use serde::Serialize;

use crate::cluster::{Found, Guarded, Scope, nodes, unguard};
use crate::error::{Error, one_line};
use crate::flags::{Output, StatusFlags};
use crate::words::{age, line, short_image, table, widths};
use crate::{Out, Surroundings, json, show, write};

/// What is told of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    namespace: String,
    node: String,
    chain: String,
    phase: String,
    /// As it was seen running.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    /// As the spec asks for it, where that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    desired_image: Option<String>,
    /// Reason of the condition `PodTemplateDrift`.
    #[serde(skip_serializing_if = "Option::is_none")]
    update: Option<String>,
    /// Current task of the plan that runs.
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
    surroundings: &Surroundings,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = surroundings.client()?;
    let found = nodes(client, scope, &flags.nodes).await?;
    let rows: Vec<Row> = found.iter().map(row).collect();
    let now = surroundings.now();
    if !flags.watch {
        return show(out, flags.shown.output, &rows, || text(&rows, scope, now));
    }
    match flags.shown.output {
        Output::Text => write(out, &text(&rows, scope, now))?,
        Output::Json => rows.iter().try_for_each(|row| write(out, &json_line(row)))?,
    }
    watch(flags, scope, surroundings, &rows, out).await
}

/// Tells each change of the nodes that were shown, for as long as somebody reads.
async fn watch(
    flags: &StatusFlags,
    scope: &Scope,
    surroundings: &Surroundings,
    rows: &[Row],
    out: Out<'_>,
) -> Result<(), Error> {
    let client = surroundings.client()?;
    let mut view = View::new(rows, scope, surroundings.now());
    let is_named = !flags.nodes.is_empty();
    let only: Option<BTreeSet<Key>> = is_named.then(|| rows.iter().map(Row::key).collect());
    let watches = places(scope, rows, is_named).into_iter().map(|place| {
        let watched = watcher(place.api::<Guarded>(client), watcher::Config::default());
        watched.default_backoff().map(move |event| (place.clone(), event)).boxed()
    });
    let mut watches = futures::stream::select_all(watches);
    let mut is_broken = false;
    while let Some((place, event)) = watches.next().await {
        let heard = match event {
            Ok(event) => view.heard(&place, event),
            Err(error) => {
                let told = one_line(&chain(&error));
                if is_forbidden(&error) {
                    return Err(Error::Call { told: format!("{told}; ask for that permission") });
                }
                // It recovers by itself, and then tells all that was missed.
                if !is_broken {
                    eprintln!("warning: the watch broke and is tried again: {told}");
                }
                is_broken = true;
                continue;
            }
        };
        is_broken &= heard.is_empty();
        let of_interest = |row: &&Row| only.as_ref().is_none_or(|only| only.contains(&row.key()));
        for row in heard.iter().filter(of_interest) {
            if let Some(text) = view.news(row, flags.shown.output, surroundings.now()) {
                write(out, &text)?;
                out.flush().map_err(|source| Error::Output { source })?;
            }
        }
    }
    Ok(())
}

/// Where to watch: named nodes may be in other namespaces than the rest of the scope.
fn places(scope: &Scope, rows: &[Row], is_named: bool) -> Vec<Scope> {
    if !is_named {
        return vec![scope.clone()];
    }
    let namespaces: BTreeSet<&String> = rows.iter().map(|row| &row.namespace).collect();
    namespaces.into_iter().map(|one| Scope::Namespace(one.clone())).collect()
}

/// Nobody waits at a prompt for a permission.
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

/// What stands on the screen already.
struct View {
    shown: BTreeMap<Key, Row>,
    /// Nodes that a list which is under way has not named yet.
    unheard: BTreeSet<Key>,
    widths: Vec<usize>,
    with_namespace: bool,
}

impl View {
    fn new(rows: &[Row], scope: &Scope, now: Timestamp) -> Self {
        let with_namespace = *scope == Scope::All;
        let mut cells: Vec<_> = rows.iter().map(|row| row.cells(with_namespace, now)).collect();
        cells.push(header(with_namespace));
        let shown = rows.iter().map(|row| (row.key(), row.clone())).collect();
        Self { shown, unheard: BTreeSet::new(), widths: widths(&cells), with_namespace }
    }

    /// What an event of this place's watch tells of nodes.
    fn heard(&mut self, place: &Scope, event: watcher::Event<Guarded>) -> Vec<Row> {
        match event {
            watcher::Event::Init => {
                let shown = self.shown.keys().filter(|(namespace, _)| place.holds(namespace));
                self.unheard.extend(shown.cloned());
                Vec::new()
            }
            watcher::Event::Apply(one) | watcher::Event::InitApply(one) => {
                let row = row(&unguard(one));
                self.unheard.remove(&row.key());
                vec![row]
            }
            watcher::Event::Delete(one) => vec![row(&unguard(one)).deleted()],
            // What was there before and is not named has gone meanwhile.
            watcher::Event::InitDone => {
                let unheard = std::mem::take(&mut self.unheard);
                let (gone, others) =
                    unheard.into_iter().partition(|(namespace, _)| place.holds(namespace));
                self.unheard = others;
                let gone: BTreeSet<Key> = gone;
                gone.iter()
                    .filter_map(|key| self.shown.get(key).cloned())
                    .map(Row::deleted)
                    .collect()
            }
        }
    }

    /// The line of a node of which something is to be told.
    fn news(&mut self, row: &Row, output: Output, now: Timestamp) -> Option<String> {
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
            Scope::All => "There is no SeiNode in any namespace.\n".to_owned(),
            Scope::Namespace(name) => {
                format!("There is no SeiNode in namespace {name}; -A looks in all of them.\n")
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

fn row(found: &Found) -> Row {
    match found {
        Ok(node) => row_of(node),
        Err(one) => Row {
            namespace: one.namespace.clone(),
            node: one.name.clone(),
            chain: "?".to_owned(),
            phase: "?".to_owned(),
            image: None,
            desired_image: None,
            update: None,
            task: None,
            since: None,
            why: format!("cannot be read: {}", one.told),
        },
    }
}

fn row_of(node: &SeiNode) -> Row {
    let empty = SeiNodeStatus::default();
    let status = node.status.as_ref().unwrap_or(&empty);
    let (why, since) = why(status);
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
        update: drift.map(|one| one.reason.clone()),
        task: task(status),
        since,
        why: one_line(&why),
    }
}

/// The task that runs, and how far the plan is.
pub(crate) fn task(status: &SeiNodeStatus) -> Option<String> {
    let plan = status.plan.as_ref().filter(|plan| plan.is_active())?;
    let (index, task) = plan.current()?;
    Some(format!("{} {}/{}", task.r#type, index + 1, plan.tasks.len()))
}

/// The one thing that explains most of what is seen of a node, and since when it is so.
fn why(status: &SeiNodeStatus) -> (String, Option<Timestamp>) {
    let condition =
        |kind, value: &str| find(&status.conditions, kind).filter(|one| one.status == value);
    let at = |one: &Condition| Some(one.last_transition_time.0);
    if let Some(one) = condition(ConditionType::Stalled, "True") {
        return (format!("{}: {}", one.reason, one.message), at(one));
    }
    if let Some(one) = &status.blocked {
        return (one.message.clone(), Some(one.since.0));
    }
    if let Some(one) = &status.pending_update {
        let updating = condition(ConditionType::NodeUpdateInProgress, "True");
        let told = one.reason.clone().or_else(|| updating.map(|one| one.message.clone()));
        return (told.unwrap_or_default(), Some(one.since.0));
    }
    if let Some(plan) = status.plan.as_ref().filter(|plan| plan.phase == PlanPhase::Failed) {
        return (failure_text(plan), plan.started_at());
    }
    if let Some(plan) = &status.plan {
        return (String::new(), plan.started_at());
    }
    if let Some(one) = condition(ConditionType::Paused, "True") {
        return (one.message.clone(), at(one));
    }
    let entered = status.phase_transition_time.as_ref().map(|time| time.0);
    let gate = condition(ConditionType::StateSyncReady, "False");
    match (status.phase, gate) {
        (Some(SeiNodePhase::Pending), Some(one)) => (one.message.clone(), at(one)),
        _ => (String::new(), entered),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use sei_api::status::{Blocked, UpdateState};

    use super::*;
    use crate::cluster::Unreadable;
    use crate::fixture::{ago, condition, node, now, pending, plan, with};

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
                told: "missing field `image`".into(),
            }),
        ]
    }

    fn rows() -> Vec<Row> {
        fleet().iter().map(row).collect()
    }

    #[test]
    fn a_fleet_is_one_table() {
        let scope = Scope::Namespace("demo".into());
        expect![[r#"
            NODE        CHAIN       PHASE     IMAGE                        UPDATE    TASK              SINCE   WHY
            archive-0   pacific-1   Running   seid:v6.5.1                  InSync    -                 10d
            rpc-0       pacific-1   Running   seid:v6.5.1                  Held      -                 30m     changes of the operator wait for an approval
            rpc-1       pacific-1   Running   seid:v6.5.1                  InSync    -                 5m      ImagePullFailed: pod rpc-1-0: seid: ErrImagePull: not found
            rpc-2       pacific-1   Running   seid:v6.5.1 -> seid:v6.6.0   Rolling   replace-pod 2/3   30m     image drift detected: spec=v2 current=v1
            rpc-3       pacific-1   -         -> seid:v6.5.1               -         -                 -
            rpc-4       pacific-1   Running   seid:v6.5.1                  InSync    -                 12s     the sidecar of pod rpc-4-0 does not run
            rpc-5       ?           ?         -                            -         -                 -       cannot be read: missing field `image`
        "#]].assert_eq(&text(&rows(), &scope, now()));
    }

    #[test]
    fn all_namespaces_have_a_column_for_it() {
        let text = text(&rows()[..1], &Scope::All, now());
        expect![[r#"
            NAMESPACE   NODE        CHAIN       PHASE     IMAGE         UPDATE   TASK   SINCE   WHY
            demo        archive-0   pacific-1   Running   seid:v6.5.1   InSync   -      10d
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn an_empty_fleet_is_told_in_words() {
        let scope = Scope::Namespace("demo".into());
        expect![[r#"
            There is no SeiNode in namespace demo; -A looks in all of them.
        "#]]
        .assert_eq(&text(&[], &scope, now()));
    }

    #[test]
    fn only_what_changed_is_told_again() {
        let rows = rows();
        let mut view = View::new(&rows, &Scope::Namespace("demo".into()), now());
        assert_eq!(view.news(&rows[0], Output::Text, now()), None);
        let changed = Row { phase: "Failed".into(), ..rows[0].clone() };
        let told = view.news(&changed, Output::Text, now()).unwrap();
        assert!(told.starts_with("archive-0   pacific-1   Failed "), "{told}");
        assert_eq!(view.news(&changed, Output::Json, now()), None);
    }

    #[test]
    fn named_nodes_are_watched_where_they_are() {
        let mut rows = rows();
        rows[0].namespace = "other".into();
        let demo = Scope::Namespace("demo".into());
        assert_eq!(places(&demo, &rows[..1], true), [Scope::Namespace("other".into())]);
        assert_eq!(places(&demo, &rows, true).len(), 2);
        assert_eq!(places(&Scope::All, &rows, false), [Scope::All]);
    }

    #[test]
    fn a_node_that_a_new_list_does_not_name_is_told_as_deleted_once() {
        let mut rows = rows();
        rows[1].namespace = "other".into();
        let demo = Scope::Namespace("demo".into());
        let mut view = View::new(&rows[..3], &Scope::All, now());
        let mut relist = || {
            let mut told = view.heard(&demo, watcher::Event::Init);
            let there = kube::core::DeserializeGuard(Ok(node("archive-0")));
            told.extend(view.heard(&demo, watcher::Event::InitApply(there)));
            told.extend(view.heard(&demo, watcher::Event::InitDone));
            let news = told.iter().filter(|row| view.news(row, Output::Text, now()).is_some());
            news.map(|row| format!("{} {}", row.node, row.phase)).collect::<Vec<_>>()
        };
        assert_eq!(relist(), ["rpc-1 Deleted"]);
        assert_eq!(relist(), Vec::<String>::new());
    }

    #[test]
    fn a_watch_that_is_not_allowed_is_an_error() {
        let status = |code, reason: &str| {
            let status = kube::core::Status::failure("no", reason).with_code(code);
            watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
        };
        assert!(is_forbidden(&status(403, "Forbidden")));
        assert!(!is_forbidden(&status(500, "InternalError")));
    }

    #[test]
    fn the_record_behind_it_is_json() {
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
