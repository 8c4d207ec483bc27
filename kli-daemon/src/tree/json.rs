//! The little that a scan needs to know of JSON text: whether it is an object, and lone surrogates.

use std::borrow::Cow;

use memchr::memmem;
use serde::de::IgnoredAny;

/// Whether a text is one JSON object and nothing else. Lone surrogate escapes are fine.
pub fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

/// The text with every escape of half a surrogate pair replaced by `\ufffd`: no JSON reader takes one.
pub fn without_lone_surrogates(text: &str) -> Cow<'_, str> {
    if memmem::find(text.as_bytes(), b"\\ud").is_none() && memmem::find(text.as_bytes(), b"\\uD").is_none() {
        return Cow::Borrowed(text);
    }
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    let mut changed = false;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        clean.push_str(before);
        let taken = match surrogate(escape) {
            None => escape.char_indices().nth(2).map_or(escape.len(), |(end, _)| end),
            Some(0xd800..=0xdbff) if matches!(escape.get(6..).and_then(surrogate), Some(0xdc00..=0xdfff)) => 12,
            Some(_) => {
                clean.push_str("\\ufffd");
                changed = true;
                rest = escape.get(6..).unwrap_or_default();
                continue;
            }
        };
        let (escape, after) = escape.split_at(taken);
        clean.push_str(escape);
        rest = after;
    }
    if !changed {
        return Cow::Borrowed(text);
    }
    clean.push_str(rest);
    Cow::Owned(clean)
}

/// The code unit of a surrogate's escape that the text begins with.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..=0xdfff).contains(unit))
}
