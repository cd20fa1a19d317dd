//! Every reason of a condition is set by code: a documented reason that nothing sets misleads users,
//! and an alert on it never fires.

use sei_api::condition::{REASONS, Reason};

use super::{Finding, Source};

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let code: Vec<&str> = sources.iter().filter(|source| sets(source)).map(code_of).collect();
    let unset = |reason: &Reason| {
        let name = format!("Reason::{reason:?}");
        // A longer name may begin with this one.
        let is_set = |text: &str| {
            text.match_indices(&name).any(|(at, _)| {
                !text[at + name.len()..].starts_with(|c: char| c.is_ascii_alphanumeric())
            })
        };
        !code.iter().any(|text| is_set(text))
    };
    let finding = |reason| {
        let text = format!("no code sets {reason}");
        Finding::new("crates/sei-api/src/condition.rs", "reasons", text)
    };
    REASONS.iter().map(|row| row.reason).filter(unset).map(finding).collect()
}

/// The decisions and the tasks; all else only reads reasons.
fn sets(source: &Source) -> bool {
    source.path.starts_with("crates/sei-plan/src/")
        && source.is_rust()
        && !source.path.contains("tests")
        && !source.path.contains("fixture")
}

/// The text before the tests of the file.
fn code_of(source: &Source) -> &str {
    let text = source.text.as_str();
    text.split("#[cfg(test)]\nmod tests {").next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_that_no_code_sets_is_found() {
        let source = |text: &str| Source {
            path: "crates/sei-plan/src/planner/stall.rs".to_owned(),
            text: text.to_owned(),
        };
        let names: Vec<_> =
            REASONS.iter().map(|row| format!("Reason::{:?};\n", row.reason)).collect();
        let all = names.concat();
        assert_eq!(check(&[source(&all)]), []);
        let without = all.replace("Reason::NodeLost;\n", "");
        let found = check(&[source(&without)]);
        assert_eq!(found.len(), 1);
        assert!(found[0].text.contains("NodeLost"));
    }
}
