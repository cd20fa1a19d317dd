//! The stored objects, and who watches them.

use std::collections::BTreeMap;

use hyper::body::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::fields::merge;

/// A stored object, by the plural of its kind, its namespace and its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub plural: String,
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(plural: &str, namespace: &str, name: &str) -> Self {
        let [plural, namespace, name] = [plural, namespace, name].map(str::to_owned);
        Self { plural, namespace, name }
    }
}

/// All objects, in the state after the last write.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<Key, Value>,
    /// `resourceVersion` of the last write.
    version: u64,
    drawn_uids: u64,
    events: Vec<Event>,
    watchers: Vec<Watcher>,
    /// What the operator has requested, watches aside: method and resource, with the count.
    requests: BTreeMap<String, usize>,
    /// Requests of the operator that get no answer: method and resource.
    pub(super) unanswered: Vec<String>,
}

#[derive(Debug)]
struct Event {
    version: u64,
    key: Key,
    labels: Map<String, Value>,
    line: Bytes,
}

/// Which objects a list or a watch is about.
#[derive(Clone, Debug)]
pub(super) struct Selection {
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
    /// Labels that must be there, with their value if it matters.
    pub(super) labels: Vec<(String, Option<String>)>,
}

#[derive(Debug)]
struct Watcher {
    selection: Selection,
    lines: mpsc::UnboundedSender<Bytes>,
}

impl Selection {
    fn matches(&self, key: &Key, labels: &Map<String, Value>) -> bool {
        self.plural == key.plural
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.labels.iter().all(|(name, value)| match (labels.get(name), value) {
                (Some(found), Some(value)) => found == value,
                (found, None) => found.is_some(),
                (None, Some(_)) => false,
            })
    }
}

fn labels_of(object: &Value) -> Map<String, Value> {
    object["metadata"]["labels"].as_object().cloned().unwrap_or_default()
}

impl Store {
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    /// Every object of a kind.
    pub fn all(&self, plural: &str) -> impl Iterator<Item = &Value> {
        let is_it = move |entry: &(&Key, &Value)| entry.0.plural == plural;
        self.objects.iter().filter(is_it).map(|(_, object)| object)
    }

    /// What the operator has requested since the last call, watches aside.
    pub fn take_requests(&mut self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.requests)
    }

    /// Leaves requests of the operator without an answer from now on: `LIST seinodes`.
    pub fn stop_answering(&mut self, request: &str) {
        self.unanswered.push(request.to_owned());
    }

    pub(super) fn count_request(&mut self, request: String) {
        *self.requests.entry(request).or_default() += 1;
    }

    /// Stores a new object with the metadata that a server gives it.
    pub fn create(&mut self, key: &Key, mut object: Value) -> Value {
        self.drawn_uids += 1;
        let uid = format!("00000000-0000-4000-8000-{:012x}", self.drawn_uids);
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["namespace"] = json!(key.namespace);
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!(now());
        self.put("ADDED", key, object)
    }

    /// Replaces an object. Its generation counts the changes of its spec. Returns what is stored.
    pub fn update(&mut self, key: &Key, mut object: Value) -> Value {
        let Some(before) = self.objects.get(key) else { return Value::Null };
        if *before == object {
            return object;
        }
        if before["spec"] != object["spec"] {
            let generation = before["metadata"]["generation"].as_i64().unwrap_or_default();
            object["metadata"]["generation"] = json!(generation + 1);
        }
        self.put("MODIFIED", key, object)
    }

    /// Merges a patch into an object, as a user does.
    pub fn edit(&mut self, key: &Key, patch: &Value) {
        if let Some(mut object) = self.objects.get(key).cloned() {
            merge(&mut object, patch);
            self.update(key, object);
        }
    }

    pub fn delete(&mut self, key: &Key) {
        if let Some(object) = self.objects.remove(key) {
            self.put("DELETED", key, object);
        }
    }

    fn put(&mut self, kind: &str, key: &Key, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let labels = labels_of(&object);
        // The type comes first, as from a real server: an object before it would have to be buffered.
        let line = Bytes::from(format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"));
        self.watchers.retain(|watcher| {
            let is_selected = watcher.selection.matches(key, &labels);
            !is_selected || watcher.lines.send(line.clone()).is_ok()
        });
        self.events.push(Event { version: self.version, key: key.clone(), labels, line });
        if kind != "DELETED" {
            self.objects.insert(key.clone(), object.clone());
        }
        object
    }

    pub(super) fn list(&self, selection: &Selection) -> Value {
        let is_selected = |entry: &(&Key, &Value)| selection.matches(entry.0, &labels_of(entry.1));
        let items: Vec<&Value> =
            self.objects.iter().filter(is_selected).map(|(_, object)| object).collect();
        json!({
            "apiVersion": "v1", "kind": "List", "items": items,
            "metadata": { "resourceVersion": self.version.to_string() },
        })
    }

    /// Sends what has happened after a version, and then what happens.
    pub(super) fn watch(
        &mut self,
        selection: Selection,
        after: u64,
    ) -> mpsc::UnboundedReceiver<Bytes> {
        let (lines, received) = mpsc::unbounded_channel();
        let missed = self
            .events
            .iter()
            .filter(|event| event.version > after && selection.matches(&event.key, &event.labels));
        for event in missed {
            // The receiver is alive: it is returned below.
            let _ = lines.send(event.line.clone());
        }
        self.watchers.push(Watcher { selection, lines });
        received
    }
}

/// The time in the format of Kubernetes: whole seconds.
pub(super) fn now() -> String {
    let seconds = jiff::Timestamp::now().as_second();
    jiff::Timestamp::from_second(seconds).map(|time| time.to_string()).unwrap_or_default()
}
