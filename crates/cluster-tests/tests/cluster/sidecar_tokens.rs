//! The tokens that sidecars are shown, and what they are worth.

use std::process;

use anyhow::{Context as _, Result};
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::wait_for;
use k8s_openapi::api::authentication::v1::TokenReviewStatus;
use kube::api::{Patch, PatchParams};
use sei_api::names::{SIDECAR_CALLER, sidecar_audience};
use sei_operator::TokenSource;
use sei_rig::User;
use serde_json::{Value, json};

fn is_authenticated(status: &TokenReviewStatus) -> bool {
    status.authenticated == Some(true)
}

/// The tokens that pods of this node were shown, without repetitions.
fn shown(scenario: &Scenario, node: &str) -> Vec<String> {
    let received = scenario.sidecars().received(scenario.namespace(), node);
    let mut tokens: Vec<String> = received.into_iter().filter_map(|call| call.token).collect();
    tokens.sort();
    tokens.dedup();
    tokens
}

#[tokio::test]
async fn a_sidecar_is_shown_a_token_for_its_own_node_only() -> Result<()> {
    let scenario = Scenario::open("tokens").await?;
    let mut requests = scenario.requests();
    let names = ["rpc-a", "rpc-b"];
    for name in names {
        scenario.run(name, rpc("seid:v1")).await?;
    }
    scenario.set_image("rpc-a", "seid:v2").await?;
    scenario.settled("rpc-a").await?;
    let audience = |node: &str| Some(sidecar_audience(scenario.namespace(), node));
    for (name, neighbour) in [("rpc-a", "rpc-b"), ("rpc-b", "rpc-a")] {
        let [token] = &shown(&scenario, name)[..] else { panic!("one token for one hour") };
        let own = scenario.review(token, audience(name)).await?;
        assert!(is_authenticated(&own), "{own:?}");
        let user = own.user.and_then(|user| user.username);
        let account = format!("system:serviceaccount:{}:{SIDECAR_CALLER}", scenario.namespace());
        assert_eq!(user, Some(account));
        assert!(!is_authenticated(&scenario.review(token, audience(neighbour)).await?));
        assert!(!is_authenticated(&scenario.review(token, None).await?), "the API server");
    }
    for name in names {
        let received = scenario.sidecars().received(scenario.namespace(), name);
        let mut probes = received.iter().filter(|call| call.request.ends_with("/v0/healthz"));
        assert!(probes.all(|call| call.token.is_none()), "a probe needs no token");
    }
    let made = requests.read_new()?;
    let made = made.iter().filter(|entry| entry.subresource.as_deref() == Some("token")).count();
    assert_eq!(made, 2, "one request for each node");
    scenario.close().await
}

#[tokio::test]
async fn a_pod_of_an_earlier_template_is_called_by_its_flags() -> Result<()> {
    let mut scenario = Scenario::open("tokens-plain").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.kill_operator();
    let mut init = scenario.statefulsets().get("rpc").await?.spec.template.spec;
    let init = init.as_mut().and_then(|pod| pod.init_containers.as_mut());
    let init = init.context("the pod has no init containers")?;
    let proxy = init.iter_mut().find(|container| container.name == "kube-rbac-proxy");
    proxy.context("the pod has no proxy")?.args = Some(vec![
        "--insecure-listen-address=0.0.0.0:8443".to_owned(),
        "--ignore-paths=/v0/healthz".to_owned(),
    ]);
    let patch = Patch::Strategic(json!({ "spec": { "template": { "spec": {
        "initContainers": init,
    }}}}));
    scenario.statefulsets().patch("rpc", &PatchParams::default(), &patch).await?;
    let before = scenario.uid("rpc").await?;
    scenario.evict("rpc").await?;
    scenario.until_pod("rpc", "it is another pod", |pod| pod.uid != before).await?;
    scenario.start_operator(10).await?;
    let pod = scenario.until_pod("rpc", "its gate is open", |pod| pod.seid.started).await?;
    assert!(!pod.proxy.tls && !pod.proxy.own_audience, "{pod:?}");
    let received = scenario.sidecars().received(scenario.namespace(), "rpc");
    let token = received.into_iter().rfind(|call| call.pod_uid == pod.uid && call.token.is_some());
    let token = token.and_then(|call| call.token).context("the pod was shown no token")?;
    let status = scenario.review(&token, None).await?;
    let user = status.user.and_then(|user| user.username).unwrap_or_default();
    assert!(user.ends_with(SIDECAR_CALLER), "{user}");
    scenario.close().await
}

/// What every request to a pod of the lane is checked for, and every scenario when it is closed.
#[tokio::test]
async fn a_scenario_fails_in_which_a_pod_was_shown_the_operators_own_token() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("tokens-own").await?;
    // Otherwise the first request ends the whole lane.
    scenario.sidecars().expect_own_tokens(scenario.namespace());
    let kubeconfig = std::fs::read_to_string(scenario.plane().kubeconfig(User::Operator))?;
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig)?;
    let token = kubeconfig["users"][0]["user"]["token"].as_str().context("no token")?;
    let path = std::env::temp_dir().join(format!("{}-{}", scenario.namespace(), process::id()));
    std::fs::write(&path, token)?;
    let tokens = Some(TokenSource::File(path.clone()));
    scenario.start_with(Setup { tokens, ..Setup::default() }).await?;
    scenario.create("rpc", rpc("seid:v1")).await?;
    wait_for("a pod is shown a token", async || {
        Ok((!shown(&scenario, "rpc").is_empty()).then_some(()))
    })
    .await?;
    std::fs::remove_file(path)?;
    let owners = scenario.sidecars().own_tokens_shown(scenario.namespace());
    assert_eq!(owners.first().map(String::as_str), Some(User::Operator.name()));
    let error = scenario.close().await.expect_err("the token is the operator's own");
    assert!(error.to_string().contains("rpc was shown a token of"), "{error}");
    Ok(())
}
