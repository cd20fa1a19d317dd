//! Programs of a real control plane: etcd, kube-apiserver, kube-controller-manager, kubectl.
//!
//! They are built from `tools/control-plane` by Go, once, and kept outside of the target folder: a
//! build takes minutes, and `cargo clean` should not cost them. The folder is named by what went
//! into it, so that two checkouts share it and a changed module gets one of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use sha2::{Digest as _, Sha256};

/// The minors that tests run on, oldest first; each is a folder of `tools/control-plane`.
pub(crate) const MINORS: &[&str] = &["1.34", "1.37"];

const MODULES: &str = "tools/control-plane";

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

/// Often enough that nobody thinks it hangs, and a dozen lines for the slowest program.
const STILL_BUILDING_EVERY: Duration = Duration::from_secs(20);

/// What was typed after `control-plane`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// One minor, or all of them.
    pub(crate) minor: Option<&'static str>,
    /// Programs that are there already.
    pub(crate) bin_dir: Option<PathBuf>,
}

/// Prints a folder for each minor, in order; everything else it tells goes to stderr.
pub(crate) fn run(root: &Path, wanted: &Wanted) -> Result<()> {
    if let Some(folder) = &wanted.bin_dir {
        let minors = wanted.minor.map_or(MINORS, |_| wanted.minor.as_slice());
        let found = programs_in(folder).map_err(|why| anyhow!("{}: {why}", folder.display()))?;
        if !minors.iter().any(|minor| is_of_minor(&found, minor)) {
            bail!("{}: holds {found}, not {}", folder.display(), minors.join(" or "));
        }
        println!("{}", folder.display());
        return Ok(());
    }
    for minor in MINORS.iter().filter(|minor| wanted.minor.is_none_or(|one| one == **minor)) {
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
    let recipe = Recipe::read(&root.join(MODULES), minor)?;
    let cache = cache_folder(|name| std::env::var_os(name))?.join("control-plane");
    let folder = cache.join(recipe.folder_name());
    if !folder.is_dir() {
        build_locked(&recipe, &cache, &folder)
            .with_context(|| format!("failed to build the control plane of {minor}"))?;
    }
    Ok(folder)
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

/// Where things are kept that are dear to make, by the first variable that is set.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = folder("SEI_CACHE_DIR") {
        return std::path::absolute(folder).context("SEI_CACHE_DIR is no path");
    }
    // A relative one is to be ignored, says its specification.
    let shared = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let shared = shared.or_else(|| Some(folder("HOME")?.join(".cache")));
    Ok(shared.context("set SEI_CACHE_DIR: there is no HOME")?.join("sei-operator"))
}

/// What is built, and what decides the outcome.
struct Recipe {
    minor: String,
    version: String,
    modules: PathBuf,
    fingerprint: String,
}

impl Recipe {
    fn read(modules: &Path, minor: &str) -> Result<Self> {
        let mut hash = Sha256::new();
        for part in [ETCD, minor] {
            for name in ["go.mod", "go.sum"] {
                let path = modules.join(part).join(name);
                let text = fs::read(&path);
                let text = text.with_context(|| format!("failed to read {}", path.display()))?;
                // The length keeps the end of one file from counting as the begin of the next.
                hash.update(text.len().to_le_bytes());
                hash.update(text);
            }
        }
        let module = fs::read_to_string(modules.join(minor).join("go.mod"))?;
        let version = kubernetes_version(&module)
            .with_context(|| format!("the module of {minor} requires no k8s.io/kubernetes"))?
            .to_owned();
        hash.update(linker_flags(&version));
        hash.update(std::env::consts::ARCH);
        hash.update(std::env::consts::OS);
        let mut fingerprint = format!("{:x}", hash.finalize());
        fingerprint.truncate(12);
        Ok(Self { minor: minor.to_owned(), version, modules: modules.to_owned(), fingerprint })
    }

    fn folder_name(&self) -> String {
        format!("{}-{}", self.version, self.fingerprint)
    }
}

fn kubernetes_version(module: &str) -> Option<&str> {
    let mut words =
        module.lines().map(|line| line.trim_start_matches("require ").split_ascii_whitespace());
    words.find_map(|mut words| match (words.next(), words.next()) {
        (Some("k8s.io/kubernetes"), Some(version)) if version.starts_with('v') => Some(version),
        _ => None,
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

/// One builds, others wait and find it done. Programs are made in a folder beside the wanted one,
/// which gets its name when all are there; what an interrupted build has finished is kept.
fn build_locked(recipe: &Recipe, cache: &Path, folder: &Path) -> Result<()> {
    let told = || format!("failed to write to {}", cache.display());
    fs::create_dir_all(cache).with_context(told)?;
    let lock = File::create(cache.join(format!("{}.lock", recipe.folder_name())));
    let lock = lock.with_context(told)?;
    if lock.try_lock().is_err() {
        eprintln!("[{}] waits for another build of the same", recipe.minor);
        lock.lock().with_context(told)?;
    }
    if folder.is_dir() {
        return Ok(());
    }
    check_go(&recipe.minor)?;
    let unfinished = cache.join(format!("{}.unfinished", recipe.folder_name()));
    fs::create_dir_all(&unfinished).with_context(told)?;
    eprintln!(
        "[{}] builds {} into {}: minutes, once",
        recipe.minor,
        recipe.version,
        folder.display()
    );
    let begun = Instant::now();
    for (index, (name, package)) in PROGRAMS.iter().enumerate() {
        let place = format!("[{} {}/{}] {name}", recipe.minor, index + 1, PROGRAMS.len());
        let program = unfinished.join(name);
        if program.is_file() {
            eprintln!("{place}: there");
            continue;
        }
        let module = if *name == ETCD { ETCD } else { &recipe.minor };
        let mut go = go_build(&recipe.modules.join(module), &recipe.version);
        build(&mut go, &place, package, &program)?;
    }
    fs::rename(&unfinished, folder).with_context(told)?;
    eprintln!("[{}] built, {} s", recipe.minor, begun.elapsed().as_secs());
    Ok(())
}

fn check_go(minor: &str) -> Result<()> {
    match Command::new("go").arg("version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("failed to start go")
        }
        _ => bail!("{}", without_go(minor)),
    }
}

fn without_go(minor: &str) -> String {
    let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
    format!(
        "there is no Go: install Go 1.26 or newer (https://go.dev/dl), or set {ASSETS} to a folder \
         with {} of Kubernetes {minor}",
        names.join(", ")
    )
}

fn go_build(module: &Path, version: &str) -> Command {
    let mut go = Command::new("go");
    // A workspace file above the checkout must not have a say in it.
    go.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off");
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", &linker_flags(version)]);
    // What Go tells is for the same reader, and our stdout is for folders only.
    go.stdin(Stdio::null()).stdout(std::io::stderr());
    go
}

fn build(go: &mut Command, place: &str, package: &str, program: &Path) -> Result<()> {
    let unfinished = program.with_extension("unfinished");
    let begun = Instant::now();
    eprintln!("{place}: building");
    let child = go.arg("-o").arg(&unfinished).arg(package).spawn();
    let status = wait_with_news(child.context("failed to start go")?, || {
        eprintln!("{place}: building, {} s", begun.elapsed().as_secs());
    })?;
    if !status.success() {
        bail!("`go build {package}` ended with {status}");
    }
    fs::rename(&unfinished, program).context("failed to name the built program")?;
    eprintln!("{place}: ok, {} s", begun.elapsed().as_secs());
    Ok(())
}

fn wait_with_news(mut child: Child, tell: impl Fn()) -> Result<ExitStatus> {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait()));
    loop {
        match ended.recv_timeout(STILL_BUILDING_EVERY) {
            Ok(status) => return status.context("failed to wait for go"),
            Err(mpsc::RecvTimeoutError::Timeout) => tell(),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("failed to wait for go"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_minor_has_its_module() {
        for minor in MINORS {
            let recipe = Recipe::read(&crate::repository().join(MODULES), minor).unwrap();
            assert!(is_of_minor(&recipe.version, minor), "{minor} {}", recipe.version);
            let name = recipe.folder_name();
            assert!(name.starts_with(&format!("{}-", recipe.version)), "{name}");
        }
    }

    /// Kubernetes names its staging modules by the same version as itself, 0 instead of 1.
    #[test]
    fn replacements_follow_the_version() {
        for minor in MINORS {
            let path = crate::repository().join(MODULES).join(minor).join("go.mod");
            let module = fs::read_to_string(path).unwrap();
            let version = kubernetes_version(&module).unwrap();
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
    fn the_first_cache_variable_that_is_set_counts() {
        let folder = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> =
                set.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
            cache_folder(|name| {
                set.iter().find(|(one, _)| one == name).map(|(_, value)| value.clone())
            })
            .map(|path| path.display().to_string())
            .map_err(|error| error.to_string())
        };
        let home = ("HOME", "/home/a");
        assert_eq!(folder(&[home]), Ok("/home/a/.cache/sei-operator".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "/c")]), Ok("/c/sei-operator".into()));
        assert_eq!(folder(&[home, ("XDG_CACHE_HOME", "c")]), folder(&[home]));
        assert_eq!(
            folder(&[home, ("XDG_CACHE_HOME", "/c"), ("SEI_CACHE_DIR", "/s")]),
            Ok("/s".into())
        );
        assert_eq!(folder(&[home, ("SEI_CACHE_DIR", "")]), folder(&[home]));
        assert_eq!(folder(&[]), Err("set SEI_CACHE_DIR: there is no HOME".into()));
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
