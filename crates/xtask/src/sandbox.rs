//! Builds and starts the sandbox, and checks all of its scenarios.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::suite::{cargo_command, run_to_end, seconds, target_folder};
use crate::{control_plane, real_node};

/// The minor that most fleets run on.
const MINOR: &str = "1.34";

/// Every scenario of the sandbox.
const SCENARIOS: [&str; 5] = ["chain-upgrade", "template-drift", "bad-image", "rollback", "fleet"];

/// The last line of a sandbox that keeps running.
const STAYS: &str = "Press Ctrl-C to stop.";

/// Builds the missing programs, which takes minutes the first time, and starts the sandbox.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    if arguments == ["--check"] {
        return check(root);
    }
    if arguments.iter().any(|argument| argument == "--real") {
        ensure!(arguments.len() == 1, "--real takes no other argument");
        return real_node::narrate(root);
    }
    let (program, programs) = build(root)?;
    if arguments.iter().any(|argument| argument == "--keep") {
        build_plugin(root)?;
    }
    let mut command = Command::new(program);
    command.current_dir(root).arg("--bin-dir").arg(programs).args(arguments);
    run_to_end(&mut command, "sei-sandbox")
}

/// Runs every scenario with its output in a pipe, and stops a kept sandbox by Ctrl-C.
pub(crate) fn check(root: &Path) -> Result<()> {
    let (program, programs) = build(root)?;
    let sandbox = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(root).arg("--bin-dir").arg(&programs).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    for scenario in SCENARIOS {
        println!("running the scenario {scenario}");
        let run =
            sandbox(&["--scenario", scenario]).output().context("failed to start the sandbox")?;
        let output = String::from_utf8(run.stdout).context("the output is not UTF-8")?;
        ensure!(run.status.success(), "{scenario} ended with {}:\n{output}", run.status);
        let summary = summary(&output).with_context(|| format!("{scenario}:\n{output}"))?;
        println!("{summary}");
    }
    println!("running the scenario bad-image with --keep, until Ctrl-C");
    let kept = sandbox(&["--scenario", "bad-image", "--keep"]).spawn();
    let mut kept = kept.context("failed to start the sandbox")?;
    let stopped = stop_by_signal(&mut kept, &programs);
    if stopped.is_err() {
        // The control plane ends with this process.
        kept.kill().ok();
    }
    stopped
}

/// The build of the sandbox, in the profile and with the features of the tests, so that `cargo xtask
/// test` reuses it. Cargo unifies the features of all selected packages, and those of their
/// dev-dependencies only if a test or an example is built: hence `--workspace`, and a small example.
/// With `--package sei-sandbox` alone, tests would compile 120 more crates, k8s-openapi among them.
const BUILD: [&str; 6] = ["build", "--workspace", "--bin", "sei-sandbox", "--example", "golden"];

/// The build of the plugin, with the same features.
const BUILD_PLUGIN: [&str; 6] =
    ["build", "--workspace", "--bin", "kubectl-sei", "--example", "golden"];

/// Builds the sandbox. Returns its path, and the folder of the control plane.
fn build(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let programs = control_plane::ensure(root, MINOR)?;
    let line = format!("cargo {}", BUILD.join(" "));
    println!("building the operator and the sandbox (minutes at the first time): {line}");
    let started = Instant::now();
    run_to_end(cargo_command().current_dir(root).args(BUILD), &line)?;
    println!("built in {}", seconds(started.elapsed()));
    Ok((target_folder(root).join("debug/sei-sandbox"), programs))
}

/// Builds the plugin beside the sandbox, which names it among the commands to try: one of an earlier
/// build would not be that of this operator.
fn build_plugin(root: &Path) -> Result<()> {
    let line = format!("cargo {}", BUILD_PLUGIN.join(" "));
    println!("building the kubectl plugin: {line}");
    run_to_end(cargo_command().current_dir(root).args(BUILD_PLUGIN), &line)
}

/// The figures at the end of a scenario's output.
fn summary(output: &str) -> Result<&str> {
    ensure!(!output.contains('\x1b'), "the output has escape sequences without a terminal");
    let (_, last) = output.trim_end().rsplit_once("\n\n").context("there is no summary")?;
    for figure in ["nodes edited", "pods replaced", "API requests", "whole run"] {
        ensure!(last.contains(figure), "the summary has no line with `{figure}`");
    }
    Ok(last)
}

fn stop_by_signal(sandbox: &mut Child, programs: &Path) -> Result<()> {
    // Kept open to the end: a failed write would end the sandbox too.
    let mut output =
        BufReader::new(sandbox.stdout.take().context("the output was taken before")?).lines();
    let mut kubeconfig = None;
    for line in &mut output {
        let line = line?;
        let arguments = line.split_once("KUBECONFIG=").map(|(_, rest)| rest);
        let path = arguments.and_then(|rest| rest.split_whitespace().next()).map(PathBuf::from);
        kubeconfig = kubeconfig.or(path);
        if line == STAYS {
            break;
        }
    }
    let kubeconfig = kubeconfig.context("the sandbox ended without printing a kubeconfig")?;
    let mut nodes = Command::new(programs.join("kubectl"));
    nodes.arg("--kubeconfig").arg(&kubeconfig).args(["get", "seinode/rpc-0"]);
    run_to_end(&mut nodes, "kubectl get seinodes")?;
    let folder = kubeconfig.parent().context("the kubeconfig has no parent folder")?;
    ensure!(!running_in(folder)?.is_empty(), "no process of the control plane was found");
    let mut signal = Command::new("kill");
    signal.args(["-INT", &sandbox.id().to_string()]);
    run_to_end(&mut signal, "kill -INT")?;
    let last: Vec<String> = output.collect::<Result<_, _>>()?;
    let status = sandbox.wait()?;
    ensure!(status.code() == Some(130), "the sandbox ended with {status} after Ctrl-C");
    ensure!(
        last.iter().any(|line| line.starts_with("stopped")),
        "the sandbox did not report that it stopped"
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(left) = running_in(folder)?.first() {
        if Instant::now() > deadline {
            bail!("a process still runs after Ctrl-C: {left}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Command lines of processes that refer to this folder.
fn running_in(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("failed to list processes")? {
        // A process may end before its command line is read.
        let Ok(line) = std::fs::read(entry?.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&folder) {
            found.push(line);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::summary;

    const FIGURES: &str = "Done.\n  nodes edited 8\n  pods replaced 8\n  API requests 64\n  \
                           whole run 1 s";

    #[test]
    fn a_scenario_must_end_with_a_plain_summary() {
        assert_eq!(summary(&format!("start\n\n{FIGURES}\n")).unwrap(), FIGURES);
        assert!(summary(&format!("\x1b[1mstart\n\n{FIGURES}\n")).is_err());
        assert!(summary("start\n\nend\n").is_err());
        assert!(summary("").is_err());
    }
}
