//! A demonstration of the operator on a local control plane.
//!
//! The program creates a small fleet, runs a scenario on it with a live table of the nodes, and
//! prints a summary. API server, controllers and operator are those of production; kubelet and
//! sidecars are simulated by `sei-rig`.

#![allow(clippy::print_stdout, reason = "the output of this program is its purpose")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Parser, ValueEnum};

mod fleet;
mod scenarios;
mod view;

use fleet::Fleet;
use view::View;

/// Runs a scenario on four validators and four RPC nodes, or on a `SeiNodeDeployment`.
#[derive(Parser, Clone, Debug)]
struct Flags {
    /// The scenario to run.
    #[arg(long, value_enum, default_value_t = Scenario::ChainUpgrade)]
    scenario: Scenario,
    /// Keep the control plane running at the end, and print a kubeconfig for kubectl.
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
    /// A label is added to every pod: signers roll one at a time, the others at once.
    TemplateDrift,
    /// The image cannot be pulled and is corrected.
    BadImage,
    /// The image crashes and is rolled back.
    Rollback,
    /// The canary of a `SeiNodeDeployment` fails and halts two rollouts: one is corrected, one undone.
    Fleet,
}

#[tokio::main]
async fn main() -> ExitCode {
    let flags = Flags::parse();
    let result = tokio::select! {
        result = run(&flags) => result,
        _ = tokio::signal::ctrl_c() => {
            println!("\nstopped; the control plane ends with this process");
            return ExitCode::from(130);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(flags: &Flags) -> Result<()> {
    let began = Instant::now();
    println!("starting etcd, kube-apiserver and kube-controller-manager");
    let fleet = Fleet::boot(&flags.bin_dir).await.context("failed to start the sandbox")?;
    println!("Kubernetes {} is up after {:.1} s", fleet.version, began.elapsed().as_secs_f64());
    let mut view = View::new();
    let figures = scenarios::run(flags.scenario, &fleet, &mut view).await?;
    println!("\n{}", figures.summary(began.elapsed()));
    if flags.keep {
        println!(
            "\nkubectl --kubeconfig {} get seinodes -n {}",
            fleet.kubeconfig().display(),
            fleet::NAMESPACE
        );
        println!("Press Ctrl-C to stop.");
        std::future::pending::<()>().await;
    }
    Ok(())
}
