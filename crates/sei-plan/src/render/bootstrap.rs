//! The Job that fills a volume by running an older image to a height, before the node starts.
//!
//! Its pod has the node's host name, so the sidecar answers at the same address before and after.
//! It never has a signing key: no other pod runs beside it, but its chain process must not be able
//! to sign a block.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{
    Job, JobSpec, PodFailurePolicy, PodFailurePolicyOnPodConditionsPattern, PodFailurePolicyRule,
};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::{SeiNode, names};

use super::containers::{self, env, mount, texts, volume};
use super::objects::{headless_service, metadata, service_port};
use super::{
    DATA_DIR, HOME_DIR, Owner, RenderError, container, guards, placement, pod, port, scripts,
};
use crate::inputs::TemplateInputs;
use crate::platform::Platform;

/// What the Job runs, and how far. Not part of [`TemplateInputs`]: it never reaches the node's pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bootstrap {
    pub image: String,
    pub target_height: i64,
}

impl Bootstrap {
    pub fn of(node: &SeiNode) -> Result<Self, RenderError> {
        let missing = |field, remedy| RenderError::NoBootstrap { field, remedy };
        let source =
            node.spec.snapshot().ok_or(missing("snapshot", "set s3 and bootstrapImage in it"))?;
        let image = source.bootstrap_image.clone().filter(|image| !image.is_empty());
        let s3 = source.s3.as_ref().filter(|s3| s3.target_height > 0);
        Ok(Self {
            image: image.unwrap_or_else(|| node.spec.image.clone()),
            target_height: s3
                .ok_or(missing("snapshot.s3", "set targetHeight to the height to run to"))?
                .target_height,
        })
    }
}

/// The Job. No TTL: the plan tears it down, and a Job that vanished by itself would be mistaken
/// for one that never ran.
pub fn render_bootstrap_job(
    inputs: &TemplateInputs,
    bootstrap: &Bootstrap,
    platform: &Platform,
    owner: &Owner,
) -> Result<Job, RenderError> {
    guards::check_platform(inputs.mode, platform)?;
    let pod = pod(inputs, bootstrap, platform);
    guards::check_bootstrap_isolation(&pod, inputs)?;
    Ok(Job {
        metadata: metadata(&names::bootstrap_job(&inputs.name), owner, labels(&inputs.name)),
        spec: Some(JobSpec {
            // A second run would start on the data of the first one; the plan decides about that.
            backoff_limit: Some(0),
            // An eviction is no failure of the replay, which continues in the next pod.
            pod_failure_policy: Some(PodFailurePolicy {
                rules: vec![PodFailurePolicyRule {
                    action: "Ignore".to_owned(),
                    on_pod_conditions: Some(vec![PodFailurePolicyOnPodConditionsPattern {
                        type_: "DisruptionTarget".to_owned(),
                        status: Some("True".to_owned()),
                    }]),
                    ..PodFailurePolicyRule::default()
                }],
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta {
                    labels: Some(labels(&inputs.name)),
                    ..pod::pod_metadata(inputs, platform)
                }),
                spec: Some(pod),
            },
            ..JobSpec::default()
        }),
        status: None,
    })
}

/// The Service in front of the Job's pod, under the node's own name; the plan replaces it later.
pub fn render_bootstrap_service(inputs: &TemplateInputs, owner: &Owner) -> Service {
    let labels = labels(&inputs.name);
    let metadata = metadata(&inputs.name, owner, labels.clone());
    headless_service(metadata, labels, vec![service_port("api", port::API)])
}

fn labels(node: &str) -> BTreeMap<String, String> {
    let component =
        (names::label::COMPONENT.to_owned(), names::label::COMPONENT_BOOTSTRAP.to_owned());
    pod::selector_labels(node).into_iter().chain([component]).collect()
}

fn pod(inputs: &TemplateInputs, bootstrap: &Bootstrap, platform: &Platform) -> PodSpec {
    PodSpec {
        hostname: Some(names::pod(&inputs.name)),
        subdomain: Some(inputs.name.clone()),
        restart_policy: Some("Never".to_owned()),
        affinity: Some(pod::affinity(inputs, platform, false)),
        init_containers: Some(vec![
            containers::seid_init(&bootstrap.image, &scripts::init(&inputs.chain_id, None)),
            containers::sidecar(inputs, platform),
            containers::proxy(inputs, platform),
        ]),
        containers: vec![seid(inputs, bootstrap, platform)],
        volumes: Some(pod::base_volumes(inputs)),
        ..pod::base_pod(inputs, platform)
    }
}

fn seid(inputs: &TemplateInputs, bootstrap: &Bootstrap, platform: &Platform) -> Container {
    Container {
        name: container::SEID.to_owned(),
        image: Some(bootstrap.image.clone()),
        command: Some(texts(&["/bin/bash", "-c"])),
        args: Some(vec![scripts::bootstrap(inputs.sidecar_port, bootstrap.target_height)]),
        env: Some(vec![env("HOME", HOME_DIR), env("TMPDIR", &format!("{DATA_DIR}/tmp"))]),
        resources: Some(placement::resources(inputs, platform)),
        volume_mounts: Some(vec![mount(volume::DATA, DATA_DIR), mount(volume::HOME, HOME_DIR)]),
        security_context: Some(containers::nonroot()),
        ..Container::default()
    }
}
