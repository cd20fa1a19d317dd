//! Rendered templates match the golden files, and every part of them counts.

#[path = "../examples/golden/corpus.rs"]
#[expect(dead_code, reason = "only the example writes")]
mod corpus;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sei_plan::fingerprint::{TemplateHash, canonical_json};
use serde_json::Value;
use sha2::{Digest, Sha256};

use corpus::{INDEX, check, pairs, read_json};

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/golden")
}

#[test]
fn rendered_templates_are_as_pinned() {
    if let Err(stale) = check(&golden_folder()) {
        panic!("{stale}");
    }
}

/// The hash of the stored bytes themselves, computed without our code except the rule: `v1:` and
/// the SHA-256 of the JSON with sorted keys. A change of the canonical form cannot pass unnoticed.
#[test]
fn pinned_hashes_are_those_of_the_pinned_bytes() {
    let index = read_json(&golden_folder().join(INDEX)).unwrap();
    let mut seen = BTreeSet::new();
    for pair in pairs().unwrap() {
        let about = pair.file();
        let stored = read_json(&golden_folder().join(&about)).unwrap();
        let bytes = sorted(&stored);
        assert_eq!(bytes, canonical_json(&stored), "{about}");
        let hash = &index[&pair.node][&pair.platform];
        assert_eq!(*hash, format!("v1:{}", hex(&Sha256::digest(bytes.as_bytes()))), "{about}");
        TemplateHash::parse(hash.as_str().unwrap()).unwrap();
        let inputs = index[&pair.node]["inputsHash"].as_str().unwrap();
        TemplateHash::parse(inputs).unwrap();
        seen.insert(inputs.to_owned());
    }
    assert_eq!(seen.len(), index.as_object().unwrap().len(), "two nodes with the same inputs");
}

#[test]
fn the_corpus_covers_every_mode_on_every_platform() {
    let pairs = pairs().unwrap();
    assert!(pairs.len() >= 40, "{}", pairs.len());
    let covered: BTreeSet<(String, String)> = pairs
        .iter()
        .map(|pair| {
            let role = &pair.template["metadata"]["labels"]["sei.io/role"];
            let role = role.as_str().unwrap().to_owned();
            (role, pair.platform.clone())
        })
        .collect();
    let count = |at: fn(&(String, String)) -> &String| {
        covered.iter().map(at).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(covered.len(), count(|pair| &pair.0) * count(|pair| &pair.1), "{covered:?}");
}

/// Every part of a template counts in its hash: a part that is lost on the way to the cluster, or
/// left out by a later renderer, always shows as drift.
#[test]
fn removing_any_subtree_of_any_golden_template_changes_its_hash() {
    for pair in pairs().unwrap() {
        let stored = read_json(&golden_folder().join(pair.file())).unwrap();
        let whole = hash(&stored);
        let mut rest = stored.clone();
        let paths = paths(&stored);
        assert!(paths.len() > 200, "{}: only {} subtrees", pair.file(), paths.len());
        for path in paths {
            let removed = take(&mut rest, &path);
            assert_ne!(hash(&rest), whole, "{}: {path:?}", pair.file());
            put(&mut rest, &path, removed);
        }
        assert_eq!(rest, stored);
    }
}

/// Without the copy that the public function for any record makes.
fn hash(template: &Value) -> Vec<u8> {
    Sha256::digest(canonical_json(template).as_bytes()).to_vec()
}

/// One step into a value.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    At(usize),
}

/// The place of every key and list element, at every depth.
fn paths(value: &Value) -> Vec<Vec<Step>> {
    fn walk(value: &Value, at: &[Step], found: &mut Vec<Vec<Step>>) {
        let children: Vec<(Step, &Value)> = match value {
            Value::Object(map) => {
                map.iter().map(|(key, value)| (Step::Key(key.clone()), value)).collect()
            }
            Value::Array(list) => {
                list.iter().enumerate().map(|(at, value)| (Step::At(at), value)).collect()
            }
            _ => Vec::new(),
        };
        for (step, child) in children {
            let path = [at, &[step]].concat();
            walk(child, &path, found);
            found.push(path);
        }
    }
    let mut found = Vec::new();
    walk(value, &[], &mut found);
    found
}

fn parent<'a>(root: &'a mut Value, path: &[Step]) -> &'a mut Value {
    path[..path.len() - 1].iter().fold(root, |value, step| match step {
        Step::Key(key) => &mut value[key.as_str()],
        Step::At(at) => &mut value[*at],
    })
}

fn take(root: &mut Value, path: &[Step]) -> Value {
    match (parent(root, path), &path[path.len() - 1]) {
        (Value::Object(map), Step::Key(key)) => map.remove(key).expect("a key that was found"),
        (Value::Array(list), Step::At(at)) => list.remove(*at),
        _ => unreachable!("a path leads to where it was found"),
    }
}

fn put(root: &mut Value, path: &[Step], value: Value) {
    match (parent(root, path), &path[path.len() - 1]) {
        (Value::Object(map), Step::Key(key)) => drop(map.insert(key.clone(), value)),
        (Value::Array(list), Step::At(at)) => list.insert(*at, value),
        _ => unreachable!("a path leads to where it was found"),
    }
}

/// The same JSON on one line, keys sorted by their bytes.
fn sorted(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries = entries.into_iter();
            let entries: Vec<String> = entries
                .map(|(key, value)| format!("{}:{}", Value::from(key.as_str()), sorted(value)))
                .collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(list) => {
            format!("[{}]", list.iter().map(sorted).collect::<Vec<_>>().join(","))
        }
        scalar => scalar.to_string(),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
