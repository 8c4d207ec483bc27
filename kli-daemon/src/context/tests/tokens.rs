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

const ENGLISH: &str = "A session is a tree of entries that never change. When you go back to an earlier place and try something else, \
nothing is lost: the old path stays where it was, and you can return to it whenever you like. The daemon keeps running after \
the terminal is closed, so a long task goes on while you are away, and any number of clients may look at it. Most people notice \
this only when their laptop has been asleep for an hour and the answer is waiting for them. It's worth reading the short manual, \
which explains how context is built, why summaries are sometimes needed, and what they cannot do.";

const CHINESE: &str = "会话是一棵由条目组成的树，条目一旦写入就不会改变。当你回到更早的位置重新尝试时，什么都不会丢失：\
原来的路径仍然保留在那里，你可以随时返回。终端关闭以后，守护进程仍然继续运行，因此长时间的任务可以在你离开时进行，任意数量的客户端都可以查看它。\
大多数人只有在笔记本电脑休眠了一个小时之后，发现答案已经准备好时，才会注意到这一点。简短的手册值得一读，它解释了上下文是如何构建的，\
为什么有时需要摘要，以及摘要不能做什么。如果服务器返回错误，程序会在等待片刻之后重试，并且不会重复提交同一条消息。";

const JAPANESE: &str = "セッションはエントリの木であり、一度書かれたエントリは変わりません。前の場所に戻って別の方法を試しても、何も失われません。\
古い枝はそのまま残り、いつでも戻ることができます。端末を閉じた後もデーモンは動き続けるので、長い作業はあなたが離れている間も進み、\
いくつものクライアントがそれを見ることができます。多くの人は、ノートパソコンを一時間スリープさせた後に答えが待っているのを見て、初めてこれに気づきます。\
短い説明書を読む価値はあります。文脈がどのように作られるのか、なぜ要約が必要になるのか、そして要約にできないことは何かが書かれています。";

/// Held within 15 % of a real tokenizer; `--nocapture` prints the table.
#[test]
fn estimates_match_a_tokenizer() {
    let tokenizer = tiktoken_rs::o200k_base().unwrap();
    let mut noise: u64 = 1;
    let random: Vec<u8> = (0..6_000)
        .map(|_| {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        })
        .collect();
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &random);
    let hex: String =
        random.chunks(20).map(|chunk| chunk.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n").collect();
    let json = serde_json::json!({"sessions": (0..40).map(|i| serde_json::json!({"sessionId": format!("0190-{i:04x}"), "title": "Fix the parser",
        "entryCount": i * 37, "archived": i % 3 == 0, "usage": {"input": i * 1200, "output": 88, "cost": 0.0125}})).collect::<Vec<_>>()});
    let code = include_str!("../assemble.rs");
    let test_code = include_str!("fixtures.rs");
    eprintln!("{:<14} {:>8} {:>8} {:>8}", "text", "real", "estimate", "error");
    for (what, text) in [
        ("English", ENGLISH),
        ("Rust", code),
        ("Rust (tests)", test_code),
        ("TOML", include_str!("../../../../Cargo.lock")),
        ("JSON", &json.to_string()),
        ("JSON, indented", &serde_json::to_string_pretty(&json).unwrap()),
        ("Chinese", CHINESE),
        ("Japanese", JAPANESE),
        ("base64", &base64),
        ("hex", &hex),
        ("mixed", &format!("{ENGLISH}\n{CHINESE}\n{}", &code[..2_000])),
    ] {
        let real = tokenizer.encode_ordinary(text).len() as f64;
        let estimate = crate::context::estimate::text(text) as f64;
        let error = (estimate / real - 1.0) * 100.0;
        eprintln!("{what:<14} {real:>8} {estimate:>8} {error:>+7.1}%");
        assert!(error.abs() <= 15.0, "{what}: {estimate} for {real}");
    }
}
