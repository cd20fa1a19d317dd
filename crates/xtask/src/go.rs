//! Programs that Go builds from pinned modules. They are kept outside of the target folder, since a
//! build takes minutes and should survive `cargo clean`. The name of a cache folder contains a hash
//! of its inputs, so checkouts share it and a changed module gets a new one.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

/// Short enough that the build does not appear to hang, and a dozen lines for the slowest program.
const STILL_BUILDING_EVERY: Duration = Duration::from_secs(20);

/// A program to build.
pub(crate) struct Program {
    pub(crate) name: String,
    /// The Go package with its `main`.
    pub(crate) package: String,
    /// The folder of the module that pins it.
    pub(crate) module: PathBuf,
    pub(crate) linker_flags: String,
    /// Build tags, joined by commas; usually none.
    pub(crate) tags: String,
    /// Whether it has parts in C, which need gcc and g++.
    pub(crate) has_c: bool,
}

/// The programs of a cache folder.
pub(crate) struct Programs {
    /// The prefix of progress lines.
    pub(crate) label: String,
    pub(crate) version: String,
    /// A hash of the inputs other than the version.
    pub(crate) fingerprint: String,
    /// The error for a machine without Go: what to install, or what to set instead.
    pub(crate) without_go: String,
    pub(crate) desired: Vec<Program>,
}

impl Programs {
    /// The folder with all programs; builds the missing ones.
    pub(crate) fn ensure(&self, cache: &Path, folder_name: &str) -> Result<PathBuf> {
        let folder = cache.join(folder_name);
        if !folder.is_dir() {
            self.build_locked(cache, folder_name, &folder)?;
        }
        Ok(folder)
    }

    /// The first process builds and the others wait for it. Programs are built into a second folder,
    /// which is renamed when it is complete; an interrupted build keeps its finished programs.
    fn build_locked(&self, cache: &Path, folder_name: &str, folder: &Path) -> Result<()> {
        let failure = || format!("failed to write to {}", cache.display());
        fs::create_dir_all(cache).with_context(failure)?;
        let lock = File::create(cache.join(format!("{folder_name}.lock"))).with_context(failure)?;
        let label = &self.label;
        if lock.try_lock().is_err() {
            eprintln!("[{label}] waiting for another process that builds the same");
            lock.lock().with_context(failure)?;
        }
        if folder.is_dir() {
            return Ok(());
        }
        check_go(&self.without_go)?;
        let unfinished = cache.join(format!("{folder_name}.unfinished"));
        fs::create_dir_all(&unfinished).with_context(failure)?;
        eprintln!("[{label}] building {} into {} (once)", self.version, folder.display());
        let started = Instant::now();
        for (index, program) in self.desired.iter().enumerate() {
            let title = format!("[{label} {}/{}] {}", index + 1, self.desired.len(), program.name);
            build(program, &title, &unfinished.join(&program.name))?;
        }
        fs::rename(&unfinished, folder).with_context(failure)?;
        eprintln!("[{label}] built in {} s", started.elapsed().as_secs());
        Ok(())
    }
}

/// A short hash of these files and parameters, and of the platform.
pub(crate) fn fingerprint(files: &[PathBuf], parameters: &[&str]) -> Result<String> {
    let mut hash = Sha256::new();
    for path in files {
        let text = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        // The length separates the end of a file from the start of the next.
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    for parameter in parameters {
        hash.update(parameter);
    }
    hash.update(std::env::consts::ARCH);
    hash.update(std::env::consts::OS);
    let mut fingerprint = format!("{:x}", hash.finalize());
    fingerprint.truncate(12);
    Ok(fingerprint)
}

/// The version that a `go.mod` requires of a module.
pub(crate) fn required_version<'a>(go_mod: &'a str, module: &str) -> Option<&'a str> {
    requirements(go_mod).find_map(|(path, version)| (path == module).then_some(version))
}

/// All requirements of a `go.mod`: module and version.
pub(crate) fn requirements(go_mod: &str) -> impl Iterator<Item = (&str, &str)> {
    go_mod.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        let mut fields = line.split_ascii_whitespace();
        let (path, version) = (fields.next()?, fields.next()?);
        (path.contains('.') && version.starts_with('v')).then_some((path, version))
    })
}

/// The cache for results of long builds, by the first variable that is set.
pub(crate) fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = folder("SEI_CACHE_DIR") {
        return std::path::absolute(folder).context("SEI_CACHE_DIR is not a path");
    }
    // Its specification requires to ignore a relative path.
    let shared = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let shared = shared.or_else(|| Some(folder("HOME")?.join(".cache")));
    Ok(shared.context("HOME is not set: set SEI_CACHE_DIR")?.join("sei-operator"))
}

/// Fails with the error `without_go` if Go is not installed.
pub(crate) fn check_go(without_go: &str) -> Result<()> {
    match Command::new("go").arg("version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("failed to start go")
        }
        _ => bail!("{without_go}"),
    }
}

/// The go command, in the folder of a module.
pub(crate) fn go(module: &Path) -> Command {
    let mut go = Command::new("go");
    // A workspace file above the checkout must not change the build.
    go.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off");
    go.stdin(Stdio::null());
    go
}

fn build(program: &Program, title: &str, path: &Path) -> Result<()> {
    if path.is_file() {
        eprintln!("{title}: already built");
        return Ok(());
    }
    let Program { name: _, package, module, linker_flags, tags, has_c } = program;
    let mut go = go(module);
    go.env("CGO_ENABLED", if *has_c { "1" } else { "0" });
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags]);
    if !tags.is_empty() {
        go.args(["-tags", tags]);
    }
    // Stdout is for the folder that this task prints.
    go.stdout(std::io::stderr());
    let unfinished = path.with_extension("unfinished");
    let started = Instant::now();
    eprintln!("{title}: building");
    let child = go.arg("-o").arg(&unfinished).arg(package).spawn();
    let status = wait_with_progress(child.context("failed to start go")?, || {
        eprintln!("{title}: building, {} s", started.elapsed().as_secs());
    })?;
    if !status.success() {
        bail!("`go build {package}` ended with {status}");
    }
    fs::rename(&unfinished, path).context("failed to rename the built program")?;
    eprintln!("{title}: built in {} s", started.elapsed().as_secs());
    Ok(())
}

fn wait_with_progress(mut child: Child, report: impl Fn()) -> Result<ExitStatus> {
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait()));
    loop {
        match ended.recv_timeout(STILL_BUILDING_EVERY) {
            Ok(status) => return status.context("failed to wait for go"),
            Err(mpsc::RecvTimeoutError::Timeout) => report(),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("failed to wait for go"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cache_variable_that_is_set_is_used() {
        let folder = |set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> =
                set.iter().map(|(name, value)| ((*name).to_owned(), value.into())).collect();
            cache_folder(|name| {
                set.iter().find(|(variable, _)| variable == name).map(|(_, value)| value.clone())
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
        assert_eq!(folder(&[]), Err("HOME is not set: set SEI_CACHE_DIR".into()));
    }

    #[test]
    fn requirements_are_read_in_both_forms() {
        let go_mod = "module sei.io/x\n\ngo 1.24.0\n\ntool a.b/c/cmd\n\nrequire a.b/c v1.2.3\n\
                      require (\n\td.e/f/v2 v2.0.0 // indirect\n)\n";
        let found: Vec<_> = requirements(go_mod).collect();
        assert_eq!(found, [("a.b/c", "v1.2.3"), ("d.e/f/v2", "v2.0.0")]);
        assert_eq!(required_version(go_mod, "a.b/c"), Some("v1.2.3"));
        assert_eq!(required_version(go_mod, "a.b"), None);
    }
}
