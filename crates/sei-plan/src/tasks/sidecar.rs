//! Tasks that the sidecar of the node's pod runs.

use sei_api::condition::Reason;
use sei_api::plan::{PlanKind, PlannedTask, TaskPlan, TaskStatus, task_id};
use sei_api::task::TaskType;
use serde_json::{Map, Value};

use super::{
    Next, bootstrap, done, fail, in_bootstrap, kind_of, not_ours, read, replace_pod, request, wait,
    wait_and_poll,
};
use crate::planner::later;
use crate::request::{Failure, Read, Request, SidecarCall, SidecarRequest, TaskState};
use crate::seen::{Reading, Seen};
use crate::shared::Shared;
use crate::view::{
    Freshness, JobState, PodView, StatefulSetView, freshness, is_bootstrap_pod, is_owned,
};

/// Polls, submits if the sidecar has no record of the task, then polls to the end.
///
/// Polling comes first, so that after a crash a submission is found instead of repeated, and so
/// that a failure is noticed: the sidecar runs a failed id again when it is submitted again.
pub(super) fn step(plan: &TaskPlan, index: usize, task: &PlannedTask, seen: &Seen) -> Next {
    let Some(task_type) = task.task_type() else { return fail("unknown task type") };
    let params = match wire_params(task_type, task) {
        Ok(params) => params,
        Err(text) => return fail(format!("{task_type}: {text}")),
    };
    if in_bootstrap(plan)
        && let Some(next) = finished_by_job(seen)
    {
        return next;
    }
    let pod = match addressed_pod(plan, index, task_type, seen) {
        Ok(pod) => pod,
        Err(next) => return next,
    };
    let call = |call| {
        request(Request::Sidecar(SidecarRequest {
            pod_uid: pod.uid.clone(),
            ip: pod.ip.clone().unwrap_or_default(),
            proxy: pod.proxy,
            call,
        }))
    };
    if let Some(abandoned) = plan.abandoned.first() {
        return clear(abandoned, seen).map_or_else(|| Next::Cleared(abandoned.clone()), call);
    }
    let is_open = task_type == TaskType::MarkReady && seen.open_gate.as_ref() == Some(&pod.uid);
    if let Some(Failure::TaskRefused(text)) = &seen.failure {
        return if is_open { done() } else { Next::Retry(super::bounded(text)) };
    }
    let id = attempt_id(plan, index, task);
    match seen.tasks.get(&id) {
        None => call(SidecarCall::Poll { id }),
        Some(None) => unproved(task_type, pod, seen).unwrap_or_else(|| {
            call(SidecarCall::Submit { id, task_type: task_type.as_str().to_owned(), params })
        }),
        Some(Some(record)) => match &record.state {
            TaskState::Running if is_open => done(),
            TaskState::Running => running(task_type, task, pod, seen),
            TaskState::Completed => done(),
            TaskState::Failed(text) => Next::Retry(super::bounded(text)),
        },
    }
}

/// Opens the gate of a pod that the bootstrap Job made in place of an evicted one, by the task that
/// opened the gate of the first: the sidecar of the new pod has no record of it. `None` once the chain
/// process has started.
pub(super) fn open_gate_again(plan: &TaskPlan, seen: &Seen) -> Option<Next> {
    let (index, task) =
        plan.tasks.iter().enumerate().find(|(_, task)| {
            task.is(TaskType::MarkReady) && task.status == TaskStatus::Complete
        })?;
    let (job, node) = (seen.job.any()?, seen.node.metadata.name.as_deref()?);
    let pod = seen.pods.any()?.iter().find(|pod| {
        is_bootstrap_pod(pod, node, Some(job)) && !pod.is_terminating() && !pod.seid.started
    })?;
    let ip = pod.ip.clone().filter(|_| pod.sidecar.running)?;
    let id = attempt_id(plan, index, task);
    let call = match seen.tasks.get(&id) {
        None => SidecarCall::Poll { id },
        Some(None) => {
            if let Some(next) = unproved(TaskType::MarkReady, pod, seen) {
                return Some(next);
            }
            let task_type = TaskType::MarkReady.as_str().to_owned();
            SidecarCall::Submit { id, task_type, params: Value::Object(Map::new()) }
        }
        Some(Some(_)) => return None,
    };
    let (pod_uid, proxy) = (pod.uid.clone(), pod.proxy);
    Some(request(Request::Sidecar(SidecarRequest { pod_uid, ip, proxy, call })))
}

/// Waits for the end of a run, up to its deadline. A process that started after the submission has
/// begun the run again.
fn running(task_type: TaskType, task: &PlannedTask, pod: &PodView, seen: &Seen) -> Next {
    let submitted = task.submitted_at.as_ref().map_or(seen.now, |at| at.0);
    let since = submitted.max(pod.sidecar.running_since.unwrap_or(submitted));
    if let Some(deadline) = seen.timing.task_deadline(task_type) {
        // A start farther ahead than that comes from a clock that was wrong.
        if since > later(seen.now, deadline) || later(since, deadline) <= seen.now {
            return Next::TimedOut(format!("no end within {} s", deadline.as_secs()));
        }
    }
    if task.error.is_some() {
        return wait_and_poll(seen, Reason::SidecarTaskFailed, after_failure(task));
    }
    wait_and_poll(seen, None, format!("{task_type} runs on pod {}", pod.name))
}

/// What the last attempt of a task failed with. The text is the same during the pause and during the
/// next attempt, so that neither causes a write.
pub(super) fn after_failure(task: &PlannedTask) -> String {
    let error = task.error.as_deref().unwrap_or("unknown error");
    format!("{} failed and is run again: {error}", task.r#type)
}

/// What has to happen before a task is submitted to this pod: it must be seen at this address by a live
/// read. A pod may have ended since it was cached, and another pod may have its address.
///
/// A proxy with an audience of its own needs no read, because the proxy of another node rejects the
/// token. The task that lets the chain process start is proved in any case; in an update it uses what
/// `observe-image` has read. Such a proxy has accepted the token of the poll before, so its sidecar
/// runs, even if the kubelet has not reported it yet.
fn unproved(task_type: TaskType, pod: &PodView, seen: &Seen) -> Option<Next> {
    let is_own = pod.proxy.own_audience;
    if is_own && task_type != TaskType::MarkReady {
        return None;
    }
    let live = match (&seen.pod, &seen.pods) {
        (_, Reading::Live(_)) => Some(pod),
        (Reading::Live(found), _) => found.as_deref(),
        _ => return Some(read(Read::Pod(pod.name.clone()))),
    };
    let runs = live.is_some_and(|live| {
        live.uid == pod.uid
            && live.ip == pod.ip
            && (live.sidecar.running || is_own)
            && !live.is_terminating()
    });
    (!runs).then(|| {
        let message = format!("pod {} was replaced, or its sidecar does not run", pod.name);
        wait_and_poll(seen, Reason::SidecarUnreachable, message)
    })
}

/// Id of the current attempt. The first attempt uses the task's own id; a retry gets a new one,
/// because the sidecar would count a resubmitted id as the same task.
pub fn attempt_id(plan: &TaskPlan, index: usize, task: &PlannedTask) -> String {
    match task.retry_count.unwrap_or(0) {
        ..=0 => task.id.clone(),
        retries => {
            let plan_id = plan.id.as_deref().unwrap_or_default();
            task_id(&format!("{plan_id}/retry-{retries}"), &task.r#type, index)
        }
    }
}

/// Polls an unfinished task of an older plan or attempt, and deletes it if it still runs: it writes
/// the same files as ours. `None` once it has ended.
fn clear(abandoned: &str, seen: &Seen) -> Option<SidecarCall> {
    let id = abandoned.to_owned();
    match seen.tasks.get(abandoned) {
        None => Some(SidecarCall::Poll { id }),
        Some(Some(record)) if record.state == TaskState::Running => {
            Some(SidecarCall::Delete { id })
        }
        Some(_) => None,
    }
}

/// When the bootstrap Job has ended, the tasks of its pod end too: its sidecar no longer runs.
fn finished_by_job(seen: &Seen) -> Option<Next> {
    let Reading::Live(found) = &seen.job else { return Some(read(Read::Job)) };
    if let Some(next) = found.as_ref().and_then(|job| bootstrap::not_ours(job, seen)) {
        return Some(next);
    }
    match found.as_ref().map(|job| &job.state) {
        Some(JobState::Complete) => Some(super::done()),
        Some(JobState::Failed(text)) => Some(fail(format!("the bootstrap Job failed: {text}"))),
        None => Some(fail("bootstrap Job not found")),
        Some(JobState::Active) => None,
    }
}

/// The pod whose sidecar is called: the bootstrap Job's, the fresh one, or the running one.
fn addressed_pod<'a>(
    plan: &TaskPlan,
    index: usize,
    task_type: TaskType,
    seen: &'a Seen,
) -> Result<&'a PodView, Next> {
    let pods = match &seen.pods {
        Reading::Unread | Reading::Cached(None) => return Err(read(Read::Pods)),
        Reading::Cached(Some(pods)) | Reading::Live(Some(pods)) => pods.as_slice(),
        Reading::Live(None) => &[],
    };
    let alive = |pod: &&Shared<PodView>| !pod.is_terminating();
    let found = if in_bootstrap(plan) {
        let job = seen.job.any();
        let is_of_job = |pod: &&Shared<PodView>| is_bootstrap_pod(pod, seen.name(), job);
        pods.iter().filter(alive).filter(|_| job.is_some()).find(is_of_job)
    } else {
        let Some(statefulset) = seen.statefulset.any() else {
            return match seen.statefulset {
                Reading::Unread => Err(read(Read::StatefulSet)),
                _ => Err(wait(None, "StatefulSet not found")),
            };
        };
        if let Some(next) = not_ours(statefulset, seen) {
            return Err(next);
        }
        let needs_fresh = needs_fresh_pod(plan, index, task_type);
        let cached = matches!(seen.statefulset, Reading::Cached(_));
        if needs_fresh && cached && is_older_than_applied(plan, statefulset) {
            return Err(read(Read::StatefulSet));
        }
        pods.iter().filter(alive).filter(|pod| is_owned(pod, statefulset)).find(|pod| {
            !needs_fresh
                || replace_pod::revisions(plan, statefulset, seen).is_some_and(|revisions| {
                    freshness(pod, statefulset, revisions) == Freshness::Fresh
                })
        })
    };
    let Some(pod) = found else {
        return Err(wait(Reason::SidecarUnreachable, format!("no pod for {task_type} yet")));
    };
    if pod.ip.is_none() {
        let message = format!("pod {} has no address yet", pod.name);
        return Err(wait(Reason::SidecarUnreachable, message));
    }
    Ok(pod)
}

/// Whether a view is older than this plan's own apply: by its revision the old pod would be fresh.
fn is_older_than_applied(plan: &TaskPlan, statefulset: &StatefulSetView) -> bool {
    plan.applied.as_ref().is_some_and(|applied| {
        statefulset.uid != applied.uid || statefulset.generation < applied.generation
    })
}

/// After the replacement only the new pod's sidecar counts. A plan that only opens the gate calls
/// the running pod, of any template.
fn needs_fresh_pod(plan: &TaskPlan, index: usize, task_type: TaskType) -> bool {
    let replaced = plan.tasks[..index].iter().any(|task| task.is(TaskType::ReplacePod));
    let opens_gate = task_type == TaskType::MarkReady && kind_of(plan) != PlanKind::MarkReady;
    replaced || opens_gate
}

/// Names of parameters on the wire. The Go operator stores some in title case and reads any case.
const WIRE_NAMES: &[&str] = &[
    "targetHeight",
    "expectedGenesisHash",
    "mode",
    "overrides",
    "targetVersion",
    "incremental",
    "files",
    "useLocalSnapshot",
    "trustPeriod",
    "backfillBlocks",
    "rpcServers",
    "chainId",
    "moniker",
    "stakingAmount",
    "accountBalance",
    "nodeName",
];

fn wire_name(stored: &str) -> String {
    if let Some(known) = WIRE_NAMES.iter().find(|name| name.eq_ignore_ascii_case(stored)) {
        return (*known).to_owned();
    }
    let mut letters = stored.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

/// The parameters that are sent: the stored ones under their wire names, without empty optionals.
///
/// The check comes before any call: a plan with parameters that can never work fails at once
/// instead of being refused for ever.
pub fn wire_params(task_type: TaskType, task: &PlannedTask) -> Result<Value, String> {
    let empty = Map::new();
    let stored = match &task.params {
        None | Some(Value::Null) => &empty,
        Some(Value::Object(params)) => params,
        Some(_) => return Err("the parameters are not an object".to_owned()),
    };
    let is_empty = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Bool(true) | Value::Object(_) => false,
    };
    let wire: Map<String, Value> = stored
        .iter()
        .filter(|(_, value)| !is_empty(value))
        .map(|(name, value)| (wire_name(name), value.clone()))
        .collect();
    for name in required(task_type, &wire) {
        let usable = match (*name, wire.get(*name)) {
            (FILES, found) => found.and_then(Value::as_object).is_some_and(|map| !map.is_empty()),
            (NODES, found) => found.is_some_and(Value::is_array),
            (_, found) => found.is_some_and(Value::is_string),
        };
        if !usable {
            return Err(format!("parameter {name} is missing, empty or of the wrong type"));
        }
    }
    Ok(Value::Object(wire))
}

/// The required parameter that is a map, and the one that is a list; the others are texts.
const FILES: &str = "files";
const NODES: &str = "nodes";

fn required(task_type: TaskType, sent: &Map<String, Value>) -> &'static [&'static str] {
    match task_type {
        // Without a mode there is nothing to generate from, but the files on disk can be patched.
        TaskType::ConfigApply if sent.get("incremental") == Some(&Value::Bool(true)) => &[],
        TaskType::ConfigApply => &["mode"],
        TaskType::ConfigPatch => &[FILES],
        TaskType::GenerateIdentity => &["chainId", "moniker"],
        TaskType::GenerateGentx => &["chainId", "stakingAmount", "accountBalance"],
        TaskType::UploadGenesisArtifacts => &["nodeName"],
        TaskType::AssembleAndUploadGenesis => &["accountBalance", "namespace", NODES],
        _ => &[],
    }
}
