//! Which crate may use which.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Finding;
use crate::suite::cargo_command;

/// The rooms from top to bottom, each with what its code may use. Tests may use any room above,
/// and nothing may use a room below.
const ROOMS: &[(&str, &[&str])] = &[
    ("sei-api", &[]),
    ("sei-plan", &["sei-api"]),
    ("sei-exec", &["sei-api", "sei-plan"]),
    ("sei-operator", &["sei-api", "sei-plan", "sei-exec"]),
    ("sei-sim", &["sei-api", "sei-plan", "sei-exec", "sei-operator"]),
    ("kubectl-sei", &["sei-api", "sei-plan", "sei-exec"]),
    ("sei-rig", &["sei-api"]),
    (
        "cluster-tests",
        &["sei-api", "sei-plan", "sei-exec", "sei-operator", "sei-sim", "kubectl-sei", "sei-rig"],
    ),
    (
        "sei-sandbox",
        &["sei-api", "sei-plan", "sei-exec", "sei-operator", "sei-sim", "kubectl-sei", "sei-rig"],
    ),
    ("xtask", &["sei-api"]),
];

/// The rooms that `cargo test` leaves out, because they need more than a toolchain.
const NOT_BY_DEFAULT: &[&str] = &["cluster-tests"];

/// The rooms that touch nothing outside.
const PURE: &[&str] = &["sei-api", "sei-plan"];

/// Features of kube that bring the network along.
const IMPURE_FEATURES: &[&str] = &["client", "runtime"];

/// Packages that a pure room must not bring in, however far down.
const IMPURE_PACKAGES: &[&str] = &["tokio", "hyper", "reqwest", "kube-client", "kube-runtime"];

/// What `cargo metadata` tells, as far as it matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    #[serde(default)]
    workspace_default_members: Vec<String>,
}

#[derive(Deserialize)]
struct Package {
    #[serde(default)]
    id: String,
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// Absent for what the code itself uses.
    kind: Option<String>,
    features: Vec<String>,
    uses_default_features: bool,
    /// Present for crates of this workspace.
    path: Option<String>,
}

pub(crate) fn check_workspace(root: &Path) -> Result<Vec<Finding>> {
    let json = cargo(root, &["metadata", "--no-deps", "--format-version", "1", "--offline"])?;
    let metadata: Metadata =
        serde_json::from_str(&json).context("failed to read what cargo metadata told")?;
    let mut findings = check_edges(&metadata);
    findings.extend(check_kube_features(&metadata));
    findings.extend(check_default_members(&metadata));
    for room in PURE {
        let arguments = ["tree", "--offline", "--package", room, "--edges", "normal"];
        let tree = cargo(root, &[&arguments[..], &["--prefix", "none"]].concat())?;
        findings.extend(check_tree(room, &tree));
    }
    Ok(findings)
}

fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let told_as = format!("cargo {}", arguments.join(" "));
    let output = cargo_command()
        .current_dir(root)
        .args(arguments)
        .output()
        .with_context(|| format!("failed to start `{told_as}`"))?;
    if !output.status.success() {
        bail!("`{told_as}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("`{told_as}` told no UTF-8"))
}

fn check_edges(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("crates/{}/Cargo.toml", package.name);
        let Some(height) = ROOMS.iter().position(|(name, _)| *name == package.name) else {
            findings.push(Finding::new(place, "crate-edges", "is not in the table of rooms"));
            continue;
        };
        let may_use = ROOMS[height].1;
        let is_above = |name: &str| ROOMS[..height].iter().any(|(above, _)| *above == name);
        for edge in package.dependencies.iter().filter(|one| one.path.is_some()) {
            let is_for_tests = edge.kind.as_deref() == Some("dev");
            let name = edge.name.as_str();
            let is_allowed = may_use.contains(&name) || (is_for_tests && is_above(name));
            if !is_allowed {
                let kind = if is_for_tests { "the tests of" } else { "the code of" };
                let text = format!("{kind} {} may not use {name}", package.name);
                findings.push(Finding::new(&place, "crate-edges", text));
            }
        }
    }
    findings
}

/// A crate that is forgotten there is never tested.
fn check_default_members(metadata: &Metadata) -> Vec<Finding> {
    let is_member = |one: &Package| metadata.workspace_default_members.contains(&one.id);
    let is_desired = |one: &Package| !NOT_BY_DEFAULT.contains(&one.name.as_str());
    let wrong = metadata.packages.iter().filter(|one| is_member(one) != is_desired(one));
    let told = |one: &Package| {
        let must = if is_desired(one) { "must be" } else { "must not be" };
        let text = format!("{} {must} one of default-members", one.name);
        Finding::new("Cargo.toml", "default-members", text)
    };
    wrong.map(told).collect()
}

fn check_kube_features(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in metadata.packages.iter().filter(|one| PURE.contains(&one.name.as_str())) {
        for kube in package.dependencies.iter().filter(|one| one.name == "kube") {
            let mut impure: Vec<&str> = kube.features.iter().map(String::as_str).collect();
            impure.retain(|feature| IMPURE_FEATURES.contains(feature));
            if kube.uses_default_features {
                impure.push("default");
            }
            findings.extend(impure.iter().map(|feature| {
                let place = format!("crates/{}/Cargo.toml", package.name);
                Finding::new(place, "pure-crates", format!("kube without feature `{feature}`"))
            }));
        }
    }
    findings
}

/// A tree as `cargo tree --prefix none` prints it: one package a line, its name first.
fn check_tree(room: &str, tree: &str) -> Vec<Finding> {
    let has = |package: &str| tree.lines().any(|line| line.split(' ').next() == Some(package));
    IMPURE_PACKAGES
        .iter()
        .filter(|package| has(package))
        .map(|package| {
            let text =
                format!("brings in {package}; see `cargo tree -p {room} -e normal -i {package}`");
            Finding::new(format!("crates/{room}/Cargo.toml"), "pure-crates", text)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde_json::json;

    use super::*;
    use crate::tidy::samples::lines;

    fn edge(name: &str, kind: Option<&str>) -> serde_json::Value {
        json!({ "name": name, "kind": kind, "features": [], "uses_default_features": false,
            "path": format!("crates/{name}") })
    }

    fn check(from: &str, edge: &serde_json::Value, expected: &Expect) {
        let package = json!({ "name": from, "dependencies": [edge] });
        let metadata = json!({ "packages": [package] });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        let mut findings = check_edges(&metadata);
        findings.extend(check_kube_features(&metadata));
        expected.assert_eq(&lines(&findings));
    }

    #[test]
    fn edges_that_point_up_the_table_pass() {
        check("sei-plan", &edge("sei-api", None), &expect![""]);
        check("kubectl-sei", &edge("sei-plan", None), &expect![""]);
        check("kubectl-sei", &edge("sei-sim", Some("dev")), &expect![""]);
        check("cluster-tests", &edge("sei-rig", None), &expect![""]);
    }

    #[test]
    fn edges_that_point_elsewhere_are_found() {
        check(
            "sei-api",
            &edge("sei-plan", None),
            &expect![[r"
                crates/sei-api/Cargo.toml: [crate-edges] the code of sei-api may not use sei-plan
            "]],
        );
        check(
            "sei-rig",
            &edge("sei-plan", Some("build")),
            &expect![[r"
                crates/sei-rig/Cargo.toml: [crate-edges] the code of sei-rig may not use sei-plan
            "]],
        );
        check(
            "sei-plan",
            &edge("sei-exec", Some("dev")),
            &expect![[r"
                crates/sei-plan/Cargo.toml: [crate-edges] the tests of sei-plan may not use sei-exec
            "]],
        );
        check(
            "sei-utils",
            &edge("sei-api", None),
            &expect![[r"
                crates/sei-utils/Cargo.toml: [crate-edges] is not in the table of rooms
            "]],
        );
    }

    #[test]
    fn a_crate_that_plain_tests_would_pass_over_is_found() {
        let package = |name: &str| json!({ "id": name, "name": name, "dependencies": [] });
        let packages = ["sei-api", "sei-plan", "cluster-tests"].map(package);
        let metadata = json!({ "packages": packages,
            "workspace_default_members": ["sei-api", "cluster-tests"] });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        expect![[r"
            Cargo.toml: [default-members] sei-plan must be one of default-members
            Cargo.toml: [default-members] cluster-tests must not be one of default-members
        "]]
        .assert_eq(&lines(&check_default_members(&metadata)));
    }

    /// What a room may use is above it, or the table contradicts itself.
    #[test]
    fn the_table_of_rooms_points_up() {
        for (height, (name, may_use)) in ROOMS.iter().enumerate() {
            for used in *may_use {
                assert!(ROOMS[..height].iter().any(|(above, _)| above == used), "{name} {used}");
            }
        }
    }

    #[test]
    fn a_client_in_a_pure_crate_is_found() {
        let kube = json!({ "name": "kube", "kind": null, "features": ["derive", "client"],
            "uses_default_features": true });
        check("sei-exec", &kube, &expect![""]);
        check(
            "sei-plan",
            &kube,
            &expect![[r"
                crates/sei-plan/Cargo.toml: [pure-crates] kube without feature `client`
                crates/sei-plan/Cargo.toml: [pure-crates] kube without feature `default`
            "]],
        );
    }

    #[test]
    fn a_runtime_far_down_a_pure_crate_is_found() {
        let tree = "sei-plan v0.0.0 (crates/sei-plan)\nhyper-util v0.1.0\ntokio v1.50.0 (*)\n";
        expect![[r"
            crates/sei-plan/Cargo.toml: [pure-crates] brings in tokio; see `cargo tree -p sei-plan -e normal -i tokio`
        "]]
        .assert_eq(&lines(&check_tree("sei-plan", tree)));
    }
}
