//! What the model is given: getContext is the next request; context files, system prompts, skills, templates,
//! mentioned files, and a project's own configuration once its directory is trusted.

use std::io::Write;
use std::path::Path;

use kli_tests::{Gate, Place, Reply, Session, text};
use serde_json::{Value, json};

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn system(session: &mut Session) -> String {
    text(&session.call("getContext", json!({}))["systemPrompt"])
}

/// The text of each message, system prompt first.
fn sent(p: &Place) -> Vec<Value> {
    let body = p.server.last().body;
    body["messages"].as_array().unwrap().iter().map(|message| plain(&message["content"])).collect()
}

fn plain(content: &Value) -> Value {
    match content.as_array() {
        Some(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect::<String>().into(),
        None => content.clone(),
    }
}

fn trust(session: &mut Session, p: &Place, trusted: bool) {
    session.client.call("trustWorkDir", json!({ "workDir": p.work_dir.path(), "trusted": trusted }));
}

/// Another program edits what the model is to see. Its record is a mark: our next prompt goes beside it, and it counts
/// all the same, for the branch on whose end it was made.
/// A picture that no provider takes would be refused with every later request.
#[test]
fn broken_pictures_are_told_and_not_sent() {
    let p = Place::with([Reply::call("c1", "look", json!({})), Reply::text("seen")]);
    let mut session = p.session();
    let picture = |data: &str, mime: &str| json!([{ "type": "image", "data": data, "mimeType": mime }]);
    let entry = json!({ "customType": "note", "content": picture("Qk0=", "image/bmp"), "display": true });
    session.call("appendEntry", entry);
    let mut editor = p.daemon.client();
    let tool = json!({ "name": "look", "description": "Looks.", "parameters": { "type": "object" }, "readOnly": true });
    editor.call("registerTools", json!({ "tools": [tool] }));
    session.call("prompt", json!({ "text": "look" }));
    let called = editor.until(|e| e.method == "toolCall").body["callId"].clone();
    editor.call("submitToolResult", json!({ "callId": called, "content": picture("bm8gcGljdHVyZQ==", "image/png") }));
    assert_eq!(session.wait()["stopReason"], "done");
    let sent = p.server.last();
    assert!(sent.says("no provider takes"), "{:?}", sent.texts());
    assert!(sent.says("[image left out: its data is no PNG, JPEG, GIF or WebP picture]"), "{:?}", sent.texts());
    assert!(!sent.body.to_string().contains("base64"));
    // What was given is kept as it is.
    let kept = session.branch().iter().any(|entry| entry["content"] == picture("Qk0=", "image/bmp"));
    assert!(kept);
    p.server.assert_valid();
}

#[test]
fn an_edit_by_another_program_stays() {
    let p = Place::with([]);
    let edit = |id: &str, parent: &str, target: &str, content: &str| {
        let (timestamp, replacement) = ("2026-01-01T00:00:09.000Z", json!({ "content": content }));
        let record = json!({ "type": "context_edit", "id": id, "parentId": parent, "timestamp": timestamp,
            "targetId": target, "replacement": replacement });
        format!("{record}\n")
    };
    let append = |path: &Path, line: &str| {
        let mut file = std::fs::OpenOptions::new().append(true).open(path).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    };
    let users = |session: &mut Session, leaf: &str| {
        let context = session.call("getContext", if leaf.is_empty() { json!({}) } else { json!({ "leafId": leaf }) });
        let messages = context["messages"].as_array().unwrap().clone();
        let users = messages.iter().filter(|message| message["role"] == "user");
        users.map(|message| text(&plain(&message["content"]))).collect::<Vec<_>>()
    };
    let mut session = p.session();
    session.ask("secret one");
    let (first, leaf) = (session.newest_prompt(), session.leaf().unwrap());
    let path = session.path();
    // While the session is open, then twice by somebody who goes on from there.
    append(&path, &edit("ed000001", &leaf, &first, "one"));
    assert_eq!(users(&mut session, ""), ["one"]);
    session.ask("two");
    assert_eq!(sent(&p)[1..], ["one", "done", "two"]);
    let leaf = session.leaf().unwrap();
    append(&path, &edit("ed000002", &leaf, &first, "other"));
    append(&path, &edit("ed000003", "ed000002", &first, "another"));
    append(
        &path,
        &format!(
            "{}\n",
            json!({ "type": "message", "id": "ed000004", "parentId": "ed000003", "timestamp": "2026-01-01T00:00:09.000Z",
                "message": { "role": "user", "content": "three", "timestamp": 1 } })
        ),
    );
    assert_eq!(users(&mut session, ""), ["another", "two", "three"]);
    // Whoever does not come through it never saw it.
    assert_eq!(users(&mut session, &leaf), ["one", "two"]);
    // A fork has what was made before it, and a daemon that reads the file anew the same.
    let (mut fork, _) = session.forked(&p.daemon, "fork", json!({ "entryId": leaf, "position": "at" }));
    assert_eq!(users(&mut fork, ""), ["one", "two"]);
    fork.ask("forked");
    assert_eq!(sent(&p)[1..], ["one", "done", "two", "done", "forked"]);
}

/// From every leaf, whatever was done before.
#[test]
fn get_context_is_what_is_sent() {
    let p = Place::with([
        Reply::call("c1", "read", json!({ "path": "hello.txt" })),
        Reply::text("read it"),
        Reply::status(400, "invalid_request_error", "no"),
    ]);
    let mut session = p.session();
    session.ask("read hello.txt");
    session.run("fails");
    session.call("bash", json!({ "command": "echo by hand" }));
    session.call("appendEntry", json!({ "customType": "x", "content": "of an extension", "display": true }));
    session.call("setMode", json!({ "mode": "plan" }));
    session.ask("last");
    for id in session.branch_ids() {
        let context = session.call("getContext", json!({ "leafId": id }));
        let (mut fork, _) = session.forked(&p.daemon, "fork", json!({ "entryId": id, "position": "at" }));
        fork.ask("next");
        let mut want = vec![context["systemPrompt"].clone()];
        want.extend(context["messages"].as_array().unwrap().iter().map(|message| plain(&message["content"])));
        want.push("next".into());
        // A result is sent as it is; a reply that only calls has no text.
        let sent: Vec<Value> = sent(&p).into_iter().map(|t| if t.is_null() { "".into() } else { t }).collect();
        assert_eq!(sent, want, "from {id}");
        let tools = p.server.last().body["tools"]
            .as_array()
            .unwrap()
            .iter()
            .map(|t| t["function"]["name"].clone())
            .collect::<Vec<_>>();
        let told: Vec<Value> = context["tools"].as_array().unwrap().iter().map(|t| t["name"].clone()).collect();
        assert_eq!(tools, told);
    }
    p.server.assert_valid();
}

#[test]
fn context_files_and_system_prompts() {
    let p = Place::with([]);
    let own = p.daemon.home.join("config/kli");
    let (root, inner) = (p.work_dir.path(), p.work_dir.path().join("a/b"));
    write(&own.join("AGENTS.md"), "GLOBAL-RULES");
    write(&root.join("AGENTS.md"), "ROOT-RULES");
    write(&root.join("a/CLAUDE.md"), "MIDDLE-RULES");
    write(&inner.join("AGENTS.md"), "INNER-RULES");
    let mut session = Session::create(&p.daemon, &inner);
    let prompt = system(&mut session);
    let at: Vec<_> =
        ["GLOBAL", "ROOT", "MIDDLE", "INNER"].iter().map(|rules| prompt.find(&format!("{rules}-RULES"))).collect();
    assert!(at.iter().all(Option::is_some) && at.is_sorted(), "{at:?} in {prompt}");
    session.ask("hi");
    assert_eq!(sent(&p)[0], prompt);

    write(&own.join("SYSTEM.md"), "USERS-SYSTEM");
    write(&own.join("APPEND_SYSTEM.md"), "USERS-APPEND");
    write(&inner.join(".kli/SYSTEM.md"), "PROJECTS-SYSTEM");
    write(&inner.join(".kli/APPEND_SYSTEM.md"), "PROJECTS-APPEND");
    let prompt = system(&mut session);
    assert!(prompt.starts_with("USERS-SYSTEM") && prompt.contains("USERS-APPEND"), "{prompt}");
    assert!(!prompt.contains("PROJECTS-"), "not before the directory is trusted");
    let untrusted = session.state()["untrusted"].take();
    assert_eq!(untrusted.as_array().map(Vec::len), Some(2), "{untrusted}");
    session.client.call("trustWorkDir", json!({ "workDir": inner, "trusted": true }));
    let prompt = system(&mut session);
    assert!(prompt.starts_with("PROJECTS-SYSTEM") && prompt.contains("USERS-APPEND\n\nPROJECTS-APPEND"), "{prompt}");
    assert_eq!((&session.state()["trusted"], session.state().get("untrusted")), (&json!(true), None));
    session.ask("hi again");
    assert_eq!(sent(&p)[0], prompt);
}

/// Templates, skills and mentioned files: the model gets what they stand for, people see what was typed.
#[test]
fn prompts_are_expanded() {
    let p = Place::with([]);
    let own = p.daemon.home.join("config/kli");
    write(&own.join("prompts/greet.md"), "---\ndescription: Greets\nargument-hint: <who>\n---\nHello $1, all: $@");
    write(&own.join("skills/pdf/SKILL.md"), "---\nname: pdf\ndescription: Reads PDFs\n---\nSKILL-BODY");
    write(&p.work_dir.path().join(".kli/prompts/local.md"), "Local $ARGUMENTS");
    let mut session = p.session();
    let names = |session: &mut Session| -> Vec<String> {
        let listed = session.call("listCommands", json!({}))["commands"].take();
        listed.as_array().unwrap().iter().map(|c| text(&c["name"])).collect()
    };
    assert_eq!(names(&mut session), ["greet", "skill:pdf"]);
    trust(&mut session, &p, true);
    assert_eq!(names(&mut session), ["greet", "local", "skill:pdf"]);
    let prompt = system(&mut session);
    assert!(prompt.contains("pdf: Reads PDFs") && !prompt.contains("SKILL-BODY"), "{prompt}");
    for (typed, parts) in [
        ("/greet Ann Bob", &["Hello Ann, all: Ann Bob"][..]),
        ("/local x y", &["Local x y"]),
        ("/skill:pdf a.pdf", &["SKILL-BODY", "a.pdf"]),
        ("look at @hello.txt, please", &["look at @hello.txt, please", "marker-4711"]),
    ] {
        session.call("prompt", json!({ "text": typed, "expand": true, "wait": true }));
        let last = sent(&p).pop().unwrap();
        assert!(parts.iter().all(|part| last.as_str().unwrap().contains(part)), "{typed}: {last}");
        let entry = session.messages().into_iter().rfind(|m| m["role"] == "user").unwrap();
        assert_eq!(entry["typed"], typed);
        let (id, shown) = session.prompts().remove(0);
        assert_eq!(shown, typed);
        assert_eq!(session.call("rewind", json!({}))["text"], typed);
        assert_eq!(session.call("fork", json!({ "entryId": id }))["text"], typed);
        assert_eq!(session.state()["lastPrompt"], typed);
        assert_eq!(session.call("navigateTree", json!({ "entryId": id }))["editorText"], typed);
    }
    for typed in ["/greet as it is", "/nothing here", "@nowhere.txt me@example.org"] {
        let expand = !typed.starts_with("/greet");
        session.call("prompt", json!({ "text": typed, "expand": expand, "wait": true }));
        assert_eq!(sent(&p).pop().unwrap(), typed);
        let entry = session.messages().into_iter().rfind(|m| m["role"] == "user").unwrap();
        assert_eq!(entry.get("typed"), None, "{entry}");
    }
    // A picture that comes back into the editor is not doubled when it is sent again.
    let png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let bytes: Vec<u8> = decode(png);
    std::fs::write(p.work_dir.path().join("dot.png"), bytes).unwrap();
    session.call("prompt", json!({ "text": "see @dot.png", "expand": true, "wait": true }));
    let newest = session.newest_prompt();
    let moved = session.call("navigateTree", json!({ "entryId": newest }));
    let again = json!({ "text": moved["editorText"], "images": moved["images"], "expand": true, "wait": true });
    session.call("prompt", again);
    let entry = session.messages().into_iter().rfind(|m| m["role"] == "user").unwrap();
    let images = entry["content"].as_array().unwrap().iter().filter(|block| block["type"] == "image").count();
    assert_eq!((images, &entry["typed"]), (1, &json!("see @dot.png")));
    p.server.assert_valid();
}

fn decode(base64: &str) -> Vec<u8> {
    let value =
        |c: u8| b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".iter().position(|b| *b == c);
    let mut bits = 0u32;
    let mut count = 0;
    let mut bytes = vec![];
    for six in base64.bytes().filter_map(value) {
        bits = (bits << 6) | six as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

#[test]
fn steers_are_expanded_and_the_queue_shows_what_was_typed() {
    let gate = Gate::new();
    let p = Place::with([Reply::held("slow", &gate, "ly")]);
    let mut session = p.session();
    session.call("prompt", json!({ "text": "start" }));
    gate.reached();
    session.call("steer", json!({ "text": "read @hello.txt", "expand": true }));
    assert_eq!(session.state()["queue"]["steer"][0]["text"], "read @hello.txt");
    gate.open();
    session.wait();
    assert!(p.server.last().says("marker-4711"));
    assert_eq!(session.prompts()[0].1, "read @hello.txt");
}

/// What a project sets for itself counts once its directory is trusted, and never allows more.
#[test]
fn a_projects_own_configuration() {
    let p = Place::with([]);
    let file = p.work_dir.path().join(".kli/config.toml");
    let set = |text: &str| write(&file, text);
    set(
        "defaultModel = \"fake/m2\"\ndefaultMode = \"ask\"\n[approvals]\ndeny = [\"bash(rm)\"]\n[compaction]\nkeepRecentTokens = 100\n",
    );
    let shown = |session: &mut Session| {
        let state = session.state();
        (text(&state["modelId"]), text(&state["mode"]), state["warnings"].as_array().unwrap().len())
    };
    let mut early = p.session();
    assert_eq!(shown(&mut early), ("m1".into(), "auto".into(), 0));
    trust(&mut early, &p, true);
    assert_eq!(
        shown(&mut early),
        ("m2".into(), "ask".into(), 0),
        "a session that nothing was said in yet learns of it"
    );
    let mut session = p.session();
    assert_eq!(shown(&mut session), ("m2".into(), "ask".into(), 0));
    session.ask("hi");
    assert_eq!(p.server.last().body["model"], "m2");
    let mut named = p.session_with(json!({ "provider": "fake", "modelId": "m1", "mode": "auto" }));
    assert_eq!(shown(&mut named), ("m1".into(), "auto".into(), 0), "what the caller says counts more");
    p.server.script([Reply::calls(&[
        ("c1", "bash", json!({ "command": "rm hello.txt" })),
        ("c2", "bash", json!({ "command": "echo fine" })),
    ])]);
    named.ask("remove it");
    assert!(named.result_of("c1").1 && !named.result_of("c2").1 && p.work_dir.path().join("hello.txt").exists());
    for _ in 0..4 {
        named.ask(&"word ".repeat(200));
    }
    p.server.script([Reply::text("SUM")]);
    assert!(named.call("compact", json!({}))["summary"] == "SUM", "which keeps only 100 tokens");
    for (text, part) in [
        ("defaultMode = \"auto\"", "auto"),
        ("[approvals]\nallow = [\"bash\"]", "approvals.allow"),
        ("[approvals]\ndeny = [\"bash(rm\"]", "approvals.deny"),
        ("[providers.x]\nbaseUrl = \"http://x\"", "providers.x.baseUrl"),
        ("defaultModl = \"a/b\"", "Did you mean defaultModel?"),
        ("defaultModel = \"fake/none\"", "no model none"),
        ("= =", "TOML"),
    ] {
        set(text);
        let mut session = p.session();
        assert_eq!(shown(&mut session), ("m1".into(), "auto".into(), 1), "{text}");
        let warning = session.state()["warnings"][0].take();
        assert!(warning["kind"] == "projectConfig" && warning["message"].to_string().contains(part), "{warning}");
    }
    set("defaultMode = \"plan\"");
    trust(&mut session, &p, false);
    assert_eq!(shown(&mut p.session()).1, "auto");
    p.server.assert_valid();
}

#[test]
fn the_configuration_is_read_again() {
    let p = Place::with([]);
    let file = p.daemon.config.clone().unwrap();
    let whole = std::fs::read_to_string(&file).unwrap();
    let mut client = p.daemon.client();
    assert_eq!(client.call("reloadConfig", json!({})), json!({ "changed": [] }));
    std::fs::write(&file, whole.replace("maxAttempts = 3", "maxAttempts = 4")).unwrap();
    assert_eq!(client.call("reloadConfig", json!({})), json!({ "changed": ["retry.maxAttempts"] }));
    std::fs::write(&file, format!("retri = 1\n{whole}")).unwrap();
    let error = client.error("reloadConfig", json!({}));
    assert!(error.message().contains("retri") && error.message().contains("retry"), "{}", error.message());
    p.session().ask("the old one stays");
    // Automatic compaction is switched on and off for sessions that are open.
    let small = whole.replace("contextWindow = 200000", "contextWindow = 20000");
    let mut session = p.session();
    for (enabled, compacts) in [(false, false), (true, true)] {
        std::fs::write(&file, format!("{small}\n[compaction]\nenabled = {enabled}\nkeepRecentTokens = 1000\n"))
            .unwrap();
        client.call("reloadConfig", json!({}));
        for _ in 0..if compacts { 1 } else { 22 } {
            session.ask(&"word ".repeat(500));
        }
        let compacted = session.branch().iter().any(|e| e["type"] == "compaction");
        assert_eq!(compacted, compacts, "enabled = {enabled}");
    }
}
