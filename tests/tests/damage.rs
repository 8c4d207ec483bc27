//! Files that are damaged or odd: what is readable is there, nothing is thrown away, and the next request is
//! one that a provider takes. The inputs are those of users of other programs; they lie beside the repository.

use kli_tests::{ModelServer, Session, Setup, fixtures};
use serde_json::{Value, json};

/// File, leaf after opening, ids that must be in the tree.
const CASES: &[(&str, &str, &[&str])] = &[
    ("F001-torn-tail", "a2", &["u1", "a1", "u2", "a2"]),
    ("F003-bad-middle-line", "a2", &["u1", "a1", "u2", "a2"]),
    ("F005-raw-newline-in-string", "a2", &["u1", "a1", "a2"]),
    ("F006-u2028", "", &["u1", "a1"]),
    ("F008-blank-lines", "", &["u1", "a1"]),
    ("F009-duplicate-ids", "", &[]),
    ("F011-cycle", "", &[]),
    ("F011b-self-parent", "", &[]),
    ("F012-missing-parent", "a3", &["u3", "a3"]),
    ("F017-lone-surrogate", "", &["u1", "a1"]),
    ("F019-invalid-utf8", "a2", &["u1", "a1", "a2"]),
    ("F020-v1", "", &[]),
    ("F025-progress-fork", "a2", &["a2"]),
    ("F027-api-error-sibling", "", &[]),
    ("F028-multi-roots", "a2", &["u2", "a2"]),
    ("F031-clock-back", "a2", &["a2"]),
    ("F042-dangling-call", "", &[]),
    ("F043-dangling-mid", "", &[]),
    ("F045-aborted-partial-call", "", &[]),
    ("F046-out-of-order-and-duplicate-results", "", &[]),
    ("F048-duplicate-call-id-across-turns", "", &[]),
    ("F054-stale-compaction-mid-pair", "", &[]),
    ("F056-kept-id-missing", "", &[]),
    ("F057-kept-is-tool-result", "", &[]),
    ("F065-many-compactions", "", &[]),
    ("F108-cross-model-thinking", "", &[]),
    ("F116-empty-assistant", "", &[]),
];

#[test]
fn files_that_peers_failed_on() {
    let mut failed = Vec::new();
    for case @ (name, ..) in CASES {
        let Some(source) = fixtures::shared(&format!("failures/{name}.jsonl")) else { return };
        // Each on its own, so that one that fails does not hide the others.
        if let Err(panic) = std::panic::catch_unwind(|| check(&source, case)) {
            let why = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            failed.push(format!("{name}: {why}"));
        }
    }
    assert!(failed.is_empty(), "{} of {} failed:\n{}", failed.len(), CASES.len(), failed.join("\n"));
}

fn check(source: &std::path::Path, (name, leaf, present): &(&str, &str, &[&str])) {
    let server = ModelServer::start();
    let mut daemon = Setup::new().model(&server).start();
    let place = fixtures::temp_dir("kli-t");
    std::fs::create_dir_all("/tmp/w").unwrap();
    let path = place.path().join(format!("{name}.jsonl"));
    let bytes = std::fs::read(source).unwrap();
    std::fs::write(&path, &bytes).unwrap();

    let mut session = Session::open(&daemon, &path);
    let nodes = session.nodes();
    let ids: Vec<&Value> = nodes.iter().map(|node| &node["id"]).collect();
    for id in *present {
        assert_eq!(ids.iter().filter(|found| **found == id).count(), 1, "{id} once in {ids:?}");
    }
    if !leaf.is_empty() {
        assert_eq!(session.leaf().as_deref(), Some(*leaf));
    }
    assert!(std::fs::read(&path).unwrap() == bytes, "opening and reading wrote");

    // The file's own model is not to be had here.
    session.call("setModel", json!({ "provider": "fake", "modelId": "m1" }));
    session.context();
    session.ask("and now?");
    let path = session.path();
    let after = std::fs::read(&path).unwrap();
    if !name.contains("v1") {
        // All that was there is still there; only a torn tail is cut off.
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        assert!(after.starts_with(&bytes[..whole]), "bytes from before were changed");
    }
    let (branch, tree) = (session.branch_ids(), session.nodes());
    assert!(!branch.is_empty());
    drop(session);
    daemon.terminate();
    daemon.start();
    let mut session = Session::open(&daemon, &path);
    assert_eq!((session.branch_ids(), session.nodes()), (branch, tree), "as it was after a restart");
    session.ask("and again?");
    server.assert_valid();
}

/// What cannot be read is refused with a reason and left alone; it spoils no listing.
#[test]
fn files_that_are_refused() {
    let daemon = Setup::new().persisted().start();
    let directory = daemon.session_dir.clone().unwrap();
    let work_dir = fixtures::work_dir();
    let mut good = Session::create(&daemon, work_dir.path());
    good.ask("hi");
    let newer = r#"{"type":"session","version":99,"id":"newer","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/tmp"}"#;
    let user = r#"{"type":"message","id":"u1","parentId":null,"timestamp":"2026-01-01T00:00:01.000Z","message":{"role":"user","content":"x"}}"#;
    let files = [
        ("empty.jsonl", String::new()),
        ("no-header.jsonl", format!("{user}\n")),
        ("garbage.jsonl", "\0\0\0\0\u{1}garbage".to_owned()),
        ("directory-entry.jsonl", "[]\n".to_owned()),
        ("newer.jsonl", format!("{newer}\n{user}\n")),
    ];
    for (name, text) in &files {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let client = &mut daemon.client();
    assert!(kli_tests::poll(kli_tests::PATIENCE, || {
        let list = client.call("listSessions", json!({}));
        list["unreadable"].as_array().is_some_and(|unreadable| unreadable.len() == 4)
    }));
    let list = client.call("listSessions", json!({}));
    let ids: Vec<&Value> = list["sessions"].as_array().unwrap().iter().map(|info| &info["sessionId"]).collect();
    assert!(ids.contains(&&json!(good.id)) && ids.contains(&&json!("newer")), "{list}");
    for (name, _) in &files[..4] {
        let error = client.error("openSession", json!({ "path": directory.join(name) }));
        assert_eq!(error.kind(), "sessionCorrupt", "{name}");
    }
    // A newer program's file can be looked at.
    let mut newer = Session::attach(&daemon, "newer");
    assert_eq!(newer.state()["readOnly"], true);
    newer.branch();
    assert_eq!(newer.error("prompt", json!({ "text": "x" })).kind(), "sessionReadOnly");
    for (name, text) in &files {
        assert_eq!(&std::fs::read_to_string(directory.join(name)).unwrap(), text, "{name} was changed");
    }
}

/// Cut at every byte of its last two records, a file opens, keeps what is whole, and takes the next prompt.
#[test]
fn cut_anywhere_at_its_end() {
    let server = ModelServer::start();
    let daemon = Setup::new().model(&server).start();
    let work_dir = fixtures::work_dir();
    let place = fixtures::temp_dir("kli-t");
    let mut file = fixtures::SessionFile::new("cut", work_dir.path());
    file.user("u1", None, "one").assistant("a1", Some("u1"), "two");
    let keep = file.text().len();
    file.user("u2", Some("a1"), "three ü").assistant("a2", Some("u2"), "four");
    let bytes = file.text().as_bytes().to_vec();
    let ends: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] == b'\n').map(|at| at + 1).collect();
    // Every seventh byte, and each around a line's end: all of them is what the store's own test does.
    let near_an_end = |cut: usize| ends.iter().any(|end| end.abs_diff(cut) <= 1);
    for cut in (keep..=bytes.len()).filter(|cut| cut % 7 == 0 || near_an_end(*cut)) {
        let path = place.path().join(format!("{cut}.jsonl"));
        // One id for each, since they are all open at once.
        let text = String::from_utf8_lossy(&bytes[..cut]).replace("\"cut\"", &format!("\"cut-{cut}\""));
        let grown = text.len() - cut.min(text.len());
        if text.contains('\u{fffd}') {
            continue;
        }
        std::fs::write(&path, &text).unwrap();
        let mut session = Session::open(&daemon, &path);
        let ids = session.branch_ids();
        assert!(["u1", "a1", "u2", "a2"].starts_with(&ids.iter().map(String::as_str).collect::<Vec<_>>()[..]));
        let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
        assert!(ids.len() == whole || ids.len() == whole + 1, "cut {cut} ({grown} longer): {ids:?}");
        session.ask("go on");
        let records = fixtures::records(&path);
        assert_eq!(records.len(), 1 + ids.len() + 2, "cut {cut}: nothing fused, nothing torn");
        assert_eq!(records.last().unwrap()["parentId"], records[records.len() - 2]["id"]);
    }
    server.assert_valid();
}

/// A file that was away, too short or another for a while: nothing is written until a person opens the session again;
/// then it goes on, also for those who follow it.
#[test]
fn a_lost_file_goes_on_once_it_is_opened_again() {
    let kli_tests::Place { server, daemon, work_dir } = kli_tests::Place::with([]);
    for fault in ["gone", "shrank", "replaced"] {
        let mut session = Session::create(&daemon, work_dir.path());
        session.ask("one");
        session.subscribe();
        let (path, leaf) = (session.path(), session.leaf());
        let bytes = std::fs::read(&path).unwrap();
        match fault {
            "gone" => std::fs::remove_file(&path).unwrap(),
            "shrank" => std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap(),
            _ => {
                let copy = path.with_extension("copy");
                std::fs::write(&copy, &bytes).unwrap();
                std::fs::rename(copy, &path).unwrap();
            }
        }
        assert_eq!(session.error("prompt", json!({ "text": "two" })).kind(), "storeFailed", "{fault}");
        assert_eq!(session.error("prompt", json!({ "text": "two" })).kind(), "sessionReadOnly", "{fault}");
        assert_eq!((session.leaf(), session.state()["readOnly"].clone()), (leaf.clone(), json!(true)), "{fault}");
        if fault == "gone" {
            assert!(!path.exists());
            assert_eq!(session.error("openSession", json!({})).kind(), "sessionNotFound");
        }
        std::fs::write(&path, &bytes).unwrap();
        let seen = session.client.events().len();
        assert_eq!(session.call("openSession", json!({}))["readOnly"], false, "{fault}");
        if fault != "gone" {
            session.client.until_after(seen, |event| event.kind() == "sessionInfoChanged");
        }
        assert_eq!(session.leaf(), leaf, "{fault}");
        session.ask("three");
        if fault != "gone" {
            session.client.until_after(seen, |event| event.kind() == "runEnd");
        }
        assert!(fixtures::records(&path).len() > 5, "{fault}");
    }
    server.assert_valid();
}

/// A limit on the size of files is like a full disk: the call fails, whole lines stay, and later saving goes on.
#[test]
fn a_limit_on_file_sizes_costs_the_entry_and_nothing_else() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let kli_tests::Place { server, daemon, work_dir } = kli_tests::Place::with([]);
    let mut session = Session::create(&daemon, work_dir.path());
    session.ask("one");
    let path = session.path();
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap());
    for room in [0, 1, 40] {
        let before = std::fs::read(&path).unwrap();
        let current = Some(before.len() as u64 + room);
        prlimit(pid, Resource::Fsize, Rlimit { current, maximum: None }).unwrap();
        assert_eq!(session.error("prompt", json!({ "text": "too much" })).kind(), "storeFailed");
        assert!(std::fs::read(&path).unwrap() == before, "{room}");
        prlimit(pid, Resource::Fsize, Rlimit { current: None, maximum: None }).unwrap();
        session.ask("again");
        assert!(std::fs::read(&path).unwrap().starts_with(&before));
    }
    fixtures::records(&path);
    server.assert_valid();
}
