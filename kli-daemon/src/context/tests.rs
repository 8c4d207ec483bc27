//! What is sent: the stored sessions that broke peers, and the kinds of fault behind them.

pub(crate) mod fixtures;
mod properties;
mod samples;
mod tokens;

use fixtures::{Branch, shown, valid};
use kli_protocol::api::ModelInfo;
use kli_protocol::record::{Block, Message};

use super::*;

/// The records, one JSON object each without id and parent: a linear branch `e1`, `e2`, ….
fn check(lines: &[&str], want: &[&str]) {
    let branch = Branch::linear(lines);
    let assembled = assemble(&branch.window(), &fixtures::model());
    valid(&assembled.messages).unwrap_or_else(|fault| panic!("{fault}: {:#?}", shown(&assembled)));
    assert_eq!(shown(&assembled), want, "{lines:#?}");
    // Taking records in one by one gives the same as reading them.
    let mut pushed = Window::default();
    for item in branch.items.iter() {
        pushed.push(item.clone());
    }
    if branch.window().warnings().is_empty() {
        assert_eq!(shown(&assemble(&pushed, &fixtures::model())), want, "pushed: {lines:#?}");
    }
}

fn user(text: &str) -> String {
    format!(r#"{{"type":"message","message":{{"role":"user","content":{text:?}}}}}"#)
}

/// A reply with text and calls (`id name`).
fn reply(stop: &str, text: &str, calls: &[&str]) -> String {
    let mut blocks = vec![serde_json::json!({"type":"text","text":text})];
    for call in calls {
        let (id, name) = call.split_once(' ').unwrap_or((call, "bash"));
        blocks.push(serde_json::json!({"type":"toolCall","id":id,"name":name,"arguments":{"a":1}}));
    }
    serde_json::json!({"type":"message","message":{"role":"assistant","content":blocks,"provider":"p","model":"m","stopReason":stop,
        "usage":{"input":90,"output":10,"totalTokens":100}}})
    .to_string()
}

fn result(id: &str, text: &str) -> String {
    serde_json::json!({"type":"message","message":{"role":"toolResult","toolCallId":id,"toolName":"bash","content":[{"type":"text","text":text}]}})
        .to_string()
}

fn compaction(summary: &str, kept: &str) -> String {
    serde_json::json!({"type":"compaction","summary":summary,"firstKeptEntryId":kept,"tokensBefore":9}).to_string()
}

fn table(lines: &[String], want: &[&str]) {
    check(&lines.iter().map(String::as_str).collect::<Vec<_>>(), want);
}

#[test]
fn stop_reasons() {
    for (stop, want) in [
        ("stop", &["user: q", "reply: text [c1 bash]", "result c1 (error): Interrupted", "user: next"][..]),
        ("toolUse", &["user: q", "reply: text [c1 bash]", "result c1 (error): Interrupted", "user: next"]),
        ("length", &["user: q", "reply: text [c1 bash]", "result c1 (error): Not run", "user: next"]),
        ("aborted", &["user: q", "reply: text", "user: next"]),
        ("error", &["user: q", "user: next"]),
        ("strange", &["user: q", "reply: text [c1 bash]", "result c1 (error): Interrupted", "user: next"]),
    ] {
        table(&[user("q"), reply(stop, "text", &["c1"]), user("next")], want);
    }
    let answered = |stop: &str| [user("q"), reply(stop, "text", &["c1", "c2"]), result("c1", "out"), user("next")];
    table(&answered("aborted"), &["user: q", "reply: text [c1 bash]", "result c1: out", "user: next"]);
    table(&answered("error"), &["user: q", "user: next"]);
    table(
        &answered("length"),
        &["user: q", "reply: text [c1 bash] [c2 bash]", "result c1: out", "result c2 (error): Not run", "user: next"],
    );
}

#[test]
fn aborted_thinking_is_kept_when_it_is_finished_and_leads_to_something() {
    let reply = |blocks: &str| {
        format!(
            r#"{{"type":"message","message":{{"role":"assistant","content":[{blocks}],"provider":"p","model":"m","stopReason":"aborted"}}}}"#
        )
    };
    let signed = r#"{"type":"thinking","thinking":"deep","thinkingSignature":"s"}"#;
    let unsigned = r#"{"type":"thinking","thinking":"half"}"#;
    let text = r#"{"type":"text","text":"so"}"#;
    let call = r#"{"type":"toolCall","id":"c1","name":"bash","arguments":{}}"#;
    for (blocks, want) in [
        (format!("{signed},{text},{unsigned}"), &["user: q", "reply: <deep>so"][..]),
        (format!("{text},{signed}"), &["user: q", "reply: so"]),
        (format!("{signed},{call}"), &["user: q"]),
        (signed.to_owned(), &["user: q"]),
    ] {
        table(&[user("q"), reply(&blocks)], want);
    }
}

#[test]
fn pairing() {
    // Entries between a call and its results come after them.
    table(
        &[user("q"), reply("toolUse", "go", &["c1", "c2"]), result("c2", "two"), user("steer"), result("c1", "one")],
        &["user: q", "reply: go [c1 bash] [c2 bash]", "result c1: one", "result c2: two", "user: steer"],
    );
    // An orphan, a second result.
    table(
        &[
            user("q"),
            result("c9", "orphan"),
            reply("toolUse", "go", &["c1"]),
            result("c1", "one"),
            result("c1", "again"),
        ],
        &["user: q", "reply: go [c1 bash]", "result c1: one"],
    );
    // An id given again pairs with its own turn, and is sent under another name.
    table(
        &[
            user("q"),
            reply("toolUse", "A", &["c"]),
            result("c", "a"),
            reply("toolUse", "B", &["c", "c"]),
            result("c", "b1"),
            result("c", "b2"),
        ],
        &[
            "user: q",
            "reply: A [c bash]",
            "result c: a",
            "reply: B [c_e4 bash] [c_e4_2 bash]",
            "result c_e4: b1",
            "result c_e4_2: b2",
        ],
    );
    // The result of a failed reply's call is not taken for another's.
    table(
        &[user("q"), reply("toolUse", "A", &["c"]), reply("error", "B", &["c"]), result("c", "b")],
        &["user: q", "reply: A [c bash]", "result c (error): Interrupted"],
    );
    // No id, an impossible name, another name in the result, no output.
    table(
        &[user("q"), reply("toolUse", "A", &[" no such/tool"]), result("", " ")],
        &["user: q", "reply: A [_e2 no_such_tool]", "result _e2: (no output)"],
    );
    // A reply first: something of the user must come before it.
    table(&[reply("stop", "hi", &[])], &["user: [The beginning of this conversation is not available.]", "reply: hi"]);
}

#[test]
fn other_entries() {
    table(
        &[
            r#"{"type":"message","message":{"role":"system","content":"never"}}"#.into(),
            r#"{"type":"message","message":{"role":"bashExecution","command":"ls","output":"a\nb\n","exitCode":2,"cancelled":false,"truncated":false}}"#.into(),
            r#"{"type":"message","message":{"role":"bashExecution","command":"pw","output":"","exitCode":0,"excludeFromContext":true}}"#.into(),
            r#"{"type":"custom_message","customType":"x","content":"extension","display":false}"#.into(),
            r#"{"type":"custom","customType":"x","data":1}"#.into(),
            r#"{"type":"branch_summary","summary":"went there","fromId":"root"}"#.into(),
            r#"{"type":"branch_summary","summary":"  ","fromId":"root"}"#.into(),
            r#"{"type":"alien","content":"never"}"#.into(),
            r#"{"type":"message","message":{"role":"user","content":[{"type":"text","text":" "},{"type":"alien"},{"type":"text","text":"q"}]}}"#.into(),
            r#"{"type":"message","message":{"role":"user","content":null}}"#.into(),
            r#"{"type":"message","message":{"role":"user"}}"#.into(),
        ],
        &[
            "user: I ran a command: `ls`\n```\na\nb\n```\nIt exited with code 2.",
            "user: extension",
            "user: Before this point another path of this conversation was explored and left. A summary of that path:\n\n<summary>\nwent there\n</summary>",
            "user: q",
        ],
    );
}

#[test]
fn context_edits() {
    let edit = |target: &str, replacement: &str| {
        format!(r#"{{"type":"context_edit","targetId":"{target}","replacement":{replacement}}}"#)
    };
    let base =
        || vec![user("q"), reply("toolUse", "go", &["c1"]), result("c1", "long output"), reply("stop", "end", &[])];
    let with = |edits: &[String]| [base(), edits.to_vec()].concat();
    for (edits, want) in [
        (
            vec![edit("e1", "null")],
            &[
                "user: [The beginning of this conversation is not available.]",
                "reply: go [c1 bash]",
                "result c1: long output",
                "reply: end",
            ][..],
        ),
        (vec![edit("e2", "null")], &["user: q", "reply: end"]),
        (
            vec![edit("e3", "null")],
            &["user: q", "reply: go [c1 bash]", "result c1: (this result was removed from the context)", "reply: end"],
        ),
        (
            vec![edit("e3", r#"{"content":"short"}"#)],
            &["user: q", "reply: go [c1 bash]", "result c1: short", "reply: end"],
        ),
        // The last one counts, whatever those before it took away.
        (
            vec![edit("e1", "null"), edit("e1", r#"{"content":"Q"}"#)],
            &["user: Q", "reply: go [c1 bash]", "result c1: long output", "reply: end"],
        ),
        (vec![edit("e9", "null")], &["user: q", "reply: go [c1 bash]", "result c1: long output", "reply: end"]),
    ] {
        table(&with(&edits), want);
    }
}

#[test]
fn compactions() {
    let base = || vec![user("one"), reply("stop", "ok one", &[]), user("two"), reply("stop", "ok two", &[])];
    let with = |more: &[String]| [base(), more.to_vec()].concat();
    let kept = "user: The conversation before this point was compacted. This summary stands in for it:\n\n<summary>\nS\n</summary>";
    table(&with(&[compaction("S", "e3"), user("q")]), &[kept, "user: two", "reply: ok two", "user: q"]);
    table(&with(&[compaction("S", "e5"), user("q")]), &[kept, "user: q"]);
    table(&with(&[compaction("S", "gone"), user("q")]), &[kept, "user: q"]);
    table(
        &with(&[compaction("S", "e1"), user("q")]),
        &[kept, "user: one", "reply: ok one", "user: two", "reply: ok two", "user: q"],
    );
    table(
        &with(&[compaction("  ", "e3"), user("q")]),
        &["user: one", "reply: ok one", "user: two", "reply: ok two", "user: q"],
    );
    // Passed over: the one before it counts.
    table(
        &with(&[compaction("S", "e3"), compaction("", "e6"), user("q")]),
        &[kept, "user: two", "reply: ok two", "user: q"],
    );
    // An older one in the kept range says nothing.
    table(&with(&[compaction("OLD", "e3"), user("q"), compaction("S", "e4")]), &[kept, "reply: ok two", "user: q"]);
    // A boundary that lies below its compaction is damage.
    table(&with(&[compaction("S", "e6"), user("q")]), &[kept, "user: q"]);
}

#[test]
fn a_boundary_inside_a_turn_keeps_the_pair() {
    let kept = "user: The conversation before this point was compacted. This summary stands in for it:\n\n<summary>\nS\n</summary>";
    let lines = |kept: &str| {
        let turn =
            [user("q"), reply("toolUse", "go", &["c1", "c2"]), result("c1", "one"), user("steer"), result("c2", "two")];
        [&turn[..], &[compaction("S", kept), user("next")]].concat()
    };
    let pair = ["reply: go [c1 bash] [c2 bash]", "result c1: one", "result c2: two", "user: steer", "user: next"];
    for boundary in ["e2", "e3", "e4", "e5"] {
        let branch = Branch::linear(&lines(boundary).iter().map(String::as_str).collect::<Vec<_>>());
        let got = assemble(&branch.window(), &fixtures::model());
        assert_eq!(shown(&got), [&[kept][..], &pair].concat(), "{boundary}");
    }
}

#[test]
fn only_the_window_is_read() {
    let mut lines: Vec<String> = (0..1000).map(|i| user(&format!("old {i}"))).collect();
    lines.extend([compaction("S", "e999"), user("q")]);
    let branch = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    for (on_branch, reads) in [(true, 4), (false, 2)] {
        let mut read = 0;
        let up = branch.items.iter().rev().map(|item| {
            read += 1;
            Ok::<_, ()>(item.clone())
        });
        Window::read(up, |_| on_branch).unwrap();
        assert_eq!(read, reads);
    }
}

#[test]
fn what_needs_no_change_is_shared() {
    let lines = [user("q"), reply("toolUse", "go", &["c1"]), result("c1", "out"), reply("stop", "end", &[])];
    let branch = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let window = branch.window();
    let (first, second) = (assemble(&window, &fixtures::model()), assemble(&window, &fixtures::model()));
    assert_eq!(first.messages.len(), 4);
    for (a, b) in first.messages.iter().zip(&second.messages) {
        assert!(std::sync::Arc::ptr_eq(a, b), "copied: {a:?}");
    }
}

#[test]
fn open_calls_and_unfinished_runs() {
    let custom = r#"{"type":"custom_message","customType":"x","content":"note"}"#.to_owned();
    let label = r#"{"type":"label","targetId":"e1","label":"x"}"#.to_owned();
    for (lines, open, interrupted) in [
        (vec![], &[][..], false),
        (vec![user("q")], &[], true),
        (vec![user("q"), label.clone()], &[], true),
        (vec![user("q"), reply("stop", "a", &[])], &[], false),
        (vec![user("q"), reply("toolUse", "a", &["c1", "c2"]), result("c1", "x")], &["c2"], true),
        (vec![user("q"), reply("toolUse", "a", &["c1", "c2"]), custom.clone()], &["c1", "c2"], true),
        (vec![user("q"), reply("toolUse", "a", &["c1"]), result("c1", "x")], &[], true),
        (vec![user("q"), reply("toolUse", "a", &["c", "c"]), result("c", "x")], &["c"], true),
        (vec![user("q"), reply("toolUse", "a", &["c1"]), user("on")], &[], true),
        (vec![user("q"), reply("aborted", "a", &["c1"])], &[], false),
        (vec![user("q"), reply("error", "a", &["c1"])], &[], false),
        (vec![user("q"), reply("length", "a", &["c1"])], &["c1"], true),
        (vec![user("q"), reply("length", "a", &["c1"]), result("c1", "Not run")], &[], false),
        (vec![user("q"), r#"{"type":"branch_summary","summary":"s","fromId":"e9"}"#.into()], &[], false),
        (vec![reply("stop", "a", &[]), custom], &[], false),
    ] {
        let window = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>()).window();
        let calls: Vec<String> = window.open_calls().into_iter().map(|call| call.id).collect();
        assert_eq!(
            (calls, window.is_unfinished()),
            (open.iter().map(|s| s.to_string()).collect(), interrupted),
            "{lines:#?}"
        );
    }
}

#[test]
fn another_model_gets_no_signatures_and_no_images() {
    let image = serde_json::to_value(Block::Image(image::png(8, 8, 60))).unwrap();
    let lines = [
        serde_json::json!({"type":"message","message":{"role":"user","content":[{"type":"text","text":"look"},image]}}).to_string(),
        serde_json::json!({"type":"message","message":{"role":"assistant","provider":"p","model":"m","stopReason":"toolUse","content":[
            {"type":"thinking","thinking":"deep","thinkingSignature":"SIG"},{"type":"text","text":"t","textSignature":"SIG"},
            {"type":"toolCall","id":"c1","name":"bash","arguments":{},"thoughtSignature":"SIG"}]}})
        .to_string(),
        serde_json::json!({"type":"message","message":{"role":"toolResult","toolCallId":"c1","toolName":"bash","content":[image]}}).to_string(),
        serde_json::json!({"type":"message","message":{"role":"assistant","provider":"p","model":"m","content":[{"type":"thinking","thinking":"only","thinkingSignature":"SIG"}]}})
        .to_string(),
    ];
    let window = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>()).window();
    let other = ModelInfo { model_id: "other".into(), input: vec!["text".into()], ..fixtures::model() };
    let got = assemble(&window, &other);
    valid(&got.messages).unwrap();
    assert!(!serde_json::to_string(&got.messages).unwrap().contains("SIG"));
    let none = "[image: this model takes no images]";
    assert_eq!(shown(&got), [&format!("user: look{none}"), "reply: t [c1 bash]", &format!("result c1: {none}")]);
    let own = assemble(&window, &fixtures::model());
    assert_eq!(serde_json::to_string(&own.messages).unwrap().matches("SIG").count(), 3);
    assert!(
        own.messages
            .iter()
            .any(|m| matches!(&**m, Message::ToolResult(r) if matches!(r.content.blocks(), [Block::Image(_)])))
    );
}

#[test]
fn a_result_larger_than_the_window_is_cut_for_sending() {
    let small = ModelInfo { context_window: 10_000, ..fixtures::model() };
    let long = format!("BEGIN{}END", "words and 中 more ".repeat(20_000));
    let lines = [user("q"), reply("toolUse", "go", &["c1"]), result("c1", &long)];
    let window = Branch::linear(&lines.iter().map(String::as_str).collect::<Vec<_>>()).window();
    let got = assemble(&window, &small);
    let text = &shown(&got)[2];
    assert!(
        text.starts_with("result c1: BEGIN") && text.ends_with("END") && text.contains("bytes left out"),
        "{}",
        text.len()
    );
    assert!((3_000..=4_400).contains(&got.sizes[2]), "{:?}", got.sizes);
    assert_eq!(assemble(&window, &small).messages[2], got.messages[2], "the same in each request");
}

/// The stored sessions of failures.md D, E, J and K.
#[test]
fn sessions_that_broke_peers() {
    let summary = |text: &str| {
        format!(
            "user: The conversation before this point was compacted. This summary stands in for it:\n\n<summary>\n{text}\n</summary>"
        )
    };
    let (new, text, seven, first) = (summary("NEW SUMMARY"), summary("summary text"), summary("sum 7"), summary("s"));
    for (file, want) in [
        (
            "F042-dangling-call",
            &["user: x", "reply: [c1 bash] [c2 read]", "result c1: out", "result c2 (error): Interrupted"][..],
        ),
        (
            "F043-dangling-mid",
            &["user: x", "reply: [c1 bash]", "result c1 (error): Interrupted", "user: are you there?", "reply: yes"],
        ),
        (
            "F045-aborted-partial-call",
            &["user: x", "reply: let me [c1 write]", "result c1 (error): synthetic: no result", "user: go on"],
        ),
        (
            "F046-out-of-order-and-duplicate-results",
            &[
                "user: x",
                "reply: [c1 bash] [c2 bash] [c3 bash]",
                "result c1: first",
                "result c2 (error): Interrupted",
                "result c3: third",
                "reply: done",
            ],
        ),
        (
            "F048-duplicate-call-id-across-turns",
            &[
                "user: x",
                "reply: [call_0 bash]",
                "result call_0: A",
                "reply: [call_0_a2 bash]",
                "result call_0_a2: B",
                "reply: A then B",
            ],
        ),
        (
            "F054-stale-compaction-mid-pair",
            &[
                &new,
                "user: one",
                "reply: [c1 bash]",
                "result c1: out",
                "reply: ok",
                "user: two",
                "reply: ok two",
                "user: three",
            ],
        ),
        ("F056-kept-id-missing", &[&text, "user: three"]),
        ("F057-kept-is-tool-result", &[&text, "reply: [c1 bash]", "result c1: out", "reply: ok", "user: go on"]),
        ("F020-v1", &[&first, "user: one", "reply: ok", "user: two"]),
        ("F065-many-compactions", &[&seven, "user: x", "user: go on"]),
        ("F108-cross-model-thinking", &["user: x", "reply: [c1 bash]", "result c1: out", "reply: done"]),
        ("F116-empty-assistant", &["user: x", "user: again", "user: and again", "user: last"]),
        ("F005-raw-newline-in-string", &[]),
        ("F012-missing-parent", &[]),
        ("F017-lone-surrogate", &[]),
        ("F025-progress-fork", &[]),
        ("F028-multi-roots", &[]),
    ] {
        let Some(branch) = Branch::shared(&format!("failures/{file}.jsonl")) else { return };
        let got = assemble(&branch.window(), &fixtures::model());
        valid(&got.messages).unwrap_or_else(|fault| panic!("{file}: {fault}"));
        if !want.is_empty() {
            assert_eq!(shown(&got), want, "{file}");
        }
    }
}

#[test]
fn real_sessions_are_valid() {
    for file in ["branch-trace.jsonl", "v3-with-compactions.jsonl", "before-compaction.v1.jsonl"] {
        let Some(branch) = Branch::shared(&format!("sessions/pi/{file}")) else { return };
        let got = assemble(&branch.window(), &fixtures::model());
        valid(&got.messages).unwrap_or_else(|fault| panic!("{file}: {fault}"));
        eprintln!("{file}: {} messages, {} tokens", got.messages.len(), got.tokens(0));
    }
}
