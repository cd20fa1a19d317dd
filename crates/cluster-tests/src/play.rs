//! A scenario: a namespace, an operator of its own, and what people and machines do to nodes.

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionType};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_operator::Operator;
use sei_plan::view::PodView;
use sei_rig::{AuditEntry, AuditLog, Behaviour, Rule, RuleId, Sidecars, User, World};
use serde_json::{Value, json};

use crate::operator::{self, Setup};
use crate::wire::{Answer, Wire, Write};
use crate::{Scene, minor, scene, wait_for};

/// A scenario under way.
pub struct Play {
    pub scene: Scene,
    pub operator: Option<Operator>,
    /// Waits for what must happen, and tells why it did not.
    world: World,
}

impl Play {
    /// Opens a scenario with an operator.
    pub async fn open(name: &str) -> Result<Self> {
        Self::open_at(name, Setup::default().speed).await
    }

    /// The same with waits this many times shorter than in life.
    pub async fn open_at(name: &str, speed: u32) -> Result<Self> {
        let mut play = Self::open_without_operator(name).await?;
        play.start_operator(speed).await?;
        Ok(play)
    }

    /// Starts an operator on a wire of its own.
    pub async fn start_operator_on_wire(&mut self, answer: Answer) -> Result<Wire> {
        let wire = Wire::new(answer);
        self.start_with(Setup { wire: Some(wire.clone()), ..Setup::default() }).await?;
        Ok(wire)
    }

    /// Starts an operator; one that runs is dropped where it stands.
    pub async fn start_operator(&mut self, speed: u32) -> Result<()> {
        self.start_with(Setup { speed, ..Setup::default() }).await
    }

    /// Starts an operator set up like this; one that runs is dropped where it stands.
    pub async fn start_with(&mut self, setup: Setup) -> Result<()> {
        self.kill_operator();
        self.operator = Some(operator::start(&self.scene, setup).await?);
        Ok(())
    }

    /// Drops the operator where it stands.
    pub fn kill_operator(&mut self) {
        if let Some(operator) = self.operator.take() {
            operator.kill();
        }
    }

    pub async fn open_without_operator(name: &str) -> Result<Self> {
        Ok(Self::open_on(scene(name).await?))
    }

    /// Opens a scenario in this scene, without an operator.
    pub fn open_on(scene: Scene) -> Self {
        let world = World::of(scene.lane.clone(), scene.admin.clone(), scene.namespace.clone());
        Self { scene, operator: None, world }
    }

    pub fn nodes(&self) -> Api<SeiNode> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn statefulsets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.scene.admin.clone(), &self.scene.namespace)
    }

    pub fn sidecars(&self) -> &Sidecars {
        self.scene.kubelet().sidecars()
    }

    /// From now on pods of this image behave so.
    pub fn image_is(&self, image: &str, behaviour: Behaviour) -> RuleId {
        let rule = Rule::new(behaviour).of_image(image);
        self.scene.kubelet().behave(&self.scene.namespace, rule)
    }

    /// From now on pods of this node behave so.
    pub fn node_is(&self, node: &str, behaviour: Behaviour) -> RuleId {
        let rule = Rule::new(behaviour).of_node(node);
        self.scene.kubelet().behave(&self.scene.namespace, rule)
    }

    pub fn lift(&self, rule: RuleId) {
        self.scene.kubelet().lift(rule);
    }

    /// The operator's requests about this scenario from now on.
    pub fn requests(&self) -> Requests {
        Requests { log: self.scene.plane().audit(), namespace: self.scene.namespace.clone() }
    }

    /// Makes a node of this name and spec.
    pub async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let node: SeiNode = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name }, "spec": spec,
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        Ok(())
    }

    /// Makes a node and waits until it runs.
    pub async fn run(&self, name: &str, spec: Value) -> Result<()> {
        self.create(name, spec).await?;
        self.settled(name).await
    }

    /// Merges this into the node.
    pub async fn edit(&self, name: &str, patch: Value) -> Result<()> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.nodes().patch(name, &params, &patch).await.with_context(|| format!("edit {name}"))?;
        Ok(())
    }

    pub async fn set_image(&self, name: &str, image: &str) -> Result<()> {
        self.edit(name, json!({ "spec": { "image": image } })).await
    }

    pub async fn node(&self, name: &str) -> Result<SeiNode> {
        Ok(self.nodes().get(name).await?)
    }

    pub async fn status(&self, name: &str) -> Result<SeiNodeStatus> {
        Ok(self.node(name).await?.status.unwrap_or_default())
    }

    /// The node's pod, as the operator would see it.
    pub async fn pod(&self, name: &str) -> Result<Option<PodView>> {
        let pod = self.pods().get_opt(&format!("{name}-0")).await?;
        Ok(pod.as_ref().map(PodView::from))
    }

    /// Uid of the node's pod.
    pub async fn uid(&self, name: &str) -> Result<String> {
        Ok(self.pod(name).await?.with_context(|| format!("{name} has no pod"))?.uid)
    }

    /// Waits until the node's pod is as it should be.
    pub async fn until_pod(
        &self,
        name: &str,
        claim: &str,
        is: impl Fn(&PodView) -> bool,
    ) -> Result<PodView> {
        let claim = format!("{name}: {claim}");
        let pod = self.world.wait_pod(name, &claim, |pod| is(&PodView::from(pod))).await?;
        Ok(PodView::from(&pod))
    }

    /// Waits until a pod of the node is made of this image.
    pub async fn until_pod_of(&self, name: &str, image: &str) -> Result<PodView> {
        self.until_pod(name, &format!("its pod is of {image}"), |pod| {
            pod.seid.image == image && !pod.is_terminating()
        })
        .await
    }

    /// Waits until the node is said to be stalled by this.
    pub async fn until_stalled(&self, name: &str, reason: &str) -> Result<SeiNodeStatus> {
        let desired = format!("True/{reason}");
        self.until(name, &format!("Stalled is {desired}"), |status| {
            says(status, ConditionType::Stalled).starts_with(&desired)
        })
        .await
    }

    /// Waits until nothing stalls the node.
    pub async fn until_not_stalled(&self, name: &str) -> Result<SeiNodeStatus> {
        self.until(name, "nothing stalls it", |status| {
            says(status, ConditionType::Stalled).starts_with("False")
        })
        .await
    }

    /// Waits until a node's status is as it should be.
    pub async fn until(
        &self,
        name: &str,
        claim: &str,
        is: impl Fn(&SeiNodeStatus) -> bool,
    ) -> Result<SeiNodeStatus> {
        let claim = format!("{name}: {claim}");
        let holds = |node: &SeiNode| node.status.as_ref().is_some_and(&is);
        let node = self.world.wait_node(name, &claim, holds).await?;
        Ok(node.status.unwrap_or_default())
    }

    /// Waits until a node runs what its spec asks for, with its gate open and no plan left.
    pub async fn settled(&self, name: &str) -> Result<()> {
        let (desired, generation) = self.asked(name).await?;
        self.until(name, &format!("runs {desired} and is at rest"), |status| {
            status.phase == Some(SeiNodePhase::Running)
                && status.observed_generation >= generation
                && status.plan.is_none()
                && status.current_image.as_deref() == Some(desired.as_str())
                && says(status, ConditionType::PodTemplateDrift).starts_with("False")
        })
        .await?;
        let is_open =
            |pod: &PodView| pod.seid.image == desired && pod.seid.started && !pod.is_terminating();
        let claim = format!("the gate of a pod of {desired} is open");
        self.until_pod(name, &claim, is_open).await.map(drop)
    }

    /// The image that the spec asks for, and the spec's generation.
    async fn asked(&self, name: &str) -> Result<(String, Option<i64>)> {
        let node = self.node(name).await?;
        Ok((node.spec.image, node.metadata.generation))
    }

    /// Somebody takes all fields out of the status.
    pub async fn wipe_status(&self, name: &str) -> Result<()> {
        let status = serde_json::to_value(self.status(name).await?)?;
        let fields = status.as_object().into_iter().flatten();
        let nulls: Value = fields.map(|(key, _)| (key.clone(), Value::Null)).collect();
        self.edit_status(name, nulls).await
    }

    /// Merges this into the status.
    pub async fn edit_status(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.nodes().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the server knows no such node.
    pub async fn until_gone(&self, name: &str) -> Result<()> {
        Ok(self.world.wait_deleted::<SeiNode>(name).await?)
    }

    /// What events say about a node, as `Reason: note`.
    pub async fn events(&self, name: &str) -> Result<Vec<String>> {
        let events: Api<Event> = Api::namespaced(self.scene.admin.clone(), &self.scene.namespace);
        let events = events.list(&ListParams::default()).await?;
        let about = |event: &&Event| {
            event.regarding.as_ref().and_then(|one| one.name.as_deref()) == Some(name)
        };
        let told = events.items.iter().filter(about).map(|event| {
            let word = |text: &Option<String>| text.clone().unwrap_or_default();
            format!("{}: {}", word(&event.reason), word(&event.note))
        });
        Ok(told.collect())
    }

    /// Somebody else deletes the pod.
    pub async fn evict(&self, name: &str) -> Result<()> {
        self.pods().delete(&format!("{name}-0"), &DeleteParams::default()).await?;
        Ok(())
    }

    /// A Secret with this file.
    pub async fn secret(&self, name: &str, file: &str, content: &Value) -> Result<()> {
        let secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { file: content.to_string() },
        }))?;
        let secrets: Api<Secret> = Api::namespaced(self.scene.admin.clone(), &self.scene.namespace);
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// The Secrets of a validator with these names.
    pub async fn validator_keys(&self, signing: &str, node: &str) -> Result<()> {
        let key = json!({ "type": "t", "value": "v" });
        let signs = json!({ "address": signing, "pub_key": key, "priv_key": key });
        self.secret(signing, "priv_validator_key.json", &signs).await?;
        self.secret(node, "node_key.json", &json!({ "priv_key": key })).await
    }

    /// How many pods a node has had so far.
    pub async fn pods_seen(&self, name: &str) -> Result<usize> {
        Ok(self.world.pod_uids_seen(name).await?.len())
    }

    /// How many plans a node's status has shown so far.
    pub fn plans_seen(&self, name: &str) -> usize {
        self.world.plan_ids_seen(name).len()
    }

    /// Waits until who makes pods has told all there is to tell of a node that runs.
    pub async fn until_set_is_told(&self, name: &str) -> Result<StatefulSet> {
        wait_for("its StatefulSet has seen it ready", async || {
            let set = self.statefulsets().get(name).await?;
            let status = set.status.clone().unwrap_or_default();
            let is_ready = status.ready_replicas == Some(1) && status.available_replicas == Some(1);
            let is_seen = status.observed_generation == set.metadata.generation;
            // From 1.37 on the current revision follows a roll, in a write of its own.
            let follows = minor() == "1.34" || status.current_revision == status.update_revision;
            Ok((is_ready && is_seen && follows).then_some(set))
        })
        .await
    }

    /// Waits until the operator has stopped at a write, or else has done all there is to do for this
    /// node; then it is ended politely, because what it tells people comes last.
    pub async fn until_stopped(&mut self, wire: &Wire, node: &str) -> Result<Option<Write>> {
        let whole = async {
            self.settled(node).await?;
            let operator = self.operator.take().context("there is an operator")?;
            operator.stop().await
        };
        tokio::select! {
            biased;
            write = wire.stopped() => Ok(Some(write)),
            ended = whole => ended.map(|()| None),
        }
    }

    /// Waits until another task of this type was given to a sidecar of the node than so many before.
    pub async fn until_submitted(&self, node: &str, task: &str, before: usize) -> Result<()> {
        wait_for(&format!("{node}: {task} is submitted"), async || {
            Ok((self.submitted(node, task) > before).then_some(()))
        })
        .await
    }

    /// How many tasks of this type were given to sidecars of the node.
    pub fn submitted(&self, node: &str, task: &str) -> usize {
        let all = self.sidecars().submissions(&self.scene.namespace, node);
        all.iter().filter(|one| one.task_type == task).count()
    }

    /// Ends the scenario: whatever image a node was said to run, a pod had been seen running it.
    pub async fn close(self) -> Result<()> {
        let lies = self.world.violations().await?;
        ensure!(lies.is_empty(), "{lies:?}");
        Ok(())
    }
}

/// What an operator asked of the server about one namespace.
pub struct Requests {
    log: AuditLog,
    namespace: String,
}

impl Requests {
    /// What was written down since the last call. Watches and leases are not among it.
    pub fn new_ones(&mut self) -> Result<Vec<AuditEntry>> {
        let mut entries = self.log.read_new()?;
        entries.retain(|one| {
            one.user == User::Operator.name()
                && one.namespace.as_deref() == Some(self.namespace.as_str())
                && one.verb != "watch"
                && one.resource != "leases"
        });
        Ok(entries)
    }
}

/// Requests as a person reads them, a line each.
pub fn listed(requests: &[AuditEntry]) -> String {
    let line = |one: &AuditEntry| format!("{} {} {} {}", one.at, one.code, one.verb, one.uri);
    requests.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A condition as `Status/Reason: message`.
pub fn says(status: &SeiNodeStatus, kind: ConditionType) -> String {
    condition::find(&status.conditions, kind).map_or_else(
        || "absent".to_owned(),
        |one| format!("{}/{}: {}", one.status, one.reason, one.message),
    )
}

/// The spec of an RPC node with this image.
pub fn rpc(image: &str) -> Value {
    json!({ "chainId": "demo-1", "image": image, "fullNode": {} })
}

/// The spec of a validator with keys in these Secrets.
pub fn validator(image: &str, signing: &str, node: &str) -> Value {
    json!({ "chainId": "demo-1", "image": image, "validator": {
        "signingKey": { "secret": { "secretName": signing } },
        "nodeKey": { "secret": { "secretName": node } },
    }})
}
