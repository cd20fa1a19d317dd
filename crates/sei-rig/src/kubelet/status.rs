//! The status of a pod as a kubelet writes it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::names::label;
use serde_json::{Value, json};

use crate::digest::sha256_hex;

pub(super) const SEID: &str = "seid";
pub(super) const SIDECAR: &str = "sei-sidecar";

/// The immutable properties of a pod, and its containers.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub(super) struct Subject {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) node: String,
    pub(super) chain: String,
    /// Image of the chain process.
    pub(super) image: String,
    pub(super) is_bound: bool,
    /// A bootstrap pod runs to a height and ends; it has no probes.
    pub(super) is_bootstrap: bool,
    /// A pod that pulls the images of an update; its containers end at once.
    pub(super) is_pre_pull: bool,
    pub(super) claim: Option<String>,
    /// Paths that its proxy serves without a token.
    pub(super) open_paths: Vec<String>,
    /// Its proxy serves TLS.
    pub(super) is_secure: bool,
    /// The audience that its proxy requires of a token.
    pub(super) audience: Option<String>,
    pub(super) containers: Vec<ContainerNow>,
}

/// One container and its present state.
#[derive(Clone, Debug)]
pub(super) struct ContainerNow {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) kind: Kind,
    pub(super) state: State,
    /// How its previous run ended.
    pub(super) last: Option<Ended>,
    pub(super) restarts: i32,
    pub(super) started: bool,
    pub(super) ready: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Completes before the next container starts.
    Init,
    /// Starts like an init container and keeps running.
    Sidecar,
    Main,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Waiting { reason: &'static str, message: Option<String> },
    Running { since: Timestamp },
    Ended(Ended),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) message: Option<String>,
    pub(super) since: Timestamp,
    pub(super) at: Timestamp,
}

impl Subject {
    /// None if the pod does not belong to a node.
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.metadata.labels.as_ref()?;
        let spec = pod.spec.as_ref()?;
        let init = spec.init_containers.iter().flatten().map(|container| {
            let is_sidecar = container.restart_policy.as_deref() == Some("Always");
            ContainerNow::of(container, if is_sidecar { Kind::Sidecar } else { Kind::Init })
        });
        let main = spec.containers.iter().map(|container| ContainerNow::of(container, Kind::Main));
        let mut volumes = spec.volumes.iter().flatten();
        let claim = volumes.find_map(|volume| volume.persistent_volume_claim.as_ref());
        let containers: Vec<ContainerNow> = init.chain(main).collect();
        let seid = containers.iter().find(|container| container.name == SEID);
        let seid = seid.or(containers.last())?;
        let pre_pull = labels.get(label::PRE_PULL);
        let component = labels.get(label::COMPONENT).map(String::as_str);
        Some(Self {
            namespace: pod.metadata.namespace.clone()?,
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            node: labels.get(label::NODE).or(pre_pull)?.clone(),
            is_pre_pull: pre_pull.is_some(),
            chain: labels.get(label::CHAIN).cloned().unwrap_or_default(),
            image: seid.image.clone(),
            is_bound: spec.node_name.as_deref().is_some_and(|name| !name.is_empty()),
            is_bootstrap: component == Some(label::COMPONENT_BOOTSTRAP),
            claim: claim.map(|claim| claim.claim_name.clone()),
            is_secure: argument(spec, "--secure-listen-address=").is_some(),
            audience: argument(spec, "--auth-token-audiences="),
            open_paths: spec.init_containers.iter().flatten().flat_map(open_paths).collect(),
            containers,
        })
    }
}

/// The value of an argument of the proxy.
fn argument(spec: &PodSpec, flag: &str) -> Option<String> {
    let containers = spec.init_containers.iter().flatten();
    let mut arguments = containers.flat_map(|container| container.args.iter().flatten());
    arguments.find_map(|argument| argument.strip_prefix(flag)).map(str::to_owned)
}

/// Reads the open paths from the proxy's arguments.
fn open_paths(container: &Container) -> Vec<String> {
    let paths = |argument: &String| {
        let list = argument.strip_prefix("--ignore-paths=");
        list.map(|list| list.split(',').map(str::to_owned).collect())
    };
    let found: Option<Vec<String>> = container.args.iter().flatten().find_map(paths);
    found.unwrap_or_default()
}

impl ContainerNow {
    fn of(container: &Container, kind: Kind) -> Self {
        Self {
            name: container.name.clone(),
            image: container.image.clone().unwrap_or_default(),
            kind,
            state: State::Waiting { reason: "PodInitializing", message: None },
            last: None,
            restarts: 0,
            started: false,
            ready: false,
        }
    }

    /// Whether the container was ever started.
    pub(super) fn has_started(&self) -> bool {
        self.last.is_some() || !matches!(self.state, State::Waiting { .. })
    }

    fn to_json(&self, uid: &str) -> Value {
        let id = |time: Timestamp| container_id(uid, &self.name, time);
        let ended = |ended: &Ended| {
            let reason = if ended.code == 0 { "Completed" } else { "Error" };
            json!({ "terminated": { "exitCode": ended.code, "reason": reason,
                "message": ended.message,
                "startedAt": Time(ended.since), "finishedAt": Time(ended.at),
                "containerID": id(ended.since) } })
        };
        let state = match &self.state {
            State::Waiting { reason, message: None } => json!({ "waiting": { "reason": reason } }),
            State::Waiting { reason, message } => {
                json!({ "waiting": { "reason": reason, "message": message } })
            }
            State::Running { since } => json!({ "running": { "startedAt": Time(*since) } }),
            State::Ended(end) => ended(end),
        };
        let started = match &self.state {
            State::Running { since } => Some(*since),
            State::Ended(end) => Some(end.since),
            State::Waiting { .. } => self.last.as_ref().map(|last| last.since),
        };
        json!({
            "name": self.name,
            "image": self.image,
            // Empty until the image was pulled.
            "imageID": if self.has_started() { image_id(&self.image) } else { String::new() },
            "containerID": started.map(id).unwrap_or_default(),
            "state": state,
            "lastState": self.last.as_ref().map_or_else(|| json!({}), ended),
            "restartCount": self.restarts,
            "started": self.started,
            "ready": self.ready,
        })
    }
}

/// The image id that a container runtime reports: here equal references have equal content.
fn image_id(image: &str) -> String {
    let name = image.split('@').next().unwrap_or(image);
    let slash = name.rfind('/').unwrap_or_default();
    let end = name[slash..].find(':').map_or(name.len(), |colon| slash + colon);
    format!("{}@sha256:{}", &name[..end], sha256_hex(image))
}

fn container_id(uid: &str, name: &str, since: Timestamp) -> String {
    format!("containerd://{}", sha256_hex(&format!("{uid}/{name}/{since}")))
}

/// The value of a pod condition.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ConditionValue {
    pub(super) is_true: bool,
    pub(super) reason: Option<&'static str>,
    pub(super) message: Option<String>,
}

/// The conditions with their last transition times.
#[derive(Debug, Default)]
pub(super) struct Conditions(BTreeMap<&'static str, (ConditionValue, Timestamp)>);

impl Conditions {
    pub(super) fn set(&mut self, kind: &'static str, value: ConditionValue) {
        let now = Timestamp::now();
        let since = match self.0.get(kind) {
            Some((before, since)) if before.is_true == value.is_true => *since,
            _ => now,
        };
        self.0.insert(kind, (value, since));
    }

    /// Absent texts are null: the server merges conditions and would keep the old texts.
    fn to_json(&self) -> Value {
        let all = self.0.iter().map(|(kind, (value, since))| {
            json!({ "type": kind, "status": if value.is_true { "True" } else { "False" },
                "reason": value.reason, "message": value.message,
                "lastTransitionTime": Time(*since) })
        });
        all.collect()
    }
}

/// All parts of a pod's status.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) phase: &'static str,
    pub(super) conditions: &'a Conditions,
    pub(super) host: Ipv4Addr,
    pub(super) ip: Option<Ipv4Addr>,
    pub(super) start_time: Option<Timestamp>,
}

impl Report<'_> {
    /// As a patch of the pod's status, valid for the pod with this uid only.
    pub(super) fn to_patch(&self) -> Value {
        let mut status = json!({ "phase": self.phase, "conditions": self.conditions.to_json() });
        if let Some(start) = self.start_time {
            let statuses = |is_included: fn(Kind) -> bool| -> Vec<Value> {
                let containers = self.subject.containers.iter();
                let included = containers.filter(|container| is_included(container.kind));
                included.map(|container| container.to_json(&self.subject.uid)).collect()
            };
            status["startTime"] = json!(Time(start));
            status["hostIP"] = json!(self.host);
            status["hostIPs"] = json!([{ "ip": self.host }]);
            status["initContainerStatuses"] = json!(statuses(|kind| kind != Kind::Main));
            status["containerStatuses"] = json!(statuses(|kind| kind == Kind::Main));
        }
        if let Some(ip) = self.ip {
            status["podIP"] = json!(ip);
            status["podIPs"] = json!([{ "ip": ip }]);
        }
        json!({ "metadata": { "uid": self.subject.uid }, "status": status })
    }
}
