//! Programs that Go builds from pinned modules, once, outside of the target folder: a build takes
//! minutes, and `cargo clean` should not cost it. A folder of the cache is named by what went into
//! it, so that two checkouts share it and a changed module gets one of its own.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

/// Often enough that nobody thinks it hangs, and a dozen lines for the slowest program.
const STILL_BUILDING_EVERY: Duration = Duration::from_secs(20);

/// One program to build.
pub(crate) struct Program {
    pub(crate) name: String,
    /// The Go package of its `main`.
    pub(crate) package: String,
    /// The folder of the module that pins it.
    pub(crate) module: PathBuf,
    pub(crate) linker_flags: String,
    /// Build tags, joined by commas; usually none.
    pub(crate) tags: String,
}

/// A folder of the cache with programs in it.
pub(crate) struct Programs {
    /// What lines of progress begin with.
    pub(crate) label: String,
    pub(crate) version: String,
    /// What decides the outcome, besides the version.
    pub(crate) fingerprint: String,
    /// Where to do without Go, for somebody who has none.
    pub(crate) without_go: String,
    pub(crate) desired: Vec<Program>,
}

impl Programs {
    /// The folder in which all of them are; builds what is missing.
    pub(crate) fn ensure(&self, cache: &Path, folder_name: &str) -> Result<PathBuf> {
        let folder = cache.join(folder_name);
        if !folder.is_dir() {
            self.build_locked(cache, folder_name, &folder)?;
        }
        Ok(folder)
    }

    /// One builds, others wait and find it done. Programs are made in a folder beside the desired
    /// one, which gets its name when all are there; what an interrupted build has finished is kept.
    fn build_locked(&self, cache: &Path, folder_name: &str, folder: &Path) -> Result<()> {
        let told = || format!("failed to write to {}", cache.display());
        fs::create_dir_all(cache).with_context(told)?;
        let lock = File::create(cache.join(format!("{folder_name}.lock"))).with_context(told)?;
        let label = &self.label;
        if lock.try_lock().is_err() {
            eprintln!("[{label}] waits for another build of the same");
            lock.lock().with_context(told)?;
        }
        if folder.is_dir() {
            return Ok(());
        }
        check_go(&self.without_go)?;
        let unfinished = cache.join(format!("{folder_name}.unfinished"));
        fs::create_dir_all(&unfinished).with_context(told)?;
        eprintln!("[{label}] builds {} into {}: minutes, once", self.version, folder.display());
        let begun = Instant::now();
        for (index, program) in self.desired.iter().enumerate() {
            let place = format!("[{label} {}/{}] {}", index + 1, self.desired.len(), program.name);
            build(program, &place, &unfinished.join(&program.name))?;
        }
        fs::rename(&unfinished, folder).with_context(told)?;
        eprintln!("[{label}] built, {} s", begun.elapsed().as_secs());
        Ok(())
    }
}

/// A short digest of these files, these words and this machine.
pub(crate) fn fingerprint(files: &[PathBuf], words: &[&str]) -> Result<String> {
    let mut hash = Sha256::new();
    for path in files {
        let text = fs::read(path).with_context(|| format!("failed to read {}", path.display()))?;
        // The length keeps the end of one file from counting as the begin of the next.
        hash.update(text.len().to_le_bytes());
        hash.update(text);
    }
    for word in words {
        hash.update(word);
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

/// All that a `go.mod` requires: module, and version.
pub(crate) fn requirements(go_mod: &str) -> impl Iterator<Item = (&str, &str)> {
    go_mod.lines().filter_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        let mut words = line.split_ascii_whitespace();
        let (path, version) = (words.next()?, words.next()?);
        (path.contains('.') && version.starts_with('v')).then_some((path, version))
    })
}

/// Where things are kept that are dear to make, by the first variable that is set.
pub(crate) fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let folder = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = folder("SEI_CACHE_DIR") {
        return std::path::absolute(folder).context("SEI_CACHE_DIR is no path");
    }
    // A relative one is to be ignored, says its specification.
    let shared = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let shared = shared.or_else(|| Some(folder("HOME")?.join(".cache")));
    Ok(shared.context("set SEI_CACHE_DIR: there is no HOME")?.join("sei-operator"))
}

/// Fails with `without_go` if there is none.
pub(crate) fn check_go(without_go: &str) -> Result<()> {
    match Command::new("go").arg("version").stdout(Stdio::null()).status() {
        Ok(status) if status.success() => Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).context("failed to start go")
        }
        _ => bail!("{without_go}"),
    }
}

/// Go inside of a module.
pub(crate) fn go(module: &Path) -> Command {
    let mut go = Command::new("go");
    // A workspace file above the checkout must not have a say in it.
    go.current_dir(module).env("CGO_ENABLED", "0").env("GOWORK", "off");
    go.stdin(Stdio::null());
    go
}

fn build(program: &Program, place: &str, path: &Path) -> Result<()> {
    if path.is_file() {
        eprintln!("{place}: there");
        return Ok(());
    }
    let Program { name: _, package, module, linker_flags, tags } = program;
    let mut go = go(module);
    go.args(["build", "-trimpath", "-buildvcs=false", "-ldflags", linker_flags]);
    if !tags.is_empty() {
        go.args(["-tags", tags]);
    }
    // What Go tells is for the same reader, and our stdout is for folders only.
    go.stdout(std::io::stderr());
    let unfinished = path.with_extension("unfinished");
    let begun = Instant::now();
    eprintln!("{place}: building");
    let child = go.arg("-o").arg(&unfinished).arg(package).spawn();
    let status = wait_with_news(child.context("failed to start go")?, || {
        eprintln!("{place}: building, {} s", begun.elapsed().as_secs());
    })?;
    if !status.success() {
        bail!("`go build {package}` ended with {status}");
    }
    fs::rename(&unfinished, path).context("failed to name the built program")?;
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
    fn requirements_are_read_in_both_forms() {
        let go_mod = "module sei.io/x\n\ngo 1.24.0\n\ntool a.b/c/cmd\n\nrequire a.b/c v1.2.3\n\
                      require (\n\td.e/f/v2 v2.0.0 // indirect\n)\n";
        let found: Vec<_> = requirements(go_mod).collect();
        assert_eq!(found, [("a.b/c", "v1.2.3"), ("d.e/f/v2", "v2.0.0")]);
        assert_eq!(required_version(go_mod, "a.b/c"), Some("v1.2.3"));
        assert_eq!(required_version(go_mod, "a.b"), None);
    }
}
