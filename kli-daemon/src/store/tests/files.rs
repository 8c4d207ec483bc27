//! What files do: made late, grown by others, lost, full, migrated, deleted.

use std::os::unix::fs::PermissionsExt;

use super::super::log::Placed;
use super::super::medium::{Lost, Medium};
use super::*;

fn session_files(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .flatten()
        .flat_map(|e| match e.path().is_dir() {
            true => session_files(&e.path()),
            false => vec![e.path()],
        })
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    files
}

#[test]
fn a_session_has_a_file_from_its_first_record_on() {
    let rig = Rig::file();
    let log = rig.create("s1");
    assert!(session_files(rig.path()).is_empty());
    let opening = [Record::new("m1", None, "t", model("m")), Record::new("u1", Some("m1".into()), "t", user("hi"))];
    log.append(&opening).unwrap();
    let path = log.path().unwrap();
    assert_eq!(session_files(rig.path()), std::slice::from_ref(&path));
    assert_eq!(path.parent().unwrap().file_name().unwrap(), "--tmp-w--");
    assert!(path.file_name().unwrap().to_str().unwrap().ends_with("Z_s1.jsonl"));
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("{\"type\":\"session\",\"version\":3,\"id\":\"s1\",\"timestamp\":\""));
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn a_fork_is_a_header() {
    let rig = Rig::file();
    let log = rig.create("s1");
    let mut parent = None;
    for n in 0..2_000 {
        let id = format!("{n:08x}");
        put(&log, &id, parent.as_deref(), user("some text that is of no matter"));
        parent = Some(id);
    }
    let before = std::fs::read(log.path().unwrap()).unwrap();
    let mut sizes = Vec::new();
    for at in ["0000000a", "000007cf"] {
        let fork = rig.fork(&log, log.find(at).unwrap(), &format!("f-{at}"));
        let text = std::fs::read_to_string(fork.path().unwrap()).unwrap();
        assert!(text.starts_with("{\"type\":\"kli_session\",\"version\":4,") && text.lines().count() == 1, "{text}");
        sizes.push(text.len());
    }
    assert!(sizes.iter().all(|size| *size < 1024), "{sizes:?}");
    assert_eq!(std::fs::read(log.path().unwrap()).unwrap(), before);
}

#[test]
fn what_another_program_appended_is_taken_in() {
    let mut rig = Rig::file();
    let log = rig.create("s1");
    put(&log, "u1", None, user("one"));
    let path = log.path().unwrap();
    let foreign = "{\"type\":\"message\",\"id\":\"f1\",\"parentId\":\"u1\",\"timestamp\":\"t\",\"message\":{\"role\":\"user\",\"content\":\"pi\"}}\n{\"type\":\"label\",\"id\":\"f2\",\"parentId\":\"f1\",\"timestamp\":\"t\",\"targetId\":\"u1\",\"label\":\"L\"}\n";
    let mut bytes = std::fs::read_to_string(&path).unwrap();
    bytes.push_str(foreign);
    std::fs::write(&path, &bytes).unwrap();
    let appended = log.append(&[Record::new("a1", Some("u1".into()), "t", assistant("ok"))]).unwrap();
    assert_eq!(ids(&log, appended.taken_in), "f1 f2");
    assert_eq!(ids(&log, appended.ixs), "a1");
    assert_eq!(kinds(&log), ["fileGrew"]);
    assert_eq!(log.label(Ix(0)).as_deref(), Some("L"));
    let before = picture(&log);
    let log = rig.reopened(log);
    assert_eq!(picture(&log), before);
}

/// A whole record without LF, on whose line another program goes on: what is seen is what a later opening sees.
#[test]
fn a_last_line_that_another_program_goes_on_with_is_noticed() {
    let more = "{\"type\":\"custom\",\"id\":\"f1\",\"parentId\":\"u1\",\"timestamp\":\"t\"}\n";
    let cases = [
        (more.to_owned(), false),
        (format!(" {more}"), false),
        (format!("\n{more}"), true),
        (format!(" \r\n{more}"), true),
    ];
    for (more, is_fine) in cases {
        let rig = Rig::file();
        let log = rig.create("s1");
        put(&log, "u0", None, user("zero"));
        put(&log, "u1", Some("u0"), user("one"));
        let path = log.path().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        rig.store.forget(&log);
        std::fs::write(&path, text.trim_end()).unwrap();
        let log = rig.store.open("s1").unwrap();
        let whole = text.trim_end().to_owned() + &more;
        std::fs::write(&path, &whole).unwrap();
        let appended = log.append(&[Record::new("a1", Some("u0".into()), "t", user("x"))]);
        assert_eq!(appended.is_ok(), is_fine, "{more:?}");
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(&whole) && (is_fine || after == whole), "{more:?}");
        let before = picture(&log);
        rig.store.forget(&log);
        let again = rig.store.open("s1").unwrap();
        match is_fine {
            true => assert_eq!(picture(&again), before, "{more:?}"),
            false => {
                assert_eq!((branch(&again).as_str(), kinds(&again)), ("u0", vec!["badLine".to_owned()]), "{more:?}")
            }
        }
        put(&again, "a2", Some("u0"), user("on it goes"));
    }
}

/// White space alone spoils nothing that comes behind it in its line.
#[test]
fn a_last_line_that_is_blank_may_be_gone_on_with() {
    let mut rig = Rig::file();
    let log = rig.create("s1");
    put(&log, "u1", None, user("one"));
    let path = log.path().unwrap();
    let text = std::fs::read_to_string(&path).unwrap() + &" ".repeat(5_000);
    rig.store.forget(&log);
    std::fs::write(&path, &text).unwrap();
    let log = rig.store.open("s1").unwrap();
    let more = "{\"type\":\"message\",\"id\":\"f1\",\"parentId\":\"u1\",\"timestamp\":\"t\",\"message\":{\"role\":\"user\",\"content\":\"x\"}}\n";
    std::fs::write(&path, text + more).unwrap();
    put(&log, "u2", Some("f1"), user("two"));
    assert_eq!(branch(&log), "u1 f1 u2");
    let before = picture(&log);
    assert_eq!(picture(&rig.reopened(log)), before);
}

/// In pi's first format a line's number is its id, also of one that was not whole at first.
#[test]
fn a_line_without_id_that_is_written_to_its_end_is_numbered_once() {
    let rig = Rig::file();
    let path = rig.path().join("x_s.jsonl");
    let header = r#"{"type":"session","id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/tmp/w"}"#;
    let message = r#"{"type":"message","timestamp":"t","message":{"role":"user","content":"x"}}"#;
    let whole = format!("{header}\n{message}\n{message}\n");
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    let log = rig.store.open("s").unwrap();
    assert_eq!((branch(&log).as_str(), kinds(&log)), ("00000002", vec!["tornTail".to_owned()]));
    std::fs::write(&path, &whole).unwrap();
    put(&log, "u1", Some("00000003"), user("on"));
    assert_eq!(branch(&log), "00000002 00000003 u1");
}

#[test]
fn a_file_that_shrank_was_replaced_or_is_gone_is_not_written() {
    type Fault = fn(&Path);
    let faults: [(&str, Fault); 3] = [
        ("shrank", |path| std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(50).unwrap()),
        ("replaced", |path| {
            let copy = path.with_extension("copy");
            std::fs::copy(path, &copy).unwrap();
            std::fs::rename(copy, path).unwrap();
        }),
        ("gone", |path| std::fs::remove_file(path).unwrap()),
    ];
    for (name, fault) in faults {
        let rig = Rig::file();
        let log = rig.create("s1");
        put(&log, "u1", None, user("one"));
        let path = log.path().unwrap();
        std::fs::copy(&path, rig.path().join("whole")).unwrap();
        fault(&path);
        let before = std::fs::read(&path).ok();
        let listed = rig.store.list(&Filter::default()).0.swap_remove(0);
        assert!(listed.read_only.is_some() && listed.warnings[0].kind == "fileLost", "{name}: {:?}", listed.warnings);
        assert!(listed.warnings[0].message.contains(path.to_str().unwrap()), "{name}: {:?}", listed.warnings);
        assert_eq!(kinds(&log), [""; 0], "{name}: looking changes nothing");
        let record = [Record::new("x", None, "t", user("x"))];
        assert!(matches!(log.append(&record), Err(StoreError::Io { .. })), "{name}");
        assert!(matches!(log.append(&record), Err(StoreError::ReadOnly { .. })), "{name}");
        assert_eq!(std::fs::read(&path).ok(), before, "{name}");
        assert_eq!((branch(&log).as_str(), kinds(&log)), ("u1", vec!["fileLost".to_owned()]), "{name}");
        // Whoever has it keeps it; the next opening reads what is there.
        std::fs::copy(rig.path().join("whole"), &path).unwrap();
        rig.store.forget(&log);
        let again = rig.store.open("s1").unwrap();
        put(&again, "u2", Some("u1"), user("two"));
        assert_eq!((branch(&log).as_str(), branch(&again).as_str()), ("u1", "u1 u2"), "{name}");
    }
}

/// A directory that may be another's.
#[derive(Default)]
struct Owned {
    by_another: std::sync::atomic::AtomicBool,
}

impl Ownership for Owned {
    fn take(&self) -> std::result::Result<(), String> {
        match self.by_another.load(Ordering::Relaxed) {
            true => Err("another kli-daemon (pid 7) serves it".into()),
            false => Ok(()),
        }
    }
    fn is_taken(&self) -> bool {
        self.take().is_ok()
    }
}

#[test]
fn nothing_is_written_in_a_directory_that_is_anothers() {
    let rig = Rig::file();
    let owner = Arc::new(Owned::default());
    rig.store.owned_by(owner.clone());
    let written = rig.create("written");
    put(&written, "u1", None, user("one"));
    let (planned, other) = (rig.create("planned"), rig.create("other"));
    put(&other, "o1", None, user("other"));
    let everything = || -> Vec<_> {
        let mut files = session_files(rig.path());
        files.extend(std::fs::read_dir(rig.path()).unwrap().flatten().map(|e| e.path()).filter(|path| path.is_file()));
        files
            .into_iter()
            .filter(|path| !path.ends_with(".kli-list"))
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect()
    };
    let before = everything();
    owner.by_another.store(true, Ordering::Relaxed);
    let record = [Record::new("x", None, "t", user("x"))];
    let at = written.find("u1").unwrap();
    let refused = [
        written.append(&record).map(drop),
        planned.append(&record).map(drop),
        rig.store.fork(&written, at, rig.new_session("fork")).map(drop),
        rig.store.delete("other"),
    ];
    for refused in refused {
        assert_eq!(refused.unwrap_err().to_string(), "another kli-daemon (pid 7) serves it");
    }
    rig.store.set_last(&written);
    assert_eq!(everything(), before);
    owner.by_another.store(false, Ordering::Relaxed);
    put(&written, "u2", Some("u1"), user("two"));
    put(&planned, "p1", None, user("late"));
    assert_eq!((branch(&written).as_str(), branch(&planned).as_str()), ("u1 u2", "p1"));
}

/// A file that takes only so many bytes, on top of a real one.
struct Full {
    inner: Arc<dyn Medium>,
    room: AtomicU64,
    can_cut: std::sync::atomic::AtomicBool,
}

impl Medium for Full {
    fn size(&self) -> std::result::Result<u64, Lost> {
        self.inner.size()
    }
    fn room(&self, bytes: u64) -> Result<()> {
        self.inner.room(bytes)
    }
    fn append(&self, bytes: &[u8]) -> std::io::Result<()> {
        let room = self.room.load(Ordering::Relaxed);
        if bytes.len() as u64 <= room {
            return self.inner.append(bytes);
        }
        self.inner.append(&bytes[..room as usize])?;
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn cut(&self, to: u64) -> std::io::Result<()> {
        match self.can_cut.load(Ordering::Relaxed) {
            true => self.inner.cut(to),
            false => Err(std::io::ErrorKind::Other.into()),
        }
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.inner.read_at(offset, buffer)
    }
    fn sync(&self) -> std::io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn a_full_disk_costs_the_entry_and_nothing_else() {
    for can_cut in [true, false] {
        for room in [0, 40, 140] {
            let mut rig = Rig::file();
            let log = rig.create("s1");
            put(&log, "u1", None, user("one"));
            let path = log.path().unwrap();
            let whole = std::fs::read(&path).unwrap();
            let place = log.read().place.clone().unwrap();
            let full = Arc::new(Full { inner: place.medium, room: room.into(), can_cut: can_cut.into() });
            log.write().place = Some(Placed::new(full.clone(), Some(path.clone())));
            let before = picture(&log);
            let pair = [Record::new("u2", None, "t", user("a")), Record::new("u3", None, "t", user("b"))];
            assert!(matches!(log.append(&pair), Err(StoreError::Io { .. })));
            assert_eq!(picture(&log), before);
            if can_cut {
                assert_eq!(std::fs::read(&path).unwrap(), whole);
            }
            full.room.store(u64::MAX, Ordering::Relaxed);
            full.can_cut.store(true, Ordering::Relaxed);
            log.append(&pair).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            assert_eq!(text.lines().count(), 4, "{text}");
            assert!(log.facts().warnings.is_empty());
            let before = picture(&log);
            let log = rig.reopened(log);
            assert_eq!(picture(&log), before);
        }
    }
}

#[test]
fn files_outside_are_locked_by_themselves_and_forked_beside() {
    let rig = Rig::file();
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().canonicalize().unwrap().join("trace.jsonl");
    let text = "{\"type\":\"session\",\"version\":3,\"id\":\"sess-a1\"}\n{\"type\":\"message\",\"id\":\"u1\",\"parentId\":null,\"timestamp\":\"t\",\"message\":{\"role\":\"user\",\"content\":\"x\"}}\n";
    std::fs::write(&path, text).unwrap();
    let log = rig.store.open_path(&path).unwrap();
    assert_eq!(log.facts().work_dir, path.parent().unwrap().to_str().unwrap());
    assert!(Arc::ptr_eq(&log, &rig.store.open_path(&path).unwrap()));
    assert!(Arc::ptr_eq(&log, &rig.store.open("sess-a1").unwrap()));
    let other = Store::new(None, SETTINGS).unwrap();
    assert!(other.open_path(&path).is_err());
    let fork = rig.fork(&log, Ix(0), "f");
    assert_eq!(fork.path().unwrap().parent(), path.parent());
    put(&fork, "x", Some("u1"), user("y"));
    let fork_path = fork.path().unwrap();
    let before = picture(&fork);
    drop((fork, log));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    let fork = other.open_path(&fork_path).unwrap();
    assert_eq!(picture(&fork), before);
    other.delete("f").unwrap();
    assert!(fork_path.exists());
}

#[test]
fn an_old_file_outside_is_written_anew_once() {
    let (rig, place) = (Rig::file(), tempfile::tempdir().unwrap());
    let old = place.path().join("mine.jsonl");
    std::fs::write(&old, "{\"type\":\"session\",\"id\":\"old\"}\n{\"type\":\"message\",\"message\":{\"role\":\"user\",\"content\":\"one\"}}\n").unwrap();
    let log = rig.store.open_path(&old).unwrap();
    put(&log, "x", Some("00000002"), user("x"));
    let new = log.path();
    drop(log);
    let log = rig.store.open_path(&old).unwrap();
    assert_eq!((branch(&log).as_str(), log.path()), ("00000002 x", new.map(|path| path.canonicalize().unwrap())));
    put(&log, "y", Some("x"), user("y"));
    assert_eq!(session_files(place.path()).len(), 2);
}

#[test]
fn the_first_append_brings_an_old_file_into_the_new_format() {
    let v1 = concat!(
        r#"{"type":"session","id":"old","timestamp":"2025-11-20T23:33:50.805Z","cwd":"/tmp/w","provider":"p","modelId":"m"}"#,
        "\n",
        r#"{"type":"message","timestamp":"t","message":{"role":"user","content":"one"}}"#,
        "\n",
        r#"{"type":"message","timestamp":"t","message":{"role":"assistant","content":[]}}"#,
        "\n",
        r#"{"type":"compaction","timestamp":"t","summary":"s","firstKeptEntryIndex":1,"tokensBefore":9}"#,
        "\n",
        r#"{"type":"message","timestamp":"t","message":{"role":"user","content":"two"}}"#,
        "\n",
    );
    let mut rig = Rig::file();
    let old = rig.path().join("2025_old.jsonl");
    std::fs::write(&old, v1).unwrap();
    let log = rig.store.open("old").unwrap();
    assert_eq!(branch(&log), "00000002 00000003 00000004 00000005");
    let Body::Compaction(compaction) = log.record(log.find("00000004").unwrap()).unwrap().body else { panic!() };
    assert_eq!(compaction.first_kept_entry_id.as_deref(), Some("00000002"));
    assert_eq!(session_files(rig.path()), std::slice::from_ref(&old));
    let before: Vec<_> = log.records_after(None).map(|n| log.record(n.ix).unwrap()).collect();
    put(&log, "x", Some("00000005"), user("three"));
    let new = log.path().unwrap();
    assert_ne!(new, old);
    assert_eq!(std::fs::read_to_string(&old).unwrap(), v1);
    let head = std::fs::read_to_string(&new).unwrap();
    assert!(head.lines().next().unwrap().contains("\"migratedFrom\":\"2025_old.jsonl\""), "{head}");
    let seen = picture(&log);
    let log = rig.reopened(log);
    assert_eq!(log.path().unwrap(), new.canonicalize().unwrap());
    assert_eq!(picture(&log), seen);
    let after: Vec<_> = log.records_after(None).map(|n| log.record(n.ix).unwrap()).take(4).collect();
    assert_eq!(after, before);
    let (sessions, unreadable) = rig.store.list(&Filter::default());
    assert_eq!((sessions.len(), unreadable.len()), (1, 0));
    // Whoever names the old file means the session.
    assert_eq!(rig.store.open_path(&old).unwrap().path(), log.path());
    drop(log);
    assert_eq!(branch(&rig.store.open_path(&old).unwrap()), "00000002 00000003 00000004 00000005 x");
    // Deleted, it does not come back in its old form.
    rig.store.delete("old").unwrap();
    assert_eq!(session_files(rig.path()), Vec::<PathBuf>::new());
    assert!(rig.store.open("old").is_err());
    // A fork of one that was never written to.
    std::fs::write(rig.path().join("b_old2.jsonl"), v1.replace("\"old\"", "\"old2\"")).unwrap();
    let source = rig.store.open("old2").unwrap();
    let fork = rig.fork(&source, source.find("00000003").unwrap(), "f2");
    put(&fork, "y", Some("00000003"), user("z"));
    let fork = rig.reopened(fork);
    assert_eq!(branch(&fork), "00000002 00000003 y");
}

#[test]
fn a_migration_that_fails_leaves_the_old_file() {
    let mut rig = Rig::file();
    let dir = rig.path().join("sub");
    std::fs::create_dir(&dir).unwrap();
    let old = dir.join("x_old.jsonl");
    std::fs::write(&old, "{\"type\":\"session\",\"id\":\"old\"}\n{\"type\":\"message\",\"message\":{\"role\":\"user\",\"content\":\"one\"}}\n").unwrap();
    let log = rig.store.open("old").unwrap();
    // Something lies where the new file is to be written.
    std::fs::create_dir(dir.join("x-v3_old.jsonl.part")).unwrap();
    assert!(log.append(&[Record::new("x", None, "t", user("x"))]).is_err());
    assert_eq!(branch(&log), "00000002");
    std::fs::remove_dir(dir.join("x-v3_old.jsonl.part")).unwrap();
    put(&log, "x", Some("00000002"), user("x"));
    let log = rig.reopened(log);
    assert_eq!(branch(&log), "00000002 x");
}

#[test]
fn real_pi_sessions_open_with_all_their_entries() {
    let Some(dir) = shared("sessions/pi") else { return };
    let rig = Rig::memory();
    for file in std::fs::read_dir(dir).unwrap().flatten() {
        let copy_dir = tempfile::tempdir().unwrap();
        let copy = copy_dir.path().join(file.file_name());
        std::fs::copy(file.path(), &copy).unwrap();
        let text = std::fs::read_to_string(&copy).unwrap();
        let log = rig.store.open_path(&copy).unwrap();
        assert_eq!(log.records_after(None).count(), text.lines().count() - 1, "{:?}", file.file_name());
        for node in log.records_after(None) {
            log.record(node.ix).unwrap();
        }
        if file.file_name() == "branch-trace.jsonl" {
            assert_eq!(log.id(log.leaf().unwrap()), "sum-1");
            assert_eq!(ids(&log, log.children(log.find("a-bot").ok())), "b-user b-edit sum-1");
        }
        assert_eq!(std::fs::read_to_string(&copy).unwrap(), text);
    }
}

#[tokio::test]
async fn syncs_of_many_sessions_are_answered() {
    for durability in [Durability::Os, Durability::Turn, Durability::Entry] {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(Some(dir.path()), StoreSettings { durability, ..SETTINGS }).unwrap();
        let rig = Rig { store, dir: Some(dir), clock: TestClock::default() };
        let logs: Vec<_> = (0..8).map(|n| rig.create(&format!("s{n}"))).collect();
        for log in &logs {
            put(log, "u1", None, user("x"));
            put(log, "u2", None, user("y"));
        }
        let all = futures_util::future::join_all(logs.iter().map(|log| log.sync())).await;
        assert!(all.iter().all(Result::is_ok));
    }
}

/// Everything about `.idx`: written when the session is let go, used, caught up with, and of no matter when damaged.
#[test]
fn the_index_of_a_large_file_decides_nothing() {
    let mut rig = Rig::file();
    let log = rig.create("s1");
    let text = "some words ".repeat(4_000);
    let mut parent = None;
    for n in 0..40 {
        let id = if n % 7 == 0 { format!("foreign-{n}") } else { format!("{n:08x}") };
        put(&log, &id, parent.as_deref(), if n % 2 == 0 { user(&text) } else { assistant(&text) });
        parent = Some(if n % 5 == 4 { "foreign-0".to_owned() } else { id });
    }
    put(&log, "l1", None, label("foreign-7", Some("L")));
    let path = log.path().unwrap();
    let idx = path.with_extension("jsonl.idx");
    let right = picture(&log);
    let log = rig.reopened(log);
    assert!(idx.exists() && log.read().from_idx);
    assert_eq!(picture(&log), right);
    put(&log, "tail", Some("foreign-0"), user("beyond the index"));
    put(&log, "l2", None, label("foreign-7", None));
    let right = picture(&log);
    let log = rig.reopened(log);
    assert!(log.read().from_idx);
    assert_eq!(picture(&log), right);
    drop(log);
    let good = std::fs::read(&idx).unwrap();
    let step = good.len() / 60;
    for at in (0..good.len()).step_by(step.max(1)).chain([0, 9, 4_100, 8_192, good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 0x41;
        std::fs::write(&idx, &bad).unwrap();
        let log = rig.store.open("s1").unwrap();
        assert_eq!(picture(&log), right, "damaged at {at}");
    }
    for len in [0, 10, 4_096, good.len() / 2, good.len() - 1] {
        std::fs::write(&idx, &good[..len]).unwrap();
        assert_eq!(picture(&rig.store.open("s1").unwrap()), right, "cut to {len}");
    }
    // Bytes of the file that were changed in place are noticed when they are read.
    std::fs::write(&idx, &good).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let at = text.find("some words").unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"OTHER", at as u64).unwrap();
    rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
    let log = rig.store.open("s1").unwrap();
    assert!(log.read().from_idx);
    let Body::Message(MessageBody { message: Message::User(message), .. }) = log.record(Ix(0)).unwrap().body else {
        panic!()
    };
    assert!(message.content.text().starts_with("OTHER"));
    assert!(!log.read().from_idx && !idx.exists());
    // And a file that is another one.
    drop(log);
    rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
    std::fs::write(&idx, &good).unwrap();
    let half: String = text.lines().take(10).map(|line| format!("{line}\n")).collect();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, half + &text.lines().skip(12).map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let log = rig.store.open("s1").unwrap();
    assert!(!log.read().from_idx);
    assert_eq!(log.records_after(None).count(), 41);
}

/// What is odd about a large file is told once, in the same words whether its index was there, and no longer than it
/// is so.
#[test]
fn the_warnings_of_a_large_file_do_not_come_from_its_index() {
    let entry = |id: &str, parent: &str, len: usize| {
        format!(
            r#"{{"type":"message","id":"{id}","parentId":"{parent}","timestamp":"t","message":{{"role":"user","content":"{}"}}}}"#,
            "x".repeat(len)
        )
    };
    let mut rig = Rig::file();
    let path = rig.path().join("x_s.jsonl");
    let header =
        r#"{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"/tmp/w","parentSession":"/nowhere/x.jsonl"}"#;
    let lines = [header, &entry("a", "later", 0), "garbage", &entry("c1", "c2", 0), &entry("b", "gone", 2 << 20)];
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let told = |log: &Log| log.facts().warnings.into_iter().map(|w| (w.kind, w.offset)).collect::<Vec<_>>();
    let check = |rig: &mut Rig, log: Arc<Log>, right: &str| {
        let log = rig.reopened(log);
        let scanned = told(&log);
        assert_eq!(kinds(&log).join(" "), right);
        let log = rig.reopened(log);
        assert!(log.read().from_idx);
        assert_eq!(told(&log), scanned, "with its index");
        log
    };
    let log = rig.store.open("s").unwrap();
    let log = check(&mut rig, log, "parentSession badLine missingParent missingParent missingParent");
    // Another program goes on, and brings two of the parents: one of them makes a circle.
    let mut file = std::fs::OpenOptions::new().append(true).open(&path).unwrap();
    let more = [entry("later", "b", 0), entry("c2", "c1", 0)].join("\n") + "\n";
    std::io::Write::write_all(&mut file, more.as_bytes()).unwrap();
    put(&log, "d", None, user("x"));
    assert_eq!(kinds(&log).join(" "), "parentSession badLine missingParent cycle fileGrew");
    let log = check(&mut rig, log, "parentSession badLine missingParent cycle");
    // A body that is not what the index says: what the lines say is told anew, not once more.
    let text = std::fs::read_to_string(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"y", text.find("xxx").unwrap() as u64).unwrap();
    log.record(log.find("b").unwrap()).unwrap();
    assert!(!log.read().from_idx);
    assert_eq!(kinds(&log).join(" "), "parentSession badLine cycle missingParent");
}

/// What a daemon must not do at the same time as another one: only one of two owners of a file gets it.
#[test]
fn of_twenty_that_open_a_file_at_once_one_has_it() {
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("trace.jsonl");
    std::fs::write(&path, "{\"type\":\"session\",\"version\":3,\"id\":\"s\"}\n").unwrap();
    let barrier = std::sync::Barrier::new(20);
    let opened: Vec<_> = std::thread::scope(|scope| {
        let open = || {
            let store = Store::new(None, SETTINGS).unwrap();
            barrier.wait();
            let log = store.open_path(&path);
            barrier.wait();
            log.is_ok()
        };
        let all: Vec<_> = (0..20).map(|_| scope.spawn(open)).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(opened.into_iter().filter(|opened| *opened).count(), 1);
}

/// Readers, forks and an appending actor side by side: each sees whole records only.
#[test]
fn readers_and_forks_go_along_with_appends() {
    Rig::both(|rig| {
        let log = rig.create("s");
        put(&log, "00000000", None, user("x"));
        std::thread::scope(|scope| {
            let reader = || {
                while log.end().0 < 300 {
                    let leaf = log.leaf().unwrap();
                    assert_eq!(log.up(Some(leaf)).count(), log.depth(leaf) as usize);
                    log.record(leaf).unwrap();
                }
            };
            let forker = || {
                for n in 0..10 {
                    let at = log.leaf().unwrap();
                    let fork = rig.fork(&log, at, &format!("f{n}"));
                    assert_eq!(fork.leaf(), Some(at));
                    put(&fork, "fork", Some(&fork.id(at)), user("y"));
                    assert_eq!(fork.up(fork.leaf()).count(), log.depth(at) as usize + 1);
                }
            };
            scope.spawn(reader);
            scope.spawn(forker);
            for n in 1..300u32 {
                put(&log, &format!("{n:08x}"), Some(&format!("{:08x}", n - 1)), user("x"));
            }
        });
        assert_eq!(branch(&log).split(' ').count(), 300);
    });
}
