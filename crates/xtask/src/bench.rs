//! Benchmarks: what a reconcile costs in memory, and what a fleet costs on a real control plane.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::control_plane;
use crate::suite::{cargo_command, run_to_end, target_folder};

/// What was typed after `bench`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Bench {
    /// Allocations and instructions of a reconcile and of an image update.
    Cost,
    /// CPU time, memory and requests of a whole fleet, with arguments for the benchmark.
    Fleet { minor: &'static str, arguments: Vec<String> },
}

/// Builds what is missing in release mode, and prints a table.
pub(crate) fn run(root: &Path, bench: &Bench) -> Result<()> {
    match bench {
        Bench::Cost => {
            build(root, &["--package", "sei-sandbox", "--example", "cost"])?;
            run_to_end(&mut example(root, "cost"), "cost")
        }
        Bench::Fleet { minor, arguments } => {
            let programs = control_plane::ensure(root, minor)?;
            build(root, &["--package", "sei-operator"])?;
            build(root, &["--package", "sei-sandbox", "--example", "fleet"])?;
            let mut command = example(root, "fleet");
            let program = target_folder(root).join("release/sei-operator");
            command.arg("--bin-dir").arg(programs);
            command.arg("--operator").arg(format!("sei-operator={} run", program.display()));
            command.args(arguments);
            run_to_end(&mut command, "fleet")
        }
    }
}

fn example(root: &Path, name: &str) -> Command {
    let mut command = Command::new(target_folder(root).join("release/examples").join(name));
    command.current_dir(root);
    command
}

fn build(root: &Path, what: &[&str]) -> Result<()> {
    let mut command = cargo_command();
    command.current_dir(root).args(["build", "--release", "--quiet"]).args(what);
    run_to_end(&mut command, &format!("cargo build --release {}", what.join(" ")))
}
