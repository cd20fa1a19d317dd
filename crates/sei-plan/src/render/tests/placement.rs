//! Where a pod runs and what it uses, by the platform and by the node.

use expect_test::{Expect, expect};
use serde_json::json;

use super::*;
use crate::testing::node_from;

#[track_caller]
fn check(name: &str, on: &str, expect: &Expect) {
    let template = template_on(name, on);
    let pod = &template["spec"];
    let lines = [
        ("annotations", &template["metadata"]["annotations"]),
        ("selector", &pod["nodeSelector"]),
        ("tolerations", &pod["tolerations"]),
        ("affinity", &pod["affinity"]["nodeAffinity"]),
        ("priority", &pod["priorityClassName"]),
        ("pull secrets", &pod["imagePullSecrets"]),
        ("resources", &find(&template, "seid")["resources"]),
    ];
    let text: Vec<String> =
        lines.iter().map(|(what, value)| format!("{what}: {value}\n")).collect();
    expect.assert_eq(&text.concat());
}

#[test]
fn a_node_without_settings_is_placed_by_the_platform() {
    check(
        "rpc-genesis",
        "minimal",
        &expect![[r#"
        annotations: {"karpenter.sh/do-not-disrupt":"true"}
        selector: null
        tolerations: [{"effect":"NoSchedule","key":"sei.io/workload","value":"pool"}]
        affinity: {"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"karpenter.sh/nodepool","operator":"In","values":["pool"]}]}]}}
        priority: null
        pull secrets: null
        resources: {"limits":{"memory":"256Gi"},"requests":{"cpu":"32","memory":"256Gi"}}
    "#]],
    );
    check(
        "rpc-genesis",
        "placed",
        &expect![[r#"
        annotations: {"example.org/owner":"chain-team","example.org/profile":"light","karpenter.sh/do-not-disrupt":"true"}
        selector: {"kubernetes.io/arch":"amd64","topology.kubernetes.io/zone":"eu-west-1b"}
        tolerations: [{"effect":"NoSchedule","key":"example.org/chain","value":"chain"},{"key":"example.org/spot","operator":"Exists"},{"effect":"PreferNoSchedule","operator":"Exists"}]
        affinity: {"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"cloud.example.org/pool","operator":"In","values":["chain"]}]}]}}
        priority: "chain"
        pull secrets: [{"name":"registry-a"},{"name":"registry.mirror"}]
        resources: {"limits":{"memory":"256Gi"},"requests":{"cpu":"32","memory":"256Gi"}}
    "#]],
    );
}

#[test]
fn settings_of_a_node_add_to_those_of_the_platform_and_take_precedence() {
    check(
        "scheduled",
        "minimal",
        &expect![[r#"
        annotations: {"example.org/profile":"heavy","karpenter.sh/do-not-disrupt":"true"}
        selector: {"topology.kubernetes.io/zone":"eu-west-1a"}
        tolerations: [{"effect":"NoSchedule","key":"sei.io/workload","value":"pool-b"},{"effect":"NoExecute","key":"example.org/maintenance","operator":"Exists","tolerationSeconds":300},{"effect":"NoSchedule","key":"example.org/chain","value":"pool-b"}]
        affinity: {"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"karpenter.sh/nodepool","operator":"In","values":["pool-b"]}]}]}}
        priority: "chain-critical"
        pull secrets: [{"name":"registry-a"},{"name":"registry-b"}]
        resources: {"limits":{"memory":"512Gi"},"requests":{"cpu":"4","ephemeral-storage":"10Gi"}}
    "#]],
    );
    check(
        "scheduled",
        "placed",
        &expect![[r#"
        annotations: {"example.org/owner":"chain-team","example.org/profile":"heavy","karpenter.sh/do-not-disrupt":"true"}
        selector: {"kubernetes.io/arch":"amd64","topology.kubernetes.io/zone":"eu-west-1a"}
        tolerations: [{"effect":"NoSchedule","key":"example.org/chain","value":"pool-b"},{"key":"example.org/spot","operator":"Exists"},{"effect":"PreferNoSchedule","operator":"Exists"},{"effect":"NoExecute","key":"example.org/maintenance","operator":"Exists","tolerationSeconds":300}]
        affinity: {"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"cloud.example.org/pool","operator":"In","values":["pool-b"]}]}]}}
        priority: "chain-critical"
        pull secrets: [{"name":"registry-a"},{"name":"registry.mirror"},{"name":"registry-b"}]
        resources: {"limits":{"memory":"512Gi"},"requests":{"cpu":"4","ephemeral-storage":"10Gi"}}
    "#]],
    );
}

#[test]
fn without_pools_no_machine_is_excluded() {
    let mut platform = platform("example");
    platform.scheduling.nodepool_affinity = crate::platform::PoolAffinity::Off;
    let template = render_template(&inputs("rpc-genesis"), &platform).unwrap();
    let affinity = template.spec.unwrap().affinity.unwrap();
    assert_eq!(affinity.node_affinity, None);
    assert!(affinity.pod_anti_affinity.is_some(), "dedicated machines stay dedicated");
}

#[test]
fn a_node_spreads_its_pod_and_sets_its_grace_period() {
    let render = |fields: Value| {
        let mut json = serde_json::to_value(node("rpc-genesis")).unwrap();
        let own = fields.as_object().unwrap().clone();
        json["spec"].as_object_mut().unwrap().extend(own);
        let inputs = TemplateInputs::of(&node_from(json)).unwrap();
        let template = render_template(&inputs, &platform("minimal")).unwrap();
        let pod = serde_json::to_value(template.spec).unwrap();
        (pod["terminationGracePeriodSeconds"].clone(), pod["topologySpreadConstraints"].clone())
    };
    assert_eq!(render(json!({})), (json!(120), Value::Null));
    let spread = json!([{
        "maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": { "matchLabels": { "team": "edge" } },
    }]);
    let fields = json!({
        "terminationGracePeriodSeconds": 600,
        "scheduling": { "topologySpreadConstraints": spread },
    });
    assert_eq!(render(fields), (json!(600), spread));
}

/// The pod of the Job is placed like the node's own: it fills the same volume.
#[test]
fn the_bootstrap_pod_is_placed_like_the_node() {
    let mut spec = serde_json::to_value(node("rpc-bootstrap")).unwrap();
    let scheduled = serde_json::to_value(node("scheduled")).unwrap();
    for field in ["scheduling", "podAnnotations", "resources", "imagePullSecrets"] {
        spec["spec"][field] = scheduled["spec"][field].clone();
    }
    let node = node_from(spec);
    let (inputs, on) = (TemplateInputs::of(&node).unwrap(), platform("placed"));
    let bootstrap = Bootstrap::of(&node).unwrap();
    let job = render_bootstrap_job(&inputs, &bootstrap, &on, &Owner::of(&node).unwrap()).unwrap();
    let job = serde_json::to_value(job.spec.unwrap().template).unwrap();
    let own = serde_json::to_value(render_template(&inputs, &on).unwrap()).unwrap();
    assert_eq!(job["metadata"]["annotations"], own["metadata"]["annotations"]);
    for field in ["nodeSelector", "tolerations", "priorityClassName", "imagePullSecrets"] {
        assert!(!own["spec"][field].is_null(), "{field}");
        assert_eq!(job["spec"][field], own["spec"][field], "{field}");
    }
    assert_eq!(job["spec"]["affinity"]["nodeAffinity"], own["spec"]["affinity"]["nodeAffinity"]);
    assert_eq!(find(&job, "seid")["resources"], find(&own, "seid")["resources"]);
}

#[test]
fn the_garbage_collector_of_a_seed_follows_its_own_limit() {
    let limit = |resources: Value| {
        let mut json = serde_json::to_value(node("seed-a")).unwrap();
        json["spec"]["resources"] = resources;
        let inputs = TemplateInputs::of(&node_from(json)).unwrap();
        let template = render_template(&inputs, &platform("minimal")).unwrap();
        let template = serde_json::to_value(template).unwrap();
        let env = find(&template, "seid")["env"].as_array().unwrap().clone();
        env.iter().find(|env| env["name"] == "GOMEMLIMIT").map(|env| env["value"].clone())
    };
    assert_eq!(limit(json!({ "limits": { "memory": "100" } })), Some(json!("87B")));
    assert_eq!(limit(json!({ "requests": { "memory": "1Gi" } })), None);
    assert_eq!(limit(json!({ "requests": { "cpu": "2" } })), Some(json!("1868310773B")));
}

#[test]
fn class_and_size_of_a_volume_are_those_of_the_node() {
    let claim = |name: &str| {
        let node = node(name);
        let desired =
            crate::desired::render_desired(&node, &platform("minimal"), &[], &[]).unwrap();
        (desired.claim.map(|claim| claim.json()["spec"].clone()), desired.claim_size)
    };
    let (scheduled, size) = claim("scheduled");
    let scheduled = scheduled.unwrap();
    assert_eq!(scheduled["storageClassName"], "local-nvme");
    assert_eq!(scheduled["resources"]["requests"]["storage"], "3000Gi");
    assert_eq!(size, "3000Gi");
    let (platforms, size) = claim("rpc-genesis");
    assert_eq!(platforms.unwrap()["storageClassName"], "gp3-10k-750");
    assert_eq!(size, "2000Gi");
}
