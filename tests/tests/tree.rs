//! The tree: moving the leaf, siblings, labels, forks by reference.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kli_tests::{ModelServer, Place, Reply, Session, Setup, fixtures, is_node, text};
use serde_json::{Value, json};

/// A small tree: A and its answer, B and its answer, B edited, and a summary of the branch that was left. The
/// assistant's content is a plain string and the header names no directory, as other programs write it.
const TRACE: &str = r#"{"type":"session","version":3,"id":"trace-1","timestamp":"2026-10-01T09:00:00.000Z"}
{"type":"message","id":"a-user","parentId":null,"timestamp":"2026-10-01T09:00:01.000Z","message":{"role":"user","content":"question A"}}
{"type":"message","id":"a-bot","parentId":"a-user","timestamp":"2026-10-01T09:00:02.000Z","message":{"role":"assistant","content":"answer A"}}
{"type":"message","id":"b-user","parentId":"a-bot","timestamp":"2026-10-01T09:00:03.000Z","message":{"role":"user","content":"question B"}}
{"type":"message","id":"b-bot","parentId":"b-user","timestamp":"2026-10-01T09:00:04.000Z","message":{"role":"assistant","content":"answer B"}}
{"type":"message","id":"b-edit","parentId":"a-bot","timestamp":"2026-10-01T09:00:05.000Z","message":{"role":"user","content":"question B, edited"}}
{"type":"branch_summary","id":"sum-1","parentId":"a-bot","timestamp":"2026-10-01T09:00:06.000Z","summary":"What was left: the one about B.","fromId":"b-bot"}
"#;

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap()
}

/// What was appended to a file since it was read.
#[track_caller]
fn appended(path: &Path, before: &[u8]) -> Vec<Value> {
    let now = read(path);
    assert!(now.starts_with(before), "bytes before the end were changed");
    let tail = std::str::from_utf8(&now[before.len()..]).unwrap();
    tail.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn the_branch_trace_of_another_program() {
    let daemon = Setup::new().start();
    let place = fixtures::temp_dir("kli-t");
    let path = place.path().join("trace.jsonl");
    std::fs::write(&path, TRACE).unwrap();

    let mut session = Session::open(&daemon, &path);
    assert_eq!(session.leaf().as_deref(), Some("sum-1"));
    assert_eq!(session.children("a-bot"), ["b-user", "b-edit", "sum-1"]);
    assert_eq!(session.children("b-user"), ["b-bot"]);
    assert_eq!(session.call("getTree", json!({}))["roots"], json!(["a-user"]));
    let context = session.context();
    for (part, sent) in [
        ("question A", true),
        ("answer A", true),
        ("the one about B", true),
        ("question B", false),
        ("answer B", false),
    ] {
        assert_eq!(context.contains(part), sent, "{part} in {context}");
    }
    assert_eq!(read(&path), TRACE.as_bytes(), "reading wrote");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "reading left a file beside it");

    session.ask("and now?");
    let new = appended(&path, TRACE.as_bytes());
    let roles: Vec<&Value> = new.iter().map(|record| &record["message"]["role"]).collect();
    assert_eq!(roles, ["user", "assistant"], "one line for each entry and nothing else");
    assert_eq!(new[0]["parentId"], "sum-1");
    assert!(session.nodes().iter().any(|node| node["id"] == "b-bot"), "the left branch is still in the tree");
}

#[test]
fn an_edited_prompt_is_a_sibling() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    session.ask("second question");
    let (second, path) = (session.newest_prompt(), session.path());
    let (left, before) = (session.leaf(), read(&path));
    let parent = fixtures::records(&path).iter().find(|r| r["id"] == second.as_str()).unwrap()["parentId"].clone();

    let moved = session.call("navigateTree", json!({ "entryId": second }));
    assert_eq!(moved["editorText"], "second question");
    assert_eq!((&moved["leafId"], &moved["fromId"]), (&parent, &json!(left)));
    session.ask("second question, edited");
    let edited = session.newest_prompt();

    assert_eq!(session.children(&text(&parent)), [second.clone(), edited]);
    assert_eq!(session.nodes().len(), session.file_tree().len());
    for node in session.nodes() {
        let (parent, children) = session.file_tree()[&text(&node["id"])].clone();
        assert_eq!((&node["parentId"], &node["children"]), (&parent, &json!(children)), "{node}");
        assert_eq!(node["childCount"], json!(children.len()));
    }
    let on_branch: Vec<String> =
        session.nodes().iter().filter(|node| node["onBranch"] == true).map(|node| text(&node["id"])).collect();
    assert_eq!(on_branch, session.branch_ids());
    appended(&path, &before);
    assert!(String::from_utf8(read(&path)).unwrap().contains("\"second question\""), "the old prompt is kept");
    let context = session.context();
    assert!(context.contains("read hello.txt") && context.contains("second question, edited"), "{context}");
    assert!(!context.contains("\"second question\""), "the left branch is not sent: {context}");
}

#[test]
fn navigating() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("first");
    session.ask("second");
    let branch = session.branch();
    let path = session.path();
    let prompts = session.prompts();
    let (second, first) = (prompts[0].0.clone(), prompts[1].0.clone());
    let first_parent = branch.iter().find(|e| e["id"] == first.as_str()).unwrap()["parentId"].clone();
    let leaf = session.leaf().unwrap();
    let reply = text(&branch.iter().rev().find(|e| e["message"]["role"] == "assistant").unwrap()["id"]);

    // Onto the leaf itself: nothing is written.
    let before = read(&path);
    let stay = session.call("navigateTree", json!({ "entryId": leaf }));
    assert_eq!((&stay["leafId"], stay.get("editorText")), (&json!(leaf), None));
    assert_eq!(read(&path), before);
    // One `leaf` record for each move.
    let moved = session.call("navigateTree", json!({ "entryId": second, "position": "at" }));
    assert_eq!((&moved["leafId"], &moved["fromId"]), (&json!(second), &json!(leaf)));
    let new = appended(&path, &before);
    assert_eq!(new.len(), 1);
    assert_eq!((&new[0]["type"], &new[0]["parentId"]), (&json!("leaf"), &json!(second)));
    // To the first prompt: where it hung; null: before everything.
    let moved = session.call("navigateTree", json!({ "entryId": first }));
    assert_eq!((&moved["leafId"], &moved["editorText"]), (&first_parent, &json!("first")));
    let moved = session.call("navigateTree", json!({ "entryId": null }));
    assert_eq!((&moved["leafId"], &moved["fromId"]), (&Value::Null, &first_parent));
    assert_eq!((session.leaf(), session.branch_ids()), (None, Vec::new()));
    session.ask("a new beginning");
    let roots = session.call("getTree", json!({}))["roots"].as_array().unwrap().len();
    assert!(roots >= 2, "a session navigated to before its first entry has several roots");
    assert!(session.context().contains("a new beginning") && !session.context().contains("second"));
    // And back, by `fromId` or by any entry.
    session.call("navigateTree", json!({ "entryId": reply }));
    assert!(session.context().contains("second"));

    let mark = text(&fixtures::records(&path).iter().find(|r| r["type"] == "leaf").unwrap()["id"]);
    assert_eq!(session.error("navigateTree", json!({ "entryId": mark })).kind(), "invalidEntry");
    assert_eq!(session.error("navigateTree", json!({ "entryId": "ffffffff-none" })).kind(), "entryNotFound");
    let (before, leaf) = (read(&path), session.leaf());
    let error = session.error("navigateTree", json!({ "entryId": first, "label": "x".repeat(201) }));
    assert_eq!((error.code(), session.leaf()), (-32602, leaf), "nothing is half done");
    assert_eq!(read(&path), before);
    let error = session.error("navigateTree", json!({ "entryId": first, "leafId": second }));
    assert_eq!((error.kind(), &error.0["data"]["leafId"]), ("leafMoved", &json!(session.leaf())));
}

#[test]
fn labels() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("one");
    let (prompt, leaf) = (session.newest_prompt(), session.leaf().unwrap());
    assert_eq!(session.call("setLabel", json!({ "entryId": leaf, "label": "here" })).get("previous"), None);
    session.call("setLabel", json!({ "entryId": prompt, "label": "gone" }));
    assert_eq!(session.labels().len(), 2);
    let previous = session.call("setLabel", json!({ "entryId": prompt, "label": null }));
    assert_eq!(previous["previous"], "gone");
    assert_eq!(session.labels(), [(leaf.clone(), "here".to_owned())].into());
    assert_eq!(session.leaf(), Some(leaf.clone()), "a label does not move the leaf");
    // What is attached next hangs on the entry, not on the label.
    session.ask("two");
    let prompt = session.newest_prompt();
    assert_eq!(session.children(&leaf), [prompt]);
}

#[test]
fn a_fork_shares_its_entries() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    session.ask("second question");
    let (prompt, path) = (session.newest_prompt(), session.path());
    let parent = fixtures::records(&path).iter().find(|r| r["id"] == prompt.as_str()).unwrap()["parentId"].clone();
    session.call("setLabel", json!({ "entryId": parent, "label": "here" }));
    let (before, whole) = (read(&path), session.branch_ids());

    let (mut fork, result) = session.forked(&daemon, "fork", json!({ "entryId": prompt }));
    assert_eq!(result["text"], "second question");
    assert_eq!(result["session"]["parentSession"], json!(session.id));
    assert_eq!(result["session"]["forkEntryId"], parent);
    assert_eq!(read(&path), before, "the source is as it was");
    let fork_path = fork.path();
    let header = fixtures::records(&fork_path).remove(0);
    assert_eq!(
        (&header["type"], &header["version"], &header["id"]),
        (&json!("kli_session"), &json!(4), &json!(fork.id))
    );
    assert_eq!((&header["cwd"], &header["parentSession"]), (&json!(work_dir.path()), &json!(session.id)));
    assert_eq!(header["base"], json!({ "session": session.id, "entry": parent, "at": before.len() }));
    assert!(read(&fork_path).len() < 1024 + work_dir.path().as_os_str().len());
    assert_eq!(std::fs::metadata(&fork_path).unwrap().permissions().mode() & 0o777, 0o600);
    let shared = whole.iter().position(|id| *id == prompt).unwrap();
    assert_eq!(fork.branch_ids(), whole[..shared], "the same entries, by the same ids");
    assert_eq!(fork.labels(), session.labels());

    // Each goes its own way; the other's file stays as it was.
    fork.ask("asked in the fork");
    assert_eq!(read(&path), before);
    assert!(!session.nodes().iter().any(|node| node["preview"].to_string().contains("asked in the fork")));
    let (at_fork, fork_bytes) = (fork.branch_ids(), read(&fork_path));
    let (mut second, _) = fork.forked(&daemon, "fork", json!({ "entryId": at_fork.last() }));
    assert_eq!(second.branch_ids(), at_fork, "a fork of a fork");
    session.ask("asked in the source later");
    session.call("setLabel", json!({ "entryId": whole[0], "label": "later" }));
    assert_eq!((fork.branch_ids(), second.branch_ids()), (at_fork.clone(), at_fork.clone()));
    assert_eq!((fork.labels().len(), second.labels().len()), (1, 1), "a later label does not reach the forks");
    assert_eq!(read(&fork_path), fork_bytes);

    let forest = session.client.call("getForest", json!({}));
    let children = |id: &str| {
        let node = forest["nodes"].as_array().unwrap().iter().find(|node| node["sessionId"] == id).unwrap();
        node["children"].clone()
    };
    assert_eq!(children(&session.id), json!([fork.id]));
    assert_eq!(children(&fork.id), json!([second.id]));
    assert!(forest["roots"].as_array().unwrap().contains(&json!(session.id)));
    assert!(!forest["roots"].as_array().unwrap().contains(&json!(fork.id)));
}

#[test]
fn forking_anywhere() {
    let server = ModelServer::with([
        Reply::call("c1", "bash", json!({ "command": "echo hi" })),
        Reply::text("done"),
        Reply::text("on the other branch"),
    ]);
    let daemon = Setup::new().persisted().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("run it");
    let branch = session.branch();
    let id_of = |role: &str| text(&branch.iter().find(|e| e["message"]["role"] == role).unwrap()["id"]);
    let (prompt, call, result) = (id_of("user"), id_of("assistant"), id_of("toolResult"));
    session.call("navigateTree", json!({ "entryId": prompt }));
    session.ask("something else");

    // Between a call and its result: the entries stay as they are, the request is made valid.
    let (mut cut, _) = session.forked(&daemon, "fork", json!({ "entryId": call }));
    assert_eq!(cut.leaf(), Some(call.clone()), "off the branch, `at` by default");
    cut.ask("go on");
    assert!(server.last().says("go on"));
    // `before` a non-prompt: the nearest entry above, no text.
    let (mut before, made) = session.forked(&daemon, "fork", json!({ "entryId": result, "position": "before" }));
    assert_eq!((before.leaf(), made.get("text")), (Some(call), None));
    // `at` a prompt: the branch ends with it.
    let (mut at, _) = session.forked(&daemon, "fork", json!({ "entryId": prompt, "position": "at" }));
    assert_eq!(at.leaf(), Some(prompt));
    assert_eq!(session.error("fork", json!({ "entryId": "no-such-entry" })).kind(), "entryNotFound");
    // At what comes before any message: that entry itself, whether `at` is said or not.
    let opening = text(&branch[0]["id"]);
    for position in [Value::Null, json!("at")] {
        let (_, made) = session.forked(&daemon, "fork", json!({ "entryId": opening, "position": position }));
        assert_eq!(made["session"]["forkEntryId"], json!(opening), "{position}");
    }
    server.assert_valid();
}

/// A fork is made whole or not at all, and the first that anybody hears of it is that it is there.
#[test]
fn what_a_fork_is_to_be() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("first");
    let (prompt, leaf) = (session.newest_prompt(), session.leaf());
    let all = &mut daemon.client();
    all.call("subscribe", json!({}));
    let directory = daemon.session_dir.clone().unwrap();
    for (fault, kind, code) in [
        (json!({ "name": "x".repeat(201) }), "", -32602),
        (json!({ "newSessionId": "not an id" }), "", -32602),
        (json!({ "newSessionId": session.id }), "sessionExists", -32023),
        (json!({ "workDir": "relative" }), "", -32602),
        (json!({ "workDir": "/no/such/directory" }), "workDirNotFound", -32028),
    ] {
        for method in ["fork", "clone", "rewind"] {
            let mut params = fault.clone();
            if method == "fork" {
                params["entryId"] = json!(leaf);
            }
            let error = session.error(method, params);
            assert_eq!((error.kind(), error.code()), (kind, code), "{method} {fault}");
        }
    }
    assert_eq!(fixtures::session_files(&directory).len(), 1, "nothing is left of those");
    for (method, mut params) in
        [("fork", json!({ "entryId": leaf })), ("fork", json!({ "entryId": prompt })), ("clone", json!({}))]
    {
        params["name"] = json!("a name");
        let made = session.call(method, params)["session"].clone();
        assert_eq!(made["name"], "a name");
        let of_it = |e: &kli_tests::Event| e.body["sessionId"] == made["sessionId"];
        let first = all.until(|e| of_it(e));
        assert_eq!((first.kind(), &first.body["session"]["name"]), ("sessionCreated", &json!("a name")));
    }
}

#[test]
fn clone_and_rewind() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("first");
    session.ask("second");
    let (path, branch) = (session.path(), session.branch_ids());
    let prompts = session.prompts();
    let before = read(&path);

    let (mut clone, _) = session.forked(&daemon, "clone", json!({ "name": "a copy" }));
    assert_eq!(clone.branch_ids(), branch);
    assert_eq!(clone.state()["title"], "a copy");
    clone.ask("only in the clone");
    assert_eq!(read(&path), before);

    // Rewind: before the newest prompt by default.
    let (mut rewound, result) = session.forked(&daemon, "rewind", json!({}));
    assert_eq!(result["text"], "second");
    assert_eq!(rewound.prompts().len(), 1);
    // Before the first prompt there is nothing to share: a fresh session of the same kind.
    let (mut fresh, result) = session.forked(&daemon, "rewind", json!({ "entryId": prompts[1].0 }));
    assert_eq!(result["text"], "first");
    let records = fixtures::records(&fresh.path());
    assert_eq!((&records[0]["type"], records[0].get("base")), (&json!("session"), None));
    assert_eq!(records[0]["parentSession"], json!(session.id));
    assert!(!fresh.branch().iter().any(|entry| entry["type"] == "message"));
    let (state, source) = (fresh.state(), session.state());
    for key in ["provider", "modelId", "options", "mode", "workDir"] {
        assert_eq!(state[key], source[key], "{key}");
    }
    // A prompt off the branch, or no prompt at all.
    session.call("navigateTree", json!({ "entryId": prompts[0].0 }));
    assert_eq!(session.error("rewind", json!({ "entryId": prompts[0].0 })).kind(), "invalidEntry");
    let leaf = session.leaf();
    assert_eq!(session.error("rewind", json!({ "entryId": leaf })).kind(), "invalidEntry");
}

#[test]
fn a_fork_costs_the_same_at_any_size() {
    let daemon = Setup::new().persisted().start();
    let work_dir = fixtures::work_dir();
    let directory = daemon.session_dir.clone().unwrap();
    for entries in [12, 10_000] {
        let id = format!("size-{entries}");
        let (file, ids) = fixtures::long_session(&id, work_dir.path(), entries);
        file.write(&directory.join(format!("--w--/2026-01-01T00-00-00-000Z_{id}.jsonl")));
        let mut session = Session::attach(&daemon, &id);
        assert_eq!(session.state()["entryCount"], json!(entries));
        let prompt = &ids[entries - 4];
        let (mut fork, result) = session.forked(&daemon, "fork", json!({ "entryId": prompt }));
        assert!(text(&result["text"]).starts_with(&format!("entry {}", entries - 4)));
        let size = read(&fork.path()).len();
        assert!(size < 1024 + work_dir.path().as_os_str().len(), "{size} bytes at {entries} entries");
        assert_eq!(fork.branch_ids(), ids[..entries - 4]);
        assert_eq!(fork.state()["entryCount"], json!(entries - 4));
    }
}

#[test]
fn forks_in_memory() {
    let daemon = Setup::new().start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    let (mut fork, result) = session.forked(&daemon, "clone", json!({}));
    assert_eq!((&result["session"]["persisted"], result["session"].get("path")), (&json!(false), None));
    fork.ask("in the fork");
    assert!(fork.branch_ids().starts_with(&session.branch_ids()));
    assert!(!session.context().contains("in the fork"));
}

#[test]
fn views_of_the_tree() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    session.ask("two");
    let nodes = session.nodes();
    let messages = session.call("getTree", json!({ "view": "messages" }))["nodes"].take();
    let count = nodes.iter().filter(|node| node["type"] == "message").count();
    assert_eq!(messages.as_array().unwrap().len(), count);
    let prompts = session.call("getTree", json!({ "view": "prompts" }))["nodes"].take();
    let shown: Vec<&Value> = prompts.as_array().unwrap().iter().collect();
    assert_eq!(shown.len(), 2);
    assert_eq!(shown[1]["parentId"], shown[0]["id"], "parents are the nearest nodes shown");
    let folded = session.call("getTree", json!({ "view": "branches" }))["nodes"].take();
    assert_eq!(folded.as_array().unwrap().len(), 2, "a run without a fork or a label, and the leaf: {folded}");
    assert_eq!(folded[0]["count"], json!(nodes.len() - 1));
    assert_eq!(folded[0]["lastId"], nodes[nodes.len() - 2]["id"]);
    assert_eq!(folded[1]["id"], json!(session.leaf()));
    assert_eq!((&folded[1]["lastId"], &folded[1]["count"]), (&folded[1]["id"], &json!(1)), "a run of one");
    let unfolded =
        session.call("getTree", json!({ "rootId": folded[0]["id"], "lastId": folded[0]["lastId"] }))["nodes"].take();
    assert_eq!(unfolded.as_array().unwrap().len(), nodes.len() - 1);

    // In pages: from the newest back, each in file order.
    let page = session.call("getTree", json!({ "limit": 2 }));
    let ids: Vec<String> = page["nodes"].as_array().unwrap().iter().map(|node| text(&node["id"])).collect();
    let newest: Vec<String> = nodes[nodes.len() - 2..].iter().map(|node| text(&node["id"])).collect();
    assert_eq!(ids, newest);
    let next = session.call("getTree", json!({ "limit": 2, "cursor": page["nextCursor"] }));
    assert_eq!(next["nodes"][1]["id"], nodes[nodes.len() - 3]["id"]);

    // The records, marks too: from the first, or after one, in file order.
    let leaf = session.leaf();
    session.call("setLabel", json!({ "entryId": leaf, "label": "here" }));
    let all = session.call("getEntries", json!({}))["entries"].take();
    assert_eq!(all.as_array().unwrap().len(), nodes.len() + 1);
    let after = session.call("getEntries", json!({ "after": all[0]["id"] }))["entries"].take();
    assert_eq!(after.as_array().unwrap()[..], all.as_array().unwrap()[1..]);
    let page = session.call("getEntries", json!({ "limit": 1 }));
    let rest = session.call("getEntries", json!({ "cursor": page["nextCursor"] }))["entries"].take();
    assert_eq!((&page["entries"][0], &rest), (&all[0], &after));
    assert_eq!(session.error("getEntries", json!({ "ids": [], "after": all[0]["id"] })).code(), -32602);
}

/// Ids, parents and children of a view, and of `branches` the runs; the roots first.
fn view(session: &mut Session, params: Value) -> String {
    let tree = session.call("getTree", params);
    let ids = |value: &Value| value.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join(",");
    let mut lines = vec![ids(&tree["roots"])];
    for node in tree["nodes"].as_array().unwrap() {
        let parent = node["parentId"].as_str().unwrap_or("-");
        let run = match node["lastId"].as_str() {
            Some(last) => format!("..{last}({})", node["count"]),
            None => String::new(),
        };
        assert_eq!(node["childCount"], json!(node["children"].as_array().unwrap().len()));
        lines.push(format!("{}{run}<{parent}>{}", text(&node["id"]), ids(&node["children"])));
    }
    lines.join(" ")
}

/// A tree with marks between its entries, odd entries, a fork, a label, and an entry that lies before its parent.
#[test]
fn views_of_an_odd_tree() {
    let daemon = Setup::new().start();
    let place = fixtures::temp_dir("kli-t");
    let path = place.path().join("odd.jsonl");
    let mut file = fixtures::SessionFile::new("odd", place.path());
    file.record("model_change", "m", None, json!({ "provider": "demo", "modelId": "offline" }))
        .user("u1", Some("m"), "one")
        .record("custom", "c1", Some("u1"), json!({ "customType": "x" }))
        .assistant("a1", Some("c1"), "answer")
        .record("odd", "o1", Some("a1"), json!({}))
        .assistant("early", Some("late"), "lies before its parent")
        .user("u2", Some("a1"), "two")
        .assistant("a2", Some("u2"), "answer")
        .record("odd", "o2", Some("a2"), json!({}))
        .user("u3", Some("o2"), "three")
        .user("late", Some("a2"), "another way")
        .record("label", "l1", Some("u3"), json!({ "targetId": "u2", "label": "here" }))
        .record("leaf", "lf", Some("u3"), json!({}));
    file.write(&path);
    let mut session = Session::open(&daemon, &path);
    for (params, shows) in [
        (json!({ "view": "messages" }), "u1 u1<->a1 a1<u1>u2 early<late> u2<a1>a2 a2<u2>u3,late u3<a2> late<a2>early"),
        (json!({ "view": "prompts" }), "u1 u1<->u2 u2<u1>u3,late u3<u2> late<u2>"),
        (json!({ "view": "labelled" }), "u2 u2<->"),
        (
            json!({ "view": "branches" }),
            "m m..a1(3)<->o1,u2 o1..o1(1)<m> u2..u2(1)<m>a2 a2..a2(1)<u2>o2,late o2..o2(1)<a2>u3 u3..u3(1)<o2> \
             late..early(2)<a2>",
        ),
        (json!({ "rootId": "a2" }), "a2 early<late> a2<u2>o2,late o2<a2>u3 u3<o2> late<a2>early"),
        (json!({ "rootId": "a2", "view": "prompts" }), "a2 u3<-> late<->"),
        (json!({ "rootId": "m", "lastId": "a1" }), "m m<->u1 u1<m>a1 a1<u1>o1,u2"),
        (json!({ "rootId": "u2", "lastId": "a1" }), "u2"),
        (json!({ "rootId": "a2", "limit": 2 }), "a2 u3<o2> late<a2>early"),
    ] {
        assert_eq!(view(&mut session, params.clone()), shows, "{params}");
    }
    assert_eq!(session.error("getTree", json!({ "rootId": "lf" })).kind(), "invalidEntry", "a mark");
    assert_eq!(session.error("getTree", json!({ "rootId": "none-such" })).kind(), "entryNotFound");
}

#[test]
fn extensions_keep_their_own_entries() {
    let server = ModelServer::start();
    let daemon = Setup::new().persisted().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("one");
    let leaf = session.leaf();
    let mark = session.call("appendEntry", json!({ "customType": "x.state", "data": { "n": 1 } }));
    assert_eq!(session.leaf(), leaf, "a `custom` record is a mark");
    assert!(!session.nodes().iter().any(|node| node["id"] == mark["entryId"]));
    let params = json!({ "customType": "x.note", "content": "from an extension", "display": true });
    let message = session.call("appendEntry", params);
    assert_eq!(json!(session.leaf()), message["entryId"], "a `custom_message` is an entry");
    session.ask("two");
    assert!(server.last().says("from an extension"));
    let records = fixtures::records(&session.path());
    assert!(records.iter().any(|r| r["customType"] == "x.state" && r["data"]["n"] == 1 && !is_node(r)));
    // The same key again: done once.
    let again = json!({ "customType": "x.state", "data": 2, "idempotencyKey": "k1" });
    let first = session.call("appendEntry", again.clone());
    assert_eq!(session.call("appendEntry", again), first);
    server.assert_valid();
}
