//! StatefulSet, Service, claim and proxy configuration.

use serde_json::json;

use super::*;

fn json_of(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

// T7
#[test]
fn a_paused_node_has_no_replicas_and_the_same_template() {
    let (inputs, owner) = (inputs("rpc-dedicated"), owner("rpc-dedicated"));
    let platform = platform("example");
    let set = |replicas| json_of(render_statefulset(&inputs, &platform, &owner, replicas).unwrap());
    assert_eq!(set(0)["spec"]["replicas"], 0);
    assert_eq!(set(1)["spec"]["replicas"], 1);
    assert_eq!(set(0)["spec"]["template"], set(1)["spec"]["template"]);
}

#[test]
fn the_statefulset_leaves_its_annotations_to_the_caller() {
    let set = render_statefulset(&inputs("seed-a"), &platform("example"), &owner("seed-a"), 1);
    let set = json_of(set.unwrap());
    assert!(set["metadata"].get("annotations").is_none());
    assert!(set.get("status").is_none());
    assert_eq!(set["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(set["spec"]["updateStrategy"], json!({ "type": "OnDelete" }));
    assert_eq!(set["spec"]["selector"], json!({ "matchLabels": { "sei.io/node": "seed-a" } }));
}

#[test]
fn an_owner_must_have_been_stored() {
    let mut node = node("seed-a");
    node.metadata.uid = None;
    assert_eq!(Owner::of(&node), Err(RenderError::NotStored { field: "metadata.uid" }));
}

#[test]
fn the_service_lists_what_the_pod_opens() {
    let service = json_of(render_service(&inputs("rpc-statesync"), &owner("rpc-statesync")));
    let spec = &service["spec"];
    assert_eq!(spec["clusterIP"], "None");
    assert_eq!(spec["publishNotReadyAddresses"], true);
    assert_eq!(spec["selector"], json!({ "sei.io/node": "rpc-statesync" }));
    let all = ["evm-rpc", "evm-ws", "grpc", "rest", "p2p", "rpc", "metrics", "api"];
    assert_eq!(named(&spec["ports"]), all);
    assert_eq!(
        spec["ports"][2],
        json!({ "name": "grpc", "port": 9090, "targetPort": 9090, "protocol": "TCP",
                "appProtocol": "kubernetes.io/h2c" })
    );
    assert_eq!(
        spec["ports"][7],
        json!({ "name": "api", "port": 8443, "targetPort": 8443, "protocol": "TCP" })
    );
    assert_eq!(service["metadata"]["labels"]["team"], "core");

    let seed = json_of(render_service(&inputs("seed-a"), &owner("seed-a")));
    assert_eq!(named(&seed["spec"]["ports"]), ["p2p", "metrics", "api"]);
}

#[test]
fn each_mode_has_its_storage() {
    let cases = [
        ("rpc-genesis", "example", "fast", "1500Gi"),
        ("replay-basic", "example", "fast", "1500Gi"),
        ("val-byo", "example", "fast", "1500Gi"),
        ("arch-sync", "example", "bulk", "30Ti"),
        ("seed-a", "example", "standard", "25Gi"),
        ("seed-a", "minimal", "gp3", "20Gi"),
        ("rpc-genesis", "tuned", "nvme", "1Ti"),
    ];
    for (name, on, class, size) in cases {
        let claim =
            render_data_claim(&inputs(name), &VolumeInputs::default(), &platform(on), &owner(name))
                .unwrap();
        let claim = json_of(claim);
        assert_eq!(claim["metadata"]["name"], format!("data-{name}"));
        assert_eq!(
            claim["spec"],
            json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "resources": { "requests": { "storage": size } } }),
            "{name} on {on}"
        );
    }
}

#[test]
fn an_imported_claim_is_never_rendered() {
    let inputs = inputs("arch-import");
    let volume = VolumeInputs::default();
    let claim = render_data_claim(&inputs, &volume, &platform("example"), &owner("arch-import"));
    assert_eq!(claim, None);
    assert_eq!(data_claim_name(&inputs), "arch-history-2026");
}

#[test]
fn the_proxy_asks_for_a_permission_on_this_node() {
    let mut owner = owner("rpc-genesis");
    // A namespace that YAML would read as a number.
    owner.namespace = "1e3".to_owned();
    let config = json_of(render_proxy_config(&inputs("rpc-genesis"), &owner));
    assert_eq!(config["metadata"]["name"], "rpc-genesis-rbac-proxy-config");
    let content: Value =
        serde_saphyr::from_str(config["data"]["config.yaml"].as_str().unwrap()).unwrap();
    assert_eq!(
        content,
        json!({ "authorization": { "resourceAttributes": { "apiGroup": "sei.io",
                "resource": "seinodetasks", "namespace": "1e3", "name": "rpc-genesis" } } })
    );
}
