//! One suite for what a session is, run on memory and on files; and what only files can suffer.

mod contract;
mod damage;
mod exchange;
mod files;
mod laws;
mod listing;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kli_protocol::record::*;
use serde_json::{Value, json};

use super::*;
use crate::clock::Clock;

/// Counts.
#[derive(Default)]
pub struct TestClock(AtomicU64);

impl Clock for TestClock {
    fn now_ms(&self) -> u64 {
        1_790_000_000_000 + self.0.fetch_add(1, Ordering::Relaxed)
    }

    fn random(&self) -> u128 {
        u128::from(self.0.fetch_add(1, Ordering::Relaxed)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
    }
}

pub const SETTINGS: StoreSettings = StoreSettings { durability: Durability::Os, max_memory_bytes: 64 << 20 };

/// A store of either kind.
pub struct Rig {
    pub store: Arc<Store>,
    pub dir: Option<tempfile::TempDir>,
    pub clock: TestClock,
}

impl Rig {
    pub fn file() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        Rig { store: Store::new(Some(dir.path()), SETTINGS).unwrap(), dir: Some(dir), clock: TestClock::default() }
    }

    pub fn memory() -> Rig {
        Rig { store: Store::new(None, SETTINGS).unwrap(), dir: None, clock: TestClock::default() }
    }

    pub fn both(check: impl Fn(&mut Rig)) {
        for mut rig in [Rig::memory(), Rig::file()] {
            check(&mut rig);
        }
    }

    pub fn new_session(&self, id: &str) -> NewSession {
        NewSession {
            id: id.into(),
            work_dir: "/tmp/w".into(),
            created_at_ms: self.clock.now_ms(),
            persist: self.dir.is_some(),
            ..NewSession::default()
        }
    }

    pub fn create(&self, id: &str) -> Arc<Log> {
        self.store.create(self.new_session(id)).unwrap()
    }

    pub fn fork(&self, source: &Arc<Log>, at: Ix, id: &str) -> Arc<Log> {
        self.store.fork(source, at, self.new_session(id)).unwrap()
    }

    /// As after a restart, where there is a file to start from.
    pub fn reopened(&mut self, log: Arc<Log>) -> Arc<Log> {
        let id = log.session_id().to_owned();
        if let Some(dir) = &self.dir {
            drop(log);
            self.store = Store::new(Some(dir.path()), SETTINGS).unwrap();
        }
        self.store.open(&id).unwrap()
    }

    pub fn path(&self) -> &Path {
        self.dir.as_ref().unwrap().path()
    }
}

pub fn user(text: &str) -> Body {
    Body::message(Message::User(UserMessage { content: text.into(), ..UserMessage::default() }))
}

pub fn assistant(text: &str) -> Body {
    let usage = Usage { input: 10, output: 5, total_tokens: 15, ..Usage::default() };
    Body::message(Message::Assistant(AssistantMessage { content: text.into(), usage, ..AssistantMessage::default() }))
}

pub fn label(target: &str, label: Option<&str>) -> Body {
    Body::Label(Label { target_id: target.into(), label: label.map(str::to_owned) })
}

pub fn model(id: &str) -> Body {
    Body::ModelChange(ModelChange { provider: "p".into(), model_id: id.into() })
}

/// Appends a record under `parent`, with a chosen id.
pub fn put(log: &Log, id: &str, parent: Option<&str>, body: Body) -> Ix {
    let record = Record::new(id, parent.map(str::to_owned), "2026-01-01T00:00:00.000Z", body);
    log.append(&[record]).unwrap().ixs[0]
}

pub fn ids(log: &Log, ixs: impl IntoIterator<Item = Ix>) -> String {
    ixs.into_iter().map(|ix| log.id(ix)).collect::<Vec<_>>().join(" ")
}

pub fn branch(log: &Log) -> String {
    let mut up: Vec<Ix> = log.up(log.leaf()).map(|node| node.ix).collect();
    up.reverse();
    ids(log, up)
}

/// Everything that can be seen of a session.
pub fn picture(log: &Log) -> Value {
    let node = |ix: Ix| {
        let record = log.record(ix).unwrap();
        json!({
            "record": record.to_line().unwrap(),
            "parent": log.parent(ix).map(|p| log.id(p)),
            "children": ids(log, log.children(Some(ix))),
            "label": log.label(ix),
            "depth": log.depth(ix),
        })
    };
    let facts = log.facts();
    json!({
        "leaf": log.leaf().map(|ix| log.id(ix)),
        "roots": ids(log, log.children(None)),
        "records": log.records_after(None).map(|n| node(n.ix)).collect::<Vec<_>>(),
        "entries": ids(log, log.entries_before(log.end()).map(|n| n.ix)),
        "labels": log.labels().into_iter().map(|(ix, l)| (log.id(ix), l)).collect::<Vec<_>>(),
        "settings": ids(log, log.settings_up(log.leaf()).map(|n| n.ix)),
        "opening": ids(log, log.opening_settings()),
        "facts": [json!(facts.name), json!(facts.archived), json!(facts.first_prompt), json!(facts.fork_prompt),
            json!(facts.last_prompt), json!(facts.entry_count), json!(facts.message_count), json!(facts.usage),
            json!(facts.updated_at), json!(facts.fork_entry_id), json!(facts.parent_session)],
    })
}

pub fn shared(path: &str) -> Option<PathBuf> {
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    let root = std::env::var_os("KLI_SHARED").map_or(repo, PathBuf::from);
    let path = root.join(path);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
        return None;
    }
    Some(path)
}

pub fn kinds(log: &Log) -> Vec<String> {
    log.facts().warnings.into_iter().map(|w| w.kind).collect()
}
