use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fingerprint::canonical_json;
use crate::fixtures::{
    any_json, any_template, assert_lines, pointers, rendered_template, report, with, without,
};

#[track_caller]
fn check(from: &Value, to: &Value, expected: &str) {
    assert_lines(&report(&diff(from, to)), expected);
}

/// Checks the changes that setting one value in the template produces.
#[track_caller]
fn check_set(pointer: &str, value: Value, expected: &str) {
    check(&rendered_template(), &with(rendered_template(), pointer, value), expected);
}

#[track_caller]
fn check_removed(pointer: &str, expected: &str) {
    check(&rendered_template(), &without(rendered_template(), pointer), expected);
}

#[test]
fn equal_templates_have_no_changes() {
    check(&rendered_template(), &rendered_template(), "");
}

#[test]
fn paths_name_fields_as_people_do() {
    check_set(
        "/spec/containers/0/image",
        json!("seid:v2"),
        "containers[seid].image: `registry.example.org/seid:v1` -> `seid:v2`",
    );
    check_set(
        "/spec/initContainers/1/image",
        json!("seictl:v2"),
        "initContainers[sei-sidecar].image: `registry.example.org/seictl:v1` -> `seictl:v2`",
    );
    check_set(
        "/metadata/labels/sei.io~1node",
        json!("rpc-1"),
        "metadata.labels[sei.io/node]: `rpc-0` -> `rpc-1`",
    );
    check_set("/metadata/labels/team", json!("edge"), "metadata.labels.team: `core` -> `edge`");
    check_set(
        "/spec/volumes/0/persistentVolumeClaim/claimName",
        json!("x"),
        "volumes[data].persistentVolumeClaim.claimName: `data-rpc-0` -> `x`",
    );
    check_set(
        "/spec/containers/0/ports/0/containerPort",
        json!(1),
        "containers[seid].ports[p2p].containerPort: `26656` -> `1`",
    );
    check_set(
        "/spec/containers/0/env/0/value",
        json!("/root"),
        "containers[seid].env[HOME]: `/home/nonroot` -> `/root`",
    );
    check_set(
        "/spec/tolerations/0/value",
        json!("next"),
        "tolerations[example.org/chain].value: `chain-default` -> `next`",
    );
    check_set(
        "/spec/containers/0/volumeMounts/0/readOnly",
        json!(true),
        "containers[seid].volumeMounts[/home/nonroot/.sei].readOnly: - -> `true`",
    );
    check_set(
        "/spec/shareProcessNamespace",
        json!(false),
        "shareProcessNamespace: `true` -> `false`",
    );
    check_set(
        "/spec/containers/0/args/0",
        json!("exec seid start"),
        "containers[seid].args[0]: `exec seid start --home /home/nonroot/.sei` -> `exec seid start`",
    );
}

#[test]
fn what_is_added_or_removed_is_one_change() {
    check_set(
        "/spec/containers/0/env/-",
        json!({"name": "A", "value": "b"}),
        "containers[seid].env[A]: - -> `b`",
    );
    check_removed(
        "/spec/containers/0/env/1",
        "containers[seid].env[TMPDIR]: `/home/nonroot/.sei/tmp` -> -",
    );
    check_removed(
        "/spec/initContainers/0/env",
        "initContainers[seid-init].env[HOME]: `/home/nonroot` -> -",
    );
    check_removed(
        "/spec/containers/0/readinessProbe",
        r#"containers[seid].readinessProbe: `{"httpGet":{"path":"/lag_status","port":26657}}` -> -"#,
    );
    check_removed(
        "/spec/initContainers/0",
        r#"initContainers[seid-init]: `{"command":["/bin/sh","-c","seid init demo-1"],"env":[{"name":"HOME","value":"/home/nonroot"}],"image":"registry.exampl…` -> -"#,
    );
    check_removed(
        "/metadata/labels",
        "metadata.labels[sei.io/chain]: `demo-1` -> -
            metadata.labels[sei.io/node]: `rpc-0` -> -
            metadata.labels.team: `core` -> -",
    );
    check_removed(
        "/metadata",
        "metadata.annotations[karpenter.sh/do-not-disrupt]: `true` -> -
            metadata.labels[sei.io/chain]: `demo-1` -> -
            metadata.labels[sei.io/node]: `rpc-0` -> -
            metadata.labels.team: `core` -> -",
    );
    check_set("/spec/nodeSelector", json!({"a/b": "c"}), "nodeSelector[a/b]: - -> `c`");
    check_removed(
        "/spec/containers/0/args",
        r#"containers[seid].args: `["exec seid start --home /home/nonroot/.sei"]` -> -"#,
    );
}

#[test]
fn empty_maps_and_lists_have_meaning() {
    let selector =
        "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    check_removed(
        &format!("{selector}/namespaceSelector"),
        "affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector: `{}` -> -",
    );
    check_set(
        "/spec/initContainers/1/volumeMounts",
        json!([]),
        "initContainers[sei-sidecar].volumeMounts: - -> `[]`",
    );
    check_set("/spec/nodeSelector", json!({}), "nodeSelector: - -> `{}`");
}

#[test]
fn null_is_absent() {
    check_set("/spec/nodeName", json!(null), "");
    check_set(
        "/spec/containers/0/args",
        json!(null),
        r#"containers[seid].args: `["exec seid start --home /home/nonroot/.sei"]` -> -"#,
    );
    check(&json!(null), &json!(null), "");
}

#[test]
fn an_empty_env_value_equals_an_absent_value() {
    let empty = with(
        rendered_template(),
        "/spec/containers/0/env/-",
        json!({"name": "EMPTY", "value": ""}),
    );
    let absent = with(rendered_template(), "/spec/containers/0/env/-", json!({"name": "EMPTY"}));
    check(&empty, &absent, "");
    check(&rendered_template(), &absent, "containers[seid].env[EMPTY]: - -> ``");
    // Only in env: an empty label is not an absent label.
    check_set("/metadata/labels/new", json!(""), "metadata.labels.new: - -> ``");
}

#[test]
fn quantities_compare_by_value() {
    check_set("/spec/containers/0/resources/limits/memory", json!("65536Mi"), "");
    check_set("/spec/containers/0/resources/requests/cpu", json!(8), "");
    check_set("/spec/containers/0/resources/requests/cpu", json!("8000m"), "");
    check_set("/spec/volumes/1/emptyDir/sizeLimit", json!("1073741824"), "");
    check_set(
        "/spec/containers/0/resources/requests/cpu",
        json!("0.5"),
        "containers[seid].resources.requests.cpu: `8` -> `500m`",
    );
    check_set(
        "/spec/containers/0/resources/requests/cpu",
        json!("lots"),
        "containers[seid].resources.requests.cpu: `8` -> `lots`",
    );
    // A label whose value resembles a quantity is not a quantity.
    let left = with(rendered_template(), "/metadata/labels/size", json!("1Gi"));
    let right = with(rendered_template(), "/metadata/labels/size", json!("1024Mi"));
    check(&left, &right, "metadata.labels.size: `1Gi` -> `1024Mi`");
}

#[test]
fn a_changed_order_is_one_change() {
    for pointer in [
        "/spec/containers/0/env",
        "/spec/initContainers",
        "/spec/containers/0/volumeMounts",
        "/spec/volumes",
    ] {
        let mut reversed = rendered_template();
        reversed.pointer_mut(pointer).unwrap().as_array_mut().unwrap().reverse();
        assert_eq!(diff(&rendered_template(), &reversed).len(), 1, "{pointer}");
    }
    let mut reversed = rendered_template();
    reversed["spec"]["containers"][0]["env"].as_array_mut().unwrap().reverse();
    check(
        &rendered_template(),
        &reversed,
        "containers[seid].env: `HOME, TMPDIR` -> `TMPDIR, HOME`",
    );
}

#[test]
fn a_changed_order_is_listed_beside_other_changes() {
    let mut changed = rendered_template();
    changed["spec"]["containers"][0]["env"] = json!([
        {"name": "NEW", "value": "1"},
        {"name": "TMPDIR", "value": "/tmp"},
        {"name": "HOME", "value": "/home/nonroot"},
    ]);
    check(
        &rendered_template(),
        &changed,
        "containers[seid].env[TMPDIR]: `/home/nonroot/.sei/tmp` -> `/tmp`
            containers[seid].env[NEW]: - -> `1`
            containers[seid].env: `HOME, TMPDIR` -> `TMPDIR, HOME`",
    );
}

#[test]
fn an_inserted_entry_is_no_change_of_order() {
    let mut changed = rendered_template();
    let env = changed["spec"]["containers"][0]["env"].as_array_mut().unwrap();
    env.insert(1, json!({"name": "NEW", "value": "1"}));
    check(&rendered_template(), &changed, "containers[seid].env[NEW]: - -> `1`");
}

#[test]
fn the_same_name_may_occur_twice() {
    let twice = with(
        rendered_template(),
        "/spec/containers/0/env/-",
        json!({"name": "HOME", "value": "/root"}),
    );
    check(&rendered_template(), &twice, "containers[seid].env[HOME#2]: - -> `/root`");
}

#[test]
fn elements_without_a_key_are_listed_by_position() {
    let base = json!({"spec": {"containers": [{"name": "proxy", "args": ["--a", "--b", "--c"]}]}});
    let args = |args: Value| json!({"spec": {"containers": [{"name": "proxy", "args": args}]}});
    check(
        &base,
        &args(json!(["--new", "--a", "--b", "--c"])),
        "containers[proxy].args[0]: - -> `--new`",
    );
    check(&base, &args(json!(["--a", "--c"])), "containers[proxy].args[1]: `--b` -> -");
    check(
        &base,
        &args(json!(["--a", "--x", "--y", "--c"])),
        "containers[proxy].args[1]: `--b` -> `--x`
            containers[proxy].args[2]: - -> `--y`",
    );
    let unnamed = |port: u16| {
        json!({"spec": {"containers": [
        {"name": "proxy", "ports": [{"containerPort": port}]}]}})
    };
    check(&unnamed(1), &unnamed(2), "containers[proxy].ports[0].containerPort: `1` -> `2`");
    check_set(
        "/spec/tolerations/-",
        json!({"operator": "Exists"}),
        r#"tolerations[1]: - -> `{"operator":"Exists"}`"#,
    );
}

fn env(entry: &Value) -> Value {
    json!({"spec": {"containers": [{"name": "seid", "env": [entry]}]}})
}

#[test]
fn values_from_secrets_are_never_shown() {
    let secret = |key| {
        env(&json!({"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "keys", "key": key}}}))
    };
    let literal = env(&json!({"name": "PASS", "value": "hunter2"}));
    check(
        &literal,
        &secret("a"),
        "containers[seid].env[PASS]: `(hidden)` -> `(from Secret keys/a)`",
    );
    check(
        &secret("a"),
        &literal,
        "containers[seid].env[PASS]: `(from Secret keys/a)` -> `(hidden)`",
    );
    check(
        &secret("a"),
        &secret("b"),
        "containers[seid].env[PASS]: `(from Secret keys/a)` -> `(from Secret keys/b)`",
    );
    let optional = env(&json!({"name": "PASS", "valueFrom": {
        "secretKeyRef": {"name": "keys", "key": "a", "optional": true}}}));
    check(
        &secret("a"),
        &optional,
        "containers[seid].env[PASS]: `(from Secret keys/a)` -> `(from Secret keys/a, optional)`",
    );
    let field = env(&json!({"name": "PASS", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}));
    check(
        &secret("a"),
        &field,
        r#"containers[seid].env[PASS]: `(from Secret keys/a)` -> `{"fieldRef":{"fieldPath":"x"}}`"#,
    );
    let broken = env(&json!({"name": "PASS", "valueFrom": {"secretKeyRef": {}}}));
    check(&literal, &broken, "containers[seid].env[PASS]: `(hidden)` -> `(from Secret ?/?)`");
}

#[test]
fn a_literal_stays_hidden_when_its_entry_moves() {
    let secret = json!({"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "k", "key": "a"}}});
    let literal = json!({"name": "PASS", "value": "hunter2"});
    let from = json!({"spec": {"containers": [{"name": "seid", "env": [literal]}]}});
    let to = json!({"spec": {"initContainers": [{"name": "sidecar", "env": [secret]}]}});
    check(
        &from,
        &to,
        r#"containers[seid]: `{"env":[{"name":"PASS","value":"(hidden)"}],"name":"seid"}` -> -
            initContainers[sidecar]: - -> `{"env":[{"name":"PASS","valueFrom":{"secretKeyRef":{"key":"a","name":"k"}}}],"name":"sidecar"}`"#,
    );
    // Neither its position nor a second entry of that name reveals it.
    let from = json!({"spec": {"containers": [
        {"name": "seid", "env": [literal, {"value": "nameless"}]}]}});
    let to = json!({"spec": {"containers": [
        {"name": "seid", "env": [{"value": "nameless"}, secret, literal]}]}});
    check(
        &from,
        &to,
        "containers[seid].env[0]: `(hidden)` -> `(hidden)`
            containers[seid].env[1]: `(hidden)` -> `(from Secret k/a)`
            containers[seid].env[2]: - -> `(hidden)`",
    );
}

#[test]
fn long_values_are_cut_at_characters() {
    let long = env(&json!({"name": "A", "value": "é".repeat(200)}));
    let changes = diff(&env(&json!({"name": "B"})), &long);
    let shown = changes.iter().find_map(|change| change.to.clone()).unwrap();
    assert_eq!(shown.chars().count(), 120);
    assert_eq!(shown, format!("{}…", "é".repeat(119)));
    let fits = env(&json!({"name": "A", "value": "é".repeat(120)}));
    let changes = diff(&env(&json!({"name": "B"})), &fits);
    assert_eq!(changes[1].to, Some("é".repeat(120)));
}

#[test]
fn long_scripts_show_where_they_differ() {
    let script = |middle: &str| {
        let script = format!("{}\nport={middle}\n{}", "x".repeat(300), "y".repeat(300));
        json!({"spec": {"containers": [{"name": "seid", "args": [script]}]}})
    };
    check(
        &script("7777"),
        &script("8888"),
        r"containers[seid].args[0]: `…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nport=7777\nyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy…` -> `…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\nport=8888\nyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy…`",
    );
    let longer = json!({"spec": {"containers": [{"name": "seid", "args": ["x".repeat(300)]}]}});
    let shorter = json!({"spec": {"containers": [{"name": "seid", "args": ["x".repeat(200)]}]}});
    check(
        &longer,
        &shorter,
        "containers[seid].args[0]: `…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` -> `…xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx`",
    );
    let short = json!({"spec": {"containers": [{"name": "seid", "args": ["xxx"]}]}});
    check(
        &longer,
        &short,
        "containers[seid].args[0]: `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…` -> `xxx`",
    );
}

#[test]
fn control_characters_are_escaped() {
    let to = env(&json!({"name": "A", "value": "\u{1b}[31mred\n"}));
    check(&env(&json!({"name": "A"})), &to, r"containers[seid].env[A]: `` -> `\u{1b}[31mred\n`");
}

#[test]
fn odd_shapes_are_listed_too() {
    check(&json!("text"), &json!(3), "template: `text` -> `3`");
    check(
        &json!({"spec": 1}),
        &json!({"spec": {"containers": "none"}}),
        r#"spec: `1` -> `{"containers":"none"}`"#,
    );
    check(&json!({}), &json!({"spec": {"": {"a]b": 1}}}), r#"[]: - -> `{"a]b":1}`"#);
    check(&json!({"spec": {}}), &json!({}), "spec: `{}` -> -");
}

#[test]
fn image_paths_are_those_the_spec_chooses() {
    for path in [
        "containers[seid].image",
        "initContainers[seid-init].image",
        "initContainers[sei-sidecar].image",
    ] {
        assert!(is_image_path(path), "{path}");
    }
    for path in [
        "containers[cosmos-exporter].image",
        "containers[seid].imagePullPolicy",
        "containers[seid].env[X].image",
        "initContainers[a].env[b].image",
        "initContainers[].image",
        "initContainers[a]",
        "metadata.labels.image",
        "",
    ] {
        assert!(!is_image_path(path), "{path}");
    }
}

#[test]
fn cut_changes_keeps_images_and_counts_the_rest() {
    let change = |path: String| FieldChange { path, from: None, to: Some("x".to_owned()) };
    let mut changes: Vec<_> = (0..25).map(|n| change(format!("f{n}"))).collect();
    changes.push(change("containers[seid].image".to_owned()));
    let (kept, left_out) = cut_changes(changes);
    assert_eq!((kept.len(), left_out), (20, 6));
    assert_eq!(kept[0].path, "containers[seid].image");
    assert_eq!(kept[1].path, "f0");
    assert_eq!(cut_changes(Vec::new()), (Vec::new(), 0));
    let (kept, left_out) = cut_changes((0..20).map(|n| change(format!("f{n}"))).collect());
    assert_eq!((kept.len(), left_out), (20, 0));
}

#[test]
fn every_removed_subtree_is_listed() {
    let template = rendered_template();
    for pointer in pointers(&template) {
        let reduced = without(template.clone(), &pointer);
        assert!(!diff(&template, &reduced).is_empty(), "{pointer}");
        assert!(!diff(&reduced, &template).is_empty(), "{pointer}");
    }
}

#[test]
fn changes_are_written_without_absent_sides() {
    let change = FieldChange { path: "a".to_owned(), from: None, to: Some("b".to_owned()) };
    let text = serde_json::to_string(&change).unwrap();
    assert_eq!(text, r#"{"path":"a","to":"b"}"#);
    assert_eq!(serde_json::from_str::<FieldChange>(&text).unwrap(), change);
}

proptest! {
    #[test]
    fn a_template_does_not_differ_from_itself(template in any_template(), json in any_json()) {
        prop_assert_eq!(diff(&template, &template), vec![]);
        prop_assert_eq!(diff(&json, &json), vec![]);
    }

    #[test]
    fn templates_have_no_changes_exactly_when_their_hashes_are_equal(
        from in any_template(),
        to in any_template(),
    ) {
        let changes = diff(&from, &to);
        if canonical_json(&from) == canonical_json(&to) {
            prop_assert_eq!(changes, vec![]);
        } else if changes.is_empty() {
            let (from, to) = (clean(&from, Place::default()), clean(&to, Place::default()));
            prop_assert!(same(Place::default(), &from.unwrap(), &to.unwrap()));
        }
    }

    #[test]
    fn changes_read_the_same_in_both_directions(from in any_template(), to in any_template()) {
        let there = diff(&from, &to);
        let back = diff(&to, &from);
        let mut there: Vec<_> = there.into_iter().map(|c| (c.path, c.from, c.to)).collect();
        let mut back: Vec<_> = back.into_iter().map(|c| (c.path, c.to, c.from)).collect();
        there.sort();
        back.sort();
        prop_assert_eq!(there, back);
    }

    #[test]
    fn any_json_is_diffed_without_a_panic(from in any_json(), to in any_json()) {
        for change in diff(&from, &to) {
            prop_assert!(!change.path.is_empty());
            prop_assert!(change.from.is_some() || change.to.is_some());
            for side in [change.from, change.to].into_iter().flatten() {
                prop_assert!(side.chars().count() <= 120);
                prop_assert!(!side.chars().any(char::is_control));
            }
        }
    }

    #[test]
    fn long_texts_that_differ_are_shown_differently(
        head in "[a-cé]{0,300}",
        left in "[a-c]{0,200}",
        right in "[a-c]{0,200}",
    ) {
        prop_assume!(left != right);
        let arg = |tail: &str| json!({"spec": {"args": [format!("{head}{tail}")]}});
        let changes = diff(&arg(&left), &arg(&right));
        prop_assert_eq!(changes.len(), 1);
        prop_assert_ne!(&changes[0].from, &changes[0].to);
    }
}

#[test]
fn an_object_covers_another_that_it_holds() {
    let live = json!({ "a": 1, "b": { "c": [ { "d": 1, "default": true } ] } });
    assert!(covers(&live, &json!({ "b": { "c": [ { "d": 1 } ] } })));
    assert!(!covers(&live, &json!({ "b": { "c": [ { "d": 2 } ] } })));
    assert!(!covers(&live, &json!({ "b": { "c": [] } })));
    assert!(!covers(&live, &json!({ "x": 1 })));
}
