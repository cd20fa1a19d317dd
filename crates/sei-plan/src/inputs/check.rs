//! Whether a spec is valid. Admission refuses most of this already, but objects outlive the rules
//! that admitted them, and some rules cannot be expressed there.

use std::collections::BTreeMap;

use sei_api::node::{
    GenesisCeremony, KeySource, QuantityText, SeiNodeSpec, SnapshotGeneration, SnapshotSource,
    ValidatorSpec,
};
use sei_api::{Mode, SeiNode, names};

use super::{parse_quantity, pod, resource_field};
use crate::quantity::Quantity;
use crate::render::port;

/// Longest label value, label name, and DNS label.
const LABEL_MAX: usize = 63;
/// Longest DNS subdomain: prefix of a label key, name of a Secret.
const SUBDOMAIN_MAX: usize = 253;
const IMAGE_MAX: usize = 512;
/// Values in messages are cut here: people read them.
const SHOWN_MAX: usize = 80;

/// Labels that Kubernetes stamps on the pods of a StatefulSet. One of these in a template would
/// make every pod appear stale, or appear to be another pod.
const FOREIGN_LABELS: [&str; 3] = [
    names::label::POD_REVISION,
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
];

/// What a user has to change. Each names the field, the value, and a valid alternative.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    #[error("spec: set exactly one of fullNode, archive, replayer, validator or seed; {set}")]
    ModeCount { set: String },
    #[error("{field}: {remedy}")]
    Missing { field: String, remedy: String },
    #[error("{field}: `{value}` {rule}")]
    Invalid { field: String, value: String, rule: String },
    #[error("{field}: {remedy}")]
    Exclusive { field: String, remedy: String },
    #[error("{field}: Secret `{secret}` is also named by {sharer}; give each its own Secret")]
    SharedSecret { field: String, sharer: String, secret: String },
    #[error("{field}: {reason}")]
    Quantity { field: String, reason: String },
    #[error(
        "{field}: the request {request} is more than the limit {limit}; lower it or raise the limit"
    )]
    RequestOverLimit { field: String, request: String, limit: String },
}

impl SpecError {
    pub(super) fn of_modes(modes: &[Mode]) -> Self {
        let set = match modes {
            [] => "none is set".to_owned(),
            modes => {
                let names: Vec<&str> = modes.iter().map(|mode| mode.as_str()).collect();
                format!("these are set: {}", names.join(", "))
            }
        };
        Self::ModeCount { set }
    }

    /// The field to change.
    pub fn field(&self) -> &str {
        match self {
            Self::ModeCount { .. } => "spec",
            Self::Missing { field, .. }
            | Self::Invalid { field, .. }
            | Self::Exclusive { field, .. }
            | Self::SharedSecret { field, .. }
            | Self::Quantity { field, .. }
            | Self::RequestOverLimit { field, .. } => field,
        }
    }

    fn missing(field: &str, remedy: &str) -> Self {
        Self::Missing { field: field.to_owned(), remedy: remedy.to_owned() }
    }

    fn exclusive(field: &str, remedy: &str) -> Self {
        Self::Exclusive { field: field.to_owned(), remedy: remedy.to_owned() }
    }

    pub(super) fn invalid(field: &str, value: &str, rule: &str) -> Self {
        let value = shown(value, SHOWN_MAX);
        Self::Invalid { field: field.to_owned(), value, rule: rule.to_owned() }
    }
}

/// A user's text as a message may repeat it: on one line, and cut.
pub(super) fn shown(text: &str, most: usize) -> String {
    text.escape_debug().take(most).collect()
}

/// All mistakes in a node's spec at once, so that fixing one does not just uncover the next. Empty
/// means that a plan may be built.
pub fn check_spec(node: &SeiNode) -> Vec<SpecError> {
    let spec = &node.spec;
    let mut errors = Vec::new();
    check_name(node.metadata.name.as_deref().unwrap_or_default(), &mut errors);
    check_dns_label("spec.chainId", &spec.chain_id, LABEL_MAX, &mut errors);
    check_image("spec.image", &spec.image, &mut errors);
    check_pod_labels(spec.pod_labels.as_ref(), &mut errors);
    check_sidecar(spec, &mut errors);
    pod::check(spec, &mut errors);
    if let Some(claim) = spec.imported_claim() {
        check_dns_label("spec.dataVolume.import.pvcName", claim, SUBDOMAIN_MAX, &mut errors);
    }
    match spec.mode() {
        Some(mode) => check_mode(mode, spec, &mut errors),
        None => errors.push(SpecError::of_modes(&spec.modes())),
    }
    errors
}

fn check_mode(mode: Mode, spec: &SeiNodeSpec, errors: &mut Vec<SpecError>) {
    let field = format!("spec.{mode}");
    if let Some(generation) = spec.snapshot_generation() {
        check_generation(&field, generation, errors);
    }
    if let Some(source) = spec.snapshot() {
        check_bootstrap(&field, source, errors);
    }
    match mode {
        Mode::FullNode | Mode::Archive => {}
        Mode::Replayer => check_replayer(spec, errors),
        Mode::Validator => {
            if let Some(validator) = &spec.validator {
                check_validator(validator, errors);
            }
        }
        Mode::Seed => {
            let key = spec.seed.as_ref().map(|seed| &seed.node_key);
            check_key("spec.seed.nodeKey", key, errors);
        }
    }
}

fn check_generation(mode: &str, generation: &SnapshotGeneration, errors: &mut Vec<SpecError>) {
    let field = format!("{mode}.snapshotGeneration");
    let Some(snapshots) = &generation.tendermint else {
        errors.push(SpecError::missing(&field, "set tendermint, or remove snapshotGeneration"));
        return;
    };
    // While a snapshot is being uploaded the next one is created and the oldest is pruned: if only
    // one is kept, the pruned one is the one being read.
    let least = if snapshots.publish.is_some() { 2 } else { 1 };
    if snapshots.keep_recent < least {
        errors.push(SpecError::invalid(
            &format!("{field}.tendermint.keepRecent"),
            &snapshots.keep_recent.to_string(),
            if least == 2 { "must be at least 2 with publish" } else { "must be at least 1" },
        ));
    }
}

fn check_bootstrap(mode: &str, source: &SnapshotSource, errors: &mut Vec<SpecError>) {
    let Some(image) = source.bootstrap_image.as_deref().filter(|image| !image.is_empty()) else {
        return;
    };
    let field = format!("{mode}.snapshot.bootstrapImage");
    check_image(&field, image, errors);
    if source.s3.as_ref().is_none_or(|s3| s3.target_height <= 0) {
        errors.push(SpecError::missing(
            &field,
            "set snapshot.s3.targetHeight to the height to run to, or remove bootstrapImage",
        ));
    }
}

fn check_replayer(spec: &SeiNodeSpec, errors: &mut Vec<SpecError>) {
    let Some(replayer) = &spec.replayer else { return };
    match &replayer.snapshot.s3 {
        None => errors.push(SpecError::missing(
            "spec.replayer.snapshot",
            "set s3: a replayer starts from a snapshot in the bucket",
        )),
        Some(s3) if s3.target_height <= 0 => errors.push(SpecError::invalid(
            "spec.replayer.snapshot.s3.targetHeight",
            &s3.target_height.to_string(),
            "must be at least 1",
        )),
        Some(_) => {}
    }
    if spec.peers.as_ref().is_none_or(Vec::is_empty) {
        errors.push(SpecError::missing("spec.peers", "a replayer needs at least one peer source"));
    }
    if replayer.result_export.as_ref().is_some_and(|export| export.shadow_result.is_none()) {
        errors.push(SpecError::missing(
            "spec.replayer.resultExport",
            "set shadowResult, or remove resultExport",
        ));
    }
}

fn check_validator(validator: &ValidatorSpec, errors: &mut Vec<SpecError>) {
    if let Some(ceremony) = &validator.genesis_ceremony {
        if validator.signing_key.is_some() {
            errors.push(SpecError::exclusive(
                "spec.validator.signingKey",
                "remove it or genesisCeremony: the ceremony makes a key of its own",
            ));
        }
        check_ceremony(ceremony, errors);
    }
    match (&validator.signing_key, &validator.node_key) {
        (None, None) => {}
        (Some(signing), Some(node)) => {
            check_key("spec.validator.signingKey", Some(signing), errors);
            check_key("spec.validator.nodeKey", Some(node), errors);
        }
        (Some(_), None) => errors.push(SpecError::missing(
            "spec.validator.nodeKey",
            "set it beside signingKey, so that the node keeps one p2p identity",
        )),
        (None, Some(_)) => errors.push(SpecError::missing(
            "spec.validator.signingKey",
            "set it beside nodeKey, or remove nodeKey",
        )),
    }
    check_secrets_apart(validator, errors);
}

fn check_ceremony(ceremony: &GenesisCeremony, errors: &mut Vec<SpecError>) {
    let required = [("chainId", &ceremony.chain_id), ("stakingAmount", &ceremony.staking_amount)];
    for (name, _) in required.iter().filter(|(_, value)| value.trim().is_empty()) {
        let field = format!("spec.validator.genesisCeremony.{name}");
        errors.push(SpecError::missing(&field, "must not be empty"));
    }
}

fn check_key(field: &str, key: Option<&KeySource>, errors: &mut Vec<SpecError>) {
    match key.and_then(|key| key.secret.as_ref()) {
        None => errors.push(SpecError::missing(field, "set secret.secretName")),
        Some(secret) => {
            let field = format!("{field}.secret.secretName");
            check_dns_label(&field, &secret.secret_name, SUBDOMAIN_MAX, errors);
        }
    }
}

/// Four Secrets, four holders: the reader of one of them must not thereby read another.
fn check_secrets_apart(validator: &ValidatorSpec, errors: &mut Vec<SpecError>) {
    fn name(key: Option<&KeySource>) -> Option<&str> {
        key?.secret.as_ref().map(|secret| secret.secret_name.as_str())
    }
    let keyring = validator.operator_keyring.as_ref().and_then(|keyring| keyring.secret.as_ref());
    let passphrase = keyring.map(|keyring| &keyring.passphrase_secret_ref);
    let keyring_field = "spec.validator.operatorKeyring.secret.secretName";
    let passphrase_field = "spec.validator.operatorKeyring.secret.passphraseSecretRef.secretName";
    if let Some(keyring) = keyring {
        check_dns_label(keyring_field, &keyring.secret_name, SUBDOMAIN_MAX, errors);
    }
    if let Some(passphrase) = passphrase {
        check_dns_label(passphrase_field, &passphrase.secret_name, SUBDOMAIN_MAX, errors);
        if passphrase.key.is_empty() {
            let field = "spec.validator.operatorKeyring.secret.passphraseSecretRef.key";
            errors.push(SpecError::missing(field, "name the key that holds the passphrase"));
        }
    }
    let secrets = [
        ("spec.validator.signingKey.secret.secretName", name(validator.signing_key.as_ref())),
        ("spec.validator.nodeKey.secret.secretName", name(validator.node_key.as_ref())),
        (keyring_field, keyring.map(|keyring| keyring.secret_name.as_str())),
        (passphrase_field, passphrase.map(|passphrase| passphrase.secret_name.as_str())),
    ];
    for (i, (field, secret)) in secrets.iter().enumerate() {
        let Some(secret) = secret.filter(|secret| !secret.is_empty()) else { continue };
        for (sharer, _) in secrets[..i].iter().filter(|(_, name)| *name == Some(secret)) {
            errors.push(SpecError::SharedSecret {
                field: (*field).to_owned(),
                sharer: (*sharer).to_owned(),
                secret: shown(secret, SHOWN_MAX),
            });
        }
    }
}

/// The name becomes a Service, a label value and the prefix of the pod's revision label.
fn check_name(name: &str, errors: &mut Vec<SpecError>) {
    let field = "metadata.name";
    if name.len() > names::NODE_NAME_MAX {
        let rule = format!("must have at most {} characters", names::NODE_NAME_MAX);
        errors.push(SpecError::invalid(field, name, &rule));
    }
    if !is_dns_label(name) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        errors.push(SpecError::invalid(
            field,
            name,
            "must start with a-z, end with a-z or 0-9 and hold only a-z, 0-9 and `-`: a Service \
             carries it",
        ));
    }
}

fn check_dns_label(field: &str, value: &str, most: usize, errors: &mut Vec<SpecError>) {
    if value.is_empty() {
        errors.push(SpecError::missing(field, "must not be empty"));
    } else if value.len() > most {
        let rule = format!("must have at most {most} characters");
        errors.push(SpecError::invalid(field, value, &rule));
    } else if !is_dns_label(value) {
        let rule = "must hold only a-z, 0-9 and `-`, and start and end with a-z or 0-9";
        errors.push(SpecError::invalid(field, value, rule));
    }
}

fn check_image(field: &str, image: &str, errors: &mut Vec<SpecError>) {
    if image.trim().is_empty() {
        errors.push(SpecError::missing(field, "name an image"));
    } else if image.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let rule = "must not contain spaces or control characters";
        errors.push(SpecError::invalid(field, image, rule));
    } else if image.len() > IMAGE_MAX {
        let rule = format!("must have at most {IMAGE_MAX} characters");
        errors.push(SpecError::invalid(field, image, &rule));
    }
}

fn check_pod_labels(labels: Option<&BTreeMap<String, String>>, errors: &mut Vec<SpecError>) {
    for (key, value) in labels.into_iter().flatten() {
        let field = "spec.podLabels";
        if !is_label_key(key) {
            let rule = "is not a label key; write name or prefix/name, with a DNS name as prefix";
            errors.push(SpecError::invalid(field, key, rule));
            continue;
        }
        if FOREIGN_LABELS.contains(&key.as_str()) {
            errors.push(SpecError::invalid(field, key, "is set by Kubernetes; remove it"));
        }
        if key == names::label::COMPONENT && value == names::label::COMPONENT_BOOTSTRAP {
            let rule = "marks the pods of bootstrap Jobs; choose another value";
            errors.push(SpecError::invalid(&format!("{field}.{key}"), value, rule));
        }
        if !is_label_value(value) {
            let rule = "is not a label value; use at most 63 of a-z, A-Z, 0-9, `-`, `_` and `.`, \
                        starting and ending with a letter or digit";
            errors.push(SpecError::invalid(&format!("{field}.{key}"), value, rule));
        }
    }
}

fn check_sidecar(spec: &SeiNodeSpec, errors: &mut Vec<SpecError>) {
    let Some(sidecar) = &spec.sidecar else { return };
    if let Some(image) = spec.sidecar_image() {
        check_image("spec.sidecar.image", image, errors);
    }
    if !(0..=65535).contains(&sidecar.port) {
        let rule = "must be between 1 and 65535, or 0 for the default";
        errors.push(SpecError::invalid("spec.sidecar.port", &sidecar.port.to_string(), rule));
    } else if port::TAKEN.contains(&sidecar.port) {
        let rule = "is used by another container of the pod; choose a free port";
        errors.push(SpecError::invalid("spec.sidecar.port", &sidecar.port.to_string(), rule));
    }
    let Some(resources) = &sidecar.resources else { return };
    let (limits, requests) = (resources.limits.as_ref(), resources.requests.as_ref());
    check_resources("spec.sidecar.resources", limits, requests, errors);
}

pub(super) fn check_resources(
    field: &str,
    limits: Option<&BTreeMap<String, QuantityText>>,
    requests: Option<&BTreeMap<String, QuantityText>>,
    errors: &mut Vec<SpecError>,
) {
    let limits = parsed(&format!("{field}.limits"), limits, errors);
    for (name, request) in parsed(&format!("{field}.requests"), requests, errors) {
        if let Some(limit) = limits.get(&name).filter(|limit| request > **limit) {
            errors.push(SpecError::RequestOverLimit {
                field: format!("{field}.requests.{name}"),
                request: request.canonical(),
                limit: limit.canonical(),
            });
        }
    }
}

fn parsed(
    list: &str,
    quantities: Option<&BTreeMap<String, QuantityText>>,
    errors: &mut Vec<SpecError>,
) -> BTreeMap<String, Quantity> {
    let mut parsed = BTreeMap::new();
    for (name, text) in quantities.into_iter().flatten() {
        if !is_label_key(name) {
            let rule = "is not the name of a resource; write cpu, memory or domain/name";
            errors.push(SpecError::invalid(list, name, rule));
            continue;
        }
        let field = resource_field(list, name);
        match parse_quantity(&field, text) {
            Ok(quantity) if quantity.is_negative() => {
                errors.push(SpecError::invalid(&field, &text.to_string(), "must not be negative"));
            }
            Ok(quantity) => {
                parsed.insert(name.clone(), quantity);
            }
            Err(error) => errors.push(error),
        }
    }
    parsed
}

pub(super) fn is_dns_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    edge(text.chars().next()) && edge(text.chars().next_back()) && text.chars().all(inner)
}

fn is_label_name(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    text.len() <= LABEL_MAX
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(inner)
}

pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_label_name(text)
}

pub(super) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        None => is_label_name(text),
        Some((prefix, name)) => {
            prefix.len() <= SUBDOMAIN_MAX
                && prefix.split('.').all(is_dns_label)
                && is_label_name(name)
        }
    }
}
