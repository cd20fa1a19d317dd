//! The second phase: nothing fails any more, users correct what only they can, and every node must
//! converge within a bound and then rest.

use sei_api::SeiNode;
use sei_api::condition::{self, ConditionStatus, ConditionType, Reason};
use sei_api::key::ObjectKey;
use sei_api::names::annotation;
use sei_api::status::SeiNodePhase;

use sei_plan::template::Template;

use super::Run;
use crate::fixture::{self, Mode};
use crate::pod::Pod;
use crate::render::Rendered;

/// Rounds of 20 s within which everything converges.
const ROUNDS_MAX: usize = 200;

impl Run {
    /// Heals everything, and returns the rounds until every node had converged.
    pub(super) fn heal_and_converge(&mut self) -> Result<usize, String> {
        self.heal();
        for round in 0..ROUNDS_MAX {
            self.round(20)?;
            self.correct();
            if self.has_converged() && self.is_quiet()? {
                return Ok(round);
            }
        }
        Err(format!("not converged after {ROUNDS_MAX} rounds:\n{}", self.describe()))
    }

    /// Runs the cluster until every node has started, or another one has its key or volume.
    pub(super) fn start(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            self.round(20)?;
            if self.has_converged() {
                return Ok(());
            }
        }
        Err(format!("not started after {ROUNDS_MAX} rounds:\n{}", self.describe()))
    }

    /// The faults end; the last edits stay, except images that cannot run.
    fn heal(&mut self) {
        self.operator.clock_ahead = 0;
        let faults = &mut self.cluster.faults;
        faults.halted.clear();
        faults.failing_tasks.clear();
        faults.stuck.clear();
        self.restore_secrets();
        let pods: Vec<ObjectKey> = self.cluster.pods.keys().cloned().collect();
        for at in &pods {
            let pod = self.cluster.pods[at].clone();
            if pod.sidecar_lost {
                self.cluster.change_pod(at, Pod::restart_sidecar);
            }
            // An orphan is adopted, unless another node waits for it to end.
            if is_forged(&pod) || pod.view.controller.is_none() {
                self.cluster.delete_pod(at);
            }
        }
        for index in 0..self.subjects.len() {
            let key = self.subjects[index].key.clone();
            self.cluster.annotate(&key, annotation::HANDS_OFF, None);
            self.cluster.edit(&key, |spec| {
                spec.paused = None;
                if let Some(update) = spec.update.as_mut() {
                    update.paused = None;
                }
                let bad = [fixture::UNPULLABLE, fixture::CRASHING].map(fixture::image);
                if bad.contains(&spec.image) {
                    spec.image = fixture::image(1);
                }
            });
            self.cluster.annotate(&key, annotation::RETRY, Some("healed"));
        }
    }

    /// What only users can decide: approvals of held updates, of lost volumes and of signing states.
    fn correct(&mut self) {
        for index in 0..self.subjects.len() {
            let key = self.subjects[index].key.clone();
            let Some(node) = self.cluster.nodes.get(&key).cloned() else { continue };
            let status = node.status.clone().unwrap_or_default();
            self.approve(&key);
            let blocked = status.blocked.as_ref().map(|blocked| blocked.reason.clone());
            let is = |reason: Reason| blocked.as_deref() == Some(reason.as_str());
            if is(Reason::DataVolumeLost) {
                let lost = status.data_claim.as_ref().map(|claim| claim.uid.clone());
                let lost = lost.or_else(|| node.metadata.uid.clone());
                self.cluster.annotate(&key, annotation::RECREATE_VOLUME, lost.as_deref());
            }
            if is(Reason::SigningStateLost)
                && let Some(identity) = &status.signing_identity
            {
                let name = annotation::ACCEPT_BLANK_SIGNING_STATE;
                self.cluster.annotate(&key, name, Some(identity));
            }
            self.correct_claim(&key, &node);
            if status.phase == Some(SeiNodePhase::Failed) {
                let value = self.cluster.version().to_string();
                self.cluster.annotate(&key, annotation::RETRY, Some(&value));
            }
        }
    }

    /// A user who has deleted a claim stops what uses it, and one who creates a node again deletes what
    /// the former node has left.
    fn correct_claim(&mut self, key: &ObjectKey, node: &SeiNode) {
        let name = ObjectKey::new(&key.namespace, sei_api::names::data_claim(&key.name));
        let Some(claim) = self.cluster.claims.get_mut(&name) else { return };
        if claim.controller != node.metadata.uid && node.spec.imported_claim().is_none() {
            claim.terminating = true;
        }
        if claim.terminating {
            let pods: Vec<ObjectKey> =
                self.cluster.pods_of(key).map(|(at, _)| at.clone()).collect();
            for at in &pods {
                self.cluster.delete_pod(at);
            }
            if let Some(job) = self.cluster.jobs.get_mut(key) {
                job.view.terminating = true;
            }
        }
    }

    /// Everything takes a step, and every node is reconciled.
    pub(super) fn round(&mut self, seconds: i64) -> Result<(), String> {
        self.operator.caches.sync_all(&self.cluster);
        for key in self.operator.running() {
            self.finish(&key);
        }
        for index in 0..self.subjects.len() {
            let key = self.subjects[index].key.clone();
            self.operator.probe(&self.cluster, &key);
            self.operator.begin(&mut self.cluster, &key);
            self.finish(&key);
        }
        self.cluster.run_all();
        self.cluster.wait(seconds);
        self.check()
    }

    fn has_converged(&self) -> bool {
        self.subjects.iter().all(|subject| self.is_converged(&subject.key))
    }

    /// Whether a node matches its spec, or another node has its key or volume.
    fn is_converged(&self, key: &ObjectKey) -> bool {
        let Some(node) = self.cluster.nodes.get(key) else { return true };
        if node.metadata.deletion_timestamp.is_some() {
            return false;
        }
        self.matches(key, node) || self.is_refused(key, node)
    }

    fn matches(&self, key: &ObjectKey, node: &SeiNode) -> bool {
        let Ok(rendered) = self.cluster.platforms.render(node) else { return false };
        let status = node.status.clone().unwrap_or_default();
        let Some(set) = self.cluster.sets.get(key) else { return false };
        let Some(pod) = self.cluster.own_pod(key) else { return false };
        let is = |kind, expected| condition::is(&status.conditions, kind, expected);
        let desired = &rendered.desired;
        status.phase == Some(SeiNodePhase::Running)
            && status.plan.is_none()
            && status.current_image.as_deref() == Some(desired.image.as_str())
            && status.pod_template_hash.as_deref() == Some(desired.hash.as_str())
            && pod.view.seid.image == desired.image
            && pod.view.ready
            && set.replicas == Some(1)
            && set.on_delete
            && is(ConditionType::PodTemplateDrift, ConditionStatus::False)
            && is(ConditionType::Stalled, ConditionStatus::False)
            && !self.cluster.pre_pulls.contains_key(key)
            && self.cluster.services.contains_key(key)
            && has_rendered(&set.template, &rendered)
            && self.runs_rendered(key, pod.view.revision.as_deref(), &rendered)
    }

    /// Whether a revision has everything that is rendered. Fields that users have added to the
    /// StatefulSet stay theirs, and restart nothing.
    fn runs_rendered(&self, key: &ObjectKey, revision: Option<&str>, rendered: &Rendered) -> bool {
        let at = ObjectKey::new(&key.namespace, revision.unwrap_or_default());
        self.cluster.revisions.get(&at).is_some_and(|template| has_rendered(template, rendered))
    }

    /// Whether the node may not start because a node that runs has its key or its volume.
    fn is_refused(&self, key: &ObjectKey, node: &SeiNode) -> bool {
        let subject = |key: &ObjectKey| self.subjects.iter().find(|subject| subject.key == *key);
        let Some(mine) = subject(key) else { return false };
        let shares = self.subjects.iter().any(|theirs| {
            let is_same = match (&mine.mode, &theirs.mode) {
                (Mode::Validator { key: mine, .. }, Mode::Validator { key: theirs, .. })
                | (Mode::Imported { claim: mine }, Mode::Imported { claim: theirs }) => {
                    mine == theirs
                }
                _ => false,
            };
            let rival = self.cluster.nodes.get(&theirs.key);
            is_same
                && theirs.key != *key
                && rival.is_some_and(|rival| self.matches(&theirs.key, rival))
        });
        let conditions = node.status.as_ref().map(|status| status.conditions.clone());
        let conditions = conditions.unwrap_or_default();
        let stalled = condition::find(&conditions, ConditionType::Stalled);
        let is_reported = stalled.is_some_and(|stalled| {
            stalled.status == "True" && stalled.reason == Reason::SigningKeyConflict.as_str()
        });
        shares && is_reported && self.cluster.own_pod(key).is_none()
    }

    /// At rest nothing is called and nothing is written.
    fn is_quiet(&mut self) -> Result<bool, String> {
        // The last steps may have left something to report.
        for _ in 0..3 {
            self.round(60)?;
        }
        if !self.has_converged() {
            return Ok(false);
        }
        let before = (self.cluster.safety.writes, self.cluster.safety.status_writes);
        for _ in 0..3 {
            self.round(3600)?;
        }
        let after = (self.cluster.safety.writes, self.cluster.safety.status_writes);
        if before != after {
            return Err(format!("writes at rest: {before:?} {after:?}\n{}", self.describe()));
        }
        Ok(self.has_converged())
    }

    /// The state of every node, for a report.
    fn describe(&self) -> String {
        let nodes = self.subjects.iter().filter_map(|subject| {
            let node = self.cluster.nodes.get(&subject.key)?;
            Some(self.describe_node(&subject.key, node))
        });
        nodes.collect()
    }

    fn describe_node(&self, key: &ObjectKey, node: &SeiNode) -> String {
        let status = node.status.clone().unwrap_or_default();
        let plan = status.plan.as_ref().map(|plan| {
            let task = plan.current().map(|(_, task)| (&task.r#type, &task.error));
            format!("{:?} {:?} at {task:?}", plan.kind, plan.phase)
        });
        let find = |kind| {
            let found = condition::find(&status.conditions, kind);
            found.map(|found| format!("{}/{} {}", found.status, found.reason, found.message))
        };
        let pod = self.cluster.pods.get(&crate::cluster::pod_key(key)).map(|pod| {
            let view = &pod.view;
            let state = (pod.started, pod.ended, pod.gate_open, view.ready, view.deleted_at);
            (&view.uid, &view.revision, &view.seid.image, &view.controller, state)
        });
        let set = self.cluster.sets.get(key).map(|set| {
            let generations = (set.generation, set.observed_generation);
            (&set.uid, generations, set.replicas, set.terminating, &set.update_revision)
        });
        let pending = status.pending_update.as_ref();
        let pending = pending.map(|update| (update.state, update.attempts, &update.reason));
        format!(
            "{key}: {} deleted {} phase {:?} annotations {:?}\n  plan {plan:?}\n  drift {:?}\n  \
             stalled {:?}\n  blocked {:?}\n  pending {pending:?}\n  claim {:?}\n  set {set:?}\n  \
             pod {pod:?}\n",
            node.spec.image,
            node.metadata.deletion_timestamp.is_some(),
            status.phase,
            node.metadata.annotations,
            find(ConditionType::PodTemplateDrift),
            find(ConditionType::Stalled),
            status.blocked,
            status.data_claim,
        )
    }
}

/// Whether the pod has a controller that does not exist.
fn is_forged(pod: &Pod) -> bool {
    let owner = pod.view.controller.as_ref();
    owner.is_some_and(|owner| owner.uid == "another")
}

fn has_rendered(template: &Template, rendered: &Rendered) -> bool {
    *template == *rendered.template
        || !sei_plan::diff::lacks_rendered(&template.json(), &rendered.template.json())
}
