//! Rules of this repository that no compiler checks.
//!
//! Each check is a pure function from file contents to findings, so that tests can run it on bad
//! samples. The texts that a check searches for are concatenated from parts, so that the check does
//! not find its own source.

mod edges;
mod ids;
mod licences;
mod names;
mod reasons;
mod retired;
mod text;

use std::fmt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use self::names::TestNames;

/// A violation of a rule, and its place.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    place: String,
    rule: &'static str,
    text: String,
}

impl Finding {
    fn new(place: impl Into<String>, rule: &'static str, text: impl Into<String>) -> Self {
        Self { place: place.into(), rule, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: [{}] {}", self.place, self.rule, self.text)
    }
}

/// A text file of the repository; its path is relative to the root, with `/`.
pub(crate) struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.to_ascii_lowercase().ends_with(".rs")
    }

    /// Whether it is the root file of a crate.
    fn is_crate_root(&self) -> bool {
        let parts: Vec<&str> = self.path.split('/').collect();
        matches!(parts[..], ["crates", _, "src", "lib.rs" | "main.rs"])
    }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let findings = findings(root)?;
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("{} findings", findings.len());
    }
    println!("the repository is tidy");
    Ok(())
}

/// Checks every rule on the repository.
fn findings(root: &Path) -> Result<Vec<Finding>> {
    let sources = read_sources(root)?;
    let tests = TestNames::collect(&sources);
    let mut findings = edges::check_workspace(root)?;
    findings.extend(licences::check_workspace(root)?);
    findings.extend(text::check_all(&sources));
    findings.extend(reasons::check(&sources));
    findings.extend(names::check_guards(&sources, &tests));
    findings.extend(names::check_invariants(&sources, &tests));
    findings.extend(ids::check_files(&sources, &tests));
    findings.extend(retired::check_all(&sources));
    Ok(findings)
}

/// Tracked files and new ones that git does not ignore. Files that are not text are left out.
fn read_sources(root: &Path) -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    // A checkout may belong to another user, as in a CI container.
    git.current_dir(root).args(["-c", "safe.directory=*"]);
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let output = git.output().context("failed to start git")?;
    if !output.status.success() {
        bail!("git ls-files failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let list = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    let mut paths: Vec<&str> = list.split('\0').filter(|path| !path.is_empty()).collect();
    paths.sort_unstable();
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some(Source { path: path.to_owned(), text })
    };
    Ok(paths.into_iter().filter_map(read).collect())
}

#[cfg(test)]
pub(crate) mod samples {
    use super::{Finding, Source};

    pub(crate) fn source(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn lines(findings: &[Finding]) -> String {
        findings.iter().map(|finding| format!("{finding}\n")).collect::<Vec<_>>().concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let findings = findings(&crate::repository()).unwrap();
        assert!(findings.is_empty(), "\n{}", samples::lines(&findings));
    }

    #[test]
    fn the_files_of_the_repository_are_found() {
        let sources = read_sources(&crate::repository()).unwrap();
        for path in ["Cargo.toml", "crates/xtask/src/tidy/mod.rs", "crates/sei-api/src/lib.rs"] {
            assert!(sources.iter().any(|source| source.path == path), "{path}");
        }
        assert!(!sources.iter().any(|source| source.path.starts_with("target/")));
    }
}
