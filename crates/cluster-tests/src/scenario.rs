//! A scenario: a namespace with its own operator, and helpers that change nodes and wait for
//! results.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::events::v1::Event;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use sei_api::condition::{self, ConditionType};
use sei_api::names::{SIDECAR_CALLER, sidecar_audience};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_operator::Operator;
use sei_plan::signing_key;
use sei_plan::view::PodView;
use sei_rig::{
    AuditEntry, AuditLog, Behaviour, ControlPlane, Kubelet, Received, Rule, RuleId, Sidecars, User,
    World,
};
use serde_json::{Value, json};

use crate::interceptor::{Interceptor, LastResponse, Write};
use crate::operator::{self, Setup};
use crate::{TestContext, minor, test_context, wait_for};

/// A running scenario.
pub struct Scenario {
    pub context: TestContext,
    pub operator: Option<Operator>,
    /// Waits for expected states; a timeout reports the actual state.
    world: World,
}

impl Scenario {
    /// Opens a scenario and starts its operator.
    pub async fn open(name: &str) -> Result<Self> {
        Self::open_at_speed(name, Setup::default().speed).await
    }

    /// The same, with the operator's waits this many times shorter than in production.
    pub async fn open_at_speed(name: &str, speed: u32) -> Result<Self> {
        let mut scenario = Self::open_without_operator(name).await?;
        scenario.start_operator(speed).await?;
        Ok(scenario)
    }

    /// Starts an operator whose requests pass through a new interceptor.
    pub async fn start_intercepted_operator(
        &mut self,
        last_response: LastResponse,
    ) -> Result<Interceptor> {
        let interceptor = Interceptor::new(last_response);
        self.start_with(Setup { interceptor: Some(interceptor.clone()), ..Setup::default() })
            .await?;
        Ok(interceptor)
    }

    /// Starts an operator. A running operator is killed first.
    pub async fn start_operator(&mut self, speed: u32) -> Result<()> {
        self.start_with(Setup { speed, ..Setup::default() }).await
    }

    /// Starts an operator with this setup. A running operator is killed first.
    pub async fn start_with(&mut self, setup: Setup) -> Result<()> {
        self.kill_operator();
        self.operator = Some(operator::start(&self.context, setup).await?);
        Ok(())
    }

    /// Kills the operator without a graceful shutdown.
    pub fn kill_operator(&mut self) {
        if let Some(operator) = self.operator.take() {
            operator.kill();
        }
    }

    pub async fn open_without_operator(name: &str) -> Result<Self> {
        Ok(Self::open_on(test_context(name).await?))
    }

    /// Opens a scenario in this test context, without an operator.
    pub fn open_on(context: TestContext) -> Self {
        let world =
            World::of(context.lane.clone(), context.admin.clone(), context.namespace.clone());
        Self { context, operator: None, world }
    }

    pub fn namespace(&self) -> &str {
        &self.context.namespace
    }

    pub fn admin(&self) -> Client {
        self.context.admin.clone()
    }

    pub fn plane(&self) -> &ControlPlane {
        self.context.plane()
    }

    pub fn kubelet(&self) -> &Kubelet {
        self.context.kubelet()
    }

    pub fn nodes(&self) -> Api<SeiNode> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn statefulsets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn services(&self) -> Api<Service> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn config_maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.context.admin.clone(), &self.context.namespace)
    }

    pub fn sidecars(&self) -> &Sidecars {
        self.context.kubelet().sidecars()
    }

    /// Sets how pods of this image behave from now on.
    pub fn set_image_behaviour(&self, image: &str, behaviour: Behaviour) -> RuleId {
        let rule = Rule::new(behaviour).of_image(image);
        self.context.kubelet().behave(&self.context.namespace, rule)
    }

    /// Sets how pods of this node behave from now on.
    pub fn set_node_behaviour(&self, node: &str, behaviour: Behaviour) -> RuleId {
        let rule = Rule::new(behaviour).of_node(node);
        self.context.kubelet().behave(&self.context.namespace, rule)
    }

    /// Removes a behaviour rule.
    pub fn lift(&self, rule: RuleId) {
        self.context.kubelet().lift(rule);
    }

    /// The operator's requests in this scenario's namespace from now on.
    pub fn requests(&self) -> Requests {
        Requests { log: self.context.plane().audit(), namespace: self.context.namespace.clone() }
    }

    /// Creates a node with this name and spec.
    pub async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let node: SeiNode = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": { "name": name }, "spec": spec,
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        Ok(())
    }

    /// Creates a node and waits until it runs.
    pub async fn run(&self, name: &str, spec: Value) -> Result<()> {
        self.create(name, spec).await?;
        self.settled(name).await
    }

    /// Applies a merge patch to the node.
    pub async fn edit(&self, name: &str, patch: Value) -> Result<()> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.nodes()
            .patch(name, &params, &patch)
            .await
            .with_context(|| format!("failed to edit {name}"))?;
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

    /// The node's pod, in the operator's view of it.
    pub async fn pod(&self, name: &str) -> Result<Option<PodView>> {
        let pod = self.pods().get_opt(&format!("{name}-0")).await?;
        Ok(pod.as_ref().map(PodView::from))
    }

    /// The uid of the node's pod.
    pub async fn uid(&self, name: &str) -> Result<String> {
        Ok(self.pod(name).await?.with_context(|| format!("{name} has no pod"))?.uid)
    }

    /// Waits until the node's pod satisfies the predicate.
    pub async fn until_pod(
        &self,
        name: &str,
        claim: &str,
        holds: impl Fn(&PodView) -> bool,
    ) -> Result<PodView> {
        let claim = format!("{name}: {claim}");
        let pod = self.world.wait_pod(name, &claim, |pod| holds(&PodView::from(pod))).await?;
        Ok(PodView::from(&pod))
    }

    /// Waits until the node has a pod with this image.
    pub async fn until_pod_of(&self, name: &str, image: &str) -> Result<PodView> {
        self.until_pod(name, &format!("its pod has image {image}"), |pod| {
            pod.seid.image == image && !pod.is_terminating()
        })
        .await
    }

    /// Waits until the node's `Stalled` condition is true with this reason.
    pub async fn until_stalled(&self, name: &str, reason: &str) -> Result<SeiNodeStatus> {
        let desired = format!("True/{reason}");
        self.until(name, &format!("Stalled is {desired}"), |status| {
            condition_text(status, ConditionType::Stalled).starts_with(&desired)
        })
        .await
    }

    /// Waits until the node's `Stalled` condition is false.
    pub async fn until_not_stalled(&self, name: &str) -> Result<SeiNodeStatus> {
        self.until(name, "Stalled is False", |status| {
            condition_text(status, ConditionType::Stalled).starts_with("False")
        })
        .await
    }

    /// Waits until the node's status satisfies the predicate.
    pub async fn until(
        &self,
        name: &str,
        claim: &str,
        predicate: impl Fn(&SeiNodeStatus) -> bool,
    ) -> Result<SeiNodeStatus> {
        let claim = format!("{name}: {claim}");
        let holds = |node: &SeiNode| node.status.as_ref().is_some_and(&predicate);
        let node = self.world.wait_node(name, &claim, holds).await?;
        Ok(node.status.unwrap_or_default())
    }

    /// Waits until a node runs the image of its spec, with its gate open and no plan left.
    pub async fn settled(&self, name: &str) -> Result<()> {
        let (desired, generation) = self.desired_image(name).await?;
        self.until(name, &format!("runs {desired} and has no plan"), |status| {
            status.phase == Some(SeiNodePhase::Running)
                && status.observed_generation >= generation
                && status.plan.is_none()
                && status.current_image.as_deref() == Some(desired.as_str())
                && condition_text(status, ConditionType::PodTemplateDrift).starts_with("False")
        })
        .await?;
        let is_open =
            |pod: &PodView| pod.seid.image == desired && pod.seid.started && !pod.is_terminating();
        let claim = format!("the gate of a pod with image {desired} is open");
        self.until_pod(name, &claim, is_open).await.map(drop)
    }

    /// The image in the spec, and the spec's generation.
    async fn desired_image(&self, name: &str) -> Result<(String, Option<i64>)> {
        let node = self.node(name).await?;
        Ok((node.spec.image, node.metadata.generation))
    }

    /// Removes all fields from the status, as a person with access could.
    pub async fn wipe_status(&self, name: &str) -> Result<()> {
        let status = serde_json::to_value(self.status(name).await?)?;
        let fields = status.as_object().into_iter().flatten();
        let nulls: Value = fields.map(|(key, _)| (key.clone(), Value::Null)).collect();
        self.edit_status(name, nulls).await
    }

    /// Applies a merge patch to the status.
    pub async fn edit_status(&self, name: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({ "status": status }));
        self.nodes().patch_status(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the node is deleted from the server.
    pub async fn until_deleted(&self, name: &str) -> Result<()> {
        Ok(self.world.wait_deleted::<SeiNode>(name).await?)
    }

    /// The events about a node, as `Reason: note`.
    pub async fn events(&self, name: &str) -> Result<Vec<String>> {
        let events: Api<Event> =
            Api::namespaced(self.context.admin.clone(), &self.context.namespace);
        let events = events.list(&ListParams::default()).await?;
        let about = |event: &&Event| {
            event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name)
        };
        let texts = events.items.iter().filter(about).map(|event| {
            let text = |field: &Option<String>| field.clone().unwrap_or_default();
            format!("{}: {}", text(&event.reason), text(&event.note))
        });
        Ok(texts.collect())
    }

    /// Deletes the node's pod, as an eviction does.
    pub async fn evict(&self, name: &str) -> Result<()> {
        self.pods().delete(&format!("{name}-0"), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates a Secret with this file.
    pub async fn create_secret(&self, name: &str, file: &str, content: &Value) -> Result<()> {
        let secret: Secret = serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name },
            "stringData": { file: content.to_string() },
        }))?;
        let secrets: Api<Secret> =
            Api::namespaced(self.context.admin.clone(), &self.context.namespace);
        secrets.create(&PostParams::default(), &secret).await?;
        Ok(())
    }

    /// Creates the two key Secrets of a validator, with these names.
    pub async fn create_validator_keys(&self, signing: &str, node: &str) -> Result<()> {
        self.copy_validator_keys(signing, signing, node).await
    }

    /// Creates a Secret with the signing key `key`.
    pub async fn copy_secret_of_key(&self, key: &str, name: &str) -> Result<()> {
        self.create_secret(name, signing_key::FILE, &signing_key::made_up(key)).await
    }

    pub async fn delete_secret(&self, name: &str) -> Result<()> {
        let secrets: Api<Secret> =
            Api::namespaced(self.context.admin.clone(), &self.context.namespace);
        secrets.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Creates the Secrets of a validator that signs with the key `key`.
    pub async fn copy_validator_keys(&self, key: &str, signing: &str, node: &str) -> Result<()> {
        self.copy_secret_of_key(key, signing).await?;
        let p2p = json!({ "type": "t", "value": "v" });
        self.create_secret(node, "node_key.json", &json!({ "priv_key": p2p })).await
    }

    /// How many pods a node has had so far.
    pub async fn pods_seen(&self, name: &str) -> Result<usize> {
        Ok(self.world.pod_uids_seen(name).await?.len())
    }

    /// How many plans a node's status has shown so far.
    pub fn plans_seen(&self, name: &str) -> usize {
        self.world.plan_ids_seen(name).len()
    }

    /// Waits until the StatefulSet controller has written its last status for a running node.
    pub async fn until_statefulset_is_current(&self, name: &str) -> Result<StatefulSet> {
        wait_for("the status of its StatefulSet is current and its pod available", async || {
            let set = self.statefulsets().get(name).await?;
            let status = set.status.clone().unwrap_or_default();
            let is_ready = status.ready_replicas == Some(1) && status.available_replicas == Some(1);
            let is_observed = status.observed_generation == set.metadata.generation;
            // From 1.37 on the controller updates the current revision after a roll, in a write of
            // its own.
            let follows = minor() == "1.34" || status.current_revision == status.update_revision;
            Ok((is_ready && is_observed && follows).then_some(set))
        })
        .await
    }

    /// Waits until the interceptor has blocked the operator after a write, and returns that write.
    /// Otherwise waits until the node is settled and stops the operator gracefully, because it
    /// publishes its events last.
    pub async fn until_blocked(
        &mut self,
        interceptor: &Interceptor,
        node: &str,
    ) -> Result<Option<Write>> {
        let settled_and_stopped = async {
            self.settled(node).await?;
            let operator = self.operator.take().context("no operator runs")?;
            operator.stop().await
        };
        tokio::select! {
            biased;
            write = interceptor.blocked() => Ok(Some(write)),
            stopped = settled_and_stopped => stopped.map(|()| None),
        }
    }

    /// Waits until more than `before` tasks of this type were submitted to sidecars of the node.
    pub async fn until_submitted(&self, node: &str, task: &str, before: usize) -> Result<()> {
        wait_for(&format!("{node}: {task} is submitted"), async || {
            Ok((self.submitted(node, task) > before).then_some(()))
        })
        .await
    }

    /// How many tasks of this type were submitted to sidecars of the node.
    pub fn submitted(&self, node: &str, task: &str) -> usize {
        let all = self.sidecars().submissions(&self.context.namespace, node);
        all.iter().filter(|submission| submission.task_type == task).count()
    }

    /// Ends the scenario. Fails if a status named a current image that no pod had been seen
    /// running, or if a pod was shown a token that is worth anything elsewhere.
    pub async fn close(self) -> Result<()> {
        let violations = self.world.violations().await?;
        ensure!(violations.is_empty(), "{violations:?}");
        self.check_tokens().await
    }

    /// Asks the server whose tokens the pods were shown: all must be those of the powerless account,
    /// with the audience of the pod's own node if its proxy requires one.
    pub async fn check_tokens(&self) -> Result<()> {
        let namespace = self.namespace();
        // In the namespace of the operator, which is not that of every scenario.
        let account = format!(":{SIDECAR_CALLER}");
        let mut shown = BTreeSet::new();
        for call in self.sidecars().received_in(namespace) {
            let Received { node, token: Some(token), audience, .. } = call else { continue };
            let own = sidecar_audience(namespace, &node);
            let is_own = audience.as_ref().is_none_or(|audience| *audience == own);
            ensure!(is_own, "the proxy of {node} has audience {audience:?}");
            shown.insert((audience.is_some().then_some(own), token, node));
        }
        for (audience, token, node) in shown {
            let status = self.review(&token, audience).await?;
            let user = status.user.and_then(|user| user.username).unwrap_or_default();
            let is_powerless =
                user.starts_with("system:serviceaccount:") && user.ends_with(&account);
            ensure!(is_powerless, "{node} was shown a token of {user:?}");
        }
        Ok(())
    }

    /// The server's review of a token for this audience; without one, for the server's own.
    pub async fn review(&self, token: &str, audience: Option<String>) -> Result<TokenReviewStatus> {
        let audiences = audience.map(|audience| vec![audience]);
        let spec = TokenReviewSpec { audiences, token: token.to_owned() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.admin());
        let review = reviews.create(&PostParams::default(), &review).await?;
        review.status.context("the review has no status")
    }
}

/// The operator's requests to the server in one namespace.
pub struct Requests {
    log: AuditLog,
    namespace: String,
}

impl Requests {
    /// The requests logged since the last call, without watches and leases.
    pub fn read_new(&mut self) -> Result<Vec<AuditEntry>> {
        let mut entries = self.log.read_new()?;
        entries.retain(|entry| {
            entry.user == User::Operator.name()
                && entry.namespace.as_deref() == Some(self.namespace.as_str())
                && entry.verb != "watch"
                && entry.resource != "leases"
        });
        Ok(entries)
    }
}

/// Requests as readable text, one line each.
pub fn format_requests(requests: &[AuditEntry]) -> String {
    let line =
        |entry: &AuditEntry| format!("{} {} {} {}", entry.at, entry.code, entry.verb, entry.uri);
    requests.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A condition as `Status/Reason: message`.
pub fn condition_text(status: &SeiNodeStatus, kind: ConditionType) -> String {
    condition::find(&status.conditions, kind).map_or_else(
        || "absent".to_owned(),
        |condition| format!("{}/{}: {}", condition.status, condition.reason, condition.message),
    )
}

/// The spec of an RPC node with this image.
pub fn rpc(image: &str) -> Value {
    json!({ "chainId": "demo-1", "image": image, "fullNode": {} })
}

/// The spec of a validator whose keys are in these Secrets.
pub fn validator(image: &str, signing: &str, node: &str) -> Value {
    json!({ "chainId": "demo-1", "image": image, "validator": {
        "signingKey": { "secret": { "secretName": signing } },
        "nodeKey": { "secret": { "secretName": node } },
    }})
}
