//! The steps of CI, in order, with their times. The suite stops at the first failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{codegen, control_plane, real_node, sandbox, tool};

/// A step of the suite.
enum Step {
    Cargo {
        arguments: &'static [&'static str],
        environment: Option<(&'static str, &'static str)>,
    },
    GeneratedFiles,
    /// The tools of the cluster tests; built or downloaded if missing.
    Tools,
    /// The cluster tests on a real control plane of this minor, which is built if missing.
    Cluster {
        kubernetes: &'static str,
    },
    /// Every scenario of the sandbox, and its end by Ctrl-C.
    Sandbox,
    /// Some stories on a real kubelet, where the machine allows it.
    RealNode,
}

/// How a step ended that did not fail.
#[derive(Debug, PartialEq, Eq)]
enum Passed {
    Yes,
    /// It cannot run on this machine, for this reason.
    Skipped(String),
}

/// The command of the cluster tests. They wait most of the time, so more of them run at once than
/// there are cores.
const CLUSTER_TESTS: &[&str] = &["test", "--package", "cluster-tests", "--", "--test-threads", "8"];
/// The variable that selects the minor of the cluster tests.
const KUBERNETES: &str = "SEI_KUBERNETES";
/// The programs that cluster tests start. They are built first: a build during the tests would take
/// their cores.
const CLUSTER_PROGRAMS: [&str; 2] = ["sei-operator", "kubectl-sei"];

/// Cheapest first, so that a simple mistake fails within seconds. Tidy is a plain test and needs no
/// step.
const STEPS: &[(&str, Step)] = &[
    ("format", cargo(&["fmt", "--all", "--check"])),
    ("lints", cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
    ("tests", cargo(&["test"])),
    (
        "docs",
        Step::Cargo {
            arguments: &["doc", "--workspace", "--no-deps"],
            environment: Some(("RUSTDOCFLAGS", "-D warnings")),
        },
    ),
    ("generated files", Step::GeneratedFiles),
    ("tools", Step::Tools),
    ("cluster 1.34", Step::Cluster { kubernetes: "1.34" }),
    ("cluster 1.37", Step::Cluster { kubernetes: "1.37" }),
    ("sandbox", Step::Sandbox),
    // Last: a build that takes all cores must not run beside tests that wait for times.
    ("real node", Step::RealNode),
];

const fn cargo(arguments: &'static [&'static str]) -> Step {
    Step::Cargo { arguments, environment: None }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let started = Instant::now();
    let mut skipped = Vec::new();
    for (index, (name, step)) in STEPS.iter().enumerate() {
        let title = format!("[{}/{}] {name}", index + 1, STEPS.len());
        println!("{title}: {}", step.command());
        let step_started = Instant::now();
        let passed = step.run(root).with_context(|| format!("{title} failed"))?;
        let elapsed = seconds(step_started.elapsed());
        match passed {
            Passed::Yes => println!("{title}: ok, {elapsed}"),
            Passed::Skipped(reason) => {
                println!("{title}: SKIPPED, {elapsed}: {reason}");
                skipped.push(format!("{name}: {reason}"));
            }
        }
    }
    println!("{}", summary(STEPS.len(), &skipped, started.elapsed()));
    Ok(())
}

/// The last line of the suite, which names the steps that did not run.
fn summary(steps: usize, skipped: &[String], elapsed: Duration) -> String {
    let elapsed = seconds(elapsed);
    if skipped.is_empty() {
        return format!("all {steps} steps passed, {elapsed}");
    }
    let passed = steps - skipped.len();
    format!("{passed} of {steps} steps passed, {elapsed}; SKIPPED {}", skipped.join("; "))
}

impl Step {
    /// The step as a command line that can be typed.
    fn command(&self) -> String {
        match self {
            Self::Cargo { arguments, .. } => format!("cargo {}", arguments.join(" ")),
            Self::GeneratedFiles => "cargo xtask codegen --check".to_owned(),
            Self::Tools => "cargo xtask tool".to_owned(),
            Self::Sandbox => "cargo xtask sandbox --check".to_owned(),
            Self::RealNode => "cargo xtask real-node --suite".to_owned(),
            Self::Cluster { kubernetes } => {
                format!("{KUBERNETES}={kubernetes} cargo {}", CLUSTER_TESTS.join(" "))
            }
        }
    }

    fn run(&self, root: &Path) -> Result<Passed> {
        match self {
            Self::GeneratedFiles => codegen::check(root)?,
            Self::Tools => tool::ensure_all(root)?,
            Self::Sandbox => sandbox::check(root)?,
            Self::RealNode => {
                let reason = real_node::run_suite(root)?;
                return Ok(reason.map_or(Passed::Yes, Passed::Skipped));
            }
            Self::Cargo { arguments, environment } => {
                let mut command = cargo_command();
                command.current_dir(root).args(*arguments).envs(environment.iter().copied());
                run_to_end(&mut command, &self.command())?;
            }
            Self::Cluster { kubernetes } => {
                let programs = control_plane::ensure(root, kubernetes)?;
                for package in CLUSTER_PROGRAMS {
                    let mut build = cargo_command();
                    build.current_dir(root).args(["build", "--quiet", "--package", package]);
                    run_to_end(&mut build, &format!("cargo build --package {package}"))?;
                }
                let mut command = cargo_command();
                command.current_dir(root).args(CLUSTER_TESTS).env(KUBERNETES, kubernetes);
                command.env(control_plane::ASSETS, programs);
                run_to_end(&mut command, &self.command())?;
            }
        }
        Ok(Passed::Yes)
    }
}

/// Runs a command and fails if it fails; errors name it by `line`.
pub(crate) fn run_to_end(command: &mut Command, line: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("failed to start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// The cargo that started this process, so that a selected toolchain is kept. The variables about
/// this package are removed: a build script that reads them would see a change, and its dependents
/// would be compiled again each time.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if is_about_package(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// Where cargo puts what it builds.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    root.join(target.unwrap_or_else(|| "target".into()))
}

fn is_about_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_printed_as_a_command_that_can_be_typed() {
        let commands: Vec<String> = STEPS.iter().map(|(_, step)| step.command()).collect();
        expect_test::expect![[r#"
            cargo fmt --all --check
            cargo clippy --workspace --all-targets -- -D warnings
            cargo test
            cargo doc --workspace --no-deps
            cargo xtask codegen --check
            cargo xtask tool
            SEI_KUBERNETES=1.34 cargo test --package cluster-tests -- --test-threads 8
            SEI_KUBERNETES=1.37 cargo test --package cluster-tests -- --test-threads 8
            cargo xtask sandbox --check
            cargo xtask real-node --suite
        "#]]
        .assert_eq(&(commands.join("\n") + "\n"));
    }

    #[test]
    fn a_skipped_step_is_named_in_the_last_line() {
        let time = Duration::from_secs(2);
        assert_eq!(summary(3, &[], time), "all 3 steps passed, 2.0 s");
        let skipped = ["real node: it needs root".to_owned()];
        assert_eq!(
            summary(3, &skipped, time),
            "2 of 3 steps passed, 2.0 s; SKIPPED real node: it needs root"
        );
    }

    #[test]
    fn every_minor_has_a_step() {
        for minor in control_plane::MINORS {
            let is_step =
                |step: &Step| matches!(step, Step::Cluster { kubernetes } if kubernetes == minor);
            assert!(STEPS.iter().any(|(_, step)| is_step(step)), "{minor}");
        }
    }

    #[test]
    fn variables_of_this_package_are_not_inherited() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo sets it for tests");
        let command = cargo_command();
        let removed = |variable: &str| {
            command.get_envs().any(|(name, value)| name == variable && value.is_none())
        };
        assert!(removed("CARGO_PKG_NAME") && removed("CARGO_MANIFEST_DIR"), "{command:?}");
        assert!(!removed("PATH") && !removed("CARGO_HOME"), "{command:?}");
    }

    #[test]
    fn the_error_of_a_failing_command_is_one_line() {
        let mut command = cargo_command();
        command.arg("--no-such-flag-of-cargo").stderr(std::process::Stdio::null());
        let error = run_to_end(&mut command, "cargo --no-such-flag-of-cargo").unwrap_err();
        let text = format!("{:#}", error.context("[1/1] flags failed"));
        assert!(text.starts_with("[1/1] flags failed: `cargo --no-such-flag-of-cargo` ended with"));
        assert!(!text.contains('\n'), "{text}");
    }
}
