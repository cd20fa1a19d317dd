//! Texts: the platform's file and references to images.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;

use crate::desired::render_desired;
use crate::fixtures::{any_json, pointers, without};
use crate::inputs::check_spec;
use crate::platform::Platform;
use crate::testing::{node, platform};

const FILES: [&str; 3] = [
    include_str!("../../testdata/platform/example.yaml"),
    include_str!("../../testdata/platform/minimal.yaml"),
    include_str!("../../testdata/platform/tuned.yaml"),
];

fn check_file(text: &str) -> Result<(), TestCaseError> {
    match Platform::parse(text, "f") {
        // A file that was accepted must be usable: a damaged one must not break a later render.
        Ok(platform) => {
            let desired = render_desired(&node("seed-a"), &platform, &[], &[]);
            prop_assert!(desired.is_ok(), "{:?}", desired.err());
        }
        Err(error) => {
            let message = error.to_string();
            prop_assert!(message.starts_with("f: "), "{}", message);
            prop_assert!(!message.chars().any(char::is_control), "{:?}", message);
            prop_assert!(message.len() < 2048, "{} bytes", message.len());
        }
    }
    Ok(())
}

/// Lines of a valid file removed, doubled, swapped, indented or overwritten.
fn damaged_file() -> impl Strategy<Value = String> {
    let edit = (any::<Index>(), any::<Index>(), 0..6u8, "\\PC{0,12}");
    (select(&FILES[..]), prop::collection::vec(edit, 1..5)).prop_map(|(file, edits)| {
        let mut lines: Vec<String> = file.lines().map(str::to_owned).collect();
        for (at, target, kind, text) in edits {
            let (at, target) = (at.index(lines.len()), target.index(lines.len()));
            match kind {
                0 if lines.len() > 1 => drop(lines.remove(at)),
                1 => lines.insert(target, lines[at].clone()),
                2 => lines.swap(at, target),
                3 => lines[at].insert(0, ' '),
                4 => lines[at] = text,
                _ => lines[at].push_str(&text),
            }
        }
        lines.join("\n")
    })
}

/// A valid file as a tree, with arbitrary JSON in place of some values.
fn damaged_tree() -> impl Strategy<Value = String> {
    let odd = prop_oneof![any_json(), any::<i64>().prop_map(Value::from)];
    let edits = prop::collection::vec((any::<Index>(), prop::option::of(odd)), 1..4);
    (select(&FILES[..]), edits).prop_map(|(file, edits)| {
        let mut tree: Value = serde_saphyr::from_str(file).unwrap();
        for (index, value) in edits {
            let pointers = pointers(&tree);
            if pointers.is_empty() {
                break;
            }
            let pointer = index.get(&pointers);
            match value {
                Some(value) => *tree.pointer_mut(pointer).unwrap() = value,
                None => tree = without(tree, pointer),
            }
        }
        tree.to_string()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_damaged_file_is_used_or_refused_on_one_line(text in damaged_file()) {
        check_file(&text)?;
    }

    #[test]
    fn a_damaged_tree_is_used_or_refused_on_one_line(text in damaged_tree()) {
        check_file(&text)?;
    }

    #[test]
    fn any_bytes_are_refused_on_one_line(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_file(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn any_image_is_rendered_unchanged_or_refused_by_name(
        image in prop_oneof![
            any::<String>(),
            "[a-z0-9./:@_ -]{0,40}",
            "[\\x00-\\x7f]{0,12}",
            "(registry\\.example\\.org/)?[a-z]{1,9}(:v[0-9]{1,3})?(@sha256:[0-9a-f]{64})?",
            (500usize..530).prop_map(|length| "i".repeat(length)),
        ],
    ) {
        let mut node = node("rpc-genesis");
        node.spec.image.clone_from(&image);
        let errors = check_spec(&node);
        let odd = |c: char| c.is_whitespace() || c.is_control();
        if image.trim().is_empty() || image.contains(odd) || image.len() > 512 {
            prop_assert_eq!(errors.len(), 1, "{:?}", errors);
            let message = render_desired(&node, &platform("example"), &[], &[]).unwrap_err().to_string();
            prop_assert!(message.starts_with("spec.image: "), "{}", message);
            prop_assert!(!message.contains(char::is_control) && message.len() < 400, "{:?}", message);
        } else {
            prop_assert_eq!(errors, []);
            let desired = render_desired(&node, &platform("example"), &[], &[]).unwrap();
            let pod = desired.statefulset.unpack().spec.template.spec.unwrap();
            prop_assert_eq!(pod.containers[0].image.as_ref(), Some(&image));
            prop_assert_eq!(desired.image, image);
        }
    }
}
