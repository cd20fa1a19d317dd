//! Why a command failed: one line that names the object and the remedy.

use std::io;

use sei_plan::request::Failure;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to write the output")]
    Output { source: io::Error },
    #[error("failed to connect to a cluster: {message}; set --kubeconfig or --context")]
    NoCluster { message: String },
    #[error("{message}")]
    Call { message: String },
    #[error("SeiNode {name} not found in namespace {namespace}{hint}")]
    NoNode { name: String, namespace: String, hint: String },
    #[error("SeiNode {name} not found in any namespace")]
    NoNodeAnywhere { name: String },
    #[error("SeiNode {name} is not among the {count} nodes of this preview")]
    NotInPreview { name: String, count: usize },
    #[error("SeiNode {name} exists in several namespaces; use one of {found}")]
    Ambiguous { name: String, found: String },
    #[error("`{given}` is not a node name; use NAME or NAMESPACE/NAME")]
    NotAName { given: String },
    #[error("failed to decode SeiNode {node}: {message}")]
    Unreadable { node: String, message: String },
    #[error("{node}: {why}")]
    Refused { node: String, why: String },
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

/// The error of a failed call to the API server.
pub(crate) fn call_error(what: &str, failure: Failure) -> Error {
    let message = match failure {
        Failure::NotFound => format!("{what}: not found"),
        Failure::AlreadyExists => format!("{what}: already exists"),
        Failure::Forbidden(text) => format!("{text}; request that permission"),
        Failure::Conflict(text)
        | Failure::FieldManagerConflict(text)
        | Failure::Rejected(text)
        | Failure::NotStarted { message: text, .. }
        | Failure::Indeterminate(text)
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
