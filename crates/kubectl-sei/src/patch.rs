//! The only write of this plugin: a merge patch of one `SeiNode`.

use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use sei_api::SeiNode;
use sei_exec::call::call;
use serde_json::Value;

use crate::error::{Error, call_error};

/// Field manager of the fields that users set with this plugin.
const FIELD_MANAGER: &str = "kubectl-sei";

pub(crate) async fn patch_node(
    client: &Client,
    node: &SeiNode,
    patch: &Value,
) -> Result<(), Error> {
    let namespace = node.namespace().unwrap_or_default();
    let nodes: Api<SeiNode> = Api::namespaced(client.clone(), &namespace);
    let params =
        PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let name = node.name_any();
    call("patch seinode", nodes.patch(&name, &params, &Patch::Merge(patch)))
        .await
        .map_err(|failure| call_error(&format!("patch seinode {name}"), failure))?;
    Ok(())
}
