//! Text for models and people: cut to limits at line and character borders, and cleaned of what a terminal
//! would act on. Pure; who reads files and runs commands decides what to say about a cut.

mod clean;
#[cfg(test)]
mod tests;

pub use clean::Cleaner;

use std::borrow::Cow;

/// How much of an output a model gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub lines: usize,
    pub bytes: usize,
}

impl Limits {
    /// What one tool call may bring.
    pub const OUTPUT: Limits = Limits { lines: 2000, bytes: 50 * 1024 };
}

/// A part of a text, whole lines wherever one line fits the limits at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut<'a> {
    pub text: &'a str,
    /// Lines in `text`.
    pub lines: usize,
    /// Which limit cut, if any.
    pub by: Option<CutBy>,
    /// One line alone was too long: `text` is only a part of it.
    pub inside_line: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutBy {
    Lines,
    Bytes,
}

/// The beginning of a text.
pub fn head(text: &str, limits: Limits) -> Cut<'_> {
    let (mut end, mut lines) = (0, 0);
    for line in text.split_inclusive('\n') {
        let content = line.strip_suffix('\n').unwrap_or(line);
        let by = if lines == limits.lines {
            CutBy::Lines
        } else if end + content.len() > limits.bytes {
            CutBy::Bytes
        } else {
            end += line.len();
            lines += 1;
            continue;
        };
        if lines == 0 && by == CutBy::Bytes {
            return Cut { text: clip_bytes(content, limits.bytes), lines: 1, by: Some(by), inside_line: true };
        }
        return Cut { text: text.get(..end).unwrap_or_default(), lines, by: Some(by), inside_line: false };
    }
    Cut { text, lines, by: None, inside_line: false }
}

/// The end of a text.
pub fn tail(text: &str, limits: Limits) -> Cut<'_> {
    let (mut start, mut lines) = (text.len(), 0);
    for line in text.split_inclusive('\n').rev() {
        // The last line's own line end does not count, as in `head`.
        let size = text.len() - start + line.len() - usize::from(text.ends_with('\n'));
        let by = if lines == limits.lines {
            CutBy::Lines
        } else if size > limits.bytes {
            CutBy::Bytes
        } else {
            start -= line.len();
            lines += 1;
            continue;
        };
        if lines == 0 && by == CutBy::Bytes {
            let from = ceil_char_boundary(text, text.len().saturating_sub(limits.bytes));
            return Cut { text: text.get(from..).unwrap_or_default(), lines: 1, by: Some(by), inside_line: true };
        }
        return Cut { text: text.get(start..).unwrap_or_default(), lines, by: Some(by), inside_line: false };
    }
    Cut { text, lines, by: None, inside_line: false }
}

/// Lines as an editor counts them: a final line end begins no further line.
pub fn count_lines(text: &str) -> usize {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() + usize::from(!text.is_empty() && !text.ends_with('\n'))
}

/// At most `bytes` bytes from the beginning, cut at a character.
pub fn clip_bytes(text: &str, bytes: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes)).unwrap_or_default()
}

/// The first character border at or after `index`.
pub fn ceil_char_boundary(text: &str, index: usize) -> usize {
    (index..text.len()).find(|i| text.is_char_boundary(*i)).unwrap_or(text.len())
}

/// At most `chars` characters of a line, around the byte `focus`, with `…` for what is missing.
pub fn clip_around(line: &str, focus: usize, chars: usize) -> Cow<'_, str> {
    // A line with no more bytes than that has no more characters either.
    if line.len() <= chars || line.chars().nth(chars).is_none() {
        return Cow::Borrowed(line);
    }
    let before = line.get(..line.floor_char_boundary(focus)).unwrap_or_default();
    let keep_before = chars / 3;
    let from = match before.char_indices().rev().nth(keep_before.saturating_sub(1)) {
        Some((at, _)) if at > 0 => at,
        _ => 0,
    };
    let rest = line.get(from..).unwrap_or_default();
    let to = rest.char_indices().nth(chars).map_or(rest.len(), |(at, _)| at);
    let (lead, trail) = (if from > 0 { "…" } else { "" }, if to < rest.len() { "…" } else { "" });
    Cow::Owned(format!("{lead}{}{trail}", rest.get(..to).unwrap_or_default()))
}

/// One line for a title: white space runs become one space; control and direction characters go; at most `chars`
/// characters, the last one `…` if something was cut.
pub fn one_line(text: &str, chars: usize) -> String {
    let mut line = String::new();
    let mut count = 0;
    let mut space = false;
    for c in text.chars() {
        if c.is_whitespace() {
            space = !line.is_empty();
            continue;
        }
        if c.is_control() || is_direction(c) {
            continue;
        }
        if count + usize::from(space) >= chars {
            if chars > 0 {
                while line.chars().count() >= chars {
                    line.pop();
                }
                line.push('…');
            }
            return line;
        }
        if std::mem::take(&mut space) {
            line.push(' ');
            count += 1;
        }
        line.push(c);
        count += 1;
    }
    line
}

/// A path for a line of output: control characters would break the line or the terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(|c| c.is_control() || is_direction(c)) {
        Cow::Owned(
            text.chars()
                .map(|c| if c.is_control() || is_direction(c) { char::REPLACEMENT_CHARACTER } else { c })
                .collect(),
        )
    } else {
        Cow::Borrowed(text)
    }
}

/// `1 byte`, `12 KiB`, `3.4 MiB`.
pub fn size(bytes: u64) -> String {
    let tenths = |unit: u64| {
        let value = bytes.saturating_mul(10) / unit;
        if value.is_multiple_of(10) { format!("{}", value / 10) } else { format!("{}.{}", value / 10, value % 10) }
    };
    match bytes {
        1 => "1 byte".to_owned(),
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", tenths(1024)),
        1_048_576..1_073_741_824 => format!("{} MiB", tenths(1_048_576)),
        _ => format!("{} GiB", tenths(1_073_741_824)),
    }
}

/// Characters that turn the direction of what follows, and with it what a person believes to read.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}
