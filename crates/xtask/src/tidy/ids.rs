//! The inventory of behaviours that the peer's tests assert, and what became of each.
//!
//! `tests/ids.toml` maps every id to a test of ours, or says why there is none:
//!
//! ```toml
//! [ids]
//! P1 = "planner::tests::an_equal_image_makes_no_plan"
//! P2 = "ours: the_update_plan_has_its_tasks: another order, on purpose"
//! P34 = "era: the list of an older version"
//! K1 = "later: Title of the issue that brings it"
//! ```

use std::collections::BTreeMap;

use super::names::TestNames;
use super::{Finding, Source};

/// Whether the file must be there: its loss is a finding.
const IDS_REQUIRED: bool = true;

const FILE: &str = "tests/ids.toml";
const RULE: &str = "test-ids";

/// Each group of ids with the number of its last one; all count from 1.
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
    // What every rewrite of an update must survive.
    ("A", 12),
];

pub(crate) fn check_file(sources: &[Source], tests: &TestNames) -> Vec<Finding> {
    let file = sources.iter().find(|one| one.path == FILE).map(|one| one.text.as_str());
    check(file, IDS_REQUIRED, tests)
}

fn check(file: Option<&str>, is_required: bool, tests: &TestNames) -> Vec<Finding> {
    match file.map(read) {
        None if is_required => vec![Finding::new(FILE, RULE, "the file is missing")],
        None => Vec::new(),
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

fn check_ids(ids: &BTreeMap<String, String>, tests: &TestNames) -> Vec<Finding> {
    let expected: Vec<String> = GROUPS
        .iter()
        .flat_map(|(group, last)| (1..=*last).map(move |number| format!("{group}{number}")))
        .collect();
    let mut findings = Vec::new();
    for id in expected.iter().filter(|id| !ids.contains_key(*id)) {
        findings.push(Finding::new(FILE, RULE, format!("{id} is missing")));
    }
    for (id, value) in ids {
        if !expected.contains(id) {
            findings.push(Finding::new(FILE, RULE, format!("{id} is not in the inventory")));
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
    let told = |why: &str, what| {
        let is_told = !why.trim().is_empty();
        is_told.then_some(()).ok_or_else(|| format!("{what} is missing"))
    };
    match value.split_once(": ").unwrap_or((value.trim_end_matches(':'), "")) {
        ("ours", rest) => {
            let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
            known(name).and_then(|()| told(why, "the reason"))
        }
        ("era", why) => told(why, "the reason"),
        ("later", title) => told(title, "the title of the issue"),
        _ => known(value),
    }
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

    /// The whole inventory as later work, with some lines replaced or added.
    fn check_with(changes: &[(&str, Option<&str>)], expected: &Expect) {
        let mut ids: BTreeMap<String, Option<&str>> = BTreeMap::new();
        for (group, last) in GROUPS {
            ids.extend((1..=*last).map(|number| (format!("{group}{number}"), Some("later: x"))));
        }
        ids.extend(changes.iter().map(|(id, value)| ((*id).to_owned(), *value)));
        let entries = ids.iter().filter_map(|(id, value)| Some((id, (*value)?)));
        let entries: Vec<String> =
            entries.map(|(id, value)| format!("{id} = {value:?}\n")).collect();
        let file = format!("[ids]\n{}", entries.concat());
        expected.assert_eq(&lines(&check(Some(&file), true, &sample_tests())));
    }

    #[test]
    fn a_whole_inventory_passes() {
        check_with(
            &[
                ("P1", Some("planner::tests::it_holds")),
                ("P2", Some("it_holds")),
                ("P3", Some("ours: it_holds: another order")),
                ("P4", Some("era: an older list")),
            ],
            &expect![""],
        );
        assert_eq!(GROUPS.iter().map(|(_, last)| last).sum::<u32>(), 283);
    }

    #[test]
    fn each_fault_of_the_inventory_is_found() {
        check_with(
            &[
                ("P1", None),
                ("SS19", None),
                ("P38", Some("later: x")),
                ("P2", Some("planner::tests::gone")),
                ("P3", Some("ours: gone: why")),
                ("P4", Some("ours: it_holds")),
                ("P5", Some("era:")),
                ("P6", Some("later: ")),
                ("P7", Some("")),
            ],
            &expect![[r"
                tests/ids.toml: [test-ids] P1 is missing
                tests/ids.toml: [test-ids] SS19 is missing
                tests/ids.toml: [test-ids] P2: there is no test `planner::tests::gone`
                tests/ids.toml: [test-ids] P3: there is no test `gone`
                tests/ids.toml: [test-ids] P38 is not in the inventory
                tests/ids.toml: [test-ids] P4: the reason is missing
                tests/ids.toml: [test-ids] P5: the reason is missing
                tests/ids.toml: [test-ids] P6: the title of the issue is missing
                tests/ids.toml: [test-ids] P7: there is no test ``
            "]],
        );
    }

    #[test]
    fn a_file_that_is_missing_or_unreadable_is_found() {
        let told = |file, is_required| lines(&check(file, is_required, &sample_tests()));
        assert_eq!(told(None, true), "tests/ids.toml: [test-ids] the file is missing\n");
        assert_eq!(told(None, false), "");
        assert!(told(Some("[ids"), false).contains("[test-ids] TOML parse error"));
        assert!(told(Some("[ids]\n[other]\n"), false).contains("unknown field `other`"));
        assert!(told(Some("[ids]\nP1 = \"a\"\nP1 = \"b\"\n"), false).contains("duplicate key"));
    }
}
