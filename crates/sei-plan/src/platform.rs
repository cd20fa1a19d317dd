//! The platform configuration: the settings that apply to all nodes of a cluster.
//!
//! The Go operator reads the same file, so a cluster that switches keeps it; the section `rollout`
//! is our own. Our reader is stricter than that of the Go operator, which ignores unknown keys: a
//! misspelt pool or budget must stop the operator at its start, not surprise a fleet later.
//!
//! [`Platform::parse`] is the only way from text to a [`Platform`]. Every refusal is one line that
//! names the file, the key and the reason.

use std::collections::{BTreeMap, BTreeSet};

use sei_api::node::{OnDelete, OnImageChange, OnOperatorChange};
use sei_api::pod::Toleration;

use crate::inputs::pod;
use crate::quantity::Quantity;
use reader::Reader;

mod lists;
mod reader;
#[cfg(test)]
mod tests;

/// All settings of the cluster; the only input of a render besides the node itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Platform {
    /// Sidecars accept only tokens with the audience of their node. False if the operator shows all
    /// of them the same token, from a file; no key of the configuration.
    pub sidecar_audience: bool,
    pub state_sync: StateSync,
    pub scheduling: Scheduling,
    pub pods: Pods,
    pub storage: Storage,
    pub resources: Resources,
    pub snapshot: Bucket,
    pub genesis: Bucket,
    pub images: Images,
    pub rollout: Rollout,
}

/// Witnesses per chain, as written. [`Platform::witnesses`] returns them ready for use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateSync {
    pub witnesses: BTreeMap<String, Vec<String>>,
}

/// Where node pods may run, and under which service account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    pub nodepool_name: String,
    pub nodepool_archive: String,
    pub nodepool_validator: String,
    pub nodepool_seed: String,
    /// Taint key; the taint's value is the name of the pool.
    pub toleration_key: String,
    pub service_account: String,
    /// Label of Kubernetes nodes whose value is the name of their pool.
    pub nodepool_label: String,
    pub nodepool_affinity: PoolAffinity,
    /// Further labels that a Kubernetes node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Further taints that pods tolerate.
    pub tolerations: Vec<Toleration>,
    pub priority_class: Option<String>,
}

/// The label with which Karpenter names the pool of a machine.
pub const KARPENTER_POOL: &str = "karpenter.sh/nodepool";

/// Whether pods run only on the machines of their pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolAffinity {
    Required,
    /// Machines have no pools; taints, `nodeSelector` and resources place pods.
    Off,
}

/// What every node pod has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pods {
    pub annotations: BTreeMap<String, String>,
    /// Names of Secrets in the namespace of each node.
    pub image_pull_secrets: Vec<String>,
}

/// Storage classes and sizes of the data claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    pub class_perf: String,
    pub class_default: String,
    pub class_archive: String,
    pub size_default: Quantity,
    pub size_archive: Quantity,
    pub size_seed: Quantity,
    /// For nodes that do not sign and whose spec has no value of its own.
    pub on_delete: OnDelete,
}

/// Overrides of the built-in footprints, per role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub validator: FootprintOverride,
    pub node: FootprintOverride,
    pub replayer: FootprintOverride,
    pub archive: FootprintOverride,
    pub seed: FootprintOverride,
}

/// Each part replaces the built-in one on its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FootprintOverride {
    pub cpu_request: Option<Quantity>,
    pub memory: Option<Quantity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    pub bucket: String,
    pub region: String,
}

/// Images of the containers that the platform chooses and not the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    pub sidecar: String,
    pub kube_rbac_proxy: String,
    pub cosmos_exporter: String,
}

/// How changes are rolled out to a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollout {
    pub on_operator_change: OnOperatorChange,
    pub on_image_change: OnImageChange,
    pub max_concurrent_per_chain: u32,
    /// How many nodes of a chain that do not sign may be down at once through a changed image.
    pub max_unavailable: Share,
    pub budget_scope: BudgetScope,
    pub ready_deadline_seconds: u32,
    pub min_ready_seconds: u32,
    pub halt_after_failures: u32,
    pub settle_seconds: u32,
    pub adoption: Adoption,
    pub pod_check: PodCheck,
    pub pre_pull: PrePull,
}

/// A number of nodes, or a part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    Nodes(u32),
    Percent(u32),
}

impl Share {
    /// How many of these nodes, at least one.
    pub fn of(self, nodes: usize) -> usize {
        let whole = |number: u32| usize::try_from(number).unwrap_or(1);
        match self {
            Self::Nodes(number) => whole(number),
            Self::Percent(percent) => nodes.saturating_mul(whole(percent)) / 100,
        }
        .max(1)
    }
}

/// Which nodes share the budget of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetScope {
    /// Those of the chain in all namespaces.
    Cluster,
    /// Those of the chain in one namespace: tenants that do not trust each other use the same text
    /// for different chains.
    Namespace,
}

/// What to do with a pod that another operator created and that differs from our render.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// Leave it until its spec changes or a user approves the update.
    Hold,
    /// Roll it, under the chain's budget.
    Auto,
}

/// Whether the server checks that it would admit a pod before a template is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodCheck {
    Off,
    /// By a dry-run create.
    DryRun,
}

/// Whether the images of an update are pulled before the running pod is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrePull {
    Auto,
    Off,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            on_operator_change: OnOperatorChange::Auto,
            // A wrong image must not take a healthy chain down.
            on_image_change: OnImageChange::InTurn,
            max_unavailable: Share::Percent(25),
            // One at a time: two validators down may cost a small chain its quorum.
            max_concurrent_per_chain: 1,
            // A chain does not end at a namespace.
            budget_scope: BudgetScope::Cluster,
            // A node that restarts replays from its last snapshot, which takes minutes, not hours.
            ready_deadline_seconds: 1800,
            // A binary that cannot follow its chain fails at one of the first blocks.
            min_ready_seconds: 10,
            // A render that broke one node would probably break the next one too.
            halt_after_failures: 1,
            // Long enough for our own rolling upgrade to end before fleets follow a new render.
            settle_seconds: 120,
            // Taking over a fleet must not restart it.
            adoption: Adoption::Hold,
            // It costs a request for each apply.
            pod_check: PodCheck::Off,
            // A wrong image must not take a node down.
            pre_pull: PrePull::Auto,
        }
    }
}

/// A configuration file that cannot be used. Displays as one line: file, key, reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct PlatformError {
    /// The file, as the caller named it.
    pub path: String,
    pub problem: Problem,
}

/// What is wrong with the file. Values are cut and escaped, so that file content cannot break the
/// single line of a startup error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the file is empty; {first_key} is required")]
    Empty { first_key: &'static str },
    #[error("the file has {bytes} bytes, more than the {limit} that a ConfigMap can hold")]
    TooLarge { bytes: usize, limit: usize },
    #[error("not valid YAML: {reason}")]
    Syntax { reason: String },
    #[error("{key} is given twice (line {line}); remove one of them")]
    DuplicateKey { key: String, line: u64 },
    #[error("{key}: unknown key; {hint}")]
    UnknownKey { key: String, hint: String },
    #[error("{key}: expected {expected}, found {found}")]
    WrongType { key: String, expected: &'static str, found: String },
    #[error("{key} is required")]
    Required { key: String },
    #[error("{key}: invalid quantity: {reason}")]
    InvalidQuantity { key: String, reason: String },
    #[error("{key}: not a toleration: {reason}")]
    InvalidToleration { key: String, reason: String },
    #[error("{key}: `{value}` {rule}")]
    InvalidValue { key: String, value: String, rule: String },
}

impl Platform {
    /// Parses the file's text. `path` is only for messages.
    pub fn parse(text: &str, path: &str) -> Result<Self, PlatformError> {
        Reader::of(text)
            .and_then(|reader| Self::read(&reader))
            .map_err(|problem| PlatformError { path: path.to_owned(), problem })
    }

    /// Witnesses of a chain: entries may hold several, joined by commas or spaces.
    pub fn witnesses(&self, chain: &str) -> Vec<String> {
        let entries = self.state_sync.witnesses.get(chain).into_iter().flatten();
        let hosts: BTreeSet<&str> = entries
            .flat_map(|entry| entry.split(|c: char| c == ',' || c.is_whitespace()))
            .filter(|host| !host.is_empty())
            .collect();
        hosts.into_iter().map(str::to_owned).collect()
    }

    /// The order of the fields is the order in which a first problem is reported.
    fn read(file: &Reader) -> Result<Self, Problem> {
        file.check_keys()?;
        let platform = Self {
            sidecar_audience: true,
            state_sync: StateSync { witnesses: file.lists("stateSync.syncers")? },
            scheduling: Scheduling::read(file)?,
            pods: Pods::read(file)?,
            storage: Storage::read(file)?,
            snapshot: Bucket::read(file, "snapshot")?,
            genesis: Bucket::read(file, "genesis")?,
            images: Images::read(file)?,
            resources: Resources::read(file)?,
            rollout: Rollout::read(file)?,
        };
        // The Go operator requires these and uses them nowhere. They are accepted so that its files
        // load unchanged, and not required, because users should not have to invent a bucket.
        for key in ["resultExport.bucket", "resultExport.region", "resultExport.prefix"] {
            file.text(key)?;
        }
        Ok(platform)
    }
}

impl Scheduling {
    fn read(file: &Reader) -> Result<Self, Problem> {
        let affinities = [("Required", PoolAffinity::Required), ("Off", PoolAffinity::Off)];
        Ok(Self {
            nodepool_name: file.required("scheduling.nodepoolName")?,
            nodepool_archive: file.required("scheduling.nodepoolArchive")?,
            nodepool_validator: file.required("scheduling.nodepoolValidator")?,
            nodepool_seed: file.required("scheduling.nodepoolSeed")?,
            toleration_key: file.required("scheduling.tolerationKey")?,
            service_account: file.required("scheduling.serviceAccount")?,
            nodepool_label: file
                .checked("scheduling.nodepoolLabel", pod::key_error)?
                .unwrap_or_else(|| KARPENTER_POOL.to_owned()),
            nodepool_affinity: file
                .choice("scheduling.nodepoolAffinity", &affinities)?
                .unwrap_or(PoolAffinity::Required),
            node_selector: file.node_selector("scheduling.nodeSelector")?,
            tolerations: file.tolerations("scheduling.tolerations")?,
            priority_class: file.checked("scheduling.priorityClassName", pod::name_error)?,
        })
    }
}

impl Pods {
    fn read(file: &Reader) -> Result<Self, Problem> {
        Ok(Self {
            annotations: file.annotations("pods.annotations")?,
            image_pull_secrets: file.names("pods.imagePullSecrets")?,
        })
    }
}

impl Storage {
    /// Sizes are parsed here: at the first claim it would be too late to report a mistake.
    fn read(file: &Reader) -> Result<Self, Problem> {
        let deletions = [("Delete", OnDelete::Delete), ("Retain", OnDelete::Retain)];
        Ok(Self {
            class_perf: file.required("storage.classPerf")?,
            class_default: file.required("storage.classDefault")?,
            class_archive: file.required("storage.classArchive")?,
            size_default: file.required_quantity("storage.sizeDefault")?,
            size_archive: file.required_quantity("storage.sizeArchive")?,
            size_seed: match file.quantity("storage.sizeSeed")? {
                Some(size) => size,
                None => Quantity::parse("20Gi").expect("a constant quantity parses"),
            },
            on_delete: file.choice("storage.onDelete", &deletions)?.unwrap_or(OnDelete::Delete),
        })
    }
}

impl Resources {
    fn read(file: &Reader) -> Result<Self, Problem> {
        let role = |role: &str| -> Result<FootprintOverride, Problem> {
            Ok(FootprintOverride {
                cpu_request: file.quantity(&format!("resources.{role}.cpuRequest"))?,
                memory: file.quantity(&format!("resources.{role}.memory"))?,
            })
        };
        Ok(Self {
            validator: role("validator")?,
            node: role("node")?,
            replayer: role("replayer")?,
            archive: role("archive")?,
            seed: role("seed")?,
        })
    }
}

impl Bucket {
    fn read(file: &Reader, section: &str) -> Result<Self, Problem> {
        Ok(Self {
            bucket: file.required(&format!("{section}.bucket"))?,
            region: file.required(&format!("{section}.region"))?,
        })
    }
}

impl Images {
    fn read(file: &Reader) -> Result<Self, Problem> {
        Ok(Self {
            sidecar: file.required("images.sidecar")?,
            kube_rbac_proxy: file.required("images.kubeRBACProxy")?,
            cosmos_exporter: file.required("images.cosmosExporter")?,
        })
    }
}

impl Rollout {
    fn read(file: &Reader) -> Result<Self, Problem> {
        let default = Self::default();
        let changes = [("Auto", OnOperatorChange::Auto), ("Hold", OnOperatorChange::Hold)];
        let images = [("InTurn", OnImageChange::InTurn), ("AtOnce", OnImageChange::AtOnce)];
        let checks = [("Off", PodCheck::Off), ("DryRun", PodCheck::DryRun)];
        let pulls = [("Auto", PrePull::Auto), ("Off", PrePull::Off)];
        let scopes = [("Cluster", BudgetScope::Cluster), ("Namespace", BudgetScope::Namespace)];
        let adoptions = [("Hold", Adoption::Hold), ("Auto", Adoption::Auto)];
        let whole = |key: &str, least: u32, absent: u32| -> Result<u32, Problem> {
            Ok(file.whole_number(key, least)?.unwrap_or(absent))
        };
        Ok(Self {
            on_operator_change: file
                .choice("rollout.onOperatorChange", &changes)?
                .unwrap_or(default.on_operator_change),
            on_image_change: file
                .choice("rollout.onImageChange", &images)?
                .unwrap_or(default.on_image_change),
            max_unavailable: file
                .share("rollout.maxUnavailable")?
                .unwrap_or(default.max_unavailable),
            max_concurrent_per_chain: whole(
                "rollout.maxConcurrentPerChain",
                1,
                default.max_concurrent_per_chain,
            )?,
            budget_scope: file
                .choice("rollout.budgetScope", &scopes)?
                .unwrap_or(default.budget_scope),
            ready_deadline_seconds: whole(
                "rollout.readyDeadlineSeconds",
                1,
                default.ready_deadline_seconds,
            )?,
            min_ready_seconds: whole("rollout.minReadySeconds", 0, default.min_ready_seconds)?,
            halt_after_failures: whole(
                "rollout.haltAfterFailures",
                1,
                default.halt_after_failures,
            )?,
            settle_seconds: whole("rollout.settleSeconds", 0, default.settle_seconds)?,
            adoption: file.choice("rollout.adoption", &adoptions)?.unwrap_or(default.adoption),
            pod_check: file.choice("rollout.podCheck", &checks)?.unwrap_or(default.pod_check),
            pre_pull: file.choice("rollout.prePull", &pulls)?.unwrap_or(default.pre_pull),
        })
    }
}
