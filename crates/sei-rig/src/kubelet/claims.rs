//! Watches claims, and binds them without storage.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use serde_json::json;

use super::{Shared, retry};

/// The state of a claim that matters to its pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) uid: String,
    pub(super) is_bound: bool,
    pub(super) is_terminating: bool,
}

/// By namespace and name.
pub(super) type Claims = BTreeMap<(String, String), Claim>;

/// Watches claims and binds the unbound ones until it is aborted.
pub(super) async fn run(shared: Arc<Shared>) {
    let api: Api<PersistentVolumeClaim> = Api::all(shared.client.clone());
    let mut events = std::pin::pin!(watch(api, watcher::Config::default()).default_backoff());
    let mut listed = Claims::new();
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Apply(claim)) => {
                shared.claims.send_modify(|all| all.extend(view(&claim)));
                spawn_bind(&shared, claim);
            }
            Ok(Event::Delete(claim)) => shared.claims.send_modify(|all| {
                if let Some((key, _)) = view(&claim) {
                    all.remove(&key);
                }
            }),
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(claim)) => {
                listed.extend(view(&claim));
                spawn_bind(&shared, claim);
            }
            Ok(Event::InitDone) => {
                shared.claims.send_replace(std::mem::take(&mut listed));
            }
            // The stream restarts by itself.
            Err(_) => {}
        }
    }
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.status.as_ref()?.phase.as_deref()
}

fn view(claim: &PersistentVolumeClaim) -> Option<((String, String), Claim)> {
    let metadata = &claim.metadata;
    let value = Claim {
        uid: metadata.uid.clone()?,
        is_bound: phase(claim) == Some("Bound"),
        is_terminating: metadata.deletion_timestamp.is_some(),
    };
    Some(((metadata.namespace.clone()?, metadata.name.clone()?), value))
}

fn spawn_bind(shared: &Arc<Shared>, claim: PersistentVolumeClaim) {
    let is_done = phase(&claim) == Some("Bound") || claim.metadata.deletion_timestamp.is_some();
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    if is_done || shared.claim_rule(namespace) == ClaimRule::Leave {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        retry(|| bind(&shared, &claim)).await;
    });
}

/// How the claims of a namespace are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimRule {
    /// Their status becomes `Bound`.
    #[default]
    Bind,
    /// The same, and each gets a `PersistentVolume`.
    BindToVolume,
    /// They stay unbound.
    Leave,
}

/// Binds a claim in place of the volume controller, which does not run.
async fn bind(shared: &Shared, claim: &PersistentVolumeClaim) -> kube::Result<()> {
    let (Some(namespace), Some(name)) = (&claim.metadata.namespace, &claim.metadata.name) else {
        return Ok(());
    };
    let Some(spec) = &claim.spec else { return Ok(()) };
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.clone());
    let requests = requests.unwrap_or_default();
    let modes = spec.access_modes.clone().unwrap_or_default();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(shared.client.clone(), namespace);
    let has_volume = spec.volume_name.as_deref().is_some_and(|volume| !volume.is_empty());
    if shared.claim_rule(namespace) == ClaimRule::BindToVolume && !has_volume {
        let volume = format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or(name));
        create_volume(shared, claim, &volume).await?;
        let patch = json!({ "metadata": { "uid": claim.metadata.uid },
            "spec": { "volumeName": volume } });
        api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let status = json!({ "phase": "Bound", "capacity": requests, "accessModes": modes });
    let patch = json!({ "metadata": { "uid": claim.metadata.uid }, "status": status });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn create_volume(
    shared: &Shared,
    claim: &PersistentVolumeClaim,
    name: &str,
) -> kube::Result<()> {
    let spec = claim.spec.as_ref();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": spec.and_then(|spec| spec.resources.as_ref()?.requests.clone()),
            "accessModes": spec.and_then(|spec| spec.access_modes.clone()),
            "storageClassName": spec.and_then(|spec| spec.storage_class_name.clone()),
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": { "driver": "rig.sei.io", "volumeHandle": name },
            "claimRef": { "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                "uid": claim.metadata.uid },
        },
    });
    let api: Api<PersistentVolume> = Api::all(shared.client.clone());
    let volume = serde_json::from_value(volume).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &volume).await {
        Err(kube::Error::Api(reply)) if reply.is_already_exists() => {}
        outcome => drop(outcome?),
    }
    let bound = json!({ "status": { "phase": "Bound" } });
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(bound)).await?;
    Ok(())
}
