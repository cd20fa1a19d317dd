//! The lifecycle of one pod, from its binding to its removal.
//!
//! A loop: compute the present state, write the status if it changed, wait for the next change.
//! Rules can change at any time, so the state keeps only times and past events.

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
use super::rules::{Behaviour, PodKey, Rules};
use super::status::{
    ConditionValue, Conditions, ContainerNow, Ended, Kind, Report, SEID, SIDECAR, State, Subject,
};
use super::{HOST, Shared, retry};
use crate::rpc::{Rpc, RpcFault, RpcHost};
use crate::sidecar::{Answering, Host, Process, VolumeKey};

/// Progress of the deletion of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deletion {
    None,
    Requested,
    Complete,
}

/// A command of a scenario to a running pod.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command {
    RestartSidecar,
}

pub(super) struct Lifecycle {
    shared: Arc<Shared>,
    subject: Subject,
    rules: watch::Receiver<Rules>,
    conditions: Conditions,
    ip: Option<Ipv4Addr>,
    /// When the pod was bound.
    bound: Option<(Instant, Timestamp)>,
    volume: VolumeKey,
    sidecar: Option<(Process, watch::Receiver<bool>)>,
    /// The RPC of the chain process.
    rpc: Option<Rpc>,
    /// The time of the last block of a chain that stands still.
    chain_stopped_at: Option<Timestamp>,
    gate: Gate,
    /// When the pull first failed.
    pull_failed: Option<Instant>,
    /// Since when the chain process has been in its present state.
    seid_since: Instant,
    crashes: u32,
    phase: &'static str,
    /// The status that was last written.
    written: Value,
}

/// The readiness gate and the chain process.
#[derive(Debug, Default)]
struct Gate {
    /// The sidecar reports that the gate is open.
    is_open: bool,
    /// The present process was started through the gate.
    is_passed: bool,
    /// Some process of the pod was started through the gate.
    was_passed: bool,
}

/// Runs a pod until it is removed.
pub(super) async fn run(
    shared: Arc<Shared>,
    subject: Subject,
    mut commands: mpsc::UnboundedReceiver<Command>,
    mut deletion: watch::Receiver<Deletion>,
) {
    let mut pod = Lifecycle::new(shared, subject);
    tokio::select! {
        () = pod.run(&mut commands) => {}
        _ = deletion.wait_for(|now| *now >= Deletion::Requested) => {}
    }
    (pod.sidecar, pod.rpc) = (None, None);
    tokio::select! {
        () = pod.terminate() => {}
        _ = deletion.wait_for(|now| *now == Deletion::Complete) => {}
    }
    if let Some(ip) = pod.ip {
        pod.shared.addresses.release(ip);
    }
}

impl Lifecycle {
    fn new(shared: Arc<Shared>, subject: Subject) -> Self {
        let volume = VolumeKey {
            namespace: subject.namespace.clone(),
            claim: subject.claim.clone().unwrap_or_default(),
            // Without a claim the records are lost with the pod.
            uid: subject.uid.clone(),
        };
        Self {
            rules: shared.rules.subscribe(),
            conditions: Conditions::default(),
            ip: None,
            bound: None,
            volume,
            sidecar: None,
            rpc: None,
            chain_stopped_at: None,
            gate: Gate::default(),
            pull_failed: None,
            seid_since: Instant::now(),
            crashes: 0,
            phase: "Pending",
            written: Value::Null,
            shared,
            subject,
        }
    }

    async fn run(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        self.schedule().await;
        if !self.subject.is_pre_pull {
            self.ip = self.shared.addresses.take();
        }
        let mut rules = self.rules.clone();
        loop {
            let next_at = self.advance();
            self.write_status().await;
            let ready = self.sidecar.as_mut().map(|(_, ready)| ready);
            let command = tokio::select! {
                _ = rules.changed() => None,
                () = changed(ready) => None,
                () = until(next_at) => None,
                Some(command) = commands.recv() => Some(command),
            };
            if let Some(Command::RestartSidecar) = command {
                self.restart_sidecar();
            }
        }
    }

    /// Binds the pod as soon as it can be scheduled and its volume is bound.
    async fn schedule(&mut self) {
        let mut rules = self.rules.clone();
        let mut claims = self.shared.claims.subscribe();
        loop {
            let obstacle = self.obstacle(&rules.borrow_and_update(), &claims.borrow_and_update());
            let Some(message) = obstacle else { break };
            let message = format!("0/1 nodes are available: {message}.");
            let reason = Some("Unschedulable");
            let value = ConditionValue { is_true: false, reason, message: Some(message) };
            self.conditions.set("PodScheduled", value);
            self.write_status().await;
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
            retry(|| self.bind()).await;
        }
        self.bound = Some((Instant::now(), Timestamp::now()));
        for kind in ["PodScheduled", "PodReadyToStartContainers"] {
            let value = ConditionValue { is_true: true, ..ConditionValue::default() };
            self.conditions.set(kind, value);
        }
    }

    /// Why the pod cannot be scheduled.
    fn obstacle(&self, rules: &Rules, claims: &Claims) -> Option<String> {
        if self.subject.is_bound {
            return None;
        }
        if rules.has(self.key(), &Behaviour::Unschedulable) {
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

    fn key(&self) -> PodKey<'_> {
        let Subject { namespace, node, image, is_pre_pull, .. } = &self.subject;
        PodKey { namespace, node, image, is_pre_pull: *is_pre_pull }
    }

    /// Computes the present state, and returns when it changes next by time alone.
    fn advance(&mut self) -> Option<Instant> {
        let rules = self.rules.clone();
        let rules = rules.borrow();
        let (bound, _) = self.bound?;
        let delay = rules.start_delay(self.key()).filter(|_| !self.subject.is_pre_pull);
        let delay = delay.unwrap_or_default();
        let start = bound + delay.max(self.shared.timing.start);
        let next_at = if Instant::now() < start {
            Some(start)
        } else if self.subject.is_pre_pull {
            self.pull(&rules)
        } else {
            let pull = self.start_containers(&rules);
            self.advance_sidecar(&rules);
            let next_at = earliest(pull, self.advance_seid(&rules));
            self.advance_rpc(&rules);
            next_at
        };
        self.update_conditions(&rules);
        next_at
    }

    /// Pulls the images of an update; the containers end at once, and the pod with them.
    fn pull(&mut self, rules: &Rules) -> Option<Instant> {
        if rules.has(self.key(), &Behaviour::PullHangs) {
            return None;
        }
        let next_at = self.start_containers(rules);
        if self.subject.containers.iter().all(ContainerNow::has_started) {
            self.phase = "Succeeded";
        }
        next_at
    }

    /// Starts, in their order, the containers whose images can be pulled.
    fn start_containers(&mut self, rules: &Rules) -> Option<Instant> {
        let mut next_at = None;
        for index in 0..self.subject.containers.len() {
            let container = &self.subject.containers[index];
            if container.has_started() {
                continue;
            }
            if rules.is_unpullable(self.key(), &container.image) {
                next_at = self.fail_pull(index);
                if self.subject.containers[index].kind == Kind::Main {
                    continue;
                }
                break;
            }
            self.start_container(index, rules);
        }
        next_at
    }

    /// Reports a failed pull first and its back-off later, as a kubelet does.
    fn fail_pull(&mut self, index: usize) -> Option<Instant> {
        let failed = *self.pull_failed.get_or_insert_with(Instant::now);
        let back_off = failed + self.shared.timing.pull;
        let container = &mut self.subject.containers[index];
        let image = &container.image;
        let (reason, message) = if Instant::now() < back_off {
            ("ErrImagePull", format!("failed to resolve reference {image:?}: not found"))
        } else {
            ("ImagePullBackOff", format!("Back-off pulling image {image:?}"))
        };
        container.state = State::Waiting { reason, message: Some(message) };
        (reason == "ErrImagePull").then_some(back_off)
    }

    fn start_container(&mut self, index: usize, rules: &Rules) {
        let now = Timestamp::now();
        let container = &mut self.subject.containers[index];
        container.state = match container.kind {
            _ if self.subject.is_pre_pull => {
                State::Ended(Ended { code: 0, message: None, since: now, at: now })
            }
            Kind::Init => State::Ended(Ended { code: 0, message: None, since: now, at: now }),
            Kind::Sidecar | Kind::Main => State::Running { since: now },
        };
        match container.name.as_str() {
            SIDECAR => self.start_sidecar(answering(rules, self.key())),
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
            is_secure: self.subject.is_secure,
            audience: self.subject.audience.clone(),
        };
        let process = Process::start(&self.shared.sidecars, host, answering);
        let ready = process.ready();
        self.sidecar = Some((process, ready));
    }

    /// The container restarts in the same pod: the ready flag is lost, the records are kept.
    fn restart_sidecar(&mut self) {
        if self.sidecar.take().is_none() {
            return;
        }
        let now = Timestamp::now();
        let containers = self.subject.containers.iter_mut();
        for container in containers.filter(|container| container.name == SIDECAR) {
            if let State::Running { since } = container.state {
                container.last = Some(Ended { code: 1, message: None, since, at: now });
                container.state = State::Running { since: now };
                container.restarts += 1;
            }
        }
        let answering = answering(&self.rules.borrow(), self.key());
        self.start_sidecar(answering);
    }

    /// The chain process serves its RPC from its start through the gate until it ends.
    fn advance_rpc(&mut self, rules: &Rules) {
        let mut faults = rules.rpc_faults(self.key());
        if rules.has(self.key(), &Behaviour::Halted) {
            faults.push(RpcFault::NoBlocks);
        }
        let has_stopped = faults.contains(&RpcFault::NoBlocks);
        let stopped_at = self.chain_stopped_at.unwrap_or_else(Timestamp::now);
        self.chain_stopped_at = has_stopped.then_some(stopped_at);
        let Some(ip) = self.ip.filter(|_| self.gate.is_passed && !self.subject.is_bootstrap) else {
            self.rpc = None;
            return;
        };
        let Subject { namespace, node, uid, chain, .. } = &self.subject;
        let rpc = self.rpc.get_or_insert_with(|| {
            let [namespace, node, pod_uid, chain] = [namespace, node, uid, chain].map(Clone::clone);
            let host = RpcHost { namespace, node, pod_uid, chain, ip };
            Rpc::start(host, self.shared.sidecars.clone())
        });
        rpc.set(faults, self.chain_stopped_at);
    }

    fn advance_sidecar(&mut self, rules: &Rules) {
        let answering = answering(rules, self.key());
        self.gate.is_open = self.sidecar.as_mut().is_some_and(|(process, ready)| {
            process.set_answering(answering);
            *ready.borrow_and_update() && answering == Answering::Yes
        });
    }

    /// Advances the chain process: held by the readiness gate, running or crashing.
    fn advance_seid(&mut self, rules: &Rules) -> Option<Instant> {
        let mut containers = self.subject.containers.iter();
        let index = containers.position(|container| container.name == SEID)?;
        match self.subject.containers[index].state.clone() {
            State::Running { since } => self.advance_running_seid(index, since, rules),
            State::Waiting { .. } if self.subject.containers[index].has_started() => {
                let restart_at = self.seid_since + self.back_off();
                let crashes =
                    crash(rules, self.key()).is_some() || rules.panics(self.key()).is_some();
                if crashes && Instant::now() < restart_at {
                    return Some(restart_at);
                }
                self.start_container(index, rules);
                self.advance_running_seid(index, Timestamp::now(), rules)
            }
            _ => None,
        }
    }

    fn advance_running_seid(
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
        let panics = rules.panics(self.key());
        let code = match crash(rules, self.key()) {
            Some(Behaviour::Crashes) if !self.gate.is_passed => return None,
            Some(_) => 1,
            None if panics.is_some() && !self.gate.is_passed => return None,
            // As of every program in Go.
            None if panics.is_some() => 2,
            None if self.subject.is_bootstrap && self.gate.is_passed => {
                if rules.has(self.key(), &Behaviour::Halted) {
                    return None;
                }
                0
            }
            None => return self.catches_up_until(rules),
        };
        if Instant::now() < end {
            return Some(end);
        }
        let message = panics.filter(|message| !message.is_empty());
        self.end_seid(index, Ended { code, message, since, at: Timestamp::now() });
        (!self.subject.is_bootstrap).then(|| self.seid_since + self.back_off())
    }

    /// When the chain process has caught up, if that is in the future.
    fn catches_up_until(&self, rules: &Rules) -> Option<Instant> {
        let delay = rules.ready_delay(self.key()).filter(|_| self.gate.is_passed)?;
        Some(self.seid_since + delay).filter(|until| *until > Instant::now())
    }

    fn end_seid(&mut self, index: usize, ended: Ended) {
        let code = ended.code;
        let container = &mut self.subject.containers[index];
        self.gate.is_passed = false;
        self.seid_since = Instant::now();
        if self.subject.is_bootstrap {
            // It is not restarted, and the pod ends with it.
            container.state = State::Ended(ended);
            self.phase = if code == 0 { "Succeeded" } else { "Failed" };
            self.sidecar = None;
            self.gate.is_open = false;
            return;
        }
        container.last = Some(ended);
        container.restarts += 1;
        self.crashes += 1;
        let message = Some(format!("back-off restarting failed container {SEID}"));
        container.state = State::Waiting { reason: "CrashLoopBackOff", message };
    }

    fn back_off(&self) -> Duration {
        let doubled = self.crashes.saturating_sub(1).min(5);
        self.shared.timing.back_off * 2_u32.pow(doubled)
    }

    /// Derives readiness, phase and conditions of the pod from its containers.
    fn update_conditions(&mut self, rules: &Rules) {
        // A process that ends at once answers no probe.
        let never_ready = [Behaviour::Halted, Behaviour::CrashesAtOnce];
        let halted = never_ready.iter().any(|behaviour| rules.has(self.key(), behaviour))
            || self.catches_up_until(rules).is_some();
        let is_bootstrap = self.subject.is_bootstrap;
        let Gate { is_open, is_passed, was_passed } = self.gate;
        for container in &mut self.subject.containers {
            let runs = matches!(container.state, State::Running { .. });
            let (name, kind) = (container.name.as_str(), container.kind);
            (container.started, container.ready) = match (name, kind) {
                (_, Kind::Init) => (false, container.has_started()),
                // It has no probes.
                _ if is_bootstrap => (runs, runs),
                (SEID, _) => (runs && is_passed, runs && is_passed && !halted),
                (SIDECAR, _) => (runs, runs),
                // Its readiness probe calls the sidecar.
                (_, Kind::Sidecar) => (runs, runs && is_open),
                // It needs a port that the chain process opens.
                (_, Kind::Main) => (runs, runs && was_passed),
            };
        }
        let (main, init): (Vec<&ContainerNow>, Vec<&ContainerNow>) =
            self.subject.containers.iter().partition(|container| container.kind == Kind::Main);
        let has_started = main.iter().any(|container| container.has_started());
        let is_initialized = init.iter().all(|container| container.has_started());
        let containers = self.subject.containers.iter();
        let unready: Vec<&str> = containers
            .filter(|container| !container.ready && container.kind != Kind::Init)
            .map(|container| container.name.as_str())
            .collect();
        let is_over = matches!(self.phase, "Succeeded" | "Failed");
        if !is_over && has_started {
            self.phase = "Running";
        }
        let message = |is_true: bool| {
            (!is_true).then(|| format!("containers with unready status: [{}]", unready.join(" ")))
        };
        let value = |is_true: bool, reason: &'static str| ConditionValue {
            is_true,
            reason: (!is_true).then_some(reason),
            message: message(is_true),
        };
        let is_ready = !is_over && unready.is_empty();
        let reason = if self.phase == "Succeeded" { "PodCompleted" } else { "ContainersNotReady" };
        let initialized = value(is_initialized, "ContainersNotInitialized");
        let (ready, containers) = (value(is_ready, reason), value(is_ready, reason));
        self.conditions.set("Initialized", initialized);
        self.conditions.set("ContainersReady", containers);
        self.conditions.set("Ready", ready);
    }

    /// Writes the status if it differs from the last one written.
    async fn write_status(&mut self) {
        let report = Report {
            subject: &self.subject,
            phase: self.phase,
            conditions: &self.conditions,
            host: self.shared.addresses.host(),
            ip: self.ip,
            start_time: self.bound.map(|(_, at)| at),
        };
        let patch = report.to_patch();
        if patch == self.written {
            return;
        }
        let (api, name) = (self.pods(), &self.subject.name);
        let parameters = PatchParams::default();
        let strategic = Patch::Strategic(&patch);
        retry(|| async { api.patch_status(name, &parameters, &strategic).await.map(drop) }).await;
        self.written = patch;
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

    /// Stops the containers, reports their ends and removes the pod from the server.
    async fn terminate(&mut self) {
        tokio::time::sleep(self.shared.timing.stop).await;
        let mut rules = self.rules.clone();
        let is_stuck = |rules: &Rules| rules.has(self.key(), &Behaviour::StuckTerminating);
        // An error means that the kubelet was dropped, and its rules with it.
        let _ = rules.wait_for(|rules| !is_stuck(rules)).await;
        if self.subject.containers.iter().any(ContainerNow::has_started) {
            self.end_containers();
            self.write_status().await;
        }
        let uid = Some(self.subject.uid.clone());
        let parameters = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions { uid, resource_version: None }),
            ..DeleteParams::default()
        };
        let (api, name) = (self.pods(), &self.subject.name);
        retry(|| async { api.delete(name, &parameters).await.map(drop) }).await;
    }

    /// Every container that runs ends by SIGTERM; one that waits for its next run keeps its last end.
    fn end_containers(&mut self) {
        let now = Timestamp::now();
        let mut has_failed = false;
        for container in &mut self.subject.containers {
            let ended = match (&container.state, container.last.take()) {
                (State::Running { since }, _) => {
                    Some(Ended { code: 0, message: None, since: *since, at: now })
                }
                (State::Ended(ended), _) => Some(ended.clone()),
                (State::Waiting { .. }, last) => last,
            };
            has_failed |= ended.as_ref().is_none_or(|ended| ended.code != 0);
            container.state = ended.map_or_else(|| container.state.clone(), State::Ended);
            (container.started, container.ready) = (false, container.kind == Kind::Init);
        }
        let (phase, reason) =
            if has_failed { ("Failed", "PodFailed") } else { ("Succeeded", "PodCompleted") };
        self.phase = phase;
        for kind in ["ContainersReady", "Ready"] {
            let value = ConditionValue { is_true: false, reason: Some(reason), message: None };
            self.conditions.set(kind, value);
        }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.shared.client.clone(), &self.subject.namespace)
    }
}

fn answering(rules: &Rules, pod: PodKey<'_>) -> Answering {
    if rules.has(pod, &Behaviour::SidecarRefuses) {
        Answering::Refuses
    } else if rules.has(pod, &Behaviour::SidecarHangs) {
        Answering::Hangs
    } else {
        Answering::Yes
    }
}

fn crash(rules: &Rules, pod: PodKey<'_>) -> Option<Behaviour> {
    let crashes = [Behaviour::CrashesAtOnce, Behaviour::Crashes];
    crashes.into_iter().find(|behaviour| rules.has(pod, behaviour))
}

fn earliest(left: Option<Instant>, right: Option<Instant>) -> Option<Instant> {
    left.into_iter().chain(right).min()
}

async fn changed(flag: Option<&mut watch::Receiver<bool>>) {
    let Some(flag) = flag else { return std::future::pending().await };
    if flag.changed().await.is_err() {
        // The process has ended, so the flag cannot change.
        std::future::pending::<()>().await;
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
