//! Names of tools as Gemini takes them: the first character is a letter or an underscore.

use std::borrow::Cow;

/// Another beginning gets an underscore in front, as do names that would be taken for such a one.
pub fn sent_name(name: &str) -> Cow<'_, str> {
    if begins_well(name.trim_start_matches('_')) { Cow::Borrowed(name) } else { Cow::Owned(format!("_{name}")) }
}

/// The name that [`sent_name`] was given.
pub fn own_name(sent: &str) -> &str {
    match sent.strip_prefix('_') {
        Some(name) if !begins_well(name.trim_start_matches('_')) => name,
        _ => sent,
    }
}

fn begins_well(name: &str) -> bool {
    name.bytes().next().is_none_or(|first| first.is_ascii_alphabetic())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_there_and_back() {
        for (name, sent) in [
            ("read", "read"),
            ("_read", "_read"),
            ("_", "_"),
            ("9lives", "_9lives"),
            ("_9lives", "__9lives"),
            ("-", "_-"),
            ("", ""),
        ] {
            assert_eq!((sent_name(name).as_ref(), own_name(sent)), (sent, name));
        }
    }
}
