//! `kubectl sei`: reads its flags, reaches the cluster if the command needs one, and runs it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use kubectl_sei::flags::Flags;
use kubectl_sei::{Error, Exit, Surroundings, connect, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(told) => return refuse(&told),
    };
    match act(&flags).await {
        Ok(exit) => ExitCode::from(exit.code()),
        // Whoever read the output has seen enough.
        Err(Error::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", sei_exec::call::chain(&error));
            ExitCode::FAILURE
        }
    }
}

async fn act(flags: &Flags) -> Result<Exit, Error> {
    let mut surroundings = Surroundings::default();
    if flags.command.needs_cluster() {
        let (client, namespace) = connect(&flags.place).await?;
        surroundings.client = Some(client);
        surroundings.namespace = namespace;
    }
    let mut out = io::stdout();
    let exit = run(flags, &surroundings, &mut out).await?;
    match out.flush() {
        // As above, and what was found out counts.
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => Err(Error::Output { source }),
        _ => Ok(exit),
    }
}

/// Help and version are answers. Everything else is an error, and never the 2 of clap, which is
/// what `preview` says when something would roll.
fn refuse(told: &clap::Error) -> ExitCode {
    // Nothing to be done about a terminal that went away.
    let _ = told.print();
    if told.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
