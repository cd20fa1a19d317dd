//! A kubelet, a scheduler and a volume binder for a control plane that has none of them.
//!
//! It runs no containers: it writes the status that a real kubelet would write for every pod of a
//! node, and serves the pod's sidecar at the pod's own address. As on a real machine the chain
//! process is held until the readiness gate of the same pod's sidecar is open.

mod addresses;
mod claims;
mod lifecycle;
mod rules;
mod status;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch_objects};
use kube::{Api, Client};
use sei_api::names::label;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use self::addresses::Addresses;
pub(crate) use self::addresses::PORT as SIDECAR_PORT;
pub use self::claims::ClaimRule;
use self::claims::Claims;
use self::lifecycle::{Command, Deletion};
use self::rules::Rules;
pub use self::rules::{Behaviour, Rule, RuleId};
use self::status::Subject;
use crate::sidecar::Sidecars;

/// Name of the only Kubernetes node.
const HOST: &str = "rig";

/// How long to wait before a failed request is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Durations of the simulated states: much shorter than on real machines, but long enough that
/// watches observe each state.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From the binding of the pod until its containers run.
    pub start: Duration,
    /// From the delete request until the pod is removed.
    pub stop: Duration,
    /// How long `ErrImagePull` is reported before `ImagePullBackOff`.
    pub pull: Duration,
    /// How long a process runs before it ends by itself.
    pub run: Duration,
    /// From the first crash to the next start; doubles with each crash, up to a factor of 32.
    pub back_off: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            start: Duration::from_millis(100),
            stop: Duration::from_millis(50),
            pull: Duration::from_millis(100),
            run: Duration::from_millis(50),
            back_off: Duration::from_millis(200),
        }
    }
}

/// The kubelet of a whole control plane. It stops with all its sidecars when it is dropped.
pub struct Kubelet {
    shared: Arc<Shared>,
    /// Aborted when the kubelet is dropped.
    _tasks: JoinSet<()>,
}

struct Shared {
    client: Client,
    addresses: Addresses,
    timing: Timing,
    sidecars: Arc<Sidecars>,
    rules: watch::Sender<Rules>,
    claims: watch::Sender<Claims>,
    claim_rules: Mutex<BTreeMap<String, ClaimRule>>,
    /// By uid.
    pods: Mutex<BTreeMap<String, PodHandle>>,
}

/// Controls the lifecycle task of a pod.
#[derive(Debug)]
struct PodHandle {
    namespace: String,
    node: String,
    /// The label that its watch selects by.
    label: &'static str,
    commands: mpsc::UnboundedSender<Command>,
    deletion: watch::Sender<Deletion>,
}

impl Kubelet {
    /// Starts the kubelet in the runtime of the caller.
    pub fn start(client: Client, addresses: Addresses) -> Self {
        Self::start_with(client, addresses, Timing::default())
    }

    /// The same with other timing.
    pub fn start_with(client: Client, addresses: Addresses, timing: Timing) -> Self {
        let shared = Arc::new(Shared {
            client,
            addresses,
            timing,
            sidecars: Arc::default(),
            rules: watch::Sender::default(),
            claims: watch::Sender::default(),
            claim_rules: Mutex::default(),
            pods: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(claims::run(shared.clone()));
        for label in [label::NODE, label::PRE_PULL] {
            tasks.spawn(watch_pods(shared.clone(), label));
        }
        Self { shared, _tasks: tasks }
    }

    /// Applies a rule to the pods of this namespace, including those that already run.
    pub fn behave(&self, namespace: &str, rule: Rule) -> RuleId {
        let id = RuleId::next();
        self.shared.rules.send_modify(|rules| rules.add(id, namespace, rule));
        id
    }

    /// Removes a rule.
    pub fn lift(&self, id: RuleId) {
        self.shared.rules.send_modify(|rules| rules.remove(id));
    }

    /// Removes all rules of a namespace.
    pub fn lift_all(&self, namespace: &str) {
        self.shared.rules.send_modify(|rules| rules.remove_all(namespace));
    }

    /// Sets how claims of this namespace are treated from now on.
    pub fn treat_claims(&self, namespace: &str, rule: ClaimRule) {
        lock(&self.shared.claim_rules).insert(namespace.to_owned(), rule);
    }

    /// Restarts the sidecar's container in the pods of a node, in place.
    pub fn restart_sidecar(&self, namespace: &str, node: &str) {
        let pods = lock(&self.shared.pods);
        let is_of_node = |pod: &&PodHandle| pod.namespace == namespace && pod.node == node;
        for pod in pods.values().filter(is_of_node) {
            // An error means that the pod has just ended.
            let _ = pod.commands.send(Command::RestartSidecar);
        }
    }

    /// The sidecars of all pods.
    pub fn sidecars(&self) -> &Sidecars {
        &self.shared.sidecars
    }
}

impl Shared {
    fn claim_rule(&self, namespace: &str) -> ClaimRule {
        lock(&self.claim_rules).get(namespace).copied().unwrap_or_default()
    }

    /// Starts the lifecycle of a new pod, and passes on the deletion of a known one.
    fn observe(self: &Arc<Self>, pod: &Pod, lifecycles: &mut JoinSet<()>) {
        let Some(subject) = Subject::of(pod) else { return };
        let is_deleting = pod.metadata.deletion_timestamp.is_some();
        let mut pods = lock(&self.pods);
        let handle = pods.entry(subject.uid.clone()).or_insert_with(|| {
            let (commands, received) = mpsc::unbounded_channel();
            let deletion = watch::Sender::new(Deletion::None);
            let (namespace, node) = (subject.namespace.clone(), subject.node.clone());
            let label = if subject.is_pre_pull { label::PRE_PULL } else { label::NODE };
            let progress = deletion.subscribe();
            lifecycles.spawn(lifecycle::run(self.clone(), subject, received, progress));
            PodHandle { namespace, node, label, commands, deletion }
        });
        if is_deleting {
            handle.deletion.send_replace(Deletion::Requested);
        }
    }

    fn observe_deleted(&self, uid: &str) {
        if let Some(handle) = lock(&self.pods).remove(uid) {
            handle.deletion.send_replace(Deletion::Complete);
        }
    }
}

/// Watches the pods of all nodes that have this label until it is aborted.
async fn watch_pods(shared: Arc<Shared>, label: &'static str) {
    let api: Api<Pod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().labels(label);
    let mut events = std::pin::pin!(watch_objects(api, config).default_backoff());
    let mut lifecycles = JoinSet::new();
    let mut listed: Vec<String> = Vec::new();
    while let Some(event) = events.next().await {
        while lifecycles.try_join_next().is_some() {}
        match event {
            Ok(Event::Apply(pod)) => shared.observe(&pod, &mut lifecycles),
            Ok(Event::Delete(pod)) => {
                shared.observe_deleted(pod.metadata.uid.as_deref().unwrap_or_default());
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.metadata.uid.clone());
                shared.observe(&pod, &mut lifecycles);
            }
            Ok(Event::InitDone) => {
                let known: Vec<String> = {
                    let pods = lock(&shared.pods);
                    let of_watch = pods.iter().filter(|(_, pod)| pod.label == label);
                    of_watch.map(|(uid, _)| uid.clone()).collect()
                };
                for uid in known.iter().filter(|uid| !listed.contains(uid)) {
                    shared.observe_deleted(uid);
                }
            }
            // The stream restarts by itself.
            Err(_) => {}
        }
    }
}

/// Repeats a request until it succeeds or cannot succeed any more: the object does not exist, or a
/// new object has the same name.
async fn retry<Response>(request: impl Fn() -> Response)
where
    Response: Future<Output = kube::Result<()>>,
{
    loop {
        match request().await {
            Ok(()) => return,
            Err(kube::Error::Api(reply)) if (400..500).contains(&reply.code) => match reply.code {
                404 | 409 => return,
                429 => {}
                // Without this line the pod would stop changing without a visible reason.
                code => {
                    eprintln!("a request of the test kubelet failed ({code}): {}", reply.message);
                    return;
                }
            },
            Err(_) => {}
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

/// Ignores poisoning: a panic of one test must not fail the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
