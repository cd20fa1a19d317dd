//! The installation tools, and the operator started from its image as a kubelet would start it.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use flate2::read::GzDecoder;
use sei_rig::{ControlPlane, User};
use serde_json::Value;
use tempfile::TempDir;

/// The namespace that all documents and the kustomize base use.
pub const NAMESPACE: &str = "sei-operator-system";

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(Path::to_owned).unwrap_or_default()
}

/// A tool of `tools`, located once and cached.
fn tool(place: &'static OnceLock<Result<PathBuf, String>>, name: &str) -> Result<PathBuf> {
    let found = place.get_or_init(|| sei_rig::tool(name).map_err(|error| error.to_string()));
    found.clone().map_err(|message| anyhow!("failed to find {name}: {message}"))
}

pub fn helm() -> Result<PathBuf> {
    static PLACE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    tool(&PLACE, "helm")
}

/// The CRDs of the Prometheus objects that the chart can install.
pub fn prometheus_definitions() -> Result<Vec<String>> {
    static PLACE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let folder = tool(&PLACE, "prometheus-operator")?.join("example/prometheus-operator-crd");
    let read = |kind: &str| {
        let path = folder.join(format!("monitoring.coreos.com_{kind}.yaml"));
        fs::read_to_string(&path).with_context(|| format!("failed to read {}", path.display()))
    };
    ["servicemonitors", "podmonitors", "prometheusrules"].into_iter().map(read).collect()
}

/// An administrator's shell on a control plane: helm and kubectl are in `PATH`, and the working
/// folder is the repository.
pub struct Shell {
    home: TempDir,
    path: OsString,
    kubeconfig: Option<PathBuf>,
    variables: Vec<(String, String)>,
}

impl Shell {
    pub fn on(plane: &ControlPlane) -> Result<Self> {
        Self::new(plane.bin_dir(), Some(plane.kubeconfig(User::Admin)))
    }

    /// A shell without access to a cluster.
    pub fn without_cluster() -> Result<Self> {
        Self::new(&sei_rig::bin_dir(&crate::minor())?, None)
    }

    fn new(programs: &Path, kubeconfig: Option<PathBuf>) -> Result<Self> {
        let helm = helm()?;
        let folder = helm.parent().context("helm has no parent folder")?;
        let present = std::env::var_os("PATH").unwrap_or_default();
        let folders = [programs.to_owned(), folder.to_owned()];
        let path =
            std::env::join_paths(folders.into_iter().chain(std::env::split_paths(&present)))?;
        Ok(Self { home: tempfile::tempdir()?, path, kubeconfig, variables: Vec::new() })
    }

    /// The same with these variables set.
    #[must_use]
    pub fn with(mut self, variables: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.variables.extend(variables.iter().map(owned));
        self
    }

    /// Runs a script and returns its stdout. The error of a failed script contains its stderr.
    pub fn run(&self, script: &str) -> Result<String> {
        self.run_with(script, "")
    }

    /// The same with this stdin.
    pub fn run_with(&self, script: &str, input: &str) -> Result<String> {
        // A script that takes longer than two minutes has failed.
        let mut shell = Command::new("timeout");
        shell.args(["120", "sh", "-eu", "-c", script]).current_dir(repository());
        // Isolated from the home folder and kubeconfig of the user who runs the tests.
        shell.env("HOME", self.home.path()).env("PATH", &self.path).env_remove("KUBECONFIG");
        shell.envs(self.variables.iter().map(|(name, value)| (name, value)));
        shell.envs(self.kubeconfig.iter().map(|path| ("KUBECONFIG", path)));
        shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = shell.spawn().context("failed to start sh")?;
        let mut stdin = child.stdin.take().context("the shell has no stdin")?;
        let input = input.to_owned();
        let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output()?;
        // A script that reads no input may exit before the input is written.
        let _ = writer.join();
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            bail!("`{script}` ended with {}: {}", output.status, stderr.trim());
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}

/// The documents of a YAML text.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let mut documents = vec![String::new()];
    for line in text.lines() {
        if line == "---" {
            documents.push(String::new());
        } else if let Some(last) = documents.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    let has_content =
        |text: &String| text.lines().any(|line| !line.trim().is_empty() && !line.starts_with('#'));
    documents
        .iter()
        .filter(|text| has_content(text))
        .map(|text| Ok(serde_saphyr::from_str(text)?))
        .collect()
}

/// The operator's image, written once for all tests. It uses the profile that these tests are built
/// with, so that the operator is built once.
fn image() -> Result<&'static [u8]> {
    static IMAGE: OnceLock<Result<Vec<u8>, String>> = OnceLock::new();
    let write = || {
        let folder = tempfile::tempdir()?;
        let archive = folder.path().join("image.tar");
        let built = sei_rig::cargo()
            .args(["xtask", "image", "--profile", "dev", "--output"])
            .arg(&archive)
            .current_dir(repository())
            .stdout(Stdio::null())
            .status()?;
        ensure!(built.success(), "`cargo xtask image` failed; its output is above");
        Ok(fs::read(archive)?)
    };
    let image = IMAGE.get_or_init(|| write().map_err(|error: anyhow::Error| format!("{error:#}")));
    image.as_deref().map_err(|message| anyhow!("failed to write the image: {message}"))
}

/// The root file system in the operator's image.
struct ImageRoot {
    folder: TempDir,
}

impl ImageRoot {
    /// Unpacks the image, as a container runtime does.
    fn unpack() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let layout = folder.path().join("layout");
        tar::Archive::new(image()?).unpack(&layout)?;
        let root = folder.path().join("root");
        fs::create_dir(&root)?;
        // Temporary folders are closed to other users, and the operator runs as another user.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
        let read = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
        let blob = |descriptor: &Value| -> Result<PathBuf> {
            let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
            Ok(layout.join("blobs").join(digest.replace(':', "/")))
        };
        let manifest = read(&blob(&read(&layout.join("index.json"))?["manifests"][0])?)?;
        for layer in manifest["layers"].as_array().context("the manifest has no layers")? {
            tar::Archive::new(GzDecoder::new(fs::File::open(blob(layer)?)?)).unpack(&root)?;
        }
        Ok(Self { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn write(&self, path: &str, content: &str) -> Result<()> {
        let path = self.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().context("the path has no parent folder")?)?;
        Ok(fs::write(path, content)?)
    }
}

/// An operator that runs as its Deployment specifies; killed on drop.
pub struct InstalledOperator {
    child: Child,
    root: ImageRoot,
    /// The token that it presents to the API server and to sidecars.
    pub token: String,
    pub health: u16,
    pub metrics: u16,
}

impl Drop for InstalledOperator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

impl InstalledOperator {
    /// Does what a kubelet does with the first pod of the installed Deployment: mounts its
    /// ConfigMap and the token of its service account, and starts its container as its user with
    /// its arguments and variables. Only the ports differ, since all tests share a machine.
    pub fn start(plane: &ControlPlane, shell: &Shell) -> Result<Self> {
        let is_root = Command::new("id").arg("-u").output()?.stdout.starts_with(b"0\n");
        ensure!(is_root, "this test calls chroot: run it as root");
        let root = ImageRoot::unpack()?;
        let get = format!("kubectl --namespace {NAMESPACE} get deployment sei-operator -o json");
        let deployment: Value = serde_json::from_str(&shell.run(&get)?)?;
        let pod = &deployment["spec"]["template"]["spec"];
        let token = mount(&root, pod, plane, shell)?;
        let container = &pod["containers"][0];
        let user = &pod["securityContext"];
        let log = fs::File::create(root.folder.path().join("log"))?;
        let (health, metrics) = (free_port()?, free_port()?);
        let mut command = Command::new("chroot");
        command
            .arg(format!("--userspec={}:{}", user["runAsUser"], user["runAsGroup"]))
            .arg(root.path())
            .arg("/sei-operator")
            .env_clear()
            // Needed to find chroot; the image itself needs no PATH.
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .envs(variables(container)?)
            .envs(server(plane)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        for argument in container["args"].as_array().context("the container has no arguments")? {
            let argument = argument.as_str().context("an argument is not a string")?;
            let argument = argument.replace("=:8080", &format!("=127.0.0.1:{metrics}"));
            command.arg(argument.replace("=:8081", &format!("=127.0.0.1:{health}")));
        }
        let child = command.spawn().context("failed to start chroot")?;
        Ok(Self { child, root, token, health, metrics })
    }

    /// Its log so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.root.folder.path().join("log")).unwrap_or_default()
    }
}

/// Writes the pod's mounts into the root file system; returns the token of its service account.
fn mount(root: &ImageRoot, pod: &Value, plane: &ControlPlane, shell: &Shell) -> Result<String> {
    let volume = &pod["volumes"][0];
    let map = volume["configMap"]["name"].as_str().context("the volume is not a ConfigMap")?;
    let get = format!("kubectl --namespace {NAMESPACE} get configmap {map} -o json");
    let map: Value = serde_json::from_str(&shell.run(&get)?)?;
    let mount = pod["containers"][0]["volumeMounts"][0]["mountPath"].as_str();
    let mount = mount.context("the volume is not mounted")?;
    for (name, content) in map["data"].as_object().context("the ConfigMap has no data")? {
        root.write(&format!("{mount}/{name}"), content.as_str().unwrap_or_default())?;
    }
    let account = pod["serviceAccountName"].as_str().context("the pod has no service account")?;
    let token = shell.run(&format!("kubectl --namespace {NAMESPACE} create token {account}"))?;
    root.write(&format!("{SERVICE_ACCOUNT}/token"), token.trim())?;
    root.write(&format!("{SERVICE_ACCOUNT}/namespace"), NAMESPACE)?;
    let authority = cluster(plane)?["certificate-authority"].as_str().map(PathBuf::from);
    let authority = fs::read_to_string(authority.context("the kubeconfig names no authority")?)?;
    root.write(&format!("{SERVICE_ACCOUNT}/ca.crt"), &authority)?;
    Ok(token.trim().to_owned())
}

fn cluster(plane: &ControlPlane) -> Result<Value> {
    let text = fs::read_to_string(plane.kubeconfig(User::Admin))?;
    let config: Value = serde_saphyr::from_str(&text)?;
    Ok(config["clusters"][0]["cluster"].clone())
}

/// The variables by which a pod finds the API server.
fn server(plane: &ControlPlane) -> Result<[(&'static str, String); 2]> {
    let cluster = cluster(plane)?;
    let url = cluster["server"].as_str().and_then(|url| url.strip_prefix("https://"));
    let (host, port) =
        url.and_then(|url| url.rsplit_once(':')).context("the server's address has no port")?;
    Ok([("KUBERNETES_SERVICE_HOST", host.to_owned()), ("KUBERNETES_SERVICE_PORT", port.to_owned())])
}

/// The variables of a container, with the pod fields that they refer to.
fn variables(container: &Value) -> Result<Vec<(String, String)>> {
    let entries = container["env"].as_array().context("the container has no variables")?;
    let variable = |entry: &Value| {
        let name = entry["name"].as_str().context("a variable has no name")?;
        let value = match entry["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            Some("metadata.name") => POD_NAME,
            Some("metadata.namespace") => NAMESPACE,
            Some(path) => bail!("{name}: the field path {path} is not supported here"),
            None => entry["value"].as_str().context("a variable has no value")?,
        };
        Ok((name.to_owned(), value.to_owned()))
    };
    entries.iter().map(variable).collect()
}

/// The pod name that the container is given.
pub const POD_NAME: &str = "sei-operator-5d8f7c9b6d-x2x4z";

/// How many ports [`free_port`] has tried.
static TRIED_PORTS: AtomicU16 = AtomicU16::new(0);

/// A port of 127.0.0.1 that no other test gets. It is below the range from which the system takes ports
/// of outgoing connections: one of those could take the port before the listener does. Test programs
/// that run at once begin at different ports.
pub fn free_port() -> Result<u16> {
    let first = 20_000 + u16::try_from(std::process::id() % 90)? * 100;
    loop {
        let port = first + TRIED_PORTS.fetch_add(1, Ordering::Relaxed);
        ensure!(port < 30_000, "no port is free");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
}
