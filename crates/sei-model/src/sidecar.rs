//! Sidecars: run tasks, and keep records of them on the volume of the node.

use sei_api::key::ObjectKey;
use sei_plan::request::{Failure, Outcome, SidecarCall, SidecarRequest, TaskRecord, TaskState};

use crate::cluster::{Cluster, Task};

impl Cluster {
    pub(crate) fn call_sidecar(&mut self, node: &ObjectKey, request: &SidecarRequest) -> Outcome {
        let pod = self.pods.iter().find(|(key, pod)| {
            let is_addressed = pod.view.uid == request.pod_uid
                && pod.view.ip.as_deref() == Some(request.ip.as_str());
            key.namespace == node.namespace && is_addressed && pod.answers()
        });
        let Some((key, pod)) = pod.map(|(key, pod)| (key.clone(), pod.clone())) else {
            return Outcome::Failed(Failure::Unreachable("no answer".to_owned()));
        };
        let claim = pod.mount.claims.first().map(|name| ObjectKey::new(&key.namespace, name));
        let Some(claim) = claim.and_then(|key| self.claims.get(&key)).map(|c| c.uid.clone()) else {
            return Outcome::Failed(Failure::Unreachable("its volume is lost".to_owned()));
        };
        let records = self.tasks.entry(claim).or_default();
        match &request.call {
            SidecarCall::Poll { id } => {
                Outcome::Task(records.get(id).map(|task| TaskRecord::from(task.state.clone())))
            }
            SidecarCall::NodeId => Outcome::NodeId("0".repeat(40)),
            SidecarCall::Delete { id } => {
                records.remove(id);
                Outcome::Accepted
            }
            SidecarCall::Submit { id, task_type, .. } => {
                // A completed id is never run again, regardless of the pod's memory.
                let is_complete =
                    records.get(id).is_some_and(|task| task.state == TaskState::Completed);
                if !is_complete {
                    let task_type = task_type.clone();
                    let state = TaskState::Running;
                    records.insert(id.clone(), Task { task_type, state });
                }
                if self.faults.instant_tasks {
                    self.run_tasks(&key);
                }
                Outcome::Accepted
            }
        }
    }

    /// The sidecar of a pod ends the tasks that run.
    pub fn run_tasks(&mut self, pod: &ObjectKey) {
        let Some(found) = self.pods.get(pod).filter(|pod| pod.answers()).cloned() else { return };
        let claim = found.mount.claims.first().map(|name| ObjectKey::new(&pod.namespace, name));
        let Some(claim) = claim.and_then(|key| self.claims.get(&key)) else { return };
        let Some(records) = self.tasks.get_mut(&claim.uid) else { return };
        let mut opens = false;
        for task in records.values_mut().filter(|task| task.state == TaskState::Running) {
            if self.faults.failing_tasks.contains(&task.task_type) {
                task.state = TaskState::Failed("bad".to_owned());
                continue;
            }
            task.state = TaskState::Completed;
            opens |= task.task_type == "mark-ready";
        }
        if opens {
            self.change_pod(pod, |pod| pod.gate_open = true);
        }
    }
}
