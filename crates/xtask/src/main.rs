//! The commands people type: `cargo xtask <task>`.
//!
//! Purpose: one entry point for all work on this repository. It writes generated files, checks rules
//! that no compiler checks, and runs the steps of CI.
//!
//! It never decides anything about nodes and never calls a cluster itself.
//!
//! Invariants:
//! - Generated files are current. Guarded by `crds_are_current`.
//! - The repository follows its own rules. Guarded by `the_repository_is_tidy`; a test next to each
//!   rule runs it on a bad sample.

#![allow(clippy::print_stdout, reason = "the output is for the person at the terminal")]

mod bench;
mod codegen;
mod control_plane;
mod docs;
mod go;
mod image;
mod real_node;
mod sandbox;
mod suite;
mod tasks;
mod tidy;
mod tool;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tasks::{RealNode, Task};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match tasks::parse(&arguments).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let root = repository();
    match task {
        Task::Help => {
            print!("{}", tasks::help());
            Ok(())
        }
        Task::Bench(bench) => bench::run(&root, &bench),
        Task::Codegen { check: false } => codegen::write(&root),
        Task::Codegen { check: true } => codegen::check(&root),
        Task::ControlPlane(desired) => control_plane::run(&root, &desired),
        Task::Image(desired) => image::run(&root, &desired),
        Task::RealNode(RealNode::Prepare) => real_node::prepare(&root),
        Task::RealNode(RealNode::Suite) => real_node::run_suite(&root)?.map_or(Ok(()), |reason| {
            println!("SKIPPED: {reason}");
            Ok(())
        }),
        Task::RealNode(RealNode::Stories(filters)) => real_node::run(&root, &filters),
        Task::Sandbox { arguments } => sandbox::run(&root, &arguments),
        Task::Tidy => tidy::run(&root),
        Task::Test => suite::run(&root),
        Task::Tool { name } => tool::run(&root, name.as_deref()),
    }
}

/// Root of the repository. Cargo sets the folder of this crate for `cargo run` and `cargo test`.
fn repository() -> PathBuf {
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&crate_folder).ancestors().nth(2);
    root.expect("this crate is two folders below the root").to_owned()
}
