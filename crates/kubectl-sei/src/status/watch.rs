//! `kubectl sei status -w`: redraws a table on a terminal, and prints each change elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use jiff::{Timestamp, Unit};

use super::table::View;
use super::{Row, rows};
use crate::cluster::{Key, Scope};
use crate::error::Error;
use crate::flags::{StatusFlags, StatusOutput};
use crate::fleet::LiveFleet;
use crate::format::{line, widths};
use crate::terminal::Terminal;
use crate::{CommandContext, Exit, Out, flush, write_printable, yaml};

/// Ages are redrawn this often.
const REDRAW: Duration = Duration::from_secs(1);
/// The shortest time between two frames.
const FRAME: Duration = Duration::from_millis(100);

pub(super) async fn run(
    flags: &StatusFlags,
    scope: &Scope,
    context: &CommandContext,
    out: Out<'_>,
) -> Result<Exit, Error> {
    let mut live = LiveFleet::start(context.client()?, scope, &flags.selection).await?;
    let is_table = matches!(flags.output, StatusOutput::Table | StatusOutput::Wide);
    let mut screen = (is_table && context.terminal.is_some()).then(Screen::default);
    let mut lines: Option<Lines> = None;
    loop {
        let now = context.now();
        let rows = rows(&live.fleet, now);
        if let Some(screen) = &mut screen {
            let terminal = screen.terminal();
            let view = View::of(flags, scope, context, Some(terminal));
            write_printable(out, &screen.frame(&view.text(&live.fleet, &rows, now), terminal))?;
        } else if let Some(lines) = &mut lines {
            write_printable(out, &lines.changed(&rows, now))?;
        } else {
            let view = View::of(flags, scope, context, None);
            let (first, text) = Lines::start(view, flags.output, &rows, now);
            write_printable(out, &text)?;
            lines = Some(first);
        }
        flush(out)?;
        let is_done = |row: &Row| row.is_ready() && row.is_in_sync();
        if flags.until_ready && !rows.is_empty() && rows.iter().all(is_done) {
            return Ok(Exit::Fine);
        }
        if screen.is_none() {
            live.changed().await?;
            continue;
        }
        // An elapsed second only changes ages. Changes that follow each other share a frame.
        tokio::time::timeout(REDRAW, live.changed()).await.unwrap_or(Ok(()))?;
        tokio::time::sleep(FRAME).await;
        while let Some(changed) = live.changed().now_or_never() {
            changed?;
        }
    }
}

/// A table that is drawn over its previous frame.
#[derive(Default)]
struct Screen {
    /// Lines of the previous frame.
    drawn: usize,
    /// The size of the terminal, and when it was read.
    size: Option<(Instant, Terminal)>,
}

impl Screen {
    /// The size of the terminal. A user may change it, so it is read again from time to time.
    fn terminal(&mut self) -> Terminal {
        match self.size {
            Some((read, terminal)) if read.elapsed() < REDRAW => terminal,
            _ => {
                let terminal = Terminal::size();
                self.size = Some((Instant::now(), terminal));
                terminal
            }
        }
    }

    /// The control characters and the text that replace the previous frame. A frame that is higher
    /// than the terminal is cut: the cursor cannot return to a line that has left the screen.
    fn frame(&mut self, text: &str, terminal: Terminal) -> String {
        let mut frame = match self.drawn {
            0 => String::new(),
            lines => format!("\u{1b}[{lines}A\r\u{1b}[J"),
        };
        let room = terminal.height.saturating_sub(1).max(1);
        let lines: Vec<&str> = text.lines().collect();
        let height = |line: &str| visible_width(line).max(1).div_ceil(terminal.width.max(1));
        let total: usize = lines.iter().map(|line| height(line)).sum();
        self.drawn = 0;
        for (index, line) in lines.iter().enumerate() {
            let height = height(line);
            if total > room && self.drawn + height + 1 > room {
                frame.extend([format!("... {} more lines\n", lines.len() - index)]);
                self.drawn += 1;
                break;
            }
            frame.push_str(line);
            frame.push('\n');
            self.drawn += height;
        }
        frame
    }
}

/// The number of characters without those that set colours.
fn visible_width(line: &str) -> usize {
    let mut parts = line.split('\u{1b}');
    let plain = parts.next().map_or(0, |part| part.chars().count());
    let colored =
        parts.map(|part| part.split_once('m').map_or(0, |(_, text)| text.chars().count()));
    plain + colored.sum::<usize>()
}

/// Rows that were printed one below the other.
struct Lines {
    view: View,
    output: StatusOutput,
    shown: BTreeMap<Key, Row>,
    widths: Vec<usize>,
}

impl Lines {
    /// The first table, in which every row has a time as all later rows do.
    fn start(view: View, output: StatusOutput, rows: &[Row], now: Timestamp) -> (Self, String) {
        let mut cells = vec![view.header()];
        cells.extend(rows.iter().map(|row| view.cells(row, now)));
        let mut lines = Self { widths: widths(&cells), view, output, shown: BTreeMap::new() };
        let mut text = String::new();
        if matches!(output, StatusOutput::Table | StatusOutput::Wide) {
            let header = line(&lines.view.header(), &lines.widths);
            text = format!("{:<width$}{header}", "TIME", width = stamp(now).chars().count() + 3);
        }
        text.push_str(&lines.changed(rows, now));
        (lines, text)
    }

    /// The rows that changed since they were printed; nodes that are missing were deleted.
    fn changed(&mut self, rows: &[Row], now: Timestamp) -> String {
        let mut text = String::new();
        for row in rows {
            if self.shown.get(&row.key()) != Some(row) {
                self.shown.insert(row.key(), row.clone());
                text.push_str(&self.line(row, now));
            }
        }
        let is_missing = |key: &Key| rows.iter().all(|row| row.key() != *key);
        let missing: Vec<Key> = self.shown.keys().filter(|key| is_missing(key)).cloned().collect();
        for key in missing {
            if let Some(row) = self.shown.remove(&key) {
                let deleted = Row {
                    phase: Some("Deleted".to_owned()),
                    ready: Some(false),
                    why: None,
                    task: None,
                    ..row
                };
                text.push_str(&self.line(&deleted, now));
            }
        }
        text
    }

    fn line(&mut self, row: &Row, now: Timestamp) -> String {
        let record = || {
            let text = serde_json::to_string(row).expect("the row has string keys only");
            format!("{}\n", crate::printable(&text))
        };
        match self.output {
            StatusOutput::Json => record(),
            StatusOutput::Yaml => format!("---\n{}", crate::printable(&yaml(row))),
            StatusOutput::Name => row.name_line(),
            StatusOutput::Table | StatusOutput::Wide => {
                let cells = self.view.cells(row, now);
                // Columns grow with their values, so that the rows below stay aligned.
                for (width, cell) in self.widths.iter_mut().zip(&cells) {
                    *width = (*width).max(cell.chars().count());
                }
                format!("{}   {}", stamp(now), line(&cells, &self.widths))
            }
        }
    }
}

fn stamp(now: Timestamp) -> String {
    now.round(Unit::Second).unwrap_or(now).to_string()
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::fixtures::now;
    use crate::status::tests::{rows, view};

    #[test]
    fn only_changed_rows_are_printed_again() {
        let rows = rows();
        let (mut lines, text) = Lines::start(view(), StatusOutput::Table, &rows[..1], now());
        expect![[r#"
            TIME                   NODE        CHAIN       MODE       PHASE     READY   IMAGE         UPDATE   TASK   SINCE   WHY
            2027-01-15T08:00:00Z   archive-0   pacific-1   fullNode   Running   yes     seid:v6.5.1   InSync   -      5m
        "#]].assert_eq(&text);
        assert_eq!(lines.changed(&rows[..1], now()), "");
        let changed = Row { phase: Some("Failed".into()), ..rows[0].clone() };
        let text = lines.changed(&[changed], now());
        assert!(text.starts_with("2027-01-15T08:00:00Z   archive-0   "), "{text}");
        let deleted = lines.changed(&[], now());
        assert!(deleted.contains("Deleted"), "{deleted}");
        assert_eq!(lines.changed(&[], now()), "", "a deletion is printed once");
    }

    #[test]
    fn a_frame_replaces_the_previous_one_and_fits_the_terminal() {
        let terminal = Terminal { width: 10, height: 4 };
        let mut screen = Screen::default();
        assert_eq!(screen.frame("a\nb\n", terminal), "a\nb\n");
        let long = "\u{1b}[31m12345\u{1b}[0m6789012\nb\n";
        assert_eq!(screen.frame(long, terminal), format!("\u{1b}[2A\r\u{1b}[J{long}"));
        assert_eq!(screen.drawn, 3, "the first line takes two");
        let many = screen.frame("a\nb\nc\nd\n", terminal);
        assert_eq!(many, "\u{1b}[3A\r\u{1b}[Ja\nb\n... 2 more lines\n");
    }

    #[test]
    fn a_watch_in_json_prints_one_object_in_a_line() {
        let (_, text) = Lines::start(view(), StatusOutput::Json, &rows()[..2], now());
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.starts_with('{') && line.ends_with('}')), "{text}");
    }
}
