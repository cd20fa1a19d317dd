//! The kubectl plugin: `kubectl sei …`.
//!
//! What it is for: showing people what the operator does to each node and why, what another
//! platform configuration would do, and giving them the three things they decide: approve, pause,
//! resume. It is a library that takes a client and a writer, and a thin `main`.
//!
//! What it never does: decide for itself what would roll (it asks the planner that the operator
//! asks), write to anything but the `SeiNode` that it was told to approve, pause or resume, or
//! repeat the content of a Secret.
//!
//! Invariants:
//! - Showing and previewing write nothing. Guarded by
//!   `the_same_config_rolls_nothing_and_writes_nothing` and
//!   `the_server_compares_a_pod_without_a_recorded_template`.
//! - What a preview names is what then rolls. Guarded by
//!   `a_preview_names_exactly_the_nodes_and_paths_that_then_roll`.
//! - An approval is for one template. Guarded by
//!   `a_held_update_is_shown_and_released_by_the_right_hash_only`.
//! - What a reason means is told in the words of the one table. Guarded by
//!   `every_reason_can_be_explained`.

mod cluster;
mod consent;
mod difference;
mod error;
mod explain;
pub mod flags;
mod handover;
mod preview;
mod status;
mod words;

#[cfg(test)]
mod fixture;

use std::io::Write;

use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use cluster::Scope;
pub use cluster::connect;
pub use error::Error;
use flags::{Command, Flags, Output};

/// What a command works with.
pub struct Surroundings {
    /// Absent for commands that need no cluster.
    pub client: Option<Client>,
    /// Namespace of the context.
    pub namespace: String,
    pub now: fn() -> Timestamp,
    /// The version that an operator of this build has.
    pub version: String,
}

impl Default for Surroundings {
    fn default() -> Self {
        Self {
            client: None,
            namespace: "default".to_owned(),
            now: Timestamp::now,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

impl Surroundings {
    fn client(&self) -> Result<&Client, Error> {
        let told = "there is no client".to_owned();
        self.client.as_ref().ok_or(Error::NoCluster { told })
    }

    fn now(&self) -> Timestamp {
        (self.now)()
    }
}

/// How a command ended; an error is the third way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Fine,
    /// Something would roll.
    WouldRoll,
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::WouldRoll => 2,
        }
    }
}

/// Where a command writes.
pub type Out<'a> = &'a mut (dyn Write + Send);

/// Carries a command out.
pub async fn run(flags: &Flags, surroundings: &Surroundings, out: Out<'_>) -> Result<Exit, Error> {
    let scope = Scope::of(&flags.place, &surroundings.namespace);
    match &flags.command {
        Command::Status(flags) => status::run(flags, &scope, surroundings, out).await?,
        Command::Diff(flags) => difference::run(flags, &scope, surroundings, out).await?,
        Command::Preview(flags) => {
            return Box::pin(preview::run(flags, &scope, surroundings, out)).await;
        }
        Command::Approve(flags) => consent::approve(flags, &scope, surroundings, out).await?,
        Command::Pause(named) => consent::pause(named, true, &scope, surroundings, out).await?,
        Command::Resume(named) => consent::pause(named, false, &scope, surroundings, out).await?,
        Command::Handover(flags) => handover::run(flags, &scope, surroundings, out).await?,
        Command::Explain(flags) => explain::run(flags, out)?,
    }
    Ok(Exit::Fine)
}

fn write(out: Out<'_>, text: &str) -> Result<(), Error> {
    out.write_all(text.as_bytes()).map_err(|source| Error::Output { source })
}

/// Writes the text, or the record behind it.
fn show(
    out: Out<'_>,
    output: Output,
    record: &impl Serialize,
    text: impl FnOnce() -> String,
) -> Result<(), Error> {
    match output {
        Output::Text => write(out, &text()),
        Output::Json => write(out, &format!("{}\n", json(record))),
    }
}

fn json(record: &impl Serialize) -> String {
    serde_json::to_string_pretty(record).expect("records of ours have string keys")
}
