//! Texts of many kinds, to hold estimates against real tokenizers: for the test and for the bench.

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

/// Name and text.
pub fn samples() -> Vec<(&'static str, String)> {
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
    vec![
        ("English", ENGLISH.to_owned()),
        ("Rust", code.to_owned()),
        ("Rust (tests)", include_str!("fixtures.rs").to_owned()),
        ("TOML", include_str!("../../../../Cargo.lock").to_owned()),
        ("JSON", json.to_string()),
        ("JSON, indented", serde_json::to_string_pretty(&json).unwrap_or_default()),
        ("Chinese", CHINESE.to_owned()),
        ("Japanese", JAPANESE.to_owned()),
        ("base64", base64),
        ("hex", hex),
        ("mixed", format!("{ENGLISH}\n{CHINESE}\n{}", &code[..2_000])),
    ]
}
