use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures::{
    any_json, any_template, assert_lines, rendered_template, report, with, without,
};

/// The template as the API server stores it: a default wherever a field is absent. The shape
/// matters here, not the completeness.
fn defaulted(mut template: Value) -> Value {
    default_map(
        template.get_mut("spec"),
        &json!({
            "restartPolicy": "Always",
            "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler",
            "terminationGracePeriodSeconds": 30,
            "serviceAccount": "chain-node",
        }),
    );
    for list in ["containers", "initContainers"] {
        for container in list_mut(template.pointer_mut(&format!("/spec/{list}"))) {
            default_map(
                Some(container),
                &json!({
                    "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "resources": {},
                }),
            );
            default_map(
                container.pointer_mut("/readinessProbe"),
                &json!({
                    "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1,
                }),
            );
            default_map(
                container.pointer_mut("/readinessProbe/httpGet"),
                &json!({
                    "scheme": "HTTP",
                }),
            );
        }
    }
    template
}

fn default_map(map: Option<&mut Value>, defaults: &Value) {
    if let Some(map) = map.and_then(Value::as_object_mut) {
        for (key, value) in defaults.as_object().unwrap() {
            if map.get(key).is_none_or(Value::is_null) {
                map.insert(key.clone(), value.clone());
            }
        }
    }
}

fn list_mut(list: Option<&mut Value>) -> impl Iterator<Item = &mut Value> {
    list.and_then(Value::as_array_mut).into_iter().flatten()
}

/// What the current server stores for our render.
fn stored() -> Value {
    defaulted(rendered_template())
}

#[track_caller]
fn check(rendered: &Value, dry_run: &Value, body: &Value, expected: &str) {
    let text = match compare(rendered, dry_run, body) {
        Comparison::Equal => "equal".to_owned(),
        Comparison::Different(changes) => {
            assert!(!changes.is_empty());
            report(&changes)
        }
        Comparison::NoRevision => "no revision".to_owned(),
    };
    assert_lines(&text, expected);
}

#[test]
fn equal_with_defaults_on_both_sides() {
    check(&rendered_template(), &stored(), &stored(), "equal");
}

#[test]
fn the_body_may_be_the_data_of_a_revision() {
    let mut template = stored();
    template["$patch"] = json!("replace");
    template["metadata"]["creationTimestamp"] = Value::Null;
    let body = json!({"spec": {"template": template}});
    check(&rendered_template(), &stored(), &body, "equal");
    assert_eq!(template_of_revision(&body).unwrap()["spec"], stored()["spec"]);
    assert!(template_of_revision(&body).unwrap().get("$patch").is_none());
    assert_eq!(template_of_revision(&stored()).unwrap(), stored());
}

#[test]
fn a_default_of_a_newer_server_is_not_drift() {
    let newer = with(stored(), "/spec/hostnameOverride", json!("x"));
    let newer = with(newer, "/spec/containers/0/resizePolicy", json!([{"resourceName": "cpu"}]));
    let newer = with(newer, "/spec/containers/0/readinessProbe/httpGet/tls", json!({"a": 1}));
    let newer = with(newer, "/spec/volumes/0/persistentVolumeClaim/readOnly", json!(false));
    let newer = with(newer, "/spec/volumes/-", json!({"name": "injected", "emptyDir": {}}));
    check(&rendered_template(), &newer, &stored(), "equal");
}

#[test]
fn what_another_manager_owns_and_keeps_is_not_drift() {
    let mesh = |template| {
        let template =
            with(template, "/spec/containers/0/env/-", json!({"name": "MESH", "value": "on"}));
        let template = with(template, "/metadata/annotations/mesh", json!("on"));
        with(template, "/spec/priorityClassName", json!("high"))
    };
    check(&rendered_template(), &mesh(stored()), &mesh(stored()), "equal");
}

#[test]
fn a_changed_value_of_another_manager_is_not_drift() {
    let rewritten = with(stored(), "/spec/containers/0/imagePullPolicy", json!("Always"));
    check(&rendered_template(), &rewritten, &stored(), "equal");
    let pull_secrets = |names: [&str; 2]| {
        let list: Vec<_> = names.map(|name| json!({"name": name})).into();
        with(stored(), "/spec/imagePullSecrets", json!(list))
    };
    check(&rendered_template(), &pull_secrets(["a", "b"]), &pull_secrets(["b", "a"]), "equal");
}

#[test]
fn what_our_apply_would_remove_is_drift() {
    for (pointer, value, expected) in [
        ("/spec/priorityClassName", json!("high"), "priorityClassName: `high` -> -"),
        (
            "/spec/containers/0/env/-",
            json!({"name": "OLD", "value": "1"}),
            "containers[seid].env[OLD]: `1` -> -",
        ),
        (
            "/spec/containers/-",
            json!({"name": "extra", "image": "x"}),
            r#"containers[extra]: `{"image":"x","name":"extra"}` -> -"#,
        ),
        ("/spec/containers/0/args/-", json!("--trace"), "containers[seid].args[1]: `--trace` -> -"),
        ("/metadata/labels/old", json!("yes"), "metadata.labels.old: `yes` -> -"),
        (
            "/spec/containers/0/livenessProbe",
            json!({"tcpSocket": {"port": 1}}),
            r#"containers[seid].livenessProbe: `{"tcpSocket":{"port":1}}` -> -"#,
        ),
        (
            "/spec/imagePullSecrets",
            json!([{"name": "pull"}]),
            r#"imagePullSecrets[pull]: `{"name":"pull"}` -> -"#,
        ),
        ("/spec/nodeSelector", json!({}), "nodeSelector: `{}` -> -"),
    ] {
        check(&rendered_template(), &stored(), &with(stored(), pointer, value), expected);
    }
}

#[test]
fn a_rendered_value_that_differs_is_drift() {
    for (pointer, value, expected) in [
        (
            "/spec/containers/0/image",
            json!("seid:v0"),
            "containers[seid].image: `seid:v0` -> `registry.example.org/seid:v1`",
        ),
        (
            "/spec/containers/0/args/0",
            json!("exec seid start"),
            "containers[seid].args[0]: `exec seid start` -> `exec seid start --home /home/nonroot/.sei`",
        ),
        (
            "/spec/containers/0/resources/limits/memory",
            json!("32Gi"),
            "containers[seid].resources.limits.memory: `32Gi` -> `64Gi`",
        ),
        (
            "/spec/containers/0/ports/0/containerPort",
            json!(1),
            "containers[seid].ports[p2p].containerPort: `1` -> `26656`",
        ),
        (
            "/spec/securityContext",
            json!({"fsGroup": 1}),
            "securityContext.fsGroup: `1` -> `65532`
            securityContext.fsGroupChangePolicy: - -> `OnRootMismatch`",
        ),
        (
            "/spec/containers/0/command",
            json!("odd"),
            r#"containers[seid].command: `odd` -> `["/bin/bash","-c"]`"#,
        ),
    ] {
        check(&rendered_template(), &stored(), &with(stored(), pointer, value), expected);
    }
}

#[test]
fn what_the_body_lacks_and_we_render_is_drift() {
    for (pointer, expected) in [
        ("/spec/containers/0/env/1", "containers[seid].env[TMPDIR]: - -> `/home/nonroot/.sei/tmp`"),
        (
            "/spec/initContainers/1",
            r#"initContainers[sei-sidecar]: - -> `{"env":[{"name":"SEI_CHAIN_ID","value":"demo-1"},{"name":"SEI_KEYRING_PASSPHRASE","valueFrom":{"secretKeyRef":{"key":"p…`"#,
        ),
        (
            "/spec/containers/0/readinessProbe",
            r#"containers[seid].readinessProbe: - -> `{"httpGet":{"path":"/lag_status","port":26657}}`"#,
        ),
        (
            "/spec/containers/0/args",
            r#"containers[seid].args: - -> `["exec seid start --home /home/nonroot/.sei"]`"#,
        ),
        ("/metadata/annotations", "metadata.annotations[karpenter.sh/do-not-disrupt]: - -> `true`"),
        (
            "/spec/tolerations",
            r#"tolerations[example.org/chain]: - -> `{"effect":"NoSchedule","key":"example.org/chain","value":"chain-default"}`"#,
        ),
        ("/spec/volumes/2/emptyDir", "volumes[home].emptyDir: - -> `{}`"),
    ] {
        check(&rendered_template(), &stored(), &without(stored(), pointer), expected);
    }
}

#[test]
fn another_order_of_env_is_drift() {
    let mut body = stored();
    body["spec"]["containers"][0]["env"].as_array_mut().unwrap().reverse();
    check(
        &rendered_template(),
        &stored(),
        &body,
        "containers[seid].env: `TMPDIR, HOME` -> `HOME, TMPDIR`",
    );
}

#[test]
fn forms_that_mean_the_same_are_equal() {
    let memory = "/spec/containers/0/resources/limits/memory";
    let rendered = with(rendered_template(), memory, json!("65536Mi"));
    check(&rendered, &stored(), &stored(), "equal");
    check(&rendered, &with(stored(), memory, json!("65536Mi")), &stored(), "equal");
    // Servers differ in whether they write empty resources and empty env values.
    let body = without(stored(), "/spec/initContainers/0/resources");
    check(&rendered_template(), &stored(), &body, "equal");
    check(&rendered_template(), &body, &stored(), "equal");
    let empty = |entry| with(stored(), "/spec/containers/0/env/-", entry);
    let [with_value, bare] = [json!({"name": "E", "value": ""}), json!({"name": "E"})];
    let rendered = with(rendered_template(), "/spec/containers/0/env/-", with_value.clone());
    check(&rendered, &empty(bare), &empty(with_value), "equal");
}

#[test]
fn secrets_stay_hidden() {
    let literal = json!({"name": "SEI_KEYRING_PASSPHRASE", "value": "hunter2"});
    let body = with(stored(), "/spec/initContainers/1/env/1", literal);
    check(
        &rendered_template(),
        &stored(),
        &body,
        "initContainers[sei-sidecar].env[SEI_KEYRING_PASSPHRASE]: `(hidden)` -> `(from Secret keyring/passphrase)`",
    );
}

#[test]
fn a_malformed_body_is_a_typed_error() {
    let containers = json!([{"name": "seid"}]);
    for (body, expected) in [
        (json!(null), "the data of the revision is null, not an object with `spec.template`"),
        (json!("text"), "the data of the revision is a string, not an object with `spec.template`"),
        (json!([1]), "the data of the revision is a list, not an object with `spec.template`"),
        (json!({}), "the data of the revision has no `spec.template`"),
        (json!({"spec": {}}), "the data of the revision has no `spec.template`"),
        (json!({"spec": "x"}), "the data of the revision has no `spec.template`"),
        (json!({"spec": {"template": null}}), "the data of the revision has no `spec.template`"),
        (
            json!({"spec": {"template": {}}}),
            "the template of the revision has no list of containers in its `spec`",
        ),
        (
            json!({"spec": {"template": {"spec": {"containers": []}}}}),
            "the template of the revision has no list of containers in its `spec`",
        ),
        (
            json!({"spec": {"template": {"$patch": "merge", "spec": {"containers": containers}}}}),
            "the data of the revision patches its template with `merge`, not with `replace`",
        ),
    ] {
        let error = template_of_revision(&body).unwrap_err();
        assert_eq!(error.to_string(), expected);
        let compared = compare(&rendered_template(), &stored(), &body);
        assert!(matches!(compared, Comparison::Different(_)), "{body}");
    }
}

proptest! {
    #[test]
    fn a_template_and_its_defaults_are_equal(template in any_template()) {
        prop_assume!(template.pointer("/spec/template").is_none());
        let stored = defaulted(template.clone());
        prop_assert_eq!(compare(&template, &stored, &stored), Comparison::Equal);
    }

    #[test]
    fn defaults_that_were_added_later_are_not_drift(template in any_template()) {
        prop_assume!(template.pointer("/spec/template").is_none());
        let stored = defaulted(template.clone());
        prop_assert_eq!(compare(&template, &stored, &template), Comparison::Equal);
    }

    #[test]
    fn any_json_is_compared_without_a_panic(
        rendered in any_json(),
        dry_run in any_json(),
        body in any_json(),
    ) {
        let _ = compare(&rendered, &dry_run, &body);
        let _ = template_of_revision(&body);
    }

    #[test]
    fn equal_templates_are_equal_with_any_render(
        rendered in any_json(),
        stored in any_template(),
    ) {
        prop_assume!(stored.pointer("/spec/template").is_none());
        prop_assert_eq!(compare(&rendered, &stored, &stored), Comparison::Equal);
    }
}
