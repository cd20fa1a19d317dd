//! Whom a node signs as: the validator that the private key in its Secret belongs to.
//!
//! The chain reads nothing else of the file: `address` and `pub_key` are texts that anybody can
//! edit, and the process derives both from the private key again.

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::fingerprint::digest_of;
use crate::request::SecretView;

/// File of a signing key in its Secret.
pub const FILE: &str = "priv_validator_key.json";

const PRIVATE: &str = "tendermint/PrivKeyEd25519";
const PUBLIC: &str = "tendermint/PubKeyEd25519";

/// Length of an ed25519 key as Tendermint stores it: 32 bytes of seed, then the public half.
const PRIVATE_BYTES: usize = 64;
/// Length of a validator's address.
const ADDRESS_BYTES: usize = 20;

/// A signing key that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningKey {
    /// Digest of the validator's address. The address itself is public, but content of Secrets is
    /// never repeated.
    pub identity: String,
    /// The field of the file that belongs to another key.
    pub disagrees: Option<&'static str>,
}

impl SigningKey {
    /// Reads the key in a Secret. The error names the field and repeats no content.
    pub fn read(secret: &SecretView) -> Result<Self, String> {
        let key = json_file(secret, FILE)?;
        require(&key, FILE, &["address"])?;
        for part in ["pub_key", "priv_key"] {
            for field in ["type", "value"] {
                require(&key, FILE, &[part, field])?;
            }
        }
        let private = decode(&key["priv_key"], PRIVATE).filter(|key| key.len() == PRIVATE_BYTES);
        let Some(private) = private else {
            return Err(format!(
                "priv_key in {FILE} is not a Tendermint key: {PRIVATE_BYTES} bytes of {PRIVATE}"
            ));
        };
        let public = &private[PRIVATE_BYTES / 2..];
        let address = address(public);
        let disagrees = if !text(&key["address"]).eq_ignore_ascii_case(&address) {
            Some("address")
        } else if decode(&key["pub_key"], PUBLIC).as_deref() != Some(public) {
            Some("pub_key")
        } else {
            None
        };
        Ok(Self { identity: digest_of(&address), disagrees })
    }
}

/// The file of a made-up key, the same for the same name: for sandboxes and tests.
pub fn made_up(name: &str) -> Value {
    let seed = Sha256::digest(format!("seed of {name}"));
    let public = Sha256::digest(name);
    let private = [seed, public].concat();
    json!({
        "address": address(&public),
        "pub_key": { "type": PUBLIC, "value": ByteString(public.to_vec()) },
        "priv_key": { "type": PRIVATE, "value": ByteString(private) },
    })
}

/// The validator's address in the form of the file.
fn address(public: &[u8]) -> String {
    let digest = format!("{:X}", Sha256::digest(public));
    digest[..2 * ADDRESS_BYTES].to_owned()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The bytes of a key of this type.
fn decode(key: &Value, kind: &str) -> Option<Vec<u8>> {
    let bytes = serde_json::from_value::<ByteString>(key["value"].clone()).ok()?;
    (key["type"] == kind).then_some(bytes.0)
}

/// A JSON file in a Secret.
pub(crate) fn json_file(secret: &SecretView, name: &str) -> Result<Value, String> {
    let bytes = secret.data.get(name).ok_or_else(|| format!("data key {name} is missing"))?;
    if bytes.is_empty() {
        return Err(format!("data key {name} is empty"));
    }
    // The parser's error may quote the key material: it is not repeated.
    serde_json::from_slice(bytes).map_err(|_| format!("{name} is not valid JSON"))
}

/// Checks that a field of a file is a text and not empty.
pub(crate) fn require(key: &Value, file: &str, path: &[&str]) -> Result<(), String> {
    let found = path.iter().fold(key, |value, field| &value[*field]);
    match found.as_str() {
        Some(text) if !text.is_empty() => Ok(()),
        _ => Err(format!("{file} is missing {}", path.join("."))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Value) -> Result<SigningKey, String> {
        let data = [(FILE.to_owned(), file.to_string().into_bytes())].into();
        SigningKey::read(&SecretView { terminating: false, data })
    }

    /// The key of RFC 8032, test 1. The address was computed by another implementation.
    fn real() -> Value {
        json!({
            "address": "21FE31DFA154A261626BF854046FD2271B7BED4B",
            "pub_key": { "type": PUBLIC, "value": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=" },
            "priv_key": { "type": PRIVATE, "value":
                "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==" },
        })
    }

    #[test]
    fn the_identity_is_that_of_the_private_key() {
        let mut file = real();
        let key = read(&file).unwrap();
        assert_eq!(key.disagrees, None);
        assert_eq!(key.identity, digest_of(&"21FE31DFA154A261626BF854046FD2271B7BED4B"));
        file["address"] = json!("21fe31dfa154a261626bf854046fd2271b7bed4b");
        assert_eq!(read(&file), Ok(key.clone()), "the case of the address is free");
        file["address"] = made_up("a")["address"].clone();
        let edited = read(&file).unwrap();
        assert_eq!((edited.identity, edited.disagrees), (key.identity.clone(), Some("address")));
        let mut file = made_up("a");
        file["pub_key"]["value"] = made_up("b")["pub_key"]["value"].clone();
        let edited = read(&file).unwrap();
        assert_eq!(edited.disagrees, Some("pub_key"));
        assert_eq!(edited.identity, read(&made_up("a")).unwrap().identity);
        assert_ne!(edited.identity, read(&made_up("b")).unwrap().identity);
    }

    #[test]
    fn a_seed_alone_or_another_kind_of_key_is_not_a_tendermint_key() {
        for change in [
            json!({ "type": PRIVATE, "value": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=" }),
            json!({ "type": "tendermint/PrivKeySecp256k1", "value": real()["priv_key"]["value"] }),
            json!({ "type": PRIVATE, "value": "not base64!" }),
        ] {
            let mut file = made_up("a");
            file["priv_key"] = change;
            let error = read(&file).unwrap_err();
            assert!(error.contains("priv_key") && error.contains("Tendermint"), "{error}");
        }
    }
}
