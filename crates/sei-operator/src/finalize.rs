//! The end of a node: its own volume goes, everything else is collected by ownership.

use std::sync::Arc;
use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use sei_api::SeiNode;
use sei_api::names::{NODE_FINALIZER, data_claim};
use sei_api::status::SeiNodePhase;
use sei_exec::Cluster;
use sei_exec::call::call;
use sei_exec::status::{WriteError, write_status};
use sei_plan::request::Failure;
use serde_json::json;

use crate::caches::NodeKey;
use crate::context::Context;
use crate::reconcile::{Error, overtaken};

/// Lets a deleted node go.
pub(crate) async fn finalize(
    node: &SeiNode,
    key: &NodeKey,
    context: &Arc<Context>,
) -> Result<Option<Duration>, Error> {
    if !node.finalizers().iter().any(|one| one == NODE_FINALIZER) {
        context.metrics.forget(&key.0, &key.1);
        return Ok(None);
    }
    // Nobody asks any more whether its gate is open.
    context.desks.with(key, |desk| desk.probe = None);
    let nodes: Api<SeiNode> = Api::namespaced(context.client.clone(), &key.0);
    let mut status = node.status.clone().unwrap_or_default();
    status.phase = Some(SeiNodePhase::Terminating);
    let node = match write_status(&nodes, node, &status).await {
        Ok(written) => written.unwrap_or_else(|| node.clone()),
        Err(WriteError::Stale) => return Ok(Some(overtaken(key, context).await)),
        Err(WriteError::Pruned(field)) => return Err(Error::SchemaTooOld(field)),
        Err(WriteError::Call(failure)) => return Err(Error::Call(failure)),
    };
    context.metrics.observe(&node);
    delete_own_claim(&node, key, context).await.map_err(Error::Call)?;
    let left: Vec<_> = node.finalizers().iter().filter(|one| *one != NODE_FINALIZER).collect();
    let patch = json!({ "metadata": {
        "resourceVersion": node.resource_version(),
        "finalizers": left,
    }});
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    match call("patch finalizers", nodes.patch(&key.1, &params, &patch)).await {
        Ok(patched) => {
            // Others may keep it for a while; we have nothing to do with it any more.
            context.desks.with(key, |desk| desk.latest = Some(patched));
            context.metrics.forget(&key.0, &key.1);
            Ok(None)
        }
        Err(Failure::NotFound) => {
            context.metrics.forget(&key.0, &key.1);
            Ok(None)
        }
        Err(Failure::Conflict(_)) => Ok(Some(overtaken(key, context).await)),
        Err(failure) => Err(Error::Call(failure)),
    }
}

/// Deletes the claim that this very node made. One of the same name that it does not control, and
/// one that was imported, are left alone.
async fn delete_own_claim(node: &SeiNode, key: &NodeKey, context: &Context) -> Result<(), Failure> {
    if node.spec.imported_claim().is_some() {
        return Ok(());
    }
    let cluster = Cluster::new(context.client.clone(), context.sidecar.clone(), &key.0, &key.1);
    let name = data_claim(&key.1);
    let Some(claim) = cluster.claim(&name).await? else { return Ok(()) };
    if claim.terminating || claim.controller.as_deref() != node.metadata.uid.as_deref() {
        return Ok(());
    }
    match cluster.delete_claim(&name, &claim.uid).await {
        Ok(()) | Err(Failure::NotFound) => Ok(()),
        Err(failure) => Err(failure),
    }
}
