//! A demonstration of the operator on a local control plane.
//!
//! The program creates a small fleet, runs a scenario on it with a live table of the nodes, and
//! prints a summary. API server, controllers and operator are those of production; kubelet and
//! sidecars are simulated by `sei-rig`.

#![allow(clippy::print_stdout, reason = "the output of this program is its purpose")]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::{Parser, ValueEnum};

mod fleet;
mod scenarios;
mod view;

use fleet::{CRASH, Fleet, HALT, MISSING};
use view::View;

/// Runs a scenario on four validators and four RPC nodes, or on a `SeiNodeDeployment`.
#[derive(Parser, Clone, Debug)]
#[command(bin_name = "cargo xtask sandbox")]
struct Flags {
    /// The scenario to run.
    #[arg(long, value_enum, default_value_t = Scenario::ChainUpgrade)]
    scenario: Scenario,
    /// Keep the control plane running at the end, and print commands to try.
    #[arg(long)]
    keep: bool,
    /// Show each step of the scenario for this many seconds, to follow it.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(..=600))]
    pace: u64,
    /// Folder with etcd, kube-apiserver, kube-controller-manager and kubectl.
    // `cargo xtask sandbox` sets it.
    #[arg(long, value_name = "DIR", hide = true)]
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
    let taken = sei_rig::taken_ports();
    if !taken.is_empty() {
        let taken: Vec<String> = taken.iter().map(ToString::to_string).collect();
        bail!(
            "{}. The pods of the sandbox need it on their addresses 127.x.y.z: stop that process, \
             or let it listen on 127.0.0.1 only",
            taken.join(", and ")
        );
    }
    let began = Instant::now();
    println!("starting etcd, kube-apiserver and kube-controller-manager");
    let fleet = Fleet::boot(&flags.bin_dir).await.context("failed to start the sandbox")?;
    println!("Kubernetes {} is up after {:.1} s", fleet.version, began.elapsed().as_secs_f64());
    println!("metrics of the operator: http://{}/metrics", fleet.metrics_address);
    let mut view = View::new(Duration::from_secs(flags.pace));
    let figures = scenarios::run(flags.scenario, &fleet, &mut view).await?;
    println!("\n{}", figures.summary(began.elapsed()));
    if flags.keep {
        fleet.let_images_misbehave();
        println!("\n{}\nPress Ctrl-C to stop.", next_commands(&fleet, &flags.bin_dir)?);
        std::future::pending::<()>().await;
    }
    Ok(())
}

/// What to try in a sandbox that keeps running.
fn next_commands(fleet: &Fleet, bin_dir: &Path) -> Result<String> {
    let kubeconfig = fleet.write_user_kubeconfig()?;
    // `cargo xtask sandbox --keep` builds the plugin into the same folder. kubectl is that of the
    // control plane: a newcomer may have none.
    let plugin = std::env::current_exe()?;
    let plugin = plugin.parent().context("this program has no folder")?;
    Ok(format!(
        "The operator keeps running. In another terminal, in this folder:\n  \
         export KUBECONFIG={}\n  export PATH={}:{}:$PATH\n  \
         kubectl get seinodes\n  kubectl sei status\n  \
         kubectl sei set image rpc-0 {}\n  kubectl sei status rpc-0 --watch\n\
         Then create a fleet and change its image: see README.md, A fleet of your own.\n\
         Images whose names contain {MISSING} cannot be pulled, those with {CRASH} crash, and those \
         with {HALT} run without becoming Ready.\n\
         No containers run here, so there are no logs and no heights. Metrics: http://{}/metrics",
        kubeconfig.display(),
        bin_dir.display(),
        plugin.display(),
        fleet::BAD,
        fleet.metrics_address,
    ))
}
