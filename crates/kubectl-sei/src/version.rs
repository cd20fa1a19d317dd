//! `kubectl sei version`: the versions of the plugin, the operator and the API server.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use sei_exec::call::call;
use serde::Serialize;

use crate::cluster::{Scope, all_nodes};
use crate::error::{Error, call_error};
use crate::flags::VersionFlags;
use crate::{CommandContext, Out, show};

/// Label of the operator's Deployment, in chart and kustomize base.
const OPERATOR_LABEL: &str = "app.kubernetes.io/name=sei-operator";

#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Versions {
    plugin: String,
    kubernetes: Option<String>,
    /// `None` if they could not be read.
    operators: Option<Vec<Operator>>,
    /// Versions of the operators that rolled the running pods.
    rolled_by: Vec<String>,
}

/// A Deployment of the operator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Operator {
    namespace: String,
    name: String,
    image: String,
    ready_replicas: i32,
}

pub(crate) async fn run(
    flags: &VersionFlags,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let versions = if flags.client {
        Versions { plugin: context.version.clone(), ..Versions::default() }
    } else {
        read(context).await?
    };
    show(out, flags.output.format, &versions, || text(&versions, flags.client))
}

/// Reads the versions. What the user may not read stays unknown.
pub(crate) async fn read(context: &CommandContext) -> Result<Versions, Error> {
    let client = context.client()?;
    let server = call("get the version", client.apiserver_version())
        .await
        .map_err(|failure| call_error("get the version", failure))?;
    let deployments: Result<Vec<Deployment>, Error> =
        Scope::All.list(client, "list deployments", OPERATOR_LABEL).await;
    let nodes = all_nodes(client, &Scope::All).await.unwrap_or_default();
    let rolled_by: BTreeSet<String> = nodes
        .iter()
        .flatten()
        .filter_map(|node| node.status.as_ref()?.pod_template.as_ref())
        .map(|template| template.operator_version.clone())
        .collect();
    Ok(Versions {
        plugin: context.version.clone(),
        kubernetes: Some(server.git_version),
        operators: deployments.ok().map(|found| found.iter().map(operator).collect()),
        rolled_by: rolled_by.into_iter().collect(),
    })
}

fn operator(deployment: &Deployment) -> Operator {
    let containers = deployment.spec.template.spec.iter().flat_map(|pod| &pod.containers);
    let image = containers.into_iter().find_map(|container| container.image.clone());
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas);
    Operator {
        namespace: deployment.metadata.namespace.clone().unwrap_or_default(),
        name: deployment.metadata.name.clone().unwrap_or_default(),
        image: image.unwrap_or_default(),
        ready_replicas: ready.unwrap_or_default(),
    }
}

fn text(versions: &Versions, is_client_only: bool) -> String {
    let mut text = format!("plugin      {}\n", versions.plugin);
    if is_client_only {
        return text;
    }
    let mut add = |name: &str, value: &str| text.extend([format!("{name:<12}{value}\n")]);
    match &versions.operators {
        None => add("operator", "unknown: Deployments cannot be listed"),
        Some(operators) if operators.is_empty() => {
            add("operator", &format!("no Deployment with the label {OPERATOR_LABEL}"));
        }
        Some(operators) => {
            for Operator { namespace, name, image, ready_replicas } in operators {
                add("operator", &format!("{image} ({namespace}/{name}, {ready_replicas} ready)"));
            }
        }
    }
    if !versions.rolled_by.is_empty() {
        add("rolled by", &versions.rolled_by.join(", "));
    }
    add("kubernetes", versions.kubernetes.as_deref().unwrap_or("unknown"));
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn versions_are_printed_one_in_a_line() {
        let mut versions = Versions {
            plugin: "1.2.0".into(),
            kubernetes: Some("v1.37.1".into()),
            operators: Some(vec![Operator {
                namespace: "sei-system".into(),
                name: "sei-operator".into(),
                image: "registry.example.org/sei-operator:1.1.0".into(),
                ready_replicas: 2,
            }]),
            rolled_by: vec!["1.0.0".into(), "1.1.0".into()],
        };
        expect![[r#"
            plugin      1.2.0
            operator    registry.example.org/sei-operator:1.1.0 (sei-system/sei-operator, 2 ready)
            rolled by   1.0.0, 1.1.0
            kubernetes  v1.37.1
        "#]]
        .assert_eq(&text(&versions, false));
        versions.operators = None;
        expect![[r#"
            plugin      1.2.0
            operator    unknown: Deployments cannot be listed
            rolled by   1.0.0, 1.1.0
            kubernetes  v1.37.1
        "#]]
        .assert_eq(&text(&versions, false));
        assert_eq!(text(&versions, true), "plugin      1.2.0\n");
    }
}
