//! Records of tasks, as the volume keeps them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::usual::{MARK_NOT_READY, MARK_READY};

/// Records of one volume by id. Ids are compared as texts: the same id in capitals is another one.
#[derive(Debug, Default)]
pub(super) struct Records(BTreeMap<String, Record>);

#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) task_type: String,
    pub(super) params: Value,
    pub(super) state: State,
    pub(super) run: u32,
    pub(super) result: Option<Value>,
    pub(super) submitted_at: Timestamp,
    pub(super) completed_at: Option<Timestamp>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    Completed,
    Failed(String),
}

/// The most that a list shows.
const LIST_MAX: usize = 100;

impl Records {
    /// Writes a submission down. Says whether something has to run: type and parameters of a
    /// duplicate are not even looked at.
    pub(super) fn submit(&mut self, id: &str, task_type: &str, params: Value) -> bool {
        let run = match self.0.get(id) {
            None => 1,
            Some(Record { state: State::Failed(_), run, .. }) => run + 1,
            Some(_) => return false,
        };
        let record = Record {
            id: id.to_owned(),
            task_type: task_type.to_owned(),
            params,
            state: State::Running,
            run,
            result: None,
            submitted_at: Timestamp::now(),
            completed_at: None,
        };
        self.0.insert(id.to_owned(), record);
        true
    }

    pub(super) fn get(&self, id: &str) -> Option<&Record> {
        self.0.get(id)
    }

    pub(super) fn remove(&mut self, id: &str) -> bool {
        self.0.remove(id).is_some()
    }

    /// Writes the end of a task down, unless its record is gone.
    pub(super) fn finish(&mut self, id: &str, outcome: Result<Option<Value>, String>) {
        let Some(record) = self.0.get_mut(id) else { return };
        record.completed_at = Some(Timestamp::now());
        match outcome {
            Ok(result) => (record.state, record.result) = (State::Completed, result),
            Err(text) => record.state = State::Failed(text),
        }
    }

    /// A hold takes every approval back, those on record too.
    pub(super) fn purge_approvals(&mut self) {
        self.0.retain(|_, record| record.task_type != MARK_READY);
    }

    /// What was running when the process before ended, oldest first.
    pub(super) fn unfinished(&self) -> Vec<Record> {
        let running = self.0.values().filter(|one| one.state == State::Running);
        let mut all: Vec<Record> = running.cloned().collect();
        all.sort_by_key(|one| one.submitted_at);
        all
    }

    /// Whether a hold came at the same time or after.
    pub(super) fn has_hold_since(&self, at: Timestamp) -> bool {
        self.0.values().any(|one| one.task_type == MARK_NOT_READY && one.submitted_at >= at)
    }

    /// The newest first; by the text of the time, which is what the real one does.
    pub(super) fn list(&self) -> Vec<Value> {
        let mut all: Vec<&Record> = self.0.values().collect();
        all.sort_by_key(|one| std::cmp::Reverse(one.submitted_at.to_string()));
        all.into_iter().take(LIST_MAX).map(Record::to_json).collect()
    }
}

impl Record {
    /// Empty fields are left out.
    pub(super) fn to_json(&self) -> Value {
        let status = match &self.state {
            State::Running => "running",
            State::Completed => "completed",
            State::Failed(_) => "failed",
        };
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_owned(), value);
        put("id", json!(self.id));
        put("type", json!(self.task_type));
        put("status", json!(status));
        put("run", json!(self.run));
        if self.params.as_object().is_some_and(|params| !params.is_empty()) {
            put("params", self.params.clone());
        }
        if let Some(result) = &self.result {
            put("result", result.clone());
        }
        if let State::Failed(text) = &self.state {
            put("error", json!(text));
        }
        put("submittedAt", json!(self.submitted_at.to_string()));
        if let Some(at) = self.completed_at {
            put("completedAt", json!(at.to_string()));
        }
        Value::Object(fields)
    }
}
