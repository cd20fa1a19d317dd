//! Programs of a real control plane: etcd, kube-apiserver, kube-controller-manager, kubectl.
//!
//! They are built from `tools/control-plane`, as `go` builds: once, into a cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::go::{self, Program, Programs};

/// The minors that tests run on, oldest first; each is a folder of `tools/control-plane`.
pub(crate) const MINORS: &[&str] = &["1.34", "1.37"];

const MODULES: &str = "tools/control-plane";

const KUBERNETES: &str = "k8s.io/kubernetes";

/// One module for all minors.
const ETCD: &str = "etcd";

/// What is built: name, and Go package. Smallest first, so that a machine that cannot build tells
/// so soon.
const PROGRAMS: &[(&str, &str)] = &[
    (ETCD, "go.etcd.io/etcd/server/v3"),
    ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
];

/// Where envtest and its friends look for the same programs.
pub(crate) const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// What has to be installed, and where it is had from.
pub(crate) const GO: &str = "Go 1.26 or newer (https://go.dev/dl)";

/// What was typed after `control-plane`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Desired {
    /// One minor, or all of them.
    pub(crate) minor: Option<&'static str>,
    /// Programs that are there already.
    pub(crate) bin_dir: Option<PathBuf>,
}

/// Prints a folder for each minor, in order; everything else it tells goes to stderr.
pub(crate) fn run(root: &Path, desired: &Desired) -> Result<()> {
    if let Some(folder) = &desired.bin_dir {
        let minors = desired.minor.map_or(MINORS, |_| desired.minor.as_slice());
        let found = programs_in(folder).map_err(|why| anyhow!("{}: {why}", folder.display()))?;
        if !minors.iter().any(|minor| is_of_minor(&found, minor)) {
            bail!("{}: holds {found}, not {}", folder.display(), minors.join(" or "));
        }
        println!("{}", folder.display());
        return Ok(());
    }
    for minor in MINORS.iter().filter(|minor| desired.minor.is_none_or(|one| one == **minor)) {
        println!("{}", ensure(root, minor)?.display());
    }
    Ok(())
}

/// A folder with all programs of this minor; builds what is missing.
pub(crate) fn ensure(root: &Path, minor: &str) -> Result<PathBuf> {
    if let Some(folder) = std::env::var_os(ASSETS).map(PathBuf::from) {
        match programs_in(&folder) {
            Ok(found) if is_of_minor(&found, minor) => return Ok(folder),
            Ok(found) => eprintln!("{ASSETS} holds {found}, not {minor}: not used"),
            Err(why) => eprintln!("{ASSETS} {why}: not used"),
        }
    }
    let programs = recipe(&root.join(MODULES), minor)?;
    let cache = go::cache_folder(|name| std::env::var_os(name))?.join("control-plane");
    programs
        .ensure(&cache, &format!("{}-{}", programs.version, programs.fingerprint))
        .with_context(|| format!("failed to build the control plane of {minor}"))
}

/// The version of the kube-apiserver in a folder that holds everything, or what is wrong with it.
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
    let told = String::from_utf8_lossy(&output.stdout);
    told.split_whitespace()
        .last()
        .map(str::to_owned)
        .ok_or_else(|| "has a kube-apiserver without a version".to_owned())
}

/// Whether `v1.34.4` is of `1.34`.
fn is_of_minor(version: &str, minor: &str) -> bool {
    let rest = version.strip_prefix('v').and_then(|version| version.strip_prefix(minor));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What is built, and what decides the outcome.
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
    };
    Ok(Programs {
        label: minor.to_owned(),
        version: version.to_owned(),
        fingerprint: go::fingerprint(&files, &[&linker_flags])?,
        without_go: without_go(minor),
        desired: PROGRAMS.iter().map(program).collect(),
    })
}

/// Without them a server says it is `v0.0.0-master`, and what asks for its version is misled.
fn linker_flags(version: &str) -> String {
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
        "there is no Go: install {GO}, or set {ASSETS} to a folder with {} of Kubernetes {minor}",
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

    /// Kubernetes names its staging modules by the same version as itself, 0 instead of 1.
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
    fn a_version_is_of_its_minor_only() {
        assert!(is_of_minor("v1.34.4", "1.34"));
        assert!(!is_of_minor("v1.34.4", "1.3"));
        assert!(!is_of_minor("v1.37.1", "1.34"));
        assert!(!is_of_minor("v0.0.0-master", "1.34"));
    }

    #[test]
    fn a_folder_without_all_programs_says_what_it_lacks() {
        let nowhere = Path::new("no-such-folder");
        assert_eq!(
            programs_in(nowhere),
            Err("lacks etcd, kubectl, kube-controller-manager, kube-apiserver".to_owned())
        );
    }

    #[test]
    fn no_go_is_told_in_one_line_with_what_to_install() {
        let told = without_go("1.34");
        assert!(!told.contains('\n') && told.contains("install Go"), "{told}");
        assert!(told.contains("kube-controller-manager") && told.contains("1.34"), "{told}");
    }
}
