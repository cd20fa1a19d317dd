//! Pods as far as [`PodView`] and [`PrePullView`] read them: only those fields are decoded.
//!
//! Every phase of every pod of a fleet is an event. A whole pod, with its volumes, probes and managed
//! fields, costs four times as much to decode and is dropped right after.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::Resource;
use sei_api::names::annotation;
use sei_plan::pre_pull::PrePullView;
use sei_plan::view::{AUDIENCE_FLAG, PodView, SECURE_FLAG};
use serde::de::Visitor;
use serde::{Deserialize, Deserializer};

/// How many characters are kept of an image's name and of what a kubelet reports, where names are
/// repeated: the server accepts a name of a megabyte, and the pod may be anybody's. No registry accepts
/// one that is as long.
const TEXT_MAX: usize = 4096;

/// A pod with the fields that a view needs.
#[derive(Clone, Debug)]
pub struct WatchedPod(Pod);

impl WatchedPod {
    pub fn view(&self) -> PodView {
        PodView::from(&self.0)
    }

    /// The view of a pod that pulls the images of an update.
    pub fn pre_pull(&self) -> PrePullView {
        PrePullView::from(&self.0)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    metadata: Metadata,
    spec: Option<Spec>,
    status: Option<PodStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<Annotations>,
    creation_timestamp: Option<Time>,
    owner_references: Option<Vec<OwnerReference>>,
    deletion_timestamp: Option<Time>,
}

/// The one annotation that a view reads.
#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "sei.io/pre-pull")]
    pre_pull: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    #[serde(default)]
    containers: Vec<NamedImage>,
    init_containers: Option<Vec<NamedImage>>,
}

#[derive(Deserialize)]
struct NamedImage {
    name: String,
    image: Option<String>,
    args: Option<Vec<ProxyFlag>>,
}

impl From<NamedImage> for Container {
    fn from(NamedImage { name, image, args }: NamedImage) -> Self {
        let image = image.map(shortened);
        let args = args.map(|args| args.into_iter().filter_map(|arg| arg.0).collect());
        Self { name, image, args, ..Self::default() }
    }
}

fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        // A copy: a string that is truncated keeps its memory.
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

fn shorten(text: &mut String) {
    *text = shortened(std::mem::take(text));
}

/// Shortens all texts of a status that views keep.
fn shorten_status(status: &mut PodStatus) {
    let containers = [&mut status.container_statuses, &mut status.init_container_statuses];
    for container in containers.into_iter().flatten().flatten() {
        shorten(&mut container.image);
        shorten(&mut container.image_id);
        for state in [&mut container.state, &mut container.last_state].into_iter().flatten() {
            let waiting = state.waiting.as_mut().map(|waiting| &mut waiting.message);
            let terminated = state.terminated.as_mut().map(|ended| &mut ended.message);
            [waiting, terminated].into_iter().flatten().flatten().for_each(shorten);
        }
    }
    let conditions = status.conditions.iter_mut().flatten();
    conditions.filter_map(|condition| condition.message.as_mut()).for_each(shorten);
    status.message.iter_mut().for_each(shorten);
}

/// An argument, if it is one of the proxy's flags that a view reads. Others are scripts.
struct ProxyFlag(Option<String>);

impl<'de> Deserialize<'de> for ProxyFlag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Flag;

        impl Visitor<'_> for Flag {
            type Value = ProxyFlag;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an argument")
            }

            fn visit_str<E>(self, text: &str) -> Result<ProxyFlag, E> {
                let is_read = text.starts_with(SECURE_FLAG) || text.starts_with(AUDIENCE_FLAG);
                Ok(ProxyFlag(is_read.then(|| text.to_owned())))
            }
        }

        deserializer.deserialize_str(Flag)
    }
}

impl<'de> Deserialize<'de> for WatchedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Fields { metadata, spec, mut status } = Fields::deserialize(deserializer)?;
        status.iter_mut().for_each(shorten_status);
        let containers =
            |images: Vec<NamedImage>| images.into_iter().map(Container::from).collect();
        let spec = spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            containers: containers(spec.containers),
            init_containers: spec.init_containers.map(containers),
            ..PodSpec::default()
        });
        let pre_pull = metadata.annotations.and_then(|all| all.pre_pull);
        let metadata = ObjectMeta {
            annotations: pre_pull
                .map(|purpose| BTreeMap::from([(annotation::PRE_PULL.to_owned(), purpose)])),
            creation_timestamp: metadata.creation_timestamp,
            name: metadata.name,
            namespace: metadata.namespace,
            uid: metadata.uid,
            resource_version: metadata.resource_version,
            labels: metadata.labels,
            owner_references: metadata.owner_references,
            deletion_timestamp: metadata.deletion_timestamp,
            ..ObjectMeta::default()
        };
        Ok(Self(Pod { metadata, spec, status }))
    }
}

impl Resource for WatchedPod {
    type DynamicType = ();
    type Scope = k8s_openapi::NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.0.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.0.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = include_str!("../../sei-plan/testdata/view/pod.yaml");
    /// Its statuses in every state that views are tested with.
    const STATUSES: &str = include_str!("../../sei-plan/testdata/view/pod-status.yaml");

    #[test]
    fn a_watched_pod_has_the_view_of_the_whole_pod() {
        let mut pod: serde_json::Value = serde_saphyr::from_str(POD).expect("a pod");
        pod["metadata"]["annotations"][annotation::PRE_PULL] = "plan/host".into();
        let statuses: BTreeMap<String, serde_json::Value> =
            serde_saphyr::from_str(STATUSES).expect("statuses");
        assert!(statuses.len() > 5, "{}", statuses.len());
        for (name, status) in statuses {
            pod["status"] = status;
            let whole: Pod = serde_json::from_value(pod.clone()).expect("a pod");
            let watched: WatchedPod = serde_json::from_value(pod.clone()).expect("a pod");
            assert_eq!(watched.view(), PodView::from(&whole), "{name}");
            assert_eq!(watched.pre_pull(), PrePullView::from(&whole), "{name}");
        }
    }
    #[test]
    fn long_texts_of_others_are_shortened() {
        let long = "é".repeat(300_000);
        let container = serde_json::json!({
            "name": "seid", "image": long, "imageID": long, "ready": false, "restartCount": 0,
            "state": { "waiting": { "reason": "ImagePullBackOff", "message": long } },
            "lastState": { "terminated": { "exitCode": 1, "message": long } },
        });
        let pod = serde_json::json!({
            "metadata": { "name": "x-0" },
            "spec": { "containers": [{ "name": "seid", "image": long }] },
            "status": {
                "message": long,
                "conditions": [{ "type": "PodScheduled", "status": "False", "message": long }],
                "containerStatuses": [container], "initContainerStatuses": [container],
            },
        });
        let watched: WatchedPod = serde_json::from_value(pod).expect("a pod");
        // Nothing of what is kept, the pod included, has a text of that length.
        let kept = serde_json::to_string(&watched.0).expect("a pod").len();
        assert!(kept < 13 * 2 * TEXT_MAX, "{kept}");
        let longest = |text: &str| text.split('"').map(|part| part.chars().count()).max();
        let text = serde_json::to_string(&watched.0).expect("a pod");
        assert_eq!(longest(&text), Some(TEXT_MAX));
    }
}
