//! Lists, ids and names, the session last used, deletion.

use super::super::catalog::{Catalog, full_summary};
use super::*;

fn name(log: &Log, id: &str, name: &str) {
    put(log, id, None, Body::SessionInfo(SessionInfoRecord { name: Some(name.into()), ..Default::default() }));
}

fn at(log: &Log, id: &str, time: &str, body: Body) {
    log.append(&[Record::new(id, None, time, body)]).unwrap();
}

#[test]
fn titles_are_one_line_of_whole_characters() {
    let family = "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}";
    let cases = [
        (None, None, "Untitled".to_owned()),
        (None, Some("  "), "Untitled".to_owned()),
        (Some("Name"), Some("prompt"), "Name".to_owned()),
        (Some(" "), Some("prompt"), "prompt".to_owned()),
        (None, Some("two\n  lines\tand a tab"), "two lines and a tab".to_owned()),
        (None, Some("a\u{202e}b\u{7}c"), "abc".to_owned()),
        (None, Some(&"\u{1f600}".repeat(100)), "\u{1f600}".repeat(50)),
        (None, Some(&family.repeat(60)), family.repeat(50)),
        (None, Some(&"e\u{301}".repeat(60)), "e\u{301}".repeat(50)),
        (Some(&"n".repeat(300)), None, "n".repeat(200)),
    ];
    for (name, prompt, right) in cases {
        assert_eq!(title(name, prompt), right);
    }
}

#[test]
fn slugs_are_cut_and_told_apart() {
    use super::super::names::slug;
    assert_eq!(slug("/home/u/proj"), "--home-u-proj--");
    assert_eq!(slug("/x/a-b"), slug("/x/a/b"));
    let (long, other) = (format!("/{}", "é".repeat(150)), format!("/{}x", "é".repeat(150)));
    assert!(slug(&long).len() <= 208);
    assert_ne!(slug(&long), slug(&other));
}

#[test]
fn lists_show_the_newest_first() {
    Rig::both(|rig| {
        let logs: Vec<_> = ["old", "new", "mid", "tie-a", "tie-b"].map(|id| rig.create(id)).into();
        for (log, time) in logs.iter().zip([
            "2026-01-01T00:00:00.000Z",
            "2026-01-03T00:00:00.000Z",
            "2026-01-02T00:00:00Z",
            "2025-01-01T00:00:00.000Z",
            "2025-01-01T00:00:00.000Z",
        ]) {
            at(log, "u1", time, user(&format!("prompt of {}", log.session_id())));
        }
        at(
            &logs[0],
            "i1",
            "2026-01-01T00:00:01.000Z",
            Body::SessionInfo(SessionInfoRecord { archived: Some(true), ..Default::default() }),
        );
        let listed = |filter: Filter| ids_of(&rig.store, &filter);
        assert_eq!(listed(Filter::default()), "new mid tie-b tie-a");
        assert_eq!(listed(Filter { archived: true, ..Filter::default() }), "old");
        assert_eq!(listed(Filter { query: Some("MID prompt".into()), ..Filter::default() }), "mid");
        assert_eq!(listed(Filter { work_dir: Some("/tmp/other".into()), ..Filter::default() }), "");
        assert_eq!(listed(Filter { work_dir: Some("/tmp/w".into()), ..Filter::default() }), "new mid tie-b tie-a");
        let before = ids_of(&rig.store, &Filter::default());
        let titles: Vec<_> = rig.store.list(&Filter::default()).0.into_iter().map(|f| f.first_prompt).collect();
        drop(logs);
        if let Some(dir) = &rig.dir {
            rig.store = Store::new(Some(dir.path()), SETTINGS).unwrap();
            assert_eq!(ids_of(&rig.store, &Filter::default()), before);
            let again: Vec<_> = rig.store.list(&Filter::default()).0.into_iter().map(|f| f.first_prompt).collect();
            assert_eq!(again, titles);
        }
    });
}

fn ids_of(store: &Store, filter: &Filter) -> String {
    store.list(filter).0.into_iter().map(|facts| facts.id).collect::<Vec<_>>().join(" ")
}

#[test]
fn a_text_means_a_session_in_a_fixed_order() {
    Rig::both(|rig| {
        let logs: Vec<_> =
            ["abcd-1111-wxyz", "abcd-2222-mnop", "wxyz-3333", "longname"].map(|id| rig.create(id)).into();
        for log in &logs {
            put(log, "u1", None, user("x"));
        }
        name(&logs[0], "i1", "one");
        name(&logs[1], "i1", "twice");
        name(&logs[2], "i1", "twice");
        name(&logs[3], "i1", "abcd-1111-wxyz");
        let cases = [
            ("longname", "longname"),
            ("abcd-1111-wxyz", "abcd-1111-wxyz"),
            ("abcd", "2 fit"),
            ("abcd-1", "abcd-1111-wxyz"),
            ("abc", "none"),
            ("wxyz", "wxyz-3333"),
            ("mnop", "abcd-2222-mnop"),
            ("one", "abcd-1111-wxyz"),
            ("twice", "2 fit"),
            ("nope", "none"),
        ];
        for (text, right) in cases {
            let got = match rig.store.resolve(text) {
                Ok(id) => id,
                Err(StoreError::Ambiguous { candidates, .. }) => format!("{} fit", candidates.len()),
                Err(StoreError::SessionNotFound(_)) => "none".into(),
                Err(e) => panic!("{e}"),
            };
            assert_eq!(got, right, "{text}");
        }
        if let Some(dir) = &rig.dir {
            std::fs::write(dir.path().join("1_mnop.jsonl"), "").unwrap();
            let found = rig.store.resolve("mnop");
            assert!(matches!(found, Err(StoreError::Corrupt { .. })), "never silently another: {found:?}");
        }
    });
}

#[test]
fn ids_are_given_once() {
    Rig::both(|rig| {
        let log = rig.create("s1");
        assert!(matches!(rig.store.create(rig.new_session("s1")), Err(StoreError::SessionExists(_))));
        put(&log, "u1", None, user("x"));
        drop(log);
        assert!(matches!(rig.store.create(rig.new_session("s1")), Err(StoreError::SessionExists(_))));
        rig.store.delete("s1").unwrap();
        assert!(matches!(rig.store.create(rig.new_session("s1")), Err(StoreError::SessionExists(_))));
        assert!(matches!(rig.store.open("s1"), Err(StoreError::SessionNotFound(_))));
        if let Some(dir) = &rig.dir {
            // Nothing is left of its file by now.
            rig.store = Store::new(Some(dir.path()), SETTINGS).unwrap();
            assert!(matches!(rig.store.create(rig.new_session("s1")), Err(StoreError::SessionExists(_))));
        }
        for id in ["", "-a", "a/b", "a b", &"x".repeat(65)] {
            assert!(rig.store.create(rig.new_session(id)).is_err(), "{id}");
        }
    });
}

#[test]
fn two_files_with_one_id() {
    let rig = Rig::file();
    let text = "{\"type\":\"session\",\"version\":3,\"id\":\"s\",\"timestamp\":\"t\",\"cwd\":\"/tmp/w\"}\n";
    for file in ["a.jsonl", "b_s.jsonl", "c.jsonl"] {
        std::fs::write(rig.path().join(file), text).unwrap();
    }
    let owner = rig.path().canonicalize().unwrap().join("b_s.jsonl");
    let (sessions, unreadable) = rig.store.list(&Filter::default());
    assert_eq!(sessions.into_iter().map(|f| f.path.unwrap()).collect::<Vec<_>>(), std::slice::from_ref(&owner));
    let right = format!("same id as {}", owner.display());
    assert!(unreadable.len() == 2 && unreadable.iter().all(|u| u.reason == right), "{unreadable:?}");
    // As a session of its own the other comes in.
    let loser = rig.path().join("a.jsonl");
    std::fs::write(
        &loser,
        format!(
            "{text}{}\n",
            r#"{"type":"message","id":"u1","parentId":null,"message":{"role":"user","content":"mine"}}"#
        ),
    )
    .unwrap();
    assert!(matches!(rig.store.open_path(&loser), Err(StoreError::Corrupt { .. })));
    let new = NewSession { work_dir: String::new(), ..rig.new_session("new") };
    let order = Import { path: loser, format: kli_protocol::api::ImportFormat::Auto, new, name: None };
    let imported = rig.store.import(order, &rig.clock).unwrap();
    assert_eq!(imported.facts().first_prompt.as_deref(), Some("mine"));
}

#[test]
fn deletion_keeps_what_forks_need() {
    let mut rig = Rig::file();
    let log = rig.create("s1");
    put(&log, "u1", None, user("one"));
    let fork = rig.fork(&log, Ix(0), "f1");
    put(&fork, "x1", Some("u1"), user("two"));
    let path = log.path().unwrap();
    drop(log);
    rig.store.delete("s1").unwrap();
    let deleted = path.with_extension("jsonl.deleted");
    assert!(!path.exists() && deleted.exists());
    assert!(rig.store.open("s1").is_err());
    assert_eq!(ids_of(&rig.store, &Filter::default()), "f1");
    let before = picture(&fork);
    let fork = rig.reopened(fork);
    assert_eq!(picture(&fork), before);
    assert!(matches!(rig.store.create(rig.new_session("s1")), Err(StoreError::SessionExists(_))));
    // A file that cannot be read may be a fork too, one of a newer version that says it in a new way, and one that
    // cannot even be seen.
    let odd = rig.path().join("odd.jsonl");
    let newer = r#"{"type":"kli_session","version":9,"id":"n","timestamp":"t","cwd":"/tmp/w","base":["s1","u1"]}"#;
    std::fs::write(&odd, "?").unwrap();
    drop(fork);
    rig.store.delete("f1").unwrap();
    let delete_another = |id: &str| {
        let other = rig.create(id);
        put(&other, "u1", None, user("x"));
        rig.store.delete(id).unwrap();
        deleted.exists()
    };
    assert!(delete_another("s2"));
    std::fs::write(&odd, newer).unwrap();
    assert!(delete_another("s3"));
    std::fs::remove_file(&odd).unwrap();
    std::os::unix::fs::symlink("/nowhere/odd.jsonl", &odd).unwrap();
    assert!(delete_another("s4"));
    std::fs::remove_file(odd).unwrap();
    assert!(!delete_another("s5"));
}

/// Whoever opens a session ends the reading ahead of large files: that says nothing about the file.
#[test]
fn reading_that_was_ended_makes_no_file_unreadable() {
    let rig = Rig::file();
    let path = large(&rig, "big", "");
    let stop = super::super::listing::Stop::default();
    stop.held.store(1, Ordering::Relaxed);
    assert!(full_summary(&path, &stop).is_none());
    stop.held.store(0, Ordering::Relaxed);
    assert!(full_summary(&path, &stop).unwrap().is_ok());
}

/// Nor does it change the file's size or time when it may be read again.
#[test]
fn a_file_that_could_not_be_opened_is_tried_again() {
    use std::os::unix::fs::PermissionsExt;
    let rig = Rig::file();
    let path = large(&rig, "s", "");
    let allow = |mode: u32| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    allow(0);
    if std::fs::File::open(&path).is_ok() {
        // Nothing is forbidden to who runs this.
        return;
    }
    let mut catalog = Catalog::default();
    catalog.refresh(rig.path(), &Default::default());
    assert_eq!(catalog.unreadable().len(), 1);
    catalog.save(rig.path());
    allow(0o600);
    for catalog in [&mut catalog, &mut Catalog::default()] {
        catalog.refresh(rig.path(), &Default::default());
        assert!(catalog.unreadable().is_empty() && catalog.summary("s").is_some());
    }
}

#[test]
fn the_session_last_used_survives_a_restart() {
    let mut rig = Rig::file();
    let last = |rig: &Rig, dir: &str| {
        rig.store.last(dir).unwrap().map(|used| match used {
            LastUsed::Id(id) => id,
            LastUsed::Path(path) => path.file_name().unwrap().to_str().unwrap().to_owned(),
        })
    };
    let (old, new) = (rig.create("old"), rig.create("new"));
    at(&old, "u1", "2026-01-01T00:00:00.000Z", user("x"));
    at(&new, "u1", "2026-01-02T00:00:00.000Z", user("x"));
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("new"), "nothing on record: the newest");
    rig.store.set_last(&new);
    rig.store.set_last(&old);
    let empty = rig.create("empty");
    rig.store.set_last(&empty);
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("old"), "a never-written one is passed over");
    assert_eq!(last(&rig, "/tmp/other"), None);
    drop((old, empty));
    let new = rig.reopened(new);
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("old"));
    // Opened by its path, elsewhere.
    let elsewhere = tempfile::tempdir().unwrap();
    let path = elsewhere.path().join("out.jsonl");
    std::fs::write(
        &path,
        "{\"type\":\"session\",\"version\":3,\"id\":\"out\",\"timestamp\":\"2026-01-01T00:00:00.000Z\",\"cwd\":\"/tmp/w\"}\n\
         {\"type\":\"custom\",\"id\":\"c1\",\"parentId\":null,\"timestamp\":\"2026-01-01T00:00:00.000Z\"}\n",
    )
    .unwrap();
    let out = rig.store.open_path(&path).unwrap();
    rig.store.set_last(&out);
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("out"), "while it is open");
    drop(out);
    let new = rig.reopened(new);
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("out.jsonl"), "and after a restart, by its path");
    let out = rig.store.open_path(&path).unwrap();
    let moved = SessionInfoRecord { work_dir: Some("/tmp/new".into()), ..Default::default() };
    at(&out, "i1", "2026-01-03T00:00:00.000Z", Body::SessionInfo(moved));
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("old"), "it was given another directory");
    rig.store.set_last(&out);
    drop(out);
    assert_eq!(last(&rig, "/tmp/new").as_deref(), Some("out.jsonl"));
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("old"));
    let old = rig.store.open("old").unwrap();
    at(
        &old,
        "i1",
        "2026-01-03T00:00:00.000Z",
        Body::SessionInfo(SessionInfoRecord { archived: Some(true), ..Default::default() }),
    );
    assert_eq!(last(&rig, "/tmp/w").as_deref(), Some("new"), "archived");
    let path = new.path().unwrap();
    drop((old, new));
    std::fs::write(&path, "?").unwrap();
    assert!(matches!(rig.store.last("/tmp/w"), Err(StoreError::Corrupt { .. })), "never silently another");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(last(&rig, "/tmp/w"), None);
}

/// A session file with a prompt, `middle`, and a last prompt.
fn large(rig: &Rig, id: &str, middle: &str) -> PathBuf {
    let line = |id: &str, text: &str| {
        format!(
            "{{\"type\":\"message\",\"id\":\"{id}\",\"parentId\":null,\"timestamp\":\"2026-01-01T00:00:0{}.000Z\",\"message\":{{\"role\":\"user\",\"content\":\"{text}\"}}}}\n",
            id.len()
        )
    };
    let header =
        format!("{{\"type\":\"session\",\"version\":3,\"id\":\"{id}\",\"timestamp\":\"t\",\"cwd\":\"/tmp/w\"}}\n");
    let path = rig.path().join(format!("x_{id}.jsonl"));
    std::fs::write(&path, format!("{header}{}{middle}{}", line("a", "first"), line("bbb", "last"))).unwrap();
    path
}

#[test]
fn large_files_are_glanced_at_then_read() {
    let mut rig = Rig::file();
    let (told, scanned) = std::sync::mpsc::channel();
    rig.store.when_scanned(move |facts| drop(told.send(facts)));
    let name = "{\"type\":\"session_info\",\"id\":\"i\",\"parentId\":null,\"timestamp\":\"t\",\"name\":\"N\"}\n";
    let filler = "{\"type\":\"custom\",\"id\":\"c\",\"parentId\":null,\"timestamp\":\"t\",\"data\":\"".to_owned()
        + &"x".repeat(12 << 20)
        + "\"}\n";
    large(&rig, "big", &format!("{filler}{name}{}", filler.replace("\"c\"", "\"d\"")));
    let mut catalog = Catalog::default();
    let begin = std::time::Instant::now();
    catalog.refresh(rig.path(), &Default::default());
    let glanced = catalog.summary("big").unwrap().clone();
    assert!(glanced.glanced && begin.elapsed().as_millis() < 500);
    assert_eq!(glanced.facts.first_prompt.as_deref(), Some("first"));
    assert_eq!(glanced.facts.last_prompt.as_deref(), Some("last"));
    assert_eq!((glanced.facts.updated_at.as_str(), glanced.facts.entry_count), ("2026-01-01T00:00:03.000Z", None));
    // The store's thread reads on and keeps what it found.
    let full = loop {
        let facts = rig.store.list(&Filter::default()).0.remove(0);
        if facts.entry_count.is_some() {
            break facts;
        }
        std::thread::yield_now();
    };
    assert_eq!((full.name.as_deref(), full.entry_count), (Some("N"), Some(2)));
    let told = scanned.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
    assert_eq!((told.id.as_str(), told.entry_count), ("big", Some(2)), "whoever was shown less hears of it");
    rig.store = Store::new(None, SETTINGS).unwrap();
    // The thread may have held the store last, and then nobody waited for it.
    let list = loop {
        match std::fs::read_to_string(rig.path().join(".kli-list")) {
            Ok(list) => break list,
            Err(_) => std::thread::yield_now(),
        }
    };
    assert_eq!(list.lines().count(), 1);
    let mut cached = Catalog::default();
    cached.refresh(rig.path(), &Default::default());
    assert!(!cached.summary("big").unwrap().glanced);
    std::fs::write(rig.path().join(".kli-list"), "damaged\n{}\n").unwrap();
    let mut damaged = Catalog::default();
    damaged.refresh(rig.path(), &Default::default());
    assert!(damaged.summary("big").unwrap().glanced);
}
