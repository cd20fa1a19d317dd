//! The connection to a cluster, and how nodes are read from it.

use std::fmt;
use std::io;

use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::{DeserializeGuard, ObjectList};
use kube::{Api, Client, Config};
use sei_api::SeiNode;
use sei_api::names::label;
use sei_exec::call::{call, chain, find};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::error::{Error, LIST_NODES, call_error, one_line};
use crate::flags::{ClusterFlags, FilterFlags, SelectionFlags};

/// A node that may not decode: one bad object must not break the whole list.
pub(crate) type Guarded = DeserializeGuard<SeiNode>;

/// The namespaces that a command covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Namespace(String),
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("any namespace"),
            Self::Namespace(name) => write!(f, "namespace {name}"),
        }
    }
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

/// A connected cluster.
pub struct Connection {
    pub client: Client,
    /// Namespace of its context.
    pub namespace: String,
    /// Address of its API server.
    pub server: String,
}

/// Connects to the cluster of these flags.
pub async fn connect(flags: &ClusterFlags) -> Result<Connection, Error> {
    let mut config = config(flags).await?;
    // A user waits at a prompt: a failure is reported at once, not retried for minutes.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    let client = Client::try_from(config).map_err(|error| no_cluster(&error))?;
    Ok(Connection { client, namespace, server })
}

fn no_cluster(error: &dyn std::error::Error) -> Error {
    Error::NoCluster { message: one_line(&chain(error)) }
}

/// The configuration of kubectl, with the flags that override parts of it.
async fn config(flags: &ClusterFlags) -> Result<Config, Error> {
    let options = KubeConfigOptions {
        context: flags.context.clone(),
        cluster: flags.cluster.clone(),
        user: flags.user.clone(),
    };
    let file = match &flags.kubeconfig {
        Some(path) => Some(Kubeconfig::read_from(path).map_err(|error| no_cluster(&error))?),
        None => match Kubeconfig::read() {
            Ok(file) => Some(file),
            Err(KubeconfigError::ReadConfig(error, _))
                if error.kind() == io::ErrorKind::NotFound =>
            {
                None
            }
            Err(KubeconfigError::FindPath) => None,
            Err(error) => return Err(no_cluster(&error)),
        },
    };
    let mut config = match (file, &flags.server) {
        (Some(file), _) => Config::from_custom_kubeconfig(file, &options)
            .await
            .map_err(|error| no_cluster(&error))?,
        (None, Some(server)) => Config::new(uri(server)?),
        (None, None) => Config::incluster().map_err(|_| Error::NoKubeconfig)?,
    };
    if let Some(server) = &flags.server {
        config.cluster_url = uri(server)?;
    }
    if let Some(token) = &flags.token {
        // A given token replaces every credential of the file.
        config.auth_info = serde_json::from_value(json!({ "token": token }))
            .map_err(|error| no_cluster(&error))?;
    }
    if let Some(user) = &flags.impersonate {
        config.auth_info.impersonate = Some(user.clone());
    }
    if !flags.impersonate_groups.is_empty() {
        config.auth_info.impersonate_groups = Some(flags.impersonate_groups.clone());
    }
    if let Some(timeout) = flags.request_timeout.filter(|timeout| !timeout.is_zero()) {
        config.connect_timeout = Some(timeout);
        config.read_timeout = Some(timeout);
        config.reset_reader_on_write = true;
    }
    Ok(config)
}

fn uri<T: std::str::FromStr>(server: &str) -> Result<T, Error> {
    server
        .parse()
        .map_err(|_| Error::NoCluster { message: format!("`{server}` is not an address") })
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

/// A node or another object, by namespace and name.
pub(crate) type Key = (String, String);

/// Every node in scope, sorted by namespace and name.
pub(crate) async fn all_nodes(client: &Client, scope: &Scope) -> Result<Vec<Found>, Error> {
    filtered(client, scope, &FilterFlags::default()).await
}

/// The nodes in scope that pass the filter. A node that does not decode passes every chain: its own
/// is unknown, and it must not be hidden.
async fn filtered(
    client: &Client,
    scope: &Scope,
    filter: &FilterFlags,
) -> Result<Vec<Found>, Error> {
    let labels = filter.selector.as_deref().unwrap_or_default();
    let listed: Vec<Guarded> = scope.list(client, LIST_NODES, labels).await?;
    let mut nodes: Vec<Found> =
        listed.into_iter().map(unguard).filter(|found| is_of_chain(found, filter)).collect();
    nodes.sort_by_key(key_of);
    Ok(nodes)
}

pub(crate) fn is_of_chain(found: &Found, filter: &FilterFlags) -> bool {
    match (found, &filter.chain) {
        (Ok(node), Some(chain)) => node.spec.chain_id == *chain,
        _ => true,
    }
}

pub(crate) fn key_of(found: &Found) -> Key {
    match found {
        Ok(node) => (
            node.metadata.namespace.clone().unwrap_or_default(),
            node.metadata.name.clone().unwrap_or_default(),
        ),
        Err(unreadable) => (unreadable.namespace.clone(), unreadable.name.clone()),
    }
}

/// The selected nodes: the named ones, or all in scope that pass the filter.
pub(crate) async fn nodes(
    client: &Client,
    scope: &Scope,
    selection: &SelectionFlags,
) -> Result<Vec<Found>, Error> {
    if selection.nodes.is_empty() {
        return filtered(client, scope, &selection.filter).await;
    }
    let mut nodes = Vec::new();
    for given in &selection.nodes {
        if is_fleet(given) {
            nodes.extend(nodes_of_fleet(client, scope, given).await?);
            continue;
        }
        nodes.push(found_node(client, scope, given).await?);
    }
    nodes.sort_by_key(key_of);
    nodes.dedup_by_key(|found| key_of(found));
    Ok(nodes)
}

/// As [`nodes`]; no node at all is an error.
pub(crate) async fn some_nodes(
    client: &Client,
    scope: &Scope,
    selection: &SelectionFlags,
) -> Result<Vec<Found>, Error> {
    let found = nodes(client, scope, selection).await?;
    if found.is_empty() { Err(no_match(scope, selection)) } else { Ok(found) }
}

/// The error of a selection without a node.
pub(crate) fn no_match(scope: &Scope, selection: &SelectionFlags) -> Error {
    let FilterFlags { selector, chain } = &selection.filter;
    let labels = selector.as_ref().map(|labels| format!(" with labels {labels}"));
    let chain = chain.as_ref().map(|chain| format!(" of chain {chain}"));
    let filter = [labels, chain].into_iter().flatten().collect::<String>();
    Error::NoMatch { filter, scope: scope.to_string() }
}

/// The node of this name, if it decodes.
pub(crate) async fn node(client: &Client, scope: &Scope, given: &str) -> Result<SeiNode, Error> {
    readable(found_node(client, scope, given).await?)
}

async fn found_node(client: &Client, scope: &Scope, given: &str) -> Result<Found, Error> {
    let (namespace, name) = split(given)?;
    match (namespace, scope) {
        (Some(namespace), _) => node_of(client, namespace, name).await,
        (None, Scope::Namespace(namespace)) => node_of(client, namespace, name).await,
        (None, Scope::All) => {
            let all = all_nodes(client, scope).await?;
            let mut found = all.iter().filter(|node| key_of(node).1 == name);
            let Some(first) = found.next() else {
                let known: Vec<String> = all.iter().map(|node| key_of(node).1).collect();
                let hint = hint(name, &known);
                return Err(Error::NoNodeAnywhere { name: name.to_owned(), hint });
            };
            let full_name = |found: &Found| {
                let (namespace, name) = key_of(found);
                format!("{namespace}/{name}")
            };
            let others: Vec<String> = found.map(full_name).collect();
            if others.is_empty() {
                return Ok(first.clone());
            }
            let found = format!("{}, {}", full_name(first), others.join(", "));
            Err(Error::Ambiguous { name: name.to_owned(), found })
        }
    }
}

/// Names of the kind, as kubectl prints and accepts them before a slash.
const KIND_NAMES: [&str; 5] = ["seinode", "seinodes", "seinode.sei.io", "seinodes.sei.io", "snode"];

/// Names of the kind of fleets.
const FLEET_KINDS: [&str; 4] =
    ["snd", "seinodedeployment", "seinodedeployments", "seinodedeployment.sei.io"];

/// Whether the name is that of a fleet: `snd/NAME`.
fn is_fleet(given: &str) -> bool {
    given.split_once('/').is_some_and(|(kind, _)| FLEET_KINDS.contains(&kind))
}

/// The nodes of a fleet, at least one.
async fn nodes_of_fleet(client: &Client, scope: &Scope, given: &str) -> Result<Vec<Found>, Error> {
    let (_, name) = split_fleet(given)?;
    let selector = Some(format!("{}={name}", label::NODE_DEPLOYMENT));
    let filter = FilterFlags { selector, chain: None };
    let nodes = filtered(client, scope, &filter).await?;
    let selection = SelectionFlags { nodes: Vec::new(), filter };
    if nodes.is_empty() { Err(no_match(scope, &selection)) } else { Ok(nodes) }
}

/// Namespace and name in `NAME`, `NAMESPACE/NAME` or `seinode/NAME`.
pub(crate) fn split(given: &str) -> Result<(Option<&str>, &str), Error> {
    split_kind(given, &KIND_NAMES)
}

/// Namespace and name of a fleet in `NAME`, `NAMESPACE/NAME` or `snd/NAME`.
pub(crate) fn split_fleet(given: &str) -> Result<(Option<&str>, &str), Error> {
    split_kind(given, &FLEET_KINDS)
}

fn split_kind<'a>(given: &'a str, kinds: &[&str]) -> Result<(Option<&'a str>, &'a str), Error> {
    let (namespace, name) = match given.split_once('/') {
        Some((kind, name)) if kinds.contains(&kind) => (None, name),
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, given),
    };
    if name.is_empty() || name.contains('/') || namespace == Some("") {
        return Err(Error::NotAName { given: given.to_owned() });
    }
    Ok((namespace, name))
}

pub(crate) fn readable(found: Found) -> Result<SeiNode, Error> {
    found.map_err(|unreadable| Error::Unreadable {
        node: format!("{}/{}", unreadable.namespace, unreadable.name),
        message: unreadable.message,
    })
}

async fn node_of(client: &Client, namespace: &str, name: &str) -> Result<Found, Error> {
    let nodes: Api<Guarded> = Api::namespaced(client.clone(), namespace);
    let found = find("get seinode", nodes.get(name))
        .await
        .map_err(|failure| call_error("get seinode", failure))?;
    if let Some(guarded) = found {
        return Ok(unguard(guarded));
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
        (true, 0) => "; no SeiNode exists there, see kubectl sei status -A".to_owned(),
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
            // Two letters swapped are two changes.
            let least = if name.len() < 4 { 1 } else { 2 };
            *distance <= (name.len() / 4).max(least) || name.to_lowercase().contains(&given)
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
        assert_eq!(hint("rcp-0", &known), "; did you mean rpc-0?");
        assert_eq!(hint("seed", &known), "; existing nodes: rpc-0, rpc-1, validator-0");
        assert_eq!(hint("rpc-2", &known), "; did you mean rpc-0 or rpc-1?");
        assert_eq!(hint("validator", &known), "; did you mean validator-0?");
        assert_eq!(hint("a", &[]), "; no SeiNode exists there, see kubectl sei status -A");
    }

    #[test]
    fn a_name_may_carry_its_namespace() {
        assert_eq!(split("rpc-0").unwrap(), (None, "rpc-0"));
        assert_eq!(split("demo/rpc-0").unwrap(), (Some("demo"), "rpc-0"));
        assert_eq!(split("seinode/rpc-0").unwrap(), (None, "rpc-0"));
        assert_eq!(split("seinodes.sei.io/rpc-0").unwrap(), (None, "rpc-0"));
        assert_eq!(split_fleet("snd/edge").unwrap(), (None, "edge"));
        assert!(is_fleet("snd/edge") && !is_fleet("edge"));
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
