//! Templates and random JSON for the tests of this crate.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use sei_api::status::FieldChange;

/// A rendered template: the shape of a full node, with the fields that tests change.
pub(crate) fn rendered_template() -> Value {
    json!({
        "metadata": {
            "labels": {"sei.io/chain": "demo-1", "sei.io/node": "rpc-0", "team": "core"},
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "serviceAccountName": "chain-node",
            "shareProcessNamespace": true,
            "securityContext": {"fsGroup": 65532, "fsGroupChangePolicy": "OnRootMismatch"},
            "tolerations": [
                {"key": "example.org/chain", "value": "chain-default", "effect": "NoSchedule"},
            ],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "topologyKey": "kubernetes.io/hostname",
                "namespaceSelector": {},
                "labelSelector": {"matchExpressions": [
                    {"key": "sei.io/dedicated-node", "operator": "In", "values": ["true"]},
                ]},
            }]}},
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-rpc-0"}},
                {"name": "sidecar-tmp", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "home", "emptyDir": {}},
            ],
            "initContainers": [
                {
                    "name": "seid-init",
                    "image": "registry.example.org/seid:v1",
                    "command": ["/bin/sh", "-c", "seid init demo-1"],
                    "env": [{"name": "HOME", "value": "/home/nonroot"}],
                    "volumeMounts": [{"name": "data", "mountPath": "/home/nonroot/.sei"}],
                },
                {
                    "name": "sei-sidecar",
                    "image": "registry.example.org/seictl:v1",
                    "restartPolicy": "Always",
                    "ports": [{"name": "sidecar", "containerPort": 7777, "protocol": "TCP"}],
                    "env": [
                        {"name": "SEI_CHAIN_ID", "value": "demo-1"},
                        {"name": "SEI_KEYRING_PASSPHRASE", "valueFrom": {
                            "secretKeyRef": {"name": "keyring", "key": "passphrase"}}},
                    ],
                },
            ],
            "containers": [{
                "name": "seid",
                "image": "registry.example.org/seid:v1",
                "command": ["/bin/bash", "-c"],
                "args": ["exec seid start --home /home/nonroot/.sei"],
                "env": [
                    {"name": "HOME", "value": "/home/nonroot"},
                    {"name": "TMPDIR", "value": "/home/nonroot/.sei/tmp"},
                ],
                "ports": [
                    {"name": "p2p", "containerPort": 26656, "protocol": "TCP"},
                    {"name": "rpc", "containerPort": 26657, "protocol": "TCP"},
                ],
                "resources": {
                    "requests": {"cpu": "8", "memory": "64Gi"},
                    "limits": {"memory": "64Gi"},
                },
                "readinessProbe": {"httpGet": {"path": "/lag_status", "port": 26657}},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/home/nonroot/.sei"},
                    {"name": "home", "mountPath": "/home/nonroot"},
                ],
            }],
        },
    })
}

/// The same template with one value set; `pointer` is a JSON pointer, whose last step may be new.
pub(crate) fn with(mut template: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = template.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
    match parent {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        parent => parent[key.replace("~1", "/")] = value,
    }
    template
}

/// The same template without the value at `pointer`.
pub(crate) fn without(mut template: Value, pointer: &str) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match template.pointer_mut(parent).unwrap() {
        Value::Array(list) => drop(list.remove(key.parse().unwrap())),
        parent => {
            let removed = parent.as_object_mut().unwrap().remove(&key.replace("~1", "/"));
            assert!(removed.is_some(), "no {pointer}");
        }
    }
    template
}

/// The JSON pointers of every value below the root, inner ones included.
pub(crate) fn pointers(value: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, found: &mut Vec<String>) {
        let children: Vec<(String, &Value)> = match value {
            Value::Object(map) => map
                .iter()
                .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
                .collect(),
            Value::Array(list) => {
                list.iter().enumerate().map(|(i, value)| (i.to_string(), value)).collect()
            }
            _ => Vec::new(),
        };
        for (key, child) in children {
            let pointer = format!("{at}/{key}");
            walk(child, &pointer, found);
            found.push(pointer);
        }
    }
    let mut found = Vec::new();
    walk(value, "", &mut found);
    found
}

/// Arbitrary JSON with the keys that the rules search for, so that odd shapes occur where the
/// rules expect other shapes.
pub(crate) fn any_json() -> impl Strategy<Value = Value> {
    let keys = prop::sample::select(vec![
        "metadata",
        "labels",
        "spec",
        "template",
        "$patch",
        "containers",
        "initContainers",
        "env",
        "name",
        "value",
        "valueFrom",
        "secretKeyRef",
        "key",
        "resources",
        "limits",
        "cpu",
        "emptyDir",
        "sizeLimit",
        "volumeMounts",
        "mountPath",
        "tolerations",
        "args",
        "a.b/c",
        "",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        // Quarters: serde_json does not read every float back to the same bits.
        any::<i32>().prop_map(|n| Value::from(f64::from(n) / 4.0)),
        prop::sample::select(vec!["", "a", "b", "1Gi", "1024Mi", "500m", "0.5", "replace"])
            .prop_map(Value::from),
        any::<String>().prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 48, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((keys.clone(), inner), 0..5).prop_map(|entries| {
                Value::Object(
                    entries.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Map<_, _>>(),
                )
            }),
        ]
    })
}

/// A rendered template with a handful of random values set or removed anywhere.
pub(crate) fn any_template() -> impl Strategy<Value = Value> {
    let edit = (any::<prop::sample::Index>(), prop::option::of(any_json()));
    prop::collection::vec(edit, 0..6).prop_map(|edits| {
        let mut template = rendered_template();
        for (index, value) in edits {
            let pointers = pointers(&template);
            if pointers.is_empty() {
                break;
            }
            let pointer = index.get(&pointers);
            template = match value {
                Some(value) => {
                    *template.pointer_mut(pointer).unwrap() = value;
                    template
                }
                None => without(template, pointer),
            };
        }
        template
    })
}

/// Compares texts line by line; the expected one may be indented.
#[track_caller]
pub(crate) fn assert_lines(actual: &str, expected: &str) {
    let expected: Vec<_> = expected.lines().map(str::trim_start).collect();
    assert_eq!(actual.lines().collect::<Vec<_>>(), expected);
}

/// Changes as text, one per line: `path: from -> to`, with `-` for an absent side.
pub(crate) fn report(changes: &[FieldChange]) -> String {
    let side = |text: &Option<String>| text.as_ref().map_or("-".to_owned(), |t| format!("`{t}`"));
    let lines: Vec<_> = changes
        .iter()
        .map(|change| format!("{}: {} -> {}", change.path, side(&change.from), side(&change.to)))
        .collect();
    lines.join("\n")
}
