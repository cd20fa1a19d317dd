//! A kubelet, a scheduler and a binder of claims for a plane that has none of them.
//!
//! It runs no containers: it says of every pod of a node what a kubelet would say, and serves the
//! pod's sidecar at the pod's own address. As on a real machine the chain process is held until
//! this pod's own sidecar says that it may start.

mod addresses;
mod claims;
mod life;
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
pub use self::claims::ClaimRule;
use self::claims::Claims;
use self::life::{Deletion, Order};
use self::rules::Rules;
pub use self::rules::{Behaviour, Rule, RuleId};
use self::status::Subject;
use crate::sidecar::Sidecars;

/// What the only machine is called.
const HOST: &str = "rig";

/// How long to wait before the server is asked again that did not answer.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// How long things take. Far less than in life, and long enough that each state is seen.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// From being bound to running.
    pub start: Duration,
    /// From being told to stop to being gone.
    pub stop: Duration,
    /// How long a pull is said to have failed before it is not tried for a while.
    pub pull: Duration,
    /// How long a process runs that ends by itself.
    pub run: Duration,
    /// From a first crash to the next start; doubles with each crash, up to 32 times.
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

/// The kubelet of a whole plane. Dropped, it does nothing more, and its sidecars are gone.
pub struct Kubelet {
    shared: Arc<Shared>,
    /// Aborted with it.
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
    pods: Mutex<BTreeMap<String, Strings>>,
}

/// What a pod's life hangs on.
#[derive(Debug)]
struct Strings {
    namespace: String,
    node: String,
    orders: mpsc::UnboundedSender<Order>,
    deletion: watch::Sender<Deletion>,
}

impl Kubelet {
    /// Starts it in the runtime of the caller.
    pub fn start(client: Client, addresses: Addresses) -> Self {
        Self::start_with(client, addresses, Timing::default())
    }

    /// The same with times of its own.
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
        tasks.spawn(watch_pods(shared.clone()));
        Self { shared, _tasks: tasks }
    }

    /// From now on pods of this namespace follow the rule, those that run too.
    pub fn behave(&self, namespace: &str, rule: Rule) -> RuleId {
        let id = RuleId::draw();
        self.shared.rules.send_modify(|rules| rules.add(id, namespace, rule));
        id
    }

    /// Takes a rule back.
    pub fn lift(&self, id: RuleId) {
        self.shared.rules.send_modify(|rules| rules.remove(id));
    }

    /// Takes all rules of a namespace back.
    pub fn lift_all(&self, namespace: &str) {
        self.shared.rules.send_modify(|rules| rules.remove_all(namespace));
    }

    /// What is done with claims of this namespace that come from now on.
    pub fn treat_claims(&self, namespace: &str, rule: ClaimRule) {
        lock(&self.shared.claim_rules).insert(namespace.to_owned(), rule);
    }

    /// Restarts the sidecar's container in the pods of a node, in place.
    pub fn restart_sidecar(&self, namespace: &str, node: &str) {
        let pods = lock(&self.shared.pods);
        let is_its = |one: &&Strings| one.namespace == namespace && one.node == node;
        for one in pods.values().filter(is_its) {
            // An error means that the pod has just ended.
            let _ = one.orders.send(Order::RestartSidecar);
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

    /// Begins the life of a pod, or tells it that it is to end.
    fn see(self: &Arc<Self>, pod: &Pod, lives: &mut JoinSet<()>) {
        let Some(subject) = Subject::of(pod) else { return };
        let is_asked = pod.metadata.deletion_timestamp.is_some();
        let mut pods = lock(&self.pods);
        let strings = pods.entry(subject.uid.clone()).or_insert_with(|| {
            let (orders, received) = mpsc::unbounded_channel();
            let deletion = watch::Sender::new(Deletion::None);
            let (namespace, node) = (subject.namespace.clone(), subject.node.clone());
            let seen = deletion.subscribe();
            lives.spawn(life::run(self.clone(), subject, received, seen));
            Strings { namespace, node, orders, deletion }
        });
        if is_asked {
            strings.deletion.send_replace(Deletion::Asked);
        }
    }

    fn see_gone(&self, uid: &str) {
        if let Some(strings) = lock(&self.pods).remove(uid) {
            strings.deletion.send_replace(Deletion::Gone);
        }
    }
}

/// Sees every pod of a node, for ever.
async fn watch_pods(shared: Arc<Shared>) {
    let api: Api<Pod> = Api::all(shared.client.clone());
    let config = watcher::Config::default().labels(label::NODE);
    let mut events = std::pin::pin!(watch_objects(api, config).default_backoff());
    let mut lives = JoinSet::new();
    let mut listed: Vec<String> = Vec::new();
    while let Some(event) = events.next().await {
        while lives.try_join_next().is_some() {}
        match event {
            Ok(Event::Apply(pod)) => shared.see(&pod, &mut lives),
            Ok(Event::Delete(pod)) => {
                shared.see_gone(pod.metadata.uid.as_deref().unwrap_or_default());
            }
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(pod)) => {
                listed.extend(pod.metadata.uid.clone());
                shared.see(&pod, &mut lives);
            }
            Ok(Event::InitDone) => {
                let known: Vec<String> = lock(&shared.pods).keys().cloned().collect();
                for uid in known.iter().filter(|uid| !listed.contains(uid)) {
                    shared.see_gone(uid);
                }
            }
            // The stream begins anew by itself.
            Err(_) => {}
        }
    }
}

/// Asks until the server has done it or says that it never will: the object is gone, or it is
/// another one by the same name.
async fn insist<Asked>(ask: impl Fn() -> Asked)
where
    Asked: Future<Output = kube::Result<()>>,
{
    loop {
        match ask().await {
            Ok(()) => return,
            Err(kube::Error::Api(reply)) if (400..500).contains(&reply.code) => match reply.code {
                404 | 409 => return,
                429 => {}
                // It would look like a pod that stands still for no reason.
                code => {
                    eprintln!("the test kubelet was refused ({code}): {}", reply.message);
                    return;
                }
            },
            Err(_) => {}
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

/// A panic of one test must not take the kubelet from the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
