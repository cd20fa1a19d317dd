//! The manifests under `testdata`, for the tests of every module.

use sei_api::SeiNode;
use serde_json::Value;

use crate::platform::Platform;

macro_rules! nodes {
    ($($name:literal),* $(,)?) => {
        /// Every node manifest.
        pub(crate) const NODES: &[&str] = &[$($name),*];

        fn text(name: &str) -> &'static str {
            match name {
                $($name => include_str!(concat!("../testdata/nodes/", $name, ".yaml")),)*
                other => panic!("no manifest {other}"),
            }
        }
    };
}

nodes!(
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

pub(crate) const PLATFORMS: [&str; 3] = ["example", "minimal", "tuned"];

/// A manifest as the API server would hand it out.
pub(crate) fn node(name: &str) -> SeiNode {
    let mut node: SeiNode = serde_saphyr::from_str(text(name)).unwrap();
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
        "tuned" => include_str!("../testdata/platform/tuned.yaml"),
        other => panic!("no platform {other}"),
    };
    Platform::parse(text, name).unwrap()
}

fn drop_nulls(json: &mut Value) {
    if let Value::Object(map) = json {
        map.retain(|_, value| !value.is_null());
        map.values_mut().for_each(drop_nulls);
    }
}
