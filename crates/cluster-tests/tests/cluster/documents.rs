//! Every command in a document is run by a test.

use std::fs;

use anyhow::Result;
use cluster_tests::docs::sections;
use cluster_tests::install::repository;

/// Commands that no test here can run, and the reason or what runs them instead.
const RUN_ELSEWHERE: &[(&str, &str)] = &[
    ("cargo xtask sandbox", "a step of CI"),
    ("cargo xtask test", "CI runs it, including this test"),
    ("cargo xtask image", "the install tests use it to write their image into a temporary folder"),
    (
        "skopeo copy oci-archive:target/sei-operator.oci.tar \
         docker://registry.example.org/sei-operator:0.0.0",
        "it needs a registry",
    ),
];

/// All documents that may contain commands.
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

/// The source of all tests of this program.
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

/// A test runs the commands of a section if it calls `follow` or `commands` with its document and
/// heading, and those of a whole document if it calls `follow_all` with it.
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
            let follows = ["&shell", "shell"].map(|shell| format!("follow({shell}, {place}"));
            let call = format!("commands(\"{document}\", \"{}\")", section.heading);
            if follows.iter().any(|follow| tests.contains(follow)) || tests.contains(&call) {
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
