//! Estimates of whole requests: anchored on reported usage where that still holds.

use super::fixtures::{Branch, model};
use super::{compaction, reply, result, user};
use crate::context::assemble;

#[test]
fn reported_usage_is_the_anchor_where_it_still_holds() {
    let edit = r#"{"type":"context_edit","targetId":"e1","replacement":{"content":"q"}}"#.to_owned();
    let long = "word ".repeat(400);
    // `reply` reports 100 tokens. (records, whether they count)
    for (lines, anchored) in [
        (vec![user("q"), reply("stop", "a", &[])], true),
        (vec![user("q"), reply("stop", "a", &[]), user(&long)], true),
        (vec![user("q"), reply("toolUse", "a", &["c1"]), result("c1", &long)], true),
        (vec![user("q"), reply("stop", "a", &[]), compaction("S", "e1")], false),
        (vec![user("q"), reply("stop", "a", &[]), compaction("S", "e1"), user("b"), reply("stop", "c", &[])], true),
        (vec![user("q"), reply("stop", "a", &[]), edit], false),
        (vec![user("q"), reply("aborted", "a", &[])], false),
        (vec![user("q"), reply("stop", "a", &[]), user("b"), reply("error", "c", &[])], true),
        (vec![user("q")], false),
    ] {
        let branch = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>());
        let got = assemble(&branch.window(), &model());
        assert_eq!(got.anchor.is_some(), anchored, "{lines:#?}");
        let after: u64 = got.sizes.iter().skip(got.anchor.map_or(0, |(at, _)| at + 1)).sum();
        assert_eq!(got.tokens(7_000), if anchored { 100 + after } else { 7_000 + after }, "{lines:#?}");
        assert_eq!(got.sizes.len(), got.messages.len());
        if lines.iter().any(|line| line.contains(&long)) {
            assert!((400..=460).contains(&after), "{after}");
        }
    }
}

/// Held within 15 % of a real tokenizer; `cargo bench --bench context` prints the table.
#[test]
fn estimates_match_a_tokenizer() {
    let tokenizer = tiktoken_rs::o200k_base().unwrap();
    for (what, text) in super::samples::samples() {
        let real = tokenizer.encode_ordinary(&text).len() as f64;
        let estimate = crate::context::estimate::text(&text) as f64;
        let error = (estimate / real - 1.0) * 100.0;
        assert!(error.abs() <= 15.0, "{what}: {estimate} for {real}");
    }
}
