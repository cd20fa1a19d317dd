//! One look at one node: observe, run the pass, write, report.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::{Api, ResourceExt};
use sei_api::SeiNode;
use sei_api::names::NODE_FINALIZER;
use sei_api::status::SeiNodeStatus;
use sei_exec::call::{call, find};
use sei_exec::status::{WriteError, write_status};
use sei_exec::{Cluster, judge};
use sei_plan::pass::{Ask, Ending, Pass, is_deferrable};
use sei_plan::request::{Failure, Outcome, Request};
use serde_json::json;

use crate::Guarded;
use crate::caches::NodeKey;
use crate::context::Context;
use crate::desk::{Carried, Desk, Seat, newest};
use crate::{finalize, observe, signers};

/// Why a look at a node failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the stored node cannot be decoded: {0}")]
    Undecodable(String),
    #[error("failed to call the API server: {0:?}")]
    Call(Failure),
    #[error("the installed CRD drops status fields ({0}); apply the CRDs of this version")]
    SchemaTooOld(String),
    #[error("a defect of the operator, please report it: {0}")]
    Panicked(String),
}

impl Error {
    /// A label for metrics: few values, no names.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Undecodable(_) => "undecodable",
            Self::Call(_) => "api",
            Self::SchemaTooOld(_) => "schema",
            Self::Panicked(_) => "panic",
        }
    }
}

/// How long progress may stay unwritten.
const CARRY_MAX: Duration = Duration::from_secs(5);

/// A pass with all it needs to go on.
struct Run {
    context: Arc<Context>,
    key: NodeKey,
    node: SeiNode,
    stored: SeiNodeStatus,
    pass: Pass,
    cluster: Cluster,
    rendered: Option<k8s_openapi::api::apps::v1::StatefulSet>,
    /// When the progress that this pass began with was first held back.
    carried_since: Option<Instant>,
}

/// How far a run came.
enum Went {
    /// When to look again, if nothing wakes the node before.
    Ended(Option<Duration>),
    /// The next request goes to the sidecar, which may take its time.
    Sidecar(Box<Run>, Box<Request>),
}

/// Looks at one node. The look is a task of its own: a controller that is told to stop may drop what
/// it has just begun, and a pass has to come to its end.
pub async fn reconcile(node: Arc<Guarded>, context: Arc<Context>) -> Result<Action, Error> {
    let decoded = match &node.0 {
        Ok(node) => node,
        Err(invalid) => return Err(Error::Undecodable(invalid.error.clone())),
    };
    let key: NodeKey = (decoded.namespace().unwrap_or_default(), decoded.name_any());
    let Some(seat) = context.desks.enter(&key) else { return Ok(Action::await_change()) };
    let looked = tokio::spawn(begin(node, seat, context)).await;
    looked.unwrap_or_else(|error| Err(Error::Panicked(error.to_string())))
}

/// Begins a pass. A sidecar's answer is never waited for here: the pass goes on in another task, and
/// the node counts as busy until it ends.
async fn begin(node: Arc<Guarded>, seat: Seat, context: Arc<Context>) -> Result<Action, Error> {
    match contained(Box::pin(look(&node, seat.key(), &context))).await {
        Ok(Went::Sidecar(run, request)) => {
            tokio::spawn(go_on(run, request, seat));
            Ok(Action::await_change())
        }
        Ok(Went::Ended(pause)) => {
            context.ledger.looked_at(seat.key(), &context, true);
            Ok(settle(&context, seat, pause))
        }
        Err(error) => {
            context.ledger.looked_at(seat.key(), &context, false);
            leave(&context, seat);
            Err(error)
        }
    }
}

/// A panic over one node is a failed look at that node. Without this it would end the operator, or
/// leave the node busy for ever.
async fn contained<T>(look: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let looked = AssertUnwindSafe(look).catch_unwind().await;
    looked.unwrap_or_else(|panic| Err(Error::Panicked(words_of(panic.as_ref()))))
}

fn words_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("it says nothing").to_owned()
}

/// Ends a pass; whoever asked meanwhile gets another look at once.
fn settle(context: &Context, seat: Seat, pause: Option<Duration>) -> Action {
    context.desks.with(seat.key(), |desk| desk.failures = 0);
    let again = if leave(context, seat) { Some(Duration::ZERO) } else { pause };
    again.map_or_else(Action::await_change, Action::requeue)
}

/// Leaves a node's desk; true if another pass is due at once. A node that went meanwhile was
/// spared while the pass was under way.
fn leave(context: &Context, seat: Seat) -> bool {
    let key = seat.key().clone();
    let again = seat.leave();
    context.forget_if_gone(&key);
    again
}

/// Goes on with a pass that needs the sidecar, outside of the limited number of reconciles.
async fn go_on(run: Box<Run>, request: Box<Request>, seat: Seat) {
    let (context, key) = (run.context.clone(), run.key.clone());
    let ended = contained(Box::pin(run.through(request))).await;
    context.ledger.looked_at(&key, &context, ended.is_ok());
    let pause = match ended {
        Ok(pause) => {
            context.desks.with(&key, |desk| desk.failures = 0);
            pause
        }
        Err(error) => {
            tracing::warn!(node = %name(&key), %error, "a look failed");
            context.metrics.error(error.category());
            Some(context.desks.back_off(&key))
        }
    };
    let again = if leave(&context, seat) { Some(Duration::ZERO) } else { pause };
    let pass = context.desks.passes(&key);
    if let Some(pause) = again {
        tokio::time::sleep(pause).await;
        if context.desks.passes(&key) == pass {
            context.wake.node(&key);
        }
    }
}

fn name(key: &NodeKey) -> String {
    format!("{}/{}", key.0, key.1)
}

async fn look(cached: &Guarded, key: &NodeKey, context: &Arc<Context>) -> Result<Went, Error> {
    let cached = cached.0.as_ref().map_err(|one| Error::Undecodable(one.error.clone()))?;
    let own = context.desks.with(key, |desk| desk.latest.clone());
    let node = newest(cached, own.as_ref()).clone();
    if node.metadata.deletion_timestamp.is_some() {
        return finalize::finalize(&node, key, context).await.map(Went::Ended);
    }
    context.metrics.observe(&node);
    let node = match ensure_finalizer(node, key, context).await {
        Ok(node) => node,
        Err(Failure::Conflict(_) | Failure::NotFound) => {
            return Ok(Went::Ended(Some(overtaken(key, context).await)));
        }
        Err(failure) => return Err(Error::Call(failure)),
    };
    Box::pin(Run::begin(node, key, context)).await.drive().await
}

/// Our finalizer, by a patch of the metadata alone: a write of the whole object would drop fields
/// that this operator does not know.
async fn ensure_finalizer(
    node: SeiNode,
    key: &NodeKey,
    context: &Context,
) -> Result<SeiNode, Failure> {
    if node.finalizers().iter().any(|one| one == NODE_FINALIZER) {
        return Ok(node);
    }
    let mut finalizers = node.finalizers().to_vec();
    finalizers.push(NODE_FINALIZER.to_owned());
    let patch = json!({ "metadata": {
        "resourceVersion": node.resource_version(),
        "finalizers": finalizers,
    }});
    let nodes: Api<SeiNode> = Api::namespaced(context.client.clone(), &key.0);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    let patched = call("patch finalizers", nodes.patch(&key.1, &params, &patch)).await?;
    context.desks.with(key, |desk| desk.latest = Some(patched.clone()));
    Ok(patched)
}

/// Ends a pass because somebody wrote the node meanwhile, and says when to look again. The watch
/// tells what was written. One that has not by the next time may be silent for minutes: then the
/// server is asked.
pub(crate) async fn overtaken(key: &NodeKey, context: &Context) -> Duration {
    let pause = context.desks.with(key, Desk::overtake);
    if context.desks.with(key, |desk| desk.overtaken) > 1 {
        let nodes: Api<SeiNode> = Api::namespaced(context.client.clone(), &key.0);
        if let Ok(live) = call("get seinode", nodes.get(&key.1)).await {
            context.desks.with(key, |desk| desk.latest = Some(live));
        }
    }
    pause
}

impl Run {
    async fn begin(node: SeiNode, key: &NodeKey, context: &Arc<Context>) -> Box<Self> {
        let stored = node.status.clone().unwrap_or_default();
        let (carried, delete_conflicts) = context.desks.with(key, |desk| {
            let carried = desk.carried.take().filter(|carried| carried.stored == stored);
            (carried, desk.delete_conflicts)
        });
        let carried_since = carried.as_ref().map(|carried| carried.since);
        let status = carried.map_or_else(|| stored.clone(), |carried| carried.status);
        let cluster = Cluster::new(context.client.clone(), context.sidecar.clone(), &key.0, &key.1);
        let seen = observe::observe(&node, status, key, context, &cluster).await;
        let rendered = seen.observation.desired.as_ref().ok().map(|one| one.statefulset.clone());
        let pass = Pass::resume(seen.observation, stored.clone(), seen.others, delete_conflicts);
        Box::new(Self {
            context: context.clone(),
            key: key.clone(),
            node,
            stored,
            pass,
            cluster,
            rendered,
            carried_since,
        })
    }

    /// Makes this call to the sidecar and all that follow from it, up to the end of the pass.
    async fn through(
        mut self: Box<Self>,
        mut request: Box<Request>,
    ) -> Result<Option<Duration>, Error> {
        loop {
            let outcome = self.cluster.perform(&request).await;
            self.pass.tell(outcome);
            (self, request) = match self.drive().await? {
                Went::Sidecar(run, request) => (run, request),
                Went::Ended(pause) => return Ok(pause),
            };
        }
    }

    /// Performs what the pass asks for, up to its end or its next call to a sidecar.
    async fn drive(mut self: Box<Self>) -> Result<Went, Error> {
        loop {
            match self.pass.ask() {
                Ask::Perform(request) if matches!(*request, Request::Sidecar(_)) => {
                    return Ok(Went::Sidecar(self, request));
                }
                Ask::Perform(request) => {
                    let outcome = self.perform(&request).await;
                    self.pass.tell(outcome);
                }
                Ask::Judge { pod_uid } => self.judge(pod_uid).await,
                Ask::Slot => {
                    let slot = self.context.ledger.ask(&self.node, &self.key, &self.context);
                    self.pass.tell_slot(slot);
                }
                Ask::Write(status) => {
                    if !self.write(*status).await? {
                        return Ok(Went::Ended(Some(overtaken(&self.key, &self.context).await)));
                    }
                }
                Ask::End(ending) => return Ok(Went::Ended(self.end(&ending))),
            }
        }
    }

    async fn perform(&self, request: &Request) -> Outcome {
        if !self.pass.must_be_alone(request) {
            return self.cluster.perform(request).await;
        }
        let exclusive = sei_plan::signers::is_exclusive(&self.node);
        // Held until the write is made, so that of two only one is let through.
        let _alone = if exclusive { Some(self.context.signing.lock().await) } else { None };
        let allowed = match self.still_desired().await {
            Ok(live) if exclusive => signers::ensure_alone(&live, &self.context).await,
            other => other.map(drop),
        };
        match allowed {
            Ok(()) => self.cluster.perform(request).await,
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Nothing is started for a node that is gone, going, another one of the same name, or desired
    /// otherwise by now: stopped, or with another key.
    async fn still_desired(&self) -> Result<SeiNode, Failure> {
        let nodes: Api<SeiNode> = Api::namespaced(self.context.client.clone(), &self.key.0);
        let found = find("get seinode", nodes.get(&self.key.1)).await?;
        let then = &self.node.metadata;
        let is_same = |now: &SeiNode| {
            now.metadata.uid == then.uid && now.metadata.deletion_timestamp.is_none()
        };
        let Some(live) = found.filter(is_same) else {
            return Err(Failure::Indeterminate("the node was deleted meanwhile".to_owned()));
        };
        if live.metadata.generation != then.generation {
            return Err(Failure::Indeterminate("the node was edited meanwhile".to_owned()));
        }
        Ok(live)
    }

    async fn judge(&mut self, pod_uid: String) {
        let pods = self.context.caches.pods.of(&self.key);
        let pod = pods.iter().find(|pod| pod.uid == pod_uid);
        let (Some(pod), Some(rendered)) = (pod, &self.rendered) else {
            return self.pass.judgement_failed(pod_uid, &Failure::NotFound);
        };
        match judge::judge(&self.context.client, &self.key.0, rendered, pod).await {
            Ok(comparison) => self.pass.tell_judgement(pod_uid, comparison),
            Err(failure) => self.pass.judgement_failed(pod_uid, &failure),
        }
    }

    /// Writes the status, or holds back what is only progress. False: somebody was faster, and all
    /// has to be looked at again.
    async fn write(&mut self, status: SeiNodeStatus) -> Result<bool, Error> {
        let since = self.carried_since.unwrap_or_else(Instant::now);
        if is_deferrable(&self.stored, &status) && since.elapsed() < CARRY_MAX {
            let carried = Carried { stored: self.stored.clone(), status, since };
            self.context.desks.with(&self.key, |desk| desk.carried = Some(carried));
            self.carried_since = Some(since);
            return Ok(true);
        }
        self.carried_since = None;
        let nodes: Api<SeiNode> = Api::namespaced(self.context.client.clone(), &self.key.0);
        match write_status(&nodes, &self.node, &status).await {
            Ok(written) => {
                if let Some(written) = written {
                    self.context.desks.with(&self.key, |desk| desk.latest = Some(written));
                    self.note_change(&status);
                }
                Ok(true)
            }
            Err(WriteError::Stale) => Ok(false),
            Err(WriteError::Pruned(field)) => Err(Error::SchemaTooOld(field)),
            Err(WriteError::Call(failure)) => Err(Error::Call(failure)),
        }
    }

    /// Tells people and metrics what was just stored.
    fn note_change(&self, status: &SeiNodeStatus) {
        let now = jiff::Timestamp::now();
        self.context.metrics.transition(&self.node, &self.stored, status, now);
        self.context.events.status_changed(&self.node, &self.stored, status);
    }

    fn end(&self, ending: &Ending) -> Option<Duration> {
        let conflicts = self.pass.delete_conflicts();
        self.context.desks.with(&self.key, |desk| {
            desk.delete_conflicts = conflicts;
            desk.overtaken = 0;
        });
        if self.pass.opened_gate() {
            observe::gate_opened(&self.context, &self.key);
        }
        let report: Vec<String> = ending.report.iter().map(ToString::to_string).collect();
        let waits = ending.waiting.as_ref().map(|one| one.message.as_str()).unwrap_or_default();
        tracing::debug!(node = %name(&self.key), report = %report.join("; "), waits, "looked");
        let carried = self.carried_since.map(|_| CARRY_MAX);
        ending.wake.into_iter().chain(carried).min()
    }
}

/// After a failed look: again, later each time.
#[expect(clippy::needless_pass_by_value, reason = "the controller hands them over like this")]
pub fn on_error(node: Arc<Guarded>, error: &Error, context: Arc<Context>) -> Action {
    let (namespace, name) = match &node.0 {
        Ok(node) => (node.namespace().unwrap_or_default(), node.name_any()),
        Err(invalid) => (
            invalid.metadata.namespace.clone().unwrap_or_default(),
            invalid.metadata.name.clone().unwrap_or_default(),
        ),
    };
    tracing::warn!(node = %format!("{namespace}/{name}"), %error, "a look failed");
    context.metrics.error(error.category());
    let key = (namespace, name);
    let pause = context.desks.back_off(&key);
    context.forget_if_gone(&key);
    Action::requeue(pause)
}

#[cfg(test)]
mod tests;
