//! The kubectl plugin: `kubectl sei …`.
//!
//! What it is for: showing what the operator does to each node and why, showing what another
//! platform configuration would do, and the decisions of a user: set an image, approve, pause,
//! resume, retry, restart. It is a library that takes a client and a writer, and a thin `main`.
//!
//! What it never does: decide by its own rules what would roll (it calls the operator's planner),
//! write to anything but the selected `SeiNodes` and the fleet of `rollout`, or print the content of a Secret.
//!
//! Invariants:
//! - `status`, `diff`, `wait`, `preview` and `rollout status` write nothing. Guarded by
//!   `the_same_config_rolls_nothing_and_writes_nothing` and
//!   `the_server_compares_a_pod_without_a_recorded_template`.
//! - The nodes and fields of a preview are those that roll afterwards. Guarded by
//!   `a_preview_names_exactly_the_nodes_and_paths_that_then_roll`.
//! - An approval is valid for one template. Guarded by
//!   `a_held_update_is_shown_and_released_by_the_right_hash_only`.
//! - Nothing is changed without names, labels, a chain or `--all`. Guarded by
//!   `an_image_is_set_on_a_whole_chain_and_waited_for`.
//! - A report contains no Secret and no value of an environment variable. Guarded by
//!   `a_report_contains_the_objects_of_a_node_and_no_secret` and
//!   `values_that_may_be_secret_are_removed_everywhere`.
//! - `explain` prints the meaning of a reason from the table in `sei-api`. Guarded by
//!   `every_reason_can_be_explained`.

mod approve;
mod change;
mod cluster;
mod complete;
mod diff;
mod error;
mod explain;
pub mod flags;
mod fleet;
mod format;
mod handover;
mod image;
mod logs;
mod pause;
mod preview;
mod report;
mod restart;
mod retry;
mod rollout;
mod status;
mod terminal;
mod version;
mod wait;

#[cfg(test)]
mod fixtures;

use std::borrow::Cow;
use std::io::Write;

use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use cluster::Scope;
pub use cluster::{Connection, connect};
pub use error::Error;
use flags::{Command, Flags, Output, SetCommand};
pub use terminal::{Terminal, uses_color};

/// The version of this build.
pub const VERSION: &str = env!("SEI_OPERATOR_VERSION");

/// The inputs of a command besides its flags.
pub struct CommandContext {
    /// `None` for commands that need no cluster.
    pub client: Option<Client>,
    /// Namespace of the kubeconfig context.
    pub namespace: String,
    pub now: fn() -> Timestamp,
    /// Version of an operator of the same build.
    pub version: String,
    /// The terminal that the output is; `None` for a file or a pipe.
    pub terminal: Option<Terminal>,
    pub uses_color: bool,
}

impl Default for CommandContext {
    fn default() -> Self {
        Self {
            client: None,
            namespace: "default".to_owned(),
            now: Timestamp::now,
            version: VERSION.to_owned(),
            terminal: None,
            uses_color: false,
        }
    }
}

impl CommandContext {
    fn client(&self) -> Result<&Client, Error> {
        let message = "the command has no client".to_owned();
        self.client.as_ref().ok_or(Error::NoCluster { message })
    }

    fn now(&self) -> Timestamp {
        (self.now)()
    }
}

/// The result of a command that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Fine,
    /// At least one running pod differs from the desired one.
    Differs,
    /// At least one node needs attention.
    NeedsAttention,
    /// At least one node would roll.
    WouldRoll,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::Differs | Self::NeedsAttention => 1,
            Self::WouldRoll => 2,
        }
    }
}

/// The output of a command.
pub type Out<'a> = &'a mut (dyn Write + Send);

/// Runs a command.
pub async fn run(flags: &Flags, context: &CommandContext, out: Out<'_>) -> Result<Exit, Error> {
    let scope = Scope::of(&flags.cluster, &context.namespace);
    match &flags.command {
        Command::Status(flags) => return status::run(flags, &scope, context, out).await,
        Command::Diff(flags) => return diff::run(flags, &scope, context, out).await,
        Command::Preview(flags) => {
            return Box::pin(preview::run(flags, &scope, context, out)).await;
        }
        Command::Set(SetCommand::Image(flags)) => image::run(flags, &scope, context, out).await?,
        Command::Wait(flags) => wait::run(flags, &scope, context, out).await?,
        Command::Approve(flags) => approve::run(flags, &scope, context, out).await?,
        Command::Pause(flags) => pause::run(flags, true, &scope, context, out).await?,
        Command::Resume(flags) => pause::run(flags, false, &scope, context, out).await?,
        Command::Rollout(command) => return rollout::run(command, &scope, context, out).await,
        Command::Retry(flags) => retry::run(flags, &scope, context, out).await?,
        Command::Restart(flags) => restart::run(flags, &scope, context, out).await?,
        Command::Logs(flags) => logs::run(flags, &scope, context, out).await?,
        Command::Explain(flags) => explain::run(flags, context.terminal, out)?,
        Command::Report(flags) => report::run(flags, &scope, context, out).await?,
        Command::Handover(flags) => handover::run(flags, &scope, context, out).await?,
        Command::Version(flags) => version::run(flags, context, out).await?,
        Command::Completion(_) => complete::script(out)?,
        Command::Complete(flags) => complete::run(flags, out).await?,
    }
    Ok(Exit::Fine)
}

fn write(out: Out<'_>, text: &str) -> Result<(), Error> {
    write_printable(out, &printable(text))
}

/// Writes a text whose parts from the cluster are [`printable`] already, and that may
/// contain colours.
fn write_printable(out: Out<'_>, text: &str) -> Result<(), Error> {
    out.write_all(text.as_bytes()).map_err(|source| Error::Output { source })
}

fn flush(out: Out<'_>) -> Result<(), Error> {
    out.flush().map_err(|source| Error::Output { source })
}

/// The text without characters that a terminal acts on. Specs, sidecars and registries are written by
/// others: their texts must not move the cursor, change colours, or reverse the direction of a line.
pub fn printable(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if acts(c) { safe.extend(c.escape_unicode()) } else { safe.push(c) }
    }
    Cow::Owned(safe)
}

/// Writes the text, or the record in JSON.
fn show(
    out: Out<'_>,
    format: Output,
    record: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Error> {
    match format {
        Output::Text => write(out, &text()),
        Output::Json => write(out, &format!("{}\n", json(record))),
        Output::Yaml => write(out, &yaml(record)),
    }
}

fn json(record: &impl Serialize) -> String {
    serde_json::to_string_pretty(record).expect("the records have string keys only")
}

fn yaml(record: &impl Serialize) -> String {
    // By way of JSON: the records have types that only JSON represents exactly.
    let value = serde_json::to_value(record).expect("the records have string keys only");
    serde_saphyr::to_string(&value).expect("every JSON value is a YAML value")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_acts_on_is_escaped() {
        let mut out = Vec::new();
        write(&mut out, "seid\u{1b}[31m:v1\r\u{9b}2J\u{7}\u{202e}x\tä\n").unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "seid\\u{1b}[31m:v1\\u{d}\\u{9b}2J\\u{7}\\u{202e}x\tä\n"
        );
        assert!(matches!(printable("plain\n"), Cow::Borrowed(_)));
    }
}
