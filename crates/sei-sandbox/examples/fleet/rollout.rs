//! The rollout of one `SeiNodeDeployment`: how busy the slots of its limit are, as a number and as a
//! picture.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use kube::api::{Api, Patch, PatchParams, PostParams};
use sei_api::SeiNodeDeployment;
use sei_api::names::fleet_node;
use serde_json::json;

use crate::phases::{Bench, NAMESPACE, WITHIN};

const NAME: &str = "fleet";

/// How often the nodes are compared with what is expected. An update takes seconds.
const CHECK: Duration = Duration::from_millis(20);

/// When a node got the template and when it was healthy, since the change of the template.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) released: Option<Duration>,
    pub(crate) healthy: Option<Duration>,
}

/// A rollout, node by node.
pub(crate) struct Rollout {
    /// How many nodes it may have down at once.
    pub(crate) slots: usize,
    pub(crate) nodes: Vec<Span>,
    pub(crate) wall: Duration,
}

impl Rollout {
    /// The part of the slots' time in which a node used them, from the first release to the last. After
    /// the last there is no node left for a free slot.
    #[allow(clippy::cast_precision_loss, reason = "figures for people")]
    pub(crate) fn slot_use(&self) -> f64 {
        let released = || self.nodes.iter().filter_map(|span| span.released);
        let (Some(first), Some(last)) = (released().min(), released().max()) else { return 0.0 };
        let busy: Duration = self
            .nodes
            .iter()
            .filter_map(|span| Some(span.healthy?.min(last).saturating_sub(span.released?)))
            .sum();
        let offered = last.saturating_sub(first).as_secs_f64() * self.slots as f64;
        if offered > 0.0 { busy.as_secs_f64() / offered } else { 1.0 }
    }

    /// The most nodes that had the template and were not healthy at once.
    pub(crate) fn most_at_once(&self) -> usize {
        let is_between = |at: Duration, span: &&Span| {
            span.released.is_some_and(|released| released <= at)
                && span.healthy.is_none_or(|healthy| healthy > at)
        };
        let starts = self.nodes.iter().filter_map(|span| span.released);
        let counts = starts.map(|at| self.nodes.iter().filter(|it| is_between(at, it)).count());
        counts.max().unwrap_or(0)
    }

    pub(crate) fn summary(&self) -> String {
        format!(
            "rollout: {} nodes, {} slots, {:.0} % of their time used, at most {} nodes at once, {:.1} s",
            self.nodes.len(),
            self.slots,
            100.0 * self.slot_use(),
            self.most_at_once(),
            self.wall.as_secs_f64(),
        )
    }

    /// One bar for each node, from its release until it is healthy.
    #[allow(clippy::cast_precision_loss, reason = "a picture")]
    pub(crate) fn picture(&self) -> String {
        const WIDTH: f64 = 720.0;
        const LEFT: f64 = 80.0;
        const TOP: f64 = 40.0;
        let row = if self.nodes.len() > 40 { 5.0 } else { 12.0 };
        let height = TOP + row * self.nodes.len() as f64 + 40.0;
        let wall = self.wall.as_secs_f64().max(0.1);
        let x = |time: Duration| LEFT + time.as_secs_f64() / wall * (WIDTH - LEFT - 20.0);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"22\">A rollout to {} nodes with maxUnavailable: {}. A bar is the time \
             from the template until the node is healthy.</text>\n",
            self.nodes.len(),
            self.slots,
        );
        let label_every = if row > 10.0 { 1 } else { 10 };
        for (ordinal, span) in self.nodes.iter().enumerate() {
            let y = TOP + row * ordinal as f64;
            if ordinal.is_multiple_of(label_every) {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                    LEFT - 8.0,
                    y + row - 1.0,
                    fleet_node(NAME, ordinal)
                );
            }
            let (Some(released), Some(healthy)) = (span.released, span.healthy) else { continue };
            let _ = writeln!(
                svg,
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#1f6feb\"/>",
                x(released),
                (x(healthy) - x(released)).max(1.0),
                row - 1.5,
            );
        }
        let step = (wall / 8.0).ceil().max(1.0);
        let mut at = 0.0;
        while at <= wall {
            let (x, y) = (x(Duration::from_secs_f64(at)), height - 16.0);
            let _ = writeln!(
                svg,
                "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#d0d7de\"/>\
                 <text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{at:.0} s</text>",
                y - 14.0
            );
            at += step;
        }
        svg.push_str("</svg>\n");
        svg
    }
}

impl Bench {
    /// Creates a fleet, waits until it is Ready, and changes its image.
    pub(crate) async fn roll_out(&self, slots: usize) -> Result<Rollout> {
        let fleets: Api<SeiNodeDeployment> = Api::namespaced(self.admin().clone(), NAMESPACE);
        let fleet = serde_json::from_value(json!({
            "apiVersion": "sei.io/v1alpha1", "kind": "SeiNodeDeployment",
            "metadata": { "name": NAME },
            "spec": {
                "replicas": self.nodes(),
                "updateStrategy": { "type": "InPlace", "inPlace": { "maxUnavailable": slots } },
                "template": {
                    "spec": { "chainId": "bench-1", "image": "seid:v1", "fullNode": {} },
                },
            },
        }))?;
        println!("  create ...");
        fleets.create(&PostParams::default(), &fleet).await?;
        let ready = |fleet: &SeiNodeDeployment| {
            let status = fleet.status.as_ref();
            let mut conditions = status.iter().flat_map(|status| &status.conditions);
            conditions.any(|it| it.type_ == "Ready" && it.status == "True")
        };
        let deadline = Instant::now() + WITHIN;
        while !ready(&fleets.get(NAME).await?) {
            anyhow::ensure!(Instant::now() < deadline, "the fleet is not Ready");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        println!("  rollout ...");
        let image = "seid:v2";
        let template = json!({ "spec": { "template": { "spec": { "image": image } } } });
        fleets.patch(NAME, &PatchParams::default(), &Patch::Merge(&template)).await?;
        let nodes = self.record(image).await.context("the rollout does not end")?;
        let wall = nodes.iter().filter_map(|span| span.healthy).max().unwrap_or_default();
        Ok(Rollout { slots, nodes, wall })
    }

    /// When each node got the image, and when it was healthy with it.
    async fn record(&self, image: &str) -> Result<Vec<Span>> {
        let begun = Instant::now();
        let mut nodes = vec![Span::default(); self.nodes()];
        while nodes.iter().any(|span| span.healthy.is_none()) {
            anyhow::ensure!(begun.elapsed() < WITHIN, "{} s", WITHIN.as_secs());
            for (ordinal, span) in nodes.iter_mut().enumerate() {
                let seen = self.observer().seen(&fleet_node(NAME, ordinal));
                let now = begun.elapsed();
                if seen.image.as_deref() == Some(image) {
                    span.released.get_or_insert(now);
                }
                let runs = seen.current_image.as_deref() == Some(image);
                if span.released.is_some() && runs && seen.is_settled && seen.is_ready {
                    span.healthy.get_or_insert(now);
                }
            }
            tokio::time::sleep(CHECK).await;
        }
        Ok(nodes)
    }
}
