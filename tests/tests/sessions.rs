//! Sessions: made, found again, listed, named, put away; and what lies on disk.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use kli_tests::{Daemon, Gate, ModelServer, Place, Reply, Session, Setup, fixtures, is_node, text};
use serde_json::{Value, json};

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn ids(list: &Value) -> Vec<String> {
    list["sessions"].as_array().unwrap().iter().map(|info| text(&info["sessionId"])).collect()
}

#[test]
fn the_file_of_a_session() {
    let daemon = Setup::new().persisted().start();
    let work_dir = fixtures::work_dir();
    let directory = daemon.session_dir.clone().unwrap();
    let mut session = Session::create(&daemon, work_dir.path());
    assert_eq!(fixtures::session_files(&directory), Vec::<std::path::PathBuf>::new(), "creating alone writes nothing");
    let result = session.ask("read hello.txt");
    let branch = session.branch();
    assert_eq!(result["leafId"], branch.last().unwrap()["id"]);
    let has_result = |e: &Value| e["message"]["role"] == "toolResult" && e.to_string().contains("marker-4711");
    assert!(branch.iter().any(has_result), "the tool ran and its result is stored");

    let path = session.path();
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    assert!(path.to_str().unwrap().ends_with(&format!("_{}.jsonl", session.id)));
    assert_eq!(fixtures::session_files(&directory), std::slice::from_ref(&path));
    let records = fixtures::records(&path);
    let header = &records[0];
    assert_eq!(
        (&header["type"], &header["version"], &header["id"]),
        (&json!("session"), &json!(3), &json!(session.id))
    );
    assert_eq!(header["cwd"], json!(work_dir.path()));
    let kinds: Vec<&str> =
        records.iter().map(|r| r["type"].as_str().unwrap()).filter(|kind| *kind != "option_change").collect();
    assert_eq!(kinds[..4], ["session", "model_change", "thinking_level_change", "message"]);
    let mut parent = Value::Null;
    for record in &records[1..] {
        let keys: Vec<&String> = record.as_object().unwrap().keys().take(4).collect();
        assert_eq!(keys, ["type", "id", "parentId", "timestamp"]);
        assert_eq!(record["parentId"], parent, "each entry is on the one before");
        if is_node(record) {
            parent = record["id"].clone();
        }
    }
}

#[test]
fn reading_writes_nothing() {
    let work_dir = fixtures::work_dir();
    let mut daemon = Setup::new().persisted().start();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    let (path, state) = (session.path(), session.state());
    let before = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap());
    drop(session);
    daemon.terminate();
    daemon.start();
    let mut session = Session::attach(&daemon, &text(&state["sessionId"]));
    session.call("openSession", json!({}));
    session.call("getEntries", json!({ "ids": [state["leafId"]] }));
    for method in ["getTree", "getBranch", "getContext", "getForkMessages", "getStats", "getSession"] {
        session.call(method, json!({}));
    }
    session.client.call("listSessions", json!({}));
    session.client.call("getForest", json!({}));
    let after = (std::fs::read(&path).unwrap(), std::fs::metadata(&path).unwrap().modified().unwrap());
    assert!(before == after, "opening or reading changed the file");
    let now = session.state();
    for key in ["updatedAt", "createdAt", "leafId", "title", "entryCount", "messageCount", "provider", "modelId"] {
        assert_eq!(now[key], state[key], "{key}");
    }
    assert_eq!(now["interrupted"], false);
}

#[test]
fn memory_by_default() {
    let mut daemon = Setup::new().start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("read hello.txt");
    let state = session.state();
    assert_eq!((&state["persisted"], state.get("path")), (&json!(false), None));
    let error = session.client.error("createSession", json!({ "workDir": work_dir.path(), "persist": true }));
    assert_eq!(error.code(), -32602, "there is no directory to keep it in");
    assert_eq!(std::fs::read_dir(work_dir.path()).unwrap().count(), 1, "nothing was left in the work directory");
    assert!(!mentions(daemon.dir(), b"marker-4711"), "what a tool read is on disk");
    let id = session.id.clone();
    drop(session);
    daemon.kill9();
    daemon.start();
    let error = daemon.client().error("getSession", json!({ "sessionId": id }));
    assert_eq!((error.code(), error.kind()), (-32020, "sessionNotFound"));
}

/// Whether a file below the directory holds these bytes.
fn mentions(directory: &Path, needle: &[u8]) -> bool {
    std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => mentions(&path, needle),
            kind if kind.is_file() => std::fs::read(&path).unwrap().windows(needle.len()).any(|w| w == needle),
            _ => false,
        }
    })
}

#[test]
fn the_last_session_of_a_directory() {
    let Place { server: _model, mut daemon, .. } = Place::with([]);
    let (here, there) = (fixtures::work_dir(), fixtures::work_dir());
    let last = |daemon: &Daemon, work_dir: &Path| {
        let info = daemon.client().call("continueSession", json!({ "workDir": work_dir }));
        info["sessionId"].as_str().map(str::to_owned)
    };
    assert_eq!(last(&daemon, here.path()), None);
    let mut older = Session::create(&daemon, here.path());
    older.ask("older");
    let mut newer = Session::create(&daemon, here.path());
    newer.ask("newer");
    Session::create(&daemon, there.path()).ask("elsewhere");
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&newer.id), "the last given a run");
    older.ask("again");
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&older.id), "the last used, not the last made");
    newer.call("getTree", json!({}));
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&older.id), "reading is not opening");
    let (fork, _) = newer.forked(&daemon, "clone", json!({}));
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&fork.id), "made by a fork");
    daemon.kill9();
    daemon.start();
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&fork.id), "across kill -9");
    daemon.client().call("archiveSession", json!({ "sessionId": fork.id, "archived": true }));
    let next = last(&daemon, here.path());
    assert!(next.is_some() && next.as_ref() != Some(&fork.id), "archived ones are passed over");
    daemon.client().call("openSession", json!({ "sessionId": older.id }));
    assert_eq!(last(&daemon, here.path()).as_ref(), Some(&older.id), "the last opened");
    let made = daemon.client().call("continueSession", json!({ "workDir": daemon.dir(), "create": true }));
    assert!(made["sessionId"].is_string());
}

#[test]
fn listing() {
    let Place { server: _model, daemon, .. } = Place::with([]);
    let (here, there) = (fixtures::work_dir(), fixtures::work_dir());
    let mut first = Session::create(&daemon, here.path());
    first.ask("first question");
    let mut second = Session::create(&daemon, here.path());
    second.ask("second question");
    let mut other = Session::create(&daemon, there.path());
    other.ask("elsewhere");
    let client = &mut daemon.client();
    let list = client.call("listSessions", json!({ "workDir": here.path() }));
    assert_eq!(ids(&list), [second.id.clone(), first.id.clone()], "newest first, of this directory only");
    assert_eq!(list["unreadable"], json!([]));
    assert_eq!(list["sessions"][1]["title"], "first question");
    first.ask("more");
    let list = client.call("listSessions", json!({ "workDir": here.path() }));
    assert_eq!(ids(&list), [first.id.clone(), second.id.clone()], "by the last record written");
    assert_eq!(ids(&client.call("listSessions", json!({}))).len(), 3);
    let page = client.call("listSessions", json!({ "limit": 2 }));
    let rest = client.call("listSessions", json!({ "limit": 2, "cursor": page["nextCursor"] }));
    assert_eq!((ids(&page).len(), ids(&rest).len(), rest.get("nextCursor")), (2, 1, None));
    assert_eq!(ids(&client.call("listSessions", json!({ "query": "elsewhere" }))), [other.id.clone()]);
    other.call("archiveSession", json!({ "archived": true }));
    assert_eq!(ids(&client.call("listSessions", json!({}))).len(), 2);
    assert_eq!(ids(&client.call("listSessions", json!({ "archived": true }))), [other.id.clone()]);
    assert_eq!(first.call("setSessionName", json!({ "name": "a name" }))["title"], "a name");
    assert_eq!(first.call("setSessionName", json!({ "name": "" }))["title"], "first question");
}

/// However a directory is written, it is the same one; and directories whose names look alike are not.
#[test]
fn work_directories() {
    let Place { server: _model, daemon, .. } = Place::with([]);
    let place = fixtures::temp_dir("kli-w");
    let real = place.path().join("real");
    for name in ["real", "a-b", "a", "a/b", "a b", "a\nb", "ünïcode"] {
        std::fs::create_dir_all(place.path().join(name)).unwrap();
    }
    std::os::unix::fs::symlink(&real, place.path().join("link")).unwrap();
    let mut session = Session::create(&daemon, &place.path().join("link"));
    session.ask("hi");
    assert_eq!(session.state()["workDir"], json!(real));
    for way in ["real", "real/", "link", "link/.", "./real", "real/../real"] {
        let params = json!({ "workDir": format!("{}/{way}", place.path().display()) });
        assert_eq!(ids(&session.client.call("listSessions", params.clone())), [session.id.clone()], "{way}");
        assert_eq!(session.client.call("continueSession", params)["sessionId"], json!(session.id), "{way}");
    }
    for name in ["a-b", "a/b", "a b", "a\nb", "ünïcode"] {
        let work_dir = place.path().join(name);
        let mut session = Session::create(&daemon, &work_dir);
        session.ask("hi");
        assert_eq!(ids(&session.client.call("listSessions", json!({ "workDir": work_dir }))), [session.id], "{name:?}");
    }
    let client = &mut daemon.client();
    assert_eq!(client.error("createSession", json!({ "workDir": "relative/dir" })).code(), -32602);
    let missing = place.path().join("missing");
    assert_eq!(client.error("createSession", json!({ "workDir": missing })).kind(), "workDirNotFound");
}

#[test]
fn a_work_directory_that_is_gone() {
    let server = ModelServer::with([
        Reply::text("hi"),
        Reply::call("c1", "bash", json!({ "command": "pwd" })),
        Reply::text("it is gone"),
        Reply::call("c2", "bash", json!({ "command": "pwd" })),
        Reply::text("found"),
    ]);
    let daemon = Setup::new().persisted().model(&server).start();
    let work_dir = fixtures::work_dir();
    let gone = work_dir.path().to_owned();
    let mut session = Session::create(&daemon, &gone);
    session.ask("hi");
    drop(work_dir);
    assert_eq!(ids(&session.client.call("listSessions", json!({ "workDir": gone }))), [session.id.clone()]);
    session.ask("where are we?");
    let result = session.messages().into_iter().rev().find(|m| m["role"] == "toolResult").unwrap();
    assert_eq!(result["isError"], true, "{result}");
    let other = fixtures::work_dir();
    session.call("openSession", json!({ "rebind": other.path() }));
    session.ask("and now?");
    let result = session.messages().into_iter().rev().find(|m| m["role"] == "toolResult").unwrap();
    assert!(result.to_string().contains(other.path().to_str().unwrap()), "{result}");
    server.assert_valid();
}

#[test]
fn ids_of_sessions() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let given = |id: &str| json!({ "workDir": work_dir.path(), "sessionId": id });
    let mut session = Session::create_with(&daemon, given("my-session.1"));
    session.ask("hi");
    let client = &mut daemon.client();
    assert_eq!(client.error("createSession", given("my-session.1")).kind(), "sessionExists");
    for bad in ["", "-x", "a b", "a/b", "é", &"x".repeat(65)] {
        assert_eq!(client.error("createSession", given(bad)).code(), -32602, "{bad:?}");
    }
    for part in ["my-session.1", "my-s", "on.1"] {
        assert_eq!(client.call("getSession", json!({ "sessionId": part }))["sessionId"], "my-session.1", "{part}");
    }
    Session::create_with(&daemon, given("my-session.2")).ask("hi");
    let error = client.error("getSession", json!({ "sessionId": "my-session" }));
    assert_eq!(error.kind(), "ambiguous");
    assert_eq!(error.0["data"]["candidates"].as_array().map(Vec::len), Some(2));
    client.call("setSessionName", json!({ "sessionId": "my-session.2", "name": "release" }));
    assert_eq!(client.call("getSession", json!({ "sessionId": "release" }))["sessionId"], "my-session.2");
    // Deleting takes whole ids, and an id is not given again.
    client.error("deleteSession", json!({ "sessionId": "on.2" }));
    client.call("getSession", json!({ "sessionId": "my-session.2" }));
    client.call("deleteSession", json!({ "sessionId": "my-session.1" }));
    assert_eq!(client.error("getSession", json!({ "sessionId": "my-session.1" })).kind(), "sessionNotFound");
    assert_eq!(client.error("createSession", given("my-session.1")).kind(), "sessionExists");
}

/// The first prompt on one line, 50 user-perceived characters, nothing that could fool a terminal.
#[test]
fn titles() {
    let Place { server: _model, daemon, work_dir } = Place::with([]);
    let family = "\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}";
    let accented = "e\u{301}";
    for (prompt, title) in [
        ("plain".to_owned(), "plain".to_owned()),
        ("  two\n\tlines  ".to_owned(), "two lines".to_owned()),
        ("a".repeat(60), "a".repeat(50)),
        (format!("aa{}", "\u{1F600}".repeat(100)), format!("aa{}", "\u{1F600}".repeat(48))),
        (family.repeat(60), family.repeat(50)),
        (accented.repeat(60), accented.repeat(50)),
        ("a\u{202E}b\u{7}c".to_owned(), "abc".to_owned()),
    ] {
        let mut session = Session::create(&daemon, work_dir.path());
        assert_eq!(session.state()["title"], "Untitled");
        session.ask(&prompt);
        assert_eq!(session.state()["title"], json!(title), "{prompt:?}");
    }
}

/// One that has no record yet is a session like any other, but for its file.
#[test]
fn a_session_without_a_record() {
    let daemon = Setup::new().persisted().start();
    let work_dir = fixtures::work_dir();
    let client = &mut daemon.client();
    client.call("createSession", json!({ "workDir": work_dir.path(), "sessionId": "early-1", "name": "early bird" }));
    assert_eq!(client.call("getSession", json!({ "sessionId": "early bird" }))["sessionId"], "early-1");
    assert_eq!(ids(&client.call("listSessions", json!({ "query": "bird" }))), ["early-1"]);
    client.call("deleteSession", json!({ "sessionId": "early-1" }));
    assert_eq!(client.error("getSession", json!({ "sessionId": "early-1" })).kind(), "sessionNotFound");
    let again = json!({ "workDir": work_dir.path(), "sessionId": "early-1" });
    assert_eq!(client.error("createSession", again).kind(), "sessionExists");
    assert_eq!(fixtures::session_files(&daemon.session_dir.clone().unwrap()), Vec::<std::path::PathBuf>::new());
}

/// One that was given another directory is at home there; one that lies elsewhere is remembered by its path.
#[test]
fn the_last_session_where_it_is_now() {
    let mut daemon = Setup::new().persisted().start();
    let (old, new) = (fixtures::work_dir(), fixtures::work_dir());
    let last = |daemon: &Daemon, work_dir: &Path| {
        daemon.client().call("continueSession", json!({ "workDir": work_dir }))["sessionId"].clone()
    };
    let mut session = Session::create(&daemon, old.path());
    session.ask("hi");
    session.call("openSession", json!({ "rebind": new.path() }));
    assert_eq!(last(&daemon, old.path()), Value::Null);
    assert_eq!(last(&daemon, new.path()), json!(session.id));

    let place = fixtures::temp_dir("kli-t");
    let path = place.path().join("elsewhere.jsonl");
    let mut file = fixtures::SessionFile::new("elsewhere", old.path());
    file.user("u1", None, "hi").assistant("a1", Some("u1"), "hello");
    file.write(&path);
    Session::open(&daemon, &path);
    assert_eq!(last(&daemon, old.path()), "elsewhere");
    drop(session);
    daemon.kill9();
    daemon.start();
    assert_eq!(last(&daemon, old.path()), "elsewhere", "after a restart it is opened where it lies");
}

/// Read-only until it is opened again; who follows it goes on following.
#[test]
fn a_file_that_changed_behind_our_back() {
    let daemon = Setup::new().persisted().start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("one");
    session.ask("two");
    let path = session.path();
    let mut follower = Session::attach(&daemon, &session.id);
    let snapshot = follower.subscribe().seq();

    // Grown: what another program appended is taken in, and the next entry goes on it.
    let (leaf, mut file) = (session.leaf(), std::fs::File::options().append(true).open(&path).unwrap());
    let foreign = json!({
        "type": "message", "id": "foreign1", "parentId": leaf, "timestamp": "2026-01-01T00:00:00.000Z",
        "message": { "role": "user", "content": "said elsewhere" },
    });
    writeln!(file, "{foreign}").unwrap();
    assert_eq!(session.error("prompt", json!({ "text": "x", "leafId": leaf })).kind(), "leafMoved");
    let taken_in = follower.client.until_kind("entryAppended");
    assert_eq!(taken_in.body["entry"]["id"], "foreign1");
    follower.client.until_kind("warning");
    let asked = session.ask("and here")["entryId"].clone();
    assert_eq!(session.children("foreign1"), [text(&asked)]);

    // Shrunk.
    let bytes = std::fs::read(&path).unwrap();
    let cut = bytes[..bytes.len() - 1].iter().rposition(|b| *b == b'\n').unwrap() + 1;
    std::fs::write(&path, &bytes[..cut]).unwrap();
    assert_eq!(session.error("prompt", json!({ "text": "three" })).kind(), "storeFailed");
    assert_eq!(session.error("setMode", json!({ "mode": "plan" })).kind(), "sessionReadOnly");
    assert_eq!(session.state()["readOnly"], true);
    assert_eq!(std::fs::read(&path).unwrap(), bytes[..cut], "nothing was written");

    assert_eq!(session.call("openSession", json!({}))["readOnly"], false);
    let seen = follower.client.events().len();
    let three = session.ask("three");
    let end = follower.client.until_after(seen, |e| e.kind() == "runEnd" && e.body["runId"] == three["runId"]);
    assert!(end.seq() > snapshot, "numbers go on");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(session.error("prompt", json!({ "text": "four" })).kind(), "storeFailed");
    assert_eq!(session.error("openSession", json!({})).kind(), "sessionNotFound");
    assert!(!path.exists(), "a session that vanished is not made anew");
}

/// New sessions come in front: the pages after them lose nothing and repeat nothing.
#[test]
fn pages_of_lists_while_sessions_are_made() {
    let daemon = Setup::new().persisted().start();
    let work_dir = fixtures::work_dir();
    let client = &mut daemon.client();
    let mut make = |name: &str| {
        text(&client.call("createSession", json!({ "workDir": work_dir.path(), "name": name }))["sessionId"])
    };
    let mut made: Vec<String> = (0..5).map(|n| make(&n.to_string())).collect();
    for (method, key) in [("listSessions", "sessions"), ("getForest", "nodes")] {
        let client = &mut daemon.client();
        let (mut seen, mut cursor) = (Vec::new(), Value::Null);
        loop {
            let page = client.call(method, json!({ "limit": 2, "cursor": cursor }));
            seen.extend(page[key].as_array().unwrap().iter().map(|info| text(&info["sessionId"])));
            cursor = page["nextCursor"].clone();
            if cursor.is_null() {
                break;
            }
            client.call("createSession", json!({ "workDir": work_dir.path() }));
        }
        seen.sort();
        made.sort();
        assert_eq!(seen, made, "{method}");
        made = client.call("listSessions", json!({ "limit": 100 }))["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|info| text(&info["sessionId"]))
            .collect();
    }
}

/// A link in the session directory and the file that it leads to are one session.
#[test]
fn a_file_with_two_names() {
    let daemon = Setup::new().persisted().start();
    let (work_dir, elsewhere) = (fixtures::work_dir(), fixtures::temp_dir("kli-t"));
    let file = elsewhere.path().join("real.jsonl");
    fixtures::SessionFile::new("linked", work_dir.path()).user("aaaaaaaa", None, "hi").write(&file);
    let link = daemon.session_dir.as_ref().unwrap().join("link.jsonl");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let mut by_id = Session::attach(&daemon, "linked");
    by_id.ask("by its id");
    for path in [&file, &link] {
        let mut by_path = Session::open(&daemon, path);
        by_path.ask("by a path");
        assert_eq!(by_path.branch_ids(), by_id.branch_ids());
    }
    let copy = elsewhere.path().join("copy.jsonl");
    std::fs::copy(&file, &copy).unwrap();
    assert_eq!(by_id.client.error("openSession", json!({ "path": copy })).kind(), "sessionExists");
}

/// A file of an older version that moved on to a new one stays a way to its session.
#[test]
fn a_file_that_moved_on_is_opened_again() {
    let mut daemon = Setup::new().persisted().start();
    let (work_dir, elsewhere) = (fixtures::work_dir(), fixtures::temp_dir("kli-t"));
    let file = elsewhere.path().join("v1.jsonl");
    let header =
        json!({ "type": "session", "id": "of-old", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": work_dir.path() });
    let said = json!({ "type": "message", "timestamp": "2026-01-01T00:00:01.000Z", "message": { "role": "user", "content": "hi" } });
    let old = format!("{header}\n{said}\n");
    std::fs::write(&file, &old).unwrap();
    let mut first = Session::open(&daemon, &file);
    first.ask("on");
    let (branch, new) = (first.branch_ids(), first.path());
    assert_ne!(new, file);
    for path in [&file, &new] {
        assert_eq!(Session::open(&daemon, path).branch_ids(), branch);
    }
    daemon.kill9();
    daemon.start();
    for path in [&file, &new] {
        assert_eq!(Session::open(&daemon, path).branch_ids(), branch);
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), old);
}

#[test]
fn deleting() {
    let gate = Gate::new();
    let server = ModelServer::with([Reply::held("a", &gate, "b")]);
    let daemon = Setup::new().persisted().model(&server).start();
    let work_dir = fixtures::work_dir();
    let mut session = Session::create(&daemon, work_dir.path());
    session.call("prompt", json!({ "text": "hi" }));
    gate.reached();
    assert_eq!(session.error("deleteSession", json!({})).kind(), "sessionBusy");
    gate.open();
    session.wait();
    let (mut fork, _) = session.forked(&daemon, "clone", json!({}));
    let (branch, path) = (session.branch_ids(), session.path());
    session.call("deleteSession", json!({}));
    assert!(!path.exists());
    assert_eq!(fork.branch_ids(), branch, "what a fork needs is kept");
    fork.ask("still here");
    let list = fork.client.call("listSessions", json!({}));
    assert_eq!(ids(&list), [fork.id.clone()]);
    assert_eq!(fork.client.call("getForest", json!({}))["roots"], json!([fork.id]));
}

/// Real files of another program: all entries, nothing written.
#[test]
fn sessions_of_pi() {
    for (name, nodes) in [
        ("pi-v3-real.jsonl", None),
        ("v3-with-compactions.jsonl", None),
        ("openclaw-missing-parents.jsonl", None),
        ("branch-trace.jsonl", Some(6)),
        ("before-compaction.v1.jsonl", None),
        ("large-session.v1.jsonl", None),
    ] {
        let Some(source) = fixtures::shared(&format!("sessions/pi/{name}")) else { return };
        let daemon = Setup::new().start();
        let place = fixtures::temp_dir("kli-t");
        let path = place.path().join(name);
        std::fs::copy(&source, &path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let mut session = Session::open(&daemon, &path);
        let expected = nodes.unwrap_or_else(|| fixtures::records(&path)[1..].iter().filter(|r| is_node(r)).count());
        assert_eq!(session.nodes().len(), expected, "{name}");
        assert_eq!(session.state()["entryCount"], json!(expected), "{name}");
        session.branch();
        // An error where the model of the file is not configured here.
        let _ = session.try_call("getContext", json!({}));
        assert!(std::fs::read(&path).unwrap() == bytes, "{name}: reading wrote");
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1, "{name}: something was left beside it");
    }
}
