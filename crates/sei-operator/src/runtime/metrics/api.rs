//! Requests to the API server, counted between the client and its connection.
//!
//! A request is counted without an allocation: its labels are texts of the table of permissions and
//! numbers, never names of objects.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Method, Request, Response, Uri};
use hyper::body::{Body, Bytes, Frame, SizeHint};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, LabelValueEncoder,
};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use sei_api::metric;
use sei_api::rbac::{LEADER_RULES, METRICS_RULES, RULES, Rule, SIDECAR_TOKEN_RULES};
use tokio::time::Instant;
use tower::{Layer, Service};

use super::{Buckets, gauge_family};

const BUCKETS: [f64; 8] = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0];

/// The label of what is in no table.
const OTHER: &str = "other";

const WATCH: &str = "watch";

/// What is counted of requests.
#[derive(Clone, Debug)]
pub(super) struct ApiMetrics {
    pub(super) requests: Family<RequestLabels, Counter>,
    pub(super) durations: Family<VerbLabels, Histogram, Buckets>,
    pub(super) watches: Arc<Watches>,
}

impl Default for ApiMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            durations: Family::new_with_constructor(Buckets(&BUCKETS)),
            watches: Arc::default(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RequestLabels {
    verb: &'static str,
    resource: &'static str,
    code: Code,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VerbLabels {
    verb: &'static str,
}

/// The status of a response; `None` if there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Code(Option<u16>);

impl EncodeLabelValue for Code {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), fmt::Error> {
        match self.0 {
            Some(code) => write!(encoder, "{code}"),
            None => encoder.write_str("none"),
        }
    }
}

/// Verb and resource of a request, as in a permission.
fn classified(method: &Method, uri: &Uri) -> (&'static str, &'static str) {
    let mut path = uri.path().split('/').filter(|part| !part.is_empty());
    // After the version, and for named groups after the group.
    let begin = match path.next() {
        Some("api") => path.next(),
        Some("apis") => path.next().and_then(|_| path.next()),
        _ => None,
    };
    let mut path = begin.map(|_| path).into_iter().flatten().peekable();
    let mut resource = path.next().unwrap_or_default();
    let mut name = path.next();
    // The path of a Namespace itself ends here.
    if resource == "namespaces" && path.peek().is_some() {
        resource = path.next().unwrap_or_default();
        name = path.next();
    }
    let subresource = path.next();
    let is_watch = || uri.query().is_some_and(|query| query.contains("watch=true"));
    let verb = match (method.as_str(), name) {
        ("GET", Some(_)) => "get",
        ("GET", None) if is_watch() => WATCH,
        ("GET", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        ("DELETE", None) => "deletecollection",
        _ => OTHER,
    };
    (verb, known_resource(resource, subresource))
}

fn known_resource(resource: &str, subresource: Option<&str>) -> &'static str {
    let is_it = |rule: &&Rule| match rule.resource.split_once('/') {
        Some((known, of)) => known == resource && Some(of) == subresource,
        None => rule.resource == resource && subresource.is_none(),
    };
    let mut rules = [RULES, LEADER_RULES, SIDECAR_TOKEN_RULES, METRICS_RULES].into_iter().flatten();
    rules.find(is_it).map_or(OTHER, |rule| rule.resource)
}

/// What a watch selects: its path and selectors. The rest of the query differs each time it is opened.
fn selection(uri: &Uri) -> String {
    let query = uri.query().unwrap_or_default().split('&');
    let selectors = query.filter(|part| {
        ["labelSelector=", "fieldSelector="].iter().any(|selector| part.starts_with(selector))
    });
    std::iter::once(uri.path()).chain(selectors).collect()
}

/// When each watch last received something, by resource and selection.
#[derive(Debug)]
pub(super) struct Watches {
    begin: Instant,
    received: Mutex<BTreeMap<(&'static str, String), Arc<AtomicU64>>>,
}

impl Default for Watches {
    fn default() -> Self {
        Self { begin: Instant::now(), received: Mutex::default() }
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(&'static str, String), Arc<AtomicU64>>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A watch was opened, for the first time or again.
    fn opened(self: &Arc<Self>, resource: &'static str, selection: String) -> Watch {
        let received = self.lock().entry((resource, selection)).or_default().clone();
        let watch = Watch { watches: self.clone(), received };
        watch.receive();
        watch
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Of several watches of a resource, the one that is silent for the longest time.
    fn ages(&self) -> BTreeMap<&'static str, Duration> {
        let now = self.now();
        let mut ages = BTreeMap::new();
        for ((resource, _), received) in self.lock().iter() {
            let age = now.saturating_sub(received.load(Ordering::Relaxed));
            let age = Duration::from_millis(age);
            let oldest: &mut Duration = ages.entry(*resource).or_default();
            *oldest = age.max(*oldest);
        }
        ages
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let mut family = gauge_family(&mut encoder, &metric::WATCH_AGE)?;
        for (resource, age) in self.ages() {
            family.encode_family(&[("resource", resource)])?.encode_gauge(&age.as_secs_f64())?;
        }
        Ok(())
    }
}

/// An open watch.
#[derive(Debug)]
struct Watch {
    watches: Arc<Watches>,
    received: Arc<AtomicU64>,
}

impl Watch {
    fn receive(&self) {
        self.received.store(self.watches.now(), Ordering::Relaxed);
    }
}

/// Counts the requests of a client.
#[derive(Clone, Debug)]
pub struct CountRequests(pub(super) ApiMetrics);

impl<S> Layer<S> for CountRequests {
    type Service = Counting<S>;

    fn layer(&self, inner: S) -> Counting<S> {
        Counting { inner, metrics: self.0.clone() }
    }
}

/// A client's service whose requests are counted.
#[derive(Clone, Debug)]
pub struct Counting<S> {
    inner: S,
    metrics: ApiMetrics,
}

impl<S, B, Q> Service<Request<Q>> for Counting<S>
where
    S: Service<Request<Q>, Response = Response<B>>,
    S::Future: Unpin,
{
    type Response = Response<CountedBody<B>>;
    type Error = S::Error;
    type Future = CountedResponse<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (verb, resource) = classified(request.method(), request.uri());
        let watched = (verb == WATCH).then(|| selection(request.uri()));
        let metrics = self.metrics.clone();
        let call = Call { metrics, verb, resource, watched, begun: Instant::now(), code: None };
        CountedResponse { inner: self.inner.call(request), call: Some(call) }
    }
}

/// A request that is counted when it is dropped: one that its caller gives up counts too.
#[derive(Debug)]
struct Call {
    metrics: ApiMetrics,
    verb: &'static str,
    resource: &'static str,
    /// The selection of a watch.
    watched: Option<String>,
    begun: Instant,
    code: Option<u16>,
}

impl Drop for Call {
    fn drop(&mut self) {
        let Self { verb, resource, .. } = *self;
        let labels = RequestLabels { verb, resource, code: Code(self.code) };
        self.metrics.requests.get_or_create(&labels).inc();
        let seconds = self.begun.elapsed().as_secs_f64();
        self.metrics.durations.get_or_create(&VerbLabels { verb }).observe(seconds);
    }
}

/// A response that is being waited for.
#[derive(Debug)]
pub struct CountedResponse<F> {
    inner: F,
    call: Option<Call>,
}

impl<F, B, E> Future for CountedResponse<F>
where
    F: Future<Output = Result<Response<B>, E>> + Unpin,
{
    type Output = Result<Response<CountedBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let result = ready!(Pin::new(&mut self.inner).poll(context));
        let call = self.call.take();
        Poll::Ready(result.map(|response| {
            let watch = call.and_then(|mut call| {
                call.code = Some(response.status().as_u16());
                let watched = call.watched.take().filter(|_| response.status().is_success())?;
                Some(call.metrics.watches.opened(call.resource, watched))
            });
            response.map(|inner| CountedBody { inner, watch })
        }))
    }
}

/// The body of a response. Each part of a watch resets its age: events and bookmarks.
#[derive(Debug)]
pub struct CountedBody<B> {
    inner: B,
    watch: Option<Watch>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for CountedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(context));
        if let (Some(Ok(_)), Some(watch)) = (&frame, &self.watch) {
            watch.receive();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_classified_as_the_permission_that_it_needs() {
        for (method, uri, verb, resource) in [
            ("GET", "/api/v1/namespaces/ns/pods/a-0", "get", "pods"),
            ("GET", "/api/v1/pods?&labelSelector=x", "list", "pods"),
            ("GET", "/api/v1/namespaces/ns/pods?&limit=25", "list", "pods"),
            (
                "GET",
                "/apis/apps/v1/statefulsets?&watch=true&timeoutSeconds=290",
                "watch",
                "statefulsets",
            ),
            ("GET", "/apis/sei.io/v1alpha1/namespaces/ns/seinodes?watch=true", "watch", "seinodes"),
            (
                "PATCH",
                "/apis/sei.io/v1alpha1/namespaces/ns/seinodes/a/status?",
                "patch",
                "seinodes/status",
            ),
            (
                "POST",
                "/api/v1/namespaces/ns/serviceaccounts/c/token",
                "create",
                "serviceaccounts/token",
            ),
            ("POST", "/apis/events.k8s.io/v1/namespaces/ns/events", "create", "events"),
            ("PUT", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l", "update", "leases"),
            ("DELETE", "/api/v1/namespaces/ns/pods/a-0", "delete", "pods"),
            ("DELETE", "/api/v1/namespaces/ns/pods", "deletecollection", "pods"),
            ("GET", "/api/v1/persistentvolumes/v", "get", "persistentvolumes"),
            ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", "create", "tokenreviews"),
            // What is in no permission has no label of its own.
            ("GET", "/api/v1/namespaces/ns/pods/a-0/log", "get", "other"),
            ("GET", "/api/v1/namespaces/ns", "get", "other"),
            ("GET", "/apis/example.org/v1/namespaces/ns/things/x", "get", "other"),
            ("GET", "/version", "list", "other"),
            ("OPTIONS", "/", "other", "other"),
        ] {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(classified(&method, &uri.parse().unwrap()), (verb, resource), "{uri}");
        }
    }
}
