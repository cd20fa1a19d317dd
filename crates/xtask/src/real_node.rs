//! The real lane: kubelet, sidecar, proxy and chain as Go builds them, images of them, and the stories
//! that run on them.
//!
//! Modules are pinned under `tools/real-node`. What Go builds and the images are cached like the
//! control planes; the container runtime comes from Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use crate::control_plane;
use crate::go::{self, Program, Programs};
use crate::image::{Files, Image, libraries, read};
use crate::suite::{cargo_command, run_to_end, seconds};

const MODULES: &str = "tools/real-node";

/// The minor of the kubelet and of its control plane.
const MINOR: &str = "1.34";

/// Debian packages, and a file of each.
const PACKAGES: [(&str, &str); 5] = [
    ("containerd", "/usr/bin/containerd"),
    ("runc", "/usr/sbin/runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("busybox-static", "/bin/busybox"),
    ("iproute2", "/sbin/ip"),
];

/// How many stories run at once. They wait for probes most of the time, but a chain process uses a core
/// until it has found its peers.
const STORIES: &str = "2";

/// The part of the cache that images are in. Another number when their content changes by this code.
const IMAGES: &str = "images-1";

/// The upgrade that the second image of the chain has a handler for, and the handlers of both.
const BEFORE: &str = "v6.4.0";
const AFTER: &str = "v9.9.9";

/// A module of `tools/real-node` and the programs in it: name, package, linker flags.
struct Module {
    name: &'static str,
    /// The module that determines the version.
    requirement: &'static str,
    programs: &'static [(&'static str, &'static str, &'static str)],
    tags: &'static str,
    has_c: bool,
}

/// Smallest first, so that a machine that cannot build fails early.
const BUILT: [Module; 4] = [
    Module {
        name: "kube-rbac-proxy",
        requirement: "github.com/brancz/kube-rbac-proxy",
        programs: &[(
            "kube-rbac-proxy",
            "github.com/brancz/kube-rbac-proxy/cmd/kube-rbac-proxy",
            "-s -w",
        )],
        tags: "",
        has_c: false,
    },
    Module {
        name: "kubernetes",
        requirement: control_plane::KUBERNETES,
        programs: &[
            ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", "-s -w"),
            ("kubelet", "k8s.io/kubernetes/cmd/kubelet", "-s -w"),
        ],
        tags: "",
        has_c: false,
    },
    Module {
        name: "seictl",
        requirement: "github.com/sei-protocol/seictl",
        programs: &[("seictl", "github.com/sei-protocol/seictl", "-s -w")],
        // As for the chain, from which it has most of its packages: they are compiled once.
        tags: "netgo",
        has_c: true,
    },
    Module {
        name: "seid",
        requirement: "github.com/sei-protocol/sei-chain",
        programs: &[
            (
                "seid",
                "github.com/sei-protocol/sei-chain/cmd/seid",
                "-s -w -X github.com/sei-protocol/sei-chain/sei-cosmos/version.Version=v6.4.0",
            ),
            (
                "seid-after",
                "github.com/sei-protocol/sei-chain/cmd/seid",
                "-s -w -X github.com/sei-protocol/sei-chain/sei-cosmos/version.Version=v9.9.9",
            ),
        ],
        tags: "netgo",
        has_c: true,
    },
];

/// Prints the folder with kubelet, scheduler and images. Progress goes to stderr.
pub(crate) fn prepare(root: &Path) -> Result<()> {
    println!("{}", ensure_all(root)?.display());
    Ok(())
}

/// Prepares everything and runs the stories.
pub(crate) fn run(root: &Path, filters: &[String]) -> Result<()> {
    let started = Instant::now();
    let programs = ensure_all(root)?;
    let planes = control_plane::ensure(root, MINOR)?;
    println!("[real-node] programs and images are ready after {}", seconds(started.elapsed()));
    let tests = Instant::now();
    let arguments = ["test", "--package", "cluster-tests", "--test", "real-node", "--"];
    let mut command = cargo_command();
    command.current_dir(root).args(arguments).args(["--test-threads", STORIES, "--nocapture"]);
    command.args(filters).env("SEI_KUBERNETES", MINOR).env(control_plane::ASSETS, planes);
    command.env("SEI_REAL_NODE", programs);
    run_to_end(&mut command, &format!("cargo {}", arguments.join(" ")))?;
    println!(
        "[real-node] the stories passed, {}; all together {}",
        seconds(tests.elapsed()),
        seconds(started.elapsed())
    );
    Ok(())
}

/// The folder with everything that a real node runs; builds and installs what is missing.
fn ensure_all(root: &Path) -> Result<PathBuf> {
    check_machine()?;
    install_packages()?;
    let cache = go::cache_folder(|name| std::env::var_os(name))?.join("real-node");
    let mut folders = Vec::new();
    for module in &BUILT {
        let programs = module.recipe(root)?;
        let name = format!("{}-{}-{}", module.name, programs.version, programs.fingerprint);
        let built = programs.ensure(&cache, &name);
        folders.push(built.with_context(|| format!("failed to build {}", module.name))?);
    }
    write_images(&cache, &folders)
}

/// Fails with one line that names what this machine lacks.
fn check_machine() -> Result<()> {
    let id = Command::new("id").arg("-u").output().context("failed to start id")?;
    let groups = Path::new("/sys/fs/cgroup");
    let has_groups = groups.join("cgroup.procs").exists() || groups.join("memory").is_dir();
    let lacks = lacks(id.stdout.trim_ascii() == b"0", has_groups, has_program);
    ensure!(lacks.is_empty(), "a real node cannot run here: it needs {}", lacks.join(", "));
    Ok(())
}

fn lacks(is_root: bool, has_groups: bool, has_program: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lacks = Vec::new();
    if !is_root {
        lacks.push("root".to_owned());
    }
    if !has_groups {
        lacks.push("cgroups in /sys/fs/cgroup".to_owned());
    }
    if !has_program("go") {
        lacks.push(control_plane::GO.to_owned());
    }
    for compiler in ["gcc", "g++"] {
        if !has_program(compiler) {
            lacks.push(compiler.to_owned());
        }
    }
    let is_missing = |(_, file): &&(&str, &str)| !Path::new(file).exists();
    if !has_program("apt-get") && PACKAGES.iter().any(|package| is_missing(&package)) {
        let names: Vec<&str> = PACKAGES.iter().filter(is_missing).map(|(name, _)| *name).collect();
        lacks.push(format!("apt-get, or the packages {}", names.join(" ")));
    }
    lacks
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Installs the missing packages with apt-get.
fn install_packages() -> Result<()> {
    let missing: Vec<&str> = PACKAGES
        .iter()
        .filter(|(_, file)| !Path::new(file).exists())
        .map(|(name, _)| *name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("[real-node] installing with apt-get: {}", missing.join(" "));
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        // Stdout is for the folder that this task prints.
        apt.stdin(Stdio::null()).stdout(std::io::stderr());
        run_to_end(&mut apt, &format!("apt-get {}", arguments.join(" ")))
    };
    let install = [&["install", "--yes", "--no-install-recommends"][..], &missing].concat();
    // The list of packages may be missing or too old.
    if apt(&install).is_err() {
        apt(&["update"])?;
        apt(&install)?;
    }
    Ok(())
}

impl Module {
    fn recipe(&self, root: &Path) -> Result<Programs> {
        let folder = root.join(MODULES).join(self.name);
        let go_mod = fs::read_to_string(folder.join("go.mod"))
            .with_context(|| format!("there is no module of {}", self.name))?;
        let version = go::required_version(&go_mod, self.requirement);
        let version = version
            .with_context(|| format!("the module requires no {}", self.requirement))?
            .to_owned();
        let flags = |given: &str| match self.requirement {
            control_plane::KUBERNETES => control_plane::linker_flags(&version),
            _ => given.to_owned(),
        };
        let desired: Vec<Program> = self
            .programs
            .iter()
            .map(|(name, package, linker_flags)| Program {
                name: (*name).to_owned(),
                package: (*package).to_owned(),
                module: folder.clone(),
                linker_flags: flags(linker_flags),
                tags: self.tags.to_owned(),
                has_c: self.has_c,
            })
            .collect();
        let parameters: Vec<&str> =
            desired.iter().map(|program| program.linker_flags.as_str()).collect();
        let files = [folder.join("go.mod"), folder.join("go.sum")];
        Ok(Programs {
            label: self.name.to_owned(),
            fingerprint: go::fingerprint(&files, &parameters)?,
            version,
            without_go: format!("Go is not installed: install {}", control_plane::GO),
            desired,
        })
    }
}

/// The folder with all images and links to the programs that run on the machine itself. The chain is
/// among them, because stories make its genesis.
fn write_images(cache: &Path, folders: &[PathBuf]) -> Result<PathBuf> {
    let inputs: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let fingerprint = go::fingerprint(&[], &inputs)?;
    let folder = cache.join(format!("{IMAGES}-{fingerprint}"));
    if folder.is_dir() {
        return Ok(folder);
    }
    let find = |name: &str| {
        let mut paths = folders.iter().map(|folder| folder.join(name));
        paths.find(|path| path.is_file()).with_context(|| format!("{name} was not built"))
    };
    let started = Instant::now();
    eprintln!("[images] writing into {} (once)", folder.display());
    let unfinished = cache.join(format!("{IMAGES}-{fingerprint}.{}", std::process::id()));
    let failure = || format!("failed to write to {}", unfinished.display());
    fs::create_dir_all(&unfinished).with_context(failure)?;
    for (name, image) in images(find)? {
        eprintln!("[images] {name}");
        fs::write(unfinished.join(format!("{name}.tar")), image.archive()?)
            .with_context(failure)?;
    }
    for name in ["kubelet", "kube-scheduler", "seid"] {
        std::os::unix::fs::symlink(find(name)?, unfinished.join(name)).with_context(failure)?;
    }
    if let Err(error) = fs::rename(&unfinished, &folder) {
        // Another process was faster.
        fs::remove_dir_all(&unfinished).with_context(failure)?;
        if !folder.is_dir() {
            bail!("failed to rename {}: {error}", unfinished.display());
        }
    }
    eprintln!("[images] written in {}", seconds(started.elapsed()));
    Ok(folder)
}

/// All images by name. Their tags are the versions in the platform configuration of the stories.
fn images(find: impl Fn(&str) -> Result<PathBuf>) -> Result<Vec<(&'static str, Image)>> {
    let userland = userland()?;
    let chain = |program: &str, tag: &str, handlers: &str| -> Result<Image> {
        let program = find(program)?;
        let mut files = libraries(&program)?;
        files.insert("usr/bin/seid".into(), (read(&program)?, true));
        let mut image = image("seid", tag, vec![userland.clone(), files], &[]);
        // Replaces the list of upgrades that the program has handlers for.
        push_variable(&mut image.config, &format!("UPGRADE_VERSION_LIST={handlers}"));
        Ok(image)
    };
    let single = |name: &str| -> Result<Files> {
        let program = find(name)?;
        let mut files = libraries(&program)?;
        files.insert(Path::new("usr/bin").join(name), (read(&program)?, true));
        Ok(files)
    };
    let exporter = "#!/bin/busybox sh\nexec busybox httpd -f -p 9300 -h /etc\n";
    let pause = "trap 'exit 0' TERM; while :; do busybox sleep 1000 & wait $!; done";
    let busybox: Files = [("bin/busybox".into(), (read(Path::new("/bin/busybox"))?, true))].into();
    let mut exporter_files = busybox.clone();
    exporter_files
        .insert("usr/local/bin/sei-cosmos-exporter".into(), (exporter.as_bytes().to_vec(), true));
    Ok(vec![
        ("pause", image("pause", "1", vec![busybox], &["/bin/busybox", "sh", "-c", pause])),
        // A stand-in: it serves nothing of the chain.
        ("exporter", image("exporter", "1", vec![userland.clone(), exporter_files], &[])),
        (
            "kube-rbac-proxy",
            image(
                "kube-rbac-proxy",
                "1",
                vec![single("kube-rbac-proxy")?],
                &["/usr/bin/kube-rbac-proxy"],
            ),
        ),
        ("seictl", image("seictl", "1", vec![single("seictl")?], &[])),
        ("seid-before", chain("seid", BEFORE, BEFORE)?),
        ("seid-after", chain("seid-after", AFTER, &format!("{BEFORE},{AFTER}"))?),
    ])
}

fn image(name: &str, tag: &str, layers: Vec<Files>, entrypoint: &[&str]) -> Image {
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    Image {
        layers,
        config: json!({ "Entrypoint": entrypoint, "Env": [path], "WorkingDir": "/" }),
        // The full name, which containerd takes from here.
        annotations: json!({ "io.containerd.image.name": format!("registry.example.org/{name}:{tag}") }),
    }
}

fn push_variable(config: &mut Value, variable: &str) {
    if let Some(variables) = config["Env"].as_array_mut() {
        variables.push(json!(variable));
    }
}

/// The programs that the scripts of pods call, from this machine: images of the chain are made from a
/// distribution too.
fn userland() -> Result<Files> {
    let mut files = Files::new();
    for name in ["bash", "sh", "mkdir", "mv", "sed", "sleep", "touch", "cat", "ls", "rm"] {
        let path = Path::new("/bin").join(name);
        files.extend(libraries(&path)?);
        files.insert(Path::new("bin").join(name), (read(&path)?, true));
    }
    let user = "nonroot:x:65532:65532::/home/nonroot:/bin/sh\n";
    files.insert("etc/passwd".into(), (user.as_bytes().to_vec(), false));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_machine_lacks_is_named_in_one_line() {
        let without = lacks(false, false, |_| false).join(", ");
        for part in ["root", "cgroups", "Go 1.26", "gcc", "g++"] {
            assert!(without.contains(part), "{without}");
        }
        assert!(!without.contains('\n'), "{without}");
        assert_eq!(lacks(true, true, |_| true), Vec::<String>::new());
    }

    #[test]
    fn every_module_pins_its_programs() {
        for module in &BUILT {
            let recipe = module.recipe(&crate::repository()).unwrap();
            let sums = crate::repository().join(MODULES).join(module.name).join("go.sum");
            let sums = fs::read_to_string(sums).unwrap();
            let pinned = format!("{} {} h1:", module.requirement, recipe.version);
            assert!(sums.contains(&pinned), "{}: go.sum lacks {pinned}", module.name);
        }
    }

    /// A kubelet of another version than its API server would prove less.
    #[test]
    fn the_kubelet_has_the_version_of_its_control_plane() {
        let version = |module: &str| {
            let path = crate::repository().join("tools").join(module).join("go.mod");
            let go_mod = fs::read_to_string(path).unwrap();
            go::required_version(&go_mod, control_plane::KUBERNETES).unwrap().to_owned()
        };
        assert_eq!(version("real-node/kubernetes"), version("control-plane/1.34"));
    }
}
