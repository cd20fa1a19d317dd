//! Finds the programs of a control plane and the tools of tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The programs do not exist and could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    #[error("failed to start `{command}`")]
    Start { command: String, source: std::io::Error },
    #[error("`{command}` failed; its output is above")]
    Failed { command: String },
}

/// The folder with the programs of a minor like `1.34`. Missing programs are built, which takes
/// minutes and is reported on stderr.
///
/// It runs `cargo xtask control-plane`, the only implementation of the rule: `KUBEBUILDER_ASSETS` if
/// it has that minor, else the cache.
pub fn bin_dir(minor: &str) -> Result<PathBuf, ProgramsError> {
    path_from_cargo(&["xtask", "control-plane", "--kubernetes", minor])
}

/// The program of a tool like `helm`, or the folder of a pinned module like `prometheus-operator`;
/// built or downloaded when missing. The folder `tools` has all of them.
pub fn tool(name: &str) -> Result<PathBuf, ProgramsError> {
    path_from_cargo(&["xtask", "tool", name])
}

/// Set by `cargo xtask real-node` to the folder that it has prepared.
const REAL_NODE: &str = "SEI_REAL_NODE";

/// The folder with the programs and images of a [`crate::RealNode`]; built when missing, which takes
/// minutes.
pub fn real_node_programs() -> Result<PathBuf, ProgramsError> {
    if let Some(folder) = std::env::var_os(REAL_NODE) {
        return Ok(folder.into());
    }
    path_from_cargo(&["xtask", "real-node", "--prepare"])
}

/// The cargo that runs the test, without the package variables that it set for the test. Build
/// scripts that read those variables would see a change, and cargo would recompile everything that
/// depends on them while the scenarios run.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_of_package =
        |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if is_of_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// The last line that a cargo command prints, as a path.
fn path_from_cargo(arguments: &[&str]) -> Result<PathBuf, ProgramsError> {
    let command = format!("cargo {}", arguments.join(" "));
    let output = cargo()
        .args(arguments)
        // Cargo finds the alias `xtask` only inside of the repository.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .stderr(Stdio::inherit())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(source) => return Err(ProgramsError::Start { command, source }),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    match stdout.lines().last() {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(ProgramsError::Failed { command }),
    }
}
