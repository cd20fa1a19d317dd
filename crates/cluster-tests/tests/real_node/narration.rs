//! Lines about every node, for a person who watches a story: `cargo xtask sandbox --real`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use sei_api::SeiNode;
use sei_api::condition::ConditionType;
use sei_api::status::SeiNodePhase;
use sei_plan::summary::summarize;
use tokio::time::Instant;

use cluster_tests::scenario::condition_text;

/// How often the nodes are read.
const INTERVAL: Duration = Duration::from_millis(500);

/// Whether a person watches the stories.
pub(crate) fn is_on() -> bool {
    std::env::var_os("SEI_NARRATE").is_some()
}

/// Prints a line for each change of a node, until it is aborted.
pub(crate) async fn narrate(nodes: Api<SeiNode>, started: Instant) {
    let mut printed: BTreeMap<String, String> = BTreeMap::new();
    loop {
        // A server that does not answer is asked again.
        let listed = nodes.list(&ListParams::default()).await;
        for node in listed.into_iter().flat_map(|list| list.items) {
            let (name, text) = (node.name_any(), line(&node));
            if printed.get(&name) != Some(&text) {
                let elapsed = started.elapsed().as_secs_f64();
                eprintln!("  {elapsed:6.1} s    {name:<8} {}", text.trim_end());
                printed.insert(name, text);
            }
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Phase, image, readiness, task and reason of a node, as in the sandbox.
fn line(node: &SeiNode) -> String {
    let summary = summarize(node, Timestamp::now());
    let status = node.status.clone().unwrap_or_default();
    let phase = status.phase.map(SeiNodePhase::as_str).unwrap_or_default();
    let image = status.current_image.as_deref().and_then(|image| image.rsplit(':').next());
    let is_ready = condition_text(&status, ConditionType::Ready).starts_with("True");
    let ready = if is_ready { "Ready" } else { "not Ready" };
    let task = summary.task.map_or_else(|| "-".to_owned(), |task| task.name);
    format!("{phase:<12} {:<7} {ready:<9} {task:<18} {}", image.unwrap_or("-"), summary.why)
}
