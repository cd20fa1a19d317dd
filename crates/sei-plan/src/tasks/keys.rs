//! The tasks that check key Secrets: their shape, and whom a signing key signs as.

use sei_api::condition::{ConditionStatus, ConditionType, Reason, Verdict};
use sei_api::plan::PlannedTask;
use sei_api::task::TaskType;

use super::{Effects, Failed, Next, Waiting, bounded, read, text_param};
use crate::request::{Read, SecretView};
use crate::seen::{Reading, Seen};
use crate::signing_key::{SigningKey, json_file, require};

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
        TaskType::ValidateSigningKey => check_signing_key(text_param(task, "secretName"), seen),
        TaskType::ValidateNodeKey => check_node_key(text_param(task, "secretName"), seen),
        _ => check_keyring(task, seen),
    }
}

fn check_node_key(name: &str, seen: &Seen) -> Next {
    let content = |secret: &SecretView| {
        let key = json_file(secret, NODE_KEY)?;
        require(&key, NODE_KEY, &["priv_key", "type"])?;
        require(&key, NODE_KEY, &["priv_key", "value"])
    };
    match secret(NODE, name, seen).map(content) {
        Ok(Ok(())) => valid(NODE, name),
        Ok(Err(text)) => malformed(NODE, seen, &format!("Secret {name}: {text}")),
        Err(next) => next,
    }
}

fn check_signing_key(name: &str, seen: &Seen) -> Next {
    let key = match secret(SIGNING, name, seen).map(SigningKey::read) {
        Ok(Ok(key)) => key,
        Ok(Err(text)) => return malformed(SIGNING, seen, &format!("Secret {name}: {text}")),
        Err(next) => return next,
    };
    if let Some(field) = key.disagrees {
        // Not a failure of the plan: the plan resumes once the Secret is corrected.
        let message = format!("Secret {name}: {field} does not belong to its private key");
        return not_ready(SIGNING, SIGNING.invalid, Reason::InvalidSpec, seen, &message);
    }
    let mut next = valid(SIGNING, name);
    if let Next::Done(effects) = &mut next {
        effects.signing_identity = Some(key.identity);
    }
    next
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
            Err(missing(kind, seen, &format!("Secret {name} is being deleted")))
        }
        Some(Reading::Live(Some(secret))) => Ok(secret),
        Some(Reading::Live(None)) => Err(missing(kind, seen, &format!("Secret {name} not found"))),
        _ => Err(read(Read::Secret(name.to_owned()))),
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
        return malformed(KEYRING, seen, &format!("Secret {name}: {text}"));
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
        None => malformed(KEYRING, seen, &format!("Secret {passphrase_name} has no key {key}")),
        Some(value) if value.is_empty() => {
            malformed(KEYRING, seen, &format!("key {key} of Secret {passphrase_name} is empty"))
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

fn missing(kind: KeyKind, seen: &Seen, message: &str) -> Next {
    not_ready(kind, kind.not_ready, Reason::SecretMissing, seen, message)
}

/// The Secret lacks what the node needs of it. The plan waits as for a missing one, and resumes once
/// it is corrected.
fn malformed(kind: KeyKind, seen: &Seen, message: &str) -> Next {
    not_ready(kind, kind.invalid, Reason::SecretMissing, seen, message)
}

fn not_ready(kind: KeyKind, why: Reason, stalls: Reason, seen: &Seen, message: &str) -> Next {
    let message = bounded(message);
    let verdict = Verdict::new(kind.condition, ConditionStatus::False, why, message.clone());
    Next::Wait(Waiting {
        reason: Some(stalls),
        again: Some(seen.timing.poll()),
        verdict: Some(verdict),
        message,
    })
}

/// The condition of a signing key outside of a plan.
pub(crate) fn signing_key_not_ready(message: &str) -> Verdict {
    Verdict::new(SIGNING.condition, ConditionStatus::False, SIGNING.not_ready, bounded(message))
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
