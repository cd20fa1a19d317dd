//! Specs of nodes, and the platforms that they are rendered with.

use std::sync::LazyLock;

use sei_api::key::ObjectKey;
use sei_api::node::SeiNodeSpec;
use sei_plan::platform::Platform;
use sei_plan::request::SecretView;
use sei_plan::signing_key;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::render::Platforms;
use crate::server::bound_claim;

/// Images by number: 3 cannot be pulled, 4 crashes.
pub fn image(number: u8) -> String {
    format!("registry.example.net/seid:v{number}")
}

pub const UNPULLABLE: u8 = 3;
pub const CRASHING: u8 = 4;

static PLATFORMS: LazyLock<Platforms> = LazyLock::new(|| {
    let text = include_str!("platform.yaml");
    let changed = text.replace("cosmos-exporter:v2", "cosmos-exporter:v3");
    let all = [text, &changed].map(|text| Platform::parse(text, "platform.yaml"));
    Platforms::new(all.into_iter().map(|platform| platform.expect("it is valid")).collect())
});

/// An empty cluster with both platforms.
pub fn cluster() -> Cluster {
    let mut cluster = Cluster::new(PLATFORMS.clone());
    cluster.faults.unpullable.insert(image(UNPULLABLE));
    cluster.faults.crashing.insert(image(CRASHING));
    cluster
}

/// Kinds of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    Full,
    /// Restores a chain snapshot by a bootstrap Job.
    Bootstrap,
    /// Signs with the key of this name, in a Secret of this name.
    Validator {
        key: &'static str,
        secret: &'static str,
    },
    /// Has a volume that users have made.
    Imported {
        claim: &'static str,
    },
}

/// The spec of a node.
///
/// # Panics
///
/// Never: every mode has a valid spec.
pub fn spec(mode: &Mode, chain: &str) -> SeiNodeSpec {
    let mut spec = json!({ "chainId": chain, "image": image(1) });
    match mode {
        Mode::Full => spec["fullNode"] = json!({}),
        Mode::Bootstrap => {
            let snapshot = json!({ "s3": { "targetHeight": 5 }, "bootstrapImage": image(1) });
            spec["fullNode"] = json!({ "snapshot": snapshot });
        }
        Mode::Validator { secret, .. } => {
            let source = |name: &str| json!({ "secret": { "secretName": name } });
            spec["validator"] = json!({ "signingKey": source(secret), "nodeKey": source(P2P) });
        }
        Mode::Imported { claim } => {
            spec["archive"] = json!({});
            spec["dataVolume"] = json!({ "import": { "pvcName": claim } });
        }
    }
    serde_json::from_value(spec).expect("it is a valid spec")
}

const P2P: &str = "p2p";

/// Creates what a node of this mode needs from its users.
pub fn provide(cluster: &mut Cluster, key: &ObjectKey, mode: &Mode) {
    let at = |name: &str| ObjectKey::new(&key.namespace, name);
    match mode {
        Mode::Full | Mode::Bootstrap => {}
        Mode::Validator { key, secret } => {
            let file = signing_key::made_up(key);
            cluster.secrets.insert(at(secret), secret_with(signing_key::FILE, &file));
            let node_key = json!({ "priv_key": { "type": "t", "value": "v" } });
            cluster.secrets.insert(at(P2P), secret_with("node_key.json", &node_key));
        }
        Mode::Imported { claim } => {
            let uid = format!("imported-{}-{claim}", key.namespace);
            cluster.claims.entry(at(claim)).or_insert_with(|| bound_claim(&uid, None));
        }
    }
}

fn secret_with(file: &str, content: &Value) -> SecretView {
    let data = [(file.to_owned(), content.to_string().into_bytes())].into();
    SecretView { terminating: false, data }
}
