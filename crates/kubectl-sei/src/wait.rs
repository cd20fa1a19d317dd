//! `kubectl sei wait`: wait until nodes are Ready and in sync.

use std::collections::BTreeSet;

use crate::cluster::{Key, Scope, some_nodes};
use crate::error::Error;
use crate::flags::{WaitFlags, WaitFor};
use crate::fleet::LiveFleet;
use crate::status::{Row, rows};
use crate::{CommandContext, Out, flush, write};

pub(crate) async fn run(
    flags: &WaitFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    // To wait for no node is a mistake in the selection.
    some_nodes(client, scope, &flags.selection).await?;
    let deadline = tokio::time::Instant::now() + flags.timeout;
    let mut live = LiveFleet::start(client, scope, &flags.selection).await?;
    let mut reached: BTreeSet<Key> = BTreeSet::new();
    loop {
        let rows = rows(&live.fleet, context.now());
        let (done, open): (Vec<&Row>, Vec<&Row>) =
            rows.iter().partition(|row| is_reached(row, flags.state));
        for row in &done {
            if reached.insert(row.key()) {
                write(out, &format!("{}: {}\n", row.name(), text(flags.state)))?;
                flush(out)?;
            }
        }
        // A node may leave the state again before the others reach it.
        reached.retain(|key| done.iter().any(|row| row.key() == *key));
        if open.is_empty() {
            return Ok(());
        }
        let changed = tokio::time::timeout_at(deadline, live.changed()).await;
        changed.unwrap_or_else(|_| {
            let nodes = open.iter().map(|row| row.describe()).collect::<Vec<_>>().join("; ");
            Err(Error::TimedOut { seconds: flags.timeout.as_secs(), nodes })
        })?;
    }
}

fn is_reached(row: &Row, state: Option<WaitFor>) -> bool {
    match state {
        Some(WaitFor::Ready) => row.is_ready(),
        Some(WaitFor::InSync) => row.is_in_sync(),
        None => row.is_ready() && row.is_in_sync(),
    }
}

fn text(state: Option<WaitFor>) -> &'static str {
    match state {
        Some(WaitFor::Ready) => "Ready",
        Some(WaitFor::InSync) => "in sync",
        None => "Ready and in sync",
    }
}
