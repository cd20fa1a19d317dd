//! The figures as tables and as a picture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use crate::phases::Figures;

/// The figures of one operator with one number of nodes.
pub(crate) struct Run {
    pub(crate) operator: String,
    pub(crate) nodes: usize,
    pub(crate) phases: Vec<Figures>,
    pub(crate) floor: Figures,
}

impl Run {
    fn phase(&self, name: &str) -> Option<&Figures> {
        self.phases.iter().find(|figures| figures.phase == name)
    }
}

const HEADINGS: [&str; 11] = [
    "phase",
    "nodes",
    "wall s",
    "× floor",
    "p50 s",
    "p95 s",
    "CPU ms/node",
    "peak MB",
    "requests",
    "requests/node",
    "pods deleted",
];

/// One table for each run, with ratios to the first operator where there are several.
pub(crate) fn markdown(runs: &[Run]) -> String {
    let mut text = String::new();
    for run in runs {
        let _ = writeln!(text, "\n### {}, {} nodes\n", run.operator, run.nodes);
        let _ = writeln!(text, "| {} |", HEADINGS.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(HEADINGS.len() - 1));
        for figures in run.phases.iter().chain([&run.floor]) {
            let _ = writeln!(text, "| {} |", cells(run, figures).join(" | "));
        }
        if let Some(rest) = run.phase("rest") {
            let _ = writeln!(text, "\n{}", at_rest(rest));
        }
        let first = runs.iter().find(|earlier| earlier.nodes == run.nodes);
        if let Some(first) = first.filter(|first| first.operator != run.operator) {
            let _ = writeln!(text, "\n{}", ratios(run, first));
        }
        text.push_str("\nRequests by verb and resource:\n\n");
        for figures in run.phases.iter().filter(|figures| !figures.requests.is_empty()) {
            let _ = writeln!(text, "- {}: {}", figures.phase, kinds(figures));
        }
    }
    if runs.len() > 1 {
        text.push_str(&growth(runs));
    }
    text
}

#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn cells(run: &Run, figures: &Figures) -> Vec<String> {
    let nodes = figures.nodes.max(1) as f64;
    let seconds = |time: Option<&Duration>| {
        time.map_or_else(String::new, |time| format!("{:.2}", time.as_secs_f64()))
    };
    let is_update = figures.phase.starts_with("image update");
    let ratio = figures.wall.as_secs_f64() / run.floor.wall.as_secs_f64();
    let is_floor = figures.phase == "floor";
    let own = |text: String| if is_floor { String::new() } else { text };
    vec![
        figures.phase.to_owned(),
        figures.nodes.to_string(),
        format!("{:.1}", figures.wall.as_secs_f64()),
        if is_update { format!("{ratio:.2}") } else { String::new() },
        seconds(percentile(&figures.times, 50)),
        seconds(percentile(&figures.times, 95)),
        own(format!("{:.1}", figures.cpu.total() as f64 / nodes)),
        own(format!("{:.1}", figures.memory as f64 / 1000.0)),
        own(figures.requests.len().to_string()),
        own(format!("{:.1}", figures.requests.len() as f64 / nodes)),
        figures.deleted_pods.to_string(),
    ]
}

/// The CPU time of a fleet at rest, whose chain is probed at the default interval.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn at_rest(rest: &Figures) -> String {
    let seconds = rest.wall.as_secs_f64();
    let percent = rest.cpu.total() as f64 / 10.0 / seconds;
    format!(
        "At rest, with the RPC of every node probed at the default interval, the operator used \
         {percent:.2} % of one core over {seconds:.0} s."
    )
}

fn percentile(times: &[Duration], percent: usize) -> Option<&Duration> {
    times.get((times.len().saturating_sub(1)) * percent / 100)
}

/// How an operator compares with the first one.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn ratios(run: &Run, first: &Run) -> String {
    let mut text = format!("Compared with {}: ", first.operator);
    let compared = run.phases.iter().filter_map(|figures| {
        let reference = first.phase(figures.phase)?;
        let ratio = |now: f64, before: f64| if before > 0.0 { now / before } else { f64::NAN };
        Some(format!(
            "{}: {:.2} × wall, {:.2} × CPU, {:.2} × requests",
            figures.phase,
            ratio(figures.wall.as_secs_f64(), reference.wall.as_secs_f64()),
            ratio(figures.cpu.total() as f64, reference.cpu.total() as f64),
            ratio(figures.requests.len() as f64, reference.requests.len() as f64),
        ))
    });
    text.push_str(&compared.collect::<Vec<_>>().join("; "));
    text
}

fn kinds(figures: &Figures) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for entry in &figures.requests {
        let subresource = entry.subresource.as_ref().map(|name| format!("/{name}"));
        let kind = format!("{} {}{}", entry.verb, entry.resource, subresource.unwrap_or_default());
        *kinds.entry(kind).or_default() += 1;
    }
    let kinds = kinds.iter().map(|(kind, count)| format!("{count} {kind}"));
    kinds.collect::<Vec<_>>().join(", ")
}

/// What a node costs as the fleet grows.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
fn growth(runs: &[Run]) -> String {
    let mut text = "\n### Growth\n\n| operator | nodes | image update s | × floor | CPU ms/node | peak MB | kB/node since the row above |\n|---|---:|---:|---:|---:|---:|---:|\n".to_owned();
    let mut before: Option<(&Run, u64)> = None;
    for run in runs {
        let Some(update) = run.phase(IMAGE_UPDATE) else { continue };
        let memory = run.phases.iter().map(|figures| figures.memory).max().unwrap_or_default();
        let slope = before
            .filter(|(last, _)| last.operator == run.operator && last.nodes < run.nodes)
            .map_or(String::new(), |(last, before)| {
                let more = memory as f64 - before as f64;
                format!("{:.1}", more / (run.nodes - last.nodes) as f64)
            });
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} | {:.2} | {:.1} | {:.1} | {slope} |",
            run.operator,
            run.nodes,
            update.wall.as_secs_f64(),
            update.wall.as_secs_f64() / run.floor.wall.as_secs_f64(),
            update.cpu.total() as f64 / run.nodes as f64,
            memory as f64 / 1000.0,
        );
        before = Some((run, memory));
    }
    text
}

pub(crate) const IMAGE_UPDATE: &str = "image update";

/// CPU time of a node's image update as the fleet grows, one line for each operator.
#[allow(clippy::cast_precision_loss, reason = "figures for people")]
pub(crate) fn plot(runs: &[Run]) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 320.0;
    const MARGIN: f64 = 60.0;
    let cost = |run: &Run| {
        let update = run.phase(IMAGE_UPDATE)?;
        Some((run.nodes as f64, update.cpu.total() as f64 / run.nodes as f64))
    };
    let points: Vec<(&str, (f64, f64))> =
        runs.iter().filter_map(|run| Some((run.operator.as_str(), cost(run)?))).collect();
    let most = |pick: fn(&(f64, f64)) -> f64| {
        points.iter().map(|(_, point)| pick(point)).fold(1.0_f64, f64::max)
    };
    let (nodes_max, cost_max) = (most(|point| point.0), most(|point| point.1));
    let place = |(nodes, cost): (f64, f64)| {
        let x = MARGIN + nodes / nodes_max * (WIDTH - 2.0 * MARGIN);
        let y = HEIGHT - MARGIN - cost / cost_max * (HEIGHT - 2.0 * MARGIN);
        (x, y)
    };
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for (operator, point) in points {
        lines.entry(operator).or_default().push(point);
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<text x=\"{MARGIN}\" y=\"24\">CPU ms per node of \
         an image update, by number of nodes</text>\n"
    );
    for (index, (operator, points)) in lines.iter().enumerate() {
        let colour = ["#1f6feb", "#d1242f", "#1a7f37", "#9a6700"][index % 4];
        let path: Vec<String> = points
            .iter()
            .map(|point| place(*point))
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{}\"/>",
            path.join(" ")
        );
        for point in points {
            let (x, y) = place(*point);
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}: {:.1}</text>",
                x - 20.0,
                y - 8.0,
                point.0,
                point.1
            );
        }
        let y = HEIGHT - 12.0 - 16.0 * index as f64;
        let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{y}\" fill=\"{colour}\">{operator}</text>");
    }
    svg.push_str("</svg>\n");
    svg
}
