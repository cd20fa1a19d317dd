//! Which objects a server with our CRD accepts and rejects, without a server.
//!
//! `admit` follows the order of a server: defaults, the structural schema, the rules in CEL.

#![allow(clippy::unwrap_used, reason = "all of it is test code; clippy sees that in tests only")]

mod compatibility;
mod schema;

use expect_test::{Expect, expect};
use kube::core::cel::{validate_cel, validate_cel_update};
use schema::{CHECKED, DESCRIPTIVE, SCHEMA, admit, keywords};
use sei_api::SeiNode;
use serde_json::{Value, json};

/// Manifests that must be accepted unchanged.
const ACCEPTED: &[&str] = &[
    include_str!("../../testdata/accept/archive.yaml"),
    include_str!("../../testdata/accept/full-node.yaml"),
    include_str!("../../testdata/accept/replayer.yaml"),
    include_str!("../../testdata/accept/seed.yaml"),
    include_str!("../../testdata/accept/validator.yaml"),
];

fn manifests() -> Vec<Value> {
    let documents = ACCEPTED.iter().flat_map(|file| file.split("\n---\n"));
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

/// A node with the fields that every spec needs, and the given ones.
fn node(spec: &str) -> Value {
    let given: Value = serde_saphyr::from_str(spec).unwrap();
    let mut spec = json!({ "chainId": "demo-1", "image": "seid:v1" });
    spec.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
    named("a", spec)
}

fn named(name: &str, spec: Value) -> Value {
    let mut node = json!({ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode" });
    node["metadata"] = json!({ "name": name, "namespace": "demo" });
    node["spec"] = spec;
    node
}

fn text_of(outcome: Result<Value, Vec<String>>) -> String {
    match outcome {
        Ok(_) => "accepted".to_owned(),
        Err(faults) => faults.join("\n  "),
    }
}

fn accepted(spec: &str) {
    assert_eq!(text_of(admit(&node(spec), None)), "accepted", "{spec}");
}

/// Each spec with every reason why it is rejected.
fn check(specs: &[&str], expected: &Expect) {
    let line = |spec: &&str| format!("{spec}\n  {}\n", text_of(admit(&node(spec), None)));
    expected.assert_eq(&specs.iter().map(line).collect::<String>());
}

/// Each change of a spec, from the first to the second, with every reason why it is rejected.
fn check_update(changes: &[(&str, &str)], expected: &Expect) {
    let line = |(old, new): &(&str, &str)| {
        let old = admit(&node(old), None).expect("the stored object was accepted once");
        format!("{new}\n  {}\n", text_of(admit(&node(new), Some(&old))))
    };
    expected.assert_eq(&changes.iter().map(line).collect::<String>());
}

#[test]
fn every_keyword_of_the_schema_is_checked() {
    let is_unknown =
        |keyword: &&String| !CHECKED.iter().chain(DESCRIPTIVE).any(|known| known == keyword);
    let found = keywords(&SCHEMA);
    let unknown: Vec<&String> = found.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "the checker does not support {unknown:?}");
    let unused: Vec<_> = CHECKED.iter().filter(|keyword| !found.contains(**keyword)).collect();
    assert!(unused.is_empty(), "the schema has no {unused:?}");
}

#[test]
fn every_example_is_accepted() {
    assert_eq!(manifests().len(), 18);
    for manifest in manifests() {
        let name = &manifest["metadata"]["name"];
        assert_eq!(text_of(admit(&manifest, None)), "accepted", "{name}");
        let typed: SeiNode = serde_json::from_value(manifest.clone()).unwrap();
        assert!(validate_cel(&typed).is_ok(), "{name}");
        assert!(validate_cel_update(&typed, &typed).is_ok(), "{name}");
    }
}

/// The cluster tests send the same file to real servers.
#[test]
fn every_counterexample_is_refused() {
    let cases: Vec<Value> =
        serde_saphyr::from_str(include_str!("../../testdata/refuse.yaml")).unwrap();
    assert!(cases.len() > 20);
    for case in cases {
        let stored = |spec: &Value| admit(&named("a", spec.clone()), None).unwrap();
        let old = case.get("from").map(stored);
        let refusal = text_of(admit(&named("a", case["spec"].clone()), old.as_ref()));
        let text = |field: &str| case[field].as_str().unwrap().to_owned();
        assert_eq!(refusal, format!("{}: {}", text("path"), text("rule")), "{}", case["spec"]);
    }
}

/// Decoding and encoding keeps presence switches and numbers unchanged.
#[test]
fn every_example_survives_a_round_trip() {
    for manifest in manifests() {
        let stored = admit(&manifest, None).unwrap();
        let typed: SeiNode = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&typed).unwrap(), stored);
    }
}

#[test]
fn presence_switches_survive_a_round_trip() {
    for spec in [
        "fullNode: {}",
        "archive: {}",
        "validator: {}",
        "fullNode: {snapshot: {stateSync: {}}}",
        "fullNode: {snapshotGeneration: {tendermint: {keepRecent: 2, publish: {}}}}",
        "validator: {operatorKeyring: {}}",
        "{fullNode: {}, dataVolume: {}}",
    ] {
        let stored = admit(&node(spec), None).unwrap();
        let typed: SeiNode = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(&typed).unwrap(), stored, "{spec}");
    }
}

#[test]
fn exactly_one_mode_is_set() {
    for mode in ["fullNode: {}", "archive: {}", "validator: {}"] {
        accepted(mode);
    }
    check(
        &[
            "{}",
            "{fullNode: {}, archive: {}}",
            "{validator: {}, seed: {nodeKey: {secret: {secretName: a}}}}",
        ],
        &expect![[r#"
            {}
              spec: exactly one of fullNode, archive, replayer, validator or seed must be set
            {fullNode: {}, archive: {}}
              spec: exactly one of fullNode, archive, replayer, validator or seed must be set
            {validator: {}, seed: {nodeKey: {secret: {secretName: a}}}}
              spec: exactly one of fullNode, archive, replayer, validator or seed must be set
        "#]],
    );
}

#[test]
fn a_replayer_has_peers() {
    accepted(
        "{peers: [{static: {addresses: ['a@b:1']}}], replayer: {snapshot: {s3: {targetHeight: 1}}}}",
    );
    accepted("{peers: [], fullNode: {}}");
    check(
        &[
            "replayer: {snapshot: {s3: {targetHeight: 1}}}",
            "{peers: [], replayer: {snapshot: {s3: {targetHeight: 1}}}}",
            "{peers: [{static: {addresses: ['a@b:1']}}], replayer: {}}",
        ],
        &expect![[r#"
            replayer: {snapshot: {s3: {targetHeight: 1}}}
              spec: a replayer needs at least one entry in peers
            {peers: [], replayer: {snapshot: {s3: {targetHeight: 1}}}}
              spec: a replayer needs at least one entry in peers
            {peers: [{static: {addresses: ['a@b:1']}}], replayer: {}}
              spec.replayer.snapshot: required
        "#]],
    );
}

#[test]
fn a_peer_source_has_one_variant() {
    for peer in [
        "{label: {selector: {a: b}}}",
        "{label: {selector: {a: b}, namespace: edge}}",
        "{static: {addresses: ['a@b:1']}}",
        "{ec2Tags: {region: eu, tags: {a: b}}}",
    ] {
        accepted(&format!("{{fullNode: {{}}, peers: [{peer}]}}"));
    }
    check(
        &[
            "{fullNode: {}, peers: [{}]}",
            "{fullNode: {}, peers: [{label: {selector: {a: b}}, static: {addresses: ['a@b:1']}}]}",
            "{fullNode: {}, peers: [{static: {addresses: []}}]}",
            "{fullNode: {}, peers: [{label: {selector: {}}}]}",
            "{fullNode: {}, peers: [{label: {}}]}",
            "{fullNode: {}, peers: [{ec2Tags: {region: '', tags: {}}}]}",
            "{fullNode: {}, peers: [{ec2Tags: {}}]}",
        ],
        &expect![[r#"
            {fullNode: {}, peers: [{}]}
              spec.peers[0]: exactly one of label, static or ec2Tags must be set in a peer source
            {fullNode: {}, peers: [{label: {selector: {a: b}}, static: {addresses: ['a@b:1']}}]}
              spec.peers[0]: exactly one of label, static or ec2Tags must be set in a peer source
            {fullNode: {}, peers: [{static: {addresses: []}}]}
              spec.peers[0].static.addresses: minItems
            {fullNode: {}, peers: [{label: {selector: {}}}]}
              spec.peers[0].label.selector: minProperties
            {fullNode: {}, peers: [{label: {}}]}
              spec.peers[0].label.selector: required
            {fullNode: {}, peers: [{ec2Tags: {region: '', tags: {}}}]}
              spec.peers[0].ec2Tags.region: minLength
              spec.peers[0].ec2Tags.tags: minProperties
            {fullNode: {}, peers: [{ec2Tags: {}}]}
              spec.peers[0].ec2Tags.region: required
              spec.peers[0].ec2Tags.tags: required
        "#]],
    );
}

#[test]
fn a_snapshot_has_one_source() {
    accepted("fullNode: {snapshot: {stateSync: {}}}");
    accepted(
        "fullNode: {snapshot: {s3: {targetHeight: 1}, trustPeriod: 168h0m0s, backfillBlocks: 0}}",
    );
    check(
        &[
            "fullNode: {snapshot: {}}",
            "fullNode: {snapshot: {s3: {targetHeight: 1}, stateSync: {}}}",
            "validator: {snapshot: {}}",
            "fullNode: {snapshot: {s3: {targetHeight: 0}}}",
            "fullNode: {snapshot: {s3: {}}}",
            "fullNode: {snapshotGeneration: {tendermint: {keepRecent: 0}}}",
            "fullNode: {snapshotGeneration: {tendermint: {}}}",
            "archive: {snapshot: {stateSync: {}}}",
        ],
        &expect![[r#"
            fullNode: {snapshot: {}}
              spec.fullNode.snapshot: exactly one of s3 or stateSync must be set in snapshot
            fullNode: {snapshot: {s3: {targetHeight: 1}, stateSync: {}}}
              spec.fullNode.snapshot: exactly one of s3 or stateSync must be set in snapshot
            validator: {snapshot: {}}
              spec.validator.snapshot: exactly one of s3 or stateSync must be set in snapshot
            fullNode: {snapshot: {s3: {targetHeight: 0}}}
              spec.fullNode.snapshot.s3.targetHeight: minimum
            fullNode: {snapshot: {s3: {}}}
              spec.fullNode.snapshot.s3.targetHeight: required
            fullNode: {snapshotGeneration: {tendermint: {keepRecent: 0}}}
              spec.fullNode.snapshotGeneration.tendermint.keepRecent: minimum
            fullNode: {snapshotGeneration: {tendermint: {}}}
              spec.fullNode.snapshotGeneration.tendermint.keepRecent: required
            archive: {snapshot: {stateSync: {}}}
              spec.archive.snapshot: unknown
        "#]],
    );
}

#[test]
fn witnesses_are_two_different_addresses() {
    accepted("fullNode: {snapshot: {stateSync: {}, rpcServers: ['a:1', 'a:2']}}");
    check(
        &[
            "fullNode: {snapshot: {stateSync: {}, rpcServers: ['a:1']}}",
            "fullNode: {snapshot: {stateSync: {}, rpcServers: ['a:1', 'a:1']}}",
            "fullNode: {snapshot: {stateSync: {}, rpcServers: ['http://a:1', 'b:1']}}",
            "fullNode: {snapshot: {stateSync: {}, rpcServers: [a, 'b:1']}}",
            "fullNode: {snapshot: {stateSync: {}, rpcServers: ['[::1]:1', 'b:1']}}",
        ],
        &expect![[r#"
            fullNode: {snapshot: {stateSync: {}, rpcServers: ['a:1']}}
              spec.fullNode.snapshot.rpcServers: minItems
            fullNode: {snapshot: {stateSync: {}, rpcServers: ['a:1', 'a:1']}}
              spec.fullNode.snapshot.rpcServers: duplicate
            fullNode: {snapshot: {stateSync: {}, rpcServers: ['http://a:1', 'b:1']}}
              spec.fullNode.snapshot.rpcServers[0]: pattern
            fullNode: {snapshot: {stateSync: {}, rpcServers: [a, 'b:1']}}
              spec.fullNode.snapshot.rpcServers[0]: pattern
            fullNode: {snapshot: {stateSync: {}, rpcServers: ['[::1]:1', 'b:1']}}
              spec.fullNode.snapshot.rpcServers[0]: pattern
        "#]],
    );
}

const KEYS: &str = "signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}";

fn keyring(name: &str, passphrase: &str) -> String {
    let reference = format!("{{secretName: {passphrase}, key: k}}");
    let secret = format!("{{secretName: {name}, passphraseSecretRef: {reference}}}");
    format!("validator: {{{KEYS}, operatorKeyring: {{secret: {secret}}}}}")
}

#[test]
fn key_sources_are_set() {
    accepted("seed: {nodeKey: {secret: {secretName: p2p}}}");
    check(
        &[
            "seed: {}",
            "seed: {nodeKey: {}}",
            "validator: {signingKey: {}, nodeKey: {secret: {secretName: p2p}}}",
            "validator: {signingKey: {secret: {secretName: s}}, nodeKey: {}}",
            "seed: {nodeKey: {secret: {}}}",
            "seed: {nodeKey: {secret: {secretName: ''}}}",
            "seed: {nodeKey: {secret: {secretName: has.dots}}}",
        ],
        &expect![[r#"
            seed: {}
              spec.seed.nodeKey: required
            seed: {nodeKey: {}}
              spec.seed.nodeKey: exactly one key source must be set: secret
            validator: {signingKey: {}, nodeKey: {secret: {secretName: p2p}}}
              spec.validator.signingKey: exactly one key source must be set: secret
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {}}
              spec.validator.nodeKey: exactly one key source must be set: secret
            seed: {nodeKey: {secret: {}}}
              spec.seed.nodeKey.secret.secretName: required
            seed: {nodeKey: {secret: {secretName: ''}}}
              spec.seed.nodeKey.secret.secretName: minLength
              spec.seed.nodeKey.secret.secretName: pattern
            seed: {nodeKey: {secret: {secretName: has.dots}}}
              spec.seed.nodeKey.secret.secretName: pattern
        "#]],
    );
}

#[test]
fn signing_and_node_key_come_together_and_apart() {
    accepted(&format!("validator: {{{KEYS}}}"));
    check(
        &[
            "validator: {signingKey: {secret: {secretName: s}}}",
            "validator: {nodeKey: {secret: {secretName: p2p}}}",
            "validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: s}}}",
        ],
        &expect![[r#"
            validator: {signingKey: {secret: {secretName: s}}}
              spec.validator: signingKey and nodeKey must be set together or not at all
            validator: {nodeKey: {secret: {secretName: p2p}}}
              spec.validator: signingKey and nodeKey must be set together or not at all
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: s}}}
              spec.validator: signingKey and nodeKey must name different Secrets
        "#]],
    );
}

#[test]
fn a_keyring_shares_no_secret() {
    accepted(&keyring("k", "p"));
    let specs = [("s", "p"), ("p2p", "p"), ("k", "k"), ("k", "s"), ("k", "p2p")];
    let specs = specs.map(|(name, passphrase)| keyring(name, passphrase));
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check(
        &specs,
        &expect![[r#"
        validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: s, passphraseSecretRef: {secretName: p, key: k}}}}
          spec.validator: operatorKeyring must name a Secret of its own, apart from signingKey, nodeKey and its passphrase
        validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: p2p, passphraseSecretRef: {secretName: p, key: k}}}}
          spec.validator: operatorKeyring must name a Secret of its own, apart from signingKey, nodeKey and its passphrase
        validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: k, key: k}}}}
          spec.validator: operatorKeyring must name a Secret of its own, apart from signingKey, nodeKey and its passphrase
        validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: s, key: k}}}}
          spec.validator: the operatorKeyring passphrase must be in a Secret apart from signingKey and nodeKey
        validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p2p, key: k}}}}
          spec.validator: the operatorKeyring passphrase must be in a Secret apart from signingKey and nodeKey
    "#]],
    );
}

/// The peer's schema allows it and its rules fail on it; here it means no keyring.
#[test]
fn an_empty_keyring_is_accepted() {
    accepted("validator: {operatorKeyring: {}}");
    accepted(&format!("validator: {{{KEYS}, operatorKeyring: {{}}}}"));
}

#[test]
fn a_keyring_names_its_key_and_passphrase() {
    let with = |fields: &str| {
        format!("validator: {{operatorKeyring: {{secret: {{secretName: k, {fields}}}}}}}")
    };
    let reference = "passphraseSecretRef: {secretName: p, key: k}";
    accepted(&with(&format!("{reference}, keyName: treasury_1-A, seidMount: true")));
    let long = |length: usize| with(&format!("{reference}, keyName: {}", "a".repeat(length)));
    accepted(&long(64));
    let refusal = text_of(admit(&node(&long(65)), None));
    assert_eq!(refusal, "spec.validator.operatorKeyring.secret.keyName: maxLength");
    let specs = [
        with("seidMount: true"),
        with("passphraseSecretRef: {secretName: p}"),
        with("passphraseSecretRef: {secretName: p, key: ''}"),
        with(&format!("{reference}, keyName: a.b")),
        with(&format!("{reference}, keyName: ''")),
    ];
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check(
        &specs,
        &expect![[r#"
            validator: {operatorKeyring: {secret: {secretName: k, seidMount: true}}}
              spec.validator.operatorKeyring.secret.passphraseSecretRef: required
            validator: {operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p}}}}
              spec.validator.operatorKeyring.secret.passphraseSecretRef.key: required
            validator: {operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p, key: ''}}}}
              spec.validator.operatorKeyring.secret.passphraseSecretRef.key: minLength
            validator: {operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p, key: k}, keyName: a.b}}}
              spec.validator.operatorKeyring.secret.keyName: pattern
            validator: {operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p, key: k}, keyName: ''}}}
              spec.validator.operatorKeyring.secret.keyName: pattern
        "#]],
    );
}

#[test]
fn names_of_secrets_and_claims_are_immutable() {
    let keys = format!("validator: {{{KEYS}}}");
    let ring = keyring("k", "p");
    let (other_ring, other_passphrase) = (keyring("k2", "p"), keyring("k", "p2"));
    check_update(
        &[
            (
                &keys,
                "validator: {signingKey: {secret: {secretName: s2}}, nodeKey: {secret: {secretName: p2p}}}",
            ),
            (
                &keys,
                "validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p-2}}}",
            ),
            (&ring, &other_ring),
            (&ring, &other_passphrase),
            (
                "seed: {nodeKey: {secret: {secretName: p2p}}}",
                "seed: {nodeKey: {secret: {secretName: p2p-2}}}",
            ),
            (
                "{archive: {}, dataVolume: {import: {pvcName: a}}}",
                "{archive: {}, dataVolume: {import: {pvcName: b}}}",
            ),
            (&keys, &keys),
            (&keys, "validator: {}"),
            ("validator: {}", &ring),
        ],
        &expect![[r#"
            validator: {signingKey: {secret: {secretName: s2}}, nodeKey: {secret: {secretName: p2p}}}
              spec.validator.signingKey.secret.secretName: secretName is immutable
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p-2}}}
              spec.validator.nodeKey.secret.secretName: secretName is immutable
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k2, passphraseSecretRef: {secretName: p, key: k}}}}
              spec.validator.operatorKeyring.secret.secretName: secretName is immutable
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p2, key: k}}}}
              spec.validator.operatorKeyring.secret.passphraseSecretRef.secretName: secretName is immutable
            seed: {nodeKey: {secret: {secretName: p2p-2}}}
              spec.seed.nodeKey.secret.secretName: secretName is immutable
            {archive: {}, dataVolume: {import: {pvcName: b}}}
              spec.dataVolume.import.pvcName: pvcName is immutable
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}}
              accepted
            validator: {}
              accepted
            validator: {signingKey: {secret: {secretName: s}}, nodeKey: {secret: {secretName: p2p}}, operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p, key: k}}}}
              accepted
        "#]],
    );
}

#[test]
fn an_import_is_not_removed() {
    let import = "{archive: {}, dataVolume: {import: {pvcName: a}}}";
    check_update(
        &[
            (import, "{archive: {}, dataVolume: {}}"),
            (import, import),
            ("{archive: {}, dataVolume: {}}", import),
            (import, "archive: {}"),
        ],
        &expect![[r#"
            {archive: {}, dataVolume: {}}
              spec.dataVolume: import cannot be removed once it is set
            {archive: {}, dataVolume: {import: {pvcName: a}}}
              accepted
            {archive: {}, dataVolume: {import: {pvcName: a}}}
              accepted
            archive: {}
              accepted
        "#]],
    );
}

#[test]
fn chain_and_mode_stay_mutable_at_admission() {
    check_update(
        &[("fullNode: {}", "archive: {}"), ("fullNode: {}", "{chainId: other-1, fullNode: {}}")],
        &expect![[r#"
            archive: {}
              accepted
            {chainId: other-1, fullNode: {}}
              accepted
        "#]],
    );
}

#[test]
fn lengths_and_patterns_are_kept() {
    let chain = |length: usize| format!("{{fullNode: {{}}, chainId: {}}}", "a".repeat(length));
    let image = |length: usize| format!("{{fullNode: {{}}, image: {}}}", "a".repeat(length));
    accepted(&chain(63));
    accepted(&image(512));
    assert_eq!(text_of(admit(&node(&chain(64)), None)), "spec.chainId: maxLength");
    assert_eq!(text_of(admit(&node(&image(513)), None)), "spec.image: maxLength");
    check(
        &[
            "{fullNode: {}, chainId: Demo_1}",
            "{fullNode: {}, chainId: ''}",
            "{fullNode: {}, image: ''}",
            "{fullNode: {}, image: 7}",
            "{fullNode: {}, overrides: {a: 1}}",
            "{fullNode: {}, genesis: {}}",
            "{fullNode: {}, update: {onOperatorChange: Never}}",
        ],
        &expect![[r#"
            {fullNode: {}, chainId: Demo_1}
              spec.chainId: pattern
            {fullNode: {}, chainId: ''}
              spec.chainId: minLength
              spec.chainId: pattern
            {fullNode: {}, image: ''}
              spec.image: minLength
            {fullNode: {}, image: 7}
              spec.image: type
            {fullNode: {}, overrides: {a: 1}}
              spec.overrides.a: type
            {fullNode: {}, genesis: {}}
              spec.genesis: unknown
            {fullNode: {}, update: {onOperatorChange: Never}}
              spec.update.onOperatorChange: enum
        "#]],
    );
    for field in ["chainId", "image"] {
        let mut node = node("fullNode: {}");
        node["spec"].as_object_mut().unwrap().remove(field);
        assert_eq!(text_of(admit(&node, None)), format!("spec.{field}: required"));
    }
}

#[test]
fn a_name_has_at_most_52_characters() {
    let spec = node("fullNode: {}")["spec"].clone();
    let of_length = |length: usize| named(&"a".repeat(length), spec.clone());
    assert_eq!(text_of(admit(&of_length(52), None)), "accepted");
    let refusal = text_of(admit(&of_length(53), None));
    assert!(refusal.contains("metadata.name must have at most 52 characters"), "{refusal}");

    // An object that was stored before the rule still gets its status.
    let old = of_length(53);
    let mut new = old.clone();
    new["status"] = json!({ "phase": "Pending" });
    assert_eq!(text_of(admit(&new, Some(&old))), "accepted");
}

#[test]
fn a_name_is_that_of_a_service() {
    let spec = node("fullNode: {}")["spec"].clone();
    for name in ["9digit", "dots.in.name", "-a", "a-"] {
        let refusal = text_of(admit(&named(name, spec.clone()), None));
        assert!(refusal.contains("metadata.name must start with a-z"), "{name}: {refusal}");
    }
    let old = named("9digit", spec);
    let mut new = old.clone();
    new["status"] = json!({ "phase": "Pending" });
    assert_eq!(text_of(admit(&new, Some(&old))), "accepted");
}

/// Once the operator has recorded them, chain and mode stay; what runs can be set again.
#[test]
fn chain_and_mode_cannot_change_except_back() {
    let recorded = |spec: &str, status: &Value| {
        let mut stored = node(spec);
        stored["status"] = status.clone();
        stored
    };
    let change = |old: &str, new: &str, status: &Value| {
        text_of(admit(&recorded(new, status), Some(&recorded(old, status))))
    };
    let runs = json!({ "chainId": "demo-1", "mode": "fullNode" });
    let (full, archive) = ("fullNode: {}", "archive: {}");
    let moved = "{fullNode: {}, chainId: demo-2}";
    let chain = ".spec.chainId: chainId cannot change: create another node instead";
    let mode = ".spec: the mode cannot change: create another node instead";
    assert_eq!(change(full, moved, &runs), chain);
    assert_eq!(change(full, archive, &runs), mode);
    // Stored before there was a rule.
    for refused in [moved, archive] {
        assert_eq!(change(refused, refused, &runs), "accepted");
        assert_eq!(change(refused, full, &runs), "accepted");
    }
    assert_eq!(change("{fullNode: {}, chainId: demo-3}", moved, &runs), chain);
    // Nothing runs yet.
    for new in [moved, archive] {
        assert_eq!(change(full, new, &json!({ "phase": "Pending" })), "accepted");
    }
}

#[test]
fn the_sidecar_port_is_a_port() {
    let port = |number: i32| format!("{{fullNode: {{}}, sidecar: {{port: {number}}}}}");
    accepted(&port(1));
    accepted(&port(65535));
    check(
        &[&port(0), &port(65536)],
        &expect![[r#"
        {fullNode: {}, sidecar: {port: 0}}
          spec.sidecar.port: minimum
        {fullNode: {}, sidecar: {port: 65536}}
          spec.sidecar.port: maximum
    "#]],
    );
}

#[test]
fn quantities_are_numbers_or_quantity_texts() {
    let cpu = |quantity: &str| {
        format!("{{fullNode: {{}}, sidecar: {{resources: {{requests: {{cpu: {quantity}}}}}}}}}")
    };
    for quantity in ["2", "'500m'", "'0.5'", "'1e3'", "1Gi", "'+1.5Ki'", "-1"] {
        accepted(&cpu(quantity));
        let stored = admit(&node(&cpu(quantity)), None).unwrap();
        let typed: SeiNode = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(serde_json::to_value(typed).unwrap(), stored, "{quantity}");
    }
    let specs = ["''", "abc", "1 Gi", "0.5", "true"].map(cpu);
    let specs: Vec<&str> = specs.iter().map(String::as_str).collect();
    check(
        &specs,
        &expect![[r#"
        {fullNode: {}, sidecar: {resources: {requests: {cpu: ''}}}}
          spec.sidecar.resources.requests.cpu: pattern
        {fullNode: {}, sidecar: {resources: {requests: {cpu: abc}}}}
          spec.sidecar.resources.requests.cpu: pattern
        {fullNode: {}, sidecar: {resources: {requests: {cpu: 1 Gi}}}}
          spec.sidecar.resources.requests.cpu: pattern
        {fullNode: {}, sidecar: {resources: {requests: {cpu: 0.5}}}}
          spec.sidecar.resources.requests.cpu: type
        {fullNode: {}, sidecar: {resources: {requests: {cpu: true}}}}
          spec.sidecar.resources.requests.cpu: type
    "#]],
    );
    check(
        &["{fullNode: {}, sidecar: {resources: {claims: [{name: a}, {name: a}]}}}"],
        &expect![[r#"
        {fullNode: {}, sidecar: {resources: {claims: [{name: a}, {name: a}]}}}
          spec.sidecar.resources.claims: duplicate
    "#]],
    );
}

#[test]
fn defaults_are_in_the_schema() {
    let stored = admit(&node("{fullNode: {}, sidecar: {}}"), None).unwrap();
    assert_eq!(stored["spec"]["sidecar"], json!({ "port": 7777 }));
    let ring =
        "operatorKeyring: {secret: {secretName: k, passphraseSecretRef: {secretName: p, key: k}}}";
    let stored = admit(&node(&format!("validator: {{{ring}}}")), None).unwrap();
    let secret = &stored["spec"]["validator"]["operatorKeyring"]["secret"];
    assert_eq!(secret["keyName"], "node_admin");
    assert!(admit(&node("fullNode: {}"), None).unwrap()["spec"]["sidecar"].is_null());
}

#[test]
fn refusals_contain_the_phrases_that_tools_match() {
    let refusal = text_of(admit(&node("{}"), None));
    assert!(refusal.contains("exactly one of"), "{refusal}");
    let rules = SCHEMA.to_string();
    assert_eq!(rules.matches("is immutable").count(), rules.matches("\"self == oldSelf\"").count());
    assert_eq!(rules.matches("is immutable").count(), 6);
}
