//! The API server: performs requests with its rules about versions, uids and generations.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod as PodObject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sei_api::SeiNode;
use sei_api::key::ObjectKey;
use sei_api::names::{annotation, label, proxy_config};
use sei_api::status::SeiNodeStatus;
use sei_plan::fingerprint::digest_of;
use sei_plan::pre_pull::PrePullView;
use sei_plan::request::VolumeView;
use sei_plan::request::{ClaimView, Failure, MountView, Outcome, PodDelete, Read, Request};
use sei_plan::shared::Shared;
use sei_plan::signing_record::SigningRecord;
use sei_plan::template::Template;
use sei_plan::view::{JobView, ObjectView, PodView, StatefulSetView};
use serde_json::{Value, json};

use crate::cluster::{Cluster, Job, Object, PrePull, pod_key};
use crate::pod::{Blueprint, controller};
use crate::render::content;

/// The reconcile that makes a request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub key: ObjectKey,
    /// The node as the reconcile knows it: a version that was stored once.
    pub node: Shared<SeiNode>,
    /// The newest resourceVersion when the reconcile began.
    pub began: u64,
    /// It no longer leads; this is its last call.
    pub is_former_leader: bool,
}

impl Caller {
    fn uid(&self) -> Option<&String> {
        self.node.metadata.uid.as_ref()
    }
}

/// What became of a status write.
#[derive(Clone, Debug)]
pub enum Written {
    Node(Shared<SeiNode>),
    /// Another client has written the node, or deleted it.
    Stale,
}

impl Cluster {
    /// Performs a request, and checks that it may be made.
    pub fn perform(&mut self, caller: &Caller, request: &Request) -> Outcome {
        self.check_request(caller, request);
        let key = &caller.key;
        match request {
            Request::Read(read) => self.read(key, read),
            Request::CreateClaim(claim) => self.create_claim(key, claim),
            Request::CreateConfigMap(_)
            | Request::ApplyConfigMap(_)
            | Request::CreateService(_)
            | Request::ApplyService(_)
            | Request::DeleteService { .. } => self.write_object(caller, request),
            Request::CreateJob(job) => {
                if self.jobs.contains_key(key) {
                    return Outcome::Failed(Failure::AlreadyExists);
                }
                let mut job = job.clone();
                let uid = format!("job-{}", self.next_version());
                job.metadata.uid = Some(uid.clone());
                let name = job.metadata.name.clone().unwrap_or_default();
                let owner = controller("batch/v1", "Job", &name, &uid);
                let template = job.spec.clone().unwrap_or_default().template;
                let blueprint = Shared::new(Blueprint::of(&template, &key.namespace, &owner));
                self.jobs.insert(key.clone(), Job { view: JobView::from(&*job), blueprint });
                Outcome::Accepted
            }
            Request::DeleteJob { uid } => match self.jobs.get_mut(key) {
                Some(job) if job.view.uid == *uid => {
                    job.view.terminating = true;
                    Outcome::Accepted
                }
                Some(_) => conflict(),
                None => Outcome::Failed(Failure::NotFound("not found".to_owned())),
            },
            Request::CreateStatefulSet(object) => self.create_set(key, object),
            Request::ApplyStatefulSet(object) => self.apply_set(key, object),
            Request::PatchStatefulSet(patch) => self.patch_set(key, patch),
            Request::DryRunStatefulSet(object) => {
                Outcome::DryRun(serde_json::to_value(&object.spec.template).unwrap_or_default())
            }
            Request::TryPod(_) => Outcome::Accepted,
            Request::DeletePod(delete) => self.delete_by(caller, delete),
            Request::CreatePrePull(pod) => self.create_pre_pull(key, pod),
            Request::DeletePrePull { uid } => match self.pre_pulls.get(key) {
                Some(found) if found.view.uid == *uid => {
                    self.pre_pulls.remove(key);
                    Outcome::Accepted
                }
                Some(_) => conflict(),
                None => Outcome::Failed(Failure::NotFound("not found".to_owned())),
            },
            Request::DeleteClaim { name, uid } => self.delete_claim(key, name, uid),
            Request::ReleaseClaim { name, uid, owner } => {
                let claim = ObjectKey::new(&key.namespace, name);
                match self.claims.get_mut(&claim) {
                    Some(claim) if claim.uid == *uid => {
                        claim.controller.take_if(|controller| controller == owner);
                        Outcome::Accepted
                    }
                    Some(_) => conflict(),
                    None => Outcome::Failed(Failure::NotFound("not found".to_owned())),
                }
            }
            Request::PatchFinalizers { resource_version, finalizers } => {
                self.patch_finalizers(key, resource_version.as_ref(), finalizers)
            }
            Request::TakeSlot(_) => Outcome::Failed(Failure::Rejected("no call".to_owned())),
            Request::Sidecar(request) => self.call_sidecar(key, request),
        }
    }

    /// Writes a status with the resourceVersion that it is based on.
    pub fn write_status(&mut self, caller: &Caller, status: &SeiNodeStatus) -> Written {
        let version = &caller.node.metadata.resource_version;
        let live = self.nodes.get(&caller.key).filter(|live| {
            live.metadata.uid == caller.node.metadata.uid
                && live.metadata.resource_version == *version
        });
        let Some(before) = live.cloned() else { return Written::Stale };
        self.check_status(caller, &before, status);
        self.change_node(&caller.key, |node| node.status = Some(status.clone()));
        Written::Node(self.nodes[&caller.key].clone())
    }

    fn read(&self, key: &ObjectKey, read: &Read) -> Outcome {
        let named = |name: &String| ObjectKey::new(&key.namespace, name);
        match read {
            Read::StatefulSet => Outcome::StatefulSet(self.sets.get(key).cloned()),
            Read::Pods => Outcome::Pods(self.pod_views(key)),
            Read::Pod(name) => {
                Outcome::Pod(self.pods.get(&named(name)).map(|pod| Shared::new(pod.view.clone())))
            }
            Read::PrePull => {
                Outcome::PrePull(self.pre_pulls.get(key).map(|found| found.view.clone()))
            }
            Read::Claim(name) => Outcome::Claim(self.claims.get(&named(name)).cloned()),
            Read::Volume(_) => Outcome::Volume(Some(VolumeView {
                phase: "Bound".to_owned(),
                capacity: Some(CAPACITY.to_owned()),
            })),
            Read::Secret(name) => Outcome::Secret(self.secrets.get(&named(name)).cloned()),
            Read::SigningRecord(name) => {
                Outcome::SigningRecord(self.records.get(&named(name)).cloned())
            }
            Read::Job => Outcome::Job(self.jobs.get(key).map(|job| job.view.clone())),
            Read::Service => Outcome::Service(self.services.get(key).map(|s| s.view.clone())),
            Read::ConfigMap => {
                let found = self.config_maps.get(&named(&proxy_config(&key.name)));
                Outcome::ConfigMap(found.map(|map| map.view.clone()))
            }
            Read::Revision(name) => Outcome::Revision(
                self.revisions
                    .get(&named(name))
                    .map(|template| json!({ "spec": { "template": template.json() } })),
            ),
            Read::Node => Outcome::Node(self.nodes.get(key).map(|node| Box::new((**node).clone()))),
            Read::Generation { .. } => {
                Outcome::Generation(self.nodes.get(key).and_then(|node| node.metadata.generation))
            }
            Read::Nodes => {
                Outcome::Nodes(self.nodes.values().map(|node| (**node).clone()).collect())
            }
            Read::Mounts { namespace, node } => {
                Outcome::Mounts(self.mounts(namespace, node.as_deref()))
            }
        }
    }

    /// The pods with the label of a node, as clients see them.
    pub fn pod_views(&self, node: &ObjectKey) -> Vec<Shared<PodView>> {
        self.pods_of(node).map(|(_, pod)| Shared::new(pod.view.clone())).collect()
    }

    fn mounts(&self, namespace: &str, node: Option<&str>) -> Vec<MountView> {
        let is_of = |name: &str| node.is_none_or(|node| node == name);
        let sets = self.sets.iter().filter(|(key, set)| {
            let name = set.labels.get(label::NODE);
            key.namespace == namespace && name.is_some_and(|name| is_of(name))
        });
        let sets = sets.map(|(key, set)| MountView::of_statefulset(&key.namespace, set));
        let pods = self.pods.iter().filter(|(key, pod)| {
            key.namespace == namespace && is_of(&pod.label) && !pod.label.is_empty()
        });
        sets.chain(pods.map(|(_, pod)| pod.mount.clone())).collect()
    }

    fn create_claim(&mut self, key: &ObjectKey, claim: &PersistentVolumeClaim) -> Outcome {
        let name = claim.metadata.name.clone().unwrap_or_default();
        let at = ObjectKey::new(&key.namespace, name);
        if self.claims.contains_key(&at) {
            return Outcome::Failed(Failure::AlreadyExists);
        }
        let uid = format!("claim-{}", self.next_version());
        let view = ObjectView { uid, ..ObjectView::from(&claim.metadata) };
        self.claims.insert(at, bound_claim(&view.uid, view.controller.clone()));
        Outcome::Created(view)
    }

    fn write_object(&mut self, caller: &Caller, request: &Request) -> Outcome {
        let key = &caller.key;
        let json = |object: Result<Value, serde_json::Error>| content(object.unwrap_or_default());
        let (metadata, content, is_create) = match request {
            Request::CreateService(object) => {
                (&object.metadata, json(serde_json::to_value(object)), true)
            }
            Request::ApplyService(object) => {
                (&object.metadata, json(serde_json::to_value(object)), false)
            }
            Request::CreateConfigMap(object) => {
                (&object.metadata, json(serde_json::to_value(object)), true)
            }
            Request::ApplyConfigMap(object) => {
                if object.metadata.uid.is_none() {
                    return self.write_record(key, object);
                }
                (&object.metadata, json(serde_json::to_value(object)), false)
            }
            Request::DeleteService { uid } => {
                return match self.services.get(key) {
                    Some(found) if found.view.uid == *uid => {
                        self.services.remove(key);
                        Outcome::Accepted
                    }
                    Some(_) => conflict(),
                    None => Outcome::Failed(Failure::NotFound("not found".to_owned())),
                };
            }
            _ => return Outcome::Accepted,
        };
        let at = ObjectKey::new(&key.namespace, metadata.name.clone().unwrap_or_default());
        let serial = self.next_version();
        let is_service = matches!(request, Request::CreateService(_) | Request::ApplyService(_));
        let all = if is_service { &mut self.services } else { &mut self.config_maps };
        let uid = match (all.get(&at), is_create) {
            (Some(_), true) => return Outcome::Failed(Failure::AlreadyExists),
            (None, true) => format!("object-{serial}"),
            (Some(found), false) if is_version(&found.view, metadata) => found.view.uid.clone(),
            (_, false) => return conflict(),
        };
        let resource_version = serial.to_string();
        let view = ObjectView { uid, resource_version, ..ObjectView::from(metadata) };
        all.insert(at, Object { view, content });
        Outcome::Accepted
    }

    /// The record that a deleted signer leaves: the server notes when it was written.
    fn write_record(&mut self, key: &ObjectKey, map: &ConfigMap) -> Outcome {
        let name = map.metadata.name.clone().unwrap_or_default();
        let record = SigningRecord { written_at: Some(self.now), ..SigningRecord::from(map) };
        self.records.insert(ObjectKey::new(&key.namespace, name), record);
        Outcome::Accepted
    }

    fn create_set(&mut self, key: &ObjectKey, object: &StatefulSet) -> Outcome {
        if self.sets.contains_key(key) {
            return Outcome::Failed(Failure::AlreadyExists);
        }
        let serial = self.next_version();
        let view = StatefulSetView {
            uid: format!("set-{serial}"),
            resource_version: serial.to_string(),
            generation: 1,
            ..StatefulSetView::from(object)
        };
        self.sets.insert(key.clone(), Shared::new(view));
        self.note_set(key);
        Outcome::Applied(self.sets[key].clone())
    }

    fn apply_set(&mut self, key: &ObjectKey, object: &StatefulSet) -> Outcome {
        let Some(set) = self.sets.get(key) else { return conflict() };
        let (uid, version) = (&object.metadata.uid, &object.metadata.resource_version);
        if uid.as_ref() != Some(&set.uid) || version.as_ref() != Some(&set.resource_version) {
            return conflict();
        }
        let applied = StatefulSetView::from(object);
        let is_spec = applied.template != set.template || applied.replicas != set.replicas;
        self.change_set(key, is_spec, |set| {
            set.template = applied.template;
            set.replicas = applied.replicas;
            set.template_hash = applied.template_hash;
            set.initialised |= applied.initialised;
            set.labels.extend(applied.labels);
        });
        Outcome::Applied(self.sets[key].clone())
    }

    fn patch_set(&mut self, key: &ObjectKey, patch: &Value) -> Outcome {
        let Some(set) = self.sets.get(key) else {
            return Outcome::Failed(Failure::NotFound("not found".to_owned()));
        };
        if patch["metadata"]["resourceVersion"] != json!(set.resource_version) {
            return conflict();
        }
        let replicas = patch["spec"]["replicas"].as_i64().and_then(|all| i32::try_from(all).ok());
        let is_on_delete = patch["spec"]["updateStrategy"]["type"] == "OnDelete";
        let is_spec = replicas.is_some_and(|all| Some(all) != set.replicas)
            || (is_on_delete && !set.on_delete);
        let annotations = &patch["metadata"]["annotations"];
        self.change_set(key, is_spec, |set| {
            set.replicas = replicas.or(set.replicas);
            set.on_delete |= is_on_delete;
            if let Some(hash) = annotations[annotation::TEMPLATE_HASH].as_str() {
                set.template_hash = Some(hash.to_owned());
            }
            set.initialised |= !annotations[annotation::INITIALISED].is_null();
            for (name, value) in patch["metadata"]["labels"].as_object().into_iter().flatten() {
                let value = value.as_str().unwrap_or_default().to_owned();
                set.labels.insert(name.clone(), value);
            }
        });
        Outcome::Patched(self.sets[key].clone())
    }

    fn delete_by(&mut self, caller: &Caller, delete: &PodDelete) -> Outcome {
        let key = ObjectKey::new(&caller.key.namespace, &delete.name);
        let Some(pod) = self.pods.get(&key) else {
            return Outcome::Failed(Failure::NotFound("not found".to_owned()));
        };
        let version = delete.resource_version.as_ref();
        if pod.view.uid != delete.uid
            || version.is_some_and(|version| *version != pod.view.resource_version)
        {
            return conflict();
        }
        self.check_pod_deletion(caller, &key);
        self.delete_pod(&key);
        Outcome::Accepted
    }

    fn create_pre_pull(&mut self, key: &ObjectKey, pod: &PodObject) -> Outcome {
        if self.pre_pulls.contains_key(key) {
            return Outcome::Failed(Failure::AlreadyExists);
        }
        let view = PrePullView {
            uid: format!("pre-pull-{}", self.next_version()),
            created_at: Some(self.now),
            ..PrePullView::from(pod)
        };
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let images = containers.filter_map(|container| container.image.clone()).collect();
        self.pre_pulls.insert(key.clone(), PrePull { view: view.clone(), images });
        Outcome::PrePull(Some(view))
    }

    fn delete_claim(&mut self, key: &ObjectKey, name: &str, uid: &str) -> Outcome {
        let at = ObjectKey::new(&key.namespace, name);
        match self.claims.get_mut(&at) {
            Some(claim) if claim.uid == uid => claim.terminating = true,
            Some(_) => return conflict(),
            None => return Outcome::Failed(Failure::NotFound("not found".to_owned())),
        }
        Outcome::Accepted
    }

    fn patch_finalizers(
        &mut self,
        key: &ObjectKey,
        version: Option<&String>,
        finalizers: &[String],
    ) -> Outcome {
        let Some(node) = self.nodes.get(key) else {
            return Outcome::Failed(Failure::NotFound("not found".to_owned()));
        };
        if version.is_some() && node.metadata.resource_version.as_ref() != version {
            return conflict();
        }
        let mut patched = node.clone();
        patched.metadata.finalizers = Some(finalizers.to_vec());
        self.change_node(key, |node| node.metadata.finalizers = Some(finalizers.to_vec()));
        let now = self.nodes.get(key).filter(|now| now.metadata.uid == patched.metadata.uid);
        Outcome::Node(Some(Box::new((**now.unwrap_or(&patched)).clone())))
    }

    /// Whether the caller's node is still the stored one.
    pub fn is_alive(&self, caller: &Caller) -> bool {
        self.nodes.get(&caller.key).is_some_and(|live| live.metadata.uid.as_ref() == caller.uid())
    }

    /// Stores the template of a StatefulSet as a revision: the same template has the same name.
    pub fn revision_of(&mut self, key: &ObjectKey, template: &Template) -> String {
        let name = format!("{}-{}", key.name, &digest_of(&template.json())[3..13]);
        let at = ObjectKey::new(&key.namespace, &name);
        self.revisions.entry(at).or_insert_with(|| Shared::new(template.clone()));
        name
    }

    /// Whether the node's own pod exists.
    pub fn has_pod(&self, key: &ObjectKey) -> bool {
        self.pods.contains_key(&pod_key(key))
    }
}

/// Capacity of every volume.
const CAPACITY: &str = "40Ti";

/// A claim that is bound to a volume.
pub fn bound_claim(uid: &str, controller: Option<String>) -> ClaimView {
    ClaimView {
        uid: uid.to_owned(),
        controller,
        terminating: false,
        phase: "Bound".to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        capacity: Some(CAPACITY.to_owned()),
        volume: Some(format!("volume-of-{uid}")),
    }
}

fn is_version(found: &ObjectView, metadata: &ObjectMeta) -> bool {
    metadata.uid.as_ref() == Some(&found.uid)
        && metadata.resource_version.as_ref() == Some(&found.resource_version)
}

fn conflict() -> Outcome {
    Outcome::Failed(Failure::Conflict("the object has changed".to_owned()))
}
