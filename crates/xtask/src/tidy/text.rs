//! Rules about what stands in files.

use super::{Finding, Source};

/// A longer file holds more than one subject.
const MAX_LINES: usize = 800;

pub(crate) fn check_all(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        findings.extend(check_length(source));
        findings.extend(check_banned_words(source));
        findings.extend(check_crate_docs(source));
        findings.extend(check_machine_words(source));
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

/// Code that pretends: work left out, tests that do not run, tests that test nothing.
const PRETENCES: &[&str] = &[
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("#[", "ignore"),
    concat!("assert", "!(true)"),
];

fn check_banned_words(source: &Source) -> Vec<Finding> {
    if !source.is_rust() {
        return Vec::new();
    }
    let is_code = |line: &str| !line.trim_start().starts_with("//");
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate().filter(|(_, line)| is_code(line)) {
        for word in PRETENCES.iter().filter(|word| line.contains(**word)) {
            let text = format!("`{word}` is not allowed");
            findings.push(Finding::new(place(source, number), "pretence", text));
        }
    }
    findings
}

fn check_crate_docs(source: &Source) -> Option<Finding> {
    let opens = source.text.starts_with("//!");
    (source.is_crate_root() && !opens).then(|| {
        let text = "a crate opens with `//!`: what it is for, what it never does, its invariants";
        Finding::new(&source.path, "crate-docs", text)
    })
}

/// Paths of one machine, and hosts that one machine happens to install from.
const MACHINE_WORDS: &[&str] = &[
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

/// Cargo writes the name of its index into the lock file.
const MACHINE_WORDS_MAY_STAND_IN: &[&str] = &["Cargo.lock"];

fn check_machine_words(source: &Source) -> Vec<Finding> {
    if MACHINE_WORDS_MAY_STAND_IN.contains(&source.path.as_str()) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        for word in MACHINE_WORDS.iter().filter(|word| stands_in(line, word)) {
            let text = format!("`{word}` belongs to one machine, not to the repository");
            findings.push(Finding::new(place(source, number), "machine-word", text));
        }
    }
    findings
}

/// Whether the word begins a path or a host: `$HOME/cache` does not hold `/cache`.
fn stands_in(line: &str, word: &str) -> bool {
    let inner = |before: char| before.is_alphanumeric() || matches!(before, '_' | '.' | '-' | '}');
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !word.starts_with('/') || !before.is_some_and(inner)
    })
}

/// What the deciding crate may not use, as clippy is told.
const PLAN_BANS: [&str; 3] =
    ["std::collections::HashMap", "std::collections::HashSet", "jiff::Timestamp::now"];

const PLAN_CLIPPY: &str = "crates/sei-plan/clippy.toml";

fn check_plan_bans(sources: &[Source]) -> Vec<Finding> {
    let text = sources.iter().find(|one| one.path == PLAN_CLIPPY).map_or("", |one| &one.text);
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
        let good_bans = PLAN_BANS.map(|one| format!("path = \"{one}\"\n")).concat();
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
    fn each_pretence_is_found() {
        for word in PRETENCES {
            let sample = source("a.rs", &format!("fn a() {{\n    {word}\n}}\n"));
            let told = lines(&check_banned_words(&sample));
            assert_eq!(told, format!("a.rs:2: [pretence] `{word}` is not allowed\n"));
            assert!(check_banned_words(&source("a.rs", &format!("// {word}"))).is_empty());
            assert!(check_banned_words(&source("a.md", word)).is_empty());
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
    fn each_machine_word_is_found() {
        for word in MACHINE_WORDS {
            let sample = source("docs/a.md", &format!("see\n`{word}x`\n"));
            let told = lines(&check_machine_words(&sample));
            let said = format!("`{word}` belongs to one machine, not to the repository");
            assert_eq!(told, format!("docs/a.md:2: [machine-word] {said}\n"));
        }
        let lock = source("Cargo.lock", MACHINE_WORDS[4]);
        assert!(check_machine_words(&lock).is_empty());
    }

    #[test]
    fn a_folder_inside_another_is_no_machine_word() {
        let below = |before: &str| source("a.sh", &format!("{before}{}x", MACHINE_WORDS[2]));
        for before in ["$HOME", "/home/nonroot/.sei", "${DATA}"] {
            assert!(check_machine_words(&below(before)).is_empty(), "{before}");
        }
        assert_eq!(check_machine_words(&below("cd ")).len(), 1);
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
