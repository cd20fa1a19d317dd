//! The chain configuration that the sidecar receives. None of it is in the pod template, so it has
//! digests of its own.
//!
//! The JSON shapes are those of stored plans; the Go operator must be able to read them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use sei_api::SeiNode;
use sei_api::node::SeiNodeSpec;
use serde_json::{Value, json};

use crate::fingerprint::short_digest;

/// Parameters of `config-apply`, which writes the whole configuration at init.
pub fn config_apply_params(node: &SeiNode, resolved_peers: &[String]) -> Value {
    let mut overrides = common_overrides(&node.spec, resolved_peers);
    overrides.extend(spec_overrides(&node.spec));
    json!({ "mode": config_mode(&node.spec), "overrides": overrides })
}

/// Parameters of `config-patch`, which moves a running node to its new peers and address.
pub fn config_patch_params(node: &SeiNode, resolved_peers: &[String]) -> Value {
    json!({ "files": { "config.toml": { "p2p": {
        "external-address": external_address(&node.spec),
        "persistent-peers": joined(resolved_peers),
    } } } })
}

/// Parameters of `configure-state-sync`; none where the node starts without a snapshot.
pub fn configure_state_sync_params(node: &SeiNode, witnesses: &[String]) -> Option<Value> {
    let source = node.spec.snapshot()?;
    Some(json!({
        "UseLocalSnapshot": source.s3.is_some(),
        "TrustPeriod": source.trust_period.as_deref().unwrap_or_default(),
        "BackfillBlocks": source.backfill_blocks.unwrap_or_default(),
        "RpcServers": witnesses,
    }))
}

/// Digests of the configuration outside of the template. They show whether a node runs the
/// configuration of its spec without keeping peers and addresses in status twice.
pub fn config_digests(node: &SeiNode, resolved_peers: &[String]) -> BTreeMap<String, String> {
    // A length before each part, so that no two maps give the same text.
    let mut overrides = String::new();
    for (key, value) in spec_overrides(&node.spec) {
        let _ = write!(overrides, "{}:{key}{}:{value}", key.len(), value.len());
    }
    BTreeMap::from([
        ("externalAddress".to_owned(), short_digest(external_address(&node.spec))),
        ("overrides".to_owned(), short_digest(&overrides)),
        ("peers".to_owned(), short_digest(&joined(resolved_peers))),
    ])
}

/// Overrides of every node; those of its mode and of its user take precedence.
fn common_overrides(spec: &SeiNodeSpec, resolved_peers: &[String]) -> BTreeMap<String, String> {
    let mut overrides = BTreeMap::from([
        ("logging.level".to_owned(), "error".to_owned()),
        ("network.p2p.persistent_peers".to_owned(), joined(resolved_peers)),
    ]);
    let address = external_address(spec);
    if !address.is_empty() {
        overrides.insert("network.p2p.external_address".to_owned(), address.to_owned());
    }
    overrides
}

/// Overrides of the mode and of the user; the user's take precedence.
fn spec_overrides(spec: &SeiNodeSpec) -> BTreeMap<String, String> {
    let mut overrides: BTreeMap<String, String> =
        mode_overrides(spec).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    overrides.extend(spec.overrides.clone().unwrap_or_default());
    overrides
}

fn mode_overrides(spec: &SeiNodeSpec) -> Vec<(&'static str, String)> {
    let snapshots =
        spec.snapshot_generation().and_then(|generation| generation.tendermint.as_ref());
    let mut overrides: Vec<(&str, String)> = Vec::new();
    if let Some(snapshots) = snapshots {
        overrides.push(("storage.snapshot_interval", "2000".to_owned()));
        overrides.push(("storage.snapshot_keep_recent", snapshots.keep_recent.to_string()));
        if spec.full_node.is_some() {
            // A node that serves snapshots needs more history and more bandwidth for its clients.
            overrides.extend(
                [
                    ("storage.pruning_keep_recent", "50000"),
                    ("storage.pruning_keep_every", "0"),
                    ("chain.min_retain_blocks", "50000"),
                    ("network.p2p.max_connections", "500"),
                    ("network.p2p.send_rate", "20971520"),
                    ("network.p2p.recv_rate", "20971520"),
                ]
                .map(|(key, value)| (key, value.to_owned())),
            );
        }
    }
    if spec.replayer.is_some() {
        overrides.extend(
            [
                ("storage.state_commit.async_commit_buffer", "100"),
                ("storage.state_commit.memiavl.snapshot_keep_recent", "2"),
                ("storage.state_commit.memiavl.snapshot_min_time_interval", "3600"),
            ]
            .map(|(key, value)| (key, value.to_owned())),
        );
    }
    overrides
}

/// Mode as the configuration library names it. A spec with none or several modes is refused
/// earlier; the order of the Go operator decides here so that this stays a plain function.
fn config_mode(spec: &SeiNodeSpec) -> &'static str {
    if spec.archive.is_some() {
        "archive"
    } else if spec.validator.is_some() {
        "validator"
    } else if spec.seed.is_some() {
        "seed"
    } else {
        "full"
    }
}

fn external_address(spec: &SeiNodeSpec) -> &str {
    spec.external_address.as_deref().unwrap_or_default()
}

/// Peers as the configuration expects them. Sorted and unique, so that the order of their
/// discovery is never a change.
fn joined(peers: &[String]) -> String {
    let unique: BTreeSet<&str> = peers.iter().map(String::as_str).collect();
    unique.into_iter().collect::<Vec<_>>().join(",")
}
