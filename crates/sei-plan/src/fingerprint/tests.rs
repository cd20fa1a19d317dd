use expect_test::expect;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures::{any_json, any_template, pointers, rendered_template, with, without};

fn hash(value: &Value) -> String {
    Algorithm::V1.hash(value)
}

#[test]
fn keys_are_sorted_and_only_nulls_are_dropped() {
    let value = json!({"b": {"z": null, "y": {}, "x": []}, "a": ["", null, "2", "1"], "c": null});
    assert_eq!(canonical_json(&value), r#"{"a":["","2","1"],"b":{"x":[],"y":{}}}"#);
}

#[test]
fn quantities_are_canonical_where_a_quantity_is_expected() {
    let container = json!({"resources": {
        "limits": {"memory": "1024Mi", "cpu": 2},
        "requests": {"cpu": "0.5", "nonsense": "lots"},
    }});
    let value = json!({
        "containers": [container],
        "initContainers": [container],
        "volumes": [{"emptyDir": {"sizeLimit": "1024Ki"}}],
        "env": [{"valueFrom": {"resourceFieldRef": {"divisor": "1000m"}}, "value": "1024Mi"}],
        "labels": {"limits": "0.5"},
    });
    let resources = r#"{"resources":{"limits":{"cpu":"2","memory":"1Gi"},"requests":{"cpu":"500m","nonsense":"lots"}}}"#;
    assert_eq!(
        canonical_json(&value),
        format!(
            r#"{{"containers":[{resources}],"env":[{{"value":"1024Mi","valueFrom":{{"resourceFieldRef":{{"divisor":"1"}}}}}}],"initContainers":[{resources}],"labels":{{"limits":"0.5"}},"volumes":[{{"emptyDir":{{"sizeLimit":"1Mi"}}}}]}}"#
        )
    );
}

#[test]
fn strings_are_escaped_as_json() {
    let value = json!({"a\"b": "line\nline \u{1} é"});
    assert_eq!(canonical_json(&value), r#"{"a\"b":"line\nline \u0001 é"}"#);
}

#[test]
fn the_bytes_of_a_template_are_pinned() {
    let template: PodTemplateSpec = serde_json::from_value(rendered_template()).unwrap();
    expect!["v1:9f32023ecd2e26284ad378ad0265bc98c3ff7bd2974ef2ba9835e17a13146df0"]
        .assert_eq(fingerprint(&template).as_str());
}

#[test]
fn the_typed_template_hashes_as_its_json() {
    let template: PodTemplateSpec = serde_json::from_value(rendered_template()).unwrap();
    assert_eq!(fingerprint(&template).as_str(), hash(&rendered_template()));
    assert_eq!(digest_of(&template), hash(&rendered_template()));
}

#[test]
fn removing_any_subtree_changes_the_hash() {
    let template = rendered_template();
    let pointers = pointers(&template);
    assert!(pointers.len() > 100, "{}", pointers.len());
    for pointer in pointers {
        assert_ne!(hash(&without(template.clone(), &pointer)), hash(&template), "{pointer}");
    }
}

#[test]
fn changing_any_scalar_changes_the_hash() {
    let template = rendered_template();
    for pointer in pointers(&template) {
        let changed = match template.pointer(&pointer).unwrap() {
            Value::String(text) => json!(format!("{text}x")),
            Value::Number(number) => json!(number.as_i64().unwrap() + 1),
            Value::Bool(flag) => json!(!flag),
            _ => continue,
        };
        let mut modified = template.clone();
        *modified.pointer_mut(&pointer).unwrap() = changed;
        assert_ne!(hash(&modified), hash(&template), "{pointer}");
    }
}

#[test]
fn a_quantity_in_another_form_keeps_the_hash() {
    let pointer = "/spec/containers/0/resources/limits/memory";
    let template = rendered_template();
    assert_eq!(hash(&with(template.clone(), pointer, json!("65536Mi"))), hash(&template));
    assert_ne!(hash(&with(template.clone(), pointer, json!("65537Mi"))), hash(&template));
}

#[test]
fn the_order_of_a_list_is_part_of_the_hash() {
    let mut template = rendered_template();
    template["spec"]["containers"][0]["env"].as_array_mut().unwrap().reverse();
    assert_ne!(hash(&template), hash(&rendered_template()));
}

/// A possible second algorithm.
const V2: Algorithm = Algorithm::new("v2", |value| format!("v2 {}", canonical_json(value)));

#[test]
fn a_new_algorithm_is_recognised_and_not_compared() {
    let template: PodTemplateSpec = serde_json::from_value(rendered_template()).unwrap();
    let old = fingerprint(&template);
    let new = fingerprint_with(V2, &template);
    assert!(old.is_of(&Algorithm::V1) && !old.is_of(&V2));
    assert!(new.is_of(&V2) && !new.is_of(&Algorithm::V1));
    assert_eq!((old.algorithm(), new.algorithm()), ("v1", "v2"));
    assert_eq!(TemplateHash::parse(new.as_str()), Ok(new));
}

#[test]
fn hashes_are_parsed_back_from_strings() {
    let template: PodTemplateSpec = serde_json::from_value(rendered_template()).unwrap();
    let hash = fingerprint(&template);
    let text = serde_json::to_string(&hash).unwrap();
    assert_eq!(text, format!("\"{hash}\""));
    assert_eq!(serde_json::from_str::<TemplateHash>(&text).unwrap(), hash);
    assert!(serde_json::from_str::<TemplateHash>("\"v1:abc\"").is_err());
}

#[test]
fn what_is_not_a_hash_is_refused() {
    let hex = "0".repeat(64);
    for text in [
        String::new(),
        hex.clone(),
        format!(":{hex}"),
        format!("v:{hex}"),
        format!("v0:{hex}"),
        format!("v01:{hex}"),
        format!("v1x:{hex}"),
        format!("w1:{hex}"),
        format!("v1:{hex}0"),
        format!("v1:{}", &hex[1..]),
        format!("v1:{}A", &hex[1..]),
        format!("v1:{}g", &hex[1..]),
        format!("v1:{}é", &hex[2..]),
        format!(" v1:{hex}"),
        "v2:".to_owned(),
        format!("v2:{}", "0".repeat(129)),
    ] {
        let error = TemplateHash::parse(&text).unwrap_err();
        assert!(error.to_string().contains("64 lower-case hex digits"), "{text}");
    }
    assert!(TemplateHash::parse(&format!("v1:{hex}")).is_ok());
    assert!(TemplateHash::parse("v12:abc").is_ok());
}

/// Writes an object with its keys in a random order.
fn shuffled_text(value: &Value, seed: &mut u64) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            for last in (1..entries.len()).rev() {
                *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let swapped = usize::try_from(*seed >> 33).unwrap() % (last + 1);
                entries.swap(last, swapped);
            }
            let entries: Vec<_> = entries
                .into_iter()
                .map(|(key, value)| format!("{}:{}", json!(key), shuffled_text(value, seed)))
                .collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(list) => {
            let list: Vec<_> = list.iter().map(|value| shuffled_text(value, seed)).collect();
            format!("[{}]", list.join(","))
        }
        scalar => scalar.to_string(),
    }
}

proptest! {
    #[test]
    fn the_order_of_keys_never_matters(template in any_template(), mut seed in any::<u64>()) {
        let shuffled: Value = serde_json::from_str(&shuffled_text(&template, &mut seed)).unwrap();
        prop_assert_eq!(canonical_json(&shuffled), canonical_json(&template));
    }

    #[test]
    fn removing_any_subtree_of_any_template_changes_the_hash(
        template in any_template(),
        index in any::<prop::sample::Index>(),
    ) {
        let pointers = pointers(&template);
        prop_assume!(!pointers.is_empty());
        let pointer = index.get(&pointers);
        // A null equals an absent value, so removing one changes nothing.
        let significant = !template.pointer(pointer).unwrap().is_null();
        let reduced = without(template.clone(), pointer);
        prop_assert_eq!(hash(&reduced) != hash(&template), significant);
    }

    #[test]
    fn canonical_json_is_json_and_a_fixed_point(value in any_json()) {
        let canonical = canonical_json(&value);
        let again: Value = serde_json::from_str(&canonical).unwrap();
        prop_assert_eq!(canonical_json(&again), canonical);
    }

    #[test]
    fn any_text_is_parsed_as_a_hash_without_a_panic(text in any::<String>()) {
        let _ = TemplateHash::parse(&text);
    }
}
