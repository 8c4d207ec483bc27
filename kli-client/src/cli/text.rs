//! Text on its way to a terminal: nothing in it may steer the terminal, and it may have to fit a width.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Makes control characters visible, all but LF and tab, and drops CR. Nothing is hidden: an escape sequence
/// comes out as the text that it is, so no text can swallow what follows it. Works on any piece of a stream.
pub fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && c != '\t' && is_unsafe(c)) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter_map(visible).collect())
}

/// One line, cleaned: white space runs become one space.
pub fn one_line(text: &str) -> String {
    clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn is_unsafe(c: char) -> bool {
    c.is_control() || is_bidi(c)
}

/// Characters that make text read otherwise than it runs.
fn is_bidi(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}')
}

fn visible(c: char) -> Option<char> {
    match c {
        '\n' | '\t' => Some(c),
        '\r' => None,
        '\0'..='\u{1f}' => char::from_u32(0x2400 + u32::from(c)),
        '\u{7f}' => Some('\u{2421}'),
        c if is_unsafe(c) => Some('\u{fffd}'),
        c => Some(c),
    }
}

/// JSON text for a terminal: characters that would steer it are written as their escapes, which mean the same.
pub fn clean_json(text: &str) -> Cow<'_, str> {
    if !text.contains(|c| c != '\n' && is_unsafe(c)) {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if c != '\n' && is_unsafe(c) {
            clean.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            clean.push(c);
        }
    }
    Cow::Owned(clean)
}

/// Cuts at `width` columns, with an ellipsis where something was cut.
pub fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return Cow::Borrowed(text);
    }
    let mut used = 0;
    let mut kept = String::new();
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used + 1 > width {
            break;
        }
        kept.push(c);
    }
    kept.push('…');
    Cow::Owned(kept)
}

/// `text` and blanks up to `width` columns.
pub fn pad(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(blanks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal_and_nothing_is_hidden() {
        for (text, shown) in [
            ("plain\n\ttext", "plain\n\ttext"),
            ("\u{1b}[31mred\u{1b}[0m", "\u{241b}[31mred\u{241b}[0m"),
            ("\u{1b}]0;title\u{7}x", "\u{241b}]0;title\u{2407}x"),
            ("a\r\nb\rc", "a\nbc"),
            ("\u{9b}2J", "\u{fffd}2J"),
            ("abc\u{202e}fed", "abc\u{fffd}fed"),
            ("\u{7f}\u{8}", "\u{2421}\u{2408}"),
            ("👩‍👩‍👧 é 中", "👩‍👩‍👧 é 中"),
        ] {
            assert_eq!(clean(text), shown, "{text:?}");
            let pieces: String = text.chars().map(|c| clean(&c.to_string()).into_owned()).collect();
            assert_eq!(pieces, shown, "{text:?} in pieces");
        }
    }

    #[test]
    fn json_keeps_its_meaning() {
        let json = "{\"a\":\"\u{9b}2J\u{7f}\u{202e}\",\n\"b\":1}";
        let shown = clean_json(json);
        assert!(!shown.contains(|c: char| c != '\n' && is_unsafe(c)));
        let value = |t: &str| serde_json::from_str::<serde_json::Value>(t).unwrap();
        assert_eq!(value(&shown), value(json));
    }

    #[test]
    fn cuts_at_columns() {
        for (text, width, shown) in
            [("abc", 3, "abc"), ("abcd", 3, "ab…"), ("中中中", 5, "中中…"), ("中中中", 4, "中…"), ("", 0, "")]
        {
            assert_eq!(cut(text, width), shown, "{text} at {width}");
        }
    }
}
