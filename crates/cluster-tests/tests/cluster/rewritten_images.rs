//! Admission that rewrites images to a mirror: names of images decide nothing, and no pod is deleted
//! or rolled because of them.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use cluster_tests::interceptor::LastResponse;
use cluster_tests::operator::{PLATFORM, Setup};
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::{boot_with, minor, test_context_on, wait_for};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use sei_api::condition::ConditionType;
use sei_api::names::annotation;
use sei_api::status::{Cause, SeiNodePhase, SeiNodeStatus, UpdateState};
use sei_plan::view::PodView;
use sei_rig::{Lane, Options};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const GROUP: &str = "admissionregistration.k8s.io";

/// The image of a node, and what admission makes of it.
fn image(tag: &str) -> String {
    format!("registry.example.org/seid:{tag}")
}

fn mirrored(tag: &str) -> String {
    format!("mirror.example.org/seid:{tag}")
}

/// The version of mutating policies that the server offers.
fn version() -> &'static str {
    if minor() == "1.34" { "v1beta1" } else { "v1" }
}

/// A lane of its own: 1.34 serves mutating policies only with these arguments.
async fn lane() -> Result<Arc<Lane>> {
    static LANE: OnceCell<Result<Arc<Lane>, String>> = OnceCell::const_new();
    let start = || async {
        let beta = [
            "--feature-gates=MutatingAdmissionPolicy=true".to_owned(),
            format!("--runtime-config={GROUP}/v1beta1=true"),
        ];
        let arguments = if version() == "v1" { Vec::new() } else { beta.to_vec() };
        let options = Options { apiserver_arguments: arguments, ..Options::default() };
        anyhow::Ok(Arc::new(Lane::start(boot_with(options).await?)?))
    };
    let lane = LANE.get_or_init(|| async { start().await.map_err(|error| format!("{error:#}")) });
    lane.await.as_ref().cloned().map_err(|message| anyhow!("{message}"))
}

/// Rewrites the images at this path of an object to the mirror.
fn mutation(path: &str) -> String {
    let list = |name: &str| {
        format!(
            "{name}: object.{path}.{name}.map(found, Object.{path}.{name}{{ name: found.name, \
             image: found.image.replace('registry.example.org/', 'mirror.example.org/') }})"
        )
    };
    let init = format!("has(object.{path}.initContainers)");
    let nested = |lists: &str| {
        let parts: Vec<&str> = path.split('.').collect();
        let mut text = format!("Object.{path}{{ {lists} }}");
        for depth in (0..parts.len()).rev() {
            let parent = [&["Object"][..], &parts[..depth]].concat().join(".");
            text = format!("{parent}{{ {}: {text} }}", parts[depth]);
        }
        text
    };
    let both = nested(&format!("{}, {}", list("initContainers"), list("containers")));
    format!("{init} ? {both} : {}", nested(&list("containers")))
}

/// Creates a policy for these objects of a namespace, and its binding.
async fn rewrite(scenario: &Scenario, kind: &Rewritten) -> Result<()> {
    let namespace = scenario.namespace();
    let name = format!("{}.{namespace}", kind.resource);
    let api_version = format!("{GROUP}/{}", version());
    let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": namespace } });
    let policy = json!({
        "apiVersion": api_version, "kind": "MutatingAdmissionPolicy",
        "metadata": { "name": name },
        "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": selector,
                "resourceRules": [{
                    "apiGroups": [kind.group], "apiVersions": ["v1"],
                    "operations": ["CREATE", "UPDATE"], "resources": [kind.resource],
                }],
            },
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": { "expression": mutation(kind.path) },
            }],
        },
    });
    let binding = json!({
        "apiVersion": api_version, "kind": "MutatingAdmissionPolicyBinding",
        "metadata": { "name": name }, "spec": { "policyName": name },
    });
    for object in [policy, binding] {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        let plural = if kind.ends_with("Binding") {
            "mutatingadmissionpolicybindings"
        } else {
            "mutatingadmissionpolicies"
        };
        let resource = ApiResource {
            group: GROUP.to_owned(),
            version: version().to_owned(),
            api_version: api_version.clone(),
            plural: plural.to_owned(),
            kind,
        };
        let objects: Api<DynamicObject> = Api::all_with(scenario.admin(), &resource);
        let object: DynamicObject = serde_json::from_value(object)?;
        objects
            .create(&PostParams::default(), &object)
            .await
            .context("failed to create a policy")?;
    }
    Ok(())
}

/// Objects whose images are rewritten.
struct Rewritten {
    group: &'static str,
    resource: &'static str,
    kind: &'static str,
    /// Where a pod is in them.
    path: &'static str,
}

const PODS: Rewritten = Rewritten { group: "", resource: "pods", kind: "Pod", path: "spec" };
const STATEFUL_SETS: Rewritten = Rewritten {
    group: "apps",
    resource: "statefulsets",
    kind: "StatefulSet",
    path: "spec.template.spec",
};
const JOBS: Rewritten =
    Rewritten { group: "batch", resource: "jobs", kind: "Job", path: "spec.template.spec" };

impl Rewritten {
    fn api_resource(&self) -> ApiResource {
        let api_version =
            if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) };
        ApiResource {
            group: self.group.to_owned(),
            version: "v1".to_owned(),
            api_version,
            kind: self.kind.to_owned(),
            plural: self.resource.to_owned(),
        }
    }

    /// An object with an image that has to be rewritten.
    fn probe(&self) -> Value {
        let containers = json!([{ "name": "seid", "image": image("probe") }]);
        let labels = json!({ "app": "probe" });
        let template = |pod: Value| json!({ "metadata": { "labels": labels }, "spec": pod });
        let spec = match self.kind {
            "StatefulSet" => json!({
                "serviceName": "probe", "selector": { "matchLabels": labels },
                "template": template(json!({ "containers": containers })),
            }),
            "Job" => {
                let pod = json!({ "containers": containers, "restartPolicy": "Never" });
                json!({ "template": template(pod) })
            }
            _ => json!({ "containers": containers }),
        };
        let api_version = self.api_resource().api_version;
        json!({ "apiVersion": api_version, "kind": self.kind, "metadata": { "name": "probe" },
            "spec": spec })
    }
}

/// A namespace in which the images of all these objects are rewritten.
async fn open(name: &str, kinds: &[Rewritten]) -> Result<Scenario> {
    let scenario = Scenario::open_on(test_context_on(lane().await?, name).await?);
    for kind in kinds {
        rewrite(&scenario, kind).await?;
    }
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for kind in kinds {
        let probe: DynamicObject = serde_json::from_value(kind.probe())?;
        let objects: Api<DynamicObject> =
            Api::namespaced_with(scenario.admin(), scenario.namespace(), &kind.api_resource());
        let image = format!("/{}/containers/0/image", kind.path.replace('.', "/"));
        // The server does not enforce a new policy at once.
        wait_for(&format!("the policy of {} is in force", kind.resource), async || {
            let found = serde_json::to_value(objects.create(&dry_run, &probe).await?)?;
            Ok((found.pointer(&image) == Some(&json!(mirrored("probe")))).then_some(()))
        })
        .await?;
    }
    Ok(scenario)
}

/// Waits until the node runs the mirrored image and is in sync with its newest spec.
async fn settled(scenario: &Scenario, name: &str, tag: &str) -> Result<SeiNodeStatus> {
    let generation = scenario.node(name).await?.metadata.generation;
    let is_open = |pod: &PodView| pod.seid.image == mirrored(tag) && pod.seid.started;
    scenario.until_pod(name, "its gate is open", is_open).await?;
    scenario
        .until(name, &format!("runs {} and is in sync", mirrored(tag)), |status| {
            status.phase == Some(SeiNodePhase::Running)
                && status.observed_generation >= generation
                && status.plan.is_none()
                && status.current_image == Some(mirrored(tag))
                && condition_text(status, ConditionType::PodTemplateDrift).starts_with("False")
        })
        .await
}

/// What must not change: the uid of the pod.
async fn uids(scenario: &Scenario, names: &[&str]) -> Result<Vec<String>> {
    let mut uids = Vec::new();
    for name in names {
        uids.push(scenario.uid(name).await?);
    }
    Ok(uids)
}

/// Makes another revision of the StatefulSet, as `kubectl rollout restart` does.
async fn move_revision(scenario: &Scenario, name: &str) -> Result<()> {
    let before = scenario.until_statefulset_is_current(name).await?;
    let patch = json!({ "spec": { "template": { "metadata": { "annotations": {
        "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z" } } } } });
    let person = PatchParams { field_manager: Some("kubectl".into()), ..PatchParams::default() };
    scenario.statefulsets().patch(name, &person, &Patch::Strategic(&patch)).await?;
    let revision = |set: &k8s_openapi::api::apps::v1::StatefulSet| {
        set.status.as_ref().and_then(|status| status.update_revision.clone())
    };
    wait_for("the StatefulSet has another revision", async || {
        let set = scenario.statefulsets().get(name).await?;
        Ok((revision(&set) != revision(&before)).then_some(()))
    })
    .await
}

/// Takes our annotation off the StatefulSet, as if another operator had written it.
async fn take_stamp_off(scenario: &Scenario, name: &str) -> Result<()> {
    let patch = Patch::Merge(json!({ "metadata": { "annotations": {
        annotation::TEMPLATE_HASH: null } } }));
    scenario.statefulsets().patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// The image of the chain process in the template of the StatefulSet.
async fn template_image(scenario: &Scenario, name: &str) -> Result<String> {
    let set = scenario.statefulsets().get(name).await?;
    let mut containers = set.spec.template.spec.into_iter().flat_map(|pod| pod.containers);
    let seid = containers.find(|container| container.name == "seid");
    seid.and_then(|seid| seid.image).context("the template has no image")
}

/// A validator and an RPC node that run.
async fn run_both(scenario: &Scenario) -> Result<()> {
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.create("val", validator(&image("v1"), "signing", "p2p")).await?;
    scenario.create("rpc", rpc(&image("v1"))).await?;
    for name in BOTH {
        settled(scenario, name, "v1").await?;
    }
    Ok(())
}

const BOTH: [&str; 2] = ["val", "rpc"];

/// Wipes the status of nodes whose pods are not at the newest revision, and takes them over.
async fn take_over(name: &str, kinds: &[Rewritten]) -> Result<()> {
    let mut scenario = open(name, kinds).await?;
    scenario.start_operator(Setup::default().speed).await?;
    run_both(&scenario).await?;
    let before = uids(&scenario, &BOTH).await?;
    // The record is lost.
    for name in BOTH {
        move_revision(&scenario, name).await?;
        scenario.wipe_status(name).await?;
        settled(&scenario, name, "v1").await?;
    }
    assert_eq!(uids(&scenario, &BOTH).await?, before, "a pod was replaced for a lost record");
    // Another operator has made the StatefulSet.
    scenario.kill_operator();
    for name in BOTH {
        scenario.wipe_status(name).await?;
        take_stamp_off(&scenario, name).await?;
        scenario.edit_status(name, json!({ "phase": "Running" })).await?;
    }
    scenario.start_operator(Setup::default().speed).await?;
    for name in BOTH {
        settled(&scenario, name, "v1").await?;
    }
    assert_eq!(uids(&scenario, &BOTH).await?, before, "a pod was replaced by a takeover");
    for name in BOTH {
        assert_eq!(scenario.pods_seen(name).await?, 1, "{name}");
    }
    // The status checker accepts no record of a pod that is not at the newest revision, as these are.
    scenario.check_tokens().await
}

#[tokio::test]
async fn a_takeover_replaces_no_pod_whose_images_admission_has_rewritten() -> Result<()> {
    take_over("mirror-takeover", &[PODS, STATEFUL_SETS]).await
}

#[tokio::test]
async fn a_takeover_replaces_no_pod_if_only_the_images_of_pods_are_rewritten() -> Result<()> {
    take_over("mirror-pods", &[PODS]).await
}

#[tokio::test]
async fn a_difference_of_a_pod_with_rewritten_images_is_held_as_an_adoption() -> Result<()> {
    let mut scenario = open("mirror-adopted", &[PODS, STATEFUL_SETS]).await?;
    scenario.start_operator(Setup::default().speed).await?;
    run_both(&scenario).await?;
    let before = uids(&scenario, &BOTH).await?;
    scenario.kill_operator();
    // Without a record and under another platform: the templates differ, and no image does.
    for name in BOTH {
        scenario.wipe_status(name).await?;
        take_stamp_off(&scenario, name).await?;
        scenario.edit_status(name, json!({ "phase": "Running" })).await?;
    }
    let platform =
        PLATFORM.replace("tolerationKey: example.org/chain", "tolerationKey: example.org/other");
    scenario.start_with(Setup { platform, ..Setup::default() }).await?;
    for name in BOTH {
        let adopted = |status: &SeiNodeStatus| {
            let pending = status.pending_update.as_ref();
            pending.is_some_and(|pending| {
                (pending.cause, pending.state) == (Cause::Adoption, UpdateState::Held)
            })
        };
        let status = scenario.until(name, "its difference is held", adopted).await?;
        ensure!(status.plan.is_none(), "{name} has a plan");
    }
    assert_eq!(uids(&scenario, &BOTH).await?, before, "a pod was replaced");
    scenario.close().await
}

#[tokio::test]
async fn an_edit_of_a_signer_with_a_rewritten_image_is_no_image_change() -> Result<()> {
    let mut scenario = open("mirror-edit", &[PODS, STATEFUL_SETS]).await?;
    // Changed images would need no turn; every other edit of a signer does.
    let platform = PLATFORM.replace(
        "rollout: { settleSeconds: 0 }",
        "rollout: { settleSeconds: 0, onImageChange: AtOnce }",
    );
    scenario.start_with(Setup { platform, ..Setup::default() }).await?;
    run_both(&scenario).await?;
    move_revision(&scenario, "val").await?;
    let label = |value: &str| json!({ "spec": { "podLabels": { "example.org/tier": value } } });
    scenario.edit("val", label("a")).await?;
    let status = settled(&scenario, "val", "v1").await?;
    let last = status.last_update.context("no update is recorded")?;
    assert_eq!(last.slot, Some(true), "the edit took no slot of the chain: {last:?}");
    assert_eq!(scenario.pods_seen("val").await?, 2);
    let events = scenario.events("val").await?.join("\n");
    assert!(!events.contains("image drift detected"), "{events}");
    // A changed image is one, and needs no slot here. The first roll keeps its slot for a while.
    scenario
        .until("val", "the slot of the edit is released", |status| {
            status.last_update.as_ref().is_some_and(|last| last.ready_at.is_some())
        })
        .await?;
    scenario.set_image("val", &image("v2")).await?;
    let status = settled(&scenario, "val", "v2").await?;
    let last = status.last_update.context("no update is recorded")?;
    assert_eq!(last.slot, None, "{last:?}");
    assert_eq!(scenario.pods_seen("val").await?, 3);
    scenario.close().await
}

#[tokio::test]
async fn a_revert_before_the_delete_applies_the_rewritten_template_again() -> Result<()> {
    let mut scenario = open("mirror-revert", &[PODS, STATEFUL_SETS]).await?;
    let interceptor = scenario.start_intercepted_operator(LastResponse::Delivered).await?;
    // After a first update the next patch of the StatefulSet is the apply of the second.
    scenario.create("rpc", rpc(&image("v0"))).await?;
    settled(&scenario, "rpc", "v0").await?;
    scenario.set_image("rpc", &image("v1")).await?;
    settled(&scenario, "rpc", "v1").await?;
    let before = uids(&scenario, &["rpc"]).await?;
    // Every write but a patch of a StatefulSet passes.
    let allowed = [
        "PATCH seinodes/status",
        "POST pods",
        "DELETE pods",
        "POST events",
        "PATCH events",
        "POST serviceaccounts/token",
    ]
    .into_iter()
    .flat_map(|kind| (1..100).map(move |at| (kind.to_owned(), at)))
    .collect();
    interceptor.block_after_write_not_in(&allowed);
    scenario.set_image("rpc", &image("v2")).await?;
    let (kind, _) = interceptor.blocked().await;
    assert_eq!(kind, "PATCH statefulsets");
    assert_eq!(template_image(&scenario, "rpc").await?, mirrored("v2"));
    scenario.set_image("rpc", &image("v1")).await?;
    scenario.start_operator(Setup::default().speed).await?;
    settled(&scenario, "rpc", "v1").await?;
    assert_eq!(template_image(&scenario, "rpc").await?, mirrored("v1"));
    assert_eq!(uids(&scenario, &["rpc"]).await?, before, "the pod was replaced by a revert");
    scenario.close().await
}

#[tokio::test]
async fn a_bootstrap_job_with_rewritten_images_is_created_once() -> Result<()> {
    let mut scenario = open("mirror-job", &[PODS, STATEFUL_SETS, JOBS]).await?;
    let mut requests = scenario.requests();
    scenario.start_operator(Setup::default().speed).await?;
    let mut spec = rpc(&image("v2"));
    spec["fullNode"] = json!({ "snapshot": {
        "bootstrapImage": image("v1"), "s3": { "targetHeight": 5 } } });
    scenario.create("rpc", spec).await?;
    settled(&scenario, "rpc", "v2").await?;
    let created = requests.read_new()?;
    let jobs = |verb: &str| {
        created.iter().filter(|entry| entry.resource == "jobs" && entry.verb == verb).count()
    };
    assert_eq!((jobs("create"), jobs("delete")), (1, 1));
    scenario.close().await
}
