//! What a change did to a text, for people: a unified diff, bounded in time and size.

use std::time::Duration;

use serde_json::{Value, json};
use similar::{ChangeTag, TextDiff};

use crate::text::{self, Limits};

/// A diff of more than this is of no use to a person, and is cut at a line.
const LIMITS: Limits = Limits { lines: 5000, bytes: 256 * 1024 };
/// Texts of more than this are not compared.
const LARGEST: usize = 4 * 1024 * 1024;
/// After this the diff gets coarser instead of better.
const PATIENCE: Duration = Duration::from_millis(500);

/// `{diff, firstChangedLine}`, the details of a tool result; the line counts in the new text.
pub(crate) fn details(old: &str, new: &str, path: &str) -> Value {
    if old.len().max(new.len()) > LARGEST {
        return json!({ "firstChangedLine": first_changed_line(old, new) });
    }
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let first = diff
        .iter_all_changes()
        .scan(0usize, |new_line, change| {
            let at = *new_line + 1;
            *new_line += usize::from(change.tag() != ChangeTag::Delete);
            Some((change.tag() != ChangeTag::Equal).then_some(at))
        })
        .flatten()
        .next();
    let mut unified =
        diff.unified_diff().context_radius(3).header(&format!("a/{path}"), &format!("b/{path}")).to_string();
    let cut = text::head(&unified, LIMITS);
    if cut.by.is_some() {
        let keep = cut.text.len();
        unified.truncate(keep);
        unified.push_str("… the rest of the diff is left out\n");
    }
    json!({ "diff": unified, "firstChangedLine": first })
}

fn first_changed_line(old: &str, new: &str) -> usize {
    let same = old.bytes().zip(new.bytes()).take_while(|(a, b)| a == b).count();
    memchr::memchr_iter(b'\n', new.as_bytes().get(..same).unwrap_or_default()).count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_shown_with_its_line() {
        let got = details("a\nb\nc\n", "a\nB\nc\n", "x.txt");
        assert_eq!(got["firstChangedLine"], 2);
        assert_eq!(got["diff"], "--- a/x.txt\n+++ b/x.txt\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n");
        assert_eq!(details("", "a\n", "x")["firstChangedLine"], 1);
        assert_eq!(details("a\nb\n", "a\n", "x")["firstChangedLine"], 2);
        assert_eq!(details("a\n", "a\n", "x")["firstChangedLine"], Value::Null);
    }

    #[test]
    fn large_texts_stay_bounded() {
        let old = "line\n".repeat(200_000);
        let new = "other\n".repeat(200_000);
        let got = details(&old, &new, "x");
        assert!(got["diff"].as_str().unwrap().len() < 300 * 1024);
        let huge = "x".repeat(LARGEST + 1);
        assert_eq!(details(&huge, &format!("{huge}y"), "x"), json!({"firstChangedLine": 1}));
    }
}
