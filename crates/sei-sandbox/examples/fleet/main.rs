//! What a fleet costs an operator on a real control plane, for `cargo xtask bench fleet`.
//!
//! Each operator is the program that people run, as a child process on a control plane of its own.
//! Its CPU time and memory come from `/proc`, its requests from the audit log of the API server.
//! Kubelet and sidecars are those of `sei-rig`: a pod stops in 0.2 s and starts in 0.3 s.

#![allow(clippy::print_stdout, reason = "its output is for the person who typed the command")]

mod observer;
mod operator;
mod phases;
mod report;
mod rollout;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use sei_api::fleet::REPLICAS_MAX;

use crate::operator::{Candidate, Operator};
use crate::phases::{Bench, Figures};
use crate::report::{IMAGE_UPDATE, Run};

const CRDS: [&str; 2] = [
    include_str!("../../../../config/crd/bases/seinodes.sei.io.yaml"),
    include_str!("../../../../config/crd/bases/seinodedeployments.sei.io.yaml"),
];

/// The name under which xtask passes the operator of this repository.
const OURS: &str = "sei-operator";

#[derive(Parser, Debug)]
#[command(name = "cargo xtask bench fleet")]
struct Flags {
    /// How many nodes, one run for each number.
    #[arg(long, value_delimiter = ',', default_value = "100", value_parser = parse_count)]
    nodes: Vec<usize>,
    /// Folder with etcd, kube-apiserver and kube-controller-manager.
    #[arg(long, hide = true)]
    bin_dir: PathBuf,
    /// Another operator that is measured after this one. It is started with the flags
    /// --leader-elect, --metrics-bind-address and --health-probe-bind-address.
    #[arg(long, value_name = "NAME=COMMAND")]
    operator: Vec<Candidate>,
    /// Folder with the definitions for the other operators [default: those of this repository].
    #[arg(long, value_name = "FOLDER")]
    crds: Option<PathBuf>,
    /// Only these phases, beside create, image update and floor.
    #[arg(long, value_delimiter = ',', value_name = "PHASE")]
    only: Option<Vec<String>>,
    /// Only the rollout of one fleet with a tenth of its nodes at once: how busy its slots
    /// are. With --out also a picture of it (rollout.svg).
    #[arg(long)]
    rollout: bool,
    /// How long the fleet at rest is observed.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    rest: u64,
    /// Folder for the tables (benchmarks.md) and the picture of growth (benchmarks.svg).
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let flags = Flags::parse();
    if flags.rollout {
        return roll_out(&flags).await;
    }
    let mut runs = Vec::new();
    for candidate in &flags.operator {
        for nodes in &flags.nodes {
            let run = measure(&flags, candidate, *nodes).await;
            runs.push(run.with_context(|| format!("{} with {nodes} nodes", candidate.name))?);
        }
    }
    let tables = report::markdown(&runs);
    println!("{tables}");
    if let Some(folder) = &flags.out {
        fs::write(folder.join("benchmarks.md"), page(&tables, runs.len() > 1)?)?;
        if runs.len() > 1 {
            fs::write(folder.join("benchmarks.svg"), report::plot(&runs))?;
        }
    }
    Ok(())
}

/// The rollout of a fleet of each size.
async fn roll_out(flags: &Flags) -> Result<()> {
    let candidate = flags.operator.first().context("no operator")?;
    for nodes in flags.nodes.iter().map(|nodes| (*nodes).min(REPLICAS_MAX)) {
        let definitions = CRDS.into_iter().map(serde_saphyr::from_str).collect::<Result<_, _>>()?;
        let bench = Bench::boot(&flags.bin_dir, definitions, nodes, true).await?;
        println!("{nodes} nodes of one fleet, Kubernetes {}", bench.plane().version().await?);
        let _operator = bench.start(candidate, None)?;
        let rollout = bench.roll_out(nodes.div_ceil(10)).await?;
        println!("  {}", rollout.summary());
        if let Some(folder) = &flags.out {
            fs::write(folder.join("rollout.svg"), rollout.picture())?;
        }
    }
    Ok(())
}

async fn measure(flags: &Flags, candidate: &Candidate, nodes: usize) -> Result<Run> {
    let is_ours = candidate.name == OURS;
    let definitions = match &flags.crds {
        Some(folder) if !is_ours => read_definitions(folder)?,
        _ => CRDS.into_iter().map(serde_saphyr::from_str).collect::<Result<_, _>>()?,
    };
    let mut bench = Bench::boot(&flags.bin_dir, definitions, nodes, is_ours).await?;
    let version = bench.plane().version().await?;
    println!("{}, {nodes} nodes, Kubernetes {version}", candidate.name);
    let is_chosen =
        |name: &str| flags.only.as_ref().is_none_or(|only| only.iter().any(|it| it == name));
    let operator = bench.start(candidate, None)?;
    let on = &operator;
    let mut phases =
        vec![bench.phase("create", on, async |bench| bench.create(&image(1)).await).await?];
    if is_chosen("rest") {
        let rest = Duration::from_secs(flags.rest);
        phases.push(bench.phase("rest", on, async |_| sleep(rest).await).await?);
    }
    let update = bench.phase(IMAGE_UPDATE, on, async |bench| bench.set_image(&image(2)).await);
    phases.push(update.await?);
    if is_chosen("label") {
        phases.push(bench.phase("label", on, async |bench| bench.set_label(5, "b").await).await?);
    }
    if is_chosen("configuration") {
        let run = bench.phase("configuration", on, async |bench| bench.configure("debug").await);
        phases.push(run.await?);
    }
    if is_chosen("evictions") {
        phases.push(bench.phase("evictions", on, async |bench| bench.evict().await).await?);
    }
    if is_chosen("hung") {
        let hung = async |bench: &Bench| bench.set_image_beside_hung(&image(3)).await;
        phases.push(bench.phase("image update, hung sidecars", on, hung).await?);
    }
    drop(operator);
    if is_chosen("restart") {
        let operator = bench.start(candidate, None)?;
        phases
            .push(bench.phase("restart", &operator, async |_| sleep(Duration::ZERO).await).await?);
    }
    if is_chosen("fail-over") {
        phases.push(fail_over(&mut bench, candidate).await?);
    }
    let floor = bench.floor(&image(4)).await?;
    Ok(Run { operator: candidate.name.clone(), nodes, phases, floor })
}

/// The leader is killed, and the other takes the lease. Its wall time ends there.
async fn fail_over(bench: &mut Bench, candidate: &Candidate) -> Result<Figures> {
    let first = bench.start(candidate, Some("first"))?;
    let holder = bench.holder_other_than(None).await?;
    let second = bench.start(candidate, Some("second"))?;
    sleep(Duration::from_secs(5)).await?;
    let killed: std::cell::Cell<Option<Operator>> = std::cell::Cell::new(Some(first));
    bench
        .phase("fail-over", &second, async |bench| {
            let begun = Instant::now();
            drop(killed.take());
            bench.holder_other_than(Some(&holder)).await?;
            Ok(vec![begun.elapsed()])
        })
        .await
}

async fn sleep(time: Duration) -> Result<Vec<Duration>> {
    tokio::time::sleep(time).await;
    Ok(Vec::new())
}

fn image(number: usize) -> String {
    format!("registry.example.org/seid:v{number}")
}

fn read_definitions(folder: &Path) -> Result<Vec<CustomResourceDefinition>> {
    let mut definitions = Vec::new();
    for entry in
        fs::read_dir(folder).with_context(|| format!("failed to read {}", folder.display()))?
    {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = fs::read_to_string(&path)?;
            let definition = serde_saphyr::from_str(&text);
            definitions.push(definition.with_context(|| format!("in {}", path.display()))?);
        }
    }
    Ok(definitions)
}

/// The page with the tables, the machine, the date and the commit.
fn page(tables: &str, has_plot: bool) -> Result<String> {
    let git = std::process::Command::new("git").args(["rev-parse", "--short", "HEAD"]).output()?;
    let commit = String::from_utf8_lossy(&git.stdout).trim().to_owned();
    let cores = std::thread::available_parallelism()?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let memory = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let memory =
        memory.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let date = jiff::Zoned::now().date();
    let plot = if has_plot { "\n![CPU time per node](benchmarks.svg)\n" } else { "" };
    Ok(format!(
        "# Benchmarks\n\nWritten by `cargo xtask bench fleet` on {date} at commit {commit}, on a machine \
         with {cores} cores and {} GB of memory that also ran the control plane.\nThe floor is a client \
         that patches each StatefulSet and deletes each pod, and decides nothing.\nOther figures of one \
         machine are comparable within one run only.\n{plot}{tables}",
        memory.unwrap_or_default() / 1_000_000,
    ))
}

fn parse_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "not a number above 0".to_owned())
}
