//! Names that people and directories see: session ids, file names, slugs, titles.

use sha2::{Digest, Sha256};
use unicode_segmentation::UnicodeSegmentation;

/// `[A-Za-z0-9][A-Za-z0-9._-]{0,63}`: what a caller may name a session.
pub fn valid_session_id(id: &str) -> bool {
    let rest = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    id.len() <= 64 && id.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric()) && id.bytes().all(rest)
}

/// `<UTC timestamp>_<session id>.jsonl`, as pi names its files.
pub fn file_name(timestamp: &str, id: &str) -> String {
    let stamp: String = timestamp.chars().map(|c| if matches!(c, ':' | '.' | '/') { '-' } else { c }).collect();
    format!("{stamp}_{id}.jsonl")
}

/// Above this a slug is cut.
const SLUG: usize = 200;

/// The directory of a work directory's sessions. Two may share one: it never decides where a session belongs.
pub fn slug(work_dir: &str) -> String {
    let path = work_dir.strip_prefix('/').unwrap_or(work_dir);
    let middle: String = path.chars().map(|c| if matches!(c, '/' | ':' | '\0') { '-' } else { c }).collect();
    let slug = format!("--{middle}--");
    if slug.len() <= SLUG {
        return slug;
    }
    let hash = Sha256::digest(work_dir.as_bytes());
    let digits: String = hash.iter().take(4).map(|b| format!("{b:02x}")).collect();
    let end = (0..=SLUG).rev().find(|end| slug.is_char_boundary(*end)).unwrap_or_default();
    format!("{}{digits}", slug.get(..end).unwrap_or_default())
}

/// How many user-perceived characters of a prompt, and characters of a name, a title has.
const TITLE: usize = 50;
const NAME: usize = 200;

/// What a list calls a session: its name, else its first prompt as typed, else `Untitled`.
pub fn title(name: Option<&str>, first_prompt: Option<&str>) -> String {
    let named: String = one_line(name.unwrap_or_default()).chars().take(NAME).collect();
    if !named.is_empty() {
        return named;
    }
    let line = one_line(first_prompt.unwrap_or_default());
    match line.graphemes(true).take(TITLE).collect::<String>().trim_end() {
        "" => "Untitled".to_owned(),
        title => title.to_owned(),
    }
}

/// White space runs become one space; control and bidi characters are dropped.
fn one_line(text: &str) -> String {
    let words = text.split_whitespace().map(|word| word.chars().filter(|c| !is_unseen(*c)).collect::<String>());
    words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How much of a prompt is kept for titles and lists.
const PROMPT: usize = 1000;

pub fn shortened(text: &str) -> String {
    text.chars().take(PROMPT).collect()
}
