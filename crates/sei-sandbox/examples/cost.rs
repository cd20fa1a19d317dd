//! Prints what a reconcile and an image update cost the operator, for `cargo xtask bench cost`.
//!
//! Without arguments it prints the table.
//! `cost <no-op|image-update> <nodes> <changed>` measures one phase.
//! Instructions are counted by callgrind, if valgrind is installed, in a process of their own and
//! in the measured phase alone.

#![allow(clippy::print_stdout, reason = "its output is for the person who typed the command")]

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use sei_sandbox::cost::{Cost, Fleet, IMAGE_UPDATE_BASELINE, NO_OP_BASELINE, Phase, Requests};

const NODES: usize = 100;
/// Enough for a mean; see the test of the limits.
const CHANGED: usize = 20;

/// Set in the process that runs under callgrind.
const CALLGRIND: &str = "COST_CALLGRIND";

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [phase, nodes, changed] = &arguments[..] else { return print_table() };
    let phase = match phase.as_str() {
        "no-op" => Phase::NoOp,
        "image-update" => Phase::ImageUpdate,
        unknown => bail!("unknown phase `{unknown}`"),
    };
    let (nodes, changed): (usize, usize) = (nodes.parse()?, changed.parse()?);
    let mut fleet = Fleet::start(nodes)?;
    let (cost, requests) = measure(&mut fleet, phase, changed)?;
    println!("{cost:?}");
    for (request, count) in requests {
        println!("{count:>6} {request}");
    }
    Ok(())
}

fn measure(fleet: &mut Fleet, phase: Phase, changed: usize) -> Result<(Cost, Requests)> {
    // The first change of a node is not like the others: caches are filled by it.
    fleet.run(phase, changed, |run| run()).context("failed to warm up")?;
    let counts_instructions = std::env::var_os(CALLGRIND).is_some();
    if counts_instructions {
        callgrind("--instr=on")?;
    }
    let (counted, requests) = fleet.run(phase, changed, |run| allocation_counter::measure(run))?;
    if counts_instructions {
        callgrind("--dump=end of phase")?;
        callgrind("--instr=off")?;
    }
    Ok((Cost::new(changed, counted.count_total, counted.bytes_total, &requests), requests))
}

/// Steers the callgrind that this process runs under.
fn callgrind(option: &str) -> Result<()> {
    let id = std::process::id().to_string();
    let mut command = Command::new("callgrind_control");
    command.args([option, &id]).stdout(Stdio::null());
    let status = command.status().context("failed to start callgrind_control")?;
    ensure!(status.success(), "`callgrind_control {option}` failed");
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn print_table() -> Result<()> {
    let mut fleet = Fleet::start(NODES)?;
    println!("{NODES} nodes, {CHANGED} changed; for each of these, with the ratio to the baseline");
    println!(
        "{:<16} {:>22} {:>24} {:>26} {:>14} {:>14}",
        "", "allocations", "bytes", "instructions", "requests", "status writes"
    );
    for (phase, name, baseline) in [
        (Phase::NoOp, "no-op", NO_OP_BASELINE),
        (Phase::ImageUpdate, "image-update", IMAGE_UPDATE_BASELINE),
    ] {
        let (mut cost, _) = measure(&mut fleet, phase, CHANGED)?;
        cost.instructions = count_instructions(name)?;
        let ratio = |now: u64, before: u64| format!("{now} ({:.3})", now as f64 / before as f64);
        let instructions = match (cost.instructions, baseline.instructions) {
            (Some(now), Some(before)) => ratio(now, before),
            (Some(now), None) => now.to_string(),
            (None, _) => "no valgrind".to_owned(),
        };
        println!(
            "{name:<16} {:>22} {:>24} {instructions:>26} {:>14.2} {:>14.2}",
            ratio(cost.allocations, baseline.allocations),
            ratio(cost.bytes, baseline.bytes),
            cost.requests,
            cost.status_writes,
        );
    }
    Ok(())
}

/// Instructions of the operator's thread for each node, or none without valgrind.
fn count_instructions(phase: &str) -> Result<Option<u64>> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(None);
    }
    let folder = std::env::temp_dir().join(format!("sei-cost-{}-{phase}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let status = Command::new("valgrind")
        .args(["--tool=callgrind", "--instr-atstart=no", "--separate-threads=yes"])
        .args(["--fair-sched=yes", "--quiet"])
        .arg(format!("--callgrind-out-file={}/out", folder.display()))
        .arg(std::env::current_exe()?)
        .args([phase, &NODES.to_string(), &CHANGED.to_string()])
        .env(CALLGRIND, "1")
        .stdout(Stdio::null())
        .status()?;
    ensure!(status.success(), "valgrind ended with {status}");
    let counted = instructions_in(&folder);
    std::fs::remove_dir_all(&folder)?;
    Ok(Some(counted? / CHANGED as u64))
}

/// The sum over the dumps of the first thread, which the operator runs on.
fn instructions_in(folder: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "1-01" && extension != "01") {
            continue;
        }
        let text = std::fs::read_to_string(&path)?;
        let total = text.lines().find_map(|line| line.strip_prefix("totals: "));
        let total = total.and_then(|total| total.trim().parse::<u64>().ok());
        sum += total.with_context(|| format!("{} has no totals", path.display()))?;
    }
    ensure!(sum > 0, "callgrind has written no dump of the first thread to {}", folder.display());
    Ok(sum)
}
