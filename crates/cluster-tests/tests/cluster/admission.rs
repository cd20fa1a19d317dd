//! Manifests that the server accepts and refuses. The tests of `sei-api` check the same without a
//! server; these tests check that a real server agrees.

use anyhow::{Context as _, Result};
use cluster_tests::{SEINODE_CRD, TestContext, test_context, wait_for};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, ValidationDirective,
};
use sei_api::SeiNode;
use serde::Deserialize;
use serde_json::{Value, json};

const ACCEPTED: &[&str] = &[
    include_str!("../../../sei-api/testdata/accept/archive.yaml"),
    include_str!("../../../sei-api/testdata/accept/full-node.yaml"),
    include_str!("../../../sei-api/testdata/accept/replayer.yaml"),
    include_str!("../../../sei-api/testdata/accept/seed.yaml"),
    include_str!("../../../sei-api/testdata/accept/validator.yaml"),
];

const REFUSED: &str = include_str!("../../../sei-api/testdata/refuse.yaml");

fn nodes(context: &TestContext) -> Api<SeiNode> {
    Api::namespaced(context.admin.clone(), &context.namespace)
}

fn named(name: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
        "metadata": { "name": name }, "spec": spec })
}

/// Uses a strict server-side apply: an unknown field in the file would be an error. It also proves
/// that every rule is within the server's cost limit.
#[tokio::test]
async fn the_crd_is_accepted_as_written() -> Result<()> {
    let context = test_context("crd").await?;
    let file: Value = serde_saphyr::from_str(SEINODE_CRD)?;
    let crds: Api<CustomResourceDefinition> = Api::all(context.admin.clone());
    let mut parameters = PatchParams::apply("test").force();
    parameters.field_validation = Some(ValidationDirective::Strict);
    let crd = crds.patch("seinodes.sei.io", &parameters, &Patch::Apply(&file)).await?;
    let conditions = crd.status.context("the CRD has no status")?.conditions.unwrap_or_default();
    let conditions: Vec<String> = conditions
        .iter()
        .map(|condition| format!("{}={}", condition.type_, condition.status))
        .collect();
    assert!(conditions.contains(&"Established=True".to_owned()), "{conditions:?}");
    assert!(conditions.contains(&"NamesAccepted=True".to_owned()), "{conditions:?}");
    assert!(!conditions.contains(&"NonStructuralSchema=True".to_owned()), "{conditions:?}");
    Ok(())
}

#[tokio::test]
async fn the_server_accepts_every_example() -> Result<()> {
    let context = test_context("accept").await?;
    let documents = ACCEPTED.iter().flat_map(|file| file.split("\n---\n"));
    let parameters = PatchParams {
        field_validation: Some(ValidationDirective::Strict),
        ..PatchParams::apply("test")
    };
    for document in documents {
        let mut manifest: Value = serde_saphyr::from_str(document)?;
        // The examples use several namespaces, this test has one.
        let of = manifest["metadata"]["namespace"].take();
        let name = format!("{}-{}", manifest["metadata"]["name"], of).replace('"', "");
        manifest["metadata"]["name"] = json!(name);
        manifest["metadata"]["namespace"] = json!(context.namespace);
        let stored = nodes(&context).patch(&name, &parameters, &Patch::Apply(&manifest)).await;
        let stored = serde_json::to_value(stored.with_context(|| name)?)?;
        assert_contains(&stored["spec"], &manifest["spec"]);
    }
    Ok(())
}

/// Asserts that all written fields are stored; the server may have added defaults.
fn assert_contains(stored: &Value, written: &Value) {
    match written {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(stored.get(name).is_some(), "{name} of {written} is not in {stored}");
                assert_contains(&stored[name], value);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                assert_contains(&stored[index], item);
            }
        }
        _ => assert_eq!(stored, written),
    }
}

#[derive(Deserialize)]
struct Refusal {
    /// The spec that is stored before, if the case is an update.
    from: Option<Value>,
    spec: Value,
    path: String,
    rule: String,
}

/// The server's message for a schema keyword, which is how the tests without a server name a rule.
/// A CEL rule has its own message.
fn server_message(rule: &str) -> &str {
    match rule {
        "duplicate" => "Duplicate value",
        "maxLength" => "Too long: may not be more than",
        "maxItems" | "maxProperties" => "must have at most",
        "enum" => "Unsupported value",
        "maximum" => "should be less than or equal to",
        "minItems" | "minProperties" => "should have at least",
        "minLength" => "should be at least",
        "minimum" => "should be greater than or equal to",
        "pattern" => "should match",
        "required" => "Required value",
        message => message,
    }
}

/// Uses create and replace, because a server-side apply fails on duplicates in a set by itself,
/// with a response of 500 and the same message.
#[tokio::test]
async fn the_server_refuses_every_counterexample() -> Result<()> {
    let context = test_context("refuse").await?;
    // Untyped, because many of the specs do not parse as a SeiNode.
    let resource = ApiResource::erase::<SeiNode>(&());
    let nodes: Api<DynamicObject> =
        Api::namespaced_with(context.admin.clone(), &context.namespace, &resource);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refusals: Vec<Refusal> = serde_saphyr::from_str(REFUSED)?;
    for (index, Refusal { from, spec, path, rule }) in refusals.iter().enumerate() {
        let name = format!("case-{index}");
        let outcome = if let Some(from) = from {
            let stored = serde_json::from_value(named(&name, from))?;
            let mut node = nodes.create(&PostParams::default(), &stored).await?;
            node.data["spec"] = spec.clone();
            nodes.replace(&name, &dry, &node).await
        } else {
            nodes.create(&dry, &serde_json::from_value(named(&name, spec))?).await
        };
        let Err(kube::Error::Api(refusal)) = outcome else {
            panic!("{spec} was not refused: {outcome:?}");
        };
        assert_eq!(refusal.code, 422, "{spec}: {refusal:?}");
        let causes = refusal.details.map(|details| details.causes).unwrap_or_default();
        // For a list with duplicates the server names the second of them.
        let is_named = causes.iter().any(|cause| {
            cause.field.starts_with(path) && cause.message.contains(server_message(rule))
        });
        assert!(is_named, "{spec}: expected {path}: {}, got {causes:#?}", server_message(rule));
    }
    Ok(())
}

/// A spec that the rules refuse in every field that has a pattern or a range.
fn outdated() -> Value {
    json!({
        "chainId": "demo-1", "image": "not an image", "podLabels": { "team": "not a label" },
        "externalAddress": "my host", "sidecar": { "image": "not an image", "port": 0 },
        "peers": [{ "static": { "addresses": ["not-a-peer"] } }],
        "fullNode": { "snapshot": {
            "stateSync": {}, "trustPeriod": "two weeks", "backfillBlocks": -5 } },
    })
}

/// An object from before the rules is stored under a definition without them, of another kind: the
/// tests of this program share the definition of nodes.
#[tokio::test]
async fn an_object_from_before_the_rules_still_gets_its_status() -> Result<()> {
    let context = test_context("ratchet").await?;
    let mut file: Value = serde_saphyr::from_str(SEINODE_CRD)?;
    file["metadata"]["name"] = json!("oldnodes.ratchet.example.org");
    file["spec"]["group"] = json!("ratchet.example.org");
    file["spec"]["names"] = json!({ "kind": "OldNode", "plural": "oldnodes" });
    let mut before = file.clone();
    remove_rules(&mut before["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    let crds: Api<CustomResourceDefinition> = Api::all(context.admin.clone());
    let apply = async |crd: &Value| {
        let parameters = PatchParams::apply("test").force();
        crds.patch("oldnodes.ratchet.example.org", &parameters, &Patch::Apply(crd)).await
    };
    apply(&before).await?;
    let kind = kube::api::GroupVersionKind::gvk("ratchet.example.org", "v1alpha1", "OldNode");
    let nodes: Api<DynamicObject> = Api::namespaced_with(
        context.admin.clone(),
        &context.namespace,
        &ApiResource::from_gvk_with_plural(&kind, "oldnodes"),
    );
    let old = json!({ "apiVersion": "ratchet.example.org/v1alpha1", "kind": "OldNode",
        "metadata": { "name": "9.digit" }, "spec": outdated() });
    let old: DynamicObject = serde_json::from_value(old)?;
    wait_for("the definition without rules is served", async || {
        match nodes.create(&PostParams::default(), &old).await {
            Err(kube::Error::Api(reply)) if reply.code == 404 => Ok(None),
            outcome => Ok(Some(outcome?)),
        }
    })
    .await?;
    apply(&file).await?;
    let mut new = old.clone();
    new.metadata.name = Some("new".to_owned());
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let refusal =
        wait_for("the rules are in force", async || Ok(nodes.create(&dry, &new).await.err()))
            .await?
            .to_string();
    for field in [
        "image",
        "podLabels.team",
        "externalAddress",
        "port",
        "addresses",
        "trustPeriod",
        "backfillBlocks",
    ] {
        assert!(refusal.contains(field), "{field}: {refusal}");
    }
    // The status, a change elsewhere in the spec, and a label.
    let status =
        json!({ "status": { "phase": "Running", "chainId": "demo-1", "mode": "fullNode" } });
    nodes.patch_status("9.digit", &PatchParams::default(), &Patch::Merge(&status)).await?;
    let elsewhere = json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "paused": true } });
    nodes.patch("9.digit", &PatchParams::default(), &Patch::Merge(&elsewhere)).await?;
    for spec in [
        json!({ "chainId": "demo-2" }),
        json!({ "fullNode": null, "archive": {} }),
        json!({ "image": "another bad one" }),
    ] {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let outcome = nodes.patch("9.digit", &PatchParams::default(), &patch).await;
        assert!(outcome.is_err(), "{spec}");
    }
    crds.delete("oldnodes.ratchet.example.org", &DeleteParams::default()).await?;
    Ok(())
}

/// Removes what restricts a schema.
fn remove_rules(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for rule in ["pattern", "minimum", "maximum", "maxLength", "x-kubernetes-validations"] {
                // A property may have the name of a keyword; its value is an object.
                if fields.get(rule).is_some_and(|value| !value.is_object()) {
                    fields.remove(rule);
                }
            }
            fields.values_mut().for_each(remove_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_rules),
        _ => {}
    }
}

/// Not every supported server checks the format `int32` itself. The operator could not read such an
/// object at all.
#[tokio::test]
async fn a_number_that_the_operator_cannot_read_is_refused() -> Result<()> {
    let context = test_context("int32").await?;
    let resource = ApiResource::erase::<SeiNode>(&());
    let nodes: Api<DynamicObject> =
        Api::namespaced_with(context.admin.clone(), &context.namespace, &resource);
    let generation = json!({ "tendermint": { "keepRecent": 999_999_999_999_i64 } });
    let spec = json!({ "chainId": "demo-1", "image": "seid:v1",
        "archive": { "snapshotGeneration": generation } });
    let node = serde_json::from_value(named("huge", &spec))?;
    let refusal = nodes.create(&PostParams::default(), &node).await.unwrap_err().to_string();
    assert!(refusal.contains("keepRecent"), "{refusal}");
    Ok(())
}

#[tokio::test]
async fn a_name_has_at_most_52_characters() -> Result<()> {
    let context = test_context("name").await?;
    let spec = json!({ "chainId": "demo-1", "image": "seid:v1", "fullNode": {} });
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    let create = async |length: usize| {
        let node: SeiNode = serde_json::from_value(named(&"a".repeat(length), &spec))?;
        anyhow::Ok(nodes(&context).create(&parameters, &node).await)
    };
    create(52).await??;
    let refusal = create(53).await?.unwrap_err().to_string();
    assert!(refusal.contains("metadata.name must have at most 52 characters"), "{refusal}");
    Ok(())
}
