//! Valid and invalid platform files.

use expect_test::{Expect, expect};
use proptest::prelude::*;
use sei_api::node::{OnImageChange, OnOperatorChange};
use serde_json::Value;

use super::*;

const EXAMPLE: &str = include_str!("../../testdata/platform/example.yaml");
const MINIMAL: &str = include_str!("../../testdata/platform/minimal.yaml");
const TUNED: &str = include_str!("../../testdata/platform/tuned.yaml");

fn parse(text: &str) -> Platform {
    Platform::parse(text, "config.yaml").unwrap()
}

/// The whole error, as the last line of a failed start prints it.
#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "reads better at the call")]
fn check(text: &str, expect: Expect) {
    let error = Platform::parse(text, "/etc/sei/config.yaml").unwrap_err().to_string();
    assert!(!error.chars().any(char::is_control), "not one line: {error:?}");
    assert!(error.starts_with("/etc/sei/config.yaml: "));
    expect.assert_eq(error.strip_prefix("/etc/sei/config.yaml: ").unwrap());
}

/// The minimal file with one line replaced.
fn with(line: &str, replacement: &str) -> String {
    assert!(MINIMAL.contains(line), "no such line: {line}");
    MINIMAL.replace(line, replacement)
}

#[test]
fn the_example_file_is_read() {
    let platform = parse(EXAMPLE);
    assert_eq!(platform.scheduling.nodepool_seed, "chain-seed");
    assert_eq!(platform.scheduling.toleration_key, "example.org/chain");
    assert_eq!(platform.storage.size_archive.canonical(), "30Ti");
    assert_eq!(platform.storage.size_seed.canonical(), "25Gi");
    assert_eq!(platform.resources.node.cpu_request.unwrap().canonical(), "8");
    assert_eq!(platform.resources.seed.cpu_request, None);
    assert_eq!(platform.genesis.bucket, "ex-genesis");
    assert_eq!(platform.images.kube_rbac_proxy, "registry.example.org/kube-rbac-proxy:v0.19.1");
    assert_eq!(
        platform.witnesses("pacific-1"),
        ["witness-a.sync.svc:26657", "witness-b.sync.svc:26657"]
    );
}

#[test]
fn what_is_left_out_has_a_default() {
    let platform = parse(MINIMAL);
    assert_eq!(platform.rollout, Rollout::default());
    assert_eq!(platform.rollout.on_operator_change, OnOperatorChange::Auto);
    assert_eq!(platform.rollout.adoption, Adoption::Hold);
    assert_eq!(platform.storage.size_seed.canonical(), "20Gi");
    assert_eq!(platform.resources, Resources::default());
    assert!(platform.witnesses("demo-1").is_empty());
}

#[test]
fn every_key_can_be_set() {
    let platform = parse(TUNED);
    assert_eq!(
        platform.rollout,
        Rollout {
            on_operator_change: OnOperatorChange::Hold,
            on_image_change: OnImageChange::AtOnce,
            max_concurrent_per_chain: 2,
            max_unavailable: Share::Percent(10),
            budget_scope: BudgetScope::Namespace,
            ready_deadline_seconds: 900,
            min_ready_seconds: 30,
            halt_after_failures: 3,
            settle_seconds: 0,
            adoption: Adoption::Auto,
            pod_check: PodCheck::DryRun,
            pre_pull: PrePull::Off,
        }
    );
    assert_eq!(platform.resources.node.memory.unwrap().canonical(), "64Gi");
    assert_eq!(platform.resources.replayer.cpu_request.unwrap().canonical(), "500m");
}

#[test]
fn what_places_pods_can_be_set_and_is_checked() {
    let platform = parse(include_str!("../../testdata/platform/placed.yaml"));
    assert_eq!(platform.scheduling.nodepool_label, "cloud.example.org/pool");
    assert_eq!(platform.scheduling.tolerations.len(), 2);
    assert_eq!(platform.pods.image_pull_secrets, ["registry-a", "registry.mirror"]);
    let minimal = parse(MINIMAL);
    assert_eq!(minimal.scheduling.nodepool_label, "karpenter.sh/nodepool");
    assert_eq!(minimal.scheduling.nodepool_affinity, PoolAffinity::Required);
    assert_eq!(minimal.pods, Pods::default());
    let refused = |text: &str| {
        let scheduling = format!("serviceAccount: seid-node\n  {text}");
        let text = with("serviceAccount: seid-node", &scheduling);
        format!("{}\n", Platform::parse(&text, "f").unwrap_err().problem)
    };
    let text = [
        refused("nodepoolLabel: a b"),
        refused("nodepoolAffinity: off"),
        refused("nodeSelector: [a]"),
        refused("nodeSelector: { a: 1 }"),
        refused("nodeSelector: { a: -x }"),
        refused("tolerations: { key: a }"),
        refused("tolerations: [a]"),
        refused("tolerations: [{ kye: a }]"),
        refused("tolerations: [{ key: a, effect: Never }]"),
        refused("tolerations: [{ effect: NoSchedule }]"),
        refused("priorityClassName: Upper"),
        refused(
            "tolerations: [a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a]",
        ),
    ];
    expect![[r#"
        scheduling.nodepoolLabel: `a b` is not a label key; write name or prefix/name, with a DNS name as prefix
        scheduling.nodepoolAffinity: `off` is not one of Required, Off
        scheduling.nodeSelector: expected a mapping, found a list
        scheduling.nodeSelector.a: expected text, found the number 1 (put it in quotes)
        scheduling.nodeSelector: `-x` is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, starting and ending with a letter or digit
        scheduling.tolerations: expected a list, found a mapping
        scheduling.tolerations[0]: expected a mapping, found the text `a`
        scheduling.tolerations[0].kye: unknown key; known here: key, operator, value, effect, tolerationSeconds
        scheduling.tolerations[0]: not a toleration: unknown variant `Never`, expected one of `NoSchedule`, `PreferNoSchedule`, `NoExecute`
        scheduling.tolerations[0]: `no key` needs operator Exists
        scheduling.priorityClassName: `Upper` must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9
        scheduling.tolerations: `33` is more than the 32 entries that are accepted
    "#]].assert_eq(&text.concat());
    check(
        &format!("{MINIMAL}pods: {{ annotations: {{ a b: c }} }}\n"),
        expect![
            "pods.annotations: `a b` is not the key of an annotation; write name or prefix/name"
        ],
    );
    check(
        &format!("{MINIMAL}pods: {{ imagePullSecrets: [A] }}\n"),
        expect![
            "pods.imagePullSecrets[0]: `A` must hold only a-z, 0-9, `-` and `.`, and start and end with a-z or 0-9"
        ],
    );
}

// SS1
#[test]
fn witnesses_are_split_sorted_and_unique() {
    let platform = parse(TUNED);
    let expected = ["w1.sync.svc:26657", "w2.sync.svc:26657", "w3.sync.svc:26657"];
    assert_eq!(platform.witnesses("demo-1"), expected);
    assert!(platform.witnesses("devnet-7").is_empty());
    assert!(platform.witnesses("nowhere-1").is_empty());
}

#[test]
fn windows_line_ends_and_a_byte_order_mark_are_accepted() {
    assert_eq!(parse(&EXAMPLE.replace('\n', "\r\n")), parse(EXAMPLE));
    assert_eq!(parse(&format!("\u{feff}{EXAMPLE}")), parse(EXAMPLE));
}

#[test]
fn a_few_anchors_are_accepted() {
    let text = with("snapshot: {", "snapshot: &place {")
        .replace("genesis: { bucket: genesis, region: us-east-2 }", "genesis: *place");
    assert_eq!(parse(&text).genesis, parse(&text).snapshot);
}

#[test]
fn a_key_without_a_value_is_absent() {
    assert_eq!(parse(&format!("{MINIMAL}resources:\n  seed:\nrollout:\n")), parse(MINIMAL));
}

#[test]
fn the_error_of_an_empty_file_names_the_first_required_key() {
    for text in ["", " \n", "\u{feff}", "# nothing\n", "---\n", "null\n"] {
        check(text, expect!["the file is empty; scheduling.nodepoolName is required"]);
    }
}

#[test]
fn unknown_keys_fail_with_the_nearest_known_name() {
    check(
        &with("nodepoolSeed", "nodePoolSeeds"),
        expect!["scheduling.nodePoolSeeds: unknown key; did you mean scheduling.nodepoolSeed?"],
    );
    check(
        &with("scheduling:", "schedulling:"),
        expect!["schedulling: unknown key; did you mean scheduling?"],
    );
    check(
        &format!("{MINIMAL}nodepoolName: x\n"),
        expect!["nodepoolName: unknown key; did you mean scheduling.nodepoolName?"],
    );
    check(
        &format!("{MINIMAL}rollout: {{ budget: 1 }}\n"),
        expect![
            "rollout.budget: unknown key; known here: onOperatorChange, onImageChange, maxUnavailable, maxConcurrentPerChain, budgetScope, readyDeadlineSeconds, minReadySeconds, haltAfterFailures, settleSeconds, adoption, podCheck, prePull"
        ],
    );
    check(
        &format!("{MINIMAL}resources: {{ seed: {{ cpu: 1 }} }}\n"),
        expect!["resources.seed.cpu: unknown key; known here: cpuRequest, memory"],
    );
    check(
        &format!("{MINIMAL}resources: {{ fullNode: {{ memory: 1Gi }} }}\n"),
        expect![
            "resources.fullNode: unknown key; known here: validator, node, replayer, archive, seed"
        ],
    );
    check(
        &format!("{MINIMAL}stateSync: {{ syncer: {{}} }}\n"),
        expect!["stateSync.syncer: unknown key; did you mean stateSync.syncers?"],
    );
    check(
        &format!("{MINIMAL}\"two\\nlines\": 1\n"),
        expect![
            r"two\nlines: unknown key; known here: stateSync, scheduling, pods, storage, resources, snapshot, resultExport, genesis, images, rollout"
        ],
    );
}

#[test]
fn required_values_are_reported_in_the_order_of_the_reference() {
    let required = [
        "scheduling.nodepoolName",
        "scheduling.nodepoolArchive",
        "scheduling.nodepoolValidator",
        "scheduling.nodepoolSeed",
        "scheduling.tolerationKey",
        "scheduling.serviceAccount",
        "storage.classPerf",
        "storage.classDefault",
        "storage.classArchive",
        "storage.sizeDefault",
        "storage.sizeArchive",
        "snapshot.bucket",
        "snapshot.region",
        "genesis.bucket",
        "genesis.region",
        "images.sidecar",
        "images.kubeRBACProxy",
        "images.cosmosExporter",
    ];
    let full: serde_json::Value = serde_saphyr::from_str(MINIMAL).unwrap();
    let mut file = serde_json::json!({ "rollout": {} });
    for key in required {
        let error = Platform::parse(&file.to_string(), "f").unwrap_err();
        assert_eq!(error.to_string(), format!("f: {key} is required"));
        let (section, name) = key.split_once('.').unwrap();
        file[section][name] = "  ".into();
        let error = Platform::parse(&file.to_string(), "f").unwrap_err();
        assert_eq!(error.to_string(), format!("f: {key} is required"), "blank");
        file[section][name] = full[section][name].clone();
    }
    assert_eq!(parse(&file.to_string()), parse(MINIMAL));
}

#[test]
fn wrong_types_are_named() {
    check("- a\n- b\n", expect!["the file: expected a mapping, found a list"]);
    check("just text", expect!["the file: expected a mapping, found the text `just text`"]);
    check("scheduling: []", expect!["scheduling: expected a mapping, found a list"]);
    check(
        &with("nodepoolName: pool", "nodepoolName: [pool]"),
        expect!["scheduling.nodepoolName: expected text, found a list"],
    );
    check(
        &with("nodepoolName: pool", "nodepoolName: 7"),
        expect!["scheduling.nodepoolName: expected text, found the number 7 (put it in quotes)"],
    );
    check(
        &with("nodepoolName: pool", "nodepoolName: true"),
        expect![
            "scheduling.nodepoolName: expected text, found the switch true (put it in quotes if it is a name)"
        ],
    );
    check(
        &with("sizeArchive: 40Ti", "sizeArchive: { min: 40Ti }"),
        expect!["storage.sizeArchive: expected a quantity, found a mapping"],
    );
    check(
        &format!("{MINIMAL}stateSync: {{ syncers: {{ demo-1: \"a:1,b:2\" }} }}\n"),
        expect!["stateSync.syncers.demo-1: expected a list of texts, found the text `a:1,b:2`"],
    );
    check(
        &format!("{MINIMAL}stateSync: {{ syncers: {{ demo-1: [a, [b]] }} }}\n"),
        expect!["stateSync.syncers.demo-1: expected a list of texts, found a list"],
    );
    check(
        &format!("{MINIMAL}resultExport: {{ prefix: 1 }}\n"),
        expect!["resultExport.prefix: expected text, found the number 1 (put it in quotes)"],
    );
}

#[test]
fn names_hold_no_spaces() {
    check(
        &with("serviceAccount: seid-node", "serviceAccount: seid node"),
        expect![
            "scheduling.serviceAccount: `seid node` must not contain spaces or control characters"
        ],
    );
    check(
        &with("serviceAccount: seid-node", r#"serviceAccount: "a\u0000b""#),
        expect![r"scheduling.serviceAccount: `a\0b` must not contain spaces or control characters"],
    );
}

#[test]
fn quantities_are_parsed_at_once() {
    check(
        &with("sizeDefault: 2000Gi", "sizeDefault: 2000Gb"),
        expect![
            "storage.sizeDefault: invalid quantity: `2000Gb` has the unknown suffix `Gb`; use one of n u m k M G T P E, Ki Mi Gi Ti Pi Ei, or an exponent such as `e3`"
        ],
    );
    check(
        &with("sizeDefault: 2000Gi", "sizeDefault: 0"),
        expect!["storage.sizeDefault: `0` must be more than zero"],
    );
    check(
        &format!("{MINIMAL}resources: {{ archive: {{ memory: -1Gi }} }}\n"),
        expect!["resources.archive.memory: `-1Gi` must be more than zero"],
    );
    check(
        &format!("{MINIMAL}resources: {{ archive: {{ cpuRequest: lots }} }}\n"),
        expect![
            "resources.archive.cpuRequest: invalid quantity: `lots` is not a quantity; write a decimal number, such as `0.5`, `500m` or `2Gi`"
        ],
    );
    check(
        &format!("{MINIMAL}resources: {{ archive: {{ cpuRequest: [] }} }}\n"),
        expect!["resources.archive.cpuRequest: expected a quantity, found a list"],
    );
}

#[test]
fn rollout_values_have_bounds() {
    let rollout = |text: &str| format!("{MINIMAL}rollout: {{ {text} }}\n");
    check(
        &rollout("onOperatorChange: auto"),
        expect!["rollout.onOperatorChange: `auto` is not one of Auto, Hold"],
    );
    check(
        &rollout("adoption: Later"),
        expect!["rollout.adoption: `Later` is not one of Hold, Auto"],
    );
    check(
        &rollout("maxConcurrentPerChain: 0"),
        expect!["rollout.maxConcurrentPerChain: `0` must be between 1 and 2147483647"],
    );
    check(
        &rollout("readyDeadlineSeconds: 0"),
        expect!["rollout.readyDeadlineSeconds: `0` must be between 1 and 2147483647"],
    );
    check(
        &rollout("haltAfterFailures: -1"),
        expect!["rollout.haltAfterFailures: `-1` must be between 1 and 2147483647"],
    );
    check(
        &rollout("settleSeconds: 2m"),
        expect!["rollout.settleSeconds: expected a whole number, found the text `2m`"],
    );
    check(
        &rollout("settleSeconds: 1.5"),
        expect!["rollout.settleSeconds: expected a whole number, found the number 1.5"],
    );
}

#[test]
fn duplicate_keys_are_refused() {
    check(
        &with("  nodepoolSeed: pool-seed", "  nodepoolSeed: pool-seed\n  nodepoolName: other"),
        expect!["nodepoolName is given twice (line 7); remove one of them"],
    );
    check(
        &format!("{MINIMAL}images: {{}}\n"),
        expect!["images is given twice (line 21); remove one of them"],
    );
}

#[test]
fn broken_yaml_is_reported_on_one_line_with_its_position() {
    check(
        "scheduling:\n\tnodepoolName: x\n",
        expect![
            "not valid YAML: tabs disallowed within this context (block indentation) at line 2, column 2"
        ],
    );
    check("scheduling: {", expect!["not valid YAML: unclosed bracket '{' at line 1, column 13"]);
    check(
        "a: *unknown",
        expect!["not valid YAML: alias references unknown anchor at line 1, column 4"],
    );
    check(
        "a: !!python/object x",
        expect!["not valid YAML: unsupported tag `!!python/object` at line 1, column 20"],
    );
    check(
        &format!("{MINIMAL}---\n{MINIMAL}"),
        expect!["not valid YAML: a second document starts at line 23; keep one"],
    );
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..12 {
        let prior = vec![format!("*a{}", i - 1); 9].join(", ");
        bomb = format!("{bomb}a{i}: &a{i} [{prior}]\n");
    }
    check(
        &bomb,
        expect![
            "not valid YAML: alias replay limit exceeded: total_replayed_events=10001 > 10000 at line 1, column 25 (defined at line 4, column 9) (used at line 5, column 10)"
        ],
    );
    check(
        &"[".repeat(5000),
        expect!["not valid YAML: recursion limit exceeded at line 1, column 256"],
    );
    check(
        &"a: 1\n".repeat(300_000),
        expect!["the file has 1500000 bytes, more than the 1048576 that a ConfigMap can hold"],
    );
}

proptest! {
    #[test]
    fn no_text_panics_or_breaks_the_line(text in "\\PC*|[\\x00-\\x7f]{0,200}|([a-z:{}\\[\\]&*!|> \\n\\t\"'-]{0,60})") {
        if let Err(error) = Platform::parse(&text, "f") {
            let error = error.to_string();
            prop_assert!(!error.contains(['\n', '\r']), "{error:?}");
            prop_assert!(error.starts_with("f: "));
        }
    }

    #[test]
    fn no_damage_to_a_good_file_panics(at in 0usize..4000, cut in 0usize..40, insert in "\\PC{0,4}") {
        let from = (0..=at.min(TUNED.len())).rev().find(|i| TUNED.is_char_boundary(*i)).unwrap();
        let to = (from..=(from + cut).min(TUNED.len())).rev().find(|i| TUNED.is_char_boundary(*i));
        let text = format!("{}{insert}{}", &TUNED[..from], &TUNED[to.unwrap_or(from)..]);
        if let Err(error) = Platform::parse(&text, "f") {
            prop_assert!(!error.to_string().contains(['\n', '\r']));
        }
    }
}

/// Keys of values: the docs list a section by its keys.
#[test]
fn every_key_is_in_the_docs() {
    let docs = include_str!("../../../../docs/configuration.md");
    let is_section = |key: &str| reader::SCHEMA.iter().any(|(section, _)| *section == key);
    for (section, names) in reader::SCHEMA {
        for name in *names {
            let key =
                if section.is_empty() { (*name).to_owned() } else { format!("{section}.{name}") };
            assert!(is_section(&key) || docs.contains(&format!("`{key}`")), "{key}");
        }
    }
    let keys = docs.split('`').skip(1).step_by(2).filter(|quoted| quoted.contains('.'));
    let is_known = |key: &str| {
        let (section, name) = key.rsplit_once('.').unwrap_or_default();
        reader::SCHEMA.iter().any(|(known, names)| *known == section && names.contains(&name))
    };
    let sections: Vec<&str> = reader::SCHEMA[0].1.to_vec();
    for key in keys {
        let is_a_key = sections.iter().any(|section| key.starts_with(&format!("{section}.")));
        assert!(!is_a_key || is_known(key), "the docs name the unknown key {key}");
    }
}

/// The chart refuses a misspelt key before anything is installed, and no key that exists.
#[test]
fn the_schema_of_the_chart_has_every_key() {
    let values = include_str!("../../../../charts/sei-operator/values.schema.json");
    let values: Value = serde_json::from_str(values).unwrap();
    let config = &values["properties"]["platform"]["properties"]["config"];
    for (section, names) in reader::SCHEMA {
        let parts = section.split('.').filter(|part| !part.is_empty());
        let schema = parts.fold(config, |schema, part| &schema["properties"][part]);
        assert_eq!(schema["additionalProperties"], false, "{section}");
        let found: BTreeSet<&str> =
            schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, names.iter().copied().collect(), "{section}");
    }
}
