//! The command line of `kubectl sei`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Inspect and control Sei nodes
#[derive(Parser, Clone, Debug)]
#[command(name = "kubectl-sei", bin_name = "kubectl sei", version = crate::VERSION, max_term_width = 100)]
pub struct Flags {
    #[command(flatten)]
    pub cluster: ClusterFlags,
    #[command(subcommand)]
    pub command: Command,
}

/// The cluster and the namespaces in it. The names are those of kubectl.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Cluster")]
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

    /// Cluster of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,

    /// User of the kubeconfig
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,

    /// Address of the API server
    #[arg(short, long, global = true, value_name = "URL")]
    pub server: Option<String>,

    /// Bearer token for the API server
    #[arg(long, global = true, value_name = "TOKEN", hide_env_values = true)]
    pub token: Option<String>,

    /// User to impersonate
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,

    /// Group to impersonate; may be repeated
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,

    /// Longest wait for a response of the server, for example 10s; 0: no limit of its own
    #[arg(long, global = true, value_name = "DURATION", value_parser = duration)]
    pub request_timeout: Option<Duration>,

    /// When to use colours; `auto` uses them on a terminal unless `NO_COLOR` is set
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// A duration as kubectl accepts it: `90`, `90s`, `5m`, `1h30m`.
fn duration(text: &str) -> Result<Duration, String> {
    let error = || format!("`{text}` is not a duration; write for example 90s, 5m or 1h30m");
    let (mut seconds, mut number) = (0_u64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                number.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            _ => return Err(error()),
        };
        let count: u64 = number.parse().map_err(|_| error())?;
        seconds =
            count.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(error)?;
        number.clear();
    }
    if !number.is_empty() {
        let rest: u64 = number.parse().map_err(|_| error())?;
        seconds = seconds.checked_add(rest).ok_or_else(error)?;
    } else if text.is_empty() {
        return Err(error());
    }
    Ok(Duration::from_secs(seconds))
}

#[derive(Subcommand, Clone, Debug)]
pub enum Command {
    /// Show what every node does, since when, and why; trouble first
    Status(StatusFlags),
    /// Show the fields in which running pods differ from the desired ones, and what happens next
    ///
    /// Exit code: 0 nothing differs, 1 something differs, 2 the command failed.
    Diff(DiffFlags),
    /// Show what another platform configuration or a changed fleet would roll, without changing anything
    ///
    /// It decides with the planner of the operator of the same version. Exit code: 0 nothing would
    /// roll, 2 something would roll, 1 the preview failed.
    Preview(PreviewFlags),
    /// Change a field of nodes
    #[command(subcommand)]
    Set(SetCommand),
    /// Wait until nodes are Ready and in sync
    Wait(WaitFlags),
    /// Approve the pending updates of held nodes
    Approve(ApproveFlags),
    /// Hold all updates of nodes; they keep running
    Pause(VerbFlags),
    /// Resume the updates of nodes
    Resume(VerbFlags),
    /// Show the rollout of a fleet, hold it, or go back to the template before it
    ///
    /// Exit code: 0 done or not halted, 1 the rollout is halted, 2 the command failed.
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Start failed nodes again
    Retry(VerbFlags),
    /// Replace the pods of nodes, in turn
    Restart(VerbFlags),
    /// Print the log of a node
    Logs(LogsFlags),
    /// Explain reasons of conditions, or list all reasons
    Explain(ExplainFlags),
    /// Write a folder for a support request: nodes, their objects and events, without secrets
    Report(ReportFlags),
    /// Show what changes when another operator takes over
    Handover(HandoverFlags),
    /// Show the versions of the plugin, the operator and the API server
    Version(VersionFlags),
    /// Print the script with which kubectl completes `kubectl sei`
    ///
    /// Write it to a file `kubectl_complete-sei` on the PATH and make that file executable. It works
    /// in every shell for which the completion of kubectl itself is set up.
    Completion(CompletionFlags),
    /// Print completions in the protocol of kubectl
    #[command(name = "__complete", hide = true, disable_help_flag = true)]
    Complete(CompleteFlags),
}

impl Command {
    /// Whether the command connects to a cluster.
    pub fn needs_cluster(&self) -> bool {
        match self {
            // Completions of commands and flags need none, and those of nodes connect by themselves.
            Self::Explain(_) | Self::Completion(_) | Self::Complete(_) => false,
            Self::Preview(flags) => flags.manifests.is_empty() || !flags.filename.is_empty(),
            Self::Version(flags) => !flags.client,
            _ => true,
        }
    }

    /// The exit code of a failure. 1 means something else for the commands that check.
    pub fn failure_code(&self) -> u8 {
        match self {
            Self::Diff(_) | Self::Rollout(_) => 2,
            Self::Status(flags) if flags.check => 2,
            _ => 1,
        }
    }
}

/// The nodes that a command reads.
#[derive(Args, Clone, Debug, Default)]
pub struct SelectionFlags {
    /// Only these nodes: NAME, NAMESPACE/NAME, seinode/NAME, or snd/FLEET
    #[arg(value_name = "NODE", conflicts_with_all = ["selector", "chain"])]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub filter: FilterFlags,
}

/// Filters of the nodes in scope.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterFlags {
    /// Only nodes with these labels, for example `team=a,tier!=test`
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Only nodes of this chain
    #[arg(long, value_name = "CHAIN_ID")]
    pub chain: Option<String>,
}

/// The nodes that a command changes.
#[derive(Args, Clone, Debug, Default)]
pub struct VerbFlags {
    /// The nodes: NAME, NAMESPACE/NAME, seinode/NAME, or snd/FLEET
    #[arg(value_name = "NODE", conflicts_with_all = ["selector", "chain", "all"])]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub change: ChangeFlags,
}

/// How many nodes a command changes, and whether it does.
#[derive(Args, Clone, Debug, Default)]
pub struct ChangeFlags {
    #[command(flatten)]
    pub filter: FilterFlags,
    /// All nodes of the namespace, or of all namespaces with -A
    #[arg(long, conflicts_with_all = ["selector", "chain"])]
    pub all: bool,
    /// Print what would change; `server` also lets the server check it
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = DryRun::None, default_missing_value = "client", hide_default_value = true)]
    pub dry_run: DryRun,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DryRun {
    #[default]
    None,
    Client,
    Server,
}

#[derive(Args, Clone, Debug)]
pub struct StatusFlags {
    #[command(flatten)]
    pub selection: SelectionFlags,
    /// Keep watching: redraw on a terminal, otherwise print each change
    #[arg(short, long)]
    pub watch: bool,
    /// Watch until every node is Ready and in sync
    #[arg(long)]
    pub until_ready: bool,
    /// Exit with 1 if a node needs attention: not Ready, stalled, failed, held, paused or stopped
    #[arg(long, conflicts_with_all = ["watch", "until_ready"])]
    pub check: bool,
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, default_value_t = StatusOutput::Table)]
    pub output: StatusOutput,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusOutput {
    #[value(alias = "text")]
    Table,
    /// With full images, revision and what each node waits for
    Wide,
    Json,
    Yaml,
    Name,
}

#[derive(Args, Clone, Debug)]
pub struct DiffFlags {
    #[command(flatten)]
    pub selection: SelectionFlags,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct PreviewFlags {
    /// The candidate platform configuration
    #[arg(long, value_name = "FILE", required_unless_present = "filename")]
    pub config: Option<PathBuf>,
    /// Manifests of changed fleets: what would happen to which of their nodes, in order
    #[arg(short, long, value_name = "FILE|DIR")]
    #[arg(conflicts_with_all = ["config", "manifests", "all", "nodes", "format"])]
    pub filename: Vec<PathBuf>,
    /// Also list the nodes that would not change
    #[arg(long)]
    pub all: bool,
    /// Read these manifests instead of a cluster: `SeiNodes` with their status and, for the
    /// differing fields, their `StatefulSets` or `ControllerRevisions`, and `Pods`, as written by
    /// `kubectl get -o yaml`
    #[arg(long, value_name = "FILE|DIR")]
    pub manifests: Vec<PathBuf>,
    /// Only these nodes: NAME, NAMESPACE/NAME or seinode/NAME
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Subcommand, Clone, Debug)]
pub enum RolloutCommand {
    /// Show how far the rollout is, and every node
    ///
    /// Exit code: 0 not halted, 1 halted, 2 the command failed.
    Status(RolloutStatusFlags),
    /// Hold rollouts of the fleet; every node keeps running
    Pause(FleetFlags),
    /// Resume rollouts of the fleet
    Resume(FleetFlags),
    /// Set the template back to that of before the rollout
    ///
    /// A node that does not have the new template yet still shows the previous one; without such a
    /// node, apply the previous manifest instead.
    Undo(FleetFlags),
}

#[derive(Args, Clone, Debug)]
pub struct FleetFlags {
    /// The fleet: NAME, NAMESPACE/NAME or snd/NAME
    #[arg(value_name = "FLEET")]
    pub fleet: String,
    /// Print what would change; `server` also lets the server check it
    #[arg(long, value_enum, value_name = "WHERE", num_args = 0..=1, require_equals = true)]
    #[arg(default_value_t = DryRun::None, default_missing_value = "client", hide_default_value = true)]
    pub dry_run: DryRun,
}

#[derive(Args, Clone, Debug)]
pub struct RolloutStatusFlags {
    /// The fleet: NAME, NAMESPACE/NAME or snd/NAME
    #[arg(value_name = "FLEET")]
    pub fleet: String,
    /// Print each change until the rollout is complete or halted
    #[arg(short, long)]
    pub watch: bool,
    /// How long to watch [default: until the end]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "watch")]
    pub timeout: Option<Duration>,
}

#[derive(Subcommand, Clone, Debug)]
pub enum SetCommand {
    /// Set `spec.image` of nodes
    ///
    /// The operator replaces the pods of nodes that are not Ready at once; Ready nodes roll in turn.
    Image(SetImageFlags),
}

#[derive(Args, Clone, Debug)]
pub struct SetImageFlags {
    /// The nodes, and the image as the last argument
    #[arg(value_name = "NODE... IMAGE", required = true)]
    pub arguments: Vec<String>,
    #[command(flatten)]
    pub change: ChangeFlags,
}

#[derive(Args, Clone, Debug)]
pub struct WaitFlags {
    #[command(flatten)]
    pub selection: SelectionFlags,
    /// What to wait for [default: both]
    #[arg(long = "for", value_enum, value_name = "STATE")]
    pub state: Option<WaitFor>,
    /// All nodes, which is the default; kubectl's own `wait` requires it
    #[arg(long, hide = true)]
    pub all: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "30m", value_parser = duration)]
    pub timeout: Duration,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// The pod is Ready
    #[value(alias = "Ready", alias = "condition=Ready")]
    Ready,
    /// The last edit runs: nothing is pending
    #[value(alias = "InSync", alias = "insync")]
    InSync,
}

#[derive(Args, Clone, Debug)]
pub struct ApproveFlags {
    #[command(flatten)]
    pub verb: VerbFlags,
    /// Approve only updates to this target
    #[arg(long, value_name = "HASH")]
    pub hash: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct LogsFlags {
    /// The node: NAME, NAMESPACE/NAME or seinode/NAME
    pub node: String,
    /// The container
    #[arg(short, long, value_name = "NAME", default_value = "seid")]
    pub container: String,
    /// Keep printing new lines
    #[arg(short, long)]
    pub follow: bool,
    /// Print the log of the previous run of the container
    #[arg(short, long)]
    pub previous: bool,
    /// Print only so many of the last lines
    #[arg(long, value_name = "LINES")]
    pub tail: Option<u32>,
}

#[derive(Args, Clone, Debug)]
pub struct ReportFlags {
    #[command(flatten)]
    pub selection: SelectionFlags,
    /// The folder to create [default: sei-report-TIME]
    #[arg(long, value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub struct HandoverFlags {
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct VersionFlags {
    /// Only the version of the plugin
    #[arg(long)]
    pub client: bool,
    #[command(flatten)]
    pub output: OutputFlags,
}

#[derive(Args, Clone, Debug)]
pub struct CompletionFlags {
    /// The shell; the script is the same for all of them
    pub shell: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub struct CompleteFlags {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub struct ExplainFlags {
    /// The reasons, as in `kubectl sei status` [default: all]
    #[arg(value_name = "REASON")]
    pub reasons: Vec<String>,
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
    Yaml,
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
                matches!(flags.command, Command::Status(status) if status.selection.nodes == ["a"]),
                "{line}"
            );
        }
    }

    #[test]
    fn the_flags_of_kubectl_are_accepted() {
        let line = "status --as a --as-group b --as-group c --cluster d --user e --token f \
                    --request-timeout 1m30s -s https://host --context g --kubeconfig h";
        let flags = parse(line).unwrap().cluster;
        assert_eq!(flags.impersonate_groups, ["b", "c"]);
        assert_eq!(flags.request_timeout, Some(Duration::from_secs(90)));
        assert_eq!(flags.server.as_deref(), Some("https://host"));
    }

    #[test]
    fn a_duration_has_units_or_is_in_seconds() {
        for (text, seconds) in [("0", 0), ("90", 90), ("2m", 120), ("1h1m1s", 3661)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "m", "1d", "-1s", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_commands_that_read_a_cluster_connect_to_one() {
        for (line, needs) in [
            ("explain Held", false),
            ("preview --config new.yaml --manifests fleet", false),
            ("preview --config new.yaml", true),
            ("version --client", false),
            ("version", true),
            ("completion bash", false),
            ("status", true),
            ("handover -o json", true),
        ] {
            assert_eq!(parse(line).unwrap().command.needs_cluster(), needs, "{line}");
        }
    }

    #[test]
    fn a_usage_error_names_the_missing_argument() {
        for (line, named) in [
            ("logs", "<NODE>"),
            ("pause a --all", "cannot be used with"),
            ("set image", "<NODE... IMAGE>"),
            ("preview", "--config <FILE>"),
            ("diff -o table", "possible values: text, json, yaml"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            assert!(message.contains(named), "{line}: {message}");
        }
    }

    #[test]
    fn a_dry_run_needs_no_value() {
        for (line, expected) in [
            ("pause a", DryRun::None),
            ("pause --dry-run a", DryRun::Client),
            ("pause a --dry-run=server", DryRun::Server),
        ] {
            let Command::Pause(flags) = parse(line).unwrap().command else { panic!("{line}") };
            assert_eq!(flags.change.dry_run, expected, "{line}");
            assert_eq!(flags.nodes, ["a"], "{line}");
        }
    }
}
