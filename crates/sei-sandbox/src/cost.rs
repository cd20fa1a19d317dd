//! What a reconcile and an image update cost the operator.
//!
//! The operator runs on the calling thread, everything else on others. A phase changes some nodes
//! and ends when the operator has followed and its thread rests, so a meter of the calling thread
//! that is wrapped around a phase counts what the operator did and nothing else.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::ByteString;
use sei_operator::runtime::controller::InFlight;
use sei_operator::runtime::metrics::Metrics;
use sei_operator::{Options, TokenSource};
use sei_plan::fingerprint::Algorithm;
use sei_plan::platform::Platform;
use sei_plan::timing::Timing;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::memory::{Key, Server, Store};

/// One node in this many is a validator.
pub const VALIDATOR_EVERY: usize = 10;

const NAMESPACE: &str = "default";
const CHAIN: &str = "bench-1";
const PLATFORM: &str = include_str!("platform.yaml");

/// The configuration with which all nodes are updated together: what is measured is an update, and not
/// the wait for a turn.
pub fn at_once(platform: &str) -> String {
    platform.replace("rollout: {", "rollout: { onImageChange: AtOnce,")
}

/// How long the operator's thread must not have run for the operator to be at rest. Longer than
/// any wait of the operator or of the kubelet between two steps of an update.
const REST: Duration = Duration::from_millis(700);

/// After it each sidecar that was not ready at first has been probed again, and not for a minute then.
/// Such a probe would be counted to whatever changes meanwhile.
const SECOND_PROBE: Duration = Duration::from_secs(6);

/// Bound for a phase. Under valgrind everything takes fifty times as long.
const PHASE_MAX: Duration = Duration::from_secs(900);

/// What changes in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// An annotation that means nothing: each node is reconciled once and nothing is written.
    NoOp,
    /// The image: each pod is replaced.
    ImageUpdate,
}

/// What the operator requested in a phase, watches aside: `PATCH seinodes/status`, with the count.
pub type Requests = BTreeMap<String, usize>;

/// What a phase costs for each node that was changed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    pub allocations: u64,
    pub bytes: u64,
    pub instructions: Option<u64>,
    pub requests: f64,
    pub status_writes: f64,
}

/// Measured at commit c197987, x86-64, in release mode with `cost no-op 100 20`, the instructions
/// under callgrind.
pub const NO_OP_BASELINE: Cost = Cost {
    allocations: 13_367,
    bytes: 1_622_707,
    instructions: Some(10_210_541),
    requests: 0.0,
    status_writes: 0.0,
};

/// Measured at commit c197987, x86-64, in release mode with `cost image-update 100 20`, the mean of
/// three runs. How many changes a reconcile covers depends on timing, which makes 7 % up and down.
/// Under callgrind six statuses are written for each node instead of two, so its instructions
/// compare only with those of another run under callgrind.
pub const IMAGE_UPDATE_BASELINE: Cost = Cost {
    allocations: 152_974,
    bytes: 19_461_660,
    instructions: Some(152_556_418),
    requests: 8.4,
    status_writes: 2.0,
};

/// What the tests allow for a reconcile that changes nothing, beside the decoding of its watch event,
/// which costs the same whatever the operator does then. 213 allocations are needed.
pub const NO_OP_MAX: Cost =
    Cost { allocations: 300, bytes: 60_000, instructions: None, requests: 0.0, status_writes: 0.0 };

/// What the tests allow: less than a fifth of the baseline. A run with four status writes needs 23 200
/// allocations. On a busy machine progress that is held back for five seconds is written in between,
/// so the limits leave room for more writes than the two of a machine at rest.
pub const IMAGE_UPDATE_MAX: Cost = Cost {
    allocations: 27_000,
    bytes: 5_500_000,
    instructions: None,
    requests: 15.0,
    status_writes: 7.0,
};

impl Cost {
    /// Divides what was counted in a phase by the nodes that were changed in it.
    #[allow(clippy::cast_precision_loss, reason = "counts of requests are small")]
    pub fn new(changed: usize, allocations: u64, bytes: u64, requests: &Requests) -> Self {
        let nodes = changed.max(1);
        let writes = requests.get("PATCH seinodes/status").copied().unwrap_or_default();
        Self {
            allocations: allocations / nodes as u64,
            bytes: bytes / nodes as u64,
            instructions: None,
            requests: requests.values().sum::<usize>() as f64 / nodes as f64,
            status_writes: writes as f64 / nodes as f64,
        }
    }

    /// Whether nothing that every machine counts is above the limit.
    pub fn is_within(&self, limit: &Self) -> bool {
        self.allocations <= limit.allocations
            && self.bytes <= limit.bytes
            && self.requests <= limit.requests
            && self.status_writes <= limit.status_writes
    }
}

/// A fleet at rest, with its operator.
pub struct Fleet {
    runtime: Runtime,
    server: Arc<Server>,
    names: Vec<String>,
    /// Counts the phases, so that each changes something.
    phases: usize,
    operator: PathBuf,
    _stop: watch::Sender<bool>,
}

impl Fleet {
    /// Creates nodes and lets the operator bring them up, until all run and nothing happens.
    pub fn start(count: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = Arc::new(Server::start()?);
        let (stop, stopped) = watch::channel(false);
        let (ready, is_ready) = watch::channel(false);
        let options = Options {
            platform: Arc::new(Platform::parse(&at_once(PLATFORM), "platform.yaml")?),
            platform_path: None,
            namespaces: [].into(),
            sidecar_token: TokenSource::None,
            timing: Timing::default(),
            // They come when they are due, and would be counted to whatever changes then.
            rpc_reads: 0,
            version: sei_operator::VERSION.to_owned(),
            in_flight: InFlight::default(),
            algorithm: Algorithm::CURRENT,
            metrics: Metrics::new(),
        };
        let client = {
            let _context = runtime.enter();
            server.client(&options.metrics)
        };
        runtime.spawn(sei_operator::run(client, options, stopped, ready));
        let mut is_ready = is_ready;
        runtime.block_on(is_ready.wait_for(|ready| *ready)).context("the operator has ended")?;
        let operator = std::fs::read_link("/proc/thread-self").context("/proc is needed")?;
        let operator = PathBuf::from("/proc").join(operator);
        let names = (0..count).map(|index| format!("node-{index:03}")).collect();
        let fleet = Self { runtime, server, names, phases: 0, operator, _stop: stop };
        let names = fleet.names.clone();
        fleet.follow(names, image(0), move |store| {
            for index in 0..count {
                create_node(store, index);
            }
        })?;
        fleet.runtime.block_on(async { tokio::time::sleep(SECOND_PROBE).await });
        Ok(fleet)
    }

    /// Changes the first nodes, and waits until the operator has followed. `meter` runs what it is
    /// given on this thread, once.
    pub fn run<T>(
        &mut self,
        phase: Phase,
        changed: usize,
        meter: impl FnOnce(&mut dyn FnMut()) -> T,
    ) -> Result<(T, Requests)> {
        ensure!(changed <= self.names.len(), "only {} nodes exist", self.names.len());
        self.server.store().take_requests();
        let names = self.names[..changed].to_vec();
        self.phases += 1;
        let (phases, image) = (self.phases, image(self.phases));
        let patch = match phase {
            Phase::NoOp => {
                let annotations = json!({ "example.com/touched": phases.to_string() });
                json!({ "metadata": { "annotations": annotations } })
            }
            Phase::ImageUpdate => json!({ "spec": { "image": image } }),
        };
        let expected = match phase {
            Phase::NoOp => String::new(),
            Phase::ImageUpdate => image,
        };
        let mut followed = Ok(());
        let figures = meter(&mut || {
            let (names, patched) = (names.clone(), names.clone());
            let patch = patch.clone();
            followed = self.follow(names, expected.clone(), move |store| {
                for name in &patched {
                    store.edit(&node_key(name), &patch);
                }
            });
        });
        followed?;
        let requests = self.server.store().take_requests();
        if phase == Phase::NoOp {
            ensure!(requests.is_empty(), "a reconcile of nodes at rest requested {requests:?}");
        }
        Ok((figures, requests))
    }

    /// Lets others write objects, and waits until the operator rests. `meter` is as in [`Self::run`].
    pub fn write<T>(
        &mut self,
        write: impl Fn(&mut Store) + Send + Sync + 'static,
        meter: impl FnOnce(&mut dyn FnMut()) -> T,
    ) -> Result<T> {
        let write = Arc::new(write);
        let mut followed = Ok(());
        let figures = meter(&mut || {
            let write = write.clone();
            followed = self.follow(Vec::new(), String::new(), move |store| write(store));
        });
        followed?;
        Ok(figures)
    }

    /// The objects.
    pub fn store(&self) -> std::sync::MutexGuard<'_, Store> {
        self.server.store()
    }

    /// A watch event of the first object of a kind, as the server sends it.
    pub fn watch_event(&self, plural: &str) -> String {
        let object = self.server.store().all(plural).next().cloned().unwrap_or_default();
        format!(r#"{{"type":"MODIFIED","object":{object}}}"#)
    }

    /// Runs the operator while another thread makes a change, until these nodes run the image and
    /// the operator rests.
    fn follow(
        &self,
        names: Vec<String>,
        image: String,
        change: impl FnOnce(&mut Store) + Send + 'static,
    ) -> Result<()> {
        let (done, is_done) = oneshot::channel();
        let (server, operator) = (self.server.clone(), self.operator.clone());
        std::thread::spawn(move || {
            change(&mut server.store());
            // The receiver waits for it without end.
            let _ = done.send(wait_for_rest(&server, &operator, &names, &image));
        });
        self.runtime.block_on(is_done).context("the driving thread has ended")?
    }
}

fn wait_for_rest(
    server: &Server,
    operator: &std::path::Path,
    names: &[String],
    image: &str,
) -> Result<()> {
    let begun = Instant::now();
    let (mut switches, mut since) = (String::new(), Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = switches_of(operator)?;
        if now != switches {
            (switches, since) = (now, Instant::now());
        }
        if since.elapsed() >= REST {
            let late = {
                let store = server.store();
                names.iter().find(|name| !has_arrived(&store, name, image)).cloned()
            };
            let Some(name) = late else { return Ok(()) };
            if begun.elapsed() > PHASE_MAX || since.elapsed() > Duration::from_secs(60) {
                let node = server.store().get(&node_key(&name)).cloned().unwrap_or_default();
                bail!("{name} does not run {image:?}: {}", node["status"]);
            }
        }
    }
}

/// How often a thread began and stopped to run, with its state: unchanged, it has not run.
fn switches_of(thread: &std::path::Path) -> Result<String> {
    let status = std::fs::read_to_string(thread.join("status"))?;
    let mut lines: Vec<&str> =
        status.lines().filter(|line| line.contains("ctxt_switches")).collect();
    let state = status.lines().find(|line| line.starts_with("State:")).unwrap_or_default();
    if state.contains('R') {
        // Two readings of a thread that runs must differ.
        return Ok(format!("{:?}", Instant::now()));
    }
    lines.push(state);
    Ok(lines.join("\n"))
}

fn has_arrived(store: &Store, name: &str, image: &str) -> bool {
    let status = |key: &Key| store.get(key).map(|object| object["status"].clone());
    let node = status(&node_key(name)).unwrap_or_default();
    let pod = status(&Key::new("pods", NAMESPACE, &format!("{name}-0"))).unwrap_or_default();
    let is_ready = pod["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    let runs = image.is_empty() || node["currentImage"] == image;
    node["phase"] == "Running" && node["plan"]["phase"] != "Active" && runs && is_ready
}

fn image(version: usize) -> String {
    format!("registry.example.org/seid:v{version}")
}

fn node_key(name: &str) -> Key {
    Key::new("seinodes", NAMESPACE, name)
}

/// Creates the node with this number; one in [`VALIDATOR_EVERY`] is a validator.
pub fn create_node(store: &mut Store, index: usize) {
    let name = format!("node-{index:03}");
    let mut spec = json!({ "chainId": CHAIN, "image": image(0) });
    if index.is_multiple_of(VALIDATOR_EVERY) {
        let (signing, p2p) = (format!("{name}-signing"), format!("{name}-p2p"));
        let key = json!({ "type": "tendermint/PrivKeyEd25519", "value": "YmVuY2g=" });
        let signer = sei_plan::signing_key::made_up(&name);
        create_secret(store, &signing, "priv_validator_key.json", &signer);
        create_secret(store, &p2p, "node_key.json", &json!({ "priv_key": key }));
        spec["validator"] = json!({
            "signingKey": { "secret": { "secretName": signing } },
            "nodeKey": { "secret": { "secretName": p2p } },
        });
    } else {
        spec["fullNode"] = json!({});
    }
    let node = json!({ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
        "metadata": { "name": name }, "spec": spec });
    store.create(&node_key(&name), node);
}

fn create_secret(store: &mut Store, name: &str, file: &str, content: &Value) {
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
        "data": { file: ByteString(content.to_string().into_bytes()) } });
    store.create(&Key::new("secrets", NAMESPACE, name), secret);
}
