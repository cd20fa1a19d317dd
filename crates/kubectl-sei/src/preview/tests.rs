use std::path::PathBuf;

use expect_test::{Expect, expect};
use sei_api::status::SeiNodeStatus;
use sei_plan::desired::{Desired, render_desired};
use sei_plan::request::ClaimView;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::fixtures;
use crate::flags::{Output, OutputFlags};

const PLATFORM: &str = "
scheduling:
  nodepoolName: chain-default
  nodepoolArchive: chain-archive
  nodepoolValidator: chain-validator
  nodepoolSeed: chain-seed
  tolerationKey: example.org/chain
  serviceAccount: chain-node
storage: { classPerf: fast, classDefault: standard, classArchive: bulk, sizeDefault: 1Gi, sizeArchive: 2Gi }
snapshot: { bucket: snapshots, region: eu-west-1 }
genesis: { bucket: genesis, region: eu-west-1 }
images: { sidecar: \"seictl:v1\", kubeRBACProxy: \"proxy:v1\", cosmosExporter: \"exporter:v1\" }
";

/// The next configuration: another sidecar.
fn next() -> String {
    PLATFORM.replace("seictl:v1", "seictl:v2")
}

/// A fleet in files.
struct Fleet {
    folder: TempDir,
    objects: Vec<Value>,
}

impl Fleet {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), objects: Vec::new() }
    }

    /// A node that runs what the first configuration renders.
    fn node(&mut self, name: &str, spec: &Value) -> &mut Value {
        let mut node = json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNode",
            "metadata": {
                "name": name, "namespace": "demo", "uid": format!("uid-{name}"), "generation": 1,
            },
            "spec": spec,
        });
        let desired = desired(&node);
        node["status"] = json!({
            "phase": "Running",
            "currentImage": desired.image,
            "currentSidecarImage": desired.sidecar_image,
            "podTemplateHash": desired.hash,
            "podTemplate": {
                "revision": format!("{name}-1"), "podUID": format!("pod-{name}"),
                "inputsHash": desired.inputs_hash, "operatorVersion": "1.0.0",
                "config": desired.config,
            },
            "statefulSet": { "name": name, "uid": format!("set-{name}") },
        });
        self.objects.push(node);
        self.objects.last_mut().unwrap()
    }

    /// The StatefulSet of a node that was added before.
    fn set(&mut self, name: &str) {
        let node = self.objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        let desired = desired(node);
        let mut set = desired.statefulset.json();
        set["kind"] = json!("StatefulSet");
        set["metadata"]["uid"] = json!(format!("set-{name}"));
        set["metadata"]["annotations"]["sei.io/template-hash"] = json!(desired.hash);
        set["status"] = json!({ "updateRevision": format!("{name}-1"), "replicas": 1 });
        self.objects.push(set);
    }

    /// The pod of a node that was added before; it is not Ready.
    fn pod(&mut self, name: &str) {
        self.objects.push(json!({
            "kind": "Pod",
            "metadata": {
                "name": format!("{name}-0"), "namespace": "demo", "uid": format!("pod-{name}"),
                "labels": { "sei.io/node": name, "controller-revision-hash": format!("{name}-1") },
                "ownerReferences": [{
                    "apiVersion": "apps/v1", "kind": "StatefulSet", "name": name,
                    "uid": format!("set-{name}"), "controller": true,
                }],
            },
            "spec": { "containers": [
                { "name": "seid", "image": "seid:v1" },
                { "name": "sei-sidecar", "image": "seictl:v1" },
            ]},
            // For longer than the planner tolerates.
            "status": { "conditions": [{
                "type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }));
    }

    /// The revision that the pod of a node was made from.
    fn revision(&mut self, name: &str) {
        let node = self.objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        let mut template = desired(node).template();
        template["$patch"] = json!("replace");
        self.objects.push(json!({
            "apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": 1,
            "metadata": { "name": format!("{name}-1"), "namespace": "demo" },
            "data": { "spec": { "template": template } },
        }));
    }

    fn flags(&self, platform: &str) -> PreviewFlags {
        let (config, manifests) =
            (self.folder.path().join("next.yaml"), self.folder.path().join("fleet"));
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::write(&config, platform).unwrap();
        let list = json!({ "kind": "List", "items": self.objects });
        std::fs::write(manifests.join("fleet.yaml"), list.to_string()).unwrap();
        std::fs::write(manifests.join("notes.txt"), "not a manifest").unwrap();
        PreviewFlags {
            config: Some(config),
            filename: Vec::new(),
            all: false,
            manifests: vec![manifests],
            nodes: Vec::new(),
            output: OutputFlags { format: Output::Text },
        }
    }

    fn preview(&self, flags: &PreviewFlags) -> Result<(String, Exit), Error> {
        let context = CommandContext {
            now: fixtures::now,
            version: "1.0.0".into(),
            ..CommandContext::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut out = Vec::new();
        let exit = runtime.block_on(run(flags, &Scope::All, &context, &mut out))?;
        let text = String::from_utf8(out).unwrap();
        Ok((text.replace(&self.folder.path().display().to_string(), "DIR"), exit))
    }

    fn check(&self, platform: &str, expected: &Expect) {
        self.check_flags(&self.flags(platform), expected);
    }

    fn check_flags(&self, flags: &PreviewFlags, expected: &Expect) {
        let text = match self.preview(flags) {
            Ok((text, exit)) => format!("{text}exit {}\n", exit.code()),
            Err(error) => {
                let message = error.to_string();
                let folder = self.folder.path().display().to_string();
                format!("error: {}\n", message.replace(&folder, "DIR"))
            }
        };
        expected.assert_eq(&text);
    }
}

fn desired(node: &Value) -> Desired {
    let node: SeiNode = serde_json::from_value(node.clone()).unwrap();
    let platform = Platform::parse(PLATFORM, "first.yaml").unwrap();
    render_desired(&node, &platform, &[], &[]).unwrap()
}

fn rpc() -> Value {
    json!({ "chainId": "pacific-1", "image": "seid:v1", "fullNode": {} })
}

fn validator() -> Value {
    let key = |name: &str| json!({ "secret": { "secretName": name } });
    json!({ "chainId": "pacific-1", "image": "seid:v1", "validator": {
        "signingKey": key("signing"), "nodeKey": key("p2p"),
    }})
}

/// Nodes of two chains, one of them signing, with their `StatefulSets`.
fn fleet() -> Fleet {
    let mut fleet = Fleet::new();
    fleet.node("a-val", &validator());
    fleet.node("rpc-0", &rpc());
    fleet.node("rpc-1", &rpc());
    fleet.node("other", &json!({ "chainId": "atlantic-2", "image": "seid:v1", "archive": {} }));
    for name in ["a-val", "rpc-0", "rpc-1", "other"] {
        fleet.set(name);
    }
    fleet
}

#[test]
fn the_same_config_rolls_nothing() {
    fleet().check(
        PLATFORM,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (4 nodes checked).
            exit 0
        "#]],
    );
}

#[test]
fn a_closed_output_does_not_change_the_exit_code() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let fleet = fleet();
    let context =
        CommandContext { now: fixtures::now, version: "1.0.0".into(), ..CommandContext::default() };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (platform, expected) in [(PLATFORM.to_owned(), Exit::Fine), (next(), Exit::WouldRoll)] {
        let flags = fleet.flags(&platform);
        let result = runtime.block_on(run(&flags, &Scope::All, &context, &mut Closed));
        assert_eq!(result.unwrap(), expected);
    }
}

#[test]
fn signers_roll_last_and_each_field_is_printed() {
    fleet().check(&next(), &expect![[r#"
        With DIR/next.yaml 4 of 4 nodes would roll.
        Turns: at most 1 node of a chain at a time, each until it is Ready again.
               A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
               The first roll starts when the operator has been the leader for 120 s.

        Chain atlantic-2
          cause Operator: a new operator or platform configuration
              initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
            demo/other: turn 1

        Chain pacific-1
          cause Operator: a new operator or platform configuration
              initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
            demo/rpc-0: turn 1
            demo/rpc-1: turn 2
            demo/a-val: turn 3, signs
        exit 2
    "#]]);
}

#[test]
fn a_node_that_is_down_rolls_before_the_others() {
    let mut fleet = fleet();
    fleet.pod("rpc-1");
    let (text, _) = fleet.preview(&fleet.flags(&next())).unwrap();
    assert!(text.contains("demo/rpc-1: turn 1\n"), "{text}");
    assert!(text.contains("demo/rpc-0: turn 2\n"), "{text}");
}

#[test]
fn a_halted_chain_names_the_failed_node() {
    let mut fleet = fleet();
    // It rolled, kept its slot, and was not Ready in time.
    fleet.objects[1]["status"]["lastUpdate"] = json!({
        "planID": "p", "cause": "Operator", "outcome": "Complete", "slot": true,
        "finishedAt": "2026-12-01T00:00:00Z",
    });
    fleet.pod("rpc-0");
    let (text, exit) = fleet.preview(&fleet.flags(&next())).unwrap();
    let halted = "(the chain's rolls are halted: the roll of demo/rpc-0 failed)";
    let waits: Vec<&str> = text.lines().filter(|line| line.ends_with(halted)).collect();
    assert_eq!(waits.len(), 2, "{text}");
    assert!(text.contains("demo/rpc-0: turn 1\n"), "{text}");
    assert_eq!(exit, Exit::WouldRoll);
}

#[test]
fn a_hold_of_the_node_or_of_the_platform_is_kept() {
    let mut fleet = fleet();
    fleet.objects[1]["spec"]["update"] = json!({ "onOperatorChange": "Hold" });
    fleet.objects[2]["spec"]["update"] = json!({ "paused": true });
    let flags =
        PreviewFlags { nodes: vec!["rpc-0".into(), "demo/rpc-1".into()], ..fleet.flags(&next()) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (2 nodes checked).

            Held: they differ, and do not roll automatically
              changes of the operator wait for an approval
                  initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
                demo/rpc-0
              spec.update.paused
                  initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
                demo/rpc-1
            exit 0
        "#]],
    );
    let held = format!("{}\nrollout: {{ onOperatorChange: Hold }}", next());
    let flags = PreviewFlags { nodes: vec!["other".into()], ..fleet.flags(&held) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (1 node checked).

            Held: they differ, and do not roll automatically
              changes of the operator wait for an approval
                  initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
                demo/other
            exit 0
        "#]],
    );
}

#[test]
fn an_approval_counts_for_its_target_only() {
    let mut fleet = fleet();
    fleet.objects[1]["spec"]["update"] = json!({ "onOperatorChange": "Hold" });
    let node: SeiNode = serde_json::from_value(fleet.objects[1].clone()).unwrap();
    let platform = Platform::parse(&next(), "next.yaml").unwrap();
    let target = render_desired(&node, &platform, &[], &[]).unwrap().hash;
    fleet.objects[1]["metadata"]["annotations"]["sei.io/approve-update"] = json!(target);
    let flags = PreviewFlags { nodes: vec!["rpc-0".into()], ..fleet.flags(&next()) };
    let (_, exit) = fleet.preview(&flags).unwrap();
    assert_eq!(exit, Exit::WouldRoll);
    let elsewhere = next().replace("seictl:v2", "seictl:v3");
    let flags = PreviewFlags { nodes: vec!["rpc-0".into()], ..fleet.flags(&elsewhere) };
    assert_eq!(fleet.preview(&flags).unwrap().1, Exit::Fine);
}

#[test]
fn an_image_in_the_spec_rolls_in_turn_whatever_the_config() {
    let mut fleet = fleet();
    fleet.objects[0]["spec"]["image"] = json!("seid:v2");
    let flags = PreviewFlags { nodes: vec!["a-val".into()], ..fleet.flags(PLATFORM) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            With DIR/next.yaml 1 of 1 node would roll.
            Turns: at most 1 node of a chain at a time, each until it is Ready again.
                   A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
                   The first roll starts when the operator has been the leader for 120 s.

            Chain pacific-1
              cause Spec: the spec was changed
                  containers[seid].image: seid:v1 -> seid:v2
                  initContainers[seid-init].image: seid:v1 -> seid:v2
                demo/a-val: turn 1, signs
            exit 2
        "#]],
    );
}

#[test]
fn images_have_a_limit_of_their_own_and_a_budget_may_end_at_its_namespace() {
    let mut fleet = fleet();
    fleet.objects[1]["spec"]["image"] = json!("seid:v2");
    fleet.objects[2]["spec"]["image"] = json!("seid:v2");
    fleet.objects[2]["metadata"]["namespace"] = json!("other");
    let rollout = "rollout: { maxUnavailable: 3, budgetScope: Namespace }";
    fleet.check(&format!("{PLATFORM}{rollout}\n"), &expect![[r#"
        With DIR/next.yaml 2 of 4 nodes would roll.
        Turns: at most 1 node of a chain in a namespace at a time, each until it is Ready again.
               To another image: 3 of the nodes that do not sign at a time, then the signers.
               A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
               The first roll starts when the operator has been the leader for 120 s.

        Chain pacific-1 in namespace demo
          cause Spec: the spec was changed
              containers[seid].image: seid:v1 -> seid:v2
              initContainers[seid-init].image: seid:v1 -> seid:v2
            demo/rpc-0: turn 1

        Chain pacific-1 in namespace other
          cause Spec: the spec was changed
              containers[seid].image: seid:v1 -> seid:v2
            other/rpc-1: turn 1
        exit 2
    "#]]);
}

/// The node as the next version would decide on it.
fn observed(fleet: &FleetSnapshot, node: &SeiNode) -> Snapshot {
    let platform = Platform::parse(PLATFORM, "next.yaml").unwrap();
    let candidate = Candidate {
        platform: &platform,
        version: "1.0.0",
        budget: Budget::of(&platform.rollout, Timing::default()),
        now: fixtures::now(),
    };
    fleet.observe(node, &candidate)
}

#[test]
fn a_volume_keeps_its_size() {
    let node: SeiNode = serde_json::from_value(fleet().objects[1].clone()).unwrap();
    let claim = |size: &str| ClaimView { capacity: Some(size.into()), ..ClaimView::default() };
    let key = ("demo".to_owned(), "data-rpc-0".to_owned());
    let preview = |size: &str| {
        let claims = Some([(key.clone(), claim(size))].into());
        let fleet = FleetSnapshot { nodes: vec![node.clone()], claims, ..FleetSnapshot::default() };
        let snapshot = observed(&fleet, &node);
        node_preview(&snapshot, predict(&snapshot))
    };
    assert_eq!(preview("1024Mi").volume, None, "the same size in another unit");
    expect![[r#"

        Only new volumes get the configured size; these keep theirs
          500Mi, new ones 1Gi: demo/rpc-0
    "#]]
    .assert_eq(&text::volumes(&[preview("500Mi")]));
}

#[test]
fn a_volume_keeps_its_storage_class() {
    let node: SeiNode = serde_json::from_value(fleet().objects[1].clone()).unwrap();
    let preview = |class: &str| {
        let fleet = FleetSnapshot {
            nodes: vec![node.clone()],
            classes: [(("demo".to_owned(), "data-rpc-0".to_owned()), class.to_owned())].into(),
            ..FleetSnapshot::default()
        };
        let snapshot = observed(&fleet, &node);
        let storage_class = storage_class(fleet.storage_class(&node), &snapshot);
        NodePreview { storage_class, ..node_preview(&snapshot, predict(&snapshot)) }
    };
    let new = preview("other").storage_class.unwrap().new;
    assert_eq!(preview(&new).storage_class, None);
    expect![[r#"

        Only new volumes get the configured storage class; these keep theirs
          other, new ones fast: demo/rpc-0
    "#]]
    .assert_eq(&text::volumes(&[preview("other")]));
}

#[test]
fn without_a_template_the_rolling_nodes_are_known_but_not_the_fields() {
    let mut fleet = Fleet::new();
    fleet.node("rpc-0", &rpc());
    let pools = PLATFORM.replace("chain-default", "chain-other");
    fleet.check(&pools, &expect![[r#"
        With DIR/next.yaml 1 of 1 node would roll.
        Turns: at most 1 node of a chain at a time, each until it is Ready again.
               A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
               The first roll starts when the operator has been the leader for 120 s.

        Chain pacific-1
          cause Operator: a new operator or platform configuration
              fields unknown: add the StatefulSet or the ControllerRevision to the manifests
            demo/rpc-0: turn 1
        exit 2
    "#]]);
    // The status records the images.
    fleet.check(&next(), &expect![[r#"
        With DIR/next.yaml 1 of 1 node would roll.
        Turns: at most 1 node of a chain at a time, each until it is Ready again.
               A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
               The first roll starts when the operator has been the leader for 120 s.

        Chain pacific-1
          cause Operator: a new operator or platform configuration
              initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
            demo/rpc-0: turn 1
        exit 2
    "#]]);
    // The revision of the pod has the whole template.
    fleet.revision("rpc-0");
    fleet.check(&pools, &expect![[r#"
        With DIR/next.yaml 1 of 1 node would roll.
        Turns: at most 1 node of a chain at a time, each until it is Ready again.
               A node that is not Ready within 1800 s has failed; after 1 failed node no further node of the chain starts.
               The first roll starts when the operator has been the leader for 120 s.

        Chain pacific-1
          cause Operator: a new operator or platform configuration
              affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].values[0]: chain-default -> chain-other
              tolerations[example.org/chain].value: chain-default -> chain-other
            demo/rpc-0: turn 1
        exit 2
    "#]]);
}

#[test]
fn a_pod_that_only_a_server_can_compare_is_reported_as_unknown() {
    let mut fleet = fleet();
    fleet.objects[1]["status"]["podTemplate"]["revision"] = json!("other");
    fleet.pod("rpc-0");
    fleet.check(
        PLATFORM,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (4 nodes checked).

            Unknown: only the API server can compare their pods with the desired template
              only an API server can compare its pod with the desired template
                demo/rpc-0
            exit 0
        "#]],
    );
    let auto = format!("{PLATFORM}\nrollout: {{ adoption: Auto }}");
    fleet.check(&auto, &expect![[r#"
        error: failed to compare the pods of 1 node, first demo/rpc-0: only an API server can compare its pod with the desired template
    "#]]);
}

#[test]
fn an_older_operator_rolls_nothing_back_by_itself() {
    let mut fleet = fleet();
    for node in &mut fleet.objects[..4] {
        node["status"]["podTemplate"]["operatorVersion"] = json!("1.1.0");
    }
    let flags = PreviewFlags { nodes: vec!["rpc-0".into()], ..fleet.flags(&next()) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (1 node checked).

            Held: they differ, and do not roll automatically
              the pod was rolled by the newer operator 1.1.0; this is 1.0.0
                  initContainers[sei-sidecar].image: seictl:v1 -> seictl:v2
                demo/rpc-0
            exit 0
        "#]],
    );
}

#[test]
fn stopped_and_refused_nodes_are_listed_with_the_reason() {
    let mut fleet = fleet();
    fleet.objects[1]["spec"]["paused"] = json!(true);
    fleet.objects[2]["spec"]["chainId"] = json!("atlantic-2");
    let flags =
        PreviewFlags { nodes: vec!["rpc-0".into(), "rpc-1".into()], ..fleet.flags(&next()) };
    fleet.check_flags(&flags, &expect![[r#"
        With DIR/next.yaml nothing would roll (2 nodes checked).

        Cannot be changed
          spec.chainId of a running node cannot change from pacific-1 to atlantic-2; set it back to pacific-1
            demo/rpc-1

        No pod
          is stopped: spec.paused
            demo/rpc-0
        exit 0
    "#]]);
}

#[test]
fn the_decision_after_a_failed_plan_is_previewed() {
    let mut fleet = fleet();
    let mut status: SeiNodeStatus =
        serde_json::from_value(fleet.objects[1]["status"].clone()).unwrap();
    let mut plan = fixtures::plan(&[("config-patch", true), ("apply-statefulset", false)]);
    plan.phase = sei_api::plan::PlanPhase::Failed;
    status.plan = Some(plan);
    fleet.objects[1]["status"] = serde_json::to_value(&status).unwrap();
    let flags = PreviewFlags { nodes: vec!["rpc-0".into()], ..fleet.flags(&next()) };
    assert_eq!(fleet.preview(&flags).unwrap().1, Exit::WouldRoll);
}

#[test]
fn an_error_is_one_line() {
    let fleet = fleet();
    fleet.check(&PLATFORM.replace("nodepoolSeed", "nodepoolSed"), &expect![[r#"
        error: DIR/next.yaml: scheduling.nodepoolSed: unknown key; did you mean scheduling.nodepoolSeed?
    "#]]);
    let flags = PreviewFlags { nodes: vec!["rpc-9".into()], ..fleet.flags(PLATFORM) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            error: SeiNode rpc-9 is not among the 4 nodes of this preview
        "#]],
    );
    let flags =
        PreviewFlags { config: Some(PathBuf::from("missing.yaml")), ..fleet.flags(PLATFORM) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
        error: missing.yaml: No such file or directory (os error 2)
    "#]],
    );
    Fleet::new().check(
        PLATFORM,
        &expect![[r#"
            error: DIR/fleet: contains no SeiNode; write them with kubectl get seinodes -A -o yaml
        "#]],
    );
    let mut unstored = Fleet::new();
    unstored.node("rpc-0", &rpc())["metadata"].as_object_mut().unwrap().remove("uid");
    unstored.check(PLATFORM, &expect![[r#"
        error: DIR/fleet/fleet.yaml: SeiNode rpc-0 has no uid and no status; export it from a cluster with kubectl get -o yaml
    "#]]);
}

#[test]
fn the_json_output_has_all_fields() {
    let fleet = fleet();
    let flags = PreviewFlags {
        output: OutputFlags { format: Output::Json },
        nodes: vec!["a-val".into()],
        ..fleet.flags(&next())
    };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            {
              "config": "DIR/next.yaml",
              "wouldRoll": 1,
              "budget": {
                "maxConcurrentPerChain": 1,
                "maxUnavailable": "25%",
                "budgetScope": "Cluster",
                "readyDeadlineSeconds": 1800,
                "haltAfterFailures": 1,
                "settleSeconds": 120
              },
              "nodes": [
                {
                  "namespace": "demo",
                  "node": "a-val",
                  "chain": "pacific-1",
                  "signs": true,
                  "effect": "RollsInTurn",
                  "turn": 3,
                  "cause": "Operator",
                  "why": null,
                  "targetHash": "v1:d02a2b957f30bf09d7496057cebe1da2f5d313f9f917dad0cb32497319611786",
                  "changes": [
                    {
                      "path": "initContainers[sei-sidecar].image",
                      "from": "seictl:v1",
                      "to": "seictl:v2"
                    }
                  ],
                  "volume": null,
                  "storageClass": null
                }
              ]
            }
            exit 2
        "#]],
    );
}

#[test]
fn the_flag_all_lists_unchanged_nodes_too() {
    let fleet = fleet();
    let flags = PreviewFlags { all: true, ..fleet.flags(PLATFORM) };
    fleet.check_flags(
        &flags,
        &expect![[r#"
            With DIR/next.yaml nothing would roll (4 nodes checked).

            Unchanged
              demo/other
              demo/rpc-0
              demo/rpc-1
              demo/a-val
            exit 0
        "#]],
    );
}
