//! An operator that watches some namespaces, with a Role in each of them.

use anyhow::{Context as _, Result};
use cluster_tests::operator::Setup;
use cluster_tests::scenario::{Scenario, rpc};
use cluster_tests::{TOKEN_ROLE, wait_for};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, PostParams};
use kube::{Client, ResourceExt as _};
use sei_api::SeiNode;
use serde_json::{Value, json};

const ROLE: &str = include_str!("../../../../config/watched-namespace/role.yaml");
const VOLUME_ROLE: &str =
    include_str!("../../../../config/components/watch-namespaces/volume-role.yaml");

const ACCOUNT: &str = "namespaced-operator";

/// Binds a role to the operator's account.
fn binding(kind: &str, role: &str, home: &str) -> Value {
    json!({
        "metadata": { "name": format!("{ACCOUNT}-{role}") },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": home }],
    })
}

/// Grants this role in a namespace.
async fn grant(admin: &Client, namespace: &str, role: &str, home: &str) -> Result<()> {
    let params = PostParams::default();
    let role: Role = serde_saphyr::from_str(role)?;
    let bound: RoleBinding = serde_json::from_value(binding("Role", &role.name_any(), home))?;
    Api::<Role>::namespaced(admin.clone(), namespace).create(&params, &role).await?;
    Api::<RoleBinding>::namespaced(admin.clone(), namespace).create(&params, &bound).await?;
    Ok(())
}

/// Creates an account that has these roles and no other, and returns a token of it.
async fn account(admin: &Client, home: &str, namespaces: &[&str]) -> Result<String> {
    let params = PostParams::default();
    let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), home);
    let metadata = ObjectMeta { name: Some(ACCOUNT.to_owned()), ..ObjectMeta::default() };
    let account = ServiceAccount { metadata, ..ServiceAccount::default() };
    accounts.create(&params, &account).await?;
    grant(admin, home, TOKEN_ROLE, home).await?;
    for namespace in namespaces {
        grant(admin, namespace, ROLE, home).await?;
    }
    let volumes: ClusterRole = serde_saphyr::from_str(VOLUME_ROLE)?;
    let bound = binding("ClusterRole", &volumes.name_any(), home);
    let bound: ClusterRoleBinding = serde_json::from_value(bound)?;
    Api::<ClusterRole>::all(admin.clone()).create(&params, &volumes).await?;
    Api::<ClusterRoleBinding>::all(admin.clone()).create(&params, &bound).await?;
    let spec = Some(TokenRequestSpec::default());
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let request = accounts.create_token_request(ACCOUNT, &params, &request).await?;
    request.status.and_then(|status| status.token).context("the request has no token")
}

#[tokio::test]
async fn an_operator_with_roles_in_two_namespaces_leaves_a_third_alone() -> Result<()> {
    let mut scenario = Scenario::open_without_operator("watched").await?;
    let second = Scenario::open_without_operator("watched-too").await?;
    let unwatched = Scenario::open_without_operator("unwatched").await?;
    let (home, also) = (scenario.namespace().to_owned(), second.namespace().to_owned());
    let token = account(&scenario.admin(), &home, &[&home, &also]).await?;
    for scenario in [&scenario, &second, &unwatched] {
        scenario.create("rpc", rpc("seid:v1")).await?;
    }
    let setup = Setup { token: Some(token), namespaces: vec![also.clone()], ..Setup::default() };
    scenario.start_with(setup).await?;
    for scenario in [&scenario, &second] {
        scenario.settled("rpc").await?;
        scenario.set_image("rpc", "seid:v2").await?;
        scenario.settled("rpc").await?;
        scenario.until_pod_of("rpc", "seid:v2").await?;
    }
    let node: SeiNode = unwatched.node("rpc").await?;
    assert_eq!((node.status, node.metadata.finalizers), (None, None));
    assert!(unwatched.statefulsets().get_opt("rpc").await?.is_none());
    second.nodes().delete("rpc", &kube::api::DeleteParams::default()).await?;
    second.until_deleted("rpc").await?;
    wait_for("an event is published", async || {
        let events = scenario.events("rpc").await?;
        Ok(events.iter().any(|event| event.contains("UpdateComplete")).then_some(()))
    })
    .await?;
    scenario.close().await
}
