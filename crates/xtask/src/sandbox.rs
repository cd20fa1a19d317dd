//! Starts the sandbox, with everything it needs, and checks that it does what it is said to.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::control_plane;
use crate::suite::{cargo_command, run_to_end, target_folder};

/// The minor that most fleets run on.
const MINOR: &str = "1.34";

/// Every story that the sandbox can play.
const SCENARIOS: [&str; 4] = ["chain-upgrade", "template-drift", "bad-image", "rollback"];

/// What the sandbox says last when it stays up.
const STAYS: &str = "Ctrl-C ends it.";

/// Builds what is missing, the first time for minutes, and starts the sandbox.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    if arguments == ["--check"] {
        return check(root);
    }
    let (program, programs) = build(root)?;
    let mut command = Command::new(program);
    command.current_dir(root).arg("--bin-dir").arg(programs).args(arguments);
    run_to_end(&mut command, "sei-sandbox")
}

/// Plays every story with its output in a pipe, and ends one that stays up by Ctrl-C.
pub(crate) fn check(root: &Path) -> Result<()> {
    let (program, programs) = build(root)?;
    let sandbox = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.current_dir(root).arg("--bin-dir").arg(&programs).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    };
    for scenario in SCENARIOS {
        println!("plays {scenario}");
        let played = sandbox(&["--scenario", scenario]).output().context("failed to start it")?;
        let told = String::from_utf8(played.stdout).context("its output is not text")?;
        ensure!(played.status.success(), "{scenario} ended with {}:\n{told}", played.status);
        let summary = summary(&told).with_context(|| format!("{scenario}:\n{told}"))?;
        println!("{summary}");
    }
    println!("plays bad-image, stays up, and is ended by Ctrl-C");
    let kept = sandbox(&["--scenario", "bad-image", "--keep"]).spawn();
    let mut kept = kept.context("failed to start it")?;
    let ended = end_by_signal(&mut kept, &programs);
    if ended.is_err() {
        // Its control plane goes with it.
        kept.kill().ok();
    }
    ended
}

fn build(root: &Path) -> Result<(PathBuf, PathBuf)> {
    let programs = control_plane::ensure(root, MINOR)?;
    println!("building the operator and its sandbox");
    let mut build = cargo_command();
    build.current_dir(root).args(["build", "--release", "--quiet", "--package", "sei-sandbox"]);
    run_to_end(&mut build, "cargo build --release --package sei-sandbox")?;
    Ok((target_folder(root).join("release/sei-sandbox"), programs))
}

/// The closing figures of a story that was told in plain lines.
fn summary(told: &str) -> Result<&str> {
    ensure!(!told.contains('\x1b'), "it is not plain: there is no terminal to steer");
    let (_, last) = told.trim_end().rsplit_once("\n\n").context("it has no closing part")?;
    for figure in ["nodes updated", "pods replaced", "API requests", "whole run"] {
        ensure!(last.contains(figure), "its summary does not tell the {figure}");
    }
    Ok(last)
}

fn end_by_signal(sandbox: &mut Child, programs: &Path) -> Result<()> {
    // Open to the end: what cannot be written would end it too.
    let mut output = BufReader::new(sandbox.stdout.take().context("its output is taken")?).lines();
    let mut kubeconfig = None;
    for line in &mut output {
        let line = line?;
        let words = line.split_once("--kubeconfig ").map(|(_, rest)| rest);
        let path = words.and_then(|rest| rest.split_whitespace().next()).map(PathBuf::from);
        kubeconfig = kubeconfig.or(path);
        if line == STAYS {
            break;
        }
    }
    let kubeconfig = kubeconfig.context("it ended without telling its kubeconfig")?;
    let mut nodes = Command::new(programs.join("kubectl"));
    nodes.arg("--kubeconfig").arg(&kubeconfig).args(["get", "seinodes", "--all-namespaces"]);
    run_to_end(&mut nodes, "kubectl get seinodes")?;
    let folder = kubeconfig.parent().context("its kubeconfig is in a folder")?;
    ensure!(!running_in(folder)?.is_empty(), "its control plane was not found among processes");
    let mut signal = Command::new("kill");
    signal.args(["-INT", &sandbox.id().to_string()]);
    run_to_end(&mut signal, "kill -INT")?;
    let last: Vec<String> = output.collect::<Result<_, _>>()?;
    let status = sandbox.wait()?;
    ensure!(status.code() == Some(130), "Ctrl-C ended it with {status}");
    ensure!(last.iter().any(|line| line.starts_with("stopped")), "it ended without a word");
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Some(left) = running_in(folder)?.first() {
        if Instant::now() > deadline {
            bail!("Ctrl-C left a process behind: {left}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Command lines of processes that were given something in this folder.
fn running_in(folder: &Path) -> Result<Vec<String>> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").context("failed to list processes")? {
        // A process may end while it is looked at.
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

    const FIGURES: &str = "Done.\n  nodes updated 8\n  pods replaced 8\n  API requests 64\n  \
                           whole run 1 s";

    #[test]
    fn a_story_must_end_with_plain_figures() {
        assert_eq!(summary(&format!("begins\n\n{FIGURES}\n")).unwrap(), FIGURES);
        assert!(summary(&format!("\x1b[1mbegins\n\n{FIGURES}\n")).is_err());
        assert!(summary("begins\n\nends\n").is_err());
        assert!(summary("").is_err());
    }
}
