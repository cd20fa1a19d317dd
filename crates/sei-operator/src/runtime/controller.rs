//! The reconcile loop of one kind, on kube's `Controller`.
//!
//! kube's scheduler is the only queue, lock and timer: it runs one reconcile per object at a time,
//! keeps a request that arrives meanwhile, and merges timers. Its concurrency is unbounded here; a
//! semaphore bounds the work instead, because a reconcile releases its slot while it waits for a
//! sidecar. Two guarantees are added:
//!
//! - kube's runner may drop a reconcile that it has just started when it stops. A reconcile may be
//!   in the middle of a write then, so each runs as a task of its own, and [`Runtime::finish`]
//!   waits for all of them.
//! - A panic in one reconcile would end the loop, and with it the operator. The task contains it.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _, future};
use k8s_openapi::NamespaceResourceScope;
use kube::runtime::controller::{Action, Config, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher;
use kube::{Client, Resource};
use prometheus_client::metrics::gauge::Gauge;
use sei_api::key::ObjectKey;
use sei_plan::request::Failure;
use sei_plan::shared::Shared;
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, broadcast, mpsc, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use super::cache;
use super::guarded::Guarded;
use super::metrics::{ControllerMetrics, Metrics};
use super::namespaces;

/// How many reconciles work at once, over all kinds.
pub(super) const CONCURRENCY: usize = 8;

/// How long a reconcile can take: 64 requests, of which each ends within 15 s. One that takes longer
/// is stuck, and so is what waits for it.
const RECONCILE_MAX: Duration = Duration::from_secs(64 * 15 + 60);

/// Why a reconcile failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the stored object cannot be decoded: {0}")]
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

/// A kind that this operator can reconcile.
pub trait Kind:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// What a kind's controller does. The loop calls it for one object at a time, never twice at once.
pub trait Reconcile: Send + Sync + 'static {
    type Kind: Kind;

    /// Reconciles one object. Returns after what time to do so again although nothing changed.
    fn reconcile(
        self: &Arc<Self>,
        object: &Shared<Self::Kind>,
        permit: &mut Permit,
    ) -> impl Future<Output = Result<Option<Duration>, Error>> + Send;

    /// What can be read of an object that does not decode. It is asked for deleted objects only: one
    /// that can never be finalized would block the deletion of its namespace.
    fn read_partly(
        &self,
        key: &ObjectKey,
    ) -> impl Future<Output = Option<Shared<Self::Kind>>> + Send;

    /// A reconcile of this object has ended.
    fn finished(&self, key: &ObjectKey, succeeded: bool);

    /// Whether an event only shows what the controller itself wrote last.
    fn is_own_write(&self, object: &Self::Kind) -> bool;

    /// Objects may have been deleted: drop what is kept of those.
    fn sweep(&self);
}

/// Enqueues objects of a kind.
#[derive(Debug)]
pub struct Queue<K: Kind>(mpsc::UnboundedSender<ObjectRef<Guarded<K>>>);

impl<K: Kind> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The other end of a queue.
pub(super) type Enqueued<K> = mpsc::UnboundedReceiver<ObjectRef<Guarded<K>>>;

impl<K: Kind> Queue<K> {
    pub(super) fn new() -> (Self, Enqueued<K>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Reconciles this object soon.
    pub fn enqueue(&self, key: &ObjectKey) {
        // The receiver ends only with the process.
        let _ = self.0.send(reference(key));
    }
}

/// The key of a guarded object, in the form of kube's stores.
pub fn reference<K: Kind>(key: &ObjectKey) -> ObjectRef<Guarded<K>> {
    ObjectRef::new(&key.name).within(&key.namespace)
}

/// What all controllers of the process share.
#[derive(Debug)]
pub struct Runtime {
    pub(super) permits: Arc<Semaphore>,
    tasks: TaskTracker,
    in_flight: InFlight,
    pub metrics: Metrics,
}

/// What is being reconciled, by kind and name, and since when. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct InFlight(Arc<Mutex<BTreeMap<String, Instant>>>);

impl InFlight {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many objects of this kind are being reconciled, and the age of the oldest reconcile.
    pub fn of(&self, kind: &str) -> (usize, Duration) {
        let in_flight = self.lock();
        let of_kind = in_flight
            .iter()
            .filter(|(name, _)| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(' ')));
        let (count, oldest) = of_kind.fold((0, None), |(count, oldest), (_, since)| {
            (count + 1, Some(oldest.map_or(*since, |oldest: Instant| oldest.min(*since))))
        });
        (count, oldest.map_or(Duration::ZERO, |since: Instant| since.elapsed()))
    }

    /// A reconcile that takes longer than any can, with its age.
    pub fn stuck(&self) -> Option<String> {
        let in_flight = self.lock();
        let (name, since) = in_flight.iter().min_by_key(|(_, since)| **since)?;
        let age = since.elapsed();
        (age > RECONCILE_MAX).then(|| format!("{name} is reconciled since {} s", age.as_secs()))
    }
}

impl Runtime {
    pub fn new(metrics: Metrics, in_flight: InFlight) -> Arc<Self> {
        metrics.follow(&in_flight);
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
            tasks: TaskTracker::new(),
            in_flight,
            metrics,
        })
    }

    /// Waits until every reconcile has ended. No controller runs any more, so none begins.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// What is being reconciled now, as `Kind namespace/name`.
    pub fn in_flight(&self) -> Vec<String> {
        self.in_flight.lock().keys().cloned().collect()
    }
}

/// Marks an object as being reconciled until it is dropped.
struct Reconciling<'a> {
    in_flight: &'a InFlight,
    name: String,
}

impl<'a> Reconciling<'a> {
    fn new(in_flight: &'a InFlight, name: String) -> Self {
        in_flight.lock().insert(name.clone(), Instant::now());
        Self { in_flight, name }
    }
}

impl Drop for Reconciling<'_> {
    fn drop(&mut self) {
        self.in_flight.lock().remove(&self.name);
    }
}

/// The right of one reconcile to work. It is released while the reconcile waits for a sidecar, so
/// that a sidecar that hangs never holds a permit.
#[derive(Debug)]
pub struct Permit {
    permits: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    waiting: Gauge,
}

impl Permit {
    async fn take(permits: &Arc<Semaphore>, waiting: &Gauge) -> Self {
        let mut taken = Self { permits: permits.clone(), held: None, waiting: waiting.clone() };
        taken.retake().await;
        taken
    }

    async fn retake(&mut self) {
        if let Ok(permit) = self.permits.clone().try_acquire_owned() {
            self.held = Some(permit);
            return;
        }
        self.waiting.inc();
        let permit = self.permits.clone().acquire_owned().await;
        self.waiting.dec();
        self.held = Some(permit.expect("the semaphore is never closed"));
    }

    /// Waits for something slow without the permit.
    pub async fn outside<T>(&mut self, slow: impl Future<Output = T>) -> T {
        self.held = None;
        let value = slow.await;
        self.retake().await;
        value
    }
}

/// Is shown every object that a watch shows, also one that was deleted.
type Observer<K> = Box<dyn Fn(&Guarded<K>) + Send>;

/// The watch of a kind: its store, its queue and its events.
pub struct Source<K: Kind> {
    store: Store<Guarded<K>>,
    queue: Queue<K>,
    enqueued: Enqueued<K>,
    /// Objects that were created or changed.
    applied: mpsc::UnboundedReceiver<Guarded<K>>,
    /// Objects may have been deleted.
    deleted: Arc<Notify>,
    listed: watch::Receiver<bool>,
    appeared: broadcast::Sender<ObjectKey>,
}

/// How many objects may appear before those who follow are behind. They list everything then.
const APPEARED_MAX: usize = 1024;

impl<K: Kind> Source<K> {
    /// Starts the watch of these namespaces, or of all without any. It ends with the source.
    pub fn start(client: &Client, namespaces: &[String], metrics: &Metrics) -> Self {
        Self::start_observed(client, namespaces, metrics, |_| {})
    }

    /// The same; `observer` is shown every object that the watch shows, also one that was deleted.
    pub fn start_observed(
        client: &Client,
        namespaces: &[String],
        metrics: &Metrics,
        observer: impl Fn(&Guarded<K>) + Send + 'static,
    ) -> Self {
        let (store, writer) = reflector::store();
        let (queue, enqueued) = Queue::new();
        let (changes, applied) = mpsc::unbounded_channel();
        let (listed, is_listed) = watch::channel(false);
        let (appeared, _) = broadcast::channel(APPEARED_MAX);
        let deleted = Arc::new(Notify::new());
        let sink = Sink {
            store: store.clone(),
            writer,
            observer: Box::new(observer),
            changes,
            deleted: deleted.clone(),
            listed,
            appeared: appeared.downgrade(),
            new: Vec::new(),
        };
        // Errors are handled here: a controller that receives one delays all other requests.
        let events = namespaces::events(client, namespaces, &watcher::Config::default());
        let events = cache::persistent(events, K::kind(&()), K::kind(&()), metrics.clone());
        tokio::spawn(sink.fill(events));
        Self { store, queue, enqueued, applied, deleted, listed: is_listed, appeared }
    }

    /// The objects that the watch has shown so far.
    pub fn store(&self) -> Store<Guarded<K>> {
        self.store.clone()
    }

    pub fn queue(&self) -> Queue<K> {
        self.queue.clone()
    }

    /// Turns true with the first list.
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.listed.clone()
    }

    /// The keys of objects that appear, when the store has them.
    pub fn appeared(&self) -> broadcast::Receiver<ObjectKey> {
        self.appeared.subscribe()
    }
}

/// Where the events of a watch go.
struct Sink<K: Kind> {
    store: Store<Guarded<K>>,
    writer: Writer<Guarded<K>>,
    observer: Observer<K>,
    changes: mpsc::UnboundedSender<Guarded<K>>,
    deleted: Arc<Notify>,
    listed: watch::Sender<bool>,
    appeared: broadcast::WeakSender<ObjectKey>,
    /// New objects of a list that is not complete yet.
    new: Vec<ObjectKey>,
}

impl<K: Kind> Sink<K> {
    async fn fill(mut self, events: impl Stream<Item = watcher::Event<Guarded<K>>>) {
        let changes = self.changes.clone();
        let mut events = pin!(events);
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = changes.closed() => return,
            };
            let Some(event) = event else { return };
            self.absorb(event);
        }
    }

    fn absorb(&mut self, event: watcher::Event<Guarded<K>>) {
        if let watcher::Event::Apply(object) | watcher::Event::InitApply(object) = &event
            && self.is_new(object)
        {
            self.new.push(ObjectKey::of(object.meta()));
        }
        self.writer.apply_watcher_event(&event);
        if let watcher::Event::Apply(object)
        | watcher::Event::InitApply(object)
        | watcher::Event::Delete(object) = &event
        {
            (self.observer)(object);
        }
        match event {
            watcher::Event::Apply(object) => {
                self.announce();
                self.change(object);
            }
            watcher::Event::Delete(_) => self.deleted.notify_one(),
            watcher::Event::Init => self.new.clear(),
            watcher::Event::InitApply(object) => self.change(object),
            watcher::Event::InitDone => {
                self.announce();
                self.listed.send_replace(true);
                self.deleted.notify_one();
            }
        }
    }

    fn is_new(&self, object: &Guarded<K>) -> bool {
        let known = self.store.get(&ObjectRef::from_obj(object));
        known.is_none_or(|known| known.meta().uid != object.meta().uid)
    }

    fn announce(&mut self) {
        let Some(appeared) = self.appeared.upgrade() else { return };
        for key in self.new.drain(..) {
            // Without a receiver no cache waits for it.
            let _ = appeared.send(key);
        }
    }

    fn change(&self, object: Guarded<K>) {
        // The receiver ends with the controller, and then `fill` ends too.
        let _ = self.changes.send(object);
    }
}

/// Runs a kind's controller until `stop` turns true.
pub async fn run<R: Reconcile>(
    runtime: Arc<Runtime>,
    reconciler: Arc<R>,
    source: Source<R::Kind>,
    mut stop: watch::Receiver<bool>,
) {
    let Source { store, mut enqueued, mut applied, deleted, listed, appeared, queue } = source;
    // What follows this kind ends with it.
    let _alive = (queue, appeared);
    let own = reconciler.clone();
    let events = futures::stream::poll_fn(move |context| applied.poll_recv(context));
    let news = events.map(Ok).filter(move |event: &watcher::Result<Guarded<R::Kind>>| {
        let object = event.as_ref().ok().and_then(|object| object.decoded());
        future::ready(!object.is_some_and(|object| own.is_own_write(object)))
    });
    let requests = futures::stream::poll_fn(move |context| enqueued.poll_recv(context));
    let stopped = {
        let mut stop = stop.clone();
        async move {
            let _ = stop.wait_for(|stop| *stop).await;
        }
    };
    let context = Arc::new(Loop {
        metrics: runtime.metrics.controller(&R::Kind::kind(&())),
        runtime,
        reconciler,
        store: store.clone(),
        failures: Mutex::default(),
    });
    let controller = Controller::for_stream(news, store.clone())
        .with_config(Config::default().concurrency(0))
        .reconcile_on(requests)
        .graceful_shutdown_on(stopped)
        .run(reconcile, on_error, context.clone())
        .for_each(|result| async move {
            if let Err(error) = result {
                tracing::debug!(error = %sei_exec::call::chain(&error), "controller");
            }
        });
    let sweeps = async {
        loop {
            deleted.notified().await;
            context.reconciler.sweep();
            context.lock_failures().retain(|key, _| store.get(&reference(key)).is_some());
        }
    };
    // A controller that is stopped before its first list would wait for that list, which it no
    // longer reads, for ever.
    let stopped_early = async {
        let _ = stop.wait_for(|stop| *stop).await;
        if *listed.borrow() {
            future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = controller => {}
        () = sweeps => {}
        () = stopped_early => {}
    }
}

/// The state of one kind's loop.
struct Loop<R: Reconcile> {
    runtime: Arc<Runtime>,
    reconciler: Arc<R>,
    store: Store<Guarded<R::Kind>>,
    metrics: ControllerMetrics,
    /// Failed reconciles in a row. kube does not report successes to its error policy.
    failures: Mutex<BTreeMap<ObjectKey, u32>>,
}

impl<R: Reconcile> Loop<R> {
    /// The pause after another failed reconcile: 1 s doubling to a minute.
    fn back_off(&self, key: &ObjectKey) -> Duration {
        let mut failures = self.lock_failures();
        let count = failures.entry(key.clone()).or_default();
        *count = count.saturating_add(1);
        Duration::from_secs(1 << (*count - 1).min(6)).min(Duration::from_secs(60))
    }

    fn succeeded(&self, key: &ObjectKey) {
        self.lock_failures().remove(key);
    }

    fn lock_failures(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, u32>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reconciles one object in a task that outlives the controller.
async fn reconcile<R: Reconcile>(
    object: Arc<Guarded<R::Kind>>,
    context: Arc<Loop<R>>,
) -> Result<Action, Error> {
    let task = context.runtime.tasks.spawn(reconcile_task(object, context.clone()));
    match task.await {
        Ok(result) => result,
        Err(error) => Err(Error::Panicked(error.to_string())),
    }
}

async fn reconcile_task<R: Reconcile>(
    object: Arc<Guarded<R::Kind>>,
    context: Arc<Loop<R>>,
) -> Result<Action, Error> {
    let key = ObjectKey::of(object.meta());
    let name = format!("{} {key}", R::Kind::kind(&()));
    let _reconciling = Reconciling::new(&context.runtime.in_flight, name);
    let mut permit = Permit::take(&context.runtime.permits, &context.metrics.waiting).await;
    // The watch may have shown a newer version while the reconcile waited for its permit.
    let object = context.store.get(&reference(&key)).unwrap_or(object);
    let object = match &object.0 {
        Ok(object) => object.clone(),
        Err(invalid) => {
            let deleted = invalid.metadata.deletion_timestamp.is_some();
            let known = if deleted { context.reconciler.read_partly(&key).await } else { None };
            let known = known.ok_or_else(|| Error::Undecodable(invalid.error.clone()));
            known.inspect_err(|error| context.metrics.reconciled(&Err(error), Duration::ZERO))?
        }
    };
    let begun = Instant::now();
    let reconcile = Box::pin(context.reconciler.reconcile(&object, &mut permit));
    let result = AssertUnwindSafe(reconcile).catch_unwind().await;
    let result = result.unwrap_or_else(|panic| Err(Error::Panicked(panic_message(panic.as_ref()))));
    context.metrics.reconciled(&result, begun.elapsed());
    // Also after a panic: others may wait for this object.
    context.reconciler.finished(&key, result.is_ok());
    let requeue = result?;
    context.succeeded(&key);
    Ok(requeue.map_or_else(Action::await_change, Action::requeue))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message").to_owned()
}

/// After a failed reconcile: again, later each time.
#[expect(clippy::needless_pass_by_value, reason = "the controller passes them like this")]
fn on_error<R: Reconcile>(
    object: Arc<Guarded<R::Kind>>,
    error: &Error,
    context: Arc<Loop<R>>,
) -> Action {
    let key = ObjectKey::of(object.meta());
    tracing::warn!(kind = %R::Kind::kind(&()), object = %key, %error, "a reconcile failed");
    context.runtime.metrics.error(&R::Kind::kind(&()), error.category());
    Action::requeue(context.back_off(&key))
}
