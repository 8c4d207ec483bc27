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
    let show = |index: &crate::tree::Index| {
        let [rows, ..] = index.parts();
        (rows.concat(), serde_json::to_value(index.rest()).unwrap())
    };
    assert!(show(&index) == show(&state.index), "fold(records) = tree");
    Some(())
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
