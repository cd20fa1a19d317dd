//! The stand-ins of kubelet, sidecar and proxy pass the checks that the real ones pass in the stories of
//! `cargo xtask real-node`.

use anyhow::{Context as _, Result, bail};
use cluster_tests::conformance::{
    Tokens, call_sidecar, check_closed_sidecar, check_ended_pod, check_held_pod, check_ready_pod,
    check_tokens,
};
use cluster_tests::scenario::{Scenario, rpc};
use futures::StreamExt as _;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use kube::runtime::watcher::{self, Event, watcher};
use sei_api::names::{SIDECAR_CALLER, sidecar_audience};
use serde_json::json;

async fn token(scenario: &Scenario, audience: Option<String>) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(scenario.admin(), scenario.namespace());
    let audiences: Vec<String> = audience.into_iter().collect();
    let request: TokenRequest =
        serde_json::from_value(json!({ "metadata": {}, "spec": { "audiences": audiences } }))?;
    let created =
        accounts.create_token_request(SIDECAR_CALLER, &PostParams::default(), &request).await?;
    created.status.and_then(|status| status.token).context("the server returns a token")
}

/// Evicts the pod of a node; returns its last state before it was deleted.
async fn evict(scenario: &Scenario, node: &str) -> Result<Pod> {
    let mut events = std::pin::pin!(watcher(scenario.pods(), watcher::Config::default()));
    while let Some(event) = events.next().await {
        match event? {
            // From here on no event is missed.
            Event::InitDone => scenario.evict(node).await?,
            Event::Delete(pod) => return Ok(pod),
            Event::Init | Event::InitApply(_) | Event::Apply(_) => {}
        }
    }
    bail!("the watch has ended")
}

fn address(pod: &Pod) -> Result<String> {
    let status = pod.status.as_ref();
    status.and_then(|status| status.pod_ip.clone()).context("the pod has an address")
}

#[tokio::test]
async fn the_stand_ins_of_kubelet_and_sidecar_are_like_the_real_ones() -> Result<()> {
    let mut scenario = Scenario::open("stand-ins").await?;
    scenario.run("rpc", rpc("seid:v1")).await?;
    scenario.kill_operator();
    let before = scenario.uid("rpc").await?;
    check_ended_pod(&evict(&scenario, "rpc").await?)?;
    scenario
        .until_pod("rpc", "the next pod runs", |pod| pod.uid != before && pod.seid.running)
        .await?;
    let held = scenario.pods().get("rpc-0").await?;
    check_held_pod(&held)?;
    let own = token(&scenario, Some(sidecar_audience(scenario.namespace(), "rpc"))).await?;
    let address = address(&held)?;
    check_closed_sidecar(async |method, path, body| {
        call_sidecar(&address, method, path, body, Some(&own)).await
    })
    .await?;
    scenario.start_operator(10).await?;
    scenario.until_pod("rpc", "it is Ready", |pod| pod.ready).await?;
    check_ready_pod(&scenario.pods().get("rpc-0").await?)?;
    scenario.close().await
}

#[tokio::test]
async fn the_stand_in_of_the_proxy_refuses_the_tokens_that_the_real_one_refuses() -> Result<()> {
    let scenario = Scenario::open("stand-in-tokens").await?;
    // As the real proxy does. Most scenarios have proxies that accept requests without a token.
    scenario.sidecars().demand_token(scenario.namespace(), None);
    scenario.run("rpc", rpc("seid:v1")).await?;
    let audience = |node: &str| Some(sidecar_audience(scenario.namespace(), node));
    let tokens = Tokens {
        own: token(&scenario, audience("rpc")).await?,
        of_neighbour: token(&scenario, audience("other")).await?,
        of_server: token(&scenario, None).await?,
    };
    // The scenario is not closed: that would refuse the tokens that this test sends.
    check_tokens(&address(&scenario.pods().get("rpc-0").await?)?, &tokens).await
}
