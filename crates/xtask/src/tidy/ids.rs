//! The behaviours that tests refer to by an id, and the tests that cover them.
//!
//! `docs/behaviours.md` defines every id in one line of a table. `tests/ids.toml` maps every id to a
//! test, or gives the reason why there is none:
//!
//! ```toml
//! [ids]
//! P1 = "planner::tests::an_equal_image_makes_no_plan"
//! P2 = "ours: the_update_plan_has_its_tasks: a deliberately different order"
//! P34 = "era: the list of an older version"
//! K1 = "later: Title of the issue that adds it"
//! ```

use std::collections::BTreeMap;

use super::names::TestNames;
use super::{Finding, Source};

const FILE: &str = "tests/ids.toml";
const PAGE: &str = "docs/behaviours.md";
const RULE: &str = "test-ids";

/// Each group of ids with the number of its last one; all groups start at 1.
const GROUPS: &[(&str, u32)] = &[
    ("P", 37),
    ("I", 42),
    ("S", 5),
    ("X", 15),
    ("RP", 19),
    ("OI", 10),
    ("PV", 19),
    ("K", 24),
    ("B", 22),
    ("O", 17),
    ("T", 9),
    ("SS", 19),
    ("N", 33),
    ("A", 12),
];

pub(crate) fn check_files(sources: &[Source], tests: &TestNames) -> Vec<Finding> {
    let text = |path: &str| {
        sources.iter().find(|source| source.path == path).map(|source| source.text.as_str())
    };
    let mut findings = check(text(FILE), tests);
    findings.extend(check_page(text(PAGE).unwrap_or_default()));
    findings.extend(check_comments(sources));
    findings
}

fn check(file: Option<&str>, tests: &TestNames) -> Vec<Finding> {
    match file.map(read) {
        None => vec![Finding::new(FILE, RULE, "the file is missing")],
        Some(Err(error)) => vec![Finding::new(FILE, RULE, error)],
        Some(Ok(ids)) => check_ids(&ids, tests),
    }
}

fn read(text: &str) -> Result<BTreeMap<String, String>, String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        ids: BTreeMap<String, String>,
    }
    toml::from_str::<File>(text).map(|file| file.ids).map_err(|error| error.to_string())
}

/// Every id, in the order of the groups.
fn all_ids() -> Vec<String> {
    let ids = |(group, last): &(&str, u32)| {
        (1..=*last).map(|number| format!("{group}{number}")).collect::<Vec<_>>()
    };
    GROUPS.iter().flat_map(ids).collect()
}

fn check_ids(ids: &BTreeMap<String, String>, tests: &TestNames) -> Vec<Finding> {
    let expected = all_ids();
    let mut findings = Vec::new();
    for id in expected.iter().filter(|id| !ids.contains_key(*id)) {
        findings.push(Finding::new(FILE, RULE, format!("{id} is missing")));
    }
    for (id, value) in ids {
        if !expected.contains(id) {
            findings.push(Finding::new(FILE, RULE, format!("{id} is in no group of ids")));
        }
        if let Err(fault) = check_value(value, tests) {
            findings.push(Finding::new(FILE, RULE, format!("{id}: {fault}")));
        }
    }
    findings
}

fn check_value(value: &str, tests: &TestNames) -> Result<(), String> {
    let known = |name: &str| {
        let fault = || format!("there is no test `{}`", name.trim());
        tests.has(name).then_some(()).ok_or_else(fault)
    };
    let present = |text: &str, what| {
        let is_present = !text.trim().is_empty();
        is_present.then_some(()).ok_or_else(|| format!("{what} is missing"))
    };
    match value.split_once(": ").unwrap_or((value.trim_end_matches(':'), "")) {
        ("ours", rest) => {
            let (name, reason) = rest.split_once(": ").unwrap_or((rest, ""));
            known(name).and_then(|()| present(reason, "the reason"))
        }
        ("era", reason) => present(reason, "the reason"),
        ("later", title) => present(title, "the title of the issue"),
        _ => known(value),
    }
}

/// The page has one row with a meaning for each id.
fn check_page(page: &str) -> Vec<Finding> {
    let row = |line: &str| -> Option<(String, String)> {
        let (id, meaning) = line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | ")?;
        is_id(id).then(|| (id.to_owned(), meaning.trim().to_owned()))
    };
    let rows: Vec<(String, String)> = page.lines().filter_map(row).collect();
    let expected = all_ids();
    let mut findings = Vec::new();
    for id in &expected {
        let meanings: Vec<&String> =
            rows.iter().filter(|(defined, _)| defined == id).map(|(_, meaning)| meaning).collect();
        let fault = match meanings[..] {
            [] => "is not defined",
            [meaning] if meaning.is_empty() => "has no meaning",
            [_] => continue,
            _ => "is defined more than once",
        };
        findings.push(Finding::new(PAGE, RULE, format!("{id} {fault}")));
    }
    for (id, _) in rows.iter().filter(|(id, _)| !expected.contains(id)) {
        findings.push(Finding::new(PAGE, RULE, format!("{id} is in no group of ids")));
    }
    findings
}

/// An id in a comment of a test is one that the page defines.
fn check_comments(sources: &[Source]) -> Vec<Finding> {
    let expected = all_ids();
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.is_rust()) {
        for (number, line) in source.text.lines().enumerate() {
            for id in ids_of_comment(line).filter(|id| !expected.iter().any(|known| known == id)) {
                let place = format!("{}:{}", source.path, number + 1);
                let text = format!("{id} is not defined in {PAGE}");
                findings.push(Finding::new(place, RULE, text));
            }
        }
    }
    findings
}

/// The ids that a comment starts with: `// N27, N29` or `// A1: the reason`.
fn ids_of_comment(line: &str) -> impl Iterator<Item = &str> {
    let comment = line.trim_start().strip_prefix("// ").unwrap_or_default();
    let list = comment.split(':').next().unwrap_or_default().trim_end_matches('.');
    list.split(", ").take_while(|id| is_id(id))
}

/// One or two capitals and up to two digits.
fn is_id(text: &str) -> bool {
    let group = text.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let digits = text.len() - group.len();
    matches!(group.len(), 1 | 2)
        && matches!(digits, 1 | 2)
        && group.bytes().all(|letter| letter.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::tidy::samples::{lines, source};

    fn sample_tests() -> TestNames {
        let text = format!("{}\nfn it_holds() {{}}\n", concat!("#[", "test]"));
        TestNames::collect(&[source("a.rs", &text)])
    }

    /// A complete file in which every id is later work, with some lines replaced or added.
    fn check_with(changes: &[(&str, Option<&str>)], expected: &Expect) {
        let mut ids: BTreeMap<String, Option<&str>> =
            all_ids().into_iter().map(|id| (id, Some("later: x"))).collect();
        ids.extend(changes.iter().map(|(id, value)| ((*id).to_owned(), *value)));
        let entries = ids.iter().filter_map(|(id, value)| Some((id, (*value)?)));
        let entries: Vec<String> =
            entries.map(|(id, value)| format!("{id} = {value:?}\n")).collect();
        let file = format!("[ids]\n{}", entries.concat());
        expected.assert_eq(&lines(&check(Some(&file), &sample_tests())));
    }

    #[test]
    fn a_complete_file_passes() {
        check_with(
            &[
                ("P1", Some("planner::tests::it_holds")),
                ("P2", Some("it_holds")),
                ("P3", Some("ours: it_holds: a different order")),
                ("P4", Some("era: an older list")),
            ],
            &expect![""],
        );
        assert_eq!(all_ids().len(), 283);
    }

    #[test]
    fn each_fault_of_the_file_is_found() {
        check_with(
            &[
                ("P1", None),
                ("SS19", None),
                ("P38", Some("later: x")),
                ("P2", Some("planner::tests::removed")),
                ("P3", Some("ours: removed: why")),
                ("P4", Some("ours: it_holds")),
                ("P5", Some("era:")),
                ("P6", Some("later: ")),
                ("P7", Some("")),
            ],
            &expect![[r"
                tests/ids.toml: [test-ids] P1 is missing
                tests/ids.toml: [test-ids] SS19 is missing
                tests/ids.toml: [test-ids] P2: there is no test `planner::tests::removed`
                tests/ids.toml: [test-ids] P3: there is no test `removed`
                tests/ids.toml: [test-ids] P38 is in no group of ids
                tests/ids.toml: [test-ids] P4: the reason is missing
                tests/ids.toml: [test-ids] P5: the reason is missing
                tests/ids.toml: [test-ids] P6: the title of the issue is missing
                tests/ids.toml: [test-ids] P7: there is no test ``
            "]],
        );
    }

    #[test]
    fn a_file_that_is_missing_or_unreadable_is_found() {
        let found = |file| lines(&check(file, &sample_tests()));
        assert_eq!(found(None), "tests/ids.toml: [test-ids] the file is missing\n");
        assert!(found(Some("[ids")).contains("[test-ids] TOML parse error"));
        assert!(found(Some("[ids]\n[more]\n")).contains("unknown field `more`"));
        assert!(found(Some("[ids]\nP1 = \"a\"\nP1 = \"b\"\n")).contains("duplicate key"));
    }

    #[test]
    fn an_id_without_one_meaning_is_found() {
        let row = |id: &String| match id.as_str() {
            "P1" => String::new(),
            "P2" => "| P2 |  |\n".to_owned(),
            "P3" => "| P3 | A. |\n| P3 | B. |\n".to_owned(),
            _ => format!("| {id} | Meaning. |\n"),
        };
        let page = format!("{}| P99 | Meaning. |\n", all_ids().iter().map(row).collect::<String>());
        expect![[r"
            docs/behaviours.md: [test-ids] P1 is not defined
            docs/behaviours.md: [test-ids] P2 has no meaning
            docs/behaviours.md: [test-ids] P3 is defined more than once
            docs/behaviours.md: [test-ids] P99 is in no group of ids
        "]]
        .assert_eq(&lines(&check_page(&page)));
    }

    #[test]
    fn an_id_in_a_comment_that_is_not_defined_is_found() {
        let text =
            "// N27, N99\nfn a() {}\n    // Q1: a reason.\n// A1\n// S3 holds it.\n// T9, half\n";
        expect![[r"
            a.rs:1: [test-ids] N99 is not defined in docs/behaviours.md
            a.rs:3: [test-ids] Q1 is not defined in docs/behaviours.md
        "]]
        .assert_eq(&lines(&check_comments(&[source("a.rs", text)])));
    }
}
