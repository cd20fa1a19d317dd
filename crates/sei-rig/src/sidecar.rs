//! The sidecar of every pod, as far as its wire goes: tasks, the gate, node ids.
//!
//! The flag that opens the gate lives in the memory of one process, records of tasks live on the
//! volume. Most traps of the real sidecar follow from that, and all of them are kept: each
//! submission is answered alike, whatever became of it; what is complete never runs again; what
//! failed runs again under the same id.

mod process;
mod record;
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

/// What a task of one type does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Doing {
    /// What it always does, at once.
    #[default]
    Usual,
    /// It does not end until it is told otherwise.
    Hold,
    /// It fails with this text.
    Fail(String),
    /// It does what it always does after a while.
    Delay(Duration),
}

/// A submission that arrived at a pod, however it was answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    pub id: String,
    pub task_type: String,
    pub params: Value,
    /// Whether something ran because of it; a duplicate runs nothing.
    pub has_effect: bool,
    pub at: Timestamp,
}

/// A moment in which the gate of a pod opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateOpening {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    /// Id of the task that opened it.
    pub id: String,
    pub at: Timestamp,
}

/// A moment from which on a sidecar answered: its process began, or stopped to be silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstAnswer {
    pub namespace: String,
    pub node: String,
    pub pod_uid: String,
    pub at: Timestamp,
}

/// What records are kept by: a claim that is made anew under the same name is another volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey {
    pub(crate) namespace: String,
    pub(crate) claim: String,
    pub(crate) uid: String,
}

/// All sidecars of a plane: what outlives their pods, what they are told to do, what they saw.
#[derive(Debug, Default)]
pub struct Sidecars {
    volumes: Mutex<BTreeMap<VolumeKey, Arc<Mutex<Records>>>>,
    doings: watch::Sender<Doings>,
    /// Namespaces in which the proxy wants a token, and which one; `None` is any.
    tokens: Mutex<BTreeMap<String, Option<String>>>,
    submissions: Mutex<Vec<Submission>>,
    openings: Mutex<Vec<GateOpening>>,
    answers: Mutex<Vec<FirstAnswer>>,
}

/// By namespace, node and type; no node means all of them.
type Doings = BTreeMap<(String, Option<String>, String), Doing>;

impl Sidecars {
    /// Says what tasks of a type do from now on, those included that are held now.
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

    /// Tasks of this type take a while.
    pub fn delay(&self, namespace: &str, node: &str, task_type: &str, time: Duration) {
        self.set(namespace, Some(node), task_type, Doing::Delay(time));
    }

    /// Tasks of this type do what they always do.
    pub fn release(&self, namespace: &str, node: &str, task_type: &str) {
        self.set(namespace, Some(node), task_type, Doing::Usual);
    }

    /// Proxies of this namespace want a bearer token: this one, or any.
    pub fn demand_token(&self, namespace: &str, token: Option<&str>) {
        lock(&self.tokens).insert(namespace.to_owned(), token.map(str::to_owned));
    }

    /// Every submission to pods of this node, oldest first.
    pub fn submissions(&self, namespace: &str, node: &str) -> Vec<Submission> {
        let is_its = |one: &&Submission| one.namespace == namespace && one.node == node;
        lock(&self.submissions).iter().filter(is_its).cloned().collect()
    }

    /// Every opening of the gate of this node's pods, oldest first.
    pub fn gate_openings(&self, namespace: &str, node: &str) -> Vec<GateOpening> {
        let is_its = |one: &&GateOpening| one.namespace == namespace && one.node == node;
        lock(&self.openings).iter().filter(is_its).cloned().collect()
    }

    /// Every moment from which on a sidecar of this node answered, oldest first.
    pub fn first_answers(&self, namespace: &str, node: &str) -> Vec<FirstAnswer> {
        let is_its = |one: &&FirstAnswer| one.namespace == namespace && one.node == node;
        lock(&self.answers).iter().filter(is_its).cloned().collect()
    }

    /// Forgets what was written down about everything, which a benchmark does between its parts.
    pub fn clear_logs(&self) {
        lock(&self.submissions).clear();
        lock(&self.openings).clear();
        lock(&self.answers).clear();
    }

    fn records(&self, key: &VolumeKey) -> Arc<Mutex<Records>> {
        lock(&self.volumes).entry(key.clone()).or_default().clone()
    }

    /// Whether the proxy is content with this token, or with none.
    fn lets_through(&self, namespace: &str, token: Option<&str>) -> bool {
        match lock(&self.tokens).get(namespace) {
            None => true,
            Some(None) => token.is_some(),
            Some(desired) => desired.as_deref() == token,
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

/// A panic of one test must not take the sidecars from the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
