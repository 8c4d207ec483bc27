//! Half surrogate pairs in JSON text: programs in languages with UTF-16 strings write them, no JSON reader of ours
//! takes them.

use std::borrow::Cow;

use memchr::memmem;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_replaced_and_pairs_are_not() {
        let cases = [
            (r"plain", r"plain"),
            (r"\ud83d\ude00", r"\ud83d\ude00"),
            (r"\uD83D\uDE00", r"\uD83D\uDE00"),
            (r"\ud83d", r"\ufffd"),
            (r"\ude00\ud83d", r"\ufffd\ufffd"),
            (r"\ud83d\ud83d\ude00", r"\ufffd\ud83d\ude00"),
            (r"\\ud83d", r"\\ud83d"),
            (r"\\\ud83dé", r"\\\ufffdé"),
            (r"\ud83dé\n", r"\ufffdé\n"),
            (r"\u00e9\ud83", r"\u00e9\ud83"),
        ];
        for (text, right) in cases {
            assert_eq!(without_lone_surrogates(text), right, "{text}");
        }
    }
}
