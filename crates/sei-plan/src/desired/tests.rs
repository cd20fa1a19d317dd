//! What changes the rendered objects of a node, what does not, and what is refused.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::json;

use super::*;
use crate::testing::changes::{ONE_PER_MODE, PLATFORM, TEMPLATE_CHANGED, TEMPLATE_UNCHANGED};
use crate::testing::{EDGES, NODES, PLATFORMS, node, node_from, platform, shuffled};

mod refused;

fn manifests() -> Vec<&'static str> {
    NODES.iter().chain(EDGES).copied().collect()
}

fn peers() -> Vec<String> {
    ["b@10.0.0.2:26656", "a@10.0.0.1:26656"].map(str::to_owned).to_vec()
}

fn desired(node: &SeiNode, on: &Platform) -> Desired {
    render_desired(node, on, &peers(), &["w:1".to_owned()]).unwrap()
}

/// All bytes of a render.
fn bytes(desired: &Desired) -> String {
    let bootstrap = desired.bootstrap.as_ref();
    json!([
        [
            desired.hash,
            desired.inputs_hash,
            desired.image,
            desired.sidecar_image,
            desired.claim_size
        ],
        desired.config,
        [
            desired.config_apply.json(),
            desired.config_patch.json(),
            desired.configure_state_sync.json(),
        ],
        desired.statefulset.json(),
        desired.service.json(),
        desired.proxy_config.json(),
        desired.claim.as_ref().map(crate::packed::Packed::json),
        bootstrap.map(|bootstrap| json!([
            bootstrap.job.json(),
            bootstrap.service.json(),
            bootstrap.image
        ])),
    ])
    .to_string()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn map_order_never_changes_the_bytes(
        name in select(manifests()), on in select(&PLATFORMS[..]), seed in any::<u64>(),
    ) {
        let before = node(name);
        let text = shuffled(&serde_json::to_value(&before).unwrap(), seed);
        let after: SeiNode = serde_json::from_str(&text).unwrap();
        let on = platform(on);
        prop_assert_eq!(bytes(&desired(&before, &on)), bytes(&desired(&after, &on)));
    }

    #[test]
    fn the_order_of_discovered_peers_never_changes_the_bytes(
        name in select(manifests()), found in Just(peers()).prop_shuffle(), twice in any::<bool>(),
    ) {
        let (node, on) = (node(name), platform("example"));
        let found = if twice { [&found[..], &found[..]].concat() } else { found };
        let after = render_desired(&node, &on, &found, &["w:1".to_owned()]).unwrap();
        prop_assert_eq!(bytes(&desired(&node, &on)), bytes(&after));
    }

    #[test]
    fn inputs_of_the_template_change_both_hashes(
        name in select(manifests()), on in select(&PLATFORMS[..]), text in "[a-z]{1,9}",
    ) {
        let (before, on) = (node(name), platform(on));
        let was = desired(&before, &on);
        for (what, change) in TEMPLATE_CHANGED {
            let mut after = before.clone();
            change(&mut after, &text);
            // A change may contradict the rest of its node: refused, so nothing can roll.
            let Ok(is) = render_desired(&after, &on, &peers(), &["w:1".to_owned()]) else { continue };
            if after != before {
                prop_assert_ne!(&was.hash, &is.hash, "{}", what);
                prop_assert_ne!(&was.inputs_hash, &is.inputs_hash, "{}", what);
            }
        }
    }

    #[test]
    fn what_is_not_an_input_changes_neither_hash(
        name in select(manifests()), on in select(&PLATFORMS[..]), text in "[a-z]{1,9}",
    ) {
        let (before, on) = (node(name), platform(on));
        let was = desired(&before, &on);
        for (what, change) in TEMPLATE_UNCHANGED {
            let mut after = before.clone();
            change(&mut after, &text);
            let is = desired(&after, &on);
            prop_assert_eq!(&was.hash, &is.hash, "{}", what);
            prop_assert_eq!(&was.inputs_hash, &is.inputs_hash, "{}", what);
        }
    }
}

/// Every change is valid on some manifest: one that is always refused would show nothing.
#[test]
fn every_change_is_rendered_somewhere() {
    let on = platform("example");
    for (what, change) in TEMPLATE_CHANGED.iter().chain(TEMPLATE_UNCHANGED) {
        let shows = manifests().into_iter().any(|name| {
            let mut after = node(name);
            change(&mut after, "text");
            after != node(name) && render_desired(&after, &on, &[], &[]).is_ok()
        });
        assert!(shows, "{what}");
    }
}

#[test]
fn the_platform_changes_the_template_hash_and_never_the_inputs_hash() {
    for (what, change, moved) in PLATFORM {
        let before = platform("example");
        let mut after = before.clone();
        change(&mut after);
        for name in ONE_PER_MODE {
            let (was, is) = (desired(&node(name), &before), desired(&node(name), &after));
            assert_eq!(was.hash != is.hash, moved.contains(name), "{what} on {name}");
            assert_eq!(was.inputs_hash, is.inputs_hash, "{what} on {name}");
        }
    }
}

/// Every ordered pair of modes, with as much of the spec shared as can be.
#[test]
fn every_switch_of_the_mode_changes_both_hashes() {
    let on = platform("minimal");
    let key = json!({ "secret": { "secretName": "p2p" } });
    let modes = [
        ("fullNode", json!({})),
        ("archive", json!({})),
        ("replayer", json!({ "snapshot": { "s3": { "targetHeight": 5 } } })),
        ("validator", json!({})),
        ("seed", json!({ "nodeKey": key })),
    ];
    let renders = modes.map(|(mode, body)| {
        let mut json = serde_json::to_value(node("replay-basic")).unwrap();
        json["spec"]["replayer"] = Value::Null;
        json["spec"][mode] = body;
        desired(&node_from(json), &on)
    });
    let hashes: BTreeSet<_> = renders.iter().map(|desired| &desired.hash).collect();
    let inputs: BTreeSet<_> = renders.iter().map(|desired| &desired.inputs_hash).collect();
    assert_eq!((hashes.len(), inputs.len()), (5, 5));
}

#[test]
fn a_paused_node_differs_in_its_replicas_alone() {
    let on = platform("tuned");
    for name in manifests() {
        let at = |paused: bool| {
            let mut node = node(name);
            node.spec.paused = Some(paused);
            desired(&node, &on)
        };
        let (runs, mut rests) = (at(false), at(true));
        assert_eq!(runs.statefulset.unpack().spec.replicas, Some(1), "{name}");
        assert_eq!(rests.statefulset.unpack().spec.replicas, Some(0), "{name}");
        rests.statefulset.edit(|set| set.spec.replicas = Some(1));
        assert_eq!(runs, rests, "{name}");
    }
}

/// Names of the digests in which two renders differ.
fn differing(was: &Desired, is: &Desired) -> Vec<String> {
    let names: BTreeSet<&String> = was.config.keys().chain(is.config.keys()).collect();
    let differs = |name: &&String| was.config.get(*name) != is.config.get(*name);
    names.into_iter().filter(differs).cloned().collect()
}

#[test]
fn each_config_digest_changes_with_its_own_settings_alone() {
    let on = platform("example");
    for name in manifests() {
        let before = node(name);
        let was = desired(&before, &on);
        assert_eq!(was.config.len(), 3);
        for (what, change) in TEMPLATE_CHANGED.iter().chain(TEMPLATE_UNCHANGED) {
            let mut after = before.clone();
            change(&mut after, "text");
            let Ok(is) = render_desired(&after, &on, &peers(), &[]) else { continue };
            let expected: &[&str] = match *what {
                _ if after == before => &[],
                "external address" => &["externalAddress"],
                "overrides" | "keepRecent" => &["overrides"],
                // The mode has overrides of its own: see the next test.
                "mode" => continue,
                _ => &[],
            };
            assert_eq!(differing(&was, &is), expected, "{what} on {name}");
        }
        let moved = render_desired(&before, &on, &["c@10.0.0.3:26656".to_owned()], &[]).unwrap();
        assert_eq!(differing(&was, &moved), ["peers"], "{name}");
        let tuned = desired(&before, &platform("tuned"));
        assert_eq!(differing(&was, &tuned), [""; 0], "{name}");
    }
}

#[test]
fn the_mode_and_its_generated_settings_change_the_digest_of_overrides() {
    let on = platform("example");
    let of = |name: &str, change: fn(&mut SeiNode)| {
        let mut after = node(name);
        change(&mut after);
        differing(&desired(&node(name), &on), &desired(&after, &on))
    };
    assert_eq!(of("rpc-dedicated", |n| n.spec.full_node = Some(<_>::default())), ["overrides"]);
    let to_archive: fn(&mut SeiNode) = |node| {
        node.spec.replayer = None;
        node.spec.archive = Some(<_>::default());
    };
    assert_eq!(of("replay-basic", to_archive), ["overrides"]);
    // An archive and a validator without settings are configured alike, apart from the mode.
    let to_validator: fn(&mut SeiNode) = |node| {
        node.spec.archive = None;
        node.spec.validator = Some(<_>::default());
    };
    assert_eq!(of("arch-sync", to_validator), [""; 0]);
}
