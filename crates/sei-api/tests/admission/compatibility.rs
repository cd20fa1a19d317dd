//! The schema of the Go operator, field by field, and the fields that are added to it.

use std::fmt::Write as _;

use expect_test::expect;
use kube::CustomResourceExt as _;
use sei_api::SeiNode;
use serde_json::Value;

use crate::schema::SCHEMA;

/// Path, type, and whether it is required, of every field of the Go operator's CRD. `[]` steps into
/// a list.
const GO_OPERATOR: &[(&str, &str, bool)] = &[
    ("spec.chainId", "string", true),
    ("spec.image", "string", true),
    ("spec.peers", "list", false),
    ("spec.peers[].label", "object", false),
    ("spec.peers[].label.selector", "map of string", true),
    ("spec.peers[].label.namespace", "string", false),
    ("spec.peers[].static", "object", false),
    ("spec.peers[].static.addresses", "list of string", true),
    ("spec.peers[].ec2Tags", "object", false),
    ("spec.peers[].ec2Tags.region", "string", true),
    ("spec.peers[].ec2Tags.tags", "map of string", true),
    ("spec.overrides", "map of string", false),
    ("spec.sidecar", "object", false),
    ("spec.sidecar.image", "string", false),
    ("spec.sidecar.port", "int32", false),
    ("spec.sidecar.resources", "object", false),
    ("spec.sidecar.resources.claims", "list by name", false),
    ("spec.sidecar.resources.claims[].name", "string", true),
    ("spec.sidecar.resources.claims[].request", "string", false),
    ("spec.sidecar.resources.limits", "map of int-or-string", false),
    ("spec.sidecar.resources.requests", "map of int-or-string", false),
    ("spec.podLabels", "map of string", false),
    ("spec.dataVolume", "object", false),
    ("spec.dataVolume.import", "object", false),
    ("spec.dataVolume.import.pvcName", "string", true),
    ("spec.externalAddress", "string", false),
    ("spec.paused", "boolean", false),
    ("spec.fullNode", "object", false),
    ("spec.fullNode.snapshot", "object", false),
    ("spec.fullNode.snapshot.s3", "object", false),
    ("spec.fullNode.snapshot.s3.targetHeight", "int64", true),
    ("spec.fullNode.snapshot.stateSync", "object", false),
    ("spec.fullNode.snapshot.trustPeriod", "string", false),
    ("spec.fullNode.snapshot.backfillBlocks", "int64", false),
    ("spec.fullNode.snapshot.rpcServers", "set of string", false),
    ("spec.fullNode.snapshot.bootstrapImage", "string", false),
    ("spec.fullNode.snapshotGeneration", "object", false),
    ("spec.fullNode.snapshotGeneration.tendermint", "object", false),
    ("spec.fullNode.snapshotGeneration.tendermint.keepRecent", "int32", true),
    ("spec.fullNode.snapshotGeneration.tendermint.publish", "object", false),
    ("spec.archive", "object", false),
    ("spec.archive.snapshotGeneration", "object", false),
    ("spec.archive.snapshotGeneration.tendermint", "object", false),
    ("spec.archive.snapshotGeneration.tendermint.keepRecent", "int32", true),
    ("spec.archive.snapshotGeneration.tendermint.publish", "object", false),
    ("spec.replayer", "object", false),
    ("spec.replayer.snapshot", "object", true),
    ("spec.replayer.snapshot.s3.targetHeight", "int64", true),
    ("spec.replayer.snapshot.stateSync", "object", false),
    ("spec.replayer.snapshot.rpcServers", "set of string", false),
    ("spec.replayer.snapshot.bootstrapImage", "string", false),
    ("spec.replayer.resultExport", "object", false),
    ("spec.replayer.resultExport.shadowResult", "object", false),
    ("spec.replayer.resultExport.shadowResult.canonicalRpc", "string", true),
    ("spec.validator", "object", false),
    ("spec.validator.snapshot", "object", false),
    ("spec.validator.snapshot.stateSync", "object", false),
    ("spec.validator.genesisCeremony", "object", false),
    ("spec.validator.genesisCeremony.chainId", "string", true),
    ("spec.validator.genesisCeremony.stakingAmount", "string", true),
    ("spec.validator.genesisCeremony.accountBalance", "string", true),
    ("spec.validator.genesisCeremony.index", "int32", true),
    ("spec.validator.signingKey", "object", false),
    ("spec.validator.signingKey.secret", "object", false),
    ("spec.validator.signingKey.secret.secretName", "string", true),
    ("spec.validator.nodeKey", "object", false),
    ("spec.validator.nodeKey.secret", "object", false),
    ("spec.validator.nodeKey.secret.secretName", "string", true),
    ("spec.validator.operatorKeyring", "object", false),
    ("spec.validator.operatorKeyring.secret", "object", false),
    ("spec.validator.operatorKeyring.secret.secretName", "string", true),
    ("spec.validator.operatorKeyring.secret.keyName", "string", false),
    ("spec.validator.operatorKeyring.secret.passphraseSecretRef", "object", true),
    ("spec.validator.operatorKeyring.secret.passphraseSecretRef.secretName", "string", true),
    ("spec.validator.operatorKeyring.secret.passphraseSecretRef.key", "string", true),
    ("spec.validator.operatorKeyring.secret.seidMount", "boolean", false),
    ("spec.seed", "object", false),
    ("spec.seed.nodeKey", "object", true),
    ("spec.seed.nodeKey.secret", "object", false),
    ("spec.seed.nodeKey.secret.secretName", "string", true),
    ("status", "object", false),
    ("status.phase", "enum Failed Initializing Pending Running Terminating", false),
    ("status.phaseTransitionTime", "time", false),
    ("status.currentImage", "string", false),
    ("status.currentSidecarImage", "string", false),
    ("status.conditions", "list by type", false),
    ("status.conditions[].type", "string", true),
    ("status.conditions[].status", "string", true),
    ("status.conditions[].reason", "string", true),
    ("status.conditions[].message", "string", true),
    ("status.conditions[].lastTransitionTime", "time", true),
    ("status.conditions[].observedGeneration", "int64", false),
    ("status.plan", "object", false),
    ("status.plan.id", "string", false),
    ("status.plan.phase", "enum Active Complete Failed", true),
    ("status.plan.tasks", "list", true),
    ("status.plan.tasks[].type", "string", true),
    ("status.plan.tasks[].id", "string", true),
    ("status.plan.tasks[].status", "enum Complete Failed Pending Running", true),
    ("status.plan.tasks[].params", "anything", false),
    ("status.plan.tasks[].submittedAt", "time", false),
    ("status.plan.tasks[].error", "string", false),
    ("status.plan.tasks[].maxRetries", "int32", false),
    ("status.plan.tasks[].retryCount", "int32", false),
    ("status.plan.targetPhase", "enum Failed Initializing Pending Running Terminating", false),
    ("status.plan.failedPhase", "enum Failed Initializing Pending Running Terminating", false),
    ("status.plan.failedTaskIndex", "int32", false),
    ("status.plan.failedTaskDetail", "object", false),
    ("status.plan.failedTaskDetail.type", "string", true),
    ("status.plan.failedTaskDetail.id", "string", true),
    ("status.plan.failedTaskDetail.error", "string", true),
    ("status.plan.failedTaskDetail.retryCount", "int32", true),
    ("status.plan.failedTaskDetail.maxRetries", "int32", true),
    ("status.adoptedWorkflow", "object", false),
    ("status.adoptedWorkflow.name", "string", true),
    ("status.adoptedWorkflow.uid", "string", true),
    ("status.adoptedWorkflow.adoptedAt", "time", true),
    ("status.resolvedPeers", "list of string", false),
    ("status.resolvedRPCWitnesses", "list of string", false),
    ("status.resolvedStateSyncers", "list of string", false),
    ("status.statefulSet", "object", false),
    ("status.statefulSet.name", "string", true),
    ("status.statefulSet.uid", "string", true),
    ("status.endpoint", "object", false),
    ("status.endpoint.evmJsonRpc", "string", false),
    ("status.endpoint.evmWs", "string", false),
    ("status.endpoint.tendermintRpc", "string", false),
    ("status.endpoint.tendermintRest", "string", false),
];

/// The added fields. A required one is inside an optional object.
const ADDED: &[(&str, &str, bool)] = &[
    ("spec.update", "object", false),
    ("spec.update.paused", "boolean", false),
    ("spec.update.onOperatorChange", "enum Auto Hold", false),
    ("spec.podAnnotations", "map of string", false),
    ("spec.scheduling", "object", false),
    ("spec.scheduling.nodePool", "string", false),
    ("spec.scheduling.nodeSelector", "map of string", false),
    ("spec.scheduling.tolerations", "list", false),
    ("spec.scheduling.tolerations[].key", "string", false),
    ("spec.scheduling.tolerations[].operator", "enum Equal Exists", false),
    ("spec.scheduling.tolerations[].value", "string", false),
    ("spec.scheduling.tolerations[].effect", "enum NoExecute NoSchedule PreferNoSchedule", false),
    ("spec.scheduling.tolerations[].tolerationSeconds", "int64", false),
    ("spec.scheduling.priorityClassName", "string", false),
    ("spec.scheduling.topologySpreadConstraints", "list by topologyKey", false),
    ("spec.scheduling.topologySpreadConstraints[].labelSelector", "object", true),
    (
        "spec.scheduling.topologySpreadConstraints[].labelSelector.matchLabels",
        "map of string",
        true,
    ),
    ("spec.scheduling.topologySpreadConstraints[].maxSkew", "int32", true),
    ("spec.scheduling.topologySpreadConstraints[].topologyKey", "string", true),
    (
        "spec.scheduling.topologySpreadConstraints[].whenUnsatisfiable",
        "enum DoNotSchedule ScheduleAnyway",
        true,
    ),
    ("spec.terminationGracePeriodSeconds", "int32", false),
    ("spec.resources", "object", false),
    ("spec.resources.limits", "map of int-or-string", false),
    ("spec.resources.requests", "map of int-or-string", false),
    ("spec.imagePullSecrets", "list by name", false),
    ("spec.imagePullSecrets[].name", "string", true),
    ("spec.dataVolume.storageClassName", "string", false),
    ("spec.dataVolume.size", "int-or-string", false),
    ("status.observedGeneration", "int64", false),
    ("status.podTemplateHash", "string", false),
    ("status.podTemplate", "object", false),
    ("status.podTemplate.revision", "string", true),
    ("status.podTemplate.podUID", "string", true),
    ("status.podTemplate.inputsHash", "string", true),
    ("status.podTemplate.operatorVersion", "string", true),
    ("status.podTemplate.observedAt", "time", false),
    ("status.pendingUpdate", "object", false),
    ("status.pendingUpdate.targetHash", "string", true),
    ("status.pendingUpdate.baseInputsHash", "string", true),
    ("status.pendingUpdate.cause", "enum Adoption Operator Spec", true),
    ("status.pendingUpdate.state", "enum Held Queued Retrying Rolling", true),
    ("status.pendingUpdate.reason", "string", false),
    ("status.pendingUpdate.since", "time", true),
    ("status.pendingUpdate.changes", "list", false),
    ("status.pendingUpdate.changes[].path", "string", true),
    ("status.pendingUpdate.changes[].from", "string", false),
    ("status.pendingUpdate.changes[].to", "string", false),
    ("status.pendingUpdate.attempts", "int32", false),
    ("status.pendingUpdate.nextAttemptAt", "time", false),
    ("status.plan.target", "object", false),
    ("status.plan.target.hash", "string", true),
    ("status.plan.target.image", "string", true),
    ("status.plan.target.sidecarImage", "string", true),
    ("status.plan.target.generation", "int64", true),
    ("status.plan.target.cause", "enum Adoption Operator Spec", true),
    ("status.plan.applied", "object", false),
    ("status.plan.applied.uid", "string", true),
    ("status.plan.applied.generation", "int64", true),
    ("status.lastUpdate", "object", false),
    ("status.lastUpdate.planID", "string", true),
    ("status.lastUpdate.cause", "enum Adoption Operator Spec", true),
    ("status.lastUpdate.from", "string", false),
    ("status.lastUpdate.to", "string", false),
    ("status.lastUpdate.startedAt", "time", false),
    ("status.lastUpdate.finishedAt", "time", true),
    ("status.lastUpdate.outcome", "enum Complete Failed Superseded", true),
];

/// The schema of one field.
#[derive(Debug, PartialEq)]
struct Fact {
    type_: String,
    is_required: bool,
    is_defaulted: bool,
}

fn find(path: &str) -> Option<Fact> {
    let mut schema = &*SCHEMA;
    let mut is_required = false;
    for step in path.split('.') {
        let (name, is_list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        is_required = required.iter().any(|field| field == name);
        schema = schema["properties"].get(name)?;
        if is_list {
            schema = &schema["items"];
        }
    }
    let is_defaulted = schema.get("default").is_some();
    Some(Fact { type_: type_of(schema), is_required, is_defaulted })
}

fn type_of(schema: &Value) -> String {
    if schema["x-kubernetes-int-or-string"] == true {
        return "int-or-string".to_owned();
    }
    if schema["x-kubernetes-preserve-unknown-fields"] == true {
        return "anything".to_owned();
    }
    if let Some(values) = schema["enum"].as_array() {
        // An optional value may also be null.
        let mut values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        values.sort_unstable();
        return format!("enum {}", values.join(" "));
    }
    match (schema["type"].as_str().unwrap(), schema["format"].as_str()) {
        ("string", Some("date-time")) => "time".to_owned(),
        ("integer", Some(format)) => format.to_owned(),
        ("array", _) => list_type(schema),
        ("object", _) if !schema["additionalProperties"].is_null() => {
            format!("map of {}", type_of(&schema["additionalProperties"]))
        }
        (type_, _) => type_.to_owned(),
    }
}

fn list_type(schema: &Value) -> String {
    match (schema["x-kubernetes-list-type"].as_str(), type_of(&schema["items"])) {
        (Some("map"), _) => {
            format!("list by {}", schema["x-kubernetes-list-map-keys"][0].as_str().unwrap())
        }
        (Some("set"), item) => format!("set of {item}"),
        (_, item) if item == "object" => "list".to_owned(),
        (_, item) => format!("list of {item}"),
    }
}

/// A required field is always present: required here too, or set by the server's default.
fn check(facts: &[(&str, &str, bool)]) {
    for (path, type_, is_required) in facts {
        let fact = find(path).unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!(fact.type_, *type_, "{path}");
        let is_always_present = fact.is_required || (*is_required && fact.is_defaulted);
        assert_eq!(is_always_present, *is_required, "{path}");
    }
}

#[test]
fn every_field_of_the_peer_is_there() {
    check(GO_OPERATOR);
}

#[test]
fn every_added_field_is_in_the_schema() {
    check(ADDED);
}

/// A field that is optional in the Go operator must stay optional, or its objects are rejected.
#[test]
fn nothing_of_the_peers_becomes_required() {
    let required_there = |path: &str| {
        GO_OPERATOR.iter().any(|(field, _, is_required)| *field == path && *is_required)
    };
    for (parent, type_, _) in GO_OPERATOR.iter().chain(&[("spec", "object", false)]) {
        let step = if type_.starts_with("list") { "[]" } else { "" };
        for name in required_inside(&format!("{parent}{step}")) {
            let path = format!("{parent}{step}.{name}");
            // The table lists only a part of these two: they have the type of a full node's snapshot.
            let is_repeated =
                path.contains("replayer.snapshot.") || path.contains("validator.snapshot.");
            assert!(required_there(&path) || is_repeated, "{path} is newly required");
        }
    }
}

fn required_inside(path: &str) -> Vec<String> {
    let mut schema = &*SCHEMA;
    for step in path.split('.') {
        let name = step.trim_end_matches("[]");
        schema = &schema["properties"][name];
        if step.ends_with("[]") {
            schema = &schema["items"];
        }
    }
    let required = schema["required"].as_array().cloned().unwrap_or_default();
    required.iter().map(|field| field.as_str().unwrap().to_owned()).collect()
}

#[test]
#[should_panic(expected = "spec.entrypoint is missing")]
fn a_missing_field_is_found() {
    check(&[("spec.entrypoint", "object", false)]);
}

#[test]
#[should_panic(expected = "spec.image")]
fn a_newly_required_field_is_found() {
    check(&[("spec.image", "string", false)]);
}

#[test]
#[should_panic(expected = "spec.paused")]
fn a_retyped_field_is_found() {
    check(&[("spec.paused", "string", false)]);
}

#[test]
fn the_crd_has_the_names_of_the_go_operator() {
    let crd = serde_json::to_value(SeiNode::crd()).unwrap();
    let (names, version) = (&crd["spec"]["names"], &crd["spec"]["versions"][0]);
    let mut text = format!(
        "{} {} {} scope {}\n{} {} {} {} {}\nserved {} storage {} subresources {}\n",
        crd["metadata"]["name"],
        crd["spec"]["group"],
        version["name"],
        crd["spec"]["scope"],
        names["kind"],
        names["plural"],
        names["singular"],
        names["shortNames"],
        names["categories"],
        version["served"],
        version["storage"],
        version["subresources"],
    );
    for column in version["additionalPrinterColumns"].as_array().unwrap() {
        let (name, path) = (&column["name"], &column["jsonPath"]);
        let (type_, priority) = (&column["type"], &column["priority"]);
        writeln!(text, "{name} {type_} {priority} {path}").unwrap();
    }
    expect![[r#"
        "seinodes.sei.io" "sei.io" "v1alpha1" scope "Namespaced"
        "SeiNode" "seinodes" "seinode" ["snode"] ["sei"]
        served true storage true subresources {"status":{}}
        "Ready" "string" null ".status.conditions[?(@.type==\"Ready\")].status"
        "Reason" "string" null ".status.conditions[?(@.type==\"Ready\")].reason"
        "Phase" "string" null ".status.phase"
        "Image" "string" null ".status.currentImage"
        "Update" "string" null ".status.conditions[?(@.type==\"PodTemplateDrift\")].reason"
        "Chain" "string" null ".status.chainId"
        "Age" "date" null ".metadata.creationTimestamp"
        "Mode" "string" 1 ".status.mode"
        "Paused" "string" 1 ".status.conditions[?(@.type==\"Paused\")].status"
        "StatefulSet" "string" 1 ".status.statefulSet.name"
        "Revision" "string" 1 ".status.podTemplate.revision"
    "#]]
    .assert_eq(&text);
}
