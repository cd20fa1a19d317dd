//! An operator that is measured: a child process, its CPU time and its memory.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail, ensure};
use sei_rig::{ControlPlane, User};

/// The unit of `/proc/<pid>/stat` on every Linux that this runs on.
const TICKS_PER_SECOND: u64 = 100;

/// An operator that can be started: `NAME=COMMAND`.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) name: String,
    /// The program and its first arguments.
    command: Vec<String>,
}

impl FromStr for Candidate {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, command)) = text.split_once('=') else {
            bail!("`{text}` is not NAME=COMMAND");
        };
        let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
        ensure!(!name.is_empty() && !command.is_empty(), "`{text}` is not NAME=COMMAND");
        Ok(Self { name: name.to_owned(), command })
    }
}

impl Candidate {
    /// Starts it. `holder` makes it wait for the lease, under this name.
    pub(crate) fn start(
        &self,
        plane: &ControlPlane,
        config: &Path,
        holder: Option<&str>,
    ) -> Result<Operator> {
        let log = plane.folder().join(format!("{}-{}.log", self.name, holder.unwrap_or("alone")));
        let free =
            || Ok::<u16, std::io::Error>(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port());
        let (metrics, health) = (free()?, free()?);
        let [program, arguments @ ..] = &self.command[..] else { bail!("no program") };
        let child = Command::new(program)
            .args(arguments)
            .arg(format!("--leader-elect={}", holder.is_some()))
            .arg(format!("--metrics-bind-address=127.0.0.1:{metrics}"))
            .arg(format!("--health-probe-bind-address=127.0.0.1:{health}"))
            .env("KUBECONFIG", plane.kubeconfig(User::Operator))
            .env("SEI_CONTROLLER_CONFIG", config)
            .env("POD_NAMESPACE", "default")
            .env("POD_NAME", holder.unwrap_or("alone"))
            .stdout(File::create(log.with_extension("out"))?)
            .stderr(File::create(log)?)
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        Ok(Operator(child))
    }
}

/// A running operator, killed when it is dropped.
pub(crate) struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// CPU time in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cpu {
    pub(crate) user: u64,
    pub(crate) system: u64,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self { user: self.user - before.user, system: self.system - before.system }
    }

    pub(crate) fn total(self) -> u64 {
        self.user + self.system
    }
}

impl Operator {
    fn proc(&self, file: &str) -> Result<String> {
        let path = format!("/proc/{}/{file}", self.0.id());
        fs::read_to_string(&path).with_context(|| format!("the operator has ended: {path}"))
    }

    /// CPU time so far.
    pub(crate) fn cpu(&self) -> Result<Cpu> {
        let stat = self.proc("stat")?;
        // The name of the program may hold blanks; what follows it does not.
        let (_, fields) = stat.rsplit_once(") ").context("/proc/<pid>/stat has a name")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        ensure!(fields.len() > 12, "/proc/<pid>/stat has {} fields", fields.len());
        let ms = |ticks: &str| anyhow::Ok(ticks.parse::<u64>()? * 1000 / TICKS_PER_SECOND);
        Ok(Cpu { user: ms(fields[11])?, system: ms(fields[12])? })
    }

    /// The most memory since the last reset, in kilobytes.
    pub(crate) fn peak_memory(&self) -> Result<u64> {
        let status = self.proc("status")?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let line = line.context("/proc/<pid>/status has no VmHWM")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse()?)
    }

    /// Counts the most memory from now on.
    pub(crate) fn reset_peak_memory(&self) -> Result<()> {
        let path = format!("/proc/{}/clear_refs", self.0.id());
        fs::write(&path, "5").with_context(|| format!("failed to write {path}"))
    }
}
