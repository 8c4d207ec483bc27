//! Laws that hold for any records and any order of doing things.

use proptest::prelude::*;

use super::*;

/// One thing that a person or a program does. Numbers pick among what there is.
#[derive(Clone, Debug)]
enum Act {
    Entry { at: u8, kind: u8 },
    Several { count: u8 },
    Leaf { to: u8 },
    Label { of: u8, clear: bool },
    Name(u8),
    Mark,
    Fork { at: u8 },
    Other(u8),
    Delete(u8),
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (any::<u8>(), any::<u8>()).prop_map(|(at, kind)| Act::Entry { at, kind }),
        2 => (2u8..5).prop_map(|count| Act::Several { count }),
        2 => any::<u8>().prop_map(|to| Act::Leaf { to }),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(of, clear)| Act::Label { of, clear }),
        1 => any::<u8>().prop_map(Act::Name),
        1 => Just(Act::Mark),
        2 => any::<u8>().prop_map(|at| Act::Fork { at }),
        2 => any::<u8>().prop_map(Act::Other),
        1 => any::<u8>().prop_map(Act::Delete),
        2 => Just(Act::Reopen),
    ]
}

struct World {
    rig: Rig,
    open: Vec<Arc<Log>>,
    current: usize,
    made: u32,
}

impl World {
    fn new(rig: Rig) -> World {
        let mut world = World { rig, open: Vec::new(), current: 0, made: 0 };
        let first = world.rig.store.create(world.session("s0")).unwrap();
        world.open.push(first);
        world
    }

    /// All made at the same time: what is made again after a restart then looks the same.
    fn session(&self, id: &str) -> NewSession {
        NewSession { created_at_ms: 1_790_000_000_000, ..self.rig.new_session(id) }
    }

    fn log(&self) -> &Arc<Log> {
        &self.open[self.current]
    }

    fn pick(&self, n: u8) -> Option<Ix> {
        let all: Vec<Ix> = self.log().entries_before(self.log().end()).map(|node| node.ix).collect();
        all.get(usize::from(n) % all.len().max(1)).copied()
    }

    fn record(&mut self, parent: Option<String>, body: Body) -> Record {
        self.made += 1;
        let id = if self.made.is_multiple_of(5) { format!("id-{}", self.made) } else { format!("{:08x}", self.made) };
        Record::new(id, parent, crate::clock::rfc3339(u64::from(self.made) * 1000), body)
    }

    fn append(&mut self, parent: Option<Ix>, body: Body) {
        let parent = parent.map(|ix| self.log().id(ix));
        let record = self.record(parent, body);
        self.log().append(&[record]).unwrap();
    }

    fn act(&mut self, act: &Act) {
        let leaf = self.log().leaf();
        match act {
            Act::Entry { at, kind } => {
                let parent = if at % 3 == 0 { self.pick(*at) } else { leaf };
                let body = match kind % 5 {
                    0 | 1 => user(&format!("prompt {kind} \u{2028}")),
                    2 => assistant("answer"),
                    3 => model("m"),
                    _ => Body::Compaction(Compaction { summary: "s".into(), ..Default::default() }),
                };
                self.append(parent, body);
            }
            Act::Several { count } => {
                let mut parent = leaf.map(|ix| self.log().id(ix));
                let mut records = Vec::new();
                for _ in 0..*count {
                    let record = self.record(parent, assistant("one of several"));
                    parent = Some(record.id.clone());
                    records.push(record);
                }
                self.log().append(&records).unwrap();
            }
            Act::Leaf { to } => {
                let to = self.pick(*to).filter(|_| to % 4 != 0);
                self.append(to, Body::Leaf(LeafRecord {}));
            }
            Act::Label { of, clear } => {
                if let Some(target) = self.pick(*of) {
                    let target = self.log().id(target);
                    self.append(leaf, label(&target, (!clear).then_some("L")));
                }
            }
            Act::Name(n) => {
                let info = SessionInfoRecord {
                    name: (n % 3 != 0).then(|| format!("name {n}")),
                    archived: Some(n % 2 == 0),
                    ..Default::default()
                };
                self.append(leaf, Body::SessionInfo(info));
            }
            Act::Mark => self.append(leaf, Body::Custom(Custom::default())),
            Act::Fork { at } => {
                if let Some(at) = self.pick(*at)
                    && self.open.len() < 6
                {
                    self.made += 1;
                    let new = self.session(&format!("f{}", self.made));
                    let fork = self.rig.store.fork(self.log(), at, new).unwrap();
                    self.current = self.open.len();
                    self.open.push(fork);
                }
            }
            Act::Other(n) => self.current = usize::from(*n) % self.open.len(),
            Act::Delete(n) => {
                if self.open.len() > 1 {
                    let gone = self.open.remove(usize::from(*n) % self.open.len());
                    self.rig.store.delete(gone.session_id()).unwrap();
                    self.current = 0;
                }
            }
            Act::Reopen => self.reopen(),
        }
    }

    /// All at once, as a restart does; a session that was never written is gone then, so it is made again.
    fn reopen(&mut self) {
        let all: Vec<(String, bool)> =
            self.open.drain(..).map(|log| (log.session_id().to_owned(), log.is_empty())).collect();
        if let Some(dir) = &self.rig.dir {
            self.rig.store = Store::new(Some(dir.path()), SETTINGS).unwrap();
        }
        for (id, empty) in all {
            let log = match empty && self.rig.dir.is_some() {
                true => self.rig.store.create(self.session(&id)).unwrap(),
                false => self.rig.store.open(&id).unwrap(),
            };
            self.open.push(log);
        }
    }

    fn pictures(&self) -> Vec<Value> {
        self.open.iter().map(|log| picture(log)).collect()
    }

    fn listed(&self) -> Vec<Value> {
        let mut all: Vec<Facts> = self.rig.store.list(&Filter::default()).0;
        all.extend(self.rig.store.list(&Filter { archived: true, ..Filter::default() }).0);
        let mut all: Vec<Value> = all.iter().map(|f| json!([f.id, f.name, f.archived, f.first_prompt])).collect();
        all.sort_by_key(Value::to_string);
        all
    }
}

/// The whole session again from what was written.
fn refolded(log: &Log) -> Option<()> {
    use super::super::scan;
    let state = log.read();
    let place = state.place.as_ref()?;
    let mut index = crate::tree::Index::new(log.start, log.base.as_ref().map(|base| base.entry));
    let mut progress = scan::Progress { covered: state.head_end, ..Default::default() };
    let source = scan::Source { medium: &*place.medium, path: None, shape: state.shape };
    let mut warnings = scan::Warnings::default();
    scan::records(&source, &mut index, &log.above(), &mut progress, &mut warnings).unwrap();
    scan::settle(&mut index, &log.above(), 0, None, &mut warnings);
    assert!(shown(&index) == shown(&state.index), "fold(records) = tree");
    Some(())
}

fn shown(index: &crate::tree::Index) -> (Vec<u8>, Value) {
    let [rows, ..] = index.parts();
    (rows.concat(), serde_json::to_value(index.rest()).unwrap())
}

/// A file large enough that several threads read it gives what its lines give one after another.
#[test]
fn parts_of_a_large_file_add_up() {
    use crate::tree::{Index, Place, line};
    let mut rig = Rig::file();
    let header = r#"{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/tmp/w"}"#;
    let mut text = format!("{header}\n");
    let mut index = Index::new(0, None);
    let mut parent = "null".to_owned();
    let usage = r#""usage":{"input":7,"output":2,"cacheRead":3,"cacheWrite":4,"totalTokens":10,"cost":{"input":0.1,"output":0.2,"cacheRead":0,"cacheWrite":0,"total":0.3}},"stopReason":"stop""#;
    for n in 0..30_000u32 {
        let id = if n % 7 == 3 { format!("foreign-{n}") } else { format!("{:08x}", n.wrapping_mul(2_654_435_761)) };
        let id = if n % 1_009 == 5 { "00000000".to_owned() } else { id };
        let time = if n % 11 == 0 { "2026-01-01".to_owned() } else { format!("2026-01-01T00:00:00.{:03}Z", n % 1000) };
        let first = format!(r#""id":"{id}","parentId":{parent},"timestamp":"{time}""#);
        let body = "word ".repeat(n as usize % 90);
        let line = match n % 13 {
            0 => format!(r#"{{"type":"label",{first},"targetId":"00000000","label":"l{n}"}}"#),
            1 => format!(
                r#"{{"type":"message",{first},"message":{{"role":"user","content":"{body}"}},"idempotencyKey":"k{n}"}}"#
            ),
            2 | 3 => format!(r#"{{"type":"message",{first},"message":{{"role":"assistant","content":[],{usage}}}}}"#),
            4 => format!(r#"{{"message":{{"role":"toolResult","content":"{body}"}},{first},"type":"message"}}"#),
            5 if n % 5 == 0 => "garbage".to_owned(),
            6 if n % 5 == 0 => String::new(),
            7 if n % 50 == 7 => {
                r#"{"type":"leaf","id":"11111111","parentId":"00000000","timestamp":"2026-01-01T00:00:00.000Z"}"#.into()
            }
            _ => format!(r#"{{"type":"message",{first},"message":{{"role":"user","content":"{body}"}}}}"#),
        };
        if let Ok(record) = line::read(line.as_bytes()) {
            let place =
                Place { offset: text.len() as u64, len: line.len() as u32, crc: crc32fast::hash(line.as_bytes()) };
            index.push(&record, place, &());
            let awaited = if n % 100 == 99 { "later" } else { &record.id };
            parent = format!("\"{awaited}\"");
        }
        text.push_str(&line);
        text.push('\n');
    }
    index.settle(&());
    assert!(text.len() > 5 << 20, "{}", text.len());
    std::fs::write(rig.path().join("x_s.jsonl"), text).unwrap();
    rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
    let log = rig.store.open("s").unwrap();
    assert!(shown(&log.read().index) == shown(&index), "{:?} {:?}", log.read().index.tally(), index.tally());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_files_give_equal_answers(acts in prop::collection::vec(act(), 1..60)) {
        let (mut memory, mut file) = (World::new(Rig::memory()), World::new(Rig::file()));
        for act in &acts {
            memory.act(act);
            file.act(act);
        }
        prop_assert_eq!(memory.pictures(), file.pictures());
        prop_assert_eq!(memory.listed(), file.listed());
        for log in memory.open.iter().chain(&file.open) {
            refolded(log);
        }
        file.reopen();
        prop_assert_eq!(memory.pictures(), file.pictures());
        // Read from the files alone.
        file.open.clear();
        while file.rig.store.is_listing() {
            std::thread::yield_now();
        }
        let closed: Vec<Value> = file.listed();
        let open: Vec<Value> = memory.listed();
        let written = |list: Vec<Value>| list.into_iter().filter(|f| f[0] != "s0").collect::<Vec<_>>();
        prop_assert_eq!(written(closed), written(open));
    }

    /// Whatever is done to one line, the others stay, and appending goes on.
    #[test]
    fn damage_to_one_record_costs_that_record(which in 1usize..6, from in 0usize..120, len in 1usize..40, with in any::<u8>()) {
        let mut rig = Rig::file();
        let log = rig.create("s");
        let mut parent = None;
        for n in 0..6 {
            let id = format!("{n:08x}");
            put(&log, &id, parent.as_deref(), user(&format!("text number {n}")));
            parent = Some(id);
        }
        let path = log.path().unwrap();
        drop(log);
        let mut bytes = std::fs::read(&path).unwrap();
        let starts: Vec<usize> =
            std::iter::once(0).chain(bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1)).collect();
        let (start, end) = (starts[which], starts[which + 1] - 1);
        let with = if with == b'\n' { 0 } else { with };
        bytes[(start + from).min(end - 1)..(start + from + len).min(end)].fill(with);
        std::fs::write(&path, &bytes).unwrap();
        rig.store = Store::new(Some(rig.path()), SETTINGS).unwrap();
        let log = rig.store.open("s").unwrap();
        for n in (0..6).filter(|n| n + 1 != which) {
            let ix = log.find(&format!("{n:08x}")).unwrap();
            prop_assert_eq!(log.record(ix).unwrap().body, user(&format!("text number {n}")));
        }
        let leaf = log.leaf().map(|ix| log.id(ix));
        put(&log, "next", leaf.as_deref(), user("goes on"));
        let after = std::fs::read(&path).unwrap();
        prop_assert_eq!(&after[..bytes.len()], &bytes[..]);
        let before = picture(&log);
        let log = rig.reopened(log);
        prop_assert_eq!(picture(&log), before);
    }
}
