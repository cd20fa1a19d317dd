//! The connection to a cluster, and how nodes are read from it.

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DeserializeGuard, ObjectList};
use kube::{Api, Client, Config};
use sei_api::SeiNode;
use sei_exec::call::{call, chain, find};
use serde::de::DeserializeOwned;

use crate::error::{Error, call_error, one_line};
use crate::flags::ClusterFlags;
use crate::format::full_name;

/// A node that may not decode: one bad object must not break the whole list.
pub(crate) type Guarded = DeserializeGuard<SeiNode>;

/// The namespaces that a command covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Namespace(String),
}

impl Scope {
    pub(crate) fn of(flags: &ClusterFlags, default: &str) -> Self {
        match &flags.namespace {
            Some(namespace) => Self::Namespace(namespace.clone()),
            None if flags.all_namespaces => Self::All,
            None => Self::Namespace(default.to_owned()),
        }
    }

    pub(crate) fn contains(&self, namespace: &str) -> bool {
        match self {
            Self::All => true,
            Self::Namespace(own) => own == namespace,
        }
    }

    pub(crate) fn api<K>(&self, client: &Client) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match self {
            Self::All => Api::all(client.clone()),
            Self::Namespace(namespace) => Api::namespaced(client.clone(), namespace),
        }
    }

    /// All objects of a kind in this scope with these labels.
    pub(crate) async fn list<K>(
        &self,
        client: &Client,
        what: &str,
        labels: &str,
    ) -> Result<Vec<K>, Error>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
    {
        let params = ListParams::default().labels(labels);
        let found: ObjectList<K> = call(what, self.api(client).list(&params))
            .await
            .map_err(|failure| call_error(what, failure))?;
        Ok(found.items)
    }
}

/// Connects to the cluster of these flags. The second value is the namespace of its context.
pub async fn connect(flags: &ClusterFlags) -> Result<(Client, String), Error> {
    let no_cluster =
        |error: &dyn std::error::Error| Error::NoCluster { message: one_line(&chain(error)) };
    let options =
        KubeConfigOptions { context: flags.context.clone(), ..KubeConfigOptions::default() };
    let config = match (&flags.kubeconfig, &flags.context) {
        (Some(path), _) => {
            let file = Kubeconfig::read_from(path).map_err(|error| no_cluster(&error))?;
            Config::from_custom_kubeconfig(file, &options).await.map_err(|error| no_cluster(&error))
        }
        (None, Some(_)) => {
            Config::from_kubeconfig(&options).await.map_err(|error| no_cluster(&error))
        }
        (None, None) => Config::infer().await.map_err(|error| no_cluster(&error)),
    };
    let mut config = config?;
    // A user waits at a prompt: a failure is reported at once, not retried for minutes.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).map_err(|error| no_cluster(&error))?;
    Ok((client, namespace))
}

/// A node of a list; one that does not decode keeps its name.
pub(crate) type Found = Result<SeiNode, Unreadable>;

/// A node whose manifest does not decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) message: String,
}

pub(crate) fn unguard(guarded: Guarded) -> Found {
    guarded.0.map_err(|invalid| Unreadable {
        namespace: invalid.metadata.namespace.unwrap_or_default(),
        name: invalid.metadata.name.unwrap_or_default(),
        message: one_line(&invalid.error),
    })
}

/// Every node in scope, sorted by namespace and name.
pub(crate) async fn all_nodes(client: &Client, scope: &Scope) -> Result<Vec<Found>, Error> {
    let listed: Vec<Guarded> = scope.list(client, "list seinodes", "").await?;
    let mut nodes: Vec<Found> = listed.into_iter().map(unguard).collect();
    nodes.sort_by_key(key_of);
    Ok(nodes)
}

fn key_of(found: &Found) -> (String, String) {
    match found {
        Ok(node) => (
            node.metadata.namespace.clone().unwrap_or_default(),
            node.metadata.name.clone().unwrap_or_default(),
        ),
        Err(unreadable) => (unreadable.namespace.clone(), unreadable.name.clone()),
    }
}

/// The named nodes, or all nodes in scope if none is named.
pub(crate) async fn nodes(
    client: &Client,
    scope: &Scope,
    named: &[String],
) -> Result<Vec<Found>, Error> {
    if named.is_empty() {
        return all_nodes(client, scope).await;
    }
    let mut nodes = Vec::new();
    for given in named {
        nodes.push(Ok(node(client, scope, given).await?));
    }
    nodes.sort_by_key(key_of);
    nodes.dedup_by_key(|found| key_of(found));
    Ok(nodes)
}

/// The node of this name.
pub(crate) async fn node(client: &Client, scope: &Scope, given: &str) -> Result<SeiNode, Error> {
    let (namespace, name) = split(given)?;
    match (namespace, scope) {
        (Some(namespace), _) => node_of(client, namespace, name).await,
        (None, Scope::Namespace(namespace)) => node_of(client, namespace, name).await,
        (None, Scope::All) => {
            let found = all_nodes(client, scope).await?.into_iter();
            let mut found = found.filter(|node| key_of(node).1 == name);
            let Some(first) = found.next() else {
                return Err(Error::NoNodeAnywhere { name: name.to_owned() });
            };
            let first = readable(first)?;
            let others: Vec<String> = found
                .map(|node| key_of(&node))
                .map(|(namespace, name)| format!("{namespace}/{name}"))
                .collect();
            if others.is_empty() {
                return Ok(first);
            }
            let found = format!("{}, {}", full_name(&first), others.join(", "));
            Err(Error::Ambiguous { name: name.to_owned(), found })
        }
    }
}

/// Namespace and name in `NAME` or `NAMESPACE/NAME`.
pub(crate) fn split(given: &str) -> Result<(Option<&str>, &str), Error> {
    let (namespace, name) = match given.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, given),
    };
    if name.is_empty() || name.contains('/') || namespace == Some("") {
        return Err(Error::NotAName { given: given.to_owned() });
    }
    Ok((namespace, name))
}

fn readable(found: Found) -> Result<SeiNode, Error> {
    found.map_err(|unreadable| Error::Unreadable {
        node: format!("{}/{}", unreadable.namespace, unreadable.name),
        message: unreadable.message,
    })
}

async fn node_of(client: &Client, namespace: &str, name: &str) -> Result<SeiNode, Error> {
    let nodes: Api<Guarded> = Api::namespaced(client.clone(), namespace);
    let found = find("get seinode", nodes.get(name))
        .await
        .map_err(|failure| call_error("get seinode", failure))?;
    if let Some(guarded) = found {
        return readable(unguard(guarded));
    }
    let scope = Scope::Namespace(namespace.to_owned());
    let others = all_nodes(client, &scope).await?;
    let others: Vec<String> = others.iter().map(|found| key_of(found).1).collect();
    Err(Error::NoNode {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        hint: hint(name, &others),
    })
}

/// The end of a "not found" message: similar names, or the existing ones.
pub(crate) fn hint(name: &str, known: &[String]) -> String {
    let near = nearest(name, known.iter().map(String::as_str));
    match (near.is_empty(), known.len()) {
        (false, _) => format!("; did you mean {}?", near.join(" or ")),
        (true, 0) => "; the namespace has no SeiNode, see kubectl sei status -A".to_owned(),
        (true, 1..=5) => format!("; existing nodes: {}", known.join(", ")),
        (true, many) => format!("; {many} nodes exist, see kubectl sei status"),
    }
}

/// The known names that differ from the given one by a typing error, nearest first.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let given = given.to_lowercase();
    let mut near: Vec<(usize, &str)> = known
        .map(|name| (distance(&given, &name.to_lowercase()), name))
        .filter(|(distance, name)| {
            *distance <= (name.len() / 4).max(1) || name.to_lowercase().contains(&given)
        })
        .collect();
    near.sort_unstable();
    near.into_iter().take(3).map(|(_, name)| name).collect()
}

/// The edit distance: how many letters have to be inserted, removed or changed.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (above, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (at, expected) in right.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *expected);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typing_error_is_answered_with_similar_names() {
        let known = ["rpc-0".to_owned(), "rpc-1".to_owned(), "validator-0".to_owned()];
        assert_eq!(hint("rcp-0", &known), "; existing nodes: rpc-0, rpc-1, validator-0");
        assert_eq!(hint("rpc-2", &known), "; did you mean rpc-0 or rpc-1?");
        assert_eq!(hint("validator", &known), "; did you mean validator-0?");
        assert_eq!(hint("a", &[]), "; the namespace has no SeiNode, see kubectl sei status -A");
    }

    #[test]
    fn a_name_may_carry_its_namespace() {
        assert_eq!(split("rpc-0").unwrap(), (None, "rpc-0"));
        assert_eq!(split("demo/rpc-0").unwrap(), (Some("demo"), "rpc-0"));
        for given in ["", "/", "a/", "/a", "a/b/c"] {
            assert!(split(given).is_err(), "{given}");
        }
    }

    #[test]
    fn a_namespace_flag_overrides_the_context() {
        let flags = |namespace: Option<&str>, all_namespaces| ClusterFlags {
            namespace: namespace.map(str::to_owned),
            all_namespaces,
            ..ClusterFlags::default()
        };
        let namespace = |name: &str| Scope::Namespace(name.to_owned());
        assert_eq!(Scope::of(&flags(None, false), "default"), namespace("default"));
        assert_eq!(Scope::of(&flags(Some("a"), false), "default"), namespace("a"));
        assert_eq!(Scope::of(&flags(None, true), "default"), Scope::All);
    }
}
