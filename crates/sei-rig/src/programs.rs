//! Where the programs of a control plane and the tools of tests are.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// There are no programs, and they could not be built.
#[derive(Debug, thiserror::Error)]
pub enum ProgramsError {
    #[error("failed to start `{command}`")]
    Start { command: String, source: std::io::Error },
    #[error("`{command}` failed; what it said stands above")]
    Failed { command: String },
}

/// The folder with the programs of a minor like `1.34`; built when missing, which takes minutes
/// and is told on stderr.
///
/// It asks `cargo xtask control-plane`, so that one place knows the rule: `KUBEBUILDER_ASSETS` if
/// it holds that minor, else what is cached.
pub fn bin_dir(minor: &str) -> Result<PathBuf, ProgramsError> {
    ask(&["xtask", "control-plane", "--kubernetes", minor])
}

/// The program of a tool like `helm`, or the folder of a pinned module like `prometheus-operator`;
/// built or downloaded when missing. What there is stands in `tools`.
pub fn tool(name: &str) -> Result<PathBuf, ProgramsError> {
    ask(&["xtask", "tool", name])
}

/// The path that a command of cargo prints last.
fn ask(arguments: &[&str]) -> Result<PathBuf, ProgramsError> {
    let command = format!("cargo {}", arguments.join(" "));
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(program)
        .args(arguments)
        // The alias `xtask` is found from inside of the repository only.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .stderr(Stdio::inherit())
        .output();
    let output = match output {
        Ok(output) => output,
        Err(source) => return Err(ProgramsError::Start { command, source }),
    };
    let told = String::from_utf8_lossy(&output.stdout);
    match told.lines().last() {
        Some(path) if output.status.success() => Ok(PathBuf::from(path)),
        _ => Err(ProgramsError::Failed { command }),
    }
}
