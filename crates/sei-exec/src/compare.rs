//! Compares the template that a running pod was created from with the rendered one.

use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use sei_api::names;
use sei_plan::adoption::{Comparison, compare, template_of_revision};
use sei_plan::request::Failure;
use sei_plan::view::PodView;

use crate::call::{call, find};

/// Compares a pod's own template, as its `ControllerRevision` holds it, with the template that an
/// apply of the rendered StatefulSet would result in. The apply is a dry run: nothing is written.
pub async fn compare_template(
    client: &Client,
    namespace: &str,
    rendered: &StatefulSet,
    pod: &PodView,
) -> Result<Comparison, Failure> {
    let revision_name = pod.revision.as_deref().unwrap_or_default();
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let found = find("get controllerrevision", revisions.get(revision_name)).await?;
    let Some(revision) = found else {
        return Err(Failure::Indeterminate(format!(
            "controllerrevision {revision_name} of pod {} not found",
            pod.name
        )));
    };
    let body = template_of_revision(&revision.data.0).map_err(|error| {
        Failure::Indeterminate(format!("controllerrevision {revision_name}: {error}"))
    })?;
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), namespace);
    let name = rendered.metadata.name.as_deref().unwrap_or_default();
    let params = PatchParams::apply(names::FIELD_MANAGER).force().dry_run();
    let patch = Patch::Apply(rendered);
    let applied = call("dry-run apply statefulset", sets.patch(name, &params, &patch)).await?;
    let template = |object: &StatefulSet| serde_json::to_value(&object.spec.template);
    match (template(rendered), template(&applied)) {
        (Ok(rendered), Ok(applied)) => Ok(compare(&rendered, &applied, &body)),
        (Err(error), _) | (_, Err(error)) => Err(Failure::Indeterminate(error.to_string())),
    }
}
