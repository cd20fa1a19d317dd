//! Nodes that are placed by their own spec, on real servers.

use anyhow::{Context as _, Result};
use cluster_tests::scenario::{Scenario, rpc};
use sei_api::status::Cause;
use serde_json::{Value, json};

use crate::fleets;

/// A priority class that every cluster has.
const PRIORITY: &str = "system-node-critical";

fn spread() -> Value {
    json!([{
        "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "sei.io/chain": "demo-1" } },
    }])
}

fn placed() -> Value {
    let mut spec = rpc("seid:v1");
    spec["podAnnotations"] = json!({ "example.org/profile": "heavy" });
    spec["scheduling"] = json!({
        "nodePool": "pool-b",
        "nodeSelector": { "topology.kubernetes.io/zone": "a" },
        "tolerations": [{ "key": "example.org/spot", "operator": "Exists" }],
        "priorityClassName": PRIORITY,
        "topologySpreadConstraints": spread(),
    });
    spec["terminationGracePeriodSeconds"] = json!(60);
    spec["resources"] = json!({ "requests": { "cpu": "1", "memory": "1Gi" } });
    spec["imagePullSecrets"] = json!([{ "name": "registry" }]);
    spec["dataVolume"] = json!({ "storageClassName": "local", "size": "70Gi" });
    spec
}

fn json_of(value: impl serde::Serialize) -> Result<Value> {
    Ok(serde_json::to_value(value)?)
}

#[tokio::test]
async fn a_pod_is_placed_by_the_spec_of_its_node_and_rolls_with_it() -> Result<()> {
    let scenario = Scenario::open("placement").await?;
    scenario.run("rpc", placed()).await?;
    scenario.settled("rpc").await?;
    assert_eq!(scenario.pods_seen("rpc").await?, 1, "what the server adds is no drift");
    let pod = json_of(scenario.pods().get("rpc-0").await?)?;
    assert_eq!(pod["metadata"]["annotations"]["example.org/profile"], "heavy");
    let spec = &pod["spec"];
    assert_eq!(spec["nodeSelector"], json!({ "topology.kubernetes.io/zone": "a" }));
    assert_eq!(spec["priorityClassName"], PRIORITY);
    assert_eq!(spec["imagePullSecrets"], json!([{ "name": "registry" }]));
    assert_eq!(spec["topologySpreadConstraints"], spread());
    assert_eq!(spec["terminationGracePeriodSeconds"], 60);
    let tolerations = spec["tolerations"].as_array().context("no tolerations")?;
    assert!(tolerations.contains(&json!({ "key": "example.org/spot", "operator": "Exists" })));
    let seid = spec["containers"][0]["resources"].clone();
    assert_eq!(seid, json!({ "requests": { "cpu": "1", "memory": "1Gi" } }));
    let claim = json_of(scenario.claims().get("data-rpc").await?.spec)?;
    assert_eq!(claim["storageClassName"], "local");
    assert_eq!(claim["resources"]["requests"]["storage"], "70Gi");

    // The volume keeps its size, and the pod stays.
    let before = scenario.uid("rpc").await?;
    scenario.edit("rpc", json!({ "spec": { "dataVolume": { "size": "90Gi" } } })).await?;
    let generation = scenario.node("rpc").await?.metadata.generation;
    scenario
        .until("rpc", "the edit is observed", |status| status.observed_generation == generation)
        .await?;
    scenario.settled("rpc").await?;
    let claim = json_of(scenario.claims().get("data-rpc").await?.spec)?;
    assert_eq!(claim["resources"]["requests"]["storage"], "70Gi");
    assert_eq!(scenario.uid("rpc").await?, before);

    let zone = json!({ "nodeSelector": { "topology.kubernetes.io/zone": "b" } });
    scenario.edit("rpc", json!({ "spec": { "scheduling": zone } })).await?;
    scenario.until_pod("rpc", "is another pod", |pod| pod.uid != before && pod.ready).await?;
    scenario.settled("rpc").await?;
    let pod = json_of(scenario.pods().get("rpc-0").await?)?;
    assert_eq!(pod["spec"]["nodeSelector"], json!({ "topology.kubernetes.io/zone": "b" }));
    let last = scenario.status("rpc").await?.last_update.context("no update")?;
    assert_eq!(last.cause, Cause::Spec);

    let before = scenario.uid("rpc").await?;
    scenario.edit("rpc", json!({ "spec": { "terminationGracePeriodSeconds": null } })).await?;
    scenario.until_pod("rpc", "is another pod", |pod| pod.uid != before && pod.ready).await?;
    scenario.settled("rpc").await?;
    let pod = json_of(scenario.pods().get("rpc-0").await?)?;
    assert_eq!(pod["spec"]["terminationGracePeriodSeconds"], 120, "as without the field");
    scenario.close().await
}

#[tokio::test]
async fn the_template_of_a_fleet_places_its_nodes() -> Result<()> {
    let scenario = Scenario::open("fleet-placement").await?;
    let mut fleet = fleets::manifest(2, &json!({}));
    let template = &mut fleet["spec"]["template"]["spec"];
    for field in ["scheduling", "resources", "dataVolume"] {
        template[field] = placed()[field].clone();
    }
    fleets::create(&scenario, fleet).await?;
    fleets::until_ready(&scenario, 2).await?;
    for name in ["edge-0", "edge-1"] {
        let pod = json_of(scenario.pods().get(&format!("{name}-0")).await?)?;
        assert_eq!(pod["spec"]["nodeSelector"], json!({ "topology.kubernetes.io/zone": "a" }));
        let claim = json_of(scenario.claims().get(&format!("data-{name}")).await?.spec)?;
        assert_eq!(claim["storageClassName"], "local");
    }
    scenario.close().await
}
