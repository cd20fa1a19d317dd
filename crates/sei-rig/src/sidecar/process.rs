//! One process of a sidecar, from its start to its end or the end of the pod.

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
use super::{
    Doing, FirstAnswer, GateOpening, Sidecars, Submission, VolumeKey, doing, lock, tls, wire,
};

/// Port of the proxy in front of a sidecar.
const PORT: u16 = 8443;

/// How long to wait before binding a port again that the previous process still holds.
const RETRY_BIND_AFTER: Duration = Duration::from_millis(20);

/// The pod that a sidecar runs in.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) namespace: String,
    pub(crate) node: String,
    pub(crate) pod_uid: String,
    pub(crate) ip: Ipv4Addr,
    pub(crate) volume: VolumeKey,
    /// Paths that the proxy serves without a token.
    pub(crate) open_paths: Vec<String>,
    /// The proxy serves TLS.
    pub(crate) is_secure: bool,
    /// The audience that the proxy requires of a token.
    pub(crate) audience: Option<String>,
}

/// How the sidecar treats its callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Answering {
    #[default]
    Yes,
    /// It accepts connections and never responds.
    Hangs,
    /// Its port is closed.
    Refuses,
}

/// A running sidecar. When it is dropped, its tasks and connections end; the records stay.
#[derive(Debug)]
pub(crate) struct Process {
    inner: Arc<Inner>,
    answering: watch::Sender<Answering>,
    server: JoinHandle<()>,
}

/// The state that requests and tasks share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) sidecars: Arc<Sidecars>,
    pub(super) records: Arc<Mutex<Records>>,
    ready: watch::Sender<bool>,
    tasks: Mutex<BTreeMap<String, AbortHandle>>,
    /// The process has ended. Its connections may end a little later and must not respond.
    ended: AtomicBool,
}

impl Process {
    /// Starts the process, and resumes the tasks that the previous process left unfinished.
    pub(crate) fn start(sidecars: &Arc<Sidecars>, host: Host, answering: Answering) -> Self {
        let inner = Arc::new(Inner {
            records: sidecars.records(&host.volume),
            host,
            sidecars: sidecars.clone(),
            ready: watch::Sender::new(false),
            tasks: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        inner.resume();
        // The port is open once the container is reported as running: the proxy has a startup probe.
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
        self.inner.ended.store(true, Ordering::SeqCst);
        self.server.abort();
        for task in lock(&self.inner.tasks).values() {
            task.abort();
        }
    }
}

impl Inner {
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Why a submission of this type is refused, if it is.
    pub(super) fn refusal(&self, task_type: &str) -> Option<String> {
        let Host { namespace, node, .. } = &self.host;
        match doing(&self.sidecars.doings.borrow(), namespace, node, task_type) {
            Doing::Refuse(text) => Some(text),
            _ => None,
        }
    }

    /// Records a valid submission and runs it unless it is a duplicate.
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

    /// Records that the sidecar responds from now on.
    fn record_first_answer(&self) {
        lock(&self.sidecars.answers).push(FirstAnswer {
            namespace: self.host.namespace.clone(),
            node: self.host.node.clone(),
            pod_uid: self.host.pod_uid.clone(),
            at: Timestamp::now(),
        });
    }

    /// Removes a record and aborts its task, without waiting for it.
    pub(super) fn delete(&self, id: &str) -> bool {
        if let Some(task) = lock(&self.tasks).remove(id) {
            task.abort();
        }
        lock(&self.records).remove(id)
    }

    fn start_task(self: &Arc<Self>, id: &str, task_type: &str, params: Value) {
        // Locked during the spawn: a task that ends immediately must find its entry to remove it.
        let mut tasks = lock(&self.tasks);
        let task = tokio::spawn(run(self.clone(), id.to_owned(), task_type.to_owned(), params));
        tasks.insert(id.to_owned(), task.abort_handle());
    }

    /// Runs the unfinished tasks again. `mark-not-ready` comes first and completes; a `mark-ready`
    /// that is older fails.
    fn resume(self: &Arc<Self>) {
        let mut records = lock(&self.records);
        let unfinished = records.unfinished();
        for hold in unfinished.iter().filter(|record| record.task_type == MARK_NOT_READY) {
            records.remove_mark_ready();
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

    /// Performs the effect of a task on the process. The flag changes before the record completes.
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
                lock(&self.records).remove_mark_ready();
                self.ready.send_replace(false);
            }
            _ => {}
        }
    }
}

/// Runs a task to its end.
async fn run(inner: Arc<Inner>, id: String, task_type: String, params: Value) {
    let mut doings = inner.sidecars.doings.subscribe();
    let outcome = loop {
        let Host { namespace, node, .. } = &inner.host;
        let now = doing(&doings.borrow_and_update(), namespace, node, &task_type);
        match now {
            Doing::Usual if usual::is_endless(&task_type) => std::future::pending().await,
            Doing::Usual => break usual::outcome(&task_type, &params),
            Doing::Fail(text) | Doing::Refuse(text) => break Err(text),
            Doing::Stick => {
                inner.act(&id, &task_type);
                return std::future::pending().await;
            }
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

/// Serves until it is aborted. A change of `answering` closes all connections.
async fn serve(
    inner: Arc<Inner>,
    mut answering: watch::Receiver<Answering>,
    mut first: Option<TcpListener>,
) {
    loop {
        let now = *answering.borrow_and_update();
        tokio::select! {
            () = serve_in(&inner, now, first.take()) => return,
            changed = answering.changed() => if changed.is_err() { return },
        }
    }
}

async fn serve_in(inner: &Arc<Inner>, answering: Answering, first: Option<TcpListener>) {
    if answering == Answering::Refuses {
        return std::future::pending().await;
    }
    let listener = match first {
        Some(listener) => listener,
        None => listen(inner.host.ip).await,
    };
    if answering == Answering::Yes {
        inner.record_first_answer();
    }
    // Dropping it aborts all connections.
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        while connections.try_join_next().is_some() {}
        match answering {
            Answering::Yes => {
                let inner = inner.clone();
                if inner.host.is_secure {
                    connections.spawn(async move {
                        // The caller may close the connection at any time.
                        if let Ok(stream) = tls::accept(stream).await {
                            wire::serve(inner, stream).await;
                        }
                    });
                } else {
                    connections.spawn(wire::serve(inner, stream));
                }
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

/// Listens immediately if the address is free.
fn listen_now(ip: Ipv4Addr) -> Option<TcpListener> {
    let listener = std::net::TcpListener::bind(SocketAddr::from((ip, PORT))).ok()?;
    listener.set_nonblocking(true).ok()?;
    TcpListener::from_std(listener).ok()
}

async fn listen(ip: Ipv4Addr) -> TcpListener {
    loop {
        match TcpListener::bind(SocketAddr::from((ip, PORT))).await {
            Ok(listener) => return listener,
            Err(_) => tokio::time::sleep(RETRY_BIND_AFTER).await,
        }
    }
}
