//! An API server in memory, with a StatefulSet controller and the kubelet of `sei-rig`.
//!
//! It runs on a thread and a runtime of its own. Clients send and receive bytes over channels, so
//! that encoding and storing objects is never counted as work of the thread that a client runs on.

mod answer;
mod fields;
mod statefulset;
mod store;

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _};
use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Either, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use sei_operator::runtime::metrics::Metrics;
use sei_rig::{Addresses, Kubelet, Timing};
use tokio::sync::{mpsc, oneshot};
use tower::Layer as _;

pub use store::{Key, Store};

/// How fast the kubelet works: the time that pods take is not what is measured.
const KUBELET: Timing = Timing {
    start: Duration::from_millis(20),
    stop: Duration::from_millis(10),
    pull: Duration::from_millis(10),
    run: Duration::from_millis(10),
    back_off: Duration::from_millis(50),
};

/// A request as it crosses the channel.
struct Call {
    origin: Origin,
    method: Method,
    uri: Uri,
    is_apply: bool,
    body: Bytes,
    reply: oneshot::Sender<Reply>,
}

/// Where a request comes from. Only those of the operator are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Operator,
    Kubelet,
}

/// An answer as it crosses the channel.
struct Reply {
    status: StatusCode,
    body: ReplyBody,
}

enum ReplyBody {
    Whole(Bytes),
    /// One JSON line for each event.
    Watch(mpsc::UnboundedReceiver<Bytes>),
}

/// A running server. It stops when it is dropped.
pub struct Server {
    store: Arc<Mutex<Store>>,
    calls: mpsc::UnboundedSender<Call>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server and its kubelet on a new thread.
    pub fn start() -> Result<Self> {
        let (calls, received) = mpsc::unbounded_channel();
        let (stop, stopped) = oneshot::channel();
        let store = Arc::new(Mutex::new(Store::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let addresses = Addresses::lock().context("failed to lock addresses for pods")?;
        let (served, own_calls) = (store.clone(), calls.clone());
        let thread =
            std::thread::Builder::new().name("api-server".to_owned()).spawn(move || {
                runtime.block_on(async {
                    let client = client(Origin::Kubelet, own_calls);
                    let _kubelet = Kubelet::start_with(client, addresses, KUBELET);
                    tokio::select! {
                        () = serve(&served, received) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self { store, calls, stop: Some(stop), thread: Some(thread) })
    }

    /// A client whose requests are counted as the operator's, also in these metrics. Needs a runtime.
    pub fn client(&self, metrics: &Metrics) -> Client {
        let connection = Connection { origin: Origin::Operator, calls: self.calls.clone() };
        Client::new(metrics.count_requests().layer(connection), "default")
    }

    /// The objects. The server answers no request while the guard is held.
    pub fn store(&self) -> MutexGuard<'_, Store> {
        lock(&self.store)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread may have ended by a panic.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn client(origin: Origin, calls: mpsc::UnboundedSender<Call>) -> Client {
    Client::new(Connection { origin, calls }, "default")
}

/// Answers calls in the order in which they arrive.
async fn serve(store: &Mutex<Store>, mut calls: mpsc::UnboundedReceiver<Call>) {
    // Without its sender a call would fail.
    let mut unanswered = Vec::new();
    while let Some(call) = calls.recv().await {
        let Call { origin, method, uri, is_apply, body, reply } = call;
        let request = answer::Request::read(origin, &method, &uri, is_apply, &body);
        let mut store = lock(store);
        if store.leaves_unanswered(&request) {
            unanswered.push(reply);
            continue;
        }
        let answer = store.answer(&request);
        // The caller may have given up.
        let _ = reply.send(answer);
    }
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The client's end of the channel, as the service that a client is made of.
#[derive(Clone)]
struct Connection {
    origin: Origin,
    calls: mpsc::UnboundedSender<Call>,
}

type Frames = BoxStream<'static, Result<Frame<Bytes>, Infallible>>;
type AnswerBody = Either<Full<Bytes>, StreamBody<Frames>>;
type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Self { origin, calls } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let content = parts.headers.get(http::header::CONTENT_TYPE);
            let is_apply = content.is_some_and(|value| value == "application/apply-patch+yaml");
            let (reply, answered) = oneshot::channel();
            let (method, uri) = (parts.method, parts.uri);
            calls.send(Call { origin, method, uri, is_apply, body, reply })?;
            let Reply { status, body } = answered.await?;
            let body = match body {
                ReplyBody::Whole(bytes) => Either::Left(Full::new(bytes)),
                ReplyBody::Watch(lines) => Either::Right(StreamBody::new(frames(lines))),
            };
            let mut response = Response::new(body);
            *response.status_mut() = status;
            Ok(response)
        })
    }
}

/// The most that a TLS connection delivers at once. The client's buffer grows with what it is given.
const FRAME: usize = 16 * 1024;

fn frames(lines: mpsc::UnboundedReceiver<Bytes>) -> Frames {
    let next = |(mut lines, mut rest): (mpsc::UnboundedReceiver<Bytes>, Bytes)| async {
        if rest.is_empty() {
            rest = lines.recv().await?;
        }
        let frame = rest.split_to(rest.len().min(FRAME));
        Some((Ok(Frame::data(frame)), (lines, rest)))
    };
    stream::unfold((lines, Bytes::new()), next).boxed()
}
