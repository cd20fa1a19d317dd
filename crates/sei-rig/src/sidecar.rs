//! The HTTP API of the sidecar of every pod: tasks, the readiness gate, node ids.
//!
//! The ready flag is in the memory of one process, the task records are on the volume. Most traps of
//! the real sidecar follow from that, and all of them are reproduced: every submission gets the same
//! response, whether it runs or not; a completed task never runs again; a failed task runs again under
//! the same id.

mod process;
mod record;
mod shown;
mod tls;
mod usual;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

pub(crate) use self::process::{Answering, Host, Process};
use self::record::Records;

/// How tasks of one type behave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// Completes immediately with its usual result.
    #[default]
    Usual,
    /// Does not end until the behaviour is changed.
    Hold,
    /// Fails with this text.
    Fail(String),
    /// Completes with its usual result after this time.
    Delay(Duration),
    /// Has its usual effect, but its record stays `running`.
    Stick,
    /// The submission is refused with 400 and this text.
    Refuse(String),
}

/// A submission that a pod received, whatever its response.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    pub id: String,
    pub task_type: String,
    pub params: Value,
    /// Whether it started a run; a duplicate does not.
    pub has_effect: bool,
    pub at: Timestamp,
}

/// A request that reached a pod's proxy or its RPC, whatever its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    /// Method and path; the path has the port in front of it if it is that of the RPC.
    pub request: String,
    /// The bearer token that came with it.
    pub token: Option<String>,
    /// The audience that the proxy requires of a token.
    pub audience: Option<String>,
}

/// An opening of the readiness gate of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateOpening {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    /// Id of the task that opened it.
    pub id: String,
    pub at: Timestamp,
}

/// The time from which a sidecar responded: its process started, or it stopped hanging.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstAnswer {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    pub at: Timestamp,
}

/// Identifies the volume of task records: a claim recreated under the same name is another volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) uid: String,
}

/// All sidecars of a plane: the state that outlives their pods, the configured behaviours, and the
/// recorded calls.
#[derive(Debug, Default)]
pub struct Sidecars {
    volumes: Mutex<BTreeMap<VolumeKey, Arc<Mutex<Records>>>>,
    doings: watch::Sender<Doings>,
    /// The token that the proxy requires, by namespace; `None` accepts any token.
    tokens: Mutex<BTreeMap<String, Option<String>>>,
    received: Mutex<Vec<Received>>,
    /// By namespace, the owners of tokens that pods were shown on purpose.
    own_tokens: Mutex<BTreeMap<String, Vec<String>>>,
    submissions: Mutex<Vec<Submission>>,
    openings: Mutex<Vec<GateOpening>>,
    answers: Mutex<Vec<FirstAnswer>>,
}

/// By namespace, node and type; no node means all nodes.
type Doings = BTreeMap<(String, Option<String>, String), Doing>;

impl Sidecars {
    /// Sets how tasks of a type behave from now on, including those that are held.
    pub fn set(&self, namespace: &str, node: Option<&str>, task_type: &str, doing: Doing) {
        let key = (namespace.to_owned(), node.map(str::to_owned), task_type.to_owned());
        self.doings.send_modify(|all| {
            all.insert(key, doing);
        });
    }

    /// Tasks of this type do not end until [`Sidecars::release`] is called.
    pub fn hold(&self, namespace: &str, node: &str, task_type: &str) {
        self.set(namespace, Some(node), task_type, Doing::Hold);
    }

    /// Tasks of this type fail.
    pub fn fail(&self, namespace: &str, node: &str, task_type: &str, text: &str) {
        self.set(namespace, Some(node), task_type, Doing::Fail(text.to_owned()));
    }

    /// Tasks of this type take this time.
    pub fn delay(&self, namespace: &str, node: &str, task_type: &str, time: Duration) {
        self.set(namespace, Some(node), task_type, Doing::Delay(time));
    }

    /// Tasks of this type have their effect, but their records stay `running`.
    pub fn stick(&self, namespace: &str, node: &str, task_type: &str) {
        self.set(namespace, Some(node), task_type, Doing::Stick);
    }

    /// Submissions of this type are refused with 400.
    pub fn refuse(&self, namespace: &str, node: &str, task_type: &str, text: &str) {
        self.set(namespace, Some(node), task_type, Doing::Refuse(text.to_owned()));
    }

    /// Tasks of this type behave as usual.
    pub fn release(&self, namespace: &str, node: &str, task_type: &str) {
        self.set(namespace, Some(node), task_type, Doing::Usual);
    }

    /// Proxies of this namespace require a bearer token: this one, or any.
    pub fn demand_token(&self, namespace: &str, token: Option<&str>) {
        lock(&self.tokens).insert(namespace.to_owned(), token.map(str::to_owned));
    }

    /// Every request to pods with the label of this node, oldest first.
    pub fn received(&self, namespace: &str, node: &str) -> Vec<Received> {
        let is_of_node = |entry: &&Received| entry.namespace == namespace && entry.node == node;
        lock(&self.received).iter().filter(is_of_node).cloned().collect()
    }

    /// Every request to pods of this namespace, oldest first.
    pub fn received_in(&self, namespace: &str) -> Vec<Received> {
        let is_there = |entry: &&Received| entry.namespace == namespace;
        lock(&self.received).iter().filter(is_there).cloned().collect()
    }

    /// Every submission to pods of this node, oldest first.
    pub fn submissions(&self, namespace: &str, node: &str) -> Vec<Submission> {
        let is_of_node = |entry: &&Submission| entry.namespace == namespace && entry.node == node;
        lock(&self.submissions).iter().filter(is_of_node).cloned().collect()
    }

    /// Every opening of the readiness gate of this node's pods, oldest first.
    pub fn gate_openings(&self, namespace: &str, node: &str) -> Vec<GateOpening> {
        let is_of_node = |entry: &&GateOpening| entry.namespace == namespace && entry.node == node;
        lock(&self.openings).iter().filter(is_of_node).cloned().collect()
    }

    /// Every time from which a sidecar of this node responded, oldest first.
    pub fn first_answers(&self, namespace: &str, node: &str) -> Vec<FirstAnswer> {
        let is_of_node = |entry: &&FirstAnswer| entry.namespace == namespace && entry.node == node;
        lock(&self.answers).iter().filter(is_of_node).cloned().collect()
    }

    /// Removes all recorded calls, which a benchmark does between its parts.
    pub fn clear_logs(&self) {
        lock(&self.received).clear();
        lock(&self.submissions).clear();
        lock(&self.openings).clear();
        lock(&self.answers).clear();
    }

    fn records(&self, key: &VolumeKey) -> Arc<Mutex<Records>> {
        lock(&self.volumes).entry(key.clone()).or_default().clone()
    }

    /// Whether the proxy accepts this token, or none.
    fn accepts_token(&self, namespace: &str, token: Option<&str>) -> bool {
        match lock(&self.tokens).get(namespace) {
            None => true,
            Some(None) => token.is_some(),
            Some(required) => required.as_deref() == token,
        }
    }
}

fn doing(all: &Doings, namespace: &str, node: &str, task_type: &str) -> Doing {
    let find = |node: Option<&str>| {
        let key = (namespace.to_owned(), node.map(str::to_owned), task_type.to_owned());
        all.get(&key)
    };
    find(Some(node)).or_else(|| find(None)).cloned().unwrap_or_default()
}

/// Ignores poisoning: a panic of one test must not fail the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
