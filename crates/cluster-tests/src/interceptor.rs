//! An interceptor between an operator and the API server, for tests that block the operator after a
//! chosen write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::future::{self, BoxFuture};
use http::{Method, Request, Response};
use kube::client::Body;
use tokio::sync::watch;
use tower::Service;

/// Whether the operator receives the response to the write after which it is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastResponse {
    /// The server has stored the write, and the operator gets no response.
    Lost,
    /// The operator gets the response, and its next requests are blocked.
    Delivered,
}

/// Passes requests to the server, and can block all of them after a write. Only stored writes
/// count: refused requests and dry runs do not.
#[derive(Clone, Debug)]
pub struct Interceptor {
    last_response: LastResponse,
    /// Requests that never get a response.
    is_unanswered: fn(&Request<Body>) -> bool,
    state: Arc<watch::Sender<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// Requests are blocked after the first write that is none of these; `None` blocks nothing.
    allowed: Option<BTreeSet<Write>>,
    /// How many writes of each kind were made since `allowed` was set.
    counts: BTreeMap<String, usize>,
    /// The write after which requests are blocked.
    blocked_after: Option<Write>,
}

/// A kind of write, as `VERB resource`, and its ordinal among the writes of that kind.
pub type Write = (String, usize);

impl Interceptor {
    /// An interceptor that passes everything.
    pub fn new(last_response: LastResponse) -> Self {
        Self { last_response, is_unanswered: |_| false, state: Arc::default() }
    }

    /// An interceptor that never answers these requests and passes all others.
    pub fn never_answering(is_unanswered: fn(&Request<Body>) -> bool) -> Self {
        Self { is_unanswered, ..Self::new(LastResponse::Delivered) }
    }

    /// From now on, blocks all requests after the first write that is none of these.
    pub fn block_after_write_not_in(&self, allowed: &BTreeSet<Write>) {
        let allowed = Some(allowed.clone());
        self.state.send_replace(State { allowed, ..State::default() });
    }

    /// Waits until requests are blocked, and returns the write before that.
    pub async fn blocked(&self) -> Write {
        let mut state = self.state.subscribe();
        // `self` keeps the sender alive, so the wait cannot fail.
        let blocked = state.wait_for(|state| state.blocked_after.is_some()).await;
        blocked.ok().and_then(|state| state.blocked_after.clone()).unwrap_or_default()
    }

    /// Passes everything again, including the requests that are blocked now.
    pub fn unblock(&self) {
        self.state.send_replace(State::default());
    }

    /// Waits until requests are not blocked.
    async fn until_unblocked(&self) {
        let mut state = self.state.subscribe();
        let _ = state.wait_for(|state| state.blocked_after.is_none()).await;
    }

    fn record_write(&self, kind: String) {
        self.state.send_modify(|state| {
            let count = state.counts.entry(kind.clone()).or_default();
            *count += 1;
            let write = (kind, *count);
            let is_new = state.allowed.as_ref().is_some_and(|allowed| !allowed.contains(&write));
            if state.blocked_after.is_none() && is_new {
                state.blocked_after = Some(write);
            }
        });
    }

    /// Wraps a client's service.
    pub fn wrap<S>(self, inner: S) -> Intercepted<S> {
        Intercepted { inner, interceptor: self }
    }
}

/// A client's service behind an interceptor.
pub struct Intercepted<S> {
    inner: S,
    interceptor: Interceptor,
}

impl<S, B> Service<Request<Body>> for Intercepted<S>
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
        let is_unanswered = (self.interceptor.is_unanswered)(&request);
        let kind = kind(&request);
        let interceptor = self.interceptor.clone();
        // The request is not sent before the future is polled.
        let response = self.inner.call(request);
        Box::pin(async move {
            if is_unanswered {
                future::pending::<()>().await;
            }
            interceptor.until_unblocked().await;
            let response = response.await?;
            if let Some(kind) = kind.filter(|_| response.status().is_success()) {
                interceptor.record_write(kind);
                if interceptor.last_response == LastResponse::Lost {
                    interceptor.until_unblocked().await;
                }
            }
            Ok(response)
        })
    }
}

/// The kind of write that a request is, if the server would store something for it.
fn kind(request: &Request<Body>) -> Option<String> {
    let is_read = request.method() == Method::GET;
    let is_dry_run = request.uri().query().is_some_and(|query| query.contains("dryRun="));
    if is_read || is_dry_run {
        return None;
    }
    // An operator under test writes namespaced objects only.
    let path = request.uri().path().split('/');
    let mut path = path.skip_while(|part| *part != "namespaces").skip(2);
    let (resource, subresource) = (path.next().unwrap_or_default(), path.nth(1));
    let subresource = subresource.map(|name| format!("/{name}")).unwrap_or_default();
    Some(format!("{} {resource}{subresource}", request.method()))
}
