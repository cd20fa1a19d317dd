//! What a machine must have and allow to run a real node.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::control_plane;
use crate::suite::run_to_end;

/// Debian packages, and a file of each.
const PACKAGES: [(&str, &str); 5] = [
    ("containerd", "/usr/bin/containerd"),
    ("runc", "/usr/sbin/runc"),
    ("containernetworking-plugins", "/usr/lib/cni/bridge"),
    ("busybox-static", "/bin/busybox"),
    ("iproute2", "/sbin/ip"),
];

/// Six nodes of a chain need about 3 GiB, and the link of the chain's program as much.
const MEMORY_GIB: u64 = 6;

/// Modules, what Go keeps of a build, programs, images and containers.
const DISK_GIB: u64 = 12;

const GIB: u64 = 1 << 30;

/// Where cgroups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Installs the missing packages, and fails with one line that names what this machine lacks.
pub(super) fn prepare(cache: &Path) -> Result<()> {
    let id = Command::new("id").arg("-u").output().context("failed to start id")?;
    let is_root = id.stdout.trim_ascii() == b"0";
    let cgroups = Path::new(CGROUPS);
    let has_groups = cgroups.join("cgroup.procs").exists() || cgroups.join("memory").is_dir();
    refuse(&lacks(is_root, has_groups, has_program))?;
    refuse(&lacks_space(memory()?, disk(cache)?))?;
    install_packages()?;
    refuse(&lacks_permissions())
}

/// Why the suite does not run a real node here although it might work: it was never tried, and a suite
/// that fails for its machine would be worth less.
pub(super) fn untried() -> Option<&'static str> {
    let is_first_version = !Path::new(CGROUPS).join("cgroup.procs").exists();
    why_untried(std::env::consts::ARCH, is_first_version)
}

fn why_untried(architecture: &str, is_first_version: bool) -> Option<&'static str> {
    if architecture != "x86_64" {
        return Some("it was tried on x86_64 only; `cargo xtask real-node` tries it here");
    }
    let text = "it was tried with cgroups of version 1 only; `cargo xtask real-node` tries it here";
    (!is_first_version).then_some(text)
}

fn refuse(lacks: &[String]) -> Result<()> {
    ensure!(lacks.is_empty(), "a real node cannot run here: it needs {}", lacks.join(", "));
    Ok(())
}

fn lacks(is_root: bool, has_groups: bool, has_program: impl Fn(&str) -> bool) -> Vec<String> {
    let mut lacks = Vec::new();
    if !is_root {
        lacks.push("root".to_owned());
    }
    if !has_groups {
        lacks.push(format!("cgroups in {CGROUPS}"));
    }
    if !has_program("go") {
        lacks.push(control_plane::GO.to_owned());
    }
    for compiler in ["gcc", "g++"] {
        if !has_program(compiler) {
            lacks.push(compiler.to_owned());
        }
    }
    let missing = missing_packages();
    if !has_program("apt-get") && !missing.is_empty() {
        lacks.push(format!("apt-get, or the packages {}", missing.join(" ")));
    }
    lacks
}

fn lacks_space(memory: u64, disk: u64) -> Vec<String> {
    let mut lacks = Vec::new();
    if memory < MEMORY_GIB * GIB {
        lacks.push(format!("{MEMORY_GIB} GiB of memory"));
    }
    if disk < DISK_GIB * GIB {
        lacks.push(format!("{DISK_GIB} GiB of free disk space"));
    }
    lacks
}

/// Memory that programs can use, in bytes.
fn memory() -> Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("failed to read /proc/meminfo")?;
    available(&text).context("/proc/meminfo has no line MemAvailable")
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
}

/// Free bytes of the disk that has the cache.
fn disk(cache: &Path) -> Result<u64> {
    let existing = cache.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let mut df = Command::new("df");
    let output = df.args(["--output=avail", "--block-size=1"]).arg(existing).output();
    let output = output.context("failed to start df")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().last().and_then(|line| line.trim().parse().ok()).context("df printed no number")
}

/// What root may not do here, for example in a container.
fn lacks_permissions() -> Vec<String> {
    let mut lacks = Vec::new();
    if !may_create_bridge() {
        lacks.push("the permission to create network bridges".to_owned());
    }
    if drops_bridged_packets() {
        lacks.push(
            "a policy other than DROP of the chain FORWARD, or bridge-nf-call-iptables=0".into(),
        );
    }
    if !may_create_cgroup() {
        lacks.push(format!("the permission to create cgroups in {CGROUPS}"));
    }
    if !may_mount_overlay() {
        lacks
            .push("the permission to mount overlayfs in the folder for temporary files".to_owned());
    }
    lacks
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn may_create_bridge() -> bool {
    // An interface has at most 15 characters.
    let name = format!("sei-t{}", std::process::id());
    succeeds("ip", &["link", "add", &name, "type", "bridge"])
        && succeeds("ip", &["link", "delete", &name])
}

/// Whether a firewall drops what pods send to each other.
fn drops_bridged_packets() -> bool {
    let setting = fs::read_to_string("/proc/sys/net/bridge/bridge-nf-call-iptables");
    let output = Command::new("iptables").args(["-S", "FORWARD"]).output();
    setting.is_ok_and(|text| text.trim() == "1")
        && output.is_ok_and(|output| output.stdout.starts_with(b"-P FORWARD DROP"))
}

fn may_create_cgroup() -> bool {
    let top = Path::new(CGROUPS);
    let hierarchy = if top.join("cgroup.procs").exists() { top.into() } else { top.join("memory") };
    let group: PathBuf = hierarchy.join(format!("sei-try-{}", std::process::id()));
    fs::create_dir(&group).is_ok() && fs::remove_dir(&group).is_ok()
}

fn may_mount_overlay() -> bool {
    let folder = std::env::temp_dir().join(format!("sei-try-{}", std::process::id()));
    let path = |name: &str| folder.join(name).display().to_string();
    let names = ["lower", "upper", "work", "merged"];
    let is_created = names.iter().all(|name| fs::create_dir_all(path(name)).is_ok());
    let options =
        format!("lowerdir={},upperdir={},workdir={}", path("lower"), path("upper"), path("work"));
    let is_mounted = is_created
        && succeeds("mount", &["-t", "overlay", "overlay", "-o", &options, &path("merged")])
        && succeeds("umount", &[&path("merged")]);
    // What is left is empty.
    let _ = fs::remove_dir_all(folder);
    is_mounted
}

fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn missing_packages() -> Vec<&'static str> {
    let missing = PACKAGES.iter().filter(|(_, file)| !Path::new(file).exists());
    missing.map(|(name, _)| *name).collect()
}

/// Installs the missing packages with apt-get.
fn install_packages() -> Result<()> {
    let missing = missing_packages();
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
    let missing = missing_packages();
    ensure!(missing.is_empty(), "apt-get did not install {}", missing.join(" "));
    Ok(())
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
    fn a_small_machine_is_refused() {
        assert_eq!(lacks_space(64 * GIB, 64 * GIB), Vec::<String>::new());
        let small = lacks_space(GIB, GIB);
        assert_eq!(small, ["6 GiB of memory", "12 GiB of free disk space"]);
    }

    #[test]
    fn the_suite_runs_only_where_it_was_tried() {
        assert_eq!(why_untried("x86_64", true), None);
        assert!(why_untried("x86_64", false).is_some_and(|text| text.contains("cgroups")));
        assert!(why_untried("aarch64", true).is_some_and(|text| text.contains("x86_64")));
    }

    #[test]
    fn the_available_memory_is_read() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        assert_eq!(available("MemTotal: 1 kB\n"), None);
        assert!(memory().is_ok_and(|bytes| bytes > 0));
        assert!(disk(Path::new("/no/such/folder")).is_ok_and(|bytes| bytes > 0));
    }
}
