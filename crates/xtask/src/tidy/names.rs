//! Invariants, and the tests that verify them.

use std::collections::BTreeSet;

use super::{Finding, Source};

/// Names of all test functions of the workspace.
pub(crate) struct TestNames(BTreeSet<String>);

impl TestNames {
    pub(crate) fn collect(sources: &[Source]) -> Self {
        let rust = sources.iter().filter(|source| source.is_rust());
        Self(rust.flat_map(|source| test_functions(&source.text)).collect())
    }

    /// Whether there is a test of this name; only the last part of a path counts.
    pub(crate) fn has(&self, path: &str) -> bool {
        let name = path.rsplit("::").next().unwrap_or(path).trim();
        self.0.contains(name)
    }
}

/// The functions under a test attribute. A scan of lines is enough: only attributes and comments can
/// stand between the attribute and the function.
fn test_functions(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_under_attribute = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_under_attribute = true;
        } else if let Some(name) = function_name(line) {
            if is_under_attribute {
                names.push(name.to_owned());
            }
            is_under_attribute = false;
        }
    }
    names
}

fn function_name(line: &str) -> Option<&str> {
    if line.starts_with("//") {
        return None;
    }
    let after =
        line.strip_prefix("fn ").or_else(|| line.split_once(" fn ").map(|(_, rest)| rest))?;
    let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_')?;
    Some(&after[..end])
}

/// Each `Guarded by` in the docs of a crate must name existing tests.
pub(crate) fn check_guards(sources: &[Source], tests: &TestNames) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_crate_root()) {
        let docs = source.text.lines().map_while(|line| line.strip_prefix("//!"));
        let docs = docs.collect::<Vec<_>>().join(" ");
        for (at, phrase) in docs.match_indices("Guarded by") {
            let named = names_in_sentence(&docs[at + phrase.len()..]);
            findings.extend(check_names(&source.path, "guards", &named, tests));
        }
    }
    findings
}

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Architecture Invariants";

/// Each entry of the invariants in `ARCHITECTURE.md` must name existing tests.
pub(crate) fn check_invariants(sources: &[Source], tests: &TestNames) -> Vec<Finding> {
    let missing = |text: &str| vec![Finding::new(ARCHITECTURE, "invariants", text)];
    let Some(page) = sources.iter().find(|source| source.path == ARCHITECTURE) else {
        return missing("the page is missing");
    };
    let entries = invariant_entries(&page.text);
    if entries.is_empty() {
        return missing("there is no section `## Architecture Invariants` with `- ` entries");
    }
    let check = |entry: &String| {
        let after = entry.split_once("Test: ").or_else(|| entry.split_once("Tests: "));
        let named = after.map_or_else(Vec::new, |(_, rest)| names_in_sentence(rest));
        let title: String = entry.chars().take(60).collect();
        check_names(&format!("{ARCHITECTURE}: \"{title}\""), "invariants", &named, tests)
    };
    entries.iter().flat_map(check).collect()
}

/// The list entries of the section, each on one line.
fn invariant_entries(page: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| line.trim_end() != SECTION).skip(1);
    let mut entries: Vec<String> = Vec::new();
    let mut is_in_entry = false;
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        if let Some(begin) = line.strip_prefix("- ") {
            entries.push(begin.trim().to_owned());
            is_in_entry = true;
        } else if line.trim().is_empty() {
            is_in_entry = false;
        } else if let (true, Some(entry)) = (is_in_entry, entries.last_mut()) {
            entry.push(' ');
            entry.push_str(line.trim());
        }
    }
    entries
}

fn check_names(place: &str, rule: &'static str, named: &[&str], tests: &TestNames) -> Vec<Finding> {
    if named.is_empty() {
        return vec![Finding::new(place, rule, "names no test")];
    }
    let unknown = named.iter().filter(|name| !tests.has(name));
    unknown.map(|name| Finding::new(place, rule, format!("there is no test `{name}`"))).collect()
}

/// What stands in backticks up to the end of the sentence.
fn names_in_sentence(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for (index, part) in text.split('`').enumerate() {
        if index % 2 == 1 {
            names.push(part);
        } else if part.contains('.') {
            break;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::tidy::samples::{lines, source};

    fn sample_tests() -> TestNames {
        TestNames(["one_holds", "two_holds"].map(str::to_owned).into())
    }

    #[test]
    fn only_functions_under_a_test_attribute_are_tests() {
        let attribute = concat!("#[", "test]");
        let text = format!(
            "fn helper() {{}}\n{attribute}\nfn one_holds() {{\n    let x = 1;\n}}\nfn another() {{}}\n\
             {attribute}\n/// Why it matters, fn by fn.\n#[should_panic]\npub async fn two_holds() {{}}\n\
             #[tokio::test(start_paused = true)]\nasync fn three_holds() {{}}\n"
        );
        assert_eq!(test_functions(&text), ["one_holds", "two_holds", "three_holds"]);
    }

    #[test]
    fn a_guard_that_is_no_test_is_found() {
        let docs = "//! Invariants:\n//! - A. Guarded by `one_holds` and\n//!   `tests::two_holds`. See `x`.\n\
                    //! - B. Guarded by `removed`.\n//! - C. Guarded by no test.\n";
        let sources = [source("crates/a/src/lib.rs", docs), source("crates/a/src/b.rs", docs)];
        expect![[r"
            crates/a/src/lib.rs: [guards] there is no test `removed`
            crates/a/src/lib.rs: [guards] names no test
        "]]
        .assert_eq(&lines(&check_guards(&sources, &sample_tests())));
    }

    #[test]
    fn an_invariant_without_its_test_is_found() {
        let page = "# A\n\n- not here\n\n## Architecture Invariants\n\nText.\n\n\
                    - **First.** Text.\n  Test: `one_holds`.\n- **Second.**\n  Tests: `two_holds`, `removed`.\n\
                    - **Third.** Text only.\n\n## Next\n\n- not here\n";
        expect![[r#"
            ARCHITECTURE.md: "**Second.** Tests: `two_holds`, `removed`.": [invariants] there is no test `removed`
            ARCHITECTURE.md: "**Third.** Text only.": [invariants] names no test
        "#]]
        .assert_eq(&lines(&check_invariants(&[source(ARCHITECTURE, page)], &sample_tests())));
    }

    #[test]
    fn a_missing_page_or_section_is_found() {
        let without = [source(ARCHITECTURE, "# Title\n")];
        expect![[r"
            ARCHITECTURE.md: [invariants] the page is missing
            ARCHITECTURE.md: [invariants] there is no section `## Architecture Invariants` with `- ` entries
        "]]
        .assert_eq(
            &(lines(&check_invariants(&[], &sample_tests()))
                + &lines(&check_invariants(&without, &sample_tests()))),
        );
    }
}
