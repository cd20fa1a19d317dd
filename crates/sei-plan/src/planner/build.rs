//! Builds plans: which tasks, in which order, with which parameters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sei_api::names::{annotation, bootstrap_job};
use sei_api::node::{DEFAULT_KEY_NAME, SeiNodeSpec};
use sei_api::plan::{PlanKind, PlanPhase, PlanTarget, PlannedTask, TaskPlan};
use sei_api::status::{Cause, SeiNodePhase};
use sei_api::task::TaskType;
use serde_json::{Value, json};

use super::drift;
use crate::budget::{self, Taken};
use crate::desired::Desired;
use crate::snapshot::Snapshot;

use TaskType as T;

/// Where an update writes the node's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Through the old pod's sidecar, before anything in the cluster changes: a bad configuration
    /// costs nothing.
    Early,
    /// Through the sidecar of the new pod, before its gate opens: used when the old sidecar cannot
    /// answer.
    Late,
}

/// The plan that brings a new node up.
///
/// `bootstrapped`: an earlier plan has already replayed to the target height.
pub fn init(snapshot: &Snapshot, desired: &Desired, bootstrapped: bool) -> TaskPlan {
    let spec = &snapshot.node.spec;
    let tasks = if spec.genesis_ceremony().is_some() {
        ceremony_tasks()
    } else if spec.needs_bootstrap() && !bootstrapped {
        bootstrap_tasks(spec)
    } else {
        init_tasks(spec, bootstrapped, snapshot.job.is_some())
    };
    let mut plan = assemble(snapshot, desired, PlanKind::Init, &tasks);
    plan.failed_phase = Some(SeiNodePhase::Failed);
    plan.target = Some(PlanTarget {
        bootstrap_image: desired.bootstrap.as_ref().map(|bootstrap| bootstrap.image.clone()),
        replayed: bootstrapped.then_some(true),
        ..target(snapshot, desired, Cause::Spec)
    });
    plan
}

/// The plan that brings a running node to the desired template, with the slot of its chain's budget
/// that it was granted.
pub fn node_update(
    snapshot: &Snapshot,
    desired: &Desired,
    cause: Cause,
    shape: Shape,
    takes: Taken,
) -> TaskPlan {
    let mut tasks = key_tasks(&snapshot.node.spec);
    let config = config_tasks(snapshot, desired);
    let roll = [T::ApplyStatefulSet, T::ApplyService, T::ReplacePod, T::ObserveImage];
    match shape {
        Shape::Early => tasks.extend(config.into_iter().chain(roll)),
        Shape::Late => tasks.extend(roll.into_iter().chain(config)),
    }
    tasks.push(T::MarkReady);
    let mut plan = assemble(snapshot, desired, PlanKind::NodeUpdate, &tasks);
    // This roll keeps a slot that an earlier roll has not released.
    let status = snapshot.status();
    let keeps = |plan: &TaskPlan| {
        plan.is_active() && budget::has_slot(plan) && !budget::is_provisional(plan)
    };
    let holds = budget::open_roll(status).is_some() || status.plan.as_ref().is_some_and(keeps);
    plan.target = Some(PlanTarget {
        slot: (takes != Taken::Nothing || holds).then_some(true),
        slot_while_down: (takes == Taken::WhileDown && !holds).then_some(true),
        replaces_pod: replaced_pod(snapshot, desired),
        ..target(snapshot, desired, cause)
    });
    plan
}

/// Addresses are patched; changed overrides need whole files, because a patch cannot restore the
/// default of a removed one. Whole files replace the peers of a genesis ceremony.
fn config_tasks(snapshot: &Snapshot, desired: &Desired) -> Vec<TaskType> {
    if !drift::config_changed(snapshot, desired, "overrides") {
        return vec![T::ConfigPatch, T::ConfigValidate];
    }
    let ceremony = snapshot.node.spec.genesis_ceremony().map(|_| T::SetGenesisPeers);
    [Some(T::ConfigApply), ceremony, Some(T::ConfigValidate)].into_iter().flatten().collect()
}

/// The pod that started before the configuration changed, if nothing else makes the plan replace it.
fn replaced_pod(snapshot: &Snapshot, desired: &Desired) -> Option<String> {
    drift::config_difference(snapshot, desired)?;
    snapshot.pod().map(|pod| pod.uid.clone())
}

/// The plan that opens the gate again. It needs nothing rendered.
pub fn mark_ready(snapshot: &Snapshot) -> TaskPlan {
    assemble(snapshot, &Desired::default(), PlanKind::MarkReady, &[T::MarkReady])
}

/// The plan that writes a template and touches no pod.
pub fn apply_template(snapshot: &Snapshot, desired: &Desired, hash: &str) -> TaskPlan {
    let mut plan = assemble(snapshot, desired, PlanKind::ApplyTemplate, &[T::ApplyStatefulSet]);
    plan.target =
        Some(PlanTarget { hash: hash.to_owned(), ..target(snapshot, desired, Cause::Spec) });
    plan
}

fn target(snapshot: &Snapshot, desired: &Desired, cause: Cause) -> PlanTarget {
    let identity = &desired.identity;
    PlanTarget {
        hash: desired.hash.clone(),
        image: desired.image.clone(),
        sidecar_image: desired.sidecar_image.clone(),
        generation: snapshot.generation(),
        cause,
        retry: snapshot.annotation(annotation::RETRY).map(str::to_owned),
        from: snapshot.status().pod_template_hash.clone(),
        config: desired.config.clone(),
        inputs_hash: Some(desired.inputs_hash.clone()),
        chain_id: identity.chain.clone(),
        role: identity.role.clone(),
        ..PlanTarget::default()
    }
}

/// The pod is replaced right after the apply, before the first call to its sidecar: a pod that
/// cannot start because of its first image must not block the corrected image.
fn init_tasks(spec: &SeiNodeSpec, bootstrapped: bool, has_old_job: bool) -> Vec<TaskType> {
    let snapshot = spec.snapshot().filter(|_| !bootstrapped);
    let mut tasks = vec![T::EnsureDataPvc];
    tasks.extend(key_tasks(spec));
    tasks.push(T::ApplyRbacProxyConfig);
    if has_old_job {
        // A Job of an earlier attempt: its pod mounts the volume.
        tasks.push(T::TeardownBootstrap);
    }
    tasks.extend([T::ApplyStatefulSet, T::ApplyService, T::ReplacePod]);
    if snapshot.is_some_and(|source| source.s3.is_some()) {
        tasks.push(T::SnapshotRestore);
    }
    tasks.extend([T::ConfigureGenesis, T::ConfigApply]);
    if snapshot.is_some() {
        // After config-apply, which writes whole files.
        tasks.push(T::ConfigureStateSync);
    }
    tasks.extend([T::ConfigValidate, T::ObserveImage, T::MarkReady]);
    tasks
}

fn bootstrap_tasks(spec: &SeiNodeSpec) -> Vec<TaskType> {
    let mut tasks = vec![T::EnsureDataPvc, T::ApplyRbacProxyConfig];
    tasks.extend(key_tasks(spec));
    tasks.extend([
        T::DeployBootstrapService,
        T::DeployBootstrapJob,
        T::SnapshotRestore,
        T::ConfigureGenesis,
        T::ConfigApply,
        T::ConfigureStateSync,
        T::ConfigValidate,
        T::MarkReady,
        T::AwaitBootstrapComplete,
        T::TeardownBootstrap,
        T::ApplyStatefulSet,
        T::ApplyService,
        T::ReplacePod,
        T::ConfigureGenesis,
        T::ConfigApply,
        T::ConfigValidate,
        T::ObserveImage,
        T::MarkReady,
    ]);
    tasks
}

fn ceremony_tasks() -> Vec<TaskType> {
    vec![
        T::EnsureDataPvc,
        T::ApplyRbacProxyConfig,
        T::ApplyStatefulSet,
        T::ApplyService,
        T::ReplacePod,
        T::GenerateIdentity,
        T::GenerateGentx,
        T::UploadGenesisArtifacts,
        T::ConfigureGenesis,
        T::ConfigApply,
        T::SetGenesisPeers,
        T::ConfigValidate,
        T::ObserveImage,
        T::MarkReady,
    ]
}

/// A check exists if and only if its source is declared.
fn key_tasks(spec: &SeiNodeSpec) -> Vec<TaskType> {
    let checks = [
        (spec.signing_secret().is_some(), T::ValidateSigningKey),
        (spec.node_key_secret().is_some(), T::ValidateNodeKey),
        (spec.keyring().is_some(), T::ValidateOperatorKeyring),
    ];
    checks.into_iter().filter_map(|(declared, task)| declared.then_some(task)).collect()
}

fn assemble(
    snapshot: &Snapshot,
    desired: &Desired,
    kind: PlanKind,
    tasks: &[TaskType],
) -> TaskPlan {
    let id = &snapshot.plan_id;
    let tasks = tasks.iter().enumerate().map(|(index, task)| {
        let params = params(snapshot, desired, *task);
        PlannedTask::pending(id, index, *task, params, task.max_retries())
    });
    TaskPlan {
        id: Some(id.clone()),
        phase: PlanPhase::Active,
        tasks: tasks.collect(),
        target_phase: Some(SeiNodePhase::Running),
        failed_phase: None,
        failed_task_index: None,
        failed_task_detail: None,
        kind: Some(kind),
        target: None,
        applied: None,
        abandoned: Vec::new(),
        created_at: Some(Time(snapshot.now)),
    }
}

/// Parameters with the same keys as the Go operator stores them.
fn params(snapshot: &Snapshot, desired: &Desired, task: TaskType) -> Value {
    let node = &snapshot.node;
    let spec = &node.spec;
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    let job = bootstrap_job(name);
    match task {
        T::EnsureDataPvc
        | T::ApplyStatefulSet
        | T::ApplyService
        | T::ApplyRbacProxyConfig
        | T::ReplacePod
        | T::ObserveImage => json!({ "nodeName": name, "namespace": namespace }),
        T::ValidateSigningKey => {
            json!({ "secretName": spec.signing_secret(), "namespace": namespace })
        }
        T::ValidateNodeKey => {
            json!({ "secretName": spec.node_key_secret(), "namespace": namespace })
        }
        T::ValidateOperatorKeyring => keyring_params(spec, namespace),
        T::DeployBootstrapService => json!({ "serviceName": name, "namespace": namespace }),
        T::DeployBootstrapJob | T::AwaitBootstrapComplete => {
            json!({ "jobName": job, "namespace": namespace })
        }
        T::TeardownBootstrap => {
            json!({ "jobName": job, "serviceName": name, "namespace": namespace })
        }
        T::SnapshotRestore => {
            let height = spec.snapshot().and_then(|source| source.s3.as_ref());
            json!({ "TargetHeight": height.map_or(0, |s3| s3.target_height) })
        }
        T::ConfigureGenesis => json!({ "ExpectedGenesisHash": "" }),
        T::ConfigApply => desired.config_apply.unpack(),
        T::ConfigPatch => desired.config_patch.unpack(),
        T::ConfigureStateSync => desired.configure_state_sync.unpack(),
        T::ConfigValidate | T::MarkReady | T::SetGenesisPeers => json!({}),
        T::GenerateIdentity => json!({ "ChainID": spec.chain_id, "Moniker": name }),
        T::GenerateGentx => {
            let ceremony = spec.genesis_ceremony().cloned().unwrap_or_default();
            json!({
                "ChainID": ceremony.chain_id,
                "StakingAmount": ceremony.staking_amount,
                "AccountBalance": ceremony.account_balance,
            })
        }
        T::UploadGenesisArtifacts => json!({ "NodeName": name }),
        // Tasks of fleets.
        T::AssembleAndUploadGenesis | T::CollectAndSetPeers | T::AwaitNodesRunning => Value::Null,
    }
}

fn keyring_params(spec: &SeiNodeSpec, namespace: &str) -> Value {
    let keyring = spec.keyring().cloned().unwrap_or_default();
    let key_name = if keyring.key_name.is_empty() { DEFAULT_KEY_NAME } else { &keyring.key_name };
    json!({
        "secretName": keyring.secret_name,
        "keyName": key_name,
        "passphraseSecretName": keyring.passphrase_secret_ref.secret_name,
        "passphraseSecretKey": keyring.passphrase_secret_ref.key,
        "namespace": namespace,
    })
}
