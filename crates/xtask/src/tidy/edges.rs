//! The layers of the workspace: which crate may use which.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Finding;
use crate::suite::cargo_command;

/// The layers from top to bottom, each with the crates that its code may use. Tests may use every
/// layer above, and nothing may use a layer below. A crate that does not exist yet may be listed.
const LAYERS: &[(&str, &[&str])] = &[
    ("sei-api", &[]),
    ("sei-plan", &["sei-api"]),
    ("sei-model", &["sei-api", "sei-plan"]),
    ("sei-exec", &["sei-api", "sei-plan"]),
    ("sei-operator", &["sei-api", "sei-plan", "sei-exec"]),
    ("kubectl-sei", &["sei-api", "sei-plan", "sei-exec"]),
    ("sei-rig", &["sei-api", "sei-model"]),
    (
        "cluster-tests",
        &["sei-api", "sei-plan", "sei-model", "sei-exec", "sei-operator", "kubectl-sei", "sei-rig"],
    ),
    (
        "sei-sandbox",
        &["sei-api", "sei-plan", "sei-model", "sei-exec", "sei-operator", "kubectl-sei", "sei-rig"],
    ),
    ("xtask", &["sei-api"]),
];

/// The crates that `cargo test` leaves out, because they need more than a toolchain.
const NOT_BY_DEFAULT: &[&str] = &["cluster-tests"];

/// The crates without IO.
const PURE: &[&str] = &["sei-api", "sei-plan", "sei-model"];

/// Features of kube that depend on the network.
const IMPURE_FEATURES: &[&str] = &["client", "runtime"];

/// Packages that a pure crate must not depend on, directly or indirectly.
const IMPURE_PACKAGES: &[&str] = &["tokio", "hyper", "reqwest", "kube-client", "kube-runtime"];

/// The part of `cargo metadata` that is read here.
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
    /// Absent for a dependency of the code itself.
    kind: Option<String>,
    features: Vec<String>,
    uses_default_features: bool,
    /// Present for crates of this workspace.
    path: Option<String>,
}

pub(crate) fn check_workspace(root: &Path) -> Result<Vec<Finding>> {
    let json = cargo(root, &["metadata", "--no-deps", "--format-version", "1", "--offline"])?;
    let metadata: Metadata =
        serde_json::from_str(&json).context("failed to parse the output of cargo metadata")?;
    let mut findings = check_edges(&metadata);
    findings.extend(check_kube_features(&metadata));
    findings.extend(check_default_members(&metadata));
    let is_present = |name: &str| metadata.packages.iter().any(|package| package.name == name);
    for name in PURE.iter().filter(|name| is_present(name)) {
        let arguments = ["tree", "--offline", "--package", name, "--edges", "normal"];
        let tree = cargo(root, &[&arguments[..], &["--prefix", "none"]].concat())?;
        findings.extend(check_tree(name, &tree));
    }
    Ok(findings)
}

/// The output of a cargo command.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Result<String> {
    let line = format!("cargo {}", arguments.join(" "));
    let output = cargo_command()
        .current_dir(root)
        .args(arguments)
        .output()
        .with_context(|| format!("failed to start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("the output of `{line}` is not UTF-8"))
}

fn check_edges(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("crates/{}/Cargo.toml", package.name);
        let Some(height) = LAYERS.iter().position(|(name, _)| *name == package.name) else {
            findings.push(Finding::new(place, "crate-edges", "is not in the table of layers"));
            continue;
        };
        let may_use = LAYERS[height].1;
        let is_above = |name: &str| LAYERS[..height].iter().any(|(above, _)| *above == name);
        for edge in package.dependencies.iter().filter(|edge| edge.path.is_some()) {
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

/// A crate that is missing from the default members is never tested.
fn check_default_members(metadata: &Metadata) -> Vec<Finding> {
    let is_member = |package: &Package| metadata.workspace_default_members.contains(&package.id);
    let is_desired = |package: &Package| !NOT_BY_DEFAULT.contains(&package.name.as_str());
    let is_wrong = |package: &&Package| is_member(package) != is_desired(package);
    let finding = |package: &Package| {
        let must = if is_desired(package) { "must be" } else { "must not be" };
        let text = format!("{} {must} in default-members", package.name);
        Finding::new("Cargo.toml", "default-members", text)
    };
    metadata.packages.iter().filter(is_wrong).map(finding).collect()
}

fn check_kube_features(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_pure = |package: &&Package| PURE.contains(&package.name.as_str());
    for package in metadata.packages.iter().filter(is_pure) {
        for kube in package.dependencies.iter().filter(|edge| edge.name == "kube") {
            let mut impure: Vec<&str> = kube.features.iter().map(String::as_str).collect();
            impure.retain(|feature| IMPURE_FEATURES.contains(feature));
            if kube.uses_default_features {
                impure.push("default");
            }
            findings.extend(impure.iter().map(|feature| {
                let place = format!("crates/{}/Cargo.toml", package.name);
                Finding::new(
                    place,
                    "pure-crates",
                    format!("must use kube without its feature `{feature}`"),
                )
            }));
        }
    }
    findings
}

/// Checks the output of `cargo tree --prefix none`: a package per line, its name first.
fn check_tree(name: &str, tree: &str) -> Vec<Finding> {
    let has = |package: &str| tree.lines().any(|line| line.split(' ').next() == Some(package));
    IMPURE_PACKAGES
        .iter()
        .filter(|package| has(package))
        .map(|package| {
            let text =
                format!("depends on {package}; see `cargo tree -p {name} -e normal -i {package}`");
            Finding::new(format!("crates/{name}/Cargo.toml"), "pure-crates", text)
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
        check("kubectl-sei", &edge("sei-model", Some("dev")), &expect![""]);
        check("cluster-tests", &edge("sei-rig", None), &expect![""]);
    }

    #[test]
    fn edges_that_point_down_the_table_are_found() {
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
                crates/sei-utils/Cargo.toml: [crate-edges] is not in the table of layers
            "]],
        );
    }

    #[test]
    fn a_crate_that_cargo_test_leaves_out_is_found() {
        let package = |name: &str| json!({ "id": name, "name": name, "dependencies": [] });
        let packages = ["sei-api", "sei-plan", "cluster-tests"].map(package);
        let metadata = json!({ "packages": packages,
            "workspace_default_members": ["sei-api", "cluster-tests"] });
        let metadata: Metadata = serde_json::from_value(metadata).unwrap();
        expect![[r"
            Cargo.toml: [default-members] sei-plan must be in default-members
            Cargo.toml: [default-members] cluster-tests must not be in default-members
        "]]
        .assert_eq(&lines(&check_default_members(&metadata)));
    }

    #[test]
    fn every_layer_uses_only_layers_above_it() {
        for (height, (name, may_use)) in LAYERS.iter().enumerate() {
            for used in *may_use {
                assert!(LAYERS[..height].iter().any(|(above, _)| above == used), "{name} {used}");
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
                crates/sei-plan/Cargo.toml: [pure-crates] must use kube without its feature `client`
                crates/sei-plan/Cargo.toml: [pure-crates] must use kube without its feature `default`
            "]],
        );
    }

    #[test]
    fn an_indirect_dependency_of_a_pure_crate_on_a_runtime_is_found() {
        let tree = "sei-plan v0.0.0 (crates/sei-plan)\nhyper-util v0.1.0\ntokio v1.50.0 (*)\n";
        expect![[r"
            crates/sei-plan/Cargo.toml: [pure-crates] depends on tokio; see `cargo tree -p sei-plan -e normal -i tokio`
        "]]
        .assert_eq(&lines(&check_tree("sei-plan", tree)));
    }
}
