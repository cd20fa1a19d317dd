//! The golden corpus: what manifests render to on platforms, pinned byte for byte.
//!
//! `hashes.json` holds the digest of each node's inputs and the fingerprint of its template on each
//! platform; beside it is one file per pair with the template itself, so that a diff of the
//! fingerprints can be understood. Every manifest of `testdata/nodes` is rendered on every
//! platform, those of `testdata/edges` on one, because they cover the node and not the platform.
//!
//! Shared by the example that writes the files and by the test that compares them.

#![expect(clippy::disallowed_methods, reason = "this is not a decision: it reads test data")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use sei_api::SeiNode;
use sei_plan::desired::render_desired;
use sei_plan::diff::{cut_changes, diff};
use sei_plan::fingerprint::canonical_json;
use sei_plan::platform::Platform;
use serde_json::{Map, Value};

/// What a reviewer must know before accepting a changed render.
const STALE: &str = "rendered output has changed; that restarts pods of running fleets. If it is \
                     intended, run `cargo xtask codegen` and review the diff";

/// The stored hashes: by node, then `inputsHash` and the names of platforms.
pub(crate) const INDEX: &str = "hashes.json";

/// One manifest on one platform.
pub(crate) struct Pair {
    pub(crate) node: String,
    pub(crate) platform: String,
    pub(crate) hash: String,
    pub(crate) inputs_hash: String,
    /// The template in canonical form.
    pub(crate) template: Value,
}

impl Pair {
    pub(crate) fn file(&self) -> String {
        format!("{}.{}.json", self.node, self.platform)
    }
}

fn testdata() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

/// Every pair as it is rendered now, in a fixed order.
pub(crate) fn pairs() -> Result<Vec<Pair>, String> {
    let platforms = manifests("platform")?
        .into_iter()
        .map(|(name, text)| {
            let platform = Platform::parse(&text, &name).map_err(|error| error.to_string())?;
            Ok((name, platform))
        })
        .collect::<Result<Vec<_>, String>>()?;
    let mut pairs = Vec::new();
    for (node, text) in manifests("nodes")? {
        for (name, platform) in &platforms {
            pairs.push(pair(&node, &text, name, platform)?);
        }
    }
    for (node, text) in manifests("edges")? {
        let (name, platform) = &platforms[0];
        pairs.push(pair(&node, &text, name, platform)?);
    }
    Ok(pairs)
}

fn pair(node: &str, text: &str, on: &str, platform: &Platform) -> Result<Pair, String> {
    let describe = |error: &dyn std::fmt::Display| format!("{node} on {on}: {error}");
    let mut object: SeiNode = serde_saphyr::from_str(text).map_err(|error| describe(&error))?;
    object.metadata.uid = Some(format!("uid-of-{node}"));
    let desired = render_desired(&object, platform, &[], &[]).map_err(|error| describe(&error))?;
    let template = serde_json::to_value(desired.statefulset.unpack().spec.template)
        .map_err(|error| describe(&error))?;
    let template =
        serde_json::from_str(&canonical_json(&template)).map_err(|error| describe(&error))?;
    Ok(Pair {
        node: node.to_owned(),
        platform: on.to_owned(),
        hash: desired.hash,
        inputs_hash: desired.inputs_hash,
        template,
    })
}

/// The YAML files of a folder by name, sorted.
fn manifests(folder: &str) -> Result<BTreeMap<String, String>, String> {
    let folder = testdata().join(folder);
    let describe = |error| format!("failed to read {}: {error}", folder.display());
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(describe)? {
        let path = entry.map_err(describe)?.path();
        let stem = path.file_stem().and_then(|stem| stem.to_str());
        if let Some(stem) = stem.filter(|_| path.extension().is_some_and(|end| end == "yaml")) {
            texts.insert(stem.to_owned(), fs::read_to_string(&path).map_err(describe)?);
        }
    }
    Ok(texts)
}

/// The expected files of the folder: names and texts.
pub(crate) fn files(pairs: &[Pair]) -> BTreeMap<String, String> {
    let mut files: BTreeMap<String, String> =
        pairs.iter().map(|pair| (pair.file(), pretty(&pair.template))).collect();
    let mut index: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    for pair in pairs {
        let node = index.entry(&pair.node).or_default();
        node.insert("inputsHash".to_owned(), pair.inputs_hash.clone().into());
        node.insert(pair.platform.clone(), pair.hash.clone().into());
    }
    let index: Map<String, Value> =
        index.into_iter().map(|(node, hashes)| (node.to_owned(), hashes.into())).collect();
    files.insert(INDEX.to_owned(), pretty(&Value::from(index)));
    files
}

pub(crate) fn read_json(path: &Path) -> Result<Value, String> {
    let describe = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(path).map_err(|error| describe(&error))?;
    serde_json::from_str(&text).map_err(|error| describe(&error))
}

/// Writes what differs and removes what is no longer rendered; returns a line per change.
pub(crate) fn write(folder: &Path) -> Result<Vec<String>, String> {
    let describe = |error| format!("failed to write {}: {error}", folder.display());
    let files = files(&pairs()?);
    fs::create_dir_all(folder).map_err(describe)?;
    let mut done = Vec::new();
    for name in present(folder)?.iter().filter(|name| !files.contains_key(*name)) {
        fs::remove_file(folder.join(name)).map_err(describe)?;
        done.push(format!("removed    {name}"));
    }
    for (name, text) in files {
        let path = folder.join(&name);
        if !fs::read_to_string(&path).is_ok_and(|present| present == text) {
            fs::write(&path, text).map_err(describe)?;
            done.push(format!("written    {name}"));
        }
    }
    Ok(done)
}

/// Fails with every changed field and with what the change means.
pub(crate) fn check(folder: &Path) -> Result<(), String> {
    let pairs = pairs()?;
    let mut desired = files(&pairs);
    let mut lines = Vec::new();
    for pair in &pairs {
        let name = pair.file();
        let text = desired.remove(&name).unwrap_or_default();
        lines.extend(difference(&folder.join(&name), &text, pair));
    }
    let index = desired.remove(INDEX).unwrap_or_default();
    if !fs::read_to_string(folder.join(INDEX)).is_ok_and(|present| present == index) {
        lines.push(format!("{INDEX}: the hashes differ"));
    }
    let known: BTreeSet<String> = files(&pairs).into_keys().collect();
    let present = present(folder)?;
    lines.extend(present.difference(&known).map(|name| format!("{name}: nothing renders to it")));
    if lines.is_empty() { Ok(()) } else { Err(format!("{STALE}:\n  {}", lines.join("\n  "))) }
}

fn difference(path: &Path, desired: &str, pair: &Pair) -> Vec<String> {
    let about = format!("{} on {}", pair.node, pair.platform);
    if fs::read_to_string(path).is_ok_and(|present| present == desired) {
        return Vec::new();
    }
    let stored = match read_json(path) {
        Ok(stored) => stored,
        Err(error) => return vec![format!("{about}: {error}")],
    };
    let (changes, more) = cut_changes(diff(&stored, &pair.template));
    let side = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut lines: Vec<String> = changes
        .into_iter()
        .map(|change| {
            format!("{about}: {}: {} -> {}", change.path, side(change.from), side(change.to))
        })
        .collect();
    match more {
        0 if lines.is_empty() => lines.push(format!("{about}: the file is not as it was written")),
        0 => {}
        more => lines.push(format!("{about}: {more} more")),
    }
    lines
}

fn present(folder: &Path) -> Result<BTreeSet<String>, String> {
    let describe = |error| format!("failed to read {}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(describe)?;
    entries.map(|entry| Ok(entry.map_err(describe)?.file_name().to_string_lossy().into())).collect()
}

/// A list or map that fits this width is written on one line.
const WIDTH: usize = 100;

/// JSON for people who review diffs: what fits a line is written on one, as in a manifest.
fn pretty(value: &Value) -> String {
    let mut out = String::new();
    write_pretty(value, 0, 0, &mut out);
    out.push('\n');
    out
}

fn write_pretty(value: &Value, indent: usize, used: usize, out: &mut String) {
    let flat = value.to_string();
    let (open, close, items): (_, _, Vec<(String, &Value)>) = match value {
        Value::Object(map) if indent == 0 || indent + used + flat.len() > WIDTH => (
            '{',
            '}',
            map.iter()
                .map(|(key, value)| (format!("{}: ", Value::from(key.as_str())), value))
                .collect(),
        ),
        Value::Array(list) if indent + used + flat.len() > WIDTH => {
            ('[', ']', list.iter().map(|value| (String::new(), value)).collect())
        }
        _ => return out.push_str(&flat),
    };
    out.push(open);
    let last = items.len().saturating_sub(1);
    for (at, (key, value)) in items.into_iter().enumerate() {
        out.push('\n');
        out.push_str(&" ".repeat(indent + 2));
        out.push_str(&key);
        write_pretty(value, indent + 2, key.len(), out);
        if at < last {
            out.push(',');
        }
    }
    out.push('\n');
    out.push_str(&" ".repeat(indent));
    out.push(close);
}
