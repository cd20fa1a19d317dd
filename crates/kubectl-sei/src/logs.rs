//! `kubectl sei logs`: the log of a container of a node.

use futures::{AsyncBufReadExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt as _};
use sei_api::names;
use sei_exec::call::call;
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
    let log =
        call(&action, pods.log_stream(&pod, &params)).await.map_err(|failure| match failure {
            Failure::NotFound => {
                let message = format!(
                    "pod {namespace}/{pod} not found; see kubectl sei status {}",
                    node.name_any()
                );
                Error::Call { message }
            }
            failure => call_error(&action, failure),
        })?;
    let mut lines = log.lines();
    let broken =
        |error: std::io::Error| Error::Unreachable { message: format!("{action}: {error}") };
    while let Some(line) = lines.try_next().await.map_err(broken)? {
        write(out, &format!("{}\n", without_colours(&line)))?;
        flush(out)?;
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
