//! Every row of the contract's damage table.

use super::*;

const HEADER: &str = r#"{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/tmp/w"}"#;

fn entry(id: &str, parent: &str) -> String {
    let parent = if parent.is_empty() { "null".to_owned() } else { format!("\"{parent}\"") };
    format!(
        r#"{{"type":"message","id":"{id}","parentId":{parent},"timestamp":"2026-01-01T00:00:01.000Z","message":{{"role":"user","content":"text of {id}"}}}}"#
    )
}

/// Opens a file of these bytes: roots and branch, and the warnings' kinds; then appends, and checks that nothing
/// before changed but a torn tail.
#[track_caller]
fn check(name: &str, bytes: &[u8], branch_right: &str, warnings: &str) -> (Arc<Log>, Rig) {
    let mut rig = Rig::file();
    let path = rig.path().join("x_s.jsonl");
    std::fs::write(&path, bytes).unwrap();
    rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
    let log = rig.store.open("s").unwrap();
    assert_eq!(branch(&log), branch_right, "{name}");
    assert_eq!(kinds(&log).join(" "), warnings, "{name}");
    for warning in log.facts().warnings {
        let offset = warning.offset.unwrap() as usize;
        assert!(offset <= bytes.len() && warning.path.is_some(), "{name}: {offset}");
    }
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name}: reading writes nothing");
    let leaf = log.leaf().map(|ix| log.id(ix));
    put(&log, "ffff0001", leaf.as_deref(), user("next"));
    let after = std::fs::read(&path).unwrap();
    let kept = match warnings.contains("tornTail") {
        true => bytes.iter().rposition(|b| *b == b'\n').unwrap() + 1,
        false => bytes.len(),
    };
    assert_eq!(&after[..kept], &bytes[..kept], "{name}: what was whole stays");
    let line = String::from_utf8(after[kept..].to_vec()).unwrap();
    let line = line.strip_prefix('\n').unwrap_or(&line);
    assert!(line.starts_with("{\"type\":\"message\",\"id\":\"ffff0001\"") && line.ends_with("}\n"), "{name}: {line}");
    let before = picture(&log);
    let reopened = rig.reopened(log);
    assert_eq!(picture(&reopened), before, "{name}: reopened");
    (reopened, rig)
}

#[test]
fn damage_costs_no_more_than_the_damaged_line() {
    let lines = |lines: &[&str]| lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    let (u1, a1, u2) = (entry("u1", ""), entry("a1", "u1"), entry("u2", "a1"));
    let whole = lines(&[HEADER, &u1, &a1, &u2]);
    let check = |name: &str, text: String, branch: &str, warnings: &str| check(name, text.as_bytes(), branch, warnings);
    check("whole", whole.clone(), "u1 a1 u2", "");
    check("torn tail", whole[..whole.len() - 20].to_owned(), "u1 a1", "tornTail");
    check("no LF at the end", whole[..whole.len() - 1].to_owned(), "u1 a1 u2", "");
    check("blank lines", lines(&["", HEADER, "  ", &u1, "\t", &a1, "", &u2, ""]), "u1 a1 u2", "");
    check("BOM", format!("\u{feff}{whole}"), "u1 a1 u2", "");
    check("CRLF", whole.replace('\n', "\r\n"), "u1 a1 u2", "");
    check("no JSON", lines(&[HEADER, &u1, "garbage", &a1, &u2]), "u1 a1 u2", "badLine");
    check("an array", lines(&[HEADER, &u1, "[1]", &a1, &u2]), "u1 a1 u2", "badLine");
    // Read by nobody, and yet whole: it is no torn tail.
    let deep = format!(r#"{{"id":"d","type":"x","x":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    check("nested too deep", lines(&[HEADER, &u1, &deep, &a1, &u2]), "u1 a1 u2", "badLine");
    check("nested too deep, no LF at the end", format!("{whole}{deep}"), "u1 a1 u2", "badLine");
    check("NUL block", lines(&[HEADER, &u1, &"\0".repeat(5000), &a1, &u2]), "u1 a1 u2", "badLine");
    let (front, back) = a1.split_at(a1.len() - 5);
    check("raw newline", lines(&[HEADER, &u1, front, back, &u2]), "u2", "badLine badLine missingParent");
    check("without id", lines(&[HEADER, &u1, r#"{"type":"message","timestamp":"t"}"#, &a1, &u2]), "u1 a1 u2", "noId");
    let state = r#"{"type":"runtime_state","timestamp":"t"}"#;
    check("a state of another program at the end", lines(&[HEADER, &u1, &a1, &u2, state]), "u1 a1 u2", "noId");
    check("without type", lines(&[HEADER, &u1, r#"{"id":"x"}"#, &a1, &u2]), "u1 a1 u2", "noType");
    check("numeric id", lines(&[HEADER, &u1, r#"{"type":"message","id":7}"#, &a1, &u2]), "u1 a1 u2", "noId");
    check("duplicate", lines(&[HEADER, &u1, &a1, &entry("u1", "a1"), &u2]), "u1 a1 u2", "duplicateId");
    check("second header", lines(&[HEADER, &u1, HEADER, &a1, &u2]), "u1 a1 u2", "");
    check("missing parent", lines(&[HEADER, &u1, &entry("a1", "gone"), &u2]), "a1 u2", "missingParent");
    check("self-parent", lines(&[HEADER, &u1, &entry("a1", "a1"), &u2]), "a1 u2", "cycle");
    check("cycle", lines(&[HEADER, &entry("u1", "u2"), &a1, &u2]), "u1 a1 u2", "cycle");
    check(
        "two cycles",
        lines(&[HEADER, &entry("x", "y"), &entry("y", "x"), &entry("u1", "u2"), &a1, &u2]),
        "u1 a1 u2",
        "cycle cycle",
    );
    check("several roots", lines(&[HEADER, &u1, &a1, &entry("u2", "")]), "u2", "");
    check("child first", lines(&[HEADER, &a1, &u2, &u1, &entry("x", "u2")]), "u1 a1 u2 x", "");
    check("U+2028 and U+0085", lines(&[HEADER, &u1.replace("text", "a\u{2028}b\u{85}c"), &a1, &u2]), "u1 a1 u2", "");
    check("header alone", lines(&[HEADER]), "", "");
    check("header alone, no LF", HEADER.to_owned(), "", "");
    check("only a torn line", format!("{HEADER}\n{{\"type\":"), "", "tornTail");
    let (log, _rig) = check(
        "lone surrogate",
        lines(&[HEADER, &u1.replace("text", "\\ud83d \\\\ud83d \\ud83d\\ude00"), &a1, &u2]),
        "u1 a1 u2",
        "",
    );
    let text = log.record(log.find("u1").unwrap()).unwrap();
    assert_eq!(text.body, user("\u{fffd} \\ud83d \u{1f600} of u1"));
    let mut latin = lines(&[HEADER, &u1, &a1]).into_bytes();
    latin.extend_from_slice(b"{\"type\":\"message\",\"id\":\"x\",\"parentId\":\"a1\",\"timestamp\":\"t\",\"message\":{\"role\":\"user\",\"content\":\"\xe9\"}}\n");
    latin.extend_from_slice(format!("{u2}\n").as_bytes());
    super::damage::check("bad UTF-8", &latin, "u1 a1 u2", "badLine");
}

/// The last label in file order counts, wherever its entry lies.
#[test]
fn a_label_may_lie_before_its_entry() {
    let mark = |id: &str, label: &str| {
        format!(
            r#"{{"type":"label","id":"{id}","parentId":"u1","timestamp":"2026-01-01T00:00:02.000Z","targetId":"a1","label":"{label}"}}"#
        )
    };
    let (u1, a1) = (entry("u1", ""), entry("a1", "u1"));
    let cases = [
        (vec![&u1, &mark("l1", "early"), &a1], Some("early")),
        (vec![&mark("l1", "early"), &mark("l2", "later"), &u1, &a1], Some("later")),
        (vec![&u1, &mark("l1", "early"), &a1, &mark("l2", "later")], Some("later")),
        (vec![&u1, &mark("l1", "early"), &mark("l2", ""), &a1], None),
    ]
    .map(|(lines, right)| (lines.into_iter().cloned().collect::<Vec<String>>(), right));
    for (lines, right) in cases {
        let text = format!("{HEADER}\n{}\n", lines.join("\n"));
        let (log, rig) = check("label first", text.as_bytes(), "u1 a1", "");
        let a1 = log.find("a1").unwrap();
        assert_eq!(log.label(a1).as_deref(), right, "{text}");
        let fork = rig.fork(&log, a1, "f");
        assert_eq!(fork.label(a1).as_deref(), right, "{text}");
        assert_eq!(fork.labels().len(), usize::from(right.is_some()), "{text}");
    }
}

/// Of files that are no sessions: refused with a reason, listed, never touched.
#[test]
fn files_without_header_are_refused_and_left_alone() {
    let cases: &[(&str, &[u8], &str)] = &[
        ("empty", b"", "is empty"),
        ("blank", b"\n \n", "is empty"),
        ("no header", b"{\"type\":\"message\",\"id\":\"u1\"}\n", "does not begin with a session header"),
        ("not JSON", b"hello\n", "does not begin with a session header"),
        ("NULs", &[0; 100], "does not begin with a session header"),
        ("no id", b"{\"type\":\"session\",\"version\":3}\n", "has a session header without an id"),
        ("id", b"{\"type\":\"session\",\"version\":3,\"id\":5}\n", "has a session header whose id is not a string"),
        (
            "version",
            b"{\"type\":\"session\",\"version\":\"3\",\"id\":\"s\"}\n",
            "has a session header whose version is not a whole number",
        ),
        (
            "cwd",
            b"{\"type\":\"session\",\"version\":3,\"id\":\"s\",\"cwd\":[]}\n",
            "has a session header whose cwd is not a string",
        ),
        (
            "base",
            b"{\"type\":\"kli_session\",\"version\":4,\"id\":\"s\",\"base\":{\"session\":1}}\n",
            "has a session header whose base is not {session, entry, at}",
        ),
    ];
    for (name, bytes, reason) in cases {
        let rig = Rig::file();
        let path = rig.path().join("x.jsonl");
        std::fs::write(&path, bytes).unwrap();
        let (sessions, unreadable) = rig.store.list(&Filter::default());
        assert!(sessions.is_empty(), "{name}");
        assert_eq!(unreadable.len(), 1, "{name}");
        assert_eq!(unreadable[0].reason, *reason, "{name}");
        assert!(matches!(rig.store.open_path(&path), Err(StoreError::Corrupt { .. })), "{name}");
        assert_eq!(std::fs::read(&path).unwrap(), *bytes, "{name}");
    }
}

#[test]
fn newer_versions_are_read_only() {
    let cases = [
        r#"{"type":"session","version":4,"id":"s","timestamp":"t","cwd":"/tmp/w"}"#,
        r#"{"type":"session","version":99,"id":"s","cwd":"/tmp/w","base":"of another shape"}"#,
        r#"{"type":"kli_session","version":5,"id":"s","timestamp":"t","cwd":"/tmp/w"}"#,
    ];
    for header in cases {
        let rig = Rig::file();
        let path = rig.path().join("x_s.jsonl");
        let bytes = format!("{header}\n{}\n", entry("u1", ""));
        std::fs::write(&path, &bytes).unwrap();
        let log = rig.store.open("s").unwrap();
        assert_eq!(branch(&log), "u1");
        let facts = log.facts();
        assert!(facts.newer_version && facts.read_only.unwrap().contains("newer version"));
        assert!(matches!(log.append(&[Record::new("x", None, "t", user("x"))]), Err(StoreError::ReadOnly { .. })));
        assert!(matches!(rig.store.fork(&log, Ix(0), rig.new_session("f")), Err(StoreError::ReadOnly { .. })));
        assert_eq!(rig.store.list(&Filter::default()).0.len(), 1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), bytes);
    }
}

#[test]
fn a_base_that_is_missing_or_goes_in_a_circle_heals() {
    let fork = |id: &str, base: &str, entry: &str| {
        format!(
            r#"{{"type":"kli_session","version":4,"id":"{id}","timestamp":"t","cwd":"/tmp/w","parentSession":"{base}","base":{{"session":"{base}","entry":"{entry}","at":100000}}}}"#
        )
    };
    let mut rig = Rig::file();
    let write = |rig: &Rig, name: &str, header: &str, lines: &[String]| {
        let path = rig.path().join(format!("x_{name}.jsonl"));
        std::fs::write(&path, format!("{header}\n{}\n", lines.join("\n"))).unwrap();
        path
    };
    write(&rig, "f", &fork("f", "s", "u1"), &[entry("x1", "u1"), entry("x2", "x1")]);
    let check = |rig: &Rig, id: &str, right: &str, writable: bool| {
        let log = rig.store.open(id).unwrap();
        assert_eq!(branch(&log), right, "{id}");
        assert_eq!(log.facts().read_only.is_none(), writable, "{id}");
        assert_eq!(kinds(&log).contains(&"baseMissing".to_owned()), !writable, "{id}");
        log
    };
    check(&rig, "f", "x1 x2", false);
    // There, but without the entry.
    let base = write(&rig, "s", HEADER, &[entry("u9", "")]);
    check(&rig, "f", "x1 x2", false);
    std::fs::remove_file(&base).unwrap();
    write(&rig, "s", HEADER, &[entry("u1", ""), entry("a1", "u1")]);
    let log = check(&rig, "f", "u1 x1 x2", true);
    put(&log, "x3", Some("x2"), user("x"));
    let log = rig.reopened(log);
    assert_eq!(branch(&log), "u1 x1 x2 x3");
    // A circle of two, and a third that hangs on it.
    write(&rig, "c1", &fork("c1", "c2", "q2"), &[entry("q1", "q2")]);
    write(&rig, "c2", &fork("c2", "c1", "q1"), &[entry("q2", "q1")]);
    write(&rig, "c3", &fork("c3", "c1", "q1"), &[entry("q3", "q1")]);
    for first in ["c1", "c2", "c3"] {
        rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
        let _open = rig.store.open(first).unwrap();
        let _c1 = check(&rig, "c1", "q1", false);
        let _c2 = check(&rig, "c2", "q2", false);
        check(&rig, "c3", "q1 q3", false);
    }
    // What is missing further down is missing too.
    write(&rig, "d1", &fork("d1", "nowhere", "y0"), &[entry("y1", "y0")]);
    write(&rig, "d2", &fork("d2", "d1", "y1"), &[entry("y2", "y1")]);
    let d2 = check(&rig, "d2", "y1 y2", false);
    // Back again, while one between is still open without it.
    let d1 = check(&rig, "d1", "y1", false);
    write(&rig, "nowhere", &HEADER.replace("\"s\"", "\"nowhere\""), &[entry("y0", "")]);
    rig.store.forget(&d2);
    check(&rig, "d2", "y0 y1 y2", true);
    assert_eq!(branch(&d1), "y1");
    rig.store.forget(&d1);
    check(&rig, "d1", "y0 y1", true);
}

/// The cut may come anywhere: the last record is lost or whole, nothing else changes.
#[test]
fn a_file_cut_at_any_byte_opens_and_goes_on() {
    let (u1, a1, u2) = (entry("u1", ""), entry("a1", "u1"), entry("u2", "a1"));
    let text = format!("{HEADER}\n{u1}\n{a1}\n{u2}\n");
    let keep = text.len() - a1.len() - u2.len() - 2;
    for cut in keep..=text.len() {
        let whole = text[keep..cut].split_inclusive('\n').filter(|l| l.trim_end().ends_with("}}")).count();
        let torn = !text[..cut].trim_end().ends_with("}}") && !text[..cut].ends_with('\n');
        let right = ["u1", "u1 a1", "u1 a1 u2"][whole];
        check(&format!("cut at {cut}"), &text.as_bytes()[..cut], right, if torn { "tornTail" } else { "" });
    }
}

#[test]
fn collected_failures_open_as_they_should() {
    let cases = [
        ("F001-torn-tail", Some("a2"), "tornTail"),
        ("F003-bad-middle-line", Some("a2"), "badLine"),
        ("F008-blank-lines", Some("a2"), ""),
        ("F009-duplicate-ids", Some("F"), "duplicateId duplicateId"),
        ("F011-cycle", Some("a2"), "cycle"),
        ("F012-missing-parent", Some("a3"), "missingParent"),
        ("F017-lone-surrogate", None, ""),
        ("F019-invalid-utf8", Some("a2"), "badLine missingParent"),
        ("F025-progress-fork", Some("a2"), ""),
        ("F028-multi-roots", Some("a2"), ""),
        ("F031-clock-back", Some("a2"), ""),
        ("F020-v1", Some("00000005"), ""),
    ];
    for (name, leaf, warnings) in cases {
        let Some(path) = shared(&format!("failures/{name}.jsonl")) else { return };
        let rig = Rig::file();
        let copy = rig.path().join(format!("{name}.jsonl"));
        std::fs::copy(path, &copy).unwrap();
        let log = rig.store.open_path(&copy).unwrap();
        if let Some(leaf) = leaf {
            assert_eq!(log.id(log.leaf().unwrap()), leaf, "{name}");
        }
        assert_eq!(kinds(&log).join(" "), warnings, "{name}");
        picture(&log);
    }
}
