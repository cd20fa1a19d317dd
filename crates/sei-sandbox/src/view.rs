//! The live table: every node, what happens to it and why.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt as _;
use sei_api::condition::{self, ConditionType, Reason};
use sei_api::status::{SeiNodePhase, SeiNodeStatus};
use sei_plan::summary::summarize;

use crate::fleet::Member;

/// A live table on a terminal, plain lines elsewhere.
pub(crate) struct View {
    is_terminal: bool,
    uses_color: bool,
    /// Lines of the table on the terminal.
    drawn: usize,
    /// The last text of each node, and since when it is unchanged.
    printed: BTreeMap<String, (String, Instant)>,
    began: Instant,
    /// How long each step is shown.
    pub(crate) pace: Duration,
}

/// The columns of one node.
struct Row {
    name: String,
    phase: String,
    image: String,
    ready: &'static str,
    task: String,
    reason: String,
}

impl View {
    pub(crate) fn new(pace: Duration) -> Self {
        Self {
            is_terminal: std::io::stdout().is_terminal(),
            uses_color: std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
            drawn: 0,
            printed: BTreeMap::new(),
            began: Instant::now(),
            pace,
        }
    }

    /// Prints a heading above the table.
    pub(crate) fn heading(&mut self, text: &str) {
        println!("\n{text}");
        self.drawn = 0;
    }

    /// Shows the fleet; `done` of its nodes have completed the current step.
    pub(crate) fn show(&mut self, members: &[Member], done: usize) {
        let rows: Vec<Row> = members.iter().map(row).collect();
        let mut changed = Vec::new();
        for row in &rows {
            let text =
                format!("{} {} {} {} {}", row.phase, row.image, row.ready, row.task, row.reason);
            let printed = self.printed.get(&row.name);
            if printed.is_none_or(|(before, _)| *before != text) {
                changed.push(format!("{:<12} {}", row.name, text.trim_end()));
                self.printed.insert(row.name.clone(), (text, Instant::now()));
            }
        }
        if self.is_terminal {
            self.draw(&rows, done);
        } else {
            let seconds = self.began.elapsed().as_secs_f64();
            for line in &changed {
                println!("{seconds:7.1} s  {line}");
            }
        }
    }

    fn draw(&mut self, rows: &[Row], done: usize) {
        if self.drawn > 0 {
            print!("\x1b[{}A\x1b[J", self.drawn);
        }
        // A line that wraps would be left on the terminal by the next redraw.
        let width = terminal_width().saturating_sub(BESIDE_REASON).max(REASON_MIN);
        println!(
            "{:<12} {:<13} {:<8} {:<6} {:<20} {:<width$} SINCE",
            "NODE", "PHASE", "IMAGE", "READY", "TASK", "REASON"
        );
        for row in rows {
            let since =
                self.printed.get(&row.name).map_or(0, |(_, since)| since.elapsed().as_secs());
            let reason: String = row.reason.chars().take(width).collect();
            let line = format!(
                "{:<12} {:<13} {:<8} {:<6} {:<20} {reason:<width$} {since} s",
                row.name, row.phase, row.image, row.ready, row.task
            );
            println!("{}", if self.uses_color { colored(row, &line) } else { line });
        }
        let total = rows.len().max(1);
        let filled = done * 40 / total;
        println!("[{}{}] {done} of {total}", "#".repeat(filled), ".".repeat(40 - filled));
        // A closed terminal cannot be repaired here.
        let _ = std::io::stdout().flush();
        self.drawn = rows.len() + 2;
    }
}

/// The line of a node that is Ready in green, of one that is down in red, and of one that has a task
/// in yellow.
fn colored(row: &Row, line: &str) -> String {
    let color = match (row.task.as_str(), row.ready) {
        ("-", "yes") => 32,
        ("-", _) => 31,
        _ => 33,
    };
    format!("\x1b[{color}m{line}\x1b[0m")
}

/// Characters of a line of the table without the reason.
const BESIDE_REASON: usize = 72;
const REASON_MIN: usize = 20;

/// By `stty`: a call of the system would need unsafe code or another dependency.
fn terminal_width() -> usize {
    let size = std::fs::File::open("/dev/tty").ok().and_then(|terminal| {
        Command::new("stty").arg("size").stdin(terminal).stderr(Stdio::null()).output().ok()
    });
    let text = size.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let width = text.as_deref().and_then(|text| text.trim().split_once(' ')?.1.parse().ok());
    width.filter(|width| *width > 0).unwrap_or(120)
}

fn row(member: &Member) -> Row {
    let summary = summarize(&member.node, Timestamp::now());
    let status = member.node.status.clone().unwrap_or_default();
    let is_ready = member.pod.as_ref().is_some_and(|pod| pod.ready);
    let reason = if summary.why.is_empty() { reason(&status, is_ready) } else { summary.why };
    Row {
        name: member.node.name_any(),
        phase: status.phase.map(|phase| phase.as_str().to_owned()).unwrap_or_default(),
        image: status.current_image.as_deref().map_or("-", tag).to_owned(),
        ready: if is_ready { "yes" } else { "no" },
        task: summary.task.map_or_else(|| "-".to_owned(), |task| task.name),
        reason,
    }
}

/// The reason of `Ready` while the pod is not, otherwise that of the drift. A pod is seen before the
/// condition that reports it.
fn reason(status: &SeiNodeStatus, is_ready: bool) -> String {
    let find = |kind| condition::find(&status.conditions, kind);
    let drift = find(ConditionType::PodTemplateDrift).map(|drift| drift.reason.clone());
    if is_ready || status.phase != Some(SeiNodePhase::Running) {
        return drift.unwrap_or_default();
    }
    let ready = find(ConditionType::Ready).filter(|ready| ready.status == "False");
    ready.map_or_else(|| Reason::PodNotReady.as_str().to_owned(), |ready| ready.reason.clone())
}

fn tag(image: &str) -> &str {
    image.rsplit(':').next().unwrap_or(image)
}
