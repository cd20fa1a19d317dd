//! Specs that contradict themselves or that no server would accept: refused with a message, never
//! with a panic, and every spec that is not refused can be applied.

use sei_api::names;

use super::*;
use crate::fingerprint::TemplateHash;
use crate::quantity::Quantity;
use crate::testing::drop_nulls;

/// The longest refusal. It is stored in a condition, beside others, in an object of limited size.
const TEXT_MAX: usize = 8 * 1024;

/// Sets a value in a node's JSON, and creates the missing parents.
fn set(json: &mut Value, path: &str, value: Value) {
    let mut at = json;
    for key in path.split('/').skip(1) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[key.replace("~1", "/")];
    }
    *at = value;
}

fn with(name: &str, path: &str, value: Value) -> SeiNode {
    let mut json = serde_json::to_value(node(name)).unwrap();
    set(&mut json, path, value);
    node_from(json)
}

fn refusal(node: &SeiNode) -> String {
    render_desired(node, &platform("example"), &[], &[]).unwrap_err().to_string()
}

#[test]
fn a_refusal_names_the_field_and_the_value() {
    let long = "l".repeat(64);
    let cases = [
        ("rpc-genesis", "/metadata/name", json!("Upper"), "metadata.name"),
        ("rpc-genesis", "/metadata/name", json!("n".repeat(53)), "metadata.name"),
        ("rpc-genesis", "/spec/chainId", json!("under_score"), "spec.chainId"),
        ("rpc-genesis", "/spec/chainId", json!(long), "spec.chainId"),
        ("rpc-genesis", "/spec/image", json!("two parts"), "spec.image"),
        ("rpc-genesis", "/spec/podLabels/ok", json!("schön"), "spec.podLabels.ok"),
        ("rpc-genesis", "/spec/podLabels/ok", json!(long), "spec.podLabels.ok"),
        ("rpc-genesis", "/spec/sidecar/port", json!(65536), "spec.sidecar.port"),
        ("rpc-genesis", "/spec/sidecar/port", json!(26657), "spec.sidecar.port"),
        ("rpc-genesis", "/spec/sidecar/image", json!("a b"), "spec.sidecar.image"),
        ("arch-import", "/spec/dataVolume/import/pvcName", json!("A"), "dataVolume.import.pvcName"),
        ("val-byo", "/spec/validator/nodeKey/secret/secretName", json!("a_b"), "nodeKey.secret"),
        (
            "val-byo",
            "/spec/validator/nodeKey/secret/secretName",
            json!("val-byo-signing"),
            "spec.validator.nodeKey.secret.secretName",
        ),
        (
            "arch-publisher",
            "/spec/archive/snapshotGeneration/tendermint/keepRecent",
            json!(1),
            "spec.archive.snapshotGeneration.tendermint.keepRecent",
        ),
        ("replay-basic", "/spec/replayer/snapshot/s3/targetHeight", json!(-4), "s3.targetHeight"),
    ];
    for (name, path, value, field) in cases {
        let text = refusal(&with(name, path, value.clone()));
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        assert!(text.contains(field) && text.contains(&format!("`{shown}`")), "{path}: {text}");
    }
    let resource = json!({ "two parts": 1 });
    let text = refusal(&with("rpc-genesis", "/spec/sidecar/resources/limits", resource));
    assert!(text.starts_with("spec.sidecar.resources.limits: `two parts` is not"), "{text}");
    let modes = refusal(&with("rpc-genesis", "/spec/archive", json!({})));
    assert!(modes.contains("fullNode, archive"), "{modes}");
}

#[test]
fn quantities_are_accepted_or_refused_as_a_server_would() {
    let path = "/spec/sidecar/resources/requests/memory";
    for (text, stored) in [("0.5", "500m"), ("1e3", "1e3"), ("1024Mi", "1Gi"), ("0", "0")] {
        let node = with("rpc-genesis", path, json!(text));
        let desired = desired(&node, &platform("example"));
        let pod = desired.statefulset.unpack().spec.template.spec.unwrap();
        let sidecar = pod
            .init_containers
            .unwrap()
            .into_iter()
            .find(|container| container.name == "sei-sidecar");
        let requests = sidecar.unwrap().resources.unwrap().requests.unwrap();
        assert_eq!(requests["memory"].0, stored, "{text}");
    }
    for text in ["-1", "", "1e100", "lots", "1 Gi", "1\nGi", "０", "0x10", "1e", "NaN"] {
        let text = refusal(&with("rpc-genesis", path, json!(text)));
        assert!(text.starts_with("spec.sidecar.resources.requests.memory: "), "{text:?}: {text}");
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}

/// A node that was never stored has no uid: nothing could own what is rendered for it.
#[test]
fn a_node_that_was_never_stored_is_refused() {
    for field in ["uid", "namespace"] {
        let node = with("rpc-genesis", &format!("/metadata/{field}"), Value::Null);
        let text = refusal(&node);
        assert!(text.starts_with(&format!("metadata.{field} is empty")), "{text}");
    }
}

#[test]
fn thousands_of_mistakes_make_a_short_refusal() {
    let labels: BTreeMap<String, String> =
        (0..10_000).map(|i| (format!("bad key {i}"), "é".repeat(100))).collect();
    let quantities: BTreeMap<String, String> =
        (0..10_000).map(|i| (format!("resource-{i}"), "lots".to_owned())).collect();
    let mut json = serde_json::to_value(node("rpc-genesis")).unwrap();
    set(&mut json, "/spec/podLabels", json!(labels));
    set(&mut json, "/spec/sidecar/resources/limits", json!(quantities));
    let text = refusal(&node_from(json));
    assert!(text.len() < TEXT_MAX, "{} bytes", text.len());
    assert!(text.ends_with("; and 19992 more"), "{}", &text[text.len() - 40..]);
    let huge = "\n".repeat(1 << 20);
    for path in ["/spec/image", "/spec/chainId", "/metadata/name", "/spec/sidecar/image"] {
        let text = refusal(&with("rpc-genesis", path, json!(huge)));
        assert!(text.len() < TEXT_MAX && !text.contains('\n'), "{path}: {} bytes", text.len());
    }
}

/// A huge but valid map is rendered; its size is checked by the server.
#[test]
fn a_huge_map_of_good_labels_is_rendered() {
    let labels: BTreeMap<String, String> =
        (0..5000).map(|i| (format!("example.org/l{i}"), format!("v{i}"))).collect();
    let node = with("rpc-genesis", "/spec/podLabels", json!(labels));
    let template = desired(&node, &platform("example")).statefulset.unpack().spec.template;
    assert!(template.metadata.unwrap().labels.unwrap().len() > 5000);
}

/// Text that some field somewhere must not hold.
fn hostile_text() -> impl Strategy<Value = Value> {
    let lengths = select(vec![0, 1, 52, 53, 63, 64, 253, 254, 512, 513, 70_000]);
    prop_oneof![
        select(vec![
            "",
            " ",
            "a",
            "-a",
            "a-",
            "A",
            "a.b",
            "a/b",
            "é",
            "a\nb",
            "a\u{0}b",
            "\u{202e}a",
            "true",
            "0",
            "v1",
            "val-byo-signing",
            "val-byo-p2p",
            "sei.io/node",
            "{{.}}",
            "$(HOME)",
        ])
        .prop_map(Value::from),
        lengths.prop_map(|length| Value::from("a".repeat(length))),
        any::<String>().prop_map(Value::from),
    ]
}

fn hostile_quantity() -> impl Strategy<Value = Value> {
    prop_oneof![
        select(vec![
            "",
            "0",
            "0.5",
            "1e3",
            "-1",
            "1Ki",
            "1e-400",
            "1e400",
            "9223372036854775807",
            "1Ei",
            "٣",
            "1 ",
            "+1",
            ".5",
            "5.",
            "1n",
            "1.0000000001",
        ])
        .prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[+-]?[0-9.]{0,20}([eE][+-]?[0-9]{0,3})?(m|k|Mi|Gi|E|Ei|n|u)?".prop_map(Value::from),
    ]
}

fn hostile_labels() -> impl Strategy<Value = Value> {
    let key = prop_oneof![
        select(vec![
            "",
            "a",
            "sei.io/node",
            "sei.io/component",
            "controller-revision-hash",
            "a/b/c",
            "/a",
            "a/",
            "A.b/c",
            "schön",
        ])
        .prop_map(str::to_owned),
        "[a-z0-9./_-]{1,300}",
        any::<String>(),
    ];
    let value = prop_oneof!["[a-zA-Z0-9._-]{0,70}", any::<String>()];
    prop::collection::btree_map(key, value, 0..40).prop_map(|labels| json!(labels))
}

/// One mistake: the path and its new value. Null removes the value.
fn mistake() -> impl Strategy<Value = (&'static str, Value)> {
    let key = json!({ "secret": { "secretName": "val-byo-p2p" } });
    let modes = prop_oneof![
        select(vec![("/spec/fullNode", json!({})), ("/spec/archive", json!({}))]),
        select(vec![("/spec/validator", json!({})), ("/spec/seed", json!({ "nodeKey": key }))]),
        select(vec![("/spec/replayer", json!({ "snapshot": {} }))]),
        select(vec!["/spec/fullNode", "/spec/archive", "/spec/validator", "/spec/seed"])
            .prop_map(|path| (path, Value::Null)),
        select(vec!["/spec/fullNode/snapshotGeneration", "/spec/archive/snapshotGeneration"])
            .prop_map(|path| (path, json!({}))),
    ];
    let texts = select(vec![
        "/metadata/name",
        "/metadata/namespace",
        "/metadata/annotations/sei.io~1dedicated-node",
        "/spec/chainId",
        "/spec/image",
        "/spec/sidecar/image",
        "/spec/externalAddress",
        "/spec/overrides/a",
        "/spec/dataVolume/import/pvcName",
        "/spec/fullNode/snapshot/bootstrapImage",
        "/spec/fullNode/snapshot/trustPeriod",
        "/spec/validator/signingKey/secret/secretName",
        "/spec/validator/nodeKey/secret/secretName",
        "/spec/seed/nodeKey/secret/secretName",
    ]);
    let quantities = select(vec![
        "/spec/sidecar/resources/requests/cpu",
        "/spec/sidecar/resources/requests/memory",
        "/spec/sidecar/resources/limits/memory",
        "/spec/sidecar/resources/limits/a\nb",
    ]);
    let ceremony =
        json!({ "chainId": "", "stakingAmount": " ", "accountBalance": "", "index": -1 });
    prop_oneof![
        4 => modes,
        6 => (texts, hostile_text()),
        3 => (quantities, hostile_quantity()),
        2 => (Just("/spec/podLabels"), hostile_labels()),
        1 => (Just("/spec/sidecar/port"), any::<i32>().prop_map(Value::from)),
        1 => (Just("/spec/fullNode/snapshot/s3/targetHeight"), any::<i64>().prop_map(Value::from)),
        1 => Just(("/spec/validator/genesisCeremony", ceremony)),
    ]
}

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(inner)
}

/// Every rendered object keeps the rules of a server, as far as they can be checked here.
fn check_applicable(desired: &Desired) {
    TemplateHash::parse(&desired.hash).unwrap();
    TemplateHash::parse(&desired.inputs_hash).unwrap();
    let template = &desired.statefulset.unpack().spec.template;
    for (key, value) in
        template.metadata.iter().flat_map(|metadata| metadata.labels.iter().flatten())
    {
        let name = key.rsplit_once('/').map_or(key.as_str(), |(_, name)| name);
        assert!(is_label(name) && !name.is_empty() && is_label(value), "{key}: {value}");
    }
    let pod = template.spec.as_ref().unwrap();
    for container in pod.containers.iter().chain(pod.init_containers.iter().flatten()) {
        let image = container.image.as_deref().unwrap();
        assert!(!image.is_empty() && !image.contains(char::is_whitespace), "{image:?}");
        for port in container.ports.iter().flatten() {
            assert!((1..=65535).contains(&port.container_port), "{}", port.container_port);
        }
        let Some(resources) = &container.resources else { continue };
        let both = resources.requests.iter().chain(&resources.limits).flatten();
        for (name, quantity) in both {
            let parsed = Quantity::parse(&quantity.0).unwrap();
            assert!(
                !parsed.is_negative() && parsed.canonical() == quantity.0,
                "{name}: {parsed:?}"
            );
        }
    }
    let name = desired.statefulset.unpack().metadata.name.unwrap();
    assert!(!name.is_empty() && name.len() <= names::NODE_NAME_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(700))]

    #[test]
    fn any_spec_is_rendered_or_refused_with_a_message(
        name in select(manifests()),
        on in select(&PLATFORMS[..]),
        mistakes in prop::collection::vec(mistake(), 1..6),
    ) {
        let mut json = serde_json::to_value(node(name)).unwrap();
        for (path, value) in mistakes {
            set(&mut json, path, value);
        }
        drop_nulls(&mut json);
        // Values that the types cannot hold never get here.
        let Ok(node) = serde_json::from_value::<SeiNode>(json) else { return Ok(()) };
        match render_desired(&node, &platform(on), &peers(), &[]) {
            Ok(desired) => check_applicable(&desired),
            Err(error) => {
                let text = error.to_string();
                prop_assert!(!text.chars().any(char::is_control), "{:?}", text);
                prop_assert!(text.len() < TEXT_MAX, "{} bytes", text.len());
                if let DesiredError::Spec(errors) = &error {
                    for error in errors {
                        let text = error.to_string();
                        prop_assert!(text.starts_with(&format!("{}: ", error.field())), "{}", text);
                    }
                }
            }
        }
    }
}
