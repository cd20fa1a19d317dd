//! Why a command could not be carried out: one line that names the thing and what would be right.

use std::io;

use sei_plan::request::Failure;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to write the output")]
    Output { source: io::Error },
    #[error("found no way to reach a cluster: {told}; name a --kubeconfig or a --context")]
    NoCluster { told: String },
    #[error("{told}")]
    Call { told: String },
    #[error("there is no SeiNode {name} in namespace {namespace}{hint}")]
    NoNode { name: String, namespace: String, hint: String },
    #[error("there is no SeiNode {name} in any namespace")]
    NoNodeAnywhere { name: String },
    #[error("there is no SeiNode {name} among the {count} that were looked at")]
    NotLookedAt { name: String, count: usize },
    #[error("{name} is in several namespaces; name one of {found}")]
    Ambiguous { name: String, found: String },
    #[error("`{given}` is not the name of a node; give NAME or NAMESPACE/NAME")]
    NotAName { given: String },
    #[error("SeiNode {node} cannot be read: {told}")]
    Unreadable { node: String, told: String },
    #[error("{node}: {why}")]
    Refused { node: String, why: String },
    /// The configuration's own error is one line with file, key and reason.
    #[error("{told}")]
    Platform { told: String },
    #[error("{path}: {told}")]
    Manifest { path: String, told: String },
    #[error("no condition gives the reason {given}; {hint}")]
    NoReason { given: String, hint: String },
    #[error("{count} of the nodes could not be judged, first {node}: {why}")]
    Unjudged { count: usize, node: String, why: String },
}

/// A failed call in words.
pub(crate) fn told(what: &str, failure: Failure) -> Error {
    let told = match failure {
        Failure::NotFound => format!("{what}: the server does not know it"),
        Failure::AlreadyExists => format!("{what}: it is there already"),
        Failure::Forbidden(text) => format!("{text}; ask for that permission"),
        Failure::Conflict(text)
        | Failure::FieldManagerConflict(text)
        | Failure::Rejected(text)
        | Failure::SigningKey(text)
        | Failure::Indeterminate(text)
        | Failure::Unreachable(text)
        | Failure::Unauthorized(text) => text,
    };
    Error::Call { told: one_line(&told) }
}

/// An error is one line, whatever a server or a file says.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
