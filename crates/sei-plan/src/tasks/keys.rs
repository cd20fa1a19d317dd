//! The tasks that check key Secrets: their shape, never their cryptography.

use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::PlannedTask;
use sei_api::task::TaskType;
use serde_json::Value;

use super::{Effects, Failed, Next, Waiting, bounded, read, text_param};
use crate::fingerprint::digest_of;
use crate::request::{Read, SecretView};
use crate::seen::{Reading, Seen};

/// File of a signing key in its Secret.
const SIGNING_KEY: &str = "priv_validator_key.json";
/// File of a node key in its Secret.
const NODE_KEY: &str = "node_key.json";

/// A kind of key: the condition that its check sets, with its reasons.
#[derive(Clone, Copy)]
struct KeyKind {
    condition: ConditionType,
    valid: Reason,
    not_ready: Reason,
    invalid: Reason,
}

const SIGNING: KeyKind = KeyKind {
    condition: ConditionType::SigningKeyReady,
    valid: Reason::SigningKeyValidated,
    not_ready: Reason::SigningKeyNotReady,
    invalid: Reason::SigningKeyInvalid,
};
const NODE: KeyKind = KeyKind {
    condition: ConditionType::NodeKeyReady,
    valid: Reason::NodeKeyValidated,
    not_ready: Reason::NodeKeyNotReady,
    invalid: Reason::NodeKeyInvalid,
};
const KEYRING: KeyKind = KeyKind {
    condition: ConditionType::OperatorKeyringReady,
    valid: Reason::OperatorKeyringValidated,
    not_ready: Reason::OperatorKeyringNotReady,
    invalid: Reason::OperatorKeyringInvalid,
};

pub(super) fn step(task_type: TaskType, task: &PlannedTask, seen: &Seen) -> Next {
    match task_type {
        TaskType::ValidateSigningKey => {
            let next = check(SIGNING, task, seen, check_signing_key);
            with_identity(next, text_param(task, "secretName"), seen)
        }
        TaskType::ValidateNodeKey => check(NODE, task, seen, check_node_key),
        _ => check_keyring(task, seen),
    }
}

fn check(
    kind: KeyKind,
    task: &PlannedTask,
    seen: &Seen,
    content: impl Fn(&SecretView) -> Result<(), String>,
) -> Next {
    let name = text_param(task, "secretName");
    match secret(kind, name, seen) {
        Ok(secret) => match content(secret) {
            Ok(()) => valid(kind, name),
            Err(text) => invalid(kind, &format!("Secret {name}: {text}")),
        },
        Err(next) => next,
    }
}

/// The Secret, if it exists and is not being deleted.
fn secret<'a>(kind: KeyKind, name: &str, seen: &'a Seen) -> Result<&'a SecretView, Next> {
    if name.is_empty() {
        return Err(invalid(kind, "the name of the Secret is empty"));
    }
    if !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.')) {
        // A stored plan can be forged; a name never becomes another path.
        return Err(invalid(kind, "the name of the Secret is not valid"));
    }
    match seen.secrets.get(name) {
        Some(Reading::Live(Some(secret))) if secret.terminating => {
            Err(not_ready(kind, seen, &format!("Secret {name} is being deleted")))
        }
        Some(Reading::Live(Some(secret))) => Ok(secret),
        Some(Reading::Live(None)) => {
            Err(not_ready(kind, seen, &format!("Secret {name} not found")))
        }
        _ => Err(read(Read::Secret(name.to_owned()))),
    }
}

fn check_signing_key(secret: &SecretView) -> Result<(), String> {
    let key = json_file(secret, SIGNING_KEY)?;
    require(&key, SIGNING_KEY, &["address"])?;
    for part in ["pub_key", "priv_key"] {
        for field in ["type", "value"] {
            require(&key, SIGNING_KEY, &[part, field])?;
        }
    }
    Ok(())
}

/// Adds the signing identity. A digest, because content of Secrets is never repeated; the address
/// itself is public, but it is not known that this Secret holds one.
fn with_identity(next: Next, name: &str, seen: &Seen) -> Next {
    let Next::Done(mut effects) = next else { return next };
    let secret = seen.secrets.get(name).and_then(Reading::any);
    let key = secret.and_then(|secret| json_file(secret, SIGNING_KEY).ok());
    let address = key.as_ref().and_then(|key| key["address"].as_str());
    effects.signing_identity = address.map(|address| digest_of(&address.to_ascii_uppercase()));
    Next::Done(effects)
}

fn check_node_key(secret: &SecretView) -> Result<(), String> {
    let key = json_file(secret, NODE_KEY)?;
    require(&key, NODE_KEY, &["priv_key", "type"])?;
    require(&key, NODE_KEY, &["priv_key", "value"])
}

fn json_file(secret: &SecretView, name: &str) -> Result<Value, String> {
    let bytes = secret.data.get(name).ok_or_else(|| format!("data key {name} is missing"))?;
    if bytes.is_empty() {
        return Err(format!("data key {name} is empty"));
    }
    // The parser's error may quote the key material: it is not repeated.
    serde_json::from_slice(bytes).map_err(|_| format!("{name} is not valid JSON"))
}

fn require(key: &Value, file: &str, path: &[&str]) -> Result<(), String> {
    let found = path.iter().fold(key, |value, field| &value[*field]);
    match found.as_str() {
        Some(text) if !text.is_empty() => Ok(()),
        _ => Err(format!("{file} is missing {}", path.join("."))),
    }
}

/// The keyring first, then its passphrase.
fn check_keyring(task: &PlannedTask, seen: &Seen) -> Next {
    let name = text_param(task, "secretName");
    let keyring = match secret(KEYRING, name, seen) {
        Ok(keyring) => keyring,
        Err(next) => return next,
    };
    if let Err(text) = check_keyring_files(keyring, text_param(task, "keyName")) {
        return invalid(KEYRING, &format!("Secret {name}: {text}"));
    }
    let passphrase_name = text_param(task, "passphraseSecretName");
    let passphrase = match secret(KEYRING, passphrase_name, seen) {
        Ok(passphrase) => passphrase,
        Err(next) => return next,
    };
    let key = text_param(task, "passphraseSecretKey");
    if key.is_empty() {
        return invalid(KEYRING, "the key of the passphrase Secret is empty");
    }
    match passphrase.data.get(key) {
        None => invalid(KEYRING, &format!("Secret {passphrase_name} has no key {key}")),
        Some(value) if value.is_empty() => {
            invalid(KEYRING, &format!("key {key} of Secret {passphrase_name} is empty"))
        }
        Some(_) => valid(KEYRING, name),
    }
}

fn check_keyring_files(keyring: &SecretView, key_name: &str) -> Result<(), String> {
    let ending =
        |suffix: &'static str| keyring.data.iter().filter(move |(name, _)| name.ends_with(suffix));
    if let Some((name, _)) = ending(".info").find(|(_, content)| content.is_empty()) {
        return Err(format!("entry {name} is empty"));
    }
    if ending(".info").next().is_none() {
        return Err("no *.info entry".to_owned());
    }
    if ending(".address").next().is_none() {
        return Err("no *.address entry".to_owned());
    }
    if !key_name.is_empty() && !keyring.data.contains_key(&format!("{key_name}.info")) {
        return Err(format!("no entry {key_name}.info"));
    }
    Ok(())
}

fn valid(kind: KeyKind, name: &str) -> Next {
    let message = bounded(&format!("Secret {name} has the expected format"));
    Next::Done(Box::new(Effects {
        verdict: Some(Verdict::new(kind.condition, ConditionStatus::True, kind.valid, message)),
        ..Effects::default()
    }))
}

fn not_ready(kind: KeyKind, seen: &Seen, message: &str) -> Next {
    let message = bounded(message);
    Next::Wait(Waiting {
        reason: Some(Reason::SecretMissing),
        again: Some(seen.timing.poll()),
        verdict: Some(Verdict::new(
            kind.condition,
            ConditionStatus::False,
            kind.not_ready,
            message.clone(),
        )),
        message,
    })
}

fn invalid(kind: KeyKind, detail: &str) -> Next {
    let detail = bounded(detail);
    Next::Fail(Failed {
        verdict: Some(Verdict::new(
            kind.condition,
            ConditionStatus::False,
            kind.invalid,
            detail.clone(),
        )),
        detail,
    })
}
