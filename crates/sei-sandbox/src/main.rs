//! The operator at its main job, on a control plane that it brings along.
//!
//! A small fleet is made and runs; then one of a few stories is played on it, with a live view of
//! every node, and a summary at the end. Everything is real but the machines: API server, controllers
//! and operator are the ones that run in production, kubelet and sidecars are those of `sei-rig`.

#![allow(clippy::print_stdout, reason = "this program is for people at a terminal")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};

mod fleet;
mod stories;
mod view;

use fleet::Fleet;
use view::View;

/// Plays a story on a fleet of four validators and four RPC nodes.
#[derive(Parser, Clone, Debug)]
struct Flags {
    /// What happens to the fleet.
    #[arg(long, value_enum, default_value_t = Scenario::ChainUpgrade)]
    scenario: Scenario,
    /// Stay up at the end, and print a kubeconfig for kubectl.
    #[arg(long)]
    keep: bool,
    /// Folder with etcd, kube-apiserver, kube-controller-manager and kubectl.
    #[arg(long, value_name = "DIR")]
    bin_dir: PathBuf,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Scenario {
    /// The chain halts at an upgrade height, its image is bumped, the chain resumes.
    ChainUpgrade,
    /// A label that reaches every pod: signers one at a time, the others at once.
    TemplateDrift,
    /// An image that cannot be pulled, and its correction.
    BadImage,
    /// An image that crashes, and the way back.
    Rollback,
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let played = tokio::select! {
        played = play(&flags) => played,
        _ = tokio::signal::ctrl_c() => {
            println!("\nstopped; the control plane goes with this process");
            return ExitCode::from(130);
        }
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn play(flags: &Flags) -> Result<()> {
    let began = Instant::now();
    println!("booting etcd, kube-apiserver and kube-controller-manager");
    let fleet = Fleet::boot(&flags.bin_dir).await.context("failed to boot the sandbox")?;
    println!("Kubernetes {} is up after {:.1} s", fleet.version, began.elapsed().as_secs_f64());
    let mut view = View::new();
    let figures = stories::play(flags.scenario, &fleet, &mut view).await?;
    println!("\n{}", figures.summary(began.elapsed()));
    if flags.keep {
        println!(
            "\nkubectl --kubeconfig {} get seinodes -n {}",
            fleet.kubeconfig().display(),
            fleet::NAMESPACE
        );
        println!("Ctrl-C ends it.");
        std::future::pending::<()>().await;
    }
    Ok(())
}
