use sei_api::task::TaskType;
use serde_json::{Value, json};

use crate::request::{Outcome, SecretView};
use crate::seen::Reading;
use crate::tasks::fixture::{World, assert_transcript};

/// Files of a Secret.
type Files<'a> = &'a [(&'a str, &'a str)];

/// A signing key as the chain writes it: the key of RFC 8032, test 1.
const SIGNING_KEY: &str = r#"{
    "address": "21FE31DFA154A261626BF854046FD2271B7BED4B",
    "pub_key": {
        "type": "tendermint/PubKeyEd25519",
        "value": "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    },
    "priv_key": {
        "type": "tendermint/PrivKeyEd25519",
        "value": "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg=="
    }
}"#;
/// A node key as the chain writes it.
const NODE_KEY: &str = r#"{
    "id": "0123456789abcdef0123456789abcdef01234567",
    "priv_key": {"type": "tendermint/PrivKeyEd25519", "value": "cHJpdmF0ZQ=="}
}"#;

const KEYRING: Files = &[("node_admin.info", "sealed"), ("1a2b.address", "sealed")];
const PASSPHRASE: Files = &[("passphrase", "open sesame")];

fn secret(files: Files) -> SecretView {
    let file = |(name, content): &(&str, &str)| ((*name).to_owned(), content.as_bytes().to_vec());
    SecretView { terminating: false, data: files.iter().map(file).collect() }
}

fn key_world(task: TaskType) -> World {
    World::only(task, json!({ "secretName": "key", "namespace": "d" }))
}

fn keyring_world(change: impl FnOnce(&mut Value)) -> World {
    let mut params = json!({
        "secretName": "keyring", "keyName": "node_admin", "namespace": "d",
        "passphraseSecretName": "passphrase-secret", "passphraseSecretKey": "passphrase",
    });
    change(&mut params);
    World::only(TaskType::ValidateOperatorKeyring, params)
}

fn put(world: &mut World, name: &str, found: Option<SecretView>) {
    world.seen.secrets.insert(name.to_owned(), Reading::Live(found));
}

#[track_caller]
fn check_key(task: TaskType, files: Files, expected: &str) {
    let mut world = key_world(task);
    put(&mut world, "key", Some(secret(files)));
    world.check(&format!("{files:?}"), expected);
}

#[track_caller]
fn check_keyring(keyring: Option<SecretView>, passphrase: Option<SecretView>, expected: &str) {
    let mut world = keyring_world(|_| {});
    put(&mut world, "keyring", keyring);
    put(&mut world, "passphrase-secret", passphrase);
    world.check(expected, expected);
}

/// The key without the value at this pointer.
fn emptied(key: &str, pointer: &str) -> String {
    let mut key: Value = serde_json::from_str(key).unwrap();
    *key.pointer_mut(pointer).unwrap() = json!("");
    key.to_string()
}

// K1, K10
#[test]
fn a_signing_key_of_the_chain_is_valid() {
    check_key(
        TaskType::ValidateSigningKey,
        &[("priv_validator_key.json", SIGNING_KEY)],
        "done [SigningKeyReady=True/SigningKeyValidated]",
    );
}

// K2, K3, K11
#[test]
fn a_signing_key_is_waited_for() {
    let mut world = key_world(TaskType::ValidateSigningKey);
    let waits =
        "wait SecretMissing again 5s [SigningKeyReady=False/SigningKeyNotReady]: Secret key";
    let lines = world.transcript([Outcome::Secret(None)]);
    assert_transcript(&lines, &["read Secret(\"key\")", &format!("{waits} not found")]);

    let found = secret(&[("priv_validator_key.json", SIGNING_KEY)]);
    put(&mut world, "key", Some(SecretView { terminating: true, ..found.clone() }));
    world.check("terminating", &format!("{waits} is being deleted"));

    world.seen.secrets.clear();
    let lines = world.transcript([Outcome::Secret(Some(found.clone()))]);
    assert_transcript(&lines, &["read Secret(\"key\")", "done …"]);

    world.seen.secrets.insert("key".to_owned(), Reading::Cached(Some(found)));
    world.check("a cache decides nothing", "read Secret(\"key\")");
}

// K4, K5, K6, K7, K8
#[test]
fn a_signing_key_of_the_wrong_shape_is_waited_for() {
    let file = "priv_validator_key.json";
    let mut cases = vec![
        (None, format!("data key {file} is missing")),
        (Some(String::new()), format!("data key {file} is empty")),
        (Some("{".to_owned()), format!("{file} is not valid JSON")),
        (Some("\u{0}".to_owned()), format!("{file} is not valid JSON")),
        (Some("[]".to_owned()), format!("{file} is missing address")),
        (Some("\"text\"".to_owned()), format!("{file} is missing address")),
        (Some(r#"{"address": 5}"#.to_owned()), format!("{file} is missing address")),
    ];
    for (pointer, field) in [
        ("/address", "address"),
        ("/pub_key/type", "pub_key.type"),
        ("/pub_key/value", "pub_key.value"),
        ("/priv_key/type", "priv_key.type"),
        ("/priv_key/value", "priv_key.value"),
    ] {
        cases.push((Some(emptied(SIGNING_KEY, pointer)), format!("{file} is missing {field}")));
    }
    for (content, text) in cases {
        let files: Vec<_> = content.iter().map(|content| (file, content.as_str())).collect();
        check_key(
            TaskType::ValidateSigningKey,
            &files,
            &format!(
                "wait SecretMissing again 5s [SigningKeyReady=False/SigningKeyInvalid]: Secret key: {text}"
            ),
        );
    }
}

#[test]
fn a_signing_key_with_the_text_of_another_one_is_waited_for() {
    let waits = "wait InvalidSpec again 5s [SigningKeyReady=False/SigningKeyInvalid]: Secret key";
    for (from, to, field) in
        [("21FE31DF", "00000000", "address"), ("\"11qYAYKx", "\"AAAAAAAA", "pub_key")]
    {
        check_key(
            TaskType::ValidateSigningKey,
            &[("priv_validator_key.json", &SIGNING_KEY.replace(from, to))],
            &format!("{waits}: {field} does not belong to its private key"),
        );
    }
}

// K9, K23
#[test]
fn an_empty_name_of_a_secret_fails_the_plan() {
    for params in [json!({}), json!({ "secretName": "" }), json!({ "secretName": 5 }), json!(null)]
    {
        let text = "fail …Invalid]: the name of the Secret is empty";
        for task in [TaskType::ValidateSigningKey, TaskType::ValidateNodeKey] {
            World::only(task, params.clone()).check(&params.to_string(), text);
        }
        World::only(TaskType::ValidateOperatorKeyring, params.clone()).check("keyring", text);
    }
    for (field, text) in [
        ("passphraseSecretName", "the name of the Secret is empty"),
        ("passphraseSecretKey", "the key of the passphrase Secret is empty"),
    ] {
        let mut world = keyring_world(|params| params[field] = json!(""));
        put(&mut world, "keyring", Some(secret(KEYRING)));
        put(&mut world, "passphrase-secret", Some(secret(PASSPHRASE)));
        let expected = format!("fail [OperatorKeyringReady=False/OperatorKeyringInvalid]: {text}");
        world.check(field, &expected);
    }
}

// K12, K13
#[test]
fn a_node_key_of_the_chain_is_valid() {
    check_key(
        TaskType::ValidateNodeKey,
        &[("node_key.json", NODE_KEY)],
        "done [NodeKeyReady=True/NodeKeyValidated]",
    );
}

// K14, K18
#[test]
fn a_node_key_is_waited_for() {
    let mut world = key_world(TaskType::ValidateNodeKey);
    let lines = world.transcript([Outcome::Secret(None)]);
    let waits = "wait SecretMissing again 5s [NodeKeyReady=False/NodeKeyNotReady]: …not found";
    assert_transcript(&lines, &["read Secret(\"key\")", waits]);
    put(&mut world, "key", Some(secret(&[("node_key.json", NODE_KEY)])));
    world.check("it appeared", "done …");
}

// K15, K16, K17
#[test]
fn a_node_key_of_the_wrong_shape_is_waited_for() {
    let fails = |text: &str| {
        format!(
            "wait SecretMissing again 5s [NodeKeyReady=False/NodeKeyInvalid]: Secret key: {text}"
        )
    };
    let task = TaskType::ValidateNodeKey;
    check_key(task, &[], &fails("data key node_key.json is missing"));
    check_key(task, &[("node_key.json", "")], &fails("data key node_key.json is empty"));
    check_key(task, &[("node_key.json", "x")], &fails("node_key.json is not valid JSON"));
    for (pointer, field) in
        [("/priv_key/type", "priv_key.type"), ("/priv_key/value", "priv_key.value")]
    {
        let key = emptied(NODE_KEY, pointer);
        let text = fails(&format!("node_key.json is missing {field}"));
        check_key(task, &[("node_key.json", &key)], &text);
    }
    check_key(
        task,
        &[("node_key.json", "{\"priv_key\": []}")],
        &fails("node_key.json is missing priv_key.type"),
    );
}

// K19
#[test]
fn a_keyring_with_its_passphrase_is_valid() {
    check_keyring(
        Some(secret(KEYRING)),
        Some(secret(PASSPHRASE)),
        "done [OperatorKeyringReady=True/OperatorKeyringValidated]",
    );
    let mut world = keyring_world(|params| params["keyName"] = json!(""));
    put(&mut world, "keyring", Some(secret(&[("other.info", "x"), ("a.address", "x")])));
    put(&mut world, "passphrase-secret", Some(secret(PASSPHRASE)));
    world.check("no key is named", "done …");
}

// K20
#[test]
fn a_keyring_and_its_passphrase_are_waited_for() {
    let waits = |text: &str| {
        let verdict = "[OperatorKeyringReady=False/OperatorKeyringNotReady]";
        format!("wait SecretMissing again 5s {verdict}: Secret {text}")
    };
    let terminating = |files| Some(SecretView { terminating: true, ..secret(files) });
    let passphrase = || Some(secret(PASSPHRASE));
    let keyring = || Some(secret(KEYRING));
    check_keyring(None, passphrase(), &waits("keyring not found"));
    check_keyring(terminating(KEYRING), passphrase(), &waits("keyring is being deleted"));
    check_keyring(keyring(), None, &waits("passphrase-secret not found"));
    check_keyring(keyring(), terminating(PASSPHRASE), &waits("passphrase-secret is being deleted"));
}

// K21
#[test]
fn a_keyring_of_the_wrong_shape_is_waited_for() {
    for (files, text) in [
        (&[][..], "no *.info entry"),
        (&[("a.address", "x")], "no *.info entry"),
        (&[("node_admin.info", "x")], "no *.address entry"),
        (&[("node_admin.info", ""), ("a.address", "x")], "entry node_admin.info is empty"),
        (&[("node_admin.info", "x"), ("b.info", ""), ("a.address", "x")], "entry b.info is empty"),
        (&[("other.info", "x"), ("a.address", "x")], "no entry node_admin.info"),
    ] {
        let expected = format!(
            "wait SecretMissing again 5s [OperatorKeyringReady=False/OperatorKeyringInvalid]: Secret keyring: {text}"
        );
        // Also while the passphrase is missing: the keyring is checked first.
        check_keyring(Some(secret(files)), Some(secret(PASSPHRASE)), &expected);
        check_keyring(Some(secret(files)), None, &expected);
    }
}

// K22
#[test]
fn a_passphrase_of_the_wrong_shape_is_waited_for() {
    let invalid =
        "wait SecretMissing again 5s [OperatorKeyringReady=False/OperatorKeyringInvalid]: ";
    for (files, text) in [
        (&[][..], "Secret passphrase-secret has no key passphrase"),
        (&[("other", "x")], "Secret passphrase-secret has no key passphrase"),
        (&[("passphrase", "")], "key passphrase of Secret passphrase-secret is empty"),
    ] {
        check_keyring(Some(secret(KEYRING)), Some(secret(files)), &format!("{invalid}{text}"));
    }
}

// K24
#[test]
fn a_keyring_is_read_first_and_completes_once_both_are_there() {
    let mut world = keyring_world(|_| {});
    let lines = world.transcript([Outcome::Secret(None)]);
    assert_transcript(&lines, &["read Secret(\"keyring\")", "wait …keyring not found"]);
    world.seen.secrets.clear();
    let answers =
        [Outcome::Secret(Some(secret(KEYRING))), Outcome::Secret(Some(secret(PASSPHRASE)))];
    let lines = world.transcript(answers);
    assert_transcript(
        &lines,
        &["read Secret(\"keyring\")", "read Secret(\"passphrase-secret\")", "done …"],
    );
}

#[test]
fn a_plan_of_the_go_operator_may_name_its_parameters_in_any_case() {
    let mut world =
        World::only(TaskType::ValidateSigningKey, json!({ "SECRETNAME": "key", "other": 1 }));
    world.check("upper case", "read Secret(\"key\")");
    world.plan.tasks[0].params = Some(json!({ "SecretName": "key" }));
    world.check("title case", "read Secret(\"key\")");
}

#[test]
fn no_content_of_a_secret_is_ever_repeated() {
    const MARKER: &str = "5ecret-mark3r";
    let contents = [
        MARKER.to_owned(),
        format!("{{\"priv_key\": {MARKER}}}"),
        format!("{{\"{MARKER}\": \"{MARKER}\""),
        format!("{{\"address\": \"\", \"priv_key\": {{\"value\": \"{MARKER}\"}}}}"),
        format!("{{\"address\": {{\"{MARKER}\": 1}}}}"),
        format!("\"{MARKER}"),
        emptied(SIGNING_KEY, "/address").replace("nWGxne", MARKER),
        SIGNING_KEY.replace("nWGxne", MARKER),
        SIGNING_KEY.replace("21FE31DF", MARKER),
        SIGNING_KEY.replace("11qYAYKx", MARKER),
    ];
    for content in &contents {
        for task in [TaskType::ValidateSigningKey, TaskType::ValidateNodeKey] {
            let mut world = key_world(task);
            let files = [("priv_validator_key.json", &**content), ("node_key.json", &**content)];
            put(&mut world, "key", Some(secret(&files)));
            let output = format!("{:?} {:?}", world.next(), world.seen.secrets);
            assert!(!output.contains(MARKER), "{output}");
        }
        let mut world = keyring_world(|_| {});
        put(&mut world, "keyring", Some(secret(&[("a.info", content), ("b.address", content)])));
        put(&mut world, "passphrase-secret", Some(secret(&[("passphrase", content)])));
        let output = format!("{:?} {:?}", world.next(), world.seen);
        assert!(!output.contains(MARKER), "{output}");
    }
}
