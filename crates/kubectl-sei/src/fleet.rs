//! The selected nodes of a cluster and their pods, read once or kept current by watches.

use std::collections::{BTreeMap, BTreeSet};

use futures::StreamExt as _;
use futures::stream::{BoxStream, SelectAll, select_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use sei_api::condition::ConditionStatus;
use sei_api::names::{self, label};
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_exec::call::chain;
use sei_plan::view::PodView;

use crate::cluster::{Found, Guarded, Key, Scope, is_of_chain, key_of, nodes, unguard};
use crate::error::{Error, one_line};
use crate::flags::SelectionFlags;

/// Type of the condition with which an operator reports whether a node is Ready. Operators of
/// earlier versions have none, and pods are read instead.
const READY: &str = "Ready";

/// Whether a node is Ready, and since when.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readiness {
    /// `None` if it is unknown.
    pub(crate) is_ready: Option<bool>,
    pub(crate) since: Option<Timestamp>,
    /// Why the node is not Ready.
    pub(crate) why: String,
}

/// The nodes and, unless each of them reports whether it is Ready, their pods.
#[derive(Default)]
pub(crate) struct Fleet {
    pub(crate) nodes: BTreeMap<Key, Found>,
    pods: Option<BTreeMap<Key, PodView>>,
    /// `None` if they cannot be read, for example because their CRD is not installed.
    pub(crate) fleets: Option<BTreeMap<Key, SeiNodeDeployment>>,
    /// Nodes were named or filtered.
    is_selected: bool,
}

impl Fleet {
    pub(crate) async fn read(
        client: &Client,
        scope: &Scope,
        selection: &SelectionFlags,
    ) -> Result<Self, Error> {
        let found = nodes(client, scope, selection).await?;
        let nodes: BTreeMap<Key, Found> =
            found.into_iter().map(|node| (key_of(&node), node)).collect();
        let SelectionFlags { nodes: named, filter } = selection;
        let is_selected = !named.is_empty() || filter.selector.is_some() || filter.chain.is_some();
        let mut fleet = Self { nodes, fleets: Some(BTreeMap::new()), is_selected, pods: None };
        for scope in fleet.scopes(scope, selection) {
            let listed = scope.list::<SeiNodeDeployment>(client, "list seinodedeployments", "");
            match (listed.await, &mut fleet.fleets) {
                (Ok(listed), Some(fleets)) => {
                    fleets.extend(listed.into_iter().map(|listed| (key_of_fleet(&listed), listed)));
                }
                // Nodes can be shown without their fleets.
                (Err(Error::Call { .. }), _) => fleet.fleets = None,
                (Err(error), _) => return Err(error),
                (Ok(_), None) => {}
            }
        }
        if !fleet.needs_pods() {
            return Ok(fleet);
        }
        let mut pods = BTreeMap::new();
        for scope in fleet.scopes(scope, selection) {
            match scope.list::<Pod>(client, "list pods", label::NODE).await {
                Ok(listed) => pods.extend(listed.iter().filter_map(pod_of_node)),
                // Nodes can be shown without their pods.
                Err(Error::Call { .. }) => return Ok(fleet),
                Err(error) => return Err(error),
            }
        }
        fleet.pods = Some(pods);
        Ok(fleet)
    }

    /// The fleets to show: those of the nodes, and all others if nothing was selected.
    pub(crate) fn shown_fleets(&self) -> impl Iterator<Item = &SeiNodeDeployment> {
        let own: BTreeSet<Key> = self.nodes.values().flatten().filter_map(fleet_key).collect();
        let is_shown = move |key: &Key| !self.is_selected || own.contains(key);
        self.fleets.iter().flatten().filter(move |(key, _)| is_shown(key)).map(|(_, fleet)| fleet)
    }

    fn needs_pods(&self) -> bool {
        self.nodes.values().flatten().any(|node| ready_condition(node).is_none())
    }

    /// The scopes to read: named nodes may be in other namespaces than the rest of the scope.
    fn scopes(&self, scope: &Scope, selection: &SelectionFlags) -> Vec<Scope> {
        if selection.nodes.is_empty() {
            return vec![scope.clone()];
        }
        let namespaces: BTreeSet<&String> = self.nodes.keys().map(|(name, _)| name).collect();
        namespaces.into_iter().map(|name| Scope::Namespace(name.clone())).collect()
    }

    pub(crate) fn readiness(&self, node: &SeiNode) -> Readiness {
        if let Some(condition) = ready_condition(node) {
            let status = condition.status.as_str();
            let is_ready = (status != ConditionStatus::Unknown.as_str())
                .then_some(status == ConditionStatus::True.as_str());
            return Readiness {
                is_ready,
                since: Some(condition.last_transition_time.0),
                why: condition.message.clone(),
            };
        }
        let Some(pods) = &self.pods else { return Readiness::default() };
        let key = (node.namespace().unwrap_or_default(), node.name_any());
        let Some(pod) = pods.get(&key) else {
            let why = "the node has no pod".to_owned();
            return Readiness { is_ready: Some(false), since: None, why };
        };
        let why = match pod.troubles.first() {
            _ if pod.is_terminating() => format!("pod {} is terminating", pod.name),
            Some(trouble) => {
                format!("pod {}: {}: {}", pod.name, trouble.container, trouble.message)
            }
            None => format!("pod {} is not Ready", pod.name),
        };
        let is_ready = Some(pod.ready && !pod.is_terminating());
        Readiness { is_ready, since: pod.deleted_at.or(pod.ready_since), why }
    }
}

/// Namespace and name of the fleet that controls a node.
fn fleet_key(node: &SeiNode) -> Option<Key> {
    Some((node.namespace().unwrap_or_default(), fleet_of(node)?.to_owned()))
}

/// The fleet that controls a node.
pub(crate) fn fleet_of(node: &SeiNode) -> Option<&str> {
    let owners = node.metadata.owner_references.as_deref().unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
    (owner.kind == "SeiNodeDeployment").then_some(owner.name.as_str())
}

fn key_of_fleet(fleet: &SeiNodeDeployment) -> Key {
    (fleet.namespace().unwrap_or_default(), fleet.name_any())
}

fn ready_condition(
    node: &SeiNode,
) -> Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition> {
    let status = node.status.as_ref()?;
    status.conditions.iter().find(|condition| condition.type_ == READY)
}

/// A pod that is the pod of a node by its name.
fn pod_of_node(pod: &Pod) -> Option<(Key, PodView)> {
    let node = pod.labels().get(label::NODE)?;
    (pod.name_any() == names::pod(node))
        .then(|| ((pod.namespace().unwrap_or_default(), node.clone()), pod.into()))
}

/// An event of one of the watches.
enum Event {
    Node(Box<watcher::Event<Guarded>>),
    Pod(Box<watcher::Event<Pod>>),
    Fleet(Box<watcher::Event<SeiNodeDeployment>>),
}

/// A fleet that watches keep current.
pub(crate) struct LiveFleet {
    pub(crate) fleet: Fleet,
    selection: SelectionFlags,
    /// The named nodes; `None` if all that pass the filter are watched.
    only: Option<BTreeSet<Key>>,
    /// Nodes and pods that the list in progress has not contained yet.
    unlisted: BTreeSet<Key>,
    unlisted_pods: BTreeSet<Key>,
    unlisted_fleets: BTreeSet<Key>,
    events: SelectAll<BoxStream<'static, (Scope, Result<Event, watcher::Error>)>>,
    is_broken: bool,
}

impl LiveFleet {
    pub(crate) async fn start(
        client: &Client,
        scope: &Scope,
        selection: &SelectionFlags,
    ) -> Result<Self, Error> {
        let fleet = Fleet::read(client, scope, selection).await?;
        let only = (!selection.nodes.is_empty()).then(|| fleet.nodes.keys().cloned().collect());
        let labels = selection.filter.selector.as_deref().unwrap_or_default();
        let mut events = Vec::new();
        for scope in fleet.scopes(scope, selection) {
            let config = watcher::Config::default().labels(labels);
            let nodes = watcher(scope.api::<Guarded>(client), config).default_backoff();
            let of_nodes = scope.clone();
            let nodes =
                nodes.map(move |event| (of_nodes.clone(), event.map(Box::new).map(Event::Node)));
            events.push(nodes.boxed());
            if fleet.fleets.is_some() {
                let fleets = scope.api::<SeiNodeDeployment>(client);
                let fleets = watcher(fleets, watcher::Config::default()).default_backoff();
                let scope = scope.clone();
                let fleets =
                    fleets.map(move |event| (scope.clone(), event.map(Box::new).map(Event::Fleet)));
                events.push(fleets.boxed());
            }
            if fleet.pods.is_some() {
                let config = watcher::Config::default().labels(label::NODE);
                let pods = watcher(scope.api::<Pod>(client), config).default_backoff();
                let pods =
                    pods.map(move |event| (scope.clone(), event.map(Box::new).map(Event::Pod)));
                events.push(pods.boxed());
            }
        }
        Ok(Self {
            fleet,
            selection: selection.clone(),
            only,
            unlisted: BTreeSet::new(),
            unlisted_pods: BTreeSet::new(),
            unlisted_fleets: BTreeSet::new(),
            events: select_all(events),
            is_broken: false,
        })
    }

    /// Waits for the next change.
    pub(crate) async fn changed(&mut self) -> Result<(), Error> {
        while let Some((scope, event)) = self.events.next().await {
            match event {
                Ok(event) => {
                    self.is_broken = false;
                    self.apply(&scope, event);
                    return Ok(());
                }
                Err(error) => self.report_broken(&error)?,
            }
        }
        std::future::pending().await
    }

    /// The watcher reconnects by itself and lists again, so no change is lost.
    fn report_broken(&mut self, error: &watcher::Error) -> Result<(), Error> {
        let message = one_line(&chain(error));
        if is_forbidden(error) {
            return Err(Error::Call { message: format!("{message}; request that permission") });
        }
        if !self.is_broken {
            let message = crate::printable(&message).into_owned();
            eprintln!("warning: the watch failed and is retried: {message}");
        }
        self.is_broken = true;
        Ok(())
    }

    fn apply(&mut self, scope: &Scope, event: Event) {
        match event {
            Event::Node(event) => {
                let event = map_event(*event, |guarded| {
                    let found = unguard(guarded);
                    (key_of(&found), found)
                });
                let is_selected = |key: &Key, found: &Found| {
                    self.only.as_ref().is_none_or(|only| only.contains(key))
                        && is_of_chain(found, &self.selection.filter)
                };
                update(&mut self.fleet.nodes, &mut self.unlisted, scope, event, is_selected);
            }
            Event::Fleet(event) => {
                let event = map_event(*event, |fleet| (key_of_fleet(&fleet), fleet));
                let fleets = self.fleet.fleets.get_or_insert_default();
                update(fleets, &mut self.unlisted_fleets, scope, event, |_, _| true);
            }
            Event::Pod(event) => {
                // A pod that is none of a node has an empty key, which no node has.
                let event = map_event(*event, |pod| pod_of_node(&pod).unwrap_or_default());
                let pods = self.fleet.pods.get_or_insert_default();
                update(pods, &mut self.unlisted_pods, scope, event, |_, _| true);
            }
        }
    }
}

fn map_event<T, U>(event: watcher::Event<T>, map: impl FnOnce(T) -> U) -> watcher::Event<U> {
    match event {
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitDone => watcher::Event::InitDone,
        watcher::Event::Apply(object) => watcher::Event::Apply(map(object)),
        watcher::Event::InitApply(object) => watcher::Event::InitApply(map(object)),
        watcher::Event::Delete(object) => watcher::Event::Delete(map(object)),
    }
}

/// Applies an event of the watch of this scope. Objects that a new list lacks were deleted.
fn update<T>(
    known: &mut BTreeMap<Key, T>,
    unlisted: &mut BTreeSet<Key>,
    scope: &Scope,
    event: watcher::Event<(Key, T)>,
    is_selected: impl Fn(&Key, &T) -> bool,
) {
    match event {
        watcher::Event::Init => {
            unlisted.extend(known.keys().filter(|key| scope.contains(&key.0)).cloned());
        }
        watcher::Event::Apply((key, object)) | watcher::Event::InitApply((key, object)) => {
            unlisted.remove(&key);
            if is_selected(&key, &object) {
                known.insert(key, object);
            } else {
                known.remove(&key);
            }
        }
        watcher::Event::InitDone => {
            let missing: Vec<Key> =
                unlisted.iter().filter(|key| scope.contains(&key.0)).cloned().collect();
            for key in missing {
                unlisted.remove(&key);
                known.remove(&key);
            }
        }
        watcher::Event::Delete((key, _)) => {
            known.remove(&key);
        }
    }
}

/// Retrying does not help against a missing permission.
fn is_forbidden(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{node, ready};

    fn key(namespace: &str, name: &str) -> Key {
        (namespace.to_owned(), name.to_owned())
    }

    #[test]
    fn an_object_that_a_new_list_lacks_is_removed_in_its_scope_only() {
        let mut known =
            BTreeMap::from([(key("demo", "a"), 1), (key("demo", "b"), 1), (key("other", "c"), 1)]);
        let (mut unlisted, demo) = (BTreeSet::new(), Scope::Namespace("demo".into()));
        for event in [
            watcher::Event::Init,
            watcher::Event::InitApply((key("demo", "a"), 2)),
            watcher::Event::InitDone,
        ] {
            update(&mut known, &mut unlisted, &demo, event, |_, _| true);
        }
        assert_eq!(known, BTreeMap::from([(key("demo", "a"), 2), (key("other", "c"), 1)]));
        assert!(unlisted.is_empty());
        let moved = watcher::Event::Apply((key("demo", "a"), 3));
        update(&mut known, &mut unlisted, &demo, moved, |_, version| *version < 3);
        assert_eq!(known.len(), 1, "an object that is no longer selected is removed");
    }

    #[test]
    fn a_condition_of_the_operator_is_preferred_to_the_pod() {
        let mut fleet = Fleet::default();
        let plain = node("rpc-0");
        assert_eq!(fleet.readiness(&plain).is_ready, None, "pods cannot be read");
        let pod = PodView { name: "rpc-0-0".into(), ready: true, ..PodView::default() };
        fleet.pods = Some(BTreeMap::from([(key("demo", "rpc-0"), pod)]));
        assert_eq!(fleet.readiness(&plain).is_ready, Some(true));
        assert_eq!(fleet.readiness(&node("rpc-1")).is_ready, Some(false), "it has no pod");
        let reported = ready(plain, "False", "pod rpc-0-0 is halted");
        assert_eq!(fleet.readiness(&reported).is_ready, Some(false));
        assert_eq!(fleet.readiness(&reported).why, "pod rpc-0-0 is halted");
    }

    #[test]
    fn a_forbidden_watch_is_an_error() {
        let status = |code, reason: &str| {
            let status = kube::core::Status::failure("no", reason).with_code(code);
            watcher::Error::WatchStartFailed(kube::Error::Api(status.boxed()))
        };
        assert!(is_forbidden(&status(403, "Forbidden")));
        assert!(!is_forbidden(&status(500, "InternalError")));
    }
}
