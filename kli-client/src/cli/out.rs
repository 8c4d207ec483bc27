//! Standard output and error: colour where wanted, no panic where the reader has gone.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use super::text;

/// What to write with, and how.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    pub colour: bool,
    /// Text of sessions is made safe for a terminal.
    pub terminal: bool,
    /// Columns; none where lines need not fit anything.
    pub width: Option<usize>,
}

/// Roles of text, each with one look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    Dim,
    Bold,
    Good,
    Bad,
    Person,
    Label,
}

impl Style {
    /// No terminal, no colour.
    pub const PLAIN: Style = Style { colour: false, terminal: false, width: None };

    pub fn of_stdout() -> Style {
        if !io::stdout().is_terminal() {
            return Style::PLAIN;
        }
        let width = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        Style { colour: colour_wanted(), terminal: true, width: Some(if width < 20 { 80 } else { width }) }
    }

    pub fn paint(&self, look: Look, text: &str) -> String {
        if !self.colour || text.is_empty() {
            return text.to_owned();
        }
        let code = match look {
            Look::Dim => "2",
            Look::Bold => "1",
            Look::Good => "32",
            Look::Bad => "31",
            Look::Person => "36",
            Look::Label => "33",
        };
        format!("\u{1b}[{code}m{text}\u{1b}[0m")
    }
}

fn colour_wanted() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|t| t != "dumb")
}

/// Writes to standard output; a reader that has gone is an error that `main` knows and says nothing about.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritten)
}

/// That standard output takes nothing (a full disk), as a sentence.
pub fn unwritten(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => error,
        kind => io::Error::new(kind, format!("cannot write to standard output: {error}")),
    }
}

pub fn line(text: &str) -> io::Result<()> {
    print(&format!("{text}\n"))
}

/// A value as JSON: indented on a terminal, one line elsewhere.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let style = Style::of_stdout();
    let text = if style.terminal { serde_json::to_string_pretty(value)? } else { serde_json::to_string(value)? };
    Ok(line(if style.terminal { text::clean_json(&text) } else { text.into() }.as_ref())?)
}

/// A sentence for the person, on standard error.
pub fn note(text: &str) {
    // Nobody is left to be told that this failed.
    let _ = writeln!(io::stderr().lock(), "kli: {}", text::clean(text));
}
