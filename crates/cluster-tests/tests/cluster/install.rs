//! The installation, done as documented.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cluster_tests::install::{
    InstalledOperator, NAMESPACE, POD_NAME, Shell, documents, prometheus_definitions, repository,
};
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::{boot, docs, minor, test_context, test_context_on, wait_for};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, Patch, PatchParams, PostParams};
use sei_api::SeiNode;
use sei_api::names::{LEASE_NAME, sidecar_audience};
use sei_plan::platform::Platform;
use sei_rig::{ControlPlane, Lane, Options, User};
use serde_json::{Value, json};

use crate::process::get;

const CHART: &str = "charts/sei-operator";

/// Values that enable everything optional.
const EVERYTHING: &str = "--set metrics.serviceMonitor.enabled=true \
    --set metrics.prometheusRule.enabled=true --set metrics.secure.enabled=true \
    --set metrics.secure.certificateSecret=sei-operator-metrics-tls \
    --set metrics.prometheusRule.statefulSetOverride=true --set networkPolicy.enabled=true \
    --set admissionPolicy.enabled=true --set podLabelPolicy.enabled=true \
    --set 'podLabelPolicy.extraUsers={system:serviceaccount:a:b}' \
    --set sidecarToken.existingSecret=sidecar-caller \
    --set metrics.nodePodMonitor.enabled=true --set metrics.serviceMonitor.namespace=sei-operator-system \
    --set metrics.serviceMonitor.scrapeTimeout=10s --set rbac.aggregateRoles=true \
    --set dashboard.enabled=true --set dashboard.annotations.grafana_folder=Sei \
    --set 'nodeNetworkPolicy.namespaces={sei-operator-system}' \
    --set commonLabels.team=core --set commonAnnotations.example/owner=core \
    --set deploymentAnnotations.example/reload=auto --set nameOverride=sei \
    --set revisionHistoryLimit=3 --set terminationGracePeriodSeconds=20 \
    --set 'extraVolumes[0].name=more' --set 'extraVolumes[0].configMap.name=more' \
    --set 'extraVolumeMounts[0].name=more' --set 'extraVolumeMounts[0].mountPath=/more' \
    --set metrics.prometheusRule.runbookBase=https://git.example.org/sei-operator/";

/// Values that disable everything that can be left out.
const NOTHING: &str = "--set crds.install=false --set serviceAccount.create=false \
    --set rbac.create=false --set podDisruptionBudget.enabled=false";

const PLATFORM: &str = "--set platform.existingConfigMap=sei-controller-config";

fn template(arguments: &str) -> String {
    format!("helm template sei-operator {CHART} --namespace {NAMESPACE} {arguments}")
}

/// Runs the commands of a section as written.
fn follow(shell: &Shell, document: &str, heading: &str) -> Result<String> {
    shell.run(&docs::commands(document, heading)?)
}

/// The server validates every object by dry run.
#[tokio::test]
async fn the_server_accepts_every_rendered_manifest() -> Result<()> {
    let context = test_context("rendered").await?;
    let shell = Shell::on(context.plane())?;
    for definition in prometheus_definitions()? {
        context.plane().install(&serde_saphyr::from_str(&definition)?).await?;
    }
    let inline = "--set-json platform.config='{\"images\":{\"sidecar\":\"a:1\"}}'";
    for command in [
        template(PLATFORM),
        template(&format!("{PLATFORM} {EVERYTHING}")),
        template(&format!("{PLATFORM} {NOTHING}")),
        template(inline),
        template("--values config/samples/install/values.yaml"),
        "kubectl kustomize config/default".to_owned(),
        "kubectl kustomize config/samples/install".to_owned(),
        format!(
            "cp -r charts config $HOME; cd $HOME; {UNCOMMENT}
             kubectl kustomize config/samples/install"
        ),
        "for file in config/samples/*s/*.yaml config/samples/fleet.yaml; do
           echo ---; cat $file; done"
            .to_owned(),
    ] {
        let rendered = shell.run(&command)?.replace(NAMESPACE, &context.namespace);
        let objects = documents(&rendered)?.len();
        let apply = format!(
            "kubectl --namespace {} apply --server-side --force-conflicts --dry-run=server -f -",
            context.namespace
        );
        let output = shell.run_with(&apply, &rendered).context(command.clone())?;
        assert_eq!(output.lines().count(), objects, "{command}: {output}");
    }
    Ok(())
}

/// The objects by kind and name, and by namespace if it is not the operator's, without the metadata that only helm adds.
fn by_name(text: &str) -> Result<BTreeMap<String, Value>> {
    let mut objects = BTreeMap::new();
    for mut object in documents(text)? {
        let metadata = &mut object["metadata"];
        if let Some(labels) = metadata["labels"].as_object_mut() {
            for label in ["helm.sh/chart", "managed-by", "version"] {
                labels.remove(label);
                labels.remove(&format!("app.kubernetes.io/{label}"));
            }
        }
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            annotations.remove("helm.sh/resource-policy");
        }
        let is_empty = metadata["annotations"].as_object().is_none_or(serde_json::Map::is_empty);
        if let (true, Some(fields)) = (is_empty, metadata.as_object_mut()) {
            fields.remove("annotations");
        }
        // Kustomize adds a namespace to these cluster-wide objects; servers drop it.
        let is_policy = object["kind"].as_str().is_some_and(|kind| kind.starts_with("Validating"));
        if let (true, Some(fields)) = (is_policy, object["metadata"].as_object_mut()) {
            fields.remove("namespace");
        }
        let mut name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let namespace = &object["metadata"]["namespace"];
        if namespace.as_str().is_some_and(|namespace| namespace != NAMESPACE) {
            name = format!("{name} in {namespace}");
        }
        objects.insert(name.replace('"', ""), object);
    }
    Ok(objects)
}

/// Uncomments the optional parts of the two examples.
const UNCOMMENT: &str = "sed -i 's/# - /- /' config/samples/install/kustomization.yaml
    sed -i 's/# \\( *[a-zA-Z]*:\\( \\|$\\)\\)/\\1/' config/samples/install/values.yaml";

#[test]
fn helm_and_kustomize_install_the_same() -> Result<()> {
    let shell = Shell::without_cluster()?;
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    shell.run("cp -r charts config $HOME")?;
    for (prepare, parts) in [("true", 20), (UNCOMMENT, 31)] {
        let run = |command: &str| shell.run(&format!("cd $HOME; {prepare}; {command}"));
        let helm = by_name(&run(&template("--values config/samples/install/values.yaml"))?)?;
        let mut kustomize = by_name(&run("kubectl kustomize config/samples/install")?)?;
        let platform = kustomize.remove("ConfigMap sei-controller-config");
        assert!(platform.is_some(), "the overlay has no platform configuration");
        // Helm creates the namespace by a flag.
        let namespace = kustomize.remove(&format!("Namespace {NAMESPACE}"));
        assert!(namespace.is_some(), "the overlay has no namespace");
        assert_eq!(names(&helm), names(&kustomize));
        for (name, object) in &helm {
            assert_eq!(object, &kustomize[name], "{name}");
        }
        assert_eq!(helm.len(), parts, "{:?}", names(&helm));
    }
    Ok(())
}

#[test]
fn limited_to_some_namespaces_helm_and_kustomize_install_the_same() -> Result<()> {
    let shell = Shell::without_cluster()?;
    let values =
        "--values config/samples/install/values.yaml --set watchNamespaces={team-a,team-b}";
    let helm = by_name(&shell.run(&template(values))?)?;
    let mut kustomize = by_name(&shell.run("kubectl kustomize config/samples/namespaced")?)?;
    kustomize.retain(|name, _| {
        ![format!("Namespace {NAMESPACE}"), "ConfigMap sei-controller-config".to_owned()]
            .contains(name)
    });
    for (name, object) in &helm {
        assert_eq!(Some(object), kustomize.get(name), "{name}");
    }
    assert_eq!(helm.len(), kustomize.len());
    let bound: Vec<_> = helm.keys().filter(|name| name.starts_with("ClusterRoleBinding")).collect();
    let left = [
        "ClusterRoleBinding sei-operator-sidecar-proxy",
        "ClusterRoleBinding sei-operator-volumes",
    ];
    assert_eq!(bound, left);
    assert!(helm.contains_key("RoleBinding sei-operator in team-b"), "{:?}", helm.keys());
    Ok(())
}

#[test]
fn a_single_replica_has_no_disruption_budget() -> Result<()> {
    let shell = Shell::without_cluster()?;
    for (replicas, is_expected) in [(1, false), (2, true)] {
        let rendered = shell.run(&template(&format!("{PLATFORM} --set replicas={replicas}")))?;
        let kinds = documents(&rendered)?.into_iter().map(|object| object["kind"].clone());
        let has_budget = kinds.into_iter().any(|kind| kind == "PodDisruptionBudget");
        assert_eq!(has_budget, is_expected, "{replicas}");
    }
    Ok(())
}

#[test]
fn runbook_urls_follow_the_values() -> Result<()> {
    let shell = Shell::without_cluster()?;
    let rendered = shell.run(&template(&format!("{PLATFORM} {EVERYTHING}")))?;
    let urls = rendered.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
    let urls: Vec<&str> = urls.collect();
    assert!(urls.len() > 8, "{urls:?}");
    for url in urls {
        assert!(url.starts_with("https://git.example.org/sei-operator/docs/"), "{url}");
    }
    Ok(())
}

#[test]
fn optional_parts_of_the_chart_follow_the_values() -> Result<()> {
    let shell = Shell::without_cluster()?;
    let objects = by_name(&shell.run(&template(&format!("{PLATFORM} {EVERYTHING}")))?)?;
    for (name, object) in &objects {
        assert_eq!(object["metadata"]["labels"]["team"], "core", "{name}");
        assert_eq!(object["metadata"]["annotations"]["example/owner"], "core", "{name}");
    }
    let deployment = &objects["Deployment sei"];
    assert_eq!(deployment["metadata"]["annotations"]["example/reload"], "auto");
    let pod = &deployment["spec"]["template"]["spec"];
    let named = |list: &Value| list.as_array().into_iter().flatten().any(|it| it["name"] == "more");
    assert!(named(&pod["volumes"]) && named(&pod["containers"][0]["volumeMounts"]));
    let monitor = &objects["ServiceMonitor sei"]["spec"];
    assert_eq!(monitor["endpoints"][0]["scrapeTimeout"], "10s");
    assert_eq!(monitor["namespaceSelector"]["matchNames"][0], NAMESPACE);
    let ports = &objects["PodMonitor sei-nodes"]["spec"]["podMetricsEndpoints"];
    assert_eq!(
        (&ports[0]["port"], &ports[1]["port"]),
        (&json!("metrics"), &json!("cosmos-metrics"))
    );
    let dashboard = &objects["ConfigMap sei-dashboard"];
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = dashboard["data"]["sei-operator.json"].as_str().context("no dashboard")?;
    let source = fs::read_to_string(repository().join("dashboards/sei-operator.json"))?;
    assert_eq!(text.trim(), source.trim());
    let sidecars = &objects["NetworkPolicy sei-nodes"]["spec"]["ingress"][0];
    assert_eq!(sidecars["ports"], json!([{ "port": 8443 }]));
    assert_eq!(
        sidecars["from"][0]["podSelector"]["matchLabels"],
        deployment["spec"]["selector"]["matchLabels"],
    );
    let roles = ["sei-view", "sei-edit"].map(|name| &objects[&format!("ClusterRole {name}")]);
    let to = |role: &str| format!("rbac.authorization.k8s.io/aggregate-to-{role}");
    assert_eq!(roles[0]["metadata"]["labels"][to("view")], "true");
    assert_eq!(roles[1]["metadata"]["labels"][to("edit")], "true");
    Ok(())
}

/// Samples are installed together, so each must select a peer among the others.
#[test]
fn every_sample_finds_peers_among_the_others() -> Result<()> {
    let shell = Shell::without_cluster()?;
    for files in ["config/samples/nodes/*.yaml", "config/samples/fleet.yaml"] {
        let text = shell.run(&format!("for file in {files}; do echo ---; cat $file; done"))?;
        let read = |object: Value| Ok(serde_json::from_value::<SeiNode>(object)?);
        let nodes = documents(&text)?.into_iter().map(read).collect::<Result<Vec<_>>>()?;
        assert!(nodes.len() > 4, "{files}");
        for node in &nodes {
            let name = &node.metadata.name;
            let others = || nodes.iter().filter(|candidate| candidate.metadata.name != *name);
            let sources = node.spec.peers.iter().flatten();
            let selectors: Vec<_> = sources.filter_map(|source| source.label.as_ref()).collect();
            assert!(!selectors.is_empty(), "{name:?}");
            for label in selectors {
                let is_selected = |candidate: &SeiNode| {
                    let labels = candidate.metadata.labels.clone().unwrap_or_default();
                    label.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
                };
                assert!(
                    others().any(is_selected),
                    "{name:?} selects no peer by {:?}",
                    label.selector
                );
            }
        }
        let secrets = nodes.iter().filter_map(|node| {
            let key = node.spec.validator.as_ref()?.signing_key.as_ref()?;
            Some(key.secret.as_ref()?.secret_name.clone())
        });
        let secrets: Vec<String> = secrets.collect();
        let unique: std::collections::BTreeSet<&String> = secrets.iter().collect();
        assert_eq!(unique.len(), secrets.len(), "two nodes share a signing key: {secrets:?}");
    }
    Ok(())
}

/// Deleting the CRD would delete the nodes, and deleting nodes their volumes.
#[test]
fn uninstalling_by_kustomize_leaves_the_definitions() -> Result<()> {
    let shell = Shell::without_cluster()?;
    let of = |overlay: &str| by_name(&shell.run(&format!("kubectl kustomize {overlay}"))?);
    let (mut installed, uninstalled) =
        (of("config/samples/install")?, of("config/samples/uninstall")?);
    for kind in ["seinodes", "seinodedeployments"] {
        let definition = installed.remove(&format!("CustomResourceDefinition {kind}.sei.io"));
        assert!(definition.is_some(), "the CRD of {kind} is not installed");
    }
    assert_eq!(installed, uninstalled);
    Ok(())
}

#[test]
fn a_wrong_value_is_refused_by_name() -> Result<()> {
    let shell = Shell::without_cluster()?;
    for (arguments, message) in [
        ("--set replicas=0", "at '/replicas': minimum: got 0, want 1"),
        ("--set replica=2", "additional properties 'replica' not allowed"),
        ("--set image.pullPolicy=Sometimes", "at '/image/pullPolicy': value must be one of"),
        ("--set image.digest=latest", "at '/image/digest': 'latest' does not match pattern"),
        ("--set admissionPolicy.enabled=please", "at '/admissionPolicy/enabled': got string"),
        ("--set \"podLabelPolicy.extraUsers={a'b}\"", "at '/podLabelPolicy/extraUsers/0'"),
        ("--set rbac.nodeServiceAccounts[0].name=a", "missing property 'namespace'"),
        (
            "--set platform.config.images.sidecar=b",
            "set platform.config or platform.existingConfigMap, not",
        ),
        ("--set platform.config.imges.sidecar=b", "additional properties 'imges' not allowed"),
        (
            "--set platform.config.rollout.adoption=Later",
            "at '/platform/config/rollout/adoption': value must be one of 'Hold', 'Auto'",
        ),
        ("--set platform.existingConfigMap=", "set platform.config (config/samples/install/"),
    ] {
        let outcome = shell.run(&template(&format!("{PLATFORM} {arguments}")));
        let refusal = format!("{:#}", outcome.err().with_context(|| arguments.to_owned())?);
        assert!(refusal.contains(message), "{arguments}: {refusal}");
    }
    Ok(())
}

/// The schema refuses unknown values, so every value in it must be documented in values.yaml.
#[test]
fn every_value_that_may_be_set_is_explained() -> Result<()> {
    fn check(schema: &Value, values: &Value, path: &str) {
        let Some(properties) = schema["properties"].as_object() else { return };
        for (name, schema) in properties {
            let path = format!("{path}.{name}");
            // Exceptions: a value of helm itself, a rarely used field of Kubernetes, and the keys of
            // the platform configuration, which docs/configuration.md explains.
            if [".global", ".resources.claims", ".platform.config"].contains(&path.as_str()) {
                continue;
            }
            assert!(values.get(name).is_some(), "values.yaml has no {path}");
            check(schema, &values[name], &path);
        }
    }
    let read = |name: &str| fs::read_to_string(repository().join(CHART).join(name));
    let values: Value = serde_saphyr::from_str(&read("values.yaml")?)?;
    let schema: Value = serde_json::from_str(&read("values.schema.json")?)?;
    check(&schema, &values, "");
    Ok(())
}

#[test]
fn the_sample_platform_is_complete() -> Result<()> {
    let sample = fs::read_to_string(repository().join("config/samples/install/platform.yaml"))?;
    Platform::parse(&sample, "platform.yaml")?;
    Ok(())
}

/// The server itself enforces Pod Security.
#[tokio::test]
async fn the_restricted_profile_admits_the_operators_pod() -> Result<()> {
    let context = test_context("restricted").await?;
    let shell = Shell::on(context.plane())?;
    let label =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<Namespace> = Api::all(context.admin.clone());
    namespaces.patch(&context.namespace, &PatchParams::default(), &Patch::Merge(&label)).await?;
    let rendered = shell.run(&template(PLATFORM))?;
    let deployment =
        documents(&rendered)?.into_iter().find(|object| object["kind"] == "Deployment");
    let template = deployment.context("there is no Deployment")?["spec"]["template"].clone();
    let pods: Api<Pod> = Api::namespaced(context.admin.clone(), &context.namespace);
    let create = async |mut template: Value| {
        template["metadata"]["name"] = json!("operator");
        let pod: Pod = serde_json::from_value(template)?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        anyhow::Ok(pods.create(&dry, &pod).await)
    };
    create(template.clone()).await??;
    let mut looser = template;
    looser["spec"]["containers"][0]["securityContext"]["capabilities"] = json!({});
    let refusal = create(looser).await?.err().context("a looser pod was accepted")?.to_string();
    assert!(refusal.contains("violates PodSecurity"), "{refusal}");
    Ok(())
}

fn set_of(name: &str, key: &str, replicas: i32) -> Value {
    json!({ "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": { "name": name, "labels": { key: name } },
        "spec": { "replicas": replicas, "serviceName": name,
            "selector": { "matchLabels": { key: name } },
            "template": { "metadata": { "labels": { key: name } },
                "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }] } } } })
}

/// Needs its own plane: the policy applies to the whole cluster, and other tests violate it.
#[tokio::test]
async fn every_way_to_request_a_second_replica_is_refused() -> Result<()> {
    let plane = boot().await?;
    let shell = Shell::on(&plane)?;
    let only = "--set admissionPolicy.enabled=true --show-only templates/admission-policy.yaml";
    let policy = shell.run(&template(&format!("{PLATFORM} {only}")))?;
    shell.run_with("kubectl apply -f -", &policy)?;
    let sets: Api<StatefulSet> = Api::namespaced(plane.client(User::Admin)?, "default");
    let create = async |object: Value| {
        let object: StatefulSet = serde_json::from_value(object)?;
        anyhow::Ok(sets.create(&PostParams::default(), &object).await)
    };
    create(set_of("node", "sei.io/node", 1)).await??;
    create(set_of("foreign", "app", 2)).await??;
    let params = PatchParams::default();
    let replicas = |count: i32| Patch::Merge(json!({ "spec": { "replicas": count } }));
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let refused = |result: Result<(), kube::Error>| match result {
        Err(kube::Error::Api(refusal)) => refusal.message.contains("has at most one replica"),
        _ => false,
    };
    wait_for("the policy is in force", async || {
        let result = sets.patch("node", &dry, &replicas(2)).await.map(drop);
        Ok(refused(result).then_some(()))
    })
    .await?;
    assert!(refused(sets.patch("node", &params, &replicas(2)).await.map(drop)));
    assert!(refused(sets.patch_scale("node", &params, &replicas(2)).await.map(drop)));
    assert!(refused(create(set_of("new", "sei.io/node", 2)).await?.map(drop)));
    // Removing the label, in the same write or before, does not bypass the policy.
    let label = json!({ "labels": { "sei.io/node": null } });
    let both = Patch::Merge(json!({ "metadata": label, "spec": { "replicas": 2 } }));
    assert!(refused(sets.patch("node", &params, &both).await.map(drop)));
    sets.patch("node", &params, &Patch::Merge(json!({ "metadata": label }))).await?;
    assert!(refused(sets.patch_scale("node", &params, &replicas(2)).await.map(drop)));
    for count in [0, 1] {
        sets.patch("node", &params, &replicas(count)).await?;
        sets.patch_scale("node", &params, &replicas(1 - count)).await?;
    }
    sets.patch("foreign", &params, &replicas(3)).await?;
    sets.patch_scale("foreign", &params, &replicas(4)).await?;
    Ok(())
}

fn labelled_pod(name: &str, labels: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "labels": labels },
        "spec": { "containers": [{ "name": "seid", "image": "seid:v1" }] } })
}

/// Needs its own plane: the policy applies to the whole cluster.
#[tokio::test]
async fn labels_of_node_pods_are_set_for_nodes_only() -> Result<()> {
    let lane = Arc::new(Lane::start(boot().await?)?);
    let shell = Shell::on(lane.plane())?;
    // The users of this control plane are not those of an installation.
    let only = "--set podLabelPolicy.enabled=true --show-only templates/pod-label-policy.yaml \
        --set podLabelPolicy.extraUsers={controller-manager,sei-operator}";
    let policy = shell.run(&template(&format!("{PLATFORM} {only}")))?;
    shell.run_with("kubectl apply -f -", &policy)?;
    let context = test_context_on(lane.clone(), "labels").await?;
    let mut scenario = Scenario::open_on(context);
    let pods = scenario.pods();
    let create = async |labels: &Value, dry_run| {
        let pod: Pod = serde_json::from_value(labelled_pod("mine", labels))?;
        anyhow::Ok(pods.create(&PostParams { dry_run, ..PostParams::default() }, &pod).await)
    };
    let refused = |result: Result<(), kube::Error>| match result {
        Err(kube::Error::Api(refusal)) => refusal.message.contains("admin may not set them"),
        _ => false,
    };
    let labels = [json!({ "sei.io/node": "rpc" }), json!({ "sei.io/dedicated-node": "true" })];
    wait_for("the policy is in force", async || {
        let result = create(&labels[0], true).await?.map(drop);
        Ok(refused(result).then_some(()))
    })
    .await?;
    create(&json!({ "app": "mine" }), false).await??;
    let params = PatchParams::default();
    for labels in &labels {
        assert!(refused(create(labels, false).await?.map(drop)), "{labels}");
        // Neither later, nor by a write of the status.
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        assert!(refused(pods.patch("mine", &params, &patch).await.map(drop)), "{labels}");
        assert!(refused(pods.patch_status("mine", &params, &patch).await.map(drop)), "{labels}");
    }
    let set = serde_json::from_value(set_of("mine", "sei.io/node", 1))?;
    let set = scenario.statefulsets().create(&PostParams::default(), &set).await;
    assert!(refused(set.map(drop)), "its controller would create the pod");

    // Nodes start, are updated and recover.
    scenario.start_operator(10).await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.set_image("rpc", "seid:v2").await?;
    scenario.settled("rpc").await?;
    let before = scenario.uid("rpc").await?;
    scenario.evict("rpc").await?;
    scenario.until_pod("rpc", "it is another pod", |pod| pod.uid != before).await?;
    scenario.settled("rpc").await?;
    // What does not set a label may be written.
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "team": "a" } } }));
    pods.patch("rpc-0", &params, &patch).await?;
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "sei.io/node": "other" } } }));
    assert!(refused(pods.patch("rpc-0", &params, &patch).await.map(drop)), "another value");
    scenario.close().await
}

/// A cluster without the operator's objects.
async fn bare_lane() -> Result<Arc<Lane>> {
    let folder = sei_rig::bin_dir(&minor())?;
    let plane = ControlPlane::boot(&folder, Options::default()).await?;
    Ok(Arc::new(Lane::start(plane)?))
}

/// The status of a review that this user requests.
fn review(shell: &Shell, user: &str, kind: &str, spec: &Value) -> Result<Value> {
    let group = if kind == "TokenReview" { "authentication" } else { "authorization" };
    let request = json!({ "apiVersion": format!("{group}.k8s.io/v1"), "kind": kind, "spec": spec });
    let command = format!("kubectl create --as={user} --validate=false --output=json --filename=-");
    let response: Value = serde_json::from_str(&shell.run_with(&command, &request.to_string())?)?;
    Ok(response["status"].clone())
}

/// A user who may request any review.
const ADMIN: &str = "admin --as-group=system:masters";

/// Whether a user may call the sidecar of a node, by the same review that its proxy requests. `auth
/// can-i` does not work here: it resolves kinds, and this kind is not installed.
fn may_call_sidecars(
    shell: &Shell,
    reviewer: &str,
    caller: &Value,
    namespace: &str,
) -> Result<bool> {
    for verb in ["create", "get"] {
        let mut spec = json!({ "resourceAttributes": { "group": "sei.io", "verb": verb,
            "resource": "seinodetasks", "namespace": namespace, "name": "rpc-0" } });
        spec["user"] = caller["username"].clone();
        spec["groups"] = caller["groups"].clone();
        if review(shell, reviewer, "SubjectAccessReview", &spec)?["allowed"] != true {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that the pod's service account exists, which this control plane does not enforce, and
/// that the proxy under that account may review the caller's token and permissions.
fn check_proxy_admits(shell: &Shell, token: &str) -> Result<()> {
    let of = "kubectl --namespace=pacific-1 get";
    let account =
        shell.run(&format!("{of} pod rpc-0-0 -o jsonpath={{.spec.serviceAccountName}}"))?;
    shell.run(&format!("{of} serviceaccount {account}"))?;
    let account = format!("system:serviceaccount:pacific-1:{account}");
    let spec = json!({ "token": token, "audiences": [sidecar_audience("pacific-1", "rpc-0")] });
    let reviewed = review(shell, &account, "TokenReview", &spec)?;
    assert_eq!(reviewed["authenticated"], true, "{reviewed}");
    assert!(may_call_sidecars(shell, &account, &reviewed["user"], "pacific-1")?, "{reviewed}");
    Ok(())
}

/// Checks that the installed operator leads in its namespace, starts a node and updates its image,
/// with the installed permissions and image, and by the documented commands.
async fn check_operator_runs_a_node(lane: &Lane, shell: Shell) -> Result<()> {
    let plane = lane.plane();
    let operator = InstalledOperator::start(plane, &shell)?;
    let is_alive = wait_for("the operator's health probe succeeds", async || {
        let response = get(operator.health, "/healthz").await.unwrap_or_default();
        Ok(response.starts_with("HTTP/1.1 200").then_some(()))
    });
    is_alive.await.with_context(|| operator.log())?;
    let leases: Api<Lease> = Api::namespaced(plane.client(User::Admin)?, NAMESPACE);
    let is_leader = wait_for("the operator leads", async || {
        let holder =
            leases.get_opt(LEASE_NAME).await?.and_then(|lease| lease.spec?.holder_identity);
        Ok(holder.filter(|holder| holder == POD_NAME).map(drop))
    });
    is_leader.await.with_context(|| operator.log())?;
    lane.kubelet().sidecars().demand_token("pacific-1", None);
    // The shell must not block the kubelet, which runs in this process.
    let followed = tokio::task::spawn_blocking(move || {
        let output = follow(&shell, "docs/install.md", "A first node")?;
        anyhow::Ok((output, shell))
    });
    let (output, shell) = followed.await?.with_context(|| operator.log())?;
    let received = lane.kubelet().sidecars().received("pacific-1", "rpc-0");
    let tokens: BTreeSet<String> = received.into_iter().filter_map(|call| call.token).collect();
    assert!(!tokens.contains(&operator.token), "the operator's own token was shown to a pod");
    let token = tokens.into_iter().next().context("the sidecar was shown no token")?;
    tokio::task::spawn_blocking(move || check_proxy_admits(&shell, &token)).await??;
    assert!(output.contains("rpc-0"), "{output}");
    let nodes: Api<SeiNode> = Api::namespaced(plane.client(User::Admin)?, "pacific-1");
    let image = nodes.get("rpc-0").await?.status.and_then(|status| status.current_image);
    assert_eq!(image.as_deref(), Some("registry.example.org/seid:v6.6.0"));
    let metrics = get(operator.metrics, "/metrics").await?;
    assert!(metrics.contains("sei_controller_seinode_phase"), "{metrics}");
    Ok(())
}

#[tokio::test]
async fn installed_by_helm_the_operator_runs_a_node_with_its_own_rights() -> Result<()> {
    let lane = bare_lane().await?;
    let shell = Shell::on(lane.plane())?;
    follow(&shell, "docs/install.md", "With helm")?;
    check_operator_runs_a_node(&lane, Shell::on(lane.plane())?).await?;
    follow(&shell, "docs/install.md", "Upgrade")?;
    let get = format!("kubectl --namespace {NAMESPACE} get deployment sei-operator -o json");
    let deployment: Value = serde_json::from_str(&shell.run(&get)?)?;
    let image = &deployment["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(image, "registry.example.org/sei-operator:0.1.0");
    follow(&shell, "docs/install.md", "Refuse a second replica")?;
    let policies = shell.run("kubectl get validatingadmissionpolicies --output=name")?;
    assert!(policies.contains("sei-operator-one-replica"), "{policies}");
    follow(&shell, "docs/security.md", "One token for all sidecars")?;
    let container = shell.run(&format!("{get} | grep sidecar"))?;
    assert!(container.contains("--sidecar-token-file=/var/run/secrets/sidecar/token"));
    let caller = json!({ "username": format!("system:serviceaccount:{NAMESPACE}:sidecar-caller") });
    assert!(may_call_sidecars(&shell, ADMIN, &caller, "pacific-1")?);
    // An uninstallation keeps the nodes and their objects.
    follow(&shell, "docs/install.md", "Uninstall with helm")?;
    check_only_nodes_remain(&shell)
}

fn check_only_nodes_remain(shell: &Shell) -> Result<()> {
    let kinds = "deployments,clusterroles,clusterrolebindings,crds,seinodes";
    let remaining = shell.run(&format!("kubectl get {kinds} --all-namespaces -o name"))?;
    assert!(!remaining.contains("sei-operator"), "{remaining}");
    let definition = "customresourcedefinition.apiextensions.k8s.io/seinodes.sei.io";
    assert!(remaining.contains(definition), "{remaining}");
    assert!(remaining.contains("seinode.sei.io/rpc-0"), "{remaining}");
    Ok(())
}

#[tokio::test]
async fn installed_by_kustomize_the_operator_runs_a_node_with_its_own_rights() -> Result<()> {
    let lane = bare_lane().await?;
    let shell = Shell::on(lane.plane())?;
    follow(&shell, "docs/install.md", "With kustomize")?;
    check_operator_runs_a_node(&lane, Shell::on(lane.plane())?).await?;
    follow(&shell, "docs/install.md", "Uninstall with kustomize")?;
    check_only_nodes_remain(&shell)
}

/// Uses the Deployment and the objects of the Go operator, without its program.
#[tokio::test]
async fn a_takeover_and_its_rollback_work_as_documented() -> Result<()> {
    const VARIABLES: &[(&str, &str)] = &[
        ("NAMESPACE", "go-system"),
        ("DEPLOYMENT", "go-manager"),
        ("NODE_NAMESPACE", "default"),
        ("NODE", "val"),
    ];
    let plane = boot().await?;
    let shell = Shell::on(&plane)?.with(VARIABLES);
    shell.run(
        "kubectl create namespace go-system
         kubectl --namespace go-system create deployment go-manager --image=go:v1
         kubectl --namespace go-system create configmap sei-controller-config \\
           --from-file=config.yaml=config/samples/install/platform.yaml",
    )?;
    let sets: Api<StatefulSet> = Api::namespaced(plane.client(User::Admin)?, "default");
    for name in ["val", "other"] {
        let mut set = set_of(name, "sei.io/node", 1);
        set["spec"]["updateStrategy"] = json!({ "type": "OnDelete" });
        sets.create(&PostParams::default(), &serde_json::from_value(set)?).await?;
    }
    check_unserved_kinds_are_found(&shell).await?;
    // The role exists already on this plane, and helm does not change objects of others.
    shell.run("kubectl delete clusterrole,clusterrolebinding sei-operator")?;

    let peer =
        "kubectl --namespace go-system get deployment go-manager -o jsonpath={.spec.replicas}";
    follow(&shell, "docs/takeover.md", "Take over")?;
    assert_eq!(shell.run(peer)?, "0");
    let deployments = shell.run("kubectl --namespace go-system get deployments -o name")?;
    assert!(deployments.contains("deployment.apps/sei-operator"), "{deployments}");
    follow(&shell, "docs/takeover.md", "The first minutes")?;
    follow(&shell, "docs/takeover.md", "Go back")?;
    assert_eq!(shell.run(peer)?, "1");
    let strategy = async |name: &str| {
        anyhow::Ok(sets.get(name).await?.spec.update_strategy.and_then(|strategy| strategy.type_))
    };
    follow(&shell, "docs/takeover.md", "What OnDelete leaves behind")?;
    assert_eq!(strategy("val").await?.as_deref(), Some("RollingUpdate"));
    assert_eq!(strategy("other").await?.as_deref(), Some("OnDelete"));
    follow(&shell, "docs/takeover.md", "All of them at once")?;
    assert_eq!(strategy("other").await?.as_deref(), Some("RollingUpdate"));
    Ok(())
}

/// Checks that the documented command finds objects of kinds that the operator does not serve, and
/// that it is no error if their CRDs are not installed.
async fn check_unserved_kinds_are_found(shell: &Shell) -> Result<()> {
    assert_eq!(follow(shell, "docs/takeover.md", "Before")?, "");
    let definition = json!({ "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition", "metadata": { "name": "seinetworks.sei.io" },
        "spec": { "group": "sei.io", "scope": "Namespaced",
            "names": { "kind": "SeiNetwork", "plural": "seinetworks" },
            "versions": [{ "name": "v1alpha1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object" } } }] } });
    shell.run_with("kubectl apply -f -", &definition.to_string())?;
    let network = "{apiVersion: sei.io/v1alpha1, kind: SeiNetwork, metadata: {name: demo}}";
    wait_for("the kind is served", async || Ok(shell.run_with("kubectl apply -f -", network).ok()))
        .await?;
    assert_eq!(follow(shell, "docs/takeover.md", "Before")?, "seinetwork.sei.io/demo\n");
    shell.run("kubectl delete crd seinetworks.sei.io").map(drop)
}

#[tokio::test]
async fn the_sample_roles_allow_what_they_document() -> Result<()> {
    let plane = boot().await?;
    let shell = Shell::on(&plane)?;
    let output = follow(&shell, "docs/security.md", "Roles")?;
    assert!(output.ends_with("yes\n"), "{output}");
    shell.run(
        "kubectl create clusterrolebinding callers --clusterrole=sei-sidecar-caller \\
           --group=sidecar-callers",
    )?;
    for (group, is_allowed, action) in [
        ("node-authors", true, "delete seinodes"),
        ("node-authors", true, "create seinodedeployments"),
        ("node-authors", true, "get pods --subresource=log"),
        ("node-authors", false, "update seinodes --subresource=status"),
        ("node-authors", false, "get secrets"),
        ("node-authors", false, "delete pods"),
        ("node-authors", false, "patch statefulsets --subresource=scale"),
        ("node-authors", false, "create seinodes --namespace=default"),
        ("node-readers", true, "watch seinodes"),
        ("node-readers", true, "list events.events.k8s.io"),
        ("node-readers", false, "patch seinodes"),
        ("node-readers", false, "list secrets"),
        ("sidecar-callers", false, "get seinodes"),
        ("sidecar-callers", false, "get secrets"),
    ] {
        let command = format!(
            "kubectl --namespace=team-a auth can-i {action} --as=anna --as-group={group} || true"
        );
        let allowed = shell.run(&command)?;
        assert_eq!(allowed.trim(), if is_allowed { "yes" } else { "no" }, "{group}: {action}");
    }
    for (group, is_allowed) in [("node-authors", false), ("sidecar-callers", true)] {
        let caller = json!({ "username": "anna", "groups": [group] });
        assert_eq!(may_call_sidecars(&shell, ADMIN, &caller, "team-a")?, is_allowed, "{group}");
    }
    Ok(())
}
