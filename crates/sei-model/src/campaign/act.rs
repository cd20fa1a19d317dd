//! Performs what users do, and what breaks.

use std::collections::BTreeMap;

use sei_api::key::ObjectKey;
use sei_api::names::{annotation, data_claim};
use sei_api::node::OnOperatorChange;
use sei_plan::template::Template;
use sei_plan::view::JobState;

use super::{Act, Fault, Run};
use crate::cluster::pod_key;
use crate::fixture;

impl Run {
    pub(super) fn act(&mut self, which: usize, act: Act) {
        let key = self.key(which);
        let cluster = &mut self.cluster;
        match act {
            Act::Image(number) => cluster.edit(&key, |spec| spec.image = fixture::image(number)),
            Act::Label(number) => {
                let labels = BTreeMap::from([("team".to_owned(), number.to_string())]);
                cluster.edit(&key, |spec| spec.pod_labels = Some(labels));
            }
            Act::Override(number) => {
                let overrides = BTreeMap::from([("p2p.maxPeers".to_owned(), number.to_string())]);
                cluster.edit(&key, |spec| spec.overrides = Some(overrides));
            }
            Act::PauseUpdates(paused) => cluster.edit(&key, |spec| {
                spec.update.get_or_insert_default().paused = Some(paused);
            }),
            Act::Pause(paused) => cluster.edit(&key, |spec| spec.paused = Some(paused)),
            Act::HandsOff(is_on) => {
                cluster.annotate(&key, annotation::HANDS_OFF, is_on.then_some("true"));
            }
            Act::HoldOperatorChanges(holds) => cluster.edit(&key, |spec| {
                let choice = if holds { OnOperatorChange::Hold } else { OnOperatorChange::Auto };
                spec.update.get_or_insert_default().on_operator_change = Some(choice);
            }),
            Act::Delete => cluster.delete_node(&key),
            Act::Create => self.create(which),
            Act::RemoveFinalizers => {
                cluster.change_node(&key, |node| node.metadata.finalizers = None);
            }
            Act::WipeStatus => cluster.change_node(&key, |node| node.status = None),
            Act::RemovePlan => cluster.change_node(&key, |node| {
                if let Some(status) = node.status.as_mut() {
                    status.plan = None;
                }
            }),
            Act::WipeAnnotations => {
                cluster.change_node(&key, |node| node.metadata.annotations = None);
            }
            Act::ForgeHash => {
                let hash = format!("v1:{}", "0".repeat(64));
                cluster.change_node(&key, |node| {
                    node.status.get_or_insert_default().pod_template_hash = Some(hash);
                });
            }
            Act::ForgeImage => cluster.change_node(&key, |node| {
                node.status.get_or_insert_default().current_image = Some(fixture::image(9));
            }),
            Act::Approve => self.approve(&key),
            Act::Retry => {
                let value = cluster.version().to_string();
                cluster.annotate(&key, annotation::RETRY, Some(&value));
            }
            Act::Restart => {
                let value = cluster.now.to_string();
                cluster.annotate(&key, annotation::RESTARTED_AT, Some(&value));
            }
            Act::Platform(number) => cluster.platforms.in_force = usize::from(number),
            Act::DeleteSecrets => cluster.secrets.retain(|at, _| at.namespace != key.namespace),
            Act::RestoreSecrets => self.restore_secrets(),
            act => self.act_on_objects(&key, act),
        }
    }

    pub(super) fn restore_secrets(&mut self) {
        for subject in &self.subjects {
            fixture::provide(&mut self.cluster, &subject.key, &subject.mode);
        }
    }

    fn create(&mut self, which: usize) {
        let subject = self.subjects[which % self.subjects.len()].clone();
        fixture::provide(&mut self.cluster, &subject.key, &subject.mode);
        let spec = fixture::spec(&subject.mode, subject.chain);
        if self.cluster.create_node(&subject.key, spec) {
            self.cluster.safety.mark("created again");
        }
    }

    /// Approves whatever the node holds back now.
    pub(super) fn approve(&mut self, key: &ObjectKey) {
        let Some(node) = self.cluster.nodes.get(key) else { return };
        let Ok(rendered) = self.cluster.platforms.render(node) else { return };
        let hash = rendered.desired.hash.clone();
        self.cluster.annotate(key, annotation::APPROVE_UPDATE, Some(&hash));
    }

    fn act_on_objects(&mut self, key: &ObjectKey, act: Act) {
        let cluster = &mut self.cluster;
        match act {
            Act::WipeSetAnnotations => cluster.change_set(key, false, |set| {
                set.template_hash = None;
                set.initialised = false;
            }),
            Act::DeleteSet => drop(cluster.sets.remove(key)),
            Act::DeleteSetOrphan => {
                let Some(set) = cluster.sets.remove(key) else { return };
                for at in [pod_key(key), ObjectKey::new(&key.namespace, format!("{}-1", key.name))]
                {
                    cluster.change_pod(&at, |pod| {
                        pod.view.controller.take_if(|owner| owner.uid == set.uid);
                    });
                }
            }
            Act::DeleteSetForeground => {
                cluster.change_set(key, false, |set| set.terminating = true);
            }
            Act::Scale(replicas) => {
                cluster.change_set(key, true, |set| set.replicas = Some(i32::from(replicas)));
                cluster.excuse(key);
            }
            Act::EditTemplate(number) => cluster.change_set(key, true, |set| {
                let mut template = set.template.json();
                template["metadata"]["annotations"]["edited"] = number.to_string().into();
                if number == 2 {
                    template["spec"]["containers"][0]["image"] = fixture::image(2).into();
                }
                set.template = Template::from(template);
            }),
            Act::RollingUpdate => cluster.change_set(key, true, |set| set.on_delete = false),
            Act::DeletePod => cluster.delete_pod(&pod_key(key)),
            Act::DeleteClaim => {
                let at = ObjectKey::new(&key.namespace, data_claim(&key.name));
                if let Some(claim) = cluster.claims.get_mut(&at) {
                    claim.terminating = true;
                }
            }
            Act::DeleteService => drop(cluster.services.remove(key)),
            Act::EditService => {
                let version = cluster.next_version().to_string();
                if let Some(service) = cluster.services.get_mut(key) {
                    "edited".clone_into(&mut service.content);
                    service.view.resource_version = version;
                }
            }
            Act::ForgePod => cluster.forge_pod(key, "forged", Some("another")),
            Act::ForgePodName => cluster.forge_pod(key, &pod_key(key).name, Some("another")),
            Act::DeleteJob => {
                if let Some(job) = cluster.jobs.get_mut(key) {
                    job.view.terminating = true;
                }
            }
            _ => {}
        }
    }

    pub(super) fn fault(&mut self, which: usize, fault: Fault) {
        let subject = self.subjects[which % self.subjects.len()].clone();
        let (key, at) = (subject.key.clone(), pod_key(&subject.key));
        let cluster = &mut self.cluster;
        match fault {
            Fault::Halt(true) => drop(cluster.faults.halted.insert(subject.chain.to_owned())),
            Fault::Halt(false) => drop(cluster.faults.halted.remove(subject.chain)),
            Fault::Evict => {
                cluster.change_pod(&at, |pod| pod.ended = pod.started);
                cluster.report_pod(&at);
            }
            Fault::LoseSidecar => cluster.change_pod(&at, |pod| pod.sidecar_lost = true),
            Fault::RestartSidecar => {
                cluster.change_pod(&at, crate::pod::Pod::restart_sidecar);
                cluster.report_pod(&at);
            }
            Fault::FailConfig(fails) => {
                for task in ["config-patch", "config-validate", "config-apply"] {
                    set_failing(&mut cluster.faults.failing_tasks, task, fails);
                }
            }
            Fault::FailMarkReady(fails) => {
                set_failing(&mut cluster.faults.failing_tasks, "mark-ready", fails);
            }
            Fault::StuckPods(true) => drop(cluster.faults.stuck.insert(key)),
            Fault::StuckPods(false) => drop(cluster.faults.stuck.remove(&key)),
            Fault::FailJob => {
                let failed = JobState::Failed("it failed".to_owned());
                cluster.finish_job(&key, failed);
            }
        }
    }
}

fn set_failing(failing: &mut std::collections::BTreeSet<String>, task: &str, fails: bool) {
    if fails {
        failing.insert(task.to_owned());
    } else {
        failing.remove(task);
    }
}
