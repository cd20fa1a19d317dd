//! The tasks around the bootstrap Job.

use sei_api::condition::Reason;
use sei_api::names::bootstrap_job;
use sei_api::plan::TaskPlan;
use sei_api::task::TaskType;

use super::{Next, done, fail, read, request, sidecar, wait, wait_and_poll};
use crate::request::{Read, Request};
use crate::seen::{JOB, Reading, Seen};
use crate::view::{JobState, JobView, is_bootstrap_pod, is_named};

/// Creates the Service under which the bootstrap pod's sidecar answers.
pub(super) fn step_service(seen: &Seen) -> Next {
    let Some(bootstrap) = &seen.desired.bootstrap else { return not_desired() };
    match &seen.service {
        Reading::Live(Some(service)) if service.controller == seen.node.metadata.uid => done(),
        Reading::Live(Some(_)) => {
            wait(Reason::FieldConflict, "a Service of this name is controlled by another object")
        }
        Reading::Live(None) => {
            request(Request::CreateService(Box::new(bootstrap.service.unpack())))
        }
        Reading::Unread | Reading::Cached(_) => read(Read::Service),
    }
}

/// Creates the Job. An existing Job with another image is deleted first: its pod cannot be changed.
/// So is a failed Job: it belongs to an earlier plan, and would fail this one at once.
pub(super) fn step_job(seen: &Seen) -> Next {
    let Some(bootstrap) = &seen.desired.bootstrap else { return not_desired() };
    if seen.accepted.contains(&JOB) {
        // It is not compared: admission may have rewritten its images, and it would be replaced for ever.
        return done();
    }
    let Reading::Live(found) = &seen.job else { return read(Read::Job) };
    let Some(job) = found else {
        // Live: a cache does not show pods of others.
        let Reading::Live(pods) = &seen.pods else { return read(Read::Pods) };
        if pods.iter().flatten().any(|pod| is_named(pod, seen.name())) {
            let message = "the node's own pod still uses the volume";
            return wait(Reason::PodTerminating, message);
        }
        return request(Request::CreateJob(Box::new(bootstrap.job.unpack())));
    };
    if let Some(next) = not_ours(job, seen) {
        return next;
    }
    if job.terminating {
        return wait(None, "the previous bootstrap Job is being deleted");
    }
    let as_desired =
        job.image == bootstrap.image && job.sidecar_image == seen.desired.sidecar_image;
    match job.state {
        JobState::Complete => done(),
        JobState::Active if as_desired => done(),
        JobState::Active | JobState::Failed(_) => {
            request(Request::DeleteJob { uid: job.uid.clone() })
        }
    }
}

pub(super) fn step_await(plan: &TaskPlan, seen: &Seen) -> Next {
    let Reading::Live(found) = &seen.job else { return read(Read::Job) };
    if let Some(next) = found.as_ref().and_then(|job| not_ours(job, seen)) {
        return next;
    }
    match found.as_ref().map(|job| &job.state) {
        None => fail("the bootstrap Job was deleted before it completed"),
        Some(JobState::Complete) => done(),
        Some(JobState::Failed(text)) => fail(format!("the bootstrap Job failed: {text}")),
        Some(JobState::Active) => sidecar::open_gate_again(plan, seen)
            .unwrap_or_else(|| wait(None, "the bootstrap Job is replaying to its target height")),
    }
}

/// Deletes Job and Service, and waits until they and the Job's pod no longer exist: two pods on one
/// volume would corrupt it.
pub(super) fn step_teardown(plan: &TaskPlan, seen: &Seen) -> Next {
    let Reading::Live(job) = &seen.job else { return read(Read::Job) };
    if let Some(job) = job {
        if let Some(next) = not_ours(job, seen) {
            return next;
        }
        if job.terminating {
            return wait(None, "the bootstrap Job is being deleted");
        }
        if plan.has(TaskType::AwaitBootstrapComplete) && !seen.stored.replay {
            // Without this record a missing Job would count as a failed replay.
            return wait(None, "waiting for the completed replay to be recorded in status");
        }
        return request(Request::DeleteJob { uid: job.uid.clone() });
    }
    let Reading::Live(service) = &seen.service else { return read(Read::Service) };
    if let Some(service) = service
        && service.controller == seen.node.metadata.uid
    {
        if service.terminating {
            return wait(None, "the bootstrap Service is being deleted");
        }
        return request(Request::DeleteService { uid: service.uid.clone() });
    }
    let Reading::Live(pods) = &seen.pods else { return read(Read::Pods) };
    if pods.iter().flatten().any(|pod| is_bootstrap_pod(pod, seen.name(), None)) {
        return wait_and_poll(seen, Reason::PodTerminating, "the bootstrap pod still exists");
    }
    done()
}

/// Waits if the Job of this name has another controller; `None` if it is the node's own.
pub(super) fn not_ours(job: &JobView, seen: &Seen) -> Option<Next> {
    (job.controller != seen.node.metadata.uid).then(|| {
        let message = format!("Job {} is controlled by another object", bootstrap_job(seen.name()));
        wait(Reason::FieldConflict, message)
    })
}

fn not_desired() -> Next {
    fail("the spec no longer requests a bootstrap")
}
