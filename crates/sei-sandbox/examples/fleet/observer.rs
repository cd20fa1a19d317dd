//! Sees each change of pods and nodes, so that the time of each node is known.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Client, Resource, ResourceExt as _};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType};
use sei_api::names::label;
use sei_api::status::SeiNodePhase;
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;

/// How often what was seen is compared with what is expected.
const CHECK: Duration = Duration::from_millis(20);

/// What is known of a node and its pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) phase: Option<SeiNodePhase>,
    /// The image in its spec.
    pub(crate) image: Option<String>,
    pub(crate) current_image: Option<String>,
    /// Its condition `Ready`.
    pub(crate) is_ready: bool,
    /// The node runs what its newest spec asks for.
    pub(crate) is_settled: bool,
    pub(crate) pod: Option<SeenPod>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenPod {
    pub(crate) uid: String,
    pub(crate) images: Vec<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) is_running: bool,
    pub(crate) is_ready: bool,
}

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, Seen>,
    deleted_pods: usize,
}

/// Watches one namespace until it is dropped.
pub(crate) struct Observer {
    state: Arc<Mutex<State>>,
    _tasks: JoinSet<()>,
}

impl Observer {
    pub(crate) fn start(client: &Client, namespace: &str) -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let mut tasks = JoinSet::new();
        let (nodes, pods) = (Arc::clone(&state), Arc::clone(&state));
        let api: Api<SeiNode> = Api::namespaced(client.clone(), namespace);
        tasks.spawn(follow(api, String::new(), move |node: SeiNode, is_deleted| {
            let mut state = nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let seen = state.nodes.entry(node.name_any()).or_default();
            if !is_deleted {
                put_node(seen, &node);
            }
        }));
        let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
        tasks.spawn(follow(api, label::NODE.to_owned(), move |pod: Pod, is_deleted| {
            let mut state = pods.lock().unwrap_or_else(PoisonError::into_inner);
            put_pod(&mut state, &pod, is_deleted);
        }));
        Self { state, _tasks: tasks }
    }

    /// Pods that were deleted so far.
    pub(crate) fn deleted_pods(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).deleted_pods
    }

    pub(crate) fn seen(&self, node: &str) -> Seen {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.nodes.get(node).cloned().unwrap_or_default()
    }

    /// Waits until each node is as expected, and returns how long each took from its own beginning.
    pub(crate) async fn wait(
        &self,
        begun: &BTreeMap<String, Instant>,
        within: Duration,
        is_done: impl Fn(&str, &Seen) -> bool,
    ) -> Result<Vec<Duration>> {
        let deadline = Instant::now() + within;
        let mut open = begun.clone();
        let mut times = Vec::new();
        while !open.is_empty() {
            {
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                open.retain(|name, begun| {
                    let is_open = !state.nodes.get(name).is_some_and(|seen| is_done(name, seen));
                    if !is_open {
                        times.push(begun.elapsed());
                    }
                    is_open
                });
            }
            if let Some(name) = open.keys().next().filter(|_| Instant::now() > deadline) {
                let seen = self.seen(name);
                anyhow::bail!(
                    "{} of {} nodes are not done after {} s, {name} is {seen:?}",
                    open.len(),
                    begun.len(),
                    within.as_secs()
                );
            }
            tokio::time::sleep(CHECK).await;
        }
        Ok(times)
    }
}

fn put_node(seen: &mut Seen, node: &SeiNode) {
    seen.image = Some(node.spec.image.clone());
    let Some(status) = &node.status else { return };
    seen.is_ready = condition::is(&status.conditions, ConditionType::Ready, ConditionStatus::True);
    seen.phase = status.phase;
    seen.current_image.clone_from(&status.current_image);
    seen.is_settled = status.observed_generation >= node.metadata.generation
        && status.plan.is_none()
        && status.pending_update.is_none();
}

fn put_pod(state: &mut State, pod: &Pod, is_deleted: bool) {
    let labels = pod.labels().clone();
    let Some(node) = labels.get(label::NODE) else { return };
    // Pods of other purposes have the label too.
    if pod.name_any() != format!("{node}-0") {
        return;
    }
    let uid = pod.uid().unwrap_or_default();
    let seen = state.nodes.entry(node.clone()).or_default();
    if is_deleted {
        seen.pod.take_if(|known| known.uid == uid);
        state.deleted_pods += 1;
        return;
    }
    let status = pod.status.as_ref();
    let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    seen.pod = Some(SeenPod {
        uid,
        images: containers.filter_map(|container| container.image.clone()).collect(),
        labels,
        is_running: status.is_some_and(|status| status.phase.as_deref() == Some("Running")),
        is_ready: conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True"),
    });
}

/// Lists and watches, and again when the watch ends.
async fn follow<K>(api: Api<K>, selector: String, mut put: impl FnMut(K, bool))
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    loop {
        if let Err(error) = follow_once(&api, &selector, &mut put).await {
            println!("  watch of {}: {error:#}", api.resource_url());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn follow_once<K>(api: &Api<K>, selector: &str, put: &mut impl FnMut(K, bool)) -> Result<()>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default().labels(selector)).await?;
    let version = list.metadata.resource_version.clone().context("a list has a version")?;
    list.items.into_iter().for_each(|object| put(object, false));
    let params = WatchParams::default().labels(selector);
    let mut events = api.watch(&params, &version).await?.boxed();
    while let Some(event) = events.try_next().await? {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => put(object, false),
            WatchEvent::Deleted(object) => put(object, true),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(error) => return Err(anyhow::anyhow!("{error:?}")),
        }
    }
    Ok(())
}
