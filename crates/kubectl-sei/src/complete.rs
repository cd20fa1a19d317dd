//! `kubectl sei completion`: completions by the convention of kubectl.
//!
//! kubectl runs the program `kubectl_complete-sei` with the arguments of the command line. It prints one
//! completion in a line, and at last a colon with a directive.

use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use kube::ResourceExt as _;
use sei_api::SeiNodeDeployment;
use sei_api::condition::Reason;

use crate::cluster::{Key, Scope, all_nodes, connect, key_of};
use crate::error::Error;
use crate::flags::{CompleteFlags, Flags};
use crate::{Out, write};

const SCRIPT: &str = "\
#!/bin/sh
# Completions of kubectl sei. Write this to a file kubectl_complete-sei on the PATH:
#   kubectl sei completion >~/.local/bin/kubectl_complete-sei
#   chmod +x ~/.local/bin/kubectl_complete-sei
exec kubectl-sei __complete \"$@\"
";

/// The shell must not complete file names after the printed arguments.
const NO_FILES: &str = ":4";
/// The shell completes as it would without us.
const DEFAULT: &str = ":0";

/// A completion that takes longer is worse than none.
const PATIENCE: Duration = Duration::from_secs(3);

pub(crate) fn script(out: Out<'_>) -> Result<(), Error> {
    write(out, SCRIPT)
}

pub(crate) async fn run(flags: &CompleteFlags, out: Out<'_>) -> Result<(), Error> {
    let (last, before) = match flags.arguments.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let (mut arguments, directive) = match completion(before, last) {
        Completion::Candidates(arguments) => (arguments, NO_FILES),
        Completion::Files => (Vec::new(), DEFAULT),
        kind @ (Completion::Nodes | Completion::Fleets) => {
            let names = tokio::time::timeout(PATIENCE, names(before, &kind)).await;
            (names.ok().flatten().unwrap_or_default(), NO_FILES)
        }
    };
    arguments.retain(|word| word.starts_with(last));
    arguments.sort_unstable();
    arguments.dedup();
    arguments.push(directive.to_owned());
    write(out, &format!("{}\n", arguments.join("\n")))
}

/// What completes the last word.
#[derive(Debug, PartialEq, Eq)]
enum Completion {
    Candidates(Vec<String>),
    Nodes,
    Fleets,
    Files,
}

fn completion(before: &[String], last: &str) -> Completion {
    let mut command = Flags::command();
    command.build();
    let mut is_value = false;
    for word in before {
        if is_value {
            is_value = false;
        } else if word.starts_with('-') {
            is_value = !word.contains('=') && takes_value(&command, word);
        } else if let Some(next) = command.find_subcommand(word) {
            command = next.clone();
        }
    }
    if is_value {
        let flag = before.last().map(String::as_str).unwrap_or_default();
        return values(&command, flag);
    }
    if last.starts_with('-') {
        let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
        return Completion::Candidates(
            flags.filter_map(|flag| flag.get_long()).map(|long| format!("--{long}")).collect(),
        );
    }
    let subcommands: Vec<String> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    match command.get_name() {
        _ if !subcommands.is_empty() => Completion::Candidates(subcommands),
        "status" | "pause" | "resume" | "undo" if before.iter().any(|word| word == "rollout") => {
            Completion::Fleets
        }
        "explain" => Completion::Candidates(
            Reason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect(),
        ),
        _ if command.get_positionals().next().is_some() => Completion::Nodes,
        _ => Completion::Candidates(Vec::new()),
    }
}

fn argument<'a>(command: &'a clap::Command, flag: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let is_long = flag.strip_prefix("--").is_some_and(|long| argument.get_long() == Some(long));
        let short = flag.strip_prefix('-').filter(|short| short.chars().count() == 1);
        is_long || short.is_some_and(|short| argument.get_short() == short.chars().next())
    })
}

fn takes_value(command: &clap::Command, flag: &str) -> bool {
    argument(command, flag).is_some_and(|argument| {
        argument.get_action().takes_values() && !argument.is_require_equals_set()
    })
}

fn values(command: &clap::Command, flag: &str) -> Completion {
    let possible = argument(command, flag).map(clap::Arg::get_possible_values).unwrap_or_default();
    if possible.is_empty() {
        return Completion::Files;
    }
    Completion::Candidates(possible.iter().map(|value| value.get_name().to_owned()).collect())
}

/// The names of the nodes or fleets that the command line so far can mean.
async fn names(before: &[String], kind: &Completion) -> Option<Vec<String>> {
    // The flags of the cluster are in the arguments to complete. Commands that lack an argument do not
    // parse, and `status` accepts all of these flags.
    let flags = cluster_arguments(before);
    let parsed = Flags::try_parse_from(["kubectl-sei", "status"].into_iter().chain(flags));
    let cluster = parsed.ok()?.cluster;
    let connection = connect(&cluster).await.ok()?;
    let scope = Scope::of(&cluster, &connection.namespace);
    let client = &connection.client;
    let keys: Vec<Key> = if *kind == Completion::Fleets {
        let fleets = scope.list::<SeiNodeDeployment>(client, "list fleets", "");
        let key =
            |fleet: &SeiNodeDeployment| (fleet.namespace().unwrap_or_default(), fleet.name_any());
        fleets.await.ok()?.iter().map(key).collect()
    } else {
        all_nodes(client, &scope).await.ok()?.iter().map(key_of).collect()
    };
    let name = |(namespace, name): (String, String)| match scope {
        Scope::All => format!("{namespace}/{name}"),
        Scope::Namespace(_) => name,
    };
    Some(keys.into_iter().map(name).collect())
}

/// The arguments that choose the cluster and the namespace.
fn cluster_arguments(arguments: &[String]) -> Vec<&str> {
    let command = Flags::command();
    let mut chosen = Vec::new();
    let mut arguments = arguments.iter().map(String::as_str);
    while let Some(word) = arguments.next() {
        let flag = word.split('=').next().unwrap_or(word);
        if flag.starts_with('-') && argument(&command, flag).is_some() {
            chosen.push(word);
            if !word.contains('=') && takes_value(&command, flag) {
                chosen.extend(arguments.next());
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str) -> Completion {
        let mut arguments: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = arguments.pop().unwrap_or_default();
        completion(&arguments, &last)
    }

    #[test]
    fn commands_flags_values_and_nodes_are_completed() {
        let Completion::Candidates(commands) = check("") else { panic!("no commands") };
        assert!(commands.contains(&"status".to_owned()), "{commands:?}");
        assert!(!commands.contains(&"__complete".to_owned()), "{commands:?}");
        let Completion::Candidates(flags) = check("-n demo approve --") else { panic!("no flags") };
        assert!(flags.contains(&"--hash".to_owned()), "{flags:?}");
        assert!(flags.contains(&"--context".to_owned()), "{flags:?}");
        assert_eq!(check("set "), Completion::Candidates(vec!["image".into(), "help".into()]));
        let Completion::Candidates(formats) = check("status -o ") else { panic!("no values") };
        assert!(formats.contains(&"wide".to_owned()), "{formats:?}");
        assert_eq!(check("preview --config "), Completion::Files);
        for line in ["status ", "pause -n demo rp", "set image rpc-0 ", "logs -f "] {
            assert_eq!(check(line), Completion::Nodes, "{line}");
        }
        assert_eq!(check("rollout status -w "), Completion::Fleets);
        assert_eq!(check("rollout undo ed"), Completion::Fleets);
        assert!(
            matches!(check("explain Im"), Completion::Candidates(reasons) if reasons.len() > 20)
        );
    }

    #[test]
    fn the_cluster_is_that_of_the_command_line() {
        let arguments: Vec<String> =
            "approve -n demo --hash x a --context=c -A".split(' ').map(str::to_owned).collect();
        assert_eq!(cluster_arguments(&arguments), ["-n", "demo", "--context=c", "-A"]);
    }
}
