//! Licences and sources of the dependencies, checked against the lists in `deny.toml`.
//!
//! CI runs cargo-deny with the same file. This check needs no download, so it also runs offline. It
//! covers the licences of the packages for this platform, since cargo has only those on disk, and
//! the sources of every package in `Cargo.lock`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Finding;
use super::edges::cargo;

const DENY: &str = "deny.toml";
const LOCK: &str = "Cargo.lock";

/// The part of `deny.toml` that is read here.
#[derive(Deserialize)]
struct Deny {
    licenses: Licenses,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    exceptions: Vec<Exception>,
}

/// Licences that are allowed for one package only.
#[derive(Deserialize)]
struct Exception {
    #[serde(rename = "crate")]
    package: String,
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
    allow_git: Vec<String>,
}

/// The part of `cargo metadata` that is read here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    /// An SPDX expression; absent when a manifest names a file instead.
    license: Option<String>,
    /// Absent for a package that was read from a path.
    source: Option<String>,
}

/// The part of `Cargo.lock` that is read here.
#[derive(Deserialize)]
struct Lock {
    package: Vec<LockedPackage>,
}

#[derive(Deserialize)]
struct LockedPackage {
    name: String,
    source: Option<String>,
}

pub(crate) fn check_workspace(root: &Path) -> Result<Vec<Finding>> {
    let read = |name: &str| {
        std::fs::read_to_string(root.join(name)).with_context(|| format!("failed to read {name}"))
    };
    let deny: Deny = toml::from_str(&read(DENY)?).context("failed to parse deny.toml")?;
    let lock: Lock = toml::from_str(&read(LOCK)?).context("failed to parse Cargo.lock")?;
    let platform = host_platform()?;
    let arguments = ["metadata", "--format-version", "1", "--offline", "--locked"];
    let metadata = cargo(root, &[&arguments[..], &["--filter-platform", &platform]].concat())?;
    let metadata: Metadata =
        serde_json::from_str(&metadata).context("failed to parse the output of cargo metadata")?;
    let mut findings = check_licences(&metadata, &deny.licenses);
    findings.extend(check_paths(&metadata));
    findings.extend(check_sources(&lock, &deny.sources));
    Ok(findings)
}

/// Without a platform, cargo would need packages that only other platforms build.
fn host_platform() -> Result<String> {
    let output =
        Command::new("rustc").arg("-vV").output().context("failed to start `rustc -vV`")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` prints no host")?.to_owned())
}

fn check_licences(metadata: &Metadata, licenses: &Licenses) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let exceptions = licenses.exceptions.iter().filter(|entry| entry.package == package.name);
        let exceptions: Vec<&String> = exceptions.flat_map(|entry| &entry.allow).collect();
        let is_allowed =
            |licence: &str| licenses.allow.iter().chain(exceptions.clone()).any(|l| l == licence);
        let name = &package.name;
        let text = match &package.license {
            None => format!("{name} declares no licence"),
            Some(expression) => match evaluate(expression, &is_allowed) {
                Ok(true) => continue,
                Ok(false) => format!("{name} has the licence `{expression}`, which is not allowed"),
                Err(error) => format!("{name} has the licence `{expression}`: {error}"),
            },
        };
        findings.push(Finding::new(DENY, "licences", text));
    }
    findings
}

/// A package from a path outside of the workspace has neither a version nor a checksum.
fn check_paths(metadata: &Metadata) -> Vec<Finding> {
    let is_foreign = |package: &&Package| {
        package.source.is_none() && !metadata.workspace_members.contains(&package.id)
    };
    let foreign = metadata.packages.iter().filter(is_foreign);
    let text = |package: &Package| format!("{} is a path outside of the workspace", package.name);
    foreign.map(|package| Finding::new(LOCK, "sources", text(package))).collect()
}

fn check_sources(lock: &Lock, sources: &Sources) -> Vec<Finding> {
    let is_allowed = |source: &str| {
        let registry = source.strip_prefix("registry+").or_else(|| source.strip_prefix("sparse+"));
        let git = source.strip_prefix("git+").and_then(|rest| rest.split(['?', '#']).next());
        registry.is_some_and(|url| sources.allow_registry.iter().any(|allowed| allowed == url))
            || git.is_some_and(|url| sources.allow_git.iter().any(|allowed| allowed == url))
    };
    let mut findings = Vec::new();
    for LockedPackage { name, source } in &lock.package {
        if let Some(source) = source.as_deref().filter(|source| !is_allowed(source)) {
            let text = format!("{name} comes from {source}, which {DENY} does not allow");
            findings.push(Finding::new(LOCK, "sources", text));
        }
    }
    findings
}

/// Whether an SPDX expression is satisfied by the allowed licences. `WITH` binds closest, then
/// `AND`, then `OR`. A licence `WITH` an exception counts only if the list names both together.
fn evaluate(expression: &str, is_allowed: &dyn Fn(&str) -> bool) -> Result<bool> {
    // Old manifests write a slash for OR.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut tokens = Tokens { rest: spaced.split_whitespace().collect(), is_allowed };
    tokens.rest.reverse();
    let value = tokens.any()?;
    match tokens.rest.last() {
        None => Ok(value),
        Some(token) => bail!("`{token}` is unexpected"),
    }
}

/// The tokens of an expression, last one first.
struct Tokens<'a> {
    rest: Vec<&'a str>,
    is_allowed: &'a dyn Fn(&str) -> bool,
}

impl Tokens<'_> {
    fn any(&mut self) -> Result<bool> {
        let mut value = self.all()?;
        while self.take("OR") {
            value |= self.all()?;
        }
        Ok(value)
    }

    fn all(&mut self) -> Result<bool> {
        let mut value = self.term()?;
        while self.take("AND") {
            value &= self.term()?;
        }
        Ok(value)
    }

    fn term(&mut self) -> Result<bool> {
        if self.take("(") {
            let value = self.any()?;
            if !self.take(")") {
                bail!("`)` is missing");
            }
            return Ok(value);
        }
        let licence = self.name()?;
        if self.take("WITH") {
            let exception = self.name()?;
            return Ok((self.is_allowed)(&format!("{licence} WITH {exception}")));
        }
        Ok((self.is_allowed)(&licence))
    }

    fn name(&mut self) -> Result<String> {
        match self.rest.pop() {
            Some(token) if !matches!(token, "(" | ")" | "OR" | "AND" | "WITH") => {
                Ok(token.to_owned())
            }
            Some(token) => bail!("`{token}` is unexpected"),
            None => bail!("the expression is incomplete"),
        }
    }

    fn take(&mut self, token: &str) -> bool {
        let is_next = self.rest.last() == Some(&token);
        if is_next {
            self.rest.pop();
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::tidy::samples::lines;

    fn is_satisfied(expression: &str) -> Result<bool, String> {
        let allowed = ["MIT", "Apache-2.0", "ISC", "Apache-2.0 WITH LLVM-exception"];
        evaluate(expression, &|licence| allowed.contains(&licence)).map_err(|e| e.to_string())
    }

    #[test]
    fn licence_expressions_are_evaluated_with_their_precedence() {
        for expression in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT/GPL-3.0",
            "MIT AND ISC",
            "GPL-3.0 AND GPL-2.0 OR MIT",
            "MIT OR GPL-3.0 AND GPL-2.0",
            "(GPL-3.0 OR MIT) AND ISC",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
        ] {
            assert_eq!(is_satisfied(expression), Ok(true), "{expression}");
        }
        for expression in [
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(GPL-3.0 OR MIT) AND GPL-2.0",
            "MIT AND GPL-3.0 OR GPL-2.0",
            "MIT WITH LLVM-exception",
            "mit",
        ] {
            assert_eq!(is_satisfied(expression), Ok(false), "{expression}");
        }
        for (expression, error) in [
            ("", "the expression is incomplete"),
            ("MIT OR", "the expression is incomplete"),
            ("MIT ISC", "`ISC` is unexpected"),
            ("(MIT", "`)` is missing"),
            ("AND MIT", "`AND` is unexpected"),
        ] {
            assert_eq!(is_satisfied(expression), Err(error.to_owned()), "{expression}");
        }
    }

    fn deny() -> Deny {
        toml::from_str(
            r#"
            [licenses]
            allow = ["MIT"]
            exceptions = [{ crate = "special", allow = ["OpenSSL"] }]
            [sources]
            allow-registry = ["https://registry.example.org/index"]
            allow-git = ["https://git.example.org/fork"]
            "#,
        )
        .unwrap()
    }

    #[test]
    fn a_licence_that_is_not_allowed_is_found() {
        let metadata = serde_json::json!({ "workspace_members": [], "packages": [
            { "id": "a", "name": "good", "license": "MIT OR GPL-3.0", "source": "x" },
            { "id": "b", "name": "strict", "license": "GPL-3.0", "source": "x" },
            { "id": "c", "name": "silent", "license": null, "source": "x" },
            { "id": "d", "name": "broken", "license": "MIT OR", "source": "x" },
            { "id": "e", "name": "special", "license": "OpenSSL AND MIT", "source": "x" },
            { "id": "f", "name": "plain", "license": "OpenSSL", "source": "x" },
        ] });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        expect![[r"
            deny.toml: [licences] strict has the licence `GPL-3.0`, which is not allowed
            deny.toml: [licences] silent declares no licence
            deny.toml: [licences] broken has the licence `MIT OR`: the expression is incomplete
            deny.toml: [licences] plain has the licence `OpenSSL`, which is not allowed
        "]]
        .assert_eq(&lines(&check_licences(&metadata, &deny().licenses)));
    }

    #[test]
    fn a_source_that_is_not_allowed_is_found() {
        let lock = r#"
            [[package]]
            name = "member"
            [[package]]
            name = "registered"
            source = "registry+https://registry.example.org/index"
            [[package]]
            name = "forked"
            source = "git+https://git.example.org/fork?branch=main#0123abcd"
            [[package]]
            name = "mirrored"
            source = "registry+https://mirror.example.org/index"
            [[package]]
            name = "borrowed"
            source = "git+https://git.example.org/copy#0123abcd"
        "#;
        let lock: Lock = toml::from_str(lock).unwrap();
        expect![[r"
            Cargo.lock: [sources] mirrored comes from registry+https://mirror.example.org/index, which deny.toml does not allow
            Cargo.lock: [sources] borrowed comes from git+https://git.example.org/copy#0123abcd, which deny.toml does not allow
        "]]
        .assert_eq(&lines(&check_sources(&lock, &deny().sources)));
    }

    #[test]
    fn a_path_outside_of_the_workspace_is_found() {
        let metadata = serde_json::json!({ "workspace_members": ["a"], "packages": [
            { "id": "a", "name": "member", "license": "MIT", "source": null },
            { "id": "b", "name": "sibling", "license": "MIT", "source": null },
        ] });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        expect![[r"
            Cargo.lock: [sources] sibling is a path outside of the workspace
        "]]
        .assert_eq(&lines(&check_paths(&metadata)));
    }
}
