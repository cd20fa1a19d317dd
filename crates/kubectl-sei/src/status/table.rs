//! The table of `status`.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{Row, State, fleets};
use crate::cluster::Scope;
use crate::error::one_line;
use crate::flags::{StatusFlags, StatusOutput};
use crate::fleet::Fleet;
use crate::format::{GAP, age, count, line, short_image, widths, wrap};
use crate::terminal::{Paint, Terminal, paint};
use crate::{CommandContext, printable};

/// A column for explanations is at least this wide; in a narrower one they get lines of their own.
const WHY_MIN: usize = 32;

/// Whether heights were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heights {
    Read,
    /// A watch does not read them: they would be requests for every redraw.
    NotRead,
}

/// How a table is printed.
#[derive(Clone)]
pub(super) struct View {
    pub(super) scope: Scope,
    pub(super) is_filtered: bool,
    pub(super) is_wide: bool,
    pub(super) heights: Heights,
    pub(super) uses_color: bool,
    pub(super) terminal: Option<Terminal>,
}

impl View {
    pub(super) fn of(
        flags: &StatusFlags,
        scope: &Scope,
        context: &CommandContext,
        terminal: Option<Terminal>,
    ) -> Self {
        let filter = &flags.selection.filter;
        Self {
            scope: scope.clone(),
            is_filtered: filter.selector.is_some() || filter.chain.is_some(),
            is_wide: flags.output == StatusOutput::Wide,
            heights: Heights::NotRead,
            uses_color: context.uses_color,
            terminal,
        }
    }

    pub(super) fn with_heights(self) -> Self {
        Self { heights: Heights::Read, ..self }
    }

    /// A line for each fleet, the table of nodes, trouble first, and a line that counts. Every
    /// character of it may be printed.
    pub(super) fn text(&self, fleet: &Fleet, rows: &[Row], now: Timestamp) -> String {
        fleets::text(fleet.shown_fleets(), rows, &self.scope, now) + &self.nodes(rows, now)
    }

    fn nodes(&self, rows: &[Row], now: Timestamp) -> String {
        if rows.is_empty() {
            let (matching, hint) = match (&self.scope, self.is_filtered) {
                (_, true) => ("matching ", ""),
                (Scope::Namespace(_), false) => ("", "; -A shows all namespaces"),
                (Scope::All, false) => ("", ""),
            };
            let text = format!("No {matching}SeiNode found in {}{hint}.\n", self.scope);
            return printable(&text).into_owned();
        }
        let mut rows: Vec<&Row> = rows.iter().collect();
        rows.sort_by_key(|row| (row.state, row.key()));
        let cells: Vec<Vec<String>> = rows.iter().map(|row| self.cells(row, now)).collect();
        let header = self.header();
        let mut columns = cells.clone();
        columns.push(header.clone());
        // The last column is as wide as its text, or as the terminal lets it be.
        let mut widths = widths(&columns);
        widths.pop();
        let mut text = paint(&line(&header, &widths), Paint::Bold, self.uses_color);
        for (row, cells) in rows.iter().zip(&cells) {
            text.push_str(&self.row(row, cells, &widths));
        }
        text.extend(["\n", &summary(&rows), "\n"]);
        text
    }

    pub(super) fn header(&self) -> Vec<String> {
        let namespace = (self.scope == Scope::All).then_some("NAMESPACE");
        let has_heights = self.heights == Heights::Read;
        let mut columns: Vec<&str> = namespace.into_iter().collect();
        columns.extend(["NODE", "CHAIN", "MODE", "PHASE", "READY"]);
        columns.extend(has_heights.then_some("HEIGHT"));
        columns.extend(["IMAGE", "UPDATE", "TASK", "SINCE"]);
        if self.is_wide {
            columns.extend(has_heights.then_some(["PEERS", "BLOCK AGE"]).into_iter().flatten());
            columns.extend(["REVISION", "WAITS FOR"]);
        }
        columns.push("WHY");
        columns.into_iter().map(str::to_owned).collect()
    }

    pub(super) fn cells(&self, row: &Row, now: Timestamp) -> Vec<String> {
        let cell = |text: Option<String>| {
            let text = text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".to_owned());
            printable(&one_line(&text)).into_owned()
        };
        let image = |image: &str| if self.is_wide { image.to_owned() } else { short_image(image) };
        let images = match (&row.image, &row.desired_image) {
            (Some(now), Some(desired)) => Some(format!("{} -> {}", image(now), image(desired))),
            (None, Some(desired)) => Some(format!("-> {}", image(desired))),
            (now, None) => now.as_deref().map(image),
        };
        // A stopped node keeps its phase, which does not describe its pod.
        let phase = match row.state {
            State::Stopped => Some("Stopped".to_owned()),
            State::Unreadable => Some("?".to_owned()),
            _ => row.phase.clone(),
        };
        let ready = row.ready.map(|ready| if ready { "yes" } else { "no" }.to_owned());
        let namespace = (self.scope == Scope::All).then(|| row.namespace.clone());
        let mut columns: Vec<Option<String>> = namespace.into_iter().map(Some).collect();
        columns.extend([Some(row.node.clone()), row.chain.clone(), row.mode.clone(), phase, ready]);
        let has_heights = self.heights == Heights::Read;
        if has_heights {
            columns.push(row.height.map(|height| height.to_string()));
        }
        let since = row.since.map(|since| age(since, now));
        columns.extend([images, row.update.clone(), row.task.clone(), since]);
        if self.is_wide && has_heights {
            columns.push(row.peers.map(|peers| peers.to_string()));
            columns.push(row.block_time.map(|time| age(time, now)));
        }
        if self.is_wide {
            columns.extend([row.revision.clone(), row.waits_for.clone()]);
        }
        let mut cells: Vec<String> = columns.into_iter().map(cell).collect();
        cells.push(printable(row.why.as_deref().unwrap_or_default()).into_owned());
        cells
    }

    /// A row, with its explanation in as many lines as the terminal needs.
    fn row(&self, row: &Row, cells: &[String], widths: &[usize]) -> String {
        let Some((why, columns)) = cells.split_last() else { return String::new() };
        let names = self.header();
        let mut text = String::new();
        for ((cell, width), name) in columns.iter().zip(widths).zip(&names) {
            let paint_of = match name.as_str() {
                "READY" if row.ready == Some(true) => Paint::Green,
                "READY" if row.ready == Some(false) => Paint::Red,
                "PHASE" | "UPDATE" => color_of(row.state),
                _ => Paint::Plain,
            };
            text.push_str(&paint(&format!("{cell:<width$}"), paint_of, self.uses_color));
            text.push_str(GAP);
        }
        let before: usize = widths.iter().map(|width| width + GAP.len()).sum();
        let (indent, room) = match self.terminal {
            None => (before, usize::MAX),
            Some(Terminal { width, .. }) if width >= before + WHY_MIN => (before, width - before),
            Some(Terminal { width, .. }) => (4, width.saturating_sub(4)),
        };
        let own_lines = indent < before && !why.is_empty();
        for (index, part) in wrap(why, room).iter().enumerate() {
            if index > 0 || own_lines {
                text.truncate(text.trim_end().len());
                text.extend(["\n", &" ".repeat(indent)]);
            }
            text.push_str(&paint(part, color_of(row.state), self.uses_color));
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
        text
    }
}

fn color_of(state: State) -> Paint {
    match state {
        State::Unreadable | State::Stalled | State::Failed | State::NotReady | State::NoBlocks => {
            Paint::Red
        }
        State::Retrying
        | State::Halted
        | State::Held
        | State::HandsOff
        | State::Paused
        | State::Stopped
        | State::Deleting => Paint::Yellow,
        State::Initializing | State::Updating | State::Repairing | State::Waiting => Paint::Cyan,
        State::InSync => Paint::Plain,
    }
}

/// `8 nodes, 7 ready, 1 stalled`.
fn summary(rows: &[&Row]) -> String {
    let mut parts = vec![count(rows.len(), "node")];
    if rows.iter().any(|row| row.ready.is_some()) {
        parts.push(format!("{} ready", rows.iter().filter(|row| row.is_ready()).count()));
    }
    let mut states: BTreeMap<State, usize> = BTreeMap::new();
    for row in rows {
        *states.entry(row.state).or_default() += 1;
    }
    states.remove(&State::InSync);
    parts.extend(states.into_iter().map(|(state, number)| format!("{number} {}", state.text())));
    parts.join(", ")
}
