//! Pods of nodes, with what a kubelet and a sidecar keep about them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as PodObject, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use sei_api::names::label;
use sei_plan::request::MountView;
use sei_plan::view::{PodView, Trouble, TroubleKind};

/// What pods of a template are made from. It is computed once for each template.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blueprint {
    view: PodView,
    mount: MountView,
    label: String,
}

impl Blueprint {
    /// The pods of a template in this namespace.
    pub fn of(template: &PodTemplateSpec, namespace: &str, controller: &OwnerReference) -> Self {
        let mut metadata = template.metadata.clone().unwrap_or_default();
        metadata.namespace = Some(namespace.to_owned());
        metadata.owner_references = Some(vec![controller.clone()]);
        let label = metadata.labels.as_ref().and_then(|all| all.get(label::NODE).cloned());
        let pod = PodObject { metadata, spec: template.spec.clone(), status: None };
        Self {
            view: PodView::from(&pod),
            mount: MountView::of_pod(&pod),
            label: label.unwrap_or_default(),
        }
    }

    pub fn pod(&self, name: &str, uid: &str, revision: Option<&str>) -> Pod {
        let mut view = self.view.clone();
        name.clone_into(&mut view.name);
        uid.clone_into(&mut view.uid);
        view.revision = revision.map(str::to_owned);
        let mut mount = self.mount.clone();
        name.clone_into(&mut mount.name);
        Pod { view, mount, label: self.label.clone(), ..Pod::default() }
    }
}

/// A controller reference.
pub fn controller(api_version: &str, kind: &str, name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a state of its own")]
pub struct Pod {
    /// What clients see.
    pub view: PodView,
    pub mount: MountView,
    /// The node in its label.
    pub label: String,
    /// Its containers have started.
    pub started: bool,
    /// It has ended and its object still exists.
    pub ended: bool,
    /// The readiness gate, in the memory of its sidecar.
    pub gate_open: bool,
    /// The chain process has passed the gate. It runs on if the gate is closed later.
    pub passed_gate: bool,
    /// The sidecar does not answer.
    pub sidecar_lost: bool,
    /// The chain process crashes.
    pub crashes: bool,
    /// Whom its process signs as: chain and identity, once it has started.
    pub signs_as: Option<(String, String)>,
}

impl Pod {
    /// Whether its processes run: also those of a pod that is terminating.
    pub fn runs(&self) -> bool {
        self.started && !self.ended
    }

    /// Whether its sidecar answers.
    pub fn answers(&self) -> bool {
        self.runs() && !self.sidecar_lost
    }

    /// The kubelet cannot start it yet.
    pub fn report_trouble(&mut self, kind: TroubleKind, message: String) {
        let container = "seid".to_owned();
        self.view.troubles = vec![Trouble { container, kind, message }];
    }

    /// Its containers start.
    pub fn start(&mut self, ip: String) {
        self.started = true;
        self.view.ip = Some(ip);
        self.view.troubles.clear();
        self.view.volumes_missing = None;
        for container in [&mut self.view.seid, &mut self.view.sidecar] {
            container.image_id = format!("id-of-{}", container.image);
            container.has_run = true;
            container.running = true;
        }
    }

    /// Brings what clients see up to date with the state of the processes.
    pub fn report(&mut self, is_halted: bool, now: Timestamp) {
        let runs = self.runs();
        self.passed_gate |= runs && self.gate_open;
        let crashes = runs && self.crashes && self.passed_gate;
        self.view.seid.running = runs && !crashes;
        self.view.seid.started = runs && self.passed_gate && !crashes;
        self.view.sidecar.running = runs;
        self.mount.is_idle = self.ended;
        if crashes {
            self.view.seid.restarts = 1;
            self.report_trouble(TroubleKind::Crash, "seid: CrashLoopBackOff".to_owned());
        } else if self.started {
            self.view.troubles.clear();
        }
        let serves = self.gate_open && !self.sidecar_lost && self.view.deleted_at.is_none();
        let ready = self.view.seid.started && serves && !is_halted;
        if ready != self.view.ready || self.view.ready_since.is_none() {
            self.view.ready_since = Some(now);
        }
        self.view.ready = ready;
    }

    /// The sidecar's container is restarted: its memory is empty.
    pub fn restart_sidecar(&mut self) {
        self.sidecar_lost = false;
        self.gate_open = false;
        if self.runs() {
            self.view.sidecar.restarts += 1;
        }
    }
}
