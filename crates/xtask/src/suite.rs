//! What CI runs, in order, with its times. It stops at the first failure.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::{codegen, control_plane, sandbox, tool};

/// One step of the suite.
enum Step {
    Cargo {
        arguments: &'static [&'static str],
        environment: Option<(&'static str, &'static str)>,
    },
    GeneratedFiles,
    /// What the cluster tests use besides a control plane; built or downloaded if missing.
    Tools,
    /// The cluster tests on a real control plane of this minor, which is built if missing.
    Cluster {
        kubernetes: &'static str,
    },
    /// Every story of the sandbox, and its end by Ctrl-C.
    Sandbox,
}

/// What the cluster tests are run by, and where they are told their minor. They wait most of the
/// time, so more of them run at once than there are cores.
const CLUSTER_TESTS: &[&str] = &["test", "--package", "cluster-tests", "--", "--test-threads", "8"];
const KUBERNETES: &str = "SEI_KUBERNETES";
/// What the cluster tests start. Built before them: beside them it would take their cores.
const CLUSTER_PROGRAMS: [&str; 2] = ["sei-operator", "kubectl-sei"];

/// Cheapest first, so that a slip is told within seconds. Tidy is a plain test and needs no step.
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
];

const fn cargo(arguments: &'static [&'static str]) -> Step {
    Step::Cargo { arguments, environment: None }
}

pub(crate) fn run(root: &Path) -> Result<()> {
    let begun = Instant::now();
    for (index, (name, step)) in STEPS.iter().enumerate() {
        let place = format!("[{}/{}] {name}", index + 1, STEPS.len());
        println!("{place}: {}", step.describe());
        let step_begun = Instant::now();
        step.run(root).with_context(|| format!("{place} failed"))?;
        println!("{place}: ok, {}", seconds(step_begun.elapsed()));
    }
    println!("all {} steps passed, {}", STEPS.len(), seconds(begun.elapsed()));
    Ok(())
}

impl Step {
    fn describe(&self) -> String {
        match self {
            Self::Cargo { arguments, .. } => format!("cargo {}", arguments.join(" ")),
            Self::GeneratedFiles => "cargo xtask codegen --check".to_owned(),
            Self::Tools => "cargo xtask tool".to_owned(),
            Self::Sandbox => "cargo xtask sandbox --check".to_owned(),
            Self::Cluster { kubernetes } => {
                format!("{KUBERNETES}={kubernetes} cargo {}", CLUSTER_TESTS.join(" "))
            }
        }
    }

    fn run(&self, root: &Path) -> Result<()> {
        match self {
            Self::GeneratedFiles => codegen::check(root),
            Self::Tools => tool::ensure_all(root),
            Self::Sandbox => sandbox::check(root),
            Self::Cargo { arguments, environment } => {
                let mut command = cargo_command();
                command.current_dir(root).args(*arguments).envs(environment.iter().copied());
                run_to_end(&mut command, &self.describe())
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
                run_to_end(&mut command, &self.describe())
            }
        }
    }
}

pub(crate) fn run_to_end(command: &mut Command, told_as: &str) -> Result<()> {
    let status = command.status().with_context(|| format!("failed to start `{told_as}`"))?;
    if !status.success() {
        bail!("`{told_as}` ended with {status}");
    }
    Ok(())
}

/// The cargo that started us, so that a chosen toolchain is kept, called as a shell would. What it
/// told us about our own package would pass for a change to build scripts that read it, and all that
/// depends on them would be compiled anew, time and again.
pub(crate) fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if is_of_package(&name.to_string_lossy()) {
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

fn is_of_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_is_told_as_it_can_be_typed() {
        let told: Vec<String> = STEPS.iter().map(|(_, step)| step.describe()).collect();
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
        "#]]
        .assert_eq(&(told.join("\n") + "\n"));
    }

    #[test]
    fn every_minor_has_a_step() {
        for minor in control_plane::MINORS {
            let is_its =
                |step: &Step| matches!(step, Step::Cluster { kubernetes } if kubernetes == minor);
            assert!(STEPS.iter().any(|(_, step)| is_its(step)), "{minor}");
        }
    }

    #[test]
    fn nothing_of_our_own_package_is_handed_on() {
        assert!(std::env::var_os("CARGO_PKG_NAME").is_some(), "cargo tells a test of its package");
        let command = cargo_command();
        let removed =
            |one: &str| command.get_envs().any(|(name, value)| name == one && value.is_none());
        assert!(removed("CARGO_PKG_NAME") && removed("CARGO_MANIFEST_DIR"), "{command:?}");
        assert!(!removed("PATH") && !removed("CARGO_HOME"), "{command:?}");
    }

    #[test]
    fn a_failing_command_is_told_in_one_line() {
        let mut command = cargo_command();
        command.arg("--no-such-flag-of-cargo").stderr(std::process::Stdio::null());
        let error = run_to_end(&mut command, "cargo --no-such-flag-of-cargo").unwrap_err();
        let text = format!("{:#}", error.context("[1/1] flags failed"));
        assert!(text.starts_with("[1/1] flags failed: `cargo --no-such-flag-of-cargo` ended with"));
        assert!(!text.contains('\n'), "{text}");
    }
}
