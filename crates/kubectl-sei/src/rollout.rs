//! `kubectl sei rollout`: how far a fleet's rollout is, hold it, and go back.

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt as _};
use sei_api::fleet::{FleetNode, RolloutState, condition_type};
use sei_api::names::label;
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_exec::call::{chain, find};
use sei_plan::fleet::previous_template;
use sei_plan::merge_patch::difference;
use serde_json::{Value, json};

use crate::change::patch;
use crate::cluster::{Scope, split_fleet};
use crate::error::{Error, call_error, one_line};
use crate::flags::{DryRun, FleetFlags, RolloutCommand, RolloutStatusFlags};
use crate::format::{age, short_image, table};
use crate::{CommandContext, Exit, Out, flush, write};

/// How often an edit is tried if other clients are faster.
const ATTEMPTS: usize = 5;

pub(crate) async fn run(
    command: &RolloutCommand,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    match command {
        RolloutCommand::Status(flags) if flags.watch => {
            return watch(flags, scope, context, out).await;
        }
        RolloutCommand::Status(flags) => {
            let (_, fleet) = read(&flags.fleet, scope, context).await?;
            write(out, &text(&fleet, context.now()))?;
            return Ok(exit(&progress(&fleet)).unwrap_or(Exit::Fine));
        }
        RolloutCommand::Pause(flags) => pause(flags, true, scope, context, out).await?,
        RolloutCommand::Resume(flags) => pause(flags, false, scope, context, out).await?,
        RolloutCommand::Undo(flags) => {
            let mut attempts = 0;
            // The operator writes the status all the time; what changes is decided again.
            while let Err(error) = undo(flags, scope, context, out).await {
                attempts += 1;
                if attempts == ATTEMPTS || !matches!(error, Error::Conflict { .. }) {
                    return Err(error);
                }
            }
        }
    }
    Ok(Exit::Fine)
}

/// The fleet of this name.
pub(crate) async fn read(
    given: &str,
    scope: &Scope,
    context: &CommandContext,
) -> Result<(Api<SeiNodeDeployment>, SeiNodeDeployment), Error> {
    let (namespace, name) = split_fleet(given)?;
    let namespace = match (namespace, scope) {
        (Some(namespace), _) => namespace,
        (None, Scope::Namespace(namespace)) => namespace,
        (None, Scope::All) => return Err(Error::NotAName { given: given.to_owned() }),
    };
    let api = Api::namespaced(context.client()?.clone(), namespace);
    let what = "get seinodedeployment";
    let found = find(what, api.get(name)).await.map_err(|failure| call_error(what, failure))?;
    let missing = || Error::NoFleet { name: name.to_owned(), namespace: namespace.to_owned() };
    Ok((api, found.ok_or_else(missing)?))
}

/// How far a rollout is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    /// The operator has not reconciled the last edit.
    Unobserved,
    /// Nodes that the fleet has not created, or that do not run the template; without a rollout they
    /// are new.
    Open(Option<RolloutState>),
    Complete,
}

fn progress(fleet: &SeiNodeDeployment) -> Progress {
    let status = fleet.status.clone().unwrap_or_default();
    // The status has the generation of the last rollout that is complete, the condition that of the
    // last reconcile.
    let ready = status.conditions.iter().find(|it| it.type_ == condition_type::READY);
    if ready.is_none_or(|ready| ready.observed_generation < fleet.metadata.generation) {
        return Progress::Unobserved;
    }
    match fleet.rollout_state() {
        None if status.updated_replicas >= Some(fleet.spec.replicas) => Progress::Complete,
        state => Progress::Open(state),
    }
}

/// The exit code of a rollout that has come to an end.
fn exit(progress: &Progress) -> Option<Exit> {
    match progress {
        Progress::Complete => Some(Exit::Fine),
        Progress::Open(Some(RolloutState::Halted)) => Some(Exit::NeedsAttention),
        _ => None,
    }
}

fn line(fleet: &SeiNodeDeployment, now: Timestamp) -> String {
    let status = fleet.status.clone().unwrap_or_default();
    let (total, updated) = (fleet.spec.replicas, status.updated_replicas.unwrap_or(0));
    let name = format!("{}/{}", fleet.namespace().unwrap_or_default(), fleet.name_any());
    let state = match progress(fleet) {
        Progress::Unobserved => return format!("{name}: the last edit is not reconciled yet\n"),
        Progress::Complete => {
            return format!("{name}: complete, {updated} of {total} nodes run the template\n");
        }
        Progress::Open(state) => state,
    };
    let Some((state, rollout)) = state.zip(status.rollout) else {
        return format!("{name}: {updated} of {total} nodes run the template\n");
    };
    let healthy = rollout.healthy_replicas.unwrap_or(0);
    let state_text = state.as_str().to_lowercase();
    let since = age(rollout.started_at.0, now);
    let why = match (state, rollout.halt_reason) {
        (RolloutState::Halted, Some(why)) => format!("; halted by {}", one_line(&why)),
        _ if rollout.batch.is_empty() => String::new(),
        _ => format!("; in progress: {}", rollout.batch.join(", ")),
    };
    format!(
        "{name}: {state_text}, {updated} of {total} nodes updated, {healthy} healthy, begun {since} \
         ago{why}\n"
    )
}

/// The line of the rollout and a table of the nodes.
fn text(fleet: &SeiNodeDeployment, now: Timestamp) -> String {
    let nodes = fleet.status.as_ref().map(|status| status.nodes.as_slice()).unwrap_or_default();
    let mut rows = vec![["NODE", "STATE", "IMAGE", "WHY"].map(str::to_owned).to_vec()];
    let dash = || "-".to_owned();
    rows.extend(nodes.iter().map(|node: &FleetNode| {
        vec![
            node.name.clone(),
            node.state.map_or_else(dash, |state| format!("{state:?}")),
            node.current_image.as_deref().map_or_else(dash, short_image),
            one_line(node.message.as_deref().unwrap_or_default()),
        ]
    }));
    format!("{}\n{}", line(fleet, now), table(&rows))
}

/// Prints a line for each change until the rollout is complete or halted.
async fn watch(
    flags: &RolloutStatusFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let (api, fleet) = read(&flags.fleet, scope, context).await?;
    let name = fleet.name_any();
    let mut events = watcher::watch_object(api, &name).default_backoff().boxed();
    let started = tokio::time::Instant::now();
    let (mut fleet, mut printed) = (fleet, String::new());
    loop {
        // The age of the rollout alone is no change.
        let now =
            fleet.status.as_ref().and_then(|status| Some(status.rollout.as_ref()?.started_at.0));
        let compared = line(&fleet, now.unwrap_or_default());
        if compared != printed {
            write(out, &line(&fleet, context.now()))?;
            flush(out)?;
            printed = compared;
        }
        if let Some(exit) = exit(&progress(&fleet)) {
            return Ok(exit);
        }
        let next = events.next();
        let event = match flags.timeout {
            None => next.await,
            Some(timeout) => {
                let timed_out = |_| Error::TimedOut {
                    seconds: timeout.as_secs(),
                    nodes: one_line(&line(&fleet, context.now())),
                };
                tokio::time::timeout_at(started + timeout, next).await.map_err(timed_out)?
            }
        };
        match event {
            Some(Ok(Some(next))) => fleet = next,
            Some(Ok(None)) | None => {
                let namespace = fleet.namespace().unwrap_or_default();
                return Err(Error::NoFleet { name, namespace });
            }
            // The watch reconnects by itself.
            Some(Err(error)) => {
                let message = one_line(&chain(&error));
                eprintln!(
                    "warning: the watch failed and is retried: {}",
                    crate::printable(&message)
                );
            }
        }
    }
}

async fn change(
    (api, fleet): &(Api<SeiNodeDeployment>, SeiNodeDeployment),
    change: Value,
    text: &str,
    dry_run: DryRun,
    out: Out<'_>,
) -> Result<(), Error> {
    patch(api, "seinodedeployment", &fleet.name_any(), &change, dry_run).await?;
    let namespace = fleet.namespace().unwrap_or_default();
    let suffix = if dry_run == DryRun::None { "" } else { " (dry run)" };
    write(out, &format!("{namespace}/{}: {text}{suffix}\n", fleet.name_any()))
}

async fn pause(
    flags: &FleetFlags,
    paused: bool,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let found = read(&flags.fleet, scope, context).await?;
    let value = if paused { json!(true) } else { Value::Null };
    let text = match (paused, found.1.spec.rollouts_are_paused()) {
        (true, true) => "rollouts are paused already",
        (true, false) => {
            "rollouts are paused. Every node keeps running; nodes that have the template complete \
             their update, no other gets it"
        }
        (false, false) => "rollouts are not paused",
        (false, true) => "rollouts are resumed",
    };
    let strategy = json!({ "spec": { "updateStrategy": { "paused": value } } });
    change(&found, strategy, text, flags.dry_run, out).await
}

async fn undo(
    flags: &FleetFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let found = read(&flags.fleet, scope, context).await?;
    let fleet = &found.1;
    let namespace = fleet.namespace().unwrap_or_default();
    let of = format!("{}={}", label::NODE_DEPLOYMENT, fleet.name_any());
    let in_namespace = Scope::Namespace(namespace.clone());
    let nodes: Vec<SeiNode> =
        in_namespace.list(context.client()?, crate::error::LIST_NODES, &of).await?;
    let Some(previous) = previous_template(fleet, &nodes) else {
        let why = match fleet.rollout_state() {
            None => "no rollout is in progress, and the template before the last one is not stored",
            Some(_) => "no node has the previous template any more, and it is stored nowhere else",
        };
        let why = format!("{why}; apply the manifest of that template with kubectl apply");
        return Err(Error::Refused { node: format!("{namespace}/{}", fleet.name_any()), why });
    };
    let value = |template| serde_json::to_value(template).expect("a template has string keys only");
    let template = difference(&value(&fleet.spec.template), &value(&previous));
    let text = format!(
        "the template is that of before the rollout again, with image {}. If a tool applies the \
         manifest from elsewhere, change it there too",
        short_image(&previous.spec.image)
    );
    // The difference is that to what was read.
    let metadata = json!({ "resourceVersion": fleet.metadata.resource_version });
    let template = json!({ "metadata": metadata, "spec": { "template": template } });
    change(&found, template, &text, flags.dry_run, out).await
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::fixtures::{fleet, now};

    #[test]
    fn a_line_reports_how_far_a_rollout_is() {
        let halted = fleet("True");
        expect![[r#"
            demo/edge: halted, 0 of 2 nodes updated, 0 healthy, begun 5m ago; halted by edge-0: ImagePullFailed: no such image

            NODE     STATE      IMAGE     WHY
            edge-0   Broken     seid:v1   ImagePullFailed: no such image
            edge-1   Outdated   seid:v1
        "#]].assert_eq(&text(&halted, now()));
        assert_eq!(exit(&progress(&halted)), Some(Exit::NeedsAttention));
        let mut held = halted.clone();
        held.spec.update_strategy.paused = Some(true);
        expect![[r#"
            demo/edge: paused, 0 of 2 nodes updated, 0 healthy, begun 5m ago; in progress: edge-0
        "#]]
        .assert_eq(&line(&held, now()));
        assert_eq!(exit(&progress(&held)), None, "it can still be resumed");
    }

    #[test]
    fn an_edit_that_is_not_reconciled_is_neither_halted_nor_complete() {
        let mut edited = fleet("True");
        edited.metadata.generation = Some(9);
        assert_eq!(progress(&edited), Progress::Unobserved);
        let mut new = fleet("True");
        let status = new.status.get_or_insert_default();
        status.rollout = None;
        assert_eq!(progress(&new), Progress::Open(None), "its nodes do not run the template yet");
        new.status.get_or_insert_default().updated_replicas = Some(2);
        assert_eq!(exit(&progress(&new)), Some(Exit::Fine));
    }
}
