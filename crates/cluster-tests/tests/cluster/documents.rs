//! Commands in documents are commands that were run.

use std::fs;

use anyhow::Result;
use cluster_tests::docs::sections;
use cluster_tests::install::repository;

/// Commands that no test here can run, and what runs them instead.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    ("cargo xtask sandbox", "a step of what CI runs"),
    ("cargo xtask test", "what CI runs, this test among it"),
    (
        "cargo xtask image",
        "the image of the install tests is written by it, into a folder of theirs",
    ),
    (
        "skopeo copy oci-archive:target/sei-operator.oci.tar \
         docker://registry.example.org/sei-operator:0.0.0",
        "it needs a registry",
    ),
];

/// All documents with commands for people.
fn documents() -> Result<Vec<String>> {
    let mut documents = vec!["README.md".to_owned()];
    for entry in fs::read_dir(repository().join("docs"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            documents.push(format!("docs/{name}"));
        }
    }
    documents.sort();
    Ok(documents)
}

/// The text of every test of this program.
fn tests() -> Result<String> {
    let mut text = String::new();
    let mut folders = vec![repository().join("crates/cluster-tests/tests/cluster")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                text.push_str(&fs::read_to_string(path)?);
            }
        }
    }
    Ok(text)
}

/// A section's commands are run by whoever calls `follow` or takes them by `commands` with its
/// document and heading, those of a whole document by whoever calls `follow_all` with it.
#[test]
fn every_command_in_a_document_is_run() -> Result<()> {
    let tests = tests()?;
    let mut missing = Vec::new();
    for document in documents()? {
        if tests.contains(&format!("follow_all(&shell, \"{document}\"")) {
            continue;
        }
        for section in sections(&document)? {
            let place = format!("\"{document}\", \"{}\"", section.heading);
            let calls = ["&shell", "shell"].map(|shell| format!("follow({shell}, {place}"));
            let taken = format!("commands(\"{document}\", \"{}\")", section.heading);
            if calls.iter().any(|call| tests.contains(call)) || tests.contains(&taken) {
                continue;
            }
            let lines = section.blocks.iter().flat_map(|block| block.lines());
            for line in lines.filter(|line| !line.trim().is_empty()) {
                let command = line.split('#').next().unwrap_or_default().trim();
                if !RUN_ELSEWHERE.iter().any(|(known, _)| *known == command) {
                    missing.push(format!("{document}, {}: {line}", section.heading));
                }
            }
        }
    }
    assert!(missing.is_empty(), "no test runs\n{}", missing.join("\n"));
    Ok(())
}
