//! The real lane: kubelet, sidecar, proxy and chain as Go builds them, images of them, and the stories
//! that run on them.
//!
//! Modules are pinned under `tools/real-node`. What Go builds and the images are cached like the
//! control planes; the container runtime comes from Debian.

mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};

use crate::control_plane;
use crate::go::{self, Program, Programs};
use crate::image::{Files, Image, libraries, read};
use crate::suite::{cargo_command, run_to_end, seconds};

const MODULES: &str = "tools/real-node";

/// The minor of the kubelet and of its control plane.
const MINOR: &str = "1.34";

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

/// Prepares everything and runs the stories whose name contains one of these texts, or all.
pub(crate) fn run(root: &Path, filters: &[String]) -> Result<()> {
    let started = Instant::now();
    let programs = ensure_all(root)?;
    println!("[real-node] programs and images are ready after {}", seconds(started.elapsed()));
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    run_stories(root, &programs, &filters, &[])
}

/// Runs the first story of the suite for a person who watches it: every change of a node is a line.
pub(crate) fn narrate(root: &Path) -> Result<()> {
    let programs = ensure_all(root)?;
    println!(
        "Four validators and two RPC nodes of a new chain start on a real kubelet, with the real \
         sidecar and chain in their pods. They vote for an upgrade and halt at its height; then \
         their image is changed. The columns are time, node, phase, image, Ready, task and reason."
    );
    run_stories(root, &programs, &["--exact", SUITE[0]], &[("SEI_NARRATE", "1")])
}

/// The stories of `cargo xtask test`: those that show most in the least time.
const SUITE: [&str; 3] = [
    "chain_upgrade::a_chain_crosses_its_upgrade_height",
    "single_node::a_node_starts_behind_its_gate_and_ends_in_time",
    "single_node::the_proxy_accepts_only_tokens_for_its_own_node",
];

/// Runs the stories of the suite. Returns why they cannot run on this machine, if so: a package or a
/// module that cannot be had is the same as one that is missing.
pub(crate) fn run_suite(root: &Path) -> Result<Option<String>> {
    if let Some(reason) = machine::untried() {
        return Ok(Some(reason.to_owned()));
    }
    let started = Instant::now();
    let programs = match ensure_all(root) {
        Ok(programs) => programs,
        Err(error) => return Ok(Some(format!("{error:#}"))),
    };
    println!("[real-node] programs and images are ready after {}", seconds(started.elapsed()));
    let arguments = [&["--exact"][..], &SUITE].concat();
    run_stories(root, &programs, &arguments, &[]).map(|()| None)
}

fn run_stories(
    root: &Path,
    programs: &Path,
    filters: &[&str],
    environment: &[(&str, &str)],
) -> Result<()> {
    let planes = control_plane::ensure(root, MINOR)?;
    let started = Instant::now();
    let arguments = ["test", "--package", "cluster-tests", "--test", "real-node", "--"];
    let mut command = cargo_command();
    command.current_dir(root).args(arguments).args(["--test-threads", STORIES, "--nocapture"]);
    command.args(filters).env("SEI_KUBERNETES", MINOR).env(control_plane::ASSETS, planes);
    command.env("SEI_REAL_NODE", programs).envs(environment.iter().copied());
    run_to_end(&mut command, &format!("cargo {}", arguments.join(" ")))?;
    println!("[real-node] the stories passed, {}", seconds(started.elapsed()));
    Ok(())
}

/// The folder with everything that a real node runs; builds and installs what is missing.
fn ensure_all(root: &Path) -> Result<PathBuf> {
    let cache = go::cache_folder(|name| std::env::var_os(name))?.join("real-node");
    machine::prepare(&cache)?;
    let mut folders = Vec::new();
    for module in &BUILT {
        let programs = module.recipe(root)?;
        let name = format!("{}-{}-{}", module.name, programs.version, programs.fingerprint);
        let built = programs.ensure(&cache, &name);
        folders.push(built.with_context(|| format!("failed to build {}", module.name))?);
    }
    write_images(&cache, &folders)
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
    fn every_module_pins_its_programs() {
        for module in &BUILT {
            let recipe = module.recipe(&crate::repository()).unwrap();
            let sums = crate::repository().join(MODULES).join(module.name).join("go.sum");
            let sums = fs::read_to_string(sums).unwrap();
            let pinned = format!("{} {} h1:", module.requirement, recipe.version);
            assert!(sums.contains(&pinned), "{}: go.sum lacks {pinned}", module.name);
        }
    }

    #[test]
    fn the_stories_of_the_suite_exist() {
        for story in SUITE {
            let (file, name) = story.split_once("::").unwrap();
            let path = format!("crates/cluster-tests/tests/real_node/{file}.rs");
            let text = fs::read_to_string(crate::repository().join(path)).unwrap();
            assert!(text.contains(&format!("async fn {name}()")), "{story}");
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
