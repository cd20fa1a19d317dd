//! The operator's image, built without a daemon: an archive in the OCI image layout, which podman,
//! skopeo and containerd read. The same input gives the same bytes, and so the same digest.
//!
//! The image contains the program and the libraries that it is linked with, and no shell or packages.
//! The Dockerfile copies the same root file system.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::suite::{cargo_command, run_to_end, seconds};

/// The arguments of the task `image`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Desired {
    /// A profile of cargo: `release`, or `dev` for tests, which reuse their build.
    pub(crate) profile: String,
    /// The archive, or with `root` the folder.
    pub(crate) output: PathBuf,
    /// Whether to write only the root file system, as a folder.
    pub(crate) root: bool,
}

impl Default for Desired {
    fn default() -> Self {
        Self {
            profile: "release".to_owned(),
            output: "target/sei-operator.oci.tar".into(),
            root: false,
        }
    }
}

/// The program in the image.
const PROGRAM: &str = "sei-operator";

/// The number that distroless images use for `nonroot`. Pod Security needs a number other than 0.
const USER: u32 = 65532;

/// Files of an image by path: content, and whether they are executable.
pub(crate) type Files = BTreeMap<PathBuf, (Vec<u8>, bool)>;

/// An image as its files and what a container runtime reads besides them.
pub(crate) struct Image {
    pub(crate) layers: Vec<Files>,
    /// User, entrypoint and variables, as the specification of OCI names them.
    pub(crate) config: Value,
    /// Annotations of its manifest, which tools read names and tags from.
    pub(crate) annotations: Value,
}

pub(crate) fn run(root: &Path, desired: &Desired) -> Result<()> {
    let Desired { profile, output, root: root_only } = desired;
    let arguments = ["build", "--quiet", "--profile", profile, "--package", PROGRAM];
    let mut build = cargo_command();
    build.current_dir(root).args(arguments);
    let line = format!("cargo {}", arguments.join(" "));
    eprintln!("[image] building {PROGRAM}: {line}");
    let started = Instant::now();
    run_to_end(&mut build, &line)?;
    eprintln!("[image] built in {}", seconds(started.elapsed()));
    let program = program_path(root, profile)?;
    let layers = [libraries(&program)?, own_files(&program)?];
    let output = root.join(output);
    let failure = || format!("failed to write {}", output.display());
    if *root_only {
        write_root(&output, &layers).with_context(failure)?;
    } else {
        let folder = output.parent().context("an archive has a parent folder")?;
        fs::create_dir_all(folder).with_context(failure)?;
        let image = operator_image(layers.into(), &version(&program)?);
        fs::write(&output, image.archive()?).with_context(failure)?;
    }
    println!("{}", output.display());
    Ok(())
}

fn program_path(root: &Path, profile: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let folder = if profile == "dev" { "debug" } else { profile };
    let program = root.join(target).join(folder).join(PROGRAM);
    if !program.is_file() {
        bail!("there is no {}", program.display());
    }
    Ok(program)
}

/// The version that the program reports, which is also a valid tag.
fn version(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("failed to start {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.trim().strip_prefix(PROGRAM).map(str::trim).unwrap_or_default();
    if version.is_empty() {
        bail!("{} reports no version: {text}", program.display());
    }
    Ok(version.to_owned())
}

/// The libraries that the program is linked with, at the same paths as on this machine: the loader
/// searches for them there.
pub(crate) fn libraries(program: &Path) -> Result<Files> {
    let output = Command::new("ldd").arg(program).output().context("failed to start ldd")?;
    let error = String::from_utf8_lossy(&output.stderr);
    if error.contains("not a dynamic executable") {
        return Ok(Files::new());
    }
    if !output.status.success() {
        bail!("ldd failed: {}", error.trim());
    }
    let mut files = Files::new();
    for path in linked(&String::from_utf8_lossy(&output.stdout))? {
        let content = read(&path)?;
        files.insert(relative(&path), (content, true));
    }
    Ok(files)
}

/// The paths in the output of ldd: after an arrow, or first for the loader itself.
fn linked(output: &str) -> Result<Vec<PathBuf>> {
    if output.contains("not found") {
        bail!("a library is missing: {}", output.trim());
    }
    let path = |line: &str| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place);
        let path = place.split_whitespace().next()?;
        path.starts_with('/').then(|| PathBuf::from(path))
    };
    Ok(output.lines().filter_map(path).collect())
}

/// The program and its user. Host names are resolved by files before DNS, as in any pod.
fn own_files(program: &Path) -> Result<Files> {
    let text = |text: String| (text.into_bytes(), false);
    Ok(Files::from([
        (PROGRAM.into(), (read(program)?, true)),
        ("etc/group".into(), text(format!("nonroot:x:{USER}:\n"))),
        ("etc/nsswitch.conf".into(), text("hosts: files dns\n".to_owned())),
        ("etc/passwd".into(), text(format!("nonroot:x:{USER}:{USER}::/:/nowhere\n"))),
    ]))
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("failed to read {}", path.display()))
}

fn relative(path: &Path) -> PathBuf {
    path.strip_prefix("/").unwrap_or(path).to_owned()
}

fn write_root(folder: &Path, layers: &[Files]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    for (path, (content, is_executable)) in layers.iter().flatten() {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().context("a file has a parent folder")?)?;
        fs::write(&path, content)?;
        let mode = if *is_executable { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn operator_image(layers: Vec<Files>, version: &str) -> Image {
    let config = json!({
        "User": format!("{USER}:{USER}"),
        "Entrypoint": [format!("/{PROGRAM}")],
        "WorkingDir": "/",
        "Labels": {
            "org.opencontainers.image.title": PROGRAM,
            "org.opencontainers.image.version": version,
        },
    });
    let annotations = json!({ "org.opencontainers.image.ref.name": version });
    Image { layers, config, annotations }
}

impl Image {
    /// An OCI archive: blobs by digest, and the index that refers to them.
    pub(crate) fn archive(&self) -> Result<Vec<u8>> {
        let mut blobs = Files::new();
        let mut store = |content: Vec<u8>, kind: &str| {
            let digest = digest(&content);
            let stored = json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len() });
            blobs.insert(Path::new("blobs/sha256").join(digest), (content, false));
            stored
        };
        let mut stored = Vec::new();
        let mut unpacked = Vec::new();
        for files in &self.layers {
            let tar = tar(files)?;
            unpacked.push(format!("sha256:{}", digest(&tar)));
            stored.push(store(gzip(&tar)?, "application/vnd.oci.image.layer.v1.tar+gzip"));
        }
        let config = json!({
            // A real time would change the digest of an unchanged image.
            "created": "1970-01-01T00:00:00Z",
            "architecture": architecture(std::env::consts::ARCH),
            "os": "linux",
            "config": self.config,
            "rootfs": { "type": "layers", "diff_ids": unpacked },
        });
        let config = store(json(&config)?, "application/vnd.oci.image.config.v1+json");
        let manifest_kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": manifest_kind,
            "config": config, "layers": stored });
        let mut manifest = store(json(&manifest)?, manifest_kind);
        manifest["annotations"] = self.annotations.clone();
        let index = json!({ "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [manifest] });
        blobs.insert("index.json".into(), (json(&index)?, false));
        let layout = json!({ "imageLayoutVersion": "1.0.0" });
        blobs.insert("oci-layout".into(), (json(&layout)?, false));
        tar(&blobs)
    }
}

/// The name of an architecture in Go and OCI.
fn architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        name => name,
    }
}

/// A tar archive of the files in order, each folder before its files, owned by root, without times.
fn tar(files: &Files) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut folders: Vec<PathBuf> = Vec::new();
    for (path, (content, is_executable)) in files {
        let above: Vec<&Path> = path.ancestors().skip(1).collect();
        for folder in above.into_iter().rev().filter(|folder| !folder.as_os_str().is_empty()) {
            if !folders.iter().any(|known| known == folder) {
                folders.push(folder.to_owned());
                let mut header = header(0, 0o755);
                header.set_entry_type(tar::EntryType::Directory);
                tar.append_data(&mut header, folder, std::io::empty())?;
            }
        }
        let mode = if *is_executable { 0o755 } else { 0o644 };
        let mut header = header(content.len(), mode);
        tar.append_data(&mut header, path, content.as_slice())?;
    }
    Ok(tar.into_inner()?)
}

fn header(size: usize, mode: u32) -> tar::Header {
    let mut header = tar::Header::new_ustar();
    header.set_size(size as u64);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_entry_type(tar::EntryType::Regular);
    header
}

fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    gzip.write_all(content)?;
    Ok(gzip.finish()?)
}

fn json(value: &Value) -> Result<Vec<u8>> {
    Ok(serde_json::to_vec(value)?)
}

fn digest(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn files() -> Files {
        Files::from([
            ("bin/a".into(), (b"program".to_vec(), true)),
            ("etc/deep/b".into(), (b"text".to_vec(), false)),
        ])
    }

    fn entries(tar: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(tar);
        let entry = |entry: std::io::Result<tar::Entry<'_, &[u8]>>| {
            let mut entry = entry.unwrap();
            assert_eq!((entry.header().uid().unwrap(), entry.header().mtime().unwrap()), (0, 0));
            let path = entry.path().unwrap().display().to_string();
            let mode = entry.header().mode().unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            (path, (mode, content))
        };
        archive.entries().unwrap().map(entry).collect()
    }

    fn archive(layers: &[Files]) -> Vec<u8> {
        operator_image(layers.to_vec(), "1.2.3").archive().unwrap()
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        assert_eq!(archive(&[files()]), archive(&[files()]));
        let mut changed = files();
        changed.insert("bin/a".into(), (b"Program".to_vec(), true));
        assert_ne!(archive(&[files()]), archive(&[changed]));
    }

    /// Reads the archive like a client: from the index to the manifest, its config and layers.
    #[test]
    fn every_digest_matches_its_blob() {
        let archive = entries(&archive(&[files(), own()]));
        let blob = |stored: &Value| {
            let digest = stored["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let content = archive[&format!("blobs/sha256/{digest}")].1.clone();
            assert_eq!(super::digest(&content), digest);
            assert_eq!(stored["size"], content.len());
            content
        };
        let parsed = |content: &[u8]| serde_json::from_slice::<Value>(content).unwrap();
        assert_eq!(parsed(&archive["oci-layout"].1)["imageLayoutVersion"], "1.0.0");
        let index = parsed(&archive["index.json"].1);
        let manifest = parsed(&blob(&index["manifests"][0]));
        let config = parsed(&blob(&manifest["config"]));
        assert_eq!(config["config"]["User"], "65532:65532");
        assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
        assert_eq!(config["config"]["Entrypoint"], json!(["/sei-operator"]));
        for (number, layer) in manifest["layers"].as_array().unwrap().iter().enumerate() {
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(blob(layer).as_slice()).read_to_end(&mut tar).unwrap();
            let unpacked = format!("sha256:{}", super::digest(&tar));
            assert_eq!(config["rootfs"]["diff_ids"][number], unpacked);
            if number == 0 {
                let found = entries(&tar);
                assert_eq!(found["bin/a"], (0o755, b"program".to_vec()));
                assert_eq!(found["etc/deep/b"], (0o644, b"text".to_vec()));
                assert!(found.contains_key("etc/deep") || found.contains_key("etc/deep/"));
            }
        }
    }

    fn own() -> Files {
        Files::from([("sei-operator".into(), (b"x".to_vec(), true))])
    }

    #[test]
    fn libraries_are_read_from_the_output_of_ldd() {
        let output = "\tlinux-vdso.so.1 (0x00007ff1adcb6000)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007ff1ab21e000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007ff1adcb8000)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(linked(output).unwrap(), paths.map(PathBuf::from));
        assert!(linked("\tlibx.so => not found\n").is_err());
        assert_eq!(linked("\tstatically linked\n").unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_dockerfile_runs_the_same_program_as_the_same_user() {
        let text = fs::read_to_string(crate::repository().join("Dockerfile")).unwrap();
        assert!(text.contains(&format!("USER {USER}:{USER}\n")), "{text}");
        assert!(text.contains(&format!("ENTRYPOINT [\"/{PROGRAM}\"]\n")), "{text}");
    }
}
