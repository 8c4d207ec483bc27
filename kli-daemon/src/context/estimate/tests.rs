use super::*;
use crate::context::image::png;

fn call(arguments: &str) -> Block {
    let value = serde_json::json!({"type": "toolCall", "id": "c", "name": "bash"});
    let Block::ToolCall(mut call) = Block::from_value(value) else { panic!() };
    call.arguments = serde_json::from_str(arguments).unwrap();
    Block::ToolCall(call)
}

/// (what, least, most)
#[test]
fn bounds() {
    let deep = format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    for (what, block, least, most) in [
        ("CJK", Block::text("\u{4e2d}".repeat(60_000)), 36_000, 60_000),
        ("ASCII", Block::text("a".repeat(60_000)), 12_000, 18_000),
        ("empty", Block::text(""), 0, 0),
        ("a 2.5 MB picture", Block::Image(png(3000, 2000, 2_500_000)), 1_000, 6_000),
        ("a tiny one", Block::Image(png(8, 8, 0)), 1_000, 1_000),
        (
            "one of unknown size",
            Block::Image(ImageBlock { data: "A".repeat(3_400_000), ..Default::default() }),
            1_000,
            6_000,
        ),
        ("arguments", call(&format!("{{\"command\":{:?}}}", "word ".repeat(1000))), 1_000, 1_200),
        ("nested arguments", call(&deep), 100, 300),
    ] {
        let tokens = super::block(&block);
        assert!((least..=most).contains(&tokens), "{what}: {tokens} is not in {least}..={most}");
    }
}

#[test]
fn budgets_fit_small_windows() {
    for (window, reserve, keep, want) in [
        (200_000, 16_384, 20_000, (183_616, 20_000)),
        (8_192, 16_384, 20_000, (4_096, 2_048)),
        (0, 16_384, 20_000, (u64::MAX, 8_192)),
    ] {
        let budget = Budget::new(window, reserve, keep);
        assert_eq!((budget.room(), budget.keep_recent), want, "{window}");
        assert!(!budget.needs_compaction(want.0));
        assert_eq!(budget.needs_compaction(want.0.saturating_add(1)), window != 0);
    }
}

#[test]
fn output_fits_what_is_left() {
    for (window, max, tokens, want) in [
        (200_000, 8_192, 10_000, Some(8_192)),
        (10_000, 8_192, 8_000, Some(1_500)),
        (10_000, 8_192, 20_000, Some(1_024)),
        (0, 8_192, 20_000, Some(8_192)),
        (10_000, 0, 0, None),
    ] {
        assert_eq!(output_limit(window, max, tokens), want);
    }
}
