//! What a session is, whatever it is kept in.

use super::*;

/// u1 – a1 – u2 – a2, and u3 – a3 under a1; the leaf is a3.
fn two_branches(log: &Log) {
    put(log, "m1", None, model("m"));
    put(log, "u1", Some("m1"), user("one"));
    put(log, "a1", Some("u1"), assistant("ok"));
    put(log, "u2", Some("a1"), user("two"));
    put(log, "a2", Some("u2"), assistant("ok two"));
    put(log, "u3", Some("a1"), user("three"));
    put(log, "a3", Some("u3"), assistant("ok three"));
}

#[test]
fn reopening_gives_an_equal_session() {
    Rig::both(|rig| {
        let log = rig.create("s1");
        assert!(log.is_empty());
        two_branches(&log);
        put(&log, "l1", Some("a3"), label("a2", Some("here")));
        put(&log, "leaf1", Some("a2"), Body::Leaf(LeafRecord {}));
        put(
            &log,
            "i1",
            Some("a2"),
            Body::SessionInfo(SessionInfoRecord { name: Some("N".into()), ..Default::default() }),
        );
        assert!(!log.is_empty());
        assert_eq!(branch(&log), "m1 u1 a1 u2 a2");
        let before = picture(&log);
        let log = rig.reopened(log);
        assert_eq!(picture(&log), before);
        assert_eq!(ids(&log, log.children(Some(log.find("a1").unwrap()))), "u2 u3");
        assert_eq!(log.label(log.find("a2").unwrap()).as_deref(), Some("here"));
        assert_eq!(log.facts().name.as_deref(), Some("N"));
        assert_eq!(log.facts().first_prompt.as_deref(), Some("one"));
        assert_eq!(log.facts().last_prompt.as_deref(), Some("three"));
        assert_eq!((log.facts().entry_count, log.facts().message_count), (Some(7), Some(6)));
        assert_eq!(log.facts().usage.input, 30);
        assert!(log.facts().warnings.is_empty());
    });
}

#[test]
fn the_leaf_is_moved_by_entries_and_leaf_records_only() {
    let unknown =
        |kind: &str| Record { kind: kind.into(), ..Record::new("x", None, "t", Body::Unknown(Default::default())) };
    let cases: &[(&str, Vec<Record>, Option<&str>)] = &[
        ("an entry", vec![Record::new("x", Some("a1".into()), "t", user("hi"))], Some("x")),
        ("a mark elsewhere", vec![Record::new("x", Some("u1".into()), "t", label("u1", Some("l")))], Some("a3")),
        ("a leaf", vec![Record::new("x", Some("u1".into()), "t", Body::Leaf(LeafRecord {}))], Some("u1")),
        ("a leaf before the first", vec![Record::new("x", None, "t", Body::Leaf(LeafRecord {}))], None),
        ("a leaf to nowhere", vec![Record::new("x", Some("nope".into()), "t", Body::Leaf(LeafRecord {}))], Some("a3")),
        ("an unknown record", vec![unknown("other")], Some("a3")),
        (
            "a summary",
            vec![Record::new("x", Some("u1".into()), "t", Body::BranchSummary(Default::default()))],
            Some("x"),
        ),
    ];
    Rig::both(|rig| {
        for (number, (name, records, leaf)) in cases.iter().enumerate() {
            let log = rig.create(&format!("s{number}"));
            two_branches(&log);
            log.append(records).unwrap();
            assert_eq!(log.leaf().map(|ix| log.id(ix)).as_deref(), *leaf, "{name}");
            let log = rig.reopened(log);
            assert_eq!(log.leaf().map(|ix| log.id(ix)).as_deref(), *leaf, "{name}, reopened");
        }
    });
}

#[test]
fn marks_are_passed_over_and_still_connect() {
    Rig::both(|rig| {
        let log = rig.create("s");
        put(&log, "u1", None, user("one"));
        put(&log, "c1", Some("u1"), Body::Custom(Custom::default()));
        put(&log, "c2", Some("c1"), Body::Custom(Custom::default()));
        let a1 = put(&log, "a1", Some("c2"), assistant("ok"));
        assert_eq!(ids(&log, log.parent(a1)), "u1");
        assert_eq!(ids(&log, log.children(Some(log.find("u1").unwrap()))), "a1");
        assert_eq!(branch(&log), "u1 c1 c2 a1");
        assert_eq!(ids(&log, log.entries_before(log.end()).map(|n| n.ix)), "a1 u1");
        assert_eq!(ids(&log, log.records_after(log.find("u1").ok()).map(|n| n.ix)), "c1 c2 a1");
        assert_eq!(log.facts().entry_count, Some(2));
    });
}

#[test]
fn entries_are_found_by_unique_beginnings() {
    Rig::both(|rig| {
        let log = rig.create("s");
        for id in ["abcd0001", "abcd1001", "abce0000", "a-user-1", "a-user-22"] {
            put(&log, id, None, user("x"));
        }
        let found = |text: &str| match log.find(text) {
            Ok(ix) => log.id(ix),
            Err(StoreError::AmbiguousEntry { candidates, .. }) => format!("{} fit", candidates.len()),
            Err(StoreError::EntryNotFound(_)) => "none".into(),
            Err(e) => panic!("{e}"),
        };
        let cases = [
            ("abcd0001", "abcd0001"),
            ("abcd1", "abcd1001"),
            ("abcd", "2 fit"),
            ("abce", "abce0000"),
            ("abc", "none"),
            ("a-user-1", "a-user-1"),
            ("a-us", "2 fit"),
            ("a-user-2", "a-user-22"),
            ("zzzz", "none"),
            ("abcd00010", "none"),
            ("", "none"),
        ];
        for (text, right) in cases {
            assert_eq!(found(text), right, "{text}");
        }
    });
}

#[test]
fn a_fork_shares_the_branch_as_it_was() {
    Rig::both(|rig| {
        let log = rig.create("s1");
        two_branches(&log);
        put(&log, "l1", Some("a3"), label("u1", Some("first")));
        put(&log, "l2", Some("a3"), label("u2", Some("other branch")));
        let fork = rig.fork(&log, log.find("a3").unwrap(), "f1");
        assert!(!fork.is_empty());
        // What the source does later, and what lies off the branch, is not seen.
        put(&log, "l3", Some("a3"), label("u1", Some("changed")));
        put(&log, "u4", Some("a3"), user("later"));
        for id in ["u2", "a2", "u4", "l2", "l3"] {
            assert!(fork.find(id).is_err(), "{id}");
        }
        assert_eq!(branch(&fork), "m1 u1 a1 u3 a3");
        assert_eq!(fork.label(fork.find("u1").unwrap()).as_deref(), Some("first"));
        // Nor the other way round; ids may even be the same.
        put(&fork, "u4", Some("a3"), user("in the fork"));
        put(&fork, "l9", Some("a3"), label("u1", None));
        put(&fork, "u5", Some("a1"), user("a side branch of the fork"));
        assert_eq!(log.record(log.find("u4").unwrap()).unwrap().body, user("later"));
        assert_eq!(fork.record(fork.find("u4").unwrap()).unwrap().body, user("in the fork"));
        assert_eq!(log.label(log.find("u1").unwrap()).as_deref(), Some("changed"));
        assert_eq!(fork.label(fork.find("u1").unwrap()), None);
        assert_eq!(ids(&fork, fork.children(Some(fork.find("a1").unwrap()))), "u3 u5");
        assert_eq!(ids(&fork, fork.children(None)), "m1");
        assert_eq!(ids(&fork, fork.entries_before(fork.end()).map(|n| n.ix)), "u5 u4 a3 u3 a1 u1 m1");
        assert_eq!(ids(&fork, fork.records_after(None).map(|n| n.ix)), "m1 u1 a1 u3 a3 l1 u4 l9 u5");
        assert_eq!(ids(&fork, fork.opening_settings()), "m1");
        let facts = fork.facts();
        assert_eq!(facts.first_prompt.as_deref(), Some("one"));
        assert_eq!(facts.fork_prompt.as_deref(), Some("in the fork"));
        assert_eq!((facts.entry_count, facts.message_count), (Some(7), Some(6)));
        assert_eq!(facts.parent_session.as_deref(), Some("s1"));
        assert_eq!(facts.fork_entry_id.as_deref(), Some("a3"));
        let (seen, source) = (picture(&fork), picture(&log));
        let fork = rig.reopened(fork);
        assert_eq!(picture(&fork), seen);
        assert_eq!(picture(&rig.store.open("s1").unwrap()), source);
    });
}

#[test]
fn ancestors_agree_with_walking_through_forks_of_forks() {
    Rig::both(|rig| {
        let mut log = rig.create("s0");
        put(&log, "e0", None, user("x"));
        let mut seed = 7u32;
        for n in 1..400u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let visible: Vec<Ix> = log.entries_before(log.end()).map(|node| node.ix).collect();
            if n % 40 == 0 {
                let at = visible[seed as usize % visible.len().min(20)];
                log = rig.fork(&log, at, &format!("s{n}"));
                continue;
            }
            let parent = visible[(seed >> 8) as usize % visible.len().min(4)];
            put(&log, &format!("e{n}"), Some(&log.id(parent)), user("x"));
        }
        let log = rig.reopened(log);
        let all: Vec<Ix> = log.records_after(None).map(|node| node.ix).collect();
        for (i, a) in all.iter().enumerate().step_by(3) {
            let up: Vec<Ix> = log.up(Some(*a)).map(|node| node.ix).collect();
            assert_eq!(log.depth(*a) as usize, up.len());
            for b in all.iter().skip(i % 5).step_by(5) {
                assert_eq!(log.is_ancestor(*b, *a), up.contains(b), "{} {}", log.id(*b), log.id(*a));
                let shared = log.up(Some(*b)).map(|node| node.ix).find(|ix| up.contains(ix));
                assert_eq!(log.common_ancestor(*a, *b), shared);
            }
        }
    });
}

#[test]
fn settings_are_found_by_their_own_links() {
    Rig::both(|rig| {
        let log = rig.create("s");
        put(&log, "m1", None, model("a"));
        put(&log, "t1", Some("m1"), Body::ThinkingLevelChange(ThinkingLevelChange { thinking_level: "off".into() }));
        put(&log, "u1", Some("t1"), user("x"));
        put(&log, "k1", Some("u1"), Body::Compaction(Compaction { summary: "s".into(), ..Default::default() }));
        put(&log, "u2", Some("k1"), user("y"));
        let fork = rig.fork(&log, log.find("u2").unwrap(), "f");
        put(&fork, "m2", Some("u2"), model("b"));
        let end = put(&fork, "u3", Some("m2"), user("z"));
        assert_eq!(ids(&fork, fork.settings_up(Some(end)).map(|n| n.ix)), "m2 k1 t1 m1");
        assert_eq!(ids(&fork, fork.settings_up(fork.find("m2").ok()).map(|n| n.ix)), "m2 k1 t1 m1");
        assert_eq!(ids(&fork, fork.opening_settings()), "m1 t1");
    });
}

#[test]
fn a_taken_id_changes_nothing() {
    Rig::both(|rig| {
        let log = rig.create("s");
        two_branches(&log);
        let fork = rig.fork(&log, log.find("a3").unwrap(), "f");
        let before = (picture(&log), picture(&fork));
        let twice = [Record::new("n", None, "t", user("a")), Record::new("n", None, "t", user("b"))];
        assert!(log.append(&twice).is_err());
        assert!(log.append(&[Record::new("u1", None, "t", user("a"))]).is_err());
        assert!(fork.append(&[Record::new("u1", None, "t", user("a"))]).is_err());
        assert_eq!((picture(&log), picture(&fork)), before);
    });
}

#[test]
fn depth_and_chains_of_forks_do_not_recurse() {
    Rig::both(|rig| {
        let log = rig.create("deep");
        let records: Vec<Record> = (0..100_000u32)
            .map(|n| Record::new(format!("{n:08x}"), n.checked_sub(1).map(|p| format!("{p:08x}")), "t", user("x")))
            .collect();
        log.append(&records).unwrap();
        let (top, leaf) = (log.find("00000000").unwrap(), log.leaf().unwrap());
        assert!(log.is_ancestor(top, leaf));
        assert_eq!(log.up(Some(leaf)).count(), 100_000);
        let log = rig.reopened(log);
        let mut fork = log.clone();
        for n in 0..if rig.dir.is_some() { 100 } else { 3_000u32 } {
            fork = rig.fork(&fork, fork.leaf().unwrap(), &format!("f{n}"));
            put(&fork, &format!("f{n:07x}"), Some(&fork.id(fork.leaf().unwrap())), user("y"));
        }
        assert!(fork.is_ancestor(top, fork.leaf().unwrap()));
        assert_eq!(fork.find("00000000").unwrap(), top);
        assert_eq!(ids(&fork, fork.children(Some(top))), "00000001");
        assert_eq!(fork.entries_before(Ix(5)).count(), 5);
        drop(log);
        drop(fork);
    });
}

#[test]
fn memory_is_bounded_and_given_back() {
    let settings = StoreSettings { max_memory_bytes: 4_000, ..SETTINGS };
    let store = Store::new(None, settings).unwrap();
    let rig = Rig { store, dir: None, clock: TestClock::default() };
    let (a, b) = (rig.create("a"), rig.create("b"));
    put(&a, "u1", None, user(&"x".repeat(2_000)));
    let before = picture(&b);
    let too_much = b.append(&[Record::new("u1", None, "t", user(&"x".repeat(2_000)))]);
    assert!(matches!(too_much, Err(StoreError::Limit { limit: "maxMemoryBytes", max: 4_000, .. })));
    assert_eq!(picture(&b), before);
    drop(a);
    rig.store.delete("a").unwrap();
    put(&b, "u1", None, user(&"x".repeat(2_000)));
    assert!(matches!(rig.store.create(rig.new_session("a")), Err(StoreError::SessionExists(_))));
}

#[test]
fn a_key_written_with_an_entry_is_found_again() {
    Rig::both(|rig| {
        let log = rig.create("s");
        let message = |text: &str| Message::User(UserMessage { content: text.into(), ..UserMessage::default() });
        let keyed = |text: &str, key: &str| {
            Body::Message(MessageBody { message: message(text), idempotency_key: Some(key.into()) })
        };
        put(&log, "u1", None, keyed("x", "key-1"));
        put(&log, "u2", None, user("\"idempotencyKey\":\"key-2\""));
        let log = rig.reopened(log);
        assert_eq!(log.find_key("key-1").map(|ix| log.id(ix)).as_deref(), Some("u1"));
        assert_eq!(log.find_key("key-2"), None);
    });
}

#[test]
fn new_ids_are_new_even_without_randomness() {
    struct Stuck;
    impl Clock for Stuck {
        fn now_ms(&self) -> u64 {
            0
        }
        fn random(&self) -> u128 {
            0xffff_ffff
        }
    }
    Rig::both(|rig| {
        let log = rig.create("s");
        for right in ["ffffffff", "00000000", "00000001"] {
            let id = log.new_id(&Stuck);
            assert_eq!(id, right);
            put(&log, &id, None, user("x"));
        }
    });
}
