//! Text for people: tables, ages, images, differing fields.

use jiff::Timestamp;
use sei_api::SeiNode;
use sei_api::status::FieldChange;

/// `NAMESPACE/NAME` of a node.
pub(crate) fn full_name(node: &SeiNode) -> String {
    let namespace = node.metadata.namespace.as_deref().unwrap_or_default();
    format!("{namespace}/{}", node.metadata.name.as_deref().unwrap_or_default())
}

/// The width of each column: that of its widest cell.
pub(crate) fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    (0..columns).map(|column| width(column).unwrap_or_default()).collect()
}

/// A row of these widths; the last column is not padded.
pub(crate) fn line(row: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (index, cell) in row.iter().enumerate() {
        let width = widths.get(index).copied().unwrap_or_default();
        text.extend([format!("{cell:<width$}")]);
        if index + 1 < row.len() {
            text.push_str(GAP);
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Between two columns.
pub(crate) const GAP: &str = "   ";

pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let widths = widths(rows);
    rows.iter().map(|row| line(row, &widths)).collect()
}

/// The text in lines of at most this width, broken at spaces where there are any.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split_whitespace() {
        let mut letters: Vec<char> = word.chars().collect();
        if used > 0 && used + 1 + letters.len() > width {
            lines.push(String::new());
            used = 0;
        }
        while letters.len() > width {
            let rest = letters.split_off(width);
            lines.last_mut().expect("never empty").extend(letters);
            lines.push(String::new());
            letters = rest;
        }
        let line = lines.last_mut().expect("never empty");
        if used > 0 {
            line.push(' ');
            used += 1;
        }
        used += letters.len();
        line.extend(letters);
    }
    lines
}

/// Time since, in one unit.
pub(crate) fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// An image without its registry, and with a shortened digest.
pub(crate) fn short_image(image: &str) -> String {
    let name = image.rsplit('/').next().unwrap_or(image);
    match name.split_once("@sha256:") {
        Some((name, digest)) => {
            format!("{name}@{}", digest.chars().take(12).collect::<String>())
        }
        None => name.to_owned(),
    }
}

/// One line for each field: its path, the present value and the desired one. Not in columns: some
/// paths are longer than a screen is wide.
pub(crate) fn changes(changes: &[FieldChange], indent: &str) -> String {
    let side = |side: &Option<String>| side.clone().unwrap_or_else(|| "(none)".to_owned());
    let line = |change: &FieldChange| match (&change.from, &change.to) {
        (None, None) => format!("{indent}{}\n", change.path),
        (from, to) => format!("{indent}{}: {} -> {}\n", change.path, side(from), side(to)),
    };
    changes.iter().map(line).collect()
}

/// `1 node`, `2 nodes`.
pub(crate) fn count(number: usize, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_printed_in_one_unit() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (7199, "119m"),
            (7200, "2h"),
            (172_799, "47h"),
            (172_800, "2d"),
        ] {
            let since = Timestamp::from_second(1_800_000_000 - seconds).unwrap();
            assert_eq!(age(since, now), text, "{seconds}");
        }
    }

    #[test]
    fn a_short_image_keeps_name_tag_and_part_of_the_digest() {
        for (image, short) in [
            ("registry.example.org:5000/sei/seid:v6.5.1", "seid:v6.5.1"),
            ("seid:v1", "seid:v1"),
            ("a/seid@sha256:0123456789abcdef0123", "seid@0123456789ab"),
            ("", ""),
        ] {
            assert_eq!(short_image(image), short, "{image}");
        }
    }

    #[test]
    fn a_long_text_is_broken_at_spaces() {
        assert_eq!(wrap("ab cd efg", 5), ["ab cd", "efg"]);
        assert_eq!(wrap("a bcdefghij k", 4), ["a", "bcde", "fghi", "j k"]);
        assert_eq!(wrap("", 4), [""]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = table(&[row(["NODE", "WHY", "X"]), row(["a", "ünïcode", ""])]);
        assert_eq!(text, "NODE   WHY       X\na      ünïcode\n");
    }
}
