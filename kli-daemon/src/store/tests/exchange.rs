//! Search, import and export.

use kli_protocol::api::{ExportFormat, ImportFormat};

use super::*;

fn found(rig: &Rig, search: Search) -> String {
    let hits = rig.store.search(&search).unwrap().0;
    hits.into_iter().map(|hit| format!("{}/{}", hit.session_id, hit.entry_id)).collect::<Vec<_>>().join(" ")
}

fn look(query: &str) -> Search {
    Search { query: query.into(), limit: 100, ..Search::default() }
}

#[test]
fn search_finds_what_people_see() {
    Rig::both(|rig| {
        let log = rig.create("s1");
        put(&log, "u1", None, user("Where is the \"needle\"?\nOn the second line: nädel"));
        let call = ToolCallBlock {
            id: "needle-id".into(),
            name: "bash".into(),
            arguments: serde_json::from_str(r#"{"command":"grep needle","deep":{"er":["haystack"]}}"#).unwrap(),
            thought_signature: None,
        };
        let answer = AssistantMessage {
            content: vec![Block::text("Looking"), Block::ToolCall(call)].into(),
            ..Default::default()
        };
        put(&log, "a1", Some("u1"), Body::message(Message::Assistant(answer)));
        put(
            &log,
            "k1",
            Some("a1"),
            Body::Compaction(Compaction { summary: "no Needle here".into(), ..Default::default() }),
        );
        put(&log, "u2", Some("u1"), user("another branch"));
        put(&log, "l1", Some("u2"), label("u1", Some("an old needle")));
        put(&log, "l2", Some("u2"), label("u1", Some("x")));
        put(&log, "l3", Some("u2"), label("u2", Some("needle label")));
        put(&log, "l4", Some("u2"), label("gone", Some("needle of nothing")));
        let fork = rig.fork(&log, log.find("k1").unwrap(), "f1");
        put(&fork, "x1", Some("k1"), user("needle in the fork"));
        let cases = [
            ("needle", "s1/u1 s1/a1 s1/k1 s1/u2 f1/x1"),
            ("Needle", "s1/k1"),
            ("\"needle\"", "s1/u1"),
            ("nädel", "s1/u1"),
            ("haystack", "s1/a1"),
            ("needle-id", ""),
            ("toolCall", ""),
            ("second line", "s1/u1"),
            ("line\nOn", ""),
        ];
        for (query, right) in cases {
            let mut got: Vec<_> = found(rig, look(query)).split_whitespace().map(str::to_owned).collect();
            got.sort_by_key(|hit| hit.starts_with('f'));
            assert_eq!(got.join(" "), right, "{query}");
        }
        assert_eq!(found(rig, Search { session_id: Some("f1".into()), ..look("needle") }), "f1/u1 f1/a1 f1/k1 f1/x1");
        // Pages join to the whole.
        let whole = found(rig, look("needle"));
        let (mut pages, mut cursor) = (Vec::new(), None);
        loop {
            let (hits, next) = rig.store.search(&Search { limit: 1, cursor, ..look("needle") }).unwrap();
            pages.extend(hits.into_iter().map(|hit| format!("{}/{}", hit.session_id, hit.entry_id)));
            cursor = next.map(|next| Cursor::parse(&next).unwrap());
            if cursor.is_none() {
                break;
            }
        }
        assert_eq!(pages.join(" "), whole);
        let hit = rig.store.search(&look("another")).unwrap().0.remove(0);
        assert_eq!(
            (hit.kind.as_str(), hit.role.as_deref(), hit.preview.as_str(), hit.on_branch),
            ("message", Some("user"), "another branch", true)
        );
        let hit = rig.store.search(&look("needle label")).unwrap().0.remove(0);
        assert_eq!((hit.kind.as_str(), hit.entry_id.as_str(), hit.on_branch), ("label", "u2", true));
        assert!(!rig.store.search(&look("haystack")).unwrap().0.remove(0).on_branch);
        assert!(rig.store.search(&look("  ")).is_err());
    });
}

fn import(rig: &Rig, path: PathBuf, format: ImportFormat, id: &str) -> Result<Arc<Log>> {
    let new = NewSession { work_dir: String::new(), ..rig.new_session(id) };
    rig.store.import(Import { path, format, new, name: None }, &rig.clock)
}

#[test]
fn an_exported_session_comes_back_the_same() {
    Rig::both(|rig| {
        let log = rig.create("s1");
        put(&log, "u1", None, user("one"));
        put(&log, "a1", Some("u1"), assistant("ok"));
        put(&log, "u2", Some("a1"), user("off the branch"));
        let fork = rig.fork(&log, log.find("a1").unwrap(), "f1");
        put(&fork, "u3", Some("a1"), user("in the fork \u{2028}"));
        put(&fork, "l1", Some("u3"), label("a1", Some("L")));
        put(&fork, "v1", Some("a1"), Body::Leaf(LeafRecord {}));
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("x.jsonl");
        let export = Export { format: ExportFormat::Jsonl, leaf: fork.leaf() };
        fork.export_file(export, &path).unwrap();
        assert!(matches!(fork.export_file(export, &path), Err(StoreError::FileExists { .. })));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(fork.export_text(export, 1 << 20).unwrap(), text);
        assert!(matches!(fork.export_text(export, 100), Err(StoreError::Limit { .. })));
        assert!(text.starts_with("{\"type\":\"session\",\"version\":3,\"id\":\"f1\""));
        let copy = import(rig, path, ImportFormat::Auto, "i1").unwrap();
        let (mut was, mut is) = (picture(&fork), picture(&copy));
        for picture in [&mut was, &mut is] {
            // What a session of its own has no other way.
            picture["facts"] = json!(null);
        }
        assert_eq!(is, was);
        assert_eq!(copy.facts().first_prompt.as_deref(), Some("one"));
        assert_eq!(branch(&rig.reopened(copy)), "u1 a1");
    });
}

/// Some providers count their calls from 0 in every turn.
#[test]
fn pi_gets_each_call_with_its_own_result() {
    let rig = Rig::file();
    let log = rig.create("s1");
    let answer = || {
        let call = Block::ToolCall(ToolCallBlock { id: "call_0".into(), name: "ls".into(), ..Default::default() });
        let answer = AssistantMessage { content: vec![call].into(), ..Default::default() };
        Body::Message(MessageBody { message: Message::Assistant(answer), idempotency_key: None })
    };
    let result = |text: &str| {
        let content = vec![Block::text(text)].into();
        let result = ToolResultMessage { tool_call_id: "call_0".into(), content, ..Default::default() };
        Body::Message(MessageBody { message: Message::ToolResult(result), idempotency_key: None })
    };
    let bodies = [
        ("u1", user("one")),
        ("a1", answer()),
        ("r1", result("first")),
        ("r1b", result("first again")),
        ("a2", answer()),
        ("a3", answer()),
        ("r3", result("third")),
    ];
    let mut above: Option<&str> = None;
    for (id, body) in bodies {
        put(&log, id, above, body);
        above = Some(id);
    }
    let text = log.export_text(Export { format: ExportFormat::Pi, leaf: log.leaf() }, 1 << 20).unwrap();
    let ids: Vec<String> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["type"] == "message")
        .map(|line| match line["message"]["content"][0]["text"].as_str() {
            Some("This call was not carried out.") => "made".to_owned(),
            _ => line["id"].as_str().unwrap().to_owned(),
        })
        .collect();
    assert_eq!(ids.join(" "), "u1 a1 r1 a2 made a3 r3");
}

/// It is kept where it is and never sent; what is around it goes out.
#[test]
fn an_entry_nested_too_deep_costs_no_export() {
    let rig = Rig::file();
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    let message = |id: &str, parent: &str, more: &str| {
        format!(
            r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"t","message":{{"role":"user","content":"text of {id}"{more}}}}}"#
        )
    };
    let lines = [
        r#"{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/tmp"}"#.to_owned(),
        message("u1", "null", ""),
        message("u2", "\"u1\"", &format!(",\"x\":{deep}")),
        message("u3", "\"u2\"", ""),
    ];
    std::fs::write(rig.path().join("x_s.jsonl"), lines.join("\n") + "\n").unwrap();
    let log = rig.store.open("s").unwrap();
    let export = |format| log.export_text(Export { format, leaf: log.leaf() }, 1 << 20).unwrap();
    assert_eq!(export(ExportFormat::Jsonl).lines().skip(1).collect::<Vec<_>>(), lines[1..]);
    for format in [ExportFormat::Pi, ExportFormat::Markdown, ExportFormat::Html] {
        let text = export(format);
        assert!(text.contains("text of u1") && text.contains("text of u3"), "{format:?}: {text}");
    }
}

#[test]
fn pi_gets_what_it_needs() {
    let rig = Rig::file();
    let log = rig.create("s1");
    put(&log, "m1", None, model("m"));
    put(&log, "u1", Some("m1"), user("one"));
    let call = |id: &str| Block::ToolCall(ToolCallBlock { id: id.into(), name: "ls".into(), ..Default::default() });
    let answer = AssistantMessage { content: vec![call("c1"), call("c2")].into(), ..Default::default() };
    put(&log, "a1", Some("u1"), Body::message(Message::Assistant(answer)));
    put(&log, "l1", Some("a1"), label("u1", Some("L")));
    let result = ToolResultMessage {
        tool_call_id: "c2".into(),
        tool_name: "ls".into(),
        content: "x".into(),
        ..Default::default()
    };
    put(&log, "r2", Some("a1"), Body::message(Message::ToolResult(result)));
    put(&log, "o1", Some("r2"), Body::OptionChange(OptionChange { option_id: "x".into(), value: json!(1) }));
    put(&log, "u2", Some("o1"), user("two"));
    let text = log.export_text(Export { format: ExportFormat::Pi, leaf: log.leaf() }, 1 << 20).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = lines.iter().map(|l| l["message"]["role"].as_str().or(l["type"].as_str()).unwrap()).collect();
    assert_eq!(
        names,
        ["session", "model_change", "thinking_level_change", "user", "assistant", "toolResult", "toolResult", "user"]
    );
    assert!(Path::new(lines[0]["cwd"].as_str().unwrap()).is_dir());
    for pair in lines[1..].windows(2) {
        assert_eq!(pair[1]["parentId"], pair[0]["id"]);
    }
    assert_eq!((&lines[5]["message"]["toolCallId"], &lines[6]["message"]["toolCallId"]), (&json!("c1"), &json!("c2")));
    assert!(lines[4]["message"]["usage"]["cost"]["total"].is_number());
}

#[test]
fn pages_are_readable_and_escaped() {
    let rig = Rig::memory();
    let log = rig.create("s1");
    put(&log, "u1", None, user("what is <b>?"));
    put(&log, "a1", Some("u1"), assistant("```rust\nfn x() {}\n```"));
    let export = |format| log.export_text(Export { format, leaf: log.leaf() }, 1 << 20).unwrap();
    let page = export(ExportFormat::Markdown);
    assert!(
        page.starts_with("# what is <b>?\n") && page.contains("## Assistant\n\n```rust\nfn x() {}\n```\n"),
        "{page}"
    );
    let page = export(ExportFormat::Html);
    assert!(page.contains("what is &lt;b&gt;?") && !page.contains("<b>"), "{page}");
}

#[test]
fn sessions_of_other_programs_come_in() {
    let Some(dir) = shared("sessions") else { return };
    let cases = [
        // Path, format, roles of the first messages, records at least, name.
        ("kimi/tiny-hello-world", ImportFormat::Kimi, "user assistant", 2, None),
        ("kimi/with-tool-calls/context.jsonl", ImportFormat::Kimi, "user custom_message assistant toolResult", 4, None),
        ("kimi/with-thinking", ImportFormat::Kimi, "user custom_message assistant user", 4, None),
        ("kimi/legacy-protocol-1.3", ImportFormat::Kimi, "user custom_message", 3, Some("plan")),
        ("kimi/large-100msgs", ImportFormat::Kimi, "user assistant toolResult", 50, None),
        ("codex/rollout.jsonl", ImportFormat::Codex, "model_change thinking_level_change user", 20, Some("")),
        ("claude/project.jsonl", ImportFormat::Claude, "custom custom", 20, Some("Stage0 small fixture")),
        ("pi/branch-trace.jsonl", ImportFormat::Pi, "user assistant user assistant user branch_summary", 6, None),
        ("pi/before-compaction.v1.jsonl", ImportFormat::Pi, "user", 500, None),
        ("pi/pi-v3-real.jsonl", ImportFormat::Pi, "model_change thinking_level_change", 10, None),
    ];
    Rig::both(|rig| {
        for (number, (path, format, roles, count, name)) in cases.iter().enumerate() {
            let (auto, named) = (format!("a{number}"), format!("n{number}"));
            let log = import(rig, dir.join(path), ImportFormat::Auto, &auto).unwrap();
            let other = import(rig, dir.join(path), *format, &named).unwrap();
            let records: Vec<Record> = log.records_after(None).map(|n| log.record(n.ix).unwrap()).collect();
            assert!(records.len() >= *count, "{path}: {}", records.len());
            let role = |r: &Record| match &r.body {
                Body::Message(b) => serde_json::to_value(&b.message).unwrap()["role"].as_str().unwrap().to_owned(),
                _ => r.kind.clone(),
            };
            let first: Vec<_> = records.iter().map(role).take(roles.split(' ').count()).collect();
            assert_eq!(first.join(" "), *roles, "{path}");
            let title = log.facts().name;
            assert_eq!(title.is_some(), name.is_some(), "{path}: {title:?}");
            assert!(title.unwrap_or_default().contains(name.unwrap_or_default()), "{path}");
            assert!(log.facts().warnings.is_empty(), "{path}: {:?}", log.facts().warnings);
            assert_eq!(other.records_after(None).count(), records.len());
            let before = picture(&log);
            let again = rig.reopened(log);
            assert_eq!(picture(&again), before, "{path}");
            assert!(
                kinds(&again).iter().all(|kind| kind == "missingParent" || kind == "cycle"),
                "{path}: {:?}",
                kinds(&again)
            );
        }
    });
}

#[test]
fn kimi_tells_times_usage_and_errors() {
    let Some(dir) = shared("sessions/kimi") else { return };
    let rig = Rig::memory();
    let log = import(&rig, dir.join("large-100msgs"), ImportFormat::Auto, "k").unwrap();
    assert!(log.facts().usage.output > 500, "{:?}", log.facts().usage);
    assert!(log.facts().created_at.starts_with("2026-03-17T"), "{}", log.facts().created_at);
    let log = import(&rig, dir.join("with-tool-calls"), ImportFormat::Auto, "t").unwrap();
    let Body::Message(MessageBody { message: Message::ToolResult(result), .. }) =
        log.record(log.leaf().unwrap()).unwrap().body
    else {
        panic!()
    };
    assert!(result.is_error && result.tool_name == "Shell" && result.tool_call_id == "tc1");
}

/// Where nothing in a session tells a time its file does: no session is of 1970.
#[test]
fn sessions_without_times_are_as_old_as_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let rig = Rig::memory();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_750_000_000);
    let cases = [
        ("context.jsonl", r#"{"role":"user","content":"hi"}"#),
        (
            "codex.jsonl",
            r#"{"type":"response_item","payload":{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]}}"#,
        ),
        (
            "claude.jsonl",
            r#"{"type":"user","uuid":"u1","parentUuid":null,"sessionId":"s","message":{"role":"user","content":"hi"}}"#,
        ),
    ];
    for (name, line) in cases {
        let path = dir.path().join(name);
        std::fs::write(&path, format!("{line}\n")).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let facts = import(&rig, path, ImportFormat::Auto, &name.replace(".jsonl", "")).unwrap().facts();
        let times = (facts.created_at.as_str(), facts.updated_at.as_str());
        assert_eq!(times, ("2025-06-15T15:06:40.000Z", "2025-06-15T15:06:40.000Z"), "{name}");
    }
}

/// Kimi files sessions under the hash of their work directory; which that is, its state tells.
#[test]
fn kimi_tells_the_work_directory_where_its_state_does() {
    let kimi = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = kimi.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    };
    let state = json!({"work_dirs": [{"path": "/other"}, {"path": "/home/u/ü", "kaos": "local"}, {"path": "/srv/p", "kaos": "box"}]});
    write("kimi.json", &state.to_string());
    let line = "{\"role\":\"user\",\"content\":\"hi\"}\n";
    let cases = [
        ("sessions/0f2f37b0f75e4e98adea3ab7e5c9ef11/s1/context.jsonl", None),
        ("sessions/473ce7a68cd6f0a699709b6b0d33b8cb/s1/context.jsonl", Some("/home/u/ü")),
        ("sessions/473ce7a68cd6f0a699709b6b0d33b8cb/s2.jsonl", Some("/home/u/ü")),
        ("sessions/box_396d83b966ff1a3d61a02ab587119ff4/s3/context.jsonl", Some("/srv/p")),
    ];
    let rig = Rig::memory();
    for (number, (path, wanted)) in cases.iter().enumerate() {
        let path = write(path, line);
        let new = NewSession { work_dir: String::new(), ..rig.new_session(&format!("k{number}")) };
        let order = Import { path: path.clone(), format: ImportFormat::Kimi, new, name: None };
        let work_dir = rig.store.import(order, &rig.clock).unwrap().facts().work_dir;
        let fallback = path.parent().unwrap().canonicalize().unwrap().display().to_string();
        assert_eq!(work_dir, wanted.map_or(fallback, str::to_owned));
    }
}

#[test]
fn codex_roll_backs_and_claude_answers() {
    let rig = Rig::memory();
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, lines: &[Value]| {
        let path = dir.path().join(name);
        std::fs::write(&path, lines.iter().map(|l| format!("{l}\n")).collect::<String>()).unwrap();
        path
    };
    let item =
        |payload: Value| json!({"timestamp": "2026-01-01T00:00:00.000Z", "type": "response_item", "payload": payload});
    let said = |role: &str, text: &str| {
        item(json!({"type": "message", "role": role, "content": [{"type": "text", "text": text}]}))
    };
    let codex = write(
        "codex.jsonl",
        &[
            json!({"type": "session_meta", "payload": {"id": "x", "cwd": "/tmp/repo"}}),
            said("user", "<environment_context>..."),
            said("user", "one"),
            item(json!({"type": "reasoning", "summary": [{"text": "hm"}], "encrypted_content": "e"})),
            said("assistant", "ok"),
            item(json!({"type": "function_call", "call_id": "c1", "name": "shell", "arguments": "{\"a\":1}"})),
            item(json!({"type": "function_call_output", "call_id": "c1", "output": "done"})),
            said("user", "two"),
            said("assistant", "no"),
            json!({"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}),
            said("user", "three"),
        ],
    );
    let log = import(&rig, codex, ImportFormat::Auto, "c").unwrap();
    assert_eq!(log.facts().work_dir, "/tmp/repo");
    assert_eq!(branch(&log), "00000002 00000003 00000004 00000007 0000000b");
    assert_eq!(ids(&log, log.children(log.find("00000007").ok())), "00000008 0000000b");
    let line = |uuid: &str, parent: Option<&str>, kind: &str, message: Value| json!({"uuid": uuid, "parentUuid": parent, "type": kind, "message": message, "cwd": "/tmp/repo", "timestamp": "2026-01-01T00:00:00.000Z"});
    let claude = write(
        "claude.jsonl",
        &[
            line("u1", None, "user", json!({"role": "user", "content": "one"})),
            line(
                "a1",
                Some("u1"),
                "assistant",
                json!({"id": "m1", "role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}),
            ),
            line(
                "a2",
                Some("a1"),
                "assistant",
                json!({"id": "m1", "role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "ls", "input": {}}]}),
            ),
            line(
                "a3",
                Some("a2"),
                "assistant",
                json!({"id": "m1", "role": "assistant", "content": [{"type": "tool_use", "id": "c2", "name": "ls", "input": {}}], "usage": {"output_tokens": 7}}),
            ),
            line(
                "r1",
                Some("a2"),
                "user",
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}]}),
            ),
            line(
                "r2",
                Some("a3"),
                "user",
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c2", "content": "x"}, {"type": "text", "text": "and"}]}),
            ),
            line("u2", Some("u1"), "user", json!({"role": "user", "content": "another branch"})),
        ],
    );
    let log = import(&rig, claude, ImportFormat::Auto, "d").unwrap();
    assert_eq!(branch(&log), "u1 u2");
    assert_eq!(ids(&log, log.children(log.find("u1").ok())), "a1 u2");
    assert_eq!(ids(&log, log.children(log.find("a1").ok())), "r1 r2-0");
    let Body::Message(MessageBody { message: Message::Assistant(answer), .. }) = log.record(Ix(1)).unwrap().body else {
        panic!()
    };
    assert_eq!((answer.content.blocks().len(), answer.usage.output, answer.stop_reason), (3, 7, StopReason::ToolUse));
}

#[test]
fn an_import_that_fails_leaves_nothing() {
    let rig = Rig::file();
    let path = rig.path().join("other.txt");
    std::fs::write(&path, "hello\n").unwrap();
    assert!(import(&rig, path.clone(), ImportFormat::Auto, "i").is_err());
    assert!(import(&rig, path, ImportFormat::Claude, "i").is_err());
    assert!(rig.store.list(&Filter::default()).0.is_empty());
    put(&rig.create("i"), "u1", None, user("x"));
}
