//! Rules about the contents of files.

use super::{Finding, Source};

/// A longer file usually holds more than one subject.
const MAX_LINES: usize = 800;

pub(crate) fn check_all(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        findings.extend(check_length(source));
        findings.extend(check_placeholders(source));
        findings.extend(check_crate_docs(source));
        findings.extend(check_machine_names(source));
    }
    findings.extend(check_plan_bans(sources));
    findings
}

fn check_length(source: &Source) -> Option<Finding> {
    let lines = source.text.lines().count();
    let text = || format!("{lines} lines; a file has at most {MAX_LINES}");
    (source.is_rust() && lines > MAX_LINES)
        .then(|| Finding::new(&source.path, "file-length", text()))
}

/// Placeholders for missing work, and tests that do not run or that check nothing.
const PLACEHOLDERS: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
    concat!("assert", "!(true)"),
];

fn check_placeholders(source: &Source) -> Vec<Finding> {
    if !source.is_rust() {
        return Vec::new();
    }
    let is_code = |line: &str| !line.trim_start().starts_with("//");
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate().filter(|(_, line)| is_code(line)) {
        for text in PLACEHOLDERS.iter().filter(|text| line.contains(**text)) {
            let text = format!("`{text}` is not allowed");
            findings.push(Finding::new(place(source, number), "placeholder", text));
        }
    }
    findings
}

fn check_crate_docs(source: &Source) -> Option<Finding> {
    let opens = source.text.starts_with("//!");
    (source.is_crate_root() && !opens).then(|| {
        let text =
            "a crate starts with `//!` docs: its purpose, what it never does, its invariants";
        Finding::new(&source.path, "crate-docs", text)
    })
}

/// Paths of a single machine, and hosts that a single machine installs packages from.
const MACHINE_NAMES: &[&str] = &[
    concat!("/work", "/main"),
    concat!("/work", "/shared"),
    concat!("/t", "mp/"),
    concat!("/ro", "ot/"),
    concat!("crates", ".io"),
    concat!("registry.npm", "js.org"),
    concat!("pypi", ".org"),
    concat!("python", "hosted.org"),
    concat!("proxy.go", "lang.org"),
    concat!("sum.go", "lang.org"),
];

/// Files that must name the package index: cargo writes it into the lock file, and `deny.toml`
/// allows it as a source.
const MAY_NAME_THE_INDEX: &[&str] = &["Cargo.lock", "deny.toml"];

fn check_machine_names(source: &Source) -> Vec<Finding> {
    if MAY_NAME_THE_INDEX.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for name in MACHINE_NAMES.iter().filter(|name| has_name(line, name)) {
            let text = format!("`{name}` belongs to a single machine, not to the repository");
            findings.push(Finding::new(place(source, number), "machine-name", text));
        }
    }
    findings
}

/// Whether the name starts a path or a host: `$HOME/cache` does not contain `/cache`.
fn has_name(line: &str, name: &str) -> bool {
    let inner = |before: char| before.is_alphanumeric() || matches!(before, '_' | '.' | '-' | '}');
    line.match_indices(name).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !name.starts_with('/') || !before.is_some_and(inner)
    })
}

/// The items that clippy must refuse in the deciding crate.
const PLAN_BANS: [&str; 3] =
    ["std::collections::HashMap", "std::collections::HashSet", "jiff::Timestamp::now"];

const PLAN_CLIPPY: &str = "crates/sei-plan/clippy.toml";

fn check_plan_bans(sources: &[Source]) -> Vec<Finding> {
    let file = sources.iter().find(|source| source.path == PLAN_CLIPPY);
    let text = file.map_or("", |file| &file.text);
    let is_banned = |path: &str| {
        let entry = format!("path = \"{path}\"");
        text.lines().any(|line| !line.trim_start().starts_with('#') && line.contains(&entry))
    };
    PLAN_BANS
        .iter()
        .filter(|path| !is_banned(path))
        .map(|path| Finding::new(PLAN_CLIPPY, "plan-bans", format!("must disallow `{path}`")))
        .collect()
}

fn place(source: &Source, line: usize) -> String {
    format!("{}:{}", source.path, line + 1)
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::tidy::samples::{lines, source};

    fn check(path: &str, text: &str, expected: &Expect) {
        let good_bans = PLAN_BANS.map(|path| format!("path = \"{path}\"\n")).concat();
        let sources = [source(path, text), source(PLAN_CLIPPY, &good_bans)];
        expected.assert_eq(&lines(&check_all(&sources)));
    }

    #[test]
    fn a_long_file_is_found() {
        check("crates/a/src/b.rs", &"\n".repeat(800), &expect![""]);
        check(
            "crates/a/src/b.rs",
            &"\n".repeat(801),
            &expect![[r"
                crates/a/src/b.rs: [file-length] 801 lines; a file has at most 800
            "]],
        );
        check("docs/long.md", &"\n".repeat(801), &expect![""]);
    }

    #[test]
    fn each_placeholder_is_found() {
        for text in PLACEHOLDERS {
            let sample = source("a.rs", &format!("fn a() {{\n    {text}\n}}\n"));
            let found = lines(&check_placeholders(&sample));
            assert_eq!(found, format!("a.rs:2: [placeholder] `{text}` is not allowed\n"));
            assert!(check_placeholders(&source("a.rs", &format!("// {text}"))).is_empty());
            assert!(check_placeholders(&source("a.md", text)).is_empty());
        }
    }

    #[test]
    fn a_crate_without_docs_is_found() {
        check("crates/a/src/lib.rs", "//! What it is.\n", &expect![""]);
        check("crates/a/src/inner/main.rs", "fn main() {}\n", &expect![""]);
        for name in ["lib", "main"] {
            let sample = source(&format!("crates/a/src/{name}.rs"), "fn main() {}\n");
            assert_eq!(check_crate_docs(&sample).unwrap().rule, "crate-docs");
        }
    }

    #[test]
    fn each_machine_name_is_found() {
        for name in MACHINE_NAMES {
            let sample = source("docs/a.md", &format!("see\n`{name}x`\n"));
            let found = lines(&check_machine_names(&sample));
            let text = format!("`{name}` belongs to a single machine, not to the repository");
            assert_eq!(found, format!("docs/a.md:2: [machine-name] {text}\n"));
        }
        let lock = source("Cargo.lock", MACHINE_NAMES[4]);
        assert!(check_machine_names(&lock).is_empty());
    }

    #[test]
    fn a_folder_inside_of_another_folder_is_no_machine_name() {
        let below = |before: &str| source("a.sh", &format!("{before}{}x", MACHINE_NAMES[2]));
        for before in ["$HOME", "/home/nonroot/.sei", "${DATA}"] {
            assert!(check_machine_names(&below(before)).is_empty(), "{before}");
        }
        assert_eq!(check_machine_names(&below("cd ")).len(), 1);
    }

    #[test]
    fn a_ban_that_is_missing_or_commented_out_is_found() {
        let text = "disallowed-types = [\n  { path = \"std::collections::HashMap\" },\n\
                    # { path = \"std::collections::HashSet\" },\n]\n";
        expect![[r"
            crates/sei-plan/clippy.toml: [plan-bans] must disallow `std::collections::HashSet`
            crates/sei-plan/clippy.toml: [plan-bans] must disallow `jiff::Timestamp::now`
        "]]
        .assert_eq(&lines(&check_plan_bans(&[source(PLAN_CLIPPY, text)])));
        assert_eq!(check_plan_bans(&[]).len(), PLAN_BANS.len());
    }
}
