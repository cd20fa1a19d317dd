//! The tasks that write the StatefulSet, the Service and the proxy's configuration.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::condition::Reason;
use sei_api::names::{self, annotation};
use sei_api::plan::{Applied, PlanKind, TaskPlan};
use sei_api::status::StatefulSetRef;
use serde_json::{Value, json};

use super::{
    Effects, Next, Waiting, done, fail, in_bootstrap, kind_of, not_ours, pre_pull, read, request,
    wait, wait_and_poll,
};
use crate::adoption::template_of_revision;
use crate::desired::Desired;
use crate::request::{Read, Request};
use crate::seen::{CONFIG_MAP, PodTry, Reading, SERVICE, Seen};
use crate::view::{ObjectView, SIGNING_VOLUME, StatefulSetView};

/// Writes the plan's template to the StatefulSet, or creates one.
pub(super) fn step_statefulset(plan: &TaskPlan, seen: &Seen) -> Next {
    if let Some(view) = &seen.applied {
        return applied(plan, view, seen);
    }
    if in_bootstrap(plan) {
        return fail(
            "apply-statefulset: the bootstrap is not torn down; two pods on one volume corrupt it",
        );
    }
    let template = match template(plan, seen) {
        Ok(template) => template,
        Err(next) => return next,
    };
    let statefulset = match &seen.statefulset {
        Reading::Unread => return read(Read::StatefulSet),
        Reading::Cached(None) | Reading::Live(None) => return create(plan, seen, template),
        Reading::Cached(Some(statefulset)) | Reading::Live(Some(statefulset)) => statefulset,
    };
    if statefulset.terminating {
        return wait(Reason::StatefulSetTerminating, "the StatefulSet is being deleted");
    }
    if let Some(next) = not_ours(statefulset, seen) {
        return next;
    }
    if !statefulset.on_delete {
        // Alone and first: the server refuses an apply over a defaulted RollingUpdate.
        return request(Request::PatchStatefulSet(on_delete_patch(statefulset)));
    }
    if let Some(fields) = statefulset.transferred_fields() {
        return request(Request::PatchStatefulSet(json!({ "metadata": {
            "resourceVersion": statefulset.resource_version,
            "managedFields": fields,
        }})));
    }
    let mut object = seen.desired.statefulset.unpack();
    if let Err(next) = set_template(&mut object, plan, seen, template) {
        return next;
    }
    // An apply never starts a pod. Only the replicas patch does, and it checks for other signers.
    let present = statefulset.replicas.unwrap_or(1);
    object.spec.replicas = object.spec.replicas.map(|desired| desired.min(present));
    if takes_a_key(&object, Some(statefulset)) && !seen.stored.identity {
        return wait(None, "waiting for the signing identity to be recorded in status");
    }
    if let Some(next) = try_pod(&object, seen) {
        return next;
    }
    if let Some(next) = pre_pull::step(plan, statefulset, seen) {
        return next;
    }
    object.metadata.uid = Some(statefulset.uid.clone());
    object.metadata.resource_version = Some(statefulset.resource_version.clone());
    if statefulset.initialised {
        // An apply without it could remove it.
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(annotation::INITIALISED.to_owned(), "true".to_owned());
    }
    request(Request::ApplyStatefulSet(Box::new(object)))
}

/// Whether pods of this object would sign with a key that the present pods do not have.
pub(crate) fn takes_a_key(object: &StatefulSet, before: Option<&StatefulSetView>) -> bool {
    let spec = object.spec.template.spec.as_ref();
    let mut volumes = spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let key = volumes.find(|volume| volume.name == SIGNING_VOLUME);
    let requested = key.and_then(|volume| volume.secret.as_ref()?.secret_name.as_ref());
    requested.is_some()
        && requested != before.and_then(|view| view.identity().signing_secret.as_ref())
}

/// Merge patch that sets the strategy `OnDelete`; it creates no revision.
pub(crate) fn on_delete_patch(statefulset: &StatefulSetView) -> Value {
    json!({
        "metadata": { "resourceVersion": statefulset.resource_version },
        "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } },
    })
}

fn applied(plan: &TaskPlan, view: &StatefulSetView, seen: &Seen) -> Next {
    let is_rendered = plan.target.as_ref().is_none_or(|target| target.hash == seen.desired.hash);
    if is_rendered && view.identity().signing_secret != seen.desired.identity.signing_secret {
        // Another manager keeps its key or adds one: the next pod would not be the desired one.
        return fail(
            "the applied template has a different signing key; another field manager sets it",
        );
    }
    Next::Done(Box::new(Effects {
        applied: Some(Applied {
            uid: view.uid.clone(),
            generation: view.generation,
            revision: None,
        }),
        statefulset: Some(StatefulSetRef { name: view.name.clone(), uid: view.uid.clone() }),
        verdict: pre_pull::skipped(plan, seen),
        ..Effects::default()
    }))
}

/// The template to write where it is not the rendered one: that of the running pod.
fn template(plan: &TaskPlan, seen: &Seen) -> Result<Option<Value>, Next> {
    let Some(target) = &plan.target else { return Ok(None) };
    if target.hash == seen.desired.hash {
        return Ok(None);
    }
    if kind_of(plan) != PlanKind::ApplyTemplate {
        return Err(wait(None, "the desired template has changed; the plan will be superseded"));
    }
    let observed = seen.node.status.as_ref().and_then(|status| status.pod_template.as_ref());
    let revision = observed.map(|template| template.revision.clone());
    // A read without a name would be a list.
    let Some(revision) = revision.filter(|revision| !revision.is_empty()) else {
        return Err(fail("no observed template to restore"));
    };
    match &seen.revision {
        Reading::Live(Some(body)) => match template_of_revision(body) {
            Ok(template) => Ok(Some(template)),
            Err(error) => Err(fail(format!("revision {revision} cannot be read: {error}"))),
        },
        Reading::Live(None) => Err(fail(format!("revision {revision} not found"))),
        Reading::Cached(_) | Reading::Unread => Err(read(Read::Revision(revision))),
    }
}

fn set_template(
    object: &mut StatefulSet,
    plan: &TaskPlan,
    seen: &Seen,
    template: Option<Value>,
) -> Result<(), Next> {
    object.spec.replicas = Some(seen.replicas);
    if let Some(template) = template {
        object.spec.template = serde_json::from_value(template)
            .map_err(|error| fail(format!("the observed template cannot be read: {error}")))?;
    }
    let hash = plan.target.as_ref().map_or(&seen.desired.hash, |target| &target.hash);
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(annotation::TEMPLATE_HASH.to_owned(), hash.clone());
    Ok(())
}

fn create(plan: &TaskPlan, seen: &Seen, template: Option<Value>) -> Next {
    if !seen.stored.identity {
        // Two nodes with the same key must each be able to read the other's identity before
        // one starts.
        return wait(None, "waiting for the signing identity to be recorded in status");
    }
    let mut object = seen.desired.statefulset.unpack();
    match set_template(&mut object, plan, seen, template) {
        Ok(()) => try_pod(&object, seen)
            .unwrap_or_else(|| request(Request::CreateStatefulSet(Box::new(object)))),
        Err(next) => next,
    }
}

/// If the platform requires it: a dry-run create of the template's pod. Pod Security and webhooks
/// refuse pods and not their owners, and without this check the old pod would already be deleted.
fn try_pod(object: &StatefulSet, seen: &Seen) -> Option<Next> {
    if seen.pod_try != PodTry::Due {
        return None;
    }
    let name = format!("{}-0", object.metadata.name.as_deref().unwrap_or_default());
    let template = object.spec.template.clone();
    let mut metadata = template.metadata.unwrap_or_default();
    let labels = metadata.labels.get_or_insert_default();
    labels.insert("statefulset.kubernetes.io/pod-name".to_owned(), name.clone());
    labels.insert("apps.kubernetes.io/pod-index".to_owned(), "0".to_owned());
    metadata.namespace.clone_from(&object.metadata.namespace);
    let mut spec = template.spec.unwrap_or_default();
    spec.hostname = Some(name.clone());
    spec.subdomain.clone_from(&object.spec.service_name);
    metadata.name = Some(name);
    let pod = Pod { metadata, spec: Some(spec), status: None };
    Some(request(Request::TryPod(Box::new(pod))))
}

/// Creates or applies the headless Service.
pub(super) fn step_service(seen: &Seen) -> Next {
    if seen.service_is_current || seen.accepted.contains(&SERVICE) {
        return done();
    }
    match existing(&seen.service, Read::Service, "Service", seen.name(), seen) {
        Ok(existing) => request(write_service(&seen.desired, existing)),
        Err(next) => next,
    }
}

/// Creates or applies the `ConfigMap` that the pod's proxy mounts.
pub(super) fn step_proxy_config(seen: &Seen) -> Next {
    if seen.proxy_config_is_current || seen.accepted.contains(&CONFIG_MAP) {
        return done();
    }
    let name = names::proxy_config(seen.name());
    match existing(&seen.config_map, Read::ConfigMap, "ConfigMap", &name, seen) {
        Ok(existing) => request(write_proxy_config(&seen.desired, existing)),
        Err(next) => next,
    }
}

/// The object that the write is about, `None` if there is none. A cache that lags makes the write
/// fail; then the object is read.
fn existing<'a>(
    reading: &'a Reading<ObjectView>,
    live: Read,
    kind: &str,
    name: &str,
    seen: &Seen,
) -> Result<Option<&'a ObjectView>, Next> {
    let found = match reading {
        Reading::Unread => return Err(read(live)),
        Reading::Cached(found) | Reading::Live(found) => found.as_ref(),
    };
    match found {
        Some(object) if object.terminating => {
            Err(wait_and_poll(seen, None, format!("{kind} {name} is being deleted")))
        }
        Some(object) if object.controller != seen.node.metadata.uid => {
            let again = Some(seen.timing.poll() * 6);
            Err(Next::Wait(Waiting { again, ..not_controlled(kind, name) }))
        }
        found => Ok(found),
    }
}

/// What is reported about an object that has the name of a node's object and another owner.
pub(crate) fn not_controlled(kind: &str, name: &str) -> Waiting {
    Waiting {
        reason: Some(Reason::FieldConflict),
        message: format!(
            "{kind} {name} exists and is not controlled by this node; it is left unchanged"
        ),
        ..Waiting::default()
    }
}

/// The write of the Service: it creates the object, or changes this very object.
pub(crate) fn write_service(desired: &Desired, existing: Option<&ObjectView>) -> Request {
    let mut object = desired.service.unpack();
    match existing {
        None => Request::CreateService(Box::new(object)),
        Some(view) => {
            bind(&mut object.metadata, view);
            Request::ApplyService(Box::new(object))
        }
    }
}

/// The same for the proxy's `ConfigMap`.
pub(crate) fn write_proxy_config(desired: &Desired, existing: Option<&ObjectView>) -> Request {
    let mut object = desired.proxy_config.unpack();
    match existing {
        None => Request::CreateConfigMap(Box::new(object)),
        Some(view) => {
            bind(&mut object.metadata, view);
            Request::ApplyConfigMap(Box::new(object))
        }
    }
}

fn bind(metadata: &mut ObjectMeta, view: &ObjectView) {
    metadata.uid = Some(view.uid.clone());
    metadata.resource_version = Some(view.resource_version.clone());
}
