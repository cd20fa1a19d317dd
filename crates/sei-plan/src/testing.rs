//! The manifests under `testdata`, for the tests of every module.

use sei_api::SeiNode;
use serde_json::{Value, json};

use crate::platform::Platform;

pub(crate) mod changes;

macro_rules! manifests {
    ($list:ident, $text:ident in $folder:literal: $($name:literal),* $(,)?) => {
        /// Every manifest of the folder.
        pub(crate) const $list: &[&str] = &[$($name),*];

        fn $text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("../testdata/", $folder, "/", $name, ".yaml"))),)*
                _ => None,
            }
        }
    };
}

manifests!(
    NODES, node_text in "nodes":
    "rpc-genesis",
    "rpc-statesync",
    "rpc-bootstrap",
    "rpc-dedicated",
    "val-observer",
    "val-byo",
    "val-governor",
    "devnet-0",
    "arch-sync",
    "arch-import",
    "arch-publisher",
    "replay-basic",
    "replay-shadow",
    "replay-isolated",
    "seed-a",
    "seed-b",
    "seed-c",
);

manifests!(
    EDGES, edge_text in "edges":
    "all-keys",
    "archive-import-publish",
    "ceremony",
    "chain-limit",
    "full-dedicated",
    "full-not-dedicated",
    "keyring-apart",
    "label-limits",
    "name-limit",
    "odd-quantities",
    "paused",
    "scheduled",
    "seed-dedicated",
    "sidecar-port",
);

pub(crate) const PLATFORMS: [&str; 4] = ["example", "minimal", "placed", "tuned"];

/// A manifest as the API server would return it.
pub(crate) fn node(name: &str) -> SeiNode {
    let text = node_text(name).or_else(|| edge_text(name));
    let text = text.unwrap_or_else(|| panic!("no manifest {name}"));
    let mut node: SeiNode = serde_saphyr::from_str(text).unwrap();
    node.metadata.uid = Some(format!("uid-of-{name}"));
    node
}

pub(crate) fn node_from(mut json: Value) -> SeiNode {
    drop_nulls(&mut json);
    serde_json::from_value(json).unwrap()
}

pub(crate) fn platform(name: &str) -> Platform {
    let text = match name {
        "example" => include_str!("../testdata/platform/example.yaml"),
        "minimal" => include_str!("../testdata/platform/minimal.yaml"),
        "placed" => include_str!("../testdata/platform/placed.yaml"),
        "tuned" => include_str!("../testdata/platform/tuned.yaml"),
        unknown => panic!("no platform {unknown}"),
    };
    Platform::parse(text, name).unwrap()
}

pub(crate) fn drop_nulls(json: &mut Value) {
    if let Value::Object(map) = json {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}

/// A value as JSON text, the keys of every map rotated and sometimes reversed.
pub(crate) fn shuffled(value: &Value, seed: u64) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<String> = map
                .iter()
                .map(|(key, value)| format!("{}:{}", json!(key), shuffled(value, seed / 3)))
                .collect();
            if !entries.is_empty() {
                let by = usize::try_from(seed % 97).unwrap() % entries.len();
                entries.rotate_left(by);
            }
            if seed % 2 == 1 {
                entries.reverse();
            }
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(list) => {
            let entries: Vec<String> = list.iter().map(|value| shuffled(value, seed / 5)).collect();
            format!("[{}]", entries.join(","))
        }
        scalar => scalar.to_string(),
    }
}
