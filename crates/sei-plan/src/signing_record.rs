//! What stays of a deleted node that signed.
//!
//! The file with the last signed height is on the node's volume. A node that is created later with
//! the same key and an empty volume would sign blocks that were signed before. So a deleted signer
//! leaves a `ConfigMap` in its namespace, which the first start of a node with this key reads.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use sei_api::SeiNode;
use sei_api::names::{FIELD_MANAGER, annotation, label, signing_record};

use crate::fingerprint::short_digest;

/// What decisions read of the record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SigningRecord {
    /// The node that signed last.
    pub node: String,
    /// When its deletion was requested, for people.
    pub deleted_at: String,
    /// When it was written, by the clock of the API server.
    pub written_at: Option<Timestamp>,
}

/// Keys of the record's data.
mod key {
    pub(super) const NODE: &str = "node";
    pub(super) const DELETED_AT: &str = "deletedAt";
    pub(super) const CHAIN: &str = "chainId";
    pub(super) const IDENTITY: &str = "identity";
}

/// Name of the record of one identity on one chain.
pub fn name(chain: &str, identity: &str) -> String {
    signing_record(&short_digest(&format!("{chain}/{identity}")))
}

/// The record that a node leaves; `None` if it never had an identity.
pub fn record(node: &SeiNode, now: Timestamp) -> Option<ConfigMap> {
    let identity = node.status.as_ref()?.signing_identity.as_deref()?;
    let deleted_at = node.metadata.deletion_timestamp.as_ref().map_or(now, |time| time.0);
    let text = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let data = BTreeMap::from([
        text(key::NODE, node.metadata.name.as_deref().unwrap_or_default()),
        text(key::DELETED_AT, &format!("{deleted_at:.0}")),
        text(key::CHAIN, chain_of(node)),
        text(key::IDENTITY, identity),
    ]);
    Some(ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(chain_of(node), identity)),
            namespace: node.metadata.namespace.clone(),
            labels: Some(BTreeMap::from([text(label::SIGNING_RECORD, "true")])),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    })
}

/// The chain that the node has run: an edit of a running node's spec is refused, and what it signed
/// is of the chain before the edit.
fn chain_of(node: &SeiNode) -> &str {
    let ran = node.status.as_ref().and_then(|status| status.chain_id.as_deref());
    ran.unwrap_or(&node.spec.chain_id)
}

impl From<&ConfigMap> for SigningRecord {
    fn from(map: &ConfigMap) -> Self {
        let value = |key| map.data.as_ref().and_then(|data| data.get(key)).cloned();
        // Not the time of a later edit by others: a node that was created before that edit would count
        // as one that the key was moved to.
        let is_ours = |entry: &&ManagedFieldsEntry| entry.manager.as_deref() == Some(FIELD_MANAGER);
        let writes = map.metadata.managed_fields.iter().flatten().filter(is_ours);
        Self {
            written_at: writes.filter_map(|entry| entry.time.as_ref()).map(|time| time.0).max(),
            node: value(key::NODE).unwrap_or_default(),
            deleted_at: value(key::DELETED_AT).unwrap_or_default(),
        }
    }
}

impl SigningRecord {
    /// Whether the node was created before the other had ended: the user has moved the key to it.
    /// Both times are in whole seconds.
    pub fn is_successor(&self, node: &SeiNode) -> bool {
        let created = node.metadata.creation_timestamp.as_ref().map(|time| time.0);
        created.zip(self.written_at).is_some_and(|(created, written)| created <= written)
    }

    /// Why a node with another volume may not start.
    pub fn refusal(&self, identity: &str) -> String {
        format!(
            "node {} signed with this key and was deleted at {}; what it signed is known to its \
             volume only. Import that volume, or accept an empty one: set annotation {}: {identity}",
            self.node,
            self.deleted_at,
            annotation::ACCEPT_BLANK_SIGNING_STATE,
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::planner::fixture::{node, validator};

    #[test]
    fn a_record_is_of_the_chain_that_the_node_has_run() {
        let mut node = node(validator());
        let status = node.status.get_or_insert_default();
        status.signing_identity = Some("A1".to_owned());
        status.chain_id = Some(node.spec.chain_id.clone());
        let before = record(&node, Timestamp::UNIX_EPOCH);
        node.spec.chain_id = "edited".to_owned();
        assert_eq!(record(&node, Timestamp::UNIX_EPOCH), before);
        node.status.as_mut().unwrap().chain_id = None;
        assert_ne!(record(&node, Timestamp::UNIX_EPOCH), before);
    }

    #[test]
    fn an_edit_of_the_record_by_others_is_not_its_time() {
        let write = |manager: &str, time: &str| json!({ "manager": manager, "time": time });
        let written = |writes: serde_json::Value| {
            let map = json!({ "metadata": { "managedFields": writes } });
            SigningRecord::from(&serde_json::from_value::<ConfigMap>(map).unwrap()).written_at
        };
        let ours = write(FIELD_MANAGER, "2026-01-01T00:00:00Z");
        let theirs = write("kubectl-label", "2026-01-03T00:00:00Z");
        let time = Some("2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(written(json!([ours, theirs])), time);
        assert_eq!(written(json!([theirs])), None, "then no node is a successor");
    }
}
