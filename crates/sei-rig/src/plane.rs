//! A control plane: booting it, clients for it, restarting its components.

mod files;

pub(crate) use self::files::TOKEN_PREFIX;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::time::{Instant, sleep, timeout};

use crate::audit::AuditLog;
use crate::component::{Component, Folder};

/// Attempts to boot: another process can bind a port after we found it free and before a component
/// binds it.
const ATTEMPTS: usize = 3;

/// Part of the log of a Go server when that happened.
const PORT_TAKEN: &str = "address already in use";

/// Interval of readiness checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Timeout of one readiness check; the next one may succeed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The components of a control plane.
#[derive(Clone, Copy, Debug)]
enum Part {
    Etcd,
    Apiserver,
    ControllerManager,
}

impl Part {
    fn program(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Apiserver => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to write the files of a control plane")]
    Files { source: std::io::Error },
    #[error("failed to find a free port")]
    Port { source: std::io::Error },
    #[error("failed to start {component}")]
    Start { component: &'static str, source: std::io::Error },
    #[error("{component} ended with {status}; its log ends with:\n{log}")]
    Ended { component: &'static str, status: ExitStatus, log: String },
    #[error("{component} was not ready within {seconds} s; its log ends with:\n{log}")]
    NotReady { component: &'static str, seconds: u64, log: String },
    #[error("the kubeconfig of {user} is invalid")]
    Kubeconfig { user: &'static str, source: kube::config::KubeconfigError },
    #[error("failed to create a client for {user}")]
    Client { user: &'static str, source: kube::Error },
    #[error("the server rejected the CRD {name}")]
    Definition { name: String, source: kube::Error },
    #[error("the CRD {name} was not established within {seconds} s")]
    NotEstablished { name: String, seconds: u64 },
    #[error("failed to read the version of the server")]
    Version { source: kube::Error },
}

/// The user of a request. Each user has a token and a kubeconfig.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// Has every permission.
    Admin,
    /// Has no permission until a test binds a role to its name; the audit log has its requests.
    Operator,
    /// The rig's kubelet. Has every permission.
    Kubelet,
    /// The real kube-controller-manager. Has every permission.
    ControllerManager,
}

impl User {
    const ALL: [Self; 4] = [Self::Admin, Self::Operator, Self::Kubelet, Self::ControllerManager];

    /// Name of the user on the server.
    pub fn name(self) -> &'static str {
        match self {
            Self::Admin => "admin",
            Self::Operator => "sei-operator",
            Self::Kubelet => "kubelet",
            Self::ControllerManager => "controller-manager",
        }
    }

    /// Whether the user needs no role.
    fn has_every_permission(self) -> bool {
        self != Self::Operator
    }
}

/// Options of [`ControlPlane::boot`].
#[derive(Clone, Debug)]
pub struct Options {
    /// Timeout for each component to become ready. A cold page cache on a busy machine takes long.
    pub ready_within: Duration,
    /// CRDs that are installed before the controllers start: the garbage collector discovers kinds
    /// when it starts and then every 30 s, and until then ignores deleted owners of a newer kind.
    pub definitions: Vec<CustomResourceDefinition>,
    /// The range of Service addresses if pods run on a [`crate::RealNode`]. The plane then has the
    /// controllers and the admission that real pods need.
    pub service_range: Option<String>,
    /// More arguments of the API server, for example to serve a beta API.
    pub apiserver_arguments: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ready_within: Duration::from_secs(60),
            definitions: Vec::new(),
            service_range: None,
            apiserver_arguments: Vec::new(),
        }
    }
}

/// A running control plane. Dropping it kills its processes and removes its folder.
#[derive(Debug)]
pub struct ControlPlane {
    bin_dir: PathBuf,
    ports: Ports,
    configs: Vec<(User, Config)>,
    options: Options,
    // Dropped in this order: clients before servers, and the folder last.
    controller_manager: Mutex<Option<Component>>,
    apiserver: Mutex<Option<Component>>,
    etcd: Mutex<Option<Component>>,
    folder: Folder,
}

impl ControlPlane {
    /// Starts all components and waits until they are ready, which takes some seconds.
    pub async fn boot(bin_dir: &Path, options: Options) -> Result<Self, Error> {
        for _ in 1..ATTEMPTS {
            match Self::boot_once(bin_dir, options.clone()).await {
                Err(Error::Ended { log, .. }) if log.contains(PORT_TAKEN) => {}
                outcome => return outcome,
            }
        }
        Self::boot_once(bin_dir, options).await
    }

    async fn boot_once(bin_dir: &Path, options: Options) -> Result<Self, Error> {
        let folder = Folder::create().map_err(|source| Error::Files { source })?;
        let ports = Ports::find().map_err(|source| Error::Port { source })?;
        files::write(folder.path(), &ports).map_err(|source| Error::Files { source })?;
        let mut plane = Self {
            bin_dir: bin_dir.to_owned(),
            ports,
            configs: Vec::new(),
            options,
            controller_manager: Mutex::default(),
            apiserver: Mutex::default(),
            etcd: Mutex::default(),
            folder,
        };
        plane.start(Part::Etcd)?;
        // It retries its first calls until etcd responds, so there is no need to wait for etcd.
        plane.start(Part::Apiserver)?;
        plane.wait_for(Part::Apiserver, || plane.is_apiserver_ready()).await?;
        for user in User::ALL {
            let config = plane.read_config(user).await?;
            plane.configs.push((user, config));
        }
        for definition in &plane.options.definitions {
            plane.install(definition).await?;
        }
        plane.start_controller_manager().await?;
        Ok(plane)
    }

    /// A client that acts as this user and retries nothing, so that a test gets every response.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime. The client ends with the runtime in which it was created, so each
    /// test creates its own.
    pub fn client(&self, user: User) -> Result<Client, Error> {
        let config =
            self.configs.iter().find(|(owner, _)| *owner == user).map(|(_, config)| config);
        let config = config.expect("a booted plane has the configs of all users").clone();
        Client::try_from(config).map_err(|source| Error::Client { user: user.name(), source })
    }

    /// A kubeconfig file for this user; it is removed with the plane.
    pub fn kubeconfig(&self, user: User) -> PathBuf {
        files::kubeconfig_path(self.folder.path(), user)
    }

    /// Folder of its programs, kubectl included.
    pub fn bin_dir(&self) -> &Path {
        &self.bin_dir
    }

    /// Version of the server, like `v1.34.4`.
    pub async fn version(&self) -> Result<String, Error> {
        let client = self.client(User::Admin)?;
        let version = client.apiserver_version().await;
        Ok(version.map_err(|source| Error::Version { source })?.git_version)
    }

    /// Requests of the operator's user from now on.
    pub fn audit(&self) -> AuditLog {
        AuditLog::from_now(files::audit_log_path(self.folder.path()))
    }

    /// The port of the API server on loopback.
    pub(crate) fn apiserver_port(&self) -> u16 {
        self.ports.apiserver
    }

    /// Ids of the running processes, etcd first.
    pub fn process_ids(&self) -> Vec<u32> {
        [&self.etcd, &self.apiserver, &self.controller_manager]
            .iter()
            .filter_map(|slot| lock(slot).as_ref().map(Component::id))
            .collect()
    }

    /// Folder of its logs and kubeconfigs.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Creates or updates a CRD, and waits until the server serves it.
    pub async fn install(&self, definition: &CustomResourceDefinition) -> Result<(), Error> {
        let name = definition.metadata.name.clone().unwrap_or_default();
        let api: Api<CustomResourceDefinition> = Api::all(self.client(User::Admin)?);
        let parameters = PatchParams::apply("sei-rig").force();
        let applied = api.patch(&name, &parameters, &Patch::Apply(definition)).await;
        if let Err(source) = applied {
            return Err(Error::Definition { name, source });
        }
        let deadline = Instant::now() + self.options.ready_within;
        let client = self.client(User::Admin)?;
        while !is_established(&api, &name).await || !is_served(&client, definition).await {
            if Instant::now() > deadline {
                let seconds = self.options.ready_within.as_secs();
                return Err(Error::NotEstablished { name, seconds });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Kills the API server and starts it again at the same address. This breaks all watches.
    pub async fn restart_apiserver(&self) -> Result<(), Error> {
        self.stop(Part::Apiserver);
        self.start(Part::Apiserver)?;
        self.wait_for(Part::Apiserver, || self.is_apiserver_ready()).await
    }

    /// Stops all controllers: nothing creates pods or collects garbage any more.
    pub fn stop_controller_manager(&self) {
        self.stop(Part::ControllerManager);
    }

    pub async fn start_controller_manager(&self) -> Result<(), Error> {
        self.start(Part::ControllerManager)?;
        self.wait_for(Part::ControllerManager, || self.is_controller_manager_ready()).await
    }

    fn slot(&self, part: Part) -> &Mutex<Option<Component>> {
        match part {
            Part::Etcd => &self.etcd,
            Part::Apiserver => &self.apiserver,
            Part::ControllerManager => &self.controller_manager,
        }
    }

    /// Starts the component unless it already runs.
    fn start(&self, part: Part) -> Result<(), Error> {
        let folder = self.folder.path();
        let range = self.options.service_range.as_deref();
        let arguments = match part {
            Part::Etcd => files::etcd_arguments(folder, &self.ports),
            Part::Apiserver => {
                let mut arguments = files::apiserver_arguments(folder, &self.ports, range);
                arguments.extend(self.options.apiserver_arguments.iter().cloned());
                arguments
            }
            Part::ControllerManager => {
                files::controller_manager_arguments(folder, &self.ports, range)
            }
        };
        let component = part.program();
        let mut slot = lock(self.slot(part));
        if slot.is_none() {
            let started = Component::start(&self.bin_dir, component, &arguments, folder);
            *slot = Some(started.map_err(|source| Error::Start { component, source })?);
        }
        Ok(())
    }

    fn stop(&self, part: Part) {
        lock(self.slot(part)).take();
    }

    async fn wait_for<Ready>(&self, part: Part, is_ready: impl Fn() -> Ready) -> Result<(), Error>
    where
        Ready: Future<Output = bool>,
    {
        let deadline = Instant::now() + self.options.ready_within;
        while !timeout(CHECK_TIMEOUT, is_ready()).await.unwrap_or(false) {
            // A component that waits for etcd is never ready if etcd has ended.
            for required in [Part::Etcd, part] {
                self.check_runs(required)?;
            }
            if Instant::now() > deadline {
                let component = part.program();
                let log = lock(self.slot(part)).as_ref().map(Component::log_tail);
                let seconds = self.options.ready_within.as_secs();
                return Err(Error::NotReady { component, seconds, log: log.unwrap_or_default() });
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    fn check_runs(&self, part: Part) -> Result<(), Error> {
        let component = part.program();
        let mut slot = lock(self.slot(part));
        let Some(process) = slot.as_mut() else { return Ok(()) };
        match process.ended().map_err(|source| Error::Start { component, source })? {
            None => Ok(()),
            Some(status) => Err(Error::Ended { component, status, log: process.log_tail() }),
        }
    }

    async fn is_apiserver_ready(&self) -> bool {
        let Ok(config) = self.read_config(User::Admin).await else { return false };
        responds_ok(config, "/readyz").await
    }

    async fn is_controller_manager_ready(&self) -> bool {
        let Some(url) = url(self.ports.controller_manager) else { return false };
        let mut config = Config::new(url);
        // Its certificate is self-signed, and only its health is read.
        config.accept_invalid_certs = true;
        responds_ok(config, "/healthz").await
    }

    /// Fails until the API server has written its certificate.
    async fn read_config(&self, user: User) -> Result<Config, Error> {
        let invalid = |source| Error::Kubeconfig { user: user.name(), source };
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig(user)).map_err(invalid)?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let mut config = config.map_err(invalid)?;
        config.default_retry = false;
        Ok(config)
    }
}

/// Ignores poisoning: a panic of one test must not fail the others.
fn lock(slot: &Mutex<Option<Component>>) -> MutexGuard<'_, Option<Component>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn is_established(api: &Api<CustomResourceDefinition>, name: &str) -> bool {
    let Ok(definition) = api.get(name).await else { return false };
    let status = definition.status.unwrap_or_default();
    let conditions = status.conditions.unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Whether its objects can be listed and watched: the server's cache for them starts some time after
/// the CRD is established.
async fn is_served(client: &Client, definition: &CustomResourceDefinition) -> bool {
    let spec = &definition.spec;
    let served = spec.versions.iter().find(|version| version.served);
    let version = served.map(|version| version.name.clone()).unwrap_or_default();
    let resource = ApiResource {
        api_version: format!("{}/{version}", spec.group),
        group: spec.group.clone(),
        version,
        kind: spec.names.kind.clone(),
        plural: spec.names.plural.clone(),
    };
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    objects.list(&ListParams::default().match_any().limit(1)).await.is_ok()
}

fn url(port: u16) -> Option<http::Uri> {
    format!("https://127.0.0.1:{port}").parse().ok()
}

async fn responds_ok(config: Config, path: &str) -> bool {
    let Ok(client) = Client::try_from(config) else { return false };
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return false };
    client.request_text(request).await.is_ok_and(|body| body == "ok")
}

/// Ports of the components on loopback.
#[derive(Debug)]
struct Ports {
    etcd: u16,
    apiserver: u16,
    controller_manager: u16,
}

impl Ports {
    fn find() -> std::io::Result<Self> {
        // All listeners stay open until the end, or the same port could be found twice.
        let listener = || TcpListener::bind(("127.0.0.1", 0));
        let [etcd, apiserver, controller_manager] = [listener()?, listener()?, listener()?];
        let port = |listener: TcpListener| listener.local_addr().map(|address| address.port());
        Ok(Self {
            etcd: port(etcd)?,
            apiserver: port(apiserver)?,
            controller_manager: port(controller_manager)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A folder with these shell scripts as programs.
    fn fake(programs: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, script) in programs {
            let path = folder.path().join(name);
            fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        folder
    }

    async fn boot(programs: &[(&str, &str)]) -> String {
        let folder = fake(programs);
        let options = Options { ready_within: Duration::from_millis(300), ..Options::default() };
        ControlPlane::boot(folder.path(), options).await.unwrap_err().to_string()
    }

    #[tokio::test]
    async fn the_error_of_a_failed_component_contains_its_log() {
        let error = boot(&[("etcd", "echo no space left; exit 3"), ("kube-apiserver", "sleep 60")]);
        assert_eq!(
            error.await,
            "etcd ended with exit status: 3; its log ends with:\nno space left"
        );
        let error = boot(&[("etcd", "sleep 60"), ("kube-apiserver", "echo waits; sleep 60")]);
        assert_eq!(
            error.await,
            "kube-apiserver was not ready within 0 s; its log ends with:\nwaits"
        );
    }

    #[tokio::test]
    async fn the_error_names_a_missing_program() {
        let error = boot(&[("etcd", "sleep 60")]).await;
        assert!(error.starts_with("kube-apiserver ended with"), "{error}");
        assert!(error.contains("not found"), "{error}");
    }
}
