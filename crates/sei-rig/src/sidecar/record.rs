//! Task records on the volume.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::usual::{MARK_NOT_READY, MARK_READY};

/// Records of one volume by id. Ids are compared as texts: the same id in capitals is a different id.
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

/// Maximum length of a list.
const LIST_MAX: usize = 100;

impl Records {
    /// Records a submission, and returns whether it has to run. Type and parameters of a duplicate are
    /// ignored.
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

    /// Records the end of a task, unless its record was removed.
    pub(super) fn finish(&mut self, id: &str, outcome: Result<Option<Value>, String>) {
        let Some(record) = self.0.get_mut(id) else { return };
        record.completed_at = Some(Timestamp::now());
        match outcome {
            Ok(result) => (record.state, record.result) = (State::Completed, result),
            Err(text) => record.state = State::Failed(text),
        }
    }

    /// Removes every record of `mark-ready`, as `mark-not-ready` does.
    pub(super) fn remove_mark_ready(&mut self) {
        self.0.retain(|_, record| record.task_type != MARK_READY);
    }

    /// The tasks that were running when the previous process ended, oldest first.
    pub(super) fn unfinished(&self) -> Vec<Record> {
        let running = self.0.values().filter(|record| record.state == State::Running);
        let mut all: Vec<Record> = running.cloned().collect();
        all.sort_by_key(|record| record.submitted_at);
        all
    }

    /// Whether a `mark-not-ready` was submitted at that time or later.
    pub(super) fn has_hold_since(&self, at: Timestamp) -> bool {
        let mut holds = self.0.values().filter(|record| record.task_type == MARK_NOT_READY);
        holds.any(|record| record.submitted_at >= at)
    }

    /// The newest first; sorted by the text of the time, like the real sidecar.
    pub(super) fn list(&self) -> Vec<Value> {
        let mut all: Vec<&Record> = self.0.values().collect();
        all.sort_by_key(|record| std::cmp::Reverse(record.submitted_at.to_string()));
        all.into_iter().take(LIST_MAX).map(Record::to_json).collect()
    }
}

impl Record {
    /// Empty fields are omitted.
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
