//! The usual results of tasks.

use serde_json::{Value, json};

pub(super) const MARK_READY: &str = "mark-ready";
pub(super) const MARK_NOT_READY: &str = "mark-not-ready";

/// Every registered type with its required parameters. A missing parameter fails the run, not the
/// submission.
const TYPES: &[(&str, &[&str])] = &[
    (MARK_READY, &[]),
    (MARK_NOT_READY, &[]),
    ("stop-seid", &[]),
    ("reset-data", &[]),
    ("restart-seid", &[]),
    ("await-condition", &["condition"]),
    ("config-apply", &[]),
    ("config-patch", &["files"]),
    ("config-validate", &[]),
    ("config-reload", &["fields"]),
    ("configure-genesis", &[]),
    ("configure-state-sync", &[]),
    ("snapshot-restore", &[]),
    ("snapshot-upload", &[]),
    ("snapshot-upload-once", &[]),
    ("result-export", &["bucket", "region"]),
    ("generate-identity", &["chainId", "moniker"]),
    ("generate-gentx", &["chainId", "stakingAmount", "accountBalance"]),
    ("upload-genesis-artifacts", &["nodeName"]),
    ("assemble-and-upload-genesis", &["accountBalance", "namespace", "nodes"]),
    ("set-genesis-peers", &[]),
    ("gov-vote", &["chainId", "keyName", "fees", "gas", "proposalId", "option"]),
    ("gov-software-upgrade", &["chainId", "keyName", "fees", "gas", "upgradeName"]),
    ("gov-param-change", &["chainId", "keyName", "fees", "gas", "changes"]),
    ("evm-logical-digest", &["flatkvDir", "memiavlDir", "height", "bucket", "region"]),
];

pub(super) fn is_known(task_type: &str) -> bool {
    TYPES.iter().any(|(known, _)| *known == task_type)
}

/// Whether a task of this type never ends by itself.
pub(super) fn is_endless(task_type: &str) -> bool {
    task_type == "snapshot-upload"
}

/// The end of a task: its result, or the text of its failure.
pub(super) fn outcome(task_type: &str, params: &Value) -> Result<Option<Value>, String> {
    let Some((_, required)) = TYPES.iter().find(|(known, _)| *known == task_type) else {
        return Err("no handler registered for task type".to_owned());
    };
    if task_type == "config-patch" && is_empty(&params["files"]) {
        return Err("config-patch: at least one file is required".to_owned());
    }
    if let Some(missing) = required.iter().find(|name| is_empty(&params[**name])) {
        return Err(format!("{task_type}: params: {missing} is required"));
    }
    if task_type == "config-apply" && is_full_without_mode(params) {
        return Err("config-apply: params: mode is required".to_owned());
    }
    if task_type.starts_with("gov-") {
        return Err(format!("{task_type}: keyring: no keyring is configured"));
    }
    Ok(match task_type {
        "reset-data" => Some(json!({ "wipedBytes": 0 })),
        "snapshot-upload-once" => {
            Some(json!({ "outcome": "noop", "noopReason": "fewer-than-2-snapshots" }))
        }
        "assemble-and-upload-genesis" => Some(json!({ "genesisHash": "0".repeat(64) })),
        _ => None,
    })
}

fn is_full_without_mode(params: &Value) -> bool {
    params["incremental"] != true && is_empty(&params["mode"])
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}
