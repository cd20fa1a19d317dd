//! The life of one pod, from being bound to being gone.
//!
//! It is a loop: advance what is known, tell it if it changed, wait for the next change. Rules can
//! change at any time, so nothing but time and what has happened is remembered.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::claims::Claims;
use super::rules::{Behaviour, Rules, Whose};
use super::status::{Conditions, Ended, Kind, Report, SEID, SIDECAR, State, Subject, Verdict};
use super::{HOST, Shared, insist};
use crate::sidecar::{Answering, Host, Process, VolumeKey};

/// How far the deletion of a pod has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deletion {
    None,
    Asked,
    Gone,
}

/// What a scenario does to a pod that runs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    RestartSidecar,
}

pub(super) struct Life {
    shared: Arc<Shared>,
    subject: Subject,
    rules: watch::Receiver<Rules>,
    conditions: Conditions,
    ip: Option<Ipv4Addr>,
    /// When the pod was bound.
    bound: Option<(Instant, Timestamp)>,
    volume: VolumeKey,
    sidecar: Option<(Process, watch::Receiver<bool>)>,
    gate: Gate,
    /// When a failed pull was first seen.
    pull_failed: Option<Instant>,
    /// When the chain process that runs or waits now came into that state.
    seid_since: Instant,
    crashes: u32,
    phase: &'static str,
    told: Value,
}

/// How the gate stands to the chain process.
#[derive(Debug, Default)]
struct Gate {
    /// The sidecar answers that it is open.
    is_open: bool,
    /// It has let the process that runs now through.
    is_passed: bool,
    /// It has let a process through before.
    was_passed: bool,
}

/// Runs a pod until it is gone.
pub(super) async fn run(
    shared: Arc<Shared>,
    subject: Subject,
    mut orders: mpsc::UnboundedReceiver<Order>,
    mut deletion: watch::Receiver<Deletion>,
) {
    let mut life = Life::new(shared, subject);
    tokio::select! {
        () = life.live(&mut orders) => {}
        _ = deletion.wait_for(|now| *now >= Deletion::Asked) => {}
    }
    life.sidecar = None;
    tokio::select! {
        () = life.end() => {}
        _ = deletion.wait_for(|now| *now == Deletion::Gone) => {}
    }
    if let Some(ip) = life.ip {
        life.shared.addresses.release_slot(ip);
    }
}

impl Life {
    fn new(shared: Arc<Shared>, subject: Subject) -> Self {
        let volume = VolumeKey {
            namespace: subject.namespace.clone(),
            claim: subject.claim.clone().unwrap_or_default(),
            // Without a claim nothing outlives the pod.
            uid: subject.uid.clone(),
        };
        Self {
            rules: shared.rules.subscribe(),
            conditions: Conditions::default(),
            ip: None,
            bound: None,
            volume,
            sidecar: None,
            gate: Gate::default(),
            pull_failed: None,
            seid_since: Instant::now(),
            crashes: 0,
            phase: "Pending",
            told: Value::Null,
            shared,
            subject,
        }
    }

    async fn live(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) {
        self.be_scheduled().await;
        self.ip = self.shared.addresses.take();
        let mut rules = self.rules.clone();
        loop {
            let wake = self.advance();
            self.report().await;
            let ready = self.sidecar.as_mut().map(|(_, ready)| ready);
            let order = tokio::select! {
                _ = rules.changed() => None,
                () = changed(ready) => None,
                () = until(wake) => None,
                Some(order) = orders.recv() => Some(order),
            };
            if let Some(Order::RestartSidecar) = order {
                self.restart_sidecar();
            }
        }
    }

    /// Binds the pod as soon as it has a place and its volume.
    async fn be_scheduled(&mut self) {
        let mut rules = self.rules.clone();
        let mut claims = self.shared.claims.subscribe();
        loop {
            let obstacle = self.obstacle(&rules.borrow_and_update(), &claims.borrow_and_update());
            let Some(message) = obstacle else { break };
            let message = format!("0/1 nodes are available: {message}.");
            let reason = Some("Unschedulable");
            let verdict = Verdict { is_true: false, reason, message: Some(message) };
            self.conditions.set("PodScheduled", verdict);
            self.report().await;
            tokio::select! {
                _ = rules.changed() => {}
                _ = claims.changed() => {}
            }
        }
        if let Some(claim) = &self.subject.claim {
            let key = (self.subject.namespace.clone(), claim.clone());
            if let Some(claim) = self.shared.claims.borrow().get(&key) {
                self.volume.uid.clone_from(&claim.uid);
            }
        }
        if !self.subject.is_bound {
            insist(|| self.bind()).await;
        }
        self.bound = Some((Instant::now(), Timestamp::now()));
        for kind in ["PodScheduled", "PodReadyToStartContainers"] {
            self.conditions.set(kind, Verdict { is_true: true, ..Verdict::default() });
        }
    }

    fn obstacle(&self, rules: &Rules, claims: &Claims) -> Option<String> {
        if self.subject.is_bound {
            return None;
        }
        if rules.has(self.whose(), &Behaviour::Unschedulable) {
            return Some("1 Insufficient memory".to_owned());
        }
        let name = self.subject.claim.as_ref()?;
        match claims.get(&(self.subject.namespace.clone(), name.clone())) {
            None => Some(format!("persistentvolumeclaim {name:?} not found")),
            Some(claim) if claim.is_terminating => {
                Some(format!("persistentvolumeclaim {name:?} is being deleted"))
            }
            Some(claim) if !claim.is_bound => {
                Some("pod has unbound immediate PersistentVolumeClaims".to_owned())
            }
            Some(_) => None,
        }
    }

    fn whose(&self) -> Whose<'_> {
        let Subject { namespace, node, image, .. } = &self.subject;
        Whose { namespace, node, image }
    }

    /// Brings what is known up to date, and says when time alone will change it.
    fn advance(&mut self) -> Option<Instant> {
        let rules = self.rules.clone();
        let rules = rules.borrow();
        let (bound, _) = self.bound?;
        let delay = rules.start_delay(self.whose()).unwrap_or_default();
        let start = bound + delay.max(self.shared.timing.start);
        let wake = if Instant::now() < start {
            Some(start)
        } else {
            let pull = self.begin_containers(&rules);
            self.follow_sidecar(&rules);
            earliest(pull, self.follow_seid(&rules))
        };
        self.judge(&rules);
        wake
    }

    /// Starts each container whose turn it is and whose image can be had.
    fn begin_containers(&mut self, rules: &Rules) -> Option<Instant> {
        let mut wake = None;
        for index in 0..self.subject.containers.len() {
            let one = &self.subject.containers[index];
            if one.has_begun() {
                continue;
            }
            if rules.is_unpullable(self.whose(), &one.image) {
                wake = self.fail_pull(index);
                if self.subject.containers[index].kind == Kind::Main {
                    continue;
                }
                break;
            }
            self.begin(index, rules);
        }
        wake
    }

    /// First the pull fails, then it is not tried for a while, and so on: both are seen.
    fn fail_pull(&mut self, index: usize) -> Option<Instant> {
        let failed = *self.pull_failed.get_or_insert_with(Instant::now);
        let back_off = failed + self.shared.timing.pull;
        let one = &mut self.subject.containers[index];
        let image = &one.image;
        let (reason, message) = if Instant::now() < back_off {
            ("ErrImagePull", format!("failed to resolve reference {image:?}: not found"))
        } else {
            ("ImagePullBackOff", format!("Back-off pulling image {image:?}"))
        };
        one.state = State::Waiting { reason, message: Some(message) };
        (reason == "ErrImagePull").then_some(back_off)
    }

    fn begin(&mut self, index: usize, rules: &Rules) {
        let now = Timestamp::now();
        let one = &mut self.subject.containers[index];
        one.state = match one.kind {
            Kind::Init => State::Ended(Ended { code: 0, since: now, at: now }),
            Kind::Sidecar | Kind::Main => State::Running { since: now },
        };
        match one.name.as_str() {
            SIDECAR => self.start_sidecar(answering(rules, self.whose())),
            SEID => self.seid_since = Instant::now(),
            _ => {}
        }
    }

    fn start_sidecar(&mut self, answering: Answering) {
        let Some(ip) = self.ip else { return };
        let host = Host {
            namespace: self.subject.namespace.clone(),
            node: self.subject.node.clone(),
            pod_uid: self.subject.uid.clone(),
            ip,
            volume: self.volume.clone(),
            open_paths: self.subject.open_paths.clone(),
        };
        let process = Process::start(&self.shared.sidecars, host, answering);
        let ready = process.ready();
        self.sidecar = Some((process, ready));
    }

    /// The container ends and is started again in the same pod: the flag is lost, records are not.
    fn restart_sidecar(&mut self) {
        if self.sidecar.take().is_none() {
            return;
        }
        let now = Timestamp::now();
        for one in self.subject.containers.iter_mut().filter(|one| one.name == SIDECAR) {
            if let State::Running { since } = one.state {
                one.last = Some(Ended { code: 1, since, at: now });
                one.state = State::Running { since: now };
                one.restarts += 1;
            }
        }
        let answering = answering(&self.rules.borrow(), self.whose());
        self.start_sidecar(answering);
    }

    fn follow_sidecar(&mut self, rules: &Rules) {
        let answering = answering(rules, self.whose());
        self.gate.is_open = self.sidecar.as_mut().is_some_and(|(process, ready)| {
            process.set_answering(answering);
            *ready.borrow_and_update() && answering == Answering::Yes
        });
    }

    /// The chain process: held by its gate, running, crashing.
    fn follow_seid(&mut self, rules: &Rules) -> Option<Instant> {
        let index = self.subject.containers.iter().position(|one| one.name == SEID)?;
        match self.subject.containers[index].state.clone() {
            State::Running { since } => self.follow_running_seid(index, since, rules),
            State::Waiting { .. } if self.subject.containers[index].has_begun() => {
                let again = self.seid_since + self.back_off();
                if crash(rules, self.whose()).is_some() && Instant::now() < again {
                    return Some(again);
                }
                self.begin(index, rules);
                self.follow_running_seid(index, Timestamp::now(), rules)
            }
            _ => None,
        }
    }

    fn follow_running_seid(
        &mut self,
        index: usize,
        since: Timestamp,
        rules: &Rules,
    ) -> Option<Instant> {
        if self.gate.is_open && !self.gate.is_passed {
            self.gate.is_passed = true;
            self.gate.was_passed = true;
            self.seid_since = Instant::now();
        }
        let end = self.seid_since + self.shared.timing.run;
        let code = match crash(rules, self.whose()) {
            Some(Behaviour::Crashes) if !self.gate.is_passed => return None,
            Some(_) => 1,
            None if self.subject.is_bootstrap && self.gate.is_passed => {
                if rules.has(self.whose(), &Behaviour::Halted) {
                    return None;
                }
                0
            }
            None => return self.catches_up_until(rules),
        };
        if Instant::now() < end {
            return Some(end);
        }
        self.end_seid(index, Ended { code, since, at: Timestamp::now() });
        (!self.subject.is_bootstrap).then(|| self.seid_since + self.back_off())
    }

    /// When the chain process will have caught up, if that is still to come.
    fn catches_up_until(&self, rules: &Rules) -> Option<Instant> {
        let delay = rules.ready_delay(self.whose()).filter(|_| self.gate.is_passed)?;
        Some(self.seid_since + delay).filter(|until| *until > Instant::now())
    }

    fn end_seid(&mut self, index: usize, ended: Ended) {
        let code = ended.code;
        let one = &mut self.subject.containers[index];
        self.gate.is_passed = false;
        self.seid_since = Instant::now();
        if self.subject.is_bootstrap {
            // Nothing restarts it, and with it the pod ends.
            one.state = State::Ended(ended);
            self.phase = if code == 0 { "Succeeded" } else { "Failed" };
            self.sidecar = None;
            self.gate.is_open = false;
            return;
        }
        one.last = Some(ended);
        one.restarts += 1;
        self.crashes += 1;
        let message = Some(format!("back-off restarting failed container {SEID}"));
        one.state = State::Waiting { reason: "CrashLoopBackOff", message };
    }

    fn back_off(&self) -> Duration {
        let doubled = self.crashes.saturating_sub(1).min(5);
        self.shared.timing.back_off * 2_u32.pow(doubled)
    }

    /// What follows from the containers for the pod.
    fn judge(&mut self, rules: &Rules) {
        let halted =
            rules.has(self.whose(), &Behaviour::Halted) || self.catches_up_until(rules).is_some();
        let is_bootstrap = self.subject.is_bootstrap;
        let Gate { is_open, is_passed, was_passed } = self.gate;
        for one in &mut self.subject.containers {
            let runs = matches!(one.state, State::Running { .. });
            (one.started, one.ready) = match (one.name.as_str(), one.kind) {
                (_, Kind::Init) => (false, one.has_begun()),
                // Nothing probes it.
                _ if is_bootstrap => (runs, runs),
                (SEID, _) => (runs && is_passed, runs && is_passed && !halted),
                (SIDECAR, _) => (runs, runs),
                // Its probe asks the sidecar through it.
                (_, Kind::Sidecar) => (runs, runs && is_open),
                // It waits for a port that the chain process opens.
                (_, Kind::Main) => (runs, runs && was_passed),
            };
        }
        let all = &self.subject.containers;
        let has_begun = all.iter().any(|one| one.kind == Kind::Main && one.has_begun());
        let is_initialized = all
            .iter()
            .filter(|one| one.kind != Kind::Main)
            .all(super::status::ContainerNow::has_begun);
        let unready: Vec<&str> = all
            .iter()
            .filter(|one| !one.ready && one.kind != Kind::Init)
            .map(|one| one.name.as_str())
            .collect();
        let is_over = matches!(self.phase, "Succeeded" | "Failed");
        if !is_over && has_begun {
            self.phase = "Running";
        }
        let message = |is_true: bool| {
            (!is_true).then(|| format!("containers with unready status: [{}]", unready.join(" ")))
        };
        let verdict = |is_true: bool, reason: &'static str| Verdict {
            is_true,
            reason: (!is_true).then_some(reason),
            message: message(is_true),
        };
        let is_ready = !is_over && unready.is_empty();
        let reason = if self.phase == "Succeeded" { "PodCompleted" } else { "ContainersNotReady" };
        let initialized = verdict(is_initialized, "ContainersNotInitialized");
        let (ready, containers) = (verdict(is_ready, reason), verdict(is_ready, reason));
        self.conditions.set("Initialized", initialized);
        self.conditions.set("ContainersReady", containers);
        self.conditions.set("Ready", ready);
    }

    /// Tells the server, unless that is what it was told last.
    async fn report(&mut self) {
        let report = Report {
            subject: &self.subject,
            phase: self.phase,
            conditions: &self.conditions,
            host: self.shared.addresses.host(),
            ip: self.ip,
            start_time: self.bound.map(|(_, at)| at),
        };
        let patch = report.to_patch();
        if patch == self.told {
            return;
        }
        let (api, name) = (self.pods(), &self.subject.name);
        let parameters = PatchParams::default();
        let strategic = Patch::Strategic(&patch);
        let ask = || async { api.patch_status(name, &parameters, &strategic).await.map(drop) };
        insist(ask).await;
        self.told = patch;
    }

    async fn bind(&self) -> kube::Result<()> {
        let Subject { namespace, name, uid, .. } = &self.subject;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": { "name": name, "namespace": namespace, "uid": uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": HOST },
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/binding");
        let body = serde_json::to_vec(&binding).map_err(kube::Error::SerdeError)?;
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        self.shared.client.request::<Value>(request).await.map(drop)
    }

    /// Stops the containers and lets the server forget the pod.
    async fn end(&mut self) {
        tokio::time::sleep(self.shared.timing.stop).await;
        let mut rules = self.rules.clone();
        let is_stuck = |rules: &Rules| rules.has(self.whose(), &Behaviour::StuckTerminating);
        // An error means that the kubelet is gone, and nobody is left to hold the pod.
        let _ = rules.wait_for(|rules| !is_stuck(rules)).await;
        let uid = Some(self.subject.uid.clone());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        let (api, name) = (self.pods(), &self.subject.name);
        insist(|| async { api.delete(name, &parameters).await.map(drop) }).await;
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.shared.client.clone(), &self.subject.namespace)
    }
}

fn answering(rules: &Rules, whose: Whose<'_>) -> Answering {
    if rules.has(whose, &Behaviour::SidecarRefuses) {
        Answering::Refuses
    } else if rules.has(whose, &Behaviour::SidecarHangs) {
        Answering::Hangs
    } else {
        Answering::Yes
    }
}

fn crash(rules: &Rules, whose: Whose<'_>) -> Option<Behaviour> {
    [Behaviour::CrashesAtOnce, Behaviour::Crashes].into_iter().find(|one| rules.has(whose, one))
}

fn earliest(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    one.into_iter().chain(other).min()
}

async fn changed(flag: Option<&mut watch::Receiver<bool>>) {
    let Some(flag) = flag else { return std::future::pending().await };
    if flag.changed().await.is_err() {
        // The process is gone: nothing will change.
        std::future::pending::<()>().await;
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
