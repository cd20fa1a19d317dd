//! The terminal: its size, and colours.

use std::fs::File;
use std::io::{IsTerminal as _, stdout};
use std::process::{Command, Stdio};

use crate::flags::Color;

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminal {
    pub width: usize,
    pub height: usize,
}

impl Terminal {
    /// The terminal that standard output is.
    pub fn of_stdout() -> Option<Self> {
        stdout().is_terminal().then(Self::size)
    }

    /// The current size. A user may change it while a watch runs.
    pub(crate) fn size() -> Self {
        stty_size().unwrap_or(Self { width: 80, height: 24 })
    }
}

/// The size by `stty`: a call of the system would need unsafe code or another dependency.
fn stty_size() -> Option<Terminal> {
    let terminal = File::open("/dev/tty").ok()?;
    let output =
        Command::new("stty").arg("size").stdin(terminal).stderr(Stdio::null()).output().ok()?;
    parse_size(&String::from_utf8(output.stdout).ok()?)
}

/// Rows and columns in the output of `stty size`.
fn parse_size(text: &str) -> Option<Terminal> {
    let (height, width) = text.trim().split_once(' ')?;
    let (height, width) = (height.parse().ok()?, width.parse().ok()?);
    // A terminal without a known size reports zeros.
    (height > 0 && width > 0).then_some(Terminal { width, height })
}

/// Whether to use colours.
pub fn uses_color(flag: Color, terminal: Option<Terminal>) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match flag {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
            terminal.is_some() && !is_set("NO_COLOR") && !is_dumb
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paint {
    Plain,
    Bold,
    Red,
    Yellow,
    Green,
    Cyan,
}

/// The text in this colour. It must be printable already: what this adds is not escaped.
pub(crate) fn paint(text: &str, paint: Paint, uses_color: bool) -> String {
    let code = match paint {
        Paint::Bold => "1",
        Paint::Red => "31",
        Paint::Green => "32",
        Paint::Yellow => "33",
        Paint::Cyan => "36",
        Paint::Plain => return text.to_owned(),
    };
    if !uses_color || text.trim().is_empty() {
        return text.to_owned();
    }
    // The padding of a column stays plain.
    let word = text.trim_end();
    format!("\u{1b}[{code}m{word}\u{1b}[0m{}", &text[word.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_flag_before_the_terminal() {
        let terminal = Some(Terminal { width: 80, height: 24 });
        assert!(uses_color(Color::Always, None));
        assert!(!uses_color(Color::Never, terminal));
        assert!(!uses_color(Color::Auto, None));
    }

    #[test]
    fn the_size_of_a_terminal_is_parsed() {
        assert_eq!(parse_size("50 160\n"), Some(Terminal { width: 160, height: 50 }));
        for text in ["0 0", "", "50"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn padding_is_not_painted() {
        assert_eq!(paint("no  ", Paint::Red, true), "\u{1b}[31mno\u{1b}[0m  ");
        assert_eq!(paint("no  ", Paint::Red, false), "no  ");
        assert_eq!(paint("  ", Paint::Red, true), "  ");
    }
}
