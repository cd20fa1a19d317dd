//! `kubectl sei`: parses the flags, connects to the cluster if the command needs one, and runs it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use kubectl_sei::flags::Flags;
use kubectl_sei::{CommandContext, Error, Exit, connect, printable, run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let flags = match Flags::try_parse() {
        Ok(flags) => flags,
        Err(error) => return print_usage(&error),
    };
    match connect_and_run(&flags).await {
        Ok(exit) => ExitCode::from(exit.code()),
        // The reader of the output has closed it, which is no failure.
        Err(Error::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {}", printable(&sei_exec::call::chain(&error)));
            ExitCode::FAILURE
        }
    }
}

async fn connect_and_run(flags: &Flags) -> Result<Exit, Error> {
    let mut context = CommandContext::default();
    if flags.command.needs_cluster() {
        let (client, namespace) = connect(&flags.cluster).await?;
        context.client = Some(client);
        context.namespace = namespace;
    }
    let mut out = io::stdout();
    let exit = run(flags, &context, &mut out).await?;
    match out.flush() {
        // A closed output is no failure, and the exit code still counts.
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => Err(Error::Output { source }),
        _ => Ok(exit),
    }
}

/// Help and version succeed. Everything else fails with 1 instead of clap's 2, because 2 is the
/// exit code of `preview` when something would roll.
fn print_usage(error: &clap::Error) -> ExitCode {
    // A closed terminal cannot be repaired here.
    let _ = error.print();
    if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
