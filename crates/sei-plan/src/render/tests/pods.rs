//! The pod template, mode by mode.

use serde_json::json;

use super::*;

/// One manifest per mode.
const MODES: [(&str, &str); 5] = [
    ("rpc-genesis", "node"),
    ("arch-sync", "archive"),
    ("replay-basic", "replayer"),
    ("val-observer", "validator"),
    ("seed-a", "seed"),
];

#[test]
fn the_worked_example_is_rendered_exactly() {
    let mut set = serde_json::to_value(
        render_statefulset(
            &inputs("rpc-statesync"),
            &platform("example"),
            &owner("rpc-statesync"),
            1,
        )
        .unwrap(),
    )
    .unwrap();
    let pod = &mut set["spec"]["template"]["spec"];
    pod["initContainers"][0]["command"][2] = json!("<script I>");
    pod["containers"][0]["args"][0] = json!("<script W>");
    pod["containers"][1]["args"][0] = json!("<script E>");
    let text = include_str!("../../../testdata/render/rpc-statesync.yaml");
    let expected: Value = serde_saphyr::from_str(text).unwrap();
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap();
    assert_eq!(pretty(&set), pretty(&expected));
}

#[test]
fn containers_and_volumes_have_a_fixed_order() {
    for (name, role) in MODES {
        let template = template(name);
        let spec = &template["spec"];
        assert_eq!(named(&spec["initContainers"]), ["seid-init", "sei-sidecar", "kube-rbac-proxy"]);
        let main: &[&str] = if role == "seed" { &["seid"] } else { &["seid", "cosmos-exporter"] };
        assert_eq!(named(&spec["containers"]), main);
        let volumes = &named(&spec["volumes"])[..4];
        assert_eq!(volumes, ["data", "sidecar-tmp", "home", "rbac-proxy-config"]);
        assert_eq!(template["metadata"]["labels"]["sei.io/role"], role);
    }
    let governor = template("val-governor");
    let keys = &named(&governor["spec"]["volumes"])[4..];
    assert_eq!(keys, ["signing-key", "node-key", "operator-keyring"]);
}

#[test]
fn each_mode_has_its_pool_and_footprint() {
    let expected = [
        ("rpc-genesis", "chain-default", "8", "64Gi"),
        ("arch-sync", "chain-archive", "64", "512Gi"),
        ("replay-basic", "chain-default", "32", "256Gi"),
        ("val-observer", "chain-validator", "16", "128Gi"),
        ("seed-a", "chain-seed", "1", "1Gi"),
    ];
    for (name, pool, cpu, memory) in expected {
        let template = template(name);
        let spec = &template["spec"];
        assert_eq!(
            spec["tolerations"],
            json!([{ "key": "example.org/chain", "value": pool, "effect": "NoSchedule" }])
        );
        let terms = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                     /nodeSelectorTerms/0/matchExpressions";
        assert_eq!(
            spec.pointer(terms).unwrap(),
            &json!([{ "key": "karpenter.sh/nodepool", "operator": "In", "values": [pool] }])
        );
        assert_eq!(
            find(spec, "seid")["resources"],
            json!({ "requests": { "cpu": cpu, "memory": memory }, "limits": { "memory": memory } })
        );
    }
}

#[test]
fn built_in_footprints_apply_where_the_platform_sets_none() {
    let quiet = platform("minimal");
    let expected = [
        (Mode::Validator, "16", "128Gi"),
        (Mode::FullNode, "32", "256Gi"),
        (Mode::Replayer, "32", "256Gi"),
        (Mode::Archive, "64", "512Gi"),
        (Mode::Seed, "1", "2Gi"),
    ];
    for (mode, cpu, memory) in expected {
        let footprint = footprint(mode, &quiet);
        assert_eq!(footprint.cpu_request.canonical(), cpu);
        assert_eq!(footprint.memory.canonical(), memory);
    }
    // Each part is overridden on its own.
    let tuned = platform("tuned");
    assert_eq!(footprint(Mode::Archive, &tuned).cpu_request.canonical(), "64");
    assert_eq!(footprint(Mode::Archive, &tuned).memory.canonical(), "300Gi");
    assert_eq!(footprint(Mode::Replayer, &tuned).cpu_request.canonical(), "500m");
}

#[test]
fn the_garbage_collector_of_a_seed_has_a_memory_limit() {
    let limit = |on: &str| {
        let template = template_on("seed-a", on);
        let env = find(&template, "seid")["env"].as_array().unwrap().last().unwrap().clone();
        assert_eq!(env["name"], "GOMEMLIMIT");
        env["value"].as_str().unwrap().to_owned()
    };
    assert_eq!(limit("minimal"), "1868310773B");
    assert_eq!(limit("example"), "934155386B");
    for (name, _) in MODES.iter().filter(|(_, role)| *role != "seed") {
        assert!(!find(&template(name), "seid").to_string().contains("GOMEMLIMIT"));
    }
}

// T9, first half
#[test]
fn a_seed_is_ready_when_it_listens_and_other_nodes_when_they_keep_up() {
    for (name, role) in MODES {
        let template = template(name);
        let probe = &find(&template, "seid")["readinessProbe"];
        let (kind, target) = match role {
            "seed" => ("tcpSocket", json!({ "port": 26656 })),
            _ => ("httpGet", json!({ "path": "/lag_status", "port": 26657 })),
        };
        assert_eq!(
            probe,
            &json!({ kind: target, "initialDelaySeconds": 30, "periodSeconds": 10,
                     "failureThreshold": 3, "timeoutSeconds": 5 })
        );
    }
}

// T8, first half
#[test]
fn the_chain_process_has_no_liveness_probe_and_its_startup_probe_uses_the_proxy() {
    for name in crate::testing::NODES {
        let template = template(name);
        let seid = find(&template, "seid");
        assert!(seid.get("livenessProbe").is_none());
        assert_eq!(
            seid["startupProbe"],
            json!({ "httpGet": { "path": "/v0/healthz", "port": 8443, "scheme": "HTTPS" },
                    "initialDelaySeconds": 5, "periodSeconds": 5, "failureThreshold": 86400 })
        );
    }
}

#[test]
fn a_seed_shows_only_the_ports_it_opens() {
    assert_eq!(named(&find(&template("seed-a"), "seid")["ports"]), ["p2p", "metrics"]);
    let all = ["evm-rpc", "evm-ws", "grpc", "rest", "p2p", "rpc", "metrics"];
    assert_eq!(named(&find(&template("val-byo"), "seid")["ports"]), all);
}

#[test]
fn keys_are_mounted_as_single_read_only_files() {
    let template = template("val-byo");
    let mounts = &find(&template, "seid")["volumeMounts"];
    let key = |volume: &str, file: &str| {
        json!({ "name": volume, "mountPath": format!("/home/nonroot/.sei/config/{file}"),
                "subPath": file, "readOnly": true })
    };
    assert_eq!(mounts[2], key("signing-key", "priv_validator_key.json"));
    assert_eq!(mounts[3], key("node-key", "node_key.json"));
    let file = "priv_validator_key.json";
    assert_eq!(
        template["spec"]["volumes"][4],
        json!({ "name": "signing-key", "secret": { "secretName": "val-byo-signing",
                "defaultMode": 256, "items": [{ "key": file, "path": file }] } })
    );
    for name in ["seid-init", "sei-sidecar", "kube-rbac-proxy", "cosmos-exporter"] {
        let text = find(&template, name).to_string();
        assert!(!text.contains("signing-key") && !text.contains("node-key"), "{name}");
    }
    // A seed has a p2p identity and nothing to sign with.
    let seed = super::template("seed-a");
    assert_eq!(named(&seed["spec"]["volumes"])[4..], ["node-key"]);
    assert_eq!(find(&seed, "seid")["volumeMounts"][2], key("node-key", "node_key.json"));
}

#[test]
fn the_keyring_reaches_the_sidecar_and_seid_only_on_request() {
    let passphrase = json!({ "name": "SEI_KEYRING_PASSPHRASE", "valueFrom": { "secretKeyRef": {
        "name": "gov-keyring-pass", "key": "passphrase" } } });
    let mount = json!({ "name": "operator-keyring",
                        "mountPath": "/home/nonroot/.sei/keyring-file", "readOnly": true });
    let holders = |inputs: &TemplateInputs| -> Vec<&'static str> {
        let template = render_template(inputs, &platform("example")).unwrap();
        let template = serde_json::to_value(template).unwrap();
        assert_eq!(
            template["spec"]["volumes"][6],
            json!({ "name": "operator-keyring",
                    "secret": { "secretName": "gov-keyring", "defaultMode": 256 } })
        );
        let has = |name: &str| {
            let container = find(&template, name);
            let mounted = container["volumeMounts"].as_array().unwrap().contains(&mount);
            let env = container["env"].as_array().is_some_and(|env| env.contains(&passphrase));
            assert_eq!(mounted, env, "{name}");
            mounted
        };
        let all = ["seid-init", "sei-sidecar", "kube-rbac-proxy", "seid", "cosmos-exporter"];
        all.into_iter().filter(|name| has(name)).collect()
    };
    let mut governor = inputs("val-governor");
    assert_eq!(holders(&governor), ["sei-sidecar", "seid"]);
    governor.keyring.as_mut().unwrap().seid_mount = false;
    assert_eq!(holders(&governor), ["sei-sidecar"]);
}

#[test]
fn only_validators_have_a_keyring_environment() {
    for (name, role) in MODES {
        let template = template(name);
        let env = find(&template, "sei-sidecar")["env"].clone();
        let tail = &named(&env)[9..];
        if role == "validator" {
            assert_eq!(tail, ["SEI_KEYRING_BACKEND", "SEI_KEYRING_DIR"]);
            assert_eq!(env[9]["value"], "test");
            assert_eq!(env[10]["value"], "/home/nonroot/.sei");
        } else {
            assert!(tail.is_empty());
        }
    }
    let governor = template("val-governor");
    assert_eq!(find(&governor, "sei-sidecar")["env"][9]["value"], "file");
}

#[test]
fn a_dedicated_node_keeps_all_other_pods_away() {
    let terms = |name: &str| {
        template(name)
            .pointer(
                "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution",
            )
            .unwrap()
            .clone()
    };
    let term = |expression: Value| {
        json!({ "topologyKey": "kubernetes.io/hostname", "namespaceSelector": {},
                "labelSelector": { "matchExpressions": [expression] } })
    };
    let defensive =
        term(json!({ "key": "sei.io/dedicated-node", "operator": "In", "values": ["true"] }));
    let requester = term(json!({ "key": "sei.io/node", "operator": "Exists" }));
    assert_eq!(terms("rpc-genesis"), json!([defensive]));
    assert_eq!(terms("rpc-dedicated"), json!([defensive, requester]));
    assert_eq!(template("rpc-dedicated")["metadata"]["labels"]["sei.io/dedicated-node"], "true");
}

#[test]
fn the_operators_labels_win_and_cannot_be_set_by_users() {
    let mut inputs = inputs("rpc-genesis");
    let desired = ["sei.io/node", "sei.io/chain", "sei.io/role", "team"]
        .map(|key| (key.to_owned(), "mine".to_owned()));
    inputs.pod_labels = desired.into();
    // Even inputs that were not built from a node cannot carry these.
    inputs.pod_labels.insert("sei.io/dedicated-node".to_owned(), "true".to_owned());
    inputs.pod_labels.insert("sei.io/snapshot-publish".to_owned(), "true".to_owned());
    let template = render_template(&inputs, &platform("example")).unwrap();
    let labels = serde_json::to_value(template.metadata.unwrap().labels).unwrap();
    assert_eq!(
        labels,
        json!({ "sei.io/node": "rpc-genesis", "sei.io/chain": "demo-1", "sei.io/role": "node",
                "team": "mine" })
    );
    assert_eq!(
        super::template("arch-publisher")["metadata"]["labels"]["sei.io/snapshot-publish"],
        "true"
    );
    assert_eq!(
        super::template("devnet-0")["metadata"]["labels"]["sei.io/nodedeployment"],
        "devnet"
    );
}

#[test]
fn the_imported_claim_is_what_the_pod_mounts() {
    let claim = |name: &str| {
        template(name)["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"].clone()
    };
    assert_eq!(claim("arch-import"), "arch-history-2026");
    assert_eq!(claim("seed-c"), "seed-c-data");
    assert_eq!(claim("arch-sync"), "data-arch-sync");
}

#[test]
fn the_sidecars_port_and_image_are_set_in_every_place_that_uses_them() {
    let template = template("replay-isolated");
    let sidecar = find(&template, "sei-sidecar");
    assert_eq!(sidecar["ports"][0]["containerPort"], 7788);
    assert_eq!(sidecar["env"][1], json!({ "name": "SEI_SIDECAR_PORT", "value": "7788" }));
    assert_eq!(sidecar["image"], "registry.example.org/seictl:v0.0.70");
    let proxy = find(&template, "kube-rbac-proxy").to_string();
    assert!(proxy.contains("--upstream=http://127.0.0.1:7788/"));
    let script = find(&template, "seid")["args"][0].as_str().unwrap();
    assert!(script.contains("/dev/tcp/localhost/7788"));
    assert!(!template.to_string().contains("7777"));

    let tuned = platform("tuned");
    let image = |name: &str| effective_sidecar_image(&inputs(name), &tuned).to_owned();
    assert_eq!(image("replay-isolated"), "registry.example.org/seictl:v0.0.70");
    assert_eq!(image("rpc-genesis"), "registry.example.com/seictl:v0.0.71");
}

#[test]
fn no_rendered_object_holds_nulls_or_meaningless_empty_values() {
    fn check(value: &Value, path: &str) {
        match value {
            Value::Null => panic!("null at {path}"),
            Value::Object(map) if map.is_empty() => {
                let significant =
                    path.ends_with("/emptyDir") || path.ends_with("/namespaceSelector");
                assert!(significant, "empty object at {path}");
            }
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| check(value, &format!("{path}/{key}")));
            }
            Value::Array(list) => {
                assert!(!list.is_empty(), "empty list at {path}");
                for value in list {
                    check(value, &format!("{path}/*"));
                }
            }
            Value::String(text) => assert!(!text.is_empty(), "empty text at {path}"),
            Value::Bool(_) | Value::Number(_) => {}
        }
    }
    for name in crate::testing::NODES {
        for on in crate::testing::PLATFORMS {
            let (inputs, owner, platform) = (inputs(name), owner(name), platform(on));
            let set = render_statefulset(&inputs, &platform, &owner, 1).unwrap();
            check(&serde_json::to_value(set).unwrap(), name);
            check(&serde_json::to_value(render_service(&inputs, &owner)).unwrap(), name);
            check(&serde_json::to_value(render_proxy_config(&inputs, &owner)).unwrap(), name);
            if let Some(claim) =
                render_data_claim(&inputs, &VolumeInputs::default(), &platform, &owner)
            {
                check(&serde_json::to_value(claim).unwrap(), name);
            }
            if let Ok(bootstrap) = Bootstrap::of(&node(name)) {
                let job = render_bootstrap_job(&inputs, &bootstrap, &platform, &owner).unwrap();
                check(&serde_json::to_value(job).unwrap(), name);
            }
        }
    }
}
