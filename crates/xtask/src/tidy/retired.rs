//! Words that this repository no longer uses, and the plain ones that replace them.
//!
//! The check reads identifiers, string literals and comments of Rust files, and Markdown. A word
//! counts also as a part of a `snake_case` or `CamelCase` identifier.

use super::{Finding, Source};

/// The files and folders that are checked.
const ROOTS: &[&str] =
    &["crates/", "docs/", "ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"];

/// Files below the roots that are not read.
const EXEMPT: &[(&str, &str)] = &[("crates/xtask/src/tidy/retired.rs", "it holds the list")];

/// Phrases with a retired word that are fine where they stand.
const ALLOWED: &[(&str, &str)] = &[
    ("by hand", "the opposite of `generated`"),
    ("handwritten", "the opposite of `generated`"),
    ("got 0, want 1", "a message of helm"),
    ("hands-off", "an annotation"),
    ("hands_off", "the same, in names"),
    ("HANDS_OFF", "the same, in names"),
    ("HandsOff", "its reason"),
    ("Hands off", "its heading"),
];

/// Retired words and phrases, in lower case, each line with its replacement.
///
/// Three rows of the style guide are missing, since their words have a second, good meaning that a
/// search cannot tell apart: `gate` (the sidecar's readiness gate), `syncer` (a key of the platform
/// configuration), `exists` and `owned` (methods of the standard library).
const RETIRED: &[(&[&str], &str)] = &[
    (&["look", "looks", "looked", "looking"], "reconcile, read or check"),
    (&["tell", "tells", "told", "telling", "voice"], "report, publish, record or notify"),
    (&["say", "says", "said", "saying"], "report, state or contain"),
    (&["words"], "message"),
    (&["desk", "seat", "went", "go on", "goes on"], "state, in-flight guard, run state or resume"),
    (&["want", "wants", "wanted", "wish", "wishes"], "desired or requested"),
    (&["judge", "judges", "judged", "judgement"], "compare, classify or check"),
    (&["wake", "wakes", "woke"], "enqueue"),
    (&["truth", "lies", "speaks", "blind"], "condition status, contradicts, matches or watch lag"),
    (&["hand", "hands", "handed", "deed", "vain"], "disturbance, step or no-op"),
    (&["moment", "moments", "happening", "happenings"], "step"),
    (&["mend", "mends", "mended"], "repair"),
    (&["give back", "gives back", "given back"], "release"),
    (&["put back", "puts back", "leave the line"], "restore or dequeue"),
    (&["gone"], "not found, deleted or removed"),
    (&["surroundings", "sight", "consent"], "command context, fleet snapshot or approve"),
    (&["rooms"], "layers"),
    (&["whoever", "nobody", "somebody"], "the role: operator, author, user, reader"),
];

/// Names that say nothing about a variable.
const RETIRED_VARIABLES: &[&str] = &["one", "other"];

pub(crate) fn check_all(sources: &[Source]) -> Vec<Finding> {
    check(sources, ROOTS)
}

fn check(sources: &[Source], roots: &[&str]) -> Vec<Finding> {
    let is_rooted = |path: &str| roots.iter().any(|root| path.starts_with(root));
    let is_exempt = |path: &str| EXEMPT.iter().any(|(exempt, _)| path == *exempt);
    let is_read = |source: &&Source| {
        (source.is_rust() || source.path.to_ascii_lowercase().ends_with(".md"))
            && is_rooted(&source.path)
            && !is_exempt(&source.path)
    };
    sources.iter().filter(is_read).flat_map(check_source).collect()
}

fn check_source(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let place = format!("{}:{}", source.path, number + 1);
        for (retired, replacement) in retired_in(line) {
            let text = format!("`{retired}` is retired: use {replacement}");
            findings.push(Finding::new(&place, "retired-words", text));
        }
        if source.is_rust() {
            for name in retired_variables_in(line) {
                let text = format!("`{name}` is no name for a variable: use a noun");
                findings.push(Finding::new(&place, "retired-words", text));
            }
        }
    }
    findings
}

fn retired_in(line: &str) -> Vec<(&'static str, &'static str)> {
    let mut line = line.to_owned();
    for (phrase, _) in ALLOWED {
        line = line.replace(phrase, " ");
    }
    let parts = parts(&line);
    let is_in = |phrase: &str| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        parts.windows(phrase.len()).any(|window| window == phrase)
    };
    let rows = RETIRED
        .iter()
        .flat_map(|(row, replacement)| row.iter().map(move |retired| (*retired, *replacement)));
    rows.filter(|(retired, _)| is_in(retired)).collect()
}

/// The parts of all names and words of a line in lower case: `AbcDef_ghi` has three.
fn parts(line: &str) -> Vec<String> {
    let mut parts = Vec::new();
    let mut part = String::new();
    let mut is_after_lower = false;
    for letter in line.chars() {
        if !letter.is_ascii_alphabetic() || (is_after_lower && letter.is_ascii_uppercase()) {
            parts.extend((!part.is_empty()).then(|| std::mem::take(&mut part)));
        }
        if letter.is_ascii_alphabetic() {
            part.push(letter.to_ascii_lowercase());
        }
        is_after_lower = letter.is_ascii_lowercase();
    }
    parts.extend((!part.is_empty()).then_some(part));
    parts
}

/// Variables of a line that are bound under a retired name: by a closure, a pattern or `let`.
/// String literals and comments are left out; there these are ordinary words.
fn retired_variables_in(line: &str) -> Vec<&'static str> {
    let code = line.split("//").next().unwrap_or_default();
    let code: String = code.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    // Only where a variable is introduced: the text of a string may span lines.
    let is_introduced = |name: &str| {
        let before = ["let ", "let mut ", "for ", "|", "|&", "|(", ", "];
        let after = [" =", " in ", "|", ":", ", ", ")"];
        let starts = code.match_indices(name).any(|(at, _)| {
            let (head, tail) = (&code[..at], &code[at + name.len()..]);
            let opens = before.iter().any(|opening| head.ends_with(opening));
            opens && after.iter().any(|closing| tail.starts_with(closing))
        });
        starts && (code.contains('|') || code.contains("let ") || code.contains("for "))
    };
    RETIRED_VARIABLES.iter().copied().filter(|retired| is_introduced(retired)).collect()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::tidy::samples::{lines, source};

    fn found(path: &str, text: &str) -> String {
        lines(&check(&[source(path, text)], &["crates/a/", "a.md"]))
    }

    #[test]
    fn a_retired_word_is_found_in_names_texts_and_comments() {
        let text =
            "fn give_back() {}\nstruct JudgeError;\n// Nobody looks.\nlet text = \"he said\";\n";
        expect![[r"
            crates/a/src/lib.rs:1: [retired-words] `give back` is retired: use release
            crates/a/src/lib.rs:2: [retired-words] `judge` is retired: use compare, classify or check
            crates/a/src/lib.rs:3: [retired-words] `looks` is retired: use reconcile, read or check
            crates/a/src/lib.rs:3: [retired-words] `nobody` is retired: use the role: operator, author, user, reader
            crates/a/src/lib.rs:4: [retired-words] `said` is retired: use report, state or contain
        "]]
        .assert_eq(&found("crates/a/src/lib.rs", text));
        assert!(found("a.md", "It goes on.\n").starts_with("a.md:1: "));
    }

    #[test]
    fn a_word_that_only_contains_a_retired_one_passes() {
        for text in ["outlook", "wantonly", "Handle", "paper-thin", "by hand", "seats"] {
            assert_eq!(found("a.md", text), "", "{text}");
        }
    }

    #[test]
    fn files_outside_of_the_roots_pass() {
        assert_eq!(found("crates/b/src/lib.rs", "// told\n"), "");
        assert_eq!(found("crates/a/Cargo.toml", "# told\n"), "");
        assert_eq!(found("CHANGELOG.md", "told\n"), "");
    }

    #[test]
    fn a_variable_without_a_meaning_is_found() {
        for text in ["x.map(|one| one.name)", "for other in list {", "let one = 1;"] {
            assert!(found("crates/a/src/lib.rs", text).contains("use a noun"), "{text}");
        }
        for text in ["// one or the other", "\"one\"", "let each_other = 1;", "phone"] {
            assert_eq!(found("crates/a/src/lib.rs", text), "", "{text}");
        }
        assert_eq!(found("a.md", "one"), "");
    }

    /// A root without a file checks nothing.
    #[test]
    fn every_root_is_in_the_repository() {
        let root = crate::repository();
        for path in ROOTS.iter().chain(EXEMPT.iter().map(|(path, _)| path)) {
            assert!(root.join(path).exists(), "{path}");
        }
    }

    #[test]
    fn every_word_of_the_list_can_be_found() {
        for retired in RETIRED.iter().flat_map(|(row, _)| *row) {
            assert_eq!(retired_in(retired).first().map(|(found, _)| found), Some(retired));
        }
    }
}
