//! The reconcile loop on two small kinds, against a server that is a function.

use std::collections::BTreeMap;
use std::future::Future;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt as _;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::client::Body;
use kube::{Client, Resource as _, ResourceExt as _};
use sei_api::key::ObjectKey;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, mpsc, watch};

use super::controller::{self, Error, InFlight, Kind, Permit, Reconcile, Runtime, Source};
use super::metrics::Metrics;
use super::serve;

/// A server that lists these objects of every kind and reports no change.
fn server(names: &'static [&'static str]) -> Client {
    server_of(list(names))
}

fn server_of(list: Value) -> Client {
    server_with(list, mpsc::unbounded_channel().1)
}

/// The first watch shows these events, and no watch ends.
fn server_with(list: Value, events: mpsc::UnboundedReceiver<String>) -> Client {
    let list = Arc::new(list);
    let events = Arc::new(Mutex::new(Some(events)));
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (list, events) = (list.clone(), events.clone());
        async move {
            let uri = request.uri().to_string();
            let body = if uri.contains("watch=true") {
                let events = events.lock().unwrap().take();
                let shown = futures::stream::unfold(events, |events| async {
                    let mut events = events?;
                    let event = events.recv().await?;
                    let frame = Frame::data(Bytes::from(format!("{event}\n")));
                    Some((Ok::<_, std::io::Error>(frame), Some(events)))
                });
                BodyExt::boxed(StreamBody::new(shown.chain(futures::stream::pending())))
            } else {
                let list = Bytes::from(list.to_string());
                Full::new(list).map_err(|never| match never {}).boxed()
            };
            Ok::<_, std::io::Error>(http::Response::new(body))
        }
    });
    Client::new(service, "default")
}

fn list(names: &[&str]) -> Value {
    let items: Vec<Value> = names
        .iter()
        .map(|name| {
            json!({ "metadata": { "name": name, "namespace": "ns", "uid": name,
                                          "resourceVersion": "1" } })
        })
        .collect();
    json!({ "metadata": { "resourceVersion": "1" }, "items": items })
}

/// Runs the test's `work` for every object, and counts.
struct Probe<K, F> {
    work: F,
    /// It works with its permit, and does not release it as for a sidecar.
    keeps_permit: bool,
    running: Mutex<BTreeMap<ObjectKey, usize>>,
    /// The versions that reconciles began with.
    versions: Mutex<Vec<Option<String>>>,
    started: AtomicUsize,
    ended: AtomicUsize,
    changed: Notify,
    kind: std::marker::PhantomData<fn() -> K>,
}

impl<K: Kind, F> Probe<K, F> {
    fn new(work: F) -> Arc<Self> {
        Arc::new(Self::of(work, false))
    }

    fn of(work: F, keeps_permit: bool) -> Self {
        Self {
            work,
            keeps_permit,
            running: Mutex::default(),
            versions: Mutex::default(),
            started: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            changed: Notify::new(),
            kind: std::marker::PhantomData,
        }
    }

    async fn until(&self, is: impl Fn(usize, usize) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if is(self.started.load(Ordering::SeqCst), self.ended.load(Ordering::SeqCst)) {
                    return;
                }
                changed.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the expected reconciles");
    }
}

impl<K, F, W> Reconcile for Probe<K, F>
where
    K: Kind,
    F: Fn(String) -> W + Send + Sync + 'static,
    W: Future<Output = Option<Duration>> + Send,
{
    type Kind = K;

    async fn reconcile(
        self: &Arc<Self>,
        object: &sei_plan::shared::Shared<K>,
        permit: &mut Permit,
    ) -> Result<Option<Duration>, Error> {
        let key = ObjectKey::of(object.meta());
        let before = self.running.lock().unwrap().insert(key.clone(), 1);
        assert_eq!(before, None, "{key} is reconciled twice at once");
        self.versions.lock().unwrap().push(object.resource_version());
        self.started.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
        let work = (self.work)(object.name_any());
        let requeue = if self.keeps_permit { work.await } else { permit.outside(work).await };
        self.running.lock().unwrap().remove(&key);
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.changed.notify_waiters();
        Ok(requeue)
    }

    async fn read_partly(&self, key: &ObjectKey) -> Option<sei_plan::shared::Shared<K>> {
        let object = json!({ "metadata": { "name": key.name, "namespace": key.namespace } });
        serde_json::from_value(object).ok().map(sei_plan::shared::Shared::new)
    }

    fn finished(&self, _: &ObjectKey, _: bool) {
        self.changed.notify_waiters();
    }

    fn is_own_write(&self, _: &K) -> bool {
        false
    }

    fn sweep(&self) {}
}

/// A controller that runs.
struct Running {
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

fn start<R: Reconcile>(client: &Client, runtime: &Arc<Runtime>, reconciler: &Arc<R>) -> Running {
    let (stop, stopped) = watch::channel(false);
    let source = Source::start(client, &[], &runtime.metrics);
    let run = controller::run(runtime.clone(), reconciler.clone(), source, stopped);
    Running { stop, task: tokio::spawn(run) }
}

#[tokio::test]
async fn two_kinds_are_reconciled_side_by_side() {
    let client = server(&["a", "b"]);
    let runtime = Runtime::new(Metrics::new(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|_| async { None });
    let secrets = Probe::<Secret, _>::new(|_| async { None });
    let running = [start(&client, &runtime, &maps), start(&client, &runtime, &secrets)];
    maps.until(|_, ended| ended == 2).await;
    secrets.until(|_, ended| ended == 2).await;
    for controller in running {
        controller.stop.send_replace(true);
        controller.task.await.unwrap();
    }
    runtime.finish().await;
}

#[tokio::test]
async fn an_object_is_never_reconciled_twice_at_once() {
    let client = server(&["a"]);
    let runtime = Runtime::new(Metrics::new(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|_| async {
        tokio::time::sleep(Duration::from_millis(2)).await;
        Some(Duration::ZERO)
    });
    let source = Source::start(&client, &[], &runtime.metrics);
    let queue = source.queue();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(controller::run(runtime.clone(), maps.clone(), source, stopped));
    for round in 0..50 {
        queue.enqueue(&ObjectKey::new("ns", "a"));
        maps.until(|_, ended| ended > round).await;
    }
}

/// More objects than permits.
const NAMES: [&str; 40] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s",
    "t", "u", "v", "w", "x", "y", "z", "a1", "b1", "c1", "d1", "e1", "f1", "g1", "h1", "i1", "j1",
    "k1", "l1", "m1", "answers",
];

/// The value of a series of the controller of `ConfigMap`s, whose labels begin so.
fn counted<T: FromStr>(metrics: &Metrics, name: &str, labels: &str) -> Option<T> {
    let series = format!("sei_controller_{name}{{controller=\"configmap\"{labels}}} ");
    let text = metrics.encode();
    text.lines().find_map(|line| line.strip_prefix(&series))?.parse().ok()
}

#[tokio::test]
async fn the_metrics_show_what_waits_for_a_slot_what_is_in_flight_and_how_it_ended() {
    let client = server(&NAMES);
    let (metrics, in_flight) = (Metrics::new(), InFlight::default());
    let runtime = Runtime::new(metrics.clone(), in_flight);
    let (release, released) = watch::channel(false);
    let work = move |name: String| {
        let mut released = released.clone();
        async move {
            released.wait_for(|released| *released).await.unwrap();
            assert_ne!(name, "a", "a defect");
            (name == "b").then_some(Duration::from_secs(3600))
        }
    };
    let maps = Arc::new(Probe::<ConfigMap, _>::of(work, true));
    let _running = start(&client, &runtime, &maps);
    let gauges = || {
        ["queue_depth", "in_flight"]
            .map(|name| counted(&metrics, &format!("reconcile_{name}"), "").unwrap_or(-1))
    };
    let permits = controller::CONCURRENCY;
    let waiting = i64::try_from(NAMES.len() - permits).unwrap();
    until(|| gauges() == [waiting, 40]).await;
    assert_eq!(maps.started.load(Ordering::SeqCst), permits, "the others wait for a slot");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(90)).await;
    let oldest: f64 = counted(&metrics, "reconcile_oldest_seconds", "").unwrap();
    assert!((90.0..120.0).contains(&oldest), "{oldest}");
    tokio::time::resume();
    release.send_replace(true);
    let ended = |result: &str| {
        let labels = format!(",result=\"{result}\"");
        counted(&metrics, "reconcile_duration_seconds_count", &labels).unwrap_or(-1)
    };
    until(|| ["success", "requeue_after", "error"].map(ended) == [38, 1, 1]).await;
    until(|| gauges() == [0, 0]).await;
    assert_eq!(counted(&metrics, "reconcile_oldest_seconds", ""), Some("0.0".to_owned()));
}

#[tokio::test]
async fn a_reconcile_begins_with_what_the_watch_has_shown_while_it_waited() {
    let (events, shown) = mpsc::unbounded_channel();
    let client = server_with(list(&["a"]), shown);
    let runtime = Runtime::new(Metrics::new(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|_| async { None });
    let every = u32::try_from(controller::CONCURRENCY).unwrap();
    let permits = runtime.permits.clone().acquire_many_owned(every).await.unwrap();
    let source = Source::start(&client, &[], &runtime.metrics);
    let store = source.store();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(controller::run(runtime.clone(), maps.clone(), source, stopped));
    until(|| !runtime.in_flight().is_empty()).await;
    let mut object = list(&["a"])["items"][0].take();
    object["metadata"]["resourceVersion"] = json!("2");
    // The server sends the type first.
    events.send(format!(r#"{{"type":"MODIFIED","object":{object}}}"#)).unwrap();
    until(|| store.state().iter().any(|map| map.meta().resource_version.as_deref() == Some("2")))
        .await;
    drop(permits);
    maps.until(|_, ended| ended > 0).await;
    assert_eq!(maps.versions.lock().unwrap()[0].as_deref(), Some("2"));
}

/// Waits for something that is not announced.
async fn until(is: impl Fn() -> bool) {
    let wait = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.expect("the expected state");
}

#[tokio::test]
async fn a_reconcile_that_waits_without_its_permit_blocks_no_other() {
    // All but one wait for ever.
    let client = server(&NAMES);
    let runtime = Runtime::new(Metrics::new(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|name: String| async move {
        if name != "answers" {
            futures::future::pending::<()>().await;
        }
        None
    });
    let _running = start(&client, &runtime, &maps);
    maps.until(|started, ended| started == NAMES.len() && ended == 1).await;
    assert_eq!(runtime.in_flight().len(), NAMES.len() - 1);
}

#[tokio::test]
async fn a_panic_fails_only_its_own_reconcile() {
    let client = server(&["bad", "good"]);
    let metrics = Metrics::new();
    let runtime = Runtime::new(metrics.clone(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|name: String| async move {
        assert_ne!(name, "bad", "no way");
        Some(Duration::from_millis(1))
    });
    let _running = start(&client, &runtime, &maps);
    maps.until(|_, ended| ended >= 3).await;
    let counted = metrics.encode();
    assert!(counted.contains("controller=\"configmap\",category=\"panic\"} 1"), "{counted}");
    assert_eq!(Error::Panicked(String::new()).category(), "panic");
}

#[tokio::test]
async fn a_reconcile_that_the_controller_drops_runs_to_its_end() {
    let client = server(&["a"]);
    let runtime = Runtime::new(Metrics::new(), InFlight::default());
    let release = Arc::new(Notify::new());
    let waits = release.clone();
    let maps = Probe::<ConfigMap, _>::new(move |_| {
        let waits = waits.clone();
        async move {
            waits.notified().await;
            None
        }
    });
    let running = start(&client, &runtime, &maps);
    maps.until(|started, _| started == 1).await;
    running.task.abort();
    assert!(running.task.await.unwrap_err().is_cancelled());
    let mut finished = Box::pin(runtime.finish());
    assert!(futures::poll!(finished.as_mut()).is_pending(), "it is still in flight");
    release.notify_one();
    tokio::time::timeout(Duration::from_secs(10), finished).await.expect("its end");
    assert_eq!(maps.ended.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_reconcile_that_takes_too_long_is_stuck() {
    let client = server(&["a"]);
    let in_flight = InFlight::default();
    let runtime = Runtime::new(Metrics::new(), in_flight.clone());
    let maps = Probe::<ConfigMap, _>::new(|_| async {
        futures::future::pending::<()>().await;
        None
    });
    let _running = start(&client, &runtime, &maps);
    maps.until(|started, _| started == 1).await;
    assert_eq!(in_flight.stuck(), None);
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1100)).await;
    assert_eq!(in_flight.stuck().as_deref(), Some("ConfigMap ns/a is reconciled since 1100 s"));
}

#[tokio::test]
async fn the_health_probe_of_a_leader_that_is_stuck_fails() {
    let client = server(&["a"]);
    let in_flight = InFlight::default();
    let runtime = Runtime::new(Metrics::new(), in_flight.clone());
    let maps = Probe::<ConfigMap, _>::new(|_| async {
        futures::future::pending::<()>().await;
        None
    });
    let _running = start(&client, &runtime, &maps);
    maps.until(|started, _| started == 1).await;
    let ready = serve::Ready::waiting("never");
    ready.set();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = serve::health_router(ready, in_flight);
    tokio::spawn(serve::serve_on(listener, router, None, futures::future::pending()));
    let probe = async || {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    };
    let response = probe().await;
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(1100)).await;
    tokio::time::resume();
    let response = probe().await;
    assert!(response.starts_with("HTTP/1.1 500 "), "{response}");
    assert!(response.ends_with("ConfigMap ns/a is reconciled since 1100 s"), "{response}");
}

#[tokio::test]
async fn a_deleted_object_that_does_not_decode_is_reconciled_by_what_can_be_read() {
    let item = |name: &str, deleted: Option<&str>| {
        json!({ "data": "no map", "metadata": { "name": name, "namespace": "ns", "uid": name,
            "resourceVersion": "1", "deletionTimestamp": deleted } })
    };
    let items = [item("kept", None), item("deleted", Some("2026-08-05T10:00:00Z"))];
    let client = server_of(json!({ "metadata": { "resourceVersion": "1" }, "items": items }));
    let metrics = Metrics::new();
    let runtime = Runtime::new(metrics.clone(), InFlight::default());
    let maps = Probe::<ConfigMap, _>::new(|name: String| async move {
        assert_eq!(name, "deleted");
        None
    });
    let _running = start(&client, &runtime, &maps);
    maps.until(|_, ended| ended == 1).await;
    let counted = metrics.encode();
    assert!(!counted.contains("category=\"panic\""), "{counted}");
}
