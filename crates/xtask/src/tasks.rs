//! The tasks of `cargo xtask` and their arguments.

use std::fmt::Write as _;

use anyhow::{Result, bail};

use crate::bench::Bench;
use crate::control_plane::{Desired, MINORS};
use crate::image;

/// A parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Help,
    Bench(Bench),
    Codegen {
        check: bool,
    },
    ControlPlane(Desired),
    Image(image::Desired),
    /// The stories on a real kubelet.
    RealNode(RealNode),
    Sandbox {
        arguments: Vec<String>,
    },
    Tidy,
    Test,
    /// A tool by name, or all tools.
    Tool {
        name: Option<String>,
    },
}

/// What `real-node` runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RealNode {
    /// No story: only the programs and images.
    Prepare,
    /// The stories that `cargo xtask test` runs.
    Suite,
    /// The stories whose name contains one of these texts, or all.
    Stories(Vec<String>),
}

const TASKS: &[(&str, &str)] = &[
    (
        "bench",
        "what the operator costs; `bench cost` (the default) counts allocations and instructions, \
         `bench fleet` CPU time, memory and requests on a real control plane: --nodes 100,300, \
         --operator NAME=COMMAND, --rollout, --out docs, --kubernetes 1.34|1.37; --help lists all",
    ),
    (
        "codegen",
        "write generated files (CRDs, roles, docs, golden pod templates); --check only compares",
    ),
    (
        "control-plane",
        "build a real control plane (once, takes minutes) and print its folder; \
         --kubernetes 1.34|1.37, --bin-dir DIR",
    ),
    ("help", "print this text"),
    (
        "image",
        "write the operator's image without a daemon (target/sei-operator.oci.tar); --output PATH, \
         --profile NAME, --root writes its files into a folder",
    ),
    (
        "real-node",
        "run the stories on a real kubelet with real programs in the pods (builds them once, takes \
         minutes; needs root); FILTER... runs some of them, --suite those of test, --prepare only \
         prints the folder of the programs",
    ),
    (
        "sandbox",
        "run the operator on a local control plane; --scenario NAME, --keep, --help; --check runs all \
         scenarios, --real a chain upgrade on a real kubelet with a real chain",
    ),
    ("test", "run the steps of CI: format, lints, tests, docs, generated files, real clusters"),
    ("tidy", "check the rules of this repository that no compiler checks; part of test"),
    ("tool", "build or download the tools of the tests (helm, ...) and print their paths; NAME"),
];

pub(crate) fn help() -> String {
    let mut text = String::from("Usage: cargo xtask <task>\n\n");
    for (name, description) in TASKS {
        let _ = writeln!(text, "  {name:<13} {description}");
    }
    text
}

pub(crate) fn parse(arguments: &[String]) -> Result<Task> {
    let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match given[..] {
        [] | ["help" | "--help" | "-h", ..] => Ok(Task::Help),
        ["bench"] | ["bench", "cost"] => Ok(Task::Bench(Bench::Cost)),
        ["bench", "fleet", ref options @ ..] => parse_fleet(options),
        ["codegen"] => Ok(Task::Codegen { check: false }),
        ["codegen", "--check"] => Ok(Task::Codegen { check: true }),
        ["control-plane", ref options @ ..] => parse_control_plane(options),
        ["image", ref options @ ..] => parse_image(options),
        ["real-node", "--prepare"] => Ok(Task::RealNode(RealNode::Prepare)),
        ["real-node", "--suite"] => Ok(Task::RealNode(RealNode::Suite)),
        ["real-node", ref filters @ ..] => parse_real_node(filters),
        ["sandbox", ..] => Ok(Task::Sandbox { arguments: arguments[1..].to_vec() }),
        ["tidy"] => Ok(Task::Tidy),
        ["test"] => Ok(Task::Test),
        ["tool"] => Ok(Task::Tool { name: None }),
        ["tool", name] => Ok(Task::Tool { name: Some(name.to_owned()) }),
        [task, extra, ..] if is_known(task) => {
            let takes = match task {
                "bench" => "only `cost` or `fleet`",
                "codegen" => "only --check",
                "tool" => "only one name",
                _ => "no arguments",
            };
            bail!("task `{task}` takes {takes}, not `{extra}`")
        }
        [unknown, ..] => bail!("{}", explain_unknown(unknown)),
    }
}

/// Takes `--kubernetes` out; the benchmark itself parses the rest.
fn parse_fleet(options: &[&str]) -> Result<Task> {
    let (mut minor, mut arguments) = ("1.37", Vec::new());
    let mut options = options.iter();
    while let Some(option) = options.next() {
        if *option == "--kubernetes" {
            let Some(given) = options.next() else { bail!("--kubernetes needs a value") };
            minor = parse_minor(given)?;
        } else {
            arguments.push((*option).to_owned());
        }
    }
    Ok(Task::Bench(Bench::Fleet { minor, arguments }))
}

fn parse_minor(given: &str) -> Result<&'static str> {
    let minor = MINORS.iter().find(|minor| **minor == given);
    let Some(minor) = minor else {
        bail!("--kubernetes takes {}, not `{given}`", MINORS.join(" or "));
    };
    Ok(minor)
}

fn parse_control_plane(options: &[&str]) -> Result<Task> {
    let mut desired = Desired::default();
    for option in options.chunks(2) {
        match option {
            ["--kubernetes", given] => desired.minor = Some(parse_minor(given)?),
            ["--bin-dir", folder] => desired.bin_dir = Some(folder.into()),
            [option @ ("--kubernetes" | "--bin-dir")] => bail!("{option} needs a value"),
            [unknown, ..] => {
                bail!("task `control-plane` takes --kubernetes and --bin-dir, not `{unknown}`")
            }
            [] => {}
        }
    }
    Ok(Task::ControlPlane(desired))
}

fn parse_real_node(filters: &[&str]) -> Result<Task> {
    if let Some(flag) = filters.iter().find(|filter| filter.starts_with('-')) {
        bail!("task `real-node` takes --suite, --prepare or names of stories, not `{flag}`");
    }
    let filters = filters.iter().map(|filter| (*filter).to_owned()).collect();
    Ok(Task::RealNode(RealNode::Stories(filters)))
}

fn parse_image(options: &[&str]) -> Result<Task> {
    let mut desired = image::Desired::default();
    let mut options = options.iter().copied();
    while let Some(option) = options.next() {
        let mut value = || match options.next() {
            Some(value) => Ok(value.to_owned()),
            None => bail!("{option} needs a value"),
        };
        match option {
            "--output" => desired.output = value()?.into(),
            "--profile" => desired.profile = value()?,
            "--root" => desired.root = true,
            unknown => bail!("task `image` takes --output, --profile and --root, not `{unknown}`"),
        }
    }
    Ok(Task::Image(desired))
}

fn is_known(name: &str) -> bool {
    TASKS.iter().any(|(known, _)| *known == name)
}

fn explain_unknown(name: &str) -> String {
    let near = nearest(name);
    let near: Vec<String> = near.iter().map(|task| format!("`{task}`")).collect();
    if near.is_empty() {
        format!("unknown task `{name}`; `cargo xtask help` lists them")
    } else {
        format!("unknown task `{name}`; did you mean {}?", near.join(" or "))
    }
}

/// Known tasks that differ from the name by a typing error or complete it, nearest first.
fn nearest(name: &str) -> Vec<&'static str> {
    let mut near: Vec<(usize, &str)> = TASKS
        .iter()
        .map(|(known, _)| {
            let is_prefix = !name.is_empty() && known.starts_with(name);
            (if is_prefix { 0 } else { distance(name, known) }, *known)
        })
        .filter(|(distance, known)| *distance <= known.len() / 2)
        .collect();
    near.sort_unstable();
    near.into_iter().map(|(_, known)| known).collect()
}

/// The number of letters to add, remove or replace between two names.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (line, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, target) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *target);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn every_task_is_parsed() {
        assert_eq!(parsed(""), Ok(Task::Help));
        assert_eq!(parsed("help"), Ok(Task::Help));
        assert_eq!(parsed("bench"), Ok(Task::Bench(Bench::Cost)));
        let fleet = |minor, arguments: &[&str]| {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            Ok(Task::Bench(Bench::Fleet { minor, arguments }))
        };
        assert_eq!(parsed("bench fleet"), fleet("1.37", &[]));
        let typed = "bench fleet --kubernetes 1.34 --nodes 8";
        assert_eq!(parsed(typed), fleet("1.34", &["--nodes", "8"]));
        assert_eq!(parsed("codegen"), Ok(Task::Codegen { check: false }));
        assert_eq!(parsed("codegen --check"), Ok(Task::Codegen { check: true }));
        assert_eq!(parsed("control-plane"), Ok(Task::ControlPlane(Desired::default())));
        let desired = Desired { minor: Some("1.37"), bin_dir: Some("bin".into()) };
        let typed = "control-plane --bin-dir bin --kubernetes 1.37";
        assert_eq!(parsed(typed), Ok(Task::ControlPlane(desired)));
        assert_eq!(parsed("image"), Ok(Task::Image(image::Desired::default())));
        let desired = image::Desired { profile: "dev".into(), output: "a".into(), root: true };
        assert_eq!(parsed("image --root --profile dev --output a"), Ok(Task::Image(desired)));
        let filters = vec!["proxy".to_owned()];
        let real_node = |desired: RealNode| Ok(Task::RealNode(desired));
        assert_eq!(parsed("real-node proxy"), real_node(RealNode::Stories(filters)));
        assert_eq!(parsed("real-node --prepare"), real_node(RealNode::Prepare));
        assert_eq!(parsed("real-node --suite"), real_node(RealNode::Suite));
        let arguments = vec!["--keep".to_owned()];
        assert_eq!(parsed("sandbox --keep"), Ok(Task::Sandbox { arguments }));
        assert_eq!(parsed("tidy"), Ok(Task::Tidy));
        assert_eq!(parsed("test"), Ok(Task::Test));
        assert_eq!(parsed("tool"), Ok(Task::Tool { name: None }));
        assert_eq!(parsed("tool helm"), Ok(Task::Tool { name: Some("helm".into()) }));
        for (name, description) in TASKS {
            assert!(parsed(name).is_ok() && help().contains(description), "{name}");
        }
    }

    #[test]
    fn an_unknown_task_names_the_nearest_ones() {
        for (typed, error) in [
            ("tets", "unknown task `tets`; did you mean `test`?"),
            ("code", "unknown task `code`; did you mean `codegen`?"),
            ("t", "unknown task `t`; did you mean `test` or `tidy` or `tool`?"),
            ("bench speed", "task `bench` takes only `cost` or `fleet`, not `speed`"),
            ("bench fleet --kubernetes", "--kubernetes needs a value"),
            ("deploy", "unknown task `deploy`; `cargo xtask help` lists them"),
            ("codegen --force", "task `codegen` takes only --check, not `--force`"),
            ("control", "unknown task `control`; did you mean `control-plane`?"),
            ("control-plane --kubernetes 1.2", "--kubernetes takes 1.34 or 1.37, not `1.2`"),
            ("control-plane --bin-dir", "--bin-dir needs a value"),
            (
                "control-plane now",
                "task `control-plane` takes --kubernetes and --bin-dir, not `now`",
            ),
            ("image --output", "--output needs a value"),
            ("image now", "task `image` takes --output, --profile and --root, not `now`"),
            (
                "real-node --keep",
                "task `real-node` takes --suite, --prepare or names of stories, not `--keep`",
            ),
            ("test now", "task `test` takes no arguments, not `now`"),
        ] {
            assert_eq!(parsed(typed), Err(error.to_owned()), "{typed}");
        }
    }
}
