//! The configuration that the sidecar receives.

use serde_json::json;

use super::*;
use crate::testing::node_from;

fn peers() -> Vec<String> {
    vec!["b@h:2".to_owned(), "a@h:1".to_owned()]
}

fn overrides(node: &SeiNode) -> Value {
    config_apply_params(node, &peers())["overrides"].clone()
}

fn with_overrides(name: &str, overrides: Value) -> SeiNode {
    let mut json = serde_json::to_value(node(name)).unwrap();
    json["spec"]["overrides"] = overrides;
    node_from(json)
}

// I12
#[test]
fn a_full_node_gets_its_mode_and_its_users_overrides() {
    let params = config_apply_params(&node("rpc-bootstrap"), &peers());
    assert_eq!(
        params,
        json!({ "mode": "full", "overrides": {
            "logging.level": "info",
            "evm.http_port": "8545",
            "network.p2p.persistent_peers": "a@h:1,b@h:2",
            "storage.snapshot_interval": "2000",
            "storage.snapshot_keep_recent": "3",
            "storage.pruning_keep_recent": "50000",
            "storage.pruning_keep_every": "0",
            "chain.min_retain_blocks": "50000",
            "network.p2p.max_connections": "500",
            "network.p2p.send_rate": "20971520",
            "network.p2p.recv_rate": "20971520",
        } })
    );
}

// I13
#[test]
fn an_archive_gets_its_peers() {
    assert_eq!(overrides(&node("arch-sync"))["network.p2p.persistent_peers"], "a@h:1,b@h:2");
}

// I14
#[test]
fn an_archive_that_creates_snapshots_keeps_the_configured_number() {
    let plain = json!({ "logging.level": "error", "network.p2p.persistent_peers": "a@h:1,b@h:2" });
    assert_eq!(overrides(&node("arch-sync")), plain);
    let mut node = node("arch-publisher");
    let generation = node.spec.archive.as_mut().unwrap().snapshot_generation.as_mut().unwrap();
    generation.tendermint.as_mut().unwrap().keep_recent = 5;
    let overrides = overrides(&node);
    assert_eq!(overrides["storage.snapshot_keep_recent"], "5");
    assert_eq!(overrides["storage.snapshot_interval"], "2000");
    assert_eq!(overrides.as_object().unwrap().len(), 4);
}

// I15
// I20
#[test]
fn each_mode_has_its_configuration_mode() {
    let expected = [
        ("rpc-genesis", "full"),
        ("replay-basic", "full"),
        ("arch-sync", "archive"),
        ("val-byo", "validator"),
        ("devnet-0", "validator"),
        ("seed-a", "seed"),
    ];
    for (name, mode) in expected {
        assert_eq!(config_apply_params(&node(name), &[])["mode"], mode);
        assert_eq!(node(name).spec.mode().unwrap().config_mode(), mode);
    }
}

#[test]
fn a_replayer_commits_in_the_background() {
    let overrides = overrides(&node("replay-basic"));
    assert_eq!(overrides["storage.state_commit.async_commit_buffer"], "100");
    assert_eq!(overrides["storage.state_commit.memiavl.snapshot_keep_recent"], "2");
    assert_eq!(overrides["storage.state_commit.memiavl.snapshot_min_time_interval"], "3600");
}

// I33
#[test]
fn state_sync_gets_the_witnesses_it_was_given() {
    let witnesses = ["w1:1".to_owned(), "w2:2".to_owned()];
    assert_eq!(
        configure_state_sync_params(&node("rpc-bootstrap"), &witnesses).unwrap(),
        json!({ "UseLocalSnapshot": true, "TrustPeriod": "9999h0m0s", "BackfillBlocks": 100,
                "RpcServers": ["w1:1", "w2:2"] })
    );
    assert_eq!(
        configure_state_sync_params(&node("val-byo"), &[]).unwrap(),
        json!({ "UseLocalSnapshot": false, "TrustPeriod": "", "BackfillBlocks": 0,
                "RpcServers": [] })
    );
    assert_eq!(configure_state_sync_params(&node("rpc-genesis"), &witnesses), None);
}

// I34
#[test]
fn the_external_address_is_written_only_when_set() {
    let address = "network.p2p.external_address";
    let set = overrides(&node("rpc-dedicated"));
    assert_eq!(set[address], "rpc-dedicated.p2p.example.org:26656");
    assert_eq!(set["logging.level"], "error");
    assert!(overrides(&node("rpc-genesis")).get(address).is_none());
}

// I35
#[test]
fn the_key_of_peers_is_written_even_without_peers() {
    let overrides = config_apply_params(&node("rpc-genesis"), &[])["overrides"].clone();
    assert_eq!(overrides["network.p2p.persistent_peers"], "");
}

// I36
#[test]
fn the_overrides_of_the_user_take_precedence() {
    let address = "network.p2p.external_address";
    let node = with_overrides("rpc-dedicated", json!({ address: "mine:1", "own.key": "x" }));
    let own = overrides(&node);
    assert_eq!(own[address], "mine:1");
    assert_eq!(own["own.key"], "x");
    for level in ["debug", "info", "warn"] {
        let node = with_overrides("rpc-genesis", json!({ "logging.level": level }));
        assert_eq!(overrides(&node)["logging.level"], level);
    }
    let node = with_overrides("arch-publisher", json!({ "storage.snapshot_interval": "9" }));
    assert_eq!(overrides(&node)["storage.snapshot_interval"], "9");
}

// O1
#[test]
fn a_patch_is_stored_under_files_in_lower_case() {
    let params = config_patch_params(&node("rpc-dedicated"), &peers());
    assert_eq!(
        params,
        json!({ "files": { "config.toml": { "p2p": {
            "external-address": "rpc-dedicated.p2p.example.org:26656",
            "persistent-peers": "a@h:1,b@h:2" } } } })
    );
    let text = serde_json::to_string(&params).unwrap();
    assert!(text.starts_with(r#"{"files":"#));
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), params);
    let empty = config_patch_params(&node("rpc-genesis"), &[]);
    let p2p = &empty["files"]["config.toml"]["p2p"];
    assert_eq!(p2p, &json!({ "external-address": "", "persistent-peers": "" }));
}

#[test]
fn each_digest_follows_its_own_part_of_the_configuration() {
    let base = node("arch-publisher");
    let before = config_digests(&base, &peers());
    assert_eq!(before.keys().collect::<Vec<_>>(), ["externalAddress", "overrides", "peers"]);
    assert!(before.values().all(|digest| digest.len() == 16));

    let changed = |node: &SeiNode, peers: &[String]| -> Vec<String> {
        let after = config_digests(node, peers);
        before.keys().filter(|key| before[*key] != after[*key]).cloned().collect()
    };
    let mut node = base.clone();
    node.spec.external_address = Some("h:1".to_owned());
    assert_eq!(changed(&node, &peers()), ["externalAddress"]);
    assert_eq!(changed(&base, &peers()[..1]), ["peers"]);
    let reordered: Vec<String> = peers().into_iter().rev().chain(peers()).collect();
    assert_eq!(changed(&base, &reordered), [""; 0]);
    assert_eq!(
        changed(&with_overrides("arch-publisher", json!({ "a": "b" })), &peers()),
        ["overrides"]
    );
    // The mode's own overrides count as well.
    let mut node = base.clone();
    let generation = node.spec.archive.as_mut().unwrap().snapshot_generation.as_mut().unwrap();
    generation.tendermint.as_mut().unwrap().keep_recent += 1;
    assert_eq!(changed(&node, &peers()), ["overrides"]);
    node.spec.image = "other".to_owned();
    node.spec.archive = base.spec.archive.clone();
    assert_eq!(changed(&node, &peers()), [""; 0]);
}
