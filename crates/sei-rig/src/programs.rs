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

/// The cargo that runs the test, called as a shell would. What it told the test about its package
/// would pass for a change to build scripts that read it, and all that depends on them would be
/// compiled anew beside the scenarios.
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

/// The path that a command of cargo prints last.
fn ask(arguments: &[&str]) -> Result<PathBuf, ProgramsError> {
    let command = format!("cargo {}", arguments.join(" "));
    let output = cargo()
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
