//! The controllers of Kubernetes and the kubelets, each one step at a time.

use sei_api::key::ObjectKey;
use sei_api::names::{bootstrap_job, label};
use sei_plan::pre_pull::Pull;
use sei_plan::shared::Shared;
use sei_plan::signing_key::SigningKey;
use sei_plan::view::{Controller, JobState, StatefulSetView, TroubleKind};

use crate::cluster::{Cluster, pod_key};
use crate::pod::Pod;

impl Cluster {
    /// The StatefulSet controller observes the newest template.
    pub fn observe_set(&mut self, key: &ObjectKey) {
        let Some(set) = self.sets.get(key).filter(|set| !set.terminating).cloned() else { return };
        if set.observed_generation == set.generation && set.update_revision.is_some() {
            return;
        }
        let revision = self.revision_of(key, &set.template);
        self.change_set(key, false, |set| {
            set.observed_generation = set.generation;
            set.update_revision = Some(revision);
        });
        self.note_revision(key);
    }

    /// The StatefulSet controller creates missing pods and deletes excess ones. One that took over
    /// with an old cache uses `stale`, an older revision.
    pub fn scale_set(&mut self, key: &ObjectKey, is_stale: bool) {
        let Some(set) = self.sets.get(key).filter(|set| !set.terminating).cloned() else { return };
        let Some(newest) = set.observed_revision().map(str::to_owned) else { return };
        let older = self.older_revision(key, &newest).filter(|_| is_stale);
        let revision = older.unwrap_or_else(|| newest.clone());
        let replicas = set.replicas.unwrap_or(1);
        for ordinal in 0..2 {
            let at = ObjectKey::new(&key.namespace, format!("{}-{ordinal}", key.name));
            let found = self.pods.get(&at).cloned();
            match found {
                None if ordinal < replicas => self.create_pod(key, &at, &set, &revision),
                Some(pod) if pod.view.controller.is_none() && pod.label == key.name => {
                    let own = Controller::statefulset(&set.name, &set.uid);
                    self.change_pod(&at, |pod| pod.view.controller = Some(own));
                }
                Some(pod) if !is_of(&pod, &set) => {}
                Some(pod) if ordinal >= replicas || pod.ended => {
                    if pod.ended {
                        self.end_pod(&at);
                    } else {
                        self.delete_pod(&at);
                    }
                }
                Some(pod) if !set.on_delete && pod.view.revision.as_ref() != Some(&newest) => {
                    self.delete_pod(&at);
                }
                _ => {}
            }
        }
    }

    fn older_revision(&self, key: &ObjectKey, newest: &str) -> Option<String> {
        let prefix = format!("{}-", key.name);
        let names = self.revisions.keys().filter(|at| at.namespace == key.namespace);
        let mut names = names.map(|at| at.name.as_str());
        let older = names.find(|name| name.starts_with(&prefix) && *name != newest);
        older.map(str::to_owned)
    }

    fn create_pod(&mut self, key: &ObjectKey, at: &ObjectKey, set: &StatefulSetView, name: &str) {
        let revision = ObjectKey::new(&key.namespace, name);
        let Some(template) = self.revisions.get(&revision) else { return };
        let blueprint = self.platforms.blueprint(&revision, &set.name, template);
        let serial = self.next_version();
        let mut pod = blueprint.pod(&at.name, &format!("pod-{serial}"), Some(name));
        pod.view.controller = Some(Controller::statefulset(&set.name, &set.uid));
        pod.view.resource_version = serial.to_string();
        self.pods.insert(at.clone(), Shared::new(pod));
    }

    /// The Job controller: one pod until the replay has ended.
    pub fn run_job(&mut self, key: &ObjectKey) {
        let Some(job) = self.jobs.get(key).cloned() else { return };
        let own = Controller::job(&bootstrap_job(&key.name), &job.view.uid);
        let pods = self.pods.iter().filter(|(_, pod)| pod.view.controller.as_ref() == Some(&own));
        let pods: Vec<(ObjectKey, Shared<Pod>)> =
            pods.map(|(key, pod)| (key.clone(), pod.clone())).collect();
        if job.view.terminating {
            if pods.is_empty() {
                self.jobs.remove(key);
            }
            for (at, _) in &pods {
                self.delete_pod(at);
            }
            return;
        }
        if job.view.state != JobState::Active {
            return;
        }
        let Some((at, pod)) = pods.first() else {
            let serial = self.next_version();
            let name = format!("{}-{serial}", bootstrap_job(&key.name));
            let mut pod = job.blueprint.pod(&name, &format!("pod-{serial}"), None);
            pod.view.resource_version = serial.to_string();
            self.pods.insert(ObjectKey::new(&key.namespace, name), Shared::new(pod));
            return;
        };
        if pod.view.seid.started {
            self.finish_job(key, JobState::Complete);
            self.change_pod(at, |pod| pod.ended = true);
            self.report_pod(at);
        }
    }

    /// A Job ends.
    pub fn finish_job(&mut self, key: &ObjectKey, state: JobState) {
        if let Some(job) = self.jobs.get_mut(key) {
            job.view.state = state;
        }
    }

    /// The garbage collector removes what its owner has left, and finishes deletions.
    pub fn collect_garbage(&mut self) {
        let uids: Vec<String> =
            self.nodes.values().filter_map(|node| node.metadata.uid.clone()).collect();
        let is_orphan = |owner: &Option<String>| {
            owner.as_ref().is_some_and(|owner| owner.starts_with("node-") && !uids.contains(owner))
        };
        self.services.retain(|_, found| !is_orphan(&found.view.controller));
        self.config_maps.retain(|_, found| !is_orphan(&found.view.controller));
        self.pre_pulls.retain(|_, found| !is_orphan(&found.view.controller));
        self.sets.retain(|_, set| !is_orphan(&set.controller));
        for job in self.jobs.values_mut() {
            job.view.terminating |= is_orphan(&job.view.controller);
        }
        for claim in self.claims.values_mut() {
            claim.terminating |= is_orphan(&claim.controller);
        }
        let is_owned = |pod: &Pod| {
            pod.view.controller.as_ref().is_none_or(|owner| match owner.kind.as_str() {
                "StatefulSet" => self.sets.values().any(|set| set.uid == owner.uid),
                "Job" => self.jobs.values().any(|job| job.view.uid == owner.uid),
                _ => true,
            })
        };
        let orphans = self.pods.iter().filter(|(_, pod)| !is_owned(pod));
        let orphans: Vec<ObjectKey> = orphans.map(|(key, _)| key.clone()).collect();
        for key in &orphans {
            self.delete_pod(key);
        }
        self.finish_deletions();
    }

    /// Objects whose deletion waits for others: a foreground deletion for its pods, a claim for the pods
    /// that use it.
    fn finish_deletions(&mut self) {
        let terminating = self.sets.iter().filter(|(_, set)| set.terminating);
        let terminating: Vec<(ObjectKey, String)> =
            terminating.map(|(key, set)| (key.clone(), set.uid.clone())).collect();
        for (key, uid) in terminating {
            let pods = self.pods.iter().filter(|(_, pod)| {
                pod.view.controller.as_ref().is_some_and(|owner| owner.uid == uid)
            });
            let pods: Vec<ObjectKey> = pods.map(|(key, _)| key.clone()).collect();
            if pods.is_empty() {
                self.sets.remove(&key);
            }
            for pod in &pods {
                self.delete_pod(pod);
            }
        }
        let used: Vec<ObjectKey> = self
            .pods
            .iter()
            // A pod that is not scheduled yet does not protect its claim.
            .filter(|(_, pod)| !pod.ended && pod.view.host.is_some())
            .flat_map(|(key, pod)| {
                pod.mount.claims.iter().map(|name| ObjectKey::new(&key.namespace, name))
            })
            .collect();
        self.claims.retain(|key, claim| !claim.terminating || used.contains(key));
    }

    /// The kubelet of a pod: pulls, starts, reports, ends.
    pub fn run_kubelet(&mut self, at: &ObjectKey) {
        let Some(pod) = self.pods.get(at).cloned() else { return };
        if pod.view.deleted_at.is_some() {
            let node = ObjectKey::new(&at.namespace, &pod.label);
            if !self.faults.stuck.contains(&node) {
                self.end_pod(at);
            }
            return;
        }
        if !pod.started && !pod.ended {
            self.start_pod(at, &pod);
        }
        self.report_pod(at);
    }

    fn start_pod(&mut self, at: &ObjectKey, pod: &Pod) {
        let claim = |name: &String| ObjectKey::new(&at.namespace, name);
        let has_claims = pod
            .mount
            .claims
            .iter()
            .all(|name| self.claims.get(&claim(name)).is_some_and(|claim| !claim.terminating));
        if !has_claims {
            let message = Some("persistentvolumeclaim not found".to_owned());
            return self.change_pod(at, |pod| pod.view.unschedulable = message);
        }
        let missing =
            pod.mount.secrets.iter().find(|name| !self.secrets.contains_key(&claim(name)));
        if let Some(name) = missing {
            let message = Some(format!("secret {name} not found"));
            return self.change_pod(at, |pod| {
                pod.view.host = Some(HOST.to_owned());
                pod.view.unschedulable = None;
                pod.view.volumes_missing = message;
            });
        }
        let images = [&pod.view.seid.image, &pod.view.sidecar.image];
        if let Some(image) = images.into_iter().find(|i| self.faults.unpullable.contains(*i)) {
            let message = format!("seid: ErrImagePull {image}");
            return self.change_pod(at, |pod| {
                pod.view.host = Some(HOST.to_owned());
                pod.view.unschedulable = None;
                pod.view.volumes_missing = None;
                pod.report_trouble(TroubleKind::ImagePull, message);
            });
        }
        let crashes = self.faults.crashing.contains(&pod.view.seid.image);
        let signs_as = self.identity_of(at, pod);
        let ip = format!("10.0.0.{}", pod.view.uid.trim_start_matches("pod-"));
        self.change_pod(at, |pod| {
            pod.view.host = Some(HOST.to_owned());
            pod.view.unschedulable = None;
            pod.start(ip);
            pod.crashes = crashes;
            pod.signs_as = signs_as;
        });
        self.note_start(at);
    }

    /// Whom a pod would sign as.
    fn identity_of(&self, at: &ObjectKey, pod: &Pod) -> Option<(String, String)> {
        let chain = pod.mount.chain.clone().unwrap_or_default();
        let keys = pod.mount.secrets.iter().filter(|_| pod.mount.signs);
        let mut keys = keys.filter_map(|name| {
            let secret = self.secrets.get(&ObjectKey::new(&at.namespace, name))?;
            SigningKey::read(secret).ok()
        });
        keys.next().map(|key| (chain, key.identity))
    }

    /// What clients see of a pod follows its processes.
    pub fn report_pod(&mut self, at: &ObjectKey) {
        let now = self.now;
        let Some(pod) = self.pods.get(at) else { return };
        let chain = pod.mount.chain.clone().unwrap_or_default();
        let is_halted = self.faults.halted.contains(&chain);
        let had_passed = pod.passed_gate;
        self.change_pod(at, |pod| pod.report(is_halted, now));
        if !had_passed && self.pods[at].passed_gate {
            self.note_gate_passed(at);
        }
    }

    fn end_pod(&mut self, at: &ObjectKey) {
        self.pods.remove(at);
    }

    /// The kubelet pulls the images of an update.
    pub fn pull(&mut self, node: &ObjectKey) {
        let Some(found) = self.pre_pulls.get_mut(node) else { return };
        let failed = found.images.iter().find(|image| self.faults.unpullable.contains(*image));
        found.view.pull =
            failed.map_or(Pull::Pulled, |image| Pull::Failed(format!("seid: {image}")));
    }

    /// Every controller and kubelet takes one step.
    pub fn run_all(&mut self) {
        let nodes: Vec<ObjectKey> = self.sets.keys().cloned().collect();
        for key in &nodes {
            self.observe_set(key);
        }
        self.run_kubelets();
        for key in &nodes {
            self.scale_set(key, false);
        }
        let jobs: Vec<ObjectKey> = self.jobs.keys().cloned().collect();
        for key in &jobs {
            self.run_job(key);
        }
        self.collect_garbage();
        self.run_kubelets();
        let pulls: Vec<ObjectKey> = self.pre_pulls.keys().cloned().collect();
        for key in &pulls {
            self.pull(key);
        }
    }

    fn run_kubelets(&mut self) {
        let pods: Vec<ObjectKey> = self.pods.keys().cloned().collect();
        for key in &pods {
            self.run_tasks(key);
            self.run_kubelet(key);
        }
    }

    /// A pod of another author that has the label of a node, and its claim.
    pub fn forge_pod(&mut self, node: &ObjectKey, name: &str, revision: Option<&str>) {
        let at = ObjectKey::new(&node.namespace, name);
        if self.pods.contains_key(&at) {
            return;
        }
        let serial = self.next_version();
        let mut pod = Pod { label: node.name.clone(), ..Pod::default() };
        name.clone_into(&mut pod.view.name);
        pod.view.uid = format!("pod-{serial}");
        pod.view.resource_version = serial.to_string();
        pod.view.revision = revision.map(str::to_owned);
        pod.view.controller = Some(Controller::statefulset(&node.name, "another"));
        pod.mount.kind = "pod";
        pod.mount.namespace.clone_from(&node.namespace);
        name.clone_into(&mut pod.mount.name);
        self.pods.insert(at, Shared::new(pod));
    }

    /// Whether the node's own pod is Ready.
    pub fn is_ready(&self, node: &ObjectKey) -> bool {
        self.pods.get(&pod_key(node)).is_some_and(|pod| pod.view.ready)
    }
}

/// The only machine.
const HOST: &str = "host";

fn is_of(pod: &Pod, set: &StatefulSetView) -> bool {
    pod.view.controller.as_ref().is_some_and(|owner| owner.uid == set.uid)
        && set.selector.as_ref().is_some_and(|all| all.contains_key(label::NODE))
}
