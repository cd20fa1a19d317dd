//! `kubectl sei logs`: the log of a container of a node.

use futures::AsyncBufReadExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt as _};
use sei_api::names;
use sei_exec::call::{call, find};
use sei_plan::request::Failure;

use crate::cluster::{Scope, node};
use crate::error::{Error, call_error};
use crate::flags::LogsFlags;
use crate::{CommandContext, Out, flush, write};

pub(crate) async fn run(
    flags: &LogsFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<(), Error> {
    let client = context.client()?;
    let node = node(client, scope, &flags.node).await?;
    let namespace = node.namespace().unwrap_or_default();
    let pod = names::pod(&node.name_any());
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let params = LogParams {
        container: Some(flags.container.clone()),
        follow: flags.follow,
        previous: flags.previous,
        tail_lines: flags.tail.map(i64::from),
        ..LogParams::default()
    };
    let action = format!("read the log of pod {namespace}/{pod}");
    let log = match call(&action, pods.log_stream(&pod, &params)).await {
        Ok(log) => log,
        Err(Failure::NotFound(_)) => {
            let found = find("get pod", pods.get(&pod)).await;
            let found = found.map_err(|failure| call_error("get pod", failure))?;
            let message = match found {
                None => format!("pod {namespace}/{pod} not found; see kubectl sei status"),
                // The server asks the kubelet of the pod's machine.
                Some(_) => format!("{action}: the server has none; its machine may be unavailable"),
            };
            return Err(Error::Call { message });
        }
        Err(failure) => return Err(call_error(&action, failure)),
    };
    let mut log = std::pin::pin!(log);
    let mut line = Vec::new();
    let broken =
        |error: std::io::Error| Error::Unreachable { message: format!("{action}: {error}") };
    // A program may write bytes that are no text.
    while log.read_until(b'\n', &mut line).await.map_err(broken)? > 0 {
        write(out, &without_colours(&String::from_utf8_lossy(&line)))?;
        flush(out)?;
        line.clear();
    }
    Ok(())
}

/// The line without the sequences with which programs colour their logs. Other control characters
/// are escaped when the line is written.
fn without_colours(line: &str) -> String {
    let mut parts = line.split("\u{1b}[");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let codes = part.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';');
        match codes.strip_prefix('m') {
            Some(rest) => text.push_str(rest),
            None => text.extend(["\u{1b}[", part]),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_of_a_log_are_removed_and_nothing_else() {
        assert_eq!(
            without_colours("\u{1b}[90m8:00\u{1b}[0m \u{1b}[1;32mINF\u{1b}[m ok"),
            "8:00 INF ok"
        );
        assert_eq!(without_colours("\u{1b}[2Jx"), "\u{1b}[2Jx");
        assert_eq!(without_colours("plain [0m"), "plain [0m");
    }
}
