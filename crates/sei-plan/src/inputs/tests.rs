//! Which specs are valid, and which of their fields reach a pod.

use expect_test::{Expect, expect};
use serde_json::{Value, json};

use super::*;
use crate::testing::{node, node_from};

/// All messages for a valid node after one change to its JSON.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn check(name: &str, pointer: &str, value: Value, expect: Expect) {
    let node = changed(name, pointer, value);
    let errors: Vec<String> = check_spec(&node).iter().map(ToString::to_string).collect();
    expect.assert_eq(&errors.join("\n"));
}

fn changed(name: &str, pointer: &str, value: Value) -> SeiNode {
    let mut json = serde_json::to_value(node(name)).unwrap();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    json.pointer_mut(parent).unwrap()[key] = value;
    node_from(json)
}

#[test]
fn every_example_is_valid() {
    for name in crate::testing::NODES {
        assert_eq!(check_spec(&node(name)), [], "{name}");
        TemplateInputs::of(&node(name)).unwrap();
    }
}

#[test]
fn exactly_one_mode_must_be_set() {
    check(
        "rpc-genesis",
        "/spec/archive",
        json!({}),
        expect![
            "spec: set exactly one of fullNode, archive, replayer, validator or seed; these are set: fullNode, archive"
        ],
    );
    check(
        "rpc-genesis",
        "/spec/fullNode",
        Value::Null,
        expect![
            "spec: set exactly one of fullNode, archive, replayer, validator or seed; none is set"
        ],
    );
    let both = changed("rpc-genesis", "/spec/archive", json!({}));
    assert!(matches!(TemplateInputs::of(&both), Err(SpecError::ModeCount { .. })));
}

// I16
#[test]
fn snapshot_generation_needs_tendermint_and_two_when_published() {
    for (name, mode) in [("rpc-genesis", "fullNode"), ("arch-sync", "archive")] {
        let at = format!("/spec/{mode}/snapshotGeneration");
        let ok = [
            Value::Null,
            json!({ "tendermint": { "keepRecent": 1 } }),
            json!({ "tendermint": { "keepRecent": 2, "publish": {} } }),
        ];
        for value in ok {
            assert_eq!(check_spec(&changed(name, &at, value)), []);
        }
        let error = check_spec(&changed(name, &at, json!({})))[0].to_string();
        let remedy = "set tendermint, or remove snapshotGeneration";
        assert_eq!(error, format!("spec.{mode}.snapshotGeneration: {remedy}"));
        let single = json!({ "tendermint": { "keepRecent": 1, "publish": {} } });
        let error = check_spec(&changed(name, &at, single))[0].to_string();
        let field = format!("spec.{mode}.snapshotGeneration.tendermint.keepRecent");
        assert_eq!(error, format!("{field}: `1` must be at least 2 with publish"));
    }
}

// I18
#[test]
fn a_replayer_needs_a_snapshot_peers_and_a_whole_result_export() {
    let shadow = json!({ "shadowResult": { "canonicalRpc": "http://a:1" } });
    for value in [Value::Null, shadow] {
        let node = changed("replay-basic", "/spec/replayer/resultExport", value);
        assert_eq!(check_spec(&node), []);
    }
    check(
        "replay-basic",
        "/spec/replayer/resultExport",
        json!({}),
        expect!["spec.replayer.resultExport: set shadowResult, or remove resultExport"],
    );
    check(
        "replay-basic",
        "/spec/replayer/snapshot",
        json!({ "stateSync": {} }),
        expect!["spec.replayer.snapshot: set s3: a replayer starts from a snapshot in the bucket"],
    );
    check(
        "replay-basic",
        "/spec/replayer/snapshot/s3/targetHeight",
        json!(0),
        expect!["spec.replayer.snapshot.s3.targetHeight: `0` must be at least 1"],
    );
    check(
        "replay-basic",
        "/spec/peers",
        json!([]),
        expect!["spec.peers: a replayer needs at least one peer source"],
    );
}

#[test]
fn a_bootstrap_image_needs_a_height_to_run_to() {
    let source = json!({ "stateSync": {}, "bootstrapImage": "seid:v1" });
    for (name, mode) in [("rpc-genesis", "fullNode"), ("val-observer", "validator")] {
        let node = changed(name, &format!("/spec/{mode}/snapshot"), source.clone());
        let fields: Vec<_> = check_spec(&node).iter().map(|e| e.field().to_owned()).collect();
        assert_eq!(fields, [format!("spec.{mode}.snapshot.bootstrapImage")]);
    }
    check(
        "rpc-bootstrap",
        "/spec/fullNode/snapshot/bootstrapImage",
        json!("two parts"),
        expect![
            "spec.fullNode.snapshot.bootstrapImage: `two parts` must not contain spaces or control characters"
        ],
    );
}

// I21
#[test]
fn a_seed_needs_its_node_key() {
    assert_eq!(check_spec(&node("seed-a")), []);
    check(
        "seed-a",
        "/spec/seed/nodeKey",
        json!({}),
        expect!["spec.seed.nodeKey: set secret.secretName"],
    );
    check(
        "seed-a",
        "/spec/seed/nodeKey/secret/secretName",
        json!(""),
        expect!["spec.seed.nodeKey.secret.secretName: must not be empty"],
    );
}

// I25
#[test]
fn signing_and_node_key_come_together_and_apart_from_a_ceremony() {
    let secret = |name: &str| json!({ "secret": { "secretName": name } });
    let valid = [
        json!({}),
        json!({ "signingKey": secret("a"), "nodeKey": secret("b") }),
        json!({ "signingKey": secret("a"), "nodeKey": secret("b"),
                "snapshot": { "s3": { "targetHeight": 5 }, "bootstrapImage": "seid:v1" } }),
    ];
    for validator in valid {
        assert_eq!(check_spec(&changed("val-observer", "/spec/validator", validator)), []);
    }
    let ceremony =
        json!({ "chainId": "c", "stakingAmount": "1", "accountBalance": "1", "index": 0 });
    let invalid = [
        (json!({ "signingKey": secret("a") }), "spec.validator.nodeKey"),
        (json!({ "nodeKey": secret("b") }), "spec.validator.signingKey"),
        (
            json!({ "signingKey": secret("a"), "nodeKey": secret("a") }),
            "spec.validator.nodeKey.secret.secretName",
        ),
        (
            json!({ "signingKey": secret(""), "nodeKey": secret("b") }),
            "spec.validator.signingKey.secret.secretName",
        ),
        (json!({ "signingKey": {}, "nodeKey": secret("b") }), "spec.validator.signingKey"),
        (
            json!({ "signingKey": secret("a"), "nodeKey": secret("b"), "genesisCeremony": ceremony }),
            "spec.validator.signingKey",
        ),
    ];
    for (validator, field) in invalid {
        let errors = check_spec(&changed("val-observer", "/spec/validator", validator));
        assert_eq!(errors.iter().map(SpecError::field).collect::<Vec<_>>(), [field]);
    }
}

// I26
#[test]
fn no_two_secrets_of_a_validator_are_the_same() {
    assert_eq!(check_spec(&node("val-governor")), []);
    let keyring = "/spec/validator/operatorKeyring/secret/secretName";
    let passphrase = "/spec/validator/operatorKeyring/secret/passphraseSecretRef/secretName";
    let cases = [
        (keyring, "gov-signing", "signingKey"),
        (keyring, "gov-p2p", "nodeKey"),
        (keyring, "gov-keyring-pass", "operatorKeyring"),
        (passphrase, "gov-signing", "signingKey"),
        (passphrase, "gov-p2p", "nodeKey"),
    ];
    for (pointer, name, sharer) in cases {
        let errors = check_spec(&changed("val-governor", pointer, json!(name)));
        let [error] = &errors[..] else { panic!("{pointer} {name}: {errors:?}") };
        assert!(error.to_string().contains(name) && error.to_string().contains(sharer));
    }
    check(
        "val-governor",
        keyring,
        json!("gov-signing"),
        expect![
            "spec.validator.operatorKeyring.secret.secretName: Secret `gov-signing` is also named by spec.validator.signingKey.secret.secretName; give each its own Secret"
        ],
    );
}

#[test]
fn a_ceremony_needs_its_chain_and_stake() {
    let ceremony = "/spec/validator/genesisCeremony";
    for field in ["chainId", "stakingAmount"] {
        let node = changed("devnet-0", &format!("{ceremony}/{field}"), json!(" "));
        let errors = check_spec(&node);
        assert_eq!(errors[0].field(), format!("spec.validator.genesisCeremony.{field}"));
    }
}

#[test]
fn the_name_must_fit_a_service_and_a_revision_label() {
    for name in ["a", "a-1", "n".repeat(52).as_str()] {
        assert_eq!(check_spec(&changed("rpc-genesis", "/metadata/name", json!(name))), []);
    }
    for name in ["", "1a", "a.b", "A", "-a", "a-", "a_b", "é", "n".repeat(53).as_str()] {
        let errors = check_spec(&changed("rpc-genesis", "/metadata/name", json!(name)));
        assert_eq!(errors.iter().map(SpecError::field).collect::<Vec<_>>(), ["metadata.name"]);
    }
}

#[test]
fn chain_and_image_are_checked_for_objects_older_than_the_schema() {
    let cases = [
        ("/spec/chainId", json!("")),
        ("/spec/chainId", json!("Demo_1")),
        ("/spec/chainId", json!("c".repeat(64))),
        ("/spec/image", json!("  ")),
        ("/spec/image", json!("seid:v1 ")),
        ("/spec/image", json!("seid\u{0}")),
        ("/spec/image", json!("i".repeat(513))),
        ("/spec/sidecar", json!({ "image": "a b" })),
        ("/spec/sidecar", json!({ "port": -1 })),
        ("/spec/sidecar", json!({ "port": 65536 })),
        ("/spec/sidecar", json!({ "port": 8443 })),
        ("/spec/dataVolume", json!({ "import": { "pvcName": "" } })),
        ("/spec/dataVolume", json!({ "import": { "pvcName": "a/b" } })),
    ];
    for (pointer, value) in cases {
        let errors = check_spec(&changed("rpc-genesis", pointer, value.clone()));
        assert_eq!(errors.len(), 1, "{pointer} {value}: {errors:?}");
        assert!(errors[0].field().starts_with(&pointer[1..].replace('/', ".")));
    }
}

#[test]
fn pod_labels_must_be_labels_and_leave_kubernetes_its_own() {
    let long = "l".repeat(64);
    let bad = [
        json!({ "controller-revision-hash": "x" }),
        json!({ "statefulset.kubernetes.io/pod-name": "x" }),
        json!({ "apps.kubernetes.io/pod-index": "0" }),
        json!({ "sei.io/component": "bootstrap" }),
        json!({ "é": "x" }),
        json!({ "": "x" }),
        json!({ "a/b/c": "x" }),
        json!({ "/a": "x" }),
        json!({ "A.b/c": "x" }),
        json!({ "ok": "é" }),
        json!({ "ok": "-a" }),
        json!({ "ok": long }),
        json!({ long.as_str(): "x" }),
    ];
    for labels in bad {
        let errors = check_spec(&changed("rpc-genesis", "/spec/podLabels", labels.clone()));
        assert_eq!(errors.len(), 1, "{labels}: {errors:?}");
    }
    let good =
        json!({ "ok": "", "a.b/c_d": "E-f.9", "sei.io/component": "rpc", "sei.io/role": "x" });
    assert_eq!(check_spec(&changed("rpc-genesis", "/spec/podLabels", good)), []);
}

#[test]
fn sidecar_resources_must_be_quantities_that_fit() {
    let at = "/spec/sidecar";
    let resources = |value: Value| json!({ "resources": value });
    check(
        "rpc-genesis",
        at,
        resources(json!({ "requests": { "memory": "2Gi" }, "limits": { "memory": "1024Mi" } })),
        expect![
            "spec.sidecar.resources.requests.memory: the request 2Gi is more than the limit 1Gi; lower it or raise the limit"
        ],
    );
    check(
        "rpc-genesis",
        at,
        resources(json!({ "limits": { "cpu": -1 } })),
        expect!["spec.sidecar.resources.limits.cpu: `-1` must not be negative"],
    );
    check(
        "rpc-genesis",
        at,
        resources(json!({ "requests": { "cpu": "1e100" } })),
        expect![
            "spec.sidecar.resources.requests.cpu: `1e100` is too large; a quantity is at most 2^63-1 (about 9.2E or 7.9Ei)"
        ],
    );
    check(
        "rpc-genesis",
        at,
        resources(json!({ "requests": { "cpu": "" } })),
        expect![
            "spec.sidecar.resources.requests.cpu: a quantity is empty; write a number such as `500m` or `2Gi`"
        ],
    );
    let fine = json!({ "requests": { "cpu": 1, "memory": "1Gi" }, "limits": { "cpu": "1000m" } });
    assert_eq!(check_spec(&changed("rpc-genesis", at, resources(fine))), []);
}

#[test]
fn what_places_a_pod_must_be_acceptable_to_a_server() {
    let at = |path: &str, value: Value| {
        let mut json = serde_json::to_value(node("scheduled")).unwrap();
        let (parent, key) = path.rsplit_once('/').unwrap();
        json.pointer_mut(parent).unwrap()[key] = value;
        let errors = check_spec(&node_from(json));
        let [error] = &errors[..] else { panic!("{path}: {errors:?}") };
        format!("{error}\n")
    };
    let tolerations = "/spec/scheduling/tolerations";
    let spread = "/spec/scheduling/topologySpreadConstraints";
    let constraint = |skew: i32, key: &str, labels: Value| {
        json!({
            "maxSkew": skew, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": { "matchLabels": labels },
        })
    };
    let text = [
        at("/spec/podAnnotations", json!({ "two parts": "x" })),
        at("/spec/podAnnotations", json!({ "a": "x".repeat(256 * 1024) })),
        at("/spec/scheduling/nodePool", json!("a b")),
        at("/spec/scheduling/nodeSelector", json!({ "a/b/c": "x" })),
        at("/spec/scheduling/nodeSelector", json!({ "a": "-" })),
        at(tolerations, json!([{ "effect": "NoSchedule" }])),
        at(tolerations, json!([{ "key": "a b" }])),
        at(tolerations, json!([{ "key": "a", "operator": "Exists", "value": "x" }])),
        at(tolerations, json!([{ "key": "a", "tolerationSeconds": 1 }])),
        at("/spec/scheduling/priorityClassName", json!("Upper")),
        at(spread, json!([constraint(0, "zone", json!({ "a": "b" }))])),
        at(spread, json!([constraint(1, "a zone", json!({ "a": "b" }))])),
        at(spread, json!([constraint(1, "zone", json!({}))])),
        at(spread, json!([constraint(1, "zone", json!({ "a": "b c" }))])),
        at("/spec/terminationGracePeriodSeconds", json!(0)),
        at("/spec/resources/requests/cpu", json!("lots")),
        at("/spec/resources/requests/memory", json!("1Ti")),
        at("/spec/imagePullSecrets/1/name", json!("a_b")),
        at("/spec/dataVolume/storageClassName", json!("a b")),
        at("/spec/dataVolume/size", json!(0)),
        at("/spec/dataVolume/size", json!("big")),
    ];
    expect![[r#"
        spec.podAnnotations: `two parts` is not the key of an annotation; write name or prefix/name
        spec.podAnnotations: `262145 bytes` is more than the 256 KiB of an object's annotations
        spec.scheduling.nodePool: `a b` is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, starting and ending with a letter or digit
        spec.scheduling.nodeSelector: `a/b/c` is not a label key; write name or prefix/name, with a DNS name as prefix
        spec.scheduling.nodeSelector: `-` is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, starting and ending with a letter or digit
        spec.scheduling.tolerations[0]: `no key` needs operator Exists
        spec.scheduling.tolerations[0]: `a b` is not a label key; write name or prefix/name, with a DNS name as prefix
        spec.scheduling.tolerations[0]: `a` must have no value with operator Exists
        spec.scheduling.tolerations[0]: `a` needs effect NoExecute for tolerationSeconds
        spec.scheduling.priorityClassName: `Upper` must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9
        spec.scheduling.topologySpreadConstraints[0]: `0` must be at least 1 as maxSkew
        spec.scheduling.topologySpreadConstraints[0]: `a zone` is not a label key; write name or prefix/name, with a DNS name as prefix
        spec.scheduling.topologySpreadConstraints[0]: `zone` needs labels in labelSelector.matchLabels
        spec.scheduling.topologySpreadConstraints[0]: `b c` is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, starting and ending with a letter or digit
        spec.terminationGracePeriodSeconds: `0` must be at least 1: a pod that is killed at once may lose its database
        spec.resources.requests.cpu: `lots` is not a quantity; write a decimal number, such as `0.5`, `500m` or `2Gi`
        spec.resources.requests.memory: the request 1Ti is more than the limit 512Gi; lower it or raise the limit
        spec.imagePullSecrets[1].name: `a_b` must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9
        spec.dataVolume.storageClassName: `a b` must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9
        spec.dataVolume.size: `0` must be more than zero
        spec.dataVolume.size: `big` is not a quantity; write a decimal number, such as `0.5`, `500m` or `2Gi`
    "#]].assert_eq(&text.concat());
}

#[test]
fn all_problems_are_reported_at_once() {
    let mut broken = node("rpc-genesis");
    broken.spec.image = String::new();
    broken.spec.chain_id = "A".to_owned();
    broken.spec.full_node = None;
    assert_eq!(check_spec(&broken).len(), 3);
}

#[test]
fn inputs_are_written_sorted_and_without_defaults() {
    let inputs = TemplateInputs::of(&node("rpc-genesis")).unwrap();
    let text = serde_json::to_string(&inputs).unwrap();
    expect![[r#"{"chainId":"demo-1","image":"registry.example.org/seid:v6.5.1","mode":"fullNode","name":"rpc-genesis"}"#]].assert_eq(&text);
    for name in crate::testing::NODES.iter().chain(crate::testing::EDGES) {
        let inputs = TemplateInputs::of(&node(name)).unwrap();
        let text = serde_json::to_string(&inputs).unwrap();
        assert_eq!(text, serde_json::to_string(&sorted(&text)).unwrap(), "{name}");
    }
    let inputs = TemplateInputs::of(&node("val-governor")).unwrap();
    expect![[r#"{"chainId":"demo-1","image":"registry.example.org/seid:v6.5.1","keyring":{"passphraseKey":"passphrase","passphraseSecret":"gov-keyring-pass","secret":"gov-keyring","seidMount":true},"mode":"validator","name":"val-governor","nodeKeySecret":"gov-p2p","sidecarImage":"registry.example.org/seictl:v0.0.70","signingSecret":"gov-signing"}"#]].assert_eq(&serde_json::to_string(&inputs).unwrap());
}

/// The same document through a sorted map, in any order that the map of `serde_json` keeps.
fn sorted(text: &str) -> Value {
    fn sort(value: Value) -> Value {
        match value {
            Value::Object(map) => {
                let sorted: BTreeMap<String, Value> =
                    map.into_iter().map(|(key, value)| (key, sort(value))).collect();
                Value::Object(sorted.into_iter().collect())
            }
            Value::Array(list) => list.into_iter().map(sort).collect(),
            scalar => scalar,
        }
    }
    sort(serde_json::from_str(text).unwrap())
}

#[test]
fn what_cannot_reach_the_pod_is_not_an_input() {
    let plain = TemplateInputs::of(&node("rpc-genesis")).unwrap();
    let same = [
        ("/spec/podLabels", json!({ "sei.io/dedicated-node": "true", "sei.io/role": "x" })),
        ("/spec/sidecar", json!({ "port": 0, "image": "", "resources": { "limits": {} } })),
        ("/metadata/annotations", json!({ "sei.io/dedicated-node": "True" })),
        ("/spec/dataVolume", json!({})),
        ("/spec/update", json!({ "paused": true })),
    ];
    for (pointer, value) in same {
        let inputs = TemplateInputs::of(&changed("rpc-genesis", pointer, value)).unwrap();
        assert_eq!(inputs, plain, "{pointer}");
    }
}

#[test]
fn a_quantity_is_one_input_in_every_notation() {
    let cpu = |text: Value| {
        let sidecar = json!({ "resources": { "requests": { "cpu": text } } });
        TemplateInputs::of(&changed("rpc-genesis", "/spec/sidecar", sidecar)).unwrap()
    };
    assert_eq!(cpu(json!("0.5")), cpu(json!("500m")));
    assert_eq!(cpu(json!(2)), cpu(json!("2000m")));
    assert_ne!(cpu(json!(2)), cpu(json!(3)));
}
