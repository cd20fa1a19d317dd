//! Starts the sandbox, with everything it needs.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::control_plane;
use crate::suite::{cargo_program, run_to_end};

/// The minor that most fleets run on.
const MINOR: &str = "1.34";

/// Builds what is missing, the first time for minutes, and starts the sandbox.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let programs = control_plane::ensure(root, MINOR)?;
    println!("building the operator and its sandbox");
    let mut build = Command::new(cargo_program());
    build.current_dir(root).args(["build", "--release", "--quiet", "--package", "sei-sandbox"]);
    run_to_end(&mut build, "cargo build --release --package sei-sandbox")?;
    let mut command = Command::new(cargo_program());
    command
        .current_dir(root)
        .args(["run", "--release", "--quiet", "--package", "sei-sandbox", "--", "--bin-dir"])
        .arg(programs)
        .args(arguments);
    run_to_end(&mut command, "sei-sandbox")
}
