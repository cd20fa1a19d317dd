//! Every mode from its creation until it runs, and the permissions that the operator uses.

use std::collections::BTreeSet;

use anyhow::Result;
use cluster_tests::scenario::{Scenario, condition_text, rpc, validator};
use cluster_tests::wait_for;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use sei_api::condition::ConditionType;
use sei_api::rbac::{RULES, SIDECAR_TOKEN_RULES};
use sei_api::{SeiNode, SeiNodeDeployment};
use sei_rig::ClaimRule;
use serde_json::{Value, json};

/// The spec of each mode, by name.
pub(crate) fn modes() -> Vec<(&'static str, Value)> {
    let node = |fields: Value| {
        let mut spec = json!({ "chainId": "demo-1", "image": "seid:v1" });
        for (key, value) in fields.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        spec
    };
    let peers = json!([{ "static": { "addresses": ["id@host:26656"] } }]);
    let ceremony = json!({ "chainId": "demo-1", "stakingAmount": "5usei",
        "accountBalance": "9usei", "index": 0 });
    vec![
        ("full", node(json!({ "fullNode": {} }))),
        ("synced", node(json!({ "fullNode": { "snapshot": { "stateSync": {} } } }))),
        ("restored", node(json!({ "fullNode": { "snapshot": { "s3": { "targetHeight": 5 } } } }))),
        ("archive", node(json!({ "archive": {} }))),
        (
            "replayer",
            node(
                json!({ "peers": peers, "replayer": { "snapshot": { "s3": { "targetHeight": 5 } } } }),
            ),
        ),
        ("observer", node(json!({ "validator": {} }))),
        ("ceremony", node(json!({ "validator": { "genesisCeremony": ceremony } }))),
        ("seed", node(json!({ "seed": { "nodeKey": { "secret": { "secretName": "p2p" } } } }))),
        (
            "bootstrap",
            node(json!({ "fullNode": { "snapshot": {
                "s3": { "targetHeight": 5 }, "bootstrapImage": "seid:v0" } } })),
        ),
    ]
}

#[tokio::test]
async fn every_mode_runs_with_no_pod_deleted_and_no_second_plan() -> Result<()> {
    let scenario = Scenario::open("modes").await?;
    scenario.create_validator_keys("signing", "p2p").await?;
    for (name, spec) in modes() {
        scenario.create(name, spec).await?;
    }
    scenario.create("signer", validator("seid:v1", "signing", "p2p")).await?;
    for name in modes().iter().map(|(name, _)| *name).chain(["signer"]) {
        scenario.settled(name).await?;
        let status = scenario.status(name).await?;
        assert_eq!(status.last_update, None, "{name}");
        // M1.4: a node that was never updated has no update condition.
        assert_eq!(
            condition_text(&status, ConditionType::NodeUpdateInProgress),
            "absent",
            "{name}"
        );
        let pods = if name == "bootstrap" { 2 } else { 1 };
        assert_eq!(scenario.pods_seen(name).await?, pods, "{name}");
    }
    scenario.close().await
}

/// Causes the operator to use every permission.
/// A fleet is created, shrinks, and deletes a node.
async fn use_fleet_permissions(scenario: &Scenario) -> Result<()> {
    let fleets: Api<SeiNodeDeployment> = Api::namespaced(scenario.admin(), scenario.namespace());
    let fleet = serde_json::from_value(json!({
        "metadata": { "name": "edge" },
        "spec": {
            "replicas": 2, "updateStrategy": { "type": "InPlace" },
            "template": { "spec": rpc("seid:v1") },
        },
    }))?;
    fleets.create(&PostParams::default(), &fleet).await?;
    let created = async || Ok(scenario.nodes().get_opt("edge-1").await?);
    wait_for("the fleet has its nodes", created).await?;
    let smaller = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    fleets.patch("edge", &PatchParams::default(), &smaller).await?;
    scenario.until_deleted("edge-1").await
}

async fn use_every_permission(scenario: &Scenario) -> Result<()> {
    scenario.create_validator_keys("signing", "p2p").await?;
    scenario.kubelet().treat_claims(scenario.namespace(), ClaimRule::BindToVolume);
    let claims: Api<PersistentVolumeClaim> =
        Api::namespaced(scenario.admin(), scenario.namespace());
    let claim = serde_json::from_value(json!({
        "metadata": { "name": "history" },
        "spec": { "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "5Gi" } } },
    }))?;
    claims.create(&PostParams::default(), &claim).await?;
    let mut imported = rpc("seid:v1");
    imported["dataVolume"] = json!({ "import": { "pvcName": "history" } });
    scenario.create("imported", imported).await?;
    scenario.create("signer", validator("seid:v1", "signing", "p2p")).await?;
    let (_, bootstrap) = modes().pop().expect("the last mode is a bootstrap");
    scenario.create("boot", bootstrap).await?;
    for name in ["imported", "signer", "boot"] {
        scenario.settled(name).await?;
    }
    use_fleet_permissions(scenario).await?;
    scenario.set_image("signer", "seid:v2").await?;
    scenario.settled("signer").await?;
    // Without a recorded template the operator compares by a dry run on the server.
    let nodes: Api<SeiNode> = scenario.nodes();
    let wiped = json!({ "status": { "podTemplateHash": null, "podTemplate": null } });
    let patch = Patch::Merge(&wiped);
    nodes.patch_status("imported", &PatchParams::default(), &patch).await?;
    scenario
        .until("imported", "its template hash is recorded again", |status| {
            status.pod_template_hash.is_some()
        })
        .await?;
    // Objects that were edited are applied again; one that the watch does not show is read.
    let (services, config_maps) = (scenario.services(), scenario.config_maps());
    let (name, params) = ("signer-rbac-proxy-config", PatchParams::default());
    let edit = Patch::Merge(json!({ "spec": { "selector": { "sei.io/node": "other" } } }));
    services.patch("signer", &params, &edit).await?;
    let edit = Patch::Merge(json!({ "data": { "config.yaml": "edited" } }));
    config_maps.patch(name, &params, &edit).await?;
    wait_for("both are restored", async || {
        let service = services.get("signer").await?.spec.and_then(|spec| spec.selector);
        let restored = service.is_some_and(|selector| selector["sei.io/node"] == "signer");
        let data = config_maps.get(name).await?.data.unwrap_or_default();
        Ok((restored && data["config.yaml"] != "edited").then_some(()))
    })
    .await?;
    let edit = Patch::Merge(json!({ "metadata": { "labels": { "sei.io/node": null } } }));
    config_maps.patch(name, &params, &edit).await?;
    wait_for("its label is restored", async || {
        let labels = config_maps.get(name).await?.metadata.labels.unwrap_or_default();
        Ok(labels.contains_key("sei.io/node").then_some(()))
    })
    .await?;
    for name in ["boot", "signer"] {
        nodes.delete(name, &DeleteParams::default()).await?;
        scenario.until_deleted(name).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_role_grants_exactly_what_is_used() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("rbac").await?;
    let mut log = scenario.plane().audit();
    scenario.operator = Some(
        cluster_tests::operator::start(
            &scenario.context,
            cluster_tests::operator::Setup::default(),
        )
        .await?,
    );
    Box::pin(use_every_permission(&scenario)).await?;
    let namespace = scenario.namespace().to_owned();
    let entries = log.read_new()?;
    let here = entries.iter().filter(|entry| {
        entry.namespace.as_deref() == Some(namespace.as_str())
            || entry.resource == "persistentvolumes"
    });
    let used: BTreeSet<(String, String)> = here
        .filter(|entry| entry.user == "sei-operator")
        .map(|entry| {
            let sub = entry.subresource.as_ref().map(|sub| format!("/{sub}")).unwrap_or_default();
            (format!("{}/{}{sub}", entry.group, entry.resource), entry.verb.clone())
        })
        .collect();
    let granted: BTreeSet<(String, String)> = [RULES, SIDECAR_TOKEN_RULES]
        .concat()
        .into_iter()
        .filter(|rule| !rule.indirect)
        .flat_map(|rule| {
            let resource = format!("{}/{}", rule.group, rule.resource);
            rule.verbs.iter().map(move |verb| (resource.clone(), (*verb).to_owned()))
        })
        .collect();
    let unused: Vec<_> = granted.difference(&used).collect();
    let ungranted: Vec<_> = used.difference(&granted).collect();
    // An event is patched only when it is repeated within minutes, which does not occur here.
    let rare = [("events.k8s.io/events", "patch")];
    let unused: Vec<_> = unused
        .into_iter()
        .filter(|(resource, verb)| !rare.contains(&(resource.as_str(), verb.as_str())))
        .collect();
    assert!(
        unused.is_empty() && ungranted.is_empty(),
        "unused {unused:?}, ungranted {ungranted:?}"
    );
    scenario.close().await
}

#[tokio::test]
async fn another_bootstrap_image_replaces_the_job_once() -> Result<()> {
    let scenario = Scenario::open("bootstrap-image").await?;
    let (_, bootstrap) = modes().pop().expect("the last mode is a bootstrap");
    scenario.sidecars().hold(scenario.namespace(), "boot", "snapshot-restore");
    scenario.create("boot", bootstrap).await?;
    scenario.until_submitted("boot", "snapshot-restore", 0).await?;
    let edit =
        json!({ "spec": { "fullNode": { "snapshot": { "bootstrapImage": "seid:v0-fixed" } } } });
    scenario.edit("boot", edit).await?;
    let jobs: Api<Job> = Api::namespaced(scenario.admin(), scenario.namespace());
    wait_for("the Job has the other image", async || {
        let job = jobs.get_opt("boot-bootstrap").await?;
        let pod = job.and_then(|job| job.spec?.template.spec);
        let image = pod.and_then(|pod| pod.containers.first()?.image.clone());
        Ok((image.as_deref() == Some("seid:v0-fixed")).then_some(()))
    })
    .await?;
    scenario.sidecars().release(scenario.namespace(), "boot", "snapshot-restore");
    scenario.settled("boot").await?;
    assert!(scenario.plans_seen("boot") <= 3, "{} plans", scenario.plans_seen("boot"));
    scenario.close().await
}
