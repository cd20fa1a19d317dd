//! The objects of a cluster, as the API server stores them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::node::SeiNodeSpec;
use sei_api::status::SeiNodeStatus;
use sei_plan::pre_pull::PrePullView;
use sei_plan::request::{ClaimView, SecretView, TaskState};
use sei_plan::shared::Shared;
use sei_plan::signing_record::SigningRecord;
use sei_plan::template::Template;
use sei_plan::view::{JobView, ObjectView, StatefulSetView};

use crate::pod::{Blueprint, Pod};
use crate::render::Platforms;
use crate::safety::Safety;

/// A cluster. Maps are keyed by the object, except where the doc names another key.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The clock of the server, the controllers and the kubelets.
    pub now: Timestamp,
    serial: u64,
    /// How often a node of this name was created.
    created: BTreeMap<ObjectKey, u32>,
    pub platforms: Platforms,
    pub nodes: BTreeMap<ObjectKey, Shared<SeiNode>>,
    pub sets: BTreeMap<ObjectKey, Shared<StatefulSetView>>,
    /// Templates of `ControllerRevision`s, by namespace and name.
    pub revisions: BTreeMap<ObjectKey, Shared<Template>>,
    pub pods: BTreeMap<ObjectKey, Shared<Pod>>,
    /// The pods that pull images, by node.
    pub pre_pulls: BTreeMap<ObjectKey, PrePull>,
    pub claims: BTreeMap<ObjectKey, ClaimView>,
    pub services: BTreeMap<ObjectKey, Object>,
    pub config_maps: BTreeMap<ObjectKey, Object>,
    /// Bootstrap Jobs, by node.
    pub jobs: BTreeMap<ObjectKey, Job>,
    pub secrets: BTreeMap<ObjectKey, SecretView>,
    /// What deleted signers have left.
    pub records: BTreeMap<ObjectKey, SigningRecord>,
    /// Task records of sidecars by the uid of the claim that they are stored on: they survive pods.
    pub tasks: BTreeMap<String, BTreeMap<String, Task>>,
    pub faults: Faults,
    pub safety: Safety,
}

/// What does not work in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    pub unpullable: BTreeSet<String>,
    /// Images whose chain process crashes soon after its start.
    pub crashing: BTreeSet<String>,
    /// Chains that make no blocks: pods run and are not Ready.
    pub halted: BTreeSet<String>,
    /// Types of sidecar tasks that fail.
    pub failing_tasks: BTreeSet<String>,
    /// Sidecars end a task before they answer its submission.
    pub instant_tasks: bool,
    /// Nodes whose pods do not end.
    pub stuck: BTreeSet<ObjectKey>,
}

/// A Service or `ConfigMap`.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    pub view: ObjectView,
    /// Digest of what was written.
    pub content: String,
}

/// The pod that pulls images.
#[derive(Clone, Debug, PartialEq)]
pub struct PrePull {
    pub view: PrePullView,
    pub images: Vec<String>,
}

/// A bootstrap Job with what its pods are made from.
#[derive(Clone, Debug)]
pub struct Job {
    pub view: JobView,
    pub blueprint: Shared<Blueprint>,
}

/// A task of a sidecar.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    pub task_type: String,
    pub state: TaskState,
}

impl Cluster {
    /// An empty cluster.
    ///
    /// # Panics
    ///
    /// Never: the time is far from the limits of the type.
    pub fn new(platforms: Platforms) -> Self {
        Self {
            now: Timestamp::from_second(1_800_000_000).expect("a constant time is valid"),
            serial: 0,
            created: BTreeMap::new(),
            platforms,
            nodes: BTreeMap::new(),
            sets: BTreeMap::new(),
            revisions: BTreeMap::new(),
            pods: BTreeMap::new(),
            pre_pulls: BTreeMap::new(),
            claims: BTreeMap::new(),
            services: BTreeMap::new(),
            config_maps: BTreeMap::new(),
            jobs: BTreeMap::new(),
            secrets: BTreeMap::new(),
            records: BTreeMap::new(),
            tasks: BTreeMap::new(),
            faults: Faults::default(),
            safety: Safety::default(),
        }
    }

    /// The newest resourceVersion.
    pub fn version(&self) -> u64 {
        self.serial
    }

    /// The next resourceVersion, which also makes uids unique.
    pub fn next_version(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Time passes.
    ///
    /// # Panics
    ///
    /// Never: the time is far from the limits of the type.
    pub fn wait(&mut self, seconds: i64) {
        let later = self.now.checked_add(SignedDuration::from_secs(seconds));
        self.now = later.expect("a test does not run for centuries");
    }

    /// Creates a node; false if a node of this name exists.
    pub fn create_node(&mut self, key: &ObjectKey, spec: SeiNodeSpec) -> bool {
        if self.nodes.contains_key(key) {
            return false;
        }
        let serial = self.next_version();
        let times = self.created.entry(key.clone()).or_default();
        *times += 1;
        let mut node = SeiNode::new(&key.name, spec);
        node.metadata.namespace = Some(key.namespace.clone());
        node.metadata.uid = Some(format!("node-{}-{}-{times}", key.namespace, key.name));
        node.metadata.resource_version = Some(serial.to_string());
        node.metadata.generation = Some(1);
        node.metadata.creation_timestamp = Some(Time(self.now));
        self.nodes.insert(key.clone(), Shared::new(node));
        true
    }

    pub fn status(&self, key: &ObjectKey) -> SeiNodeStatus {
        self.nodes.get(key).and_then(|node| node.status.clone()).unwrap_or_default()
    }

    /// Changes a node as a client does: a changed spec is a new generation. An object that has lost
    /// its last finalizer is removed.
    pub fn change_node(&mut self, key: &ObjectKey, change: impl FnOnce(&mut SeiNode)) {
        let Some(before) = self.nodes.get(key).cloned() else { return };
        let mut node = before.clone();
        change(&mut node);
        if node == before {
            return;
        }
        if node.spec != before.spec {
            *node.metadata.generation.get_or_insert(1) += 1;
        }
        let is_held = node.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
        if node.metadata.deletion_timestamp.is_some() && !is_held {
            self.nodes.remove(key);
            return;
        }
        node.metadata.resource_version = Some(self.next_version().to_string());
        self.nodes.insert(key.clone(), node);
    }

    pub fn edit(&mut self, key: &ObjectKey, change: impl FnOnce(&mut SeiNodeSpec)) {
        self.change_node(key, |node| change(&mut node.spec));
    }

    pub fn annotate(&mut self, key: &ObjectKey, name: &str, value: Option<&str>) {
        self.change_node(key, |node| {
            let all = node.metadata.annotations.get_or_insert_default();
            match value {
                Some(value) => drop(all.insert(name.to_owned(), value.to_owned())),
                None => drop(all.remove(name)),
            }
        });
    }

    /// A user deletes a node.
    pub fn delete_node(&mut self, key: &ObjectKey) {
        let now = self.now;
        self.change_node(key, |node| {
            node.metadata.deletion_timestamp.get_or_insert(Time(now));
        });
    }

    /// Changes a StatefulSet; `is_spec`: the change makes a new generation.
    pub fn change_set(
        &mut self,
        key: &ObjectKey,
        is_spec: bool,
        change: impl FnOnce(&mut StatefulSetView),
    ) {
        let Some(before) = self.sets.get(key).cloned() else { return };
        let mut set = before.clone();
        change(&mut set);
        if set == before {
            return;
        }
        if is_spec {
            set.generation += 1;
        }
        set.resource_version = self.next_version().to_string();
        self.sets.insert(key.clone(), set);
    }

    /// Changes a pod; its version follows if anything changed that a client sees.
    pub fn change_pod(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Pod)) {
        let Some(before) = self.pods.get(key).cloned() else { return };
        let mut pod = before.clone();
        change(&mut pod);
        if !pod.view.equals_but_version(&before.view) {
            pod.view.resource_version = self.next_version().to_string();
        }
        self.pods.insert(key.clone(), pod);
    }

    /// Marks a pod as deleted; its kubelet ends it.
    pub fn delete_pod(&mut self, key: &ObjectKey) {
        let now = self.now;
        self.change_pod(key, |pod| {
            pod.view.deleted_at.get_or_insert(now);
            pod.view.ready = false;
        });
    }

    /// The pods with the label of a node.
    pub fn pods_of(&self, node: &ObjectKey) -> impl Iterator<Item = (&ObjectKey, &Shared<Pod>)> {
        let node = node.clone();
        self.pods
            .iter()
            .filter(move |(key, pod)| key.namespace == node.namespace && pod.label == node.name)
    }

    /// The pod of the node's StatefulSet.
    pub fn own_pod(&self, node: &ObjectKey) -> Option<&Shared<Pod>> {
        let set = self.sets.get(node)?;
        let pod = self.pods.get(&pod_key(node))?;
        sei_plan::view::is_owned(&pod.view, set).then_some(pod)
    }
}

/// The key of the node's only pod.
pub fn pod_key(node: &ObjectKey) -> ObjectKey {
    ObjectKey::new(&node.namespace, sei_api::names::pod(&node.name))
}
