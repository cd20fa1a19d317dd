//! What `kubectl sei` can be told.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// See and steer the Sei nodes of a cluster.
#[derive(Parser, Clone, Debug)]
#[command(name = "kubectl-sei", bin_name = "kubectl sei", version, max_term_width = 100)]
pub struct Flags {
    #[command(flatten)]
    pub place: Place,
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and where in it.
#[derive(Args, Clone, Debug, Default)]
pub struct Place {
    /// Namespace to look in [default: the one of the context]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,

    /// Look in all namespaces
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Context of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// Kubeconfig to use [default: as kubectl finds it]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Show what every node does, since when, and why
    Status(StatusFlags),
    /// Show what differs between the running pods and the desired ones, and what becomes of it
    Diff(DiffFlags),
    /// Show what another platform configuration would roll, without changing anything
    ///
    /// It decides with the code of this very version of the operator. Exit code: 0 nothing would
    /// roll, 2 something would, 1 it could not be found out.
    Preview(PreviewFlags),
    /// Approve the pending update of a node that is held
    Approve(ApproveFlags),
    /// Hold all updates of nodes; they keep running
    Pause(Named),
    /// Let updates of nodes go on
    Resume(Named),
    /// Show what changes when another operator takes over again
    Handover(HandoverFlags),
    /// Explain a reason that a condition gives, or list all of them
    Explain(ExplainFlags),
}

impl Command {
    /// Whether there must be a cluster to talk to.
    pub fn needs_cluster(&self) -> bool {
        match self {
            Self::Explain(_) => false,
            Self::Preview(flags) => flags.manifests.is_empty(),
            _ => true,
        }
    }
}

#[derive(Args, Clone, Debug)]
pub struct StatusFlags {
    /// Only these nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Go on and tell each change
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Args, Clone, Debug)]
pub struct DiffFlags {
    /// Only these nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Args, Clone, Debug)]
pub struct PreviewFlags {
    /// The platform configuration to try
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Also list the nodes that would stay as they are
    #[arg(long)]
    pub all: bool,
    /// Look at these manifests instead of a cluster: `SeiNodes` with their status and, for the fields
    /// that differ, their `StatefulSets` or `ControllerRevisions`, and `Pods`, as `kubectl get -o yaml` writes them
    #[arg(long, value_name = "FILE|DIR")]
    pub manifests: Vec<PathBuf>,
    /// Only these nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Args, Clone, Debug)]
pub struct ApproveFlags {
    /// The node: NAME or NAMESPACE/NAME
    pub node: String,
    /// Approve only if the update leads to this template
    #[arg(long, value_name = "HASH")]
    pub hash: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct Named {
    /// The nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct HandoverFlags {
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Args, Clone, Debug)]
pub struct ExplainFlags {
    /// The reason, as in `kubectl sei status` [default: all of them]
    pub reason: Option<String>,
    #[command(flatten)]
    pub shown: Shown,
}

#[derive(Args, Clone, Copy, Debug)]
pub struct Shown {
    /// How to show it
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Text,
    Json,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Flags, clap::Error> {
        Flags::try_parse_from(std::iter::once("kubectl-sei").chain(line.split_whitespace()))
    }

    #[test]
    fn the_command_is_well_formed() {
        Flags::command().debug_assert();
    }

    #[test]
    fn the_place_is_told_before_or_after_the_command() {
        for line in ["-n demo status a", "status a -n demo", "status --namespace demo a"] {
            let flags = parse(line).unwrap();
            assert_eq!(flags.place.namespace.as_deref(), Some("demo"), "{line}");
            assert!(matches!(flags.command, Command::Status(one) if one.nodes == ["a"]), "{line}");
        }
    }

    #[test]
    fn only_what_asks_a_cluster_needs_one() {
        for (line, needs) in [
            ("explain Held", false),
            ("preview --config new.yaml --manifests fleet", false),
            ("preview --config new.yaml", true),
            ("status", true),
            ("handover -o json", true),
        ] {
            assert_eq!(parse(line).unwrap().command.needs_cluster(), needs, "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        for (line, named) in [
            ("approve", "<NODE>"),
            ("pause", "<NODE>"),
            ("preview", "--config <FILE>"),
            ("status -o yaml", "possible values: text, json"),
        ] {
            let told = parse(line).unwrap_err().to_string();
            assert!(told.contains(named), "{line}: {told}");
        }
    }
}
