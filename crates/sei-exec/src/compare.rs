//! Asks the server what a running pod was made from.

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use sei_api::names;
use sei_plan::adoption::{Comparison, compare, template_of_revision};
use sei_plan::request::Failure;
use sei_plan::view::PodView;

use crate::call::{call, find};

/// Compares a pod's own template, as its `ControllerRevision` holds it, with what an apply of the
/// rendered StatefulSet would make of the present one. Nothing is written.
pub async fn compare_template(
    client: &Client,
    namespace: &str,
    rendered: &StatefulSet,
    pod: &PodView,
) -> Result<Comparison, Failure> {
    let revision = pod.revision.as_deref().unwrap_or_default();
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let found = find("get controllerrevision", revisions.get(revision)).await?;
    let data = found.map(|one| one.data.0);
    let Some(data) = data else {
        return Err(Failure::Indeterminate(format!(
            "revision {revision} of pod {} is gone",
            pod.name
        )));
    };
    let body = template_of_revision(&data)
        .map_err(|error| Failure::Indeterminate(format!("revision {revision}: {error}")))?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let name = rendered.metadata.name.as_deref().unwrap_or_default();
    let params = PatchParams::apply(names::FIELD_MANAGER).force().dry_run();
    let patch = Patch::Apply(rendered);
    let tried = call("dry-run apply statefulset", sets.patch(name, &params, &patch)).await?;
    let template = |object: &StatefulSet| serde_json::to_value(&object.spec.template);
    match (template(rendered), template(&tried)) {
        (Ok(rendered), Ok(tried)) => Ok(compare(&rendered, &tried, &body)),
        (Err(error), _) | (_, Err(error)) => Err(Failure::Indeterminate(error.to_string())),
    }
}
