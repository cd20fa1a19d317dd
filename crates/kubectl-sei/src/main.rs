//! `kubectl sei`: parses the flags, connects to the cluster if the command needs one, and runs it.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser as _;
use kubectl_sei::flags::Flags;
use kubectl_sei::{CommandContext, Error, Exit, Terminal, connect, printable, run, uses_color};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|command| command == "__complete") {
        // What follows is completed, and not parsed.
        arguments.insert(2, "--".into());
    }
    let flags = match Flags::try_parse_from(arguments) {
        Ok(flags) => flags,
        Err(error) => return print_usage(&error),
    };
    let mut server = None;
    match connect_and_run(&flags, &mut server).await {
        Ok(exit) => ExitCode::from(exit.code()),
        // The reader of the output has closed it, which is no failure.
        Err(Error::Output { source }) if source.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            let text = sei_exec::call::chain(&error);
            let text = match (&error, server) {
                (Error::Unreachable { .. }, Some(server)) => format!("API server {server}: {text}"),
                _ => text,
            };
            eprintln!("error: {}", printable(&text));
            ExitCode::from(flags.command.failure_code())
        }
    }
}

/// Runs the command. `server` becomes the address of the API server, for messages.
async fn connect_and_run(flags: &Flags, server: &mut Option<String>) -> Result<Exit, Error> {
    let terminal = Terminal::of_stdout();
    let uses_color = uses_color(flags.cluster.color, terminal);
    let mut context = CommandContext { terminal, uses_color, ..CommandContext::default() };
    if flags.command.needs_cluster() {
        let connection = connect(&flags.cluster).await?;
        context.client = Some(connection.client);
        context.namespace = connection.namespace;
        *server = Some(connection.server);
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
/// exit code of `preview` when something would roll; with 2 where 1 means a difference or trouble.
fn print_usage(error: &clap::Error) -> ExitCode {
    // A closed terminal cannot be repaired here.
    let _ = error.print();
    let checks = ["diff", "rollout", "--check"];
    let is_check = std::env::args().any(|argument| checks.contains(&argument.as_str()));
    match (error.use_stderr(), is_check) {
        (false, _) => ExitCode::SUCCESS,
        (true, false) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(2),
    }
}
