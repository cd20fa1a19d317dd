//! Pinned Go modules under `tools/` that tests use: a program like helm, or files like the CRDs of
//! the prometheus-operator.
//!
//! The `go.mod` of a folder defines the tool. With a `tool` line it is a program with the name of the
//! folder, built once with the tags of a comment `// tags:`. Without a `tool` line it is the folder of
//! its only requirement, as Go downloads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Deserialize;

use crate::control_plane;
use crate::go::{self, Program, Programs};

const MODULES: &str = "tools";

/// Prints the path of each tool, in order. Progress goes to stderr.
pub(crate) fn run(root: &Path, name: Option<&str>) -> Result<()> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => names(root)?,
    };
    for name in names {
        println!("{}", ensure(root, &name)?.display());
    }
    Ok(())
}

/// Builds or downloads the missing tools.
pub(crate) fn ensure_all(root: &Path) -> Result<()> {
    for name in names(root)? {
        ensure(root, &name)?;
    }
    Ok(())
}

/// Every tool, sorted by name. Control planes have several modules and a task of their own.
fn names(root: &Path) -> Result<Vec<String>> {
    let modules = root.join(MODULES);
    let failure = || format!("failed to read {}", modules.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&modules).with_context(failure)? {
        let entry = entry.with_context(failure)?;
        if entry.path().join("go.mod").is_file() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// The program or the folder of a tool; builds or downloads it if missing.
fn ensure(root: &Path, name: &str) -> Result<PathBuf> {
    if !names(root)?.iter().any(|known| known == name) {
        bail!("there is no tool `{name}`; known tools: {}", names(root)?.join(", "));
    }
    let recipe = Recipe::read(&root.join(MODULES), name)?;
    match recipe.package {
        Some(_) => recipe.build().with_context(|| format!("failed to build {name}")),
        None => recipe.download().with_context(|| format!("failed to download {name}")),
    }
}

/// A tool as its folder under `tools` pins it.
#[derive(Debug)]
struct Recipe {
    name: String,
    folder: PathBuf,
    /// The Go package of a program; none for files.
    package: Option<String>,
    /// Build tags, joined by commas.
    tags: String,
    /// The module that holds it, and its version.
    module: String,
    version: String,
}

impl Recipe {
    fn read(modules: &Path, name: &str) -> Result<Self> {
        let folder = modules.join(name);
        let go_mod = fs::read_to_string(folder.join("go.mod"))
            .with_context(|| format!("failed to read the go.mod of {name}"))?;
        Self::parse(name, folder, &go_mod).map_err(|why| anyhow!("the go.mod of {name} {why}"))
    }

    fn parse(name: &str, folder: PathBuf, go_mod: &str) -> Result<Self, &'static str> {
        let tools: Vec<&str> =
            go_mod.lines().filter_map(|line| line.strip_prefix("tool ")).map(str::trim).collect();
        let required: Vec<(&str, &str)> = go::requirements(go_mod).collect();
        let (package, (module, version)) = match (&tools[..], &required[..]) {
            ([package], all) => {
                let holds = |module: &str| {
                    package
                        .strip_prefix(module)
                        .is_some_and(|rest| matches!(rest.get(..1), None | Some("" | "/")))
                };
                // The path of a module may contain the path of another module.
                let holders = all.iter().filter(|(module, _)| holds(module));
                let holder = holders.max_by_key(|(module, _)| module.len());
                (Some(*package), *holder.ok_or("requires no module that contains its tool")?)
            }
            ([], [only]) => (None, *only),
            _ => return Err("must have a single `tool` line or a single requirement"),
        };
        Ok(Self {
            name: name.to_owned(),
            folder,
            package: package.map(str::to_owned),
            tags: go_mod
                .lines()
                .find_map(|line| line.strip_prefix("// tags: "))
                .map_or_else(String::new, |tags| tags.trim().to_owned()),
            module: module.to_owned(),
            version: version.to_owned(),
        })
    }

    fn build(&self) -> Result<PathBuf> {
        let Self { name, folder, package, tags, module: _, version } = self;
        let linker_flags = "-s -w".to_owned();
        let files = [folder.join("go.mod"), folder.join("go.sum")];
        let package = package.as_ref().context("the tool is no program")?;
        let fingerprint = go::fingerprint(&files, &[package, &linker_flags])?;
        let programs = Programs {
            label: name.clone(),
            version: version.clone(),
            fingerprint,
            without_go: without_go(name),
            desired: vec![Program {
                name: name.clone(),
                package: package.clone(),
                module: folder.clone(),
                linker_flags,
                tags: tags.clone(),
                has_c: false,
            }],
        };
        let cache = go::cache_folder(|name| std::env::var_os(name))?.join(MODULES);
        let folder_name = format!("{name}-{version}-{}", programs.fingerprint);
        Ok(programs.ensure(&cache, &folder_name)?.join(name))
    }

    /// Go keeps the module in its own cache and verifies it with our `go.sum`.
    fn download(&self) -> Result<PathBuf> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Downloaded {
            #[serde(default)]
            dir: PathBuf,
            error: Option<String>,
        }
        go::check_go(&without_go(&self.name))?;
        let mut go = go::go(&self.folder);
        let go = go.args(["mod", "download", "-json", &self.module]).stderr(Stdio::inherit());
        let output = go.output().context("failed to start go")?;
        let downloaded: Downloaded = serde_json::from_slice(&output.stdout)
            .with_context(|| format!("`go mod download` ended with {}", output.status))?;
        match downloaded.error {
            None if output.status.success() && downloaded.dir.is_dir() => Ok(downloaded.dir),
            None => bail!("`go mod download` ended with {}", output.status),
            Some(error) => bail!("{error}"),
        }
    }
}

fn without_go(name: &str) -> String {
    format!("{name} needs Go, which is not installed: install {}", control_plane::GO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(go_mod: &str) -> Result<(Option<String>, String), &'static str> {
        let recipe = Recipe::parse("x", PathBuf::new(), go_mod)?;
        Ok((recipe.package, format!("{}@{}", recipe.module, recipe.version)))
    }

    #[test]
    fn a_go_mod_defines_a_program_or_files() {
        let program =
            "tool a.b/c/v4/cmd/x\nrequire (\n a.b/c v1.0.0\n a.b/c/v4 v4.3.1\n a.b/c/v v0.0.1\n)\n";
        assert_eq!(parsed(program), Ok((Some("a.b/c/v4/cmd/x".into()), "a.b/c/v4@v4.3.1".into())));
        let tagged = format!("// Small.\n// tags: one,two\n{program}");
        assert_eq!(Recipe::parse("x", PathBuf::new(), &tagged).unwrap().tags, "one,two");
        assert_eq!(Recipe::parse("x", PathBuf::new(), program).unwrap().tags, "");
        assert_eq!(parsed("require a.b/c v1.0.0\n"), Ok((None, "a.b/c@v1.0.0".into())));
        assert_eq!(
            parsed("tool a.b/c\nrequire d.e/f v1.0.0\n").err(),
            Some("requires no module that contains its tool")
        );
        let two = "require a.b/c v1.0.0\nrequire d.e/f v1.0.0\n";
        assert_eq!(
            parsed(two).err(),
            Some("must have a single `tool` line or a single requirement")
        );
    }

    #[test]
    fn every_tool_is_pinned_with_its_sums() {
        let root = crate::repository();
        let names = names(&root).unwrap();
        assert!(names.contains(&"helm".to_owned()), "{names:?}");
        for name in names {
            let recipe = Recipe::read(&root.join(MODULES), &name).unwrap();
            let sums = fs::read_to_string(recipe.folder.join("go.sum")).unwrap();
            let pinned = format!("{} {} h1:", recipe.module, recipe.version);
            assert!(sums.contains(&pinned), "{name}: go.sum lacks {pinned}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_tool_lists_the_known_ones() {
        let error = ensure(&crate::repository(), "hlem").unwrap_err().to_string();
        assert!(error.starts_with("there is no tool `hlem`; known tools: "), "{error}");
        assert!(error.contains("helm"), "{error}");
    }
}
