//! The guards, with pods that the renderer would never produce.

use k8s_openapi::api::core::v1::Probe;
use serde_json::json;

use super::super::guards::{
    check_gated_probes, check_keyring_containment, check_platform, check_seed_probes,
};
use super::*;

/// The place that the guard must report, and the edit that causes it.
type Leak = (&'static str, fn(&mut Value));

fn probe(value: Value) -> Probe {
    serde_json::from_value(value).unwrap()
}

/// Probes of the chain's ports, with the number that the guard must report.
fn chain_probes() -> Vec<(Probe, i32)> {
    vec![
        (probe(json!({ "tcpSocket": { "port": 26657 } })), 26657),
        (probe(json!({ "httpGet": { "port": 9090, "path": "/" } })), 9090),
        (probe(json!({ "httpGet": { "port": "rpc" } })), 26657),
        (probe(json!({ "tcpSocket": { "port": "grpc" } })), 9090),
        (probe(json!({ "grpc": { "port": 9090 } })), 9090),
    ]
}

// T8, second half
#[test]
fn probes_that_fail_behind_a_closed_gate_are_refused() {
    let good = pod("rpc-genesis");
    assert_eq!(check_gated_probes(&good), Ok(()));

    let mut live = good.clone();
    live.containers[0].liveness_probe = Some(probe(json!({ "httpGet": { "port": 26657 } })));
    assert_eq!(check_gated_probes(&live), Err(RenderError::GatedLiveness));
    live.containers[0].liveness_probe = Some(probe(json!({ "exec": { "command": ["true"] } })));
    assert_eq!(check_gated_probes(&live), Err(RenderError::GatedLiveness));

    for (startup, port) in chain_probes() {
        let mut bad = good.clone();
        bad.containers[0].startup_probe = Some(startup);
        let error = RenderError::GatedProbe { probe: "startup", port };
        assert_eq!(check_gated_probes(&bad), Err(error));
    }
    let mut headless = good;
    headless.containers.remove(0);
    assert_eq!(check_gated_probes(&headless), Err(RenderError::NoSeid));
}

// T9, second half
#[test]
fn probes_that_a_seed_never_answers_are_refused() {
    let good = pod("seed-a");
    assert_eq!(check_seed_probes(&good), Ok(()));
    for kind in ["startup", "readiness", "liveness"] {
        // By number only: a seed does not name the ports that it never opens.
        for (chain, port) in chain_probes()
            .into_iter()
            .filter(|(probe, _)| !serde_json::to_string(probe).unwrap().contains(r#""port":""#))
        {
            let mut bad = good.clone();
            let seid = &mut bad.containers[0];
            match kind {
                "startup" => seid.startup_probe = Some(chain),
                "readiness" => seid.readiness_probe = Some(chain),
                _ => seid.liveness_probe = Some(chain),
            }
            let error = RenderError::SeedProbe { probe: kind, port };
            assert_eq!(check_seed_probes(&bad), Err(error));
        }
    }
}

#[test]
fn the_keyring_stays_in_its_containers() {
    let inputs = inputs("val-governor");
    let keyring = inputs.keyring.clone().unwrap();
    let good = pod("val-governor");
    assert_eq!(check_keyring_containment(&good, &keyring), Ok(()));

    // The same pod, checked against a spec that does not give the keyring to seid.
    let private = crate::inputs::KeyringInputs { seid_mount: false, ..keyring.clone() };
    let error = check_keyring_containment(&good, &private).unwrap_err();
    assert_eq!(
        error.to_string(),
        "container seid must not have the operator keyring, but volumeMounts[operator-keyring] \
         refers to it"
    );

    let leaks: [Leak; 3] = [
        ("volumeMounts[operator-keyring]", |container| {
            container["volumeMounts"] = json!([{ "name": "operator-keyring", "mountPath": "/k" }]);
        }),
        ("env[STRAY]", |container| {
            let from = json!({ "secretKeyRef": { "name": "gov-keyring-pass", "key": "x" } });
            container["env"] = json!([{ "name": "STRAY", "valueFrom": from }]);
        }),
        ("envFrom", |container| {
            container["envFrom"] = json!([{ "secretRef": { "name": "gov-keyring-pass" } }]);
        }),
    ];
    let forbidden = [
        ("initContainers", 0, "seid-init"),
        ("initContainers", 2, "kube-rbac-proxy"),
        ("containers", 1, "cosmos-exporter"),
    ];
    for (list, index, container) in forbidden {
        for (place, leak) in leaks {
            let mut json = serde_json::to_value(&good).unwrap();
            leak(&mut json[list][index]);
            let bad: PodSpec = serde_json::from_value(json).unwrap();
            let error = RenderError::KeyringLeak {
                container: container.to_owned(),
                place: place.to_owned(),
            };
            assert_eq!(check_keyring_containment(&bad, &keyring), Err(error));
        }
    }

    // Another volume name for the same Secret is refused too.
    let mut json = serde_json::to_value(&good).unwrap();
    let stray = json!({ "name": "stray", "secret": { "secretName": "gov-keyring-pass" } });
    json["volumes"].as_array_mut().unwrap().push(stray);
    json["containers"][1]["volumeMounts"] = json!([{ "name": "stray", "mountPath": "/k" }]);
    let bad: PodSpec = serde_json::from_value(json).unwrap();
    assert!(check_keyring_containment(&bad, &keyring).is_err());
}

#[test]
fn a_platform_built_in_code_is_checked_per_mode() {
    let good = platform("example");
    for mode in Mode::ALL {
        assert_eq!(check_platform(mode, &good), Ok(()));
    }
    let mut bad = good.clone();
    bad.images.kube_rbac_proxy = String::new();
    for mode in Mode::ALL {
        let error = RenderError::PlatformValue { key: "images.kubeRBACProxy", mode };
        assert_eq!(check_platform(mode, &bad), Err(error));
    }
    let mut bad = good.clone();
    bad.images.cosmos_exporter = " ".to_owned();
    assert_eq!(check_platform(Mode::Seed, &bad), Ok(()));
    assert!(check_platform(Mode::Archive, &bad).is_err());
    assert!(render_template(&inputs("arch-sync"), &bad).is_err());
    let mut bad = good;
    bad.scheduling.nodepool_seed = String::new();
    assert_eq!(check_platform(Mode::FullNode, &bad), Ok(()));
    assert_eq!(
        check_platform(Mode::Seed, &bad).unwrap_err().to_string(),
        "platform configuration: scheduling.nodepoolSeed is required to render a seed"
    );
}
