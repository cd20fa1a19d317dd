//! The commands people type: `cargo xtask <task>`.
//!
//! What it is for: one entry point for everything done to this repository. It writes what is
//! generated, checks what no compiler checks, and runs what CI runs.
//!
//! What it never does: decide anything about nodes, or talk to a cluster itself.
//!
//! Invariants:
//! - What is generated and stored equals what would be generated now. Guarded by
//!   `crds_are_current`.
//! - The rules of this repository hold in this repository. Guarded by `the_repository_is_tidy`,
//!   and each rule is shown to bite by a test beside it.

#![allow(clippy::print_stdout, reason = "its output is for the person who typed the command")]

mod bench;
mod codegen;
mod control_plane;
mod docs;
mod go;
mod image;
mod sandbox;
mod suite;
mod tasks;
mod tidy;
mod tool;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tasks::Task;

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
        Task::Sandbox { arguments } => sandbox::run(&root, &arguments),
        Task::Tidy => tidy::run(&root),
        Task::Test => suite::run(&root),
        Task::Tool { name } => tool::run(&root, name.as_deref()),
    }
}

/// Root of the repository. Cargo tells where this crate is, both when it runs and when it tests.
fn repository() -> PathBuf {
    let crate_folder = std::env::var("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&crate_folder).ancestors().nth(2);
    root.expect("this crate is two folders below the root").to_owned()
}
