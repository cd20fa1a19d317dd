//! What lies between an operator and its server, for tests that stop it at a chosen write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{self, BoxFuture};
use http::{Method, Request, Response};
use kube::client::Body;
use tokio::sync::watch;
use tower::Service;

/// Whether the operator learns of the write that it is stopped after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The server has done it, and nobody is told.
    Lost,
    /// The operator is told, and asks for nothing any more.
    Given,
}

/// A line to the server that can be told to stop after a write. A write is what the server has
/// done: what it refused and what it only tried does not count.
#[derive(Clone, Debug)]
pub struct Wire {
    answer: Answer,
    /// Requests that nobody ever answers.
    unheard: fn(&Request<Body>) -> bool,
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// It stops after the first write that is none of these.
    passing: Option<BTreeSet<Write>>,
    /// How many of each kind were made since then.
    made: BTreeMap<String, usize>,
    /// The write that it stopped after.
    stopped: Option<Write>,
}

/// A kind of write, as `VERB resource`, and the how manyth of its kind it is.
pub type Write = (String, usize);

impl Wire {
    /// One that lets everything through.
    pub fn new(answer: Answer) -> Self {
        Self { answer, unheard: |_| false, state: Arc::default() }
    }

    /// One on which these requests are never answered, and all others are.
    pub fn deaf_to(unheard: fn(&Request<Body>) -> bool) -> Self {
        Self { unheard, ..Self::new(Answer::Given) }
    }

    /// From now on, stops after the first write that is none of these.
    pub fn stop_after_others_than(&self, passing: &BTreeSet<Write>) {
        let passing = Some(passing.clone());
        self.state.send_replace(State { passing, ..State::default() });
    }

    /// Waits until it has stopped, and returns after what.
    pub async fn stopped(&self) -> Write {
        let mut state = self.state.subscribe();
        // The sender lives as long as we do.
        let stopped = state.wait_for(|state| state.stopped.is_some()).await;
        stopped.ok().and_then(|state| state.stopped.clone()).unwrap_or_default()
    }

    /// Lets everything through, also what waits.
    pub fn free(&self) {
        self.state.send_replace(State::default());
    }

    /// Waits until requests pass.
    async fn pass(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.stopped.is_none()).await;
    }

    fn note(&self, kind: String) {
        self.state.send_modify(|state| {
            let made = state.made.entry(kind.clone()).or_default();
            *made += 1;
            let write = (kind, *made);
            let passing = state.passing.as_ref();
            if state.stopped.is_none() && passing.is_some_and(|those| !those.contains(&write)) {
                state.stopped = Some(write);
            }
        });
    }

    /// Puts itself around a client's service.
    pub fn around<S>(self, inner: S) -> Wired<S> {
        Wired { inner, wire: self }
    }
}

/// A client's service with a wire around it.
pub struct Wired<S> {
    inner: S,
    wire: Wire,
}

impl<S, B> Service<Request<Body>> for Wired<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
    B: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_unheard = (self.wire.unheard)(&request);
        let kind = kind(&request);
        let wire = self.wire.clone();
        // Nothing is sent before it is polled.
        let answered = self.inner.call(request);
        Box::pin(async move {
            if is_unheard {
                future::pending::<()>().await;
            }
            wire.pass().await;
            let answer = answered.await?;
            if let Some(kind) = kind.filter(|_| answer.status().is_success()) {
                wire.note(kind);
                if wire.answer == Answer::Lost {
                    wire.pass().await;
                }
            }
            Ok(answer)
        })
    }
}

/// The kind of write that a request is, if the server would store something because of it.
fn kind(request: &Request<Body>) -> Option<String> {
    let is_read = request.method() == Method::GET;
    let is_trial = request.uri().query().is_some_and(|query| query.contains("dryRun="));
    if is_read || is_trial {
        return None;
    }
    // Everything that an operator of a test writes is in a namespace.
    let path = request.uri().path().split('/');
    let mut path = path.skip_while(|part| *part != "namespaces").skip(2);
    let (resource, subresource) = (path.next().unwrap_or_default(), path.nth(1));
    let subresource = subresource.map(|one| format!("/{one}")).unwrap_or_default();
    Some(format!("{} {resource}{subresource}", request.method()))
}
