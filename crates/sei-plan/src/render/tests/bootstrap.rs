//! The bootstrap Job and its Service.

use k8s_openapi::api::core::v1::{
    EnvFromSource, EnvVar, EnvVarSource, SecretEnvSource, SecretKeySelector, SecretVolumeSource,
    Volume,
};
use serde_json::json;

use super::super::guards::check_bootstrap_isolation;
use super::*;
use crate::testing::node_from;

fn job(name: &str) -> Value {
    job_of(&node(name))
}

fn job_of(node: &SeiNode) -> Value {
    let inputs = TemplateInputs::of(node).unwrap();
    let bootstrap = Bootstrap::of(node).unwrap();
    let owner = Owner::of(node).unwrap();
    let job = render_bootstrap_job(&inputs, &bootstrap, &platform("example"), &owner).unwrap();
    serde_json::to_value(job).unwrap()
}

/// A governor whose first state comes from a bootstrap Job: it uses every kind of Secret.
fn governor() -> SeiNode {
    let mut json = serde_json::to_value(node("val-governor")).unwrap();
    json["spec"]["validator"]["snapshot"] =
        json!({ "s3": { "targetHeight": 7 }, "bootstrapImage": "seid:old" });
    node_from(json)
}

// B17
#[test]
fn the_job_runs_the_bootstrap_image_once() {
    let job = job("rpc-bootstrap");
    assert_eq!(job["metadata"]["name"], "rpc-bootstrap-bootstrap");
    let labels = json!({ "sei.io/node": "rpc-bootstrap", "sei.io/component": "bootstrap" });
    assert_eq!(job["metadata"]["labels"], labels);
    assert_eq!(job["spec"]["backoffLimit"], 0);
    let evicted = json!([{ "type": "DisruptionTarget", "status": "True" }]);
    let rules = json!([{ "action": "Ignore", "onPodConditions": evicted }]);
    assert_eq!(job["spec"]["podFailurePolicy"]["rules"], rules, "an eviction is no failure");
    assert!(job["spec"].get("ttlSecondsAfterFinished").is_none());
    let template = &job["spec"]["template"];
    assert_eq!(template["metadata"]["labels"], labels);
    let annotations = json!({ "karpenter.sh/do-not-disrupt": "true" });
    assert_eq!(template["metadata"]["annotations"], annotations);
    let pod = &template["spec"];
    assert_eq!(pod["restartPolicy"], "Never");
    assert_eq!(pod["hostname"], "rpc-bootstrap-0");
    assert_eq!(pod["subdomain"], "rpc-bootstrap");
    assert_eq!(pod["terminationGracePeriodSeconds"], 120);
    for name in ["seid", "seid-init"] {
        assert_eq!(find(pod, name)["image"], "registry.example.org/seid:v6.5.1");
    }
    let script = find(pod, "seid")["args"][0].as_str().unwrap();
    assert!(script.contains("--halt-height 1200000"));
}

// B18
#[test]
fn without_a_snapshot_to_run_from_there_is_no_job() {
    for (name, field) in [("rpc-genesis", "snapshot"), ("rpc-statesync", "snapshot.s3")] {
        match Bootstrap::of(&node(name)) {
            Err(RenderError::NoBootstrap { field: found, .. }) => assert_eq!(found, field),
            unexpected => panic!("{name}: {unexpected:?}"),
        }
    }
}

// B19
#[test]
fn the_sidecars_resources_come_from_the_spec() {
    let mut node = node("rpc-bootstrap");
    node.spec.sidecar = self::node("rpc-statesync").spec.sidecar;
    let job = job_of(&node);
    let sidecar = &job["spec"]["template"]["spec"]["initContainers"][1];
    assert_eq!(sidecar["name"], "sei-sidecar");
    assert_eq!(
        sidecar["resources"],
        json!({ "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "1Gi" } })
    );
    assert!(sidecar.get("ports").is_none());
    let plain = self::job("rpc-bootstrap");
    assert!(plain["spec"]["template"]["spec"]["initContainers"][1].get("resources").is_none());
}

// B16
#[test]
fn home_is_the_parent_of_the_data_directory() {
    let job = job("rpc-bootstrap");
    let pod = &job["spec"]["template"]["spec"];
    for name in ["seid-init", "seid"] {
        let container = find(pod, name);
        assert_eq!(container["env"][0], json!({ "name": "HOME", "value": "/home/nonroot" }));
        assert_eq!(
            container["volumeMounts"][0],
            json!({ "name": "data", "mountPath": "/home/nonroot/.sei" })
        );
    }
    let init = find(pod, "seid-init")["command"][2].as_str().unwrap();
    assert!(init.contains("[ -e /home/nonroot/.sei/config/genesis.json ]"));
    assert!(init.contains("--home /home/nonroot/.sei "));
    assert!(!init.contains("keyring"));
    let run = find(pod, "seid")["args"][0].as_str().unwrap();
    assert!(run.contains("--home /home/nonroot/.sei "));
}

// B20
#[test]
fn the_job_of_a_validator_has_none_of_its_keys() {
    let node = governor();
    let text = job_of(&node)["spec"]["template"].to_string();
    for secret in ["gov-signing", "gov-p2p", "gov-keyring", "gov-keyring-pass"] {
        assert!(!text.contains(secret), "{secret}");
    }
    for volume in ["signing-key", "node-key", "operator-keyring", "SEI_KEYRING"] {
        assert!(!text.contains(volume), "{volume}");
    }
}

// B22
#[test]
fn the_job_mounts_the_imported_claim() {
    let claim = |node: &SeiNode| {
        job_of(node)["spec"]["template"]["spec"]["volumes"][0]["persistentVolumeClaim"].clone()
    };
    let mut node = node("rpc-bootstrap");
    assert_eq!(claim(&node), json!({ "claimName": "data-rpc-bootstrap" }));
    node.spec.data_volume = self::node("arch-import").spec.data_volume;
    assert_eq!(claim(&node), json!({ "claimName": "arch-history-2026" }));
}

#[test]
fn the_job_is_as_confined_as_the_node() {
    let job = job("rpc-bootstrap");
    let pod = &job["spec"]["template"]["spec"];
    let template = template("rpc-bootstrap");
    let node = &template["spec"];
    let shared = [
        "securityContext",
        "tolerations",
        "serviceAccountName",
        "shareProcessNamespace",
        "automountServiceAccountToken",
    ];
    for field in shared {
        assert_eq!(pod[field], node[field], "{field}");
    }
    for name in ["seid-init", "sei-sidecar", "kube-rbac-proxy", "seid"] {
        let context = &find(pod, name)["securityContext"];
        assert_eq!(context, &find(node, name)["securityContext"], "{name}");
    }
    assert_eq!(find(pod, "kube-rbac-proxy")["args"], find(node, "kube-rbac-proxy")["args"]);
    assert_eq!(find(pod, "seid")["resources"], find(node, "seid")["resources"]);
    for name in ["kube-rbac-proxy", "seid"] {
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert!(find(pod, name).get(probe).is_none());
        }
    }
}

#[test]
fn a_dedicated_nodes_job_only_avoids_other_pods() {
    let mut inputs = inputs("replay-shadow");
    inputs.dedicated = true;
    let bootstrap = Bootstrap::of(&node("replay-shadow")).unwrap();
    let owner = owner("replay-shadow");
    let job = render_bootstrap_job(&inputs, &bootstrap, &platform("example"), &owner).unwrap();
    let job = serde_json::to_value(job).unwrap();
    let terms = "/spec/template/spec/affinity/podAntiAffinity\
                 /requiredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(job.pointer(terms).unwrap().as_array().unwrap().len(), 1);
    assert!(!job["spec"]["template"]["metadata"].to_string().contains("dedicated"));
}

#[test]
fn the_service_selects_only_the_bootstrap_pod() {
    let service = render_bootstrap_service(&inputs("rpc-bootstrap"), &owner("rpc-bootstrap"));
    let service = serde_json::to_value(service).unwrap();
    let labels = json!({ "sei.io/node": "rpc-bootstrap", "sei.io/component": "bootstrap" });
    assert_eq!(service["metadata"]["name"], "rpc-bootstrap");
    assert_eq!(service["metadata"]["labels"], labels);
    assert_eq!(service["spec"]["selector"], labels);
    assert_eq!(named(&service["spec"]["ports"]), ["api"]);
    assert_eq!(service["spec"]["publishNotReadyAddresses"], true);
}

fn clean_pod() -> PodSpec {
    serde_json::from_value(job_of(&governor())["spec"]["template"]["spec"].clone()).unwrap()
}

fn secret_volume(secret: &str) -> Volume {
    Volume {
        name: "stray".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}

fn secret_env(secret: &str) -> EnvVar {
    let selector =
        SecretKeySelector { name: secret.to_owned(), key: "k".to_owned(), optional: None };
    EnvVar {
        name: "STRAY".to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(selector),
            ..EnvVarSource::default()
        }),
    }
}

// B13
#[test]
fn clean_pods_and_other_modes_are_accepted() {
    let inputs = TemplateInputs::of(&governor()).unwrap();
    assert_eq!(check_bootstrap_isolation(&clean_pod(), &inputs), Ok(()));
    let mut pod = clean_pod();
    pod.volumes.as_mut().unwrap().push(secret_volume("gov-signing"));
    assert_eq!(check_bootstrap_isolation(&pod, &super::inputs("rpc-bootstrap")), Ok(()));
}

// B14
#[test]
fn every_way_to_a_signing_secret_is_refused() {
    let inputs = TemplateInputs::of(&governor()).unwrap();
    let check = |kind: &str, secret: &str, place: &str, change: &dyn Fn(&mut PodSpec)| {
        let mut pod = clean_pod();
        change(&mut pod);
        let error = check_bootstrap_isolation(&pod, &inputs).unwrap_err().to_string();
        let expected = format!(
            "the bootstrap pod must not hold the {kind} Secret {secret}, but {place} refers to it"
        );
        assert_eq!(error, expected);
    };
    let volumes = [
        ("signing key", "gov-signing"),
        ("operator keyring", "gov-keyring"),
        ("keyring passphrase", "gov-keyring-pass"),
    ];
    for (kind, secret) in volumes {
        check(kind, secret, "volumes[stray]", &|pod| {
            pod.volumes.as_mut().unwrap().push(secret_volume(secret));
        });
        check(kind, secret, "volumes[stray]", &|pod| {
            let stray = json!({ "name": "stray",
                                "projected": { "sources": [{ "secret": { "name": secret } }] } });
            pod.volumes.as_mut().unwrap().push(serde_json::from_value(stray).unwrap());
        });
    }
    let (kind, secret) = volumes[2];
    check(kind, secret, "containers[seid].env[STRAY]", &|pod| {
        pod.containers[0].env.as_mut().unwrap().push(secret_env(secret));
    });
    check(kind, secret, "initContainers[sei-sidecar].env[STRAY]", &|pod| {
        let sidecar = &mut pod.init_containers.as_mut().unwrap()[1];
        sidecar.env.as_mut().unwrap().push(secret_env(secret));
    });
    check(kind, secret, "containers[seid].envFrom", &|pod| {
        pod.containers[0].env_from = Some(vec![EnvFromSource {
            secret_ref: Some(SecretEnvSource { name: secret.to_owned(), optional: None }),
            ..EnvFromSource::default()
        }]);
    });
}

// B15
#[test]
fn the_node_key_is_not_guarded() {
    let mut pod = clean_pod();
    pod.volumes.as_mut().unwrap().push(secret_volume("gov-p2p"));
    let inputs = TemplateInputs::of(&governor()).unwrap();
    assert_eq!(check_bootstrap_isolation(&pod, &inputs), Ok(()));
}
