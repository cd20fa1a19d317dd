//! Fingerprints: canonical JSON and its hash.
//!
//! A fingerprint shows whether two renders are the same, across processes, library upgrades and
//! years, because it is stored in status and compared after the next operator upgrade. So its bytes
//! are defined here and nowhere else: keys sorted, nulls dropped **and nothing else**
//! (`namespaceSelector: {}` means every namespace, an absent one means none), quantities in
//! canonical form, the order of lists kept.

use std::fmt::{self, Write};

use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::place::Place;

#[cfg(test)]
mod tests;

/// The canonical text of a JSON value. Equal texts mean equal templates.
///
/// # Panics
///
/// Never: JSON is UTF-8.
pub fn canonical_json(value: &Value) -> String {
    let mut out = Vec::new();
    write_canonical(value, Place::default(), &mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

/// A way to hash a template.
///
/// A value and not an enum, so that a test can define a second algorithm and show that a change of
/// algorithm restamps stored hashes and never rolls a pod.
#[derive(Debug, Clone, Copy)]
pub struct Algorithm {
    name: &'static str,
    canonical: fn(&Value) -> String,
}

impl Algorithm {
    /// SHA-256 of [`canonical_json`].
    pub const V1: Self = Self { name: "v1", canonical: canonical_json };

    /// The algorithm that new hashes are stamped with.
    pub const CURRENT: Self = Self::V1;

    /// An algorithm with another canonical form; `name` is `v` and a number.
    ///
    /// # Panics
    /// When `name` has another form: its hashes could not be parsed again.
    pub const fn new(name: &'static str, canonical: fn(&Value) -> String) -> Self {
        assert!(is_algorithm_name(name.as_bytes()), "an algorithm is named `v` and a number");
        Self { name, canonical }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    fn hash(&self, value: &Value) -> String {
        let digest = Sha256::digest((self.canonical)(value).as_bytes());
        let mut text = format!("{}:", self.name);
        for byte in digest {
            write!(text, "{byte:02x}").expect("writing to a String cannot fail");
        }
        text
    }
}

/// The fingerprint of a pod template: `v1:` and 64 hex digits.
///
/// Two hashes may be compared only when their [`algorithm`](Self::algorithm) is the same: otherwise
/// the comparison has no meaning, and the older one is restamped.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TemplateHash(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a template hash; it is `v1:` and 64 lower-case hex digits")]
pub struct TemplateHashError {
    value: String,
}

impl TemplateHash {
    /// Parses a stored hash. Hashes of algorithms that this build does not know are accepted: after
    /// a downgrade they are still stored, and must be restamped, not refused.
    pub fn parse(text: &str) -> Result<Self, TemplateHashError> {
        // No algorithm will need more than 512 bits; anything longer is not a hash.
        const MAX_DIGITS: usize = 128;
        let refused = || TemplateHashError { value: text.chars().take(80).collect() };
        let (name, digits) = text.split_once(':').ok_or_else(refused)?;
        let is_length_right = match name {
            "v1" => digits.len() == 64,
            _ => (1..=MAX_DIGITS).contains(&digits.len()),
        };
        let is_hex = digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if !is_algorithm_name(name.as_bytes()) || !is_length_right || !is_hex {
            return Err(refused());
        }
        Ok(Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn algorithm(&self) -> &str {
        self.0.split_once(':').map_or("", |(name, _)| name)
    }

    /// Whether this hash can be compared with a hash that `algorithm` computes now.
    pub fn is_of(&self, algorithm: &Algorithm) -> bool {
        self.algorithm() == algorithm.name
    }
}

impl fmt::Display for TemplateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for TemplateHash {
    type Error = TemplateHashError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text)
    }
}

impl From<TemplateHash> for String {
    fn from(hash: TemplateHash) -> Self {
        hash.0
    }
}

/// The fingerprint of a rendered template. Never pass one that was read from the cluster: it holds
/// the server's defaults, and they change with its version.
pub fn fingerprint(template: &PodTemplateSpec) -> TemplateHash {
    fingerprint_with(Algorithm::CURRENT, template)
}

pub fn fingerprint_with(algorithm: Algorithm, template: &PodTemplateSpec) -> TemplateHash {
    TemplateHash(algorithm.hash(&to_json(template)))
}

/// The digest of any other record, in the same form, and always by the first algorithm: such
/// digests are compared with stored ones and are never restamped. A record must not hold floats:
/// JSON readers do not preserve every float bit for bit.
///
/// # Panics
/// When the record cannot be written as JSON (a map whose keys are not strings): a mistake in the
/// type, which its first test shows.
pub fn digest_of<T: Serialize>(record: &T) -> String {
    Algorithm::V1.hash(&to_json(record))
}

/// The first 8 bytes of a SHA-256 as 16 hex digits, for values that are only compared with each other.
pub fn short_digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a String cannot fail");
        hex
    })
}

fn to_json<T: Serialize>(record: &T) -> Value {
    serde_json::to_value(record).expect("our records have string keys and plain values")
}

const fn is_algorithm_name(name: &[u8]) -> bool {
    // `v0` and `v01` are refused, so that one algorithm has one name.
    if name.len() < 2 || name.len() > 4 || name[0] != b'v' || name[1] == b'0' {
        return false;
    }
    let mut position = 1;
    while position < name.len() {
        if !name[position].is_ascii_digit() {
            return false;
        }
        position += 1;
    }
    true
}

fn write_canonical(value: &Value, place: Place<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            // Sorted here and not left to serde_json's map: any crate of the build may switch that
            // map to insertion order by a feature.
            let mut entries: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push(b'{');
            for (position, (key, value)) in entries.into_iter().enumerate() {
                separate(position, out);
                write_json(key, out);
                out.push(b':');
                write_canonical(value, place.under(key), out);
            }
            out.push(b'}');
        }
        Value::Array(list) => {
            out.push(b'[');
            for (position, value) in list.iter().filter(|value| !value.is_null()).enumerate() {
                separate(position, out);
                write_canonical(value, place.element(), out);
            }
            out.push(b']');
        }
        scalar => match place.quantity(scalar) {
            Some(quantity) => write_json(&quantity.canonical(), out),
            None => write_json(scalar, out),
        },
    }
}

fn separate(position: usize, out: &mut Vec<u8>) {
    if position > 0 {
        out.push(b',');
    }
}

fn write_json<T: Serialize + ?Sized>(value: &T, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("a scalar can be written to memory");
}
