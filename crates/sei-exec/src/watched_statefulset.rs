//! A StatefulSet as far as [`StatefulSetView`] reads it: only those fields are decoded, and the pod
//! template stays the text that the server sent.
//!
//! The StatefulSet controller writes the status several times while a pod is replaced, and each write
//! is an event with the whole template.

use std::borrow::Cow;

use k8s_openapi::api::apps::v1::{
    StatefulSet, StatefulSetSpec, StatefulSetStatus, StatefulSetUpdateStrategy,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Resource;
use sei_plan::view::StatefulSetView;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::lean::Lean;

/// A StatefulSet with the fields that a view needs.
#[derive(Clone, Debug)]
pub struct WatchedStatefulSet {
    /// Without its template.
    object: StatefulSet,
    template: Box<RawValue>,
}

impl WatchedStatefulSet {
    pub fn view(&self) -> StatefulSetView {
        StatefulSetView {
            template: self.template.clone().into(),
            ..StatefulSetView::from(&self.object)
        }
    }
}

#[derive(Deserialize)]
struct Fields {
    metadata: ObjectMeta,
    spec: Spec,
    status: Option<Status>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    replicas: Option<i32>,
    selector: LabelSelector,
    update_strategy: Option<StatefulSetUpdateStrategy>,
    template: Box<RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    observed_generation: Option<i64>,
    update_revision: Option<String>,
}

impl<'de> Deserialize<'de> for WatchedStatefulSet {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Lean(Fields { metadata, spec, status }) = Lean::deserialize(deserializer)?;
        let Spec { replicas, selector, update_strategy, template } = spec;
        let spec =
            StatefulSetSpec { replicas, selector, update_strategy, ..StatefulSetSpec::default() };
        let status =
            status.map(|Status { observed_generation, update_revision }| StatefulSetStatus {
                observed_generation,
                update_revision,
                ..StatefulSetStatus::default()
            });
        Ok(Self { object: StatefulSet { metadata, spec, status }, template })
    }
}

impl Resource for WatchedStatefulSet {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        StatefulSet::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        StatefulSet::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        StatefulSet::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        StatefulSet::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.object.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.object.metadata
    }
}

#[cfg(test)]
mod tests {
    use sei_api::names::FIELD_MANAGER;
    use serde_json::{Value, json};

    use super::*;

    const STATEFULSET: &str = include_str!("../../sei-plan/testdata/view/statefulset.yaml");

    fn check(object: &Value) {
        let whole: StatefulSet = serde_json::from_value(object.clone()).expect("a StatefulSet");
        let text = object.to_string();
        let watched: WatchedStatefulSet = serde_json::from_str(&text).expect("a StatefulSet");
        let (view, expected) = (watched.view(), StatefulSetView::from(&whole));
        assert_eq!(view, expected);
        assert_eq!(view.identity(), expected.identity());
        assert_eq!(watched.meta(), &whole.metadata);
    }

    #[test]
    fn a_watched_statefulset_has_the_view_of_the_whole_object() {
        let mut object: Value = serde_saphyr::from_str(STATEFULSET).expect("a StatefulSet");
        // The text keeps it; comparisons of templates take null for absent.
        let metadata = object["spec"]["template"]["metadata"].as_object_mut().expect("a map");
        metadata.remove("creationTimestamp");
        object["metadata"]["managedFields"] = Value::Null;
        check(&object);
        object["metadata"]["managedFields"] = json!([{
            "manager": FIELD_MANAGER, "operation": "Update",
            "fieldsV1": { "f:spec": { "f:template": { "f:spec": {} } } },
        }]);
        check(&object);
        object["status"] = Value::Null;
        object["spec"]["template"]["spec"]["volumes"] = json!([
            { "name": "data", "persistentVolumeClaim": { "claimName": "data-n" } },
            { "name": "signing-key", "secret": { "secretName": "key\u{e9}\"" } },
        ]);
        check(&object);
    }

    #[test]
    fn the_template_is_the_text_of_the_server() {
        let template = r#"{"spec":{"containers":[],"fieldOfTheFuture":[1]}}"#;
        let text =
            format!(r#"{{"metadata":{{}},"spec":{{"selector":{{}},"template":{template}}}}}"#);
        let watched: WatchedStatefulSet = serde_json::from_str(&text).expect("a StatefulSet");
        assert_eq!(watched.view().template.json()["spec"]["fieldOfTheFuture"], json!([1]));
    }
}
