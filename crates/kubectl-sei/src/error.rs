//! Why a command failed: one line that names the object and the remedy.

use std::io;

use sei_plan::request::Failure;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to write the output")]
    Output { source: io::Error },
    #[error("failed to connect to a cluster: {message}; set --kubeconfig or --context")]
    NoCluster { message: String },
    #[error("no kubeconfig found; set KUBECONFIG or --kubeconfig, or create ~/.kube/config")]
    NoKubeconfig,
    #[error("{message}")]
    Call { message: String },
    /// Another client changed the object meanwhile.
    #[error("{message}")]
    Conflict { message: String },
    /// The API server did not answer, or not usefully. `main` adds its address.
    #[error("{message}")]
    Unreachable { message: String },
    #[error(
        "the SeiNode CRD is not installed; run kubectl apply --server-side -f config/crd/bases"
    )]
    NoCrd,
    #[error("SeiNode {name} not found in namespace {namespace}{hint}")]
    NoNode { name: String, namespace: String, hint: String },
    #[error("SeiNode {name} not found in any namespace{hint}")]
    NoNodeAnywhere { name: String, hint: String },
    #[error("SeiNodeDeployment {name} not found in namespace {namespace}; see kubectl get snd -A")]
    NoFleet { name: String, namespace: String },
    #[error("SeiNode {name} is not among the {count} nodes of this preview")]
    NotInPreview { name: String, count: usize },
    #[error("SeiNode {name} exists in several namespaces; use one of {found}")]
    Ambiguous { name: String, found: String },
    #[error("`{given}` is not a node name; use NAME, NAMESPACE/NAME or seinode/NAME")]
    NotAName { given: String },
    #[error("failed to decode SeiNode {node}: {message}")]
    Unreadable { node: String, message: String },
    #[error("{node}: {why}")]
    Refused { node: String, why: String },
    #[error("{failed} of {of} not changed, first {first}")]
    NotChanged { failed: usize, of: String, first: String },
    #[error("name the nodes, or use -l, --chain or --all")]
    NoSelection,
    #[error("no SeiNode{filter} in {scope}")]
    NoMatch { filter: String, scope: String },
    #[error("{message}")]
    Image { message: String },
    #[error("timed out after {seconds} s waiting for {nodes}")]
    TimedOut { seconds: u64, nodes: String },
    #[error("failed to write {path}")]
    File { path: String, source: io::Error },
    /// The message is that of the platform configuration: file, key and reason in one line.
    #[error("{message}")]
    Platform { message: String },
    #[error("{path}: {message}")]
    Manifest { path: String, message: String },
    #[error("unknown reason {given}; {hint}")]
    NoReason { given: String, hint: String },
    #[error("failed to compare the pods of {nodes}, first {node}: {why}")]
    NotCompared { nodes: String, node: String, why: String },
}

/// The list of nodes, in messages.
pub(crate) const LIST_NODES: &str = "list seinodes";

/// The error of a failed call to the API server.
pub(crate) fn call_error(what: &str, failure: Failure) -> Error {
    let message = match failure {
        // A list is not found if its kind is unknown to the server.
        Failure::NotFound(_) if what == LIST_NODES => return Error::NoCrd,
        Failure::Indeterminate(text) => return Error::Unreachable { message: one_line(&text) },
        Failure::AlreadyExists => format!("{what}: already exists"),
        Failure::Forbidden(text) => format!("{text}; request that permission"),
        Failure::Conflict(text) => return Error::Conflict { message: one_line(&text) },
        Failure::NotFound(text)
        | Failure::FieldManagerConflict(text)
        | Failure::Rejected(text)
        | Failure::NamespaceTerminating(text)
        | Failure::NotStarted { message: text, .. }
        | Failure::Unreachable(text)
        | Failure::TaskRefused(text)
        | Failure::Unauthorized(text) => text,
    };
    Error::Call { message: one_line(&message) }
}

/// The text in one line: messages of servers and parsers may have several.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_call_names_its_remedy() {
        let missing = call_error(LIST_NODES, Failure::NotFound("no".into()));
        assert_eq!(
            missing.to_string(),
            "the SeiNode CRD is not installed; run kubectl apply --server-side -f config/crd/bases"
        );
        let forbidden = call_error("get seinode", Failure::Forbidden("no".into()));
        assert_eq!(forbidden.to_string(), "no; request that permission");
        let unreachable = call_error("get seinode", Failure::Indeterminate("get\n  x".into()));
        assert!(matches!(unreachable, Error::Unreachable { message } if message == "get x"));
    }
}
