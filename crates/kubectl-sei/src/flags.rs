//! The command line of `kubectl sei`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Show and control the Sei nodes of a cluster
#[derive(Parser, Clone, Debug)]
#[command(name = "kubectl-sei", bin_name = "kubectl sei", version = crate::VERSION, max_term_width = 100)]
pub struct Flags {
    #[command(flatten)]
    pub cluster: ClusterFlags,
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster and the namespaces in it.
#[derive(Args, Clone, Debug, Default)]
pub struct ClusterFlags {
    /// Namespace of the nodes [default: that of the kubeconfig context]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub namespace: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Kubeconfig context
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,

    /// Kubeconfig file [default: the same as kubectl]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Show what every node does, since when, and why
    Status(StatusFlags),
    /// Show the fields in which running pods differ from the desired ones, and what happens next
    Diff(DiffFlags),
    /// Show what another platform configuration would roll, without changing anything
    ///
    /// It decides with the planner of the operator of the same version. Exit code: 0 nothing would
    /// roll, 2 something would roll, 1 the preview failed.
    Preview(PreviewFlags),
    /// Approve the pending update of a held node
    Approve(ApproveFlags),
    /// Hold all updates of nodes; they keep running
    Pause(PauseFlags),
    /// Resume the updates of nodes
    Resume(PauseFlags),
    /// Show what changes when another operator takes over
    Handover(HandoverFlags),
    /// Explain a reason of a condition, or list all reasons
    Explain(ExplainFlags),
}

impl Command {
    /// Whether the command connects to a cluster.
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
    /// Keep running and print each change
    #[arg(short, long)]
    pub watch: bool,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct DiffFlags {
    /// Only these nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct PreviewFlags {
    /// The candidate platform configuration
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Also list the nodes that would not change
    #[arg(long)]
    pub all: bool,
    /// Read these manifests instead of a cluster: `SeiNodes` with their status and, for the
    /// differing fields, their `StatefulSets` or `ControllerRevisions`, and `Pods`, as written by
    /// `kubectl get -o yaml`
    #[arg(long, value_name = "FILE|DIR")]
    pub manifests: Vec<PathBuf>,
    /// Only these nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct ApproveFlags {
    /// The node: NAME or NAMESPACE/NAME
    pub node: String,
    /// Approve only if this is the target of the update
    #[arg(long, value_name = "HASH")]
    pub hash: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct PauseFlags {
    /// The nodes: NAME or NAMESPACE/NAME
    #[arg(value_name = "NODE", required = true)]
    pub nodes: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct HandoverFlags {
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct ExplainFlags {
    /// The reason, as in `kubectl sei status` [default: all]
    pub reason: Option<String>,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Copy, Debug)]
pub struct OutputFlags {
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "OUTPUT")]
    #[arg(value_enum, default_value_t = Output::Text)]
    pub format: Output,
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
    fn the_namespace_is_accepted_before_and_after_the_command() {
        for line in ["-n demo status a", "status a -n demo", "status --namespace demo a"] {
            let flags = parse(line).unwrap();
            assert_eq!(flags.cluster.namespace.as_deref(), Some("demo"), "{line}");
            assert!(
                matches!(flags.command, Command::Status(status) if status.nodes == ["a"]),
                "{line}"
            );
        }
    }

    #[test]
    fn only_commands_that_read_a_cluster_connect_to_one() {
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
    fn a_usage_error_names_the_missing_argument() {
        for (line, named) in [
            ("approve", "<NODE>"),
            ("pause", "<NODE>"),
            ("preview", "--config <FILE>"),
            ("status -o yaml", "possible values: text, json"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            assert!(message.contains(named), "{line}: {message}");
        }
    }
}
