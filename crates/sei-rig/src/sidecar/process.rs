//! One run of a sidecar: from its start to its end or the pod's.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use super::record::{Record, Records};
use super::usual::{self, MARK_NOT_READY, MARK_READY};
use super::{Doing, FirstAnswer, GateOpening, Sidecars, Submission, VolumeKey, doing, lock, wire};

/// Where the proxy in front of a sidecar listens. Plain HTTP, whatever the number suggests.
const PORT: u16 = 8443;

/// How long a port that is still held by the process before is asked for again.
const BIND_AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The pod that a sidecar runs in.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) namespace: String,
    pub(crate) node: String,
    pub(crate) pod_uid: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) volume: VolumeKey,
    /// Paths that the proxy lets through without a token.
    pub(crate) open_paths: Vec<String>,
}

/// How it treats whoever calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answering {
    #[default]
    Yes,
    /// Connections are accepted, and nothing is ever said.
    Hangs,
    /// Nobody listens.
    Refuses,
}

/// A running sidecar. Dropped, it is gone with its tasks and connections; records stay.
#[derive(Debug)]
pub(crate) struct Process {
    inner: Arc<Inner>,
    answering: watch::Sender<Answering>,
    server: JoinHandle<()>,
}

/// What requests and tasks work on.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) sidecars: Arc<Sidecars>,
    pub(super) records: Arc<Mutex<Records>>,
    ready: watch::Sender<bool>,
    tasks: Mutex<BTreeMap<String, AbortHandle>>,
    /// The process has ended. Its connections may live a moment longer than it and must not speak.
    gone: AtomicBool,
}

impl Process {
    /// Starts it, and with it what the process before left unfinished.
    pub(crate) fn start(sidecars: &Arc<Sidecars>, host: Host, answering: Answering) -> Self {
        let inner = Arc::new(Inner {
            records: sidecars.records(&host.volume),
            host,
            sidecars: sidecars.clone(),
            ready: watch::Sender::new(false),
            tasks: Mutex::default(),
            gone: AtomicBool::new(false),
        });
        inner.resume();
        // Who is told to run is already listened to: the proxy's startup probe sees to that.
        let first = (answering != Answering::Refuses).then(|| listen_now(inner.host.ip)).flatten();
        let answering = watch::Sender::new(answering);
        let server = tokio::spawn(serve(inner.clone(), answering.subscribe(), first));
        Self { inner, answering, server }
    }

    /// Whether the gate is open.
    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.inner.ready.subscribe()
    }

    pub(crate) fn set_answering(&self, answering: Answering) {
        self.answering.send_if_modified(|now| std::mem::replace(now, answering) != answering);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.inner.gone.store(true, Ordering::SeqCst);
        self.server.abort();
        for task in lock(&self.inner.tasks).values() {
            task.abort();
        }
    }
}

impl Inner {
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Takes a submission that was found to be one.
    pub(super) fn submit(self: &Arc<Self>, id: &str, task_type: &str, params: Value) {
        let has_effect = lock(&self.records).submit(id, task_type, params.clone());
        lock(&self.sidecars.submissions).push(Submission {
            namespace: self.host.namespace.clone(),
            node: self.host.node.clone(),
            pod_uid: self.host.pod_uid.clone(),
            id: id.to_owned(),
            task_type: task_type.to_owned(),
            params: params.clone(),
            has_effect,
            at: Timestamp::now(),
        });
        if has_effect {
            self.start_task(id, task_type, params);
        }
    }

    /// Whoever calls from now on is answered.
    fn note_first_answer(&self) {
        lock(&self.sidecars.answers).push(FirstAnswer {
            namespace: self.host.namespace.clone(),
            node: self.host.node.clone(),
            pod_uid: self.host.pod_uid.clone(),
            at: Timestamp::now(),
        });
    }

    /// Removes a record; its task is told to stop, and not waited for.
    pub(super) fn delete(&self, id: &str) -> bool {
        if let Some(task) = lock(&self.tasks).remove(id) {
            task.abort();
        }
        lock(&self.records).remove(id)
    }

    fn start_task(self: &Arc<Self>, id: &str, task_type: &str, params: Value) {
        // Held over the spawn: a task that ends at once must find itself there to be removed.
        let mut tasks = lock(&self.tasks);
        let task = tokio::spawn(run(self.clone(), id.to_owned(), task_type.to_owned(), params));
        tasks.insert(id.to_owned(), task.abort_handle());
    }

    /// Runs again what was running. Holds come first, each to its end, and an approval that is
    /// older than a hold is not run.
    fn resume(self: &Arc<Self>) {
        let mut records = lock(&self.records);
        let is_hold = |one: &Record| one.task_type == MARK_NOT_READY;
        for hold in records.unfinished().iter().filter(|one| is_hold(one)) {
            records.purge_approvals();
            records.finish(&hold.id, Ok(None));
        }
        for Record { id, task_type, params, submitted_at, .. } in records.unfinished() {
            if task_type == MARK_READY && records.has_hold_since(submitted_at) {
                records.finish(&id, Err("superseded by hold".to_owned()));
            } else {
                self.start_task(&id, &task_type, params);
            }
        }
    }

    /// What only the process itself can do. The flag changes before the record says so.
    fn act(&self, id: &str, task_type: &str) {
        match task_type {
            MARK_READY => {
                lock(&self.sidecars.openings).push(GateOpening {
                    namespace: self.host.namespace.clone(),
                    node: self.host.node.clone(),
                    pod_uid: self.host.pod_uid.clone(),
                    id: id.to_owned(),
                    at: Timestamp::now(),
                });
                self.ready.send_replace(true);
            }
            MARK_NOT_READY => {
                lock(&self.records).purge_approvals();
                self.ready.send_replace(false);
            }
            _ => {}
        }
    }
}

/// A task from its start to its end.
async fn run(inner: Arc<Inner>, id: String, task_type: String, params: Value) {
    let mut doings = inner.sidecars.doings.subscribe();
    let outcome = loop {
        let Host { namespace, node, .. } = &inner.host;
        let now = doing(&doings.borrow_and_update(), namespace, node, &task_type);
        match now {
            Doing::Usual if usual::is_endless(&task_type) => std::future::pending().await,
            Doing::Usual => break usual::outcome(&task_type, &params),
            Doing::Fail(text) => break Err(text),
            Doing::Delay(time) => {
                tokio::time::sleep(time).await;
                break usual::outcome(&task_type, &params);
            }
            Doing::Hold if doings.changed().await.is_err() => return,
            Doing::Hold => {}
        }
    };
    if outcome.is_ok() {
        inner.act(&id, &task_type);
    }
    lock(&inner.records).finish(&id, outcome);
    lock(&inner.tasks).remove(&id);
}

/// Serves until it is aborted. Whoever is connected when the manner changes is cut off.
async fn serve(
    inner: Arc<Inner>,
    mut answering: watch::Receiver<Answering>,
    mut first: Option<TcpListener>,
) {
    loop {
        let manner = *answering.borrow_and_update();
        tokio::select! {
            () = serve_in(&inner, manner, first.take()) => return,
            changed = answering.changed() => if changed.is_err() { return },
        }
    }
}

async fn serve_in(inner: &Arc<Inner>, manner: Answering, first: Option<TcpListener>) {
    if manner == Answering::Refuses {
        return std::future::pending().await;
    }
    let listener = match first {
        Some(listener) => listener,
        None => listen(inner.host.ip).await,
    };
    if manner == Answering::Yes {
        inner.note_first_answer();
    }
    // Aborted when it is dropped.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        match manner {
            Answering::Yes => {
                connections.spawn(wire::serve(inner.clone(), stream));
            }
            _ => {
                connections.spawn(async move {
                    let _held = stream;
                    std::future::pending::<()>().await;
                });
            }
        }
    }
}

/// Listens at once, if the address is free.
fn listen_now(ip: Ipv4Addr) -> Option<TcpListener> {
    let listener = std::net::TcpListener::bind(SocketAddr::from((ip, PORT))).ok()?;
    listener.set_nonblocking(true).ok()?;
    TcpListener::from_std(listener).ok()
}

async fn listen(ip: Ipv4Addr) -> TcpListener {
    loop {
        match TcpListener::bind(SocketAddr::from((ip, PORT))).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(BIND_AGAIN_AFTER).await,
        }
    }
}
