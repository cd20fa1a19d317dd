//! Gives the program the version of its build, in `SEI_OPERATOR_VERSION`.
//!
//! The version comes from the environment variable of that name, or from `git describe`; without
//! either it is the version of the crate. The same commit gives the same version, so that builds stay
//! reproducible.

use std::process::Command;

const VARIABLE: &str = "SEI_OPERATOR_VERSION";

fn main() {
    println!("cargo:rerun-if-env-changed={VARIABLE}");
    println!("cargo:rerun-if-changed=build.rs");
    for name in ["HEAD", "logs/HEAD", "packed-refs"] {
        // A path that does not exist would run this before every build.
        let path = git(&["rev-parse", "--git-path", name]);
        if let Some(path) = path.filter(|path| std::path::Path::new(path).exists()) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let given = std::env::var(VARIABLE).ok().filter(|version| !version.is_empty());
    let version = given.or_else(described).unwrap_or_else(crate_version);
    println!("cargo:rustc-env={VARIABLE}={version}");
}

/// The last tag and the commit. Without a tag, the version of the crate and the commit: a bare
/// commit id may consist of digits, and would then compare as a version.
fn described() -> Option<String> {
    let tagged = git(&["describe", "--tags", "--match", "v[0-9]*"]);
    let by_commit =
        || Some(format!("{}-g{}", crate_version(), git(&["rev-parse", "--short=12", "HEAD"])?));
    tagged.map(|tag| tag.trim_start_matches('v').to_owned()).or_else(by_commit)
}

fn crate_version() -> String {
    std::env::var("CARGO_PKG_VERSION").unwrap_or_default()
}

/// The output of git; `None` outside of a repository, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
