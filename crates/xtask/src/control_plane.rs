//! Programs of a real control plane: etcd, kube-apiserver, kube-controller-manager, kubectl.
//!
//! They are built from `tools/control-plane` once, into a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::go::{self, Program, Programs};

/// The minors that tests run on, oldest first; each is a folder of `tools/control-plane`.
pub(crate) const MINORS: &[&str] = &["1.34", "1.37"];

const MODULES: &str = "tools/control-plane";

pub(crate) const KUBERNETES: &str = "k8s.io/kubernetes";

/// The same module serves all minors.
const ETCD: &str = "etcd";

/// The programs to build: name and Go package. Smallest first, so that a machine that cannot build
/// fails early.
const PROGRAMS: &[(&str, &str)] = &[
    (ETCD, "go.etcd.io/etcd/server/v3"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
];

/// The folder in which envtest expects the same programs.
pub(crate) const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The missing dependency, and its download page.
pub(crate) const GO: &str = "Go 1.26 or newer (https://go.dev/dl)";

/// The arguments of the task `control-plane`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// A minor, or all of them.
    pub(crate) minor: Option<&'static str>,
    /// A folder with programs that were built before.
    pub(crate) bin_dir: Option<PathBuf>,
}

/// Prints a folder for each minor, in order. Progress goes to stderr.
pub(crate) fn run(root: &Path, desired: &Desired) -> Result<()> {
    if let Some(folder) = &desired.bin_dir {
        let minors = desired.minor.map_or(MINORS, |_| desired.minor.as_slice());
        let found =
            programs_in(folder).map_err(|fault| anyhow!("{}: {fault}", folder.display()))?;
        if !minors.iter().any(|minor| is_of_minor(&found, minor)) {
            bail!("{}: contains {found}, not {}", folder.display(), minors.join(" or "));
        }
        println!("{}", folder.display());
        return Ok(());
    }
    for minor in MINORS.iter().filter(|minor| desired.minor.is_none_or(|given| given == **minor)) {
        println!("{}", ensure(root, minor)?.display());
    }
    Ok(())
}

/// A folder with all programs of this minor; builds what is missing.
pub(crate) fn ensure(root: &Path, minor: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(ASSETS).map(PathBuf::from) {
        match programs_in(&folder) {
            Ok(found) if is_of_minor(&found, minor) => return Ok(folder),
            Ok(found) => eprintln!("{ASSETS} is not used: it contains {found}, not {minor}"),
            Err(fault) => eprintln!("{ASSETS} is not used: it {fault}"),
        }
    }
    let programs = recipe(&root.join(MODULES), minor)?;
    let cache = go::cache_folder(|name| std::env::var_os(name))?.join("control-plane");
    programs
        .ensure(&cache, &format!("{}-{}", programs.version, programs.fingerprint))
        .with_context(|| format!("failed to build the control plane of {minor}"))
}

/// The version of the kube-apiserver in a folder with all programs, or the fault of the folder.
fn programs_in(folder: &Path) -> Result<String, String> {
    let lacks: Vec<&str> = PROGRAMS
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| !folder.join(name).is_file())
        .collect();
    if !lacks.is_empty() {
        return Err(format!("lacks {}", lacks.join(", ")));
    }
    let output = Command::new(folder.join("kube-apiserver")).arg("--version").output();
    let output = output.map_err(|error| format!("has a kube-apiserver that fails: {error}"))?;
    let version = String::from_utf8_lossy(&output.stdout);
    version
        .split_whitespace()
        .last()
        .map(str::to_owned)
        .ok_or_else(|| "has a kube-apiserver without a version".to_owned())
}

/// Whether `v1.34.4` is of `1.34`.
fn is_of_minor(version: &str, minor: &str) -> bool {
    let rest = version.strip_prefix('v').and_then(|version| version.strip_prefix(minor));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// The programs of a minor, and the inputs that determine them.
fn recipe(modules: &Path, minor: &str) -> Result<Programs> {
    let files = [ETCD, minor]
        .map(|part| ["go.mod", "go.sum"].map(|name| modules.join(part).join(name)))
        .concat();
    let go_mod = fs::read_to_string(modules.join(minor).join("go.mod"))
        .with_context(|| format!("there is no module of {minor}"))?;
    let version = go::required_version(&go_mod, KUBERNETES)
        .with_context(|| format!("the module of {minor} requires no {KUBERNETES}"))?;
    let linker_flags = linker_flags(version);
    let program = |(name, package): &(&str, &str)| Program {
        name: (*name).to_owned(),
        package: (*package).to_owned(),
        module: modules.join(if *name == ETCD { ETCD } else { minor }),
        linker_flags: linker_flags.clone(),
        tags: String::new(),
        has_c: false,
    };
    Ok(Programs {
        label: minor.to_owned(),
        version: version.to_owned(),
        fingerprint: go::fingerprint(&files, &[&linker_flags])?,
        without_go: without_go(minor),
        desired: PROGRAMS.iter().map(program).collect(),
    })
}

/// Without these flags a server reports the version `v0.0.0-master`.
pub(crate) fn linker_flags(version: &str) -> String {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or(""), numbers.next().unwrap_or(""));
    let package = "k8s.io/component-base/version";
    format!(
        "-s -w -X {package}.gitVersion={version} -X {package}.gitMajor={major} \
         -X {package}.gitMinor={minor} -X {package}.gitTreeState=archive"
    )
}

fn without_go(minor: &str) -> String {
    let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
    format!(
        "Go is not installed: install {GO}, or set {ASSETS} to a folder with {} of Kubernetes {minor}",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_minor_has_its_module() {
        for minor in MINORS {
            let recipe = recipe(&crate::repository().join(MODULES), minor).unwrap();
            assert!(is_of_minor(&recipe.version, minor), "{minor} {}", recipe.version);
        }
    }

    /// The staging modules of Kubernetes have its version with the major 0 instead of 1.
    #[test]
    fn replacements_follow_the_version() {
        for minor in MINORS {
            let path = crate::repository().join(MODULES).join(minor).join("go.mod");
            let module = fs::read_to_string(path).unwrap();
            let version = go::required_version(&module, KUBERNETES).unwrap();
            let staged = version.replacen("v1.", "v0.", 1);
            let replacements: Vec<&str> =
                module.lines().filter(|line| line.contains(" => ")).collect();
            assert!(replacements.len() > 30, "{minor}");
            for line in replacements {
                assert!(line.ends_with(&format!(" {staged}")), "{minor}: {line}");
            }
        }
    }

    #[test]
    fn a_version_matches_only_its_own_minor() {
        assert!(is_of_minor("v1.34.4", "1.34"));
        assert!(!is_of_minor("v1.34.4", "1.3"));
        assert!(!is_of_minor("v1.37.1", "1.34"));
        assert!(!is_of_minor("v0.0.0-master", "1.34"));
    }

    #[test]
    fn the_error_for_an_incomplete_folder_lists_the_missing_programs() {
        let nowhere = Path::new("no-such-folder");
        assert_eq!(
            programs_in(nowhere),
            Err("lacks etcd, kubectl, kube-controller-manager, kube-apiserver".to_owned())
        );
    }

    #[test]
    fn the_error_without_go_is_one_line_with_the_remedy() {
        let error = without_go("1.34");
        assert!(!error.contains('\n') && error.contains("install Go"), "{error}");
        assert!(error.contains("kube-controller-manager") && error.contains("1.34"), "{error}");
    }
}
